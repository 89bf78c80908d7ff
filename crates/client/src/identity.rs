//! Which server answers at each node. One server that two nodes of a quorum lead to, by two names or a proxy, would have
//! two votes: a majority could be a minority of the servers, and one that forgets could give the lock away twice.
//!
//! A server is known by its `run_id`, drawn anew at each of its starts (`INFO server`), which is asked for once a
//! connection, before the first request on it. Where the user may not run INFO a node is taken for one of its own.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::sync::watch;

use crate::config::ConfigError;
use crate::quorum::{Failure, FailureKind};

/// The servers of a quorum.
#[derive(Debug)]
pub(crate) struct Identities {
    nodes: Mutex<Vec<Seen>>,
    /// How many nodes have not been connected to so far, nor failed to be.
    unknown: watch::Sender<usize>,
}

/// What is known of the servers behind one node.
#[derive(Debug, Default)]
struct Seen {
    name: String,
    /// By the line that leads to it.
    servers: Vec<(u64, String)>,
    /// How many lines there are.
    lines: u64,
    is_known: bool,
    /// The node that led to the same server, when it was last connected to.
    same_as: Option<String>,
}

/// The place of one connection among the servers of a quorum.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    all: Arc<Identities>,
    node: usize,
    line: u64,
}

impl Identities {
    /// Those of nodes with these names; `None` where there is but one: it has all votes.
    pub(crate) fn of(names: &[String]) -> Option<Arc<Self>> {
        let seen = |name: &String| Seen { name: name.clone(), ..Seen::default() };
        (names.len() > 1).then(|| {
            let nodes = Mutex::new(names.iter().map(seen).collect());
            Arc::new(Self { nodes, unknown: watch::Sender::new(names.len()) })
        })
    }

    /// The place of a new line to the node with that number.
    pub(crate) fn line(self: &Arc<Self>, node: usize) -> Identity {
        let line = self.at(node, |seen| {
            seen.lines = seen.lines.saturating_add(1);
            seen.lines
        });
        Identity { all: self.clone(), node, line: line.unwrap_or_default() }
    }

    /// Two nodes that led to one server when they were last connected to.
    pub(crate) fn same(&self) -> Option<ConfigError> {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.iter().find_map(|seen| {
            let other = seen.same_as.clone()?;
            Some(ConfigError::OneServerTwice { node: seen.name.clone(), other })
        })
    }

    /// Waits until each node was connected to, or could not be, at most so long.
    pub(crate) async fn known(&self, within: Duration) {
        let mut unknown = self.unknown.subscribe();
        // In time or not: what is known then counts.
        let _ = tokio::time::timeout(within, unknown.wait_for(|count| *count == 0)).await;
    }

    fn at<T>(&self, node: usize, step: impl FnOnce(&mut Seen) -> T) -> Option<T> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).get_mut(node).map(step)
    }
}

impl Identity {
    /// The place of another line to the same node.
    pub(crate) fn another(&self) -> Self {
        self.all.line(self.node)
    }

    /// What this line led to counts no more: it is being connected anew.
    pub(crate) fn forget(&self) {
        self.all.at(self.node, |seen| seen.servers.retain(|(line, _)| *line != self.line));
    }

    /// Whether the server at that connection has no vote yet.
    pub(crate) async fn check(
        &self,
        connection: &mut MultiplexedConnection,
        within: Duration,
    ) -> Result<(), Failure> {
        let Some(id) = server_id(connection, within).await? else { return Ok(()) };
        match self.enter(id) {
            None => Ok(()),
            Some(other) => {
                let text = format!("the same server as {other}: one server has one vote");
                Err(Failure::new(FailureKind::Fatal, text))
            }
        }
    }

    /// The attempt to connect is over.
    pub(crate) fn tried(&self) {
        let first = self.all.at(self.node, |seen| !std::mem::replace(&mut seen.is_known, true));
        if first == Some(true) {
            self.all.unknown.send_modify(|count| *count = count.saturating_sub(1));
        }
    }

    /// Notes which server it is; the name of another node that leads there, too.
    fn enter(&self, id: String) -> Option<String> {
        let mut nodes = self.all.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let leads_there = |seen: &Seen| seen.servers.iter().any(|(_, other)| *other == id);
        let other = nodes
            .iter()
            .enumerate()
            .find(|(node, seen)| *node != self.node && leads_there(seen))
            .map(|(_, seen)| seen.name.clone());
        if let Some(seen) = nodes.get_mut(self.node) {
            seen.same_as.clone_from(&other);
            if let Some(other) = &other {
                tracing::error!(node = %seen.name, %other, "one server at two nodes of a quorum");
            } else {
                seen.servers.push((self.line, id));
            }
        }
        other
    }
}

/// The `run_id` of the server at that connection; `None` where it does not tell.
async fn server_id(
    connection: &mut MultiplexedConnection,
    within: Duration,
) -> Result<Option<String>, Failure> {
    let mut info = redis::cmd("INFO");
    info.arg("server");
    let not_sent = |text: String| Failure::new(FailureKind::NotSent, text);
    match tokio::time::timeout(within, connection.send_packed_command(&info)).await {
        Ok(Ok(answer)) => Ok(run_id(&answer)),
        Ok(Err(error)) => Err(not_sent(error.to_string())),
        Err(_) => Err(not_sent(format!("no connection within {within:?}"))),
    }
}

fn run_id(answer: &Value) -> Option<String> {
    let text = match answer {
        Value::BulkString(text) => std::str::from_utf8(text).ok()?,
        Value::VerbatimString { text, .. } => text,
        _ => return None,
    };
    text.lines().find_map(|line| line.strip_prefix("run_id:")).map(str::to_owned)
}
