//! What the server tells of a command's arguments (`COMMAND DOCS`, and `help` in redis-cli): for people and for tools.
//! Nothing is parsed by it; the core does that.

use std::ffi::{CStr, c_int};
use std::ptr;

use redis_module::raw;

/// One argument, or several that belong together.
pub(super) struct Arg {
    name: &'static CStr,
    kind: Kind,
    /// The word before it.
    token: Option<&'static CStr>,
    flags: u32,
}

enum Kind {
    Key,
    Text,
    Number,
    /// A word that stands for itself: `token`.
    Word,
    OneOf(&'static [Arg]),
    Block(&'static [Arg]),
}

impl Kind {
    const fn number(&self) -> raw::RedisModuleCommandArgType {
        match self {
            Self::Key => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY,
            Self::Text => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
            Self::Number => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
            Self::Word => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN,
            Self::OneOf(_) => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF,
            Self::Block(_) => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK,
        }
    }

    const fn parts(&self) -> &'static [Arg] {
        match self {
            Self::OneOf(parts) | Self::Block(parts) => parts,
            Self::Key | Self::Text | Self::Number | Self::Word => &[],
        }
    }
}

impl Arg {
    const fn new(name: &'static CStr, kind: Kind) -> Self {
        Self { name, kind, token: None, flags: raw::REDISMODULE_CMD_ARG_NONE }
    }

    const fn key(name: &'static CStr) -> Self {
        Self::new(name, Kind::Key)
    }

    const fn text(name: &'static CStr) -> Self {
        Self::new(name, Kind::Text)
    }

    const fn number(name: &'static CStr) -> Self {
        Self::new(name, Kind::Number)
    }

    const fn word(name: &'static CStr, word: &'static CStr) -> Self {
        Self::new(name, Kind::Word).after(word)
    }

    const fn after(self, word: &'static CStr) -> Self {
        Self { token: Some(word), ..self }
    }

    const fn optional(self) -> Self {
        Self { flags: self.flags | raw::REDISMODULE_CMD_ARG_OPTIONAL, ..self }
    }

    const fn any_number(self) -> Self {
        Self { flags: self.flags | raw::REDISMODULE_CMD_ARG_MULTIPLE, ..self }.optional()
    }
}

const LOCK: Arg = Arg::key(c"lock");
const FENCE: Arg = Arg::key(c"lock-or-fence");
const TOKEN: Arg = Arg::number(c"token");
const MINTOKEN: Arg = Arg::number(c"t").after(c"MINTOKEN").optional();

pub(super) const ACQUIRE: &[Arg] = &[
    LOCK,
    Arg::text(c"owner"),
    Arg::number(c"ttl-ms"),
    Arg::number(c"timeout-ms").after(c"WAIT").optional(),
    Arg::new(c"mode", Kind::OneOf(&[Arg::word(c"shared", c"SHARED"), Arg::number(c"n").after(c"LIMIT")]))
        .optional(),
    MINTOKEN,
    Arg::word(c"withinfo", c"WITHINFO").optional(),
];
pub(super) const RELEASE: &[Arg] = &[LOCK, Arg::text(c"owner")];
pub(super) const EXTEND: &[Arg] = &[LOCK, Arg::text(c"owner"), Arg::number(c"ttl-ms"), MINTOKEN];
pub(super) const INFO: &[Arg] = &[
    LOCK,
    Arg::new(
        c"lists",
        Kind::Block(&[Arg::word(c"full", c"FULL"), Arg::number(c"n").after(c"COUNT").optional()]),
    )
    .optional(),
];
pub(super) const BREAK: &[Arg] = &[LOCK, Arg::number(c"t").after(c"MAXTOKEN").optional()];

/// The options are those that the server's own SET takes.
pub(super) const WRITE: &[Arg] =
    &[FENCE, TOKEN, Arg::key(c"key"), Arg::text(c"value"), Arg::text(c"set-option").any_number()];
pub(super) const CALL: &[Arg] = &[FENCE, TOKEN, Arg::text(c"command"), Arg::text(c"arg").any_number()];
pub(super) const CHECK: &[Arg] = &[FENCE, TOKEN];
pub(super) const ADVANCE: &[Arg] = &[Arg::key(c"fence"), TOKEN, Arg::number(c"ms").after(c"PX").optional()];

/// For the internal commands, and those of the test build.
pub(super) const INTERNAL: &[Arg] = &[Arg::key(c"key"), Arg::text(c"arg").any_number()];

/// Arguments as the server reads them: arrays that end with a zeroed one, the inner ones too. They must outlive the call
/// that they are made for.
#[derive(Default)]
pub(super) struct ForServer {
    arrays: Vec<Vec<raw::RedisModuleCommandArg>>,
}

impl ForServer {
    pub(super) fn array(&mut self, args: &[Arg]) -> *mut raw::RedisModuleCommandArg {
        let mut array: Vec<_> = args.iter().map(|arg| self.one(arg)).collect();
        array.push(nothing());
        let first = array.as_mut_ptr();
        self.arrays.push(array);
        first
    }

    fn one(&mut self, arg: &Arg) -> raw::RedisModuleCommandArg {
        let parts = arg.kind.parts();
        raw::RedisModuleCommandArg {
            name: arg.name.as_ptr(),
            type_: arg.kind.number(),
            token: arg.token.map_or(ptr::null(), CStr::as_ptr),
            flags: c_int::try_from(arg.flags).unwrap_or_default(),
            subargs: if parts.is_empty() { ptr::null_mut() } else { self.array(parts) },
            ..nothing()
        }
    }
}

/// Ends an array. What is null was not given; all keys are of a command's first specification.
const fn nothing() -> raw::RedisModuleCommandArg {
    raw::RedisModuleCommandArg {
        name: ptr::null(),
        type_: raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
        key_spec_index: 0,
        token: ptr::null(),
        summary: ptr::null(),
        since: ptr::null(),
        flags: 0,
        deprecated_since: ptr::null(),
        subargs: ptr::null_mut(),
        display_text: ptr::null(),
    }
}
