//! Records that arrive under a name: RENAME, RESTORE, MOVE. And EXPIRE, which a lock does not know.
//!
//! Over a lock that stands, the primary decides what becomes of the two, and tells replicas and the AOF the result: a
//! snapshot, once the command is done. They do not decide themselves. They see the command at another time, with other
//! commands around it, and could come to another result.

use lockfence_core::codec::Log;
use redis_module::raw;

use crate::boundary::Whole;
use crate::clock;
use crate::expiry;
use crate::server::{CommandTime, Ctx, Key, Name, Slot, call_after_command};
use crate::state::{self, Arrived};

/// A server that decides nothing: it follows another, or reads a file.
const FOLLOWS: u32 = raw::REDISMODULE_CTX_FLAGS_SLAVE | raw::REDISMODULE_CTX_FLAGS_LOADING;

/// Something was done to the key by `event`. A lock carries no TTL of the server's: EXPIRE and the like do not touch a
/// lease. A record that arrives joins the one that stood there, and its counter may not be the highest of that name.
pub(crate) fn settle(ctx: Ctx, event: &[u8], name: Name<'_>) {
    let mut key = Key::untouched(ctx, name);
    if !matches!(key.slot(), Slot::Lock(_)) {
        return;
    }
    if key.expires_at_ms().is_some() {
        key.set_expires_at_ms(None);
    }
    if event == b"expire" {
        return;
    }
    let db = key.db();
    let Slot::Lock(record) = key.slot() else { return };
    let now = clock::now();
    let whole = Whole;
    let decides = ctx.flags() & FOLLOWS == 0;
    let first = state::with(|state| {
        let bytes = name.bytes();
        let stood = if decides { state.stood(db, bytes, CommandTime::now()) } else { None };
        let joined = stood.is_some();
        if let Some(stood) = stood {
            record.lock.arrive_over(stood, now.mono);
            whole.half_way();
        }
        state.unlinked.clear();
        record.lock.mark_arrived();
        state.file(db, bytes, record, now);
        // What has just joined may go on to other names before it is told.
        let first = state.arrived.is_empty();
        if joined || !first {
            state.arrived.push(Arrived { db, key: bytes.into() });
        }
        joined && first
    });
    drop(key);
    if first {
        call_after_command(ctx);
    }
    expiry::arm(ctx, now.mono);
}

/// A key has gone for good: what arrives there later, in a command of its own, finds nothing standing. (Where the server
/// names another database here, see [`Key::db`], the record is remembered until its command, or the turn, is over.)
pub(crate) fn forget(ctx: Ctx, name: Name<'_>) {
    let (db, key) = (ctx.db(), name.bytes());
    state::with(|state| state.unlinked.retain(|old| old.db != db || old.key != key));
}

/// Tells replicas and the AOF what the records now are that have joined others.
pub(crate) fn tell(ctx: Ctx) {
    let now = clock::now();
    for Arrived { db, key } in state::with(|state| std::mem::take(&mut state.arrived)) {
        ctx.select_db(db);
        let name = ctx.text(&key);
        if let Slot::Lock(record) = Key::untouched(ctx, name.name()).slot() {
            let mut log = Log::default();
            log.push_snapshot(&record.lock, now);
            ctx.replicate_effect(name.name(), log.bytes());
        }
    }
}
