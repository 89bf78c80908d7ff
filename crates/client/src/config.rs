//! What a client and a lock are set to, and what is refused before anything is sent.

mod error;
mod options;

use std::time::Duration;

use lockfence_core::ids::Mode;
use lockfence_core::limits;

use crate::address::Address;
use crate::durable::Durability;
use crate::lockfence::Lockfence;
use crate::node::Target;
use crate::tls::Tls;

pub use self::error::ConfigError;
pub use self::options::{Options, Wait};

/// Shortest lease: below it, no margin for clocks and the network is left.
const MIN_TTL: Duration = Duration::from_millis(10);
/// Shortest slice of a wait.
const MIN_WAIT_SLICE: Duration = Duration::from_millis(100);
/// Shortest time limit.
const MIN_TIME: Duration = Duration::from_millis(1);
/// Longest time of any kind that is not a wait.
const MAX_TIME: Duration = Duration::from_millis(limits::TTL_MS_MAX);
const NAME_BYTES_MAX: usize = limits::OWNER_BYTES_MAX - 33;

/// Sets up a [`Lockfence`].
#[derive(Clone, Debug)]
pub struct Builder {
    nodes: Vec<Address>,
    tls: Tls,
    ttl: Duration,
    node_timeout: Option<Duration>,
    wait_slice: Option<Duration>,
    fence_timeout: Duration,
    durability: Durability,
    ack_timeout: Option<Duration>,
    name: String,
}

/// What was checked.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) ttl: Duration,
    pub(crate) node_timeout: Option<Duration>,
    pub(crate) wait_slice: Option<Duration>,
    pub(crate) fence_timeout: Duration,
    pub(crate) durability: Durability,
    pub(crate) ack_timeout: Option<Duration>,
    pub(crate) name: String,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            tls: Tls::default(),
            ttl: Duration::from_secs(30),
            node_timeout: None,
            wait_slice: None,
            fence_timeout: Duration::from_secs(5),
            durability: Durability::default(),
            ack_timeout: None,
            name: String::new(),
        }
    }
}

impl Builder {
    /// Adds a node by its address. One, or an odd number of independent ones: they then are a quorum.
    ///
    /// | address | node |
    /// |---|---|
    /// | `redis://[user:password@]host[:port][/database]` | a server |
    /// | `rediss://…` | the same with TLS; needs the cargo feature `tls` |
    /// | `redis+unix:///path[?db=database&user=name&pass=password]` | a server, by its Unix socket |
    /// | `redis+sentinel://[user:password@]host[:port],…/name[/database]` | see [`Self::sentinel`] |
    /// | `redis+cluster://[user:password@]host[:port],…` | see [`Self::cluster`] |
    ///
    /// The nodes of a quorum must be different servers. That is checked by their addresses in [`Self::build`], and when
    /// they are connected to by what `INFO server` says: allow the user `+info`, or see to it yourself.
    ///
    /// `valkey` may stand for `redis`, and `rediss+sentinel`, `rediss+cluster` are those with TLS. In users and passwords
    /// `@`, `/`, `:`, `?`, `#` and `%` are written as `%40` and so on. Sentinels that want a login of their own:
    /// `…?sentinel_user=name&sentinel_password=secret`, where the user may be left out.
    #[must_use]
    pub fn node(mut self, url: impl Into<String>) -> Self {
        self.nodes.push(Address::Url(url.into()));
        self
    }

    /// Adds a node that is whichever server these sentinels name as the primary `name`. It is asked for anew with every
    /// connection, after a connection broke, and after a server said that it is no primary (any more), so a failover is
    /// followed by itself. A request that meets a failover fails or waits as if the node were down until the sentinels
    /// have agreed; leave it time with [`Options::wait_up_to`].
    ///
    /// A lock that the new primary does not know is reported as lost, and never taken again by itself. The token of
    /// whoever gets it next is higher.
    ///
    /// With TLS the server's certificate must be good for the address that the sentinels announce.
    ///
    /// The addresses are those of the sentinels, `redis://host[:port]`. The user, password and database in the first one
    /// are the *server's*, and `rediss://` is for both. For sentinels with a login of their own see [`Self::node`].
    #[must_use]
    pub fn sentinel(
        mut self,
        name: impl Into<String>,
        sentinels: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        let urls = sentinels.into_iter().map(Into::into).collect();
        self.nodes.push(Address::Sentinel { primary: name.into(), urls });
        self
    }

    /// Adds a node that is a cluster: each lock is at the server that has its slot, wherever that moves. The addresses are
    /// those of some of its servers, `redis://[user:password@]host[:port]`; the others are found by them.
    ///
    /// One cluster is one node: its servers are not independent, so they make no quorum.
    #[must_use]
    pub fn cluster(mut self, servers: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let urls = servers.into_iter().map(Into::into).collect();
        self.nodes.push(Address::Cluster { urls });
        self
    }

    /// Trusts these certificate authorities (PEM), and not the system's, for all nodes with TLS.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls_authorities(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.tls.authorities = Some(pem.into());
        self
    }

    /// Shows this certificate to all nodes with TLS (PEM, with its chain, and its private key), where they want to see
    /// one.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls_identity(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        let identity = redis::ClientTlsConfig { client_cert: certificate.into(), client_key: key.into() };
        self.tls.identity = Some(identity);
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

    /// Cuts long waits into slices, where something on the way closes idle connections: from 100 ms to 365 days. Off by
    /// default: each slice begins at the end of the queue.
    #[must_use]
    pub const fn wait_slice(mut self, slice: Duration) -> Self {
        self.wait_slice = Some(slice);
        self
    }

    /// How long a fenced command may take ([`Fenced`](crate::Fenced)), connecting included: 5 s by default. It need not be
    /// short: a command without an answer is [`Error::Indeterminate`](crate::Error::Indeterminate), and with the same token
    /// it can be asked for again.
    #[must_use]
    pub const fn fence_timeout(mut self, timeout: Duration) -> Self {
        self.fence_timeout = timeout;
        self
    }

    /// Counts a lease only once so many replicas have it (`WAIT`), so that a lock is not forgotten when one of those
    /// replicas takes the primary's place. For one node: a primary with replicas, behind sentinels or not, or a cluster.
    ///
    /// It costs one more round trip for each grant, and the time the replicas take. A grant that too few have is given
    /// back, and `acquire` answers [`Error::NotDurable`](crate::Error::NotDurable). Renewals must be acknowledged, too: one
    /// that is not does not count, and where that goes on the lock is lost, with the reason, when its lease is over. A
    /// replica that did not hear of a renewal would give the lock away earlier than its holder thinks.
    ///
    /// It excludes a second holder only if one of the replicas that acknowledged is promoted. With fewer than all of them
    /// that is up to whoever promotes; sentinels prefer the replica that has most. The tokens rise in any case.
    ///
    /// Refused with [`ConfigError::DurableQuorum`] on a quorum, where a majority of independent nodes is what vouches for a
    /// lease, and a replica of one of them must not take its place.
    #[must_use]
    pub const fn min_replicas(mut self, replicas: u32) -> Self {
        self.durability.replicas = replicas;
        self
    }

    /// Counts a lease only once it is on the disk of the server (`WAITAOF 1 0`: Redis 7.2 or Valkey 7.2 with `appendonly
    /// yes`), so that a lock is not forgotten in a crash whatever `appendfsync` is; with `everysec` a grant takes up to a
    /// second. Where the server cannot do that, `acquire` answers [`Error::Refused`](crate::Error::Refused). For the rest
    /// see [`Self::min_replicas`]; both may be asked for.
    ///
    /// On a quorum set `appendfsync always` at the nodes, or `lockfence.quarantine-ms`: it is refused there.
    #[must_use]
    pub const fn fsync(mut self) -> Self {
        self.durability.disk = true;
        self
    }

    /// How long replicas, and the disk, may take to acknowledge a lease: by default a sixth of the ttl, 5 s at the most. At
    /// most a sixth of the ttl: renewals must keep up.
    #[must_use]
    pub const fn ack_timeout(mut self, timeout: Duration) -> Self {
        self.ack_timeout = Some(timeout);
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
    /// What cannot work, with the reason.
    pub fn build(self) -> Result<Lockfence, ConfigError> {
        if self.nodes.is_empty() {
            return Err(ConfigError::NoNodes);
        }
        let mut targets: Vec<Target> = Vec::new();
        for address in &self.nodes {
            let target = address.target(&self.tls)?;
            if targets.iter().any(|other| other.marks.iter().any(|mark| target.marks.contains(mark))) {
                return Err(ConfigError::SameNodeTwice(target.name));
            }
            targets.push(target);
        }
        if self.name.len() > NAME_BYTES_MAX {
            return Err(ConfigError::BadName(self.name.len()));
        }
        self.check_times()?;
        if self.durability.is_asked() && targets.len() > 1 {
            return Err(ConfigError::DurableQuorum { nodes: targets.len() });
        }
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
            fence_timeout: self.fence_timeout,
            durability: self.durability,
            ack_timeout: self.ack_timeout,
            name: self.name,
        };
        Ok(Lockfence::new(targets, config))
    }

    fn check_times(&self) -> Result<(), ConfigError> {
        check_times(self.ttl, self.node_timeout)?;
        if let Some(timeout) = self.ack_timeout
            && (timeout < MIN_TIME || timeout.saturating_mul(6) > self.ttl)
        {
            return Err(ConfigError::BadAckTimeout { timeout, ttl: self.ttl });
        }
        if !(MIN_TIME..=MAX_TIME).contains(&self.fence_timeout) {
            return Err(ConfigError::BadFenceTimeout(self.fence_timeout));
        }
        match self.wait_slice.filter(|slice| !(MIN_WAIT_SLICE..=MAX_TIME).contains(slice)) {
            Some(slice) => Err(ConfigError::BadWaitSlice(slice)),
            None => Ok(()),
        }
    }
}

/// Whether a lock can be held for so long at the most.
pub(crate) fn check_max_hold(max_hold: Option<Duration>) -> Result<(), ConfigError> {
    max_hold.filter(|time| *time < MIN_TIME).map_or(Ok(()), |time| Err(ConfigError::BadMaxHold(time)))
}

/// Whether so many nodes can keep that mode.
pub(crate) const fn check_mode(mode: Mode, nodes: usize) -> Result<(), ConfigError> {
    match mode {
        Mode::Limit(n) if n == 0 || n > limits::HOLDERS_MAX => Err(ConfigError::BadLimit(n)),
        Mode::Limit(_) if nodes > 1 => Err(ConfigError::LimitOnQuorum { nodes }),
        _ => Ok(()),
    }
}

/// Whether that lease and that timeout can work together.
pub(crate) fn check_times(ttl: Duration, node_timeout: Option<Duration>) -> Result<(), ConfigError> {
    if !(MIN_TTL..=MAX_TIME).contains(&ttl) || !ttl.subsec_nanos().is_multiple_of(1_000_000) {
        return Err(ConfigError::BadTtl(ttl));
    }
    if let Some(timeout) = node_timeout
        && (timeout < MIN_TIME || timeout.saturating_mul(4) > ttl)
    {
        return Err(ConfigError::BadNodeTimeout { timeout, ttl });
    }
    Ok(())
}
