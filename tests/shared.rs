//! SHARED and LIMIT n: several holders of one lock, each with a lease and a token of its own.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

mod common;

use common::{LONG_MS, SOON, number, stat_of, wait_queue};
use lockfence_testkit::{Conn, Reply, Server, ServerKind, ToArg, args, cmd, server_tests};

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
            let mut names: Vec<String> = cmd!(conn, "KEYS", "*").items().iter().map(Reply::text).collect();
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
}
