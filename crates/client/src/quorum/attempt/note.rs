//! What a round that did not win has told: who answered, who waits where, and who is in the way.

use super::Attempt;
use crate::owner::Owner;
use crate::quorum::round::{Ballot, Round};
use crate::quorum::{Failure, Standing};

impl Attempt {
    pub(super) fn note(&mut self, round: &Round) {
        let mut answered = 0_usize;
        for (node, ballot) in round.ballots().iter() {
            let failure = match ballot {
                Ballot::Failed(failure) => Some(failure.clone()),
                // Not answered, but not late either: as it was.
                Ballot::Asked { .. } => continue,
                _ => None,
            };
            answered = answered.saturating_add(usize::from(failure.is_none()));
            self.waiters[node] = waiters(ballot);
            self.reachable[node] = failure.is_none();
            self.failures[node] = failure.or_else(|| matches!(ballot, Ballot::Below).then(Failure::behind));
        }
        self.had_quorum = answered >= self.settings.majority();
        let in_the_way = in_the_way(round);
        let below = round.ballots().count(|ballot| matches!(ballot, Ballot::Below));
        self.is_behind = in_the_way.is_none() && below > 0;
        self.standing = in_the_way.or(self.standing.take());
    }
}

/// How many wait at the node, as far as that answer says.
pub(super) fn waiters(ballot: &Ballot) -> u64 {
    if let Ballot::Taken(standing) = ballot { standing.waiters } else { 0 }
}

/// Whoever most nodes name as the holder, and the longest that any of them says.
fn in_the_way(round: &Round) -> Option<Standing> {
    let taken = || {
        round.ballots().iter().filter_map(|(_, ballot)| match ballot {
            Ballot::Taken(standing) => Some(standing),
            _ => None,
        })
    };
    let named = |owner: &Option<Owner>| taken().filter(|other| other.owner == *owner).count();
    let most = taken().max_by_key(|standing| (named(&standing.owner), standing.ttl_ms))?;
    let waiters = taken().map(|standing| standing.waiters).max().unwrap_or(0);
    Some(Standing { waiters, ..most.clone() })
}
