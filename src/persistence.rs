//! RDB files, DUMP payloads and the rewritten AOF. The formats are the core's ([`lockfence_core::codec`]).
//!
//! Whatever is read may come from an attacker (RESTORE): it is decoded totally, and refused whole.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use lockfence_core::codec::{self, Corrupt, Log, Marks};
use redis_module::raw;

use crate::boundary::guard;
use crate::clock;
use crate::key_type::{FenceRecord, LockRecord};
use crate::log::{self, About};
use crate::server::{EFFECT, Name, api};
use crate::state;

const VERSION: c_int = codec::VERSION as c_int;

pub(crate) unsafe extern "C" fn save_lock(io: *mut raw::RedisModuleIO, value: *mut c_void) {
    // SAFETY: the server passes a value of this type.
    guard(|| unsafe {
        let mut out = Vec::new();
        codec::write_lock(&mut out, &(*value.cast::<LockRecord>()).lock, clock::now());
        save(io, &out);
    });
}

pub(crate) unsafe extern "C" fn save_fence(io: *mut raw::RedisModuleIO, value: *mut c_void) {
    // SAFETY: the server passes a value of this type.
    guard(|| unsafe {
        let mut out = Vec::new();
        codec::write_fence(&mut out, (*value.cast::<FenceRecord>()).fence);
        save(io, &out);
    });
}

pub(crate) unsafe extern "C" fn load_lock(io: *mut raw::RedisModuleIO, version: c_int) -> *mut c_void {
    let read = |bytes: &[u8]| {
        let now = clock::now();
        let lock = codec::read_lock(bytes, now)?;
        // SAFETY: the server gives the name of the key that it loads, or none.
        let place = unsafe { place_of(io) };
        let mut record = LockRecord { lock };
        state::with(|state| {
            // A record is read before it takes its place: what is known to have been deleted was deleted earlier.
            state.unlinked.clear();
            state.issuer.loaded(record.lock.counter(), now);
            if let Some((db, key)) = place {
                state.file(db, key, &mut record, now);
            }
        });
        Ok(record)
    };
    // SAFETY: `io` is what the server passed.
    unsafe { load(io, version, read) }
}

pub(crate) unsafe extern "C" fn load_fence(io: *mut raw::RedisModuleIO, version: c_int) -> *mut c_void {
    // SAFETY: `io` is what the server passed.
    unsafe { load(io, version, |bytes| Ok(FenceRecord { fence: codec::read_fence(bytes)? })) }
}

pub(crate) unsafe extern "C" fn rewrite_lock(
    io: *mut raw::RedisModuleIO,
    key: *mut raw::RedisModuleString,
    value: *mut c_void,
) {
    // SAFETY: the server passes a value of this type.
    guard(|| unsafe {
        let lock = &(*value.cast::<LockRecord>()).lock;
        let mut log = Log::default();
        if first_of_this_rewrite() {
            log.push_floor(state::with(|state| state.issuer.floor()));
        }
        log.push_snapshot(lock, clock::now());
        emit(io, key, &log);
    });
}

/// A rewritten AOF without an RDB preamble has no aux part: its first lock carries the floor. Each rewrite runs in a
/// process of its own.
fn first_of_this_rewrite() -> bool {
    static REWRITER: AtomicU32 = AtomicU32::new(0);
    let this = std::process::id();
    REWRITER.swap(this, Ordering::Relaxed) != this
}

pub(crate) unsafe extern "C" fn rewrite_fence(
    io: *mut raw::RedisModuleIO,
    key: *mut raw::RedisModuleString,
    value: *mut c_void,
) {
    // SAFETY: the server passes a value of this type.
    guard(|| unsafe {
        let token = (*value.cast::<FenceRecord>()).fence.counter();
        let mut log = Log::default();
        // The server itself adds when the key goes.
        log.push_fence(Marks { token, expires_at_ms: None });
        emit(io, key, &log);
    });
}

/// Aux data: what the server knows of tokens beyond the records. Servers before 7.2 always write it.
pub(crate) unsafe extern "C" fn save_aux(io: *mut raw::RedisModuleIO, _when: c_int) {
    // SAFETY: `io` is what the server passed.
    guard(|| unsafe { save(io, &aux_data()) });
}

/// As [`save_aux`], but nothing when there is nothing to say: then the file can be read without the module.
pub(crate) unsafe extern "C" fn save_aux_if_needed(io: *mut raw::RedisModuleIO, _when: c_int) {
    guard(|| {
        if state::with(|state| state.issuer.high()) > 0 {
            // SAFETY: `io` is what the server passed.
            unsafe { save(io, &aux_data()) };
        }
    });
}

fn aux_data() -> Vec<u8> {
    let mut out = Vec::new();
    state::with(|state| codec::write_issuer(&mut out, &state.issuer));
    out
}

pub(crate) unsafe extern "C" fn load_aux(io: *mut raw::RedisModuleIO, version: c_int, _when: c_int) -> c_int {
    let read = |bytes: &[u8]| {
        let (high, floor) = codec::read_issuer(bytes)?;
        state::with(|state| state.issuer.restored(high, floor, clock::now()));
        Ok(())
    };
    // SAFETY: `io` is what the server passed.
    let loaded = guard(|| unsafe { read_with(io, version, read) }).flatten();
    if loaded.is_some() { raw::REDISMODULE_OK as c_int } else { raw::REDISMODULE_ERR as c_int }
}

unsafe fn save(io: *mut raw::RedisModuleIO, bytes: &[u8]) {
    // SAFETY: the server copies the bytes.
    unsafe { api!(RedisModule_SaveStringBuffer(io, bytes.as_ptr().cast::<c_char>(), bytes.len())) };
}

unsafe fn emit(io: *mut raw::RedisModuleIO, key: *mut raw::RedisModuleString, log: &Log) {
    let bytes = log.bytes();
    let start = bytes.as_ptr().cast::<c_char>();
    // SAFETY: the format says a string object and a buffer with its length; both live through the call.
    unsafe {
        api!(RedisModule_EmitAOF(io, EFFECT.as_ptr(), c"sb".as_ptr(), key, start, bytes.len()));
    }
}

unsafe fn load<T>(
    io: *mut raw::RedisModuleIO,
    version: c_int,
    read: impl FnOnce(&[u8]) -> Result<T, Corrupt>,
) -> *mut c_void {
    // SAFETY: `io` is what the server passed.
    let loaded = guard(|| unsafe { read_with(io, version, read) }).flatten();
    loaded.map_or(std::ptr::null_mut(), |value| Box::into_raw(Box::new(value)).cast())
}

/// Reads the one byte string of a value. `None` after a short read, or when the bytes are not what they should be:
/// then the log says so.
unsafe fn read_with<T>(
    io: *mut raw::RedisModuleIO,
    version: c_int,
    read: impl FnOnce(&[u8]) -> Result<T, Corrupt>,
) -> Option<T> {
    if version > VERSION {
        let version = u8::try_from(version).unwrap_or(u8::MAX);
        complain(Corrupt::Version(version));
        return None;
    }
    let mut len = 0;
    // SAFETY: the buffer is the module's from here on, and freed by it; it holds `len` bytes.
    unsafe {
        let start = api!(RedisModule_LoadStringBuffer(io, &raw mut len));
        if start.is_null() {
            return None;
        }
        let result = if api!(RedisModule_IsIOError(io)) == 0 {
            Some(read(std::slice::from_raw_parts(start.cast::<u8>(), len)))
        } else {
            None
        };
        api!(RedisModule_Free(start.cast()));
        match result? {
            Ok(value) => Some(value),
            Err(corrupt) => {
                complain(corrupt);
                None
            }
        }
    }
}

fn complain(corrupt: Corrupt) {
    log::write(About::Unreadable, &format!("a record cannot be read: {corrupt}"));
}

unsafe fn place_of<'a>(io: *mut raw::RedisModuleIO) -> Option<(u32, &'a [u8])> {
    // SAFETY: the server returns the name of the key that it loads, which lives through the callback, or null.
    unsafe {
        let name = api!(RedisModule_GetKeyNameFromIO(io));
        if name.is_null() {
            return None;
        }
        let db = u32::try_from(api!(RedisModule_GetDbIdFromIO(io))).ok()?;
        Some((db, Name::new(name.cast_mut()).bytes()))
    }
}
