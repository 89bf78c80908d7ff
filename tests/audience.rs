//! Effects that nobody gets are not made on servers where that is known for certain. Whoever begins to listen while
//! clients go on, in whatever way, misses nothing.

use crate::common::assert_same_data;
use crate::durable;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use durable::{PATIENCE, acquire, look, save_in_background};
use lockfence_testkit::{
    Conn, Proxy, Server, ServerBuilder, ServerKind, cmd, send, server_tests, wait_for, wait_until,
};

const LONG_MS: u64 = 600_000;

/// So that snapshots stay small.
const BETWEEN_ROUNDS: Duration = Duration::from_millis(1);

/// A client that makes every kind of change, at new names again and again: one that is missed stays missed.
struct Load {
    rounds: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    client: JoinHandle<()>,
}

impl Load {
    fn on(server: &Server) -> Self {
        let (rounds, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, stopped, mut conn) = (Arc::clone(&rounds), Arc::clone(&stop), server.connect());
        let client = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                round(&mut conn, counted.load(Ordering::Relaxed));
                counted.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(BETWEEN_ROUNDS);
            }
        });
        let load = Self { rounds, stop, client };
        load.goes_on();
        load
    }

    /// Waits until it has made some rounds more.
    #[track_caller]
    fn goes_on(&self) {
        let rounds = || self.rounds.load(Ordering::Relaxed);
        let enough = rounds() + 20;
        wait_until("the clients' next rounds", PATIENCE, rounds, |rounds| *rounds >= enough);
    }

    /// Ends it; how many rounds it made.
    #[track_caller]
    fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.client.join().expect("no command has failed");
        self.rounds.load(Ordering::Relaxed)
    }
}

/// A lock that stays held, one that is extended and released, one that changes hands, a fence, a fenced write.
fn round(conn: &mut Conn, n: u64) {
    let (held, gone, fence, data) =
        (format!("held{n}"), format!("gone{n}"), format!("fence{n}"), format!("data{n}"));
    let token = acquire(conn, &held, "me", LONG_MS);
    acquire(conn, &gone, "me", LONG_MS);
    assert_eq!(cmd!(conn, "LOCK.EXTEND", &gone, "me", LONG_MS, "MINTOKEN", token).int(), 1);
    assert_eq!(cmd!(conn, "LOCK.RELEASE", &gone, "me").int(), 1);
    acquire(conn, "hands", &format!("owner{n}"), LONG_MS);
    assert_eq!(cmd!(conn, "LOCK.BREAK", "hands").int(), 1);
    cmd!(conn, "FENCE.ADVANCE", &fence, token).no_err();
    cmd!(conn, "FENCE.WRITE", &held, token, &data, n).no_err();
}

/// The replica has all that the primary has, which is not little.
#[track_caller]
fn assert_nothing_missed(primary: &Server, replica: &Server, rounds: u64) {
    assert_same_data(primary, replica);
    let mut conn = replica.connect();
    for n in [0, rounds / 2, rounds - 1] {
        let seen = look(&mut conn, format!("held{n}")).expect("the record");
        assert_eq!(seen.owner.as_deref(), Some(&b"me"[..]));
    }
}

/// A primary on which a child that saves takes its time.
fn with_slow_children(kind: ServerKind, diskless: &str, delay_s: u64) -> Server {
    let builder = Server::builder(kind).arg("repl-diskless-sync", diskless);
    builder.arg("repl-diskless-sync-delay", delay_s).arg("rdb-key-save-delay", 500).start()
}

/// A replica asks for all there is, and has gone before a child is forked for it: the server has a history now.
#[track_caller]
fn begin_history(primary: &Server) {
    let mut gone = primary.connect();
    cmd!(gone, "REPLCONF", "capa", "eof", "capa", "psync2").ok();
    send!(gone, "PSYNC", "?", "-1");
    let known = || replicas(primary);
    wait_until("the replica to be known", PATIENCE, known, |known| known == "1");
    drop(gone);
    wait_until("the replica to be gone", PATIENCE, known, |known| known == "0");
}

/// A server that starts from the primary's snapshot, as its replica.
#[track_caller]
fn with_snapshot_of(kind: ServerKind, primary: &Server) -> Server {
    let server = Server::start(kind);
    server.kill9();
    std::fs::copy(primary.dir().join("dump.rdb"), server.dir().join("dump.rdb")).expect("a copy");
    let settings = server.dir().join("redis.conf");
    let mut text = std::fs::read_to_string(&settings).expect("its settings");
    text.push_str(&format!("replicaof 127.0.0.1 {}\n", primary.port()));
    std::fs::write(&settings, text).expect("its settings");
    server.restart();
    server
}

/// Waits until a child writes an RDB.
#[track_caller]
fn wait_saving(server: &Server) {
    let saving = || server.info("persistence")["rdb_bgsave_in_progress"].clone();
    wait_until("a child that saves", PATIENCE, saving, |saving| saving == "1");
}

/// How many replicas the server knows.
fn replicas(server: &Server) -> String {
    server.info("replication")["connected_slaves"].clone()
}

fn is_false(server: &Server, section: &str, field: &str) -> bool {
    server.info(section)[field] == "0"
}

/// Once the AOF is whole, it holds all the data that there is.
#[track_caller]
fn all_is_in_the_aof(server: &Server, load: Load) {
    wait_for("the AOF to be whole", PATIENCE, || {
        let info = server.info("persistence");
        let done = info["aof_enabled"] == "1"
            && info["aof_rewrite_in_progress"] == "0"
            && info["aof_rewrite_scheduled"] == "0"
            && info["aof_last_bgrewrite_status"] == "ok";
        if done { Ok(()) } else { Err(info) }
    });
    load.goes_on();
    let rounds = load.end();
    let before = server.digest();
    // So that the next start reads it.
    cmd!(server.connect(), "CONFIG", "REWRITE").ok();
    server.kill9();
    server.restart();
    assert_eq!(server.digest(), before, "{rounds} rounds");
}

/// A server whose AOF is off. Turned on, it holds what a reply has confirmed.
fn without_aof(kind: ServerKind) -> ServerBuilder {
    Server::builder(kind).arg("appendfsync", "always").arg("auto-aof-rewrite-percentage", 0)
}

fn turn_aof_on(server: &Server) {
    server.config_set("appendonly", "yes");
}

server_tests! {
    /// Nobody listens: a change is a change all the same, for the save points.
    fn changes_are_counted_for_the_save_points(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let changes = || server.info("persistence")["rdb_changes_since_last_save"].parse::<u64>().unwrap();
        let before = changes();
        let token = acquire(&mut conn, "lock", "me", LONG_MS);
        assert_eq!(changes() - before, 1, "a grant");
        cmd!(conn, "LOCK.ACQUIRE", "lock", "you", LONG_MS).nil();
        assert_eq!(changes() - before, 1, "a refusal");
        cmd!(conn, "FENCE.ADVANCE", "fence", token).no_err();
        assert_eq!(changes() - before, 2, "a fence");
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "me").int(), 1);
        assert_eq!(changes() - before, 3, "a release");
    }

    /// The snapshot is made at once, after a second, or in a file.
    fn a_first_replica_misses_nothing(kind: ServerKind) {
        for (diskless, delay_s) in [("yes", 0), ("yes", 1), ("no", 0)] {
            let primary = with_slow_children(kind, diskless, delay_s);
            let load = Load::on(&primary);
            let replica = Server::start(kind);
            replica.replicate_from(&primary);
            let known = || replicas(&primary);
            wait_until("the replica to be known", PATIENCE, known, |known| known == "1");
            load.goes_on();
            wait_saving(&primary);
            load.goes_on();
            replica.wait_in_sync(&primary);
            load.goes_on();
            assert_nothing_missed_at_the_end(&primary, &[&replica], load);
        }
    }

    /// A child saves already, for nobody, when the replica comes. It must wait for another.
    fn a_replica_that_comes_during_a_save_misses_nothing(kind: ServerKind) {
        for diskless in ["yes", "no"] {
            let primary = with_slow_children(kind, diskless, 0);
            let load = Load::on(&primary);
            cmd!(primary.connect(), "BGSAVE").no_err();
            wait_saving(&primary);
            load.goes_on();
            let replica = Server::start(kind);
            replica.replicate_from(&primary);
            let known = || replicas(&primary);
            wait_until("the replica to be known", PATIENCE, known, |known| known == "1");
            load.goes_on();
            replica.wait_in_sync(&primary);
            assert_nothing_missed_at_the_end(&primary, &[&replica], load);
        }
    }

    /// The second is given the file that is being written for the first.
    fn a_second_replica_misses_nothing(kind: ServerKind) {
        let primary = with_slow_children(kind, "no", 0);
        let load = Load::on(&primary);
        let (first, second) = (Server::start(kind), Server::start(kind));
        first.replicate_from(&primary);
        wait_saving(&primary);
        load.goes_on();
        second.replicate_from(&primary);
        let known = || replicas(&primary);
        wait_until("both to be known", PATIENCE, known, |known| known == "2");
        first.wait_in_sync(&primary);
        second.wait_in_sync(&primary);
        load.goes_on();
        assert_nothing_missed_at_the_end(&primary, &[&first, &second], load);
    }

    /// The only replica goes, the backlog goes after it, a save asks again; then another comes.
    fn a_replica_after_a_time_without_misses_nothing(kind: ServerKind) {
        let primary = Server::builder(kind).arg("repl-backlog-ttl", 1).start();
        let load = Load::on(&primary);
        let first = Server::start(kind);
        first.replicate_from(&primary);
        first.wait_in_sync(&primary);
        first.promote();
        wait_until("the backlog to go", PATIENCE, || is_false(&primary, "replication", "repl_backlog_active"), |gone| *gone);
        load.goes_on();
        save_in_background(&primary);
        load.goes_on();
        first.replicate_from(&primary);
        first.wait_in_sync(&primary);
        load.goes_on();
        assert_nothing_missed_at_the_end(&primary, &[&first], load);
    }

    /// A replica that takes over, which nobody had followed, tells those who now follow it. They go on where they were:
    /// no child is forked for them.
    fn the_replicas_of_a_promoted_replica_miss_nothing(kind: ServerKind) {
        let (primary, next, other) = (Server::start(kind), Server::start(kind), Server::start(kind));
        acquire(&mut next.connect(), "lock", "me", LONG_MS);
        for replica in [&next, &other] {
            replica.replicate_from(&primary);
            replica.wait_in_sync(&primary);
        }
        next.promote();
        let load = Load::on(&next);
        other.replicate_from(&next);
        other.wait_in_sync(&next);
        load.goes_on();
        assert_nothing_missed_at_the_end(&next, &[&other], load);
        assert_eq!(next.info("stats")["sync_full"], "0", "it went on where it was");
    }

    /// A primary that restarts from its own RDB goes on with the history it had, and so does its replica.
    fn a_replica_of_a_primary_that_restarts_misses_nothing(kind: ServerKind) {
        let (primary, replica) = (Server::start(kind), Server::start(kind));
        let link = Proxy::to(&primary);
        acquire(&mut primary.connect(), "lock", "me", LONG_MS);
        cmd!(replica.connect(), "REPLICAOF", "127.0.0.1", link.port()).ok();
        replica.wait_in_sync(&primary);
        link.refuse();
        primary.shutdown_saving();
        primary.restart();
        let load = Load::on(&primary);
        link.pass();
        replica.wait_in_sync(&primary);
        load.goes_on();
        assert_nothing_missed_at_the_end(&primary, &[&replica], load);
    }

    /// A snapshot that the server writes by itself, without a child, names a place in a history that began with a replica
    /// for which no child was forked either. Who has it goes on from there.
    fn who_has_a_snapshot_that_was_made_without_a_child_misses_nothing(kind: ServerKind) {
        for save in [&["SAVE"][..], &["FLUSHALL"]] {
            let builder = Server::builder(kind).arg("repl-diskless-sync", "yes");
            let primary =
                builder.arg("repl-diskless-sync-delay", 3_600).config_line("save 3600 1000000").start();
            let mut conn = primary.connect();
            acquire(&mut conn, "before", "me", LONG_MS);
            begin_history(&primary);
            conn.cmd(save).ok();
            // None of these may be left out, of whatever unit they are.
            let load = Load::on(&primary);
            cmd!(conn, "MULTI").ok();
            cmd!(conn, "LOCK.ACQUIRE", "in one unit", "me", LONG_MS).no_err();
            cmd!(conn, "EXEC").no_err();
            let replica = with_snapshot_of(kind, &primary);
            replica.wait_in_sync(&primary);
            load.goes_on();
            assert_nothing_missed_at_the_end(&primary, &[&replica], load);
            assert_eq!(primary.info("stats")["sync_partial_ok"], "1", "it went on where the snapshot ends");
            assert_eq!(primary.info("stats")["total_forks"], "0");
        }
    }

    /// The same in a unit that saves on its way: what it did before has not been left out, it is done with.
    fn a_unit_that_saves_is_told_as_it_was(kind: ServerKind) {
        let builder = Server::builder(kind).arg("repl-diskless-sync", "yes");
        let primary = builder.arg("repl-diskless-sync-delay", 3_600).config_line("save 3600 1000000").start();
        let mut conn = primary.connect();
        acquire(&mut conn, "before", "me", LONG_MS);
        begin_history(&primary);
        cmd!(conn, "MULTI").ok();
        for lock in ["early", "late"] {
            cmd!(conn, "LOCK.ACQUIRE", lock, "me", LONG_MS).no_err();
            if lock == "early" {
                cmd!(conn, "FLUSHALL").no_err();
            }
        }
        cmd!(conn, "EXEC").no_err();
        let replica = with_snapshot_of(kind, &primary);
        assert_same_data(&primary, &replica);
        let log = replica.log();
        assert!(!log.contains("sending an error to its master"), "{log}");
    }

    /// AOF turned on at run time, at once.
    fn an_aof_that_is_turned_on_misses_nothing(kind: ServerKind) {
        let server = without_aof(kind).start();
        let load = Load::on(&server);
        turn_aof_on(&server);
        load.goes_on();
        all_is_in_the_aof(&server, load);
    }

    /// The rewrite that it begins with has to wait for a child that saves.
    fn an_aof_that_has_to_wait_misses_nothing(kind: ServerKind) {
        let server = without_aof(kind).arg("rdb-key-save-delay", 500).start();
        let load = Load::on(&server);
        cmd!(server.connect(), "BGSAVE").no_err();
        wait_saving(&server);
        turn_aof_on(&server);
        load.goes_on();
        all_is_in_the_aof(&server, load);
    }

    /// In a transaction the rewrite is put off, too.
    fn an_aof_that_is_turned_on_in_a_transaction_misses_nothing(kind: ServerKind) {
        let server = without_aof(kind).start();
        let load = Load::on(&server);
        let mut conn = server.connect();
        cmd!(conn, "MULTI").ok();
        cmd!(conn, "LOCK.ACQUIRE", "before", "me", LONG_MS).no_err();
        cmd!(conn, "CONFIG", "SET", "appendonly", "yes").no_err();
        cmd!(conn, "LOCK.ACQUIRE", "after", "me", LONG_MS).no_err();
        cmd!(conn, "EXEC").no_err();
        load.goes_on();
        all_is_in_the_aof(&server, load);
    }

    /// Off, a while without, and on again.
    fn an_aof_that_is_turned_on_again_misses_nothing(kind: ServerKind) {
        let server = without_aof(kind).arg("appendonly", "yes").start();
        let load = Load::on(&server);
        server.config_set("appendonly", "no");
        load.goes_on();
        save_in_background(&server);
        load.goes_on();
        turn_aof_on(&server);
        all_is_in_the_aof(&server, load);
    }
}

/// With the load ended each replica has the same data.
#[track_caller]
fn assert_nothing_missed_at_the_end(primary: &Server, replicas: &[&Server], load: Load) {
    let rounds = load.end();
    for replica in replicas {
        assert_nothing_missed(primary, replica, rounds);
    }
}
