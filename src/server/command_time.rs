//! Whether two things happened during one and the same command.

use redis_module::raw;

use super::api;
use crate::boundary::forget_unlinked;

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
