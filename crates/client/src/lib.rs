//! Distributed locks with fencing tokens, for one lockfence server or for a quorum of independent ones.
//!
//! ```no_run
//! use std::time::Duration;
//! use lockfence_client::{Lockfence, Options};
//!
//! # async fn example() -> Result<(), lockfence_client::Error> {
//! let locks = Lockfence::builder()
//!     .node("redis://a.example")
//!     .node("redis://b.example")
//!     .node("redis://c.example")
//!     .build()?;
//! let held = locks.acquire("deploy", Options::wait_up_to(Duration::from_secs(60))).await?;
//! println!("token {}", held.token());
//! // … the work; `held.lost()` tells when it must stop …
//! held.release().await;
//! # Ok(()) }
//! ```
//!
//! # Architecture invariants
//! - [`quorum`] decides everything and does nothing: no clock, no socket, no randomness of its own. What is in it runs
//!   the same in a simulated world and in a program.
//! - Everything round it carries out effects and hands in replies; it decides nothing about a lock.
//! - There is no way to run a protected body without a grant.
//! - This crate never links the server's module API.
#![forbid(unsafe_code)]

mod address;
mod clock;
mod cluster;
mod config;
mod dial;
mod durable;
mod error;
mod fenced;
mod held;
mod identity;
mod line;
mod lockfence;
mod node;
mod owner;
mod sentinel;
mod session;
mod tls;
mod wire;

pub mod admin;
pub mod blocking;
pub mod quorum;

pub use config::{Builder, ConfigError, Options, Wait};
pub use error::{Error, Lost, NodeError};
pub use fenced::{DataServer, Fenced};
pub use held::{Held, Released};
pub use lockfence::{Lockfence, Stats};
pub use owner::Owner;

/// The README's examples compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(all(feature = "planted", not(debug_assertions)))]
compile_error!("the feature `planted` is for tests only: a release must not have it");
