//! A state of the world, and the steps that lead from one to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lockfence_client::quorum::{Command, Effect, Failure, FailureKind, NodeId, Reply, SendId};
use lockfence_core::clock::Now;

use crate::client::{ATTEMPT, Client, Effects, Step};
use crate::node::{Answers, Asked, Node};
use crate::setup::{Chances, STEP_US, Setup, at};

/// A request: of which client, of which of its machines, which one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    client: usize,
    machine: u8,
    id: SendId,
}

/// What is on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Message {
    Request(NodeId, Command),
    Reply(Reply),
}

/// Whatever is on its way may arrive at any time from now on, in any order, or never: so a lost message needs no step of
/// its own. The same goes for a timer: it may be late, as if the program had stood still.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) tick: u64,
    pub(crate) nodes: [Arc<Node>; 3],
    pub(crate) clients: [Arc<Client>; 2],
    messages: BTreeMap<Key, Message>,
    /// Connections of abandoned waits whose end has not arrived.
    closing: BTreeSet<(Key, NodeId)>,
    left: Chances,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Begin(usize),
    Release(usize),
    Timer(usize),
    /// A request or a reply arrives.
    Arrives(Key),
    /// A request arrives, and will do so again.
    Doubles(Key),
    /// The connection breaks; the request is still on its way.
    Breaks(Key),
    /// A node learns that a connection was closed.
    Closed(Key, NodeId),
    NodeTimer(usize),
    /// Whoever had the lock at the beginning releases it.
    Leaves(usize),
    Forgets(usize),
    Break(usize),
    BreakAll,
    StepWall,
    Tick,
}

impl State {
    pub(crate) fn new(setup: &Setup) -> Self {
        Self {
            tick: 0,
            nodes: [0, 1, 2].map(|node| {
                let it = Node::new(setup.counter(node as u64), setup);
                Arc::new(if setup.taken[node] { it.taken() } else { it })
            }),
            clients: Default::default(),
            messages: BTreeMap::new(),
            closing: BTreeSet::new(),
            left: setup.chances,
        }
    }

    pub(crate) fn client_now(&self, setup: &Setup, client: usize) -> Now {
        let steps = self.clients[client].steps;
        let now = at(self.tick, steps);
        if !setup.wall_for_validity {
            return now;
        }
        Now { mono: at(self.tick, 0).mono.minus_us(u64::from(steps) * STEP_US), ..now }
    }

    fn node_now(&self) -> Now {
        at(self.tick, 0)
    }

    /// Whether that client takes the lock as held.
    pub(crate) fn holds(&self, setup: &Setup, client: usize) -> bool {
        self.clients[client].holds_until(self.client_now(setup, client)).is_some()
    }

    /// All that can happen next.
    pub(crate) fn actions(&self, setup: &Setup, actions: &mut Vec<Action>) {
        if self.is_decided(setup) {
            return;
        }
        for (client, it) in self.clients.iter().enumerate() {
            let now = self.client_now(setup, client);
            if !it.began && self.may_begin(setup, client) {
                actions.push(Action::Begin(client));
            }
            if setup.manners[client].releases && it.holds_until(now).is_some() {
                actions.push(Action::Release(client));
            }
            if it.deadline().is_some_and(|at| at <= now.mono) {
                actions.push(Action::Timer(client));
            }
        }
        for (key, message) in &self.messages {
            actions.push(Action::Arrives(*key));
            if let Message::Request(..) = message {
                if self.left.doubles > 0 {
                    actions.push(Action::Doubles(*key));
                }
                if self.left.cuts > 0 && self.awaits(setup, *key) {
                    actions.push(Action::Breaks(*key));
                }
            }
        }
        let closed = self.closing.iter().filter(|(key, _)| !self.messages.contains_key(key));
        actions.extend(closed.map(|(key, node)| Action::Closed(*key, *node)));
        self.faults(actions);
        if self.tick < setup.ticks {
            actions.push(Action::Tick);
        }
    }

    /// Where clients are alike the first begins first: what would come of it otherwise is the same, names aside.
    fn may_begin(&self, setup: &Setup, client: usize) -> bool {
        let first = &self.clients[0];
        let may_second = if setup.in_turn { first.granted.is_some() } else { first.began || !setup.alike() };
        client == 0 || (setup.contenders == 2 && may_second)
    }

    /// Whether no rule can be broken any more: whoever has not won will not, and whoever has won no longer holds.
    fn is_decided(&self, setup: &Setup) -> bool {
        let holds = [0, 1].map(|client| self.holds(setup, client));
        if setup.chances.breaks_all > 0 {
            return self.left.breaks_all == 0
                && (0..2).all(|client| !holds[client] || self.clients[client].broken.is_none());
        }
        let over = self.clients.iter().all(|client| client.granted.is_some()) && holds != [true; 2];
        over || self.clients.iter().any(|client| client.lost)
    }

    fn faults(&self, actions: &mut Vec<Action>) {
        for (node, it) in self.nodes.iter().enumerate() {
            if it.is_due(self.node_now()) {
                actions.push(Action::NodeTimer(node));
            }
            if it.is_taken() {
                actions.push(Action::Leaves(node));
            }
            if self.left.crashes > 0 {
                actions.push(Action::Forgets(node));
            }
            if self.left.breaks > 0 {
                actions.push(Action::Break(node));
            }
        }
        if self.left.breaks_all > 0 {
            actions.push(Action::BreakAll);
        }
        if self.left.steps > 0 {
            actions.push(Action::StepWall);
        }
    }

    /// What comes of an action.
    pub(crate) fn after(&self, setup: &Setup, action: Action) -> Self {
        let mut state = self.clone();
        match action {
            Action::Begin(client) => state.client(setup, client, Client::begin),
            Action::Release(client) => state.client(setup, client, Client::release),
            Action::Timer(client) => state.client(setup, client, Client::on_time),
            Action::Arrives(key) => state.arrives(setup, key),
            Action::Doubles(key) => {
                state.left.doubles -= 1;
                if let Some(Message::Request(node, command)) = state.messages.get(&key).cloned() {
                    let _ = state.at_node(setup, key, node, command);
                }
            }
            Action::Breaks(key) => {
                state.left.cuts -= 1;
                state.reply(setup, key, &Reply::Failed(Failure::new(FailureKind::Unknown, "")));
            }
            Action::Closed(key, node) => {
                state.closing.remove(&(key, node));
                state.node(setup, node.0, |node, now, answers| node.close(key, now, answers));
            }
            Action::NodeTimer(node) => state.node(setup, node, Node::serve),
            Action::Leaves(node) => state.node(setup, node, Node::left),
            Action::Forgets(node) => {
                state.left.crashes -= 1;
                state.node(setup, node, |node, now, _| node.forget(setup, now));
            }
            Action::Break(node) => {
                state.left.breaks -= 1;
                state.node(setup, node, Node::break_lock);
            }
            Action::BreakAll => state.break_all(setup),
            Action::StepWall => {
                state.left.steps -= 1;
                Arc::make_mut(&mut state.clients[0]).steps += 1;
            }
            Action::Tick => state.tick(),
        }
        let stepped = match action {
            Action::Begin(client) | Action::Release(client) | Action::Timer(client) => Some(client),
            Action::Arrives(key) | Action::Breaks(key) => Some(key.client),
            _ => None,
        };
        state.tidy(setup, stepped);
        state
    }

    /// Whether a confirm is on its way.
    pub(crate) fn confirms(&self) -> bool {
        let raises =
            |it: &Message| matches!(it, Message::Request(_, Command::Extend { min_token: Some(_), .. }));
        self.messages.values().any(raises)
    }

    fn tick(&mut self) {
        self.tick += 1;
        let now = self.node_now();
        self.nodes.iter_mut().for_each(|node| Arc::make_mut(node).tidy(now));
    }

    /// An ACQUIRE that is still on its way then may be granted afterwards, and nobody can tell: that is not looked at.
    fn break_all(&mut self, setup: &Setup) {
        self.left.breaks_all -= 1;
        for client in 0..self.clients.len() {
            let now = self.client_now(setup, client);
            let comes = self.messages.iter().any(|(key, it)| {
                key.client == client && matches!(it, Message::Request(_, Command::Acquire { .. }))
            });
            if self.clients[client].holds_until(now).is_some() && !comes {
                Arc::make_mut(&mut self.clients[client]).broken = Some(now.mono.plus_ms(setup.ttl_ms()));
            }
        }
        for node in 0..self.nodes.len() {
            self.node(setup, node, Node::break_lock);
        }
    }

    fn step<'s>(&self, setup: &'s Setup, client: usize) -> Step<'s> {
        Step { setup, client, now: self.client_now(setup, client) }
    }

    fn client(&mut self, setup: &Setup, client: usize, work: impl FnOnce(&mut Client, Step<'_>) -> Effects) {
        let step = self.step(setup, client);
        let effects = work(Arc::make_mut(&mut self.clients[client]), step);
        for (machine, effect) in effects {
            self.effect(client, machine, effect);
        }
    }

    fn effect(&mut self, client: usize, machine: u8, effect: Effect) {
        match effect {
            Effect::Send { id, node, command, .. } => {
                self.note(client, machine, command);
                self.messages.insert(Key { client, machine, id }, Message::Request(node, command));
            }
            Effect::Abandon(id) => {
                let key = Key { client, machine, id };
                let on_its_way = self.messages.get(&key).and_then(|message| match message {
                    Message::Request(node, _) => Some(*node),
                    Message::Reply(_) => None,
                });
                let waits = |node: &&Arc<Node>| node.waiting.iter().any(|waiting| waiting.key == key);
                let node = on_its_way.or_else(|| self.nodes.iter().position(|node| waits(&node)).map(NodeId));
                self.closing.extend(node.map(|node| (key, node)));
            }
            Effect::GiveBack(_) => {}
        }
    }

    /// Where a round begins: the highest token that was confirmed before.
    fn note(&mut self, client: usize, machine: u8, command: Command) {
        if let Command::Acquire { min_token: Some(_), .. } = command
            && machine == ATTEMPT
        {
            let other = self.clients[1 - client].granted;
            Arc::make_mut(&mut self.clients[client]).above = other.map_or(0, |granted| granted.token);
        }
    }

    /// Forgets what is on its way and will change nothing.
    fn tidy(&mut self, setup: &Setup, stepped: Option<usize>) {
        let idle: Vec<Key> = self
            .messages
            .iter()
            .filter(|(key, it)| self.is_idle(setup, stepped, **key, it))
            .map(|(key, _)| *key)
            .collect();
        for key in idle {
            self.messages.remove(&key);
        }
    }

    fn is_idle(&self, setup: &Setup, stepped: Option<usize>, key: Key, message: &Message) -> bool {
        // Whoever waits or renews may ask again by the same name.
        let again = setup.manners[key.client].waits || setup.manners[key.client].renews;
        let (node, owner) = match message {
            Message::Reply(_) => return stepped == Some(key.client) && !self.awaits(setup, key),
            Message::Request(_, Command::Look) => return !self.awaits(setup, key),
            Message::Request(node, Command::Release { owner } | Command::Extend { owner, .. }) if !again => {
                (*node, *owner)
            }
            Message::Request(..) => return false,
        };
        let comes = self.messages.values().any(|it| {
            matches!(it, Message::Request(to, Command::Acquire { owner: of, .. }) if *to == node && *of == owner)
        });
        !comes && !self.nodes[node.0].knows(owner) && !self.awaits(setup, key)
    }

    fn awaits(&self, setup: &Setup, key: Key) -> bool {
        self.clients[key.client].awaits(self.step(setup, key.client), key.machine, key.id)
    }

    fn arrives(&mut self, setup: &Setup, key: Key) {
        match self.messages.remove(&key) {
            Some(Message::Request(node, command)) => {
                if let Some(reply) = self.at_node(setup, key, node, command) {
                    self.answer(setup, key, reply);
                }
            }
            Some(Message::Reply(reply)) => self.reply(setup, key, &reply),
            None => {}
        }
    }

    fn reply(&mut self, setup: &Setup, key: Key, reply: &Reply) {
        self.client(setup, key.client, |client, step| client.on_reply(step, key.machine, key.id, reply));
    }

    fn at_node(&mut self, setup: &Setup, key: Key, node: NodeId, command: Command) -> Option<Reply> {
        let asked = Asked { key, command, mode: setup.manners[key.client].mode };
        self.node(setup, node.0, |node, now, answers| node.handle(setup, now, asked, answers))
    }

    fn node<R>(
        &mut self,
        setup: &Setup,
        node: usize,
        work: impl FnOnce(&mut Node, Now, &mut Answers) -> R,
    ) -> R {
        let (now, mut answers) = (self.node_now(), Answers::new());
        let result = work(Arc::make_mut(&mut self.nodes[node]), now, &mut answers);
        for (key, reply) in answers {
            self.answer(setup, key, reply);
        }
        result
    }

    /// A reply goes on its way, if anybody waits for it.
    fn answer(&mut self, setup: &Setup, key: Key, reply: Reply) {
        self.closing.retain(|(closing, _)| *closing != key);
        if self.awaits(setup, key) {
            self.messages.insert(key, Message::Reply(reply));
        }
    }
}
