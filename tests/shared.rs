//! SHARED and LIMIT n: several holders of one lock, each with a lease and a token of its own.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{LONG_MS, SOON, info, number, stat_of, wait_queue};
use lockfence_testkit::{Conn, Reply, Server, ServerKind, ToArg, args, cmd, server_tests, wait_until};

/// How often each worker of a crowd holds the lock.
const TURNS: u32 = 150;
/// The n of those that come with LIMIT.
const LIMIT: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Exclusive,
    Shared,
    Limit,
}

/// Workers that hold one lock in different modes, and what they see of each other inside.
#[derive(Default)]
struct Crowd {
    inside: Mutex<Vec<Mode>>,
    highest: AtomicU64,
    turns: Mutex<Vec<u32>>,
}

impl Crowd {
    fn take_turns(&self, mut conn: Conn, n: usize, mode: Mode) {
        let mut turns = 0;
        for turn in 0..TURNS {
            let owner = format!("{n}:{turn}");
            let mut words = args!["LOCK.ACQUIRE", "lock", owner, LONG_MS, "WAIT", SOON.as_millis()];
            match mode {
                Mode::Exclusive => {}
                Mode::Shared => words.extend(args!["SHARED"]),
                Mode::Limit => words.extend(args!["LIMIT", LIMIT]),
            }
            let known = self.highest.load(Ordering::SeqCst);
            let token = conn.cmd(words).token();
            assert!(token > known, "{owner} got {token}, {known} was granted before it asked");
            self.highest.fetch_max(token, Ordering::SeqCst);
            self.enter(mode);
            thread::yield_now();
            let entered = self.inside.lock().unwrap().iter().position(|other| *other == mode).unwrap();
            self.inside.lock().unwrap().swap_remove(entered);
            assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", owner).int(), 1);
            turns += 1;
        }
        self.turns.lock().unwrap().push(turns);
    }

    fn enter(&self, mode: Mode) {
        let mut inside = self.inside.lock().unwrap();
        inside.push(mode);
        let alone = inside.len() == 1;
        let fine = match mode {
            Mode::Exclusive => alone,
            Mode::Shared => inside.iter().all(|other| *other == mode),
            Mode::Limit => inside.iter().all(|other| *other == mode) && inside.len() <= LIMIT as usize,
        };
        assert!(fine, "at the same time inside: {inside:?}");
    }
}

/// A primary and its replica. After each test both must have the same: holders, tokens, modes, grants.
struct Pair {
    primary: Server,
    replica: Server,
}

impl Pair {
    fn start(kind: ServerKind) -> (Self, Conn) {
        let pair = Self { primary: Server::start(kind), replica: Server::start(kind) };
        pair.replica.replicate_from(&pair.primary);
        let conn = pair.primary.connect();
        (pair, conn)
    }

    /// Another connection to the primary.
    fn connect(&self) -> Conn {
        self.primary.connect()
    }

    /// Both have the same, and the replica shows the same holders as the primary.
    #[track_caller]
    fn assert_equal(&self) {
        self.replica.wait_in_sync(&self.primary);
        assert_eq!(self.primary.digest(), self.replica.digest(), "primary and replica differ");
        let [here, there] = [&self.primary, &self.replica].map(|server| {
            let mut conn = server.connect();
            let found = cmd!(conn, "SCAN", 0, "COUNT", 10_000, "TYPE", "lockfence");
            let mut names: Vec<String> = found.items()[1].items().iter().map(Reply::text).collect();
            names.sort();
            names.into_iter().map(|name| held_by(&mut conn, &name)).collect::<Vec<_>>()
        });
        assert_eq!(here, there);
    }
}

/// Who holds the lock by which token, in order.
#[track_caller]
fn held_by(conn: &mut Conn, lock: &str) -> Vec<(String, u64)> {
    let full = cmd!(conn, "LOCK.INFO", lock, "FULL", "COUNT", 0).no_err();
    let entry = |holder: &Reply| (holder.field("owner").text(), holder.field("token").token());
    let list: Vec<_> = full.field("holder-list").items().iter().map(entry).collect();
    assert_eq!(full.field("holders").int(), i64::try_from(list.len()).unwrap());
    list
}

#[track_caller]
fn owners(conn: &mut Conn, lock: &str) -> Vec<String> {
    held_by(conn, lock).into_iter().map(|(owner, _)| owner).collect()
}

/// LOCK.ACQUIRE with these options (in one string).
fn ask(conn: &mut Conn, lock: &str, owner: impl ToArg, ttl_ms: u64, options: &str) -> Reply {
    let mut words = args!["LOCK.ACQUIRE", lock, owner, ttl_ms];
    words.extend(options.split_whitespace().map(|word| word.as_bytes().to_vec()));
    conn.cmd(words)
}

/// A grant that must be made; its token.
#[track_caller]
fn take(conn: &mut Conn, lock: &str, owner: impl ToArg, options: &str) -> u64 {
    ask(conn, lock, owner, LONG_MS, options).token()
}

/// A new connection that waits with these options, once it stands in the queue as number `place`.
#[track_caller]
fn waits(pair: &Pair, lock: &str, owner: &str, options: &str, place: i64) -> Conn {
    let mut conn = pair.connect();
    let mut words = args!["LOCK.ACQUIRE", lock, owner, LONG_MS];
    words.extend(options.split_whitespace().map(|word| word.as_bytes().to_vec()));
    if !options.contains("WAIT") {
        words.extend(args!["WAIT", 0]);
    }
    conn.send(words);
    wait_queue(&mut pair.connect(), lock, place);
    conn
}

#[track_caller]
fn release(conn: &mut Conn, lock: &str, owner: &str) {
    assert_eq!(cmd!(conn, "LOCK.RELEASE", lock, owner).int(), 1, "{owner} does not hold {lock}");
}

/// Still waits, with nothing said to it.
#[track_caller]
fn assert_waiting(pair: &Pair, lock: &str, owners: &[&str]) {
    let full = cmd!(pair.connect(), "LOCK.INFO", lock, "FULL", "COUNT", 0).no_err();
    let queue: Vec<String> =
        full.field("waiter-list").items().iter().map(|waiter| waiter.field("owner").text()).collect();
    assert_eq!(queue, owners);
}

server_tests! {
    /// "SHARED: any number of shared holders at once, none together with an exclusive one." Every grant has a token
    /// of its own, and tokens rise.
    fn shared_holders_stand_side_by_side(kind: ServerKind) {
        let (pair, mut conn) = Pair::start(kind);
        let tokens: Vec<u64> = (0..100).map(|n| take(&mut conn, "lock", format!("r{n}"), "SHARED")).collect();
        assert!(tokens.is_sorted_by(|low, high| low < high), "{tokens:?}");
        assert_eq!(number(&mut conn, "lock", "holders"), 100);
        ask(&mut conn, "lock", "w", LONG_MS, "").nil();
        ask(&mut conn, "lock", "l", LONG_MS, "LIMIT 1000").nil();
        for n in 0..100 {
            ask(&mut conn, "lock", "w", LONG_MS, "").nil();
            release(&mut conn, "lock", &format!("r{n}"));
        }
        let exclusive = take(&mut conn, "lock", "w", "");
        assert!(exclusive > tokens[99]);
        ask(&mut conn, "lock", "r", LONG_MS, "SHARED").nil();
        ask(&mut conn, "lock", "l", LONG_MS, "LIMIT 1000").nil();
        assert_eq!(owners(&mut conn, "lock"), ["w"]);
        pair.assert_equal();
    }

    /// "LIMIT n: a semaphore, up to n holders at once."
    fn a_limit_lets_in_so_many(kind: ServerKind) {
        let (pair, mut conn) = Pair::start(kind);
        for n in [1_u32, 2, 7] {
            let lock = format!("lock{n}");
            let limit = format!("LIMIT {n}");
            for holder in 0..n {
                take(&mut conn, &lock, format!("h{holder}"), &limit);
            }
            ask(&mut conn, &lock, "more", LONG_MS, &limit).nil();
            ask(&mut conn, &lock, "w", LONG_MS, "").nil();
            ask(&mut conn, &lock, "r", LONG_MS, "SHARED").nil();
            assert_eq!(number(&mut conn, &lock, "holders"), i64::from(n));
            release(&mut conn, &lock, "h0");
            take(&mut conn, &lock, "more", &limit);
            ask(&mut conn, &lock, "another", LONG_MS, &limit).nil();
        }
        pair.assert_equal();
    }

    /// "Each LIMIT request is judged by its own n against the holders present."
    fn each_limit_request_is_judged_by_its_own_n(kind: ServerKind) {
        let (pair, mut conn) = Pair::start(kind);
        take(&mut conn, "lock", "a", "LIMIT 1");
        ask(&mut conn, "lock", "b", LONG_MS, "LIMIT 1").nil();
        take(&mut conn, "lock", "b", "LIMIT 2");
        take(&mut conn, "lock", "c", "LIMIT 1000000");
        ask(&mut conn, "lock", "d", LONG_MS, "LIMIT 3").nil();
        take(&mut conn, "lock", "d", "LIMIT 4");
        release(&mut conn, "lock", "a");
        release(&mut conn, "lock", "b");
        ask(&mut conn, "lock", "e", LONG_MS, "LIMIT 2").nil();
        take(&mut conn, "lock", "e", "LIMIT 3");
        assert_eq!(owners(&mut conn, "lock"), ["c", "d", "e"]);
        pair.assert_equal();
    }

    /// "The same owner asking in another mode than it holds: -ERR"; nothing is changed by it. Another n of LIMIT is no
    /// other mode.
    fn the_same_owner_in_another_mode_is_an_error(kind: ServerKind) {
        let (pair, mut conn) = Pair::start(kind);
        let modes = [("exclusive", ""), ("shared", "SHARED"), ("limit", "LIMIT 3")];
        for (name, held) in modes {
            let token = take(&mut conn, name, "me", held);
            for (other, asked) in modes {
                for wait in ["", "WAIT 0"] {
                    let reply = ask(&mut conn, name, "me", LONG_MS, &format!("{asked} {wait}"));
                    if name == other {
                        assert_eq!(reply.token(), token);
                    } else {
                        let line = format!("ERR this owner holds lock \"{name}\" in another mode, {name}");
                        assert_eq!(reply.err(), line);
                    }
                }
            }
            assert_eq!(held_by(&mut conn, name), [("me".to_owned(), token)]);
        }
        let token = number(&mut conn, "limit", "token");
        assert_eq!(ask(&mut conn, "limit", "me", LONG_MS, "LIMIT 1").int(), token);
        pair.assert_equal();
    }

    /// A hand-over serves every waiter that fits: a run of SHARED at once; and a waiting exclusive request stops the
    /// SHARED ones behind it.
    fn a_hand_over_serves_a_run_of_shared(kind: ServerKind) {
        let (pair, mut conn) = Pair::start(kind);
        let mut last = take(&mut conn, "lock", "w0", "");
        let mut queue: Vec<Conn> = ["r1 SHARED", "r2 SHARED", "r3 SHARED", "w1 ", "r4 SHARED"]
            .into_iter()
            .zip(1..)
            .map(|(request, place)| {
                let (owner, mode) = request.split_once(' ').unwrap();
                waits(&pair, "lock", owner, mode, place)
            })
            .collect();
        release(&mut conn, "lock", "w0");
        for reader in &mut queue[..3] {
            let token = reader.recv(SOON).token();
            assert!(token > last, "{token} after {last}");
            last = token;
        }
        assert_eq!(owners(&mut conn, "lock"), ["r1", "r2", "r3"]);
        assert_waiting(&pair, "lock", &["w1", "r4"]);
        // It would fit beside the three, but w1 was there before it.
        ask(&mut conn, "lock", "r5", LONG_MS, "SHARED").nil();
        release(&mut conn, "lock", "r2");
        release(&mut conn, "lock", "r1");
        assert_waiting(&pair, "lock", &["w1", "r4"]);
        release(&mut conn, "lock", "r3");
        let exclusive = queue[3].recv(SOON).token();
        assert!(exclusive > last);
        assert_eq!(owners(&mut conn, "lock"), ["w1"]);
        assert_waiting(&pair, "lock", &["r4"]);
        release(&mut conn, "lock", "w1");
        assert!(queue[4].recv(SOON).token() > exclusive);
        for waiter in &mut queue {
            assert_eq!(cmd!(waiter, "PING"), Reply::Simple("PONG".into()), "exactly one reply each");
        }
        assert_eq!(stat_of(&pair.primary, "handovers_total"), 5);
        pair.assert_equal();
    }

    /// LOCK.RELEASE and LOCK.EXTEND act for one holder among several.
    fn release_and_extend_act_for_one_holder(kind: ServerKind) {
        let (pair, mut conn) = Pair::start(kind);
        for mode in ["SHARED", "LIMIT 5"] {
            cmd!(conn, "DEL", "lock").int();
            let tokens = ["a", "b", "c"].map(|owner| take(&mut conn, "lock", owner, mode));
            assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "nobody").int(), 0);
            assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "nobody", LONG_MS).int(), 0);
            release(&mut conn, "lock", "b");
            assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "b").int(), 0);
            assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "b", LONG_MS).int(), 0);
            assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "c", 5 * LONG_MS).int(), 1);
            let full = cmd!(conn, "LOCK.INFO", "lock", "FULL");
            let [a, c] = full.field("holder-list").items() else { panic!("{full:?}") };
            assert_eq!([a, c].map(|holder| holder.field("token").token()), [tokens[0], tokens[2]]);
            assert!(a.field("ttl-ms").int() <= LONG_MS.cast_signed());
            assert!(c.field("ttl-ms").int() > LONG_MS.cast_signed());
            assert_eq!(full.field("counter").token(), tokens[2]);
        }
        pair.assert_equal();
    }

    /// A renewal is idempotent in each mode: the same token, the longer lease, `renewed` 1; the others are untouched.
    fn a_holder_that_asks_again_keeps_its_token(kind: ServerKind) {
        let (pair, mut conn) = Pair::start(kind);
        for mode in ["SHARED", "LIMIT 2"] {
            let tokens = ["a", "b"].map(|owner| take(&mut conn, mode, owner, mode));
            let before = held_by(&mut conn, mode);
            let again = ask(&mut conn, mode, "a", 2 * LONG_MS, &format!("{mode} WITHINFO"));
            assert_eq!((again.field("granted").int(), again.field("renewed").int()), (1, 1));
            assert_eq!(again.field("token").token(), tokens[0]);
            assert!(again.field("ttl-ms").int() > LONG_MS.cast_signed());
            // A shorter one shortens nothing.
            let shorter = ask(&mut conn, mode, "a", 1, &format!("{mode} WITHINFO"));
            assert!(shorter.field("ttl-ms").int() > LONG_MS.cast_signed());
            assert_eq!(held_by(&mut conn, mode), before);
            assert_eq!(number(&mut conn, mode, "grants"), 2);
        }
        pair.assert_equal();
    }

    /// MINTOKEN raises one holder's token; no two holders ever have the same one, also when the proposal is another
    /// holder's token.
    fn a_proposal_raises_one_holders_token(kind: ServerKind) {
        let (pair, mut conn) = Pair::start(kind);
        let [a, b] = ["a", "b"].map(|owner| take(&mut conn, "lock", owner, "SHARED"));
        let a_raised = take(&mut conn, "lock", "a", &format!("SHARED MINTOKEN {b}"));
        assert!(a_raised > b);
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "b", LONG_MS, "MINTOKEN", a_raised).int(), 1);
        let holders = held_by(&mut conn, "lock");
        let b_raised = holders[1].1;
        assert!(b_raised > a_raised);
        assert_eq!(holders, [("a".to_owned(), a_raised), ("b".to_owned(), b_raised)]);
        let ahead = b_raised + 5_000_000;
        assert_eq!(take(&mut conn, "lock", "a", &format!("SHARED MINTOKEN {ahead}")), ahead);
        // In the order of their tokens: the first one is b now.
        assert_eq!(held_by(&mut conn, "lock"), [("b".to_owned(), b_raised), ("a".to_owned(), ahead)]);
        assert!(take(&mut conn, "lock", "c", "SHARED") > ahead);
        for old in [a, b, a_raised] {
            cmd!(conn, "FENCE.CHECK", "lock", old).assert_err_prefix("FENCED ");
        }
        pair.assert_equal();
    }

    /// WITHINFO of a request that is not granted: the first holder, when the next lease ends, who waits.
    fn withinfo_names_the_first_holder_and_the_next_end(kind: ServerKind) {
        let (pair, mut conn) = Pair::start(kind);
        ask(&mut conn, "lock", "first", 3 * LONG_MS, "SHARED").token();
        ask(&mut conn, "lock", "second", LONG_MS, "SHARED").token();
        ask(&mut conn, "lock", "third", 2 * LONG_MS, "SHARED").token();
        let _w = waits(&pair, "lock", "w", "", 1);
        let refused = ask(&mut conn, "lock", "r", LONG_MS, "SHARED WITHINFO");
        assert_eq!(refused.field("granted").int(), 0);
        assert_eq!(refused.field("owner").text(), "first");
        assert_eq!(refused.field("waiters").int(), 1);
        let left = refused.field("ttl-ms").int();
        assert!((1..=LONG_MS.cast_signed()).contains(&left), "{left}");
        let mut late = pair.connect();
        let words = args!["LOCK.ACQUIRE", "lock", "late", LONG_MS, "SHARED", "WAIT", 20, "WITHINFO"];
        let over = late.cmd(words);
        assert_eq!((over.field("owner").text().as_str(), over.field("waiters").int()), ("first", 1));
        release(&mut conn, "lock", "first");
        let refused = ask(&mut conn, "lock", "r", LONG_MS, "SHARED WITHINFO");
        assert_eq!(refused.field("owner").text(), "second");
        pair.assert_equal();
    }

    /// "Duplicate queued requests of one owner: one grant, the longest of their ttls." One of another mode stays, and is
    /// refused when its turn comes.
    fn queued_requests_of_one_owner_get_one_grant(kind: ServerKind) {
        let (pair, mut conn) = Pair::start(kind);
        take(&mut conn, "lock", "w", "");
        let mut twice = [
            waits(&pair, "lock", "me", "SHARED", 1),
            waits(&pair, "lock", "other", "SHARED", 2),
        ];
        let mut longest = pair.connect();
        longest.send(args!["LOCK.ACQUIRE", "lock", "me", 3 * LONG_MS, "SHARED", "WAIT", 0, "WITHINFO"]);
        wait_queue(&mut conn, "lock", 3);
        let mut exclusive = waits(&pair, "lock", "me", "", 4);
        let mut behind = waits(&pair, "lock", "last", "SHARED", 5);
        release(&mut conn, "lock", "w");
        let token = twice[0].recv(SOON).token();
        let told = longest.recv(SOON);
        assert_eq!((told.field("token").token(), told.field("renewed").int()), (token, 0));
        assert!(told.field("ttl-ms").int() > 2 * LONG_MS.cast_signed());
        twice[1].recv(SOON).token();
        let line = "ERR this owner holds lock \"lock\" in another mode, shared";
        assert_eq!(exclusive.recv(SOON).err(), line);
        behind.recv(SOON).token();
        assert_eq!(owners(&mut conn, "lock"), ["me", "other", "last"]);
        assert_eq!(number(&mut conn, "lock", "grants"), 4);
        assert_eq!(stat_of(&pair.primary, "handovers_total"), 3);
        pair.assert_equal();
    }

    /// LIMIT at a hand-over: each by its own n, in order; one that does not fit stops those behind it.
    fn a_hand_over_judges_each_limit_by_its_own_n(kind: ServerKind) {
        let (pair, mut conn) = Pair::start(kind);
        for owner in ["h1", "h2", "h3"] {
            take(&mut conn, "lock", owner, "LIMIT 3");
        }
        let mut three = waits(&pair, "lock", "three", "LIMIT 3", 1);
        let mut two = waits(&pair, "lock", "two", "LIMIT 2", 2);
        let mut nine = waits(&pair, "lock", "nine", "LIMIT 9", 3);
        release(&mut conn, "lock", "h1");
        three.recv(SOON).token();
        assert_waiting(&pair, "lock", &["two", "nine"]);
        release(&mut conn, "lock", "h2");
        assert_waiting(&pair, "lock", &["two", "nine"]);
        release(&mut conn, "lock", "h3");
        two.recv(SOON).token();
        nine.recv(SOON).token();
        assert_eq!(owners(&mut conn, "lock"), ["three", "two", "nine"]);
        pair.assert_equal();
    }

    /// The queue is first in, first out whatever the modes are.
    fn modes_take_turns_in_the_order_of_their_requests(kind: ServerKind) {
        let (pair, mut conn) = Pair::start(kind);
        take(&mut conn, "lock", "h", "");
        let requests = ["r1 SHARED", "l1 LIMIT 2", "l2 LIMIT 2", "l3 LIMIT 2", "w1 ", "r2 SHARED", "r3 SHARED", "l4 LIMIT 1"];
        let mut queue: Vec<(String, Conn)> = requests
            .iter()
            .zip(1..)
            .map(|(request, place)| {
                let (owner, mode) = request.split_once(' ').unwrap();
                (owner.to_owned(), waits(&pair, "lock", owner, mode, place))
            })
            .collect();
        let runs: [&[&str]; 6] = [&["h"], &["r1"], &["l1", "l2"], &["l2", "l3"], &["w1"], &["r2", "r3"]];
        let mut last = 0;
        for (run, leaver) in runs.iter().zip([&["h"][..], &["r1"], &["l1"], &["l2", "l3"], &["w1"], &["r2", "r3"]]) {
            assert_eq!(owners(&mut conn, "lock"), *run);
            for owner in *run {
                if let Some(place) = queue.iter().position(|(waiting, _)| waiting == owner) {
                    let token = queue.remove(place).1.recv(SOON).token();
                    assert!(token > last, "{owner}: {token} after {last}");
                    last = token;
                }
            }
            leaver.iter().for_each(|owner| release(&mut conn, "lock", owner));
        }
        assert_eq!(owners(&mut conn, "lock"), ["l4"]);
        queue[0].1.recv(SOON).token();
        pair.assert_equal();
    }

    /// The end of one lease among several: the others go on, and whoever waited for just that place is served, by the
    /// timer, without any command; an exclusive one only when all are over.
    fn one_lease_among_several_ends(kind: ServerKind) {
        let (pair, mut conn) = Pair::start(kind);
        ask(&mut conn, "limit", "short", 700, "LIMIT 2").token();
        let long = take(&mut conn, "limit", "long", "LIMIT 2");
        let mut next = waits(&pair, "limit", "next", "LIMIT 2", 1);
        let token = next.recv(SOON).token();
        assert!(token > long);
        assert_eq!(owners(&mut conn, "limit"), ["long", "next"]);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "limit", "short").int(), 0);
        for (owner, ttl_ms) in [("r1", 300), ("r2", 1_500), ("r3", 900)] {
            ask(&mut conn, "shared", owner, ttl_ms, "SHARED").token();
        }
        let mut exclusive = waits(&pair, "shared", "w", "", 1);
        exclusive.recv(SOON).token();
        let held = cmd!(conn, "LOCK.INFO", "shared", "FULL").field("holder-list").items().to_vec();
        assert_eq!(held.len(), 1, "an exclusive holder beside shared ones: {held:?}");
        assert_eq!(held[0].field("owner").text(), "w");
        assert_eq!(stat_of(&pair.primary, "handovers_total"), 2);
        pair.assert_equal();
    }

    /// An exclusive request that waits behind shared holders is served when the last of their leases ends, neither
    /// earlier nor much later.
    fn an_exclusive_waiter_is_served_at_the_last_end(kind: ServerKind) {
        let (pair, mut conn) = Pair::start(kind);
        let began = Instant::now();
        for n in 0..50_u64 {
            ask(&mut conn, "lock", format!("r{n}"), 500 + 30 * n, "SHARED").token();
        }
        let mut exclusive = waits(&pair, "lock", "w", "", 1);
        exclusive.recv(SOON).token();
        let waited = began.elapsed();
        assert!(waited >= Duration::from_millis(500 + 30 * 49), "{waited:?}");
        assert!(waited < Duration::from_millis(500 + 30 * 49 + 4_000), "{waited:?}");
        pair.assert_equal();
    }

    /// An ended lease counts for nothing: neither for LIMIT nor for the mode in force, and it is never revived.
    fn ended_leases_do_not_count(kind: ServerKind) {
        let (pair, mut conn) = Pair::start(kind);
        for n in 0..3 {
            ask(&mut conn, "lock", format!("old{n}"), 20, "LIMIT 4").token();
        }
        take(&mut conn, "lock", "stays", "LIMIT 4");
        wait_until("their end", SOON, || number(&mut conn, "lock", "holders"), |holders| *holders == 1);
        for n in 0..3 {
            assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", format!("old{n}"), LONG_MS).int(), 0);
            assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", format!("old{n}")).int(), 0);
        }
        for n in 0..3 {
            take(&mut conn, "lock", format!("new{n}"), "LIMIT 4");
        }
        ask(&mut conn, "lock", "more", LONG_MS, "LIMIT 4").nil();
        assert_eq!(owners(&mut conn, "lock"), ["stays", "new0", "new1", "new2"]);
        // One that has ended and asks again is granted afresh, with a new token and in any mode.
        let before = ask(&mut conn, "mode", "me", 20, "LIMIT 4").token();
        wait_until("its end", SOON, || number(&mut conn, "mode", "holders"), |holders| *holders == 0);
        let after = take(&mut conn, "mode", "me", "SHARED");
        assert!(after > before);
        assert_eq!(info(&mut conn, "mode").field("mode").text(), "shared");
        pair.assert_equal();
    }

    /// LOCK.BREAK ends all holders and says how many; all are fenced at once, and the queue is served.
    fn break_ends_all_of_them(kind: ServerKind) {
        let (pair, mut conn) = Pair::start(kind);
        for (lock, mode) in [("shared", "SHARED"), ("limit", "LIMIT 9")] {
            let tokens: Vec<u64> = (0..5).map(|n| take(&mut conn, lock, format!("h{n}"), mode)).collect();
            ask(&mut conn, lock, "over", 1, mode).token();
            wait_until("an end", SOON, || number(&mut conn, lock, "holders"), |holders| *holders == 5);
            let mut next = waits(&pair, lock, "next", "", 1);
            assert_eq!(cmd!(conn, "LOCK.BREAK", lock).int(), 5);
            let granted = next.recv(SOON).token();
            for token in tokens {
                cmd!(conn, "FENCE.WRITE", lock, token, "data", "late").assert_err_prefix("FENCED ");
            }
            assert_eq!(held_by(&mut conn, lock), [("next".to_owned(), granted)]);
            assert_eq!(cmd!(conn, "LOCK.BREAK", lock).int(), 1);
            assert_eq!(cmd!(conn, "LOCK.BREAK", lock).int(), 0);
        }
        pair.assert_equal();
    }

    /// LOCK.BREAK MAXTOKEN ends the holders up to that token, and fences them at once; the others go on.
    fn break_up_to_a_token_ends_some_of_them(kind: ServerKind) {
        let (pair, mut conn) = Pair::start(kind);
        for (lock, mode, count) in [("shared", "SHARED", 5), ("limit", "LIMIT 9", 5), ("crowd", "LIMIT 200", 150)] {
            let tokens: Vec<u64> = (0..count).map(|n| take(&mut conn, lock, format!("h{n}"), mode)).collect();
            let mut next = waits(&pair, lock, "next", "", 1);
            let (seen, later) = tokens.split_at(tokens.len() - 2);
            assert_eq!(cmd!(conn, "LOCK.RELEASE", lock, "h0").int(), 1);
            let counter = number(&mut conn, lock, "counter");
            let order = args!["LOCK.BREAK", lock, "MAXTOKEN", seen[seen.len() - 1]];
            assert_eq!(conn.cmd(&order).int(), count - 3);
            assert_eq!(number(&mut conn, lock, "counter"), counter, "no token is used up");
            for token in seen {
                cmd!(conn, "FENCE.WRITE", lock, *token, "data", "late").assert_err_prefix("FENCED ");
            }
            for token in later {
                cmd!(conn, "FENCE.WRITE", lock, *token, "data", "good").ok();
            }
            assert_eq!(conn.cmd(&order).int(), 0, "they are ended");
            pair.assert_equal();
            assert_eq!(cmd!(conn, "LOCK.BREAK", lock, "MAXTOKEN", later[1]).int(), 2);
            assert!(next.recv(SOON).token() > later[1]);
        }
        pair.assert_equal();
    }

    /// LOCK.INFO of several holders: mode, limit, the first of them; FULL COUNT n bounds both lists.
    fn info_tells_of_several_holders(kind: ServerKind) {
        let (pair, mut conn) = Pair::start(kind);
        let tokens: Vec<u64> = (0..12).map(|n| take(&mut conn, "shared", format!("r{n}"), "SHARED")).collect();
        for (owner, limit) in [("a", "LIMIT 5"), ("b", "LIMIT 7"), ("c", "LIMIT 6")] {
            take(&mut conn, "limit", owner, limit);
        }
        let _waiting: Vec<Conn> =
            (1..=12).map(|n| waits(&pair, "shared", &format!("w{n}"), "LIMIT 3", n)).collect();
        for mut conn in [pair.connect(), pair.primary.connect_resp3(), pair.replica.connect()] {
            pair.replica.wait_in_sync(&pair.primary);
            let waiters = if conn.cmd(args!["ROLE"]).items()[0].text() == "slave" { 0 } else { 12 };
            let shared = info(&mut conn, "shared");
            assert_eq!(shared.field("state").text(), "held");
            assert_eq!(shared.field("mode").text(), "shared");
            shared.field("limit").nil();
            assert_eq!((shared.field("holders").int(), shared.field("waiters").int()), (12, waiters));
            assert_eq!(shared.field("owner").text(), "r0");
            assert_eq!(shared.field("token").token(), tokens[0]);
            assert_eq!(shared.field("counter").token(), tokens[11]);
            assert_eq!(shared.field("grants").int(), 12);
            let limit = info(&mut conn, "limit");
            assert_eq!((limit.field("mode").text().as_str(), limit.field("limit").int()), ("limit", 6));
            for (count, listed) in [("", 10), ("COUNT 3", 3), ("COUNT 0", 12), ("COUNT 50", 12)] {
                let mut words = args!["LOCK.INFO", "shared", "FULL"];
                words.extend(count.split_whitespace().map(|word| word.as_bytes().to_vec()));
                let full = conn.cmd(words);
                let holders = full.field("holder-list").items();
                assert_eq!(holders.len(), listed);
                for (holder, n) in holders.iter().zip(0..) {
                    assert_eq!(holder.field("owner").text(), format!("r{n}"));
                    assert_eq!(holder.field("token").token(), tokens[n]);
                }
                let queue = full.field("waiter-list").items();
                assert_eq!(queue.len(), if waiters == 0 { 0 } else { listed });
                assert!(queue.iter().all(|waiter| waiter.field("mode").text() == "limit"));
            }
        }
        pair.assert_equal();
    }

    /// FENCE.* accepts each live holder's token, although the others' are higher, and the counter; those of ended
    /// holders below the counter are refused.
    fn each_live_holders_token_is_accepted(kind: ServerKind) {
        let (pair, mut conn) = Pair::start(kind);
        for (lock, mode) in [("shared", "SHARED"), ("limit", "LIMIT 4")] {
            let tokens = ["a", "b", "c", "d"].map(|owner| take(&mut conn, lock, owner, mode));
            for token in tokens {
                cmd!(conn, "FENCE.WRITE", lock, token, "data", token).ok();
                assert_eq!(cmd!(conn, "FENCE.CALL", lock, token, "GET", "data").text(), token.to_string());
                assert_eq!(cmd!(conn, "FENCE.CHECK", lock, token).token(), tokens[3]);
            }
            cmd!(conn, "FENCE.CHECK", lock, tokens[3] + 1).assert_err_prefix("FENCED ");
            release(&mut conn, lock, "b");
            let line = format!("FENCED token {} is stale: lock \"{lock}\" is at {}", tokens[1], tokens[3]);
            assert_eq!(cmd!(conn, "FENCE.WRITE", lock, tokens[1], "data", "late").err(), line);
            assert_eq!(cmd!(conn, "FENCE.CALL", lock, tokens[1], "DEL", "data").err(), line);
            assert_eq!(cmd!(conn, "GET", "data").text(), tokens[3].to_string());
            // The latest one counts until the next grant, the others' as long as they live.
            release(&mut conn, lock, "d");
            cmd!(conn, "FENCE.WRITE", lock, tokens[3], "data", "released").ok();
            cmd!(conn, "FENCE.WRITE", lock, tokens[0], "data", "live").ok();
            let next = take(&mut conn, lock, "e", mode);
            cmd!(conn, "FENCE.CHECK", lock, tokens[3]).assert_err_prefix("FENCED ");
            assert_eq!(cmd!(conn, "FENCE.CHECK", lock, tokens[2]).token(), next);
            // By its end alone, too.
            assert_eq!(cmd!(conn, "LOCK.EXTEND", lock, "c", 1).int(), 1);
            wait_until("its end", SOON, || number(&mut conn, lock, "holders"), |holders| *holders == 2);
            cmd!(conn, "FENCE.CHECK", lock, tokens[2]).assert_err_prefix("FENCED ");
        }
        pair.assert_equal();
    }

    /// Whoever stands at the head of the queue and leaves it makes way for those behind who fit beside the holders: a
    /// time-out, a disconnect, CLIENT UNBLOCK, CLIENT KILL.
    fn who_leaves_the_head_makes_way(kind: ServerKind) {
        let (pair, mut conn) = Pair::start(kind);
        for way in ["time-out", "disconnect", "unblock", "kill"] {
            take(&mut conn, way, "r1", "SHARED");
            let options = if way == "time-out" { "WAIT 1500" } else { "" };
            let mut writer = waits(&pair, way, "w", options, 1);
            let mut reader = waits(&pair, way, "r2", "SHARED", 2);
            let clients = cmd!(conn, "LOCK.INFO", way, "FULL").field("waiter-list").items().to_vec();
            let id = clients[0].field("client-id").int();
            match way {
                "time-out" => writer.recv(SOON).nil(),
                "disconnect" => writer.close(),
                "unblock" => assert_eq!(cmd!(conn, "CLIENT", "UNBLOCK", id).int(), 1),
                _ => assert_eq!(cmd!(conn, "CLIENT", "KILL", "ID", id).int(), 1),
            }
            reader.recv(SOON).token();
            assert_eq!(owners(&mut conn, way), ["r1", "r2"], "{way}");
        }
        pair.assert_equal();
    }

    /// A grant whose reply reached nobody is given back, alone: the others that came in the same hand-over stay.
    fn a_grant_that_reached_nobody_is_given_back_alone(kind: ServerKind) {
        let (pair, mut conn) = Pair::start(kind);
        for round in 0..10 {
            let lock = format!("lock{round}");
            take(&mut conn, &lock, "w", "");
            let mut stays = waits(&pair, &lock, "stays", "SHARED", 1);
            let mut goes = waits(&pair, &lock, "goes", "SHARED", 2);
            let _ = &mut goes;
            let mut behind = waits(&pair, &lock, "behind", "SHARED", 3);
            let list = cmd!(conn, "LOCK.INFO", lock, "FULL").field("waiter-list").items().to_vec();
            let id = list[1].field("client-id").int();
            let replies = conn.pipeline(&[
                args!["MULTI"],
                args!["LOCK.RELEASE", lock, "w"],
                args!["CLIENT", "KILL", "ID", id],
                args!["EXEC"],
            ]);
            assert_eq!(replies[3].items()[0].int(), 1, "{replies:?}");
            stays.recv(SOON).token();
            behind.recv(SOON).token();
            wait_until("the lease of nobody to go", SOON, || owners(&mut conn, &lock), |owners| *owners == ["stays", "behind"]);
        }
        pair.assert_equal();
    }

    /// WAIT is ignored where nothing can wait; the answer is that of the moment.
    fn in_multi_and_scripts_the_answer_is_immediate(kind: ServerKind) {
        let (pair, mut conn) = Pair::start(kind);
        take(&mut conn, "lock", "r1", "SHARED");
        let script = "return redis.call('LOCK.ACQUIRE', KEYS[1], ARGV[1], '600000', 'WAIT', '0', unpack(ARGV, 2))";
        assert!(matches!(
            cmd!(conn, "EVAL", script, 1, "lock", "w", "WITHINFO").field("granted"),
            Reply::Int(0)
        ));
        assert!(matches!(cmd!(conn, "EVAL", script, 1, "lock", "l", "LIMIT", 5), Reply::Nil | Reply::Bool(false)));
        assert!(cmd!(conn, "EVAL", script, 1, "lock", "r2", "SHARED").int() > 0);
        let replies = conn.pipeline(&[
            args!["MULTI"],
            args!["LOCK.ACQUIRE", "lock", "r3", LONG_MS, "SHARED", "WAIT", 0],
            args!["LOCK.ACQUIRE", "lock", "w", LONG_MS, "WAIT", 0],
            args!["EXEC"],
        ]);
        let [granted, refused] = replies[3].items() else { panic!("{replies:?}") };
        granted.token();
        refused.nil();
        assert_eq!(owners(&mut conn, "lock"), ["r1", "r2", "r3"]);
        assert_eq!(number(&mut conn, "lock", "waiters"), 0);
        pair.assert_equal();
    }

    /// The queue's limits hold for requests of every mode, and a request that fits needs no place in it.
    fn a_full_queue_refuses_every_mode(kind: ServerKind) {
        let server = Server::builder(kind).arg("lockfence.max-waiters-per-lock", 1).start();
        let mut conn = server.connect();
        take(&mut conn, "lock", "r1", "SHARED");
        take(&mut conn, "lock", "r2", "SHARED WAIT 0");
        let mut writer = server.connect();
        writer.send(args!["LOCK.ACQUIRE", "lock", "w", LONG_MS, "WAIT", 0]);
        wait_queue(&mut conn, "lock", 1);
        for mode in ["SHARED", "LIMIT 5", ""] {
            ask(&mut conn, "lock", "more", LONG_MS, &format!("{mode} WAIT 0")).assert_err_prefix("QUEUEFULL ");
            ask(&mut conn, "lock", "more", LONG_MS, mode).nil();
        }
        // A holder asks again all the same.
        take(&mut conn, "lock", "r1", "SHARED WAIT 0");
    }

    /// At the memory limit: no grant in any mode, and every holder can give back, extend and write no more.
    fn at_the_memory_limit_holders_give_back_and_extend(kind: ServerKind) {
        let server = Server::builder(kind).arg("maxmemory-policy", "noeviction").start();
        let mut conn = server.connect();
        for owner in ["a", "b", "c"] {
            take(&mut conn, "lock", owner, "LIMIT 3");
        }
        let mut next = server.connect();
        next.send(args!["LOCK.ACQUIRE", "lock", "next", LONG_MS, "LIMIT", 3, "WAIT", 0]);
        wait_queue(&mut conn, "lock", 1);
        server.config_set("maxmemory", "1");
        for mode in ["SHARED", "LIMIT 9"] {
            ask(&mut conn, "lock", "more", LONG_MS, mode).assert_err_prefix("OOM ");
            ask(&mut conn, "fresh", "more", LONG_MS, mode).assert_err_prefix("OOM ");
        }
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "a", LONG_MS).int(), 1);
        release(&mut conn, "lock", "b");
        next.recv(SOON).token();
        assert_eq!(owners(&mut conn, "lock"), ["a", "c", "next"]);
        assert_eq!(cmd!(conn, "LOCK.BREAK", "lock").int(), 3);
        server.config_set("maxmemory", "0");
    }

    /// In the restart quarantine a holder that is known goes on, and nobody joins it; those who wait are granted
    /// together when it is over.
    fn the_quarantine_holds_for_every_mode(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = take(&mut conn, "lock", "r1", "SHARED");
        cmd!(conn, "CONFIG", "SET", "lockfence.quarantine-ms", 4_000).ok();
        cmd!(conn, "DEBUG", "RELOAD").ok();
        let began = Instant::now();
        ask(&mut conn, "lock", "r2", LONG_MS, "SHARED").assert_err_prefix("QUARANTINE ");
        ask(&mut conn, "lock", "l", LONG_MS, "LIMIT 5").nil();
        assert_eq!(take(&mut conn, "lock", "r1", "SHARED"), token);
        let mut readers: Vec<Conn> = (1..=3)
            .map(|n| {
                let mut reader = server.connect();
                reader.send(args!["LOCK.ACQUIRE", "lock", format!("w{n}"), LONG_MS, "SHARED", "WAIT", 0]);
                wait_queue(&mut conn, "lock", n);
                reader
            })
            .collect();
        for reader in &mut readers {
            assert!(reader.recv(SOON).token() > token);
        }
        assert!(began.elapsed() >= Duration::from_millis(2_500), "granted in the quarantine");
        assert_eq!(owners(&mut conn, "lock"), ["r1", "w1", "w2", "w3"]);
    }

    /// Dense tokens: each holder has the next number.
    fn dense_tokens_count_the_holders(kind: ServerKind) {
        let dense = || Server::builder(kind).module_args(["tokens", "dense"]).start();
        let pair = Pair { primary: dense(), replica: dense() };
        pair.replica.replicate_from(&pair.primary);
        let mut conn = pair.connect();
        let tokens: Vec<u64> = (0..40).map(|n| take(&mut conn, "lock", format!("r{n}"), "SHARED")).collect();
        assert!(tokens.iter().copied().eq(1..=40), "{tokens:?}");
        release(&mut conn, "lock", "r7");
        assert_eq!(take(&mut conn, "lock", "r7", "SHARED"), 41);
        assert_eq!(held_by(&mut conn, "lock").last().unwrap(), &("r7".to_owned(), 41));
        pair.assert_equal();
    }

    /// A lock's key that goes takes all holders with it: those who wait are told, all tokens are refused, the next are
    /// higher.
    fn deleting_the_key_ends_all_leases(kind: ServerKind) {
        let (pair, mut conn) = Pair::start(kind);
        for destroy in [args!["DEL", "lock"], args!["FLUSHALL"], args!["SET", "lock", "x"]] {
            cmd!(conn, "DEL", "lock").int();
            let tokens: Vec<u64> = (0..60).map(|n| take(&mut conn, "lock", format!("r{n}"), "SHARED")).collect();
            let mut waiting = [waits(&pair, "lock", "w", "", 1), waits(&pair, "lock", "l", "LIMIT 2", 2)];
            conn.cmd(destroy).no_err();
            for waiter in &mut waiting {
                waiter.recv(SOON).assert_err_prefix("LOCKLOST ");
            }
            cmd!(conn, "DEL", "lock").int();
            cmd!(conn, "FENCE.CHECK", "lock", tokens[59]).assert_err_prefix("FENCED ");
            assert!(take(&mut conn, "lock", "next", "LIMIT 5") > tokens[59]);
            for token in tokens {
                cmd!(conn, "FENCE.CHECK", "lock", token).assert_err_prefix("FENCED ");
            }
        }
        pair.assert_equal();
    }

    /// Many at once, in all modes, for a while: tokens rise with each grant of a lock; nobody is beside an exclusive
    /// holder; no LIMIT is exceeded; everybody gets a turn.
    fn nobody_starves_and_nobody_is_beside_an_exclusive_holder(kind: ServerKind) {
        let (pair, mut conn) = Pair::start(kind);
        let crowd = Crowd::default();
        thread::scope(|scope| {
            for (n, mode) in [
                Mode::Shared, Mode::Shared, Mode::Shared, Mode::Shared, Mode::Exclusive, Mode::Limit, Mode::Limit, Mode::Limit, Mode::Limit,
            ].into_iter().enumerate()
            {
                let (crowd, conn) = (&crowd, pair.connect());
                scope.spawn(move || crowd.take_turns(conn, n, mode));
            }
        });
        let turns = crowd.turns.into_inner().unwrap();
        assert!(turns.iter().all(|turns| *turns == TURNS), "{turns:?}");
        assert_eq!(owners(&mut conn, "lock"), Vec::<String>::new());
        pair.assert_equal();
    }
}
