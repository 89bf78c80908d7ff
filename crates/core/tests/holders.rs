//! Few holders of a lock and many of them are kept in different ways: whatever happens, a lock answers as a plain list of
//! holders does.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

use lockfence_core::clock::{Instant, Now, Wall};
use lockfence_core::codec::{read_lock, write_lock};
use lockfence_core::event::{Event, Lease};
use lockfence_core::ids::{Mode, Token};
use lockfence_core::lock::Lock;
use lockfence_core::owner::OwnerName;
use proptest::collection::vec;
use proptest::prelude::*;

/// As many as it takes to become a crowd, and a few again.
const OWNERS: u16 = 150;
const LENGTH_MS: u64 = 1_000;

#[derive(Clone, Debug)]
enum Step {
    Grant { owner: u16, ttl_ms: u64 },
    GrantMany { first: u16, count: u16 },
    Extend { owner: u16, ttl_ms: u64, raise: bool },
    End { owner: u16 },
    EndMany { first: u16, count: u16 },
    BreakUpTo { back: u64 },
    Pass { ms: u64 },
    Note,
    Reload,
}

#[derive(Clone, Debug, PartialEq)]
struct Plain {
    owner: Vec<u8>,
    token: u64,
    ends: Instant,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let owner = || 0..OWNERS;
    let ttl_ms = || prop_oneof![1 => Just(0), 4 => 1..LENGTH_MS];
    let step = prop_oneof![
        8 => (owner(), ttl_ms()).prop_map(|(owner, ttl_ms)| Step::Grant { owner, ttl_ms }),
        3 => (owner(), 1..OWNERS).prop_map(|(first, count)| Step::GrantMany { first, count }),
        6 => (owner(), ttl_ms(), any::<bool>())
            .prop_map(|(owner, ttl_ms, raise)| Step::Extend { owner, ttl_ms, raise }),
        6 => owner().prop_map(|owner| Step::End { owner }),
        1 => (owner(), 1..OWNERS).prop_map(|(first, count)| Step::EndMany { first, count }),
        1 => (0..u64::from(OWNERS)).prop_map(|back| Step::BreakUpTo { back }),
        4 => (0..LENGTH_MS / 3).prop_map(|ms| Step::Pass { ms }),
        4 => Just(Step::Note),
        1 => Just(Step::Reload),
    ];
    vec(step, 1..60)
}

/// Names that pack, and names that do not.
fn name(owner: u16) -> Vec<u8> {
    if owner.is_multiple_of(3) {
        format!("{owner}: a name that does not pack").into()
    } else {
        format!("o{owner}").into()
    }
}

struct World {
    mode: Mode,
    lock: Lock,
    plain: Vec<Plain>,
    counter: u64,
    now: Now,
}

impl World {
    fn lease(&self, ttl_ms: u64) -> Lease {
        Lease { ends: self.now.mono.plus_ms(ttl_ms), length_ms: LENGTH_MS }
    }

    fn grant(&mut self, owner: u16, ttl_ms: u64) {
        let (owner, lease, at) = (name(owner), self.lease(ttl_ms), self.now.mono);
        self.counter += 1;
        let (token, mode) = (self.counter, self.mode);
        self.lock.apply(&Event::Granted { owner: OwnerName::new(&owner), token, mode, at, lease });
        self.plain.retain(|holder| holder.owner != owner);
        self.plain.push(Plain { owner, token, ends: lease.ends });
    }

    fn end(&mut self, owner: u16) {
        let owner = name(owner);
        self.lock.apply(&Event::Ended { owner: OwnerName::new(&owner), at: self.now.mono });
        self.plain.retain(|holder| holder.owner != owner);
    }

    fn extend(&mut self, owner: u16, ttl_ms: u64, raise: bool) {
        let (owner, lease) = (name(owner), self.lease(ttl_ms));
        let Some(place) = self.plain.iter().position(|holder| holder.owner == owner) else {
            self.lock.apply(&Event::Extended { owner: OwnerName::new(&owner), token: self.counter, lease });
            return;
        };
        let mut holder = self.plain.remove(place);
        if raise {
            self.counter += 5;
            holder.token = self.counter;
        }
        holder.ends = lease.ends;
        self.lock.apply(&Event::Extended { owner: OwnerName::new(&owner), token: holder.token, lease });
        self.plain.push(holder);
        self.plain.sort_by_key(|holder| holder.token);
    }

    fn step(&mut self, step: &Step) {
        let round = |first: u16, count: u16| (first..first + count).map(|owner| owner % OWNERS);
        match *step {
            Step::Grant { owner, ttl_ms } => self.grant(owner, ttl_ms),
            Step::GrantMany { first, count } => {
                round(first, count).for_each(|owner| self.grant(owner, u64::from(owner) * 7 % LENGTH_MS + 1));
            }
            Step::Extend { owner, ttl_ms, raise } => self.extend(owner, ttl_ms, raise),
            Step::End { owner } => self.end(owner),
            Step::BreakUpTo { back } => {
                let max = self.counter.saturating_sub(back);
                self.lock.apply(&Event::BrokenUpTo { max, at: self.now.mono });
                self.plain.retain(|holder| holder.token > max);
            }
            Step::EndMany { first, count } => round(first, count).for_each(|owner| self.end(owner)),
            Step::Pass { ms } => {
                self.now.mono = self.now.mono.plus_ms(ms);
                self.now.wall = Wall::from_micros(self.now.wall.micros() + ms * 1000);
            }
            Step::Note => self.lock.note(self.now.mono),
            Step::Reload => {
                let mut bytes = Vec::new();
                write_lock(&mut bytes, &self.lock, self.now);
                // Whoever reads a lease that is over only knows that it is.
                self.plain.iter_mut().for_each(|holder| holder.ends = holder.ends.max(self.now.mono));
                if !self.plain.is_empty() {
                    self.lock = read_lock(&bytes, self.now).unwrap();
                }
            }
        }
    }

    fn compare(&mut self, at: Instant) {
        let lock = &self.lock;
        let holders: Vec<Plain> = lock
            .holders()
            .map(|holder| Plain {
                owner: holder.owner.bytes().to_vec(),
                token: holder.token,
                ends: holder.lease.ends,
            })
            .collect();
        assert_eq!(holders, self.plain);
        assert_eq!((lock.holder_count(), lock.counter()), (holders.len(), self.counter));
        let live: Vec<&Plain> = holders.iter().filter(|holder| at < holder.ends).collect();
        assert_eq!(lock.live_count(at), live.len() as u64);
        assert_eq!(lock.first_live(at).map(|holder| holder.token), live.first().map(|holder| holder.token));
        let mut ends: Vec<Instant> = live.iter().map(|holder| holder.ends).collect();
        ends.sort_unstable();
        assert_eq!(lock.next_end(at), ends.first().copied());
        if let Some(last) = holders.iter().map(|holder| holder.ends).max() {
            assert_eq!(lock.last_end(), last);
            assert_eq!(lock.free_since(at), (last <= at).then_some(last));
        }
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Limit(1), Mode::Limit(40), Mode::Limit(100)] {
            let others = mode.in_the_way(self.mode, ends.len() as u64) as usize;
            let exactly = if others == 0 { at } else { ends[others - 1] };
            let from = lock.fits_from(mode, at);
            assert!(from == exactly || (others > 64 && others < ends.len() && at < from && from < exactly));
        }
        for owner in (0..OWNERS).map(name) {
            let found = lock.live_holder(OwnerName::new(&owner), at).map(|holder| holder.token);
            assert_eq!(found, live.iter().find(|holder| holder.owner == owner).map(|holder| holder.token));
        }
        for holder in holders.iter().filter(|holder| holder.token != self.counter) {
            let accepted = lock.check(Token::new(holder.token).unwrap(), at).is_ok();
            assert_eq!(accepted, at < holder.ends, "{holder:?}");
        }
        let over = lock.over(at, 10);
        assert_eq!(over.len(), (holders.len() - live.len()).min(10));
        assert!(over.iter().all(|owner| live.iter().all(|holder| *holder.owner != **owner)));
        let mut again = Lock::default();
        again.replace(lock.clone());
        assert_eq!(again, *lock);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 60, failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(7),
        ..ProptestConfig::default()
    })]

    #[test]
    fn many_holders_are_as_a_plain_list_of_them(steps in steps(), shared in any::<bool>()) {
        let now = Now { mono: Instant::from_micros(5_000), wall: Wall::from_micros(1_767_225_600_000_000) };
        let mode = if shared { Mode::Shared } else { Mode::Limit(1_000) };
        let mut world = World { mode, lock: Lock::default(), plain: Vec::new(), counter: 0, now };
        for step in &steps {
            world.step(step);
            let now = world.now.mono;
            // Now, and at moments before and after what was taken note of.
            for at in [now, Instant::from_micros(now.micros() - 1), now.plus_ms(LENGTH_MS / 4)] {
                world.compare(at);
            }
        }
    }
}

/// What cannot come from a lock, but from a file: two holders with one token. The later one stays, and nothing is torn.
#[test]
fn a_token_has_one_holder() {
    for count in [2_u16, 100] {
        let mut lock = Lock::default();
        let lease = Lease { ends: Instant::from_micros(1_000), length_ms: 1 };
        for owner in 0..count {
            let (owner, at, mode) = (name(owner), Instant::from_micros(0), Mode::Shared);
            lock.apply(&Event::Granted {
                owner: OwnerName::new(&owner),
                token: u64::from(owner.len() as u16),
                mode,
                at,
                lease,
            });
        }
        let tokens: Vec<u64> = lock.holders().map(|holder| holder.token).collect();
        assert!(tokens.is_sorted_by(|low, high| low < high), "{tokens:?}");
        lock.apply(&Event::Extended { owner: OwnerName::new(&name(1)), token: tokens[0], lease });
        assert_eq!(lock.holders().filter(|holder| holder.token == tokens[0]).count(), 1);
        lock.apply(&Event::Broken { counter: 1_000, at: Instant::from_micros(1) });
        assert_eq!((lock.holder_count(), lock.counter()), (0, 1_000));
    }
}
