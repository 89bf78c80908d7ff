//! An owner that is no longer wanted: RELEASE wherever it may have a lease, until each node has said so or its lease
//! must be over.
//!
//! Where it is not known whether an ACQUIRE arrived, one RELEASE that found nothing is no proof: the ACQUIRE may still
//! be on its way. It is repeated, ever more rarely, until the longest lease that could come of it has ended.

use lockfence_core::clock::Instant;

use super::outbox::Outbox;
use super::{Command, Effect, NodeId, OwnerId, PerNode, Reply, SendId, Settings, Turn, earliest};

/// What an owner may have at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trace {
    /// Nothing: it never asked, or was refused.
    Nothing,
    /// A lease, and no request that is still open.
    Lease,
    /// Perhaps a lease, perhaps one to come.
    Unknown,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    /// Nothing to do.
    Clear,
    /// To be asked at that time.
    Due(Instant),
    /// Asked; asked again from then on.
    Asked { id: SendId, by: Instant },
}

#[derive(Clone, Debug, PartialEq)]
struct Place {
    state: State,
    /// Whether the ACQUIRE may still be on its way.
    unknown: bool,
    /// Whether the first request was answered or given up.
    tried: bool,
    /// How long to wait before the next request.
    pause_us: u64,
}

/// The giving back of one owner's leases.
#[derive(Clone, Debug, PartialEq)]
pub struct GiveBack {
    settings: Settings,
    owner: OwnerId,
    places: PerNode<Place>,
    /// Released after the others: the queue node, so that the next in line finds the others free.
    last: Option<NodeId>,
    /// When no lease of this owner can be left.
    until: Instant,
    freed: usize,
    over: bool,
    out: Outbox,
}

impl GiveBack {
    /// Gives back what `owner` may have. Nothing is sent before the first [`Self::on_time`].
    pub(super) fn new(
        settings: Settings,
        owner: OwnerId,
        traces: &PerNode<Trace>,
        last: Option<NodeId>,
        now: Instant,
    ) -> Self {
        let place = |node| {
            let nothing = traces[node] == Trace::Nothing;
            let state = if nothing { State::Clear } else { State::Due(now) };
            let unknown = traces[node] == Trace::Unknown;
            Place { state, unknown, tried: nothing, pause_us: settings.node_timeout_us }
        };
        let places = PerNode::new(settings.nodes, place);
        let until = now.plus_us(settings.ttl_us().saturating_add(settings.ttl_us() / 100));
        let over = places.count(|place| place.state != State::Clear) == 0;
        Self { settings, owner, places, last, until, freed: 0, over, out: Outbox::default() }
    }

    /// Whether nothing is left to do: all nodes have said so, or no lease can be left.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.over
    }

    /// Whether each node was asked once, and has answered or not: as long as anybody should wait for it.
    #[must_use]
    pub fn is_tried(&self) -> bool {
        self.over || self.places.count(|place| !place.tried) == 0
    }

    /// How many nodes had a lease and ended it.
    #[must_use]
    pub const fn freed(&self) -> usize {
        self.freed
    }

    /// The next thing to do.
    pub fn effect(&mut self) -> Option<Effect> {
        self.out.pop()
    }

    /// When it wants to be called again; `None` when it is over.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        if self.over {
            return None;
        }
        let next = self.places.iter().filter_map(|(node, place)| match place.state {
            State::Clear => None,
            State::Due(_) if self.must_wait(node) => None,
            State::Due(at) => Some(at),
            State::Asked { by, .. } => Some(by),
        });
        earliest(next.min(), Some(self.until))
    }

    /// Takes a reply.
    pub fn on_reply(&mut self, turn: &mut Turn<'_>, id: SendId, reply: &Reply) {
        let now = turn.mono();
        let asked = |place: &Place| matches!(place.state, State::Asked { id: open, .. } if open == id);
        if let Some((_, place)) = self.places.iter_mut().find(|(_, place)| asked(place)) {
            let released = *reply == Reply::Done(true);
            self.freed = self.freed.saturating_add(usize::from(released));
            if released || (*reply == Reply::Done(false) && !place.unknown) {
                place.state = State::Clear;
                place.tried = true;
            } else {
                place.again(now);
            }
        }
        self.on_time(turn);
    }

    /// Takes note of the time.
    pub fn on_time(&mut self, turn: &mut Turn<'_>) {
        let now = turn.mono();
        self.expire(now);
        for node in self.places.ids() {
            if matches!(self.places[node].state, State::Due(at) if at <= now) && !self.must_wait(node) {
                let by = self.settings.node_deadline(now);
                let id = self.out.send(node, Command::Release { owner: self.owner }, Some(by));
                self.places[node].state = State::Asked { id, by };
            }
        }
        self.over = now >= self.until || self.places.count(|place| place.state != State::Clear) == 0;
    }

    fn expire(&mut self, now: Instant) {
        for (_, place) in self.places.iter_mut() {
            if matches!(place.state, State::Asked { by, .. } if by <= now) {
                place.again(now);
            }
        }
    }

    /// Whether `node` is to be released last and others were not tried yet.
    fn must_wait(&self, node: NodeId) -> bool {
        self.last == Some(node)
            && !self.places[node].tried
            && self.places.iter().any(|(other, place)| other != node && !place.tried)
    }
}

impl Place {
    fn again(&mut self, now: Instant) {
        self.tried = true;
        self.state = State::Due(now.plus_us(self.pause_us));
        self.pause_us = self.pause_us.saturating_mul(2);
    }
}
