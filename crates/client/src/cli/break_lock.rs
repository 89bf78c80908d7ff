//! `lockfence break LOCK`

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use lockfence_client::admin::{Admin, AtNode, Holder, LockState};

use crate::args::Break;
use crate::exit::{Failed, NOT_HELD, USAGE};
use crate::info::Look;
use crate::ls::verdict;
use crate::merge::{Merged, State};
use crate::{escape, json, nodes, say, time};

pub(crate) async fn run(args: &Break) -> Result<u8, Failed> {
    let admin = nodes::admin(&args.nodes)?;
    let name = nodes::bytes(&args.lock);
    if args.yes {
        return told(name, &admin.break_lock(name).await, &admin, args.json);
    }
    let seen = match ask(&admin, name).await? {
        Asked::Yes(seen) => seen,
        Asked::No(why) => return Ok(not_held(&why)),
    };
    let answers = admin.break_seen(name, &seen.answers).await;
    if ended(&answers) == 0 && !args.json {
        verdict(&answers, seen.majority)?;
        return Ok(not_held(&why_none(&look(&admin, name).await?, name)));
    }
    told(name, &answers, &admin, args.json)
}

/// What the person said to the question.
enum Asked {
    /// To break those who were seen then.
    Yes(Look),
    /// Nothing, or there is nothing to be broken any more; why.
    No(String),
}

/// Shows who holds the lock, and asks.
///
/// An answer may take a person a while. So it is looked again once it is there: only those who were shown are broken, and
/// the order to the servers names them by that second look. (By the first one a holder whose token a quorum has raised
/// since would be passed over.)
async fn ask(admin: &Admin, name: &[u8]) -> Result<Asked, Failed> {
    if !io::stdin().is_terminal() {
        return Err(Failed::new(
            USAGE,
            "break asks first, and there is no terminal to ask on: add --yes; nothing was broken",
        ));
    }
    let shown = look(admin, name).await?;
    let merged = shown.merged();
    if merged.state == State::Free {
        return Ok(Asked::No(nobody(name)));
    }
    if !is_sure(&question(&merged))? {
        return Ok(Asked::No("nothing was broken".to_owned()));
    }
    let now = look(admin, name).await?;
    Ok(if now.merged().state != State::Free && knows(&shown.answers, &now.answers) {
        Asked::Yes(now)
    } else {
        Asked::No(why_none(&now, name))
    })
}

fn not_held(why: &str) -> u8 {
    say::line(why);
    NOT_HELD
}

/// Why nobody who was shown is left to be broken.
fn why_none(now: &Look, name: &[u8]) -> String {
    let merged = now.merged();
    if merged.state == State::Free {
        return nobody(name);
    }
    format!("the holder has changed: it is {} now; nothing was broken", holder(&merged))
}

async fn look(admin: &Admin, name: &[u8]) -> Result<Look, Failed> {
    let look = Look::take(admin, name, 0).await;
    verdict(&look.answers, look.majority)?;
    Ok(look)
}

/// Whether each holder of now is one of those of then. A node that was topped up meanwhile is no change; another token at
/// the same node is: it was released and taken again.
fn knows(then: &[AtNode<Option<LockState>>], now: &[AtNode<Option<LockState>>]) -> bool {
    let known: Vec<(&str, &Holder)> = holders(then).collect();
    holders(now).all(|(node, holder)| {
        let before = || known.iter().filter(|(_, other)| other.owner == holder.owner);
        before().next().is_some()
            && before().filter(|(at, _)| *at == node).all(|(_, other)| other.token == holder.token)
    })
}

fn holders(answers: &[AtNode<Option<LockState>>]) -> impl Iterator<Item = (&str, &Holder)> {
    answers.iter().flat_map(|node| {
        let state = node.answer.as_ref().ok().and_then(Option::as_ref);
        state.into_iter().flat_map(|state| &state.holder_list).map(|holder| (node.node.as_str(), holder))
    })
}

fn nobody(name: &[u8]) -> String {
    format!("nobody holds \"{}\"", escape::for_people(name))
}

fn holder(lock: &Merged<'_>) -> String {
    lock.owner.map_or_else(|| "somebody".to_owned(), escape::owner)
}

fn ended(answers: &[AtNode<u64>]) -> u64 {
    answers.iter().filter_map(|node| node.answer.as_ref().ok()).copied().max().unwrap_or(0)
}

/// Says what came of the order, and gives the exit code.
fn told(name: &[u8], answers: &[AtNode<u64>], admin: &Admin, as_json: bool) -> Result<u8, Failed> {
    let ended = ended(answers);
    tell(name, ended, answers, admin.majority(), as_json)?;
    verdict(answers, admin.majority())?;
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
    let nobody = nobody(name);
    let name = escape::for_people(name);
    Ok(say::print(&match ended {
        0 => format!("{nobody}\n"),
        1 => format!("\"{name}\" was taken from its holder\n"),
        many => format!("\"{name}\" was taken from its {many} holders\n"),
    })?)
}

fn question(lock: &Merged<'_>) -> String {
    let who = holder(lock);
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lockfence_client::admin::{AtNode, Holder, LockState, Mode};

    use super::knows;

    fn at(node: &str, holders: &[(&str, u64)]) -> AtNode<Option<LockState>> {
        let holder = |(owner, token): &(&str, u64)| Holder {
            owner: owner.as_bytes().into(),
            token: *token,
            left: Duration::from_secs(9),
            held: Duration::from_secs(1),
        };
        let state = LockState {
            name: b"lock".to_vec(),
            mode: Some(Mode::Exclusive),
            counter: 9,
            grants: 1,
            holders: 1,
            waiters: 0,
            holder_list: holders.iter().map(holder).collect(),
            waiter_list: Vec::new(),
        };
        AtNode { node: node.to_owned(), answer: Ok(Some(state)) }
    }

    #[test]
    fn another_holder_is_no_acquaintance() {
        let then = [at("x", &[("a", 7), ("b", 8)]), AtNode { node: "y".to_owned(), answer: Ok(None) }];
        for (now, same) in [
            (vec![at("x", &[("a", 7), ("b", 8)])], true),
            (vec![at("x", &[("b", 8)])], true),
            (vec![at("x", &[])], true),
            (vec![at("x", &[("a", 7)]), at("y", &[("a", 12)])], true),
            (vec![at("x", &[("a", 9)])], false),
            (vec![at("x", &[("a", 7), ("c", 9)])], false),
            (vec![at("x", &[("a", 7)]), at("y", &[("c", 9)])], false),
        ] {
            assert_eq!(knows(&then, &now), same, "{now:?}");
        }
    }
}
