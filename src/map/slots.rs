//! Slots: where keys and values live. Type-stable, pooled, and used again only when the epoch allows.
//!
//! A slot never moves and its memory is never given back before the map goes, so to look at the
//! [`meta`](Slot::meta) word of any slot is always sound. What that word says decides everything else:
//!
//! ```text
//!           alloc + fill                  compare-exchange by the one remover
//!   Free(g) ------------> Live(g+1) -----------------------------------------> Dead(g+1)
//!     ^                       | lost to an equal key                               |
//!     |                       v                                                    v
//!     +-----------------------+------------ limbo (grace period) <-----------------+
//! ```
//!
//! * `meta` is `generation:30 | state:2 | value slot:32`. The value of an entry lies in its own slot
//!   (value slot 0) or, once it has been replaced, in the slot named there (number + 1). To replace a
//!   value is one compare-exchange of `meta`, and so is to remove an entry, so neither can miss the other.
//! * `Live` alone does not mean that the entry is in the map: it is from the moment at which a reference to it
//!   becomes valid in the index, and one that loses to an equal key before never is. So whoever comes
//!   by way of a reference asks the bucket again, after `meta`, whether it is valid
//!   ([`Bucket::confirm`](super::index::Bucket::confirm)), and does not touch the key before.
//! * **Under a guard a slot seen `Live`, of an entry that has been in the map, keeps its key, and the value seen
//!   with it, readable** until the guard goes: a slot is dropped and reused only after a grace period
//!   that starts at its death.
//! * Under one guard a slot changes its generation at most once, since for a second time it would have
//!   to die, and be reclaimed, while the guard exists. That is why four bits of it suffice in a reference.
//!
//! **The free lists** are Treiber stacks (Treiber, *Systems Programming: Coping with Parallelism*, 1986)
//! of slot numbers, one per stripe. `pop` runs under a guard and slots are pushed only after a grace
//! period, so a slot that `pop` has seen on top cannot be taken and pushed again meanwhile: no ABA.
//!
//! **Limbo**: a slot that died goes on its stripe's limbo stack; the 64th there takes the whole
//! stack and defers one closure for it. So a removal costs no allocation, and destructors of keys and
//! values run inside the collector, in batches, or when the map is dropped, whichever is first.
//!
//! The words of these stacks also count what was taken and what was given back, so that to know how many
//! entries there are costs no access of its own, but for those whose value was replaced: these are counted apart.

use super::index::Ref;
use super::prefetch;
use crate::reclaim::{Fate, Guard};
use crate::segments::{MAX_INDEX, Segments, ZeroInit};
use crate::sync::{AtomicCount, AtomicU32, AtomicU64, Ordering, STRIPES, UnsafeCell, store_owned, stripe};
use crossbeam_utils::CachePadded;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

/// How many dead slots are handed to the collector in one closure.
/// Fewer where a small program has to reach the reuse of slots.
const LIMBO_BATCH: u32 = if cfg!(any(kvlease_loom, kvlease_shuttle, miri)) { 1 } else { 64 };

/// What a slot is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// In the pool, or holding a value for another slot.
    Free = 0,
    /// Filled: in the map, or on its way into the index.
    Live = 1,
    /// Removed. Final for this generation.
    Dead = 2,
}

/// A value of a slot's `meta` word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Meta(pub(super) u64);

impl Meta {
    fn new(generation: u32, state: State, value_slot: u32) -> Self {
        Meta((generation as u64 & 0x3fff_ffff) << 34 | (state as u64) << 32 | value_slot as u64)
    }

    pub(super) fn generation(self) -> u32 {
        (self.0 >> 34) as u32
    }

    #[inline]
    pub(super) fn state(self) -> State {
        match self.0 >> 32 & 3 {
            0 => State::Free,
            1 => State::Live,
            _ => State::Dead,
        }
    }

    /// Whether the slot is live, in the generation that `reference` was made for.
    #[inline(always)]
    pub(super) fn is_live_as(self, reference: Ref) -> bool {
        // The four bits of the generation that a reference has, and the state.
        let expected = reference.generation_bits() << 2 | State::Live as u32;
        ((self.0 >> 32) as u32 ^ expected) & 0x3f == 0
    }

    pub(super) fn with_state(self, state: State) -> Self {
        Meta(self.0 & !(3 << 32) | (state as u64) << 32)
    }

    pub(super) fn with_value_slot(self, index: u32) -> Self {
        Meta(self.0 & !0xffff_ffff | (index as u64 + 1))
    }

    /// The slot that holds the value, if it is not the entry's own.
    #[inline]
    pub(super) fn value_slot(self) -> Option<u32> {
        (self.0 as u32).checked_sub(1)
    }
}

/// Bits of [`Slot::holds`]: there is a key, a value to be dropped; whoever clears the bit drops it.
const HAS_KEY: u32 = 1;
const HAS_VALUE: u32 = 2;
/// A closure has been deferred that drops the replaced value; until it ran, the slot stays out of the pool.
const DEFERRED: u32 = 4;
/// The slot is otherwise ready for the pool; the closure of `DEFERRED` puts it there.
const WANTED: u32 = 8;

pub(super) struct Slot<K, V> {
    /// See [`Meta`]. Compare-exchanged by removers and replacers; stored only while the slot is in
    /// nobody's hands but the allocating thread's.
    pub(super) meta: AtomicU64,
    /// While the slot is in the index: the part of its hash that references carry. While it is in limbo
    /// or in the pool: the next slot there, plus one.
    link: AtomicU32,
    /// What is there to be dropped, see [`HAS_KEY`].
    holds: AtomicU32,
    key: UnsafeCell<MaybeUninit<K>>,
    value: UnsafeCell<MaybeUninit<V>>,
    fate: Fate,
}

impl<K, V> Default for Slot<K, V> {
    fn default() -> Self {
        Slot {
            meta: AtomicU64::new(0),
            link: AtomicU32::new(0),
            holds: AtomicU32::new(0),
            key: UnsafeCell::new(MaybeUninit::uninit()),
            value: UnsafeCell::new(MaybeUninit::uninit()),
            fate: Fate::default(),
        }
    }
}

// SAFETY: zero is the default of each atomic, and any bytes are a valid `MaybeUninit`; a `MaybeUninit`
// has no drop glue.
unsafe impl<K, V> ZeroInit for Slot<K, V> {}

impl<K, V> Slot<K, V> {
    #[inline]
    pub(super) fn load_meta(&self) -> Meta {
        // Acquire: pairs with the Release of `fill`, so that whoever sees a generation sees its key and
        // value too, and with `compare_replace`'s, for the slot of a replaced value.
        Meta(self.meta.load(Ordering::Acquire))
    }

    /// Reads `meta` by a read-modify-write, so that it and the remover's exchange come one after the
    /// other: either this sees `Dead`, or the remover sees all that we did before.
    pub(super) fn settle_meta(&self) -> Meta {
        // AcqRel: pairs with the exchanges in `try_kill`, in both directions.
        Meta(self.meta.fetch_or(0, Ordering::AcqRel))
    }

    /// The one transition out of the map. Of all that try it for one entry a single one succeeds.
    pub(super) fn try_kill(&self, seen: Meta) -> bool {
        // AcqRel: Release hands what the entry's life did to the reclaimer and to `settle_meta`;
        // Acquire lets the remover see what came before in `settle_meta`. Relaxed: a failure is not
        // acted on.
        self.meta.compare_exchange(seen.0, seen.with_state(State::Dead).0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Puts the value of `value` in place of the one seen in `seen`.
    pub(super) fn try_replace(&self, seen: Meta, value_slot: u32) -> bool {
        // Release: publishes the new value's slot to `load_meta`. Acquire: orders the retirement of
        // the old one after its publication.
        self.meta
            .compare_exchange(seen.0, seen.with_value_slot(value_slot).0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Has the processor fetch what of the slot an operation is likely to touch.
    #[inline(always)]
    pub(super) fn prefetch(&self) {
        // The addresses only, line by line. Of a very large one, the rest comes when it is wanted.
        let at = ptr::from_ref(self).cast::<u8>();
        for line in 0..size_of::<Self>().div_ceil(64).min(4) {
            prefetch(at.wrapping_add(64 * line));
        }
        prefetch(at.wrapping_add(size_of::<Self>() - 1));
    }

    /// The hash bits that `fill` was given.
    pub(super) fn hash_bits(&self) -> u32 {
        // Relaxed: the caller has seen this generation through an Acquire of `meta`.
        self.link.load(Ordering::Relaxed)
    }

    /// # Safety
    /// The slot holds a key that stays: it was seen `Live`, of an entry that has been in the map, under a
    /// guard that outlives `'g`; or it is the caller's own, filled and not yet valid in the index.
    #[inline]
    pub(super) unsafe fn key<'g>(&self) -> &'g K {
        self.fate.check();
        // SAFETY: initialised by `fill`, which happens-before the Acquire that saw the state; dropped
        // only after a grace period that covers the caller's guard. Nobody writes in between.
        self.key.with(|key| unsafe { &*key.cast::<K>() })
    }

    /// # Safety
    /// The slot holds a value that was seen as the current one of a `Live` entry under a guard that
    /// outlives `'g`.
    #[inline]
    pub(super) unsafe fn value<'g>(&self) -> &'g V {
        self.fate.check();
        // SAFETY: as for `key`.
        self.value.with(|value| unsafe { &*value.cast::<V>() })
    }
}

/// How far a loop over destructors has got: should one of them panic, the closure goes on behind it.
/// Forgotten when the loop is over.
struct OnUnwind<F: Fn(u32)>(u32, F);

impl<F: Fn(u32)> Drop for OnUnwind<F> {
    fn drop(&mut self) {
        (self.1)(self.0);
    }
}

/// The word of a stack of slots: `count:32 | top:32`, the top as slot number + 1, or 0. The count wraps.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stack(u64);

impl Stack {
    const COUNT: u64 = 1 << 32;

    fn top(self) -> u32 {
        self.0 as u32
    }

    fn count(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn with_top(self, top: u32) -> Self {
        Stack(self.0 & !0xffff_ffff | top as u64)
    }

    fn counted(self) -> Self {
        Stack(self.0.wrapping_add(Self::COUNT))
    }
}

/// All slots of one map. Shared between the map and the closures that it has deferred.
pub(super) struct SlotPool<K, V> {
    slots: Segments<Slot<K, V>>,
    /// Slots handed out for the first time so far.
    fresh: CachePadded<AtomicCount>,
    /// The free [stacks](Stack). Each counts how many slots have been taken from it.
    free: [CachePadded<AtomicU64>; STRIPES],
    /// The limbo [stacks](Stack). Each counts what was [retired](Self::retire) there.
    limbo: [CachePadded<AtomicU64>; STRIPES],
    /// Entries whose value has moved into a further slot, so far: each is to count as one all the same.
    extended: CachePadded<AtomicCount>,
}

/// Slots on their way into the pool, linked to each other.
#[derive(Clone, Copy, Default)]
struct Chain {
    top: u32,
    bottom: u32,
}

impl Chain {
    fn push<K, V>(&mut self, index: u32, slot: &Slot<K, V>) {
        // Relaxed: published with the chain.
        slot.link.store(self.top, Ordering::Relaxed);
        self.top = index + 1;
        if self.bottom == 0 {
            self.bottom = index + 1;
        }
    }
}

/// A [`reclaim`](SlotPool::reclaim) that is going on: should the destructor of a key or value panic, what it
/// has got so far goes into the pool, and it goes on behind.
struct Reclaiming<'a, K, V> {
    pool: &'a SlotPool<K, V>,
    /// The rest of the limbo chain.
    rest: u32,
    freed: Chain,
}

impl<K, V> Drop for Reclaiming<'_, K, V> {
    fn drop(&mut self) {
        self.pool.push_free(self.freed);
        if self.rest != 0 {
            self.pool.reclaim(self.rest);
        }
    }
}

// SAFETY: the pool owns its keys and values; a shared reference to it can drop them from any thread
// (`reclaim`) and hand out shared references to them.
unsafe impl<K: Send, V: Send> Send for SlotPool<K, V> {}
// SAFETY: as above; the map hands out `&K` and `&V` only where it is `Sync` itself, which asks for
// `K: Sync` and `V: Sync`.
unsafe impl<K: Send, V: Send> Sync for SlotPool<K, V> {}

impl<K, V> SlotPool<K, V> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(SlotPool {
            slots: Segments::new(),
            fresh: CachePadded::new(AtomicCount::new(0)),
            free: std::array::from_fn(|_| CachePadded::new(AtomicU64::new(0))),
            limbo: std::array::from_fn(|_| CachePadded::new(AtomicU64::new(0))),
            extended: CachePadded::new(AtomicCount::new(0)),
        })
    }

    /// The slot with this number, if it was ever handed out.
    #[inline(always)]
    pub(super) fn get(&self, index: u32) -> Option<&Slot<K, V>> {
        self.slots.get(index)
    }

    /// How many slots have been handed out: the bound for a scan of them all.
    pub(super) fn len(&self) -> u32 {
        // Acquire: pairs with the AcqRel in `alloc`. A slot whose insert has not returned may be missed.
        self.fresh.load(Ordering::Acquire).min(MAX_INDEX as u64 + 1) as u32
    }

    /// How many slots are in use: taken, and not retired. Too high by those whose taker is still about to
    /// make an entry of them, or to find that it cannot.
    pub(super) fn in_use(&self) -> u32 {
        // Acquire: pairs with the Release in `retire` and `retire_own_value`: who sees a slot retired, or its
        // number taken off, sees it taken, so that the difference is not below zero.
        let retired = self.limbo.iter().map(|stack| Stack(stack.load(Ordering::Acquire)).count());
        let retired = retired.fold(self.extended.load(Ordering::Acquire) as u32, u32::wrapping_add);
        // Relaxed: see above.
        let taken = self.free.iter().map(|stack| Stack(stack.load(Ordering::Relaxed)).count());
        taken.fold(self.len(), u32::wrapping_add).wrapping_sub(retired)
    }

    /// A slot to fill, from the pool or new; `None` when 2³² − 65 slots are in use.
    #[inline]
    pub(super) fn alloc(&self, _guard: &Guard) -> Option<u32> {
        let mine = stripe();
        self.pop(mine).or_else(|| self.alloc_slow(mine))
    }

    #[cold]
    fn alloc_slow(&self, mine: usize) -> Option<u32> {
        // Slots come back on the stripe of the thread that collected them, which may be another one's.
        // Relaxed: a look whether to try.
        let others = (1..STRIPES).map(|i| (mine + i) % STRIPES);
        let mut filled = others.filter(|stripe| Stack(self.free[*stripe].load(Ordering::Relaxed)).top() != 0);
        filled.find_map(|stripe| self.pop(stripe)).or_else(|| {
            // AcqRel: pairs with `len`.
            let index = u32::try_from(self.fresh.fetch_add(1, Ordering::AcqRel)).ok()?;
            self.slots.get_or_alloc(index).map(|_| index)
        })
    }

    #[inline]
    fn pop(&self, stripe: usize) -> Option<u32> {
        let stack = &self.free[stripe];
        // Acquire (here and on failure): pairs with the Release of `push_free`, so that `link` is the
        // one that was written for this stay in the pool, and the last owner's drops are behind us.
        let mut seen = Stack(stack.load(Ordering::Acquire));
        loop {
            let index = seen.top().checked_sub(1)?;
            // Relaxed: see above. If another thread has popped it meanwhile, this may be anything, and
            // then the exchange fails: under our guard it cannot have come back (no ABA).
            let next = self.slots.get(index)?.link.load(Ordering::Relaxed);
            let taken = seen.with_top(next).counted();
            match stack.compare_exchange_weak(seen.0, taken.0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    if let Some(next) = next.checked_sub(1).and_then(|next| self.slots.get(next)) {
                        prefetch(next); // for the next one
                    }
                    return Some(index);
                }
                Err(now) => seen = Stack(now),
            }
        }
    }

    /// Puts an entry into a slot just allocated, as [`State::Live`], or [`State::Free`] when it only holds a
    /// value. Gives its `meta`.
    #[inline(always)]
    pub(super) fn fill(&self, slot: &Slot<K, V>, key: Option<K>, value: V, hash_bits: u32, state: State) -> Meta {
        slot.fate.revive();
        let mut holds = HAS_VALUE;
        if let Some(key) = key {
            // SAFETY: from `alloc` until a reference to it is valid the slot is ours alone; its last key was
            // dropped before it came into the pool.
            slot.key.with_mut(|at| unsafe { at.cast::<K>().write(key) });
            holds |= HAS_KEY;
        }
        // SAFETY: as above.
        slot.value.with_mut(|at| unsafe { at.cast::<V>().write(value) });
        // Relaxed: published by `meta` below.
        slot.link.store(hash_bits, Ordering::Relaxed);
        slot.holds.store(holds, Ordering::Relaxed);
        // Relaxed: nobody changes the `meta` of a free slot but its owner.
        let last = Meta(slot.meta.load(Ordering::Relaxed));
        let meta = Meta::new(last.generation().wrapping_add(1), state, 0);
        // Release: publishes key, value and hash bits to `load_meta`.
        store_owned(&slot.meta, meta.0, Ordering::Release);
        meta
    }

    /// Takes key and value back out of a slot that was filled but never made valid.
    pub(super) fn take_back(&self, slot: &Slot<K, V>) -> Option<(Option<K>, V)> {
        // Relaxed: our own writes.
        let holds = slot.holds.swap(0, Ordering::Relaxed);
        let meta = Meta(slot.meta.load(Ordering::Relaxed));
        store_owned(&slot.meta, meta.with_state(State::Dead).0, Ordering::Release);
        // SAFETY: filled by this thread, and readers do not touch the key or value of an entry that was
        // never valid; the bit that we cleared makes us the one to take it.
        let key = (holds & HAS_KEY != 0).then(|| slot.key.with_mut(|at| unsafe { at.cast::<K>().read() }));
        // SAFETY: as above.
        (holds & HAS_VALUE != 0).then(|| (key, slot.value.with_mut(|at| unsafe { at.cast::<V>().read() })))
    }

    /// Drops what the slot still holds. Each of key and value is dropped by whoever clears its bit.
    fn drop_held(&self, slot: &Slot<K, V>, which: u32) {
        if !std::mem::needs_drop::<K>() && !std::mem::needs_drop::<V>() && !cfg!(kvlease_loom) {
            return;
        }
        // AcqRel: of the map's drop and a closure that runs at the same time, the second sees the bits
        // cleared; Acquire orders the drop after the fill.
        let held = slot.holds.fetch_and(!which, Ordering::AcqRel) & which;
        if held & HAS_KEY != 0 {
            // SAFETY: the bit says that it is initialised, and clearing it makes us the only one to drop
            // it. No reader: either a grace period has passed, or the map is being dropped.
            slot.key.with_mut(|at| unsafe { at.cast::<K>().drop_in_place() });
        }
        if held & HAS_VALUE != 0 {
            // SAFETY: as above.
            slot.value.with_mut(|at| unsafe { at.cast::<V>().drop_in_place() });
        }
    }

    /// Drops every key and value, those in limbo too.
    pub(super) fn drop_all(&self) {
        self.drop_from(0);
    }

    fn drop_from(&self, first: u32) {
        let mut rest = OnUnwind(first, |next| self.drop_from(next));
        while rest.0 < self.len() {
            let index = rest.0;
            rest.0 += 1;
            if let Some(slot) = self.slots.get(index) {
                self.drop_held(slot, HAS_KEY | HAS_VALUE);
            }
        }
        std::mem::forget(rest);
    }

    /// After the grace period: drops what the chain of slots holds and puts them into the pool.
    fn reclaim(&self, chain: u32) {
        let mut at = Reclaiming { pool: self, rest: chain, freed: Chain::default() };
        while let Some(slot) = at.rest.checked_sub(1).and_then(|index| self.slots.get(index)) {
            let index = at.rest - 1;
            // Relaxed: the closure that calls us was handed over with the chain in it.
            at.rest = slot.link.load(Ordering::Relaxed);
            // Relaxed: nobody changes it after its death.
            let meta = Meta(slot.meta.load(Ordering::Relaxed));
            let value_slot = meta.value_slot();
            slot.fate.reclaim();
            store_owned(&slot.meta, Meta::new(meta.generation(), State::Free, 0).0, Ordering::Release);
            self.drop_held(slot, HAS_KEY | HAS_VALUE);
            // Relaxed: whoever set DEFERRED did so under a guard that this grace period has outwaited.
            // AcqRel: of this and the closure's `fetch_and`, the later one pushes, after both drops.
            if slot.holds.load(Ordering::Relaxed) & DEFERRED == 0
                || slot.holds.fetch_or(WANTED, Ordering::AcqRel) & DEFERRED == 0
            {
                at.freed.push(index, slot);
            }
            if let Some(value_slot) = value_slot {
                // The entry's last value lies there, and dies with it.
                if let Some(slot) = self.slots.get(value_slot) {
                    slot.fate.retire();
                    slot.fate.reclaim();
                    self.drop_held(slot, HAS_VALUE);
                    at.freed.push(value_slot, slot);
                }
            }
        }
    }

    /// Puts a chain of slots into the pool.
    fn push_free(&self, chain: Chain) {
        let Some(bottom) = chain.bottom.checked_sub(1).and_then(|bottom| self.slots.get(bottom)) else { return };
        let stack = &self.free[stripe()];
        // Relaxed: only its value matters, for the exchange.
        let mut seen = Stack(stack.load(Ordering::Relaxed));
        loop {
            bottom.link.store(seen.top(), Ordering::Relaxed);
            // Release: pairs with the Acquire in `pop`.
            match stack.compare_exchange_weak(seen.0, seen.with_top(chain.top).0, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => seen = Stack(now),
            }
        }
    }
}

impl<K: Send + 'static, V: Send + 'static> SlotPool<K, V> {
    /// Gives a slot back that is dead, or was never valid, and that no index refers to any more.
    ///
    /// To be called once per life of a slot, by whoever ended it, under the guard of that operation.
    pub(super) fn retire(self: &Arc<Self>, index: u32, guard: &Guard) {
        let Some(slot) = self.slots.get(index) else { return };
        slot.fate.retire();
        let limbo = &self.limbo[stripe()];
        // Relaxed: only its value matters, for the exchange.
        let mut seen = Stack(limbo.load(Ordering::Relaxed));
        loop {
            slot.link.store(seen.top(), Ordering::Relaxed);
            let pushed = seen.with_top(index + 1).counted();
            // Release: for the links, pairs with the Acquire below, and for the count with
            // `in_use`. Pushed slots stay, so no ABA.
            match limbo.compare_exchange_weak(seen.0, pushed.0, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => seen = Stack(now),
            }
        }
        if seen.counted().count() % LIMBO_BATCH == 0 {
            // AcqRel: Acquire for the links; the exchange makes one thread the chain's owner.
            let chain = Stack(limbo.fetch_and(!0xffff_ffff, Ordering::AcqRel)).top();
            if chain != 0 {
                let pool = Arc::clone(self);
                guard.defer(move || pool.reclaim(chain));
                // A closure stands for 64 slots; to let 64 closures gather in the thread's own bag first
                // would keep 4,096 slots out of use.
                guard.flush();
            }
        }
    }

    /// Drops, after a grace period, the value that an entry held in its own slot before a replacement.
    /// To be called once, by who replaced it, under the guard of that operation.
    pub(super) fn retire_own_value(self: &Arc<Self>, index: u32, guard: &Guard) {
        let Some(slot) = self.slots.get(index) else { return };
        // Relaxed: our guard keeps the slot from being reclaimed before this is seen.
        slot.holds.fetch_or(DEFERRED, Ordering::Relaxed);
        // Release: pairs with `in_use`.
        self.extended.fetch_add(1, Ordering::Release);
        let pool = Arc::clone(self);
        guard.defer(move || {
            let Some(slot) = pool.slots.get(index) else { return };
            pool.drop_held(slot, HAS_VALUE);
            // AcqRel: see `reclaim`. The entry may have died meanwhile, and its slot wait for us.
            if slot.holds.fetch_and(!DEFERRED, Ordering::AcqRel) & WANTED != 0 {
                let mut freed = Chain::default();
                freed.push(index, slot);
                pool.push_free(freed);
            }
        });
    }
}
