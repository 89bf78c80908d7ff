//! Pauses, stops and kills of one server: nothing crashes, no confirmed grant is lost, nobody is left waiting.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{
    LONG_MS, SOON, assert_same_data, info, number, offset, owner, stat_of, wait_free, wait_queue, waiter,
    waiter_for, wall_us,
};
use lockfence_testkit::{
    Conn, Received, Reply, Server, ServerKind, args, cmd, send, server_tests, wait_for, wait_until,
};

/// A pause that only CLIENT UNPAUSE ends, ms.
const ENDLESS_MS: u64 = 600_000;
/// How long to watch that nothing happens, ms.
const WATCH_MS: u64 = 400;

/// A primary that keeps an AOF, and its replica: each is a reason for the server to abort when something is written
/// while it must not produce replication traffic.
fn pair(kind: ServerKind) -> (Server, Server) {
    let quiet = |server: lockfence_testkit::ServerBuilder| server.arg("repl-ping-replica-period", 3600);
    let primary = quiet(Server::builder(kind).arg("appendonly", "yes")).start();
    let replica = quiet(Server::builder(kind)).start();
    replica.replicate_from(&primary);
    replica.wait_in_sync(&primary);
    (primary, replica)
}

/// A crash that the exit code does not tell of is in the log.
fn assert_no_crash(server: &Server) {
    let log = server.log();
    let bad = ["ASSERTION FAILED", "crashed by signal", "BUG REPORT", "panicked at"];
    let found = bad.iter().find(|line| log.contains(**line));
    assert!(found.is_none(), "{server} logged {found:?}:\n{}", server.log_tail());
}

server_tests! {
    /// E8, module-api 0.1: a lease that runs out in a pause of writes hands over only after it, and nothing is written.
    fn a_hand_over_waits_for_the_end_of_a_pause_of_writes(kind: ServerKind) {
        let (primary, replica) = pair(kind);
        let mut conn = primary.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", 1500).token();
        let mut first = waiter(&primary, "lock", "b", LONG_MS, 1);
        let mut second = waiter(&primary, "lock", "c", LONG_MS, 2);
        cmd!(conn, "CLIENT", "PAUSE", ENDLESS_MS, "WRITE").ok();
        let frozen = offset(&primary);
        wait_free(&mut conn, "lock");
        first.assert_silent(WATCH_MS);
        assert_eq!(offset(&primary), frozen, "written in a pause");
        assert_eq!(owner(&mut conn, "lock"), None);
        cmd!(conn, "CLIENT", "UNPAUSE").ok();
        assert!(first.recv(SOON).token() > token);
        second.assert_silent(20);
        assert_eq!(owner(&mut conn, "lock").as_deref(), Some("b"));
        assert_same_data(&primary, &replica);
        assert_no_crash(&primary);
    }

    /// E8: the same while no command at all is served, and the pause ends by itself.
    fn a_hand_over_waits_for_the_end_of_a_pause_of_all(kind: ServerKind) {
        let (primary, replica) = pair(kind);
        let mut conn = primary.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", 1500).token();
        let mut first = waiter(&primary, "lock", "b", LONG_MS, 1);
        replica.wait_in_sync(&primary);
        let paused = Instant::now();
        cmd!(conn, "CLIENT", "PAUSE", 4000, "ALL").ok();
        let frozen = offset(&replica);
        let mut granted = None;
        while granted.is_none() && paused.elapsed() < Duration::from_millis(3900) {
            granted = first.try_recv_within(50);
            let early = granted.is_some() && paused.elapsed() < Duration::from_millis(4000);
            assert!(!early, "granted in a pause: {granted:?}");
            let seen = offset(&replica);
            assert!(seen == frozen || paused.elapsed() >= Duration::from_millis(4000), "written in a pause");
        }
        assert!(granted.unwrap_or_else(|| first.recv(SOON)).token() > token);
        assert_same_data(&primary, &replica);
        assert_no_crash(&primary);
    }

    /// E8: idle records are not dropped in a pause, and they are after it.
    fn idle_records_stay_through_a_pause(kind: ServerKind) {
        let (primary, replica) = pair(kind);
        primary.config_set("lockfence.idle-ttl-ms", "200");
        let mut conn = primary.connect();
        for index in 0..20 {
            cmd!(conn, "LOCK.ACQUIRE", format!("lock{index}"), "a", 1500).token();
        }
        cmd!(conn, "CLIENT", "PAUSE", ENDLESS_MS, "WRITE").ok();
        let (frozen, records) = (offset(&primary), cmd!(conn, "DBSIZE").int());
        assert!(records > 0, "nothing left to drop in the pause");
        wait_free(&mut conn, "lock19");
        let mut watcher = primary.connect();
        watcher.assert_silent(WATCH_MS);
        assert_eq!((offset(&primary), cmd!(conn, "DBSIZE").int()), (frozen, records));
        cmd!(conn, "CLIENT", "UNPAUSE").ok();
        wait_until("the idle records to go", SOON, || cmd!(conn, "DBSIZE").int(), |left| *left == 0);
        assert_same_data(&primary, &replica);
        assert_no_crash(&primary);
    }

    /// D11: a WAIT that begins in a pause ends; one that is over in a pause of writes is answered.
    fn a_wait_ends_whatever_is_paused(kind: ServerKind) {
        let server = Server::builder(kind).arg("appendonly", "yes").start();
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        let mut before = waiter_for(&server, "lock", "b", 1000, 300, 1);
        cmd!(conn, "CLIENT", "PAUSE", ENDLESS_MS, "WRITE").ok();
        before.recv(SOON).nil();
        cmd!(conn, "CLIENT", "UNPAUSE").ok(); // else the longer pause stays in force
        for what in ["WRITE", "ALL"] {
            let mut inside = server.connect();
            cmd!(conn, "CLIENT", "PAUSE", 1500, what).ok();
            let paused = Instant::now();
            send!(inside, "LOCK.ACQUIRE", "lock", "c", 1000, "WAIT", 100);
            inside.recv(SOON).nil();
            assert!(paused.elapsed() >= Duration::from_millis(1500), "not paused at all");
        }
        assert_eq!(owner(&mut conn, "lock").as_deref(), Some("a"));
        assert_eq!(number(&mut conn, "lock", "waiters"), 0);
        server.assert_alive();
    }

    /// A release that arrives in a pause is done after it, and hands over to the first of the queue.
    fn a_release_in_a_pause_hands_over_after_it(kind: ServerKind) {
        let (primary, replica) = pair(kind);
        let mut conn = primary.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        let mut first = waiter(&primary, "lock", "b", LONG_MS, 1);
        cmd!(conn, "CLIENT", "PAUSE", ENDLESS_MS, "WRITE").ok();
        let mut releaser = primary.connect();
        send!(releaser, "LOCK.RELEASE", "lock", "a");
        releaser.assert_silent(50);
        first.assert_silent(50);
        cmd!(conn, "CLIENT", "UNPAUSE").ok();
        assert_eq!(releaser.recv(SOON).int(), 1);
        assert!(first.recv(SOON).token() > token);
        assert_same_data(&primary, &replica);
    }

    /// E8: FAILOVER pauses writes until the replica has all. Here it never has, a lease runs out meanwhile, and the
    /// failover is given up: nothing crashes, and the waiter gets the lock.
    fn a_failover_that_is_given_up_costs_no_waiter_its_turn(kind: ServerKind) {
        let (primary, replica) = pair(kind);
        let mut conn = primary.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", 1500).token();
        let mut first = waiter(&primary, "lock", "b", LONG_MS, 1);
        replica.wait_in_sync(&primary);
        replica.pause();
        cmd!(conn, "SET", "what the replica", "does not have").ok();
        let port = replica.port();
        cmd!(conn, "FAILOVER", "TO", "127.0.0.1", port, "TIMEOUT", 600_000).ok();
        let state = || primary.info("replication")["master_failover_state"].clone();
        wait_until("the failover to wait for the replica", SOON, state, |state| state == "waiting-for-sync");
        wait_free(&mut conn, "lock");
        first.assert_silent(WATCH_MS);
        cmd!(conn, "FAILOVER", "ABORT").ok();
        assert!(first.recv(SOON).token() > token);
        replica.resume();
        assert_same_data(&primary, &replica);
        assert_no_crash(&primary);
    }

    /// E8: SHUTDOWN waits for a replica that lags, with writes paused, while a lease runs out.
    fn a_lease_may_run_out_while_a_shutdown_waits_for_a_replica(kind: ServerKind) {
        let (primary, replica) = pair(kind);
        primary.config_set("shutdown-timeout", "5");
        let mut conn = primary.connect();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "a", 1500).token();
        let mut first = waiter(&primary, "lock", "b", LONG_MS, 1);
        replica.wait_in_sync(&primary);
        replica.pause();
        cmd!(conn, "SET", "what the replica", "does not have").ok();
        let began = Instant::now();
        primary.shutdown_clean(); // asserts the exit code: an abort in the timer's path fails here
        assert!(began.elapsed() >= Duration::from_millis(4500), "the shutdown waited for nobody");
        assert!(matches!(first.receive(SOON), Received::Closed(_)), "a grant while the server shut down");
        replica.resume();
        assert_no_crash(&primary);
    }

    /// E8: a SHUTDOWN that is called off lets the hand-over happen that it held up.
    fn a_shutdown_that_is_called_off_costs_no_waiter_its_turn(kind: ServerKind) {
        let (primary, replica) = pair(kind);
        primary.config_set("shutdown-timeout", "600");
        let mut conn = primary.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", 1500).token();
        let mut first = waiter(&primary, "lock", "b", LONG_MS, 1);
        replica.wait_in_sync(&primary);
        replica.pause();
        cmd!(conn, "SET", "what the replica", "does not have").ok();
        let mut closer = primary.connect();
        send!(closer, "SHUTDOWN", "NOSAVE");
        closer.assert_silent(20);
        wait_free(&mut conn, "lock");
        first.assert_silent(WATCH_MS);
        cmd!(conn, "SHUTDOWN", "ABORT").ok();
        assert!(first.recv(SOON).token() > token);
        replica.resume();
        assert_same_data(&primary, &replica);
        assert_no_crash(&primary);
    }
}

/// Lets the next snapshot fail: what it is to be renamed to is a folder.
fn break_saving(server: &Server) {
    let blocker = server.dir().join("dump.rdb");
    fs::create_dir(&blocker).unwrap();
    fs::write(blocker.join("file"), "").unwrap();
    save(server, "err");
}

fn mend_saving(server: &Server) {
    fs::remove_dir_all(server.dir().join("dump.rdb")).unwrap();
    save(server, "ok");
}

fn save(server: &Server, outcome: &str) {
    let mut conn = server.connect();
    cmd!(conn, "BGSAVE").no_err();
    let status = || server.info("persistence")["rdb_last_bgsave_status"].clone();
    wait_until(&format!("a save to end with {outcome}"), SOON, status, |seen| seen == outcome);
}

/// What holds while the server lets nobody write and says `error`, and after `mend`.
fn refused_and_recovered(server: &Server, error: &str, spoil: impl Fn(), mend: impl Fn()) {
    let mut conn = server.connect();
    let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", 3000).token();
    let mine = cmd!(conn, "LOCK.ACQUIRE", "mine", "a", LONG_MS).token();
    let mut first = waiter(server, "lock", "b", LONG_MS, 1);
    let mut timed = waiter_for(server, "lock", "c", LONG_MS, 4000, 2);
    spoil();
    let grants = stat_of(server, "grants_total");
    cmd!(conn, "LOCK.ACQUIRE", "other", "a", 1000).assert_err_prefix(error);
    cmd!(conn, "LOCK.ACQUIRE", "mine", "b", 1000, "WAIT", 1000).assert_err_prefix(error);
    cmd!(conn, "LOCK.EXTEND", "mine", "a", 1).assert_err_prefix(error);
    cmd!(conn, "LOCK.RELEASE", "mine", "a").assert_err_prefix(error);
    cmd!(conn, "LOCK.BREAK", "mine").assert_err_prefix(error);
    cmd!(conn, "FENCE.WRITE", "mine", mine, "data", 1).assert_err_prefix(error);
    cmd!(conn, "FENCE.ADVANCE", "fence", 5).assert_err_prefix(error);
    assert_eq!(cmd!(conn, "FENCE.CHECK", "mine", mine).token(), mine);
    wait_free(&mut conn, "lock");
    timed.recv(SOON).nil(); // a wait that is over needs no writing
    first.assert_silent(WATCH_MS);
    assert_eq!(stat_of(server, "grants_total"), grants, "granted while nothing may be written");
    assert_eq!(owner(&mut conn, "mine").as_deref(), Some("a"));
    mend();
    assert!(first.recv(SOON).token() > token);
    assert_eq!(owner(&mut conn, "lock").as_deref(), Some("b"));
    assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "b").int(), 1);
    assert_eq!(cmd!(conn, "LOCK.RELEASE", "mine", "a").int(), 1);
    assert!(cmd!(conn, "LOCK.ACQUIRE", "mine", "z", 1000).token() > mine);
    assert_eq!(cmd!(conn, "EXISTS", "data", "fence", "other").int(), 0);
    assert_eq!(stat_of(server, "waiters"), 0);
}

server_tests! {
    /// F12: after a failed save the server's own -MISCONF answers all; a hand-over waits until it may be written.
    fn a_failed_save_refuses_commands_and_delays_hand_overs(kind: ServerKind) {
        let server = Server::builder(kind).config_line("save 3600 1000000").start();
        refused_and_recovered(&server, "MISCONF ", || break_saving(&server), || mend_saving(&server));
    }

    /// The server's own -NOREPLICAS answers all; a hand-over waits until there are enough replicas.
    fn too_few_replicas_refuse_commands_and_delay_hand_overs(kind: ServerKind) {
        let server = Server::builder(kind).arg("appendonly", "yes").start();
        let replica = Server::start(kind);
        refused_and_recovered(
            &server,
            "NOREPLICAS ",
            || server.config_set("min-replicas-to-write", "1"),
            || replica.replicate_from(&server),
        );
        assert_same_data(&server, &replica);
    }

    /// C2: whether a lease is over is decided on access, not by a timer that had no turn. The queue comes first.
    fn a_lease_is_over_on_access_also_when_no_timer_had_a_turn(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", 200).token();
        let taken = conn.pipeline(&[
            args!["DEBUG", "SLEEP", "0.5"],
            args!["LOCK.RELEASE", "lock", "a"],
            args!["LOCK.EXTEND", "lock", "a", 1000],
            args!["LOCK.ACQUIRE", "lock", "b", LONG_MS],
        ]);
        taken[0].ok();
        assert_eq!((taken[1].int(), taken[2].int()), (0, 0), "an ended lease was revived");
        assert!(taken[3].token() > token);

        let token = cmd!(conn, "LOCK.ACQUIRE", "queued", "a", 1000).token();
        let mut first = waiter(&server, "queued", "b", LONG_MS, 1);
        let taken = conn.pipeline(&[
            args!["DEBUG", "SLEEP", "1.3"],
            args!["LOCK.ACQUIRE", "queued", "c", LONG_MS],
            args!["LOCK.INFO", "queued"],
        ]);
        taken[1].nil();
        assert_eq!(taken[2].field("owner").text(), "b");
        assert!(first.recv(SOON).token() > token);
    }

    /// G2: a server that stood still for longer than a lease has exactly one holder afterwards.
    fn one_holder_after_the_server_stood_still(kind: ServerKind) {
        let (primary, replica) = pair(kind);
        let mut conn = primary.connect();
        for round in 0..2 {
            let lock = format!("lock{round}");
            let token = cmd!(conn, "LOCK.ACQUIRE", lock, "a", 1500).token();
            let mut waiters: Vec<Conn> =
                (1..=3).map(|place| waiter(&primary, &lock, &format!("w{place}"), LONG_MS, place)).collect();
            primary.pause();
            let mut late = primary.connect(); // the kernel accepts for a stopped server
            send!(conn, "LOCK.EXTEND", lock, "a", LONG_MS);
            thread::sleep(Duration::from_millis(2000)); // the fault itself: longer than the lease
            primary.resume();
            assert_eq!(conn.recv(SOON).int(), 0, "an ended lease was extended");
            cmd!(late, "LOCK.ACQUIRE", lock, "late", LONG_MS).nil();
            assert!(waiters[0].recv(SOON).token() > token);
            for waiter in &mut waiters[1..] {
                waiter.assert_silent(20);
            }
            let seen = info(&mut conn, &lock);
            assert_eq!((seen.field("owner").text(), seen.field("holders").int()), ("w1".into(), 1));
            assert_eq!(seen.field("waiters").int(), 2);
        }
        assert_same_data(&primary, &replica);
    }

    /// F13: with a quarantine a server that was killed grants nothing for that long; who waits is served at its end.
    fn a_killed_server_grants_nothing_in_its_quarantine(kind: ServerKind) {
        const QUARANTINE: Duration = Duration::from_millis(3000);
        let server = Server::builder(kind).module_args(["quarantine-ms", "3000"]).start();
        let mut conn = server.connect();
        wait_until("the first quarantine", SOON, || stat_of(&server, "quarantine_left_ms"), |left| *left == 0);
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        server.kill9();
        let killed = Instant::now();
        server.restart();
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "b", 1000).assert_err_prefix("QUARANTINE ");
        let mut first = server.connect();
        send!(first, "LOCK.ACQUIRE", "lock", "c", LONG_MS, "WAIT", 0);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "a").int(), 0);
        let after = first.recv(SOON).token();
        assert!(killed.elapsed() >= QUARANTINE, "granted {:?} after the kill", killed.elapsed());
        assert!(after > token);
    }

    /// E11: DEBUG RELOAD replaces the data under queues and timers. Each waiter has one answer, and no timer serves a
    /// lock of the data that went.
    fn a_reload_leaves_nobody_waiting_for_ever(kind: ServerKind) {
        let server = Server::builder(kind).arg("appendonly", "yes").start();
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", 2000).token();
        let mut waiters: Vec<Conn> =
            (1..=3).map(|place| waiter(&server, "lock", &format!("w{place}"), LONG_MS, place)).collect();
        cmd!(conn, "DEBUG", "RELOAD").ok();
        for waiter in &mut waiters {
            waiter.recv(SOON).assert_err_prefix("LOCKLOST ");
            waiter.assert_silent(5);
        }
        let seen = info(&mut conn, "lock");
        assert_eq!((seen.field("owner").text(), seen.field("token").token()), ("a".into(), token));
        let mut next = waiter(&server, "lock", "b", LONG_MS, 1);
        assert!(next.recv(SOON).token() > token, "served when the lease that was kept ran out");
        assert_eq!(stat_of(&server, "waiters"), 0);
    }
}

/// What the clients of one lock have been told so far, across all lives of the server.
#[derive(Default)]
struct Told {
    token: AtomicU64,
}

/// Acquires and releases the lock until the connection ends. Each grant's token is above all that were confirmed
/// before the request was sent.
fn contend(server: &Server, lock: &str, told: &Told, names: &AtomicU64) {
    let Ok(mut conn) = server.try_connect() else { return };
    loop {
        let me = format!("owner{}", names.fetch_add(1, Ordering::SeqCst));
        let before = told.token.load(Ordering::SeqCst);
        let token = match conn.try_cmd(args!["LOCK.ACQUIRE", lock, me, 300, "WAIT", 2000], SOON) {
            Received::Reply(Reply::Int(token)) => token.unsigned_abs(),
            Received::Reply(Reply::Nil) => continue,
            Received::Reply(other) => panic!("{lock}: {other:?}"),
            Received::Closed(_) | Received::Nothing => return,
        };
        told.token.fetch_max(token, Ordering::SeqCst);
        assert!(token > before, "{lock}: token {token} after {before} was confirmed");
        match conn.try_cmd(args!["LOCK.RELEASE", lock, me], SOON) {
            Received::Reply(Reply::Int(0 | 1)) => {}
            Received::Reply(other) => panic!("{lock}: {other:?}"),
            Received::Closed(_) | Received::Nothing => return,
        }
    }
}

/// Takes one lock after another for a long time; returns those that were confirmed.
fn collect(server: &Server, prefix: &str) -> Vec<(String, u64)> {
    let mut got = Vec::new();
    let Ok(mut conn) = server.try_connect() else { return got };
    for number in 0.. {
        let lock = format!("{prefix}:{number}");
        match conn.try_cmd(args!["LOCK.ACQUIRE", lock, "keeper", LONG_MS], SOON) {
            Received::Reply(reply) => got.push((lock, reply.token())),
            Received::Closed(_) | Received::Nothing => break,
        }
    }
    got
}

/// Takes and gives back one lock after another; returns those whose release was confirmed.
fn take_and_give(server: &Server, prefix: &str) -> Vec<(String, u64)> {
    let mut given = Vec::new();
    let Ok(mut conn) = server.try_connect() else { return given };
    for number in 0.. {
        let lock = format!("{prefix}:{number}");
        let Received::Reply(reply) = conn.try_cmd(args!["LOCK.ACQUIRE", lock, "brief", LONG_MS], SOON) else {
            break;
        };
        let Received::Reply(Reply::Int(1)) = conn.try_cmd(args!["LOCK.RELEASE", lock, "brief"], SOON) else {
            break;
        };
        given.push((lock, reply.token()));
    }
    given
}

server_tests! {
    /// G1, G6: SIGKILL under load, again and again, with appendfsync always: what was confirmed is still so, and
    /// tokens rise from one life to the next.
    fn no_confirmed_grant_or_release_is_lost_by_kills(kind: ServerKind) {
        const LIVES: u64 = 5;
        let server =
            Server::builder(kind).arg("appendonly", "yes").arg("appendfsync", "always").start();
        let told: Vec<Told> = (0..3).map(|_| Told::default()).collect();
        let names = AtomicU64::new(0);
        let mut held = BTreeMap::new();
        for life in 0..LIVES {
            let (kept, given) = thread::scope(|scope| {
                for client in 0..9 {
                    let (server, told, names) = (&server, &told[client % 3], &names);
                    scope.spawn(move || contend(server, &format!("shared{}", client % 3), told, names));
                }
                let keeper = scope.spawn(|| collect(&server, &format!("kept{life}")));
                let giver = scope.spawn(|| take_and_give(&server, &format!("given{life}")));
                let enough = format!("kept{life}:30");
                let mut conn = server.connect();
                wait_until("some load", SOON, || cmd!(conn, "EXISTS", enough).int(), |found| *found == 1);
                if life % 2 == 1 {
                    cmd!(conn, "BGREWRITEAOF").no_err();
                }
                server.kill9();
                (keeper.join().unwrap(), giver.join().unwrap())
            });
            server.restart();
            held.extend(kept);
            let mut conn = server.connect();
            for (lock, token) in &held {
                let seen = info(&mut conn, lock);
                let seen = (seen.field("owner").text(), seen.field("token").token());
                assert_eq!(seen, ("keeper".to_owned(), *token), "{lock} after {} kills", life + 1);
            }
            assert!(!given.is_empty(), "no load at all");
            for (lock, token) in given {
                assert_eq!(owner(&mut conn, &lock), None, "{lock} was given back");
                assert!(cmd!(conn, "LOCK.ACQUIRE", lock, "next", 1000).token() > token);
            }
        }
        let grants: u64 = names.load(Ordering::SeqCst);
        assert!(told.iter().all(|told| told.token.load(Ordering::SeqCst) > 0), "{grants} tries, no grant");
        assert_no_crash(&server);
    }

    /// G1: the same with nothing kept at all. Leases are lost, tokens still rise.
    fn tokens_rise_over_kills_that_lose_everything(kind: ServerKind) {
        const LIVES: u64 = 4;
        let server = Server::start(kind);
        let told = Told::default();
        let names = AtomicU64::new(0);
        for _ in 0..LIVES {
            thread::scope(|scope| {
                for _ in 0..6 {
                    scope.spawn(|| contend(&server, "lock", &told, &names));
                }
                let before = names.load(Ordering::SeqCst);
                wait_until("some load", SOON, || names.load(Ordering::SeqCst), |seen| *seen > before + 200);
                server.kill9();
            });
            server.restart();
        }
        let last = cmd!(server.connect(), "LOCK.ACQUIRE", "lock", "last", 1000).token();
        assert!(last > told.token.load(Ordering::SeqCst));
        assert!(last > wall_us(), "the floor is ahead of the clock after a start");
    }

    /// G5, G7: holders and waiters that vanish by the dozen leave no lock taken and no queue behind.
    fn clients_that_vanish_leave_nothing_behind(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        for round in 0..10 {
            cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
            let mut crowd: Vec<Conn> = (0..40).map(|_| server.connect()).collect();
            for (index, client) in crowd.iter_mut().enumerate() {
                send!(client, "LOCK.ACQUIRE", "lock", format!("w{index}"), LONG_MS, "WAIT", 0);
            }
            wait_queue(&mut conn, "lock", 40);
            let survivor = crowd.pop().unwrap();
            if round % 2 == 0 {
                crowd.into_iter().for_each(Conn::close);
            } else {
                let port = crowd.len();
                let ids: Vec<i64> = queued_clients(&mut conn, "lock");
                for id in ids.iter().take(port) {
                    cmd!(conn, "CLIENT", "KILL", "ID", id).no_err();
                }
            }
            wait_queue(&mut conn, "lock", 1);
            assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "a").int(), 1);
            served_or_gone(survivor, &mut conn);
            wait_until("an empty queue", SOON, || stat_of(&server, "waiters"), |left| *left == 0);
        }
    }
}

fn queued_clients(conn: &mut Conn, lock: &str) -> Vec<i64> {
    let full = cmd!(conn, "LOCK.INFO", lock, "FULL", "COUNT", 0);
    full.field("waiter-list").items().iter().map(|waiter| waiter.field("client-id").int()).collect()
}

/// The one who is left gets the lock, and gives it back.
fn served_or_gone(mut survivor: Conn, conn: &mut Conn) {
    survivor.recv(SOON).token();
    let holder = owner(conn, "lock").unwrap();
    assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", holder).int(), 1);
}

server_tests! {
    /// G7: pauses that come and go under load, with a replica and an AOF: no crash, no stall, equal data.
    fn pauses_that_come_and_go_under_load(kind: ServerKind) {
        let (primary, replica) = pair(kind);
        let (told, names, over) = (Told::default(), AtomicU64::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            for client in 0..8 {
                let (primary, told, names, over) = (&primary, &told, &names, &over);
                scope.spawn(move || expire_in_turn(primary, client, told, names, over));
            }
            let mut conn = primary.connect();
            for round in 0..12 {
                let before = told.token.load(Ordering::SeqCst);
                cmd!(conn, "CLIENT", "PAUSE", 150, if round % 2 == 0 { "WRITE" } else { "ALL" }).ok();
                wait_for("grants after the pause", SOON, || {
                    let seen = told.token.load(Ordering::SeqCst);
                    if seen > before { Ok(()) } else { Err(seen) }
                });
            }
            over.store(true, Ordering::SeqCst);
        });
        assert_same_data(&primary, &replica);
        assert_no_crash(&primary);
    }
}

/// Acquires with short leases and never releases: each hand-over is the timer's.
fn expire_in_turn(server: &Server, client: usize, told: &Told, names: &AtomicU64, over: &AtomicBool) {
    let mut conn = server.connect();
    while !over.load(Ordering::SeqCst) {
        let me = format!("client{client}:{}", names.fetch_add(1, Ordering::SeqCst));
        let before = told.token.load(Ordering::SeqCst);
        let reply = conn.cmd(args!["LOCK.ACQUIRE", "lock", me, 20, "WAIT", 5000]);
        if reply.is_nil() {
            continue;
        }
        let token = reply.token();
        assert!(token > before, "token {token} after {before} was confirmed");
        told.token.fetch_max(token, Ordering::SeqCst);
    }
}
