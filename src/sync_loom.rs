//! loom's primitives, wrapped so that a model can choose how loads are explored.
//!
//! loom 0.7.3 keeps one "last access" for each atomic, so a load before an exchange of the same thread can
//! hide a race from it. A model is therefore run in two passes:
//!
//! * **dense**: a load is a compare-exchange that fails, a read-modify-write to loom, of which it misses
//!   none. Every sequentially consistent interleaving is explored; every load reads the newest value.
//! * **weak**: a load is a load, which may read an older value.
//!
//! A dense load of a word that nobody writes would be ordered against every other such load for nothing.
//! So the model first finds out which words are written at all while threads are at work (words are told
//! apart by who created them and as which one), and only loads of those are made dense. The loads of all
//! others are plain reads, no scheduling points. Should one of the others be written after all in some
//! execution, the exploration is void: it starts again with that word among the written.

use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering;

/// What the harness of the models sets, and what it is told. One model runs on one thread of the system.
pub(crate) mod control {
    use super::{Cell, RefCell};

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) enum Phase {
        /// Only the main thread is at work, before or after the others.
        Alone,
        /// Roles are at work. Which words are written is only being found out.
        Discovering,
        /// Roles are at work.
        Exploring,
    }

    /// The payload of the panic that makes an exploration void.
    pub(crate) struct StartAgain;

    const KEYS_PER_ROLE: usize = 4096;

    thread_local! {
        pub(super) static PHASE: Cell<Phase> = const { Cell::new(Phase::Alone) };
        pub(super) static DENSE: Cell<bool> = const { Cell::new(false) };
        static CREATED: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
        static WRITTEN: RefCell<Vec<bool>> = const { RefCell::new(Vec::new()) };
        static GROWN: Cell<bool> = const { Cell::new(false) };
    }

    loom::thread_local! {
        static ROLE: Cell<usize> = Cell::new(0);
    }

    /// To be called at the start of every execution.
    pub(crate) fn begin(dense: bool) {
        DENSE.set(dense);
        PHASE.set(Phase::Alone);
        CREATED.with_borrow_mut(Vec::clear);
    }

    pub(crate) fn set_phase(phase: Phase) {
        PHASE.set(phase);
    }

    /// The calling thread of the model plays this role (from 1; 0 is nobody's).
    pub(crate) fn set_role(role: usize) {
        ROLE.with(|mine| mine.set(role));
    }

    /// Which role that is.
    pub(crate) fn role() -> usize {
        ROLE.with(Cell::get)
    }

    /// Forgets which words are written.
    pub(crate) fn forget_written() {
        WRITTEN.with_borrow_mut(Vec::clear);
        GROWN.set(false);
    }

    /// Whether a word was written since the last call that had not been known to be.
    pub(crate) fn take_grown() -> bool {
        GROWN.replace(false)
    }

    pub(super) fn new_key() -> u32 {
        let role = if PHASE.get() == Phase::Alone { 0 } else { role() };
        CREATED.with_borrow_mut(|created| {
            if created.len() <= role {
                created.resize(role + 1, 0);
            }
            created[role] += 1;
            assert!((created[role] as usize) < KEYS_PER_ROLE);
            (role * KEYS_PER_ROLE) as u32 + created[role]
        })
    }

    pub(super) fn is_written(key: u32) -> bool {
        WRITTEN.with_borrow(|written| written.get(key as usize).copied().unwrap_or(false))
    }

    pub(super) fn note_write(key: u32) {
        let phase = PHASE.get();
        if phase == Phase::Alone || is_written(key) {
            return;
        }
        GROWN.set(true);
        WRITTEN.with_borrow_mut(|written| {
            if written.len() <= key as usize {
                written.resize(key as usize + 1, false);
            }
            // While discovering, the loads of this execution and the next ones stay what they were.
            written[key as usize] = phase == Phase::Exploring;
        });
        match phase {
            Phase::Exploring => std::panic::resume_unwind(Box::new(StartAgain)),
            _ => PENDING.with_borrow_mut(|pending| pending.push(key)),
        }
    }

    thread_local!(static PENDING: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) });

    /// Ends a discovery: from now on the loads of the words found are special.
    pub(crate) fn apply_discovered() {
        let pending = PENDING.take();
        WRITTEN.with_borrow_mut(|written| pending.into_iter().for_each(|key| written[key as usize] = true));
    }
}

use control::Phase;

enum Load {
    Unsync,
    Plain,
    Dense,
}

fn how_to_load(key: u32) -> Load {
    match control::PHASE.get() {
        Phase::Alone => Load::Unsync,
        _ if control::is_written(key) => match control::DENSE.get() {
            true => Load::Dense,
            false => Load::Plain,
        },
        Phase::Discovering => Load::Plain,
        Phase::Exploring => Load::Unsync,
    }
}

macro_rules! atomic {
    ($name:ident [$($param:ident)?], $value:ty, $inner:ty, $default:expr, $sentinel:expr) => {
        pub(crate) struct $name$(<$param>)? {
            inner: $inner,
            key: u32,
        }

        impl$(<$param>)? $name$(<$param>)? {
            #[track_caller]
            pub(crate) fn new(value: $value) -> Self {
                $name { inner: <$inner>::new(value), key: control::new_key() }
            }

            #[track_caller]
            pub(crate) fn load(&self, order: Ordering) -> $value {
                match how_to_load(self.key) {
                    // SAFETY: no other thread is at work, or none writes this word.
                    Load::Unsync => unsafe { self.inner.unsync_load() },
                    Load::Plain => self.inner.load(order),
                    Load::Dense => {
                        let sentinel = $sentinel;
                        match self.inner.compare_exchange(sentinel, sentinel, order, order) {
                            Ok(value) | Err(value) => value,
                        }
                    }
                }
            }

            #[track_caller]
            pub(crate) fn store(&self, value: $value, order: Ordering) {
                control::note_write(self.key);
                self.inner.store(value, order)
            }

            #[track_caller]
            pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                control::note_write(self.key);
                self.inner.swap(value, order)
            }

            #[track_caller]
            pub(crate) fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                control::note_write(self.key);
                self.inner.compare_exchange(current, new, success, failure)
            }

            #[track_caller]
            pub(crate) fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, success, failure)
            }
        }

        impl$(<$param>)? Default for $name$(<$param>)? {
            fn default() -> Self {
                Self::new($default)
            }
        }

        impl$(<$param>)? std::fmt::Debug for $name$(<$param>)? {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($name))
            }
        }
    };
}

macro_rules! fetch {
    ($name:ident, $value:ty, $($method:ident)*) => {
        impl $name {
            $(
                #[track_caller]
                pub(crate) fn $method(&self, value: $value, order: Ordering) -> $value {
                    control::note_write(self.key);
                    self.inner.$method(value, order)
                }
            )*
        }
    };
}

atomic!(AtomicU32 [], u32, loom::sync::atomic::AtomicU32, 0, u32::MAX);
atomic!(AtomicU64 [], u64, loom::sync::atomic::AtomicU64, 0, u64::MAX);
atomic!(AtomicUsize [], usize, loom::sync::atomic::AtomicUsize, 0, usize::MAX);
atomic!(AtomicPtr[T], *mut T, loom::sync::atomic::AtomicPtr<T>, std::ptr::null_mut(), std::ptr::dangling_mut());
fetch!(AtomicU32, u32, fetch_add fetch_sub fetch_and fetch_or);
fetch!(AtomicU64, u64, fetch_add fetch_sub fetch_and fetch_or);
fetch!(AtomicUsize, usize, fetch_add fetch_sub);

/// loom's cell; touched once at creation, since an access to a cell made right after a release operation
/// would otherwise escape the detection of races.
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(loom::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    #[track_caller]
    pub(crate) fn new(value: T) -> Self {
        let cell = loom::cell::UnsafeCell::new(value);
        cell.with_mut(|_| ());
        UnsafeCell(cell)
    }

    #[track_caller]
    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        self.0.with(f)
    }

    #[track_caller]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        self.0.with_mut(f)
    }
}
