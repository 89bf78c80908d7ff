//! Futures that are dropped, at each point where they can be: at each poll, and with each message held back on its way.
//!
//! No lock and no waiter may be left behind: soon where the nodes answer, and after one ttl at the latest. Leases are ten
//! minutes here where "soon" is asked for, so that nothing that ends with its lease can pass.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use lockfence_client::{Error, Held, Lockfence, Options, Released};
use lockfence_testkit::{Direction, Proxy, Server, ServerKind, cmd, server_tests, wait_until};
use tokio::task::JoinHandle;

use crate::common::{LONG, run, runtime};

/// Nothing may be left after that, on a busy machine; a small part of the ttl.
const SOON: Duration = Duration::from_secs(20);
const TTL: Duration = Duration::from_secs(600);
/// Longer than anything takes that is not held back.
const NODE_TIMEOUT: Duration = Duration::from_secs(8);
/// Points at which something can be dropped, at most: then the test itself goes wrong.
const POINTS_MAX: u64 = 60;

/// Three nodes behind proxies.
struct Nodes {
    servers: Vec<Server>,
    proxies: Vec<Proxy>,
}

impl Nodes {
    fn start(kind: ServerKind) -> Self {
        let servers: Vec<Server> = (0..3).map(|_| Server::start(kind)).collect();
        let proxies = servers.iter().map(Proxy::to).collect();
        Self { servers, proxies }
    }

    fn through_proxies(&self) -> Lockfence {
        client(self.proxies.iter().map(Proxy::url), TTL)
    }

    /// Past the proxies.
    fn direct(&self) -> Lockfence {
        client(self.servers.iter().map(Server::url), TTL)
    }

    fn hold_after(&self, direction: Direction, pieces: u64) {
        self.proxies.iter().for_each(|proxy| proxy.hold_after(direction, pieces));
    }

    fn pass(&self) {
        self.proxies.iter().for_each(Proxy::pass);
    }

    fn held_back(&self) -> usize {
        self.proxies.iter().map(Proxy::held).sum()
    }

    fn info(&self, lock: &str, field: &str) -> Vec<Option<String>> {
        let of = |server: &Server| {
            let info = cmd!(server.connect(), "LOCK.INFO", lock);
            (!info.is_nil()).then(|| format!("{:?}", info.field(field)))
        };
        self.servers.iter().map(of).collect()
    }

    fn somebody_waits(&self, lock: &str) -> bool {
        self.info(lock, "waiters").iter().any(|waiters| waiters.as_deref() == Some("1"))
    }

    /// No lease and no waiter anywhere, and no connection that waits.
    #[track_caller]
    fn nothing_left(&self, lock: &str, within: Duration) {
        let look = || {
            let blocked: Vec<String> =
                self.servers.iter().map(|server| server.info("clients")["blocked_clients"].clone()).collect();
            (self.info(lock, "holders"), self.info(lock, "waiters"), blocked)
        };
        wait_until("nothing to be left", within, look, |(holders, waiters, blocked)| {
            let none = |counts: &[Option<String>]| counts.iter().flatten().all(|count| count == "0");
            none(holders) && none(waiters) && blocked.iter().all(|count| count == "0")
        });
    }

    /// The other side's lease is there everywhere, and it is all that is there.
    #[track_caller]
    fn only_the_holder_left(&self, lock: &str) {
        let look = || (self.info(lock, "holders"), self.info(lock, "waiters"));
        wait_until("the holder alone", SOON, look, |(holders, waiters)| {
            holders.iter().all(|count| count.as_deref() == Some("1"))
                && waiters.iter().all(|count| count.as_deref() == Some("0"))
        });
    }
}

fn client(urls: impl Iterator<Item = String>, ttl: Duration) -> Lockfence {
    let builder = urls.fold(Lockfence::builder(), lockfence_client::Builder::node);
    builder.ttl(ttl).node_timeout((ttl / 4).min(NODE_TIMEOUT)).build().unwrap()
}

/// What the future came to, if that took at most so many polls; it is dropped then.
async fn polled<T>(future: impl Future<Output = T>, polls: u64) -> Option<T> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            // The last poll that it gets: it is dropped when something would have happened, or now.
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Waits until the task is over, or stands still because of the proxies.
#[track_caller]
fn over_or_held_back<T>(nodes: &Nodes, task: &JoinHandle<T>) -> bool {
    let look = || (task.is_finished(), nodes.held_back());
    wait_until("the end, or a message held back", LONG, look, |(over, held)| *over || *held > 0).0
}

async fn dropped<T>(task: JoinHandle<T>) -> Option<T> {
    task.abort();
    task.await.ok()
}

async fn get(locks: &Lockfence, lock: &str) -> Result<Held, Error> {
    locks.acquire(lock, Options::wait_up_to(Duration::from_secs(300))).await
}

/// A sleep takes whole milliseconds.
async fn spin(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        tokio::task::yield_now().await;
    }
}

const BOTH: [Direction; 2] = [Direction::ToServer, Direction::ToClient];

server_tests! {
    /// At each poll, on a lock that is free, and on one that is held and then given back.
    fn acquire_at_each_poll(kind: ServerKind) {
        let nodes = Nodes::start(kind);
        run(async {
            let (locks, other) = (nodes.direct(), nodes.direct());
            for polls in 1..POINTS_MAX {
                let over = polled(get(&locks, "free"), polls).await;
                let is_over = over.is_some();
                drop(over);
                nodes.nothing_left("free", SOON);
                if is_over {
                    assert!(polls > 1);
                    break;
                }
            }
            for polls in 1..POINTS_MAX {
                let held = get(&other, "held").await.unwrap();
                let release = async {
                    tokio::time::timeout(Duration::from_millis(300), std::future::pending::<()>()).await.unwrap_err();
                    held.release().await;
                };
                let (over, ()) = tokio::join!(polled(get(&locks, "held"), polls), release);
                let is_over = over.is_some();
                drop(over);
                nodes.nothing_left("held", SOON);
                if is_over {
                    break;
                }
            }
        });
    }

    /// With each message of an acquire held back in turn, either way, from the first connection on.
    fn acquire_with_each_message_held_back(kind: ServerKind) {
        let nodes = Nodes::start(kind);
        run(async {
            for direction in BOTH {
                let mut points = 0;
                for pieces in 0..POINTS_MAX {
                    let locks = nodes.through_proxies();
                    nodes.hold_after(direction, pieces);
                    let task = tokio::spawn(async move { get(&locks, "lock").await });
                    let is_over = over_or_held_back(&nodes, &task);
                    drop(dropped(task).await);
                    if direction == Direction::ToClient {
                        // The nodes are reached, only their answers are not: nothing waits for those.
                        nodes.nothing_left("lock", SOON);
                    }
                    nodes.pass();
                    nodes.nothing_left("lock", SOON);
                    points = pieces;
                    if is_over {
                        break;
                    }
                }
                assert!((1..POINTS_MAX - 1).contains(&points), "{direction:?}: {points}");
            }
        });
    }

    /// The same on a lock that somebody has: through the queue. The holder keeps it, or gives it back before the drop.
    fn a_wait_with_each_message_held_back(kind: ServerKind) {
        let nodes = Nodes::start(kind);
        run(async {
            for direction in BOTH {
                for gives_back in [false, true] {
                    let other = nodes.direct();
                    let mut waited = 0;
                    for pieces in 0..POINTS_MAX {
                        let held = get(&other, "lock").await.unwrap();
                        nodes.only_the_holder_left("lock");
                        let locks = nodes.through_proxies();
                        nodes.hold_after(direction, pieces);
                        let task = tokio::spawn(async move { get(&locks, "lock").await });
                        let look = || (nodes.held_back(), nodes.somebody_waits("lock"));
                        let (_, waits) = wait_until("a waiter, or a message held back", LONG, look, |(held, waits)| {
                            *held > 0 || *waits
                        });
                        waited += u64::from(waits);
                        let mut is_over = waits && nodes.held_back() == 0;
                        let mut held = Some(held);
                        if gives_back {
                            held.take().unwrap().release().await;
                            is_over = over_or_held_back(&nodes, &task);
                        }
                        drop(dropped(task).await);
                        if held.is_some() && direction == Direction::ToClient {
                            nodes.only_the_holder_left("lock");
                        }
                        nodes.pass();
                        if let Some(held) = held {
                            nodes.only_the_holder_left("lock");
                            assert_eq!(held.release().await, Released::Ended);
                        }
                        nodes.nothing_left("lock", SOON);
                        if is_over {
                            break;
                        }
                    }
                    assert!(waited > 0, "{direction:?}, gives back {gives_back}");
                }
            }
        });
    }

    /// The connection of a WAIT that was called off is closed.
    fn the_connection_of_an_abandoned_wait(kind: ServerKind) {
        let nodes = Nodes::start(kind);
        run(async {
            let (locks, other) = (nodes.direct(), nodes.direct());
            drop(get(&locks, "warm up").await.unwrap());
            assert!(locks.settled(LONG).await);
            let _held = get(&other, "lock").await.unwrap();
            nodes.only_the_holder_left("lock");
            let waiting = |server: &Server| {
                let clients = cmd!(server.connect(), "CLIENT", "LIST").text();
                clients.lines().filter(|line| line.contains("cmd=lock.acquire") && line.contains("flags=b")).count()
            };
            let connected = |server: &Server| server.info("clients")["connected_clients"].clone();
            let before: Vec<String> = nodes.servers.iter().map(connected).collect();
            let task = tokio::spawn(async move { get(&locks, "lock").await });
            let all_waiting = || nodes.servers.iter().map(waiting).sum::<usize>();
            wait_until("a connection that waits", LONG, all_waiting, |count| *count == 1);
            drop(dropped(task).await);
            wait_until("none", SOON, all_waiting, |count| *count == 0);
            let now = || nodes.servers.iter().map(connected).collect::<Vec<String>>();
            wait_until("as many connections as before", SOON, now, |now| *now == before);
        });
    }

    /// Once a wait is called off it is settled as soon as the nodes have answered, long before anything could have ended by
    /// itself: a program that is interrupted need not wait for it.
    fn a_wait_that_is_called_off_is_settled_at_once(kind: ServerKind) {
        let nodes = Nodes::start(kind);
        run(async {
            let (locks, other) = (nodes.direct(), nodes.direct());
            let held = get(&other, "lock").await.unwrap();
            nodes.only_the_holder_left("lock");
            let task = tokio::spawn({
                let locks = locks.clone();
                async move { get(&locks, "lock").await }
            });
            wait_until("a waiter", LONG, || nodes.somebody_waits("lock"), |waits| *waits);
            drop(dropped(task).await);
            assert!(locks.settled(SOON).await);
            nodes.only_the_holder_left("lock");
            assert_eq!(held.release().await, Released::Ended);
        });
    }

    /// Waits that are called off just as the lock is handed over to them: what is said to be settled is.
    fn waits_that_are_called_off_at_a_hand_over(kind: ServerKind) {
        const LOCKS: u64 = 60;
        let nodes = Nodes::start(kind);
        let names: Vec<String> = (0..LOCKS).map(|n| format!("lock:{n}")).collect();
        run(async {
            let (locks, other) = (nodes.direct(), nodes.direct());
            let mut pairs = Vec::new();
            for name in names.clone() {
                let (held, locks) = (get(&other, &name).await.unwrap(), locks.clone());
                nodes.only_the_holder_left(&name); // who has the queue node need not wait there
                pairs.push((held, tokio::spawn(async move { get(&locks, &name).await })));
            }
            for name in &names {
                wait_until("a waiter", LONG, || nodes.somebody_waits(name), |waits| *waits);
            }
            let ended = pairs.into_iter().zip(0..).map(|((held, task), n)| {
                let release = async move {
                    spin(Duration::from_micros(n % 30 * 100)).await;
                    held.release().await
                };
                let call_off = async move {
                    spin(Duration::from_micros(1_500)).await;
                    drop(dropped(task).await);
                };
                tokio::spawn(async move { tokio::join!(release, call_off) })
            });
            for pair in ended.collect::<Vec<_>>() {
                assert_eq!(pair.await.unwrap().0, Released::Ended);
            }
            assert!(locks.settled(SOON).await && other.settled(SOON).await);
            for name in &names {
                let holders = nodes.info(name, "holders");
                assert!(holders.iter().flatten().all(|count| count == "0"), "{name}: {holders:?}");
            }
        });
    }

    /// `with_lock`, at each poll and with each message held back: before, in and after its body.
    fn with_lock_at_each_point(kind: ServerKind) {
        let nodes = Nodes::start(kind);
        run(async {
            let body = async |_: &Held| {
                for _ in 0..5 {
                    tokio::task::yield_now().await;
                }
            };
            let locks = nodes.direct();
            for polls in 1..POINTS_MAX {
                let over = polled(locks.with_lock("lock", Options::try_once(), body), polls).await;
                nodes.nothing_left("lock", SOON);
                if over.is_some() {
                    assert!(polls > 6, "{polls} polls");
                    break;
                }
            }
            for direction in BOTH {
                for pieces in 0..POINTS_MAX {
                    let locks = nodes.through_proxies();
                    nodes.hold_after(direction, pieces);
                    let task = tokio::spawn(async move {
                        let options = Options::wait_up_to(LONG);
                        locks.with_lock("lock", options, async |_| tokio::task::yield_now().await).await
                    });
                    let is_over = over_or_held_back(&nodes, &task);
                    drop(dropped(task).await);
                    nodes.pass();
                    nodes.nothing_left("lock", SOON);
                    if is_over && nodes.held_back() == 0 {
                        break;
                    }
                    assert!(pieces + 1 < POINTS_MAX, "{direction:?}");
                }
            }
        });
    }

    /// A release that is dropped is carried out all the same; a fence that is dropped leaves the lock as it is.
    fn release_and_fence_at_each_poll(kind: ServerKind) {
        let nodes = Nodes::start(kind);
        let data = Server::start(kind);
        let data_client = redis::Client::open(data.url()).unwrap();
        run(async {
            let locks = nodes.direct();
            for polls in 0..POINTS_MAX {
                let held = get(&locks, "lock").await.unwrap();
                let over = polled(held.release(), polls).await;
                nodes.nothing_left("lock", SOON);
                if let Some(released) = over {
                    assert_eq!(released, Released::Ended);
                    break;
                }
                assert!(polls + 1 < POINTS_MAX);
            }
            for polls in 0..POINTS_MAX {
                let held = get(&locks, "lock").await.unwrap();
                let over = polled(held.fence(&data_client), polls).await;
                assert!(held.is_held());
                held.fence(&data_client).await.unwrap().write("data", polls).await.unwrap();
                assert_eq!(held.release().await, Released::Ended);
                nodes.nothing_left("lock", SOON);
                if over.is_some() {
                    assert!(polls > 1);
                    break;
                }
                assert!(polls + 1 < POINTS_MAX);
            }
        });
    }

    /// The runtime that renews a lock ends before it is released: the lock is still there, and nobody knows for how long.
    fn a_release_after_the_runtime_has_ended(kind: ServerKind) {
        let nodes = Nodes::start(kind);
        let locks = nodes.direct();
        let first = runtime();
        let held = first.block_on(get(&locks, "lock")).unwrap();
        nodes.only_the_holder_left("lock");
        first.shutdown_timeout(Duration::from_secs(10));
        assert!(held.is_held());
        assert_eq!(run(held.release()), Released::Unconfirmed);
        nodes.only_the_holder_left("lock");
    }

    /// The runtime ends while a lock is held, and while one is waited for: the lease ends with its ttl, here and there.
    fn the_runtime_ends(kind: ServerKind) {
        const TTL: Duration = Duration::from_secs(3);
        let nodes = Nodes::start(kind);
        let locks = client(nodes.servers.iter().map(Server::url), TTL);
        let first = runtime();
        let held = first.block_on(get(&locks, "lock")).unwrap();
        let task = first.spawn({
            let locks = locks.clone();
            async move { get(&locks, "lock").await }
        });
        wait_until("a waiter", LONG, || nodes.somebody_waits("lock"), |waits| *waits);
        let gone_at = Instant::now();
        first.shutdown_timeout(Duration::from_secs(10));
        assert!(task.is_finished());
        let remaining = held.remaining();
        assert!(remaining <= TTL);
        nodes.nothing_left("lock", TTL + SOON);
        wait_until("not held any more", TTL + SOON, || held.is_held(), |held| !*held);
        assert!(gone_at.elapsed() >= remaining, "not before its time");
        run(async {
            let token = held.token();
            let reason = tokio::time::timeout(SOON, held.lost()).await.expect("told, although nobody renews it");
            println!("lost: {reason}");
            assert_eq!(held.release().await, Released::NotHeld);
            let again = get(&locks, "lock").await.unwrap();
            assert!(again.token() > token);
            assert_eq!(again.release().await, Released::Ended);
        });
    }
}
