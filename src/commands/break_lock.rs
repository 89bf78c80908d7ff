//! `LOCK.BREAK lock [MAXTOKEN t]`

use lockfence_core::request::Break;

use super::refuse_on_replica;
use crate::boundary::Call;
use crate::log::{self, About};
use crate::reply::Failure;
use crate::server::{Ctx, Key};
use crate::turn::at_lock;

pub(crate) fn run(call: &Call<'_>) -> Result<(), Failure> {
    let request = Break::parse(call.words)?;
    refuse_on_replica()?;
    let name = call.key()?;
    let mut key = Key::to_write(call.ctx, name);
    let ended = at_lock(&mut key, |turn| turn.break_holders(request))?;
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
