//! Who holds a lock, in few bytes: nearly every lock has one exclusive holder, whose token is the lock's counter.
//!
//! It must never lose anything: what does not fit the small forms is kept in full.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use crate::clock::Instant;
use crate::crowd::Crowd;
use crate::event::Lease;
use crate::ids::Mode;
use crate::owner::{Form, OwnerName, Packed};
use crate::planted::{self, Bug};

/// One holder of a lock. Its lease may be over: the record is not changed by time alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder<'a> {
    /// Who.
    pub owner: OwnerName<'a>,
    /// The fencing token of the grant.
    pub token: u64,
    /// The mode in which it holds.
    pub mode: Mode,
    /// When the grant was made.
    pub since: Instant,
    /// Until when.
    pub lease: Lease,
}

impl Holder<'_> {
    /// Whether the lease is live at `now`: while now is before its end.
    #[must_use]
    pub fn live(&self, now: Instant) -> bool {
        over_by(now) < self.lease.ends
    }
}

/// The latest end of those leases that are over at `now`.
pub(crate) fn over_by(now: Instant) -> Instant {
    if planted::is(Bug::LeaseEndInclusive) {
        Instant::from_micros(now.micros().saturating_sub(1))
    } else {
        now
    }
}

/// The holders of one lock. The lock's counter belongs to it: the token of a holder in one of the small forms is not
/// kept, it is the counter.
#[derive(Clone, Debug)]
pub(crate) enum Holders {
    /// Nobody, since then.
    None(Instant),
    /// One in exclusive mode, whose token is the counter.
    One { owner: Packed, term: Term },
    /// The same, with a name that does not pack.
    OneOfLongName { owner: Box<[u8]>, term: Term },
    /// Any others, a few, in the order of their tokens.
    Several(Vec<Full>),
    /// More than a few.
    Many(Box<Crowd>),
}

/// More than so many holders are kept as a crowd: up to here it is no less work to look them through.
const FEW: usize = 64;
/// A crowd of no more than this is kept as a few again.
const FEW_AGAIN: usize = 32;

/// When a holder was granted the lock, and its lease. Bytes, so that nothing is lost between them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Term {
    since_us: [u8; 8],
    ends_us: [u8; 8],
    length_ms: [u8; 5],
}

impl Term {
    /// `None` for a lease that is longer than any that is granted (10,000 days).
    fn new(since: Instant, lease: Lease) -> Option<Self> {
        let [length_ms @ .., 0, 0, 0] = lease.length_ms.to_le_bytes() else { return None };
        let (since_us, ends_us) = (since.micros().to_le_bytes(), lease.ends.micros().to_le_bytes());
        Some(Self { since_us, ends_us, length_ms })
    }

    const fn since(&self) -> Instant {
        Instant::from_micros(i64::from_le_bytes(self.since_us))
    }

    const fn lease(&self) -> Lease {
        let [a, b, c, d, e] = self.length_ms;
        let length_ms = u64::from_le_bytes([a, b, c, d, e, 0, 0, 0]);
        Lease { ends: Instant::from_micros(i64::from_le_bytes(self.ends_us)), length_ms }
    }
}

/// A holder with all that there is to it.
#[derive(Clone, Debug)]
pub(crate) struct Full {
    pub(crate) owner: Kept,
    pub(crate) token: u64,
    pub(crate) mode: Mode,
    pub(crate) since: Instant,
    pub(crate) lease: Lease,
}

/// A name and its memory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kept {
    Packed(Packed),
    Long(Box<[u8]>),
}

impl Kept {
    pub(crate) fn new(name: OwnerName<'_>) -> Self {
        match name.0 {
            Form::Packed(packed) => Self::Packed(packed),
            Form::Long(bytes) => Self::Long(bytes.into()),
        }
    }

    pub(crate) const fn heap_bytes(&self) -> usize {
        match self {
            Self::Packed(_) => 0,
            Self::Long(bytes) => bytes.len(),
        }
    }

    pub(crate) fn name(&self) -> OwnerName<'_> {
        OwnerName(match self {
            Self::Packed(packed) => Form::Packed(*packed),
            Self::Long(bytes) => Form::Long(bytes),
        })
    }
}

impl Full {
    pub(crate) fn new(holder: Holder<'_>) -> Self {
        let Holder { owner, token, mode, since, lease } = holder;
        Self { owner: Kept::new(owner), token, mode, since, lease }
    }

    pub(crate) fn holder(&self) -> Holder<'_> {
        let Self { token, mode, since, lease, .. } = *self;
        Holder { owner: self.owner.name(), token, mode, since, lease }
    }
}

impl Default for Holders {
    fn default() -> Self {
        Self::None(Instant::default())
    }
}

impl Holders {
    /// All of these at once; nobody, since `free_since`, where there are none. Their tokens are at most `counter`. `None`
    /// where two of them have one name or one token.
    pub(crate) fn of(mut all: Vec<Full>, counter: u64, free_since: Instant) -> Option<Self> {
        let mut none = Self::None(free_since);
        match &*all {
            [] => return Some(none),
            [sole] if none.set_sole(&sole.holder(), counter) => return Some(none),
            _ => {}
        }
        if all.len() > FEW {
            return Crowd::of(all).map(|crowd| Self::Many(Box::new(crowd)));
        }
        all.sort_unstable_by_key(|full| full.token);
        all.shrink_to_fit();
        let names: BTreeSet<&Kept> = all.iter().map(|full| &full.owner).collect();
        let alone = all.is_sorted_by(|low, high| low.token < high.token) && names.len() == all.len();
        alone.then_some(Self::Several(all))
    }

    /// All of them, in the order of their tokens. `counter` is the lock's.
    pub(crate) fn iter(&self, counter: u64) -> impl DoubleEndedIterator<Item = Holder<'_>> {
        let several = if let Self::Several(several) = self { several.as_slice() } else { &[] };
        let crowd = self.crowd().into_iter().flat_map(Crowd::iter);
        self.sole(counter).into_iter().chain(several.iter().map(Full::holder)).chain(crowd)
    }

    /// Where there are many: questions about one of them are for the crowd.
    pub(crate) fn crowd(&self) -> Option<&Crowd> {
        if let Self::Many(crowd) = self { Some(crowd) } else { None }
    }

    fn sole(&self, counter: u64) -> Option<Holder<'_>> {
        let (name, term) = match self {
            Self::One { owner, term } => (Form::Packed(*owner), term),
            Self::OneOfLongName { owner, term } => (Form::Long(owner), term),
            Self::None(_) | Self::Several(_) | Self::Many(_) => return None,
        };
        let (since, lease) = (term.since(), term.lease());
        Some(Holder { owner: OwnerName(name), token: counter, mode: Mode::Exclusive, since, lease })
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::None(_) => 0,
            Self::One { .. } | Self::OneOfLongName { .. } => 1,
            Self::Several(several) => several.len(),
            Self::Many(crowd) => crowd.len(),
        }
    }

    /// When the last lease ends or ended.
    pub(crate) fn last_end(&self) -> Instant {
        match self {
            Self::None(since) => *since,
            Self::One { term, .. } | Self::OneOfLongName { term, .. } => term.lease().ends,
            Self::Several(several) => several.iter().map(|full| full.lease.ends).max().unwrap_or_default(),
            Self::Many(crowd) => crowd.last_end(),
        }
    }

    /// Takes note of the time: see [`Crowd::note`].
    pub(crate) fn note(&mut self, now: Instant) {
        if let Self::Many(crowd) = self {
            crowd.note(now);
        }
    }

    /// One more, of another name than all others; the counter is at least its token from now on.
    pub(crate) fn add(&mut self, holder: Holder<'_>, counter: &mut u64) {
        let before = *counter;
        *counter = before.max(holder.token);
        if let Self::Many(crowd) = self {
            crowd.insert(Full::new(holder));
            return;
        }
        if matches!(self, Self::None(_)) && self.set_sole(&holder, *counter) {
            return;
        }
        let mut several = core::mem::take(self).in_full(before);
        put(&mut several, Full::new(holder));
        *self = if several.len() > FEW { Self::Many(several.into()) } else { Self::Several(several) };
    }

    /// Becomes the small form of a lock's only holder, if there is one. (Written in place: a value of odd bytes that is
    /// moved costs more than it takes to make.)
    fn set_sole(&mut self, holder: &Holder<'_>, counter: u64) -> bool {
        if holder.mode != Mode::Exclusive || holder.token != counter {
            return false;
        }
        let Some(term) = Term::new(holder.since, holder.lease) else { return false };
        match holder.owner.0 {
            Form::Packed(owner) => *self = Self::One { owner, term },
            Form::Long(owner) => *self = Self::OneOfLongName { owner: owner.into(), term },
        }
        true
    }

    fn in_full(self, counter: u64) -> Vec<Full> {
        match self {
            Self::Several(several) => several,
            Self::Many(crowd) => crowd.into_vec(),
            Self::None(_) | Self::One { .. } | Self::OneOfLongName { .. } => {
                // Room for one: many semaphores have a single holder.
                let mut several = Vec::with_capacity(1);
                several.extend(self.sole(counter).map(Full::new));
                several
            }
        }
    }

    /// Gives a holder another token and lease; nothing if it is not there. The counter is at least its token from now
    /// on.
    pub(crate) fn change(&mut self, owner: OwnerName<'_>, token: u64, lease: Lease, counter: &mut u64) {
        let before = *counter;
        if let Some(sole) = self.sole(before) {
            if sole.owner != owner {
                return;
            }
            let changed = Term::new(sole.since, lease).filter(|_| token >= before);
            if let (Some(changed), Self::One { term, .. } | Self::OneOfLongName { term, .. }) =
                (changed, &mut *self)
            {
                *term = changed;
                *counter = token;
                return;
            }
            *self = Self::Several(core::mem::take(self).in_full(before));
        }
        let changed = match self {
            Self::Several(several) => match several.iter().position(|full| full.owner.name() == owner) {
                Some(place) => {
                    let full = several.remove(place);
                    put(several, Full { token, lease, ..full });
                    true
                }
                None => false,
            },
            Self::Many(crowd) => crowd.change(owner, token, lease),
            Self::None(_) | Self::One { .. } | Self::OneOfLongName { .. } => false,
        };
        if changed {
            *counter = before.max(token);
        }
    }

    /// The holder of that name leaves; if it was the last one, nobody holds the lock since `at`.
    pub(crate) fn remove(&mut self, owner: OwnerName<'_>, at: Instant, counter: u64) {
        let none_left = match self {
            Self::Several(several) => {
                several.retain(|full| full.owner.name() != owner);
                if several.len() < several.capacity() / 4 {
                    several.shrink_to_fit();
                }
                several.is_empty()
            }
            Self::Many(crowd) => {
                crowd.remove(owner);
                if crowd.len() <= FEW_AGAIN {
                    *self = Self::Several(core::mem::take(self).in_full(counter));
                }
                false
            }
            Self::None(_) | Self::One { .. } | Self::OneOfLongName { .. } => {
                self.sole(counter).is_some_and(|sole| sole.owner == owner)
            }
        };
        if none_left {
            *self = Self::None(at);
        }
    }

    /// All leave whose token is at most `max`; if none is left, nobody holds the lock since `at`.
    pub(crate) fn remove_up_to(&mut self, max: u64, at: Instant, counter: u64) {
        if max >= counter {
            return self.clear(at);
        }
        // The holder of a small form has the counter for its token.
        if matches!(self, Self::Several(_) | Self::Many(_)) {
            let mut left = core::mem::take(self).in_full(counter);
            left.retain(|full| full.token > max);
            left.shrink_to_fit();
            *self = match left.len() {
                0 => Self::None(at),
                1..=FEW => Self::Several(left),
                _ => Self::Many(left.into()),
            };
        }
    }

    /// All leave; nobody holds the lock since `at`.
    pub(crate) fn clear(&mut self, at: Instant) {
        if self.len() > 0 {
            *self = Self::None(at);
        }
    }

    /// The one thing that is not in the record itself where there is one holder.
    pub(crate) const fn long_name_mut(&mut self) -> Option<&mut Box<[u8]>> {
        if let Self::OneOfLongName { owner, .. } = self { Some(owner) } else { None }
    }

    /// Heap memory beyond the value's own size, in bytes; of a crowd, about as much.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Self::None(_) | Self::One { .. } => 0,
            Self::OneOfLongName { owner, .. } => owner.len(),
            Self::Several(several) => {
                let long_names: usize = several.iter().map(|full| full.owner.heap_bytes()).sum();
                several.capacity().saturating_mul(size_of::<Full>()).saturating_add(long_names)
            }
            Self::Many(crowd) => crowd.heap_bytes(),
        }
    }
}

/// Puts a holder in its place, in the order of tokens. No two have one token.
fn put(several: &mut Vec<Full>, full: Full) {
    let place = several.partition_point(|other| other.token < full.token);
    match several.get_mut(place) {
        Some(other) if other.token == full.token => *other = full,
        _ => several.insert(place, full),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &[u8] = b"c56a4180-65aa-42ec-a945-5fd21dec0538";
    const LONG: &[u8] = b"a name that is longer than any that packs";

    fn held(owner: &[u8], token: u64, mode: Mode) -> Holder<'_> {
        let lease = Lease { ends: Instant::from_micros(i64::MAX - 7), length_ms: 31_536_000_000 };
        Holder { owner: OwnerName::new(owner), token, mode, since: Instant::from_micros(-5), lease }
    }

    /// What each holder is after its grant: counter and holders.
    fn after(holders: &[Holder<'_>], counter: u64) -> (u64, Holders) {
        let (mut counter, mut all) = (counter, Holders::default());
        holders.iter().for_each(|holder| all.add(*holder, &mut counter));
        assert!(all.iter(counter).eq(holders.iter().copied()), "{all:?}");
        assert_eq!(all.len(), holders.len());
        (counter, all)
    }

    #[test]
    fn one_holder_is_small() {
        assert_eq!(size_of::<Holders>(), 40);
        for name in [b"a".as_slice(), UUID] {
            let (counter, all) = after(&[held(name, 8, Mode::Exclusive)], 7);
            assert!(counter == 8 && all.heap_bytes() == 0 && matches!(all, Holders::One { .. }));
        }
        let (_, all) = after(&[held(LONG, 8, Mode::Exclusive)], 7);
        assert_eq!(all.heap_bytes(), LONG.len());
    }

    #[test]
    fn what_is_not_small_is_kept_in_full() {
        after(&[held(UUID, 6, Mode::Exclusive)], 7);
        after(&[held(UUID, 8, Mode::Shared)], 7);
        after(
            &[held(b"a", 3, Mode::Exclusive), held(LONG, 8, Mode::Limit(2)), held(UUID, 9, Mode::Shared)],
            7,
        );
        let mut endless = held(b"a", 8, Mode::Exclusive);
        endless.lease.length_ms = u64::MAX;
        after(&[endless], 7);
    }

    #[test]
    fn a_holder_changes_its_token_and_lease() {
        let lease = Lease { ends: Instant::from_micros(99), length_ms: 3 };
        for name in [b"a".as_slice(), UUID, LONG] {
            for (token, raised) in [(8, 8), (9, 9), (5, 8)] {
                let before = held(name, 8, Mode::Exclusive);
                let (mut counter, mut all) = after(&[before], 7);
                all.change(OwnerName::new(b"another"), 100, lease, &mut counter);
                assert!(counter == 8 && all.iter(counter).eq([before]));
                all.change(OwnerName::new(name), token, lease, &mut counter);
                assert_eq!(counter, raised);
                assert!(all.iter(counter).eq([Holder { token, lease, ..before }]), "{all:?}");
                all.remove(OwnerName::new(name), Instant::from_micros(1), counter);
                assert!(all.len() == 0 && all.last_end() == Instant::from_micros(1));
            }
        }
    }
}
