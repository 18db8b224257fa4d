//! What it costs to look for leases that are due, when each has been renewed three times.

use crate::keys::Id;
use crate::slices::cpu_time;
use crate::trackers::Tracker;
use kvlease::Timestamp;
use std::time::Duration;

/// How many are due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    /// None, and all are past the deadlines that they were tracked with.
    None,
    /// Eight.
    Eight,
    /// Every one.
    All,
}

/// Leases, renewed three times, with the clock past their first deadlines.
pub struct Sweep {
    tracker: Box<dyn Tracker>,
    leases: u64,
    now: u64,
    next: u64,
}

/// Seconds: the first deadline, and the one after three renewals.
const FIRST: u64 = 30;
const LAST: u64 = 1_000_000;

impl Sweep {
    /// So many leases.
    pub fn new(tracker: Box<dyn Tracker>, leases: u64) -> Self {
        let at = Timestamp::from_secs;
        for number in 0..leases {
            tracker.track(Id::new(number).as_str(), 2, at(FIRST), number, at(0));
        }
        for deadline in [LAST / 4, LAST / 2, LAST] {
            let mut message = Vec::new();
            for number in 0..leases {
                message.extend_from_slice(if message.is_empty() { b"HB:" } else { b"," });
                message.extend_from_slice(Id::new(number).as_str().as_bytes());
                if message.len() > 100_000 || number + 1 == leases {
                    tracker.heartbeat(&message, at(deadline), at(1));
                    message.clear();
                }
            }
        }
        Sweep { tracker, leases, now: FIRST * 1_000 + 1, next: leases }
    }

    /// The first sweep past the first deadlines, which finds that all were renewed.
    pub fn settle(&mut self) -> Duration {
        self.timed(1, 0)
    }

    fn timed(&mut self, sweeps: u32, due: u64) -> Duration {
        let before = cpu_time();
        let mut ended = 0;
        for _ in 0..sweeps {
            self.now += 1;
            ended += self.tracker.sweep(Timestamp::from_millis(self.now));
        }
        let took = cpu_time() - before;
        assert_eq!(ended as u64, due, "leases ended by a sweep");
        took / sweeps
    }

    /// Processor time of one sweep that finds so many due. After [`Due::All`] there is nothing left.
    pub fn sweep(&mut self, due: Due) -> Duration {
        match due {
            // Many at once: the clock is coarse beside some of them.
            Due::None => self.timed(if self.leases > 20_000 { 8 } else { 64 }, 0),
            Due::Eight => {
                let soon = Timestamp::from_millis(self.now + 1);
                for _ in 0..8 {
                    self.tracker.track(Id::new(self.next).as_str(), 2, soon, 0, Timestamp::from_millis(self.now));
                    self.next += 1;
                }
                self.timed(1, 8)
            }
            Due::All => {
                self.now = LAST * 1_000;
                let leases = self.leases;
                self.timed(1, leases)
            }
        }
    }
}
