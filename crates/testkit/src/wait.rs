//! Waiting with a bound: what a test waits for either comes in time or ends it with what was seen last.

use std::fmt::Debug;
use std::thread;
use std::time::{Duration, Instant};

/// Polls `look` until it says `Ok`, which is returned; an `Err` holds what was seen instead.
///
/// # Panics
/// After `within`, with `what` and the last thing seen.
#[track_caller]
pub fn wait_for<T, S: Debug>(what: &str, within: Duration, mut look: impl FnMut() -> Result<T, S>) -> T {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        let seen = match look() {
            Ok(value) => return value,
            Err(seen) => seen,
        };
        if start.elapsed() >= within {
            panic!("waited {:?} for {what}; last seen: {seen:?}", start.elapsed());
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}

/// Polls `look` until what it returns satisfies `done`, and returns that.
///
/// # Panics
/// After `within`, with `what` and the last value seen.
#[track_caller]
pub fn wait_until<T: Debug>(
    what: &str,
    within: Duration,
    mut look: impl FnMut() -> T,
    done: impl Fn(&T) -> bool,
) -> T {
    wait_for(what, within, || {
        let value = look();
        if done(&value) { Ok(value) } else { Err(value) }
    })
}
