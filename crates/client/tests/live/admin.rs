//! The library's questions and orders of an administrator, on real servers. What they look like for people:
//! `tests/program`.

use std::collections::BTreeSet;
use std::time::Duration;

use lockfence_client::admin::{Admin, LockState, Mode, NoAnswer};
use lockfence_client::{Lockfence, Lost, Options};
use lockfence_testkit::{Cluster, Server, ServerKind, cmd, server_tests};

use crate::common::{LONG, run};

fn client(servers: &[Server]) -> Lockfence {
    let nodes = servers.iter().fold(Lockfence::builder(), |builder, server| builder.node(server.url()));
    nodes.ttl(Duration::from_secs(9)).node_timeout(Duration::from_secs(2)).build().unwrap()
}

async fn only(admin: &Admin, lock: &str) -> Option<LockState> {
    admin.look(lock, 0).await.pop().unwrap().answer.unwrap()
}

server_tests! {
    /// Every lock once, in the order of the names, over many pages of SCAN and between other keys.
    fn all_locks_are_listed_once(kind: ServerKind) {
        const COUNT: usize = 2500;
        let server = [Server::start(kind)];
        let mut conn = server[0].connect();
        let each = |n: usize| {
            let (lock, key) = (format!("lock:{n:04}"), format!("key:{n}"));
            [["LOCK.ACQUIRE", &lock, "me", "600000"].map(str::to_owned).to_vec(), ["SET", &key, "x"].map(str::to_owned).to_vec()]
        };
        conn.pipeline(&(0..COUNT).flat_map(each).collect::<Vec<_>>());
        cmd!(conn, "FENCE.ADVANCE", "fence", 5).no_err();
        run(async {
            let admin = client(&server).admin();
            let found = admin.list("*", 1).await.pop().unwrap().answer.unwrap();
            let names: Vec<String> = found.iter().map(|lock| String::from_utf8(lock.name.clone()).unwrap()).collect();
            assert_eq!(names, (0..COUNT).map(|n| format!("lock:{n:04}")).collect::<Vec<_>>());
            assert_eq!(admin.list("lock:00?5", 0).await[0].answer.as_ref().unwrap().len(), 10);
        });
    }

    /// A cluster's locks are those of all its servers, and a break goes to the one that has it.
    fn a_clusters_locks_are_listed(kind: ServerKind) {
        let cluster = Cluster::start(kind);
        let node = format!("redis+cluster://127.0.0.1:{}", cluster.node(0).port());
        let names: Vec<String> = (0..60).map(|n| format!("lock:{n:02}")).collect();
        for name in &names {
            cmd!(cluster.connect_for(name), "LOCK.ACQUIRE", name, "me", 600_000).no_err();
        }
        let owners: BTreeSet<usize> = names.iter().map(|name| cluster.owner_index(name)).collect();
        assert!(owners.len() > 1, "locks at one server alone");
        run(async {
            let admin = Lockfence::builder().node(node).build().unwrap().admin();
            let found = admin.list("lock:*", 1).await.pop().unwrap().answer.unwrap();
            let found: Vec<String> = found.iter().map(|lock| String::from_utf8(lock.name.clone()).unwrap()).collect();
            assert_eq!(found, names);
            for name in &names {
                assert_eq!(admin.break_lock(name).await[0].answer, Ok(1), "{name}");
            }
        });
    }

    /// What a node knows: mode, holders and their time.
    fn a_look_tells_all(kind: ServerKind) {
        let server = [Server::start(kind)];
        run(async {
            let client = client(&server);
            let admin = client.admin();
            assert_eq!(only(&admin, "lock").await, None);
            let held = client.acquire("lock", Options::try_once().limit(3)).await.unwrap();
            let state = only(&admin, "lock").await.unwrap();
            assert_eq!((state.mode, state.holders, state.waiters), (Some(Mode::Limit(3)), 1, 0));
            assert_eq!((state.counter, state.holder_list[0].token), (held.token(), held.token()));
            let left = state.holder_list[0].left;
            assert!(left > Duration::ZERO && left <= Duration::from_secs(9), "{left:?}");
            held.release().await;
            let state = only(&admin, "lock").await.unwrap();
            assert_eq!((state.mode, state.holders, state.holder_list.len()), (None, 0, 0));
        });
    }

    /// Whoever came in after the look keeps the lock, at each node by that node's own tokens.
    fn a_break_of_those_seen_spares_who_came_later(kind: ServerKind) {
        let servers: Vec<Server> = (0..3).map(|_| Server::start(kind)).collect();
        let take = |server: &Server, owner: &str| {
            cmd!(server.connect(), "LOCK.ACQUIRE", "lock", owner, 600_000, "SHARED").token();
        };
        // The third has no record of the lock yet.
        take(&servers[0], "a");
        std::thread::sleep(Duration::from_millis(2)); // the nodes' tokens differ
        take(&servers[1], "a");
        run(async {
            let admin = client(&servers).admin();
            let answers = |answers: Vec<lockfence_client::admin::AtNode<u64>>| -> Vec<_> {
                answers.into_iter().map(|node| node.answer).collect()
            };
            let mut seen = admin.look("lock", 0).await;
            servers.iter().for_each(|server| take(server, "b"));
            assert_eq!(answers(admin.break_seen("lock", &seen).await), [Ok(1), Ok(1), Ok(0)]);
            let now = admin.look("lock", 0).await;
            for node in now {
                let state = node.answer.unwrap().unwrap();
                let owners: Vec<_> = state.holder_list.iter().map(|holder| holder.owner.bytes()).collect();
                assert_eq!(owners, [b"b"], "{}", node.node);
            }
            assert_eq!(answers(admin.break_seen("lock", &seen).await), [Ok(0), Ok(0), Ok(0)]);
            // One that was not heard then is left alone.
            seen = admin.look("lock", 0).await;
            let silent = NoAnswer { cause: "silent".to_owned(), lasting: false };
            seen[1].answer = Err(silent.clone());
            let answers = answers(admin.break_seen("lock", &seen).await);
            assert_eq!(answers, [Ok(1), Err(silent), Ok(1)]);
        });
    }

    /// A break reaches the holder, and each node says for itself what it did.
    fn a_break_is_a_loss(kind: ServerKind) {
        let servers: Vec<Server> = (0..3).map(|_| Server::builder(kind).may_die().start()).collect();
        run(async {
            let client = client(&servers);
            let held = client.acquire("lock", Options::wait_up_to(LONG)).await.unwrap();
            servers[2].kill9();
            let admin = client.admin();
            assert_eq!(admin.majority(), 2);
            let answers = admin.break_lock("lock").await;
            let names: Vec<&str> = answers.iter().map(|node| node.node.as_str()).collect();
            assert_eq!(names, admin.nodes());
            assert_eq!((&answers[0].answer, &answers[1].answer), (&Ok(1), &Ok(1)));
            assert!(answers[2].answer.is_err());
            assert_eq!(held.lost().await, Lost::Broken);
            // A renewal that was under way may have taken a node anew; it is given back.
            held.release().await;
            assert!(client.settled(LONG).await);
            assert_eq!(admin.break_lock("lock").await[0].answer, Ok(0));
        });
    }
}
