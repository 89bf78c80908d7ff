//! Many holders of one lock, found by name, by token and by the end of their leases: nothing that one of them does may
//! cost more for each of the others. A semaphore may have a million.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::Bound;

use crate::clock::Instant;
use crate::event::Lease;
use crate::holders::{Full, Holder, Kept, over_by};
use crate::owner::OwnerName;

/// Holders in the order of their tokens. No two have one name, or one token.
#[derive(Clone, Debug, Default)]
pub(crate) struct Crowd {
    by_token: BTreeMap<u64, Full>,
    by_owner: BTreeMap<Kept, u64>,
    by_end: BTreeSet<(Instant, u64)>,
    /// Memory of names that do not pack, in bytes; each is kept twice.
    long_names: usize,
    noted: Noted,
}

/// What was found out about the time that has passed, so that leases that are over are counted once. It can be
/// forgotten without harm.
#[derive(Clone, Copy, Debug, Default)]
struct Noted {
    /// Leases that end by then have been counted.
    until: Option<Instant>,
    /// So many of them are over.
    over: usize,
    /// No holder with a lower token than this has a lease that ends later.
    first: u64,
}

impl Noted {
    fn covers(self, end: Instant) -> bool {
        self.until.is_some_and(|until| end <= until)
    }
}

impl Crowd {
    /// All of these at once: each tree is built out of what is sorted for it. `None` where two of them have one name or
    /// one token.
    pub(crate) fn of(all: Vec<Full>) -> Option<Self> {
        let count = all.len();
        let by_owner: BTreeMap<_, _> = all.iter().map(|full| (full.owner.clone(), full.token)).collect();
        let by_end = all.iter().map(|full| (full.lease.ends, full.token)).collect();
        let long_names = all.iter().map(|full| full.owner.heap_bytes()).sum();
        let by_token: BTreeMap<_, _> = all.into_iter().map(|full| (full.token, full)).collect();
        let alone = by_owner.len() == count && by_token.len() == count;
        alone.then(|| Self { by_token, by_owner, by_end, long_names, noted: Noted::default() })
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = Holder<'_>> {
        self.by_token.values().map(Full::holder)
    }

    pub(crate) fn into_vec(self) -> Vec<Full> {
        self.by_token.into_values().collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_token.len()
    }

    /// One more. Whoever has its name or its token leaves.
    pub(crate) fn insert(&mut self, full: Full) {
        self.remove(full.owner.name());
        if let Some(other) = self.by_token.get(&full.token).map(|other| other.owner.clone()) {
            self.remove(other.name());
        }
        let (token, ends) = (full.token, full.lease.ends);
        if self.noted.covers(ends) {
            self.noted.over = self.noted.over.saturating_add(1);
        } else {
            self.noted.first = self.noted.first.min(token);
        }
        self.long_names = self.long_names.saturating_add(full.owner.heap_bytes());
        self.by_end.insert((ends, token));
        self.by_owner.insert(full.owner.clone(), token);
        self.by_token.insert(token, full);
    }

    pub(crate) fn remove(&mut self, owner: OwnerName<'_>) -> Option<Full> {
        let token = self.by_owner.remove(&Kept::new(owner))?;
        let full = self.by_token.remove(&token)?;
        let ends = full.lease.ends;
        self.by_end.remove(&(ends, token));
        if self.noted.covers(ends) {
            self.noted.over = self.noted.over.saturating_sub(1);
        }
        self.long_names = self.long_names.saturating_sub(full.owner.heap_bytes());
        Some(full)
    }

    /// Gives a holder another token and lease. Whether it is there.
    pub(crate) fn change(&mut self, owner: OwnerName<'_>, token: u64, lease: Lease) -> bool {
        let Some(full) = self.remove(owner) else { return false };
        self.insert(Full { token, lease, ..full });
        true
    }

    pub(crate) fn find(&self, owner: OwnerName<'_>) -> Option<Holder<'_>> {
        self.with_token(*self.by_owner.get(&Kept::new(owner))?)
    }

    pub(crate) fn with_token(&self, token: u64) -> Option<Holder<'_>> {
        self.by_token.get(&token).map(Full::holder)
    }

    /// The first whose lease is live at `now`.
    pub(crate) fn first_live(&self, now: Instant) -> Option<Holder<'_>> {
        let from =
            if self.noted.until.is_some_and(|until| until <= over_by(now)) { self.noted.first } else { 0 };
        self.by_token.range(from..).map(|(_, full)| full.holder()).find(|holder| holder.live(now))
    }

    pub(crate) fn live_count(&self, now: Instant) -> usize {
        self.len().saturating_sub(self.over_count(over_by(now)))
    }

    /// How many leases end by then.
    fn over_count(&self, by: Instant) -> usize {
        let (from, before) = match self.noted.until {
            Some(until) if until <= by => (Bound::Excluded((until, u64::MAX)), self.noted.over),
            _ => (Bound::Unbounded, 0),
        };
        self.by_end.range((from, Bound::Included((by, u64::MAX)))).count().saturating_add(before)
    }

    /// Takes note of the time, so that what is over by now is not counted again.
    pub(crate) fn note(&mut self, now: Instant) {
        let by = over_by(now);
        if self.noted.until.is_some_and(|until| by <= until) {
            return;
        }
        let over = self.over_count(by);
        let mut from_first = self.by_token.range(self.noted.first..);
        let live = from_first.find(|(_, full)| full.lease.ends > by);
        self.noted = Noted { until: Some(by), over, first: live.map_or(u64::MAX, |(token, _)| *token) };
    }

    /// When the lease ends that ends after so many others of those that are live at `now`. For more than 63 others it
    /// may be an earlier one: nobody counts further.
    pub(crate) fn end_after(&self, others: usize, now: Instant) -> Option<Instant> {
        const FARTHEST: usize = 63;
        let live = (Bound::Excluded((over_by(now), u64::MAX)), Bound::Unbounded);
        if others >= self.live_count(now).saturating_sub(1) {
            return self.by_end.range(live).next_back().map(|(end, _)| *end);
        }
        self.by_end.range(live).nth(others.min(FARTHEST)).map(|(end, _)| *end)
    }

    pub(crate) fn last_end(&self) -> Instant {
        self.by_end.last().map(|(end, _)| *end).unwrap_or_default()
    }

    /// Some of those whose leases are over at `now`, at most so many: those that ended first.
    pub(crate) fn over(&self, now: Instant, most: usize) -> impl Iterator<Item = Holder<'_>> {
        let over = self.by_end.range(..=(over_by(now), u64::MAX)).take(most);
        over.filter_map(|(_, token)| self.with_token(*token))
    }

    /// About as much memory as the crowd takes, in bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        const EACH: usize = size_of::<(u64, Full)>() + size_of::<(Kept, u64)>() + size_of::<(Instant, u64)>();
        // The nodes of a B-tree that grows at its end are little more than half full.
        let trees = self.len().saturating_mul(EACH).saturating_mul(2);
        trees.saturating_add(self.long_names.saturating_mul(2)).saturating_add(size_of::<Self>())
    }
}

impl From<Vec<Full>> for Box<Crowd> {
    fn from(holders: Vec<Full>) -> Self {
        let mut crowd = Self::default();
        holders.into_iter().for_each(|full| crowd.insert(full));
        crowd
    }
}
