//! The counters behind [`Stats`]: striped, relaxed, and on `std`'s atomics even in models, since nothing
//! is decided by them.

use super::Stats;
use crate::sync::{STRIPES, stripe};
use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Clone, Copy)]
pub(super) enum Counter {
    Completed,
    Expired,
    Aborted,
    Released,
    TrackRefused,
    Overdue,
    Notified,
    Duplicates,
    Conflicts,
    NotifyRefused,
    Extended,
    EarlyKept,
    EarlyDropped,
    Late,
    Unknown,
    WeightTaken,
    WeightReleased,
    Buried,
    Unburied,
    TransfersBegun,
    TransfersEnded,
}

const COUNTERS: usize = Counter::TransfersEnded as usize + 1;

pub(super) struct Counters([CachePadded<[AtomicU64; COUNTERS]>; STRIPES]);

impl Counters {
    pub(super) fn new() -> Self {
        Counters(std::array::from_fn(|_| CachePadded::new(std::array::from_fn(|_| AtomicU64::new(0)))))
    }

    #[inline]
    pub(super) fn add(&self, counter: Counter, n: u64) {
        // Relaxed: a count.
        self.0[stripe()][counter as usize].fetch_add(n, Relaxed);
    }

    pub(super) fn get(&self, counter: Counter) -> u64 {
        // Relaxed: a sum over stripes is not a snapshot anyway.
        self.0.iter().fold(0, |sum, stripe| sum.wrapping_add(stripe[counter as usize].load(Relaxed)))
    }

    /// Leases that have ended.
    pub(super) fn ended(&self) -> u64 {
        self.get(Counter::Completed) + self.get(Counter::Expired) + self.get(Counter::Aborted)
    }

    pub(super) fn stats(&self, tracked: u64, early: u64) -> Stats {
        use Counter as C;
        // The later half of each pair first: then a gauge that others are changing is too high by some
        // rather than below zero.
        let gauge = |up: C, down: C| {
            let down = self.get(down);
            self.get(up).saturating_sub(down)
        };
        let released = self.get(C::Released);
        let ended = self.ended();
        Stats {
            live: tracked.saturating_sub(ended),
            release_pending: ended.saturating_sub(released),
            weight_held: gauge(C::WeightTaken, C::WeightReleased),
            early,
            tombstones: gauge(C::Buried, C::Unburied),
            transfers: gauge(C::TransfersBegun, C::TransfersEnded),
            tracked,
            completed: self.get(C::Completed),
            expired: self.get(C::Expired),
            aborted: self.get(C::Aborted),
            released,
            track_refused: self.get(C::TrackRefused),
            overdue: self.get(C::Overdue),
            notified: self.get(C::Notified),
            duplicates: self.get(C::Duplicates),
            conflicts: self.get(C::Conflicts),
            notify_refused: self.get(C::NotifyRefused),
            extended: self.get(C::Extended),
            early_kept: self.get(C::EarlyKept),
            early_dropped: self.get(C::EarlyDropped),
            late: self.get(C::Late),
            unknown: self.get(C::Unknown),
        }
    }
}
