//! Three independent servers: the lock is held by a majority, with one token that rises whichever majority it was. One
//! server may be down.
//!
//! ```text
//! cargo run -p lockfence-client --example quorum -- redis://127.0.0.1:7001 redis://127.0.0.1:7002 redis://127.0.0.1:7003
//! ```
use std::time::Duration;

use lockfence_client::{Error, Lockfence, Options};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let builder = std::env::args().skip(1).fold(Lockfence::builder(), lockfence_client::Builder::node);
    let locks = builder.ttl(Duration::from_secs(10)).name("quorum").build()?;

    let mut last = 0;
    for _ in 0..3 {
        let held = match locks.acquire("deploy", Options::wait_up_to(Duration::from_secs(30))).await {
            Ok(held) => held,
            // Says for each server why it gave no answer that counts.
            Err(Error::NoQuorum(nodes)) => {
                for node in &nodes {
                    eprintln!("{}: {}", node.node, node.cause);
                }
                return Err(Error::NoQuorum(nodes));
            }
            Err(other) => return Err(other),
        };
        println!("held, token above the last: {}", held.token() > last);
        last = held.token();
        held.release().await;
    }
    Ok(())
}
