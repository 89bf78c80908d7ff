//! Makes schedules up: few names, owners and times, so that steps meet, and meet at the boundaries.

use std::ops::RangeInclusive;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, prop_oneof};
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, RngSeed, TestRunner};

use super::run::{Stats, run_steps};
use super::step::{Kind, Min, Name, Source, Step, Violation};

const HOUR_S: i32 = 3600;

/// Runs the schedule of that number.
pub(crate) fn run(seed: u64) -> Result<Stats, Violation> {
    let mut runner = TestRunner::new(config(1, seed));
    let tree = steps(40..=160).new_tree(&mut runner).expect("a schedule can always be made");
    run_steps(&tree.current()).map_err(|violation| Violation { seed: Some(seed), ..violation })
}

/// The same cases each time: a build must not fail by chance, nor pass by it.
pub(crate) fn config(cases: u32, seed: u64) -> Config {
    Config {
        cases,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..Config::default()
    }
}

pub(crate) fn steps(count: RangeInclusive<usize>) -> impl Strategy<Value = Vec<Step>> {
    vec(step(), count)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        70 => command(),
        20 => time(),
        4 => key(),
        3 => disaster(),
    ]
}

fn command() -> impl Strategy<Value = Step> {
    prop_oneof![
        14 => (name(), owner(), some_ms(), wait_ms(), kind(), min()).prop_map(
            |(at, owner, ttl_ms, wait_ms, kind, min)| Step::Acquire { at, owner, ttl_ms, wait_ms, kind, min }
        ),
        4 => (name(), owner()).prop_map(|(at, owner)| Step::Release { at, owner }),
        4 => (name(), owner(), some_ms(), min())
            .prop_map(|(at, owner, ttl_ms, min)| Step::Extend { at, owner, ttl_ms, min }),
        1 => name().prop_map(Step::Break),
        2 => (name(), 0..4_u8, -1..=1_i8).prop_map(|(at, nth, ahead)| Step::BreakUpTo { at, nth, ahead }),
        2 => (name(), -1..=1_i8).prop_map(|(at, ahead)| Step::CheckNear { at, ahead }),
        3 => (name(), 0..6_u8).prop_map(|(at, nth)| Step::CheckOld { at, nth }),
        1 => (0..6_u8).prop_map(Step::Disconnect),
    ]
}

fn wait_ms() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![3 => Just(None), 2 => Just(Some(0)), 6 => some_ms().prop_map(Some)]
}

fn time() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => some_ms().prop_map(|ms| Step::Sleep { ms }),
        2 => Just(Step::Sleep { ms: 3_000 }),
        5 => (0..200_000_u64).prop_map(|us| Step::Pause { us }),
        10 => (-1..=1_i8).prop_map(|us| Step::PauseToEnd { us }),
        2 => set_by_s().prop_map(|by_s| Step::SetClock { by_s }),
    ]
}

fn set_by_s() -> impl Strategy<Value = i32> {
    prop_oneof![Just(-HOUR_S), Just(HOUR_S), -20..20_i32]
}

fn key() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => name().prop_map(Step::Del),
        1 => Just(Step::FlushAll),
        2 => prop_oneof![Just(Name::ALL[0]), Just(Name::ALL[1])].prop_map(Step::Rename),
        1 => Just(Step::SwapDb),
        2 => (name(), owner(), some_ms(), 0..=10_000_u32)
            .prop_map(|(at, owner, ttl_ms, ahead_ms)| Step::Arrive { at, owner, ttl_ms, ahead_ms }),
    ]
}

fn disaster() -> impl Strategy<Value = Step> {
    let source = prop_oneof![
        3 => Just(Source::Rdb),
        2 => Just(Source::Aof),
        1 => Just(Source::LastSave),
        2 => Just(Source::Nothing),
    ];
    let quarantine_ms = prop_oneof![2 => Just(0_u64), 1 => Just(300)];
    prop_oneof![
        2 => Just(Step::Cut),
        2 => Just(Step::Heal),
        2 => skew_s().prop_map(|skew_s| Step::Promote { skew_s }),
        1 => Just(Step::Save),
        3 => (source, 0..200_u64, skew_s(), quarantine_ms).prop_map(
            |(from, down_ms, skew_s, quarantine_ms)| Step::Restart { from, down_ms, skew_s, quarantine_ms }
        ),
    ]
}

fn name() -> impl Strategy<Value = Name> {
    prop_oneof![12 => Just(Name::ALL[0]), 2 => Just(Name::ALL[1]), 1 => Just(Name::ALL[2])]
}

fn owner() -> impl Strategy<Value = u8> {
    0..4_u8
}

/// Leases, waits and sleeps are of the same few lengths, so that they end together.
fn some_ms() -> impl Strategy<Value = u64> {
    prop_oneof![2 => Just(1_u64), 3 => Just(50), 3 => Just(100), 3 => Just(200), 1 => Just(1_000)]
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        5 => Just(Kind::Exclusive),
        4 => Just(Kind::Shared),
        2 => Just(Kind::Limit(2)),
        2 => Just(Kind::Limit(3)),
    ]
}

fn min() -> impl Strategy<Value = Min> {
    prop_oneof![
        8 => Just(Min::None),
        2 => (-2..=2_i8).prop_map(Min::Counter),
        1 => Just(Min::Ahead(10_000)),
        1 => Just(Min::Ahead(10_001)),
        1 => (0..10_000_u32).prop_map(Min::Ahead),
    ]
}

fn skew_s() -> impl Strategy<Value = i32> {
    prop_oneof![3 => Just(0), 2 => -20..20_i32, 1 => Just(-HOUR_S), 1 => Just(HOUR_S)]
}
