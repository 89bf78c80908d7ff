//! Waiting for a lock: first in, first out; exactly one answer each; and nobody who has gone keeps a lock from others.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{
    LONG_MS, SOON, info, issued, ms, number, standing, stat_of, wait_queue, waiter, waiter_for,
};
use lockfence_testkit::{
    Conn, Received, Reply, Server, ServerKind, args, cmd, raise_open_files, send, server_tests, wait_for,
    wait_until,
};

/// What the whole of a fault may cost those who wait: far below [`LONG_MS`], the lease that would be lost.
const PROMPT: Duration = Duration::from_secs(10);

/// A server on which `lock` is held by `a`, and the holder's connection.
fn held(kind: ServerKind) -> (Server, Conn) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
    (server, conn)
}

/// Ends with `b` told of a grant, or told otherwise with the lease given to `c`: never with a lease that nobody knows
/// of. What `b` was told, if it was told anything.
#[track_caller]
fn one_of_them_has_it(b: &mut Conn, c: &mut Conn, observer: &mut Conn) -> Option<Reply> {
    let mut told = None;
    let token = wait_for("a grant of the one or the other", PROMPT, || {
        if told.is_none()
            && let Received::Reply(reply) = b.receive(Duration::from_millis(20))
        {
            if matches!(reply, Reply::Int(_)) {
                assert_eq!(info(observer, "lock").field("owner").text(), "b");
                assert_eq!(cmd!(observer, "LOCK.RELEASE", "lock", "b").int(), 1);
            }
            told = Some(reply);
        }
        c.try_recv_within(20).map(|reply| reply.token()).ok_or_else(|| told.clone())
    });
    if told.is_none()
        && let Received::Reply(reply) = b.receive(Duration::from_millis(100))
    {
        assert!(!matches!(reply, Reply::Int(_)), "both were granted: {reply:?}");
        told = Some(reply);
    }
    let seen = info(observer, "lock");
    assert_eq!((seen.field("owner").text(), seen.field("token").token()), ("c".into(), token));
    assert_eq!(seen.field("waiters").int(), 0);
    told
}

/// Runs commands as one transaction, or in one packet.
fn in_one_turn(conn: &mut Conn, commands: &[Vec<Vec<u8>>], transaction: bool) {
    let mut all = commands.to_vec();
    if transaction {
        all.insert(0, args!["MULTI"]);
        all.push(args!["EXEC"]);
    }
    let replies = conn.pipeline(&all);
    assert!(replies.iter().all(|reply| !reply.is_err()), "{replies:?}");
}

/// From `c` to `a`, for another round.
#[track_caller]
fn pass_back(conn: &mut Conn) {
    assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "c").int(), 1);
    cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
}

/// Lets `b` be handed the lock and be ended in the same turn, with `c` behind it.
fn ended_in_the_turn_of_its_grant(kind: ServerKind, end: impl Fn(i64) -> Vec<Vec<u8>>, answers: &[&str]) {
    let (server, mut conn) = held(kind);
    for round in 0..40 {
        let mut b = server.connect();
        let id = b.id();
        send!(b, "LOCK.ACQUIRE", "lock", "b", LONG_MS, "WAIT", 0);
        wait_queue(&mut conn, "lock", 1);
        let mut c = waiter(&server, "lock", "c", LONG_MS, 2);
        in_one_turn(&mut conn, &[args!["LOCK.RELEASE", "lock", "a"], end(id)], round % 2 == 0);
        let told = one_of_them_has_it(&mut b, &mut c, &mut conn);
        match told {
            Some(Reply::Error(line)) => assert!(answers.iter().any(|code| line.starts_with(code)), "{line}"),
            Some(Reply::Nil) => assert!(answers.contains(&"nil")),
            Some(Reply::Int(_)) => assert!(answers.contains(&"token")),
            None => assert!(answers.contains(&"nothing"), "{kind} gave no answer in round {round}"),
            Some(other) => panic!("unexpected: {other:?}"),
        }
        pass_back(&mut conn);
    }
    assert_eq!(stat_of(&server, "waiters"), 0);
}

fn subscribe(conn: &mut Conn) {
    send!(conn, "SUBSCRIBE", "channel");
    assert!(conn.recv_push(SOON).is_some());
}

/// Rounds of connect, wait, end: no waiter is left, and after the first hundred no memory grows.
fn rounds_leave_nothing(kind: ServerKind, rounds: u32, end: impl Fn(&mut Conn, Conn, i64)) {
    const GROWTH: u64 = 64 * 1024;
    let (server, mut conn) = held(kind);
    let mut settled = 0;
    for round in 1..=rounds {
        let mut client = server.connect();
        let id = client.id();
        send!(client, "LOCK.ACQUIRE", "lock", "b", LONG_MS, "WAIT", 0);
        wait_queue(&mut conn, "lock", 1);
        end(&mut conn, client, id);
        wait_queue(&mut conn, "lock", 0);
        if round == 100 {
            settled = settled_memory(&server);
        }
    }
    assert_eq!(stat_of(&server, "waiters"), 0);
    assert_eq!(info(&mut conn, "lock").field("owner").text(), "a");
    let grown = |used: &u64| *used <= settled + GROWTH;
    wait_until("memory back where it was after 100 rounds", SOON, || server.used_memory(), grown);
}

/// Memory once the clients that have gone are freed: the least of some looks.
fn settled_memory(server: &Server) -> u64 {
    (0..20)
        .map(|_| {
            thread::sleep(Duration::from_millis(5));
            server.used_memory()
        })
        .min()
        .unwrap()
}

/// Destroys the lock `L` in some way while two clients wait; each must hear of it at once and exactly once, and the
/// next token must be higher (D4).
fn lost(server: &Server, what: &str, destroy: impl Fn(&mut Conn)) {
    let mut conn = server.connect();
    cmd!(conn, "FLUSHALL").ok();
    let token = cmd!(conn, "LOCK.ACQUIRE", "L", "A", LONG_MS).token();
    let mut waiting = [waiter(server, "L", "B", LONG_MS, 1), waiter(server, "L", "C", LONG_MS, 2)];
    destroy(&mut conn);
    for waiter in &mut waiting {
        match waiter.try_recv_within(ms(PROMPT)) {
            Some(Reply::Error(line)) if line.starts_with("LOCKLOST ") => {}
            other => panic!("after {what} a waiter got {other:?}"),
        }
        assert_eq!(cmd!(waiter, "PING"), Reply::Simple("PONG".into()), "after {what}: a second reply");
    }
    assert_eq!(stat_of(server, "waiters"), 0, "after {what}");
    let mut fresh = server.connect();
    cmd!(fresh, "DEL", "L").int();
    assert!(cmd!(fresh, "LOCK.ACQUIRE", "L", "D", 10).token() > token, "after {what}");
}

server_tests! {
    /// FIFO: served in the order of their requests, each once, each with a higher token.
    fn those_who_wait_are_served_in_order(kind: ServerKind) {
        let (server, mut conn) = held(kind);
        let mut waiting: Vec<Conn> =
            (1..=50).map(|n| waiter(&server, "lock", &format!("w{n}"), LONG_MS, n)).collect();
        let mut last = number(&mut conn, "lock", "token").unsigned_abs();
        let mut owner = "a".to_owned();
        for n in 1..=50_usize {
            assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", owner).int(), 1);
            let token = waiting[n - 1].recv(SOON).token();
            assert!(token > last, "{token} after {last}");
            (last, owner) = (token, format!("w{n}"));
            let seen = info(&mut conn, "lock");
            assert_eq!((seen.field("owner").text(), seen.field("token").token()), (owner.clone(), token));
            assert_eq!(seen.field("waiters").int(), 50 - i64::try_from(n).unwrap());
        }
        for waiter in &mut waiting {
            assert_eq!(cmd!(waiter, "PING"), Reply::Simple("PONG".into()), "exactly one reply each");
        }
    }

    /// Thousands wait on one lock; each is served once, in order. As many as open files allow; the number is printed.
    fn thousands_are_served_once_in_order(kind: ServerKind) {
        const WANTED: u64 = 5_000;
        // Two such tests may run at once, each with a connection per waiter on both sides.
        let count = WANTED.min(raise_open_files().saturating_sub(1_000) / 2);
        println!("{count} waiters on one lock");
        let server = Server::builder(kind)
            .arg("maxclients", count + 100)
            .arg("lockfence.max-waiters", count)
            .arg("lockfence.max-waiters-per-lock", count)
            .start();
        let mut conn = server.connect();
        let mut last = cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        let mut waiting = Vec::new();
        for n in 1..=count {
            let mut waiter = server.connect();
            send!(waiter, "LOCK.ACQUIRE", "lock", format!("w{n}"), LONG_MS, "WAIT", 0);
            let began = Instant::now();
            while number(&mut conn, "lock", "waiters").unsigned_abs() != n {
                assert!(began.elapsed() < SOON, "waiter {n} does not arrive");
            }
            waiting.push(waiter);
        }
        cmd!(server.connect(), "LOCK.ACQUIRE", "lock", "more", 10, "WAIT", 0).assert_err_prefix("QUEUEFULL ");
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "a").int(), 1);
        for (waiter, n) in waiting.iter_mut().zip(1..) {
            let token = waiter.recv(SOON).token();
            assert!(token > last, "w{n} got {token} after {last}");
            last = token;
            // A second reply would stand before this one.
            assert_eq!(cmd!(waiter, "LOCK.RELEASE", "lock", format!("w{n}")).int(), 1);
        }
        assert_eq!(stat_of(&server, "handovers_total"), count);
        assert_eq!(stat_of(&server, "waiters"), 0);
        assert_eq!(info(&mut conn, "lock").field("state").text(), "free");
    }

    /// B1: a waiter's lease starts at its grant, though it waited longer than that lease lasts.
    fn a_lease_starts_at_its_grant(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "L", "A", 4_000).token();
        let mut b = server.connect();
        let reply = cmd!(b, "LOCK.ACQUIRE", "L", "B", 3_000, "WAIT", 60_000, "WITHINFO");
        assert_eq!((reply.field("granted").int(), reply.field("ttl-ms").int()), (1, 3_000));
        let left = number(&mut conn, "L", "ttl-ms");
        assert!(left > 1_000, "only {left} ms are left of a lease that was just granted");
        // And it ends that long after its grant, for those behind it.
        let began = Instant::now();
        cmd!(conn, "LOCK.ACQUIRE", "L", "C", 10, "WAIT", 60_000).token();
        let waited = ms(began.elapsed());
        assert!((u64::try_from(left).unwrap() - 100..left.unsigned_abs() + 5_000).contains(&waited), "{waited} of {left}");
    }

    /// "WAIT 0 waits without limit."
    fn wait_0_waits_without_limit(kind: ServerKind) {
        let (server, mut conn) = held(kind);
        let mut b = waiter(&server, "lock", "b", LONG_MS, 1);
        let full = cmd!(conn, "LOCK.INFO", "lock", "FULL");
        full.field("waiter-list").items()[0].field("left-ms").nil();
        b.assert_silent(1_500);
        cmd!(conn, "LOCK.RELEASE", "lock", "a");
        b.recv(SOON).token();
    }

    /// A WAIT on a free lock is granted at once.
    fn a_wait_for_a_free_lock_is_granted_at_once(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        for wait_ms in [0, 1, 60_000] {
            cmd!(conn, "LOCK.ACQUIRE", format!("lock:{wait_ms}"), "a", LONG_MS, "WAIT", wait_ms).token();
        }
        assert_eq!(stat_of(&server, "handovers_total"), 0);
    }

    /// A WAIT ends with null so long after its request: not earlier, not much later, whatever happens to the lock.
    fn a_wait_ends_with_null_in_time(kind: ServerKind) {
        let (server, mut conn) = held(kind);
        let mut waiting: Vec<(Conn, Instant, u64)> = Vec::new();
        for (place, wait_ms) in (1..).zip([2_900, 2_300, 2_600, 2_301]) {
            let began = Instant::now();
            waiting.push((waiter_for(&server, "lock", "b", LONG_MS, wait_ms, place), began, wait_ms));
        }
        for _ in 0..20 {
            cmd!(conn, "LOCK.EXTEND", "lock", "a", LONG_MS).int();
        }
        waiting.sort_by_key(|(_, _, wait_ms)| *wait_ms);
        for (waiter, began, wait_ms) in &mut waiting {
            waiter.recv(SOON).nil();
            let waited = ms(began.elapsed());
            assert!((*wait_ms - 5..*wait_ms + 2_000).contains(&waited), "WAIT {wait_ms} took {waited} ms");
        }
        assert_eq!(number(&mut conn, "lock", "waiters"), 0);
        assert_eq!(info(&mut conn, "lock").field("owner").text(), "a");
    }

    /// J15: who waited in vain holds nothing, then or later.
    fn who_gave_up_is_never_granted(kind: ServerKind) {
        let (server, mut conn) = held(kind);
        let mut b = server.connect();
        cmd!(b, "LOCK.ACQUIRE", "lock", "b", LONG_MS, "WAIT", 30).nil();
        cmd!(conn, "LOCK.RELEASE", "lock", "a");
        assert_eq!(info(&mut conn, "lock").field("state").text(), "free");
        assert_eq!(cmd!(b, "LOCK.RELEASE", "lock", "b").int(), 0);
        assert_eq!(stat_of(&server, "handovers_total"), 0);
    }

    /// Those who leave the queue leave no gap: the next in order is served.
    fn who_leaves_is_passed_over(kind: ServerKind) {
        let (server, mut conn) = held(kind);
        let gone = waiter(&server, "lock", "b", LONG_MS, 1);
        let mut over = waiter_for(&server, "lock", "c", LONG_MS, 3_000, 2);
        let mut d = waiter(&server, "lock", "d", LONG_MS, 3);
        over.recv(SOON).nil();
        gone.close();
        wait_queue(&mut conn, "lock", 1);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "a").int(), 1);
        d.recv(SOON).token();
    }

    /// D8: one packet with RELEASE and ACQUIRE does not overtake those who wait; nor do MULTI and EVAL.
    fn nobody_barges_in(kind: ServerKind) {
        let release = || args!["LOCK.RELEASE", "lock", "a"];
        let acquire = || args!["LOCK.ACQUIRE", "lock", "a", 1000];
        let script = "return {redis.call('LOCK.RELEASE', KEYS[1], 'a'), \
                      redis.call('LOCK.ACQUIRE', KEYS[1], 'a', '1000')}";
        for way in ["pipeline", "MULTI", "EVAL"] {
            let (server, mut conn) = held(kind);
            let mut b = waiter(&server, "lock", "b", LONG_MS, 1);
            let replies = match way {
                "pipeline" => conn.pipeline(&[release(), acquire()]),
                "MULTI" => {
                    let replies = conn.pipeline(&[args!["MULTI"], release(), acquire(), args!["EXEC"]]);
                    replies[3].items().to_vec()
                }
                _ => cmd!(conn, "EVAL", script, 1, "lock").items().to_vec(),
            };
            assert_eq!(replies[0].int(), 1, "{way}");
            assert!(matches!(replies[1], Reply::Nil | Reply::Bool(false)), "{way}: {replies:?}");
            b.recv(SOON).token();
            assert_eq!(info(&mut conn, "lock").field("owner").text(), "b", "{way}");
        }
    }

    /// D8: with WAIT, the one that released queues behind those who waited.
    fn who_releases_and_asks_again_goes_to_the_end(kind: ServerKind) {
        let (server, mut conn) = held(kind);
        let mut b = waiter(&server, "lock", "b", LONG_MS, 1);
        let mut c = waiter(&server, "lock", "c", LONG_MS, 2);
        send!(conn, "LOCK.RELEASE", "lock", "a");
        send!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS, "WAIT", 0);
        assert_eq!(conn.recv(SOON).int(), 1);
        b.recv(SOON).token();
        let mut observer = server.connect();
        wait_queue(&mut observer, "lock", 2);
        assert_eq!(cmd!(observer, "LOCK.RELEASE", "lock", "b").int(), 1);
        c.recv(SOON).token();
        assert_eq!(cmd!(observer, "LOCK.RELEASE", "lock", "c").int(), 1);
        conn.recv(SOON).token();
    }

    /// No request without WAIT overtakes the queue when a lease ends, either.
    fn a_lease_that_ends_goes_to_the_first_in_line(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        for round in 0..5 {
            let lock = format!("lock:{round}");
            cmd!(conn, "LOCK.ACQUIRE", lock, "a", 1_000).token();
            let mut b = waiter(&server, &lock, "b", LONG_MS, 1);
            let mut barger = server.connect();
            let began = Instant::now();
            let owner = loop {
                cmd!(barger, "LOCK.ACQUIRE", lock, "barger", LONG_MS).nil();
                let owner = info(&mut conn, &lock).field("owner").clone();
                if owner == Reply::Bulk(b"b".to_vec()) || began.elapsed() > SOON {
                    break owner;
                }
            };
            assert_eq!(owner, Reply::Bulk(b"b".to_vec()));
            b.recv(SOON).token();
        }
    }

    /// D18: where a client cannot be made to wait (MULTI, scripts, functions) WAIT is ignored: the lock free, a grant;
    /// held, an immediate null. Nothing is queued and no token used.
    fn wait_is_ignored_where_blocking_is_not_allowed(kind: ServerKind) {
        let (server, mut conn) = held(kind);
        let library = "#!lua name=waits\n\
            redis.register_function('wait_for_it', function(keys, argv) \
            return redis.call('LOCK.ACQUIRE', keys[1], argv[1], '600000', 'WAIT', '60000') end)";
        cmd!(conn, "FUNCTION", "LOAD", library).no_err();
        let script = "return redis.call('LOCK.ACQUIRE', KEYS[1], ARGV[1], '600000', 'WAIT', '60000')";
        let ask = |conn: &mut Conn, way: &str, lock: &str| match way {
            "MULTI" => {
                let acquire = args!["LOCK.ACQUIRE", lock, "b", LONG_MS, "WAIT", 0];
                conn.pipeline(&[args!["MULTI"], acquire, args!["EXEC"]])[2].items()[0].clone()
            }
            "EVAL" => cmd!(conn, "EVAL", script, 1, lock, "b"),
            _ => cmd!(conn, "FCALL", "wait_for_it", 1, lock, "b"),
        };
        for way in ["MULTI", "EVAL", "FCALL"] {
            let before = (standing(&mut conn, "lock"), issued(&server));
            ask(&mut server.connect(), way, "lock").nil();
            ask(&mut server.connect_resp3(), way, "lock").nil();
            assert_eq!((standing(&mut conn, "lock"), issued(&server)), before, "{way}");
            assert_eq!(stat_of(&server, "waiters"), 0, "{way}");
            ask(&mut server.connect(), way, &format!("free:{way}")).token();
        }
        let info_map = cmd!(conn, "EVAL",
            "return redis.call('LOCK.ACQUIRE', KEYS[1], 'b', '10', 'WAIT', '0', 'WITHINFO')", 1, "lock");
        assert_eq!(info_map.field("granted").int(), 0);
    }

    /// A RELEASE in a script or transaction hands over like any other (D18, second half).
    fn a_release_in_a_script_or_transaction_hands_over(kind: ServerKind) {
        for script in [true, false] {
            let (server, mut conn) = held(kind);
            let mut b = waiter(&server, "lock", "b", LONG_MS, 1);
            if script {
                assert_eq!(cmd!(conn, "EVAL", "return redis.call('LOCK.RELEASE', KEYS[1], 'a')", 1, "lock").int(), 1);
            } else {
                in_one_turn(&mut conn, &[args!["LOCK.RELEASE", "lock", "a"]], true);
            }
            b.recv(SOON).token();
        }
    }

    /// A RESP3 client with a subscription cannot be made to wait on Valkey: it is answered at once there, and waits
    /// elsewhere. Nothing is left behind in either case.
    fn a_subscribed_client_waits_or_is_answered_at_once(kind: ServerKind) {
        let (server, mut conn) = held(kind);
        let mut subscribed = server.connect_resp3();
        subscribe(&mut subscribed);
        let before = standing(&mut conn, "lock");
        send!(subscribed, "LOCK.ACQUIRE", "lock", "b", LONG_MS, "WAIT", 0);
        if kind.is_valkey() {
            subscribed.recv(SOON).nil();
            assert_eq!(standing(&mut conn, "lock"), before);
            let reply = cmd!(subscribed, "LOCK.ACQUIRE", "lock", "b", 10, "WAIT", 0, "WITHINFO");
            assert_eq!(reply.field("granted").int(), 0);
            assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "a").int(), 1);
            cmd!(subscribed, "LOCK.ACQUIRE", "lock", "b", LONG_MS, "WAIT", 0).token();
        } else {
            wait_queue(&mut conn, "lock", 1);
            assert_eq!(cmd!(conn, "PUBLISH", "channel", "x").int(), 1);
            assert!(subscribed.recv_push(SOON).is_some(), "messages come while it waits");
            assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "a").int(), 1);
            subscribed.recv(SOON).token();
        }
        assert_eq!(cmd!(subscribed, "LOCK.RELEASE", "lock", "b").int(), 1);
        assert_eq!(stat_of(&server, "waiters"), 0);
    }

    /// D20: the same owner queued twice: one grant answers both with one token, and its lease is the longest asked for.
    fn requests_of_one_owner_are_granted_together(kind: ServerKind) {
        let (server, mut conn) = held(kind);
        let mut first = waiter(&server, "lock", "b", 1_000, 1);
        let mut other = waiter(&server, "lock", "c", LONG_MS, 2);
        let mut second = waiter(&server, "lock", "b", 300_000, 3);
        cmd!(conn, "LOCK.RELEASE", "lock", "a");
        let token = first.recv(SOON).token();
        assert_eq!(second.recv(SOON).token(), token);
        let seen = info(&mut conn, "lock");
        assert_eq!((seen.field("grants").int(), seen.field("waiters").int()), (2, 1));
        let left = seen.field("ttl-ms").int();
        assert!((200_000..=300_000).contains(&left), "{left}");
        other.assert_silent(30);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "b").int(), 1);
        other.recv(SOON).token();
    }

    /// D20: a client that lost its connection asks again; it is granted once and keeps what it has been given.
    fn a_request_sent_again_is_granted_once(kind: ServerKind) {
        let (server, mut conn) = held(kind);
        let mut lost = server.connect();
        let id = lost.id();
        send!(lost, "LOCK.ACQUIRE", "lock", "b", LONG_MS, "WAIT", 0);
        wait_queue(&mut conn, "lock", 1);
        // The new request while the old one may still live …
        let mut again = waiter(&server, "lock", "b", LONG_MS, 2);
        assert_eq!(cmd!(conn, "CLIENT", "KILL", "ID", id).int(), 1);
        wait_queue(&mut conn, "lock", 1);
        cmd!(conn, "LOCK.RELEASE", "lock", "a");
        let token = again.recv(SOON).token();
        // … and once more after the grant: its own lease, not a refusal.
        assert_eq!(cmd!(server.connect(), "LOCK.ACQUIRE", "lock", "b", LONG_MS, "WAIT", 0).token(), token);
        assert_eq!(number(&mut conn, "lock", "grants"), 2);
        assert_eq!(stat_of(&server, "waiters"), 0);
    }

    /// D5: a release between check and queueing loses no wake-up: nobody runs into its time-out on a lock that is free
    /// all the time, and no two are inside at once.
    fn no_wake_up_is_lost(kind: ServerKind) {
        const ROUNDS: u32 = 4_000;
        let server = Server::start(kind);
        let (inside, tokens) = (AtomicBool::new(false), Mutex::new(Vec::new()));
        thread::scope(|scope| {
            for name in ["one", "two", "three"] {
                let (server, inside, tokens) = (&server, &inside, &tokens);
                scope.spawn(move || {
                    let mut conn = server.connect();
                    for round in 0..ROUNDS {
                        let began = Instant::now();
                        let reply = cmd!(conn, "LOCK.ACQUIRE", "lock", name, 60_000, "WAIT", 20_000);
                        assert!(!reply.is_nil(), "{name}, round {round}: nobody kept the lock, yet it was not granted");
                        assert!(began.elapsed() < Duration::from_secs(5), "a wake-up came after {:?}", began.elapsed());
                        assert!(!inside.swap(true, Ordering::SeqCst), "two are inside");
                        tokens.lock().unwrap().push(reply.token());
                        inside.store(false, Ordering::SeqCst);
                        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", name).int(), 1);
                    }
                });
            }
        });
        let tokens = tokens.into_inner().unwrap();
        assert_eq!(tokens.len(), 3 * ROUNDS as usize);
        assert!(tokens.is_sorted_by(|before, after| before < after), "tokens rise in the order of the grants");
    }

    /// A waiter that is killed in the turn of its grant: the lease goes to the next at once, not when it ends.
    fn a_lease_granted_to_a_client_killed_in_the_same_turn_goes_on(kind: ServerKind) {
        ended_in_the_turn_of_its_grant(kind, |id| args!["CLIENT", "KILL", "ID", id], &["nothing"]);
    }

    /// The same for CLIENT UNBLOCK … ERROR.
    fn a_lease_granted_to_a_client_unblocked_with_an_error_goes_on(kind: ServerKind) {
        ended_in_the_turn_of_its_grant(kind, |id| args!["CLIENT", "UNBLOCK", id, "ERROR"], &["UNBLOCKED ", "token"]);
    }

    /// And for CLIENT UNBLOCK … TIMEOUT. Redis 7.0 may then swallow the reply, its own fault; the lease goes on all the
    /// same.
    fn a_lease_granted_to_a_client_unblocked_in_the_same_turn_goes_on(kind: ServerKind) {
        let mut answers = vec!["nil", "token"];
        if kind == ServerKind::Redis70 {
            answers.push("nothing");
        }
        ended_in_the_turn_of_its_grant(kind, |id| args!["CLIENT", "UNBLOCK", id, "TIMEOUT"], &answers);
    }

    /// A client that closes its connection about when it is granted, in many interleavings.
    fn a_lease_granted_to_a_client_that_goes_comes_back(kind: ServerKind) {
        let (server, mut conn) = held(kind);
        for round in 0..150 {
            let mut b = waiter(&server, "lock", "b", LONG_MS, 1);
            let mut c = waiter(&server, "lock", "c", LONG_MS, 2);
            send!(conn, "LOCK.RELEASE", "lock", "a");
            if round % 3 == 1 {
                b.recv(SOON).token();
            } else if round % 3 == 2 {
                assert_eq!(conn.recv(SOON).int(), 1);
            }
            b.close();
            if round % 3 != 2 {
                assert_eq!(conn.recv(SOON).int(), 1);
            }
            // If its reply went out the lease is b's, gone or not: nobody can tell a reply that was never read.
            if c.try_recv_within(50).is_none() && cmd!(conn, "LOCK.RELEASE", "lock", "b").int() == 1 {
                c.recv(PROMPT).token();
            }
            wait_until("c's lease", PROMPT, || info(&mut conn, "lock").field("owner").text(), |owner| owner == "c");
            pass_back(&mut conn);
        }
        assert_eq!(stat_of(&server, "waiters"), 0);
    }

    /// Many waiters killed together with the hand-over: the lease reaches the one that lives.
    fn a_lease_passes_over_all_who_were_killed(kind: ServerKind) {
        let (server, mut conn) = held(kind);
        let mut doomed = Vec::new();
        for n in 1..=30 {
            let mut client = server.connect();
            let id = client.id();
            send!(client, "LOCK.ACQUIRE", "lock", format!("w{n}"), LONG_MS, "WAIT", 0);
            wait_queue(&mut conn, "lock", n);
            doomed.push((client, id));
        }
        let mut last = waiter(&server, "lock", "last", LONG_MS, 31);
        let mut commands = vec![args!["LOCK.RELEASE", "lock", "a"]];
        commands.extend(doomed.iter().map(|(_, id)| args!["CLIENT", "KILL", "ID", id]));
        in_one_turn(&mut conn, &commands, true);
        last.recv(PROMPT).token();
        assert_eq!(number(&mut conn, "lock", "waiters"), 0);
    }

    /// CLIENT UNBLOCK of one who waits: null, or -UNBLOCKED; it has left the queue and its connection goes on.
    fn client_unblock_ends_a_wait(kind: ServerKind) {
        let (server, mut conn) = held(kind);
        for (how, three) in [("TIMEOUT", false), ("TIMEOUT", true), ("ERROR", false), ("ERROR", true)] {
            let mut b = if three { server.connect_resp3() } else { server.connect() };
            let id = b.id();
            send!(b, "LOCK.ACQUIRE", "lock", "b", LONG_MS, "WAIT", 0);
            wait_queue(&mut conn, "lock", 1);
            assert_eq!(cmd!(conn, "CLIENT", "UNBLOCK", id, how).int(), 1);
            let reply = b.recv(SOON);
            if how == "ERROR" {
                reply.assert_err_prefix("UNBLOCKED ");
            } else {
                reply.nil();
            }
            wait_queue(&mut conn, "lock", 0);
            assert_eq!(cmd!(b, "PING"), Reply::Simple("PONG".into()));
            assert_eq!(cmd!(conn, "CLIENT", "UNBLOCK", id).int(), 0, "it waits no more");
        }
        let mut b = server.connect();
        let id = b.id();
        send!(b, "LOCK.ACQUIRE", "lock", "b", LONG_MS, "WAIT", 0, "WITHINFO");
        wait_queue(&mut conn, "lock", 1);
        assert_eq!(cmd!(conn, "CLIENT", "UNBLOCK", id).int(), 1);
        let reply = b.recv(SOON);
        assert_eq!((reply.field("granted").int(), reply.field("owner").text()), (0, "a".into()));
    }

    /// 1,000 clients that connect, wait and go leave no waiter and no memory behind.
    fn clients_that_go_leave_nothing_behind(kind: ServerKind) {
        rounds_leave_nothing(kind, 1_000, |_, client, _| client.close());
    }

    /// D25: the same for each other way out of the queue.
    fn clients_that_are_killed_leave_nothing_behind(kind: ServerKind) {
        rounds_leave_nothing(kind, 1_000, |conn, _client, id| {
            assert_eq!(cmd!(conn, "CLIENT", "KILL", "ID", id).int(), 1);
        });
    }

    /// D25: CLIENT UNBLOCK … TIMEOUT.
    fn clients_that_are_unblocked_leave_nothing_behind(kind: ServerKind) {
        rounds_leave_nothing(kind, 1_000, |conn, mut client, id| {
            assert_eq!(cmd!(conn, "CLIENT", "UNBLOCK", id, "TIMEOUT").int(), 1);
            client.recv(SOON).nil();
        });
    }

    /// D25: CLIENT UNBLOCK … ERROR.
    fn clients_unblocked_with_an_error_leave_nothing_behind(kind: ServerKind) {
        rounds_leave_nothing(kind, 1_000, |conn, mut client, id| {
            assert_eq!(cmd!(conn, "CLIENT", "UNBLOCK", id, "ERROR").int(), 1);
            client.recv(SOON).assert_err_prefix("UNBLOCKED ");
        });
    }

    /// D25: a grant.
    fn clients_that_are_granted_leave_nothing_behind(kind: ServerKind) {
        rounds_leave_nothing(kind, 1_000, |conn, mut client, _| {
            assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "a").int(), 1);
            client.recv(SOON).token();
            assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "b").int(), 1);
            cmd!(conn, "LOCK.ACQUIRE", "lock", "a", LONG_MS).token();
        });
    }

    /// D25: a time-out.
    fn clients_that_give_up_leave_nothing_behind(kind: ServerKind) {
        let (server, mut conn) = held(kind);
        let rounds = |conn: &mut Conn, many: u32| {
            for _ in 0..many {
                cmd!(conn, "LOCK.ACQUIRE", "lock", "b", 10, "WAIT", 1).nil();
            }
        };
        rounds(&mut conn, 100);
        let settled = settled_memory(&server);
        rounds(&mut conn, 900);
        assert_eq!((stat_of(&server, "waiters"), stat_of(&server, "wait_timeouts_total")), (0, 1_000));
        wait_until("memory as before", SOON, || server.used_memory(), |used| *used <= settled + 64 * 1024);
    }

    /// D4: a lock that is deleted or replaced under those who wait: each is told at once.
    fn a_lost_lock_is_told_to_all_who_wait(kind: ServerKind) {
        let server = Server::start(kind);
        let mut setup = server.connect();
        cmd!(setup, "LOCK.ACQUIRE", "other", "A", LONG_MS).token();
        let dump = cmd!(setup, "DUMP", "other").bytes().to_vec();
        lost(&server, "DEL", |conn| assert_eq!(cmd!(conn, "DEL", "L").int(), 1));
        lost(&server, "UNLINK", |conn| assert_eq!(cmd!(conn, "UNLINK", "L").int(), 1));
        lost(&server, "FLUSHALL", |conn| cmd!(conn, "FLUSHALL", "SYNC").ok());
        lost(&server, "FLUSHALL ASYNC", |conn| cmd!(conn, "FLUSHALL", "ASYNC").ok());
        lost(&server, "FLUSHDB", |conn| cmd!(conn, "FLUSHDB").ok());
        lost(&server, "SWAPDB", |conn| cmd!(conn, "SWAPDB", 0, 1).ok());
        lost(&server, "RENAME from", |conn| cmd!(conn, "RENAME", "L", "M").ok());
        lost(&server, "RENAME over", |conn| {
            cmd!(conn, "SET", "x", "y").ok();
            cmd!(conn, "RENAME", "x", "L").ok();
        });
        lost(&server, "MOVE", |conn| assert_eq!(cmd!(conn, "MOVE", "L", 1).int(), 1));
        lost(&server, "RESTORE REPLACE", |conn| cmd!(conn, "RESTORE", "L", 0, dump, "REPLACE").ok());
        lost(&server, "SET", |conn| cmd!(conn, "SET", "L", "x").ok());
        lost(&server, "COPY over", |conn| {
            cmd!(conn, "SET", "x", "y").ok();
            assert_eq!(cmd!(conn, "COPY", "x", "L", "REPLACE").int(), 1);
        });
        lost(&server, "SORT STORE", |conn| {
            cmd!(conn, "RPUSH", "list", 2, 1).int();
            assert_eq!(cmd!(conn, "SORT", "list", "STORE", "L").int(), 2);
        });
        lost(&server, "eviction", |conn| {
            cmd!(conn, "CONFIG", "SET", "maxmemory-policy", "allkeys-random").ok();
            cmd!(conn, "CONFIG", "SET", "maxmemory", 1).ok();
            // Something that frees memory must run: a write by a client.
            cmd!(conn, "SET", "x", "y");
            cmd!(conn, "CONFIG", "SET", "maxmemory", 0).ok();
        });
    }

    /// Keyspace commands that do not take the lock away leave those who wait alone.
    fn other_commands_leave_those_who_wait_alone(kind: ServerKind) {
        let (server, mut conn) = held(kind);
        let mut b = waiter(&server, "lock", "b", LONG_MS, 1);
        for words in [
            args!["EXPIRE", "lock", 1], args!["PEXPIRE", "lock", 1], args!["PERSIST", "lock"],
            args!["TOUCH", "lock"], args!["OBJECT", "ENCODING", "lock"], args!["DUMP", "lock"], args!["DEL", "other"],
            args!["SWAPDB", 1, 2], args!["COPY", "lock", "copy"], args!["DEBUG", "DIGEST"], args!["KEYS", "*"],
        ] {
            conn.cmd(&words);
            assert_eq!(number(&mut conn, "lock", "waiters"), 1, "{words:?}");
        }
        b.assert_silent(50);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "a").int(), 1);
        b.recv(SOON).token();
    }

    /// D11: a WAIT that runs into CLIENT PAUSE ALL ends when the pause does.
    fn a_wait_ends_after_a_pause(kind: ServerKind) {
        let (server, mut conn) = held(kind);
        let mut b = server.connect();
        for mode in ["ALL", "WRITE"] {
            let began = Instant::now();
            cmd!(conn, "CLIENT", "PAUSE", 700, mode).ok();
            send!(b, "LOCK.ACQUIRE", "lock", "b", 1_000, "WAIT", 100);
            b.recv(PROMPT).nil();
            let took = ms(began.elapsed());
            assert!((600..5_000).contains(&took), "{mode}: answered after {took} ms");
        }
        assert_eq!(stat_of(&server, "waiters"), 0);
    }

    /// D11, E8: who waits already is timed out, and served, though a pause falls in between; nothing is granted, nor
    /// replicated, while writes are paused.
    fn a_pause_delays_grants_and_loses_none(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "a", 2_000).token();
        let mut over = waiter_for(&server, "lock", "b", LONG_MS, 1_500, 1);
        let mut c = waiter(&server, "lock", "c", LONG_MS, 2);
        let paused = Instant::now();
        cmd!(conn, "CLIENT", "PAUSE", 5_000, "WRITE").ok();
        over.recv(PROMPT).nil();
        assert!(paused.elapsed() < Duration::from_millis(4_500), "its time-out waits for no pause");
        let offset = server.info("replication")["master_repl_offset"].clone();
        let quiet = Duration::from_millis(4_000).saturating_sub(paused.elapsed());
        c.assert_silent(ms(quiet));
        if paused.elapsed() < Duration::from_millis(4_500) {
            assert_eq!(server.info("replication")["master_repl_offset"], offset);
        }
        c.recv(PROMPT).token();
    }

    /// D7: a client that gave up reading and sends on over the same connection reads its grant before the next reply.
    fn replies_stay_in_order_behind_a_wait(kind: ServerKind) {
        let (server, mut conn) = held(kind);
        let mut b = waiter(&server, "lock", "b", 60_000, 1);
        send!(b, "ECHO", "next");
        send!(b, "LOCK.RELEASE", "lock", "b");
        b.assert_silent(50);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "a").int(), 1);
        b.recv(SOON).token();
        assert_eq!(b.recv(SOON).text(), "next");
        assert_eq!(b.recv(SOON).int(), 1);
    }

    /// D23: the command says that it may block.
    fn the_command_is_flagged_as_blocking(kind: ServerKind) {
        let server = Server::start(kind);
        let about = cmd!(server.connect(), "COMMAND", "INFO", "LOCK.ACQUIRE");
        let flags: Vec<String> = about.items()[0].items()[2].items().iter().map(Reply::text).collect();
        assert!(flags.iter().any(|flag| flag == "blocking"), "{flags:?}");
        assert!(flags.iter().any(|flag| flag == "denyoom"), "{flags:?}");
    }

    /// Waiters on many locks do not stand in each other's way.
    fn queues_of_different_locks_are_apart(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let mut waiting = Vec::new();
        for n in 0..100 {
            let lock = format!("lock:{n}");
            cmd!(conn, "LOCK.ACQUIRE", lock, "a", LONG_MS).token();
            waiting.push(waiter(&server, &lock, "b", LONG_MS, 1));
        }
        assert_eq!(stat_of(&server, "contended_locks"), 100);
        for n in (0..100).rev() {
            assert_eq!(cmd!(conn, "LOCK.RELEASE", format!("lock:{n}"), "a").int(), 1);
            let mut b = waiting.pop().unwrap();
            b.recv(SOON).token();
            assert_eq!(stat_of(&server, "waiters"), n);
        }
    }

    /// A blocked client sees MINTOKEN at its grant.
    fn a_waiters_mintoken_holds_at_its_grant(kind: ServerKind) {
        let (server, mut conn) = held(kind);
        let high = number(&mut conn, "lock", "token").unsigned_abs() + 5_000_000;
        let mut b = server.connect();
        send!(b, "LOCK.ACQUIRE", "lock", "b", LONG_MS, "MINTOKEN", high, "WAIT", 0);
        wait_queue(&mut conn, "lock", 1);
        cmd!(conn, "LOCK.RELEASE", "lock", "a");
        assert_eq!(b.recv(SOON).token(), high);
        assert_eq!(stat_of(&server, "highest_token"), high);
    }

    /// G2: an owner whose waiting connection went at the hand-over, and who was told on another connection that it holds
    /// the lock, keeps it: its lease is not given back behind its back.
    fn a_lease_confirmed_on_another_connection_is_not_given_back(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        for how in ["acquire", "extend"] {
            let lock = format!("lock:{how}");
            cmd!(conn, "LOCK.ACQUIRE", &lock, "first", 600_000).token();
            let mut second = server.connect();
            let id = second.id();
            send!(second, "LOCK.ACQUIRE", &lock, "second", 600_000, "WAIT", 0);
            server.wait_blocked_clients(1);
            let mut third = server.connect();
            send!(third, "LOCK.ACQUIRE", &lock, "third", 600_000, "WAIT", 0);
            server.wait_blocked_clients(2);
            cmd!(conn, "MULTI").ok();
            cmd!(conn, "LOCK.RELEASE", &lock, "first");
            cmd!(conn, "CLIENT", "KILL", "ID", id);
            // The server refuses writes for now, so that what was granted to nobody cannot be given back yet.
            cmd!(conn, "CONFIG", "SET", "min-replicas-to-write", 1);
            cmd!(conn, "EXEC").no_err();
            // Writes are taken again, and the owner asks at once, in the same packet.
            let allow = args!["CONFIG", "SET", "min-replicas-to-write", 0];
            if how == "acquire" {
                let ask = args!["LOCK.ACQUIRE", &lock, "second", 600_000, "WITHINFO"];
                let reply = conn.pipeline(&[allow, ask]).pop().expect("two replies");
                assert_eq!((reply.field("granted").int(), reply.field("renewed").int()), (1, 1));
            } else {
                let ask = args!["LOCK.EXTEND", &lock, "second", 600_000];
                assert_eq!(conn.pipeline(&[allow, ask]).pop().expect("two replies").int(), 1);
            }
            third.assert_silent(500);
            assert_eq!(cmd!(conn, "LOCK.RELEASE", &lock, "second").int(), 1);
            third.recv(Duration::from_secs(15)).token();
            assert_eq!(cmd!(conn, "LOCK.RELEASE", &lock, "third").int(), 1);
        }
    }
}
