//! Who may do what: permissions for the module's commands and their keys, and for what FENCE.CALL runs.

use crate::common;

use common::{LONG_MS, SOON, standing, waiter};
use lockfence_testkit::{Conn, Reply, Server, ServerKind, args, cmd, server_tests};

/// The public commands.
const COMMANDS: [&str; 9] = [
    "lock.acquire",
    "lock.release",
    "lock.extend",
    "lock.info",
    "lock.break",
    "fence.write",
    "fence.call",
    "fence.check",
    "fence.advance",
];

/// A connection as a new user with these rules.
fn user(server: &Server, name: &str, rules: &[&str]) -> Conn {
    let words = [&args!["ACL", "SETUSER", name, "reset", "on", ">pw"], &rules_as_args(rules)[..]].concat();
    server.connect().cmd(words).ok();
    server.connect_as(name, "pw")
}

fn rules_as_args(rules: &[&str]) -> Vec<Vec<u8>> {
    rules.iter().map(|rule| rule.as_bytes().to_vec()).collect()
}

#[track_caller]
fn assert_noperm(conn: &mut Conn, words: &[Vec<u8>]) {
    let reply = conn.cmd(words);
    let shown: Vec<_> = words.iter().map(|word| word.escape_ascii().to_string()).collect();
    assert!(reply.is_err() && reply.err().starts_with("NOPERM "), "{shown:?}: {reply:?}");
}

server_tests! {
    /// I7: "FENCE.WRITE needs permission for fence.write and the keys, not for set: so -set +fence.write makes the
    /// fence unavoidable". The account of the README.
    fn without_set_the_fence_is_unavoidable(kind: ServerKind) {
        let server = Server::start(kind);
        let rules = ["~lock:*", "~data:*", "-@all", "+lock.acquire", "+lock.release", "+fence.write", "+get"];
        let mut worker = user(&server, "worker", &rules);
        let token = cmd!(worker, "LOCK.ACQUIRE", "lock:a", "me", LONG_MS).token();
        cmd!(worker, "FENCE.WRITE", "lock:a", token, "data:a", "by the fence").ok();
        assert_eq!(cmd!(worker, "GET", "data:a").text(), "by the fence");
        assert_noperm(&mut worker, &args!["SET", "data:a", "past it"]);
        assert_noperm(&mut worker, &args!["FENCE.CALL", "lock:a", token, "SET", "data:a", "past it"]);
        assert_noperm(&mut worker, &args!["FENCE.ADVANCE", "lock:b", 1]);
        assert_noperm(&mut worker, &args!["LOCK.BREAK", "lock:a"]);
        assert_eq!(cmd!(worker, "LOCK.RELEASE", "lock:a", "me").int(), 1);
        let next = cmd!(worker, "LOCK.ACQUIRE", "lock:a", "you", LONG_MS).token();
        cmd!(worker, "FENCE.WRITE", "lock:a", token, "data:a", "late").assert_err_prefix("FENCED ");
        cmd!(worker, "FENCE.WRITE", "lock:a", next, "data:a", "next").ok();
    }

    /// The same with FENCE.CALL: who may use it but not SET sets nothing with it, on every server with -NOPERM.
    fn call_runs_as_the_calling_user(kind: ServerKind) {
        let server = Server::start(kind);
        let mut admin = server.connect();
        cmd!(admin, "SET", "data:a", "as it was").ok();
        cmd!(admin, "SET", "secret:b", "as it was").ok();
        let rules = ["~lock:*", "~data:*", "+@all", "-set", "-hset", "-config", "-object|freq", "-@admin"];
        let mut limited = user(&server, "limited", &rules);
        let token = cmd!(limited, "LOCK.ACQUIRE", "lock:a", "me", LONG_MS).token();
        let mut call =
            |inner: Vec<Vec<u8>>| limited.cmd([args!["FENCE.CALL", "lock:a", token], inner].concat());
        assert_eq!(call(args!["GET", "data:a"]).text(), "as it was");
        assert_eq!(call(args!["INCR", "data:n"]).int(), 1);
        for (inner, why) in [
            (args!["SET", "data:a", "x"], "the command"),
            (args!["set", "data:a", "x"], "the command, in other letters"),
            (args!["HSET", "data:h", "f", "v"], "the command"),
            (args!["OBJECT", "FREQ", "data:a"], "the subcommand"),
            (args!["GET", "secret:b"], "the key"),
            (args!["MSET", "data:a", "x", "secret:b", "x"], "one of the keys"),
            (args!["RENAME", "data:a", "secret:c"], "the key written"),
            (args!["COPY", "secret:b", "data:b"], "the key read"),
            (args!["SUNIONSTORE", "data:u", "secret:b"], "a later key"),
        ] {
            let reply = call(inner);
            assert!(reply.is_err() && reply.err().starts_with("NOPERM "), "{why}: {reply:?}");
        }
        assert_eq!(call(args!["OBJECT", "ENCODING", "data:n"]).text(), "int", "the other subcommands");
        assert_eq!(cmd!(admin, "GET", "data:a").text(), "as it was");
        assert_eq!(cmd!(admin, "KEYS", "*").items().len(), 4);
        let log = cmd!(admin, "ACL", "LOG");
        assert!(!log.items().is_empty(), "refusals are in ACL LOG");
    }

    /// I7: a user without rights to a key is refused, before anything is looked at or changed.
    fn keys_outside_the_users_patterns_are_refused(kind: ServerKind) {
        let server = Server::start(kind);
        let mut admin = server.connect();
        let token = cmd!(admin, "LOCK.ACQUIRE", "lock:a", "me", LONG_MS).token();
        let other = cmd!(admin, "LOCK.ACQUIRE", "secret:lock", "me", LONG_MS).token();
        cmd!(admin, "SET", "secret:b", "as it was").ok();
        let before = server.digest();
        let mut conn = user(&server, "u", &["~lock:*", "+@all"]);
        for words in [
            args!["FENCE.WRITE", "lock:a", token, "secret:b", "v"],
            args!["FENCE.WRITE", "secret:lock", other, "lock:data", "v"],
            args!["FENCE.CALL", "lock:a", token, "SET", "secret:b", "v"],
            args!["FENCE.CALL", "secret:lock", other, "SET", "lock:data", "v"],
            args!["FENCE.CALL", "lock:a", token - 1, "SET", "secret:b", "v"],
            args!["FENCE.CHECK", "secret:lock", other],
            args!["FENCE.ADVANCE", "secret:fence", 1],
            args!["LOCK.ACQUIRE", "secret:lock", "me", 1000],
            args!["LOCK.RELEASE", "secret:lock", "me"],
            args!["LOCK.EXTEND", "secret:lock", "me", 1000],
            args!["LOCK.INFO", "secret:lock"],
            args!["LOCK.BREAK", "secret:lock"],
        ] {
            assert_noperm(&mut conn, &words);
        }
        assert_eq!(server.digest(), before);
        assert_eq!(cmd!(conn, "FENCE.CHECK", "lock:a", token).token(), token);
        cmd!(conn, "FENCE.WRITE", "lock:a", token, "lock:data", "v").ok();
    }

    /// I7: read and write rights as the key specifications say: who may only read a lock looks at it, who may only
    /// write the data writes it, and reads nothing through SET … GET.
    fn read_and_write_rights_are_told_apart(kind: ServerKind) {
        let server = Server::start(kind);
        let mut admin = server.connect();
        let token = cmd!(admin, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        cmd!(admin, "FENCE.ADVANCE", "fence", 10).no_err();
        cmd!(admin, "SET", "data", "hidden").ok();

        let mut reader = user(&server, "reader", &["%R~*", "+@all"]);
        assert_eq!(cmd!(reader, "LOCK.INFO", "lock").field("owner").text(), "me");
        assert_eq!(cmd!(reader, "FENCE.CHECK", "lock", token).token(), token);
        for words in [
            args!["LOCK.ACQUIRE", "lock", "you", 1000],
            args!["LOCK.RELEASE", "lock", "me"],
            args!["LOCK.EXTEND", "lock", "me", 1000],
            args!["LOCK.BREAK", "lock"],
            args!["FENCE.WRITE", "lock", token, "data", "x"],
            args!["FENCE.ADVANCE", "fence", 11],
            args!["FENCE.CALL", "lock", token, "GET", "data"],
            args!["FENCE.CALL", "lock", token, "SET", "data", "x"],
        ] {
            assert_noperm(&mut reader, &words);
        }

        let mut writer = user(&server, "writer", &["%W~*", "+@all"]);
        for words in [
            args!["LOCK.ACQUIRE", "lock", "you", 1000],
            args!["LOCK.RELEASE", "lock", "me"],
            args!["LOCK.INFO", "lock"],
            args!["FENCE.CHECK", "lock", token],
            args!["FENCE.ADVANCE", "fence", 11],
            args!["FENCE.WRITE", "lock", token, "data", "x"],
        ] {
            assert_noperm(&mut writer, &words);
        }

        let mut both = user(&server, "both", &["~lock", "~fence", "%W~data", "+@all"]);
        cmd!(both, "FENCE.WRITE", "lock", token, "data", "still hidden").ok();
        assert_noperm(&mut both, &args!["FENCE.WRITE", "lock", token, "data", "x", "GET"]);
        assert_noperm(&mut both, &args!["FENCE.WRITE", "fence", 11, "data", "x", "NX", "get"]);
        assert_noperm(&mut both, &args!["FENCE.CALL", "lock", token, "SET", "data", "x", "GET"]);
        assert_noperm(&mut both, &args!["FENCE.CALL", "lock", token, "GET", "data"]);
        assert_noperm(&mut both, &args!["FENCE.CALL", "lock", token, "GETDEL", "data"]);
        cmd!(both, "FENCE.CALL", "lock", token, "SET", "data", "written").ok();
        assert_eq!(cmd!(admin, "GET", "data").text(), "written");
        assert_eq!(cmd!(admin, "FENCE.CHECK", "fence", 10).int(), 10, "refused before it was raised");

        let mut own = user(&server, "own", &["~lock", "~data", "+@all"]);
        assert_eq!(cmd!(own, "FENCE.WRITE", "lock", token, "data", "x", "GET").text(), "written");
    }

    /// The right to read is asked for as the server asks for it with SET, for the options that it has.
    fn options_that_read_need_the_right_to_read(kind: ServerKind) {
        let server = Server::start(kind);
        let mut admin = server.connect();
        let token = cmd!(admin, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        let mut conn = user(&server, "u", &["~lock", "%W~data", "+@all"]);
        let options = [
            args![],
            args!["GET"],
            args!["NX"],
            args!["XX", "GET"],
            args!["EX", 100],
            args!["KEEPTTL", "get"],
            args!["IFEQ", "hidden"],
            args!["ifeq", "something else"],
            args!["IFEQ", "hidden", "GET"],
            args!["IFNE", "hidden"],
            args!["IFDEQ", "0123456789abcdef"],
            args!["IFDNE", "0123456789abcdef"],
            args!["BOGUS"],
        ];
        let mut refused = 0;
        for options in options {
            cmd!(admin, "SET", "data", "hidden").ok();
            let plain = conn.cmd([args!["SET", "data", "x"], options.clone()].concat());
            cmd!(admin, "SET", "data", "hidden").ok();
            let fenced = conn.cmd([args!["FENCE.WRITE", "lock", token, "data", "x"], options.clone()].concat());
            let noperm = |reply: &Reply| reply.is_err() && reply.err().starts_with("NOPERM ");
            assert_eq!(noperm(&fenced), noperm(&plain), "{options:?}: {fenced:?}, but {plain:?}");
            refused += u32::from(noperm(&plain));
        }
        assert!(refused >= 3);
    }

    /// A value that is the word GET is no option: it asks for no right to read.
    fn a_value_get_is_no_option(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = user(&server, "u", &["~lock", "%W~data", "+@all"]);
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        cmd!(conn, "FENCE.WRITE", "lock", token, "data", "GET").ok();
        assert_eq!(cmd!(server.connect(), "GET", "data").text(), "GET");
    }

    /// A refusal for want of rights leaves a lock and its queue alone.
    fn a_refusal_for_want_of_rights_changes_nothing(kind: ServerKind) {
        let server = Server::start(kind);
        let mut admin = server.connect();
        let token = cmd!(admin, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        let _waiting = waiter(&server, "lock", "w", LONG_MS, 1);
        let before = standing(&mut admin, "lock");
        let mut conn = user(&server, "u", &["~lock", "+@all", "-lock.release", "-lock.acquire", "-set"]);
        assert_noperm(&mut conn, &args!["LOCK.RELEASE", "lock", "me"]);
        assert_noperm(&mut conn, &args!["LOCK.ACQUIRE", "lock", "u", 1000, "WAIT", 0]);
        assert_noperm(&mut conn, &args!["FENCE.CALL", "lock", token, "SET", "data", "x"]);
        assert_eq!(standing(&mut admin, "lock"), before);
    }

    /// Scripts run as their caller: what the user may not do, a script of theirs may not either.
    fn a_script_of_the_user_may_do_no_more(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = user(&server, "u", &["~lock", "~data", "+@all", "-set", "-fence.advance"]);
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        let script = "return redis.pcall(unpack(ARGV))";
        for (inner, allowed) in [
            (args!["FENCE.WRITE", "lock", token, "data", "x"], true),
            (args!["FENCE.CALL", "lock", token, "APPEND", "data", "y"], true),
            (args!["FENCE.CALL", "lock", token, "SET", "data", "z"], false),
            (args!["FENCE.CALL", "lock", token, "GET", "secret"], false),
            (args!["FENCE.WRITE", "lock", token, "secret", "x"], false),
            (args!["FENCE.ADVANCE", "lock", 1], false),
        ] {
            let reply = conn.cmd([args!["EVAL", script, 0], inner.clone()].concat());
            assert_eq!(!reply.is_err(), allowed, "{inner:?}: {reply:?}");
        }
        assert_eq!(cmd!(conn, "GET", "data").text(), "xy");
    }

    /// `@lockfence` names the nine public commands on servers that let a module add a category (Redis 7.4, Valkey 8.0).
    fn the_category_holds_the_public_commands(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let category = cmd!(conn, "ACL", "CAT", "lockfence");
        if kind == ServerKind::Redis70 {
            assert!(category.is_err(), "Redis 7.0 has no categories of modules: {category:?}");
            return;
        }
        let mut named: Vec<_> = category.items().iter().map(Reply::text).collect();
        named.sort();
        let mut wanted = COMMANDS.to_vec();
        wanted.sort_unstable();
        assert_eq!(named, wanted);
        let mut worker = user(&server, "worker", &["~*", "-@all", "+@lockfence", "-lock.break"]);
        let token = cmd!(worker, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        cmd!(worker, "FENCE.WRITE", "lock", token, "data", "x").ok();
        assert_noperm(&mut worker, &args!["SET", "data", "x"]);
        assert_noperm(&mut worker, &args!["LOCK.BREAK", "lock"]);
        let mut without = user(&server, "without", &["~*", "+@all", "-@lockfence"]);
        for name in COMMANDS {
            let more: &[&str] = match name {
                "lock.info" | "lock.break" => &[],
                "lock.release" | "fence.check" | "fence.advance" => &["1"],
                "lock.acquire" | "lock.extend" => &["me", "1000"],
                _ => &["1", "get", "data"],
            };
            assert_noperm(&mut without, &[args![name, "lock"], rules_as_args(more)].concat());
        }
    }

    /// Internal commands are of no use to anybody: not to the default user, not in a transaction, not in a script.
    fn internal_commands_are_refused_to_all(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        let before = server.digest();
        let log = [1_u8, 1, 0, 0];
        let script = "return redis.pcall(unpack(ARGV))";
        for words in [
            args!["LF.LOG", "lock", log],
            args!["LF.LOG", "new", ""],
            args!["LF.HANDOVER", "lock"],
            args!["LF.HANDOVER", "lock", "me", token],
        ] {
            conn.cmd(&words).assert_err_prefix("ERR LF.");
            conn.cmd([args!["EVAL", script, 0], words.clone()].concat()).assert_err_prefix("ERR LF.");
            cmd!(conn, "MULTI").ok();
            conn.cmd(&words).no_err();
            cmd!(conn, "EXEC").items()[0].assert_err_prefix("ERR LF.");
        }
        assert_eq!(server.digest(), before);
        assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "me").int(), 1);
    }

    /// LOCK.BREAK is "for administrators": flagged so everywhere, and in @admin and @dangerous where a module can say so
    /// (Redis 7.2, Valkey 7.2): there an account without these has the other commands alone.
    fn break_is_for_administrators(kind: ServerKind) {
        let server = Server::start(kind);
        let flags = cmd!(server.connect(), "COMMAND", "INFO", "lock.break");
        let flags: Vec<_> = flags.items()[0].items()[2].items().iter().map(Reply::text).collect();
        assert!(flags.contains(&"admin".to_owned()), "{flags:?}");
        if kind == ServerKind::Redis70 {
            return;
        }
        for without in ["-@admin", "-@dangerous"] {
            let mut worker = user(&server, "worker", &["~*", "+@all", without]);
            let token = cmd!(worker, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
            cmd!(worker, "FENCE.CALL", "lock", token, "INCR", "n").no_err();
            assert_noperm(&mut worker, &args!["LOCK.BREAK", "lock"]);
        }
        let mut reader = user(&server, "reader", &["~*", "-@all", "+@read"]);
        cmd!(reader, "LOCK.INFO", "lock").no_err();
        assert_noperm(&mut reader, &args!["LOCK.RELEASE", "lock", "me"]);
        let mut writer = user(&server, "writer", &["~*", "-@all", "+@write", "-@dangerous"]);
        assert_eq!(cmd!(writer, "LOCK.RELEASE", "lock", "me").int(), 1);
        assert_noperm(&mut writer, &args!["LF.HANDOVER", "lock"]);
        assert_noperm(&mut writer, &args!["LF.LOG", "lock", "x"]);
    }

    /// A user whose rights are taken while they wait gets the grant all the same, or is cut off; nothing hangs, and
    /// their next command is refused.
    fn rights_that_are_taken_apply_to_the_next_command(kind: ServerKind) {
        let server = Server::start(kind);
        let mut admin = server.connect();
        cmd!(admin, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        let mut worker = user(&server, "worker", &["~*", "+@all"]);
        worker.send(args!["LOCK.ACQUIRE", "lock", "w", LONG_MS, "WAIT", 0]);
        common::wait_queue(&mut admin, "lock", 1);
        cmd!(admin, "ACL", "SETUSER", "worker", "-lock.extend", "-fence.write").ok();
        assert_eq!(cmd!(admin, "LOCK.RELEASE", "lock", "me").int(), 1);
        let token = worker.recv(SOON).token();
        assert_noperm(&mut worker, &args!["LOCK.EXTEND", "lock", "w", 1000]);
        assert_noperm(&mut worker, &args!["FENCE.WRITE", "lock", token, "data", "x"]);
    }

    /// I8: MODULE UNLOAD with an ACL user that names a command: refused (the module has data types), nothing crashes,
    /// and the user's rights are as they were.
    fn unload_is_refused_and_users_stay(kind: ServerKind) {
        let server = Server::start(kind);
        let mut admin = server.connect();
        let mut worker = user(&server, "u", &["~*", "-@all", "+lock.acquire", "+fence.call", "+get"]);
        let token = cmd!(worker, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token();
        let refused = cmd!(admin, "MODULE", "UNLOAD", "lockfence");
        assert!(refused.is_err(), "{refused:?}");
        cmd!(admin, "ACL", "LIST").no_err();
        assert_eq!(cmd!(worker, "LOCK.ACQUIRE", "lock", "me", LONG_MS).token(), token);
        cmd!(worker, "FENCE.CALL", "lock", token, "GET", "data").nil();
        assert_noperm(&mut worker, &args!["LOCK.RELEASE", "lock", "me"]);
        server.assert_alive();
    }
}
