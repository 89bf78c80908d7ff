//! The clocks of the process. The only place that reads one.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI64, Ordering};

use lockfence_core::clock::{Instant, Now, Wall};

/// How long a reading of the wall clock serves, µs. A reading may take as long as all that is decided about a lock; for
/// so short a time both clocks advance alike, and a step of the wall clock is seen that much later.
const WALL_SERVES_US: i64 = 20;

/// When the wall clock was last read, on the other clock, and how far it was ahead of that; both in µs.
static READ_AT: AtomicI64 = AtomicI64::new(i64::MIN);
static AHEAD: AtomicI64 = AtomicI64::new(0);

/// Both clocks, now.
pub(crate) fn now() -> Now {
    let mono = i64::try_from(micros(libc::CLOCK_BOOTTIME)).unwrap_or(i64::MAX);
    let since = mono.saturating_sub(READ_AT.load(Ordering::Relaxed));
    if !(0..WALL_SERVES_US).contains(&since) {
        let wall = i64::try_from(micros(libc::CLOCK_REALTIME)).unwrap_or(i64::MAX);
        READ_AT.store(mono, Ordering::Relaxed);
        AHEAD.store(wall.saturating_sub(mono), Ordering::Relaxed);
    }
    let wall = mono.saturating_add(AHEAD.load(Ordering::Relaxed));
    Now { mono: Instant::from_micros(mono), wall: Wall::from_micros(u64::try_from(wall).unwrap_or(0)) }
}

/// CLOCK_BOOTTIME counts suspended time and no step of the wall clock moves it. Not the server's monotonic clock,
/// which is the processor's counter on Valkey 9.
#[allow(unsafe_code, reason = "clock_gettime is a C function")]
fn micros(clock: libc::clockid_t) -> u64 {
    let mut time = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: the kernel fills the structure, or leaves the zeros; both are valid.
    let time = unsafe {
        libc::clock_gettime(clock, time.as_mut_ptr());
        time.assume_init()
    };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000).saturating_add(nanos / 1000)
}
