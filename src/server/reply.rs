//! Replies.

use std::ffi::{CString, c_char};

use super::{Ctx, api};

impl Ctx {
    pub(crate) fn reply_null(self) {
        // SAFETY: the context is that of a command or of a reply callback, as for all functions here.
        unsafe { api!(RedisModule_ReplyWithNull(self.raw())) };
    }

    /// Numbers above 2^63-1 do not occur: tokens end at 2^53-1.
    pub(crate) fn reply_number(self, number: u64) {
        // SAFETY: see above.
        unsafe { api!(RedisModule_ReplyWithLongLong(self.raw(), i64::try_from(number).unwrap_or(i64::MAX))) };
    }

    pub(crate) fn reply_bytes(self, bytes: &[u8]) {
        // SAFETY: the server copies the bytes.
        unsafe {
            api!(RedisModule_ReplyWithStringBuffer(self.raw(), bytes.as_ptr().cast::<c_char>(), bytes.len()))
        };
    }

    pub(crate) fn reply_ok(self) {
        // SAFETY: see above; the server copies the text.
        unsafe { api!(RedisModule_ReplyWithSimpleString(self.raw(), c"OK".as_ptr())) };
    }

    /// `line` is the whole error line without the leading `-`; it holds no control characters.
    pub(crate) fn reply_error(self, line: &str) {
        let line = CString::new(line.replace(['\0', '\r', '\n'], " ")).unwrap_or_default();
        // SAFETY: the server copies the text.
        unsafe { api!(RedisModule_ReplyWithError(self.raw(), line.as_ptr())) };
    }

    /// Begins a map of `pairs` pairs: a RESP3 map, or in RESP2 an array of names and values.
    pub(crate) fn reply_map(self, pairs: u64) {
        // SAFETY: see above.
        unsafe { api!(RedisModule_ReplyWithMap(self.raw(), i64::try_from(pairs).unwrap_or(0))) };
    }

    pub(crate) fn reply_array(self, items: u64) {
        // SAFETY: see above.
        unsafe { api!(RedisModule_ReplyWithArray(self.raw(), i64::try_from(items).unwrap_or(0))) };
    }
}
