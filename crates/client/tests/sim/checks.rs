//! The rules, checked as it happens.

use lockfence_client::quorum::NodeId;
use lockfence_client::quorum::attempt::Outcome;
use lockfence_client::quorum::hold::Loss;
use lockfence_core::ids::Mode;

use crate::TTL_US;
use crate::client::{Doing, Use};
use crate::faults::CALM_AT;
use crate::world::{Event, World};

/// Somebody gets the lock within this time while a majority is up and somebody waits.
const PROGRESS_US: u64 = 4 * TTL_US;

/// A rule that did not hold.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) seed: u64,
    pub(crate) at: u64,
    pub(crate) what: String,
}

/// A confirmed grant.
pub(crate) struct Granted {
    confirmed: u64,
    token: u64,
    mode: Mode,
}

/// Whether two grants shut each other out.
fn exclude(one: Mode, other: Mode) -> bool {
    !(one == Mode::Shared && other == Mode::Shared)
}

impl World {
    pub(crate) fn fail(&mut self, what: String) {
        if self.plan.tell {
            eprintln!("{:>9} FAILED {what}", self.now);
        }
        if !what.starts_with(self.plan.broken.rule) {
            return;
        }
        self.report.get_or_insert(Report { seed: self.plan.seed, at: self.now, what });
    }

    pub(crate) fn won(&mut self, client: usize, began: u64, token: u64, took: u64) {
        let mode = self.clients[client].mode();
        self.say(|| format!("client {client} WON {token} {}, round began {began}", mode.name()));
        self.stats.grants += 1;
        self.stats.grants_shared += u64::from(mode == Mode::Shared);
        self.stats.longest_wait_us = self.stats.longest_wait_us.max(took);
        self.note_overtaken(client);
        self.quiet_since = None;
        let mut others = self.grants.iter().filter(|grant| exclude(grant.mode, mode));
        if let Some(same) = others.clone().find(|grant| grant.token == token) {
            self.fail(format!("token {token} was issued twice, before at {}", same.confirmed));
        } else if let Some(before) = others.find(|grant| grant.confirmed < began && grant.token > token) {
            self.fail(format!(
                "token {token} is lower than {}, confirmed at {} before this one began at {began}",
                before.token, before.confirmed
            ));
        }
        self.grants.push(Granted { confirmed: self.now, token, mode });
        self.one_holder(client);
        match self.clients[client].chosen {
            Use::Work(us) => self.act_at(client, self.now + us),
            Use::ToTheEnd | Use::Cap(_) => self.no_act(client),
        }
    }

    /// Nobody else takes the lock as held who shuts this client out.
    fn one_holder(&mut self, client: usize) {
        let (now, mode) = (self.now, self.clients[client].mode());
        let others: Vec<usize> = (0..self.clients.len())
            .filter(|other| *other != client && self.clients[*other].holds(now))
            .collect();
        self.stats.grants_together += u64::from(mode == Mode::Shared && !others.is_empty());
        if now < self.excused_until {
            return;
        }
        if let Some(other) = others.iter().find(|other| exclude(mode, self.clients[**other].mode())) {
            self.fail(format!("two holders: {other} and now {client}"));
        }
    }

    pub(crate) fn prolonged(&mut self, client: usize, proof_sent: u64) {
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

    pub(crate) fn ended(&mut self, client: usize, outcome: &Outcome) {
        self.say(|| format!("client {client} ended {outcome:?}"));
        match outcome {
            Outcome::Held(_) => self.stats.ended_held += 1,
            Outcome::TimedOut(_) => self.stats.ended_timed_out += 1,
            Outcome::NoQuorum(_) => self.stats.ended_no_quorum += 1,
            Outcome::Cancelled | Outcome::Won(_) => self.stats.cancelled += 1,
        }
        self.next_act(client);
    }

    pub(crate) fn lost(&mut self, client: usize, loss: &Loss) {
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
        if self.now < CALM_AT && self.network.is_bad() {
            return false;
        }
        let majority = self.nodes.len() / 2 + 1;
        let steady = |node: &usize| {
            self.nodes[*node].grants(self.now)
                && self.now >= self.steady_from[*node]
                && self.now >= self.network.stalled_until[*node]
        };
        self.clients.iter().any(|client| {
            let reach =
                (0..self.nodes.len()).filter(steady).filter(|node| !self.is_cut(NodeId(*node), client.id));
            matches!(client.doing, Doing::Trying(_))
                && client.paused_until < self.now
                && reach.count() >= majority
        })
    }

    pub(crate) fn look(&mut self) {
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

    /// When all is over, nothing is left.
    pub(crate) fn nothing_left(&mut self) {
        // One ttl by the slowest clock, and what is still on its way.
        let after = self.now + TTL_US + TTL_US / 100 + 2_000_000;
        while let Some((at, event)) = self.next_event() {
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
}
