//! The quorum protocol in a simulated world, by seed: lost, late, doubled and reordered messages, partitions, crashes
//! with and without memory, clocks that drift and jump, programs that pause, die and change their mind.
//!
//! Checked in every world:
//! - tokens of confirmed grants are unique, and rise in real time;
//! - at most one client takes the lock as held at any time, and nobody keeps it past a LOCK.BREAK by a later renewal;
//! - whoever waits gets the lock while a majority is up, and every wait ends by its deadline;
//! - when all is over nothing is left held after one ttl, and nobody queued.
//!
//! `LOCKFENCE_SIM_SEEDS=n` runs more worlds, `LOCKFENCE_SIM_SEED=n` one, with its story on stderr.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

mod client;
mod node;
mod rng;
mod world;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use lockfence_client::quorum::SendId;
use lockfence_client::quorum::planted::Bug;

use node::NodeBug;
use world::{Report, Stats, World};

/// The lease, in the world's time.
pub(crate) const TTL_US: u64 = 600_000;

/// Worlds that a plain `cargo test` runs.
const SEEDS: u64 = 10_000;

/// Worlds in which a planted bug must show, at the latest. The rarest, a grant counted from before a WAIT, needs about
/// 5,000; the run ends where one is found.
const SEEDS_FOR_BUGS: u64 = 30_000;

/// A request: whose, of which of its machines, which one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Msg {
    pub(crate) client: usize,
    pub(crate) key: u32,
    pub(crate) id: SendId,
}

/// What is broken on purpose.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Broken {
    pub(crate) protocol: Option<Bug>,
    pub(crate) node: Option<NodeBug>,
    pub(crate) wall_clock: bool,
    /// The only rule that counts: how its report begins.
    pub(crate) rule: &'static str,
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

/// Runs worlds on all processors until `stop` says so. Returns the sum, and the first failure by seed.
fn run_worlds(seeds: u64, broken: Broken, stop_at_first: bool) -> (Stats, Option<Report>) {
    let next = AtomicU64::new(0);
    let found: Mutex<(Stats, Option<Report>)> = Mutex::default();
    let threads = std::thread::available_parallelism().map_or(2, usize::from).min(4);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut stats = Stats::default();
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        break;
                    }
                    let mut world = World::new(seed, broken, false);
                    world.run();
                    stats.add(&world.stats);
                    if let Some(report) = world.report {
                        let mut found = found.lock().unwrap();
                        if found.1.as_ref().is_none_or(|first| seed < first.seed) {
                            found.1 = Some(report);
                        }
                        if stop_at_first {
                            next.store(seeds, Ordering::Relaxed);
                        }
                    }
                }
                found.lock().unwrap().0.add(&stats);
            });
        }
    });
    found.into_inner().unwrap()
}

#[test]
fn holds_in_every_world() {
    if let Some(seed) = number("LOCKFENCE_SIM_SEED") {
        let mut world = World::new(seed, Broken::default(), true);
        world.run();
        eprintln!("{:?}", world.stats);
        assert!(world.report.is_none(), "{:?}", world.report);
        return;
    }
    let seeds = number("LOCKFENCE_SIM_SEEDS").unwrap_or(SEEDS);
    let began = Instant::now();
    let (stats, report) = run_worlds(seeds, Broken::default(), true);
    println!("{stats:#?}\n{:.1} s", began.elapsed().as_secs_f64());
    assert!(report.is_none(), "{report:?}\nits story: LOCKFENCE_SIM_SEED={}", report.as_ref().unwrap().seed);
    assert_eq!(stats.worlds, seeds);
    assert!(stats.fewest_contenders >= 3 && stats.fewest_grants >= 5, "{stats:?}");
    assert!(stats.fewest_faults >= 1 && stats.fewest_unknown >= 1, "{stats:?}");
}

/// Plants a bug and expects the rule named to find it, with all others out of the way.
fn must_be_found(broken: Broken, rule: &'static str) {
    let broken = Broken { rule, ..broken };
    let (stats, report) = run_worlds(SEEDS_FOR_BUGS, broken, true);
    let Report { seed, at, what } =
        report.unwrap_or_else(|| panic!("{broken:?} was not found in {} worlds", stats.worlds));
    println!("{broken:?} found in world {seed} at {at}: {what}");
}

fn protocol(bug: Bug) -> Broken {
    Broken { protocol: Some(bug), ..Broken::default() }
}

fn node(bug: NodeBug) -> Broken {
    Broken { node: Some(bug), ..Broken::default() }
}

#[test]
fn finds_no_confirm() {
    must_be_found(protocol(Bug::NoConfirm), "token");
}

#[test]
fn finds_a_topped_up_node_counted_toward_a_confirm() {
    must_be_found(protocol(Bug::TopUpConfirms), "token");
}

#[test]
fn finds_one_owner_for_two_tries() {
    must_be_found(protocol(Bug::OwnerReused), "two holders");
}

#[test]
fn finds_validity_from_before_a_wait() {
    must_be_found(protocol(Bug::WaitGrantCounted), "two holders");
}

#[test]
fn finds_validity_from_after_the_replies() {
    must_be_found(protocol(Bug::ValidFromReplies), "two holders");
}

#[test]
fn finds_a_topped_up_node_as_proof_of_an_unbroken_hold() {
    must_be_found(protocol(Bug::TopUpProves), "broken");
}

#[test]
fn finds_an_extend_that_reacquires_in_a_confirm() {
    must_be_found(node(NodeBug::ExtendReacquiresInConfirm), "token");
}

#[test]
fn finds_an_extend_that_reacquires_in_a_renewal() {
    must_be_found(node(NodeBug::ExtendReacquiresInRenewal), "broken");
}

#[test]
fn finds_a_node_that_forgets_and_grants_at_once() {
    must_be_found(node(NodeBug::ForgetsAndGrants), "two holders");
}

#[test]
fn finds_the_wall_clock_used_for_validity() {
    must_be_found(Broken { wall_clock: true, ..Broken::default() }, "two holders");
}

#[test]
fn finds_a_waiter_that_does_not_notice_that_its_queue_node_is_cut_off() {
    must_be_found(protocol(Bug::NotProbed), "no progress");
}

#[test]
fn finds_an_abandoned_wait_that_stays_in_the_queue() {
    must_be_found(protocol(Bug::NotAbandoned), "left behind");
}

#[test]
fn finds_a_wait_without_an_end() {
    must_be_found(protocol(Bug::DeadlineIgnored), "deadline");
}

/// Eight contenders for one lock, nothing wrong: each gets it, and about as often as any other. Racing clients of a
/// peer, measured with 3 nodes and 8 contenders: one made 22 acquisitions while another made 890, longest wait 5.7 s.
#[test]
fn nobody_starves() {
    let mut sum = Stats::default();
    for seed in 0..200 {
        let mut world = World::crowded(seed);
        world.run();
        assert!(world.report.is_none(), "{:?}", world.report);
        let each = world.won_by_each();
        let (fewest, most) = (each.iter().min().unwrap(), each.iter().max().unwrap());
        assert!(*fewest * 4 >= *most, "world {seed}: {each:?}");
        sum.add(&world.stats);
    }
    println!("{} grants, longest wait {} ms", sum.grants, sum.longest_wait_us / 1000);
    assert!(sum.longest_wait_us < 1_000_000, "{sum:?}");
}
