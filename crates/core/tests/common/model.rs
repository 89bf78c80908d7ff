//! What the locks should do, as plainly as it can be said: vectors and integers, nothing of the core's.
//!
//! Tokens are not predicted: the model takes each from the world and checks that it may be that one.

use super::step::{Asked, Broken, Found, Kind, Name, Reply, Time, Told, View, Why, micros};

/// 10 s: how far ahead of base a proposal may be.
const PROPOSAL_US: u64 = 10_000_000;

#[derive(Clone, Debug)]
struct Holder {
    owner: u8,
    token: u64,
    kind: Kind,
    ends: i64,
    length_ms: u64,
}

#[derive(Clone, Debug, Default)]
struct Record {
    counter: u64,
    holders: Vec<Holder>,
}

/// The records of one moment, and when that was.
#[derive(Clone, Debug, Default)]
pub(crate) struct Picture {
    records: Vec<(Name, Record)>,
    time: Time,
}

/// What the model looks at while it predicts a step.
pub(crate) struct Seen<'a> {
    pub(crate) time: Time,
    /// max(wall clock, restart floor)
    pub(crate) base: u64,
    /// What requests were told in the step.
    pub(crate) told: &'a [Told],
    /// The locks after the step.
    pub(crate) views: &'a [(Name, Option<View>)],
}

impl Seen<'_> {
    fn view(&self, at: Name) -> Option<&View> {
        self.views.iter().find(|(name, _)| *name == at)?.1.as_ref()
    }

    fn granted(&self, id: u64) -> Option<u64> {
        self.told.iter().find_map(|(other, reply)| match reply {
            Reply::Granted { token, .. } if *other == id => Some(*token),
            _ => None,
        })
    }

    fn token_of(&self, at: Name, owner: u8) -> Option<u64> {
        self.view(at)?.holders.iter().find(|holder| holder.0 == owner).map(|holder| holder.1)
    }
}

#[derive(Default)]
pub(crate) struct Model {
    records: Vec<(Name, Record)>,
    /// All that wait, in the order in which they came.
    waiters: Vec<Asked>,
    grants_from: i64,
    /// Every token that was ever good at a name, whatever has been lost since, in order.
    history: Vec<(Name, u64)>,
    /// The highest token anywhere.
    pub(crate) highest: u64,
    /// What should be told now.
    told: Vec<Told>,
    pub(crate) hand_overs: u64,
}

impl Model {
    pub(crate) fn new() -> Self {
        Self { grants_from: i64::MIN, ..Self::default() }
    }

    pub(crate) fn take_told(&mut self) -> Vec<Told> {
        std::mem::take(&mut self.told)
    }

    pub(crate) fn counter(&self, at: Name) -> u64 {
        self.record(at).map_or(0, |record| record.counter)
    }

    pub(crate) fn tokens_of(&self, at: Name) -> Vec<u64> {
        self.history.iter().filter(|(name, _)| *name == at).map(|(_, token)| *token).collect()
    }

    pub(crate) fn waits(&self, id: u64) -> bool {
        self.waiters.iter().any(|waiter| waiter.id == id)
    }

    fn record(&self, at: Name) -> Option<&Record> {
        self.records.iter().find(|(name, _)| *name == at).map(|(_, record)| record)
    }

    fn record_mut(&mut self, at: Name) -> &mut Record {
        if self.record(at).is_none() {
            self.records.push((at, Record::default()));
        }
        self.records
            .iter_mut()
            .find(|(name, _)| *name == at)
            .map(|(_, record)| record)
            .expect("just put there")
    }

    fn live(&self, at: Name, now: i64) -> Vec<Holder> {
        let holders = self.record(at).map_or(&[][..], |record| &record.holders);
        holders.iter().filter(|holder| now < holder.ends).cloned().collect()
    }

    fn holder(&self, at: Name, owner: u8, now: i64) -> Option<Holder> {
        self.live(at, now).into_iter().find(|holder| holder.owner == owner)
    }

    fn fits(&self, at: Name, kind: Kind, now: i64) -> bool {
        let live = self.live(at, now);
        match kind {
            _ if live.is_empty() => true,
            Kind::Exclusive => false,
            Kind::Shared => live.iter().all(|holder| holder.kind == Kind::Shared),
            Kind::Limit(n) => live.iter().all(|holder| holder.kind.alike(kind)) && live.len() < n as usize,
        }
    }

    fn tell(&mut self, id: u64, reply: Reply) {
        self.told.push((id, reply));
    }

    // ---- requests

    pub(crate) fn acquire(&mut self, asked: Asked, seen: &Seen<'_>) -> Result<(), Found> {
        let Asked { id, at, owner, kind, min, .. } = asked;
        let now = seen.time.mono;
        self.serve(at, seen)?;
        if self.too_far(at, min, seen) {
            self.tell(id, Reply::Refused(Why::TooFarAhead));
            return Ok(());
        }
        if let Some(holder) = self.holder(at, owner, now) {
            let reply = if holder.kind.alike(kind) {
                self.renew(at, owner, asked.ttl_ms, min, seen)?
            } else {
                Reply::Refused(Why::OtherMode)
            };
            self.tell(id, reply);
            return Ok(());
        }
        let fits = self.fits(at, kind, now);
        let quarantine = now < self.grants_from;
        if fits && !quarantine && !self.waiters.iter().any(|waiter| waiter.at == at) {
            let reply = self.grant(&asked, seen)?;
            self.tell(id, reply);
        } else if asked.wait_ms.is_some() {
            self.enqueue(asked);
        } else if fits && quarantine {
            self.tell(id, Reply::Refused(Why::Quarantine));
        } else {
            self.tell(id, Reply::NotGranted);
        }
        Ok(())
    }

    fn enqueue(&mut self, asked: Asked) {
        let here = self.waiters.iter().filter(|waiter| waiter.at == asked.at).count() as u64;
        let capacity = super::server::CAPACITY;
        if self.waiters.len() as u64 >= capacity.all || here >= capacity.per_lock {
            return self.tell(asked.id, Reply::Refused(Why::QueueFull));
        }
        self.waiters.push(asked);
    }

    pub(crate) fn release(&mut self, id: u64, at: Name, owner: u8, seen: &Seen<'_>) -> Result<(), Found> {
        let held = self.holder(at, owner, seen.time.mono).is_some();
        if held {
            self.record_mut(at).holders.retain(|holder| holder.owner != owner);
        }
        self.serve(at, seen)?;
        self.tell(id, Reply::Number(u64::from(held)));
        Ok(())
    }

    pub(crate) fn extend(
        &mut self,
        (id, at, owner): (u64, Name, u8),
        ttl_ms: u64,
        min: Option<u64>,
        seen: &Seen<'_>,
    ) -> Result<(), Found> {
        self.serve(at, seen)?;
        if self.too_far(at, min, seen) {
            self.tell(id, Reply::Refused(Why::TooFarAhead));
            return Ok(());
        }
        let held = self.holder(at, owner, seen.time.mono).is_some();
        if held {
            self.raise(at, owner, min, seen)?;
            let holder = self.holder_mut(at, owner);
            (holder.ends, holder.length_ms) = (seen.time.mono + micros(ttl_ms), ttl_ms);
        }
        self.tell(id, Reply::Number(u64::from(held)));
        Ok(())
    }

    pub(crate) fn break_lock(
        &mut self,
        id: u64,
        at: Name,
        max: Option<u64>,
        seen: &Seen<'_>,
    ) -> Result<(), Found> {
        let ended = match max {
            Some(max) if max < self.counter(at) => self.break_up_to(at, max, seen.time.mono),
            _ => self.break_all(at, seen)?,
        };
        self.serve(at, seen)?;
        self.tell(id, Reply::Number(ended));
        Ok(())
    }

    /// No token is used up: those who are ended are below the counter, so that nobody accepts theirs.
    fn break_up_to(&mut self, at: Name, max: u64, now: i64) -> u64 {
        let before = self.live(at, now).len();
        self.record_mut(at).holders.retain(|holder| holder.token > max);
        (before - self.live(at, now).len()) as u64
    }

    fn break_all(&mut self, at: Name, seen: &Seen<'_>) -> Result<u64, Found> {
        let ended = self.live(at, seen.time.mono).len() as u64;
        if self.record(at).is_some() {
            let view = seen.view(at).ok_or_else(|| state("the lock has gone", at))?;
            let used_up = match view.holders.iter().map(|holder| holder.1).min() {
                None => view.counter,
                // Somebody who waited was granted in the same step: what was used up is not seen, but lies below.
                Some(granted) => (self.highest + 1).max(seen.base).min(granted - 1),
            };
            if used_up <= self.counter(at) {
                return Err((
                    Broken::Token,
                    format!("BREAK of {at:?} used up {used_up}, which is no new token"),
                ));
            }
            let record = self.record_mut(at);
            record.holders.clear();
            record.counter = used_up;
            self.good(at, used_up);
        }
        Ok(ended)
    }

    pub(crate) fn check(&self, at: Name, token: u64, now: i64) -> Reply {
        let Some(record) = self.record(at) else { return Reply::Refused(Why::NoRecord) };
        if token == record.counter || self.live(at, now).iter().any(|holder| holder.token == token) {
            return Reply::Number(record.counter);
        }
        Reply::Refused(if token > record.counter { Why::NeverIssued } else { Why::Stale })
    }

    pub(crate) fn disconnect(&mut self, id: u64) {
        self.waiters.retain(|waiter| waiter.id != id);
    }

    /// The earliest moment at which somebody who waits is served or gives up.
    pub(crate) fn next_due(&self, now: i64) -> Option<i64> {
        let lease_ends = |waiter: &Asked| self.live(waiter.at, now).iter().map(|h| h.ends).min();
        let served = self.waiters.iter().filter_map(lease_ends);
        let gives_up = self.waiters.iter().filter_map(Asked::until);
        let quarantine = (!self.waiters.is_empty()).then_some(self.grants_from);
        served.chain(gives_up).chain(quarantine).filter(|due| *due > now).min()
    }

    /// When the next of all live leases ends.
    pub(crate) fn next_end(&self, now: i64) -> Option<i64> {
        Name::ALL.into_iter().flat_map(|at| self.live(at, now)).map(|holder| holder.ends).min()
    }

    /// What timers do: those whose turn it is are served, then those whose time is over give up, and then their going
    /// may have made room.
    pub(crate) fn tick(&mut self, seen: &Seen<'_>) -> Result<(), Found> {
        for at in Name::ALL {
            self.serve(at, seen)?;
        }
        let now = seen.time.mono;
        let (over, waiting) = std::mem::take(&mut self.waiters)
            .into_iter()
            .partition(|waiter| waiter.until().is_some_and(|until| until <= now));
        self.waiters = waiting;
        over.iter().for_each(|waiter: &Asked| self.tell(waiter.id, Reply::NotGranted));
        for at in Name::ALL {
            self.serve(at, seen)?;
        }
        Ok(())
    }

    // ---- grants

    fn serve(&mut self, at: Name, seen: &Seen<'_>) -> Result<(), Found> {
        let now = seen.time.mono;
        while now >= self.grants_from
            && let Some(first) = self.waiters.iter().find(|waiter| waiter.at == at).cloned()
        {
            let held = self.holder(at, first.owner, now);
            if held.is_none() && !self.fits(at, first.kind, now) {
                break;
            }
            let alike = |w: &Asked| w.at == at && w.owner == first.owner && w.kind.alike(first.kind);
            let (same, others) = std::mem::take(&mut self.waiters).into_iter().partition(alike);
            self.waiters = others;
            let same: Vec<Asked> = same;
            let ttl_ms = same.iter().map(|waiter| waiter.ttl_ms).max().unwrap_or_default();
            let min = same.iter().filter_map(|waiter| waiter.min).max();
            let reply = match held {
                Some(holder) if !holder.kind.alike(first.kind) => Reply::Refused(Why::OtherMode),
                Some(_) => self.renew(at, first.owner, ttl_ms, min, seen)?,
                None => {
                    self.hand_overs += 1;
                    self.grant(&Asked { ttl_ms, min, ..first }, seen)?
                }
            };
            same.iter().for_each(|waiter| self.tell(waiter.id, reply.clone()));
        }
        Ok(())
    }

    fn grant(&mut self, asked: &Asked, seen: &Seen<'_>) -> Result<Reply, Found> {
        let Asked { id, at, owner, ttl_ms, kind, min, .. } = *asked;
        let token = seen
            .granted(id)
            .ok_or_else(|| (Broken::Answer, format!("request {id} should have been granted {at:?}")))?;
        self.may_be_granted(at, token, min, seen)?;
        let now = seen.time.mono;
        let ends = now + micros(ttl_ms);
        let record = self.record_mut(at);
        record.holders.retain(|holder| kind != Kind::Exclusive && now < holder.ends);
        record.holders.push(Holder { owner, token, kind, ends, length_ms: ttl_ms });
        record.counter = token;
        self.good(at, token);
        Ok(Reply::Granted { token, ttl_ms, renewed: false })
    }

    /// A token rises above all that this name has seen, is no lower than the clock and the proposal, and no higher
    /// than it has to be.
    fn may_be_granted(&self, at: Name, token: u64, min: Option<u64>, seen: &Seen<'_>) -> Result<(), Found> {
        let wrong =
            |what: String| Err((Broken::Token, format!("{at:?} was granted with token {token}: {what}")));
        let before = self.tokens_of(at).into_iter().chain([self.counter(at)]).max().unwrap_or(0);
        if token <= before {
            return wrong(format!("not above {before}, which this lock has seen"));
        }
        if token < seen.time.wall || min.is_some_and(|min| token < min) {
            return wrong(format!("below the clock {} or the proposal {min:?}", seen.time.wall));
        }
        // Locks that are granted at the same moment are granted in any order.
        let others = seen.told.iter().filter_map(|(id, _)| seen.granted(*id)).filter(|other| *other < token);
        let known = others.chain([self.highest]).max().unwrap_or(0);
        let enough = (known + 1).max(seen.base).max(min.unwrap_or(0));
        if token > enough {
            return wrong(format!("{enough} is enough"));
        }
        Ok(())
    }

    fn good(&mut self, at: Name, token: u64) {
        self.highest = self.highest.max(token);
        self.history.push((at, token));
    }

    fn holder_mut(&mut self, at: Name, owner: u8) -> &mut Holder {
        let holders = &mut self.record_mut(at).holders;
        holders.iter_mut().find(|holder| holder.owner == owner).expect("only for a holder")
    }

    fn renew(
        &mut self,
        at: Name,
        owner: u8,
        ttl_ms: u64,
        min: Option<u64>,
        seen: &Seen<'_>,
    ) -> Result<Reply, Found> {
        self.raise(at, owner, min, seen)?;
        let now = seen.time.mono;
        let holder = self.holder_mut(at, owner);
        if now + micros(ttl_ms) > holder.ends {
            (holder.ends, holder.length_ms) = (now + micros(ttl_ms), ttl_ms);
        }
        let left_ms = (holder.ends - now).unsigned_abs().div_ceil(1000);
        Ok(Reply::Granted { token: holder.token, ttl_ms: left_ms, renewed: true })
    }

    /// A holder's token rises to its proposal; to another new one if the proposal is not new.
    fn raise(&mut self, at: Name, owner: u8, min: Option<u64>, seen: &Seen<'_>) -> Result<(), Found> {
        let before = self.holder_mut(at, owner).token;
        let Some(min) = min.filter(|min| *min > before) else { return Ok(()) };
        let counter = self.counter(at);
        let token = if min > counter { min } else { seen.token_of(at, owner).unwrap_or(0) };
        if token <= counter {
            let what = format!("owner {owner} of {at:?} proposed {min} and has {token}, which is not new");
            return Err((Broken::Token, what));
        }
        self.holder_mut(at, owner).token = token;
        self.record_mut(at).counter = token;
        self.good(at, token);
        Ok(())
    }

    fn too_far(&self, at: Name, min: Option<u64>, seen: &Seen<'_>) -> bool {
        min.is_some_and(|min| min > (seen.base + PROPOSAL_US).max(self.counter(at)))
    }

    // ---- keys that come and go

    fn lose(&mut self, gone: impl Fn(Name) -> bool, reply: &Reply) {
        let (lost, stay) = std::mem::take(&mut self.waiters).into_iter().partition(|waiter| gone(waiter.at));
        self.waiters = stay;
        lost.iter().for_each(|waiter: &Asked| self.tell(waiter.id, reply.clone()));
    }

    fn take(&mut self, at: Name) -> Option<Record> {
        let place = self.records.iter().position(|(name, _)| *name == at)?;
        self.lose(|name| name == at, &Reply::LockLost);
        Some(self.records.swap_remove(place).1)
    }

    pub(crate) fn del(&mut self, at: Name) {
        self.take(at);
    }

    pub(crate) fn flush(&mut self) {
        self.records.clear();
        self.lose(|_| true, &Reply::LockLost);
    }

    pub(crate) fn swap_db(&mut self) {
        self.lose(|_| true, &Reply::LockLost);
        self.records.iter_mut().for_each(|(name, _)| name.db = 1 - name.db);
    }

    pub(crate) fn rename(&mut self, from: Name, to: Name) {
        if let Some(record) = self.take(from) {
            self.arrive(to, record);
        }
    }

    pub(crate) fn restore(&mut self, at: Name, owner: u8, ttl_ms: u64, token: u64, now: i64) {
        let ends = now + micros(ttl_ms);
        let holder = Holder { owner, token, kind: Kind::Exclusive, ends, length_ms: ttl_ms };
        self.arrive(at, Record { counter: token, holders: vec![holder] });
    }

    fn arrive(&mut self, at: Name, mut record: Record) {
        if let Some(stood) = self.take(at)
            && stood.counter > record.counter
        {
            record.counter = stood.counter;
            record.holders.clear();
        }
        self.good(at, record.counter);
        self.records.push((at, record));
    }

    /// An idle record may be dropped; a held one, or one that somebody waits for, may not.
    pub(crate) fn dropped(&mut self, at: Name, now: i64) -> Result<(), Found> {
        if !self.live(at, now).is_empty() || self.waiters.iter().any(|waiter| waiter.at == at) {
            return Err((Broken::State, format!("{at:?} was dropped as idle, and is in use")));
        }
        self.take(at).map(|_| ()).ok_or_else(|| state("it was dropped, and was not there", at))
    }

    // ---- disasters

    pub(crate) fn picture(&self, time: Time) -> Picture {
        Picture { records: self.records.clone(), time }
    }

    /// Another server goes on from that picture, and grants from then on.
    pub(crate) fn take_over(&mut self, picture: Picture, grants_from: i64) {
        self.lose(|_| true, &Reply::Demoted);
        self.records = picture.records;
        self.grants_from = grants_from;
    }

    /// The server starts again from that picture, at `time`: of each lease that was live then, it has what its wall clock
    /// says is left. One that was over stays over, whatever that clock says.
    pub(crate) fn restart(&mut self, picture: Picture, time: Time, grants_from: i64) {
        self.waiters.clear();
        self.records = picture.records;
        self.grants_from = grants_from;
        for (_, record) in &mut self.records {
            for holder in &mut record.holders {
                let left_then = holder.ends - picture.time.mono;
                let ends_wall = picture.time.wall.saturating_add_signed(left_then);
                let left = ends_wall.saturating_sub(time.wall).min(holder.length_ms * 1000);
                let left = if left_then > 0 { i64::try_from(left).expect("a lease") } else { 0 };
                holder.ends = time.mono + left;
            }
        }
    }

    /// Whether the locks are what they should be.
    pub(crate) fn compare(&self, seen: &Seen<'_>) -> Result<(), Found> {
        for (at, view) in seen.views {
            let expected = self.record(*at).map(|record| self.view(*at, record, seen.time.mono));
            if expected != *view {
                return Err((Broken::State, format!("{at:?} should be {expected:?} and is {view:?}")));
            }
        }
        Ok(())
    }

    fn view(&self, at: Name, record: &Record, now: i64) -> View {
        let live = self.live(at, now);
        let mut holders: Vec<_> = live.iter().map(|h| (h.owner, h.token, h.ends - now)).collect();
        holders.sort_unstable();
        View { counter: record.counter, holders }
    }

    /// Nobody waits for a lock that could be granted.
    pub(crate) fn nobody_waits_in_vain(&self, now: i64) -> Result<(), Found> {
        let first = |at: Name| self.waiters.iter().find(|waiter| waiter.at == at);
        let waits =
            Name::ALL.into_iter().filter_map(first).find(|waiter| self.fits(waiter.at, waiter.kind, now));
        match waits.filter(|_| now >= self.grants_from) {
            Some(waiter) => {
                Err((Broken::Timer, format!("request {} waits for a lock it could have", waiter.id)))
            }
            None => Ok(()),
        }
    }
}

fn state(what: &str, at: Name) -> Found {
    (Broken::State, format!("{at:?}: {what}"))
}
