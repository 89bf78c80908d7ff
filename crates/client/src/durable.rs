//! Leases that others than the primary vouch for: its replicas, or its disk.
//!
//! The lease is extended, and WAIT or WAITAOF follows on the same connection: they vouch for what that connection wrote.
//! The ACQUIRE need not have gone over it, since replicas and the append-only file get everything in the order in which
//! it was written: who has the EXTEND has the grant, and an EXTEND acts only on the live lease of this owner. (On the
//! shared connection WAIT would hold up everybody, and for a grant that came from a queue it would vouch for nothing:
//! that one was written by the command of whoever released.)
//!
//! Renewals are vouched for as well: a lease that a replica did not hear of ends earlier there, so the holder must not
//! count on it.

use std::time::Duration;

use redis::{Cmd, ServerError, Value};

use crate::error::Error;
use crate::line::{Answer, Request};
use crate::node::Node;
use crate::quorum::{Failure, FailureKind, Reply};
use crate::wire;

/// The longest that anybody may take to vouch for a lease, if nothing else was set.
pub(crate) const WITHIN_MAX: Duration = Duration::from_secs(5);

/// Who must vouch for each lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Durability {
    /// So many replicas.
    pub(crate) replicas: u32,
    /// The primary's disk.
    pub(crate) disk: bool,
}

/// Who did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vouched {
    pub(crate) replicas: u64,
    pub(crate) disk: bool,
}

impl Durability {
    /// Whether anybody must.
    pub(crate) const fn is_asked(self) -> bool {
        self.replicas > 0 || self.disk
    }

    /// Who vouched; `None` when there is no such lease any more.
    fn vouched(self, answer: Answer) -> Result<Option<Vouched>, Failure> {
        let answers = match answer? {
            Value::Array(answers) => answers,
            other => return Err(wire::not_understood(&other)),
        };
        let mut answers = answers.into_iter();
        match answers.next() {
            Some(Value::Int(1)) => {}
            Some(Value::Int(0)) => return Ok(None),
            Some(Value::ServerError(error)) => return Err(wire::failure(&error)),
            other => return Err(wire::not_understood(&other.unwrap_or(Value::Nil))),
        }
        let mut vouched = Vouched { replicas: 0, disk: false };
        if self.replicas > 0 {
            vouched.replicas = match answers.next() {
                Some(Value::Int(count)) => u64::try_from(count).unwrap_or(0),
                other => return Err(cannot("WAIT", other)),
            };
        }
        if self.disk {
            vouched.disk = match answers.next() {
                Some(Value::Array(counts)) => matches!(counts.first(), Some(Value::Int(1))),
                other => return Err(cannot("WAITAOF", other)),
            };
        }
        Ok(Some(vouched))
    }

    /// That those are not enough.
    pub(crate) fn refusal(self, vouched: Vouched) -> Error {
        Error::NotDurable {
            acknowledged: vouched.replicas,
            wanted: u64::from(self.replicas),
            on_disk: self.disk.then_some(vouched.disk),
        }
    }

    /// Whether those are enough.
    pub(crate) fn is_met(self, vouched: Vouched) -> bool {
        vouched.replicas >= u64::from(self.replicas) && (vouched.disk || !self.disk)
    }
}

/// How those who must vouch are asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acks {
    pub(crate) durability: Durability,
    /// How long each may take.
    pub(crate) within: Duration,
    /// How long the primary may take besides.
    pub(crate) node_timeout: Duration,
}

impl Acks {
    /// Sends `extend`, an EXTEND of the lease of `lock`, and says who vouched for it; `None` when there is no such lease
    /// any more.
    pub(crate) async fn ask(self, node: &Node, lock: &[u8], extend: Cmd) -> Result<Option<Vouched>, Failure> {
        let Self { durability, within, node_timeout } = self;
        let ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX).max(1);
        let mut longest = node_timeout;
        let mut cmds = vec![extend];
        if durability.replicas > 0 {
            let mut wait = redis::cmd("WAIT");
            wait.arg(durability.replicas).arg(ms);
            cmds.push(wait);
            longest = longest.saturating_add(within);
        }
        if durability.disk {
            let mut wait = redis::cmd("WAITAOF");
            wait.arg(1).arg(0).arg(ms);
            cmds.push(wait);
            longest = longest.saturating_add(within);
        }
        durability.vouched(node.alone(Request::batch(cmds), lock, node_timeout, Some(longest)).await)
    }

    /// The same as the answer to a renewal: it only counts when enough vouch for it.
    pub(crate) async fn renew(self, node: &Node, lock: &[u8], extend: Cmd) -> Reply {
        match self.ask(node, lock, extend).await {
            Ok(None) => Reply::Done(false),
            Ok(Some(vouched)) if self.durability.is_met(vouched) => Reply::Done(true),
            Ok(Some(vouched)) => {
                let text = self.durability.refusal(vouched).to_string();
                Reply::Failed(Failure::new(FailureKind::Refused, text))
            }
            Err(failure) => Reply::Failed(failure),
        }
    }
}

/// The server cannot do that: it is too old, keeps no append-only file, or does not let this user.
fn cannot(what: &str, answer: Option<Value>) -> Failure {
    let why = match answer {
        Some(Value::ServerError(error)) => explained(&error),
        other => format!("not an answer: {}", wire::shape(&other.unwrap_or(Value::Nil))),
    };
    Failure::new(FailureKind::Fatal, format!("{what}: {why}"))
}

fn explained(error: &ServerError) -> String {
    let line = wire::line(error);
    if line.contains("unknown command") { format!("needs Redis 7.2 or Valkey 7.2 ({line})") } else { line }
}
