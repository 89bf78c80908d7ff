//! One leader among any number of programs: whoever holds the lock leads, until it steps down or loses it.
//!
//! ```text
//! cargo run -p lockfence-client --example leader_election -- NAME TERMS redis://127.0.0.1:6379 […]
//! ```
//! Start it several times; end one with Ctrl-C or kill -9 and see another take over.
use std::time::Duration;

use lockfence_client::{Builder, Error, Held, Lockfence, Options};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or_else(|| "somebody".to_owned());
    let terms: u32 = args.next().and_then(|terms| terms.parse().ok()).unwrap_or(u32::MAX);
    let builder = args.fold(Lockfence::builder(), Builder::node).name(&name).ttl(Duration::from_secs(5));
    let locks = builder.build()?;

    for _ in 0..terms {
        // Waits in the queue of the server: no polling, and whoever came first leads next.
        let held = locks.acquire("leader", Options::wait_forever()).await?;
        println!("{name} leads, term {}", held.token());
        tokio::select! {
            // First: a leader that is none any more must do nothing more.
            biased;
            lost = held.lost() => println!("{name} leads no more: {lost}"),
            () = lead(&held) => {
                println!("{name} steps down");
                held.release().await;
            }
        }
    }
    Ok(())
}

/// What a leader does. The token is the number of its term: what it writes or sends elsewhere should carry it.
async fn lead(held: &Held) {
    for _ in 0..3 {
        if !held.is_held() {
            return std::future::pending().await; // `lost` is about to say why
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
