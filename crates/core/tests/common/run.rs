//! Drives the world and its model by the same steps, and compares them after each.

use super::model::{Model, Picture, Seen};
use super::step::{
    Asked, Broken, Found, Line, Min, Name, Reply, Source, Step, Time, Told, View, Violation, Why,
};
use super::world::World;

/// 2026-01-01, in µs since 1970.
const BEGAN: Time = Time { mono: 1_000_000_000, wall: 1_767_225_600_000_000 };
/// A server that has lost tokens which were further ahead of its clock than this may repeat them: not promised.
const PROMISED_AHEAD_US: u64 = 10_500_000;
/// The successor's clock may be this far behind where something was lost. (20 s are promised for two servers.)
const PROMISED_SKEW_S: i32 = -18;
/// Timers that fire more often at one moment than this do not come to rest.
const TICKS_AT_ONCE: u32 = 4;

/// What has happened in a run: a test that sees little of it proves little.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stats {
    pub(crate) steps: u64,
    pub(crate) grants: u64,
    pub(crate) hand_overs: u64,
    pub(crate) renewals: u64,
    pub(crate) not_granted: u64,
    pub(crate) refusals: u64,
    pub(crate) quarantined: u64,
    pub(crate) queue_full: u64,
    pub(crate) time_outs: u64,
    pub(crate) locks_lost: u64,
    pub(crate) disconnects: u64,
    pub(crate) fenced: u64,
    pub(crate) passed: u64,
    pub(crate) restarts: u64,
    pub(crate) losses: u64,
    pub(crate) promotions: u64,
    pub(crate) dropped: u64,
    /// Steps after which some lock had several holders.
    pub(crate) together: u64,
}

impl Stats {
    pub(crate) fn add(&mut self, other: &Self) {
        let Self {
            steps, grants, hand_overs, renewals, not_granted, refusals, quarantined, queue_full, ..
        } = other;
        let Self { time_outs, locks_lost, disconnects, fenced, passed, restarts, losses, .. } = other;
        let Self { promotions, dropped, together, .. } = other;
        self.steps += steps;
        self.grants += grants;
        self.hand_overs += hand_overs;
        self.renewals += renewals;
        self.not_granted += not_granted;
        self.refusals += refusals;
        self.quarantined += quarantined;
        self.queue_full += queue_full;
        self.time_outs += time_outs;
        self.locks_lost += locks_lost;
        self.disconnects += disconnects;
        self.fenced += fenced;
        self.passed += passed;
        self.restarts += restarts;
        self.losses += losses;
        self.promotions += promotions;
        self.dropped += dropped;
        self.together += together;
    }
}

/// Runs `steps` in a new world.
pub(crate) fn run_steps(steps: &[Step]) -> Result<Stats, Violation> {
    let mut run = Run::new();
    for step in steps {
        run.history.push(Line::Step(run.world.time, *step));
        if let Err((broken, what)) = run.step(step) {
            return Err(Violation { broken, what, seed: None, history: run.history });
        }
    }
    run.stats.steps = steps.len() as u64;
    run.stats.hand_overs = run.model.hand_overs;
    Ok(run.stats)
}

struct Run {
    world: World,
    model: Model,
    /// The model of what was saved, and of what a replica has that is cut off.
    saved: Picture,
    replica: Option<Picture>,
    stats: Stats,
    history: Vec<Line>,
    last_id: u64,
}

impl Run {
    fn new() -> Self {
        Self {
            world: World::new(BEGAN),
            model: Model::new(),
            saved: Picture::default(),
            replica: None,
            stats: Stats::default(),
            history: Vec::new(),
            last_id: 0,
        }
    }

    fn note(&mut self, what: String) {
        self.history.push(Line::Note(what));
    }

    fn now(&self) -> i64 {
        self.world.time.mono
    }

    fn base(&self) -> u64 {
        self.world.time.wall.max(self.world.floor())
    }

    fn propose(&self, at: Name, min: Min) -> Option<u64> {
        match min {
            Min::None => None,
            Min::Counter(more) => {
                self.model.counter(at).checked_add_signed(more.into()).filter(|token| *token > 0)
            }
            Min::Ahead(ms) => Some(self.base() + u64::from(ms) * 1000),
        }
    }

    /// The nth token that this name has seen, from the last.
    fn token_seen(&self, at: Name, nth: u8) -> Option<u64> {
        let tokens = self.model.tokens_of(at);
        let from_the_last = usize::from(nth).checked_rem(tokens.len());
        from_the_last.and_then(|nth| tokens.into_iter().rev().nth(nth))
    }

    fn step(&mut self, step: &Step) -> Result<(), Found> {
        self.last_id += 1;
        let id = self.last_id;
        match *step {
            Step::Acquire { at, owner, ttl_ms, wait_ms, kind, min } => {
                let min = self.propose(at, min);
                let since = self.now();
                let asked = Asked { id, at, owner, ttl_ms, wait_ms, kind, min, since };
                self.world.acquire(&asked);
                self.then(|model, seen| model.acquire(asked, seen))
            }
            Step::Release { at, owner } => {
                self.world.release(id, at, owner);
                self.then(|model, seen| model.release(id, at, owner, seen))
            }
            Step::Extend { at, owner, ttl_ms, min } => {
                let min = self.propose(at, min);
                self.world.extend(id, at, owner, ttl_ms, min);
                self.then(|model, seen| model.extend((id, at, owner), ttl_ms, min, seen))
            }
            Step::Break(at) => {
                self.world.break_lock(id, at, None);
                self.then(|model, seen| model.break_lock(id, at, None, seen))
            }
            Step::BreakUpTo { at, nth, ahead } => {
                let token = self.token_seen(at, nth).and_then(|token| token.checked_add_signed(ahead.into()));
                let Some(max) = token.filter(|token| *token > 0) else { return Ok(()) };
                self.world.break_lock(id, at, Some(max));
                self.then(|model, seen| model.break_lock(id, at, Some(max), seen))
            }
            Step::CheckNear { at, ahead } => self.check(at, self.propose(at, Min::Counter(ahead))),
            Step::CheckOld { at, nth } => self.check(at, self.token_seen(at, nth)),
            Step::Disconnect(nth) => self.disconnect(nth),
            Step::Sleep { ms } => self.sleep(ms),
            Step::Pause { us } => self.pause(us.cast_signed()),
            Step::PauseToEnd { us } => match self.model.next_end(self.now()) {
                Some(end) => self.pause((end - self.now() + i64::from(us)).max(0)),
                None => Ok(()),
            },
            _ => self.upheaval(*step),
        }
    }

    fn upheaval(&mut self, step: Step) -> Result<(), Found> {
        match step {
            Step::Del(at) => {
                self.world.del(at);
                self.done(|model, _| model.del(at))
            }
            Step::FlushAll => {
                self.world.flush();
                self.done(|model, _| model.flush())
            }
            Step::Rename(from) => {
                let to = Name { key: 1 - from.key, ..from };
                self.world.rename(from, to);
                self.done(|model, _| model.rename(from, to))
            }
            Step::SwapDb => {
                self.world.swap_db();
                self.done(|model, _| model.swap_db())
            }
            Step::Arrive { at, owner, ttl_ms, ahead_ms } => {
                let token = self.base() + u64::from(ahead_ms) * 1000;
                self.world.restore(at, owner, ttl_ms, token);
                self.done(|model, seen| model.restore(at, owner, ttl_ms, token, seen.time.mono))
            }
            Step::Promote { skew_s } => self.promote(skew_s),
            Step::Restart { from, down_ms, skew_s, quarantine_ms } => {
                self.restart(from, down_ms, skew_s, quarantine_ms)
            }
            _ => self.prepare(step),
        }
    }

    /// Steps that nobody notices at once.
    fn prepare(&mut self, step: Step) -> Result<(), Found> {
        match step {
            Step::SetClock { by_s } => self.world.set_clock(i64::from(by_s) * 1_000_000),
            Step::Cut => {
                self.world.cut();
                let now = self.model.picture(self.world.time);
                self.replica.get_or_insert(now);
            }
            Step::Heal => self.heal(),
            Step::Save => {
                self.world.save();
                self.saved = self.model.picture(self.world.time);
            }
            _ => unreachable!("see step and upheaval"),
        }
        self.settled()
    }

    fn settled(&mut self) -> Result<(), Found> {
        self.done(|_, _| ())
    }

    fn check(&mut self, at: Name, token: Option<u64>) -> Result<(), Found> {
        let Some(token) = token else { return Ok(()) };
        let (answer, expected) = (self.world.check(at, token), self.model.check(at, token, self.now()));
        self.note(format!("{token}: {answer:?}"));
        if answer != expected {
            return Err((Broken::Fence, format!("token {token} got {answer:?} instead of {expected:?}")));
        }
        match answer {
            Reply::Number(_) => self.stats.passed += 1,
            _ => self.stats.fenced += 1,
        }
        self.settled()
    }

    fn disconnect(&mut self, nth: u8) -> Result<(), Found> {
        let waiting = self.world.waiting();
        let Some(id) = usize::from(nth).checked_rem(waiting.len()).map(|nth| waiting[nth]) else {
            return Ok(());
        };
        self.note(format!("request {id}"));
        self.stats.disconnects += 1;
        self.world.disconnect(id);
        self.model.disconnect(id);
        self.tick()
    }

    // ---- time

    fn pause(&mut self, us: i64) -> Result<(), Found> {
        self.world.time.mono += us;
        self.world.time.wall = self.world.time.wall.saturating_add_signed(us);
        self.settled()
    }

    fn sleep(&mut self, ms: u64) -> Result<(), Found> {
        let until = self.now() + (ms * 1000).cast_signed();
        self.tick()?;
        loop {
            let due = self.world.next_due().into_iter().chain(self.model.next_due(self.now())).min();
            let next = due.map_or(until, |due| due.clamp(self.now(), until));
            self.pause(next - self.now())?;
            self.tick()?;
            if self.now() >= until {
                return Ok(());
            }
        }
    }

    /// The timer fires, as often as it says that it must.
    fn tick(&mut self) -> Result<(), Found> {
        self.world.tick();
        let mut ticks = 1;
        while self.world.next_due().is_some_and(|due| due <= self.now()) {
            self.world.tick();
            ticks += 1;
            if ticks > TICKS_AT_ONCE {
                return Err((Broken::Timer, "the timer does not come to rest".to_owned()));
            }
        }
        for at in self.world.take_dropped() {
            self.note(format!("{at:?} is idle and is dropped"));
            self.stats.dropped += 1;
            self.model.dropped(at, self.now())?;
        }
        self.then(|model, seen| model.tick(seen))?;
        self.model.nobody_waits_in_vain(self.now())
    }

    // ---- disasters

    fn heal(&mut self) {
        self.world.heal();
        self.replica = None;
    }

    /// How much later all tokens that were ever issued are no further ahead of the clock than is promised; `None`
    /// where that takes long.
    fn until_promised(&self) -> Option<u64> {
        let us = self.model.highest.saturating_sub(self.world.time.wall + PROMISED_AHEAD_US);
        Some(us).filter(|us| *us <= 600_000_000)
    }

    fn promote(&mut self, skew_s: i32) -> Result<(), Found> {
        let promised = self.until_promised() == Some(0);
        if !promised {
            self.heal();
        }
        let lost = self.replica.is_some();
        // What was lost before is covered by what has been issued since; until then by nothing but the clock.
        let by_clock = lost || !self.world.has_issued();
        if by_clock && !promised {
            return self.settled();
        }
        let skew_s = if by_clock { skew_s.max(PROMISED_SKEW_S) } else { skew_s };
        let picture = self.replica.take().unwrap_or_else(|| self.model.picture(self.world.time));
        self.world.promote(i64::from(skew_s) * 1_000_000);
        self.stats.promotions += 1;
        self.stats.losses += u64::from(lost);
        let grants_from = self.world.grants_from();
        self.done(|model, _| model.take_over(picture, grants_from))
    }

    fn restart(&mut self, from: Source, down_ms: u64, skew_s: i32, quarantine_ms: u64) -> Result<(), Found> {
        let (from, down_us, skew_s) = match (from, self.until_promised()) {
            (Source::Rdb, _) | (_, None) if self.world.has_issued() => (Source::Rdb, down_ms * 1000, skew_s),
            (_, Some(us)) => (from, us.max(down_ms * 1000), skew_s.max(PROMISED_SKEW_S)),
            // An RDB file holds no more than its records until something was issued: the tokens before a loss are
            // known to nobody now, and the clock is too far back to cover them.
            (_, None) => return self.settled(),
        };
        self.note(format!("from {from:?}, {down_us} us later, clock set by {skew_s} s"));
        let picture = match from {
            Source::Rdb | Source::Aof => self.model.picture(self.world.time),
            Source::LastSave => self.saved.clone(),
            Source::Nothing => Picture::default(),
        };
        self.world.restart(from, down_us.cast_signed(), i64::from(skew_s) * 1_000_000, quarantine_ms);
        self.replica = None;
        self.stats.restarts += 1;
        self.stats.losses += u64::from(matches!(from, Source::LastSave | Source::Nothing));
        let grants_from = self.world.grants_from();
        self.done(|model, seen| model.restart(picture, seen.time, grants_from))
    }

    // ---- comparing

    /// As [`Run::then`], where nothing can be wrong before all is compared.
    fn done(&mut self, also: impl FnOnce(&mut Model, &Seen<'_>)) -> Result<(), Found> {
        self.then(|model, seen| {
            also(model, seen);
            Ok(())
        })
    }

    /// Now the model does the same, and then all must be alike.
    fn then(
        &mut self,
        predict: impl FnOnce(&mut Model, &Seen<'_>) -> Result<(), Found>,
    ) -> Result<(), Found> {
        let told = self.world.take_told();
        self.history.extend(told.iter().map(|(id, reply)| Line::Told(*id, reply.clone())));
        self.nobody_is_told_twice(&told)?;
        let views: Vec<_> = Name::ALL.into_iter().map(|at| (at, self.world.view(at))).collect();
        let seen = Seen { time: self.world.time, base: self.base(), told: &told, views: &views };
        predict(&mut self.model, &seen)?;
        self.answers_are(told.clone())?;
        self.model.compare(&seen)?;
        let several = |view: &View| view.holders.len() > 1;
        self.stats.together += u64::from(views.iter().any(|(_, view)| view.as_ref().is_some_and(several)));
        self.world.replica_differs().map_or(Ok(()), |how| Err((Broken::Replica, how)))
    }

    /// Only the request of this step and those that wait may be told anything, and only once.
    fn nobody_is_told_twice(&self, told: &[Told]) -> Result<(), Found> {
        for (n, (id, reply)) in told.iter().enumerate() {
            let again = told[..n].iter().any(|(other, _)| other == id);
            if again || (*id != self.last_id && !self.model.waits(*id)) {
                let what = format!("request {id} has gone, or was answered before, and is told {reply:?}");
                return Err((Broken::AnsweredAgain, what));
            }
        }
        Ok(())
    }

    fn answers_are(&mut self, mut told: Vec<Told>) -> Result<(), Found> {
        let mut expected = self.model.take_told();
        expected.sort_by_key(|(id, _)| *id);
        told.sort_by_key(|(id, _)| *id);
        if told != expected {
            let what = format!("requests were told {told:?} and should have been told {expected:?}");
            return Err((Broken::Answer, what));
        }
        told.iter().for_each(|(id, reply)| self.count(*id, reply));
        Ok(())
    }

    fn count(&mut self, id: u64, reply: &Reply) {
        let stats = &mut self.stats;
        match reply {
            Reply::Granted { renewed: false, .. } => stats.grants += 1,
            Reply::Granted { renewed: true, .. } => stats.renewals += 1,
            Reply::NotGranted if id != self.last_id => stats.time_outs += 1,
            Reply::NotGranted => stats.not_granted += 1,
            Reply::LockLost | Reply::Demoted => stats.locks_lost += 1,
            Reply::Refused(Why::Quarantine) => stats.quarantined += 1,
            Reply::Refused(Why::QueueFull) => stats.queue_full += 1,
            Reply::Refused(_) => stats.refusals += 1,
            Reply::Number(_) => {}
        }
    }
}
