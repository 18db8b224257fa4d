//! The index: an array of cache-line buckets of references to slots.
//!
//! ```text
//! bucket (64 B)   | header | spill | ref | ref | ref | ref | ref | ref |     places 0..6
//!                              |
//! spill line (64 B)            +-> | next | ref | ref | ref | ref | ref | ref | ref |     places 6..13
//!                                     |
//! next level: a bucket again          +-> | header | spill | ref ...
//!
//! header    version:35 | MOVED | FROZEN | SEALED | reserved: a bit for each place | valid: a bit for each place
//! reference hash:28 | generation:4 | slot:32
//! ```
//!
//! **A reference is only a hint; the slot's `meta` word decides.** A reader follows each valid reference
//! whose hash bits match and asks the slot whether that generation is live. So a reference that is
//! stale or doubled does no harm.
//!
//! **An insert is valid from one compare-exchange on the header**, as in DLHT (Katsarakis, Gavrielatos,
//! Ntarmos, HPDC 2024): it reserves an empty place, writes the reference there, and makes the place valid
//! by an exchange that also raises the version. It has looked for an equal key under the header value
//! that the exchange expects; a rival that became valid in between has raised the version, so the
//! exchange fails, and the insert looks again. Two equal keys cannot both get in, whoever stalls where.
//! A stalled reservation only wastes its place.
//!
//! **A bucket whose 13 places are taken is sealed** and continued by a next level: a sealed header admits
//! nobody, so to look through the sealed levels first and exchange on the last one is as good as one
//! header. This happens when many keys share their hash bits (a poor hasher) or, rarely, by chance;
//! growth and rebuilds dissolve it.
//!
//! A place is cleared by an exchange of valid for empty, at any time, by anyone who saw that the slot is
//! dead. A place word is written only by the thread that has it reserved.

use crate::reclaim::Fate;
use crate::segments::{Segments, ZeroInit, alloc_segment, free_segment};
use crate::sync::{AtomicCount, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::ptr;

/// References in a bucket, and in its spill line. Fewer under loom, so that a small model reaches them.
const IN_BUCKET: usize = if cfg!(kvlease_loom) { 2 } else { 6 };
const IN_SPILL: usize = if cfg!(kvlease_loom) { 1 } else { 7 };
pub(super) const PLACES: usize = IN_BUCKET + IN_SPILL;

/// How many bits of the hash a reference carries; they alone choose the bucket.
pub(super) const HASH_BITS: u32 = 28;

/// The most buckets an index can have.
pub(super) const MAX_BUCKETS: usize = 1 << HASH_BITS;

/// An index of any size may have so many levels.
const FEW_LEVELS: usize = 8;

/// The part of a hash that the index uses. Multiplied first, so that hashers that leave their high bits
/// poor (an identity hash of small integers, say) do not put everything into one bucket.
#[inline(always)]
pub(super) fn hash_bits(hash: u64) -> u32 {
    (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - HASH_BITS)) as u32
}

/// A reference to a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ref(pub(super) u64);

impl Ref {
    pub(super) fn new(hash_bits: u32, generation: u32, slot: u32) -> Self {
        Ref((hash_bits as u64) << 36 | (generation as u64 & 15) << 32 | slot as u64)
    }

    #[inline(always)]
    pub(super) fn hash_bits(self) -> u32 {
        (self.0 >> 36) as u32
    }

    #[inline(always)]
    pub(super) fn slot(self) -> u32 {
        self.0 as u32
    }

    /// Of the generation of the slot that it was made for, the lowest four bits. They suffice, see `slots`.
    #[inline(always)]
    pub(super) fn generation_bits(self) -> u32 {
        (self.0 >> 32) as u32 & 15
    }
}

/// A value of a bucket's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header(u64);

const SEALED: u64 = 1 << 26;
const FROZEN: u64 = 1 << 27;
const MOVED: u64 = 1 << 28;
const VERSION: u64 = 1 << 29;
const _: () = assert!(2 * PLACES <= 26);

/// All places, as bits.
const ALL: u64 = (1 << PLACES) - 1;

/// The bit that says that a place is valid.
#[inline(always)]
fn valid(place: usize) -> u64 {
    1 << place
}

/// The bit that says that a place is reserved, and not valid yet.
#[inline(always)]
fn reserved(place: usize) -> u64 {
    1 << (PLACES + place)
}

impl Header {
    /// Full: continued by a next level, admits nobody.
    #[inline(always)]
    pub(super) fn is_sealed(self) -> bool {
        self.0 & SEALED != 0
    }

    /// A newer index exists and this bucket is being moved there: admits nobody.
    #[inline(always)]
    pub(super) fn is_frozen(self) -> bool {
        self.0 & FROZEN != 0
    }

    /// All that was valid here is in the next index; look there.
    #[inline(always)]
    pub(super) fn is_moved(self) -> bool {
        self.0 & MOVED != 0
    }

    /// Raised whenever a place becomes valid. Wraps after 2³⁵ inserts into one bucket: an insert would
    /// have to sleep through exactly that many between its look and its exchange to be fooled.
    pub(super) fn version(self) -> u64 {
        self.0 / VERSION
    }

    /// The valid places, in order.
    #[inline(always)]
    pub(super) fn valid(self) -> Places {
        Places((self.0 & ALL) as u32)
    }

    /// Whether there is something in the spill line.
    #[inline(always)]
    pub(super) fn has_spilled(self) -> bool {
        self.valid().0 >> IN_BUCKET != 0
    }

    #[inline(always)]
    pub(super) fn is_valid(self, place: usize) -> bool {
        self.0 & valid(place) != 0
    }

    fn first_empty(self) -> Option<usize> {
        let place = (self.0 | self.0 >> PLACES | !ALL).trailing_ones() as usize;
        (place < PLACES).then_some(place)
    }
}

/// Some of the places of a bucket, a bit for each.
pub(super) struct Places(u32);

impl Iterator for Places {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let place = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(place)
    }
}

/// What is looked for: the references that differ from `like` in their low bits only.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    like: u64,
    beyond: u64,
}

impl Wanted {
    /// Those of keys with these hash bits.
    #[inline(always)]
    pub(super) fn hash_bits(hash_bits: u32) -> Self {
        Wanted { like: (hash_bits as u64) << 36, beyond: 1 << 36 }
    }

    /// This one.
    #[inline(always)]
    pub(super) fn exactly(reference: Ref) -> Self {
        Wanted { like: reference.0, beyond: 1 }
    }

    #[inline(always)]
    pub(super) fn is(self, reference: Ref) -> bool {
        reference.0 ^ self.like < self.beyond
    }

    /// Which of `refs` are wanted, a bit for each.
    ///
    /// Which places of a bucket are valid, and which of them is the right one, is as good as random, and a wrong
    /// guess of the processor costs more than all comparisons: so there is no branch on either.
    #[inline(always)]
    fn among<const N: usize>(self, refs: &[AtomicU64; N]) -> u32 {
        if cfg!(kvlease_loom) {
            return !0; // what is for nothing but speed need not be in every interleaving
        }
        // Relaxed: only a filter. But as the header was read by an Acquire before, of a place that was valid in
        // it this is the reference that it had then, or a later one.
        refs.iter().rev().fold(0, |found, at| found << 1 | u32::from(self.is(Ref(at.load(Ordering::Relaxed)))))
    }
}

#[derive(Default)]
#[repr(align(64))]
pub(super) struct Bucket {
    header: AtomicU64,
    spill: AtomicPtr<Spill>,
    refs: [AtomicU64; IN_BUCKET],
}

#[derive(Default)]
#[repr(align(64))]
struct Spill {
    next: AtomicPtr<Bucket>,
    refs: [AtomicU64; IN_SPILL],
}

// SAFETY: zero is the default of each atomic (null for the pointers); no drop glue.
unsafe impl ZeroInit for Bucket {}
// SAFETY: as above.
unsafe impl ZeroInit for Spill {}

impl Bucket {
    #[inline(always)]
    pub(super) fn load(&self) -> Header {
        // Acquire: pairs with the Release of every exchange below: whoever sees a place valid sees the
        // reference in it, the slot behind it, and the spill line it may lie in; whoever sees SEALED
        // sees the next level; whoever sees FROZEN or MOVED sees the next index.
        Header(self.header.load(Ordering::Acquire))
    }

    #[inline(always)]
    fn exchange(&self, seen: Header, new: u64) -> Result<Header, Header> {
        // AcqRel: Release as said in `load`; Acquire because the exchange is the winner's look, too.
        match self.header.compare_exchange(seen.0, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(Header(new)),
            Err(now) => Err(Header(now)),
        }
    }

    /// Of the bucket's own places that were valid in `seen`, those that may hold a `wanted` reference.
    #[inline(always)]
    pub(super) fn near(&self, seen: Header, wanted: Wanted) -> Places {
        Places(seen.valid().0 & wanted.among(&self.refs) & ((1 << IN_BUCKET) - 1))
    }

    /// And of those in the spill line. Looked at only if the others do not do: it is another line of memory.
    pub(super) fn spilled(&self, seen: Header, wanted: Wanted) -> Places {
        let valid = seen.valid().0 >> IN_BUCKET;
        let found = self.spill_line().map_or(0, |spill| wanted.among(&spill.refs));
        Places((valid & found) << IN_BUCKET)
    }

    /// The first place that was valid in `seen` and holds this very reference, if `sure` says so, too.
    fn find(&self, seen: Header, reference: Ref, sure: impl Fn(usize) -> bool) -> Option<usize> {
        let is_it = |place: &usize| self.reference(*place) == reference && sure(*place);
        let wanted = Wanted::exactly(reference);
        self.near(seen, wanted).find(is_it).or_else(|| match seen.has_spilled() {
            true => self.spilled(seen, wanted).find(is_it),
            false => None,
        })
    }

    /// The reference in a place that was valid in a header seen under the caller's guard. It may have
    /// been overwritten since by one that is not valid yet.
    #[inline(always)]
    pub(super) fn reference(&self, place: usize) -> Ref {
        // Acquire: pairs with the Release in `reserve`, so that the look at the header that confirms
        // this reference is not older than its reservation.
        match self.place(place) {
            Some(place) => Ref(place.load(Ordering::Acquire)),
            None => Ref(u64::MAX), // never: a place in a spill line is valid only after the line is there
        }
    }

    #[inline(always)]
    fn place(&self, place: usize) -> Option<&AtomicU64> {
        match self.refs.get(place) {
            None => self.spill_line()?.refs.get(place - IN_BUCKET),
            found => found,
        }
    }

    fn spill_line(&self) -> Option<&Spill> {
        // Acquire: pairs with the Release in `Index::spill`.
        let spill = self.spill.load(Ordering::Acquire);
        // SAFETY: null, or published by `Index::spill` from the segments of the index that this bucket
        // belongs to, which live as long as the bucket does.
        unsafe { spill.as_ref() }
    }

    /// The level that continues this sealed bucket.
    pub(super) fn next_level(&self) -> Option<&Bucket> {
        // Acquire: pairs with the Release in `Index::seal`.
        let next = self.spill_line()?.next.load(Ordering::Acquire);
        // SAFETY: as for the spill line.
        unsafe { next.as_ref() }
    }

    /// Whether `place` is, or was a moment ago, valid with this very reference.
    ///
    /// `reference` was read from `place` after `seen` and under the caller's guard. The two looks are enough:
    /// the reference was written after the place was reserved for it, so the header seen here is of that
    /// reservation or later; and if it were of a later one, the place would no longer hold this
    /// reference, which nobody writes twice.
    #[inline(always)]
    pub(super) fn confirm(&self, seen: Header, place: usize, reference: Ref) -> bool {
        let now = self.load();
        // An unchanged header says the same of each place, since to make one valid raises the version.
        now == seen || now.is_valid(place) && self.reference(place) == reference
    }

    /// Whether a place is valid with this very reference.
    fn shows(&self, reference: Ref) -> bool {
        let seen = self.load();
        self.find(seen, reference, |place| self.confirm(seen, place, reference)).is_some()
    }

    /// Reserves an empty place and writes the reference there. Fails when the header has changed.
    pub(super) fn reserve(&self, seen: Header, place: usize, reference: Ref) -> Result<Header, Header> {
        let reserved = self.exchange(seen, seen.0 | reserved(place))?;
        if let Some(at) = self.place(place) {
            // Release: pairs with the Acquire in `reference`. Not a read-modify-write and need not be:
            // the reservation makes us the only writer.
            at.store(reference.0, Ordering::Release);
        }
        Ok(reserved)
    }

    /// Makes a reserved place valid: the moment at which an insert can no longer lose to an equal key.
    pub(super) fn validate(&self, seen: Header, place: usize) -> Result<Header, Header> {
        self.exchange(seen, (seen.0 ^ (reserved(place) | valid(place))).wrapping_add(VERSION))
    }

    /// Gives a reserved place up.
    pub(super) fn unreserve(&self, place: usize) {
        // AcqRel: Release, so that our reference is in the place before the next owner writes its own there. The
        // bit is ours.
        self.header.fetch_and(!reserved(place), Ordering::AcqRel);
    }

    /// Clears a valid place if the header is still as seen.
    fn clear(&self, seen: Header, place: usize) -> Result<Header, Header> {
        self.exchange(seen, seen.0 & !valid(place))
    }

    /// Clears the place that holds this reference, if one does. Gives the last header seen.
    ///
    /// `hint`: where to look first.
    #[inline]
    pub(super) fn remove(&self, reference: Ref, hint: usize) -> Header {
        let mut seen = self.load();
        // A place that was valid in `seen` holds what it held then until the exchange has succeeded.
        if seen.is_valid(hint) && self.reference(hint) == reference {
            match self.clear(seen, hint) {
                Ok(now) => return now,
                Err(now) => seen = now,
            }
        }
        while let Some(place) = self.find(seen, reference, |_| true) {
            match self.clear(seen, place) {
                Ok(now) => return now,
                Err(now) => seen = now,
            }
        }
        seen
    }

    /// Admits nobody from now on.
    pub(super) fn freeze(&self) -> Header {
        // AcqRel: Release publishes the next index to whoever sees FROZEN; Acquire for the references.
        Header(self.header.fetch_or(FROZEN, Ordering::AcqRel) | FROZEN)
    }

    /// Says that everything valid in `seen` is in the next index.
    pub(super) fn finish_move(&self, seen: Header) -> Result<Header, Header> {
        self.exchange(seen, seen.0 | MOVED)
    }
}

/// Where a look-up is, or has ended that found nothing: the level that it looks at, and how that looked.
#[derive(Clone, Copy)]
pub(super) struct Vacancy<'a> {
    pub(super) level: &'a Bucket,
    pub(super) seen: Header,
    /// The level is the first one.
    pub(super) first: bool,
}

/// What is to be placed in an index.
pub(super) trait Candidate {
    /// What may stand against it.
    type Rival;

    /// Whether something in `level`, as `seen`, stands against it.
    fn rival(&self, level: &Bucket, seen: Header) -> Option<Self::Rival>;

    /// The reference to make valid. Asked for once nothing was seen to stand against it, perhaps again, and
    /// always the same; `None` if there is none to be had.
    fn reference(&mut self) -> Option<Ref>;

    /// Whether the slot of this reference is dead, so that its place can be cleared.
    fn is_dead(&self, reference: Ref) -> bool;
}

/// What [`Index::place`] did.
pub(super) enum Placed<T> {
    /// The reference is valid. Says whether it needed a spill line or another level.
    Done {
        /// In this place.
        place: usize,
        /// Not among the bucket's own six.
        spilled: bool,
    },
    /// This stands against it.
    Found(T),
    /// The bucket admits nobody any more, because a newer index exists.
    Frozen,
    /// There is no reference to place.
    Refused,
}

pub(super) struct Index {
    buckets: *mut Bucket,
    mask: u32,
    spills: Segments<Spill>,
    spill_count: AtomicU32,
    levels: Segments<Bucket>,
    level_count: AtomicU32,
    /// How many of the levels came with the entries that were moved here.
    needed_levels: AtomicCount,
    /// The index that takes over from this one.
    next: AtomicPtr<Index>,
    /// Where helpers go on moving buckets, and how many have been moved: see `growth`.
    pub(super) cursor: AtomicUsize,
    pub(super) moved: AtomicUsize,
    pub(super) fate: Fate,
}

// SAFETY: all shared state is atomic; `buckets` is owned.
unsafe impl Send for Index {}
// SAFETY: as above.
unsafe impl Sync for Index {}

impl Index {
    /// An empty index; `buckets` is rounded up to a power of two.
    pub(super) fn new(buckets: usize) -> Box<Self> {
        let buckets = buckets.clamp(1, MAX_BUCKETS).next_power_of_two();
        Box::new(Index {
            buckets: alloc_segment(buckets),
            mask: (buckets - 1) as u32,
            spills: Segments::new(),
            spill_count: AtomicU32::new(0),
            levels: Segments::new(),
            level_count: AtomicU32::new(0),
            needed_levels: AtomicCount::new(0),
            next: AtomicPtr::new(ptr::null_mut()),
            cursor: AtomicUsize::new(0),
            moved: AtomicUsize::new(0),
            fate: Fate::default(),
        })
    }

    pub(super) fn len(&self) -> usize {
        self.mask as usize + 1
    }

    /// How many levels beyond the first have been added.
    pub(super) fn levels(&self) -> usize {
        // Relaxed: a hint for growth.
        self.level_count.load(Ordering::Relaxed) as usize
    }

    /// Whether so many buckets have been sealed that a fresh index would be better.
    ///
    /// Where entries come and go, each bucket is full at some time, and a sealed one remains so: one in thirty
    /// may be. Those that were needed at the start, because many keys have equal hash bits, are needed
    /// again.
    pub(super) fn has_stale_levels(&self) -> bool {
        // Relaxed: a hint, too.
        let needed = self.needed_levels.load(Ordering::Relaxed) as usize;
        self.levels() > 2 * needed + self.len() / 32 + FEW_LEVELS
    }

    /// Takes the levels that there are for needed: all entries are here, and none has gone since.
    pub(super) fn keep_levels(&self) {
        // Relaxed: as above.
        self.needed_levels.store(self.levels() as u64, Ordering::Relaxed);
    }

    /// The bucket for these hash bits, which may have any higher bits set.
    #[inline(always)]
    pub(super) fn bucket(&self, hash_bits: u32) -> &Bucket {
        self.fate.check();
        // SAFETY: `buckets` has `mask + 1` initialised elements and lives as long as `self`.
        unsafe { &*self.buckets.add((hash_bits & self.mask) as usize) }
    }

    pub(super) fn next(&self) -> Option<&Index> {
        self.fate.check();
        // Acquire: pairs with the Release in `set_next`.
        let next = self.next.load(Ordering::Acquire);
        // SAFETY: null, or a box given to `set_next`, which is retired through the epoch only after this
        // index was; the caller's guard keeps this index, hence that one.
        unsafe { next.as_ref() }
    }

    /// The next index as a pointer, for its promotion.
    pub(super) fn next_ptr(&self) -> *mut Index {
        // Acquire: as in `next`.
        self.next.load(Ordering::Acquire)
    }

    /// Starts the move to `new`, unless another one has been started.
    pub(super) fn set_next(&self, new: Box<Index>) {
        let new = Box::into_raw(new);
        // Release: publishes the new index to `next`. A read-modify-write, as all accesses that change it.
        if self.next.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            // SAFETY: made above, and not published.
            drop(unsafe { Box::from_raw(new) });
        }
    }

    /// Where a look-up of these hash bits begins.
    #[inline(always)]
    pub(super) fn begin(&self, hash_bits: u32) -> Vacancy<'_> {
        let level = self.bucket(hash_bits);
        Vacancy { level, seen: level.load(), first: true }
    }

    /// Whether `reference` is valid in its bucket; `None` if that has been moved to the next index.
    pub(super) fn shows(&self, reference: Ref) -> Option<bool> {
        let mut level = self.bucket(reference.hash_bits());
        let mut seen = level.load();
        if seen.is_moved() {
            return None;
        }
        loop {
            if level.shows(reference) {
                return Some(true);
            }
            if !seen.is_sealed() {
                return Some(false);
            }
            let Some(next) = level.next_level() else { return Some(false) };
            level = next;
            seen = level.load();
        }
    }

    /// Makes the candidate's reference valid in the bucket of these hash bits, unless a rival is there in the
    /// state in which it would become so.
    ///
    /// Lock-free: an exchange fails only because another one on the same header has succeeded.
    pub(super) fn place<C: Candidate>(&self, hash_bits: u32, candidate: &mut C) -> Placed<C::Rival> {
        self.place_from(self.begin(hash_bits), false, candidate)
    }

    /// As [`place`](Self::place), from where a look-up has ended, which has found no rival there or before if
    /// it has `looked`.
    #[inline]
    pub(super) fn place_from<C: Candidate>(
        &self,
        from: Vacancy<'_>,
        mut looked: bool,
        candidate: &mut C,
    ) -> Placed<C::Rival> {
        let Vacancy { mut level, mut seen, mut first } = from;
        loop {
            if seen.is_frozen() {
                return Placed::Frozen;
            }
            if !looked {
                if let Some(rival) = candidate.rival(level, seen) {
                    return Placed::Found(rival);
                }
            }
            looked = false;
            if seen.is_sealed() {
                // A sealed level only ever loses entries, so what was looked for there is settled.
                let Some(next) = level.next_level() else { continue };
                level = next;
                first = false;
                seen = level.load();
                continue;
            }
            let Some(place) = seen.first_empty() else {
                seen = self.make_room(level, seen, candidate);
                continue;
            };
            let Some(reference) = candidate.reference() else { return Placed::Refused };
            if place >= IN_BUCKET {
                self.spill(level);
            }
            let reserved = match level.reserve(seen, place, reference) {
                Ok(reserved) => reserved,
                Err(now) => {
                    seen = now;
                    continue;
                }
            };
            match level.validate(reserved, place) {
                Ok(_) => return Placed::Done { place, spilled: place >= IN_BUCKET || !first },
                Err(now) => match Self::validate_again(level, place, reserved, now, candidate) {
                    Ok(()) => return Placed::Done { place, spilled: place >= IN_BUCKET || !first },
                    Err(Some(placed)) => return placed,
                    Err(None) => seen = level.load(),
                },
            }
        }
    }

    /// The header has become `now` since `seen`, in which the candidate has reserved `place` and met no rival.
    /// `Err(None)`: the level has been sealed, and the place given up.
    #[cold]
    fn validate_again<C: Candidate>(
        level: &Bucket,
        place: usize,
        mut seen: Header,
        mut now: Header,
        candidate: &C,
    ) -> Result<(), Option<Placed<C::Rival>>> {
        loop {
            if now.is_frozen() {
                return Err(Some(Placed::Frozen)); // the place goes with the index
            }
            if now.is_sealed() {
                level.unreserve(place);
                return Err(None);
            }
            // Places were cleared or reserved: no matter. One became valid: look again.
            if now.version() != seen.version() {
                if let Some(rival) = candidate.rival(level, now) {
                    level.unreserve(place);
                    return Err(Some(Placed::Found(rival)));
                }
            }
            seen = now;
            match level.validate(seen, place) {
                Ok(_) => return Ok(()),
                Err(other) => now = other,
            }
        }
    }

    /// All places of `level` are taken: clears one whose slot is dead, or else seals the level.
    #[cold]
    fn make_room<C: Candidate>(&self, level: &Bucket, seen: Header, candidate: &C) -> Header {
        for place in seen.valid() {
            let reference = level.reference(place);
            if candidate.is_dead(reference) {
                // If the exchange succeeds, the place was valid with this reference all along.
                return level.clear(seen, place).unwrap_or_else(|now| now);
            }
        }
        if level.next_level().is_none() {
            // Relaxed: only the numbers must differ.
            let number = self.level_count.fetch_add(1, Ordering::Relaxed);
            if let (Some(spill), Some(new)) = (self.spill(level), self.levels.get_or_alloc(number)) {
                let new = ptr::from_ref(new).cast_mut();
                // Release: publishes the level to `next_level`. If another one was first, ours is unused.
                let _ = spill.next.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
        match level.next_level() {
            Some(_) => level.exchange(seen, seen.0 | SEALED).unwrap_or_else(|now| now),
            None => level.load(), // 2³² levels: memory has gone long before
        }
    }

    /// Sees to it that the bucket has its spill line.
    fn spill<'a>(&self, bucket: &'a Bucket) -> Option<&'a Spill> {
        if bucket.spill_line().is_none() {
            // Relaxed: only the numbers must differ.
            let number = self.spill_count.fetch_add(1, Ordering::Relaxed);
            if let Some(new) = self.spills.get_or_alloc(number) {
                let new = ptr::from_ref(new).cast_mut();
                // Release: publishes the line to `spill_line`. If another one was first, ours is unused.
                let _ = bucket.spill.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
        bucket.spill_line()
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        // Only the index itself: who owns `next` depends on where this one stands, see `growth`.
        // SAFETY: made by `alloc_segment` with this length in `new`.
        unsafe { free_segment(self.buckets, self.len()) };
    }
}

#[cfg(all(test, not(kvlease_loom)))]
mod tests {
    use super::*;

    #[test]
    fn buckets_and_spill_lines_are_cache_lines() {
        assert_eq!(size_of::<Bucket>(), 64);
        assert_eq!(size_of::<Spill>(), 64);
    }

    #[test]
    fn a_reference_keeps_its_parts() {
        let r = Ref::new((1 << HASH_BITS) - 1, 0xabc, u32::MAX - 70);
        assert_eq!(r.hash_bits(), (1 << HASH_BITS) - 1);
        assert_eq!(r.slot(), u32::MAX - 70);
        assert_eq!(r.generation_bits(), 0xc);
    }

    #[test]
    fn empty_places_are_found_in_order_and_end() {
        let mut header = Header(0);
        for place in 0..PLACES {
            assert_eq!(header.first_empty(), Some(place));
            header = Header(header.0 | if place % 2 == 0 { reserved(place) } else { valid(place) });
        }
        assert_eq!(header.first_empty(), None);
        assert_eq!(header.valid().collect::<Vec<_>>(), (0..PLACES).filter(|p| p % 2 == 1).collect::<Vec<_>>());
    }

    /// Places `reference`; `rival` and `dead` decide.
    struct Placing<R, D>(Ref, R, D);

    impl<T, R: Fn(&Bucket, Header) -> Option<T>, D: Fn(Ref) -> bool> Candidate for Placing<R, D> {
        type Rival = T;

        fn rival(&self, level: &Bucket, seen: Header) -> Option<T> {
            (self.1)(level, seen)
        }

        fn reference(&mut self) -> Option<Ref> {
            Some(self.0)
        }

        fn is_dead(&self, reference: Ref) -> bool {
            (self.2)(reference)
        }
    }

    fn place<T>(
        index: &Index,
        reference: Ref,
        rival: impl Fn(&Bucket, Header) -> Option<T>,
        dead: impl Fn(Ref) -> bool,
    ) -> Placed<T> {
        index.place(reference.hash_bits(), &mut Placing(reference, rival, dead))
    }

    #[test]
    fn a_full_level_is_sealed_and_continued() {
        let index = Index::new(1);
        for slot in 0..40 {
            let placed = place(&index, Ref::new(0, 1, slot), |_, _| None::<()>, |_| false);
            let Placed::Done { spilled, .. } = placed else { panic!("not placed") };
            assert_eq!(spilled, slot >= IN_BUCKET as u32);
        }
        assert_eq!(index.levels(), 40usize.div_ceil(PLACES) - 1);
        // A dead one makes room instead.
        let levels = index.levels();
        for slot in 40..52 + 1 {
            let placed = place(&index, Ref::new(0, 1, slot), |_, _| None::<()>, |r| r.slot() == slot - 1);
            assert!(matches!(placed, Placed::Done { .. }));
        }
        assert_eq!(index.levels(), levels);
    }

    /// Of the places of a bucket, how many are not empty.
    fn taken(index: &Index) -> usize {
        let header = index.bucket(0).load().0;
        (header & ((1 << (2 * PLACES)) - 1)).count_ones() as usize
    }

    #[test]
    fn what_is_in_a_bucket_is_found_in_its_place_and_nothing_else_is() {
        let index = Index::new(1);
        let refs: Vec<Ref> = (0..PLACES as u32).map(|n| Ref::new(n << 20, n, 1_000 + n)).collect();
        for reference in &refs {
            assert!(matches!(place(&index, *reference, |_, _| None::<()>, |_| false), Placed::Done { .. }));
        }
        let bucket = index.bucket(0);
        let seen = bucket.load();
        let found = |seen, wanted| [bucket.near(seen, wanted), bucket.spilled(seen, wanted)].into_iter().flatten();
        for (place, reference) in refs.iter().enumerate() {
            let by_hash: Vec<usize> = found(seen, Wanted::hash_bits(reference.hash_bits())).collect();
            assert_eq!((by_hash, bucket.find(seen, *reference, |_| true)), (vec![place], Some(place)));
            // Another life of the slot.
            let other = Ref(reference.0 ^ 1 << 32);
            assert_eq!(bucket.find(seen, other, |_| true), None);
            // And one whose place is not valid.
            let cleared = Header(seen.0 & !valid(place));
            assert_eq!(found(cleared, Wanted::hash_bits(reference.hash_bits())).count(), 0);
            assert_eq!(bucket.find(cleared, *reference, |_| true), None);
            assert!(bucket.shows(*reference));
        }
        // From the place it was seen in, from another one, and from one that there is not.
        for (hint, reference) in refs.iter().enumerate().map(|(place, r)| (place ^ 1, r)).chain([(2, &refs[2])]) {
            bucket.remove(*reference, hint);
            assert!(!bucket.shows(*reference));
        }
        assert_eq!(bucket.load().valid().count(), 0);
    }

    #[test]
    fn an_insert_that_loses_gives_its_place_back() {
        let index = Index::new(1);
        // Another one becomes valid between the first look and the exchange; the second look finds it.
        let looks = std::cell::Cell::new(0);
        let placed = place(
            &index,
            Ref::new(0, 1, 1),
            |_, _| {
                looks.set(looks.get() + 1);
                if looks.get() == 1 {
                    let rival = place(&index, Ref::new(0, 1, 2), |_, _| None::<()>, |_| false);
                    assert!(matches!(rival, Placed::Done { .. }));
                }
                (looks.get() > 1).then_some("rival")
            },
            |_| false,
        );
        assert!(matches!(placed, Placed::Found("rival")));
        assert_eq!(taken(&index), 1);
        // And one that holds a place by then: what it has reserved is empty again.
        let seen = index.bucket(0).load();
        index.bucket(0).reserve(seen, 1, Ref::new(0, 1, 3)).unwrap();
        assert_eq!(taken(&index), 2);
        index.bucket(0).unreserve(1);
        assert_eq!(taken(&index), 1);
    }

    #[test]
    fn of_threads_that_insert_at_once_one_is_valid_and_the_others_leave_no_trace() {
        const THREADS: u32 = 3;
        for _ in 0..if cfg!(miri) { 10 } else { 5_000 } {
            let index = Index::new(1);
            let waiting = AtomicU32::new(THREADS);
            let wins: u32 = std::thread::scope(|s| {
                let threads: Vec<_> = (0..THREADS)
                    .map(|slot| {
                        let (index, waiting) = (&index, &waiting);
                        s.spawn(move || {
                            waiting.fetch_sub(1, Ordering::AcqRel);
                            while waiting.load(Ordering::Acquire) > 0 {
                                std::thread::yield_now();
                            }
                            let look = |_: &Bucket, seen: Header| seen.valid().next();
                            matches!(place(index, Ref::new(0, 1, slot), look, |_| false), Placed::Done { .. })
                        })
                    })
                    .collect();
                threads.into_iter().map(|thread| u32::from(thread.join().unwrap())).sum()
            });
            assert_eq!((wins, taken(&index)), (1, 1));
        }
    }

    #[test]
    fn a_frozen_bucket_admits_nobody_and_loses_nobody() {
        let index = Index::new(1);
        assert!(matches!(place(&index, Ref::new(0, 1, 1), |_, _| None::<()>, |_| false), Placed::Done { .. }));
        index.bucket(0).freeze();
        assert!(matches!(place(&index, Ref::new(0, 1, 2), |_, _| None::<()>, |_| false), Placed::Frozen));
        assert_eq!(taken(&index), 1);
        assert_eq!(index.bucket(0).reference(0), Ref::new(0, 1, 1));
    }
}
