//! LOCK.ACQUIRE without waiting: who is granted, who is refused, which token and which lease come of it.

use std::time::{Duration, Instant};

use crate::common::{
    LONG_MS, SOON, TOKEN_MAX, info, issued, names, number, standing, stat_of, wait_free, waiter, wall_us,
};
use lockfence_testkit::{Reply, Server, ServerKind, args, cmd, send, server_tests, wait_until};

server_tests! {
    /// "Free lock … grant"; the reply is the token, an integer in both protocols.
    fn a_free_lock_is_granted(kind: ServerKind) {
        let server = Server::start(kind);
        for (mut conn, lock) in [(server.connect(), "two"), (server.connect_resp3(), "three")] {
            let token = cmd!(conn, "LOCK.ACQUIRE", lock, "me", LONG_MS).token();
            assert_eq!(conn.last_raw(), format!(":{token}\r\n").as_bytes());
            let info = info(&mut conn, lock);
            assert_eq!(info.field("state").text(), "held");
            assert_eq!(info.field("owner").text(), "me");
            assert_eq!(info.field("token").token(), token);
            assert_eq!(info.field("holders").int(), 1);
        }
    }

    /// "Held by another owner: null", at once, and the holder keeps what it has.
    fn a_held_lock_is_refused_with_null(kind: ServerKind) {
        let server = Server::start(kind);
        let mut holder = server.connect();
        cmd!(holder, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        let before = (standing(&mut holder, "lock"), issued(&server));
        let mut two = server.connect();
        cmd!(two, "LOCK.ACQUIRE", "lock", "you", LONG_MS).nil();
        assert_eq!(two.last_raw(), b"$-1\r\n");
        let mut three = server.connect_resp3();
        cmd!(three, "LOCK.ACQUIRE", "lock", "you", LONG_MS).nil();
        assert_eq!(three.last_raw(), b"_\r\n");
        assert_eq!((standing(&mut holder, "lock"), issued(&server)), before);
    }

    /// "The wall clock in µs, nudged up": at or above the clock, at most the restart floor (30 s) ahead of it here,
    /// and an integer below 2^53.
    fn a_token_is_the_wall_clock_or_a_little_more(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        for round in 0..50 {
            let before = wall_us();
            let token = cmd!(conn, "LOCK.ACQUIRE", format!("lock:{round}"), "me", LONG_MS).token();
            assert!(token >= before, "{token} is below the clock, {before}");
            assert!(token <= TOKEN_MAX);
            assert!(token < wall_us() + 31_000_000, "{token} is far ahead of the clock");
        }
    }

    /// "The token is higher than every one before it for this lock" (G1), over releases and ended leases.
    fn tokens_rise_from_grant_to_grant(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let mut last = 0;
        for round in 0..500_u32 {
            let ttl_ms = if round % 10 == 0 { 1 } else { LONG_MS };
            let owner = format!("owner {round}");
            let token = cmd!(conn, "LOCK.ACQUIRE", "lock", owner, ttl_ms).token();
            assert!(token > last, "round {round}: {token} after {last}");
            last = token;
            if ttl_ms == 1 {
                wait_free(&mut conn, "lock");
            } else {
                assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", owner).int(), 1);
            }
        }
        assert_eq!(number(&mut conn, "lock", "grants"), 500);
        assert_eq!(number(&mut conn, "lock", "counter").unsigned_abs(), last);
    }

    /// A13, D20, J13: the same owner gets the same token again, from any connection; no grant is counted.
    fn the_same_owner_gets_the_same_token_again(kind: ServerKind) {
        let server = Server::start(kind);
        let (mut conn, mut other) = (server.connect(), server.connect());
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        assert_eq!(cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token(), token);
        assert_eq!(cmd!(other, "LOCK.ACQUIRE", "lock", "me", 10).token(), token);
        let info = info(&mut conn, "lock");
        assert_eq!((info.field("grants").int(), info.field("holders").int()), (1, 1));
        assert_eq!(info.field("counter").token(), token);
        assert_eq!(cmd!(other, "LOCK.RELEASE", "lock", "me").int(), 1, "one release frees it");
        assert!(cmd!(conn, "LOCK.ACQUIRE", "lock", "you", 100).token() > token);
    }

    /// A9, A11: two workers that share an owner's name see it in `renewed`.
    fn a_shared_owner_name_shows_as_renewed(kind: ServerKind) {
        let server = Server::start(kind);
        let (mut one, mut two) = (server.connect(), server.connect());
        let first = cmd!(one, "LOCK.ACQUIRE", "lock", "pod1:th7", 5000, "WITHINFO");
        assert_eq!(first.field("renewed").int(), 0);
        let second = cmd!(two, "LOCK.ACQUIRE", "lock", "pod1:th7", 5000, "WITHINFO");
        assert_eq!(second.field("renewed").int(), 1);
        assert_eq!(first.field("token"), second.field("token"));
    }

    /// "The lease becomes max(what is left, ttl-ms)": asking for less shortens nothing, asking for more prolongs.
    fn a_second_request_keeps_the_longer_lease(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "me", 100_000).token();
        let shorter = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", 10, "WITHINFO");
        let left = shorter.field("ttl-ms").int();
        assert!((70_000..=100_000).contains(&left), "{left}");
        assert!((70_000..=100_000).contains(&number(&mut conn, "lock", "ttl-ms")));
        let longer = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", 900_000, "WITHINFO");
        assert_eq!(longer.field("ttl-ms").int(), 900_000);
        assert!((870_000..=900_000).contains(&number(&mut conn, "lock", "ttl-ms")));
    }

    /// J10: near its end or past it, "yes" always comes with a lease that counts from now. With the lease over, the
    /// same owner gets a fresh grant.
    fn an_owner_whose_lease_is_over_gets_a_new_token(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let first = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", 20).token();
        wait_free(&mut conn, "lock");
        let again = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS, "WITHINFO");
        assert!(again.field("token").token() > first);
        assert_eq!(again.field("renewed").int(), 0);
        assert_eq!(again.field("ttl-ms").int(), LONG_MS.cast_signed());
        for round in 0..100 {
            let lock = format!("dying:{round}");
            cmd!(conn, "LOCK.ACQUIRE", lock, "me", 1).token();
            let again = cmd!(conn, "LOCK.ACQUIRE", lock, "me", LONG_MS, "WITHINFO");
            assert_eq!(again.field("ttl-ms").int(), LONG_MS.cast_signed());
            let left = number(&mut conn, lock, "ttl-ms");
            assert!(left > LONG_MS.cast_signed() - 60_000, "held for {left} ms only");
        }
    }

    /// J12, C2: a lease that is over is over on access; no reaper, no other client, no timer is needed.
    fn a_lock_whose_lease_is_over_is_granted_to_another(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let first = cmd!(conn, "LOCK.ACQUIRE", "lock", "dead", 150).token();
        let since = Instant::now();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).nil();
        let second = wait_until("a grant", SOON,
            || cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS), |reply| !reply.is_nil()).token();
        assert!(since.elapsed() >= Duration::from_millis(140), "granted while the lease lived");
        assert!(second > first);
        cmd!(conn, "FENCE.CHECK", "lock", first).assert_err_prefix("FENCED ");
    }

    /// C2: in one turn of the server, in which no timer can run, a lease that ends is over for the next command.
    fn a_lease_ends_inside_a_turn_of_the_server(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let replies = conn.pipeline(&[
            args!["LOCK.ACQUIRE", "lock", "dead", 50],
            args!["DEBUG", "SLEEP", "0.2"],
            args!["LOCK.ACQUIRE", "lock", "me", LONG_MS],
        ]);
        assert!(replies[2].token() > replies[0].token());
    }

    /// WITHINFO, granted: `granted` 1, `token`, `ttl-ms`, `renewed`; a flat array in RESP2, a map in RESP3.
    fn withinfo_tells_of_a_grant(kind: ServerKind) {
        let server = Server::start(kind);
        for (mut conn, lock) in [(server.connect(), "two"), (server.connect_resp3(), "three")] {
            let reply = cmd!(conn, "LOCK.ACQUIRE", lock, "me", 5000, "WITHINFO");
            assert_eq!(matches!(reply, Reply::Map(_)), lock == "three");
            assert_eq!(names(&reply), ["granted", "token", "ttl-ms", "renewed"]);
            assert_eq!(reply.field("granted").int(), 1);
            assert_eq!(reply.field("ttl-ms").int(), 5000);
            assert_eq!(reply.field("renewed").int(), 0);
            assert_eq!(reply.field("token"), info(&mut conn, lock).field("token"));
        }
    }

    /// WITHINFO, not granted: `granted` 0, `ttl-ms` until the lease ends, `owner`, `waiters`.
    fn withinfo_tells_who_has_it(kind: ServerKind) {
        let server = Server::start(kind);
        let mut holder = server.connect();
        cmd!(holder, "LOCK.ACQUIRE", "lock", "h\0lder", 100_000).token();
        let _waiting = waiter(&server, "lock", "w", 10, 1);
        for (mut conn, three) in [(server.connect(), false), (server.connect_resp3(), true)] {
            let reply = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", 10, "WITHINFO");
            assert_eq!(matches!(reply, Reply::Map(_)), three);
            assert_eq!(names(&reply), ["granted", "ttl-ms", "owner", "waiters"]);
            assert_eq!(reply.field("granted").int(), 0);
            assert_eq!(reply.field("owner").bytes(), b"h\0lder");
            assert_eq!(reply.field("waiters").int(), 1);
            let left = reply.field("ttl-ms").int();
            assert!((60_000..=100_000).contains(&left), "{left}");
        }
    }

    /// WITHINFO of a request that waited: a map for the grant, and a map when its time is over.
    fn withinfo_tells_those_who_waited(kind: ServerKind) {
        let server = Server::start(kind);
        let mut holder = server.connect();
        let first = cmd!(holder, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        let mut over = server.connect_resp3();
        let reply = cmd!(over, "LOCK.ACQUIRE", "lock", "b", 10, "WAIT", 30, "WITHINFO");
        assert!(matches!(reply, Reply::Map(_)), "{reply:?}");
        assert_eq!(names(&reply), ["granted", "ttl-ms", "owner", "waiters"]);
        assert_eq!((reply.field("granted").int(), reply.field("owner").text()), (0, "a".into()));
        assert_eq!(reply.field("waiters").int(), 0, "it waits no more itself");
        let mut granted = server.connect();
        send!(granted, "LOCK.ACQUIRE", "lock", "b", 77_000, "WAIT", 0, "WITHINFO");
        server.wait_blocked_clients(1);
        assert_eq!(cmd!(holder, "LOCK.RELEASE", "lock", "a").int(), 1);
        let reply = granted.recv(SOON);
        assert_eq!(names(&reply), ["granted", "token", "ttl-ms", "renewed"]);
        assert_eq!((reply.field("granted").int(), reply.field("renewed").int()), (1, 0));
        assert_eq!(reply.field("ttl-ms").int(), 77_000);
        assert!(reply.field("token").token() > first);
    }

    /// `MINTOKEN t`: the token is at least t; a lower one changes nothing; the holder's own is raised, too.
    fn mintoken_raises_and_never_lowers(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let floor = stat_of(&server, "restart_floor");
        let high = floor + 5_000_000;
        assert_eq!(cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS, "MINTOKEN", high).token(), high);
        assert_eq!(number(&mut conn, "lock", "counter").unsigned_abs(), high);
        assert_eq!(cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS, "MINTOKEN", 1).token(), high);
        assert_eq!(cmd!(conn, "LOCK.ACQUIRE", "lock", "a", 10, "MINTOKEN", high + 7).token(), high + 7);
        let held = info(&mut conn, "lock");
        assert_eq!((held.field("token").token(), held.field("counter").token()), (high + 7, high + 7));
        cmd!(conn, "FENCE.CHECK", "lock", high).assert_err_prefix("FENCED ");
        assert_eq!(cmd!(conn, "FENCE.CHECK", "lock", high + 7).token(), high + 7);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "a").int(), 1);
        let next = cmd!(conn, "LOCK.ACQUIRE", "lock", "b", LONG_MS, "MINTOKEN", 1).token();
        assert!(next > high + 7, "a low proposal replaces neither clock nor counter: {next}");
        assert!(cmd!(conn, "LOCK.ACQUIRE", "other", "b", 10).token() >= floor);
    }

    /// MINTOKEN more than 10 s ahead of base: -ERR, no record, no token used. 10 s ahead is accepted.
    fn mintoken_is_capped_ten_seconds_ahead(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let cap = stat_of(&server, "restart_floor").max(wall_us()) + 10_000_000;
        let before = issued(&server);
        for far in [cap + 30_000_000, cap + 1_000_000_000, TOKEN_MAX] {
            let reply = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS, "MINTOKEN", far);
            assert!(reply.assert_err_prefix("ERR ").contains("MINTOKEN"));
            let reply = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS, "WAIT", 0, "MINTOKEN", far);
            reply.assert_err_prefix("ERR ");
        }
        cmd!(conn, "LOCK.INFO", "lock").nil();
        assert_eq!(issued(&server), before);
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        assert!(token < cap, "the garbage has used up no numbers");
        assert_eq!(cmd!(conn, "LOCK.ACQUIRE", "near", "me", LONG_MS, "MINTOKEN", cap).token(), cap);
        // The holder itself is refused the same way, and keeps what it has.
        let before = standing(&mut conn, "lock");
        cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS, "MINTOKEN", TOKEN_MAX).assert_err_prefix("ERR ");
        assert_eq!(standing(&mut conn, "lock"), before);
    }

    /// The cap is exact while the restart floor is ahead of the clock, that is for 30 s after a start.
    fn the_cap_of_mintoken_is_exact(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let floor = stat_of(&server, "restart_floor");
        let over = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", 10, "MINTOKEN", floor + 10_000_001);
        let at = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", 10, "MINTOKEN", floor + 10_000_000);
        assert!(wall_us() < floor, "the machine was too slow for this test to say anything");
        over.assert_err_prefix("ERR MINTOKEN ");
        assert_eq!(at.token(), floor + 10_000_000);
    }

    /// Options stand in any order and any case.
    fn options_come_in_any_order_and_case(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let reply = cmd!(conn, "lock.acquire", "lock", "a", 10_000, "withInfo", "mintoken", 1, "wait", 5);
        assert_eq!(reply.field("granted").int(), 1);
        let reply = cmd!(conn, "Lock.Acquire", "lock", "b", 10, "WAIT", 1, "WithInfo", "MinToken", 1);
        assert_eq!(reply.field("granted").int(), 0);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "a").int(), 1);
        cmd!(conn, "LOCK.ACQUIRE", "lock", "WAIT", 10_000).token();
        assert_eq!(info(&mut conn, "lock").field("owner").text(), "WAIT", "an owner may be called anything");
    }

    /// Locks of one name in two databases are two locks.
    fn each_database_has_its_own_locks(kind: ServerKind) {
        let server = Server::start(kind);
        let (mut zero, mut one) = (server.connect(), server.connect());
        cmd!(one, "SELECT", 1).ok();
        cmd!(zero, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        cmd!(one, "LOCK.INFO", "lock").nil();
        cmd!(one, "LOCK.ACQUIRE", "lock", "b", LONG_MS).token();
        send!(one, "LOCK.ACQUIRE", "lock", "c", LONG_MS, "WAIT", 0);
        server.wait_blocked_clients(1);
        assert_eq!(number(&mut zero, "lock", "waiters"), 0);
        assert_eq!(cmd!(zero, "LOCK.RELEASE", "lock", "a").int(), 1);
        one.assert_silent(50);
        let mut other = server.connect();
        cmd!(other, "SELECT", 1).ok();
        assert_eq!(number(&mut other, "lock", "waiters"), 1);
        assert_eq!(cmd!(other, "LOCK.RELEASE", "lock", "b").int(), 1);
        one.recv(SOON).token();
    }

    /// H2: a token goes through Lua unchanged, as a number and written with `%.0f`.
    fn a_token_survives_lua(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let script = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'A', '60000')";
        let token = cmd!(conn, "EVAL", script, 1, "lock").token();
        assert_eq!(number(&mut conn, "lock", "token").unsigned_abs(), token);
        let script = "local t = redis.call('LOCK.ACQUIRE', KEYS[1], 'A', '60000') \
                      return redis.call('FENCE.WRITE', KEYS[1], string.format('%.0f', t), KEYS[2], 'v')";
        cmd!(conn, "EVAL", script, 2, "lock", "data").ok();
        assert_eq!(cmd!(conn, "GET", "data").text(), "v");
        // As a number, without a format: what redis.call makes of it must not be another token.
        let script = "local t = redis.call('LOCK.ACQUIRE', KEYS[1], 'A', '60000') \
                      return redis.call('FENCE.CHECK', KEYS[1], t)";
        assert_eq!(cmd!(conn, "EVAL", script, 1, "lock").token(), token);
    }

    /// A15: the grant alone fences the paused holder, before the new one has written anything.
    fn a_grant_alone_fences_the_holder_before(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let first = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", 20).token();
        wait_free(&mut conn, "lock");
        cmd!(conn, "FENCE.WRITE", "lock", first, "data", "late but alone").ok();
        let second = cmd!(conn, "LOCK.ACQUIRE", "lock", "b", LONG_MS).token();
        cmd!(conn, "FENCE.WRITE", "lock", first, "data", "stale").assert_err_prefix("FENCED ");
        assert_eq!(cmd!(conn, "GET", "data").text(), "late but alone");
        cmd!(conn, "FENCE.WRITE", "lock", second, "data", "new").ok();
        assert_eq!(cmd!(conn, "GET", "data").text(), "new");
    }
}
