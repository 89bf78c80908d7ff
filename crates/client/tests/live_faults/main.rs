//! Five real servers, sixteen contenders, and somebody who kills, stops and cuts off the servers. What came of it is
//! judged: tokens unique and rising in real time, one holder at a time, no stale write, no write lost, nobody starved.
//!
//! About eight seconds in a plain `cargo test`; `LOCKFENCE_LIVE_SECONDS=60` for longer, `LOCKFENCE_LIVE_SEED=n` for other
//! faults.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

#[path = "../common/mod.rs"]
mod common;
mod judge;
mod nemesis;
mod worker;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lockfence_client::{Lockfence, Lost, Options};
use lockfence_testkit::{Proxy, Server, ServerKind, cmd, server_tests, wait_until};

use common::{LONG, runtime};
use judge::{End, History, judge, smallest_share};
use nemesis::Nemesis;
use worker::{Shared, TTL, Tally, Worker};

const NODES: usize = 5;
const WORKERS: usize = 16;

/// How much later than its deadline a loss may be told on a busy machine.
const TOLD_WITHIN: Duration = Duration::from_secs(2);

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

/// Nodes that lose nothing that they have confirmed, each behind a proxy.
fn start_nodes(kind: ServerKind) -> (Vec<Server>, Vec<Proxy>) {
    let node = || {
        let node = Server::builder(kind).may_die().arg("appendonly", "yes").arg("appendfsync", "always");
        node.start()
    };
    let nodes: Vec<Server> = (0..NODES).map(|_| node()).collect();
    let proxies = nodes.iter().map(Proxy::to).collect();
    (nodes, proxies)
}

fn client(proxies: &[Proxy], ttl: Duration) -> Lockfence {
    let builder = proxies.iter().fold(Lockfence::builder(), |builder, proxy| builder.node(proxy.url()));
    builder.ttl(ttl).build().unwrap()
}

struct Outcome {
    history: History,
    tally: Tally,
    /// How many of the grants were made before the faults began.
    calm: usize,
    faults: String,
}

/// Sixteen workers for `seconds`: the first quarter without faults, and a storm in the last.
fn contend(kind: ServerKind, seconds: u64, seed: u64) -> Outcome {
    let (nodes, proxies) = start_nodes(kind);
    let data = Server::start(kind);
    let data_proxy = Proxy::to(&data);
    let began = Instant::now();
    let shared = Arc::new(Shared {
        began,
        history: Mutex::default(),
        tally: Mutex::default(),
        stop: AtomicBool::new(false),
        stalls_at: AtomicUsize::new(100),
    });
    let runtime = runtime();
    let workers: Vec<_> = (0..WORKERS)
        .map(|id| {
            let data = redis::Client::open(data_proxy.url()).unwrap();
            let worker = Worker { id, locks: client(&proxies, TTL), data, shared: shared.clone(), old: None };
            runtime.spawn(worker.run())
        })
        .collect();
    let at = |quarters: u64| began + Duration::from_millis(seconds * 250 * quarters);
    std::thread::sleep(at(1).saturating_duration_since(Instant::now()));
    let calm = shared.history.lock().unwrap().grants.len();
    let mut nemesis = Nemesis::new(&nodes, &proxies, &data_proxy, seed);
    nemesis.run(at(3), false);
    nemesis.run(at(4), true);
    let faults = format!("{:?}", nemesis.done);
    shared.stop.store(true, Ordering::Relaxed);
    runtime.block_on(async {
        for worker in workers {
            tokio::time::timeout(LONG * 2, worker).await.expect("each worker ends").expect("without a panic");
        }
    });
    for (node, server) in nodes.iter().enumerate() {
        let state = || {
            let info = cmd!(server.connect(), "LOCK.INFO", "lock");
            if info.is_nil() { (0, 0) } else { (info.field("holders").int(), info.field("waiters").int()) }
        };
        let left = wait_until("nothing left", TTL + LONG, state, |left| *left == (0, 0));
        assert_eq!(left, (0, 0), "node {node}");
    }
    let register = cmd!(data.connect(), "GET", "register").text().parse().unwrap();
    let mut history = shared.history.lock().unwrap().clone();
    history.register = register;
    Outcome { history, tally: shared.tally.lock().unwrap().clone(), calm, faults }
}

fn report(kind: ServerKind, seconds: u64, seed: u64, outcome: &Outcome) -> String {
    let Outcome { history, tally, calm, faults } = outcome;
    let count = |end: End| history.writes.iter().filter(|write| write.end == end).count();
    let late = |end: End| history.late_writes.iter().filter(|write| write.end == end).count();
    format!(
        "{kind}, {seconds} s, seed {seed}: {} grants ({calm} in the calm quarter, smallest share there {:.2}, over all \
         {:.2}), longest wait {} ms, {} attempts without the lock; {} writes, {} unknown, {} fenced; late writes: {} \
         fenced, {} before anybody else had the lock; {} stalls, loss told at most {} ms late; {} times no fence\n{faults}",
        history.grants.len(),
        smallest_share(&history.grants[..*calm], WORKERS),
        smallest_share(&history.grants, WORKERS),
        tally.longest_wait_us / 1000,
        tally.not_had,
        count(End::Done),
        count(End::Unknown),
        count(End::Fenced),
        late(End::Fenced),
        late(End::Done),
        tally.lost,
        tally.lost_late_us / 1000,
        tally.fence_unreached,
    )
}

server_tests! {
    fn sixteen_contenders_under_faults(kind: ServerKind) {
        let usual = if kind == ServerKind::Redis70 { 8 } else { 4 };
        let seconds = number("LOCKFENCE_LIVE_SECONDS").unwrap_or(usual);
        let seed = number("LOCKFENCE_LIVE_SEED").unwrap_or(1);
        println!("{kind}, {seconds} s, seed {seed}: begins"); // whoever panics in it leaves no other line
        let outcome = contend(kind, seconds, seed);
        let report = report(kind, seconds, seed, &outcome);
        println!("{report}");
        let violations = judge(&outcome.history);
        assert!(violations.is_empty(), "{report}\n{}", violations.iter().map(|v| format!("{v}\n")).collect::<String>());
        let Outcome { history, tally, calm, .. } = outcome;
        assert!(history.grants.len() >= WORKERS, "{report}");
        assert!(history.late_writes.iter().any(|write| write.end == End::Fenced), "{report}");
        assert!(tally.lost_late_us < TOLD_WITHIN.as_micros() as u64, "{report}");
        // In a short run one turn more or less is much. Faults hit nodes, so that all workers suffer alike.
        for grants in [&history.grants[..calm], &history.grants] {
            if grants.len() >= 20 * WORKERS {
                assert!(smallest_share(grants, WORKERS) >= 0.8, "{report}");
            }
        }
    }

    /// All nodes cut off in silence, no connection reset: the loss is told by the deadline, and nobody takes the lock as
    /// held after it.
    fn a_loss_in_silence(kind: ServerKind) {
        let (_nodes, proxies) = start_nodes(kind);
        let runtime = runtime();
        runtime.block_on(async {
            let locks = client(&proxies, TTL);
            let held = locks.acquire("lock", Options::wait_up_to(LONG)).await.unwrap();
            let mut deadline = Instant::now() + held.remaining();
            let look = |deadline: Instant| deadline.max(Instant::now() + held.remaining());
            let renewed = deadline + Duration::from_millis(100);
            while deadline < renewed {
                deadline = look(deadline);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            proxies.iter().for_each(Proxy::black_hole);
            let cut_off = Instant::now();
            let lost = loop {
                deadline = look(deadline);
                match tokio::time::timeout(Duration::from_millis(5), held.lost()).await {
                    Ok(lost) => break lost,
                    Err(_) => assert!(held.is_held() || Instant::now() >= deadline),
                }
            };
            let told = Instant::now();
            assert!(matches!(&lost, Lost::NoQuorum(nodes) if nodes.len() >= 3), "{lost}");
            assert!(!held.is_held());
            assert!(told <= deadline + TOLD_WITHIN, "told {:?} after the deadline", told - deadline);
            assert!(deadline <= cut_off + TTL, "nothing that was sent after the cut has prolonged it");
        });
    }
}
