//! `FENCE.ADVANCE fence token [PX ms]`, and how any command raises a fence.

use lockfence_core::codec::{Log, Marks};
use lockfence_core::fence::Fence;
use lockfence_core::ids::Token;
use lockfence_core::request::Advance;

use super::refuse_on_replica;
use crate::boundary::Call;
use crate::clock;
use crate::key_type::FenceRecord;
use crate::reply::Failure;
use crate::server::{Key, Slot};

pub(crate) fn run(call: &Call<'_>) -> Result<(), Failure> {
    let request = Advance::parse(call.words)?;
    refuse_on_replica()?;
    let mut key = Key::to_write(call.ctx, call.key()?);
    let counter = match key.slot() {
        Slot::Fence(record) => record.fence.check(request.token)?.max(request.token.get()),
        Slot::Empty => {
            key.set_fence(Box::new(FenceRecord { fence: Fence::default() }));
            request.token.get()
        }
        Slot::Lock(_) | Slot::Other => return Err(Failure::WrongType),
    };
    let now_ms = clock::now().wall.micros() / 1000;
    let expires_at_ms = request.px_ms.map(|ms| now_ms.saturating_add(ms));
    raise(&mut key, request.token, expires_at_ms);
    call.ctx.reply_number(counter);
    Ok(())
}

/// Raises the fence that stands at `key` to `token`, which it has accepted, and says so to replicas and the AOF.
pub(super) fn raise(key: &mut Key<'_>, token: Token, expires_at_ms: Option<u64>) {
    let Slot::Fence(record) = key.slot() else { return };
    if record.fence.counter() == token.get() && expires_at_ms.is_none() {
        return;
    }
    record.fence.see(token.get());
    if expires_at_ms.is_some() {
        key.set_expires_at_ms(expires_at_ms);
    }
    let mut log = Log::default();
    log.push_fence(Marks { token: token.get(), expires_at_ms });
    key.ctx().replicate_effect(key.name(), log.bytes());
    key.ctx().signal_modified(key.name());
}
