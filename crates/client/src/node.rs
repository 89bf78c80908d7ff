//! The way to one node: a shared connection on which requests leave in the order in which they were asked for, and a
//! connection of its own for each WAIT.
//!
//! The order matters: a RELEASE behind its ACQUIRE on one connection leaves nothing behind. A request without an answer
//! in time makes the connection suspect; the next request gets a new one.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, RedisError, RedisResult, Value};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::quorum::{Failure, FailureKind};

/// A node, as configured.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// Host, port and database: alike at all clients that write the address alike.
    pub(crate) name: String,
    pub(crate) client: redis::Client,
}

/// What came of a request: an answer of the server (an error is one, too), or none.
pub(crate) type Answer = Result<RedisResult<Value>, Failure>;

struct Job {
    cmd: Cmd,
    within: Duration,
    /// When nobody waits for the answer any more.
    expires: Instant,
    answer: oneshot::Sender<Answer>,
}

/// The way to one node.
#[derive(Debug)]
pub(crate) struct Node {
    target: Target,
    worker: Mutex<Option<mpsc::UnboundedSender<Job>>>,
}

impl Node {
    pub(crate) fn new(target: Target) -> Arc<Self> {
        Arc::new(Self { target, worker: Mutex::new(None) })
    }

    pub(crate) fn name(&self) -> &str {
        &self.target.name
    }

    /// Queues `cmd` on the shared connection, at once and in order. Needs a tokio runtime round it.
    pub(crate) fn send(&self, cmd: Cmd, within: Duration) -> oneshot::Receiver<Answer> {
        let (answer, receiver) = oneshot::channel();
        let expires = Instant::now().checked_add(within).unwrap_or_else(Instant::now);
        let mut job = Job { cmd, within, expires, answer };
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = &*worker {
            match sender.send(job) {
                Ok(()) => return receiver,
                Err(mpsc::error::SendError(unsent)) => job = unsent, // its runtime is gone
            }
        }
        let (sender, jobs) = mpsc::unbounded_channel();
        tokio::spawn(work(self.target.clone(), jobs));
        // The worker holds the other end.
        let _ = sender.send(job);
        *worker = Some(sender);
        receiver
    }

    /// Carries out `cmd` on a connection of its own, which closes when the future ends or is dropped.
    pub(crate) async fn alone(
        target: Target,
        cmd: Cmd,
        connect_within: Duration,
        within: Option<Duration>,
    ) -> Answer {
        let mut connection = connect(&target, connect_within).await?;
        let answer = connection.send_packed_command(&cmd);
        match within {
            None => outcome(answer.await),
            Some(within) => match tokio::time::timeout(within, answer).await {
                Ok(answer) => outcome(answer),
                Err(_) => Err(no_answer(within)),
            },
        }
    }

    pub(crate) fn target(&self) -> Target {
        self.target.clone()
    }
}

async fn work(target: Target, mut jobs: mpsc::UnboundedReceiver<Job>) {
    let mut connection: Option<MultiplexedConnection> = None;
    let mut generation = 0_u64;
    let (tell_suspect, mut suspects) = mpsc::unbounded_channel::<u64>();
    while let Some(job) = jobs.recv().await {
        while let Ok(suspect) = suspects.try_recv() {
            if suspect == generation {
                connection = None;
            }
        }
        let open = match &connection {
            Some(open) => open.clone(),
            // Those who came while an attempt to connect went on: one attempt is enough for all of them.
            None if job.expires <= Instant::now() => {
                let _ = job.answer.send(Err(Failure::new(FailureKind::NotSent, "no connection")));
                continue;
            }
            None => match connect(&target, job.within).await {
                Ok(new) => {
                    generation = generation.saturating_add(1);
                    connection.insert(new).clone()
                }
                Err(failure) => {
                    let _ = job.answer.send(Err(failure));
                    continue;
                }
            },
        };
        let mut request = Box::pin(carry_out(open, job, generation, tell_suspect.clone()));
        if poll_once(request.as_mut()).is_pending() {
            tokio::spawn(request);
        }
    }
}

async fn carry_out(
    mut open: MultiplexedConnection,
    job: Job,
    generation: u64,
    tell_suspect: mpsc::UnboundedSender<u64>,
) {
    let answer = match tokio::time::timeout(job.within, open.send_packed_command(&job.cmd)).await {
        Ok(answer) => outcome(answer),
        Err(_) => Err(no_answer(job.within)),
    };
    if answer.is_err() {
        // Where the worker is gone, so is its connection.
        let _ = tell_suspect.send(generation);
    }
    let _ = job.answer.send(answer);
}

/// Lets a request take its place on the connection before the next one is looked at.
fn poll_once(request: Pin<&mut impl Future<Output = ()>>) -> Poll<()> {
    request.poll(&mut Context::from_waker(Waker::noop()))
}

async fn connect(target: &Target, within: Duration) -> Result<MultiplexedConnection, Failure> {
    let config = AsyncConnectionConfig::new().set_connection_timeout(Some(within)).set_response_timeout(None);
    let connecting = target.client.get_multiplexed_async_connection_with_config(&config);
    // The handshake has no time limit of its own.
    match tokio::time::timeout(within, connecting).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(error)) => {
            let fatal =
                matches!(error.kind(), ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig);
            let kind = if fatal { FailureKind::Fatal } else { FailureKind::NotSent };
            Err(Failure::new(kind, error.to_string()))
        }
        Err(_) => Err(Failure::new(FailureKind::NotSent, format!("no connection within {within:?}"))),
    }
}

/// Tells the server's answers from a connection that failed.
fn outcome(answer: RedisResult<Value>) -> Answer {
    match answer {
        Err(error) if !is_answer(&error) => Err(Failure::new(FailureKind::Unknown, error.to_string())),
        answer => Ok(answer),
    }
}

fn is_answer(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension)
}

fn no_answer(within: Duration) -> Failure {
    Failure::new(FailureKind::Unknown, format!("no answer within {within:?}"))
}
