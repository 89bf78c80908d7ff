//! One server, and a quorum of three.

use std::time::{Duration, Instant};

use lockfence_client::{ConfigError, Error, Lost, Options, Released};
use lockfence_testkit::{Direction, Proxy, Server, ServerKind, cmd, server_tests, wait_until};

use crate::{LONG, client, client_of, get, info, is_free, ms, prolonged, run, three, wait_everywhere};

server_tests! {
    /// A6, A9: one server; the error says who has it; the release of one acquisition never frees another's.
    fn one_server(kind: ServerKind) {
        let server = Server::start(kind);
        let urls = [server.url().to_string()];
        let locks = client_of(urls.iter().map(String::as_str)).name("worker-1").build().unwrap();
        run(async {
            let first = get(&locks, Options::try_once()).await;
            assert!(first.is_held() && first.remaining() > ms(1));
            match locks.try_acquire("lock").await {
                Err(Error::Held { by: Some(by), retry_after }) => {
                    assert!(by.bytes().starts_with(b"worker-1/"), "{by:?}");
                    assert!(retry_after <= ms(8_000));
                }
                other => panic!("{other:?}"),
            }
            let here = first.fence_here().expect("one server");
            here.write("data", "one").await.unwrap();
            let token = first.token();
            assert_eq!(first.release().await, Released::Ended);
            let second = get(&locks, Options::try_once()).await;
            assert!(second.token() > token);
            assert!(matches!(here.write("data", "late").await, Err(Error::Fenced(_))));
            assert_eq!(cmd!(server.connect(), "GET", "data").text(), "one");
            drop(second);
            assert!(locks.settled(LONG).await);
            assert!(is_free(&server));
            assert_eq!((locks.stats().granted, locks.stats().refused), (2, 1));
        });
    }

    /// J16: tokens rise over grants of a quorum, all three nodes stand at them, and a waiter gets the lock when it is
    /// released.
    fn quorum_hands_over(kind: ServerKind) {
        let servers = three(kind);
        let (one, other) = (client(&servers), client(&servers));
        run(async {
            let mut before = 0;
            for _ in 0..5 {
                let held = get(&one, Options::try_once()).await;
                assert!(held.token() > before);
                before = held.token();
                wait_everywhere(&servers);
                let waiting = tokio::spawn({
                    let other = other.clone();
                    async move { get(&other, Options::wait_up_to(LONG)).await }
                });
                wait_until("a waiter", LONG, || servers.iter().map(|server| info(server, "waiters")).any(|n| n.contains('1')), |seen| *seen);
                assert_eq!(held.release().await, Released::Ended);
                let second = waiting.await.unwrap();
                assert!(second.token() > before);
                before = second.token();
                assert_eq!(second.release().await, Released::Ended);
            }
            assert!(one.settled(LONG).await && other.settled(LONG).await);
            assert!(servers.iter().all(is_free));
        });
    }

    /// J20: a minority of the nodes may be gone, the queue node among them, before and while somebody waits.
    fn a_node_dies_while_somebody_waits(kind: ServerKind) {
        let servers: Vec<Server> = (0..3).map(|_| Server::builder(kind).may_die().start()).collect();
        let locks = client(&servers);
        run(async {
            let held = get(&locks, Options::try_once()).await;
            wait_everywhere(&servers);
            let waiting = tokio::spawn({
                let locks = locks.clone();
                async move { get(&locks, Options::wait_up_to(LONG)).await }
            });
            let queue_node = wait_until(
                "a waiter",
                LONG,
                || servers.iter().position(|server| info(server, "waiters").contains('1')),
                Option::is_some,
            )
            .unwrap();
            servers[queue_node].kill9();
            wait_until(
                "the waiter at another node",
                LONG,
                || servers.iter().enumerate().any(|(n, server)| n != queue_node && info(server, "waiters").contains('1')),
                |seen| *seen,
            );
            let token = held.token();
            held.release().await;
            let second = waiting.await.unwrap();
            assert!(second.token() > token);
            second.release().await;
        });
    }

    /// J5: broken by an administrator: the holder is told within a renewal, long before its deadline.
    fn broken_is_told(kind: ServerKind) {
        let servers = three(kind);
        let locks = client(&servers);
        run(async {
            let held = get(&locks, Options::try_once().ttl(ms(8_000))).await;
            wait_everywhere(&servers);
            for server in &servers {
                assert_eq!(cmd!(server.connect(), "LOCK.BREAK", "lock").int(), 1);
            }
            assert_eq!(held.lost().await, Lost::Broken);
            assert!(!held.is_held());
            assert_eq!(held.release().await, Released::NotHeld);
        });
    }

    /// J6, B3: no answer from any node: lost by the local deadline, with the reason.
    fn silence_is_told_by_the_deadline(kind: ServerKind) {
        let servers = three(kind);
        let proxies: Vec<Proxy> = servers.iter().map(Proxy::to).collect();
        let urls: Vec<String> = proxies.iter().map(|proxy| proxy.url().to_string()).collect();
        let locks = client_of(urls.iter().map(String::as_str)).build().unwrap();
        run(async {
            let began = Instant::now();
            let held = get(&locks, Options::try_once().ttl(ms(8_000))).await;
            proxies.iter().for_each(Proxy::black_hole);
            let lost = held.lost().await;
            assert!(matches!(&lost, Lost::NoQuorum(nodes) if nodes.len() >= 2), "{lost:?}");
            // A renewal may have gone out just before; the deadline is a ttl after it.
            assert!(began.elapsed() < ms(14_000), "{:?}", began.elapsed());
        });
    }

    /// D7, D21, J9: an acquire that is called off leaves no waiter behind, and no lease.
    fn a_wait_that_is_called_off_leaves_nothing(kind: ServerKind) {
        let servers = three(kind);
        let locks = client(&servers);
        run(async {
            let held = get(&locks, Options::try_once()).await;
            wait_everywhere(&servers);
            let waiting = tokio::spawn({
                let locks = locks.clone();
                async move { get(&locks, Options::wait_forever()).await }
            });
            wait_until("a waiter", LONG, || servers.iter().any(|server| info(server, "waiters").contains('1')), |seen| *seen);
            waiting.abort();
            wait_until("no waiter", LONG, || servers.iter().all(|server| info(server, "waiters").contains('0')), |seen| *seen);
            assert!(matches!(
                locks.acquire("lock", Options::wait_up_to(ms(300))).await,
                Err(Error::TimedOut { by: Some(_) })
            ));
            assert_eq!(held.release().await, Released::Ended);
            assert!(locks.settled(LONG).await);
            assert!(servers.iter().all(is_free));
        });
    }

    /// A11, B2, D20: granted, but the answers never arrive: no success is reported, and nothing is left behind once the
    /// nodes can be reached again.
    fn a_grant_whose_answer_is_lost_is_given_back(kind: ServerKind) {
        let servers = three(kind);
        let proxies: Vec<Proxy> = servers.iter().map(Proxy::to).collect();
        let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
        let locks = client_of(urls.iter().map(String::as_str)).ttl(ms(60_000)).build().unwrap();
        run(async {
            get(&locks, Options::try_once()).await.release().await;
            proxies.iter().for_each(|proxy| proxy.hold(Direction::ToClient));
            let result = locks.try_acquire("lock").await;
            assert!(matches!(&result, Err(Error::NoQuorum(nodes)) if nodes.len() == 3), "{result:?}");
            proxies.iter().for_each(Proxy::cut);
            proxies.iter().for_each(Proxy::pass);
            // Long before the ttl.
            wait_until("given back", ms(30_000), || servers.iter().all(is_free), |free| *free);
        });
    }

    /// Times without end are what they say: a wait as long as the server allows, and no time limit that is over at once.
    fn the_longest_times(kind: ServerKind) {
        let server = [Server::start(kind)];
        let (holder, waiter) = (client(&server), client(&server));
        run(async {
            let held = get(&holder, Options::try_once()).await;
            let options = Options::wait_up_to(Duration::MAX).max_hold(Duration::MAX);
            let waits = tokio::spawn(async move { get(&waiter, options).await });
            wait_until("a waiter", LONG, || info(&server[0], "waiters"), |seen| seen.contains('1'));
            let looked = holder.admin().within(Duration::MAX).look("lock", 0).await.pop().unwrap();
            assert_eq!(looked.answer.unwrap().unwrap().waiters, 1);
            held.release().await;
            assert_eq!(waits.await.unwrap().release().await, Released::Ended);
            assert!(holder.settled(Duration::MAX).await);
        });
    }

    /// B13: work that hangs loses the lock after max_hold, although it was renewed.
    fn a_cap_ends_a_hold(kind: ServerKind) {
        let servers = three(kind);
        let locks = client(&servers);
        run(async {
            let held = get(&locks, Options::try_once().ttl(ms(3_000)).max_hold(ms(4_000))).await;
            tokio::time::sleep(ms(3_200)).await;
            assert!(held.is_held(), "renewed");
            assert_eq!(held.lost().await, Lost::HeldTooLong);
            wait_until("given back", LONG, || servers.iter().all(is_free), |free| *free);
        });
    }

    /// J2: a node that comes back empty is topped up, so that the next one may go.
    fn a_node_that_forgot_is_topped_up(kind: ServerKind) {
        let servers = three(kind);
        let locks = client(&servers);
        run(async {
            let held = get(&locks, Options::try_once().ttl(ms(8_000))).await;
            wait_everywhere(&servers);
            prolonged(&held, 3).await;
            for (node, server) in servers.iter().enumerate().take(2) {
                cmd!(server.connect(), "CONFIG", "SET", "save", "");
                server.kill9();
                server.restart();
                let topped_up = async {
                    while is_free(server) {
                        tokio::time::sleep(ms(10)).await;
                    }
                    // It counts after the next prolongation, and that one may have been under way.
                    prolonged(&held, 2).await;
                };
                tokio::select! {
                    lost = held.lost() => panic!("lost at node {node}: {lost:?}"),
                    () = topped_up => {}
                }
            }
            assert!(held.is_held());
            assert_eq!(held.release().await, Released::Ended);
        });
    }

    /// A fence on the server of the data: the successor's token shuts out the holder before it.
    fn a_fence_elsewhere(kind: ServerKind) {
        let servers = three(kind);
        let data = Server::start(kind);
        let data_client = redis::Client::open(data.url().to_string()).unwrap();
        let locks = client(&servers);
        run(async {
            let first = get(&locks, Options::try_once()).await;
            assert!(first.fence_here().is_none());
            let refused = first.fence(&locks).await;
            assert!(matches!(refused, Err(Error::Config(ConfigError::DataOnQuorum { nodes: 3 }))), "{refused:?}");
            let fenced = first.fence(&data_client).await.unwrap();
            fenced.write("data", "one").await.unwrap();
            fenced.check().await.unwrap();
            cmd!(data.connect(), "DEL", "fence:lock");
            fenced.write("data", "two").await.unwrap();
            first.release().await;
            let second = get(&locks, Options::try_once()).await;
            let newer = second.fence(&data_client).await.unwrap();
            assert!(matches!(fenced.write("data", "late").await, Err(Error::Fenced(_))));
            let mut incr = redis::cmd("INCR");
            incr.arg("count");
            assert_eq!(newer.call(&incr).await.unwrap(), redis::Value::Int(1));
            assert!(matches!(fenced.call(&incr).await, Err(Error::Fenced(_))));
            assert_eq!(cmd!(data.connect(), "GET", "data").text(), "two");
        });
    }

    /// J15: the body runs only with a grant, and is dropped when the lock is lost.
    fn with_lock_runs_only_while_held(kind: ServerKind) {
        let servers = three(kind);
        let locks = client(&servers);
        run(async {
            let token = locks.with_lock("lock", Options::try_once(), async |held| held.token()).await.unwrap();
            let held = get(&locks, Options::try_once()).await;
            assert!(held.token() > token);
            let refused = locks.with_lock("lock", Options::try_once(), async |_| panic!("not held")).await;
            assert!(matches!(refused, Err::<(), _>(Error::Held { .. })), "{refused:?}");
            held.release().await;
            let options = Options::try_once().ttl(ms(1_000)).without_renewal();
            let lost = locks.with_lock("lock", options, async |_| std::future::pending::<()>().await).await;
            assert!(matches!(lost, Err(Error::Lost(Lost::Expired))), "{lost:?}");
        });
    }
}
