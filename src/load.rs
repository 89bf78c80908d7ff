//! Loading the module: checks first, then registers everything. After the data types are registered the server cannot
//! take the module back, so whatever can fail for the user's reasons is checked before.

use std::ffi::c_int;

use lockfence_core::token::{Issuer, TokenSource};
use redis_module::raw;

use crate::boundary::guard;
use crate::config::{self, Config};
use crate::server::{self, Ctx, Level, Name, api, missing, prepare_to_forget, set_kinds};
use crate::{clock, events, expiry, info, key_type, registration, state};

/// Reports errors of reading instead of ending the server; async loading is fine: nothing is kept of a data set that
/// is thrown away but hints; keys are signalled as modified by hand. Bits that a server does not know are ignored.
const OPTIONS: c_int = 1 | NO_IMPLICIT_SIGNAL_MODIFIED | 4 | HANDLE_ATOMIC_SLOT_MIGRATION;
/// Not in the crate's header as a plain number.
const NO_IMPLICIT_SIGNAL_MODIFIED: c_int = 1 << 1;
/// Valkey 9: without it CLUSTER MIGRATESLOTS is refused while the module is loaded.
const HANDLE_ATOMIC_SLOT_MIGRATION: c_int = 1 << 5;

/// The server's entry.
#[allow(non_snake_case, reason = "the server looks for this name")]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the server passes the context of the load; the name is a C string.
    let status = unsafe {
        raw::Export_RedisModule_Init(
            ctx,
            c"lockfence".as_ptr(),
            version(),
            raw::REDISMODULE_APIVER_1 as c_int,
        )
    };
    if status != raw::REDISMODULE_OK as c_int {
        return raw::REDISMODULE_ERR as c_int;
    }
    // SAFETY: the server passes `argc` live strings.
    let (ctx, words) = unsafe {
        let names = if argv.is_null() {
            &[][..]
        } else {
            std::slice::from_raw_parts(argv.cast_const(), usize::try_from(argc).unwrap_or(0))
        };
        (Ctx::new(ctx), names.iter().map(|raw| Name::new(*raw).bytes()).collect::<Vec<&[u8]>>())
    };
    match guard(|| load(ctx, &words)) {
        Some(Ok(())) => raw::REDISMODULE_OK as c_int,
        Some(Err(line)) => {
            ctx.log(Level::Warning, &format!("not loaded: {line}"));
            raw::REDISMODULE_ERR as c_int
        }
        None => raw::REDISMODULE_ERR as c_int,
    }
}

/// 10203 is 1.2.3.
fn version() -> c_int {
    let part = |text: &str| text.parse::<c_int>().unwrap_or(0);
    let major = part(env!("CARGO_PKG_VERSION_MAJOR")).saturating_mul(10_000);
    let minor = part(env!("CARGO_PKG_VERSION_MINOR")).saturating_mul(100);
    major.saturating_add(minor).saturating_add(part(env!("CARGO_PKG_VERSION_PATCH")))
}

fn load(ctx: Ctx, words: &[&[u8]]) -> Result<(), String> {
    if let Some(function) = missing() {
        let server = server_version();
        return Err(format!("it needs Redis 7.0 or Valkey 7.2 or later, this is {server} (no {function})"));
    }
    plant();
    let arguments = config::parse_arguments(words)?;
    state::with(|state| state.config = arguments.clone());
    let kinds = key_type::register(ctx).ok_or("the data types lockfence and fencemark are refused")?;
    set_kinds(kinds);
    registration::register(ctx).map_err(|command| format!("the command {command} is refused"))?;
    if !config::register(ctx, &arguments) {
        return Err("the settings lockfence.* are refused; see the lines above".to_owned());
    }
    // SAFETY: the context is that of the load.
    unsafe { api!(RedisModule_SetModuleOptions(ctx.raw(), OPTIONS)) };
    prepare_to_forget(ctx);
    info::register(ctx);
    if !events::subscribe(ctx) {
        return Err("the server's events are refused".to_owned());
    }
    start(ctx);
    Ok(())
}

/// Test build only: plants the bug that the environment names by its number.
#[cfg(feature = "test-panic")]
fn plant() {
    let number = std::env::var("LOCKFENCE_PLANTED").ok().and_then(|number| number.parse().ok());
    lockfence_core::planted::plant_number(number.unwrap_or(0));
}

#[cfg(not(feature = "test-panic"))]
const fn plant() {}

fn start(ctx: Ctx) {
    let now = clock::now();
    let replica = ctx.flags() & raw::REDISMODULE_CTX_FLAGS_SLAVE != 0;
    let config: Config = state::with(|state| {
        state.replica = replica;
        state.issuer = Issuer::new(state.config.tokens);
        state.begin(now);
        state.config.clone()
    });
    expiry::arm(ctx, now.mono);
    events::warn_of_eviction(ctx);
    if config.tokens == TokenSource::Dense {
        let line = "lockfence.tokens is dense: tokens rise only as far as the data survives";
        ctx.log(Level::Warning, line);
    }
    let version = env!("CARGO_PKG_VERSION");
    ctx.log(Level::Notice, &format!("lockfence {version} is ready; quarantine {} ms", config.quarantine_ms));
}

fn server_version() -> String {
    let number = server::version();
    if number == 0 {
        return "an older one".to_owned();
    }
    format!("{}.{}.{}", number >> 16 & 0xff, number >> 8 & 0xff, number & 0xff)
}
