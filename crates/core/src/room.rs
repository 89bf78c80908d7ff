//! All queues of one server: who waits for which lock, who gives up when, and which lock must be looked at when.
//!
//! The room must always describe the keyspace as it is: when a lock's key goes, its waiters leave by
//! [`Room::take_key`] in the same step.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::rc::Rc;
use alloc::vec::Vec;

use crate::clock::{Instant, sooner};
use crate::error::Refusal;
use crate::planted::{self, Bug};
use crate::queue::{Answer, Queue, Waiter, WaiterId};

/// How many may wait: `lockfence.max-waiters` and `lockfence.max-waiters-per-lock`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// On the whole server.
    pub all: u64,
    /// For one lock.
    pub per_lock: u64,
}

/// A lock's key: database and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The database.
    pub db: u32,
    /// The key's name.
    pub key: Rc<[u8]>,
}

#[derive(Debug)]
struct Line<H> {
    queue: Queue<H>,
    key: Rc<[u8]>,
    /// When leases of this lock end, so that the head of the queue may be served.
    look_at: Option<Instant>,
}

/// The queues of all locks.
#[derive(Debug)]
pub struct Room<H> {
    lines: BTreeMap<u32, BTreeMap<Rc<[u8]>, Line<H>>>,
    places: BTreeMap<WaiterId, Place>,
    give_up: BTreeSet<(Instant, WaiterId)>,
    look_at: BTreeSet<(Instant, Place)>,
    last_id: u64,
}

impl<H> Default for Room<H> {
    fn default() -> Self {
        Self {
            lines: BTreeMap::new(),
            places: BTreeMap::new(),
            give_up: BTreeSet::new(),
            look_at: BTreeSet::new(),
            last_id: 0,
        }
    }
}

impl<H> Room<H> {
    /// How many wait on the whole server.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether nobody waits at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether anybody waits for a lock of that name, in whichever database.
    #[must_use]
    pub fn has_name(&self, key: &[u8]) -> bool {
        self.lines.values().any(|lines| lines.contains_key(key))
    }

    /// The queue of one lock.
    #[must_use]
    pub fn queue(&self, db: u32, key: &[u8]) -> Option<&Queue<H>> {
        Some(&self.lines.get(&db)?.get(key)?.queue)
    }

    /// The queue of one lock, to be served. Afterwards [`Room::settle`] must be called with the answers.
    pub fn queue_mut(&mut self, db: u32, key: &[u8]) -> Option<&mut Queue<H>> {
        Some(&mut self.lines.get_mut(&db)?.get_mut(key)?.queue)
    }

    /// Whether there is room for one more at that lock.
    ///
    /// # Errors
    /// [`Refusal::QueueFull`], naming the setting.
    pub fn admit(&self, db: u32, key: &[u8], capacity: Capacity) -> Result<(), Refusal> {
        let full = |len: usize, limit: u64| u64::try_from(len).unwrap_or(u64::MAX) >= limit;
        if full(self.len(), capacity.all) {
            return Err(Refusal::QueueFull { setting: "lockfence.max-waiters", limit: capacity.all });
        }
        if full(self.queue(db, key).map_or(0, Queue::len), capacity.per_lock) {
            let setting = "lockfence.max-waiters-per-lock";
            return Err(Refusal::QueueFull { setting, limit: capacity.per_lock });
        }
        Ok(())
    }

    /// Puts a waiter at the end of a lock's queue. `look_at` says when the first in the queue may be served.
    pub fn enqueue(
        &mut self,
        db: u32,
        key: &[u8],
        waiter: Waiter<H>,
        look_at: impl FnOnce(&Waiter<H>) -> Instant,
    ) -> WaiterId {
        self.last_id = self.last_id.wrapping_add(1);
        let id = WaiterId(self.last_id);
        if let Some(until) = waiter.until {
            self.give_up.insert((until, id));
        }
        let lines = self.lines.entry(db).or_default();
        if !lines.contains_key(key) {
            let key: Rc<[u8]> = key.into();
            lines.insert(Rc::clone(&key), Line { queue: Queue::default(), key, look_at: None });
        }
        if let Some(line) = lines.get_mut(key) {
            line.queue.push(id, waiter);
            self.places.insert(id, Place { db, key: Rc::clone(&line.key) });
        }
        self.watch_for_first(db, key, look_at);
        id
    }

    /// After a turn at a lock: strikes out those who were answered, and notes when to look at the lock again. `look_at`
    /// says when the first in the queue may be served.
    pub fn settle(
        &mut self,
        db: u32,
        key: &[u8],
        answers: &[Answer<H>],
        look_at: impl FnOnce(&Waiter<H>) -> Instant,
    ) {
        for answer in answers {
            self.strike_out(answer.id, answer.waiter.until);
        }
        self.watch_for_first(db, key, look_at);
        self.drop_if_empty(db, key);
    }

    fn watch_for_first(&mut self, db: u32, key: &[u8], look_at: impl FnOnce(&Waiter<H>) -> Instant) {
        let at = self.queue(db, key).and_then(Queue::front).map(look_at);
        self.watch(db, key, at);
    }

    /// Takes one waiter out: it has gone, or gives up. `None` if it is not waiting any more.
    pub fn remove(&mut self, id: WaiterId) -> Option<(Place, Waiter<H>)> {
        let place = self.places.get(&id)?.clone();
        if planted::is(Bug::DeadWaiterStays) {
            return None;
        }
        let waiter = self.queue_mut(place.db, &place.key)?.remove(id)?;
        self.strike_out(id, waiter.until);
        self.drop_if_empty(place.db, &place.key);
        Some((place, waiter))
    }

    /// Takes out all who wait for one lock, in order.
    pub fn take_key(&mut self, db: u32, key: &[u8]) -> Vec<(WaiterId, Waiter<H>)> {
        let Some(queue) = self.queue_mut(db, key) else { return Vec::new() };
        let taken: Vec<_> = queue.drain().collect();
        for (id, waiter) in &taken {
            self.strike_out(*id, waiter.until);
        }
        self.drop_if_empty(db, key);
        taken
    }

    /// Takes out all who wait in one database, or anywhere (`None`).
    pub fn take_db(&mut self, db: Option<u32>) -> Vec<(WaiterId, Waiter<H>)> {
        let mut taken = Vec::new();
        for place in self.contended(db) {
            taken.append(&mut self.take_key(place.db, &place.key));
        }
        taken
    }

    /// The locks for which somebody waits, in one database or in all.
    #[must_use]
    pub fn contended(&self, db: Option<u32>) -> Vec<Place> {
        let lines = self.lines.iter().filter(|(id, _)| db.is_none_or(|db| db == **id));
        lines.flat_map(|(id, lines)| lines.keys().map(|key| Place { db: *id, key: Rc::clone(key) })).collect()
    }

    /// The earliest moment at which something must be done here.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        let give_up = self.give_up.first().map(|(at, _)| *at);
        let look_at = self.look_at.first().map(|(at, _)| *at);
        sooner(give_up, look_at)
    }

    /// The next waiter whose time is over at `now`.
    #[must_use]
    pub fn overdue_waiter(&self, now: Instant) -> Option<WaiterId> {
        self.give_up.first().filter(|(at, _)| *at <= now).map(|(_, id)| *id)
    }

    /// Locks that must be looked at by `now`: at most `most` of them.
    #[must_use]
    pub fn overdue_locks(&self, now: Instant, most: usize) -> Vec<Place> {
        let due = self.look_at.iter().take_while(|(at, _)| *at <= now);
        due.take(most).map(|(_, place)| place.clone()).collect()
    }

    /// Notes when to look at a lock again. Nothing where nobody waits for it.
    pub fn watch(&mut self, db: u32, key: &[u8], at: Option<Instant>) {
        let Some(line) = self.lines.get_mut(&db).and_then(|lines| lines.get_mut(key)) else { return };
        if line.look_at == at {
            return;
        }
        let place = Place { db, key: Rc::clone(&line.key) };
        let before = core::mem::replace(&mut line.look_at, at);
        if let Some(before) = before {
            self.look_at.remove(&(before, place.clone()));
        }
        if let Some(at) = at {
            self.look_at.insert((at, place));
        }
    }

    fn strike_out(&mut self, id: WaiterId, until: Option<Instant>) {
        self.places.remove(&id);
        if let Some(until) = until {
            self.give_up.remove(&(until, id));
        }
    }

    fn drop_if_empty(&mut self, db: u32, key: &[u8]) {
        if self.queue(db, key).is_none_or(|queue| !queue.is_empty()) {
            return;
        }
        self.watch(db, key, None);
        if let Some(lines) = self.lines.get_mut(&db) {
            lines.remove(key);
            if lines.is_empty() {
                self.lines.remove(&db);
            }
        }
    }
}
