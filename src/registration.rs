//! The commands: names, flags, keys, arguments, categories.

mod args;

use std::ffi::{CStr, CString, c_int};

use redis_module::raw;

use self::args::{Arg, ForServer};
use crate::boundary::{Call, run_command};
use crate::commands;
use crate::server::{Ctx, READ_AND_CHANGE, api};

/// The keys of a command: the places of the first and the last (every second word between them is one), and what is
/// done with them.
struct KeySpec {
    first: c_int,
    last: c_int,
    flags: u32,
}

struct Command {
    name: &'static CStr,
    entry: raw::RedisModuleCmdFunc,
    flags: &'static CStr,
    /// At least so many words where negative, exactly so many where positive; the name counts.
    arity: c_int,
    keys: &'static [KeySpec],
    args: &'static [Arg],
    summary: &'static CStr,
    complexity: &'static CStr,
    /// ACL categories, beside `@lockfence`.
    categories: &'static str,
}

/// Makes the C entry of a command out of its body.
macro_rules! entry {
    ($body:expr) => {{
        unsafe extern "C" fn entry(
            ctx: *mut raw::RedisModuleCtx,
            argv: *mut *mut raw::RedisModuleString,
            argc: c_int,
        ) -> c_int {
            // SAFETY: the server passes a command's context and arguments.
            unsafe { run_command(ctx, argv, argc, $body) }
        }
        Some(entry as unsafe extern "C" fn(_, _, _) -> _)
    }};
}

/// The version of the structures below; a macro in the server's header.
const COMMAND_INFO_VERSION: c_int = 1;

const READ: u32 = raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS;
/// The two keys are used differently: the server asks the command (`getkeys-api`).
const ASK_FOR_FLAGS: u32 = raw::REDISMODULE_CMD_KEY_VARIABLE_FLAGS;
const MORE_KEYS: u32 = raw::REDISMODULE_CMD_KEY_INCOMPLETE;

const READS_LOCK: &[KeySpec] = &[KeySpec { first: 1, last: 1, flags: READ }];
const CHANGES_LOCK: &[KeySpec] = &[KeySpec { first: 1, last: 1, flags: READ_AND_CHANGE }];

fn table() -> Vec<Command> {
    let mut table = vec![
        Command {
            name: c"lock.acquire",
            entry: entry!(commands::acquire),
            flags: c"write deny-oom blocking",
            arity: -4,
            keys: CHANGES_LOCK,
            args: args::ACQUIRE,
            summary: c"Takes a lock for a time, or waits for it in turn. Returns a fencing token.",
            complexity: c"O(log(N)) with N waiting clients",
            categories: "write blocking slow",
        },
        Command {
            name: c"lock.release",
            entry: entry!(commands::release),
            flags: c"write fast",
            arity: 3,
            keys: CHANGES_LOCK,
            args: args::RELEASE,
            summary: c"Ends the lease of a holder and grants the lock to the next in the queue.",
            complexity: c"O(log(N)) with N waiting clients",
            categories: "write fast",
        },
        Command {
            name: c"lock.extend",
            entry: entry!(commands::extend),
            flags: c"write fast",
            arity: -4,
            keys: CHANGES_LOCK,
            args: args::EXTEND,
            summary: c"Lets the lease of a holder end at another time, counted from now.",
            complexity: c"O(1)",
            categories: "write fast",
        },
        Command {
            name: c"lock.info",
            entry: entry!(commands::info),
            flags: c"readonly",
            arity: -2,
            keys: READS_LOCK,
            args: args::INFO,
            summary: c"Tells who holds a lock, until when, and who waits for it.",
            complexity: c"O(N) with N holders and waiters listed",
            categories: "read slow",
        },
        Command {
            name: c"lock.break",
            entry: entry!(commands::break_lock),
            flags: c"write admin",
            arity: -2,
            keys: CHANGES_LOCK,
            args: args::BREAK,
            summary:
                c"Ends the leases of a lock, all or those up to a token, and fences their holders at once.",
            complexity: c"O(N) with N holders",
            categories: "write admin dangerous slow",
        },
    ];
    table.extend(fence_commands());
    table.extend(internal_commands());
    table
}

fn fence_commands() -> Vec<Command> {
    vec![
        Command {
            name: c"fence.write",
            entry: entry!(write_or_keys),
            flags: c"write deny-oom getkeys-api",
            arity: -5,
            keys: &[KeySpec { first: 1, last: 3, flags: READ_AND_CHANGE | ASK_FOR_FLAGS }],
            args: args::WRITE,
            summary: c"SET, refused when the token is stale.",
            complexity: c"O(1)",
            categories: "write slow",
        },
        Command {
            name: c"fence.call",
            entry: entry!(call_or_keys),
            flags: c"write getkeys-api",
            arity: -4,
            keys: &[KeySpec { first: 1, last: 1, flags: READ_AND_CHANGE | MORE_KEYS }],
            args: args::CALL,
            summary: c"Runs a data command, refused when the token is stale.",
            complexity: c"That of the command it runs",
            categories: "write slow",
        },
        Command {
            name: c"fence.check",
            entry: entry!(commands::check),
            flags: c"readonly fast",
            arity: 3,
            keys: READS_LOCK,
            args: args::CHECK,
            summary: c"Tells whether a token is still good, and changes nothing.",
            complexity: c"O(1)",
            categories: "read fast",
        },
        Command {
            name: c"fence.advance",
            entry: entry!(commands::advance),
            flags: c"write deny-oom fast",
            arity: -3,
            keys: CHANGES_LOCK,
            args: args::ADVANCE,
            summary: c"Makes a fence, or raises it, by a token that was issued elsewhere.",
            complexity: c"O(1)",
            categories: "write fast",
        },
    ]
}

/// The categories of commands that refuse clients.
const INTERNAL: &str = "write admin dangerous";

fn internal_commands() -> Vec<Command> {
    let internal = |name, entry, arity, summary| Command {
        name,
        entry,
        flags: c"write fast",
        arity,
        keys: CHANGES_LOCK,
        args: args::INTERNAL,
        summary,
        complexity: c"O(1)",
        categories: INTERNAL,
    };
    vec![
        internal(
            c"lf.log",
            entry!(commands::effect),
            3,
            c"Internal: what happened to a lock or fence, for replicas and the AOF.",
        ),
        internal(
            c"lf.handover",
            entry!(commands::hand_over),
            -2,
            c"Internal: grants a lock to those who wait, by the timer.",
        ),
        #[cfg(feature = "test-panic")]
        internal(c"lockfence.panic", entry!(for_tests::panic_now), 2, c"Test build only: panics."),
    ]
}

// The server routes by the first range of keys alone; it asks these two commands for all of them.

fn write_or_keys(call: &Call<'_>) -> Result<(), crate::reply::Failure> {
    if call.ctx.asks_for_keys() {
        commands::write_keys(call);
        return Ok(());
    }
    commands::write(call)
}

fn call_or_keys(call: &Call<'_>) -> Result<(), crate::reply::Failure> {
    if call.ctx.asks_for_keys() {
        commands::call_keys(call);
        return Ok(());
    }
    commands::call(call)
}

/// What only the test build has.
#[cfg(feature = "test-panic")]
mod for_tests {
    use crate::boundary::Call;
    use crate::reply::Failure;

    #[allow(clippy::panic, reason = "that is what it is for")]
    pub(super) fn panic_now(_call: &Call<'_>) -> Result<(), Failure> {
        panic!("on purpose")
    }
}

/// Registers all commands. `Err` names the one that the server refused.
pub(crate) fn register(ctx: Ctx) -> Result<(), String> {
    let category = add_category(ctx);
    for command in table() {
        register_one(ctx, &command, category).map_err(|()| command.name.to_string_lossy().into_owned())?;
    }
    Ok(())
}

fn register_one(ctx: Ctx, command: &Command, category: bool) -> Result<(), ()> {
    // SAFETY: all strings are static and the server copies what it keeps.
    unsafe {
        let status = api!(RedisModule_CreateCommand(
            ctx.raw(),
            command.name.as_ptr(),
            command.entry,
            command.flags.as_ptr(),
            1,
            1,
            1,
        ));
        if status != raw::REDISMODULE_OK as c_int {
            return Err(());
        }
        let handle = api!(RedisModule_GetCommand(ctx.raw(), command.name.as_ptr()));
        if handle.is_null() || set_info(handle, command) != raw::REDISMODULE_OK as c_int {
            return Err(());
        }
        if let Some(set) = raw::RedisModule_SetCommandACLCategories {
            let public = command.categories != INTERNAL;
            let own = if category && public { " lockfence" } else { "" };
            let categories = CString::new(format!("{}{own}", command.categories)).unwrap_or_default();
            if set(handle, categories.as_ptr()) != raw::REDISMODULE_OK as c_int {
                return Err(());
            }
        }
    }
    Ok(())
}

/// The ACL category `@lockfence`, on servers that let a module add one (Redis 7.4, Valkey 8.0).
fn add_category(ctx: Ctx) -> bool {
    // SAFETY: the static is copied out; the name is static.
    unsafe {
        raw::RedisModule_AddACLCategory
            .is_some_and(|add| add(ctx.raw(), c"lockfence".as_ptr()) == raw::REDISMODULE_OK as c_int)
    }
}

unsafe fn set_info(handle: *mut raw::RedisModuleCommand, command: &Command) -> c_int {
    // SAFETY: the structures are plain data; all zeros is "not given", and ends an array of key specifications.
    unsafe {
        let mut specs: Vec<raw::RedisModuleCommandKeySpec> = command.keys.iter().map(key_spec).collect();
        specs.push(std::mem::zeroed());
        let version = raw::RedisModuleCommandInfoVersion {
            version: COMMAND_INFO_VERSION,
            sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
            sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
            sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
        };
        let mut info: raw::RedisModuleCommandInfo = std::mem::zeroed();
        info.version = &raw const version;
        info.summary = command.summary.as_ptr();
        info.complexity = command.complexity.as_ptr();
        info.since = c"0.1.0".as_ptr();
        info.arity = command.arity;
        info.key_specs = specs.as_mut_ptr();
        let mut arguments = ForServer::default();
        info.args = arguments.array(command.args);
        api!(RedisModule_SetCommandInfo(handle, &raw const info))
    }
}

fn key_spec(key: &KeySpec) -> raw::RedisModuleCommandKeySpec {
    // SAFETY: plain data; all zeros is valid.
    let mut spec: raw::RedisModuleCommandKeySpec = unsafe { std::mem::zeroed() };
    spec.flags = u64::from(key.flags);
    spec.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    spec.bs.index.pos = key.first;
    spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
    spec.fk.range.lastkey = key.last.saturating_sub(key.first);
    spec.fk.range.keystep = if key.last > key.first { 2 } else { 1 };
    spec.fk.range.limit = 0;
    spec
}
