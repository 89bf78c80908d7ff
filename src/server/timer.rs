//! One-shot timers of the server.

use redis_module::raw;

use super::{Ctx, api};

/// A timer that has not fired yet. It must be forgotten as soon as it fires: stopping one inside its own callback
/// ends most servers (valkey#4200).
#[derive(Debug)]
pub(crate) struct Timer(raw::RedisModuleTimerID);

impl Timer {
    /// Fires once, in `ms` milliseconds by the wall clock.
    pub(crate) fn start(ctx: Ctx, ms: u64, callback: raw::RedisModuleTimerProc) -> Self {
        let ms = i64::try_from(ms).unwrap_or(i64::MAX);
        // SAFETY: the callback takes no data.
        Self(unsafe { api!(RedisModule_CreateTimer(ctx.raw(), ms, callback, std::ptr::null_mut())) })
    }

    pub(crate) fn stop(self, ctx: Ctx) {
        // SAFETY: it has not fired: then it would have been forgotten.
        unsafe { api!(RedisModule_StopTimer(ctx.raw(), self.0, std::ptr::null_mut())) };
    }
}
