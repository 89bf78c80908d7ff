//! One command's turn at one lock, in the keyspace: opens the record, lets the core decide, stores, tells replicas (if there
//! are any), wakes.

use lockfence_core::clock::{Instant, Now};
use lockfence_core::codec::Log;
use lockfence_core::lock::Lock;
use lockfence_core::planted::{self, Bug};
use lockfence_core::queue::{Answer, Waiter};
use lockfence_core::turn::Turn;

use crate::boundary::Whole;
use crate::clock;
use crate::key_type::LockRecord;
use crate::reply::Failure;
use crate::server::{Blocked, Ctx, Key, Slot};
use crate::state::{self, State};
use crate::{audience, expiry, neighbours, waiters};

/// After a turn whoever could be served has been. A queue is not looked at again sooner than after this, so that nothing
/// can keep the timer busy: 1 ms.
const LOOK_SOONEST_MS: u64 = 1;

/// Takes a turn at the lock `key`, which is open for writing. `work` decides and applies; what it did is stored,
/// replicated and told to waiters before this returns.
pub(crate) fn at_lock<R>(
    key: &mut Key<'_>,
    work: impl FnOnce(&mut Turn<'_, Blocked>) -> R,
) -> Result<R, Failure> {
    let whole = Whole;
    let now = clock::now();
    let ctx = key.ctx();
    let db = ctx.db();
    // Where it will stay: moving a record costs more than making one.
    let mut fresh: Option<Box<LockRecord>> = None;
    let name = key.name().bytes();
    let (record, stands) = match key.slot() {
        Slot::Empty => (&mut **fresh.insert(Box::default()), false),
        Slot::Lock(record) => (record, true),
        Slot::Fence(_) | Slot::Other => return Err(Failure::WrongType),
    };
    let (mut log, mut answers) = (Log::default(), Vec::new());
    let result = state::with(|state| {
        log = std::mem::take(&mut state.spare_log);
        let result = take(state, (db, name), &mut record.lock, now, (&mut log, &mut answers), work);
        whole.half_way();
        if !log.is_empty() {
            announce_floor(state, ctx, &mut log);
            if stands {
                state.file_sooner(db, name, record, now);
            } else {
                state.file(db, name, record, now);
            }
        }
        result
    });
    if !log.is_empty() {
        if let Some(fresh) = fresh {
            key.set_lock(fresh);
        }
        if !(planted::is(Bug::TimerUnreplicated) && state::with(|state| state.running_own)) {
            audience::send(ctx, key.name(), log.bytes());
        }
        ctx.signal_modified(key.name());
    }
    if !answers.is_empty() {
        waiters::deliver(db, name, answers);
    }
    state::with(|state| state.spare_log = log.emptied());
    expiry::arm(ctx, now.mono);
    Ok(result)
}

fn take<R>(
    state: &mut State,
    (db, name): (u32, &[u8]),
    lock: &mut Lock,
    now: Now,
    (log, answers): (&mut Log, &mut Vec<Answer<Blocked>>),
    work: impl FnOnce(&mut Turn<'_, Blocked>) -> R,
) -> R {
    let grants_from = state.grants_from;
    let State { issuer, room, .. } = state;
    let queue = if room.is_empty() { None } else { room.queue_mut(db, name) };
    let queued = queue.is_some();
    let mut turn = Turn { lock, queue, issuer, now, grants_from, log, answers };
    let result = work(&mut turn);
    if queued {
        let soonest = now.mono.plus_ms(LOOK_SOONEST_MS);
        room.settle(db, name, answers, |first| {
            look_at(Some(lock), first, now.mono, grants_from).max(soonest)
        });
        for answer in answers {
            state.waiting.remove(&answer.waiter.handle);
        }
    }
    result
}

/// When the first of those who wait for this lock may be served without any command: once enough leases have ended, and
/// the quarantine.
pub(crate) fn look_at(
    lock: Option<&Lock>,
    first: &Waiter<Blocked>,
    now: Instant,
    grants_from: Instant,
) -> Instant {
    lock.map_or(now, |lock| lock.serves_from(&first.owner, first.mode, now)).max(grants_from)
}

/// The first effect after a start also carries the floor, so that a server that takes over stays above it. Another module
/// may run a command without having it replicated, also inside of a transaction, and nothing tells whether an effect went
/// out: the floor is repeated until it was in one that the timer made, or a client's own command where there is no other
/// module.
fn announce_floor(state: &mut State, ctx: Ctx, log: &mut Log) {
    let floor = state.issuer.floor();
    if floor.token == state.announced_floor {
        return;
    }
    log.push_floor(floor);
    if state.running_own || neighbours::runs_for_a_client(ctx) {
        state.announced_floor = floor.token;
    }
}
