//! Answers that do not come, and connections that are kept.

use std::time::Instant;

use lockfence_client::{Error, Options, Released};
use lockfence_testkit::{Direction, Proxy, Server, ServerKind, cmd, server_tests, wait_until};

use crate::{LONG, client_of, get, info, is_free, ms, run};

/// The server closes all connections of others; returns once these have noticed.
fn close_all(server: &Server) {
    let mut conn = server.connect();
    let ours = format!("id={} ", cmd!(conn, "CLIENT", "ID").int());
    let list = cmd!(conn, "CLIENT", "LIST").text();
    let port = |line: &str| line.split_once(" addr=127.0.0.1:")?.1.split(' ').next()?.parse().ok();
    let ports: Vec<u16> = list.lines().filter(|line| !line.starts_with(&ours)).filter_map(port).collect();
    assert!(!ports.is_empty(), "{list}");
    cmd!(conn, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").int();
    wait_until("their ends to be closed, too", LONG, || still_open(&ports), Vec::is_empty);
}

/// Which of these local ports belong to a connection that this side has not closed.
fn still_open(ports: &[u16]) -> Vec<u16> {
    const ESTABLISHED_OR_CLOSE_WAIT: [&str; 2] = ["01", "08"];
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let open = table.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let port = u16::from_str_radix(words.get(1)?.rsplit_once(':')?.1, 16).ok()?;
        (ports.contains(&port) && ESTABLISHED_OR_CLOSE_WAIT.contains(words.get(3)?)).then_some(port)
    });
    open.collect()
}

server_tests! {
    /// One server, and no answer: the outcome is unknown, and said so. What was granted is given back.
    fn an_outcome_that_is_unknown(kind: ServerKind) {
        let server = Server::start(kind);
        let proxy = Proxy::to(&server);
        let url = proxy.url();
        let locks = client_of([url.as_str()]).ttl(ms(60_000)).build().unwrap();
        run(async {
            get(&locks, Options::try_once()).await.release().await;
            proxy.hold(Direction::ToClient);
            let result = locks.try_acquire("lock").await;
            assert!(matches!(&result, Err(Error::Indeterminate(_))), "{result:?}");
            // It may have been given back by now.
            assert!(info(&server, "grants").contains('2'), "it was granted");
            proxy.cut();
            proxy.pass();
            wait_until("given back", LONG, || is_free(&server), |free| *free);
            // Refused at the door: nothing was sent, nothing is unknown.
            proxy.refuse();
            proxy.cut();
            let mut result = locks.try_acquire("lock").await;
            if matches!(result, Err(Error::Indeterminate(_))) {
                result = locks.try_acquire("lock").await; // the first one found that the connection was cut
            }
            assert!(matches!(&result, Err(Error::NoQuorum(_))), "{result:?}");
        });
    }

    /// A wait leaves its connection to the next one. One that is called off closes it.
    fn waits_share_connections(kind: ServerKind) {
        let server = Server::start(kind);
        let proxy = Proxy::to(&server);
        let url = proxy.url();
        let locks = client_of([url.as_str()]).build().unwrap();
        let wait = || {
            let locks = locks.clone();
            let waiting = tokio::spawn(async move { get(&locks, Options::wait_up_to(2 * LONG)).await });
            wait_until("a waiter", LONG, || info(&server, "waiters"), |seen| seen.contains('1'));
            waiting
        };
        run(async {
            let mut held = get(&locks, Options::try_once()).await;
            for _ in 0..4 {
                let waiting = wait();
                assert_eq!(held.release().await, Released::Ended);
                held = waiting.await.unwrap();
            }
            assert_eq!(proxy.stats().connections, 2, "one for all, and one to wait on");
            wait().abort();
            wait_until("no waiter", LONG, || info(&server, "waiters"), |seen| seen.contains('0'));
            let waiting = wait();
            assert_eq!(held.release().await, Released::Ended);
            held = waiting.await.unwrap();
            assert_eq!(proxy.stats().connections, 3);
            // The server has closed it meanwhile: noticed before anything is asked on it.
            cmd!(server.connect(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").int();
            let waiting = wait();
            assert_eq!(held.release().await, Released::Ended);
            drop(waiting.await.unwrap());
            assert!(locks.settled(LONG).await && is_free(&server));
        });
    }

    /// A server closes connections that say nothing for long, and all of them when it is restarted. That is noticed before
    /// the next request goes out on one, and costs nothing but a new connection: nobody is told that an outcome is unknown.
    fn a_connection_that_was_closed_meanwhile(kind: ServerKind) {
        let server = Server::start(kind);
        let url = server.url();
        let locks = client_of([url.as_str()]).build().unwrap();
        let data = redis::Client::open(url.as_str()).unwrap();
        run(async {
            let held = get(&locks, Options::try_once()).await;
            let fenced = held.fence(&data).await.unwrap();
            for round in 0..3 {
                close_all(&server);
                fenced.write("key", round).await.unwrap();
            }
            close_all(&server);
            assert_eq!(held.release().await, Released::Ended);
            for round in 0..3 {
                close_all(&server);
                let held = get(&locks, Options::try_once()).await;
                assert_eq!(held.release().await, Released::Ended, "{round}");
            }
        });
    }

    /// A fenced command ends in time although the server says nothing, and the next one connects anew.
    fn fenced_commands_have_a_time_limit(kind: ServerKind) {
        let (server, data) = (Server::start(kind), Server::start(kind));
        let url = server.url();
        let locks = client_of([url.as_str()]).fence_timeout(ms(300)).build().unwrap();
        let proxy = Proxy::to(&data);
        let to_data = redis::Client::open(proxy.url()).unwrap();
        run(async {
            let held = get(&locks, Options::try_once()).await;
            proxy.black_hole();
            let began = Instant::now();
            let refused = held.fence(&to_data).await;
            assert!(matches!(&refused, Err(Error::Refused(why)) if why.contains("no connection")), "{refused:?}");
            proxy.pass();
            let fenced = loop {
                match held.fence(&to_data).await {
                    Ok(fenced) => break fenced,
                    Err(error) => assert!(began.elapsed() < LONG, "{error:?}"), // a busy machine
                }
            };
            data.pause();
            let unknown = fenced.write("key", "value").await;
            data.resume();
            assert!(matches!(unknown, Err(Error::Indeterminate(_))), "{unknown:?}");
            while let Err(error) = fenced.write("key", "again").await {
                assert!(began.elapsed() < LONG, "{error:?}");
            }
            assert_eq!(cmd!(data.connect(), "GET", "key").text(), "again");
        });
    }
}
