//! From the wish for a lock to a [`Grant`], or a reason why not.
//!
//! 1. *Try*: a round at all nodes. A majority: done, in one round trip. Otherwise what was won is given back.
//! 2. *Queue* at one node, with WAIT, under a new owner: where others wait, or else at the first reachable in an order
//!    fixed by the lock's name. Its FIFO queue is the queue: racing clients that each hold a minority would starve each
//!    other. While it waits, the node is probed over the shared connection: one that was cut off silently, or whose
//!    grant was lost on the way, must not hold up a waiter. If the node fails, the next in the order takes its place,
//!    and keeps it until nobody waits there: a second, shorter queue at a node that came back would serve those who were
//!    just served before those who wait.
//! 3. *Head of the queue*: once that node has granted, a round at all nodes, that one included, under the same owner.
//!    Where somebody who did not queue was faster, the place is kept and the round repeated.
//!
//! It never waits at two nodes at once, and every wait but one without limit ends by its deadline.

mod ending;
mod haste;
mod late;
mod note;
mod queue;

use lockfence_core::clock::{Instant, sooner};
use lockfence_core::ids::Mode;

use self::ending::joined;
use self::haste::Haste;
use self::late::Late;
use self::note::waiters;
use super::give_back::Trace;
use super::outbox::Outbox;
use super::planted::Bug;
use super::round::{Ballot, Round, Verdict};
use super::{Effect, Failure, NodeId, OwnerId, PerNode, Reply, SendId, Settings, Standing, Turn};

/// How long to wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Patience {
    /// Not at all.
    None,
    /// Until then.
    Until(Instant),
    /// Without limit.
    Forever,
}

/// A lock that was won.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// Whose it is.
    pub owner: OwnerId,
    /// The quorum's token.
    pub token: u64,
    /// When the clock was read for the round that won it.
    pub started: Instant,
    /// Until when it may be taken as held.
    pub valid_until: Instant,
    /// What this owner may have at each node, by all that it has asked for.
    pub traces: PerNode<Trace>,
    /// Where it had queued: others may wait there, so it is released last.
    pub queued_at: Option<NodeId>,
    /// What it has at each node by the round that won: only that counts for the hold. An earlier request may have no
    /// answer yet where that round has one, and a lease that it did have may have gone since.
    pub won: PerNode<Trace>,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The lock is held.
    Won(Grant),
    /// Somebody else has it, and waiting was not asked for.
    Held(Option<Standing>),
    /// Somebody else had it until the time to wait was over.
    TimedOut(Option<Standing>),
    /// Too few nodes answered. Holds why, for each that did not.
    NoQuorum(PerNode<Option<Failure>>),
    /// It was called off.
    Cancelled,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Trying(Round),
    Pausing(Instant),
    Queued(Queued),
    Head(Head),
    Over(Option<Outcome>),
}

/// A place in the queue of one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Queued {
    node: NodeId,
    owner: OwnerId,
    id: SendId,
    answer_by: Option<Instant>,
    probe: Option<(SendId, Instant)>,
    probe_at: Instant,
    misses: u32,
}

/// The head of the queue: `node` has granted, the others are asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Head {
    node: NodeId,
    owner: OwnerId,
    /// The round that runs; none in a pause between two.
    round: Option<Round>,
    retry_at: Instant,
    pause_us: u64,
    splits: u32,
    /// What this owner has at each node by the requests before that round.
    traces: PerNode<Trace>,
}

/// Whose turn it is.
enum Place {
    Mine,
    Other,
    Unknown,
}

/// An attempt to get a lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attempt {
    settings: Settings,
    order: Vec<NodeId>,
    patience: Patience,
    /// The highest token that a majority was seen at.
    seen: u64,
    phase: Phase,
    /// Whether each node answered when it was last asked.
    reachable: PerNode<bool>,
    /// How many waited at each node by its last answer.
    waiters: PerNode<u64>,
    failures: PerNode<Option<Failure>>,
    had_quorum: bool,
    /// Whether in the last round nobody was in the way but a node that could not be raised to the token.
    is_behind: bool,
    standing: Option<Standing>,
    pause_us: u64,
    /// Until when a try that is won waits for what the queue node says.
    settle_at: Option<Instant>,
    haste: Haste,
    /// Requests of tries that were lost before each node had answered.
    late: Vec<Late>,
    out: Outbox,
    first_owner: Option<OwnerId>,
}

impl Attempt {
    /// Begins. `order` is the lock's order of nodes ([`super::order`]), `seen` the highest token of any grant that this
    /// client has had.
    pub fn start(
        settings: Settings,
        order: Vec<NodeId>,
        patience: Patience,
        seen: u64,
        turn: &mut Turn<'_>,
    ) -> Self {
        let mut attempt = Self {
            settings,
            order,
            patience,
            seen,
            phase: Phase::Over(None),
            reachable: PerNode::new(settings.nodes, |_| true),
            waiters: PerNode::new(settings.nodes, |_| 0),
            failures: PerNode::new(settings.nodes, |_| None),
            had_quorum: false,
            is_behind: false,
            standing: None,
            pause_us: settings.node_timeout_us,
            settle_at: None,
            haste: Haste::default(),
            late: Vec::new(),
            out: Outbox::default(),
            first_owner: None,
        };
        attempt.try_all(turn);
        attempt
    }

    /// The next thing to do.
    pub fn effect(&mut self) -> Option<Effect> {
        self.out.pop()
    }

    /// How it ended, once it has; handed out once.
    pub fn outcome(&mut self) -> Option<Outcome> {
        if let Phase::Over(outcome) = &mut self.phase { outcome.take() } else { None }
    }

    /// When it wants to be called again; `None` once it is over and waits for no answer any more. That may be later than
    /// the outcome: whether there is something to give back is told by answers that are still to come.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let next = match &self.phase {
            Phase::Trying(round) => self.settle_at.map_or(round.deadline(), |at| at.min(round.deadline())),
            Phase::Pausing(until) => *until,
            Phase::Queued(queued) => {
                let probe = queued.probe.map_or(queued.probe_at, |(_, by)| by);
                queued.answer_by.map_or(probe, |by| by.min(probe))
            }
            Phase::Head(head) => head.round.as_ref().map_or(head.retry_at, Round::deadline),
            Phase::Over(_) => return self.late_deadline(),
        };
        let patience = if let Patience::Until(at) = self.patience { Some(at) } else { None };
        sooner(sooner(Some(next), patience), self.late_deadline())
    }

    /// Takes a reply.
    pub fn on_reply(&mut self, turn: &mut Turn<'_>, id: SendId, reply: Reply) {
        let now = turn.mono();
        if self.came_late(id, &reply, now) {
            return;
        }
        match &mut self.phase {
            Phase::Trying(round) => {
                round.on_reply(id, reply, now, &mut self.out);
            }
            Phase::Head(Head { round: Some(round), .. }) => {
                round.on_reply(id, reply, now, &mut self.out);
            }
            Phase::Queued(queued) if queued.id == id => self.wait_ended(turn, reply),
            Phase::Queued(queued) if queued.probe.is_some_and(|(probe, _)| probe == id) => {
                self.probed(turn, &reply);
            }
            Phase::Queued(_) | Phase::Head(_) | Phase::Pausing(_) | Phase::Over(_) => {}
        }
        self.proceed(turn);
    }

    /// Takes note of the time.
    pub fn on_time(&mut self, turn: &mut Turn<'_>) {
        let now = turn.mono();
        self.give_up_late(turn);
        match &mut self.phase {
            Phase::Trying(round) => round.on_time(now, &mut self.out),
            Phase::Head(head) => match &mut head.round {
                Some(round) => round.on_time(now, &mut self.out),
                None if head.retry_at <= now => self.head_round(turn, false),
                None => {}
            },
            Phase::Queued(_) => self.watch_queue(turn),
            Phase::Pausing(until) if *until <= now => self.try_all(turn),
            Phase::Pausing(_) | Phase::Over(_) => {}
        }
        self.proceed(turn);
    }

    /// Calls it off: whatever it has is given back.
    pub fn cancel(&mut self, turn: &mut Turn<'_>) {
        if !matches!(self.phase, Phase::Over(_)) {
            self.end(turn.mono(), Outcome::Cancelled);
        }
    }

    fn proceed(&mut self, turn: &mut Turn<'_>) {
        let now = turn.mono();
        let round = match &self.phase {
            Phase::Trying(round) | Phase::Head(Head { round: Some(round), .. }) => Some(round),
            _ => None,
        };
        match round.map(|round| round.verdict(now)) {
            Some(Verdict::Won { token, valid_until }) => match self.turn_of(now) {
                Place::Mine => return self.win(token, valid_until, now),
                Place::Other => self.round_lost(turn),
                Place::Unknown => {}
            },
            Some(Verdict::Lost) => self.round_lost(turn),
            Some(Verdict::Pending) | None => {}
        }
        if let Patience::Until(at) = self.patience
            && at <= now
            && !matches!(self.phase, Phase::Over(_))
            && !self.settings.planted.is(Bug::DeadlineIgnored)
        {
            self.time_is_over(now);
        }
    }

    /// What a try that is won must give way to: the queue node's refusal. Whoever has that node is at the head of the
    /// queue, and the others were free only because the lock is just being handed over; or somebody waits there. Whoever
    /// releases and asks again at once would always win otherwise, and readers that come and go would keep a writer out.
    ///
    /// Where it has not answered yet it is waited for once more as long as the majority took, and no longer.
    fn turn_of(&mut self, now: Instant) -> Place {
        let Phase::Trying(round) = &self.phase else { return Place::Mine };
        let ballots = round.ballots();
        let answers = self.order.iter().copied().filter(|node| !matches!(ballots[*node], Ballot::Failed(_)));
        let Some(queue_node) = self.longest_queue(answers, |node| waiters(&ballots[node])) else {
            return Place::Mine;
        };
        match &ballots[queue_node] {
            // Two that try only once, at the same time, should not both be refused.
            Ballot::Taken(standing) if standing.waiters == 0 && self.tries_once() => Place::Mine,
            Ballot::Taken(_) => Place::Other,
            Ballot::Asked { .. } => {
                let settle_at = *self.settle_at.get_or_insert(now.plus_us(now.since_us(round.started())));
                if now < settle_at { Place::Unknown } else { Place::Mine }
            }
            _ => Place::Mine,
        }
    }

    fn tries_once(&self) -> bool {
        self.patience == Patience::None && self.settings.mode == Mode::Exclusive
    }

    fn win(&mut self, token: u64, valid_until: Instant, now: Instant) {
        let (round, traces, queued_at) = match &self.phase {
            Phase::Trying(round) => (round, round.traces(), None),
            Phase::Head(Head { round: Some(round), traces, node, .. }) => {
                (round, joined(traces, round), Some(*node))
            }
            _ => return,
        };
        let (owner, started, won) = (round.owner(), round.started(), round.traces());
        let grant = Grant { owner, token, started, valid_until, traces, queued_at, won };
        self.phase = Phase::Over(Some(Outcome::Won(grant)));
        self.give_back_late(now);
    }

    /// A round at all nodes, under a new owner.
    fn try_all(&mut self, turn: &mut Turn<'_>) {
        let owner = self.new_owner(turn);
        let proposal = self.settings.proposal(turn.now, self.seen);
        self.settle_at = None;
        self.phase = Phase::Trying(Round::start(self.settings, owner, proposal, turn.mono(), &mut self.out));
    }

    fn round_lost(&mut self, turn: &mut Turn<'_>) {
        match core::mem::replace(&mut self.phase, Phase::Over(None)) {
            Phase::Trying(round) => {
                self.note(&round);
                match self.queue_node() {
                    // It has the queue node: it is at the head of the queue, and stays there.
                    Some(node) if self.may_queue() && round.has_lease(node) => self.stay(turn, node, &round),
                    _ => {
                        self.give_back_try(&round, turn.mono());
                        self.after_try(turn);
                    }
                }
            }
            Phase::Head(mut head) => {
                if let Some(round) = head.round.take() {
                    self.note(&round);
                    self.head_lost(turn, head, &round);
                }
            }
            other => self.phase = other,
        }
    }

    fn after_try(&mut self, turn: &mut Turn<'_>) {
        if self.settings.is_hopeless(&self.failures)
            || (self.patience == Patience::None && (!self.had_quorum || self.is_behind))
        {
            self.phase = Phase::Over(Some(Outcome::NoQuorum(self.failures.clone())));
        } else if self.patience == Patience::None {
            self.phase = Phase::Over(Some(Outcome::Held(self.standing.clone())));
        } else if self.may_queue() {
            self.queue(turn);
        } else {
            self.pause(turn);
        }
    }

    fn may_queue(&self) -> bool {
        self.patience != Patience::None && self.had_quorum
    }

    fn pause(&mut self, turn: &mut Turn<'_>) {
        self.phase = Phase::Pausing(turn.mono().plus_us(turn.jittered(self.pause_us)));
        let longest = self.settings.node_timeout_us.saturating_mul(4);
        self.pause_us = self.pause_us.saturating_mul(2).min(longest);
    }

    fn new_owner(&mut self, turn: &mut Turn<'_>) -> OwnerId {
        let owner = turn.owner();
        let first = *self.first_owner.get_or_insert(owner);
        if self.settings.planted.is(Bug::OwnerReused) { first } else { owner }
    }
}
