//! Configurations that cannot work.

use std::time::{Duration, Instant};

use lockfence_client::{ConfigError, Error, Lockfence, Options, Released};
use lockfence_testkit::{PortLease, Proxy, Server, ServerKind, cmd, server_tests, wait_until};

use crate::{LONG, client_of, get, is_free, ms, run, three};

server_tests! {
    /// One server by two addresses would have two votes, which no address tells. Where the user may not ask which server it
    /// is, it works as before.
    fn one_server_by_two_addresses(kind: ServerKind) {
        let servers = [Server::start(kind), Server::start(kind)];
        let proxy = Proxy::to(&servers[0]);
        let (one, other) = (servers[0].url(), proxy.url());
        let addresses = [one.as_str(), other.as_str(), &servers[1].url()];
        run(async {
            for options in [Options::try_once(), Options::wait_forever()] {
                let locks = client_of(addresses).build().unwrap();
                for _ in 0..2 {
                    let refused = locks.acquire("lock", options).await;
                    let text = format!("{}", refused.as_ref().unwrap_err());
                    assert!(matches!(refused, Err(Error::Config(ConfigError::OneServerTwice { .. }))), "{refused:?}");
                    for address in [&one, &other] {
                        assert!(text.contains(address.trim_start_matches("redis://")), "{text}");
                    }
                }
                assert!(locks.settled(LONG).await);
                // A WAIT that was called off may still have come behind what gave it back; that is repeated.
                wait_until("given back", LONG, || servers.iter().all(is_free), |free| *free);
            }
        });
        for server in &servers {
            cmd!(server.connect(), "ACL", "SETUSER", "default", "-info").ok();
        }
        run(async { drop(get(&client_of(addresses).build().unwrap(), Options::try_once()).await) });
    }

    /// It is told as soon as it is known: not only once a lock is free, or a third node is there.
    fn one_server_by_two_addresses_is_not_waited_for(kind: ServerKind) {
        let servers = [Server::start(kind), Server::start(kind)];
        let (proxy, gone) = (Proxy::to(&servers[0]), PortLease::take());
        let nowhere = format!("redis://127.0.0.1:{}", gone.port());
        let (one, other, second) = (servers[0].url(), proxy.url(), servers[1].url());
        for server in &servers {
            cmd!(server.connect(), "LOCK.ACQUIRE", "held", "somebody", 600_000).token();
        }
        run(async {
            for (third, lock) in [(&second, "held"), (&nowhere, "held"), (&nowhere, "lock")] {
                let locks = client_of([one.as_str(), &other, third]).build().unwrap();
                let refused = locks.acquire(lock, Options::wait_forever()).await;
                assert!(matches!(refused, Err(Error::Config(ConfigError::OneServerTwice { .. }))), "{refused:?}");
                assert!(locks.settled(LONG).await);
                // A WAIT that was called off may still have come behind what gave it back; that is repeated.
                wait_until("given back", LONG, || servers.iter().all(is_free), |free| *free);
            }
        });
        for server in &servers {
            assert_eq!(cmd!(server.connect(), "LOCK.INFO", "held").field("waiters").int(), 0);
        }
    }

    /// A node that led to another's server and is gone has no vote: the others are a majority.
    fn a_node_that_led_to_another_ones_server_and_is_gone(kind: ServerKind) {
        let servers = [Server::start(kind), Server::start(kind)];
        let proxy = Proxy::to(&servers[0]);
        let (one, other, second) = (servers[0].url(), proxy.url(), servers[1].url());
        run(async {
            let locks = client_of([one.as_str(), &other, &second]).build().unwrap();
            let refused = locks.try_acquire("lock").await;
            assert!(matches!(refused, Err(Error::Config(ConfigError::OneServerTwice { .. }))), "{refused:?}");
            assert!(locks.settled(LONG).await);
            proxy.refuse();
            let began = Instant::now();
            let held = loop {
                match locks.try_acquire("lock").await {
                    Ok(held) => break held,
                    // Until it is known that it cannot be reached: the vote is its own, or nobody's while it breaks.
                    Err(Error::Config(ConfigError::OneServerTwice { .. }) | Error::NoQuorum(_))
                        if began.elapsed() < LONG / 2 => {}
                    Err(error) => panic!("{error:?}"),
                }
            };
            assert_eq!(held.release().await, Released::Ended);
        });
    }

    /// Not waited for: it will not come. In either protocol.
    fn a_login_or_database_that_is_refused(kind: ServerKind) {
        let server = Server::builder(kind).password("secret").start();
        for (login, path, cause) in [
            (":secret@", "99", "out of range"),
            ("", "1", "Authentication required"),
            (":wrong@", "", "uthentication failed"),
            (":secret@", "99?protocol=resp3", "out of range"),
            ("", "?protocol=resp3", "NOAUTH"),
            (":wrong@", "?protocol=resp3", "WRONGPASS"),
        ] {
            let url = format!("redis://{login}127.0.0.1:{}/{path}", server.port());
            let locks = client_of([url.as_str()]).build().unwrap();
            run(async {
                for options in [Options::try_once(), Options::wait_forever()] {
                    let refused = locks.acquire("lock", options).await;
                    let Err(Error::RefusedByNodes(nodes)) = &refused else { panic!("{refused:?}") };
                    assert!(nodes[0].cause.contains(cause), "{refused:?}");
                }
            });
        }
    }

    /// What does not speak as a server does is not waited for either. (redis-rs reads no error that is not UTF-8, and a
    /// server without the module quotes the lock's name.)
    fn an_answer_that_is_none(kind: ServerKind) {
        let plain = Server::builder(kind).without_module().start();
        let locks = client_of([plain.url().as_str()]).build().unwrap();
        run(async {
            let refused = locks.acquire(b"\xff", Options::wait_forever()).await;
            assert!(matches!(&refused, Err(Error::RefusedByNodes(_))), "{refused:?}");
            assert!(locks.settled(LONG).await);
        });
    }

    /// What each node refuses, and will again, is said, and that trying again does not help; it is not waited for.
    fn what_the_nodes_will_not_do(kind: ServerKind) {
        let servers = three(kind);
        let plain = Server::builder(kind).without_module().start();
        for server in &servers[1..] {
            cmd!(server.connect(), "SET", "data", "value").ok();
            cmd!(server.connect(), "ACL", "SETUSER", "default", "resetkeys", "~data", "~lock").ok();
        }
        let of = |urls: [String; 3]| client_of(urls.iter().map(String::as_str)).build().unwrap();
        let locks = of([servers[0].url(), servers[1].url(), servers[2].url()]);
        let refused_by = async |locks: &Lockfence, name: &str, causes: &[&str]| {
            for options in [Options::try_once(), Options::wait_forever()] {
                let refused = locks.acquire(name, options).await;
                let Err(Error::RefusedByNodes(nodes)) = &refused else { panic!("{name}: {refused:?}") };
                let text = format!("{}", refused.as_ref().unwrap_err());
                assert!(text.starts_with("refused, and trying again does not help: "), "{text}");
                for cause in causes {
                    assert!(nodes.iter().any(|node| node.cause.contains(cause)), "{cause}: {text}");
                }
            }
        };
        run(async {
            refused_by(&locks, "data", &["WRONGTYPE"]).await;
            refused_by(&locks, "other", &["NOPERM"]).await;
            let two_ways = of([servers[0].url(), servers[1].url(), plain.url()]);
            refused_by(&two_ways, "other", &["NOPERM", "unknown command"]).await;
            // One of three: the others are enough.
            drop(get(&two_ways, Options::try_once()).await);
        });
    }
}

/// Addresses of groups that cannot be understood, without what is secret in them.
#[test]
fn addresses_that_cannot_work_are_refused() {
    for (url, cause) in [
        ("redis+sentinel://:secret@a,b:1", "/name"),
        ("redis+sentinel://:secret@a,b:1/", "/name"),
        ("redis+sentinel://:secret@a/main/0/x", "/name"),
        ("redis+sentinel://:secret@a/main/one", "database"),
        ("redis+sentinel://a/main?sentinel_pasword=secret", "unknown option"),
        ("redis+cluster://:secret@a,b:1/1", "no database but 0"),
        ("redis+cluster://", "host"),
        ("redis+quorum://:secret@a", "did not parse"),
    ] {
        match Lockfence::builder().node(url).build() {
            Err(refusal @ ConfigError::BadNode { .. }) => {
                let text = format!("{refusal} {refusal:?}");
                assert!(text.contains(cause) && !text.contains("secret"), "{url}: {text}");
            }
            other => panic!("{url}: {other:?}"),
        }
    }
    let none: [&str; 0] = [];
    assert_eq!(Lockfence::builder().cluster(none).build().unwrap_err(), ConfigError::NoNodes);
    assert_eq!(Lockfence::builder().sentinel("main", none).build().unwrap_err(), ConfigError::NoNodes);
    let unix = Lockfence::builder().cluster(["redis+unix:///server.sock"]).build();
    assert!(matches!(unix, Err(ConfigError::BadNode { .. })), "{unix:?}");
    let secret = Lockfence::builder().node("redis://:secret@a").cluster(["redis://:secret@b"]);
    assert!(!format!("{secret:?}").contains("secret"));
}

/// The same server in two guises would have two votes.
#[test]
fn one_server_in_two_guises_is_refused() {
    let twice = [
        Lockfence::builder().node("redis://a:1").cluster(["redis://b:1", "redis://A:1"]),
        Lockfence::builder().node("redis+cluster://a:1,b:1").node("redis+cluster://b:1,c:1"),
        Lockfence::builder().sentinel("main", ["redis://a:1"]).node("redis+sentinel://b,a:1/main"),
    ];
    for builder in twice {
        assert!(matches!(builder.clone().build(), Err(ConfigError::SameNodeTwice(_))), "{builder:?}");
    }
    for (one, other) in [
        ("redis://a:1", "redis://A.:1"),
        ("redis://a", "redis://a:6379"),
        ("redis://a:1/0", "redis://a:1/1"),
        ("redis://a:1", "rediss://user:password@a:1"),
        ("redis://[::1]:1", "redis://[0:0:0:0:0:0:0:1]:1"),
        ("redis://127.0.0.1:1", "redis://[::ffff:127.0.0.1]:1"),
        ("redis+unix:///run/server.sock", "redis+unix:///run//./server.sock?db=1"),
        ("redis+sentinel://a:1/main/0", "redis+sentinel://A:1/main/1"),
    ] {
        let twice = Lockfence::builder().node(one).node(other).build();
        assert!(matches!(twice, Err(ConfigError::SameNodeTwice(_))), "{one} {other}: {twice:?}");
    }
    let two = Lockfence::builder().sentinel("main", ["redis://a:1"]).sentinel("other", ["redis://a:1"]);
    assert!(two.build().is_ok(), "two primaries by one sentinel");
}

/// Each time that can be set: nothing, too little, too much. A number of the wrong size must not turn into another
/// meaning (a WAIT of 0 ms is one without limit), nor overflow the clock.
#[test]
fn times_that_cannot_work_are_refused() {
    let one = || Lockfence::builder().node("redis://127.0.0.1:1");
    let (nothing, micro, most) =
        (Duration::ZERO, Duration::from_micros(900), Duration::from_secs(365 * 24 * 3600));
    let (more, endless) = (most + ms(1), Duration::MAX);
    for time in [nothing, micro, ms(99), more, endless] {
        let refused = one().wait_slice(time).build();
        assert!(
            matches!(refused, Err(ConfigError::BadWaitSlice(bad)) if bad == time),
            "{time:?}: {refused:?}"
        );
    }
    for time in [nothing, micro, more, endless] {
        let refused = one().fence_timeout(time).build();
        assert!(
            matches!(refused, Err(ConfigError::BadFenceTimeout(bad)) if bad == time),
            "{time:?}: {refused:?}"
        );
    }
    for time in [nothing, micro, ms(9), more, endless] {
        let refused = one().ttl(time).build();
        assert!(matches!(refused, Err(ConfigError::BadTtl(bad)) if bad == time), "{time:?}: {refused:?}");
    }
    for timeout in [nothing, micro, ms(7_501), endless] {
        let refused = one().node_timeout(timeout).build();
        assert!(matches!(refused, Err(ConfigError::BadNodeTimeout { .. })), "{timeout:?}: {refused:?}");
    }
    for timeout in [nothing, micro, ms(5_001), endless] {
        let refused = one().ack_timeout(timeout).build();
        assert!(matches!(refused, Err(ConfigError::BadAckTimeout { .. })), "{timeout:?}: {refused:?}");
    }
    assert!(one().ttl(most).wait_slice(most).fence_timeout(most).build().is_ok());
    assert!(one().ttl(ms(10)).wait_slice(ms(100)).fence_timeout(ms(1)).build().is_ok());
    let locks = one().build().unwrap();
    run(async {
        for time in [nothing, micro] {
            let refused = locks.acquire("lock", Options::try_once().max_hold(time)).await;
            let is_clear = |error: &ConfigError| *error == ConfigError::BadMaxHold(time);
            assert!(
                matches!(&refused, Err(Error::Config(error)) if is_clear(error)),
                "{time:?}: {refused:?}"
            );
        }
        for time in [nothing, micro, ms(9), more, endless] {
            let refused = locks.acquire("lock", Options::try_once().ttl(time)).await;
            assert!(matches!(refused, Err(Error::Config(ConfigError::BadTtl(_)))), "{time:?}: {refused:?}");
        }
    });
}

/// J11, B6: what cannot work is refused before anything is sent.
#[test]
fn configurations_that_cannot_work_are_refused() {
    let one = || Lockfence::builder().node("redis://127.0.0.1:1");
    assert_eq!(Lockfence::builder().build().unwrap_err(), ConfigError::NoNodes);
    assert!(matches!(one().node("redis://127.0.0.1:1/").build(), Err(ConfigError::SameNodeTwice(_))));
    assert!(matches!(one().node("http://x").build(), Err(ConfigError::BadNode { .. })));
    assert!(matches!(one().ttl(Duration::ZERO).build(), Err(ConfigError::BadTtl(_))));
    assert!(matches!(one().ttl(Duration::from_micros(123_456)).build(), Err(ConfigError::BadTtl(_))));
    assert!(matches!(
        one().ttl(ms(100)).node_timeout(ms(26)).build(),
        Err(ConfigError::BadNodeTimeout { .. })
    ));
    assert!(matches!(one().fence_timeout(Duration::ZERO).build(), Err(ConfigError::BadFenceTimeout(_))));
    assert!(matches!(one().name("x".repeat(512)).build(), Err(ConfigError::BadName(512))));
    run(async {
        let locks = one().build().unwrap();
        for limit in [0, 1_000_001] {
            let refused = locks.acquire("lock", Options::try_once().limit(limit)).await;
            assert!(
                matches!(&refused, Err(Error::Config(ConfigError::BadLimit(n))) if *n == limit),
                "{refused:?}"
            );
        }
        let three = || one().node("redis://127.0.0.1:2").node("redis://127.0.0.1:3");
        for durable in [three().min_replicas(1), three().fsync()] {
            match durable.build() {
                Err(refusal @ ConfigError::DurableQuorum { nodes: 3 }) => {
                    assert!(refusal.to_string().contains("quarantine"), "{refusal}");
                }
                other => panic!("{other:?}"),
            }
        }
        for timeout in [Duration::ZERO, ms(5_001)] {
            let refused = one().ttl(ms(30_000)).ack_timeout(timeout).build();
            assert!(matches!(refused, Err(ConfigError::BadAckTimeout { .. })), "{refused:?}");
        }
        let quorum = three().build().unwrap();
        match quorum.acquire("lock", Options::try_once().limit(2)).await {
            Err(Error::Config(refusal @ ConfigError::LimitOnQuorum { nodes: 3 })) => {
                assert!(refusal.to_string().contains("different majorities"), "{refusal}");
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(locks.try_acquire("").await, Err(Error::Config(ConfigError::NoLockName))));
        let no_quorum = locks.try_acquire("lock").await;
        assert!(matches!(&no_quorum, Err(Error::NoQuorum(nodes)) if nodes.len() == 1), "{no_quorum:?}");
    });
}
