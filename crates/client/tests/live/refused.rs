//! Configurations that cannot work.

use std::time::Duration;

use lockfence_client::{ConfigError, Error, Lockfence, Options};

use crate::{ms, run};

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
    let two = Lockfence::builder().sentinel("main", ["redis://a:1"]).sentinel("other", ["redis://a:1"]);
    assert!(two.build().is_ok(), "two primaries by one sentinel");
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
