//! The task behind one lock: it feeds the machines of [`crate::quorum`] with replies and the time, carries out what they
//! say, and outlives whoever asked, so that nothing is left behind.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use lockfence_core::clock::Instant;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;

use crate::clock;
use crate::error::{Error, Lost, NodeError};
use crate::held::{Held, Released, Shared};
use crate::lockfence::Inner;
use crate::quorum::attempt::{Attempt, Grant, Outcome, Patience};
use crate::quorum::give_back::GiveBack;
use crate::quorum::hold::{Hold, Loss, Terms};
use crate::quorum::{
    Command, Effect, Failure, FailureKind, NodeId, PerNode, Reply, SendId, Settings, Standing, Turn,
};
use crate::wire::{self, Subject};

/// Timers do not count suspended time, leases do: look at the clock at least this often.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// How long to wait, 0 not at all, `None` without limit.
    pub(crate) patience_us: Option<u64>,
    pub(crate) renew: bool,
    pub(crate) max_hold_us: Option<u64>,
}

/// The task behind one lock.
pub(crate) struct Session {
    io: Io,
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
        Self { io: Io::new(inner, subject, settings), settings, order, asked }
    }

    /// Gets the lock, tells, and holds it until it is lost or released. If nobody listens it is called off.
    pub(crate) async fn run(mut self, mut tell: Tell) {
        let _busy = Busy::new(&self.io.inner);
        let (outcome, attempt) = self.attempt(&mut tell).await;
        match outcome {
            Outcome::Won(grant) => self.hold(&grant, tell).await,
            other => {
                // Where nobody listens any more there is nobody to tell.
                let _ = tell.send(Err(self.io.error(other)));
                self.give_back_late(attempt).await;
            }
        }
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

    async fn attempt(&mut self, tell: &mut Tell) -> (Outcome, Attempt) {
        let now = clock::now();
        let patience = match self.asked.patience_us {
            None => Patience::Forever,
            Some(0) => Patience::None,
            Some(us) => Patience::Until(now.mono.plus_us(us)),
        };
        let seen = self.io.inner.seen.load(Ordering::Relaxed);
        let mut attempt =
            with_turn(|turn| Attempt::start(self.settings, self.order.clone(), patience, seen, turn));
        loop {
            while let Some(effect) = attempt.effect() {
                self.io.carry_out(effect);
            }
            if let Some(outcome) = attempt.outcome() {
                return (outcome, attempt);
            }
            tokio::select! {
                biased;
                () = tell.closed() => with_turn(|turn| attempt.cancel(turn)),
                Some((id, reply)) = self.io.replies.recv() => with_turn(|turn| attempt.on_reply(turn, id, reply)),
                () = sleep_until(attempt.deadline()) => with_turn(|turn| attempt.on_time(turn)),
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
                run_give_back(&mut self.io, *give_back, asked.take()).await;
            }
        }
        if let Some(asked) = asked {
            let _ = asked.send(Released::NotHeld);
        }
    }
}

/// Gives back what an owner has; tells when each node was asked once.
async fn run_give_back(io: &mut Io, mut give_back: GiveBack, mut tell: Option<oneshot::Sender<Released>>) {
    let majority = io.settings.majority();
    with_turn(|turn| give_back.on_time(turn));
    loop {
        while let Some(effect) = give_back.effect() {
            io.carry_out(effect);
        }
        if give_back.is_tried()
            && let Some(tell) = tell.take()
        {
            let released =
                if give_back.freed() >= majority { Released::Ended } else { Released::Unconfirmed };
            let released = if give_back.is_over() && give_back.freed() < majority {
                Released::NotHeld
            } else {
                released
            };
            let _ = tell.send(released);
        }
        if give_back.is_over() {
            return;
        }
        tokio::select! {
            biased;
            Some((id, reply)) = io.replies.recv() => with_turn(|turn| give_back.on_reply(turn, id, &reply)),
            () = sleep_until(give_back.deadline()) => with_turn(|turn| give_back.on_time(turn)),
        }
    }
}

/// Carries out effects, and collects the replies.
struct Io {
    inner: Arc<Inner>,
    subject: Arc<Subject>,
    settings: Settings,
    tell: mpsc::UnboundedSender<(SendId, Reply)>,
    replies: mpsc::UnboundedReceiver<(SendId, Reply)>,
    waits: HashMap<SendId, AbortHandle>,
}

impl Io {
    fn new(inner: Arc<Inner>, subject: Arc<Subject>, settings: Settings) -> Self {
        let (tell, replies) = mpsc::unbounded_channel();
        Self { inner, subject, settings, tell, replies, waits: HashMap::new() }
    }

    /// Another machine begins, and counts its requests from 1 again: what is still on its way is not for it.
    fn forget_replies(&mut self) {
        (self.tell, self.replies) = mpsc::unbounded_channel();
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Send { id, node, command, answer_by } => self.send(id, node, command, answer_by),
            Effect::Abandon(id) => {
                if let Some(wait) = self.waits.remove(&id) {
                    wait.abort(); // closes its connection
                }
            }
            Effect::GiveBack(give_back) => {
                let mut io = Self::new(self.inner.clone(), self.subject.clone(), self.settings);
                let busy = Busy::new(&self.inner);
                tokio::spawn(async move {
                    let _busy = busy;
                    run_give_back(&mut io, *give_back, None).await;
                });
            }
        }
    }

    fn send(&mut self, id: SendId, node: NodeId, command: Command, answer_by: Option<Instant>) {
        let tell = self.tell.clone();
        let (Some(way), Some(cmd)) = (self.inner.nodes.get(node.0), self.subject.command(command)) else {
            let failure = Failure::new(FailureKind::Fatal, "not a command that can be sent");
            let _ = tell.send((id, Reply::Failed(failure)));
            return;
        };
        let timeout = Duration::from_micros(self.settings.node_timeout_us);
        let subject = self.subject.clone();
        if matches!(command, Command::Acquire { wait_ms: Some(_), .. }) {
            let (way, within) = (way.clone(), answer_by.map(clock::until));
            let wait = tokio::spawn(async move {
                let answer = way.alone(cmd, &subject.lock, timeout, within).await;
                let _ = tell.send((id, wire::reply(command, answer)));
            });
            self.waits.insert(id, wait.abort_handle());
            return;
        }
        let answer = way.send(cmd, &subject.lock, answer_by.map_or(timeout, clock::until));
        tokio::spawn(async move {
            if let Ok(answer) = answer.await {
                let _ = tell.send((id, wire::reply(command, answer)));
            }
        });
    }

    fn error(&self, outcome: Outcome) -> Error {
        let by = |standing: &Option<Standing>| standing.as_ref().and_then(|standing| standing.owner.clone());
        match outcome {
            Outcome::Held(standing) => Error::Held {
                by: by(&standing),
                retry_after: Duration::from_millis(standing.map_or(0, |standing| standing.ttl_ms)),
            },
            Outcome::TimedOut(standing) => Error::TimedOut { by: by(&standing) },
            Outcome::NoQuorum(causes) => Error::NoQuorum(self.causes(&causes)),
            Outcome::Cancelled | Outcome::Won(_) => Error::TimedOut { by: None },
        }
    }

    fn causes(&self, causes: &PerNode<Option<Failure>>) -> Vec<NodeError> {
        let cause = |(node, failure): (NodeId, &Option<Failure>)| {
            let name = self.inner.nodes.get(node.0).map(|node| node.name().to_owned())?;
            Some(NodeError { node: name, cause: failure.as_ref()?.text.clone() })
        };
        causes.iter().filter_map(cause).collect()
    }
}

impl Drop for Io {
    fn drop(&mut self) {
        for wait in self.waits.values() {
            wait.abort();
        }
    }
}

/// Counts a task that still holds or gives back something.
struct Busy(Arc<Inner>);

impl Busy {
    fn new(inner: &Arc<Inner>) -> Self {
        inner.busy.send_modify(|count| *count = count.saturating_add(1));
        Self(inner.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.send_modify(|count| *count = count.saturating_sub(1));
    }
}

fn with_turn<T>(step: impl FnOnce(&mut Turn<'_>) -> T) -> T {
    step(&mut Turn { now: clock::now(), bits: &mut clock::bits })
}

fn show(hold: &Hold, shared: &Shared) {
    let until = hold.valid_until(clock::mono()).map_or(i64::MIN, Instant::micros);
    shared.valid_until.store(until, Ordering::Release);
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep(clock::until(at).min(LOOK_EVERY)).await,
        None => std::future::pending().await,
    }
}
