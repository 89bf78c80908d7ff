//! Who gets what commands do to locks: replicas, the replication backlog, the AOF; or nobody, and then no effect is made.
//!
//! A server that has nobody to tell drops an effect, but only after it has looked up its name and copied it: a fifth of
//! what a lock costs. `SET` pays nothing then, and neither do locks on a server whose ways are known.
//!
//! # Why no effect is missed
//! [`ask`] goes by just what the server itself goes by (`shouldPropagate`, server.c): no replica, no backlog, no AOF. What
//! is done after that matters only to who has the data as they were before it and goes on from there. They come from
//! - a child: the snapshot for a replica, the new base of an AOF;
//! - a snapshot that the server writes by itself (SAVE, FLUSHALL) and that names its place in a history. It does so only
//!   once there is a backlog; the first replica begins one, under a new replication ID, before its child is forked;
//! - the time when this server was a replica itself, or the file that it has loaded.
//!
//! The module is told of each of these before the next command, and asks again ([`ask_again`]); so it does after CONFIG
//! SET: an AOF that is turned on may have to wait for its child. It also asks again after each cron of the server, ten times
//! a second: when the backlog has gone, and lest anything that nobody has thought of last for longer.
//!
//! Where an effect is left out the server is given the command itself. Mostly it drops that. Between the first replica's
//! arrival and its child it puts it into the backlog, where nobody goes on from so early a place. But a unit is sent as a
//! whole when it is over, also behind a snapshot that was written in the middle of it. So every effect is made in
//! transactions and scripts, and wherever another module is loaded: that may save whenever it is told of a key.

use std::ffi::CStr;
use std::ops::Range;
use std::sync::LazyLock;

use lockfence_core::planted::{self, Bug};

use crate::known::Known;
use crate::neighbours;
use crate::server::{self, Ctx, Facts, Name};

/// Redis 7.0 to 7.4: read in the sources of 7.0.0, 7.0.15, 7.2.6 and 7.4.1. (Redis 8.0's milestones call themselves 7.9.)
/// Later servers also send effects to the nodes that slots move to.
const VERSIONS: Range<u32> = 0x07_00_00..0x07_05_00;

/// Whether nobody gets effects. No: somebody does, or that cannot be ruled out.
static NOBODY: Known = Known::not_yet();

/// Forgets who gets effects: the next one asks.
pub(crate) fn ask_again() {
    if !planted::is(Bug::AudienceKept) {
        NOBODY.forget();
    }
}

/// Sends to replicas and the AOF what a command did to a lock, if anybody may get it. For the context of a command only.
pub(crate) fn send(ctx: Ctx, key: Name<'_>, log: &[u8]) {
    let nobody = NOBODY.get().unwrap_or_else(|| ask(ctx));
    if nobody && neighbours::runs_for_a_client(ctx) {
        // Costs the server a comparison, and counts as a change for its save points.
        ctx.replicate_verbatim();
    } else {
        ctx.replicate_effect(key, log);
    }
}

/// Finds out whether nobody would get an effect now.
fn ask(ctx: Ctx) -> bool {
    /// Whether this is one of the [`VERSIONS`]. Valkey calls itself Redis 7.2, beside its own name.
    static IS_ONE: LazyLock<bool> = LazyLock::new(|| {
        VERSIONS.contains(&server::version())
            && Facts::of(c"server").is_some_and(|facts| !facts.has(c"server_name"))
    });
    let is_zero = |section, fields: &[&CStr]| {
        Facts::of(section).is_some_and(|facts| fields.iter().all(|field| facts.number(field) == Some(0)))
    };
    neighbours::look(ctx);
    let nobody = *IS_ONE
        && is_zero(c"replication", &[c"connected_slaves", c"repl_backlog_active"])
        && is_zero(c"persistence", &[c"aof_enabled"]);
    NOBODY.learn(nobody);
    nobody
}
