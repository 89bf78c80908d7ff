//! In a cluster: routing, slots that move with held locks and waiters, failovers, a cluster that is down.

use std::time::Duration;

use crate::common::{LONG_MS, SOON, info, number, owner, stat_of, wait_free, wait_queue, waiter};
use lockfence_testkit::{
    Cluster, Conn, Received, Reply, Server, ServerKind, args, cmd, key_slot, send, server_tests, wait_for,
    wait_until,
};

/// A lock, and another of the same slot.
const LOCK: &str = "{s}lock";
const NEIGHBOUR: &str = "{s}neighbour";
/// A failover takes some node timeouts.
const FAILOVER: Duration = Duration::from_secs(60);
/// How soon after a move those who wait are told: a second, on a machine that is not busy.
const TOLD: Duration = Duration::from_secs(6);

/// Sent away with an answer that makes a cluster client look for the new owner, and with nothing after it.
#[track_caller]
fn assert_redirected(mut client: Conn, within: Duration) {
    match client.receive(within) {
        Received::Reply(Reply::Error(line)) => {
            let codes = ["LOCKLOST ", "MOVED ", "ASK ", "UNBLOCKED ", "CLUSTERDOWN "];
            assert!(codes.iter().any(|code| line.starts_with(code)), "{line}");
        }
        Received::Closed(_) => return,
        other => panic!("expected to be sent away, got {other:?}"),
    }
    if let Received::Reply(second) = client.receive(Duration::from_millis(20)) {
        panic!("a second answer: {second:?}");
    }
}

fn other_than(index: usize) -> usize {
    (index + 1) % 3
}

/// A slot that is not the lock's.
fn other_slot() -> u16 {
    key_slot(LOCK.as_bytes()) ^ 1
}

/// In a cluster that is down Redis itself tells whoever waits (its cron does, within a second or two); on Valkey they go
/// on waiting: `true`.
#[track_caller]
fn goes_on_waiting(client: &mut Conn, kind: ServerKind) -> bool {
    if kind.is_valkey() {
        client.assert_silent(2500);
    } else {
        client.recv(SOON).assert_err_prefix("CLUSTERDOWN ");
    }
    kind.is_valkey()
}

/// The lock has come to `target` as it was: the same holder and token, no more time than before.
#[track_caller]
fn assert_arrived(target: &mut Conn, token: u64) {
    let seen = info(target, LOCK);
    assert_eq!((seen.field("owner").text(), seen.field("token").token()), ("a".into(), token));
    assert_eq!((seen.field("holders").int(), seen.field("waiters").int()), (1, 0));
    let left = seen.field("ttl-ms").int();
    assert!((1..=600_000).contains(&left), "{left} ms left of ten minutes");
    cmd!(target, "LOCK.ACQUIRE", LOCK, "b", 1000).nil();
    let data = "{s}data";
    cmd!(target, "FENCE.WRITE", LOCK, token, data, 1).ok();
    assert_eq!(cmd!(target, "LOCK.RELEASE", LOCK, "a").int(), 1);
    let next = cmd!(target, "LOCK.ACQUIRE", LOCK, "b", LONG_MS).token();
    assert!(next > token, "{next} after {token}");
    cmd!(target, "FENCE.WRITE", LOCK, token, data, 2).assert_err_prefix("FENCED ");
}

server_tests! {
    /// I1, I3: each command goes by its keys: -MOVED at the wrong node, -CROSSSLOT for keys of two slots.
    fn commands_are_routed_by_their_keys(kind: ServerKind) {
        let cluster = Cluster::start(kind);
        let home = cluster.owner_index(LOCK);
        let mut right = cluster.node(home).connect();
        let mut wrong = cluster.node(other_than(home)).connect();
        let token = cmd!(right, "LOCK.ACQUIRE", LOCK, "a", LONG_MS).token();
        for command in [
            args!["LOCK.ACQUIRE", LOCK, "b", 1000],
            args!["LOCK.ACQUIRE", LOCK, "b", 1000, "WAIT", 0],
            args!["LOCK.RELEASE", LOCK, "a"],
            args!["LOCK.EXTEND", LOCK, "a", 1000],
            args!["LOCK.INFO", LOCK],
            args!["LOCK.BREAK", LOCK],
            args!["FENCE.WRITE", LOCK, token, "{s}data", 1],
            args!["FENCE.CALL", LOCK, token, "INCR", "{s}data"],
            args!["FENCE.CHECK", LOCK, token],
            args!["FENCE.ADVANCE", LOCK, token],
        ] {
            wrong.cmd(command).assert_err_prefix("MOVED ");
        }
        cmd!(right, "FENCE.WRITE", LOCK, token, "{t}data", 1).assert_err_prefix("CROSSSLOT ");
        cmd!(right, "FENCE.CALL", LOCK, token, "INCR", "{t}data").assert_err_prefix("CROSSSLOT ");
        cmd!(right, "FENCE.CALL", LOCK, token, "MSET", "{s}x", 1, "{t}x", 1).assert_err_prefix("CROSSSLOT ");
        cmd!(right, "FENCE.WRITE", LOCK, token, "{s}data", 1).ok();
        assert_eq!(cmd!(right, "FENCE.CALL", LOCK, token, "INCR", "{s}data").int(), 2);
        assert_eq!(cmd!(right, "CLUSTER", "COUNTKEYSINSLOT", key_slot(LOCK.as_bytes())).int(), 2, "a hidden key");
    }

    /// Keys of FENCE.CALL's inner command are keys: another slot is -CROSSSLOT also where this node serves it.
    fn an_inner_command_has_its_keys_in_the_slot_of_the_lock(kind: ServerKind) {
        let cluster = Cluster::builder(kind).primaries(1).start();
        let mut conn = cluster.node(0).connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", LOCK, "a", LONG_MS).token();
        for inner in [args!["INCR", "{t}data"], args!["MSET", "{s}x", 1, "{t}x", 1], args!["MSET", "{t}x", 1, "{t}y", 1]] {
            let command: Vec<_> = args!["FENCE.CALL", LOCK, token].into_iter().chain(inner).collect();
            conn.cmd(command).assert_err_prefix("CROSSSLOT ");
        }
        assert_eq!(cmd!(conn, "DBSIZE").int(), 1, "written across slots");
    }

    /// D12: a slot moves the classic way, with a held lock and waiters. They are told, the lease and the token go
    /// along, the next token is higher, and there is never a second holder.
    fn a_slot_moves_key_by_key_with_its_lock(kind: ServerKind) {
        let cluster = Cluster::start(kind);
        let from = cluster.owner_index(LOCK);
        let to = other_than(from);
        let slot = key_slot(LOCK.as_bytes());
        let mut source = cluster.node(from).connect();
        let token = cmd!(source, "LOCK.ACQUIRE", LOCK, "a", LONG_MS).token();
        let waiters: Vec<Conn> = (1..=3)
            .map(|place| waiter(cluster.node(from), LOCK, &format!("w{place}"), LONG_MS, place))
            .collect();
        cluster.begin_move(slot, from, to);
        assert_eq!(owner(&mut source, LOCK).as_deref(), Some("a"), "still here");
        cmd!(source, "LOCK.ACQUIRE", NEIGHBOUR, "b", 1000).assert_err_prefix("ASK ");
        cluster.move_keys(slot, from, to);
        for waiter in waiters {
            assert_redirected(waiter, TOLD);
        }
        cmd!(source, "LOCK.ACQUIRE", LOCK, "c", 1000).assert_err_prefix("ASK ");
        let mut target = cluster.node(to).connect();
        let asked = target.pipeline(&[args!["ASKING"], args!["LOCK.ACQUIRE", LOCK, "c", 1000]]);
        asked[1].nil();
        cluster.finish_move(slot, from, to);
        cmd!(source, "LOCK.RELEASE", LOCK, "a").assert_err_prefix("MOVED ");
        assert_arrived(&mut target, token);
        assert_eq!(stat_of(cluster.node(from), "waiters"), 0);
    }

    /// A slot that is on its way still belongs to its old owner: hand-overs there go on until the key itself goes.
    fn hand_overs_go_on_while_a_slot_is_on_its_way(kind: ServerKind) {
        let cluster = Cluster::start(kind);
        let from = cluster.owner_index(LOCK);
        let to = other_than(from);
        let slot = key_slot(LOCK.as_bytes());
        let node = cluster.node(from);
        let mut source = node.connect();
        let token = cmd!(source, "LOCK.ACQUIRE", LOCK, "z", 3000).token();
        let mut first = waiter(node, LOCK, "a", LONG_MS, 1);
        let second = waiter(node, LOCK, "c", LONG_MS, 2);
        cluster.begin_move(slot, from, to);
        let granted = first.recv(SOON).token();
        assert!(granted > token, "handed over by the timer, at the node that still has the key");
        cluster.move_keys(slot, from, to);
        assert_redirected(second, TOLD);
        cluster.finish_move(slot, from, to);
        assert_arrived(&mut cluster.node(to).connect(), granted);
    }

    /// D12: an empty slot that moves away under waiters of a lock that was deleted long ago: nobody waits for ever,
    /// and no grant is made where the slot no longer is.
    fn waiters_without_a_key_are_told_when_the_slot_has_moved(kind: ServerKind) {
        let cluster = Cluster::builder(kind).nodes(|node| node.module_args(["quarantine-ms", "60000"])).start();
        let from = cluster.owner_index(LOCK);
        let to = other_than(from);
        let slot = key_slot(LOCK.as_bytes());
        // In the quarantine a request waits for a lock of which there is no record.
        let mut client = cluster.node(from).connect();
        send!(client, "LOCK.ACQUIRE", LOCK, "w", LONG_MS, "WAIT", 0);
        cluster.node(from).wait_blocked_clients(1);
        cluster.move_slot(slot, from, to);
        assert_redirected(client, TOLD);
        assert_eq!(stat_of(cluster.node(from), "waiters"), 0);
        assert_eq!(cmd!(cluster.node(from).connect(), "DBSIZE").int(), 0);
    }

    /// Atomic slot migration (Valkey 9): as above in one step.
    fn a_slot_moves_in_one_step_with_its_lock(kind: ServerKind) {
        if kind != ServerKind::Valkey91 {
            return; // no other server has it
        }
        let cluster = Cluster::start(kind);
        let from = cluster.owner_index(LOCK);
        let to = other_than(from);
        let slot = key_slot(LOCK.as_bytes());
        let node = cluster.node(from);
        let mut source = node.connect();
        let token = cmd!(source, "LOCK.ACQUIRE", LOCK, "a", LONG_MS).token();
        let freed = cmd!(source, "LOCK.ACQUIRE", NEIGHBOUR, "a", 1).token();
        cmd!(source, "FENCE.ADVANCE", "{s}fence", 77).int();
        wait_free(&mut source, NEIGHBOUR);
        let waiters: Vec<Conn> =
            (1..=3).map(|place| waiter(node, LOCK, &format!("w{place}"), LONG_MS, place)).collect();
        let id = cluster.id(to);
        cmd!(source, "CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", id).ok();
        wait_until("the slot to have moved", FAILOVER, || cluster.owner_index(LOCK), |index| *index == to);
        for waiter in waiters {
            assert_redirected(waiter, TOLD);
        }
        cmd!(source, "LOCK.ACQUIRE", LOCK, "c", 1000).assert_err_prefix("MOVED ");
        let mut target = cluster.node(to).connect();
        assert_arrived(&mut target, token);
        assert!(cmd!(target, "LOCK.ACQUIRE", NEIGHBOUR, "b", LONG_MS).token() > freed);
        cmd!(target, "FENCE.WRITE", "{s}fence", 76, "{s}data", 1).assert_err_prefix("FENCED ");
        cmd!(target, "FENCE.WRITE", "{s}fence", 77, "{s}data", 1).ok();
        assert_eq!(stat_of(node, "waiters"), 0);
        cluster.nodes().iter().for_each(Server::assert_alive);
    }

    /// Atomic slot migration under load: leases end, locks are handed over and extended while the slot is on its way.
    /// Tokens rise from one node to the other and back.
    fn a_slot_moves_to_and_fro_under_load(kind: ServerKind) {
        if kind != ServerKind::Valkey91 {
            return; // no other server has it
        }
        let cluster = Cluster::start(kind);
        let mut from = cluster.owner_index(LOCK);
        let slot = key_slot(LOCK.as_bytes());
        let mut last = 0;
        for round in 0..4 {
            let to = other_than(from);
            let mut source = cluster.node(from).connect();
            for index in 0..2000 {
                cmd!(source, "LOCK.ACQUIRE", format!("{{s}}{round}:{index}"), "a", LONG_MS).token();
            }
            let id = cluster.id(to);
            cmd!(source, "CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", id).ok();
            let mut tries = 0;
            let moved = loop {
                let me = format!("o{round}:{tries}");
                let reply = cmd!(source, "LOCK.ACQUIRE", LOCK, me, 5);
                match reply {
                    Reply::Error(line) => break line,
                    Reply::Nil => {}
                    reply => {
                        let token = reply.token();
                        assert!(token > last, "{token} after {last}");
                        last = token;
                        let _ = cmd!(source, "LOCK.RELEASE", LOCK, me);
                    }
                }
                tries += 1;
                assert!(tries < 1_000_000, "the slot never moves");
            };
            assert!(moved.starts_with("MOVED "), "{moved}");
            let mut target = cluster.node(to).connect();
            let arrived = cmd!(target, "CLUSTER", "COUNTKEYSINSLOT", slot).int();
            assert!(arrived >= 2000 * (round + 1), "{arrived} locks arrived");
            assert_eq!(owner(&mut target, format!("{{s}}{round}:7")).as_deref(), Some("a"));
            let token = wait_for("the lock at its new node", SOON, || {
                let reply = cmd!(target, "LOCK.ACQUIRE", LOCK, "next", 1);
                if let Reply::Int(token) = reply { Ok(token.unsigned_abs()) } else { Err(reply) }
            });
            assert!(token > last, "{token} after {last}");
            last = token;
            from = to;
        }
        cluster.nodes().iter().for_each(Server::assert_alive);
    }

    /// I4: a migration that left the lock on both sides and is tried again with REPLACE takes no token back.
    fn a_migration_tried_again_takes_no_token_back(kind: ServerKind) {
        let (source, target) = (Server::start(kind), Server::start(kind));
        let (mut from, mut to) = (source.connect(), target.connect());
        let token = cmd!(from, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        let port = target.port();
        cmd!(from, "MIGRATE", "127.0.0.1", port, "lock", 0, 5000, "COPY").ok();
        let mut last = number(&mut to, "lock", "token").unsigned_abs();
        assert_eq!(last, token);
        assert_eq!(cmd!(to, "LOCK.RELEASE", "lock", "a").int(), 1);
        for round in 0..7 {
            last = cmd!(to, "LOCK.ACQUIRE", "lock", format!("b{round}"), LONG_MS).token();
            assert_eq!(cmd!(to, "LOCK.RELEASE", "lock", format!("b{round}")).int(), 1);
        }
        cmd!(from, "MIGRATE", "127.0.0.1", port, "lock", 0, 5000, "REPLACE").ok();
        assert_eq!(owner(&mut to, "lock"), None, "the older lease came back");
        assert!(number(&mut to, "lock", "counter").unsigned_abs() >= last);
        cmd!(to, "FENCE.WRITE", "lock", token, "data", 1).assert_err_prefix("FENCED ");
        assert!(cmd!(to, "LOCK.ACQUIRE", "lock", "c", LONG_MS).token() > last);
    }

    /// A cluster that is down grants nothing, not by a timer either; who waits goes on waiting; leases outlive it.
    fn a_cluster_that_is_down_grants_nothing_and_recovers(kind: ServerKind) {
        let cluster = Cluster::builder(kind).nodes(|node| node.arg("appendonly", "yes")).start();
        let home = cluster.owner_index(LOCK);
        let node = cluster.node(home);
        let mut conn = node.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", LOCK, "a", LONG_MS).token();
        let brief = cmd!(conn, "LOCK.ACQUIRE", NEIGHBOUR, "a", 20_000).token();
        let [mut long, mut soon] = [waiter(node, LOCK, "b", LONG_MS, 1), waiter(node, NEIGHBOUR, "b", LONG_MS, 1)];
        cluster.node(other_than(home)).kill9();
        wait_until(
            "the cluster to be down",
            FAILOVER,
            || cmd!(conn, "LOCK.ACQUIRE", "{s}third", "x", 1).is_err(),
            |down| *down,
        );
        for command in [
            args!["LOCK.ACQUIRE", LOCK, "x", 1000],
            args!["LOCK.RELEASE", LOCK, "a"],
            args!["LOCK.EXTEND", LOCK, "a", LONG_MS],
            args!["FENCE.WRITE", LOCK, token, "{s}data", 1],
        ] {
            conn.cmd(command).assert_err_prefix("CLUSTERDOWN ");
        }
        let waits = [&mut long, &mut soon].map(|client| goes_on_waiting(client, kind));
        assert_eq!(stat_of(node, "waits_lost_total"), 0, "a cluster that is down is a reason to wait");
        cluster.node(other_than(home)).restart();
        cluster.wait_ok();
        let mut conn = node.connect();
        assert_eq!(owner(&mut conn, LOCK).as_deref(), Some("a"));
        assert_eq!(number(&mut conn, LOCK, "token").unsigned_abs(), token);
        for (client, lock, waits) in [(&mut long, LOCK, waits[0]), (&mut soon, NEIGHBOUR, waits[1])] {
            if !waits {
                send!(client, "LOCK.ACQUIRE", lock, "b", LONG_MS, "WAIT", 0);
            }
        }
        assert!(soon.recv(FAILOVER).token() > brief);
        wait_queue(&mut conn, LOCK, 1);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", LOCK, "a").int(), 1);
        assert!(long.recv(SOON).token() > token);
    }

    /// A lease ends while the cluster is down, in each way that a server says so: the hand-over waits until it may write,
    /// then it is made.
    fn a_hand_over_waits_while_the_cluster_is_down(kind: ServerKind) {
        let cluster = Cluster::builder(kind).primaries(1).start();
        let node = cluster.node(0);
        let mut conn = node.connect();
        for reads in ["no", "yes"] {
            node.config_set("cluster-allow-reads-when-down", reads);
            let token = cmd!(conn, "LOCK.ACQUIRE", LOCK, "a", 1000).token();
            let mut waiting = waiter(node, LOCK, "b", LONG_MS, 1);
            cmd!(conn, "CLUSTER", "DELSLOTS", other_slot()).ok();
            cmd!(conn, "LOCK.RELEASE", LOCK, "a").assert_err_prefix("CLUSTERDOWN ");
            let waits = goes_on_waiting(&mut waiting, kind);
            assert_eq!(stat_of(node, "waits_lost_total"), 0, "reads when down: {reads}");
            cmd!(conn, "CLUSTER", "ADDSLOTS", other_slot()).ok();
            cluster.wait_ok();
            if !waits {
                send!(waiting, "LOCK.ACQUIRE", LOCK, "b", LONG_MS, "WAIT", 0);
            }
            assert!(waiting.recv(SOON).token() > token, "reads when down: {reads}");
            assert_eq!(cmd!(conn, "LOCK.RELEASE", LOCK, "b").int(), 1);
        }
    }

    /// A grant whose reply reached nobody, in a cluster that goes down in the same turn: it is given back once writes
    /// are taken again.
    fn a_grant_that_reached_nobody_is_given_back_after_the_cluster_was_down(kind: ServerKind) {
        let cluster = Cluster::builder(kind).primaries(1).start();
        let node = cluster.node(0);
        let mut conn = node.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", LOCK, "a", LONG_MS).token();
        let mut waiting = node.connect();
        let id = waiting.id();
        send!(waiting, "LOCK.ACQUIRE", LOCK, "b", LONG_MS, "WAIT", 0);
        wait_queue(&mut conn, LOCK, 1);
        cmd!(conn, "MULTI").ok();
        cmd!(conn, "LOCK.RELEASE", LOCK, "a").no_err();
        cmd!(conn, "CLIENT", "KILL", "ID", id).no_err();
        cmd!(conn, "CLUSTER", "DELSLOTS", other_slot()).no_err();
        assert_eq!(cmd!(conn, "EXEC").items()[0].int(), 1);
        waiting.assert_closed(SOON);
        cmd!(conn, "LOCK.RELEASE", LOCK, "b").assert_err_prefix("CLUSTERDOWN ");
        conn.assert_silent(500);
        cmd!(conn, "CLUSTER", "ADDSLOTS", other_slot()).ok();
        cluster.wait_ok();
        wait_until("the lease to be given back", SOON, || owner(&mut conn, LOCK), |owner| owner.is_none());
        assert!(cmd!(conn, "LOCK.ACQUIRE", LOCK, "c", LONG_MS).token() > token);
    }

    /// E8, D14: CLUSTER FAILOVER pauses writes while leases run out; waiters are sent away, also on Valkey 9, which
    /// leaves them to the module; the lease goes on at the new primary.
    fn a_manual_failover_sends_waiters_away(kind: ServerKind) {
        let cluster = Cluster::builder(kind).replicas(1).nodes(|node| node.arg("appendonly", "yes")).start();
        let home = cluster.owner_index(LOCK);
        let (node, replica) = (cluster.node(home), cluster.replicas_of(home)[0]);
        let mut conn = node.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", LOCK, "a", LONG_MS).token();
        cmd!(conn, "LOCK.ACQUIRE", NEIGHBOUR, "a", 3000).token();
        let mut waiters: Vec<Conn> =
            (1..=3).map(|place| waiter(node, LOCK, &format!("w{place}"), LONG_MS, place)).collect();
        // Leases end one after the other, through all of the failover: each is a chance to write in the pause.
        for index in 0..30 {
            let lock = format!("{{s}}brief{index}");
            cmd!(conn, "LOCK.ACQUIRE", lock, "a", 300 + 40 * index).token();
            let mut client = node.connect();
            send!(client, "LOCK.ACQUIRE", lock, "w", LONG_MS, "WAIT", 0);
            waiters.push(client);
        }
        // 32 grants to a, and 33 requests that wait or have been granted.
        let read = || {
            let section = node.info("lockfence");
            let number = |name: &str| section[name].parse::<u64>().expect("a number");
            number("lockfence_waiters") + number("lockfence_grants_total")
        };
        wait_until("all requests to have been read", SOON, read, |read| *read == 65);
        cmd!(replica.connect(), "CLUSTER", "FAILOVER").ok();
        let role = || node.info("replication")["role"].clone();
        wait_until("the old primary to follow", FAILOVER, role, |role| role == "slave");
        for mut client in waiters {
            match client.receive(TOLD) {
                Received::Reply(Reply::Int(_)) => {} // handed over before the failover
                Received::Reply(reply) => {
                    reply.assert_err_prefix("UNBLOCKED ");
                }
                Received::Closed(_) => {}
                Received::Nothing => panic!("still waiting at a replica"),
            }
        }
        assert_eq!(stat_of(node, "waiters"), 0);
        wait_until("one new owner", FAILOVER, || cluster.owner(LOCK).port(), |port| *port == replica.port());
        let mut target = replica.connect();
        assert_arrived(&mut target, token);
        node.wait_in_sync(replica);
        assert_eq!(node.digest(), replica.digest());
        cmd!(node.connect(), "LOCK.ACQUIRE", LOCK, "x", 1000).assert_err_prefix("MOVED ");
    }

    /// G1: a primary that dies is replaced by its replica; the lease goes on, tokens rise.
    fn a_dead_primary_is_replaced_and_tokens_rise(kind: ServerKind) {
        let cluster = Cluster::builder(kind).replicas(1).start();
        let home = cluster.owner_index(LOCK);
        let (node, replica) = (cluster.node(home), cluster.replicas_of(home)[0]);
        let mut conn = node.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", LOCK, "a", LONG_MS).token();
        let mut last = 0;
        for round in 0..20 {
            last = cmd!(conn, "LOCK.ACQUIRE", NEIGHBOUR, format!("o{round}"), LONG_MS).token();
            assert_eq!(cmd!(conn, "LOCK.RELEASE", NEIGHBOUR, format!("o{round}")).int(), 1);
        }
        let client = waiter(node, LOCK, "w", LONG_MS, 1);
        replica.wait_in_sync(node);
        node.kill9();
        assert_redirected(client, SOON);
        wait_until("one new owner", FAILOVER, || cluster.owner(LOCK).port(), |port| *port == replica.port());
        let mut target = replica.connect();
        let taken = |reply: &Reply| !reply.is_err(); // -CLUSTERDOWN until all agree
        let next = wait_until(
            "the new primary to serve",
            FAILOVER,
            || cmd!(target, "LOCK.ACQUIRE", NEIGHBOUR, "next", LONG_MS),
            taken,
        );
        assert!(next.token() > last);
        assert_arrived(&mut target, token);
    }
}
