//! A lock: its counter, and who holds it. Changed by events alone.
//!
//! It must never decide anything: decisions are in [`crate::turn`].

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::clock::Instant;
use crate::error::{Keeper, Refusal};
use crate::event::Event;
pub use crate::holders::Holder;
use crate::holders::Holders;
use crate::ids::{Mode, Token};
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

    /// All holders in the record, also those whose lease is over.
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
        self.live(now).fold(0, |count: u64, _| count.saturating_add(1))
    }

    /// The holder of that name, if its lease is live at `now`.
    #[must_use]
    pub fn live_holder(&self, owner: &[u8], now: Instant) -> Option<Holder<'_>> {
        let mut live = self.live(now).peekable();
        live.peek()?;
        let owner = OwnerName::new(owner);
        live.find(|holder| holder.owner == owner)
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
        let Self { counter, holders, .. } = self;
        match *event {
            Event::Granted { owner, token, mode, at, lease } => {
                let owner = OwnerName::new(owner);
                holders.retain(at, *counter, |holder| mode != Mode::Exclusive && holder.owner != owner);
                holders.add(Holder { owner, token, mode, since: at, lease }, counter);
                self.grants = self.grants.saturating_add(1);
            }
            Event::Extended { owner, token, lease } => {
                holders.change(OwnerName::new(owner), token, lease, counter);
            }
            Event::Ended { owner, at } => {
                let owner = OwnerName::new(owner);
                holders.retain(at, *counter, |holder| holder.owner != owner);
            }
            Event::Broken { counter: used_up, at } => {
                holders.retain(at, *counter, |_| false);
                *counter = used_up.max(*counter);
            }
            Event::Snapshot(ref lock) => *self = Self { filed: self.filed, ..lock.clone() },
        }
    }

    /// Joins the record that stood at this key before this one arrived there (RESTORE, RENAME, MOVE over a lock):
    /// the higher counter of the two stays, and an arriving lease that is the older one is dropped.
    pub fn arrive_over(&mut self, stood: &Self) {
        self.grants = self.grants.max(stood.grants);
        if self.counter >= stood.counter {
            return;
        }
        let last_end = self.last_end();
        self.holders.retain(last_end, self.counter, |holder| holder.token >= stood.counter);
        self.counter = stood.counter;
    }

    /// Says that the counter may not be the highest that this name has seen (the record came from elsewhere):
    /// its next token is also above everything this server has issued.
    pub fn mark_arrived(&mut self) {
        self.epoch = 0;
    }

    /// The lock that consists of these; its counter is none of the tokens' lower.
    pub(crate) fn from_parts<'a>(
        mut counter: u64,
        grants: u64,
        free_since: Instant,
        present: impl IntoIterator<Item = Holder<'a>>,
    ) -> Self {
        let mut holders = Holders::None(free_since);
        present.into_iter().for_each(|holder| holders.add(holder, &mut counter));
        let grants = u32::try_from(grants).unwrap_or(u32::MAX);
        Self { counter, holders, grants, ..Self::default() }
    }
}
