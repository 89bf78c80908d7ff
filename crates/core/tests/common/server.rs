//! One server process: the core, strung together as the module does it (src/turn.rs, src/expiry.rs, src/events.rs).

use std::collections::{BTreeMap, HashMap};

use lockfence_core::clock::{Instant, Now};
use lockfence_core::codec::{Change, Log, read_issuer, read_lock, read_log, write_issuer, write_lock};
use lockfence_core::error::Refusal;
use lockfence_core::event::Event;
use lockfence_core::lock::Lock;
use lockfence_core::queue::{Answer, Outcome, Waiter, WaiterId};
use lockfence_core::request::{Acquire, Wait};
use lockfence_core::room::{Capacity, Room};
use lockfence_core::token::{Floor, Issuer, TokenSource};
use lockfence_core::turn::{Acquired, Turn};
use lockfence_core::wheel::{Filed, Wheel};

use super::step::{Name, Reply, Told, Why};

pub(crate) const IDLE_TTL_MS: u64 = 2_000;
pub(crate) const CAPACITY: Capacity = Capacity { all: 6, per_lock: 4 };
const LOOK_SOONEST_MS: u64 = 100;

#[derive(Default)]
struct Record {
    lock: Lock,
}

/// A data set as a file: the aux part, and each record.
#[derive(Clone, Default)]
pub(crate) struct Rdb {
    pub(crate) aux: Option<Vec<u8>>,
    pub(crate) records: Vec<(Name, Vec<u8>)>,
}

/// What goes to a replica.
#[derive(Clone)]
pub(crate) enum Sent {
    Log(Name, Vec<u8>),
    Del(Name),
    FlushAll,
    Rename(Name, Name),
    SwapDb,
    Restore(Name, Vec<u8>),
}

pub(crate) struct Server {
    pub(crate) issuer: Issuer,
    records: BTreeMap<Name, Record>,
    room: Room<u64>,
    waiting: HashMap<u64, WaiterId>,
    wheel: Wheel,
    grants_from: Instant,
    quarantine_ms: u64,
    announced_floor: Floor,
    pub(crate) sent: Vec<Sent>,
    pub(crate) told: Vec<Told>,
    pub(crate) dropped: Vec<Name>,
}

impl Server {
    pub(crate) fn start(source: TokenSource, quarantine_ms: u64, now: Now) -> Self {
        let mut server = Self {
            issuer: Issuer::new(source),
            records: BTreeMap::new(),
            room: Room::default(),
            waiting: HashMap::new(),
            wheel: Wheel::default(),
            grants_from: Instant::from_micros(i64::MIN),
            quarantine_ms,
            announced_floor: Floor::default(),
            sent: Vec::new(),
            told: Vec::new(),
            dropped: Vec::new(),
        };
        server.begin(now);
        server
    }

    /// A start, a load or a promotion.
    pub(crate) fn begin(&mut self, now: Now) {
        self.issuer.raise_floor(now);
        if self.quarantine_ms > 0 {
            self.grants_from = self.grants_from.max(now.mono.plus_ms(self.quarantine_ms));
        }
    }

    pub(crate) fn lock(&self, at: Name) -> Option<&Lock> {
        self.records.get(&at).map(|record| &record.lock)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = Name> {
        self.records.keys().copied()
    }

    pub(crate) fn waiting(&self) -> Vec<u64> {
        let mut all: Vec<u64> = self.waiting.keys().copied().collect();
        all.sort_unstable();
        all
    }

    pub(crate) fn next_due(&self) -> Option<Instant> {
        [self.room.next_due(), self.wheel.next_due()].into_iter().flatten().min()
    }

    fn at_lock<R>(&mut self, at: Name, now: Now, work: impl FnOnce(&mut Turn<'_, u64>) -> R) -> R {
        let key = at.bytes();
        let stands = self.records.contains_key(&at);
        let mut record = self.records.remove(&at).unwrap_or_default();
        let (mut log, mut answers) = (Log::default(), Vec::new());
        let queue = self.room.queue_mut(at.db, &key);
        let queued = queue.is_some();
        let result = work(&mut Turn {
            lock: &mut record.lock,
            queue,
            issuer: &mut self.issuer,
            now,
            grants_from: self.grants_from,
            log: &mut log,
            answers: &mut answers,
        });
        if queued {
            let look_at =
                |first: &Waiter<u64>| look_at(Some(&record.lock), first, now.mono, self.grants_from);
            self.room.settle(at.db, &key, &answers, look_at);
        }
        if !log.is_empty() {
            self.announce_floor(&mut log);
            if !stands {
                self.file(at, &mut record, now);
            }
            self.sent.push(Sent::Log(at, log.bytes().to_vec()));
        }
        if stands || !log.is_empty() {
            self.records.insert(at, record);
        }
        for Answer { waiter, outcome, .. } in answers {
            self.tell(waiter.handle, outcome);
        }
        result
    }

    fn announce_floor(&mut self, log: &mut Log) {
        if self.issuer.floor() != self.announced_floor {
            self.announced_floor = self.issuer.floor();
            log.push_floor(self.announced_floor);
        }
    }

    fn file(&mut self, at: Name, record: &mut Record, now: Now) {
        let idle = record.lock.last_end().plus_ms(IDLE_TTL_MS);
        let due = idle.max(now.mono.plus_ms(LOOK_SOONEST_MS));
        record.lock.filed = self.wheel.file(at.db, &at.bytes(), due);
    }

    fn tell(&mut self, id: u64, outcome: Outcome) {
        self.waiting.remove(&id);
        self.told.push((id, reply(outcome)));
    }

    pub(crate) fn acquire(&mut self, id: u64, at: Name, request: &Acquire<'_>, now: Now) {
        match self.at_lock(at, now, |turn| turn.acquire(request)) {
            Ok(Acquired::Granted(grant)) => self.tell(id, Outcome::Granted(grant)),
            Ok(Acquired::Busy) => self.wait_or_not(id, at, request, now),
            Err(refusal) => self.tell(id, Outcome::Refused(refusal)),
        }
    }

    fn wait_or_not(&mut self, id: u64, at: Name, request: &Acquire<'_>, now: Now) {
        let until = match request.wait {
            None => return self.told.push((id, Reply::NotGranted)),
            Some(Wait::Forever) => None,
            Some(Wait::Ms(ms)) => Some(now.mono.plus_ms(ms)),
        };
        if let Err(full) = self.room.admit(at.db, &at.bytes(), CAPACITY) {
            return self.tell(id, Outcome::Refused(full));
        }
        let waiter = Waiter {
            owner: request.owner.bytes().into(),
            ttl: request.ttl,
            mode: request.mode,
            min_token: request.min_token,
            with_info: false,
            since: now.mono,
            until,
            client_id: id,
            handle: id,
        };
        let grants_from = self.grants_from;
        let lock = self.records.get(&at).map(|record| &record.lock);
        let look_at = |first: &Waiter<u64>| look_at(lock, first, now.mono, grants_from);
        let waiter = self.room.enqueue(at.db, &at.bytes(), waiter, look_at);
        self.waiting.insert(id, waiter);
    }

    /// A command whose answer is a number.
    pub(crate) fn command(
        &mut self,
        id: u64,
        at: Name,
        now: Now,
        work: impl FnOnce(&mut Turn<'_, u64>) -> Result<u64, Refusal>,
    ) {
        let answer = self.at_lock(at, now, work);
        self.told.push((id, number(answer)));
    }

    pub(crate) fn disconnect(&mut self, id: u64, now: Now) {
        let Some(waiter) = self.waiting.remove(&id) else { return };
        if let Some((place, _)) = self.room.remove(waiter) {
            self.room.watch(place.db, &place.key, Some(now.mono));
        }
    }

    /// The timer: hand-overs, then idle records, then time-outs.
    pub(crate) fn tick(&mut self, now: Now) {
        for place in self.room.overdue_locks(now.mono, 200) {
            let at = Name { db: place.db, key: place.key[0] - b'a' };
            self.at_lock(at, now, |turn| turn.serve_queue());
        }
        while let Some(due) = self.wheel.take_due(now.mono) {
            self.look_at_record(Name { db: due.db, key: due.key[0] - b'a' }, due.filed, now);
        }
        while let Some((place, waiter)) =
            self.room.overdue_waiter(now.mono).and_then(|id| self.room.remove(id))
        {
            self.room.watch(place.db, &place.key, Some(now.mono));
            self.tell(waiter.handle, Outcome::NotGranted(lockfence_core::queue::Standing::default()));
        }
    }

    fn look_at_record(&mut self, at: Name, filed: Filed, now: Now) {
        let Some(mut record) = self.records.remove(&at) else { return };
        let idle = record.lock.free_since(now.mono).is_some_and(|at| now.mono.since_ms(at) >= IDLE_TTL_MS);
        if record.lock.filed == filed {
            let may_go = idle && self.issuer.covers(&record.lock, now);
            if may_go && self.room.queue(at.db, &at.bytes()).is_none() {
                self.dropped.push(at);
                self.sent.push(Sent::Del(at));
                return;
            }
            self.file(at, &mut record, now);
        }
        self.records.insert(at, record);
    }

    fn lose(&mut self, db: Option<u32>, at: Option<Name>, outcome: &Outcome) {
        let taken = match at {
            Some(at) => self.room.take_key(at.db, &at.bytes()),
            None => self.room.take_db(db),
        };
        for (_, waiter) in taken {
            self.tell(waiter.handle, outcome.clone());
        }
    }

    fn unlink(&mut self, at: Name) -> Option<Lock> {
        let record = self.records.remove(&at)?;
        self.lose(None, Some(at), &Outcome::LockLost);
        Some(record.lock)
    }

    pub(crate) fn demote(&mut self) {
        self.lose(None, None, &Outcome::Demoted);
    }

    pub(crate) fn save(&self, now: Now) -> Rdb {
        let aux = (self.issuer.high() > 0).then(|| {
            let mut out = Vec::new();
            write_issuer(&mut out, &self.issuer);
            out
        });
        let record = |(at, record): (&Name, &Record)| {
            let mut out = Vec::new();
            write_lock(&mut out, &record.lock, now);
            (*at, out)
        };
        Rdb { aux, records: self.records.iter().map(record).collect() }
    }

    pub(crate) fn load(&mut self, rdb: &Rdb, now: Now) {
        self.records.clear();
        if let Some(aux) = &rdb.aux {
            let (high, floor) = read_issuer(aux).expect("what was written is read");
            self.issuer.restored(high, floor, now);
        }
        for (at, bytes) in &rdb.records {
            let lock = self.load_record(bytes, now);
            self.put(*at, lock, now);
        }
        self.begin(now);
    }

    fn load_record(&mut self, bytes: &[u8], now: Now) -> Lock {
        let lock = read_lock(bytes, now).expect("what was written is read");
        self.issuer.loaded(lock.counter(), now);
        lock
    }

    fn put(&mut self, at: Name, lock: Lock, now: Now) {
        let mut record = Record { lock };
        self.file(at, &mut record, now);
        self.records.insert(at, record);
    }

    /// A rewritten AOF: each record as one effect.
    pub(crate) fn rewrite(&self, now: Now) -> Vec<Sent> {
        let effect = |(at, record): (&Name, &Record)| {
            let mut log = Log::default();
            log.push_snapshot(&record.lock, now);
            Sent::Log(*at, log.bytes().to_vec())
        };
        self.records.iter().map(effect).collect()
    }

    /// A command that the server itself carries out, on a primary and on its replicas alike; and an effect.
    pub(crate) fn carry_out(&mut self, what: &Sent, now: Now) {
        match what {
            Sent::Log(at, log) => self.effect(*at, log, now),
            Sent::Del(at) => {
                self.unlink(*at);
            }
            Sent::FlushAll => {
                self.records.clear();
                self.lose(None, None, &Outcome::LockLost);
            }
            Sent::Rename(from, to) => {
                if let Some(lock) = self.unlink(*from) {
                    self.arrive(*to, lock, now);
                }
            }
            Sent::SwapDb => self.swap_db(),
            Sent::Restore(at, bytes) => {
                let lock = self.load_record(bytes, now);
                self.arrive(*at, lock, now);
            }
        }
    }

    fn arrive(&mut self, at: Name, mut lock: Lock, now: Now) {
        if let Some(stood) = self.unlink(at) {
            lock.arrive_over(stood.past(), now.mono);
        }
        lock.mark_arrived();
        self.put(at, lock, now);
    }

    fn swap_db(&mut self) {
        self.lose(Some(0), None, &Outcome::LockLost);
        self.lose(Some(1), None, &Outcome::LockLost);
        self.issuer.names_changed();
        self.wheel.swap(0, 1);
        let records = std::mem::take(&mut self.records);
        self.records =
            records.into_iter().map(|(at, record)| (Name { db: 1 - at.db, ..at }, record)).collect();
    }

    fn effect(&mut self, at: Name, log: &[u8], now: Now) {
        for change in read_log(log, now).expect("what was written is read") {
            match change {
                Change::Lock(event) => self.apply(at, &event, now),
                Change::Snapshot(lock) => self.replace(at, lock, now),
                Change::Floor(floor) => self.issuer.learn_floor(floor, now),
                Change::Fence(_) => unreachable!("no fences here"),
            }
        }
    }

    fn apply(&mut self, at: Name, event: &Event<'_>, now: Now) {
        match event {
            Event::Granted { token, .. } | Event::Extended { token, .. } => self.issuer.followed(*token, now),
            Event::Broken { counter, .. } => self.issuer.followed(*counter, now),
            Event::Ended { .. } | Event::BrokenUpTo { .. } => {}
        }
        if let Some(record) = self.records.get_mut(&at) {
            record.lock.apply(event);
        } else if matches!(event, Event::Granted { .. }) {
            let mut lock = Lock::default();
            lock.apply(event);
            self.put(at, lock, now);
        }
    }

    fn replace(&mut self, at: Name, lock: Lock, now: Now) {
        self.issuer.loaded(lock.counter(), now);
        match self.records.get_mut(&at) {
            Some(record) => record.lock.replace(lock),
            None => self.put(at, lock, now),
        }
    }
}

fn look_at(lock: Option<&Lock>, first: &Waiter<u64>, now: Instant, grants_from: Instant) -> Instant {
    lock.map_or(now, |lock| lock.serves_from(&first.owner, first.mode, now)).max(grants_from)
}

fn reply(outcome: Outcome) -> Reply {
    match outcome {
        Outcome::Granted(grant) => {
            Reply::Granted { token: grant.token.get(), ttl_ms: grant.ttl_ms, renewed: grant.renewed }
        }
        Outcome::NotGranted(_) => Reply::NotGranted,
        Outcome::Refused(refusal) => Reply::Refused(why(&refusal)),
        Outcome::LockLost => Reply::LockLost,
        Outcome::Demoted => Reply::Demoted,
    }
}

pub(crate) fn number(answer: Result<u64, Refusal>) -> Reply {
    answer.map_or_else(|refusal| Reply::Refused(why(&refusal)), Reply::Number)
}

fn why(refusal: &Refusal) -> Why {
    match refusal {
        Refusal::Quarantine { .. } => Why::Quarantine,
        Refusal::HeldInOtherMode(_) => Why::OtherMode,
        Refusal::ProposalTooFarAhead { .. } => Why::TooFarAhead,
        Refusal::QueueFull { .. } => Why::QueueFull,
        Refusal::Exhausted => Why::Exhausted,
        Refusal::Stale { .. } => Why::Stale,
        Refusal::NeverIssued(_) => Why::NeverIssued,
        Refusal::NoRecord => Why::NoRecord,
        other => unreachable!("a parsed request is not refused for its words: {other:?}"),
    }
}
