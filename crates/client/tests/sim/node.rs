//! A node: the module's own core (turns, queue, token issuer, stored records), a clock, and what a crash does to it.
//! The core itself is compared with an independent model in its own tests.

use lockfence_client::quorum::{Command, Failure, FailureKind, OwnerId, Reply, Standing};
use lockfence_core::clock::{Instant, Now, Ttl, Wall};
use lockfence_core::codec::{Log, read_issuer, read_lock, write_issuer, write_lock};
use lockfence_core::error::Refusal;
use lockfence_core::event::Event;
use lockfence_core::ids::{Mode, Owner, Token};
use lockfence_core::lock::{Holder, Lock};
use lockfence_core::queue::{Answer, Outcome, Standing as CoreStanding, Waiter, WaiterId};
use lockfence_core::request::{Acquire, Break, Wait};
use lockfence_core::room::Room;
use lockfence_core::token::{Floor, Issuer, TokenSource};
use lockfence_core::turn::{Acquired, Turn, standing};

use crate::{Msg, TTL_US};

/// The wall clock at the beginning of the world.
pub(crate) const EPOCH_US: u64 = 1_764_428_400_000_000;

const KEY: &[u8] = b"lock";

/// What is broken in a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeBug {
    /// EXTEND without a live lease grants a new one, when it confirms (MINTOKEN).
    ExtendReacquiresInConfirm,
    /// The same, when it renews.
    ExtendReacquiresInRenewal,
    /// It comes back without its data and grants at once, without a floor.
    ForgetsAndGrants,
    /// It grants a writer the lock beside readers.
    WriterBesideReaders,
}

/// Clocks and settings of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Make {
    pub(crate) ppm: i64,
    pub(crate) wall_offset: i64,
    pub(crate) quarantine_ms: u64,
    pub(crate) source: TokenSource,
    /// How far above its clock it puts its floor at a restart; the core's own margin where nothing is said.
    pub(crate) floor_margin_us: Option<u64>,
    pub(crate) bug: Option<NodeBug>,
}

/// What is in the memory of a process.
struct Memory {
    issuer: Issuer,
    lock: Lock,
    room: Room<Msg>,
    waiting: Vec<(Msg, WaiterId)>,
    grants_from: Instant,
}

impl Memory {
    fn new(source: TokenSource) -> Self {
        Self {
            issuer: Issuer::new(source),
            lock: Lock::default(),
            room: Room::default(),
            waiting: Vec::new(),
            grants_from: Instant::from_micros(i64::MIN),
        }
    }
}

/// What is on the disk: written, like effects, with the clock of each change.
#[derive(Clone, Default)]
struct Disk {
    lock: Option<Vec<u8>>,
    issuer: Option<Vec<u8>>,
}

pub(crate) struct Node {
    make: Make,
    /// How far its monotonic clock was moved: a fault that no clock should have.
    jumped: i64,
    wall_offset: i64,
    pub(crate) up: bool,
    memory: Memory,
    disk: Disk,
    /// Connections that were closed: what arrives on them later finds nobody to wait.
    closed: Vec<Msg>,
}

impl Node {
    pub(crate) fn new(make: Make) -> Self {
        Self {
            make,
            jumped: 0,
            wall_offset: make.wall_offset,
            up: true,
            memory: Memory::new(make.source),
            disk: Disk::default(),
            closed: Vec::new(),
        }
    }

    fn mono(&self, now: u64) -> i64 {
        now as i64 + now as i64 * self.make.ppm / 1_000_000 + self.jumped
    }

    /// The true time at which the node's clock shows `mono`.
    fn true_time(&self, mono: Instant) -> u64 {
        let mono =
            i128::from(mono.micros() - self.jumped) * 1_000_000 / i128::from(1_000_000 + self.make.ppm);
        u64::try_from(mono.max(0)).unwrap_or(u64::MAX - 1) + 1
    }

    fn now(&self, now: u64) -> Now {
        let wall = EPOCH_US.saturating_add(now).saturating_add_signed(self.wall_offset);
        Now { mono: Instant::from_micros(self.mono(now)), wall: Wall::from_micros(wall) }
    }

    pub(crate) fn step_wall(&mut self, to: i64) {
        self.wall_offset = to;
    }

    pub(crate) fn jump_mono(&mut self, by: i64) {
        self.jumped += by;
    }

    /// Whether it keeps a lease over a restart by its wall clock alone.
    pub(crate) fn has_no_quarantine(&self) -> bool {
        self.make.quarantine_ms == 0
    }

    pub(crate) fn is_held(&self, now: u64) -> bool {
        self.up && self.memory.lock.live_count(self.now(now).mono) > 0
    }

    /// Whether nobody has a lease here but `owner`, and nobody waits.
    pub(crate) fn is_clear_but_for(&self, owner: Option<OwnerId>) -> bool {
        let is_owner = |holder: Holder<'_>| {
            owner.is_some_and(|owner| *holder.owner.bytes() == *owner.to_string().as_bytes())
        };
        self.waiters() == 0 && self.memory.lock.holders().all(is_owner)
    }

    pub(crate) fn waiters(&self) -> usize {
        self.memory.room.len()
    }

    pub(crate) fn grants(&self, now: u64) -> bool {
        self.up && self.now(now).mono >= self.memory.grants_from
    }

    /// A crash: the queue is lost, and without its disk everything else, too. Returns whom the end of its connection
    /// tells.
    pub(crate) fn crash(&mut self, forgets: bool) -> Vec<Msg> {
        self.up = false;
        if forgets {
            self.disk = Disk::default();
        }
        let waiters = self.memory.room.take_db(None);
        self.memory = Memory::new(self.make.source);
        waiters.into_iter().map(|(_, waiter)| waiter.handle).collect()
    }

    pub(crate) fn restart(&mut self, true_now: u64) {
        self.up = true;
        let now = self.now(true_now);
        let forgot = self.disk.lock.is_none();
        if let Some(bytes) = &self.disk.issuer {
            let (high, floor) = read_issuer(bytes).expect("what was written is read");
            self.memory.issuer.restored(high, floor, now);
        }
        if let Some(bytes) = &self.disk.lock {
            self.memory.lock = read_lock(bytes, now).expect("what was written is read");
            self.memory.issuer.loaded(self.memory.lock.counter(), now);
        }
        if forgot && self.make.bug == Some(NodeBug::ForgetsAndGrants) {
            return;
        }
        self.raise_floor(now);
        if self.make.quarantine_ms > 0 {
            self.memory.grants_from = now.mono.plus_ms(self.make.quarantine_ms);
        }
    }

    fn raise_floor(&mut self, now: Now) {
        let issuer = &mut self.memory.issuer;
        match self.make.floor_margin_us {
            None => issuer.raise_floor(now),
            Some(margin) => {
                let wall = now.wall.micros();
                let token = wall.max(issuer.high()).max(issuer.floor().token) + margin;
                issuer.learn_floor(Floor { token, raised_at: wall }, now);
            }
        }
    }

    pub(crate) fn close(&mut self, msg: Msg, true_now: u64) {
        self.closed.push(msg);
        let gone: Vec<WaiterId> =
            self.memory.waiting.iter().filter(|(of, _)| *of == msg).map(|(_, id)| *id).collect();
        for id in gone {
            self.memory.room.remove(id);
            self.memory.room.watch(0, KEY, Some(self.now(true_now).mono));
        }
        self.memory.waiting.retain(|(of, _)| *of != msg);
    }

    /// One turn of the core at the lock, as the module takes it.
    fn turn<R>(
        &mut self,
        now: Now,
        answers: &mut Vec<(Msg, Reply)>,
        work: impl FnOnce(&mut Turn<'_, Msg>) -> R,
    ) -> R {
        let Memory { issuer, lock, room, waiting, grants_from } = &mut self.memory;
        let (mut log, mut answered) = (Log::default(), Vec::new());
        let queue = room.queue_mut(0, KEY);
        let queued = queue.is_some();
        let grants_from = *grants_from;
        let result =
            work(&mut Turn { lock, queue, issuer, now, grants_from, log: &mut log, answers: &mut answered });
        if queued {
            room.settle(0, KEY, &answered, |first: &Waiter<Msg>| look_at(lock, first, grants_from, now));
        }
        for Answer { id, waiter, outcome } in answered {
            waiting.retain(|(_, other)| *other != id);
            answers.push((waiter.handle, reply(outcome)));
        }
        if !log.is_empty() {
            self.write(now);
        }
        result
    }

    fn write(&mut self, now: Now) {
        let (mut lock, mut issuer) = (Vec::new(), Vec::new());
        write_lock(&mut lock, &self.memory.lock, now);
        write_issuer(&mut issuer, &self.memory.issuer);
        self.disk = Disk { lock: Some(lock), issuer: Some(issuer) };
    }

    /// An administrator's LOCK.BREAK.
    pub(crate) fn break_lock(&mut self, true_now: u64, answers: &mut Vec<(Msg, Reply)>) {
        let now = self.now(true_now);
        self.turn(now, answers, |turn| turn.break_holders(Break::default()));
    }

    /// An administrator's DEL: whoever waits is told to ask again.
    pub(crate) fn delete(&mut self, answers: &mut Vec<(Msg, Reply)>) {
        self.memory.lock = Lock::default();
        self.disk.lock = None;
        for (_, waiter) in self.memory.room.take_key(0, KEY) {
            answers.push((waiter.handle, reply(Outcome::LockLost)));
        }
        self.memory.waiting.clear();
    }

    /// Carries out a request. `None`: it waits. Answers to others that come of it are in `answers`.
    pub(crate) fn handle(
        &mut self,
        true_now: u64,
        msg: Msg,
        command: Command,
        answers: &mut Vec<(Msg, Reply)>,
    ) -> Option<Reply> {
        let now = self.now(true_now);
        match command {
            Command::Acquire { owner, min_token, wait_ms } => {
                let name = owner.to_string();
                let mut request = Acquire::new(Owner::new(name.as_bytes())?, ttl());
                request.mode = msg.mode;
                request.min_token = min_token.and_then(Token::new);
                request.wait = wait_ms.map(|ms| if ms == 0 { Wait::Forever } else { Wait::Ms(ms) });
                self.acquire(now, msg, &request, answers)
            }
            Command::Extend { owner, min_token } => Some(self.extend(now, msg, owner, min_token, answers)),
            Command::Release { owner } => {
                let name = owner.to_string();
                let owner = Owner::new(name.as_bytes())?;
                Some(Reply::Done(self.turn(now, answers, |turn| turn.release(owner))))
            }
            Command::Look => Some(Reply::Standing(self.standing(now))),
        }
    }

    fn acquire(
        &mut self,
        now: Now,
        msg: Msg,
        request: &Acquire<'_>,
        answers: &mut Vec<(Msg, Reply)>,
    ) -> Option<Reply> {
        let beside = self.make.bug == Some(NodeBug::WriterBesideReaders)
            && msg.mode == Mode::Exclusive
            && self.memory.lock.mode() == Mode::Shared;
        if beside {
            self.memory.lock = forgot_its_holders(&self.memory.lock, now);
        }
        match self.turn(now, answers, |turn| turn.acquire(request)) {
            Ok(Acquired::Granted(grant)) => Some(Reply::Granted { token: grant.token.get() }),
            Err(refusal) => Some(Reply::Failed(failure(&refusal))),
            Ok(Acquired::Busy) => {
                let until = match request.wait {
                    Some(Wait::Forever) => None,
                    Some(Wait::Ms(ms)) => Some(now.mono.plus_ms(ms)),
                    None => return Some(Reply::Standing(self.standing(now))),
                };
                if !self.closed.contains(&msg) {
                    self.enqueue(now, msg, request, until);
                }
                None
            }
        }
    }

    fn enqueue(&mut self, now: Now, msg: Msg, request: &Acquire<'_>, until: Option<Instant>) {
        let waiter = Waiter {
            owner: request.owner.bytes().into(),
            ttl: request.ttl,
            mode: request.mode,
            min_token: request.min_token,
            with_info: true,
            since: now.mono,
            until,
            client_id: 0,
            handle: msg,
        };
        let Memory { lock, room, waiting, grants_from, .. } = &mut self.memory;
        let id = room.enqueue(0, KEY, waiter, |first: &Waiter<Msg>| look_at(lock, first, *grants_from, now));
        waiting.push((msg, id));
    }

    fn extend(
        &mut self,
        now: Now,
        msg: Msg,
        owner: OwnerId,
        min: Option<u64>,
        answers: &mut Vec<(Msg, Reply)>,
    ) -> Reply {
        let name = owner.to_string();
        let Some(owner) = Owner::new(name.as_bytes()) else { return Reply::Done(false) };
        let min_token = min.and_then(Token::new);
        match self.turn(now, answers, |turn| turn.extend(owner, ttl(), min_token)) {
            Ok(true) => return Reply::Done(true),
            Ok(false) => {}
            Err(refusal) => return Reply::Failed(failure(&refusal)),
        }
        let bug = match min {
            Some(_) => NodeBug::ExtendReacquiresInConfirm,
            None => NodeBug::ExtendReacquiresInRenewal,
        };
        if self.make.bug != Some(bug) {
            return Reply::Done(false);
        }
        let request = Acquire { min_token, mode: msg.mode, ..Acquire::new(owner, ttl()) };
        let granted = self.turn(now, answers, |turn| turn.acquire(&request));
        Reply::Done(matches!(granted, Ok(Acquired::Granted(_))))
    }

    fn standing(&self, now: Now) -> Standing {
        let queue = self.memory.room.queue(0, KEY);
        stands(standing(Some(&self.memory.lock), queue, now.mono))
    }

    /// Grants the lock to the head of the queue if it is free, and answers those whose time is over.
    pub(crate) fn serve(&mut self, true_now: u64, answers: &mut Vec<(Msg, Reply)>) {
        let now = self.now(true_now);
        if !self.memory.room.overdue_locks(now.mono, 1).is_empty() {
            self.turn(now, answers, |turn| turn.serve_queue());
        }
        while let Some((_, waiter)) =
            self.memory.room.overdue_waiter(now.mono).and_then(|id| self.memory.room.remove(id))
        {
            self.memory.waiting.retain(|(msg, _)| *msg != waiter.handle);
            self.memory.room.watch(0, KEY, Some(now.mono));
            answers.push((waiter.handle, Reply::Standing(self.standing(now))));
        }
    }

    /// The next time at which something happens by itself.
    pub(crate) fn wakes_at(&self, now: u64) -> Option<u64> {
        self.memory.room.next_due().map(|due| self.true_time(due).max(now + 1))
    }
}

fn ttl() -> Ttl {
    Ttl::from_ms(TTL_US / 1000).expect("a lease in range")
}

/// When the queue must be looked at again, in which `first` is the first.
fn look_at(lock: &Lock, first: &Waiter<Msg>, grants_from: Instant, now: Now) -> Instant {
    let at = lock.serves_from(&first.owner, first.mode, now.mono).max(grants_from);
    if at > now.mono { at } else { now.mono.plus_ms(1_000) }
}

/// The same lock, its counter kept, without those who hold it.
fn forgot_its_holders(lock: &Lock, now: Now) -> Lock {
    let mut lock = lock.clone();
    lock.apply(&Event::Broken { counter: lock.counter(), at: now.mono });
    lock
}

fn stands(standing: CoreStanding) -> Standing {
    let owner = standing.owner.map(|owner| Vec::from(owner).into());
    Standing { owner, mode: None, ttl_ms: standing.ttl_ms, waiters: standing.waiters }
}

fn reply(outcome: Outcome) -> Reply {
    match outcome {
        Outcome::Granted(grant) => Reply::Granted { token: grant.token.get() },
        Outcome::NotGranted(standing) => Reply::Standing(stands(standing)),
        Outcome::Refused(refusal) => Reply::Failed(failure(&refusal)),
        Outcome::LockLost | Outcome::Demoted => {
            Reply::Failed(Failure::new(FailureKind::AskAgain, "the key has gone"))
        }
    }
}

/// What the client makes of the server's error line.
fn failure(refusal: &Refusal) -> Failure {
    let kind = match refusal {
        Refusal::ProposalTooFarAhead { .. } => FailureKind::TooFarAhead,
        Refusal::Quarantine { .. } | Refusal::QueueFull { .. } => FailureKind::Refused,
        _ => FailureKind::Fatal,
    };
    Failure::new(kind, refusal.line(KEY))
}
