//! Under loom, over whichever reclamation: where an object is in its life, and what becomes of it in the end.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

// Those of an execution that failed are never dropped: they refer to objects of loom's that are gone.
type Bury = ManuallyDrop<Box<dyn FnOnce()>>;

// loom runs all threads of a model on one thread of the system. Invisible to loom, as is `Fate`: no edge is
// made that could hide a race.
thread_local!(static CORPSES: RefCell<Vec<Bury>> = RefCell::default());

/// What has been retired once and for all. Kept until the end of the model, so that an access, which its
/// [`Fate`] reports, is still defined.
pub(crate) fn free<T: 'static>(corpse: Box<T>) {
    CORPSES.with_borrow_mut(|corpses| corpses.push(ManuallyDrop::new(Box::new(move || drop(corpse)))));
}

/// Whether there are any yet.
#[cfg(all(test, kvlease_loom_epoch))]
pub(crate) fn any_corpses() -> bool {
    CORPSES.with_borrow(|corpses| !corpses.is_empty())
}

/// At the end of a model: frees them. Whether there were any.
#[cfg(test)]
pub(crate) fn bury() -> bool {
    let corpses = CORPSES.take();
    let any = !corpses.is_empty();
    corpses.into_iter().for_each(|bury| ManuallyDrop::into_inner(bury)());
    any
}

/// At the beginning of a model: forgets what an execution that failed may have left.
#[cfg(test)]
pub(crate) fn forget() {
    CORPSES.take();
}

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
