//! Scripts, functions and transactions: tokens survive the round trip through Lua, nothing blocks in there.

use crate::common;

use common::{LONG_MS, SOON, TOKEN_MAX, owner, standing, waiter};
use lockfence_testkit::{Conn, Server, ServerKind, args, cmd, server_tests};

/// Acquires in Lua, writes with the token as the number that it is there, and returns the token.
const ROUND_TRIP: &str = "
    local token = redis.call('LOCK.ACQUIRE', KEYS[1], ARGV[1], '600000')
    redis.call('FENCE.WRITE', KEYS[1], token, KEYS[2], ARGV[2])
    redis.call('FENCE.CALL', KEYS[1], token, 'APPEND', KEYS[2], '!')
    return {token, redis.call('FENCE.CHECK', KEYS[1], token), type(token)}";

fn load_function(conn: &mut Conn) {
    let code = "#!lua name=locks
        redis.register_function('take', function(keys, args)
            return redis.call('LOCK.ACQUIRE', keys[1], args[1], args[2], 'WAIT', '60000')
        end)
        redis.register_function('write', function(keys, args)
            return redis.pcall('FENCE.WRITE', keys[1], tonumber(args[1]), keys[2], args[2])
        end)";
    assert_eq!(cmd!(conn, "FUNCTION", "LOAD", code).text(), "locks");
}

server_tests! {
    /// H2: a token passes through Lua as a number, exactly, from ACQUIRE to FENCE.*.
    fn a_token_survives_lua_as_a_number(kind: ServerKind) {
        let server = Server::start(kind);
        for (mut conn, lock) in [(server.connect(), "two"), (server.connect_resp3(), "three")] {
            let reply = cmd!(conn, "EVAL", ROUND_TRIP, 2, lock, "data", "me", "value");
            let token = reply.items()[0].token();
            assert_eq!(reply.items()[1].token(), token);
            assert_eq!(reply.items()[2].text(), "number");
            assert_eq!(cmd!(conn, "GET", "data").text(), "value!");
            assert_eq!(cmd!(conn, "LOCK.INFO", lock).field("token").token(), token);
            cmd!(conn, "FENCE.WRITE", lock, token, "data", "x").ok();
        }
    }

    /// H2: also the highest token there is, and one whose last digit a shorter format would lose.
    fn the_highest_tokens_survive_lua(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let script = "return redis.call('FENCE.ADVANCE', KEYS[1], tonumber(ARGV[1]))";
        for token in [1, 1_764_428_400_123_457, TOKEN_MAX - 1, TOKEN_MAX] {
            assert_eq!(cmd!(conn, "EVAL", script, 1, "fence", token).token(), token);
        }
        cmd!(conn, "EVAL", script, 1, "fence", TOKEN_MAX + 1)
            .assert_err_prefix("ERR token must be a decimal integer");
    }

    /// "tostring and .. print 14 digits: use string.format('%.0f', t) (documented and tested)".
    fn only_percent_dot_zero_f_prints_a_token_in_full(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let script = "
            local token = redis.call('LOCK.ACQUIRE', KEYS[1], 'me', '600000')
            return {token, string.format('%.0f', token), tostring(token), '' .. token}";
        let reply = cmd!(conn, "EVAL", script, 1, "lock");
        let token = reply.items()[0].token().to_string();
        assert_eq!(reply.items()[1].text(), token);
        for short in &reply.items()[2..] {
            assert_ne!(short.text(), token, "the warning in the documents is needed no more");
            cmd!(conn, "FENCE.WRITE", "lock", short.text(), "data", "x")
                .assert_err_prefix("ERR token must be");
        }
        let script = "
            return redis.call('FENCE.WRITE', KEYS[1], string.format('%.0f', tonumber(ARGV[1])), KEYS[2], 'formatted')";
        cmd!(conn, "EVAL", script, 2, "lock", "data", token).ok();
        assert_eq!(cmd!(conn, "GET", "data").text(), "formatted");
    }

    /// A refusal in a script is an error there, and what the script wrote before stays.
    fn a_stale_token_is_refused_in_lua(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let stale = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        cmd!(conn, "LOCK.RELEASE", "lock", "me").int();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "you", LONG_MS).token();
        let script = "return redis.call('FENCE.WRITE', KEYS[1], tonumber(ARGV[1]), KEYS[2], 'x')";
        let refused = cmd!(conn, "EVAL", script, 2, "lock", "data", stale);
        assert!(
            refused.err().contains(&format!("FENCED token {stale} is stale: lock \"lock\" is at {token}"))
        );
        let script = "
            local reply = redis.pcall('FENCE.WRITE', KEYS[1], tonumber(ARGV[1]), KEYS[2], 'x')
            return reply.err";
        let line = cmd!(conn, "EVAL", script, 2, "lock", "data", stale).text();
        assert!(line.starts_with("FENCED "), "{line}");
        assert_eq!(cmd!(conn, "EXISTS", "data").int(), 0);
    }

    /// D18: "Where blocking is not allowed (MULTI, scripts, functions) WAIT is ignored and the answer is immediate": a free
    /// lock is granted, a held one refused, nothing is queued.
    fn wait_is_ignored_where_nothing_may_block(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        load_function(&mut conn);
        let script = "return redis.call('LOCK.ACQUIRE', KEYS[1], ARGV[1], '600000', 'WAIT', '60000')";
        for lock in ["script", "function", "transaction"] {
            let mut ask = |owner: &str| match lock {
                "script" => cmd!(conn, "EVAL", script, 1, lock, owner),
                "function" => cmd!(conn, "FCALL", "take", 1, lock, owner, LONG_MS),
                _ => {
                    cmd!(conn, "MULTI").ok();
                    cmd!(conn, "LOCK.ACQUIRE", lock, owner, LONG_MS, "WAIT", 60_000).no_err();
                    cmd!(conn, "EXEC").items()[0].clone()
                }
            };
            let token = ask("me").token();
            let refused = ask("you");
            assert!(refused.is_nil(), "{lock}: {refused:?}");
            assert_eq!(ask("me").token(), token);
            assert_eq!(owner(&mut conn, lock).as_deref(), Some("me"));
            assert_eq!(common::number(&mut conn, lock, "waiters"), 0);
        }
        server.wait_blocked_clients(0);
        assert_eq!(common::stat_of(&server, "waiters"), 0);
    }

    /// FCALL: take a lock and write behind its fence by functions.
    fn functions_take_locks_and_write(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        load_function(&mut conn);
        let token = cmd!(conn, "FCALL", "take", 1, "lock", "me", LONG_MS).token();
        cmd!(conn, "FCALL", "write", 2, "lock", "data", token, "x").ok();
        assert_eq!(cmd!(conn, "GET", "data").text(), "x");
        cmd!(conn, "FCALL", "write", 2, "lock", "data", token - 1, "y").assert_err_prefix("FENCED ");
        cmd!(conn, "FCALL_RO", "take", 1, "other", "me", LONG_MS)
            .assert_err_prefix("ERR Can not execute a script with write flag");
    }

    /// A read-only script may look and check, and takes no lock.
    fn a_read_only_script_only_looks(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        let check = "return redis.call('FENCE.CHECK', KEYS[1], tonumber(ARGV[1]))";
        assert_eq!(cmd!(conn, "EVAL_RO", check, 1, "lock", token).token(), token);
        let take = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'me', '1000')";
        assert!(cmd!(conn, "EVAL_RO", take, 1, "other").is_err());
        assert_eq!(cmd!(conn, "EXISTS", "other").int(), 0);
    }

    /// D8, D18: "a RELEASE there hands over at once": inside a script or transaction the next in the queue is granted, and
    /// the releaser that asks again in the same block is refused.
    fn a_release_inside_hands_over_at_once(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let script = "
            redis.call('LOCK.RELEASE', KEYS[1], 'me')
            return redis.call('LOCK.ACQUIRE', KEYS[1], 'me', '600000')";
        for (round, lock) in ["script", "transaction"].into_iter().enumerate() {
            let first = cmd!(conn, "LOCK.ACQUIRE", lock, "me", LONG_MS).token();
            let mut next = waiter(&server, lock, "next", LONG_MS, 1);
            let again = if round == 0 {
                cmd!(conn, "EVAL", script, 1, lock)
            } else {
                cmd!(conn, "MULTI").ok();
                cmd!(conn, "LOCK.RELEASE", lock, "me").no_err();
                cmd!(conn, "LOCK.ACQUIRE", lock, "me", LONG_MS).no_err();
                cmd!(conn, "EXEC").items()[1].clone()
            };
            assert!(again.is_nil(), "{lock}: {again:?}");
            assert!(next.recv(SOON).token() > first);
            next.assert_silent(20);
            assert_eq!(owner(&mut conn, lock).as_deref(), Some("next"));
        }
    }

    /// A transaction whose WATCH failed does nothing to locks or fences.
    fn an_aborted_transaction_changes_nothing(kind: ServerKind) {
        let server = Server::start(kind);
        let (mut conn, mut other) = (server.connect(), server.connect());
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        let before = standing(&mut conn, "lock");
        cmd!(conn, "WATCH", "data").ok();
        cmd!(other, "FENCE.WRITE", "lock", token, "data", "theirs").ok();
        cmd!(conn, "MULTI").ok();
        cmd!(conn, "LOCK.RELEASE", "lock", "me").no_err();
        cmd!(conn, "FENCE.WRITE", "lock", token, "data", "mine").no_err();
        cmd!(conn, "FENCE.ADVANCE", "fence", 5).no_err();
        cmd!(conn, "EXEC").nil();
        assert_eq!(standing(&mut conn, "lock"), before);
        assert_eq!(cmd!(conn, "GET", "data").text(), "theirs");
        assert_eq!(cmd!(conn, "EXISTS", "fence").int(), 0);
    }

    /// A whole critical section in one transaction: take, write, let go. The token of the grant is told, and no longer
    /// the newest after the next one.
    fn a_transaction_takes_writes_and_lets_go(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let mut last = 0;
        for _ in 0..20 {
            cmd!(conn, "MULTI").ok();
            cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).no_err();
            cmd!(conn, "INCR", "n").no_err();
            cmd!(conn, "LOCK.RELEASE", "lock", "me").no_err();
            let replies = cmd!(conn, "EXEC");
            let token = replies.items()[0].token();
            assert!(token > last);
            assert_eq!(replies.items()[2].int(), 1);
            last = token;
        }
    }

    /// A script that speaks RESP3 gets the shapes of RESP3 from FENCE.CALL, and RESP2's otherwise.
    fn a_script_gets_the_shapes_it_speaks(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        cmd!(conn, "HSET", "hash", "f", "v").no_err();
        cmd!(conn, "ZADD", "zset", "1.5", "m").no_err();
        let script = "
            redis.setresp(tonumber(ARGV[2]))
            local map = redis.call('FENCE.CALL', KEYS[1], ARGV[1], 'HGETALL', KEYS[2])
            local score = redis.call('FENCE.CALL', KEYS[1], ARGV[1], 'ZSCORE', KEYS[3], 'm')
            local null = redis.call('FENCE.CALL', KEYS[1], ARGV[1], 'GET', KEYS[4])
            return {map.map and map.map.f or map[2], type(score), type(null)}";
        for (protocol, score, null) in [(2, "string", "boolean"), (3, "table", "nil")] {
            let reply = cmd!(conn, "EVAL", script, 4, "lock", "hash", "zset", "none", token, protocol);
            assert_eq!(reply.items()[0].text(), "v");
            assert_eq!(reply.items()[1].text(), score);
            assert_eq!(reply.items()[2].text(), null);
        }
    }

    /// At the memory limit a script is told -OOM where the command would be, and may let go.
    fn the_memory_limit_holds_in_scripts(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        let code = "#!lua flags=allow-oom
            return redis.pcall(unpack(ARGV))";
        let plain = "return redis.pcall(unpack(ARGV))";
        server.config_set("maxmemory", "1");
        for words in [
            args!["LOCK.ACQUIRE", "new", "me", LONG_MS],
            args!["FENCE.WRITE", "lock", token, "data", "x"],
            args!["FENCE.ADVANCE", "fence", 1],
            args!["FENCE.CALL", "lock", token, "SET", "data", "x"],
        ] {
            let reply = conn.cmd([args!["EVAL", plain, 1, "lock"], words.clone()].concat());
            assert!(reply.is_err() && reply.err().contains("OOM"), "{words:?}: {reply:?}");
        }
        let reply = conn.cmd([args!["EVAL", code, 1, "lock"], args!["LOCK.RELEASE", "lock", "me"]].concat());
        assert_eq!(reply.int(), 1);
        server.config_set("maxmemory", "0");
        assert_eq!(cmd!(conn, "KEYS", "*").items().len(), 1);
    }
}
