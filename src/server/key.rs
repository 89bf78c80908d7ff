//! An open key: what stands there, and how it is replaced.

use std::sync::atomic::{AtomicPtr, Ordering};

use redis_module::raw;

use super::{Ctx, Name, api};
use crate::key_type::{FenceRecord, LockRecord};

/// The two data types, once they are registered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kinds {
    pub(crate) lock: *mut raw::RedisModuleType,
    pub(crate) fence: *mut raw::RedisModuleType,
}

static LOCK: AtomicPtr<raw::RedisModuleType> = AtomicPtr::new(std::ptr::null_mut());
static FENCE: AtomicPtr<raw::RedisModuleType> = AtomicPtr::new(std::ptr::null_mut());

pub(crate) fn set_kinds(kinds: Kinds) {
    LOCK.store(kinds.lock, Ordering::Relaxed);
    FENCE.store(kinds.fence, Ordering::Relaxed);
}

/// What stands at a key.
pub(crate) enum Slot<'k> {
    Empty,
    Lock(&'k mut LockRecord),
    Fence(&'k mut FenceRecord),
    /// Data of another type.
    Other,
}

/// An open key; closed with the value.
#[derive(Debug)]
pub(crate) struct Key<'t> {
    ctx: Ctx,
    name: Name<'t>,
    raw: *mut raw::RedisModuleKey,
}

impl<'t> Key<'t> {
    /// Opens a key for reading. One that does not exist reads as [`Slot::Empty`].
    pub(crate) fn to_read(ctx: Ctx, name: Name<'t>) -> Self {
        Self::open(ctx, name, raw::REDISMODULE_READ)
    }

    /// Opens a key for reading and writing.
    pub(crate) fn to_write(ctx: Ctx, name: Name<'t>) -> Self {
        Self::open(ctx, name, raw::REDISMODULE_READ | raw::REDISMODULE_WRITE)
    }

    /// Opens a key for reading and writing without counting as a use of it (LRU, LFU).
    pub(crate) fn untouched(ctx: Ctx, name: Name<'t>) -> Self {
        Self::open(
            ctx,
            name,
            raw::REDISMODULE_READ | raw::REDISMODULE_WRITE | raw::REDISMODULE_OPEN_KEY_NOTOUCH,
        )
    }

    fn open(ctx: Ctx, name: Name<'t>, mode: u32) -> Self {
        // SAFETY: the context is valid while its callback runs, the name lives longer than the key.
        let raw = unsafe { api!(RedisModule_OpenKey(ctx.raw(), name.raw(), mode.cast_signed())) };
        Self { ctx, name, raw: raw.cast() }
    }

    pub(crate) const fn name(&self) -> Name<'t> {
        self.name
    }

    pub(crate) const fn ctx(&self) -> Ctx {
        self.ctx
    }

    /// The key's database. In an event that is not always what [`Ctx::db`] says: on Valkey 9.1 that is the client's own
    /// as long as a transaction runs, where MOVE tells of the other one.
    pub(crate) fn db(&self) -> u32 {
        if self.raw.is_null() {
            return self.ctx.db();
        }
        // SAFETY: the key is open.
        let db = unsafe { api!(RedisModule_GetDbIdFromModuleKey(self.raw)) };
        u32::try_from(db).unwrap_or(0)
    }

    /// What stands here.
    pub(crate) fn slot(&mut self) -> Slot<'_> {
        if self.raw.is_null() {
            return Slot::Empty;
        }
        // SAFETY: the key is open. Types are compared as plain numbers and pointers, so that one that the crate does
        // not know does no harm. A value of our types is a box that key_type.rs made, and this borrow of the key is
        // the only way to it on this thread, which alone works on the keyspace.
        unsafe {
            let kind = api!(RedisModule_KeyType(self.raw));
            if kind == raw::REDISMODULE_KEYTYPE_EMPTY as i32 {
                return Slot::Empty;
            }
            if kind != raw::REDISMODULE_KEYTYPE_MODULE as i32 {
                return Slot::Other;
            }
            let kind = api!(RedisModule_ModuleTypeGetType(self.raw));
            let value = api!(RedisModule_ModuleTypeGetValue(self.raw));
            if kind == LOCK.load(Ordering::Relaxed) {
                Slot::Lock(&mut *value.cast::<LockRecord>())
            } else if kind == FENCE.load(Ordering::Relaxed) {
                Slot::Fence(&mut *value.cast::<FenceRecord>())
            } else {
                Slot::Other
            }
        }
    }

    /// Whether data of another type than a string stands here.
    pub(crate) fn is_no_string(&self) -> bool {
        if self.raw.is_null() {
            return false;
        }
        // SAFETY: the key is open.
        let kind = unsafe { api!(RedisModule_KeyType(self.raw)) };
        kind != raw::REDISMODULE_KEYTYPE_EMPTY as i32 && kind != raw::REDISMODULE_KEYTYPE_STRING as i32
    }

    /// Puts a lock's record here.
    pub(crate) fn set_lock(&mut self, record: Box<LockRecord>) {
        self.set(&LOCK, record);
    }

    /// Puts a fence's record here.
    pub(crate) fn set_fence(&mut self, record: Box<FenceRecord>) {
        self.set(&FENCE, record);
    }

    /// `kind` must be the type whose values are boxes of `T`.
    fn set<T>(&mut self, kind: &AtomicPtr<raw::RedisModuleType>, record: Box<T>) {
        let value = Box::into_raw(record);
        // SAFETY: the key is open for writing; the server owns the box from now on and frees it by the type's callback.
        let status = unsafe {
            api!(RedisModule_ModuleTypeSetValue(self.raw, kind.load(Ordering::Relaxed), value.cast()))
        };
        if status != raw::REDISMODULE_OK as i32 {
            // SAFETY: the server did not take it.
            drop(unsafe { Box::from_raw(value) });
        }
    }

    /// Deletes what stands here.
    pub(crate) fn delete(&mut self) {
        // SAFETY: the key is open for writing.
        unsafe { api!(RedisModule_DeleteKey(self.raw)) };
    }

    /// When the key goes by itself, ms since 1970; `None` when never.
    pub(crate) fn expires_at_ms(&self) -> Option<u64> {
        // SAFETY: the key is open.
        let at = unsafe { api!(RedisModule_GetAbsExpire(self.raw)) };
        u64::try_from(at).ok()
    }

    /// Sets when the key goes by itself; `None` for never. Not replicated.
    pub(crate) fn set_expires_at_ms(&mut self, at: Option<u64>) {
        let at = at.map_or(i64::from(raw::REDISMODULE_NO_EXPIRE), |at| i64::try_from(at).unwrap_or(i64::MAX));
        // SAFETY: the key is open for writing.
        unsafe { api!(RedisModule_SetAbsExpire(self.raw, at)) };
    }
}

impl Drop for Key<'_> {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: open, closed once.
            unsafe { api!(RedisModule_CloseKey(self.raw)) };
        }
    }
}
