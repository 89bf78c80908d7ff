//! Memory: the limit, eviction, defragmentation, lazy freeing, and what the module says of them.

use crate::common;

use std::time::{Duration, Instant};

use common::{LONG_MS, SOON, info, number, owner, stat_of, waiter};
use lockfence_testkit::{
    Conn, Received, Server, ServerKind, args, cmd, send, server_tests, wait_for, wait_until,
};

const HELD: usize = 100;
const MANY: usize = 100_000;
/// A value large enough that few of them fill a small memory.
const FILL_BYTES: usize = 10_000;

/// Fills the memory over the limit with ordinary values.
fn fill(conn: &mut Conn) {
    let value = vec![b'x'; FILL_BYTES];
    for index in 0.. {
        if cmd!(conn, "SET", format!("fill{index}"), value).is_err() {
            return;
        }
    }
}

/// Sets the limit so that so many bytes are left, and says what it is.
fn limit_to(server: &Server, left: u64) {
    server.config_set("maxmemory", &(server.used_memory() + left).to_string());
}

/// Sends commands in lots, so that a hundred thousand take seconds.
fn in_lots(conn: &mut Conn, count: usize, command: impl Fn(usize) -> Vec<Vec<u8>>) {
    const LOT: usize = 2000;
    for start in (0..count).step_by(LOT) {
        let lot: Vec<_> = (start..count.min(start + LOT)).map(&command).collect();
        for reply in conn.pipeline(&lot) {
            reply.no_err();
        }
    }
}

fn acquire_many(conn: &mut Conn, count: usize) {
    in_lots(conn, count, |index| {
        args!["LOCK.ACQUIRE", format!("lock:{index}"), format!("o{index}"), LONG_MS]
    });
}

/// A name that a record keeps in memory of its own.
fn long_owner(index: usize) -> String {
    format!("a thread of worker {index} on a machine far away")
}

/// By how much the server's memory grows with each of many keys, in bytes. The server's own tables grow bit by bit.
fn bytes_each(kind: ServerKind, command: impl Fn(usize) -> Vec<Vec<u8>>) -> u64 {
    let server = Server::start(kind);
    let settled = || {
        let mut last = 0;
        wait_for("used_memory to settle", SOON, || {
            std::thread::sleep(Duration::from_millis(150)); // the server's own work is done ten times a second
            let now = server.used_memory();
            if now.abs_diff(std::mem::replace(&mut last, now)) < 4096 { Ok(now) } else { Err(now) }
        })
    };
    let before = settled();
    in_lots(&mut server.connect(), MANY, command);
    (settled() - before) / MANY as u64
}

server_tests! {
    /// G2 of the cases: over the limit an ACQUIRE is -OOM, with WAIT too, and leaves no trace; what gives back works.
    fn over_the_limit_nothing_new_begins_and_all_ends_work(kind: ServerKind) {
        let server = Server::builder(kind).arg("maxmemory-policy", "noeviction").start();
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        let held = cmd!(conn, "LOCK.ACQUIRE", "held", "a", LONG_MS).token();
        cmd!(conn, "LOCK.ACQUIRE", "broken", "a", LONG_MS).token();
        cmd!(conn, "LOCK.ACQUIRE", "brief", "a", 3000).token();
        cmd!(conn, "FENCE.ADVANCE", "fence", 5).int();
        let mut first = waiter(&server, "lock", "b", LONG_MS, 1);
        let mut second = waiter(&server, "lock", "c", LONG_MS, 2);
        let mut timer = waiter(&server, "brief", "d", LONG_MS, 1);
        limit_to(&server, 200_000);
        fill(&mut conn);
        // Far over it: a server gives back what it read the values into, in its own time.
        server.config_set("maxmemory", &(server.used_memory() - 100_000).to_string());
        let before = (common::issued(&server), cmd!(conn, "DBSIZE").int());
        for command in [
            args!["LOCK.ACQUIRE", "new", "x", 1000],
            args!["LOCK.ACQUIRE", "new", "x", 1000, "WAIT", 1000],
            args!["LOCK.ACQUIRE", "held", "x", 1000, "WAIT", 0],
            args!["LOCK.ACQUIRE", "held", "a", 1000],
            args!["FENCE.WRITE", "held", held, "data", 1],
            args!["FENCE.ADVANCE", "fence", 6],
        ] {
            conn.cmd(command).assert_err_prefix("OOM ");
        }
        let highest = |issued: &[String; 4]| (issued[0].clone(), issued[1].clone());
        let after = common::issued(&server);
        if stat_of(&server, "handovers_total") == 0 {
            assert_eq!((highest(&after), cmd!(conn, "DBSIZE").int()), (highest(&before.0), before.1));
        }
        assert_eq!(number(&mut conn, "held", "waiters"), 0);
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "held", "a", LONG_MS).int(), 1);
        assert_eq!(cmd!(conn, "LOCK.BREAK", "broken").int(), 1);
        assert_eq!(cmd!(conn, "FENCE.CHECK", "held", held).token(), held);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "a").int(), 1);
        assert!(first.recv(SOON).token() > token);
        timer.recv(SOON).token();
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "b").int(), 1);
        second.recv(SOON).token();
        cmd!(conn, "FENCE.WRITE", "lock", token, "data", 1).assert_err_prefix("OOM ");
        assert_eq!(cmd!(conn, "EXISTS", "new", "data").int(), 0);
        server.config_set("maxmemory", "0");
        assert!(cmd!(conn, "LOCK.ACQUIRE", "new", "x", 1000).token() > token);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "held", "a").int(), 1);
    }

    /// G1 of the cases: constant eviction. An evicted lock's holder is fenced after the next grant, tokens rise, and
    /// a lock that was not evicted has its holder, its token and its lease.
    fn eviction_ends_leases_of_evicted_locks_alone(kind: ServerKind) {
        for policy in ["allkeys-lru", "allkeys-random", "allkeys-lfu"] {
            let server = Server::start(kind);
            let mut conn = server.connect();
            let tokens: Vec<u64> = (0..HELD)
                .map(|index| cmd!(conn, "LOCK.ACQUIRE", format!("lock{index}"), "a", LONG_MS).token())
                .collect();
            server.config_set("maxmemory-policy", policy);
            limit_to(&server, 500_000);
            let value = vec![b'x'; FILL_BYTES / 10];
            in_lots(&mut conn, 20_000, |index| args!["SET", format!("fill{index}"), value]);
            assert!(server.info("stats")["evicted_keys"].parse::<u64>().unwrap() > 5000);
            server.config_set("maxmemory", "0");
            let mut evicted = 0;
            for (index, token) in tokens.iter().enumerate() {
                let lock = format!("lock{index}");
                let seen = cmd!(conn, "LOCK.INFO", lock);
                if seen.is_nil() {
                    evicted += 1;
                    assert_eq!(cmd!(conn, "LOCK.EXTEND", lock, "a", LONG_MS).int(), 0);
                    cmd!(conn, "FENCE.WRITE", lock, token, "data", 1).assert_err_prefix("FENCED ");
                    let next = cmd!(conn, "LOCK.ACQUIRE", lock, "b", LONG_MS).token();
                    assert!(next > *token, "{policy}, {lock}: {next} after {token}");
                    cmd!(conn, "FENCE.WRITE", lock, token, "data", 1).assert_err_prefix("FENCED ");
                    cmd!(conn, "FENCE.WRITE", lock, next, "data", 1).ok();
                } else {
                    assert_eq!((seen.field("owner").text(), seen.field("token").token()), ("a".into(), *token));
                    assert!(seen.field("ttl-ms").int() > 500_000);
                    cmd!(conn, "LOCK.ACQUIRE", lock, "b", LONG_MS).nil();
                    assert_eq!(cmd!(conn, "LOCK.EXTEND", lock, "a", LONG_MS).int(), 1);
                }
            }
            assert!(evicted > 0, "{policy} evicted no lock at all: nothing was tested");
        }
    }

    /// G1 of the cases: locks carry no TTL, so volatile-* policies never evict them, and an endless stream of values
    /// that can be evicted does not touch them.
    fn volatile_policies_never_evict_a_lock(kind: ServerKind) {
        for policy in ["volatile-ttl", "volatile-lru", "volatile-random", "volatile-lfu"] {
            let server = Server::builder(kind).arg("maxmemory-policy", policy).start();
            let mut conn = server.connect();
            for index in 0..HELD {
                let lock = format!("lock{index}");
                cmd!(conn, "LOCK.ACQUIRE", lock, "a", LONG_MS).token();
                assert_eq!(cmd!(conn, "PTTL", lock).int(), -1);
            }
            cmd!(conn, "PEXPIRE", "lock0", LONG_MS).no_err();
            limit_to(&server, 500_000);
            let value = vec![b'x'; FILL_BYTES / 10];
            in_lots(&mut conn, 20_000, |index| args!["SET", format!("fill{index}"), value, "EX", 3600]);
            assert!(server.info("stats")["evicted_keys"].parse::<u64>().unwrap() > 5000);
            for index in 0..HELD {
                assert_eq!(owner(&mut conn, format!("lock{index}")).as_deref(), Some("a"), "{policy}");
            }
            assert_eq!(stat_of(&server, "evictable"), 0);
        }
    }

    /// D4: whoever waits for a lock that is evicted is told at once.
    fn waiters_of_an_evicted_lock_are_told(kind: ServerKind) {
        let server = Server::builder(kind).arg("maxmemory-policy", "allkeys-random").start();
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        let mut waiters: Vec<Conn> =
            (1..=3).map(|place| waiter(&server, "lock", &format!("w{place}"), LONG_MS, place)).collect();
        server.config_set("maxmemory", "1");
        let gone = |conn: &mut Conn| cmd!(conn, "EXISTS", "lock").int();
        wait_for("the lock to be evicted", SOON, || {
            let _ = cmd!(conn, "SET", "fill", "x"); // -OOM once all is evicted
            if gone(&mut conn) == 0 { Ok(()) } else { Err("still there") }
        });
        for waiter in &mut waiters {
            waiter.recv(SOON).assert_err_prefix("LOCKLOST ");
        }
        server.config_set("maxmemory", "0");
        assert!(cmd!(conn, "LOCK.ACQUIRE", "lock", "b", 1000).token() > token);
    }

    /// G1 of the cases: a policy that may evict locks is warned of, at the load and when it is set, and INFO says so.
    fn a_policy_that_evicts_locks_is_warned_of(kind: ServerKind) {
        const WARNING: &str = "may evict locks";
        let server = Server::start(kind);
        assert_eq!(stat_of(&server, "evictable"), 0);
        server.config_set("maxmemory-policy", "volatile-lru");
        assert!(!server.log().contains(WARNING), "warned of a policy that spares locks");
        server.config_set("maxmemory-policy", "allkeys-lfu");
        assert_eq!(stat_of(&server, "evictable"), 1);
        let log = server.log();
        let line = log.lines().find(|line| line.contains(WARNING)).expect("a warning in the log");
        assert!(line.contains("allkeys-lfu"), "{line}");
        server.config_set("maxmemory-policy", "noeviction");
        assert_eq!(stat_of(&server, "evictable"), 0);

        let server = Server::builder(kind).arg("maxmemory", "100mb").arg("maxmemory-policy", "allkeys-lru").start();
        assert_eq!(stat_of(&server, "evictable"), 1, "at the load");
        assert!(server.log().contains(WARNING), "no warning at the load:\n{}", server.log());
    }

    /// MEMORY USAGE of a lock counts what its record holds.
    fn memory_usage_counts_the_owner(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "short", "a", LONG_MS).token();
        cmd!(conn, "LOCK.ACQUIRE", "large", "a".repeat(512), LONG_MS).token();
        let mut usage = |lock: &str| cmd!(conn, "MEMORY", "USAGE", lock).int();
        let (short, large) = (usage("short"), usage("large"));
        assert!(short > 48, "{short} bytes for a record and its key");
        assert!(large >= short + 400, "{large} bytes with an owner of 512, {short} with one of 1");
    }

    /// A held lock is small: no more than half as much again as the plain key that others use for a lock.
    fn a_held_lock_takes_little_more_than_a_plain_key(kind: ServerKind) {
        let name = |index: usize| format!("lock:{{order:{index:010}}}");
        let owners = [
            |index: usize| format!("9f3c51d0a72b71e88c04d1f6{index:08x}"),
            |index: usize| format!("c56a4180-65aa-42ec-a945-5fd2{index:08x}"),
        ];
        for owner in owners {
            let plain = bytes_each(kind, |index| args!["SET", name(index), owner(index), "NX", "PX", LONG_MS]);
            let held = bytes_each(kind, |index| args!["LOCK.ACQUIRE", name(index), owner(index), LONG_MS]);
            assert!(2 * held <= 3 * plain, "{held} bytes for a lock, {plain} for a plain key");
        }
    }

    /// Defragmentation moves records that are in use: all stay what they were. Where the server cannot, nothing to do.
    fn defragmentation_keeps_every_record(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        if cmd!(conn, "CONFIG", "SET", "activedefrag", "yes").is_err() {
            assert_ne!(kind, ServerKind::Redis82, "this build can defragment");
            return;
        }
        cmd!(conn, "CONFIG", "SET", "activedefrag", "no").ok();
        for (name, value) in [
            ("active-defrag-ignore-bytes", "1"),
            ("active-defrag-threshold-lower", "1"),
            ("active-defrag-threshold-upper", "2"),
            ("active-defrag-cycle-min", "50"),
            ("active-defrag-cycle-max", "75"),
        ] {
            server.config_set(name, value);
        }
        acquire_many(&mut conn, MANY);
        in_lots(&mut conn, MANY, |index| args!["LOCK.ACQUIRE", format!("long:{index}"), long_owner(index), LONG_MS]);
        in_lots(&mut conn, MANY / 10, |index| args!["FENCE.ADVANCE", format!("fence:{index}"), index + 1]);
        for kind in ["lock", "long"] {
            in_lots(&mut conn, MANY / 2, |index| args!["DEL", format!("{kind}:{}", 2 * index)]);
        }
        let mut first = waiter(&server, "lock:1", "w", LONG_MS, 1);
        let before = server.digest();
        server.config_set("activedefrag", "yes");
        let hits = || server.info("stats")["active_defrag_key_hits"].parse::<u64>().unwrap();
        wait_until("records to be moved", Duration::from_secs(60), hits, |hits| *hits > 10_000);
        for index in (1..MANY).step_by(2).step_by(97) {
            let seen = info(&mut conn, format!("lock:{index}"));
            assert_eq!(seen.field("owner").text(), format!("o{index}"));
            let seen = info(&mut conn, format!("long:{index}"));
            assert_eq!(seen.field("owner").text(), long_owner(index));
        }
        assert_eq!(server.digest(), before);
        let token = number(&mut conn, "lock:1", "token");
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock:1", "o1").int(), 1);
        assert!(first.recv(SOON).int() > token);
        in_lots(&mut conn, MANY / 2, |index| {
            let index = 2 * index + 1;
            args!["LOCK.EXTEND", format!("lock:{index}"), format!("o{index}"), LONG_MS]
        });
        cmd!(conn, "FLUSHALL").ok();
        server.assert_alive();
    }

    /// G5 of the cases: a hundred thousand locks freed on another thread, with waiters and timers alive. What the
    /// module keeps beside them goes, too.
    fn lazy_freeing_with_live_waiters(kind: ServerKind) {
        let server = Server::start(kind);
        for name in ["expire", "eviction", "server-del", "user-del", "user-flush"] {
            server.config_set(&format!("lazyfree-lazy-{name}"), "yes");
        }
        let mut conn = server.connect();
        let ways: [Vec<Vec<u8>>; 3] = [args!["FLUSHALL", "ASYNC"], args!["FLUSHDB", "ASYNC"], args!["UNLINK"]];
        let mut high = 0;
        for way in ways {
            acquire_many(&mut conn, MANY);
            let token = number(&mut conn, "lock:7", "token").unsigned_abs();
            assert!(token > high);
            let mut waiters: Vec<Conn> = (0..20)
                .map(|index| {
                    let mut conn = server.connect();
                    send!(conn, "LOCK.ACQUIRE", format!("lock:{index}"), "w", LONG_MS, "WAIT", 0);
                    conn
                })
                .collect();
            server.wait_blocked_clients(20);
            if way[0] == b"UNLINK" {
                in_lots(&mut conn, MANY / 100, |lot| {
                    let keys = (0..100).map(|index| format!("lock:{}", lot * 100 + index).into_bytes());
                    way.iter().cloned().chain(keys).collect()
                });
            } else {
                conn.cmd(way).ok();
            }
            let next = cmd!(conn, "LOCK.ACQUIRE", "lock:7", "next", LONG_MS).token();
            assert!(next > token);
            high = next;
            for waiter in &mut waiters {
                waiter.recv(SOON).assert_err_prefix("LOCKLOST ");
            }
            assert_eq!(cmd!(conn, "DBSIZE").int(), 1);
            assert_eq!(stat_of(&server, "waiters"), 0);
            assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock:7", "next").int(), 1);
        }
        let pending = || server.info("memory")["lazyfree_pending_objects"].clone();
        wait_until("all to be freed", SOON, pending, |left| left == "0");
        server.assert_alive();
    }

    /// A replica drops nothing by itself; what it notes of a name that was used once goes within a minute. As many names
    /// as LOCKFENCE_NAMES says (20,000): with a minute's worth and more, its memory is seen to come back.
    fn a_replica_forgets_names_that_were_used_once(kind: ServerKind) {
        let count: usize = std::env::var("LOCKFENCE_NAMES").map_or(20_000, |names| names.parse().unwrap());
        let brief = || Server::builder(kind).arg("lockfence.idle-ttl-ms", 1).start();
        let (primary, replica) = (brief(), brief());
        replica.replicate_from(&primary);
        replica.wait_in_sync(&primary);
        let mut conn = primary.connect();
        let (began, before) = (Instant::now(), replica.used_memory());
        let mut peak = before;
        for lot in 0..count.div_ceil(1000) {
            let names = (0..1000).map(|n| format!("order:{lot}:{n}"));
            let commands: Vec<_> = names
                .flat_map(|name| [args!["LOCK.ACQUIRE", name, "me", 1000], args!["LOCK.RELEASE", name, "me"]])
                .collect();
            conn.pipeline(&commands).iter().for_each(|reply| assert!(!reply.is_err(), "{reply:?}"));
            peak = peak.max(replica.used_memory());
        }
        let took = began.elapsed();
        wait_until("the records to go", SOON, || cmd!(conn, "DBSIZE").int(), |size| *size == 0);
        replica.wait_in_sync(&primary);
        assert_eq!(cmd!(replica.connect(), "DBSIZE").int(), 0);
        println!("{kind}: {count} names in {took:?}; {before} bytes before, {peak} at the most");
        // The backlog and the server's buffers are in it.
        assert!(peak - before < 4_000_000 + 100 * u64::try_from(count).unwrap(), "{peak} bytes, {before} before");
        if took > Duration::from_secs(30) {
            let back = wait_until("memory to come back", SOON * 8, || replica.used_memory(), |now| *now < before + 4_000_000);
            println!("{back} bytes {:?} after the last name", began.elapsed() - took);
        }
    }

    /// Leases that end by the hundred thousand and records that go idle leave no memory behind.
    fn memory_comes_back_when_locks_are_idle(kind: ServerKind) {
        let server = Server::builder(kind).module_args(["idle-ttl-ms", "500"]).start();
        let mut conn = server.connect();
        let round = |conn: &mut Conn| {
            in_lots(conn, MANY, |index| args!["LOCK.ACQUIRE", format!("lock:{index}"), "a", 200]);
            wait_until("idle records to go", Duration::from_secs(60), || cmd!(conn, "DBSIZE").int(), |left| *left == 0);
        };
        round(&mut conn); // tables have their size now
        let before = server.used_memory();
        for _ in 0..3 {
            round(&mut conn);
        }
        // The server's own tables shrink in its own time: the bound is for what each of 300,000 records would leave.
        wait_until("memory to come back", SOON, || server.used_memory(), |used| *used < before + 6_000_000);
        assert_eq!(stat_of(&server, "idle_records_dropped_total"), 4 * MANY as u64);
    }

    /// maxmemory-clients evicts clients: a waiter among them leaves the queue, the others are served.
    fn waiters_evicted_as_clients_leave_the_queue(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "CLIENT", "NO-EVICT", "ON").ok();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        let mut fat = server.connect();
        send!(fat, "LOCK.ACQUIRE", "lock", "fat", LONG_MS, "WAIT", 0);
        common::wait_queue(&mut conn, "lock", 1);
        let mut slim = server.connect();
        cmd!(slim, "CLIENT", "NO-EVICT", "ON").ok();
        send!(slim, "LOCK.ACQUIRE", "lock", "slim", LONG_MS, "WAIT", 0);
        common::wait_queue(&mut conn, "lock", 2);
        fat.send_raw(&vec![b'x'; 2_000_000]); // a waiter's own next command piles up
        server.config_set("maxmemory-clients", "500000");
        assert!(matches!(fat.receive(SOON), Received::Closed(_)), "the fat client was not evicted");
        common::wait_queue(&mut conn, "lock", 1);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "a").int(), 1);
        assert!(slim.recv(SOON).token() > token);
    }
}
