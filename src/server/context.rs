//! The context of a call: which database, which flags, what to replicate, what to say in the log.

use std::ffi::{CStr, CString, c_char};
use std::marker::PhantomData;
use std::ptr::NonNull;

use redis_module::raw;

use super::api;

/// The internal command `LF.LOG key log`: what happened to a key, as replicas and the AOF get it.
pub(crate) const EFFECT: &CStr = c"LF.LOG";

/// The internal command `LF.HANDOVER lock [owner token]`, which the timer runs.
pub(crate) const HAND_OVER: &CStr = c"LF.HANDOVER";

/// How loud a line in the server's log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Notice,
    Warning,
}

/// A context that the server handed to a callback. Valid until that callback returns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ctx(NonNull<raw::RedisModuleCtx>);

/// A string of the server's that this module owns, freed with the value.
#[derive(Debug)]
pub(crate) struct Text {
    ctx: Ctx,
    raw: *mut raw::RedisModuleString,
}

impl Text {
    pub(crate) const fn name(&self) -> Name<'_> {
        Name { raw: self.raw, lives: PhantomData }
    }
}

/// A server string that lives for `'t`: an argument of a command, or one that the module made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name<'t> {
    raw: *mut raw::RedisModuleString,
    lives: PhantomData<&'t ()>,
}

impl<'t> Name<'t> {
    /// # Safety
    /// `raw` must be a live string for as long as `'t`.
    pub(crate) const unsafe fn new(raw: *mut raw::RedisModuleString) -> Self {
        Self { raw, lives: PhantomData }
    }

    pub(crate) const fn raw(self) -> *mut raw::RedisModuleString {
        self.raw
    }

    /// The bytes.
    pub(crate) fn bytes(self) -> &'t [u8] {
        let mut len = 0;
        // SAFETY: the string lives for 't; the server returns its bytes and their number.
        unsafe {
            let start = api!(RedisModule_StringPtrLen(self.raw, &raw mut len));
            if start.is_null() { &[] } else { std::slice::from_raw_parts(start.cast::<u8>(), len) }
        }
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        // SAFETY: made by CreateString in the same context, freed once.
        unsafe { api!(RedisModule_FreeString(self.ctx.raw(), self.raw)) };
    }
}

impl Ctx {
    /// # Safety
    /// `raw` must be a context that the server passed to the callback that is running.
    pub(crate) unsafe fn new(raw: *mut raw::RedisModuleCtx) -> Self {
        match NonNull::new(raw) {
            Some(raw) => Self(raw),
            None => std::process::abort(),
        }
    }

    pub(crate) const fn raw(self) -> *mut raw::RedisModuleCtx {
        self.0.as_ptr()
    }

    /// The database that commands and keys of this context refer to.
    pub(crate) fn db(self) -> u32 {
        // SAFETY: the context is valid while its callback runs.
        let db = unsafe { api!(RedisModule_GetSelectedDb(self.raw())) };
        u32::try_from(db).unwrap_or(0)
    }

    pub(crate) fn select_db(self, db: u32) {
        // SAFETY: as above; an impossible number is refused by the server and changes nothing.
        unsafe { api!(RedisModule_SelectDb(self.raw(), i32::try_from(db).unwrap_or(0))) };
    }

    /// The flags of `RedisModule_GetContextFlags`.
    pub(crate) fn flags(self) -> u32 {
        // SAFETY: the context is valid while its callback runs.
        unsafe { api!(RedisModule_GetContextFlags(self.raw())) }.cast_unsigned()
    }

    pub(crate) fn client_id(self) -> u64 {
        // SAFETY: the context is valid while its callback runs.
        unsafe { api!(RedisModule_GetClientId(self.raw())) }
    }

    /// Whether a client's own command is running, outside of scripts and transactions. Not one that another module runs, but
    /// where that does so in mode K (Redis 7.2 and later), which nothing tells: see `neighbours.rs`.
    pub(crate) fn is_plain_command(self) -> bool {
        let nested = raw::REDISMODULE_CTX_FLAGS_LUA
            | raw::REDISMODULE_CTX_FLAGS_MULTI
            | raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING;
        self.flags() & nested == 0
    }

    pub(crate) fn text(self, bytes: &[u8]) -> Text {
        // SAFETY: the server copies the bytes.
        let raw = unsafe {
            api!(RedisModule_CreateString(self.raw(), bytes.as_ptr().cast::<c_char>(), bytes.len()))
        };
        Text { ctx: self, raw }
    }

    /// Sends [`EFFECT`] with key and log to replicas and the AOF.
    pub(crate) fn replicate_effect(self, key: Name<'_>, log: &[u8]) {
        // SAFETY: the format says a string object and a buffer with its length; both live through the call.
        unsafe {
            api!(RedisModule_Replicate(
                self.raw(),
                EFFECT.as_ptr(),
                c"sb".as_ptr(),
                key.raw(),
                log.as_ptr().cast::<c_char>(),
                log.len(),
            ))
        };
    }

    /// Sends `DEL key` to replicas and the AOF.
    pub(crate) fn replicate_delete(self, key: Name<'_>) {
        // SAFETY: the format says one string object, which lives through the call.
        unsafe { api!(RedisModule_Replicate(self.raw(), c"DEL".as_ptr(), c"s".as_ptr(), key.raw())) };
    }

    /// Sends the command that is running, as it came. In the context of a command only.
    pub(crate) fn replicate_verbatim(self) {
        // SAFETY: the context is that of a command.
        unsafe { api!(RedisModule_ReplicateVerbatim(self.raw())) };
    }

    /// Tells WATCH and client-side caches that a key has changed.
    pub(crate) fn signal_modified(self, key: Name<'_>) {
        // SAFETY: the key's name lives through the call.
        unsafe { api!(RedisModule_SignalModifiedKey(self.raw(), key.raw())) };
    }

    /// Writes a line to the server's log, which puts the module's name before it.
    pub(crate) fn log(self, level: Level, message: &str) {
        log_to(self.raw(), level, message);
    }
}

/// Writes a line to the server's log where there is no context.
pub(crate) fn log_without_context(level: Level, message: &str) {
    log_to(std::ptr::null_mut(), level, &format!("lockfence: {message}"));
}

/// The message is an argument, never a format string (redismodule-rs#473).
fn log_to(ctx: *mut raw::RedisModuleCtx, level: Level, message: &str) {
    let level = match level {
        Level::Notice => c"notice",
        Level::Warning => c"warning",
    };
    let message = CString::new(message.replace('\0', "\\0")).unwrap_or_default();
    // SAFETY: the format is "%s" and its argument is a C string that lives through the call; the context may be null.
    unsafe { api!(RedisModule_Log(ctx, level.as_ptr(), c"%s".as_ptr(), message.as_ptr())) };
}

/// Whether nothing may be written now, because the server is paused or is failing over: a write that no client asked
/// for would end the server (valkey#1921).
pub(crate) fn avoid_replica_traffic() -> bool {
    // SAFETY: takes nothing, reads the server's state on its own thread.
    unsafe { api!(RedisModule_AvoidReplicaTraffic()) != 0 }
}
