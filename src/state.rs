//! What the module keeps in memory beside the keyspace. Touched on the server's main thread alone.
//!
//! It must never be borrowed across a call into the server that can come back into the module (running a command,
//! deleting a key): take what is needed out, let go, then call.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::LazyLock;

use lockfence_core::clock::{Instant, Now};
use lockfence_core::codec::Log;
use lockfence_core::lock::Past;
use lockfence_core::planted::{self, Bug};
use lockfence_core::queue::WaiterId;
use lockfence_core::room::Room;
use lockfence_core::token::{Issuer, TokenSource};
use lockfence_core::wheel::Wheel;

use crate::commands::InnerVerdict;
use crate::config::Config;
use crate::key_type::LockRecord;
use crate::log::Counts;
use crate::server::{Blocked, CommandTime, Timer};
use crate::waiters::Delivered;

/// A record is looked at again after this long at the latest, however long its lease is: 60 s, in µs.
const LOOK_AGAIN_US: u64 = 60_000_000;
/// And never sooner than this, so that one that cannot be dropped yet does not keep the timer busy: 100 ms, in µs.
const LOOK_SOONEST_US: u64 = 100_000;

/// How many deleted locks are remembered, for a record that arrives in their place in the same command. RENAME
/// deletes two keys.
const UNLINKED_KEPT: usize = 2;

/// Counts since the module was loaded, for INFO.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub(crate) grants: u64,
    pub(crate) handovers: u64,
    pub(crate) refused: u64,
    pub(crate) timeouts: u64,
    pub(crate) fenced: u64,
    pub(crate) lost: u64,
    pub(crate) idle_dropped: u64,
}

/// A lock that was deleted a moment ago.
#[derive(Debug)]
pub(crate) struct Unlinked {
    pub(crate) at: CommandTime,
    pub(crate) db: u32,
    pub(crate) key: Vec<u8>,
    pub(crate) past: Past,
}

/// A key at which a record has arrived, of which replicas and the AOF are still to be told.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) db: u32,
    pub(crate) key: Box<[u8]>,
}

/// Everything.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) config: Config,
    pub(crate) issuer: Issuer,
    pub(crate) room: Room<Blocked>,
    /// Which waiter a blocked client is.
    pub(crate) waiting: HashMap<Blocked, WaiterId>,
    /// Grants whose reply has not gone out yet.
    pub(crate) in_delivery: VecDeque<Rc<Delivered>>,
    /// Grants that nobody has received: to be given back.
    pub(crate) returns: Vec<Rc<Delivered>>,
    /// When that is tried again, after the server has refused it.
    pub(crate) returns_from: Instant,
    pub(crate) wheel: Wheel,
    /// Whether this server is a replica: from its flags at load, and from each change of role it tells. Then nothing
    /// is granted, and the timer does no more than file again the records that still stand.
    pub(crate) replica: bool,
    /// The end of the restart quarantine.
    pub(crate) grants_from: Instant,
    /// The one timer, and when it fires at the latest.
    pub(crate) timer: Option<(Timer, Instant)>,
    pub(crate) unlinked: VecDeque<Unlinked>,
    pub(crate) arrived: Vec<Arrived>,
    /// An empty log: the memory of the last turn's, for the next one.
    pub(crate) spare_log: Log,
    /// The floor that replicas have been told, or nobody was there to be told: whoever comes gets it with the snapshot.
    pub(crate) announced_floor: u64,
    /// Set while the module itself runs one of its internal commands.
    pub(crate) running_own: bool,
    /// What FENCE.CALL knows of commands it was asked to run.
    pub(crate) inner_commands: HashMap<Vec<u8>, InnerVerdict>,
    pub(crate) stats: Stats,
    pub(crate) log_counts: Counts,
    /// Whether the server may evict locks (maxmemory-policy allkeys-*).
    pub(crate) evictable: bool,
    /// Whether the server tells of keys that come to be.
    pub(crate) hears_of_new_keys: bool,
    /// When the queues of a cluster were last checked for slots that have moved.
    pub(crate) slots_checked: Instant,
}

struct MainThread(RefCell<State>);

// SAFETY: the server calls the module on its main thread, or while that thread stands still (the global lock), but for
// the `free` callback of the data types, which does not touch the state, and the callbacks of forked children, which
// have one thread and a copy of their own (the server never forks inside a borrow).
#[allow(unsafe_code, reason = "a static must be Sync; see above")]
unsafe impl Sync for MainThread {}
// SAFETY: as above.
#[allow(unsafe_code, reason = "a static must be Send; see above")]
unsafe impl Send for MainThread {}

static STATE: LazyLock<MainThread> = LazyLock::new(|| {
    MainThread(RefCell::new(State {
        config: Config::default(),
        issuer: Issuer::new(TokenSource::Clock),
        room: Room::default(),
        waiting: HashMap::new(),
        in_delivery: VecDeque::new(),
        returns: Vec::new(),
        returns_from: Instant::from_micros(0),
        wheel: Wheel::default(),
        replica: false,
        grants_from: Instant::from_micros(i64::MIN),
        timer: None,
        unlinked: VecDeque::new(),
        arrived: Vec::new(),
        spare_log: Log::default(),
        announced_floor: 0,
        running_own: false,
        inner_commands: HashMap::new(),
        stats: Stats::default(),
        log_counts: Counts::default(),
        evictable: false,
        hears_of_new_keys: false,
        slots_checked: Instant::from_micros(0),
    }))
});

/// Works with the state.
pub(crate) fn with<R>(work: impl FnOnce(&mut State) -> R) -> R {
    work(&mut STATE.0.borrow_mut())
}

/// Works with the state unless somebody else does: for reports that may come at any moment.
pub(crate) fn try_with<R>(work: impl FnOnce(&State) -> R) -> Option<R> {
    STATE.0.try_borrow().ok().map(|state| work(&state))
}

impl State {
    /// Files a lock's record to be looked at when it may be idle.
    pub(crate) fn file(&mut self, db: u32, key: &[u8], record: &mut LockRecord, now: Now) {
        record.lock.filed = self.wheel.file(db, key, self.idle_from(record, now));
    }

    /// Files it again where it may now be idle before the time for which it is filed: it was released early.
    pub(crate) fn file_sooner(&mut self, db: u32, key: &[u8], record: &mut LockRecord, now: Now) {
        if record.lock.filed.is_later_than(self.idle_from(record, now)) {
            self.file(db, key, record, now);
        }
    }

    /// Files it again where it is idle and must stay.
    pub(crate) fn file_much_later(&mut self, db: u32, key: &[u8], record: &mut LockRecord, now: Now) {
        record.lock.filed = self.wheel.file(db, key, now.mono.plus_us(LOOK_AGAIN_US));
    }

    fn idle_from(&self, record: &LockRecord, now: Now) -> Instant {
        if self.replica && !planted::is(Bug::ReplicaExpires) {
            return now.mono.plus_us(LOOK_AGAIN_US);
        }
        let idle = record.lock.last_end().plus_ms(self.config.idle_ttl_ms);
        idle.max(now.mono.plus_us(LOOK_SOONEST_US)).min(now.mono.plus_us(LOOK_AGAIN_US))
    }

    /// A start, a load or a promotion: raises the floor, begins the quarantine.
    pub(crate) fn begin(&mut self, now: Now) {
        self.issuer.raise_floor(now);
        if self.config.quarantine_ms > 0 {
            self.grants_from = self.grants_from.max(now.mono.plus_ms(self.config.quarantine_ms));
        }
    }

    /// The lock that stood at a key until the command that is running deleted it.
    pub(crate) fn stood(&self, db: u32, key: &[u8], now: CommandTime) -> Option<Past> {
        let same_command = |old: &&Unlinked| old.at == now;
        self.unlinked
            .iter()
            .filter(same_command)
            .rfind(|old| old.db == db && old.key == key)
            .map(|old| old.past)
    }

    /// Remembers a lock that is being deleted.
    pub(crate) fn remember_unlinked(&mut self, unlinked: Unlinked) {
        if self.unlinked.len() >= UNLINKED_KEPT {
            self.unlinked.pop_front();
        }
        self.unlinked.push_back(unlinked);
    }
    /// Two databases have changed places.
    pub(crate) fn swap_arrived(&mut self, first: u32, second: u32) {
        for arrived in &mut self.arrived {
            if arrived.db == first {
                arrived.db = second;
            } else if arrived.db == second {
                arrived.db = first;
            }
        }
    }
}
