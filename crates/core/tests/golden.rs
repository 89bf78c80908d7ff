//! Bytes of each released format version, as they lie in somebody's RDB file, AOF or backup.
//!
//! **They are for ever.** What version 1 wrote must be read by every later lockfence, to the same meaning: a test here
//! that fails says that the code is wrong, never that its bytes want replacing. A new version gets bytes of its own,
//! beside these.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

use lockfence_core::clock::{Instant, Now, Wall};
use lockfence_core::codec::{
    Change, Corrupt, Log, Marks, VERSION, read_fence, read_issuer, read_lock, read_log, write_fence,
    write_issuer, write_lock,
};
use lockfence_core::event::{Event, Lease};
use lockfence_core::fence::Fence;
use lockfence_core::ids::{Mode, Token};
use lockfence_core::lock::Lock;
use lockfence_core::owner::OwnerName;
use lockfence_core::token::{Floor, Issuer, TokenSource};

/// The moment of all of this: 5 s on the process's clock, 1,700,000,000 s since 1970.
const NOW: Now =
    Now { mono: Instant::from_micros(5_000_000), wall: Wall::from_micros(1_700_000_000_000_000) };
const TOKEN: u64 = 1_700_000_000_000_001;

fn lease(length_ms: u64) -> Lease {
    Lease { ends: NOW.mono.plus_ms(length_ms), length_ms }
}

fn granted(owner: &[u8], token: u64, mode: Mode, length_ms: u64) -> Event<'_> {
    Event::Granted { owner: OwnerName::new(owner), token, mode, at: NOW.mono, lease: lease(length_ms) }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: String = hex.split_whitespace().collect();
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

fn lock_of(events: &[Event<'_>]) -> Lock {
    let mut lock = Lock::default();
    events.iter().for_each(|event| lock.apply(event));
    lock
}

#[track_caller]
fn lock_is(golden: &str, lock: &Lock) {
    let mut out = Vec::new();
    write_lock(&mut out, lock, NOW);
    assert_eq!(hex(&out), hex(&bytes(golden)), "what is written");
    assert_eq!(&read_lock(&bytes(golden), NOW).unwrap(), lock, "what is read");
}

#[track_caller]
fn event_is(golden: &str, event: &Event<'_>) {
    let mut log = Log::default();
    log.push(event, NOW);
    change_is(golden, &log, Change::Lock(*event));
}

#[track_caller]
fn change_is(golden: &str, log: &Log, change: Change<'_>) {
    assert_eq!(hex(log.bytes()), hex(&bytes(golden)), "what is written");
    assert_eq!(read_log(&bytes(golden), NOW).unwrap(), [change], "what is read");
}

#[test]
fn version_1_a_lock_held_exclusively() {
    let lock = lock_of(&[granted(b"owner", TOKEN, Mode::Exclusive, 30_000)]);
    lock_is(
        "018180f9c0c1c482 03018087a0cfc1c4 820301056f776e65 728180f9c0c1c482 03008080f9c0c1c4 \
         82038087a0cfc1c4 8203b0ea01",
        &lock,
    );
}

#[test]
fn version_1_a_lock_that_several_hold() {
    let shared = lock_of(&[
        granted(b"r1", TOKEN, Mode::Shared, 1),
        granted(b"\0\xff", TOKEN + 1, Mode::Shared, 31_536_000_000),
    ]);
    lock_is(
        "018280f9c0c1c482 030280c0c8a1aada 8903020272318180 f9c0c1c482030180 80f9c0c1c48203e8 \
         87f9c0c1c4820301 0200ff8280f9c0c1 c48203018080f9c0 c1c4820380c0c8a1 aada890380d8c4bd \
         75",
        &shared,
    );
    let limited = lock_of(&[
        granted(b"a", TOKEN, Mode::Limit(3), 1_000),
        granted(b"b", TOKEN + 1, Mode::Limit(1_000_000), 1_000),
    ]);
    lock_is(
        "018280f9c0c1c482 0302c084b6c1c1c4 82030201618180f9 c0c1c48203020380 80f9c0c1c48203c0 \
         84b6c1c1c48203e8 0701628280f9c0c1 c4820302c0843d80 80f9c0c1c48203c0 84b6c1c1c48203e8 \
         07",
        &limited,
    );
}

#[test]
fn version_1_a_free_lock() {
    let at = NOW.mono.minus_us(1_000_000);
    let lock = lock_of(&[
        granted(b"owner", TOKEN, Mode::Exclusive, 1),
        Event::Ended { owner: OwnerName::new(b"owner"), at },
    ]);
    lock_is("018180f9c0c1c482 0301c0fbbbc0c1c4 820300", &lock);
}

#[test]
fn version_1_a_fence() {
    let golden = bytes("018180f9c0c1c482 03");
    let fence = Fence::new(Token::new(TOKEN).unwrap());
    let mut out = Vec::new();
    write_fence(&mut out, fence);
    assert_eq!(hex(&out), hex(&golden));
    assert_eq!(read_fence(&golden).unwrap(), fence);
}

#[test]
fn version_1_what_a_server_knows_of_tokens() {
    let golden = bytes("018087a0cfc1c482 038087a0cfc1c482 038080f9c0c1c482 03");
    let mut issuer = Issuer::new(TokenSource::Clock);
    issuer.raise_floor(NOW);
    issuer.issued(1_700_000_030_000_000, NOW);
    let mut out = Vec::new();
    write_issuer(&mut out, &issuer);
    assert_eq!(hex(&out), hex(&golden));
    let floor = Floor { token: 1_700_000_030_000_000, raised_at: 1_700_000_000_000_000 };
    assert_eq!(read_issuer(&golden).unwrap(), (1_700_000_030_000_000, floor));
}

#[test]
fn version_1_each_change() {
    let at = NOW.mono;
    event_is(
        "0108056f776e6572 01401e18240a0600 0101b0ea01",
        &granted(b"owner", TOKEN, Mode::Exclusive, 30_000),
    );
    event_is("0108056f776e6572 01401e18240a0601 0101b0ea01", &granted(b"owner", TOKEN, Mode::Shared, 30_000));
    event_is(
        "0108056f776e6572 01401e18240a0602 030101b0ea01",
        &granted(b"owner", TOKEN, Mode::Limit(3), 30_000),
    );
    event_is(
        "0108056f776e6572 0700000000000000 f2fff18183898506 01b0ea01",
        &granted(b"owner", 7, Mode::Exclusive, 30_000),
    );
    let half_over = Lease { ends: at.plus_ms(500), length_ms: 1_000 };
    event_is(
        "0108056f776e6572 01401e18240a0600 01a0c297c1c1c482 03e807",
        &Event::Granted {
            owner: OwnerName::new(b"owner"),
            token: TOKEN,
            mode: Mode::Exclusive,
            at,
            lease: half_over,
        },
    );
    event_is(
        "0109056f776e6572 01401e18240a06c0 84b6c1c1c48203e8 07",
        &Event::Extended { owner: OwnerName::new(b"owner"), token: TOKEN, lease: lease(1_000) },
    );
    event_is("01048180f9c0c1c4 82038080f9c0c1c4 8203", &Event::Broken { counter: TOKEN, at });
    event_is("010b8180f9c0c1c4 82038080f9c0c1c4 8203", &Event::BrokenUpTo { max: TOKEN, at });
    let lock = lock_of(&[granted(b"owner", TOKEN, Mode::Exclusive, 30_000)]);
    let mut log = Log::default();
    log.push_snapshot(&lock, NOW);
    change_is(
        "0105018180f9c0c1 c48203018087a0cf c1c4820301056f77 6e65728180f9c0c1 c48203008080f9c0 \
         c1c482038087a0cf c1c48203b0ea01",
        &log,
        Change::Snapshot(lock),
    );
}

#[test]
fn version_1_each_form_of_a_name() {
    for (name, golden) in [
        (b"owner".as_slice(), "010a056f776e6572 8080f9c0c1c48203"),
        (b"9f3c51d0a72b71e88c04d1f6a0b3c5e7", "010a189f3c51d0a7 2b71e88c04d1f6a0 b3c5e78080f9c0c1 c48203"),
        (b"0123456789abcdef00", "010a110123456789 abcdef008080f9c0 c1c48203"),
        (
            b"c56a4180-65aa-42ec-a945-5fd21dec0538",
            "010a19c56a418065 aa42eca9455fd21d ec05388080f9c0c1 c48203",
        ),
        (b"worker-17/thread2", "010a1a11776f726b 65722d31372f7468 72656164328080f9 c0c1c48203"),
    ] {
        event_is(golden, &Event::Ended { owner: OwnerName::new(name), at: NOW.mono });
    }
}

#[test]
fn version_1_what_else_a_log_says() {
    let marks = |expires_at_ms| Marks { token: TOKEN, expires_at_ms };
    let floor = Floor { token: TOKEN, raised_at: 1_700_000_000_000_000 };
    let mut log = Log::default();
    log.push_fence(marks(None));
    log.push_fence(marks(Some(1_700_000_060_000)));
    log.push_floor(floor);
    let golden = bytes(
        "01068180f9c0c1c4 820300068180f9c0 c1c48203e0a499ff bc31078180f9c0c1 c482038080f9c0c1 \
         c48203",
    );
    assert_eq!(hex(log.bytes()), hex(&golden));
    let changes =
        [Change::Fence(marks(None)), Change::Fence(marks(Some(1_700_000_060_000))), Change::Floor(floor)];
    assert_eq!(read_log(&golden, NOW).unwrap(), changes);
}

#[test]
fn a_newer_version_is_refused_by_its_number() {
    let newer = [VERSION + 1, 1, 2, 3];
    let refused = Corrupt::Version(VERSION + 1);
    assert_eq!(read_lock(&newer, NOW), Err(refused));
    assert_eq!(read_log(&newer, NOW), Err(refused));
    assert_eq!(read_fence(&newer), Err(refused));
    assert_eq!(read_issuer(&newer), Err(refused));
    assert_eq!(refused.to_string(), "format version 2, but this lockfence reads up to version 1: upgrade it");
    let snapshot = [VERSION, 5, VERSION + 1];
    assert_eq!(read_log(&snapshot, NOW), Err(refused), "a record within a log has a version of its own");
}
