//! Leases that replicas or the disk vouch for.

use lockfence_client::{Error, Lost, Options, Released};
use lockfence_testkit::{Server, ServerKind, cmd, server_tests, wait_until};

use crate::{LONG, client_of, get, info, is_free, ms, run};

fn pair(kind: ServerKind) -> (Server, Server) {
    let (primary, replica) = (Server::start(kind), Server::start(kind));
    replica.replicate_from(&primary);
    replica.wait_in_sync(&primary);
    (primary, replica)
}

server_tests! {
    /// The replica has the lock by the time that `acquire` says so. One that is not vouched for is given back.
    fn replicas_have_it_first(kind: ServerKind) {
        let (primary, replica) = pair(kind);
        let url = primary.url();
        let locks = client_of([url.as_str()]).ttl(ms(20_000)).min_replicas(1).build().unwrap();
        run(async {
            for options in [Options::try_once(), Options::try_once().shared()] {
                let held = get(&locks, options).await;
                let token = cmd!(replica.connect(), "LOCK.INFO", "lock").field("token").token();
                assert_eq!(token, held.token());
                assert_eq!(held.release().await, Released::Ended);
            }
            let two = client_of([url.as_str()]).ttl(ms(12_000)).min_replicas(2).ack_timeout(ms(200)).build().unwrap();
            let refused = two.try_acquire("lock").await;
            match &refused {
                Err(error @ Error::NotDurable { acknowledged: 1, wanted: 2, on_disk: None }) => {
                    assert_eq!(error.to_string(), "granted, but acknowledged by 1 of 2 replicas");
                }
                other => panic!("{other:?}"),
            }
            assert!(two.settled(LONG).await && is_free(&primary));
            // One that waits gets no grant on the word of somebody else's connection.
            let held = get(&locks, Options::try_once()).await;
            let waiting = tokio::spawn({
                let locks = locks.clone();
                async move { locks.acquire("lock", Options::wait_up_to(LONG)).await }
            });
            wait_until("a waiter", LONG, || info(&primary, "waiters"), |seen| seen.contains('1'));
            replica.pause();
            assert_eq!(held.release().await, Released::Ended);
            let refused = waiting.await.unwrap();
            assert!(matches!(refused, Err(Error::NotDurable { acknowledged: 0, wanted: 1, .. })), "{refused:?}");
            replica.resume();
            get(&locks, Options::wait_up_to(LONG)).await;
        });
    }

    /// The disk has it first, where the server can tell.
    fn the_disk_has_it_first(kind: ServerKind) {
        let server = Server::builder(kind).arg("appendonly", "yes").may_die().start();
        let url = server.url();
        let locks = client_of([url.as_str()]).ttl(ms(30_000)).fsync().build().unwrap();
        run(async {
            let granted = locks.try_acquire("lock").await;
            if kind == ServerKind::Redis70 {
                assert!(matches!(&granted, Err(Error::Refused(why)) if why.contains("7.2")), "{granted:?}");
                assert!(locks.settled(LONG).await && is_free(&server));
                return;
            }
            let held = granted.unwrap();
            server.kill9();
            server.restart();
            let token = cmd!(server.connect(), "LOCK.INFO", "lock").field("token").token();
            assert_eq!(token, held.token());
            drop(held);
            assert!(locks.settled(LONG).await);
            server.config_set("appendonly", "no");
            let refused = locks.acquire("lock", Options::wait_up_to(LONG)).await;
            assert!(matches!(&refused, Err(Error::Refused(why)) if why.contains("appendonly")), "{refused:?}");
            assert!(locks.settled(LONG).await && is_free(&server));
        });
    }
}

/// A renewal that no replica heard of does not count: the holder must not think that it has longer than the replica does.
#[test]
fn renewals_are_vouched_for() {
    if !ServerKind::Redis70.present() {
        return;
    }
    let (primary, replica) = pair(ServerKind::Redis70);
    let url = primary.url();
    let locks = client_of([url.as_str()]).ttl(ms(8_000)).min_replicas(1).build().unwrap();
    run(async {
        let held = get(&locks, Options::try_once()).await;
        replica.pause();
        let until = std::time::Instant::now() + held.remaining();
        let lost = held.lost().await;
        assert!(
            matches!(&lost, Lost::NoQuorum(nodes) if nodes[0].cause.contains("0 of 1 replicas")),
            "{lost:?}"
        );
        // One renewal may have got through before the pause.
        assert!(until.elapsed() < ms(8_000), "{:?}", until.elapsed());
        replica.resume();
    });
}
