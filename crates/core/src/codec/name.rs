//! An owner's name in a log: in as few bytes as hold it, since there is one in every effect.
//!
//! The first byte is the form: 1 to 16, so many bytes of any kind; 17 to 24, the 18, 20 … 32 hex digits that 9 to 16
//! bytes spell; 25, a UUID, as 16 bytes; 26, a byte string with its length. A name has one form only.

use alloc::vec::Vec;

use super::{Corrupt, Reader, put_bytes};
use crate::limits;
use crate::owner::{Form, OwnerName, Packed, ROOM, Spells, UUID_LEN, padded};

/// How many bytes a packed name has at most.
const PACKED: u8 = ROOM as u8;
/// Forms 1 to this: so many bytes, as they are.
const PLAIN_MAX: u8 = PACKED;
/// Forms from here to [`HEX_MAX`]: their number, less [`HEX_LESS`], of bytes that hex digits spell.
const HEX_MIN: u8 = PLAIN_MAX + 1;
const HEX_MAX: u8 = 24;
const HEX_LESS: u8 = 8;
const UUID: u8 = 25;
const LONG: u8 = 26;

pub(super) fn put_name(out: &mut Vec<u8>, name: OwnerName<'_>) {
    match name.0 {
        Form::Packed(Packed { spells, len, bytes }) => {
            let (form, len) = match spells {
                Spells::Plain => (len, len),
                Spells::Hex => ((len / 2).saturating_add(HEX_LESS), len / 2),
                Spells::Uuid => (UUID, PACKED),
            };
            out.push(form);
            out.extend_from_slice(bytes.get(..usize::from(len)).unwrap_or_default());
        }
        Form::Long(bytes) => {
            out.push(LONG);
            put_bytes(out, bytes);
        }
    }
}

pub(super) fn read_name<'a>(reader: &mut Reader<'a>) -> Result<OwnerName<'a>, Corrupt> {
    const WRONG: Corrupt = Corrupt::OutOfBounds("owner");
    let form = reader.byte()?;
    Ok(match form {
        1..=PLAIN_MAX => OwnerName::new(reader.take(usize::from(form))?),
        HEX_MIN..=HEX_MAX => {
            let len = form.saturating_sub(HEX_LESS);
            let bytes = padded(reader.take(usize::from(len))?);
            OwnerName(Form::Packed(Packed { spells: Spells::Hex, len: len.saturating_mul(2), bytes }))
        }
        UUID => {
            let bytes = padded(reader.take(ROOM)?);
            OwnerName(Form::Packed(Packed { spells: Spells::Uuid, len: UUID_LEN, bytes }))
        }
        LONG => {
            let name = OwnerName::new(reader.bytes(limits::OWNER_BYTES_MAX)?);
            if matches!(name.0, Form::Packed(_)) {
                return Err(WRONG);
            }
            name
        }
        _ => return Err(WRONG),
    })
}
