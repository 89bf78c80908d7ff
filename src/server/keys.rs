//! The keys of a command that is run inside another, and what the calling user may do with a key.

use std::ffi::c_int;

use lockfence_core::request::number;
use lockfence_core::text::quoted;
use redis_module::raw;

use super::{Ctx, Name, api};

/// A key that is read and may be changed.
pub(crate) const READ_AND_CHANGE: u32 =
    raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_ACCESS | raw::REDISMODULE_CMD_KEY_UPDATE;

/// A key that is overwritten.
const OVERWRITE: u32 = raw::REDISMODULE_CMD_KEY_OW | raw::REDISMODULE_CMD_KEY_UPDATE;

/// Why the keys of a command cannot be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoKeys {
    Unknown,
    WrongArguments,
}

impl NoKeys {
    pub(crate) fn line(self, command: &[u8]) -> String {
        let command = quoted(command);
        match self {
            Self::Unknown => format!("ERR unknown command {command}"),
            Self::WrongArguments => format!("ERR wrong number or kind of arguments for {command}"),
        }
    }
}

/// Where the keys of a command stand (0 being its name), and what it does with them.
#[derive(Debug)]
pub(crate) struct InnerKeys(Vec<(usize, c_int)>);

impl InnerKeys {
    /// Asks the server. A command without keys gives none.
    pub(crate) fn of(ctx: Ctx, words: &[Name<'_>]) -> Result<Self, NoKeys> {
        let mut argv: Vec<*mut raw::RedisModuleString> = words.iter().map(|word| word.raw()).collect();
        let argc = c_int::try_from(argv.len()).unwrap_or(c_int::MAX);
        let mut count: c_int = 0;
        let mut flags: *mut c_int = std::ptr::null_mut();
        // SAFETY: the words live through the call. The server returns two arrays of `count` numbers, to be freed by
        // the caller, or null and errno.
        unsafe {
            *libc::__errno_location() = 0;
            let positions = api!(RedisModule_GetCommandKeysWithFlags(
                ctx.raw(),
                argv.as_mut_ptr(),
                argc,
                &raw mut count,
                &raw mut flags
            ));
            if positions.is_null() {
                return match *libc::__errno_location() {
                    libc::ENOENT => Err(NoKeys::Unknown),
                    libc::EINVAL => Err(NoKeys::WrongArguments),
                    _ => Self::of_msetex(words),
                };
            }
            let count = usize::try_from(count).unwrap_or(0);
            let found = std::slice::from_raw_parts(positions, count).iter();
            let kinds: Vec<c_int> = if flags.is_null() {
                vec![0; count]
            } else {
                std::slice::from_raw_parts(flags, count).to_vec()
            };
            let keys = found
                .zip(kinds)
                .map(|(position, kind)| (usize::try_from(*position).unwrap_or(0), kind))
                .collect();
            api!(RedisModule_Free(positions.cast()));
            if !flags.is_null() {
                api!(RedisModule_Free(flags.cast()));
            }
            Ok(Self(keys))
        }
    }

    /// `MSETEX numkeys key value [key value …] [option …]`: Valkey 9.1 knows its keys, but its API looks only at older ways
    /// to describe them, and has none. Any other command of which the server tells no key has none here.
    fn of_msetex(words: &[Name<'_>]) -> Result<Self, NoKeys> {
        let [name, count, rest @ ..] = words else { return Ok(Self(Vec::new())) };
        if !name.bytes().eq_ignore_ascii_case(b"MSETEX") {
            return Ok(Self(Vec::new()));
        }
        let most = u64::try_from(rest.len() / 2).unwrap_or(0);
        let count = number("numkeys", count.bytes(), 1, most).map_err(|_| NoKeys::WrongArguments)?;
        let count = usize::try_from(count).unwrap_or(0);
        let flags = OVERWRITE.cast_signed();
        Ok(Self((2..words.len()).step_by(2).take(count).map(|position| (position, flags)).collect()))
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The keys among `words`; channels and the like are none.
    pub(crate) fn names<'t>(&self, words: &'t [Name<'t>]) -> impl Iterator<Item = Name<'t>> {
        let keys =
            self.0.iter().filter(|(_, kind)| kind & raw::REDISMODULE_CMD_KEY_NOT_KEY.cast_signed() == 0);
        keys.filter_map(|(position, _)| words.get(*position).copied())
    }

    /// Answers the server's question for key positions; the command begins at word `offset`.
    pub(crate) fn report(&self, ctx: Ctx, offset: usize) {
        for (position, kind) in &self.0 {
            let position = c_int::try_from(position.saturating_add(offset)).unwrap_or(c_int::MAX);
            ctx.report_key(position, kind.cast_unsigned());
        }
    }
}

impl Ctx {
    /// Whether the server only asks where the keys are. Then nothing may be replied.
    pub(crate) fn asks_for_keys(self) -> bool {
        // SAFETY: the context is that of a command.
        unsafe { api!(RedisModule_IsKeysPositionRequest(self.raw())) != 0 }
    }

    /// Reports word 1 as a lock or fence that is read and may be raised.
    pub(crate) fn report_keeper_key(self) {
        self.report_key(1, READ_AND_CHANGE);
    }

    /// Reports a word as a key that is overwritten.
    pub(crate) fn report_data_key(self, position: c_int) {
        self.report_key(position, OVERWRITE);
    }

    fn report_key(self, position: c_int, flags: u32) {
        // SAFETY: the context is that of a request for key positions.
        unsafe { api!(RedisModule_KeyAtPosWithFlags(self.raw(), position, flags.cast_signed())) };
    }
}
