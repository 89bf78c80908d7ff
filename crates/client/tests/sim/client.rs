//! A contender: the protocol's machines, a clock of its own, and what its program does with the lock.

use lockfence_client::quorum::attempt::{Attempt, Outcome, Patience};
use lockfence_client::quorum::give_back::GiveBack;
use lockfence_client::quorum::hold::{Hold, Loss, Terms};
use lockfence_client::quorum::{Effect, NodeId, OwnerId, Reply, Settings, Turn};
use lockfence_core::clock::{Instant, Now, Wall};
use lockfence_core::ids::Mode;

use crate::node::EPOCH_US;
use crate::rng::Rng;
use crate::{Msg, TTL_US};

/// Where this client's monotonic clock begins.
const BOOT_US: i64 = 1_000_000_000;

/// What a program does with a lock that it got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Works for so long, then releases; renewed meanwhile.
    Work(u64),
    /// Works to the end of the lease, without renewal.
    ToTheEnd,
    /// Works without end; renewed until it is lost or a cap is reached.
    Cap(u64),
}

pub(crate) struct Holding {
    pub(crate) key: u32,
    pub(crate) hold: Hold,
    pub(crate) since: u64,
    /// When an administrator broke it.
    pub(crate) broken_at: Option<u64>,
    pub(crate) valid_until: Instant,
}

pub(crate) struct Trying {
    pub(crate) key: u32,
    pub(crate) attempt: Attempt,
    pub(crate) since: u64,
    pub(crate) until: Option<Instant>,
}

pub(crate) enum Doing {
    Nothing,
    Trying(Box<Trying>),
    Holding(Box<Holding>),
}

pub(crate) struct Client {
    pub(crate) id: usize,
    pub(crate) settings: Settings,
    pub(crate) order: Vec<NodeId>,
    ppm: i64,
    pub(crate) wall_offset: i64,
    /// Planted: the wall clock where the monotonic one belongs.
    wall_for_validity: bool,
    seen: u64,
    next_key: u32,
    pub(crate) doing: Doing,
    give_backs: Vec<(u32, GiveBack)>,
    /// Attempts that are over, but for answers which say whether there is something to give back.
    over: Vec<(u32, Attempt)>,
    pub(crate) paused_until: u64,
    pub(crate) timer: Option<u64>,
    pub(crate) rng: Rng,
    /// What the program does with the lock that it holds.
    pub(crate) chosen: Use,
    /// Always works for about so long.
    pub(crate) works_for: Option<u64>,
    /// Always wants the lock shared.
    pub(crate) reads: bool,
    /// Asks for the lock once, and not again.
    pub(crate) once: bool,
    /// The first lock that it asks for is dropped after so many steps of its machines: called off, or released.
    pub(crate) drops_at: Option<u32>,
    steps: u32,
    /// By whose name it got the lock last.
    pub(crate) owner: Option<OwnerId>,
    pub(crate) won: u64,
    pub(crate) longest_wait_us: u64,
}

/// What came of a client's step, for the world to carry out and the checker to see.
pub(crate) enum Did {
    Effect(Msg, Effect),
    Won { began: u64, token: u64, took: u64 },
    Prolonged { proof_sent: u64 },
    Ended(Outcome),
    Overdue,
    Lost(Loss),
    Dropped,
}

impl Client {
    pub(crate) fn new(
        id: usize,
        settings: Settings,
        order: Vec<NodeId>,
        clocks: (i64, i64),
        wall_for_validity: bool,
        rng: Rng,
    ) -> Self {
        Self {
            id,
            settings,
            order,
            ppm: clocks.0,
            wall_offset: clocks.1,
            wall_for_validity,
            seen: 0,
            next_key: 0,
            doing: Doing::Nothing,
            give_backs: Vec::new(),
            over: Vec::new(),
            paused_until: 0,
            timer: None,
            rng,
            chosen: Use::ToTheEnd,
            works_for: None,
            reads: false,
            once: false,
            drops_at: None,
            steps: 0,
            owner: None,
            won: 0,
            longest_wait_us: 0,
        }
    }

    pub(crate) fn now(&self, now: u64) -> Now {
        let wall = EPOCH_US.saturating_add(now).saturating_add_signed(self.wall_offset);
        let mono = if self.wall_for_validity {
            BOOT_US + now as i64 + self.wall_offset
        } else {
            BOOT_US + now as i64 + now as i64 * self.ppm / 1_000_000
        };
        Now { mono: Instant::from_micros(mono), wall: Wall::from_micros(wall) }
    }

    /// The true time at which this client's clock shows `at`, rounded up.
    pub(crate) fn true_time(&self, at: Instant) -> u64 {
        let at = at.micros() - BOOT_US;
        if self.wall_for_validity {
            return (at - self.wall_offset).max(0) as u64;
        }
        (at * 1_000_000 / (1_000_000 + self.ppm)).max(0) as u64 + 1
    }

    /// How it holds, or asks for, the lock.
    pub(crate) fn mode(&self) -> Mode {
        self.settings.mode
    }

    /// Whether this client takes the lock as held.
    pub(crate) fn holds(&self, now: u64) -> bool {
        match &self.doing {
            Doing::Holding(holding) => holding.hold.valid_until(self.now(now).mono).is_some(),
            _ => false,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.doing, Doing::Nothing) && self.give_backs.is_empty() && self.over.is_empty()
    }

    /// Whether it was to ask once, and has.
    pub(crate) fn is_done(&self) -> bool {
        self.once && self.next_key > 0
    }

    fn key(&mut self) -> u32 {
        self.next_key += 1;
        self.next_key
    }

    pub(crate) fn acquire(&mut self, now: u64, mode: Mode, wait_us: Option<u64>, did: &mut Vec<Did>) {
        let time = self.now(now);
        self.settings.mode = mode;
        let patience = match wait_us {
            None => Patience::Forever,
            Some(0) => Patience::None,
            Some(us) => Patience::Until(time.mono.plus_us(us)),
        };
        let until = if let Patience::Until(at) = patience { Some(at) } else { None };
        let mut bits = || self.rng.bits();
        let mut turn = Turn { now: time, bits: &mut bits };
        let attempt = Attempt::start(self.settings, self.order.clone(), patience, self.seen, &mut turn);
        let key = self.key();
        self.doing = Doing::Trying(Box::new(Trying { key, attempt, since: now, until }));
        self.collect(now, did);
        self.maybe_drop(now, 0, did);
    }

    fn maybe_drop(&mut self, now: u64, steps: u32, did: &mut Vec<Did>) {
        let Some(drops_at) = self.drops_at else { return };
        self.steps += steps;
        if matches!(self.doing, Doing::Nothing) {
            self.drops_at = None; // it was over before
        } else if self.steps >= drops_at {
            self.drops_at = None;
            self.release(now, did);
            did.push(Did::Dropped);
        }
    }

    pub(crate) fn release(&mut self, now: u64, did: &mut Vec<Did>) {
        let time = self.now(now);
        let mut bits = || self.rng.bits();
        let mut turn = Turn { now: time, bits: &mut bits };
        match &mut self.doing {
            Doing::Holding(holding) => holding.hold.release(&mut turn),
            Doing::Trying(trying) => trying.attempt.cancel(&mut turn),
            Doing::Nothing => {}
        }
        self.collect(now, did);
        if let Doing::Holding(_) = self.doing {
            self.doing = Doing::Nothing;
        }
    }

    /// The program dies, without a word to anybody.
    pub(crate) fn die(&mut self) {
        self.doing = Doing::Nothing;
        self.give_backs.clear();
        self.over.clear();
    }

    pub(crate) fn on_reply(&mut self, now: u64, msg: Msg, reply: Reply, did: &mut Vec<Did>) {
        let time = self.now(now);
        let mut bits = || self.rng.bits();
        let mut turn = Turn { now: time, bits: &mut bits };
        match &mut self.doing {
            Doing::Trying(trying) if trying.key == msg.key => {
                trying.attempt.on_reply(&mut turn, msg.id, reply)
            }
            Doing::Holding(holding) if holding.key == msg.key => {
                holding.hold.on_reply(&mut turn, msg.id, reply)
            }
            _ => {
                for (_, give_back) in self.give_backs.iter_mut().filter(|(key, _)| *key == msg.key) {
                    give_back.on_reply(&mut turn, msg.id, &reply);
                }
                for (_, attempt) in self.over.iter_mut().filter(|(key, _)| *key == msg.key) {
                    attempt.on_reply(&mut turn, msg.id, reply.clone());
                }
            }
        }
        self.collect(now, did);
        self.maybe_drop(now, 1, did);
    }

    pub(crate) fn on_time(&mut self, now: u64, did: &mut Vec<Did>) {
        let time = self.now(now);
        let mut bits = || self.rng.bits();
        let mut turn = Turn { now: time, bits: &mut bits };
        match &mut self.doing {
            Doing::Trying(trying) => trying.attempt.on_time(&mut turn),
            Doing::Holding(holding) => holding.hold.on_time(&mut turn),
            Doing::Nothing => {}
        }
        for (_, give_back) in &mut self.give_backs {
            if give_back.deadline().is_some_and(|at| at <= time.mono) {
                give_back.on_time(&mut turn);
            }
        }
        for (_, attempt) in &mut self.over {
            attempt.on_time(&mut turn);
        }
        self.collect(now, did);
        self.maybe_drop(now, 1, did);
    }

    pub(crate) fn deadline(&self) -> Option<u64> {
        let doing = match &self.doing {
            Doing::Trying(trying) => trying.attempt.deadline(),
            Doing::Holding(holding) => holding.hold.deadline(),
            Doing::Nothing => None,
        };
        let give_backs = self.give_backs.iter().filter_map(|(_, give_back)| give_back.deadline());
        let over = self.over.iter().filter_map(|(_, attempt)| attempt.deadline());
        give_backs.chain(over).chain(doing).min().map(|at| self.true_time(at))
    }

    /// Fetches what the machines want done, and what became of them.
    fn collect(&mut self, now: u64, did: &mut Vec<Did>) {
        let time = self.now(now);
        let mode = self.settings.mode;
        let mut new_give_backs = Vec::new();
        let mut effect_of = |key: u32, effect: Effect, did: &mut Vec<Did>| match effect {
            Effect::GiveBack(give_back) => new_give_backs.push(*give_back),
            Effect::Send { id, .. } | Effect::Abandon(id) => {
                did.push(Did::Effect(Msg { client: self.id, key, id, mode }, effect));
            }
        };
        match &mut self.doing {
            Doing::Trying(trying) => {
                while let Some(effect) = trying.attempt.effect() {
                    effect_of(trying.key, effect, did);
                }
            }
            Doing::Holding(holding) => {
                while let Some(effect) = holding.hold.effect() {
                    effect_of(holding.key, effect, did);
                }
            }
            Doing::Nothing => {}
        }
        for (key, attempt) in &mut self.over {
            while let Some(effect) = attempt.effect() {
                effect_of(*key, effect, did);
            }
        }
        self.over.retain(|(_, attempt)| attempt.deadline().is_some());
        for mut give_back in new_give_backs {
            let key = self.key();
            let mut bits = || self.rng.bits();
            give_back.on_time(&mut Turn { now: time, bits: &mut bits });
            self.give_backs.push((key, give_back));
        }
        for (key, give_back) in &mut self.give_backs {
            while let Some(effect) = give_back.effect() {
                if let Effect::Send { id, .. } = effect {
                    did.push(Did::Effect(Msg { client: self.id, key: *key, id, mode }, effect));
                }
            }
        }
        self.give_backs.retain(|(_, give_back)| !give_back.is_over());
        self.outcome(now, did);
    }

    fn outcome(&mut self, now: u64, did: &mut Vec<Did>) {
        let mono = self.now(now).mono;
        let resumed = self.paused_until > 0 && now < self.paused_until + 10_000;
        match &mut self.doing {
            Doing::Trying(trying) => {
                let late = trying.until.is_some_and(|until| until.plus_us(50_000) < mono);
                let (overdue, since) = (late && !resumed, trying.since);
                match trying.attempt.outcome() {
                    Some(Outcome::Won(grant)) => {
                        self.won += 1;
                        self.longest_wait_us = self.longest_wait_us.max(now - since);
                        self.seen = self.seen.max(grant.token);
                        let began = self.true_time(grant.started).saturating_sub(2);
                        did.push(Did::Won { began, token: grant.token, took: now - since });
                        self.hold(now, &grant);
                    }
                    Some(outcome) => {
                        if overdue {
                            did.push(Did::Overdue);
                        }
                        if let Doing::Trying(trying) = std::mem::replace(&mut self.doing, Doing::Nothing)
                            && trying.attempt.deadline().is_some()
                        {
                            self.over.push((trying.key, trying.attempt));
                        }
                        did.push(Did::Ended(outcome));
                    }
                    None if overdue => did.push(Did::Overdue),
                    None => {}
                }
            }
            Doing::Holding(holding) => {
                let valid_until = holding.hold.valid_until(Instant::from_micros(i64::MIN));
                if let Some(until) = valid_until.filter(|until| *until != holding.valid_until) {
                    holding.valid_until = until;
                    let (ttl, drift) = (TTL_US, TTL_US / 100 + 2_000);
                    let proof_sent = self.true_time(until.minus_us(ttl - drift));
                    did.push(Did::Prolonged { proof_sent });
                }
                let Doing::Holding(holding) = &mut self.doing else { return };
                if let Some(loss) = holding.hold.loss() {
                    self.doing = Doing::Nothing;
                    did.push(Did::Lost(loss));
                }
            }
            Doing::Nothing => {}
        }
    }

    fn hold(&mut self, now: u64, grant: &lockfence_client::quorum::attempt::Grant) {
        let time = self.now(now);
        let chosen = self.choose_use();
        let hold_until = if let Use::Cap(us) = chosen { Some(time.mono.plus_us(us)) } else { None };
        let terms = Terms { renew: chosen != Use::ToTheEnd, hold_until };
        let mut bits = || self.rng.bits();
        let mut turn = Turn { now: time, bits: &mut bits };
        let hold = Hold::new(self.settings, self.order.clone(), grant, terms, &mut turn);
        let key = self.key();
        let valid_until = hold.valid_until(Instant::from_micros(i64::MIN)).unwrap_or(grant.valid_until);
        self.doing =
            Doing::Holding(Box::new(Holding { key, hold, since: now, broken_at: None, valid_until }));
        self.chosen = chosen;
        self.owner = Some(grant.owner);
    }

    fn choose_use(&mut self) -> Use {
        if let Some(us) = self.works_for {
            return Use::Work(self.rng.range(us / 2, us));
        }
        match self.rng.range(0, 100) {
            0..60 => Use::Work(self.rng.range(5_000, 600_000)),
            60..75 => Use::Work(self.rng.range(600_000, 3 * TTL_US)),
            75..88 => Use::ToTheEnd,
            _ => Use::Cap(self.rng.range(TTL_US / 2, 3 * TTL_US)),
        }
    }
}
