//! Which server answers at each node. One server that two nodes of a quorum lead to, by two names or a proxy, would have
//! two votes: a majority could be a minority of the servers, and one that forgets could give the lock away twice.
//!
//! A server is known by its `run_id`, drawn anew at each of its starts (`INFO server`), which is asked for once a shared
//! connection, before the first request on it. The connection of a WAIT is not asked about: what a WAIT brings is never
//! counted, only what the round after it brings on the shared ones. Where the user may not run INFO a node is taken for one
//! of its own.
//!
//! What a node led to counts until it is known what it leads to now: an answer may still come by the old connection, and
//! the lease that it tells of is at the old server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::sync::watch;

use crate::clock;
use crate::config::ConfigError;
use crate::quorum::{Failure, FailureKind};

/// The servers of a quorum.
#[derive(Debug)]
pub(crate) struct Identities {
    nodes: Mutex<Vec<Seen>>,
    /// How many nodes have not been connected to so far, nor failed to be.
    unknown: watch::Sender<usize>,
    /// Whether it was said that a server does not tell which one it is.
    warned: AtomicBool,
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
    /// The node that led to the same server, when this one was last connected to.
    same_as: Option<String>,
    /// The one that this was last said of.
    said: Option<String>,
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
            Arc::new(Self { nodes, unknown: watch::Sender::new(names.len()), warned: AtomicBool::new(false) })
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

    /// This line is being connected anew. A node that led to another's server may not do so any more: wait and see.
    pub(crate) fn trying(&self) {
        let again = self.all.at(self.node, |seen| {
            seen.same_as.take().is_some() && std::mem::replace(&mut seen.is_known, false)
        });
        if again == Some(true) {
            self.all.unknown.send_modify(|count| *count = count.saturating_add(1));
        }
    }

    /// Whether the server at that connection has no vote yet.
    pub(crate) async fn check(
        &self,
        connection: &mut MultiplexedConnection,
        within: Duration,
    ) -> Result<(), Failure> {
        let id = server_id(connection, within).await?;
        if id.is_none() && !self.all.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "a node does not tell which server it is (INFO): one by two addresses would have two votes"
            );
        }
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

    /// Notes which server it is, if it told, in place of what this line led to before; the name of another node that leads
    /// there, too.
    fn enter(&self, id: Option<String>) -> Option<String> {
        let mut nodes = self.all.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let leads_there = |seen: &Seen| seen.servers.iter().any(|(_, other)| Some(other) == id.as_ref());
        let other = nodes
            .iter()
            .enumerate()
            .find(|(node, seen)| *node != self.node && leads_there(seen))
            .map(|(_, seen)| seen.name.clone());
        let seen = nodes.get_mut(self.node)?;
        seen.servers.retain(|(line, _)| *line != self.line);
        if other.is_none() {
            seen.servers.extend(id.map(|id| (self.line, id)));
        }
        seen.same_as.clone_from(&other);
        let said = std::mem::replace(&mut seen.said, other.clone());
        let name = seen.name.clone();
        drop(nodes);
        if let Some(other) = other.as_ref().filter(|other| said.as_ref() != Some(other)) {
            tracing::error!(node = %name, %other, "one server at two nodes of a quorum");
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
        Err(_) => Err(not_sent(format!("no connection within {}", clock::in_ms(within)))),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> (Arc<Identities>, Identity, Identity) {
        let all = Identities::of(&["a".to_owned(), "b".to_owned()]).expect("two");
        let (a, b) = (all.line(0), all.line(1));
        (all, a, b)
    }

    /// Connects to that server, or to none.
    fn connect(node: &Identity, server: Option<&str>) -> bool {
        node.trying();
        let refused = server.map(|server| node.enter(Some(server.to_owned())).is_some());
        node.tried();
        refused == Some(false)
    }

    #[test]
    fn a_server_has_one_vote_until_it_is_known_where_the_other_node_leads() {
        let (all, a, b) = two();
        assert!(connect(&a, Some("x")) && connect(&b, Some("y")));
        a.trying(); // an answer by the old connection may still be on its way
        assert!(!connect(&b, Some("x")) && !connect(&b, Some("x")));
        assert!(all.same().is_some());
        assert!(a.enter(Some("z".to_owned())).is_none());
        assert!(connect(&b, Some("x")));
        assert!(all.same().is_none());
    }

    #[test]
    fn two_nodes_may_change_places() {
        let (all, a, b) = two();
        assert!(connect(&a, Some("x")) && connect(&b, Some("y")));
        assert!(!connect(&a, Some("y")));
        assert!(connect(&b, Some("x")) && connect(&a, Some("y")));
        assert!(all.same().is_none());
    }

    /// It has no vote, and is in nobody's way.
    #[test]
    fn a_node_that_led_to_another_ones_server_and_is_gone() {
        let (all, a, b) = two();
        assert!(connect(&a, Some("x")) && !connect(&b, Some("x")));
        assert!(all.same().is_some());
        assert!(!connect(&b, None));
        assert!(all.same().is_none());
        assert_eq!(*all.unknown.borrow(), 0);
    }
}
