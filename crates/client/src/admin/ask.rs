//! What one node is asked, and how its answers are read.
//!
//! The first question that is not answered is the last one: whoever asks waits for a silent node once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::{Holder, LockState, NoAnswer, Waiter};
use crate::line::{Answer, Line};
use crate::node::Node;
use crate::quorum::{Failure, FailureKind};
use crate::wire::{self, bytes, command_of, field, mode, number};

/// How many keys a node looks at for one answer to SCAN.
const SCAN_COUNT: u64 = 1000;

/// The names of all locks that match: at the one server, or at all that a cluster has.
pub(super) async fn names(
    node: &Arc<Node>,
    pattern: &[u8],
    within: Duration,
) -> Result<Vec<Vec<u8>>, NoAnswer> {
    // A server without the module has no locks, but says so of any type that it does not know: a newcomer would see an
    // empty list.
    ask_module(node, pattern, within).await?;
    let mut names = BTreeSet::new(); // SCAN may name one twice
    for server in node.servers(within).await? {
        scan(&server, pattern, within, &mut names).await?;
    }
    Ok(names.into_iter().collect())
}

/// Whatever the server says of that key: it is there, and knows the command.
async fn ask_module(node: &Arc<Node>, key: &[u8], within: Duration) -> Result<(), NoAnswer> {
    match node.send(command_of([b"LOCK.INFO", key]), key, within).await.unwrap_or_else(|_| Err(gone()))? {
        Value::ServerError(error) if wire::line(&error).contains("unknown command") => {
            Err(wire::failure(&error).into())
        }
        _ => Ok(()),
    }
}

async fn scan(
    server: &Line,
    pattern: &[u8],
    within: Duration,
    names: &mut BTreeSet<Vec<u8>>,
) -> Result<(), NoAnswer> {
    let count = SCAN_COUNT.to_string();
    let mut cursor = b"0".to_vec();
    loop {
        let words: [&[u8]; 8] =
            [b"SCAN", &cursor, b"MATCH", pattern, b"COUNT", count.as_bytes(), b"TYPE", b"lockfence"];
        let page = answered(server.send(command_of(words).into(), within).await)?;
        let (next, found) = scanned(&page).ok_or_else(|| wire::not_understood(&page))?;
        names.extend(found);
        if next == b"0" {
            return Ok(());
        }
        cursor = next;
    }
}

/// What the node knows of each; asked for at once.
pub(super) async fn states(
    node: &Arc<Node>,
    names: &[Vec<u8>],
    count: u64,
    within: Duration,
) -> Vec<Result<Option<LockState>, NoAnswer>> {
    let count = count.to_string();
    let question = |name: &[u8]| command_of([b"LOCK.INFO", name, b"FULL", b"COUNT", count.as_bytes()]);
    let asked: Vec<_> = names.iter().map(|name| node.send(question(name), name, within)).collect();
    let mut found = Vec::new();
    for (name, answer) in names.iter().zip(asked) {
        found.push(answered(answer.await).and_then(|value| match value {
            Value::Nil => Ok(None),
            value => state(name, &value).map(Some).ok_or_else(|| wire::not_understood(&value).into()),
        }));
    }
    found
}

/// Whether the node refused one key: the user may not read it, or it became something else than a lock.
pub(super) fn is_of_that_key(no: &NoAnswer) -> bool {
    no.cause.starts_with("WRONGTYPE") || (no.cause.starts_with("NOPERM") && no.cause.contains("key"))
}

pub(super) fn answered<E>(answer: Result<Answer, E>) -> Result<Value, NoAnswer> {
    match answer.unwrap_or_else(|_| Err(gone()))? {
        Value::ServerError(error) => Err(wire::failure(&error).into()),
        value => Ok(value),
    }
}

fn gone() -> Failure {
    Failure::new(FailureKind::Unknown, "the connection is gone")
}

fn scanned(page: &Value) -> Option<(Vec<u8>, Vec<Vec<u8>>)> {
    let Value::Array(parts) = page else { return None };
    let [cursor, Value::Array(names)] = parts.as_slice() else { return None };
    let names: Option<Vec<Vec<u8>>> = names.iter().map(|name| Some(bytes(name)?.to_vec())).collect();
    Some((bytes(cursor)?.to_vec(), names?))
}

fn state(name: &[u8], value: &Value) -> Option<LockState> {
    let number_of = |name| number(field(value, name)?);
    Some(LockState {
        name: name.to_vec(),
        mode: mode(value),
        counter: number_of("counter")?,
        grants: number_of("grants")?,
        holders: number_of("holders")?,
        waiters: number_of("waiters")?,
        holder_list: list(value, "holder-list", holder)?,
        waiter_list: list(value, "waiter-list", waiter)?,
    })
}

fn list<T>(value: &Value, name: &str, item: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    let Value::Array(items) = field(value, name)? else { return None };
    items.iter().map(item).collect()
}

fn holder(value: &Value) -> Option<Holder> {
    Some(Holder {
        owner: bytes(field(value, "owner")?)?.into(),
        token: number(field(value, "token")?)?,
        left: time(value, "ttl-ms")?,
        held: time(value, "held-ms")?,
    })
}

fn waiter(value: &Value) -> Option<Waiter> {
    Some(Waiter {
        owner: bytes(field(value, "owner")?)?.into(),
        mode: String::from_utf8_lossy(bytes(field(value, "mode")?)?).into_owned(),
        waited: time(value, "waited-ms")?,
        left: time(value, "left-ms"),
        client_id: number(field(value, "client-id")?)?,
    })
}

fn time(value: &Value, name: &str) -> Option<Duration> {
    number(field(value, name)?).map(Duration::from_millis)
}
