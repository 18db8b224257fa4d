//! The ring that bounds the tombstones: the oldest goes first.

use crate::map::Handle;
use crate::segments::{MAX_INDEX, Segments, ZeroInit};
use crate::sync::{AtomicU64, Ordering};

/// The handles of the latest tombstones. A place that comes up again gives the one that was there. Places
/// take memory from their first use on.
pub(super) struct Graveyard {
    next: AtomicU64,
    capacity: u64,
    places: Segments<Place>,
}

/// Handle bits + 1, or 0.
#[derive(Default)]
struct Place(AtomicU64);

// SAFETY: a zero `AtomicU64` is its default, without drop glue.
unsafe impl ZeroInit for Place {}

impl Graveyard {
    /// At most 2³² − 64 places.
    pub(super) fn new(capacity: usize) -> Self {
        let capacity = (capacity as u64).min(MAX_INDEX as u64 + 1);
        Graveyard { next: AtomicU64::new(0), capacity, places: Segments::new() }
    }

    /// Puts a tombstone in, and gives the one that has to go for it: itself, if there is no room at all.
    ///
    /// Wait-free, but for the memory of a place used for the first time. What comes out may have been
    /// removed before, or its id tracked again; its handle then finds nothing.
    pub(super) fn bury(&self, handle: Handle) -> Option<Handle> {
        if self.capacity == 0 {
            return Some(handle);
        }
        // Relaxed, the counter: only the places must differ, and the exchange below orders the rest.
        let at = self.next.fetch_add(1, Ordering::Relaxed) % self.capacity;
        let Some(Place(place)) = self.places.get_or_alloc(at as u32) else { return Some(handle) };
        // Handle bits end below 2^62. AcqRel: whoever takes the handle out sees the entry that it names.
        let old = place.swap(handle.to_bits() + 1, Ordering::AcqRel);
        old.checked_sub(1).map(Handle::from_bits)
    }
}

#[cfg(all(test, not(kvlease_loom)))]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn without_room_each_goes_at_once() {
        let ring = Graveyard::new(0);
        for bits in [0, 7, (1 << 62) - 1] {
            assert_eq!(ring.bury(Handle::from_bits(bits)), Some(Handle::from_bits(bits)));
        }
    }

    #[test]
    fn the_oldest_goes_first_and_only_when_the_ring_is_full() {
        for capacity in [1, 2, 3, 64] {
            let ring = Graveyard::new(capacity);
            for n in 0..200u64 {
                // The handle of slot 0 in generation 0 is a handle like any other.
                let oldest = n.checked_sub(capacity as u64).map(Handle::from_bits);
                assert_eq!(ring.bury(Handle::from_bits(n)), oldest, "{n} of {capacity}");
            }
        }
    }

    #[test]
    fn of_threads_that_bury_each_handle_comes_out_once_or_stays() {
        let per_thread = if cfg!(miri) { 20 } else { 20_000 };
        for room in [1, 5] {
            let ring = Graveyard::new(room);
            let mut out: Vec<u64> = std::thread::scope(|s| {
                let threads: Vec<_> = (0..4)
                    .map(|t| {
                        let ring = &ring;
                        s.spawn(move || {
                            let mine = (0..per_thread).map(|n| Handle::from_bits(t * per_thread + n));
                            mine.filter_map(|handle| ring.bury(handle)).map(Handle::to_bits).collect::<Vec<_>>()
                        })
                    })
                    .collect();
                threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(out.len() as u64, 4 * per_thread - room as u64);
            out.extend((0..room as u32).map(|at| ring.places.get(at).unwrap().0.load(Ordering::Relaxed) - 1));
            let distinct: BTreeSet<u64> = out.iter().copied().collect();
            assert_eq!((distinct.len(), out.len() as u64), (out.len(), 4 * per_thread));
        }
    }
}
