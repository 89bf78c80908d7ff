//! Bugs planted on purpose, so that each guarantee's test can be seen to bite. They exist only with the crate
//! feature `planted`, which no release build may turn on: the module refuses to compile with it.

/// Whether an optimised build, one that might be released, can be made to misbehave. The module asserts at compile time
/// that it cannot. (A debug build of the whole workspace with its tests has the feature on: cargo builds this crate
/// once for all. Nothing outside the tests can plant anything there.)
pub const POSSIBLE: bool = cfg!(all(feature = "planted", not(debug_assertions)));

/// A bug to plant. One at a time in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Bug {
    /// None: the code as it is.
    None = 0,
    /// A re-grant gets the counter itself, not a higher token.
    TokenNotRaised = 1,
    /// A lock without a record starts from the clock alone, without *high*.
    TokenRestartsAfterDelete = 2,
    /// A lease is live at its deadline, too.
    LeaseEndInclusive = 3,
    /// EXTEND acts for an owner whose lease is over.
    ExtendRevives = 4,
    /// RELEASE ends whatever lease there is.
    ReleaseByAnyone = 5,
    /// A token below the counter is accepted.
    StaleAccepted = 6,
    /// The last in the queue is served first.
    ServedOutOfOrder = 7,
    /// A waiter that has gone stays in the queue.
    DeadWaiterStays = 8,
    /// A waiter that is answered gets its answer twice.
    AnsweredTwice = 9,
    /// A record that is read, or an effect, does not raise *high*.
    HighNotRaised = 10,
    /// The restart floor is not raised.
    FloorNotRaised = 11,
    /// An effect or record carries what is left of the lease, not its end.
    RelativeLease = 12,
    /// In the module: what the timer does is not replicated.
    TimerUnreplicated = 13,
    /// In the module: a replica drops idle records by itself.
    ReplicaExpires = 14,
    /// In the module: those who wait for a lock are not told that its key has gone.
    LostKeyUntold = 15,
    /// In the module: a panic while a record is being changed.
    PanicHalfWay = 16,
    /// A SHARED request that fits is granted past those who wait.
    SharedBarges = 17,
    /// Holders whose lease is over count for LIMIT and for the mode in force.
    EndedCount = 18,
    /// RELEASE by one of several holders ends all leases.
    ReleaseEndsAll = 19,
    /// SHARED fits beside holders of any mode.
    SharedBesideAny = 20,
    /// LIMIT n lets one more in.
    LimitOneMore = 21,
    /// A hand-over serves one request only.
    OneServed = 22,
    /// Those who wait are looked at when the last lease ends, not when they fit.
    LookedAtLate = 23,
    /// BREAK ends all holders, whatever MAXTOKEN says.
    BreakEndsAll = 24,
    /// In the module: who gets effects is asked once only.
    AudienceKept = 25,
}

#[cfg(feature = "planted")]
mod switch {
    use core::sync::atomic::{AtomicU32, Ordering};

    static PLANTED: AtomicU32 = AtomicU32::new(0);

    /// Plants `bug` from now on, in the whole process.
    pub fn plant(bug: super::Bug) {
        PLANTED.store(bug as u32, Ordering::SeqCst);
    }

    /// Plants the bug of that number (0 is none).
    pub fn plant_number(number: u32) {
        PLANTED.store(number, Ordering::SeqCst);
    }

    /// Whether `bug` is planted.
    pub fn is(bug: super::Bug) -> bool {
        PLANTED.load(Ordering::SeqCst) == bug as u32
    }
}

#[cfg(not(feature = "planted"))]
mod switch {
    /// Whether `bug` is planted: never in this build.
    #[must_use]
    pub const fn is(_bug: super::Bug) -> bool {
        false
    }
}

pub use switch::is;
#[cfg(feature = "planted")]
pub use switch::{plant, plant_number};
