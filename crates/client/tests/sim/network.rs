//! The network: late, lost, doubled, reordered; and the nodes at its end.

use std::collections::HashMap;

use lockfence_client::quorum::{Command, Failure, FailureKind, NodeId, Reply};

use crate::faults::{CALM_AT, Fault};
use crate::rng::Rng;
use crate::world::{Event, World};
use crate::{Msg, NODE_TIMEOUT_US, TTL_US};

pub(crate) struct Network {
    loss: u64,
    double: u64,
    slow: u64,
    base_us: u64,
    pub(crate) lose_answers: u32,
    /// For each node, the clients that it cannot be reached by, as bits.
    pub(crate) cut: Vec<u64>,
    /// Until when each node stands still.
    pub(crate) stalled_until: Vec<u64>,
    /// Requests of one client arrive at one node in order, as on one connection (a WAIT has one of its own).
    pub(crate) in_order: bool,
    arrivals: HashMap<(NodeId, usize), u64>,
}

impl Network {
    pub(crate) fn draw(rng: &mut Rng, nodes: usize) -> Self {
        Self {
            loss: [0, 0, 50, 300][rng.range(0, 4) as usize],
            double: [0, 0, 50, 300][rng.range(0, 4) as usize],
            slow: [0, 50, 300][rng.range(0, 3) as usize],
            base_us: [2_000, 10_000, 50_000][rng.range(0, 3) as usize],
            lose_answers: 0,
            cut: vec![0; nodes],
            stalled_until: vec![0; nodes],
            in_order: rng.chance(5_000),
            arrivals: HashMap::new(),
        }
    }

    /// Nothing is lost, doubled or slow.
    pub(crate) fn calm(&mut self) {
        (self.loss, self.double, self.slow, self.in_order) = (0, 0, 0, true);
    }

    /// Whether it is bad enough to excuse that nobody gets on.
    pub(crate) fn is_bad(&self) -> bool {
        self.loss + self.slow > 100
    }
}

impl World {
    pub(crate) fn is_cut(&self, node: NodeId, client: usize) -> bool {
        self.network.cut[node.0] >> client & 1 == 1
    }

    pub(crate) fn delay(&mut self) -> u64 {
        if self.now < CALM_AT && self.rng.chance(self.network.slow) {
            return self.rng.range(50_000, 1_500_000);
        }
        self.rng.range(1_000, 1_000 + 2 * self.network.base_us)
    }

    fn is_lost(&mut self) -> bool {
        self.now < CALM_AT && self.rng.chance(self.network.loss)
    }

    fn copies(&mut self) -> u32 {
        1 + u32::from(self.now < CALM_AT && self.rng.chance(self.network.double))
    }

    pub(crate) fn send(&mut self, node: NodeId, msg: Msg, command: Command) {
        self.stats.messages += 1;
        if self.is_cut(node, msg.client) || self.is_lost() {
            self.say(|| format!("lost: {msg:?} to {node:?}: {command:?}"));
            return;
        }
        if self.ambushes > 0
            && self.now < CALM_AT
            && matches!(command, Command::Extend { min_token: Some(_), .. })
        {
            self.ambushes -= 1;
            self.fault(Fault::NodeJump { node, by: TTL_US as i64 });
            let at = self.now + self.rng.range(50_000, NODE_TIMEOUT_US);
            return self.at(at, Event::ToNode(node, msg, command));
        }
        for _ in 0..self.copies() {
            let mut at = self.now + self.delay();
            if self.network.in_order && !matches!(command, Command::Acquire { wait_ms: Some(_), .. }) {
                let before = self.network.arrivals.entry((node, msg.client)).or_default();
                at = at.max(*before);
                *before = at;
            }
            self.at(at, Event::ToNode(node, msg, command));
        }
    }

    pub(crate) fn arrive_at_node(&mut self, node: NodeId, msg: Msg, command: Command) {
        if self.is_cut(node, msg.client) {
            return;
        }
        if !self.nodes[node.0].up {
            let failure = Failure::new(FailureKind::NotSent, "connection refused");
            return self.answer(node, msg, Reply::Failed(failure));
        }
        if self.network.stalled_until[node.0] > self.now {
            return self.at(self.network.stalled_until[node.0], Event::ToNode(node, msg, command));
        }
        let mut answers = std::mem::take(&mut self.answers);
        if let Some(reply) = self.nodes[node.0].handle(self.now, msg, command, &mut answers) {
            answers.push((msg, reply));
        }
        self.say(|| format!("{node:?} {msg:?} {command:?}: {answers:?}"));
        self.answers = answers;
        self.after_node(node);
    }

    /// Sends the node's answers, and sets its timer.
    pub(crate) fn after_node(&mut self, node: NodeId) {
        if self.network.stalled_until[node.0] > self.now {
            return self
                .at(self.network.stalled_until[node.0], Event::Mend(Fault::Stall { node, for_us: 0 }));
        }
        let mut answers = std::mem::take(&mut self.answers);
        if self.nodes[node.0].up {
            self.nodes[node.0].serve(self.now, &mut answers);
        }
        for (msg, reply) in answers.drain(..) {
            self.answer(node, msg, reply);
        }
        self.answers = answers;
        self.set_node_timer(node);
    }

    fn answer(&mut self, node: NodeId, msg: Msg, reply: Reply) {
        let happened = !matches!(reply, Reply::Failed(_));
        if happened && self.network.lose_answers > 0 {
            self.network.lose_answers -= 1;
            self.stats.unknown += 1;
            return self.say(|| format!("answer lost: {msg:?} {reply:?}"));
        }
        if self.is_cut(node, msg.client) || self.is_lost() {
            self.stats.unknown += u64::from(happened);
            return self.say(|| format!("answer lost: {msg:?} {reply:?}"));
        }
        for _ in 0..self.copies() {
            let delay = self.delay();
            self.stats.unknown += u64::from(happened && delay > NODE_TIMEOUT_US);
            self.at(self.now + delay, Event::ToClient(msg, reply.clone()));
        }
    }

    /// The end of a connection always arrives, if late.
    pub(crate) fn close(&mut self, node: NodeId, msg: Msg) {
        if self.is_cut(node, msg.client) || self.network.stalled_until[node.0] > self.now {
            return self.at(self.now + 200_000, Event::Close(node, msg));
        }
        self.nodes[node.0].close(msg, self.now);
        self.after_node(node);
    }
}
