//! The client: nodes, settings, and the ways to get a lock.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tracing::Instrument as _;

use crate::config::{Builder, Config, ConfigError, Options, Wait, check_max_hold, check_mode, check_times};
use crate::durable::{self, Acks};
use crate::error::Error;
use crate::held::Held;
use crate::identity::Identities;
use crate::node::{Node, Target};
use crate::quorum::{Settings, order};
use crate::session::{Asked, Session};
use crate::wire::Subject;

/// A client of one lockfence server, or of a quorum of independent ones. Cheap to clone.
#[derive(Clone)]
pub struct Lockfence(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) nodes: Vec<Arc<Node>>,
    /// Which servers they lead to; none where there is but one node.
    pub(crate) identities: Option<Arc<Identities>>,
    /// The way to the data beside the locks, where there is one server for both.
    data: OnceLock<Arc<Node>>,
    pub(crate) config: Config,
    /// The highest token of any grant.
    pub(crate) seen: AtomicU64,
    pub(crate) counters: Counters,
    /// How many tasks still hold or give back something.
    pub(crate) busy: watch::Sender<usize>,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) asked: AtomicU64,
    pub(crate) granted: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) lost: AtomicU64,
}

/// What a client has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// How often a lock was asked for.
    pub asked: u64,
    /// How often it was granted.
    pub granted: u64,
    /// How often it was not.
    pub refused: u64,
    /// How often a lock that was held was lost.
    pub lost: u64,
}

impl Inner {
    /// The way to the data on the locks' own server; none on a quorum.
    pub(crate) fn data(&self) -> Option<Arc<Node>> {
        match self.nodes.as_slice() {
            [node] => Some(self.data.get_or_init(|| Node::new(node.target().clone(), None)).clone()),
            _ => None,
        }
    }
}

impl fmt::Debug for Lockfence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<&str> = self.0.nodes.iter().map(|node| node.name()).collect();
        f.debug_struct("Lockfence").field("nodes", &nodes).finish_non_exhaustive()
    }
}

impl Lockfence {
    /// Sets up a client.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn new(targets: Vec<Target>, config: Config) -> Self {
        let names: Vec<String> = targets.iter().map(|target| target.name.clone()).collect();
        let identities = Identities::of(&names);
        let identity = |node| identities.as_ref().map(|all| all.line(node));
        let nodes = targets.into_iter().enumerate().map(|(node, target)| Node::new(target, identity(node)));
        Self(Arc::new(Inner {
            nodes: nodes.collect(),
            identities,
            data: OnceLock::new(),
            config,
            seen: AtomicU64::new(0),
            counters: Counters::default(),
            busy: watch::Sender::new(0),
        }))
    }

    /// Gets the lock `name`, waiting as the options say. Dropping the future calls it off: whatever was won meanwhile is
    /// given back in the background.
    ///
    /// # Errors
    /// [`Error::Held`], [`Error::TimedOut`], [`Error::NoQuorum`], [`Error::RefusedByNodes`], [`Error::Indeterminate`],
    /// [`Error::NotDurable`], [`Error::Config`]; with [`min_replicas`](Builder::min_replicas) and [`fsync`](Builder::fsync) also
    /// [`Error::Refused`] where the server cannot do that, and [`Error::Lost`]. None of them leaves a lock behind for
    /// longer than one lease; usually for no time at all.
    pub async fn acquire(&self, name: impl AsRef<[u8]>, options: Options) -> Result<Held, Error> {
        let (session, subject) = self.session(name.as_ref(), options)?;
        self.0.counters.asked.fetch_add(1, Ordering::Relaxed);
        let span = tracing::debug_span!("lockfence", lock = %subject.lock.escape_ascii());
        let (tell, told) = oneshot::channel();
        tokio::spawn(session.run(tell).instrument(span));
        let result = told.await.unwrap_or_else(|_| Err(Error::Indeterminate("the runtime ended".to_owned())));
        let counter = if result.is_ok() { &self.0.counters.granted } else { &self.0.counters.refused };
        counter.fetch_add(1, Ordering::Relaxed);
        result
    }

    /// Gets the lock `name` now, or not at all.
    ///
    /// # Errors
    /// As [`Self::acquire`].
    pub async fn try_acquire(&self, name: impl AsRef<[u8]>) -> Result<Held, Error> {
        self.acquire(name, Options::try_once()).await
    }

    /// Runs `body` while the lock is held, and only then. If the lock is lost the body is dropped where it stands, and
    /// the answer is [`Error::Lost`].
    ///
    /// # Errors
    /// As [`Self::acquire`], and [`Error::Lost`].
    pub async fn with_lock<T>(
        &self,
        name: impl AsRef<[u8]>,
        options: Options,
        body: impl AsyncFnOnce(&Held) -> T,
    ) -> Result<T, Error> {
        let held = self.acquire(name, options).await?;
        let done = tokio::select! {
            biased;
            lost = held.lost() => Err(Error::Lost(lost)),
            // A body that does not let others run is not dropped; what it did may have been too late.
            value = body(&held) => held.why_not_held().map_or(Ok(value), |lost| Err(Error::Lost(lost))),
        };
        held.release().await;
        done
    }

    /// What this client has done so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.0.counters;
        Stats {
            asked: of(&counters.asked),
            granted: of(&counters.granted),
            refused: of(&counters.refused),
            lost: of(&counters.lost),
        }
    }

    /// Waits until nothing is held, and whatever is to be given back is: the nodes that may have it have answered. At most
    /// `within`; returns whether that was reached. Locks that are still held stay held: drop or release them first.
    ///
    /// Where it is not known whether a request arrived at all (its connection broke, or its waiting was called off) a node
    /// counts once it has answered twice, a moment apart, that nothing is there. It goes on being asked in the background, as
    /// long as the runtime lives and a lease that came so late could.
    pub async fn settled(&self, within: Duration) -> bool {
        let mut busy = self.0.busy.subscribe();
        let reached = tokio::time::timeout(within, busy.wait_for(|count| *count == 0)).await;
        matches!(reached, Ok(Ok(_)))
    }

    fn session(&self, name: &[u8], options: Options) -> Result<(Session, Arc<Subject>), ConfigError> {
        let config = &self.0.config;
        let ttl = options.ttl.unwrap_or(config.ttl);
        if name.is_empty() {
            return Err(ConfigError::NoLockName);
        }
        check_max_hold(options.max_hold)?;
        check_times(ttl, None)?;
        check_mode(options.mode, self.0.nodes.len())?;
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let mut settings = Settings::new(self.0.nodes.len(), ttl_ms);
        settings.mode = options.mode;
        if let Some(timeout) = config.node_timeout {
            settings.node_timeout_us = micros(timeout);
        }
        // A lock with a shorter lease than the client's own: renewal must keep up with it.
        settings.node_timeout_us = settings.node_timeout_us.min(ttl_ms.saturating_mul(1000) / 4);
        settings.wait_slice_ms = config.wait_slice.map(|slice| micros(slice) / 1000);
        let names: Vec<&str> = self.0.nodes.iter().map(|node| node.name()).collect();
        let subject =
            Subject { lock: name.to_vec(), ttl_ms, prefix: config.name.clone(), mode: options.mode };
        let subject = Arc::new(subject);
        let asked = Asked {
            patience_us: match options.wait {
                Wait::No => Some(0),
                // Waiting for no time is the same as not waiting.
                Wait::UpTo(time) => Some(micros(time)),
                Wait::Forever => None,
            },
            renew: options.renew,
            acks: config.durability.is_asked().then(|| Acks {
                durability: config.durability,
                within: config
                    .ack_timeout
                    .unwrap_or(durable::WITHIN_MAX)
                    .min(Duration::from_millis(ttl_ms / 6)),
                node_timeout: Duration::from_micros(settings.node_timeout_us),
            }),
            max_hold_us: options.max_hold.map(micros),
        };
        let session = Session::new(self.0.clone(), settings, order(name, &names), subject.clone(), asked);
        Ok((session, subject))
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
