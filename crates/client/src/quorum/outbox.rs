//! What a machine wants done, until somebody fetches it.

use std::collections::VecDeque;

use lockfence_core::clock::Instant;

use super::give_back::GiveBack;
use super::{Command, Effect, NodeId, SendId};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Outbox {
    next: u64,
    effects: VecDeque<Effect>,
}

impl Outbox {
    pub(super) fn send(&mut self, node: NodeId, command: Command, answer_by: Option<Instant>) -> SendId {
        self.next = self.next.saturating_add(1);
        let id = SendId(self.next);
        self.effects.push_back(Effect::Send { id, node, command, answer_by });
        id
    }

    pub(super) fn abandon(&mut self, id: SendId) {
        self.effects.push_back(Effect::Abandon(id));
    }

    pub(super) fn give_back(&mut self, what: GiveBack) {
        if !what.is_over() {
            self.effects.push_back(Effect::GiveBack(Box::new(what)));
        }
    }

    pub(super) fn pop(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }
}
