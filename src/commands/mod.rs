//! One file a command: parse, open, decide, apply, replicate, reply.

mod acquire;
mod advance;
mod break_lock;
mod call;
mod check;
mod effect;
mod extend;
mod hand_over;
mod info;
mod release;
mod write;

pub(crate) use acquire::run as acquire;
pub(crate) use advance::run as advance;
pub(crate) use break_lock::run as break_lock;
pub(crate) use call::{InnerVerdict, keys as call_keys, run as call};
pub(crate) use check::run as check;
pub(crate) use effect::run as effect;
pub(crate) use extend::run as extend;
pub(crate) use hand_over::{run as hand_over, run_hand_over};
pub(crate) use info::run as info;
pub(crate) use release::run as release;
pub(crate) use write::{keys as write_keys, run as write};

use crate::clock;
use crate::reply::Failure;
use crate::server::{Key, Slot};
use crate::state;
use lockfence_core::ids::Token;

/// A replica, writable or not, grants nothing, changes nothing and vouches for nothing: what it knows may be old.
fn refuse_on_replica() -> Result<(), Failure> {
    if state::with(|state| state.replica) { Err(Failure::ReadOnly) } else { Ok(()) }
}

/// Whether a write with `token` still counts at the lock or fence `key`; its counter.
fn check_token(key: &mut Key<'_>, token: Token) -> Result<u64, Failure> {
    let checked = match key.slot() {
        Slot::Lock(record) => record.lock.check(token, clock::now().mono),
        Slot::Fence(record) => record.fence.check(token),
        Slot::Empty => Err(lockfence_core::error::Refusal::NoRecord),
        Slot::Other => return Err(Failure::WrongType),
    };
    Ok(checked
        .inspect_err(|_| state::with(|state| state.stats.fenced = state.stats.fenced.saturating_add(1)))?)
}
