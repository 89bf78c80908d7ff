//! Settings: `lockfence.*` in CONFIG GET and SET and in the configuration file, or pairs of name and value on the
//! `loadmodule` line. Ranges are the core's limits.

use std::ffi::{CStr, c_char, c_int, c_longlong, c_void};

use lockfence_core::limits;
use lockfence_core::request::number;
use lockfence_core::text::quoted;
use lockfence_core::token::TokenSource;
use redis_module::raw;

use crate::boundary::guard;
use crate::server::{Ctx, api};
use crate::state;

/// The values in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) tokens: TokenSource,
    pub(crate) quarantine_ms: u64,
    pub(crate) idle_ttl_ms: u64,
    pub(crate) max_ttl_ms: u64,
    pub(crate) max_waiters: u64,
    pub(crate) max_waiters_per_lock: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            tokens: TokenSource::Clock,
            quarantine_ms: limits::QUARANTINE_MS_DEFAULT,
            idle_ttl_ms: limits::IDLE_TTL_MS_DEFAULT,
            max_ttl_ms: limits::TTL_MS_MAX,
            max_waiters: limits::WAITERS_DEFAULT,
            max_waiters_per_lock: limits::WAITERS_DEFAULT,
        }
    }
}

/// A setting that is a number.
struct Numeric {
    name: &'static CStr,
    min: u64,
    max: u64,
    field: fn(&mut Config) -> &mut u64,
}

const NUMERIC: [Numeric; 5] = [
    Numeric {
        name: c"quarantine-ms",
        min: 0,
        max: limits::QUARANTINE_MS_MAX,
        field: |c| &mut c.quarantine_ms,
    },
    Numeric {
        name: c"idle-ttl-ms",
        min: limits::IDLE_TTL_MS_MIN,
        max: limits::IDLE_TTL_MS_MAX,
        field: |c| &mut c.idle_ttl_ms,
    },
    Numeric { name: c"max-ttl-ms", min: 1, max: limits::TTL_MS_MAX, field: |c| &mut c.max_ttl_ms },
    Numeric { name: c"max-waiters", min: 0, max: limits::WAITERS_MAX, field: |c| &mut c.max_waiters },
    Numeric {
        name: c"max-waiters-per-lock",
        min: 0,
        max: limits::WAITERS_MAX,
        field: |c| &mut c.max_waiters_per_lock,
    },
];

const CLOCK: c_int = 0;
const DENSE: c_int = 1;

/// Reads the words of the `loadmodule` line: pairs of a setting's name (with or without `lockfence.`) and its value.
pub(crate) fn parse_arguments(words: &[&[u8]]) -> Result<Config, String> {
    let mut config = Config::default();
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let name = word.strip_prefix(b"lockfence.").unwrap_or(word);
        let value = rest.next().ok_or_else(|| format!("argument {} needs a value", quoted(word)))?;
        set_by_name(&mut config, name, value)?;
    }
    Ok(config)
}

fn set_by_name(config: &mut Config, name: &[u8], value: &[u8]) -> Result<(), String> {
    if name == b"tokens" {
        config.tokens = match value {
            b"clock" => TokenSource::Clock,
            b"dense" => TokenSource::Dense,
            _ => return Err(format!("argument tokens must be clock or dense, not {}", quoted(value))),
        };
        return Ok(());
    }
    let Some(setting) = NUMERIC.iter().find(|setting| setting.name.to_bytes() == name) else {
        return Err(format!("unknown argument {}", quoted(name)));
    };
    let (min, max) = (setting.min, setting.max);
    let value = number("value", value, min, max).map_err(|_| {
        format!("argument {} must be a decimal integer from {min} to {max}", String::from_utf8_lossy(name))
    })?;
    *(setting.field)(config) = value;
    Ok(())
}

/// Registers the settings, with what the `loadmodule` line says as their defaults, and reads the configuration file's.
pub(crate) fn register(ctx: Ctx, arguments: &Config) -> bool {
    let mut defaults = arguments.clone();
    for (index, setting) in NUMERIC.iter().enumerate() {
        let default = *(setting.field)(&mut defaults);
        // SAFETY: the name is static; the private datum is a number, the index of the setting.
        let status = unsafe {
            api!(RedisModule_RegisterNumericConfig(
                ctx.raw(),
                setting.name.as_ptr(),
                default.cast_signed(),
                raw::REDISMODULE_CONFIG_DEFAULT,
                setting.min.cast_signed(),
                setting.max.cast_signed(),
                Some(get_number),
                Some(set_number),
                None,
                std::ptr::without_provenance_mut(index),
            ))
        };
        if status != raw::REDISMODULE_OK as c_int {
            return false;
        }
    }
    let mut names = [c"clock".as_ptr(), c"dense".as_ptr()];
    let numbers = [CLOCK, DENSE];
    let default = if defaults.tokens == TokenSource::Dense { DENSE } else { CLOCK };
    // SAFETY: the server copies names and numbers.
    let status = unsafe {
        api!(RedisModule_RegisterEnumConfig(
            ctx.raw(),
            c"tokens".as_ptr(),
            default,
            raw::REDISMODULE_CONFIG_IMMUTABLE,
            names.as_mut_ptr(),
            numbers.as_ptr(),
            2,
            Some(get_tokens),
            Some(set_tokens),
            None,
            std::ptr::null_mut(),
        ))
    };
    // SAFETY: the context is that of the load.
    status == raw::REDISMODULE_OK as c_int
        && unsafe { api!(RedisModule_LoadConfigs(ctx.raw())) } == raw::REDISMODULE_OK as c_int
}

unsafe extern "C" fn get_number(_name: *const c_char, index: *mut c_void) -> c_longlong {
    let get = || {
        let setting = NUMERIC.get(index.addr())?;
        state::with(|state| i64::try_from(*(setting.field)(&mut state.config)).ok())
    };
    guard(get).flatten().unwrap_or(0)
}

unsafe extern "C" fn set_number(
    _name: *const c_char,
    value: c_longlong,
    index: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    let set = || {
        let setting = NUMERIC.get(index.addr())?;
        let value = u64::try_from(value).ok()?;
        state::with(|state| *(setting.field)(&mut state.config) = value);
        Some(())
    };
    let status = if guard(set).flatten().is_some() { raw::REDISMODULE_OK } else { raw::REDISMODULE_ERR };
    status as c_int
}

unsafe extern "C" fn get_tokens(_name: *const c_char, _data: *mut c_void) -> c_int {
    let source = guard(|| state::with(|state| state.config.tokens));
    if source == Some(TokenSource::Dense) { DENSE } else { CLOCK }
}

unsafe extern "C" fn set_tokens(
    _name: *const c_char,
    value: c_int,
    _data: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    let source = if value == DENSE { TokenSource::Dense } else { TokenSource::Clock };
    guard(|| state::with(|state| state.config.tokens = source));
    raw::REDISMODULE_OK as c_int
}
