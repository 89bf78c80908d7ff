//! A node: the core's own turns at a lock, and its own token issuer. The queue is a list of its own: the core's holds
//! what cannot be copied from state to state.

use std::hash::{Hash, Hasher};

use lockfence_client::quorum::{Command, Failure, FailureKind, OwnerId, Reply, Standing};
use lockfence_core::clock::{Instant, Now, Ttl};
use lockfence_core::codec::Log;
use lockfence_core::error::Refusal;
use lockfence_core::event::Event;
use lockfence_core::ids::{Mode, Owner, Token};
use lockfence_core::lock::{Holder, Lock};
use lockfence_core::owner::OwnerName;
use lockfence_core::request::Break;
use lockfence_core::token::{Issuer, TokenSource};
use lockfence_core::turn::{Acquired, Turn};

use crate::setup::{NodeBug, Setup, at};
use crate::state::Key;

/// Whoever has the lock at the beginning.
const STRANGER: OwnerId = OwnerId(1);

/// A request in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Waiting {
    pub(crate) key: Key,
    owner: OwnerId,
    mode: Mode,
    until: Option<Instant>,
}

/// A request and what it comes with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) key: Key,
    pub(crate) command: Command,
    pub(crate) mode: Mode,
}

/// What is answered to whom.
pub(crate) type Answers = Vec<(Key, Reply)>;

#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// The lease that everybody asks for.
    ttl: Ttl,
    lock: Lock,
    issuer: Issuer,
    /// The end of the quarantine.
    grants_from: Instant,
    pub(crate) waiting: Vec<Waiting>,
}

/// What makes a difference between two states of a node. Left out: when a lease began, and what the issuer keeps to bound
/// what a crafted record can do.
#[derive(PartialEq, Eq, Hash)]
struct Essence<'n> {
    counter: u64,
    holders: Vec<(OwnerId, u64, Instant, Mode)>,
    high: u64,
    floor: u64,
    grants_from: Instant,
    waiting: &'n [Waiting],
}

impl Node {
    /// A node whose lock stands at that counter.
    pub(crate) fn new(counter: u64, setup: &Setup) -> Self {
        let mut lock = Lock::default();
        if counter > 0 {
            lock.apply(&Event::Broken { counter, at: Instant::default() });
        }
        Self {
            ttl: Ttl::from_ms(setup.ttl_ms()).unwrap(),
            lock,
            issuer: Issuer::new(TokenSource::Clock),
            grants_from: Instant::default(),
            waiting: Vec::new(),
        }
    }

    fn essence(&self) -> Essence<'_> {
        let holder = |holder: Holder<'_>| (owner_of(holder), holder.token, holder.lease.ends, holder.mode);
        Essence {
            counter: self.lock.counter(),
            holders: self.lock.holders().map(holder).collect(),
            high: self.issuer.high(),
            floor: self.issuer.floor().token,
            grants_from: self.grants_from,
            waiting: &self.waiting,
        }
    }

    /// A node at which somebody else has the lock.
    pub(crate) fn taken(mut self) -> Self {
        self.ask(at(0, 0), STRANGER, Mode::Exclusive, None);
        self
    }

    /// Whether the one who had the lock at the beginning still has.
    pub(crate) fn is_taken(&self) -> bool {
        self.lock.holders().any(|holder| owner_of(holder) == STRANGER)
    }

    /// That one releases it.
    pub(crate) fn left(&mut self, now: Now, answers: &mut Answers) {
        let name = STRANGER.to_string();
        self.turn(now, |turn| turn.release(Owner::new(name.as_bytes()).unwrap()));
        self.serve(now, answers);
    }

    /// Carries out a request. `None`: it waits. Answers to others that come of it are in `answers`.
    pub(crate) fn handle(
        &mut self,
        setup: &Setup,
        now: Now,
        asked: Asked,
        answers: &mut Answers,
    ) -> Option<Reply> {
        self.serve(now, answers);
        let reply = match asked.command {
            Command::Acquire { owner, min_token, wait_ms } => {
                let until = wait_ms.map(|ms| (ms > 0).then(|| now.mono.plus_ms(ms)));
                self.acquire(setup, now, asked, owner, min_token, until)
            }
            Command::Extend { owner, min_token } => {
                Some(self.extend(setup, now, asked.mode, owner, min_token))
            }
            Command::Release { owner } => {
                let name = owner.to_string();
                Some(Reply::Done(self.turn(now, |turn| turn.release(Owner::new(name.as_bytes()).unwrap()))))
            }
            Command::Look => Some(Reply::Standing(self.standing(now))),
        };
        self.serve(now, answers);
        reply
    }

    /// Whether that owner has something here, or waits for it.
    pub(crate) fn knows(&self, owner: OwnerId) -> bool {
        self.lock.holders().any(|holder| owner_of(holder) == owner)
            || self.waiting.iter().any(|waiting| waiting.owner == owner)
    }

    /// LOCK.BREAK.
    pub(crate) fn break_lock(&mut self, now: Now, answers: &mut Answers) {
        self.turn(now, |turn| turn.break_holders(Break::default()));
        self.serve(now, answers);
    }

    /// A crash that leaves no data, and the start that follows. Whoever waited learns nothing of it.
    pub(crate) fn forget(&mut self, setup: &Setup, now: Now) {
        *self = Self::new(0, setup);
        if setup.node_bug == Some(NodeBug::ForgetsAndGrants) {
            return;
        }
        if setup.node_bug != Some(NodeBug::NoFloor) {
            self.issuer.raise_floor(now);
        }
        if setup.quarantine {
            self.grants_from = now.mono.plus_ms(setup.ttl_ms());
        }
    }

    /// Nobody listens on that connection any more.
    pub(crate) fn close(&mut self, key: Key, now: Now, answers: &mut Answers) {
        self.waiting.retain(|waiting| waiting.key != key);
        self.serve(now, answers);
    }

    /// Leaves out of the record whose lease has ended. (The module's timer does so, too.)
    pub(crate) fn tidy(&mut self, now: Now) {
        for owner in self.lock.over(now.mono, usize::MAX) {
            self.lock.apply(&Event::Ended { owner: OwnerName::new(&owner), at: now.mono });
        }
    }

    /// Whether its timer has something to do for those who wait.
    pub(crate) fn is_due(&self, now: Now) -> bool {
        let over = |waiting: &Waiting| waiting.until.is_some_and(|until| until <= now.mono);
        self.waiting.iter().any(over)
            || self.waiting.first().is_some_and(|first| now.mono >= self.grants_from && self.fits(now, first))
    }

    fn fits(&self, now: Now, first: &Waiting) -> bool {
        let name = first.owner.to_string();
        self.lock.serves_from(name.as_bytes(), first.mode, now.mono) <= now.mono
    }

    /// Grants the lock to those at the head of the queue, and answers those whose time is over.
    pub(crate) fn serve(&mut self, now: Now, answers: &mut Answers) {
        while let Some(first) = self.waiting.first().cloned()
            && now.mono >= self.grants_from
            && self.fits(now, &first)
        {
            self.waiting.remove(0);
            let reply = self.ask(now, first.owner, first.mode, None);
            answers.push((first.key, reply.unwrap_or_else(|| Reply::Standing(self.standing(now)))));
        }
        while let Some(at) =
            self.waiting.iter().position(|waiting| waiting.until.is_some_and(|until| until <= now.mono))
        {
            let over = self.waiting.remove(at);
            answers.push((over.key, Reply::Standing(self.standing(now))));
        }
    }

    fn acquire(
        &mut self,
        setup: &Setup,
        now: Now,
        asked: Asked,
        owner: OwnerId,
        min_token: Option<u64>,
        until: Option<Option<Instant>>,
    ) -> Option<Reply> {
        if setup.node_bug == Some(NodeBug::WriterBesideReaders)
            && (asked.mode, self.lock.mode()) == (Mode::Exclusive, Mode::Shared)
        {
            self.lock.apply(&Event::Broken { counter: self.lock.counter(), at: now.mono });
        }
        let holds = self.lock.live_holder(OwnerName::new(owner.to_string().as_bytes()), now.mono).is_some();
        let quarantined = now.mono < self.grants_from && until.is_some();
        let reply = if (self.waiting.is_empty() && !quarantined) || holds {
            self.ask(now, owner, asked.mode, min_token)
        } else {
            None
        };
        match until {
            _ if reply.is_some() => reply,
            None => Some(Reply::Standing(self.standing(now))),
            Some(until) => {
                self.waiting.push(Waiting { key: asked.key, owner, mode: asked.mode, until });
                None
            }
        }
    }

    /// ACQUIRE without WAIT. `None`: somebody has it.
    fn ask(&mut self, now: Now, owner: OwnerId, mode: Mode, min_token: Option<u64>) -> Option<Reply> {
        let name = owner.to_string();
        let mut request =
            lockfence_core::request::Acquire::new(Owner::new(name.as_bytes()).unwrap(), self.ttl);
        request.mode = mode;
        request.min_token = min_token.and_then(Token::new);
        match self.turn(now, |turn| turn.acquire(&request)) {
            Ok(Acquired::Granted(grant)) => Some(Reply::Granted { token: grant.token.get() }),
            Ok(Acquired::Busy) => None,
            Err(refusal) => Some(Reply::Failed(failure(&refusal))),
        }
    }

    fn extend(&mut self, setup: &Setup, now: Now, mode: Mode, owner: OwnerId, min: Option<u64>) -> Reply {
        let name = owner.to_string();
        let (token, ttl) = (min.and_then(Token::new), self.ttl);
        match self.turn(now, |turn| turn.extend(Owner::new(name.as_bytes()).unwrap(), ttl, token)) {
            Ok(true) => return Reply::Done(true),
            Ok(false) => {}
            Err(refusal) => return Reply::Failed(failure(&refusal)),
        }
        let bug = if min.is_some() { NodeBug::ConfirmReacquires } else { NodeBug::RenewalReacquires };
        let reacquires = setup.node_bug == Some(bug);
        Reply::Done(reacquires && matches!(self.ask(now, owner, mode, min), Some(Reply::Granted { .. })))
    }

    fn standing(&self, now: Now) -> Standing {
        let holder = self.lock.first_live(now.mono);
        Standing {
            owner: holder.map(|holder| holder.owner.bytes().to_vec().into()),
            mode: None,
            ttl_ms: 0, // for people: nothing is decided by it
            waiters: self.waiting.len() as u64,
        }
    }

    /// One turn of the core at the lock.
    fn turn<R>(&mut self, now: Now, work: impl FnOnce(&mut Turn<'_, ()>) -> R) -> R {
        let Self { lock, issuer, grants_from, .. } = self;
        let (mut log, mut answers) = (Log::default(), Vec::new());
        work(&mut Turn {
            lock,
            queue: None,
            issuer,
            now,
            grants_from: *grants_from,
            log: &mut log,
            answers: &mut answers,
        })
    }
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.essence() == other.essence()
    }
}

impl Eq for Node {}

impl Hash for Node {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.essence().hash(hasher);
    }
}

/// Whose name that is.
fn owner_of(holder: Holder<'_>) -> OwnerId {
    let name = holder.owner.bytes();
    OwnerId(u128::from_str_radix(std::str::from_utf8(&name).unwrap(), 16).unwrap())
}

/// What the client makes of the server's error line.
fn failure(refusal: &Refusal) -> Failure {
    let kind = match refusal {
        Refusal::ProposalTooFarAhead { .. } => FailureKind::TooFarAhead,
        Refusal::Quarantine { .. } => FailureKind::Refused,
        _ => FailureKind::Fatal,
    };
    Failure::new(kind, "")
}
