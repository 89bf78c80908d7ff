//! Who gets the effects of commands: replicas, the replication backlog, the AOF; or nobody, and then none is made.
//!
//! A server that has nobody to tell drops an effect, but only after it has looked up its name and copied it: a fifth of
//! what a lock costs. `SET` pays nothing then, and neither do locks on a server whose ways are known.
//!
//! # Why no effect is missed
//! [`nobody`] asks for just what the server itself goes by (`shouldPropagate`, server.c). Once that has said no, somebody
//! can begin to matter in these ways only, and the server tells each of them before the next command:
//! - a replica gets a snapshot, or the AOF a new base: a child is forked for it, and what was done before is in it. Until
//!   then a replica that has connected is fed nothing, and no effect goes into the AOF;
//! - a replica goes on where it was: that takes a backlog, with which nobody would not have been the answer. The first
//!   replica makes one under a new replication ID, which it learns at the fork;
//! - the backlog was made while this server was a replica itself, or was loading.
//!
//! So it is asked again after each of those ([`changed`]), and after each change of settings: an AOF that is turned on may
//! have to wait for its fork.

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

/// Sends to replicas and the AOF what a command did to a key. For the context of a command only.
pub(crate) fn send(ctx: Ctx, key: Name<'_>, log: &[u8]) {
    let mut audience = state::with(|state| state.audience);
    if audience == Audience::Unknown {
        audience = if nobody() { Audience::Nobody } else { Audience::Somebody };
        state::with(|state| state.audience = audience);
    }
    if audience == Audience::Nobody {
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
