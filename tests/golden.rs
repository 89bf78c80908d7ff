//! Files of format version 1, as they were written once: every later version reads them.
//!
//! `v1.rdb` and `v1.aof` were written by Redis 7.0 with the module, under a wall clock of November 2024
//! (`LOCKFENCE_WRITE_GOLDEN=1 cargo test --test module golden::write`, with a library that shifts the clock back named in
//! `LOCKFENCE_GOLDEN_PRELOAD`; only ever to be done for a *new* version, under new names). What is in them is in
//! `v1.expected`.
//! `v1-held.rdb` is composed by hand: its lease ends in the year 2200, so that it is held whenever it is loaded.

use crate::durable;

use std::fs;
use std::path::PathBuf;

use durable::{
    PATIENCE, acquire, acquire_and_release, aof_tail_file, high_and_floor, look, rewrite_aof, ttl_ms, wire,
    with_aof,
};
use lockfence_testkit::{Conn, Server, ServerKind, cmd, send, server_tests, wait_until};

const LOCKS: [&[u8]; 6] = [b"held", b"free", b"broken", b"handed over", b"odd \0\r\n\xff name", b"extended"];
const FENCES: [&[u8]; 2] = [b"fence", b"written fence"];
const OWNER: &[u8] = b"owner \0\r\n\xff";
/// What `v1-held.rdb` says.
const HELD_TOKEN: u64 = 1_764_428_400_123_456;
const YEAR_2200_US: u64 = 7_258_118_400_000_000;

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// What a server has of the golden locks, without what depends on when it is looked at.
fn describe_locks(server: &Server) -> String {
    let mut conn = server.connect();
    let mut lines = String::new();
    for (db, key) in LOCKS.map(|key| (0, key)).into_iter().chain([(5, &b"held"[..])]) {
        cmd!(conn, "SELECT", db).ok();
        let seen = look(&mut conn, key).unwrap_or_else(|| panic!("no lock {}", key.escape_ascii()));
        let (counter, grants) = (seen.counter, seen.grants);
        lines +=
            &format!("lock {} of database {db}: counter {counter}, grants {grants}\n", key.escape_ascii());
    }
    lines
}

/// And of the fences and the data.
fn describe_fences(server: &Server) -> String {
    let mut conn = server.connect();
    let mut lines = String::new();
    for key in FENCES {
        let refused = cmd!(conn, "FENCE.CHECK", key, 1);
        lines += &format!("fence {}: {}\n", key.escape_ascii(), refused.err());
    }
    lines + &format!("data: {}\n", cmd!(conn, "GET", "data").text())
}

/// One of each kind of record, by every kind of effect.
fn fill(server: &Server) {
    let mut conn = server.connect();
    acquire_and_release(&mut conn, "held");
    cmd!(conn, "LOCK.ACQUIRE", "held", OWNER, 1000).token();
    acquire_and_release(&mut conn, "free");
    acquire(&mut conn, "broken", "me", 1000);
    assert_eq!(cmd!(conn, "LOCK.BREAK", "broken").int(), 1);
    acquire(&mut conn, "handed over", "first", 1000);
    let mut waiter = server.connect();
    send!(waiter, "LOCK.ACQUIRE", "handed over", "second", 1000, "WAIT", 0);
    server.wait_blocked_clients(1);
    assert_eq!(cmd!(conn, "LOCK.RELEASE", "handed over", "first").int(), 1);
    waiter.recv(PATIENCE).token();
    cmd!(conn, "LOCK.ACQUIRE", LOCKS[4], OWNER, 1000).token();
    let token = acquire(&mut conn, "extended", "me", 1000);
    assert_eq!(cmd!(conn, "LOCK.EXTEND", "extended", "me", 1000, "MINTOKEN", token + 1000).int(), 1);
    cmd!(conn, "FENCE.ADVANCE", "fence", 70).int();
    cmd!(conn, "FENCE.ADVANCE", "written fence", 80).int();
    cmd!(conn, "FENCE.WRITE", "written fence", 1_764_428_400_000_000_u64, "data", "fenced").ok();
    cmd!(conn, "MULTI").ok();
    cmd!(conn, "LOCK.ACQUIRE", "free", "in MULTI", 1000);
    cmd!(conn, "LOCK.RELEASE", "free", "in MULTI");
    cmd!(conn, "EXEC").no_err();
    cmd!(conn, "SELECT", 5).ok();
    acquire(&mut conn, "held", "me", 1000);
}

/// A server that has started from the file, as a replica of nobody: that drops no records, though those of the file
/// have been idle for years.
fn with_file(kind: ServerKind, name: &str, append_only: bool) -> Server {
    let setup = if append_only { with_aof(kind) } else { Server::builder(kind) };
    let server = setup.config_line("replicaof 127.0.0.1 1").start();
    server.kill9();
    if append_only {
        let dir = server.dir().join("appendonlydir");
        fs::remove_dir_all(&dir).unwrap();
        fs::create_dir(&dir).unwrap();
        fs::copy(golden(name), dir.join("appendonly.aof.1.incr.aof")).unwrap();
        let manifest = "file appendonly.aof.1.incr.aof seq 1 type i\n";
        fs::write(dir.join("appendonly.aof.manifest"), manifest).unwrap();
    } else {
        fs::copy(golden(name), server.dir().join("dump.rdb")).unwrap();
    }
    server.restart();
    server
}

/// What was read is whole, and of use: every lock is free and issues above everything that the file names.
#[track_caller]
fn assert_read(server: &Server) {
    let expected = fs::read_to_string(golden("v1.expected")).unwrap();
    let locks = describe_locks(server);
    let mut conn = server.connect();
    let seen = LOCKS.map(|key| look(&mut conn, key).unwrap());
    assert!(seen.iter().all(|seen| seen.state == "free"), "{seen:?}");
    let highest = seen.iter().map(|seen| seen.counter).max().unwrap();
    assert!(high_and_floor(server).0 >= highest);
    server.promote();
    assert_eq!(locks + &describe_fences(server), expected);
    assert!(!server.log().contains("CRITICAL"), "{}", server.log_tail());
    for key in LOCKS {
        assert!(cmd!(conn, "LOCK.ACQUIRE", key, "new", 60_000).token() > highest);
    }
    assert!(acquire(&mut conn, "fresh", "new", 60_000) > highest);
}

fn write_golden() {
    let mut setup = with_aof(ServerKind::Redis70).arg("aof-use-rdb-preamble", "no");
    if let Some(library) = std::env::var_os("LOCKFENCE_GOLDEN_PRELOAD") {
        setup = setup.env("LD_PRELOAD", library);
    }
    let server = setup.start();
    fill(&server);
    let mut conn: Conn = server.connect();
    cmd!(conn, "SAVE").ok();
    fs::copy(server.dir().join("dump.rdb"), golden("v1.rdb")).unwrap();
    // Effects first, then the snapshots of a rewrite, of the same state: both are read.
    let mut aof = fs::read(aof_tail_file(server.dir())).unwrap();
    rewrite_aof(&server);
    let manifest = fs::read_to_string(server.dir().join("appendonlydir/appendonly.aof.manifest")).unwrap();
    let base = manifest.split_whitespace().find(|word| word.contains(".base.")).unwrap();
    aof.extend(fs::read(server.dir().join("appendonlydir").join(base)).unwrap());
    fs::write(golden("v1.aof"), aof).unwrap();
    fs::write(golden("v1.expected"), describe_locks(&server) + &describe_fences(&server)).unwrap();
    fs::write(golden("v1-held.rdb"), held_file()).unwrap();
}

/// `v1-held.rdb`, written down a second time.
fn held_file() -> Vec<u8> {
    let holder = wire::Holder {
        owner: OWNER.to_vec(),
        token: HELD_TOKEN,
        mode: vec![0],
        since_us: HELD_TOKEN,
        ends_us: YEAR_2200_US,
        length_ms: 3_600_000,
    };
    let lock = wire::Lock {
        version: 1,
        counter: HELD_TOKEN,
        grants: 42,
        free_since_us: YEAR_2200_US,
        holders: vec![holder],
    };
    let (lock_id, fence_id) = (wire::type_id(wire::LOCK, 1), wire::type_id(wire::FENCE, 1));
    let aux = wire::aux(HELD_TOKEN + 5, HELD_TOKEN + 30_000_000, HELD_TOKEN);
    let keys = [
        wire::rdb_key(0, b"held for ever", lock_id, &lock.bytes()),
        wire::rdb_key(0, b"fence", fence_id, &wire::fence(wire::TOKEN_MAX)),
        wire::rdb_string_key(0, b"data", b"value"),
    ];
    wire::rdb_file(Some((lock_id, &aux)), &keys)
}

server_tests! {
    /// Codec: "a version that has been released is read for ever".
    fn the_rdb_file_of_version_1_is_read(kind: ServerKind) {
        assert_read(&with_file(kind, "v1.rdb", false));
    }

    /// The same of the AOF: every kind of effect, and the snapshots of a rewrite.
    fn the_aof_of_version_1_is_read(kind: ServerKind) {
        assert_read(&with_file(kind, "v1.aof", true));
    }

    /// A lease of version 1 goes on: its owner, token, counter, grants and length are what the file says.
    fn a_lease_of_version_1_goes_on(kind: ServerKind) {
        let server = with_file(kind, "v1-held.rdb", false);
        let mut conn = server.connect();
        let seen = look(&mut conn, "held for ever").unwrap();
        assert_eq!((seen.state.as_str(), seen.owner.as_deref()), ("held", Some(OWNER)));
        assert_eq!((seen.token, seen.counter, seen.grants), (Some(HELD_TOKEN), HELD_TOKEN, 42));
        let left = ttl_ms(&mut conn, "held for ever");
        assert!((1..=3_600_000).contains(&left), "{left} ms left");
        server.promote();
        assert_eq!(cmd!(conn, "FENCE.CHECK", "fence", wire::TOKEN_MAX).int().unsigned_abs(), wire::TOKEN_MAX);
        assert!(high_and_floor(&server).0 >= HELD_TOKEN + 5, "aux data");
        assert_eq!(cmd!(conn, "LOCK.ACQUIRE", "held for ever", OWNER, 100).token(), HELD_TOKEN);
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "held for ever", OWNER, 10).int(), 1);
        wait_until("the lease to end", PATIENCE, || ttl_ms(&mut conn, "held for ever"), |left| *left == 0);
        assert!(acquire(&mut conn, "held for ever", "next", 1000) > HELD_TOKEN);
    }
}

/// The file of the last test is what the description of the format says, byte for byte.
#[test]
fn the_format_is_as_described() {
    assert_eq!(fs::read(golden("v1-held.rdb")).unwrap(), held_file());
}

/// Writes the golden files, when asked to; see the top of this file.
#[test]
fn write() {
    if std::env::var_os("LOCKFENCE_WRITE_GOLDEN").is_some() {
        write_golden();
    }
}
