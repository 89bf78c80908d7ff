//! Which token a grant gets: the rule of docs/GUARANTEES.md, "Tokens that survive what the data does not".
//!
//! A hybrid logical clock (Kulkarni et al., "Logical Physical Clocks", 2014) that keeps the counter in the lock's
//! record while there is one, and falls back on one number for the whole server when there is none.

use crate::clock::Now;
use crate::error::Refusal;
use crate::ids::Token;
use crate::limits;
use crate::lock::Lock;
use crate::planted::{self, Bug};

/// Where tokens come from (`lockfence.tokens`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TokenSource {
    /// The wall clock in µs, nudged up where needed: tokens rise whatever is lost.
    #[default]
    Clock,
    /// 1, 2, 3 … for each server: tokens rise only as far as the data survives.
    Dense,
}

/// A restart floor as it is stored and sent: tokens below it are not issued any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Floor {
    /// The floor.
    pub token: u64,
    /// When it was raised, by the wall clock in µs.
    pub raised_at: u64,
}

impl Floor {
    /// What was issued under this floor until `wall` lies below this plus the margin of 30 s, proposals apart.
    ///
    /// Under a floor tokens count up from it, one a grant, until the clock has passed it; no server grants more than one
    /// lock a microsecond. Half of the time that has passed is enough with the margin, and the clock overtakes it: starts
    /// that are a minute apart do not add up. The time is bounded, because it may come from a file.
    const fn end(self, wall: u64) -> u64 {
        let passed = wall.saturating_sub(self.raised_at);
        let passed = if passed > limits::FLOOR_AGE_US { limits::FLOOR_AGE_US } else { passed };
        self.token.saturating_add(passed / 2)
    }
}

/// Issues the tokens of all locks of one server.
#[derive(Clone, Debug)]
pub struct Issuer {
    source: TokenSource,
    /// The highest token this server has ever issued or loaded.
    high: u64,
    /// Raised at every start, load and promotion; base is never below it.
    floor: u64,
    /// What the floor is raised from: the highest floor under which tokens may have been issued.
    used_floor: Floor,
    /// When `floor` was raised, by the wall clock in µs.
    raised_at: u64,
    /// The latest wall clock reading so far, µs: caps must not follow a clock that is set back.
    latest: u64,
    /// Raised when records of other names may have taken the place of known ones (SWAPDB). The last one does not end.
    epoch: u16,
}

impl Issuer {
    /// An issuer that knows nothing yet.
    #[must_use]
    pub const fn new(source: TokenSource) -> Self {
        Self {
            source,
            high: 0,
            floor: 0,
            used_floor: Floor { token: 0, raised_at: 0 },
            raised_at: 0,
            latest: 0,
            epoch: 1,
        }
    }

    /// The highest token this server has issued or loaded; 0 when none.
    #[must_use]
    pub const fn high(&self) -> u64 {
        self.high
    }

    /// The restart floor; 0 when there is none (dense tokens).
    #[must_use]
    pub const fn floor(&self) -> Floor {
        Floor { token: self.floor, raised_at: self.raised_at }
    }

    /// base = max(wall clock in µs, restart floor); nothing in dense mode.
    fn base(&self, now: Now) -> u64 {
        match self.source {
            TokenSource::Clock => now.wall.micros().max(self.floor),
            TokenSource::Dense => 0,
        }
    }

    /// The base that caps are measured from: never moves back while the process lives.
    fn base_of_caps(&self, now: Now) -> u64 {
        match self.source {
            TokenSource::Clock => self.base(now).max(self.latest),
            // Not *high*: it would rise with each grant on a crafted record, without end. The clock is above all that a
            // server with clock tokens has issued, whose data this one may have taken over.
            TokenSource::Dense => now.wall.micros().max(self.latest),
        }
    }

    /// The token of the next grant of `lock`, at least `min`.
    ///
    /// # Errors
    /// [`Refusal::Exhausted`] above 2^53-1.
    pub fn next(&self, lock: &Lock, min: Option<Token>, now: Now) -> Result<Token, Refusal> {
        let mut number = lock.counter.saturating_add(u64::from(!planted::is(Bug::TokenNotRaised)));
        let vouched_for = lock.epoch == self.epoch && self.epoch != u16::MAX;
        if !vouched_for && !planted::is(Bug::TokenRestartsAfterDelete) {
            number = number.max(self.high.saturating_add(1));
        }
        number = number.max(self.base(now)).max(min.map_or(0, Token::get));
        Token::new(number).ok_or(Refusal::Exhausted)
    }

    /// Whether a proposal may be followed: at most 10 s ahead of base, or not above what the lock has issued anyway.
    ///
    /// # Errors
    /// [`Refusal::ProposalTooFarAhead`].
    pub fn admit(&self, proposed: Option<Token>, counter: u64, now: Now) -> Result<(), Refusal> {
        let Some(proposed) = proposed else { return Ok(()) };
        let highest = self.proposals_from(now).saturating_add(limits::PROPOSAL_AHEAD_US).max(counter);
        if proposed.get() > highest {
            return Err(Refusal::ProposalTooFarAhead { proposed, highest });
        }
        Ok(())
    }

    /// What proposals are measured from.
    fn proposals_from(&self, now: Now) -> u64 {
        match self.source {
            TokenSource::Clock => self.base(now),
            TokenSource::Dense => self.high,
        }
    }

    /// Whether `lock`'s record may go without a trace: whoever gets that name next is above its counter all the same. A
    /// record that was issued elsewhere may be ahead of all that this server would issue.
    #[must_use]
    pub fn covers(&self, lock: &Lock, now: Now) -> bool {
        self.next(&Lock::default(), None, now).is_ok_and(|anew| anew.get() > lock.counter)
    }

    fn see_clock(&mut self, now: Now) {
        self.latest = self.latest.max(now.wall.micros());
    }

    /// Takes note of a token that was issued here.
    pub fn issued(&mut self, token: u64, now: Now) {
        self.used_floor = self.floor();
        self.fold(token, now);
    }

    /// Takes note of a token that was issued by the primary that this server follows.
    pub fn followed(&mut self, token: u64, now: Now) {
        if !planted::is(Bug::HighNotRaised) {
            self.fold(token, now);
        }
    }

    fn fold(&mut self, token: u64, now: Now) {
        self.see_clock(now);
        self.high = self.high.max(token.min(self.leap(now)));
    }

    /// How far one grant may raise *high*: as far as a grant can go that follows the rule, whatever *high* is. A lock
    /// without a record gets *high* + 1: were that not counted, it would be issued again.
    fn leap(&self, now: Now) -> u64 {
        let proposed = self.proposals_from(now).max(self.base_of_caps(now));
        let proposed = proposed.saturating_add(limits::PROPOSAL_AHEAD_US);
        limits::LEAP_MAX.max(proposed).max(self.high.saturating_add(1)).min(limits::TOKEN_MAX)
    }

    /// Takes note of a counter in a record that was read: it raises *high* at most to base + 60 s, so that a crafted
    /// payload cannot use up everybody's numbers.
    pub fn loaded(&mut self, counter: u64, now: Now) {
        if planted::is(Bug::HighNotRaised) {
            return;
        }
        self.see_clock(now);
        let cap = self.base_of_caps(now).saturating_add(limits::LOADED_AHEAD_US).min(limits::TOKEN_MAX);
        self.high = self.high.max(counter.min(cap));
    }

    /// Takes over what another incarnation of this server's data knew (the aux part of an RDB file).
    pub fn restored(&mut self, high: u64, floor: Floor, now: Now) {
        self.see_clock(now);
        self.high = self.high.max(high.min(limits::RESTORED_MAX));
        self.learn_floor(floor, now);
    }

    /// Takes over the floor of the primary that this server follows.
    pub fn learn_floor(&mut self, floor: Floor, now: Now) {
        if self.source == TokenSource::Dense {
            return;
        }
        let wall = now.wall.micros();
        let floor = Floor { token: floor.token.min(limits::RESTORED_MAX), raised_at: floor.raised_at };
        if floor.end(wall) > self.used_floor.end(wall) {
            self.used_floor = floor;
        }
        if floor.token > self.floor {
            (self.floor, self.raised_at) = (floor.token, floor.raised_at);
        }
    }

    /// At every start, load and promotion: what was issued before and is not known here lies below this floor.
    /// Raised again before anything was issued under it (a replica that loads many times) it does not add up.
    pub fn raise_floor(&mut self, now: Now) {
        self.see_clock(now);
        if self.source == TokenSource::Dense || planted::is(Bug::FloorNotRaised) {
            return;
        }
        let wall = now.wall.micros();
        let known = self.used_floor.end(wall).max(self.high).max(wall);
        let raised = known.saturating_add(limits::FLOOR_MARGIN_US).min(limits::TOKEN_MAX);
        if raised > self.floor {
            (self.floor, self.raised_at) = (raised, wall);
        }
    }

    /// Records may have changed names behind the locks' backs (SWAPDB): counters in them no longer suffice. After 65,534
    /// times no record's own counter suffices any more: each token is above all others, then.
    pub const fn names_changed(&mut self) {
        self.epoch = self.epoch.saturating_add(1);
    }

    /// Marks that the counter of `lock` is the highest of its name.
    pub(crate) const fn vouch(&self, lock: &mut Lock) {
        lock.epoch = self.epoch;
    }
}
