//! The second half of an attempt: a place in the queue of one node, and the head of that queue.

use lockfence_core::clock::Instant;
use lockfence_core::limits;

use super::ending::joined;
use super::{Attempt, Head, Patience, Phase, Queued};
use crate::owner::Owner;
use crate::quorum::give_back::Trace;
use crate::quorum::planted::Bug;
use crate::quorum::round::{Ballot, Round};
use crate::quorum::{Command, Failure, FailureKind, NodeId, OwnerId, PerNode, Reply, Standing, Turn};

/// How often the head of the queue repeats a round in which nobody won, before it gives way.
const SPLITS_MAX: u32 = 3;

/// Longest pause between two rounds of the head of the queue: 250 ms.
const HEAD_PAUSE_MAX_US: u64 = 250_000;

/// After so many probes without an answer the queue node is taken as gone.
const MISSES_MAX: u32 = 2;

impl Attempt {
    /// Queues, where the queue is.
    pub(super) fn queue(&mut self, turn: &mut Turn<'_>) {
        let now = turn.mono();
        let Some(node) = self.queue_node() else { return self.pause(turn) };
        let (wait_ms, margin) = (self.wait_ms(now), self.settings.node_timeout_us);
        // Half of a short wait is none that was cut short.
        let lasts_us = if wait_ms == 0 { margin } else { margin.min(wait_ms.saturating_mul(500)) };
        if self.haste.is_too_much(now, lasts_us, self.settings.nodes) {
            return self.pause(turn);
        }
        let answer_by =
            (wait_ms > 0).then(|| now.plus_us(wait_ms.saturating_mul(1000).saturating_add(margin)));
        let owner = self.new_owner(turn);
        let command = Command::Acquire { owner, min_token: None, wait_ms: Some(wait_ms) };
        let id = self.out.send(node, command, answer_by);
        let probe_at = now.plus_us(turn.jittered(self.probe_pause_us()));
        self.phase = Phase::Queued(Queued { node, owner, id, answer_by, probe: None, probe_at, misses: 0 });
    }

    /// How long to let the server wait, in ms; 0 without limit. It ends before the time is over, so that a grant can
    /// still be used, and the server's own answer comes before the connection is closed.
    fn wait_ms(&self, now: Instant) -> u64 {
        let left_ms = match self.patience {
            Patience::Until(at) => {
                let left_us = at.since_us(now);
                Some((left_us.saturating_sub(self.settings.node_timeout_us.min(left_us / 4)) / 1000).max(1))
            }
            Patience::Forever | Patience::None => None,
        };
        // More than that is refused; then it is asked again.
        let left_ms = left_ms.map(|left| left.min(limits::TTL_MS_MAX));
        match (left_ms, self.settings.wait_slice_ms) {
            (Some(left), Some(slice)) => left.min(slice.max(1)),
            (left, slice) => left.or(slice).unwrap_or(0),
        }
    }

    fn probe_pause_us(&self) -> u64 {
        (self.settings.ttl_us() / 3).max(self.settings.node_timeout_us.saturating_mul(2))
    }

    pub(super) fn watch_queue(&mut self, turn: &mut Turn<'_>) {
        let (now, pause_us) = (turn.mono(), self.probe_pause_us());
        let Phase::Queued(queued) = &mut self.phase else { return };
        if queued.answer_by.is_some_and(|by| by <= now) {
            return self.leave_queue(turn, Failure::timed_out());
        }
        match queued.probe {
            Some((_, by)) if by <= now => self.missed(turn, Failure::timed_out()),
            None if queued.probe_at <= now => {
                queued.probe_at = now.plus_us(turn.jittered(pause_us));
                if self.settings.planted.is(Bug::NotProbed) {
                    return;
                }
                let by = self.settings.node_deadline(now);
                // The owner's own lease comes back if it was granted meanwhile; else nothing happens.
                let command = Command::Acquire { owner: queued.owner, min_token: None, wait_ms: None };
                queued.probe = Some((self.out.send(queued.node, command, Some(by)), by));
            }
            Some(_) | None => {}
        }
    }

    pub(super) fn probed(&mut self, turn: &mut Turn<'_>, reply: &Reply) {
        let Phase::Queued(queued) = &mut self.phase else { return };
        match reply {
            Reply::Granted { .. } => {
                let id = queued.id;
                self.abandon(id);
                self.become_head(turn);
            }
            Reply::Failed(failure) if failure.kind != FailureKind::Refused => {
                self.missed(turn, failure.clone())
            }
            Reply::Standing(standing) if standing.waiters == 0 => self.queue_elsewhere(turn),
            Reply::Standing(_) | Reply::Done(_) | Reply::Failed(_) => {
                queued.probe = None;
                queued.misses = 0;
                if let Reply::Standing(standing) = reply {
                    self.waiters[queued.node] = standing.waiters;
                }
            }
        }
    }

    fn missed(&mut self, turn: &mut Turn<'_>, failure: Failure) {
        let Phase::Queued(queued) = &mut self.phase else { return };
        queued.probe = None;
        queued.misses = queued.misses.saturating_add(1);
        queued.probe_at = turn.mono().plus_us(self.settings.node_timeout_us);
        if queued.misses >= MISSES_MAX {
            self.leave_queue(turn, failure);
        }
    }

    pub(super) fn wait_ended(&mut self, turn: &mut Turn<'_>, reply: Reply) {
        let failure = match reply {
            Reply::Granted { .. } => return self.become_head(turn),
            Reply::Standing(standing) => {
                if let Phase::Queued(queued) = &self.phase {
                    self.waiters[queued.node] = standing.waiters;
                }
                self.standing = Some(standing);
                return self.queue_again(turn);
            }
            Reply::Failed(failure) if failure.kind == FailureKind::AskAgain => return self.queue_again(turn),
            Reply::Failed(failure) => failure,
            Reply::Done(_) => Failure::new(FailureKind::Fatal, "an answer of another kind"),
        };
        self.leave_queue(turn, failure);
    }

    /// The server took this request from its queue: ask again, at the end of it. Where the queue is by now is told by a
    /// round at all nodes. Those who come would find it elsewhere otherwise than those who come back: a second queue, and
    /// whoever waits at a stand-in would stay there for ever.
    fn queue_again(&mut self, turn: &mut Turn<'_>) {
        let now = turn.mono();
        if let Phase::Queued(queued) = &self.phase
            && queued.probe.is_some()
        {
            let (owner, traces) = (queued.owner, self.trace_at(queued.node));
            self.give_back(owner, &traces, now);
        }
        if matches!(self.patience, Patience::Until(at) if at <= now.plus_us(2_000)) {
            return self.time_is_over(now);
        }
        let round_ends = self.settings.node_deadline(now);
        if matches!(self.patience, Patience::Until(at) if at <= round_ends) {
            return self.queue(turn); // there is no time to hear from each node
        }
        self.try_all(turn);
    }

    /// The queue node is of no use any more: the next one in the order takes its place.
    pub(super) fn leave_queue(&mut self, turn: &mut Turn<'_>, failure: Failure) {
        let Phase::Queued(queued) = &self.phase else { return };
        let node = queued.node;
        self.reachable[node] = false;
        self.failures[node] = Some(failure);
        self.queue_elsewhere(turn);
    }

    /// This place in the queue is none any more: the queue node is gone, or knows of nobody who waits. A connection may be
    /// lost without a word, and only one side learn of it.
    fn queue_elsewhere(&mut self, turn: &mut Turn<'_>) {
        let Phase::Queued(queued) = &self.phase else { return };
        let (node, owner) = (queued.node, queued.owner);
        self.abandon(queued.id);
        self.waiters[node] = 0;
        let traces = self.trace_at(node);
        self.give_back(owner, &traces, turn.mono());
        self.queue(turn);
    }

    fn become_head(&mut self, turn: &mut Turn<'_>) {
        let Phase::Queued(queued) = &self.phase else { return };
        let probed = queued.probe.is_some();
        let traces = PerNode::new(self.settings.nodes, |node| match node == queued.node {
            true if probed => Trace::Unknown,
            true => Trace::Lease,
            false => Trace::Nothing,
        });
        self.phase = Phase::Head(self.head(queued.node, queued.owner, traces, turn.mono()));
        self.head_round(turn, true);
    }

    /// A try that was lost, but has the queue node: it need not queue there any more.
    pub(super) fn stay(&mut self, turn: &mut Turn<'_>, node: NodeId, round: &Round) {
        let mut head = self.head(node, round.owner(), round.traces(), turn.mono());
        self.pause_head(turn, &mut head);
        self.phase = Phase::Head(head);
    }

    fn head(&self, node: NodeId, owner: OwnerId, traces: PerNode<Trace>, retry_at: Instant) -> Head {
        let pause_us = (self.settings.node_timeout_us / 16).max(1_000);
        Head { node, owner, round: None, retry_at, pause_us, splits: 0, traces }
    }

    fn pause_head(&self, turn: &mut Turn<'_>, head: &mut Head) {
        head.retry_at = turn.mono().plus_us(turn.jittered(head.pause_us));
        let longest = self.settings.node_timeout_us.min(HEAD_PAUSE_MAX_US);
        head.pause_us = head.pause_us.saturating_mul(2).min(longest);
    }

    /// A round at all nodes under the owner that queued. What the queue granted does not count: that lease began before
    /// the clock is read here.
    pub(super) fn head_round(&mut self, turn: &mut Turn<'_>, just_granted: bool) {
        let proposal = self.settings.proposal(turn.now, self.seen);
        let Phase::Head(head) = &mut self.phase else { return };
        let mut round = Round::start(self.settings, head.owner, proposal, turn.mono(), &mut self.out);
        if just_granted && self.settings.planted.is(Bug::WaitGrantCounted) {
            round.count_foreign_grant(head.node);
        }
        head.round = Some(round);
    }

    pub(super) fn head_lost(&mut self, turn: &mut Turn<'_>, mut head: Head, round: &Round) {
        head.traces = joined(&head.traces, round);
        // Somebody has the lock: keep the place. Nobody has a majority: the votes are split.
        head.splits =
            if held_by_one(round, self.settings.majority()) { 0 } else { head.splits.saturating_add(1) };
        let lost_place = round.has_lost(head.node);
        if lost_place || head.splits > SPLITS_MAX {
            self.give_back(head.owner, &head.traces, turn.mono());
            return if lost_place { self.queue(turn) } else { self.pause(turn) };
        }
        self.pause_head(turn, &mut head);
        self.phase = Phase::Head(head);
    }

    /// Where to queue.
    pub(super) fn queue_node(&self) -> Option<NodeId> {
        let reachable = self.order.iter().copied().filter(|node| self.reachable[*node]);
        self.longest_queue(reachable, |node| self.waiters[node])
    }

    /// The node at which most wait; of several, and where nobody does, the first.
    pub(super) fn longest_queue(
        &self,
        mut nodes: impl DoubleEndedIterator<Item = NodeId>,
        waiters: impl Fn(NodeId) -> u64,
    ) -> Option<NodeId> {
        if self.settings.planted.is(Bug::SecondQueue) {
            return nodes.next();
        }
        nodes.rev().max_by_key(|node| waiters(*node)) // the last of several that are equal
    }
}

/// Whether one other owner has a majority.
fn held_by_one(round: &Round, majority: usize) -> bool {
    let names = |owner: &Owner| {
        round.ballots().count(
            |ballot| matches!(ballot, Ballot::Taken(Standing { owner: Some(other), .. }) if other == owner),
        )
    };
    round.ballots().iter().any(|(_, ballot)| {
        matches!(ballot, Ballot::Taken(Standing { owner: Some(owner), .. }) if names(owner) >= majority)
    })
}
