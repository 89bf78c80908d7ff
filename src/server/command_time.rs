//! Whether two things happened during one and the same command, and what is done once it is over.

use redis_module::raw;

use super::{Ctx, api};
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

/// Has what is remembered for one command forgotten before the event loop's next turn.
pub(crate) fn forget_after_this_turn() {
    // SAFETY: the callback takes no data.
    unsafe { api!(RedisModule_EventLoopAddOneShot(Some(forget_unlinked), std::ptr::null_mut())) };
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
