//! What can go wrong, and what to do about it.

use std::fmt;
use std::time::Duration;

use crate::config::ConfigError;
use crate::owner::Owner;

/// Why a lock was not had, or a fenced command not carried out.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Somebody else has it, and waiting was not asked for. Come back after `retry_after`, or wait for it.
    #[error("held by {}; free in {retry_after:?} at the latest, unless it is renewed", name(.by))]
    Held {
        /// The holder, as it named itself.
        by: Option<Owner>,
        /// When its lease ends, if it is not renewed.
        retry_after: Duration,
    },
    /// Somebody else had it until the time to wait was over. The work was not done.
    #[error("not free in time; held by {}", name(.by))]
    TimedOut {
        /// The holder, as it named itself.
        by: Option<Owner>,
    },
    /// The lock was held and is lost. Stop the work: another may have begun it.
    #[error("lost: {0}")]
    Lost(Lost),
    /// A write was refused because its token is stale: somebody else has, or had, the lock since. Stop the work;
    /// nothing was written.
    #[error("fenced: {0}")]
    Fenced(String),
    /// Granted, but not vouched for by those who must ([`min_replicas`](crate::Builder::min_replicas),
    /// [`fsync`](crate::Builder::fsync)), so it was given back. Nothing was done under it. Try again once the replicas have
    /// caught up; there is no point in trying at once.
    #[error(
        "granted, but acknowledged by {acknowledged} of {wanted} replicas{}",
        if *.on_disk == Some(false) { ", and not on the primary's disk" } else { "" }
    )]
    NotDurable {
        /// How many replicas have it.
        acknowledged: u64,
        /// How many must.
        wanted: u64,
        /// Whether it is on the primary's disk; `None` where that was not asked for.
        on_disk: Option<bool>,
    },
    /// Too few nodes answered. Whatever was won was given back; try again once they are up.
    #[error("no quorum: {}", list(.0))]
    NoQuorum(Vec<NodeError>),
    /// So many nodes refuse it, and will again, that no majority is left: the user may not do it or cannot log in, there is
    /// no such database, the key is no lock, the server has no module … Whatever was won was given back. Trying again does
    /// not help until that is mended.
    #[error("refused, and trying again does not help: {}", list(.0))]
    RefusedByNodes(Vec<NodeError>),
    /// A command was sent and its outcome is not known: it may have been carried out, or be carried out yet.
    ///
    /// From [`Fenced`](crate::Fenced): read what is there before doing it again; with the same token that is safe.
    ///
    /// From `acquire`, on one node: the lock may have been granted. Do *not* begin the work. What may have been granted is
    /// given back in the background, and ends with its lease at the latest; nothing else is to be undone. Just ask again:
    /// if the first request did take the lock, the second finds it held until then. (Of a quorum the same is
    /// [`Self::NoQuorum`].)
    #[error("sent, but the outcome is unknown: {0}")]
    Indeterminate(String),
    /// The server refused a command for a reason that has nothing to do with the lock, or cannot be reached. Nothing was
    /// done.
    #[error("refused: {0}")]
    Refused(String),
    /// The configuration cannot work. Nothing was sent.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// Why a lock that was held is not held any more.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lost {
    /// Its time ran out: it was not renewed, or this program stood still for too long.
    Expired,
    /// It was held for as long as the options allow.
    HeldTooLong,
    /// Somebody else has it, and shuts this holder out.
    Taken {
        /// The holder, as it named itself.
        by: Owner,
    },
    /// The nodes no longer know it, before its time: an administrator broke it, the key was deleted, or too many nodes
    /// came back without their data.
    Broken,
    /// Too few nodes renewed it: they did not answer, or refused it.
    NoQuorum(Vec<NodeError>),
    /// This program gave it up, or its runtime is gone.
    Released,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired => f.write_str("its time ran out"),
            Self::HeldTooLong => f.write_str("held for as long as allowed"),
            Self::Taken { by } => write!(f, "taken by {by}"),
            Self::Broken => f.write_str("broken by an administrator, deleted, or forgotten by the nodes"),
            Self::NoQuorum(nodes) => write!(f, "too few nodes renewed it: {}", list(nodes)),
            Self::Released => f.write_str("released"),
        }
    }
}

/// Why one node gave no answer that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeError {
    /// The node, by host and port.
    pub node: String,
    /// What happened.
    pub cause: String,
}

fn name(owner: &Option<Owner>) -> String {
    owner.as_ref().map_or_else(|| "somebody else".to_owned(), Owner::to_string)
}

fn list(nodes: &[NodeError]) -> String {
    let each: Vec<String> = nodes.iter().map(|node| format!("{}: {}", node.node, node.cause)).collect();
    each.join("; ")
}
