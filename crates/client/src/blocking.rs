//! The same for programs without a runtime: each call blocks the thread.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;

use crate::config::{Builder, Options};
use crate::error::{Error, Lost};
use crate::held::Released;

/// A client that blocks. Renewal goes on in a thread of its own. Not for use inside a tokio runtime.
#[derive(Clone, Debug)]
pub struct Lockfence {
    client: crate::Lockfence,
    runtime: Arc<Runtime>,
}

/// A lock that is held; see [`crate::Held`].
#[derive(Debug)]
pub struct Held {
    held: Option<crate::Held>,
    runtime: Arc<Runtime>,
}

impl Lockfence {
    /// Makes a client that blocks of a [`Builder`].
    ///
    /// # Errors
    /// [`Error::Config`]; [`Error::Refused`] where the system gives no thread.
    pub fn new(builder: Builder) -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("lockfence")
            .enable_all()
            .build()
            .map_err(|error| Error::Refused(error.to_string()))?;
        Ok(Self { client: builder.build()?, runtime: Arc::new(runtime) })
    }

    /// As [`crate::Lockfence::acquire`].
    ///
    /// # Errors
    /// The same.
    pub fn acquire(&self, name: impl AsRef<[u8]>, options: Options) -> Result<Held, Error> {
        let held = self.runtime.block_on(self.client.acquire(name, options))?;
        Ok(Held { held: Some(held), runtime: self.runtime.clone() })
    }

    /// As [`crate::Lockfence::settled`].
    #[must_use]
    pub fn settled(&self, within: Duration) -> bool {
        self.runtime.block_on(self.client.settled(within))
    }
}

impl Held {
    /// As [`crate::Held::token`].
    #[must_use]
    pub fn token(&self) -> u64 {
        self.held.as_ref().map_or(0, crate::Held::token)
    }

    /// As [`crate::Held::remaining`].
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.held.as_ref().map_or(Duration::ZERO, crate::Held::remaining)
    }

    /// Waits until it is lost, at most `within`.
    #[must_use]
    pub fn wait_lost(&self, within: Duration) -> Option<Lost> {
        let held = self.held.as_ref()?;
        self.runtime.block_on(async { tokio::time::timeout(within, held.lost()).await.ok() })
    }

    /// As [`crate::Held::release`].
    #[must_use = "it may not have been held any more"]
    pub fn release(mut self) -> Released {
        match self.held.take() {
            Some(held) => self.runtime.block_on(held.release()),
            None => Released::NotHeld,
        }
    }
}
