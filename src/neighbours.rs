//! Whether other modules are loaded. One of those may run a lock's command as part of something larger, keep it from being
//! replicated, or save in the midst of it; and not all of that shows in what the server tells of a command. Modules that the
//! server is built with (vector sets in Redis 8, Lua in Valkey 9) are none of these: they do nothing of the kind.

use crate::known::Known;
use crate::server::{Ctx, Reply};

/// Whether there are none.
static NONE: Known = Known::not_yet();

/// A module has come or gone.
pub(crate) fn changed() {
    NONE.forget();
}

/// Finds out, where that is not known. Asks the server: not while the state is in use.
pub(crate) fn look(ctx: Ctx) {
    if NONE.get().is_none() {
        let modules = ctx.run_own(c"E", c"MODULE", &[b"LIST"]);
        let own = |index| modules.element(index, is_own).unwrap_or(false);
        NONE.learn(modules.error().is_none() && (0..modules.len()).all(own));
    }
}

/// Whether an entry of MODULE LIST is this module, or one that the server has not read from a file: its path is empty, or
/// is its name.
fn is_own(entry: &Reply) -> bool {
    let field = |name: &[u8]| {
        let at =
            (0..entry.len()).find(|at| entry.element(*at, |word| word.text() == name).unwrap_or(false))?;
        entry.element(at.saturating_add(1), |value| value.text().to_vec())
    };
    match (field(b"name"), field(b"path")) {
        (Some(name), Some(path)) => name == b"lockfence" || path.is_empty() || path == name,
        _ => false,
    }
}

/// Whether it is certain that a client's own command is running, by itself: no script, no transaction, no other module.
pub(crate) fn runs_for_a_client(ctx: Ctx) -> bool {
    NONE.get() == Some(true) && ctx.is_plain_command()
}
