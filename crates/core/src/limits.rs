//! Every bound in one place, so that the parser, the module's settings and the documents say the same.

/// Longest owner, in bytes. The shortest is 1.
pub const OWNER_BYTES_MAX: usize = 512;

/// Highest token: 2^53-1, the highest integer that JavaScript and Lua hold exactly.
pub const TOKEN_MAX: u64 = (1 << 53) - 1;

/// Longest lease and longest WAIT, in ms: 365 days.
pub const TTL_MS_MAX: u64 = 365 * 24 * 60 * 60 * 1000;

/// Largest `LIMIT n`.
pub const HOLDERS_MAX: u32 = 1_000_000;

/// How far ahead of base a proposal (MINTOKEN) may be: 10 s, in µs.
pub const PROPOSAL_AHEAD_US: u64 = 10_000_000;

/// How far the restart floor is put ahead of what is known at a start, a load or a promotion: 30 s, in µs.
/// It covers accepted proposals (10 s) and 20 s between the clocks of a primary and its successor.
pub const FLOOR_MARGIN_US: u64 = 30_000_000;

/// What is counted at most of the time since a floor was raised: 1 h, in µs.
pub const FLOOR_AGE_US: u64 = 60 * 60 * 1_000_000;

/// How far ahead of base a record that is read may raise *high*: 60 s, in µs. A slot may come from a server that has just
/// started (its floor is 30 s ahead), that has accepted a proposal (10 s), and whose clock is 20 s ahead.
pub const LOADED_AHEAD_US: u64 = FLOOR_MARGIN_US + PROPOSAL_AHEAD_US + 20_000_000;

/// How far a grant may raise *high* in one leap: half of all numbers, as µs the year 2112. A grant on a crafted record
/// (RESTORE) may carry any number; it must leave enough to all other locks. No cap that depends on the clock: one that is
/// set back by years must not hide what was issued.
pub const LEAP_MAX: u64 = 1 << 52;

/// How far *high* and the floor that a server has written itself (RDB aux data, effects) may raise its own: a quarter of
/// all numbers is left where a file was damaged. By the rules both go little above [`LEAP_MAX`].
pub const RESTORED_MAX: u64 = LEAP_MAX + LEAP_MAX / 2;

/// `lockfence.quarantine-ms`: default and highest value (0 is off).
pub const QUARANTINE_MS_DEFAULT: u64 = 0;
/// Highest `lockfence.quarantine-ms`: one day.
pub const QUARANTINE_MS_MAX: u64 = 24 * 60 * 60 * 1000;

/// `lockfence.idle-ttl-ms`: how long the record of a free lock is kept.
pub const IDLE_TTL_MS_DEFAULT: u64 = 60_000;
/// Lowest `lockfence.idle-ttl-ms`.
pub const IDLE_TTL_MS_MIN: u64 = 1;
/// Highest `lockfence.idle-ttl-ms`: 365 days.
pub const IDLE_TTL_MS_MAX: u64 = TTL_MS_MAX;

/// `lockfence.max-waiters` and `lockfence.max-waiters-per-lock`: default. A waiter costs the server about 35 kB.
pub const WAITERS_DEFAULT: u64 = 2_000;
/// Highest number of waiters that can be set.
pub const WAITERS_MAX: u64 = 1_000_000;

/// Names of locks and owners in error messages are cut at this many bytes.
pub const NAME_IN_ERROR_BYTES: usize = 64;

/// Default of `LOCK.INFO … FULL COUNT n`.
pub const INFO_COUNT_DEFAULT: u64 = 10;
