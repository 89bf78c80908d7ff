//! The world: time, events, and what its inhabitants do.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use lockfence_client::quorum::planted::{Bug, Planted};
use lockfence_client::quorum::{Command, Effect, NodeId, Reply, Settings, order};
use lockfence_core::ids::Mode;
use lockfence_core::token::TokenSource;

use crate::checks::{Granted, Report};
use crate::client::{Client, Did, Doing};
use crate::faults::{CALM_AT, Fault};
use crate::network::Network;
use crate::node::{Make, Node, NodeBug};
use crate::rng::Rng;
use crate::stats::{Stats, Tally};
use crate::{Msg, TTL_US};

/// No new attempts from here, once enough grants were made.
const NO_MORE_AT: u64 = 45_000_000;
const GRANTS_WANTED: u64 = 5;
/// Nothing goes on for longer.
const END_AT: u64 = 400_000_000;
const LOOK_EVERY_US: u64 = 500_000;

/// What is broken on purpose, or set otherwise than usual.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Broken {
    pub(crate) protocol: Option<Bug>,
    pub(crate) node: Option<NodeBug>,
    pub(crate) wall_clock: bool,
    /// How far above its clock a node puts its floor at a restart, µs.
    pub(crate) floor_margin_us: Option<u64>,
    /// Nodes that come back without their data grant at once: exclusion is lost, but tokens must rise.
    pub(crate) no_quarantine: bool,
    /// The only rule that counts: how its report begins.
    pub(crate) rule: &'static str,
}

#[derive(Debug)]
pub(crate) enum Event {
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

/// How a world is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) broken: Broken,
    /// Tells its story on stderr.
    pub(crate) tell: bool,
    pub(crate) nodes: usize,
    pub(crate) clients: usize,
}

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) now: u64,
    seq: u64,
    pub(crate) rng: Rng,
    events: BinaryHeap<Reverse<Timed>>,
    pub(crate) nodes: Vec<Node>,
    /// From when each node counts as over its last restart.
    pub(crate) steady_from: Vec<u64>,
    /// When each node's wall clock was last moved.
    pub(crate) stepped_at: Vec<u64>,
    node_timers: Vec<Option<u64>>,
    pub(crate) clients: Vec<Client>,
    acts: Vec<u64>,
    /// Nodes lose nothing that they have confirmed.
    pub(crate) durable: bool,
    /// How many attempts of ten thousand are for a shared lock.
    shared: u64,
    /// So many confirms are yet to be held up while the lease that they are about is lost.
    pub(crate) ambushes: u32,
    pub(crate) network: Network,
    pub(crate) grants: Vec<Granted>,
    pub(crate) excused_until: u64,
    pub(crate) quiet_since: Option<u64>,
    did: Vec<Did>,
    pub(crate) answers: Vec<(Msg, Reply)>,
    pub(crate) stats: Stats,
    pub(crate) report: Option<Report>,
    pub(crate) crowded: bool,
    /// How often each client had got the lock when each asked for it the last time.
    won_before: Vec<Vec<u64>>,
    /// How often one client got the lock while another waited, at the most.
    pub(crate) overtaken: u64,
    pub(crate) dropped_at: Option<u64>,
}

impl World {
    pub(crate) fn new(seed: u64, broken: Broken, tell: bool) -> Self {
        let mut rng = Rng::new(seed);
        let nodes = [1, 3, 3, 3, 3, 3, 5, 4][rng.range(0, 8) as usize];
        let clients = rng.range(3, 6) as usize;
        let mut world = Self::of_size(rng, Plan { seed, broken, tell, nodes, clients });
        world.shared = [0, 0, 3_000, 6_000, 9_000][world.rng.range(0, 5) as usize];
        for client in 0..world.clients.len() {
            let at = world.rng.range(0, 600_000);
            world.act_at(client, at);
        }
        world.at(0, Event::Look);
        world.plan_faults();
        world
    }

    /// Three nodes, contenders that come back at once, and no faults. The first `readers` of them want it shared.
    pub(crate) fn crowded(seed: u64, clients: usize, readers: usize) -> Self {
        let plan = Plan { seed, broken: Broken::default(), tell: false, nodes: 3, clients };
        let mut world = Self::of_size(Rng::new(seed), plan);
        world.network.calm();
        world.crowded = true;
        for client in 0..world.clients.len() {
            world.clients[client].settings.wait_slice_ms = None; // each slice loses the place in the queue
            world.clients[client].works_for = Some(if seed.is_multiple_of(2) { 50_000 } else { 600_000 });
            world.clients[client].reads = client < readers;
            world.act_at(client, 0);
        }
        world
    }

    /// The same with the first node of the lock's order gone for a while.
    pub(crate) fn crowded_with_a_queue_node_that_comes_back(
        seed: u64,
        clients: usize,
        bug: Option<Bug>,
        slice_ms: Option<u64>,
    ) -> Self {
        let mut world = Self::crowded(seed, clients, 0);
        world.clients.iter_mut().for_each(|client| client.settings.wait_slice_ms = slice_ms);
        if let Some(bug) = bug {
            world.clients.iter_mut().for_each(|client| client.settings.planted = Planted::bug(bug));
        }
        let crash = Fault::Crash { node: world.clients[0].order[0], forgets: false };
        world.at(5_000_000, Event::Fault(crash));
        world.at(7_000_000, Event::Mend(crash));
        world
    }

    pub(crate) fn of_size(mut rng: Rng, plan: Plan) -> Self {
        let Plan { seed, broken, nodes: node_count, clients: client_count, .. } = plan;
        let skew = [20_000, 150_000, 2_500_000][rng.range(0, 3) as usize];
        let dense = rng.chance(3_000) && !broken.no_quarantine;
        let source = if dense { TokenSource::Dense } else { TokenSource::Clock };
        // Dense tokens rise only as far as the data survives.
        let durable = dense || (rng.chance(3_000) && !broken.no_quarantine);
        // The longest lease, slow clocks included.
        let without = (durable && rng.chance(5_000)) || broken.no_quarantine;
        let quarantine_ms = if without { 0 } else { (TTL_US + TTL_US / 50) / 1000 };
        let make = |_| {
            let (ppm, wall_offset) = (rng.around(3_000), rng.around(skew));
            let Broken { node: bug, floor_margin_us, .. } = broken;
            Node::new(Make { ppm, wall_offset, quarantine_ms, source, floor_margin_us, bug })
        };
        let nodes = (0..node_count).map(make).collect();
        let mut settings = Settings::new(node_count, TTL_US / 1000);
        if rng.chance(1_000) {
            settings.wait_slice_ms = Some(rng.range(500, 4_000));
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
        Self {
            plan,
            now: 0,
            seq: 0,
            network: Network::draw(&mut rng, node_count),
            rng,
            events: BinaryHeap::new(),
            nodes,
            steady_from: vec![0; node_count],
            stepped_at: vec![0; node_count],
            node_timers: vec![None; node_count],
            clients,
            acts: vec![0; client_count],
            durable,
            shared: 0,
            ambushes: 0,
            grants: Vec::new(),
            excused_until: 0,
            quiet_since: None,
            did: Vec::new(),
            answers: Vec::new(),
            stats: Stats { worlds: 1, ..Stats::default() },
            report: None,
            crowded: false,
            won_before: vec![vec![0; client_count]; client_count],
            overtaken: 0,
            dropped_at: None,
        }
    }

    pub(crate) fn run(&mut self) {
        while self.report.is_none() {
            let Some((at, event)) = self.next_event() else { break };
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
    }

    pub(crate) fn next_event(&mut self) -> Option<(u64, Event)> {
        self.events.pop().map(|Reverse(Timed { at, event, .. })| (at, event))
    }

    fn is_over(&self) -> bool {
        self.now >= NO_MORE_AT
            && self.stats.grants >= GRANTS_WANTED
            && self.clients.iter().all(Client::is_idle)
    }

    /// How often each client got the lock.
    pub(crate) fn won_by_each(&self) -> Vec<u64> {
        self.clients.iter().map(|client| client.won).collect()
    }

    /// A client has got the lock: who got it how often meanwhile?
    pub(crate) fn note_overtaken(&mut self, client: usize) {
        let since =
            self.won_by_each().into_iter().zip(&self.won_before[client]).map(|(now, before)| now - before);
        let others = since.enumerate().filter(|(other, _)| *other != client).map(|(_, won)| won);
        self.overtaken = self.overtaken.max(others.max().unwrap_or(0));
    }

    /// What this world has had.
    pub(crate) fn tally(&self) -> Tally {
        Tally {
            seed: self.plan.seed,
            nodes: self.plan.nodes,
            contenders: self.plan.clients,
            grants: self.stats.grants,
            shared: self.stats.grants_shared,
            faults: self.stats.faults,
            unknown: self.stats.unknown,
        }
    }

    pub(crate) fn say(&self, what: impl FnOnce() -> String) {
        if self.plan.tell {
            eprintln!("{:>9} {}", self.now, what());
        }
    }

    pub(crate) fn at(&mut self, at: u64, event: Event) {
        self.seq += 1;
        self.events.push(Reverse(Timed { at: at.max(self.now), seq: self.seq, event }));
    }

    pub(crate) fn happen(&mut self, event: Event) {
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

    pub(crate) fn set_node_timer(&mut self, node: NodeId) {
        let wakes_at = if self.nodes[node.0].up { self.nodes[node.0].wakes_at(self.now) } else { None };
        if wakes_at != self.node_timers[node.0] {
            self.node_timers[node.0] = wakes_at;
            if let Some(at) = wakes_at {
                self.at(at, Event::NodeTimer(node));
            }
        }
    }

    pub(crate) fn is_paused(&self, client: usize) -> bool {
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

    pub(crate) fn act_at(&mut self, client: usize, at: u64) {
        self.acts[client] += 1;
        let number = self.acts[client];
        self.at(at, Event::Act(client, number));
    }

    /// Whatever its program had in mind, it does not do it.
    pub(crate) fn no_act(&mut self, client: usize) {
        self.acts[client] += 1;
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
            if !self.clients[client].is_done() && (now < NO_MORE_AT || self.stats.grants < GRANTS_WANTED) {
                self.ask(client, &mut did);
            }
        } else if dies {
            self.say(|| format!("client {client} dies"));
            self.stats.died += 1;
            self.clients[client].die();
            let at = now + self.rng.range(10_000, 5_000_000);
            self.act_at(client, at);
        } else {
            self.say(|| format!("client {client} releases or calls it off"));
            self.clients[client].release(now, &mut did);
            self.next_act(client);
        }
        self.after_client(client, did);
    }

    fn ask(&mut self, client: usize, did: &mut Vec<Did>) {
        let now = self.now;
        let wait = match self.rng.range(0, 10) {
            _ if self.crowded => None,
            0 => Some(0),
            1..4 => Some(self.rng.range(50_000, 15_000_000)),
            _ => None,
        };
        let shared = self.clients[client].reads || (self.shared > 0 && self.rng.chance(self.shared));
        let mode = if shared { Mode::Shared } else { Mode::Exclusive };
        self.say(|| format!("client {client} asks, {} wait {wait:?}", mode.name()));
        self.won_before[client] = self.won_by_each();
        self.clients[client].acquire(now, mode, wait, did);
        if !self.crowded && self.rng.chance(800) {
            let at = now + self.rng.range(1_000, 2_000_000);
            self.act_at(client, at);
        }
    }

    pub(crate) fn next_act(&mut self, client: usize) {
        let pause = if self.crowded {
            self.rng.range(0, 10_000) * (self.plan.seed % 3)
        } else if self.rng.chance(3_000) {
            self.rng.range(500_000, 4_000_000)
        } else {
            self.rng.range(0, 300_000)
        };
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
                Did::Dropped => {
                    self.say(|| format!("client {client} DROPS it"));
                    self.dropped_at = Some(self.now);
                    self.next_act(client);
                }
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

    pub(crate) fn set_timer(&mut self, client: usize) {
        let paused_until = self.clients[client].paused_until;
        let at = self.clients[client].deadline().map(|at| at.max(self.now + 1).max(paused_until));
        if at != self.clients[client].timer {
            self.clients[client].timer = at;
            if let Some(at) = at {
                self.at(at, Event::ClientTimer(client));
            }
        }
    }
}
