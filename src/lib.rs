//! lockfence: distributed locks with fencing tokens, enforced by the server. A module for Redis and Valkey.
//!
//! This package is a thin rim: it turns what the server says into calls of `lockfence-core`, and what the core decides
//! into the server's keys, replies, effects and timers. docs/ARCHITECTURE.md has the map.
#![deny(unsafe_code)]

mod arrivals;
mod audience;
#[allow(unsafe_code, reason = "the boundary with C")]
mod boundary;
mod clock;
mod commands;
#[allow(unsafe_code, reason = "callbacks with C signatures")]
mod config;
#[allow(unsafe_code, reason = "callbacks with C signatures")]
mod events;
mod expiry;
#[allow(unsafe_code, reason = "callbacks with C signatures")]
mod info;
#[allow(unsafe_code, reason = "the data types' callbacks")]
mod key_type;
mod known;
#[allow(unsafe_code, reason = "the server's load entry")]
mod load;
mod log;
mod neighbours;
#[allow(unsafe_code, reason = "the data types' callbacks")]
mod persistence;
#[allow(unsafe_code, reason = "registers C entries")]
mod registration;
mod reply;
#[allow(unsafe_code, reason = "the module API")]
mod server;
mod state;
mod turn;
mod waiters;

// A build with planted bugs is for tests; it must never be released.
#[cfg(not(feature = "test-panic"))]
const _: () = assert!(!lockfence_core::planted::POSSIBLE, "built with planted bugs");

#[global_allocator]
static ALLOCATOR: redis_module::alloc::RedisAlloc = redis_module::alloc::RedisAlloc;
