//! What a held lock costs in memory, against a plain key with a TTL: by the server's own account of one key, and by how
//! much all of its memory grows with 100,000 of them.

use std::time::Duration;

use lockfence_testkit::{Server, ServerKind, cmd, wait_for};

use crate::report::{Goal, Report, Row};
use crate::wire::{OWNER, TTL_MS, Wire, encode};

const KEYS: usize = 100_000;
const PIPELINE: usize = 1_000;

/// Bytes a key: by MEMORY USAGE, and by the growth of used_memory.
struct Bytes {
    one: f64,
    grown: f64,
}

fn key(number: usize) -> String {
    format!("lock:{{{number:010}}}")
}

fn fill(kind: ServerKind, words: impl Fn(&mut Vec<u8>, &str)) -> Bytes {
    // The default keeps locks that nobody holds for a minute; all of these are held.
    let server = Server::start(kind);
    let mut wire = Wire::to(&server);
    let before = settled(&server);
    for first in (0..KEYS).step_by(PIPELINE) {
        let mut bytes = Vec::new();
        (first..first + PIPELINE).for_each(|number| words(&mut bytes, &key(number)));
        wire.send(&bytes);
        wire.lines(PIPELINE);
    }
    let grown = (settled(&server) - before) as f64 / KEYS as f64;
    let one = cmd!(server.connect(), "MEMORY", "USAGE", key(KEYS / 2)).int() as f64;
    Bytes { one, grown }
}

/// The server's memory once it no longer changes: tables that grow are moved bit by bit.
fn settled(server: &Server) -> u64 {
    let mut last = 0;
    wait_for("used_memory to settle", Duration::from_secs(30), || {
        std::thread::sleep(Duration::from_millis(150)); // the server's own work is done ten times a second
        let now = server.used_memory();
        if now.abs_diff(std::mem::replace(&mut last, now)) < 4096 { Ok(now) } else { Err(now) }
    })
}

pub(crate) fn measure(kind: ServerKind, report: &mut Report) {
    let lock = fill(kind, |out, key| encode(out, &["LOCK.ACQUIRE", key, OWNER, TTL_MS]));
    let plain = fill(kind, |out, key| encode(out, &["SET", key, OWNER, "NX", "PX", TTL_MS]));
    let mut row = |what: String, ours: f64, theirs: f64| {
        report.add(Row {
            server: kind.name(),
            what,
            ours: format!("{ours:.0} B"),
            theirs: format!("{theirs:.0} B"),
            ratio: ours / theirs,
            goal: Goal::AtMost(1.5),
        });
    };
    row("a held lock, MEMORY USAGE, to a key with PX".to_owned(), lock.one, plain.one);
    row(format!("a held lock, all memory over {KEYS} keys"), lock.grown, plain.grown);
}
