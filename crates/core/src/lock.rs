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
    /// The mode in which it holds.
    pub mode: Mode,
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
#[derive(Clone, Debug, PartialEq)]
enum Holders {
    /// Nobody, since then.
    None(Instant),
    One(Holder),
    Many(Vec<Holder>),
}

impl Default for Holders {
    fn default() -> Self {
        Self::None(Instant::default())
    }
}

impl Holders {
    fn as_slice(&self) -> &[Holder] {
        match self {
            Self::None(_) => &[],
            Self::One(holder) => core::slice::from_ref(holder),
            Self::Many(holders) => holders,
        }
    }

    fn as_mut_slice(&mut self) -> &mut [Holder] {
        match self {
            Self::None(_) => &mut [],
            Self::One(holder) => core::slice::from_mut(holder),
            Self::Many(holders) => holders,
        }
    }

    fn push(&mut self, holder: Holder) {
        *self = match core::mem::take(self) {
            Self::None(_) => Self::One(holder),
            Self::One(first) => Self::Many(alloc::vec![first, holder]),
            Self::Many(mut holders) => {
                holders.push(holder);
                Self::Many(holders)
            }
        };
    }

    /// Keeps those that `keep` says; if that is none, nobody holds the lock since `at`.
    fn retain(&mut self, at: Instant, keep: impl Fn(&Holder) -> bool) {
        if let Self::Many(holders) = self {
            holders.retain(&keep);
        }
        let none_left = match self {
            Self::None(_) => false,
            Self::One(holder) => !keep(holder),
            Self::Many(holders) => holders.is_empty(),
        };
        if none_left {
            *self = Self::None(at);
        }
    }
}

/// A lock's record. Its size counts: a server may hold millions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lock {
    pub(crate) counter: u64,
    holders: Holders,
    grants: u32,
    /// The issuer's epoch in which the counter was last known to be the highest of this name; see [`crate::token`].
    pub(crate) epoch: u32,
}

impl Lock {
    /// The highest token that this lock has issued; 0 before the first.
    #[must_use]
    pub const fn counter(&self) -> u64 {
        self.counter
    }

    /// How many grants this record has seen; no more than 2^32-1 are counted.
    #[must_use]
    pub fn grants(&self) -> u64 {
        u64::from(self.grants)
    }

    /// The mode of the last grant among the holders in the record; exclusive where there is none.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.holders().last().map_or(Mode::Exclusive, |holder| holder.mode)
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

    /// When a request of `mode` fits beside the holders, if all that happens until then is that leases end; `now` where
    /// it fits already.
    #[must_use]
    pub fn fits_from(&self, mode: Mode, now: Instant) -> Instant {
        let in_the_way = mode.in_the_way(self.mode(), self.live_count(now));
        let Some(others) = usize::try_from(in_the_way).ok().and_then(|count| count.checked_sub(1)) else {
            return now;
        };
        let mut ends: Vec<Instant> = self.live(now).map(|holder| holder.lease.ends).collect();
        ends.sort_unstable();
        ends.get(others).copied().unwrap_or(now)
    }

    /// Since when nobody holds the lock; `None` while a lease is live.
    #[must_use]
    pub fn free_since(&self, now: Instant) -> Option<Instant> {
        if self.live(now).next().is_some() {
            return None;
        }
        Some(self.last_end())
    }

    /// When the last lease in the record ends or ended.
    #[must_use]
    pub fn last_end(&self) -> Instant {
        match &self.holders {
            Holders::None(since) => *since,
            Holders::One(holder) => holder.lease.ends,
            Holders::Many(holders) => {
                holders.iter().map(|holder| holder.lease.ends).max().unwrap_or_default()
            }
        }
    }

    /// Heap memory of the record beyond its own size, in bytes.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let owners: usize = self.holders().iter().map(|holder| holder.owner.len()).sum();
        let array = match &self.holders {
            Holders::Many(holders) => holders.capacity().saturating_mul(size_of::<Holder>()),
            Holders::None(_) | Holders::One(_) => 0,
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
                self.holders.retain(at, |holder| mode != Mode::Exclusive && *holder.owner != *owner);
                self.holders.push(Holder { owner: owner.into(), token, mode, since: at, lease });
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
                self.holders.retain(at, |holder| *holder.owner != *owner);
            }
            Event::Broken { counter, at } => {
                self.holders.retain(at, |_| false);
                self.counter = self.counter.max(counter);
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
        self.counter = stood.counter;
        let last_end = self.last_end();
        self.holders.retain(last_end, |holder| holder.token >= stood.counter);
    }

    /// Says that the counter may not be the highest that this name has seen (the record came from elsewhere):
    /// its next token is also above everything this server has issued.
    pub fn mark_arrived(&mut self) {
        self.epoch = 0;
    }

    pub(crate) fn from_parts(counter: u64, grants: u64, free_since: Instant, holders: Vec<Holder>) -> Self {
        let mut all = Holders::None(free_since);
        for holder in holders {
            all.push(holder);
        }
        Self { counter, holders: all, grants: u32::try_from(grants).unwrap_or(u32::MAX), epoch: 0 }
    }
}
