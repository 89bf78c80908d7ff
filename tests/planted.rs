//! Bugs planted in the module itself: each scenario is sound with the module as it is, and is seen to break with the
//! bug. (The core's own planted bugs are in crates/core/tests/planted.rs.)

use crate::durable;

use std::time::Duration;

use durable::{PATIENCE, acquire, crash_with_new_settings, high_and_floor, look, ttl_ms, wait_aof_whole};
use lockfence_core::planted::Bug;
use lockfence_testkit::{
    Direction, Proxy, Server, ServerBuilder, ServerKind, cmd, send, server_tests, wait_until,
};

/// What a scenario found: nothing, or what is wrong.
type Found = Result<(), String>;

/// A server of the test build in which `bug` is planted.
fn with_bug(kind: ServerKind, bug: Bug) -> ServerBuilder {
    Server::builder(kind).with_panics().env("LOCKFENCE_PLANTED", (bug as u32).to_string())
}

/// The scenario must pass as it is, and find the bug.
#[track_caller]
fn bites(kind: ServerKind, bug: Bug, scenario: fn(ServerKind, Bug) -> Found) {
    scenario(kind, Bug::None).expect("the scenario is sound without a bug");
    let found = scenario(kind, bug);
    assert!(found.is_err(), "{bug:?} is planted and was not found");
    println!("{bug:?}: {}", found.unwrap_err());
}

fn same_digest(one: &Server, other: &Server) -> Found {
    if one.digest() == other.digest() { Ok(()) } else { Err("primary and replica differ".to_owned()) }
}

fn rises(before: u64, after: u64) -> Found {
    if after > before { Ok(()) } else { Err(format!("token {after} after {before}")) }
}

/// G6: a hand-over by the timer reaches the replica.
fn timer_hand_over(kind: ServerKind, bug: Bug) -> Found {
    let (primary, replica) = (with_bug(kind, bug).start(), Server::start(kind));
    replica.replicate_from(&primary);
    let mut conn = primary.connect();
    acquire(&mut conn, "lock", "first", 300);
    let mut waiter = primary.connect();
    send!(waiter, "LOCK.ACQUIRE", "lock", "second", 600_000, "WAIT", 0);
    waiter.recv(PATIENCE).token();
    replica.wait_in_sync(&primary);
    same_digest(&primary, &replica)
}

/// Replicas decide nothing: a record goes there when the primary says so.
fn idle_on_replica(kind: ServerKind, bug: Bug) -> Found {
    let primary = Server::builder(kind).arg("lockfence.idle-ttl-ms", "600000").start();
    let replica = with_bug(kind, bug).arg("lockfence.idle-ttl-ms", "100").start();
    replica.replicate_from(&primary);
    let mut conn = primary.connect();
    acquire(&mut conn, "lock", "owner", 100);
    replica.wait_in_sync(&primary);
    let mut there = replica.connect();
    // Long enough for the replica's own idle time, which must not matter.
    let deadline = std::time::Instant::now() + Duration::from_secs(3);
    while std::time::Instant::now() < deadline {
        if look(&mut there, "lock").is_none() {
            return Err("the replica dropped a record by itself".to_owned());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    same_digest(&primary, &replica)
}

/// A lease is stored as its end: an hour in a file does not make it longer.
fn lease_across_restart(kind: ServerKind, bug: Bug) -> Found {
    let server = with_bug(kind, bug).arg("appendonly", "yes").arg("appendfsync", "always").start();
    let mut conn = server.connect();
    acquire(&mut conn, "lock", "owner", 20_000);
    wait_until(
        "a second of the lease is over",
        PATIENCE,
        || ttl_ms(&mut conn, "lock"),
        |left| *left < 19_000,
    );
    server.kill9();
    server.restart();
    let left = ttl_ms(&mut server.connect(), "lock");
    if left < 19_000 {
        Ok(())
    } else {
        Err(format!("{left} ms are left of a lease of which at most 19,000 were"))
    }
}

/// G1 across a promotion that lost the last writes: the floor is above them.
fn lost_tail(kind: ServerKind, bug: Bug) -> Found {
    let (primary, replica) = (Server::start(kind), with_bug(kind, bug).start());
    let link = Proxy::to(&primary);
    cmd!(replica.connect(), "REPLICAOF", "127.0.0.1", link.port()).ok();
    let mut conn = primary.connect();
    acquire(&mut conn, "lock", "seen", 600_000);
    replica.wait_in_sync(&primary);
    link.hold(Direction::ToClient);
    let mut last = 0;
    for n in 0..100 {
        cmd!(conn, "DEL", "lock").no_err();
        last = acquire(&mut conn, "lock", &format!("lost{n}"), 600_000);
    }
    link.cut();
    primary.kill9();
    replica.promote();
    let mut conn = replica.connect();
    cmd!(conn, "DEL", "lock").no_err();
    rises(last, acquire(&mut conn, "lock", "next", 600_000))
}

/// G1 where only *high* can keep it: dense tokens, and a name without a record on the replica that takes over.
fn high_by_effects(kind: ServerKind, bug: Bug) -> Found {
    let dense = |builder: ServerBuilder| builder.module_args(["tokens", "dense"]).start();
    let (primary, replica) = (dense(Server::builder(kind)), dense(with_bug(kind, bug)));
    replica.replicate_from(&primary);
    // What comes before the first sync would come in its file.
    replica.wait_in_sync(&primary);
    let mut conn = primary.connect();
    let last = (0..5).map(|n| acquire(&mut conn, format!("lock{n}"), "owner", 600_000)).max().unwrap();
    replica.wait_in_sync(&primary);
    replica.promote();
    rises(last, acquire(&mut replica.connect(), "new", "owner", 600_000))
}

/// The same for records that are read: an AOF that was rewritten without an RDB preamble holds nothing else.
fn high_by_records(kind: ServerKind, bug: Bug) -> Found {
    let builder = with_bug(kind, bug).module_args(["tokens", "dense"]);
    let server = builder.arg("appendonly", "yes").arg("aof-use-rdb-preamble", "no").start();
    let mut conn = server.connect();
    let last = (0..5).map(|n| acquire(&mut conn, format!("lock{n}"), "owner", 600_000)).max().unwrap();
    cmd!(conn, "BGREWRITEAOF").no_err();
    let running = || server.info("persistence")["aof_rewrite_in_progress"].clone();
    wait_until("the rewrite is done", PATIENCE, running, |running| running == "0");
    server.kill9();
    server.restart();
    let (high, _) = high_and_floor(&server);
    if high < last {
        return Err(format!("high is {high} after {last}"));
    }
    rises(last, acquire(&mut server.connect(), "new", "owner", 600_000))
}

/// G5: whoever waits for a lock whose key goes is told.
fn told_of_delete(kind: ServerKind, bug: Bug) -> Found {
    let server = with_bug(kind, bug).start();
    let mut conn = server.connect();
    acquire(&mut conn, "lock", "owner", 600_000);
    let mut waiter = server.connect();
    send!(waiter, "LOCK.ACQUIRE", "lock", "second", 600_000, "WAIT", 0);
    server.wait_blocked_clients(1);
    cmd!(conn, "DEL", "lock").no_err();
    match waiter.try_recv_within(3_000) {
        Some(reply) if reply.is_err() => Ok(()),
        other => Err(format!("the waiter got {other:?}")),
    }
}

/// G6: a replica that comes after the first effects that nobody got. (Only on servers where effects are left out.)
fn first_replica(kind: ServerKind, bug: Bug) -> Found {
    let (primary, replica) = (with_bug(kind, bug).start(), Server::start(kind));
    let mut conn = primary.connect();
    acquire(&mut conn, "lock", "before", 600_000);
    replica.replicate_from(&primary);
    replica.wait_in_sync(&primary);
    acquire(&mut conn, "another", "after", 600_000);
    replica.wait_in_sync(&primary);
    same_digest(&primary, &replica)
}

/// G6: an AOF that is turned on after the first effects that nobody got.
fn late_aof(kind: ServerKind, bug: Bug) -> Found {
    let server = with_bug(kind, bug).arg("appendfsync", "always").start();
    let mut conn = server.connect();
    acquire(&mut conn, "lock", "before", 600_000);
    server.config_set("appendonly", "yes");
    wait_aof_whole(&server);
    acquire(&mut conn, "another", "after", 600_000);
    let before = server.digest();
    crash_with_new_settings(&server);
    if server.digest() == before { Ok(()) } else { Err("the AOF lacks something".to_owned()) }
}

/// Later servers are told every effect, whatever the audience is taken for.
#[test]
fn an_audience_that_is_asked_for_once_is_found() {
    lockfence_testkit::run(ServerKind::Redis70, |kind| {
        bites(kind, Bug::AudienceKept, first_replica);
        bites(kind, Bug::AudienceKept, late_aof);
    });
}

server_tests! {
    /// "effect missing on the timer path"
    fn an_unreplicated_hand_over_is_found(kind: ServerKind) {
        bites(kind, Bug::TimerUnreplicated, timer_hand_over);
    }

    /// "expiry on a replica"
    fn a_replica_that_expires_is_found(kind: ServerKind) {
        bites(kind, Bug::ReplicaExpires, idle_on_replica);
    }

    /// "relative TTL in the effect"
    fn a_relative_lease_is_found(kind: ServerKind) {
        bites(kind, Bug::RelativeLease, lease_across_restart);
    }

    /// "floor not raised at promotion"
    fn a_floor_that_is_not_raised_is_found(kind: ServerKind) {
        bites(kind, Bug::FloorNotRaised, lost_tail);
    }

    /// "*high* not raised by an effect"
    fn an_effect_that_does_not_raise_high_is_found(kind: ServerKind) {
        bites(kind, Bug::HighNotRaised, high_by_effects);
    }

    /// "*high* not raised by a loaded record"
    fn a_record_that_does_not_raise_high_is_found(kind: ServerKind) {
        bites(kind, Bug::HighNotRaised, high_by_records);
    }

    /// A waiter forgotten when its lock's key goes.
    fn a_waiter_that_is_not_told_is_found(kind: ServerKind) {
        bites(kind, Bug::LostKeyUntold, told_of_delete);
    }
}
