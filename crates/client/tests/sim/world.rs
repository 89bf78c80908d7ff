//! The world: time, the network, faults, and the checks.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use lockfence_client::quorum::attempt::Outcome;
use lockfence_client::quorum::hold::Loss;
use lockfence_client::quorum::planted::Planted;
use lockfence_client::quorum::{Command, Effect, Failure, FailureKind, NodeId, Reply, Settings, order};

use crate::client::{Client, Did, Doing, Use};
use crate::node::{FLOOR_MARGIN_US, Node};
use crate::rng::Rng;
use crate::{Broken, Msg, TTL_US};

const NODE_TIMEOUT_US: u64 = 60_000;
/// Faults end here.
const CALM_AT: u64 = 3_500_000;
/// No new attempts from here, once enough grants were made.
const NO_MORE_AT: u64 = 4_500_000;
const GRANTS_WANTED: u64 = 5;
/// Nothing goes on for longer.
const END_AT: u64 = 40_000_000;
/// Somebody gets the lock within this time while a majority is up and somebody waits.
const PROGRESS_US: u64 = 4 * TTL_US;
const LOOK_EVERY_US: u64 = 50_000;

/// A rule that did not hold.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) seed: u64,
    pub(crate) at: u64,
    pub(crate) what: String,
}

/// What happened in the worlds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stats {
    pub(crate) worlds: u64,
    pub(crate) grants: u64,
    pub(crate) confirmed_by_extend: u64,
    pub(crate) through_the_queue: u64,
    pub(crate) prolonged: u64,
    pub(crate) lost_expired: u64,
    pub(crate) lost_cap: u64,
    pub(crate) lost_taken: u64,
    pub(crate) lost_broken: u64,
    pub(crate) lost_no_quorum: u64,
    pub(crate) ended_held: u64,
    pub(crate) ended_timed_out: u64,
    pub(crate) ended_no_quorum: u64,
    pub(crate) cancelled: u64,
    pub(crate) died: u64,
    pub(crate) faults: u64,
    pub(crate) crashes: u64,
    pub(crate) amnesias: u64,
    pub(crate) partitions: u64,
    pub(crate) clock_faults: u64,
    pub(crate) breaks: u64,
    pub(crate) pauses: u64,
    /// Requests that were carried out, or may have been, and whose answer did not come in time.
    pub(crate) unknown: u64,
    pub(crate) messages: u64,
    pub(crate) fewest_contenders: u64,
    pub(crate) fewest_grants: u64,
    pub(crate) fewest_faults: u64,
    pub(crate) fewest_unknown: u64,
    pub(crate) longest_wait_us: u64,
}

impl Stats {
    pub(crate) fn add(&mut self, other: &Self) {
        if other.worlds == 0 {
            return;
        }
        let first = self.worlds == 0;
        let least = |mine: u64, its: u64| if first { its } else { mine.min(its) };
        self.fewest_contenders = least(self.fewest_contenders, other.fewest_contenders);
        self.fewest_grants = least(self.fewest_grants, other.fewest_grants);
        self.fewest_faults = least(self.fewest_faults, other.fewest_faults);
        self.fewest_unknown = least(self.fewest_unknown, other.fewest_unknown);
        self.longest_wait_us = self.longest_wait_us.max(other.longest_wait_us);
        for (mine, its) in [
            (&mut self.worlds, other.worlds),
            (&mut self.grants, other.grants),
            (&mut self.confirmed_by_extend, other.confirmed_by_extend),
            (&mut self.through_the_queue, other.through_the_queue),
            (&mut self.prolonged, other.prolonged),
            (&mut self.lost_expired, other.lost_expired),
            (&mut self.lost_cap, other.lost_cap),
            (&mut self.lost_taken, other.lost_taken),
            (&mut self.lost_broken, other.lost_broken),
            (&mut self.lost_no_quorum, other.lost_no_quorum),
            (&mut self.ended_held, other.ended_held),
            (&mut self.ended_timed_out, other.ended_timed_out),
            (&mut self.ended_no_quorum, other.ended_no_quorum),
            (&mut self.cancelled, other.cancelled),
            (&mut self.died, other.died),
            (&mut self.faults, other.faults),
            (&mut self.crashes, other.crashes),
            (&mut self.amnesias, other.amnesias),
            (&mut self.partitions, other.partitions),
            (&mut self.clock_faults, other.clock_faults),
            (&mut self.breaks, other.breaks),
            (&mut self.pauses, other.pauses),
            (&mut self.unknown, other.unknown),
            (&mut self.messages, other.messages),
        ] {
            *mine += its;
        }
    }
}

#[derive(Debug)]
enum Event {
    ToNode(NodeId, Msg, Command),
    ToClient(Msg, Reply),
    Close(NodeId, Msg),
    NodeTimer(NodeId),
    ClientTimer(usize),
    /// The client's program does the next thing.
    Act(usize, u64),
    Fault(Fault),
    Mend(Fault),
    Look,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Crash {
        node: NodeId,
        forgets: bool,
    },
    Partition {
        node: NodeId,
        clients: u64,
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
    Break,
    Pause {
        client: usize,
    },
    /// The next so many answers are lost.
    LoseAnswers(u32),
}

struct Timed {
    at: u64,
    seq: u64,
    event: Event,
}

impl PartialEq for Timed {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.seq) == (other.at, other.seq)
    }
}
impl Eq for Timed {}
impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Timed {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.seq).cmp(&(other.at, other.seq))
    }
}

struct Network {
    loss: u64,
    double: u64,
    slow: u64,
    base_us: u64,
    lose_answers: u32,
    /// For each node, the clients that it cannot be reached by, as bits.
    cut: Vec<u64>,
}

struct Granted {
    began: u64,
    confirmed: u64,
    token: u64,
}

pub(crate) struct World {
    seed: u64,
    rule: &'static str,
    tell: bool,
    now: u64,
    seq: u64,
    rng: Rng,
    events: BinaryHeap<Reverse<Timed>>,
    nodes: Vec<Node>,
    steady_from: Vec<u64>,
    node_timers: Vec<Option<u64>>,
    clients: Vec<Client>,
    acts: Vec<u64>,
    dense: bool,
    /// So many confirms are yet to be held up while the lease that they are about is lost.
    ambushes: u32,
    network: Network,
    grants: Vec<Granted>,
    excused_until: u64,
    quiet_since: Option<u64>,
    did: Vec<Did>,
    answers: Vec<(Msg, Reply)>,
    pub(crate) stats: Stats,
    pub(crate) report: Option<Report>,
    crowded: bool,
}

impl World {
    pub(crate) fn new(seed: u64, broken: Broken, tell: bool) -> Self {
        let mut rng = Rng::new(seed);
        let node_count = [1, 3, 3, 3, 3, 3, 5, 4][rng.range(0, 8) as usize];
        let client_count = rng.range(3, 6) as usize;
        let mut world = Self::of_size(rng, node_count, client_count, seed, broken, tell);
        world.plan();
        world
    }

    /// Three nodes, eight contenders that come back at once, and no faults.
    pub(crate) fn crowded(seed: u64) -> Self {
        let mut world = Self::of_size(Rng::new(seed), 3, 8, seed, Broken::default(), false);
        (world.network.loss, world.network.double, world.network.slow) = (0, 0, 0);
        world.crowded = true;
        for client in 0..world.clients.len() {
            world.clients[client].settings.wait_slice_ms = None; // each slice loses the place in the queue
            world.clients[client].brief = true;
            world.act_at(client, 0);
        }
        world
    }

    /// How often each client got the lock.
    pub(crate) fn won_by_each(&self) -> Vec<u64> {
        self.clients.iter().map(|client| client.won).collect()
    }

    fn of_size(
        mut rng: Rng,
        node_count: usize,
        client_count: usize,
        seed: u64,
        broken: Broken,
        tell: bool,
    ) -> Self {
        let level = rng.chance(5_000);
        let dense = rng.chance(3_000);
        let skew = if level { 2_000 } else { 250_000 };
        // Longest lease, slow clocks included.
        let quarantine = (TTL_US + TTL_US / 50) as i64;
        let nodes = (0..node_count)
            .map(|_| Node::new(rng.around(3_000), rng.around(skew), quarantine, dense, broken.node))
            .collect();
        let mut settings = Settings::new(node_count, TTL_US / 1000);
        settings.node_timeout_us = NODE_TIMEOUT_US;
        if rng.chance(1_000) {
            settings.wait_slice_ms = Some(rng.range(50, 400));
        }
        if let Some(bug) = broken.protocol {
            settings.planted = Planted::bug(bug);
        }
        let names: Vec<String> = (0..node_count).map(|node| format!("node-{node}")).collect();
        let order = order(&seed.to_le_bytes(), &names);
        let clients = (0..client_count)
            .map(|id| {
                let clocks = (rng.around(3_000), rng.around(skew));
                let own = Rng::new(rng.next());
                Client::new(id, settings, order.clone(), clocks, broken.wall_clock, own)
            })
            .collect();
        let network = Network {
            loss: [0, 0, 50, 300][rng.range(0, 4) as usize],
            double: [0, 0, 50, 300][rng.range(0, 4) as usize],
            slow: [0, 50, 300][rng.range(0, 3) as usize],
            base_us: [200, 1_000, 5_000][rng.range(0, 3) as usize],
            lose_answers: 0,
            cut: vec![0; node_count],
        };
        let stats = Stats { worlds: 1, fewest_contenders: client_count as u64, ..Stats::default() };
        Self {
            seed,
            rule: broken.rule,
            tell,
            now: 0,
            seq: 0,
            rng,
            events: BinaryHeap::new(),
            nodes,
            steady_from: vec![0; node_count],
            node_timers: vec![None; node_count],
            clients,
            acts: vec![0; client_count],
            dense,
            ambushes: 0,
            network,
            grants: Vec::new(),
            excused_until: 0,
            quiet_since: None,
            did: Vec::new(),
            answers: Vec::new(),
            stats,
            report: None,
            crowded: false,
        }
    }

    pub(crate) fn run(&mut self) {
        while self.report.is_none() {
            let Some(Reverse(Timed { at, event, .. })) = self.events.pop() else { break };
            self.now = at;
            if self.is_over() {
                break;
            }
            if at > END_AT {
                self.fail("not over: somebody is still at it".to_owned());
                break;
            }
            self.happen(event);
        }
        if self.report.is_none() {
            self.nothing_left();
        }
        self.stats.fewest_grants = self.stats.grants;
        self.stats.fewest_faults = self.stats.faults;
        self.stats.fewest_unknown = self.stats.unknown;
    }

    fn is_over(&self) -> bool {
        self.now >= NO_MORE_AT
            && self.stats.grants >= GRANTS_WANTED
            && self.clients.iter().all(Client::is_idle)
    }

    fn fail(&mut self, what: String) {
        if self.tell {
            eprintln!("{:>9} FAILED {what}", self.now);
        }
        if !what.starts_with(self.rule) {
            return;
        }
        self.report.get_or_insert(Report { seed: self.seed, at: self.now, what });
    }

    fn say(&self, what: impl FnOnce() -> String) {
        if self.tell {
            eprintln!("{:>9} {}", self.now, what());
        }
    }

    fn at(&mut self, at: u64, event: Event) {
        self.seq += 1;
        self.events.push(Reverse(Timed { at: at.max(self.now), seq: self.seq, event }));
    }

    /// Draws the faults, at least two: one that loses answers, and another.
    fn plan(&mut self) {
        self.ambushes = if self.rng.chance(3_000) { self.rng.range(1, 4) as u32 } else { 0 };
        for client in 0..self.clients.len() {
            let at = self.rng.range(0, 60_000);
            self.act_at(client, at);
        }
        self.at(0, Event::Look);
        let at = self.rng.range(1_000, 200_000);
        let count = self.rng.range(1, 4) as u32;
        self.at(at, Event::Fault(Fault::LoseAnswers(count)));
        for _ in 0..self.rng.range(1, 6) {
            let at = self.rng.range(1_000, CALM_AT - 500_000);
            let lasts = self.rng.range(1_000, 1_200_000);
            let fault = self.draw_fault();
            self.at(at, Event::Fault(fault));
            let mends = match fault {
                Fault::Break | Fault::LoseAnswers(_) | Fault::NodeJump { .. } => None,
                _ => Some((at + lasts).min(CALM_AT)),
            };
            if let Some(mends) = mends {
                self.at(mends, Event::Mend(fault));
            }
        }
    }

    fn draw_fault(&mut self) -> Fault {
        let node = NodeId(self.rng.range(0, self.nodes.len() as u64) as usize);
        let client = self.rng.range(0, self.clients.len() as u64) as usize;
        match self.rng.range(0, 20) {
            0..3 => Fault::Crash { node, forgets: false },
            // Dense tokens rise only as far as the data survives.
            3..7 => Fault::Crash { node, forgets: !self.dense },
            7..9 => Fault::Partition { node, clients: u64::MAX },
            9..12 => Fault::Partition { node, clients: self.rng.next() },
            12..14 => Fault::ClientWall { client, to: self.rng.around(500_000) },
            14 => Fault::NodeWall { node, to: self.rng.around(250_000) },
            15 => Fault::NodeJump { node, by: self.rng.range(100_000, TTL_US) as i64 },
            16 => Fault::Break,
            17..19 => Fault::Pause { client },
            _ => Fault::LoseAnswers(self.rng.range(1, 8) as u32),
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::ToNode(node, msg, command) => self.arrive_at_node(node, msg, command),
            Event::ToClient(msg, reply) => self.arrive_at_client(msg, reply),
            Event::Close(node, msg) => self.close(node, msg),
            Event::NodeTimer(node) => {
                if self.node_timers[node.0] == Some(self.now) {
                    self.node_timers[node.0] = None;
                    self.after_node(node);
                }
            }
            Event::ClientTimer(client) => {
                if self.clients[client].timer == Some(self.now) {
                    self.clients[client].timer = None;
                    if self.is_paused(client) {
                        return self.set_timer(client);
                    }
                    let now = self.now;
                    let mut did = std::mem::take(&mut self.did);
                    self.clients[client].on_time(now, &mut did);
                    self.after_client(client, did);
                }
            }
            Event::Act(client, number) => {
                if self.acts[client] == number {
                    self.act(client);
                }
            }
            Event::Fault(fault) => self.fault(fault),
            Event::Mend(fault) => self.mend(fault),
            Event::Look => {
                self.look();
                self.at(self.now + LOOK_EVERY_US, Event::Look);
            }
        }
    }

    // The network.

    fn is_cut(&self, node: NodeId, client: usize) -> bool {
        self.network.cut[node.0] >> client & 1 == 1
    }

    fn delay(&mut self) -> u64 {
        if self.now < CALM_AT && self.rng.chance(self.network.slow) {
            return self.rng.range(5_000, 150_000);
        }
        self.rng.range(100, 100 + 2 * self.network.base_us)
    }

    fn is_lost(&mut self) -> bool {
        self.now < CALM_AT && self.rng.chance(self.network.loss)
    }

    fn copies(&mut self) -> u32 {
        1 + u32::from(self.now < CALM_AT && self.rng.chance(self.network.double))
    }

    fn send(&mut self, node: NodeId, msg: Msg, command: Command) {
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
            let at = self.now + self.rng.range(5_000, NODE_TIMEOUT_US);
            return self.at(at, Event::ToNode(node, msg, command));
        }
        for _ in 0..self.copies() {
            let at = self.now + self.delay();
            self.at(at, Event::ToNode(node, msg, command));
        }
    }

    fn arrive_at_node(&mut self, node: NodeId, msg: Msg, command: Command) {
        if self.is_cut(node, msg.client) {
            return;
        }
        if !self.nodes[node.0].up {
            let failure = Failure::new(FailureKind::NotSent, "connection refused");
            return self.answer(node, msg, Reply::Failed(failure));
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
    fn after_node(&mut self, node: NodeId) {
        let mut answers = std::mem::take(&mut self.answers);
        if self.nodes[node.0].up {
            self.nodes[node.0].serve(self.now, &mut answers);
        }
        for (msg, reply) in answers.drain(..) {
            self.answer(node, msg, reply);
        }
        self.answers = answers;
        let wakes_at = if self.nodes[node.0].up { self.nodes[node.0].wakes_at(self.now) } else { None };
        if wakes_at != self.node_timers[node.0] {
            self.node_timers[node.0] = wakes_at;
            if let Some(at) = wakes_at {
                self.at(at, Event::NodeTimer(node));
            }
        }
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
    fn close(&mut self, node: NodeId, msg: Msg) {
        if self.is_cut(node, msg.client) {
            return self.at(self.now + 20_000, Event::Close(node, msg));
        }
        self.nodes[node.0].close(msg);
    }

    // Clients.

    fn is_paused(&self, client: usize) -> bool {
        self.clients[client].paused_until > self.now
    }

    fn arrive_at_client(&mut self, msg: Msg, reply: Reply) {
        if self.is_paused(msg.client) {
            return self.at(self.clients[msg.client].paused_until, Event::ToClient(msg, reply));
        }
        let now = self.now;
        let mut did = std::mem::take(&mut self.did);
        self.clients[msg.client].on_reply(now, msg, reply, &mut did);
        self.after_client(msg.client, did);
    }

    fn act_at(&mut self, client: usize, at: u64) {
        self.acts[client] += 1;
        let number = self.acts[client];
        self.at(at, Event::Act(client, number));
    }

    /// What a program does next: asks for the lock, gives it back, changes its mind, or dies.
    fn act(&mut self, client: usize) {
        if self.is_paused(client) {
            let at = self.clients[client].paused_until;
            return self.act_at(client, at);
        }
        let now = self.now;
        let mut did = std::mem::take(&mut self.did);
        let dies = !self.crowded && now < CALM_AT && self.rng.chance(300);
        let idle = matches!(self.clients[client].doing, Doing::Nothing);
        if idle {
            if now < NO_MORE_AT || self.stats.grants < GRANTS_WANTED {
                let wait = match self.rng.range(0, 10) {
                    _ if self.crowded => None,
                    0 => Some(0),
                    1..4 => Some(self.rng.range(5_000, 1_500_000)),
                    _ => None,
                };
                self.say(|| format!("client {client} asks, wait {wait:?}"));
                self.clients[client].acquire(now, wait, &mut did);
                if !self.crowded && self.rng.chance(800) {
                    let at = now + self.rng.range(100, 200_000);
                    self.act_at(client, at);
                }
            }
        } else if dies {
            self.say(|| format!("client {client} dies"));
            self.stats.died += 1;
            self.clients[client].die();
            let at = now + self.rng.range(1_000, 500_000);
            self.act_at(client, at);
        } else {
            self.say(|| format!("client {client} releases or calls it off"));
            self.clients[client].release(now, &mut did);
            self.next_act(client);
        }
        self.after_client(client, did);
    }

    fn next_act(&mut self, client: usize) {
        let pause =
            if self.rng.chance(3_000) { self.rng.range(50_000, 400_000) } else { self.rng.range(0, 30_000) };
        self.act_at(client, self.now + pause);
    }

    fn after_client(&mut self, client: usize, mut did: Vec<Did>) {
        for done in did.drain(..) {
            match done {
                Did::Effect(msg, effect) => self.effect(msg, effect),
                Did::Won { began, token, took } => self.won(client, began, token, took),
                Did::Prolonged { proof_sent } => self.prolonged(client, proof_sent),
                Did::Ended(outcome) => self.ended(client, &outcome),
                Did::Overdue => self.fail("deadline: a wait went on after it".to_owned()),
                Did::Lost(loss) => self.lost(client, &loss),
            }
        }
        self.did = did;
        self.set_timer(client);
    }

    fn effect(&mut self, msg: Msg, effect: Effect) {
        match effect {
            Effect::Send { node, command, .. } => {
                self.stats.confirmed_by_extend +=
                    u64::from(matches!(command, Command::Extend { min_token: Some(_), .. }));
                self.stats.through_the_queue +=
                    u64::from(matches!(command, Command::Acquire { wait_ms: Some(_), .. }));
                self.send(node, msg, command);
            }
            Effect::Abandon(_) => {
                for node in 0..self.nodes.len() {
                    let at = self.now + self.delay();
                    self.at(at, Event::Close(NodeId(node), msg));
                }
            }
            Effect::GiveBack(_) => {}
        }
    }

    fn set_timer(&mut self, client: usize) {
        let paused_until = self.clients[client].paused_until;
        let at = self.clients[client].deadline().map(|at| at.max(self.now + 1).max(paused_until));
        if at != self.clients[client].timer {
            self.clients[client].timer = at;
            if let Some(at) = at {
                self.at(at, Event::ClientTimer(client));
            }
        }
    }

    // The checks.

    fn won(&mut self, client: usize, began: u64, token: u64, took: u64) {
        self.say(|| format!("client {client} WON {token}, round began {began}"));
        self.stats.grants += 1;
        self.stats.longest_wait_us = self.stats.longest_wait_us.max(took);
        self.quiet_since = None;
        if let Some(same) = self.grants.iter().find(|grant| grant.token == token) {
            self.fail(format!("token {token} was issued twice, before at {}", same.confirmed));
        }
        if let Some(before) = self.grants.iter().find(|grant| grant.confirmed < began && grant.token > token)
        {
            self.fail(format!(
                "token {token} is lower than {}, confirmed at {} before this one began at {began}",
                before.token, before.confirmed
            ));
        }
        let confirmed = self.now;
        self.grants.push(Granted { began, confirmed, token });
        debug_assert!(self.grants.iter().all(|grant| grant.began <= grant.confirmed));
        self.one_holder(client);
        match self.clients[client].chosen {
            Use::Work(us) => self.act_at(client, self.now + us),
            Use::ToTheEnd | Use::Cap(_) => self.acts[client] += 1,
        }
    }

    fn one_holder(&mut self, client: usize) {
        if self.now < self.excused_until {
            return;
        }
        let now = self.now;
        if let Some(other) =
            (0..self.clients.len()).find(|other| *other != client && self.clients[*other].holds(now))
        {
            self.fail(format!("two holders: {other} and now {client}"));
        }
    }

    fn prolonged(&mut self, client: usize, proof_sent: u64) {
        self.stats.prolonged += 1;
        self.say(|| format!("client {client} prolonged by what was sent at {proof_sent}"));
        if let Doing::Holding(holding) = &self.clients[client].doing
            && let Some(broken_at) = holding.broken_at
            && proof_sent > broken_at
        {
            self.fail(format!("broken at {broken_at}, and prolonged by what was sent at {proof_sent}"));
        }
        self.one_holder(client);
    }

    fn ended(&mut self, client: usize, outcome: &Outcome) {
        self.say(|| format!("client {client} ended {outcome:?}"));
        match outcome {
            Outcome::Held(_) => self.stats.ended_held += 1,
            Outcome::TimedOut(_) => self.stats.ended_timed_out += 1,
            Outcome::NoQuorum(_) => self.stats.ended_no_quorum += 1,
            Outcome::Cancelled | Outcome::Won(_) => self.stats.cancelled += 1,
        }
        self.next_act(client);
    }

    fn lost(&mut self, client: usize, loss: &Loss) {
        self.say(|| format!("client {client} lost it: {loss:?}"));
        match loss {
            Loss::Expired => self.stats.lost_expired += 1,
            Loss::HeldTooLong => self.stats.lost_cap += 1,
            Loss::Taken { .. } => self.stats.lost_taken += 1,
            Loss::Broken => self.stats.lost_broken += 1,
            Loss::NoQuorum(_) => self.stats.lost_no_quorum += 1,
        }
        self.next_act(client);
    }

    /// Whether somebody waits who could have the lock: a majority is up, over its restart, and within reach.
    fn somebody_could(&self) -> bool {
        if self.now < CALM_AT && self.network.loss + self.network.slow > 100 {
            return false;
        }
        let majority = self.nodes.len() / 2 + 1;
        let steady = |node: &usize| self.nodes[*node].grants(self.now) && self.now >= self.steady_from[*node];
        self.clients.iter().any(|client| {
            let reach =
                (0..self.nodes.len()).filter(steady).filter(|node| !self.is_cut(NodeId(*node), client.id));
            matches!(client.doing, Doing::Trying(_))
                && client.paused_until < self.now
                && reach.count() >= majority
        })
    }

    fn look(&mut self) {
        let held = self.clients.iter().any(|client| client.holds(self.now));
        if held || !self.somebody_could() {
            self.quiet_since = None;
            return;
        }
        let since = *self.quiet_since.get_or_insert(self.now);
        if self.now - since > PROGRESS_US {
            self.fail(format!("no progress since {since}, although a majority is up"));
        }
    }

    fn nothing_left(&mut self) {
        // One ttl by the slowest clock, and what is still on its way.
        let after = self.now + TTL_US + TTL_US / 100 + 200_000;
        while let Some(Reverse(Timed { at, event, .. })) = self.events.pop() {
            if at > after {
                break;
            }
            self.now = at;
            match event {
                Event::Look | Event::Act(..) => {}
                event => self.happen(event),
            }
        }
        for node in 0..self.nodes.len() {
            if self.nodes[node].is_held(after) || self.nodes[node].waiters() > 0 {
                self.fail(format!("left behind at node {node}"));
            }
        }
    }

    // Faults.

    fn fault(&mut self, fault: Fault) {
        self.say(|| format!("FAULT {fault:?}"));
        self.stats.faults += 1;
        match fault {
            Fault::Crash { node, forgets } => {
                if !self.nodes[node.0].up || self.now < self.steady_from[node.0] {
                    return; // two restarts within the floor's margin: not promised
                }
                self.stats.crashes += 1;
                self.stats.amnesias += u64::from(forgets);
                self.steady_from[node.0] = u64::MAX;
                let told = self.rng.chance(7_000);
                for msg in self.nodes[node.0].crash(forgets) {
                    if told && !self.is_cut(node, msg.client) {
                        let failure = Failure::new(FailureKind::Unknown, "connection closed");
                        let at = self.now + self.delay();
                        self.at(at, Event::ToClient(msg, Reply::Failed(failure)));
                    }
                }
                self.after_node(node);
            }
            Fault::Partition { node, clients } => {
                self.stats.partitions += 1;
                self.network.cut[node.0] |= clients;
            }
            Fault::ClientWall { client, to } => {
                self.stats.clock_faults += 1;
                self.clients[client].wall_offset = to;
                self.clients[client].timer = None;
                self.set_timer(client);
            }
            Fault::NodeWall { node, to } => {
                self.stats.clock_faults += 1;
                self.nodes[node.0].step_wall(to);
            }
            Fault::NodeJump { node, by } => {
                self.stats.clock_faults += 1;
                self.nodes[node.0].jump_mono(by);
                self.excused_until = self.now + TTL_US + TTL_US / 50;
                self.after_node(node);
            }
            Fault::Break => self.break_lock(),
            Fault::Pause { client } => {
                self.stats.pauses += 1;
                self.clients[client].paused_until = self.now + self.rng.range(10_000, 2 * TTL_US);
                self.set_timer(client);
            }
            Fault::LoseAnswers(count) => self.network.lose_answers += count,
        }
    }

    /// LOCK.BREAK at all nodes. Whoever holds it must notice by the next renewal.
    fn break_lock(&mut self) {
        let up = self.nodes.iter().filter(|node| node.up).count();
        let now = self.now;
        for node in 0..self.nodes.len() {
            if self.nodes[node].up {
                self.nodes[node].break_lock(now);
                self.after_node(NodeId(node));
            }
        }
        self.stats.breaks += 1;
        self.excused_until = self.now + TTL_US + TTL_US / 50;
        if up == self.nodes.len() {
            for client in &mut self.clients {
                if let Doing::Holding(holding) = &mut client.doing
                    && now - holding.since > 300_000
                {
                    holding.broken_at = Some(now);
                }
            }
        }
    }

    fn mend(&mut self, fault: Fault) {
        match fault {
            Fault::Crash { node, forgets } if !self.nodes[node.0].up => {
                self.say(|| format!("node {node:?} is back"));
                self.nodes[node.0].restart(self.now, forgets);
                self.steady_from[node.0] = self.now + FLOOR_MARGIN_US;
            }
            Fault::Partition { node, clients } => self.network.cut[node.0] &= !clients,
            _ => {}
        }
    }
}
