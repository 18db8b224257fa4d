//! In models and long random schedules: where an object is in its life.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

const IN_USE: u8 = 0;
const RETIRED: u8 = 1;
const RECLAIMED: u8 = 2;

/// Where an object is in its life, to catch what is retired twice or used after it was reclaimed.
#[derive(Debug, Default)]
pub(crate) struct Fate(AtomicU8);

impl Fate {
    #[track_caller]
    fn change(&self, from: u8, to: u8) {
        assert_eq!(self.0.swap(to, Relaxed), from, "retired twice, or used again out of turn");
    }

    /// It goes to the graveyard.
    #[track_caller]
    pub(crate) fn retire(&self) {
        self.change(IN_USE, RETIRED);
    }

    /// Nobody can still be looking.
    #[track_caller]
    pub(crate) fn reclaim(&self) {
        self.change(RETIRED, RECLAIMED);
    }

    /// It comes from the pool, or is new.
    #[track_caller]
    pub(crate) fn revive(&self) {
        assert_ne!(self.0.swap(IN_USE, Relaxed), RETIRED, "used again before it was reclaimed");
    }

    /// Somebody looks at it.
    #[track_caller]
    pub(crate) fn check(&self) {
        assert_ne!(self.0.load(Relaxed), RECLAIMED, "used after it was reclaimed");
    }
}
