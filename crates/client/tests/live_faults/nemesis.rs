//! What makes trouble: kills, stops, restarts with and without data, bad networks. By seed.
//!
//! Safety is asked for whatever it does, within what is promised: a node that comes back empty is in quarantine, and
//! comes back so at most once in a while. For the lock to be had at all, a majority must be steady: so it touches at
//! most two of the five nodes at a time, but for storms, in which nothing is spared.

use std::collections::BTreeMap;
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use lockfence_testkit::{Direction, Proxy, Server};

/// How long a node's tokens are too far ahead of the others' after a restart: docs/GUARANTEES.md, 30 s less 10 s.
const AHEAD_AFTER_START: Duration = Duration::from_secs(20);
/// Two restarts without data that are closer together may repeat tokens.
const EMPTY_APART: Duration = Duration::from_secs(40);
const QUARANTINE: &str = "lockfence.quarantine-ms 10000\n";

pub(crate) struct Nemesis<'n> {
    pub(crate) nodes: &'n [Server],
    pub(crate) proxies: &'n [Proxy],
    pub(crate) data: &'n Proxy,
    rng: u64,
    /// Until when each node counts as touched.
    touched: Vec<Instant>,
    emptied: Vec<Option<Instant>>,
    pub(crate) done: BTreeMap<&'static str, u64>,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill,
    KillTwo,
    Empty,
    Stop,
    Delay,
    Cut,
    BlackHole,
    Refuse,
    CutData,
    DelayData,
    LoseDataAnswers,
}

const MOST_LIKELY_FIRST: [(Fault, u64); 11] = [
    (Fault::Stop, 4),
    (Fault::Delay, 3),
    (Fault::Cut, 3),
    (Fault::BlackHole, 3),
    (Fault::Kill, 3),
    (Fault::Refuse, 2),
    (Fault::LoseDataAnswers, 2),
    (Fault::CutData, 1),
    (Fault::DelayData, 1),
    (Fault::KillTwo, 1),
    (Fault::Empty, 1),
];

impl<'n> Nemesis<'n> {
    pub(crate) fn new(nodes: &'n [Server], proxies: &'n [Proxy], data: &'n Proxy, seed: u64) -> Self {
        let now = Instant::now();
        Self {
            nodes,
            proxies,
            data,
            rng: seed,
            // They have just been started, but all at once: their tokens are level enough.
            touched: vec![now; nodes.len()],
            emptied: vec![None; nodes.len()],
            done: BTreeMap::new(),
        }
    }

    /// Makes trouble until `until`, and leaves everything mended.
    pub(crate) fn run(&mut self, until: Instant, storm: bool) {
        while Instant::now() < until {
            let fault = self.draw();
            self.make(fault, storm);
            sleep(self.ms(50, 400));
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        // SplitMix64.
        self.rng = self.rng.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.rng;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }

    fn ms(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }

    fn draw(&mut self) -> Fault {
        let all: u64 = MOST_LIKELY_FIRST.iter().map(|(_, weight)| weight).sum();
        let mut at = self.below(all);
        for (fault, weight) in MOST_LIKELY_FIRST {
            match at.checked_sub(weight) {
                Some(rest) => at = rest,
                None => return fault,
            }
        }
        Fault::Stop
    }

    /// Nodes that may be touched, up to `count`: two at a time, or in a storm any.
    fn pick(&mut self, count: usize, storm: bool) -> Vec<usize> {
        let now = Instant::now();
        let mut free: Vec<usize> =
            (0..self.nodes.len()).filter(|node| storm || self.touched[*node] <= now).collect();
        let touched = self.nodes.len() - free.len();
        let may = if storm { count } else { count.min(2_usize.saturating_sub(touched)) };
        let mut picked = Vec::new();
        while picked.len() < may && !free.is_empty() {
            let at = self.below(free.len() as u64) as usize;
            picked.push(free.swap_remove(at));
        }
        picked
    }

    fn make(&mut self, fault: Fault, storm: bool) {
        match fault {
            Fault::CutData => {
                self.data.cut();
                self.note("the data's connections cut");
            }
            Fault::LoseDataAnswers => {
                self.data.hold(Direction::ToClient);
                sleep(self.ms(100, 500));
                self.data.cut();
                self.data.pass();
                self.note("the data's answers lost");
            }
            Fault::DelayData => {
                self.data.delay(Direction::ToClient, self.ms(1, 60));
                sleep(self.ms(100, 500));
                self.data.pass();
                self.note("the data's answers delayed");
            }
            Fault::KillTwo => {
                let nodes = self.pick(2, storm);
                self.kill(&nodes);
            }
            fault => {
                let [node] = self.pick(1, storm)[..] else { return };
                self.make_at(fault, node);
            }
        }
    }

    fn make_at(&mut self, fault: Fault, node: usize) {
        let proxy = &self.proxies[node];
        match fault {
            Fault::Kill => self.kill(&[node]),
            Fault::Empty => self.empty(node),
            Fault::Stop => {
                self.nodes[node].pause();
                sleep(self.ms(50, 2_000));
                self.nodes[node].resume();
                self.note("SIGSTOP");
            }
            Fault::Delay => {
                let both = self.below(2) == 0;
                let by = self.ms(5, 120);
                proxy.delay(Direction::ToServer, by);
                if both {
                    proxy.delay(Direction::ToClient, by);
                }
                sleep(self.ms(200, 1_500));
                proxy.pass();
                self.note("a node delayed");
            }
            Fault::Cut => {
                proxy.cut();
                self.note("a node's connections cut");
            }
            Fault::BlackHole => {
                proxy.black_hole();
                sleep(self.ms(100, 2_000));
                if self.below(2) == 0 {
                    proxy.cut();
                }
                proxy.pass();
                self.note("a node cut off in silence");
            }
            Fault::Refuse => {
                proxy.refuse();
                sleep(self.ms(100, 1_500));
                proxy.pass();
                self.note("a node's connections refused");
            }
            Fault::KillTwo | Fault::CutData | Fault::DelayData | Fault::LoseDataAnswers => {}
        }
    }

    /// `kill -9`, and a restart with what the AOF has: all that was confirmed.
    fn kill(&mut self, nodes: &[usize]) {
        for node in nodes {
            self.nodes[*node].kill9();
            self.note("kill -9");
        }
        sleep(self.ms(20, 800));
        for node in nodes {
            self.nodes[*node].restart();
            self.touched[*node] = Instant::now() + AHEAD_AFTER_START;
        }
    }

    /// `kill -9`, and a restart without data, in quarantine.
    fn empty(&mut self, node: usize) {
        if self.emptied[node].is_some_and(|at| at.elapsed() < EMPTY_APART) {
            return;
        }
        let server = &self.nodes[node];
        server.kill9();
        fs::remove_dir_all(server.dir().join("appendonlydir")).expect("its data to go");
        let conf = server.dir().join("redis.conf");
        let usual = fs::read_to_string(&conf).expect("its settings");
        fs::write(&conf, format!("{usual}{QUARANTINE}")).expect("its settings to be written");
        server.restart();
        fs::write(&conf, usual).expect("its settings to be written");
        let mut conn = server.connect();
        let quarantine = lockfence_testkit::cmd!(conn, "CONFIG", "GET", "lockfence.quarantine-ms");
        assert!(format!("{quarantine:?}").contains("10000"), "in quarantine: {quarantine:?}");
        self.emptied[node] = Some(Instant::now());
        self.touched[node] = Instant::now() + AHEAD_AFTER_START;
        self.note("restarted empty, in quarantine");
    }

    fn note(&mut self, what: &'static str) {
        *self.done.entry(what).or_default() += 1;
    }
}
