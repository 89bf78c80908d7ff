//! What the tests of persistence, replication and tokens share: looking at a lock, waiting for saves, finding the
//! files, and an encoder of the stored formats that shares no code with the module.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use lockfence_testkit::{Conn, Reply, Server, ServerBuilder, ServerKind, cmd, wait_for, wait_until};

/// How long a step of a healthy server may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// What LOCK.INFO says of a lock, but for what changes as time goes by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) state: String,
    pub(crate) owner: Option<Vec<u8>>,
    pub(crate) token: Option<u64>,
    pub(crate) counter: u64,
    pub(crate) grants: u64,
    pub(crate) holders: u64,
}

/// Looks at a lock; `None` where there is no record.
#[track_caller]
pub(crate) fn look(conn: &mut Conn, key: impl AsRef<[u8]>) -> Option<Seen> {
    let info = cmd!(conn, "LOCK.INFO", key.as_ref()).no_err();
    if info.is_nil() {
        return None;
    }
    let number = |name: &str| info.field(name).int().unsigned_abs();
    let optional = |name: &str| Some(info.field(name)).filter(|value| !value.is_nil());
    Some(Seen {
        state: info.field("state").text(),
        owner: optional("owner").map(|owner| owner.bytes().to_vec()),
        token: optional("token").map(Reply::token),
        counter: number("counter"),
        grants: number("grants"),
        holders: number("holders"),
    })
}

/// What is left of the lease, ms; 0 when free.
#[track_caller]
pub(crate) fn ttl_ms(conn: &mut Conn, key: impl AsRef<[u8]>) -> i64 {
    cmd!(conn, "LOCK.INFO", key.as_ref()).field("ttl-ms").int()
}

/// How many wait for the lock.
#[track_caller]
pub(crate) fn waiters(conn: &mut Conn, key: impl AsRef<[u8]>) -> i64 {
    cmd!(conn, "LOCK.INFO", key.as_ref()).field("waiters").int()
}

/// A grant that must be made at once.
#[track_caller]
pub(crate) fn acquire(conn: &mut Conn, key: impl AsRef<[u8]>, owner: &str, ttl: u64) -> u64 {
    cmd!(conn, "LOCK.ACQUIRE", key.as_ref(), owner, ttl).token()
}

/// A grant and its release.
#[track_caller]
pub(crate) fn acquire_and_release(conn: &mut Conn, key: impl AsRef<[u8]>) -> u64 {
    let token = acquire(conn, key.as_ref(), "passer-by", 60_000);
    assert_eq!(cmd!(conn, "LOCK.RELEASE", key.as_ref(), "passer-by").int(), 1);
    token
}

/// The highest token and the restart floor that a server knows.
#[track_caller]
pub(crate) fn high_and_floor(server: &Server) -> (u64, u64) {
    let info = server.info("lockfence");
    let number = |name: &str| info[name].parse().expect("a number");
    (number("lockfence_highest_token"), number("lockfence_restart_floor"))
}

/// A server whose AOF holds what a reply has confirmed.
pub(crate) fn with_aof(kind: ServerKind) -> ServerBuilder {
    Server::builder(kind)
        .arg("appendonly", "yes")
        .arg("appendfsync", "always")
        .arg("auto-aof-rewrite-percentage", 0)
        .arg("aof-load-truncated", "yes")
}

/// Rewrites the AOF and waits until it is done.
#[track_caller]
pub(crate) fn rewrite_aof(server: &Server) {
    let count = || server.info("persistence").get("aof_rewrites").and_then(|n| n.parse::<u64>().ok());
    let before = count().expect("aof_rewrites");
    cmd!(server.connect(), "BGREWRITEAOF").no_err();
    wait_for("the AOF to be rewritten", PATIENCE, || {
        let info = server.info("persistence");
        let done = info["aof_rewrite_in_progress"] == "0" && info["aof_rewrite_scheduled"] == "0";
        if done && count() > Some(before) { Ok(()) } else { Err(info) }
    });
    assert_eq!(server.info("persistence")["aof_last_bgrewrite_status"], "ok");
}

/// Waits until an AOF that has been turned on has its base.
#[track_caller]
pub(crate) fn wait_aof_whole(server: &Server) {
    wait_for("the AOF to be whole", PATIENCE, || {
        let info = server.info("persistence");
        let done = info["aof_enabled"] == "1"
            && info["aof_rewrite_in_progress"] == "0"
            && info["aof_rewrite_scheduled"] == "0"
            && info["aof_last_bgrewrite_status"] == "ok";
        if done { Ok(()) } else { Err(info) }
    });
}

/// Kills the server and starts it with the settings that it had in the end: an AOF that was turned on is read.
#[track_caller]
pub(crate) fn crash_with_new_settings(server: &Server) {
    cmd!(server.connect(), "CONFIG", "REWRITE").ok();
    server.kill9();
    server.restart();
}

/// Saves in the background and waits until it is done.
#[track_caller]
pub(crate) fn save_in_background(server: &Server) {
    cmd!(server.connect(), "BGSAVE").no_err();
    let look = || server.info("persistence");
    let info = wait_until("the end of BGSAVE", PATIENCE, look, |info| info["rdb_bgsave_in_progress"] == "0");
    assert_eq!(info["rdb_last_bgsave_status"], "ok");
}

/// The part of the AOF that the server appends to.
#[track_caller]
pub(crate) fn aof_tail_file(dir: &Path) -> PathBuf {
    let manifest =
        std::fs::read_to_string(dir.join("appendonlydir/appendonly.aof.manifest")).expect("manifest");
    let name = manifest.lines().rfind(|line| line.contains(" type i"));
    let name =
        name.and_then(|line| line.split_whitespace().nth(1)).expect("an incremental file in the manifest");
    dir.join("appendonlydir").join(name)
}

/// Copies a folder, with what is in it.
pub(crate) fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder to read") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("a copy");
        }
    }
}

/// A way in which the record under "old", with A's older lease, comes to stand where B holds "lock".
pub(crate) type Arrival = (&'static str, fn(&mut Conn));

/// All of them. What the server decides on arrival must be so for replicas and after a restart, too.
pub(crate) const ARRIVALS: [Arrival; 7] = [
    ("RENAME", |conn| cmd!(conn, "RENAME", "old", "lock").ok()),
    ("RESTORE", |conn| {
        let dump = cmd!(conn, "DUMP", "old");
        cmd!(conn, "RESTORE", "lock", 0, dump.bytes(), "REPLACE").ok();
    }),
    ("RENAME in a script", |conn| {
        cmd!(conn, "EVAL", "return redis.call('RENAME', KEYS[1], KEYS[2])", 2, "old", "lock").no_err();
    }),
    ("RENAME and on to another name", |conn| {
        in_multi(conn, &[&["RENAME", "old", "lock"], &["RENAME", "lock", "onward"]]);
    }),
    ("RENAME and a grant", |conn| {
        in_multi(conn, &[&["RENAME", "old", "lock"], &["LOCK.ACQUIRE", "lock", "C", "600000"]]);
    }),
    ("RENAME and a swap", |conn| in_multi(conn, &[&["RENAME", "old", "lock"], &["SWAPDB", "0", "1"]])),
    ("RENAME and data over it", |conn| in_multi(conn, &[&["RENAME", "old", "lock"], &["SET", "lock", "x"]])),
];

#[track_caller]
fn in_multi(conn: &mut Conn, commands: &[&[&str]]) {
    cmd!(conn, "MULTI").ok();
    for command in commands {
        conn.cmd(command).no_err();
    }
    for reply in cmd!(conn, "EXEC").items() {
        assert!(!reply.is_err(), "{reply:?}");
    }
}

/// A holds "old" and B, with a higher token, "lock"; A's token. Then one of [`ARRIVALS`].
#[track_caller]
pub(crate) fn arrive_over(conn: &mut Conn, arrival: Arrival) -> u64 {
    cmd!(conn, "FLUSHALL").ok();
    let old = acquire(conn, "old", "A", 600_000);
    assert!(acquire(conn, "lock", "B", 600_000) > old);
    (arrival.1)(conn);
    old
}

/// The wall clock, µs since 1970.
pub(crate) fn wall_us() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    u64::try_from(since.as_micros()).expect("before the year 586,000")
}

/// The stored formats, version 1, written down a second time.
pub(crate) mod wire {
    /// 2^53-1.
    pub(crate) const TOKEN_MAX: u64 = (1 << 53) - 1;
    /// 365 days.
    pub(crate) const TTL_MS_MAX: u64 = 365 * 24 * 60 * 60 * 1000;

    /// LEB128.
    pub(crate) fn number(out: &mut Vec<u8>, mut number: u64) {
        loop {
            let low = (number & 0x7f) as u8;
            number >>= 7;
            if number == 0 {
                out.push(low);
                return;
            }
            out.push(low | 0x80);
        }
    }

    /// A holder of a lock as it is stored.
    #[derive(Clone, Debug)]
    pub(crate) struct Holder {
        pub(crate) owner: Vec<u8>,
        pub(crate) token: u64,
        /// 0 exclusive, 1 shared, 2 limit (a number follows).
        pub(crate) mode: Vec<u8>,
        pub(crate) since_us: u64,
        pub(crate) ends_us: u64,
        pub(crate) length_ms: u64,
    }

    /// A lock's record as it is stored. What is wrong in it is written as it is.
    #[derive(Clone, Debug)]
    pub(crate) struct Lock {
        pub(crate) version: u8,
        pub(crate) counter: u64,
        pub(crate) grants: u64,
        pub(crate) free_since_us: u64,
        pub(crate) holders: Vec<Holder>,
    }

    impl Lock {
        /// A free lock.
        pub(crate) fn free(counter: u64) -> Self {
            Self { version: 1, counter, grants: 1, free_since_us: super::wall_us(), holders: Vec::new() }
        }

        /// A lock with a holder whose lease ends so many ms from now.
        pub(crate) fn held(counter: u64, owner: &[u8], token: u64, left_ms: u64, length_ms: u64) -> Self {
            let now = super::wall_us();
            let ends_us = now.saturating_add(left_ms.saturating_mul(1000));
            let owner = owner.to_vec();
            let holder = Holder { owner, token, mode: vec![0], since_us: now, ends_us, length_ms };
            Self { holders: vec![holder], free_since_us: ends_us, ..Self::free(counter) }
        }

        /// The bytes.
        pub(crate) fn bytes(&self) -> Vec<u8> {
            let mut out = vec![self.version];
            number(&mut out, self.counter);
            number(&mut out, self.grants);
            number(&mut out, self.free_since_us);
            number(&mut out, self.holders.len() as u64);
            for holder in &self.holders {
                number(&mut out, holder.owner.len() as u64);
                out.extend_from_slice(&holder.owner);
                number(&mut out, holder.token);
                out.extend_from_slice(&holder.mode);
                number(&mut out, holder.since_us);
                number(&mut out, holder.ends_us);
                number(&mut out, holder.length_ms);
            }
            out
        }
    }

    /// A fence's record.
    pub(crate) fn fence(counter: u64) -> Vec<u8> {
        let mut out = vec![1];
        number(&mut out, counter);
        out
    }

    /// Aux data: the highest token, the restart floor, when that was raised.
    pub(crate) fn aux(high: u64, floor: u64, raised_at_us: u64) -> Vec<u8> {
        let mut out = vec![1];
        for part in [high, floor, raised_at_us] {
            number(&mut out, part);
        }
        out
    }

    /// Names of the data types.
    pub(crate) const LOCK: &str = "lockfence";
    /// See [`LOCK`].
    pub(crate) const FENCE: &str = "fencemark";

    /// The server's id of a module's data type: nine characters of six bits, then ten bits of the version.
    pub(crate) fn type_id(name: &str, version: u16) -> u64 {
        const SET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        assert_eq!(name.len(), 9);
        let digit = |c: u8| SET.iter().position(|s| *s == c).expect("a character of a type name") as u64;
        let name = name.bytes().fold(0, |id, c| id << 6 | digit(c));
        name << 10 | u64::from(version)
    }

    /// A length as RDB files have it.
    pub(crate) fn rdb_length(out: &mut Vec<u8>, length: u64) {
        if length < 64 {
            out.push(length as u8);
        } else if length < 16_384 {
            out.push(0x40 | (length >> 8) as u8);
            out.push(length as u8);
        } else if let Ok(length) = u32::try_from(length) {
            out.push(0x80);
            out.extend_from_slice(&length.to_be_bytes());
        } else {
            out.push(0x81);
            out.extend_from_slice(&length.to_be_bytes());
        }
    }

    fn rdb_string(out: &mut Vec<u8>, bytes: &[u8]) {
        rdb_length(out, bytes.len() as u64);
        out.extend_from_slice(bytes);
    }

    /// A module's value: its type's id, one string, the end.
    pub(crate) fn rdb_value(id: u64, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        rdb_length(&mut out, id);
        out.push(5);
        rdb_string(&mut out, bytes);
        out.push(0);
        out
    }

    /// What DUMP gives and RESTORE takes: `rdb_value` with its type before it, the RDB version and a checksum after it.
    pub(crate) fn payload(id: u64, bytes: &[u8]) -> Vec<u8> {
        let mut out = vec![7];
        out.extend(rdb_value(id, bytes));
        seal(out)
    }

    /// A lock's payload.
    pub(crate) fn lock_payload(lock: &Lock) -> Vec<u8> {
        payload(type_id(LOCK, 1), &lock.bytes())
    }

    /// Appends RDB version (10: every server reads it) and checksum.
    pub(crate) fn seal(mut body: Vec<u8>) -> Vec<u8> {
        body.extend_from_slice(&10_u16.to_le_bytes());
        let sum = crc64(&body);
        body.extend_from_slice(&sum.to_le_bytes());
        body
    }

    /// The payload without RDB version and checksum.
    pub(crate) fn unseal(payload: &[u8]) -> &[u8] {
        &payload[..payload.len() - 10]
    }

    /// CRC-64 of Jones, as servers have it: reflected, no inversion.
    pub(crate) fn crc64(bytes: &[u8]) -> u64 {
        const POLYNOMIAL: u64 = 0x95ac_9329_ac4b_c9b5;
        bytes.iter().fold(0, |sum, byte| {
            (0..8).fold(
                sum ^ u64::from(*byte),
                |sum, _| {
                    if sum & 1 == 1 { sum >> 1 ^ POLYNOMIAL } else { sum >> 1 }
                },
            )
        })
    }

    /// A key of an RDB file.
    #[derive(Clone, Debug)]
    pub(crate) struct RdbKey<'a> {
        pub(crate) db: u8,
        pub(crate) name: &'a [u8],
        /// 7 and [`rdb_value`], or 0 and a string.
        pub(crate) kind: u8,
        pub(crate) value: Vec<u8>,
    }

    /// A key that holds a record of the module.
    pub(crate) fn rdb_key<'a>(db: u8, name: &'a [u8], id: u64, bytes: &[u8]) -> RdbKey<'a> {
        RdbKey { db, name, kind: 7, value: rdb_value(id, bytes) }
    }

    /// A string key.
    pub(crate) fn rdb_string_key<'a>(db: u8, name: &'a [u8], value: &[u8]) -> RdbKey<'a> {
        let mut out = Vec::new();
        rdb_string(&mut out, value);
        RdbKey { db, name, kind: 0, value: out }
    }

    /// A whole RDB file, with the module's aux data where given.
    pub(crate) fn rdb_file(aux: Option<(u64, &[u8])>, keys: &[RdbKey<'_>]) -> Vec<u8> {
        let mut out = b"REDIS0010".to_vec();
        if let Some((id, bytes)) = aux {
            out.push(0xf7);
            rdb_length(&mut out, id);
            out.extend_from_slice(&[2, 1, 5]); // "when": an unsigned number, before the keys
            rdb_string(&mut out, bytes);
            out.push(0);
        }
        for key in keys {
            out.extend_from_slice(&[0xfe, key.db, key.kind]);
            rdb_string(&mut out, key.name);
            out.extend_from_slice(&key.value);
        }
        out.push(0xff);
        let sum = crc64(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }
}
