//! What happened to a lock or fence: the only thing that changes one, and the only thing that replicas and the AOF
//! are told. An event names its outcome (token, owner, end of the lease), never a decision to be taken again.

use crate::clock::Instant;
use crate::ids::Mode;
use crate::owner::OwnerName;

/// The time a holder has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// When it ends, on this process's clock. Live while now is before it.
    pub ends: Instant,
    /// How long it was when it was granted or extended, in ms.
    pub length_ms: u64,
}

/// One change of one lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A lease began. Whatever lease the record still showed is over, but for those that this one joins: holders of the
    /// same mode, SHARED or LIMIT.
    Granted {
        /// The new holder.
        owner: OwnerName<'a>,
        /// The token of this grant; the counter is at least this from now on.
        token: u64,
        /// The mode in which it holds.
        mode: Mode,
        /// When the grant was made.
        at: Instant,
        /// Until when.
        lease: Lease,
    },
    /// A holder's lease ends at another time, or its token was raised.
    Extended {
        /// The holder.
        owner: OwnerName<'a>,
        /// Its token from now on.
        token: u64,
        /// Until when.
        lease: Lease,
    },
    /// A holder's lease is over: released, or found expired.
    Ended {
        /// The holder that was.
        owner: OwnerName<'a>,
        /// When it ended.
        at: Instant,
    },
    /// The leases of all holders up to a token are over; no token was used up.
    BrokenUpTo {
        /// The highest token whose holder was ended.
        max: u64,
        /// When that was.
        at: Instant,
    },
    /// All leases are over and a token was used up.
    Broken {
        /// The counter from now on.
        counter: u64,
        /// When that was.
        at: Instant,
    },
}
