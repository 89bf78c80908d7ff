//! Taking new locks: `LOCK.ACQUIRE` against `SET key owner NX PX`, pipelined and one by one.

use std::time::Instant;

use lockfence_testkit::{Server, ServerKind};

use crate::report::{Goal, Report, Row, median};
use crate::wire::{OWNER, TTL_MS, Wire, cpu_ns, encode};

/// Connections that keep the server busy in the pipelined rounds.
const CONNECTIONS: usize = 8;
/// Commands sent at once on each.
const PIPELINE: usize = 64;
/// Batches of each connection in a round.
const BATCHES: usize = 40;
/// Pairs of servers. By where its code and memory happen to lie, one process is up to a third faster than another of the
/// same program, as long as it lives: one pair alone says little.
const PAIRS: usize = 12;
/// First rounds of a pair that do not count.
const WARM_UP: usize = 2;
/// Commands of a round without pipelining.
const ONE_BY_ONE: usize = 1_000;

#[derive(Clone, Copy)]
enum Side {
    Lockfence,
    Set,
}

fn command(out: &mut Vec<u8>, side: Side, number: usize) {
    let key = format!("lock:{{{number:010}}}");
    match side {
        Side::Lockfence => encode(out, &["LOCK.ACQUIRE", &key, OWNER, TTL_MS]),
        Side::Set => encode(out, &["SET", &key, OWNER, "NX", "PX", TTL_MS]),
    }
}

/// What a round says: operations a second, and nanoseconds of the server's processor an operation.
#[derive(Default)]
struct Seen {
    rates: Vec<f64>,
    cpu: Vec<f64>,
}

impl Seen {
    fn note(&mut self, server: &Server, count: usize, work: impl FnOnce()) {
        let (cpu, began) = (cpu_ns(server), Instant::now());
        work();
        let seconds = began.elapsed().as_secs_f64();
        self.rates.push(count as f64 / seconds);
        self.cpu.push((cpu_ns(server) - cpu) as f64 / count as f64);
    }
}

pub(crate) fn measure(kind: ServerKind, rounds: usize, report: &mut Report) {
    pipelined(kind, "pipelined", &[], rounds, report);
    pipelined(kind, "pipelined, with an AOF", &[("appendonly", "yes")], rounds.div_ceil(2), report);
    one_by_one(kind, rounds, report);
}

/// New names all the time, as an application has them, in a keyspace that grows to some hundred thousand keys: a name
/// used once more would find warm caches and a table of the right size. Each side has servers of its own, so that their
/// keyspaces hold what they would hold in use: locks alone, or plain keys and their TTLs.
fn pipelined(kind: ServerKind, how: &str, settings: &[(&str, &str)], rounds: usize, report: &mut Report) {
    let mut all = [Seen::default(), Seen::default()];
    for pair in 0..PAIRS {
        let mut sides = [Side::Lockfence, Side::Set].map(|side| Station::start(kind, settings, side));
        for round in 0..WARM_UP + rounds.div_ceil(PAIRS) {
            // Each side is first in turn.
            let first = (pair + round) % 2;
            for side in [first, 1 - first] {
                let mut unseen = Seen::default();
                sides[side].round(if round < WARM_UP { &mut unseen } else { &mut all[side] });
            }
        }
    }
    rows(kind, how, all, report);
}

/// One side of the comparison, with its server.
struct Station {
    side: Side,
    server: Server,
    wires: Vec<Wire>,
    next: usize,
}

impl Station {
    fn start(kind: ServerKind, settings: &[(&str, &str)], side: Side) -> Self {
        let builder = Server::builder(kind);
        let server =
            settings.iter().fold(builder, |builder, (name, value)| builder.arg(name, *value)).start();
        let wires = (0..CONNECTIONS).map(|_| Wire::to(&server)).collect();
        Self { side, server, wires, next: 0 }
    }

    fn round(&mut self, seen: &mut Seen) {
        let batches = new_batches(self.side, &mut self.next);
        let wires = &mut self.wires;
        seen.note(&self.server, batches.len() * PIPELINE, || {
            for batch in batches.chunks(CONNECTIONS) {
                wires.iter_mut().zip(batch).for_each(|(wire, bytes)| wire.send(bytes));
                wires.iter_mut().for_each(|wire| wire.lines(PIPELINE));
            }
        });
    }
}

fn new_batches(side: Side, next: &mut usize) -> Vec<Vec<u8>> {
    let mut batch = |_| {
        let mut bytes = Vec::new();
        for _ in 0..PIPELINE {
            command(&mut bytes, side, *next);
            *next += 1;
        }
        bytes
    };
    (0..BATCHES * CONNECTIONS).map(&mut batch).collect()
}

fn one_by_one(kind: ServerKind, rounds: usize, report: &mut Report) {
    let server = Server::start(kind);
    let mut wire = Wire::to(&server);
    let commands = |side| {
        let one = |number| {
            let mut bytes = Vec::new();
            command(&mut bytes, side, number);
            bytes
        };
        (0..ONE_BY_ONE).map(one).collect::<Vec<_>>()
    };
    let (ours, theirs) = (commands(Side::Lockfence), commands(Side::Set));
    let (mut lockfence, mut set) = (Seen::default(), Seen::default());
    let mut run = |seen: &mut Seen, commands: &[Vec<u8>]| {
        wire.ask(&["FLUSHALL", "SYNC"]);
        seen.note(&server, ONE_BY_ONE, || {
            for bytes in commands {
                wire.send(bytes);
                wire.lines(1);
            }
        });
    };
    for round in 0..rounds {
        if round % 2 == 0 {
            run(&mut lockfence, &ours);
            run(&mut set, &theirs);
        } else {
            run(&mut set, &theirs);
            run(&mut lockfence, &ours);
        }
    }
    rows(kind, "one by one", [lockfence, set], report);
}

fn rows(kind: ServerKind, how: &str, [mut ours, mut theirs]: [Seen; 2], report: &mut Report) {
    let (rate, set_rate) = (median(&mut ours.rates), median(&mut theirs.rates));
    let goal = if how == "pipelined" { Goal::AtLeast(1.0) } else { Goal::None };
    let per_second = |rate: f64| format!("{:.0} k/s", rate / 1000.0);
    report.add(Row {
        server: kind.name(),
        what: format!("new locks, {how}, to SET NX PX"),
        ours: per_second(rate),
        theirs: per_second(set_rate),
        ratio: rate / set_rate,
        goal,
    });
    let (cpu, set_cpu) = (median(&mut ours.cpu), median(&mut theirs.cpu));
    report.add(Row {
        server: kind.name(),
        what: "the same: processor time in the server".to_owned(),
        ours: format!("{cpu:.0} ns"),
        theirs: format!("{set_cpu:.0} ns"),
        ratio: cpu / set_cpu,
        goal: Goal::None,
    });
}
