//! The two data types: `lockfence`, a lock, and `fencemark`, a fence.
//!
//! A value is plain data that owns its memory. The server may free it on another thread, so [`free_lock`] and
//! [`free_fence`] touch nothing else; what must be told of a deletion is told by [`unlink_lock`], on the main thread.

use std::ffi::{c_char, c_int, c_void};

use lockfence_core::fence::Fence;
use lockfence_core::ids::Mode;
use lockfence_core::lock::Lock;
use redis_module::raw;

use crate::boundary::guard;
use crate::server::{CommandTime, Ctx, Kinds, Name, api, forget_after_this_turn};
use crate::state::{self, Unlinked};
use crate::{persistence, waiters};

/// The name of the data type of a lock, nine characters as the server wants it.
const LOCK_TYPE: &std::ffi::CStr = c"lockfence";
/// The name of the data type of a fence.
const FENCE_TYPE: &std::ffi::CStr = c"fencemark";

/// A lock's value.
#[derive(Debug, Default)]
pub(crate) struct LockRecord {
    pub(crate) lock: Lock,
}

/// A fence's value.
#[derive(Debug)]
pub(crate) struct FenceRecord {
    pub(crate) fence: Fence,
}

/// Registers both types.
pub(crate) fn register(ctx: Ctx) -> Option<Kinds> {
    let mut lock = methods();
    lock.rdb_load = Some(persistence::load_lock);
    lock.rdb_save = Some(persistence::save_lock);
    lock.aof_rewrite = Some(persistence::rewrite_lock);
    lock.digest = Some(digest_lock);
    lock.free = Some(free_lock);
    lock.free_effort = Some(lock_free_effort);
    lock.unlink2 = Some(unlink_lock);
    lock.mem_usage2 = Some(lock_memory);
    lock.defrag = Some(defrag_lock);
    lock.aux_load = Some(persistence::load_aux);
    lock.aux_save = Some(persistence::save_aux);
    lock.aux_save2 = Some(persistence::save_aux_if_needed);
    lock.aux_save_triggers = raw::REDISMODULE_AUX_BEFORE_RDB as c_int;
    let mut fence = methods();
    fence.rdb_load = Some(persistence::load_fence);
    fence.rdb_save = Some(persistence::save_fence);
    fence.aof_rewrite = Some(persistence::rewrite_fence);
    fence.digest = Some(digest_fence);
    fence.free = Some(free_fence);
    fence.mem_usage2 = Some(fence_memory);
    fence.defrag = Some(defrag_value);
    let version = c_int::from(lockfence_core::codec::VERSION);
    let create = |name: &std::ffi::CStr, methods: &mut raw::RedisModuleTypeMethods| {
        // SAFETY: the server copies the methods; the name has nine characters.
        unsafe { api!(RedisModule_CreateDataType(ctx.raw(), name.as_ptr(), version, &raw mut *methods)) }
    };
    let kinds = Kinds { lock: create(LOCK_TYPE, &mut lock), fence: create(FENCE_TYPE, &mut fence) };
    (!kinds.lock.is_null() && !kinds.fence.is_null()).then_some(kinds)
}

/// No methods but one that refuses COPY: a second lock with the same token and owner must not come about.
fn methods() -> raw::RedisModuleTypeMethods {
    // SAFETY: the structure holds numbers and optional functions; all zeros is "none of them".
    let mut methods: raw::RedisModuleTypeMethods = unsafe { std::mem::zeroed() };
    methods.version = u64::from(raw::REDISMODULE_TYPE_METHOD_VERSION);
    methods.copy2 = Some(refuse_copy);
    methods
}

unsafe extern "C" fn refuse_copy(_ctx: *mut raw::RedisModuleKeyOptCtx, _value: *const c_void) -> *mut c_void {
    std::ptr::null_mut()
}

unsafe extern "C" fn free_lock(value: *mut c_void) {
    // SAFETY: the server frees each value once; it was boxed by this module.
    guard(|| drop(unsafe { Box::from_raw(value.cast::<LockRecord>()) }));
}

/// A lock with many holders is freed in the background, as any large value, where the server is asked to.
unsafe extern "C" fn lock_free_effort(_key: *mut raw::RedisModuleString, value: *const c_void) -> usize {
    // SAFETY: the server passes a value of this type.
    unsafe { &*value.cast::<LockRecord>() }.lock.holder_count().max(1)
}

unsafe extern "C" fn free_fence(value: *mut c_void) {
    // SAFETY: as above.
    guard(|| drop(unsafe { Box::from_raw(value.cast::<FenceRecord>()) }));
}

/// A lock's key goes, in whatever way but a flush: those who wait for it are told, and its counter is remembered for a
/// record that arrives in its place.
unsafe extern "C" fn unlink_lock(ctx: *mut raw::RedisModuleKeyOptCtx, value: *const c_void) {
    // SAFETY: the server passes the key's name, which lives through the callback, and a value of this type.
    guard(|| unsafe {
        let name = Name::new(api!(RedisModule_GetKeyNameFromOptCtx(ctx)).cast_mut());
        let db = u32::try_from(api!(RedisModule_GetDbIdFromOptCtx(ctx))).unwrap_or(0);
        let record = &*value.cast::<LockRecord>();
        let key = name.bytes();
        waiters::lose_key(db, key);
        let at = CommandTime::now();
        let unlinked = Unlinked { at, db, key: key.to_vec(), past: record.lock.past() };
        let first = state::with(|state| {
            state.remember_unlinked(unlinked);
            state.unlinked.len() == 1
        });
        if first && !at.is_exact() {
            forget_after_this_turn();
        }
    });
}

unsafe extern "C" fn lock_memory(
    _ctx: *mut raw::RedisModuleKeyOptCtx,
    value: *const c_void,
    _samples: usize,
) -> usize {
    // SAFETY: the server passes a value of this type.
    let record = unsafe { &*value.cast::<LockRecord>() };
    size_of::<LockRecord>().saturating_add(record.lock.heap_bytes())
}

unsafe extern "C" fn fence_memory(
    _ctx: *mut raw::RedisModuleKeyOptCtx,
    _value: *const c_void,
    _samples: usize,
) -> usize {
    size_of::<FenceRecord>()
}

/// Moves a lock, and a long name of its holder, out of fragmented pages.
unsafe extern "C" fn defrag_lock(
    ctx: *mut raw::RedisModuleDefragCtx,
    key: *mut raw::RedisModuleString,
    value: *mut *mut c_void,
) -> c_int {
    // SAFETY: the server passes a live value of this type.
    let moved = guard(|| unsafe {
        if let Some(name) = (**value.cast::<*mut LockRecord>()).lock.long_name_mut() {
            let len = name.len();
            let mut bytes = Box::into_raw(std::mem::take(name)).cast::<c_void>();
            defrag_value(ctx, key, &raw mut bytes);
            *name = Box::from_raw(std::ptr::slice_from_raw_parts_mut(bytes.cast::<u8>(), len));
        }
    });
    // SAFETY: as above.
    if moved.is_some() { unsafe { defrag_value(ctx, key, value) } } else { 0 }
}

/// Moves a value out of a fragmented page. Nothing else points at it: everything finds records by their key.
unsafe extern "C" fn defrag_value(
    ctx: *mut raw::RedisModuleDefragCtx,
    _key: *mut raw::RedisModuleString,
    value: *mut *mut c_void,
) -> c_int {
    // SAFETY: the server passes a live value; it copies the bytes and frees the old place when it moves it.
    unsafe {
        let moved = api!(RedisModule_DefragAlloc(ctx, *value));
        if !moved.is_null() {
            *value = moved;
        }
    }
    0
}

/// What DEBUG DIGEST compares between a primary and its replicas: all but points in time, which each server counts on
/// a clock of its own.
unsafe extern "C" fn digest_lock(md: *mut raw::RedisModuleDigest, value: *mut c_void) {
    // SAFETY: the server passes a value of this type, and a digest to add to; buffers are copied.
    unsafe {
        let lock = &(*value.cast::<LockRecord>()).lock;
        let number = |number: u64| api!(RedisModule_DigestAddLongLong(md, number.cast_signed()));
        number(lock.counter());
        number(lock.grants());
        let mode = lock.mode().name();
        api!(RedisModule_DigestAddStringBuffer(md, mode.as_ptr().cast::<c_char>(), mode.len()));
        for holder in lock.holders() {
            let owner = holder.owner.bytes();
            api!(RedisModule_DigestAddStringBuffer(md, owner.as_ptr().cast::<c_char>(), owner.len()));
            number(holder.token);
            if let Mode::Limit(n) = holder.mode {
                number(u64::from(n));
            }
            number(holder.lease.length_ms);
        }
        api!(RedisModule_DigestEndSequence(md));
    }
}

unsafe extern "C" fn digest_fence(md: *mut raw::RedisModuleDigest, value: *mut c_void) {
    // SAFETY: as above.
    unsafe {
        let fence = (*value.cast::<FenceRecord>()).fence;
        api!(RedisModule_DigestAddLongLong(md, fence.counter().cast_signed()));
        api!(RedisModule_DigestEndSequence(md));
    }
}

// Nothing beside the lock, whose size the core watches.
const _: () = assert!(size_of::<LockRecord>() == size_of::<Lock>());
