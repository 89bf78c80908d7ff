//! What the client's tests on real servers share.
#![allow(dead_code, reason = "not each of them uses all of it")]

use std::time::Duration;

use tokio::runtime::Runtime;

/// Longer than anything takes that comes to an end, on a busy machine, too.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Runs a test that must end in time.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    runtime().block_on(async { tokio::time::timeout(LONG * 4, test).await.expect("in time") })
}
