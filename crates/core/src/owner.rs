//! How a record keeps the names of its holders: in as few bytes as hold them, since a server may hold millions.
//!
//! Owners are opaque, and every name comes back byte for byte. But most are drawn by programs, as hex digits or as a
//! UUID, and such a name is kept as the 16 bytes that it spells. A name has one form only, so that two names are
//! equal when their forms are.

use core::ops::Deref;

/// Bytes of a packed name, beside its form and its length.
pub(crate) const ROOM: usize = 16;
/// Hex digits that fit.
const DIGITS: usize = 32;
/// Length of a UUID: 8, 4, 4, 4 and 12 hex digits, and dashes between them.
const UUID: usize = UUID_LEN as usize;
pub(crate) const UUID_LEN: u8 = 36;

/// What the bytes of a packed name spell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Spells {
    /// Up to 16 bytes, as they are.
    Plain,
    /// 18, 20, 22 … 32 lower-case hex digits.
    Hex,
    /// A UUID in lower case.
    Uuid,
}

/// A name that needs no memory of its own. Not an enum whose variants hold the bytes: they would lie at a different
/// place in each, and the processor would wait for every copy (stores that do not match the loads after them).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Packed {
    pub(crate) spells: Spells,
    /// How long the name is.
    pub(crate) len: u8,
    /// Zeros behind what is needed.
    pub(crate) bytes: [u8; ROOM],
}

impl Packed {
    /// `None` for a name that does not pack.
    fn new(name: &[u8]) -> Option<Self> {
        let len = u8::try_from(name.len()).ok()?;
        if name.len() <= ROOM {
            let mut bytes = [0; ROOM];
            bytes.get_mut(..name.len())?.copy_from_slice(name);
            return Some(Self { spells: Spells::Plain, len, bytes });
        }
        if name.len() == UUID {
            let bytes = pack(&without_dashes(name.first_chunk()?)?)?;
            return Some(Self { spells: Spells::Uuid, len, bytes });
        }
        if name.len() > DIGITS || name.len() % 2 == 1 {
            return None;
        }
        let mut digits = [b'0'; DIGITS];
        digits.get_mut(..name.len())?.copy_from_slice(name);
        Some(Self { spells: Spells::Hex, len, bytes: pack(&digits)? })
    }

    fn unpacked(&self) -> (u8, [u8; UUID]) {
        let name = match self.spells {
            Spells::Plain => padded(&self.bytes),
            Spells::Hex => padded(&unpack(&self.bytes)),
            Spells::Uuid => with_dashes(&unpack(&self.bytes)),
        };
        (self.len, name)
    }
}

/// The bytes that hex digits spell; `None` if one is none. Without branches, for the sake of the vector units.
fn pack(digits: &[u8; DIGITS]) -> Option<[u8; ROOM]> {
    let values = digits.map(|digit| match digit {
        b'0'..=b'9' => digit.wrapping_sub(b'0'),
        b'a'..=b'f' => digit.wrapping_sub(b'a' - 10),
        _ => 0xff,
    });
    if values.iter().fold(0, |all, value| all | value) > 0xf {
        return None;
    }
    let (pairs, _) = values.as_chunks::<2>();
    let mut bytes = [0; ROOM];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = high << 4 | low;
    }
    Some(bytes)
}

fn unpack(bytes: &[u8; ROOM]) -> [u8; DIGITS] {
    let mut digits = [0; DIGITS];
    let (pairs, _) = digits.as_chunks_mut::<2>();
    for (pair, byte) in pairs.iter_mut().zip(bytes) {
        *pair = [byte >> 4, byte & 0xf];
    }
    digits.map(|value| value.wrapping_add(if value < 10 { b'0' } else { b'a' - 10 }))
}

/// The runs of digits of a UUID: where each begins in the text, and where among the digits; and how long it is.
const RUNS: [(usize, usize, usize); 5] = [(0, 0, 8), (9, 8, 4), (14, 12, 4), (19, 16, 4), (24, 20, 12)];

fn without_dashes(text: &[u8; UUID]) -> Option<[u8; DIGITS]> {
    if [text[8], text[13], text[18], text[23]] != *b"----" {
        return None;
    }
    let mut digits = [0; DIGITS];
    for (from, to, len) in RUNS {
        digits.get_mut(to..)?.get_mut(..len)?.copy_from_slice(text.get(from..)?.get(..len)?);
    }
    Some(digits)
}

fn with_dashes(digits: &[u8; DIGITS]) -> [u8; UUID] {
    let mut text = [b'-'; UUID];
    for (to, from, len) in RUNS {
        let run = digits.iter().skip(from).take(len);
        text.iter_mut().skip(to).zip(run).for_each(|(byte, digit)| *byte = *digit);
    }
    text
}

/// These bytes, as far as there is room, and zeros behind them.
pub(crate) fn padded<const TO: usize>(bytes: &[u8]) -> [u8; TO] {
    let mut padded = [0; TO];
    padded.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    padded
}

/// An owner's name as a record keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerName<'a>(pub(crate) Form<'a>);

/// A name that can be packed is always packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form<'a> {
    Packed(Packed),
    Long(&'a [u8]),
}

impl<'a> OwnerName<'a> {
    /// The name that `bytes` are.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(Packed::new(bytes).map_or(Form::Long(bytes), Form::Packed))
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> OwnerBytes<'a> {
        OwnerBytes(match &self.0 {
            Form::Packed(packed) => {
                let (len, bytes) = packed.unpacked();
                Spelt::Out { len, bytes }
            }
            Form::Long(bytes) => Spelt::Borrowed(bytes),
        })
    }
}

/// The bytes of an owner's name.
#[derive(Clone, Copy, Debug)]
pub struct OwnerBytes<'a>(Spelt<'a>);

#[derive(Clone, Copy, Debug)]
enum Spelt<'a> {
    Out { len: u8, bytes: [u8; UUID] },
    Borrowed(&'a [u8]),
}

impl Deref for OwnerBytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Spelt::Out { len, bytes } => bytes.get(..usize::from(*len)).unwrap_or_default(),
            Spelt::Borrowed(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_packed(name: &[u8]) -> bool {
        let kept = OwnerName::new(name);
        assert_eq!(*kept.bytes(), *name);
        matches!(kept.0, Form::Packed(_))
    }

    #[test]
    fn names_of_programs_are_packed() {
        assert!(is_packed(b"a"));
        assert!(is_packed(b"worker-17/thread"));
        assert!(is_packed(&[0xff; 16]));
        assert!(is_packed(b"9f3c51d0a72b71e88c04d1f6a0b3c5e7"));
        assert!(is_packed(b"0123456789abcdef00"));
        assert!(is_packed(b"c56a4180-65aa-42ec-a945-5fd21dec0538"));
    }

    #[test]
    fn other_names_are_kept_as_they_are() {
        assert!(!is_packed(b"worker-17/thread2"));
        assert!(!is_packed(b"0123456789abcdef0"), "an odd number of digits");
        assert!(!is_packed(b"9F3C51D0A72B71E88C04D1F6A0B3C5E7"), "it would come back in lower case");
        assert!(!is_packed(b"C56A4180-65aa-42ec-a945-5fd21dec0538"));
        assert!(!is_packed(b"c56a4180-65aa-42ec-a945-5fd21dec053-"));
        assert!(!is_packed(b"c56a418-065aa-42ec-a945-5fd21dec0538"));
        assert!(!is_packed(b"c56a4180065aa-42ec-a945-5fd21dec0538"));
        assert!(!is_packed(b"9f3c51d0a72b71e88c04d1f6a0b3c5e700"));
        assert!(!is_packed(&[0; 36]));
        assert!(!is_packed(&[b'a'; 512]));
    }

    #[test]
    fn every_byte_at_every_place_comes_back() {
        for name in [
            b"0123456789abcdef".as_slice(),
            b"9f3c51d0a72b71e88c04d1f6a0b3c5e7",
            b"0123456789abcdef00",
            b"c56a4180-65aa-42ec-a945-5fd21dec0538",
        ] {
            for (at, byte) in (0..name.len()).flat_map(|at| (0..=255).map(move |byte| (at, byte))) {
                let mut other = name.to_vec();
                other[at] = byte;
                is_packed(&other);
                assert_eq!(OwnerName::new(&other) == OwnerName::new(name), other == name, "{other:?}");
            }
        }
    }

    #[test]
    fn names_of_different_forms_and_lengths_differ() {
        let names: [&[u8]; 8] = [
            b"",
            b"\0",
            b"\0\0",
            b"00",
            b"000000000000000000",
            b"00000000000000000000",
            b"00000000000000000000000000000000",
            b"00000000-0000-0000-0000-000000000000",
        ];
        for (one, other) in names.iter().flat_map(|one| names.iter().map(move |other| (one, other))) {
            assert_eq!(OwnerName::new(one) == OwnerName::new(other), one == other);
        }
    }
}
