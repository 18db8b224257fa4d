//! Histories of real threads, recorded and checked for linearizability: the map key by key, the tracker id
//! by id, against plain sequential objects.
//!
//! By default a part that fits into `cargo test`; with `KVLEASE_FULL=1` a million calls (use `--release`).

mod checker;
mod map;
mod tracker;

use checker::{Violation, Work};
use std::cell::RefCell;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Instant;

/// Stamps in one total order that agrees with real time.
#[derive(Default)]
struct Stamps(AtomicU64);

impl Stamps {
    fn next(&self) -> u64 {
        self.0.fetch_add(1, SeqCst) + 1
    }
}

struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        let mut hasher = std::hash::RandomState::new().build_hasher();
        hasher.write_u64(seed);
        Random(hasher.finish() | 1)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

/// Where threads meet before a call, so that calls overlap on few and busy cores, too.
#[derive(Default)]
struct Gate(AtomicU64);

impl Gate {
    fn pass(&self, random: &mut Random) {
        match random.below(16) {
            0 => std::thread::yield_now(),
            n @ 1..=5 => (0..n * 4).for_each(|_| std::hint::spin_loop()),
            _ => {
                // The first of two waits for the second, but not for long: it may not be running.
                let mine = self.0.fetch_add(1, SeqCst);
                let mut spins = 0;
                while mine % 2 == 0 && self.0.load(SeqCst) == mine + 1 && spins < 400 {
                    std::hint::spin_loop();
                    spins += 1;
                }
            }
        }
    }
}

/// Now and then lets another thread run, in the middle of a call: from the caller's code that it runs.
fn interrupt() {
    thread_local!(static RANDOM: RefCell<Random> = RefCell::new(Random::new(0)));
    if RANDOM.with_borrow_mut(|random| random.below(12)) == 0 {
        std::thread::yield_now();
    }
}

/// How many calls a test makes and checks.
struct Budget(usize);

impl Budget {
    fn calls(full: usize, quick: usize) -> Self {
        Budget(if std::env::var_os("KVLEASE_FULL").is_some() { full } else { quick })
    }

    /// Runs rounds until as many calls have been checked; panics at the first violation.
    fn spend(self, name: &str, mut round: impl FnMut(usize) -> Result<Work, Violation>) -> Work {
        let start = Instant::now();
        let mut sum = Work::default();
        for n in 0.. {
            if sum.calls >= self.0 {
                break;
            }
            match round(n) {
                Ok(work) => sum += work,
                Err(Violation(text)) => panic!("{name}, round {n}: not linearizable:\n{text}"),
            }
        }
        println!(
            "{name}: {} calls, {} of them overlapping, {} configurations, {:.1} s",
            sum.calls,
            sum.overlapping,
            sum.configurations,
            start.elapsed().as_secs_f32()
        );
        sum
    }
}

impl std::ops::AddAssign for Work {
    fn add_assign(&mut self, other: Work) {
        self.calls += other.calls;
        self.overlapping += other.overlapping;
        self.configurations += other.configurations;
    }
}
