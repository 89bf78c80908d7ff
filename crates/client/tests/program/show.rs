//! `ls`, `info`, `break` and `watch`: what they show, as tables and as JSON.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lockfence_testkit::{Server, cmd, send, wait_until};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::common::*;

/// The cells of a table's line.
fn cells(line: &str) -> Vec<&str> {
    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
}

fn ls(server: &Server, args: &[&str]) -> Ended {
    let ended = end(lockfence([server]).arg("ls").args(args));
    ended.assert_code(0);
    assert_eq!(ended.err, "");
    ended
}

#[test]
fn ls_lists_what_is_held_or_waited_for() {
    let Some(server) = server() else { return };
    assert_eq!(ls(&server, &[]).out.lines().count(), 1);
    let mut conn = server.connect();
    cmd!(conn, "LOCK.ACQUIRE", "job:1", "build7:43/0123456789abcdef0123456789abcdef", 90_500).no_err();
    cmd!(conn, "LOCK.ACQUIRE", "job:2", "bob", 600_000, "SHARED").no_err();
    cmd!(conn, "LOCK.ACQUIRE", "job:2", "carol", 600_000, "SHARED").no_err();
    cmd!(conn, "LOCK.ACQUIRE", "old", "dave", 600_000).no_err();
    cmd!(conn, "LOCK.RELEASE", "old", "dave").no_err();
    cmd!(conn, "SET", "data", "x").ok();
    let mut waiter = server.connect();
    send!(waiter, "LOCK.ACQUIRE", "job:1", "eve", 1000, "WAIT", 0);
    wait_until("eve waits", LONG, || info(&server, "job:1").field("waiters").int(), |n| *n == 1);

    let table = ls(&server, &[]).out;
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(cells(lines[0]), ["LOCK", "STATE", "MODE", "HOLDER", "AGE", "LEFT", "WAITERS"]);
    let first = cells(lines[1]);
    assert_eq!(first[..4], ["job:1", "held", "exclusive", "build7:43"]);
    assert!(first[5].starts_with("1m ") && first[6] == "1", "{first:?}");
    assert_eq!(cells(lines[2])[..4], ["job:2", "held", "shared", "b… +1"]);
    assert_eq!(lines.len(), 3, "{table}");
    assert_eq!(ls(&server, &["*2"]).out.lines().count(), 2);
    let all = ls(&server, &["--all"]).out;
    assert_eq!(cells(all.lines().nth(3).unwrap()), ["old", "free", "-", "-", "-", "-", "0"]);

    let list = ls(&server, &["--json", "job:*"]).json();
    let locks = list["locks"].as_array().unwrap();
    assert!(list["at_ms"].as_u64().unwrap() > 1_700_000_000_000);
    assert_eq!(list["nodes"], json!([{"node": format!("127.0.0.1:{}/0", server.port()), "error": null}]));
    let one = &locks[0];
    for (field, value) in [
        ("name", json!("job:1")),
        ("state", json!("held")),
        ("mode", json!("exclusive")),
        ("limit", Value::Null),
        ("owner", json!("build7:43/0123456789abcdef0123456789abcdef")),
        ("holder", json!("build7:43")),
        ("token", json!(info(&server, "job:1").field("token").token())),
        ("holders", json!(1)),
        ("waiters", json!(1)),
        ("held_at", json!(1)),
    ] {
        assert_eq!(one[field], value, "{field}");
    }
    assert!((1..=90_500).contains(&one["ttl_ms"].as_u64().unwrap()));
    assert!(one["held_ms"].is_u64());
    assert_eq!((&locks[1]["mode"], &locks[1]["holders"]), (&json!("shared"), &json!(2)));
    assert_eq!(locks.len(), 2);
}

#[test]
fn names_do_nothing_to_a_terminal_and_stay_themselves_in_json() {
    let Some(server) = server() else { return };
    let names: [(&[u8], &str, &str); 5] = [
        (b"a\x1b[2Jb", r"a\u{1b}[2Jb", "a\u{1b}[2Jb"),
        (b"b\xff\xfe", r"b\xff\xfe", r"b\xff\xfe"),
        (b"c\\xff", r"c\\xff", r"c\\xff"),
        ("d größe\u{202e}".as_bytes(), r"d größe\u{202e}", "d größe\u{202e}"),
        (b"e\r\n\0", r"e\r\n\0", "e\r\n\0"),
    ];
    let mut conn = server.connect();
    for (name, ..) in names {
        cmd!(conn, "LOCK.ACQUIRE", name, b"me\x07\xff and more", 600_000).no_err();
    }
    let table = ls(&server, &[]).out;
    assert!(table.chars().all(|c| c == '\n' || !c.is_control()), "{table:?}");
    let list = ls(&server, &["--json"]).json();
    for (place, (name, people, data)) in names.into_iter().enumerate() {
        let row = cells(table.lines().nth(place + 1).unwrap());
        assert_eq!((row[0], row[3]), (people, r"me\u{7}\xff a…"));
        assert_eq!(list["locks"][place]["name"], data);
        assert_eq!(list["locks"][place]["owner"], "me\u{7}\\xff and more");
        if name.contains(&0) {
            continue; // cannot be typed
        }
        let one = end(lockfence([&server]).arg("info").arg(OsStr::from_bytes(name)));
        one.assert_code(0);
        assert!(one.out.contains(people) && one.out.chars().all(|c| c == '\n' || !c.is_control()), "{one:?}");
    }
}

#[test]
fn info_shows_holders_and_waiters() {
    let Some(server) = server() else { return };
    let show = |args: &[&str]| end(lockfence([&server]).args(["info", "lock"]).args(args));
    let none = show(&[]);
    none.assert_code(1);
    assert!(none.out.contains("state    free"), "{none:?}");
    let none = show(&["--json"]);
    none.assert_code(1);
    assert_eq!((&none.json()["state"], &none.json()["nodes"][0]["lock"]), (&json!("free"), &Value::Null));

    let mut conn = server.connect();
    for owner in ["ann", "bob", "carol"] {
        cmd!(conn, "LOCK.ACQUIRE", "lock", owner, 600_000, "LIMIT", 3).no_err();
    }
    let mut waiters = [server.connect(), server.connect()];
    for (place, (waiter, wait)) in waiters.iter_mut().zip([0, 500_000]).enumerate() {
        send!(waiter, "LOCK.ACQUIRE", "lock", format!("w{place}"), 1000, "WAIT", wait);
        wait_waiters(&server, place as i64 + 1);
    }
    let shown = show(&[]);
    shown.assert_code(0);
    for line in ["state    held", "mode     limit:3", "holder   a…", "holders  3", "waiters  2"] {
        assert!(shown.out.lines().any(|seen| seen == line), "{line:?} in {shown:?}");
    }
    let rows: Vec<Vec<&str>> = shown.out.lines().map(cells).collect();
    assert!(rows.iter().any(|row| row[..] == ["HOLDER", "TOKEN", "AGE", "LEFT"]));
    let waiter = rows.iter().find(|row| row.first() == Some(&"w…")).unwrap();
    assert_eq!((waiter[1], waiter[3]), ("exclusive", "forever"));

    let data = show(&["--json", "--count", "1"]).json();
    let record = &data["nodes"][0]["lock"];
    assert_eq!((&data["holders"], &data["mode"], &data["limit"]), (&json!(3), &json!("limit"), &json!(3)));
    assert_eq!(
        (&record["holders"], &record["waiters"], &record["grants"]),
        (&json!(3), &json!(2), &json!(3))
    );
    assert_eq!(record["holder_list"].as_array().unwrap().len(), 1);
    assert_eq!(record["holder_list"][0]["owner"], "ann");
    assert_eq!(record["waiter_list"][0]["left_ms"], Value::Null);
    let all = show(&["--json", "--count", "0"]).json();
    let waiters = all["nodes"][0]["lock"]["waiter_list"].as_array().unwrap();
    assert!(waiters[1]["left_ms"].as_u64().unwrap() > 0 && waiters[1]["client_id"].is_u64());
    assert_eq!(waiters[1]["mode"], "exclusive");
}

#[test]
fn a_quorums_answers_are_laid_together() {
    let Some(servers) = three() else { return };
    let run = start(&mut run_sh(&servers, &["--ttl", LEASE, "--name", "me"], "echo ready; exec sleep 600"));
    run.expect("ready");
    wait_until("held everywhere", LONG, || servers.iter().all(|server| !is_free(server)), |held| *held);
    cmd!(servers[0].connect(), "LOCK.ACQUIRE", "stray", "else", 600_000).no_err();

    let table = end(lockfence(&servers).arg("ls"));
    let rows: Vec<Vec<&str>> = table.out.lines().map(cells).collect();
    assert_eq!(rows[0].last(), Some(&"NODES"));
    assert_eq!((rows[1][0], rows[1][1], rows[1][3], rows[1][7]), ("lock", "held", "me", "3/3"));
    assert_eq!((rows[2][0], rows[2][1], rows[2][7]), ("stray", "partly", "1/3"));
    servers[2].kill9();
    let table = end(lockfence(&servers).arg("ls"));
    table.assert_code(0).assert_says(&format!("no answer from 127.0.0.1:{}/0", servers[2].port()));
    assert_eq!(cells(table.out.lines().nth(1).unwrap())[7], "2/3");
    let data = end(lockfence(&servers).args(["info", "lock", "--json"])).json();
    assert_eq!((&data["state"], &data["held_at"]), (&json!("held"), &json!(2)));
    assert_eq!(data["nodes"].as_array().unwrap().len(), 3);
    assert!(data["nodes"][2]["error"].is_string() && data["nodes"][2]["lock"].is_null());
    let shown = end(lockfence(&servers).args(["info", "lock"]));
    assert!(shown.out.lines().any(|line| cells(line).first() == Some(&"NODE")), "{shown:?}");

    let broken = end(lockfence(&servers).args(["break", "lock", "--yes", "--json"]));
    broken.assert_code(0);
    let ended: Vec<Value> = (0..3).map(|node| broken.json()["nodes"][node]["ended"].clone()).collect();
    assert_eq!(ended, [json!(1), json!(1), Value::Null]);
    servers[1].kill9();
    let table = end(lockfence(&servers).arg("ls"));
    table.assert_code(119).assert_says("too few nodes gave an answer that counts");
    assert!(table.out.contains("stray"), "what is known is shown: {table:?}");
}

#[test]
fn break_wants_to_be_sure() {
    let Some(server) = server() else { return };
    let break_it = |args: &[&str]| end(lockfence([&server]).args(["break", "lock"]).args(args));
    take(&server, "alice");
    break_it(&[]).assert_code(125).assert_says("--yes");
    assert!(!is_free(&server));
    let done = break_it(&["--yes"]);
    done.assert_code(0);
    assert_eq!(done.out, "\"lock\" was taken from its holder\n");
    assert!(is_free(&server));
    let again = break_it(&["-y"]);
    again.assert_code(1);
    assert_eq!(again.out, "nobody holds \"lock\"\n");
    take(&server, "bob");
    let data = break_it(&["-y", "--json"]);
    let node = format!("127.0.0.1:{}/0", server.port());
    let expected = json!({"name": "lock", "ended": 1, "nodes": [{"node": node, "error": null, "ended": 1}]});
    assert_eq!(data.json(), expected);
}

#[test]
fn watch_without_a_terminal_prints_table_after_table() {
    let Some(server) = server() else { return };
    take(&server, "alice");
    let watch = |args: &[&str]| {
        let mut command = lockfence([&server]);
        command.args(["watch", "--interval", "20ms"]).args(args);
        command
    };
    let ended = end(watch(&[]).args(["--count", "3"]));
    ended.assert_code(0);
    let tables: Vec<&str> = ended.out.split("\n\n").collect();
    assert_eq!(tables.len(), 3, "{ended:?}");
    assert!(tables.iter().all(|table| table.contains("al…") && table.starts_with("LOCK")));
    let lines = end(watch(&["--json", "--count", "2"]).arg("lock")).out;
    let looks: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(looks.len(), 2);
    assert!(looks.iter().all(|look| look["locks"][0]["holder"] == "al…"));

    // What changes is seen, and a server that is gone is no end.
    let running = start(&mut watch(&["--json"]));
    running.line();
    cmd!(server.connect(), "LOCK.BREAK", "lock").no_err();
    let seen = || serde_json::from_str::<Value>(&running.line()).unwrap();
    wait_until("no lock", LONG, seen, |look| look["locks"] == json!([]));
    running.signal(Signal::SIGINT);
    running.end().assert_code(0);
}

/// After so many looks the last one says how it ends.
#[test]
fn watch_ends_with_the_code_of_its_last_look() {
    let Some(server) = server() else { return };
    let gone =
        at(["redis://127.0.0.1:1".to_owned()]).args(["watch", "--interval", "10ms", "-c", "2"]).output();
    assert_eq!(gone.unwrap().status.code(), Some(119));
    server.pause();
    let watch = start(lockfence([&server]).args([
        "watch",
        "-i",
        "10ms",
        "--json",
        "-c",
        "3",
        "--node-timeout",
        "300ms",
    ]));
    watch.line();
    server.resume();
    watch.end().assert_code(0).assert_says("too few nodes gave an answer that counts");
}

/// An owner is what RELEASE asks for: it is shown in JSON, which is for programs, and else only so much of it that it can
/// be recognized.
#[test]
fn owners_are_not_given_away() {
    let Some(server) = server() else { return };
    let digits = "0123456789abcdef0123456789abcdef";
    let mut conn = server.connect();
    for (owner, shown) in [
        (format!("me/{digits}"), "me/01234567…"),
        (digits.to_owned(), "01234567…"),
        (digits[..16].to_owned(), "01234567…"),
        ("deploy-7".to_owned(), "depl…"),
        ("550e8400-e29b-41d4-a716-446655440000".to_owned(), "550e8400…"),
    ] {
        assert!(cmd!(conn, "LOCK.ACQUIRE", "lock", &owner, 600_000).token() > 0);
        for args in [
            &["ls"][..],
            &["info", "lock"],
            &["watch", "-c", "1"],
            &["run", "-v", "-l", "lock", "--", "true"],
            &["run", "-v", "-l", "lock", "--wait", "10ms", "--", "true"],
        ] {
            let ended = end(lockfence([&server]).args(args));
            assert!(!ended.out.contains(&owner) && !ended.err.contains(&owner), "{ended:?}");
        }
        let info = end(lockfence([&server]).args(["info", "lock"]));
        assert!(info.out.lines().any(|line| line == format!("owner    {shown}")), "{info:?}");
        assert!(end(lockfence([&server]).args(["info", "lock", "--json"])).out.contains(&owner));
        let run = start(&mut run_sh(
            [&server],
            &["--wait", "forever", "--ttl", "8s"],
            "echo ready; exec sleep 600",
        ));
        cmd!(conn, "LOCK.RELEASE", "lock", &owner).no_err();
        run.expect("ready");
        cmd!(conn, "LOCK.BREAK", "lock").no_err();
        assert!(cmd!(conn, "LOCK.ACQUIRE", "lock", &owner, 600_000).token() > 0);
        let ended = run.end();
        ended.assert_code(118).assert_says("taken by ");
        assert!(!ended.err.contains(&owner), "{ended:?}");
        cmd!(conn, "LOCK.RELEASE", "lock", &owner).no_err();
    }
}

/// The reader has read enough: no error, no panic.
#[test]
fn a_closed_pipe_is_a_quiet_end() {
    let Some(server) = server() else { return };
    let mut conn = server.connect();
    let locks: Vec<Vec<String>> = (0..3000)
        .map(|n| ["LOCK.ACQUIRE", &format!("{n:0>100}"), "me", "600000"].map(str::to_owned).to_vec())
        .collect();
    conn.pipeline(&locks);
    for args in
        ["ls", "ls --json", "watch --interval 10ms", "watch --json --interval 10ms", "man run", "--help"]
    {
        let script = format!("{PROGRAM} {args} | head -c 100 >/dev/null; echo ${{PIPESTATUS[0]}}");
        let ended = end(Command::new("bash").env("LOCKFENCE_NODES", server.url()).args(["-c", &script]));
        assert_eq!((ended.out.as_str(), ended.err.as_str()), ("0\n", ""), "{args}");
    }
    // Nobody listens to errors either.
    let mut command = lockfence([&server]);
    let mut child =
        command.args(["ls", "--nonsense"]).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    drop(child.stderr.take());
    assert_eq!(child.wait().unwrap().code(), Some(125));
}

/// Users who may not read a lock see the others.
#[test]
fn what_the_user_may_not_read_is_left_out() {
    let Some(server) = server() else { return };
    let mut conn = server.connect();
    cmd!(conn, "ACL", "SETUSER", "viewer", "on", ">pw", "~job:*", "+scan", "+lock.info").ok();
    cmd!(conn, "ACL", "SETUSER", "blind", "on", ">pw", "~*", "+scan").ok();
    for name in ["job:1", "secret"] {
        cmd!(conn, "LOCK.ACQUIRE", name, "me", 600_000).no_err();
    }
    let as_user = |user: &str| format!("redis://{user}:pw@127.0.0.1:{}", server.port());
    let list = end(at([as_user("viewer")]).args(["ls", "--json"]));
    let names: Vec<Value> =
        list.json()["locks"].as_array().unwrap().iter().map(|lock| lock["name"].clone()).collect();
    assert_eq!(names, [json!("job:1")]);
    end(at([as_user("viewer")]).args(["info", "secret"])).assert_code(125).assert_says("NOPERM");
    end(at([as_user("blind")]).arg("ls")).assert_code(125).assert_says("ACL SETUSER");
}

/// A server that does not answer ends the question, not the user's patience.
#[test]
fn a_silent_server_is_not_waited_for_long() {
    let Some(server) = server() else { return };
    server.pause();
    let ended = end(lockfence([&server]).args(["ls", "--node-timeout", "300ms"]));
    server.resume();
    ended.assert_code(119).assert_says(&format!("127.0.0.1:{}", server.port()));
}

/// Silent servers are waited for once, and all together; what they may hide is not called free.
#[test]
fn silent_servers_are_waited_for_together() {
    const WITHIN: Duration = Duration::from_secs(4);
    let Some(servers) = three() else { return };
    for server in &servers {
        take(server, "me");
    }
    servers[0].kill9();
    servers[1].pause();
    let ask = |args: &[&str]| {
        let began = Instant::now();
        let ended = end(lockfence(&servers).args(args).args(["--node-timeout", "4s"]));
        let took = began.elapsed();
        assert!(took < WITHIN * 3 / 2, "{took:?}: {ended:?}");
        ended.assert_code(119);
        for server in &servers[..2] {
            ended.assert_says(&format!("127.0.0.1:{}", server.port()));
        }
        ended
    };
    let table = ask(&["ls"]);
    let row: Vec<&str> = cells(table.out.lines().nth(1).unwrap());
    assert_eq!((row[0], row[1], row[7]), ("lock", "unknown", "1/3"));
    assert_eq!(ask(&["info", "lock", "--json"]).json()["state"], "unknown");
    servers[1].resume();
}
