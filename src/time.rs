//! Time as the tracker sees it: whole milliseconds since an epoch that the caller chose.
//!
//! Time always comes in from outside, as an argument called `now`, so a test owns the clock. A
//! connector takes it from a [`Clock`], which is monotonic. One tracker must be fed from one clock.

use std::ops::{Add, Sub};
use std::time::{Duration, Instant};

/// A point on the tracker's time line: whole milliseconds since the epoch of its [`Clock`], which is not
/// the Unix epoch (a deadline must be within 8.7 years of it, see [`MAX_DEADLINE`](Self::MAX_DEADLINE)).
///
/// ```
/// use kvlease::Timestamp;
/// use std::time::Duration;
///
/// let now = Timestamp::from_millis(1_000);
/// assert_eq!((now + Duration::from_secs(30)).as_millis(), 31_000);
/// // Parts of a millisecond round up: a deadline is never earlier than what was asked for.
/// assert_eq!((now + Duration::from_micros(1)).as_millis(), 1_001);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The epoch.
    pub const ZERO: Timestamp = Timestamp(0);

    /// The latest deadline that a lease can have: 2³⁸ − 2 ms, or 8.7 years after the epoch.
    ///
    /// A lease is one 64-bit word and its deadline has 38 of the bits. What is past this range is
    /// refused by the calls that take a deadline, and never wraps.
    pub const MAX_DEADLINE: Timestamp = Timestamp((1 << 38) - 2);

    /// The point `millis` milliseconds after the epoch.
    pub const fn from_millis(millis: u64) -> Self {
        Timestamp(millis)
    }

    /// The point `secs` seconds after the epoch, saturating.
    pub const fn from_secs(secs: u64) -> Self {
        Timestamp(secs.saturating_mul(1_000))
    }

    /// Milliseconds since the epoch.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this point is; zero if it is not.
    pub const fn saturating_since(self, earlier: Timestamp) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// Adds a duration, rounded up to whole milliseconds; saturates at the end of the range of `u64`.
impl Add<Duration> for Timestamp {
    type Output = Timestamp;

    fn add(self, rhs: Duration) -> Timestamp {
        let millis = rhs.as_nanos().div_ceil(1_000_000);
        Timestamp(self.0.saturating_add(u64::try_from(millis).unwrap_or(u64::MAX)))
    }
}

/// The time between two points; zero if `rhs` is the later one.
impl Sub for Timestamp {
    type Output = Duration;

    fn sub(self, rhs: Timestamp) -> Duration {
        self.saturating_since(rhs)
    }
}

/// The supplied monotonic clock: milliseconds since it was made.
///
/// ```
/// let clock = kvlease::Clock::new();
/// let a = clock.now();
/// assert!(clock.now() >= a);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that reads zero now.
    pub fn new() -> Self {
        Clock { start: Instant::now() }
    }

    /// The time since the clock was made, rounded down to whole milliseconds, so that nothing is
    /// ever due early.
    pub fn now(&self) -> Timestamp {
        Timestamp(u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX))
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}
