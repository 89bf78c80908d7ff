//! The program `lockfence` on real servers, as a shell or a person runs it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

mod common;
mod loss;
mod run;
mod secrets;
mod show;
mod signals;
mod terminal;
mod texts;
