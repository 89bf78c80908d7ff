//! The quorum protocol in a simulated world, by seed: lost, late, doubled and reordered messages, partitions, crashes
//! with and without memory, nodes that stand still, locks that are broken and deleted, clocks that drift and jump,
//! programs that pause, die and change their mind. The nodes run the module's own core; in some worlds the lock is asked
//! for shared as well as exclusive.
//!
//! Checked in every world:
//! - tokens of confirmed grants that shut each other out are unique, and rise in real time;
//! - at most one client, or several readers, take the lock as held at any time, and nobody keeps it past a LOCK.BREAK by
//!   a later renewal;
//! - whoever waits gets the lock while a majority is up, and every wait ends by its deadline;
//! - when all is over nothing is left held after one ttl, and nobody queued.
//!
//! `LOCKFENCE_SIM_SEEDS=n` runs more worlds, `LOCKFENCE_SIM_SEED=n` one, with its story on stderr. `LOCKFENCE_SIM_FROM=0`
//! looks for each planted bug from the first world on, also for the one whose search begins near where it shows.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

mod checks;
mod client;
mod dropped;
mod faults;
mod network;
mod node;
mod rng;
mod stats;
mod world;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use lockfence_client::quorum::SendId;
use lockfence_client::quorum::planted::Bug;
use lockfence_core::ids::Mode;

use checks::Report;
use node::NodeBug;
use stats::{Stats, Tally};
use world::{Broken, World};

/// The lease.
pub(crate) const TTL_US: u64 = 6_000_000;

/// How long a node may take to answer: the default for that lease.
pub(crate) const NODE_TIMEOUT_US: u64 = 600_000;

/// Worlds that a plain `cargo test` runs.
const SEEDS: u64 = 10_000;

/// Worlds in which a planted bug must show, at the latest. The run ends where one is found.
const SEEDS_FOR_BUGS: u64 = 100_000;

/// Where the search for a restart without a floor begins, of which the first 33,000 worlds show nothing: a little before
/// the one that shows it, 33,559 when this was last set. All other worlds come after these: a change that moves it makes
/// the search longer, a minute or two, and wants a new number here.
const RESTART_WITHOUT_A_FLOOR: u64 = 33_300;

/// A request: whose, of which of its machines, which one, and in which mode the lock is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Msg {
    pub(crate) client: usize,
    pub(crate) key: u32,
    pub(crate) id: SendId,
    pub(crate) mode: Mode,
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

/// What came of many worlds.
#[derive(Default)]
struct Found {
    stats: Stats,
    /// One for each world.
    tallies: Vec<Tally>,
    /// The first failure by seed.
    report: Option<Report>,
}

/// Runs worlds on all processors, until one fails: from the first one given to the last one, and then those before it.
fn run_worlds(seeds: u64, first: u64, broken: Broken) -> Found {
    let next = AtomicU64::new(0);
    let found: Mutex<Found> = Mutex::default();
    let threads = std::thread::available_parallelism().map_or(2, usize::from).min(4);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let nth = next.fetch_add(1, Ordering::Relaxed);
                    if nth >= seeds {
                        break;
                    }
                    let seed = (first + nth) % seeds;
                    let mut world = World::new(seed, broken, false);
                    world.run();
                    let mut found = found.lock().unwrap();
                    found.stats.add(&world.stats);
                    found.tallies.push(world.tally());
                    if let Some(report) = world.report {
                        if found.report.as_ref().is_none_or(|first| seed < first.seed) {
                            found.report = Some(report);
                        }
                        next.store(seeds, Ordering::Relaxed);
                    }
                }
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
        eprintln!("{:?}\n{}", world.stats, world.tally());
        assert!(world.report.is_none(), "{:?}", world.report);
        return;
    }
    let seeds = number("LOCKFENCE_SIM_SEEDS").unwrap_or(SEEDS);
    let began = Instant::now();
    let Found { stats, mut tallies, report } = run_worlds(seeds, 0, Broken::default());
    tallies.sort_unstable_by_key(|tally| tally.seed);
    tallies.iter().for_each(|tally| println!("{tally}"));
    println!("{stats:#?}\n{:.1} s", began.elapsed().as_secs_f64());
    assert!(report.is_none(), "{report:?}\nits story: LOCKFENCE_SIM_SEED={}", report.as_ref().unwrap().seed);
    assert_eq!(stats.worlds, seeds);
    let poor = tallies.iter().find(|tally| !tally.is_enough());
    assert!(poor.is_none(), "nothing much happened in this world: {}", poor.unwrap());
    assert!(stats.grants_together > seeds / 10, "readers met: {stats:?}");
}

/// Plants a bug and expects the rule named to find it, with all others out of the way.
fn must_be_found(broken: Broken, rule: &'static str) {
    must_be_found_from(0, broken, rule);
}

/// The same, with the search begun at that world, or at the one that `LOCKFENCE_SIM_FROM` names.
fn must_be_found_from(first: u64, broken: Broken, rule: &'static str) {
    let first = number("LOCKFENCE_SIM_FROM").unwrap_or(first);
    let broken = Broken { rule, ..broken };
    let Found { stats, report, .. } = run_worlds(SEEDS_FOR_BUGS, first, broken);
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

/// Nodes that grant at once after they have come back empty exclude nobody; their tokens must still rise, by the floor.
#[test]
fn finds_a_restart_without_a_floor() {
    let broken = Broken { floor_margin_us: Some(0), no_quarantine: true, ..Broken::default() };
    must_be_found_from(RESTART_WITHOUT_A_FLOOR, broken, "token");
}

#[test]
fn finds_the_wall_clock_used_for_validity() {
    must_be_found(Broken { wall_clock: true, ..Broken::default() }, "two holders");
}

#[test]
fn finds_a_reader_with_one_node() {
    must_be_found(protocol(Bug::ReaderAlone), "two holders");
}

#[test]
fn finds_a_reader_that_does_not_confirm() {
    must_be_found(protocol(Bug::ReaderUnconfirmed), "token");
}

#[test]
fn finds_a_node_that_grants_a_writer_beside_readers() {
    must_be_found(node(NodeBug::WriterBesideReaders), "two holders");
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

/// Contenders for one lock that come back at once, nothing being wrong, in so many worlds. Each gets at least 0.8 of its
/// fair share, in each world.
fn crowd(worlds: u64, contenders: usize) {
    let mut longest = 0;
    for seed in 0..worlds {
        let mut world = World::crowded(seed, contenders, 0);
        world.run();
        assert!(world.report.is_none(), "{:?}", world.report);
        let won = world.won_by_each();
        longest = longest.max(world.stats.longest_wait_us);
        let fair = won.iter().sum::<u64>() as f64 / won.len() as f64;
        let enough = |won: &u64| (*won + 1) as f64 >= 0.8 * fair; // the end may have cut off one turn
        assert!(won.iter().all(enough), "world {seed}: {won:?}");
    }
    println!("{contenders} contenders, longest wait {} ms", longest / 1000);
}

/// Racing clients of a peer, measured with 3 nodes and 8 contenders: one made 22 acquisitions while another made 890,
/// longest wait 5.7 s.
#[test]
fn nobody_starves() {
    crowd(200, 8);
}

/// Whoever releases and asks again at once does not get ahead of the only other one, who waits.
#[test]
fn two_take_turns() {
    crowd(100, 2);
    crowd(100, 3);
}

/// How often one contender gets the lock while another waits, at the most, where the queue node goes and comes back.
fn overtaken(bug: Option<Bug>, slice_ms: Option<u64>) -> u64 {
    let worlds = (0..100).map(|seed| {
        let mut world = World::crowded_with_a_queue_node_that_comes_back(seed, 12, bug, slice_ms);
        world.run();
        assert!(world.report.is_none(), "{:?}", world.report);
        world.overtaken
    });
    let all: Vec<u64> = worlds.collect();
    println!("{bug:?}, {slice_ms:?}: {all:?}");
    all.into_iter().max().unwrap_or(0)
}

/// Those who were just served must not be served again before the others because the queue node came back: they would
/// make up a short queue there, beside the long one at the node that stood in for it.
#[test]
fn nobody_is_favoured_when_the_queue_node_comes_back() {
    assert!(overtaken(None, None) <= 15);
}

/// Nor where waits are cut into slices: whoever went by what it saw when it came would stay at the stand-in, beside the
/// queue. (Up to 70 times in these worlds.)
#[test]
fn nobody_stays_at_a_stand_in_beside_the_queue() {
    assert!(overtaken(None, Some(700)) <= 30);
}

#[test]
fn finds_a_second_queue() {
    assert!(overtaken(Some(Bug::SecondQueue), None) > 30);
}

/// Readers that come and go all the time do not keep a writer out, nor writers a reader.
#[test]
fn neither_readers_nor_writers_starve() {
    for readers in [7, 4, 1] {
        for seed in 0..50 {
            let mut world = World::crowded(seed, 8, readers);
            world.run();
            assert!(world.report.is_none(), "{:?}", world.report);
            let waited: Vec<u64> = world.clients.iter().map(|client| client.longest_wait_us / 1000).collect();
            assert!(waited.iter().all(|ms| *ms < 12_000), "world {seed}, {readers} readers: {waited:?} ms");
        }
    }
}
