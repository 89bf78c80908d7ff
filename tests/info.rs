//! LOCK.INFO, LOCK.BREAK and the INFO section: what an administrator sees, and can do.

use crate::durable;

use std::time::Instant;

use crate::common::{
    LONG_MS, SOON, TOKEN_MAX, info, issued, names, number, standing, stat_of, wait_queue, waiter, waiter_for,
};
use durable::wire;
use lockfence_testkit::{Conn, Reply, Server, ServerKind, args, cmd, send, server_tests, wait_until};

const FIELDS: [&str; 11] = [
    "state", "mode", "limit", "token", "counter", "grants", "holders", "waiters", "owner", "ttl-ms",
    "held-ms",
];

fn owners(list: &Reply) -> Vec<String> {
    list.items().iter().map(|entry| entry.field("owner").text()).collect()
}

/// How many lines the log says were left out.
fn left_out(log: &str, what: &str) -> u64 {
    let end = format!(" lines on {what}");
    let counts =
        log.lines().filter_map(|line| line.strip_suffix(&end)?.rsplit(' ').next()?.parse::<u64>().ok());
    counts.sum()
}

server_tests! {
    /// "Of a lock that does not exist: null", and asking makes none.
    fn a_lock_that_does_not_exist_is_null(kind: ServerKind) {
        let server = Server::start(kind);
        let (mut two, mut three) = (server.connect(), server.connect_resp3());
        cmd!(two, "LOCK.INFO", "lock").nil();
        cmd!(three, "LOCK.INFO", "lock", "FULL").nil();
        assert_eq!(cmd!(two, "DBSIZE").int(), 0);
    }

    /// "Flat map, same fields in RESP2 (array of pairs) and RESP3 (map)".
    fn the_fields_are_the_same_in_both_protocols(kind: ServerKind) {
        let server = Server::start(kind);
        let mut two = server.connect();
        cmd!(two, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        let flat = cmd!(two, "LOCK.INFO", "lock");
        assert!(matches!(&flat, Reply::Array(items) if items.len() == 22), "{flat:?}");
        let map = cmd!(server.connect_resp3(), "LOCK.INFO", "lock");
        assert!(matches!(map, Reply::Map(_)), "{map:?}");
        assert_eq!((names(&flat), names(&map)), (FIELDS.map(String::from).into(), FIELDS.map(String::from).into()));
        for name in FIELDS.into_iter().filter(|name| !name.ends_with("-ms")) {
            assert_eq!(flat.field(name), map.field(name), "{name}");
        }
    }

    /// A held lock and a free one, field by field.
    fn each_field_says_what_it_means(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let first = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", 1).token();
        wait_until("its end", SOON, || info(&mut conn, "lock").field("state").text(), |state| state == "free");
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "you", 100_000).token();
        let held = info(&mut conn, "lock");
        assert_eq!(held.field("state").text(), "held");
        assert_eq!(held.field("mode").text(), "exclusive");
        assert_eq!(held.field("limit").int(), 1);
        assert_eq!(held.field("token").token(), token);
        assert_eq!(held.field("counter").token(), token);
        assert_eq!(held.field("grants").int(), 2);
        assert_eq!((held.field("holders").int(), held.field("waiters").int()), (1, 0));
        assert_eq!(held.field("owner").text(), "you");
        assert!((60_000..=100_000).contains(&held.field("ttl-ms").int()), "{held:?}");
        assert!((0..40_000).contains(&held.field("held-ms").int()), "{held:?}");
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "you").int(), 1);
        let free = info(&mut conn, "lock");
        assert_eq!(free.field("state").text(), "free");
        for name in ["mode", "limit", "token", "owner"] {
            free.field(name).nil();
        }
        for name in ["holders", "waiters", "ttl-ms", "held-ms"] {
            assert_eq!(free.field(name).int(), 0, "{name}");
        }
        assert_eq!((free.field("counter").token(), free.field("grants").int()), (token, 2));
        assert!(token > first);
    }

    /// `held-ms` counts from the grant: asking again and extending do not restart it; `ttl-ms` counts down.
    fn held_ms_counts_from_the_grant(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "me", 100_000).token();
        wait_until("held-ms", SOON, || number(&mut conn, "lock", "held-ms"), |held| *held >= 100);
        let seen = info(&mut conn, "lock");
        assert!(seen.field("ttl-ms").int() + seen.field("held-ms").int() <= 100_001, "{seen:?}");
        cmd!(conn, "LOCK.ACQUIRE", "lock", "me", 200_000).token();
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "me", 200_000).int(), 1);
        assert!(number(&mut conn, "lock", "held-ms") >= 100);
    }

    /// B14: past the deadline it is free with nothing left, never negative and never huge.
    fn an_ended_lease_shows_nothing_left(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "me", 50).token();
        wait_until("its end", SOON, || {
            let seen = info(&mut conn, "lock");
            let left = seen.field("ttl-ms").int();
            assert!((0..=50).contains(&left), "{left}");
            assert_eq!(seen.field("state").text() == "held", left > 0, "{seen:?}");
            left
        }, |left| *left == 0);
        info(&mut conn, "lock").field("owner").nil();
    }

    /// FULL adds `holder-list` and `waiter-list`, in order, with what each asked for.
    fn full_lists_holders_and_waiters_in_order(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "h", LONG_MS).token();
        let mut first = waiter(&server, "lock", "w1", 10, 1);
        let _second = waiter_for(&server, "lock", "w2", 10, 500_000, 2);
        for (mut conn, three) in [(server.connect(), false), (server.connect_resp3(), true)] {
            let full = cmd!(conn, "LOCK.INFO", "lock", "FULL");
            let mut expected = FIELDS.map(String::from).to_vec();
            expected.extend(["holder-list".into(), "waiter-list".into()]);
            assert_eq!(names(&full), expected);
            let holder = &full.field("holder-list").items()[0];
            assert_eq!(matches!(holder, Reply::Map(_)), three);
            assert_eq!(names(holder), ["owner", "token", "ttl-ms", "held-ms"]);
            assert_eq!((holder.field("owner").text(), holder.field("token").token()), ("h".into(), token));
            assert!((LONG_MS.cast_signed() - 60_000..=LONG_MS.cast_signed()).contains(&holder.field("ttl-ms").int()));
            let waiters = full.field("waiter-list").items();
            assert_eq!(waiters.len(), 2);
            assert_eq!(names(&waiters[0]), ["owner", "mode", "waited-ms", "left-ms", "client-id"]);
            assert_eq!(owners(full.field("waiter-list")), ["w1", "w2"]);
            assert_eq!(waiters[0].field("mode").text(), "exclusive");
            waiters[0].field("left-ms").nil();
            let left = waiters[1].field("left-ms").int();
            assert!((440_000..=500_000).contains(&left), "{left}");
            assert!((0..60_000).contains(&waiters[0].field("waited-ms").int()));
            assert!(waiters[0].field("waited-ms").int() >= waiters[1].field("waited-ms").int());
        }
        let listed = cmd!(conn, "LOCK.INFO", "lock", "FULL").field("waiter-list").items()[0].field("client-id").int();
        assert_eq!(cmd!(conn, "CLIENT", "UNBLOCK", listed).int(), 1, "client-id is what CLIENT takes");
        first.recv(SOON).nil();
    }

    /// "`FULL [COUNT n]` (default 10, 0 all)".
    fn count_limits_the_lists(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "h", LONG_MS).token();
        let _waiting: Vec<_> =
            (1..=13).map(|n| waiter(&server, "lock", &format!("w{n}"), 10, n)).collect();
        let listed = |reply: Reply| owners(reply.field("waiter-list"));
        let all: Vec<String> = (1..=13).map(|n| format!("w{n}")).collect();
        assert_eq!(listed(cmd!(conn, "LOCK.INFO", "lock", "FULL")), all[..10]);
        assert_eq!(listed(cmd!(conn, "LOCK.INFO", "lock", "FULL", "COUNT", 3)), all[..3]);
        assert_eq!(listed(cmd!(conn, "LOCK.INFO", "lock", "full", "count", 0)), all);
        assert_eq!(listed(cmd!(conn, "LOCK.INFO", "lock", "FULL", "COUNT", 4_294_967_295_u32)), all);
        assert_eq!(number(&mut conn, "lock", "waiters"), 13);
    }

    /// Wrong words and wrong types.
    fn bad_requests_are_refused(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "SET", "string", "x").ok();
        cmd!(conn, "FENCE.ADVANCE", "fence", 5).int();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "h", LONG_MS).token();
        for key in ["string", "fence"] {
            cmd!(conn, "LOCK.INFO", key).assert_err_prefix("WRONGTYPE ");
            cmd!(conn, "LOCK.INFO", key, "FULL").assert_err_prefix("WRONGTYPE ");
            cmd!(conn, "LOCK.BREAK", key).assert_err_prefix("WRONGTYPE ");
        }
        let bad: [(&[&str], &str); 9] = [
            (&["full", "bogus"], "bogus"),
            (&["bogus"], "bogus"),
            (&["COUNT", "1"], "COUNT needs FULL"),
            (&["FULL", "COUNT"], "COUNT"),
            (&["FULL", "COUNT", "-1"], "COUNT"),
            (&["FULL", "COUNT", "1.5"], "COUNT"),
            (&["FULL", "COUNT", "99999999999999999999"], "COUNT"),
            (&["FULL", "FULL"], "FULL"),
            (&["FULL", "COUNT", "1", "COUNT", "1"], "COUNT"),
        ];
        for (words, named) in bad {
            let mut all = args!["LOCK.INFO", "lock"];
            all.extend(words.iter().map(|word| word.as_bytes().to_vec()));
            let reply = conn.cmd(all);
            assert!(reply.assert_err_prefix("ERR ").contains(named), "{words:?}: {reply:?}");
        }
        cmd!(conn, "LOCK.INFO").assert_err_prefix("ERR wrong number of arguments");
        cmd!(conn, "LOCK.BREAK").assert_err_prefix("ERR wrong number of arguments");
    }

    /// LOCK.INFO changes nothing: same digest, no token, nobody served out of turn; it is allowed on a replica.
    fn looking_changes_nothing(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "h", LONG_MS).token();
        let _waiting = waiter(&server, "lock", "w", 10, 1);
        let before = (server.digest(), issued(&server), standing(&mut conn, "lock"));
        for _ in 0..50 {
            cmd!(conn, "LOCK.INFO", "lock", "FULL").no_err();
        }
        assert_eq!((server.digest(), issued(&server), standing(&mut conn, "lock")), before);
        let replica = Server::start(kind);
        replica.replicate_from(&server);
        replica.wait_in_sync(&server);
        let seen = info(&mut replica.connect(), "lock");
        assert_eq!(seen.field("owner").text(), "h");
    }

    /// "All locks: SCAN … TYPE lockfence; all fences: SCAN … TYPE fencemark."
    fn scan_finds_locks_and_fences_by_type(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "h", LONG_MS).token();
        cmd!(conn, "FENCE.ADVANCE", "fence", 5).int();
        cmd!(conn, "SET", "string", "x").ok();
        for (kind, key) in [("lockfence", "lock"), ("fencemark", "fence")] {
            assert_eq!(cmd!(conn, "TYPE", key).text(), kind);
            let found = cmd!(conn, "SCAN", 0, "COUNT", 1000, "TYPE", kind);
            let found: Vec<String> = found.items()[1].items().iter().map(Reply::text).collect();
            assert_eq!(found, [key]);
        }
    }

    /// BREAK: "number of holders ended … uses up a token, so that they are fenced at once".
    fn break_ends_the_lease_and_fences_at_once(kind: ServerKind) {
        let server = Server::start(kind);
        for (mut conn, lock) in [(server.connect(), "two"), (server.connect_resp3(), "three")] {
            let token = cmd!(conn, "LOCK.ACQUIRE", lock, "h", LONG_MS).token();
            cmd!(conn, "FENCE.WRITE", lock, token, "data", "before").ok();
            assert_eq!(cmd!(conn, "LOCK.BREAK", lock).int(), 1);
            cmd!(conn, "FENCE.WRITE", lock, token, "data", "after").assert_err_prefix("FENCED ");
            cmd!(conn, "FENCE.CHECK", lock, token).assert_err_prefix("FENCED ");
            assert_eq!(cmd!(conn, "GET", "data").text(), "before");
            let free = info(&mut conn, lock);
            assert_eq!((free.field("state").text(), free.field("holders").int()), ("free".into(), 0));
            let counter = free.field("counter").token();
            assert!(counter > token);
            assert_eq!(cmd!(conn, "LOCK.EXTEND", lock, "h", LONG_MS).int(), 0);
            assert_eq!(cmd!(conn, "LOCK.RELEASE", lock, "h").int(), 0);
            assert!(cmd!(conn, "LOCK.ACQUIRE", lock, "h", LONG_MS).token() > counter);
        }
    }

    /// BREAK hands over in the same step; the next holder's token is above the one that BREAK used up.
    fn break_hands_over_to_the_next(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "h", LONG_MS).token();
        let mut first = waiter(&server, "lock", "w1", LONG_MS, 1);
        let mut second = waiter(&server, "lock", "w2", LONG_MS, 2);
        let replies = conn.pipeline(&[
            args!["MULTI"], args!["LOCK.BREAK", "lock"], args!["LOCK.INFO", "lock"], args!["EXEC"],
        ]);
        let replies = replies[3].items();
        assert_eq!(replies[0].int(), 1, "{replies:?}");
        assert_eq!(replies[1].field("owner").text(), "w1");
        let handed = first.recv(SOON).token();
        assert!(handed > token + 1, "{handed} after {token}");
        second.assert_silent(50);
        wait_queue(&mut conn, "lock", 1);
    }

    /// BREAK of a free lock ends nobody, and fences the last holder, who could still write. Of no lock: 0, no lock.
    fn break_of_a_free_lock_ends_nobody(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        assert_eq!(cmd!(conn, "LOCK.BREAK", "lock").int(), 0);
        assert_eq!(cmd!(conn, "EXISTS", "lock").int(), 0);
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "h", LONG_MS).token();
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "h").int(), 1);
        assert_eq!(cmd!(conn, "FENCE.CHECK", "lock", token).token(), token, "it may still write");
        assert_eq!(cmd!(conn, "LOCK.BREAK", "lock").int(), 0);
        cmd!(conn, "FENCE.CHECK", "lock", token).assert_err_prefix("FENCED ");
    }

    /// MAXTOKEN names whom BREAK is to end: who came in since then stays, and a refused BREAK changes nothing.
    fn break_up_to_a_token_spares_who_came_later(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let first = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "a").int(), 1);
        let second = cmd!(conn, "LOCK.ACQUIRE", "lock", "b", LONG_MS).token();
        let _waiting = waiter(&server, "lock", "w", LONG_MS, 1);
        let all = |conn: &mut Conn| (standing(conn, "lock"), issued(&server), cmd!(conn, "DEBUG", "DIGEST").text());
        let before = all(&mut conn);
        for max in [1, first, second - 1] {
            assert_eq!(cmd!(conn, "LOCK.BREAK", "lock", "MAXTOKEN", max).int(), 0);
        }
        assert_eq!(all(&mut conn), before);
        assert_eq!(cmd!(conn, "FENCE.CHECK", "lock", second).token(), second);
        assert_eq!(cmd!(conn, "LOCK.BREAK", "lock", "maxtoken", second).int(), 1);
        cmd!(conn, "FENCE.CHECK", "lock", second).assert_err_prefix("FENCED ");
        assert_eq!(info(&mut conn, "lock").field("owner").text(), "w");
    }

    /// Of a free lock the last token may still write: a BREAK up to it takes that away, one up to a lower token does not.
    /// However high MAXTOKEN is, the lock's numbers are not used up.
    fn break_up_to_a_token_of_a_free_lock(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        assert_eq!(cmd!(conn, "LOCK.BREAK", "lock", "MAXTOKEN", TOKEN_MAX).int(), 0);
        assert_eq!(cmd!(conn, "EXISTS", "lock").int(), 0);
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "h", LONG_MS).token();
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "h").int(), 1);
        assert_eq!(cmd!(conn, "LOCK.BREAK", "lock", "MAXTOKEN", token - 1).int(), 0);
        assert_eq!(cmd!(conn, "FENCE.CHECK", "lock", token).token(), token, "it may still write");
        assert_eq!(cmd!(conn, "LOCK.BREAK", "lock", "MAXTOKEN", token).int(), 0);
        cmd!(conn, "FENCE.CHECK", "lock", token).assert_err_prefix("FENCED ");
        assert_eq!(cmd!(conn, "LOCK.BREAK", "lock", "MAXTOKEN", TOKEN_MAX).int(), 0);
        assert!(number(&mut conn, "lock", "counter").unsigned_abs() < TOKEN_MAX / 2);
    }

    /// Whoever may RESTORE, set the eviction policy or break locks does not fill the log: what is left out is counted.
    fn the_log_is_not_filled_by_clients(kind: ServerKind) {
        const TIMES: u64 = 200;
        let server = Server::start(kind);
        let mut conn = server.connect();
        let began = Instant::now();
        let unreadable = wire::payload(wire::type_id(wire::LOCK, 1), &[1, 0]);
        for n in 0..TIMES {
            cmd!(conn, "RESTORE", "other", 0, unreadable).assert_err_prefix("ERR ");
            cmd!(conn, "LOCK.ACQUIRE", format!("lock {n}"), "h", LONG_MS).token();
            assert_eq!(cmd!(conn, "LOCK.BREAK", format!("lock {n}")).int(), 1);
            cmd!(conn, "CONFIG", "SET", "maxmemory-policy", if n % 2 == 0 { "allkeys-lru" } else { "allkeys-lfu" }).ok();
        }
        for (line, what, a_second) in [
            ("a record cannot be read", "records that cannot be read", 1),
            ("LOCK.BREAK \"lock ", "LOCK.BREAK", 10),
            ("may evict locks", "maxmemory-policy", 1),
        ] {
            let counted = || {
                let log = server.log();
                let written = log.lines().filter(|text| text.contains(line)).count() as u64;
                (written, left_out(&log, what))
            };
            let (written, _) =
                wait_until(what, SOON, counted, |(written, left_out)| written + left_out == TIMES);
            let seconds = began.elapsed().as_secs() + 2;
            assert!((1..=a_second * seconds).contains(&written), "{written} lines on {what} in {seconds} s");
        }
    }

    /// The INFO section counts what happens.
    fn the_info_section_counts(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        assert_eq!(stat_of(&server, "evictable"), 0);
        assert_eq!((stat_of(&server, "waiters"), stat_of(&server, "grants_total")), (0, 0));
        assert_eq!(stat_of(&server, "quarantine_left_ms"), 0);
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "h", LONG_MS).token();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "h", LONG_MS).token();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "x", LONG_MS).nil();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "x", LONG_MS, "WAIT", 10).nil();
        let mut next = waiter(&server, "lock", "w1", LONG_MS, 1);
        let mut lost = waiter(&server, "lock", "w2", LONG_MS, 2);
        assert_eq!(stat_of(&server, "waiters"), 2);
        assert_eq!(stat_of(&server, "contended_locks"), 1);
        cmd!(conn, "LOCK.RELEASE", "lock", "h");
        let handed = next.recv(SOON).token();
        cmd!(conn, "FENCE.CHECK", "lock", token).assert_err_prefix("FENCED ");
        cmd!(conn, "DEL", "lock");
        lost.recv(SOON).assert_err_prefix("LOCKLOST ");
        for (name, value) in [
            ("waiters", 0),
            ("contended_locks", 0),
            ("grants_total", 2),
            ("handovers_total", 1),
            ("refused_total", 1),
            ("wait_timeouts_total", 1),
            ("waits_lost_total", 1),
            ("fenced_total", 1),
        ] {
            assert_eq!(stat_of(&server, name), value, "{name}");
        }
        assert_eq!(stat_of(&server, "highest_token"), handed);
        assert!(stat_of(&server, "restart_floor") <= handed);
        cmd!(conn, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru").ok();
        assert_eq!(stat_of(&server, "evictable"), 1);
        assert!(server.log().contains("maxmemory-policy allkeys-lru may evict locks"));
    }

    /// The count of waiters in INFO and in LOCK.INFO falls with each way out.
    fn counts_fall_when_waiters_go(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "h", LONG_MS).token();
        let closed = waiter(&server, "lock", "w", 10, 1);
        closed.close();
        wait_queue(&mut conn, "lock", 0);
        let mut killed = server.connect();
        let id = killed.id();
        send!(killed, "LOCK.ACQUIRE", "lock", "w", 10, "WAIT", 0);
        wait_queue(&mut conn, "lock", 1);
        assert_eq!(cmd!(conn, "CLIENT", "KILL", "ID", id).int(), 1);
        wait_queue(&mut conn, "lock", 0);
        killed.assert_closed(SOON);
        assert_eq!(stat_of(&server, "waiters"), 0);
    }
}
