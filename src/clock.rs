//! The clocks of the process. The only place that reads one.

use std::mem::MaybeUninit;

use lockfence_core::clock::{Instant, Now, Wall};

/// Both clocks, now.
pub(crate) fn now() -> Now {
    Now {
        mono: Instant::from_micros(i64::try_from(micros(libc::CLOCK_BOOTTIME)).unwrap_or(i64::MAX)),
        wall: Wall::from_micros(micros(libc::CLOCK_REALTIME)),
    }
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
