//! Who gets the effects of commands: replicas, the replication backlog, the AOF; or nobody, and then none is made.
//!
//! A server that has nobody to tell drops an effect, but only after it has looked up its name and copied it: a fifth of
//! what a lock costs. `SET` pays nothing then, and neither do locks on a server whose ways are known.
//!
//! # Why no effect is missed
//! [`nobody`] asks for just what the server itself goes by (`shouldPropagate`, server.c): no replica, no backlog, no AOF.
//! An effect after that matters to those alone who have the data as they were before it and go on from there. They have
//! them from
//! - a child: the snapshot for a replica, the new base of an AOF;
//! - a snapshot that the server wrote by itself (SAVE, FLUSHALL), which names its place in a history. It does so only once
//!   there is a backlog; the first replica begins one, under a new replication ID, long before a child is forked for it;
//! - the time when this server was a replica itself, or from the file that it has loaded.
//!
//! The module is told of each of these before the next command, and asks again ([`changed`]); so it does after CONFIG SET: an
//! AOF that is turned on may have to wait for its child. What happens *within* a unit (MULTI, a script, another module's
//! command) may come after one of these and be sent with what came before it: there every effect is made.

use std::ffi::CStr;
use std::ops::Range;

use lockfence_core::planted::{self, Bug};

use crate::server::{Ctx, Facts, Name, version};
use crate::state;

/// Redis 7.0 to 7.4: read in the sources of 7.0.0, 7.0.15, 7.2.6 and 7.4.1. Later servers also send effects to the nodes
/// that slots move to.
const KNOWN: Range<u32> = 0x07_00_00..0x08_00_00;

/// Who gets effects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Audience {
    /// To be asked for.
    #[default]
    Unknown,
    Somebody,
    Nobody,
}

/// What the audience depends on has changed.
pub(crate) fn changed() {
    if !planted::is(Bug::AudienceKept) {
        state::with(|state| state.audience = Audience::Unknown);
    }
}

/// Sends to replicas and the AOF what a command did to a key. For the context of a command only: where the effect is left
/// out the server takes the command itself for it, and drops that.
pub(crate) fn send(ctx: Ctx, key: Name<'_>, log: &[u8]) {
    let mut audience = state::with(|state| state.audience);
    if audience == Audience::Unknown {
        audience = if nobody() { Audience::Nobody } else { Audience::Somebody };
        state::with(|state| state.audience = audience);
    }
    if audience == Audience::Nobody && ctx.is_plain_command() {
        ctx.count_change();
    } else {
        ctx.replicate_effect(key, log);
    }
}

/// Whether the server would drop an effect now, as far as it is known how it decides that.
fn nobody() -> bool {
    let is_zero = |section, fields: &[&CStr]| {
        Facts::of(section).is_some_and(|facts| fields.iter().all(|field| facts.number(field) == Some(0)))
    };
    is_known()
        && is_zero(c"replication", &[c"connected_slaves", c"repl_backlog_active"])
        && is_zero(c"persistence", &[c"aof_enabled"])
}

/// Whether this is a server of those versions. Valkey calls itself Redis 7.2, beside its own name.
fn is_known() -> bool {
    KNOWN.contains(&version()) && Facts::of(c"server").is_some_and(|facts| !facts.has(c"server_name"))
}
