//! A client: the protocol's machines as they are, for one acquisition.

use lockfence_client::quorum::attempt::{Attempt, Outcome};
use lockfence_client::quorum::give_back::GiveBack;
use lockfence_client::quorum::hold::{Hold, Terms};
use lockfence_client::quorum::{Effect, Failure, FailureKind, NodeId, Reply, SendId, Turn};
use lockfence_core::clock::{Instant, Now};

use crate::setup::Setup;

/// Which machine of a client: the attempt, the hold, and the give-backs from here on.
pub(crate) const ATTEMPT: u8 = 0;
const HOLD: u8 = 1;
const GIVE_BACKS: u8 = 2;

/// A confirmed grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Granted {
    pub(crate) token: u64,
    /// What it must be above: what others had confirmed before its round began.
    pub(crate) above: u64,
    /// Until when it was to last without a renewal, where there may be one.
    pub(crate) first_until: Option<Instant>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub(crate) began: bool,
    attempt: Option<Attempt>,
    hold: Option<Hold>,
    give_backs: Vec<(u8, GiveBack)>,
    next_machine: u8,
    drawn: u8,
    /// How often its wall clock was stepped back.
    pub(crate) steps: u8,
    /// The highest token that others had confirmed before the last round began.
    pub(crate) above: u64,
    pub(crate) granted: Option<Granted>,
    /// Whether it ended without the lock.
    pub(crate) lost: bool,
    /// When all leases were broken while it held: how long what was sent until then can make it last.
    pub(crate) broken: Option<Instant>,
}

/// What a step of a client leads to.
pub(crate) type Effects = Vec<(u8, Effect)>;

/// Who makes the step, and when.
#[derive(Clone, Copy)]
pub(crate) struct Step<'s> {
    pub(crate) setup: &'s Setup,
    pub(crate) client: usize,
    pub(crate) now: Now,
}

impl Client {
    pub(crate) fn begin(&mut self, step: Step<'_>) -> Effects {
        self.began = true;
        let order = (0..3).map(NodeId).collect();
        let (settings, patience) = (step.setup.settings(step.client), step.setup.patience(step.client));
        self.attempt =
            Some(self.with_turn(step, |_, turn| Attempt::start(settings, order, patience, 0, turn)));
        self.collect(step)
    }

    pub(crate) fn release(&mut self, step: Step<'_>) -> Effects {
        self.with_turn(step, |client, turn| {
            client.hold.iter_mut().for_each(|hold| hold.release(turn));
        });
        self.collect(step)
    }

    pub(crate) fn on_time(&mut self, step: Step<'_>) -> Effects {
        self.with_turn(step, |client, turn| {
            client.attempt.iter_mut().for_each(|attempt| attempt.on_time(turn));
            client.hold.iter_mut().for_each(|hold| hold.on_time(turn));
        });
        self.collect(step)
    }

    pub(crate) fn on_reply(&mut self, step: Step<'_>, machine: u8, id: SendId, reply: &Reply) -> Effects {
        self.take(step, machine, id, reply);
        self.collect(step)
    }

    fn take(&mut self, step: Step<'_>, machine: u8, id: SendId, reply: &Reply) {
        self.with_turn(step, |client, turn| match machine {
            ATTEMPT => client.attempt.iter_mut().for_each(|it| it.on_reply(turn, id, reply.clone())),
            HOLD => client.hold.iter_mut().for_each(|it| it.on_reply(turn, id, reply.clone())),
            _ => {
                let of = client.give_backs.iter_mut().filter(|(key, _)| *key == machine);
                of.for_each(|(_, it)| it.on_reply(turn, id, reply));
            }
        });
    }

    /// Whether a reply to that makes a difference.
    pub(crate) fn awaits(&self, step: Step<'_>, machine: u8, id: SendId) -> bool {
        let reply = Reply::Failed(Failure::new(FailureKind::Unknown, "cut"));
        match machine {
            ATTEMPT | HOLD => {
                let mut after = self.clone();
                after.take(step, machine, id, &reply);
                after != *self
            }
            _ => self.give_backs.iter().any(|(key, it)| *key == machine && sends_after(it, step.now, id)),
        }
    }

    /// When it wants to be called again. Releases are not repeated here: one that is repeated is as good as one that
    /// arrives late.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let attempt = self.attempt.as_ref().and_then(Attempt::deadline);
        attempt.into_iter().chain(self.hold.as_ref().and_then(Hold::deadline)).min()
    }

    /// Until when it takes the lock as held.
    pub(crate) fn holds_until(&self, now: Now) -> Option<Instant> {
        self.hold.as_ref().and_then(|hold| hold.valid_until(now.mono))
    }

    /// Whether it got the lock in a round that began after another had got it.
    pub(crate) fn came_after(&self) -> bool {
        self.granted.is_some_and(|granted| granted.above > 0)
    }

    /// Whether a renewal has made it last longer.
    pub(crate) fn is_prolonged(&self, now: Now) -> bool {
        let first_until = self.granted.and_then(|granted| granted.first_until);
        self.holds_until(now).zip(first_until).is_some_and(|(until, first_until)| until > first_until)
    }

    /// Random bits are numbers of which no two are alike. The lower ones, which say by how much to vary a time, are zero.
    fn with_turn<R>(&mut self, step: Step<'_>, work: impl FnOnce(&mut Self, &mut Turn<'_>) -> R) -> R {
        let mut drawn = self.drawn;
        let mut bits = || {
            drawn += 1;
            (step.client as u128 + 1) << 64 | u128::from(drawn) << 16
        };
        let result = work(self, &mut Turn { now: step.now, bits: &mut bits });
        self.drawn = drawn;
        result
    }

    /// Fetches what the machines want done, and what became of them.
    fn collect(&mut self, step: Step<'_>) -> Effects {
        let mut effects = Effects::new();
        let attempt = self.attempt.as_mut().into_iter().flat_map(|it| std::iter::from_fn(|| it.effect()));
        effects.extend(attempt.map(|effect| (ATTEMPT, effect)));
        self.outcome(step);
        let hold = self.hold.as_mut().into_iter().flat_map(|it| std::iter::from_fn(|| it.effect()));
        effects.extend(hold.map(|effect| (HOLD, effect)));
        if self.hold.as_ref().is_some_and(|hold| hold.deadline().is_none()) {
            self.hold = None;
        }
        for at in 0..effects.len() {
            if let Effect::GiveBack(give_back) = &effects[at].1 {
                let give_back = (**give_back).clone();
                self.give_back(step, give_back, &mut effects);
            }
        }
        self.give_backs.retain_mut(|(machine, give_back)| {
            let before = effects.len();
            effects.extend(std::iter::from_fn(|| give_back.effect()).map(|effect| (*machine, effect)));
            effects.len() == before
        });
        effects
    }

    /// It is kept as long as it has something left to send.
    fn give_back(&mut self, step: Step<'_>, mut give_back: GiveBack, effects: &mut Effects) {
        let machine = GIVE_BACKS + self.next_machine;
        self.next_machine += 1;
        self.with_turn(step, |_, turn| give_back.on_time(turn));
        let sent: Vec<Effect> = std::iter::from_fn(|| give_back.effect()).collect();
        let more = sent.iter().any(|effect| match effect {
            Effect::Send { id, .. } => sends_after(&give_back, step.now, *id),
            _ => false,
        });
        if more {
            self.give_backs.push((machine, give_back));
        }
        effects.extend(sent.into_iter().map(|effect| (machine, effect)));
    }

    fn outcome(&mut self, step: Step<'_>) {
        let Some(attempt) = &mut self.attempt else { return };
        let outcome = attempt.outcome();
        if attempt.deadline().is_none() {
            self.attempt = None;
        }
        self.lost |= matches!(outcome, Some(Outcome::Held(_) | Outcome::TimedOut(_) | Outcome::NoQuorum(_)));
        if let Some(Outcome::Won(grant)) = outcome {
            let terms = Terms { renew: step.setup.manners[step.client].renews, hold_until: None };
            let settings = step.setup.settings(step.client);
            let order = (0..3).map(NodeId).collect();
            self.hold = Some(self.with_turn(step, |_, turn| Hold::new(settings, order, &grant, terms, turn)));
            let first_until = terms.renew.then_some(grant.valid_until);
            self.granted = Some(Granted { token: grant.token, above: self.above, first_until });
        }
    }
}

/// Whether an answer to that request leads to another. With three nodes the first answer does, or none.
fn sends_after(give_back: &GiveBack, now: Now, id: SendId) -> bool {
    let mut after = give_back.clone();
    after.on_reply(&mut Turn { now, bits: &mut || 0 }, id, &Reply::Done(true));
    after.effect().is_some()
}
