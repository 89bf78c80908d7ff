//! The lock is on some servers, the data on another: a fence there refuses the late write of a worker that lost the lock
//! without noticing.
//!
//! ```text
//! cargo run -p lockfence-client --example fenced_write -- redis://data.example redis://a.example [redis://b.example redis://c.example]
//! ```
use std::time::Duration;

use lockfence_client::{Error, Lockfence, Options};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut urls = std::env::args().skip(1);
    let data = redis::Client::open(urls.next().unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned()))?;
    let nodes: Vec<String> = urls.collect();
    let locks = |name: &str| {
        let builder = nodes.iter().fold(Lockfence::builder(), |builder, url| builder.node(url));
        builder.ttl(Duration::from_secs(1)).name(name).build()
    };

    // Alice stands still for longer than her lease: here, by not renewing it.
    let alice = locks("alice")?.acquire("acct:42", Options::try_once().without_renewal()).await?;
    let by_alice = alice.fence(&data).await?;
    by_alice.write("balance", 100).await?;
    println!("alice wrote 100");

    // Bob gets the lock once her lease is over, and his token is announced where the data is.
    let bob = locks("bob")?.acquire("acct:42", Options::wait_up_to(Duration::from_secs(30))).await?;
    let by_bob = bob.fence(&data).await?;
    by_bob.write("balance", 250).await?;
    println!("bob wrote 250; his token is higher: {}", bob.token() > alice.token());

    // Alice goes on where she stood. Her write is refused by the server of the data.
    match by_alice.write("balance", 101).await {
        Err(Error::Fenced(_)) => println!("alice is fenced; her write changed nothing"),
        other => println!("alice: {other:?}"),
    }
    // Any data command goes the same way.
    by_bob.call(redis::cmd("INCRBY").arg("balance").arg(50)).await?;
    let balance: i64 = redis::cmd("GET").arg("balance").query_async(&mut connection(&data).await?).await?;
    println!("balance {balance}");
    bob.release().await;
    Ok(())
}

async fn connection(data: &redis::Client) -> redis::RedisResult<redis::aio::MultiplexedConnection> {
    data.get_multiplexed_async_connection().await
}
