//! `FENCE.*`: what all of them share, and `FENCE.ADVANCE fence token [PX ms]`.

use super::{is, number, token};
use crate::error::Refusal;
use crate::ids::Token;
use crate::limits;
use crate::text::quoted;

/// `FENCE.ADVANCE fence token [PX ms]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advance {
    /// The token seen.
    pub token: Token,
    /// After how many ms the fence goes by itself: 1 to 365 days.
    pub px_ms: Option<u64>,
}

impl Advance {
    /// Reads the words after the fence's name.
    ///
    /// # Errors
    /// A refusal that names the offending word.
    pub fn parse(words: &[&[u8]]) -> Result<Self, Refusal> {
        let [first, options @ ..] = words else { return Err(Refusal::WrongArity("fence.advance")) };
        let token = token("token", first)?;
        let px_ms = match options {
            [] => None,
            [px, ..] if !is(px, "PX") => return Err(Refusal::UnknownOption(quoted(px))),
            [_] => return Err(Refusal::OptionWithoutValue("PX")),
            [_, ms] => Some(number("PX ms", ms, 1, limits::TTL_MS_MAX)?),
            [_, _, more, ..] if is(more, "PX") => return Err(Refusal::OptionTwice("PX")),
            [_, _, more, ..] => return Err(Refusal::UnknownOption(quoted(more))),
        };
        Ok(Self { token, px_ms })
    }
}

/// Splits the words after the lock's or fence's name into the token and what follows it; `least` words must follow.
///
/// # Errors
/// A bad token, or too few words for `command`.
pub fn split_fenced<'w, 'a>(
    command: &'static str,
    words: &'w [&'a [u8]],
    least: usize,
) -> Result<(Token, &'w [&'a [u8]]), Refusal> {
    let [first, rest @ ..] = words else { return Err(Refusal::WrongArity(command)) };
    if rest.len() < least {
        return Err(Refusal::WrongArity(command));
    }
    Ok((token("token", first)?, rest))
}
