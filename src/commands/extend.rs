//! `LOCK.EXTEND lock owner ttl-ms [MINTOKEN t]`

use lockfence_core::request::Extend;

use super::refuse_on_replica;
use crate::boundary::Call;
use crate::reply::Failure;
use crate::server::Key;
use crate::turn::at_lock;
use crate::{state, waiters};

pub(crate) fn run(call: &Call<'_>) -> Result<(), Failure> {
    let max_ttl_ms = state::with(|state| state.config.max_ttl_ms);
    let request = Extend::parse(call.words, max_ttl_ms)?;
    refuse_on_replica()?;
    let name = call.key()?;
    let mut key = Key::to_write(call.ctx, name);
    let extended = at_lock(&mut key, |turn| turn.extend(request.owner, request.ttl, request.min_token))??;
    if extended {
        waiters::told_otherwise(call.ctx.db(), name.bytes(), request.owner.bytes());
    }
    call.ctx.reply_number(u64::from(extended));
    Ok(())
}
