//! What clients are told: failures, and how a request for a lock ended.

use lockfence_core::error::Refusal;
use lockfence_core::queue::{Grant, Outcome, Standing};

use crate::server::{CallError, Ctx};

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
const READ_ONLY: &str = "READONLY You can't write against a read only replica.";

/// Why a command was not carried out.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The core refused it.
    Refused(Refusal),
    /// Something else stands at the key.
    WrongType,
    /// This server is a replica.
    ReadOnly,
    /// A line of another origin.
    Line(String),
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        Self::Line(error.0)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl Failure {
    /// The whole error line. `key` is the lock or fence that the command named.
    pub(crate) fn line(&self, key: &[u8]) -> String {
        match self {
            Self::Refused(refusal) => refusal.line(key),
            Self::WrongType => WRONG_TYPE.to_owned(),
            Self::ReadOnly => READ_ONLY.to_owned(),
            Self::Line(line) => line.clone(),
        }
    }
}

/// Writes how a request for the lock `key` ended.
pub(crate) fn outcome(ctx: Ctx, outcome: &Outcome, with_info: bool, key: &[u8]) {
    match outcome {
        Outcome::Granted(grant) => granted(ctx, *grant, with_info),
        Outcome::NotGranted(standing) => not_granted(ctx, standing, with_info),
        Outcome::Refused(refusal) => ctx.reply_error(&refusal.line(key)),
        Outcome::LockLost => {
            ctx.reply_error(
                "LOCKLOST the lock's key was deleted, replaced or moved while this request waited",
            );
        }
        Outcome::Demoted => {
            ctx.reply_error(
                "UNBLOCKED force unblock from blocking operation, instance state changed to replica",
            );
        }
    }
}

/// Writes that a lock was granted.
pub(crate) fn granted(ctx: Ctx, grant: Grant, with_info: bool) {
    if with_info { granted_map(ctx, grant) } else { ctx.reply_number(grant.token.get()) }
}

/// Writes that it was not, and who stands in the way.
pub(crate) fn not_granted(ctx: Ctx, standing: &Standing, with_info: bool) {
    if with_info { not_granted_map(ctx, standing) } else { ctx.reply_null() }
}

fn granted_map(ctx: Ctx, grant: Grant) {
    ctx.reply_map(4);
    ctx.reply_bytes(b"granted");
    ctx.reply_number(1);
    ctx.reply_bytes(b"token");
    ctx.reply_number(grant.token.get());
    ctx.reply_bytes(b"ttl-ms");
    ctx.reply_number(grant.ttl_ms);
    ctx.reply_bytes(b"renewed");
    ctx.reply_number(u64::from(grant.renewed));
}

fn not_granted_map(ctx: Ctx, standing: &Standing) {
    ctx.reply_map(4);
    ctx.reply_bytes(b"granted");
    ctx.reply_number(0);
    ctx.reply_bytes(b"ttl-ms");
    ctx.reply_number(standing.ttl_ms);
    ctx.reply_bytes(b"owner");
    match &standing.owner {
        Some(owner) => ctx.reply_bytes(owner),
        None => ctx.reply_null(),
    }
    ctx.reply_bytes(b"waiters");
    ctx.reply_number(standing.waiters);
}
