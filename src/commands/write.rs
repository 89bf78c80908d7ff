//! `FENCE.WRITE lock-or-fence token key value [SET options]`

use lockfence_core::error::Refusal;
use lockfence_core::request::split_fenced;

use super::{advance, check_token, refuse_on_replica};
use crate::boundary::Call;
use crate::reply::Failure;
use crate::server::{Ctx, InnerKeys, Key, Name, Slot};

/// Where the data key stands in the command.
const DATA_KEY: usize = 3;
const DATA_KEY_POSITION: i32 = 3;
/// Token, key and value.
const WORDS_WITHOUT_OPTIONS: usize = 3;

/// The keys of the command, for COMMAND GETKEYS, cluster routing and ACL. The data key is what it is to SET with the
/// same options: with GET, and whatever else a server reads for, the user must be allowed to read it.
pub(crate) fn keys(call: &Call<'_>) {
    call.ctx.report_keeper_key();
    if call.words.len() <= WORDS_WITHOUT_OPTIONS {
        call.ctx.report_data_key(DATA_KEY_POSITION);
        return;
    }
    let set = call.ctx.text(b"SET");
    let words: Vec<Name<'_>> = std::iter::once(set.name()).chain(call.names_from(DATA_KEY)).collect();
    match InnerKeys::of(call.ctx, &words) {
        Ok(keys) if !keys.is_empty() => keys.report(call.ctx, DATA_KEY.saturating_sub(1)),
        _ => call.ctx.report_data_key(DATA_KEY_POSITION),
    }
}

pub(crate) fn run(call: &Call<'_>) -> Result<(), Failure> {
    let (token, _) = split_fenced("fence.write", call.words, 2)?;
    refuse_on_replica()?;
    let name = call.key()?;
    let data = call.name(DATA_KEY).ok_or(Refusal::WrongArity("fence.write"))?;
    refuse_same_key(name, data)?;
    refuse_locks_and_fences(call.ctx, data)?;
    let mut key = Key::to_write(call.ctx, name);
    check_token(&mut key, token)?;
    advance::raise(&mut key, token, None);
    drop(key);
    // As the server itself: permission is asked for FENCE.WRITE and its keys, not for SET. !: replicated as its
    // effect. 0: in the caller's protocol. E: errors as replies.
    Ok(call.ctx.run(c"!0E", c"SET", &call.names_from(DATA_KEY)).pass_on()?)
}

/// Whatever the inner command does with its keys, it must not end a lease or a fence: LOCK.BREAK by those who may not.
pub(super) fn refuse_locks_and_fences(ctx: Ctx, data: Name<'_>) -> Result<(), Failure> {
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
