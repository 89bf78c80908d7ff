//! What one lock is set to.

use std::time::Duration;

use lockfence_core::ids::Mode;

#[cfg(doc)]
use crate::ConfigError;

/// How long to wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// So long.
    UpTo(Duration),
    /// Without limit.
    Forever,
}

/// How a lock is to be had and held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    pub(crate) wait: Wait,
    pub(crate) ttl: Option<Duration>,
    pub(crate) renew: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) mode: Mode,
}

impl Options {
    /// Now or not at all.
    #[must_use]
    pub const fn try_once() -> Self {
        Self { wait: Wait::No, ttl: None, renew: true, max_hold: None, mode: Mode::Exclusive }
    }

    /// Waits so long. More than 365 days is as long as a server lets one wait in its queue at once; then it queues again.
    #[must_use]
    pub const fn wait_up_to(time: Duration) -> Self {
        Self { wait: Wait::UpTo(time), ..Self::try_once() }
    }

    /// Waits without limit.
    #[must_use]
    pub const fn wait_forever() -> Self {
        Self { wait: Wait::Forever, ..Self::try_once() }
    }

    /// The lease: how long the lock stays taken when this program dies.
    #[must_use]
    pub const fn ttl(self, ttl: Duration) -> Self {
        Self { ttl: Some(ttl), ..self }
    }

    /// Does not renew the lease: the lock is lost when the ttl is over.
    #[must_use]
    pub const fn without_renewal(self) -> Self {
        Self { renew: false, ..self }
    }

    /// Gives it up after so long, at least 1 ms, however often it was renewed: for work that may hang.
    #[must_use]
    pub const fn max_hold(self, time: Duration) -> Self {
        Self { max_hold: Some(time), ..self }
    }

    /// Shares the lock: any number of shared holders at once, none together with an exclusive one. For readers, where
    /// a writer takes the same lock without this. The queue stays first come, first served, so neither side starves.
    /// Works on one server and on a quorum.
    ///
    /// Every holder has a token of its own, but only [`Held::fence_here`](crate::Held::fence_here) can use it: a fence
    /// elsewhere knows one highest token, and would shut out the other holders.
    #[must_use]
    pub const fn shared(self) -> Self {
        Self { mode: Mode::Shared, ..self }
    }

    /// A semaphore: up to `holders` (1 to 1,000,000) hold the lock at once. Each request is judged by its own number
    /// against the holders present: let all clients of one lock name the same. On one server only: `acquire` refuses
    /// it on a quorum with [`ConfigError::LimitOnQuorum`], and a number out of range with [`ConfigError::BadLimit`].
    ///
    /// For tokens and fences see [`Self::shared`].
    #[must_use]
    pub const fn limit(self, holders: u32) -> Self {
        Self { mode: Mode::Limit(holders), ..self }
    }
}
