//! One node, as a lock that is held sees it: what it has proven, what it was asked, who has the lock there instead.

use lockfence_core::clock::Instant;

use crate::owner::Owner;
use crate::quorum::{Failure, SendId};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Lease {
    /// Held since then, or from the beginning; proven until then.
    Held { since: Option<Instant>, proven: Instant },
    /// Not held, as far as is known.
    Missing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Ask {
    Extend,
    TopUp,
    Look,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Open {
    pub(super) id: SendId,
    pub(super) ask: Ask,
    pub(super) sent: Instant,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) lease: Lease,
    pub(super) open: Vec<Open>,
    /// Whether an ACQUIRE may still be on its way.
    pub(super) loose: bool,
    /// Who has it there instead.
    pub(super) named: Option<Owner>,
    pub(super) failure: Option<Failure>,
}

impl Place {
    pub(super) fn prove(&mut self, until: Instant) {
        if let Lease::Held { proven, .. } = &mut self.lease {
            *proven = until.max(*proven);
        }
    }
}
