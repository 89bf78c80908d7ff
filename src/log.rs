//! Lines in the server's log that clients can cause as often as they like: a few of each kind are written in a second. The
//! others are counted, and the log tells how many there were.

use lockfence_core::clock::Instant;

use crate::server::{Level, log_without_context};
use crate::{clock, state};

/// A second, in ms.
const SECOND_MS: u64 = 1_000;

/// What such a line is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// A record that cannot be read: whoever may RESTORE causes it.
    Unreadable,
    /// LOCK.BREAK, so that an operator finds in the log who did it. No audit trail: beyond so many a second they are
    /// counted only.
    Break,
    /// An eviction policy that may take locks.
    Eviction,
}

impl About {
    const ALL: [Self; 3] = [Self::Unreadable, Self::Break, Self::Eviction];

    /// How many lines are written in a second.
    const fn most(self) -> u32 {
        match self {
            Self::Unreadable | Self::Eviction => 1,
            Self::Break => 10,
        }
    }

    const fn level(self) -> Level {
        match self {
            Self::Unreadable | Self::Eviction => Level::Warning,
            Self::Break => Level::Notice,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Unreadable => "records that cannot be read",
            Self::Break => "LOCK.BREAK",
            Self::Eviction => "maxmemory-policy",
        }
    }
}

/// What has been written of each kind, and what has not.
#[derive(Debug, Default)]
pub(crate) struct Counts([Count; About::ALL.len()]);

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    /// When the second began in which so many lines were written.
    began: Instant,
    written: u32,
    /// Lines that were not written, and of which nobody has been told yet.
    left_out: u64,
}

impl Count {
    /// Counts one line more; whether it is to be written.
    fn one_more(&mut self, most: u32, now: Instant) -> bool {
        if now.since_ms(self.began) >= SECOND_MS {
            (self.began, self.written) = (now, 0);
        }
        let written = self.written < most;
        if written {
            self.written = self.written.saturating_add(1);
        } else {
            self.left_out = self.left_out.saturating_add(1);
        }
        written
    }

    /// How many lines were left out, once the second is over; 0 when there is nothing to tell.
    fn take_left_out(&mut self, now: Instant) -> u64 {
        if now.since_ms(self.began) < SECOND_MS { 0 } else { std::mem::take(&mut self.left_out) }
    }
}

/// Works with the counts of one kind.
fn with<R: Default>(about: About, work: impl FnOnce(&mut Count) -> R) -> R {
    state::with(|state| state.log_counts.0.get_mut(about as usize).map(work).unwrap_or_default())
}

/// Writes the line, unless there were many of its kind just now.
pub(crate) fn write(about: About, line: &str) {
    let now = clock::now().mono;
    if with(about, |count| count.one_more(about.most(), now)) {
        log_without_context(about.level(), line);
    }
}

/// Tells how many lines were left out. The server's cron calls it.
pub(crate) fn tell_left_out(now: Instant) {
    for about in About::ALL {
        let left_out = with(about, |count| count.take_left_out(now));
        if left_out > 0 {
            log_without_context(about.level(), &format!("left out {left_out} lines on {}", about.name()));
        }
    }
}
