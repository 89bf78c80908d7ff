//! What is refused before anything is sent, and why.

use std::time::Duration;

use lockfence_core::limits;

use super::{MIN_TTL, MIN_WAIT_SLICE, NAME_BYTES_MAX};
#[cfg(doc)]
use crate::Options;

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
    /// Two nodes have the same address, perhaps with two databases: one server would have two votes.
    #[error("node {0} is given twice: one server would have two votes")]
    SameNodeTwice(String),
    /// Two nodes have different addresses that lead to one server (by its `run_id`), or did when they were last connected
    /// to: it would have two votes. Found when the nodes are connected to, so by `acquire`; whatever was won was given back.
    #[error("node {node} leads to the same server as {other}: one server would have two votes")]
    OneServerTwice {
        /// The one.
        node: String,
        /// The other.
        other: String,
    },
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
    /// A fenced command has no time to be answered in, or more than can be.
    #[error("the time for a fenced command must be from 1 ms to 365 days, not {0:?}")]
    BadFenceTimeout(Duration),
    /// A slice of a long wait is out of range: each one loses the place in the queue, and one of nothing has no end.
    #[error("the slice of a wait must be from {MIN_WAIT_SLICE:?} to 365 days, not {0:?}")]
    BadWaitSlice(Duration),
    /// A quorum as the place of the data.
    #[error(
        "a quorum of {nodes} nodes holds locks, not data: the fence belongs on the server where the data is"
    )]
    DataOnQuorum {
        /// How many nodes there are.
        nodes: usize,
    },
    /// Replicas or a disk shall acknowledge the leases of a quorum.
    #[error(
        "min_replicas and fsync are for one node, not for {nodes}: on a quorum the majority vouches for a lease; let its \
         nodes run with appendfsync always or lockfence.quarantine-ms"
    )]
    DurableQuorum {
        /// How many nodes there are.
        nodes: usize,
    },
    /// Replicas or a disk may take too long to acknowledge a lease: renewal could not keep up.
    #[error("the time to acknowledge must be from 1 ms to a sixth of the ttl ({ttl:?}), not {timeout:?}")]
    BadAckTimeout {
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
    #[error("max_hold must be at least 1 ms, not {0:?}")]
    BadMaxHold(Duration),
    /// The number of holders of [`Options::limit`] is out of range.
    #[error("the limit must be from 1 to {max} holders, not {0}", max = limits::HOLDERS_MAX)]
    BadLimit(u32),
    /// A limit on a quorum: it could not be kept. Use one server (or Sentinel, or a cluster) for semaphores.
    #[error(
        "a limit cannot be kept by a quorum ({nodes} nodes): two holders may have different majorities, so that more than \
         the limit would hold it; use one server for it"
    )]
    LimitOnQuorum {
        /// How many nodes there are.
        nodes: usize,
    },
    /// A fence that is not the lock itself, for a lock that several may hold.
    #[error(
        "a {mode} lock cannot have a fence of its own: each holder's token would fence those before it, who hold it too; \
         use the lock itself as the fence (fence_here), on its own server"
    )]
    FenceNotExclusive {
        /// The lock's mode.
        mode: &'static str,
    },
}
