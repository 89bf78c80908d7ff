//! What the tests of several concerns share: short forms of the commands, and looks at a lock that leave out time.
#![allow(dead_code, reason = "each test program uses its own part")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockfence_testkit::{Conn, Reply, Server, ToArg, cmd, send, wait_until};

/// A lease that does not end while a test runs, ms.
pub(crate) const LONG_MS: u64 = 600_000;
/// How long anything that must come may take on a busy machine. A lease of [`LONG_MS`] is far beyond it.
pub(crate) const SOON: Duration = Duration::from_secs(15);
/// Tokens are exact in JavaScript and Lua.
pub(crate) const TOKEN_MAX: u64 = (1 << 53) - 1;

/// The wall clock in µs, as tokens have it.
pub(crate) fn wall_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    u64::try_from(since.as_micros()).expect("a clock before the year 500,000")
}

/// LOCK.INFO of a lock that has a record.
#[track_caller]
pub(crate) fn info(conn: &mut Conn, lock: impl ToArg) -> Reply {
    let reply = cmd!(conn, "LOCK.INFO", lock).no_err();
    assert!(!reply.is_nil(), "the lock has no record");
    reply
}

/// One number of LOCK.INFO.
#[track_caller]
pub(crate) fn number(conn: &mut Conn, lock: impl ToArg, field: &str) -> i64 {
    info(conn, lock).field(field).int()
}

/// All that LOCK.INFO says but times: what must stay as it was after a refused command. Nil where there is no record.
#[track_caller]
pub(crate) fn standing(conn: &mut Conn, lock: impl ToArg) -> Vec<(String, Reply)> {
    let reply = cmd!(conn, "LOCK.INFO", lock).no_err();
    if reply.is_nil() {
        return Vec::new();
    }
    let timeless = |(name, value): (&Reply, &Reply)| {
        let name = name.text();
        (!name.ends_with("-ms")).then(|| (name, value.clone()))
    };
    reply.fields().into_iter().filter_map(timeless).collect()
}

/// The counters of the INFO section that a refused command must not move.
#[track_caller]
pub(crate) fn issued(server: &Server) -> [String; 4] {
    let section = server.info("lockfence");
    ["highest_token", "grants_total", "waiters", "restart_floor"].map(|name| stat(&section, name))
}

/// A number of the INFO section `lockfence`.
#[track_caller]
pub(crate) fn stat_of(server: &Server, name: &str) -> u64 {
    stat(&server.info("lockfence"), name).parse().expect("a number")
}

#[track_caller]
fn stat(section: &std::collections::BTreeMap<String, String>, name: &str) -> String {
    let value = section.get(&format!("lockfence_{name}"));
    value.unwrap_or_else(|| panic!("INFO has no lockfence_{name}: {section:?}")).clone()
}

/// A new connection that waits for the lock, once it stands in the queue as number `place` (1 is the first).
#[track_caller]
pub(crate) fn waiter(server: &Server, lock: &str, owner: &str, ttl_ms: u64, place: i64) -> Conn {
    waiter_for(server, lock, owner, ttl_ms, 0, place)
}

/// As [`waiter`], for at most `wait_ms` (0 is without limit).
#[track_caller]
pub(crate) fn waiter_for(
    server: &Server,
    lock: &str,
    owner: &str,
    ttl_ms: u64,
    wait_ms: u64,
    place: i64,
) -> Conn {
    let mut conn = server.connect();
    send!(conn, "LOCK.ACQUIRE", lock, owner, ttl_ms, "WAIT", wait_ms);
    wait_queue(&mut server.connect(), lock, place);
    conn
}

/// Waits until so many wait for the lock.
#[track_caller]
pub(crate) fn wait_queue(conn: &mut Conn, lock: &str, waiters: i64) {
    wait_until("the queue's length", SOON, || number(conn, lock, "waiters"), |seen| *seen == waiters);
}

/// Who holds the lock, if anybody does.
#[track_caller]
pub(crate) fn owner(conn: &mut Conn, lock: impl ToArg) -> Option<String> {
    let info = cmd!(conn, "LOCK.INFO", lock).no_err();
    if info.is_nil() {
        return None;
    }
    let owner = info.field("owner");
    (!owner.is_nil()).then(|| owner.text())
}

/// Waits until nobody holds the lock, whoever waits for it. A read: it serves nobody.
#[track_caller]
pub(crate) fn wait_free(conn: &mut Conn, lock: &str) {
    wait_until("the lease to be over", SOON, || owner(conn, lock), |owner| owner.is_none());
}

/// Whole milliseconds.
pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).expect("a short time")
}

/// The names of a map's fields.
pub(crate) fn names(map: &Reply) -> Vec<String> {
    map.fields().iter().map(|(name, _)| name.text()).collect()
}

/// What DEBUG DIGEST compares is the same once the replica has all of it.
#[track_caller]
pub(crate) fn assert_same_data(primary: &Server, replica: &Server) {
    replica.wait_in_sync(primary);
    assert_eq!(primary.digest(), replica.digest(), "primary and replica differ");
}

/// How far the server's replication stream has come.
#[track_caller]
pub(crate) fn offset(server: &Server) -> u64 {
    let section = server.info("replication");
    let field = if section["role"] == "slave" { "slave_repl_offset" } else { "master_repl_offset" };
    section[field].parse().expect("an offset")
}

/// Another module: OTHER.HELLO key, whose flags are the argument of MODULE LOAD, and OTHER.RUN key modes command word …,
/// which runs a command in these modes of `RedisModule_Call`.
#[track_caller]
pub(crate) fn other_module(server: &Server) -> std::path::PathBuf {
    const SOURCE: &str = r#"
        #include <stddef.h>
        #include <stdio.h>
        static const char *(*bytes)(void *, size_t *);
        static int (*create)(void *, const char *, int (*)(void *, void **, int), const char *, int, int, int);
        static int (*number)(void *, long long);
        static int (*wrong)(void *, const char *);
        static void *(*run)(void *, const char *, const char *, ...);
        static int (*pass_on)(void *, void *);
        static void (*name_it)(void *, const char *, int, int);
        static int hello(void *ctx, void **argv, int argc) { (void)argv; (void)argc; return number(ctx, 42); }
        static int run_it(void *ctx, void **argv, int argc) {
            char modes[20];
            snprintf(modes, sizeof modes, "%sv", bytes(argv[2], NULL));
            void *reply = run(ctx, bytes(argv[3], NULL), modes, argv + 4, (size_t)(argc - 4));
            return reply ? pass_on(ctx, reply) : wrong(ctx, "ERR it did not run");
        }
        int RedisModule_OnLoad(void *ctx, void **argv, int argc) {
            int (*get)(const char *, void *) = ((int (**)(const char *, void *))ctx)[0];
            get("RedisModule_SetModuleAttribs", &name_it);
            get("RedisModule_StringPtrLen", &bytes);
            get("RedisModule_CreateCommand", &create);
            get("RedisModule_ReplyWithLongLong", &number);
            get("RedisModule_ReplyWithError", &wrong);
            get("RedisModule_Call", &run);
            get("RedisModule_ReplyWithCallReply", &pass_on);
            name_it(ctx, "other", 1, 1);
            return create(ctx, "other.hello", hello, argc ? bytes(argv[0], NULL) : "", 1, 1, 1)
                || create(ctx, "other.run", run_it, "write", 1, 1, 1);
        }"#;
    let (source, module) = (server.dir().join("other.c"), server.dir().join("other.so"));
    std::fs::write(&source, SOURCE).expect("its source");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut compile = std::process::Command::new(compiler);
    let status =
        compile.args(["-shared", "-fPIC", "-o"]).arg(&module).arg(&source).status().expect("a C compiler");
    assert!(status.success());
    module
}
