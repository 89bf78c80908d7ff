//! A fence: remembers the highest token seen, of tokens issued elsewhere.

use crate::error::{Keeper, Refusal};
use crate::ids::Token;

/// A fence's record. The default one has seen nothing yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fence {
    counter: u64,
}

impl Fence {
    /// A fence that has seen `token`.
    #[must_use]
    pub const fn new(token: Token) -> Self {
        Self { counter: token.get() }
    }

    /// The highest token seen.
    #[must_use]
    pub const fn counter(&self) -> u64 {
        self.counter
    }

    /// Whether a write that carries `token` still counts; the counter as it stands.
    ///
    /// # Errors
    /// [`Refusal::Stale`] below the counter.
    pub fn check(&self, token: Token) -> Result<u64, Refusal> {
        if token.get() < self.counter {
            return Err(Refusal::Stale { token, counter: self.counter, keeper: Keeper::Fence });
        }
        Ok(self.counter)
    }

    /// Takes note of a token: the counter never falls.
    pub fn see(&mut self, token: u64) {
        self.counter = self.counter.max(token);
    }
}
