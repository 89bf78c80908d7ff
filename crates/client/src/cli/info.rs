//! `lockfence info LOCK`

use std::fmt::Write as _;

use lockfence_client::admin::{Admin, AtNode, LockState};

use crate::args::Info;
use crate::exit::{Failed, NOT_HELD};
use crate::ls::verdict;
use crate::merge::{self, Merged, State};
use crate::{escape, json, nodes, say, table, time};

pub(crate) async fn run(args: &Info) -> Result<u8, Failed> {
    let admin = nodes::admin(&args.nodes)?;
    let look = Look::take(&admin, nodes::bytes(&args.lock), u64::from(args.count)).await;
    say::print(&if args.json { json::text(&look.json(), true) } else { look.text() })?;
    verdict(&look.answers, look.majority)?;
    Ok(if look.merged().state == State::Free { NOT_HELD } else { 0 })
}

/// One look at one lock.
pub(crate) struct Look {
    name: Vec<u8>,
    pub(crate) answers: Vec<AtNode<Option<LockState>>>,
    pub(crate) majority: usize,
}

impl Look {
    pub(crate) async fn take(admin: &Admin, name: &[u8], count: u64) -> Self {
        let answers = admin.look(name, count).await;
        Self { name: name.to_vec(), answers, majority: admin.majority() }
    }

    pub(crate) fn merged(&self) -> Merged<'_> {
        let silent = self.answers.iter().filter(|node| node.answer.is_err()).count();
        merge::lock(&self.name, &self.states(), self.majority, silent)
    }

    fn states(&self) -> Vec<&LockState> {
        self.answers.iter().filter_map(|node| node.answer.as_ref().ok()?.as_ref()).collect()
    }

    fn json(&self) -> json::Info {
        json::Info {
            lock: (&self.merged()).into(),
            nodes: self.answers.iter().map(json::LockAtNode::from).collect(),
        }
    }

    fn text(&self) -> String {
        let mut text = summary(&self.merged());
        let states = self.states();
        let several = self.answers.len() > 1;
        if states.iter().any(|state| state.holders > 1) {
            push(&mut text, holders(&self.answers, several));
        }
        if states.iter().any(|state| !state.waiter_list.is_empty()) {
            push(&mut text, waiters(&self.answers, several));
        }
        if several {
            push(&mut text, at_nodes(&self.answers));
        }
        text
    }
}

fn summary(lock: &Merged<'_>) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<9}{value}"); // writing to a String cannot fail
    };
    line("lock", escape::for_people(lock.name));
    line("state", lock.state.name().to_owned());
    if let Some(owner) = lock.owner {
        line("mode", table::mode(lock.mode));
        line("holder", escape::owner(owner));
        line("owner", escape::credential(owner));
        line("token", lock.token.map_or_else(|| "-".to_owned(), |token| token.to_string()));
        line("age", time::shown(lock.held));
        line("left", time::shown(lock.left));
        line("holders", lock.holders.to_string());
    }
    line("waiters", lock.waiters.to_string());
    text
}

fn push(text: &mut String, table: comfy_table::Table) {
    text.push('\n');
    text.push_str(&table::text(table));
}

/// The headings of a table in which, on a quorum, the node comes first.
fn headings<'a>(several: bool, others: &[&'a str]) -> Vec<&'a str> {
    let node = several.then_some("NODE");
    node.into_iter().chain(others.iter().copied()).collect()
}

fn row(node: &str, several: bool, others: Vec<String>) -> Vec<String> {
    let node = several.then(|| escape::for_people(node.as_bytes()));
    node.into_iter().chain(others).collect()
}

fn known(answers: &[AtNode<Option<LockState>>]) -> impl Iterator<Item = (&str, &LockState)> {
    answers.iter().filter_map(|node| Some((node.node.as_str(), node.answer.as_ref().ok()?.as_ref()?)))
}

fn holders(answers: &[AtNode<Option<LockState>>], several: bool) -> comfy_table::Table {
    let mut table = table::new(&headings(several, &["HOLDER", "TOKEN", "AGE", "LEFT"]));
    for (node, state) in known(answers) {
        for holder in &state.holder_list {
            let cells = vec![
                escape::owner(&holder.owner),
                holder.token.to_string(),
                time::shown(holder.held),
                time::shown(holder.left),
            ];
            table.add_row(row(node, several, cells));
        }
    }
    table
}

fn waiters(answers: &[AtNode<Option<LockState>>], several: bool) -> comfy_table::Table {
    let mut table = table::new(&headings(several, &["WAITER", "MODE", "WAITED", "LEFT", "CLIENT"]));
    for (node, state) in known(answers) {
        for waiter in &state.waiter_list {
            let cells = vec![
                escape::owner(&waiter.owner),
                escape::for_people(waiter.mode.as_bytes()),
                time::shown(waiter.waited),
                waiter.left.map_or_else(|| "forever".to_owned(), time::shown),
                waiter.client_id.to_string(),
            ];
            table.add_row(row(node, several, cells));
        }
    }
    table
}

fn at_nodes(answers: &[AtNode<Option<LockState>>]) -> comfy_table::Table {
    let mut table = table::new(&["NODE", "STATE", "HOLDER", "TOKEN", "COUNTER", "AGE", "LEFT", "WAITERS"]);
    for node in answers {
        let name = escape::for_people(node.node.as_bytes());
        let dash = || "-".to_owned();
        let cells = match &node.answer {
            Err(_) => vec![name, "unknown".to_owned()],
            Ok(None) => vec![name, "free".to_owned()],
            Ok(Some(state)) => {
                let first = state.holder_list.first();
                vec![
                    name,
                    if first.is_some() { "held" } else { "free" }.to_owned(),
                    first.map_or_else(dash, |holder| escape::owner(&holder.owner)),
                    first.map_or_else(dash, |holder| holder.token.to_string()),
                    state.counter.to_string(),
                    first.map_or_else(dash, |holder| time::shown(holder.held)),
                    first.map_or_else(dash, |holder| time::shown(holder.left)),
                    state.waiters.to_string(),
                ]
            }
        };
        table.add_row(cells);
    }
    table
}
