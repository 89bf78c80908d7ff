//! `LF.LOG key log`: internal. What a primary did, as its replicas and the AOF get it. It decides nothing,
//! reads no clock but to place wall-clock times on this process's own, and cannot fail on what it finds.

use lockfence_core::clock::Now;
use lockfence_core::codec::{Change, Marks, read_log};
use lockfence_core::event::Event;
use lockfence_core::fence::Fence;
use lockfence_core::ids::Token;
use lockfence_core::lock::Lock;
use redis_module::raw;

use crate::boundary::{Call, Whole};
use crate::key_type::{FenceRecord, LockRecord};
use crate::reply::Failure;
use crate::server::{Key, Slot};
use crate::{clock, expiry, state};

/// The replication link, the AOF, and the server's own slot migration. Nobody else may say what happened.
/// (While a replica loads in the background it serves clients: that flag says nothing of who is calling.)
const TRUSTED: u32 = raw::REDISMODULE_CTX_FLAGS_REPLICATED | raw::REDISMODULE_CTX_FLAGS_LOADING;

pub(crate) fn run(call: &Call<'_>) -> Result<(), Failure> {
    if call.ctx.flags() & TRUSTED == 0 {
        return Err(Failure::Line("ERR LF.LOG is for the replication link and the AOF only".to_owned()));
    }
    let [log] = call.words else { return Err(Failure::Line("ERR LF.LOG key log".to_owned())) };
    let now = clock::now();
    let changes =
        read_log(log, now).map_err(|corrupt| Failure::Line(format!("ERR lockfence effect: {corrupt}")))?;
    let mut key = Key::to_write(call.ctx, call.key()?);
    let whole = Whole;
    for change in changes {
        match change {
            Change::Lock(event) => apply(&mut key, &event, now, &whole),
            Change::Snapshot(lock) => replace(&mut key, lock, now, &whole),
            Change::Fence(marks) => see(&mut key, marks),
            Change::Floor(floor) => state::with(|state| state.issuer.learn_floor(floor, now)),
        }
    }
    call.ctx.signal_modified(key.name());
    drop(key);
    call.ctx.replicate_verbatim();
    // On a primary: a slot that arrives brings records that may be idle.
    expiry::arm(call.ctx, now.mono);
    call.ctx.reply_ok();
    Ok(())
}

fn apply(key: &mut Key<'_>, event: &Event<'_>, now: Now, whole: &Whole) {
    state::with(|state| match event {
        Event::Granted { token, .. } | Event::Extended { token, .. } => state.issuer.followed(*token, now),
        Event::Broken { counter, .. } => state.issuer.followed(*counter, now),
        Event::Ended { .. } | Event::BrokenUpTo { .. } => {}
    });
    if let Slot::Lock(record) = key.slot() {
        record.lock.apply(event);
        whole.half_way();
        return;
    }
    // A record begins with a grant, or arrives whole.
    if matches!(event, Event::Granted { .. }) {
        let mut lock = Lock::default();
        lock.apply(event);
        begin(key, lock, now, whole);
    }
}

fn replace(key: &mut Key<'_>, lock: Lock, now: Now, whole: &Whole) {
    state::with(|state| state.issuer.loaded(lock.counter(), now));
    if let Slot::Lock(record) = key.slot() {
        record.lock.replace(lock);
        whole.half_way();
    } else {
        begin(key, lock, now, whole);
    }
}

/// A record where there was none. Whatever else stands here, the primary says that it is a lock.
fn begin(key: &mut Key<'_>, lock: Lock, now: Now, whole: &Whole) {
    whole.half_way();
    let mut record = LockRecord { lock };
    state::with(|state| state.file(key.ctx().db(), key.name().bytes(), &mut record, now));
    key.set_lock(Box::new(record));
}

fn see(key: &mut Key<'_>, marks: Marks) {
    if let Slot::Fence(record) = key.slot() {
        record.fence.see(marks.token);
    } else if let Some(token) = Token::new(marks.token) {
        key.set_fence(Box::new(FenceRecord { fence: Fence::new(token) }));
    }
    if marks.expires_at_ms.is_some() {
        key.set_expires_at_ms(marks.expires_at_ms);
    }
}
