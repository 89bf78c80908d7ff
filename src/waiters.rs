//! Clients that wait for a lock: from their request to their answer, or to their end.
//!
//! Each has exactly one end: an answer ([`deliver`]), a time-out, a disconnect. A grant changes the lock at hand-over;
//! the reply callback only replies. A grant whose reply reached nobody is given back ([`Delivered`]).

use std::cell::Cell;
use std::rc::Rc;

use lockfence_core::clock::Instant;
use lockfence_core::planted::{self, Bug};
use lockfence_core::queue::{Answer, Outcome, Standing, Waiter, WaiterId};
use lockfence_core::request::{Acquire, Wait};
use lockfence_core::room::{Capacity, Place};
use lockfence_core::turn::standing;

use crate::boundary::{disconnected, free_delivery, reply_waiter, timed_out_by_command};
use crate::reply;
use crate::server::{Blocked, Callbacks, Ctx, Key, Level, Name, Slot, handle_of};
use crate::state;
use crate::{clock, expiry};

/// A grant made to one or several waiting requests of one owner, until one of their replies has gone out.
#[derive(Debug)]
pub(crate) struct Delivered {
    pub(crate) db: u32,
    pub(crate) key: Rc<[u8]>,
    pub(crate) owner: Box<[u8]>,
    pub(crate) token: u64,
    /// Whether a client has been told of it, or may have been on another server: then it is not given back.
    pub(crate) told: Cell<bool>,
}

/// What the reply callback gets.
#[derive(Debug)]
pub(crate) struct Delivery {
    outcome: Outcome,
    with_info: bool,
    key: Rc<[u8]>,
    grant: Option<Rc<Delivered>>,
}

/// Lets the client of this command wait for `key`. `Ok(false)` where the server cannot let it wait: then the answer
/// is immediate.
pub(crate) fn enqueue(
    ctx: Ctx,
    key: &[u8],
    request: &Acquire<'_>,
    look_at: impl FnOnce(&Waiter<Blocked>) -> Instant,
) -> Result<bool, reply::Failure> {
    let now = clock::now().mono;
    let db = ctx.db();
    state::with(|state| {
        let capacity =
            Capacity { all: state.config.max_waiters, per_lock: state.config.max_waiters_per_lock };
        state.room.admit(db, key, capacity)
    })?;
    let callbacks = Callbacks {
        reply: Some(reply_waiter),
        timeout: Some(timed_out_by_command),
        free: Some(free_delivery),
        disconnect: Some(disconnected),
    };
    let Some(handle) = Blocked::new(ctx, callbacks) else { return Ok(false) };
    let waiter = Waiter {
        owner: request.owner.bytes().into(),
        ttl: request.ttl,
        mode: request.mode,
        min_token: request.min_token,
        with_info: request.with_info,
        since: now,
        until: match request.wait {
            Some(Wait::Ms(ms)) => Some(now.plus_ms(ms)),
            Some(Wait::Forever) | None => None,
        },
        client_id: ctx.client_id(),
        handle,
    };
    state::with(|state| {
        let id = state.room.enqueue(db, key, waiter, look_at);
        state.waiting.insert(handle, id);
    });
    expiry::arm(ctx, now);
    Ok(true)
}

/// Sends answers to those who waited for `key`. They are out of the queue already.
pub(crate) fn deliver(db: u32, key: &[u8], answers: Vec<Answer<Blocked>>) {
    let key: Rc<[u8]> = key.into();
    // One grant may answer several requests of its owner; they come one after the other.
    let mut last: Option<Rc<Delivered>> = None;
    for Answer { waiter, outcome, .. } in answers {
        let grant = match &outcome {
            Outcome::Granted(grant) => {
                let token = grant.token.get();
                let same = last.take().filter(|last| last.token == token && *last.owner == *waiter.owner);
                last = Some(same.unwrap_or_else(|| delivered(db, &key, &waiter.owner, token)));
                last.clone()
            }
            _ => None,
        };
        send(&waiter, outcome, &key, grant);
    }
}

fn delivered(db: u32, key: &Rc<[u8]>, owner: &[u8], token: u64) -> Rc<Delivered> {
    let grant = Delivered { db, key: Rc::clone(key), owner: owner.into(), token, told: Cell::new(false) };
    let grant = Rc::new(grant);
    state::with(|state| {
        state.stats.grants = state.stats.grants.saturating_add(1);
        state.stats.handovers = state.stats.handovers.saturating_add(1);
        state.in_delivery.push_back(Rc::clone(&grant));
    });
    grant
}

fn send(waiter: &Waiter<Blocked>, outcome: Outcome, key: &Rc<[u8]>, grant: Option<Rc<Delivered>>) {
    let delivery = Delivery { outcome, with_info: waiter.with_info, key: Rc::clone(key), grant };
    waiter.handle.answer(Box::new(delivery));
}

/// Tells all who wait for one lock that its key has gone.
pub(crate) fn lose_key(db: u32, key: &[u8]) {
    let taken =
        state::with(|state| if state.room.is_empty() { Vec::new() } else { state.room.take_key(db, key) });
    if !taken.is_empty() && !planted::is(Bug::LostKeyUntold) {
        dismiss(taken, &key.into(), &Outcome::LockLost);
    }
}

/// A key has come to be. If it is no lock, who waits for a lock there is told.
///
/// The key is opened only where somebody waits for that name: this is called for each new key of the server. In which
/// database it is only the key itself says.
pub(crate) fn lose_key_to_data(ctx: Ctx, name: Name<'_>) {
    if !state::with(|state| state.room.has_name(name.bytes())) {
        return;
    }
    let mut key = Key::untouched(ctx, name);
    let db = key.db();
    if matches!(key.slot(), Slot::Fence(_) | Slot::Other) {
        lose_key(db, name.bytes());
    }
}

/// Tells all who wait in a database, or anywhere, that their locks have gone, or that this server is a replica now.
pub(crate) fn lose_all(db: Option<u32>, outcome: &Outcome) {
    for Place { db, key } in state::with(|state| state.room.contended(db)) {
        let taken = state::with(|state| state.room.take_key(db, &key));
        dismiss(taken, &key, outcome);
    }
}

fn dismiss(taken: Vec<(WaiterId, Waiter<Blocked>)>, key: &Rc<[u8]>, outcome: &Outcome) {
    for (_, waiter) in taken {
        state::with(|state| {
            state.waiting.remove(&waiter.handle);
            state.stats.lost = state.stats.lost.saturating_add(1);
        });
        send(&waiter, outcome.clone(), key, None);
    }
}

/// The time of the next overdue waiter is over. `false` when there is none.
pub(crate) fn time_out_next(ctx: Ctx, now: Instant) -> bool {
    let Some((place, waiter)) = state::with(|state| {
        let id = state.room.overdue_waiter(now)?;
        let (place, waiter) = state.room.remove(id)?;
        state.waiting.remove(&waiter.handle);
        state.stats.timeouts = state.stats.timeouts.saturating_add(1);
        look_soon(state, &place, now);
        Some((place, waiter))
    }) else {
        return false;
    };
    send(&waiter, not_granted(ctx, &place, &waiter, now), &place.key, None);
    true
}

/// Somebody left the queue: whoever is behind may fit now (a reader behind a writer that gave up).
fn look_soon(state: &mut state::State, place: &Place, now: Instant) {
    state.room.watch(place.db, &place.key, Some(now));
}

/// The answer to a waiter that has left without a grant. Only one that asked for a map is told who stands in the way.
fn not_granted(ctx: Ctx, place: &Place, waiter: &Waiter<Blocked>, now: Instant) -> Outcome {
    Outcome::NotGranted(if waiter.with_info { standing_at(ctx, place, now) } else { Standing::default() })
}

fn standing_at(ctx: Ctx, place: &Place, now: Instant) -> Standing {
    let before = ctx.db();
    ctx.select_db(place.db);
    let name = ctx.text(&place.key);
    let mut key = Key::to_read(ctx, name.name());
    let lock = match key.slot() {
        Slot::Lock(record) => Some(&record.lock),
        Slot::Empty | Slot::Fence(_) | Slot::Other => None,
    };
    let found = state::with(|state| standing(lock, state.room.queue(place.db, &place.key), now));
    drop(key);
    ctx.select_db(before);
    found
}

/// This owner has been told on another connection that it holds the lock: what was granted to its waiting requests is
/// not given back, even if none of their replies goes out.
pub(crate) fn told_otherwise(db: u32, key: &[u8], owner: &[u8]) {
    state::with(|state| {
        for grant in state.in_delivery.iter().chain(&state.returns) {
            if grant.db == db && *grant.key == *key && *grant.owner == *owner {
                grant.told.set(true);
            }
        }
    });
}

/// Body of the reply callback.
pub(crate) fn reply_to(ctx: Ctx, delivery: Option<&Delivery>) {
    let Some(delivery) = delivery else {
        ctx.log(Level::Warning, "a waiting client was woken without an answer");
        ctx.reply_null();
        return;
    };
    if let Some(grant) = &delivery.grant {
        grant.told.set(true);
    }
    reply::outcome(ctx, &delivery.outcome, delivery.with_info, &delivery.key);
}

/// Body of the time-out callback: CLIENT UNBLOCK … TIMEOUT.
pub(crate) fn unblocked_by_command(ctx: Ctx) {
    let handle = handle_of(ctx);
    let now = clock::now().mono;
    let Some((place, waiter)) = leave(handle, now) else {
        ctx.reply_null();
        return;
    };
    reply::outcome(ctx, &not_granted(ctx, &place, &waiter, now), waiter.with_info, &place.key);
    handle.let_go();
    expiry::arm(ctx, now);
}

/// Body of the disconnect callback. Nothing may be written here.
pub(crate) fn gone(ctx: Ctx, handle: Blocked) {
    let now = clock::now().mono;
    if leave(handle, now).is_some() {
        handle.let_go();
        expiry::arm(ctx, now);
    }
}

fn leave(handle: Blocked, now: Instant) -> Option<(Place, Waiter<Blocked>)> {
    state::with(|state| {
        let id = state.waiting.remove(&handle)?;
        let left = state.room.remove(id)?;
        look_soon(state, &left.0, now);
        Some(left)
    })
}

/// Body of the free callback: the delivery is done with. If it was a grant and no reply of it has gone out, the lease
/// is given back to those behind.
pub(crate) fn done_with(ctx: Ctx, delivery: Delivery) {
    let Some(grant) = delivery.grant else { return };
    state::with(|state| {
        if Rc::strong_count(&grant) > 2 {
            return; // another reply of this grant is still to go out
        }
        // Replies go out in the order of the grants: it is the first, or nearly.
        if let Some(place) = state.in_delivery.iter().position(|other| Rc::ptr_eq(other, &grant)) {
            state.in_delivery.remove(place);
        }
        if !grant.told.get() {
            state.returns.push(grant);
        }
    });
    expiry::arm(ctx, clock::now().mono);
}
