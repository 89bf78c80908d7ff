//! When to look at a record that may be idle: a calendar of keys in coarse ticks, a few bytes a key.
//!
//! An entry is a hint. Whoever takes it out compares [`Due::tick`] with what the record says of itself, so that an
//! entry whose record has gone, moved or been filed again counts for nothing. Nothing is ever searched or removed
//! early, which makes filing O(1) and keeps a million held locks cheap.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::clock::Instant;
use crate::codec::{Reader, put_bytes, put_number};

/// A tick is 2^17 µs, about 131 ms: 32 bits of them last for 17 years after the clock began.
const TICK_BITS: u32 = 17;
/// Chunks grow to this many bytes and then another is begun: no large copies, little slack.
const CHUNK_BYTES: usize = 4096;

/// The tick in which an entry is filed. 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tick(u32);

/// A key whose time has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// Where it was filed.
    pub tick: Tick,
    /// The database.
    pub db: u32,
    /// The key's name.
    pub key: Vec<u8>,
}

#[derive(Debug, Default)]
struct Chunk {
    bytes: Vec<u8>,
    read: usize,
}

/// The calendar.
#[derive(Debug, Default)]
pub struct Wheel {
    ticks: BTreeMap<Tick, Vec<Chunk>>,
    /// For a database that SWAPDB renumbered: the number under which entries know it.
    first_number: BTreeMap<u32, u32>,
    /// The other way round.
    number_now: BTreeMap<u32, u32>,
}

impl Wheel {
    /// The tick in which a key is filed that is due then.
    #[must_use]
    pub fn tick_of(due: Instant) -> Tick {
        let number = due.micros().max(0) >> TICK_BITS;
        Tick(u32::try_from(number).unwrap_or(u32::MAX).saturating_add(1))
    }

    /// Files a key to be looked at soon after `due`.
    pub fn file(&mut self, db: u32, key: &[u8], due: Instant) -> Tick {
        let tick = Self::tick_of(due);
        let chunks = self.ticks.entry(tick).or_default();
        let fits = |chunk: &Chunk| chunk.bytes.len().saturating_add(key.len()) < CHUNK_BYTES;
        if !chunks.last().is_some_and(fits) {
            let full_ones_before = !chunks.is_empty();
            let capacity = if full_ones_before { CHUNK_BYTES } else { 0 };
            chunks.push(Chunk { bytes: Vec::with_capacity(capacity), read: 0 });
        }
        if let Some(chunk) = chunks.last_mut() {
            put_number(&mut chunk.bytes, u64::from(look_up(&self.first_number, db)));
            put_bytes(&mut chunk.bytes, key);
        }
        tick
    }

    /// The earliest moment at which something is due.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        let (tick, _) = self.ticks.first_key_value()?;
        Some(Instant::from_micros(i64::from(tick.0) << TICK_BITS))
    }

    /// Takes out the next key that is due at `now`.
    pub fn take_due(&mut self, now: Instant) -> Option<Due> {
        while self.next_due().is_some_and(|due| due <= now) {
            let mut first = self.ticks.first_entry()?;
            let tick = *first.key();
            if let Some((db, key)) = next_entry(first.get_mut()) {
                return Some(Due { tick, db: look_up(&self.number_now, db), key });
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

fn next_entry(chunks: &mut Vec<Chunk>) -> Option<(u32, Vec<u8>)> {
    while let Some(chunk) = chunks.last_mut() {
        let mut reader = Reader::new(chunk.bytes.get(chunk.read..).unwrap_or_default());
        let entry = reader.number().and_then(|db| Ok((db, reader.bytes(usize::MAX)?)));
        if let Ok((db, key)) = entry {
            let found = (u32::try_from(db).unwrap_or(u32::MAX), key.to_vec());
            chunk.read = chunk.bytes.len().saturating_sub(reader.left());
            return Some(found);
        }
        chunks.pop();
    }
    None
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
}
