//! The settings lockfence.*: how they are read, changed, kept and refused, and what they do.

use std::fs;
use std::path::Path;

use crate::common::{LONG_MS, SOON, waiter};
use lockfence_testkit::{Conn, Server, ServerKind, args, cmd, module, server_tests, wait_until};

/// Each number: its name, default, lowest and highest value.
const NUMBERS: [(&str, u64, u64, u64); 5] = [
    ("quarantine-ms", 0, 0, 86_400_000),
    ("idle-ttl-ms", 60_000, 1, 31_536_000_000),
    ("max-ttl-ms", 31_536_000_000, 1, 31_536_000_000),
    ("max-waiters", 2_000, 0, 1_000_000),
    ("max-waiters-per-lock", 2_000, 0, 1_000_000),
];

/// A setting's value as CONFIG GET has it.
#[track_caller]
fn setting(conn: &mut Conn, name: &str) -> String {
    let name = format!("lockfence.{name}");
    cmd!(conn, "CONFIG", "GET", name).field(&name).text()
}

#[track_caller]
fn assert_defaults(conn: &mut Conn) {
    for (name, default, ..) in NUMBERS {
        assert_eq!(setting(conn, name), default.to_string(), "{name}");
    }
    assert_eq!(setting(conn, "tokens"), "clock");
}

/// The lines of the example of a settings file, at the workspace's root.
fn example() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("redis.conf.example");
    fs::read_to_string(path).expect("redis.conf.example").lines().map(str::to_owned).collect()
}

server_tests! {
    /// CONFIG GET knows six settings, with their defaults, also by pattern and in RESP3.
    fn the_defaults_are_told(kind: ServerKind) {
        let server = Server::start(kind);
        for mut conn in [server.connect(), server.connect_resp3()] {
            assert_defaults(&mut conn);
            assert_eq!(cmd!(conn, "CONFIG", "GET", "lockfence.*").fields().len(), NUMBERS.len() + 1);
        }
    }

    /// The lowest and the highest value of each number can be set while the server runs; one below and one above are
    /// refused, and so is what is no number. The value stays.
    fn numbers_have_a_range(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        for (name, default, min, max) in NUMBERS {
            let full = format!("lockfence.{name}");
            for value in [min, max, default] {
                cmd!(conn, "CONFIG", "SET", full, value).ok();
                assert_eq!(setting(&mut conn, name), value.to_string());
            }
            let below = i128::from(min) - 1;
            let bad = [
                below.to_string(),
                (max + 1).to_string(),
                "-1".into(),
                "".into(),
                "x".into(),
                "1.5".into(),
                "1e3".into(),
                "10kb".into(),
                "99999999999999999999".into(),
            ];
            for value in bad {
                let reply = cmd!(conn, "CONFIG", "SET", full, value);
                assert!(reply.is_err(), "{full} {value:?}: {reply:?}");
                assert_eq!(setting(&mut conn, name), default.to_string(), "{full} {value:?}");
            }
        }
        cmd!(conn, "CONFIG", "SET", "lockfence.no-such", "1").assert_err_prefix("ERR Unknown option");
    }

    /// Several in one CONFIG SET: all or none.
    fn several_are_set_together_or_not_at_all(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "CONFIG", "SET", "lockfence.max-waiters", 7, "lockfence.max-ttl-ms", 5000).ok();
        assert_eq!(
            (setting(&mut conn, "max-waiters"), setting(&mut conn, "max-ttl-ms")),
            ("7".into(), "5000".into())
        );
        let reply = cmd!(conn, "CONFIG", "SET", "lockfence.max-waiters", 8, "lockfence.idle-ttl-ms", 0);
        assert!(reply.is_err(), "{reply:?}");
        assert_eq!(
            (setting(&mut conn, "max-waiters"), setting(&mut conn, "idle-ttl-ms")),
            ("7".into(), "60000".into())
        );
    }

    /// "Set at start only": lockfence.tokens cannot be changed while the server runs.
    fn tokens_cannot_be_changed_while_the_server_runs(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        for value in ["dense", "clock", "x"] {
            let reply = cmd!(conn, "CONFIG", "SET", "lockfence.tokens", value);
            assert!(reply.err().contains("immutable"), "{reply:?}");
        }
        assert_eq!(setting(&mut conn, "tokens"), "clock");
        assert!(cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token() > 1_000_000_000_000_000);
    }

    /// CONFIG REWRITE keeps what was set; the next start reads it.
    fn rewrite_keeps_what_was_set(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        for (name, value) in [("max-waiters", "77"), ("max-ttl-ms", "123456"), ("idle-ttl-ms", "4000")] {
            server.config_set(&format!("lockfence.{name}"), value);
        }
        cmd!(conn, "CONFIG", "REWRITE").ok();
        server.restart();
        let mut conn = server.connect();
        assert_eq!(setting(&mut conn, "max-waiters"), "77");
        assert_eq!(setting(&mut conn, "max-ttl-ms"), "123456");
        assert_eq!(setting(&mut conn, "idle-ttl-ms"), "4000");
        assert_eq!(setting(&mut conn, "max-waiters-per-lock"), "2000");
    }

    /// The same where arguments stand on the loadmodule line: they stay there, and a value that was set back to the
    /// module's own default is not lost to them.
    fn rewrite_keeps_arguments_and_what_overrides_them(kind: ServerKind) {
        let args = ["max-waiters", "5", "lockfence.idle-ttl-ms", "9000", "tokens", "dense"];
        let server = Server::builder(kind).module_args(args).start();
        let mut conn = server.connect();
        server.config_set("lockfence.max-waiters", "2000");
        cmd!(conn, "CONFIG", "REWRITE").ok();
        server.restart();
        let mut conn = server.connect();
        assert_eq!(setting(&mut conn, "max-waiters"), "2000");
        assert_eq!(setting(&mut conn, "idle-ttl-ms"), "9000");
        assert_eq!(setting(&mut conn, "tokens"), "dense");
    }

    /// Lines of the settings file are read at the start, and go before the arguments of the loadmodule line.
    fn the_settings_file_is_read(kind: ServerKind) {
        let server = Server::builder(kind)
            .module_args(["max-waiters", "5", "max-ttl-ms", "7000"])
            .config_line("lockfence.max-waiters 6")
            .config_line("lockfence.quarantine-ms 50")
            .config_line("lockfence.tokens dense")
            .start();
        let mut conn = server.connect();
        assert_eq!(setting(&mut conn, "max-waiters"), "6");
        assert_eq!(setting(&mut conn, "max-ttl-ms"), "7000");
        assert_eq!(setting(&mut conn, "quarantine-ms"), "50");
        assert_eq!(setting(&mut conn, "tokens"), "dense");
    }

    /// A bad line of the settings file: the server does not start.
    fn a_bad_line_of_the_settings_file_stops_the_start(kind: ServerKind) {
        for line in [
            "lockfence.max-waiters 1000001",
            "lockfence.idle-ttl-ms 0",
            "lockfence.max-ttl-ms x",
            "lockfence.tokens both",
            "lockfence.no-such 1",
        ] {
            let failure = Server::builder(kind).config_line(line).start_fails();
            let name = line.split(' ').next().expect("a name").trim_start_matches("lockfence.");
            let named = failure.log.contains(name);
            // Redis 7.0 does not name a setting that no module knows.
            let told = named || failure.log.contains("Module Configuration detected");
            assert!(told, "{line}: {}", failure.log);
        }
    }

    /// Bad arguments of loadmodule: one clear line in the log, and the server does not start.
    fn a_bad_argument_stops_the_load_with_a_clear_line(kind: ServerKind) {
        for (args, line) in [
            (vec!["no-such", "1"], r#"not loaded: unknown argument "no-such""#),
            (vec!["max-waiters"], r#"not loaded: argument "max-waiters" needs a value"#),
            (vec!["max-waiters", "5", "tokens"], r#"not loaded: argument "tokens" needs a value"#),
            (
                vec!["max-waiters", "1000001"],
                "not loaded: argument max-waiters must be a decimal integer from 0 to 1000000",
            ),
            (
                vec!["max-waiters", "-1"],
                "not loaded: argument max-waiters must be a decimal integer from 0 to 1000000",
            ),
            (
                vec!["idle-ttl-ms", "0"],
                "not loaded: argument idle-ttl-ms must be a decimal integer from 1 to 31536000000",
            ),
            (
                vec!["lockfence.max-ttl-ms", "1.5"],
                "not loaded: argument max-ttl-ms must be a decimal integer from 1 to 31536000000",
            ),
            (
                vec!["quarantine-ms", "1d"],
                "not loaded: argument quarantine-ms must be a decimal integer from 0 to 86400000",
            ),
            (vec!["tokens", "both"], r#"not loaded: argument tokens must be clock or dense, not "both""#),
        ] {
            let failure = Server::builder(kind).module_args(&args).start_fails();
            assert!(failure.log.contains(line), "{args:?}: {}", failure.log);
        }
    }

    /// MODULE LOADEX sets by CONFIG and by ARGS, while the server runs.
    fn loadex_takes_settings(kind: ServerKind) {
        let server = Server::builder(kind).without_module().start();
        let mut conn = server.connect();
        let path = module().to_string_lossy().into_owned();
        cmd!(
            conn,
            "MODULE",
            "LOADEX",
            path,
            "CONFIG",
            "lockfence.max-waiters",
            9,
            "CONFIG",
            "lockfence.tokens",
            "dense",
            "ARGS",
            "max-ttl-ms",
            8000
        )
        .ok();
        assert_eq!(setting(&mut conn, "max-waiters"), "9");
        assert_eq!(setting(&mut conn, "max-ttl-ms"), "8000");
        assert_eq!(cmd!(conn, "LOCK.ACQUIRE", "lock", "me", 8000).token(), 1);
    }

    /// A bad MODULE LOADEX or MODULE LOAD is refused: the server lives, has no commands of the module, and takes a good
    /// one afterwards. (Not tried: LOADEX CONFIG with a name that no module knows. The server finds that out after the
    /// load and cannot take back a module with data types: Valkey 9.1 ends, Redis 7.0 keeps the module.)
    fn a_bad_load_at_run_time_leaves_the_server_well(kind: ServerKind) {
        let server = Server::builder(kind).without_module().start();
        let mut conn = server.connect();
        let path = module().to_string_lossy().into_owned();
        for options in [
            args!["CONFIG", "lockfence.max-waiters", "1000001"],
            args!["CONFIG", "lockfence.tokens", "both"],
            args!["ARGS", "no-such", "1"],
            args!["ARGS", "max-waiters", "x"],
        ] {
            let reply = conn.cmd([args!["MODULE", "LOADEX", path], options.clone()].concat());
            assert!(reply.is_err(), "{options:?}: {reply:?}");
            server.assert_alive();
            cmd!(conn, "SET", "data", "x").ok();
            cmd!(conn, "LOCK.ACQUIRE", "lock", "me", 1000).assert_err_prefix("ERR unknown command");
        }
        assert!(cmd!(conn, "MODULE", "LOAD", path, "no-such").is_err());
        cmd!(conn, "MODULE", "LOAD", path, "max-waiters", 3).ok();
        assert_eq!(setting(&mut conn, "max-waiters"), "3");
        cmd!(conn, "LOCK.ACQUIRE", "lock", "me", 1000).token();
    }

    /// MODULE LOAD while the server runs, with data there already; a second load is refused and changes nothing.
    fn the_module_loads_at_run_time_once(kind: ServerKind) {
        let server = Server::builder(kind).without_module().start();
        let mut conn = server.connect();
        cmd!(conn, "SET", "data", "as it was").ok();
        let path = module().to_string_lossy().into_owned();
        cmd!(conn, "MODULE", "LOAD", path).ok();
        assert_defaults(&mut conn);
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        assert!(cmd!(conn, "MODULE", "LOAD", path).is_err());
        assert!(cmd!(conn, "MODULE", "LOAD", path, "max-waiters", 1).is_err());
        assert!(cmd!(conn, "MODULE", "LOADEX", path, "CONFIG", "lockfence.max-waiters", 1).is_err());
        assert_defaults(&mut conn);
        cmd!(conn, "FENCE.WRITE", "lock", token, "data", "x").ok();
        let mut waiting = waiter(&server, "lock", "w", LONG_MS, 1);
        cmd!(conn, "LOCK.RELEASE", "lock", "me").no_err();
        assert!(waiting.recv(SOON).token() > token);
    }

    /// lockfence.max-ttl-ms bounds the leases of ACQUIRE and EXTEND, at once; a lease granted before stays.
    fn max_ttl_bounds_leases(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "old", "me", LONG_MS).token();
        server.config_set("lockfence.max-ttl-ms", "5000");
        let line = "ERR ttl-ms must be a decimal integer from 1 to 5000";
        assert_eq!(cmd!(conn, "LOCK.ACQUIRE", "lock", "me", 5001).err(), line);
        assert_eq!(cmd!(conn, "LOCK.ACQUIRE", "lock", "me", 5001, "WAIT", 10).err(), line);
        assert_eq!(cmd!(conn, "EXISTS", "lock").int(), 0);
        cmd!(conn, "LOCK.ACQUIRE", "lock", "me", 5000).token();
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "me", 5001).err(), line);
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "me", 5000).int(), 1);
        assert!(cmd!(conn, "LOCK.INFO", "old").field("ttl-ms").int() > 5000);
        cmd!(conn, "FENCE.ADVANCE", "fence", 1, "PX", 100_000).no_err();
        server.config_set("lockfence.max-ttl-ms", "31536000000");
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "me", 31_536_000_000_u64).int(), 1);
    }

    /// lockfence.tokens dense "counts 1, 2, 3 … per server", and the log says what that gives up.
    fn dense_tokens_count_one_two_three(kind: ServerKind) {
        let server = Server::builder(kind).module_args(["tokens", "dense"]).start();
        let mut conn = server.connect();
        assert!(server.log().contains("lockfence.tokens is dense"), "{}", server.log_tail());
        for round in 1..=3 {
            assert_eq!(cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token(), round);
            assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "me").int(), 1);
        }
        cmd!(conn, "FENCE.WRITE", "lock", 3, "data", "x").ok();
        cmd!(conn, "FENCE.WRITE", "lock", 2, "data", "y")
            .assert_err_prefix("FENCED token 2 is stale: lock \"lock\" is at 3");
        assert_eq!(cmd!(conn, "DEL", "lock").int(), 1);
        assert_eq!(cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token(), 4, "also over a deletion");
        cmd!(conn, "DEL", "lock").no_err();
        assert_eq!(
            cmd!(conn, "LOCK.ACQUIRE", "other", "me", LONG_MS).token(),
            5,
            "a lock without a record: above all"
        );
    }

    /// lockfence.idle-ttl-ms: a free lock's record goes after that time; the next token is higher all the same.
    fn an_idle_record_goes_after_its_time(kind: ServerKind) {
        let server = Server::builder(kind).module_args(["idle-ttl-ms", "50"]).start();
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        let held = cmd!(conn, "LOCK.ACQUIRE", "held", "me", LONG_MS).token();
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "me").int(), 1);
        wait_until("the record to go", SOON, || cmd!(conn, "EXISTS", "lock").int(), |exists| *exists == 0);
        assert_eq!(cmd!(conn, "EXISTS", "held").int(), 1);
        cmd!(conn, "FENCE.CHECK", "lock", token).assert_err_prefix("FENCED \"lock\" has no record");
        assert!(cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token() > held);
    }

    /// redis.conf.example starts a server, with nothing but the module's path and the port put in, and what it sets is
    /// what it says: the defaults.
    fn the_example_starts_a_server_with_the_defaults(kind: ServerKind) {
        let mut builder = Server::builder(kind).without_module();
        let mut loads = 0;
        for line in example() {
            if line.starts_with("port ") {
                continue; // the server's own stands before
            }
            if line.starts_with("loadmodule ") {
                loads += 1;
                builder = builder.config_line(&format!("loadmodule {}", module().display()));
            } else {
                builder = builder.config_line(&line);
            }
        }
        assert_eq!(loads, 1);
        let server = builder.start();
        let mut conn = server.connect();
        assert_defaults(&mut conn);
        assert_eq!(
            cmd!(conn, "CONFIG", "GET", "maxmemory-policy").field("maxmemory-policy").text(),
            "noeviction"
        );
        cmd!(conn, "LOCK.ACQUIRE", "lock", "me", 1000).token();
    }

    /// Its lines that are commented out hold too: with them a server starts, and its accounts can do what they should and
    /// nobody else anything.
    fn the_examples_comments_hold(kind: ServerKind) {
        let mut builder = Server::builder(kind);
        let words = ["appendonly ", "appendfsync ", "min-replicas-max-lag ", "user "];
        for line in example() {
            let Some(line) = line.strip_prefix("# ") else { continue };
            if words.iter().any(|word| line.starts_with(word)) {
                builder = builder.config_line(line);
            }
        }
        let server = builder.start();
        let mut admin = server.connect_as("admin", "change-me-too");
        for (name, value) in [("appendonly", "yes"), ("appendfsync", "always")] {
            assert_eq!(cmd!(admin, "CONFIG", "GET", name).field(name).text(), value);
        }
        cmd!(server.connect(), "GET", "data:a").assert_err_prefix("NOAUTH ");
        let mut worker = server.connect_as("worker", "change-me");
        let token = cmd!(worker, "LOCK.ACQUIRE", "lock:a", "me", LONG_MS).token();
        cmd!(worker, "FENCE.WRITE", "lock:a", token, "data:a", "x").ok();
        cmd!(worker, "SET", "data:a", "past it").assert_err_prefix("NOPERM ");
        cmd!(worker, "LOCK.ACQUIRE", "else", "me", 1000).assert_err_prefix("NOPERM ");
    }
}

/// The example names every setting, says each default and range in its comment, and nothing that is no setting.
#[test]
fn the_example_tells_every_default_and_range() {
    let lines = example();
    for (name, default, min, max) in NUMBERS {
        let wanted = format!("lockfence.{name} {default}");
        let at =
            lines.iter().position(|line| *line == wanted).unwrap_or_else(|| panic!("no line {wanted:?}"));
        let comment: Vec<_> =
            lines[..at].iter().rev().take_while(|line| line.starts_with('#')).cloned().collect();
        let comment = comment.join("\n");
        for number in [format!("{min} to {max}"), format!("default {default}")] {
            assert!(comment.contains(&number), "{name}: {number:?} is not in its comment:\n{comment}");
        }
    }
    assert!(lines.contains(&"lockfence.tokens clock".to_owned()));
    let settings = lines.iter().filter(|line| line.starts_with("lockfence.")).count();
    assert_eq!(settings, NUMBERS.len() + 1);
}
