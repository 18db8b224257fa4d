//! Small programs of a few threads for the tools that look at every access: Miri, ThreadSanitizer and
//! AddressSanitizer. Natively they are a quick stress.
//!
//! What a tool can see is put in its way: values are boxes, so that a value used after its drop is a use
//! after free, and blocks are plain memory that consumers and transfers read and whoever is given the
//! release writes, so that a missing edge between the two is a data race.

use kvlease::map::{self, CasMap};
use kvlease::{Aborted, Config, ConsumerId, ExpiryPolicy, Outcome, Release, SendTracker, Terms, Timestamp};
use std::cell::UnsafeCell;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::Ordering::{self, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::time::Duration;

/// Times to repeat a program, and steps of one of its threads.
const ROUNDS: usize = if cfg!(miri) { 1 } else { 200 };
const STEPS: usize = if cfg!(miri) { 24 } else { 300 };

/// Numbers that differ from run to run; under Miri by its seed.
struct Random(u64);

impl Random {
    fn new() -> Self {
        Random(std::hash::RandomState::new().build_hasher().finish() | 1)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

// ---------------------------------------------------------------------------------------------
// The map.

/// Puts every key into the same two buckets, so that a few keys fill them.
#[derive(Clone, Copy, Default)]
struct Crowded(u64);

impl Hasher for Crowded {
    fn finish(&self) -> u64 {
        self.0 & 1
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = u64::from(bytes[0]);
    }
}

impl BuildHasher for Crowded {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        Self(0)
    }
}

struct Value {
    number: Box<u64>,
    alive: Arc<AtomicUsize>,
}

impl Value {
    fn new(number: u64, alive: &Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, Relaxed);
        Value { number: Box::new(number), alive: alive.clone() }
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        *self.number = u64::MAX;
        assert!(self.alive.fetch_sub(1, Relaxed) > 0, "dropped twice");
    }
}

/// All calls on a few keys; each entry has as many removers as it should.
fn map_calls<S: BuildHasher + Default + Send + Sync>(keys: u64, threads: u64) {
    for _ in 0..ROUNDS {
        let alive = Arc::new(AtomicUsize::new(0));
        let map: CasMap<Box<u64>, Value, S> = CasMap::default();
        let inserted: Vec<AtomicUsize> = (0..keys).map(|_| AtomicUsize::new(0)).collect();
        let removed: Vec<AtomicUsize> = (0..keys).map(|_| AtomicUsize::new(0)).collect();
        std::thread::scope(|s| {
            for t in 0..threads {
                let (map, alive, inserted, removed) = (&map, &alive, &inserted, &removed);
                s.spawn(move || {
                    let mut random = Random::new();
                    for i in 0..STEPS as u64 {
                        let key = random.below(keys);
                        let guard = map::pin();
                        let value = || Value::new(t << 32 | i, alive);
                        match random.below(8) {
                            0..=2 => {
                                if map.insert(Box::new(key), value(), &guard).is_ok() {
                                    inserted[key as usize].fetch_add(1, Relaxed);
                                }
                            }
                            3 => {
                                let seen = map.get(&Box::new(key), &guard);
                                if let Some(seen) = seen {
                                    assert!(**seen.key() == key && *seen.value().number != u64::MAX);
                                    if map.compare_remove(&seen, &guard) {
                                        removed[key as usize].fetch_add(1, Relaxed);
                                    }
                                    // Still readable.
                                    assert!(**seen.key() == key && *seen.value().number != u64::MAX);
                                }
                            }
                            4 => {
                                if let Ok(new) = map.replace_if(&Box::new(key), value(), |_| true, &guard) {
                                    assert_eq!((**new.key(), *new.value().number), (key, t << 32 | i));
                                }
                            }
                            5 => {
                                for entry in map.iter(&guard) {
                                    assert!(**entry.key() < keys && *entry.value().number != u64::MAX);
                                }
                            }
                            _ => {
                                if map.remove(&Box::new(key), &guard).is_some() {
                                    removed[key as usize].fetch_add(1, Relaxed);
                                }
                            }
                        }
                    }
                });
            }
        });
        let guard = map::pin();
        let mut there = 0;
        for key in 0..keys {
            let found = usize::from(map.contains_key(&Box::new(key), &guard));
            there += found;
            let (ins, rem) = (inserted[key as usize].load(Relaxed), removed[key as usize].load(Relaxed));
            assert_eq!(ins, rem + found, "key {key}");
        }
        assert_eq!((map.len(), map.iter(&guard).count()), (there, there));
    }
}

#[test]
fn the_map_on_two_keys() {
    map_calls::<map::RandomState>(2, 3);
}

#[test]
fn the_map_with_crowded_buckets_and_rebuilds() {
    map_calls::<Crowded>(if cfg!(miri) { 24 } else { 60 }, 3);
}

#[test]
fn the_map_while_it_grows() {
    let keys: u64 = if cfg!(miri) { 90 } else { 2_000 };
    for _ in 0..ROUNDS / 10 + 1 {
        let map: CasMap<u64, Box<u64>> = CasMap::new();
        let wins = AtomicUsize::new(0);
        std::thread::scope(|s| {
            for t in 0..3 {
                let (map, wins) = (&map, &wins);
                s.spawn(move || {
                    for i in 0..keys {
                        // Each key is tried by two threads, and some are removed in the middle of a move.
                        if i % 3 == t || (i + 1) % 3 == t {
                            let guard = map::pin();
                            if map.insert(i, Box::new(i), &guard).is_ok() {
                                wins.fetch_add(1, Relaxed);
                            }
                            match map.get(&i, &guard) {
                                Some(entry) if i % 4 == 0 && map.compare_remove(&entry, &guard) => {
                                    wins.fetch_sub(1, Relaxed);
                                }
                                Some(entry) => assert_eq!(**entry.value(), i),
                                None => assert_eq!(i % 4, 0, "key {i} is lost"),
                            }
                        }
                    }
                });
            }
        });
        let guard = map::pin();
        assert_eq!((map.len(), map.iter(&guard).count()), (wins.load(Relaxed), wins.load(Relaxed)));
        assert!((0..keys).filter(|i| i % 4 != 0).all(|i| map.contains_key(&i, &guard)));
        let mut numbers: Vec<u64> = map.iter(&guard).map(|entry| *entry.key()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), wins.load(Relaxed), "a key is there twice");
    }
}

#[test]
fn a_length_read_meanwhile_counts_no_slot_given_back_that_it_has_not_seen_taken() {
    for _ in 0..ROUNDS {
        let map = CasMap::<u64, u64>::new();
        let done = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                let pinned = map.pin();
                for step in 0..STEPS as u64 / 4 {
                    let entry = pinned.insert(step, 0).unwrap();
                    let entry = pinned.compare_replace(&entry, 1).unwrap();
                    assert!(pinned.compare_remove(&entry));
                }
                done.store(true, Relaxed); // no edge: the reader has to see it all by itself
            });
            while !done.load(Relaxed) {
                // Too high by what comes while it counts, so by all there are at most; below zero would be huge.
                let length = map.len();
                assert!(length <= STEPS, "{length}");
                std::thread::yield_now();
            }
        });
        assert_eq!(map.len(), 0);
    }
}

#[test]
fn a_map_dropped_while_others_hold_guards_drops_each_value_once() {
    for _ in 0..ROUNDS {
        let alive = Arc::new(AtomicUsize::new(0));
        let map: CasMap<u64, Value> = CasMap::new();
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                while !stop.load(Relaxed) {
                    drop(map::pin());
                    std::thread::yield_now();
                }
            });
            std::thread::scope(|s| {
                for t in 0..2u64 {
                    let (map, alive) = (&map, &alive);
                    s.spawn(move || {
                        for i in 0..STEPS as u64 / 2 {
                            let guard = map::pin();
                            let _ = map.insert(i % 7, Value::new(t, alive), &guard);
                            let _ = map.replace_if(&(i % 5), Value::new(t, alive), |_| true, &guard);
                            let _ = map.remove(&(i % 3), &guard);
                        }
                    });
                }
            });
            drop(map);
            stop.store(true, Relaxed);
        });
        // A closure of the collector may be in the middle of its drops on another thread.
        for _ in 0..1_000 {
            if alive.load(Relaxed) == 0 {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(alive.load(Relaxed), 0);
    }
}

// ---------------------------------------------------------------------------------------------
// The tracker.

/// The memory of one request's blocks.
struct Block(UnsafeCell<u64>);

// SAFETY: it is what the tracker is for: read between `track` and a notification or within a transfer,
// written by whoever holds the release. The tools check that.
unsafe impl Sync for Block {}

struct Blocks {
    free: Vec<AtomicBool>,
    memory: Vec<Block>,
    made: AtomicUsize,
    back: AtomicUsize,
}

/// What is handed in and out: the right to write one block.
struct Payload {
    blocks: Arc<Blocks>,
    at: usize,
}

impl Blocks {
    fn new(n: usize) -> Self {
        Blocks {
            free: (0..n).map(|_| AtomicBool::new(true)).collect(),
            memory: (0..n).map(|_| Block(UnsafeCell::new(0))).collect(),
            made: AtomicUsize::new(0),
            back: AtomicUsize::new(0),
        }
    }

    /// A free block, written by us.
    fn take(self: &Arc<Self>) -> Option<Payload> {
        let at = self.free.iter().position(|free| free.swap(false, Ordering::AcqRel))?;
        self.made.fetch_add(1, Relaxed);
        let payload = Payload { blocks: Arc::clone(self), at };
        payload.write();
        Some(payload)
    }

    /// What a consumer or a transfer does while the lease lives.
    fn read(&self, at: usize) {
        // SAFETY: the lease keeps it from being written.
        let seen = unsafe { *self.memory[at].0.get() };
        assert_ne!(seen, u64::MAX, "block {at} was read after its release");
    }
}

impl Payload {
    fn write(&self) {
        // SAFETY: whoever holds the payload is the block's only user.
        unsafe { *self.blocks.memory[self.at].0.get() += 1 };
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        self.write();
        self.blocks.back.fetch_add(1, Relaxed);
        self.blocks.free[self.at].store(true, Ordering::Release);
    }
}

/// Under Miri it takes its time to make room for 16,384 tombstones.
fn small() -> Config {
    Config { tombstone_capacity: 64, ..Config::default() }
}

const IDS: [&str; 2] = ["a", "cmpl-37c560d3-5680-4bd1-97f9-7ed31a56de60-0-and-more-than-64-bytes"];

fn consumer(n: u32) -> ConsumerId {
    ConsumerId::new(n).unwrap()
}

fn freed(release: Option<Release<Payload>>) {
    drop(release);
}

/// Many lives of few ids: every call from each of three threads.
fn tracker_calls(config: Config) {
    for _ in 0..ROUNDS {
        let blocks = Arc::new(Blocks::new(8));
        let tracker = SendTracker::with_config(config.clone());
        let clock = AtomicU64::new(100);
        std::thread::scope(|s| {
            for t in 1..=3u32 {
                let (tracker, clock, blocks) = (&tracker, &clock, &blocks);
                s.spawn(move || {
                    let mut random = Random::new();
                    for _ in 0..STEPS {
                        let id = IDS[random.below(2) as usize];
                        let now = Timestamp::from_millis(clock.load(Relaxed));
                        let soon = now + Duration::from_millis(random.below(8));
                        match random.below(16) {
                            0..=3 => {
                                if let Some(payload) = blocks.take() {
                                    let terms = Terms::until(soon).consumers(random.below(3) as u32).weight(1);
                                    match tracker.track(id, terms, payload, now) {
                                        Ok(tracked) => freed(tracked.release()),
                                        Err(error) => drop(error.payload),
                                    }
                                }
                            }
                            4..=7 => freed(tracker.notify(id, consumer(t), now).release()),
                            8 => _ = tracker.renew(id, soon, Some(consumer(t)), now),
                            9 => freed(tracker.abort(id, now).release()),
                            10..=11 => {
                                if let Ok(transfer) = tracker.begin_transfer(id) {
                                    if random.below(2) == 0 {
                                        freed(transfer.end(now));
                                    }
                                }
                            }
                            12 => freed(tracker.set_expected(id, 1, now).release()),
                            13 => drop(tracker.expire_consumers(&[consumer(t)], now)),
                            14 => _ = (tracker.next_deadline(), tracker.oldest(1)),
                            _ => {
                                let now = clock.fetch_add(2, Relaxed) + 2;
                                drop(tracker.sweep(Timestamp::from_millis(now)));
                            }
                        }
                    }
                });
            }
        });
        let now = Timestamp::from_millis(clock.load(Relaxed));
        drop(tracker.shutdown(now));
        let mut now = now;
        while let Some(next) = tracker.next_deadline() {
            now = now.max(next);
            drop(tracker.sweep(now));
        }
        let stats = tracker.stats();
        assert_eq!([stats.live, stats.release_pending, stats.weight_held, stats.early, stats.tombstones], [0; 5]);
        assert_eq!(stats.tracked, stats.released);
        assert_eq!(blocks.made.load(Relaxed), blocks.back.load(Relaxed));
    }
}

#[test]
fn every_call_of_the_tracker_on_two_ids() {
    tracker_calls(small());
}

#[test]
fn every_call_of_the_tracker_without_tombstones() {
    tracker_calls(Config { tombstone_capacity: 0, early_capacity: 1, ..small() });
}

#[test]
fn every_call_of_the_tracker_where_overdue_leases_are_held() {
    let ttl = Duration::from_millis(1);
    let config = Config { tombstone_capacity: 1, tombstone_ttl: ttl, early_ttl: ttl, ..Config::default() };
    tracker_calls(Config { expiry: ExpiryPolicy::Hold, ..config });
}

/// Consumers and transfers read a block and say so; whoever is given the release writes it at once.
#[test]
fn whoever_is_given_the_release_comes_after_all_readers() {
    #[derive(Clone, Copy, PartialEq)]
    enum Readers {
        /// Consumers, who know of the lease from elsewhere and say that they have read.
        Notify,
        /// Transfers.
        Transfer,
        /// Transfers, while the engine gives the request up.
        TransferAndAbort,
    }
    for round in 0..ROUNDS * 5 {
        // By a message that overtakes the `track`, so that the entry is armed under the others' eyes.
        let early = round % 5 >= 3;
        let readers = [Readers::Notify, Readers::Transfer, Readers::TransferAndAbort][round % 5 % 3];
        let readers = if early && readers == Readers::Notify { Readers::TransferAndAbort } else { readers };

        let blocks = Arc::new(Blocks::new(1));
        let tracker = SendTracker::with_config(small());
        let now = Timestamp::from_millis(10);
        let track = || {
            let terms = Terms::until(Timestamp::from_millis(20)).consumers(2);
            match tracker.track("a", terms, blocks.take().unwrap(), now) {
                Ok(tracked) => freed(tracked.release()),
                Err(error) => panic!("{error}"),
            }
        };
        if early {
            let _ = tracker.renew("a", Timestamp::from_millis(15), None, now);
        } else {
            track();
        }
        std::thread::scope(|s| {
            for n in 1..=2 {
                let (tracker, blocks) = (&tracker, &blocks);
                s.spawn(move || {
                    if readers == Readers::Notify {
                        blocks.read(0);
                    } else if let Ok(transfer) = tracker.begin_transfer("a") {
                        blocks.read(0);
                        match n {
                            1 => freed(transfer.end(now)),
                            _ => drop(transfer),
                        }
                    }
                    freed(tracker.notify("a", consumer(n), now).release());
                });
            }
            if early {
                track();
            }
            if readers == Readers::TransferAndAbort {
                match tracker.abort("a", now) {
                    Aborted::Ended(ended) => freed(ended.release()),
                    Aborted::Late(outcome) => assert_eq!(outcome, Outcome::Completed),
                    Aborted::Early | Aborted::Unknown => panic!("it is tracked"),
                }
            }
            // What a dropped guard has left.
            drop(tracker.sweep(now));
        });
        drop(tracker.sweep(now));
        assert_eq!(blocks.back.load(Relaxed), 1);
    }
}

/// One thread ends what is due while others add leases and renew them: nothing is left behind.
#[test]
fn sweeps_miss_nothing_that_is_scheduled_meanwhile() {
    for _ in 0..ROUNDS {
        let tracker: SendTracker<Box<u64>> = SendTracker::with_config(small());
        let clock = AtomicU64::new(10);
        let leases = STEPS as u64 / 2;
        let released = AtomicU64::new(0);
        std::thread::scope(|s| {
            for t in 0..2u64 {
                let (tracker, clock) = (&tracker, &clock);
                s.spawn(move || {
                    let mut random = Random::new();
                    for n in 0..leases {
                        let id = format!("{t}-{n}");
                        let now = Timestamp::from_millis(clock.fetch_add(1, Relaxed));
                        let terms = Terms::until(now + Duration::from_millis(random.below(20))).consumers(1);
                        assert!(tracker.track(&id, terms, Box::new(n), now).is_ok());
                        if n % 4 == 0 {
                            let _ = tracker.renew(&id, now + Duration::from_millis(30), None, now);
                        }
                    }
                });
            }
            for _ in 0..2 {
                s.spawn(|| {
                    for _ in 0..leases {
                        let now = Timestamp::from_millis(clock.load(Relaxed));
                        released.fetch_add(tracker.sweep(now).released.len() as u64, Relaxed);
                    }
                });
            }
        });
        // All were due by now at the latest; what a sweep has passed over is found by no later one.
        let end = Timestamp::from_millis(clock.load(Relaxed) + 30);
        let rest = tracker.sweep(end).released.len() as u64;
        assert_eq!(released.load(Relaxed) + rest, 2 * leases);
    }
}
