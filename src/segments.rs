//! An array that grows without moving: in segments that grow with it, allocated when first touched.
//!
//! Element `i` has the same address for as long as the array lives, and a reference to it is two loads.
//! Allocation is lock-free: whoever needs a segment makes it, and of several threads that do so one
//! keeps its own and the others give theirs back.

use crate::sync::{AtomicPtr, Ordering};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ptr;

/// A type of which all-zero bytes are the initial value.
///
/// # Safety
/// All-zero bytes must be a valid value, equal in meaning to `Default::default()`, and the type must
/// not need dropping.
pub(crate) unsafe trait ZeroInit: Default {}

/// The segments come in groups of `1 << GROUP_BITS` equally large ones. The first group has `1 << FIRST_BITS` elements
/// in all, and each further one twice as many. So the latest segment is at most a quarter of the others together.
const FIRST_BITS: u32 = if cfg!(any(kvlease_loom, kvlease_shuttle)) { 2 } else { 6 };
const GROUP_BITS: u32 = if cfg!(any(kvlease_loom, kvlease_shuttle)) { 0 } else { 2 };
const GROUPS: u32 = if cfg!(kvlease_loom) { 3 } else { 32 - FIRST_BITS };
const SEGMENTS: usize = (GROUPS << GROUP_BITS) as usize;

/// Room for elements `0 ..= MAX_INDEX`.
pub(crate) const MAX_INDEX: u32 = (((1u64 << GROUPS) - 1) << FIRST_BITS) as u32 - 1;

pub(crate) struct Segments<T> {
    first: [AtomicPtr<T>; SEGMENTS],
    owns: PhantomData<T>,
}

// SAFETY: it owns its elements and gives out only `&T`, so it is as `Send` and `Sync` as a `Vec<T>`.
unsafe impl<T: Send> Send for Segments<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Segments<T> {}

/// Which segment holds `index`, and where in it.
#[inline(always)]
fn locate(index: u32) -> (usize, usize) {
    let n = index + (1 << FIRST_BITS); // no overflow: index <= MAX_INDEX
    let (group, bits) = (n.ilog2() - FIRST_BITS, n.ilog2() - GROUP_BITS);
    // `n >> bits` is the number within the group, with a bit above.
    (((group << GROUP_BITS) + (n >> bits) - (1 << GROUP_BITS)) as usize, (n & ((1 << bits) - 1)) as usize)
}

/// How many elements a segment has.
const fn len(segment: usize) -> usize {
    1 << ((segment as u32 >> GROUP_BITS) + FIRST_BITS - GROUP_BITS)
}

impl<T: ZeroInit> Segments<T> {
    pub(crate) fn new() -> Self {
        let new = Segments { first: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())), owns: PhantomData };
        if cfg!(kvlease_loom) {
            // A model that does not ask about allocation need not pay for its interleavings.
            new.alloc(0);
        }
        new
    }

    /// The element, if its segment exists.
    #[inline(always)]
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        if index > MAX_INDEX {
            return None;
        }
        let (segment, offset) = locate(index);
        // Acquire: pairs with the Release of the exchange that published the segment.
        let first = self.first[segment].load(Ordering::Acquire);
        if first.is_null() {
            return None;
        }
        // SAFETY: `first` is a segment of `len(segment)` initialised elements that lives until `self` is
        // dropped, and `offset` lies in it.
        Some(unsafe { &*first.add(offset) })
    }

    /// The element, making its segment first if need be; `None` past [`MAX_INDEX`].
    #[inline]
    pub(crate) fn get_or_alloc(&self, index: u32) -> Option<&T> {
        match self.get(index) {
            None if index <= MAX_INDEX => {
                self.alloc(locate(index).0);
                self.get(index)
            }
            found => found,
        }
    }

    #[cold]
    fn alloc(&self, segment: usize) {
        let new = alloc_segment::<T>(len(segment));
        // Release: publishes the elements to the Acquire in `get`. Acquire on failure: our caller goes
        // on to use the other's segment.
        let won =
            self.first[segment].compare_exchange(ptr::null_mut(), new, Ordering::Release, Ordering::Acquire).is_ok();
        if !won {
            // SAFETY: made above with this length, and not published.
            unsafe { free_segment(new, len(segment)) };
        }
    }
}

impl<T> Drop for Segments<T> {
    fn drop(&mut self) {
        for (segment, first) in self.first.iter_mut().enumerate() {
            // Relaxed: `&mut self`, so whoever gave it to us has ordered everything before.
            let first = first.load(Ordering::Relaxed);
            if !first.is_null() {
                // SAFETY: published by `alloc` with this length, and nobody else can reach it.
                unsafe { free_segment(first, len(segment)) };
            }
        }
    }
}

/// What an allocator gives zeroed without touching it. `std` asks the system for zero pages only up to
/// this alignment; past it, it writes the zeros itself, which for a large index takes milliseconds.
const CHEAP_ALIGN: usize = 16;

/// The layout of `len` elements. Where their alignment is not cheap there is room to align them by hand,
/// and for the address that the allocator gave, right before the first.
fn layout<T>(len: usize) -> Option<Layout> {
    let layout = Layout::array::<T>(len).ok()?;
    if layout.align() <= CHEAP_ALIGN {
        return Some(layout);
    }
    Layout::from_size_align(layout.size().checked_add(layout.align())?, CHEAP_ALIGN).ok()
}

/// Allocates `len` initial elements (`len` > 0) in one piece, aborting when memory is out.
pub(crate) fn alloc_segment<T: ZeroInit>(len: usize) -> *mut T {
    const { assert!(!std::mem::needs_drop::<T>() || cfg!(any(kvlease_loom, kvlease_shuttle))) };
    let Some(layout) = layout::<T>(len) else { handle_alloc_error(Layout::new::<T>()) };
    // SAFETY: the types stored here are not zero-sized and `len` is not 0.
    let given = unsafe { alloc_zeroed(layout) };
    if given.is_null() {
        handle_alloc_error(layout);
    }
    let new: *mut T = if align_of::<T>() <= CHEAP_ALIGN {
        given.cast()
    } else {
        // `given` is a multiple of 16, so the next multiple of the alignment is 16 to `align` bytes on.
        let offset = align_of::<T>() - given.addr() % align_of::<T>();
        // SAFETY: in bounds, with room for all elements behind (`layout`) and for an address before.
        unsafe {
            let new = given.add(offset);
            new.cast::<*mut u8>().sub(1).write(given);
            new.cast()
        }
    };
    // Zero pages straight from the system are valid elements (`ZeroInit`) and cost nothing until they
    // are touched. loom's atomics are objects that have to be made.
    if cfg!(any(kvlease_loom, kvlease_shuttle)) {
        for i in 0..len {
            // SAFETY: in bounds of the allocation just made.
            unsafe { new.add(i).write(T::default()) };
        }
    }
    new
}

/// Frees what [`alloc_segment`] gave.
///
/// # Safety
/// `first` came from `alloc_segment` with the same `T` and `len`, and nobody uses it any more.
pub(crate) unsafe fn free_segment<T>(first: *mut T, len: usize) {
    if cfg!(any(kvlease_loom, kvlease_shuttle)) {
        for i in 0..len {
            // SAFETY: each element was initialised by `alloc_segment`.
            unsafe { first.add(i).drop_in_place() };
        }
    }
    let given = if align_of::<T>() <= CHEAP_ALIGN {
        first.cast()
    } else {
        // SAFETY: written there by `alloc_segment`.
        unsafe { first.cast::<*mut u8>().sub(1).read() }
    };
    if let Some(layout) = layout::<T>(len) {
        // SAFETY: the address and the layout that it was allocated with.
        unsafe { dealloc(given, layout) };
    }
}

#[cfg(all(test, not(kvlease_loom)))]
mod tests {
    use super::*;
    use crate::sync::AtomicU64;

    #[derive(Default)]
    struct Word(AtomicU64);
    // SAFETY: a zero `AtomicU64` is its default, and it has no drop glue.
    unsafe impl ZeroInit for Word {}

    #[test]
    fn every_index_has_one_place() {
        let mut next = [0usize; SEGMENTS];
        for index in 0..10_000 {
            let (segment, offset) = locate(index);
            assert_eq!(offset, next[segment], "index {index}");
            next[segment] += 1;
            assert!(next[segment] <= len(segment));
        }
        let (segment, offset) = locate(MAX_INDEX);
        assert_eq!((segment, offset), (SEGMENTS - 1, len(SEGMENTS - 1) - 1));
    }

    #[test]
    fn elements_start_at_zero_and_stay_where_they_are() {
        let array = Segments::<Word>::new();
        assert!(array.get(5).is_none());
        let at: *const Word = array.get_or_alloc(5).unwrap();
        array.get(5).unwrap().0.store(7, Ordering::Relaxed);
        for i in (0..100_000).step_by(997) {
            assert_eq!(array.get_or_alloc(i).unwrap().0.load(Ordering::Relaxed), 0);
        }
        assert!(std::ptr::eq(at, array.get(5).unwrap()));
        assert_eq!(array.get(5).unwrap().0.load(Ordering::Relaxed), 7);
        assert!(array.get_or_alloc(u32::MAX).is_none());
    }

    #[derive(Default)]
    #[repr(align(64))]
    struct Line([AtomicU64; 8]);
    // SAFETY: as above.
    unsafe impl ZeroInit for Line {}

    #[test]
    fn elements_of_a_cache_line_lie_on_one_whatever_the_allocator_gives() {
        for len in [1, 2, 3, 64, 1_000] {
            let many: Vec<*mut Line> = (0..20).map(|_| alloc_segment::<Line>(len)).collect();
            for first in many {
                assert_eq!(first.addr() % 64, 0);
                for i in 0..len {
                    // SAFETY: in bounds of what was just allocated, which only we have.
                    let line = unsafe { &*first.add(i) };
                    assert!(line.0.iter().all(|word| word.swap(!0, Ordering::Relaxed) == 0));
                }
                // SAFETY: allocated above with this length.
                unsafe { free_segment(first, len) };
            }
        }
    }
}
