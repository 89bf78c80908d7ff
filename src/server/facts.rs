//! What the server says of itself: its version, and the fields of INFO.

use std::ffi::{CStr, c_int};
use std::ptr::NonNull;

use redis_module::raw;

use super::api;

/// One section of INFO, as it was when it was asked for.
#[derive(Debug)]
pub(crate) struct Facts(NonNull<raw::RedisModuleServerInfoData>);

impl Facts {
    /// Asks for a section. The server writes all of it down for that: not for every command.
    pub(crate) fn of(section: &CStr) -> Option<Self> {
        // SAFETY: the section is a C string; without a context the server leaves the freeing to us.
        let facts = unsafe { api!(RedisModule_GetServerInfo(std::ptr::null_mut(), section.as_ptr())) };
        NonNull::new(facts).map(Self)
    }

    /// A field that is a number; `None` where there is no such field, or it is no number.
    pub(crate) fn number(&self, field: &CStr) -> Option<u64> {
        let mut status = raw::REDISMODULE_ERR as c_int;
        // SAFETY: the facts live, the field is a C string, and the status lives through the call.
        let number = unsafe {
            api!(RedisModule_ServerInfoGetFieldUnsigned(self.0.as_ptr(), field.as_ptr(), &raw mut status))
        };
        (status == raw::REDISMODULE_OK as c_int).then_some(number)
    }

    /// Whether there is such a field.
    pub(crate) fn has(&self, field: &CStr) -> bool {
        // SAFETY: the facts live and the field is a C string; the text that is returned lives as long as the facts do, and
        // is not kept.
        !unsafe { api!(RedisModule_ServerInfoGetFieldC(self.0.as_ptr(), field.as_ptr())) }.is_null()
    }
}

impl Drop for Facts {
    fn drop(&mut self) {
        // SAFETY: made by GetServerInfo without a context, freed once.
        unsafe { api!(RedisModule_FreeServerInfo(std::ptr::null_mut(), self.0.as_ptr())) };
    }
}

/// The version of Redis that the server calls itself: 0x070203 is 7.2.3. 0 if it cannot say.
pub(crate) fn version() -> u32 {
    // SAFETY: the static is copied out; the function takes nothing.
    let version = unsafe { raw::RedisModule_GetServerVersion.map_or(0, |version| version()) };
    version.cast_unsigned()
}
