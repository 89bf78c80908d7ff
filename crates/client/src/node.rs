//! The way to one node: a server, whichever server the sentinels name, or a cluster, in which each key has its own.

use std::sync::Arc;
use std::time::Duration;

use redis::{ConnectionInfo, ServerError};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::cluster::{Cluster, Redirect, slot};
use crate::dial::Dialer;
use crate::identity::Identity;
use crate::line::{Answer, Line, Request, deadline, refusal};
use crate::quorum::{Failure, FailureKind};
use crate::sentinel::Sentinels;

/// How often one request is sent on.
const HOPS_MAX: u32 = 8;
/// How long to wait before a request goes out again to where it was refused for a moment.
const PAUSE: Duration = Duration::from_millis(20);

/// A node, as configured.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// Its address, without what is secret: alike at all clients that write it alike.
    pub(crate) name: String,
    /// Two nodes that have one of these in common are one.
    pub(crate) marks: Vec<String>,
    pub(crate) place: Place,
}

/// Where a node is.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// At that address.
    Server(ConnectionInfo),
    /// Wherever the sentinels say.
    Sentinel(Sentinels),
    /// At many; these are known to begin with.
    Cluster(Vec<ConnectionInfo>),
}

#[derive(Debug)]
enum Way {
    Server(Arc<Line>),
    /// The line asks the sentinels each time that it connects.
    Sentinel(Arc<Line>),
    Cluster(Box<Cluster>),
}

/// The way to one node.
#[derive(Debug)]
pub(crate) struct Node {
    target: Target,
    way: Option<Way>,
}

/// How a request travels.
#[derive(Clone, Copy)]
struct Trip {
    slot: u16,
    until: Option<Instant>,
    /// On connections of its own, and how long each may take to come about; else on the shared ones.
    alone: Option<Duration>,
}

impl Trip {
    async fn send(self, line: &Line, request: &Request) -> Answer {
        let left = self.until.map(left);
        match self.alone {
            Some(connect_within) => line.alone(request, connect_within, left).await,
            None => {
                let told = line.send(request.clone(), left.unwrap_or(Duration::MAX));
                told.await.unwrap_or_else(|_| Err(nowhere()))
            }
        }
    }
}

/// What to do about an answer.
enum Next {
    /// It is the answer.
    Take,
    /// To be sent there.
    Go { line: Arc<Line>, asking: bool },
    /// To be sent there again, soon.
    Soon,
}

impl Node {
    /// The way to `target`; with its place among the servers of a quorum, if it is of one.
    pub(crate) fn new(target: Target, identity: Option<Identity>) -> Arc<Self> {
        let way = match &target.place {
            Place::Server(info) => Some(Way::Server(Line::new(Dialer::Fixed(info.clone()), identity))),
            Place::Sentinel(sentinels) => {
                Some(Way::Sentinel(Line::new(Dialer::Primary(sentinels.clone()), identity)))
            }
            Place::Cluster(seeds) => {
                Cluster::new(seeds, identity.as_ref()).map(|cluster| Way::Cluster(Box::new(cluster)))
            }
        };
        Arc::new(Self { target, way })
    }

    pub(crate) fn name(&self) -> &str {
        &self.target.name
    }

    pub(crate) const fn target(&self) -> &Target {
        &self.target
    }

    /// Queues `request`, which is about `key`, on the shared connection, at once and in order. Needs a tokio runtime
    /// round it. The answer comes `within` that time, or none.
    pub(crate) fn send(
        self: &Arc<Self>,
        request: impl Into<Request>,
        key: &[u8],
        within: Duration,
    ) -> oneshot::Receiver<Answer> {
        let (request, slot) = (request.into(), slot(key));
        let (tell, told) = oneshot::channel();
        let Some(line) = self.line(slot) else {
            let _ = tell.send(Err(nowhere()));
            return told;
        };
        let first = line.send(request.clone(), within);
        if matches!(self.way, Some(Way::Server(_))) {
            return first;
        }
        let (this, trip) = (self.clone(), Trip { slot, until: Some(deadline(within)), alone: None });
        tokio::spawn(async move {
            let first = first.await.unwrap_or_else(|_| Err(nowhere()));
            let _ = tell.send(this.follow(first, line, request, trip).await);
        });
        told
    }

    /// Carries out `request`, which is about `key`, on a connection of its own, which closes when this future is
    /// dropped.
    pub(crate) async fn alone(
        &self,
        request: impl Into<Request>,
        key: &[u8],
        connect_within: Duration,
        within: Option<Duration>,
    ) -> Answer {
        let (request, slot) = (request.into(), slot(key));
        let trip = Trip { slot, until: within.map(deadline), alone: Some(connect_within) };
        let line = self.line(slot).ok_or_else(nowhere)?;
        let first = trip.send(&line, &request).await;
        self.follow(first, line, request, trip).await
    }

    /// The connections to all servers that have keys: one, or those of a cluster, which is asked for them.
    pub(crate) async fn servers(self: &Arc<Self>, within: Duration) -> Result<Vec<Arc<Line>>, Failure> {
        let here = self.line(0).ok_or_else(nowhere)?;
        let Some(Way::Cluster(cluster)) = &self.way else { return Ok(vec![here]) };
        let mut cmd = redis::cmd("CLUSTER");
        cmd.arg("SLOTS");
        let slots = self.send(cmd, b"", within).await.unwrap_or_else(|_| Err(nowhere()))?;
        cluster.primaries(&slots, &here).ok_or_else(|| {
            Failure::new(FailureKind::Refused, "the cluster names no servers for some of its slots")
        })
    }

    fn line(&self, slot: u16) -> Option<Arc<Line>> {
        match self.way.as_ref()? {
            Way::Server(line) | Way::Sentinel(line) => Some(line.clone()),
            Way::Cluster(cluster) => cluster.line(slot),
        }
    }

    /// Sends `request` on for as long as the answers say so and there is time.
    async fn follow(&self, first: Answer, mut line: Arc<Line>, mut request: Request, trip: Trip) -> Answer {
        let mut answer = first;
        for _ in 0..HOPS_MAX {
            let next = self.next(&answer, &line, trip.slot);
            if trip.until.is_some_and(|until| left(until) <= PAUSE) {
                break;
            }
            match next {
                Next::Take => break,
                Next::Go { line: to, asking } => {
                    line = to;
                    request.asking = asking;
                }
                Next::Soon => tokio::time::sleep(PAUSE).await,
            }
            answer = trip.send(&line, &request).await;
        }
        answer
    }

    fn next(&self, answer: &Answer, line: &Arc<Line>, slot: u16) -> Next {
        match (&self.way, refusal(answer)) {
            // The line has taken note, and asks the sentinels before the request goes out again.
            (Some(Way::Sentinel(_)), Some(error)) if error.code() == "READONLY" => Next::Soon,
            (Some(Way::Cluster(cluster)), error) => next_in(cluster, answer, error, line, slot),
            _ => Next::Take,
        }
    }
}

fn next_in(
    cluster: &Cluster,
    answer: &Answer,
    error: Option<&ServerError>,
    line: &Arc<Line>,
    slot: u16,
) -> Next {
    let redirect = error.and_then(Redirect::of);
    match (redirect, error) {
        (Some(Redirect::TryAgain), _) => return Next::Soon,
        (Some(redirect), _) => {
            if let Some(to) = cluster.follow(redirect, line) {
                return Next::Go { line: to, asking: matches!(redirect, Redirect::Ask { .. }) };
            }
        }
        (None, Some(error)) if matches!(error.code(), "CLUSTERDOWN" | "READONLY" | "MASTERDOWN") => {
            cluster.forget(slot, line);
        }
        (None, _) => {}
    }
    match answer {
        Err(failure) => {
            cluster.forget(slot, line);
            let other = cluster.line(slot).filter(|other| !Arc::ptr_eq(other, line));
            match (failure.kind, other) {
                (FailureKind::NotSent, Some(line)) => Next::Go { line, asking: false },
                _ => Next::Take,
            }
        }
        Ok(_) => Next::Take,
    }
}

fn nowhere() -> Failure {
    Failure::new(FailureKind::NotSent, "nowhere to send it")
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}
