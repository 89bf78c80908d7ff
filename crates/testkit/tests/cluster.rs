//! Clusters and sentinels come up, move slots, and fail over.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::time::Duration;

use lockfence_testkit::{Cluster, Sentinel, Server, ServerKind, cmd, key_slot, server_tests, wait_until};

const PATIENCE: Duration = Duration::from_secs(60);

server_tests! {
    fn a_slot_moves(kind: ServerKind) {
        let cluster = Cluster::builder(kind).nodes(|node| node.without_module()).start();
        let from = cluster.owner_index("key");
        let to = (0..3).find(|index| *index != from).unwrap();
        cmd!(cluster.connect_for("key"), "SET", "key", "value").ok();
        cmd!(cluster.node(to).connect(), "GET", "key").assert_err_prefix("MOVED ");
        cluster.move_slot(key_slot(b"key"), from, to);
        assert_eq!(cluster.owner_index("key"), to);
        assert_eq!(cmd!(cluster.node(to).connect(), "GET", "key").text(), "value");
        cmd!(cluster.node(from).connect(), "GET", "key").assert_err_prefix("MOVED ");
        cluster.wait_ok();
    }

    fn a_replica_takes_over(kind: ServerKind) {
        let cluster = Cluster::builder(kind).replicas(1).nodes(|node| node.without_module()).start();
        cmd!(cluster.connect_for("key"), "SET", "key", "value").ok();
        let old = cluster.owner_index("key");
        let replica = cluster.replicas_of(old)[0];
        replica.wait_in_sync(cluster.node(old));
        cluster.node(old).kill9();
        let owner = || cluster.owner("key").port();
        wait_until("the replica to take over", PATIENCE, owner, |port| *port == replica.port());
        cluster.node(old).restart();
        cluster.wait_ok();
        assert_eq!(cmd!(cluster.connect_for("key"), "GET", "key").text(), "value");
    }

    fn a_sentinel_promotes_a_replica(kind: ServerKind) {
        let primary = Server::builder(kind).without_module().start();
        let replica = Server::builder(kind).without_module().start();
        replica.replicate_from(&primary);
        replica.wait_in_sync(&primary);
        let sentinel = Sentinel::watch(&primary);
        sentinel.wait_primary(&primary);
        sentinel.wait_known(1, 0);
        primary.kill9();
        sentinel.wait_primary(&replica);
        let role = || replica.info("replication")["role"].clone();
        wait_until("the promotion", PATIENCE, role, |role| role == "master");
    }
}
