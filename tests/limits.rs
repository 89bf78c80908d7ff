//! What goes wrong, and the answer: each line of that table that is about LOCK.*, and that nothing changed by it.

use std::time::Duration;

use crate::common::{LONG_MS, SOON, TOKEN_MAX, issued, number, standing, stat_of, wait_queue, waiter};
use lockfence_testkit::{Conn, Server, ServerKind, ToArg, args, cmd, send, server_tests, wait_until};

/// Not a ttl in any command: 0.5, 1e3 and so on, beyond both ends, and numbers that overflow what they are added to.
const BAD_TTLS: [&[u8]; 24] = [
    b"",
    b"0",
    b"-1",
    b"-9223372036854775808",
    b"0.5",
    b"1.0",
    b"1e3",
    b" 100",
    b"100 ",
    b"+5",
    b"0x64",
    b"2280s",
    b"nan",
    b"inf",
    b"00",
    b"007",
    b"1_000",
    b"1,000",
    b"31536000001",
    b"9223372036854775",
    b"9223372036854775806",
    b"9223372036854775807",
    b"18446744073709551617",
    b"99999999999999999999999999999999999999999999",
];

/// Words that are no token.
const BAD_TOKENS: [&[u8]; 8] =
    [b"", b"0", b"-1", b"9007199254740992", b"9223372036854775807", b"18446744073709551617", b"1.5", b"abc"];

/// Runs commands against a lock that is held and has somebody waiting, and against a name that has no record: each must
/// be refused with that prefix, name that word, and change nothing at all.
fn refused(server: &Server, commands: &[(Vec<Vec<u8>>, &str, &str)]) {
    let mut conn = server.connect();
    let before = picture(server, &mut conn);
    for (words, prefix, named) in commands {
        let reply = conn.cmd(words);
        let line = reply.assert_err_prefix(prefix);
        assert!(
            line.contains(named),
            "{:?}: {line:?} names no {named:?}",
            String::from_utf8_lossy(&words.concat())
        );
        let after = picture(server, &mut conn);
        assert_eq!(after, before, "changed by {:?}", String::from_utf8_lossy(&words.join(&b' ')));
    }
}

fn picture(server: &Server, conn: &mut Conn) -> impl PartialEq + std::fmt::Debug + use<> {
    let left = number(conn, "held", "ttl-ms");
    assert!(left > 60_000, "the lease was cut: {left} ms left");
    assert!(left <= LONG_MS.cast_signed(), "the lease was prolonged: {left} ms left");
    (standing(conn, "held"), cmd!(conn, "DBSIZE").int(), issued(server), server.digest())
}

/// A server with a lock `held` by `me` for whom `next` waits, and that waiter.
fn scene(kind: ServerKind) -> (Server, Conn) {
    let server = Server::start(kind);
    cmd!(server.connect(), "LOCK.ACQUIRE", "held", "me", LONG_MS).token();
    let next = waiter(&server, "held", "next", LONG_MS, 1);
    (server, next)
}

/// `command lock words…` for the held lock and for a name without a record, as their holder and as somebody else.
fn on_all(command: &str, rest: &[&[u8]]) -> Vec<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    for (lock, owner) in [("held", "me"), ("held", "x"), ("none", "me")] {
        let mut words = args![command, lock, owner];
        words.extend(rest.iter().map(|word| word.to_vec()));
        all.push(words);
    }
    all
}

fn over_memory(server: &Server) {
    server.config_set("maxmemory-policy", "noeviction");
    server.config_set("maxmemory", "1");
}

server_tests! {
    /// Wrong arity: the server's or the module's own words.
    fn wrong_arity_is_refused(kind: ServerKind) {
        let (server, _next) = scene(kind);
        let mut commands = Vec::new();
        for words in [
            args!["LOCK.ACQUIRE"],
            args!["LOCK.ACQUIRE", "held"],
            args!["LOCK.ACQUIRE", "held", "me"],
            args!["LOCK.RELEASE"],
            args!["LOCK.RELEASE", "held"],
            args!["LOCK.RELEASE", "held", "me", "x"],
            args!["LOCK.EXTEND"],
            args!["LOCK.EXTEND", "held", "me"],
            args!["LOCK.INFO"],
            args!["LOCK.BREAK"],
        ] {
            commands.push((words, "ERR wrong number of arguments", ""));
        }
        refused(&server, &commands);
    }

    /// Unknown option, option twice, option without value, SHARED with LIMIT: -ERR naming the word.
    fn bad_options_are_refused_by_name(kind: ServerKind) {
        let (server, _next) = scene(kind);
        let acquire: [(&[&[u8]], &str); 17] = [
            (&[b"bogus"], "\"bogus\""),
            (&[b"NX"], "\"NX\""),
            (&[b""], "\"\""),
            (&[b"WAIT\0"], "\"WAIT\\x00\""),
            (&[b"a\r\n+OK\xff"], "\"a\\r\\n+OK\\xff\""),
            (&[b"WAIT", b"5", b"5"], "\"5\""),
            (&[b"WAIT"], "WAIT"),
            (&[b"MINTOKEN"], "MINTOKEN"),
            (&[b"LIMIT"], "LIMIT"),
            (&[b"WITHINFO", b"WAIT"], "WAIT"),
            (&[b"WAIT", b"5", b"WAIT", b"5"], "WAIT"),
            (&[b"WITHINFO", b"withinfo"], "WITHINFO"),
            (&[b"MINTOKEN", b"5", b"mintoken", b"5"], "MINTOKEN"),
            (&[b"SHARED", b"SHARED"], "SHARED"),
            (&[b"LIMIT", b"2", b"LIMIT", b"2"], "LIMIT"),
            (&[b"SHARED", b"LIMIT", b"2"], "LIMIT"),
            (&[b"LIMIT", b"2", b"SHARED"], "SHARED"),
        ];
        let mut commands = Vec::new();
        for (options, named) in acquire {
            let rest: Vec<&[u8]> = [&b"1000"[..]].into_iter().chain(options.iter().copied()).collect();
            commands.extend(on_all("LOCK.ACQUIRE", &rest).into_iter().map(|words| (words, "ERR ", named)));
        }
        let extend: [(&[&[u8]], &str); 5] = [
            (&[b"bogus"], "\"bogus\""),
            (&[b"WAIT", b"5"], "\"WAIT\""),
            (&[b"WITHINFO"], "\"WITHINFO\""),
            (&[b"MINTOKEN"], "MINTOKEN"),
            (&[b"MINTOKEN", b"5", b"MINTOKEN", b"5"], "MINTOKEN"),
        ];
        let order: [(&[&[u8]], &str); 4] = [
            (&[b"bogus"], "\"bogus\""),
            (&[b"MAXTOKEN"], "MAXTOKEN"),
            (&[b"MAXTOKEN", b"5", b"maxtoken", b"5"], "MAXTOKEN"),
            (&[b"MAXTOKEN", b"5", b"5"], "\"5\""),
        ];
        for (options, named) in order {
            for lock in ["held", "none"] {
                let mut words = args!["LOCK.BREAK", lock];
                words.extend(options.iter().map(|word| word.to_vec()));
                commands.push((words, "ERR ", named));
            }
        }
        for (options, named) in extend {
            let rest: Vec<&[u8]> = [&b"1000"[..]].into_iter().chain(options.iter().copied()).collect();
            commands.extend(on_all("LOCK.EXTEND", &rest).into_iter().map(|words| (words, "ERR ", named)));
        }
        refused(&server, &commands);
    }

    /// B4, B6, B7, B8: a ttl that is no plain decimal of 1 ms to 365 days: -ERR with the range, in both commands alike.
    fn bad_ttls_are_refused_with_the_range(kind: ServerKind) {
        let (server, _next) = scene(kind);
        let mut commands = Vec::new();
        for bad in BAD_TTLS {
            for command in ["LOCK.ACQUIRE", "LOCK.EXTEND"] {
                for words in on_all(command, &[bad]) {
                    commands.push((words, "ERR ttl-ms must be a decimal integer from 1 to 31536000000", ""));
                }
            }
        }
        refused(&server, &commands);
    }

    /// B7, B8: the same rule for WAIT, which may be 0.
    fn bad_waits_are_refused_with_the_range(kind: ServerKind) {
        let (server, _next) = scene(kind);
        let mut commands = Vec::new();
        for bad in BAD_TTLS.into_iter().filter(|bad| *bad != b"0") {
            for words in on_all("LOCK.ACQUIRE", &[b"1000", b"WAIT", bad]) {
                commands.push((words, "ERR WAIT timeout-ms must be a decimal integer from 0 to 31536000000", ""));
            }
        }
        refused(&server, &commands);
    }

    /// Token 0, negative, above 2^53-1, or no number.
    fn bad_tokens_are_refused(kind: ServerKind) {
        let (server, _next) = scene(kind);
        let mut commands = Vec::new();
        for bad in BAD_TOKENS {
            let words = args!["LOCK.BREAK", "held", "MAXTOKEN", bad];
            commands.push((words, "ERR MAXTOKEN must be a decimal integer from 1 to 9007199254740991", ""));
            for command in ["LOCK.ACQUIRE", "LOCK.EXTEND"] {
                for words in on_all(command, &[b"1000", b"MINTOKEN", bad]) {
                    commands.push((words, "ERR MINTOKEN must be a decimal integer from 1 to 9007199254740991", ""));
                }
            }
        }
        refused(&server, &commands);
    }

    /// `LIMIT n` is 1 to 1,000,000.
    fn bad_limits_are_refused(kind: ServerKind) {
        let (server, _next) = scene(kind);
        let mut commands = Vec::new();
        for bad in ["", "0", "-1", "1000001", "1.5", "x", "99999999999999999999"] {
            for words in on_all("LOCK.ACQUIRE", &[b"1000", b"LIMIT", bad.as_bytes()]) {
                commands.push((words, "ERR LIMIT must be a decimal integer from 1 to 1000000", ""));
            }
        }
        refused(&server, &commands);
    }

    /// MINTOKEN more than 10 s ahead: garbage does not use up a lock's numbers.
    fn proposals_too_far_ahead_are_refused(kind: ServerKind) {
        let (server, _next) = scene(kind);
        let mut commands = Vec::new();
        let far = stat_of(&server, "restart_floor") + 3_600_000_000;
        for token in [far, TOKEN_MAX] {
            for command in ["LOCK.ACQUIRE", "LOCK.EXTEND"] {
                for words in on_all(command, &[b"1000", b"MINTOKEN", &token.to_arg()]) {
                    commands.push((words, "ERR MINTOKEN ", "10 s"));
                }
            }
        }
        refused(&server, &commands);
    }

    /// An owner has 1 to 512 bytes.
    fn bad_owners_are_refused(kind: ServerKind) {
        let (server, _next) = scene(kind);
        let mut commands = Vec::new();
        for owner in [vec![], vec![b'x'; 513], vec![0; 100_000]] {
            for lock in ["held", "none"] {
                commands.push((args!["LOCK.ACQUIRE", lock, owner, 1000], "ERR owner must be 1 to 512 bytes", ""));
                commands.push((args!["LOCK.RELEASE", lock, owner], "ERR owner must be 1 to 512 bytes", ""));
                commands.push((args!["LOCK.EXTEND", lock, owner, 1000], "ERR owner must be 1 to 512 bytes", ""));
            }
        }
        refused(&server, &commands);
    }

    /// H5: a key that holds data, or a fence: -WRONGTYPE, and the data stays.
    fn other_types_are_refused(kind: ServerKind) {
        let (server, _next) = scene(kind);
        let mut conn = server.connect();
        cmd!(conn, "SET", "string", "x").ok();
        cmd!(conn, "RPUSH", "list", "x").int();
        cmd!(conn, "HSET", "hash", "f", "x").int();
        cmd!(conn, "XADD", "stream", "*", "f", "x").no_err();
        cmd!(conn, "FENCE.ADVANCE", "fence", 5).int();
        let mut commands = Vec::new();
        for key in ["string", "list", "hash", "stream", "fence"] {
            for words in [
                args!["LOCK.ACQUIRE", key, "me", 1000],
                args!["LOCK.ACQUIRE", key, "me", 1000, "WAIT", 0],
                args!["LOCK.ACQUIRE", key, "me", 1000, "WITHINFO"],
                args!["LOCK.RELEASE", key, "me"],
                args!["LOCK.EXTEND", key, "me", 1000],
                args!["LOCK.BREAK", key],
                args!["LOCK.INFO", key],
            ] {
                commands.push((words, "WRONGTYPE ", ""));
            }
        }
        for words in [
            args!["FENCE.ADVANCE", "held", 5],
            args!["GET", "held"],
            args!["INCR", "held"],
            args!["LPUSH", "held", "x"],
            args!["HGETALL", "held"],
        ] {
            commands.push((words, "WRONGTYPE ", ""));
        }
        refused(&server, &commands);
    }

    /// H5: a lock that SET overwrote is held by nobody, and its name's tokens stay above the old ones.
    fn an_overwritten_lock_is_held_by_nobody(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let first = cmd!(conn, "LOCK.ACQUIRE", "L", "A", LONG_MS).token();
        let mut next = waiter(&server, "L", "B", LONG_MS, 1);
        cmd!(conn, "SET", "L", "x").ok();
        next.recv(SOON).assert_err_prefix("LOCKLOST ");
        cmd!(conn, "LOCK.RELEASE", "L", "A").assert_err_prefix("WRONGTYPE ");
        assert_eq!(cmd!(conn, "GET", "L").text(), "x");
        assert_eq!(cmd!(conn, "DEL", "L").int(), 1);
        assert!(cmd!(conn, "LOCK.ACQUIRE", "L", "C", LONG_MS).token() > first);
    }

    /// G2: over the memory limit ACQUIRE is -OOM, with and without WAIT; nothing is queued and no token used.
    fn acquire_is_refused_for_memory(kind: ServerKind) {
        let (server, _next) = scene(kind);
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "gone", "me", 1).token();
        wait_until("its end", SOON, || cmd!(conn, "LOCK.INFO", "gone").field("state").text(), |s| s == "free");
        over_memory(&server);
        let mut commands = Vec::new();
        for lock in ["held", "none", "gone"] {
            commands.push((args!["LOCK.ACQUIRE", lock, "x", 1000], "OOM ", ""));
            commands.push((args!["LOCK.ACQUIRE", lock, "x", 1000, "WAIT", 0], "OOM ", ""));
        }
        refused(&server, &commands);
    }

    /// "Never for RELEASE, EXTEND, BREAK"; and a release hands over even then.
    fn release_extend_and_break_are_never_refused_for_memory(kind: ServerKind) {
        let (server, mut next) = scene(kind);
        let mut conn = server.connect();
        over_memory(&server);
        cmd!(conn, "SET", "data", "x").assert_err_prefix("OOM ");
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "held", "me", LONG_MS).int(), 1);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "held", "me").int(), 1);
        next.recv(SOON).token();
        assert_eq!(cmd!(conn, "LOCK.BREAK", "held").int(), 1);
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "none", "me", LONG_MS).int(), 0);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "none", "me").int(), 0);
    }

    /// Over the memory limit those who wait already are served when a lease ends by itself.
    fn those_who_wait_are_served_over_the_memory_limit(kind: ServerKind) {
        let server = Server::start(kind);
        cmd!(server.connect(), "LOCK.ACQUIRE", "lock", "me", 3_000).token();
        let mut next = waiter(&server, "lock", "next", LONG_MS, 1);
        over_memory(&server);
        next.recv(SOON).token();
    }

    /// On a replica, writable or not: -READONLY for all that changes or grants; LOCK.INFO works.
    fn a_replica_refuses_even_when_writable(kind: ServerKind) {
        let primary = Server::start(kind);
        cmd!(primary.connect(), "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        let replica = Server::start(kind);
        replica.replicate_from(&primary);
        replica.wait_in_sync(&primary);
        let mut conn = replica.connect();
        for read_only in ["yes", "no"] {
            replica.config_set("replica-read-only", read_only);
            let before = (standing(&mut conn, "lock"), issued(&replica), replica.digest());
            for words in [
                args!["LOCK.ACQUIRE", "lock", "me", LONG_MS],
                args!["LOCK.ACQUIRE", "lock", "x", LONG_MS, "WAIT", 0],
                args!["LOCK.ACQUIRE", "none", "x", LONG_MS],
                args!["LOCK.EXTEND", "lock", "me", LONG_MS],
                args!["LOCK.RELEASE", "lock", "me"],
                args!["LOCK.BREAK", "lock"],
                args!["FENCE.CHECK", "lock", 1],
            ] {
                conn.cmd(&words).assert_err_prefix("READONLY ");
            }
            assert_eq!((standing(&mut conn, "lock"), issued(&replica), replica.digest()), before);
        }
        assert_eq!(primary.digest(), replica.digest());
    }

    /// "A waiter's server becomes a replica: -UNBLOCKED", each exactly once, and its queues are empty.
    fn those_who_wait_on_a_demoted_server_are_told(kind: ServerKind) {
        let (server, mut next) = scene(kind);
        let mut second = waiter(&server, "held", "second", LONG_MS, 2);
        let other = Server::start(kind);
        cmd!(server.connect(), "REPLICAOF", "127.0.0.1", other.port()).ok();
        for conn in [&mut next, &mut second] {
            conn.recv(SOON).assert_err_prefix("UNBLOCKED ");
        }
        wait_until("an empty queue", SOON, || stat_of(&server, "waiters"), |waiters| *waiters == 0);
        server.promote();
        let mut conn = server.connect();
        wait_until("a grant", SOON, || cmd!(conn, "LOCK.ACQUIRE", "new", "x", LONG_MS), |reply| !reply.is_err()).token();
    }

    /// Too few replicas: the server's own -NOREPLICAS for ACQUIRE, and no token used; INFO works.
    fn too_few_replicas_refuse_like_set(kind: ServerKind) {
        let (server, _next) = scene(kind);
        server.config_set("min-replicas-to-write", "1");
        refused(&server, &[
            (args!["LOCK.ACQUIRE", "none", "x", 1000], "NOREPLICAS ", ""),
            (args!["LOCK.ACQUIRE", "held", "x", 1000, "WAIT", 0], "NOREPLICAS ", ""),
            (args!["LOCK.RELEASE", "held", "me"], "NOREPLICAS ", ""),
            (args!["LOCK.EXTEND", "held", "me", 1000], "NOREPLICAS ", ""),
            (args!["LOCK.BREAK", "held"], "NOREPLICAS ", ""),
        ]);
    }

    /// "A hand-over from a timer obeys the same rules and waits until it may write."
    fn a_hand_over_waits_until_it_may_write(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "me", 3_000).token();
        let mut next = waiter(&server, "lock", "next", LONG_MS, 1);
        server.config_set("min-replicas-to-write", "1");
        wait_until("its end", SOON, || cmd!(conn, "LOCK.INFO", "lock").field("state").text(), |s| s == "free");
        next.assert_silent(400);
        assert_eq!(number(&mut conn, "lock", "waiters"), 1);
        server.config_set("min-replicas-to-write", "0");
        next.recv(SOON).token();
        // F12: a failed save is refused and made good the same way.
        cmd!(conn, "LOCK.EXTEND", "lock", "next", 3_000).int();
        let mut last = waiter(&server, "lock", "last", LONG_MS, 1);
        fail_a_save(&server, &mut conn);
        cmd!(conn, "LOCK.ACQUIRE", "none", "x", 1000).assert_err_prefix("MISCONF ");
        cmd!(conn, "LOCK.RELEASE", "lock", "next").assert_err_prefix("MISCONF ");
        let free = |state: &String| state == "free";
        wait_until("its end", SOON, || cmd!(conn, "LOCK.INFO", "lock").field("state").text(), free);
        last.assert_silent(400);
        server.config_set("stop-writes-on-bgsave-error", "no");
        last.recv(SOON).token();
    }

    /// -QUEUEFULL for one lock; nothing is queued; a place that falls free is given again.
    fn a_full_queue_of_one_lock_refuses(kind: ServerKind) {
        let server = Server::builder(kind).arg("lockfence.max-waiters-per-lock", 2).start();
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        let _first = waiter(&server, "lock", "w1", 10, 1);
        let second = waiter(&server, "lock", "w2", 10, 2);
        let before = (standing(&mut conn, "lock"), issued(&server));
        let full = cmd!(server.connect(), "LOCK.ACQUIRE", "lock", "w3", 10, "WAIT", 0);
        assert!(full.assert_err_prefix("QUEUEFULL ").contains("lockfence.max-waiters-per-lock"), "{full:?}");
        assert_eq!((standing(&mut conn, "lock"), issued(&server)), before);
        cmd!(conn, "LOCK.ACQUIRE", "lock", "w3", 10).nil();
        cmd!(conn, "LOCK.ACQUIRE", "free", "w3", LONG_MS, "WAIT", 0).token();
        let _elsewhere = waiter(&server, "free", "w4", 10, 1);
        second.close();
        wait_queue(&mut conn, "lock", 1);
        let _third = waiter(&server, "lock", "w3", 10, 2);
    }

    /// -QUEUEFULL on the whole server, and with nobody allowed to wait.
    fn a_full_server_refuses(kind: ServerKind) {
        let server = Server::builder(kind).arg("lockfence.max-waiters", 2).start();
        let mut conn = server.connect();
        for lock in ["a", "b", "c"] {
            cmd!(conn, "LOCK.ACQUIRE", lock, "me", LONG_MS).token();
        }
        let mut first = waiter(&server, "a", "w1", LONG_MS, 1);
        let _second = waiter(&server, "b", "w2", LONG_MS, 1);
        let full = cmd!(conn, "LOCK.ACQUIRE", "c", "w3", 10, "WAIT", 0);
        let line = full.assert_err_prefix("QUEUEFULL ");
        assert!(line.contains("lockfence.max-waiters") && !line.contains("per-lock"), "{line}");
        assert_eq!(number(&mut conn, "c", "waiters"), 0);
        cmd!(conn, "LOCK.RELEASE", "a", "me");
        first.recv(SOON).token();
        let _third = waiter(&server, "c", "w3", 10, 1);
        cmd!(conn, "CONFIG", "SET", "lockfence.max-waiters", 0).ok();
        cmd!(conn, "LOCK.ACQUIRE", "c", "w5", 10, "WAIT", 5).assert_err_prefix("QUEUEFULL ");
        assert_eq!(number(&mut conn, "c", "waiters"), 1, "who waits already waits on");
    }

    /// A counter at 2^53-1: -EXHAUSTED, and it never wraps. Made by a record that no server wrote (F7).
    fn the_last_token_is_the_last(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "DEBUG", "SET-SKIP-CHECKSUM-VALIDATION", 1).ok();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        cmd!(conn, "LOCK.RELEASE", "lock", "me");
        let dump = cmd!(conn, "DUMP", "lock").bytes().to_vec();
        let (from, to) = (varint(token), varint(TOKEN_MAX));
        assert_eq!(from.len(), to.len());
        let at = dump.windows(from.len()).position(|part| part == from).expect("the counter in the record");
        let mut crafted = dump.clone();
        crafted[at..at + to.len()].copy_from_slice(&to);
        cmd!(conn, "RESTORE", "last", 0, crafted).ok();
        assert_eq!(number(&mut conn, "last", "counter").unsigned_abs(), TOKEN_MAX);
        let before = standing(&mut conn, "last");
        for words in [
            args!["LOCK.ACQUIRE", "last", "x", 1000],
            args!["LOCK.ACQUIRE", "last", "x", 1000, "WAIT", 0],
            args!["LOCK.ACQUIRE", "last", "x", 1000, "MINTOKEN", TOKEN_MAX],
        ] {
            conn.cmd(&words).assert_err_prefix("EXHAUSTED ");
        }
        assert_eq!(cmd!(conn, "LOCK.BREAK", "last").int(), 0);
        assert_eq!(standing(&mut conn, "last"), before);
        let other = cmd!(conn, "LOCK.ACQUIRE", "lock", "x", 1000).token();
        assert!(other > token && other < TOKEN_MAX, "other locks go on: {other}");
    }

    /// The longest lease and the longest wait are accepted; `lockfence.max-ttl-ms` lowers the longest lease.
    fn the_bounds_themselves_are_accepted(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "a", 31_536_000_000_u64).token();
        assert!(number(&mut conn, "lock", "ttl-ms") > 31_535_000_000);
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "a", 31_536_000_000_u64).int(), 1);
        send!(conn, "LOCK.ACQUIRE", "lock", "b", 1, "WAIT", 31_536_000_000_u64);
        server.wait_blocked_clients(1);
        conn.assert_silent(50);
        let mut other = server.connect();
        cmd!(other, "LOCK.ACQUIRE", "short", "a", 1).token();
        cmd!(other, "CONFIG", "SET", "lockfence.max-ttl-ms", 5000).ok();
        let reply = cmd!(other, "LOCK.ACQUIRE", "max", "a", 5001);
        reply.assert_err_prefix("ERR ttl-ms must be a decimal integer from 1 to 5000");
        cmd!(other, "LOCK.ACQUIRE", "max", "a", 5000).token();
        cmd!(other, "LOCK.EXTEND", "max", "a", 5001).assert_err_prefix("ERR ttl-ms ");
    }
}

fn fail_a_save(server: &Server, conn: &mut Conn) {
    server.config_set("save", "3600 1");
    std::fs::create_dir(server.dir().join("dump.rdb")).unwrap();
    cmd!(conn, "BGSAVE").no_err();
    wait_until(
        "a failed save",
        Duration::from_secs(20),
        || server.info("persistence")["rdb_last_bgsave_status"].clone(),
        |status| status == "err",
    );
}

/// A number as the record of a lock has it.
fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(u8::try_from(number & 0x7f).unwrap() | 0x80);
        number >>= 7;
    }
    bytes.push(u8::try_from(number).unwrap());
    bytes
}
