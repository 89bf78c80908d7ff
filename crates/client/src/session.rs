//! The task behind one lock: it feeds the machines of [`crate::quorum`] with replies and the time, carries out what they
//! say, and outlives whoever asked, so that nothing is left behind.

mod io;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use lockfence_core::clock::Instant;
use tokio::sync::{mpsc, oneshot, watch};

use self::io::{Busy, Io, run_give_back, sleep_until, with_turn};
use crate::clock;
use crate::durable::Acks;
use crate::error::{Error, Lost};
use crate::held::{Held, Released, Shared};
use crate::lockfence::Inner;
use crate::quorum::attempt::{Attempt, Grant, Outcome, Patience};
use crate::quorum::hold::{Hold, Loss, Terms};
use crate::quorum::{Command, Effect, NodeId, Settings};
use crate::wire::Subject;

/// What was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// How long to wait, 0 not at all, `None` without limit.
    pub(crate) patience_us: Option<u64>,
    pub(crate) renew: bool,
    pub(crate) max_hold_us: Option<u64>,
    /// How those who must vouch for each lease are asked, if any must.
    pub(crate) acks: Option<Acks>,
}

/// The task behind one lock.
pub(crate) struct Session {
    io: Io,
    /// While something is asked for, held, or given back.
    busy: Option<Busy>,
    settings: Settings,
    order: Vec<NodeId>,
    asked: Asked,
}

type Tell = oneshot::Sender<Result<Held, Error>>;

impl Session {
    pub(crate) fn new(
        inner: Arc<Inner>,
        settings: Settings,
        order: Vec<NodeId>,
        subject: Arc<Subject>,
        asked: Asked,
    ) -> Self {
        let busy = Some(Busy::new(&inner));
        Self { io: Io::new(inner, subject, settings, asked.acks), busy, settings, order, asked }
    }

    /// Gets the lock, tells, and holds it until it is lost or released. If nobody listens it is called off.
    pub(crate) async fn run(mut self, mut tell: Tell) {
        let (ended, attempt) = self.attempt(&mut tell).await;
        match ended {
            Ok(Outcome::Won(grant)) => match self.may_hold(&grant, &mut tell).await {
                Ok(()) => self.hold(&grant, tell).await,
                Err(error) => {
                    self.give_up(&grant);
                    let _ = tell.send(Err(error));
                }
            },
            other => {
                if matches!(other, Ok(Outcome::Held(_))) {
                    self.identities_known(&mut tell).await;
                }
                let error = other.map_or_else(
                    |error| error,
                    |outcome| self.one_server_twice().unwrap_or_else(|| self.io.error(outcome)),
                );
                // Where nobody listens any more there is nobody to tell.
                let _ = tell.send(Err(error));
                self.give_back_late(attempt).await;
            }
        }
    }

    /// Whether what was won may be held: it is at different servers, and vouched for.
    async fn may_hold(&self, grant: &Grant, tell: &mut Tell) -> Result<(), Error> {
        self.identities_known(tell).await;
        match self.one_server_twice() {
            Some(error) => Err(error),
            None => self.vouched_for(grant, tell).await,
        }
    }

    /// Waits until it is known which servers the nodes are, at most as long as a node may take to answer; not where nobody
    /// listens any more. The first time only: later it is known.
    async fn identities_known(&self, tell: &mut Tell) {
        let Some(identities) = &self.io.inner.identities else { return };
        let longest = Duration::from_micros(self.settings.node_timeout_us);
        tokio::select! {
            biased;
            () = tell.closed() => {}
            () = identities.known(longest) => {}
        }
    }

    fn one_server_twice(&self) -> Option<Error> {
        self.io.inner.identities.as_ref()?.same().map(Error::Config)
    }

    /// Answers to a try that was lost without them say whether there is something to give back.
    async fn give_back_late(&mut self, mut attempt: Attempt) {
        while attempt.deadline().is_some() {
            tokio::select! {
                biased;
                Some((id, reply)) = self.io.replies.recv() => with_turn(|turn| attempt.on_reply(turn, id, reply)),
                () = sleep_until(attempt.deadline()) => with_turn(|turn| attempt.on_time(turn)),
            }
            while let Some(effect) = attempt.effect() {
                self.io.carry_out(effect);
            }
        }
    }

    /// Waits until those who must vouch for the lease do.
    async fn vouched_for(&self, grant: &Grant, tell: &mut Tell) -> Result<(), Error> {
        let Some(acks) = self.io.acks else { return Ok(()) };
        let extend = Command::Extend { owner: grant.owner, min_token: None };
        let (Some(node), Some(cmd)) = (self.io.inner.nodes.first(), self.io.subject.command(extend)) else {
            return Ok(());
        };
        let vouched = tokio::select! {
            biased;
            () = tell.closed() => return Err(Error::TimedOut { by: None }), // nobody listens any more
            answer = acks.ask(node, &self.io.subject.lock, cmd) => answer,
        };
        match vouched {
            Ok(Some(vouched)) if acks.durability.is_met(vouched) => Ok(()),
            Ok(Some(vouched)) => Err(acks.durability.refusal(vouched)),
            Ok(None) => Err(Error::Lost(Lost::Broken)),
            Err(failure) if failure.kind.is_final() => Err(Error::Refused(failure.text)),
            Err(failure) => Err(self.io.failed(&failure)),
        }
    }

    /// Gives back what was won, in the background.
    fn give_up(&mut self, grant: &Grant) {
        let terms = Terms { renew: false, hold_until: None };
        let mut hold = with_turn(|turn| Hold::new(self.settings, self.order.clone(), grant, terms, turn));
        with_turn(|turn| hold.release(turn));
        while let Some(effect) = hold.effect() {
            self.io.carry_out(effect);
        }
    }

    /// How it ended; an error where it was called off because of what the nodes are.
    async fn attempt(&mut self, tell: &mut Tell) -> (Result<Outcome, Error>, Attempt) {
        let now = clock::now();
        let patience = match self.asked.patience_us {
            None => Patience::Forever,
            Some(0) => Patience::None,
            Some(us) => Patience::Until(now.mono.plus_us(us)),
        };
        let seen = self.io.inner.seen.load(Ordering::Relaxed);
        let mut attempt =
            with_turn(|turn| Attempt::start(self.settings, self.order.clone(), patience, seen, turn));
        let mut refused = None;
        loop {
            while let Some(effect) = attempt.effect() {
                self.io.carry_out(effect);
            }
            match (attempt.outcome(), refused.take()) {
                (Some(Outcome::Cancelled), Some(error)) => return (Err(error), attempt),
                (Some(outcome), _) => return (Ok(outcome), attempt),
                (None, _) => {}
            }
            tokio::select! {
                biased;
                () = tell.closed() => with_turn(|turn| attempt.cancel(turn)),
                Some((id, reply)) = self.io.replies.recv() => with_turn(|turn| attempt.on_reply(turn, id, reply)),
                () = sleep_until(attempt.deadline()) => with_turn(|turn| attempt.on_time(turn)),
            }
            // However long the lock may be waited for, it will not be held.
            refused = self.one_server_twice();
            if refused.is_some() {
                with_turn(|turn| attempt.cancel(turn));
            }
        }
    }

    async fn hold(mut self, grant: &Grant, tell: Tell) {
        self.io.inner.seen.fetch_max(grant.token, Ordering::Relaxed);
        self.io.forget_replies();
        let hold_until = self.asked.max_hold_us.map(|us| clock::mono().plus_us(us));
        let terms = Terms { renew: self.asked.renew, hold_until };
        let mut hold = with_turn(|turn| Hold::new(self.settings, self.order.clone(), grant, terms, turn));
        let shared =
            Arc::new(Shared { valid_until: AtomicI64::new(i64::MIN), lost: watch::Sender::new(None) });
        show(&hold, &shared);
        let (release, mut released) = mpsc::channel(1);
        let held = Held {
            inner: self.io.inner.clone(),
            subject: self.io.subject.clone(),
            token: grant.token,
            shared: shared.clone(),
            release,
        };
        tracing::debug!(token = grant.token, "granted");
        // Where nobody listens any more the guard is dropped here, and so the lock is released below.
        let _ = tell.send(Ok(held));
        loop {
            while let Some(effect) = hold.effect() {
                self.io.carry_out(effect);
            }
            show(&hold, &shared);
            if let Some(loss) = hold.loss() {
                self.lost(loss, &shared);
                break;
            }
            tokio::select! {
                biased;
                asked = released.recv() => return self.release(hold, &shared, asked).await,
                Some((id, reply)) = self.io.replies.recv() => with_turn(|turn| hold.on_reply(turn, id, reply)),
                () = sleep_until(hold.deadline()) => with_turn(|turn| hold.on_time(turn)),
            }
        }
        self.busy = None;
        // Lost: a release that comes now finds nothing.
        while let Some(asked) = released.recv().await {
            let _ = asked.send(Released::NotHeld);
        }
    }

    fn lost(&self, loss: Loss, shared: &Shared) {
        let lost = match loss {
            Loss::Expired => Lost::Expired,
            Loss::HeldTooLong => Lost::HeldTooLong,
            Loss::Taken { by } => Lost::Taken { by },
            Loss::Broken => Lost::Broken,
            Loss::NoQuorum(causes) => Lost::NoQuorum(self.io.causes(&causes)),
        };
        tracing::warn!(why = %lost, "lost");
        self.io.inner.counters.lost.fetch_add(1, Ordering::Relaxed);
        shared.lost.send_replace(Some(lost));
    }

    async fn release(mut self, mut hold: Hold, shared: &Shared, asked: Option<oneshot::Sender<Released>>) {
        with_turn(|turn| hold.release(turn));
        show(&hold, shared);
        shared.lost.send_replace(Some(Lost::Released));
        self.io.forget_replies();
        let mut asked = asked;
        while let Some(effect) = hold.effect() {
            if let Effect::GiveBack(give_back) = effect {
                run_give_back(&mut self.io, *give_back, asked.take(), self.busy.take()).await;
            }
        }
        if let Some(asked) = asked {
            let _ = asked.send(Released::NotHeld);
        }
    }
}

fn show(hold: &Hold, shared: &Shared) {
    let until = hold.valid_until(clock::mono()).map_or(i64::MIN, Instant::micros);
    shared.valid_until.store(until, Ordering::Release);
}
