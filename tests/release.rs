//! LOCK.RELEASE: only the holder, only while its lease lives, and the next in the queue in the same step.

use crate::common::{LONG_MS, SOON, info, issued, number, standing, wait_queue, waiter};
use lockfence_testkit::{Server, ServerKind, args, cmd, server_tests, wait_until};

server_tests! {
    /// "1 released": the lock is free at once, its counter stays; "0 not the holder" the second time.
    fn the_holder_releases_once(kind: ServerKind) {
        let server = Server::start(kind);
        for (mut conn, lock) in [(server.connect(), "two"), (server.connect_resp3(), "three")] {
            let token = cmd!(conn, "LOCK.ACQUIRE", lock, "me", LONG_MS).token();
            assert_eq!(cmd!(conn, "LOCK.RELEASE", lock, "me").int(), 1);
            assert_eq!(conn.last_raw(), b":1\r\n");
            let free = info(&mut conn, lock);
            assert_eq!((free.field("state").text(), free.field("holders").int()), ("free".into(), 0));
            assert_eq!(free.field("counter").token(), token, "no token is used");
            let before = standing(&mut conn, lock);
            assert_eq!(cmd!(conn, "LOCK.RELEASE", lock, "me").int(), 0);
            assert_eq!(conn.last_raw(), b":0\r\n");
            assert_eq!(standing(&mut conn, lock), before);
        }
    }

    /// A13: one RELEASE frees, however often the owner asked.
    fn one_release_frees_however_often_it_was_asked(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        for _ in 0..5 {
            cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        }
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "me").int(), 1);
        cmd!(conn, "LOCK.ACQUIRE", "lock", "you", LONG_MS).token();
    }

    /// G3: another owner releases nothing; names are compared as whole byte strings.
    fn nobody_else_releases(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "owner", LONG_MS).token();
        let before = (standing(&mut conn, "lock"), issued(&server));
        for other in ["other", "owne", "owner2", "OWNER", "owner\0", "owner "] {
            assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", other).int(), 0, "{other:?}");
        }
        assert_eq!((standing(&mut conn, "lock"), issued(&server)), before);
    }

    /// A1: a late release of an owner whose lease is over says 0 and takes nothing from its successor.
    fn a_late_release_does_not_take_the_successors_lock(kind: ServerKind) {
        let server = Server::start(kind);
        let (mut a, mut b, mut c) = (server.connect(), server.connect(), server.connect());
        cmd!(a, "LOCK.ACQUIRE", "L", "A", 50).token();
        wait_until("B's grant", SOON, || cmd!(b, "LOCK.ACQUIRE", "L", "B", LONG_MS), |reply| !reply.is_nil());
        let before = standing(&mut b, "L");
        assert_eq!(cmd!(a, "LOCK.RELEASE", "L", "A").int(), 0);
        cmd!(c, "LOCK.ACQUIRE", "L", "C", LONG_MS).nil();
        assert_eq!(standing(&mut b, "L"), before);
        assert_eq!(cmd!(b, "LOCK.RELEASE", "L", "B").int(), 1);
    }

    /// A7: with the lease over and nobody else there, EXTEND and RELEASE say 0, as plain replies.
    fn an_ended_lease_is_not_released_even_where_nobody_followed(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "L", "A", 20).token();
        wait_until("its end", SOON, || info(&mut conn, "L").field("state").text(), |state| state == "free");
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "L", "A", 5000).int(), 0);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "L", "A").int(), 0);
        assert_eq!(info(&mut conn, "L").field("state").text(), "free");
    }

    /// "Neither ever creates a lock."
    fn a_release_of_nothing_creates_nothing(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let before = issued(&server);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "me").int(), 0);
        assert_eq!(cmd!(conn, "EXISTS", "lock").int(), 0);
        assert_eq!(cmd!(conn, "DBSIZE").int(), 0);
        assert_eq!(issued(&server), before);
    }

    /// An owner that waits holds nothing: its RELEASE says 0 and it keeps its place.
    fn a_release_by_one_who_waits_changes_nothing(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        let mut b = waiter(&server, "lock", "b", LONG_MS, 1);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "b").int(), 0);
        assert_eq!(number(&mut conn, "lock", "waiters"), 1);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "a").int(), 1);
        b.recv(SOON).token();
    }

    /// "Hands over to the next waiter in the same step": no command of another client fits in between.
    fn a_release_hands_over_in_the_same_step(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let first = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        let mut b = waiter(&server, "lock", "b", LONG_MS, 1);
        let mut c = waiter(&server, "lock", "c", LONG_MS, 2);
        let replies = conn.pipeline(&[
            args!["MULTI"],
            args!["LOCK.RELEASE", "lock", "a"],
            args!["LOCK.INFO", "lock"],
            args!["FENCE.CHECK", "lock", first],
            args!["EXEC"],
        ]);
        let replies = replies[4].items();
        assert_eq!(replies[0].int(), 1);
        let info = &replies[1];
        assert_eq!((info.field("owner").text(), info.field("waiters").int()), ("b".into(), 1));
        assert!(info.field("token").token() > first);
        replies[2].assert_err_prefix("FENCED ");
        assert_eq!(b.recv(SOON), *info.field("token"));
        c.assert_silent(50);
        wait_queue(&mut conn, "lock", 1);
    }

    /// A6: what counts is the owner that was acquired with, not the connection.
    fn any_connection_may_release_for_its_owner(kind: ServerKind) {
        let server = Server::start(kind);
        let (mut one, mut two) = (server.connect(), server.connect());
        cmd!(one, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        one.close();
        assert!(cmd!(two, "LOCK.ACQUIRE", "lock", "you", 10).is_nil(), "a disconnect ends no lease");
        assert_eq!(cmd!(two, "LOCK.RELEASE", "lock", "me").int(), 1);
    }
}
