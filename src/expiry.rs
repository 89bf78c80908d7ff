//! The one timer: leases that end while somebody waits, waits that are over, records that are idle, and what is still to
//! be told.
//!
//! Expiry itself is decided on access; the timer only wakes. It is keyed by the server's wall clock, so it is never
//! set further than a second ahead, and the server's cron looks, too. Nothing is written here while the server must
//! not produce replication traffic (valkey#1921): it is caught up with afterwards.

use std::rc::Rc;

use lockfence_core::clock::{Instant, sooner};
use lockfence_core::planted::{self, Bug};
use lockfence_core::queue::Outcome;
use lockfence_core::room::Place;
use lockfence_core::wheel::Due;
use redis_module::raw;

use crate::boundary::timer_fired as timer_callback;
use crate::server::{Ctx, Key, Name, Slot, Timer, avoid_replica_traffic};
use crate::state;
use crate::waiters::{self, Delivered};
use crate::{arrivals, clock, commands, log};

/// The timer is set at most this far ahead, ms.
const FARTHEST_MS: u64 = 1_000;
/// How soon to look again while nothing may be written, ms.
const PAUSED_MS: u64 = 10;
/// How soon to try a hand-over again that the server's write rules refused, ms.
const REFUSED_MS: u64 = 100;
/// Locks looked at in one go, before other clients have their turn.
const LOCKS_AT_ONCE: usize = 200;
/// Waits ended in one go.
const TIMEOUTS_AT_ONCE: usize = 1_000;
/// Idle records looked at in one go.
const RECORDS_AT_ONCE: usize = 500;
/// How often the queues of a cluster are checked for slots that have moved, ms.
const SLOTS_MS: u64 = 1_000;

/// Sets the timer for the earliest moment at which something is to be done.
pub(crate) fn arm(ctx: Ctx, now: Instant) {
    set(ctx, now, now);
}

fn set(ctx: Ctx, now: Instant, not_before: Instant) {
    state::with(|state| {
        let returns = (!state.returns.is_empty()).then_some(state.returns_from.max(now));
        let arrived = (!state.arrived.is_empty()).then_some(now);
        let here = sooner(state.room.next_due(), state.wheel.next_due());
        let Some(due) = sooner(here, sooner(returns, arrived)) else { return };
        let due = due.max(not_before).min(now.plus_ms(FARTHEST_MS));
        if state.timer.as_ref().is_some_and(|(_, set_for)| *set_for <= due) {
            return;
        }
        if let Some((timer, _)) = state.timer.take() {
            timer.stop(ctx);
        }
        let timer = Timer::start(ctx, due.left_ms(now), Some(timer_callback));
        state.timer = Some((timer, due));
    });
}

/// The timer has fired.
pub(crate) fn timer_fired(ctx: Ctx) {
    // First of all: a timer must not be stopped while it fires.
    state::with(|state| state.timer = None);
    tick(ctx);
}

/// The server's cron: catches what a timer that depends on the wall clock missed.
pub(crate) fn cron(ctx: Ctx) {
    let now = clock::now().mono;
    log::tell_left_out(now);
    let (overdue, check_slots) = state::with(|state| {
        let overdue = state.timer.as_ref().is_some_and(|(_, due)| now > due.plus_ms(2));
        let check = now >= state.slots_checked.plus_ms(SLOTS_MS) && !state.room.is_empty();
        if check {
            state.slots_checked = now;
        }
        (overdue, check)
    });
    if check_slots && ctx.flags() & raw::REDISMODULE_CTX_FLAGS_CLUSTER != 0 {
        for place in state::with(|state| state.room.contended(None)) {
            check_slot(ctx, &place);
        }
    }
    if overdue {
        if let Some((timer, _)) = state::with(|state| state.timer.take()) {
            timer.stop(ctx);
        }
        tick(ctx);
    }
}

fn tick(ctx: Ctx) {
    let now = clock::now().mono;
    let flags = ctx.flags();
    let primary = flags & raw::REDISMODULE_CTX_FLAGS_MASTER != 0;
    let loading =
        flags & (raw::REDISMODULE_CTX_FLAGS_LOADING | raw::REDISMODULE_CTX_FLAGS_ASYNC_LOADING) != 0;
    state::with(|state| state.replica = !primary);
    let primary = primary || planted::is(Bug::ReplicaExpires);
    let may_write = primary && !loading && !avoid_replica_traffic();
    if may_write {
        arrivals::tell(ctx);
        give_back(ctx, now);
        for place in state::with(|state| state.room.overdue_locks(now, LOCKS_AT_ONCE)) {
            hand_over(ctx, &place, now);
        }
    }
    let may_look = may_write || (!primary && !loading);
    if may_look {
        for _ in 0..RECORDS_AT_ONCE {
            if !look_at_next_record(ctx, may_write) {
                break;
            }
        }
    }
    for _ in 0..TIMEOUTS_AT_ONCE {
        if !waiters::time_out_next(ctx, now) {
            break;
        }
    }
    let now = clock::now().mono;
    set(ctx, now, if may_look { now } else { now.plus_ms(PAUSED_MS) });
}

/// Serves the queue of one lock, by the server's own rules for writes (enough replicas, no failed save).
fn hand_over(ctx: Ctx, place: &Place, now: Instant) {
    ctx.select_db(place.db);
    let Err(error) = commands::run_hand_over(ctx, &place.key, None) else { return };
    if is_lost(&error.0) {
        waiters::lose_key(place.db, &place.key);
        return;
    }
    state::with(|state| state.room.watch(place.db, &place.key, Some(now.plus_ms(REFUSED_MS))));
}

/// Gives back leases whose reply has reached nobody.
fn give_back(ctx: Ctx, now: Instant) {
    if now < state::with(|state| state.returns_from) {
        return;
    }
    let mut refused: Vec<Rc<Delivered>> = Vec::new();
    for grant in state::with(|state| std::mem::take(&mut state.returns)) {
        if grant.told.get() {
            continue;
        }
        ctx.select_db(grant.db);
        let given_back = commands::run_hand_over(ctx, &grant.key, Some((&grant.owner, grant.token)));
        if given_back.is_err_and(|error| !is_lost(&error.0)) {
            refused.push(grant);
        }
    }
    if !refused.is_empty() {
        state::with(|state| {
            state.returns_from = now.plus_ms(REFUSED_MS);
            state.returns.append(&mut refused);
        });
    }
}

/// In a cluster: nobody redirects a client that waits here for a key whose slot has moved. It is told to ask again.
fn check_slot(ctx: Ctx, place: &Place) {
    ctx.select_db(place.db);
    let probe = ctx.run_own(c"E", c"EXISTS", &[&place.key]);
    if probe.error().is_some_and(|line| is_lost(&line)) {
        waiters::lose_key(place.db, &place.key);
    }
}

/// Whether there is nothing to serve any more: the server's words for a key of a slot that is not its own, or data
/// stands there now. Anything else (too few replicas, a failed save, a cluster that is down) is a reason to wait.
fn is_lost(line: &str) -> bool {
    line.contains("non local key") || line.starts_with("WRONGTYPE")
}

/// Looks at the next record that may be idle, and drops it if it is and may be dropped (not on a replica). `false` when
/// none is due.
fn look_at_next_record(ctx: Ctx, may_drop: bool) -> bool {
    let now = clock::now();
    let Some(due) = state::with(|state| state.wheel.take_due(now.mono)) else { return false };
    ctx.select_db(due.db);
    let name = ctx.text(&due.key);
    let mut key = Key::untouched(ctx, name.name());
    let Slot::Lock(record) = key.slot() else { return true };
    if record.lock.filed != due.filed {
        return true;
    }
    let idle = state::with(|state| {
        let idle_since = record.lock.free_since(now.mono);
        let idle = idle_since.is_some_and(|since| now.mono.since_ms(since) >= state.config.idle_ttl_ms);
        if !idle || !may_drop || state.room.queue(due.db, &due.key).is_some() {
            state.file(due.db, &due.key, record, now);
            return false;
        }
        if !state.issuer.covers(&record.lock, now) {
            state.file_much_later(due.db, &due.key, record, now);
            return false;
        }
        state.stats.idle_dropped = state.stats.idle_dropped.saturating_add(1);
        true
    });
    if !idle {
        return true;
    }
    if ctx.flags() & raw::REDISMODULE_CTX_FLAGS_CLUSTER != 0 {
        drop(key);
        drop_in_cluster(ctx, &due, name.name());
        return true;
    }
    key.delete();
    ctx.replicate_delete(name.name());
    ctx.signal_modified(name.name());
    true
}

/// Drops an idle record by the server's own command, which looks whose slot it is. A record of a slot that is still on
/// its way here stays.
fn drop_in_cluster(ctx: Ctx, due: &Due, name: Name<'_>) {
    if ctx.run(c"E!", c"UNLINK", &[name]).error().is_none() {
        return;
    }
    let mut key = Key::untouched(ctx, name);
    if let Slot::Lock(record) = key.slot() {
        state::with(|state| state.file(due.db, &due.key, record, clock::now()));
    }
}

/// Tells all who wait that this server no longer grants. What has been granted is the new primary's: an owner whose reply
/// was lost here may have heard of its grant there, so none is given back any more.
pub(crate) fn demoted() {
    waiters::lose_all(None, &Outcome::Demoted);
    state::with(|state| {
        state.replica = true;
        state.in_delivery.iter().for_each(|grant| grant.told.set(true));
        state.returns.clear();
        state.arrived.clear();
    });
}
