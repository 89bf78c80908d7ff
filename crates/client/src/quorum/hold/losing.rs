//! The loss of a lock: when too few unbroken nodes are left, or the time is over, and why.

use lockfence_core::clock::Instant;

use super::place::{Ask, Lease, Place};
use super::{Hold, Loss, Phase};
use crate::quorum::give_back::{GiveBack, Trace};
use crate::quorum::{Failure, PerNode};

impl Hold {
    pub(super) fn start_losing(&mut self, now: Instant) {
        self.phase = Phase::Losing(self.settings.node_deadline(now).min(self.valid_until));
        for node in self.places.ids() {
            let place = &self.places[node];
            if matches!(place.lease, Lease::Missing) && place.named.is_none() {
                self.ask(node, Ask::Look, now);
            }
        }
        self.settle_loss(now);
    }

    pub(super) fn settle_loss(&mut self, now: Instant) {
        if self.places.count(|place| place.named.is_some()) > 0 {
            self.lose_by_nodes(now);
        }
    }

    pub(super) fn lose_by_nodes(&mut self, now: Instant) {
        let by = self.places.iter().find_map(|(_, place)| place.named.clone());
        self.lose(by.map_or(Loss::Broken, |by| Loss::Taken { by }), now);
    }

    pub(super) fn loss_by_clock(&self) -> Loss {
        if self.terms.hold_until == Some(self.valid_until) {
            return Loss::HeldTooLong;
        }
        let silent = PerNode::new(self.settings.nodes, |node| {
            let place = &self.places[node];
            place.failure.clone().or_else(|| (!place.open.is_empty()).then(Failure::timed_out))
        });
        let answered = silent.count(|failure| failure.is_none());
        if self.terms.renew && answered < self.settings.majority() {
            Loss::NoQuorum(silent)
        } else {
            Loss::Expired
        }
    }

    pub(super) fn lose(&mut self, loss: Loss, now: Instant) {
        self.phase = Phase::Over(Some(loss));
        self.give_back(now);
    }

    pub(super) fn give_back(&mut self, now: Instant) {
        let traces = PerNode::new(self.settings.nodes, |node| match &self.places[node] {
            Place { loose: true, .. } => Trace::Unknown,
            Place { lease: Lease::Held { .. }, .. } => Trace::Lease,
            Place { lease: Lease::Missing, .. } => Trace::Nothing,
        });
        let last = self.order.iter().copied().find(|node| self.places[*node].failure.is_none());
        self.out.give_back(GiveBack::new(self.settings, self.owner, &traces, last, now));
    }
}
