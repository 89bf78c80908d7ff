//! FENCE.WRITE, FENCE.CHECK, FENCE.ADVANCE: whose writes still count, and what is written when they do.

use crate::common;

use std::time::Duration;

use common::{LONG_MS, SOON, TOKEN_MAX, info, owner, standing, wait_free, waiter};
use lockfence_testkit::{
    Conn, ReplicationStream, Reply, Server, ServerKind, args, cmd, server_tests, wait_until,
};

/// The three ways to ask whether a token counts; each is refused with the same line.
const WAYS: [&str; 3] = ["FENCE.WRITE", "FENCE.CHECK", "FENCE.CALL"];

/// Asks in one of the ways, with `data` as the key to be written.
fn ask(conn: &mut Conn, way: &str, keeper: &str, token: u64, data: &str) -> Reply {
    match way {
        "FENCE.WRITE" => cmd!(conn, way, keeper, token, data, "by the stale one"),
        "FENCE.CALL" => cmd!(conn, way, keeper, token, "SET", data, "by the stale one"),
        _ => cmd!(conn, way, keeper, token),
    }
}

/// Asserts that all ways are refused with this line, in both protocols, and that neither data nor keeper change.
#[track_caller]
fn assert_refused(server: &Server, keeper: &str, token: u64, line: &str) {
    for mut conn in [server.connect(), server.connect_resp3()] {
        cmd!(conn, "SET", "data", "as it was").ok();
        let before = server.digest();
        for way in WAYS {
            assert_eq!(ask(&mut conn, way, keeper, token, "data").err(), line, "{way}");
            assert_eq!(conn.last_raw(), format!("-{line}\r\n").as_bytes());
        }
        assert_eq!(cmd!(conn, "GET", "data").text(), "as it was");
        assert_eq!(server.digest(), before, "a refused command changed something");
    }
}

/// A lock that was held twice: the first token and the second, whose holder still has it.
fn succeeded(conn: &mut Conn, lock: &str) -> (u64, u64) {
    let first = cmd!(conn, "LOCK.ACQUIRE", lock, "first", LONG_MS).token();
    assert_eq!(cmd!(conn, "LOCK.RELEASE", lock, "first").int(), 1);
    (first, cmd!(conn, "LOCK.ACQUIRE", lock, "second", LONG_MS).token())
}

server_tests! {
    /// "Accepted are the token of a live holder": FENCE.WRITE replies as SET, CHECK the counter.
    fn a_live_holder_writes(kind: ServerKind) {
        let server = Server::start(kind);
        for (mut conn, lock) in [(server.connect(), "two"), (server.connect_resp3(), "three")] {
            let token = cmd!(conn, "LOCK.ACQUIRE", lock, "me", LONG_MS).token();
            cmd!(conn, "FENCE.WRITE", lock, token, "data", lock).ok();
            assert_eq!(conn.last_raw(), b"+OK\r\n");
            assert_eq!(cmd!(conn, "GET", "data").text(), lock);
            assert_eq!(cmd!(conn, "FENCE.CHECK", lock, token).token(), token);
            assert_eq!(conn.last_raw(), format!(":{token}\r\n").as_bytes());
        }
    }

    /// A15, G4: the grant alone fences. The successor has written nothing yet, and the predecessor is refused, also
    /// when its lease ended by itself.
    fn a_grant_alone_fences_the_holder_before(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let first = cmd!(conn, "LOCK.ACQUIRE", "lock", "paused", 30).token();
        wait_free(&mut conn, "lock");
        let second = cmd!(conn, "LOCK.ACQUIRE", "lock", "next", LONG_MS).token();
        let line = format!("FENCED token {first} is stale: lock \"lock\" is at {second}");
        assert_refused(&server, "lock", first, &line);
        cmd!(conn, "FENCE.WRITE", "lock", second, "data", "new").ok();
        assert_refused(&server, "lock", first, &line);
    }

    /// G4: a grant that comes from the queue, at a release, fences as well, in the same turn of the server.
    fn a_hand_over_fences_the_holder_before(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let first = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        let mut next = waiter(&server, "lock", "next", LONG_MS, 1);
        let replies = conn.pipeline(&[
            args!["LOCK.RELEASE", "lock", "me"],
            args!["FENCE.WRITE", "lock", first, "data", "late"],
        ]);
        assert_eq!(replies[0].int(), 1);
        replies[1].assert_err_prefix("FENCED ");
        let second = next.recv(SOON).token();
        assert_refused(
            &server,
            "lock",
            first,
            &format!("FENCED token {first} is stale: lock \"lock\" is at {second}"),
        );
    }

    /// "higher: -FENCED … was never issued by lock": one above the counter, and the highest there can be.
    fn a_token_above_the_counter_was_never_issued(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        for never in [token + 1, TOKEN_MAX] {
            let line = format!("FENCED token {never} was never issued by lock \"lock\"");
            assert_refused(&server, "lock", never, &line);
        }
    }

    /// "No such key: -FENCED "x" has no record". The name is escaped, and cut at 64 bytes.
    fn a_key_without_a_record_fences_all(kind: ServerKind) {
        let server = Server::start(kind);
        assert_refused(&server, "nothing", 1, "FENCED \"nothing\" has no record");
        let mut conn = server.connect();
        for (name, shown) in [
            (b"a\0b\r\n\"\xff".to_vec(), r#""a\x00b\r\n\"\xff""#.to_owned()),
            (vec![b'n'; 65], format!("\"{}\"...", "n".repeat(64))),
            (Vec::new(), "\"\"".to_owned()),
        ] {
            let reply = cmd!(conn, "FENCE.CHECK", name, 7);
            assert_eq!(reply.err(), format!("FENCED {shown} has no record"));
        }
        assert_eq!(cmd!(conn, "EXISTS", "nothing").int(), 0);
    }

    /// A7: "a holder whose lease has ended may still write until a successor is granted".
    fn the_counter_writes_after_its_lease_ended_until_the_next_grant(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", 20).token();
        wait_free(&mut conn, "lock");
        cmd!(conn, "FENCE.WRITE", "lock", token, "data", "after the end").ok();
        assert_eq!(cmd!(conn, "FENCE.CALL", "lock", token, "GET", "data").text(), "after the end");
        assert_eq!(cmd!(conn, "FENCE.CHECK", "lock", token).token(), token);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "me").int(), 0);
        cmd!(conn, "FENCE.WRITE", "lock", token, "data", "again").ok();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "next", LONG_MS).token();
        cmd!(conn, "FENCE.WRITE", "lock", token, "data", "too late").assert_err_prefix("FENCED ");
    }

    /// "A released lock's last token still writes until the next grant."
    fn a_released_token_writes_until_the_next_grant(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "me").int(), 1);
        cmd!(conn, "FENCE.WRITE", "lock", token, "data", "after the release").ok();
        cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        cmd!(conn, "FENCE.WRITE", "lock", token, "data", "x").assert_err_prefix("FENCED ");
        assert_eq!(cmd!(conn, "GET", "data").text(), "after the release");
    }

    /// LOCK.BREAK "uses up a token, so that they are fenced at once".
    fn a_broken_lock_fences_its_holder_at_once(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        assert_eq!(cmd!(conn, "LOCK.BREAK", "lock").int(), 1);
        let counter = info(&mut conn, "lock").field("counter").token();
        assert!(counter > token);
        assert_refused(
            &server,
            "lock",
            token,
            &format!("FENCED token {token} is stale: lock \"lock\" is at {counter}"),
        );
    }

    /// EXTEND with MINTOKEN raises the holder's token: the one it had before is stale from then on.
    fn a_token_raised_by_extend_replaces_the_one_before(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let first = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        let raised = first + 1000;
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "me", LONG_MS, "MINTOKEN", raised).int(), 1);
        cmd!(conn, "FENCE.WRITE", "lock", raised, "data", "raised").ok();
        assert_refused(
            &server,
            "lock",
            first,
            &format!("FENCED token {first} is stale: lock \"lock\" is at {raised}"),
        );
    }

    /// "Deleting a lock's key … the holder is fenced."
    fn a_deleted_lock_fences_its_holder(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        assert_eq!(cmd!(conn, "DEL", "lock").int(), 1);
        assert_refused(&server, "lock", token, "FENCED \"lock\" has no record");
        let next = cmd!(conn, "LOCK.ACQUIRE", "lock", "next", LONG_MS).token();
        assert_refused(
            &server,
            "lock",
            token,
            &format!("FENCED token {token} is stale: lock \"lock\" is at {next}"),
        );
    }

    /// "no FENCE.* command changes a lock": neither its holder, nor its counter, nor its queue, nor its lease.
    fn no_fence_command_changes_a_lock(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let (stale, token) = succeeded(&mut conn, "lock");
        let _waiting = waiter(&server, "lock", "w", LONG_MS, 1);
        let before = standing(&mut conn, "lock");
        let lease = info(&mut conn, "lock").field("ttl-ms").int();
        for way in WAYS {
            ask(&mut conn, way, "lock", token, "data").no_err();
            ask(&mut conn, way, "lock", stale, "data").assert_err_prefix("FENCED ");
            ask(&mut conn, way, "lock", token + 1, "data").assert_err_prefix("FENCED ");
        }
        cmd!(conn, "FENCE.ADVANCE", "lock", token + 1).assert_err_prefix("WRONGTYPE ");
        assert_eq!(standing(&mut conn, "lock"), before);
        assert!(info(&mut conn, "lock").field("ttl-ms").int() <= lease);
    }

    /// "On a fence: a token at or above the highest seen, which it becomes"; below: stale, with the fence's counter.
    fn a_fence_remembers_the_highest_token_seen(kind: ServerKind) {
        let server = Server::start(kind);
        for (mut conn, fence) in [(server.connect(), "two"), (server.connect_resp3(), "three")] {
            assert_eq!(cmd!(conn, "FENCE.ADVANCE", fence, 42).int(), 42);
            assert_eq!(conn.last_raw(), b":42\r\n");
            assert_eq!(cmd!(conn, "TYPE", fence).text(), "fencemark");
            assert_eq!(cmd!(conn, "FENCE.ADVANCE", fence, 42).int(), 42, "the same again");
            let stale = format!("FENCED token 41 is stale: fence \"{fence}\" is at 42");
            assert_eq!(cmd!(conn, "FENCE.ADVANCE", fence, 41).err(), stale);
            assert_refused(&server, fence, 41, &stale);
            cmd!(conn, "FENCE.WRITE", fence, 42, "data", "42").ok();
            cmd!(conn, "FENCE.WRITE", fence, 50, "data", "50").ok();
            assert_refused(
                &server,
                fence,
                49,
                &format!("FENCED token 49 is stale: fence \"{fence}\" is at 50"),
            );
            assert_eq!(cmd!(conn, "FENCE.CALL", fence, 60, "SET", "data", "60").text(), "OK");
            assert_refused(
                &server,
                fence,
                59,
                &format!("FENCED token 59 is stale: fence \"{fence}\" is at 60"),
            );
            assert_eq!(cmd!(conn, "FENCE.ADVANCE", fence, TOKEN_MAX).token(), TOKEN_MAX);
            assert_eq!(cmd!(conn, "FENCE.CHECK", fence, TOKEN_MAX).token(), TOKEN_MAX);
        }
    }

    /// FENCE.CHECK "changes nothing": a higher token passes, and the fence stays where it is.
    fn a_check_raises_no_fence(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "FENCE.ADVANCE", "fence", 10).no_err();
        let before = server.digest();
        assert_eq!(cmd!(conn, "FENCE.CHECK", "fence", 99).int(), 10);
        assert_eq!(server.digest(), before);
        cmd!(conn, "FENCE.WRITE", "fence", 10, "data", "x").ok();
    }

    /// A fence is made by FENCE.ADVANCE alone: a write with a token but no record makes none.
    fn only_advance_makes_a_fence(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        for way in WAYS {
            ask(&mut conn, way, "fence", 5, "data").assert_err_prefix("FENCED ");
        }
        assert_eq!(cmd!(conn, "DBSIZE").int(), 0);
    }

    /// "FENCE.ADVANCE takes PX ms for fences that should go by themselves"; a later write leaves that time alone.
    fn a_fence_with_px_goes_by_itself(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        assert_eq!(cmd!(conn, "FENCE.ADVANCE", "fence", 10, "PX", 100_000).int(), 10);
        let left = cmd!(conn, "PTTL", "fence").int();
        assert!((50_000..=100_000).contains(&left), "{left}");
        cmd!(conn, "FENCE.WRITE", "fence", 20, "data", "x").ok();
        let after = cmd!(conn, "PTTL", "fence").int();
        assert!((1..=left).contains(&after), "{after} after {left}");
        assert_eq!(cmd!(conn, "FENCE.ADVANCE", "fence", 20, "px", 900_000).int(), 20);
        assert!(cmd!(conn, "PTTL", "fence").int() > 800_000, "the same token with a new PX");
        assert_eq!(cmd!(conn, "FENCE.ADVANCE", "fence", 20, "PX", 30).int(), 20);
        wait_until(
            "the fence to go",
            SOON,
            || cmd!(conn, "EXISTS", "fence"),
            |reply| *reply == Reply::Int(0),
        );
        assert_refused(&server, "fence", 20, "FENCED \"fence\" has no record");
    }

    /// "the ordinary EXPIRE works on them too", and PERSIST.
    fn expire_and_persist_work_on_a_fence(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "FENCE.ADVANCE", "fence", 10).no_err();
        assert_eq!(cmd!(conn, "PTTL", "fence").int(), -1);
        assert_eq!(cmd!(conn, "EXPIRE", "fence", 100).int(), 1);
        assert!(cmd!(conn, "TTL", "fence").int() > 50);
        assert_eq!(cmd!(conn, "PERSIST", "fence").int(), 1);
        assert_eq!(cmd!(conn, "PTTL", "fence").int(), -1);
        assert_eq!(cmd!(conn, "PEXPIRE", "fence", 20).int(), 1);
        wait_until(
            "the fence to go",
            SOON,
            || cmd!(conn, "EXISTS", "fence"),
            |reply| *reply == Reply::Int(0),
        );
        cmd!(conn, "FENCE.WRITE", "fence", 10, "data", "x").assert_err_prefix("FENCED ");
        assert_eq!(cmd!(conn, "FENCE.ADVANCE", "fence", 3).int(), 3, "a new fence begins anew");
    }

    /// Bad options of FENCE.ADVANCE: an error that names the word, and no fence.
    fn advance_refuses_what_is_no_option(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let range = "ERR PX ms must be a decimal integer from 1 to 31536000000";
        for (options, line) in [
            (args!["PX"], "ERR option PX needs a value"),
            (args!["EX", 10], "ERR unknown option \"EX\""),
            (args!["PX", 10, "PX", 10], "ERR option PX is given twice"),
            (args!["PX", 10, "NX"], "ERR unknown option \"NX\""),
            (args!["PX", 0], range),
            (args!["PX", -1], range),
            (args!["PX", "1.5"], range),
            (args!["PX", ""], range),
            (args!["PX", "31536000001"], range),
            (args!["PX", "9223372036854775807"], range),
        ] {
            let words = [args!["FENCE.ADVANCE", "fence", 5], options].concat();
            assert_eq!(conn.cmd(&words).err(), line, "{words:?}");
        }
        assert_eq!(cmd!(conn, "EXISTS", "fence").int(), 0);
    }

    /// "token 0, negative, above 2^53-1", and whatever is no plain decimal integer: -ERR in every command.
    fn a_token_is_a_plain_decimal_integer(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        cmd!(conn, "FENCE.ADVANCE", "fence", 1).no_err();
        cmd!(conn, "SET", "data", "as it was").ok();
        let before = server.digest();
        let line = format!("ERR token must be a decimal integer from 1 to {TOKEN_MAX}");
        let formats = [
            "0",
            "-1",
            "",
            " 1",
            "1 ",
            "+1",
            "01",
            "1.0",
            "1e3",
            "0x1",
            "9007199254740992",
            "18446744073709551617",
            "99999999999999999999999",
            "\0",
            "abc",
            "١",
        ];
        for bad in formats.into_iter().map(str::to_owned).chain([format!("0{token}"), format!("{token}.0")]) {
            for keeper in ["lock", "fence", "nothing"] {
                for words in [
                    args!["FENCE.WRITE", keeper, bad, "data", "x"],
                    args!["FENCE.CALL", keeper, bad, "SET", "data", "x"],
                    args!["FENCE.CHECK", keeper, bad],
                    args!["FENCE.ADVANCE", keeper, bad],
                ] {
                    assert_eq!(conn.cmd(&words).err(), line, "{words:?}");
                }
            }
        }
        assert_eq!(server.digest(), before);
    }

    /// Too few or too many words: the server's usual line, and nothing done.
    fn wrong_arity_is_refused(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        for words in [
            args!["FENCE.WRITE"],
            args!["FENCE.WRITE", "lock"],
            args!["FENCE.WRITE", "lock", token],
            args!["FENCE.WRITE", "lock", token, "data"],
            args!["FENCE.CALL", "lock"],
            args!["FENCE.CALL", "lock", token],
            args!["FENCE.CHECK"],
            args!["FENCE.CHECK", "lock"],
            args!["FENCE.CHECK", "lock", token, "more"],
            args!["FENCE.ADVANCE", "fence"],
        ] {
            let name = String::from_utf8_lossy(&words[0]).to_lowercase();
            let line = format!("ERR wrong number of arguments for '{name}' command");
            assert_eq!(conn.cmd(&words).err(), line, "{words:?}");
        }
        assert_eq!(cmd!(conn, "KEYS", "*").items().len(), 1);
    }

    /// "LOCK.* on a fence, FENCE.ADVANCE on a lock; data command on either": -WRONGTYPE, nothing changed.
    fn the_wrong_kind_of_key_is_refused(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        cmd!(conn, "FENCE.ADVANCE", "fence", 10).no_err();
        cmd!(conn, "SET", "string", "x").ok();
        cmd!(conn, "RPUSH", "list", "x").no_err();
        cmd!(conn, "XADD", "stream", "*", "f", "v").no_err();
        let before = server.digest();
        let mut refused =
            vec![args!["FENCE.ADVANCE", "lock", token], args!["FENCE.ADVANCE", "lock", token + 1]];
        for key in ["fence", "string", "list", "stream"] {
            refused.extend([
                args!["LOCK.ACQUIRE", key, "me", 1000],
                args!["LOCK.ACQUIRE", key, "me", 1000, "WAIT", 1000],
                args!["LOCK.RELEASE", key, "me"],
                args!["LOCK.EXTEND", key, "me", 1000],
                args!["LOCK.INFO", key],
                args!["LOCK.BREAK", key],
            ]);
        }
        for key in ["string", "list", "stream"] {
            refused.extend([
                args!["FENCE.WRITE", key, 10, "data", "x"],
                args!["FENCE.CALL", key, 10, "SET", "data", "x"],
                args!["FENCE.CHECK", key, 10],
                args!["FENCE.ADVANCE", key, 10],
            ]);
        }
        for key in ["lock", "fence"] {
            refused.extend([
                args!["GET", key],
                args!["INCR", key],
                args!["APPEND", key, "x"],
                args!["GETDEL", key],
                args!["GETEX", key, "PERSIST"],
                args!["GETSET", key, "x"],
                args!["SET", key, "x", "GET"],
                args!["RPUSH", key, "x"],
                args!["HSET", key, "f", "v"],
                args!["SADD", key, "m"],
                args!["ZADD", key, 1, "m"],
                args!["XADD", key, "*", "f", "v"],
                args!["LLEN", key],
                args!["SUNIONSTORE", "dest", key],
                args!["PFADD", key, "x"],
                args!["GEOADD", key, 1, 1, "x"],
                args!["SETRANGE", key, 1, "x"],
                args!["BITCOUNT", key],
                args!["LMOVE", "list", key, "LEFT", "LEFT"],
                args!["SORT", key],
            ]);
        }
        for mut conn in [server.connect(), server.connect_resp3()] {
            for words in &refused {
                let reply = conn.cmd(words);
                let shown = format!("{words:?}: {reply:?}");
                assert!(reply.is_err() && reply.err().starts_with("WRONGTYPE "), "{shown}");
            }
        }
        assert_eq!(server.digest(), before);
    }

    /// "The data key may not be the lock or fence itself", with a good token as with any other.
    fn the_data_key_may_not_be_the_lock_or_fence(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        cmd!(conn, "FENCE.ADVANCE", "fence", 10).no_err();
        let before = server.digest();
        let line = "ERR the data key may not be the lock or fence itself";
        for (key, token) in [("lock", token), ("fence", 10), ("fence", 11), ("nothing", 1)] {
            assert_eq!(cmd!(conn, "FENCE.WRITE", key, token, key, "x").err(), line);
            assert_eq!(cmd!(conn, "FENCE.CALL", key, token, "SET", key, "x").err(), line);
        }
        assert_eq!(server.digest(), before);
        assert_eq!(owner(&mut conn, "lock").as_deref(), Some("me"));
    }

    /// G2 of the cases, "-OOM for ACQUIRE, FENCE.WRITE, FENCE.ADVANCE; never for RELEASE, EXTEND, BREAK".
    fn at_the_memory_limit_nothing_is_added_and_all_can_be_let_go(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        cmd!(conn, "LOCK.ACQUIRE", "other", "me", LONG_MS).token();
        cmd!(conn, "FENCE.ADVANCE", "fence", 10).no_err();
        cmd!(conn, "SET", "data", "as it was").ok();
        let before = (server.digest(), standing(&mut conn, "lock"));
        server.config_set("maxmemory", "1");
        for words in [
            args!["LOCK.ACQUIRE", "new", "me", LONG_MS],
            args!["LOCK.ACQUIRE", "lock", "you", LONG_MS],
            args!["LOCK.ACQUIRE", "lock", "you", LONG_MS, "WAIT", 0],
            args!["FENCE.WRITE", "lock", token, "data", "x"],
            args!["FENCE.WRITE", "fence", 20, "data", "x"],
            args!["FENCE.ADVANCE", "fence", 20],
            args!["FENCE.ADVANCE", "new", 20],
            args!["FENCE.CALL", "lock", token, "SET", "data", "x"],
            args!["FENCE.CALL", "lock", token, "RPUSH", "list", "x"],
        ] {
            let reply = conn.cmd(&words);
            assert!(reply.is_err() && reply.err().starts_with("OOM "), "{words:?}: {reply:?}");
        }
        assert_eq!((server.digest(), standing(&mut conn, "lock")), before);
        assert_eq!(cmd!(conn, "FENCE.CHECK", "lock", token).token(), token);
        assert_eq!(cmd!(conn, "FENCE.CALL", "lock", token, "GET", "data").text(), "as it was");
        assert_eq!(
            cmd!(conn, "FENCE.CALL", "lock", token, "DEL", "data").int(),
            1,
            "what frees memory works"
        );
        assert_eq!(cmd!(conn, "LOCK.EXTEND", "lock", "me", LONG_MS).int(), 1);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "me").int(), 1);
        assert_eq!(cmd!(conn, "LOCK.BREAK", "other").int(), 1);
        server.config_set("maxmemory", "0");
        assert!(cmd!(conn, "LOCK.ACQUIRE", "lock", "you", LONG_MS).token() > token);
    }

    /// "FENCE.WRITE lock-or-fence token key value [SET options]": for whatever stands there, and whatever options, the
    /// reply, the value and the TTL are those of SET, errors too. In both protocols.
    fn write_does_what_set_does(kind: ServerKind) {
        let server = Server::start(kind);
        for (mut conn, lock) in [(server.connect(), "two"), (server.connect_resp3(), "three")] {
            let token = cmd!(conn, "LOCK.ACQUIRE", lock, "me", LONG_MS).token();
            for before in [None, Some(args!["SET"]), Some(args!["SET", "EX", 500]), Some(args!["RPUSH"])] {
                for options in set_options() {
                    let by_set = try_set(&mut conn, &["SET"].map(Vec::from), "plain", &before, &options);
                    let way = args!["FENCE.WRITE", lock, token];
                    let fenced = try_set(&mut conn, &way, "fenced", &before, &options);
                    let shown: Vec<_> = options.iter().map(|word| word.escape_ascii().to_string()).collect();
                    assert_eq!(fenced, by_set, "{before:?} {shown:?}");
                }
            }
        }
    }

    /// "TTLs, WATCH, tracking and keyspace events work as for SET": the events.
    fn a_write_notifies_as_set_does(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        server.config_set("notify-keyspace-events", "KEA");
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        let mut listener = server.connect();
        cmd!(listener, "PSUBSCRIBE", "__key*").no_err();
        cmd!(conn, "SET", "data", "x", "EX", 100).ok();
        let by_set = events(&mut conn, &mut listener);
        cmd!(conn, "DEL", "data").no_err();
        events(&mut conn, &mut listener);
        cmd!(conn, "FENCE.WRITE", "lock", token, "data", "x", "EX", 100).ok();
        let by_write = events(&mut conn, &mut listener);
        assert!(by_set.iter().any(|event| event.contains("set")), "{by_set:?}");
        assert_eq!(by_write, by_set);
        cmd!(conn, "FENCE.WRITE", "lock", token + 1, "data", "x").assert_err_prefix("FENCED ");
        cmd!(conn, "FENCE.CHECK", "lock", token).no_err();
        assert_eq!(
            events(&mut conn, &mut listener),
            Vec::<String>::new(),
            "a refused write tells of nothing"
        );
    }

    /// A WATCH on the data key aborts the EXEC when FENCE.WRITE or FENCE.CALL wrote it, not when it was refused or only
    /// read.
    fn a_write_aborts_those_who_watch(kind: ServerKind) {
        let server = Server::start(kind);
        let (mut conn, mut watcher) = (server.connect(), server.connect());
        let (stale, token) = succeeded(&mut conn, "lock");
        cmd!(conn, "FENCE.ADVANCE", "fence", 10).no_err();
        for (words, aborts) in [
            (args!["FENCE.WRITE", "lock", token, "data", "x"], true),
            (args!["FENCE.WRITE", "fence", 10, "data", "y"], true),
            (args!["FENCE.CALL", "lock", token, "APPEND", "data", "z"], true),
            (args!["FENCE.CALL", "lock", token, "GET", "data"], false),
            (args!["FENCE.WRITE", "lock", token, "else", "x"], false),
            (args!["FENCE.WRITE", "lock", stale, "data", "x"], false),
            (args!["FENCE.CALL", "lock", stale, "SET", "data", "x"], false),
            (args!["FENCE.CHECK", "lock", token], false),
        ] {
            cmd!(watcher, "WATCH", "data").ok();
            conn.cmd(&words);
            cmd!(watcher, "MULTI").ok();
            cmd!(watcher, "PING").no_err();
            assert_eq!(cmd!(watcher, "EXEC").no_err().is_nil(), aborts, "{words:?}");
        }
    }

    /// A WATCH on the lock or fence itself: a check, a refusal and a write that raises nothing abort no EXEC; a token
    /// that raises the fence, and a grant, do.
    fn only_what_changes_a_record_aborts_those_who_watch_it(kind: ServerKind) {
        let server = Server::start(kind);
        let (mut conn, mut watcher) = (server.connect(), server.connect());
        let (stale, token) = succeeded(&mut conn, "lock");
        cmd!(conn, "FENCE.ADVANCE", "fence", 10).no_err();
        for (key, words, aborts) in [
            ("lock", args!["FENCE.CHECK", "lock", token], false),
            ("lock", args!["FENCE.CHECK", "lock", stale], false),
            ("lock", args!["FENCE.WRITE", "lock", token, "data", "x"], false),
            ("lock", args!["FENCE.WRITE", "lock", stale, "data", "x"], false),
            ("lock", args!["LOCK.ACQUIRE", "lock", "third", LONG_MS], false),
            ("lock", args!["LOCK.RELEASE", "lock", "second"], true),
            ("lock", args!["LOCK.ACQUIRE", "lock", "third", LONG_MS], true),
            ("fence", args!["FENCE.CHECK", "fence", 11], false),
            ("fence", args!["FENCE.WRITE", "fence", 10, "data", "x"], false),
            ("fence", args!["FENCE.WRITE", "fence", 9, "data", "x"], false),
            ("fence", args!["FENCE.ADVANCE", "fence", 10], false),
            ("fence", args!["FENCE.WRITE", "fence", 12, "data", "x"], true),
            ("fence", args!["FENCE.ADVANCE", "fence", 13], true),
            ("fence", args!["FENCE.CALL", "fence", 14, "GET", "data"], true),
        ] {
            cmd!(watcher, "WATCH", key).ok();
            conn.cmd(&words);
            cmd!(watcher, "MULTI").ok();
            cmd!(watcher, "PING").no_err();
            assert_eq!(cmd!(watcher, "EXEC").no_err().is_nil(), aborts, "{words:?}");
        }
    }

    /// A client with CLIENT TRACKING that has read the data is told when FENCE.WRITE or FENCE.CALL changes it.
    fn a_write_invalidates_what_clients_have_cached(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let (stale, token) = succeeded(&mut conn, "lock");
        let mut reader = server.connect_resp3();
        cmd!(reader, "CLIENT", "TRACKING", "ON").ok();
        for words in [
            args!["FENCE.WRITE", "lock", token, "data", "x"],
            args!["FENCE.CALL", "lock", token, "APPEND", "data", "y"],
        ] {
            cmd!(reader, "GET", "data").no_err();
            cmd!(conn, "FENCE.WRITE", "lock", stale, "data", "no").assert_err_prefix("FENCED ");
            conn.cmd(&words).no_err();
            let push = reader.recv_push(SOON).expect("an invalidation");
            assert_eq!(push.items()[0].text(), "invalidate");
            assert_eq!(push.items()[1].items()[0].text(), "data");
            assert_eq!(reader.recv_push(Duration::from_millis(50)), None, "one invalidation for one change");
        }
    }

    /// "the raised counter and the inner write are one atomic, all-or-nothing unit … on replicas". On a lock, and with
    /// a token that raises nothing, the stream has the SET alone; after a refusal nothing.
    fn a_raised_fence_and_the_write_are_one_unit_for_replicas(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let (stale, token) = succeeded(&mut conn, "lock");
        cmd!(conn, "FENCE.ADVANCE", "fence", 10).no_err();
        let mut stream = ReplicationStream::attach(&server);
        cmd!(conn, "FENCE.WRITE", "fence", 11, "data", "x").ok();
        let lines = stream.lines_until_now(&server);
        let lines: Vec<_> = lines.iter().filter(|line| !line.starts_with("SELECT")).collect();
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert_eq!((lines[0].as_str(), lines[3].as_str()), ("MULTI", "EXEC"));
        assert!(lines[1].to_uppercase().starts_with("LF.LOG FENCE "), "{lines:?}");
        assert_eq!(lines[2], "SET data x");
        cmd!(conn, "FENCE.WRITE", "fence", 11, "data", "y").ok();
        cmd!(conn, "FENCE.WRITE", "lock", token, "data", "z").ok();
        assert_eq!(stream.lines_until_now(&server), ["SET data y", "SET data z"]);
        cmd!(conn, "FENCE.WRITE", "lock", stale, "data", "x").assert_err_prefix("FENCED ");
        cmd!(conn, "FENCE.WRITE", "fence", 9, "data", "x").assert_err_prefix("FENCED ");
        cmd!(conn, "FENCE.CHECK", "fence", 12).no_err();
        assert_eq!(stream.lines_until_now(&server), Vec::<String>::new());
        cmd!(conn, "FENCE.WRITE", "lock", token, "data", "z", "EX", 100).ok();
        let line = stream.lines_until_now(&server).join("\n");
        assert!(line.starts_with("SET data z PXAT "), "a time to live goes out as a point in time: {line}");
    }

    /// What FENCE.* do arrives at a replica as it is here: the fence, its time to live as a point in time, the data.
    fn a_replica_has_the_same_fence_and_data(kind: ServerKind) {
        let server = Server::start(kind);
        let replica = Server::start(kind);
        replica.replicate_from(&server);
        replica.wait_in_sync(&server);
        let (mut conn, mut there) = (server.connect(), replica.connect());
        cmd!(conn, "FENCE.ADVANCE", "fence", 10, "PX", 100_000).no_err();
        cmd!(conn, "FENCE.WRITE", "fence", 11, "data", "x", "EX", 500).ok();
        cmd!(conn, "FENCE.ADVANCE", "other", 7).no_err();
        cmd!(conn, "FENCE.ADVANCE", "other", 8, "PX", 200_000).no_err();
        replica.wait_in_sync(&server);
        assert_eq!(replica.digest(), server.digest());
        for key in ["fence", "other", "data"] {
            let ends = cmd!(conn, "PEXPIRETIME", key);
            assert!(ends.int() > 0);
            assert_eq!(cmd!(there, "PEXPIRETIME", key), ends, "{key}");
        }
        for words in [
            args!["FENCE.WRITE", "fence", 12, "data", "x"],
            args!["FENCE.ADVANCE", "fence", 12],
            args!["FENCE.CHECK", "fence", 12],
        ] {
            there.cmd(&words).assert_err_prefix("READONLY ");
        }
        replica.promote();
        cmd!(there, "FENCE.WRITE", "fence", 10, "data", "late").assert_err_prefix("FENCED token 10 is stale");
        cmd!(there, "FENCE.WRITE", "fence", 11, "data", "same").ok();
    }

    /// A write that SET itself does not make (NX on what exists) still raises the fence: the token was accepted.
    fn a_fence_rises_also_when_set_does_not_write(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "FENCE.ADVANCE", "fence", 10).no_err();
        cmd!(conn, "SET", "data", "as it was").ok();
        cmd!(conn, "FENCE.WRITE", "fence", 11, "data", "x", "NX").nil();
        cmd!(conn, "FENCE.WRITE", "fence", 10, "data", "x").assert_err_prefix("FENCED ");
        cmd!(conn, "FENCE.WRITE", "fence", 12, "data", "x", "BOGUS").assert_err_prefix("ERR syntax error");
        cmd!(conn, "FENCE.WRITE", "fence", 11, "data", "x").assert_err_prefix("FENCED ");
        assert_eq!(cmd!(conn, "GET", "data").text(), "as it was");
    }

    /// H3: lock, fence, key and value are bytes.
    fn names_and_values_are_bytes(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let long = vec![0xfe; 65_536];
        let names: [&[u8]; 8] =
            [b"", b"\0", b"\xff\xfe", "é".as_bytes(), "e\u{301}".as_bytes(), b"{}", b"a\r\nb", &long];
        for (round, name) in (1_u64..).zip(names) {
            let token = cmd!(conn, "LOCK.ACQUIRE", [b"lock", name].concat(), "me", LONG_MS).token();
            let data = [b"data", name].concat();
            cmd!(conn, "FENCE.WRITE", [b"lock", name].concat(), token, data, name).ok();
            assert_eq!(cmd!(conn, "GET", data).bytes(), name);
            cmd!(conn, "FENCE.ADVANCE", name, round).no_err();
            cmd!(conn, "FENCE.WRITE", name, round, data, "x").ok();
            let refused = cmd!(conn, "FENCE.CALL", name, round, name, name);
            assert!(refused.is_err() && refused.err().len() < 330, "{refused:?}");
        }
        assert_eq!(cmd!(conn, "DBSIZE").int(), 24);
    }

    /// INFO counts the writes that were fenced off.
    fn info_counts_the_refused(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let (stale, token) = succeeded(&mut conn, "lock");
        for way in WAYS {
            ask(&mut conn, way, "lock", stale, "data").assert_err_prefix("FENCED ");
            ask(&mut conn, way, "lock", token, "data").no_err();
        }
        assert_eq!(common::stat_of(&server, "fenced_total"), 3);
    }

    /// H5, "FENCE.WRITE onto another lock"; "no FENCE.* command changes a lock": it cannot be used as LOCK.BREAK.
    fn locks_and_fences_are_not_written_over(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "owner", 600_000).token();
        cmd!(conn, "FENCE.ADVANCE", "fence", 1).int();
        cmd!(conn, "FENCE.ADVANCE", "other", 1).int();
        for key in ["lock", "other"] {
            cmd!(conn, "FENCE.WRITE", "fence", 1, key, "junk").assert_err_prefix("WRONGTYPE ");
        }
        assert_eq!(cmd!(conn, "FENCE.CHECK", "lock", token).token(), token);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "owner").int(), 1);
        assert_eq!(cmd!(conn, "FENCE.CHECK", "other", 1).int(), 1);
    }
}

/// Option lists of SET, good and bad; what a server does not know is an error there as well.
fn set_options() -> Vec<Vec<Vec<u8>>> {
    vec![
        args![],
        args!["NX"],
        args!["XX"],
        args!["GET"],
        args!["get"],
        args!["NX", "GET"],
        args!["XX", "GET"],
        args!["EX", 100],
        args!["PX", 100_000],
        args!["EXAT", 4_102_444_800_u64],
        args!["PXAT", 4_102_444_800_000_u64],
        args!["EXAT", 1],
        args!["KEEPTTL"],
        args!["KEEPTTL", "GET", "XX"],
        args!["NX", "EX", 100],
        args!["EX", 0],
        args!["EX", -1],
        args!["PX", "1.5"],
        args!["PX", i64::MAX],
        args!["EX"],
        args!["NX", "XX"],
        args!["KEEPTTL", "EX", 10],
        args!["EX", 10, "PX", 10],
        args!["BOGUS"],
        args!["IFEQ", "before"],
        args![""],
        args!["GET", "GET", b"\0\xff"],
    ]
}

/// Puts what `before` says at the key, runs the command and says what came of it: the reply, what stands there, and
/// its TTL in steps of 50 s.
fn try_set(
    conn: &mut Conn,
    way: &[Vec<u8>],
    key: &str,
    before: &Option<Vec<Vec<u8>>>,
    options: &[Vec<u8>],
) -> (Reply, Reply, Reply, i64) {
    cmd!(conn, "DEL", key).no_err();
    if let Some(words) = before {
        let words = [&words[..1], &args![key, "before"], &words[1..]].concat();
        conn.cmd(words).no_err();
    }
    let reply = conn.cmd([way, &args![key, "after"], options].concat());
    let kind = cmd!(conn, "TYPE", key);
    let value = cmd!(conn, "GET", key);
    let left = cmd!(conn, "PTTL", key).int();
    (reply, kind, value, if left > 0 { (left + 49_999) / 50_000 } else { left })
}

/// The keyspace events that the listener has had by now.
fn events(conn: &mut Conn, listener: &mut Conn) -> Vec<String> {
    cmd!(conn, "PUBLISH", "__keyend", "mark").no_err();
    let mut events = Vec::new();
    loop {
        let message = listener.recv(SOON);
        let words: Vec<_> = message.items()[2..].iter().map(Reply::text).collect();
        if words[0] == "__keyend" {
            return events;
        }
        events.push(words.join(" "));
    }
}
