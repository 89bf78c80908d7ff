//! A contender: gets the lock, adds one to a register behind its fence, gives the lock back; and comes too late at times.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lockfence_client::{Error, Fenced, Held, Lockfence, Lost, Options};
use redis::AsyncTypedCommands as _;

use crate::judge::{Advance, End, Grant, History, LateWrite, Write};

pub(crate) const TTL: Duration = Duration::from_secs(3);
/// One hold in so many lasts beyond its lease, which is not renewed: a program that stands still.
const STALLS_EVERY: usize = 150;
const STALLED_TTL: Duration = Duration::from_millis(1_500);

/// What all workers share.
pub(crate) struct Shared {
    pub(crate) began: Instant,
    pub(crate) history: Mutex<History>,
    pub(crate) tally: Mutex<Tally>,
    pub(crate) stop: AtomicBool,
    /// At how many grants the next hold stalls.
    pub(crate) stalls_at: AtomicUsize,
}

/// Counts, for people.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) not_had: u64,
    pub(crate) lost: u64,
    pub(crate) lost_late_us: u64,
    pub(crate) longest_wait_us: u64,
    pub(crate) fence_unreached: u64,
}

impl Shared {
    pub(crate) fn now(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    /// Whether the next hold of whoever asks is to stall: its turn comes to everybody.
    fn stalls(&self) -> bool {
        let at = self.stalls_at.load(Ordering::Relaxed);
        self.history(|history| history.grants.len()) >= at
            && self
                .stalls_at
                .compare_exchange(at, at + STALLS_EVERY, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    fn history<T>(&self, note: impl FnOnce(&mut History) -> T) -> T {
        note(&mut self.history.lock().expect("no worker panics while it writes"))
    }

    fn tally(&self, note: impl FnOnce(&mut Tally)) {
        note(&mut self.tally.lock().expect("no worker panics while it counts"));
    }
}

pub(crate) struct Worker {
    pub(crate) id: usize,
    pub(crate) locks: Lockfence,
    pub(crate) data: redis::Client,
    pub(crate) shared: Arc<Shared>,
    /// The fence of the grant before.
    pub(crate) old: Option<(u64, Fenced)>,
}

fn end<T>(result: &Result<T, Error>) -> End {
    match result {
        Ok(_) => End::Done,
        Err(Error::Fenced(_)) => End::Fenced,
        Err(_) => End::Unknown,
    }
}

impl Worker {
    pub(crate) async fn run(mut self) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            let stalls = self.shared.stalls();
            let options = Options::wait_up_to(Duration::from_secs(20)).ttl(TTL);
            let options = if stalls { options.ttl(STALLED_TTL).without_renewal() } else { options };
            let asked = self.shared.now();
            match self.locks.acquire("lock", options).await {
                Ok(held) => self.holds(held, asked, stalls).await,
                Err(_) => {
                    self.shared.tally(|tally| tally.not_had += 1);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
        assert!(self.locks.settled(Duration::from_secs(60)).await, "worker {}: nothing is left", self.id);
    }

    async fn holds(&mut self, held: Held, asked: u64, stalls: bool) {
        let granted = self.shared.now();
        let token = held.token();
        let index = self.shared.history(|history| {
            history.grants.push(Grant { worker: self.id, token, asked, granted, valid_to: None });
            history.grants.len() - 1
        });
        self.shared.tally(|tally| tally.longest_wait_us = tally.longest_wait_us.max(granted - asked));
        self.still_valid(&held, index);
        let fenced = held.fence(&self.data).await;
        let ended = self.shared.now();
        self.shared.history(|history| history.advances.push(Advance { token, end: end(&fenced), ended }));
        self.still_valid(&held, index);
        if let Some((token, old)) = self.old.take() {
            self.writes_late(token, &old).await;
        }
        match fenced {
            Ok(fenced) => {
                self.adds_one(&held, index, &fenced).await;
                if stalls {
                    self.stands_still(&held, index, &fenced).await;
                }
                self.old = Some((token, fenced));
            }
            Err(_) => self.shared.tally(|tally| tally.fence_unreached += 1),
        }
        self.still_valid(&held, index);
        held.release().await;
    }

    /// Notes that the lock is said to be held. The clock is read before it is asked.
    fn still_valid(&self, held: &Held, index: usize) {
        let now = self.shared.now();
        if held.is_held() {
            self.shared.history(|history| history.grants[index].valid_to = Some(now));
        }
    }

    /// Reads the register and writes one more. Where no answer comes this grant writes no more: what it sent may still
    /// arrive, until the next holder's token shuts it out.
    async fn adds_one(&self, held: &Held, index: usize, fenced: &Fenced) {
        let token = held.token();
        let Ok(mut connection) = self.data.get_multiplexed_async_connection().await else { return };
        for _ in 0..2 {
            let Ok(read) = connection.get("register").await else { return };
            let number = read.map_or(0, |text| text.parse::<u64>().expect("a number")) + 1;
            let began = self.shared.now();
            let result = fenced.write("register", number).await;
            let (end, ended) = (end(&result), self.shared.now());
            let write = Write { token, number, began, ended, end };
            self.shared.history(|history| history.writes.push(write));
            self.still_valid(held, index);
            if end != End::Done {
                return;
            }
        }
    }

    async fn writes_late(&self, token: u64, old: &Fenced) {
        let began = self.shared.now();
        let end = end(&old.write("late", token).await);
        self.shared.history(|history| history.late_writes.push(LateWrite { token, began, end }));
    }

    /// Holds it beyond the lease. The loss must be told by the deadline; what is written then must not count once
    /// somebody else has the lock.
    async fn stands_still(&self, held: &Held, index: usize, fenced: &Fenced) {
        let mut deadline = Instant::now() + held.remaining();
        let lost = loop {
            self.still_valid(held, index);
            deadline = deadline.max(Instant::now() + held.remaining());
            if let Ok(lost) = tokio::time::timeout(Duration::from_millis(20), held.lost()).await {
                break lost;
            }
        };
        let late = Instant::now().saturating_duration_since(deadline);
        assert!(!matches!(lost, Lost::Released), "{lost}");
        self.shared.tally(|tally| {
            tally.lost += 1;
            tally.lost_late_us = tally.lost_late_us.max(late.as_micros() as u64);
        });
        for _ in 0..3 {
            self.writes_late(held.token(), fenced).await;
            tokio::time::sleep(Duration::from_millis(15)).await;
        }
    }
}
