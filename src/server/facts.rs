//! What the server says of itself, as the fields of INFO.

use std::ffi::{CStr, c_int};
use std::ptr::NonNull;

use redis_module::raw;

use super::api;

/// One section of INFO, as it was when it was asked for.
#[derive(Debug)]
pub(crate) struct Facts(NonNull<raw::RedisModuleServerInfoData>);

impl Facts {
    /// Asks for a section. The server writes all of it down: some ten µs.
    pub(crate) fn of(section: &CStr) -> Option<Self> {
        // SAFETY: the section is a C string; without a context the server leaves the freeing to us.
        let facts = unsafe { api!(RedisModule_GetServerInfo(std::ptr::null_mut(), section.as_ptr())) };
        NonNull::new(facts).map(Self)
    }

    /// A field that is a number.
    pub(crate) fn number(&self, field: &CStr) -> Option<u64> {
        let mut status: c_int = 0;
        // SAFETY: the facts live; the field is a C string; the server writes a status.
        let number = unsafe {
            api!(RedisModule_ServerInfoGetFieldUnsigned(self.0.as_ptr(), field.as_ptr(), &raw mut status))
        };
        (status == raw::REDISMODULE_OK as c_int).then_some(number)
    }

    /// Whether there is such a field.
    pub(crate) fn has(&self, field: &CStr) -> bool {
        // SAFETY: as above; the text that is returned lives as long as the facts, and is not kept.
        !unsafe { api!(RedisModule_ServerInfoGetFieldC(self.0.as_ptr(), field.as_ptr())) }.is_null()
    }
}

/// The version of Redis that the server calls itself: 0x070203 is 7.2.3. 0 if it cannot say.
pub(crate) fn version() -> u32 {
    // SAFETY: the static is copied out; the function takes nothing.
    let version = unsafe { raw::RedisModule_GetServerVersion.map_or(0, |version| version()) };
    version.cast_unsigned()
}

impl Drop for Facts {
    fn drop(&mut self) {
        // SAFETY: made by GetServerInfo without a context, freed once.
        unsafe { api!(RedisModule_FreeServerInfo(std::ptr::null_mut(), self.0.as_ptr())) };
    }
}
