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
use common::step::{Kind, Min, Name, Source, Step};

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

/// What one of 20,000 schedules of seed 77 found: a lease that was over, read by one server after another, was live again
/// at a clock that was set back.
#[test]
fn a_lease_that_is_over_stays_over_from_file_to_file() {
    let at = Name::ALL[0];
    let acquire =
        Step::Acquire { at, owner: 0, ttl_ms: 100, wait_ms: None, kind: Kind::Shared, min: Min::None };
    let restart = |from, skew_s| Step::Restart { from, down_ms: 0, skew_s, quarantine_ms: 0 };
    for from in [Source::Rdb, Source::Aof, Source::LastSave] {
        for over_us in [-1, 0, 1] {
            let ended = [acquire, Step::PauseToEnd { us: over_us }, Step::Save, Step::PauseToEnd { us: 0 }];
            let again = [restart(from, 0), Step::Promote { skew_s: 0 }, Step::Save];
            let back = [restart(from, -18), Step::CheckNear { at, ahead: 0 }];
            let steps = [ended.as_slice(), &again, &back].concat();
            run_steps(&steps).unwrap_or_else(|violation| panic!("{from:?}, {over_us} us: {violation:?}"));
        }
    }
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
