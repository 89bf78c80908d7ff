//! What the server tells: roles, loads, saves, flushes, swaps, its cron, settings, other modules, and keys that change
//! under the module's feet.
//!
//! Nothing is replicated here: a write made in some of these events reaches replicas in the wrong order.

use std::ffi::{CStr, c_char, c_int, c_void};

use lockfence_core::queue::Outcome;
use redis_module::raw;

use crate::arrivals;
use crate::audience;
use crate::boundary::guard;
use crate::clock;
use crate::expiry;
use crate::log::{self, About};
use crate::neighbours;
use crate::server::{Ctx, Name, api};
use crate::state;
use crate::waiters;

/// The classes of keyspace events that tell of keys that arrive or go.
const KEY_EVENTS: c_int =
    raw::REDISMODULE_NOTIFY_GENERIC | raw::REDISMODULE_NOTIFY_EXPIRED | raw::REDISMODULE_NOTIFY_EVICTED;

/// Has [`new_key`] called from now on, for every key that comes to be: only where somebody waits for a lock that has no
/// record (in the restart quarantine) does that matter, and most servers never see it.
pub(crate) fn hear_of_new_keys(ctx: Ctx) {
    if !state::with(|state| std::mem::replace(&mut state.hears_of_new_keys, true)) {
        // SAFETY: the handler has the signature that the server calls it with. If it is refused, the end of the
        // quarantine tells whoever waits.
        unsafe {
            api!(RedisModule_SubscribeToKeyspaceEvents(ctx.raw(), raw::REDISMODULE_NOTIFY_NEW, Some(new_key)))
        };
    }
}

/// Subscribes to all of it.
pub(crate) fn subscribe(ctx: Ctx) -> bool {
    let handlers: [(u64, raw::RedisModuleEventCallback); 9] = [
        (raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, Some(role_changed)),
        (raw::REDISMODULE_EVENT_LOADING, Some(loading)),
        (raw::REDISMODULE_EVENT_FORK_CHILD, Some(saving)),
        (raw::REDISMODULE_EVENT_PERSISTENCE, Some(saving)),
        (raw::REDISMODULE_EVENT_FLUSHDB, Some(flushed)),
        (raw::REDISMODULE_EVENT_SWAPDB, Some(swapped)),
        (raw::REDISMODULE_EVENT_CRON_LOOP, Some(cron)),
        (raw::REDISMODULE_EVENT_CONFIG, Some(config_changed)),
        (raw::REDISMODULE_EVENT_MODULE_CHANGE, Some(modules_changed)),
    ];
    let mut all = true;
    for (id, handler) in handlers {
        let event = raw::RedisModuleEvent { id, dataver: 1 };
        // SAFETY: the handler has the signature that the server calls it with.
        let status = unsafe { api!(RedisModule_SubscribeToServerEvent(ctx.raw(), event, handler)) };
        all &= status == raw::REDISMODULE_OK as c_int;
    }
    // SAFETY: as above.
    let status =
        unsafe { api!(RedisModule_SubscribeToKeyspaceEvents(ctx.raw(), KEY_EVENTS, Some(key_event))) };
    all && status == raw::REDISMODULE_OK as c_int
}

unsafe extern "C" fn role_changed(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    now: u64,
    _data: *mut c_void,
) {
    guard(|| {
        audience::ask_again();
        // SAFETY: the server passes a context.
        let ctx = unsafe { Ctx::new(ctx) };
        if now == raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_MASTER {
            let time = clock::now();
            state::with(|state| {
                state.replica = false;
                state.begin(time);
            });
            expiry::arm(ctx, time.mono);
        } else {
            expiry::demoted();
        }
    });
}

unsafe extern "C" fn loading(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    step: u64,
    _data: *mut c_void,
) {
    guard(|| {
        audience::ask_again();
        if step != raw::REDISMODULE_SUBEVENT_LOADING_ENDED {
            return;
        }
        let now = clock::now();
        state::with(|state| state.begin(now));
        // SAFETY: the server passes a context.
        expiry::arm(unsafe { Ctx::new(ctx) }, now.mono);
    });
}

/// A copy of the data is made, by a child that has been forked or by the server: whoever gets it needs every effect from
/// here on. (Its end is told, too, and a child that saves is told of itself: asking again does no harm.)
unsafe extern "C" fn saving(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _step: u64,
    _data: *mut c_void,
) {
    guard(audience::ask_again);
}

unsafe extern "C" fn flushed(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    step: u64,
    data: *mut c_void,
) {
    if step != raw::REDISMODULE_SUBEVENT_FLUSHDB_END {
        return;
    }
    guard(|| {
        // SAFETY: with this event the server passes this structure, or a newer one that begins alike.
        let db = unsafe { data.cast::<raw::RedisModuleFlushInfo>().as_ref() }.map_or(-1, |info| info.dbnum);
        let db = u32::try_from(db).ok();
        waiters::lose_all(db, &Outcome::LockLost);
        state::with(|state| state.unlinked.clear());
    });
}

unsafe extern "C" fn swapped(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _step: u64,
    data: *mut c_void,
) {
    guard(|| {
        // SAFETY: with this event the server passes this structure, or a newer one that begins alike.
        let Some(info) = (unsafe { data.cast::<raw::RedisModuleSwapDbInfo>().as_ref() }) else { return };
        let db = |number: i32| u32::try_from(number).unwrap_or(0);
        let (first, second) = (db(info.dbnum_first), db(info.dbnum_second));
        waiters::lose_all(Some(first), &Outcome::LockLost);
        waiters::lose_all(Some(second), &Outcome::LockLost);
        state::with(|state| {
            state.issuer.names_changed();
            state.wheel.swap(first, second);
            state.swap_arrived(first, second);
            state.unlinked.clear();
        });
    });
}

unsafe extern "C" fn cron(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _step: u64,
    _data: *mut c_void,
) {
    guard(|| {
        audience::ask_again();
        // SAFETY: the server passes a context.
        expiry::cron(unsafe { Ctx::new(ctx) });
    });
}

unsafe extern "C" fn config_changed(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _step: u64,
    data: *mut c_void,
) {
    guard(|| {
        audience::ask_again();
        // SAFETY: the server passes a context, and this structure, whose names are C strings.
        let names: Vec<Vec<u8>> = unsafe {
            let Some(info) = data.cast::<raw::RedisModuleConfigChange>().as_ref() else { return };
            let names =
                std::slice::from_raw_parts(info.config_names, usize::try_from(info.num_changes).unwrap_or(0));
            names.iter().map(|name| CStr::from_ptr(*name).to_bytes().to_vec()).collect()
        };
        if names.iter().any(|name| name == b"maxmemory-policy") {
            // SAFETY: as above.
            warn_of_eviction(unsafe { Ctx::new(ctx) });
        }
    });
}

/// Another module came or went: what is known of its commands may no longer be so.
unsafe extern "C" fn modules_changed(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _step: u64,
    _data: *mut c_void,
) {
    guard(|| {
        neighbours::changed();
        audience::ask_again();
        state::with(|state| state.inner_commands.clear());
    });
}

/// An allkeys-* policy evicts held locks: each eviction ends a lease early. (volatile-* spares them: they carry no
/// key TTL.)
pub(crate) fn warn_of_eviction(ctx: Ctx) {
    let policy = evicting_policy(ctx);
    state::with(|state| state.evictable = policy.is_some());
    if let Some(policy) = policy {
        let line = format!(
            "WARNING: maxmemory-policy {policy} may evict locks: an evicted lock's lease is over at once. \
             Use noeviction or a volatile-* policy"
        );
        log::write(About::Eviction, &line);
    }
}

/// The maxmemory-policy, if it can evict keys that have no TTL.
fn evicting_policy(ctx: Ctx) -> Option<String> {
    let reply = ctx.run_own(c"E", c"CONFIG", &[b"GET", b"maxmemory-policy"]);
    let policy = reply.element(1, |value| String::from_utf8_lossy(value.text()).into_owned())?;
    policy.starts_with("allkeys").then_some(policy)
}

unsafe extern "C" fn key_event(
    ctx: *mut raw::RedisModuleCtx,
    _class: c_int,
    event: *const c_char,
    key: *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: the server passes a context, a C string and a live string.
    guard(|| unsafe {
        let (ctx, name) = (Ctx::new(ctx), Name::new(key));
        match CStr::from_ptr(event).to_bytes() {
            event @ (b"expire" | b"restore" | b"rename_to" | b"move_to") => {
                arrivals::settle(ctx, event, name)
            }
            b"del" | b"expired" | b"evicted" => arrivals::forget(ctx, name),
            _ => {}
        }
    });
    raw::REDISMODULE_OK as c_int
}

unsafe extern "C" fn new_key(
    ctx: *mut raw::RedisModuleCtx,
    _class: c_int,
    _event: *const c_char,
    key: *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: the server passes a context and a live string.
    guard(|| unsafe { waiters::lose_key_to_data(Ctx::new(ctx), Name::new(key)) });
    raw::REDISMODULE_OK as c_int
}
