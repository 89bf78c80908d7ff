//! The client without a runtime.

use std::time::Instant;

use lockfence_client::{ConfigError, Error, Lost, Options, Released, blocking};
use lockfence_testkit::{Server, ServerKind, cmd, server_tests, wait_until};

use crate::{LONG, client_of, info, is_free, ms};

fn client(server: &Server) -> blocking::Lockfence {
    blocking::Lockfence::new(client_of([server.url().as_str()])).unwrap()
}

server_tests! {
    /// All that the client with a runtime does.
    fn blocking_face(kind: ServerKind) {
        let (server, data) = (Server::start(kind), Server::start(kind));
        let locks = client(&server);
        let held = locks.acquire("lock", Options::wait_up_to(LONG)).unwrap();
        assert!(held.is_held() && held.remaining() > ms(1) && held.loss().is_none());
        assert_eq!(held.wait_lost(ms(1)), None);
        assert_eq!(held.name(), b"lock");
        assert!(matches!(locks.try_acquire("lock"), Err(Error::Held { .. })));
        let token = held.token();
        let to_data = redis::Client::open(data.url()).unwrap();
        let (there, here) = (held.fence(&to_data).unwrap(), held.fence_here().unwrap());
        there.write("data", "there").unwrap();
        here.write("data", "here").unwrap();
        there.check().unwrap();
        assert_eq!(cmd!(data.connect(), "GET", "data").text(), "there");
        assert_eq!(held.release(), Released::Ended);

        let held = locks.try_acquire("lock").unwrap();
        assert!(held.token() > token);
        let second = std::thread::spawn({
            let locks = locks.clone();
            move || locks.acquire("lock", Options::wait_forever()).unwrap()
        });
        wait_until("a waiter", LONG, || info(&server, "waiters"), |seen| seen.contains('1'));
        let newer = held.token();
        drop(held);
        let second = second.join().unwrap();
        assert!(second.token() > newer);
        let newest = second.fence_at(&to_data, "fence:lock").unwrap();
        assert!(matches!(there.check(), Err(Error::Fenced(_))));
        assert!(matches!(here.write("data", "late"), Err(Error::Fenced(_))));
        assert_eq!(newest.call(redis::cmd("GET").arg("data")).unwrap(), redis::Value::BulkString(b"there".to_vec()));
        assert_eq!(cmd!(server.connect(), "LOCK.BREAK", "lock").int(), 1);
        assert_eq!(second.lost(), Lost::Broken);
        assert_eq!(second.loss(), Some(Lost::Broken));
        assert_eq!(second.release(), Released::NotHeld);
        assert!(locks.settled(LONG));
        assert_eq!((locks.stats().granted, locks.stats().refused, locks.stats().lost), (3, 1, 1));
        assert!(is_free(&server));
    }

    /// The body runs with the lock only; if it was lost meanwhile, that is the answer. What is dropped last leaves nothing
    /// behind.
    fn with_lock_and_drop(kind: ServerKind) {
        let server = Server::start(kind);
        let locks = client(&server);
        let token = locks.with_lock("lock", Options::try_once(), |held| held.token()).unwrap();
        assert!(is_free(&server));
        let held = locks.try_acquire("lock").unwrap();
        assert!(held.token() > token);
        let refused = locks.with_lock("lock", Options::try_once(), |_| panic!("not held"));
        assert!(matches!(refused, Err::<(), _>(Error::Held { .. })), "{refused:?}");
        assert_eq!(held.release(), Released::Ended);
        let limited = Options::try_once().ttl(ms(1_000)).without_renewal();
        let lost = locks.with_lock("lock", limited, |held| {
            let began = Instant::now();
            while held.is_held() {
                assert!(began.elapsed() < LONG);
                std::thread::yield_now();
            }
        });
        assert!(matches!(lost, Err(Error::Lost(Lost::Expired))), "{lost:?}");
        let held = locks.try_acquire("lock").unwrap();
        drop(locks);
        assert!(held.is_held());
        drop(held);
        assert!(is_free(&server), "released before the last handle was gone");
    }
}

#[test]
fn what_cannot_work_is_refused() {
    let refused = blocking::Lockfence::new(client_of([]));
    assert!(matches!(refused, Err(Error::Config(ConfigError::NoNodes))));
}
