//! The rim: names are bytes, input of any kind ends no server, and what is internal stays internal.

use std::time::Duration;

use crate::common::{LONG_MS, SOON, info, issued, number, standing, stat_of, wait_queue, waiter};
use lockfence_core::planted::Bug;
use lockfence_testkit::{
    Conn, Received, Reply, Server, ServerKind, args, cmd, send, server_tests, wait_until,
};

/// Names that a text would not be.
fn odd_names() -> Vec<Vec<u8>> {
    vec![
        b"\0".to_vec(),
        b"a\0b".to_vec(),
        b"\r\n".to_vec(),
        b"x\r\n+OK\r\n".to_vec(),
        b"\xff\xfe".to_vec(),
        b"\xc3\xa9".to_vec(),
        b"e\xcc\x81".to_vec(),
        b"{}".to_vec(),
        b"a{b}c".to_vec(),
        b" ".to_vec(),
        b"\"'\\".to_vec(),
        b"%s%n%x".to_vec(),
        (0..=255).collect(),
        vec![b'k'; 64 * 1024],
        vec![0; 64 * 1024],
    ]
}

/// A small random number generator: the same numbers for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        // SplitMix64 (Steele, Lea, Flood 2014).
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(bound).unwrap()).unwrap()
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// Arguments that have hurt somebody, between bars.
const NASTY: &str = "|0|1|2|5|10|50|1000|60000|-1|-0|007|1e3|0.5| 100|+5|0x64|nan|inf|31536000000|31536000001|\
    9007199254740991|9007199254740992|9223372036854775807|-9223372036854775808|18446744073709551615|\
    99999999999999999999999999|WAIT|wait|SHARED|LIMIT|MINTOKEN|WITHINFO|FULL|COUNT|PX|EX|NX|XX|GET|KEEPTTL|SET|INCR|\
    DEL|GETEX|FLUSHALL|EVAL|MULTI|EXEC|BLPOP|LOCK.ACQUIRE|FENCE.CALL|LF.LOG|a|b|c|lock|lock2|fence|string|\
    list|%s%n|{|}|{}|*|$|\r\n|\0|é";

fn nasty_values(token: u64) -> Vec<Vec<u8>> {
    let mut values: Vec<Vec<u8>> = NASTY.split('|').map(|text| text.as_bytes().to_vec()).collect();
    values.extend([b"\xff\xfe".to_vec(), vec![b'x'; 512], vec![b'x'; 513], vec![0; 70_000], vec![b'9'; 400]]);
    values
        .extend([token, token + 1, token - 1, token + 9_000_000].map(|token| token.to_string().into_bytes()));
    values
}

const COMMANDS: [&str; 11] = [
    "LOCK.ACQUIRE",
    "LOCK.RELEASE",
    "LOCK.EXTEND",
    "LOCK.INFO",
    "LOCK.BREAK",
    "FENCE.WRITE",
    "FENCE.CALL",
    "FENCE.CHECK",
    "FENCE.ADVANCE",
    "LF.LOG",
    "LF.HANDOVER",
];

fn random_command(random: &mut Random, values: &[Vec<u8>]) -> Vec<Vec<u8>> {
    const KEYS: [&[u8]; 7] = [b"lock", b"lock2", b"fence", b"string", b"list", b"none", b"\0\xff"];
    let command = *random.pick(&COMMANDS);
    // Most are well formed, so that what lies behind the parser is reached; the others are not, in any way.
    if random.below(10) < 6 {
        return well_formed(random, command, values);
    }
    let mut words = args![command, random.pick(&KEYS)];
    for _ in 0..random.below(6) {
        words.push(random.pick(values).clone());
    }
    if random.below(20) == 0 {
        words.truncate(1 + random.below(words.len()));
    }
    words
}

fn well_formed(random: &mut Random, command: &str, values: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let lock = *random.pick(&["lock", "lock2"]);
    let owner = *random.pick(&["a", "b", "c"]);
    let ttl_ms = *random.pick(&[1, 5, 50, 200]);
    let token = values.last().cloned().unwrap_or_default();
    let mut words = match command {
        "LOCK.ACQUIRE" => args![command, lock, owner, ttl_ms],
        "LOCK.EXTEND" => args![command, lock, owner, ttl_ms],
        "LOCK.RELEASE" => args![command, lock, owner],
        "FENCE.WRITE" => args![command, "fence", token, "string", random.pick(values)],
        "FENCE.CALL" => {
            args![command, "fence", token, random.pick(&["SET", "APPEND", "GET", "RPUSH"]), "data", "x"]
        }
        "FENCE.CHECK" => args![command, *random.pick(&["fence", lock]), random.pick(values)],
        "FENCE.ADVANCE" => args![command, "fence", token],
        _ => args![command, lock],
    };
    if command == "LOCK.ACQUIRE" {
        match random.below(6) {
            0 => words.extend(args!["WAIT", *random.pick(&[0, 1, 3, 1000])]),
            1 => words.extend(args!["WAIT", 1, "WITHINFO"]),
            2 => words.extend(args!["WITHINFO", "MINTOKEN", random.pick(values)]),
            _ => {}
        }
    } else if command == "LOCK.INFO" && random.below(2) == 0 {
        words.extend(args!["FULL", "COUNT", random.below(3)]);
    }
    words
}

/// What must hold between any two commands.
fn assert_consistent(conn: &mut Conn, highest: &mut [u64; 2]) {
    for (lock, highest) in ["lock", "lock2"].into_iter().zip(highest) {
        let reply = cmd!(conn, "LOCK.INFO", lock, "FULL", "COUNT", 0);
        if reply.is_nil() || reply.is_err() {
            continue; // deleted or overwritten by FENCE.CALL or FENCE.WRITE
        }
        let holders = reply.field("holder-list").items();
        let counter = reply.field("counter").token();
        assert!(holders.len() <= 1, "{reply:?}");
        assert!(counter >= *highest, "{lock} went back from {highest} to {counter}");
        *highest = counter;
        let waiters = reply.field("waiter-list").items().len();
        assert_eq!(reply.field("waiters").int(), i64::try_from(waiters).unwrap());
        assert!(waiters == 0 || reply.field("ttl-ms").int() > 0 || holders.is_empty(), "{reply:?}");
    }
}

server_tests! {
    /// H3: locks of any name are apart, held, waited for and released like any other.
    fn any_bytes_name_a_lock(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let mut names = odd_names();
        names.push(Vec::new());
        for name in &names {
            cmd!(conn, "LOCK.ACQUIRE", name, "a", LONG_MS).token();
        }
        assert_eq!(cmd!(conn, "DBSIZE").int(), i64::try_from(names.len()).unwrap(), "each is a lock of its own");
        for name in &names {
            cmd!(conn, "LOCK.ACQUIRE", name, "b", LONG_MS, "WITHINFO").field("granted").int();
            let mut next = server.connect();
            send!(next, "LOCK.ACQUIRE", name, "b", LONG_MS, "WAIT", 0);
            server.wait_blocked_clients(1);
            assert_eq!(number(&mut conn, name, "waiters"), 1);
            assert_eq!(cmd!(conn, "LOCK.RELEASE", name, "a").int(), 1);
            let token = next.recv(SOON).token();
            cmd!(conn, "FENCE.CHECK", name, token).token();
            cmd!(conn, "FENCE.CHECK", name, 1).assert_err_prefix("FENCED ");
        }
    }

    /// H3: owners of 1 to 512 bytes, of any bytes, compared as a whole: NFC is not NFD.
    fn any_bytes_name_an_owner(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let mut owners: Vec<Vec<u8>> = odd_names().into_iter().filter(|name| name.len() <= 512).collect();
        owners.extend([vec![b'o'; 512], vec![b'o'; 511], vec![0; 512], vec![0; 1], vec![0; 2]]);
        owners.dedup();
        for owner in &owners {
            let token = cmd!(conn, "LOCK.ACQUIRE", "lock", owner, LONG_MS).token();
            assert_eq!(info(&mut conn, "lock").field("owner").bytes(), owner);
            for other in owners.iter().filter(|other| *other != owner) {
                assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", other).int(), 0);
                assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", other, 10).int(), 0);
            }
            let refused = cmd!(conn, "LOCK.ACQUIRE", "lock", "x", 10, "WITHINFO");
            assert_eq!(refused.field("owner").bytes(), owner);
            assert_eq!(cmd!(conn, "LOCK.ACQUIRE", "lock", owner, 10).token(), token);
            assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", owner).int(), 1);
        }
        for length in 1..=512 {
            let owner: Vec<u8> = (0..length).map(|n| u8::try_from(n % 256).unwrap()).collect();
            cmd!(conn, "LOCK.ACQUIRE", "lock", owner, LONG_MS).token();
            assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", owner).int(), 1, "{length} bytes");
        }
    }

    /// H3: all of it is there after a restart from the AOF and from a snapshot.
    fn any_bytes_survive_a_restart(kind: ServerKind) {
        for aof in ["yes", "no"] {
            let server = Server::builder(kind).arg("appendonly", aof).start();
            let mut conn = server.connect();
            for name in odd_names() {
                let owner = &name[..name.len().min(512)];
                cmd!(conn, "LOCK.ACQUIRE", name, owner, LONG_MS).token();
            }
            let before = server.digest();
            if aof == "yes" {
                server.restart();
            } else {
                server.shutdown_saving();
                server.restart();
            }
            assert_eq!(server.digest(), before);
            let mut conn = server.connect();
            for name in odd_names() {
                assert_eq!(info(&mut conn, &name).field("owner").bytes(), &name[..name.len().min(512)]);
            }
        }
    }

    /// "Names in errors are escaped and cut at 64 bytes": one line, printable, whatever the name.
    fn names_in_errors_are_escaped_and_cut(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        for name in odd_names() {
            let token = cmd!(conn, "LOCK.ACQUIRE", name, "a", LONG_MS).token();
            for reply in [
                cmd!(conn, "FENCE.CHECK", name, token - 1),
                cmd!(conn, "FENCE.CHECK", name, token + 1),
                cmd!(conn, "FENCE.CHECK", [&name[..], b"?"].concat(), 1),
                cmd!(conn, "LOCK.ACQUIRE", "other", "a", 10, name),
            ] {
                let line = reply.err();
                assert!(line.bytes().all(|byte| (0x20..=0x7e).contains(&byte)), "{line:?}");
                assert!(line.len() < 64 * 4 + 150, "{} bytes", line.len());
                assert!(conn.last_raw().ends_with(b"\r\n"));
            }
            assert_eq!(cmd!(conn, "PING"), Reply::Simple("PONG".into()), "replies and requests still match");
        }
        cmd!(conn, "LOCK.ACQUIRE", "a\0\r\n\"\\\u{7f}", "a", 10).token();
        let reply = cmd!(conn, "FENCE.CHECK", "a\0\r\n\"\\\u{7f}", 1);
        assert!(reply.assert_err_prefix("FENCED ").contains(r#"lock "a\x00\r\n\"\\\x7f" is at"#), "{reply:?}");
        let long = vec![b'x'; 65];
        cmd!(conn, "LOCK.ACQUIRE", long, "a", 10).token();
        let reply = cmd!(conn, "FENCE.CHECK", long, 1);
        assert!(reply.err().contains(&format!("\"{}\"...", "x".repeat(64))), "{reply:?}");
        let exact = vec![b'y'; 64];
        cmd!(conn, "LOCK.ACQUIRE", exact, "a", 10).token();
        let reply = cmd!(conn, "FENCE.CHECK", exact, 1);
        assert!(reply.err().contains(&format!("lock \"{}\" is at", "y".repeat(64))), "{reply:?}");
    }

    /// A panic inside a command is an error reply and a line in the log; the server goes on, locks and queues too.
    fn a_panic_ends_no_server(kind: ServerKind) {
        let server = Server::builder(kind).with_panics().start();
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        let mut b = waiter(&server, "lock", "b", LONG_MS, 1);
        let before = (standing(&mut conn, "lock"), issued(&server));
        for _ in 0..20 {
            cmd!(conn, "LOCKFENCE.PANIC", "x").assert_err_prefix("ERR internal error");
        }
        let replies = conn.pipeline(&[
            args!["MULTI"], args!["SET", "before", 1], args!["LOCKFENCE.PANIC", "x"], args!["SET", "after", 1], args!["EXEC"],
        ]);
        replies[4].items()[1].assert_err_prefix("ERR internal error");
        let script = "return redis.pcall('LOCKFENCE.PANIC', 'x')";
        assert!(cmd!(conn, "EVAL", script, 0).err().contains("internal error"));
        server.assert_alive();
        assert_eq!((standing(&mut conn, "lock"), issued(&server)), before);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "a").int(), 1);
        b.recv(SOON).token();
        assert!(server.log().contains("internal error, please report it: on purpose"), "{}", server.log_tail());
    }

    /// A panic while a record is being changed ends the process, wherever that is: a torn lock is worse than a restart.
    fn a_panic_half_way_through_a_change_ends_the_server(kind: ServerKind) {
        let number = (Bug::PanicHalfWay as u32).to_string();
        let planted = || Server::builder(kind).with_panics().env("LOCKFENCE_PLANTED", number.clone()).may_die().start();
        let sound = Server::start(kind);
        let mut there = sound.connect();
        there.cmd(["LOCK.ACQUIRE", "lock", "me", "600000"]).token();
        let dump = cmd!(there, "DUMP", "lock").bytes().to_vec();
        let [command, effect, arrival] = [planted(), planted(), planted()];
        let gone = |server: &Server| wait_until("the end", SOON, || server.is_alive(), |alive| !alive);
        command.connect().send(args!["LOCK.ACQUIRE", "lock", "me", LONG_MS]);
        gone(&command);
        effect.replicate_from(&sound);
        effect.wait_in_sync(&sound);
        cmd!(there, "LOCK.ACQUIRE", "other", "me", LONG_MS).token();
        gone(&effect);
        let mut conn = arrival.connect();
        cmd!(conn, "RESTORE", "lock", 0, dump).ok();
        conn.send(args!["RESTORE", "lock", 0, dump, "REPLACE"]);
        gone(&arrival);
    }

    /// An ordinary build has no command that panics.
    fn a_release_has_no_command_that_panics(kind: ServerKind) {
        let server = Server::start(kind);
        cmd!(server.connect(), "LOCKFENCE.PANIC", "x").assert_err_prefix("ERR unknown command");
    }

    /// Internal commands are refused from clients, transactions and scripts, whatever they carry; nothing changes.
    fn internal_commands_are_refused(kind: ServerKind) {
        let server = Server::builder(kind).arg("appendonly", "yes").start();
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        let _waiting = waiter(&server, "lock", "b", LONG_MS, 1);
        let genuine = effect_in_aof(&server).expect("an effect in the AOF");
        let before = (standing(&mut conn, "lock"), issued(&server), server.digest(), cmd!(conn, "DBSIZE").int());
        let commands = [
            args!["LF.LOG", "lock", genuine],
            args!["LF.LOG", "forged", genuine],
            args!["LF.LOG", "lock", ""],
            args!["LF.LOG", "lock", [0xff; 300]],
            args!["LF.HANDOVER", "lock"],
            args!["LF.HANDOVER", "lock", "a", token],
            args!["LF.HANDOVER", "none", "a", token],
        ];
        for words in &commands {
            conn.cmd(words).assert_err_prefix("ERR LF.");
            let in_transaction = conn.pipeline(&[args!["MULTI"], words.clone(), args!["EXEC"]]);
            in_transaction[2].items()[0].assert_err_prefix("ERR LF.");
            let script = "return redis.pcall(unpack(ARGV))";
            let mut call = args!["EVAL", script, 0];
            call.extend(words.iter().cloned());
            assert!(conn.cmd(call).err().contains("LF."));
            let mut call = args!["FENCE.CALL", "lock", token];
            call.extend(words.iter().cloned());
            assert!(conn.cmd(call).is_err());
        }
        assert_eq!((standing(&mut conn, "lock"), issued(&server), server.digest(), cmd!(conn, "DBSIZE").int()), before);
    }

    /// I8: MODULE UNLOAD is refused, with and without an ACL rule that names a command; the server goes on.
    fn the_module_cannot_be_unloaded(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "MODULE", "UNLOAD", "lockfence").assert_err_prefix("ERR ");
        cmd!(conn, "ACL", "SETUSER", "worker", "on", "nopass", "~*", "+lock.acquire").ok();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        let mut b = waiter(&server, "lock", "b", LONG_MS, 1);
        cmd!(conn, "MODULE", "UNLOAD", "lockfence").assert_err_prefix("ERR ");
        server.assert_alive();
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "a").int(), 1);
        b.recv(SOON).token();
    }

    /// Loading it a second time is refused.
    fn the_module_is_loaded_once(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        cmd!(conn, "MODULE", "LOAD", lockfence_testkit::module().to_str().unwrap()).assert_err_prefix("ERR ");
        server.assert_alive();
        assert_eq!(info(&mut conn, "lock").field("owner").text(), "a");
    }

    /// 20,000 commands of random words: no crash, no wedge, no lock with two holders, no counter that goes back.
    fn random_commands_end_no_server(kind: ServerKind) {
        const COUNT: usize = 20_000;
        let seed = std::env::var("LOCKFENCE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
        println!("seed {seed} (LOCKFENCE_SEED)");
        let mut random = Random(seed);
        let server = Server::start(kind);
        let mut observer = server.connect();
        let mut conn = server.connect();
        let mut id = conn.id();
        cmd!(observer, "FENCE.ADVANCE", "fence", 5).int();
        let token = cmd!(observer, "LOCK.ACQUIRE", "lock", "a", 50).token();
        let values = nasty_values(token);
        let mut highest = [0; 2];
        let (mut errors, mut waits) = (0, 0);
        for round in 0..COUNT {
            if round % 500 == 0 {
                cmd!(observer, "DEL", "string", "list").int();
                cmd!(observer, "SET", "string", "x").ok();
                cmd!(observer, "RPUSH", "list", "x").int();
            }
            let words = random_command(&mut random, &values);
            let mut outcome = conn.try_cmd(&words, Duration::from_millis(20));
            if outcome == Received::Nothing {
                // It waits: end that from outside.
                waits += 1;
                cmd!(observer, "CLIENT", "UNBLOCK", id).int();
                outcome = conn.receive(Duration::from_secs(20));
            }
            match outcome {
                Received::Reply(reply) => errors += usize::from(reply.is_err()),
                Received::Closed(_) | Received::Nothing => {
                    server.assert_alive();
                    panic!("seed {seed}, round {round}: {outcome:?} to {:?}", words_shown(&words));
                }
            }
            if round % 50 == 0 {
                assert_consistent(&mut observer, &mut highest);
            }
            if round % 1000 == 0 {
                conn = server.connect();
                id = conn.id();
            }
        }
        println!("{COUNT} commands: {errors} refused, {waits} waited");
        assert!(errors < COUNT * 3 / 4, "too many were refused: the test reaches too little");
        assert!(waits > 0, "none waited");
        assert_eq!(stat_of(&server, "waiters"), 0);
        assert!(!server.log().contains("internal error"), "{}", server.log_tail());
        let mut b = server.connect();
        cmd!(observer, "LOCK.ACQUIRE", "after", "a", LONG_MS).token();
        send!(b, "LOCK.ACQUIRE", "after", "b", LONG_MS, "WAIT", 0);
        wait_queue(&mut observer, "after", 1);
        assert_eq!(cmd!(observer, "LOCK.RELEASE", "after", "a").int(), 1);
        b.recv(SOON).token();
        server.restart();
    }

    /// Requests cut off in the middle, and connections that go with commands unread, harm nobody.
    fn half_requests_harm_nobody(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        let whole = b"*6\r\n$12\r\nLOCK.ACQUIRE\r\n$4\r\nlock\r\n$1\r\nb\r\n$4\r\n5000\r\n$4\r\nWAIT\r\n$1\r\n0\r\n";
        for cut in (1..=whole.len()).step_by(3) {
            let mut client = server.connect();
            client.send_raw(&whole[..cut]);
            client.close();
        }
        let mut client = server.connect();
        client.send_raw(&whole.repeat(50));
        wait_queue(&mut conn, "lock", 1);
        client.close();
        wait_queue(&mut conn, "lock", 0);
        assert_eq!(info(&mut conn, "lock").field("owner").text(), "a");
    }
}

/// Redis 6.2 is too old: the module says so in one line, and does not load.
#[test]
fn a_server_that_is_too_old_is_told_so() {
    if !ServerKind::Redis62.present() {
        return;
    }
    let failure = Server::builder(ServerKind::Redis62).start_fails();
    let told: Vec<&str> = failure.log.lines().filter(|line| line.contains("<lockfence>")).collect();
    assert_eq!(told.len(), 1, "{failure}");
    assert!(told[0].contains("needs Redis 7.0 or Valkey 7.2 or later"), "{failure}");
    assert!(told[0].contains("6.2.14"), "{failure}");
    assert!(failure.why.contains("exited"), "no crash: {failure}");
}

fn words_shown(words: &[Vec<u8>]) -> Vec<String> {
    words.iter().map(|word| word[..word.len().min(80)].escape_ascii().to_string()).collect()
}

/// The argument of the first effect in the server's AOF.
fn effect_in_aof(server: &Server) -> Option<Vec<u8>> {
    let folder = server.dir().join("appendonlydir");
    wait_until(
        "an effect in the AOF",
        SOON,
        || {
            let files =
                std::fs::read_dir(&folder).ok()?.filter_map(|entry| std::fs::read(entry.ok()?.path()).ok());
            files.into_iter().find_map(|bytes| effect_in(&bytes))
        },
        Option::is_some,
    )
}

fn effect_in(aof: &[u8]) -> Option<Vec<u8>> {
    let head = b"LF.LOG\r\n$4\r\nlock\r\n$";
    let at = aof.windows(head.len()).position(|part| part == head)? + head.len();
    let rest = &aof[at..];
    let line = rest.iter().position(|byte| *byte == b'\r')?;
    let length: usize = std::str::from_utf8(&rest[..line]).ok()?.parse().ok()?;
    Some(rest.get(line + 2..line + 2 + length)?.to_vec())
}
