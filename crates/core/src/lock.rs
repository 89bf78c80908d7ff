//! A lock: its counter, and who holds it. Changed by events alone.
//!
//! It must never decide anything: decisions are in [`crate::turn`].

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::clock::Instant;
use crate::error::{Keeper, Refusal};
use crate::event::Event;
pub use crate::holders::Holder;
use crate::holders::{Holders, over_by};
use crate::ids::{Mode, Token};
use crate::limits;
use crate::owner::OwnerName;
use crate::planted::{self, Bug};
use crate::wheel::Filed;

/// A lock's record. Its size counts: a server may hold millions.
#[derive(Clone, Debug, Default)]
pub struct Lock {
    pub(crate) counter: u64,
    holders: Holders,
    grants: u32,
    /// The issuer's epoch in which the counter was last known to be the highest of this name; see [`crate::token`].
    pub(crate) epoch: u16,
    /// Where the record is filed to be looked at when idle. It is no part of what the lock is: nothing that happens to
    /// a lock changes it, and it makes no difference between two.
    pub filed: Filed,
}

/// A held lock is to cost no more than one and a half times the plain key: one allocation of 56 bytes, the most that a
/// 64-byte chunk of malloc holds.
const _: () = assert!(size_of::<Lock>() == 56);

/// What is remembered of a lock that stood at a key, for a record that arrives in its place.
#[derive(Clone, Copy, Debug)]
pub struct Past {
    counter: u64,
    grants: u32,
}

impl PartialEq for Lock {
    fn eq(&self, other: &Self) -> bool {
        (self.counter, self.grants, self.epoch) == (other.counter, other.grants, other.epoch)
            && self.last_end() == other.last_end()
            && self.holders().eq(other.holders())
    }
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
        self.holders().next_back().map_or(Mode::Exclusive, |holder| holder.mode)
    }

    /// All holders in the record, also those whose lease is over, in the order of their tokens.
    pub fn holders(&self) -> impl DoubleEndedIterator<Item = Holder<'_>> {
        self.holders.iter(self.counter)
    }

    /// How many holders are in the record.
    #[must_use]
    pub fn holder_count(&self) -> usize {
        self.holders.len()
    }

    /// The holders whose lease is live at `now`.
    pub fn live(&self, now: Instant) -> impl Iterator<Item = Holder<'_>> {
        self.holders().filter(move |holder| holder.live(now))
    }

    /// How many leases are live at `now`.
    #[must_use]
    pub fn live_count(&self, now: Instant) -> u64 {
        let count =
            self.holders.crowd().map_or_else(|| self.live(now).count(), |crowd| crowd.live_count(now));
        u64::try_from(count).unwrap_or(u64::MAX)
    }

    /// The first of the holders whose lease is live at `now`.
    #[must_use]
    pub fn first_live(&self, now: Instant) -> Option<Holder<'_>> {
        self.holders.crowd().map_or_else(|| self.live(now).next(), |crowd| crowd.first_live(now))
    }

    /// The holder of that name, if its lease is live at `now`.
    #[must_use]
    pub fn live_holder(&self, owner: OwnerName<'_>, now: Instant) -> Option<Holder<'_>> {
        if let Some(crowd) = self.holders.crowd() {
            return crowd.find(owner).filter(|holder| holder.live(now));
        }
        self.live(now).find(|holder| holder.owner == owner)
    }

    /// When the next of the live leases ends: the earliest moment at which somebody who waits may be served.
    #[must_use]
    pub fn next_end(&self, now: Instant) -> Option<Instant> {
        self.end_after(0, now)
    }

    /// When a request of `mode` fits beside the holders at the earliest, if all that happens until then is that leases
    /// end; `now` where it fits already. Where very many must end it may be said too early.
    #[must_use]
    pub fn fits_from(&self, mode: Mode, now: Instant) -> Instant {
        let live = self.live_count(now);
        let late = planted::is(Bug::LookedAtLate);
        let in_the_way = if late { live } else { mode.in_the_way(self.mode(), live) };
        let others = usize::try_from(in_the_way).ok().and_then(|count| count.checked_sub(1));
        others.and_then(|others| self.end_after(others, now)).unwrap_or(now)
    }

    /// When a request of `owner` for `mode` can be answered at the earliest, if all that happens until then is that leases
    /// end; `now` where it can be already: it fits, or its owner is a holder.
    #[must_use]
    pub fn serves_from(&self, owner: &[u8], mode: Mode, now: Instant) -> Instant {
        if self.live_holder(OwnerName::new(owner), now).is_some() { now } else { self.fits_from(mode, now) }
    }

    /// When the lease ends that ends after so many others of those that are live.
    fn end_after(&self, others: usize, now: Instant) -> Option<Instant> {
        if let Some(crowd) = self.holders.crowd() {
            return crowd.end_after(others, now);
        }
        let mut ends: Vec<Instant> = self.live(now).map(|holder| holder.lease.ends).collect();
        ends.sort_unstable();
        ends.get(others).copied()
    }

    /// Some of the holders whose leases are over at `now`, at most so many.
    #[must_use]
    pub fn over(&self, now: Instant, most: usize) -> Vec<Box<[u8]>> {
        let name = |holder: Holder<'_>| (*holder.owner.bytes()).into();
        if let Some(crowd) = self.holders.crowd() {
            return crowd.over(now, most).map(name).collect();
        }
        self.holders().filter(|holder| !holder.live(now)).take(most).map(name).collect()
    }

    /// Takes note of the time, so that looking at a lock with many holders need not find out twice whose lease is over.
    /// It changes nothing that can be seen.
    pub fn note(&mut self, now: Instant) {
        self.holders.note(now);
    }

    /// Since when nobody holds the lock; `None` while a lease is live.
    #[must_use]
    pub fn free_since(&self, now: Instant) -> Option<Instant> {
        let last_end = self.last_end();
        (self.holder_count() == 0 || last_end <= over_by(now)).then_some(last_end)
    }

    /// When the last lease in the record ends or ended.
    #[must_use]
    pub fn last_end(&self) -> Instant {
        self.holders.last_end()
    }

    /// Heap memory of the record beyond its own size, in bytes.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.holders.heap_bytes()
    }

    /// The name of the only holder, where it has memory of its own: to move it there, unchanged.
    pub const fn long_name_mut(&mut self) -> Option<&mut Box<[u8]>> {
        self.holders.long_name_mut()
    }

    /// Whether a write that carries `token` still counts: the counter, by which it was accepted, or why it does not.
    ///
    /// Accepted are the token of a live holder, and the counter itself until the next grant. A token is stale as
    /// soon as a higher one was issued, not only once the newer holder has written (guarantee G4). Above the highest there
    /// will be none, so that one counts while its lease is live only.
    ///
    /// # Errors
    /// [`Refusal::Stale`] below the counter, [`Refusal::NeverIssued`] above it.
    pub fn check(&self, token: Token, now: Instant) -> Result<u64, Refusal> {
        let number = token.get();
        let stale_accepted = planted::is(Bug::StaleAccepted) && number < self.counter;
        let latest = number == self.counter && number < limits::TOKEN_MAX;
        if latest || stale_accepted || self.is_live_token(number, now) {
            return Ok(self.counter);
        }
        if number > self.counter {
            return Err(Refusal::NeverIssued(token));
        }
        Err(Refusal::Stale { token, counter: self.counter, keeper: Keeper::Lock })
    }

    fn is_live_token(&self, token: u64, now: Instant) -> bool {
        if let Some(crowd) = self.holders.crowd() {
            return crowd.with_token(token).is_some_and(|holder| holder.live(now));
        }
        self.live(now).any(|holder| holder.token == token)
    }

    /// Carries out what was decided. Cannot fail: an event about a holder that is not there changes nothing.
    pub fn apply(&mut self, event: &Event<'_>) {
        let Self { counter, holders, .. } = self;
        match *event {
            Event::Granted { owner, token, mode, at, lease } => {
                let joins = |other: Holder<'_>| other.mode.same_kind(mode);
                if mode != Mode::Exclusive && holders.iter(*counter).next().is_some_and(joins) {
                    holders.remove(owner, at, *counter);
                } else {
                    holders.clear(at);
                }
                holders.add(Holder { owner, token, mode, since: at, lease }, counter);
                self.grants = self.grants.saturating_add(1);
            }
            Event::Extended { owner, token, lease } => {
                holders.change(owner, token, lease, counter);
            }
            Event::Ended { owner, at } => {
                holders.remove(owner, at, *counter);
            }
            Event::BrokenUpTo { max, at } => holders.remove_up_to(max, at, *counter),
            Event::Broken { counter: used_up, at } => {
                holders.clear(at);
                *counter = used_up.max(*counter);
            }
        }
    }

    /// Becomes what another record of this lock says.
    pub fn replace(&mut self, by: Self) {
        *self = Self { filed: self.filed, ..by };
    }

    /// Joins the record that stood at this key before this one arrived there (RESTORE, RENAME, MOVE over a lock):
    /// the higher counter of the two stays, and an arriving lease that is the older one is dropped, now.
    pub fn arrive_over(&mut self, stood: Past, now: Instant) {
        self.grants = self.grants.max(stood.grants);
        if self.counter >= stood.counter {
            return;
        }
        self.holders.clear(now);
        self.counter = stood.counter;
    }

    /// What is to be remembered of it when its key goes.
    #[must_use]
    pub const fn past(&self) -> Past {
        Past { counter: self.counter, grants: self.grants }
    }

    /// Says that the counter may not be the highest that this name has seen (the record came from elsewhere):
    /// its next token is also above everything this server has issued.
    pub fn mark_arrived(&mut self) {
        self.epoch = 0;
    }

    /// The lock that consists of these.
    pub(crate) fn from_parts(counter: u64, grants: u64, holders: Holders) -> Self {
        let grants = u32::try_from(grants).unwrap_or(u32::MAX);
        Self { counter, holders, grants, ..Self::default() }
    }
}
