//! Clients that wait for their reply.

use std::ffi::c_void;

use redis_module::raw;

use super::{Ctx, api};

/// The callbacks of a client that waits.
#[derive(Clone, Copy)]
pub(crate) struct Callbacks {
    /// Writes the reply.
    pub(crate) reply: raw::RedisModuleCmdFunc,
    /// CLIENT UNBLOCK … TIMEOUT.
    pub(crate) timeout: raw::RedisModuleCmdFunc,
    /// The delivery is no longer needed.
    pub(crate) free: Option<unsafe extern "C" fn(*mut raw::RedisModuleCtx, *mut c_void)>,
    /// The client has gone, or CLIENT UNBLOCK … ERROR answered it.
    pub(crate) disconnect: raw::RedisModuleDisconnectFunc,
}

/// A client that waits. [`Blocked::answer`] or [`Blocked::let_go`] must be called exactly once, whatever happens.
#[derive(Debug, PartialEq, Eq, Hash, Clone, Copy)]
pub(crate) struct Blocked(*mut raw::RedisModuleBlockedClient);

impl Blocked {
    /// Lets the client of this command wait; `None` where the server does not allow it. (Valkey: clients of other types than
    /// `normal`, to which a RESP3 client that is subscribed belongs.)
    ///
    /// Without a time-out of the server's own: its race with an answer is a fault of some versions (redis PR#13015).
    pub(crate) fn new(ctx: Ctx, callbacks: Callbacks) -> Option<Self> {
        // SAFETY: the context is that of a command; all callbacks are given.
        let raw = unsafe {
            api!(RedisModule_BlockClient(ctx.raw(), callbacks.reply, callbacks.timeout, callbacks.free, 0))
        };
        if raw.is_null() {
            return None;
        }
        // SAFETY: the client was just blocked.
        unsafe { api!(RedisModule_SetDisconnectCallback(raw, callbacks.disconnect)) };
        Some(Self(raw))
    }

    /// # Safety
    /// `raw` must be what the server passed to a disconnect callback.
    pub(crate) const unsafe fn from_raw(raw: *mut raw::RedisModuleBlockedClient) -> Self {
        Self(raw)
    }

    /// Ends the wait; the reply callback gets `delivery`, the free callback drops it.
    pub(crate) fn answer<T>(self, delivery: Box<T>) {
        // SAFETY: called once for each blocked client (see the type).
        unsafe { api!(RedisModule_UnblockClient(self.0, Box::into_raw(delivery).cast())) };
    }

    /// Ends the wait of a client that has its reply already, or has gone.
    pub(crate) fn let_go(self) {
        // SAFETY: as above.
        unsafe { api!(RedisModule_UnblockClient(self.0, std::ptr::null_mut())) };
    }
}

/// The delivery of the client whose reply callback is running.
///
/// # Safety
/// Only inside a reply callback, and `T` must be the type that [`Blocked::answer`] was given.
pub(crate) unsafe fn delivery<'a, T>(ctx: Ctx) -> Option<&'a T> {
    // SAFETY: the caller vouches for the type; the box lives until the free callback.
    unsafe { api!(RedisModule_GetBlockedClientPrivateData(ctx.raw())).cast::<T>().as_ref() }
}

/// The client whose time-out callback is running.
pub(crate) fn handle_of(ctx: Ctx) -> Blocked {
    // SAFETY: the context is that of a time-out callback.
    Blocked(unsafe { api!(RedisModule_GetBlockedClientHandle(ctx.raw())) })
}
