//! Tokens only rise (guarantee G1), told as scenarios: what is lost, what the clock does, and the token that follows.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

mod common;

use common::server::{Rdb, Sent, Server};
use common::step::{Name, Reply, Time, Why};
use common::world::now;
use lockfence_core::clock::Ttl;
use lockfence_core::codec::write_lock;
use lockfence_core::error::Refusal;
use lockfence_core::event::{Event, Lease};
use lockfence_core::ids::{Mode, Owner, Token};
use lockfence_core::limits::{FLOOR_MARGIN_US, LEAP_MAX, LOADED_AHEAD_US, PROPOSAL_AHEAD_US, TOKEN_MAX};
use lockfence_core::lock::Lock;
use lockfence_core::owner::OwnerName;
use lockfence_core::request::{Acquire, Break};
use lockfence_core::token::TokenSource;

const SECOND: i64 = 1_000_000;
const HOUR: i64 = 3600 * SECOND;
/// Ten years, in µs.
const YEARS: u64 = 10 * 365 * 24 * 3600 * 1_000_000;
/// 2026-01-01, in µs since 1970.
const BEGAN: Time = Time { mono: 0, wall: 1_767_225_600_000_000 };

const A: Name = Name::ALL[0];
const B: Name = Name::ALL[1];

/// A server and its clocks.
struct Node {
    server: Server,
    time: Time,
}

impl Node {
    fn start(time: Time) -> Self {
        Self { server: Server::start(TokenSource::Clock, 0, now(time)), time }
    }

    fn dense() -> Self {
        Self { server: Server::start(TokenSource::Dense, 0, now(BEGAN)), time: BEGAN }
    }

    /// A server that has been up for two hours: its floor is far below its clock.
    fn settled() -> Self {
        let mut node = Self::start(BEGAN);
        node.pass(2 * HOUR);
        node
    }

    fn pass(&mut self, us: i64) {
        self.time.mono += us;
        self.set_clock(us);
    }

    fn set_clock(&mut self, us: i64) {
        self.time.wall = self.time.wall.checked_add_signed(us).unwrap();
    }

    fn ask(&mut self, at: Name, min: Option<u64>) -> Result<u64, Why> {
        let mut request = Acquire::new(Owner::new(b"A").unwrap(), Ttl::from_ms(1).unwrap());
        request.min_token = min.map(|min| Token::new(min).unwrap());
        self.server.acquire(1, at, &request, now(self.time));
        match self.server.told.pop() {
            Some((_, Reply::Granted { token, .. })) => Ok(token),
            Some((_, Reply::Refused(why))) => Err(why),
            other => panic!("{other:?} for {at:?}"),
        }
    }

    fn command(
        &mut self,
        at: Name,
        work: impl FnOnce(&mut lockfence_core::turn::Turn<'_, u64>) -> Result<u64, lockfence_core::error::Refusal>,
    ) -> Reply {
        self.server.command(1, at, now(self.time), work);
        self.server.told.pop().unwrap().1
    }

    fn release(&mut self, at: Name) -> Reply {
        self.command(at, |turn| Ok(u64::from(turn.release(Owner::new(b"A").unwrap()))))
    }

    /// The token of a grant that is over at once.
    fn grant(&mut self, at: Name) -> u64 {
        self.propose(at, None)
    }

    fn propose(&mut self, at: Name, min: Option<u64>) -> u64 {
        let token = self.ask(at, min).unwrap();
        assert_eq!(self.release(at), Reply::Number(1));
        token
    }

    fn carry_out(&mut self, what: &Sent) {
        self.server.carry_out(what, now(self.time));
    }

    /// What is idle is looked at by this server's timer, without that the clock has moved on.
    fn idle(&mut self) {
        self.time.mono += HOUR;
        self.server.tick(now(self.time));
    }

    /// What this server has sent to replicas since it was last asked.
    fn sent(&mut self) -> Vec<Sent> {
        std::mem::take(&mut self.server.sent)
    }

    fn save(&self) -> Rdb {
        self.server.save(now(self.time))
    }

    /// The server ends, and starts again with that data.
    fn restart(&mut self, data: Option<&Rdb>) {
        self.server = Server::start(TokenSource::Clock, 0, now(self.time));
        if let Some(data) = data {
            self.server.load(data, now(self.time));
        }
    }

    fn replica(&self) -> Self {
        let mut replica = Self::start(self.time);
        replica.server.load(&self.save(), now(self.time));
        replica
    }

    fn promote(&mut self) {
        self.server.begin(now(self.time));
    }

    fn base(&self) -> u64 {
        self.time.wall.max(self.server.issuer.floor().token)
    }

    /// A record with that counter arrives (RESTORE).
    fn restore(&mut self, at: Name, counter: u64) {
        let here = now(self.time);
        let lease = Lease { ends: here.mono, length_ms: 1 };
        let mut lock = Lock::default();
        lock.apply(&Event::Granted {
            owner: OwnerName::new(b"B"),
            token: counter,
            mode: Mode::Exclusive,
            at: here.mono,
            lease,
        });
        let mut bytes = Vec::new();
        write_lock(&mut bytes, &lock, here);
        self.carry_out(&Sent::Restore(at, bytes));
    }
}

/// What comes between two grants of one lock.
type Between = fn(&mut Node);

/// Each makes a token, something happens, and the next token of the same lock must be higher.
const SCENARIOS: [(&str, Between); 15] = [
    ("nothing", |_| ()),
    ("DEL", |node| node.carry_out(&Sent::Del(A))),
    ("FLUSHALL", |node| node.carry_out(&Sent::FlushAll)),
    ("the clock is set back", |node| node.set_clock(-HOUR)),
    ("the clock is set back, then DEL", |node| {
        node.set_clock(-HOUR);
        node.carry_out(&Sent::Del(A));
    }),
    ("DEL, then the clock is set back", |node| {
        node.carry_out(&Sent::Del(A));
        node.set_clock(-HOUR);
    }),
    ("RENAME away", |node| {
        node.set_clock(-HOUR);
        node.carry_out(&Sent::Rename(A, B));
    }),
    ("an old record arrives in its place", |node| {
        node.set_clock(-HOUR);
        node.restore(A, 7);
    }),
    ("it is deleted, and an old record arrives", |node| {
        node.set_clock(-HOUR);
        node.carry_out(&Sent::Del(A));
        node.restore(A, 7);
    }),
    ("a restart with its data, the clock set back", |node| {
        let data = node.save();
        node.set_clock(-HOUR);
        node.restart(Some(&data));
    }),
    ("the same, and then DEL", |node| {
        let data = node.save();
        node.set_clock(-HOUR);
        node.restart(Some(&data));
        node.carry_out(&Sent::Del(A));
    }),
    ("a restart with its data, the clock set back ten years, and then DEL", |node| {
        let data = node.save();
        node.set_clock(-YEARS.cast_signed());
        node.restart(Some(&data));
        node.carry_out(&Sent::Del(A));
    }),
    ("a replica whose clock is ten years behind takes over, and then DEL", |node| {
        let mut replica = Node::start(BEGAN);
        replica.set_clock(-YEARS.cast_signed());
        node.sent().iter().for_each(|sent| replica.carry_out(sent));
        *node = replica;
        node.promote();
        node.carry_out(&Sent::Del(A));
    }),
    ("a restart with nothing", |node| node.restart(None)),
    ("a restart with nothing, the clock 19 s behind", |node| {
        node.set_clock(-19 * SECOND);
        node.restart(None);
    }),
];

#[test]
fn the_next_token_is_higher() {
    for (what, between) in SCENARIOS {
        for ahead in [0, PROPOSAL_AHEAD_US] {
            let mut node = Node::settled();
            let min = node.base() + ahead;
            let before = node.propose(A, Some(min));
            assert!(before >= min);
            between(&mut node);
            let after = node.grant(A);
            assert!(after > before, "{what}: {after} after {before}, which was {ahead} us ahead");
        }
    }
}

#[test]
fn a_lost_tail_is_covered_by_the_floor() {
    let mut node = Node::settled();
    node.grant(A);
    let snapshot = node.save();
    let lost = node.propose(A, Some(node.base() + PROPOSAL_AHEAD_US));
    node.set_clock(-19 * SECOND);
    node.restart(Some(&snapshot));
    assert!(node.grant(A) > lost);
}

#[test]
fn restarts_in_a_row_that_lose_what_they_issued() {
    let mut node = Node::start(BEGAN);
    node.grant(A);
    let snapshot = node.save();
    let mut lost = 0;
    for restart in 0..10 {
        node.pass(SECOND);
        node.restart(Some(&snapshot));
        let token = node.grant(A);
        assert!(token > lost, "restart {restart}: {token} after {lost}");
        lost = token;
    }
}

#[test]
fn the_floor_is_above_the_clock_and_what_was_known() {
    let mut node = Node::start(BEGAN);
    assert_eq!(node.grant(A), BEGAN.wall + FLOOR_MARGIN_US);
    let data = node.save();
    node.restart(Some(&data));
    assert_eq!(node.grant(A), BEGAN.wall + 2 * FLOOR_MARGIN_US);
}

#[test]
fn a_replica_that_takes_over_right_after_a_start() {
    let mut primary = Node::settled();
    primary.grant(A);
    let data = primary.save();
    primary.restart(Some(&data));
    let mut replica = primary.replica();
    primary.sent();
    primary.grant(B);
    // The first effect says where the floor is; what follows is lost.
    primary.sent().iter().take(1).for_each(|first| replica.carry_out(first));
    let lost = primary.propose(A, Some(primary.base() + PROPOSAL_AHEAD_US));
    replica.promote();
    let next = replica.grant(A);
    assert!(next > lost, "{next} after {lost}");
}

#[test]
fn a_replica_that_has_missed_the_last_grants() {
    let mut primary = Node::settled();
    let mut replica = primary.replica();
    primary.grant(A);
    primary.sent().iter().for_each(|sent| replica.carry_out(sent));
    let lost = primary.propose(A, Some(primary.base() + PROPOSAL_AHEAD_US));
    replica.set_clock(-19 * SECOND);
    replica.promote();
    assert!(replica.grant(A) > lost);
}

#[test]
fn a_replica_knows_the_tokens_of_locks_that_have_gone() {
    let mut primary = Node::settled();
    let mut replica = primary.replica();
    let token = primary.grant(A);
    primary.sent().iter().for_each(|sent| replica.carry_out(sent));
    replica.carry_out(&Sent::Del(A));
    replica.set_clock(-HOUR);
    replica.promote();
    assert!(replica.grant(A) > token);
}

#[test]
fn swapped_databases() {
    let there = Name { db: 1, ..A };
    let mut node = Node::settled();
    let first = node.grant(A);
    node.set_clock(-HOUR);
    let second = node.grant(there);
    assert!(second > first);
    node.carry_out(&Sent::SwapDb);
    let (here, there) = (node.grant(A), node.grant(there));
    assert!(here > second && there > second, "{here} and {there} after {first} and {second}");
}

#[test]
fn databases_that_were_swapped_more_often_than_is_counted() {
    let there = Name { db: 1, ..A };
    let mut node = Node::settled();
    node.set_clock(-HOUR);
    // From before the last that counts to long after it, an even and an odd number of times.
    for times in [65_520, 1, 1, 1, 70_000, 1, 1] {
        let highest = node.grant(A).max(node.grant(there));
        (0..times).for_each(|_| node.carry_out(&Sent::SwapDb));
        let (here, there) = (node.grant(A), node.grant(there));
        assert!(here > highest && there > highest, "{here} and {there} after {highest}");
    }
}

#[test]
fn a_record_that_nobody_vouches_for_stays_so_however_often_databases_are_swapped() {
    for times in [65_533, 65_535, 65_537] {
        let there = Name { db: 1, ..A };
        let mut node = Node::settled();
        let old = node.grant(B);
        let before = node.grant(A);
        node.set_clock(-HOUR);
        node.restore(there, old);
        (0..times).for_each(|_| node.carry_out(&Sent::SwapDb));
        let now = node.grant(A);
        assert!(now > before, "{now} after {before}");
    }
}

#[test]
fn a_lock_that_takes_a_deleted_ones_name() {
    let mut node = Node::settled();
    node.grant(B);
    node.set_clock(-HOUR);
    let before = node.grant(A);
    node.carry_out(&Sent::Del(A));
    node.carry_out(&Sent::Rename(B, A));
    assert!(node.grant(A) > before);
}

#[test]
fn the_highest_token_ends_its_lock_and_no_other() {
    let mut node = Node::settled();
    node.restore(A, TOKEN_MAX);
    assert_eq!(node.ask(A, None), Err(Why::Exhausted));
    assert_eq!(node.command(A, |turn| Ok(turn.break_holders(Break::default()))), Reply::Number(0));
    assert_eq!(node.release(A), Reply::Number(0));
    let other = node.grant(B);
    assert!(other <= node.base() + LOADED_AHEAD_US + 1, "{other} is far ahead of {}", node.base());
    node.carry_out(&Sent::Del(A));
    assert!(node.grant(A) > other, "a new lock of that name begins anew");
}

#[test]
fn grants_of_the_last_tokens_leave_enough_to_others() {
    let mut node = Node::settled();
    node.restore(A, TOKEN_MAX - 2);
    assert_eq!(node.grant(A), TOKEN_MAX - 1);
    assert_eq!(node.ask(A, None), Ok(TOKEN_MAX));
    assert_eq!(node.ask(A, None), Ok(TOKEN_MAX), "its holder may still ask again");
    let ttl = Ttl::from_ms(9).unwrap();
    let extend = node.command(A, |turn| turn.extend(Owner::new(b"A").unwrap(), ttl, None).map(u64::from));
    assert_eq!(extend, Reply::Number(1));
    assert_eq!(node.release(A), Reply::Number(1));
    assert_eq!(node.ask(A, None), Err(Why::Exhausted));
    let other = node.grant(B);
    assert!((LEAP_MAX..LEAP_MAX + 10).contains(&other), "{other}");
    assert!(node.grant(B) > other);
}

#[test]
fn at_the_highest_token_break_ends_the_lease_and_its_token() {
    for end in ["break", "release"] {
        let mut node = Node::settled();
        node.restore(A, TOKEN_MAX - 1);
        assert_eq!(node.ask(A, None), Ok(TOKEN_MAX));
        let check = |node: &Node| {
            let lock = node.server.lock(A).unwrap();
            lock.check(Token::MAX, now(node.time).mono)
        };
        assert_eq!(check(&node), Ok(TOKEN_MAX), "its holder may write");
        let ended = match end {
            "break" => node.command(A, |turn| Ok(turn.break_holders(Break::default()))),
            _ => node.release(A),
        };
        assert_eq!(ended, Reply::Number(1));
        // There is no higher token to fence it with, and none will ever be issued.
        assert!(matches!(check(&node), Err(Refusal::Stale { .. })), "after {end}");
        assert_eq!(node.ask(A, None), Err(Why::Exhausted));
    }
}

#[test]
fn a_record_from_elsewhere_raises_the_others_by_60_s_at_most() {
    let mut node = Node::settled();
    node.restore(A, node.base() + YEARS);
    assert_eq!(node.grant(B), node.base() + LOADED_AHEAD_US + 1);
}

/// A slot moves here from a server that has just started, so that it is ahead of the clock by its floor and a proposal,
/// and whose clock is ahead, too.
#[test]
fn a_lock_that_has_moved_here_and_goes() {
    for gone in ["DEL", "FLUSHALL", "idle"] {
        let mut from = Node::settled();
        from.set_clock(19 * SECOND);
        from.restart(None);
        let before = from.propose(A, Some(from.base() + PROPOSAL_AHEAD_US));
        let mut node = Node::settled();
        node.restore(A, before);
        match gone {
            "DEL" => node.carry_out(&Sent::Del(A)),
            "FLUSHALL" => node.carry_out(&Sent::FlushAll),
            _ => node.idle(),
        }
        let after = node.grant(A);
        assert!(after > before, "{gone}: {after} after {before}");
    }
}

/// Its tokens are hours ahead of this server's, whatever the reason. A record that is idle stays as long as it is needed.
#[test]
fn an_idle_record_goes_once_its_counter_is_covered() {
    let mut node = Node::settled();
    let far = node.base() + HOUR.unsigned_abs();
    node.restore(A, far);
    node.idle();
    assert_eq!(node.server.lock(A).map(Lock::counter), Some(far));
    node.pass(HOUR + SECOND);
    node.idle();
    assert_eq!(node.server.lock(A), None);
    assert!(node.grant(A) > far);
}

/// A crafted record takes a leap as far as one can go, and base stands still: the locks without a record come after each
/// other all the same.
#[test]
fn tokens_rise_above_the_highest_leap() {
    let mut node = Node::start(BEGAN);
    node.restore(A, TOKEN_MAX - 10);
    node.grant(A);
    let mut before = node.grant(B);
    assert!(before > LEAP_MAX);
    for round in 0..5 {
        node.carry_out(&Sent::Del(B));
        let after = node.grant(B);
        assert!(after > before, "round {round}: {after} after {before}");
        before = after;
        // Starts add their margin, no leap.
        let data = node.save();
        node.carry_out(&Sent::Del(B));
        node.restart(Some(&data));
        node.carry_out(&Sent::Del(B));
    }
    assert!(before < LEAP_MAX + 5 * (FLOOR_MARGIN_US + LOADED_AHEAD_US), "{before}");
}

#[test]
fn what_a_record_may_raise_does_not_follow_a_clock_that_is_set_back() {
    let mut node = Node::settled();
    node.grant(B);
    let ahead = node.base() + PROPOSAL_AHEAD_US / 2;
    node.set_clock(-HOUR);
    node.restore(A, ahead);
    node.carry_out(&Sent::Del(A));
    assert!(node.grant(A) > ahead);
}

#[test]
fn proposals_are_followed_up_to_10_s_ahead() {
    let mut node = Node::settled();
    let most = node.base() + PROPOSAL_AHEAD_US;
    assert_eq!(node.ask(A, Some(most + 1)), Err(Why::TooFarAhead));
    assert_eq!(node.server.lock(A), None, "nothing was used up");
    assert_eq!(node.propose(A, Some(1)), node.base());
    assert_eq!(node.propose(A, Some(most)), most);
    // A lock that is ahead itself may stay there.
    assert_eq!(node.propose(A, Some(most)), most + 1);
    node.set_clock(-HOUR);
    assert_eq!(node.propose(A, Some(most + 1)), most + 2);
    assert_eq!(node.ask(A, Some(most + 3)), Err(Why::TooFarAhead));
}

#[test]
fn a_holder_raises_its_token() {
    let mut node = Node::settled();
    let token = node.ask(A, None).unwrap();
    assert_eq!(node.ask(A, Some(token)), Ok(token));
    assert_eq!(node.ask(A, Some(token + 5)), Ok(token + 5));
    assert_eq!(node.ask(A, Some(token)), Ok(token + 5), "it never falls");
    let (owner, ttl) = (Owner::new(b"A").unwrap(), Ttl::from_ms(1).unwrap());
    let extended = node.command(A, |turn| turn.extend(owner, ttl, Token::new(token + 9)).map(u64::from));
    assert_eq!(extended, Reply::Number(1));
    assert_eq!(node.ask(A, None), Ok(token + 9));
    assert_eq!(node.server.lock(A).unwrap().counter(), token + 9);
}

#[test]
fn dense_tokens_count() {
    let mut node = Node::dense();
    assert_eq!([node.grant(A), node.grant(A), node.grant(A)], [1, 2, 3]);
    assert_eq!(node.grant(B), 4, "a new lock begins above all that this server has issued");
    node.carry_out(&Sent::Del(A));
    assert_eq!(node.grant(A), 5);
    node.set_clock(-HOUR);
    assert_eq!(node.grant(A), 6);
    let data = node.save();
    let mut again = Node::dense();
    again.server.load(&data, now(BEGAN));
    assert_eq!((again.grant(A), again.grant(Name::ALL[2])), (7, 8));
    assert_eq!(again.ask(B, Some(8 + PROPOSAL_AHEAD_US + 1)), Err(Why::TooFarAhead));
    assert_eq!(again.ask(B, Some(100)), Ok(100));
}

/// Restarts do not add up: with a minute between them, tokens stay within the margin of the clock.
#[test]
fn floors_of_starts_that_are_apart_do_not_add_up() {
    use lockfence_core::clock::{Instant, Now, Wall};
    use lockfence_core::token::{Issuer, TokenSource};
    let start = 1_764_428_400_000_000;
    let mut known = (0, lockfence_core::token::Floor::default());
    for restart in 0..100_u64 {
        let wall = start + restart * 60_000_000;
        let now = Now { mono: Instant::from_micros(0), wall: Wall::from_micros(wall) };
        let mut issuer = Issuer::new(TokenSource::Clock);
        issuer.raise_floor(now);
        issuer.restored(known.0, known.1, now);
        issuer.raise_floor(now);
        let token = issuer.next(&lockfence_core::lock::Lock::default(), None, now).unwrap().get();
        assert!(token <= wall + 31_000_000, "restart {restart}: {} s ahead", (token - wall) / 1_000_000);
        issuer.issued(token, now);
        known = (issuer.high(), issuer.floor());
    }
}

/// Dense tokens on the data of a server with clock tokens go on above them, also for a lock whose record has gone.
#[test]
fn dense_tokens_on_clock_data_do_not_fall() {
    use lockfence_core::clock::{Instant, Now, Wall};
    use lockfence_core::lock::Lock;
    use lockfence_core::token::{Floor, Issuer, TokenSource};
    let clock_token = 1_764_428_400_000_000;
    let now = Now { mono: Instant::from_micros(0), wall: Wall::from_micros(clock_token + 60_000_000) };
    let next = |issuer: &Issuer| issuer.next(&Lock::default(), None, now).unwrap().get();
    let mut by_record = Issuer::new(TokenSource::Dense);
    by_record.loaded(clock_token, now);
    assert_eq!(next(&by_record), clock_token + 1);
    let mut by_aux = Issuer::new(TokenSource::Dense);
    by_aux.restored(clock_token, Floor::default(), now);
    assert_eq!(next(&by_aux), clock_token + 1);
    let mut crafted = Issuer::new(TokenSource::Dense);
    for _ in 0..1_000 {
        crafted.loaded(9_007_199_254_740_990, now);
    }
    assert!(next(&crafted) <= clock_token + 121_000_000, "a crafted record used up the numbers");
}
