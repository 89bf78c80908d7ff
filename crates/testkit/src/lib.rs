//! Real servers for lockfence's tests: start, watch, fault, stop.
//!
//! Each test has a server, a port and a folder of its own, waits only with a bound, and leaves nothing
//! behind: a [`Server`] ends with its guard, and also when the test program is killed. What goes wrong is a
//! panic that shows what was seen and the end of the server's log.
//!
//! ```no_run
//! use lockfence_testkit::{Server, ServerKind, cmd, server_tests};
//!
//! server_tests! {
//!     /// Runs once on each server that is present: `grants::redis_7_0`, `grants::valkey_9_1` …
//!     fn grants(kind: ServerKind) {
//!         let server = Server::start(kind);
//!         let mut conn = server.connect();
//!         let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", 5000).token();
//!         assert!(token > 0);
//!     }
//! }
//! ```
//!
//! It knows nothing of the module's rules: an oracle that shared its code with the subject would share its
//! mistakes.
#![allow(
    clippy::panic,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test harness: to end the test with a message that says what was seen is its job"
)]

mod args;
mod binaries;
mod cluster;
mod conn;
mod limits;
mod matrix;
mod module;
mod ports;
mod process;
mod proxy;
mod replica;
mod reply;
mod resp;
mod sentinel;
mod server;
mod setup;
mod stream;
mod wait;
mod watch;

pub use args::ToArg;
pub use binaries::{ServerKind, Version, redis_cli};
pub use cluster::{Cluster, ClusterBuilder, key_slot};
pub use conn::{Conn, Received};
pub use limits::raise_open_files;
pub use matrix::run;
pub use module::{module, module_with_panics};
pub use ports::PortLease;
pub use proxy::{Direction, Proxy, ProxyStats};
pub use reply::Reply;
pub use resp::{Malformed, parse};
pub use sentinel::{Sentinel, SentinelBuilder};
pub use server::{Server, StartFailure};
pub use setup::ServerBuilder;
pub use stream::ReplicationStream;
pub use wait::{wait_for, wait_until};
