//! A lock-free hash map with compare-and-remove, usable without the rest of the crate.
//!
//! [`CasMap`] is for entries that several threads fight over: of all threads that try to remove an entry
//! exactly one is told that it did, and [`compare_remove`](CasMap::compare_remove) removes *the very
//! entry that was observed*, by identity: not one that has come under the same key since, even if it is
//! equal. An equal key never gets in twice.
//!
//! # Example
//!
//! ```
//! use kvlease::map::{self, CasMap};
//!
//! let jobs = CasMap::new();
//! let guard = map::pin();
//! jobs.insert("a", 1, &guard).unwrap();
//!
//! let seen = jobs.get("a", &guard).unwrap();
//! assert!(jobs.compare_remove(&seen, &guard)); // we are the one
//! assert!(!jobs.compare_remove(&seen, &guard)); // nobody else is
//! assert_eq!(*seen.value(), 1); // still readable under the guard
//!
//! jobs.insert("a", 1, &guard).unwrap(); // another life of "a"
//! assert!(!jobs.compare_remove(&seen, &guard)); // is not the one that was seen
//! ```
//!
//! Without a guard in hand, [`CasMap::pin`] gives the same calls with one inside:
//!
//! ```
//! let map = kvlease::map::CasMap::new();
//! let map = map.pin();
//! map.insert(1, "one").unwrap();
//! assert_eq!(map.get(&1).map(|entry| *entry.value()), Some("one"));
//! assert!(map.remove(&1).is_some());
//! assert!(map.is_empty());
//! ```
//!
//! # Guarantees
//!
//! | call | progress | linearization point |
//! |---|---|---|
//! | `get`, `contains_key`, `by_handle` | wait-free up to the number of levels of one bucket (one, but for collisions of 28 hash bits), and of growths meanwhile | the load that finds the entry live; if absent, the load of the bucket's header, or the entry's removal during the call |
//! | `insert`, `get_or_insert_with` | lock-free | the exchange that makes the entry's reference valid; if refused, the load that finds the other one live |
//! | `remove`, `remove_if`, `compare_remove` | lock-free; the removal itself is one compare-exchange | that exchange |
//! | `replace_if`, `compare_replace` | lock-free; the replacement itself is one compare-exchange | that exchange |
//! | `iter`, `retain`, `clear`, `len` | wait-free in the number of slots (stripes for `len`) | none: weakly consistent. An entry that is there all the time is met exactly once |
//!
//! **Memory ordering.** What happens before an insert or a replacement in its thread is visible to
//! whoever observes the entry or the value. What happens before a removal is visible to the destructors
//! of key and value. [`docs::orderings`](crate::docs::orderings)
//! lists every atomic access and its partner.
//!
//! **Memory.** Keys and values lie in pooled slots that never move. Once warm, neither insert nor removal
//! allocates, but for one small bookkeeping node of the epoch collector in 64 removals. A removed key
//! and value are dropped after a grace period (every guard from before is gone), in batches of 64, or
//! when the map is dropped, whichever is first; each exactly once. A guard that is held for long holds
//! them back; [`CasMap::slots`] shows by how much. **Slots and index never shrink** while the map lives.
//!
//! **Panics.** None of its own. If `Hash`, `Eq` or a closure of the caller panics, the map stays whole; at
//! most one slot is not used again. If the destructor of a key or value panics, the others are dropped all
//! the same. The panic comes out of whatever call happens to collect, on any map and thread of the
//! process, so destructors had better not.
//!
//! **Hashing.** The default hasher is keyed at random per map, since the keys of a server are chosen by
//! its clients.
//!
//! # How it works
//!
//! Three layers, each described at the head of its module in the source: `slots` (type-stable slots with
//! a generation and a state in one word; removal *is* the exchange of that word), `index` (cache-line
//! buckets of references, which are only hints; inserts become valid by an exchange of the bucket's
//! header, as in DLHT, HPDC 2024), `growth` (references are copied to a larger index bucket by bucket).

mod growth;
mod index;
mod slots;

pub use crate::reclaim::{Guard, pin};

use equivalent::Equivalent;
use growth::Indexes;
use index::{Bucket, Candidate, Header, Index, Placed, Ref, Vacancy, Wanted, hash_bits};
use slots::{Meta, Slot, SlotPool, State};
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

/// The default hasher: [`foldhash`]'s, with a random key per map.
#[cfg(not(any(kvlease_loom, kvlease_shuttle)))]
pub type RandomState = foldhash::fast::RandomState;
/// In a model each execution must hash alike.
#[cfg(any(kvlease_loom, kvlease_shuttle))]
pub type RandomState = foldhash::fast::FixedState;

/// A lock-free hash map with compare-and-remove. See the [module](self) for guarantees and an example.
pub struct CasMap<K, V, S = RandomState> {
    indexes: Indexes,
    slots: Arc<SlotPool<K, V>>,
    hasher: S,
}

// SAFETY: the raw pointers inside (index, slots) are owned, and sending the map sends its keys and values.
unsafe impl<K: Send, V: Send, S: Send> Send for CasMap<K, V, S> {}
// SAFETY: through `&CasMap` keys and values are shared (`get`) and moved in and dropped (`insert`, `remove`).
unsafe impl<K: Send + Sync, V: Send + Sync, S: Sync> Sync for CasMap<K, V, S> {}

/// An entry that was observed, as it was: a key and a value, readable as long as the guard lives, whether
/// or not the entry is still in the map. Also the identity that [`CasMap::compare_remove`] takes.
pub struct Entry<'g, K, V> {
    slot: &'g Slot<K, V>,
    /// Where the value lies that was current.
    holder: &'g Slot<K, V>,
    meta: Meta,
    index: u32,
    /// Where in its bucket the reference to it was; a hint for its removal.
    place: u8,
}

impl<K, V> Clone for Entry<'_, K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V> Copy for Entry<'_, K, V> {}

impl<'g, K, V> Entry<'g, K, V> {
    /// The key.
    #[inline]
    pub fn key(&self) -> &'g K {
        // SAFETY: an `Entry` is made of a slot seen live under a guard that is borrowed for 'g.
        unsafe { self.slot.key() }
    }

    /// The value as it was observed.
    #[inline]
    pub fn value(&self) -> &'g V {
        // SAFETY: as for the key; `holder` is where `meta` said that the value is.
        unsafe { self.holder.value() }
    }

    /// Whether the entry is still in the map, with this very value.
    pub fn is_current(&self) -> bool {
        self.slot.load_meta() == self.meta
    }

    /// A name for this entry that needs no guard and keeps nothing alive.
    pub fn handle(&self) -> Handle {
        Handle { index: self.index, generation: self.meta.generation() }
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for Entry<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("key", self.key()).field("value", self.value()).finish()
    }
}

/// The name of one entry of one map: it keeps nothing alive, and [`CasMap::by_handle`] finds the entry
/// again, without hashing, as long as it is in the map. Another entry under the same key has another
/// handle; one may repeat after its slot has been used 2³⁰ times. In another map it names whatever lies in that place
/// there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Handle {
    index: u32,
    generation: u32,
}

impl Handle {
    pub(crate) fn index(self) -> u32 {
        self.index
    }

    pub(crate) fn to_bits(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Handle { index: bits as u32, generation: (bits >> 32) as u32 }
    }
}

/// An insert was refused; key and value are handed back.
pub enum InsertError<'g, K, V> {
    /// There is an entry with an equal key.
    Exists {
        /// The key that was to be inserted.
        key: K,
        /// The value that was to be inserted.
        value: V,
        /// The entry that is there.
        entry: Entry<'g, K, V>,
    },
    /// The map has no slot left: 2³² − 65 are in use, or wait for guards to go.
    Full {
        /// The key that was to be inserted.
        key: K,
        /// The value that was to be inserted.
        value: V,
    },
}

impl<K, V> InsertError<'_, K, V> {
    /// The key and value that were to be inserted.
    pub fn into_inner(self) -> (K, V) {
        match self {
            InsertError::Exists { key, value, .. } | InsertError::Full { key, value } => (key, value),
        }
    }
}

impl<K, V> fmt::Debug for InsertError<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            InsertError::Exists { .. } => "Exists",
            InsertError::Full { .. } => "Full",
        })
    }
}

impl<K, V> fmt::Display for InsertError<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            InsertError::Exists { .. } => "an entry with an equal key exists",
            InsertError::Full { .. } => "the map has no slot left",
        })
    }
}

impl<K, V> std::error::Error for InsertError<'_, K, V> {}

/// How the slots of a map are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SlotStats {
    /// Slots that exist. Never shrinks.
    pub allocated: usize,
    /// Slots that hold an entry.
    pub live: usize,
}

impl SlotStats {
    /// Slots that wait for guards to go, or for their next use.
    pub fn idle(&self) -> usize {
        self.allocated.saturating_sub(self.live)
    }
}

impl<K, V> CasMap<K, V> {
    /// An empty map with a randomly keyed hasher.
    pub fn new() -> Self {
        Self::with_hasher(RandomState::default())
    }

    /// An empty map whose index has room for `capacity` entries without growing.
    pub fn with_capacity(capacity: usize) -> Self {
        Self::with_capacity_and_hasher(capacity, RandomState::default())
    }
}

impl<K, V, S: Default> Default for CasMap<K, V, S> {
    fn default() -> Self {
        Self::with_hasher(S::default())
    }
}

impl<K, V, S> CasMap<K, V, S> {
    /// An empty map with this hasher. If clients choose the keys, let it be a keyed one.
    pub fn with_hasher(hasher: S) -> Self {
        Self::with_capacity_and_hasher(0, hasher)
    }

    /// An empty map with this hasher whose index has room for `capacity` entries without growing.
    pub fn with_capacity_and_hasher(capacity: usize, hasher: S) -> Self {
        let least = if cfg!(any(kvlease_loom, kvlease_shuttle)) { 1 } else { 8 };
        CasMap { indexes: Indexes::new(capacity.div_ceil(growth::MAX_LOAD).max(least)), slots: SlotPool::new(), hasher }
    }

    /// Pins the thread and gives the map's calls without a guard argument.
    pub fn pin(&self) -> MapRef<'_, K, V, S> {
        MapRef { map: self, guard: pin() }
    }

    /// How many entries the map holds. Exact at rest; while others insert and remove, of some moment
    /// or other for each of them, and an insert counts from its beginning, even if it is refused.
    pub fn len(&self) -> usize {
        self.slots.in_use() as usize
    }

    /// Whether the map holds no entry; see [`len`](Self::len).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How the slots are used: under a guard that is held for long, `idle` grows by what it holds back.
    pub fn slots(&self) -> SlotStats {
        SlotStats { allocated: self.slots.len() as usize, live: self.len() }
    }

    /// The map's hasher.
    pub fn hasher(&self) -> &S {
        &self.hasher
    }

    /// The entry in this slot, if it is in the map.
    fn entry_in<'g>(&'g self, index: u32, guard: &'g Guard) -> Option<Entry<'g, K, V>> {
        let slot = self.slots.get(index)?;
        let meta = slot.load_meta();
        if meta.state() != State::Live {
            return None;
        }
        // Should it have died since, its hash bits may be anything, and we do not find it.
        let reference = Ref::new(slot.hash_bits(), meta.generation(), index);
        self.indexes.shows(reference, guard).then(|| self.entry(slot, meta, index, 0)).flatten()
    }

    /// What was seen of a live slot.
    #[inline(always)]
    fn entry<'g>(&'g self, slot: &'g Slot<K, V>, meta: Meta, index: u32, place: usize) -> Option<Entry<'g, K, V>> {
        let holder = match meta.value_slot() {
            None => slot,
            Some(holder) => self.slots.get(holder)?,
        };
        Some(Entry { slot, holder, meta, index, place: place as u8 })
    }

    /// Finds the entry again that a [`handle`](Entry::handle) names, if it is still in the map.
    #[inline]
    pub fn by_handle<'g>(&'g self, handle: Handle, guard: &'g Guard) -> Option<Entry<'g, K, V>> {
        let _ = guard;
        let slot = self.slots.get(handle.index)?;
        let meta = slot.load_meta();
        // Whoever has a handle has seen the entry in the map.
        (meta.state() == State::Live && meta.generation() == handle.generation)
            .then(|| self.entry(slot, meta, handle.index, 0))
            .flatten()
    }

    /// Has the processor fetch what [`by_index`](Self::by_index) will read for these.
    pub(crate) fn prefetch_by_index(&self, indexes: std::ops::Range<u32>, guard: &Guard) {
        if cfg!(any(kvlease_loom, kvlease_shuttle)) {
            return;
        }
        let index = self.indexes.current(guard);
        for slot in indexes.map_while(|slot| self.slots.get(slot)) {
            // Of a slot that is not in the index this is anything, and so is the bucket: no harm.
            prefetch(index.bucket(slot.hash_bits()));
        }
    }

    /// The entry that lives in this slot, whatever its generation.
    pub(crate) fn by_index<'g>(&'g self, index: u32, guard: &'g Guard) -> Option<Entry<'g, K, V>> {
        self.entry_in(index, guard)
    }

    /// All entries, in no order. Weakly consistent: an entry that is there from the call to the end is met
    /// exactly once, one that comes or goes meanwhile may be met or not. Takes time in proportion to the
    /// most entries that the map has ever held.
    pub fn iter<'g>(&'g self, guard: &'g Guard) -> Iter<'g, K, V, S> {
        Iter { map: self, guard, next: 0, end: self.slots.len() }
    }
}

impl<K, V, S> CasMap<K, V, S>
where
    K: Eq + Hash + Send + 'static,
    V: Send + 'static,
    S: BuildHasher,
{
    #[inline(always)]
    pub(crate) fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> u32 {
        hash_bits(self.hasher.hash_one(key))
    }

    /// Has the processor fetch the slot that a look-up of this hash will probably read.
    #[inline(always)]
    fn prefetch_slot(&self, hash: u32, guard: &Guard) {
        let bucket = self.indexes.current(guard).bucket(hash);
        let place = bucket.near(bucket.load(), Wanted::hash_bits(hash)).next();
        if let Some(slot) = place.and_then(|place| self.slots.get(bucket.reference(place).slot())) {
            slot.prefetch();
        }
    }

    /// Hands on each item with the hash of its key, when what a look-up of it reads is on its way: the keys of
    /// [`BATCH`] items are hashed first, and their look-ups do not wait for each other.
    pub(crate) fn in_batches<T: Copy, Q: Hash + ?Sized>(
        &self,
        items: impl IntoIterator<Item = T>,
        key: impl Fn(&T) -> &Q,
        guard: &Guard,
        mut each: impl FnMut(u32, T),
    ) {
        let mut items = items.into_iter().fuse();
        let mut batch: [Option<(u32, T)>; BATCH] = [None; BATCH];
        loop {
            let index = self.indexes.current(guard);
            let mut count = 0;
            for (place, item) in batch.iter_mut().zip(&mut items) {
                let hash = self.hash(key(&item));
                prefetch(index.bucket(hash));
                *place = Some((hash, item));
                count += 1;
            }
            if count == 0 {
                return;
            }
            if count > 1 {
                batch[..count].iter().flatten().for_each(|(hash, _)| self.prefetch_slot(*hash, guard));
            }
            for (hash, item) in batch[..count].iter_mut().filter_map(Option::take) {
                each(hash, item);
            }
        }
    }

    /// The entry with this key, if there is one.
    ///
    /// Wait-free but for collisions and growth; writes nothing.
    ///
    /// ```
    /// use kvlease::map::{self, CasMap};
    ///
    /// let map = CasMap::new();
    /// let guard = map::pin();
    /// map.insert(String::from("k"), 7, &guard).unwrap();
    /// let entry = map.get("k", &guard).unwrap();
    /// assert_eq!((entry.key().as_str(), *entry.value()), ("k", 7));
    /// assert!(map.get("l", &guard).is_none());
    /// ```
    #[inline]
    pub fn get<'g, Q>(&'g self, key: &Q, guard: &'g Guard) -> Option<Entry<'g, K, V>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.get_hashed(self.hash(key), key, guard)
    }

    /// Looks up many keys, and hands each on with its entry, in the order given.
    ///
    /// As [`get`](Self::get) for one after the other, each at the moment at which it is handed on; but the
    /// memory that they read is asked for together, sixteen keys at a time. In a map larger than the caches, where
    /// a look-up waits for memory, that is two to three times as fast. `on` may change the map, under the same guard.
    /// Of borrowed keys (`&[&str]`, say) give it `keys.iter().copied()`.
    ///
    /// ```
    /// use kvlease::map::{self, CasMap};
    ///
    /// let map = CasMap::new();
    /// let guard = map::pin();
    /// for n in 0..100_u64 {
    ///     map.insert(n, n * n, &guard).unwrap();
    /// }
    /// let mut ended = Vec::new();
    /// map.get_batch(&[7, 200, 9], &guard, |key, entry| match entry {
    ///     Some(entry) if map.compare_remove(&entry, &guard) => ended.push(*entry.value()),
    ///     _ => assert_eq!(*key, 200),
    /// });
    /// assert_eq!(ended, [49, 81]);
    /// ```
    pub fn get_batch<'g, 'q, Q>(
        &'g self,
        keys: impl IntoIterator<Item = &'q Q>,
        guard: &'g Guard,
        mut on: impl FnMut(&'q Q, Option<Entry<'g, K, V>>),
    ) where
        Q: Hash + Equivalent<K> + ?Sized + 'q,
    {
        self.in_batches(keys, |key| *key, guard, |hash, key| on(key, self.get_hashed(hash, key, guard)));
    }

    #[inline]
    pub(crate) fn get_hashed<'g, Q>(&'g self, hash: u32, key: &Q, guard: &'g Guard) -> Option<Entry<'g, K, V>>
    where
        Q: Equivalent<K> + ?Sized,
    {
        self.find(hash, key, guard).ok()
    }

    /// The entry with this key, or where there is room for it.
    #[inline(always)]
    pub(crate) fn find<'g, Q>(&'g self, hash: u32, key: &Q, guard: &'g Guard) -> Result<Entry<'g, K, V>, Vacant<'g>>
    where
        Q: Equivalent<K> + ?Sized,
    {
        let index = self.indexes.current(guard);
        let at = index.begin(hash);
        // Nearly always the first bucket answers.
        if !at.seen.is_moved() {
            if let Some(entry) = self.find_in(at.level, at.seen, hash, key) {
                return Ok(entry);
            }
            if !at.seen.is_sealed() {
                return Err(Vacant { began: index, index, at });
            }
        }
        self.find_behind(Vacant { began: index, index, at }, hash, key)
    }

    /// Goes on from a bucket that has moved, or that was looked through and is sealed.
    #[cold]
    fn find_behind<'g, Q>(&'g self, from: Vacant<'g>, hash: u32, key: &Q) -> Result<Entry<'g, K, V>, Vacant<'g>>
    where
        Q: Equivalent<K> + ?Sized,
    {
        let Vacant { began, mut index, mut at } = from;
        loop {
            // It is the first level alone that sends look-ups to the next index.
            if at.first && at.seen.is_moved() {
                // Moved, so there is one.
                let Some(next) = index.next() else { return Err(Vacant { began, index, at }) };
                index = next;
                at = index.begin(hash);
                if at.seen.is_moved() {
                    continue;
                }
            } else {
                if !at.seen.is_sealed() {
                    return Err(Vacant { began, index, at });
                }
                let Some(next) = at.level.next_level() else { return Err(Vacant { began, index, at }) };
                at = Vacancy { level: next, seen: next.load(), first: false };
            }
            if let Some(entry) = self.find_in(at.level, at.seen, hash, key) {
                return Ok(entry);
            }
        }
    }

    #[inline(always)]
    fn find_in<'g, Q>(&'g self, level: &Bucket, seen: Header, hash: u32, key: &Q) -> Option<Entry<'g, K, V>>
    where
        Q: Equivalent<K> + ?Sized,
    {
        for place in level.near(seen, Wanted::hash_bits(hash)) {
            if let Some(entry) = self.find_at(level, seen, place, hash, key) {
                return Some(entry);
            }
        }
        if seen.has_spilled() { self.find_spilled(level, seen, hash, key) } else { None }
    }

    #[cold]
    fn find_spilled<'g, Q>(&'g self, level: &Bucket, seen: Header, hash: u32, key: &Q) -> Option<Entry<'g, K, V>>
    where
        Q: Equivalent<K> + ?Sized,
    {
        level.spilled(seen, Wanted::hash_bits(hash)).find_map(|place| self.find_at(level, seen, place, hash, key))
    }

    /// The entry whose reference lies in this place, if it has this key.
    #[inline(always)]
    fn find_at<'g, Q>(
        &'g self,
        level: &Bucket,
        seen: Header,
        place: usize,
        hash: u32,
        key: &Q,
    ) -> Option<Entry<'g, K, V>>
    where
        Q: Equivalent<K> + ?Sized,
    {
        let reference = level.reference(place);
        if reference.hash_bits() != hash {
            return None;
        }
        let slot = self.slots.get(reference.slot())?;
        let meta = slot.load_meta();
        // Not in the index, or not any more: an entry that was there at `seen` has been removed since.
        if !meta.is_live_as(reference) || !level.confirm(seen, place, reference) {
            return None;
        }
        // SAFETY: live, in the generation that was seen, and it has been in the map; under the guard of our
        // caller.
        if !key.equivalent(unsafe { slot.key() }) {
            return None;
        }
        self.entry(slot, meta, reference.slot(), place)
    }

    /// Whether the slot of this reference has not been removed. See `growth` for why by a
    /// read-modify-write.
    fn is_alive(&self, reference: Ref) -> bool {
        self.slots.get(reference.slot()).is_some_and(|slot| {
            let meta = slot.settle_meta();
            meta.is_live_as(reference)
        })
    }

    /// Whether there is an entry with this key.
    pub fn contains_key<Q>(&self, key: &Q, guard: &Guard) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.get(key, guard).is_some()
    }

    /// Inserts an entry, unless there is one with an equal key. Nothing is ever overwritten.
    ///
    /// Lock-free. Of any number of threads that insert equal keys one succeeds.
    ///
    /// # Errors
    /// [`InsertError::Exists`] with the key and value, and the entry that is there.
    ///
    /// ```
    /// use kvlease::map::{self, CasMap, InsertError};
    ///
    /// let map = CasMap::new();
    /// let guard = map::pin();
    /// map.insert(1, "one", &guard).unwrap();
    /// match map.insert(1, "uno", &guard) {
    ///     Err(InsertError::Exists { value, entry, .. }) => {
    ///         assert_eq!((value, *entry.value()), ("uno", "one"));
    ///     }
    ///     _ => unreachable!(),
    /// }
    /// ```
    pub fn insert<'g>(&'g self, key: K, value: V, guard: &'g Guard) -> Result<Entry<'g, K, V>, InsertError<'g, K, V>> {
        let hash = self.hash(&key);
        match self.find(hash, &key, guard) {
            Ok(entry) => Err(InsertError::Exists { key, value, entry }),
            Err(vacant) => self.insert_at(vacant, hash, key, value, guard),
        }
    }

    /// Inserts an entry that a look-up has not found.
    ///
    /// If nothing has changed since at the place where it ended, the look-up was the insert's, too.
    pub(crate) fn insert_at<'g>(
        &'g self,
        vacant: Vacant<'g>,
        hash: u32,
        key: K,
        value: V,
        guard: &'g Guard,
    ) -> Result<Entry<'g, K, V>, InsertError<'g, K, V>> {
        let alive = |reference| self.is_alive(reference);
        let mut inserting = Inserting { map: self, hash, guard, outside: Some((key, value)), inside: None };
        let mut index = vacant.index;
        let mut placed = match index.next() {
            None => index.place_from(vacant.at, true, &mut inserting),
            // A move is on: it is inserts that bring it to its end.
            Some(_) => Placed::Frozen,
        };
        let rival = loop {
            match placed {
                Placed::Done { place, spilled } => {
                    if !std::ptr::eq(vacant.began, index) {
                        self.indexes.help(vacant.began, &alive, guard);
                    } else if spilled {
                        self.indexes.consider_growth(index, hash, || self.len(), guard);
                    }
                    let Some((slot, meta, index)) = inserting.inside else { unreachable!("its reference is valid") };
                    return Ok(Entry { slot, holder: slot, meta, index, place: place as u8 });
                }
                Placed::Found(rival) => break Some(rival),
                // The index admits nobody any more: on to the one that follows it.
                Placed::Frozen => {
                    index = self.indexes.newest(hash, &alive, guard);
                    placed = index.place(hash, &mut inserting);
                }
                Placed::Refused => break None,
            }
        };
        let Some((key, value)) = inserting.take_back() else { unreachable!("it was never valid") };
        Err(match rival {
            Some(entry) => InsertError::Exists { key, value, entry },
            None => InsertError::Full { key, value },
        })
    }

    /// The entry with this key, inserted with the value that `make` gives if there is none. `make` may be
    /// called and its value dropped when another thread is faster.
    ///
    /// # Errors
    /// [`InsertError::Full`] only.
    pub fn get_or_insert_with<'g>(
        &'g self,
        key: K,
        make: impl FnOnce() -> V,
        guard: &'g Guard,
    ) -> Result<Entry<'g, K, V>, InsertError<'g, K, V>> {
        let hash = self.hash(&key);
        match self.find(hash, &key, guard) {
            Ok(entry) => Ok(entry),
            Err(vacant) => match self.insert_at(vacant, hash, key, make(), guard) {
                Err(InsertError::Exists { entry, .. }) => Ok(entry),
                other => other,
            },
        }
    }

    /// Removes the entry with this key. Of any number of threads one is given it.
    ///
    /// Lock-free. The entry stays readable under the guard.
    pub fn remove<'g, Q>(&'g self, key: &Q, guard: &'g Guard) -> Option<Entry<'g, K, V>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.remove_if(key, |_| true, guard)
    }

    /// Removes the entry with this key if its value satisfies `condition`, which may be asked again if
    /// the value is replaced meanwhile. The value removed is the one that satisfied it.
    ///
    /// Lock-free.
    ///
    /// ```
    /// use kvlease::map::{self, CasMap};
    ///
    /// let map = CasMap::new();
    /// let guard = map::pin();
    /// map.insert("x", 3, &guard).unwrap();
    /// assert!(map.remove_if("x", |v| *v > 3, &guard).is_none());
    /// assert!(map.remove_if("x", |v| *v == 3, &guard).is_some());
    /// ```
    pub fn remove_if<'g, Q>(
        &'g self,
        key: &Q,
        mut condition: impl FnMut(&V) -> bool,
        guard: &'g Guard,
    ) -> Option<Entry<'g, K, V>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let hash = self.hash(key);
        loop {
            let entry = self.get_hashed(hash, key, guard)?;
            if !condition(entry.value()) {
                return None;
            }
            if self.compare_remove(&entry, guard) {
                return Some(entry);
            }
        }
    }

    /// Removes exactly the entry that was observed, with the value that was observed. True for one of all
    /// callers, false if it is gone, or replaced, or of another map.
    ///
    /// One compare-exchange decides; what follows is cleaning, which others can do as well.
    pub fn compare_remove(&self, entry: &Entry<'_, K, V>, guard: &Guard) -> bool {
        if !self.owns(entry) || !entry.slot.try_kill(entry.meta) {
            return false;
        }
        let reference = Ref::new(entry.slot.hash_bits(), entry.meta.generation(), entry.index);
        self.indexes.unlink(reference, entry.place as usize, guard);
        self.slots.retire(entry.index, guard);
        true
    }

    fn owns(&self, entry: &Entry<'_, K, V>) -> bool {
        self.slots.get(entry.index).is_some_and(|slot| std::ptr::eq(slot, entry.slot))
    }

    /// Puts `value` in place of the one that was observed.
    ///
    /// One compare-exchange decides. The old value is dropped after a grace period.
    ///
    /// # Errors
    /// The value is handed back if the entry is gone, or has another value by now, or is of another map
    /// (or if no slot is left).
    pub fn compare_replace<'g>(
        &'g self,
        entry: &Entry<'g, K, V>,
        value: V,
        guard: &'g Guard,
    ) -> Result<Entry<'g, K, V>, V> {
        if !self.owns(entry) || !entry.is_current() {
            return Err(value);
        }
        let Some(number) = self.slots.alloc(guard) else { return Err(value) };
        let Some(holder) = self.slots.get(number) else { unreachable!("just allocated") };
        self.slots.fill(holder, None, value, 0, State::Free);
        if entry.slot.try_replace(entry.meta, number) {
            match entry.meta.value_slot() {
                None => self.slots.retire_own_value(entry.index, guard),
                Some(old) => self.slots.retire(old, guard),
            }
            return Ok(Entry { holder, meta: entry.meta.with_value_slot(number), ..*entry });
        }
        let back = self.slots.take_back(holder);
        self.slots.retire(number, guard);
        match back {
            Some((_, value)) => Err(value),
            None => unreachable!("filled above"),
        }
    }

    /// Puts `value` in place of the one under this key, if that satisfies `condition`, which may be asked
    /// again if another thread replaces it meanwhile.
    ///
    /// Lock-free.
    ///
    /// # Errors
    /// The value is handed back if there is no such entry, or the condition is not satisfied.
    ///
    /// ```
    /// use kvlease::map::{self, CasMap};
    ///
    /// let map = CasMap::new();
    /// let guard = map::pin();
    /// map.insert("x", 1, &guard).unwrap();
    /// map.replace_if("x", 2, |v| *v == 1, &guard).unwrap();
    /// assert_eq!(map.replace_if("x", 3, |v| *v == 1, &guard).unwrap_err(), 3);
    /// assert_eq!(*map.get("x", &guard).unwrap().value(), 2);
    /// ```
    pub fn replace_if<'g, Q>(
        &'g self,
        key: &Q,
        mut value: V,
        mut condition: impl FnMut(&V) -> bool,
        guard: &'g Guard,
    ) -> Result<Entry<'g, K, V>, V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let hash = self.hash(key);
        loop {
            let Some(entry) = self.get_hashed(hash, key, guard) else { return Err(value) };
            if !condition(entry.value()) {
                return Err(value);
            }
            match self.compare_replace(&entry, value, guard) {
                Ok(new) => return Ok(new),
                // No slot left: it would not help to try again.
                Err(back) if entry.is_current() => return Err(back),
                Err(back) => value = back,
            }
        }
    }

    /// Removes the entries that do not satisfy `keep`. One that is replaced meanwhile stays.
    pub fn retain(&self, mut keep: impl FnMut(&K, &V) -> bool, guard: &Guard) {
        for entry in self.iter(guard) {
            if !keep(entry.key(), entry.value()) {
                self.compare_remove(&entry, guard);
            }
        }
    }

    /// Removes all entries that are there when it comes by.
    pub fn clear(&self, guard: &Guard) {
        self.retain(|_, _| false, guard);
    }
}

/// What a look-up gives that found nothing: where an insert can begin.
pub(crate) struct Vacant<'g> {
    /// Where the look-up began.
    began: &'g Index,
    /// Where it ended: if elsewhere, a move is on.
    index: &'g Index,
    at: Vacancy<'g>,
}

/// An insert that is going on. A slot is spent on it only when nothing was seen to stand against it.
struct Inserting<'g, K, V, S> {
    map: &'g CasMap<K, V, S>,
    hash: u32,
    guard: &'g Guard,
    /// Key and value, until they are in a slot.
    outside: Option<(K, V)>,
    /// The slot that they are in, its `meta`, and its number.
    inside: Option<(&'g Slot<K, V>, Meta, u32)>,
}

impl<'g, K, V, S> Candidate for Inserting<'g, K, V, S>
where
    K: Eq + Hash + Send + 'static,
    V: Send + 'static,
    S: BuildHasher,
{
    type Rival = Entry<'g, K, V>;

    #[inline(always)]
    fn rival(&self, level: &Bucket, seen: Header) -> Option<Entry<'g, K, V>> {
        let key = match (&self.outside, &self.inside) {
            (Some((key, _)), _) => key,
            // SAFETY: filled by `reference`, and ours until the reference is valid.
            (None, Some((slot, ..))) => unsafe { slot.key() },
            (None, None) => return None,
        };
        self.map.find_in(level, seen, self.hash, key)
    }

    #[inline(always)]
    fn reference(&mut self) -> Option<Ref> {
        if self.inside.is_none() {
            let number = self.map.slots.alloc(self.guard)?;
            let slot = self.map.slots.get(number)?;
            let (key, value) = self.outside.take()?;
            let meta = self.map.slots.fill(slot, Some(key), value, self.hash, State::Live);
            self.inside = Some((slot, meta, number));
        }
        self.inside.map(|(_, meta, number)| Ref::new(self.hash, meta.generation(), number))
    }

    fn is_dead(&self, reference: Ref) -> bool {
        !self.map.is_alive(reference)
    }
}

impl<K: Send + 'static, V: Send + 'static, S> Inserting<'_, K, V, S> {
    /// Key and value of an insert that was refused.
    fn take_back(self) -> Option<(K, V)> {
        let Some((slot, _, number)) = self.inside else { return self.outside };
        let back = self.map.slots.take_back(slot);
        // Through the grace period, as any slot: see "no ABA" in `slots`.
        self.map.slots.retire(number, self.guard);
        back.and_then(|(key, value)| Some((key?, value)))
    }
}

/// What models ask beyond the public face.
#[cfg(all(test, kvlease_loom))]
impl<K, V, S> CasMap<K, V, S>
where
    K: Eq + Hash + Send + 'static,
    V: Send + 'static,
    S: BuildHasher,
{
    /// Starts a move to an index of twice the size, if none is on.
    pub(crate) fn begin_growth(&self, guard: &Guard) {
        self.indexes.begin_growth(guard);
    }

    /// How many buckets each index has: of one, unless a move is on.
    pub(crate) fn buckets(&self, guard: &Guard) -> Vec<usize> {
        self.indexes.buckets(guard)
    }

    /// Moves the bucket of this key, if a move is on, as an insert does that finds it frozen.
    pub(crate) fn move_bucket_of<Q: Hash>(&self, key: &Q, guard: &Guard) {
        self.indexes.newest(self.hash(key), &|reference| self.is_alive(reference), guard);
    }

    /// Asserts what must hold at rest: every index refers to live entries only, to each at most once; every
    /// live entry is found by its key.
    pub(crate) fn assert_whole(&self, guard: &Guard) {
        for references in self.indexes.references(guard) {
            for (i, reference) in references.iter().enumerate() {
                let entry = self.entry_in(reference.slot(), guard);
                let generation = entry.map(|entry| entry.meta.generation());
                assert!(
                    generation.is_some_and(|generation| reference.generation_bits() == generation & 15),
                    "a reference to no entry"
                );
                assert!(!references[..i].contains(reference), "an entry is referred to twice");
            }
        }
        let mut live = 0;
        for entry in self.iter(guard) {
            live += 1;
            let found = self.get_hashed(self.hash(entry.key()), entry.key(), guard);
            assert_eq!(found.map(|found| found.handle()), Some(entry.handle()), "an entry is not found");
        }
        assert_eq!(self.len(), live);
    }
}

impl<K, V, S> Drop for CasMap<K, V, S> {
    fn drop(&mut self) {
        // Entries, and what waits in limbo. The pool's memory goes with the last closure that refers to it.
        self.slots.drop_all();
    }
}

impl<K: fmt::Debug, V: fmt::Debug, S> fmt::Debug for CasMap<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let guard = pin();
        f.debug_map().entries(self.iter(&guard).map(|entry| (entry.key(), entry.value()))).finish()
    }
}

/// The entries of a map; see [`CasMap::iter`].
pub struct Iter<'g, K, V, S> {
    map: &'g CasMap<K, V, S>,
    guard: &'g Guard,
    next: u32,
    end: u32,
}

impl<'g, K, V, S> Iterator for Iter<'g, K, V, S> {
    type Item = Entry<'g, K, V>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.next < self.end {
            let index = self.next;
            self.next += 1;
            if let Some(entry) = self.map.entry_in(index, self.guard) {
                return Some(entry);
            }
        }
        None
    }
}

/// A map with a guard: the calls of [`CasMap`] without the guard argument. Made by [`CasMap::pin`].
///
/// Keeps memory back while it lives, so let it go between batches.
pub struct MapRef<'m, K, V, S = RandomState> {
    map: &'m CasMap<K, V, S>,
    guard: Guard,
}

impl<K, V, S> MapRef<'_, K, V, S> {
    /// The guard inside.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// See [`CasMap::len`].
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// See [`CasMap::is_empty`].
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// See [`CasMap::iter`].
    pub fn iter(&self) -> Iter<'_, K, V, S> {
        self.map.iter(&self.guard)
    }

    /// See [`CasMap::by_handle`].
    pub fn by_handle(&self, handle: Handle) -> Option<Entry<'_, K, V>> {
        self.map.by_handle(handle, &self.guard)
    }
}

impl<K, V, S> MapRef<'_, K, V, S>
where
    K: Eq + Hash + Send + 'static,
    V: Send + 'static,
    S: BuildHasher,
{
    /// See [`CasMap::get`].
    pub fn get<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<Entry<'_, K, V>> {
        self.map.get(key, &self.guard)
    }

    /// See [`CasMap::get_batch`].
    pub fn get_batch<'m, 'q, Q>(
        &'m self,
        keys: impl IntoIterator<Item = &'q Q>,
        on: impl FnMut(&'q Q, Option<Entry<'m, K, V>>),
    ) where
        Q: Hash + Equivalent<K> + ?Sized + 'q,
    {
        self.map.get_batch(keys, &self.guard, on);
    }

    /// See [`CasMap::contains_key`].
    pub fn contains_key<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> bool {
        self.map.contains_key(key, &self.guard)
    }

    /// See [`CasMap::insert`].
    ///
    /// # Errors
    /// As [`CasMap::insert`].
    pub fn insert(&self, key: K, value: V) -> Result<Entry<'_, K, V>, InsertError<'_, K, V>> {
        self.map.insert(key, value, &self.guard)
    }

    /// See [`CasMap::get_or_insert_with`].
    ///
    /// # Errors
    /// As [`CasMap::get_or_insert_with`].
    pub fn get_or_insert_with(
        &self,
        key: K,
        make: impl FnOnce() -> V,
    ) -> Result<Entry<'_, K, V>, InsertError<'_, K, V>> {
        self.map.get_or_insert_with(key, make, &self.guard)
    }

    /// See [`CasMap::remove`].
    pub fn remove<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<Entry<'_, K, V>> {
        self.map.remove(key, &self.guard)
    }

    /// See [`CasMap::remove_if`].
    pub fn remove_if<Q: Hash + Equivalent<K> + ?Sized>(
        &self,
        key: &Q,
        condition: impl FnMut(&V) -> bool,
    ) -> Option<Entry<'_, K, V>> {
        self.map.remove_if(key, condition, &self.guard)
    }

    /// See [`CasMap::compare_remove`].
    pub fn compare_remove(&self, entry: &Entry<'_, K, V>) -> bool {
        self.map.compare_remove(entry, &self.guard)
    }

    /// See [`CasMap::compare_replace`].
    ///
    /// # Errors
    /// As [`CasMap::compare_replace`].
    pub fn compare_replace<'a>(&'a self, entry: &Entry<'a, K, V>, value: V) -> Result<Entry<'a, K, V>, V> {
        self.map.compare_replace(entry, value, &self.guard)
    }

    /// See [`CasMap::replace_if`].
    ///
    /// # Errors
    /// As [`CasMap::replace_if`].
    pub fn replace_if<Q: Hash + Equivalent<K> + ?Sized>(
        &self,
        key: &Q,
        value: V,
        condition: impl FnMut(&V) -> bool,
    ) -> Result<Entry<'_, K, V>, V> {
        self.map.replace_if(key, value, condition, &self.guard)
    }

    /// See [`CasMap::retain`].
    pub fn retain(&self, keep: impl FnMut(&K, &V) -> bool) {
        self.map.retain(keep, &self.guard);
    }

    /// See [`CasMap::clear`].
    pub fn clear(&self) {
        self.map.clear(&self.guard);
    }
}

/// How many look-ups are begun before the first of them is done.
const BATCH: usize = 16;

/// A hint to the processor; reads nothing and changes nothing.
#[inline(always)]
fn prefetch<T>(at: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri), not(kvlease_loom)))]
    // SAFETY: a prefetch never faults, and SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri), not(kvlease_loom))))]
    let _ = at;
}

#[cfg(all(test, not(any(kvlease_loom, kvlease_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn an_index_made_for_so_many_entries_has_room_for_them() {
        for capacity in 0..200 {
            let map = CasMap::<u32, u32>::with_capacity(capacity);
            let buckets = map.indexes.current(&pin()).len();
            assert!(buckets * growth::MAX_LOAD >= capacity, "{buckets} buckets for {capacity}");
        }
    }

    #[test]
    fn the_index_grows_with_the_entries() {
        let map = CasMap::new();
        let guard = pin();
        for key in 0..20_000 {
            map.insert(key, (), &guard).unwrap();
        }
        let buckets = map.indexes.current(&guard).len();
        assert!(buckets * 2 * growth::MAX_LOAD >= 20_000, "{buckets} buckets");
        assert!(map.indexes.current(&guard).levels() < 200);
    }

    #[test]
    fn a_move_is_over_after_inserts_for_a_quarter_of_its_buckets() {
        let map = CasMap::new();
        let guard = pin();
        let (mut met, mut moves) = (0, 0);
        for key in 0..40_000 {
            map.insert(key, (), &guard).unwrap();
            let index = map.indexes.current(&guard);
            match index.next() {
                Some(_) => met += 1,
                None => {
                    // Some buckets were moved by two, and one insert began it.
                    assert!(met <= index.len() / 2 / 4 + 2, "{met} inserts for a move to {} buckets", index.len());
                    moves += usize::from(met > 0);
                    met = 0;
                }
            }
        }
        assert!(moves >= 8, "{moves} moves");
    }

    #[test]
    fn levels_that_churn_leaves_behind_are_dissolved() {
        let map = CasMap::with_capacity(1_000);
        let guard = pin();
        let mut most = 0;
        for key in 0..if cfg!(miri) { 2_000 } else { 600_000 } {
            map.insert(key, (), &guard).unwrap();
            if key >= 1_000 {
                map.remove(&(key - 1_000), &guard).unwrap();
            }
            let index = map.indexes.current(&guard);
            most = most.max(index.levels());
            assert_eq!(index.len(), 256);
        }
        assert!(most <= 256 / 32 + 8 + 8, "{most} levels");
        assert!(cfg!(miri) || most > 8, "{most}: nothing has overflowed");
    }

    #[test]
    fn what_was_removed_leaves_no_reference_behind() {
        let map = CasMap::new();
        let guard = pin();
        for key in 0..100 {
            map.insert(key, key, &guard).unwrap();
        }
        for key in 0..100 {
            map.remove(&key, &guard).unwrap();
        }
        let mut index = Some(map.indexes.current(&guard));
        while let Some(current) = index {
            for number in 0..current.len() {
                let mut level = Some(current.bucket(number as u32));
                while let Some(bucket) = level {
                    let seen = bucket.load();
                    assert!(seen.is_moved() || seen.valid().count() == 0, "bucket {number}");
                    level = bucket.next_level();
                }
            }
            index = current.next();
        }
    }
}
