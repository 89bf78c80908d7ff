//! `FENCE.CHECK lock-or-fence token`

use lockfence_core::error::Refusal;
use lockfence_core::request::split_fenced;

use super::{check_token, refuse_on_replica};
use crate::boundary::Call;
use crate::reply::Failure;
use crate::server::Key;

pub(crate) fn run(call: &Call<'_>) -> Result<(), Failure> {
    let (token, rest) = split_fenced("fence.check", call.words, 0)?;
    if !rest.is_empty() {
        return Err(Refusal::WrongArity("fence.check").into());
    }
    refuse_on_replica()?;
    let mut key = Key::to_read(call.ctx, call.key()?);
    let counter = check_token(&mut key, token)?;
    call.ctx.reply_number(counter);
    Ok(())
}
