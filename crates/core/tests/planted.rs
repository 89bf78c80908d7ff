//! A test that cannot fail proves nothing: each bug of the core in [`lockfence_core::planted`] must be found by the
//! schedules that find nothing in the code as it is. One test in a program of its own: what is planted is planted in
//! the whole process.
//!
//! The crate depends on itself with the feature `planted` where tests are built (Cargo.toml, dev-dependencies), so that
//! `cargo test --workspace` runs this, and `cargo build` knows nothing of it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

mod common;

use std::collections::BTreeMap;

use common::schedule::run;
use common::step::Broken;
use lockfence_core::planted::{Bug, plant};

/// How many schedules are run to find a bug. The rarest are found by one in fifty.
const SCHEDULES: u64 = 400;

/// Each bug, and the promise that it must be seen to break (it may break others before).
const BUGS: [(Bug, Broken); 20] = [
    (Bug::TokenNotRaised, Broken::Token),
    (Bug::TokenRestartsAfterDelete, Broken::Token),
    (Bug::LeaseEndInclusive, Broken::State),
    (Bug::ExtendRevives, Broken::Answer),
    (Bug::ReleaseByAnyone, Broken::State),
    (Bug::StaleAccepted, Broken::Fence),
    (Bug::ServedOutOfOrder, Broken::Answer),
    (Bug::DeadWaiterStays, Broken::AnsweredAgain),
    (Bug::AnsweredTwice, Broken::AnsweredAgain),
    (Bug::HighNotRaised, Broken::Token),
    (Bug::FloorNotRaised, Broken::Token),
    (Bug::RelativeLease, Broken::State),
    (Bug::SharedBarges, Broken::Answer),
    (Bug::EndedCount, Broken::Answer),
    (Bug::ReleaseEndsAll, Broken::State),
    (Bug::SharedBesideAny, Broken::Answer),
    (Bug::LimitOneMore, Broken::Answer),
    (Bug::OneServed, Broken::Answer),
    (Bug::LookedAtLate, Broken::Answer),
    (Bug::BreakEndsAll, Broken::Answer),
];

#[test]
fn each_planted_bug_is_found() {
    let mut seen = BTreeMap::new();
    for (bug, promise) in BUGS {
        plant(bug);
        let breaks_it = |seed| run(seed).err().filter(|violation| violation.broken == promise);
        let found = (0..SCHEDULES).find_map(breaks_it);
        plant(Bug::None);
        let Some(violation) = found else {
            panic!("{bug:?} was not seen to break {promise:?} in {SCHEDULES} schedules")
        };
        let seed = violation.seed.unwrap_or_default();
        println!("{bug:?}: seed {seed}, {promise:?}: {}", violation.what);
        seen.insert(seed, bug);
    }
    for (seed, bug) in seen {
        if let Err(violation) = run(seed) {
            panic!("without {bug:?} there is nothing to be found: {violation:?}");
        }
    }
}
