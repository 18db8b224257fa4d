//! Reclamation under loom by the real epoch: crossbeam-epoch, built against loom, with a collector of its own
//! for each execution, since there is no default one under loom.
//!
//! Of the epoch's parts, pinning, unpinning, sealing, advancing and collecting are explored beside the roles of a
//! model. Its participants join before these begin, and leave after they have ended.
//!
//! loom runs all threads of a model on one thread of the system, so where the participants are kept is
//! a plain thread-local, invisible to loom. What they do is not.

#[cfg(test)]
pub(crate) use super::corpses::any_corpses;
pub(crate) use super::corpses::free;
pub(crate) use super::fate::Fate;
use crate::sync::control;
use crossbeam_epoch as epoch;
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// Models on the real epoch have this many roles. One more participant is one more word that each attempt to
/// advance the epoch reads.
#[cfg(test)]
const ROLES: usize = 2;

// One for each role. The main thread, which is at work before and after them, takes the first one's.
// A raw box, so that those of an execution that failed, whose loom objects are gone, are never dropped.
thread_local!(static PARTICIPANTS: Cell<Option<NonNull<[epoch::LocalHandle]>>> = const { Cell::new(None) });

/// See the guard of ordinary builds.
#[derive(Debug)]
pub struct Guard(ManuallyDrop<epoch::Guard>);

/// See the `pin` of ordinary builds.
pub fn pin() -> Guard {
    let participants = PARTICIPANTS.get().expect("an execution has begun");
    // SAFETY: a box that `bury_all` takes back when no guard is left, and no thread makes one any more.
    let own = unsafe { &participants.as_ref()[control::role().saturating_sub(1)] };
    Guard(ManuallyDrop::new(own.pin()))
}

impl Guard {
    pub(crate) fn defer<F: FnOnce() + Send + 'static>(&self, f: F) {
        self.0.defer(f);
    }

    pub(crate) fn flush(&self) {
        self.0.flush();
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // An execution that has failed is over: loom's objects are not to be used any more.
        if !std::thread::panicking() {
            // SAFETY: dropped here and nowhere else.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}

/// Begins a model's execution: with a new collector.
#[cfg(test)]
pub(crate) fn begin(reuse: bool) {
    assert!(reuse, "the epoch always reuses");
    super::corpses::forget();
    let collector = epoch::Collector::new();
    let participants: Box<[_]> = (0..ROLES).map(|_| collector.register()).collect();
    // The first pin of a participant also collects, as one in 128 does. Here the models say when.
    participants.iter().for_each(|participant| drop(participant.pin()));
    PARTICIPANTS.set(Some(NonNull::from(Box::leak(participants))));
}

/// Ends the collector, and so runs all that was deferred. To be called at the end of a model, when no guard is
/// left.
#[cfg(test)]
pub(crate) fn bury_all() {
    let participants = PARTICIPANTS.take().expect("an execution has begun");
    // SAFETY: leaked by `begin`, and referred to by nobody else, for only the main thread is left.
    let participants = unsafe { Box::from_raw(participants.as_ptr()) };
    assert!(participants.iter().all(|participant| !participant.is_pinned()), "a guard is left at the end of the model");
    drop(participants);
    super::corpses::bury();
}
