//! The INFO section `lockfence`.

use std::ffi::{CString, c_int};

use redis_module::raw;

use crate::boundary::guard;
use crate::clock;
use crate::server::{Ctx, api};
use crate::state::{self, State};

pub(crate) fn register(ctx: Ctx) {
    // SAFETY: the callback has the signature that the server calls it with.
    unsafe { api!(RedisModule_RegisterInfoFunc(ctx.raw(), Some(report))) };
}

unsafe extern "C" fn report(ctx: *mut raw::RedisModuleInfoCtx, for_crash_report: c_int) {
    if for_crash_report != 0 {
        return; // a signal handler: nothing may be allocated
    }
    guard(|| {
        // SAFETY: an empty name is the module's own section; "lockfence_" is put before field names by the server.
        unsafe { api!(RedisModule_InfoAddSection(ctx, c"".as_ptr())) };
        // A crash report may come while the state is in use: then there is nothing to say.
        let fields = state::try_with(fields).unwrap_or_default();
        for (name, value) in fields {
            let name = CString::new(name).unwrap_or_default();
            // SAFETY: the server copies name and number.
            unsafe { api!(RedisModule_InfoAddFieldULongLong(ctx, name.as_ptr(), value)) };
        }
    });
}

fn fields(state: &State) -> Vec<(&'static str, u64)> {
    let now = clock::now().mono;
    let stats = &state.stats;
    vec![
        ("waiters", u64::try_from(state.room.len()).unwrap_or(u64::MAX)),
        ("contended_locks", u64::try_from(state.room.contended(None).len()).unwrap_or(u64::MAX)),
        ("grants_total", stats.grants),
        ("handovers_total", stats.handovers),
        ("refused_total", stats.refused),
        ("wait_timeouts_total", stats.timeouts),
        ("waits_lost_total", stats.lost),
        ("fenced_total", stats.fenced),
        ("idle_records_dropped_total", stats.idle_dropped),
        ("highest_token", state.issuer.high()),
        ("restart_floor", state.issuer.floor().token),
        ("quarantine_left_ms", state.grants_from.left_ms(now)),
        ("evictable", u64::from(state.evictable)),
    ]
}
