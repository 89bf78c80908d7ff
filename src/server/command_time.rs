//! Whether two things happened during one and the same command, and what is done once it is over.

use std::sync::atomic::{AtomicPtr, Ordering};

use redis_module::raw;

use super::{Ctx, Timer, api};
use crate::boundary::{command_done, forget_unlinked};

/// Tells commands apart: when the command that is running began, by the server. The same number as long as it runs.
/// Redis and Valkey have it from 7.2 on; before, all are equal, and [`forget_after_this_turn`] serves instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommandTime(Option<i64>);

impl CommandTime {
    pub(crate) fn now() -> Self {
        // SAFETY: the static is copied out; the function takes nothing.
        Self(unsafe { raw::RedisModule_CachedMicroseconds.map(|micros| micros()) })
    }

    /// Whether the server tells commands apart.
    pub(crate) const fn is_exact(self) -> bool {
        self.0.is_some()
    }
}

/// A context of no client's, for where the server gives none. Null on servers that tell commands apart.
static DETACHED: AtomicPtr<raw::RedisModuleCtx> = AtomicPtr::new(std::ptr::null_mut());

/// To be called once, at load, before [`forget_after_this_turn`].
pub(crate) fn prepare_to_forget(ctx: Ctx) {
    if !CommandTime::now().is_exact() {
        // SAFETY: the context is that of the load; what comes back lives as long as the module.
        let detached = unsafe { api!(RedisModule_GetDetachedThreadSafeContext(ctx.raw())) };
        DETACHED.store(detached, Ordering::Relaxed);
    }
}

/// Has what is remembered for one command forgotten at the end of the event loop's turn, by a timer that is due at once:
/// timers come after all commands of a turn. (What is given to the event loop comes in the next turn, among its commands.)
/// What goes between two turns (by eviction, or the server's cron) is remembered through the next one: a record that then
/// arrives at that name may lose its lease, never its counter.
pub(crate) fn forget_after_this_turn() {
    let detached = DETACHED.load(Ordering::Relaxed);
    if !detached.is_null() {
        // SAFETY: it is a context, see above.
        Timer::start(unsafe { Ctx::new(detached) }, 0, Some(forget_unlinked));
    }
}

/// Has what has arrived told once the command that is running is done (all of its transaction or script, if it is in
/// one): what is replicated then is one unit with it, and stands behind it.
///
/// Redis and Valkey have it from 7.2 on. Before, the timer does it: behind the command as well, in the same turn of the
/// event loop unless writes are paused, but in a unit of its own.
pub(crate) fn call_after_command(ctx: Ctx) {
    // SAFETY: the static is copied out; the callback takes no data, so there is none to free. A job that is refused (a
    // server that follows or loads: nothing is told there) leaves it to the timer.
    unsafe {
        if let Some(add_job) = raw::RedisModule_AddPostNotificationJob {
            add_job(ctx.raw(), Some(command_done), std::ptr::null_mut(), None);
        }
    }
}
