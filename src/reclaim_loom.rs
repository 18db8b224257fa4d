//! Reclamation under loom: a graveyard that checks, in place of the epoch.
//!
//! Two modes. By default what is deferred waits until [`bury_all`], at the end of the model, so that
//! nothing is reused and any access to what was retired is still defined and can be caught by the caller's
//! assertions. With [`set_reuse`] it runs at the earliest moment that the contract of a guard allows: when
//! the last guard that existed at the time of the `defer` has gone. The real epoch is never faster.
//!
//! loom runs all threads of a model on one thread of the system, so the state is a plain thread-local,
//! invisible to loom. The happens-before edge that the epoch gives, from the end of a guard to what was
//! deferred, is made by one atomic of loom's.

use loom::sync::atomic::{AtomicUsize, Ordering};
use std::cell::RefCell;
use std::collections::BTreeSet;

loom::lazy_static! {
    static ref EDGE: AtomicUsize = AtomicUsize::new(0);
}

type Deferred = Box<dyn FnOnce()>;

#[derive(Default)]
struct Graveyard {
    reuse: bool,
    next: u64,
    active: BTreeSet<u64>,
    waiting: Vec<(BTreeSet<u64>, Deferred)>,
}

thread_local!(static GRAVEYARD: RefCell<Graveyard> = RefCell::default());

/// See the guard of ordinary builds.
#[derive(Debug)]
pub struct Guard(u64);

/// See the `pin` of ordinary builds.
pub fn pin() -> Guard {
    GRAVEYARD.with_borrow_mut(|graveyard| {
        graveyard.next += 1;
        graveyard.active.insert(graveyard.next);
        Guard(graveyard.next)
    })
}

impl Guard {
    pub(crate) fn defer<F: FnOnce() + Send + 'static>(&self, f: F) {
        GRAVEYARD.with_borrow_mut(|graveyard| {
            assert!(graveyard.active.contains(&self.0));
            let active = graveyard.active.clone();
            graveyard.waiting.push((active, Box::new(f)));
        });
    }

    pub(crate) fn flush(&self) {}
}

impl Drop for Guard {
    fn drop(&mut self) {
        let reuse = GRAVEYARD.with_borrow(|graveyard| graveyard.reuse);
        if reuse {
            // Release: what this guard has protected comes before what was deferred.
            EDGE.fetch_add(1, Ordering::AcqRel);
        }
        let ready: Vec<Deferred> = GRAVEYARD.with_borrow_mut(|graveyard| {
            graveyard.active.remove(&self.0);
            let mut ready = Vec::new();
            let mut waiting = Vec::new();
            for (mut guards, f) in std::mem::take(&mut graveyard.waiting) {
                guards.remove(&self.0);
                match graveyard.reuse && guards.is_empty() {
                    true => ready.push(f),
                    false => waiting.push((guards, f)),
                }
            }
            graveyard.waiting = waiting;
            ready
        });
        if !ready.is_empty() {
            EDGE.fetch_add(1, Ordering::AcqRel);
            ready.into_iter().for_each(|f| f());
        }
    }
}

/// Begins a model's execution: empties the graveyard that an execution which failed may have left, and
/// says in which mode this one runs.
pub fn begin(reuse: bool) {
    GRAVEYARD.with_borrow_mut(|graveyard| {
        // What is left refers to objects of an execution that is over: not to be run.
        graveyard.waiting.drain(..).for_each(|(_, f)| std::mem::forget(f));
        *graveyard = Graveyard { reuse, ..Graveyard::default() };
    });
}

/// Runs all that was deferred. To be called at the end of a model, when no guard is left.
pub fn bury_all() {
    loop {
        let waiting = GRAVEYARD.with_borrow_mut(|graveyard| {
            assert!(graveyard.active.is_empty(), "a guard is left at the end of the model");
            std::mem::take(&mut graveyard.waiting)
        });
        if waiting.is_empty() {
            return;
        }
        waiting.into_iter().for_each(|(_, f)| f());
    }
}
