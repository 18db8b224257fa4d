//! The one place that chooses between the primitives of `std` and those of a model checker.
//!
//! Built with `--cfg kvlease_loom` (only the `loom-tests` package does so) every atomic and every
//! cell below is loom's, and capacities elsewhere shrink. Nothing else in the crate names either.

pub(crate) use imp::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, UnsafeCell};
pub(crate) use std::sync::atomic::Ordering;

#[cfg(not(any(kvlease_loom, kvlease_shuttle)))]
mod imp {
    pub(crate) use super::StdCell as UnsafeCell;
    pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};
}

/// `std`'s cell with loom's interface: access goes through closures, so that a model sees it.
#[cfg(not(kvlease_loom))]
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct StdCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(kvlease_loom))]
impl<T> StdCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        StdCell(std::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// Built with `--cfg kvlease_shuttle` (only the `shuttle-tests` package does so): shuttle's atomics, each
/// access of which is a point at which it may let another thread run.
#[cfg(kvlease_shuttle)]
mod imp {
    pub(crate) use super::StdCell as UnsafeCell;
    pub(crate) use shuttle::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};
}

#[cfg(kvlease_loom)]
#[path = "sync_loom.rs"]
mod imp;

#[cfg(any(all(test, kvlease_loom), kvlease_loom_epoch))]
pub(crate) use imp::control;

/// Stores into a word that other threads may try to compare-exchange, at a time when no such exchange
/// can succeed. A plain store; under loom an exchange, because loom reports histories that cannot be
/// when a store races with read-modify-writes.
#[inline(always)]
pub(crate) fn store_owned(word: &AtomicU64, value: u64, order: Ordering) {
    if cfg!(kvlease_loom) {
        word.swap(value, order);
    } else {
        word.store(value, order);
    }
}

/// A count that is exact because it is changed by read-modify-writes only, and by which nothing else is ordered:
/// `std`'s in models, too, to which it is invisible.
pub(crate) type AtomicCount = std::sync::atomic::AtomicU64;

/// How many ways striped counters and lists are split.
pub(crate) const STRIPES: usize = if cfg!(any(kvlease_loom, kvlease_shuttle)) { 1 } else { 16 };

/// The stripe of the calling thread: threads are dealt out in turn.
#[inline]
pub(crate) fn stripe() -> usize {
    use std::cell::Cell;
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    thread_local!(static MINE: Cell<usize> = const { Cell::new(usize::MAX) });

    if STRIPES == 1 {
        return 0;
    }
    // `try_with`: a destructor of another thread-local may still use a map. Any stripe is right.
    MINE.try_with(|mine| {
        if mine.get() == usize::MAX {
            // Relaxed: only the numbers must differ.
            mine.set(NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES);
        }
        mine.get()
    })
    .unwrap_or(0)
}
