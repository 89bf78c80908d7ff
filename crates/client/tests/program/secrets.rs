//! Passwords: used, and never printed.

use std::process::Command;

use lockfence_testkit::{Server, ServerKind, cmd};

use crate::common::*;

#[track_caller]
fn assert_silent_on(ended: &Ended, secret: &str) {
    assert!(!ended.out.contains(secret) && !ended.err.contains(secret), "{ended:?}");
}

#[test]
fn passwords_are_used_and_not_printed() {
    if !ServerKind::Redis70.present() {
        return;
    }
    let server = Server::builder(ServerKind::Redis70).password("hunter2").start();
    let place = format!("127.0.0.1:{}", server.port());
    for args in [
        &["run", "-v", "--lock", "lock", "--", "true"][..],
        &["ls", "--json"],
        &["ls", "-a"],
        &["info", "lock", "--json"],
        &["break", "lock", "--yes", "--json"],
    ] {
        let ended = end(lockfence([&server]).args(args));
        assert!(ended.code <= 1, "{ended:?}");
        assert_silent_on(&ended, "hunter2");
        // The user's own name for a password that is wrong.
        let wrong = end(at([format!("redis://someone:sesame@{place}")]).args(args));
        wrong.assert_code(125).assert_says(&place);
        assert_silent_on(&wrong, "sesame");
        let none = end(at([format!("redis://{place}")]).args(args));
        none.assert_code(125).assert_says("user and password go into the URL");
    }
    let mut conn = server.connect();
    assert!(cmd!(conn, "PING").text().contains("PONG"));
}

/// Also where an address stands in the wrong place, or is none.
#[test]
fn addresses_that_are_wrong_are_quoted_without_passwords() {
    for args in [
        &["ls", "x", "redis://:sesame@host"][..],
        &["ls", "--nod", "redis://:sesame@host"],
        &["redis://:sesame@host"],
        &["ls", "--node", "redis://:sesame@host:port"],
        &["ls", "--node", "redis://:sesame@"],
        &["ls", "--node", "redis://:ses@me/@host:1:2"],
        &["ls", "--node", "http://u:sesame@host"],
        &["ls", "--node", "redis+unix:///nowhere?db=x&pass=sesame"],
        &["ls", "--node", "redis+unix:///nowhere?db=x&pass=ses@me"],
        &["ls", "--node", "redis+sentinel://host/?sentinel_password=ses@me"],
        &["ls", "--nod", "redis+unix:///nowhere?pass=ses@me&db=1"],
        &["ls", "--node", "/nowhere?pass=sesame"],
        &["ls", "--node", "/nowhere?pass=ses@me"],
        &["run", "--lock", "l", "--node", "redis://:sesame@h", "--node", "redis://:sesame@h", "--", "true"],
        &["run", "--lock", "l", "--ttl", "redis://:sesame@h", "--", "true"],
        &["info", "l", "--count", "redis://:sesame@h"],
        &["man", "redis://:sesame@h"],
        &["completions", "redis://:sesame@h"],
    ] {
        let ended = end(Command::new(PROGRAM).env_remove("LOCKFENCE_NODES").args(args));
        ended.assert_code(125);
        assert!(!ended.err.is_empty());
        assert_silent_on(&ended, "sesame");
        assert_silent_on(&ended, "ses@me");
        assert_silent_on(&ended, "\"me"); // the end of that one
        assert_silent_on(&ended, "…@me");
    }
}

#[test]
fn help_does_not_show_the_environment() {
    for args in [&["--help"][..], &["run", "--help"], &["help", "ls"], &["man", "run"]] {
        let ended = end(at(["redis://:sesame@host".to_owned()]).args(args));
        ended.assert_code(0);
        assert!(ended.out.contains("LOCKFENCE_NODES"), "{args:?}");
        assert_silent_on(&ended, "sesame");
    }
}
