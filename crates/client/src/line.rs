//! The connections to one server: a shared one on which requests leave in the order in which they were asked for, and
//! some that requests have for themselves, such as a WAIT, which would stall everybody on a shared one.
//!
//! The order matters: a RELEASE behind its ACQUIRE on one connection leaves nothing behind. A request without an answer
//! in time makes all connections suspect; the next request gets a new one.
//!
//! A connection that a request had for itself is kept for the next one if the answer was a clean one. A request that is
//! dropped closes it: that is how a server learns that nobody waits any more.

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, Pipeline, RedisResult, ServerError, Value};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::clock;
use crate::dial::Dialer;
use crate::identity::Identity;
use crate::quorum::{Failure, FailureKind};

/// How many connections wait for the next request of their kind, at most.
const IDLE_MAX: usize = 8;
/// How long they may: a server or something on the way may close a connection that says nothing for longer.
const IDLE_FOR: Duration = Duration::from_secs(60);

/// What came of a request: the server's answer (which may be an error), or none. Of several commands: an array.
pub(crate) type Answer = Result<Value, Failure>;

/// The error that a request, or the first command of several, was answered with.
pub(crate) fn refusal(answer: &Answer) -> Option<&ServerError> {
    let first = match answer {
        Ok(Value::Array(answers)) => answers.first(),
        Ok(answer) => Some(answer),
        Err(_) => None,
    };
    if let Some(Value::ServerError(error)) = first { Some(error) } else { None }
}

/// Commands that go out together.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    cmds: Vec<Cmd>,
    /// Whether the server is asked for a key that is on its way to it.
    pub(crate) asking: bool,
}

impl Request {
    /// Commands that go out together: the answer to them is an array.
    pub(crate) const fn batch(cmds: Vec<Cmd>) -> Self {
        Self { cmds, asking: false }
    }
}

impl From<Cmd> for Request {
    fn from(cmd: Cmd) -> Self {
        Self { cmds: vec![cmd], asking: false }
    }
}

struct Job {
    request: Request,
    within: Duration,
    /// When nobody waits for the answer any more.
    expires: Instant,
    answer: oneshot::Sender<Answer>,
}

struct Idle {
    connection: MultiplexedConnection,
    epoch: u64,
    since: Instant,
}

/// The connections to one server.
pub(crate) struct Line {
    pool: Arc<Pool>,
    worker: Mutex<Option<mpsc::UnboundedSender<Job>>>,
}

/// What the worker, which outlives the line until its last request is out, shares with it.
struct Pool {
    dialer: Dialer,
    /// Its place among the servers of a quorum.
    identity: Option<Identity>,
    /// Counts how often its connections became suspect: those of an earlier epoch are used no more.
    epoch: AtomicU64,
    idle: Mutex<Vec<Idle>>,
}

impl Line {
    pub(crate) fn new(dialer: Dialer, identity: Option<Identity>) -> Arc<Self> {
        let pool = Pool { dialer, identity, epoch: AtomicU64::new(0), idle: Mutex::new(Vec::new()) };
        Arc::new(Self { pool: Arc::new(pool), worker: Mutex::new(None) })
    }

    pub(crate) fn dialer(&self) -> &Dialer {
        &self.pool.dialer
    }

    /// A line to another server of the same node.
    pub(crate) fn beside(&self, dialer: Dialer) -> Arc<Self> {
        Self::new(dialer, self.pool.identity.as_ref().map(Identity::another))
    }

    /// Queues `request` on the shared connection, at once and in order. Needs a tokio runtime round it.
    pub(crate) fn send(&self, request: Request, within: Duration) -> oneshot::Receiver<Answer> {
        let (answer, receiver) = oneshot::channel();
        let expires = deadline(within);
        let mut job = Job { request, within, expires, answer };
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = &*worker {
            match sender.send(job) {
                Ok(()) => return receiver,
                Err(mpsc::error::SendError(unsent)) => job = unsent, // its runtime is gone
            }
        }
        let (sender, jobs) = mpsc::unbounded_channel();
        tokio::spawn(work(self.pool.clone(), jobs));
        // The worker holds the other end.
        let _ = sender.send(job);
        *worker = Some(sender);
        receiver
    }

    /// Carries out `request` on a connection of its own, which closes when this future is dropped.
    pub(crate) async fn alone(
        &self,
        request: &Request,
        connect_within: Duration,
        within: Option<Duration>,
    ) -> Answer {
        let pool = &self.pool;
        let epoch = pool.epoch();
        let mut connection = pool.own(connect_within).await?;
        let answer = send(&mut connection, request);
        let answer = match within {
            None => outcome(answer.await),
            Some(within) => match tokio::time::timeout(within, answer).await {
                Ok(answer) => outcome(answer),
                Err(_) => Err(no_answer(within)),
            },
        };
        pool.look_at(&answer, epoch);
        if answer.is_ok() {
            pool.keep(connection, epoch);
        }
        answer
    }
}

impl Pool {
    fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Makes the connections of `epoch` suspect, if they are still in use, when that answer says so.
    fn look_at(&self, answer: &Answer, epoch: u64) {
        let sent_away = |error: &ServerError| matches!(error.code(), "READONLY" | "UNBLOCKED");
        let suspect = answer.is_err() || refusal(answer).is_some_and(sent_away);
        let next = epoch.saturating_add(1);
        if suspect && self.epoch.compare_exchange(epoch, next, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
            tracing::debug!(?answer, "the connections are given up");
        }
    }

    /// A shared connection, to a server that no other node of the quorum leads to.
    async fn dial(&self, within: Duration) -> Result<MultiplexedConnection, Failure> {
        let Some(identity) = &self.identity else { return self.dialer.dial(within).await };
        identity.trying();
        let until = deadline(within);
        let dialled = async {
            let mut connection = self.dialer.dial(within).await?;
            identity.check(&mut connection, until.saturating_duration_since(Instant::now())).await?;
            Ok(connection)
        };
        let connection = dialled.await;
        identity.tried();
        connection
    }

    /// A connection for one request alone: one that was kept and still answers, or a new one.
    async fn own(&self, within: Duration) -> Result<MultiplexedConnection, Failure> {
        while let Some(mut kept) = self.kept() {
            let ping = redis::cmd("PING");
            let answer = tokio::time::timeout(within, kept.send_packed_command(&ping)).await;
            if matches!(answer, Ok(Ok(_))) {
                return Ok(kept);
            }
        }
        self.dialer.dial(within).await
    }

    fn kept(&self) -> Option<MultiplexedConnection> {
        let epoch = self.epoch();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|idle| idle.epoch == epoch && idle.since.elapsed() < IDLE_FOR);
        idle.pop().map(|idle| idle.connection)
    }

    fn keep(&self, connection: MultiplexedConnection, epoch: u64) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if epoch == self.epoch() && idle.len() < IDLE_MAX {
            idle.push(Idle { connection, epoch, since: Instant::now() });
        }
    }
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Line").field("dialer", self.dialer()).finish_non_exhaustive()
    }
}

/// When that time is over; what is longer than any clock can show ends in a hundred years.
pub(crate) fn deadline(within: Duration) -> Instant {
    const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    let now = Instant::now();
    now.checked_add(within.min(LONGEST)).unwrap_or(now)
}

/// Sends what comes, in order, until nobody can send any more.
async fn work(pool: Arc<Pool>, mut jobs: mpsc::UnboundedReceiver<Job>) {
    let mut connection: Option<(u64, MultiplexedConnection)> = None;
    while let Some(job) = jobs.recv().await {
        let now = pool.epoch();
        if connection.as_mut().is_some_and(|(epoch, open)| *epoch != now || !is_open(open)) {
            connection = None;
        }
        let open = match &connection {
            Some((_, open)) => open.clone(),
            // Those who came while an attempt to connect went on: one attempt is enough for all of them.
            _ if job.expires <= Instant::now() => {
                let _ = job.answer.send(Err(Failure::new(FailureKind::NotSent, "no connection")));
                continue;
            }
            // Some time must be left for the answer.
            _ => match pool.dial(job.within.mul_f32(0.875)).await {
                Ok(new) => connection.insert((now, new)).1.clone(),
                Err(failure) => {
                    tracing::debug!(cause = %failure.text, "no connection");
                    let _ = job.answer.send(Err(failure));
                    continue;
                }
            },
        };
        let mut request = Box::pin(carry_out(pool.clone(), open, job, now));
        if poll_once(request.as_mut()).is_pending() {
            tokio::spawn(request);
        }
    }
}

async fn carry_out(pool: Arc<Pool>, mut open: MultiplexedConnection, job: Job, epoch: u64) {
    // Connecting has used up some of the time.
    let answer = match tokio::time::timeout_at(job.expires, send(&mut open, &job.request)).await {
        Ok(answer) => outcome(answer),
        Err(_) => Err(no_answer(job.within)),
    };
    pool.look_at(&answer, epoch);
    let _ = job.answer.send(answer);
}

/// Whether nobody has closed that connection meanwhile: a server that was restarted, or closes those that say nothing for
/// long. A request that goes out on a closed one fails, and whoever asked would have to think that it was sent.
///
/// Where the connection has gone a request fails at once. Where it has not the question is taken back before it is sent:
/// redis-rs leaves out what nobody waits for. (If it is faster than that, a PING goes out, whose answer nobody gets.)
fn is_open(connection: &mut MultiplexedConnection) -> bool {
    let ping = redis::cmd("PING");
    match poll_once(pin!(connection.send_packed_command(&ping))) {
        Poll::Ready(answer) => answer.is_ok(),
        Poll::Pending => true,
    }
}

/// Lets a request take its place on the connection before the next one is looked at. Whatever else this task has done in
/// its turn: where tokio would have it wait for the next one, a request could come to stand before an earlier one.
fn poll_once<T>(request: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    pin!(tokio::task::unconstrained(request)).poll(&mut Context::from_waker(Waker::noop()))
}

async fn send(connection: &mut MultiplexedConnection, request: &Request) -> RedisResult<Value> {
    if let (false, [cmd]) = (request.asking, request.cmds.as_slice()) {
        return connection.send_packed_command(cmd).await;
    }
    let asking = usize::from(request.asking);
    let mut pipeline = Pipeline::with_capacity(request.cmds.len().saturating_add(asking));
    if request.asking {
        pipeline.cmd("ASKING");
    }
    for cmd in &request.cmds {
        pipeline.add_command(cmd.clone());
    }
    let mut answers = connection.send_packed_commands(&pipeline, asking, request.cmds.len()).await?;
    Ok(if request.cmds.len() == 1 { answers.pop().unwrap_or(Value::Nil) } else { Value::Array(answers) })
}

/// Tells the server's answers, errors among them, from a connection that failed, and from what is no answer.
fn outcome(answer: RedisResult<Value>) -> Answer {
    answer.map_err(|error| {
        let text = error.to_string();
        // A connection that ends within an answer is one that failed; redis-rs says of both that it cannot read it.
        let garbled = error.kind() == ErrorKind::Parse && !text.contains("end of input");
        let kind = if garbled { FailureKind::NotUnderstood } else { FailureKind::Unknown };
        Failure::new(kind, text)
    })
}

fn no_answer(within: Duration) -> Failure {
    Failure::new(FailureKind::Unknown, format!("no answer within {}", clock::in_ms(within)))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    /// What a request comes to where a server says this, whatever it is asked, and closes the connection.
    async fn answered_by(bytes: &'static [u8]) -> FailureKind {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut connection, _) = server.accept().unwrap();
            let _ = connection.read(&mut [0; 1_024]);
            let _ = connection.write_all(bytes);
        });
        let client = redis::Client::open(format!("redis://{address}")).unwrap();
        let answer = match client.get_multiplexed_async_connection().await {
            Ok(mut open) => open.send_packed_command(&redis::cmd("PING")).await,
            Err(error) => Err(error),
        };
        outcome(answer).unwrap_err().kind
    }

    #[tokio::test]
    async fn an_answer_that_is_cut_off_is_none_and_garbage_is_one_that_is_not_understood() {
        assert_eq!(answered_by(b"$100\r\nabc").await, FailureKind::Unknown);
        assert_eq!(answered_by(b":17").await, FailureKind::Unknown);
        assert_eq!(answered_by(b"").await, FailureKind::Unknown);
        assert_eq!(answered_by(b"<html>\r\n").await, FailureKind::NotUnderstood);
    }
}
