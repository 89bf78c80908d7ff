//! How clients and clusters find where a command goes: key positions, slots, redirections.

use std::process::Command;

use crate::common::{LONG_MS, SOON, owner, wait_queue};
use lockfence_testkit::{
    Cluster, Conn, Reply, Server, ServerKind, args, cmd, key_slot, redis_cli, send, server_tests, wait_until,
};

/// What COMMAND INFO says of a command: arity, flags, first key, last key, step.
fn describe(conn: &mut Conn, name: &str) -> (i64, Vec<String>, [i64; 3]) {
    let reply = cmd!(conn, "COMMAND", "INFO", name);
    let info = reply.items()[0].items();
    let flags = info[2].items().iter().map(Reply::text).collect();
    (info[1].int(), flags, [info[3].int(), info[4].int(), info[5].int()])
}

/// A single server that holds all slots.
fn one_node(kind: ServerKind) -> Server {
    let server = Server::builder(kind).arg("cluster-enabled", "yes").start();
    cmd!(server.connect(), "CLUSTER", "ADDSLOTSRANGE", 0, 16383).ok();
    let state = || cmd!(server.connect(), "CLUSTER", "INFO").text();
    wait_until("a cluster that serves", SOON, state, |info| info.contains("cluster_state:ok"));
    server
}

fn texts(reply: &Reply) -> Vec<String> {
    reply.items().iter().map(Reply::text).collect()
}

/// The arguments that COMMAND DOCS tells of, as a page shows them.
fn shown(arguments: &Reply, between: &str) -> String {
    let each = arguments.items().iter().map(|argument| {
        let fields: Vec<(String, &Reply)> =
            argument.fields().into_iter().map(|(name, value)| (name.text(), value)).collect();
        let field = |name: &str| fields.iter().find(|(other, _)| other == name).map(|(_, value)| *value);
        let value = match field("type").unwrap().text().as_str() {
            "pure-token" => None,
            "oneof" => Some(shown(field("arguments").unwrap(), " | ")),
            "block" => Some(shown(field("arguments").unwrap(), " ")),
            _ => field("name").map(Reply::text),
        };
        let words: Vec<String> = field("token").map(Reply::text).into_iter().chain(value).collect();
        let flags = field("flags").map(texts).unwrap_or_default();
        let many = if flags.contains(&"multiple".to_owned()) { " …" } else { "" };
        let text = format!("{}{many}", words.join(" "));
        if flags.contains(&"optional".to_owned()) { format!("[{text}]") } else { text }
    });
    each.collect::<Vec<_>>().join(between)
}

server_tests! {
    /// I1: COMMAND INFO has the right arity, flags and key positions. FENCE.WRITE: words 1 and 3. Each
    /// needs rights of its own, so "movablekeys" sends clients that ask for more to COMMAND GETKEYS. D23: what can block says so.
    fn command_info_is_right(kind: ServerKind) {
        let server = Server::start(kind);
        for mut conn in [server.connect(), server.connect_resp3()] {
            let one = [1, 1, 1];
            for (name, arity, flags, keys) in [
                ("lock.acquire", -4, vec!["write", "denyoom", "blocking"], one),
                ("lock.release", 3, vec!["write", "fast"], one),
                ("lock.extend", -4, vec!["write", "fast"], one),
                ("lock.info", -2, vec!["readonly"], one),
                ("lock.break", -2, vec!["write", "admin"], one),
                ("fence.write", -5, vec!["write", "denyoom", "movablekeys"], [1, 3, 2]),
                ("fence.call", -4, vec!["write", "movablekeys"], one),
                ("fence.check", 3, vec!["readonly", "fast"], one),
                ("fence.advance", -3, vec!["write", "denyoom", "fast"], one),
            ] {
                let (seen_arity, seen_flags, seen_keys) = describe(&mut conn, name);
                assert_eq!((seen_arity, seen_keys), (arity, keys), "{name}");
                for flag in flags {
                    assert!(seen_flags.contains(&flag.to_owned()), "{name}: {flag} is not in {seen_flags:?}");
                }
                for flag in ["noscript", "no_multi", "stale", "loading"] {
                    assert!(!seen_flags.contains(&flag.to_owned()), "{name}: {seen_flags:?}");
                }
                let denies = seen_flags.contains(&"denyoom".to_owned());
                let adds = ["lock.acquire", "fence.write", "fence.advance"].contains(&name);
                assert_eq!(denies, adds, "{name}: what lets go is never refused for memory");
            }
        }
    }

    /// I1: COMMAND GETKEYS: one key for a lock, two for FENCE.WRITE (words 1 and 3), whatever the options.
    fn getkeys_is_right(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        for (words, keys) in [
            (args!["LOCK.ACQUIRE", "L", "me", 1000, "WAIT", 5, "MINTOKEN", 7, "WITHINFO"], vec!["L"]),
            (args!["LOCK.RELEASE", "L", "me"], vec!["L"]),
            (args!["LOCK.EXTEND", "L", "me", 1000, "MINTOKEN", 7], vec!["L"]),
            (args!["LOCK.INFO", "L", "FULL", "COUNT", 1], vec!["L"]),
            (args!["LOCK.BREAK", "L"], vec!["L"]),
            (args!["FENCE.WRITE", "L", 5, "k", "v"], vec!["L", "k"]),
            (args!["FENCE.WRITE", "L", 5, "k", "v", "EX", 10, "NX", "GET"], vec!["L", "k"]),
            (args!["FENCE.CALL", "L", 5, "MSET", "a", 1, "b", 2], vec!["L", "a", "b"]),
            (args!["FENCE.CHECK", "L", 5], vec!["L"]),
            (args!["FENCE.ADVANCE", "L", 5, "PX", 10], vec!["L"]),
        ] {
            let asked = [args!["COMMAND", "GETKEYS"], words.clone()].concat();
            assert_eq!(texts(&conn.cmd(&asked)), keys, "{words:?}");
        }
    }

    /// Key flags: a lock is read and written; FENCE.WRITE overwrites its data key; looks are reads.
    fn key_flags_are_right(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        for (words, flags) in [
            (args!["LOCK.ACQUIRE", "L", "me", 1000], vec![vec!["RW", "access", "update"]]),
            (args!["LOCK.RELEASE", "L", "me"], vec![vec!["RW", "access", "update"]]),
            (args!["LOCK.INFO", "L"], vec![vec!["RO", "access"]]),
            (args!["FENCE.CHECK", "L", 5], vec![vec!["RO", "access"]]),
            (
                args!["FENCE.WRITE", "L", 5, "k", "v"],
                vec![vec!["RW", "access", "update"], vec!["OW", "update"]],
            ),
            (
                args!["FENCE.CALL", "L", 5, "SET", "k", "v"],
                vec![vec!["RW", "access", "update"], vec!["OW", "update"]],
            ),
        ] {
            let asked = [args!["COMMAND", "GETKEYSANDFLAGS"], words.clone()].concat();
            let reply = conn.cmd(&asked);
            for (key, wanted) in reply.items().iter().zip(&flags) {
                let mut seen = texts(&key.items()[1]);
                seen.sort();
                let mut wanted = wanted.clone();
                wanted.sort_unstable();
                assert_eq!(seen, wanted, "{words:?}");
            }
            assert_eq!(reply.items().len(), flags.len(), "{words:?}");
        }
    }

    /// COMMAND DOCS has a line for each command, and its arguments: what `help` in redis-cli shows.
    fn command_docs_tell_of_each(kind: ServerKind) {
        let server = Server::start(kind);
        for mut conn in [server.connect(), server.connect_resp3()] {
            for (name, arguments) in [
                (
                    "lock.acquire",
                    "lock owner ttl-ms [WAIT timeout-ms] [SHARED | LIMIT n] [MINTOKEN t] [WITHINFO]",
                ),
                ("lock.release", "lock owner"),
                ("lock.extend", "lock owner ttl-ms [MINTOKEN t]"),
                ("lock.info", "lock [FULL [COUNT n]]"),
                ("lock.break", "lock [MAXTOKEN t]"),
                ("fence.write", "lock-or-fence token key value [set-option …]"),
                ("fence.call", "lock-or-fence token command [arg …]"),
                ("fence.check", "lock-or-fence token"),
                ("fence.advance", "fence token [PX ms]"),
            ] {
                let docs = cmd!(conn, "COMMAND", "DOCS", name);
                let doc = docs.field(name);
                assert!(doc.field("summary").text().ends_with('.'), "{name}: {doc:?}");
                assert_eq!(doc.field("module").text(), "lockfence");
                doc.field("complexity").text();
                doc.field("since").text();
                assert_eq!(shown(doc.field("arguments"), " "), arguments);
            }
        }
    }

    /// What a newcomer types.
    fn redis_cli_shows_the_arguments(kind: ServerKind) {
        let server = Server::start(kind);
        let cli = redis_cli().expect("redis-cli");
        let mut help = Command::new(cli);
        help.args(["-p", &server.port().to_string(), "help", "LOCK.ACQUIRE"]);
        let printed = String::from_utf8_lossy(&help.output().unwrap().stdout).into_owned();
        for part in ["lock owner ttl-ms [WAIT timeout-ms]", "LIMIT n", "Returns a fencing token."] {
            assert!(printed.contains(part), "{printed}");
        }
    }

    /// I3: in a cluster all keys must share the lock's slot: -CROSSSLOT, before anything is looked at; with a hash tag it
    /// works. One node that holds all slots.
    fn keys_of_different_slots_are_refused(kind: ServerKind) {
        let server = one_node(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "{x}L", "me", LONG_MS).token();
        assert_ne!(key_slot(b"{x}L"), key_slot(b"k"));
        for words in [
            args!["FENCE.WRITE", "{x}L", token, "k", "v"],
            args!["FENCE.WRITE", "{x}L", 1, "k", "v"],
            args!["FENCE.CALL", "{x}L", token, "SET", "k", "v"],
            args!["FENCE.CALL", "{x}L", token, "MSET", "{x}a", 1, "k", 2],
            args!["FENCE.CALL", "{x}L", token, "SUNIONSTORE", "{x}d", "k"],
            args!["FENCE.CALL", "{x}L", token, "SORT", "{x}a", "STORE", "k"],
        ] {
            conn.cmd(&words).assert_err_prefix("CROSSSLOT ");
        }
        assert_eq!(cmd!(conn, "DBSIZE").int(), 1);
        cmd!(conn, "FENCE.WRITE", "{x}L", token, "{x}k", "v").ok();
        assert_eq!(cmd!(conn, "FENCE.CALL", "{x}L", token, "MSET", "{x}a", 1, "{x}b", 2).text(), "OK");
        assert_eq!(cmd!(conn, "FENCE.CALL", "{x}L", token, "RENAME", "{x}a", "{x}c").text(), "OK");
        assert_eq!(cmd!(conn, "GET", "{x}c").text(), "1");
        cmd!(conn, "FENCE.ADVANCE", "{x}F", 5).no_err();
        cmd!(conn, "FENCE.WRITE", "{x}F", 6, "{x}k", "w").ok();
        cmd!(conn, "FENCE.WRITE", "{x}F", 5, "{x}k", "v").assert_err_prefix("FENCED ");
    }

    /// What FENCE.CALL refuses anyway is refused in a cluster as well, however its words look.
    fn refusals_are_the_same_in_a_cluster(kind: ServerKind) {
        let server = one_node(kind);
        let mut conn = server.connect();
        let token = cmd!(conn, "LOCK.ACQUIRE", "L", "me", LONG_MS).token();
        for inner in [
            args!["FLUSHALL"],
            args!["PING"],
            args!["BLPOP", "{L}list", 0],
            args!["MULTI"],
            args!["SWAPDB", 0, 1],
            args!["EVAL", "return 1", 1, "{L}k"],
            args!["NOSUCH", "k"],
            args!["FENCE.CALL", "L", token, "GET", "{L}k"],
            args!["SET", "L", "x"],
            args!["SPUBLISH", "{L}c", "x"],
            args!["CLUSTER", "RESET"],
            args!["READONLY"],
        ] {
            conn.cmd([args!["FENCE.CALL", "L", token], inner].concat()).assert_err_prefix("ERR ");
        }
        assert_eq!(owner(&mut conn, "L").as_deref(), Some("me"));
    }

    /// Waiting, hand-over and the end of a lease on a node of a cluster: "the module itself never touches an undeclared
    /// key".
    fn a_lock_is_served_on_a_cluster_node(kind: ServerKind) {
        let server = one_node(kind);
        let mut conn = server.connect();
        let first = cmd!(conn, "LOCK.ACQUIRE", "L", "me", 300).token();
        let mut waiting = server.connect();
        send!(waiting, "LOCK.ACQUIRE", "L", "w", LONG_MS, "WAIT", 0);
        let second = waiting.recv(SOON).token();
        assert!(second > first);
        send!(conn, "LOCK.ACQUIRE", "L", "me", LONG_MS, "WAIT", 0);
        let mut other = server.connect();
        wait_queue(&mut other, "L", 1);
        assert_eq!(cmd!(waiting, "LOCK.RELEASE", "L", "w").int(), 1);
        assert!(conn.recv(SOON).token() > second);
        assert_eq!(cmd!(other, "DBSIZE").int(), 1, "no helper key");
    }

    /// In a cluster of three, whoever is asked at the wrong node is sent to the right one, by every command and for
    /// FENCE.CALL by its lock; nothing is made where it does not belong.
    fn the_wrong_node_redirects(kind: ServerKind) {
        let cluster = Cluster::start(kind);
        let lock = "lock:{acct:42}";
        let right = cluster.owner_index(lock);
        let slot = key_slot(lock.as_bytes());
        let moved = format!("MOVED {slot} 127.0.0.1:{}", cluster.node(right).port());
        let data = "{acct:42}:balance";
        let mut conn = cluster.connect_for(lock);
        let token = cmd!(conn, "LOCK.ACQUIRE", lock, "me", LONG_MS).token();
        for index in (0..3).filter(|index| *index != right) {
            let mut wrong = cluster.node(index).connect();
            for words in [
                args!["LOCK.ACQUIRE", lock, "you", 1000],
                args!["LOCK.ACQUIRE", lock, "you", 1000, "WAIT", 0],
                args!["LOCK.RELEASE", lock, "me"],
                args!["LOCK.EXTEND", lock, "me", 1000],
                args!["LOCK.INFO", lock],
                args!["LOCK.BREAK", lock],
                args!["FENCE.WRITE", lock, token, data, "x"],
                args!["FENCE.CALL", lock, token, "SET", data, "x"],
                args!["FENCE.CHECK", lock, token],
                args!["FENCE.ADVANCE", lock, token],
            ] {
                assert_eq!(wrong.cmd(&words).err(), moved, "{words:?}");
            }
            assert_eq!(cmd!(wrong, "DBSIZE").int(), 0);
        }
        cmd!(conn, "FENCE.WRITE", lock, token, data, 100).ok();
        assert_eq!(cmd!(conn, "FENCE.CALL", lock, token, "INCRBY", data, 1).int(), 101);
        cmd!(conn, "FENCE.WRITE", lock, token, "elsewhere", 1).assert_err_prefix("CROSSSLOT ");
        assert_eq!(owner(&mut conn, lock).as_deref(), Some("me"));
    }

    /// A script on a node of a cluster: FENCE.* on keys of one slot work, on others they are refused.
    fn scripts_keep_to_one_slot(kind: ServerKind) {
        let server = one_node(kind);
        let mut conn = server.connect();
        let script = "
            local token = redis.call('LOCK.ACQUIRE', KEYS[1], 'me', '600000')
            return redis.call('FENCE.WRITE', KEYS[1], token, KEYS[2], 'x')";
        cmd!(conn, "EVAL", script, 2, "{x}L", "{x}k").ok();
        cmd!(conn, "EVAL", script, 2, "{x}L", "k").assert_err_prefix("CROSSSLOT ");
        let undeclared = "return redis.pcall('FENCE.CALL', KEYS[1], ARGV[1], 'SET', ARGV[2], 'x')";
        let token = cmd!(conn, "LOCK.INFO", "{x}L").field("token").token();
        let reply = cmd!(conn, "EVAL", undeclared, 1, "{x}L", token, "elsewhere");
        assert!(reply.is_err(), "{reply:?}");
        assert_eq!(cmd!(conn, "DBSIZE").int(), 2);
    }
}
