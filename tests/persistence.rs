//! What a server's RDB snapshots keep, what they leave out, and how to leave lockfence behind.

use crate::durable;

use std::fs;
use std::time::{Duration, Instant};

use durable::{
    PATIENCE, acquire, acquire_and_release, high_and_floor, look, rewrite_aof, save_in_background, ttl_ms,
    wall_us, wire,
};
use lockfence_testkit::{Conn, Server, ServerKind, cmd, send, server_tests, wait_until};

const MINUTE_MS: u64 = 60_000;

/// A held lock with three grants and an extended lease, a released one, one whose lease is over, a fence, in two
/// databases.
fn fill(conn: &mut Conn) {
    acquire_and_release(conn, "held");
    acquire_and_release(conn, "held");
    acquire(conn, "held", "holder\0\r\n\u{e9}", MINUTE_MS);
    assert_eq!(cmd!(conn, "LOCK.EXTEND", "held", "holder\0\r\n\u{e9}", 2 * MINUTE_MS).int(), 1);
    acquire_and_release(conn, "free");
    acquire(conn, "over", "late", 1);
    wait_until("the lease to end", PATIENCE, || ttl_ms(conn, "over"), |ttl| *ttl == 0);
    cmd!(conn, "FENCE.ADVANCE", "fence", 77).no_err();
    cmd!(conn, "FENCE.ADVANCE", "passing", 78, "PX", 2 * MINUTE_MS).no_err();
    cmd!(conn, "SELECT", 3).ok();
    acquire(conn, "held", "in another database", MINUTE_MS);
    cmd!(conn, "SELECT", 0).ok();
}

const LOCKS: [&str; 3] = ["held", "free", "over"];

/// Everything that is there after [`fill`], before and after `restart`: the same, and the lease shorter by the time
/// that has gone by.
#[track_caller]
fn assert_kept(server: &Server, again: impl FnOnce(&Server)) {
    let mut conn = server.connect();
    fill(&mut conn);
    let before = LOCKS.map(|key| look(&mut conn, key));
    let (digest, began, ttl) = (server.digest(), Instant::now(), ttl_ms(&mut conn, "held"));
    again(server);
    let mut conn = server.connect();
    let left = ttl_ms(&mut conn, "held");
    let passed = i64::try_from(began.elapsed().as_millis()).unwrap();
    assert_eq!(server.digest(), digest);
    assert_eq!(LOCKS.map(|key| look(&mut conn, key)), before);
    assert!(
        left <= ttl && left >= ttl - passed - 5,
        "a lease of {ttl} ms has {left} ms left after {passed} ms"
    );
    let held = before[0].as_ref().unwrap();
    assert_eq!((held.state.as_str(), held.grants, held.token), ("held", 3, Some(held.counter)));
    assert_eq!(before[2].as_ref().unwrap().state, "free");
    assert_eq!(cmd!(conn, "FENCE.CHECK", "fence", 77).int(), 77);
    assert!((1..=2 * MINUTE_MS.cast_signed()).contains(&cmd!(conn, "PTTL", "passing").int()));
    assert_eq!(cmd!(conn, "PTTL", "held").int(), -1, "a lock carries no TTL of the server's");
    // The holder goes on, nobody else may.
    cmd!(conn, "LOCK.ACQUIRE", "held", "another", 1000).nil();
    let renewed = acquire(&mut conn, "held", "holder\0\r\n\u{e9}", MINUTE_MS);
    assert_eq!(renewed, held.counter);
    assert_eq!(cmd!(conn, "LOCK.RELEASE", "held", "holder\0\r\n\u{e9}").int(), 1);
    // Ended is ended: LOCK.EXTEND revives nothing, the next grant is higher.
    assert_eq!(cmd!(conn, "LOCK.EXTEND", "over", "late", MINUTE_MS).int(), 0);
    for (key, before) in LOCKS.iter().zip(&before) {
        assert!(acquire(&mut conn, key, "next", MINUTE_MS) > before.as_ref().unwrap().counter, "{key}");
    }
    cmd!(conn, "SELECT", 3).ok();
    assert_eq!(look(&mut conn, "held").unwrap().owner.unwrap(), b"in another database");
}

server_tests! {
    /// G6: a snapshot keeps holders, owners, tokens, counters and grants; leases go on with what is left of them.
    fn save_and_restart_keep_locks_and_leases(kind: ServerKind) {
        let server = Server::start(kind);
        assert_kept(&server, |server| {
            cmd!(server.connect(), "SAVE").ok();
            server.kill9();
            server.restart();
        });
    }

    /// G6, the forked child writes the same.
    fn bgsave_and_restart_keep_locks_and_leases(kind: ServerKind) {
        let server = Server::start(kind);
        assert_kept(&server, |server| {
            save_in_background(server);
            server.kill9();
            server.restart();
        });
    }

    /// E11, F1: DEBUG RELOAD saves, empties and loads in the living process.
    fn debug_reload_keeps_locks_and_leases(kind: ServerKind) {
        let server = Server::start(kind);
        assert_kept(&server, |server| cmd!(server.connect(), "DEBUG", "RELOAD").ok());
    }

    /// G6: SHUTDOWN with a snapshot.
    fn shutdown_save_and_restart_keep_locks_and_leases(kind: ServerKind) {
        let server = Server::start(kind);
        assert_kept(&server, |server| {
            server.shutdown_saving();
            server.restart();
        });
    }

    /// "Time": a lease that ends while the server is down is over when it is back, and its token is stale at the
    /// next grant.
    fn a_lease_that_ends_while_the_server_is_down_is_over(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = acquire(&mut conn, "lock", "me", 200);
        cmd!(conn, "SAVE").ok();
        server.kill9();
        let saved = Instant::now();
        let ends = saved + Duration::from_millis(250);
        wait_until("the lease's end", PATIENCE, Instant::now, |now| *now > ends);
        server.restart();
        let mut conn = server.connect();
        let seen = look(&mut conn, "lock").unwrap();
        assert_eq!((seen.state.as_str(), seen.holders, seen.owner), ("free", 0, None));
        assert_eq!(ttl_ms(&mut conn, "lock"), 0);
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "me", 1000).int(), 0);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "me").int(), 0);
        // Its last token still writes until the next grant.
        assert_eq!(cmd!(conn, "FENCE.CHECK", "lock", token).int().unsigned_abs(), token);
        assert!(acquire(&mut conn, "lock", "me", 1000) > token);
        cmd!(conn, "FENCE.CHECK", "lock", token).assert_err_prefix("FENCED ");
    }

    /// "Time": a stored lease has at most its granted length left, whatever the clock says. The file says: length
    /// 1 s, ends in an hour.
    fn a_loaded_lease_is_never_longer_than_granted(kind: ServerKind) {
        let server = Server::start(kind);
        let token = wall_us();
        let lock = wire::Lock::held(token, b"me", token, 3_600_000, 1000).bytes();
        let file = wire::rdb_file(None, &[wire::rdb_key(0, b"lock", wire::type_id(wire::LOCK, 1), &lock)]);
        server.kill9();
        fs::write(server.dir().join("dump.rdb"), file).unwrap();
        server.restart();
        let mut conn = server.connect();
        let seen = look(&mut conn, "lock").unwrap();
        if seen.state == "held" {
            assert!(ttl_ms(&mut conn, "lock") <= 1000);
        }
        wait_until("the lease to end", Duration::from_secs(10), || ttl_ms(&mut conn, "lock"), |ttl| *ttl == 0);
        assert!(acquire(&mut conn, "lock", "you", 1000) > token);
    }

    /// E11, contract "What goes wrong": waiters at a DEBUG RELOAD are told that their lock is lost, or are served;
    /// none hangs, none is granted what another holds, and the queue is usable afterwards.
    fn waiters_at_a_debug_reload_are_answered(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = acquire(&mut conn, "lock", "holder", MINUTE_MS);
        let mut waiters: Vec<_> = (0..3).map(|_| server.connect()).collect();
        for (number, waiter) in waiters.iter_mut().enumerate() {
            send!(waiter, "LOCK.ACQUIRE", "lock", format!("w{number}"), MINUTE_MS, "WAIT", 0);
            server.wait_blocked_clients(number as u64 + 1);
        }
        cmd!(conn, "DEBUG", "RELOAD").ok();
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "holder").int(), 1, "the lease has gone on");
        for (number, waiter) in waiters.iter_mut().enumerate() {
            let reply = waiter.recv(PATIENCE);
            if reply.is_err() {
                reply.assert_err_prefix("LOCKLOST ");
            } else {
                assert!(reply.token() > token);
                assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", format!("w{number}")).int(), 1);
            }
        }
        server.wait_blocked_clients(0);
        let held = acquire(&mut conn, "lock", "holder", MINUTE_MS);
        let waiter = &mut waiters[0];
        send!(waiter, "LOCK.ACQUIRE", "lock", "again", MINUTE_MS, "WAIT", 0);
        server.wait_blocked_clients(1);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "holder").int(), 1);
        assert!(waiter.recv(PATIENCE).token() > held);
    }

    /// E11: after a DEBUG RELOAD timers describe what was loaded: the lease of a loaded lock ends, and who waits for
    /// it then is served without a further command.
    fn a_lease_loaded_by_a_reload_ends_for_those_who_wait(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = acquire(&mut conn, "lock", "holder", 1500);
        cmd!(conn, "DEBUG", "RELOAD").ok();
        let mut waiter = server.connect();
        let asked = Instant::now();
        send!(waiter, "LOCK.ACQUIRE", "lock", "waiter", MINUTE_MS, "WAIT", 0);
        assert!(waiter.recv(PATIENCE).token() > token);
        assert!(asked.elapsed() < Duration::from_secs(15), "served {:?} after it asked", asked.elapsed());
    }

    /// "Tokens that survive": idle records are dropped after a load as before it, so a restart leaks none.
    fn loaded_records_are_dropped_when_idle(kind: ServerKind) {
        let server = Server::builder(kind).arg("lockfence.idle-ttl-ms", 300).start();
        let mut conn = server.connect();
        server.config_set("lockfence.idle-ttl-ms", "60000");
        for number in 0..20 {
            acquire_and_release(&mut conn, format!("lock:{number}"));
        }
        acquire(&mut conn, "held", "me", MINUTE_MS);
        cmd!(conn, "SAVE").ok();
        server.kill9();
        server.restart();
        let mut conn = server.connect();
        let size = || cmd!(conn, "DBSIZE").int();
        wait_until("idle records to be dropped", PATIENCE, size, |size| *size == 1);
        assert_eq!(look(&mut server.connect(), "held").unwrap().state, "held");
    }

    /// "Tokens that survive": *high* and the floor travel in aux data, also when no lock is left.
    fn aux_data_keeps_high_and_floor_when_no_lock_is_left(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        // Well ahead of clock and floor, so that only what the file says can keep tokens rising at once.
        let (_, floor) = high_and_floor(&server);
        let proposal = floor + 9_000_000;
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", MINUTE_MS, "MINTOKEN", proposal).token();
        assert_eq!(token, proposal);
        cmd!(conn, "FLUSHALL").ok();
        cmd!(conn, "SAVE").ok();
        server.kill9();
        server.restart();
        let (high, new_floor) = high_and_floor(&server);
        assert_eq!(high, token, "high is what the file says");
        assert!(new_floor >= token + 30_000_000, "floor {new_floor} after high {token}");
        assert!(acquire(&mut server.connect(), "lock", "me", MINUTE_MS) > token);
    }

    /// The same, of aux data as it is written: a file that says high = now + 40 s and floor = now + 20 s.
    fn aux_data_of_a_server_whose_clock_was_ahead_is_believed_as_far_as_it_may(kind: ServerKind) {
        let server = Server::start(kind);
        let high = wall_us() + 40_000_000;
        let id = wire::type_id(wire::LOCK, 1);
        let file = wire::rdb_file(Some((id, &wire::aux(high, high - 20_000_000, wall_us()))), &[]);
        server.kill9();
        fs::write(server.dir().join("dump.rdb"), file).unwrap();
        server.restart();
        assert!(acquire(&mut server.connect(), "lock", "me", MINUTE_MS) > high);
    }

    /// "the way out": a server where lockfence has issued and loaded nothing writes nothing of its own into an RDB
    /// file, so that a server without the module reads it. Redis 7.0 knows no optional aux data: there it is always
    /// written, and the file needs the module.
    fn a_file_in_which_nothing_was_locked_needs_no_module(kind: ServerKind) {
        let server = Server::start(kind);
        cmd!(server.connect(), "SET", "key", "value").ok();
        cmd!(server.connect(), "SAVE").ok();
        let file = server.dir().join("dump.rdb");
        let mentions = fs::read(&file).unwrap().windows(9).any(|id| {
            id[0] == 0x81 && id[1..] == wire::type_id(wire::LOCK, 1).to_be_bytes()
        });
        let started = start_plain(kind, |dir| {
            fs::copy(&file, dir.join("dump.rdb")).unwrap();
        }, false);
        if kind == ServerKind::Redis70 {
            assert!(mentions);
            let failure = started.expect_err("a file that needs the module");
            assert!(failure.contains("no matching module 'lockfence'"), "{failure}");
        } else {
            assert!(!mentions);
            assert_eq!(cmd!(started.unwrap().connect(), "GET", "key").text(), "value");
        }
    }

    /// What a server without the module does with locks in a file: it does not start, and names the module.
    fn a_server_without_the_module_refuses_a_file_with_locks_by_name(kind: ServerKind) {
        let server = Server::start(kind);
        acquire(&mut server.connect(), "lock", "me", MINUTE_MS);
        cmd!(server.connect(), "SAVE").ok();
        let file = server.dir().join("dump.rdb");
        let started = start_plain(kind, |dir| {
            fs::copy(&file, dir.join("dump.rdb")).unwrap();
        }, false);
        let log = started.expect_err("a file that needs the module");
        assert!(log.contains("no matching module 'lockfence'"), "{log}");
    }

    /// Deleting the locks is not enough: the aux data still names the module. (docs: use the way out below)
    fn a_file_from_which_the_locks_were_deleted_still_needs_the_module(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        acquire(&mut conn, "lock", "me", MINUTE_MS);
        cmd!(conn, "UNLINK", "lock").no_err();
        cmd!(conn, "SAVE").ok();
        let file = server.dir().join("dump.rdb");
        let started = start_plain(kind, |dir| {
            fs::copy(&file, dir.join("dump.rdb")).unwrap();
        }, false);
        assert!(started.expect_err("aux data").contains("no matching module 'lockfence'"));
    }

    /// The way out (docs/OPERATIONS.md): delete what lockfence has made, let the server write an AOF without an RDB
    /// preamble, start without the module from that AOF, and save from there.
    fn the_way_out_gives_files_that_load_without_the_module(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        fill(&mut conn);
        let big = vec![b'x'; 100_000];
        cmd!(conn, "SET", "string", &big).ok();
        cmd!(conn, "SET", "volatile", "v", "PX", 10 * MINUTE_MS).ok();
        cmd!(conn, "RPUSH", "list", "a", "b").int();
        leave(&server);
        let dir = server.dir().to_owned();
        let plain = start_plain(kind, |to| {
            durable::copy_dir(&dir.join("appendonlydir"), &to.join("appendonlydir"));
        }, true).unwrap_or_else(|log| panic!("the AOF does not load: {log}"));
        let mut conn = plain.connect();
        assert_eq!(cmd!(conn, "GET", "string").bytes(), big);
        assert!(cmd!(conn, "PTTL", "volatile").int() > 0);
        assert_eq!(cmd!(conn, "LRANGE", "list", 0, -1).items().len(), 2);
        assert_eq!(cmd!(conn, "DBSIZE").int(), 3);
        // And from there an RDB file like any other.
        cmd!(conn, "SAVE").ok();
        let file = plain.dir().join("dump.rdb");
        let last = start_plain(kind, |to| {
            fs::copy(&file, to.join("dump.rdb")).unwrap();
        }, false).unwrap_or_else(|log| panic!("the RDB file does not load: {log}"));
        assert_eq!(cmd!(last.connect(), "DBSIZE").int(), 3);
    }

    /// A file of a later version of the format is refused, and the log says why: "format version 2".
    fn a_newer_format_is_refused_by_name(kind: ServerKind) {
        let token = wall_us();
        let record = |version| wire::Lock { version, ..wire::Lock::free(token) }.bytes();
        let fence = |version| { let mut bytes = wire::fence(7); bytes[0] = version; bytes };
        let aux = |version| { let mut bytes = wire::aux(token, token, token); bytes[0] = version; bytes };
        let (lock_id, fence_id) = (wire::type_id(wire::LOCK, 1), wire::type_id(wire::FENCE, 1));
        let newer_id = wire::type_id(wire::LOCK, 2);
        let files = [
            ("a lock's record", wire::rdb_file(None, &[wire::rdb_key(0, b"k", lock_id, &record(2))])),
            ("a fence's record", wire::rdb_file(None, &[wire::rdb_key(0, b"k", fence_id, &fence(2))])),
            ("the data type", wire::rdb_file(None, &[wire::rdb_key(0, b"k", newer_id, &record(1))])),
            ("aux data", wire::rdb_file(Some((lock_id, &aux(2))), &[])),
        ];
        for (what, file) in files {
            let server = Server::builder(kind).may_die().start();
            server.kill9();
            fs::write(server.dir().join("dump.rdb"), file).unwrap();
            let failure = server.try_restart().expect_err(what);
            assert!(failure.log.contains("format version 2"), "{what}: {failure}");
            assert!(failure.log.contains("reads up to version 1"), "{what}: {failure}");
        }
    }

    /// F7: a snapshot whose record is damaged (its checksum is right) stops the start with a line that says so; it
    /// is not loaded half, and nothing crashes.
    fn a_damaged_record_in_a_snapshot_is_refused(kind: ServerKind) {
        let id = wire::type_id(wire::LOCK, 1);
        let whole = wire::Lock::held(wall_us(), b"me", wall_us(), 1000, 1000).bytes();
        let mut extra = whole.clone();
        extra.push(0);
        for bytes in [&whole[..whole.len() - 1], &whole[..3], &[], &extra] {
            let server = Server::builder(kind).may_die().start();
            server.kill9();
            fs::write(server.dir().join("dump.rdb"), wire::rdb_file(None, &[wire::rdb_key(0, b"k", id, bytes)])).unwrap();
            let failure = server.try_restart().expect_err("a damaged record");
            assert!(failure.log.contains("a record cannot be read"), "{failure}");
            assert!(!failure.log.contains("crashed by signal"), "{failure}");
        }
    }
}

/// The way out, up to the server's end. Each step is one that an administrator would type.
fn leave(server: &Server) {
    let mut conn = server.connect();
    for db in 0..16 {
        cmd!(conn, "SELECT", db).ok();
        for kind in [wire::LOCK, wire::FENCE] {
            let mut cursor = "0".to_owned();
            loop {
                let reply = cmd!(conn, "SCAN", &cursor, "TYPE", kind, "COUNT", 1000);
                for key in reply.items()[1].items() {
                    cmd!(conn, "UNLINK", key.bytes()).no_err();
                }
                cursor = reply.items()[0].text();
                if cursor == "0" {
                    break;
                }
            }
        }
    }
    cmd!(conn, "CONFIG", "SET", "aof-use-rdb-preamble", "no").ok();
    cmd!(conn, "CONFIG", "SET", "appendonly", "yes").ok();
    let look = || server.info("persistence");
    wait_until("the AOF to be written", PATIENCE, look, |info| {
        info["aof_rewrite_in_progress"] == "0" && info["aof_rewrite_scheduled"] == "0"
    });
    assert_eq!(server.info("persistence")["aof_last_bgrewrite_status"], "ok");
    rewrite_aof(server);
    server.kill9();
}

/// Starts a server without the module in a folder that `prepare` has filled; its log where it does not start.
fn start_plain(
    kind: ServerKind,
    prepare: impl FnOnce(&std::path::Path),
    append_only: bool,
) -> Result<Server, String> {
    let aof = if append_only { "yes" } else { "no" };
    let server = Server::builder(kind).without_module().arg("appendonly", aof).may_die().start();
    server.kill9();
    let _ = fs::remove_dir_all(server.dir().join("appendonlydir"));
    prepare(server.dir());
    match server.try_restart() {
        Ok(()) => Ok(server),
        Err(failure) => Err(failure.log),
    }
}
