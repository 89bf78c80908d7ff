//! This machine's clocks and chance: the only place that reads them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockfence_core::clock::{Instant, Now, Wall};

/// Both clocks. The monotonic one counts the time that the machine was suspended: a lease goes on meanwhile.
pub(crate) fn now() -> Now {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let wall = u64::try_from(wall.as_micros()).unwrap_or(u64::MAX);
    Now { mono: mono(), wall: Wall::from_micros(wall) }
}

#[cfg(target_os = "linux")]
pub(crate) fn mono() -> Instant {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Instant::from_micros(time.tv_sec.saturating_mul(1_000_000).saturating_add(time.tv_nsec / 1000))
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn mono() -> Instant {
    static BEGAN: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    Instant::from_micros(i64::try_from(BEGAN.elapsed().as_micros()).unwrap_or(i64::MAX))
}

/// How long until `at`; nothing if it is over.
pub(crate) fn until(at: Instant) -> Duration {
    Duration::from_micros(at.since_us(mono()))
}

/// In whole ms, for people: what is left of a time-out is never a round number.
pub(crate) fn in_ms(time: Duration) -> String {
    format!("{} ms", time.saturating_add(Duration::from_micros(500)).as_millis())
}

/// 128 random bits from the system.
///
/// # Panics
/// Where the system has none to give: without them owners could meet.
#[expect(clippy::expect_used, reason = "a lock without unique owners is no lock")]
pub(crate) fn bits() -> u128 {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system gives random bits");
    u128::from_ne_bytes(bytes)
}
