//! Single stories of the protocol's machines, step by step: what the simulation meets by chance.
#![allow(clippy::unwrap_used, clippy::panic, clippy::arithmetic_side_effects, reason = "tests")]

use lockfence_client::quorum::attempt::{Attempt, Grant, Outcome, Patience};
use lockfence_client::quorum::hold::{Hold, Loss, Terms};
use lockfence_client::quorum::{
    Command, Effect, Failure, FailureKind, NodeId, Reply, SendId, Settings, Standing, Turn,
};
use lockfence_core::clock::{Instant, Now, Wall};
use lockfence_core::ids::Mode;
use lockfence_core::limits;

const TOKEN: u64 = 1_764_428_400_000_000;

/// One client of one node, and its clock.
struct Story {
    at: Instant,
    bits: u128,
}

impl Story {
    const fn new() -> Self {
        Self { at: Instant::from_micros(1_000_000), bits: 0 }
    }

    fn turn<T>(&mut self, step: impl FnOnce(&mut Turn<'_>) -> T) -> T {
        let now = Now { mono: self.at, wall: Wall::from_micros(TOKEN) };
        let bits = &mut self.bits;
        let mut draw = || {
            *bits += 1;
            *bits
        };
        step(&mut Turn { now, bits: &mut draw })
    }

    fn settings() -> Settings {
        Settings::new(1, 10_000)
    }

    /// A lock that is won at once, in that mode.
    fn won(&mut self, settings: Settings) -> Hold {
        let order = vec![NodeId(0)];
        let mut attempt = self.turn(|turn| Attempt::start(settings, order.clone(), Patience::None, 0, turn));
        let (first, _) = sent(|| attempt.effect()).pop().unwrap();
        self.turn(|turn| attempt.on_reply(turn, first, Reply::Granted { token: TOKEN }));
        let Some(Outcome::Won(grant)) = attempt.outcome() else { panic!("{attempt:?}") };
        let terms = Terms { renew: true, hold_until: None };
        self.turn(|turn| Hold::new(settings, order, &grant, terms, turn))
    }

    /// Why a lock in the mode `ours` is lost, when the node says that it is gone, and then who has it.
    fn loss(&mut self, ours: Mode, standing: Standing) -> Option<Loss> {
        let mut hold = self.won(Settings { mode: ours, ..Self::settings() });
        let (id, _) = self.renewal(&mut hold);
        self.turn(|turn| hold.on_reply(turn, id, Reply::Done(false)));
        let (look, command) = sent(|| hold.effect()).pop().unwrap();
        assert_eq!(command, Command::Look);
        self.turn(|turn| hold.on_reply(turn, look, Reply::Standing(standing)));
        hold.loss()
    }

    /// A lock that is won from the queue while the question whether the node is still there has no answer yet.
    fn won_while_probed(&mut self) -> Grant {
        let (settings, order) = (Self::settings(), vec![NodeId(0)]);
        let mut attempt = self.turn(|turn| Attempt::start(settings, order, Patience::Forever, 0, turn));
        let (first, _) = sent(|| attempt.effect()).pop().unwrap();
        let taken = Reply::Standing(Standing {
            owner: Some(b"other".to_vec().into()),
            ttl_ms: 9_000,
            ..Standing::default()
        });
        self.turn(|turn| attempt.on_reply(turn, first, taken));
        let (wait, command) = sent(|| attempt.effect()).pop().unwrap();
        assert!(matches!(command, Command::Acquire { wait_ms: Some(_), .. }), "{command:?}");
        self.at = attempt.deadline().unwrap();
        self.turn(|turn| attempt.on_time(turn));
        let (_, probe) = sent(|| attempt.effect()).pop().unwrap();
        assert!(matches!(probe, Command::Acquire { wait_ms: None, .. }), "{probe:?}");
        self.turn(|turn| attempt.on_reply(turn, wait, Reply::Granted { token: TOKEN }));
        let (round, _) = sent(|| attempt.effect()).pop().unwrap();
        self.turn(|turn| attempt.on_reply(turn, round, Reply::Granted { token: TOKEN }));
        let Some(Outcome::Won(grant)) = attempt.outcome() else { panic!("{attempt:?}") };
        grant
    }

    fn hold(&mut self, grant: &Grant) -> Hold {
        let terms = Terms { renew: true, hold_until: None };
        self.turn(|turn| Hold::new(Self::settings(), vec![NodeId(0)], grant, terms, turn))
    }

    /// The request of the next renewal.
    fn renewal(&mut self, hold: &mut Hold) -> (SendId, Command) {
        self.at = hold.deadline().unwrap();
        self.turn(|turn| hold.on_time(turn));
        sent(|| hold.effect()).pop().unwrap()
    }
}

/// The requests of the next renewal of a lock on three nodes.
fn renewals(story: &mut Story, hold: &mut Hold) -> [SendId; 3] {
    story.at = hold.deadline().unwrap();
    story.turn(|turn| hold.on_time(turn));
    let ids: Vec<SendId> = sent_to(|| hold.effect()).into_iter().map(|(id, _)| id).collect();
    ids.try_into().unwrap()
}

/// The requests, and where to.
fn sent_to(effect: impl FnMut() -> Option<Effect>) -> Vec<(SendId, NodeId)> {
    let send = |effect| if let Effect::Send { id, node, .. } = effect { Some((id, node)) } else { None };
    std::iter::from_fn(effect).filter_map(send).collect()
}

fn sent(mut effect: impl FnMut() -> Option<Effect>) -> Vec<(SendId, Command)> {
    let mut all = Vec::new();
    while let Some(effect) = effect() {
        if let Effect::Send { id, command, .. } = effect {
            all.push((id, command));
        }
    }
    all
}

/// What the round that won says of a node counts, not that an earlier request there has no answer yet: that lock would
/// be taken as missing at once, and lost as broken with nobody having touched it.
#[test]
fn a_lock_that_was_won_while_the_node_was_probed_is_renewed() {
    let mut story = Story::new();
    let grant = story.won_while_probed();
    let mut hold = story.hold(&grant);
    let (id, command) = story.renewal(&mut hold);
    assert!(matches!(command, Command::Extend { .. }), "{command:?}");
    story.turn(|turn| hold.on_reply(turn, id, Reply::Done(true)));
    assert_eq!(hold.loss(), None);
    assert!(hold.valid_until(story.at).unwrap() > grant.valid_until);
}

/// Where too few nodes are left nothing is taken any more: whoever broke the lock would find it held again.
#[test]
fn a_lock_that_is_lost_is_not_taken_again() {
    let mut story = Story::new();
    let grant = story.won_while_probed();
    let mut hold = story.hold(&grant);
    let (id, _) = story.renewal(&mut hold);
    story.turn(|turn| hold.on_reply(turn, id, Reply::Done(false)));
    let asked = sent(|| hold.effect());
    assert!(asked.iter().all(|(_, command)| *command == Command::Look), "{asked:?}");
    let (look, _) = asked.into_iter().next().unwrap();
    story.turn(|turn| hold.on_reply(turn, look, Reply::Standing(Standing::default())));
    assert_eq!(hold.loss(), Some(Loss::Broken));
}

/// Who holds the lock beside a reader, or as another of several, has not taken it from anybody: only a holder that shuts
/// this one out is named.
#[test]
fn a_holder_beside_this_one_is_not_named_as_who_took_the_lock() {
    let other = |mode| Standing { owner: Some(b"other".to_vec().into()), mode, ttl_ms: 9_000, waiters: 0 };
    let taken = Some(Loss::Taken { by: b"other".to_vec().into() });
    let (exclusive, shared, limit) = (Mode::Exclusive, Mode::Shared, Mode::Limit(3));
    for (ours, theirs, loss) in [
        (exclusive, Some(exclusive), &taken),
        (exclusive, Some(shared), &taken),
        (exclusive, None, &taken),
        (shared, Some(exclusive), &taken),
        (limit, Some(exclusive), &taken),
        (shared, Some(shared), &Some(Loss::Broken)),
        (shared, None, &Some(Loss::Broken)),
        (limit, Some(limit), &Some(Loss::Broken)),
        (limit, Some(shared), &Some(Loss::Broken)),
    ] {
        assert_eq!(Story::new().loss(ours, other(theirs)), *loss, "{ours:?}, and {theirs:?}");
    }
}

/// A node refuses a WAIT that is longer than it allows, and would be taken for one that cannot do it at all.
#[test]
fn the_longest_wait_is_as_long_as_a_node_allows() {
    let mut story = Story::new();
    let patience = Patience::Until(story.at.plus_us(u64::MAX));
    let mut attempt =
        story.turn(|turn| Attempt::start(Story::settings(), vec![NodeId(0)], patience, 0, turn));
    let (first, _) = sent(|| attempt.effect()).pop().unwrap();
    story.turn(|turn| attempt.on_reply(turn, first, Reply::Standing(Standing::default())));
    let (_, wait) = sent(|| attempt.effect()).pop().unwrap();
    let is_longest = |command| matches!(command, Command::Acquire { wait_ms: Some(limits::TTL_MS_MAX), .. });
    assert!(is_longest(wait), "{wait:?}");
}

/// The queue may be at another node than the first of the order. Whoever waits there must find the others free.
#[test]
fn the_node_of_the_queue_is_released_last() {
    let mut story = Story::new();
    let (settings, order) = (Settings::new(3, 10_000), (0..3).map(NodeId).collect::<Vec<_>>());
    let mut attempt = story.turn(|turn| Attempt::start(settings, order.clone(), Patience::Forever, 0, turn));
    let gone = || Reply::Failed(Failure::new(FailureKind::NotSent, "connection refused"));
    let taken = || Reply::Standing(Standing { waiters: 1, ttl_ms: 9_000, ..Standing::default() });
    let tried = sent_to(|| attempt.effect());
    for ((id, _), reply) in tried.into_iter().zip([gone(), taken(), taken()]) {
        story.turn(|turn| attempt.on_reply(turn, id, reply));
    }
    let [(wait, node)] = sent_to(|| attempt.effect())[..] else { panic!("{attempt:?}") };
    assert_eq!(node, NodeId(1), "the first of those that answer");
    story.turn(|turn| attempt.on_reply(turn, wait, Reply::Granted { token: TOKEN }));
    for (id, _) in sent_to(|| attempt.effect()) {
        story.turn(|turn| attempt.on_reply(turn, id, Reply::Granted { token: TOKEN }));
    }
    let Some(Outcome::Won(grant)) = attempt.outcome() else { panic!("{attempt:?}") };
    let terms = Terms { renew: true, hold_until: None };
    let mut hold = story.turn(|turn| Hold::new(settings, order, &grant, terms, turn));
    story.turn(|turn| hold.release(turn));
    let Some(Effect::GiveBack(mut give_back)) = hold.effect() else { panic!("{hold:?}") };
    story.turn(|turn| give_back.on_time(turn));
    let first: Vec<NodeId> = sent_to(|| give_back.effect()).into_iter().map(|(_, node)| node).collect();
    assert_eq!(first, [NodeId(0), NodeId(2)]);
}

/// Something on the way may drop the connection of a WAIT without a word to either side, and the node's keep-alive end it
/// there. The node is reachable, and knows of nobody who waits.
#[test]
fn a_wait_that_the_node_knows_nothing_of_is_asked_for_again() {
    for waiters in [0, 1] {
        let mut story = Story::new();
        let (settings, order) = (Story::settings(), vec![NodeId(0)]);
        let mut attempt = story.turn(|turn| Attempt::start(settings, order, Patience::Forever, 0, turn));
        let taken = |waiters| Reply::Standing(Standing { waiters, ttl_ms: 9_000, ..Standing::default() });
        let (first, _) = sent(|| attempt.effect()).pop().unwrap();
        story.turn(|turn| attempt.on_reply(turn, first, taken(0)));
        let (wait, _) = sent(|| attempt.effect()).pop().unwrap();
        story.at = attempt.deadline().unwrap();
        story.turn(|turn| attempt.on_time(turn));
        let (probe, _) = sent(|| attempt.effect()).pop().unwrap();
        story.turn(|turn| attempt.on_reply(turn, probe, taken(waiters)));
        let effects: Vec<Effect> = std::iter::from_fn(|| attempt.effect()).collect();
        if waiters > 0 {
            assert_eq!(effects, []);
            continue;
        }
        let [Effect::Abandon(id), Effect::GiveBack(_), Effect::Send { command, .. }] = &effects[..] else {
            panic!("{effects:?}")
        };
        assert_eq!(*id, wait);
        assert!(matches!(command, Command::Acquire { wait_ms: Some(0), .. }), "{command:?}");
    }
}

/// Three nodes, two renewals under way, and then all leases are broken. What the nodes said before is told late, and in
/// between two of them are asked for the lease again: together they prove nothing of the time before.
#[test]
fn what_was_told_late_does_not_make_a_node_that_was_asked_again_count() {
    let mut story = Story::new();
    let (settings, order) = (Settings::new(3, 12_000), (0..3).map(NodeId).collect::<Vec<_>>());
    let mut attempt = story.turn(|turn| Attempt::start(settings, order.clone(), Patience::None, 0, turn));
    for (id, _) in sent_to(|| attempt.effect()) {
        story.turn(|turn| attempt.on_reply(turn, id, Reply::Granted { token: TOKEN }));
    }
    let Some(Outcome::Won(grant)) = attempt.outcome() else { panic!("{attempt:?}") };
    let terms = Terms { renew: true, hold_until: None };
    let mut hold = story.turn(|turn| Hold::new(settings, order, &grant, terms, turn));
    for third in [Reply::Granted { token: TOKEN }, Reply::Done(true)] {
        // The third node's grant came after the lock was won: it is asked again, and counts from then on.
        for (id, reply) in
            renewals(&mut story, &mut hold).into_iter().zip([Reply::Done(true), Reply::Done(true), third])
        {
            story.turn(|turn| hold.on_reply(turn, id, reply));
        }
    }
    let [_, early_1, early_2] = renewals(&mut story, &mut hold);
    let [late_0, late_1, late_2] = renewals(&mut story, &mut hold);
    let broken_at = story.at;
    story.at = story.at.plus_ms(1);
    let mut tell = |hold: &mut Hold, id, reply| story.turn(|turn| hold.on_reply(turn, id, reply));

    tell(&mut hold, late_0, Reply::Done(false));
    let [(again, NodeId(0))] = sent_to(|| hold.effect())[..] else { panic!("{hold:?}") };
    tell(&mut hold, again, Reply::Granted { token: TOKEN + 1 });
    tell(&mut hold, early_1, Reply::Done(true));
    tell(&mut hold, early_2, Reply::Done(true));
    tell(&mut hold, late_1, Reply::Done(false));
    for (again, _) in sent_to(|| hold.effect()) {
        tell(&mut hold, again, Reply::Granted { token: TOKEN + 1 });
    }
    tell(&mut hold, late_2, Reply::Done(true));
    while let Some(at) = hold.deadline() {
        story.at = at;
        story.turn(|turn| hold.on_time(turn));
        for (id, node) in sent_to(|| hold.effect()) {
            story.turn(|turn| hold.on_reply(turn, id, Reply::Done(node != NodeId(2))));
        }
        let until = hold.valid_until(story.at);
        assert!(until.is_none_or(|until| until <= settings.lease_end(broken_at)), "{hold:?}");
    }
}

/// One node is down, another has just started and is ahead, so that the third cannot be raised to its token. Nobody holds
/// the lock: that is no reason to name a holder, nor to say that it is held.
#[test]
fn a_node_that_cannot_be_raised_is_no_holder() {
    for patience in [Patience::None, Patience::Until(Instant::from_micros(1_000_001))] {
        let mut story = Story::new();
        let order = vec![NodeId(0), NodeId(1), NodeId(2)];
        let settings = Settings::new(3, 10_000);
        let mut attempt = story.turn(|turn| Attempt::start(settings, order, patience, 0, turn));
        let asked: Vec<SendId> = sent(|| attempt.effect()).into_iter().map(|(id, _)| id).collect();
        let refused = |kind| Reply::Failed(Failure::new(kind, "no"));
        story.turn(|turn| attempt.on_reply(turn, asked[2], refused(FailureKind::NotSent)));
        story.turn(|turn| attempt.on_reply(turn, asked[0], Reply::Granted { token: TOKEN + 30_000_000 }));
        story.turn(|turn| attempt.on_reply(turn, asked[1], Reply::Granted { token: TOKEN }));
        let (confirm, command) = sent(|| attempt.effect()).pop().unwrap();
        assert!(matches!(command, Command::Extend { .. }), "{command:?}");
        story.at = Instant::from_micros(1_000_001);
        story.turn(|turn| attempt.on_reply(turn, confirm, refused(FailureKind::TooFarAhead)));
        story.turn(|turn| attempt.on_time(turn));
        let Some(Outcome::NoQuorum(causes)) = attempt.outcome() else { panic!("{patience:?}: {attempt:?}") };
        assert_eq!(causes[NodeId(1)].as_ref().map(|cause| cause.kind), Some(FailureKind::TooFarAhead));
    }
}

/// The queue was at a stand-in, and is at the first node again. Whoever waited at the stand-in would stay there for ever,
/// beside the queue, if it went by what it had seen when it came.
#[test]
fn whoever_must_queue_again_queues_where_the_others_are() {
    let taken = |waiters| Reply::Standing(Standing { waiters, ttl_ms: 9_000, ..Standing::default() });
    let failed = |kind| Reply::Failed(Failure::new(kind, "…"));
    // The slice is over, or the server took everybody from its queue; what the nodes say then, and where it queues.
    for (ended, first, second, queues_at) in [
        (taken(0), taken(2), taken(0), 0),
        (taken(0), taken(0), taken(0), 0),
        (taken(2), taken(0), taken(2), 1),
        (failed(FailureKind::AskAgain), taken(0), taken(0), 0),
        (failed(FailureKind::AskAgain), failed(FailureKind::NotSent), taken(0), 1),
    ] {
        let mut story = Story::new();
        let settings = Settings { wait_slice_ms: Some(2_000), ..Settings::new(3, 10_000) };
        let order = (0..3).map(NodeId).collect::<Vec<_>>();
        let mut attempt = story.turn(|turn| Attempt::start(settings, order, Patience::Forever, 0, turn));
        let tried = sent_to(|| attempt.effect());
        for ((id, _), reply) in tried.into_iter().zip([failed(FailureKind::NotSent), taken(2), taken(0)]) {
            story.turn(|turn| attempt.on_reply(turn, id, reply));
        }
        let [(wait, NodeId(1))] = sent_to(|| attempt.effect())[..] else { panic!("{attempt:?}") };
        story.turn(|turn| attempt.on_reply(turn, wait, ended.clone()));
        let asked = sent_to(|| attempt.effect());
        assert_eq!(asked.len(), 3, "{ended:?}: {asked:?}");
        for ((id, _), reply) in asked.into_iter().zip([first, second, taken(0)]) {
            story.turn(|turn| attempt.on_reply(turn, id, reply));
        }
        let [(_, node)] = sent_to(|| attempt.effect())[..] else { panic!("{attempt:?}") };
        assert_eq!(node, NodeId(queues_at), "{ended:?}");
    }
}

/// What a node that takes nobody into its queue is asked in a minute. `to_wait` is its answer to a WAIT.
fn asked_in_a_minute(to_wait: &Reply) -> u32 {
    let (mut story, settings, mut asked) = (Story::new(), Story::settings(), 0);
    let until = story.at.plus_ms(60_000);
    let mut attempt =
        story.turn(|turn| Attempt::start(settings, vec![NodeId(0)], Patience::Forever, 0, turn));
    while story.at < until && asked < 10_000 {
        let requests = sent(|| attempt.effect());
        if requests.is_empty() {
            story.at = attempt.deadline().unwrap().max(story.at);
            story.turn(|turn| attempt.on_time(turn));
        }
        for (id, command) in requests {
            asked += 1;
            let waits = matches!(command, Command::Acquire { wait_ms: Some(_), .. });
            let taken = Reply::Standing(Standing { waiters: 1, ..Standing::default() });
            let reply = if waits { to_wait.clone() } else { taken };
            story.at = story.at.plus_us(100);
            story.turn(|turn| attempt.on_reply(turn, id, reply));
        }
    }
    asked
}

#[test]
fn a_node_that_sends_everybody_away_is_not_asked_as_fast_as_it_answers() {
    let lost = Reply::Failed(Failure::new(FailureKind::AskAgain, "LOCKLOST"));
    for to_wait in [lost, Reply::Standing(Standing::default()), Reply::Granted { token: TOKEN }] {
        let asked = asked_in_a_minute(&to_wait);
        assert!((10..600).contains(&asked), "{asked} times: {to_wait:?}");
    }
}
