//! `LOCK.INFO lock [FULL [COUNT n]]`

use lockfence_core::clock::Instant;
use lockfence_core::ids::Mode;
use lockfence_core::lock::{Holder, Lock};
use lockfence_core::queue::{Queue, Waiter};
use lockfence_core::request::Info;

use crate::boundary::Call;
use crate::reply::Failure;
use crate::server::{Blocked, Ctx, Key, Slot};
use crate::{clock, state};

/// Fields of the map, and those that FULL adds.
const FIELDS: u64 = 11;
const FULL_FIELDS: u64 = 2;

pub(crate) fn run(call: &Call<'_>) -> Result<(), Failure> {
    let request = Info::parse(call.words)?;
    let name = call.key()?;
    let mut key = Key::to_read(call.ctx, name);
    // Who waits through the quarantine may wait for a lock that has no record.
    let none = Lock::default();
    let (lock, stands) = match key.slot() {
        Slot::Lock(record) => (&record.lock, true),
        Slot::Empty => (&none, false),
        Slot::Fence(_) | Slot::Other => return Err(Failure::WrongType),
    };
    let now = clock::now().mono;
    state::with(|state| {
        let queue = state.room.queue(call.ctx.db(), name.bytes());
        if !stands && queue.is_none() {
            call.ctx.reply_null();
            return;
        }
        call.ctx.reply_map(FIELDS.saturating_add(if request.full.is_some() { FULL_FIELDS } else { 0 }));
        summary(call.ctx, lock, queue, now);
        if let Some(count) = request.full {
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            holders(call.ctx, lock, count, now);
            waiters(call.ctx, queue, count, now);
        }
    });
    Ok(())
}

fn summary(ctx: Ctx, lock: &Lock, queue: Option<&Queue<Blocked>>, now: Instant) {
    let held = lock.live_count(now);
    let first = lock.first_live(now);
    let field = |name: &str| ctx.reply_bytes(name.as_bytes());
    field("state");
    field(if held > 0 { "held" } else { "free" });
    field("mode");
    optional(ctx, first, |ctx, _| ctx.reply_bytes(lock.mode().name().as_bytes()));
    field("limit");
    let limit = match lock.mode() {
        Mode::Exclusive => Some(1),
        Mode::Limit(n) => Some(u64::from(n)),
        Mode::Shared => None,
    };
    optional(ctx, first.and(limit), Ctx::reply_number);
    field("token");
    optional(ctx, first, |ctx, holder| ctx.reply_number(holder.token));
    field("counter");
    ctx.reply_number(lock.counter());
    field("grants");
    ctx.reply_number(lock.grants());
    field("holders");
    ctx.reply_number(held);
    field("waiters");
    ctx.reply_number(queue.map_or(0, |queue| u64::try_from(queue.len()).unwrap_or(u64::MAX)));
    field("owner");
    optional(ctx, first, |ctx, holder| ctx.reply_bytes(&holder.owner.bytes()));
    field("ttl-ms");
    ctx.reply_number(lock.next_end(now).map_or(0, |ends| ends.left_ms(now)));
    field("held-ms");
    ctx.reply_number(first.map_or(0, |holder| now.since_ms(holder.since)));
}

fn optional<T>(ctx: Ctx, value: Option<T>, write: impl FnOnce(Ctx, T)) {
    match value {
        Some(value) => write(ctx, value),
        None => ctx.reply_null(),
    }
}

fn holders(ctx: Ctx, lock: &Lock, count: usize, now: Instant) {
    let listed: Vec<Holder<'_>> = lock.live(now).take(count).collect();
    ctx.reply_bytes(b"holder-list");
    ctx.reply_array(u64::try_from(listed.len()).unwrap_or(0));
    for holder in listed {
        ctx.reply_map(4);
        ctx.reply_bytes(b"owner");
        ctx.reply_bytes(&holder.owner.bytes());
        ctx.reply_bytes(b"token");
        ctx.reply_number(holder.token);
        ctx.reply_bytes(b"ttl-ms");
        ctx.reply_number(holder.lease.ends.left_ms(now));
        ctx.reply_bytes(b"held-ms");
        ctx.reply_number(now.since_ms(holder.since));
    }
}

fn waiters(ctx: Ctx, queue: Option<&Queue<Blocked>>, count: usize, now: Instant) {
    let listed: Vec<&Waiter<Blocked>> = queue.into_iter().flat_map(Queue::iter).take(count).collect();
    ctx.reply_bytes(b"waiter-list");
    ctx.reply_array(u64::try_from(listed.len()).unwrap_or(0));
    for waiter in listed {
        ctx.reply_map(5);
        ctx.reply_bytes(b"owner");
        ctx.reply_bytes(&waiter.owner);
        ctx.reply_bytes(b"mode");
        ctx.reply_bytes(waiter.mode.name().as_bytes());
        ctx.reply_bytes(b"waited-ms");
        ctx.reply_number(now.since_ms(waiter.since));
        ctx.reply_bytes(b"left-ms");
        optional(ctx, waiter.until, |ctx, until| ctx.reply_number(until.left_ms(now)));
        ctx.reply_bytes(b"client-id");
        ctx.reply_number(waiter.client_id);
    }
}
