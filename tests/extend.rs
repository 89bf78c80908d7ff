//! LOCK.EXTEND: only the holder, only while its lease lives; the lease then ends ttl-ms from now.

use std::time::{Duration, Instant};

use crate::common::{
    LONG_MS, SOON, TOKEN_MAX, info, issued, number, standing, stat_of, wait_free, waiter, wall_us,
};
use lockfence_testkit::{Server, ServerKind, cmd, server_tests, wait_until};

server_tests! {
    /// "The lease now ends ttl-ms from now": later or earlier than before; the token stays.
    fn the_lease_ends_that_long_from_now(kind: ServerKind) {
        let server = Server::start(kind);
        for (mut conn, lock) in [(server.connect(), "two"), (server.connect_resp3(), "three")] {
            let token = cmd!(conn, "LOCK.ACQUIRE", lock, "me", 100_000).token();
            assert_eq!(cmd!(conn, "LOCK.EXTEND", lock, "me", 900_000).int(), 1);
            assert_eq!(conn.last_raw(), b":1\r\n");
            let left = number(&mut conn, lock, "ttl-ms");
            assert!((870_000..=900_000).contains(&left), "{left}");
            assert_eq!(cmd!(conn, "LOCK.EXTEND", lock, "me", 50_000).int(), 1);
            let left = number(&mut conn, lock, "ttl-ms");
            assert!((20_000..=50_000).contains(&left), "{left}");
            let held = info(&mut conn, lock);
            assert_eq!((held.field("token").token(), held.field("counter").token()), (token, token));
            assert_eq!(held.field("grants").int(), 1);
        }
    }

    /// A shortened lease ends at its new end.
    fn a_shortened_lease_ends_early(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "me", 30).int(), 1);
        wait_free(&mut conn, "lock");
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "me", LONG_MS).int(), 0);
    }

    /// Those who wait are served at the new end of a shortened lease, without any command.
    fn a_shortened_lease_serves_those_who_wait(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        let mut b = waiter(&server, "lock", "b", LONG_MS, 1);
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "a", 50).int(), 1);
        b.recv(SOON).token();
    }

    /// And not at the old end of a prolonged one.
    fn a_prolonged_lease_keeps_those_who_wait_waiting(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let granted = Instant::now();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "a", 2_000).token();
        let mut b = waiter(&server, "lock", "b", LONG_MS, 1);
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "a", LONG_MS).int(), 1);
        let past_old_end = Duration::from_millis(2_300).saturating_sub(granted.elapsed());
        b.assert_silent(u64::try_from(past_old_end.as_millis()).unwrap());
        assert_eq!(info(&mut conn, "lock").field("owner").text(), "a");
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "a").int(), 1);
        b.recv(SOON).token();
    }

    /// A2: a partitioned holder that comes back and extends gets 0, and the successor's lease is as it was.
    fn a_late_extend_does_not_touch_the_successors_lease(kind: ServerKind) {
        let server = Server::start(kind);
        let (mut a, mut b) = (server.connect(), server.connect());
        cmd!(a, "LOCK.ACQUIRE", "L", "A", 50).token();
        wait_until("B's grant", SOON, || cmd!(b, "LOCK.ACQUIRE", "L", "B", 60_000), |reply| !reply.is_nil());
        let before = standing(&mut b, "L");
        assert_eq!(cmd!(a, "LOCK.EXTEND", "L", "A", LONG_MS).int(), 0);
        assert_eq!(standing(&mut b, "L"), before);
        assert!(number(&mut b, "L", "ttl-ms") <= 60_000);
    }

    /// "An ended lease is never revived, even if nobody has taken the lock since."
    fn an_ended_lease_is_never_revived(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", 20).token();
        wait_free(&mut conn, "lock");
        let before = standing(&mut conn, "lock");
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "me", LONG_MS).int(), 0);
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "me", LONG_MS, "MINTOKEN", token + 1).int(), 0);
        assert_eq!(standing(&mut conn, "lock"), before);
        cmd!(conn, "LOCK.ACQUIRE", "lock", "you", LONG_MS).token();
    }

    /// A4, "neither ever creates a lock": after the key has gone EXTEND says 0, and the next token is higher.
    fn an_extend_of_a_deleted_lock_creates_nothing(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "L", "A", 5000).int(), 0);
        assert_eq!(cmd!(conn, "EXISTS", "L").int(), 0);
        let first = cmd!(conn, "LOCK.ACQUIRE", "L", "A", LONG_MS).token();
        assert_eq!(cmd!(conn, "DEL", "L").int(), 1);
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "L", "A", 5000).int(), 0);
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "L", "A", 5000, "MINTOKEN", first + 1).int(), 0);
        assert_eq!(cmd!(conn, "DBSIZE").int(), 0);
        assert!(cmd!(conn, "LOCK.ACQUIRE", "L", "A", LONG_MS).token() > first);
    }

    /// G3: another owner extends nothing.
    fn nobody_else_extends(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "owner", 60_000).token();
        let before = standing(&mut conn, "lock");
        for other in ["other", "owne", "owner\0", "Owner"] {
            assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", other, LONG_MS).int(), 0, "{other:?}");
        }
        assert_eq!(standing(&mut conn, "lock"), before);
        assert!(number(&mut conn, "lock", "ttl-ms") <= 60_000);
    }

    /// An owner that waits holds nothing: EXTEND says 0 and its place and its lease to come stay.
    fn an_extend_by_one_who_waits_changes_nothing(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        let mut b = waiter(&server, "lock", "b", 70_000, 1);
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "b", LONG_MS).int(), 0);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "a").int(), 1);
        b.recv(SOON).token();
        assert!(number(&mut conn, "lock", "ttl-ms") <= 70_000);
    }

    /// "EXTEND with MINTOKEN also raises the holder's token and the counter to t if t is higher."
    fn mintoken_raises_the_holders_token_and_the_counter(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "a", LONG_MS, "MINTOKEN", 1).int(), 1);
        assert_eq!(number(&mut conn, "lock", "token").unsigned_abs(), token, "never lowered");
        let higher = token + 5_000_000;
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "a", LONG_MS, "mintoken", higher).int(), 1);
        let held = info(&mut conn, "lock");
        assert_eq!((held.field("token").token(), held.field("counter").token()), (higher, higher));
        cmd!(conn, "FENCE.CHECK", "lock", token).assert_err_prefix("FENCED ");
        assert_eq!(cmd!(conn, "FENCE.CHECK", "lock", higher).token(), higher);
        assert_eq!(cmd!(conn, "LOCK.ACQUIRE", "lock", "a", 10).token(), higher, "asking again tells it");
        cmd!(conn, "LOCK.RELEASE", "lock", "a");
        assert!(cmd!(conn, "LOCK.ACQUIRE", "lock", "b", LONG_MS).token() > higher);
        assert_eq!(cmd!(conn, "DEL", "lock").int(), 1);
        assert!(cmd!(conn, "LOCK.ACQUIRE", "lock", "c", LONG_MS).token() > higher + 1);
    }

    /// MINTOKEN more than 10 s ahead: -ERR; lease, token and counter stay.
    fn mintoken_is_capped_ten_seconds_ahead(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "a", 60_000).token();
        let before = (standing(&mut conn, "lock"), issued(&server));
        let far = stat_of(&server, "restart_floor").max(wall_us()) + 45_000_000;
        for token in [far, TOKEN_MAX] {
            let reply = cmd!(conn, "LOCK.EXTEND", "lock", "a", LONG_MS, "MINTOKEN", token);
            assert!(reply.assert_err_prefix("ERR ").contains("MINTOKEN"));
        }
        assert_eq!((standing(&mut conn, "lock"), issued(&server)), before);
        assert!(number(&mut conn, "lock", "ttl-ms") <= 60_000);
    }

    /// B4: EXTEND 0 is no release, and no bad ttl touches the lease.
    fn a_bad_ttl_touches_no_lease(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "L", "A", 60_000).token();
        let before = standing(&mut conn, "L");
        for bad in ["0", "-5", "2280s", "", "1e3", "0.5", " 100", "+5", "0x64", "9223372036854775807"] {
            cmd!(conn, "LOCK.EXTEND", "L", "A", bad).assert_err_prefix("ERR ttl-ms ");
        }
        assert_eq!(standing(&mut conn, "L"), before);
        let left = number(&mut conn, "L", "ttl-ms");
        assert!((30_000..=60_000).contains(&left), "{left}");
    }

    /// A holder that keeps extending keeps the lock past many of its leases; one that stops loses it.
    fn extending_in_time_keeps_the_lock(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", 2_000).token();
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(2_500) {
            assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "a", 2_000).int(), 1);
            cmd!(conn, "LOCK.ACQUIRE", "lock", "b", 10).nil();
        }
        assert_eq!(number(&mut conn, "lock", "token").unsigned_abs(), token);
        assert!(number(&mut conn, "lock", "held-ms") >= 2_400);
        let next = wait_until("b's grant", SOON,
            || cmd!(conn, "LOCK.ACQUIRE", "lock", "b", 10), |reply| !reply.is_nil());
        assert!(next.token() > token);
    }
}
