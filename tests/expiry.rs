//! Time: leases that end by themselves, records that go when idle, the quarantine after a start, clocks that jump.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::{LONG_MS, SOON, info, ms, number, stat_of, waiter, waiter_for};
use lockfence_testkit::{Conn, Reply, Server, ServerKind, args, cmd, send, server_tests, wait_until};

/// How late a hand-over may come on an idle server: the contract says "at the deadline"; the rest is a busy machine.
const LATE_MS: u64 = 250;

/// Lets leases of `ttl_ms` end with somebody waiting, so many times; how late each hand-over came, in ms.
fn lateness(server: &Server, ttl_ms: u64, rounds: u32) -> Vec<u64> {
    let mut conn = server.connect();
    (0..rounds)
        .map(|round| {
            let lock = format!("lock:{round}");
            let mut b = server.connect();
            let before = Instant::now();
            cmd!(conn, "LOCK.ACQUIRE", lock, "a", ttl_ms).token();
            let granted = Instant::now();
            send!(b, "LOCK.ACQUIRE", lock, "b", LONG_MS, "WAIT", 0);
            b.recv(SOON).token();
            assert!(ms(before.elapsed()) + 1 >= ttl_ms, "handed over while the lease lived");
            ms(granted.elapsed()).saturating_sub(ttl_ms)
        })
        .collect()
}

/// A machine that stalls once is no fault; a server that is late is late nearly always.
fn assert_in_time(mut late: Vec<u64>) {
    late.sort_unstable();
    let median = late[late.len() / 2];
    assert!(median <= LATE_MS, "hand-overs came so many ms after the deadline: {late:?}");
    assert!(late.iter().all(|late| *late < 5_000), "{late:?}");
}

/// So many keys with a TTL, in a few seconds.
fn populate_volatile(server: &Server, count: u64) {
    const CHUNK: u64 = 50_000;
    let mut conn = server.connect();
    let script = "for i = ARGV[1], ARGV[2] do redis.call('SET', 'x' .. i, 'v', 'EX', 3600) end";
    for first in (1..=count).step_by(usize::try_from(CHUNK).unwrap()) {
        cmd!(conn, "EVAL", script, 0, first, (first + CHUNK - 1).min(count)).nil();
    }
    assert_eq!(cmd!(conn, "DBSIZE").int().unsigned_abs(), count);
}

fn dbsize(conn: &mut Conn) -> i64 {
    cmd!(conn, "DBSIZE").int()
}

/// The library that fakes the wall clock of a process, where this system has it (Debian: faketime). Not for Debian's
/// Redis 7.0: its jemalloc reads the clock before the library is ready, and neither survives that.
fn faketime(kind: ServerKind) -> Option<&'static str> {
    if kind == ServerKind::Redis70 {
        println!("skipped: libfaketime cannot be loaded into this server");
        return None;
    }
    let places = [
        "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
        "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
        "/usr/lib/faketime/libfaketime.so.1",
    ];
    let found = places.into_iter().find(|path| Path::new(path).exists());
    if found.is_none() {
        println!("skipped: libfaketime is not installed");
    }
    found
}

/// A server whose wall clock, and nothing else, can be stepped: write the offset (`+3600`) into the file.
fn with_stepped_clock(kind: ServerKind, library: &str, control: &Path) -> Server {
    step(control, "+0");
    Server::builder(kind)
        .env("LD_PRELOAD", library)
        .env("FAKETIME_TIMESTAMP_FILE", control)
        .env("FAKETIME_NO_CACHE", "1")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .env("DONT_FAKE_MONOTONIC", "1")
        .start()
}

fn step(control: &Path, offset: &str) {
    let fresh = control.with_extension("new");
    fs::write(&fresh, offset).unwrap();
    fs::rename(&fresh, control).unwrap();
}

fn server_wall_s(conn: &mut Conn) -> i64 {
    cmd!(conn, "TIME").items()[0].text().parse().unwrap()
}

server_tests! {
    /// D2: on an idle server the next in line is served at the deadline, without any command.
    fn a_lease_that_ends_is_handed_over_at_its_deadline(kind: ServerKind) {
        let server = Server::start(kind);
        let late = lateness(&server, 120, 15);
        println!("ms late: {late:?}");
        assert_in_time(late);
    }

    /// D3: nor does it matter how many other keys have a TTL: a million here. The server's own expiry then lags by
    /// minutes.
    fn a_million_volatile_keys_delay_no_hand_over(kind: ServerKind) {
        let server = Server::start(kind);
        populate_volatile(&server, 1_000_000);
        let late = lateness(&server, 120, 15);
        println!("ms late among a million volatile keys: {late:?}");
        assert_in_time(late);
    }

    /// Hundreds of leases that end about at once are all handed over.
    fn many_deadlines_at_once_are_all_served(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let began = Instant::now();
        let mut waiting = Vec::new();
        for n in 0..300 {
            let lock = format!("lock:{n}");
            cmd!(conn, "LOCK.ACQUIRE", lock, "a", 3_000).token();
            let mut b = server.connect();
            send!(b, "LOCK.ACQUIRE", lock, "b", LONG_MS, "WAIT", 0);
            waiting.push(b);
        }
        for b in &mut waiting {
            b.recv(SOON).token();
        }
        assert!(began.elapsed() >= Duration::from_millis(2_990));
        assert_eq!(stat_of(&server, "handovers_total"), 300);
    }

    /// A chain of leases that each end by themselves is walked to its end, in order.
    fn a_queue_of_short_leases_is_served_to_its_end(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let mut last = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", 4_000).token();
        let mut waiting: Vec<Conn> =
            (1..=20).map(|n| waiter(&server, "lock", &format!("w{n}"), 30, n)).collect();
        for conn in &mut waiting {
            let token = conn.recv(SOON).token();
            assert!(token > last);
            last = token;
        }
        wait_until("the last lease's end", SOON, || number(&mut conn, "lock", "holders"), |held| *held == 0);
    }

    /// B11, J12: EXPIRE, PEXPIREAT and PERSIST neither lengthen nor shorten a lease; a lock has no server TTL.
    fn the_servers_own_ttl_commands_touch_no_lease(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "L", "A", 100_000).token();
        for words in [
            args!["EXPIRE", "L", 1], args!["PEXPIRE", "L", 1], args!["PEXPIREAT", "L", 9_999_999_999_999_u64],
            args!["EXPIRE", "L", 100_000_000], args!["PERSIST", "L"],
        ] {
            conn.cmd(&words).no_err();
            assert_eq!(cmd!(conn, "PTTL", "L").int(), -1, "{words:?}");
            let left = number(&mut conn, "L", "ttl-ms");
            assert!((60_000..=100_000).contains(&left), "{words:?}: {left}");
        }
        cmd!(conn, "LOCK.ACQUIRE", "L", "B", 10).nil();
        assert_eq!(number(&mut conn, "L", "token").unsigned_abs(), token);
        cmd!(conn, "LOCK.ACQUIRE", "short", "A", 100).token();
        cmd!(conn, "PERSIST", "short").no_err();
        wait_until("its end", SOON, || cmd!(conn, "LOCK.ACQUIRE", "short", "B", 10), |reply| !reply.is_nil());
    }

    /// "Records are dropped when idle": a free lock's record goes after `lockfence.idle-ttl-ms`, released or run out;
    /// G1 holds after that; held and contended ones stay.
    fn idle_records_go_and_tokens_still_rise(kind: ServerKind) {
        let server = Server::builder(kind).arg("lockfence.idle-ttl-ms", 200).start();
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "held", "a", LONG_MS).token();
        let released = cmd!(conn, "LOCK.ACQUIRE", "released", "a", LONG_MS).token();
        cmd!(conn, "LOCK.RELEASE", "released", "a");
        let freed = Instant::now();
        let ended = cmd!(conn, "LOCK.ACQUIRE", "ended", "a", 50).token();
        let raised = cmd!(conn, "LOCK.ACQUIRE", "raised", "a", 50, "MINTOKEN", ended + 4_000_000).token();
        cmd!(conn, "LOCK.INFO", "released").no_err();
        wait_until("only the held lock", SOON, || dbsize(&mut conn), |size| *size == 1);
        assert!(freed.elapsed() >= Duration::from_millis(190), "gone before it was idle that long");
        assert_eq!(stat_of(&server, "idle_records_dropped_total"), 3);
        cmd!(conn, "LOCK.INFO", "released").nil();
        assert_eq!(info(&mut conn, "held").field("owner").text(), "a");
        for (lock, before) in [("released", released), ("ended", ended), ("raised", raised)] {
            let token = cmd!(conn, "LOCK.ACQUIRE", lock, "b", LONG_MS).token();
            assert!(token > before, "{lock}: {token} after {before}");
            cmd!(conn, "FENCE.CHECK", lock, before).assert_err_prefix("FENCED ");
        }
    }

    /// A record that is used again before it is idle that long stays; the clock starts anew.
    fn a_record_in_use_is_not_idle(kind: ServerKind) {
        let server = Server::builder(kind).arg("lockfence.idle-ttl-ms", 3_000).start();
        let mut conn = server.connect();
        let began = Instant::now();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        cmd!(conn, "LOCK.RELEASE", "lock", "a");
        let mut rounds = 1;
        while began.elapsed() < Duration::from_millis(3_500) {
            cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
            cmd!(conn, "LOCK.RELEASE", "lock", "a");
            rounds += 1;
        }
        assert_eq!(number(&mut conn, "lock", "grants"), rounds, "the record is the same one");
        wait_until("its end", SOON, || dbsize(&mut conn), |size| *size == 0);
    }

    /// F1, second half: names that are used once leave nothing behind. 200,000 here, released and run out.
    fn names_used_once_leave_nothing(kind: ServerKind) {
        const NAMES: usize = 200_000;
        const CHUNK: usize = 1_000;
        println!("{NAMES} names, each used once");
        let server = Server::builder(kind).arg("lockfence.idle-ttl-ms", 100).start();
        let mut conn = server.connect();
        let use_names = |conn: &mut Conn, from: usize, to: usize| {
            for first in (from..to).step_by(CHUNK) {
                let commands: Vec<_> = (first..first + CHUNK).flat_map(|n| {
                    let lock = format!("order:{n}");
                    if n % 2 == 0 {
                        vec![args!["LOCK.ACQUIRE", lock, "owner", 60_000], args!["LOCK.RELEASE", lock, "owner"]]
                    } else {
                        vec![args!["LOCK.ACQUIRE", lock, "owner", 20]]
                    }
                }).collect();
                assert!(conn.pipeline(&commands).iter().all(|reply| matches!(reply, Reply::Int(_))));
            }
        };
        use_names(&mut conn, 0, 5 * CHUNK);
        let gone = Duration::from_secs(60);
        wait_until("an empty database", gone, || dbsize(&mut conn), |size| *size == 0);
        let before = server.used_memory();
        use_names(&mut conn, 5 * CHUNK, NAMES);
        wait_until("an empty database", gone, || dbsize(&mut conn), |size| *size == 0);
        assert_eq!(stat_of(&server, "idle_records_dropped_total"), NAMES as u64);
        // 200,000 records are more than 20 MB while they stand; one byte a name may stay.
        let near = |used: &u64| *used < before + NAMES as u64;
        let after = wait_until("memory as before", gone, || server.used_memory(), near);
        println!("used_memory {before} before, {after} after");
    }

    /// The restart quarantine: -QUARANTINE with the ms left, nothing queued; RELEASE, EXTEND, INFO and FENCE.* work.
    fn the_quarantine_refuses_grants_only(kind: ServerKind) {
        let server = Server::builder(kind).arg("lockfence.quarantine-ms", 60_000).start();
        let mut conn = server.connect();
        let reply = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", 1000);
        let line = reply.assert_err_prefix("QUARANTINE ");
        let left: u64 = line.split(' ').find_map(|word| word.parse().ok()).expect("the ms left");
        assert!((20_000..=60_000).contains(&left), "{line}");
        assert!(stat_of(&server, "quarantine_left_ms") <= left);
        cmd!(conn, "LOCK.ACQUIRE", "lock", "a", 1000, "WITHINFO").assert_err_prefix("QUARANTINE ");
        cmd!(conn, "LOCK.INFO", "lock").nil();
        assert_eq!(dbsize(&mut conn), 0);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "a").int(), 0);
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "a", 1000).int(), 0);
        assert_eq!(cmd!(conn, "LOCK.BREAK", "lock").int(), 0);
        assert_eq!(cmd!(conn, "FENCE.ADVANCE", "fence", 5).int(), 5);
        cmd!(conn, "FENCE.WRITE", "fence", 6, "data", "x").ok();
        assert_eq!(cmd!(conn, "FENCE.CHECK", "fence", 6).int(), 6);
        // In a script the wait is ignored: then it is a plain refusal.
        let script = "return redis.pcall('LOCK.ACQUIRE', KEYS[1], 'a', '10', 'WAIT', '0')";
        let reply = cmd!(conn, "EVAL", script, 1, "lock");
        assert!(reply.err().contains("QUARANTINE"), "{reply:?}");
        // Also while somebody waits for its end: it is not that somebody else has the lock.
        let mut waiting = server.connect();
        send!(waiting, "LOCK.ACQUIRE", "lock", "w", 1000, "WAIT", 0);
        server.wait_blocked_clients(1);
        cmd!(conn, "LOCK.ACQUIRE", "lock", "a", 1000).assert_err_prefix("QUARANTINE ");
        cmd!(conn, "LOCK.ACQUIRE", "lock", "a", 1000, "WITHINFO").assert_err_prefix("QUARANTINE ");
        drop(waiting);
        server.wait_blocked_clients(0);
        cmd!(conn, "LOCK.ACQUIRE", "lock", "a", 1000, "WAIT", 50).nil();
        assert_eq!((stat_of(&server, "grants_total"), stat_of(&server, "waiters")), (0, 0));
    }

    /// "A request with WAIT queues until it is over": then it is granted, in order, at once.
    fn those_who_wait_are_granted_after_the_quarantine(kind: ServerKind) {
        let server = Server::builder(kind).arg("lockfence.quarantine-ms", 2_500).start();
        let began = Instant::now();
        let (mut a, mut b) = (server.connect(), server.connect());
        send!(a, "LOCK.ACQUIRE", "lock", "a", 300, "WAIT", 0);
        server.wait_blocked_clients(1);
        send!(b, "LOCK.ACQUIRE", "lock", "b", LONG_MS, "WAIT", 60_000);
        server.wait_blocked_clients(2);
        a.assert_silent(300);
        let first = a.recv(SOON).token();
        assert!(began.elapsed() >= Duration::from_millis(1_500), "granted in the quarantine");
        assert!(b.recv(SOON).token() > first);
        assert_eq!(stat_of(&server, "quarantine_left_ms"), 0);
        cmd!(server.connect(), "LOCK.ACQUIRE", "other", "x", 10).token();
    }

    /// Who waits in the quarantine for a lock without a record is seen all the same.
    fn those_who_wait_without_a_record_are_seen(kind: ServerKind) {
        let server = Server::builder(kind).arg("lockfence.quarantine-ms", 60_000).start();
        let mut conn = server.connect();
        let mut client = server.connect();
        send!(client, "LOCK.ACQUIRE", "lock", "w", LONG_MS, "WAIT", 0);
        server.wait_blocked_clients(1);
        let seen = cmd!(conn, "LOCK.INFO", "lock", "FULL").no_err();
        assert_eq!((seen.field("state").text(), seen.field("waiters").int()), ("free".to_owned(), 1));
        assert_eq!((seen.field("counter").int(), seen.field("grants").int()), (0, 0));
        assert!(seen.field("owner").is_nil() && seen.field("token").is_nil());
        assert_eq!(seen.field("waiter-list").items()[0].field("owner").text(), "w");
        assert_eq!(cmd!(conn, "EXISTS", "lock").int(), 0);
        drop(client);
        server.wait_blocked_clients(0);
        cmd!(conn, "LOCK.INFO", "lock").nil();
    }

    /// In the quarantine a holder known to be live may ask again, extend and release; nobody else is granted, not even
    /// by its release.
    fn a_live_holder_goes_on_in_the_quarantine(kind: ServerKind) {
        let server = Server::builder(kind).arg("appendonly", "yes").arg("appendfsync", "always").start();
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        cmd!(conn, "CONFIG", "SET", "lockfence.quarantine-ms", 4_000).ok();
        cmd!(conn, "CONFIG", "REWRITE").ok();
        server.restart();
        let began = Instant::now();
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "new", "x", 10).assert_err_prefix("QUARANTINE ");
        cmd!(conn, "LOCK.ACQUIRE", "lock", "x", 10).nil();
        assert_eq!(cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token(), token);
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "a", LONG_MS).int(), 1);
        let mut next = waiter(&server, "lock", "next", LONG_MS, 1);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "a").int(), 1);
        assert_eq!(info(&mut conn, "lock").field("state").text(), "free");
        next.assert_silent(200);
        assert!(next.recv(SOON).token() > token);
        assert!(began.elapsed() >= Duration::from_millis(2_500), "granted in the quarantine");
    }

    /// Who waits in the quarantine for a lock that then arrives as its own (RESTORE) is told so when it is over, not when
    /// that lease ends.
    fn who_waits_for_its_own_lock_is_told_after_the_quarantine(kind: ServerKind) {
        let elsewhere = Server::start(kind);
        let mut conn = elsewhere.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        let payload = cmd!(conn, "DUMP", "lock").bytes().to_vec();
        let server = Server::builder(kind).arg("lockfence.quarantine-ms", 2_000).start();
        let (mut conn, mut a) = (server.connect(), server.connect());
        send!(a, "LOCK.ACQUIRE", "lock", "a", LONG_MS, "WAIT", 0);
        server.wait_blocked_clients(1);
        cmd!(conn, "RESTORE", "lock", 0, payload).ok();
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "a", LONG_MS).int(), 1);
        assert_eq!(a.recv(SOON).token(), token);
        assert_eq!(stat_of(&server, "quarantine_left_ms"), 0);
    }

    /// Every waiter whose time is over in the quarantine gets its null.
    fn a_wait_ends_in_the_quarantine(kind: ServerKind) {
        let server = Server::builder(kind).arg("lockfence.quarantine-ms", 60_000).start();
        let mut conn = server.connect();
        let began = Instant::now();
        let reply = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", 10, "WAIT", 100, "WITHINFO");
        assert_eq!(reply.field("granted").int(), 0);
        assert!(began.elapsed() >= Duration::from_millis(95) && began.elapsed() < Duration::from_secs(5));
        assert_eq!(stat_of(&server, "waiters"), 0);
    }

    /// C1: a wall clock that jumps an hour ahead ends no lease and no WAIT, and tokens still rise.
    fn a_clock_that_jumps_ahead_ends_no_lease(kind: ServerKind) {
        let Some(library) = faketime(kind) else { return };
        let folder = own_folder();
        let control = folder.join("clock");
        let server = with_stepped_clock(kind, library, &control);
        let mut conn = server.connect();
        let before = server_wall_s(&mut conn);
        let token = cmd!(conn, "LOCK.ACQUIRE", "L", "A", 60_000).token();
        let mut b = waiter_for(&server, "L", "B", LONG_MS, 30_000, 1);
        step(&control, "+3600");
        wait_until("the jump", SOON, || server_wall_s(&mut conn), |seen| *seen >= before + 3_600);
        cmd!(conn, "LOCK.ACQUIRE", "L", "C", 1_000).nil();
        b.assert_silent(1_500);
        let left = number(&mut conn, "L", "ttl-ms");
        assert!((20_000..=60_000).contains(&left), "{left}");
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "L", "A", 60_000).int(), 1);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "L", "A").int(), 1);
        assert!(b.recv(SOON).token() > token);
        let _ = fs::remove_dir_all(folder);
    }

    /// C1: and one that jumps an hour back prolongs none: a lease ends, a WAIT ends and the next in line is served in
    /// time; tokens do not go back.
    fn a_clock_that_jumps_back_prolongs_no_lease(kind: ServerKind) {
        let Some(library) = faketime(kind) else { return };
        let folder = own_folder();
        let control = folder.join("clock");
        let server = with_stepped_clock(kind, library, &control);
        let mut conn = server.connect();
        let before = server_wall_s(&mut conn);
        let other = cmd!(conn, "LOCK.ACQUIRE", "other", "A", LONG_MS).token();
        let token = cmd!(conn, "LOCK.ACQUIRE", "L", "A", 3_000).token();
        let granted = Instant::now();
        let mut over = waiter_for(&server, "L", "B", LONG_MS, 1_500, 1);
        let mut c = waiter(&server, "L", "C", LONG_MS, 2);
        step(&control, "-3600");
        wait_until("the jump", SOON, || server_wall_s(&mut conn), |seen| *seen <= before - 3_500);
        over.recv(SOON).nil();
        assert!(granted.elapsed() < Duration::from_millis(4_500), "a WAIT of 1.5 s took {:?}", granted.elapsed());
        assert!(c.recv(SOON).token() > token);
        let waited = granted.elapsed();
        assert!((2_900..6_000).contains(&ms(waited)), "a lease of 3 s lasted {waited:?}");
        cmd!(conn, "DEL", "other").int();
        assert!(cmd!(conn, "LOCK.ACQUIRE", "other", "B", 10).token() > other, "tokens do not follow the clock back");
        let _ = fs::remove_dir_all(folder);
    }
}

fn own_folder() -> std::path::PathBuf {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("lockfence-clock-{}-{number}", std::process::id()));
    fs::create_dir_all(&path).unwrap();
    path
}
