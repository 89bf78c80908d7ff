//! The words that the world and its model share: what may happen, and what a request can be told.

use std::fmt;

/// A lock's name: database and key. Few, so that steps meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) db: u32,
    pub(crate) key: u8,
}

impl Name {
    pub(crate) const ALL: [Self; 4] =
        [Self { db: 0, key: 0 }, Self { db: 0, key: 1 }, Self { db: 1, key: 0 }, Self { db: 1, key: 1 }];

    pub(crate) fn bytes(self) -> [u8; 1] {
        [b'a' + self.key]
    }
}

/// What both clocks show: µs of the process's own, µs since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Time {
    pub(crate) mono: i64,
    pub(crate) wall: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Exclusive,
    Shared,
    Limit(u32),
}

impl Kind {
    pub(crate) fn alike(self, other: Self) -> bool {
        matches!((self, other), (Self::Limit(_), Self::Limit(_))) || self == other
    }
}

/// What MINTOKEN proposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Min {
    /// No proposal.
    None,
    /// The lock's counter and so many more.
    Counter(i8),
    /// So many ms ahead of base: accepted up to 10,000.
    Ahead(u32),
}

/// Where a server that starts finds its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// An RDB file of its last moment.
    Rdb,
    /// A rewritten AOF of its last moment: all records, without what the server knows beside them.
    Aof,
    /// The RDB file of the last [`Step::Save`]: what came after is lost.
    LastSave,
    /// Nothing at all.
    Nothing,
}

/// What may happen next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Step {
    Acquire {
        at: Name,
        owner: u8,
        ttl_ms: u64,
        wait_ms: Option<u64>,
        kind: Kind,
        min: Min,
    },
    Release {
        at: Name,
        owner: u8,
    },
    Extend {
        at: Name,
        owner: u8,
        ttl_ms: u64,
        min: Min,
    },
    Break(Name),
    /// BREAK of those up to the nth token that this name has seen, from the last, plus `ahead`.
    BreakUpTo {
        at: Name,
        nth: u8,
        ahead: i8,
    },
    /// FENCE.CHECK of the counter plus `ahead`, or of the nth token that this name has seen.
    CheckNear {
        at: Name,
        ahead: i8,
    },
    CheckOld {
        at: Name,
        nth: u8,
    },
    /// The nth of those who wait goes away.
    Disconnect(u8),
    Del(Name),
    FlushAll,
    /// RENAME within a database, of the key `key` to the other one.
    Rename(Name),
    SwapDb,
    /// A record arrives from another server (RESTORE … REPLACE), whose tokens are ahead of here.
    Arrive {
        at: Name,
        owner: u8,
        ttl_ms: u64,
        ahead_ms: u32,
    },
    /// Time passes, timers fire.
    Sleep {
        ms: u64,
    },
    /// Time passes, but the server is not there to see it (SIGSTOP): no timer fires before the next command.
    Pause {
        us: u64,
    },
    /// As [`Step::Pause`], to the end of the lease that ends next, and so many µs more.
    PauseToEnd {
        us: i8,
    },
    /// The wall clock is set.
    SetClock {
        by_s: i32,
    },
    /// The link to the replica breaks.
    Cut,
    /// It is mended, and the replica catches up.
    Heal,
    /// The replica takes over, with what it has. Its wall clock differs by `skew_s`.
    Promote {
        skew_s: i32,
    },
    Save,
    /// The server ends and starts again, `down_ms` later; in between the wall clock was set by `skew_s`.
    Restart {
        from: Source,
        down_ms: u64,
        skew_s: i32,
        quarantine_ms: u64,
    },
}

/// A request for a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) id: u64,
    pub(crate) at: Name,
    pub(crate) owner: u8,
    pub(crate) ttl_ms: u64,
    /// 0: without limit.
    pub(crate) wait_ms: Option<u64>,
    pub(crate) kind: Kind,
    pub(crate) min: Option<u64>,
    pub(crate) since: i64,
}

impl Asked {
    /// When it gives up.
    pub(crate) fn until(&self) -> Option<i64> {
        self.wait_ms.filter(|ms| *ms > 0).map(|ms| self.since + micros(ms))
    }
}

pub(crate) fn micros(ms: u64) -> i64 {
    i64::try_from(ms * 1000).expect("a short time")
}

/// What a request is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Granted { token: u64, ttl_ms: u64, renewed: bool },
    NotGranted,
    LockLost,
    Demoted,
    Number(u64),
    Refused(Why),
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Quarantine,
    OtherMode,
    TooFarAhead,
    QueueFull,
    Exhausted,
    Stale,
    NeverIssued,
    NoRecord,
}

/// The number of a request, and what it was told.
pub(crate) type Told = (u64, Reply);

/// What a reader sees of a lock that stands: LOCK.INFO … FULL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) counter: u64,
    /// Live holders: owner, token, µs of the lease left; by owner.
    pub(crate) holders: Vec<(u8, u64, i64)>,
}

/// What kind of promise was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// A token that does not rise, or is not what it must be (G1).
    Token,
    /// A request was told something else than it should have been, or nothing (G2, G3, G5).
    Answer,
    /// Somebody who was answered before, or has gone, was answered (G5).
    AnsweredAgain,
    /// A token was accepted or refused wrongly (G4).
    Fence,
    /// The lock is not in the state it should be in (G2, G3).
    State,
    /// A replica is not in its primary's state (G6).
    Replica,
    /// The server would not rest, or forgot to look (G5, G7).
    Timer,
}

/// A promise broken, and how it came to that.
#[derive(Clone)]
pub(crate) struct Violation {
    pub(crate) broken: Broken,
    pub(crate) what: String,
    pub(crate) seed: Option<u64>,
    pub(crate) history: Vec<Line>,
}

/// One line of a history. Made into text only when somebody has to read it.
#[derive(Clone)]
pub(crate) enum Line {
    /// A step, and what the clocks showed.
    Step(Time, Step),
    Told(u64, Reply),
    Note(String),
}

impl fmt::Display for Line {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step(Time { mono, wall }, step) => {
                write!(out, "[{}.{:06} s, wall {wall}] {step:?}", mono / 1_000_000, mono % 1_000_000)
            }
            Self::Told(id, reply) => write!(out, "    request {id}: {reply:?}"),
            Self::Note(what) => write!(out, "    {what}"),
        }
    }
}

impl fmt::Debug for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{:?}: {}", self.broken, self.what)?;
        if let Some(seed) = self.seed {
            writeln!(out, "seed {seed}")?;
        }
        writeln!(out, "history ({} lines):", self.history.len())?;
        self.history.iter().try_for_each(|line| writeln!(out, "  {line}"))
    }
}

/// A broken promise, before anybody has added how it came to that.
pub(crate) type Found = (Broken, String);
