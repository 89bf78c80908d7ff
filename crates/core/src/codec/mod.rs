//! How records and events are written: in RDB files, in the AOF, on the replication link.
//!
//! Numbers are LEB128 varints, byte strings carry their length, the first byte is the version. Decoding is total:
//! any bytes give a value within all bounds or [`Corrupt`], and memory grows only with the input. A version that
//! has been released is read for ever (golden bytes in tests/golden.rs).

mod log;
mod name;
mod record;

use alloc::vec::Vec;

pub use log::{Change, Log, Marks, read_log};
use record::{put_floor, read_floor};
pub use record::{read_fence, read_issuer, read_lock, write_fence, write_issuer, write_lock};

/// The format version that this code writes, and the highest it reads.
pub const VERSION: u8 = 1;

/// Bytes that are not what they should be. Nothing was changed by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corrupt {
    /// They end in the middle of something.
    Truncated,
    /// Something is left over at their end.
    Trailing,
    /// A value is outside its bounds. Holds what it was to be.
    OutOfBounds(&'static str),
    /// Two holders have one name or one token.
    Twice,
    /// Written by a newer version of lockfence.
    Version(u8),
}

impl core::fmt::Display for Corrupt {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Truncated => out.write_str("truncated"),
            Self::Trailing => out.write_str("bytes left over at the end"),
            Self::OutOfBounds(what) => write!(out, "{what} is out of bounds"),
            Self::Twice => out.write_str("two holders have one name or one token"),
            Self::Version(version) => {
                write!(
                    out,
                    "format version {version}, but this lockfence reads up to version {VERSION}: upgrade it"
                )
            }
        }
    }
}

/// Bytes of the longest number.
pub(crate) const NUMBER_BYTES_MAX: usize = 10;

/// Appends a number: 7 bits a byte, lowest first, the high bit set on all but the last.
pub fn put_number(out: &mut Vec<u8>, number: u64) {
    let bits = u64::BITS.saturating_sub(number.leading_zeros());
    let last = bits.saturating_sub(1) / 7;
    // Their number is known, so that `out` grows once, not for each of them.
    out.extend((0..last).map(|place| (number >> place.saturating_mul(7)) as u8 | 0x80));
    out.push((number >> last.saturating_mul(7)) as u8);
}

/// Appends a byte string: its length, then its bytes.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, u64::try_from(bytes.len()).unwrap_or(u64::MAX));
    out.extend_from_slice(bytes);
}

/// Reads what the `put_` functions wrote.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader at the start of `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// How many bytes are left.
    #[must_use]
    pub const fn left(&self) -> usize {
        self.rest.len()
    }

    /// One byte.
    ///
    /// # Errors
    /// [`Corrupt::Truncated`] at the end.
    pub fn byte(&mut self) -> Result<u8, Corrupt> {
        let (first, rest) = self.rest.split_first().ok_or(Corrupt::Truncated)?;
        self.rest = rest;
        Ok(*first)
    }

    /// A number.
    ///
    /// # Errors
    /// Truncated, or more than 64 bits.
    pub fn number(&mut self) -> Result<u64, Corrupt> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(Corrupt::OutOfBounds("number"));
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Corrupt::OutOfBounds("number"))
    }

    /// A number from `min` to `max`; `what` names it in the error.
    ///
    /// # Errors
    /// Truncated, or out of bounds.
    pub fn number_in(&mut self, what: &'static str, min: u64, max: u64) -> Result<u64, Corrupt> {
        let number = self.number()?;
        if (min..=max).contains(&number) { Ok(number) } else { Err(Corrupt::OutOfBounds(what)) }
    }

    /// A byte string of at most `max` bytes. Nothing is allocated.
    ///
    /// # Errors
    /// Truncated, or too long.
    pub fn bytes(&mut self, max: usize) -> Result<&'a [u8], Corrupt> {
        let len = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        if len > max {
            return Err(Corrupt::OutOfBounds("length"));
        }
        self.take(len)
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// Truncated.
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], Corrupt> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(Corrupt::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    /// The version byte, which must be one that this code knows.
    ///
    /// # Errors
    /// Truncated, or another version.
    pub fn version(&mut self) -> Result<(), Corrupt> {
        match self.byte()? {
            VERSION => Ok(()),
            other => Err(Corrupt::Version(other)),
        }
    }

    /// Nothing may be left.
    ///
    /// # Errors
    /// [`Corrupt::Trailing`].
    pub const fn end(&self) -> Result<(), Corrupt> {
        if self.rest.is_empty() { Ok(()) } else { Err(Corrupt::Trailing) }
    }
}
