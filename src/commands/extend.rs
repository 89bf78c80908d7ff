//! `LOCK.EXTEND lock owner ttl-ms [MINTOKEN t]`

use lockfence_core::request::Extend;

use super::refuse_on_replica;
use crate::boundary::Call;
use crate::reply::Failure;
use crate::server::Key;
use crate::state;
use crate::turn::at_lock;

pub(crate) fn run(call: &Call<'_>) -> Result<(), Failure> {
    let max_ttl_ms = state::with(|state| state.config.max_ttl_ms);
    let request = Extend::parse(call.words, max_ttl_ms)?;
    refuse_on_replica()?;
    let mut key = Key::to_write(call.ctx, call.key()?);
    let extended = at_lock(&mut key, |turn| turn.extend(request.owner, request.ttl, request.min_token))??;
    call.ctx.reply_number(u64::from(extended));
    Ok(())
}
