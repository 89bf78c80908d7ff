//! `FENCE.WRITE lock-or-fence token key value [SET options]`

use lockfence_core::error::Refusal;
use lockfence_core::request::split_fenced;

use super::{advance, check_token, refuse_on_replica};
use crate::boundary::Call;
use crate::reply::Failure;
use crate::server::{Ctx, Key, Name, Slot};

/// Where the data key stands in the command.
const DATA_KEY: usize = 3;
const DATA_KEY_POSITION: i32 = 3;

/// The keys of the command, for COMMAND GETKEYS, cluster routing and ACL.
pub(crate) fn keys(call: &Call<'_>) {
    call.ctx.report_keeper_key();
    call.ctx.report_data_key(DATA_KEY_POSITION);
}

pub(crate) fn run(call: &Call<'_>) -> Result<(), Failure> {
    let (token, rest) = split_fenced("fence.write", call.words, 2)?;
    refuse_on_replica()?;
    let name = call.key()?;
    let data = call.name(DATA_KEY).ok_or(Refusal::WrongArity("fence.write"))?;
    refuse_same_key(name, data)?;
    let options = rest.get(2..).unwrap_or_default();
    if options.iter().any(|option| option.eq_ignore_ascii_case(b"GET")) {
        refuse_unless_readable(call.ctx, data)?;
    }
    refuse_locks_and_fences(call.ctx, data)?;
    let mut key = Key::to_write(call.ctx, name);
    check_token(&mut key, token)?;
    advance::raise(&mut key, token, None);
    drop(key);
    // As the server itself: permission is asked for FENCE.WRITE and its keys, not for SET. !: replicated as its
    // effect. 0: in the caller's protocol. E: errors as replies.
    call.ctx.run(c"!0E", c"SET", &call.names_from(DATA_KEY)).pass_on();
    Ok(())
}

/// SET would end whatever lease stands at the key: LOCK.BREAK by those who may not.
fn refuse_locks_and_fences(ctx: Ctx, data: Name<'_>) -> Result<(), Failure> {
    match Key::to_read(ctx, data).slot() {
        Slot::Lock(_) | Slot::Fence(_) => Err(Failure::WrongType),
        Slot::Empty | Slot::Other => Ok(()),
    }
}

/// The record that says who may write must not be what is written.
pub(super) fn refuse_same_key(keeper: Name<'_>, data: Name<'_>) -> Result<(), Failure> {
    if keeper.bytes() == data.bytes() {
        return Err(Failure::Line("ERR the data key may not be the lock or fence itself".to_owned()));
    }
    Ok(())
}

/// SET … GET also reads: the key specification of FENCE.WRITE says only that it writes.
fn refuse_unless_readable(ctx: Ctx, data: Name<'_>) -> Result<(), Failure> {
    if ctx.user_may_read(data) {
        return Ok(());
    }
    let key = lockfence_core::text::quoted(data.bytes());
    Err(Failure::Line(format!("NOPERM this user may not read key {key}, as FENCE.WRITE with GET does")))
}
