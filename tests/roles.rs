//! Changes of role: demotion, promotion, FAILOVER, Sentinel. A replica grants nothing, tokens rise across all of them.

use crate::common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{LONG_MS, SOON, assert_same_data, info, number, owner, stat_of, wait_free, waiter, wall_us};
use lockfence_testkit::{
    Conn, Received, Reply, Sentinel, Server, ServerKind, args, cmd, send, server_tests, wait_for, wait_until,
};

/// A failover by Sentinel takes a while on a busy machine.
const FAILOVER: Duration = Duration::from_secs(60);

fn pair(kind: ServerKind) -> (Server, Server) {
    let primary = Server::builder(kind).arg("appendonly", "yes").start();
    let replica = Server::builder(kind).arg("appendonly", "yes").start();
    replica.replicate_from(&primary);
    replica.wait_in_sync(&primary);
    (primary, replica)
}

/// A client whose server became a replica is told so, or disconnected; and told nothing else.
#[track_caller]
fn assert_sent_away(mut client: Conn) {
    match client.receive(SOON) {
        Received::Reply(reply) => {
            reply.assert_err_prefix("UNBLOCKED ");
            match client.receive(Duration::from_millis(50)) {
                Received::Nothing | Received::Closed(_) => {}
                Received::Reply(second) => panic!("a second answer: {second:?}"),
            }
        }
        Received::Closed(_) => {}
        Received::Nothing => panic!("still waiting at a replica"),
    }
}

/// How often the server's main thread has waited for something to do.
fn wake_ups(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

/// Makes the primary the replica of what was its replica.
#[track_caller]
fn swap_roles(primary: &Server, replica: &Server) {
    replica.promote();
    primary.replicate_from(replica);
    primary.wait_in_sync(replica);
}

/// Everything that must not be done or answered at a replica is refused there (E6).
#[track_caller]
fn assert_read_only(replica: &Server, lock: &str) {
    let mut conn = replica.connect();
    let refused = [
        args!["LOCK.ACQUIRE", lock, "x", 1000],
        args!["LOCK.ACQUIRE", lock, "x", 1000, "WAIT", 1000],
        args!["LOCK.RELEASE", lock, "a"],
        args!["LOCK.EXTEND", lock, "a", 1000],
        args!["LOCK.BREAK", lock],
        args!["FENCE.WRITE", lock, 1, "data", 1],
        args!["FENCE.CALL", lock, 1, "INCR", "data"],
        args!["FENCE.CHECK", lock, 1],
        args!["FENCE.ADVANCE", "fence", 1],
    ];
    for command in refused {
        conn.cmd(command).assert_err_prefix("READONLY ");
    }
}

server_tests! {
    /// D13, D14: each waiter is sent away once; then the replica follows its primary, and grants nothing.
    fn a_demotion_sends_every_waiter_away_and_grants_nothing(kind: ServerKind) {
        let (primary, replica) = pair(kind);
        let mut conn = primary.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        cmd!(conn, "LOCK.ACQUIRE", "brief", "a", 2000).token();
        let mut waiters: Vec<Conn> =
            (1..=3).map(|place| waiter(&primary, "lock", &format!("w{place}"), LONG_MS, place)).collect();
        waiters.push(waiter(&primary, "brief", "w", LONG_MS, 1));
        replica.wait_in_sync(&primary);
        replica.promote();
        primary.replicate_from(&replica);
        waiters.into_iter().for_each(assert_sent_away);
        primary.wait_in_sync(&replica);
        assert_eq!(stat_of(&primary, "waiters"), 0);

        // The stream frees what they waited for, and a lease runs out: neither is a grant here.
        let grants = stat_of(&primary, "grants_total");
        let mut there = replica.connect();
        assert_eq!(cmd!(there, "LOCK.RELEASE", "lock", "a").int(), 1);
        let next = cmd!(there, "LOCK.ACQUIRE", "lock", "z", LONG_MS).token();
        assert!(next > token);
        assert_eq!(cmd!(there, "LOCK.RELEASE", "lock", "z").int(), 1);
        let mut here = primary.connect();
        wait_free(&mut here, "brief");
        assert_same_data(&replica, &primary);
        assert_eq!(stat_of(&primary, "grants_total"), grants);
        assert_eq!(owner(&mut here, "lock"), None);
        assert_read_only(&primary, "lock");
        primary.config_set("replica-read-only", "no");
        assert_read_only(&primary, "lock");
        assert_same_data(&replica, &primary);
    }

    /// D14: Valkey leaves blocked clients that can follow a redirect to themselves; ours are sent away all the same.
    fn a_demotion_sends_clients_away_that_can_follow_redirects(kind: ServerKind) {
        if !kind.is_valkey() {
            return; // no other server has CLIENT CAPA
        }
        let (primary, replica) = pair(kind);
        let mut conn = primary.connect();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        let mut client = primary.connect();
        cmd!(client, "CLIENT", "CAPA", "REDIRECT").ok();
        send!(client, "LOCK.ACQUIRE", "lock", "b", LONG_MS, "WAIT", 0);
        common::wait_queue(&mut conn, "lock", 1);
        replica.promote();
        primary.replicate_from(&replica);
        match client.receive(SOON) {
            Received::Reply(Reply::Error(line)) => {
                assert!(line.starts_with("UNBLOCKED ") || line.starts_with("REDIRECT "), "{line}");
            }
            Received::Closed(_) => {}
            other => panic!("expected to be sent away, got {other:?}"),
        }
        assert_eq!(stat_of(&primary, "waiters"), 0);
        assert_same_data(&replica, &primary);
    }

    /// G6: a promoted replica knows each lease with what is left of it; its floor is raised; tokens rise.
    fn a_promotion_keeps_leases_and_raises_the_floor(kind: ServerKind) {
        const LEASE_MS: u64 = 3000;
        let (primary, replica) = pair(kind);
        let mut conn = primary.connect();
        let granted = Instant::now();
        let short = cmd!(conn, "LOCK.ACQUIRE", "short", "a", LEASE_MS).token();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        replica.wait_in_sync(&primary);
        let before = stat_of(&replica, "restart_floor");
        primary.kill9();
        let wall = wall_us();
        replica.promote();
        let floor = stat_of(&replica, "restart_floor");
        assert!(floor > before && floor >= wall + 29_000_000, "floor {floor}, before {before}, clock {wall}");

        let mut conn = replica.connect();
        let seen = info(&mut conn, "lock");
        assert_eq!((seen.field("owner").text(), seen.field("token").token()), ("a".into(), token));
        assert!(seen.field("ttl-ms").int() <= 600_000);
        cmd!(conn, "LOCK.ACQUIRE", "lock", "b", 1000).nil();
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "a", LONG_MS).int(), 1);
        let mut first = replica.connect();
        send!(first, "LOCK.ACQUIRE", "short", "b", LONG_MS, "WAIT", 0);
        let next = first.recv(SOON).token();
        let after = granted.elapsed().as_millis();
        assert!(after >= u128::from(LEASE_MS) - 100, "granted after {after} ms of a lease of {LEASE_MS} ms");
        assert!(next > short && next >= floor);
        cmd!(conn, "FENCE.WRITE", "short", short, "data", 1).assert_err_prefix("FENCED ");
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "a").int(), 1);
        assert!(cmd!(conn, "LOCK.ACQUIRE", "lock", "b", 1000).token() > token);
    }

    /// E5, G1: what the promoted replica never got is lost; its tokens are still higher, and the lost holder is fenced.
    fn tokens_rise_when_the_replica_missed_the_last_grants(kind: ServerKind) {
        let (primary, replica) = pair(kind);
        let mut conn = primary.connect();
        cmd!(conn, "LOCK.ACQUIRE", "known", "a", 1).token();
        replica.wait_in_sync(&primary);
        replica.pause();
        let mut lost: Vec<u64> = Vec::new();
        for round in 0..50 {
            lost.push(cmd!(conn, "LOCK.ACQUIRE", "lock", format!("o{round}"), LONG_MS).token());
            assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", format!("o{round}")).int(), 1);
        }
        lost.push(cmd!(conn, "LOCK.ACQUIRE", "lock", "last", LONG_MS).token());
        let known = cmd!(conn, "LOCK.ACQUIRE", "known", "last", LONG_MS).token();
        primary.kill9();
        replica.resume();
        replica.promote();
        let mut conn = replica.connect();
        // Bytes that had reached the replica's socket may still have been applied: then the lock is held.
        cmd!(conn, "LOCK.BREAK", "lock").no_err();
        cmd!(conn, "LOCK.BREAK", "known").no_err();
        let next = cmd!(conn, "LOCK.ACQUIRE", "lock", "b", LONG_MS).token();
        assert!(lost.iter().all(|token| *token < next), "{next} after {lost:?}");
        assert!(cmd!(conn, "LOCK.ACQUIRE", "known", "b", LONG_MS).token() > known);
        for token in lost {
            cmd!(conn, "FENCE.WRITE", "lock", token, "data", 1).assert_err_prefix("FENCED ");
        }
    }

    /// G7: roles that flip again and again with waiters and timers at work: no crash, equal data, rising tokens.
    fn roles_may_flip_again_and_again_with_waiters(kind: ServerKind) {
        let (first, second) = pair(kind);
        let mut last = 0;
        for round in 0..6 {
            let (primary, replica) = if round % 2 == 0 { (&first, &second) } else { (&second, &first) };
            let mut conn = primary.connect();
            let token = cmd!(conn, "LOCK.ACQUIRE", "lock", format!("a{round}"), LONG_MS).token();
            assert!(token > last, "round {round}: {token} after {last}");
            cmd!(conn, "LOCK.ACQUIRE", format!("brief{round}"), "a", 30).token();
            let brief = format!("brief{round}");
            let mut waiters = vec![
                waiter(primary, "lock", "b", LONG_MS, 1),
                waiter(primary, "lock", "c", LONG_MS, 2),
            ];
            for index in 0..5 {
                let mut conn = primary.connect();
                send!(conn, "LOCK.ACQUIRE", brief, format!("w{index}"), 20, "WAIT", 0);
                waiters.push(conn);
            }
            if round % 3 == 2 {
                assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", format!("a{round}")).int(), 1);
                last = waiters.remove(0).recv(SOON).token();
                assert!(last > token);
            }
            last = last.max(token);
            replica.wait_in_sync(primary);
            swap_roles(primary, replica);
            for mut client in waiters {
                match client.receive(SOON) {
                    Received::Reply(Reply::Int(_)) | Received::Closed(_) => {}
                    Received::Reply(reply) => {
                        reply.assert_err_prefix("UNBLOCKED ");
                    }
                    Received::Nothing => panic!("still waiting at a replica"),
                }
            }
            cmd!(replica.connect(), "LOCK.BREAK", "lock").no_err();
            assert_same_data(replica, primary);
            assert_eq!(stat_of(primary, "waiters"), 0);
        }
    }

    /// D14: a hand-over whose reply is swallowed by the demotion in the same turn is nobody's for longer than its
    /// lease, and is told to nobody twice.
    fn a_hand_over_in_the_turn_of_the_demotion(kind: ServerKind) {
        let (primary, replica) = pair(kind);
        let mut conn = primary.connect();
        for round in 0..3 {
            let lock = format!("lock{round}");
            let token = cmd!(conn, "LOCK.ACQUIRE", lock, "a", LONG_MS).token();
            let client = waiter(&primary, &lock, "b", 1500, 1);
            let behind = waiter(&primary, &lock, "c", LONG_MS, 2);
            replica.wait_in_sync(&primary);
            let port = replica.port();
            let replies =
                conn.pipeline(&[args!["LOCK.RELEASE", lock, "a"], args!["REPLICAOF", "127.0.0.1", port]]);
            assert_eq!(replies[0].int(), 1);
            assert_sent_away_or_granted(client, token);
            assert_sent_away(behind);
            cmd!(conn, "REPLICAOF", "NO", "ONE").ok();
            let mut next = primary.connect();
            send!(next, "LOCK.ACQUIRE", lock, "d", LONG_MS, "WAIT", 0);
            assert!(next.recv(SOON).token() > token);
            assert_eq!(number(&mut primary.connect(), &lock, "holders"), 1);
            assert_same_data(&primary, &replica); // which never left it
        }
    }

    /// A grant whose reply the demotion swallowed is not this server's to give back any more: its owner may have heard of
    /// it from the new primary. A replica does not try to, again and again, nor does the server once it leads again.
    fn a_grant_swallowed_by_a_demotion_is_given_back_by_nobody(kind: ServerKind) {
        const LOOK: Duration = Duration::from_millis(500);
        let (primary, other) = (Server::start(kind), Server::start(kind));
        let (mut conn, mut there) = (primary.connect(), other.connect());
        cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        let client = waiter(&primary, "lock", "b", LONG_MS, 1);
        let turn = [
            args!["LOCK.RELEASE", "lock", "a"],
            args!["DUMP", "lock"],
            args!["REPLICAOF", "127.0.0.1", other.port()],
        ];
        let replies = conn.pipeline(&turn);
        assert_sent_away(client);
        // The new primary knows of the grant, and tells it.
        cmd!(there, "RESTORE", "lock", 0, replies[1].bytes()).ok();
        let token = cmd!(there, "LOCK.ACQUIRE", "lock", "b", LONG_MS).token();
        primary.wait_in_sync(&other);
        let before = wake_ups(&primary);
        thread::sleep(LOOK);
        let woken = wake_ups(&primary) - before;
        assert!(woken < 150, "the replica woke up {woken} times in {LOOK:?}");
        primary.promote();
        let again = waiter(&primary, "lock", "c", LONG_MS, 1);
        again.close();
        let seen = info(&mut primary.connect(), "lock");
        assert_eq!((seen.field("owner").text(), seen.field("token").token()), ("b".into(), token));
    }

    /// D14: FAILOVER with waiters. The old primary sends them away; the new one knows the lease; no two holders.
    fn a_failover_sends_waiters_away_and_keeps_the_lease(kind: ServerKind) {
        let (primary, replica) = pair(kind);
        let mut conn = primary.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        let waiters: Vec<Conn> =
            (1..=3).map(|place| waiter(&primary, "lock", &format!("w{place}"), LONG_MS, place)).collect();
        replica.wait_in_sync(&primary);
        cmd!(conn, "FAILOVER").ok();
        let role = |server: &Server| server.info("replication")["role"].clone();
        wait_until("the old primary to follow", SOON, || role(&primary), |role| role == "slave");
        wait_until("the replica to lead", SOON, || role(&replica), |role| role == "master");
        waiters.into_iter().for_each(assert_sent_away);
        primary.wait_in_sync(&replica);
        let mut conn = replica.connect();
        let seen = info(&mut conn, "lock");
        assert_eq!((seen.field("owner").text(), seen.field("token").token()), ("a".into(), token));
        let mut again = waiter(&replica, "lock", "w1", LONG_MS, 1);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "a").int(), 1);
        assert!(again.recv(SOON).token() > token);
        assert_same_data(&replica, &primary);
        assert_read_only(&primary, "lock");
    }

    /// F13: a promoted replica grants nothing in its quarantine; who is known to hold may go on.
    fn a_promoted_replica_keeps_its_quarantine(kind: ServerKind) {
        let builder = || Server::builder(kind).module_args(["quarantine-ms", "2500"]);
        let (primary, replica) = (builder().start(), builder().start());
        replica.replicate_from(&primary);
        replica.wait_in_sync(&primary);
        wait_until("the first quarantine", SOON, || stat_of(&primary, "quarantine_left_ms"), |left| *left == 0);
        let mut conn = primary.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        replica.wait_in_sync(&primary);
        wait_until("the replica's", SOON, || stat_of(&replica, "quarantine_left_ms"), |left| *left == 0);
        let promoted = Instant::now();
        replica.promote();
        let mut conn = replica.connect();
        cmd!(conn, "LOCK.ACQUIRE", "other", "b", 1000).assert_err_prefix("QUARANTINE ");
        assert_eq!(cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token(), token);
        let mut first = replica.connect();
        send!(first, "LOCK.ACQUIRE", "other", "c", LONG_MS, "WAIT", 0);
        first.recv(SOON).token();
        assert!(promoted.elapsed() >= Duration::from_millis(2500), "granted after {:?}", promoted.elapsed());
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "a").int(), 1);
    }

    /// E11: a full sync that loads beside the old data (`swapdb`) and one that breaks off: the old data stays, or the
    /// new stands whole; nothing of the old fires afterwards.
    fn a_full_sync_replaces_everything_or_nothing(kind: ServerKind) {
        let replica = Server::builder(kind).arg("repl-diskless-load", "swapdb").start();
        let mut here = replica.connect();
        let old = cmd!(here, "LOCK.ACQUIRE", "old", "a", LONG_MS).token();

        // A primary that dies while it sends its data: the replica keeps or loses the old as a whole, and lives.
        let dying = Server::builder(kind).arg("rdb-key-save-delay", 2000).start();
        let mut there = dying.connect();
        for index in 0..2000 {
            cmd!(there, "LOCK.ACQUIRE", format!("new{index}"), "n", LONG_MS).token();
        }
        // The lease must last until the sync begins.
        let (lease_ms, taken) = (3_000, Instant::now());
        cmd!(here, "LOCK.ACQUIRE", "both", "a", lease_ms).token();
        let client = waiter(&replica, "both", "b", LONG_MS, 1);
        replica.replicate_from(&dying);
        assert_sent_away(client);
        let syncing = || replica.info("replication")["master_sync_in_progress"].clone();
        wait_until("the sync to begin", SOON, syncing, |seen| seen == "1");
        dying.kill9();
        wait_until("the sync to break off", SOON, syncing, |seen| seen == "0");
        replica.assert_alive();

        let primary = Server::start(kind);
        let mut there = primary.connect();
        let both = cmd!(there, "LOCK.ACQUIRE", "both", "z", LONG_MS).token();
        replica.replicate_from(&primary);
        assert_same_data(&primary, &replica);
        // Were the old lease and its waiter still known, they would fire now.
        let over = Duration::from_millis(lease_ms + 200);
        std::thread::sleep(over.saturating_sub(taken.elapsed()));
        let mut here = replica.connect();
        assert!(cmd!(here, "LOCK.INFO", "old").is_nil());
        assert_eq!(info(&mut here, "both").field("token").token(), both);
        assert_eq!(cmd!(here, "DBSIZE").int(), 1);
        replica.promote();
        assert!(cmd!(here, "LOCK.ACQUIRE", "old", "b", LONG_MS).token() > old);
        cmd!(here, "LOCK.ACQUIRE", "both", "b", LONG_MS).nil();
    }
}

#[track_caller]
fn assert_sent_away_or_granted(mut client: Conn, token: u64) {
    match client.receive(SOON) {
        Received::Reply(Reply::Int(granted)) => assert!(granted.unsigned_abs() > token),
        Received::Reply(reply) => {
            reply.assert_err_prefix("UNBLOCKED ");
        }
        Received::Closed(_) => {}
        Received::Nothing => panic!("still waiting at a replica"),
    }
    if let Received::Reply(second) = client.receive(Duration::from_millis(50)) {
        panic!("a second answer: {second:?}");
    }
}

/// What the clients of one lock have been told so far, and how many grants that were.
#[derive(Default)]
struct Told {
    token: AtomicU64,
    grants: AtomicU64,
}

/// Works under the lock with whoever the sentinels say is the primary, until `over`.
fn work(sentinel: &Sentinel, lock: &str, told: &Told, names: &AtomicU64, over: &AtomicBool) {
    while !over.load(Ordering::SeqCst) {
        let Ok(mut conn) = Conn::open(sentinel.primary_port()) else {
            thread::sleep(Duration::from_millis(20));
            continue;
        };
        while !over.load(Ordering::SeqCst) && one_job(&mut conn, lock, told, names).is_some() {}
    }
}

/// Acquires, writes under the fence, releases. `None` when the server is not the one to talk to any more.
fn one_job(conn: &mut Conn, lock: &str, told: &Told, names: &AtomicU64) -> Option<()> {
    const WITHIN: Duration = Duration::from_secs(5);
    let mut ask = |command: Vec<Vec<u8>>| match conn.try_cmd(command, WITHIN) {
        Received::Reply(Reply::Error(line)) if gone(&line) => None,
        Received::Reply(reply) => Some(reply),
        Received::Closed(_) | Received::Nothing => None,
    };
    let me = format!("owner{}", names.fetch_add(1, Ordering::SeqCst));
    let before = told.token.load(Ordering::SeqCst);
    let reply = ask(args!["LOCK.ACQUIRE", lock, me, 400, "WAIT", 1000])?;
    if reply.is_nil() {
        return Some(());
    }
    let token = reply.token();
    assert!(token > before, "{lock}: token {token} after {before} was confirmed");
    told.token.fetch_max(token, Ordering::SeqCst);
    told.grants.fetch_add(1, Ordering::SeqCst);
    let written = ask(args!["FENCE.WRITE", lock, token, format!("data:{lock}"), token])?;
    if written.is_err() {
        written.assert_err_prefix("FENCED ");
    }
    assert!(matches!(ask(args!["LOCK.RELEASE", lock, me])?, Reply::Int(0 | 1)));
    Some(())
}

/// What a server says that is no primary (yet, or any more), or has no data yet.
fn gone(line: &str) -> bool {
    ["READONLY ", "UNBLOCKED ", "LOADING ", "MASTERDOWN ", "LOCKLOST "]
        .iter()
        .any(|code| line.starts_with(code))
}

server_tests! {
    /// G1 across a real failover under load: three sentinels, a primary that is killed, and one that is told to go.
    fn tokens_rise_across_failovers_by_sentinel(kind: ServerKind) {
        let servers: Vec<Server> = (0..3).map(|_| Server::start(kind)).collect();
        for replica in &servers[1..] {
            replica.replicate_from(&servers[0]);
            replica.wait_in_sync(&servers[0]);
        }
        let sentinels: Vec<Sentinel> =
            (0..3).map(|_| Sentinel::of(&servers[0]).quorum(2).down_after_ms(4000).start()).collect();
        sentinels.iter().for_each(|sentinel| sentinel.wait_known(2, 2));

        let told: Vec<Told> = (0..2).map(|_| Told::default()).collect();
        let (names, over) = (AtomicU64::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            for client in 0..6 {
                let (sentinel, told, names, over) = (&sentinels[client % 3], &told[client % 2], &names, &over);
                scope.spawn(move || work(sentinel, &format!("lock{}", client % 2), told, names, over));
            }
            // A panic of ours must end the workers, too.
            let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                wait_more_grants(&told);
                servers[0].kill9();
                let old = servers[0].port();
                sentinels.iter().for_each(|sentinel| wait_other_primary(sentinel, old));
                wait_more_grants(&told);
                servers[0].restart();
                sentinels[0].wait_known(2, 2);
                let old = wait_until_followed(&servers, &sentinels[0]);
                sentinels.iter().for_each(wait_calm);
                sentinels[0].failover();
                sentinels.iter().for_each(|sentinel| wait_other_primary(sentinel, old));
                wait_more_grants(&told);
            }));
            over.store(true, Ordering::SeqCst);
            if let Err(panic) = failed {
                std::panic::resume_unwind(panic);
            }
        });
        let port = wait_until_followed(&servers, &sentinels[0]);
        let primary = servers.iter().find(|server| server.port() == port).unwrap();
        for replica in servers.iter().filter(|server| server.port() != port) {
            assert_same_data(primary, replica);
        }
    }
}

#[track_caller]
fn wait_more_grants(told: &[Told]) {
    let before: Vec<u64> = told.iter().map(|told| told.grants.load(Ordering::SeqCst)).collect();
    wait_for("each lock to be granted 100 times more", FAILOVER, || {
        let seen: Vec<u64> = told.iter().map(|told| told.grants.load(Ordering::SeqCst)).collect();
        if seen.iter().zip(&before).all(|(seen, before)| *seen >= before + 100) { Ok(()) } else { Err(seen) }
    });
}

#[track_caller]
fn wait_other_primary(sentinel: &Sentinel, old: u16) {
    wait_until("another primary", FAILOVER, || sentinel.primary_port(), |port| *port != old);
}

/// Waits until the sentinel has seen that both replicas are replicas: one that it still takes for a primary it turns
/// into a replica, in the middle of the next failover.
#[track_caller]
fn wait_calm(sentinel: &Sentinel) {
    wait_for("a sentinel that sees two replicas", FAILOVER, || {
        let replicas = cmd!(sentinel.connect(), "SENTINEL", "REPLICAS", sentinel.name());
        let seen = |replica: &Reply| {
            ["flags", "role-reported", "master-link-status"].map(|name| replica.field(name).text())
        };
        let seen: Vec<_> = replicas.items().iter().map(seen).collect();
        let calm = seen.iter().filter(|seen| **seen == ["slave", "slave", "ok"]).count();
        if calm == 2 { Ok(()) } else { Err(seen) }
    });
}

/// INFO replication; empty when the sentinel has just closed all connections of that server (it does so when it
/// reconfigures one).
fn replication_of(server: &Server) -> std::collections::BTreeMap<String, String> {
    let asked = server.try_connect().map(|mut conn| conn.try_cmd(args!["INFO", "replication"], SOON));
    let text = match asked {
        Ok(Received::Reply(reply)) => reply.text(),
        _ => String::new(),
    };
    let pair = |line: &str| line.split_once(':').map(|(name, value)| (name.to_owned(), value.to_owned()));
    text.lines().filter_map(pair).collect()
}

/// Waits until all others follow the primary that the sentinel names; returns its port.
#[track_caller]
fn wait_until_followed(servers: &[Server], sentinel: &Sentinel) -> u16 {
    wait_for("all to follow the primary", FAILOVER, || {
        let port = sentinel.primary_port();
        let follows = |server: &Server| {
            let seen = replication_of(server);
            let link = ["role", "master_port", "master_link_status"].map(|name| seen.get(name).cloned());
            let wanted = ["slave", &port.to_string(), "up"].map(|value| Some(value.to_owned()));
            if link == wanted { None } else { Some((server.port(), link)) }
        };
        let others = servers.iter().filter(|server| server.port() != port);
        let astray: Vec<_> = others.filter_map(follows).collect();
        if astray.is_empty() { Ok(port) } else { Err((port, astray)) }
    })
}
