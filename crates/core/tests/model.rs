//! The core against its model, over made-up schedules. A failure prints the steps, made as few as they can be.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

mod common;

use std::cell::RefCell;

use proptest::test_runner::{TestCaseError, TestError, TestRunner};

use common::run::{Stats, run_steps};
use common::schedule::{config, steps};

const CASES: u32 = 300;
const SEED: u64 = 4_292;

/// `LOCKFENCE_CASES` and `LOCKFENCE_SEED` ask for more, or others, than a build has time for.
fn asked_for(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn the_core_does_what_its_model_says() {
    let all = RefCell::new(Stats::default());
    let cases = asked_for("LOCKFENCE_CASES").and_then(|cases| cases.try_into().ok()).unwrap_or(CASES);
    let seed = asked_for("LOCKFENCE_SEED").unwrap_or(SEED);
    let mut runner = TestRunner::new(config(cases, seed));
    let outcome = runner.run(&steps(1..=160), |steps| match run_steps(&steps) {
        Ok(stats) => {
            all.borrow_mut().add(&stats);
            Ok(())
        }
        Err(violation) => Err(TestCaseError::fail(format!("{violation:?}"))),
    });
    match outcome {
        Ok(()) => {}
        // Run once more: the steps are fewer now than when the error was made.
        Err(TestError::Fail(error, steps)) => match run_steps(&steps) {
            Err(violation) => panic!("seed {seed}: {violation:?}"),
            Ok(_) => panic!("seed {seed}: {error}, but not again by {steps:?}"),
        },
        Err(error) => panic!("seed {seed}: {error}"),
    }
    let all = all.into_inner();
    println!("{all:#?}");
    assert_not_vacuous(&all);
}

/// Schedules that never get anywhere would find nothing.
fn assert_not_vacuous(all: &Stats) {
    let least = [
        ("grants", all.grants, 2_000),
        ("hand-overs", all.hand_overs, 400),
        ("renewals", all.renewals, 200),
        ("not granted", all.not_granted, 300),
        ("refusals", all.refusals, 500),
        ("refusals in quarantine", all.quarantined, 10),
        ("full queues", all.queue_full, 10),
        ("time-outs", all.time_outs, 200),
        ("locks lost", all.locks_lost, 200),
        ("disconnects", all.disconnects, 100),
        ("tokens refused", all.fenced, 500),
        ("tokens accepted", all.passed, 500),
        ("restarts", all.restarts, 100),
        ("losses", all.losses, 30),
        ("promotions", all.promotions, 50),
        ("idle locks dropped", all.dropped, 100),
        ("steps with several holders", all.together, 1_000),
    ];
    for (what, count, least) in least {
        assert!(count >= least, "only {count} {what}, at least {least} were to be seen: {all:#?}");
    }
}
