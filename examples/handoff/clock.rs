//! Trace time: real time, run faster.

use kvlease::Timestamp;
use std::thread;
use std::time::{Duration, Instant};

/// A monotonic clock whose milliseconds are milliseconds of the trace. Every thread has a copy.
#[derive(Clone, Copy, Debug)]
pub struct ScaledClock {
    start: Instant,
    speed: f64,
}

impl ScaledClock {
    /// A clock that reads zero now and runs `speed` times as fast as the wall's.
    pub fn new(speed: f64) -> Self {
        ScaledClock { start: Instant::now(), speed }
    }

    /// A clock that reads this now: another process's.
    #[cfg(feature = "nixl")]
    pub fn reading(now: Timestamp, speed: f64) -> Self {
        let since = Duration::from_millis(now.as_millis()).div_f64(speed);
        let start = Instant::now();
        ScaledClock { start: start.checked_sub(since).unwrap_or(start), speed }
    }

    /// Trace time, rounded down, so nothing is ever due early.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_millis((self.start.elapsed().as_secs_f64() * self.speed * 1_000.0) as u64)
    }

    /// Real time since the start.
    pub fn wall(&self) -> Duration {
        self.start.elapsed()
    }

    /// How much real time a duration of the trace takes.
    pub fn real(&self, trace: Duration) -> Duration {
        trace.div_f64(self.speed)
    }

    /// Sleeps until `until` of the trace, if there is such a point, but at most `longest` of real time.
    pub fn sleep_until(&self, until: Option<Timestamp>, longest: Duration) {
        let left = until.map_or(longest, |until| self.real(until - self.now()).min(longest));
        if !left.is_zero() {
            thread::sleep(left);
        }
    }
}
