//! DUMP, RESTORE and MIGRATE: a record that comes from outside. Whatever it says, it is taken whole or refused whole.

use crate::durable;

use std::time::Duration;

use durable::{PATIENCE, acquire, acquire_and_release, high_and_floor, look, ttl_ms, wall_us, wire};
use lockfence_testkit::{Conn, Reply, Server, ServerKind, args, cmd, send, server_tests, wait_until};

const MINUTE_MS: u64 = 60_000;
const OWNER: &[u8] = b"the owner of the dumped lock";

/// A held lock's record with token = counter = now.
fn held() -> wire::Lock {
    let token = wall_us();
    wire::Lock::held(token, OWNER, token, MINUTE_MS, MINUTE_MS)
}

/// RESTORE of each payload under a name of its own; the replies.
fn restore_all(conn: &mut Conn, payloads: &[Vec<u8>]) -> Vec<Reply> {
    let mut replies = Vec::new();
    for (batch, chunk) in payloads.chunks(500).enumerate() {
        let commands: Vec<_> =
            (0..).zip(chunk).map(|(n, payload)| args!["RESTORE", name(batch, n), 0, payload]).collect();
        replies.extend(conn.pipeline(&commands));
    }
    replies
}

fn name(batch: usize, n: usize) -> String {
    format!("restored:{}", batch * 500 + n)
}

/// What a record that was taken may be: within all bounds, and of use.
#[track_caller]
fn assert_sane(conn: &mut Conn, key: &str) {
    let info = cmd!(conn, "LOCK.INFO", key).no_err();
    let number = |field: &str| info.field(field).int();
    assert!((1..=wire::TOKEN_MAX.cast_signed()).contains(&number("counter")), "{info:?}");
    assert!((0..=wire::TTL_MS_MAX.cast_signed()).contains(&number("ttl-ms")), "{info:?}");
    assert!(number("held-ms") >= 0 && number("grants") >= 0, "{info:?}");
    let held = info.field("state").text() == "held";
    assert_eq!(held, number("ttl-ms") > 0, "{info:?}");
    if held {
        assert!((1..=number("counter")).contains(&number("token")), "{info:?}");
    }
    let reply = cmd!(conn, "LOCK.ACQUIRE", key, "next", 1000);
    match &reply {
        Reply::Nil => assert!(held, "{info:?}"),
        Reply::Int(token) => assert!(*token > number("counter"), "{token} after {info:?}"),
        other => {
            other.assert_err_prefix("EXHAUSTED ");
        }
    }
}

/// Restores all, asserts that nothing crashed, nothing large was allocated and what was taken is sane.
#[track_caller]
fn withstand(server: &Server, payloads: &[Vec<u8>]) -> (usize, usize) {
    let mut conn = server.connect();
    cmd!(conn, "FLUSHALL").ok();
    cmd!(conn, "CONFIG", "RESETSTAT").ok();
    let before = server.used_memory();
    let replies = restore_all(&mut conn, payloads);
    let mut taken = 0;
    for (number, reply) in replies.iter().enumerate() {
        let key = format!("restored:{number}");
        if reply.is_err() {
            reply.assert_err_prefix("ERR ");
            continue;
        }
        taken += 1;
        if cmd!(conn, "TYPE", &key).text() == wire::LOCK {
            assert_sane(&mut conn, &key);
        }
    }
    assert_eq!(cmd!(conn, "DBSIZE").int().unsigned_abs(), taken as u64, "nothing is taken in half");
    let peak: u64 = server.info("memory")["used_memory_peak"].parse().unwrap();
    assert!(peak < before + 64_000_000, "{peak} bytes, {before} before");
    server.assert_alive();
    // Whatever was in them, other locks go on.
    let (_, floor) = high_and_floor(server);
    let token = acquire_and_release(&mut conn, "untouched");
    assert!(token < floor.max(wall_us()) + 366 * 24 * 3_600_000_000, "{token}");
    cmd!(conn, "FLUSHALL").ok();
    (taken, replies.len() - taken)
}

/// Records with one thing wrong each.
fn wrong_locks() -> Vec<(&'static str, wire::Lock)> {
    let with = |change: fn(&mut wire::Lock)| {
        let mut lock = held();
        change(&mut lock);
        lock
    };
    vec![
        ("counter 0", with(|lock| lock.counter = 0)),
        ("counter 2^53", with(|lock| lock.counter = wire::TOKEN_MAX + 1)),
        ("counter -1", with(|lock| lock.counter = u64::MAX)),
        ("counter i64::MAX", with(|lock| lock.counter = i64::MAX as u64)),
        ("token 0", with(|lock| lock.holders[0].token = 0)),
        ("token above the counter", with(|lock| lock.holders[0].token = lock.counter + 1)),
        ("token -1", with(|lock| lock.holders[0].token = u64::MAX)),
        ("no owner", with(|lock| lock.holders[0].owner.clear())),
        ("owner of 513 bytes", with(|lock| lock.holders[0].owner = vec![b'o'; 513])),
        ("owner of 100,000 bytes", with(|lock| lock.holders[0].owner = vec![b'o'; 100_000])),
        ("lease of 0", with(|lock| lock.holders[0].length_ms = 0)),
        ("lease of more than a year", with(|lock| lock.holders[0].length_ms = wire::TTL_MS_MAX + 1)),
        ("lease of -1", with(|lock| lock.holders[0].length_ms = u64::MAX)),
        ("unknown mode", with(|lock| lock.holders[0].mode = vec![3])),
        ("limit of 0", with(|lock| lock.holders[0].mode = vec![2, 0])),
        ("limit of 2^35-1", with(|lock| lock.holders[0].mode = vec![2, 0xff, 0xff, 0xff, 0xff, 0x7f])),
        (
            "two exclusive holders",
            with(|lock| {
                let mut second = lock.holders[0].clone();
                second.owner = b"second".to_vec();
                lock.holders.push(second);
            }),
        ),
        (
            "an owner twice",
            with(|lock| {
                lock.holders[0].mode = vec![1];
                lock.holders.push(lock.holders[0].clone());
            }),
        ),
        ("version 0", with(|lock| lock.version = 0)),
        ("version 2", with(|lock| lock.version = 2)),
        ("version 255", with(|lock| lock.version = 255)),
    ]
}

/// Bytes that no encoder writes.
fn wrong_bytes() -> Vec<(&'static str, Vec<u8>)> {
    let overlong = [0xff_u8; 11];
    let after = |rest: &[u8]| {
        let mut bytes = vec![1, 5, 1];
        bytes.extend_from_slice(rest);
        bytes
    };
    vec![
        ("nothing", Vec::new()),
        ("zeros", vec![0; 40]),
        ("ones", vec![0xff; 40]),
        ("a counter without end", [&[1][..], &overlong].concat()),
        ("a counter of 70 bits", [&[1][..], &[0xff; 9], &[0x02]].concat()),
        ("2^32 holders and nothing else", after(&[1, 0xff, 0xff, 0xff, 0xff, 0x0f])),
        ("2^63 holders", after(&[1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f])),
        ("an owner of 2^40 bytes", after(&[1, 1, 0x80, 0x80, 0x80, 0x80, 0x80, 0x20])),
        (
            "an owner of 2^64-1 bytes",
            after(&[1, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]),
        ),
    ]
}

server_tests! {
    /// The encoder of these tests and the module write the same: what it gives is what DUMP gives.
    fn a_restored_record_is_the_one_that_was_dumped(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = wall_us();
        let lock = wire::Lock { grants: 7, ..wire::Lock::held(token, OWNER, token, 30_000, MINUTE_MS) };
        cmd!(conn, "RESTORE", "lock", 0, wire::lock_payload(&lock)).ok();
        let seen = look(&mut conn, "lock").unwrap();
        assert_eq!((seen.owner.as_deref(), seen.token, seen.counter, seen.grants), (Some(OWNER), Some(token), token, 7));
        let left = ttl_ms(&mut conn, "lock");
        assert!((1..=30_000).contains(&left), "{left} ms of 30,000");
        assert_eq!(acquire(&mut conn, "lock", std::str::from_utf8(OWNER).unwrap(), 1000), token);
        cmd!(conn, "RESTORE", "fence", 0, wire::payload(wire::type_id(wire::FENCE, 1), &wire::fence(77))).ok();
        assert_eq!(cmd!(conn, "FENCE.CHECK", "fence", 77).int(), 77);
        // And back: a dump says the same as the encoder, but for times.
        let dump = cmd!(conn, "DUMP", "fence");
        assert_eq!(wire::unseal(dump.bytes()), wire::unseal(&wire::payload(wire::type_id(wire::FENCE, 1), &wire::fence(77))));
        let dump = cmd!(conn, "DUMP", "lock");
        cmd!(conn, "DEL", "lock").int();
        cmd!(conn, "RESTORE", "lock", 0, dump.bytes()).ok();
        assert_eq!(look(&mut conn, "lock"), Some(seen));
    }

    /// F7: every truncation, of the record and of the whole payload.
    fn every_truncation_is_refused(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        acquire(&mut conn, "lock", "me", MINUTE_MS);
        let dump = cmd!(conn, "DUMP", "lock");
        let records = [held().bytes(), wire::Lock::free(wall_us()).bytes()];
        let ids = [wire::type_id(wire::LOCK, 1), wire::type_id(wire::FENCE, 1)];
        let mut payloads = Vec::new();
        for record in &records {
            payloads.extend((0..record.len()).map(|end| wire::payload(ids[0], &record[..end])));
        }
        payloads.extend((0..wire::fence(1 << 40).len()).map(|end| wire::payload(ids[1], &wire::fence(1 << 40)[..end])));
        for whole in [dump.bytes().to_vec(), wire::lock_payload(&held())] {
            let body = wire::unseal(&whole).to_vec();
            // Two bytes short, the RDB version (10, 0) that follows makes it whole again: the server counts no bytes.
            let ends = (0..body.len()).filter(|end| end + 2 != body.len());
            payloads.extend(ends.map(|end| wire::seal(body[..end].to_vec())));
        }
        let (taken, refused) = withstand(&server, &payloads);
        assert_eq!((taken, refused), (0, payloads.len()));
        // Something left over is refused, too.
        let longer: Vec<_> = records.iter().map(|record| wire::payload(ids[0], &[&record[..], &[0]].concat())).collect();
        assert_eq!(withstand(&server, &longer), (0, 2));
    }

    /// F7: every bit flipped and every byte replaced by extremes, in the record and in what the server has round it.
    fn every_changed_byte_is_withstood(kind: ServerKind) {
        let server = Server::start(kind);
        let whole = wire::lock_payload(&held());
        let fence = wire::payload(wire::type_id(wire::FENCE, 1), &wire::fence(1 << 40));
        let mut payloads = Vec::new();
        for whole in [whole, fence] {
            let body = wire::unseal(&whole).to_vec();
            // The first byte is the server's own: a value of another type is not ours to judge.
            for at in 1..body.len() {
                let mut values: Vec<u8> = (0..8).map(|bit| body[at] ^ (1 << bit)).collect();
                values.extend([0, 1, 0x7f, 0x80, 0xff, body[at].wrapping_add(1), body[at].wrapping_sub(1)]);
                for value in values {
                    let mut changed = body.clone();
                    changed[at] = value;
                    payloads.push(wire::seal(changed));
                }
            }
        }
        let (taken, refused) = withstand(&server, &payloads);
        assert!(taken > 0 && refused > 0, "{taken} taken, {refused} refused");
    }

    /// F7: random changes of several bytes, by a fixed seed.
    fn many_changed_bytes_are_withstood(kind: ServerKind) {
        let server = Server::start(kind);
        let record = held().bytes();
        let id = wire::type_id(wire::LOCK, 1);
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        let payloads: Vec<_> = (0..4_000).map(|_| {
            let mut changed = record.clone();
            for _ in 0..=random() % 4 {
                let at = usize::try_from(random()).unwrap() % changed.len();
                changed[at] = random().to_le_bytes()[3];
            }
            if random().is_multiple_of(4) {
                changed.truncate(usize::try_from(random()).unwrap() % changed.len());
            }
            wire::payload(id, &changed)
        }).collect();
        withstand(&server, &payloads);
    }

    /// F7: fields outside of their bounds, negative and huge ones; owners and counts that would allocate a lot.
    fn fields_out_of_bounds_are_refused(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let id = wire::type_id(wire::LOCK, 1);
        let crafted = wrong_locks().into_iter().map(|(what, lock)| (what, lock.bytes())).chain(wrong_bytes());
        for (what, bytes) in crafted {
            let reply = cmd!(conn, "RESTORE", "lock", 0, wire::payload(id, &bytes));
            assert!(reply.is_err(), "{what}: {reply:?}");
            assert_eq!(cmd!(conn, "EXISTS", "lock").int(), 0, "{what}");
        }
        for counter in [0, wire::TOKEN_MAX + 1, u64::MAX, i64::MAX as u64] {
            let payload = wire::payload(wire::type_id(wire::FENCE, 1), &wire::fence(counter));
            assert!(cmd!(conn, "RESTORE", "fence", 0, payload).is_err(), "{counter}");
        }
        let right_bytes_wrong_type = [
            wire::payload(wire::type_id(wire::FENCE, 1), &held().bytes()),
            wire::payload(wire::type_id(wire::LOCK, 1), &wire::fence(5)),
            wire::payload(wire::type_id(wire::LOCK, 2), &held().bytes()),
            wire::payload(wire::type_id(wire::LOCK, 1023), &held().bytes()),
            wire::payload(wire::type_id("lockfencf", 1), &held().bytes()),
        ];
        for payload in right_bytes_wrong_type {
            assert!(cmd!(conn, "RESTORE", "lock", 0, payload).is_err());
        }
        let peak: u64 = server.info("memory")["used_memory_peak"].parse().unwrap();
        assert!(peak < 64_000_000, "{peak} bytes");
        assert_eq!(cmd!(conn, "DBSIZE").int(), 0);
        acquire(&mut conn, "lock", "me", 1000);
    }

    /// Contract: a refused RESTORE leaves what stands, its lease, its waiters.
    fn a_refused_restore_changes_nothing(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = acquire(&mut conn, "lock", "me", MINUTE_MS);
        let mut waiter = server.connect();
        send!(waiter, "LOCK.ACQUIRE", "lock", "you", MINUTE_MS, "WAIT", 0);
        server.wait_blocked_clients(1);
        let digest = server.digest();
        let payload = wire::payload(wire::type_id(wire::LOCK, 1), &wrong_locks()[0].1.bytes());
        assert!(cmd!(conn, "RESTORE", "lock", 0, payload, "REPLACE").is_err());
        cmd!(conn, "RESTORE", "lock", 0, wire::lock_payload(&held())).assert_err_prefix("BUSYKEY ");
        assert_eq!(server.digest(), digest);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "me").int(), 1);
        assert!(waiter.recv(PATIENCE).token() > token);
    }

    /// Times that cannot be: a lease that ends at the end of time, or began there, has at most its granted length
    /// left; one that ended long ago is over.
    fn impossible_times_are_put_right(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let with = |since_us, ends_us| {
            let mut lock = held();
            (lock.holders[0].since_us, lock.holders[0].ends_us) = (since_us, ends_us);
            wire::lock_payload(&lock)
        };
        for (since, ends) in [(0, u64::MAX), (u64::MAX, u64::MAX), (u64::MAX, i64::MAX as u64), (0, wall_us() * 2)] {
            cmd!(conn, "RESTORE", "lock", 0, with(since, ends), "REPLACE").ok();
            let info = cmd!(conn, "LOCK.INFO", "lock");
            assert!((1..=MINUTE_MS.cast_signed()).contains(&info.field("ttl-ms").int()), "{info:?}");
            assert!(info.field("held-ms").int() >= 0, "{info:?}");
            cmd!(conn, "DEL", "lock").int();
        }
        for (since, ends) in [(0, 0), (u64::MAX, 1), (5, wall_us() - 1)] {
            cmd!(conn, "RESTORE", "lock", 0, with(since, ends), "REPLACE").ok();
            assert_eq!(look(&mut conn, "lock").unwrap().state, "free");
            acquire(&mut conn, "lock", "me", 1000);
            cmd!(conn, "DEL", "lock").int();
        }
    }

    /// F7: a crafted counter of 2^53-1 exhausts that lock, and no other; nothing wraps.
    fn a_crafted_counter_exhausts_that_lock_alone(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let before = acquire_and_release(&mut conn, "other");
        cmd!(conn, "RESTORE", "last", 0, wire::lock_payload(&wire::Lock::free(wire::TOKEN_MAX))).ok();
        cmd!(conn, "LOCK.ACQUIRE", "last", "me", 1000).assert_err_prefix("EXHAUSTED ");
        let mut waiter = server.connect();
        cmd!(waiter, "LOCK.ACQUIRE", "last", "me", 1000, "WAIT", 0).assert_err_prefix("EXHAUSTED ");
        assert_eq!(look(&mut conn, "last").unwrap().counter, wire::TOKEN_MAX);
        cmd!(conn, "RESTORE", "nearly", 0, wire::lock_payload(&wire::Lock::free(wire::TOKEN_MAX - 1))).ok();
        assert_eq!(acquire_and_release(&mut conn, "nearly"), wire::TOKEN_MAX);
        cmd!(conn, "LOCK.ACQUIRE", "nearly", "me", 1000).assert_err_prefix("EXHAUSTED ");
        let other = acquire_and_release(&mut conn, "other");
        // A grant on a crafted record takes others along, but leaves them half of all numbers.
        let half = (1 << 52) + 1_000_000_000;
        assert!(other > before && other < half, "{other} after {before}");
        assert!(acquire_and_release(&mut conn, "fresh") < half);
        // Nor do they after a restart.
        cmd!(conn, "SAVE").ok();
        server.kill9();
        server.restart();
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "last", "me", 1000).assert_err_prefix("EXHAUSTED ");
        let later = acquire_and_release(&mut conn, "other");
        assert!(later > other && later < half, "{later} after {other}");
    }

    /// The same with somebody in the queue: the end of the lease answers the waiter instead of leaving it there.
    fn a_waiter_at_an_exhausted_lock_is_answered(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let lock = wire::Lock::held(wire::TOKEN_MAX, b"holder", wire::TOKEN_MAX, MINUTE_MS, MINUTE_MS);
        for by_release in [true, false] {
            cmd!(conn, "DEL", "last").int();
            cmd!(conn, "RESTORE", "last", 0, wire::lock_payload(&lock)).ok();
            let mut waiter = server.connect();
            send!(waiter, "LOCK.ACQUIRE", "last", "waiter", MINUTE_MS, "WAIT", 0);
            server.wait_blocked_clients(1);
            if by_release {
                assert_eq!(cmd!(conn, "LOCK.RELEASE", "last", "holder").int(), 1);
            } else {
                assert_eq!(cmd!(conn, "LOCK.EXTEND", "last", "holder", 100).int(), 1);
            }
            waiter.recv(PATIENCE).assert_err_prefix("EXHAUSTED ");
            server.wait_blocked_clients(0);
        }
        assert_eq!(look(&mut conn, "last").unwrap().counter, wire::TOKEN_MAX);
    }

    /// LOCK.BREAK at the highest token: there is none to use up, but an administrator ends the lease all the same, and the
    /// holder is fenced; replicas agree.
    fn a_break_at_the_highest_token_ends_and_fences(kind: ServerKind) {
        let (server, replica) = (Server::start(kind), Server::start(kind));
        replica.replicate_from(&server);
        let mut conn = server.connect();
        let lock = wire::Lock::held(wire::TOKEN_MAX, b"holder", wire::TOKEN_MAX, MINUTE_MS, MINUTE_MS);
        cmd!(conn, "RESTORE", "last", 0, wire::lock_payload(&lock)).ok();
        cmd!(conn, "FENCE.WRITE", "last", wire::TOKEN_MAX, "data", "held").ok();
        let mut waiter = server.connect();
        send!(waiter, "LOCK.ACQUIRE", "last", "waiter", MINUTE_MS, "WAIT", 0);
        server.wait_blocked_clients(1);
        let high = high_and_floor(&server).0;
        assert_eq!(cmd!(conn, "LOCK.BREAK", "last").int(), 1);
        waiter.recv(PATIENCE).assert_err_prefix("EXHAUSTED ");
        let seen = look(&mut conn, "last").unwrap();
        assert_eq!((seen.state.as_str(), seen.counter), ("free", wire::TOKEN_MAX));
        for command in [
            args!["FENCE.WRITE", "last", wire::TOKEN_MAX, "data", "stale"],
            args!["FENCE.CALL", "last", wire::TOKEN_MAX, "APPEND", "data", "stale"],
            args!["FENCE.CHECK", "last", wire::TOKEN_MAX],
        ] {
            conn.cmd(command).assert_err_prefix("FENCED ");
        }
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "last", "holder", 1000).int(), 0);
        assert_eq!(cmd!(conn, "LOCK.BREAK", "last").int(), 0);
        assert_eq!(high_and_floor(&server).0, high, "nothing was issued");
        replica.wait_in_sync(&server);
        assert_eq!(replica.digest(), server.digest());
        assert_eq!(look(&mut replica.connect(), "last"), Some(seen));
    }

    /// Contract "Deleting a lock's key": RESTORE over a lock that stands keeps the higher counter and drops the
    /// arriving lease if it is the older one; waiters are told.
    fn restore_over_a_lock_keeps_the_higher_counter(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let old = acquire(&mut conn, "lock", "A", MINUTE_MS);
        let dump = cmd!(conn, "DUMP", "lock");
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "A").int(), 1);
        let new = acquire(&mut conn, "lock", "B", MINUTE_MS);
        let mut waiter = server.connect();
        send!(waiter, "LOCK.ACQUIRE", "lock", "C", MINUTE_MS, "WAIT", 0);
        server.wait_blocked_clients(1);
        cmd!(conn, "RESTORE", "lock", 0, dump.bytes(), "REPLACE").ok();
        waiter.recv(PATIENCE).assert_err_prefix("LOCKLOST ");
        let seen = look(&mut conn, "lock").unwrap();
        assert_eq!((seen.state.as_str(), seen.counter), ("free", new));
        cmd!(conn, "FENCE.WRITE", "lock", old, "data", "old").assert_err_prefix("FENCED ");
        assert!(acquire(&mut conn, "lock", "C", MINUTE_MS) > new);
        // The newer lease arrives over the older lock: it stays.
        let newer = wire::Lock::held(new + 60_000_000, b"D", new + 60_000_000, MINUTE_MS, MINUTE_MS);
        cmd!(conn, "RESTORE", "lock", 0, wire::lock_payload(&newer), "REPLACE").ok();
        let seen = look(&mut conn, "lock").unwrap();
        assert_eq!((seen.owner.as_deref(), seen.counter), (Some(&b"D"[..]), new + 60_000_000));
    }

    /// F8: a TTL in the past creates nothing, and takes away what it replaces; a TTL in the future does not touch the
    /// lease.
    fn restore_with_a_ttl(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let payload = wire::lock_payload(&held());
        cmd!(conn, "RESTORE", "lock", 1, &payload, "ABSTTL").ok();
        assert_eq!(cmd!(conn, "EXISTS", "lock").int(), 0);
        let token = acquire(&mut conn, "lock", "me", MINUTE_MS);
        let mut waiter = server.connect();
        send!(waiter, "LOCK.ACQUIRE", "lock", "you", MINUTE_MS, "WAIT", 0);
        server.wait_blocked_clients(1);
        cmd!(conn, "RESTORE", "lock", 1, &payload, "REPLACE", "ABSTTL").ok();
        waiter.recv(PATIENCE).assert_err_prefix("LOCKLOST ");
        assert_eq!(cmd!(conn, "EXISTS", "lock").int(), 0);
        assert!(acquire(&mut conn, "lock", "you", MINUTE_MS) > token);
        cmd!(conn, "RESTORE", "ttl", 50, &payload).ok();
        assert_eq!(cmd!(conn, "PTTL", "ttl").int(), -1);
        assert!(ttl_ms(&mut conn, "ttl") > 50);
    }

    /// A restored record is dropped when idle, like any other.
    fn restored_records_are_dropped_when_idle(kind: ServerKind) {
        let server = Server::builder(kind).arg("lockfence.idle-ttl-ms", 50).start();
        let mut conn = server.connect();
        let short = wire::Lock::held(wall_us(), b"me", 1, 100, 100);
        for (key, lock) in [("free", wire::Lock::free(wall_us())), ("short", short)] {
            cmd!(conn, "RESTORE", key, 0, wire::lock_payload(&lock)).ok();
        }
        wait_until("idle records to go", PATIENCE, || cmd!(conn, "DBSIZE").int(), |size| *size == 0);
    }

    /// G1: but not while its counter is above all that this server would issue: the next token of that name would be lower.
    fn an_idle_record_that_is_far_ahead_stays(kind: ServerKind) {
        let server = Server::builder(kind).arg("lockfence.idle-ttl-ms", 50).start();
        let mut conn = server.connect();
        let far = wall_us() + 3_600_000_000;
        for (key, counter) in [("far", far), ("near", wall_us())] {
            cmd!(conn, "RESTORE", key, 0, wire::lock_payload(&wire::Lock::free(counter))).ok();
        }
        let near = |conn: &mut Conn| cmd!(conn, "EXISTS", "near").int();
        wait_until("the idle record to go", PATIENCE, || near(&mut conn), |left| *left == 0);
        assert!(acquire_and_release(&mut conn, "near") > 0);
        wait_until("it to go again", PATIENCE, || near(&mut conn), |left| *left == 0);
        let next = acquire_and_release(&mut conn, "far");
        assert!(next > far, "{next} after {far}");
    }

    /// G1, G4: a crafted record has taken the others' tokens as far as it can, and the clock is behind. A lock that is
    /// deleted begins above itself all the same, and its holder's late write is refused.
    fn tokens_rise_above_those_of_a_crafted_record(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "RESTORE", "evil", 0, wire::lock_payload(&wire::Lock::free(wire::TOKEN_MAX - 1000))).ok();
        acquire_and_release(&mut conn, "evil");
        let mut last = acquire_and_release(&mut conn, "lock");
        for _ in 0..5 {
            assert_eq!(cmd!(conn, "DEL", "lock").int(), 1);
            let next = acquire(&mut conn, "lock", "b", MINUTE_MS);
            assert!(next > last, "{next} after {last}");
            cmd!(conn, "FENCE.WRITE", "lock", last, "data", "late").assert_err_prefix("FENCED ");
            last = next;
        }
    }

    /// A restored lease ends in time for those who wait.
    fn a_restored_lease_ends_for_waiters(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = wall_us();
        let lock = wire::Lock::held(token, b"holder", token, 700, 10 * MINUTE_MS);
        cmd!(conn, "RESTORE", "lock", 0, wire::lock_payload(&lock)).ok();
        let mut waiter = server.connect();
        send!(waiter, "LOCK.ACQUIRE", "lock", "waiter", MINUTE_MS, "WAIT", 0);
        assert!(waiter.recv(Duration::from_secs(15)).token() > token);
    }

    /// MIGRATE keeps lock, lease, token and grants; at the source the waiters are told and the name goes on rising.
    fn migrate_keeps_lock_lease_and_token(kind: ServerKind) {
        let (source, target) = (Server::start(kind), Server::start(kind));
        let (mut from, mut to) = (source.connect(), target.connect());
        acquire_and_release(&mut from, "lock");
        let token = acquire(&mut from, "lock", "me", MINUTE_MS);
        cmd!(from, "FENCE.ADVANCE", "fence", 50).int();
        let (seen, left) = (look(&mut from, "lock"), ttl_ms(&mut from, "lock"));
        let mut waiter = source.connect();
        send!(waiter, "LOCK.ACQUIRE", "lock", "you", MINUTE_MS, "WAIT", 0);
        source.wait_blocked_clients(1);
        cmd!(from, "MIGRATE", "127.0.0.1", target.port(), "", 0, 5000, "KEYS", "lock", "fence").ok();
        waiter.recv(PATIENCE).assert_err_prefix("LOCKLOST ");
        assert_eq!(look(&mut from, "lock"), None);
        assert_eq!(look(&mut to, "lock"), seen);
        let now_left = ttl_ms(&mut to, "lock");
        assert!(now_left <= left && now_left > left - 20_000, "{left} ms at the source, {now_left} at the target");
        assert_eq!(cmd!(to, "FENCE.CHECK", "fence", 50).int(), 50);
        cmd!(to, "LOCK.ACQUIRE", "lock", "you", 1000).nil();
        cmd!(to, "FENCE.WRITE", "lock", token, "data", "value").ok();
        assert_eq!(cmd!(to, "LOCK.RELEASE", "lock", "me").int(), 1);
        let next = acquire(&mut to, "lock", "you", MINUTE_MS);
        assert!(next > token);
        assert!(acquire(&mut from, "lock", "other", MINUTE_MS) > token, "the source itself goes on rising");
    }

    /// I4: a migration that copied the lock and then broke off is repeated with REPLACE after the target has granted:
    /// the target's counter does not fall, the older lease does not come back.
    fn a_repeated_migration_does_not_rewind(kind: ServerKind) {
        let (source, target) = (Server::start(kind), Server::start(kind));
        let (mut from, mut to) = (source.connect(), target.connect());
        let old = acquire(&mut from, "lock", "old", MINUTE_MS);
        cmd!(from, "MIGRATE", "127.0.0.1", target.port(), "lock", 0, 5000, "COPY").ok();
        assert_eq!(look(&mut from, "lock"), look(&mut to, "lock"));
        assert_eq!(cmd!(to, "LOCK.RELEASE", "lock", "old").int(), 1);
        let new = acquire(&mut to, "lock", "new", MINUTE_MS);
        assert!(new > old);
        cmd!(from, "MIGRATE", "127.0.0.1", target.port(), "lock", 0, 5000, "REPLACE").ok();
        let seen = look(&mut to, "lock").unwrap();
        assert_eq!(seen.counter, new);
        assert_ne!(seen.owner.as_deref(), Some(&b"old"[..]));
        cmd!(to, "FENCE.WRITE", "lock", old, "data", "old").assert_err_prefix("FENCED ");
        assert!(acquire(&mut to, "lock", "next", MINUTE_MS) > new);
    }
}

/// F10: a dump of one server at another: the server's own error, or the lock as it was. Never a crash.
#[test]
fn a_dump_at_another_kind_of_server_is_taken_or_refused_whole() {
    let kinds: Vec<_> = ServerKind::MATRIX.into_iter().filter(|kind| kind.present()).collect();
    let servers: Vec<_> = kinds.iter().map(|kind| Server::start(*kind)).collect();
    for source in &servers {
        let mut from = source.connect();
        let key = format!("from {}", source.kind());
        acquire(&mut from, &key, "me", MINUTE_MS);
        let dump = cmd!(from, "DUMP", &key);
        for target in &servers {
            let mut to = target.connect();
            cmd!(to, "DEL", &key).int();
            let reply = cmd!(to, "RESTORE", &key, 0, dump.bytes());
            if reply.is_err() {
                reply.assert_err_prefix("ERR DUMP payload version or checksum are wrong");
                assert_ne!(source.kind(), target.kind());
            } else {
                assert_eq!(look(&mut to, &key).unwrap().owner.unwrap(), b"me");
            }
            target.assert_alive();
            acquire(&mut from, &key, "me", MINUTE_MS);
        }
    }
}
