//! `LF.HANDOVER lock [owner token]`: internal. The timer runs it, so that a grant that no client asked for
//! right now goes through the server's own rules for writes, and arrives at replicas like any other.

use lockfence_core::error::Refusal;
use lockfence_core::ids::Owner;
use lockfence_core::owner::OwnerName;
use lockfence_core::request::number;

use super::refuse_on_replica;
use crate::boundary::Call;
use crate::reply::Failure;
use crate::server::{CallError, Ctx, HAND_OVER, Key};
use crate::state;
use crate::turn::at_lock;

/// Serves the queue of `key`. With an owner and a token, that lease is given up first, if it is still that one.
pub(crate) fn run_hand_over(ctx: Ctx, key: &[u8], give_up: Option<(&[u8], u64)>) -> Result<(), CallError> {
    let token = give_up.map(|(_, token)| token.to_string());
    let mut words = vec![key];
    if let (Some((owner, _)), Some(token)) = (give_up, &token) {
        words.extend([owner, token.as_bytes()]);
    }
    state::with(|state| state.running_own = true);
    // S: the server's rules for writes. E: errors as replies. !: what the command replicates is replicated.
    let reply = ctx.run_own(c"SE!", HAND_OVER, &words);
    state::with(|state| state.running_own = false);
    reply.done()
}

pub(crate) fn run(call: &Call<'_>) -> Result<(), Failure> {
    if !state::with(|state| state.running_own) {
        return Err(Failure::Line("ERR LF.HANDOVER is internal to lockfence".to_owned()));
    }
    refuse_on_replica()?;
    let give_up = match call.words {
        [owner, token] => {
            let token = number("token", token, 1, u64::MAX)?;
            Some((Owner::new(owner).ok_or(Refusal::BadOwner)?, token))
        }
        _ => None,
    };
    let mut key = Key::to_write(call.ctx, call.key()?);
    at_lock(&mut key, |turn| {
        let now = turn.now.mono;
        let theirs = |owner: Owner<'_>, token| {
            turn.lock
                .live_holder(OwnerName::new(owner.bytes()), now)
                .is_some_and(|holder| holder.token == token)
        };
        match give_up {
            Some((owner, token)) if theirs(owner, token) => {
                turn.release(owner);
            }
            _ => turn.serve_queue(),
        }
    })?;
    call.ctx.reply_ok();
    Ok(())
}
