//! The queue of one lock: who waits, in which order.
//!
//! First in, first out among those present. A waiter that was answered or has gone must never be found here again.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::clock::{Instant, Ttl};
use crate::error::Refusal;
use crate::ids::{Mode, Token};
use crate::planted::{self, Bug};

/// Names a waiter in this process. Later waiters have higher numbers: the number is the place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId(pub(crate) u64);

/// A request that waits. `H` is whatever the caller needs to answer it.
#[derive(Clone, Debug)]
pub struct Waiter<H> {
    /// Who asks.
    pub owner: Box<[u8]>,
    /// The lease it asks for, counted from its grant.
    pub ttl: Ttl,
    /// The mode it asks for.
    pub mode: Mode,
    /// The least token it asks for.
    pub min_token: Option<Token>,
    /// Whether it asked for a map.
    pub with_info: bool,
    /// When it began to wait.
    pub since: Instant,
    /// When it gives up; `None` where it waits without limit.
    pub until: Option<Instant>,
    /// The server's number of its connection.
    pub client_id: u64,
    /// How to answer it.
    pub handle: H,
}

/// A lease that a request has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The fencing token.
    pub token: Token,
    /// What is left of the lease, in ms.
    pub ttl_ms: u64,
    /// Whether this owner held the lock already.
    pub renewed: bool,
}

/// Who stands in the way of a request that was not granted, and for how long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Milliseconds until the next of the leases in force ends; 0 when none is.
    pub ttl_ms: u64,
    /// The holder, the first one where there are several.
    pub owner: Option<Box<[u8]>>,
    /// How many requests wait.
    pub waiters: u64,
}

/// How a wait ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Granted.
    Granted(Grant),
    /// The time to wait is over.
    NotGranted(Standing),
    /// It can no longer be granted.
    Refused(Refusal),
    /// The lock's key has gone, or something else stands there.
    LockLost,
    /// The server became a replica.
    Demoted,
}

/// A waiter that leaves the queue, with its answer.
#[derive(Clone, Debug)]
pub struct Answer<H> {
    /// Its number.
    pub id: WaiterId,
    /// The waiter.
    pub waiter: Waiter<H>,
    /// The answer.
    pub outcome: Outcome,
}

/// The waiters of one lock, in order.
#[derive(Debug)]
pub struct Queue<H> {
    waiters: BTreeMap<WaiterId, Waiter<H>>,
    by_owner: BTreeMap<Box<[u8]>, Vec<WaiterId>>,
}

impl<H> Default for Queue<H> {
    fn default() -> Self {
        Self { waiters: BTreeMap::new(), by_owner: BTreeMap::new() }
    }
}

impl<H> Queue<H> {
    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// The waiters in order.
    pub fn iter(&self) -> impl Iterator<Item = &Waiter<H>> {
        self.waiters.values()
    }

    /// Whoever is next.
    #[must_use]
    pub fn front(&self) -> Option<&Waiter<H>> {
        if planted::is(Bug::ServedOutOfOrder) {
            return self.waiters.last_key_value().map(|(_, waiter)| waiter);
        }
        self.waiters.first_key_value().map(|(_, waiter)| waiter)
    }

    pub(crate) fn push(&mut self, id: WaiterId, waiter: Waiter<H>) {
        self.by_owner.entry(waiter.owner.clone()).or_default().push(id);
        self.waiters.insert(id, waiter);
    }

    pub(crate) fn remove(&mut self, id: WaiterId) -> Option<Waiter<H>> {
        let waiter = self.waiters.remove(&id)?;
        if let Some(ids) = self.by_owner.get_mut(&waiter.owner) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_owner.remove(&waiter.owner);
            }
        }
        Some(waiter)
    }

    pub(crate) fn get(&self, id: WaiterId) -> Option<&Waiter<H>> {
        self.waiters.get(&id)
    }

    /// All queued requests of `owner` whose mode is of the kind of `mode`, in order.
    pub(crate) fn requests_of(&self, owner: &[u8], mode: Mode) -> Vec<WaiterId> {
        let ids = self.by_owner.get(owner).map_or(&[][..], Vec::as_slice);
        let alike = |id: &&WaiterId| self.waiters.get(id).is_some_and(|waiter| waiter.mode.same_kind(mode));
        ids.iter().filter(alike).copied().collect()
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (WaiterId, Waiter<H>)> {
        self.by_owner.clear();
        core::mem::take(&mut self.waiters).into_iter()
    }
}
