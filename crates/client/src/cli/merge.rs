//! What the nodes say about one lock, laid together.
//!
//! A holder is who has the lock at a majority of the nodes; with one node that is whoever has it there.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use lockfence_client::Owner;
use lockfence_client::admin::{AtNode, Holder, LockState, Mode};

/// Whether somebody holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Free,
    /// At some nodes, but nobody at a majority.
    Partly,
    Held,
    /// Nobody at a majority of those that answered, but those that did not may make it one.
    Unknown,
}

impl State {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Partly => "partly",
            Self::Held => "held",
            Self::Unknown => "unknown",
        }
    }
}

/// One lock, over all nodes.
#[derive(Clone, Debug)]
pub(crate) struct Merged<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) state: State,
    pub(crate) mode: Option<Mode>,
    /// The longest holder; where nobody has a majority, who has most nodes.
    pub(crate) owner: Option<&'a Owner>,
    pub(crate) token: Option<u64>,
    pub(crate) holders: u64,
    /// Over all nodes: each waits at one.
    pub(crate) waiters: u64,
    pub(crate) held: Duration,
    /// Until the longest holder has no majority any more, if it does not renew.
    pub(crate) left: Duration,
    /// At how many nodes the longest holder stands.
    pub(crate) held_at: usize,
}

impl Merged<'_> {
    /// Whether there is something to see: a holder or a waiter.
    pub(crate) fn is_used(&self) -> bool {
        self.state != State::Free || self.waiters > 0
    }
}

/// All locks that any node knows, in the order of their names.
pub(crate) fn locks(answers: &[AtNode<Vec<LockState>>], majority: usize) -> Vec<Merged<'_>> {
    let mut by_name: BTreeMap<&[u8], Vec<&LockState>> = BTreeMap::new();
    for state in answers.iter().filter_map(|node| node.answer.as_ref().ok()).flatten() {
        by_name.entry(&state.name).or_default().push(state);
    }
    let silent = answers.iter().filter(|node| node.answer.is_err()).count();
    by_name.into_iter().map(|(name, states)| lock(name, &states, majority, silent)).collect()
}

/// One lock; `silent` nodes did not answer.
pub(crate) fn lock<'a>(
    name: &'a [u8],
    states: &[&'a LockState],
    majority: usize,
    silent: usize,
) -> Merged<'a> {
    let mut by_owner: BTreeMap<&Owner, Vec<&Holder>> = BTreeMap::new();
    for holder in states.iter().flat_map(|state| &state.holder_list) {
        by_owner.entry(&holder.owner).or_default().push(holder);
    }
    let of_majority = by_owner.values().filter(|nodes| nodes.len() >= majority).count();
    let first = by_owner.iter().max_by_key(|(_, nodes)| {
        // Those with a majority are holders alike, and the longest comes first; others do not hold it.
        (nodes.len().min(majority), longest(nodes), Reverse(token(nodes)))
    });
    let owner = first.map(|(owner, _)| *owner);
    let nodes = first.map(|(_, nodes)| nodes.as_slice()).unwrap_or_default();
    let state = match nodes.len() {
        known if known >= majority => State::Held,
        known if known.saturating_add(silent) >= majority => State::Unknown,
        0 => State::Free,
        _ => State::Partly,
    };
    let has_first = |state: &&&LockState| state.holder_list.iter().any(|holder| Some(&holder.owner) == owner);
    Merged {
        name,
        state,
        mode: states.iter().find(has_first).and_then(|state| state.mode),
        owner,
        token: token(nodes),
        // One node counts its holders itself, and more of them than it lists.
        holders: match states {
            [only] if majority == 1 => only.holders,
            _ => u64::try_from(of_majority).unwrap_or(u64::MAX),
        },
        waiters: states.iter().fold(0, |sum, state| sum.saturating_add(state.waiters)),
        held: longest(nodes),
        left: left(nodes, majority),
        held_at: nodes.len(),
    }
}

fn longest(nodes: &[&Holder]) -> Duration {
    nodes.iter().map(|holder| holder.held).max().unwrap_or_default()
}

/// When the leases of a majority are over: the last of the longest ones that make it up.
fn left(nodes: &[&Holder], majority: usize) -> Duration {
    let mut left: Vec<Duration> = nodes.iter().map(|holder| holder.left).collect();
    left.sort_unstable_by(|one, other| other.cmp(one));
    left.truncate(majority);
    left.pop().unwrap_or_default()
}

/// The token on which most nodes agree; of several the lowest: a node that was taken anew issues a higher one, which is
/// not the lock's.
fn token(nodes: &[&Holder]) -> Option<u64> {
    let mut count: BTreeMap<u64, usize> = BTreeMap::new();
    for holder in nodes {
        let seen = count.entry(holder.token).or_default();
        *seen = seen.saturating_add(1);
    }
    let most = count.values().copied().max()?;
    count.into_iter().find(|(_, seen)| *seen == most).map(|(token, _)| token)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lockfence_client::Owner;
    use lockfence_client::admin::{AtNode, Holder, LockState, Mode, NoAnswer};

    use super::{State, lock, locks};

    fn holder(owner: &str, token: u64, left: u64, held: u64) -> Holder {
        Holder {
            owner: owner.as_bytes().into(),
            token,
            left: Duration::from_secs(left),
            held: Duration::from_secs(held),
        }
    }

    fn state(name: &str, holders: Vec<Holder>, waiters: u64) -> LockState {
        LockState {
            name: name.into(),
            mode: (!holders.is_empty()).then_some(Mode::Exclusive),
            counter: 1,
            grants: 1,
            holders: u64::try_from(holders.len()).unwrap(),
            waiters,
            holder_list: holders,
            waiter_list: Vec::new(),
        }
    }

    #[test]
    fn a_majority_holds_a_minority_does_not() {
        let a = state("l", vec![holder("a", 7, 20, 3)], 0);
        let also_a = state("l", vec![holder("a", 7, 10, 4)], 2);
        let b = state("l", vec![holder("b", 9, 30, 9)], 1);
        let held = lock(b"l", &[&b, &a, &also_a], 2, 0);
        assert_eq!(
            (held.state, held.owner, held.token),
            (State::Held, Some(&Owner::from(&b"a"[..])), Some(7))
        );
        assert_eq!((held.holders, held.waiters, held.held_at), (1, 3, 2));
        assert_eq!((held.held, held.left), (Duration::from_secs(4), Duration::from_secs(10)));
        let partly = lock(b"l", &[&b, &a], 2, 0);
        assert_eq!((partly.state, partly.holders, partly.held_at), (State::Partly, 0, 1));
        let waited_for = state("l", Vec::new(), 1);
        let free = lock(b"l", &[&waited_for], 1, 0);
        assert_eq!((free.state, free.owner, free.token, free.mode), (State::Free, None, None, None));
        assert!(free.is_used() && !lock(b"l", &[], 1, 0).is_used());
    }

    #[test]
    fn what_silent_nodes_may_hide_is_not_known() {
        let a = state("l", vec![holder("a", 7, 20, 3)], 0);
        let free = state("l", Vec::new(), 0);
        for (states, majority, silent, expected) in [
            (&[&a][..], 2, 0, State::Partly),
            (&[&a], 2, 1, State::Unknown),
            (&[&a], 3, 1, State::Partly),
            (&[&a, &a], 2, 1, State::Held),
            (&[&free], 2, 1, State::Free),
            (&[&free], 2, 2, State::Unknown),
            (&[], 1, 1, State::Unknown),
        ] {
            assert_eq!(lock(b"l", states, majority, silent).state, expected, "{states:?} {silent}");
        }
    }

    #[test]
    fn a_lease_on_a_third_node_is_not_counted_twice() {
        let nodes = [30, 20, 10].map(|left| state("l", vec![holder("a", 7, left, 1)], 0));
        let all: Vec<&LockState> = nodes.iter().collect();
        assert_eq!(lock(b"l", &all, 2, 0).left, Duration::from_secs(20));
    }

    #[test]
    fn readers_are_matched_over_the_nodes() {
        let one = state("l", vec![holder("a", 1, 9, 5), holder("b", 2, 9, 8)], 0);
        let two = state("l", vec![holder("b", 2, 9, 8), holder("c", 3, 9, 99)], 0);
        let three = state("l", vec![holder("a", 1, 9, 5)], 0);
        let held = lock(b"l", &[&one, &two, &three], 2, 0);
        assert_eq!((held.holders, held.owner), (2, Some(&Owner::from(&b"b"[..]))));
    }

    #[test]
    fn tokens_of_nodes_that_were_taken_anew_are_not_the_locks() {
        let at = |tokens: &[u64]| {
            let nodes: Vec<LockState> =
                tokens.iter().map(|token| state("l", vec![holder("a", *token, 9, 1)], 0)).collect();
            lock(b"l", &nodes.iter().collect::<Vec<_>>(), 2, 0).token
        };
        assert_eq!(at(&[7, 7, 12]), Some(7));
        assert_eq!(at(&[5, 7, 7]), Some(7));
        assert_eq!(at(&[12, 7, 13]), Some(7));
    }

    #[test]
    fn locks_are_sorted_and_nodes_that_failed_left_out() {
        let node = |answer| AtNode { node: "n".to_owned(), answer };
        let gone = || Err(NoAnswer { cause: "gone".to_owned(), lasting: false });
        let answers = [
            node(Ok(vec![state("b", vec![holder("x", 1, 1, 1)], 0)])),
            node(gone()),
            node(Ok(vec![
                state("a", vec![holder("y", 1, 1, 1)], 0),
                state("b", vec![holder("x", 1, 1, 1)], 0),
            ])),
        ];
        let merged = locks(&answers, 2);
        let seen: Vec<_> = merged.iter().map(|lock| (lock.name, lock.state)).collect();
        assert_eq!(seen, [(&b"a"[..], State::Unknown), (&b"b"[..], State::Held)]);
    }
}
