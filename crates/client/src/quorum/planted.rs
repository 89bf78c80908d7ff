//! Bugs planted on purpose, so that the simulation can be seen to find them. They exist only with the crate feature
//! `planted`, which no release build may turn on.

/// A bug of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// The lock counts as held as soon as a majority granted, whatever their tokens.
    NoConfirm,
    /// A node that no longer knows the lease at the confirm is asked for a new one, and that counts.
    TopUpConfirms,
    /// All tries of an attempt use one owner.
    OwnerReused,
    /// The grant that a WAIT brought counts in the round that follows it.
    WaitGrantCounted,
    /// Validity is counted from after the replies.
    ValidFromReplies,
    /// A node that was re-acquired counts as proof of an unbroken hold.
    TopUpProves,
    /// Whoever waits does not ask whether the queue node is still there.
    NotProbed,
    /// The connection of an abandoned WAIT stays open.
    NotAbandoned,
    /// The end of the time to wait is not looked at.
    DeadlineIgnored,
    /// One node's grant is enough for a reader.
    ReaderAlone,
    /// A reader does not confirm.
    ReaderUnconfirmed,
    /// Whoever comes queues at the first node of the order that answers, whoever waits elsewhere.
    SecondQueue,
}

/// Which bug is planted: none, in a build without the feature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Planted {
    #[cfg(feature = "planted")]
    bug: Option<Bug>,
}

impl Planted {
    /// Shows `bug`.
    #[cfg(feature = "planted")]
    #[must_use]
    pub const fn bug(bug: Bug) -> Self {
        Self { bug: Some(bug) }
    }

    #[cfg(feature = "planted")]
    pub(super) fn is(self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    #[cfg(not(feature = "planted"))]
    pub(super) const fn is(self, _bug: Bug) -> bool {
        false
    }
}
