//! `lockfence break LOCK`

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use lockfence_client::admin::AtNode;

use crate::args::Break;
use crate::exit::{Failed, NOT_HELD, USAGE};
use crate::info::Look;
use crate::ls::verdict;
use crate::merge::{Merged, State};
use crate::{escape, json, nodes, say, time};

pub(crate) async fn run(args: &Break) -> Result<u8, Failed> {
    let admin = nodes::admin(&args.nodes)?;
    let name = nodes::bytes(&args.lock);
    if !args.yes {
        if !io::stdin().is_terminal() {
            return Err(Failed::new(
                USAGE,
                "break asks first, and there is no terminal to ask on: add --yes; nothing was broken",
            ));
        }
        let look = Look::take(&admin, name, 1).await;
        verdict(&look.answers, look.majority)?;
        let merged = look.merged();
        if merged.state == State::Free {
            say::line(&format!("nobody holds \"{}\"", escape::for_people(name)));
            return Ok(NOT_HELD);
        }
        if !is_sure(&question(&merged))? {
            say::line("nothing was broken");
            return Ok(NOT_HELD);
        }
    }
    let answers = admin.break_lock(name).await;
    let ended = answers.iter().filter_map(|node| node.answer.as_ref().ok()).copied().max().unwrap_or(0);
    tell(name, ended, &answers, admin.majority(), args.json)?;
    verdict(&answers, admin.majority())?;
    Ok(if ended == 0 { NOT_HELD } else { 0 })
}

fn tell(
    name: &[u8],
    ended: u64,
    answers: &[AtNode<u64>],
    majority: usize,
    as_json: bool,
) -> Result<(), Failed> {
    if as_json {
        let name = escape::for_json(name);
        let nodes = answers.iter().map(json::BrokenAtNode::from).collect();
        return Ok(say::print(&json::text(&json::Broken { name, ended, nodes }, true))?);
    }
    let silent = answers.iter().filter(|node| node.answer.is_err()).count();
    if ended == 0 && answers.len().saturating_sub(silent) < majority {
        return Ok(()); // the verdict says it all
    }
    let name = escape::for_people(name);
    Ok(say::print(&match ended {
        0 => format!("nobody holds \"{name}\"\n"),
        1 => format!("\"{name}\" was taken from its holder\n"),
        many => format!("\"{name}\" was taken from its {many} holders\n"),
    })?)
}

fn question(lock: &Merged<'_>) -> String {
    let who = lock.owner.map_or_else(|| "somebody".to_owned(), escape::owner);
    let others = match lock.holders.saturating_sub(1) {
        0 => String::new(),
        others => format!(" and {others} more"),
    };
    format!(
        "\"{}\" is held by {who}{others} for {} now; {} wait. Break it? [y/N] ",
        escape::for_people(lock.name),
        time::shown(lock.held),
        lock.waiters
    )
}

/// Asks on the standard error output: the standard output is for data.
fn is_sure(question: &str) -> Result<bool, Failed> {
    let mut err = io::stderr().lock();
    err.write_all(question.as_bytes())?;
    err.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
