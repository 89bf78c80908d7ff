//! What a client and a lock are set to, and what is refused before anything is sent.

use std::time::Duration;

use lockfence_core::limits;
use redis::{ConnectionAddr, IntoConnectionInfo as _};

use crate::lockfence::Lockfence;
use crate::node::Target;

/// A configuration that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// There is no node.
    #[error("no node is given")]
    NoNodes,
    /// A node's address cannot be read.
    #[error("node {node:?}: {cause}")]
    BadNode {
        /// What was given, without a password.
        node: String,
        /// What is wrong with it.
        cause: String,
    },
    /// Two nodes are the same server and database: its vote would count twice.
    #[error("node {0} is given twice: its vote would count twice")]
    SameNodeTwice(String),
    /// The lease is out of range.
    #[error("the ttl must be from {MIN_TTL:?} to 365 days and whole milliseconds, not {0:?}")]
    BadTtl(Duration),
    /// A node may take too long to answer: renewal could not keep up with the lease.
    #[error("the node timeout must be from 1 ms to a quarter of the ttl ({ttl:?}), not {timeout:?}")]
    BadNodeTimeout {
        /// The timeout.
        timeout: Duration,
        /// The lease.
        ttl: Duration,
    },
    /// The name of this client is too long for an owner.
    #[error("the client's name must be at most {NAME_BYTES_MAX} bytes, not {0}")]
    BadName(usize),
    /// A lock's name is empty.
    #[error("a lock needs a name")]
    NoLockName,
    /// The lock shall be held for no time at all.
    #[error("max_hold must be above 0")]
    BadMaxHold,
}

/// Shortest lease: below it, no margin for clocks and the network is left.
const MIN_TTL: Duration = Duration::from_millis(10);
const NAME_BYTES_MAX: usize = limits::OWNER_BYTES_MAX - 33;

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
}

impl Options {
    /// Now or not at all.
    #[must_use]
    pub const fn try_once() -> Self {
        Self { wait: Wait::No, ttl: None, renew: true, max_hold: None }
    }

    /// Waits so long.
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

    /// Gives it up after so long, however often it was renewed: for work that may hang.
    #[must_use]
    pub const fn max_hold(self, time: Duration) -> Self {
        Self { max_hold: Some(time), ..self }
    }
}

/// Sets up a [`Lockfence`].
#[derive(Clone, Debug)]
pub struct Builder {
    nodes: Vec<String>,
    ttl: Duration,
    node_timeout: Option<Duration>,
    wait_slice: Option<Duration>,
    name: String,
}

/// What was checked.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) ttl: Duration,
    pub(crate) node_timeout: Option<Duration>,
    pub(crate) wait_slice: Option<Duration>,
    pub(crate) name: String,
}

impl Default for Builder {
    fn default() -> Self {
        let ttl = Duration::from_secs(30);
        Self { nodes: Vec::new(), ttl, node_timeout: None, wait_slice: None, name: String::new() }
    }
}

impl Builder {
    /// Adds a node, by `redis://[user:password@]host[:port][/db]` or `redis+unix:///path`. One, or an odd number of
    /// independent servers.
    #[must_use]
    pub fn node(mut self, url: impl Into<String>) -> Self {
        self.nodes.push(url.into());
        self
    }

    /// The lease where the options of a lock name none: 30 s by default.
    #[must_use]
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long a node may take to answer: by default a tenth of the ttl, from 10 ms to 1 s.
    #[must_use]
    pub const fn node_timeout(mut self, timeout: Duration) -> Self {
        self.node_timeout = Some(timeout);
        self
    }

    /// Cuts long waits into slices, where something on the way closes idle connections. Off by default: each slice
    /// begins at the end of the queue.
    #[must_use]
    pub const fn wait_slice(mut self, slice: Duration) -> Self {
        self.wait_slice = Some(slice);
        self
    }

    /// How this client names itself: others see it when the lock is held.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Checks it all. Nothing is sent: nodes are connected to when a lock is first asked for.
    ///
    /// # Errors
    /// What cannot work.
    pub fn build(self) -> Result<Lockfence, ConfigError> {
        if self.nodes.is_empty() {
            return Err(ConfigError::NoNodes);
        }
        let mut targets: Vec<Target> = Vec::new();
        for url in &self.nodes {
            let target = target(url)?;
            if targets.iter().any(|other| other.name == target.name) {
                return Err(ConfigError::SameNodeTwice(target.name));
            }
            targets.push(target);
        }
        if self.name.len() > NAME_BYTES_MAX {
            return Err(ConfigError::BadName(self.name.len()));
        }
        check_times(self.ttl, self.node_timeout)?;
        if targets.len() > 1 && targets.len().is_multiple_of(2) {
            tracing::warn!(
                nodes = targets.len(),
                "an even number of nodes bears no more failures than one node less"
            );
        }
        let config = Config {
            ttl: self.ttl,
            node_timeout: self.node_timeout,
            wait_slice: self.wait_slice,
            name: self.name,
        };
        Ok(Lockfence::new(targets, config))
    }
}

/// Whether that lease and that timeout can work together.
pub(crate) fn check_times(ttl: Duration, node_timeout: Option<Duration>) -> Result<(), ConfigError> {
    let ms = ttl.as_millis();
    if ttl < MIN_TTL || ms > u128::from(limits::TTL_MS_MAX) || !ttl.subsec_nanos().is_multiple_of(1_000_000) {
        return Err(ConfigError::BadTtl(ttl));
    }
    if let Some(timeout) = node_timeout
        && (timeout < Duration::from_millis(1) || timeout.saturating_mul(4) > ttl)
    {
        return Err(ConfigError::BadNodeTimeout { timeout, ttl });
    }
    Ok(())
}

fn target(url: &str) -> Result<Target, ConfigError> {
    let shown = url.rsplit_once('@').map_or(url, |(_, after)| after);
    let bad = |cause: String| ConfigError::BadNode { node: shown.to_owned(), cause };
    let info = url.into_connection_info().map_err(|error| bad(error.to_string()))?;
    let db = info.redis_settings().db();
    let name = match info.addr() {
        ConnectionAddr::Tcp(host, port) => format!("{}:{port}/{db}", host.to_ascii_lowercase()),
        ConnectionAddr::TcpTls { host, port, .. } => format!("{}:{port}/{db}", host.to_ascii_lowercase()),
        ConnectionAddr::Unix(path) => format!("{}/{db}", path.display()),
        _ => return Err(bad("an address of another kind".to_owned())),
    };
    let client = redis::Client::open(info).map_err(|error| bad(error.to_string()))?;
    Ok(Target { name, client })
}
