//! A tiny model of a node, written from the contract of the commands, not from the core's code: one lock, its counter,
//! its queue, its clocks, and what a crash does to them.

use std::collections::VecDeque;

use lockfence_client::quorum::{Command, Failure, FailureKind, OwnerId, Reply, Standing};

use crate::{Msg, TTL_US};

/// The contract's 10 s and 30 s, shortened in proportion.
pub(crate) const PROPOSAL_AHEAD_US: u64 = 1_000_000;
pub(crate) const FLOOR_MARGIN_US: u64 = 3_000_000;
/// The wall clock at the beginning of the world.
pub(crate) const EPOCH_US: u64 = 1_764_428_400_000_000;

/// A node that breaks the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeBug {
    /// EXTEND without a live lease grants a new one, when it confirms (MINTOKEN).
    ExtendReacquiresInConfirm,
    /// The same, when it renews.
    ExtendReacquiresInRenewal,
    /// It comes back without its data and grants at once, from a counter that starts anew.
    ForgetsAndGrants,
}

struct Lease {
    owner: OwnerId,
    token: u64,
    ends: i64,
}

struct Waiter {
    msg: Msg,
    owner: OwnerId,
    min: u64,
    until: Option<i64>,
}

pub(crate) struct Node {
    bug: Option<NodeBug>,
    /// Tokens count 1, 2, 3 … (`lockfence.tokens dense`).
    dense: bool,
    ppm: i64,
    /// How far its monotonic clock was moved: a fault that no clock should have.
    jumped: i64,
    wall_offset: i64,
    pub(crate) up: bool,
    quarantine_us: i64,
    grants_from: i64,
    lease: Option<Lease>,
    counter: u64,
    high: u64,
    floor: u64,
    queue: VecDeque<Waiter>,
}

impl Node {
    pub(crate) fn new(
        ppm: i64,
        wall_offset: i64,
        quarantine_us: i64,
        dense: bool,
        bug: Option<NodeBug>,
    ) -> Self {
        Self {
            bug,
            dense,
            ppm,
            jumped: 0,
            wall_offset,
            up: true,
            quarantine_us,
            grants_from: 0,
            lease: None,
            counter: 0,
            high: 0,
            floor: 0,
            queue: VecDeque::new(),
        }
    }

    fn mono(&self, now: u64) -> i64 {
        now as i64 + now as i64 * self.ppm / 1_000_000 + self.jumped
    }

    /// The true time at which the node's clock shows `mono`.
    fn true_time(&self, mono: i64) -> u64 {
        ((mono - self.jumped) * 1_000_000 / (1_000_000 + self.ppm)).max(0) as u64 + 1
    }

    fn wall(&self, now: u64) -> u64 {
        EPOCH_US.saturating_add(now).saturating_add_signed(self.wall_offset)
    }

    pub(crate) fn step_wall(&mut self, to: i64) {
        self.wall_offset = to;
    }

    pub(crate) fn jump_mono(&mut self, by: i64) {
        self.jumped += by;
    }

    fn live(&self, now: u64) -> Option<&Lease> {
        self.lease.as_ref().filter(|lease| self.mono(now) < lease.ends)
    }

    pub(crate) fn is_held(&self, now: u64) -> bool {
        self.up && self.live(now).is_some()
    }

    pub(crate) fn waiters(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn grants(&self, now: u64) -> bool {
        self.up && self.mono(now) >= self.grants_from
    }

    /// A crash: the queue is lost, and without its memory everything else, too. Returns whom the end of its connection
    /// tells.
    pub(crate) fn crash(&mut self, forgets: bool) -> Vec<Msg> {
        self.up = false;
        if forgets {
            (self.lease, self.counter, self.high, self.floor) = (None, 0, 0, 0);
        }
        self.queue.drain(..).map(|waiter| waiter.msg).collect()
    }

    pub(crate) fn restart(&mut self, now: u64, forgot: bool) {
        self.up = true;
        if forgot && self.bug == Some(NodeBug::ForgetsAndGrants) {
            return;
        }
        self.grants_from = self.mono(now) + self.quarantine_us;
        if !self.dense {
            self.floor = self.floor.max(self.high).max(self.wall(now)) + FLOOR_MARGIN_US;
        }
    }

    /// An administrator's LOCK.BREAK.
    pub(crate) fn break_lock(&mut self, now: u64) {
        self.counter = self.next_token(now, 0);
        self.high = self.high.max(self.counter);
        self.lease = None;
    }

    pub(crate) fn close(&mut self, msg: Msg) {
        self.queue.retain(|waiter| waiter.msg != msg);
    }

    fn base(&self, now: u64) -> u64 {
        if self.dense { self.high } else { self.wall(now).max(self.floor) }
    }

    fn next_token(&self, now: u64, min: u64) -> u64 {
        let base = if self.dense { 0 } else { self.base(now) };
        (self.counter + 1).max(base).max(min)
    }

    fn grant(&mut self, now: u64, owner: OwnerId, min: u64) -> u64 {
        let token = self.next_token(now, min);
        self.counter = token;
        self.high = self.high.max(token);
        self.lease = Some(Lease { owner, token, ends: self.mono(now) + TTL_US as i64 });
        token
    }

    fn raise(&mut self, min: u64) -> u64 {
        let lease = self.lease.as_mut().expect("a live lease");
        lease.token = lease.token.max(min);
        self.counter = self.counter.max(lease.token);
        self.high = self.high.max(lease.token);
        lease.token
    }

    /// Carries out a request. `None`: it waits. Answers to others that come of it are in `answers`.
    pub(crate) fn handle(
        &mut self,
        now: u64,
        msg: Msg,
        command: Command,
        answers: &mut Vec<(Msg, Reply)>,
    ) -> Option<Reply> {
        self.serve(now, answers);
        let reply = match command {
            Command::Acquire { owner, min_token, wait_ms } => {
                self.acquire(now, msg, owner, min_token, wait_ms)
            }
            Command::Extend { owner, min_token } => Some(self.extend(now, owner, min_token)),
            Command::Release { owner } => {
                let held = self.live(now).is_some_and(|lease| lease.owner == owner);
                if held {
                    self.lease = None;
                }
                Some(Reply::Done(held))
            }
            Command::Look => Some(Reply::Standing(self.standing(now))),
        };
        self.serve(now, answers);
        reply
    }

    fn too_far(&self, now: u64, min: Option<u64>) -> bool {
        min.is_some_and(|min| min > (self.base(now) + PROPOSAL_AHEAD_US).max(self.counter))
    }

    fn acquire(
        &mut self,
        now: u64,
        msg: Msg,
        owner: OwnerId,
        min: Option<u64>,
        wait_ms: Option<u64>,
    ) -> Option<Reply> {
        if self.too_far(now, min) {
            return Some(Reply::Failed(Failure::new(FailureKind::TooFarAhead, "too far ahead")));
        }
        let min = min.unwrap_or(0);
        if self.live(now).is_some_and(|lease| lease.owner == owner) {
            let ends = self.mono(now) + TTL_US as i64;
            let token = self.raise(min);
            let lease = self.lease.as_mut().expect("a live lease");
            lease.ends = lease.ends.max(ends);
            return Some(Reply::Granted { token });
        }
        let quarantined = self.mono(now) < self.grants_from;
        if quarantined && wait_ms.is_none() && self.live(now).is_none() && self.queue.is_empty() {
            return Some(Reply::Failed(Failure::new(FailureKind::Refused, "quarantine")));
        }
        if self.live(now).is_none() && self.queue.is_empty() && !quarantined {
            return Some(Reply::Granted { token: self.grant(now, owner, min) });
        }
        let Some(wait_ms) = wait_ms else { return Some(Reply::Standing(self.standing(now))) };
        let until = (wait_ms > 0).then(|| self.mono(now) + wait_ms as i64 * 1000);
        self.queue.push_back(Waiter { msg, owner, min, until });
        None
    }

    fn extend(&mut self, now: u64, owner: OwnerId, min: Option<u64>) -> Reply {
        if self.too_far(now, min) {
            return Reply::Failed(Failure::new(FailureKind::TooFarAhead, "too far ahead"));
        }
        if self.live(now).is_some_and(|lease| lease.owner == owner) {
            self.raise(min.unwrap_or(0));
            let ends = self.mono(now) + TTL_US as i64;
            self.lease.as_mut().expect("a live lease").ends = ends;
            return Reply::Done(true);
        }
        let bug = match min {
            Some(_) => NodeBug::ExtendReacquiresInConfirm,
            None => NodeBug::ExtendReacquiresInRenewal,
        };
        if self.bug == Some(bug) && self.live(now).is_none() && self.queue.is_empty() && self.grants(now) {
            self.grant(now, owner, min.unwrap_or(0));
            return Reply::Done(true);
        }
        Reply::Done(false)
    }

    fn standing(&self, now: u64) -> Standing {
        Standing {
            owner: self.live(now).map(|lease| lease.owner.to_string().into_bytes()),
            ttl_ms: self.live(now).map_or(0, |lease| (lease.ends - self.mono(now)) as u64 / 1000),
            waiters: self.queue.len() as u64,
        }
    }

    /// Grants the lock to the head of the queue if it is free, and answers those whose time is over.
    pub(crate) fn serve(&mut self, now: u64, answers: &mut Vec<(Msg, Reply)>) {
        let mono = self.mono(now);
        if self.queue.is_empty() {
            return;
        }
        let standing = self.standing(now);
        self.queue.retain(|waiter| {
            let over = waiter.until.is_some_and(|until| until <= mono);
            if over {
                answers.push((waiter.msg, Reply::Standing(standing.clone())));
            }
            !over
        });
        if mono < self.grants_from {
            return;
        }
        while let Some(front) = self.queue.front() {
            let (owner, min) = (front.owner, front.min);
            let token = match self.live(now) {
                Some(lease) if lease.owner == owner => self.raise(min),
                Some(_) => return,
                None => self.grant(now, owner, min),
            };
            // Every queued request of that owner is answered.
            self.queue.retain(|waiter| {
                let answered = waiter.owner == owner;
                if answered {
                    answers.push((waiter.msg, Reply::Granted { token }));
                }
                !answered
            });
        }
    }

    /// The next time at which something happens by itself.
    pub(crate) fn wakes_at(&self, now: u64) -> Option<u64> {
        if self.queue.is_empty() {
            return None;
        }
        let free = self.live(now).map_or(self.grants_from, |lease| lease.ends.max(self.grants_from));
        let waits = self.queue.iter().filter_map(|waiter| waiter.until).min().unwrap_or(i64::MAX);
        Some(self.true_time(free.min(waits)).max(now + 1))
    }
}
