//! A yes or no that the server is asked for once, until something may have changed it.

use std::sync::atomic::{AtomicU8, Ordering};

const UNKNOWN: u8 = 0;
const NO: u8 = 1;
const YES: u8 = 2;

/// It stands beside the module's state, so that it can be read and forgotten whatever is in use.
#[derive(Debug)]
pub(crate) struct Known(AtomicU8);

impl Known {
    /// Nobody has asked yet.
    pub(crate) const fn not_yet() -> Self {
        Self(AtomicU8::new(UNKNOWN))
    }

    /// The answer; `None` where it has to be asked for.
    pub(crate) fn get(&self) -> Option<bool> {
        match self.0.load(Ordering::Relaxed) {
            UNKNOWN => None,
            answer => Some(answer == YES),
        }
    }

    pub(crate) fn learn(&self, yes: bool) {
        self.0.store(if yes { YES } else { NO }, Ordering::Relaxed);
    }

    pub(crate) fn forget(&self) {
        self.0.store(UNKNOWN, Ordering::Relaxed);
    }
}
