//! What the client's tests on real servers share.
#![allow(dead_code, reason = "not each of them uses all of it")]

use std::pin::Pin;
use std::time::Duration;

use tokio::runtime::Runtime;

/// Longer than anything takes that comes to an end, on a busy machine, too.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Runs a test that must end in time. In a box: the runtime's code is compiled once, not for each test.
pub(crate) fn run<'test, T>(test: impl Future<Output = T> + 'test) -> T {
    let test: Pin<Box<dyn Future<Output = T> + 'test>> = Box::pin(test);
    runtime().block_on(async { tokio::time::timeout(LONG * 4, test).await.expect("in time") })
}
