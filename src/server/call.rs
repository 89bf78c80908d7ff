//! Commands that the module runs, as itself or as the calling user.

use std::ffi::{CStr, c_char};

use redis_module::raw;

use super::{Ctx, Name, Text, api};

/// For the client, where the server has nothing to say.
const NO_REPLY: &str =
    "ERR the server gave no reply to the command: it did not run it, or the value is of the wrong type";

/// Why a command that the module ran did not do what it should.
#[derive(Debug)]
pub(crate) struct CallError(pub(crate) String);

/// The reply of a command that the module ran.
#[derive(Debug)]
pub(crate) struct Reply {
    ctx: Ctx,
    raw: *mut raw::RedisModuleCallReply,
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: freed once.
            unsafe { api!(RedisModule_FreeCallReply(self.raw)) };
        }
    }
}

impl Ctx {
    /// Runs a command whose words are server strings. `modes` are the letters of `RedisModule_Call` before the `v`.
    pub(crate) fn run(self, modes: &CStr, command: &CStr, words: &[Name<'_>]) -> Reply {
        let format = [modes.to_bytes(), b"v\0"].concat();
        let mut raw: Vec<*mut raw::RedisModuleString> = words.iter().map(|word| word.raw()).collect();
        // SAFETY: the format ends in "v", for which the server takes an array of string objects and its length; all
        // live through the call.
        let raw = unsafe {
            api!(RedisModule_Call(
                self.raw(),
                command.as_ptr(),
                format.as_ptr().cast::<c_char>(),
                raw.as_mut_ptr(),
                raw.len(),
            ))
        };
        Reply { ctx: self, raw }
    }

    /// Runs a command of the module's own making.
    pub(crate) fn run_own(self, modes: &CStr, command: &CStr, words: &[&[u8]]) -> Reply {
        let texts: Vec<Text> = words.iter().map(|word| self.text(word)).collect();
        let names: Vec<_> = texts.iter().map(Text::name).collect();
        self.run(modes, command, &names)
    }
}

impl Reply {
    /// Passes the reply on to the client, in its own protocol. One that is absent is an error: the client would take
    /// the reply to its next command for this one's.
    pub(crate) fn pass_on(&self) -> Result<(), CallError> {
        if self.is_absent() {
            return Err(CallError(NO_REPLY.to_owned()));
        }
        // SAFETY: the reply is live.
        unsafe { api!(RedisModule_ReplyWithCallReply(self.ctx.raw(), self.raw)) };
        Ok(())
    }

    /// Whether the server says nothing: it ran nothing, or the command ended without a reply. (On Valkey GETDEL and
    /// GETSET do so, where a module runs them on a value of the wrong type.)
    fn is_absent(&self) -> bool {
        let mut len = 0;
        // SAFETY: the reply is live; the server says how long it is.
        self.raw.is_null()
            || unsafe { api!(RedisModule_CallReplyProto(self.raw, &raw mut len)).is_null() || len == 0 }
    }

    fn kind(&self) -> i32 {
        // SAFETY: the reply is live; a null reply is of an unknown kind.
        unsafe { api!(RedisModule_CallReplyType(self.raw)) }
    }

    /// The error line, if the reply is an error (also when the server ran nothing).
    pub(crate) fn error(&self) -> Option<String> {
        if self.is_absent() {
            return Some(NO_REPLY.to_owned());
        }
        (self.kind() == raw::REDISMODULE_REPLY_ERROR as i32)
            .then(|| String::from_utf8_lossy(self.text()).into_owned())
    }

    /// The bytes of a string, status or error; empty for anything else.
    pub(crate) fn text(&self) -> &[u8] {
        let mut len = 0;
        // SAFETY: the server returns bytes of the reply, which live as long as it does, or null.
        unsafe {
            let start = api!(RedisModule_CallReplyStringPtr(self.raw, &raw mut len));
            if start.is_null() { &[] } else { std::slice::from_raw_parts(start.cast::<u8>(), len) }
        }
    }

    /// Looks at element `index` of an array or set; `None` where there is none.
    pub(crate) fn element<T>(&self, index: usize, look: impl FnOnce(&Self) -> T) -> Option<T> {
        // SAFETY: the reply is live; an element belongs to it and is not freed by itself.
        let raw = unsafe {
            if self.kind() == raw::REDISMODULE_REPLY_SET as i32 {
                api!(RedisModule_CallReplySetElement(self.raw, index))
            } else {
                api!(RedisModule_CallReplyArrayElement(self.raw, index))
            }
        };
        if raw.is_null() {
            return None;
        }
        let element = std::mem::ManuallyDrop::new(Self { ctx: self.ctx, raw });
        Some(look(&element))
    }

    /// How many elements an array or set has.
    pub(crate) fn len(&self) -> usize {
        // SAFETY: the reply is live.
        unsafe { api!(RedisModule_CallReplyLength(self.raw)) }
    }

    /// Ok unless the reply is an error.
    pub(crate) fn done(self) -> Result<(), CallError> {
        self.error().map_or(Ok(()), |line| Err(CallError(line)))
    }
}
