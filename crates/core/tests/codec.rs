//! Records and logs come back as they went, and bytes that are anything else are refused or stay within all bounds,
//! with no more memory than they themselves take. Whoever may RESTORE a key may send any bytes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use lockfence_core::clock::{Instant, Now, Wall};
use lockfence_core::codec::{
    Change, Corrupt, Log, Marks, put_bytes, put_number, read_fence, read_issuer, read_lock, read_log,
    write_fence, write_lock,
};
use lockfence_core::event::{Event, Lease};
use lockfence_core::fence::Fence;
use lockfence_core::ids::{Mode, Token};
use lockfence_core::limits::{HOLDERS_MAX, OWNER_BYTES_MAX, TOKEN_MAX, TTL_MS_MAX};
use lockfence_core::lock::Lock;
use lockfence_core::owner::OwnerName;
use lockfence_core::token::Floor;
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::test_runner::{Config, RngSeed};
use proptest::{prop_assert_eq, proptest};

const NOW: Now =
    Now { mono: Instant::from_micros(5_000_000), wall: Wall::from_micros(1_700_000_000_000_000) };
/// The same moment, on a process whose clock began at another time.
const ELSEWHERE: Now = Now { mono: Instant::from_micros(-77), ..NOW };

/// Counts the bytes that the thread has asked for.
struct Counting;

thread_local! {
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: all of it is the system's allocator; beside it, a number of this thread is changed, which allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.with(|allocated| allocated.set(allocated.get() + layout.size()));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Reads `bytes` as everything that they could be. A holder takes 7 bytes at least where it is written, and about 120
/// where it is read; a change takes 2 and 150; what grows is copied once or twice.
fn read_everything(bytes: &[u8]) -> bool {
    let before = ALLOCATED.get();
    let lock = read_lock(bytes, NOW);
    let log = read_log(bytes, NOW);
    let (fence, issuer) = (read_fence(bytes), read_issuer(bytes));
    let taken = ALLOCATED.get() - before;
    assert!(taken <= 1_000 + 400 * bytes.len(), "{taken} bytes for {} bytes {bytes:02x?}", bytes.len());
    if let Ok(lock) = &lock {
        within_bounds(lock);
    }
    lock.is_ok() || log.is_ok() || fence.is_ok() || issuer.is_ok()
}

fn within_bounds(lock: &Lock) {
    assert!((1..=TOKEN_MAX).contains(&lock.counter()));
    for holder in lock.holders() {
        assert!((1..=OWNER_BYTES_MAX).contains(&holder.owner.bytes().len()));
        assert!((1..=lock.counter()).contains(&holder.token));
        assert!((1..=TTL_MS_MAX).contains(&holder.lease.length_ms));
        assert!(
            holder.lease.ends >= NOW.mono && holder.lease.ends <= NOW.mono.plus_ms(holder.lease.length_ms)
        );
        assert!(holder.since <= NOW.mono);
        assert!(holder.mode.same_kind(lock.mode()));
    }
    let alone = lock.holders().any(|holder| holder.mode == Mode::Exclusive);
    assert!(!alone || lock.holder_count() == 1);
}

/// Names of all forms in which a record keeps them.
fn owner() -> impl Strategy<Value = Vec<u8>> {
    let hex = |digits| vec(prop_oneof![b'0'..=b'9', b'a'..=b'f'], digits);
    let uuid = hex(32..33).prop_map(|mut digits| {
        [8, 13, 18, 23].into_iter().for_each(|at| digits.insert(at, b'-'));
        digits
    });
    prop_oneof![
        vec(any::<u8>(), 1..8),
        vec(any::<u8>(), 15..40),
        vec(any::<u8>(), OWNER_BYTES_MAX),
        hex(15..40),
        uuid
    ]
}

fn token() -> impl Strategy<Value = u64> {
    prop_oneof![1..200_u64, 1..=TOKEN_MAX, Just(TOKEN_MAX)]
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared), (1..=HOLDERS_MAX).prop_map(Mode::Limit)]
}

/// A lease that has `left` parts of 256 left.
fn lease() -> impl Strategy<Value = Lease> {
    (prop_oneof![1..1_000_u64, 1..=TTL_MS_MAX, Just(TTL_MS_MAX)], any::<u8>()).prop_map(
        |(length_ms, left)| Lease {
            ends: NOW.mono.plus_us(length_ms * 1000 / 256 * u64::from(left)),
            length_ms,
        },
    )
}

fn past() -> impl Strategy<Value = Instant> {
    prop_oneof![Just(0), 1..100_000_000_000_u64].prop_map(|us| NOW.mono.minus_us(us))
}

/// An event that owns what it names.
#[derive(Clone, Debug)]
enum Happened {
    Granted(Vec<u8>, u64, Mode, Instant, Lease),
    Extended(Vec<u8>, u64, Lease),
    Ended(Vec<u8>, Instant),
    Broken(u64, Instant),
    BrokenUpTo(u64, Instant),
}

impl Happened {
    fn event(&self) -> Event<'_> {
        match self {
            Self::Granted(owner, token, mode, at, lease) => {
                let owner = OwnerName::new(owner);
                Event::Granted { owner, token: *token, mode: *mode, at: *at, lease: *lease }
            }
            Self::Extended(owner, token, lease) => {
                Event::Extended { owner: OwnerName::new(owner), token: *token, lease: *lease }
            }
            Self::Ended(owner, at) => Event::Ended { owner: OwnerName::new(owner), at: *at },
            Self::BrokenUpTo(max, at) => Event::BrokenUpTo { max: *max, at: *at },
            Self::Broken(counter, at) => Event::Broken { counter: *counter, at: *at },
        }
    }
}

fn happened() -> impl Strategy<Value = Happened> {
    prop_oneof![
        (owner(), token(), mode(), past(), lease())
            .prop_map(|(owner, token, mode, at, lease)| Happened::Granted(owner, token, mode, at, lease)),
        (owner(), token(), lease()).prop_map(|(owner, token, lease)| Happened::Extended(owner, token, lease)),
        (owner(), past()).prop_map(|(owner, at)| Happened::Ended(owner, at)),
        (token(), past()).prop_map(|(counter, at)| Happened::Broken(counter, at)),
        (token(), past()).prop_map(|(max, at)| Happened::BrokenUpTo(max, at)),
    ]
}

/// A lock with some holders, all of one mode, and perhaps none left.
fn lock() -> impl Strategy<Value = Lock> {
    let holders = vec((owner(), token(), past(), lease()), 0..6);
    (holders, mode(), 1..=HOLDERS_MAX, past()).prop_map(|(holders, mode, n, free_since)| {
        let mut lock = Lock::default();
        lock.apply(&Happened::Granted(vec![0], 1, mode, free_since, lease_of_1_ms()).event());
        lock.apply(&Event::Ended { owner: OwnerName::new(&[0]), at: free_since });
        for (number, (owner, token, since, lease)) in (1..).zip(holders) {
            // Each LIMIT has an n of its own.
            let mode = if let Mode::Limit(_) = mode { Mode::Limit(n / number + 1) } else { mode };
            lock.apply(&Happened::Granted(owner, token, mode, since, lease).event());
        }
        lock
    })
}

const fn lease_of_1_ms() -> Lease {
    Lease { ends: NOW.mono, length_ms: 1 }
}

fn written(lock: &Lock, now: Now) -> Vec<u8> {
    let mut out = Vec::new();
    write_lock(&mut out, lock, now);
    out
}

fn config() -> Config {
    Config { cases: 200, rng_seed: RngSeed::Fixed(2), failure_persistence: None, ..Config::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_record_comes_back_as_it_went(lock in lock()) {
        let bytes = written(&lock, NOW);
        prop_assert_eq!(&read_lock(&bytes, NOW).unwrap(), &lock);
        // Where the clock began makes no difference to what is written.
        prop_assert_eq!(written(&read_lock(&bytes, ELSEWHERE).unwrap(), ELSEWHERE), bytes);
    }

    #[test]
    fn a_log_comes_back_as_it_went(
        events in vec(happened(), 1..6), snapshot in lock(), marks in (token(), any::<u32>()), floor in token(),
    ) {
        let marks = Marks { token: marks.0, expires_at_ms: Some(marks.1.into()).filter(|at| *at > 0) };
        let floor = Floor { token: floor, raised_at: NOW.wall.micros() };
        let mut log = Log::default();
        let mut expected: Vec<Change<'_>> = events.iter().map(|event| Change::Lock(event.event())).collect();
        events.iter().for_each(|event| log.push(&event.event(), NOW));
        log.push_snapshot(&snapshot, NOW);
        log.push_fence(marks);
        log.push_floor(floor);
        expected.extend([Change::Snapshot(snapshot), Change::Fence(marks), Change::Floor(floor)]);
        prop_assert_eq!(read_log(log.bytes(), NOW).unwrap(), expected);
    }

    #[test]
    fn any_bytes_can_be_read(bytes in vec(any::<u8>(), 0..200)) {
        read_everything(&bytes);
        // Most fail at the first byte: a version lets them in.
        read_everything(&[&[1], bytes.as_slice()].concat());
    }

    #[test]
    fn time_that_is_written_stays_within_bounds(lock in lock(), wall in any::<u64>(), mono in any::<i64>()) {
        let bytes = written(&lock, NOW);
        let now = Now { mono: Instant::from_micros(mono), wall: Wall::from_micros(wall) };
        for holder in read_lock(&bytes, now).unwrap().holders() {
            let longest = now.mono.plus_ms(holder.lease.length_ms);
            prop_assert_eq!(holder.lease.ends.clamp(now.mono, longest), holder.lease.ends);
        }
    }
}

#[test]
fn a_reader_whose_clock_is_behind_keeps_to_what_can_be() {
    let mut lock = Lock::default();
    let lease = Lease { ends: NOW.mono.plus_ms(500), length_ms: 1_000 };
    lock.apply(&Event::Granted {
        owner: OwnerName::new(b"a"),
        token: 7,
        mode: Mode::Exclusive,
        at: NOW.mono,
        lease,
    });
    let bytes = written(&lock, NOW);
    let read_at = |wall_us: u64| {
        let now = Now { wall: Wall::from_micros(wall_us), ..NOW };
        let lock = read_lock(&bytes, now).unwrap();
        let holder = lock.holders().next().unwrap();
        (NOW.mono.since_us(holder.since), holder.lease.ends.since_us(NOW.mono))
    };
    let written_at = NOW.wall.micros();
    assert_eq!(read_at(written_at), (0, 500_000));
    assert_eq!(read_at(written_at + 100_000), (100_000, 400_000));
    assert_eq!(read_at(written_at + 500_000), (500_000, 0));
    assert_eq!(read_at(written_at + 900_000), (900_000, 0), "a lease has no less than nothing left");
    assert_eq!(read_at(written_at - 100_000), (0, 600_000), "nothing has begun later than now");
    assert_eq!(read_at(written_at - 3_600_000_000), (0, 1_000_000), "nor has a lease more left than it had");
}

/// G3: a lease that has ended is never revived, not by a reader whose clock was set back either.
#[test]
fn a_lease_that_is_over_is_over_for_every_reader() {
    let lease = Lease { ends: NOW.mono.plus_ms(500), length_ms: 1_000 };
    let granted = |owner| Happened::Granted(owner, 7, Mode::Exclusive, NOW.mono, lease);
    let mut lock = Lock::default();
    lock.apply(&granted(b"a".to_vec()).event());
    for (passed_ms, is_over) in [(499, false), (500, true), (501, true), (3_600_000, true)] {
        let later = Now {
            mono: NOW.mono.plus_ms(passed_ms),
            wall: Wall::from_micros(NOW.wall.micros() + passed_ms * 1000),
        };
        let bytes = written(&lock, later);
        for behind_us in [0, 1, 100_000, 3_600_000_000, later.wall.micros()] {
            let reader = Now { wall: Wall::from_micros(later.wall.micros() - behind_us), ..later };
            let read = read_lock(&bytes, reader).unwrap();
            assert_eq!(read.live_count(later.mono), u64::from(!is_over), "{passed_ms} ms, {behind_us} us");
        }
    }
}

/// One of everything that is written.
fn samples() -> [Vec<u8>; 4] {
    let granted = |owner, token, mode| Happened::Granted(owner, token, mode, NOW.mono, lease_of_1_ms());
    let mut shared = Lock::default();
    for number in 1..5_u8 {
        shared.apply(&granted(vec![number; 30], u64::from(number), Mode::Limit(u32::from(number))).event());
    }
    let mut exclusive = Lock::default();
    exclusive.apply(&granted(b"owner".to_vec(), TOKEN_MAX, Mode::Exclusive).event());
    let mut log = Log::default();
    log.push(&granted(b"owner".to_vec(), TOKEN_MAX, Mode::Limit(7)).event(), NOW);
    log.push(&Event::Extended { owner: OwnerName::new(b"owner"), token: 300, lease: lease_of_1_ms() }, NOW);
    log.push(&Event::Ended { owner: OwnerName::new(b"owner"), at: NOW.mono }, NOW);
    log.push(&Event::Broken { counter: 300, at: NOW.mono }, NOW);
    log.push_snapshot(&shared, NOW);
    log.push_fence(Marks { token: 300, expires_at_ms: Some(1) });
    log.push_floor(Floor { token: 300, raised_at: 1 });
    let mut fence = Vec::new();
    write_fence(&mut fence, Fence::new(Token::MAX));
    [written(&shared, NOW), written(&exclusive, NOW), log.bytes().to_vec(), fence]
}

#[test]
fn bytes_that_are_cut_short_do_no_harm() {
    for sample in samples() {
        assert!(read_everything(&sample));
        for length in 0..sample.len() {
            read_everything(&sample[..length]);
        }
        let longer = [sample.as_slice(), &[0]].concat();
        assert!(!read_everything(&longer), "a byte more is one too many");
    }
}

#[test]
fn what_is_cut_short_is_refused() {
    let [shared, exclusive, log, fence] = samples();
    for record in [shared, exclusive] {
        for length in 0..record.len() {
            assert_eq!(read_lock(&record[..length], NOW), Err(Corrupt::Truncated));
        }
    }
    for length in 0..fence.len() {
        assert_eq!(read_fence(&fence[..length]), Err(Corrupt::Truncated));
    }
    log_is_read_whole_or_not_at_all(&log);
}

fn log_is_read_whole_or_not_at_all(log: &[u8]) {
    let whole = read_log(log, NOW).unwrap();
    for length in 1..log.len() {
        // Cut between two changes it is a shorter log; nothing else can be told from that.
        if let Ok(changes) = read_log(&log[..length], NOW) {
            assert_eq!(changes, whole[..changes.len()]);
        }
    }
    assert_eq!(read_log(&[], NOW), Err(Corrupt::Truncated));
}

#[test]
fn every_byte_may_be_wrong() {
    for mut sample in samples() {
        for at in 0..sample.len() {
            let right = sample[at];
            // All values in the small numbers; in the middle of long names each bit.
            let wrong: Vec<u8> = if sample.len() < 100 {
                (0..=255).collect()
            } else {
                (0..8).map(|bit| right ^ (1 << bit)).collect()
            };
            for wrong in wrong {
                sample[at] = wrong;
                read_everything(&sample);
            }
            sample[at] = right;
        }
    }
}

#[test]
fn lengths_are_believed_no_further_than_the_bytes_go() {
    for length in [513, u64::from(u32::MAX), 1 << 60, u64::MAX] {
        let mut holders = vec![1];
        for number in [9, 1, NOW.wall.micros(), length] {
            put_number(&mut holders, number);
        }
        assert!(!read_everything(&holders), "{length} holders");
        let mut owner = vec![1, 10, 26];
        put_number(&mut owner, length);
        read_everything(&owner);
        assert!(read_log(&owner, NOW).is_err(), "an owner of {length} bytes");
        let mut short = vec![1, 10, 26];
        put_number(&mut short, length);
        short.extend([b'x'; 600]);
        read_everything(&short);
        assert!(read_log(&short, NOW).is_err(), "an owner of {length} bytes, 600 of which are there");
    }
    assert!(!read_everything(&[&[1][..], &[0xff; 11]].concat()), "a number of more than 64 bits");
}

/// A record with these shared holders: the numbers in their names, and their tokens.
fn shared_by(holders: &[(u64, u64)]) -> Vec<u8> {
    let mut out = vec![1];
    for number in [TOKEN_MAX, 1, NOW.wall.micros(), holders.len() as u64] {
        put_number(&mut out, number);
    }
    for (name, token) in holders {
        // Every third name is one that does not pack.
        let owner = format!("{name}{}", if name % 3 == 0 { ": a name that does not pack" } else { "" });
        put_bytes(&mut out, owner.as_bytes());
        put_number(&mut out, *token);
        out.push(1);
        put_number(&mut out, NOW.wall.micros());
        put_number(&mut out, NOW.wall.micros() + token * 7_000_000 % 1_000_000);
        put_number(&mut out, 1_000);
    }
    out
}

/// A few holders are checked in another way than many.
#[test]
fn holders_are_read_in_any_order_and_none_of_them_twice() {
    for count in [2_u64, 64, 65, 1_000] {
        let in_order: Vec<(u64, u64)> = (1..=count).map(|n| (n * 7_919 % 10_007, n)).collect();
        let lock = read_lock(&shared_by(&in_order), NOW).unwrap();
        assert_eq!(lock.holder_count() as u64, count);
        assert!(lock.holders().map(|holder| holder.token).eq(1..=count));
        let mut mixed = in_order.clone();
        mixed.sort_unstable();
        assert_eq!(read_lock(&shared_by(&mixed), NOW).unwrap(), lock);
        let last = mixed.len() - 1;
        for (at, with) in [(0, last), (last, 0), (last, last - 1)] {
            let (mut one_name, mut one_token) = (mixed.clone(), mixed.clone());
            one_name[at].0 = mixed[with].0;
            one_token[at].1 = mixed[with].1;
            assert_eq!(read_lock(&shared_by(&one_name), NOW), Err(Corrupt::Twice), "{count}");
            assert_eq!(read_lock(&shared_by(&one_token), NOW), Err(Corrupt::Twice), "{count}");
        }
    }
}

#[test]
fn values_outside_their_bounds_are_refused() {
    let holder = |owner: &[u8], token: u64, mode: &[u8], length_ms: u64| {
        let mut out = Vec::new();
        put_bytes(&mut out, owner);
        put_number(&mut out, token);
        out.extend(mode);
        put_number(&mut out, NOW.wall.micros());
        put_number(&mut out, NOW.wall.micros());
        put_number(&mut out, length_ms);
        out
    };
    let record = |counter: u64, holders: &[Vec<u8>]| {
        let mut out = vec![1];
        for number in [counter, 1, NOW.wall.micros(), holders.len() as u64] {
            put_number(&mut out, number);
        }
        out.extend(holders.concat());
        read_lock(&out, NOW).map(drop)
    };
    let fine = || holder(b"a", 7, &[0], 1);
    let shared = |owner: &[u8]| holder(owner, u64::from(b'h' - owner[0]), &[1], 1);
    assert_eq!(record(7, &[fine()]), Ok(()));
    assert_eq!(record(7, &[shared(b"a"), shared(b"b")]), Ok(()));
    let table = [
        ("counter", record(0, &[])),
        ("counter", record(TOKEN_MAX + 1, &[])),
        ("token", record(6, &[fine()])),
        ("token", record(7, &[holder(b"a", 0, &[0], 1)])),
        ("owner", record(7, &[holder(b"", 7, &[0], 1)])),
        ("length", record(7, &[holder(&[b'a'; 513], 7, &[0], 1)])),
        ("mode", record(7, &[holder(b"a", 7, &[3], 1)])),
        ("mode", record(7, &[fine(), holder(b"b", 6, &[0], 1)])),
        ("mode", record(7, &[shared(b"a"), holder(b"b", 6, &[2, 1], 1)])),
        ("limit", record(7, &[holder(b"a", 7, &[2, 0], 1)])),
        ("limit", record(7, &[holder(b"a", 7, &[2, 0xc1, 0x84, 0x3d], 1)])),
        ("lease", record(7, &[holder(b"a", 7, &[0], 0)])),
        ("lease", record(7, &[holder(b"a", 7, &[0], TTL_MS_MAX + 1)])),
        ("change", read_log(&[1, 0], NOW).map(drop)),
        // Tags that have had another form: to be refused for ever, not misread.
        ("change", read_log(&[1, 1], NOW).map(drop)),
        ("change", read_log(&[1, 2], NOW).map(drop)),
        ("change", read_log(&[1, 3], NOW).map(drop)),
        ("change", read_log(&[1, 12], NOW).map(drop)),
        ("token", read_log(&[1, 11, 0, 0], NOW).map(drop)),
        ("owner", read_log(&[1, 10, 0], NOW).map(drop)),
        ("owner", read_log(&[1, 10, 27], NOW).map(drop)),
        // Names that a shorter form would hold: no name has two.
        ("owner", read_log(&[1, 10, 26, 0], NOW).map(drop)),
        ("owner", read_log(&[1, 10, 26, 1, b'a'], NOW).map(drop)),
        ("owner", read_log(&[&[1, 10, 26, 32][..], &[b'a'; 32]].concat(), NOW).map(drop)),
        ("length", read_log(&[1, 10, 26, 0x81, 4], NOW).map(drop)),
        ("token", read_log(&[1, 4, 0, 0], NOW).map(drop)),
        ("counter", read_fence(&[1, 0]).map(drop)),
    ];
    for (number, (what, refused)) in table.into_iter().enumerate() {
        assert_eq!(refused, Err(Corrupt::OutOfBounds(what)), "row {number}");
    }
    assert_eq!(record(7, &[shared(b"a"), holder(b"a", 6, &[1], 1)]), Err(Corrupt::Twice));
    assert_eq!(record(7, &[shared(b"a"), holder(b"b", 7, &[1], 1)]), Err(Corrupt::Twice));
    assert_eq!(read_lock(&[], NOW), Err(Corrupt::Truncated));
    assert_eq!(read_fence(&[1, 7, 7]), Err(Corrupt::Trailing));
}
