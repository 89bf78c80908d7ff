//! An owner that is no longer wanted: RELEASE wherever it may have a lease, until each node has said so or its lease
//! must be over.
//!
//! Where it is not known whether an ACQUIRE arrived, one RELEASE that found nothing is no proof: the ACQUIRE may still
//! be on its way. It is repeated, ever more rarely, until the longest lease that could come of it has ended. Nobody need
//! wait for that long: see [`GiveBack::is_settled`].

use lockfence_core::clock::{Instant, sooner};

use super::outbox::Outbox;
use super::{Command, Effect, NodeId, OwnerId, PerNode, Reply, SendId, Settings, Turn};

/// So many answers that nothing is there, one a moment after the other, are enough to rely on.
const REFUSALS_ENOUGH: u32 = 2;

/// What an owner may have at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trace {
    /// Nothing: it never asked, or was refused.
    Nothing,
    /// A lease, and no request that is still open.
    Lease,
    /// Perhaps a lease, perhaps one to come.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    /// Nothing to do.
    Clear,
    /// To be asked at that time.
    Due(Instant),
    /// Asked; asked again from then on.
    Asked { id: SendId, by: Instant },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Place {
    state: State,
    /// Whether the ACQUIRE may still be on its way.
    unknown: bool,
    /// Whether the first request was answered or given up.
    tried: bool,
    /// How often it has answered that nothing is there.
    refusals: u32,
    /// How long to wait before the next request.
    pause_us: u64,
}

/// The giving back of one owner's leases.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
            // Whatever was under way when the first answer came has arrived soon after.
            let pause_us =
                if unknown { (settings.node_timeout_us / 16).max(1_000) } else { settings.node_timeout_us };
            Place { state, unknown, tried: nothing, refusals: 0, pause_us }
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

    /// Whether nobody need wait for it any longer: a majority has ended its lease and the others were asked, or each was
    /// asked, and has answered or not.
    #[must_use]
    pub fn is_tried(&self) -> bool {
        let waits = |place: &&Place| !place.tried && matches!(place.state, State::Due(_));
        let by_majority = self.freed >= self.settings.majority() && self.places.count(waits) == 0;
        self.over || by_majority || self.places.count(|place| !place.tried) == 0
    }

    /// Whether each node has answered: that it has ended the lease, or that there is none (where a request may still have
    /// been on its way twice, the second time a moment later), or that it does not let itself be asked.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let settled = |place: &&Place| place.state == State::Clear || place.refusals >= REFUSALS_ENOUGH;
        self.over || self.places.count(settled) == self.settings.nodes
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
        sooner(next.min(), Some(self.until))
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
                place.refusals = place.refusals.saturating_add(match reply {
                    Reply::Done(_) => 1,
                    // It will refuse it again.
                    Reply::Failed(failure) if failure.kind.is_final() => REFUSALS_ENOUGH,
                    _ => 0,
                });
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
        let timeout_us = self.settings.node_timeout_us;
        for (_, place) in self.places.iter_mut() {
            if matches!(place.state, State::Asked { by, .. } if by <= now) {
                place.pause_us = place.pause_us.max(timeout_us);
                place.again(now);
            }
        }
    }

    /// Whether `node` is to be released last, and too few others are clear for the next in line to find a majority. Those
    /// that do not answer are not waited for beyond that: one node that hangs must not hold up each hand-over.
    fn must_wait(&self, node: NodeId) -> bool {
        if self.last != Some(node) || self.places[node].tried {
            return false;
        }
        let others = || self.places.iter().filter(|(other, _)| *other != node);
        let clear = others().filter(|(_, place)| place.state == State::Clear).count();
        clear.saturating_add(1) < self.settings.majority() && others().any(|(_, place)| !place.tried)
    }
}

impl Place {
    fn again(&mut self, now: Instant) {
        self.tried = true;
        self.state = State::Due(now.plus_us(self.pause_us));
        self.pause_us = self.pause_us.saturating_mul(2);
    }
}

#[cfg(test)]
mod tests {
    use lockfence_core::clock::Now;

    use super::*;

    struct Sent(Vec<(NodeId, SendId)>);

    impl Sent {
        fn by(give_back: &mut GiveBack) -> Self {
            let send = |effect| match effect {
                Effect::Send { node, id, .. } => (node, id),
                other => panic!("{other:?}"),
            };
            Self(std::iter::from_fn(|| give_back.effect()).map(send).collect())
        }

        fn nodes(&self) -> Vec<usize> {
            self.0.iter().map(|(node, _)| node.0).collect()
        }
    }

    fn at<T>(ms: u64, step: impl FnOnce(&mut Turn<'_>) -> T) -> T {
        let now = Now { mono: Instant::default().plus_ms(ms), ..Now::default() };
        step(&mut Turn { now, bits: &mut || 0 })
    }

    /// A WAIT that was called off: the request of the connection that is closing may still be granted.
    #[test]
    fn it_is_settled_once_a_node_has_said_twice_that_nothing_is_there() {
        let settings = Settings::new(3, 30_000);
        let traces = PerNode::new(3, |node| if node == NodeId(1) { Trace::Unknown } else { Trace::Nothing });
        let mut give_back = GiveBack::new(settings, OwnerId(1), &traces, None, Instant::default());
        at(0, |turn| give_back.on_time(turn));
        let first = Sent::by(&mut give_back);
        assert_eq!(first.nodes(), [1]);
        at(1, |turn| give_back.on_reply(turn, first.0[0].1, &Reply::Done(false)));
        assert!(give_back.is_tried() && !give_back.is_settled());
        assert_eq!(give_back.deadline(), Some(Instant::default().plus_us(63_500)));
        at(64, |turn| give_back.on_time(turn));
        let second = Sent::by(&mut give_back);
        assert!(!give_back.is_settled());
        at(65, |turn| give_back.on_reply(turn, second.0[0].1, &Reply::Done(false)));
        assert!(give_back.is_settled() && !give_back.is_over(), "it goes on in the background");
    }

    /// Leases at three nodes, of which the first is the queue node; a node may take 1 s.
    fn three() -> GiveBack {
        let settings = Settings::new(3, 30_000);
        let traces = PerNode::new(3, |_| Trace::Lease);
        GiveBack::new(settings, OwnerId(1), &traces, Some(NodeId(0)), Instant::default())
    }

    #[test]
    fn the_queue_node_is_last_but_does_not_wait_for_a_node_that_hangs() {
        let mut give_back = three();
        at(0, |turn| give_back.on_time(turn));
        let sent = Sent::by(&mut give_back);
        assert_eq!(sent.nodes(), [1, 2]);
        at(3, |turn| give_back.on_reply(turn, sent.0[1].1, &Reply::Done(true)));
        let last = Sent::by(&mut give_back);
        assert_eq!(last.nodes(), [0], "node 1 hangs");
        assert!(!give_back.is_tried());
        at(5, |turn| give_back.on_reply(turn, last.0[0].1, &Reply::Done(true)));
        assert!(give_back.is_tried() && !give_back.is_over(), "a majority is free, node 1 was asked");
        at(6, |turn| give_back.on_reply(turn, sent.0[0].1, &Reply::Done(true)));
        assert!(give_back.is_over());
    }

    #[test]
    fn the_queue_node_waits_for_the_others_no_longer_than_they_may_take() {
        let mut give_back = three();
        at(0, |turn| give_back.on_time(turn));
        assert_eq!(Sent::by(&mut give_back).nodes(), [1, 2]);
        at(999, |turn| give_back.on_time(turn));
        assert_eq!(Sent::by(&mut give_back).nodes(), [0; 0]);
        at(1_000, |turn| give_back.on_time(turn));
        assert_eq!(Sent::by(&mut give_back).nodes(), [0]);
    }
}
