//! The system's allocator, with an account of the bytes in use while the memory workload runs. At other times
//! it counts nothing: a counter that all threads share would slow some maps and not others.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

struct Counted;

static COUNTS: AtomicBool = AtomicBool::new(false);
/// Wraps below 0, where what came before is freed while it counts; differences are right.
static IN_USE: AtomicUsize = AtomicUsize::new(0);

/// Runs `f` with the account kept.
pub fn counted<R>(f: impl FnOnce() -> R) -> R {
    COUNTS.store(true, Ordering::SeqCst);
    let result = f();
    COUNTS.store(false, Ordering::SeqCst);
    result
}

/// Bytes asked for and not given back, within [`counted`].
pub fn in_use() -> usize {
    IN_USE.load(Ordering::Relaxed)
}

// SAFETY: hands every call on to `System`, unchanged.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNTS.load(Ordering::Relaxed) {
            IN_USE.fetch_add(layout.size(), Ordering::Relaxed);
        }
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if COUNTS.load(Ordering::Relaxed) {
            IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        }
        // SAFETY: `at` came from `System` by way of `alloc`, with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;
