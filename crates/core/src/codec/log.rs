//! What one command did to one key, as replicas and the AOF get it: a version byte, then each change in order.

use alloc::vec::Vec;

use super::name::{put_name, read_name};
use super::record::{
    lease_until, put_lease, put_mode, read_lease, read_length, read_lock_from, read_mode, read_past,
    write_lock,
};
use super::{Corrupt, Reader, put_floor, put_number, read_floor};
use crate::clock::{Instant, Now, Wall};
use crate::event::{Event, Lease};
use crate::limits;
use crate::lock::Lock;
use crate::owner::padded;
use crate::token::Floor;

// 1 to 3 have had another form.
const BROKEN: u8 = 4;
const SNAPSHOT: u8 = 5;
const FENCE: u8 = 6;
const FLOOR: u8 = 7;
const GRANTED: u8 = 8;
const EXTENDED: u8 = 9;
const ENDED: u8 = 10;
const BROKEN_UP_TO: u8 = 11;

/// A log with one change is seldom longer than this.
const USUAL_BYTES: usize = 96;

/// One change out of a log.
#[derive(Clone, Debug, PartialEq)]
pub enum Change<'a> {
    /// To a lock.
    Lock(Event<'a>),
    /// The whole record of a lock, which takes the place of what is known of it.
    Snapshot(Lock),
    /// To a fence.
    Fence(Marks),
    /// The primary's restart floor, which the server that takes over must stay above.
    Floor(Floor),
}

/// What a fence is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// The token seen.
    pub token: u64,
    /// When the key goes by itself, ms since 1970; `None` leaves what is set.
    pub expires_at_ms: Option<u64>,
}

/// Takes down what happens to one key during one command.
#[derive(Clone, Debug, Default)]
pub struct Log {
    bytes: Vec<u8>,
}

impl Log {
    /// Whether nothing happened.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The log as it is sent and stored; empty when nothing happened.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// An empty log that uses the memory of this one, if that is no more than most need.
    #[must_use]
    pub fn emptied(mut self) -> Self {
        self.bytes.clear();
        self.bytes.shrink_to(USUAL_BYTES);
        self
    }

    fn begin(&mut self, tag: u8) -> &mut Vec<u8> {
        if self.bytes.is_empty() {
            self.bytes.reserve(USUAL_BYTES);
            self.bytes.push(super::VERSION);
        }
        self.bytes.push(tag);
        &mut self.bytes
    }

    /// Takes down a change of a lock.
    pub fn push(&mut self, event: &Event<'_>, now: Now) {
        match *event {
            Event::Granted { owner, token, mode, at, lease } => {
                let out = self.begin(GRANTED);
                put_name(out, owner);
                put_token(out, token);
                put_mode(out, mode);
                put_term(out, token, at, lease, now);
            }
            Event::Extended { owner, token, lease } => {
                let out = self.begin(EXTENDED);
                put_name(out, owner);
                put_token(out, token);
                put_lease(out, lease, now);
            }
            Event::Ended { owner, at } => {
                let out = self.begin(ENDED);
                put_name(out, owner);
                put_number(out, now.wall_of(at).micros());
            }
            Event::BrokenUpTo { max, at } => {
                let out = self.begin(BROKEN_UP_TO);
                put_number(out, max);
                put_number(out, now.wall_of(at).micros());
            }
            Event::Broken { counter, at } => {
                let out = self.begin(BROKEN);
                put_number(out, counter);
                put_number(out, now.wall_of(at).micros());
            }
        }
    }

    /// Takes down all that there is to a lock.
    pub fn push_snapshot(&mut self, lock: &Lock, now: Now) {
        write_lock(self.begin(SNAPSHOT), lock, now);
    }

    /// Takes down what a fence was told.
    pub fn push_fence(&mut self, marks: Marks) {
        let out = self.begin(FENCE);
        put_number(out, marks.token);
        put_number(out, marks.expires_at_ms.unwrap_or(0));
    }

    /// Takes down the restart floor.
    pub fn push_floor(&mut self, floor: Floor) {
        put_floor(self.begin(FLOOR), floor);
    }
}

/// Reads a log, whole or not at all.
///
/// # Errors
/// Anything that [`Log`] could not have written.
pub fn read_log(bytes: &[u8], now: Now) -> Result<Vec<Change<'_>>, Corrupt> {
    let mut reader = Reader::new(bytes);
    reader.version()?;
    let mut changes = Vec::new();
    while reader.left() > 0 {
        changes.push(read_change(&mut reader, now)?);
    }
    Ok(changes)
}

fn read_change<'a>(reader: &mut Reader<'a>, now: Now) -> Result<Change<'a>, Corrupt> {
    let token = |reader: &mut Reader<'a>| reader.number_in("token", 1, limits::TOKEN_MAX);
    Ok(match reader.byte()? {
        GRANTED => {
            let owner = read_name(reader)?;
            let (token, mode) = (read_token(reader)?, read_mode(reader)?);
            let (at, lease) = read_term(reader, token, now)?;
            Change::Lock(Event::Granted { owner, token, mode, at, lease })
        }
        EXTENDED => Change::Lock(Event::Extended {
            owner: read_name(reader)?,
            token: read_token(reader)?,
            lease: read_lease(reader, now)?,
        }),
        ENDED => Change::Lock(Event::Ended { owner: read_name(reader)?, at: read_past(reader, now)? }),
        BROKEN_UP_TO => Change::Lock(Event::BrokenUpTo { max: token(reader)?, at: read_past(reader, now)? }),
        BROKEN => Change::Lock(Event::Broken { counter: token(reader)?, at: read_past(reader, now)? }),
        SNAPSHOT => Change::Snapshot(read_lock_from(reader, now)?),
        FENCE => Change::Fence(Marks {
            token: token(reader)?,
            expires_at_ms: Some(reader.number()?).filter(|at| *at > 0),
        }),
        FLOOR => Change::Floor(read_floor(reader)?),
        _ => return Err(Corrupt::OutOfBounds("change")),
    })
}

/// Bytes of a holder's token: enough for the highest, and no more than a number takes that is a time of this century.
const TOKEN_BYTES: usize = 7;
const _: () = assert!(limits::TOKEN_MAX < 1 << (8 * TOKEN_BYTES));

fn put_token(out: &mut Vec<u8>, token: u64) {
    let [bytes @ .., _] = token.to_le_bytes();
    out.extend_from_slice(&bytes);
}

fn read_token(reader: &mut Reader<'_>) -> Result<u64, Corrupt> {
    let token = u64::from_le_bytes(padded(reader.take(TOKEN_BYTES)?));
    if (1..=limits::TOKEN_MAX).contains(&token) { Ok(token) } else { Err(Corrupt::OutOfBounds("token")) }
}

/// Stands for the end of a lease that is as long as it was granted for, from its grant on. (A lease that is over has
/// 0, and none ended a microsecond after 1970 began.)
const IN_FULL: u64 = 1;

/// When a grant was made and its lease. A token is mostly the time of its grant, so that is written as what it differs.
fn put_term(out: &mut Vec<u8>, token: u64, at: Instant, lease: Lease, now: Now) {
    let began = now.wall_of(at);
    put_number(out, zigzag(began.micros().wrapping_sub(token)));
    let in_full = began.plus_ms(lease.length_ms) == now.wall_of(lease.ends) && lease.ends > now.mono;
    if in_full {
        put_number(out, IN_FULL);
        put_number(out, lease.length_ms);
    } else {
        put_lease(out, lease, now);
    }
}

fn read_term(reader: &mut Reader<'_>, token: u64, now: Now) -> Result<(Instant, Lease), Corrupt> {
    let began = Wall::from_micros(token.wrapping_add(unzigzag(reader.number()?)));
    let (ends, length_ms) = (reader.number()?, read_length(reader)?);
    let ends = if ends == IN_FULL { began.plus_ms(length_ms) } else { Wall::from_micros(ends) };
    Ok((now.past(began), lease_until(ends, length_ms, now)))
}

/// A difference in either direction, as a number that is small where it is.
const fn zigzag(difference: u64) -> u64 {
    (difference << 1) ^ (difference.cast_signed() >> 63).cast_unsigned()
}

const fn unzigzag(number: u64) -> u64 {
    (number >> 1) ^ (number & 1).wrapping_neg()
}
