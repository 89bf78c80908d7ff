//! Numbers as the contract allows them: plain decimal integers, nothing before or after them.

use crate::error::Refusal;
use crate::ids::Token;
use crate::limits;

/// `word` as a decimal integer from `min` to `max`; `what` names it in the error. No sign, no blanks, no leading
/// zeros, no fraction, no exponent: one rule for every number of every command.
///
/// # Errors
/// [`Refusal::BadNumber`] with the range.
pub fn number(what: &'static str, word: &[u8], min: u64, max: u64) -> Result<u64, Refusal> {
    plain_decimal(word).filter(|number| (min..=max).contains(number)).ok_or(Refusal::BadNumber {
        what,
        min,
        max,
    })
}

/// `word` as a fencing token.
///
/// # Errors
/// [`Refusal::BadNumber`] outside 1 to 2^53-1.
pub fn token(what: &'static str, word: &[u8]) -> Result<Token, Refusal> {
    let bad = Refusal::BadNumber { what, min: 1, max: limits::TOKEN_MAX };
    plain_decimal(word).and_then(Token::new).ok_or(bad)
}

fn plain_decimal(word: &[u8]) -> Option<u64> {
    let leading_zero = word.len() > 1 && word.first() == Some(&b'0');
    if word.is_empty() || leading_zero {
        return None;
    }
    word.iter().try_fold(0_u64, |sum, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit <= 9)?;
        sum.checked_mul(10)?.checked_add(u64::from(digit))
    })
}
