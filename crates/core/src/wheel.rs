//! When to look at a record that may be idle: a calendar of keys in coarse ticks, a few bytes a key.
//!
//! An entry is a hint. Whoever takes it out compares [`Due::filed`] with what the record says of itself, so that an
//! entry whose record has gone, moved or been filed again counts for nothing. Nothing is ever searched or removed
//! early, which makes filing O(1) and keeps a million held locks cheap.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::clock::Instant;
use crate::codec::{NUMBER_BYTES_MAX, Reader, put_bytes, put_number};

/// A tick is 2^17 µs, about 131 ms: 32 bits of them last for 17 years after the clock began.
const TICK_BITS: u32 = 17;
/// Chunks grow to this many bytes and then another is begun: no large copies, little slack.
const CHUNK_BYTES: usize = 4096;

/// A tick; 0 is the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Tick(u32);

impl Tick {
    fn of(at: Instant) -> Self {
        let number = at.micros().max(0) >> TICK_BITS;
        Self(u32::try_from(number).unwrap_or(u32::MAX - 1).saturating_add(1))
    }

    const fn begins(self) -> Instant {
        Instant::from_micros((self.0 as i64) << TICK_BITS)
    }
}

/// What a record keeps of the tick in which it is filed: its low 16 bits. Ticks that are 2.4 hours apart look alike: a
/// record must not be filed further ahead than one hour. (If two do look alike, a record is looked at once more.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filed(u16);

impl Filed {
    const fn in_tick(tick: Tick) -> Self {
        Self(tick.0 as u16)
    }

    /// Whether a record that is filed so would come out sooner if it were filed again, to be due at `due`.
    #[must_use]
    pub fn is_later_than(self, due: Instant) -> bool {
        let ahead = self.0.wrapping_sub(Self::in_tick(Tick::of(due)).0);
        ahead != 0 && ahead < 1 << 15
    }
}

/// A key whose time has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// How it was filed.
    pub filed: Filed,
    /// The database.
    pub db: u32,
    /// The key's name.
    pub key: Vec<u8>,
}

/// Names of keys. The first is whole; of each other only what it does not share with the first: names of locks mostly
/// begin alike.
#[derive(Debug, Default)]
struct Chunk {
    bytes: Vec<u8>,
    first_ends: usize,
    read: usize,
}

impl Chunk {
    fn first(&self) -> &[u8] {
        self.bytes.get(..self.first_ends).unwrap_or_default()
    }

    /// A chunk for that name and others. The first one of a tick may stay small.
    fn new(key: &[u8], first: bool) -> Self {
        let whole = key.len().saturating_add(2 * NUMBER_BYTES_MAX);
        let capacity = if first { 0 } else { whole.max(CHUNK_BYTES) };
        Self { bytes: Vec::with_capacity(capacity), ..Self::default() }
    }

    fn has_room(&self, key: &[u8], shared: usize) -> bool {
        let own = key.len().saturating_sub(shared);
        let needed = self.bytes.len().saturating_add(own).saturating_add(2 * NUMBER_BYTES_MAX);
        // A first name may be longer than a chunk: the same again takes next to nothing.
        needed <= CHUNK_BYTES.max(self.first_ends.saturating_mul(2))
    }

    /// How much of a name is that of the first.
    fn shared(&self, key: &[u8]) -> usize {
        let first = self.first();
        // Eight bytes at a time as far as that goes: names are filed by every grant.
        let (ours, theirs) = (first.as_chunks::<8>().0, key.as_chunks::<8>().0);
        let alike = ours.iter().zip(theirs).take_while(|(one, other)| one == other).count().saturating_mul(8);
        let (ours, theirs) = (first.get(alike..), key.get(alike..));
        let rest = ours.unwrap_or_default().iter().zip(theirs.unwrap_or_default());
        alike.saturating_add(rest.take_while(|(one, other)| one == other).count())
    }

    /// The first name of a chunk, or another of which so many bytes are those of the first.
    fn push(&mut self, key: &[u8], shared: usize) {
        let shared = if self.bytes.is_empty() {
            self.bytes.extend_from_slice(key);
            self.first_ends = key.len();
            key.len()
        } else {
            shared
        };
        put_number(&mut self.bytes, u64::try_from(shared).unwrap_or(u64::MAX));
        put_bytes(&mut self.bytes, key.get(shared..).unwrap_or_default());
    }

    fn next(&mut self) -> Option<Vec<u8>> {
        let begins = self.read.max(self.first_ends);
        let mut reader = Reader::new(self.bytes.get(begins..)?);
        let shared = usize::try_from(reader.number().ok()?).ok()?;
        let rest = reader.bytes(usize::MAX).ok()?;
        let key = [self.first().get(..shared)?, rest].concat();
        self.read = self.bytes.len().saturating_sub(reader.left());
        Some(key)
    }
}

/// The calendar.
#[derive(Debug, Default)]
pub struct Wheel {
    /// By tick and database; the latter as it was numbered first.
    ticks: BTreeMap<(Tick, u32), Vec<Chunk>>,
    /// For a database that SWAPDB renumbered: the number under which entries know it.
    first_number: BTreeMap<u32, u32>,
    /// The other way round.
    number_now: BTreeMap<u32, u32>,
}

impl Wheel {
    /// Files a key to be looked at soon after `due`.
    pub fn file(&mut self, db: u32, key: &[u8], due: Instant) -> Filed {
        let tick = Tick::of(due);
        let place = (tick, look_up(&self.first_number, db));
        let chunks = match self.ticks.last_entry() {
            // Most are filed as far ahead as can be: no search.
            Some(last) if *last.key() == place => last.into_mut(),
            _ => self.ticks.entry(place).or_default(),
        };
        let shared = chunks.last().map_or(0, |chunk| chunk.shared(key));
        if !chunks.last().is_some_and(|chunk| chunk.has_room(key, shared)) {
            chunks.push(Chunk::new(key, chunks.is_empty()));
        }
        if let Some(chunk) = chunks.last_mut() {
            chunk.push(key, shared);
        }
        Filed::in_tick(tick)
    }

    /// The earliest moment at which something is due.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        let ((tick, _), _) = self.ticks.first_key_value()?;
        Some(tick.begins())
    }

    /// Takes out the next key that is due at `now`.
    pub fn take_due(&mut self, now: Instant) -> Option<Due> {
        while self.next_due().is_some_and(|due| due <= now) {
            let mut first = self.ticks.first_entry()?;
            let (tick, db) = *first.key();
            if let Some(key) = next_key(first.get_mut()) {
                return Some(Due { filed: Filed::in_tick(tick), db: look_up(&self.number_now, db), key });
            }
            first.remove();
        }
        None
    }

    /// Swaps two databases, as SWAPDB does. No entry is touched: entries name databases as they were numbered first.
    pub fn swap(&mut self, one: u32, other: u32) {
        let (first, second) = (look_up(&self.first_number, one), look_up(&self.first_number, other));
        self.first_number.insert(one, second);
        self.first_number.insert(other, first);
        self.number_now.insert(first, other);
        self.number_now.insert(second, one);
    }
}

fn look_up(renumbered: &BTreeMap<u32, u32>, db: u32) -> u32 {
    renumbered.get(&db).copied().unwrap_or(db)
}

fn next_key(chunks: &mut Vec<Chunk>) -> Option<Vec<u8>> {
    loop {
        if let Some(key) = chunks.last_mut()?.next() {
            return Some(key);
        }
        chunks.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Instant {
        Instant::from_micros(0).plus_ms(ms)
    }

    #[test]
    fn every_key_comes_out_once_and_not_before_its_time() {
        let mut wheel = Wheel::default();
        for n in 0..10_000_u32 {
            wheel.file(n % 3, &n.to_le_bytes(), ms(u64::from(n % 7) * 1000));
        }
        let mut seen = Vec::new();
        for second in 0..8 {
            while let Some(due) = wheel.take_due(ms(second * 1000 + 500)) {
                let n = u32::from_le_bytes(due.key.as_slice().try_into().unwrap());
                assert_eq!(due.db, n % 3);
                assert!(u64::from(n % 7) <= second, "{n} came out at {second} s");
                seen.push(n);
            }
        }
        seen.sort_unstable();
        assert!(seen.iter().copied().eq(0..10_000));
        assert_eq!(wheel.next_due(), None);
    }

    #[test]
    fn swapped_databases() {
        let mut wheel = Wheel::default();
        wheel.file(0, b"a", ms(1));
        wheel.file(1, b"b", ms(1));
        wheel.file(2, b"c", ms(1));
        wheel.swap(0, 1);
        let mut out: Vec<(u32, Vec<u8>)> =
            core::iter::from_fn(|| wheel.take_due(ms(1000))).map(|d| (d.db, d.key)).collect();
        out.sort();
        assert_eq!(out, [(0, b"b".to_vec()), (1, b"a".to_vec()), (2, b"c".to_vec())]);
    }

    #[test]
    fn names_that_begin_alike_take_few_bytes() {
        let mut wheel = Wheel::default();
        let names: Vec<Vec<u8>> =
            (0..100_u32).map(|n| alloc::format!("lock:{{order:{n:010}}}").into_bytes()).collect();
        for name in names.iter().chain([&Vec::new(), &b"lock:{order:".to_vec(), &alloc::vec![b'x'; 70_000]]) {
            wheel.file(0, name, ms(1));
        }
        let bytes: usize = wheel.ticks.values().flatten().take(1).map(|chunk| chunk.bytes.len()).sum();
        assert!(bytes < 600, "{bytes} bytes for {} of {}", names.len(), names[0].len());
        let mut out: Vec<Vec<u8>> =
            core::iter::from_fn(|| wheel.take_due(ms(1000))).map(|due| due.key).collect();
        out.sort();
        assert_eq!(out[0], b"");
        assert_eq!(out[1], b"lock:{order:");
        assert_eq!(out[2..102], names);
        assert_eq!(out[102].len(), 70_000);
    }

    #[test]
    fn a_long_name_that_is_filed_again_and_again_takes_few_bytes() {
        for len in [1_500, 3_000, 65_536] {
            let mut wheel = Wheel::default();
            let name = alloc::vec![b'x'; len];
            for _ in 0..1_000 {
                wheel.file(0, &name, ms(1));
            }
            let bytes: usize = wheel.ticks.values().flatten().map(|chunk| chunk.bytes.capacity()).sum();
            assert!(bytes < 4 * len + 40_000, "{bytes} bytes for 1,000 times {len}");
            let due = core::iter::from_fn(|| wheel.take_due(ms(1000)));
            assert_eq!(due.filter(|due| due.key == name).count(), 1_000);
        }
    }

    #[test]
    fn what_is_due_sooner_is_filed_again() {
        let mut wheel = Wheel::default();
        for now in [0, 8_589_000, 1 << 38] {
            let filed = wheel.file(0, b"a", ms(now + 60_000));
            assert!(filed.is_later_than(ms(now + 59_000)));
            assert!(!filed.is_later_than(ms(now + 60_000)));
            assert!(!filed.is_later_than(ms(now + 61_000)));
        }
    }
}
