//! Handing a lock over: from the holder's `LOCK.RELEASE` to the next waiter's reply, with many waiting, against a token
//! that is passed by `RPUSH` to the next of as many clients in `BLPOP`, on the same server.

use std::time::Instant;

use lockfence_testkit::{Server, ServerKind};

use crate::report::{Goal, Report, Row, median};
use crate::wire::{TTL_MS, Wire, encode};

const WAITERS: [usize; 3] = [2, 256, 2_000];
/// Hand-overs in a round.
const PASSES: usize = 50;

/// One client has its turn, all others wait in order; whoever has had its turn queues again at the end.
struct Ring {
    wires: Vec<Wire>,
    /// What each sends to wait.
    waits: Vec<Vec<u8>>,
    /// What is sent, on the control connection, to end the turn of each.
    ends: Vec<Vec<u8>>,
    /// How the reply of a client that gets its turn ends.
    reply_end: &'static [u8],
    turn: usize,
    times_us: Vec<f64>,
}

impl Ring {
    fn of_lock(server: &Server, control: &mut Wire, waiters: usize) -> Self {
        let owners: Vec<String> = (0..=waiters).map(|index| format!("{index:032}")).collect();
        let wait = |owner: &String| encoded(&["LOCK.ACQUIRE", "lock", owner, TTL_MS, "WAIT", "0"]);
        let release = |owner: &String| encoded(&["LOCK.RELEASE", "lock", owner]);
        let (waits, ends) = (owners.iter().map(wait).collect(), owners.iter().map(release).collect());
        Self::begin(server, control, waits, ends, b"\r\n")
    }

    fn of_list(server: &Server, control: &mut Wire, waiters: usize) -> Self {
        let push = encoded(&["RPUSH", "list", "token"]);
        control.send(&push);
        control.lines(1);
        let wait = encoded(&["BLPOP", "list", "0"]);
        Self::begin(server, control, vec![wait; waiters + 1], vec![push; waiters + 1], b"token\r\n")
    }

    /// Client 0 gets its turn at once, the others queue.
    fn begin(
        server: &Server,
        control: &mut Wire,
        waits: Vec<Vec<u8>>,
        ends: Vec<Vec<u8>>,
        reply_end: &'static [u8],
    ) -> Self {
        let wires = waits.iter().map(|_| Wire::to(server)).collect();
        let mut ring = Self { wires, waits, ends, reply_end, turn: 0, times_us: Vec::new() };
        for index in 0..ring.wires.len() {
            ring.queue(control, index);
        }
        ring.wires[0].until(reply_end);
        ring
    }

    /// The server has read a client's request by the time it answers one that was sent after it.
    fn queue(&mut self, control: &mut Wire, index: usize) {
        self.wires[index].send(&self.waits[index]);
        control.ask(&["PING"]);
    }

    /// From the request that ends one client's turn to the reply at the next.
    fn pass(&mut self, control: &mut Wire) {
        let (before, next) = (self.turn, (self.turn + 1) % self.wires.len());
        let began = Instant::now();
        control.send(&self.ends[before]);
        self.wires[next].until(self.reply_end);
        self.times_us.push(began.elapsed().as_secs_f64() * 1e6);
        control.lines(1);
        self.queue(control, before);
        self.turn = next;
    }

    fn round(&mut self, control: &mut Wire) {
        (0..PASSES).for_each(|_| self.pass(control));
    }
}

fn encoded(words: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out, words);
    out
}

pub(crate) fn measure(kind: ServerKind, rounds: usize, report: &mut Report) {
    for waiters in WAITERS {
        let server = Server::start(kind);
        let mut control = Wire::to(&server);
        let mut lock = Ring::of_lock(&server, &mut control, waiters);
        let mut list = Ring::of_list(&server, &mut control, waiters);
        lock.round(&mut control);
        list.round(&mut control);
        lock.times_us.clear();
        list.times_us.clear();
        for round in 0..rounds {
            if round % 2 == 0 {
                lock.round(&mut control);
                list.round(&mut control);
            } else {
                list.round(&mut control);
                lock.round(&mut control);
            }
        }
        let (ours, theirs) = (median(&mut lock.times_us), median(&mut list.times_us));
        report.add(Row {
            server: kind.name(),
            what: format!("hand-over with {waiters} waiting, to BLPOP"),
            ours: format!("{ours:.0} µs"),
            theirs: format!("{theirs:.0} µs"),
            ratio: ours / theirs,
            goal: Goal::AtMost(1.2),
        });
    }
}
