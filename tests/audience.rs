//! Effects that nobody gets are not made on servers where that is known for certain. Whoever begins to listen while
//! clients go on, in whatever way, misses nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lockfence_testkit::{
    Conn, Proxy, ReplicationStream, Server, ServerBuilder, ServerKind, cmd, send, server_tests, wait_until,
};

use crate::common::{LONG_MS, assert_same_data, offset, other_module};
use crate::durable::{PATIENCE, acquire, crash_with_new_settings, look, save_in_background, wait_aof_whole};

/// So that snapshots stay small.
const BETWEEN_ROUNDS: Duration = Duration::from_millis(1);
/// How long a child takes for a key, µs: long enough to be seen at work.
const SLOW_CHILD_US: u64 = 500;

/// Clients that make every kind of change, at new names again and again: one that is missed stays missed.
struct Load {
    rounds: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    clients: Option<JoinHandle<()>>,
}

impl Load {
    #[track_caller]
    fn on(server: &Server) -> Self {
        let (rounds, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, stopped) = (Arc::clone(&rounds), Arc::clone(&stop));
        let (mut conn, mut waiter) = (server.connect(), server.connect());
        let clients = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                round(&mut conn, &mut waiter, counted.load(Ordering::Relaxed));
                counted.fetch_add(1, Ordering::Relaxed);
                thread::sleep(BETWEEN_ROUNDS);
            }
        });
        let mut load = Self { rounds, stop, clients: Some(clients) };
        load.goes_on();
        load
    }

    /// Waits until they have made some rounds more.
    #[track_caller]
    fn goes_on(&mut self) {
        let enough = self.rounds.load(Ordering::Relaxed) + 20;
        let seen = || {
            let failed = self.clients.as_ref().is_none_or(JoinHandle::is_finished);
            (self.rounds.load(Ordering::Relaxed), failed)
        };
        let (_, failed) = wait_until("the clients' next rounds", PATIENCE, seen, |(rounds, failed)| {
            *rounds >= enough || *failed
        });
        if failed {
            self.join();
        }
    }

    fn stop(&mut self) -> thread::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.clients.take().map_or(Ok(()), JoinHandle::join)
    }

    fn join(&mut self) {
        self.stop().expect("no command has failed");
    }

    /// Ends it; how many rounds it made.
    fn end(mut self) -> u64 {
        self.join();
        self.rounds.load(Ordering::Relaxed)
    }

    /// Ends it. All that has been done has reached the replicas.
    #[track_caller]
    fn end_with(self, primary: &Server, replicas: &[&Server]) {
        let rounds = self.end();
        for replica in replicas {
            assert_same_data(primary, replica);
            let mut conn = replica.connect();
            for n in [0, rounds / 2, rounds - 1] {
                let seen = look(&mut conn, format!("held{n}")).expect("the record");
                assert_eq!(seen.owner.as_deref(), Some(&b"me"[..]));
            }
        }
    }
}

impl Drop for Load {
    /// Where a test fails its clients must not go on, nor fail after it.
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

fn round(conn: &mut Conn, waiter: &mut Conn, n: u64) {
    let name = |what: &str| format!("{what}{n}");
    let token = acquire(conn, name("held"), "me", LONG_MS);

    let gone = name("gone");
    acquire(conn, &gone, "me", 1_000);
    assert_eq!(cmd!(conn, "LOCK.EXTEND", &gone, "me", LONG_MS).int(), 1);
    assert_eq!(cmd!(conn, "LOCK.EXTEND", &gone, "me", LONG_MS, "MINTOKEN", token).int(), 1);
    assert_eq!(cmd!(conn, "LOCK.RELEASE", &gone, "me").int(), 1);

    let broken = name("broken");
    for owner in ["one", "two"] {
        cmd!(conn, "LOCK.ACQUIRE", &broken, owner, LONG_MS, "LIMIT", 2).token();
    }
    assert_eq!(cmd!(conn, "LOCK.BREAK", &broken).int(), 2);
    cmd!(conn, "LOCK.ACQUIRE", &broken, "reader", LONG_MS, "SHARED").token();

    let passed = name("passed");
    acquire(conn, &passed, "me", LONG_MS);
    send!(waiter, "LOCK.ACQUIRE", &passed, "next", LONG_MS, "WAIT", 0);
    assert_eq!(cmd!(conn, "LOCK.RELEASE", &passed, "me").int(), 1);
    waiter.recv(PATIENCE).token();

    let fence = name("fence");
    cmd!(conn, "FENCE.ADVANCE", &fence, token).no_err();
    cmd!(conn, "FENCE.ADVANCE", name("brief"), token, "PX", LONG_MS).no_err();
    cmd!(conn, "FENCE.WRITE", &fence, token + 1, name("data"), n).ok();
    cmd!(conn, "FENCE.CALL", &fence, token + 2, "INCR", name("count")).no_err();
}

/// A primary on which a child that saves takes its time.
fn with_slow_children(kind: ServerKind, diskless: &str, delay_s: u64) -> Server {
    let builder = Server::builder(kind).arg("repl-diskless-sync", diskless);
    builder.arg("repl-diskless-sync-delay", delay_s).arg("rdb-key-save-delay", SLOW_CHILD_US).start()
}

/// One that saves only when it is told to, and for whom no child is forked for an hour.
fn without_children(kind: ServerKind) -> Server {
    let builder = Server::builder(kind).arg("repl-diskless-sync", "yes");
    builder.arg("repl-diskless-sync-delay", 3_600).config_line("save 3600 1000000").start()
}

/// A server whose AOF is off. Turned on, it holds what a reply has confirmed.
fn without_aof(kind: ServerKind) -> ServerBuilder {
    Server::builder(kind).arg("appendfsync", "always").arg("auto-aof-rewrite-percentage", 0)
}

/// A number of INFO.
fn number(server: &Server, section: &str, field: &str) -> u64 {
    server.info(section)[field].parse().expect("a number")
}

#[track_caller]
fn wait_number(server: &Server, section: &str, field: &str, wanted: u64) {
    wait_until(field, PATIENCE, || number(server, section, field), |seen| *seen == wanted);
}

/// Waits until the server knows so many replicas.
#[track_caller]
fn wait_replicas(server: &Server, count: u64) {
    wait_number(server, "replication", "connected_slaves", count);
}

/// Saves in the background; the child is still at work.
#[track_caller]
fn begin_to_save(server: &Server) {
    cmd!(server.connect(), "BGSAVE").no_err();
    assert_eq!(number(server, "persistence", "rdb_bgsave_in_progress"), 1, "a child saves");
}

/// Once the AOF is whole, it holds all the data that there is.
#[track_caller]
fn all_is_in_the_aof(server: &Server, mut load: Load) {
    wait_aof_whole(server);
    load.goes_on();
    let rounds = load.end();
    let before = server.digest();
    crash_with_new_settings(server);
    assert_eq!(server.digest(), before, "{rounds} rounds");
}

/// A replica asks for all there is, and has gone before a child is forked for it: the server has a history now.
#[track_caller]
fn begin_history(primary: &Server) {
    let mut gone = primary.connect();
    cmd!(gone, "REPLCONF", "capa", "eof", "capa", "psync2").ok();
    send!(gone, "PSYNC", "?", "-1");
    wait_replicas(primary, 1);
    drop(gone);
    wait_replicas(primary, 0);
}

/// Takes a lock on a server that has asked who gets effects, found nobody, and meanwhile has a history: what command it
/// tells those who go on from before that.
#[track_caller]
fn told_of_a_grant(kind: ServerKind, beside_another: bool) -> String {
    let server = without_children(kind);
    server.config_set("hz", "1");
    let mut conn = server.connect();
    if beside_another {
        cmd!(conn, "MODULE", "LOAD", other_module(&server).to_str().unwrap(), "readonly").ok();
    }
    acquire(&mut conn, "lock", "me", LONG_MS);
    begin_history(&server);
    let (history, before) = (&server.info("replication")["master_replid"], offset(&server));
    acquire(&mut conn, "next", "me", LONG_MS);
    let lines = ReplicationStream::go_on(&server, history, before).lines_until_now(&server);
    let told = lines.iter().find(|line| !line.starts_with("SELECT")).expect("the grant");
    told.split(' ').next().unwrap_or_default().to_owned()
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

server_tests! {
    /// Nobody listens: a change is a change all the same, for the save points.
    fn changes_are_counted_for_the_save_points(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let changes = || number(&server, "persistence", "rdb_changes_since_last_save");
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
            let mut load = Load::on(&primary);
            let replica = Server::start(kind);
            replica.replicate_from(&primary);
            wait_replicas(&primary, 1);
            load.goes_on();
            wait_number(&primary, "stats", "total_forks", 1);
            load.goes_on();
            replica.wait_in_sync(&primary);
            load.goes_on();
            load.end_with(&primary, &[&replica]);
        }
    }

    /// A child saves already, for nobody, when the replica comes. It must wait for another.
    fn a_replica_that_comes_during_a_save_misses_nothing(kind: ServerKind) {
        for diskless in ["yes", "no"] {
            let primary = with_slow_children(kind, diskless, 0);
            let mut load = Load::on(&primary);
            load.goes_on();
            let replica = Server::start(kind);
            begin_to_save(&primary);
            replica.replicate_from(&primary);
            wait_replicas(&primary, 1);
            assert_eq!(number(&primary, "stats", "total_forks"), 1, "the child for the replica comes later");
            load.goes_on();
            replica.wait_in_sync(&primary);
            load.end_with(&primary, &[&replica]);
        }
    }

    /// The second is given the file that is being written for the first.
    fn a_second_replica_misses_nothing(kind: ServerKind) {
        let primary = with_slow_children(kind, "no", 0);
        let mut load = Load::on(&primary);
        load.goes_on();
        let (first, second) = (Server::start(kind), Server::start(kind));
        first.replicate_from(&primary);
        second.replicate_from(&primary);
        wait_replicas(&primary, 2);
        assert_eq!(number(&primary, "stats", "total_forks"), 1, "one child for both");
        load.goes_on();
        first.wait_in_sync(&primary);
        second.wait_in_sync(&primary);
        load.goes_on();
        load.end_with(&primary, &[&first, &second]);
    }

    /// The only replica goes, the backlog goes after it, a save asks again; then another comes.
    fn a_replica_after_a_time_without_misses_nothing(kind: ServerKind) {
        let primary = Server::builder(kind).arg("repl-backlog-ttl", 1).start();
        let mut load = Load::on(&primary);
        let first = Server::start(kind);
        first.replicate_from(&primary);
        first.wait_in_sync(&primary);
        first.promote();
        wait_number(&primary, "replication", "repl_backlog_active", 0);
        load.goes_on();
        save_in_background(&primary);
        load.goes_on();
        first.replicate_from(&primary);
        first.wait_in_sync(&primary);
        load.goes_on();
        load.end_with(&primary, &[&first]);
    }

    /// A replica that takes over, which nobody had followed, tells those who now follow it. They go on where they were:
    /// no child is forked for them.
    fn the_replicas_of_a_promoted_replica_miss_nothing(kind: ServerKind) {
        let (primary, next, other) = (Server::start(kind), Server::start(kind), Server::start(kind));
        // So that it has asked, and found nobody.
        acquire(&mut next.connect(), "lock", "me", LONG_MS);
        for replica in [&next, &other] {
            replica.replicate_from(&primary);
            replica.wait_in_sync(&primary);
        }
        next.promote();
        let mut load = Load::on(&next);
        other.replicate_from(&next);
        other.wait_in_sync(&next);
        load.goes_on();
        load.end_with(&next, &[&other]);
        assert_eq!(number(&next, "stats", "sync_full"), 0, "it went on where it was");
    }

    /// A primary that restarts from its own RDB goes on with the history it had, and tells its replica.
    fn a_replica_of_a_primary_that_restarts_misses_nothing(kind: ServerKind) {
        let (primary, replica) = (Server::start(kind), Server::start(kind));
        let link = Proxy::to(&primary);
        acquire(&mut primary.connect(), "lock", "me", LONG_MS);
        cmd!(replica.connect(), "REPLICAOF", "127.0.0.1", link.port()).ok();
        replica.wait_in_sync(&primary);
        link.refuse();
        primary.shutdown_saving();
        primary.restart();
        let mut load = Load::on(&primary);
        link.pass();
        replica.wait_in_sync(&primary);
        load.goes_on();
        load.end_with(&primary, &[&replica]);
    }

    /// A snapshot that the server writes by itself, without a child, names a place in a history that began with a replica
    /// for which no child was forked either. Who has it goes on from there.
    fn who_has_a_snapshot_that_was_made_without_a_child_misses_nothing(kind: ServerKind) {
        for save in [&["SAVE"][..], &["FLUSHALL"]] {
            let primary = without_children(kind);
            let mut conn = primary.connect();
            acquire(&mut conn, "before", "me", LONG_MS);
            begin_history(&primary);
            conn.cmd(save).ok();
            let mut load = Load::on(&primary);
            let replica = with_snapshot_of(kind, &primary);
            replica.wait_in_sync(&primary);
            load.goes_on();
            load.end_with(&primary, &[&replica]);
            assert_eq!(number(&primary, "stats", "sync_partial_ok"), 1, "it went on where the snapshot ends");
            assert_eq!(number(&primary, "stats", "total_forks"), 0);
        }
    }

    /// The same in a unit that saves on its way: what it did before is sent behind the snapshot, and must be no command
    /// that a replica refuses.
    fn a_unit_that_saves_is_told_as_it_was(kind: ServerKind) {
        let in_a_script = "redis.call('LOCK.ACQUIRE', KEYS[1], 'me', 600000) redis.call('FLUSHALL') \
                           redis.call('LOCK.ACQUIRE', KEYS[2], 'me', 600000)";
        for script in [false, true] {
            let primary = without_children(kind);
            let mut conn = primary.connect();
            acquire(&mut conn, "before", "me", LONG_MS);
            begin_history(&primary);
            if script {
                cmd!(conn, "EVAL", in_a_script, 2, "early", "late").no_err();
            } else {
                cmd!(conn, "MULTI").ok();
                cmd!(conn, "LOCK.ACQUIRE", "early", "me", LONG_MS).no_err();
                cmd!(conn, "FLUSHALL").no_err();
                cmd!(conn, "LOCK.ACQUIRE", "late", "me", LONG_MS).no_err();
                assert_eq!(cmd!(conn, "EXEC").items().len(), 3);
            }
            let replica = with_snapshot_of(kind, &primary);
            assert_same_data(&primary, &replica);
            assert!(look(&mut replica.connect(), "late").is_some());
            let log = replica.log();
            assert!(!log.contains("sending an error to its"), "{log}");
        }
    }

    /// Nobody can go on from before the first child. Where the server's ways are known, and no other module may write a
    /// snapshot at any time, no effect is made for those, until the server's next cron.
    fn an_effect_that_nobody_gets_is_left_out(kind: ServerKind) {
        if kind == ServerKind::Redis70 {
            // One cron in a second: it hardly comes in between every time.
            assert!((0..10).any(|_| told_of_a_grant(kind, false) == "LOCK.ACQUIRE"), "every effect is made");
        } else {
            assert_eq!(told_of_a_grant(kind, false), "LF.LOG");
        }
        assert_eq!(told_of_a_grant(kind, true), "LF.LOG");
    }

    /// AOF turned on at run time, at once.
    fn an_aof_that_is_turned_on_misses_nothing(kind: ServerKind) {
        let server = without_aof(kind).start();
        let mut load = Load::on(&server);
        server.config_set("appendonly", "yes");
        load.goes_on();
        all_is_in_the_aof(&server, load);
    }

    /// The rewrite that it begins with has to wait for a child that saves.
    fn an_aof_that_has_to_wait_misses_nothing(kind: ServerKind) {
        let server = without_aof(kind).arg("rdb-key-save-delay", SLOW_CHILD_US).start();
        let mut load = Load::on(&server);
        load.goes_on();
        begin_to_save(&server);
        server.config_set("appendonly", "yes");
        assert_eq!(number(&server, "stats", "total_forks"), 1, "the child for the AOF comes later");
        load.goes_on();
        all_is_in_the_aof(&server, load);
    }

    /// In a transaction the rewrite is put off, too.
    fn an_aof_that_is_turned_on_in_a_transaction_misses_nothing(kind: ServerKind) {
        let server = without_aof(kind).start();
        let mut load = Load::on(&server);
        let mut conn = server.connect();
        cmd!(conn, "MULTI").ok();
        cmd!(conn, "LOCK.ACQUIRE", "before", "me", LONG_MS).no_err();
        cmd!(conn, "CONFIG", "SET", "appendonly", "yes").no_err();
        cmd!(conn, "INFO", "persistence").no_err();
        cmd!(conn, "LOCK.ACQUIRE", "after", "me", LONG_MS).no_err();
        let replies = cmd!(conn, "EXEC");
        let info = replies.items()[2].text();
        assert!(info.contains("aof_rewrite_scheduled:1") && info.contains("aof_enabled:1"), "{info}");
        load.goes_on();
        all_is_in_the_aof(&server, load);
    }

    /// Off, a while without, and on again.
    fn an_aof_that_is_turned_on_again_misses_nothing(kind: ServerKind) {
        let server = without_aof(kind).arg("appendonly", "yes").start();
        let mut load = Load::on(&server);
        server.config_set("appendonly", "no");
        load.goes_on();
        save_in_background(&server);
        load.goes_on();
        server.config_set("appendonly", "yes");
        all_is_in_the_aof(&server, load);
    }
}
