//! The rules of lockfence, without a server: who holds a lock, who is next, which token a grant gets,
//! which token may still write, and how all of that is encoded.
//!
//! # Architecture invariants
//! - Time and chance are arguments. This crate is `no_std`: it cannot read a clock, a file or a socket.
//! - Decide, then apply. A decision is an [`event::Event`]; [`lock::Lock::apply`] is the only code that changes a
//!   lock, and it cannot fail. Replicas, the AOF and the tests run `apply` alone.
//! - Everything that a client or a file sends is parsed into a type here, once, and every bound is in [`limits`].
//! - It must never know of the module API: the module (the root package) is a thin rim round this crate.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod clock;
pub mod codec;
mod crowd;
pub mod error;
pub mod event;
pub mod fence;
mod holders;
pub mod ids;
pub mod limits;
pub mod lock;
pub mod owner;
pub mod planted;
pub mod queue;
pub mod request;
pub mod room;
pub mod text;
pub mod token;
pub mod turn;
pub mod wheel;
