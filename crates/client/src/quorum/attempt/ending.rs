//! The end of an attempt: what it is called, and what is given back. Nothing that was asked for may be left behind.

use lockfence_core::clock::Instant;

use super::{Attempt, Outcome, Phase};
use crate::quorum::give_back::{GiveBack, Trace};
use crate::quorum::planted::Bug;
use crate::quorum::round::{Ballot, Round};
use crate::quorum::{Failure, NodeId, OwnerId, PerNode, SendId};

impl Attempt {
    pub(super) fn time_is_over(&mut self, now: Instant) {
        if let Phase::Trying(round) = &self.phase {
            let round = round.clone();
            self.note(&round);
            for (node, ballot) in round.ballots().iter() {
                if matches!(ballot, Ballot::Asked { .. }) {
                    self.failures[node] = Some(Failure::timed_out());
                }
            }
        }
        let outcome = if self.had_quorum && !self.is_behind {
            Outcome::TimedOut(self.standing.clone())
        } else {
            Outcome::NoQuorum(self.failures.clone())
        };
        self.end(now, outcome);
    }

    pub(super) fn end(&mut self, now: Instant, outcome: Outcome) {
        self.give_back_late(now);
        match core::mem::replace(&mut self.phase, Phase::Over(Some(outcome))) {
            Phase::Trying(round) => self.give_back(round.owner(), &round.traces(), now),
            Phase::Queued(queued) => {
                self.abandon(queued.id);
                let traces = self.trace_at(queued.node);
                self.give_back(queued.owner, &traces, now);
            }
            Phase::Head(head) => {
                let traces =
                    head.round.as_ref().map_or(head.traces.clone(), |round| joined(&head.traces, round));
                self.give_back(head.owner, &traces, now);
            }
            Phase::Pausing(_) | Phase::Over(_) => {}
        }
    }

    pub(super) fn trace_at(&self, node: NodeId) -> PerNode<Trace> {
        PerNode::new(self.settings.nodes, |other| if other == node { Trace::Unknown } else { Trace::Nothing })
    }

    /// Nobody listens to that WAIT any more.
    pub(super) fn abandon(&mut self, id: SendId) {
        if !self.settings.planted.is(Bug::NotAbandoned) {
            self.out.abandon(id);
        }
    }

    pub(super) fn give_back(&mut self, owner: OwnerId, traces: &PerNode<Trace>, now: Instant) {
        self.out.give_back(GiveBack::new(self.settings, owner, traces, None, now));
    }
}

/// What an owner has at each node after `round`, with `before` from its earlier requests.
pub(super) fn joined(before: &PerNode<Trace>, round: &Round) -> PerNode<Trace> {
    let after = round.traces();
    PerNode::new(before.count(|_| true), |node| match (before[node], after[node]) {
        (Trace::Unknown, _) | (_, Trace::Unknown) => Trace::Unknown,
        (Trace::Lease, _) | (_, Trace::Lease) => Trace::Lease,
        (Trace::Nothing, Trace::Nothing) => Trace::Nothing,
    })
}
