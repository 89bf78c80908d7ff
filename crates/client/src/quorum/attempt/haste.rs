//! A node may send everybody away from its queue at once, for whatever reason. To ask again is right, but not for ever as
//! fast as the answers come: nothing would come of it but load.

use lockfence_core::clock::Instant;

/// So many places that were lost at once, beside one for each node, are followed by another without a pause.
const AT_ONCE_MAX: usize = 3;

/// How fast places in queues are lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Haste {
    /// Until when the last place should have lasted.
    until: Instant,
    /// How many were lost at once, one after the other.
    lost: usize,
}

impl Haste {
    /// Whether it is better to pause before the next place, which else is taken now and should last for `lasts_us`.
    pub(super) fn is_too_much(&mut self, now: Instant, lasts_us: u64, nodes: usize) -> bool {
        self.lost = if now < self.until { self.lost.saturating_add(1) } else { 0 };
        let too_much = self.lost > nodes.saturating_add(AT_ONCE_MAX);
        if !too_much {
            self.until = now.plus_us(lasts_us);
        }
        too_much
    }
}
