//! A primary, its replica, the clocks, and what can befall them.

use lockfence_core::clock::{Instant, Now, Ttl, Wall};
use lockfence_core::codec::write_lock;
use lockfence_core::event::{Event, Lease};
use lockfence_core::ids::{Mode, Owner, Token};
use lockfence_core::lock::Lock;
use lockfence_core::owner::OwnerName;
use lockfence_core::request::{Acquire, Break, Wait};
use lockfence_core::token::TokenSource;

use super::server::{Rdb, Sent, Server, number};
use super::step::{Asked, Kind, Name, Reply, Source, Time, Told, View, micros};

/// The replica's own clock began so much earlier, µs: nothing may depend on where a process's clock began.
const REPLICA_CLOCK_US: i64 = 7_777_777_777;

/// The owners of these worlds: one of each form in which a record keeps names, and two of the most common one.
const OWNERS: [&[u8]; 4] = [
    b"A",
    b"9f3c51d0a72b71e88c04d1f6a0b3c5e7",
    b"9f3c51d0a72b71e88c04d1f6a0b3c5e8",
    b"web-17.example.org:4242/the second thread",
];

pub(crate) fn owner(number: u8) -> &'static [u8] {
    OWNERS[usize::from(number)]
}

fn number_of(owner: &[u8]) -> u8 {
    OWNERS.iter().zip(0..).find(|(name, _)| **name == owner).expect("an owner of these worlds").1
}

pub(crate) fn now(time: Time) -> Now {
    Now { mono: Instant::from_micros(time.mono), wall: Wall::from_micros(time.wall) }
}

fn mode(kind: Kind) -> Mode {
    match kind {
        Kind::Exclusive => Mode::Exclusive,
        Kind::Shared => Mode::Shared,
        Kind::Limit(n) => Mode::Limit(n),
    }
}

fn ttl(ms: u64) -> Ttl {
    Ttl::from_ms(ms).expect("steps have valid leases")
}

pub(crate) struct World {
    pub(crate) time: Time,
    primary: Server,
    /// How far the primary's own clock is ahead of [`World::time`]: it changes when the replica takes over.
    primary_clock: i64,
    replica: Server,
    replica_clock: i64,
    /// What the replica has not got yet.
    pending: Vec<Sent>,
    cut: bool,
    /// Whether the replica can catch up from `pending` and be in the same state to the byte.
    needs_full_sync: bool,
    quarantine_ms: u64,
    saved: Rdb,
}

impl World {
    pub(crate) fn new(time: Time) -> Self {
        let mut world = Self {
            time,
            primary: Server::start(TokenSource::Clock, 0, now(time)),
            primary_clock: 0,
            replica: Server::start(TokenSource::Clock, 0, now(time)),
            replica_clock: 0,
            pending: Vec::new(),
            cut: false,
            needs_full_sync: false,
            quarantine_ms: 0,
            saved: Rdb::default(),
        };
        world.attach_replica();
        world
    }

    fn now(&self) -> Now {
        now(Time { mono: self.time.mono + self.primary_clock, ..self.time })
    }

    fn replica_now(&self) -> Now {
        now(Time { mono: self.time.mono + self.replica_clock, ..self.time })
    }

    /// The restart floor, which INFO shows.
    pub(crate) fn floor(&self) -> u64 {
        self.primary.issuer.floor().token
    }

    /// Whether this server has issued or seen a token since it lost everything.
    pub(crate) fn has_issued(&self) -> bool {
        self.primary.issuer.high() > 0
    }

    pub(crate) fn next_due(&self) -> Option<i64> {
        self.primary.next_due().map(|due| due.micros() - self.primary_clock)
    }

    /// When the quarantine that `quarantine_ms` asked for ends.
    pub(crate) fn grants_from(&self) -> i64 {
        if self.quarantine_ms == 0 { i64::MIN } else { self.time.mono + micros(self.quarantine_ms) }
    }

    pub(crate) fn waiting(&self) -> Vec<u64> {
        self.primary.waiting()
    }

    pub(crate) fn take_told(&mut self) -> Vec<Told> {
        std::mem::take(&mut self.primary.told)
    }

    pub(crate) fn take_dropped(&mut self) -> Vec<Name> {
        std::mem::take(&mut self.primary.dropped)
    }

    pub(crate) fn view(&self, at: Name) -> Option<View> {
        let lock = self.primary.lock(at)?;
        let now = self.now().mono;
        let holder = |holder: lockfence_core::lock::Holder<'_>| {
            (number_of(&holder.owner.bytes()), holder.token, holder.lease.ends.micros() - now.micros())
        };
        let mut holders: Vec<_> = lock.live(now).map(holder).collect();
        holders.sort_unstable();
        Some(View { counter: lock.counter(), holders })
    }

    pub(crate) fn acquire(&mut self, asked: &Asked) {
        let Asked { id, at, ttl_ms, wait_ms, kind, min, .. } = *asked;
        let who = owner(asked.owner);
        let mut request = Acquire::new(Owner::new(who).expect("an owner"), ttl(ttl_ms));
        request.wait = wait_ms.map(|ms| if ms == 0 { Wait::Forever } else { Wait::Ms(ms) });
        request.mode = mode(kind);
        request.min_token = min.and_then(Token::new);
        let now = self.now();
        self.primary.acquire(id, at, &request, now);
        self.replicate();
    }

    pub(crate) fn release(&mut self, id: u64, at: Name, who: u8) {
        let (who, now) = (owner(who), self.now());
        let who = Owner::new(who).expect("an owner");
        self.primary.command(id, at, now, |turn| Ok(u64::from(turn.release(who))));
        self.replicate();
    }

    pub(crate) fn extend(&mut self, id: u64, at: Name, who: u8, ttl_ms: u64, min: Option<u64>) {
        let (who, now) = (owner(who), self.now());
        let who = Owner::new(who).expect("an owner");
        let min = min.and_then(Token::new);
        self.primary.command(id, at, now, |turn| turn.extend(who, ttl(ttl_ms), min).map(u64::from));
        self.replicate();
    }

    pub(crate) fn break_lock(&mut self, id: u64, at: Name, max: Option<u64>) {
        let now = self.now();
        let request = Break { max_token: max.and_then(Token::new) };
        self.primary.command(id, at, now, |turn| Ok(turn.break_holders(request)));
        self.replicate();
    }

    pub(crate) fn check(&self, at: Name, token: u64) -> Reply {
        let token = Token::new(token).expect("a token");
        let refused = Err(lockfence_core::error::Refusal::NoRecord);
        number(self.primary.lock(at).map_or(refused, |lock| lock.check(token, self.now().mono)))
    }

    pub(crate) fn disconnect(&mut self, id: u64) {
        let now = self.now();
        self.primary.disconnect(id, now);
    }

    pub(crate) fn tick(&mut self) {
        let now = self.now();
        self.primary.tick(now);
        self.replicate();
    }

    pub(crate) fn del(&mut self, at: Name) {
        self.carry_out(Sent::Del(at));
    }

    pub(crate) fn flush(&mut self) {
        self.carry_out(Sent::FlushAll);
    }

    pub(crate) fn rename(&mut self, from: Name, to: Name) {
        self.carry_out(Sent::Rename(from, to));
    }

    pub(crate) fn swap_db(&mut self) {
        self.carry_out(Sent::SwapDb);
    }

    /// A lock that is held elsewhere arrives here.
    pub(crate) fn restore(&mut self, at: Name, who: u8, ttl_ms: u64, token: u64) {
        let there = now(Time { mono: -5, ..self.time });
        let mut lock = Lock::default();
        lock.apply(&Event::Granted {
            owner: OwnerName::new(owner(who)),
            token,
            mode: Mode::Exclusive,
            at: there.mono,
            lease: Lease { ends: there.mono.plus_ms(ttl_ms), length_ms: ttl_ms },
        });
        let mut bytes = Vec::new();
        write_lock(&mut bytes, &lock, there);
        self.carry_out(Sent::Restore(at, bytes));
    }

    fn carry_out(&mut self, what: Sent) {
        let now = self.now();
        self.primary.carry_out(&what, now);
        self.primary.sent.push(what);
        self.replicate();
    }

    pub(crate) fn set_clock(&mut self, us: i64) {
        self.time.wall = self.time.wall.saturating_add_signed(us);
        self.needs_full_sync |= self.cut;
    }

    fn replicate(&mut self) {
        self.pending.append(&mut self.primary.sent);
        if !self.cut {
            self.catch_up();
        }
    }

    fn catch_up(&mut self) {
        let now = self.replica_now();
        for sent in std::mem::take(&mut self.pending) {
            self.replica.carry_out(&sent, now);
        }
    }

    /// A new replica, with a copy of everything.
    fn attach_replica(&mut self) {
        self.replica_clock = self.primary_clock + REPLICA_CLOCK_US;
        let mut replica = Server::start(TokenSource::Clock, self.quarantine_ms, self.replica_now());
        replica.load(&self.primary.save(self.now()), self.replica_now());
        self.replica = replica;
        self.pending.clear();
        (self.cut, self.needs_full_sync) = (false, false);
    }

    pub(crate) fn cut(&mut self) {
        self.cut = true;
    }

    pub(crate) fn heal(&mut self) {
        let plain = |sent: &Sent| matches!(sent, Sent::Log(..) | Sent::Del(_) | Sent::FlushAll);
        if self.cut && (self.needs_full_sync || !self.pending.iter().all(plain)) {
            self.attach_replica();
        }
        self.cut = false;
        self.catch_up();
    }

    pub(crate) fn promote(&mut self, skew_us: i64) {
        self.primary.demote();
        let told = self.take_told();
        self.set_clock(skew_us);
        self.primary_clock = self.replica_clock;
        let now = self.now();
        self.replica.begin(now);
        std::mem::swap(&mut self.primary, &mut self.replica);
        self.primary.told = told;
        self.attach_replica();
    }

    pub(crate) fn save(&mut self) {
        self.saved = self.primary.save(self.now());
    }

    pub(crate) fn restart(&mut self, from: Source, down_us: i64, skew_us: i64, quarantine_ms: u64) {
        let (last, rewritten) = (self.primary.save(self.now()), self.primary.rewrite(self.now()));
        self.time.mono += down_us;
        self.time.wall = self.time.wall.saturating_add_signed(down_us + skew_us);
        self.quarantine_ms = quarantine_ms;
        let now = self.now();
        let mut server = Server::start(TokenSource::Clock, quarantine_ms, now);
        match from {
            Source::Rdb => server.load(&last, now),
            Source::LastSave => server.load(&self.saved, now),
            Source::Nothing => {}
            Source::Aof => {
                rewritten.iter().for_each(|effect| server.carry_out(effect, now));
                server.begin(now);
            }
        }
        self.primary = server;
        self.attach_replica();
    }

    /// The first lock whose record on the replica differs from the primary's, and how.
    pub(crate) fn replica_differs(&self) -> Option<String> {
        if self.cut {
            return None;
        }
        let names = Name::ALL.into_iter().chain(self.replica.names());
        for at in names {
            let here = self.primary.lock(at).map(|lock| fixed(lock, self.now()));
            let there = self.replica.lock(at).map(|lock| fixed(lock, self.replica_now()));
            if here != there {
                let [here, there] = [self.primary.lock(at), self.replica.lock(at)];
                return Some(format!("{at:?} is {here:?}, on the replica {there:?}"));
            }
        }
        None
    }
}

/// Each holder in a record, also those whose lease is over, and its token.
type Names = Vec<(Box<[u8]>, u64)>;

/// A record's bytes, with what may differ between two servers made the same: when a lease ended that is over. (Whoever
/// reads a lease that is over only knows that it is.)
fn fixed(lock: &Lock, now: Now) -> (Names, Vec<u8>) {
    let names = lock.holders().map(|holder| ((*holder.owner.bytes()).into(), holder.token)).collect();
    let over = lock.holders().filter(|holder| !holder.live(now.mono));
    let mut fixed = lock.clone();
    for holder in over {
        fixed.apply(&Event::Ended { owner: holder.owner, at: now.mono });
    }
    if fixed.holder_count() == 0 {
        // A grant that ends at once: now it is free since now.
        let lease = Lease { ends: now.mono, length_ms: 1 };
        let (owner, token, at) = (OwnerName::new(b"x"), fixed.counter(), now.mono);
        fixed.apply(&Event::Granted { owner, token, mode: Mode::Exclusive, at, lease });
        fixed.apply(&Event::Ended { owner, at });
    }
    let mut bytes = Vec::new();
    write_lock(&mut bytes, &fixed, now);
    (names, bytes)
}
