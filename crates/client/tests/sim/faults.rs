//! What goes wrong, and when.

use lockfence_client::quorum::{Failure, FailureKind, NodeId, Reply};

use crate::TTL_US;
use crate::client::Doing;
use crate::world::{Event, World};

/// Faults end here.
pub(crate) const CALM_AT: u64 = 35_000_000;

/// Two restarts of one node that are closer together are not promised to go well.
const RESTARTS_APART_US: u64 = 30_000_000;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    Crash {
        node: NodeId,
        forgets: bool,
    },
    Partition {
        node: NodeId,
        clients: u64,
    },
    /// The node stands still; what was sent to it arrives afterwards.
    Stall {
        node: NodeId,
        for_us: u64,
    },
    ClientWall {
        client: usize,
        to: i64,
    },
    NodeWall {
        node: NodeId,
        to: i64,
    },
    NodeJump {
        node: NodeId,
        by: i64,
    },
    /// LOCK.BREAK everywhere.
    Break,
    /// DEL at one node.
    Delete {
        node: NodeId,
    },
    Pause {
        client: usize,
    },
    /// The next so many answers are lost.
    LoseAnswers(u32),
}

impl World {
    /// Draws the faults, at least two: one that loses answers, and another.
    pub(crate) fn plan_faults(&mut self) {
        self.ambushes = if self.rng.chance(3_000) { self.rng.range(1, 4) as u32 } else { 0 };
        let at = self.rng.range(10_000, 2_000_000);
        let count = self.rng.range(1, 4) as u32;
        self.at(at, Event::Fault(Fault::LoseAnswers(count)));
        for _ in 0..self.rng.range(1, 6) {
            let at = self.rng.range(10_000, CALM_AT - 5_000_000);
            let lasts = self.rng.range(10_000, 12_000_000);
            let fault = self.draw_fault();
            self.at(at, Event::Fault(fault));
            if matches!(
                fault,
                Fault::Crash { .. }
                    | Fault::Partition { .. }
                    | Fault::ClientWall { .. }
                    | Fault::NodeWall { .. }
            ) {
                self.at((at + lasts).min(CALM_AT), Event::Mend(fault));
            }
        }
    }

    fn draw_fault(&mut self) -> Fault {
        let node = NodeId(self.rng.range(0, self.nodes.len() as u64) as usize);
        let client = self.rng.range(0, self.clients.len() as u64) as usize;
        match self.rng.range(0, 22) {
            0..3 => Fault::Crash { node, forgets: false },
            3..7 => Fault::Crash { node, forgets: !self.durable },
            7..9 => Fault::Partition { node, clients: u64::MAX },
            9..12 => Fault::Partition { node, clients: self.rng.next() },
            12..14 => Fault::ClientWall { client, to: self.rng.around(5_000_000) },
            14 => Fault::NodeWall { node, to: self.rng.around(2_500_000) },
            15 => Fault::NodeJump { node, by: self.rng.range(1_000_000, TTL_US) as i64 },
            16 => Fault::Break,
            17 => Fault::Delete { node },
            18 => Fault::Stall { node, for_us: self.rng.range(100_000, 2 * TTL_US) },
            19..21 => Fault::Pause { client },
            _ => Fault::LoseAnswers(self.rng.range(1, 8) as u32),
        }
    }

    fn is_awake(&self, node: NodeId) -> bool {
        self.nodes[node.0].up && self.now >= self.network.stalled_until[node.0]
    }

    /// Leases were ended or cut short behind the backs of those who hold them.
    fn excuse(&mut self) {
        self.excused_until = self.now + TTL_US + TTL_US / 50;
    }

    pub(crate) fn fault(&mut self, fault: Fault) {
        self.say(|| format!("FAULT {fault:?}"));
        self.stats.faults += 1;
        match fault {
            Fault::Crash { node, forgets } => self.crash(node, forgets),
            Fault::Partition { node, clients } => {
                self.stats.partitions += 1;
                self.network.cut[node.0] |= clients;
            }
            Fault::Stall { node, for_us } => {
                self.stats.stalls += 1;
                self.network.stalled_until[node.0] = (self.now + for_us).min(CALM_AT);
                self.at(self.now + for_us, Event::Mend(fault));
            }
            Fault::ClientWall { client, to } => {
                self.stats.clock_faults += 1;
                self.clients[client].wall_offset = to;
                self.clients[client].timer = None;
                self.set_timer(client);
            }
            Fault::NodeWall { node, to } => {
                self.stats.clock_faults += 1;
                self.stepped_at[node.0] = self.now;
                self.nodes[node.0].step_wall(to);
            }
            Fault::NodeJump { node, by } => {
                self.stats.clock_faults += 1;
                self.nodes[node.0].jump_mono(by);
                self.excuse();
                self.after_node(node);
            }
            Fault::Break => self.break_lock(),
            Fault::Delete { node } => {
                if self.is_awake(node) {
                    self.stats.breaks += 1;
                    let mut answers = std::mem::take(&mut self.answers);
                    self.nodes[node.0].delete(&mut answers);
                    self.answers = answers;
                    self.excuse();
                    self.after_node(node);
                }
            }
            Fault::Pause { client } => {
                self.stats.pauses += 1;
                self.clients[client].paused_until = self.now + self.rng.range(100_000, 2 * TTL_US);
                self.set_timer(client);
            }
            Fault::LoseAnswers(count) => self.network.lose_answers += count,
        }
    }

    fn crash(&mut self, node: NodeId, forgets: bool) {
        if !self.nodes[node.0].up || self.now < self.steady_from[node.0] {
            return;
        }
        self.stats.crashes += 1;
        self.stats.amnesias += u64::from(forgets);
        self.steady_from[node.0] = u64::MAX;
        self.network.stalled_until[node.0] = 0;
        let told = self.crowded || self.rng.chance(7_000);
        for msg in self.nodes[node.0].crash(forgets) {
            if told && !self.is_cut(node, msg.client) {
                let failure = Failure::new(FailureKind::Unknown, "connection closed");
                let at = self.now + self.delay();
                self.at(at, Event::ToClient(msg, Reply::Failed(failure)));
            }
        }
        self.after_node(node);
    }

    /// LOCK.BREAK at all nodes. Whoever holds it must notice by the next renewal.
    fn break_lock(&mut self) {
        let now = self.now;
        let awake: Vec<usize> = (0..self.nodes.len()).filter(|node| self.is_awake(NodeId(*node))).collect();
        for node in awake.iter().copied() {
            let mut answers = std::mem::take(&mut self.answers);
            self.nodes[node].break_lock(now, &mut answers);
            self.answers = answers;
            self.after_node(NodeId(node));
        }
        self.stats.breaks += 1;
        self.excuse();
        if awake.len() == self.nodes.len() {
            for client in &mut self.clients {
                if let Doing::Holding(holding) = &mut client.doing
                    && now - holding.since > TTL_US / 2
                {
                    holding.broken_at = Some(now);
                }
            }
        }
    }

    pub(crate) fn mend(&mut self, fault: Fault) {
        match fault {
            Fault::Crash { node, .. } if !self.nodes[node.0].up => {
                self.say(|| format!("node {node:?} is back"));
                self.nodes[node.0].restart(self.now);
                self.steady_from[node.0] = self.now + RESTARTS_APART_US;
                // What it wrote before its wall clock was moved it reads by the clock as it is now.
                let stepped = self.stepped_at[node.0] > 0 && self.now < self.stepped_at[node.0] + 2 * TTL_US;
                if stepped && self.nodes[node.0].has_no_quarantine() {
                    self.excuse();
                }
            }
            Fault::Partition { node, clients } => self.network.cut[node.0] &= !clients,
            Fault::Stall { node, .. } if self.now >= self.network.stalled_until[node.0] => {
                self.after_node(node);
            }
            _ => {}
        }
    }
}
