//! Points in time. The crate reads no clock: whoever calls it says what time it is.
//!
//! Two clocks, never mixed: [`Instant`] is the process's own clock (CLOCK_BOOTTIME in the module), which no step of
//! the wall clock moves; [`Wall`] is the calendar, for what crosses a process boundary and for tokens.

use crate::limits;

/// A point on the clock of this process, in µs. Negative where it lies before that clock began (a lease that was
/// granted before the machine booted).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(i64);

impl Instant {
    /// The point `us` microseconds after the clock's origin.
    #[must_use]
    pub const fn from_micros(us: i64) -> Self {
        Self(us)
    }

    /// Microseconds since the clock's origin.
    #[must_use]
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// This point, `ms` milliseconds later.
    #[must_use]
    pub const fn plus_ms(self, ms: u64) -> Self {
        self.plus_us(ms.saturating_mul(1000))
    }

    /// This point, `us` microseconds later.
    #[must_use]
    pub const fn plus_us(self, us: u64) -> Self {
        Self(self.0.saturating_add_unsigned(us))
    }

    /// This point, `us` microseconds earlier.
    #[must_use]
    pub const fn minus_us(self, us: u64) -> Self {
        Self(self.0.saturating_sub_unsigned(us))
    }

    /// Microseconds from `earlier` to here; 0 if `earlier` is later.
    #[must_use]
    pub fn since_us(self, earlier: Self) -> u64 {
        u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0)
    }

    /// Whole milliseconds from `earlier` to here, rounded down; 0 if `earlier` is later.
    #[must_use]
    pub fn since_ms(self, earlier: Self) -> u64 {
        self.since_us(earlier) / 1000
    }

    /// Milliseconds from `now` until here, rounded up: what lies ahead is never shown as 0.
    #[must_use]
    pub fn left_ms(self, now: Self) -> u64 {
        self.since_us(now).div_ceil(1000)
    }
}

/// The sooner of two points of which there may be none.
#[must_use]
pub fn sooner(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// A point on the wall clock, in µs since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wall(u64);

impl Wall {
    /// The point `us` microseconds after 1970 began.
    #[must_use]
    pub const fn from_micros(us: u64) -> Self {
        Self(us)
    }

    /// Microseconds since 1970.
    #[must_use]
    pub const fn micros(self) -> u64 {
        self.0
    }

    /// This point, `ms` milliseconds later.
    #[must_use]
    pub const fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms.saturating_mul(1000)))
    }
}

/// One reading of both clocks, taken together. Each command takes one and decides everything by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// The process's clock: leases and waits are measured on it.
    pub mono: Instant,
    /// The wall clock: tokens are made from it, and what is stored or sent carries it.
    pub wall: Wall,
}

impl Now {
    /// Where a point of this process's clock lies on the wall clock.
    #[must_use]
    pub fn wall_of(self, at: Instant) -> Wall {
        let ahead = at.micros().saturating_sub(self.mono.micros());
        Wall(self.wall.0.saturating_add_signed(ahead))
    }

    /// The start of something that began at `began` by the wall clock; never later than now.
    #[must_use]
    pub fn past(self, began: Wall) -> Instant {
        self.mono.minus_us(self.wall.0.saturating_sub(began.0))
    }

    /// The end of a lease that was written as its wall-clock end and its granted length: what is left by this
    /// process's wall clock, never less than nothing, never more than the granted length.
    #[must_use]
    pub fn lease_end(self, ends: Wall, length_ms: u64) -> Instant {
        let left_us = ends.0.saturating_sub(self.wall.0).min(length_ms.saturating_mul(1000));
        self.mono.plus_us(left_us)
    }
}

/// Milliseconds of a lease that a client asked for: 1 to [`limits::TTL_MS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ttl(u64);

impl Ttl {
    /// `ms` as the length of a lease; `None` outside 1 to 365 days.
    #[must_use]
    pub const fn from_ms(ms: u64) -> Option<Self> {
        if ms == 0 || ms > limits::TTL_MS_MAX { None } else { Some(Self(ms)) }
    }

    /// The length in ms.
    #[must_use]
    pub const fn ms(self) -> u64 {
        self.0
    }
}
