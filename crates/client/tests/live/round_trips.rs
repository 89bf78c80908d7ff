//! What a lock costs, in requests and in round trips, counted by proxies before the nodes.
//!
//! A client is connected when the count begins: a connection is made once, its requests are those of the lock.

use std::time::Duration;

use lockfence_client::{Error, Held, Lockfence, Options, Released};
use lockfence_testkit::{Proxy, Server, ServerKind, cmd, server_tests, wait_until};

use crate::common::{LONG, run};

/// Far above what any test takes: nothing is renewed meanwhile.
const TTL: Duration = Duration::from_secs(600);

/// Servers, and a proxy before each.
struct Nodes {
    servers: Vec<Server>,
    proxies: Vec<Proxy>,
}

/// Requests and round trips of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cost {
    requests: u64,
    round_trips: u64,
}

const ONE: Cost = Cost { requests: 1, round_trips: 1 };

/// For 30 s after its start a server's tokens come from its restart floor, a little above that of a server that was
/// started before. So they are given a token above all of these.
fn level(servers: &[Server]) {
    let floor = |server: &Server| server.info("lockfence")["lockfence_restart_floor"].parse::<u64>().unwrap();
    let level = servers.iter().map(floor).max().unwrap() + 1_000_000;
    for server in servers {
        let mut conn = server.connect();
        assert_eq!(cmd!(conn, "LOCK.ACQUIRE", "level", "me", 1000, "MINTOKEN", level).token(), level);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "level", "me").int(), 1);
    }
}

impl Nodes {
    fn start(kind: ServerKind, count: usize) -> Self {
        let servers: Vec<Server> = (0..count).map(|_| Server::start(kind)).collect();
        level(&servers);
        let proxies = servers.iter().map(Proxy::to).collect();
        Self { servers, proxies }
    }

    /// A client that is connected to each of them.
    async fn client(&self) -> Lockfence {
        let builder =
            self.proxies.iter().fold(Lockfence::builder(), |builder, proxy| builder.node(proxy.url()));
        let locks = builder.ttl(TTL).node_timeout(Duration::from_secs(20)).build().unwrap();
        let held = self.acquire_at(&locks, "warm up", Options::try_once()).await;
        held.release().await;
        assert!(locks.settled(LONG).await);
        self.wait_answered();
        locks
    }

    /// Acquires, and waits until all nodes have granted it: a majority suffices for the client.
    async fn acquire_at(&self, locks: &Lockfence, lock: &str, options: Options) -> Held {
        let held = locks.acquire(lock, options).await.unwrap();
        self.wait_everywhere(lock);
        held
    }

    fn wait_everywhere(&self, lock: &str) {
        let state = |server: &Server| cmd!(server.connect(), "LOCK.INFO", lock);
        for server in &self.servers {
            wait_until(
                "held",
                LONG,
                || state(server),
                |info| !info.is_nil() && info.field("state").text() == "held",
            );
        }
    }

    /// Waits until nothing is under way.
    fn wait_answered(&self) {
        for proxy in &self.proxies {
            wait_until("all answered", LONG, || proxy.stats(), |stats| stats.requests == stats.replies);
        }
    }

    fn costs(&self) -> Vec<Cost> {
        let cost = |proxy: &Proxy| {
            let stats = proxy.stats();
            Cost { requests: stats.requests, round_trips: stats.round_trips }
        };
        self.proxies.iter().map(cost).collect()
    }

    fn costs_since(&self, before: &[Cost]) -> Vec<Cost> {
        let since = |(now, before): (Cost, &Cost)| Cost {
            requests: now.requests - before.requests,
            round_trips: now.round_trips - before.round_trips,
        };
        self.costs().into_iter().zip(before).map(since).collect()
    }

    /// Which node the waiters of a lock queue at.
    fn queue_node(&self, lock: &str, waiters: i64) -> usize {
        let at = || {
            let waits = |server: &Server| {
                let info = cmd!(server.connect(), "LOCK.INFO", lock);
                !info.is_nil() && info.field("waiters").int() == waiters
            };
            self.servers.iter().position(waits)
        };
        wait_until("somebody in the queue", LONG, at, Option::is_some).unwrap()
    }
}

async fn uncontended(nodes: &Nodes) {
    let locks = nodes.client().await;
    for round in 0..20 {
        let lock = format!("lock:{}", round % 3);
        let before = nodes.costs();
        let held = nodes.acquire_at(&locks, &lock, Options::wait_up_to(LONG)).await;
        nodes.wait_answered();
        assert_eq!(nodes.costs_since(&before), vec![ONE; nodes.proxies.len()], "acquire, {round}");
        let before = nodes.costs();
        assert_eq!(held.release().await, Released::Ended);
        assert!(locks.settled(LONG).await); // a majority has answered, the last one may be under way
        nodes.wait_answered();
        assert_eq!(nodes.costs_since(&before), vec![ONE; nodes.proxies.len()], "release, {round}");
    }
}

server_tests! {
    /// Three level nodes: one round trip to each for an acquire, one for a release.
    fn an_uncontended_lock_on_three_nodes(kind: ServerKind) {
        let nodes = Nodes::start(kind, 3);
        run(uncontended(&nodes));
    }

    /// One server: the same.
    fn an_uncontended_lock_on_one_server(kind: ServerKind) {
        let nodes = Nodes::start(kind, 1);
        run(uncontended(&nodes));
    }

    /// Somebody waits. The holder releases at each node. The waiter's WAIT at the queue node is answered, and it acquires
    /// once at each node: a lease that began before the clock was read proves nothing.
    fn a_hand_over(kind: ServerKind) {
        for count in [1, 3] {
            let nodes = Nodes::start(kind, count);
            run(async {
                let (one, other) = (nodes.client().await, nodes.client().await);
                let held = nodes.acquire_at(&one, "lock", Options::try_once()).await;
                let before = nodes.costs();
                let waiting = tokio::spawn(async move { other.acquire("lock", Options::wait_up_to(LONG)).await });
                let queue_node = nodes.queue_node("lock", 1);
                for (node, cost) in nodes.costs_since(&before).into_iter().enumerate() {
                    // The first try, and at the queue node a connection for the WAIT, which is open, and the WAIT itself.
                    let acquires = if node == queue_node { 2 } else { 1 };
                    assert!((acquires..=acquires + 4).contains(&cost.requests), "{count} nodes, node {node}: {cost:?}");
                }
                wait_until("the first try's answers", LONG, || open(&nodes), |open| *open == 1);
                let before = nodes.costs();
                held.release().await;
                let next = waiting.await.unwrap().unwrap();
                assert!(one.settled(LONG).await);
                let two = vec![Cost { requests: 2, round_trips: 2 }; count];
                let costs = || nodes.costs_since(&before);
                wait_until("a release and an acquire at each node", LONG, costs, |costs| *costs == two);
                nodes.wait_answered();
                assert_eq!(costs(), two, "{count} nodes: and no more");
                next.release().await;
            });
        }
    }

    /// A try at a lock that is held: one round trip to each node. Whoever has refused it has nothing to be given back,
    /// also where its answer came after the try was lost: so all is settled long before the ttl.
    fn a_try_that_is_refused(kind: ServerKind) {
        let nodes = Nodes::start(kind, 3);
        run(async {
            let (one, other) = (nodes.client().await, nodes.client().await);
            let held = nodes.acquire_at(&one, "lock", Options::try_once()).await;
            for _ in 0..20 {
                let before = nodes.costs();
                assert!(matches!(other.try_acquire("lock").await, Err(Error::Held { .. })));
                assert!(other.settled(LONG).await, "long before the ttl of {TTL:?}");
                nodes.wait_answered();
                assert_eq!(nodes.costs_since(&before), vec![ONE; 3]);
            }
            held.release().await;
        });
    }
}

/// How many requests are not answered.
fn open(nodes: &Nodes) -> u64 {
    nodes.proxies.iter().map(Proxy::stats).map(|stats| stats.requests - stats.replies).sum()
}
