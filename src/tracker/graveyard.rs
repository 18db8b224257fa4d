//! The ring that bounds the tombstones: the oldest goes first.

use crate::map::Handle;
use crate::sync::{AtomicU64, Ordering};

/// The handles of the latest tombstones. A place that comes up again gives the one that was there.
pub(super) struct Graveyard {
    next: AtomicU64,
    /// Handle bits + 1, or 0.
    places: Box<[AtomicU64]>,
}

impl Graveyard {
    pub(super) fn new(capacity: usize) -> Self {
        Graveyard { next: AtomicU64::new(0), places: (0..capacity).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Puts a tombstone in, and gives the one that has to go for it: itself, if there is no room at all.
    ///
    /// Wait-free. What comes out may have been removed before, or its id tracked again; its handle then
    /// finds nothing.
    pub(super) fn bury(&self, handle: Handle) -> Option<Handle> {
        if self.places.is_empty() {
            return Some(handle);
        }
        // Relaxed, the counter: only the places must differ, and the exchange below orders the rest.
        let at = self.next.fetch_add(1, Ordering::Relaxed) as usize % self.places.len();
        // Handle bits end below 2^62. AcqRel: whoever takes the handle out sees the entry that it names.
        let old = self.places[at].swap(handle.to_bits() + 1, Ordering::AcqRel);
        old.checked_sub(1).map(Handle::from_bits)
    }
}
