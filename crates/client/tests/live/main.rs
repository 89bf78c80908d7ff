//! The client on real servers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

mod addresses;
mod admin;
mod cancel;
mod cluster;
#[path = "../common/mod.rs"]
mod common;
mod durable;
mod examples;
mod faults;
mod modes;
mod quorum;
mod readme;
mod refused;
mod round_trips;
mod sentinel;
mod soak;
mod without_runtime;

use std::time::{Duration, Instant};

use lockfence_client::{Builder, Held, Lockfence, Options};
use lockfence_testkit::{Server, ServerKind, cmd, wait_until};

pub(crate) use common::{LONG, run};

pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(crate) fn three(kind: ServerKind) -> Vec<Server> {
    (0..3).map(|_| Server::start(kind)).collect()
}

/// Timeouts far above what a loaded machine needs.
pub(crate) fn client_of<'u>(urls: impl IntoIterator<Item = &'u str>) -> Builder {
    urls.into_iter()
        .fold(Lockfence::builder(), |builder, url| builder.node(url))
        .ttl(ms(8_000))
        .node_timeout(ms(2_000))
}

pub(crate) fn client(servers: &[Server]) -> Lockfence {
    let urls: Vec<String> = servers.iter().map(Server::url).map(|url| url.to_string()).collect();
    client_of(urls.iter().map(String::as_str)).build().unwrap()
}

pub(crate) fn info(server: &Server, field: &str) -> String {
    let reply = cmd!(server.connect(), "LOCK.INFO", "lock");
    if reply.is_nil() { "none".to_owned() } else { format!("{:?}", reply.field(field)) }
}

pub(crate) fn is_free(server: &Server) -> bool {
    let reply = cmd!(server.connect(), "LOCK.INFO", "lock");
    reply.is_nil() || reply.field("state").text() == "free"
}

/// Waits for so many prolongations.
pub(crate) async fn prolonged(held: &Held, times: u32) {
    for _ in 0..times {
        let valid_until = || Instant::now() + held.remaining();
        let before = valid_until() + ms(100);
        while valid_until() < before {
            tokio::time::sleep(ms(10)).await;
        }
    }
}

/// Waits until all nodes have granted it: two of three suffice for the holder.
pub(crate) fn wait_everywhere(servers: &[Server]) {
    wait_until("held at all nodes", LONG, || servers.iter().all(|server| !is_free(server)), |held| *held);
}

pub(crate) async fn get(locks: &Lockfence, options: Options) -> Held {
    locks.acquire("lock", options).await.unwrap()
}
