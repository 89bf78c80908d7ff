//! A pool of workers of which at most so many work at once, on any number of machines: a lock with a number of holders.
//! On one server; a quorum cannot count them.
//!
//! ```text
//! cargo run -p lockfence-client --example worker_pool -- redis://127.0.0.1:6379
//! ```
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockfence_client::{Error, Lockfence, Options};

const WORKERS: usize = 8;
const AT_ONCE: u32 = 3;

static WORKING: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let locks = Lockfence::builder().node(url).ttl(Duration::from_secs(10)).build()?;

    let workers: Vec<_> = (0..WORKERS).map(|number| tokio::spawn(worker(locks.clone(), number))).collect();
    for worker in workers {
        if let Ok(result) = worker.await {
            result?;
        }
    }
    println!("{WORKERS} jobs done, at most {} at once", MOST.load(Ordering::Relaxed));
    Ok(())
}

/// Waits for one of the places, works, and gives the place to whoever has waited longest.
async fn worker(locks: Lockfence, number: usize) -> Result<(), Error> {
    let options = Options::wait_forever().limit(AT_ONCE);
    locks.with_lock("pool", options, async |held| job(number, held.token()).await).await
}

/// Each holder has a token of its own: a name for this piece of work that is never used again.
async fn job(number: usize, token: u64) {
    WORKING.fetch_add(1, Ordering::Relaxed);
    MOST.fetch_max(WORKING.load(Ordering::Relaxed), Ordering::Relaxed);
    println!("worker {number} works under token {token}");
    tokio::time::sleep(Duration::from_millis(200)).await;
    WORKING.fetch_sub(1, Ordering::Relaxed);
}
