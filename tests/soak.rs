//! Everything at once: 50 clients, mixed commands, and faults one after the other, for as long as
//! `LOCKFENCE_SOAK_SECONDS` says (5 s where it is not set). Prints its figures (`--nocapture`).
//!
//! Checked throughout: the server never crashes nor wedges, a lock's tokens rise in real time, and nobody is granted a
//! lock before the end of a lease that nothing ended, unless both are SHARED, or both LIMIT and there is room. At the end: primary and replica are equal, memory came back.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

mod common;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use common::stat_of;
use lockfence_testkit::{Conn, Received, Reply, Server, ServerKind, args, cmd, server_tests, wait_until};

const CLIENTS: u64 = 50;
const LOCKS: u64 = 10;
/// The locks from this one on are asked for in all modes, those before it exclusively.
const FIRST_OF_ALL_MODES: u64 = 6;
/// Nothing may take longer: else something is stuck.
const PATIENCE: Duration = Duration::from_secs(30);
/// Leases cross restarts in whole ms of the wall clock.
const ROUNDING: Duration = Duration::from_millis(5);
/// Guarantees, "Not promised": lost data with two failovers within 30 s.
const BETWEEN_FAILOVERS: Duration = Duration::from_secs(35);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Exclusive,
    Shared,
    Limit(usize),
}

/// A confirmed grant.
#[derive(Clone, Copy)]
struct Grant {
    token: u64,
    mode: Mode,
    sent: Instant,
    told: Instant,
    /// The lease lasts at least until then; earlier once its owner has begun to end it.
    until: Instant,
}

/// What was confirmed about one lock.
#[derive(Default)]
struct Lock {
    highest: AtomicU64,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    grants: Vec<Grant>,
    /// From before a DEL or BREAK was sent until after its answer: a lease may have ended within.
    ends: Vec<(Instant, Option<Instant>)>,
}

impl Seen {
    /// Whether somebody may have ended a lease by force between the two.
    fn forced_between(&self, from: Instant, to: Instant) -> bool {
        self.ends.iter().any(|(began, over)| *began <= to && over.is_none_or(|over| over >= from))
    }

    /// How long before the end of the lease of `low` the later grant `high` was made for certain. Tokens of one lock rise
    /// with its grants: the lower one was there when the higher one was granted.
    fn overlap(&self, low: &Grant, high: &Grant) -> Option<Duration> {
        let early = low.until.saturating_duration_since(high.told);
        (early > ROUNDING && !self.forced_between(low.sent, high.told)).then_some(early)
    }

    /// What is wrong with a grant and those that were noted before, if anything is.
    fn judge(&self, grant: &Grant) -> Result<(), String> {
        for other in &self.grants {
            let (low, high) = if other.token < grant.token { (other, grant) } else { (grant, other) };
            let together = match (low.mode, high.mode) {
                (Mode::Shared, Mode::Shared) => true,
                // Counted below.
                (Mode::Limit(_), Mode::Limit(_)) => true,
                _ => false,
            };
            if !together && let Some(early) = self.overlap(low, high) {
                let (high, low) = ((high.token, high.mode), (low.token, low.mode));
                return Err(format!("{high:?} was granted {early:?} before the lease of {low:?} was over"));
            }
        }
        let later = self.grants.iter().filter(|other| other.token > grant.token);
        later.chain([grant]).try_for_each(|high| self.judge_limit(grant, high))
    }

    fn judge_limit(&self, grant: &Grant, high: &Grant) -> Result<(), String> {
        let Mode::Limit(n) = high.mode else { return Ok(()) };
        let earlier = self.grants.iter().chain([grant]).filter(|low| low.token < high.token);
        let there = earlier.filter(|low| self.overlap(low, high).is_some()).count();
        if there < n { Ok(()) } else { Err(format!("{} joined {there} others under LIMIT {n}", high.token)) }
    }
}

struct World {
    servers: [Server; 2],
    /// Which of the two is the primary.
    primary: AtomicUsize,
    locks: Vec<Lock>,
    over: AtomicBool,
    /// Set while leases may end without their owners: a flush, a failover.
    disturbed: AtomicBool,
    owners: AtomicU64,
    /// Pairs of grants that were compared.
    judged: AtomicU64,
    /// Pairs of leases that were live together.
    together: AtomicU64,
    counts: Mutex<BTreeMap<String, u64>>,
}

impl World {
    fn new(kind: ServerKind) -> Self {
        let start = || {
            Server::builder(kind)
                .arg("appendonly", "yes")
                .arg("appendfsync", "always")
                .arg("repl-backlog-size", "1mb")
                .module_args(["idle-ttl-ms", "500"])
                .start()
        };
        let servers = [start(), start()];
        servers[1].replicate_from(&servers[0]);
        servers[1].wait_in_sync(&servers[0]);
        Self {
            servers,
            primary: AtomicUsize::new(0),
            locks: (0..LOCKS).map(|_| Lock::default()).collect(),
            over: AtomicBool::new(false),
            disturbed: AtomicBool::new(false),
            owners: AtomicU64::new(0),
            judged: AtomicU64::new(0),
            together: AtomicU64::new(0),
            counts: Mutex::default(),
        }
    }

    fn primary(&self) -> &Server {
        &self.servers[self.primary.load(Ordering::SeqCst)]
    }

    fn replica(&self) -> &Server {
        &self.servers[1 - self.primary.load(Ordering::SeqCst)]
    }

    fn over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    fn count(&self, what: &str) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry(what.to_owned()).or_default() += 1;
    }

    fn seen(&self, lock: u64) -> MutexGuard<'_, Seen> {
        let lock = &self.locks[usize::try_from(lock).unwrap()];
        lock.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a grant, and judges it against the others of the lock.
    fn granted(&self, lock: u64, before: u64, grant: Grant) {
        assert!(grant.token > before, "lock{lock}: token {} after {before} was confirmed", grant.token);
        self.locks[usize::try_from(lock).unwrap()].highest.fetch_max(grant.token, Ordering::SeqCst);
        let mut seen = self.seen(lock);
        if !self.disturbed.load(Ordering::SeqCst) {
            seen.judge(&grant).unwrap_or_else(|wrong| panic!("lock{lock}: {wrong}"));
            let side_by_side =
                seen.grants.iter().filter(|other| other.told < grant.told && other.until > grant.told);
            self.together.fetch_add(side_by_side.count() as u64, Ordering::Relaxed);
            self.judged.fetch_add(seen.grants.len() as u64, Ordering::Relaxed);
        }
        let old = Instant::now().checked_sub(Duration::from_secs(5)).unwrap_or(grant.sent);
        seen.grants.retain(|grant| grant.told > old);
        seen.ends.retain(|(_, over)| over.is_none_or(|over| over > old));
        seen.grants.push(grant);
        drop(seen);
        self.count("grants");
    }

    /// From now on the lease may be over at `until`.
    fn shortened(&self, lock: u64, token: u64, until: Instant) {
        let mut seen = self.seen(lock);
        let grants = seen.grants.iter_mut().filter(|grant| grant.token == token);
        grants.for_each(|grant| grant.until = grant.until.min(until));
    }

    fn extended(&self, lock: u64, token: u64, until: Instant) {
        let mut seen = self.seen(lock);
        seen.grants.iter_mut().filter(|grant| grant.token == token).for_each(|grant| grant.until = until);
    }

    /// Ends a lease by force: `what` sends the command and gets its answer.
    fn force<R>(&self, lock: u64, what: impl FnOnce() -> R) -> R {
        let began = Instant::now();
        self.seen(lock).ends.push((began, None));
        let result = what();
        let mut seen = self.seen(lock);
        let mine = seen.ends.iter_mut().find(|(start, over)| *start == began && over.is_none());
        if let Some((_, over)) = mine {
            *over = Some(Instant::now());
        }
        drop(seen);
        result
    }

    /// Does something that ends leases all over. What was granted before says nothing afterwards.
    fn disturb(&self, what: impl FnOnce()) {
        self.disturbed.store(true, Ordering::SeqCst);
        what();
        self.forget();
        // Grants made before are still on their way to their clients' threads; none takes longer than this.
        thread::sleep(Duration::from_millis(700));
        self.forget();
        self.disturbed.store(false, Ordering::SeqCst);
    }

    fn forget(&self) {
        (0..LOCKS).for_each(|lock| self.seen(lock).grants.clear());
    }
}

/// A small generator (xorshift64*): the same seed, the same choices.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % bound
    }
}

/// One client: connects, works, and connects again when it is sent away.
fn client(world: &World, seed: u64) {
    let mut chance = Chance(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    while !world.over() {
        let Ok(mut conn) = world.primary().try_connect() else {
            thread::sleep(Duration::from_millis(5));
            continue;
        };
        while !world.over() && act(world, &mut conn, &mut chance).is_some() {}
        world.count("connections");
    }
}

/// Sends a command. `None`: the server is not the one to talk to any more, or is not there.
fn ask(conn: &mut Conn, command: Vec<Vec<u8>>) -> Option<Reply> {
    match conn.try_cmd(&command, PATIENCE) {
        Received::Reply(Reply::Error(line)) => {
            let away = ["READONLY ", "UNBLOCKED ", "LOADING ", "MASTERDOWN "];
            if away.iter().any(|code| line.starts_with(code)) { None } else { Some(Reply::Error(line)) }
        }
        Received::Reply(reply) => Some(reply),
        Received::Closed(_) => None,
        Received::Nothing => panic!("stuck: no answer to {:?}", command[0].escape_ascii().to_string()),
    }
}

fn act(world: &World, conn: &mut Conn, chance: &mut Chance) -> Option<()> {
    let lock = chance.below(LOCKS);
    let name = format!("lock{lock}");
    match chance.below(100) {
        0 => {
            world.force(lock, || ask(conn, args!["DEL", name]))?.int();
            world.count("DEL");
        }
        1 => {
            world.force(lock, || ask(conn, args!["LOCK.BREAK", name]))?.int();
            world.count("LOCK.BREAK");
        }
        2..=9 => {
            ask(conn, args!["LOCK.INFO", name, "FULL"])?.no_err();
        }
        10..=12 => {
            assert_eq!(ask(conn, args!["LOCK.RELEASE", name, "nobody"])?.int(), 0);
        }
        _ => hold(world, conn, chance, lock, &name)?,
    }
    Some(())
}

fn some_mode(chance: &mut Chance, lock: u64) -> Mode {
    if lock < FIRST_OF_ALL_MODES {
        return Mode::Exclusive;
    }
    match chance.below(10) {
        0 => Mode::Exclusive,
        1..4 => Mode::Shared,
        n => Mode::Limit(usize::try_from(n % 2).unwrap() + 1),
    }
}

/// Acquires, works, and gives back or lets go.
fn hold(world: &World, conn: &mut Conn, chance: &mut Chance, lock: u64, name: &str) -> Option<()> {
    let me = format!("owner{}", world.owners.fetch_add(1, Ordering::SeqCst));
    let ttl = Duration::from_millis(5 + chance.below(300));
    let mut acquire = args!["LOCK.ACQUIRE", name, me, ttl.as_millis()];
    let mode = some_mode(chance, lock);
    match mode {
        Mode::Exclusive => {}
        Mode::Shared => acquire.extend(args!["SHARED"]),
        Mode::Limit(n) => acquire.extend(args!["LIMIT", n]),
    }
    if chance.below(3) > 0 {
        acquire.extend(args!["WAIT", 1 + chance.below(400)]);
    }
    let before = world.locks[usize::try_from(lock).unwrap()].highest.load(Ordering::SeqCst);
    let sent = Instant::now();
    let token = match ask(conn, acquire)? {
        Reply::Nil => return Some(()),
        Reply::Error(line) if line.starts_with("LOCKLOST ") => {
            world.count("LOCKLOST");
            return Some(());
        }
        reply => reply.token(),
    };
    world.granted(lock, before, Grant { token, mode, sent, told: Instant::now(), until: sent + ttl });
    for _ in 0..chance.below(3) {
        work(world, conn, chance, lock, name, &me, token)?;
    }
    if chance.below(10) < 7 {
        world.shortened(lock, token, Instant::now());
        assert!(matches!(ask(conn, args!["LOCK.RELEASE", name, me])?, Reply::Int(0 | 1)));
    }
    Some(())
}

fn work(
    world: &World,
    conn: &mut Conn,
    chance: &mut Chance,
    lock: u64,
    name: &str,
    me: &str,
    token: u64,
) -> Option<()> {
    match chance.below(3) {
        0 => {
            let ttl = Duration::from_millis(1 + chance.below(200));
            let sent = Instant::now();
            world.shortened(lock, token, sent + ttl);
            if ask(conn, args!["LOCK.EXTEND", name, me, ttl.as_millis()])?.int() == 1 {
                world.extended(lock, token, sent + ttl);
            }
        }
        1 => {
            let reply = ask(conn, args!["FENCE.WRITE", name, token, format!("data{lock}"), token])?;
            if reply.is_err() {
                reply.assert_err_prefix("FENCED ");
                world.count("FENCED");
            }
        }
        _ => {
            let reply = ask(conn, args!["FENCE.CHECK", name, token])?;
            if reply.is_err() {
                reply.assert_err_prefix("FENCED ");
            }
        }
    }
    Some(())
}

/// One fault after the other, until the time is over.
fn faults(world: &World, until: Instant) {
    let mut chance = Chance(7);
    let mut failed_over = Instant::now().checked_sub(BETWEEN_FAILOVERS).unwrap_or_else(Instant::now);
    let mut step = 0;
    while Instant::now() < until {
        thread::sleep(Duration::from_millis(200));
        let primary = world.primary();
        let mut conn = primary.connect();
        let fault = if step < 7 { step } else { chance.below(7) };
        step += 1;
        match fault {
            0 => {
                primary.kill9();
                primary.restart();
                world.count("kill -9");
            }
            1 => {
                let _ = cmd!(conn, "BGREWRITEAOF"); // one may be under way
                world.count("BGREWRITEAOF");
            }
            2 => {
                cmd!(conn, "DEBUG", "RELOAD").ok();
                world.count("DEBUG RELOAD");
            }
            3 => {
                world.disturb(|| cmd!(conn, "FLUSHALL").ok());
                world.count("FLUSHALL");
            }
            4 if failed_over.elapsed() >= BETWEEN_FAILOVERS => {
                failed_over = Instant::now();
                world.disturb(|| fail_over(world));
                world.count("failover");
            }
            5 => {
                cmd!(conn, "CLIENT", "PAUSE", 150, "WRITE").ok();
                world.count("pause");
            }
            _ => {
                primary.pause();
                thread::sleep(Duration::from_millis(150)); // the fault itself
                primary.resume();
                world.count("SIGSTOP");
            }
        }
    }
}

/// The primary is killed and the replica promoted, with what it has got. The old one comes back as its replica.
fn fail_over(world: &World) {
    let (old, new) = (world.primary(), world.replica());
    new.wait_in_sync(old); // it must have followed since the last restart; the tail is lost all the same
    old.kill9();
    new.promote();
    world.primary.store(1 - world.primary.load(Ordering::SeqCst), Ordering::SeqCst);
    old.restart();
    old.replicate_from(new);
}

fn finish(world: &World, memory_before: u64) {
    let (primary, replica) = (world.primary(), world.replica());
    let mut conn = primary.connect();
    wait_until("all queues to be empty", PATIENCE, || stat_of(primary, "waiters"), |left| *left == 0);
    for lock in 0..LOCKS {
        cmd!(conn, "LOCK.BREAK", format!("lock{lock}")).int();
        let highest = world.locks[usize::try_from(lock).unwrap()].highest.load(Ordering::SeqCst);
        assert!(cmd!(conn, "LOCK.ACQUIRE", format!("lock{lock}"), "last", 1).token() > highest);
    }
    replica.wait_in_sync(primary);
    assert_eq!(primary.digest(), replica.digest(), "primary and replica differ");
    let locks = || cmd!(conn, "SCAN", 0, "COUNT", 10_000, "TYPE", "lockfence").items()[1].items().len();
    wait_until("idle records to go", PATIENCE, locks, |left| *left == 0);
    replica.wait_in_sync(primary);
    assert_eq!(primary.digest(), replica.digest(), "primary and replica differ");
    // The server's own pools (clients, replication buffers) shrink in its own time; a leak of the module's grows with
    // every grant.
    let used = || primary.used_memory();
    let after = wait_until("memory to come back", PATIENCE, used, |used| *used < memory_before + 8_000_000);
    println!("used_memory {memory_before} at the start, {after} at the end");
}

server_tests! {
    /// G1, G2, G5, G6, G7, all at once.
    fn tokens_rise_and_leases_exclude_through_every_fault(kind: ServerKind) {
        let seconds = std::env::var("LOCKFENCE_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
        let length = Duration::from_secs(seconds.unwrap_or(5));
        let world = World::new(kind);
        let memory_before = world.primary().used_memory();
        let began = Instant::now();
        thread::scope(|scope| {
            for seed in 1..=CLIENTS {
                let world = &world;
                scope.spawn(move || {
                    let ended = catch_unwind(AssertUnwindSafe(|| client(world, seed)));
                    world.over.store(true, Ordering::SeqCst);
                    ended.unwrap_or_else(|panic| resume_unwind(panic));
                });
            }
            let ended = catch_unwind(AssertUnwindSafe(|| {
                let until = began + length;
                faults(&world, until);
            }));
            world.over.store(true, Ordering::SeqCst);
            ended.unwrap_or_else(|panic| resume_unwind(panic));
        });
        let took = began.elapsed().as_secs_f64();
        let counts = world.counts.lock().unwrap().clone();
        let grants = counts.get("grants").copied().unwrap_or(0);
        let judged = world.judged.load(Ordering::Relaxed);
        let together = world.together.load(Ordering::Relaxed);
        println!(
            "{kind}: {took:.1} s, {CLIENTS} clients, {LOCKS} locks, {judged} pairs judged, {together} of them live \
             together: {counts:?}"
        );
        assert!(grants > 100 && together > 10, "no load");
        finish(&world, memory_before);
        for server in &world.servers {
            let log = server.log();
            let crash = ["ASSERTION FAILED", "BUG REPORT", "panicked at"];
            assert!(!crash.iter().any(|line| log.contains(line)), "{server} crashed:\n{}", server.log_tail());
        }
    }
}
