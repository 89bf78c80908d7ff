//! JSON: the shapes that docs/PROGRAM.md describes. Fields are only ever added.

use lockfence_client::admin::{AtNode, Holder, LockState, Mode, Waiter};
use serde::Serialize;

use crate::escape;
use crate::merge::Merged;
use crate::time;

/// `ls`, and each line of `watch`.
#[derive(Debug, Serialize)]
pub(crate) struct List {
    pub(crate) at_ms: u64,
    pub(crate) locks: Vec<Lock>,
    pub(crate) nodes: Vec<Node>,
}

/// `info`.
#[derive(Debug, Serialize)]
pub(crate) struct Info {
    #[serde(flatten)]
    pub(crate) lock: Lock,
    pub(crate) nodes: Vec<LockAtNode>,
}

/// `break`.
#[derive(Debug, Serialize)]
pub(crate) struct Broken {
    pub(crate) name: String,
    pub(crate) ended: u64,
    pub(crate) nodes: Vec<BrokenAtNode>,
}

/// A lock over all nodes.
#[derive(Debug, Serialize)]
pub(crate) struct Lock {
    name: String,
    state: &'static str,
    mode: Option<&'static str>,
    limit: Option<u32>,
    owner: Option<String>,
    holder: Option<String>,
    token: Option<u64>,
    holders: u64,
    waiters: u64,
    held_ms: Option<u64>,
    ttl_ms: Option<u64>,
    held_at: usize,
}

/// Whether a node answered.
#[derive(Debug, Serialize)]
pub(crate) struct Node {
    node: String,
    error: Option<String>,
}

/// What a node said about a lock.
#[derive(Debug, Serialize)]
pub(crate) struct LockAtNode {
    node: String,
    error: Option<String>,
    lock: Option<Record>,
}

/// What a node did.
#[derive(Debug, Serialize)]
pub(crate) struct BrokenAtNode {
    node: String,
    error: Option<String>,
    ended: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Record {
    state: &'static str,
    mode: Option<&'static str>,
    limit: Option<u32>,
    counter: u64,
    grants: u64,
    holders: u64,
    waiters: u64,
    holder_list: Vec<HolderRecord>,
    waiter_list: Vec<WaiterRecord>,
}

#[derive(Debug, Serialize)]
struct HolderRecord {
    owner: String,
    token: u64,
    ttl_ms: u64,
    held_ms: u64,
}

#[derive(Debug, Serialize)]
struct WaiterRecord {
    owner: String,
    mode: String,
    waited_ms: u64,
    left_ms: Option<u64>,
    client_id: u64,
}

/// As text, on one line or on several.
pub(crate) fn text(value: &impl Serialize, pretty: bool) -> String {
    let text = if pretty { serde_json::to_string_pretty(value) } else { serde_json::to_string(value) };
    // What is here has no maps with other keys than text, which alone could fail.
    let mut text = text.unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"));
    text.push('\n');
    text
}

impl From<&Merged<'_>> for Lock {
    fn from(lock: &Merged<'_>) -> Self {
        Self {
            name: escape::for_json(lock.name),
            state: lock.state.name(),
            mode: lock.mode.map(Mode::name),
            limit: limit(lock.mode),
            owner: lock.owner.map(|owner| escape::for_json(owner.bytes())),
            holder: lock.owner.map(escape::owner),
            token: lock.token,
            holders: lock.holders,
            waiters: lock.waiters,
            held_ms: lock.owner.map(|_| time::ms(lock.held)),
            ttl_ms: lock.owner.map(|_| time::ms(lock.left)),
            held_at: lock.held_at,
        }
    }
}

impl<T> From<&AtNode<T>> for Node {
    fn from(node: &AtNode<T>) -> Self {
        Self { node: node.node.clone(), error: node.answer.as_ref().err().map(ToString::to_string) }
    }
}

impl From<&AtNode<Option<LockState>>> for LockAtNode {
    fn from(node: &AtNode<Option<LockState>>) -> Self {
        let Node { node: name, error } = node.into();
        let lock = node.answer.as_ref().ok().and_then(Option::as_ref).map(Record::from);
        Self { node: name, error, lock }
    }
}

impl From<&AtNode<u64>> for BrokenAtNode {
    fn from(node: &AtNode<u64>) -> Self {
        let Node { node: name, error } = node.into();
        Self { node: name, error, ended: node.answer.as_ref().ok().copied() }
    }
}

impl From<&LockState> for Record {
    fn from(state: &LockState) -> Self {
        Self {
            state: if state.holders > 0 { "held" } else { "free" },
            mode: state.mode.map(Mode::name),
            limit: limit(state.mode),
            counter: state.counter,
            grants: state.grants,
            holders: state.holders,
            waiters: state.waiters,
            holder_list: state.holder_list.iter().map(HolderRecord::from).collect(),
            waiter_list: state.waiter_list.iter().map(WaiterRecord::from).collect(),
        }
    }
}

impl From<&Holder> for HolderRecord {
    fn from(holder: &Holder) -> Self {
        Self {
            owner: escape::for_json(holder.owner.bytes()),
            token: holder.token,
            ttl_ms: time::ms(holder.left),
            held_ms: time::ms(holder.held),
        }
    }
}

impl From<&Waiter> for WaiterRecord {
    fn from(waiter: &Waiter) -> Self {
        Self {
            owner: escape::for_json(waiter.owner.bytes()),
            mode: waiter.mode.clone(),
            waited_ms: time::ms(waiter.waited),
            left_ms: waiter.left.map(time::ms),
            client_id: waiter.client_id,
        }
    }
}

const fn limit(mode: Option<Mode>) -> Option<u32> {
    match mode {
        Some(Mode::Limit(n)) => Some(n),
        _ => None,
    }
}
