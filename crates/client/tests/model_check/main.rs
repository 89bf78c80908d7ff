//! The quorum protocol, exhaustively in small worlds: every order in which messages can arrive and timers go off, found by
//! the model checker `stateright`. The clients are the protocol's machines as they are, the nodes run the core's turns at
//! a lock with its own token issuer.
//!
//! A world has 3 nodes and 2 clients with one acquisition each. Time passes in steps of a tick, of which a lease lasts
//! one or two and the time to answer one; within a tick anything can happen in any order. What is on its way may arrive
//! in any later tick, or never: loss needs no step of its own. A client's timer may go off at any time after it is due.
//! A node may forget all, a lock be broken at one node or at all, a request be carried out twice, a connection break, a
//! wall clock be stepped back: as often as the [`setup`] allows.
//!
//! Checked in every state:
//! - at most one client takes the lock as held, where nobody ended a lease behind its back;
//! - the tokens of two confirmed grants differ;
//! - a grant whose round began after another was confirmed has the higher token;
//! - what was broken at all nodes is not prolonged by anything that was sent later. (Not looked at where an ACQUIRE was
//!   still on its way: one that arrives after the break, a whole lease late, takes the lock again, and its owner cannot
//!   tell. On one connection requests keep their order.)
//!
//! And seen in some: both clients get the lock one after the other, a token is raised by a confirm, somebody waits. So
//! many states as there were at the last change, or nearly, must be found again.
//!
//! Left out, so that there are fewer states that tell nothing new: releases are not repeated (one that is repeated is as
//! good as one that arrives late), what would change nothing when it arrives is forgotten, and a world ends when no rule
//! can be broken any more. Clocks run at the same rate; the simulation has them drift.
//!
//! The planted bugs of the protocol and of nodes must be found by the rule that they break. Four break none of these rules,
//! but keep somebody waiting or leave something behind: `NotProbed`, `NotAbandoned`, `DeadlineIgnored` and `SecondQueue`
//! are for the simulation.
//!
//! `LOCKFENCE_MODEL_DEPTH=n` lets time go n ticks further, and so takes minutes.
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
mod rules;
mod setup;
mod state;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use lockfence_client::quorum::planted::Bug;
use stateright::{Checker, CheckerBuilder, HasDiscoveries, Model};

use rules::{BOTH, CONFIRMS, ONE_HOLDER, PROLONGS, QUEUES, RISE, STAYS_BROKEN, UNIQUE, World};
use setup::{Chances, Counters, NodeBug, READS, RENEWS, Setup, TRIES, WAITS};

fn deeper() -> u64 {
    std::env::var("LOCKFENCE_MODEL_DEPTH").map_or(0, |value| value.parse().expect("a number"))
}

/// The same, if more than usual is asked for.
fn holds_deep(name: &str, setup: Setup, seen: &[&str]) {
    if deeper() > 0 {
        holds(name, setup, seen, 1);
    }
}

/// Goes through all that can come of `setup`: no rule is broken, `seen` are seen, and there are at least so many states.
fn holds(name: &str, setup: Setup, seen: &[&str], at_least: usize) {
    let setup = Setup { ticks: setup.ticks + deeper(), ..setup };
    let began = Instant::now();
    let checker = checker(setup).spawn_dfs().join();
    let (states, took) = (checker.unique_state_count(), began.elapsed());
    println!(
        "{name}: {states} states, {} steps, longest way {}, {:.1} s",
        checker.state_count(),
        checker.max_depth(),
        took.as_secs_f64()
    );
    let found = checker.discoveries();
    for rule in [UNIQUE, RISE, ONE_HOLDER, STAYS_BROKEN] {
        let way = found.get(rule).map(|path| path.clone().into_actions());
        assert!(way.is_none(), "{name}, broken: {rule}: {way:#?}");
    }
    let unseen: Vec<_> = seen.iter().filter(|what| !found.contains_key(**what)).collect();
    assert!(unseen.is_empty(), "{name}: not seen: {unseen:?}");
    assert!(states >= at_least, "{name}: no more than {states} states");
    assert!(took < limit(), "{name}: not all of it");
}

/// Expects that `rule` is broken somewhere in `setup`.
fn finds(setup: Setup, rule: &'static str) {
    let began = Instant::now();
    let until = HasDiscoveries::AnyOf(BTreeSet::from([rule]));
    let checker = checker(setup).finish_when(until).spawn_bfs().join();
    let (states, took) = (checker.unique_state_count(), began.elapsed().as_secs_f64());
    let way = checker.discovery(rule).map(|path| path.into_actions());
    let what = (setup.bug, setup.node_bug, setup.wall_for_validity);
    assert!(way.is_some(), "{what:?} not found in {states} states");
    println!(
        "{what:?} found after {} steps, {states} states, {took:.1} s: {way:?}",
        way.as_ref().map_or(0, Vec::len)
    );
}

fn limit() -> Duration {
    Duration::from_secs(600 + 6_600 * deeper())
}

fn checker(setup: Setup) -> CheckerBuilder<World> {
    let until = HasDiscoveries::AnyOf(BTreeSet::new());
    World(setup).checker().threads(2).finish_when(until).timeout(limit())
}

const LOW: Setup = Setup::new(Counters::Low);
const LEVEL: Setup = Setup::new(Counters::Level);
const UNEVEN: Setup = Setup::new(Counters::Uneven);
const ONE_BELOW: Setup = Setup::new(Counters::OneBelow);

const NONE: Chances = LOW.chances;
const CRASH: Chances = Chances { crashes: 1, ..NONE };
const BREAK: Chances = Chances { breaks: 1, ..NONE };

const AT_ONCE: Setup = Setup { ticks: 0, ..LOW };
const AT_ONCE_UNEVEN: Setup = Setup { ticks: 0, ..UNEVEN };
const AT_ONCE_ONE_BELOW: Setup = Setup { ticks: 0, ..ONE_BELOW };

/// One who reads and one who writes.
const READER_AND_WRITER: Setup = Setup { manners: [READS, TRIES], ..AT_ONCE_UNEVEN };
/// One who renews, and all leases broken.
const RENEWS_BROKEN: Setup = Setup {
    manners: [RENEWS, TRIES],
    contenders: 1,
    chances: Chances { breaks_all: 1, ..NONE },
    ttl: 2,
    ticks: 2,
    ..LOW
};
/// One who waits for somebody who leaves, and then one who tries.
const WAITS_FIRST: Setup =
    Setup { manners: [WAITS, TRIES], in_turn: true, taken: [true, true, false], ..AT_ONCE };

const fn with_bug(setup: Setup, bug: Bug) -> Setup {
    Setup { bug: Some(bug), ..setup }
}

const fn with_node_bug(setup: Setup, bug: NodeBug) -> Setup {
    Setup { node_bug: Some(bug), ..setup }
}

#[test]
fn two_try() {
    holds("low counters", LOW, &[BOTH], 200_000);
    holds("level counters", Setup { ticks: 0, ..LEVEL }, &[BOTH], 15_000);
    holds("uneven counters", UNEVEN, &[BOTH, CONFIRMS], 340_000);
    holds("one counter below", AT_ONCE_ONE_BELOW, &[BOTH, CONFIRMS], 18_000);
}

#[test]
fn a_node_forgets() {
    let crash = |setup| Setup { chances: CRASH, ..setup };
    holds("amnesia, low counters, at once", crash(AT_ONCE), &[BOTH], 80_000);
    holds("amnesia, uneven counters, at once", crash(AT_ONCE_UNEVEN), &[BOTH, CONFIRMS], 130_000);
    holds("amnesia, low counters", Setup { in_turn: true, ..crash(LOW) }, &[BOTH], 440_000);
}

/// Exclusion is lost then, but tokens must rise, by the floor.
#[test]
fn a_node_forgets_and_grants_at_once() {
    let crash = |setup| Setup { chances: CRASH, quarantine: false, ..setup };
    holds("no quarantine, low counters", crash(AT_ONCE), &[BOTH], 110_000);
    holds_deep("no quarantine, one counter below", crash(AT_ONCE_ONE_BELOW), &[BOTH, CONFIRMS]);
}

/// Exclusion is lost then, but tokens must rise.
#[test]
fn a_lock_is_broken() {
    holds("LOCK.BREAK at a node", Setup { chances: BREAK, ..AT_ONCE_ONE_BELOW }, &[BOTH, CONFIRMS], 180_000);
    holds("LOCK.BREAK everywhere", RENEWS_BROKEN, &[PROLONGS], 60_000);
}

#[test]
fn connections_break_and_requests_come_twice() {
    let chances = Chances { doubles: 1, ..NONE };
    holds("a request twice", Setup { chances, ..AT_ONCE_ONE_BELOW }, &[BOTH, CONFIRMS], 70_000);
    let chances = Chances { cuts: 1, ..NONE };
    holds("a connection breaks", Setup { chances, ..AT_ONCE_ONE_BELOW }, &[BOTH, CONFIRMS], 80_000);
}

#[test]
fn a_wall_clock_is_stepped_back() {
    let chances = Chances { steps: 1, ..NONE };
    holds("wall clock", Setup { chances, ..AT_ONCE }, &[BOTH], 55_000);
    holds_deep("wall clock, later", Setup { chances, in_turn: true, ..LOW }, &[BOTH]);
}

#[test]
fn one_renews() {
    holds("renewed", Setup { manners: [RENEWS, TRIES], ttl: 2, ..LOW }, &[PROLONGS], 240_000);
}

#[test]
fn a_reader_and_a_writer() {
    holds("reader and writer", READER_AND_WRITER, &[BOTH, CONFIRMS], 33_000);
}

#[test]
fn one_waits() {
    holds("waits", WAITS_FIRST, &[BOTH, QUEUES], 79_000);
    holds_deep("waits, not in turn", Setup { in_turn: false, ..WAITS_FIRST }, &[BOTH, QUEUES]);
}

#[test]
fn finds_no_confirm() {
    finds(with_bug(AT_ONCE_UNEVEN, Bug::NoConfirm), RISE);
}

#[test]
fn finds_a_node_that_lost_the_lease_counted_toward_a_confirm() {
    let setup = Setup { chances: BREAK, ..AT_ONCE_ONE_BELOW };
    finds(with_bug(setup, Bug::TopUpConfirms), UNIQUE);
    finds(with_node_bug(setup, NodeBug::ConfirmReacquires), UNIQUE);
}

#[test]
fn finds_one_owner_for_two_tries() {
    finds(with_bug(WAITS_FIRST, Bug::OwnerReused), ONE_HOLDER);
}

#[test]
fn finds_validity_from_before_a_wait() {
    finds(with_bug(Setup { ticks: 1, ..WAITS_FIRST }, Bug::WaitGrantCounted), ONE_HOLDER);
}

#[test]
fn finds_validity_from_after_the_replies() {
    finds(with_bug(Setup { in_turn: true, ..LOW }, Bug::ValidFromReplies), ONE_HOLDER);
}

#[test]
fn finds_the_wall_clock_used_for_validity() {
    let chances = Chances { steps: 1, ..NONE };
    finds(Setup { wall_for_validity: true, chances, in_turn: true, ..LOW }, ONE_HOLDER);
}

#[test]
fn finds_a_renewal_that_proves_what_was_broken() {
    finds(with_bug(RENEWS_BROKEN, Bug::TopUpProves), STAYS_BROKEN);
    finds(with_node_bug(RENEWS_BROKEN, NodeBug::RenewalReacquires), STAYS_BROKEN);
}

#[test]
fn finds_a_node_that_forgets_and_grants_at_once() {
    let setup = Setup { chances: CRASH, ..AT_ONCE };
    finds(with_node_bug(setup, NodeBug::ForgetsAndGrants), ONE_HOLDER);
    finds(with_node_bug(Setup { quarantine: false, ..setup }, NodeBug::NoFloor), UNIQUE);
}

#[test]
fn finds_a_reader_that_is_not_kept_out() {
    let level = Setup { counters: Counters::Low, ..READER_AND_WRITER };
    finds(with_bug(level, Bug::ReaderAlone), ONE_HOLDER);
    finds(with_bug(READER_AND_WRITER, Bug::ReaderUnconfirmed), RISE);
    finds(with_node_bug(level, NodeBug::WriterBesideReaders), ONE_HOLDER);
}
