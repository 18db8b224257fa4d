//! Growth: a larger index takes over bucket by bucket, moved by whoever comes by. Nobody waits.
//!
//! Entries never move, only references to them are copied. At any time there is a *current* index and,
//! while a move is on, a *next* one:
//!
//! ```text
//! bucket of the current index:   open ----> FROZEN ------------------------------> MOVED
//!                                   (no more inserts here)   (copy references)      (look in the next index)
//! ```
//!
//! * Until a bucket is MOVED it alone answers for its keys: look-ups read it, and nobody inserts such a
//!   key into the next index. After that the next index alone answers. So there is never a moment at
//!   which two inserts of equal keys could go to different places.
//! * Whoever wants to insert into a bucket that is not yet moved moves it first. And each insert that meets a move,
//!   whether in such a bucket or in the next index, moves some further ones on the way, so a move is over after
//!   as many inserts as a quarter of the buckets. To move is idempotent, and any number of threads may do it at
//!   once: a reference is placed in the next index only if it is not there.
//! * The last bucket moved promotes the next index to current and retires the old one through the epoch.
//! * A thread that stalls in the middle of a move delays nobody's operations. It may delay the promotion,
//!   hence the next growth; meanwhile full buckets are continued by further levels.
//!
//! **Removal during a move.** A remover kills the slot, then clears the reference from the current index
//! and then from the next, if there is one. A mover must not leave a copy behind that the remover could
//! not see. It ends its copy with an exchange that expects the header it copied from:
//!
//! * if a place was cleared meanwhile, the exchange fails, and the mover takes the copy back;
//! * if the exchange succeeds, any later clearing comes after MOVED, and its remover, which reads the
//!   next pointer after it, sees the next index and the copy in it;
//! * if somebody else has finished the move first, a reference that the mover has placed may have been
//!   removed everywhere before: the mover asks each such slot's `meta` by a read-modify-write. Either
//!   that sees the death, and the mover takes the copy back, or the remover's exchange comes later and
//!   sees the copy.
//!
//! In each case this happens under the mover's guard, so the slot is not used again before.

use super::index::{Bucket, Candidate, HASH_BITS, Header, Index, MAX_BUCKETS, Placed, Ref};
use crate::reclaim::{Guard, free};
use crate::sync::{AtomicPtr, Ordering};

/// Buckets that each insert moves on the way, while a move is on.
const HELP: usize = if cfg!(kvlease_loom) { 1 } else { 4 };

/// Grow when there are more entries than this for each bucket (six fit without a spill line).
pub(super) const MAX_LOAD: usize = if cfg!(kvlease_loom) { 2 } else { 4 };

/// The indexes of one map: the current one and, while a move is on, its successor.
pub(super) struct Indexes {
    current: AtomicPtr<Index>,
}

impl Indexes {
    pub(super) fn new(buckets: usize) -> Self {
        Indexes { current: AtomicPtr::new(Box::into_raw(Index::new(buckets))) }
    }

    /// The index at which every operation starts.
    #[inline(always)]
    pub(super) fn current<'g>(&'g self, _guard: &'g Guard) -> &'g Index {
        // Acquire: pairs with the Release in `promote`.
        let current = self.current.load(Ordering::Acquire);
        // SAFETY: never null; an index that was current is retired through the epoch after it was
        // replaced, so it outlives the guard.
        unsafe { &*current }
    }

    /// The index into which keys with these hash bits are inserted, its buckets moved as far as need be.
    #[inline]
    pub(super) fn newest<'g>(&'g self, hash_bits: u32, alive: &dyn Fn(Ref) -> bool, guard: &'g Guard) -> &'g Index {
        let index = self.current(guard);
        if index.next().is_none() { index } else { self.moved(index, hash_bits, alive, guard) }
    }

    #[cold]
    fn moved<'g>(
        &'g self,
        mut index: &'g Index,
        hash_bits: u32,
        alive: &dyn Fn(Ref) -> bool,
        guard: &'g Guard,
    ) -> &'g Index {
        while let Some(next) = index.next() {
            self.move_bucket(index, next, index.bucket(hash_bits), alive, guard);
            self.help(index, alive, guard);
            index = next;
        }
        index
    }

    /// Starts a move if the index has become too small, or too many of its buckets have several levels.
    ///
    /// Only the current index may have a successor: a move into an index that is itself being moved could
    /// find its bucket frozen.
    #[cold]
    pub(super) fn consider_growth(
        &self,
        index: &Index,
        hash_bits: u32,
        entries: impl FnOnce() -> usize,
        guard: &Guard,
    ) {
        // To count the entries is to read what all threads write: so one in eight of those does that had no
        // place in their bucket. One in a further level always does, where many keys have equal hash bits.
        let one_of_eight = cfg!(kvlease_loom) || hash_bits >> (HASH_BITS - 3) == 0;
        if !one_of_eight && !index.has_stale_levels() {
            return;
        }
        let entries = entries();
        if index.next().is_some() || !std::ptr::eq(index, self.current(guard)) {
            return;
        }
        if entries > MAX_LOAD * index.len() && index.len() < MAX_BUCKETS {
            index.set_next(Index::new(index.len() * 2));
        } else if index.has_stale_levels() {
            // Levels that churn has left behind: a fresh index of the same size.
            index.set_next(Index::new(index.len()));
        }
    }

    /// Whether `reference` is valid in the index that answers for it.
    pub(super) fn shows(&self, reference: Ref, guard: &Guard) -> bool {
        let mut index = self.current(guard);
        loop {
            if let Some(shows) = index.shows(reference) {
                return shows;
            }
            // Moved, so there is one.
            let Some(next) = index.next() else { return false };
            index = next;
        }
    }

    /// Clears `reference` wherever it is. Afterwards no index shows it as valid, but for a moment in which
    /// a mover that is still under its guard has to take it back.
    ///
    /// `hint`: the place that it was seen in, or any.
    pub(super) fn unlink(&self, reference: Ref, hint: usize, guard: &Guard) {
        unlink_from(self.current(guard), reference, hint);
    }

    /// Moves [`HELP`] buckets of `index` to the one that follows it. Each insert does so that meets a move, whether or
    /// not its own bucket has been moved.
    #[cold]
    pub(super) fn help(&self, index: &Index, alive: &dyn Fn(Ref) -> bool, guard: &Guard) {
        let Some(next) = index.next() else { return };
        // Relaxed: only spreads the work. It goes round: should a helper have stalled, others come to its
        // buckets in the next round.
        let start = index.cursor.fetch_add(HELP, Ordering::Relaxed);
        for i in start..start + HELP {
            self.move_bucket(index, next, index.bucket(i as u32), alive, guard);
        }
    }

    /// Sees to it that this bucket of `index` is moved to `next`.
    fn move_bucket(&self, index: &Index, next: &Index, first: &Bucket, alive: &dyn Fn(Ref) -> bool, guard: &Guard) {
        if first.load().is_moved() {
            return;
        }
        // Frozen from the first level to the last: a frozen level cannot be sealed any more, so the one
        // that is not sealed is the last. Moved from the last to the first, for it is the first that
        // sends look-ups to the next index.
        let mut header = first.freeze();
        let mut rest = Vec::new();
        let mut level = first;
        while header.is_sealed() {
            let Some(below) = level.next_level() else { break };
            header = below.freeze();
            rest.push(below);
            level = below;
        }
        for level in rest.into_iter().rev() {
            move_level(level, next, alive);
        }
        // AcqRel: the promoter's exchange comes after all moves.
        if move_level(first, next, alive) && index.moved.fetch_add(1, Ordering::AcqRel) + 1 == index.len() {
            self.promote(index, guard);
        }
    }

    /// Makes the successor current. Called once for each index, by the thread that moved its last bucket.
    fn promote(&self, index: &Index, guard: &Guard) {
        let seen = std::ptr::from_ref(index).cast_mut();
        // Release: pairs with `current`. It cannot fail: only the promoter of the current index changes it.
        let promoted = self.current.compare_exchange(seen, index.next_ptr(), Ordering::AcqRel, Ordering::Relaxed);
        debug_assert!(promoted.is_ok());
        if let Some(new) = index.next() {
            new.keep_levels();
        }
        if let Ok(old) = promoted {
            index.fate.retire();
            // The pointer as it was stored: one made from the reference could not be freed through.
            let old = Retired(old);
            guard.defer(move || {
                let Retired(old) = { old };
                // SAFETY: a box, unreachable since the exchange above, and no guard from before is left.
                let old = unsafe { Box::from_raw(old) };
                old.fate.reclaim();
                free(old);
            });
            guard.flush();
        }
    }
}

#[cfg(all(test, kvlease_loom))]
impl Indexes {
    pub(super) fn begin_growth(&self, guard: &Guard) {
        let index = self.current(guard);
        if index.next().is_none() {
            index.set_next(Index::new(index.len() * 2));
        }
    }

    /// How many buckets each index has, the current one first.
    pub(super) fn buckets(&self, guard: &Guard) -> Vec<usize> {
        std::iter::successors(Some(self.current(guard)), |index| index.next()).map(Index::len).collect()
    }

    /// All valid references, by index.
    pub(super) fn references(&self, guard: &Guard) -> Vec<Vec<Ref>> {
        let mut all = Vec::new();
        let mut index = Some(self.current(guard));
        while let Some(at) = index {
            let mut references = Vec::new();
            for number in 0..at.len() {
                let mut level = Some(at.bucket(number as u32));
                while let Some(bucket) = level {
                    references.extend(bucket.load().valid().map(|place| bucket.reference(place)));
                    level = bucket.next_level();
                }
            }
            all.push(references);
            index = at.next();
        }
        all
    }
}

struct Retired(*mut Index);
// SAFETY: `Index` is `Send`, and the pointer is its owner.
unsafe impl Send for Retired {}

/// Moves the frozen `level`; true if this call was the one that finished it.
fn move_level(level: &Bucket, next: &Index, alive: &dyn Fn(Ref) -> bool) -> bool {
    // What this thread has placed in `next` and is responsible for.
    let mut placed = [Ref(0); super::index::PLACES];
    let mut count = 0;
    let mut seen = level.load();
    loop {
        if seen.is_moved() {
            // Somebody else was faster, and what we placed may have been removed before we did.
            for reference in placed[..count].iter().filter(|r| !alive(**r)) {
                unlink_from(next, *reference, 0);
            }
            return false;
        }
        for place in seen.valid() {
            // A frozen bucket admits nobody: a place valid in `seen` still holds what it held.
            let reference = level.reference(place);
            if !placed[..count].contains(&reference) && copy(next, reference, alive) {
                placed[count] = reference;
                count += 1;
            }
        }
        match level.finish_move(seen) {
            Ok(_) => return true,
            Err(now) => {
                // Take back what has been cleared meanwhile.
                let mut kept = 0;
                for i in 0..count {
                    let reference = placed[i];
                    if now.valid().any(|place| level.reference(place) == reference) {
                        placed[kept] = reference;
                        kept += 1;
                    } else {
                        unlink_from(next, reference, 0);
                    }
                }
                count = kept;
                seen = now;
            }
        }
    }
}

/// A reference on its way into the next index. What stands against it is a copy of itself.
struct Copied<'a> {
    reference: Ref,
    alive: &'a dyn Fn(Ref) -> bool,
}

impl Candidate for Copied<'_> {
    type Rival = ();

    fn rival(&self, level: &Bucket, seen: Header) -> Option<()> {
        seen.valid().any(|place| level.reference(place) == self.reference).then_some(())
    }

    fn reference(&mut self) -> Option<Ref> {
        Some(self.reference)
    }

    fn is_dead(&self, reference: Ref) -> bool {
        !(self.alive)(reference)
    }
}

/// Places a copy of `reference` unless there is one. True if it did.
fn copy(next: &Index, reference: Ref, alive: &dyn Fn(Ref) -> bool) -> bool {
    // Frozen: `next` is current by now, so this move is over.
    matches!(next.place(reference.hash_bits(), &mut Copied { reference, alive }), Placed::Done { .. })
}

/// Clears `reference` from `index` and from those after it.
#[inline]
fn unlink_from(mut index: &Index, reference: Ref, hint: usize) {
    loop {
        let mut level = index.bucket(reference.hash_bits());
        while level.remove(reference, hint).is_sealed() {
            let Some(next) = level.next_level() else { break };
            level = next;
        }
        // After the clearing: see "Removal during a move".
        match index.next() {
            Some(next) => index = next,
            None => return,
        }
    }
}

impl Drop for Indexes {
    fn drop(&mut self) {
        // Relaxed: `&mut self`.
        let mut at = self.current.load(Ordering::Relaxed);
        while !at.is_null() {
            // SAFETY: the current index and its successors are boxes that nothing else owns; no guard
            // borrows the map any more.
            let index = unsafe { Box::from_raw(at) };
            at = index.next_ptr();
        }
    }
}

#[cfg(all(test, not(any(kvlease_loom, kvlease_shuttle))))]
mod tests {
    use super::*;
    use crate::reclaim::pin;

    fn place(index: &Index, reference: Ref) {
        assert!(copy(index, reference, &|_| true));
    }

    /// The valid places of the one bucket, level by level.
    fn valid(index: &Index) -> Vec<usize> {
        let mut counts = Vec::new();
        let mut level = Some(index.bucket(0));
        while let Some(bucket) = level {
            counts.push(bucket.load().valid().count());
            level = bucket.next_level();
        }
        counts
    }

    #[test]
    fn what_is_unlinked_is_gone_from_every_level_and_every_index() {
        let (indexes, guard) = (Indexes::new(1), pin());
        let refs: Vec<Ref> = (0..40).map(|slot| Ref::new(0, 1, slot)).collect();
        refs.iter().for_each(|reference| place(indexes.current(&guard), *reference));
        assert!(valid(indexes.current(&guard)).len() > 2);
        // Copies in the next index, as in the middle of a move.
        indexes.current(&guard).set_next(Index::new(1));
        let next = indexes.current(&guard).next().unwrap();
        refs.iter().for_each(|reference| place(next, *reference));
        refs.iter().for_each(|reference| indexes.unlink(*reference, 7, &guard));
        assert_eq!(valid(indexes.current(&guard)).iter().sum::<usize>(), 0);
        assert_eq!(valid(next).iter().sum::<usize>(), 0);
    }

    #[test]
    fn only_the_current_index_gets_a_successor() {
        let (indexes, guard) = (Indexes::new(1), pin());
        indexes.consider_growth(indexes.current(&guard), 0, || 1_000, &guard);
        let next = indexes.current(&guard).next().unwrap();
        indexes.consider_growth(next, 0, || 1_000, &guard);
        assert!(next.next().is_none());
    }

    #[test]
    fn a_move_takes_everything_along_and_is_done_once() {
        let (indexes, guard) = (Indexes::new(1), pin());
        let refs: Vec<Ref> = (0..40).map(|slot| Ref::new(slot << 4, 1, slot)).collect();
        refs.iter().for_each(|reference| place(indexes.current(&guard), *reference));
        indexes.consider_growth(indexes.current(&guard), 0, || 1_000, &guard);
        for _ in 0..2 {
            let newest = indexes.newest(0, &|_| true, &guard);
            assert!(std::ptr::eq(newest, indexes.current(&guard)), "one bucket was all there was to move");
            assert_eq!(valid(newest).iter().sum::<usize>(), 40);
        }
    }
}
