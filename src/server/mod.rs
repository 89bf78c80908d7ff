//! The server, as the rest of the module sees it: safe functions round the module API.
//!
//! # Architecture invariants
//! - `unsafe` stands in this folder and in the files that hold what the server calls (`lib.rs` names them); it is denied
//!   elsewhere.
//! - Every function of the API that is called here exists on the oldest supported server, or is asked for first
//!   ([`missing`] is called at load).
//! - Nothing here decides anything about locks.

mod blocked;
mod call;
mod command_time;
mod context;
mod facts;
mod key;
mod keys;
mod reply;
mod timer;

pub(crate) use blocked::{Blocked, Callbacks, delivery, handle_of};
pub(crate) use call::{CallError, Reply};
pub(crate) use command_time::{CommandTime, call_after_command, forget_after_this_turn, prepare_to_forget};
pub(crate) use context::{
    Ctx, EFFECT, HAND_OVER, Level, Name, Text, avoid_replica_traffic, log_without_context,
};
pub(crate) use facts::{Facts, version};
pub(crate) use key::{Key, Kinds, Slot, set_kinds};
pub(crate) use keys::{InnerKeys, READ_AND_CHANGE};
pub(crate) use timer::Timer;

/// Calls a function of the module API. The functions named in [`missing`] are there: that is checked at load.
macro_rules! api {
    ($name:ident ( $($argument:expr),* $(,)? )) => {
        match redis_module::raw::$name {
            Some(function) => function($($argument),*),
            // Not reached: a server that lacks one of them is refused at load.
            None => std::process::abort(),
        }
    };
}
pub(crate) use api;

/// The first function of the module API that this server lacks, of those the module cannot do without. All of them
/// are in Redis 7.0 and Valkey 7.2.
pub(crate) fn missing() -> Option<&'static str> {
    macro_rules! first_missing {
        ($($name:ident),* $(,)?) => {
            // SAFETY: the statics are written once, by RedisModule_Init, which has returned; they are copied out.
            $( if unsafe { (&raw const redis_module::raw::$name).read().is_none() } { return Some(stringify!($name)); } )*
        };
    }
    first_missing!(
        RedisModule_SetCommandInfo,
        RedisModule_GetCommand,
        RedisModule_RegisterNumericConfig,
        RedisModule_RegisterEnumConfig,
        RedisModule_LoadConfigs,
        RedisModule_GetCommandKeysWithFlags,
        RedisModule_KeyAtPosWithFlags,
        RedisModule_GetKeyNameFromOptCtx,
        RedisModule_GetDbIdFromOptCtx,
        RedisModule_GetDbIdFromModuleKey,
        RedisModule_GetKeyNameFromIO,
        RedisModule_GetDbIdFromIO,
        RedisModule_ReplyWithMap,
        RedisModule_AvoidReplicaTraffic,
        RedisModule_GetDetachedThreadSafeContext,
        RedisModule_SetAbsExpire,
        RedisModule_BlockClient,
        RedisModule_SetDisconnectCallback,
        RedisModule_GetServerInfo,
        RedisModule_ServerInfoGetFieldUnsigned,
        RedisModule_ServerInfoGetFieldC,
        RedisModule_FreeServerInfo,
    );
    None
}
