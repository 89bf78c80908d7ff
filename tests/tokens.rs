//! G1: tokens only rise, whatever happens to the record between two grants. One row of the matrix is one test.

use crate::durable;

use std::collections::HashMap;
use std::fs;

use durable::{
    PATIENCE, acquire, acquire_and_release, high_and_floor, look, rewrite_aof, save_in_background, wall_us,
    wire, with_aof,
};
use lockfence_testkit::{
    Conn, Proxy, Server, ServerBuilder, ServerKind, cmd, server_tests, wait_for, wait_until,
};

const MINUTE_MS: u64 = 60_000;

/// Two locks that have issued tokens and are free.
struct World {
    server: Server,
    conn: Conn,
    /// The highest token of each name so far, in whatever database.
    last: HashMap<String, u64>,
    /// The highest of all.
    highest: u64,
}

impl World {
    fn start(setup: ServerBuilder) -> Self {
        let server = setup.start();
        let conn = server.connect();
        let mut world = Self { server, conn, last: HashMap::new(), highest: 0 };
        world.grants();
        world
    }

    /// Some grants to two locks.
    #[track_caller]
    fn grants(&mut self) {
        for _ in 0..20 {
            for key in ["lock", "neighbour"] {
                self.grant(key);
            }
        }
    }

    /// One grant, which must be higher than all tokens of that name so far, on whatever server is in charge now.
    #[track_caller]
    fn grant(&mut self, key: &str) -> u64 {
        let token = acquire_and_release(&mut self.conn, key);
        self.issued(key, token);
        token
    }

    /// Takes note of a token that must be higher than all of that name.
    #[track_caller]
    fn issued(&mut self, key: &str, token: u64) {
        let last = self.last.insert(key.to_owned(), token).unwrap_or(0);
        assert!(token > last, "{key}: {token} after {last}");
        self.highest = self.highest.max(token);
    }

    /// The end of each row: the lock goes on rising, and a name that has no record is above everything, since nobody
    /// knows whether it had one.
    #[track_caller]
    fn check(&mut self) {
        self.grant("lock");
        let highest = self.highest;
        let fresh = self.grant("never used before");
        assert!(fresh > highest, "{fresh} after {highest}");
        self.grants();
    }

    #[track_caller]
    fn crash_and_restart(&mut self) {
        self.server.kill9();
        self.server.restart();
        self.conn = self.server.connect();
    }

    /// Removes everything that the server has stored.
    fn forget_files(&self) {
        let _ = fs::remove_file(self.server.dir().join("dump.rdb"));
        let _ = fs::remove_dir_all(self.server.dir().join("appendonlydir"));
    }

    /// The replica takes the place of the server.
    #[track_caller]
    fn fail_over_to(&mut self, replica: Server) {
        self.server.kill9();
        replica.promote();
        self.conn = replica.connect();
        self.server = replica;
    }
}

/// A row whose change needs only commands.
#[track_caller]
fn row(kind: ServerKind, change: impl FnOnce(&mut World)) {
    let mut world = World::start(Server::builder(kind));
    change(&mut world);
    world.check();
}

/// A row over an AOF, with and without an RDB preamble at each rewrite.
#[track_caller]
fn aof_rows(kind: ServerKind, change: impl Fn(&mut World)) {
    for preamble in ["yes", "no"] {
        eprintln!("aof-use-rdb-preamble {preamble}");
        let mut world = World::start(with_aof(kind).arg("aof-use-rdb-preamble", preamble));
        change(&mut world);
        world.check();
    }
}

server_tests! {
    fn nothing(kind: ServerKind) {
        row(kind, |_| ());
    }

    /// F1: no record lives for ever, and the name starts above all that was issued.
    fn idle_drop(kind: ServerKind) {
        let mut world = World::start(Server::builder(kind).arg("lockfence.idle-ttl-ms", 50));
        let conn = &mut world.conn;
        let last = acquire(conn, "passing", "me", 20);
        wait_until("the record to go", PATIENCE, || cmd!(conn, "EXISTS", "passing").int(), |there| *there == 0);
        assert!(acquire(conn, "passing", "me", 20) > last);
        let last = look(conn, "passing").unwrap().counter;
        world.issued("passing", last);
        world.check();
    }

    /// F1, the other half: names used once leave nothing behind, and the next ones are above them.
    fn many_names_used_once(kind: ServerKind) {
        let mut world = World::start(Server::builder(kind).arg("lockfence.idle-ttl-ms", 50));
        cmd!(world.conn, "FLUSHALL").ok();
        let script = "local t for i = 1, 20000 do t = redis.call('LOCK.ACQUIRE', 'order:' .. i, 'me', '20') end return t";
        let last = cmd!(world.conn, "EVAL", script, 0).token();
        world.issued("order:20000", last);
        let size = || cmd!(world.conn, "DBSIZE").int();
        wait_until("all records to go", PATIENCE, size, |size| *size == 0);
        world.check();
    }

    fn del(kind: ServerKind) {
        row(kind, |world| assert_eq!(cmd!(world.conn, "DEL", "lock").int(), 1));
    }

    fn unlink(kind: ServerKind) {
        row(kind, |world| assert_eq!(cmd!(world.conn, "UNLINK", "lock", "neighbour").int(), 2));
    }

    fn del_while_held(kind: ServerKind) {
        row(kind, |world| {
            let token = acquire(&mut world.conn, "lock", "me", MINUTE_MS);
            world.issued("lock", token);
            assert_eq!(cmd!(world.conn, "DEL", "lock").int(), 1);
        });
    }

    fn expire_in_the_past(kind: ServerKind) {
        row(kind, |world| assert_eq!(cmd!(world.conn, "PEXPIREAT", "lock", 1).int(), 1));
    }

    fn expire_with_a_future_end(kind: ServerKind) {
        row(kind, |world| {
            cmd!(world.conn, "PEXPIRE", "lock", 1).int();
            assert_eq!(cmd!(world.conn, "PTTL", "lock").int(), -1);
        });
    }

    fn overwrite(kind: ServerKind) {
        row(kind, |world| {
            cmd!(world.conn, "SET", "lock", "data").ok();
            cmd!(world.conn, "DEL", "lock").int();
        });
    }

    fn flushall(kind: ServerKind) {
        row(kind, |world| cmd!(world.conn, "FLUSHALL").ok());
    }

    /// Records are freed on another thread after the command has returned.
    fn flushall_async(kind: ServerKind) {
        row(kind, |world| {
            let script = "for i = 1, 20000 do redis.call('LOCK.ACQUIRE', 'many:' .. i, 'me', '60000') end";
            cmd!(world.conn, "EVAL", script, 0).no_err();
            world.highest = world.highest.max(high_and_floor(&world.server).0);
            cmd!(world.conn, "FLUSHALL", "ASYNC").ok();
            world.grant("lock");
            cmd!(world.conn, "FLUSHALL", "ASYNC").ok();
        });
    }

    fn flushdb(kind: ServerKind) {
        row(kind, |world| cmd!(world.conn, "FLUSHDB").ok());
    }

    /// The other database holds an older record of the same name, or none.
    fn swapdb(kind: ServerKind) {
        row(kind, |world| cmd!(world.conn, "SWAPDB", 0, 1).ok());
        row(kind, |world| {
            // Another lock of that name.
            cmd!(world.conn, "SELECT", 1).ok();
            let other = acquire_and_release(&mut world.conn, "lock");
            cmd!(world.conn, "SELECT", 0).ok();
            world.grants();
            assert!(world.last["lock"] > other);
            cmd!(world.conn, "SWAPDB", 0, 1).ok();
            world.grant("lock");
            cmd!(world.conn, "SWAPDB", 1, 0).ok();
        });
    }

    fn rename_there_and_back(kind: ServerKind) {
        row(kind, |world| {
            cmd!(world.conn, "RENAME", "lock", "elsewhere").ok();
            world.grant("lock");
            cmd!(world.conn, "RENAME", "elsewhere", "lock").ok();
        });
        row(kind, |world| {
            cmd!(world.conn, "RENAME", "lock", "elsewhere").ok();
            world.grant("lock");
            cmd!(world.conn, "DEL", "lock").int();
            cmd!(world.conn, "RENAMENX", "elsewhere", "lock").int();
        });
    }

    /// An older lock takes the name of a newer one.
    fn rename_of_an_older_lock(kind: ServerKind) {
        row(kind, |world| {
            world.grant("older");
            world.grants();
            cmd!(world.conn, "RENAME", "older", "lock").ok();
        });
        row(kind, |world| {
            world.grant("older");
            world.grants();
            cmd!(world.conn, "DEL", "lock").int();
            cmd!(world.conn, "RENAME", "older", "lock").ok();
        });
    }

    fn move_there_and_back(kind: ServerKind) {
        row(kind, |world| {
            assert_eq!(cmd!(world.conn, "MOVE", "lock", 1).int(), 1);
            world.grant("lock");
            cmd!(world.conn, "DEL", "lock").int();
            cmd!(world.conn, "SELECT", 1).ok();
            assert_eq!(cmd!(world.conn, "MOVE", "lock", 0).int(), 1);
            cmd!(world.conn, "SELECT", 0).ok();
        });
    }

    /// There is no second lock with the same token.
    fn copy(kind: ServerKind) {
        row(kind, |world| {
            assert!(cmd!(world.conn, "COPY", "lock", "fresh").is_err());
            assert_eq!(cmd!(world.conn, "EXISTS", "fresh").int(), 0);
        });
    }

    fn eviction(kind: ServerKind) {
        row(kind, |world| {
            let conn = &mut world.conn;
            cmd!(conn, "CONFIG", "SET", "maxmemory-policy", "allkeys-random").ok();
            let limit = world.server.used_memory() + 2_000_000;
            cmd!(conn, "CONFIG", "SET", "maxmemory", limit).ok();
            let mut number = 0;
            wait_until("the lock to be evicted", PATIENCE, || {
                for _ in 0..50 {
                    number += 1;
                    cmd!(conn, "SET", format!("filler:{number}"), vec![b'x'; 20_000]).ok();
                }
                cmd!(conn, "EXISTS", "lock").int()
            }, |there| *there == 0);
            cmd!(conn, "CONFIG", "SET", "maxmemory", 0).ok();
        });
    }

    /// F8, I4: over the lock, and where it was.
    fn restore_of_an_old_dump(kind: ServerKind) {
        for delete_first in [false, true] {
            row(kind, |world| {
                let dump = cmd!(world.conn, "DUMP", "lock");
                world.grants();
                if delete_first {
                    cmd!(world.conn, "DEL", "lock").int();
                }
                cmd!(world.conn, "RESTORE", "lock", 0, dump.bytes(), "REPLACE").ok();
                world.grant("lock");
                cmd!(world.conn, "RESTORE", "lock", 0, dump.bytes(), "REPLACE").ok();
            });
        }
    }

    /// A record from another server whose clock is ahead, gone again before anything was granted on it.
    fn restore_from_ahead_and_delete(kind: ServerKind) {
        row(kind, |world| {
            let base = wall_us().max(high_and_floor(&world.server).1);
            let ahead = base + 8_000_000;
            cmd!(world.conn, "RESTORE", "lock", 0, wire::lock_payload(&wire::Lock::free(ahead)), "REPLACE").ok();
            world.issued("lock", ahead);
            cmd!(world.conn, "DEL", "lock").int();
        });
    }

    /// F8: a held lock's dump brings no lease back that a later grant has excluded.
    fn restore_of_an_old_lease(kind: ServerKind) {
        row(kind, |world| {
            let old = acquire(&mut world.conn, "lock", "A", MINUTE_MS);
            let dump = cmd!(world.conn, "DUMP", "lock");
            assert_eq!(cmd!(world.conn, "LOCK.RELEASE", "lock", "A").int(), 1);
            world.issued("lock", old);
            for _ in 0..10 {
                world.grant("lock");
            }
            cmd!(world.conn, "RESTORE", "lock", 0, dump.bytes(), "REPLACE").ok();
            assert_eq!(look(&mut world.conn, "lock").unwrap().state, "free");
            cmd!(world.conn, "FENCE.WRITE", "lock", old, "data", "old").assert_err_prefix("FENCED ");
            assert_eq!(cmd!(world.conn, "LOCK.EXTEND", "lock", "A", 1000).int(), 0);
        });
    }

    fn restart_from_an_rdb_file(kind: ServerKind) {
        row(kind, |world| {
            cmd!(world.conn, "SAVE").ok();
            world.crash_and_restart();
        });
        row(kind, |world| {
            cmd!(world.conn, "FLUSHALL").ok();
            save_in_background(&world.server);
            world.crash_and_restart();
        });
    }

    fn restart_with_nothing(kind: ServerKind) {
        row(kind, World::crash_and_restart);
    }

    fn restart_from_an_older_rdb_file(kind: ServerKind) {
        row(kind, |world| {
            cmd!(world.conn, "SAVE").ok();
            world.grants();
            world.crash_and_restart();
        });
    }

    fn restart_from_an_aof(kind: ServerKind) {
        aof_rows(kind, World::crash_and_restart);
    }

    fn restart_from_a_rewritten_aof(kind: ServerKind) {
        aof_rows(kind, |world| {
            rewrite_aof(&world.server);
            world.crash_and_restart();
        });
        aof_rows(kind, |world| {
            rewrite_aof(&world.server);
            world.grants();
            world.crash_and_restart();
        });
    }

    /// F2: nothing in the file knows of the tokens.
    fn restart_from_an_aof_rewritten_after_a_flush(kind: ServerKind) {
        aof_rows(kind, |world| {
            cmd!(world.conn, "FLUSHALL").ok();
            rewrite_aof(&world.server);
            world.crash_and_restart();
        });
    }

    /// Each start raises the floor; what is fsynced keeps tokens rising through any number of them.
    fn restart_five_times_in_a_row(kind: ServerKind) {
        aof_rows(kind, |world| {
            for _ in 0..5 {
                world.crash_and_restart();
                world.grant("lock");
                world.grant("fresh");
            }
            for _ in 0..5 {
                world.crash_and_restart();
            }
        });
    }

    fn debug_reload(kind: ServerKind) {
        row(kind, |world| {
            cmd!(world.conn, "DEBUG", "RELOAD").ok();
            world.grant("lock");
            cmd!(world.conn, "DEL", "lock").int();
            cmd!(world.conn, "DEBUG", "RELOAD").ok();
        });
    }

    fn debug_loadaof(kind: ServerKind) {
        aof_rows(kind, |world| cmd!(world.conn, "DEBUG", "LOADAOF").ok());
    }

    fn failover(kind: ServerKind) {
        row(kind, |world| {
            let replica = Server::start(kind);
            replica.replicate_from(&world.server);
            world.grants();
            replica.wait_in_sync(&world.server);
            world.fail_over_to(replica);
        });
    }

    /// E5: the replica has not heard of the last grants, nor of the locks that were made since.
    fn failover_with_a_lost_tail(kind: ServerKind) {
        row(kind, |world| {
            let replica = Server::start(kind);
            let proxy = Proxy::to(&world.server);
            cmd!(replica.connect(), "REPLICAOF", "127.0.0.1", proxy.port()).ok();
            replica.wait_in_sync(&world.server);
            proxy.refuse();
            world.grants();
            world.grant("fresh");
            world.fail_over_to(replica);
        });
    }

    /// A failover of locks that were deleted before: the replica knows them from the stream alone.
    fn failover_after_a_flush(kind: ServerKind) {
        row(kind, |world| {
            let replica = Server::start(kind);
            replica.replicate_from(&world.server);
            replica.wait_in_sync(&world.server);
            world.grants();
            cmd!(world.conn, "FLUSHALL").ok();
            replica.wait_in_sync(&world.server);
            world.fail_over_to(replica);
        });
    }

    /// And from the snapshot's aux data alone.
    fn failover_to_a_replica_that_came_after_a_flush(kind: ServerKind) {
        row(kind, |world| {
            cmd!(world.conn, "FLUSHALL").ok();
            let replica = Server::start(kind);
            replica.replicate_from(&world.server);
            replica.wait_in_sync(&world.server);
            assert!(high_and_floor(&replica).0 >= world.highest);
            world.fail_over_to(replica);
        });
    }

    fn rewind_then_restart(kind: ServerKind) {
        row(kind, |world| {
            let dump = cmd!(world.conn, "DUMP", "lock");
            world.grants();
            cmd!(world.conn, "RESTORE", "lock", 0, dump.bytes(), "REPLACE").ok();
            cmd!(world.conn, "SAVE").ok();
            world.crash_and_restart();
        });
        aof_rows(kind, |world| {
            let dump = cmd!(world.conn, "DUMP", "lock");
            world.grants();
            cmd!(world.conn, "DEL", "lock").int();
            cmd!(world.conn, "RESTORE", "lock", 0, dump.bytes(), "REPLACE").ok();
            world.crash_and_restart();
        });
    }

    fn everything_lost(kind: ServerKind) {
        row(kind, |world| {
            cmd!(world.conn, "SAVE").ok();
            world.server.kill9();
            world.forget_files();
            world.server.restart();
            world.conn = world.server.connect();
        });
        aof_rows(kind, |world| {
            world.server.kill9();
            world.forget_files();
            world.server.restart();
            world.conn = world.server.connect();
        });
    }

    /// Proposals (MINTOKEN) as far ahead as is accepted, on a lock and then on one that is gone, right before a start
    /// that keeps the data: RDB, AOF, and neither of them with its records.
    fn proposals_right_before_a_restart(kind: ServerKind) {
        let propose = |world: &mut World| {
            let base = wall_us().max(high_and_floor(&world.server).1);
            for (key, ahead) in [("lock", 9_000_000), ("gone", 9_500_000)] {
                let wanted = base + ahead;
                let token = cmd!(world.conn, "LOCK.ACQUIRE", key, "me", MINUTE_MS, "MINTOKEN", wanted).token();
                assert!(token >= wanted);
                world.issued(key, token);
                assert_eq!(cmd!(world.conn, "LOCK.RELEASE", key, "me").int(), 1);
            }
            let far = wall_us().max(high_and_floor(&world.server).1) + 20_000_000;
            cmd!(world.conn, "LOCK.ACQUIRE", "other", "me", 1000, "MINTOKEN", far).assert_err_prefix("ERR ");
            cmd!(world.conn, "DEL", "gone").int();
            world.grant("fresh");
        };
        row(kind, |world| propose(world));
        row(kind, |world| {
            propose(world);
            cmd!(world.conn, "SAVE").ok();
            world.crash_and_restart();
        });
        aof_rows(kind, |world| {
            propose(world);
            world.crash_and_restart();
        });
        aof_rows(kind, |world| {
            propose(world);
            rewrite_aof(&world.server);
            world.crash_and_restart();
        });
        // Twice within 30 s: only where the rewrite keeps the aux data.
        let mut world = World::start(with_aof(kind).arg("aof-use-rdb-preamble", "yes"));
        propose(&mut world);
        world.crash_and_restart();
        propose(&mut world);
        rewrite_aof(&world.server);
        world.crash_and_restart();
        world.check();
    }

    /// "Tokens that survive": a record that is read raises what other locks issue by no more than base + 60 s, a grant on
    /// it by no more than half of all numbers.
    fn a_record_from_far_ahead_does_not_take_everybodys_numbers(kind: ServerKind) {
        row(kind, |world| {
            let far = wire::TOKEN_MAX - 1000;
            let payload = wire::lock_payload(&wire::Lock::free(far));
            cmd!(world.conn, "RESTORE", "far", 0, payload).ok();
            let token = world.grant("lock");
            let base = wall_us().max(high_and_floor(&world.server).1);
            assert!(token < base + 61_000_000, "{token} with a base of {base}");
            assert!(acquire_and_release(&mut world.conn, "far") > far);
            cmd!(world.conn, "DEL", "far").int();
            let token = world.grant("lock");
            assert!(token < (1 << 52) + 1_000_000, "{token}");
        });
    }

    /// `lockfence.tokens dense`: 1, 2, 3 …, and rising as far as the data survives.
    fn dense_tokens_go_on_where_the_data_does(kind: ServerKind) {
        let server = Server::builder(kind).module_args(["tokens", "dense"]).start();
        let mut conn = server.connect();
        let three = [0; 3].map(|_| acquire_and_release(&mut conn, "lock"));
        assert_eq!(three, [1, 2, 3]);
        assert_eq!(acquire_and_release(&mut conn, "other"), 4);
        cmd!(conn, "DEL", "lock").int();
        assert_eq!(acquire_and_release(&mut conn, "lock"), 5);
        cmd!(conn, "FLUSHALL").ok();
        cmd!(conn, "SAVE").ok();
        server.kill9();
        server.restart();
        assert_eq!(acquire_and_release(&mut server.connect(), "lock"), 6);
    }
}

/// "30 s cover proposals": a server that has run past its own restart floor accepts proposals 10 s ahead, loses
/// everything, and starts above them. Once for all servers at the same time: it takes half a minute.
#[test]
fn proposals_lost_with_everything_else() {
    let one = |kind: ServerKind| {
        let mut world = World::start(Server::builder(kind));
        let floor = high_and_floor(&world.server).1;
        wait_for("the clock to pass the restart floor", PATIENCE * 2, || {
            let now = wall_us();
            if now > floor { Ok(()) } else { Err(now) }
        });
        let wanted = wall_us() + 9_900_000;
        let token = cmd!(world.conn, "LOCK.ACQUIRE", "lock", "me", MINUTE_MS, "MINTOKEN", wanted).token();
        assert!(token >= wanted);
        world.issued("lock", token);
        world.crash_and_restart();
        world.check();
    };
    let kinds = ServerKind::MATRIX.into_iter().filter(|kind| kind.present());
    let threads: Vec<_> = kinds.map(|kind| std::thread::spawn(move || one(kind))).collect();
    let failed = threads.into_iter().map(std::thread::JoinHandle::join).filter(Result::is_err).count();
    assert_eq!(failed, 0, "servers on which tokens fell");
}
