//! A lock: its counter, and who holds it. Changed by events alone.
//!
//! It must never decide anything: decisions are in [`crate::turn`].

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::clock::Instant;
use crate::error::{Keeper, Refusal};
use crate::event::{Event, Lease};
use crate::ids::{Mode, Token};
use crate::planted::{self, Bug};

/// One holder of a lock. Its lease may be over: the record is not changed by time alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Who.
    pub owner: Box<[u8]>,
    /// The fencing token of the grant.
    pub token: u64,
    /// When the grant was made.
    pub since: Instant,
    /// Until when.
    pub lease: Lease,
}

impl Holder {
    /// Whether the lease is live at `now`: while now is before its end.
    #[must_use]
    pub fn live(&self, now: Instant) -> bool {
        now < self.lease.ends || (planted::is(Bug::LeaseEndInclusive) && now == self.lease.ends)
    }
}

/// The holders of a lock. One is kept in place: that is what nearly every lock has.
#[derive(Clone, Debug, Default, PartialEq)]
enum Holders {
    #[default]
    None,
    One(Holder),
    Many(Vec<Holder>),
}

impl Holders {
    fn as_slice(&self) -> &[Holder] {
        match self {
            Self::None => &[],
            Self::One(holder) => core::slice::from_ref(holder),
            Self::Many(holders) => holders,
        }
    }

    fn as_mut_slice(&mut self) -> &mut [Holder] {
        match self {
            Self::None => &mut [],
            Self::One(holder) => core::slice::from_mut(holder),
            Self::Many(holders) => holders,
        }
    }

    fn push(&mut self, holder: Holder) {
        *self = match core::mem::take(self) {
            Self::None => Self::One(holder),
            Self::One(first) => Self::Many(alloc::vec![first, holder]),
            Self::Many(mut holders) => {
                holders.push(holder);
                Self::Many(holders)
            }
        };
    }

    fn remove(&mut self, owner: &[u8]) {
        match self {
            Self::One(holder) if *holder.owner == *owner => *self = Self::None,
            Self::Many(holders) => {
                holders.retain(|holder| *holder.owner != *owner);
                if holders.is_empty() {
                    *self = Self::None;
                }
            }
            Self::None | Self::One(_) => {}
        }
    }
}

/// A lock's record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lock {
    pub(crate) counter: u64,
    pub(crate) grants: u64,
    pub(crate) mode: Mode,
    pub(crate) free_since: Instant,
    /// The issuer's epoch in which the counter was last known to be the highest of this name; see [`crate::token`].
    pub(crate) epoch: u32,
    holders: Holders,
}

impl Lock {
    /// The highest token that this lock has issued; 0 before the first.
    #[must_use]
    pub const fn counter(&self) -> u64 {
        self.counter
    }

    /// How many grants this record has seen.
    #[must_use]
    pub const fn grants(&self) -> u64 {
        self.grants
    }

    /// The mode of the last grant: of the present holders, while there are any.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// All holders in the record, also those whose lease is over.
    #[must_use]
    pub fn holders(&self) -> &[Holder] {
        self.holders.as_slice()
    }

    /// The holders whose lease is live at `now`.
    pub fn live(&self, now: Instant) -> impl Iterator<Item = &Holder> {
        self.holders().iter().filter(move |holder| holder.live(now))
    }

    /// How many leases are live at `now`.
    #[must_use]
    pub fn live_count(&self, now: Instant) -> u64 {
        self.live(now).fold(0, |count: u64, _| count.saturating_add(1))
    }

    /// The holder of that name, if its lease is live at `now`.
    #[must_use]
    pub fn live_holder(&self, owner: &[u8], now: Instant) -> Option<&Holder> {
        self.live(now).find(|holder| *holder.owner == *owner)
    }

    /// When the next of the live leases ends: the earliest moment at which somebody who waits may be served.
    #[must_use]
    pub fn next_end(&self, now: Instant) -> Option<Instant> {
        self.live(now).map(|holder| holder.lease.ends).min()
    }

    /// Since when nobody holds the lock; `None` while a lease is live.
    #[must_use]
    pub fn free_since(&self, now: Instant) -> Option<Instant> {
        if self.live(now).next().is_some() {
            return None;
        }
        Some(self.holders().iter().map(|holder| holder.lease.ends).fold(self.free_since, Instant::max))
    }

    /// When the last lease in the record ends or ended.
    #[must_use]
    pub fn last_end(&self) -> Instant {
        self.holders().iter().map(|holder| holder.lease.ends).fold(self.free_since, Instant::max)
    }

    /// Heap memory of the record beyond its own size, in bytes.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let owners: usize = self.holders().iter().map(|holder| holder.owner.len()).sum();
        let array = match &self.holders {
            Holders::Many(holders) => holders.capacity().saturating_mul(size_of::<Holder>()),
            Holders::None | Holders::One(_) => 0,
        };
        owners.saturating_add(array)
    }

    /// Whether a write that carries `token` still counts: the counter, by which it was accepted, or why it does not.
    ///
    /// Accepted are the token of a live holder, and the counter itself until the next grant. A token is stale as
    /// soon as a higher one was issued, not only once the newer holder has written (guarantee G4).
    ///
    /// # Errors
    /// [`Refusal::Stale`] below the counter, [`Refusal::NeverIssued`] above it.
    pub fn check(&self, token: Token, now: Instant) -> Result<u64, Refusal> {
        let number = token.get();
        let stale_accepted = planted::is(Bug::StaleAccepted) && number < self.counter;
        if number == self.counter || stale_accepted || self.live(now).any(|holder| holder.token == number) {
            return Ok(self.counter);
        }
        if number > self.counter {
            return Err(Refusal::NeverIssued(token));
        }
        Err(Refusal::Stale { token, counter: self.counter, keeper: Keeper::Lock })
    }

    /// Carries out what was decided. Cannot fail: an event about a holder that is not there changes nothing.
    pub fn apply(&mut self, event: &Event<'_>) {
        match *event {
            Event::Granted { owner, token, mode, at, lease } => {
                if mode == Mode::Exclusive {
                    self.holders = Holders::None;
                } else {
                    self.holders.remove(owner);
                }
                self.holders.push(Holder { owner: owner.into(), token, since: at, lease });
                self.mode = mode;
                self.counter = self.counter.max(token);
                self.grants = self.grants.saturating_add(1);
            }
            Event::Extended { owner, token, lease } => {
                if let Some(holder) = self.holders.as_mut_slice().iter_mut().find(|h| *h.owner == *owner) {
                    holder.lease = lease;
                    holder.token = token;
                    self.counter = self.counter.max(token);
                }
            }
            Event::Ended { owner, at } => {
                self.holders.remove(owner);
                self.free_since = self.free_since.max(at);
            }
            Event::Broken { counter, at } => {
                self.holders = Holders::None;
                self.counter = self.counter.max(counter);
                self.free_since = self.free_since.max(at);
            }
            Event::Snapshot(ref lock) => *self = lock.clone(),
        }
    }

    /// Joins the record that stood at this key before this one arrived there (RESTORE, RENAME, MOVE over a lock):
    /// the higher counter of the two stays, and an arriving lease that is the older one is dropped.
    pub fn arrive_over(&mut self, stood: &Self) {
        self.grants = self.grants.max(stood.grants);
        if self.counter >= stood.counter {
            return;
        }
        let floor = stood.counter;
        self.counter = floor;
        self.holders = match core::mem::take(&mut self.holders) {
            Holders::Many(mut holders) => {
                holders.retain(|holder| holder.token >= floor);
                if holders.is_empty() { Holders::None } else { Holders::Many(holders) }
            }
            Holders::One(holder) if holder.token >= floor => Holders::One(holder),
            Holders::None | Holders::One(_) => Holders::None,
        };
        self.free_since = self.free_since.max(stood.free_since);
    }

    /// Says that the counter may not be the highest that this name has seen (the record came from elsewhere):
    /// its next token is also above everything this server has issued.
    pub fn mark_arrived(&mut self) {
        self.epoch = 0;
    }

    pub(crate) fn from_parts(
        counter: u64,
        grants: u64,
        mode: Mode,
        free_since: Instant,
        holders: Vec<Holder>,
    ) -> Self {
        let mut all = Holders::None;
        for holder in holders {
            all.push(holder);
        }
        Self { counter, grants, mode, free_since, epoch: 0, holders: all }
    }
}
