//! A whole record: the value of a key in an RDB file, in a DUMP payload and in a rewritten AOF.

use alloc::vec::Vec;

use super::{Corrupt, Reader, put_bytes, put_number};
use crate::clock::{Instant, Now, Wall};
use crate::event::Lease;
use crate::fence::Fence;
use crate::holders::{Full, Holders, over_by};
use crate::ids::{Mode, Token};
use crate::limits;
use crate::lock::{Holder, Lock};
use crate::owner::OwnerName;
use crate::planted::{self, Bug};
use crate::token::{Floor, Issuer};

const EXCLUSIVE: u8 = 0;
const SHARED: u8 = 1;
const LIMIT: u8 = 2;

/// Appends a lock's record, version byte first. Times are written by the wall clock: `now` translates.
pub fn write_lock(out: &mut Vec<u8>, lock: &Lock, now: Now) {
    out.push(super::VERSION);
    put_number(out, lock.counter());
    put_number(out, lock.grants());
    put_number(out, now.wall_of(lock.last_end()).micros());
    put_number(out, u64::try_from(lock.holder_count()).unwrap_or(u64::MAX));
    for holder in lock.holders() {
        put_bytes(out, &holder.owner.bytes());
        put_number(out, holder.token);
        put_mode(out, holder.mode);
        put_number(out, now.wall_of(holder.since).micros());
        put_lease(out, holder.lease, now);
    }
}

/// Reads a lock's record. Leases go on with what is left of them by the wall clock in `now`.
///
/// # Errors
/// Anything that [`write_lock`] could not have written.
pub fn read_lock(bytes: &[u8], now: Now) -> Result<Lock, Corrupt> {
    let mut reader = Reader::new(bytes);
    let lock = read_lock_from(&mut reader, now)?;
    reader.end()?;
    Ok(lock)
}

pub(super) fn read_lock_from(reader: &mut Reader<'_>, now: Now) -> Result<Lock, Corrupt> {
    reader.version()?;
    let counter = reader.number_in("counter", 1, limits::TOKEN_MAX)?;
    let grants = reader.number()?;
    let free_since = now.past(Wall::from_micros(reader.number()?));
    let holders = Holders::of(read_holders(reader, counter, now)?, counter, free_since);
    let holders = holders.ok_or(Corrupt::Twice)?;
    Ok(Lock::from_parts(counter, grants, holders))
}

/// Holders of one lock hold it in one mode; each LIMIT has an n of its own. Memory grows with what is there, not with the
/// number that is claimed.
fn read_holders(reader: &mut Reader<'_>, counter: u64, now: Now) -> Result<Vec<Full>, Corrupt> {
    let count = reader.number_in("number of holders", 0, u64::from(u32::MAX))?;
    let mut holders: Vec<Full> = Vec::new();
    for _ in 0..count {
        let owner = OwnerName::new(read_owner(reader)?);
        let token = reader.number_in("token", 1, counter)?;
        let mode = read_mode(reader)?;
        if holders.last().is_some_and(|other| mode == Mode::Exclusive || !other.mode.same_kind(mode)) {
            return Err(Corrupt::OutOfBounds("mode"));
        }
        let since = read_past(reader, now)?;
        let lease = read_lease(reader, now)?;
        holders.push(Full::new(Holder { owner, token, mode, since, lease }));
    }
    Ok(holders)
}

pub(super) fn put_mode(out: &mut Vec<u8>, mode: Mode) {
    match mode {
        Mode::Exclusive => out.push(EXCLUSIVE),
        Mode::Shared => out.push(SHARED),
        Mode::Limit(n) => {
            out.push(LIMIT);
            put_number(out, u64::from(n));
        }
    }
}

pub(super) fn read_mode(reader: &mut Reader<'_>) -> Result<Mode, Corrupt> {
    match reader.byte()? {
        EXCLUSIVE => Ok(Mode::Exclusive),
        SHARED => Ok(Mode::Shared),
        LIMIT => {
            let n = reader.number_in("limit", 1, u64::from(limits::HOLDERS_MAX))?;
            Ok(Mode::Limit(u32::try_from(n).unwrap_or(limits::HOLDERS_MAX)))
        }
        _ => Err(Corrupt::OutOfBounds("mode")),
    }
}

fn read_owner<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], Corrupt> {
    let owner = reader.bytes(limits::OWNER_BYTES_MAX)?;
    if owner.is_empty() { Err(Corrupt::OutOfBounds("owner")) } else { Ok(owner) }
}

/// A lease that is over is written as one that ended in 1970: whoever reads it, by whatever wall clock, is to find it over
/// (guarantee G3).
pub(super) fn put_lease(out: &mut Vec<u8>, lease: Lease, now: Now) {
    let over = lease.ends <= over_by(now.mono);
    put_number(out, if over { 0 } else { now.wall_of(lease.ends).micros() });
    put_number(out, lease.length_ms);
}

pub(super) fn read_lease(reader: &mut Reader<'_>, now: Now) -> Result<Lease, Corrupt> {
    let ends = Wall::from_micros(reader.number()?);
    Ok(lease_until(ends, read_length(reader)?, now))
}

pub(super) fn read_length(reader: &mut Reader<'_>) -> Result<u64, Corrupt> {
    reader.number_in("lease", 1, limits::TTL_MS_MAX)
}

/// The lease that was written as its end by the wall clock and its granted length.
pub(super) fn lease_until(ends: Wall, length_ms: u64, now: Now) -> Lease {
    let ends = if planted::is(Bug::RelativeLease) {
        now.mono.plus_ms(length_ms)
    } else {
        now.lease_end(ends, length_ms)
    };
    Lease { ends, length_ms }
}

pub(super) fn read_past(reader: &mut Reader<'_>, now: Now) -> Result<Instant, Corrupt> {
    Ok(now.past(Wall::from_micros(reader.number()?)))
}

/// Appends a fence's record, version byte first.
pub fn write_fence(out: &mut Vec<u8>, fence: Fence) {
    out.push(super::VERSION);
    put_number(out, fence.counter());
}

/// Reads a fence's record.
///
/// # Errors
/// Anything that [`write_fence`] could not have written.
pub fn read_fence(bytes: &[u8]) -> Result<Fence, Corrupt> {
    let mut reader = Reader::new(bytes);
    reader.version()?;
    let token = Token::new(reader.number()?).ok_or(Corrupt::OutOfBounds("counter"))?;
    reader.end()?;
    Ok(Fence::new(token))
}

pub(super) fn put_floor(out: &mut Vec<u8>, floor: Floor) {
    put_number(out, floor.token);
    put_number(out, floor.raised_at);
}

pub(super) fn read_floor(reader: &mut Reader<'_>) -> Result<Floor, Corrupt> {
    let token = reader.number_in("floor", 0, limits::TOKEN_MAX)?;
    Ok(Floor { token, raised_at: reader.number()? })
}

/// Appends what a server knows of tokens beyond its records: the aux part of an RDB file.
pub fn write_issuer(out: &mut Vec<u8>, issuer: &Issuer) {
    out.push(super::VERSION);
    put_number(out, issuer.high());
    put_floor(out, issuer.floor());
}

/// Reads what [`write_issuer`] wrote: the highest token and the floor.
///
/// # Errors
/// Anything that [`write_issuer`] could not have written.
pub fn read_issuer(bytes: &[u8]) -> Result<(u64, Floor), Corrupt> {
    let mut reader = Reader::new(bytes);
    reader.version()?;
    let high = reader.number_in("token", 0, limits::TOKEN_MAX)?;
    let floor = read_floor(&mut reader)?;
    reader.end()?;
    Ok((high, floor))
}
