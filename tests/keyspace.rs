//! What the server's own commands do to the keys of locks and fences: they go, move, arrive, are replaced. Whoever waits
//! is told, tokens rise over all of it, and no lease gets longer or shorter by it.

use crate::common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{LONG_MS, SOON, info, number, owner, standing, stat_of, wait_queue, waiter};
use lockfence_testkit::{
    Conn, Reply, Server, ServerKind, args, cmd, raise_open_files, send, server_tests, wait_until,
};

/// What a server is given for a test in which a key may go: much wrapped in one line.
type Way = (&'static str, Vec<Vec<Vec<u8>>>, Vec<Vec<u8>>);

/// Every way in which the lock `L` can go or be replaced: a name, what is prepared, and the command.
fn ways() -> Vec<Way> {
    let way = |name, before, command| (name, before, command);
    vec![
        way("DEL", vec![], args!["DEL", "L"]),
        way("UNLINK", vec![], args!["UNLINK", "L"]),
        way("DEL of several", vec![args!["SET", "x", 1]], args!["DEL", "x", "L", "y"]),
        way("FLUSHALL", vec![], args!["FLUSHALL"]),
        way("FLUSHALL SYNC", vec![], args!["FLUSHALL", "SYNC"]),
        way("FLUSHALL ASYNC", vec![], args!["FLUSHALL", "ASYNC"]),
        way("FLUSHDB", vec![], args!["FLUSHDB"]),
        way("FLUSHDB ASYNC", vec![], args!["FLUSHDB", "ASYNC"]),
        way("SWAPDB", vec![], args!["SWAPDB", 0, 1]),
        way("RENAME away", vec![], args!["RENAME", "L", "M"]),
        way("RENAMENX away", vec![], args!["RENAMENX", "L", "M"]),
        way("RENAME data over it", vec![args!["SET", "x", 1]], args!["RENAME", "x", "L"]),
        way(
            "RENAME a lock over it",
            vec![args!["LOCK.ACQUIRE", "other", "o", 60_000]],
            args!["RENAME", "other", "L"],
        ),
        way(
            "RENAME a fence over it",
            vec![args!["FENCE.ADVANCE", "fence", 5]],
            args!["RENAME", "fence", "L"],
        ),
        way("MOVE", vec![], args!["MOVE", "L", 1]),
        way("SET", vec![], args!["SET", "L", "x"]),
        way("SETEX", vec![], args!["SETEX", "L", 100, "x"]),
        way("MSET", vec![], args!["MSET", "x", 1, "L", "x"]),
        way("COPY data over it", vec![args!["SET", "x", 1]], args!["COPY", "x", "L", "REPLACE"]),
        way("SORT … STORE", vec![args!["RPUSH", "x", 1]], args!["SORT", "x", "STORE", "L"]),
        way("SORT of nothing", vec![], args!["SORT", "nothing", "STORE", "L"]),
        way("SUNIONSTORE", vec![args!["SADD", "x", 1]], args!["SUNIONSTORE", "L", "x"]),
        way("SINTERSTORE of nothing", vec![], args!["SINTERSTORE", "L", "nothing"]),
        way("ZRANGESTORE", vec![args!["ZADD", "x", 1, "m"]], args!["ZRANGESTORE", "L", "x", 0, -1]),
        way("BITOP", vec![args!["SET", "x", 1]], args!["BITOP", "NOT", "L", "x"]),
        way("EXPIRE in the past", vec![], args!["EXPIRE", "L", -1]),
        way("PEXPIREAT in the past", vec![], args!["PEXPIREAT", "L", 1]),
        way("EVAL", vec![], args!["EVAL", "return redis.call('DEL', KEYS[1])", 1, "L"]),
    ]
}

/// Asserts that the holder's token counts no more at `lock`: no record, a newer one, or another type.
#[track_caller]
fn assert_fenced(conn: &mut Conn, lock: &str, token: u64, why: &str) {
    let reply = cmd!(conn, "FENCE.WRITE", lock, token, "data", "late");
    let fenced =
        reply.is_err() && (reply.err().starts_with("FENCED ") || reply.err().starts_with("WRONGTYPE "));
    assert!(fenced, "{why}: {reply:?}");
    let extended = cmd!(conn, "LOCK.EXTEND", lock, "holder", 1000);
    assert!(extended == Reply::Int(0) || extended.is_err(), "{why}: {extended:?}");
}

/// Puts back a clean slate and takes the lock; deletes whatever stands in its place.
fn take_again(conn: &mut Conn, lock: &str, owner: &str) -> u64 {
    let reply = cmd!(conn, "LOCK.ACQUIRE", lock, owner, LONG_MS);
    if !matches!(reply, Reply::Int(_)) {
        cmd!(conn, "DEL", lock).no_err();
        return cmd!(conn, "LOCK.ACQUIRE", lock, owner, LONG_MS).token();
    }
    reply.token()
}

/// The payload of a lock as it stands.
fn dump(conn: &mut Conn, lock: &str) -> Vec<u8> {
    cmd!(conn, "DUMP", lock).bytes().to_vec()
}

/// A client that waits for a lock of which there is no record, once so many clients wait.
#[track_caller]
fn waiter_without_record(server: &Server, lock: &str, blocked: u64) -> Conn {
    let mut conn = server.connect();
    send!(conn, "LOCK.ACQUIRE", lock, "w", LONG_MS, "WAIT", 0);
    server.wait_blocked_clients(blocked);
    conn
}

#[track_caller]
fn dump_of_a_held_lock(kind: ServerKind) -> Vec<u8> {
    let server = Server::start(kind);
    let mut conn = server.connect();
    cmd!(conn, "LOCK.ACQUIRE", "L", "holder", LONG_MS).token();
    dump(&mut conn, "L")
}

server_tests! {
    /// D4, G1: in whatever way a lock goes while clients wait, each of them gets -LOCKLOST at once and once, the holder is
    /// fenced, and the next grant's token is higher than any before.
    fn who_waits_for_a_lock_that_goes_is_told_at_once(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let mut highest = 0;
        for (name, before, command) in ways() {
            cmd!(conn, "FLUSHALL").ok();
            let token = cmd!(conn, "LOCK.ACQUIRE", "L", "holder", LONG_MS).token();
            assert!(token > highest, "{name}: {token} after {highest}");
            highest = token;
            for words in &before {
                conn.cmd(words).no_err();
            }
            let mut waiting: Vec<_> =
                (1..=3).map(|place| waiter(&server, "L", &format!("w{place}"), LONG_MS, place)).collect();
            let since = Instant::now();
            conn.cmd(&command).no_err();
            for waiter in &mut waiting {
                waiter.recv(SOON).assert_err_prefix("LOCKLOST ");
            }
            assert!(since.elapsed() < Duration::from_secs(5), "{name}: told after {:?}", since.elapsed());
            server.wait_blocked_clients(0);
            // A lock that arrives has a holder of its own; a fence takes any token from its own on.
            if !name.starts_with("RENAME a ") {
                assert_fenced(&mut conn, "L", token, name);
            }
            for waiter in &mut waiting {
                assert_eq!(cmd!(waiter, "PING").text(), "PONG", "{name}: exactly one reply");
            }
            cmd!(conn, "DEL", "L").no_err();
            let next = take_again(&mut conn, "L", "next");
            assert!(next > highest, "{name}: {next} after {highest}");
            highest = next;
        }
    }

    /// The same without waiters, and without a deletion in between where the key is free: G1 over each way a lock can go.
    fn tokens_rise_over_every_way_a_lock_can_go(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let mut highest = 0;
        for (name, before, command) in ways() {
            cmd!(conn, "FLUSHALL").ok();
            for released in [false, true] {
                let token = take_again(&mut conn, "L", "holder");
                assert!(token > highest, "{name}: {token} after {highest}");
                highest = token;
                if released {
                    cmd!(conn, "LOCK.RELEASE", "L", "holder").no_err();
                }
                cmd!(conn, "DEL", "other", "fence", "x", "M").no_err();
                for words in &before {
                    conn.cmd(words).no_err();
                }
                let other = cmd!(conn, "LOCK.INFO", "other");
                highest = highest.max(other.get_token());
                conn.cmd(&command).no_err();
                if name.starts_with("RENAME a lock") {
                    cmd!(conn, "LOCK.RELEASE", "L", "o").no_err();
                }
                let next = take_again(&mut conn, "L", "next");
                assert!(next > highest, "{name}, released {released}: {next} after {highest}");
                highest = next;
                cmd!(conn, "DEL", "L").no_err();
            }
        }
    }

    /// COPY of a lock or a fence is refused: a second record with the same token must not come about. Who waits, waits on.
    fn copy_is_refused(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "L", "holder", LONG_MS).token();
        cmd!(conn, "LOCK.ACQUIRE", "other", "o", LONG_MS).token();
        cmd!(conn, "FENCE.ADVANCE", "fence", 5).no_err();
        let mut waiting = waiter(&server, "L", "w", LONG_MS, 1);
        let before = standing(&mut conn, "L");
        let digest = server.digest();
        for command in [
            args!["COPY", "L", "copy"],
            args!["COPY", "other", "L"],
            args!["COPY", "other", "L", "REPLACE"],
            args!["COPY", "L", "L2", "DB", 1],
            args!["COPY", "fence", "fence2"],
            args!["COPY", "fence", "L", "REPLACE"],
        ] {
            let reply = conn.cmd(&command);
            assert!(reply == Reply::Int(0) || reply.is_err(), "{command:?}: {reply:?}");
            assert_eq!(standing(&mut conn, "L"), before, "{command:?}");
        }
        assert_eq!(server.digest(), digest);
        waiting.assert_silent(50);
        cmd!(conn, "LOCK.RELEASE", "L", "holder").no_err();
        waiting.recv(SOON).token();
    }

    /// What a lock refuses (WRONGTYPE, MOVE to where a key stands, RENAMENX onto one) leaves it and its queue alone.
    fn what_is_refused_leaves_lock_and_queue_alone(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "SELECT", 1).ok();
        cmd!(conn, "SET", "L", "x").ok();
        cmd!(conn, "SELECT", 0).ok();
        cmd!(conn, "SET", "x", 1).ok();
        let token = cmd!(conn, "LOCK.ACQUIRE", "L", "holder", LONG_MS).token();
        let mut waiting = waiter(&server, "L", "w", LONG_MS, 1);
        let before = standing(&mut conn, "L");
        let payload = dump(&mut conn, "L");
        for command in [
            args!["MOVE", "L", 1],
            args!["RENAMENX", "L", "x"],
            args!["RENAMENX", "x", "L"],
            args!["GETDEL", "L"],
            args!["GETSET", "L", "x"],
            args!["SET", "L", "x", "GET"],
            args!["SET", "L", "x", "NX"],
            args!["SETNX", "L", "x"],
            args!["MSETNX", "y", 1, "L", 2],
            args!["INCR", "L"],
            args!["LPUSH", "L", 1],
            args!["RESTORE", "L", 0, payload],
            args!["RESTORE", "L", 0, "garbage", "REPLACE"],
            args!["GETEX", "L", "EX", 1],
            args!["SET", "L", "x", "BOGUS"],
            args!["PERSIST", "L"],
            args!["TOUCH", "L"],
            args!["EXISTS", "L"],
            args!["TYPE", "L"],
            args!["OBJECT", "ENCODING", "L"],
            args!["DUMP", "L"],
        ] {
            conn.cmd(&command);
            assert_eq!(standing(&mut conn, "L"), before, "{command:?}");
            assert_eq!(cmd!(conn, "PTTL", "L").int(), -1, "{command:?}");
        }
        waiting.assert_silent(50);
        assert_eq!(cmd!(conn, "FENCE.CHECK", "L", token).token(), token);
    }

    /// FLUSHDB tells those who wait in that database alone; FLUSHALL those of all.
    fn a_flush_of_one_database_leaves_the_others(kind: ServerKind) {
        let server = Server::start(kind);
        let mut waiting: Vec<Conn> = [0, 1, 2, 15].into_iter().map(|db| held_in(&server, db)).collect();
        let mut conn = server.connect();
        cmd!(conn, "SELECT", 1).ok();
        cmd!(conn, "FLUSHDB").ok();
        waiting[1].recv(SOON).assert_err_prefix("LOCKLOST ");
        server.wait_blocked_clients(3);
        for index in [0, 2, 3] {
            waiting[index].assert_silent(10);
        }
        cmd!(conn, "SELECT", 15).ok();
        cmd!(conn, "LOCK.RELEASE", "L", "holder").no_err();
        waiting[3].recv(SOON).token();
        cmd!(conn, "FLUSHALL").ok();
        for index in [0, 2] {
            waiting[index].recv(SOON).assert_err_prefix("LOCKLOST ");
        }
        server.wait_blocked_clients(0);
    }

    /// SWAPDB: who waits in either database is told, others wait on; the locks themselves go along, with their leases and
    /// tokens, and their next tokens are higher than what either name has seen.
    fn a_swap_of_databases_moves_the_locks(kind: ServerKind) {
        let server = Server::start(kind);
        let (mut first, mut second, mut third) =
            (held_in(&server, 0), held_in(&server, 5), held_in(&server, 2));
        let mut conn = server.connect();
        let zero = info(&mut conn, "L").field("token").token();
        cmd!(conn, "SELECT", 5).ok();
        let five = info(&mut conn, "L").field("token").token();
        cmd!(conn, "SWAPDB", 0, 5).ok();
        for waiter in [&mut first, &mut second] {
            waiter.recv(SOON).assert_err_prefix("LOCKLOST ");
        }
        third.assert_silent(20);
        assert_eq!(info(&mut conn, "L").field("token").token(), zero);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "L", "holder").int(), 1);
        let next = cmd!(conn, "LOCK.ACQUIRE", "L", "next", LONG_MS).token();
        assert!(next > five.max(zero), "{next} after {zero} and {five}");
        cmd!(conn, "SELECT", 0).ok();
        assert_eq!(info(&mut conn, "L").field("token").token(), five);
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "L", "holder", 100).int(), 1);
        let mut again = server.connect();
        send!(again, "LOCK.ACQUIRE", "L", "w", LONG_MS, "WAIT", 0);
        assert!(again.recv(SOON).token() > five, "served at the lease's end, in the database it is in now");
    }

    /// G1 of the cases: an evicted lock. Who waits is told, the holder is fenced, the next token is higher.
    fn eviction_ends_a_lock_like_a_deletion(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        for policy in ["allkeys-random", "allkeys-lru", "allkeys-lfu"] {
            let token = cmd!(conn, "LOCK.ACQUIRE", "L", "holder", LONG_MS).token();
            let mut waiting = waiter(&server, "L", "w", LONG_MS, 1);
            server.config_set("maxmemory-policy", policy);
            server.config_set("maxmemory", "1");
            // Everything goes, one key after the other, and there still is not room enough.
            wait_until(
                "the lock to be evicted",
                SOON,
                || {
                    cmd!(conn, "SET", "x", "y");
                    cmd!(conn, "EXISTS", "L").int()
                },
                |exists| *exists == 0,
            );
            waiting.recv(SOON).assert_err_prefix("LOCKLOST ");
            server.config_set("maxmemory", "0");
            assert_fenced(&mut conn, "L", token, policy);
            assert!(cmd!(conn, "LOCK.ACQUIRE", "L", "next", LONG_MS).token() > token);
            cmd!(conn, "DEL", "L").no_err();
        }
    }

    /// A lock carries no TTL: the volatile-* policies and noeviction never evict it.
    fn a_lock_is_not_evicted_under_volatile_policies(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "L", "holder", LONG_MS).token();
        for policy in ["volatile-ttl", "volatile-random", "volatile-lru", "noeviction"] {
            server.config_set("maxmemory-policy", policy);
            cmd!(conn, "SET", "volatile", "x", "EX", 1000).ok();
            server.config_set("maxmemory", "1");
            for _ in 0..20 {
                cmd!(conn, "SET", "x", "y").assert_err_prefix("OOM ");
            }
            assert_eq!(cmd!(conn, "EXISTS", "volatile").int(), i64::from(policy == "noeviction"));
            assert_eq!(cmd!(conn, "FENCE.CHECK", "L", token).token(), token, "{policy}");
            server.config_set("maxmemory", "0");
        }
    }

    /// B11: EXPIRE, PEXPIREAT, PERSIST and their options never touch a lease, leave no TTL on the key, and nothing of
    /// it reaches a replica either.
    fn expire_does_not_touch_a_lease(kind: ServerKind) {
        let server = Server::start(kind);
        let replica = Server::start(kind);
        replica.replicate_from(&server);
        replica.wait_in_sync(&server);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "L", "holder", LONG_MS).token();
        let mut waiting = waiter(&server, "L", "w", LONG_MS, 1);
        let before = standing(&mut conn, "L");
        let soon_ms = common::wall_us() / 1000 + 100;
        for command in [
            args!["PEXPIRE", "L", 100],
            args!["EXPIRE", "L", 1],
            args!["PEXPIREAT", "L", soon_ms],
            args!["EXPIREAT", "L", soon_ms / 1000 + 2],
            args!["EXPIRE", "L", 100_000_000],
            args!["EXPIRE", "L", 1, "NX"],
            args!["EXPIRE", "L", 5, "XX"],
            args!["EXPIRE", "L", 5, "GT"],
            args!["EXPIRE", "L", 5, "LT"],
            args!["PERSIST", "L"],
        ] {
            conn.cmd(&command).no_err();
            assert_eq!(cmd!(conn, "PTTL", "L").int(), -1, "{command:?}");
            assert_eq!(cmd!(conn, "PEXPIRETIME", "L").int(), -1, "{command:?}");
            let left = number(&mut conn, "L", "ttl-ms").cast_unsigned();
            assert!((LONG_MS - 60_000..=LONG_MS).contains(&left), "{command:?}: {left}");
        }
        replica.wait_in_sync(&server);
        assert_eq!(cmd!(replica.connect(), "PTTL", "L").int(), -1);
        // Past all of those times.
        wait_until("a second and a half to pass", SOON, common::wall_us, |now| {
            *now > (soon_ms + 2000) * 1000
        });
        assert_eq!(standing(&mut conn, "L"), before);
        assert_eq!(cmd!(conn, "FENCE.CHECK", "L", token).token(), token);
        waiting.assert_silent(1);
        replica.wait_in_sync(&server);
        assert_eq!(replica.digest(), server.digest());
    }

    /// A short lease ends when it ends, whatever EXPIRE or PERSIST said.
    fn a_lease_ends_in_spite_of_persist(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "L", "holder", 300).token();
        let mut waiting = waiter(&server, "L", "w", LONG_MS, 1);
        cmd!(conn, "EXPIRE", "L", 10_000).no_err();
        cmd!(conn, "PERSIST", "L").no_err();
        assert!(waiting.recv(SOON).token() > token);
    }

    /// F8: an old dump over the lock that stands: the higher counter stays, the old lease is gone, its token is stale, and
    /// nobody who waited is left.
    fn an_old_dump_over_a_lock_rewinds_nothing(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let old = cmd!(conn, "LOCK.ACQUIRE", "L", "old", LONG_MS).token();
        let payload = dump(&mut conn, "L");
        cmd!(conn, "LOCK.RELEASE", "L", "old").no_err();
        let mut newest = old;
        for _ in 0..10 {
            newest = cmd!(conn, "LOCK.ACQUIRE", "L", "new", LONG_MS).token();
            cmd!(conn, "LOCK.RELEASE", "L", "new").no_err();
        }
        let grants = number(&mut conn, "L", "grants");
        cmd!(conn, "RESTORE", "L", 0, payload, "REPLACE").ok();
        assert_eq!(number(&mut conn, "L", "counter").cast_unsigned(), newest);
        assert_eq!(number(&mut conn, "L", "grants"), grants);
        assert_eq!(owner(&mut conn, "L"), None, "the older lease is dropped");
        cmd!(conn, "FENCE.WRITE", "L", old, "k", "old").assert_err_prefix("FENCED ");
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "L", "old", LONG_MS).int(), 0);
        let next = cmd!(conn, "LOCK.ACQUIRE", "L", "B", LONG_MS).token();
        assert!(next > newest, "{next} after {newest}");
        cmd!(conn, "FENCE.WRITE", "L", old, "k", "old").assert_err_prefix("FENCED ");
    }

    /// F8 with a holder and a waiter there: the holder is fenced (its key was overwritten) or keeps its token as the
    /// newest; in no case does the older lease come back, and the waiter is told.
    fn an_old_dump_over_a_held_lock_tells_who_waits(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let old = cmd!(conn, "LOCK.ACQUIRE", "L", "old", LONG_MS).token();
        let payload = dump(&mut conn, "L");
        cmd!(conn, "LOCK.RELEASE", "L", "old").no_err();
        let newest = cmd!(conn, "LOCK.ACQUIRE", "L", "holder", LONG_MS).token();
        let mut waiting = waiter(&server, "L", "w", LONG_MS, 1);
        cmd!(conn, "RESTORE", "L", 0, payload, "REPLACE").ok();
        waiting.recv(SOON).assert_err_prefix("LOCKLOST ");
        cmd!(conn, "FENCE.CHECK", "L", old).assert_err_prefix("FENCED ");
        assert_eq!(owner(&mut conn, "L"), None);
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "L", "holder", LONG_MS).int(), 0);
        assert!(cmd!(conn, "LOCK.ACQUIRE", "L", "next", LONG_MS).token() > newest);
        cmd!(conn, "FENCE.CHECK", "L", newest).assert_err_prefix("FENCED ");
    }

    /// "where none stands it arrives as it is (MIGRATE needs that)": lease, owner and token; the next token is above all.
    fn a_dump_where_none_stands_arrives_as_it_is(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "L", "holder", LONG_MS).token();
        let payload = dump(&mut conn, "L");
        cmd!(conn, "DEL", "L").no_err();
        let other = cmd!(conn, "LOCK.ACQUIRE", "other", "o", LONG_MS).token();
        cmd!(conn, "RESTORE", "L", 0, payload).ok();
        assert_eq!(owner(&mut conn, "L").as_deref(), Some("holder"));
        let left = number(&mut conn, "L", "ttl-ms").cast_unsigned();
        assert!((LONG_MS - 60_000..=LONG_MS).contains(&left), "{left}");
        assert_eq!(cmd!(conn, "FENCE.CHECK", "L", token).token(), token);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "L", "holder").int(), 1);
        assert!(cmd!(conn, "LOCK.ACQUIRE", "L", "next", LONG_MS).token() > other);
    }

    /// RESTORE with a TTL: the lock has none afterwards, and its lease is its own. A fence keeps it.
    fn restore_with_a_ttl_gives_a_lock_none(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "L", "holder", LONG_MS).token();
        cmd!(conn, "FENCE.ADVANCE", "fence", 5).no_err();
        let (lock, fence) = (dump(&mut conn, "L"), dump(&mut conn, "fence"));
        cmd!(conn, "DEL", "L", "fence").no_err();
        cmd!(conn, "RESTORE", "L", 100, lock).ok();
        assert_eq!(cmd!(conn, "PTTL", "L").int(), -1);
        cmd!(conn, "RESTORE", "fence", 100_000, fence).ok();
        assert!(cmd!(conn, "PTTL", "fence").int() > 0);
        assert_eq!(cmd!(conn, "FENCE.CHECK", "fence", 5).int(), 5);
    }

    /// RENAME of a lock with a lower counter over one that stands: the higher counter stays and the older lease is dropped.
    fn an_older_lock_renamed_over_a_newer_one_rewinds_nothing(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let old = cmd!(conn, "LOCK.ACQUIRE", "old", "o", LONG_MS).token();
        let new = cmd!(conn, "LOCK.ACQUIRE", "L", "holder", LONG_MS).token();
        assert!(new > old);
        cmd!(conn, "RENAME", "old", "L").ok();
        assert_eq!(number(&mut conn, "L", "counter").cast_unsigned(), new);
        assert_eq!(owner(&mut conn, "L"), None);
        cmd!(conn, "FENCE.CHECK", "L", old).assert_err_prefix("FENCED ");
        assert!(cmd!(conn, "LOCK.ACQUIRE", "L", "next", LONG_MS).token() > new);
    }

    /// Data that an earlier command wrote over the lock is no lock: what is restored over it arrives as it is, also in the
    /// same turn of the event loop or the same transaction. So does what is renamed, but in a transaction, and on a server
    /// that does not tell commands of one turn apart: there the two are one step over the lock.
    fn a_record_that_arrives_over_data_joins_nothing(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let old = cmd!(conn, "LOCK.ACQUIRE", "old", "o", LONG_MS).token();
        let dump = cmd!(conn, "DUMP", "old").bytes().to_vec();
        for (restore, transaction) in [(true, false), (true, true), (false, false), (false, true)] {
            cmd!(conn, "DEL", "L", "old").no_err();
            cmd!(conn, "RESTORE", "old", 0, dump).ok();
            let new = cmd!(conn, "LOCK.ACQUIRE", "L", "holder", LONG_MS).token();
            let arrive =
                if restore { args!["RESTORE", "L", 0, dump, "REPLACE"] } else { args!["RENAME", "old", "L"] };
            let mut commands = vec![args!["SET", "L", "data"], arrive];
            if transaction {
                commands = [vec![args!["MULTI"]], commands, vec![args!["EXEC"]]].concat();
            }
            conn.pipeline(&commands);
            let one_step = !restore && (transaction || kind == ServerKind::Redis70);
            let expected = if one_step { (None, new) } else { (Some("o".to_owned()), old) };
            let counter = number(&mut conn, "L", "counter").cast_unsigned();
            assert_eq!((owner(&mut conn, "L"), counter), expected, "{commands:?}");
            cmd!(conn, "LOCK.BREAK", "L").no_err();
            assert!(cmd!(conn, "LOCK.ACQUIRE", "L", "next", LONG_MS).token() > new);
        }
    }

    /// A lock that an earlier command wrote over is forgotten when the next one comes, however soon and beside whatever
    /// others.
    fn a_lock_written_over_is_forgotten_by_the_next_command(kind: ServerKind) {
        const ROUNDS: usize = 400;
        let server = Server::start(kind);
        let mut conn = server.connect();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut other = server.connect();
                while !over.load(Ordering::Relaxed) {
                    cmd!(other, "PING").no_err();
                }
            });
            let mut kept = 0;
            for _ in 0..ROUNDS {
                cmd!(conn, "DEL", "L", "old").no_err();
                cmd!(conn, "LOCK.ACQUIRE", "old", "o", LONG_MS).token();
                cmd!(conn, "LOCK.ACQUIRE", "L", "holder", LONG_MS).token();
                cmd!(conn, "SET", "L", "data").ok();
                cmd!(conn, "RENAME", "old", "L").ok();
                kept += usize::from(owner(&mut conn, "L").as_deref() == Some("o"));
            }
            over.store(true, Ordering::Relaxed);
            assert_eq!(kept, ROUNDS, "leases that arrived over data and were kept");
        });
    }

    /// What a transaction decides that also pauses writes is told at once, or after the pause; the server lives.
    fn an_arrival_in_a_transaction_that_pauses_writes_is_told(kind: ServerKind) {
        let (server, replica) = (Server::start(kind), Server::start(kind));
        replica.replicate_from(&server);
        replica.wait_in_sync(&server);
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "old", "o", LONG_MS).token();
        cmd!(conn, "LOCK.ACQUIRE", "L", "holder", LONG_MS).token();
        for commands in [
            [args!["RENAME", "old", "L"], args!["CLIENT", "PAUSE", 500, "WRITE"]],
            [args!["CLIENT", "PAUSE", 500, "WRITE"], args!["RENAME", "old", "L"]],
        ] {
            cmd!(conn, "MULTI").ok();
            for command in &commands {
                conn.cmd(command).no_err();
            }
            cmd!(conn, "EXEC").no_err();
            cmd!(conn, "SET", "data", "after the pause").ok();
            let digest = server.digest();
            wait_until("the replica to know", SOON, || replica.digest(), |there| *there == digest);
            assert_eq!(owner(&mut replica.connect(), "L"), None);
            cmd!(conn, "LOCK.ACQUIRE", "old", "o", LONG_MS).token();
            cmd!(conn, "LOCK.ACQUIRE", "L", "holder", LONG_MS).token();
        }
        server.assert_alive();
    }

    /// The other way round: a lock with the higher counter arrives with its lease, and the holder before is fenced.
    fn a_newer_lock_renamed_over_an_older_one_keeps_its_lease(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let old = cmd!(conn, "LOCK.ACQUIRE", "L", "holder", LONG_MS).token();
        let new = cmd!(conn, "LOCK.ACQUIRE", "new", "n", LONG_MS).token();
        let mut waiting = waiter(&server, "L", "w", LONG_MS, 1);
        cmd!(conn, "RENAME", "new", "L").ok();
        waiting.recv(SOON).assert_err_prefix("LOCKLOST ");
        assert_eq!(owner(&mut conn, "L").as_deref(), Some("n"));
        assert_eq!(cmd!(conn, "FENCE.CHECK", "L", new).token(), new);
        cmd!(conn, "FENCE.CHECK", "L", old).assert_err_prefix("FENCED ");
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "L", "holder").int(), 0);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "L", "n").int(), 1);
        assert!(cmd!(conn, "LOCK.ACQUIRE", "L", "next", LONG_MS).token() > new);
    }

    /// F1: a lock renamed away and back, with grants under its name in between: the tokens of the name go on rising.
    fn a_lock_renamed_away_and_back_rewinds_nothing(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        for between in [false, true] {
            let first = take_again(&mut conn, "L", "holder");
            cmd!(conn, "RENAME", "L", "away").ok();
            assert_eq!(owner(&mut conn, "away").as_deref(), Some("holder"), "it moves whole");
            assert_eq!(cmd!(conn, "FENCE.CHECK", "away", first).token(), first);
            let mut highest = first;
            if between {
                highest = cmd!(conn, "LOCK.ACQUIRE", "L", "other", LONG_MS).token();
                assert!(highest > first);
                cmd!(conn, "DEL", "L").no_err();
            }
            cmd!(conn, "RENAME", "away", "L").ok();
            assert_eq!(owner(&mut conn, "L").as_deref(), Some("holder"));
            assert_eq!(cmd!(conn, "LOCK.RELEASE", "L", "holder").int(), 1);
            let next = cmd!(conn, "LOCK.ACQUIRE", "L", "next", LONG_MS).token();
            assert!(next > highest, "{next} after {highest}, between {between}");
            cmd!(conn, "LOCK.RELEASE", "L", "next").no_err();
        }
    }

    /// A lock renamed serves its own queue: leases, expiry and hand-over go on under the new name.
    fn a_renamed_lock_serves_on_under_its_new_name(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "L", "holder", 400).token();
        cmd!(conn, "RENAME", "L", "M").ok();
        let mut waiting = waiter(&server, "M", "w", LONG_MS, 1);
        assert!(waiting.recv(SOON).token() > token, "granted when the lease that moved along is over");
        let mut next = waiter(&server, "M", "next", LONG_MS, 1);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "M", "w").int(), 1);
        next.recv(SOON).token();
    }

    /// RENAME L L changes nothing and loses nobody.
    fn a_lock_renamed_to_itself_stays(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "L", "holder", LONG_MS).token();
        let mut waiting = waiter(&server, "L", "w", LONG_MS, 1);
        cmd!(conn, "RENAME", "L", "L").ok();
        waiting.assert_silent(30);
        assert_eq!(cmd!(conn, "FENCE.CHECK", "L", token).token(), token);
        cmd!(conn, "LOCK.RELEASE", "L", "holder").no_err();
        assert!(waiting.recv(SOON).token() > token);
    }

    /// MOVE to another database: the lock goes along with its lease; the name left behind starts above all tokens, and
    /// the same name in the other database as well.
    fn a_moved_lock_goes_along_whole(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "L", "holder", LONG_MS).token();
        assert_eq!(cmd!(conn, "MOVE", "L", 3).int(), 1);
        let left = cmd!(conn, "LOCK.ACQUIRE", "L", "other", LONG_MS).token();
        assert!(left > token);
        cmd!(conn, "SELECT", 3).ok();
        assert_eq!(cmd!(conn, "FENCE.CHECK", "L", token).token(), token);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "L", "holder").int(), 1);
        assert!(cmd!(conn, "LOCK.ACQUIRE", "L", "next", LONG_MS).token() > left);
    }

    /// MOVE in a transaction or a script, of a lock that has arrived over another or has not: replicas follow, and where it
    /// has gone to it is dropped once it is idle. (Valkey 9.1 names the wrong database while a transaction runs.)
    fn a_lock_moved_in_a_transaction_goes_along_whole(kind: ServerKind) {
        let server = Server::builder(kind).arg("lockfence.idle-ttl-ms", 300).start();
        let replica = Server::start(kind);
        replica.replicate_from(&server);
        replica.wait_in_sync(&server);
        let mut conn = server.connect();
        let script = "redis.call('RENAME', KEYS[1], KEYS[2]) return redis.call('MOVE', KEYS[2], 3)";
        for over in [true, false] {
            let rename = args!["RENAME", "old", "L"];
            let transaction = [args!["MULTI"], rename, args!["MOVE", "L", 3], args!["EXEC"]];
            for way in [transaction.to_vec(), vec![args!["EVAL", script, 2, "old", "L"]]] {
                cmd!(conn, "SELECT", 0).ok();
                cmd!(conn, "LOCK.ACQUIRE", "old", "o", LONG_MS).token();
                if over {
                    cmd!(conn, "LOCK.ACQUIRE", "L", "holder", LONG_MS).token();
                }
                conn.pipeline(&way);
                replica.wait_in_sync(&server);
                assert_eq!(replica.digest(), server.digest(), "{over}, {way:?}");
                cmd!(conn, "SELECT", 3).ok();
                assert_eq!(owner(&mut conn, "L").is_none(), over, "{way:?}");
                cmd!(conn, "LOCK.RELEASE", "L", "o").no_err();
                let stands = || cmd!(conn, "EXISTS", "L").int();
                wait_until("the idle lock to go", SOON, stands, |stands| *stands == 0);
            }
        }
    }

    /// Rewinds that a replica would see too: after all of them primary and replica are the same.
    fn replicas_follow_every_way_a_lock_can_go(kind: ServerKind) {
        let server = Server::start(kind);
        let replica = Server::start(kind);
        replica.replicate_from(&server);
        replica.wait_in_sync(&server);
        let mut conn = server.connect();
        for (name, before, command) in ways() {
            cmd!(conn, "FLUSHALL").ok();
            cmd!(conn, "LOCK.ACQUIRE", "L", "holder", LONG_MS).token();
            for words in &before {
                conn.cmd(words).no_err();
            }
            conn.cmd(&command).no_err();
            if !name.starts_with("RENAME a lock") {
                take_again(&mut conn, "L", "next");
            }
            replica.wait_in_sync(&server);
            assert_eq!(replica.digest(), server.digest(), "{name}");
        }
        let payload = dump(&mut conn, "L");
        for _ in 0..3 {
            cmd!(conn, "LOCK.BREAK", "L").no_err();
            cmd!(conn, "LOCK.ACQUIRE", "L", "n", LONG_MS).token();
        }
        cmd!(conn, "RESTORE", "L", 0, payload, "REPLACE").ok();
        replica.wait_in_sync(&server);
        assert_eq!(replica.digest(), server.digest(), "RESTORE of an old dump");
    }

    /// G5 of the cases: many locks with waiters, freed on another thread: each waiter told once, the server well, and it
    /// serves on.
    fn ten_thousand_locks_with_waiters_are_unlinked_and_flushed(kind: ServerKind) {
        raise_open_files();
        let server = Server::start(kind);
        for name in ["lazyfree-lazy-user-del", "lazyfree-lazy-user-flush", "lazyfree-lazy-server-del"] {
            server.config_set(name, "yes");
        }
        let mut conn = server.connect();
        for (round, way) in ["UNLINK", "DEL", "FLUSHALL"].into_iter().enumerate() {
            let takes: Vec<_> =
                (0..10_000).map(|n| args!["LOCK.ACQUIRE", format!("L{n}"), "holder", LONG_MS]).collect();
            let mut highest = 0;
            for part in takes.chunks(1000) {
                highest = conn.pipeline(part).iter().map(Reply::token).fold(highest, u64::max);
            }
            let mut waiting: Vec<Conn> = (0..200).map(|_| server.connect()).collect();
            for (n, waiter) in waiting.iter_mut().enumerate() {
                send!(
                    waiter,
                    "LOCK.ACQUIRE",
                    format!("L{}", n * 50),
                    format!("w{round}"),
                    LONG_MS,
                    "WAIT",
                    0
                );
            }
            server.wait_blocked_clients(200);
            if way == "FLUSHALL" {
                cmd!(conn, "FLUSHALL", "ASYNC").ok();
            } else {
                let names = (0..10_000).map(|n| format!("L{n}").into_bytes());
                let words: Vec<_> = [way.into()].into_iter().chain(names).collect();
                assert_eq!(conn.cmd(&words).int(), 10_000);
            }
            for waiter in &mut waiting {
                waiter.recv(SOON).assert_err_prefix("LOCKLOST ");
                assert_eq!(cmd!(waiter, "PING").text(), "PONG");
            }
            assert_eq!(cmd!(conn, "DBSIZE").int(), 0);
            assert!(cmd!(conn, "LOCK.ACQUIRE", "L0", "next", LONG_MS).token() > highest, "{way}");
            cmd!(conn, "DEL", "L0").no_err();
        }
        server.assert_alive();
    }

    /// E11: DEBUG RELOAD, which empties and fills the data set: the lease stays, and who waited is told or served in
    /// turn, never forgotten.
    fn a_reload_forgets_nobody(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "L", "holder", LONG_MS).token();
        let mut waiting = waiter(&server, "L", "w", LONG_MS, 1);
        cmd!(conn, "DEBUG", "RELOAD").ok();
        assert_eq!(cmd!(conn, "FENCE.CHECK", "L", token).token(), token);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "L", "holder").int(), 1);
        let reply = waiting.recv(SOON);
        let granted = matches!(reply, Reply::Int(next) if next.cast_unsigned() > token);
        assert!(granted || reply.err().starts_with("LOCKLOST "), "{reply:?}");
        assert_eq!(cmd!(waiting, "PING").text(), "PONG");
        if granted {
            assert_eq!(cmd!(conn, "LOCK.RELEASE", "L", "w").int(), 1);
        }
        assert!(cmd!(conn, "LOCK.ACQUIRE", "L", "next", LONG_MS).token() > token);
    }

    /// Who waits for the end of the quarantine for a lock that has no record yet is told at once of whatever else comes
    /// to stand there, and whoever waits for another name goes on waiting.
    fn who_waits_in_quarantine_is_told_of_data_at_once(kind: ServerKind) {
        let server = Server::builder(kind).module_args(["quarantine-ms", "600000"]).start();
        let mut conn = server.connect();
        let other = waiter_without_record(&server, "other", 1);
        let ways = [
            vec![args!["SET", "L", "x"]],
            vec![args!["SET", "L", "x", "PX", 60_000]],
            vec![args!["HSET", "L", "f", "x"]],
            vec![args!["SETRANGE", "L", 5, "x"]],
            vec![args!["RPUSH", "from", 1, 2], args!["LMOVE", "from", "L", "LEFT", "RIGHT"]],
            vec![args!["RPUSH", "from", 2, 1], args!["SORT", "from", "STORE", "L"]],
            vec![args!["SET", "from", "x"], args!["RENAME", "from", "L"]],
            vec![args!["SET", "from", "x"], args!["COPY", "from", "L"]],
            vec![args!["SELECT", 1], args!["SET", "L", "x"], args!["MOVE", "L", 0], args!["SELECT", 0]],
            vec![args!["FENCE.ADVANCE", "L", 5]],
            vec![args!["MULTI"], args!["SET", "L", "x"], args!["EXEC"]],
            vec![args!["EVAL", "return redis.call('SET', KEYS[1], 'x')", 1, "L"]],
        ];
        for way in ways {
            let mut waiting = [waiter_without_record(&server, "L", 2), waiter_without_record(&server, "L", 3)];
            for command in &way {
                conn.cmd(command).no_err();
            }
            for client in &mut waiting {
                client.recv(SOON).assert_err_prefix("LOCKLOST ");
            }
            assert_eq!(stat_of(&server, "waiters"), 1, "{way:?}");
            cmd!(conn, "DEL", "L", "from").no_err();
        }
        drop(other);
        server.wait_blocked_clients(0);
    }

    /// A lock that comes to stand there, or data at another name or in another database, is no reason: who waits is
    /// served at the end.
    fn who_waits_in_quarantine_for_a_lock_that_arrives_is_served(kind: ServerKind) {
        let server = Server::builder(kind).module_args(["quarantine-ms", "5000"]).start();
        let mut conn = server.connect();
        let payload = dump_of_a_held_lock(kind);
        let mut waiting = [waiter_without_record(&server, "L", 1), waiter_without_record(&server, "free", 2)];
        cmd!(conn, "RESTORE", "L", 0, payload).ok();
        cmd!(conn, "SET", "data", "x").ok();
        cmd!(conn, "SELECT", 1).ok();
        cmd!(conn, "SET", "L", "x").ok();
        cmd!(conn, "SET", "free", "x").ok();
        cmd!(conn, "SELECT", 0).ok();
        waiting[1].recv(SOON).token();
        assert_eq!(number(&mut conn, "L", "waiters"), 1);
        cmd!(conn, "LOCK.BREAK", "L").no_err();
        waiting[0].recv(SOON).token();
    }

    /// A grant that reaches nobody (its client is killed in the turn of the hand-over) and whose lock is replaced by data
    /// in the same turn: nothing is given back, and the server does not go on trying.
    fn a_grant_that_reached_nobody_is_forgotten_with_its_lock(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let calls = |server: &Server| {
            let stats = server.info("commandstats");
            stats.get("cmdstat_lf.handover").cloned()
        };
        for over in [args!["SET", "L", "x"], args!["DEL", "L"], args!["RENAME", "fence", "L"]] {
            cmd!(conn, "DEL", "L").no_err();
            cmd!(conn, "FENCE.ADVANCE", "fence", 1).no_err();
            let token = cmd!(conn, "LOCK.ACQUIRE", "L", "holder", LONG_MS).token();
            let mut waiting = server.connect();
            let id = waiting.id();
            send!(waiting, "LOCK.ACQUIRE", "L", "w", LONG_MS, "WAIT", 0);
            wait_queue(&mut conn, "L", 1);
            cmd!(conn, "MULTI").ok();
            cmd!(conn, "LOCK.RELEASE", "L", "holder").no_err();
            cmd!(conn, "CLIENT", "KILL", "ID", id).no_err();
            conn.cmd(&over).no_err();
            let replies = cmd!(conn, "EXEC");
            assert_eq!(replies.items()[0].int(), 1);
            waiting.assert_closed(SOON);
            wait_until(
                "the server to let it be",
                SOON,
                || {
                    let before = calls(&server);
                    conn.assert_silent(250);
                    before == calls(&server)
                },
                |quiet| *quiet,
            );
            cmd!(conn, "DEL", "L", "fence").no_err();
            assert!(cmd!(conn, "LOCK.ACQUIRE", "L", "next", LONG_MS).token() > token);
        }
    }

    /// The same with a server that takes no writes for the moment: it is tried again, at leisure, and the lock does not
    /// stay with nobody when writes are taken again.
    fn a_grant_that_reached_nobody_is_given_back_when_writes_are_taken_again(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "L", "holder", LONG_MS).token();
        let mut waiting = server.connect();
        let id = waiting.id();
        send!(waiting, "LOCK.ACQUIRE", "L", "w", LONG_MS, "WAIT", 0);
        wait_queue(&mut conn, "L", 1);
        cmd!(conn, "MULTI").ok();
        cmd!(conn, "LOCK.RELEASE", "L", "holder").no_err();
        cmd!(conn, "CLIENT", "KILL", "ID", id).no_err();
        cmd!(conn, "CONFIG", "SET", "min-replicas-to-write", 1).no_err();
        assert_eq!(cmd!(conn, "EXEC").items()[0].int(), 1);
        waiting.assert_closed(SOON);
        // Redis 7.0 does not count its turns.
        let turns = || {
            server.info("stats").get("eventloop_cycles").map(|turns| turns.parse::<u64>().expect("a number"))
        };
        let before = turns();
        conn.assert_silent(1000);
        if let (Some(before), Some(after)) = (before, turns()) {
            assert!(after - before < 200, "{} turns in a second with nothing to do", after - before);
        }
        assert_eq!(owner(&mut conn, "L").as_deref(), Some("w"));
        server.config_set("min-replicas-to-write", "0");
        wait_until("the lease to be given back", SOON, || owner(&mut conn, "L"), |owner| owner.is_none());
        assert!(cmd!(conn, "LOCK.ACQUIRE", "L", "next", LONG_MS).token() > token);
    }

    /// A waiter of a lock that goes asks again and gets it; nothing is left of the old queue.
    fn who_was_told_asks_again_and_gets_it(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "L", "holder", LONG_MS).token();
        let mut first = waiter(&server, "L", "w1", LONG_MS, 1);
        let mut second = waiter(&server, "L", "w2", LONG_MS, 2);
        cmd!(conn, "DEL", "L").no_err();
        for waiter in [&mut first, &mut second] {
            waiter.recv(SOON).assert_err_prefix("LOCKLOST ");
        }
        let granted = cmd!(second, "LOCK.ACQUIRE", "L", "w2", LONG_MS, "WAIT", 0).token();
        assert!(granted > token);
        send!(first, "LOCK.ACQUIRE", "L", "w1", LONG_MS, "WAIT", 0);
        wait_queue(&mut conn, "L", 1);
        assert_eq!(cmd!(second, "LOCK.RELEASE", "L", "w2").int(), 1);
        assert!(first.recv(SOON).token() > granted);
    }

    /// In one transaction: a lock deleted and taken again. Who waited is told and not granted on the strength of the
    /// new one.
    fn a_lock_deleted_and_taken_in_one_transaction_tells_who_waits(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "L", "holder", LONG_MS).token();
        let mut waiting = waiter(&server, "L", "w", LONG_MS, 1);
        cmd!(conn, "MULTI").ok();
        cmd!(conn, "DEL", "L").no_err();
        cmd!(conn, "LOCK.ACQUIRE", "L", "next", LONG_MS).no_err();
        let replies = cmd!(conn, "EXEC");
        assert!(replies.items()[1].token() > token);
        waiting.recv(SOON).assert_err_prefix("LOCKLOST ");
        assert_eq!(number(&mut conn, "L", "waiters"), 0);
    }

    /// H5: locks and data keep apart: a lock on a data key is refused, data over a lock ends it.
    fn locks_and_data_keep_apart(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "SET", "L", "x").ok();
        cmd!(conn, "LOCK.ACQUIRE", "L", "A", 100).assert_err_prefix("WRONGTYPE ");
        cmd!(conn, "LOCK.ACQUIRE", "L", "A", 100, "WAIT", 0).assert_err_prefix("WRONGTYPE ");
        assert_eq!(cmd!(conn, "GET", "L").text(), "x");
        cmd!(conn, "DEL", "L").no_err();
        let token = cmd!(conn, "LOCK.ACQUIRE", "L", "A", LONG_MS).token();
        cmd!(conn, "GET", "L").assert_err_prefix("WRONGTYPE ");
        cmd!(conn, "INCR", "L").assert_err_prefix("WRONGTYPE ");
        cmd!(conn, "SET", "L", "x").ok();
        cmd!(conn, "LOCK.RELEASE", "L", "A").assert_err_prefix("WRONGTYPE ");
        assert_eq!(cmd!(conn, "GET", "L").text(), "x");
        cmd!(conn, "DEL", "L").no_err();
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "L", "A").int(), 0);
        assert!(cmd!(conn, "LOCK.ACQUIRE", "L", "A", LONG_MS).token() > token);
    }

    /// "All locks: SCAN … TYPE lockfence; all fences: SCAN … TYPE fencemark", TYPE, OBJECT, MEMORY USAGE, DUMP, DEBUG OBJECT.
    fn the_servers_own_looks_work_on_both_types(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        for n in 0..25 {
            cmd!(conn, "LOCK.ACQUIRE", format!("lock{n}"), "me", LONG_MS).token();
            cmd!(conn, "FENCE.ADVANCE", format!("fence{n}"), 5).no_err();
            cmd!(conn, "SET", format!("data{n}"), "x").ok();
        }
        for (kind, prefix) in [("lockfence", "lock"), ("fencemark", "fence")] {
            let found = scan(&mut conn, kind);
            assert_eq!(found.len(), 25);
            assert!(found.iter().all(|key| key.starts_with(prefix)), "{found:?}");
            let key = format!("{prefix}0");
            assert_eq!(cmd!(conn, "TYPE", key).text(), kind);
            let before = server.digest();
            let used = cmd!(conn, "MEMORY", "USAGE", key).int();
            assert!((16..1000).contains(&used), "{used}");
            assert!(!cmd!(conn, "OBJECT", "ENCODING", key).text().is_empty());
            assert_eq!(cmd!(conn, "OBJECT", "REFCOUNT", key).int(), 1);
            cmd!(conn, "OBJECT", "IDLETIME", key).int();
            assert!(!cmd!(conn, "DUMP", key).bytes().is_empty());
            cmd!(conn, "DEBUG", "OBJECT", key).no_err();
            assert_eq!(cmd!(conn, "TOUCH", key).int(), 1);
            assert_eq!(cmd!(conn, "DEBUG", "DIGEST-VALUE", key).items().len(), 1);
            assert_eq!(server.digest(), before);
        }
        assert_eq!(scan(&mut conn, "string").len(), 25);
        let long = vec![b'o'; 512];
        cmd!(conn, "LOCK.ACQUIRE", "long", long, LONG_MS).token();
        assert!(
            cmd!(conn, "MEMORY", "USAGE", "long").int() >= cmd!(conn, "MEMORY", "USAGE", "lock0").int() + 400
        );
    }

    /// A fence follows the same ways: RENAME, MOVE and SWAPDB take it along, DEL ends it, a dump brings it back.
    fn a_fence_goes_along_with_its_key(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "FENCE.ADVANCE", "fence", 50).no_err();
        cmd!(conn, "RENAME", "fence", "renamed").ok();
        cmd!(conn, "FENCE.CHECK", "fence", 50).assert_err_prefix("FENCED ");
        cmd!(conn, "FENCE.CHECK", "renamed", 49).assert_err_prefix("FENCED token 49 is stale");
        assert_eq!(cmd!(conn, "MOVE", "renamed", 1).int(), 1);
        cmd!(conn, "SWAPDB", 0, 1).ok();
        assert_eq!(cmd!(conn, "FENCE.CHECK", "renamed", 50).int(), 50);
        let payload = dump(&mut conn, "renamed");
        cmd!(conn, "DEL", "renamed").no_err();
        cmd!(conn, "FENCE.CHECK", "renamed", 50).assert_err_prefix("FENCED \"renamed\" has no record");
        cmd!(conn, "RESTORE", "renamed", 0, payload).ok();
        assert_eq!(cmd!(conn, "FENCE.CHECK", "renamed", 50).int(), 50);
    }
}

/// Reads a token out of a LOCK.INFO that may be nil.
trait GetToken {
    fn get_token(&self) -> u64;
}

impl GetToken for Reply {
    fn get_token(&self) -> u64 {
        if self.is_nil() || self.is_err() { 0 } else { self.field("counter").token() }
    }
}

/// Takes the lock `L` in a database and returns a client that waits for it there.
fn held_in(server: &Server, db: u32) -> Conn {
    let mut conn = server.connect();
    cmd!(conn, "SELECT", db).ok();
    cmd!(conn, "LOCK.ACQUIRE", "L", "holder", LONG_MS).token();
    let mut waiting = server.connect();
    cmd!(waiting, "SELECT", db).ok();
    send!(waiting, "LOCK.ACQUIRE", "L", "w", LONG_MS, "WAIT", 0);
    wait_queue(&mut conn, "L", 1);
    waiting
}

/// All keys of a type.
fn scan(conn: &mut Conn, kind: &str) -> Vec<String> {
    let (mut cursor, mut found) = ("0".to_owned(), Vec::new());
    loop {
        let reply = cmd!(conn, "SCAN", cursor, "COUNT", 7, "TYPE", kind);
        found.extend(reply.items()[1].items().iter().map(Reply::text));
        cursor = reply.items()[0].text();
        if cursor == "0" {
            found.sort();
            found.dedup();
            return found;
        }
    }
}
