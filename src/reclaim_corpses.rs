//! Under loom, over whichever reclamation: what becomes of an object in the end.

use std::cell::RefCell;
use std::mem::ManuallyDrop;

// Those of an execution that failed are never dropped: they refer to objects of loom's that are gone.
type Bury = ManuallyDrop<Box<dyn FnOnce()>>;

// loom runs all threads of a model on one thread of the system. Invisible to loom, as is `Fate`: no edge is
// made that could hide a race.
thread_local!(static CORPSES: RefCell<Vec<Bury>> = RefCell::default());

/// What has been retired once and for all. Kept until the end of the model, so that an access, which its
/// [`Fate`](super::Fate) reports, is still defined.
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
