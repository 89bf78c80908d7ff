//! One server: take a lock, work while it is held, release it.
//!
//! ```text
//! cargo run -p lockfence-client --example single -- redis://127.0.0.1:6379
//! ```
use std::time::Duration;

use lockfence_client::{Error, Lockfence, Options};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let locks = Lockfence::builder().node(url).ttl(Duration::from_secs(10)).name("single").build()?;

    let held = locks.acquire("report", Options::wait_up_to(Duration::from_secs(5))).await?;
    println!("held, token {}", held.token());

    // The lease is renewed meanwhile. Others are told who has it, and when to come back.
    match locks.try_acquire("report").await {
        Err(Error::Held { by: Some(by), .. }) => println!("a second try: held by {by}"),
        other => println!("a second try: {other:?}"),
    }

    println!("released: {:?}", held.release().await);

    // Or with a body, which is dropped where it stands if the lock is lost.
    let answer = locks.with_lock("report", Options::try_once(), async |held| held.token() > 0).await?;
    println!("done under the lock: {answer}");
    Ok(())
}
