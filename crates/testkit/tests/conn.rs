//! The client shows what servers really send, in both protocols.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::time::Duration;

use lockfence_testkit::{
    ReplicationStream, Reply, Server, ServerKind, args, cmd, key_slot, send, server_tests,
};

fn server(kind: ServerKind) -> Server {
    Server::builder(kind).without_module().start()
}

fn bulk(text: &str) -> Reply {
    Reply::Bulk(text.as_bytes().to_vec())
}

server_tests! {
    fn takes_arguments_of_any_type(kind: ServerKind) {
        let server = server(kind);
        let mut conn = server.connect();
        let (owned, bytes, number) = (String::from("b c"), vec![0u8, 255], -7i64);
        cmd!(conn, "RPUSH", "list", owned, &owned, bytes, &bytes[..], b"\r\n", number, 5000).no_err();
        let items = cmd!(conn, "LRANGE", "list", 0, -1);
        let expected = ["b c", "b c"].map(bulk).into_iter().chain([
            Reply::Bulk(vec![0, 255]),
            Reply::Bulk(vec![0, 255]),
            bulk("\r\n"),
            bulk("-7"),
            bulk("5000"),
        ]);
        assert_eq!(items, Reply::Array(expected.collect()));
    }

    fn reads_resp2(kind: ServerKind) {
        let server = server(kind);
        let mut conn = server.connect();
        cmd!(conn, "SET", "key", "value").ok();
        cmd!(conn, "GET", "none").nil();
        assert_eq!(conn.last_raw(), b"$-1\r\n");
        assert_eq!(cmd!(conn, "INCR", "n").int(), 1);
        assert_eq!(cmd!(conn, "INCR", "key").assert_err_prefix("ERR "), "ERR value is not an integer or out of range");
        cmd!(conn, "LPUSH", "key", 1).assert_err_prefix("WRONGTYPE ");
        cmd!(conn, "HSET", "hash", "a", 1, "b", 2).no_err();
        let map = cmd!(conn, "HGETALL", "hash");
        assert!(matches!(map, Reply::Array(_)));
        assert_eq!(map.field("b").text(), "2");
        assert_eq!(map.get("c"), None);
        assert_eq!(cmd!(conn, "EVAL", "return {1, false, 'x'}", 0).items(), [Reply::Int(1), Reply::Nil, bulk("x")]);
    }

    fn reads_resp3(kind: ServerKind) {
        let server = server(kind);
        let mut conn = server.connect_resp3();
        cmd!(conn, "GET", "none").nil();
        assert_eq!(conn.last_raw(), b"_\r\n");
        cmd!(conn, "HSET", "hash", "a", 1).no_err();
        assert_eq!(cmd!(conn, "HGETALL", "hash"), Reply::Map(vec![(bulk("a"), bulk("1"))]));
        cmd!(conn, "ZADD", "zset", 1.5, "m").no_err();
        assert_eq!(cmd!(conn, "ZSCORE", "zset", "m"), Reply::Double(1.5));
        assert_eq!(cmd!(conn, "SMEMBERS", "none"), Reply::Set(vec![]));
        assert_eq!(cmd!(conn, "DEBUG", "PROTOCOL", "TRUE"), Reply::Bool(true));
        assert_eq!(cmd!(conn, "DEBUG", "PROTOCOL", "VERBATIM").text(), "This is a verbatim\nstring");
        assert!(matches!(cmd!(conn, "DEBUG", "PROTOCOL", "BIGNUM"), Reply::BigNumber(_)));
        assert_eq!(cmd!(conn, "DEBUG", "PROTOCOL", "ATTRIB").text(), "Some real reply following the attribute");
        cmd!(conn, "NOSUCH").assert_err_prefix("ERR unknown command");
    }

    fn keeps_pushes_apart_from_replies(kind: ServerKind) {
        let server = server(kind);
        let mut conn = server.connect_resp3();
        cmd!(conn, "CLIENT", "TRACKING", "ON").ok();
        cmd!(conn, "GET", "key").nil();
        cmd!(server.connect(), "SET", "key", 1).ok();
        cmd!(conn, "PING");
        let push = conn.recv_push(Duration::from_secs(5)).expect("an invalidation");
        assert_eq!(push.items()[1].items(), [bulk("key")]);
        assert_eq!(conn.recv_push(Duration::from_millis(10)), None);
    }

    fn sends_now_and_reads_later(kind: ServerKind) {
        let server = server(kind);
        let mut waiter = server.connect();
        send!(waiter, "BLPOP", "list", 0);
        server.wait_blocked_clients(1);
        assert_eq!(waiter.try_recv_within(10), None);
        let mut conn = server.connect();
        cmd!(conn, "RPUSH", "list", "x").no_err();
        assert_eq!(waiter.recv(Duration::from_secs(5)), Reply::Array(vec![bulk("list"), bulk("x")]));
        let replies = conn.pipeline(&[args!["SET", "a", 1], args!["INCR", "a"], args!["GET", "b"]]);
        assert_eq!(replies, [Reply::Simple("OK".into()), Reply::Int(2), Reply::Nil]);
        conn.send_raw(b"PING\r\n*1\r\n$4\r\nPI");
        assert_eq!(conn.try_recv_within(1000), Some(Reply::Simple("PONG".into())));
        assert_eq!(conn.try_recv_within(10), None);
        conn.send_raw(b"NG\r\n");
        assert_eq!(conn.try_recv_within(1000), Some(Reply::Simple("PONG".into())));
        let large = vec![b'x'; 3_000_000];
        cmd!(conn, "SET", "large", large).ok();
        assert_eq!(cmd!(conn, "GET", "large").bytes(), large);
    }

    fn a_closed_client_is_gone(kind: ServerKind) {
        let server = server(kind);
        let mut waiter = server.connect();
        send!(waiter, "BLPOP", "list", 0);
        server.wait_blocked_clients(1);
        waiter.close();
        server.wait_blocked_clients(0);
    }

    fn authenticates(kind: ServerKind) {
        let server = server(kind);
        cmd!(server.connect(), "ACL", "SETUSER", "u", "on", ">p", "~a*", "+get").ok();
        let mut conn = server.connect_as("u", "p");
        cmd!(conn, "GET", "a").nil();
        cmd!(conn, "GET", "b").assert_err_prefix("NOPERM ");
    }

    fn shows_what_is_replicated(kind: ServerKind) {
        let server = server(kind);
        cmd!(server.connect(), "SET", "before", 1).ok();
        let mut stream = ReplicationStream::attach(&server);
        let mut conn = server.connect();
        cmd!(conn, "SET", "key", b"a b\n").ok();
        cmd!(conn, "GET", "key").no_err();
        cmd!(conn, "EVAL", "redis.call('INCR', 'n'); redis.call('INCR', 'n')", 0).no_err();
        let lines = stream.lines_until_now(&server);
        assert_eq!(lines[..2], ["SELECT 0", "SET key a b\\n"]);
        assert_eq!(lines[2..].iter().filter(|line| line.eq_ignore_ascii_case("incr n")).count(), 2, "{lines:?}");
        assert_eq!(stream.lines_until_now(&server), [""; 0]);
    }

    fn knows_slots(kind: ServerKind) {
        let server = Server::builder(kind).without_module().arg("cluster-enabled", "yes").start();
        let mut conn = server.connect();
        for key in ["a", "lock:{acct:42}", "{}x", "{", "a{b", "x{y}{z}", "{{a}}"] {
            assert_eq!(cmd!(conn, "CLUSTER", "KEYSLOT", key).int(), i64::from(key_slot(key.as_bytes())), "{key}");
        }
    }
}

#[test]
#[should_panic(expected = "expected a token, got -ERR")]
fn a_wrong_reply_is_shown() {
    Reply::Error("ERR x".into()).token();
}
