//! A cluster: each lock at the server that has its slot, wherever that moves.

use lockfence_client::{Error, Lockfence, Options, Released};
use lockfence_testkit::{Cluster, Server, ServerKind, cmd, key_slot, server_tests, wait_until};

use crate::{LONG, client_of, get, info, is_free, ms, prolonged, run};

/// A client that knows one server of the cluster, and one that is gone.
fn client(cluster: &Cluster) -> Lockfence {
    let url = format!("redis+cluster://127.0.0.1:1,127.0.0.1:{}", cluster.node(0).port());
    client_of([url.as_str()]).build().unwrap()
}

/// The indices of the server that has the lock's slot, and of another one.
fn from_to(cluster: &Cluster) -> (usize, usize) {
    let from = cluster.owner_index("lock");
    (from, (0..3).find(|index| *index != from).unwrap())
}

async fn waiting(locks: &Lockfence, at: &Server) -> tokio::task::JoinHandle<lockfence_client::Held> {
    let locks = locks.clone();
    let waiting = tokio::spawn(async move { get(&locks, Options::wait_up_to(LONG)).await });
    wait_until("a waiter", LONG, || info(at, "waiters"), |seen| seen.contains('1'));
    waiting
}

server_tests! {
    /// Locks at all three servers at once, with the data beside them; a slot that moves while a lock in it is held,
    /// waited for, and free.
    fn locks_follow_their_slots(kind: ServerKind) {
        let cluster = Cluster::start(kind);
        let locks = client(&cluster);
        run(async {
            for name in ["lock:{a}", "lock:{b}", "lock:{c}", "lock:{d}"] {
                let held = locks.acquire(name, Options::try_once()).await.unwrap();
                assert_eq!(cmd!(cluster.connect_for(name), "LOCK.INFO", name).field("holders").int(), 1);
                let data = name.replace("lock", "data");
                held.fence_here().unwrap().write(&data, "written").await.unwrap();
                assert_eq!(cmd!(cluster.connect_for(name), "GET", data).text(), "written");
                assert_eq!(held.release().await, Released::Ended);
            }

            let (from, to) = from_to(&cluster);
            let held = get(&locks, Options::try_once()).await;
            let fenced = held.fence_here().unwrap();
            fenced.write("{lock}", "before").await.unwrap();
            let second = waiting(&locks, cluster.node(from)).await;
            cluster.move_slot(key_slot(b"lock"), from, to);
            wait_until("the waiter there", LONG, || info(cluster.node(to), "waiters"), |seen| seen.contains('1'));
            prolonged(&held, 1).await;
            fenced.write("{lock}", "after").await.unwrap();
            assert_eq!(cmd!(cluster.node(to).connect(), "GET", "{lock}").text(), "after");
            let token = held.token();
            assert_eq!(held.release().await, Released::Ended);
            let second = second.await.unwrap();
            assert!(second.token() > token);
            assert!(matches!(fenced.write("{lock}", "late").await, Err(Error::Fenced(_))));
            let token = second.token();
            assert_eq!(second.release().await, Released::Ended);

            cluster.move_slot(key_slot(b"lock"), to, from);
            let third = get(&locks, Options::try_once()).await;
            assert!(third.token() > token);
            drop(third);
            assert!(locks.settled(LONG).await);
            assert!(is_free(cluster.node(from)));
        });
    }

    /// The data is in a cluster, the lock elsewhere: the fence is in the data's slot, and moves with it.
    fn a_fence_in_a_cluster(kind: ServerKind) {
        let (server, cluster) = (Server::start(kind), Cluster::start(kind));
        let locks = client_of([server.url().as_str()]).build().unwrap();
        let data = client(&cluster);
        run(async {
            let held = get(&locks, Options::try_once()).await;
            let fenced = held.fence_at(&data, "fence:{lock}").await.unwrap();
            fenced.write("{lock}:data", "one").await.unwrap();
            let (from, to) = from_to(&cluster);
            cluster.move_slot(key_slot(b"lock"), from, to);
            fenced.write("{lock}:data", "two").await.unwrap();
            held.release().await;
            let next = get(&locks, Options::try_once()).await;
            let newer = next.fence_at(&data, "fence:{lock}").await.unwrap();
            assert!(matches!(fenced.write("{lock}:data", "late").await, Err(Error::Fenced(_))));
            newer.check().await.unwrap();
            assert_eq!(cmd!(cluster.node(to).connect(), "GET", "{lock}:data").text(), "two");
        });
    }

    /// Half a move: keys that are not there any more, or not yet, are asked for at the new owner.
    fn a_slot_between_two_servers(kind: ServerKind) {
        let cluster = Cluster::start(kind);
        let locks = client(&cluster);
        run(async {
            let (from, to) = from_to(&cluster);
            cluster.begin_move(key_slot(b"lock"), from, to);
            let held = get(&locks, Options::try_once()).await;
            let at_new_owner = || {
                let mut conn = cluster.node(to).connect();
                cmd!(conn, "ASKING").ok();
                cmd!(conn, "LOCK.INFO", "lock").field("waiters").int()
            };
            assert_eq!(at_new_owner(), 0);
            assert!(matches!(locks.try_acquire("lock").await, Err(Error::Held { .. })));
            let second = tokio::spawn({
                let locks = locks.clone();
                async move { get(&locks, Options::wait_up_to(LONG)).await }
            });
            wait_until("a waiter", LONG, at_new_owner, |waiters| *waiters == 1);
            let token = held.token();
            assert_eq!(held.release().await, Released::Ended);
            let second = second.await.unwrap();
            assert!(second.token() > token);
            cluster.move_keys(key_slot(b"lock"), from, to);
            cluster.finish_move(key_slot(b"lock"), from, to);
            prolonged(&second, 1).await;
            assert_eq!(second.release().await, Released::Ended);
        });
    }
}

/// The server that has the lock dies, and its replica takes its place: the lock is held on.
#[test]
fn a_replica_takes_over() {
    if !ServerKind::Redis70.present() {
        return;
    }
    let cluster = Cluster::builder(ServerKind::Redis70).replicas(1).start();
    let locks = client(&cluster);
    run(async {
        let owner = cluster.owner_index("lock");
        let held = get(&locks, Options::try_once().ttl(ms(20_000))).await;
        let replica = cluster.replicas_of(owner)[0];
        replica.wait_in_sync(cluster.node(owner));
        cluster.node(owner).kill9();
        prolonged(&held, 1).await;
        assert!(info(replica, "holders").contains('1'));
        let token = held.token();
        assert_eq!(held.release().await, Released::Ended);
        assert!(get(&locks, Options::wait_up_to(LONG)).await.token() > token);
    });
}
