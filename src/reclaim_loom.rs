//! Reclamation under loom: a graveyard that checks, in place of the epoch.
//!
//! Two modes, chosen by [`begin`]. In the first what is deferred waits until [`bury_all`], at the end of the
//! model, so nothing is used again, and pinning is invisible to loom. In the second, *reuse*, it runs at the
//! earliest moment that the contract of a guard allows: when the last guard that existed at the time of the
//! `defer` has gone. The real epoch is never faster.
//!
//! loom runs all threads of a model on one thread of the system, so the state is a plain thread-local,
//! invisible to loom. In the mode of reuse one atomic of loom's makes it see that the order of pin, defer and
//! unpin matters, and that a pin comes after the defers that do not wait for it; another one for each guard
//! carries the edge from its end to what was deferred. They make no other edges, which would hide races.

pub(crate) use super::corpses::free;
pub(crate) use super::fate::Fate;
use loom::sync::atomic::{AtomicUsize, Ordering};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

loom::lazy_static! {
    static ref ORDER: AtomicUsize = AtomicUsize::new(0);
}

type Deferred = Box<dyn FnOnce()>;
type End = Rc<AtomicUsize>;

struct Grave {
    /// The guards that existed at the time of the `defer` and still do.
    waits_for: Vec<u64>,
    /// The ends of these, and of all that had gone before: the epoch has them behind it, too.
    ends: Vec<End>,
    run: Deferred,
}

#[derive(Default)]
struct Graveyard {
    reuse: bool,
    next: u64,
    active: BTreeMap<u64, Option<End>>,
    /// The ends of all guards there have been.
    ends: Vec<End>,
    /// Made at the beginning: whoever ends a wait has to have seen the creation.
    unused: Vec<End>,
    graves: Vec<Grave>,
}

thread_local!(static GRAVEYARD: RefCell<Graveyard> = RefCell::default());

/// See the guard of ordinary builds.
#[derive(Debug)]
pub struct Guard(u64);

/// See the `pin` of ordinary builds.
pub fn pin() -> Guard {
    let reuse = GRAVEYARD.with_borrow(|graveyard| graveyard.reuse);
    if reuse {
        // Acquire: a pin that a `defer` does not wait for has that behind it.
        ORDER.fetch_add(1, Ordering::Acquire);
    }
    GRAVEYARD.with_borrow_mut(|graveyard| {
        let end = reuse.then(|| graveyard.unused.pop().expect("so many guards are not provided for"));
        graveyard.next += 1;
        graveyard.ends.extend(end.clone());
        graveyard.active.insert(graveyard.next, end);
        Guard(graveyard.next)
    })
}

impl Guard {
    pub(crate) fn defer<F: FnOnce() + Send + 'static>(&self, f: F) {
        if GRAVEYARD.with_borrow(|graveyard| graveyard.reuse) {
            // Release: pairs with `pin`.
            ORDER.fetch_add(1, Ordering::Release);
        }
        GRAVEYARD.with_borrow_mut(|graveyard| {
            assert!(graveyard.active.contains_key(&self.0), "a guard is used after its end");
            let waits_for = graveyard.active.keys().copied().collect();
            let ends = graveyard.ends.clone();
            graveyard.graves.push(Grave { waits_for, ends, run: Box::new(f) });
        });
    }

    pub(crate) fn flush(&self) {}
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(Some(end)) = GRAVEYARD.with_borrow(|graveyard| graveyard.active.get(&self.0).cloned()) else {
            // No reuse (or an execution that has failed).
            GRAVEYARD.with_borrow_mut(|graveyard| graveyard.active.remove(&self.0));
            return;
        };
        if std::thread::panicking() {
            return;
        }
        // Relaxed: only so that loom tries both orders. Release: what this guard has protected comes before
        // what was deferred.
        ORDER.fetch_add(1, Ordering::Relaxed);
        end.fetch_add(1, Ordering::Release);
        let ready: Vec<Grave> = GRAVEYARD.with_borrow_mut(|graveyard| {
            graveyard.active.remove(&self.0);
            let (mut ready, mut waiting) = (Vec::new(), Vec::new());
            for mut grave in std::mem::take(&mut graveyard.graves) {
                grave.waits_for.retain(|guard| *guard != self.0);
                if grave.waits_for.is_empty() { ready.push(grave) } else { waiting.push(grave) }
            }
            graveyard.graves = waiting;
            ready
        });
        for grave in ready {
            for end in &grave.ends {
                // Acquire: pairs with the Release above.
                assert_eq!(end.fetch_add(0, Ordering::Acquire), 1);
            }
            (grave.run)();
        }
    }
}

/// Begins a model's execution: empties the graveyard that an execution which failed may have left, and
/// says in which mode this one runs.
#[cfg(test)]
pub(crate) fn begin(reuse: bool) {
    super::corpses::forget();
    GRAVEYARD.with_borrow_mut(|graveyard| {
        // What is left refers to objects of an execution that is over: not to be run.
        graveyard.graves.drain(..).for_each(std::mem::forget);
        let unused = if reuse { 24 } else { 0 };
        let unused = (0..unused).map(|_| Rc::new(AtomicUsize::new(0))).collect();
        *graveyard = Graveyard { reuse, unused, ..Graveyard::default() };
    });
}

/// Runs all that was deferred. To be called at the end of a model, when no guard is left.
#[cfg(test)]
pub(crate) fn bury_all() {
    loop {
        let graves = GRAVEYARD.with_borrow_mut(|graveyard| {
            assert!(graveyard.active.is_empty(), "a guard is left at the end of the model");
            std::mem::take(&mut graveyard.graves)
        });
        if graves.is_empty() && !super::corpses::bury() {
            return;
        }
        graves.into_iter().for_each(|grave| (grave.run)());
    }
}
