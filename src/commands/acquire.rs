//! `LOCK.ACQUIRE lock owner ttl-ms [WAIT timeout-ms] [SHARED | LIMIT n] [MINTOKEN t] [WITHINFO]`

use lockfence_core::request::Acquire;
use lockfence_core::turn::Acquired;
use redis_module::raw;

use super::refuse_on_replica;
use crate::boundary::Call;
use crate::reply::{self, Failure};
use crate::server::{Ctx, Key, Slot};
use crate::turn::{at_lock, look_at};
use crate::{clock, events, state, waiters};

/// Contexts in which a client cannot be made to wait; there the answer is immediate. Blocking in one of them would
/// answer twice, or block a replication link.
const NEVER_WAIT: u32 = raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING
    | raw::REDISMODULE_CTX_FLAGS_MULTI
    | raw::REDISMODULE_CTX_FLAGS_LUA
    | raw::REDISMODULE_CTX_FLAGS_REPLICATED
    | raw::REDISMODULE_CTX_FLAGS_LOADING;

pub(crate) fn run(call: &Call<'_>) -> Result<(), Failure> {
    let max_ttl_ms = state::with(|state| state.config.max_ttl_ms);
    let mut request = Acquire::parse(call.words, max_ttl_ms)?;
    refuse_on_replica()?;
    if request.wait.is_some() && call.ctx.flags() & NEVER_WAIT != 0 {
        request.wait = None;
    }
    let name = call.key()?;
    let mut key = Key::to_write(call.ctx, name);
    let mut standing = None;
    let acquired = at_lock(&mut key, |turn| {
        let acquired = turn.acquire(&request);
        standing = matches!(acquired, Ok(Acquired::Busy)).then(|| turn.standing());
        acquired
    })??;
    match acquired {
        Acquired::Granted(grant) => {
            if grant.renewed {
                waiters::told_otherwise(call.ctx.db(), name.bytes(), request.owner.bytes());
            } else {
                state::with(|state| state.stats.grants = state.stats.grants.saturating_add(1));
            }
            reply::granted(call.ctx, grant, request.with_info);
        }
        Acquired::Busy => {
            if request.wait.is_none() {
                state::with(|state| state.stats.refused = state.stats.refused.saturating_add(1));
            } else if wait(call.ctx, &mut key, &request)? {
                return Ok(());
            }
            reply::not_granted(call.ctx, &standing.unwrap_or_default(), request.with_info);
        }
    }
    Ok(())
}

fn wait(ctx: Ctx, key: &mut Key<'_>, request: &Acquire<'_>) -> Result<bool, Failure> {
    let now = clock::now().mono;
    let grants_from = state::with(|state| state.grants_from);
    let name = key.name();
    let lock = match key.slot() {
        Slot::Lock(record) => Some(&record.lock),
        Slot::Empty | Slot::Fence(_) | Slot::Other => {
            events::hear_of_new_keys(ctx);
            None
        }
    };
    // A lease may have ended since the turn: then look at once.
    waiters::enqueue(ctx, name.bytes(), request, |first| look_at(lock, first, now, grants_from))
}
