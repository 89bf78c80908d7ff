//! What can happen in a world, and what is broken in it on purpose.

use lockfence_client::quorum::Settings;
use lockfence_client::quorum::attempt::Patience;
use lockfence_client::quorum::planted::{Bug, Planted};
use lockfence_core::clock::{Instant, Now, Wall};
use lockfence_core::ids::Mode;

/// The step in which time passes.
pub(crate) const TICK_US: u64 = 1_000_000;

/// How far a wall clock is stepped back.
pub(crate) const STEP_US: u64 = 2 * TICK_US;

/// The wall clock at the beginning.
const EPOCH_US: u64 = 1_000_000_000;

/// What is broken in a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeBug {
    /// EXTEND without a live lease grants a new one, when it confirms (MINTOKEN).
    ConfirmReacquires,
    /// The same, when it renews.
    RenewalReacquires,
    /// It comes back without its data and grants at once, without a floor.
    ForgetsAndGrants,
    /// It comes back without its data and without a floor.
    NoFloor,
    /// It grants a writer the lock beside readers.
    WriterBesideReaders,
}

/// Where the nodes' counters stand at the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counters {
    /// Below what is proposed: level nodes answer it.
    Low,
    /// Above it, and alike.
    Level,
    /// Above it, and each another: no majority without a confirm.
    Uneven,
    /// Above it, two alike and one below them: confirms of both clients may lead to the same token.
    OneBelow,
}

/// How one client goes about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Manner {
    pub(crate) mode: Mode,
    pub(crate) waits: bool,
    pub(crate) renews: bool,
    /// Whether it may release what it holds.
    pub(crate) releases: bool,
}

/// How often what may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Chances {
    /// Nodes that forget all.
    pub(crate) crashes: u8,
    /// LOCK.BREAK at one node.
    pub(crate) breaks: u8,
    /// LOCK.BREAK at all nodes.
    pub(crate) breaks_all: u8,
    /// Requests that are carried out twice.
    pub(crate) doubles: u8,
    /// Connections that break: whether the request was carried out is not known.
    pub(crate) cuts: u8,
    /// Steps of the first client's wall clock, back by two ticks.
    pub(crate) steps: u8,
}

/// A world. Times are in ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) counters: Counters,
    pub(crate) manners: [Manner; 2],
    /// How many of the two take part.
    pub(crate) contenders: usize,
    /// Whether the second begins only once the first has got the lock.
    pub(crate) in_turn: bool,
    pub(crate) chances: Chances,
    /// How long a lease is.
    pub(crate) ttl: u64,
    /// How far time goes.
    pub(crate) ticks: u64,
    /// Nodes at which somebody else has the lock at the beginning, who may release it there.
    pub(crate) taken: [bool; 3],
    /// Whether a node that forgot refuses grants for the length of a lease.
    pub(crate) quarantine: bool,
    pub(crate) bug: Option<Bug>,
    pub(crate) node_bug: Option<NodeBug>,
    /// The wall clock where the monotonic one belongs.
    pub(crate) wall_for_validity: bool,
}

/// Tries once, and may release what it got.
pub(crate) const TRIES: Manner =
    Manner { mode: Mode::Exclusive, waits: false, renews: false, releases: true };
/// The same, shared.
pub(crate) const READS: Manner = Manner { mode: Mode::Shared, ..TRIES };
/// Waits for it.
pub(crate) const WAITS: Manner = Manner { waits: true, ..TRIES };
/// Tries once, and keeps what it got.
pub(crate) const RENEWS: Manner = Manner { renews: true, releases: false, ..TRIES };

impl Setup {
    /// Two that try once, in a world in which a lease is one tick long, and nothing goes wrong but that messages and
    /// timers are late, or never come.
    pub(crate) const fn new(counters: Counters) -> Self {
        Self {
            counters,
            manners: [TRIES; 2],
            contenders: 2,
            in_turn: false,
            chances: Chances { crashes: 0, breaks: 0, breaks_all: 0, doubles: 0, cuts: 0, steps: 0 },
            ttl: 1,
            ticks: 1,
            taken: [false; 3],
            quarantine: true,
            bug: None,
            node_bug: None,
            wall_for_validity: false,
        }
    }

    pub(crate) const fn ttl_ms(&self) -> u64 {
        self.ttl * TICK_US / 1000
    }

    pub(crate) fn settings(&self, client: usize) -> Settings {
        let mut settings = Settings::new(3, self.ttl_ms());
        settings.node_timeout_us = TICK_US;
        settings.mode = self.manners[client].mode;
        settings.planted = self.bug.map(Planted::bug).unwrap_or_default();
        settings
    }

    pub(crate) fn patience(&self, client: usize) -> Patience {
        if self.manners[client].waits { Patience::Forever } else { Patience::None }
    }

    pub(crate) fn counter(&self, node: u64) -> u64 {
        let high = EPOCH_US + 8 * TICK_US; // not so far ahead that a proposal is refused
        match self.counters {
            Counters::Low => 0,
            Counters::Level => high,
            Counters::Uneven => high + 10 * node,
            Counters::OneBelow => high + if node == 1 { 0 } else { 10 },
        }
    }

    /// Whether it makes no difference which client is which.
    pub(crate) fn alike(&self) -> bool {
        self.manners[0] == self.manners[1] && self.chances.steps == 0
    }

    /// Whether nobody ends leases behind the backs of those who hold them.
    pub(crate) fn leases_last(&self) -> bool {
        self.chances.breaks == 0 && self.chances.breaks_all == 0 && self.quarantine
    }
}

/// The time by a clock whose wall clock was stepped back so often.
pub(crate) fn at(tick: u64, steps: u8) -> Now {
    let wall = EPOCH_US + tick * TICK_US - u64::from(steps) * STEP_US;
    Now { mono: Instant::from_micros((tick * TICK_US) as i64), wall: Wall::from_micros(wall) }
}
