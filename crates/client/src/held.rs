//! A lock that is held, in the program's hand.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use lockfence_core::clock::Instant;
use lockfence_core::ids::Mode;
use tokio::sync::{mpsc, oneshot, watch};

use crate::clock;
use crate::config::ConfigError;
use crate::error::{Error, Lost};
use crate::fenced::{DataServer, Fenced};
use crate::lockfence::Inner;
use crate::wire::Subject;

/// What the task that holds a lock and its [`Held`] share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Until when it may be taken as held, on this machine's own clock; the past once it is lost.
    pub(crate) valid_until: AtomicI64,
    pub(crate) lost: watch::Sender<Option<Lost>>,
}

impl Shared {
    /// How long it may be taken as held without another renewal.
    pub(crate) fn remaining(&self) -> Duration {
        clock::until(Instant::from_micros(self.valid_until.load(Ordering::Acquire)))
    }
}

/// How a release ended. Releasing a lock that was lost is no error: it is not held, as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// It was held until now.
    Ended,
    /// It was not held any more.
    NotHeld,
    /// Too few nodes answered. It ends with its lease at the latest; this goes on in the background, while the runtime does.
    Unconfirmed,
}

/// A lock that is held. Renewed in the background, released when dropped.
///
/// The token is what a server of data can check ([`Self::fence`]): a lease alone does not keep a program that was paused
/// from writing too late.
pub struct Held {
    pub(crate) inner: Arc<Inner>,
    pub(crate) subject: Arc<Subject>,
    pub(crate) token: u64,
    pub(crate) shared: Arc<Shared>,
    /// Dropping this releases the lock.
    pub(crate) release: mpsc::Sender<oneshot::Sender<Released>>,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("lock", &self.subject.lock.escape_ascii().to_string())
            .field("token", &self.token)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

impl Held {
    /// The lock's name.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        &self.subject.lock
    }

    /// The fencing token: higher than that of every grant before it.
    #[must_use]
    pub const fn token(&self) -> u64 {
        self.token
    }

    /// How long it may be taken as held without another renewal; nothing once it is lost. By this machine's own clock,
    /// suspended time included.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.shared.remaining()
    }

    /// Whether it may be taken as held at this moment.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Ends when the lock is lost, by the local deadline even if no node ever answers, and says why.
    pub async fn lost(&self) -> Lost {
        let mut lost = self.shared.lost.subscribe();
        let reason = tokio::select! {
            biased;
            reason = lost.wait_for(Option::is_some) => reason.ok().and_then(|reason| reason.clone()),
            // Whoever renews it has gone, and the runtime with it.
            () = self.release.closed() => None,
        };
        reason.unwrap_or(Lost::Released)
    }

    /// Why it is lost, if it is. It may be over by the clock a moment before it says so: to know whether to go on ask
    /// [`Self::is_held`].
    #[must_use]
    pub fn loss(&self) -> Option<Lost> {
        self.shared.lost.borrow().clone()
    }

    /// Why it may not be taken as held at this moment; `None` where it may.
    pub(crate) fn why_not_held(&self) -> Option<Lost> {
        (!self.is_held()).then(|| self.loss().unwrap_or(Lost::Expired))
    }

    /// Releases it at all nodes. [`Released::Unconfirmed`] also where the runtime that renewed it has ended: what became
    /// of the lock is not known then.
    pub async fn release(self) -> Released {
        let (tell, told) = oneshot::channel();
        if self.release.send(tell).await.is_ok() {
            return told.await.unwrap_or(Released::Unconfirmed);
        }
        self.why_not_held().map_or(Released::Unconfirmed, |_| Released::NotHeld)
    }

    /// A fenced handle on the server where the data is, with the fence `fence:` + the lock's name: every write through
    /// it is refused there once a higher token was seen. The token is announced at once.
    ///
    /// # Errors
    /// [`Error::Fenced`] where a higher token was seen already; [`Error::Lost`] where the lock is not held any more;
    /// [`Error::Refused`], [`Error::Indeterminate`];
    /// [`ConfigError::FenceNotExclusive`](crate::ConfigError::FenceNotExclusive) on a lock that was got with
    /// [`shared`](crate::Options::shared) or [`limit`](crate::Options::limit), and
    /// [`ConfigError::DataOnQuorum`](crate::ConfigError::DataOnQuorum): nothing was sent.
    pub async fn fence(&self, data: impl Into<DataServer>) -> Result<Fenced, Error> {
        let mut fence = b"fence:".to_vec();
        fence.extend_from_slice(&self.subject.lock);
        self.fence_at(data, fence).await
    }

    /// As [`Self::fence`], with a fence of that name: never the lock's own, and on a cluster one in the slot of the data
    /// (`fence:{acct:42}` for `{acct:42}:balance`).
    ///
    /// # Errors
    /// As [`Self::fence`].
    pub async fn fence_at(
        &self,
        data: impl Into<DataServer>,
        fence: impl Into<Vec<u8>>,
    ) -> Result<Fenced, Error> {
        if self.subject.mode != Mode::Exclusive {
            return Err(ConfigError::FenceNotExclusive { mode: self.subject.mode.name() }.into());
        }
        let node = data.into().0?;
        if let Some(lost) = self.why_not_held() {
            // The fence may have been lost, and a successor's higher token with it.
            return Err(Error::Lost(lost));
        }
        let (shared, within) = (Some(self.shared.clone()), self.inner.config.fence_timeout);
        let fenced = Fenced::new(node, fence.into(), self.token, shared, within);
        fenced.advance().await?;
        Ok(fenced)
    }

    /// A fenced handle on the lock's own server, with the lock as the fence: for one server that has the lock and the
    /// data. `None` on a quorum, whose nodes hold locks, not data. With [`shared`](crate::Options::shared) and
    /// [`limit`](crate::Options::limit) each holder's own token counts while it holds the lock.
    ///
    /// The data goes over a connection of its own: it does not hold up the renewal of locks.
    #[must_use]
    pub fn fence_here(&self) -> Option<Fenced> {
        let node = self.inner.data()?;
        let within = self.inner.config.fence_timeout;
        Some(Fenced::new(node, self.subject.lock.clone(), self.token, None, within))
    }
}
