//! What a client asks for: parsed once from bytes, and written by the same code's other half, so that the module
//! and the client crate cannot disagree.

mod acquire;
mod fence;
mod number;
mod simple;

pub use acquire::{Acquire, Wait};
pub use fence::{Advance, split_fenced};
pub use number::{number, token};
pub use simple::{Break, Extend, Info, Release};

/// Compares an option's name, whatever its case.
pub(crate) fn is(word: &[u8], name: &str) -> bool {
    word.eq_ignore_ascii_case(name.as_bytes())
}
