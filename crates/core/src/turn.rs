//! One command's turn at one lock: decide, apply, take down what happened, and say whom to wake.
//!
//! Every way in which a lock changes while this server is the primary goes through here. On any access the queue is
//! served first, so that no command overtakes those who wait.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::clock::{Instant, Now, Ttl};
use crate::codec::Log;
use crate::error::Refusal;
use crate::event::{Event, Lease};
use crate::ids::{Mode, Owner, Token};
use crate::limits;
use crate::lock::Lock;
use crate::owner::OwnerName;
use crate::planted::{self, Bug};
use crate::queue::{Answer, Grant, Outcome, Queue, Standing, WaiterId};
use crate::request::{Acquire, Break};
use crate::token::Issuer;

/// How many leases that are over a grant takes out of the record: where very many end together it is not one command
/// that pays for all, and is told to replicas.
const ENDED_AT_ONCE: usize = 100;

/// What a command works with: the lock, its queue, and where the results go.
#[derive(Debug)]
pub struct Turn<'t, H> {
    /// The lock; a default one where the key does not exist.
    pub lock: &'t mut Lock,
    /// Its queue, if anybody waits.
    pub queue: Option<&'t mut Queue<H>>,
    /// The server's token issuer.
    pub issuer: &'t mut Issuer,
    /// The time.
    pub now: Now,
    /// When grants may be made: the end of the restart quarantine.
    pub grants_from: Instant,
    /// What happened, for replicas and the AOF.
    pub log: &'t mut Log,
    /// Waiters that were answered.
    pub answers: &'t mut Vec<Answer<H>>,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// Granted, or held already.
    Granted(Grant),
    /// Somebody else has it, or is before this request in the queue, or the quarantine is not over.
    Busy,
}

impl<H: Clone> Turn<'_, H> {
    /// LOCK.ACQUIRE. A request that gets [`Acquired::Busy`] may be queued by the caller.
    ///
    /// # Errors
    /// Refusals of the request; then nothing was done for it.
    pub fn acquire(&mut self, request: &Acquire<'_>) -> Result<Acquired, Refusal> {
        self.serve_queue();
        self.issuer.admit(request.min_token, self.lock.counter(), self.now)?;
        let owner = OwnerName::new(request.owner.bytes());
        if let Some(holder) = self.lock.live_holder(owner, self.now.mono) {
            let (token, lease) = (holder.token, holder.lease);
            if !self.lock.mode().same_kind(request.mode) {
                return Err(Refusal::HeldInOtherMode(self.lock.mode()));
            }
            return self.prolong(owner, request.ttl, request.min_token, token, lease).map(Acquired::Granted);
        }
        if !self.fits(request.mode) {
            return Ok(Acquired::Busy);
        }
        if self.now.mono < self.grants_from {
            let left_ms = self.grants_from.left_ms(self.now.mono);
            return if request.wait.is_some() {
                Ok(Acquired::Busy)
            } else {
                Err(Refusal::Quarantine { left_ms })
            };
        }
        let barges = planted::is(Bug::SharedBarges) && request.mode == Mode::Shared;
        if self.queue.as_ref().is_some_and(|queue| !queue.is_empty()) && !barges {
            return Ok(Acquired::Busy);
        }
        self.grant(owner, request.ttl, request.mode, request.min_token).map(Acquired::Granted)
    }

    /// LOCK.RELEASE: whether `owner` held the lock. The next in the queue is granted in the same step.
    pub fn release(&mut self, owner: Owner<'_>) -> bool {
        let now = self.now.mono;
        let owner = OwnerName::new(owner.bytes());
        let held = self.lock.live_holder(owner, now).is_some();
        if held {
            self.happen(&Event::Ended { owner, at: now });
        }
        if planted::is(if held { Bug::ReleaseEndsAll } else { Bug::ReleaseByAnyone }) {
            self.end(&self.lock.holders().map(|holder| (*holder.owner.bytes()).into()).collect::<Vec<_>>());
        }
        self.serve_queue();
        held
    }

    /// LOCK.EXTEND: whether `owner` held the lock; its lease now ends `ttl` from now.
    ///
    /// # Errors
    /// A MINTOKEN that is too far ahead; [`Refusal::Exhausted`] when there is no higher token.
    pub fn extend(&mut self, owner: Owner<'_>, ttl: Ttl, min: Option<Token>) -> Result<bool, Refusal> {
        self.serve_queue();
        self.issuer.admit(min, self.lock.counter(), self.now)?;
        let owner = OwnerName::new(owner.bytes());
        let mut holder = self.lock.live_holder(owner, self.now.mono);
        if holder.is_none() && planted::is(Bug::ExtendRevives) {
            holder = self.lock.holders().find(|holder| holder.owner == owner);
        }
        let Some(holder) = holder else { return Ok(false) };
        let token = self.raised(holder.token, min)?;
        let lease = Lease { ends: self.now.mono.plus_ms(ttl.ms()), length_ms: ttl.ms() };
        self.happen(&Event::Extended { owner, token, lease });
        self.issuer.issued(token, self.now);
        Ok(true)
    }

    /// LOCK.BREAK: how many holders were ended. Then the queue is served.
    pub fn break_holders(&mut self, request: Break) -> u64 {
        let counter = self.lock.counter();
        let below = request.max_token.map(Token::get).filter(|max| *max < counter);
        let ended = match below {
            Some(max) if !planted::is(Bug::BreakEndsAll) => self.break_up_to(max),
            _ => self.break_all(),
        };
        self.serve_queue();
        ended
    }

    /// A token is used up, so that all are fenced at once. At the highest token there is none to use up, and none is
    /// needed: there only a live lease counts.
    fn break_all(&mut self) -> u64 {
        let ended = self.lock.live_count(self.now.mono);
        if self.lock.counter() > 0 {
            let token = self.issuer.next(self.lock, None, self.now);
            let counter = token.as_ref().map_or(limits::TOKEN_MAX, |token| token.get());
            self.happen(&Event::Broken { counter, at: self.now.mono });
            if let Ok(token) = token {
                self.took(token);
            }
        }
        ended
    }

    /// Ends those whose token is at most `max`, which is below the counter: they are fenced without using up a token.
    fn break_up_to(&mut self, max: u64) -> u64 {
        let at = self.now.mono;
        let named = self.lock.holders().take_while(|holder| holder.token <= max);
        let live = named.filter(|holder| holder.live(at)).count();
        if live > 0 {
            self.happen(&Event::BrokenUpTo { max, at });
        }
        u64::try_from(live).unwrap_or(u64::MAX)
    }

    /// Grants the lock to those at the head of the queue, as long as they fit. Called by every command, and by the
    /// timer at a deadline.
    pub fn serve_queue(&mut self) {
        self.lock.note(self.now.mono);
        if self.now.mono < self.grants_from {
            return;
        }
        while let Some(front) = self.queue.as_ref().and_then(|queue| queue.front()) {
            let mode = front.mode;
            let owner = front.owner.clone();
            if self.lock.live_holder(OwnerName::new(&owner), self.now.mono).is_none() && !self.fits(mode) {
                return;
            }
            self.serve_owner(&owner, mode);
            if planted::is(Bug::OneServed) {
                return;
            }
        }
    }

    fn fits(&self, mode: Mode) -> bool {
        let all = u64::try_from(self.lock.holder_count()).unwrap_or(u64::MAX);
        if all == 0 {
            return true;
        }
        let live = self.lock.live_count(self.now.mono);
        mode.fits(self.lock.mode(), if planted::is(Bug::EndedCount) { all } else { live })
    }

    /// What a request that was not granted can be told.
    #[must_use]
    pub fn standing(&self) -> Standing {
        standing(Some(self.lock), self.queue.as_deref(), self.now.mono)
    }

    /// One grant answers every queued request of that owner; its lease is the longest that any of them asked for.
    fn serve_owner(&mut self, owner: &[u8], mode: Mode) {
        let Some(queue) = self.queue.as_deref() else { return };
        let ids = queue.requests_of(owner, mode);
        let requests = || ids.iter().filter_map(|id| queue.get(*id));
        let Some(ttl) = requests().map(|waiter| waiter.ttl).max() else { return };
        let min = requests().filter_map(|waiter| waiter.min_token).max();
        let owner = OwnerName::new(owner);
        let held = self.lock.live_holder(owner, self.now.mono).map(|holder| (holder.token, holder.lease));
        let granted = match held {
            Some(_) if !self.lock.mode().same_kind(mode) => Err(Refusal::HeldInOtherMode(self.lock.mode())),
            Some((token, lease)) => self.prolong(owner, ttl, min, token, lease),
            None => self.grant(owner, ttl, mode, min),
        };
        self.answer(&ids, &granted.map_or_else(Outcome::Refused, Outcome::Granted));
    }

    fn answer(&mut self, ids: &[WaiterId], outcome: &Outcome) {
        let Some(queue) = self.queue.as_deref_mut() else { return };
        for id in ids {
            if let Some(waiter) = queue.remove(*id) {
                let answer = Answer { id: *id, waiter, outcome: outcome.clone() };
                if planted::is(Bug::AnsweredTwice) {
                    self.answers.push(answer.clone());
                }
                self.answers.push(answer);
            }
        }
    }

    fn grant(
        &mut self,
        owner: OwnerName<'_>,
        ttl: Ttl,
        mode: Mode,
        min: Option<Token>,
    ) -> Result<Grant, Refusal> {
        let token = self.issuer.next(self.lock, min, self.now)?;
        let at = self.now.mono;
        // A grant in another mode ends what the record still shows of holders in this one.
        if mode != Mode::Exclusive && self.lock.mode().same_kind(mode) {
            self.end(&self.lock.over(at, ENDED_AT_ONCE));
        }
        let lease = Lease { ends: at.plus_ms(ttl.ms()), length_ms: ttl.ms() };
        self.happen(&Event::Granted { owner, token: token.get(), mode, at, lease });
        self.took(token);
        Ok(Grant { token, ttl_ms: ttl.ms(), renewed: false })
    }

    /// The same owner asks again: the same token (raised to a proposal that is higher), and the lease becomes the
    /// longer of what is left and what it asks for.
    fn prolong(
        &mut self,
        owner: OwnerName<'_>,
        ttl: Ttl,
        min: Option<Token>,
        token: u64,
        lease: Lease,
    ) -> Result<Grant, Refusal> {
        let now = self.now.mono;
        let asked = Lease { ends: now.plus_ms(ttl.ms()), length_ms: ttl.ms() };
        let after = if asked.ends > lease.ends { asked } else { lease };
        let raised = self.raised(token, min)?;
        if after != lease || raised != token {
            self.happen(&Event::Extended { owner, token: raised, lease: after });
            self.issuer.issued(raised, self.now);
        }
        let token = Token::new(raised).unwrap_or(Token::MAX);
        Ok(Grant { token, ttl_ms: after.ends.left_ms(now), renewed: true })
    }

    /// What the token of a holder becomes that proposes `min`: stays where it is high enough. A proposal up to the
    /// counter may be the token of another holder (SHARED, LIMIT), or one that was used up: then it is one above.
    fn raised(&self, token: u64, min: Option<Token>) -> Result<u64, Refusal> {
        match min {
            Some(min) if min.get() > self.lock.counter() => Ok(min.get()),
            Some(min) if min.get() > token => {
                self.issuer.next(self.lock, Some(min), self.now).map(Token::get)
            }
            _ => Ok(token),
        }
    }

    fn end(&mut self, owners: &[Box<[u8]>]) {
        for owner in owners {
            self.happen(&Event::Ended { owner: OwnerName::new(owner), at: self.now.mono });
        }
    }

    fn happen(&mut self, event: &Event<'_>) {
        self.lock.apply(event);
        self.log.push(event, self.now);
    }

    fn took(&mut self, token: Token) {
        self.issuer.issued(token.get(), self.now);
        self.issuer.vouch(self.lock);
    }
}

/// Who stands in the way at `lock`, as a reply tells it.
#[must_use]
pub fn standing<H>(lock: Option<&Lock>, queue: Option<&Queue<H>>, now: Instant) -> Standing {
    let holder = lock.and_then(|lock| lock.first_live(now));
    Standing {
        ttl_ms: lock.and_then(|lock| lock.next_end(now)).map_or(0, |ends| ends.left_ms(now)),
        owner: holder.map(|holder| (*holder.owner.bytes()).into()),
        waiters: queue.map_or(0, |queue| u64::try_from(queue.len()).unwrap_or(u64::MAX)),
    }
}
