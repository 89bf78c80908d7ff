//! `lockfence ls [PATTERN]`

use std::time::{SystemTime, UNIX_EPOCH};

use lockfence_client::NodeError;
use lockfence_client::admin::{Admin, AtNode, LockState};

use crate::args::{List, Which};
use crate::exit::{self, Failed};
use crate::merge::{self, Merged};
use crate::{json, nodes, say, table, time};

/// How many holders of a lock a quorum is asked for, to find out who has a majority.
const HOLDERS: u64 = 100;

pub(crate) async fn run(args: &List) -> Result<u8, Failed> {
    let admin = nodes::admin(&args.nodes)?;
    let look = Look::take(&admin, &args.which).await;
    if args.json {
        say::print(&json::text(&look.json(), true))?;
    } else if look.answers.iter().any(|node| node.answer.is_ok()) {
        say::print(&table::text(look.table()))?;
    }
    look.verdict()?;
    Ok(0)
}

/// One look at all locks.
pub(crate) struct Look {
    answers: Vec<AtNode<Vec<LockState>>>,
    majority: usize,
    all: bool,
}

impl Look {
    pub(crate) async fn take(admin: &Admin, which: &Which) -> Self {
        let count = if admin.nodes().len() > 1 { HOLDERS } else { 1 };
        let answers = admin.list(nodes::bytes(&which.pattern), count).await;
        Self { answers, majority: admin.majority(), all: which.all }
    }

    fn locks(&self) -> Vec<Merged<'_>> {
        let mut locks = merge::locks(&self.answers, self.majority);
        locks.retain(|lock| self.all || lock.is_used());
        locks
    }

    pub(crate) fn table(&self) -> comfy_table::Table {
        table::locks(&self.locks(), self.answers.len())
    }

    pub(crate) fn json(&self) -> json::List {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        json::List {
            at_ms: time::ms(now),
            locks: self.locks().iter().map(json::Lock::from).collect(),
            nodes: self.answers.iter().map(json::Node::from).collect(),
        }
    }

    pub(crate) fn verdict(&self) -> Result<(), Failed> {
        verdict(&self.answers, self.majority)
    }

    /// The nodes that did not answer, and why.
    pub(crate) fn silent(&self) -> Vec<NodeError> {
        silent(&self.answers)
    }
}

/// Whether enough nodes answered. Single ones that did not are told about.
pub(crate) fn verdict<T>(answers: &[AtNode<T>], majority: usize) -> Result<(), Failed> {
    let silent = silent(answers);
    if answers.len().saturating_sub(silent.len()) < majority {
        let lasting = |node: &&AtNode<T>| node.answer.as_ref().is_err_and(|no| no.lasting);
        let refused = answers.iter().filter(lasting).count();
        let is_hopeless = answers.len().saturating_sub(refused) < majority;
        return Err(if is_hopeless { exit::refused(&silent) } else { exit::no_quorum(&silent) });
    }
    for node in &silent {
        say::line(&format!("lockfence: no answer from {}", exit::at_node(node)));
    }
    Ok(())
}

fn silent<T>(answers: &[AtNode<T>]) -> Vec<NodeError> {
    let error = |node: &AtNode<T>| {
        let cause = node.answer.as_ref().err()?.to_string();
        Some(NodeError { node: node.node.clone(), cause })
    };
    answers.iter().filter_map(error).collect()
}
