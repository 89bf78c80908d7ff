//! One small world in which the core runs as the module runs it, and a model that says what it should have done.
//!
//! [`server`] strings the core together, [`world`] adds a replica, clocks and disasters, [`model`] is the oracle: it
//! must never use the core's locks, queues, turns or tokens. [`run`] drives both by a list of [`step`]s, which
//! [`schedule`] makes up.
#![allow(dead_code, reason = "each test program uses a part")]

pub(crate) mod model;
pub(crate) mod run;
pub(crate) mod schedule;
pub(crate) mod server;
pub(crate) mod step;
pub(crate) mod world;
