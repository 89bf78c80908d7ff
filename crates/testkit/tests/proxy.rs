//! The proxy delays, holds and cuts, and loses nothing of a connection that lives.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::time::{Duration, Instant};

use lockfence_testkit::{
    Direction, Proxy, Received, Server, ServerKind, args, cmd, send, server_tests, wait_until,
};

const SOON: Duration = Duration::from_secs(10);

fn behind_proxy(kind: ServerKind) -> (Server, Proxy) {
    let server = Server::builder(kind).without_module().start();
    let proxy = Proxy::to(&server);
    (server, proxy)
}

server_tests! {
    fn passes_and_counts(kind: ServerKind) {
        let (_server, proxy) = behind_proxy(kind);
        let mut conn = proxy.connect();
        let large = vec![b'x'; 2_000_000];
        cmd!(conn, "SET", "key", large).ok();
        assert_eq!(cmd!(conn, "GET", "key").bytes(), large);
        conn.pipeline(&[args!["PING"], args!["PING"], args!["PING"]]);
        let stats = proxy.stats();
        assert_eq!((stats.connections, stats.requests, stats.replies), (1, 5, 5));
        assert!(stats.bytes_to_server > 2_000_000 && stats.bytes_to_client > 2_000_000, "{stats:?}");
    }

    fn counts_round_trips(kind: ServerKind) {
        let (_server, proxy) = behind_proxy(kind);
        let mut one = proxy.connect();
        let mut other = proxy.connect();
        cmd!(one, "PING");
        cmd!(other, "PING");
        assert_eq!(proxy.stats().round_trips, 2);
        one.pipeline(&[args!["PING"], args!["PING"]]);
        assert_eq!(proxy.stats().round_trips, 3, "two that go out together");
        send!(one, "BLPOP", "list", 0);
        wait_until("the request to arrive", SOON, || proxy.stats().requests, |requests| *requests == 5);
        send!(one, "PING");
        wait_until("the next one, too", SOON, || proxy.stats().requests, |requests| *requests == 6);
        cmd!(other, "RPUSH", "list", "x").int();
        one.recv(SOON);
        one.recv(SOON);
        let stats = proxy.stats();
        assert_eq!((stats.requests, stats.replies, stats.round_trips), (7, 7, 5), "one behind the other");
    }

    fn holds_after_so_many_pieces(kind: ServerKind) {
        let (server, proxy) = behind_proxy(kind);
        let mut conn = proxy.connect();
        proxy.hold_after(Direction::ToServer, 2);
        proxy.hold_after(Direction::ToClient, 1);
        cmd!(conn, "INCR", "n");
        assert_eq!(proxy.held(), 0);
        send!(conn, "INCR", "n");
        wait_until("a reply that is held", SOON, || proxy.held(), |held| *held == 1);
        let mut other = proxy.connect();
        send!(other, "INCR", "n");
        wait_until("a request that is held", SOON, || proxy.held(), |held| *held == 2);
        assert_eq!(cmd!(server.connect(), "GET", "n").text(), "2");
        proxy.pass();
        assert_eq!(conn.recv(SOON).int(), 2);
        assert_eq!(other.recv(SOON).int(), 3);
        assert_eq!(proxy.held(), 0);
    }

    fn delays_each_direction(kind: ServerKind) {
        let (server, proxy) = behind_proxy(kind);
        let mut conn = proxy.connect();
        cmd!(conn, "PING");
        for direction in [Direction::ToServer, Direction::ToClient] {
            let by = Duration::from_millis(80);
            proxy.delay(direction, by);
            let start = Instant::now();
            send!(conn, "SET", "key", format!("{direction:?}"));
            let absent = cmd!(server.connect(), "GET", "key").is_nil();
            if direction == Direction::ToServer && start.elapsed() < by {
                assert!(absent, "the request is not there yet");
            }
            conn.recv(SOON).ok();
            assert!(start.elapsed() >= by, "{direction:?} took {:?}", start.elapsed());
            proxy.pass();
        }
        proxy.delay(Direction::ToClient, Duration::from_millis(100));
        let start = Instant::now();
        conn.pipeline(&vec![args!["PING"]; 50]);
        assert!(start.elapsed() < Duration::from_secs(3), "a delay is no rate: {:?}", start.elapsed());
    }

    fn holds_a_reply_then_loses_it(kind: ServerKind) {
        let (server, proxy) = behind_proxy(kind);
        let mut conn = proxy.connect();
        proxy.hold(Direction::ToClient);
        send!(conn, "INCR", "n");
        let n = || cmd!(server.connect(), "GET", "n");
        wait_until("the request to arrive", SOON, n, |reply| !reply.is_nil());
        conn.assert_silent(20);
        proxy.cut();
        assert!(matches!(conn.receive(SOON), Received::Closed(_)));
        proxy.pass();
        assert_eq!(cmd!(proxy.connect(), "INCR", "n").int(), 2);
    }

    fn a_black_hole_lets_nothing_through(kind: ServerKind) {
        let (server, proxy) = behind_proxy(kind);
        let mut old = proxy.connect();
        cmd!(old, "PING");
        proxy.black_hole();
        let mut new = proxy.connect();
        send!(old, "SET", "old", 1);
        send!(new, "SET", "new", 1);
        old.assert_silent(30);
        new.assert_silent(30);
        assert_eq!(cmd!(server.connect(), "EXISTS", "old", "new").int(), 0);
        proxy.pass();
        old.recv(SOON).ok();
        new.recv(SOON).ok();
    }

    fn refuses_until_it_passes_again(kind: ServerKind) {
        let (_server, proxy) = behind_proxy(kind);
        let mut conn = proxy.connect();
        cmd!(conn, "PING");
        proxy.refuse();
        conn.assert_closed(SOON);
        let outcome = proxy.connect().try_cmd(["PING"], SOON);
        assert!(matches!(outcome, Received::Closed(_)), "{outcome:?}");
        proxy.pass();
        cmd!(proxy.connect(), "PING");
    }

    fn shows_the_end_of_either_side(kind: ServerKind) {
        let (server, proxy) = behind_proxy(kind);
        let mut waiter = proxy.connect();
        send!(waiter, "BLPOP", "list", 0);
        server.wait_blocked_clients(1);
        waiter.close();
        server.wait_blocked_clients(0);
        let mut conn = proxy.connect();
        cmd!(conn, "PING");
        server.kill9();
        conn.assert_closed(SOON);
        proxy.connect().assert_closed(SOON);
        server.restart();
        cmd!(proxy.connect(), "PING");
    }
}
