//! A primary that sentinels watch, and that fails over.

use std::time::Duration;

use lockfence_client::{Error, Lockfence, Lost, Options, Released};
use lockfence_testkit::{Received, Sentinel, Server, ServerKind, cmd, server_tests, wait_until};

use crate::{LONG, client_of, get, info, is_free, ms, prolonged, run};

/// Long enough for a failover on a busy machine.
const TTL: Duration = Duration::from_secs(30);

struct Watched {
    primary: Server,
    replica: Server,
    sentinel: Sentinel,
    locks: Lockfence,
}

/// A primary and a replica that want a password, and a sentinel; the client knows another one, too, which is gone.
fn watched(kind: ServerKind) -> Watched {
    let server = || Server::builder(kind).password("pass/word").arg("masterauth", "pass/word").start();
    let (primary, replica) = (server(), server());
    replica.replicate_from(&primary);
    replica.wait_in_sync(&primary);
    let sentinel = Sentinel::of(&primary).down_after_ms(1000).start();
    sentinel.wait_known(1, 0);
    let url =
        format!("redis+sentinel://:pass%2Fword@127.0.0.1:1,127.0.0.1:{}/main", sentinel.server().port());
    let locks = client_of([url.as_str()]).ttl(TTL).build().unwrap();
    Watched { primary, replica, sentinel, locks }
}

/// How many wait; nothing while the server cannot say: it disconnects its clients when its role changes.
fn waiters(server: &Server) -> Option<i64> {
    match server.try_connect().ok()?.try_cmd(["LOCK.INFO", "lock"], LONG) {
        Received::Reply(reply) if !reply.is_nil() && !reply.is_err() => Some(reply.field("waiters").int()),
        _ => None,
    }
}

/// For tests of the client's own doing, which take long: on one kind of server.
fn watched_if_present() -> Option<Watched> {
    ServerKind::Redis70.present().then(|| watched(ServerKind::Redis70))
}

/// The new primary knows the lock: it is held through the failover, and renewed there. The next token is higher.
#[test]
fn held_through_a_failover() {
    let Some(Watched { primary, replica, sentinel, locks }) = watched_if_present() else { return };
    run(async {
        let held = get(&locks, Options::try_once().ttl(ms(15_000))).await;
        replica.wait_in_sync(&primary);
        primary.kill9();
        sentinel.wait_primary(&replica);
        prolonged(&held, 1).await;
        assert!(info(&replica, "holders").contains('1'));
        let here = held.fence_here().unwrap();
        here.write("data", "written").await.unwrap();
        let token = held.token();
        assert_eq!(held.release().await, Released::Ended);
        assert!(get(&locks, Options::wait_up_to(LONG)).await.token() > token);
    });
}

/// The new primary never heard of the lock: the holder is told that it is lost, and it is not taken again behind its
/// back. The next token is higher, and what the old one writes is refused.
#[test]
fn lost_in_a_failover() {
    let Some(Watched { primary, replica, sentinel, locks }) = watched_if_present() else { return };
    run(async {
        cmd!(replica.connect(), "CONFIG", "SET", "masterauth", "wrong").ok();
        cmd!(primary.connect(), "CLIENT", "KILL", "TYPE", "replica").int();
        let link = || replica.info("replication")["master_link_status"].clone();
        wait_until("no link", LONG, link, |link| link == "down");
        let held = get(&locks, Options::try_once().ttl(ms(15_000))).await;
        primary.kill9();
        assert_eq!(held.lost().await, Lost::Broken);
        assert_eq!(sentinel.primary_port(), replica.port());
        let here = held.fence_here().unwrap();
        let token = held.token();
        assert_eq!(held.release().await, Released::NotHeld);
        assert!(locks.settled(LONG).await && is_free(&replica));
        let next = get(&locks, Options::wait_up_to(LONG)).await;
        assert!(next.token() > token);
        assert!(matches!(here.write("data", "late").await, Err(Error::Fenced(_))));
        assert_eq!(locks.stats().lost, 1);
    });
}

server_tests! {
    /// Whoever waits while the primary is demoted queues at the new one.
    fn a_waiter_follows(kind: ServerKind) {
        let Watched { primary, replica, sentinel, locks } = watched(kind);
        run(async {
            let held = get(&locks, Options::try_once()).await;
            let waiting = tokio::spawn({
                let locks = locks.clone();
                async move { get(&locks, Options::wait_up_to(2 * LONG)).await }
            });
            wait_until("a waiter", LONG, || info(&primary, "waiters"), |seen| seen.contains('1'));
            replica.wait_in_sync(&primary);
            sentinel.failover();
            wait_until("the waiter at the new primary", LONG, || waiters(&replica), |waiters| *waiters == Some(1));
            assert!(held.is_held());
            let token = held.token();
            assert_eq!(held.release().await, Released::Ended);
            let second = waiting.await.unwrap();
            assert!(second.token() > token);
            assert_eq!(second.release().await, Released::Ended);
        });
    }

    /// Sentinels may want a login of their own. A name that they do not know is an error at once.
    fn sentinels_with_a_login(kind: ServerKind) {
        let server = Server::start(kind);
        let sentinel = Sentinel::watch(&server);
        let mut control = sentinel.connect();
        cmd!(control, "ACL", "SETUSER", "watcher", "on", ">seen", "allchannels", "+@all").ok();
        cmd!(control, "ACL", "SETUSER", "default", "off").ok();
        let url = format!("redis+sentinel://127.0.0.1:{}", sentinel.server().port());
        let login = "sentinel_user=watcher&sentinel_password=seen";
        run(async {
            let locks = client_of([format!("{url}/main/3?{login}").as_str()]).build().unwrap();
            let held = get(&locks, Options::try_once()).await;
            cmd!(server.connect(), "LOCK.INFO", "lock").nil();
            drop(held);
            for (wrong, cause) in [("/main", "uthentication"), (&format!("/other?{login}"), "knows no such name")] {
                let locks = client_of([format!("{url}{wrong}").as_str()]).build().unwrap();
                let refused = locks.acquire("lock", Options::wait_forever()).await;
                assert!(
                    matches!(&refused, Err(Error::RefusedByNodes(nodes)) if nodes[0].cause.contains(cause)),
                    "{refused:?}"
                );
            }
        });
    }
}
