//! Whether two things happened during one and the same command.

use lockfence_core::clock::Instant;
use redis_module::raw;

use crate::clock;

/// Without the server's own time of the command: what is longer ago than this was another command, µs.
const SAME_COMMAND_US: u64 = 5_000;

/// A moment, as far as telling commands apart goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommandTime {
    /// When the command began, by the server: the same number as long as it runs. Not before Redis and Valkey 7.2.
    began: Option<i64>,
    at: Instant,
}

impl CommandTime {
    pub(crate) fn now() -> Self {
        // SAFETY: the static is copied out; the function takes nothing.
        let began = unsafe { raw::RedisModule_CachedMicroseconds.map(|micros| micros()) };
        Self { began, at: clock::now().mono }
    }

    pub(crate) fn same_command(self, later: Self) -> bool {
        self.began == later.began
            && later.at.since_us(self.at) < if self.began.is_some() { u64::MAX } else { SAME_COMMAND_US }
    }
}
