//! Where the server calls the module. Each entry goes through [`guard`]: a panic never crosses into C, where it would
//! end the server.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use lockfence_core::planted::{self, Bug};
use redis_module::raw;

use crate::arrivals;
use crate::reply::Failure;
use crate::server::{Blocked, Ctx, Level, Name, delivery, log_without_context};
use crate::state;
use crate::waiters::{self, Delivery};

/// Words of a command that are looked at without a heap allocation.
const WORDS_IN_PLACE: usize = 16;

/// A command being run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) ctx: Ctx,
    names: &'a [*mut raw::RedisModuleString],
    /// The words after the command's name and its first key.
    pub(crate) words: &'a [&'a [u8]],
}

impl<'a> Call<'a> {
    /// Word `index` of the whole command, 0 being the command's name.
    pub(crate) fn name(&self, index: usize) -> Option<Name<'a>> {
        // SAFETY: the server's argument vector lives while the command runs.
        self.names.get(index).map(|raw| unsafe { Name::new(*raw) })
    }

    /// The first key: the lock or fence.
    pub(crate) fn key(&self) -> Result<Name<'a>, Failure> {
        self.name(1).ok_or_else(|| Failure::Line("ERR wrong number of arguments".to_owned()))
    }

    /// The names from word `index` on.
    pub(crate) fn names_from(&self, index: usize) -> Vec<Name<'a>> {
        // SAFETY: as in `name`.
        self.names.iter().skip(index).map(|raw| unsafe { Name::new(*raw) }).collect()
    }
}

/// A command's body. What it returns as a failure is the reply; otherwise it has replied, or the client waits.
pub(crate) type Body = fn(&Call<'_>) -> Result<(), Failure>;

/// Runs `work`; a panic becomes `None`, and a line in the log.
pub(crate) fn guard<R>(work: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => Some(result),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            let line = format!("internal error, please report it: {text}");
            log_without_context(Level::Warning, &line);
            None
        }
    }
}

/// Held while a record is being changed. A panic then leaves it torn, and a torn lock is worse than a restart: the
/// process aborts.
pub(crate) struct Whole;

impl Whole {
    /// Where the test build can be made to panic.
    #[allow(clippy::panic, reason = "planted")]
    pub(crate) fn half_way(&self) {
        if planted::is(Bug::PanicHalfWay) {
            panic!("on purpose, half way");
        }
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// Runs a command's body for the server.
///
/// # Safety
/// Called by the server with a command's context and arguments.
pub(crate) unsafe fn run_command(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
    body: Body,
) -> c_int {
    // SAFETY: the server passes `argc` live strings.
    let (ctx, names) = unsafe {
        let argc = usize::try_from(argc).unwrap_or(0);
        (Ctx::new(ctx), std::slice::from_raw_parts(argv.cast_const(), argc))
    };
    if guard(|| answer(ctx, names, body)).is_none() {
        ctx.reply_error("ERR internal error in lockfence; the server's log says more");
    }
    raw::REDISMODULE_OK as c_int
}

fn answer(ctx: Ctx, names: &[*mut raw::RedisModuleString], body: Body) {
    // SAFETY: the server's argument vector lives while the command runs.
    let bytes = |raw: &*mut raw::RedisModuleString| unsafe { Name::new(*raw) }.bytes();
    let rest = names.get(2..).unwrap_or_default();
    let mut in_place: [&[u8]; WORDS_IN_PLACE] = [&[]; WORDS_IN_PLACE];
    let on_heap: Vec<&[u8]>;
    let words = if let Some(words) = in_place.get_mut(..rest.len()) {
        for (word, raw) in words.iter_mut().zip(rest) {
            *word = bytes(raw);
        }
        &*words
    } else {
        on_heap = rest.iter().map(bytes).collect();
        &on_heap
    };
    let call = Call { ctx, names, words };
    if let Err(failure) = body(&call) {
        let key = names.get(1).map_or(&[][..], bytes);
        ctx.reply_error(&failure.line(key));
    }
}

/// The reply callback of a client that waited.
pub(crate) unsafe extern "C" fn reply_waiter(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: the server passes a context; the delivery is what waiters.rs gave it.
    guard(|| unsafe {
        let ctx = Ctx::new(ctx);
        waiters::reply_to(ctx, delivery::<Delivery>(ctx));
    });
    raw::REDISMODULE_OK as c_int
}

/// The time-out callback: CLIENT UNBLOCK … TIMEOUT, since no other time-out is set.
pub(crate) unsafe extern "C" fn timed_out_by_command(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: the server passes a context.
    guard(|| waiters::unblocked_by_command(unsafe { Ctx::new(ctx) }));
    raw::REDISMODULE_OK as c_int
}

/// The disconnect callback of a client that waited.
pub(crate) unsafe extern "C" fn disconnected(
    ctx: *mut raw::RedisModuleCtx,
    client: *mut raw::RedisModuleBlockedClient,
) {
    // SAFETY: the server passes a context and the client that has gone.
    guard(|| unsafe { waiters::gone(Ctx::new(ctx), Blocked::from_raw(client)) });
}

/// The free callback of a delivery.
pub(crate) unsafe extern "C" fn free_delivery(ctx: *mut raw::RedisModuleCtx, delivery: *mut c_void) {
    // SAFETY: the server passes a context, and once the box that waiters.rs gave it.
    guard(|| unsafe { waiters::done_with(Ctx::new(ctx), *Box::from_raw(delivery.cast::<Delivery>())) });
}

/// The callback of the timer at the end of a turn, where the server does not tell commands apart.
pub(crate) unsafe extern "C" fn forget_unlinked(_ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    guard(|| state::with(|state| state.unlinked.clear()));
}

/// The callback at the end of a command in which a record has arrived.
pub(crate) unsafe extern "C" fn command_done(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    // SAFETY: the server passes a context.
    guard(|| arrivals::tell(unsafe { Ctx::new(ctx) }));
}

/// The timer's callback.
pub(crate) unsafe extern "C" fn timer_fired(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    // SAFETY: the server passes a context.
    guard(|| crate::expiry::timer_fired(unsafe { Ctx::new(ctx) }));
}
