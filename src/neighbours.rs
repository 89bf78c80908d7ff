//! Whether other modules are loaded. One of those may run a lock's command as part of something larger, keep it from being
//! replicated, or save in the midst of it; and not all of that shows in what the server tells of a command.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::server::Ctx;

/// Nobody has looked since a module came or went.
const UNKNOWN: u8 = 0;
const SOME: u8 = 1;
const NONE: u8 = 2;

static NEIGHBOURS: AtomicU8 = AtomicU8::new(UNKNOWN);

/// A module has come or gone.
pub(crate) fn changed() {
    NEIGHBOURS.store(UNKNOWN, Ordering::Relaxed);
}

/// Finds out, where that is not known. Asks the server: not while the state is in use.
pub(crate) fn look(ctx: Ctx) {
    if NEIGHBOURS.load(Ordering::Relaxed) == UNKNOWN {
        let modules = ctx.run_own(c"E", c"MODULE", &[b"LIST"]);
        let none = modules.error().is_none() && modules.len() == 1;
        NEIGHBOURS.store(if none { NONE } else { SOME }, Ordering::Relaxed);
    }
}

/// Whether this module is known to be the only one.
pub(crate) fn none() -> bool {
    NEIGHBOURS.load(Ordering::Relaxed) == NONE
}
