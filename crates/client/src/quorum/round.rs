//! One round: ACQUIRE at all nodes at once under one owner, the choice of a majority, and the confirm.
//!
//! Level nodes answer the token that was proposed, and the round is over when a majority did. Otherwise T is the
//! highest token of the majority whose highest is lowest, and the nodes below it are raised to T by EXTEND, which acts
//! on a live lease only. The lock is held once a majority stands at T, by replies that came within the validity.
//!
//! It must never count a reply to anything but its own requests: a lease that began before [`Round::started`] was read
//! proves nothing.

use lockfence_core::clock::{Instant, sooner};
use lockfence_core::ids::Mode;

use super::give_back::Trace;
use super::outbox::Outbox;
use super::planted::Bug;
use super::tally::{Vote, lowest_majority_token, vote};
use super::{Command, Failure, FailureKind, NodeId, OwnerId, PerNode, Reply, SendId, Settings, Standing};

/// How a round stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Not decided.
    Pending,
    /// A majority stands at the token.
    Won {
        /// The quorum's token, T.
        token: u64,
        /// Until when the lock may be taken as held.
        valid_until: Instant,
    },
    /// No majority can come of it any more.
    Lost,
}

/// What one node has said so far.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Ballot {
    /// Asked to grant.
    Asked {
        /// The request.
        id: SendId,
        /// Whether it proposed a token.
        proposed: bool,
        /// When it counts as unanswered.
        by: Instant,
    },
    /// Granted, with that token.
    Granted(u64),
    /// Granted with a lower token, asked to raise it.
    Confirming {
        /// The request.
        id: SendId,
        /// When it counts as unanswered.
        by: Instant,
    },
    /// Raised to T.
    Confirmed,
    /// Granted, but not to be raised: T is too far ahead of that node's clock. It helps to keep others out.
    Below,
    /// Somebody else has it.
    Taken(Standing),
    /// No answer that counts.
    Failed(Failure),
    /// Granted, but the lease had gone by the time of the confirm.
    Gone,
}

/// A round.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Round {
    settings: Settings,
    owner: OwnerId,
    started: Instant,
    valid_until: Instant,
    ballots: PerNode<Ballot>,
    /// With a majority that is not level: until when a better one is waited for.
    settle_at: Option<Instant>,
    /// T, once it is chosen.
    token: Option<u64>,
}

impl Round {
    /// Asks all nodes. `now` must have been read just before.
    pub(super) fn start(
        settings: Settings,
        owner: OwnerId,
        proposal: u64,
        now: Instant,
        out: &mut Outbox,
    ) -> Self {
        let by = settings.node_deadline(now);
        let ballots = PerNode::new(settings.nodes, |node| {
            let command = Command::Acquire { owner, min_token: Some(proposal), wait_ms: None };
            Ballot::Asked { id: out.send(node, command, Some(by)), proposed: true, by }
        });
        let valid_until = settings.lease_end(now);
        Self { settings, owner, started: now, valid_until, ballots, settle_at: None, token: None }
    }

    /// Counts a grant that this round did not ask for: a bug, for the simulation to find.
    pub(super) fn count_foreign_grant(&mut self, node: NodeId) {
        self.ballots[node] = Ballot::Confirmed;
    }

    /// When the clock was read: what this round wins is counted from here.
    #[must_use]
    pub const fn started(&self) -> Instant {
        self.started
    }

    /// Whose it is.
    pub(super) const fn owner(&self) -> OwnerId {
        self.owner
    }

    /// What each node has said.
    #[must_use]
    pub const fn ballots(&self) -> &PerNode<Ballot> {
        &self.ballots
    }

    /// Takes a reply. `false` when it belongs to no open request of this round.
    pub(super) fn on_reply(&mut self, id: SendId, reply: Reply, now: Instant, out: &mut Outbox) -> bool {
        let asked = |ballot: &Ballot| match *ballot {
            Ballot::Asked { id: open, .. } | Ballot::Confirming { id: open, .. } => open == id,
            _ => false,
        };
        let Some(node) = self.ballots.iter().find(|(_, ballot)| asked(ballot)).map(|(node, _)| node) else {
            return false;
        };
        self.ballots[node] = match (&self.ballots[node], reply) {
            (Ballot::Asked { .. }, Reply::Granted { token }) => Ballot::Granted(token),
            (Ballot::Asked { .. }, Reply::Standing(standing)) => Ballot::Taken(standing),
            (Ballot::Asked { proposed: true, by, .. }, Reply::Failed(failure))
                if failure.kind == FailureKind::TooFarAhead =>
            {
                self.ask_without_proposal(node, *by, out)
            }
            (Ballot::Confirming { .. }, Reply::Done(true) | Reply::Granted { .. }) => Ballot::Confirmed,
            (Ballot::Confirming { .. }, Reply::Done(false)) => self.gone(node, now, out),
            (Ballot::Confirming { .. }, Reply::Failed(failure))
                if failure.kind == FailureKind::TooFarAhead =>
            {
                Ballot::Below
            }
            (_, Reply::Failed(failure)) => Ballot::Failed(failure),
            (_, other) => Ballot::Failed(Failure::new(
                FailureKind::Fatal,
                format!("an answer of another kind: {other:?}"),
            )),
        };
        self.proceed(now, out);
        true
    }

    /// Takes note of the time.
    pub(super) fn on_time(&mut self, now: Instant, out: &mut Outbox) {
        for (_, ballot) in self.ballots.iter_mut() {
            if let Ballot::Asked { by, .. } | Ballot::Confirming { by, .. } = *ballot
                && by <= now
            {
                *ballot = Ballot::Failed(Failure::timed_out());
            }
        }
        self.proceed(now, out);
    }

    /// When it wants to be called again.
    pub(super) fn deadline(&self) -> Instant {
        let open = self.ballots.iter().filter_map(|(_, ballot)| match *ballot {
            Ballot::Asked { by, .. } | Ballot::Confirming { by, .. } => Some(by),
            _ => None,
        });
        let settle = if self.token.is_none() { self.settle_at } else { None };
        sooner(open.min(), settle).map_or(self.valid_until, |at| at.min(self.valid_until))
    }

    /// How it stands.
    #[must_use]
    pub fn verdict(&self, now: Instant) -> Verdict {
        if now >= self.valid_until {
            return Verdict::Lost;
        }
        let majority = self.settings.majority();
        let open =
            self.ballots.count(|ballot| matches!(ballot, Ballot::Asked { .. } | Ballot::Confirming { .. }));
        let Some(token) = self.token else {
            let lost = vote(majority, self.tokens().len(), open) == Vote::Lost;
            // Whether a majority answers at all must be known, too.
            let failed = self.ballots.count(|ballot| matches!(ballot, Ballot::Failed(_)));
            let answered = self.settings.nodes.saturating_sub(open).saturating_sub(failed);
            let known = open == 0 || answered >= majority;
            return if lost && known { Verdict::Lost } else { Verdict::Pending };
        };
        let stands = self.ballots.count(|ballot| match ballot {
            Ballot::Confirmed => true,
            Ballot::Granted(own) => *own == token || self.is_unconfirmed(),
            _ => false,
        });
        match vote(majority, stands, open) {
            Vote::Won => Verdict::Won { token, valid_until: self.valid_until },
            Vote::Lost => Verdict::Lost,
            Vote::Pending => Verdict::Pending,
        }
    }

    /// Whether that node has said that it has no lease for this owner, or has not answered in time.
    pub(super) fn has_lost(&self, node: NodeId) -> bool {
        matches!(self.ballots[node], Ballot::Taken(_) | Ballot::Failed(_) | Ballot::Gone)
    }

    /// Whether that node has said that it has a lease for this owner.
    pub(super) fn has_lease(&self, node: NodeId) -> bool {
        matches!(
            self.ballots[node],
            Ballot::Granted(_) | Ballot::Confirming { .. } | Ballot::Confirmed | Ballot::Below
        )
    }

    /// Where this round's owner may have a lease.
    pub(super) fn traces(&self) -> PerNode<Trace> {
        PerNode::new(self.settings.nodes, |node| match &self.ballots[node] {
            Ballot::Taken(_) | Ballot::Gone => Trace::Nothing,
            Ballot::Failed(failure) if !failure.kind.may_have_happened() => Trace::Nothing,
            Ballot::Asked { .. } | Ballot::Failed(_) => Trace::Unknown,
            Ballot::Granted(_) | Ballot::Confirming { .. } | Ballot::Confirmed | Ballot::Below => {
                Trace::Lease
            }
        })
    }

    fn tokens(&self) -> Vec<u64> {
        let granted = |(_, ballot): (NodeId, &Ballot)| match ballot {
            Ballot::Granted(token) => Some(*token),
            _ => None,
        };
        self.ballots.iter().filter_map(granted).collect()
    }

    fn proceed(&mut self, now: Instant, out: &mut Outbox) {
        if self.token.is_none() {
            self.choose(now);
        }
        if let Some(token) = self.token {
            self.confirm(token, now, out);
        }
    }

    /// Chooses T: at once when a majority is level, or when nobody else can answer; else after waiting for the others
    /// once more as long as the majority took. A node whose clock runs ahead is so left out, not followed.
    fn choose(&mut self, now: Instant) {
        let tokens = self.tokens();
        let majority = self.settings.majority();
        let foreign = self.ballots.count(|ballot| matches!(ballot, Ballot::Confirmed));
        let Some(token) = lowest_majority_token(majority.saturating_sub(foreign), tokens.clone()) else {
            return;
        };
        let level = tokens.iter().filter(|own| **own == token).count() >= majority;
        let more = self.ballots.count(|ballot| matches!(ballot, Ballot::Asked { .. })) > 0;
        let took = now.since_us(self.started);
        let settle_at = *self.settle_at.get_or_insert(now.plus_us(took));
        if level || !more || now >= settle_at {
            self.token = Some(token);
            if self.settings.planted.is(Bug::ValidFromReplies) {
                self.valid_until = self.settings.lease_end(now);
            }
        }
    }

    /// Raises the nodes below T to it. Those above it stay as they are: they help to keep others out, not to confirm.
    fn confirm(&mut self, token: u64, now: Instant, out: &mut Outbox) {
        if self.is_unconfirmed() {
            return;
        }
        let by = self.settings.node_deadline(now);
        let command = Command::Extend { owner: self.owner, min_token: Some(token) };
        for (node, ballot) in self.ballots.iter_mut() {
            if matches!(*ballot, Ballot::Granted(own) if own < token) {
                *ballot = Ballot::Confirming { id: out.send(node, command, Some(by)), by };
            }
        }
    }

    fn is_unconfirmed(&self) -> bool {
        let planted = self.settings.planted;
        planted.is(Bug::NoConfirm)
            || (planted.is(Bug::ReaderUnconfirmed) && self.settings.mode == Mode::Shared)
    }

    /// A clock that is far ahead of a node's, this client's or another node's, must not keep that node out.
    fn ask_without_proposal(&self, node: NodeId, by: Instant, out: &mut Outbox) -> Ballot {
        let command = Command::Acquire { owner: self.owner, min_token: None, wait_ms: None };
        Ballot::Asked { id: out.send(node, command, Some(by)), proposed: false, by }
    }

    fn gone(&self, node: NodeId, now: Instant, out: &mut Outbox) -> Ballot {
        if !self.settings.planted.is(Bug::TopUpConfirms) {
            return Ballot::Gone;
        }
        let by = self.settings.node_deadline(now);
        let command = Command::Acquire { owner: self.owner, min_token: self.token, wait_ms: None };
        Ballot::Confirming { id: out.send(node, command, Some(by)), by }
    }
}
