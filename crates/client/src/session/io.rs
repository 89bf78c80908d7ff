//! Effects of the machines carried out on the nodes, and the replies collected.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lockfence_core::clock::Instant;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use crate::clock;
use crate::durable::Acks;
use crate::error::{Error, NodeError};
use crate::held::Released;
use crate::lockfence::Inner;
use crate::quorum::attempt::Outcome;
use crate::quorum::give_back::GiveBack;
use crate::quorum::{
    Command, Effect, Failure, FailureKind, NodeId, PerNode, Reply, SendId, Settings, Standing, Turn,
};
use crate::wire::{self, Subject};

/// Timers do not count suspended time, leases do: look at the clock at least this often.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Gives back what an owner has; tells when each node was asked once, and is no longer busy when each has answered.
pub(super) async fn run_give_back(
    io: &mut Io,
    mut give_back: GiveBack,
    mut tell: Option<oneshot::Sender<Released>>,
    mut busy: Option<Busy>,
) {
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
        if give_back.is_settled() {
            drop(busy.take());
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
pub(super) struct Io {
    pub(super) inner: Arc<Inner>,
    pub(super) subject: Arc<Subject>,
    settings: Settings,
    pub(super) acks: Option<Acks>,
    tell: mpsc::UnboundedSender<(SendId, Reply)>,
    pub(super) replies: mpsc::UnboundedReceiver<(SendId, Reply)>,
    waits: HashMap<SendId, AbortHandle>,
}

impl Io {
    pub(super) fn new(
        inner: Arc<Inner>,
        subject: Arc<Subject>,
        settings: Settings,
        acks: Option<Acks>,
    ) -> Self {
        let (tell, replies) = mpsc::unbounded_channel();
        Self { inner, subject, settings, acks, tell, replies, waits: HashMap::new() }
    }

    /// Another machine begins, and counts its requests from 1 again: what is still on its way is not for it.
    pub(super) fn forget_replies(&mut self) {
        (self.tell, self.replies) = mpsc::unbounded_channel();
    }

    pub(super) fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Send { id, node, command, answer_by } => self.send(id, node, command, answer_by),
            Effect::Abandon(id) => {
                if let Some(wait) = self.waits.remove(&id) {
                    wait.abort(); // closes its connection
                }
            }
            Effect::GiveBack(give_back) => {
                let mut io = Self::new(self.inner.clone(), self.subject.clone(), self.settings, None);
                let busy = Some(Busy::new(&self.inner));
                tokio::spawn(async move { run_give_back(&mut io, *give_back, None, busy).await });
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
            self.waits.retain(|_, wait| !wait.is_finished());
            self.waits.insert(id, wait.abort_handle());
            return;
        }
        if let (Command::Extend { .. }, Some(acks)) = (command, self.acks) {
            let way = way.clone();
            tokio::spawn(async move {
                let _ = tell.send((id, acks.renew(&way, &subject.lock, cmd).await));
            });
            return;
        }
        let answer = way.send(cmd, &subject.lock, answer_by.map_or(timeout, clock::until));
        tokio::spawn(async move {
            if let Ok(answer) = answer.await {
                let _ = tell.send((id, wire::reply(command, answer)));
            }
        });
    }

    pub(super) fn error(&self, outcome: Outcome) -> Error {
        let by = |standing: &Option<Standing>| standing.as_ref().and_then(|standing| standing.owner.clone());
        match outcome {
            Outcome::Held(standing) => Error::Held {
                by: by(&standing),
                retry_after: Duration::from_millis(standing.map_or(0, |standing| standing.ttl_ms)),
            },
            Outcome::TimedOut(standing) => Error::TimedOut { by: by(&standing) },
            Outcome::NoQuorum(causes) if self.settings.is_hopeless(&causes) => {
                Error::RefusedByNodes(self.causes(&causes))
            }
            Outcome::NoQuorum(causes) => match only(&causes) {
                Some(failure) => self.failed(failure),
                None => Error::NoQuorum(self.causes(&causes)),
            },
            Outcome::Cancelled | Outcome::Won(_) => Error::TimedOut { by: None },
        }
    }

    /// One node is all there is, and it failed so.
    pub(super) fn failed(&self, failure: &Failure) -> Error {
        match failure.kind {
            FailureKind::Unknown => Error::Indeterminate(failure.text.clone()),
            _ => {
                let node = self.inner.nodes.first().map(|node| node.name().to_owned()).unwrap_or_default();
                Error::NoQuorum(vec![NodeError { node, cause: failure.text.clone() }])
            }
        }
    }

    pub(super) fn causes(&self, causes: &PerNode<Option<Failure>>) -> Vec<NodeError> {
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

/// The failure of the only node, where there is but one.
fn only(causes: &PerNode<Option<Failure>>) -> Option<&Failure> {
    let mut all = causes.iter();
    match (all.next(), all.next()) {
        (Some((_, failure)), None) => failure.as_ref(),
        _ => None,
    }
}

/// Counts a task that still holds or gives back something.
pub(super) struct Busy(Arc<Inner>);

impl Busy {
    pub(super) fn new(inner: &Arc<Inner>) -> Self {
        inner.busy.send_modify(|count| *count = count.saturating_add(1));
        Self(inner.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.send_modify(|count| *count = count.saturating_sub(1));
    }
}

pub(super) fn with_turn<T>(step: impl FnOnce(&mut Turn<'_>) -> T) -> T {
    step(&mut Turn { now: clock::now(), bits: &mut clock::bits })
}

pub(super) async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep(clock::until(at).min(LOOK_EVERY)).await,
        None => std::future::pending().await,
    }
}
