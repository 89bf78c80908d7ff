//! Names and numbers with a meaning: who, which token, how many at once.

use crate::limits;
use crate::planted::{self, Bug};

/// Who holds or wants a lock: 1 to 512 opaque bytes, unique for each acquisition. Nothing reads them as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner<'a>(&'a [u8]);

impl<'a> Owner<'a> {
    /// `bytes` as an owner; `None` when empty or longer than 512 bytes.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Option<Self> {
        if bytes.is_empty() || bytes.len() > limits::OWNER_BYTES_MAX { None } else { Some(Self(bytes)) }
    }

    /// The bytes.
    #[must_use]
    pub const fn bytes(self) -> &'a [u8] {
        self.0
    }
}

/// A fencing token: 1 to 2^53-1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(u64);

impl Token {
    /// The highest token there can be.
    pub const MAX: Self = Self(limits::TOKEN_MAX);

    /// `number` as a token; `None` outside 1 to 2^53-1.
    #[must_use]
    pub const fn new(number: u64) -> Option<Self> {
        if number == 0 || number > limits::TOKEN_MAX { None } else { Some(Self(number)) }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// How many may hold a lock at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// One holder.
    #[default]
    Exclusive,
    /// Any number of shared holders, none together with an exclusive one.
    Shared,
    /// A semaphore: up to this many holders (1 to 1,000,000).
    Limit(u32),
}

impl Mode {
    /// The mode's name, as commands and replies spell it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
            Self::Limit(_) => "limit",
        }
    }

    /// Whether two requests are of one kind; the n of a LIMIT may differ.
    #[must_use]
    pub const fn same_kind(self, other: Self) -> bool {
        matches!(
            (self, other),
            (Self::Exclusive, Self::Exclusive)
                | (Self::Shared, Self::Shared)
                | (Self::Limit(_), Self::Limit(_))
        )
    }

    /// Whether a request of this mode fits beside `live` holders that are there in mode `present`.
    #[must_use]
    pub fn fits(self, present: Self, live: u64) -> bool {
        self.in_the_way(present, live) == 0
    }

    /// How many of `live` holders, which are there in mode `present`, must leave before a request of this mode fits.
    #[must_use]
    pub fn in_the_way(self, present: Self, live: u64) -> u64 {
        match (self, present) {
            (Self::Shared, Self::Shared) => 0,
            (Self::Shared, _) if planted::is(Bug::SharedBesideAny) => 0,
            (Self::Limit(n), Self::Limit(_)) => {
                let more = !planted::is(Bug::LimitOneMore);
                live.saturating_add(u64::from(more)).saturating_sub(u64::from(n))
            }
            _ => live,
        }
    }
}
