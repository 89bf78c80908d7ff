//! Locks that several hold: SHARED and LIMIT.

use lockfence_client::{ConfigError, Error, Held, Lockfence, Options};
use lockfence_testkit::{Server, ServerKind, cmd, server_tests, wait_until};

use crate::{LONG, client, get, info, is_free, ms, run, three};

async fn waiting(locks: &Lockfence, servers: &[Server], options: Options) -> tokio::task::JoinHandle<Held> {
    let locks = locks.clone();
    let waiting = tokio::spawn(async move { get(&locks, options).await });
    let seen = || servers.iter().any(|server| info(server, "waiters").contains('1'));
    wait_until("a waiter", LONG, seen, |seen| *seen);
    waiting
}

server_tests! {
    /// Readers hold it together, on a quorum too; a writer waits for the last of them, and whoever reads after it waits
    /// for the writer. The writer's token is above those of the readers before it, and below those after it.
    fn readers_and_a_writer(kind: ServerKind) {
        let servers = three(kind);
        let (reader, writer) = (client(&servers), client(&servers));
        run(async {
            let shared = Options::wait_up_to(LONG).shared();
            let (one, other) = (get(&reader, shared).await, get(&reader, shared).await);
            assert!(one.is_held() && other.is_held());
            assert!(matches!(writer.try_acquire("lock").await, Err(Error::Held { .. })));
            let writing = waiting(&writer, &servers, Options::wait_up_to(LONG)).await;
            one.release().await;
            assert!(!writing.is_finished() && other.is_held());
            let before = other.token();
            other.release().await;
            let write = writing.await.unwrap();
            assert!(write.token() > before);
            let reading = waiting(&reader, &servers, shared).await;
            let written = write.token();
            write.release().await;
            let read = reading.await.unwrap();
            assert!(read.token() > written);
            read.release().await;
            assert!(reader.settled(LONG).await && writer.settled(LONG).await);
            assert!(servers.iter().all(is_free));
        });
    }

    /// A semaphore: two hold it, the third gets it when one of them is done.
    fn a_limit(kind: ServerKind) {
        let server = [Server::start(kind)];
        let locks = client(&server);
        run(async {
            let two = Options::wait_up_to(LONG).limit(2);
            let (one, other) = (get(&locks, two).await, get(&locks, two).await);
            let refused = locks.acquire("lock", Options::wait_up_to(ms(100)).limit(2)).await;
            assert!(matches!(refused, Err(Error::TimedOut { .. })), "{refused:?}");
            let third = waiting(&locks, &server, two).await;
            one.release().await;
            let third = third.await.unwrap();
            assert!(other.is_held() && third.token() > other.token());
        });
    }

    /// Each holder's own token counts where the lock is its own fence, and only while it holds the lock. Elsewhere it
    /// could only shut out the other holders: refused before anything is sent.
    fn fences_of_several_holders(kind: ServerKind) {
        let server = [Server::start(kind)];
        let locks = client(&server);
        let data = redis::Client::open(server[0].url()).unwrap();
        run(async {
            for options in [Options::try_once().shared(), Options::try_once().limit(2)] {
                let (one, other) = (get(&locks, options).await, get(&locks, options).await);
                match one.fence(&data).await {
                    Err(Error::Config(refusal @ ConfigError::FenceNotExclusive { .. })) => {
                        assert!(refusal.to_string().contains("who hold it too"), "{refusal}");
                    }
                    fenced => panic!("{fenced:?}"),
                }
                let (here, there) = (one.fence_here().unwrap(), other.fence_here().unwrap());
                here.write("data", "one").await.unwrap();
                there.write("data", "other").await.unwrap();
                here.write("data", "one again").await.unwrap();
                one.release().await;
                let late = here.write("data", "late").await;
                assert!(matches!(late, Err(Error::Fenced(_))), "{late:?}");
                there.check().await.unwrap();
                other.release().await;
                assert_eq!(cmd!(server[0].connect(), "GET", "data").text(), "one again");
            }
            let gone = cmd!(server[0].connect(), "EXISTS", "fence:lock").int();
            assert_eq!(gone, 0, "no fence was made");
        });
    }
}
