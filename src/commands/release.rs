//! `LOCK.RELEASE lock owner`

use lockfence_core::request::Release;

use super::refuse_on_replica;
use crate::boundary::Call;
use crate::reply::Failure;
use crate::server::Key;
use crate::turn::at_lock;

pub(crate) fn run(call: &Call<'_>) -> Result<(), Failure> {
    let request = Release::parse(call.words)?;
    refuse_on_replica()?;
    let mut key = Key::to_write(call.ctx, call.key()?);
    let released = at_lock(&mut key, |turn| turn.release(request.owner))?;
    call.ctx.reply_number(u64::from(released));
    Ok(())
}
