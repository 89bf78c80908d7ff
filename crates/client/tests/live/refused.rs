//! Configurations that cannot work.

use std::time::Duration;

use lockfence_client::{ConfigError, Error, Lockfence, Options};

use crate::{ms, run};

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
        let quorum = one().node("redis://127.0.0.1:2").node("redis://127.0.0.1:3").build().unwrap();
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
