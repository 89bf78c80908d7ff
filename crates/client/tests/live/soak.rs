//! Many at once, while the servers change their roles and slots their places. `LOCKFENCE_SOAK_SECONDS` makes it longer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockfence_client::{Builder, Error, Lockfence, Options};
use lockfence_testkit::{Cluster, Received, Reply, Sentinel, Server, ServerKind, cmd, key_slot, wait_until};

use crate::{LONG, ms};

fn seconds() -> Duration {
    let seconds = std::env::var("LOCKFENCE_SOAK_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(5))
}

/// The locks, and for each a key of data in its slot.
const LOCKS: [(&str, &str); 3] =
    [("lock", "{lock}:data"), ("lock:{a}", "data:{a}"), ("lock:{b}", "data:{b}")];

#[derive(Default)]
struct Told {
    /// For each lock the highest token that somebody was told.
    tokens: [AtomicU64; 3],
    grants: AtomicU64,
    refused: AtomicU64,
}

/// Gets one lock after the other, writes under its token, gives it back.
async fn work(locks: Lockfence, worker: usize, told: Arc<Told>, over: Arc<AtomicBool>) {
    for lock in (0..LOCKS.len()).cycle().skip(worker) {
        if over.load(Ordering::SeqCst) {
            return;
        }
        let (name, key) = LOCKS[lock];
        let before = told.tokens[lock].load(Ordering::SeqCst);
        let began = Instant::now();
        let held = match locks.acquire(name, Options::wait_up_to(ms(5_000))).await {
            Ok(held) => held,
            Err(Error::TimedOut { .. } | Error::NoQuorum(_) | Error::Indeterminate(_)) => {
                assert!(began.elapsed() < LONG, "asked to wait 5 s, waited {:?}", began.elapsed());
                told.refused.fetch_add(1, Ordering::SeqCst);
                continue;
            }
            Err(other) => panic!("{other:?}"),
        };
        assert!(held.token() > before, "{name}: {} after {before}", held.token());
        told.tokens[lock].fetch_max(held.token(), Ordering::SeqCst);
        told.grants.fetch_add(1, Ordering::SeqCst);
        match held.fence_here().unwrap().write(key, held.token()).await {
            Ok(()) | Err(Error::Fenced(_) | Error::Indeterminate(_) | Error::Refused(_)) => {}
            Err(other) => panic!("{other:?}"),
        }
        held.release().await;
    }
}

/// Lets eight work for a while; `fault` happens meanwhile, again and again.
fn soak(builder: &Builder, fault: impl Fn(usize)) {
    let (told, over) = (Arc::new(Told::default()), Arc::new(AtomicBool::new(false)));
    let clients: Vec<Lockfence> = (0..2).map(|_| builder.clone().build().unwrap()).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (until, mut faults) = (Instant::now() + seconds(), 0);
    let spawn =
        |worker: usize| runtime.spawn(work(clients[worker % 2].clone(), worker, told.clone(), over.clone()));
    let workers: Vec<_> = (0..8).map(spawn).collect();
    while Instant::now() < until {
        fault(faults);
        faults += 1;
        std::thread::sleep(ms(700));
    }
    over.store(true, Ordering::SeqCst);
    runtime.block_on(async {
        for worker in workers {
            tokio::time::timeout(LONG, worker).await.expect("in time").unwrap();
        }
        for client in &clients {
            assert!(client.settled(LONG).await);
        }
    });
    let grants = told.grants.load(Ordering::SeqCst);
    eprintln!("{faults} faults, {grants} grants, {} refused", told.refused.load(Ordering::SeqCst));
    assert!(grants > 10, "{grants} grants in all that time");
}

/// What a server answers; nothing where it disconnects its clients because its role changes.
fn ask(server: &Server, command: &[&str]) -> Option<Reply> {
    match server.try_connect().ok()?.try_cmd(command, LONG) {
        Received::Reply(reply) => Some(reply),
        Received::Closed(_) | Received::Nothing => None,
    }
}

/// The primary is killed, demoted, or loses all its connections; it comes back as a replica.
#[test]
fn failovers() {
    let kind = ServerKind::Redis70;
    if !kind.present() {
        return;
    }
    let servers: Vec<Server> = (0..3).map(|_| Server::builder(kind).may_die().start()).collect();
    for replica in &servers[1..] {
        replica.replicate_from(&servers[0]);
        replica.wait_in_sync(&servers[0]);
    }
    let sentinel = Sentinel::of(&servers[0]).down_after_ms(1500).start();
    sentinel.wait_known(2, 0);
    let primary = || {
        let port = sentinel.primary_port();
        servers.iter().find(|server| server.port() == port).unwrap()
    };
    let url = format!("redis+sentinel://127.0.0.1:{}/main", sentinel.server().port());
    let builder = Lockfence::builder().node(url).ttl(ms(4_000)).node_timeout(ms(800));
    soak(&builder, |fault| {
        let old = primary();
        match fault % 3 {
            0 => {
                old.kill9();
                wait_until("a new primary", LONG, || primary().port(), |port| *port != old.port());
                old.restart();
                ask(old, &["REPLICAOF", "127.0.0.1", &primary().port().to_string()]);
            }
            // Refused while the last one is not over yet.
            1 => drop(ask(sentinel.server(), &["SENTINEL", "FAILOVER", "main"])),
            _ => drop(ask(old, &["CLIENT", "KILL", "TYPE", "normal"])),
        }
    });
    for (lock, _) in LOCKS {
        let given_back = |answer: &Option<Reply>| match answer {
            Some(reply) => reply.is_nil() || (!reply.is_err() && reply.field("state").text() == "free"),
            None => false,
        };
        wait_until("given back", LONG, || ask(primary(), &["LOCK.INFO", lock]), given_back);
    }
}

/// Slots move while locks in them are asked for, waited for, held and given back. Nobody is refused for that.
#[test]
fn moving_slots() {
    let kind = ServerKind::Redis70;
    if !kind.present() {
        return;
    }
    let cluster = Cluster::start(kind);
    let url = format!("redis+cluster://127.0.0.1:{}", cluster.node(0).port());
    let builder = Lockfence::builder().node(url).ttl(ms(8_000)).node_timeout(ms(1_500));
    soak(&builder, |fault| {
        let (lock, _) = LOCKS[fault % 3];
        let from = cluster.owner_index(lock);
        cluster.move_slot(key_slot(lock.as_bytes()), from, (from + 1 + fault / 3 % 2) % 3);
    });
    for (lock, _) in LOCKS {
        let info = cmd!(cluster.connect_for(lock), "LOCK.INFO", lock);
        assert!(info.is_nil() || info.field("state").text() == "free", "{info:?}");
    }
}
