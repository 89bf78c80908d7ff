//! The same for programs without a runtime: each call blocks the thread.
//!
//! ```no_run
//! use std::time::Duration;
//! use lockfence_client::{Error, Options, blocking::Lockfence};
//!
//! fn nightly() -> Result<(), Error> {
//!     let locks = Lockfence::new(lockfence_client::Lockfence::builder().node("redis://localhost"))?;
//!     locks.with_lock("nightly", Options::wait_up_to(Duration::from_secs(60)), |held| {
//!         for part in 0..10 {
//!             if !held.is_held() {
//!                 return; // somebody else may have begun
//!             }
//!             println!("part {part} under token {}", held.token());
//!         }
//!     })
//! }
//! ```

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, ToRedisArgs, Value};
use tokio::runtime::{Handle, Runtime};

use crate::config::{Builder, Options};
use crate::error::{Error, Lost};
use crate::fenced::DataServer;
use crate::held::Released;
use crate::lockfence::Stats;

/// How long the last handle waits, when it is dropped, for what is still being released.
const LINGER: Duration = Duration::from_secs(1);

/// A client that blocks. Renewal goes on in a thread of its own. Cheap to clone. Not for use inside a tokio runtime.
///
/// When the last handle on it is dropped, locks included, it waits up to a second for what is still being released.
#[derive(Clone, Debug)]
pub struct Lockfence(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    client: crate::Lockfence,
    /// There until it is dropped.
    runtime: Option<Runtime>,
}

/// A lock that is held; see [`crate::Held`]. Released when dropped.
#[derive(Debug)]
pub struct Held {
    held: crate::Held,
    inner: Arc<Inner>,
}

/// A fenced handle on the server where the data is; see [`crate::Fenced`].
#[derive(Clone, Debug)]
pub struct Fenced {
    fenced: crate::Fenced,
    inner: Arc<Inner>,
}

impl Inner {
    fn run<T>(&self, future: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        match &self.runtime {
            Some(runtime) => runtime.block_on(future),
            None => Err(Error::Refused("the client is going down".to_owned())),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        // Inside somebody else's runtime no thread may be blocked.
        if Handle::try_current().is_err() {
            runtime.block_on(self.client.settled(LINGER));
        }
        runtime.shutdown_background();
    }
}

impl Lockfence {
    /// Makes a client that blocks of a [`Builder`].
    ///
    /// # Errors
    /// [`Error::Config`]; [`Error::Refused`] where the system gives no thread.
    pub fn new(builder: Builder) -> Result<Self, Error> {
        let client = builder.build()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("lockfence")
            .enable_all()
            .build()
            .map_err(|error| Error::Refused(error.to_string()))?;
        Ok(Self(Arc::new(Inner { client, runtime: Some(runtime) })))
    }

    pub(crate) fn client(&self) -> &crate::Lockfence {
        &self.0.client
    }

    /// As [`crate::Lockfence::acquire`].
    ///
    /// # Errors
    /// The same.
    pub fn acquire(&self, name: impl AsRef<[u8]>, options: Options) -> Result<Held, Error> {
        let held = self.0.run(self.0.client.acquire(name, options))?;
        Ok(Held { held, inner: self.0.clone() })
    }

    /// As [`crate::Lockfence::try_acquire`].
    ///
    /// # Errors
    /// The same.
    pub fn try_acquire(&self, name: impl AsRef<[u8]>) -> Result<Held, Error> {
        self.acquire(name, Options::try_once())
    }

    /// Runs `body` with the lock, and releases it. A body that blocks cannot be stopped from outside: where it takes long,
    /// let it look at [`Held::is_held`] now and then. It returns [`Error::Lost`] where the lock was lost before the body
    /// was done: it may not have been alone.
    ///
    /// # Errors
    /// As [`Self::acquire`], and [`Error::Lost`].
    pub fn with_lock<T>(
        &self,
        name: impl AsRef<[u8]>,
        options: Options,
        body: impl FnOnce(&Held) -> T,
    ) -> Result<T, Error> {
        let held = self.acquire(name, options)?;
        let value = body(&held);
        let loss = held.held.why_not_held();
        // If it is not held any more, that was said above.
        let _ = held.release();
        loss.map_or(Ok(value), |loss| Err(Error::Lost(loss)))
    }

    /// As [`crate::Lockfence::stats`].
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.client.stats()
    }

    /// As [`crate::Lockfence::settled`].
    #[must_use]
    pub fn settled(&self, within: Duration) -> bool {
        self.0.run(async { Ok(self.0.client.settled(within).await) }).unwrap_or(false)
    }
}

impl Held {
    /// As [`crate::Held::name`].
    #[must_use]
    pub fn name(&self) -> &[u8] {
        self.held.name()
    }

    /// As [`crate::Held::token`].
    #[must_use]
    pub const fn token(&self) -> u64 {
        self.held.token()
    }

    /// As [`crate::Held::remaining`].
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.held.remaining()
    }

    /// As [`crate::Held::is_held`].
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.held.is_held()
    }

    /// As [`crate::Held::loss`].
    #[must_use]
    pub fn loss(&self) -> Option<Lost> {
        self.held.loss()
    }

    /// Waits until it is lost and says why: as [`crate::Held::lost`].
    #[must_use]
    pub fn lost(&self) -> Lost {
        self.inner.run(async { Ok(self.held.lost().await) }).unwrap_or(Lost::Released)
    }

    /// Waits until it is lost, at most `within`.
    #[must_use]
    pub fn wait_lost(&self, within: Duration) -> Option<Lost> {
        let lost = async { Ok(tokio::time::timeout(within, self.held.lost()).await.ok()) };
        self.inner.run(lost).ok().flatten()
    }

    /// As [`crate::Held::fence`].
    ///
    /// # Errors
    /// The same.
    pub fn fence(&self, data: impl Into<DataServer>) -> Result<Fenced, Error> {
        self.inner.run(self.held.fence(data)).map(|fenced| self.with(fenced))
    }

    /// As [`crate::Held::fence_at`].
    ///
    /// # Errors
    /// The same.
    pub fn fence_at(&self, data: impl Into<DataServer>, fence: impl Into<Vec<u8>>) -> Result<Fenced, Error> {
        self.inner.run(self.held.fence_at(data, fence)).map(|fenced| self.with(fenced))
    }

    /// As [`crate::Held::fence_here`].
    #[must_use]
    pub fn fence_here(&self) -> Option<Fenced> {
        self.held.fence_here().map(|fenced| self.with(fenced))
    }

    /// As [`crate::Held::release`].
    #[must_use = "it may not have been held any more"]
    pub fn release(self) -> Released {
        let Self { held, inner } = self;
        inner.run(async { Ok(held.release().await) }).unwrap_or(Released::Unconfirmed)
    }

    fn with(&self, fenced: crate::Fenced) -> Fenced {
        Fenced { fenced, inner: self.inner.clone() }
    }
}

impl Fenced {
    /// As [`crate::Fenced::write`].
    ///
    /// # Errors
    /// The same.
    pub fn write(&self, key: impl ToRedisArgs, value: impl ToRedisArgs) -> Result<(), Error> {
        self.inner.run(self.fenced.write(key, value))
    }

    /// As [`crate::Fenced::call`].
    ///
    /// # Errors
    /// The same.
    pub fn call(&self, command: &Cmd) -> Result<Value, Error> {
        self.inner.run(self.fenced.call(command))
    }

    /// As [`crate::Fenced::check`].
    ///
    /// # Errors
    /// The same.
    pub fn check(&self) -> Result<(), Error> {
        self.inner.run(self.fenced.check())
    }
}
