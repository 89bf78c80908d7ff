//! A server starts, answers, survives a restart and ends with its guard, on each kind that is present.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::path::Path;
use std::time::Duration;

use lockfence_testkit::{
    Received, Reply, Server, ServerKind, cmd, raise_open_files, send, server_tests, wait_for, wait_until,
};

fn running(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

server_tests! {
    fn starts_answers_and_ends_with_its_guard(kind: ServerKind) {
        let server = Server::builder(kind).without_module().start();
        server.connect().cmd(["PING"]);
        server.assert_alive();
        let (pid, dir, port) = (server.pid(), server.dir().to_path_buf(), server.port());
        assert!(running(pid) && dir.is_dir());
        drop(server);
        assert!(!running(pid), "the process is gone");
        assert!(!dir.exists(), "the folder is gone");
        std::net::TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
    }

    fn says_its_version(kind: ServerKind) {
        let server = Server::builder(kind).without_module().start();
        let info = server.info("server");
        let field = if kind.is_valkey() { "valkey_version" } else { "redis_version" };
        assert_eq!(info[field], kind.version().unwrap().to_string());
    }

    fn keeps_its_data_over_a_kill(kind: ServerKind) {
        let server = Server::builder(kind)
            .without_module()
            .arg("appendonly", "yes")
            .arg("appendfsync", "always")
            .start();
        cmd!(server.connect(), "SET", "key", "value").ok();
        let before = (server.pid(), server.port(), server.digest());
        server.kill9();
        assert!(!server.is_alive());
        assert!(server.try_connect().is_err(), "nobody listens");
        server.restart();
        assert_ne!(server.pid(), before.0, "another process");
        assert_eq!((server.port(), server.digest()), (before.1, before.2));
        assert_eq!(cmd!(server.connect(), "GET", "key").text(), "value");
    }

    fn keeps_its_data_over_a_clean_shutdown(kind: ServerKind) {
        let server = Server::builder(kind).without_module().start();
        cmd!(server.connect(), "SET", "key", b"\0\r\n\xff").ok();
        server.shutdown_saving();
        assert!(!server.is_alive());
        server.restart();
        assert_eq!(cmd!(server.connect(), "GET", "key").bytes(), b"\0\r\n\xff");
        server.shutdown_clean();
        server.restart();
        server.restart(); // one that runs is shut down before
        server.assert_alive();
    }

    fn a_paused_server_says_nothing(kind: ServerKind) {
        let server = Server::builder(kind).without_module().start();
        let mut conn = server.connect();
        server.pause();
        assert!(server.is_alive());
        send!(conn, "PING");
        conn.assert_silent(50);
        server.resume();
        assert_eq!(conn.recv(Duration::from_secs(10)), Reply::Simple("PONG".into()));
        server.pause();
        server.shutdown_clean(); // wakes it first
    }

    fn a_replica_follows_and_is_promoted(kind: ServerKind) {
        let primary = Server::builder(kind).without_module().start();
        let replica = Server::builder(kind).without_module().start();
        cmd!(primary.connect(), "SET", "before", 1).ok();
        replica.replicate_from(&primary);
        replica.wait_in_sync(&primary);
        cmd!(primary.connect(), "SET", "after", 2).ok();
        replica.wait_in_sync(&primary);
        assert_eq!(primary.digest(), replica.digest());
        cmd!(replica.connect(), "SET", "own", 3).assert_err_prefix("READONLY ");
        replica.promote();
        cmd!(replica.connect(), "SET", "own", 3).ok();
        assert_ne!(primary.digest(), replica.digest());
    }

    fn asks_for_its_password(kind: ServerKind) {
        let server = Server::builder(kind).without_module().password("a b\"c").start();
        cmd!(server.connect(), "SET", "key", 1).ok();
        server.assert_alive();
        let mut stranger = lockfence_testkit::Conn::open(server.port()).unwrap();
        cmd!(stranger, "GET", "key").assert_err_prefix("NOAUTH ");
        let replica = Server::builder(kind).without_module().start();
        replica.replicate_from(&server);
        replica.wait_in_sync(&server);
        server.restart();
    }

    fn listens_on_a_unix_socket(kind: ServerKind) {
        let server = Server::builder(kind).without_module().unix().start();
        assert_eq!(cmd!(server.connect_unix(), "ECHO", "x").text(), "x");
    }

    fn runs_redis_cli(kind: ServerKind) {
        let server = Server::builder(kind).without_module().start();
        assert_eq!(server.cli(&["SET", "key", "a b"]).trim(), "OK");
        assert_eq!(server.cli(&["GET", "key"]).trim(), "a b");
    }

    fn a_bad_setting_is_told(kind: ServerKind) {
        let failure = Server::builder(kind).without_module().config_line("no-such-setting 1").start_fails();
        assert!(failure.log.contains("no-such-setting"), "{failure}");
        assert!(failure.why.contains("exited with code 1"), "{failure}");
    }

    fn a_module_that_is_none_is_told(kind: ServerKind) {
        let failure = Server::builder(kind).module("/nowhere/none.so").start_fails();
        assert!(failure.log.contains("/nowhere/none.so"), "{failure}");
    }

    fn a_crash_is_seen(kind: ServerKind) {
        let server = Server::builder(kind).without_module().start();
        server.connect().send(["DEBUG", "SEGFAULT"]);
        wait_until("the end", Duration::from_secs(20), || server.is_alive(), |alive| !alive);
        let seen = std::panic::catch_unwind(move || drop(server)).expect_err("its death fails the test");
        let message = seen.downcast_ref::<String>().unwrap();
        assert!(message.contains("ended by signal 11 by itself"), "{message}");
        let server = Server::builder(kind).without_module().may_die().start();
        server.connect().send(["DEBUG", "SEGFAULT"]);
        wait_until("the end", Duration::from_secs(20), || server.is_alive(), |alive| !alive);
    }
}

#[test]
fn every_present_kind_starts() {
    for kind in ServerKind::ALL.into_iter().filter(|kind| kind.present()) {
        let server = Server::builder(kind).without_module().start();
        assert!(server.used_memory() > 100_000, "{kind}");
        assert_eq!(server.digest(), "0".repeat(40), "an empty {kind}, and DEBUG is let through");
    }
}

#[test]
fn a_closed_connection_is_no_panic_where_faults_are_wanted() {
    if !ServerKind::Redis70.present() {
        return;
    }
    let server = Server::builder(ServerKind::Redis70).without_module().start();
    let mut conn = server.connect();
    let id = conn.id();
    assert_eq!(cmd!(server.connect(), "CLIENT", "KILL", "ID", id).int(), 1);
    let outcome = conn.try_cmd(["PING"], Duration::from_secs(5));
    assert!(matches!(outcome, Received::Closed(_)), "{outcome:?}");
    let mut other = server.connect();
    server.kill9();
    other.assert_closed(Duration::from_secs(5));
}

#[test]
fn many_clients_fit() {
    if !ServerKind::Redis70.present() {
        return;
    }
    assert!(raise_open_files() >= 1024);
    let server = Server::builder(ServerKind::Redis70).without_module().start();
    let mut conns: Vec<_> = (0..500).map(|_| server.connect()).collect();
    for conn in &mut conns {
        send!(conn, "BLPOP", "list", 0);
    }
    server.wait_blocked_clients(500);
}

#[test]
fn waiting_reports_what_was_seen_last() {
    let seen = std::panic::catch_unwind(|| {
        let mut count = 0;
        wait_for("the moon", Duration::from_millis(20), || {
            count += 1;
            if count > 1_000_000 { Ok(()) } else { Err(format!("cloud {}", count.min(1))) }
        });
    });
    let message = seen.expect_err("it waits in vain").downcast::<String>().unwrap();
    assert!(message.contains("for the moon; last seen: \"cloud 1\""), "{message}");
}
