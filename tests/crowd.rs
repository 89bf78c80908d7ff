//! Many holders of one lock: what is stored and sent of them, and that one of them costs no more for all the others.

use crate::durable;

use std::time::Instant;

use crate::common::{LONG_MS, SOON, info, number, stat_of, wait_queue};
use durable::{PATIENCE, rewrite_aof, save_in_background, wall_us, wire, with_aof};
use lockfence_testkit::{
    Conn, ReplicationStream, Reply, Server, ServerKind, args, cmd, server_tests, wait_until,
};

/// As many as make a crowd in the record.
const MANY: u64 = 300;
/// Bytes of an effect that names one holder (and of the floor, in the first one).
const ONE_CHANGE: usize = 120;
const EFFECT: &str = "LF.LOG";

/// Grants in lots; the tokens.
#[track_caller]
fn take_many(conn: &mut Conn, lock: &str, owners: std::ops::Range<u64>, mode: &str, ttl_ms: u64) -> Vec<u64> {
    let owners: Vec<u64> = owners.collect();
    let mut tokens = Vec::new();
    for lot in owners.chunks(1_000) {
        let commands: Vec<_> = lot
            .iter()
            .map(|n| {
                let mut words = args!["LOCK.ACQUIRE", lock, format!("holder {n}"), ttl_ms];
                words.extend(mode.split_whitespace().map(|word| word.as_bytes().to_vec()));
                words
            })
            .collect();
        tokens.extend(conn.pipeline(&commands).iter().map(Reply::token));
    }
    tokens
}

/// The holders as LOCK.INFO lists them, without times.
fn holders(conn: &mut Conn, lock: &str) -> Vec<(String, u64)> {
    let full = cmd!(conn, "LOCK.INFO", lock, "FULL", "COUNT", 0).no_err();
    let entry = |holder: &Reply| (holder.field("owner").text(), holder.field("token").token());
    full.field("holder-list").items().iter().map(entry).collect()
}

/// A shared lock and a semaphore with many holders; leases that were extended, released, raised, and that are over.
fn fill(conn: &mut Conn) {
    for (lock, mode) in [("shared", "SHARED"), ("limit", "LIMIT 1000000")] {
        take_many(conn, lock, 0..MANY, mode, LONG_MS);
        for n in (0..MANY).step_by(7) {
            assert_eq!(cmd!(conn, "LOCK.RELEASE", lock, format!("holder {n}")).int(), 1);
        }
        for n in (1..MANY).step_by(7) {
            assert_eq!(cmd!(conn, "LOCK.EXTEND", lock, format!("holder {n}"), 2 * LONG_MS).int(), 1);
        }
        let counter = number(conn, lock, "counter");
        assert_eq!(
            cmd!(conn, "LOCK.EXTEND", lock, "holder 2", LONG_MS, "MINTOKEN", counter + 1_000).int(),
            1
        );
        take_many(conn, lock, MANY..MANY + 5, mode, 1);
        take_many(conn, lock, MANY + 5..MANY + 50, mode, LONG_MS);
    }
    let of_each = |conn: &mut Conn| ["shared", "limit"].map(|lock| number(conn, lock, "holders"));
    let left = MANY.cast_signed() - MANY.div_ceil(7).cast_signed() + 45;
    wait_until("five leases to end", SOON, || of_each(conn), |holders| *holders == [left, left]);
}

/// After `again` everything is as it was, and goes on as it should.
#[track_caller]
fn assert_kept(server: &Server, again: impl FnOnce(&Server)) {
    let mut conn = server.connect();
    fill(&mut conn);
    let before = ["shared", "limit"].map(|lock| holders(&mut conn, lock));
    let counters = ["shared", "limit"].map(|lock| number(&mut conn, lock, "counter").unsigned_abs());
    let digest = server.digest();
    again(server);
    assert_eq!(server.digest(), digest);
    let mut conn = server.connect();
    assert_eq!(["shared", "limit"].map(|lock| holders(&mut conn, lock)), before);
    for (lock, counter) in ["shared", "limit"].into_iter().zip(counters) {
        let mode = if lock == "shared" { "SHARED" } else { "LIMIT 1000000" };
        let ask = |owner: &str| {
            let mut words = args!["LOCK.ACQUIRE", lock, owner, LONG_MS];
            words.extend(mode.split_whitespace().map(|word| word.as_bytes().to_vec()));
            words
        };
        cmd!(conn, "LOCK.ACQUIRE", lock, "another", LONG_MS).nil();
        let held = holders(&mut conn, lock);
        let (_, token) = held.iter().find(|(owner, _)| owner == "holder 1").unwrap();
        assert_eq!(conn.cmd(ask("holder 1")).token(), *token);
        assert!(conn.cmd(ask("fresh")).token() > counter);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", lock, "holder 3").int(), 1);
        assert_eq!(cmd!(conn, "LOCK.EXTEND", lock, format!("holder {MANY}"), LONG_MS).int(), 0, "revived");
    }
}

/// A record with so many holders, in the mode that the byte and the number say.
fn record(count: u64, mode: &[u8]) -> wire::Lock {
    let now = wall_us();
    let holder = |n: u64| wire::Holder {
        owner: format!("{n:x}").into_bytes(),
        token: now + n,
        mode: mode.to_vec(),
        since_us: now,
        ends_us: now + LONG_MS * 1000,
        length_ms: LONG_MS,
    };
    wire::Lock { holders: (0..count).map(holder).collect(), ..wire::Lock::free(now + count) }
}

server_tests! {
    /// A thousand holders under one LIMIT, and others behind them: each release serves exactly the next one.
    fn a_thousand_holders_with_waiters_behind_them(kind: ServerKind) {
        const WAITERS: u64 = 40;
        let (primary, replica) = (Server::start(kind), Server::start(kind));
        replica.replicate_from(&primary);
        let mut conn = primary.connect();
        let mut last = *take_many(&mut conn, "lock", 0..1_000, "LIMIT 1000", LONG_MS).last().unwrap();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "more", LONG_MS, "LIMIT", 1_000).nil();
        let mut waiting: Vec<Conn> = (0..WAITERS)
            .map(|n| {
                let mut waiter = primary.connect();
                waiter.send(args!["LOCK.ACQUIRE", "lock", format!("w{n}"), LONG_MS, "LIMIT", 1_000, "WAIT", 0]);
                wait_queue(&mut conn, "lock", n.cast_signed() + 1);
                waiter
            })
            .collect();
        for n in 0..WAITERS {
            assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", format!("holder {}", n * 23)).int(), 1);
            let token = waiting[usize::try_from(n).unwrap()].recv(SOON).token();
            assert!(token > last);
            last = token;
            let seen = info(&mut conn, "lock");
            assert_eq!(seen.field("holders").int(), 1_000);
            assert_eq!(seen.field("waiters").int(), (WAITERS - n - 1).cast_signed());
        }
        assert_eq!(stat_of(&primary, "handovers_total"), WAITERS);
        replica.wait_in_sync(&primary);
        assert_eq!(primary.digest(), replica.digest());
        assert_eq!(holders(&mut replica.connect(), "lock"), holders(&mut conn, "lock"));
        assert_eq!(cmd!(conn, "LOCK.BREAK", "lock", "MAXTOKEN", last - 1).int(), 999);
        replica.wait_in_sync(&primary);
        assert_eq!(primary.digest(), replica.digest());
        assert_eq!(holders(&mut replica.connect(), "lock"), holders(&mut conn, "lock"));
        assert_eq!(cmd!(conn, "LOCK.BREAK", "lock").int(), 1);
        cmd!(conn, "LOCK.ACQUIRE", "lock", "alone", LONG_MS).token();
        replica.wait_in_sync(&primary);
        assert_eq!(primary.digest(), replica.digest());
    }

    /// Replicas and the AOF are told of the holder that changed, not of all of them.
    fn an_effect_names_only_the_holder_that_changed(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        take_many(&mut conn, "lock", 0..2_000, "SHARED", LONG_MS);
        let mut stream = ReplicationStream::attach(&server);
        let counter = number(&mut conn, "lock", "counter");
        for command in [
            args!["LOCK.ACQUIRE", "lock", "one more", LONG_MS, "SHARED"],
            args!["LOCK.ACQUIRE", "lock", "one more", 2 * LONG_MS, "SHARED"],
            args!["LOCK.EXTEND", "lock", "holder 1000", LONG_MS],
            args!["LOCK.EXTEND", "lock", "holder 1000", LONG_MS, "MINTOKEN", counter + 1_000],
            args!["LOCK.RELEASE", "lock", "holder 700"],
            args!["LOCK.BREAK", "lock", "MAXTOKEN", counter],
            args!["LOCK.BREAK", "lock"],
        ] {
            assert!(conn.cmd(&command).int() > 0);
            let told = std::iter::from_fn(|| stream.next_command(PATIENCE))
                .find(|words| words[0] == EFFECT.as_bytes())
                .expect("an effect");
            let length: usize = told.iter().map(Vec::len).sum();
            assert!(length < ONE_CHANGE, "{length} bytes for {:?}", command[0].escape_ascii().to_string());
        }
    }

    /// G6: an RDB file, written in the foreground and in the background, and one that is read at once.
    fn snapshots_keep_every_holder(kind: ServerKind) {
        let server = Server::start(kind);
        assert_kept(&server, |server| cmd!(server.connect(), "DEBUG", "RELOAD").ok());
        cmd!(server.connect(), "FLUSHALL").ok();
        assert_kept(&server, |server| {
            save_in_background(server);
            server.kill9();
            server.restart();
        });
    }

    /// G6: the AOF as it is written, and rewritten with and without an RDB preamble.
    fn the_aof_keeps_every_holder(kind: ServerKind) {
        for preamble in [None, Some("yes"), Some("no")] {
            let server = with_aof(kind).arg("aof-use-rdb-preamble", preamble.unwrap_or("no")).start();
            assert_kept(&server, |server| {
                if preamble.is_some() {
                    rewrite_aof(server);
                }
                server.kill9();
                server.restart();
            });
        }
    }

    /// G6: a replica that comes later gets them all; promoted, it goes on with them.
    fn a_replica_that_comes_later_has_every_holder(kind: ServerKind) {
        let (primary, replica) = (Server::start(kind), Server::start(kind));
        let mut conn = primary.connect();
        fill(&mut conn);
        replica.replicate_from(&primary);
        replica.wait_in_sync(&primary);
        assert_eq!(primary.digest(), replica.digest());
        take_many(&mut conn, "shared", 1_000..1_100, "SHARED", LONG_MS);
        replica.wait_in_sync(&primary);
        assert_eq!(primary.digest(), replica.digest());
        let (held, counter) = (holders(&mut conn, "shared"), number(&mut conn, "shared", "counter"));
        primary.kill9();
        replica.promote();
        let mut conn = replica.connect();
        assert_eq!(holders(&mut conn, "shared"), held);
        for (owner, token) in &held {
            assert!(cmd!(conn, "FENCE.CHECK", "shared", token).int() == counter, "{owner}");
        }
        assert!(take_many(&mut conn, "shared", 2_000..2_001, "SHARED", LONG_MS)[0] > counter.unsigned_abs());
        cmd!(conn, "LOCK.ACQUIRE", "shared", "w", LONG_MS).nil();
    }

    /// DUMP and RESTORE, RENAME and MOVE carry all holders; over a lock that stands the older leases are dropped.
    fn a_record_that_moves_takes_its_holders_along(kind: ServerKind) {
        let (primary, replica) = (Server::start(kind), Server::start(kind));
        replica.replicate_from(&primary);
        let mut conn = primary.connect();
        fill(&mut conn);
        let held = holders(&mut conn, "limit");
        let payload = cmd!(conn, "DUMP", "limit").bytes().to_vec();
        cmd!(conn, "RESTORE", "there", 0, payload).ok();
        assert_eq!(holders(&mut conn, "there"), held);
        cmd!(conn, "RENAME", "there", "elsewhere").ok();
        assert_eq!(holders(&mut conn, "elsewhere"), held);
        assert_eq!(cmd!(conn, "MOVE", "elsewhere", 1).int(), 1);
        cmd!(conn, "SELECT", 1).ok();
        assert_eq!(holders(&mut conn, "elsewhere"), held);
        assert!(cmd!(conn, "LOCK.ACQUIRE", "elsewhere", "next", LONG_MS, "LIMIT", 1_000).token() > held.last().unwrap().1);
        cmd!(conn, "SELECT", 0).ok();
        // A lock that was granted later stands there.
        let newer = take_many(&mut conn, "standing", 0..100, "SHARED", LONG_MS)[99];
        cmd!(conn, "RESTORE", "standing", 0, payload, "REPLACE").ok();
        assert_eq!(holders(&mut conn, "standing"), []);
        assert_eq!(number(&mut conn, "standing", "counter").unsigned_abs(), newer);
        assert!(cmd!(conn, "LOCK.ACQUIRE", "standing", "next", LONG_MS).token() > newer);
        assert!(cmd!(conn, "COPY", "limit", "copy").is_err() || cmd!(conn, "EXISTS", "copy").int() == 0);
        replica.wait_in_sync(&primary);
        assert_eq!(primary.digest(), replica.digest());
    }

    /// A record that claims more holders than are in it, or holders that cannot be together, is refused whole, and costs
    /// nothing.
    fn crafted_holders_are_refused(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let two = |change: fn(&mut wire::Lock)| {
            let mut lock = record(2, &[1]);
            change(&mut lock);
            wire::lock_payload(&lock)
        };
        cmd!(conn, "RESTORE", "fine", 0, two(|_| {})).ok();
        let refused = [
            ("one token twice", two(|lock| lock.holders[1].token = lock.holders[0].token)),
            ("one owner twice", two(|lock| lock.holders[1].owner = lock.holders[0].owner.clone())),
            ("an exclusive one beside a shared one", two(|lock| lock.holders[1].mode = vec![0])),
            ("a LIMIT beside a shared one", two(|lock| lock.holders[1].mode = vec![2, 5])),
            ("LIMIT 0", two(|lock| lock.holders.iter_mut().for_each(|holder| holder.mode = vec![2, 0]))),
            // 1,000,001
            ("LIMIT 1000001", two(|lock| lock.holders.iter_mut().for_each(|holder| holder.mode = vec![2, 0xc1, 0x84, 0x3d]))),
            ("a token above the counter", two(|lock| lock.holders[1].token = lock.counter + 1)),
        ];
        for (what, payload) in refused {
            cmd!(conn, "RESTORE", "crafted", 0, payload).assert_err_prefix("ERR ");
            assert_eq!(cmd!(conn, "EXISTS", "crafted").int(), 0, "{what}");
        }
        let peak = || server.info("memory")["used_memory_peak"].parse::<u64>().unwrap();
        let (used_before, peak_before) = (server.used_memory(), peak());
        for count in [3, 1_000_001, u64::from(u32::MAX), u64::from(u32::MAX) + 1, u64::MAX] {
            let mut bytes = vec![1];
            let lock = record(2, &[1]);
            [lock.counter, 1, lock.free_since_us, count].iter().for_each(|part| wire::number(&mut bytes, *part));
            bytes.extend(&lock.bytes()[bytes.len() - wire_length(count) + 1..]);
            let payload = wire::payload(wire::type_id(wire::LOCK, 1), &bytes);
            cmd!(conn, "RESTORE", "crafted", 0, payload).assert_err_prefix("ERR ");
        }
        assert!(server.used_memory() < used_before + 1_000_000);
        assert!(peak() < peak_before.max(used_before) + 1_000_000);
        server.assert_alive();
    }

    /// Thousands of leases that end together: nobody pays for all of them at once. Those that are over do not count, and
    /// are taken out of the record bit by bit.
    fn leases_that_end_together_are_forgotten_bit_by_bit(kind: ServerKind) {
        const OVER: u64 = 20_000;
        let server = Server::start(kind);
        let mut conn = server.connect();
        take_many(&mut conn, "lock", 0..1, "LIMIT 3", LONG_MS);
        let mut stream = ReplicationStream::attach(&server);
        let began = Instant::now();
        take_many(&mut conn, "lock", 1..OVER, "LIMIT 1000000", 3_000);
        let filled = cmd!(conn, "MEMORY", "USAGE", "lock").int();
        wait_until("their end", SOON, || number(&mut conn, "lock", "holders"), |holders| *holders == 1);
        println!("{OVER} leases were over after {:?}", began.elapsed());
        drop(stream.lines_until_now(&server));
        assert_eq!(holders(&mut conn, "lock").len(), 1);
        take_many(&mut conn, "lock", OVER..OVER + 2, "LIMIT 3", LONG_MS);
        cmd!(conn, "LOCK.ACQUIRE", "lock", "more", LONG_MS, "LIMIT", 3).nil();
        for _ in 0..2 {
            let effect = stream.next_command(PATIENCE).expect("an effect");
            assert!(effect[2].len() < 5_000, "{} bytes at once", effect[2].len());
        }
        // Each grant takes some out: the record shrinks while the lock is used.
        for round in 0..300 {
            assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", format!("holder {}", OVER + round)).int(), 1);
            take_many(&mut conn, "lock", OVER + round + 2..OVER + round + 3, "LIMIT 3", LONG_MS);
        }
        let left = cmd!(conn, "MEMORY", "USAGE", "lock").int();
        assert!(left < 2_000, "{left} of {filled} bytes are left");
        assert_eq!(holders(&mut conn, "lock").len(), 3);
    }

    /// MEMORY USAGE is about what a lock with many holders takes, and all of it comes back; UNLINK frees it in the
    /// background.
    fn memory_grows_with_the_holders_and_comes_back(kind: ServerKind) {
        const HOLDERS: u64 = 20_000;
        let server = Server::start(kind);
        let mut conn = server.connect();
        take_many(&mut conn, "warm up", 0..100, "SHARED", LONG_MS);
        let before = server.used_memory();
        take_many(&mut conn, "lock", 0..HOLDERS, "SHARED", LONG_MS);
        let used = server.used_memory() - before;
        let said = cmd!(conn, "MEMORY", "USAGE", "lock").int().unsigned_abs();
        assert!((used / 2..used * 2).contains(&said), "{said} bytes are said to be used, {used} are");
        println!("{} bytes a holder", used / HOLDERS);
        assert!(used / HOLDERS < 400);
        for lot in (0..HOLDERS).collect::<Vec<_>>().chunks(1_000) {
            let releases: Vec<_> =
                lot.iter().map(|n| args!["LOCK.RELEASE", "lock", format!("holder {n}")]).collect();
            assert!(conn.pipeline(&releases).iter().all(|reply| reply.int() == 1));
        }
        let back = |used: &u64| *used < before + 200_000;
        wait_until("the memory of released holders", SOON, || server.used_memory(), back);
        assert!(cmd!(conn, "MEMORY", "USAGE", "lock").int() < 300);
        take_many(&mut conn, "lock", 0..HOLDERS, "SHARED", LONG_MS);
        let freed = || server.info("memory")["lazyfreed_objects"].parse::<u64>().unwrap();
        let freed_before = freed();
        assert_eq!(cmd!(conn, "UNLINK", "lock").int(), 1);
        wait_until("the lock freed in the background", SOON, freed, |freed| *freed > freed_before);
        wait_until("the memory of an unlinked lock", SOON, || server.used_memory(), back);
    }

    /// A semaphore with a hundred thousand holders: it is full, and each command does what it should, in no time.
    fn a_hundred_thousand_holders(kind: ServerKind) {
        const FULL: u64 = 100_000;
        let server = Server::start(kind);
        let mut conn = server.connect();
        let mut mode = vec![2];
        wire::number(&mut mode, FULL);
        let record = record(FULL, &mode);
        let counter = record.counter;
        cmd!(conn, "RESTORE", "lock", 0, wire::lock_payload(&record)).ok();
        assert_eq!(number(&mut conn, "lock", "holders").unsigned_abs(), FULL);
        let ask = args!["LOCK.ACQUIRE", "lock", "one more", LONG_MS, "LIMIT", FULL];
        let began = Instant::now();
        for n in 0..200_u64 {
            conn.cmd(&ask).nil();
            assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", format!("{:x}", n * 499), LONG_MS).int(), 1);
            assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", format!("{:x}", n * 499)).int(), 1);
            assert_eq!(number(&mut conn, "lock", "holders").unsigned_abs(), FULL - 1);
            assert!(conn.cmd(&ask).token() > counter + n);
            assert_eq!(cmd!(conn, "FENCE.CHECK", "lock", record.holders[999].token).int(), number(&mut conn, "lock", "counter"));
            assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "one more").int(), 1);
            let back = args!["LOCK.ACQUIRE", "lock", format!("{:x}", n * 499), LONG_MS, "LIMIT", FULL];
            assert!(conn.cmd(back).token() > counter);
        }
        let each = began.elapsed() / (200 * 9);
        println!("{each:?} a command");
        assert!(each.as_micros() < 5_000, "{each:?} a command");
        assert_eq!(cmd!(conn, "LOCK.BREAK", "lock").int().unsigned_abs(), FULL);
    }
}

/// Bytes of a number as it is stored.
fn wire_length(number: u64) -> usize {
    let mut out = Vec::new();
    wire::number(&mut out, number);
    out.len()
}
