//! FENCE.CALL: any data command behind a fence, run as the calling user, and what it does not run.

use std::fs;
use std::time::Duration;

use crate::common::{LONG_MS, SOON, other_module, owner, standing};
use lockfence_testkit::{
    Conn, ReplicationStream, Reply, Server, ServerKind, args, cmd, server_tests, wait_until,
};

/// A server, a connection and a lock `lock` that is held with the token.
fn held(kind: ServerKind) -> (Server, Conn, u64) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
    (server, conn, token)
}

fn call(token: u64, inner: &[Vec<u8>]) -> Vec<Vec<u8>> {
    [&args!["FENCE.CALL", "lock", token], inner].concat()
}

fn shown(words: &[Vec<u8>]) -> String {
    words.iter().map(|word| word.escape_ascii().to_string()).collect::<Vec<_>>().join(" ")
}

/// Runs each inner command through FENCE.CALL and asserts that it is refused with a line that begins so and changes
/// nothing.
#[track_caller]
fn assert_all_refused(server: &Server, token: u64, prefix: &str, inner: &[Vec<Vec<u8>>]) {
    let before = server.digest();
    for mut conn in [server.connect(), server.connect_resp3()] {
        for words in inner {
            let reply = conn.cmd(call(token, words));
            let told = reply.is_err() && reply.err().starts_with(prefix);
            assert!(told, "{}: expected {prefix:?}, got {reply:?}", shown(words));
            assert_eq!(cmd!(conn, "PING").text(), "PONG", "the connection serves on");
        }
    }
    assert_eq!(server.digest(), before, "a refused command changed something");
    server.assert_alive();
}

server_tests! {
    /// Exactly one reply, also where the server gives the module none (Valkey, for these two): the next command's reply
    /// would be taken for it.
    fn a_value_of_the_wrong_type_has_its_reply(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        cmd!(conn, "FENCE.ADVANCE", "f", 1).int();
        cmd!(conn, "RPUSH", "list", 1).int();
        cmd!(conn, "SADD", "set", 1).int();
        for key in ["list", "set"] {
            for inner in [&["GETDEL", key][..], &["GETSET", key, "1"], &["GET", key], &["INCR", key], &["GETEX", key]] {
                let words: Vec<&str> = ["FENCE.CALL", "f", "1"].iter().chain(inner).copied().collect();
                let reply = conn.cmd(words);
                let line = reply.err();
                assert!(line.starts_with("WRONGTYPE "), "{inner:?}: {line}");
                assert_eq!(cmd!(conn, "ECHO", "next").text(), "next");
            }
        }
        assert_eq!(cmd!(conn, "LRANGE", "list", 0, -1).items().len(), 1);
    }

    /// "the command's own reply": for many kinds of commands the bytes that come back are those of the command itself,
    /// in both protocols, errors too; and so is what stands in the keys afterwards.
    fn data_commands_answer_as_themselves(kind: ServerKind) {
        let server = Server::start(kind);
        for mut conn in [server.connect(), server.connect_resp3()] {
            let mut raws = [Vec::new(), Vec::new()];
            let mut digests = Vec::new();
            for (fenced, raws) in [false, true].into_iter().zip(&mut raws) {
                cmd!(conn, "FLUSHALL").ok();
                let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
                for words in data_commands() {
                    let inner = words.clone();
                    conn.cmd(if fenced { call(token, &words) } else { words });
                    raws.push((shown(&inner), conn.last_raw().escape_ascii().to_string()));
                }
                cmd!(conn, "DEL", "lock").no_err();
                digests.push(server.digest());
            }
            for (plain, fenced) in raws[0].iter().zip(&raws[1]) {
                assert_eq!(fenced, plain);
            }
            assert_eq!(digests[0], digests[1]);
        }
    }

    /// Shapes of RESP3 pass: a map, a set, a double, and null.
    fn shapes_of_resp3_pass(kind: ServerKind) {
        let (server, mut two, token) = held(kind);
        let mut three = server.connect_resp3();
        cmd!(two, "HSET", "hash", "f", "v").no_err();
        cmd!(two, "SADD", "set", "m").no_err();
        cmd!(two, "ZADD", "zset", "1.5", "m").no_err();
        let ask = |conn: &mut Conn, inner: Vec<Vec<u8>>| conn.cmd(call(token, &inner));
        assert!(matches!(ask(&mut three, args!["HGETALL", "hash"]), Reply::Map(_)));
        assert!(matches!(ask(&mut two, args!["HGETALL", "hash"]), Reply::Array(_)));
        assert!(matches!(ask(&mut three, args!["SMEMBERS", "set"]), Reply::Set(_)));
        assert_eq!(ask(&mut three, args!["ZSCORE", "zset", "m"]), Reply::Double(1.5));
        assert_eq!(ask(&mut two, args!["ZSCORE", "zset", "m"]), Reply::Bulk(b"1.5".to_vec()));
        assert_eq!(ask(&mut three, args!["ZINCRBY", "zset", 1, "m"]), Reply::Double(2.5));
        assert_eq!(ask(&mut three, args!["GET", "nothing"]), Reply::Nil);
        assert_eq!(three.last_raw(), b"_\r\n");
    }

    /// "errors of the inner command passed on", and the fence it was accepted by stays raised.
    fn errors_of_the_inner_command_are_passed_on(kind: ServerKind) {
        let (server, mut conn, token) = held(kind);
        cmd!(conn, "FENCE.ADVANCE", "fence", 10).no_err();
        cmd!(conn, "SET", "text", "abc").ok();
        let before = server.digest();
        for words in [
            args!["INCR", "text"],
            args!["RPUSH", "text", "x"],
            args!["SET", "text", "x", "BOGUS"],
            args!["RENAME", "nothing", "else"],
            args!["SETRANGE", "text", -1, "x"],
            args!["HINCRBY", "h", "f", "x"],
            args!["XADD", "s", "0-0", "f", "v"],
        ] {
            let plain = conn.cmd(&words);
            assert!(plain.is_err(), "{}: {plain:?}", shown(&words));
            assert_eq!(conn.cmd(call(token, &words)), plain, "{}", shown(&words));
        }
        assert_eq!(server.digest(), before);
        cmd!(conn, "FENCE.CALL", "fence", 11, "INCR", "text")
            .assert_err_prefix("ERR value is not an integer");
        cmd!(conn, "FENCE.WRITE", "fence", 10, "text", "x").assert_err_prefix("FENCED ");
    }

    /// "commands that block (by the server's own command flags)".
    fn blocking_commands_are_refused(kind: ServerKind) {
        let (server, _, token) = held(kind);
        let inner = [
            args!["BLPOP", "list", 0],
            args!["BRPOP", "list", 0],
            args!["BLMOVE", "a", "b", "LEFT", "LEFT", 0],
            args!["BRPOPLPUSH", "a", "b", 0],
            args!["BLMPOP", 0, 1, "list", "LEFT"],
            args!["BZPOPMIN", "z", 0],
            args!["BZPOPMAX", "z", 0],
            args!["BZMPOP", 0, 1, "z", "MIN"],
            args!["XREAD", "BLOCK", 0, "STREAMS", "s", "$"],
            args!["XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "s", ">"],
            args!["blpop", "list", 0],
        ];
        assert_all_refused(&server, token, "ERR FENCE.CALL does not run ", &inner);
        server.wait_blocked_clients(0);
    }

    /// "MULTI/EXEC and friends, scripts and functions, administration": refused, and the connection is in no
    /// transaction afterwards.
    fn transactions_scripts_and_administration_are_refused(kind: ServerKind) {
        let (server, mut conn, token) = held(kind);
        let inner = [
            args!["MULTI"],
            args!["EXEC"],
            args!["DISCARD"],
            args!["WATCH", "data"],
            args!["UNWATCH"],
            args!["EVAL", "return redis.call('SET', KEYS[1], 'x')", 1, "data"],
            args!["EVAL_RO", "return redis.call('GET', KEYS[1])", 1, "data"],
            args!["EVALSHA", "0".repeat(40), 1, "data"],
            args!["FCALL", "f", 1, "data"],
            args!["FCALL_RO", "f", 1, "data"],
            args!["DEBUG", "OBJECT", "data"],
            args!["SHUTDOWN", "NOSAVE"],
            args!["MONITOR"],
            args!["SYNC"],
            args!["PSYNC", "?", -1],
            args!["REPLICAOF", "NO", "ONE"],
            args!["SUBSCRIBE", "data"],
            args!["PSUBSCRIBE", "data"],
            args!["SSUBSCRIBE", "data"],
            args!["PUBLISH", "data", "x"],
            args!["SPUBLISH", "data", "x"],
            args!["SAVE"],
            args!["BGREWRITEAOF"],
            args!["FAILOVER"],
            args!["PFDEBUG", "GETREG", "data"],
            args!["PFSELFTEST"],
            args!["RESTORE-ASKING", "data", 0, "x"],
        ];
        let refused = ["ERR FENCE.CALL does not run ", "ERR "];
        assert_all_refused(&server, token, refused[1], &inner);
        assert_all_refused(&server, token, refused[0], &inner[..10]);
        assert_eq!(cmd!(conn, "EXISTS", "data").int(), 0);
        cmd!(conn, "EXEC").assert_err_prefix("ERR EXEC without MULTI");
    }

    /// Containers of administration (CONFIG, ACL, SCRIPT …) have no key: refused, and with no effect.
    fn containers_of_administration_are_refused(kind: ServerKind) {
        let (server, mut conn, token) = held(kind);
        let inner = [
            args!["CONFIG", "SET", "maxmemory", "1"],
            args!["CONFIG", "GET", "port"],
            args!["SCRIPT", "FLUSH"],
            args!["SCRIPT", "LOAD", "return 1"],
            args!["FUNCTION", "LOAD", "#!lua name=l\nredis.register_function('f', function() return 1 end)"],
            args!["FUNCTION", "FLUSH"],
            args!["ACL", "SETUSER", "u", "on"],
            args!["CLIENT", "KILL", "TYPE", "normal"],
            args!["CLIENT", "PAUSE", 100_000],
            args!["CLUSTER", "RESET"],
            args!["MODULE", "LIST"],
            args!["LATENCY", "RESET"],
            args!["SLOWLOG", "RESET"],
        ];
        assert_all_refused(&server, token, "ERR ", &inner);
        assert_eq!(cmd!(conn, "CONFIG", "GET", "maxmemory").field("maxmemory").text(), "0");
        assert_eq!(cmd!(conn, "FUNCTION", "LIST").items().len(), 0);
        assert_eq!(cmd!(conn, "ACL", "USERS").items().len(), 1);
    }

    /// "It must have at least one key … keyless commands (FLUSHALL, SWAPDB …)."
    fn commands_without_a_key_are_refused(kind: ServerKind) {
        let (server, mut conn, token) = held(kind);
        cmd!(conn, "SET", "data", "as it was").ok();
        let inner = [
            args!["FLUSHALL"],
            args!["FLUSHDB"],
            args!["FLUSHALL", "ASYNC"],
            args!["SWAPDB", 0, 1],
            args!["PING"],
            args!["ECHO", "data"],
            args!["SELECT", 1],
            args!["DBSIZE"],
            args!["KEYS", "*"],
            args!["SCAN", 0],
            args!["RANDOMKEY"],
            args!["TIME"],
            args!["INFO"],
            args!["COMMAND"],
            args!["COMMAND", "COUNT"],
            args!["HELLO", 3],
            args!["QUIT"],
            args!["WAIT", 0, 0],
            args!["ROLE"],
            args!["LOLWUT"],
            args!["CLIENT", "ID"],
            args!["AUTH", "x"],
            args!["RESET"],
        ];
        assert_all_refused(&server, token, "ERR ", &inner);
        cmd!(conn, "FENCE.CALL", "lock", token, "FLUSHALL")
            .assert_err_prefix("ERR FENCE.CALL needs a command with a key");
        assert_eq!(cmd!(conn, "GET", "data").text(), "as it was");
    }

    /// "LOCK.*, FENCE.* and nesting", in any case of letters, and the internal commands.
    fn own_commands_are_refused(kind: ServerKind) {
        let (server, mut conn, token) = held(kind);
        cmd!(conn, "FENCE.ADVANCE", "fence", 10).no_err();
        let before = standing(&mut conn, "lock");
        let inner = [
            args!["LOCK.ACQUIRE", "other", "me", 1000],
            args!["LOCK.RELEASE", "lock", "me"],
            args!["LOCK.EXTEND", "lock", "me", 1000],
            args!["LOCK.INFO", "lock"],
            args!["LOCK.BREAK", "lock"],
            args!["lock.break", "lock"],
            args!["FENCE.WRITE", "lock", token, "data", "x"],
            args!["FENCE.CALL", "lock", token, "SET", "data", "x"],
            args!["Fence.Call", "lock", token, "GET", "data"],
            args!["FENCE.CHECK", "lock", token],
            args!["FENCE.ADVANCE", "fence", 11],
            args!["LF.LOG", "data", "x"],
            args!["LF.HANDOVER", "lock"],
            args!["lf.handover", "lock", "me", token],
            args!["LOCK.NOSUCH", "data"],
        ];
        assert_all_refused(&server, token, "ERR FENCE.CALL does not run ", &inner);
        assert_eq!(standing(&mut conn, "lock"), before);
    }

    /// Nested ten thousand deep, it is refused at once, by the command and by what asks for its keys.
    fn deep_nesting_is_refused_at_once(kind: ServerKind) {
        let (server, mut conn, token) = held(kind);
        let level = args!["FENCE.CALL", "lock", token];
        let deep: Vec<_> =
            std::iter::repeat_n(level, 10_000).flatten().chain(args!["SET", "data", "x"]).collect();
        conn.cmd(&deep).assert_err_prefix("ERR FENCE.CALL does not run ");
        let asks = [args!["COMMAND", "GETKEYS"], deep].concat();
        assert_eq!(conn.cmd(&asks).items(), [Reply::Bulk(b"lock".to_vec())]);
        assert_eq!(cmd!(conn, "EXISTS", "data").int(), 0);
        server.assert_alive();
    }

    /// Unknown commands, subcommands, wrong arity: errors, nothing run. Names are bytes.
    fn unknown_commands_and_wrong_arity_are_refused(kind: ServerKind) {
        let (server, mut conn, token) = held(kind);
        let inner = [
            args!["NOSUCH", "data"],
            args![""],
            args![b"SET\0", "data", "x"],
            args![b"\xff\xfe", "data"],
            args!["set|get", "data"],
            args!["SET"],
            args!["SET", "data"],
            args!["GET"],
            args!["GET", "data", "x"],
            args!["MSET", "data"],
            args!["HSET", "data", "f"],
            args!["OBJECT"],
            args!["OBJECT", "NOSUCH", "data"],
            args!["OBJECT", "ENCODING"],
            args!["XGROUP", "NOSUCH", "data"],
            args!["CONFIG|SET", "maxmemory", "1"],
            args!["LMPOP", 0, "data", "LEFT"],
            args!["LMPOP", 5, "data", "LEFT"],
            args!["LMPOP", "x", "data", "LEFT"],
            args!["EVAL", "return 1", 9, "data"],
            args!["ZUNIONSTORE", "data", 3, "a"],
            args!["n".repeat(100_000), "data"],
        ];
        assert_all_refused(&server, token, "ERR ", &inner);
        cmd!(conn, "FENCE.CALL", "lock", token, "NOSUCH", "data")
            .assert_err_prefix("ERR unknown command \"NOSUCH\"");
        let line = cmd!(conn, "FENCE.CALL", "lock", token, "n".repeat(1000), "x").err().len();
        assert!(line < 200, "the name is cut");
    }

    /// "The data key may not be the lock or fence itself", wherever in the inner command it hides.
    fn the_lock_is_found_wherever_it_hides(kind: ServerKind) {
        let (server, mut conn, token) = held(kind);
        for key in ["a", "x", "n"] {
            cmd!(conn, "SET", key, "1").ok();
        }
        cmd!(conn, "RPUSH", "list", 1, 2).no_err();
        cmd!(conn, "SADD", "set", "m").no_err();
        cmd!(conn, "ZADD", "z", 1, "m").no_err();
        cmd!(conn, "GEOADD", "geo", 1, 1, "m").no_err();
        let inner = [
            args!["SET", "lock", "x"],
            args!["DEL", "lock"],
            args!["UNLINK", "a", "lock"],
            args!["GET", "lock"],
            args!["MSET", "a", 1, "lock", 2],
            args!["MSETNX", "b", 1, "lock", 2],
            args!["RENAME", "x", "lock"],
            args!["RENAME", "lock", "x"],
            args!["RENAMENX", "lock", "y"],
            args!["COPY", "x", "lock", "REPLACE"],
            args!["COPY", "lock", "y"],
            args!["MOVE", "lock", 1],
            args!["SORT", "list", "STORE", "lock"],
            args!["SORT", "list", "LIMIT", 0, 1, "STORE", "lock"],
            args!["SUNIONSTORE", "lock", "set"],
            args!["ZUNIONSTORE", "lock", 1, "z"],
            args!["ZUNIONSTORE", "d", 2, "z", "lock"],
            args!["GEORADIUS", "geo", 1, 1, 1, "km", "STORE", "lock"],
            args!["GEOSEARCHSTORE", "lock", "geo", "FROMMEMBER", "m", "BYRADIUS", 1, "km"],
            args!["EXPIRE", "lock", 1],
            args!["PERSIST", "lock"],
            args!["RESTORE", "lock", 0, "x", "REPLACE"],
            args!["GETDEL", "lock"],
            args!["LMPOP", 2, "list", "lock", "LEFT"],
            args!["DUMP", "lock"],
            args!["BITOP", "NOT", "lock", "a"],
            args!["PFMERGE", "lock"],
            args!["OBJECT", "ENCODING", "lock"],
            args!["MIGRATE", "127.0.0.1", 1, "lock", 0, 10],
            args!["MIGRATE", "127.0.0.1", 1, "", 0, 10, "KEYS", "a", "lock"],
        ];
        assert_all_refused(&server, token, "ERR the data key may not be the lock or fence itself", &inner);
        assert_eq!(owner(&mut conn, "lock").as_deref(), Some("me"));
    }

    /// "No FENCE.* command changes a lock": nor another one, nor a fence, whichever key of the inner command it is, in
    /// this database or the one that COPY names. The fence that lets the call through is not raised either.
    fn no_other_lock_or_fence_is_touched(kind: ServerKind) {
        let (server, mut conn, token) = held(kind);
        cmd!(conn, "LOCK.ACQUIRE", "its", "you", LONG_MS).token();
        cmd!(conn, "FENCE.ADVANCE", "mark", 5).no_err();
        cmd!(conn, "FENCE.ADVANCE", "keeper", 5).no_err();
        cmd!(conn, "SELECT", 1).ok();
        cmd!(conn, "LOCK.ACQUIRE", "there", "you", LONG_MS).token();
        cmd!(conn, "SELECT", 0).ok();
        for key in ["a", "x", "there", "n"] {
            cmd!(conn, "SET", key, "1").ok();
        }
        cmd!(conn, "RPUSH", "list", 1, 2).no_err();
        cmd!(conn, "SADD", "set", "m").no_err();
        cmd!(conn, "ZADD", "z", 1, "m").no_err();
        cmd!(conn, "GEOADD", "geo", 1, 1, "m").no_err();
        let payload = cmd!(conn, "DUMP", "x").bytes().to_vec();
        let mut inner = vec![
            args!["COPY", "x", "there", "DB", 1, "REPLACE"],
            args!["copy", "x", "there", "replace", "db", 1],
            args!["COPY", "x", "there", "DB", 0, "DB", 1, "REPLACE"],
        ];
        for other in ["its", "mark"] {
            inner.extend([
                args!["SET", other, "x"],
                args!["DEL", other],
                args!["UNLINK", "a", other],
                args!["MSET", "a", 1, other, 2],
                args!["RENAME", "x", other],
                args!["RENAME", other, "y"],
                args!["RENAMENX", other, "y"],
                args!["COPY", "x", other, "REPLACE"],
                args!["COPY", other, "y"],
                args!["MOVE", other, 1],
                args!["SORT", "list", "LIMIT", 0, 1, "STORE", other],
                args!["SUNIONSTORE", other, "set"],
                args!["ZUNIONSTORE", other, 1, "z"],
                args!["GEORADIUS", "geo", 1, 1, 1, "km", "STORE", other],
                args!["GEOSEARCHSTORE", other, "geo", "FROMMEMBER", "m", "BYRADIUS", 1, "km"],
                args!["EXPIRE", other, 1],
                args!["PEXPIREAT", other, 1],
                args!["PERSIST", other],
                args!["RESTORE", other, 0, payload, "REPLACE"],
                args!["BITOP", "NOT", other, "a"],
                args!["PFMERGE", other],
                args!["LMPOP", 2, "none", other, "LEFT"],
                args!["MIGRATE", "127.0.0.1", 1, other, 0, 10],
                args!["MIGRATE", "127.0.0.1", 1, "", 0, 10, "KEYS", "a", other],
                args!["EXISTS", other],
            ]);
        }
        assert_all_refused(&server, token, "WRONGTYPE ", &inner);
        for words in &inner {
            let reply = conn.cmd([&args!["FENCE.CALL", "keeper", 6], words.as_slice()].concat());
            reply.assert_err_prefix("WRONGTYPE ");
            let script = "return redis.pcall('FENCE.CALL', 'keeper', '6', unpack(ARGV))";
            let reply = conn.cmd([&args!["EVAL", script, 0], words.as_slice()].concat());
            reply.assert_err_prefix("WRONGTYPE ");
        }
        assert_eq!(cmd!(conn, "FENCE.CHECK", "keeper", 5).int(), 5);
        cmd!(conn, "FENCE.WRITE", "lock", token, "its", "x").assert_err_prefix("WRONGTYPE ");
        cmd!(conn, "FENCE.WRITE", "keeper", 6, "mark", "x").assert_err_prefix("WRONGTYPE ");
        assert_eq!(owner(&mut conn, "its").as_deref(), Some("you"));
        // And what touches neither works as it did, the database is the caller's.
        conn.cmd(call(token, &args!["COPY", "x", "there", "DB", 2])).no_err();
        assert_eq!(conn.cmd(call(token, &args!["INCR", "a"])).int(), 2);
        cmd!(conn, "SELECT", 1).ok();
        assert_eq!(owner(&mut conn, "there").as_deref(), Some("you"));
        assert_eq!(cmd!(conn, "DBSIZE").int(), 1);
    }

    /// COPY under another name is still COPY.
    fn a_renamed_copy_is_known(kind: ServerKind) {
        let server = Server::builder(kind).config_line("rename-command copy duplicate").start();
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        cmd!(conn, "SELECT", 1).ok();
        cmd!(conn, "LOCK.ACQUIRE", "there", "you", LONG_MS).token();
        cmd!(conn, "SELECT", 0).ok();
        cmd!(conn, "SET", "x", 1).ok();
        conn.cmd(call(token, &args!["DUPLICATE", "x", "y"])).no_err();
        conn.cmd(call(token, &args!["DUPLICATE", "x", "there", "DB", 1, "REPLACE"])).assert_err_prefix("WRONGTYPE ");
    }

    /// MSETEX, where the server has it: the API that tells keys has none of Valkey's.
    fn msetex_has_keys(kind: ServerKind) {
        let (server, mut conn, token) = held(kind);
        if cmd!(conn, "COMMAND", "INFO", "msetex").items()[0].is_nil() {
            return; // no such command
        }
        conn.cmd(call(token, &args!["MSETEX", 2, "a", "1", "b", "2", "EX", 100])).no_err();
        assert_eq!([cmd!(conn, "GET", "a").text(), cmd!(conn, "GET", "b").text()], ["1", "2"]);
        let told = cmd!(conn, "COMMAND", "GETKEYS", "FENCE.CALL", "lock", 1, "msetex", 2, "a", "1", "b", "2");
        assert_eq!(told.items().iter().map(Reply::text).collect::<Vec<_>>(), ["lock", "a", "b"]);
        let own = "ERR the data key may not be the lock or fence itself";
        assert_all_refused(&server, token, own, &[args!["MSETEX", 2, "a", "1", "lock", "2"]]);
        cmd!(conn, "LOCK.ACQUIRE", "its", "you", LONG_MS).token();
        assert_all_refused(&server, token, "WRONGTYPE ", &[args!["MSETEX", 2, "a", "1", "its", "2"]]);
        let wrong = [
            args!["MSETEX", 3, "a", "1", "b", "2"],
            args!["MSETEX", 0, "a", "1"],
            args!["MSETEX", "-1", "a", "1"],
            args!["MSETEX", "x", "a", "1"],
            args!["MSETEX", "18446744073709551615", "a", "1"],
            args!["MSETEX", 1, "a"],
        ];
        assert_all_refused(&server, token, "ERR wrong number or kind of arguments", &wrong);
    }

    /// What is known of a command is forgotten when a module comes or goes: another of that name may be another command.
    fn a_command_of_another_module_is_asked_for_again(kind: ServerKind) {
        let (server, mut conn, token) = held(kind);
        let module = other_module(&server);
        for (flags, refused) in [("readonly", None), ("readonly admin", Some("admin")), ("readonly", None)] {
            cmd!(conn, "MODULE", "LOAD", module.to_str().unwrap(), flags).ok();
            let reply = conn.cmd(call(token, &args!["OTHER.HELLO", "data"]));
            match refused {
                None => assert_eq!(reply.int(), 42),
                Some(flag) => {
                    let line = reply.assert_err_prefix("ERR FENCE.CALL does not run");
                    assert!(line.contains(flag), "{line}");
                }
            }
            cmd!(conn, "MODULE", "UNLOAD", "other").ok();
            conn.cmd(call(token, &args!["OTHER.HELLO", "data"])).assert_err_prefix("ERR unknown command");
        }
    }

    /// COMMAND GETKEYS and GETKEYSANDFLAGS tell the lock and the keys of the inner command, wherever these stand.
    fn the_keys_are_told(kind: ServerKind) {
        let (_server, mut conn, _) = held(kind);
        for (inner, keys) in [
            (args!["SET", "k", "v"], vec!["lock", "k"]),
            (args!["mset", "a", 1, "b", 2], vec!["lock", "a", "b"]),
            (args!["RENAME", "a", "b"], vec!["lock", "a", "b"]),
            (args!["LMPOP", 2, "a", "b", "LEFT"], vec!["lock", "a", "b"]),
            (args!["ZUNIONSTORE", "d", 2, "a", "b"], vec!["lock", "a", "b", "d"]),
            (args!["SORT", "a", "STORE", "b"], vec!["lock", "a", "b"]),
            (args!["XGROUP", "CREATE", "s", "g", "$"], vec!["lock", "s"]),
            (args!["OBJECT", "ENCODING", "k"], vec!["lock", "k"]),
            (args!["PING"], vec!["lock"]),
            (args!["NOSUCH", "k"], vec!["lock"]),
            (args!["FENCE.CALL", "other", 1, "SET", "k", "v"], vec!["lock"]),
        ] {
            let words = [args!["COMMAND", "GETKEYS", "FENCE.CALL", "lock", 1], inner.clone()].concat();
            let told: Vec<_> = conn.cmd(&words).items().iter().map(Reply::text).collect();
            assert_eq!(told, keys, "{}", shown(&inner));
        }
        for inner in [
            args!["SET", "a", "b"],
            args!["RENAME", "a", "b"],
            args!["LMPOP", 1, "a", "LEFT"],
            args!["GET", "a"],
        ] {
            let told = conn
                .cmd([args!["COMMAND", "GETKEYSANDFLAGS", "FENCE.CALL", "lock", 1], inner.clone()].concat());
            let plain = conn.cmd([args!["COMMAND", "GETKEYSANDFLAGS"], inner.clone()].concat());
            assert_eq!(told.items()[0].items()[0].text(), "lock");
            let mut flags: Vec<_> = told.items()[0].items()[1].items().iter().map(Reply::text).collect();
            flags.sort();
            assert_eq!(flags, ["RW", "access", "update"]);
            assert_eq!(told.items().len(), plain.items().len() + 1, "{}", shown(&inner));
            for (told, plain) in told.items()[1..].iter().zip(plain.items()) {
                // The server's API knows the flags of some commands only; none are wrong.
                assert_eq!(told.items()[0], plain.items()[0]);
                let flags = told.items()[1].items();
                assert!(
                    flags.iter().all(|flag| plain.items()[1].items().contains(flag)),
                    "{told:?}, not {plain:?}"
                );
            }
        }
    }

    /// MIGRATE is a command with keys that the server does not mark as blocking: it runs, the data moves away, and a
    /// stale token moves nothing.
    fn migrate_moves_data_behind_the_fence(kind: ServerKind) {
        let (_server, mut conn, token) = held(kind);
        let target = Server::start(kind);
        cmd!(conn, "SET", "data", "to go").ok();
        let words = args!["MIGRATE", "127.0.0.1", target.port(), "data", 0, 5000];
        conn.cmd(call(token - 1, &words)).assert_err_prefix("FENCED ");
        assert_eq!(cmd!(conn, "EXISTS", "data").int(), 1);
        conn.cmd(call(token, &words)).ok();
        assert_eq!(cmd!(conn, "EXISTS", "data").int(), 0);
        assert_eq!(cmd!(target.connect(), "GET", "data").text(), "to go");
        assert_eq!(cmd!(conn, "FENCE.CHECK", "lock", token).token(), token);
    }

    /// The raised fence and the inner write are one MULTI/EXEC unit in the replication stream; what raises nothing, and
    /// what only reads, adds nothing to it.
    fn fence_and_write_are_one_unit_for_replicas(kind: ServerKind) {
        let (server, mut conn, token) = held(kind);
        cmd!(conn, "FENCE.ADVANCE", "fence", 10).no_err();
        let mut stream = ReplicationStream::attach(&server);
        cmd!(conn, "FENCE.CALL", "fence", 11, "INCR", "n").no_err();
        assert_unit(&stream.lines_until_now(&server), &["INCR n"]);
        cmd!(conn, "FENCE.CALL", "fence", 12, "SPOP", "nothing").nil();
        let lines = stream.lines_until_now(&server);
        assert_eq!(lines.len(), 1, "the fence alone: {lines:?}");
        assert!(lines[0].to_uppercase().starts_with("LF.LOG FENCE "), "{lines:?}");
        cmd!(conn, "FENCE.CALL", "lock", token, "INCRBYFLOAT", "n", "0.5").no_err();
        assert_eq!(stream.lines_until_now(&server), ["SET n 1.5 KEEPTTL"], "the effect, not the call");
        cmd!(conn, "FENCE.CALL", "lock", token, "GET", "n").no_err();
        cmd!(conn, "FENCE.CALL", "lock", token - 1, "INCR", "n").assert_err_prefix("FENCED ");
        cmd!(conn, "FENCE.CALL", "fence", 9, "INCR", "n").assert_err_prefix("FENCED ");
        assert_eq!(stream.lines_until_now(&server), Vec::<String>::new());
    }

    /// The same unit stands in the AOF: a server that comes back from it has both the write and the raised fence.
    fn fence_and_write_are_one_unit_in_the_aof(kind: ServerKind) {
        let server = Server::builder(kind).arg("appendonly", "yes").arg("appendfsync", "always").start();
        let mut conn = server.connect();
        cmd!(conn, "FENCE.ADVANCE", "fence", 10).no_err();
        cmd!(conn, "FENCE.CALL", "fence", 11, "APPEND", "data", "one").no_err();
        cmd!(conn, "FENCE.CALL", "fence", 12, "HSET", "data", "f", "v").assert_err_prefix("WRONGTYPE ");
        let names = ["multi", "lf.log", "append", "exec"];
        let words: Vec<_> =
            aof_words(&server).into_iter().filter(|word| names.contains(&word.as_str())).collect();
        let at = words.iter().position(|word| word == "append").expect("the write");
        assert_eq!(words[at - 2..=at + 1], names);
        let digest = server.digest();
        server.kill9();
        server.restart();
        assert_eq!(server.digest(), digest);
        let mut conn = server.connect();
        assert_eq!(cmd!(conn, "GET", "data").text(), "one");
        cmd!(conn, "FENCE.CALL", "fence", 11, "APPEND", "data", "late").assert_err_prefix("FENCED ");
    }

    /// A replica has the same data and the same fence, and refuses FENCE.CALL itself.
    fn a_replica_has_the_same_and_refuses(kind: ServerKind) {
        let (server, mut conn, token) = held(kind);
        let replica = Server::start(kind);
        replica.replicate_from(&server);
        replica.wait_in_sync(&server);
        cmd!(conn, "FENCE.ADVANCE", "fence", 10).no_err();
        cmd!(conn, "FENCE.CALL", "fence", 11, "ZADD", "z", 1, "m").no_err();
        cmd!(conn, "FENCE.CALL", "lock", token, "SPOP", "nothing").no_err();
        cmd!(conn, "FENCE.CALL", "lock", token, "XADD", "s", "*", "f", "v").no_err();
        replica.wait_in_sync(&server);
        assert_eq!(replica.digest(), server.digest());
        let mut on_replica = replica.connect();
        for writable in [false, true] {
            replica.config_set("replica-read-only", if writable { "no" } else { "yes" });
            for inner in [args!["SET", "k", "v"], args!["GET", "k"]] {
                on_replica.cmd(call(token, &inner)).assert_err_prefix("READONLY ");
            }
        }
    }

    /// -NOREPLICAS as for SET.
    fn too_few_replicas_stop_it_as_they_stop_set(kind: ServerKind) {
        let (server, mut conn, token) = held(kind);
        cmd!(conn, "FENCE.ADVANCE", "fence", 10).no_err();
        server.config_set("min-replicas-to-write", "1");
        let line = cmd!(conn, "SET", "data", "x");
        line.assert_err_prefix("NOREPLICAS ");
        assert_eq!(cmd!(conn, "FENCE.CALL", "lock", token, "SET", "data", "x"), line);
        assert_eq!(cmd!(conn, "FENCE.WRITE", "lock", token, "data", "x"), line);
        assert_eq!(cmd!(conn, "FENCE.WRITE", "fence", 11, "data", "x"), line);
        assert_eq!(cmd!(conn, "FENCE.ADVANCE", "fence", 11), line);
        server.config_set("min-replicas-to-write", "0");
        assert_eq!(cmd!(conn, "EXISTS", "data").int(), 0);
        assert_eq!(cmd!(conn, "FENCE.CHECK", "fence", 10).int(), 10);
    }

    /// F12: -MISCONF as for SET, while a snapshot cannot be saved.
    fn a_failed_save_stops_it_as_it_stops_set(kind: ServerKind) {
        let server = Server::builder(kind).arg("save", "3600 1").start();
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        // A folder in the snapshot's place: also root cannot rename a file over it.
        fs::create_dir_all(server.dir().join("dump.rdb").join("full")).unwrap();
        cmd!(conn, "BGSAVE").no_err();
        let status = || server.info("persistence")["rdb_last_bgsave_status"].clone();
        wait_until("the save to fail", SOON, status, |status| status == "err");
        let line = cmd!(conn, "SET", "data", "x");
        line.assert_err_prefix("MISCONF ");
        assert_eq!(cmd!(conn, "FENCE.CALL", "lock", token, "SET", "data", "x"), line);
        assert_eq!(cmd!(conn, "FENCE.WRITE", "lock", token, "data", "x"), line);
        server.config_set("stop-writes-on-bgsave-error", "no");
        cmd!(conn, "FENCE.CALL", "lock", token, "SET", "data", "x").ok();
        server.config_set("save", "");
    }

    /// In MULTI/EXEC it is one command among others; a refusal there does not undo the others.
    fn it_works_in_a_transaction(kind: ServerKind) {
        let (server, mut conn, token) = held(kind);
        cmd!(conn, "FENCE.ADVANCE", "fence", 10).no_err();
        let mut stream = ReplicationStream::attach(&server);
        cmd!(conn, "MULTI").ok();
        for words in [
            args!["FENCE.CALL", "lock", token, "INCR", "n"],
            args!["FENCE.CALL", "lock", token - 1, "INCR", "n"],
            args!["FENCE.CALL", "fence", 11, "INCR", "n"],
            args!["FENCE.CALL", "lock", token, "BLPOP", "list", 0],
        ] {
            assert_eq!(conn.cmd(words).text(), "QUEUED");
        }
        let replies = cmd!(conn, "EXEC");
        assert_eq!(replies.items()[0].int(), 1);
        replies.items()[1].assert_err_prefix("FENCED ");
        assert_eq!(replies.items()[2].int(), 2);
        replies.items()[3].assert_err_prefix("ERR FENCE.CALL does not run ");
        let lines = stream.lines_until_now(&server);
        let one = |word: &str| lines.iter().filter(|line| line.as_str() == word).count();
        assert_eq!((one("MULTI"), one("EXEC"), one("INCR n")), (1, 1, 2), "{lines:?}");
    }

    /// CLIENT PAUSE WRITE holds it back, like any write.
    fn a_pause_of_writes_holds_it_back(kind: ServerKind) {
        let (server, mut conn, token) = held(kind);
        cmd!(conn, "CLIENT", "PAUSE", 60_000, "WRITE").ok();
        let mut paused = server.connect();
        paused.send(call(token, &args!["SET", "data", "x"]));
        paused.assert_silent(150);
        assert_eq!(cmd!(conn, "EXISTS", "data").int(), 0);
        cmd!(conn, "CLIENT", "UNPAUSE").ok();
        paused.recv(Duration::from_secs(15)).ok();
    }
}

/// Asserts that the lines are a transaction of the fence's effect and then these.
#[track_caller]
fn assert_unit(lines: &[String], wanted: &[&str]) {
    let lines: Vec<_> = lines.iter().filter(|line| !line.starts_with("SELECT")).collect();
    assert_eq!(lines.len(), wanted.len() + 3, "{lines:?}");
    assert_eq!((lines[0].as_str(), lines[lines.len() - 1].as_str()), ("MULTI", "EXEC"), "{lines:?}");
    assert!(lines[1].to_uppercase().starts_with("LF.LOG FENCE "), "{lines:?}");
    assert_eq!(lines[2..lines.len() - 1], *wanted);
}

/// The words of the AOF's commands, in lower case, as far as they are text.
fn aof_words(server: &Server) -> Vec<String> {
    let folder = server.dir().join("appendonlydir");
    let files = fs::read_dir(folder).expect("the AOF's folder").map(|entry| entry.expect("a file").path());
    let aof = files
        .filter(|path| path.to_string_lossy().ends_with(".incr.aof"))
        .flat_map(|path| fs::read(path).unwrap());
    let text = String::from_utf8_lossy(&aof.collect::<Vec<u8>>()).to_lowercase();
    text.lines().map(str::to_owned).collect()
}

/// Commands of many kinds, in an order in which they build on each other. Their replies do not depend on time or
/// chance.
#[allow(clippy::too_many_lines, reason = "a table")]
fn data_commands() -> Vec<Vec<Vec<u8>>> {
    let mut commands = vec![
        args!["SET", "s", "v"],
        args!["SET", "s", "w", "GET"],
        args!["GETSET", "s", "x"],
        args!["GET", "nothing"],
        args!["SET", "s", "y", "NX"],
        args!["APPEND", "s", "z"],
        args!["GETRANGE", "s", 0, 1],
        args!["STRLEN", "s"],
        args!["INCR", "n"],
        args!["incrby", "n", 41],
        args!["INCRBYFLOAT", "n", "0.5"],
        args!["INCR", "n"],
        args!["MSET", "a", 1, "b", b"\0\xff\r\n"],
        args!["MGET", "a", "b", "nothing"],
        args!["MSETNX", "a", 1, "c", 1],
        args!["SETBIT", "bits", 7, 1],
        args!["BITFIELD", "bits", "GET", "u8", 0],
        args!["GETDEL", "a"],
        args!["HSET", "h", "f", "v", "g", "w"],
        args!["HGETALL", "h"],
        args!["HINCRBY", "h", "n", 3],
        args!["HINCRBYFLOAT", "h", "x", "1.5"],
        args!["HMGET", "h", "f", "nothing"],
        args!["HDEL", "h", "g"],
        args!["RPUSH", "l", 3, 1, 2],
        args!["LRANGE", "l", 0, -1],
        args!["LMPOP", 2, "nothing", "l", "LEFT"],
        args!["SORT", "l", "STORE", "sorted"],
        args!["LPOP", "l", 5],
        args!["LPOP", "l"],
        args!["LPOS", "sorted", 2],
        args!["SADD", "t", "m"],
        args!["SMEMBERS", "t"],
        args!["SISMEMBER", "t", "m"],
        args!["SMISMEMBER", "t", "m", "n"],
        args!["SINTERSTORE", "u", "t", "t"],
        args!["SUNION", "t"],
        args!["ZADD", "z", "1.5", "m", 2, "n"],
        args!["ZADD", "z", "INCR", "0.25", "m"],
        args!["ZSCORE", "z", "m"],
        args!["ZRANGE", "z", 0, -1, "WITHSCORES"],
        args!["ZPOPMIN", "z"],
        args!["ZRANGESTORE", "y", "z", 0, -1],
        args!["ZADD", "z", "inf", "top"],
        args!["ZSCORE", "z", "top"],
        args!["ZMSCORE", "z", "n", "nothing"],
        args!["XADD", "x", "1-1", "f", "v"],
        args!["XADD", "x", "1-1", "f", "v"],
        args!["XRANGE", "x", "-", "+"],
        args!["XGROUP", "CREATE", "x", "g", "$"],
        args!["XLEN", "x"],
        args!["XINFO", "GROUPS", "x"],
        args!["XPENDING", "x", "g"],
        args!["XTRIM", "x", "MAXLEN", 0],
        args!["PFADD", "p", "a"],
        args!["PFCOUNT", "p"],
        args!["GEOADD", "geo", 1, 1, "m"],
        args!["GEOPOS", "geo", "m", "nothing"],
        args!["GEODIST", "geo", "m", "m"],
        args!["EXPIRE", "s", 1000],
        args!["PERSIST", "s"],
        args!["TTL", "s"],
        args!["TYPE", "z"],
        args!["RENAME", "s", "r"],
        args!["RENAME", "s", "r"],
        args!["COPY", "r", "copy"],
        args!["DUMP", "n"],
        args!["OBJECT", "ENCODING", "n"],
        args!["EXISTS", "n", "h"],
        args!["TOUCH", "n"],
        args!["DEL", "r", "copy"],
        args!["UNLINK", "n"],
        args!["INCR", "h"],
        args!["HSET", "z", "f", "v"],
        args!["MOVE", "b", 1],
        args!["LCS", "y", "bits"],
        args!["HSCAN", "h", 0],
        args!["SSCAN", "t", 0],
    ];
    commands.push(args!["SET", "big", vec![b'x'; 1 << 20]]);
    commands.push(args!["GET", "big"]);
    commands
}
