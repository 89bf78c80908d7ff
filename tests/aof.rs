//! What the append-only file keeps: every confirmed step, after a crash, a rewrite, a cut at any byte.

use crate::durable;

use std::fs;
use std::time::{Duration, Instant};

use durable::{
    ARRIVALS, PATIENCE, Seen, acquire, acquire_and_release, aof_tail_file, arrive_over, copy_dir, look,
    rewrite_aof, ttl_ms, wire, with_aof,
};
use lockfence_testkit::{Conn, Server, ServerKind, args, cmd, send, server_tests, wait_until};

const MINUTE_MS: u64 = 60_000;

/// Something that a client does and gets an answer to; what it returns is the highest token that was answered, or 0.
type Step = (&'static str, fn(&Server, &mut Conn) -> u64);

/// Every kind of change, one after the other on the same locks.
const STEPS: [Step; 17] = [
    ("a grant", |_, conn| acquire(conn, "lock", "a", MINUTE_MS)),
    ("a renewal", |_, conn| acquire(conn, "lock", "a", 3 * MINUTE_MS)),
    ("an extension", |_, conn| {
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "a", 10 * MINUTE_MS).int(), 1);
        0
    }),
    ("an extension that raises the token", |_, conn| {
        let token = look(conn, "lock").unwrap().counter + 1000;
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "a", MINUTE_MS, "MINTOKEN", token).int(), 1);
        assert_eq!(look(conn, "lock").unwrap().token, Some(token));
        token
    }),
    ("E1: a release that hands over", |server, conn| {
        let mut waiter = server.connect();
        send!(waiter, "LOCK.ACQUIRE", "lock", "b", MINUTE_MS, "WAIT", 0);
        server.wait_blocked_clients(1);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "a").int(), 1);
        waiter.recv(PATIENCE).token()
    }),
    ("E1: a lease's end that hands over", |server, conn| {
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "b", 50).int(), 1);
        let mut waiter = server.connect();
        send!(waiter, "LOCK.ACQUIRE", "lock", "c", MINUTE_MS, "WAIT", 0);
        waiter.recv(PATIENCE).token()
    }),
    ("a release", |_, conn| {
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "c").int(), 1);
        0
    }),
    ("a break", |_, conn| {
        acquire(conn, "lock", "d", MINUTE_MS);
        assert_eq!(cmd!(conn, "LOCK.BREAK", "lock").int(), 1);
        look(conn, "lock").unwrap().counter
    }),
    ("a break of some holders", |_, conn| {
        let mut shared = |owner| cmd!(conn, "LOCK.ACQUIRE", "some", owner, MINUTE_MS, "SHARED").token();
        let (first, _second) = (shared("e"), shared("f"));
        assert_eq!(cmd!(conn, "LOCK.BREAK", "some", "MAXTOKEN", first).int(), 1);
        look(conn, "some").unwrap().counter
    }),
    ("a fence", |_, conn| {
        cmd!(conn, "FENCE.ADVANCE", "fence", 10).no_err();
        0
    }),
    ("a fenced write that raises the fence", |_, conn| {
        cmd!(conn, "FENCE.WRITE", "fence", 20, "data", "twenty").ok();
        0
    }),
    ("a fenced call that raises the fence", |_, conn| {
        cmd!(conn, "FENCE.CALL", "fence", 30, "RPUSH", "list", "thirty").int();
        0
    }),
    ("a fenced call whose command fails: the fence has risen", |_, conn| {
        assert!(cmd!(conn, "FENCE.CALL", "fence", 40, "INCR", "list").is_err());
        assert_eq!(cmd!(conn, "FENCE.CHECK", "fence", 40).int(), 40);
        0
    }),
    ("a grant and a write in MULTI", |_, conn| {
        cmd!(conn, "MULTI").ok();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "e", MINUTE_MS);
        cmd!(conn, "SET", "data", "in MULTI");
        cmd!(conn, "EXEC").items()[0].token()
    }),
    ("a grant and a fenced write in a script", |_, conn| {
        let script = "local t = redis.call('LOCK.ACQUIRE', KEYS[1], 'f', '60000') \
             redis.call('FENCE.WRITE', KEYS[1], t, KEYS[2], 'in a script') return t";
        cmd!(conn, "EVAL", script, 2, "other", "data").token()
    }),
    ("a rename", |_, conn| {
        cmd!(conn, "RENAME", "other", "another").ok();
        0
    }),
    ("a delete", |_, conn| {
        cmd!(conn, "DEL", "another").int();
        0
    }),
];

#[derive(Debug, PartialEq)]
struct Picture {
    locks: Vec<Option<Seen>>,
    digest: String,
}

fn picture(server: &Server) -> Picture {
    let mut conn = server.connect();
    let locks = ["lock", "other", "another"].map(|key| look(&mut conn, key));
    Picture { locks: locks.into(), digest: server.digest() }
}

/// A command as it stands in the file.
fn resp(words: &[Vec<u8>]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend(format!("${}\r\n", word.len()).into_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// Held, free and over, a fence, data.
fn fill(conn: &mut Conn) -> u64 {
    acquire(conn, "held", "me", MINUTE_MS);
    acquire_and_release(conn, "free");
    acquire(conn, "over", "late", 1);
    wait_until("the lease to end", PATIENCE, || ttl_ms(conn, "over"), |ttl| *ttl == 0);
    cmd!(conn, "FENCE.ADVANCE", "fence", 77).no_err();
    cmd!(conn, "FENCE.ADVANCE", "passing", 78, "PX", 2 * MINUTE_MS).no_err();
    cmd!(conn, "SET", "data", "value").ok();
    cmd!(conn, "SELECT", 2).ok();
    let token = acquire(conn, "held", "me too", MINUTE_MS);
    cmd!(conn, "SELECT", 0).ok();
    token
}

#[track_caller]
fn crash_and_restart(server: &Server) {
    server.kill9();
    server.restart();
}

/// F4 and G6 over a rewrite with or without an RDB preamble, with and without effects after it.
#[track_caller]
fn rewritten(kind: ServerKind, preamble: &str) {
    let server = with_aof(kind).arg("aof-use-rdb-preamble", preamble).start();
    let mut conn = server.connect();
    let highest = fill(&mut conn);
    let looks = |conn: &mut Conn| ["held", "free", "over"].map(|key| look(conn, key).unwrap());
    for effects_after_the_rewrite in [false, true] {
        let (before, digest) = (looks(&mut conn), server.digest());
        rewrite_aof(&server);
        assert_eq!(server.digest(), digest);
        assert_eq!(looks(&mut conn), before);
        let (before, digest) = if effects_after_the_rewrite {
            assert_eq!(cmd!(conn, "LOCK.EXTEND", "held", "me", 2 * MINUTE_MS).int(), 1);
            acquire_and_release(&mut conn, "free");
            cmd!(conn, "FENCE.WRITE", "fence", 80, "data", "later").ok();
            (looks(&mut conn), server.digest())
        } else {
            (before, digest)
        };
        let ttl = ttl_ms(&mut conn, "held");
        let began = Instant::now();
        crash_and_restart(&server);
        conn = server.connect();
        let left = ttl_ms(&mut conn, "held");
        let passed = i64::try_from(began.elapsed().as_millis()).unwrap();
        assert_eq!(server.digest(), digest, "preamble {preamble}");
        assert_eq!(looks(&mut conn), before, "preamble {preamble}");
        assert!(left <= ttl && left >= ttl - passed - 5, "{ttl} ms before, {left} ms after {passed} ms");
        assert!((1..=2 * MINUTE_MS.cast_signed()).contains(&cmd!(conn, "PTTL", "passing").int()));
        cmd!(conn, "LOCK.ACQUIRE", "held", "another", 1000).nil();
    }
    let highest = looks(&mut conn).iter().fold(highest, |highest, seen| highest.max(seen.counter));
    for key in ["free", "over", "fresh"] {
        let token = acquire(&mut conn, key, "next", MINUTE_MS);
        assert!(token > highest, "preamble {preamble}, {key}");
    }
}

/// What the cut test compares: whether the fence has risen, both data keys, the lock.
type State = (bool, String, String, Seen);

fn state(conn: &mut Conn) -> State {
    let raised = cmd!(conn, "FENCE.CHECK", "fence", 10).is_err();
    if raised {
        assert_eq!(cmd!(conn, "FENCE.CHECK", "fence", 20).int(), 20);
    }
    let [data, more] = ["data", "more"].map(|key| cmd!(conn, "GET", key).text());
    (raised, data, more, look(conn, "lock").unwrap())
}

/// An AOF whose tail holds two transactions, of the server's making and of a client's.
struct Tail {
    full: Vec<u8>,
    /// Where each unit ends, and what is there then. The first is the state before the tail.
    borders: Vec<(usize, State)>,
    highest: u64,
}

impl Tail {
    fn write(server: &Server) -> Self {
        let mut conn = server.connect();
        acquire(&mut conn, "lock", "first", 60 * MINUTE_MS);
        cmd!(conn, "FENCE.ADVANCE", "fence", 10).no_err();
        cmd!(conn, "SET", "data", "old").ok();
        cmd!(conn, "SET", "more", "old").ok();
        let file = aof_tail_file(server.dir());
        let size = || usize::try_from(fs::metadata(&file).unwrap().len()).unwrap();
        let mut borders = vec![(size(), state(&mut conn))];
        cmd!(conn, "FENCE.WRITE", "fence", 20, "data", "new").ok();
        borders.push((size(), state(&mut conn)));
        cmd!(conn, "MULTI").ok();
        cmd!(conn, "LOCK.RELEASE", "lock", "first");
        cmd!(conn, "LOCK.ACQUIRE", "lock", "second", 60 * MINUTE_MS);
        cmd!(conn, "SET", "more", "new");
        let highest = cmd!(conn, "EXEC").items()[1].token();
        borders.push((size(), state(&mut conn)));
        server.kill9();
        let full = fs::read(&file).unwrap();
        assert_eq!(full.len(), borders[2].0);
        assert!(borders.is_sorted_by_key(|(at, _)| *at) && full.len() - borders[0].0 < 1000, "{borders:?}");
        Self { full, borders, highest }
    }

    fn state_at(&self, cut: usize) -> &State {
        &self.borders.iter().rfind(|(border, _)| *border <= cut).unwrap().1
    }

    /// Where commands begin and end in the tail.
    fn commands(&self) -> Vec<usize> {
        let mut at = self.borders[0].0;
        let mut ends = vec![at];
        while let Ok(Some((_, length))) = lockfence_testkit::parse(&self.full[at..]) {
            at += length;
            ends.push(at);
        }
        assert_eq!(at, self.full.len());
        ends
    }

    /// Whether Redis leaves a MULTI without its EXEC in the file it repairs (valkey-io/valkey#4342, mended in Valkey
    /// 9.1): the cut is inside of a command that follows a whole MULTI.
    fn repair_leaves_multi(&self, kind: ServerKind, cut: usize) -> bool {
        let commands = self.commands();
        let inside_of_a_command = !commands.contains(&cut);
        let after_multi = self.borders.iter().any(|(border, _)| {
            let multi_ends = commands.iter().find(|end| *end > border);
            let exec_ends = self.borders.iter().map(|(end, _)| end).find(|end| *end > border);
            multi_ends.zip(exec_ends).is_some_and(|(multi, exec)| *multi < cut && cut < *exec)
        });
        !kind.is_valkey() && inside_of_a_command && after_multi
    }
}

/// F3: cuts the first unit of the tail at every `stride`-th byte, the second at every fifth, and both at every border of
/// a command.
fn cut_everywhere(kind: ServerKind, stride: usize) {
    let server = with_aof(kind).start();
    let tail = Tail::write(&server);
    let (aof_dir, pristine) = (server.dir().join("appendonlydir"), server.dir().join("pristine"));
    copy_dir(&aof_dir, &pristine);
    let (start, commands) = (tail.borders[0].0, tail.commands());
    let mut left_multi = 0;
    for cut in start..=tail.full.len() {
        let stride = if cut <= tail.borders[1].0 { stride } else { 5 };
        if !(cut - start).is_multiple_of(stride) && !commands.contains(&cut) {
            continue;
        }
        fs::remove_dir_all(&aof_dir).unwrap();
        copy_dir(&pristine, &aof_dir);
        fs::write(aof_tail_file(server.dir()), &tail.full[..cut]).unwrap();
        server.restart();
        let mut conn = server.connect();
        assert_eq!(&state(&mut conn), tail.state_at(cut), "cut at {cut} of {:?}", tail.borders);
        let needs_rewrite = tail.repair_leaves_multi(kind, cut);
        if needs_rewrite {
            left_multi += 1;
            // What docs/OPERATIONS.md says to do when the log says "Truncating the AOF".
            rewrite_aof(&server);
        }
        // A grant after the repair is kept by the next start, and tokens go on rising.
        let granted = acquire(&mut conn, "another", "me", MINUTE_MS);
        assert!(granted > tail.highest, "cut at {cut}");
        cmd!(conn, "FENCE.WRITE", "fence", 30, "data", "after").ok();
        crash_and_restart(&server);
        let mut conn = server.connect();
        let seen = look(&mut conn, "another").unwrap_or_else(|| panic!("cut at {cut}: the grant is lost"));
        assert_eq!(seen.token, Some(granted), "cut at {cut}");
        assert_eq!(cmd!(conn, "GET", "data").text(), "after", "cut at {cut}");
        assert_eq!(look(&mut conn, "lock").unwrap(), tail.state_at(cut).3, "cut at {cut}");
        assert!(acquire(&mut conn, "third", "me", MINUTE_MS) > granted, "cut at {cut}");
        server.kill9();
    }
    assert_eq!(left_multi > 0, !kind.is_valkey());
}

server_tests! {
    /// G6 with `appendfsync always`: what a reply has confirmed is there after kill -9, for each kind of change and
    /// both ways of a grant (E1).
    fn every_confirmed_step_survives_kill_9(kind: ServerKind) {
        let server = with_aof(kind).start();
        let mut highest = 0;
        for (name, step) in STEPS {
            let mut conn = server.connect();
            highest = highest.max(step(&server, &mut conn));
            let (before, began) = (picture(&server), Instant::now());
            let left = |conn: &mut Conn| look(conn, "lock").map_or(0, |_| ttl_ms(conn, "lock"));
            let ttl = left(&mut conn);
            crash_and_restart(&server);
            assert_eq!(picture(&server), before, "after {name}");
            let mut conn = server.connect();
            let still = left(&mut conn);
            let passed = i64::try_from(began.elapsed().as_millis()).unwrap();
            assert!(still <= ttl && still >= ttl - passed - 5, "{name}: {ttl} ms before, {still} after {passed} ms");
            assert!(acquire_and_release(&mut conn, "fresh") > highest, "after {name}");
        }
    }

    /// The same without a crash between the steps, and without a look that could repair anything.
    fn all_steps_in_one_file_survive_kill_9(kind: ServerKind) {
        let server = with_aof(kind).start();
        let mut conn = server.connect();
        let highest = STEPS.iter().map(|(_, step)| step(&server, &mut conn)).max().unwrap();
        let before = picture(&server);
        crash_and_restart(&server);
        assert_eq!(picture(&server), before);
        assert!(acquire(&mut server.connect(), "fresh", "me", 1000) > highest);
    }

    /// G6: the AOF holds effects alone. Nothing in it decides again, or waits.
    fn the_file_holds_effects_not_commands(kind: ServerKind) {
        let server = with_aof(kind).start();
        let mut conn = server.connect();
        for (_, step) in STEPS {
            step(&server, &mut conn);
        }
        let text = fs::read(aof_tail_file(server.dir())).unwrap().to_ascii_uppercase();
        let holds = |word: &str| text.windows(word.len()).any(|window| window == word.as_bytes());
        assert!(holds("LF.LOG"));
        for word in ["LOCK.ACQUIRE", "LOCK.RELEASE", "LOCK.EXTEND", "LOCK.BREAK", "FENCE.", "HANDOVER", "EVAL"] {
            let word = if word == "FENCE." { "\r\nFENCE." } else { word };
            assert!(!holds(word), "{word} in {}", text.escape_ascii());
        }
    }

    /// A dropped idle record is dropped in the AOF, too.
    fn an_idle_drop_survives_kill_9(kind: ServerKind) {
        let server = with_aof(kind).arg("lockfence.idle-ttl-ms", 250).start();
        let mut conn = server.connect();
        let token = acquire(&mut conn, "idle", "me", 50);
        wait_until("the idle record to go", PATIENCE, || cmd!(conn, "EXISTS", "idle").int(), |there| *there == 0);
        server.kill9();
        // The start is not to drop it by itself.
        let settings = server.dir().join("redis.conf");
        let text = fs::read_to_string(&settings).unwrap().replace("\"250\"", "\"600000\"");
        assert!(text.contains("600000"));
        fs::write(&settings, text).unwrap();
        server.restart();
        let mut conn = server.connect();
        assert_eq!(cmd!(conn, "EXISTS", "idle").int(), 0);
        assert!(acquire(&mut conn, "idle", "me", 1000) > token);
    }

    /// F4: held, free and ended locks, fences with and without an end, over a rewrite with an RDB preamble.
    fn a_rewrite_with_preamble_keeps_everything(kind: ServerKind) {
        rewritten(kind, "yes");
    }

    /// F2, F4: and without one, where the locks are written as effects.
    fn a_rewrite_without_preamble_keeps_everything(kind: ServerKind) {
        rewritten(kind, "no");
    }

    /// A lease that was refused on arrival, because a newer lock stood there, does not come back with a restart.
    fn a_lease_refused_on_arrival_stays_away_after_kill_9(kind: ServerKind) {
        let server = with_aof(kind).start();
        let all = |conn: &mut Conn| {
            let mut seen = Vec::new();
            for db in [1, 0] {
                cmd!(conn, "SELECT", db).ok();
                seen.extend(["lock", "onward", "old"].map(|key| {
                    let kind = cmd!(conn, "TYPE", key).text();
                    (kind == wire::LOCK).then(|| look(conn, key)).flatten()
                }));
            }
            seen
        };
        for arrival in ARRIVALS {
            let mut conn = server.connect();
            let old = arrive_over(&mut conn, arrival);
            let (before, digest) = (all(&mut conn), server.digest());
            crash_and_restart(&server);
            let mut conn = server.connect();
            assert_eq!(all(&mut conn), before, "{}", arrival.0);
            assert_eq!(server.digest(), digest, "{}", arrival.0);
            if cmd!(conn, "EXISTS", "lock").int() == 1 {
                assert!(cmd!(conn, "FENCE.CHECK", "lock", old).is_err(), "{}", arrival.0);
            }
        }
    }

    /// F2: an AOF without a preamble has no aux data; with all locks deleted, tokens still rise.
    fn tokens_rise_where_aux_data_is_lost(kind: ServerKind) {
        for preamble in ["yes", "no"] {
            let server = with_aof(kind).arg("aof-use-rdb-preamble", preamble).start();
            let mut conn = server.connect();
            let mut highest = 0;
            for _ in 0..100 {
                highest = acquire_and_release(&mut conn, "lock");
            }
            cmd!(conn, "FLUSHALL").ok();
            rewrite_aof(&server);
            crash_and_restart(&server);
            let mut conn = server.connect();
            assert!(acquire(&mut conn, "lock", "A", 10) > highest, "preamble {preamble}");
            assert!(acquire(&mut conn, "other", "A", 10) > highest, "preamble {preamble}");
        }
    }

    /// E4: a lease whose end has passed when the AOF is replayed is over, not armed again.
    fn a_lease_that_ended_before_the_replay_is_over(kind: ServerKind) {
        let server = with_aof(kind).start();
        let mut conn = server.connect();
        let token = acquire(&mut conn, "short", "me", 300);
        acquire(&mut conn, "long", "me", MINUTE_MS);
        server.kill9();
        let ends = Instant::now() + Duration::from_millis(350);
        wait_until("the lease's end", PATIENCE, Instant::now, |now| *now > ends);
        server.restart();
        let mut conn = server.connect();
        assert_eq!(look(&mut conn, "short").unwrap().state, "free");
        assert_eq!(look(&mut conn, "long").unwrap().state, "held");
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "short", "me", 1000).int(), 0);
        assert!(acquire(&mut conn, "short", "you", 1000) > token);
    }

    /// F3: cut at any byte, each unit is whole or absent; what is granted after the repair is kept by the start after
    /// that; tokens rise through both. Every byte of a FENCE.WRITE on Redis 7.0, every fifth and all borders elsewhere.
    fn a_file_cut_at_any_byte_loads_whole_units(kind: ServerKind) {
        cut_everywhere(kind, if kind == ServerKind::Redis70 { 1 } else { 5 });
    }

    /// F3 on a server that leaves a MULTI behind (see [`Tail::repair_leaves_multi`]), without the rewrite that
    /// docs/OPERATIONS.md asks for: what was written after the repair may be lost at the next start, as of any data
    /// type. The token is not granted again, though one start follows the other at once: each raises the floor.
    fn tokens_rise_where_a_repaired_file_loses_what_follows(kind: ServerKind) {
        let server = with_aof(kind).start();
        let mut conn = server.connect();
        acquire_and_release(&mut conn, "lock");
        cmd!(conn, "SET", "data", "old").ok();
        server.kill9();
        let mut tail = fs::read(aof_tail_file(server.dir())).unwrap();
        tail.extend(resp(&args!["MULTI"]));
        let new = resp(&args!["SET", "data", "new"]);
        for inside in 1..new.len() {
            if inside % 9 != 1 {
                continue;
            }
            fs::write(aof_tail_file(server.dir()), [&tail, &new[..inside]].concat()).unwrap();
            server.restart();
            let mut conn = server.connect();
            assert_eq!(cmd!(conn, "GET", "data").text(), "old");
            let granted = acquire(&mut conn, "another", "me", MINUTE_MS).max(acquire_and_release(&mut conn, "lock"));
            crash_and_restart(&server);
            let mut conn = server.connect();
            assert_eq!(look(&mut conn, "another").is_some(), kind.is_valkey(), "the note on Redis does not hold");
            for key in ["another", "lock", "fresh"] {
                cmd!(conn, "LOCK.BREAK", key).no_err();
                assert!(acquire(&mut conn, key, "other", MINUTE_MS) > granted, "{inside} bytes, {key}");
            }
            server.kill9();
        }
    }

    /// G6, F4: effects come from the replication link and the AOF only. Nobody can write a lock's history by hand.
    fn a_client_cannot_forge_effects(kind: ServerKind) {
        let server = with_aof(kind).start();
        let mut conn = server.connect();
        let token = acquire(&mut conn, "lock", "me", MINUTE_MS);
        let digest = server.digest();
        let mut log = vec![1, 5]; // a snapshot
        log.extend(wire::Lock::held(token + 5, b"thief", token + 5, MINUTE_MS, MINUTE_MS).bytes());
        for key in ["lock", "fresh"] {
            cmd!(conn, "LF.LOG", key, &log).assert_err_prefix("ERR ");
            cmd!(conn, "LF.HANDOVER", key).assert_err_prefix("ERR ");
            cmd!(conn, "LF.HANDOVER", key, "me", token).assert_err_prefix("ERR ");
            let script = "return redis.call('LF.LOG', KEYS[1], ARGV[1])";
            assert!(cmd!(conn, "EVAL", script, 1, key, &log).is_err());
            cmd!(conn, "FENCE.CALL", "lock", token, "LF.LOG", key, &log).assert_err_prefix("ERR ");
            cmd!(conn, "MULTI").ok();
            cmd!(conn, "LF.LOG", key, &log);
            assert!(cmd!(conn, "EXEC").items()[0].is_err());
        }
        assert_eq!(server.digest(), digest);
        crash_and_restart(&server);
        assert_eq!(server.digest(), digest);
    }

    /// An effect that this version cannot read (written by a newer one) is named in the log, and nothing crashes.
    fn an_effect_of_a_newer_format_is_named_in_the_log(kind: ServerKind) {
        let server = with_aof(kind).start();
        let mut conn = server.connect();
        acquire(&mut conn, "lock", "me", MINUTE_MS);
        server.kill9();
        let tail = aof_tail_file(server.dir());
        let mut bytes = fs::read(&tail).unwrap();
        bytes.extend_from_slice(b"*3\r\n$6\r\nLF.LOG\r\n$4\r\nlock\r\n$2\r\n\x02\x09\r\n");
        fs::write(&tail, bytes).unwrap();
        let _ = server.try_restart();
        let log = server.log();
        assert!(log.contains("format version 2"), "{log}");
        assert!(!log.contains("crashed by signal"), "{log}");
    }
}
