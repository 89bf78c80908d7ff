//! `FENCE.CALL lock-or-fence token command [arg …]`

use std::ffi::{CStr, CString};

use lockfence_core::error::Refusal;
use lockfence_core::request::{number, split_fenced};
use lockfence_core::text::quoted;

use super::write::{refuse_locks_and_fences, refuse_same_key};
use super::{advance, check_token, refuse_on_replica};
use crate::boundary::Call;
use crate::reply::Failure;
use crate::server::{Ctx, EFFECT, HAND_OVER, InnerKeys, Key, Name};
use crate::state;

/// Where the inner command's name stands.
const INNER: usize = 3;
/// More than the commands of any server; a bound on what a client can make the module remember.
const REMEMBERED: usize = 1_000;
/// Flags of COMMAND INFO of what FENCE.CALL does not run: what blocks, MULTI and friends, scripts and functions
/// (all "noscript"), administration, subscriptions.
const REFUSED_FLAGS: [&[u8]; 4] = [b"blocking", b"noscript", b"admin", b"pubsub"];

/// What is known of a command that FENCE.CALL was asked to run.
#[derive(Clone, Debug)]
pub(crate) enum InnerVerdict {
    /// It may be run.
    Runs,
    /// It is COPY: it may be run, and may write into another database.
    Copies,
    /// Not, because of this flag.
    Refused(String),
}

/// Valkey gives a module no reply to these where the value is no string, nor to what the module runs next.
const SILENT: [&[u8]; 2] = [b"GETDEL", b"GETSET"];

pub(crate) fn run(call: &Call<'_>) -> Result<(), Failure> {
    let (token, rest) = split_fenced("fence.call", call.words, 1)?;
    let Some(command) = rest.first() else { return Err(Refusal::WrongArity("fence.call").into()) };
    refuse_on_replica()?;
    let name = call.key()?;
    let inner = call.names_from(INNER);
    refuse_by_name(command)?;
    let verdict = verdict_by_flags(call.ctx, command)?;
    refuse_by_keys(call.ctx, name, command, &inner)?;
    if matches!(verdict, InnerVerdict::Copies) {
        refuse_over_there(call.ctx, &inner)?;
    }
    let mut key = Key::to_write(call.ctx, name);
    check_token(&mut key, token)?;
    advance::raise(&mut key, token, None);
    drop(key);
    run_inner(call.ctx, command, inner.get(1..).unwrap_or_default())
}

/// C: as the calling user. S: the server's rules for writes, nothing that scripts may not run. M: memory limit.
/// E: errors as replies. 0: in the caller's protocol. !: replicated as its effects.
fn run_inner(ctx: Ctx, command: &[u8], words: &[Name<'_>]) -> Result<(), Failure> {
    let is_silent = SILENT.iter().any(|silent| command.eq_ignore_ascii_case(silent));
    if is_silent && words.first().is_some_and(|data| Key::to_read(ctx, *data).is_no_string()) {
        return Err(Failure::WrongType);
    }
    let command = CString::new(command).map_err(|_| unknown(command))?;
    let reply = ctx.run(c"CSME0!", &command, words);
    match reply.error() {
        // Redis 7.0 words it so.
        Some(line) if line.starts_with("ERR acl verification failed") => {
            let user = "NOPERM this user has no permissions to run the";
            Err(Failure::Line(format!("{user} {} command or to use its keys", quoted(command.as_bytes()))))
        }
        _ => Ok(reply.pass_on()?),
    }
}

/// The keys of the command, for COMMAND GETKEYS, cluster routing and ACL.
pub(crate) fn keys(call: &Call<'_>) {
    let inner = call.names_from(INNER);
    call.ctx.report_keeper_key();
    let Some(command) = inner.first() else { return };
    if refuse_by_name(command.bytes()).is_err() {
        return;
    }
    if let Ok(found) = InnerKeys::of(call.ctx, &inner) {
        found.report(call.ctx, INNER);
    }
}

/// No nesting, of any of the module's own commands.
fn refuse_by_name(command: &[u8]) -> Result<(), Failure> {
    let family = command.split(|byte| *byte == b'.').next().unwrap_or_default();
    let is = |word: &[u8], name: &CStr| word.eq_ignore_ascii_case(name.to_bytes());
    let families = [c"LOCK", c"FENCE", c"LOCKFENCE"];
    let of_ours = family.len() < command.len() && families.iter().any(|name| is(family, name));
    if of_ours || is(command, EFFECT) || is(command, HAND_OVER) {
        return Err(Failure::Line(format!("ERR FENCE.CALL does not run {}", quoted(command))));
    }
    Ok(())
}

fn verdict_by_flags(ctx: Ctx, command: &[u8]) -> Result<InnerVerdict, Failure> {
    let name = command.to_ascii_lowercase();
    let known = state::with(|state| state.inner_commands.get(&name).cloned());
    let verdict = match known {
        Some(verdict) => verdict,
        None => ask_flags(ctx, &name).ok_or_else(|| unknown(command))?,
    };
    if let InnerVerdict::Refused(flag) = &verdict {
        let line = format!("ERR FENCE.CALL does not run {}: the command is marked '{flag}'", quoted(command));
        return Err(Failure::Line(line));
    }
    Ok(verdict)
}

fn ask_flags(ctx: Ctx, name: &[u8]) -> Option<InnerVerdict> {
    let reply = ctx.run_own(c"E", c"COMMAND", &[b"INFO", name]);
    let known = reply.element(0, |info| {
        // Whatever it is called by, this is the name that it began with.
        let copies = info.element(0, |name| name.text().eq_ignore_ascii_case(b"copy"));
        let refused = info.element(2, |flags| {
            let mut found =
                (0..flags.len()).filter_map(|index| flags.element(index, |flag| flag.text().to_vec()));
            found.find(|flag| REFUSED_FLAGS.contains(&flag.as_slice()))
        });
        copies.zip(refused)
    });
    let verdict = match known?? {
        (_, Some(flag)) => InnerVerdict::Refused(String::from_utf8_lossy(&flag).into_owned()),
        (true, None) => InnerVerdict::Copies,
        (false, None) => InnerVerdict::Runs,
    };
    state::with(|state| {
        if state.inner_commands.len() >= REMEMBERED {
            state.inner_commands.clear();
        }
        state.inner_commands.insert(name.to_vec(), verdict.clone());
    });
    Some(verdict)
}

fn unknown(command: &[u8]) -> Failure {
    Failure::Line(format!("ERR unknown command {}", quoted(command)))
}

fn refuse_by_keys(ctx: Ctx, keeper: Name<'_>, command: &[u8], inner: &[Name<'_>]) -> Result<(), Failure> {
    let found = InnerKeys::of(ctx, inner).map_err(|why| Failure::Line(why.line(command)))?;
    let mut keys = 0_usize;
    for key in found.names(inner) {
        refuse_same_key(keeper, key)?;
        refuse_locks_and_fences(ctx, key)?;
        keys = keys.saturating_add(1);
    }
    if keys == 0 {
        return Err(Failure::Line(format!(
            "ERR FENCE.CALL needs a command with a key, the server tells none of {}",
            quoted(command)
        )));
    }
    Ok(())
}

/// `COPY source destination DB n` writes into that database, the only data command that does.
fn refuse_over_there(ctx: Ctx, copy: &[Name<'_>]) -> Result<(), Failure> {
    let Some(destination) = copy.get(2) else { return Ok(()) };
    let before = ctx.db();
    // The last DB counts. A number that is none, or out of range, is refused by the server.
    for pair in copy.windows(2).skip(3) {
        let [option, db] = pair else { continue };
        let Ok(db) = number("db", db.bytes(), 0, u64::from(u32::MAX)) else { continue };
        if !option.bytes().eq_ignore_ascii_case(b"DB") {
            continue;
        }
        ctx.select_db(u32::try_from(db).unwrap_or(u32::MAX));
        let refused = refuse_locks_and_fences(ctx, *destination);
        ctx.select_db(before);
        refused?;
    }
    Ok(())
}
