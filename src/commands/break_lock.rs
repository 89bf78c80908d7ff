//! `LOCK.BREAK lock`

use lockfence_core::error::Refusal;

use super::refuse_on_replica;
use crate::boundary::Call;
use crate::log::{self, About};
use crate::reply::Failure;
use crate::server::{Ctx, Key};
use crate::turn::at_lock;

pub(crate) fn run(call: &Call<'_>) -> Result<(), Failure> {
    if !call.words.is_empty() {
        return Err(Refusal::WrongArity("lock.break").into());
    }
    refuse_on_replica()?;
    let name = call.key()?;
    let mut key = Key::to_write(call.ctx, name);
    let ended = at_lock(&mut key, |turn| turn.break_all())?;
    if ended > 0 {
        tell(call.ctx, name.bytes(), ended);
    }
    call.ctx.reply_number(ended);
    Ok(())
}

/// An administrator's step that takes a lock from its holder belongs in the log.
fn tell(ctx: Ctx, key: &[u8], ended: u64) {
    let key = lockfence_core::text::quoted(key);
    let line = format!("LOCK.BREAK {key} by client {} ended {ended} lease(s)", ctx.client_id());
    log::write(About::Break, &line);
}
