//! What stock loom 0.7.3 does not explore, pinned: each test fails when a later loom is mended, and then the
//! passes, the harness and the README have to be looked at again.
//!
//! They use loom itself, without the wrappers of the crate.

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::panic::catch_unwind;
use std::sync::{Arc, Mutex};

type Outcomes<T> = Arc<Mutex<(usize, BTreeSet<T>)>>;

/// How many executions loom finds, and which outcomes.
fn explore<T: Ord + Clone + Send + 'static>(body: impl Fn() -> T + Sync + Send + 'static) -> (usize, BTreeSet<T>) {
    let found: Outcomes<T> = Arc::default();
    let here = Arc::clone(&found);
    loom::model::Builder::new().check(move || {
        let outcome = body();
        let mut found = here.lock().unwrap();
        found.0 += 1;
        found.1.insert(outcome);
    });
    let found = found.lock().unwrap();
    found.clone()
}

fn assert_outcomes<T: Ord + Debug + Clone>(found: &BTreeSet<T>, these: &[T]) {
    assert_eq!(found.iter().cloned().collect::<Vec<_>>(), these, "loom explores something else than it did");
}

/// A load that is a read-modify-write to loom.
fn dense_load(word: &AtomicU64) -> u64 {
    word.compare_exchange(u64::MAX, u64::MAX, Ordering::Acquire, Ordering::Acquire).unwrap_or_else(|now| now)
}

#[test]
fn a_load_before_an_exchange_hides_an_earlier_load() {
    // The reader, which comes first, should see 0 in one execution and 1 in another.
    let body = |load: fn(&AtomicU64) -> u64| {
        move || {
            let word = Arc::new(AtomicU64::new(0));
            let writer = Arc::clone(&word);
            let reader = Arc::clone(&word);
            let reader = thread::spawn(move || load(&reader));
            let writer = thread::spawn(move || {
                let seen = load(&writer);
                let _ = writer.compare_exchange(seen, 1, Ordering::AcqRel, Ordering::Acquire);
            });
            writer.join().unwrap();
            reader.join().unwrap()
        }
    };
    let (_, found) = explore(body(|word| word.load(Ordering::Acquire)));
    assert_outcomes(&found, &[0]);
    let (_, found) = explore(body(dense_load));
    assert_outcomes(&found, &[0, 1]);
}

#[test]
fn two_loops_of_load_and_exchange_lose_an_outcome() {
    // Each tells the value that it saw first and whether its exchange succeeded.
    let body = |load: fn(&AtomicU64) -> u64| {
        move || {
            let word = Arc::new(AtomicU64::new(0));
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let word = Arc::clone(&word);
                    thread::spawn(move || {
                        let seen = load(&word);
                        (seen, word.compare_exchange(seen, seen + 1, Ordering::AcqRel, Ordering::Acquire).is_ok())
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        }
    };
    let all = [
        vec![(0, false), (0, true)],
        vec![(0, true), (0, false)],
        vec![(0, true), (1, true)],
        vec![(1, true), (0, true)],
    ];
    let (_, found) = explore(body(|word| word.load(Ordering::Acquire)));
    assert_eq!(found.len(), 3, "loom explores something else than it did: {found:?}");
    let (_, found) = explore(body(dense_load));
    assert_outcomes(&found, &all);
}

#[test]
fn a_limit_ends_as_a_success() {
    let body = || {
        let word = Arc::new(AtomicU64::new(0));
        let other = Arc::clone(&word);
        let other = thread::spawn(move || other.fetch_add(1, Ordering::Relaxed));
        let mine = word.fetch_add(1, Ordering::Relaxed);
        (mine, other.join().unwrap())
    };
    let (_, all) = explore(body);
    assert_outcomes(&all, &[(0, 1), (1, 0)]);
    // The other outcome is a failure, and is not met.
    let mut limited = loom::model::Builder::new();
    limited.checkpoint_interval = 1;
    limited.max_permutations = Some(1);
    let first = Arc::new(Mutex::new(None));
    limited.check(move || {
        let outcome = body();
        assert_eq!(*first.lock().unwrap().get_or_insert(outcome), outcome);
    });
}

#[test]
fn sequentially_consistent_accesses_count_as_acquire_and_release() {
    // Store buffering: with SeqCst not both loads can give 0, but loom finds that they do.
    let (_, found) = explore(|| {
        let words = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let other = Arc::clone(&words);
        let other = thread::spawn(move || {
            other[0].store(1, Ordering::SeqCst);
            other[1].load(Ordering::SeqCst)
        });
        words[1].store(1, Ordering::SeqCst);
        (words[0].load(Ordering::SeqCst), other.join().unwrap())
    });
    assert!(found.contains(&(0, 0)), "loom explores something else than it did: {found:?}");
}

#[test]
fn loads_are_not_buffered() {
    // Each thread reads what the other writes only afterwards: allowed for Relaxed, not explored.
    let (_, found) = explore(|| {
        let words = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let other = Arc::clone(&words);
        let other = thread::spawn(move || {
            let seen = other[0].load(Ordering::Relaxed);
            other[1].store(1, Ordering::Relaxed);
            seen
        });
        let seen = words[1].load(Ordering::Relaxed);
        words[0].store(1, Ordering::Relaxed);
        (seen, other.join().unwrap())
    });
    assert!(!found.contains(&(1, 1)), "loom explores something else than it did: {found:?}");
}

#[test]
fn weak_exchanges_do_not_fail_spuriously() {
    let (executions, found) = explore(|| {
        let word = AtomicU64::new(0);
        word.compare_exchange_weak(0, 1, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    });
    assert_eq!(executions, 1);
    assert_outcomes(&found, &[true]);
}

#[test]
fn a_cell_made_after_a_release_escapes_until_it_is_touched() {
    // The cell is published by a relaxed store, so to look at it is a race.
    fn body(touch: bool) {
        let released = Arc::new(AtomicU64::new(0));
        let published = Arc::new(AtomicU64::new(0));
        let there = (Arc::clone(&released), Arc::clone(&published));
        let reader = thread::spawn(move || {
            // Synchronises with what was released before the cell was made.
            if there.1.load(Ordering::Relaxed) != 0 && there.0.load(Ordering::Acquire) != 0 {
                // SAFETY: leaked below, and never freed.
                let cell = unsafe { &*(there.1.load(Ordering::Relaxed) as *const UnsafeCell<u64>) };
                cell.with(|_| ());
            }
        });
        released.store(1, Ordering::Release);
        let cell = UnsafeCell::new(7u64);
        if touch {
            cell.with_mut(|_| ());
        }
        published.store(Box::into_raw(Box::new(cell)) as u64, Ordering::Relaxed);
        reader.join().unwrap();
    }
    assert!(catch_unwind(|| loom::model::Builder::new().check(|| body(false))).is_ok());
    assert!(catch_unwind(|| loom::model::Builder::new().check(|| body(true))).is_err());
}
