//! A lock that is held: renewed, topped up where a node lost it, lost with a reason, released.
//!
//! What each node has proven is kept by node: an EXTEND that answered 1 proves a lease from the answer until the request
//! was sent + ttl (less drift). The lock is valid until the moment to which a majority has proven it.
//!
//! # Unbroken
//! Validity is prolonged only by a majority of nodes whose lease is **unbroken since the prolongation before**: any
//! other majority could have been somebody else's in between. A node that lost the lease is topped up with ACQUIRE, and
//! counts again once a prolongation was asked for after that: one that was asked for before may be told late, by nodes
//! that have lost the lease since. Where too few unbroken nodes are left the lock is lost at once.
//!
//! It must never act on a reply that came after the validity was over, and never change the token.

mod losing;
mod place;

use lockfence_core::clock::{Instant, sooner};
use lockfence_core::ids::Mode;

use self::place::{Ask, Lease, Open, Place};
use super::attempt::Grant;
use super::give_back::Trace;
use super::outbox::Outbox;
use super::planted::Bug;
use super::{Command, Effect, Failure, FailureKind, NodeId, OwnerId, PerNode, Reply, SendId, Settings, Turn};
use crate::owner::Owner;

/// Why a lock was lost.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Loss {
    /// Its time ran out: it was not renewed, or this program stood still.
    Expired,
    /// The longest time to hold it, as configured, is over.
    HeldTooLong,
    /// Somebody else has it.
    Taken {
        /// Who, as the node says.
        by: Owner,
    },
    /// The nodes no longer know the lease, before its time: an administrator broke it, the key was deleted, or too many
    /// nodes came back without their data.
    Broken,
    /// Too few nodes answered the renewals. Holds why, for each that did not.
    NoQuorum(PerNode<Option<Failure>>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Held,
    /// Too few unbroken nodes are left; until then, why is asked for.
    Losing(Instant),
    Over(Option<Loss>),
}

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// Whether it is renewed.
    pub renew: bool,
    /// When it must end, however often it is renewed.
    pub hold_until: Option<Instant>,
}

/// A lock that is held.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hold {
    settings: Settings,
    /// The queue node, and those that would take its place.
    order: Vec<NodeId>,
    owner: OwnerId,
    token: u64,
    terms: Terms,
    valid_until: Instant,
    /// When the last prolongation was asked for; see the module's head.
    asked_at: Instant,
    places: PerNode<Place>,
    round_started: Instant,
    renew_at: Option<Instant>,
    phase: Phase,
    out: Outbox,
}

impl Hold {
    /// Holds what was won.
    pub fn new(
        settings: Settings,
        mut order: Vec<NodeId>,
        grant: &Grant,
        terms: Terms,
        turn: &mut Turn<'_>,
    ) -> Self {
        let place = |node| Place {
            lease: match grant.won[node] {
                Trace::Lease => Lease::Held { since: None, proven: grant.valid_until },
                Trace::Nothing | Trace::Unknown => Lease::Missing,
            },
            open: Vec::new(),
            loose: grant.traces[node] == Trace::Unknown,
            named: None,
            failure: None,
        };
        if let Some(node) = grant.queued_at {
            order.sort_by_key(|other| *other != node); // stable: it comes first, the others stay as they are
        }
        let mut hold = Self {
            settings,
            order,
            owner: grant.owner,
            token: grant.token,
            terms,
            valid_until: grant.valid_until,
            asked_at: grant.started,
            places: PerNode::new(settings.nodes, place),
            round_started: grant.started,
            renew_at: None,
            phase: Phase::Held,
            out: Outbox::default(),
        };
        hold.valid_until = hold.capped(grant.valid_until);
        hold.renew_at = terms.renew.then(|| {
            let everywhere = hold.places.count(|place| place.lease == Lease::Missing) == 0;
            if everywhere { hold.next_renewal(turn) } else { hold.soon(turn.mono()) }
        });
        hold
    }

    /// The token: the same as long as it is held.
    #[must_use]
    pub const fn token(&self) -> u64 {
        self.token
    }

    /// Until when it may be taken as held; `None` once it is lost, released, or over by the clock.
    #[must_use]
    pub fn valid_until(&self, now: Instant) -> Option<Instant> {
        (self.phase == Phase::Held && now < self.valid_until).then_some(self.valid_until)
    }

    /// The next thing to do.
    pub fn effect(&mut self) -> Option<Effect> {
        self.out.pop()
    }

    /// Why it was lost, once it is; handed out once.
    pub fn loss(&mut self) -> Option<Loss> {
        if let Phase::Over(loss) = &mut self.phase { loss.take() } else { None }
    }

    /// When it wants to be called again; `None` once it is lost or released.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Held => sooner(self.renew_at, Some(self.valid_until)),
            Phase::Losing(until) => Some(until),
            Phase::Over(_) => None,
        }
    }

    /// Takes a reply.
    pub fn on_reply(&mut self, turn: &mut Turn<'_>, id: SendId, reply: Reply) {
        let now = turn.mono();
        let found = self.places.iter_mut().find_map(|(node, place)| {
            let at = place.open.iter().position(|open| open.id == id)?;
            Some((node, place.open.swap_remove(at)))
        });
        // By the clock first: a reply that comes after the validity proves nothing.
        self.on_time(turn);
        if let Some((node, open)) = found
            && !matches!(self.phase, Phase::Over(_))
        {
            self.take(node, open, reply, turn);
            self.settle(now, turn);
        }
    }

    /// Takes note of the time.
    pub fn on_time(&mut self, turn: &mut Turn<'_>) {
        let now = turn.mono();
        match self.phase {
            Phase::Held if now >= self.valid_until => {
                let loss = self.loss_by_clock();
                self.lose(loss, now);
            }
            Phase::Held if self.renew_at.is_some_and(|at| at <= now) => self.renew(turn),
            Phase::Losing(until) if until <= now => self.lose_by_nodes(now),
            Phase::Held | Phase::Losing(_) | Phase::Over(_) => {}
        }
    }

    /// Releases it at all nodes, the queue node last, so that the next in line finds the others free.
    pub fn release(&mut self, turn: &mut Turn<'_>) {
        if !matches!(self.phase, Phase::Over(_)) {
            self.phase = Phase::Over(None);
            self.give_back(turn.mono());
        }
    }

    fn take(&mut self, node: NodeId, open: Open, reply: Reply, turn: &mut Turn<'_>) {
        let proven = self.settings.lease_end(open.sent);
        let proves = self.settings.planted.is(Bug::TopUpProves);
        let place = &mut self.places[node];
        place.failure = None;
        match (open.ask, reply) {
            (Ask::Extend, Reply::Done(true)) => place.prove(proven),
            (Ask::Extend, Reply::Done(false)) => {
                // Whatever else is on its way from there speaks of a lease that has gone.
                place.open.clear();
                if !proves {
                    place.lease = Lease::Missing;
                }
                // Where too few are left the lock is lost: then nothing is taken any more.
                if self.unbroken().count() >= self.settings.majority() {
                    self.top_up(node, turn.mono());
                }
            }
            (Ask::TopUp, Reply::Granted { .. }) if proves => place.prove(proven),
            (Ask::TopUp, Reply::Granted { .. }) => {
                place.lease = Lease::Held { since: Some(turn.mono()), proven: open.sent };
                place.loose = false;
                place.named = None;
                // It counts after the next prolongation.
                let soon = self.soon(turn.mono());
                self.renew_at = self.renew_at.map(|at| at.min(soon));
            }
            (Ask::TopUp | Ask::Look, Reply::Standing(standing)) => {
                // Beside a reader, or one of several, others may hold the lock: that they do is no reason.
                let excludes = [Some(self.settings.mode), standing.mode].contains(&Some(Mode::Exclusive));
                place.named =
                    standing.owner.filter(|owner| excludes && !self.owner.is_named_by(owner.bytes()));
            }
            (_, Reply::Failed(failure)) => {
                place.loose |= open.ask == Ask::TopUp && failure.kind.may_have_happened();
                place.failure = Some(failure);
            }
            (_, other) => {
                let text = format!("an answer of another kind: {other:?}");
                place.failure = Some(Failure::new(FailureKind::Fatal, text));
            }
        }
    }

    fn settle(&mut self, now: Instant, turn: &mut Turn<'_>) {
        match self.phase {
            Phase::Held => {
                self.prolong(turn);
                if self.unbroken().count() < self.settings.majority() {
                    self.start_losing(now);
                }
            }
            Phase::Losing(_) => {
                let asked = |place: &&Place| place.open.iter().any(|open| open.ask == Ask::Look);
                let named = self.places.count(|place| place.named.is_some()) > 0;
                if named || self.places.count(asked) == 0 {
                    self.lose_by_nodes(now);
                }
            }
            Phase::Over(_) => {}
        }
    }

    /// What the nodes that are unbroken since the last prolongation have proven.
    fn unbroken(&self) -> impl Iterator<Item = Instant> {
        self.places.iter().filter_map(|(_, place)| match place.lease {
            Lease::Held { since, proven } if since < Some(self.asked_at) => Some(proven),
            Lease::Held { .. } | Lease::Missing => None,
        })
    }

    fn prolong(&mut self, turn: &mut Turn<'_>) {
        let mut proven: Vec<Instant> = self.unbroken().collect();
        proven.sort_unstable_by(|one, other| other.cmp(one));
        let by_majority = self.settings.majority().checked_sub(1).and_then(|last| proven.get(last));
        let Some(proven) = by_majority.copied() else { return };
        let until = self.capped(proven);
        if until > self.valid_until {
            self.valid_until = until;
            self.asked_at = self.settings.asked_at(proven);
            self.renew_at = self.renew_at.map(|_| self.next_renewal(turn));
        }
    }

    /// EXTEND where it is held, ACQUIRE where it is missing.
    fn renew(&mut self, turn: &mut Turn<'_>) {
        let now = turn.mono();
        self.round_started = now;
        let oldest = now.minus_us(self.settings.ttl_us());
        for node in self.places.ids() {
            let place = &mut self.places[node];
            if place.open.iter().any(|open| open.sent <= now.minus_us(self.settings.node_timeout_us)) {
                place.failure = Some(Failure::timed_out());
            }
            place.open.retain(|open| open.sent > oldest);
            match place.lease {
                Lease::Held { .. } => self.ask(node, Ask::Extend, now),
                Lease::Missing => self.top_up(node, now),
            }
        }
        // If it does not come to a prolongation, soon again.
        let pause = self.settings.node_timeout_us.max(self.settings.ttl_us() / 12);
        self.renew_at = Some(now.plus_us(turn.jittered(pause)));
    }

    /// When to renew next while a node is missing, or was until now: the fewer nodes have it, the less it can bear.
    fn soon(&self, now: Instant) -> Instant {
        now.plus_us(self.settings.ttl_us() / 12)
    }

    fn next_renewal(&self, turn: &mut Turn<'_>) -> Instant {
        self.round_started.plus_us(turn.jittered(self.settings.ttl_us() / 3))
    }

    fn top_up(&mut self, node: NodeId, now: Instant) {
        if self.phase == Phase::Held && self.terms.renew {
            self.places[node].loose = true;
            self.ask(node, Ask::TopUp, now);
        }
    }

    fn ask(&mut self, node: NodeId, ask: Ask, now: Instant) {
        let (owner, place) = (self.owner, &mut self.places[node]);
        let too_far = place.failure.as_ref().is_some_and(|failure| failure.kind == FailureKind::TooFarAhead);
        let command = match ask {
            Ask::Extend => Command::Extend { owner, min_token: None },
            Ask::TopUp => {
                let min_token = (!too_far).then_some(self.token);
                Command::Acquire { owner, min_token, wait_ms: None }
            }
            Ask::Look => Command::Look,
        };
        let id = self.out.send(node, command, Some(self.settings.node_deadline(now)));
        place.open.push(Open { id, ask, sent: now });
    }

    fn capped(&self, until: Instant) -> Instant {
        self.terms.hold_until.map_or(until, |end| end.min(until))
    }
}
