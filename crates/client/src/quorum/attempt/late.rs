//! What a try that was lost still waits for. Two of three nodes have refused it, so it is lost before the third has
//! answered: that answer says whether there is anything to give back at all. Without it the owner would have to be
//! released there again and again until a lease could have ended.

use lockfence_core::clock::Instant;

use super::{Attempt, Phase};
use crate::quorum::give_back::Trace;
use crate::quorum::round::{Ballot, Round};
use crate::quorum::{Failure, NodeId, OwnerId, PerNode, Reply, SendId, Turn};

/// An ACQUIRE without an answer so far.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Late {
    id: SendId,
    node: NodeId,
    owner: OwnerId,
    by: Instant,
}

impl Attempt {
    /// Gives back what a lost try has won; what has not answered yet may do so.
    pub(super) fn give_back_try(&mut self, round: &Round, now: Instant) {
        let asked = |(node, ballot): (NodeId, &Ballot)| match *ballot {
            Ballot::Asked { id, by, .. } => Some(Late { id, node, owner: round.owner(), by }),
            _ => None,
        };
        self.late.extend(round.ballots().iter().filter_map(asked));
        let traces = round.traces();
        let known = PerNode::new(self.settings.nodes, |node| match round.ballots()[node] {
            Ballot::Asked { .. } => Trace::Nothing,
            _ => traces[node],
        });
        self.give_back(round.owner(), &known, now);
    }

    /// Whether that was one of them.
    pub(super) fn came_late(&mut self, id: SendId, reply: &Reply, now: Instant) -> bool {
        let Some(at) = self.late.iter().position(|late| late.id == id) else { return false };
        let late = self.late.swap_remove(at);
        match reply {
            Reply::Granted { .. } => self.give_back_at(&late, Trace::Lease, now),
            Reply::Failed(failure) if failure.kind.may_have_happened() => {
                self.give_back_at(&late, Trace::Unknown, now);
            }
            Reply::Standing(_) | Reply::Done(_) | Reply::Failed(_) => {}
        }
        true
    }

    pub(super) fn late_deadline(&self) -> Option<Instant> {
        self.late.iter().map(|late| late.by).min()
    }

    /// Whoever has not answered by now counts as gone, also as the queue node.
    pub(super) fn give_up_late(&mut self, turn: &mut Turn<'_>) {
        let now = turn.mono();
        while let Some(at) = self.late.iter().position(|late| late.by <= now) {
            let late = self.late.swap_remove(at);
            self.give_back_at(&late, Trace::Unknown, now);
            self.reachable[late.node] = false;
            self.failures[late.node] = Some(Failure::timed_out());
            if matches!(&self.phase, Phase::Queued(queued) if queued.node == late.node) {
                self.leave_queue(turn, Failure::timed_out());
            }
        }
    }

    /// Nobody takes their answers any more.
    pub(super) fn give_back_late(&mut self, now: Instant) {
        while let Some(late) = self.late.pop() {
            self.give_back_at(&late, Trace::Unknown, now);
        }
    }

    fn give_back_at(&mut self, late: &Late, trace: Trace, now: Instant) {
        let traces =
            PerNode::new(self.settings.nodes, |node| if node == late.node { trace } else { Trace::Nothing });
        self.give_back(late.owner, &traces, now);
    }
}
