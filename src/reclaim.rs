//! The seam around memory reclamation: pin, and run something once nobody can still be looking.
//!
//! Outside of models this is [`crossbeam-epoch`](crossbeam_epoch)'s default collector: one pin covers
//! every map and tracker of the process, nested pins are nearly free, and nothing is registered per
//! map and thread.

#[cfg(not(any(kvlease_loom, kvlease_shuttle)))]
mod imp {
    use crossbeam_epoch as epoch;

    /// Keeps what is read under it readable.
    ///
    /// While a guard lives, slots that are freed after it was made are not used again, so a guard
    /// held for long holds memory back. Get one from [`pin`]; it stays on its thread.
    #[derive(Debug)]
    pub struct Guard(epoch::Guard);

    /// Makes a [`Guard`] for the calling thread. Wait-free but for one in 128 calls, which also does a
    /// bounded piece of reclamation; a pin inside another costs next to nothing.
    #[inline]
    pub fn pin() -> Guard {
        Guard(epoch::pin())
    }

    impl Guard {
        /// Runs `f` after every guard that exists now is gone.
        pub(crate) fn defer<F: FnOnce() + Send + 'static>(&self, f: F) {
            self.0.defer(move || {
                #[cfg(miri)]
                edge::acquire();
                f();
            });
        }

        /// Hands what this thread has deferred over to whoever collects next.
        pub(crate) fn flush(&self) {
            self.0.flush();
        }
    }

    /// Under Miri, the edge from the end of a guard to what runs after the grace period, made once more.
    ///
    /// crossbeam-epoch 0.9.21 makes it by the Release store with which a thread unpins. Where its next pin is
    /// a relaxed store, and not the read-modify-write that it is on x86, whoever advances the epoch may read
    /// that one, which since C++20 is no part of the release sequence of the other; then the edge is missing,
    /// and Miri reports a race that no processor shows. A guard that is still there makes no edge, so
    /// Miri does see what is reclaimed too early.
    #[cfg(miri)]
    mod edge {
        use std::sync::atomic::{AtomicUsize, Ordering};

        static EDGE: AtomicUsize = AtomicUsize::new(0);

        pub(super) fn acquire() {
            EDGE.fetch_add(1, Ordering::Acquire);
        }

        impl Drop for super::Guard {
            fn drop(&mut self) {
                // Read-modify-writes on both sides: one that comes later sees all that came before.
                EDGE.fetch_add(1, Ordering::Release);
            }
        }
    }

    /// Frees what nobody can still be looking at.
    pub(crate) fn free<T>(corpse: Box<T>) {
        drop(corpse);
    }

    /// Under loom, where an object is in its life; here nothing.
    #[derive(Debug, Default)]
    pub(crate) struct Fate(());

    impl Fate {
        #[inline(always)]
        pub(crate) fn retire(&self) {}
        #[inline(always)]
        pub(crate) fn reclaim(&self) {}
        #[inline(always)]
        pub(crate) fn revive(&self) {}
        #[inline(always)]
        pub(crate) fn check(&self) {}
    }
}

#[cfg(any(kvlease_loom, kvlease_shuttle))]
#[path = "reclaim_fate.rs"]
mod fate;

#[cfg(kvlease_loom)]
#[path = "reclaim_corpses.rs"]
mod corpses;

#[cfg(all(kvlease_loom, not(kvlease_loom_epoch)))]
#[path = "reclaim_loom.rs"]
mod imp;

#[cfg(kvlease_loom_epoch)]
#[path = "reclaim_epoch.rs"]
mod imp;

#[cfg(kvlease_shuttle)]
#[path = "reclaim_shuttle.rs"]
mod imp;

#[cfg(all(test, kvlease_loom_epoch))]
pub(crate) use imp::any_corpses;
pub(crate) use imp::{Fate, free};
pub use imp::{Guard, pin};
#[cfg(all(test, kvlease_loom))]
pub(crate) use imp::{begin, bury_all};
