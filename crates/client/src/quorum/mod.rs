//! The protocol, and nothing else: what a client of N independent nodes sends, when it holds the lock, and until when.
//!
//! Four machines, each fed with replies and the time, each saying what to send and when it wants to be called again:
//! - [`round::Round`]: one ACQUIRE at all nodes, and the confirm, under one owner.
//! - [`attempt::Attempt`]: from the wish for a lock to a [`attempt::Grant`] or a reason why not.
//! - [`hold::Hold`]: a lock that is held: renewal, loss, release.
//! - [`give_back::GiveBack`]: an owner that is no longer wanted, wherever it may still have a lease.
//!
//! # Invariants
//! - No clock, no socket, no chance of its own: the time and the random bits come with each call ([`Turn`]).
//! - A lease is counted from a reading of the clock **before** the request was sent, and only if the reply came while
//!   what it prolongs was still valid.
//! - Every owner is drawn afresh: a late RELEASE of one try can never free the next.
//! - A token is proposed and raised, never chosen by the client: nodes issue it.

pub mod attempt;
pub mod give_back;
pub mod hold;
mod order;
mod outbox;
mod per_node;
pub mod planted;
pub mod round;
mod tally;

pub use order::order;
pub use per_node::{NodeId, PerNode};

use core::fmt;

use lockfence_core::clock::{Instant, Now};
use lockfence_core::ids::Mode;
use lockfence_core::limits;

use crate::owner::Owner;

/// What comes with every call: the time, read just before, and random bits, drawn when needed.
pub struct Turn<'a> {
    /// This client's own clocks. `mono` must count suspended time and never step.
    pub now: Now,
    /// A source of random bits of cryptographic quality: owners are made from them.
    pub bits: &'a mut dyn FnMut() -> u128,
}

impl Turn<'_> {
    fn mono(&self) -> Instant {
        self.now.mono
    }

    fn owner(&mut self) -> OwnerId {
        OwnerId((self.bits)())
    }

    /// `us`, less up to a quarter of it by chance: so that clients which met once do not meet again.
    fn jittered(&mut self, us: u64) -> u64 {
        let bits = u64::try_from((self.bits)() & 0xffff).unwrap_or(0);
        us.saturating_sub((us / 4).saturating_mul(bits) >> 16)
    }
}

impl fmt::Debug for Turn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").field("now", &self.now).finish_non_exhaustive()
    }
}

/// Who asks: 128 random bits, drawn for one try and never used for another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId(pub u128);

impl OwnerId {
    /// Whether that is this owner's name at a node: the 32 hex digits, after whatever a client puts before them.
    fn is_named_by(self, name: &[u8]) -> bool {
        name.ends_with(self.to_string().as_bytes())
    }
}

/// The first digits: whoever knows them all can release the lock.
impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}…", self.0 >> 96)
    }
}

/// All digits, as a node knows this owner.
impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Which request of one machine a reply belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SendId(pub u64);

/// A request to one node, about the machine's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// `LOCK.ACQUIRE lock owner ttl [WAIT …] [MINTOKEN …] WITHINFO`
    Acquire {
        /// Who asks.
        owner: OwnerId,
        /// The least token asked for.
        min_token: Option<u64>,
        /// To wait in the node's queue for so many ms (0: without limit). Such a request goes out on a connection of
        /// its own: it would stall everybody on a shared one.
        wait_ms: Option<u64>,
    },
    /// `LOCK.EXTEND lock owner ttl [MINTOKEN …]`
    Extend {
        /// Who holds.
        owner: OwnerId,
        /// What the token is raised to.
        min_token: Option<u64>,
    },
    /// `LOCK.RELEASE lock owner`
    Release {
        /// Who held.
        owner: OwnerId,
    },
    /// `LOCK.INFO lock`: who holds it. Asked for a reason only, nothing is decided by it.
    Look,
}

/// What a machine wants done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Send `command` to `node`. After `answer_by` the machine counts it as unanswered by itself; whoever carries it
    /// out may give up then, too.
    Send {
        /// What the reply is to be handed in with.
        id: SendId,
        /// Where to.
        node: NodeId,
        /// What.
        command: Command,
        /// When the answer no longer matters; `None`: it always does.
        answer_by: Option<Instant>,
    },
    /// Close the connection of that waiting request: nobody listens any more, and the server must learn of it.
    Abandon(SendId),
    /// Run this to its end, in the background if need be.
    GiveBack(Box<give_back::GiveBack>),
}

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// ACQUIRE: granted, with that token.
    Granted {
        /// The token.
        token: u64,
    },
    /// ACQUIRE: not granted; LOCK.INFO: who has it.
    Standing(Standing),
    /// EXTEND and RELEASE: whether this owner held it.
    Done(bool),
    /// No answer, or an error.
    Failed(Failure),
}

/// Who stands in the way at one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Standing {
    /// The holder; the first of several.
    pub owner: Option<Owner>,
    /// In which mode it is held; `None` where the node did not say.
    pub mode: Option<Mode>,
    /// How long its lease runs.
    pub ttl_ms: u64,
    /// How many wait.
    pub waiters: u64,
}

/// Why a node gave no answer that counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Failure {
    /// Which kind: decides what is done next.
    pub kind: FailureKind,
    /// For people.
    pub text: String,
}

impl Failure {
    /// A failure of that kind.
    #[must_use]
    pub fn new(kind: FailureKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    fn timed_out() -> Self {
        Self::new(FailureKind::Unknown, "no answer in time")
    }

    /// The lock is free, and yet no majority can stand at one token.
    fn behind() -> Self {
        let text = "granted, but another node's tokens are more than 10 s ahead of its clock, as they are for 20 s after a \
                    start: try again then";
        Self::new(FailureKind::TooFarAhead, text)
    }
}

/// The kinds of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// It never left: the node could not be reached.
    NotSent,
    /// It was sent, and what became of it is not known.
    Unknown,
    /// The node refused it for now (quarantine, loading, read-only, queue full …). Nothing was done.
    Refused,
    /// The node took the request from its queue for a reason of its own (the key was deleted, it became a replica):
    /// ask again.
    AskAgain,
    /// The node refused the proposed token as too far ahead. Nothing was done.
    TooFarAhead,
    /// The node refused it and will again (permission, wrong type, unknown command …). Nothing was done.
    Fatal,
    /// What answered does not speak as a node does, and will not next time. What became of the request is not known.
    NotUnderstood,
}

impl FailureKind {
    /// Whether the request may have been carried out.
    #[must_use]
    pub const fn may_have_happened(self) -> bool {
        matches!(self, Self::Unknown | Self::NotUnderstood)
    }

    /// Whether the same will come of it when it is asked again.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Fatal | Self::NotUnderstood)
    }
}

/// What all machines of one lock go by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// How many nodes there are.
    pub nodes: usize,
    /// The lease, in ms. The same for every request of one lock.
    pub ttl_ms: u64,
    /// How long a node may take to answer, in µs: a small part of the ttl.
    pub node_timeout_us: u64,
    /// How far ahead of its own wall clock a client proposes tokens, in µs: above every node's clock, so that level
    /// nodes answer alike.
    pub lead_us: u64,
    /// Exclusive, or shared.
    pub mode: Mode,
    /// The longest single WAIT, in ms, where something on the way closes idle connections. Each slice begins at the
    /// end of the queue.
    pub wait_slice_ms: Option<u64>,
    /// The bug to show, in a build that has them.
    pub planted: planted::Planted,
}

impl Settings {
    /// The usual settings for `nodes` nodes and that lease.
    #[must_use]
    pub fn new(nodes: usize, ttl_ms: u64) -> Self {
        Self {
            nodes,
            ttl_ms,
            node_timeout_us: ttl_ms.saturating_mul(100).clamp(10_000, 1_000_000),
            lead_us: 200_000,
            mode: Mode::Exclusive,
            wait_slice_ms: None,
            planted: planted::Planted::default(),
        }
    }

    /// Whether so many nodes will refuse it again that no majority is left.
    pub(crate) fn is_hopeless(&self, failures: &PerNode<Option<Failure>>) -> bool {
        let refuses = |failure: &Failure| failure.kind.is_final();
        let refusing = failures.count(|failure| failure.as_ref().is_some_and(refuses));
        self.nodes.saturating_sub(refusing) < self.majority()
    }

    /// How many nodes are a majority.
    #[must_use]
    pub fn majority(&self) -> usize {
        if self.mode == Mode::Shared && self.planted.is(planted::Bug::ReaderAlone) {
            return 1;
        }
        (self.nodes / 2).saturating_add(1)
    }

    /// When a lease that was asked for at `asked` must be taken as over: the ttl, less 1 % and 2 ms for clocks that
    /// run at different rates.
    #[must_use]
    pub fn lease_end(&self, asked: Instant) -> Instant {
        let ttl_us = self.ttl_ms.saturating_mul(1000);
        asked.plus_us(ttl_us.saturating_sub(ttl_us / 100).saturating_sub(2_000))
    }

    /// When a lease was asked for that must be taken as over at `end`.
    fn asked_at(&self, end: Instant) -> Instant {
        end.minus_us(self.lease_end(end).since_us(end))
    }

    /// What to propose: a little ahead of the wall clock, and above what a majority has been seen at.
    fn proposal(&self, now: Now, seen: u64) -> u64 {
        let ahead = now.wall.micros().saturating_add(self.lead_us);
        ahead.max(seen.saturating_add(1)).min(limits::TOKEN_MAX)
    }

    fn node_deadline(&self, now: Instant) -> Instant {
        now.plus_us(self.node_timeout_us)
    }

    fn ttl_us(&self) -> u64 {
        self.ttl_ms.saturating_mul(1000)
    }
}
