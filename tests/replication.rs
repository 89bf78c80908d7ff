//! What replicas are told, what they do with it, and what they must not do by themselves.

use crate::common::other_module;
use crate::durable;

use std::time::{Duration, Instant};

use durable::{
    ARRIVALS, PATIENCE, Seen, acquire, acquire_and_release, arrive_over, high_and_floor, look, ttl_ms,
    with_aof,
};
use lockfence_testkit::{
    Conn, Direction, Proxy, ReplicationStream, Server, ServerBuilder, ServerKind, cmd, send, server_tests,
    wait_for, wait_until,
};

const MINUTE_MS: u64 = 60_000;

/// A primary with a replica in sync.
fn pair(kind: ServerKind) -> (Server, Server) {
    let (primary, replica) = (Server::start(kind), Server::start(kind));
    replica.replicate_from(&primary);
    replica.wait_in_sync(&primary);
    (primary, replica)
}

/// A replica of `primary` whose link goes through a proxy.
fn replicate_through(replica: &Server, primary: &Server) -> Proxy {
    let proxy = Proxy::to(primary);
    cmd!(replica.connect(), "REPLICAOF", "127.0.0.1", proxy.port()).ok();
    replica.wait_in_sync(primary);
    proxy
}

/// A client of the primary that queues up for a lock.
fn queue_up(server: &Server, key: &str, owner: &str, waiting: u64) -> Conn {
    let mut waiter = server.connect();
    send!(waiter, "LOCK.ACQUIRE", key, owner, MINUTE_MS, "WAIT", 0);
    server.wait_blocked_clients(waiting);
    waiter
}

/// A kind of change: what is done, and the commands that replicas may be told for it (one of the lists).
struct Row {
    name: &'static str,
    told: &'static [&'static [&'static str]],
    run: fn(&Server, &mut Conn),
}

const EFFECT: &str = "LF.LOG";
const ONE: &[&[&str]] = &[&[EFFECT]];
const NOTHING: &[&[&str]] = &[&[]];

const fn row(
    name: &'static str,
    told: &'static [&'static [&'static str]],
    run: fn(&Server, &mut Conn),
) -> Row {
    Row { name, told, run }
}

/// One after the other, on the same keys.
fn rows() -> Vec<Row> {
    let mut rows = lease_rows();
    rows.extend(fence_rows());
    rows.extend(unit_rows());
    rows.extend(key_rows());
    rows.extend(end_rows());
    rows
}

fn lease_rows() -> Vec<Row> {
    vec![
        row("grant", ONE, |_, conn| {
            acquire(conn, "lock", "a", MINUTE_MS);
        }),
        row("refusal", NOTHING, |_, conn| cmd!(conn, "LOCK.ACQUIRE", "lock", "b", MINUTE_MS).nil()),
        row("renewal", ONE, |_, conn| {
            acquire(conn, "lock", "a", 2 * MINUTE_MS);
        }),
        row("extension", ONE, |_, conn| {
            assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "a", 30_000).int(), 1);
        }),
        row("extension with MINTOKEN", ONE, |_, conn| {
            let token = look(conn, "lock").unwrap().counter + 7;
            assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "a", 30_000, "MINTOKEN", token).int(), 1);
        }),
        row("extension by another", NOTHING, |_, conn| {
            assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "b", 30_000).int(), 0);
        }),
        row("release by another", NOTHING, |_, conn| {
            assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "b").int(), 0);
        }),
        row("a wait that ends without a grant", NOTHING, |server, _| {
            let mut waiter = server.connect();
            cmd!(waiter, "LOCK.ACQUIRE", "lock", "b", MINUTE_MS, "WAIT", 20).nil();
        }),
        row("a waiter that goes away", NOTHING, |server, _| {
            let waiter = queue_up(server, "lock", "gone", 1);
            drop(waiter);
            server.wait_blocked_clients(0);
        }),
        row("release with hand-over", ONE, |server, conn| {
            let mut waiter = queue_up(server, "lock", "b", 1);
            assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "a").int(), 1);
            waiter.recv(PATIENCE).token();
        }),
        row("expiry with hand-over by the timer", &[&[EFFECT, EFFECT, EFFECT]], |server, conn| {
            let short = 60;
            // Set the end before anybody waits, so that nothing but the timer hands over.
            cmd!(conn, "LOCK.RELEASE", "lock", "b").int();
            acquire(conn, "lock", "b", short);
            let mut waiter = server.connect();
            cmd!(waiter, "LOCK.ACQUIRE", "lock", "c", MINUTE_MS, "WAIT", 0).token();
        }),
        row("release", ONE, |_, conn| {
            assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "c").int(), 1);
        }),
        row("grant after an end that nobody saw", &[&[EFFECT, EFFECT]], |_, conn| {
            acquire(conn, "lock", "d", 1);
            wait_until("the lease to end", PATIENCE, || ttl_ms(conn, "lock"), |ttl| *ttl == 0);
            acquire(conn, "lock", "e", MINUTE_MS);
        }),
        row("break", ONE, |_, conn| {
            assert_eq!(cmd!(conn, "LOCK.BREAK", "lock").int(), 1);
        }),
        row("break with hand-over", &[&[EFFECT, EFFECT]], |server, conn| {
            acquire(conn, "lock", "f", MINUTE_MS);
            let mut waiter = queue_up(server, "lock", "g", 1);
            assert_eq!(cmd!(conn, "LOCK.BREAK", "lock").int(), 1);
            waiter.recv(PATIENCE).token();
        }),
        row("idle drop", &[&[EFFECT, "DEL"], &[EFFECT, "UNLINK"]], |server, conn| {
            server.config_set("lockfence.idle-ttl-ms", "50");
            acquire(conn, "idle", "me", 20);
            let there = || cmd!(conn, "EXISTS", "idle").int();
            wait_until("the idle record to go", PATIENCE, there, |there| *there == 0);
            server.config_set("lockfence.idle-ttl-ms", "60000");
        }),
    ]
}

fn fence_rows() -> Vec<Row> {
    vec![
        row("fence", ONE, |_, conn| {
            cmd!(conn, "FENCE.ADVANCE", "fence", 10).int();
        }),
        row("fence that stays", NOTHING, |_, conn| {
            cmd!(conn, "FENCE.ADVANCE", "fence", 10).int();
        }),
        row("fence with an end", ONE, |_, conn| {
            cmd!(conn, "FENCE.ADVANCE", "passing", 10, "PX", 3 * MINUTE_MS).int();
        }),
        row("fence that gets an end", ONE, |_, conn| {
            cmd!(conn, "FENCE.ADVANCE", "fence", 10, "PX", 3 * MINUTE_MS).int();
        }),
        row("write at a lock", &[&["SET"]], |_, conn| {
            let token = look(conn, "lock").unwrap().counter;
            cmd!(conn, "FENCE.WRITE", "lock", token, "data", "one", "PX", MINUTE_MS).ok();
        }),
        row("write that raises a fence", &[&["MULTI", EFFECT, "SET", "EXEC"]], |_, conn| {
            cmd!(conn, "FENCE.WRITE", "fence", 20, "data", "two").ok();
        }),
        row("write that does not", &[&["SET"]], |_, conn| {
            cmd!(conn, "FENCE.WRITE", "fence", 20, "data", "three").ok();
        }),
        row("write that raises a fence but whose condition fails", ONE, |_, conn| {
            cmd!(conn, "FENCE.WRITE", "fence", 21, "data", "four", "NX").nil();
        }),
        row("stale write", NOTHING, |_, conn| {
            cmd!(conn, "FENCE.WRITE", "fence", 5, "data", "stale").assert_err_prefix("FENCED ");
            cmd!(conn, "FENCE.WRITE", "lock", 5, "data", "stale").assert_err_prefix("FENCED ");
        }),
        row("call that raises a fence", &[&["MULTI", EFFECT, "RPUSH", "EXEC"]], |_, conn| {
            cmd!(conn, "FENCE.CALL", "fence", 30, "RPUSH", "list", "a").int();
        }),
        row("call at a lock", &[&["RPUSH"]], |_, conn| {
            let token = look(conn, "lock").unwrap().counter;
            cmd!(conn, "FENCE.CALL", "lock", token, "RPUSH", "list", "b").int();
        }),
        row("call whose command fails", ONE, |_, conn| {
            assert!(cmd!(conn, "FENCE.CALL", "fence", 31, "INCR", "list").is_err());
        }),
        row("check", NOTHING, |_, conn| {
            assert_eq!(cmd!(conn, "FENCE.CHECK", "fence", 31).int(), 31);
        }),
    ]
}

fn unit_rows() -> Vec<Row> {
    const UNIT: &[&[&str]] = &[&["MULTI", EFFECT, "SET", EFFECT, "EXEC"]];
    const SMALL: &[&[&str]] = &[&[EFFECT], &["MULTI", EFFECT, "EXEC"]];
    vec![
        row("grant, write and release in MULTI", UNIT, |_, conn| {
            cmd!(conn, "MULTI").ok();
            cmd!(conn, "LOCK.ACQUIRE", "multi", "me", MINUTE_MS);
            cmd!(conn, "SET", "data", "in MULTI");
            cmd!(conn, "LOCK.RELEASE", "multi", "me");
            assert_eq!(cmd!(conn, "EXEC").items().len(), 3);
        }),
        row("grant, write and release in a script", UNIT, |_, conn| {
            let script = "local t = redis.call('LOCK.ACQUIRE', KEYS[1], 'me', '60000') \
                 redis.call('FENCE.WRITE', KEYS[1], t, KEYS[2], 'in a script') \
                 return redis.call('LOCK.RELEASE', KEYS[1], 'me')";
            assert_eq!(cmd!(conn, "EVAL", script, 2, "script", "data").int(), 1);
        }),
        row("grant in a script", SMALL, |_, conn| {
            let script = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'me', '60000')";
            cmd!(conn, "EVAL", script, 1, "script").token();
        }),
        row("hand-over inside of another client's script", SMALL, |server, conn| {
            let mut waiter = queue_up(server, "script", "you", 1);
            cmd!(conn, "EVAL", "return redis.call('LOCK.RELEASE', KEYS[1], 'me')", 1, "script").int();
            waiter.recv(PATIENCE).token();
        }),
        row("hand-over inside of another client's MULTI", UNIT, |server, conn| {
            let mut waiter = queue_up(server, "script", "they", 1);
            cmd!(conn, "MULTI").ok();
            cmd!(conn, "LOCK.RELEASE", "script", "you");
            cmd!(conn, "SET", "data", "between");
            cmd!(conn, "LOCK.ACQUIRE", "multi", "me", MINUTE_MS);
            cmd!(conn, "EXEC");
            waiter.recv(PATIENCE).token();
        }),
    ]
}

fn key_rows() -> Vec<Row> {
    // Redis 7.0 has nothing that runs at the end of a command.
    const OVER: &[&[&str]] = &[&[EFFECT, "MULTI", "RESTORE", EFFECT, "EXEC"], &[EFFECT, "RESTORE", EFFECT]];
    const RENAMED: &[&[&str]] = &[&[EFFECT, "MULTI", "RENAME", EFFECT, "EXEC"], &[EFFECT, "RENAME", EFFECT]];
    vec![
        row("rename", &[&["RENAME"]], |_, conn| cmd!(conn, "RENAME", "multi", "renamed").ok()),
        row("rename over a lock that is ahead", RENAMED, |_, conn| {
            let ahead = acquire(conn, "ahead", "other", MINUTE_MS);
            cmd!(conn, "RENAME", "renamed", "ahead").ok();
            assert!(look(conn, "ahead").unwrap().counter >= ahead);
        }),
        row("move", &[&["MOVE"]], |_, conn| assert_eq!(cmd!(conn, "MOVE", "ahead", 1).int(), 1)),
        row("swap", &[&["SWAPDB"]], |_, conn| cmd!(conn, "SWAPDB", 0, 1).ok()),
        row("grant and release after a swap", &[&[EFFECT, EFFECT]], |_, conn| {
            acquire_and_release(conn, "ahead");
        }),
        row("swap back", &[&["SWAPDB"]], |_, conn| cmd!(conn, "SWAPDB", 0, 1).ok()),
        row("expire", &[&["PEXPIREAT"], &["EXPIRE"]], |_, conn| {
            cmd!(conn, "EXPIRE", "lock", 1).int();
            assert_eq!(cmd!(conn, "PTTL", "lock").int(), -1);
        }),
        row("restore an old record", OVER, |_, conn| {
            let dump = cmd!(conn, "DUMP", "lock");
            let token = look(conn, "lock").unwrap().counter;
            cmd!(conn, "LOCK.RELEASE", "lock", "g").int();
            cmd!(conn, "RESTORE", "lock", 0, dump.bytes(), "REPLACE").ok();
            assert_eq!(look(conn, "lock").unwrap().counter, token);
        }),
        row("restore with a TTL", &[&["RESTORE"]], |_, conn| {
            let dump = cmd!(conn, "DUMP", "lock");
            cmd!(conn, "RESTORE", "copy", 100, dump.bytes()).ok();
            assert_eq!(cmd!(conn, "PTTL", "copy").int(), -1);
        }),
        row("restore over a lock that is ahead", OVER, |_, conn| {
            let dump = cmd!(conn, "DUMP", "copy");
            cmd!(conn, "LOCK.BREAK", "copy").int();
            let ahead = look(conn, "copy").unwrap().counter;
            cmd!(conn, "RESTORE", "copy", 0, dump.bytes(), "REPLACE").ok();
            assert_eq!(look(conn, "copy").unwrap().counter, ahead);
        }),
        row("a grant on a restored record", ONE, |_, conn| {
            acquire(conn, "copy", "next", MINUTE_MS);
        }),
    ]
}

fn end_rows() -> Vec<Row> {
    const GONE: &[&[&str]] = &[&["DEL"], &["UNLINK"]];
    vec![
        row("delete with waiters", GONE, |server, conn| {
            let mut waiter = queue_up(server, "copy", "you", 1);
            assert_eq!(cmd!(conn, "DEL", "copy").int(), 1);
            waiter.recv(PATIENCE).assert_err_prefix("LOCKLOST ");
        }),
        row("unlink", GONE, |_, conn| assert_eq!(cmd!(conn, "UNLINK", "script").int(), 1)),
        row("expiry in the past", GONE, |_, conn| {
            assert_eq!(cmd!(conn, "EXPIRE", "lock", -1).int(), 1);
        }),
        row("overwrite", &[&[EFFECT, "SET"]], |_, conn| {
            acquire(conn, "lock", "me", MINUTE_MS);
            cmd!(conn, "SET", "lock", "a string").ok();
        }),
        row("a fence that ends", &[&[EFFECT, "DEL"], &[EFFECT, "UNLINK"]], |_, conn| {
            cmd!(conn, "FENCE.ADVANCE", "short", 5, "PX", 20).int();
            wait_until(
                "the fence's end",
                PATIENCE,
                || cmd!(conn, "EXISTS", "short").int(),
                |there| *there == 0,
            );
        }),
        row("flush", &[&[EFFECT, "FLUSHDB", EFFECT]], |_, conn| {
            acquire(conn, "lock two", "me", MINUTE_MS);
            cmd!(conn, "FLUSHDB").ok();
            acquire(conn, "lock two", "me", MINUTE_MS);
        }),
        row("flush all, in the background", &[&["FLUSHALL", EFFECT]], |_, conn| {
            cmd!(conn, "FLUSHALL", "ASYNC").ok();
            acquire(conn, "lock two", "me", MINUTE_MS);
        }),
    ]
}

/// All locks of databases 0 and 1, by LOCK.INFO.
fn all_locks(server: &Server) -> Vec<(u8, Vec<u8>, Option<Seen>)> {
    let mut conn = server.connect();
    let mut all = Vec::new();
    for db in [0, 1] {
        cmd!(conn, "SELECT", db).ok();
        let mut cursor = "0".to_owned();
        loop {
            let reply = cmd!(conn, "SCAN", &cursor, "TYPE", "lockfence", "COUNT", 1000);
            for key in reply.items()[1].items() {
                all.push((db, key.bytes().to_vec(), look(&mut conn, key.bytes())));
            }
            cursor = reply.items()[0].text();
            if cursor == "0" {
                break;
            }
        }
    }
    all.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
    all
}

#[track_caller]
fn assert_same(primary: &Server, replica: &Server, after: &str) {
    replica.wait_in_sync(primary);
    assert_eq!(all_locks(replica), all_locks(primary), "after {after}");
    assert_eq!(replica.digest(), primary.digest(), "after {after}");
    assert!(high_and_floor(replica).0 >= high_and_floor(primary).0, "highest token after {after}");
}

/// Waits until a replica that is not to be waited for sees nothing more of its primary.
fn stop_following(proxy: &Proxy, replica: &Server) {
    proxy.refuse();
    let status = || replica.info("replication")["master_link_status"].clone();
    wait_until("the link to be down", PATIENCE, status, |status| status == "down");
}

const REFUSED_ON_REPLICAS: [&[&str]; 9] = [
    &["LOCK.ACQUIRE", "lock", "me", "1000"],
    &["LOCK.ACQUIRE", "lock", "you", "1000", "WAIT", "0"],
    &["LOCK.RELEASE", "lock", "me"],
    &["LOCK.EXTEND", "lock", "me", "1000"],
    &["LOCK.BREAK", "lock"],
    &["FENCE.WRITE", "fence", "5", "data", "value"],
    &["FENCE.CALL", "fence", "5", "SET", "data", "value"],
    &["FENCE.CHECK", "fence", "5"],
    &["FENCE.ADVANCE", "fence", "6"],
];

/// Many locks, so that a snapshot takes a while: 20,000 held, by a script.
fn many_locks(conn: &mut Conn) {
    let script = "for i = 1, 20000 do redis.call('LOCK.ACQUIRE', 'many:' .. i, 'owner', '600000') end";
    cmd!(conn, "EVAL", script, 0).no_err();
}

/// A primary whose snapshots for replicas take about two seconds.
fn slow_saver(kind: ServerKind) -> ServerBuilder {
    Server::builder(kind)
        .arg("repl-diskless-sync", "yes")
        .arg("rdb-key-save-delay", 100)
        .arg("repl-backlog-size", 16384)
}

/// F6, E11: cuts the link in the middle of a transfer, then lets it through. `load` is repl-diskless-load.
fn cut_in_mid_transfer(kind: ServerKind, load: &str) {
    let primary = slow_saver(kind).start();
    let replica = Server::builder(kind).arg("repl-diskless-load", load).start();
    let mut conn = primary.connect();
    many_locks(&mut conn);
    let pid = replica.pid();
    let proxy = Proxy::to(&primary);
    for cut in 0..2 {
        let before = proxy.stats().bytes_to_client;
        if cut == 0 {
            cmd!(replica.connect(), "REPLICAOF", "127.0.0.1", proxy.port()).ok();
        }
        let sent = || proxy.stats().bytes_to_client - before;
        wait_until("a part of the snapshot", PATIENCE, sent, |bytes| *bytes > 200_000);
        proxy.cut();
    }
    let status = || replica.info("replication");
    wait_until("the link to be up", Duration::from_secs(60), status, |info| {
        info["master_link_status"] == "up"
    });
    assert_same(&primary, &replica, "the cut transfers");
    assert_eq!(cmd!(replica.connect(), "DBSIZE").int(), 20_000);
    assert_eq!(replica.pid(), pid);
    replica.assert_alive();
}

server_tests! {
    /// G6: after each kind of change primary and replica hold the same, the replica was told effects in one atomic
    /// unit, and knows the highest token.
    fn every_change_arrives_as_an_effect(kind: ServerKind) {
        let (primary, replica) = pair(kind);
        let mut stream = ReplicationStream::attach(&primary);
        let mut conn = primary.connect();
        for row in rows() {
            (row.run)(&primary, &mut conn);
            let lines = stream.lines_until_now(&primary);
            let words = lines.iter().map(|line| line.split(' ').next().unwrap().to_ascii_uppercase());
            let told: Vec<String> = words.filter(|word| word != "SELECT").collect();
            assert!(row.told.iter().any(|one| *one == told), "{}: replicas were told {lines:#?}", row.name);
            assert_same(&primary, &replica, row.name);
        }
        assert!(!replica.log().contains("CRITICAL"), "{}", replica.log_tail());
    }

    /// The same, with the replica stopped all the while: everything comes at once, as from a slow link.
    fn a_lagging_replica_ends_up_the_same(kind: ServerKind) {
        let (primary, replica) = pair(kind);
        let mut conn = primary.connect();
        replica.pause();
        for row in rows() {
            (row.run)(&primary, &mut conn);
        }
        replica.resume();
        assert_same(&primary, &replica, "all of it");
    }

    /// E3: a wait, a grant by hand-over and a grant by the timer never send LOCK.ACQUIRE; the effect names owner and
    /// token, so that a replica cannot block, fail or mint.
    fn the_stream_names_owner_and_token(kind: ServerKind) {
        let primary = Server::start(kind);
        let mut stream = ReplicationStream::attach(&primary);
        let mut conn = primary.connect();
        acquire(&mut conn, "lock", "first-owner", 100);
        let mut waiter = primary.connect();
        let by_timer = cmd!(waiter, "LOCK.ACQUIRE", "lock", "second-owner", MINUTE_MS, "WAIT", 0).token();
        let mut third = queue_up(&primary, "lock", "third-owner", 1);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "second-owner").int(), 1);
        let by_release = third.recv(PATIENCE).token();
        let lines = stream.lines_until_now(&primary);
        assert!(lines.iter().all(|line| !line.contains("ACQUIRE") && !line.contains("HANDOVER")), "{lines:#?}");
        for (owner, token) in [("second-owner", by_timer), ("third-owner", by_release)] {
            let token = token.to_le_bytes()[..7].escape_ascii().to_string();
            assert!(lines.iter().any(|line| line.contains(owner) && line.contains(&token)), "{owner} in {lines:#?}");
        }
    }

    /// E1: both ways of a grant to one who waits are on the replica with the same token and deadline, and still there
    /// when it takes over.
    fn grants_to_waiters_survive_a_promotion(kind: ServerKind) {
        let (primary, replica) = pair(kind);
        let mut conn = primary.connect();
        acquire(&mut conn, "released", "first", MINUTE_MS);
        acquire(&mut conn, "ended", "first", 200);
        let mut by_release = queue_up(&primary, "released", "second", 1);
        let mut by_timer = queue_up(&primary, "ended", "second", 2);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "released", "first").int(), 1);
        let tokens = [by_release.recv(PATIENCE).token(), by_timer.recv(PATIENCE).token()];
        replica.wait_in_sync(&primary);
        primary.kill9();
        replica.promote();
        let mut conn = replica.connect();
        for (key, token) in ["released", "ended"].iter().zip(tokens) {
            let seen = look(&mut conn, key).unwrap();
            assert_eq!((seen.token, seen.owner), (Some(token), Some(b"second".to_vec())));
            let ttl = ttl_ms(&mut conn, key);
            assert!((1..=MINUTE_MS.cast_signed()).contains(&ttl), "{ttl} ms");
            cmd!(conn, "LOCK.ACQUIRE", key, "third", 1000).nil();
            assert_eq!(acquire(&mut conn, key, "second", MINUTE_MS), token, "its holder renews it");
        }
    }

    /// E4: a lease that reaches a replica 3 s late ends when the primary said, not 3 s later.
    fn a_late_replica_keeps_the_deadline(kind: ServerKind) {
        let (primary, replica) = pair(kind);
        replica.pause();
        let granted = Instant::now();
        acquire(&mut primary.connect(), "lock", "me", 30_000);
        let later = granted + Duration::from_secs(3);
        wait_until("3 s", PATIENCE, Instant::now, |now| *now >= later);
        replica.resume();
        replica.wait_in_sync(&primary);
        replica.promote();
        let left = ttl_ms(&mut replica.connect(), "lock");
        let passed = i64::try_from(granted.elapsed().as_millis()).unwrap();
        assert!(left <= 30_000 - 2_990, "{left} ms left {passed} ms after the grant of 30,000");
        assert!(left >= 30_000 - passed - 5, "{left} ms left {passed} ms after the grant of 30,000");
    }

    /// G5 after a promotion: a lease that came from the old primary ends in time for those who wait at the new one,
    /// and not before.
    fn a_lease_from_the_old_primary_ends_for_waiters_at_the_new_one(kind: ServerKind) {
        let (primary, replica) = pair(kind);
        let granted = Instant::now();
        let token = acquire(&mut primary.connect(), "lock", "me", 2_000);
        replica.wait_in_sync(&primary);
        let returned = Instant::now();
        primary.kill9();
        replica.promote();
        let mut waiter = queue_up(&replica, "lock", "you", 1);
        assert!(waiter.recv(PATIENCE).token() > token);
        let (earliest, latest) = (Duration::from_millis(1_990), Duration::from_secs(12));
        assert!(granted.elapsed() >= earliest, "granted {:?} after a grant of 2 s", granted.elapsed());
        assert!(returned.elapsed() < latest, "granted {:?} after a grant of 2 s", returned.elapsed());
    }

    /// Contract: on a replica, writable or not, -READONLY for all that changes, grants or must not be stale.
    fn a_replica_refuses_what_changes_or_vouches(kind: ServerKind) {
        let (primary, replica) = pair(kind);
        let mut conn = primary.connect();
        acquire(&mut conn, "lock", "me", MINUTE_MS);
        cmd!(conn, "FENCE.ADVANCE", "fence", 5).int();
        replica.wait_in_sync(&primary);
        for read_only in ["yes", "no"] {
            replica.config_set("replica-read-only", read_only);
            let mut conn = replica.connect();
            for words in REFUSED_ON_REPLICAS {
                conn.cmd(words).assert_err_prefix("READONLY ");
            }
            // Nor in a script or a transaction.
            let script = "return redis.call('LOCK.RELEASE', KEYS[1], 'me')";
            assert!(cmd!(conn, "EVAL", script, 1, "lock").err().contains("READONLY")
                || read_only == "yes");
            let log = [1, 5, 1, 9, 1, 0, 0, 0];
            cmd!(conn, "LF.LOG", "forged", log).err();
            assert_eq!(cmd!(conn, "EXISTS", "forged").int(), 0);
            replica.wait_blocked_clients(0);
            let info = cmd!(conn, "LOCK.INFO", "lock", "FULL");
            assert_eq!(info.field("owner").text(), "me");
            assert_same(&primary, &replica, "refusals");
        }
    }

    /// B14: a replica never says "held" past the deadline, nor a lease that is negative or huge, and neither grants,
    /// nor ends, nor drops anything by itself while its primary is silent.
    fn a_replica_of_a_silent_primary_only_looks(kind: ServerKind) {
        let primary = Server::start(kind);
        let replica = Server::builder(kind).arg("lockfence.idle-ttl-ms", 100).start();
        // One record comes with the snapshot, one by the stream.
        acquire(&mut primary.connect(), "early", "me", 50);
        replica.replicate_from(&primary);
        replica.wait_in_sync(&primary);
        replica.config_set("repl-timeout", "3600");
        let mut conn = primary.connect();
        // Redis 7.0 sends nothing before the new replica's first acknowledgement, up to a second after the snapshot.
        cmd!(conn, "SET", "the stream", "flows").ok();
        replica.wait_in_sync(&primary);
        let token = acquire(&mut conn, "lock", "me", 400);
        let mut waiter = primary.connect();
        send!(waiter, "LOCK.ACQUIRE", "lock", "you", MINUTE_MS, "WAIT", 0);
        primary.wait_blocked_clients(1);
        replica.wait_in_sync(&primary);
        primary.pause();
        let granted_before = Instant::now();
        let mut conn = replica.connect();
        let mut looks = 0;
        // Over all of the lease and ten times the idle time after it.
        while granted_before.elapsed() < Duration::from_millis(1_500) {
            let asked = Instant::now();
            let info = cmd!(conn, "LOCK.INFO", "lock");
            let ttl = info.field("ttl-ms").int();
            assert!((0..=400).contains(&ttl), "{info:?}");
            assert_eq!(info.field("counter").int().unsigned_abs(), token);
            if asked > granted_before + Duration::from_millis(400) {
                let said = (info.field("state").text(), ttl, info.field("holders").int());
                assert_eq!(said, ("free".to_owned(), 0, 0));
                assert!(info.field("owner").is_nil() && info.field("token").is_nil());
                looks += 1;
            }
        }
        assert!(looks > 0);
        assert_eq!(cmd!(conn, "EXISTS", "early", "lock").int(), 2);
        primary.resume();
        assert!(waiter.recv(PATIENCE).token() > token);
        assert_same(&primary, &replica, "the pause");
    }

    /// A partial sync: what was written while the link was down arrives, without a snapshot.
    fn a_partial_sync_brings_what_was_missed(kind: ServerKind) {
        let (primary, replica) = (Server::start(kind), Server::start(kind));
        let proxy = replicate_through(&replica, &primary);
        let syncs = || {
            let stats = primary.info("stats");
            (stats["sync_full"].clone(), stats["sync_partial_ok"].parse::<u64>().unwrap())
        };
        let before = syncs();
        let mut conn = primary.connect();
        stop_following(&proxy, &replica);
        for row in rows() {
            (row.run)(&primary, &mut conn);
        }
        proxy.pass();
        replica.wait_in_sync(&primary);
        assert_same(&primary, &replica, "a partial sync");
        acquire(&mut conn, "lock", "last", MINUTE_MS);
        assert!(cmd!(replica.connect(), "CLIENT", "KILL", "TYPE", "master").int() >= 1);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "last").int(), 1);
        wait_for("the link to be up again", PATIENCE, || {
            let seen = syncs();
            if seen.1 >= before.1 + 2 { Ok(()) } else { Err(seen) }
        });
        assert_same(&primary, &replica, "a killed link");
        assert_eq!(syncs().0, before.0, "no further full sync");
    }

    /// A full sync of a replica that held other locks: nothing of them stays, tokens and leases are the primary's.
    fn a_full_sync_replaces_everything(kind: ServerKind) {
        for diskless in ["no", "yes"] {
            let primary = Server::builder(kind).arg("repl-diskless-sync", diskless).start();
            let replica = Server::start(kind);
            let mut conn = primary.connect();
            acquire(&mut conn, "held", "me", MINUTE_MS);
            acquire_and_release(&mut conn, "free");
            let mut own = replica.connect();
            acquire(&mut own, "held", "other", MINUTE_MS);
            acquire(&mut own, "own", "other", MINUTE_MS);
            let mut waiter = queue_up(&replica, "own", "waiter", 1);
            replica.replicate_from(&primary);
            assert!(waiter.recv(PATIENCE).is_err(), "a waiter at a server that becomes a replica");
            assert_same(&primary, &replica, "a full sync");
            assert_eq!(look(&mut replica.connect(), "held").unwrap().owner.unwrap(), b"me");
        }
    }

    /// F6: no abort on a short read, into an empty data set or not.
    fn a_transfer_that_breaks_off_is_tried_again_with_swapdb(kind: ServerKind) {
        cut_in_mid_transfer(kind, "swapdb");
    }

    /// F6, the same straight into the keyspace of a replica that holds nothing.
    fn a_transfer_that_breaks_off_is_tried_again_on_empty_db(kind: ServerKind) {
        cut_in_mid_transfer(kind, "on-empty-db");
    }

    /// F6, the same through a file.
    fn a_transfer_that_breaks_off_is_tried_again_from_disk(kind: ServerKind) {
        cut_in_mid_transfer(kind, "disabled");
    }

    /// E11: with swapdb a replica goes on answering from the old data during the load; when the transfer breaks off,
    /// it still has it, and its records count as before.
    fn a_broken_async_load_leaves_the_old_data(kind: ServerKind) {
        let primary = slow_saver(kind).start();
        let replica = Server::builder(kind)
            .arg("repl-diskless-load", "swapdb")
            .arg("loading-process-events-interval-bytes", 1024) // else it answers nobody before the end of so small a load
            .start();
        let mut conn = primary.connect();
        let token = acquire(&mut conn, "lock", "me", 10 * MINUTE_MS);
        let proxy = replicate_through(&replica, &primary);
        stop_following(&proxy, &replica);
        many_locks(&mut conn);
        cmd!(conn, "FLUSHALL").ok();
        many_locks(&mut conn); // the backlog is far behind: a full sync of the same history
        let before = proxy.stats().bytes_to_client;
        proxy.pass();
        let sent = || proxy.stats().bytes_to_client - before;
        wait_until("a part of the snapshot", PATIENCE, sent, |bytes| *bytes > 200_000);
        assert_eq!(look(&mut replica.connect(), "lock").unwrap().token, Some(token), "answers during the load");
        stop_following(&proxy, &replica);
        let loading = || replica.info("persistence")["async_loading"].clone();
        wait_until("the load to be given up", PATIENCE, loading, |loading| loading == "0");
        assert_eq!(look(&mut replica.connect(), "lock").unwrap().token, Some(token), "after the cut");
        assert_eq!(cmd!(replica.connect(), "DBSIZE").int(), 1);
        proxy.pass();
        let status = || replica.info("replication");
        wait_until("the link to be up", Duration::from_secs(60), status, |info| info["master_link_status"] == "up");
        assert_same(&primary, &replica, "the second transfer");
        assert_eq!(look(&mut replica.connect(), "lock"), None);
    }

    /// A chain of replicas, with an AOF on the one in the middle: all three agree, and the one in the middle knows
    /// everything after a crash, before it hears anything.
    fn a_replica_with_an_aof_keeps_what_it_was_told(kind: ServerKind) {
        let (primary, last) = (Server::start(kind), Server::start(kind));
        let middle = with_aof(kind).start();
        let proxy = replicate_through(&middle, &primary);
        last.replicate_from(&middle);
        let mut conn = primary.connect();
        for row in rows() {
            (row.run)(&primary, &mut conn);
        }
        let token = acquire(&mut conn, "kept", "me", MINUTE_MS);
        middle.wait_in_sync(&primary);
        assert_same(&primary, &middle, "all of it");
        last.wait_in_sync(&middle);
        assert_eq!(last.digest(), primary.digest());
        // `appendfsync always` writes before replies; a replica has none to wait for but this one.
        cmd!(middle.connect(), "PING").no_err();
        let digest = middle.digest();
        proxy.refuse();
        middle.kill9();
        middle.restart();
        assert_eq!(middle.digest(), digest);
        assert_eq!(look(&mut middle.connect(), "kept").unwrap().token, Some(token));
        assert!(acquire(&mut middle.connect(), "fresh", "me", 1000) > token, "as a primary of its own");
    }

    /// E5: a replica that missed the last grants issues higher tokens when it takes over, for the same lock and for
    /// others, and fences the lost ones as soon as it grants.
    fn a_promoted_replica_is_above_a_lost_tail(kind: ServerKind) {
        let (primary, replica) = (Server::start(kind), Server::start(kind));
        let proxy = replicate_through(&replica, &primary);
        let mut conn = primary.connect();
        let known = acquire_and_release(&mut conn, "lock");
        replica.wait_in_sync(&primary);
        stop_following(&proxy, &replica);
        let mut lost = known;
        for _ in 0..1_000 {
            lost = lost.max(acquire_and_release(&mut conn, "lock")).max(acquire_and_release(&mut conn, "unknown"));
        }
        let lost = lost.max(acquire(&mut conn, "lock", "holder", MINUTE_MS));
        primary.kill9();
        replica.promote();
        let mut conn = replica.connect();
        cmd!(conn, "FENCE.WRITE", "lock", lost, "data", "lost").assert_err_prefix("FENCED ");
        let token = acquire(&mut conn, "lock", "next", MINUTE_MS);
        assert!(token > lost);
        assert!(acquire(&mut conn, "unknown", "next", MINUTE_MS) > lost);
        let refused = cmd!(conn, "FENCE.WRITE", "lock", lost, "data", "lost");
        assert!(refused.assert_err_prefix("FENCED ").contains("stale"), "{refused:?}");
        cmd!(conn, "FENCE.WRITE", "lock", token, "data", "new").ok();
        // Everybody above keeps rising through a second failover.
        let third = Server::start(kind);
        third.replicate_from(&replica);
        third.wait_in_sync(&replica);
        replica.kill9();
        third.promote();
        cmd!(third.connect(), "LOCK.BREAK", "lock").int();
        assert!(acquire(&mut third.connect(), "lock", "last", MINUTE_MS) > token);
    }

    /// E5 with proposals: tokens 10 s ahead of the clock were issued and lost.
    fn a_promoted_replica_is_above_lost_proposals(kind: ServerKind) {
        let (primary, replica) = (Server::start(kind), Server::start(kind));
        let proxy = replicate_through(&replica, &primary);
        let mut conn = primary.connect();
        acquire_and_release(&mut conn, "lock");
        replica.wait_in_sync(&primary);
        stop_following(&proxy, &replica);
        let base = high_and_floor(&primary).1.max(durable::wall_us());
        let lost = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", 1, "MINTOKEN", base + 9_900_000).token();
        let next = wait_for("a further grant", PATIENCE, || {
            let reply = cmd!(conn, "LOCK.ACQUIRE", "lock", "you", MINUTE_MS);
            if reply.is_nil() { Err(reply) } else { Ok(reply.token()) }
        });
        assert!(next > lost && lost >= base + 9_900_000);
        primary.kill9();
        replica.promote();
        assert!(acquire(&mut replica.connect(), "lock", "last", MINUTE_MS) > next);
        assert!(acquire(&mut replica.connect(), "fresh", "last", MINUTE_MS) > next);
    }

    /// The floor goes out with the first effects, and no more with every one: also beside the modules that some servers are
    /// built with.
    fn the_floor_is_told_and_then_no_more(kind: ServerKind) {
        let server = Server::start(kind);
        let mut stream = ReplicationStream::attach(&server);
        let mut conn = server.connect();
        let mut lengths = Vec::new();
        for lock in ["first", "again", "third", "after"] {
            acquire(&mut conn, lock, "me", MINUTE_MS);
        }
        while lengths.len() < 4 {
            let command = stream.next_command(PATIENCE).expect("an effect");
            if command[0] == EFFECT.as_bytes() {
                lengths.push(command[2].len());
            }
        }
        assert!(lengths[2] == lengths[3] && lengths[3] < lengths[0], "{lengths:?}");
    }

    /// "The restart floor": another module that has nothing replicated runs the first command after a load. The floor goes
    /// out with what comes next, so that the replica stays above its primary.
    fn a_module_that_replicates_nothing_does_not_swallow_the_floor(kind: ServerKind) {
        let (primary, replica) = (Server::start(kind), Server::start(kind));
        let other = other_module(&primary);
        cmd!(primary.connect(), "MODULE", "LOAD", other.to_str().unwrap(), "readonly").ok();
        replica.replicate_from(&primary);
        replica.wait_in_sync(&primary);
        let mut conn = primary.connect();
        for round in 0..2 {
            // A floor is raised from the one before if something was issued under that.
            acquire(&mut conn, format!("before{round}"), "me", MINUTE_MS);
            cmd!(conn, "DEBUG", "RELOAD").ok();
        }
        replica.wait_in_sync(&primary);
        let floor = |server: &Server| high_and_floor(server).1;
        assert!(floor(&replica) < floor(&primary), "the replica loaded as well");
        // From Redis 7.2 on a module can let what it runs wait (K); then no flag tells that it is not a client's own.
        for modes in if kind == ServerKind::Redis70 { &["E"][..] } else { &["E", "EK"] } {
            cmd!(conn, "OTHER.RUN", "quiet", modes, "LOCK.ACQUIRE", "quiet", "me", MINUTE_MS).token();
        }
        cmd!(conn, "MULTI").ok();
        cmd!(conn, "OTHER.RUN", "quiet too", "E", "LOCK.ACQUIRE", "quiet too", "me", MINUTE_MS).no_err();
        cmd!(conn, "EXEC").items()[0].token();
        replica.wait_in_sync(&primary);
        assert_eq!(look(&mut replica.connect(), "quiet"), None, "nothing is to be replicated");
        assert_eq!(look(&mut replica.connect(), "quiet too"), None, "nothing is to be replicated");
        acquire(&mut conn, "after", "me", MINUTE_MS);
        replica.wait_in_sync(&primary);
        assert_eq!(floor(&replica), floor(&primary));
    }

    /// A script cannot keep from replicas what the module did in it, the floor included: `redis.set_repl` is for the
    /// server's own commands.
    fn a_script_that_replicates_nothing_swallows_no_effect(kind: ServerKind) {
        let (primary, replica) = pair(kind);
        let mut conn = primary.connect();
        acquire(&mut conn, "before", "me", MINUTE_MS);
        cmd!(conn, "DEBUG", "RELOAD").ok();
        let script = "redis.set_repl(redis.REPL_NONE)
            redis.call('SET', KEYS[2], 'x')
            local token = redis.call('LOCK.ACQUIRE', KEYS[1], 'me', 60000)
            redis.call('FENCE.WRITE', KEYS[1], token, KEYS[3], 'y')
            redis.call('FENCE.ADVANCE', KEYS[4], token)
            return token";
        cmd!(conn, "EVAL", script, 4, "{k}lock", "{k}plain", "{k}fenced", "{k}fence").token();
        replica.wait_in_sync(&primary);
        assert_eq!(high_and_floor(&replica).1, high_and_floor(&primary).1);
        assert_eq!(all_locks(&replica), all_locks(&primary));
        let mut there = replica.connect();
        let kept = |key: &str, there: &mut Conn| cmd!(there, "EXISTS", key).int();
        assert_eq!(["{k}plain", "{k}fenced", "{k}fence"].map(|key| kept(key, &mut there)), [0, 1, 1]);
    }

    /// "Restart quarantine": a promotion begins it where it is set; leases that are known go on meanwhile.
    fn a_promotion_begins_the_quarantine(kind: ServerKind) {
        let (primary, replica) = pair(kind);
        let mut conn = primary.connect();
        let token = acquire(&mut conn, "held", "me", MINUTE_MS);
        acquire_and_release(&mut conn, "free");
        replica.wait_in_sync(&primary);
        replica.config_set("lockfence.quarantine-ms", "3000");
        primary.kill9();
        let promoted = Instant::now();
        replica.promote();
        let mut conn = replica.connect();
        let refused = cmd!(conn, "LOCK.ACQUIRE", "free", "you", MINUTE_MS);
        refused.assert_err_prefix("QUARANTINE ");
        cmd!(conn, "LOCK.ACQUIRE", "fresh", "you", MINUTE_MS).assert_err_prefix("QUARANTINE ");
        assert_eq!(acquire(&mut conn, "held", "me", MINUTE_MS), token, "a holder known to be live");
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "held", "me", MINUTE_MS).int(), 1);
        cmd!(conn, "FENCE.WRITE", "held", token, "data", "value").ok();
        let mut waiter = queue_up(&replica, "free", "you", 1);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "held", "me").int(), 1);
        assert!(waiter.recv(PATIENCE).token() > token);
        assert!(promoted.elapsed() >= Duration::from_millis(2_990), "granted after {:?}", promoted.elapsed());
        acquire(&mut conn, "fresh", "you", MINUTE_MS);
    }

    /// "promotion right after a start" (a trap of earlier designs): a replica that has just started and synced issues
    /// above its primary.
    fn a_replica_promoted_right_after_its_start_is_above(kind: ServerKind) {
        let primary = Server::start(kind);
        let mut conn = primary.connect();
        let mut highest = 0;
        for _ in 0..100 {
            highest = acquire_and_release(&mut conn, "lock");
        }
        cmd!(conn, "DEL", "lock").int();
        let replica = Server::start(kind);
        replica.replicate_from(&primary);
        replica.wait_in_sync(&primary);
        let later = acquire_and_release(&mut conn, "other"); // perhaps on its way
        replica.promote();
        let token = acquire(&mut replica.connect(), "lock", "me", MINUTE_MS);
        assert!(token > highest && token > later);
    }

    /// A primary that becomes a replica: waiters are told, leases and tokens are then the new primary's.
    fn a_demoted_primary_tells_its_waiters_and_follows(kind: ServerKind) {
        let (primary, replica) = pair(kind);
        let mut conn = primary.connect();
        let token = acquire(&mut conn, "lock", "me", MINUTE_MS);
        let mut waiter = queue_up(&primary, "lock", "you", 1);
        replica.wait_in_sync(&primary);
        replica.promote();
        primary.replicate_from(&replica);
        waiter.recv(PATIENCE).assert_err_prefix("UNBLOCKED ");
        let mut new = replica.connect();
        assert_eq!(cmd!(new, "LOCK.RELEASE", "lock", "me").int(), 1);
        assert!(acquire(&mut new, "lock", "you", MINUTE_MS) > token);
        assert_same(&replica, &primary, "the change of roles");
        cmd!(primary.connect(), "LOCK.ACQUIRE", "lock", "me", 1000).assert_err_prefix("READONLY ");
    }

    /// "Deleting a lock's key": where none stands a record arrives as it is. What an earlier command deleted does not
    /// count, and a replica that came in between agrees.
    fn a_deleted_lock_does_not_judge_a_later_arrival(kind: ServerKind) {
        let (primary, replica) = (Server::start(kind), Server::start(kind));
        let mut conn = primary.connect();
        for (key, gone) in [("deleted", "DEL"), ("unlinked", "UNLINK"), ("ended", "PEXPIREAT"), ("overwritten", "SET")] {
            acquire(&mut conn, key, "A", 10 * MINUTE_MS);
            let dump = cmd!(conn, "DUMP", key);
            assert_eq!(cmd!(conn, "LOCK.RELEASE", key, "A").int(), 1);
            let later = acquire(&mut conn, key, "B", MINUTE_MS);
            match gone {
                "PEXPIREAT" => assert_eq!(cmd!(conn, "PEXPIREAT", key, 1).int(), 1),
                "SET" => cmd!(conn, "SET", key, "data").ok(),
                _ => assert_eq!(cmd!(conn, gone, key).int(), 1),
            }
            cmd!(replica.connect(), "REPLICAOF", "NO", "ONE").ok();
            cmd!(replica.connect(), "FLUSHALL").ok();
            replica.replicate_from(&primary);
            replica.wait_in_sync(&primary);
            cmd!(conn, "RESTORE", key, 0, dump.bytes(), "REPLACE").ok();
            assert_same(&primary, &replica, gone);
            assert_eq!(look(&mut conn, key).unwrap().owner.as_deref(), Some(&b"A"[..]), "after {gone}");
            assert_eq!(cmd!(conn, "LOCK.RELEASE", key, "A").int(), 1);
            assert!(acquire(&mut conn, key, "C", MINUTE_MS) > later, "after {gone}");
        }
    }

    /// What is decided when a record arrives over a lock is told, not decided again: a replica that lags, and gets all of
    /// it at once, agrees.
    fn a_replica_that_lags_agrees_on_what_arrived(kind: ServerKind) {
        let (primary, replica) = pair(kind);
        let mut conn = primary.connect();
        for arrival in ARRIVALS {
            replica.wait_in_sync(&primary);
            replica.pause();
            arrive_over(&mut conn, arrival);
            replica.resume();
            assert_same(&primary, &replica, arrival.0);
        }
        // Data stands there in between: what arrives then finds no lock.
        for arrive in [ARRIVALS[0], ARRIVALS[1]] {
            cmd!(conn, "FLUSHALL").ok();
            acquire(&mut conn, "old", "A", MINUTE_MS);
            acquire(&mut conn, "lock", "B", MINUTE_MS);
            replica.wait_in_sync(&primary);
            replica.pause();
            cmd!(conn, "SET", "lock", "data").ok();
            (arrive.1)(&mut conn);
            replica.resume();
            assert_same(&primary, &replica, arrive.0);
            assert_eq!(look(&mut conn, "lock").unwrap().owner.as_deref(), Some(&b"A"[..]), "{}", arrive.0);
        }
    }

    /// A grant by the timer while the link is slow: it arrives behind what was written before it (the proxy holds the
    /// stream), and the replica agrees.
    fn a_grant_by_the_timer_on_a_slow_link_arrives_in_order(kind: ServerKind) {
        let (primary, replica) = (Server::start(kind), Server::start(kind));
        let proxy = replicate_through(&replica, &primary);
        proxy.hold(Direction::ToClient);
        let mut conn = primary.connect();
        acquire(&mut conn, "lock", "first", 100);
        cmd!(conn, "SET", "data", "first").ok();
        let mut waiter = primary.connect();
        let token = cmd!(waiter, "LOCK.ACQUIRE", "lock", "second", MINUTE_MS, "WAIT", 0).token();
        cmd!(conn, "FENCE.WRITE", "lock", token, "data", "second").ok();
        assert_eq!(look(&mut replica.connect(), "lock"), None);
        proxy.pass();
        assert_same(&primary, &replica, "a slow link");
        assert_eq!(look(&mut replica.connect(), "lock").unwrap().token, Some(token));
    }
}
