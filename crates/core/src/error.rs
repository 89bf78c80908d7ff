//! Why a request is refused. Each refusal is data; its error line is made at the edge.

use alloc::format;
use alloc::string::String;

use crate::ids::{Mode, Token};
use crate::limits;
use crate::text::quoted;

/// A request that is refused. Nothing was changed, and no token was used, by the request that gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A word where an option was expected is none. Holds the word, quoted.
    UnknownOption(String),
    /// An option was given twice.
    OptionTwice(&'static str),
    /// An option stands last and lacks its value.
    OptionWithoutValue(&'static str),
    /// An option (the first) stands without the one that must stand before it (the second).
    OptionNeeds(&'static str, &'static str),
    /// Two options that exclude each other.
    OptionsConflict(&'static str, &'static str),
    /// Too few or too many words. Holds the command's name, in lower case.
    WrongArity(&'static str),
    /// A number is not a plain decimal integer, or outside its range.
    BadNumber {
        /// What the number is, as the contract names it.
        what: &'static str,
        /// Lowest value allowed.
        min: u64,
        /// Highest value allowed.
        max: u64,
    },
    /// The owner is empty or too long.
    BadOwner,
    /// The owner holds the lock already, in another mode.
    HeldInOtherMode(Mode),
    /// MINTOKEN proposes a token that is too far ahead.
    ProposalTooFarAhead {
        /// The token proposed.
        proposed: Token,
        /// The highest that would be accepted now.
        highest: u64,
    },
    /// The lock has issued the highest token there is.
    Exhausted,
    /// After a start or promotion, no grants yet.
    Quarantine {
        /// Milliseconds until grants are made again.
        left_ms: u64,
    },
    /// The token is below the counter and no live holder has it.
    Stale {
        /// The token that was presented.
        token: Token,
        /// Where the lock or fence stands.
        counter: u64,
        /// Which of the two it is.
        keeper: Keeper,
    },
    /// The token is above the lock's counter.
    NeverIssued(Token),
    /// Neither a lock nor a fence stands at that key.
    NoRecord,
    /// Too many requests wait already.
    QueueFull {
        /// The setting that says how many may.
        setting: &'static str,
        /// Its value.
        limit: u64,
    },
}

/// What keeps the counter that a token is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// A lock: it issued the token.
    Lock,
    /// A fence: it has seen tokens issued elsewhere.
    Fence,
}

impl Keeper {
    const fn name(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Fence => "fence",
        }
    }
}

impl Refusal {
    /// The error line, without the leading `-`: a code in capitals, then a sentence. `key` is the lock or fence that
    /// the request named.
    #[must_use]
    pub fn line(&self, key: &[u8]) -> String {
        match self {
            Self::UnknownOption(word) => format!("ERR unknown option {word}"),
            Self::OptionTwice(name) => format!("ERR option {name} is given twice"),
            Self::OptionWithoutValue(name) => format!("ERR option {name} needs a value"),
            Self::OptionNeeds(name, other) => format!("ERR option {name} needs {other} before it"),
            Self::OptionsConflict(one, other) => format!("ERR options {one} and {other} exclude each other"),
            Self::WrongArity(command) => format!("ERR wrong number of arguments for '{command}' command"),
            Self::BadNumber { what, min, max } => {
                format!("ERR {what} must be a decimal integer from {min} to {max}")
            }
            Self::BadOwner => format!("ERR owner must be 1 to {} bytes", limits::OWNER_BYTES_MAX),
            Self::HeldInOtherMode(mode) => {
                format!("ERR this owner holds lock {} in another mode, {}", quoted(key), mode.name())
            }
            Self::ProposalTooFarAhead { proposed, highest } => format!(
                "ERR MINTOKEN {} is too far ahead: at most {highest} (10 s ahead of the clock) is accepted",
                proposed.get()
            ),
            Self::Exhausted => {
                format!("EXHAUSTED lock {} has issued the highest token, {}", quoted(key), limits::TOKEN_MAX)
            }
            Self::Quarantine { left_ms } => {
                format!("QUARANTINE no grants for another {left_ms} ms after the start")
            }
            Self::Stale { token, counter, keeper } => {
                format!(
                    "FENCED token {} is stale: {} {} is at {counter}",
                    token.get(),
                    keeper.name(),
                    quoted(key)
                )
            }
            Self::NeverIssued(token) => {
                format!("FENCED token {} was never issued by lock {}", token.get(), quoted(key))
            }
            Self::NoRecord => format!("FENCED {} has no record", quoted(key)),
            Self::QueueFull { setting, limit } => {
                format!("QUEUEFULL as many requests wait as {setting} allows, {limit}")
            }
        }
    }
}
