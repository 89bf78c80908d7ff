//! Steps of the wall clock: leases and waits run on a clock that no step moves; tokens still rise.

use crate::common;

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::{LONG_MS, SOON, info, number, owner, stat_of, wait_free, waiter, waiter_for};
use lockfence_testkit::{Conn, Server, ServerBuilder, ServerKind, args, cmd, send, server_tests, wait_until};

const HOUR_S: i64 = 3600;

/// A library that is loaded before all others and shifts the wall clock, and it alone, by the seconds in a file.
/// (libfaketime does the same, but not with a server that is linked to jemalloc, which asks for the time before
/// libfaketime is ready.)
const SHIFT: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long *seconds;

static long shift(void) {
    if (!seconds) {
        const char *path = getenv("LOCKFENCE_TEST_CLOCK");
        int file = path ? open(path, O_RDONLY) : -1;
        if (file < 0) return 0;
        void *map = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
        close(file);
        if (map == MAP_FAILED) return 0;
        seconds = map;
    }
    return *seconds;
}

int clock_gettime(clockid_t clock, struct timespec *out) {
    long result = syscall(SYS_clock_gettime, clock, out);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) out->tv_sec += shift();
    return result;
}

int gettimeofday(struct timeval *out, void *zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

/* Valkey loads modules so that they find the C library's own functions before ours. */
void *dlopen(const char *file, int flags) {
    void *(*real)(const char *, int) = dlsym(RTLD_NEXT, "dlopen");
    return real(file, flags & ~RTLD_DEEPBIND);
}
"#;

/// A server whose wall clock the test sets.
struct Shifted {
    server: Server,
    dir: Dir,
}

/// A folder that goes with its guard.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("lockfence-clock-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Builds the library. Where Rust is, there is a C compiler: it links with it.
    fn library(&self) -> PathBuf {
        let (source, library) = (self.0.join("shift.c"), self.0.join("shift.so"));
        fs::write(&source, SHIFT).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).arg("-ldl");
        assert!(compiler.status().expect("cc, a C compiler").success(), "{compiler:?}");
        library
    }

    /// In place: the servers see the file's own page.
    fn write_shift(&self, seconds: i64) {
        let mut file =
            fs::OpenOptions::new().write(true).create(true).truncate(false).open(self.shift()).unwrap();
        file.write_all(&seconds.to_ne_bytes()).unwrap();
    }

    fn shift(&self) -> PathBuf {
        self.0.join("shift")
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Shifted {
    fn start(kind: ServerKind, change: impl Fn(ServerBuilder) -> ServerBuilder) -> Self {
        let dir = Dir::new();
        dir.write_shift(0);
        let builder =
            Server::builder(kind).env("LD_PRELOAD", dir.library()).env("LOCKFENCE_TEST_CLOCK", dir.shift());
        Self { server: change(builder).start(), dir }
    }

    /// Sets the server's wall clock so many seconds off ours, and waits until it shows.
    #[track_caller]
    fn step(&self, seconds: i64) {
        self.dir.write_shift(seconds);
        self.wait_shift(seconds);
    }

    /// Kills the server; it starts again at another time.
    #[track_caller]
    fn restart_at(&self, seconds: i64) {
        self.server.kill9();
        self.dir.write_shift(seconds);
        self.server.restart();
        self.wait_shift(seconds);
    }

    #[track_caller]
    fn wait_shift(&self, seconds: i64) {
        let mut conn = self.server.connect();
        let off = || i64::try_from(server_wall_us(&mut conn) / 1_000_000).unwrap() - our_wall_s();
        wait_until("the server's clock to step", SOON, off, |off| (*off - seconds).abs() <= 2);
    }
}

fn server_wall_us(conn: &mut Conn) -> u64 {
    let time = cmd!(conn, "TIME");
    let part = |index: usize| time.items()[index].text().parse::<u64>().unwrap();
    part(0) * 1_000_000 + part(1)
}

fn our_wall_s() -> i64 {
    i64::try_from(common::wall_us() / 1_000_000).unwrap()
}

server_tests! {
    /// The premise of the tests below: the step moves the server's wall clock and neither of the monotonic ones. A
    /// lease of ten minutes loses less than a minute over a step of an hour, in either direction.
    fn a_step_moves_the_wall_clock_alone(kind: ServerKind) {
        let shifted = Shifted::start(kind, |builder| builder);
        let mut conn = shifted.server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        let before = server_wall_us(&mut conn);
        shifted.step(HOUR_S);
        assert!(server_wall_us(&mut conn) > before + 3_500_000_000);
        let token = cmd!(conn, "LOCK.ACQUIRE", "other", "a", 1).token();
        assert!(token > before + 3_500_000_000, "the module has another clock than its server: {token}");
        let left = info(&mut conn, "lock").field("ttl-ms").int();
        assert!((540_000..=600_000).contains(&left), "{left} ms left of ten minutes");
        shifted.step(-HOUR_S);
        let left = info(&mut conn, "lock").field("ttl-ms").int();
        assert!((540_000..=600_000).contains(&left), "{left} ms left of ten minutes");
    }

    /// C1: an hour forward ends no lease and no WAIT.
    fn an_hour_forward_ends_no_lease_and_no_wait(kind: ServerKind) {
        let shifted = Shifted::start(kind, |builder| builder.arg("appendonly", "yes"));
        let server = &shifted.server;
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        let mut timed = waiter_for(server, "lock", "b", 1000, LONG_MS, 1);
        let mut endless = waiter(server, "lock", "c", LONG_MS, 2);
        shifted.step(HOUR_S);
        cmd!(conn, "LOCK.ACQUIRE", "lock", "z", 1000).nil();
        timed.assert_silent(1500);
        endless.assert_silent(20);
        assert_eq!(owner(&mut conn, "lock").as_deref(), Some("a"));
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "a", LONG_MS).int(), 1);
        cmd!(conn, "FENCE.WRITE", "lock", token, "data", 1).ok();
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "a").int(), 1);
        assert!(timed.recv(SOON).token() > token);
    }

    /// C1: an hour back prolongs no lease and no WAIT: the hand-over comes within a second or so of the deadline,
    /// although the server's timers, which run on its wall clock, are an hour late.
    fn an_hour_back_prolongs_no_lease_and_no_wait(kind: ServerKind) {
        let shifted = Shifted::start(kind, |builder| builder.arg("appendonly", "yes"));
        let server = &shifted.server;
        let mut conn = server.connect();
        let began = Instant::now();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", 4000).token();
        cmd!(conn, "LOCK.ACQUIRE", "held", "a", LONG_MS).token();
        let mut first = waiter(server, "lock", "b", LONG_MS, 1);
        let mut timed = waiter_for(server, "held", "c", LONG_MS, 4000, 1);
        shifted.step(-HOUR_S);
        assert!(began.elapsed() < Duration::from_millis(3800), "too slow to say anything");
        let next = first.recv(Duration::from_secs(8)).token();
        let after = began.elapsed();
        assert!(after >= Duration::from_millis(4000), "granted after {after:?} of a lease of 4 s");
        timed.recv(Duration::from_secs(8)).nil();
        assert!(next > token);
        // What begins at the set-back clock ends in time, too, and so does a chain of hand-overs.
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "b").int(), 1);
        let began = Instant::now();
        let mut last = cmd!(conn, "LOCK.ACQUIRE", "lock", "d", 200).token();
        let mut chain: Vec<Conn> =
            (1..=3).map(|place| waiter(server, "lock", &format!("w{place}"), 200, place)).collect();
        for client in &mut chain {
            let token = client.recv(Duration::from_secs(8)).token();
            assert!(token > last);
            last = token;
        }
        assert!(began.elapsed() >= Duration::from_millis(600), "three leases in {:?}", began.elapsed());
    }

    /// G1: tokens rise at a clock that was set back, also for a lock whose record has gone.
    fn tokens_rise_at_a_clock_that_was_set_back(kind: ServerKind) {
        let shifted = Shifted::start(kind, |builder| builder);
        let mut conn = shifted.server.connect();
        let mut last = 0;
        // Past the restart floor, so that the clock is what tokens come from.
        shifted.step(HOUR_S);
        for seconds in [HOUR_S, 0, -HOUR_S, 2 * HOUR_S, -24 * HOUR_S] {
            shifted.step(seconds);
            for removal in [args!["DEL", "lock"], args!["FLUSHALL", "ASYNC"], args!["PING"], args!["UNLINK", "lock"]] {
                let token = cmd!(conn, "LOCK.ACQUIRE", "lock", format!("o{last}"), 1).token();
                assert!(token > last, "{token} after {last} with the clock {seconds} s off");
                last = token;
                conn.cmd(removal).no_err();
                let gone = || owner(&mut conn, "lock");
                wait_until("the lease to be over", SOON, gone, |owner| owner.is_none());
            }
            let fenced = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
            cmd!(conn, "FENCE.WRITE", "lock", last, "data", 1).assert_err_prefix("FENCED ");
            cmd!(conn, "FENCE.WRITE", "lock", fenced, "data", 1).ok();
            assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "me").int(), 1);
            last = fenced;
        }
    }

    /// C1, guarantees "Time": a restart at a clock set back, with the data kept, prolongs no lease beyond its granted
    /// length, and tokens rise.
    fn a_restart_at_a_clock_set_back_keeps_tokens_rising(kind: ServerKind) {
        let persistent = |builder: ServerBuilder| builder.arg("appendonly", "yes").arg("appendfsync", "always");
        let shifted = Shifted::start(kind, persistent);
        let server = &shifted.server;
        shifted.step(HOUR_S);
        let mut conn = server.connect();
        let short = cmd!(conn, "LOCK.ACQUIRE", "short", "a", 2500).token();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        let gone = cmd!(conn, "LOCK.ACQUIRE", "gone", "a", LONG_MS).token();
        assert_eq!(cmd!(conn, "DEL", "gone").int(), 1);
        shifted.restart_at(-HOUR_S);
        let restarted = Instant::now();
        let mut conn = server.connect();
        let kept = info(&mut conn, "lock");
        assert_eq!((kept.field("owner").text(), kept.field("token").token()), ("a".into(), token));
        assert!(kept.field("ttl-ms").int() <= 600_000, "a lease beyond what was granted");
        assert!(cmd!(conn, "LOCK.ACQUIRE", "gone", "b", LONG_MS).token() > gone);
        let mut first = server.connect();
        send!(first, "LOCK.ACQUIRE", "short", "b", LONG_MS, "WAIT", 0);
        assert!(first.recv(SOON).token() > short);
        assert!(restarted.elapsed() < Duration::from_secs(12), "a lease of 2.5 s stood for {:?}", restarted.elapsed());
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "a").int(), 1);
        assert!(cmd!(conn, "LOCK.ACQUIRE", "lock", "b", LONG_MS).token() > token);
    }

    /// The same with a clock that is years back (a machine that has lost it), and a lock that is deleted then: what this
    /// server has issued it knows by itself.
    fn a_restart_at_a_clock_set_back_by_years_forgets_no_token(kind: ServerKind) {
        let with = |appendonly| move |builder: ServerBuilder| builder.arg("appendonly", appendonly).arg("appendfsync", "always");
        for appendonly in ["no", "yes"] {
            let shifted = Shifted::start(kind, with(appendonly));
            let mut conn = shifted.server.connect();
            let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
            if appendonly == "no" {
                cmd!(conn, "SAVE").ok();
            }
            shifted.restart_at(-10 * 365 * 24 * HOUR_S);
            let mut conn = shifted.server.connect();
            assert_eq!(info(&mut conn, "lock").field("token").token(), token);
            assert_eq!(cmd!(conn, "DEL", "lock").int(), 1);
            let next = cmd!(conn, "LOCK.ACQUIRE", "lock", "b", LONG_MS).token();
            assert!(next > token, "appendonly {appendonly}: {next} after {token}");
        }
    }

    /// Guarantees "Time": a restart at a clock an hour ahead ends leases (their wall-clock end is past), never revives.
    fn a_restart_at_a_clock_ahead_ends_leases(kind: ServerKind) {
        let persistent = |builder: ServerBuilder| builder.arg("appendonly", "yes").arg("appendfsync", "always");
        let shifted = Shifted::start(kind, persistent);
        let mut conn = shifted.server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        shifted.restart_at(HOUR_S);
        let mut conn = shifted.server.connect();
        assert_eq!(owner(&mut conn, "lock"), None);
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "a", 1000).int(), 0);
        assert!(cmd!(conn, "LOCK.ACQUIRE", "lock", "b", LONG_MS).token() > token);
    }

    /// G3: a lease that was over when its record was written stays over, whatever the clock says at the next start.
    fn a_restart_at_a_clock_set_back_revives_nothing(kind: ServerKind) {
        let shifted = Shifted::start(kind, |builder| builder);
        let mut conn = shifted.server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", 2_500).token();
        wait_free(&mut conn, "lock");
        cmd!(conn, "SAVE").ok();
        shifted.restart_at(-HOUR_S);
        let mut conn = shifted.server.connect();
        assert_eq!(number(&mut conn, "lock", "counter").unsigned_abs(), token);
        assert_eq!(owner(&mut conn, "lock"), None);
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "a", 1000).int(), 0);
        assert!(cmd!(conn, "LOCK.ACQUIRE", "lock", "b", LONG_MS).token() > token);
    }

    /// Idle records still go in time at a clock that was set back, and a replica with another clock agrees.
    fn a_replica_with_another_clock_agrees(kind: ServerKind) {
        let shifted = Shifted::start(kind, |builder| builder);
        let (primary, replica) = (&shifted.server, Server::start(kind));
        primary.config_set("lockfence.idle-ttl-ms", "300");
        replica.replicate_from(primary);
        replica.wait_in_sync(primary);
        let mut conn = primary.connect();
        for seconds in [10, -10] {
            shifted.step(seconds);
            let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
            cmd!(conn, "LOCK.ACQUIRE", format!("idle{seconds}"), "a", 1).token();
            replica.wait_in_sync(primary);
            let there = info(&mut replica.connect(), "lock");
            assert_eq!((there.field("owner").text(), there.field("token").token()), ("a".into(), token));
            let left = there.field("ttl-ms").int();
            assert!((500_000..=600_000).contains(&left), "{left} ms left of ten minutes, clocks {seconds} s apart");
            let records = || cmd!(conn, "DBSIZE").int();
            wait_until("the idle record to go", SOON, records, |left| *left == 1);
            replica.wait_in_sync(primary);
            assert_eq!(primary.digest(), replica.digest());
            assert_eq!(cmd!(primary.connect(), "LOCK.RELEASE", "lock", "a").int(), 1);
            assert!(cmd!(primary.connect(), "LOCK.ACQUIRE", "lock", "a", LONG_MS).token() > token);
        }
        assert!(stat_of(primary, "idle_records_dropped_total") >= 2);
    }
}
