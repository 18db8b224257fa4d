//! Reclamation under shuttle: what is deferred runs at the earliest moment that the contract of a guard
//! allows, when the last guard that existed at the time of the `defer` has gone. The real epoch is never
//! faster, and rarely as fast, so slots are used again as soon as they may be.
//!
//! shuttle runs all threads of a test on one thread of the system, so the state is a plain thread-local,
//! invisible to it.

pub(crate) use super::fate::Fate;
use std::cell::RefCell;
use std::collections::BTreeSet;

type Deferred = Box<dyn FnOnce()>;

#[derive(Default)]
struct Graveyard {
    next: u64,
    active: BTreeSet<u64>,
    /// With the guards that each waits for.
    graves: Vec<(BTreeSet<u64>, Deferred)>,
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
            assert!(graveyard.active.contains(&self.0), "a guard is used after its end");
            graveyard.graves.push((graveyard.active.clone(), Box::new(f)));
        });
    }

    pub(crate) fn flush(&self) {}
}

impl Drop for Guard {
    fn drop(&mut self) {
        let ready = GRAVEYARD.with_borrow_mut(|graveyard| {
            graveyard.active.remove(&self.0);
            let mut ready = Vec::new();
            for (mut guards, f) in std::mem::take(&mut graveyard.graves) {
                guards.remove(&self.0);
                if guards.is_empty() { ready.push(f) } else { graveyard.graves.push((guards, f)) }
            }
            ready
        });
        if std::thread::panicking() {
            // The execution has failed; what it deferred may refer to what is gone.
            ready.into_iter().for_each(std::mem::forget);
            return;
        }
        ready.into_iter().for_each(|f| f());
    }
}

/// Frees what nobody can still be looking at.
pub(crate) fn free<T>(corpse: Box<T>) {
    drop(corpse);
}
