//! Long random schedules with four to eight threads: more threads and longer programs than loom can explore
//! in full, at sequential consistency. Each program runs under a scheduler that picks any thread at each
//! step, and under PCT (Burckhardt and others, 2010), which runs the highest of random priorities and
//! changes them at a few random points, and so finds any bug that needs few preemptions with a known
//! probability.
//!
//! `KVLEASE_SCHEDULES` says how many schedules each program gets under each scheduler (default 30).

use kvlease_shuttle::map::{self, CasMap};
use kvlease_shuttle::{
    Config, ConsumerId, ExpiryPolicy, Notified, Release, SendTracker, Terms, Timestamp, TrackRefusal,
};
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Runner, thread};
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

// Atomics of `std` are no scheduling points: what the programs check with them costs no steps.

fn explore(name: &str, program: impl Fn() + Send + Sync + Copy + 'static) {
    let schedules = std::env::var("KVLEASE_SCHEDULES").ok().and_then(|n| n.parse().ok()).unwrap_or(30);
    let config = || {
        let mut config = shuttle::Config::new();
        config.stack_size = 0x40000;
        config
    };
    let start = Instant::now();
    let ran = Runner::new(RandomScheduler::new(schedules), config()).run(program);
    let ran = ran + Runner::new(PctScheduler::new(4, schedules), config()).run(program);
    assert_eq!(ran, 2 * schedules, "it ended before it had run all of them");
    println!("{name}: {ran} schedules, {:.1} s", start.elapsed().as_secs_f32());
}

fn below(n: u32) -> u32 {
    thread_rng().gen_range(0..n)
}

fn together(threads: u32, each: impl Fn(u32) + Send + Sync + 'static) {
    let each = Arc::new(each);
    let others: Vec<_> = (1..threads)
        .map(|n| {
            let each = Arc::clone(&each);
            thread::spawn(move || each(n))
        })
        .collect();
    each(0);
    others.into_iter().for_each(|other| other.join().expect("a thread failed"));
}

// ---------------------------------------------------------------------------------------------
// The map.

/// Everything into one bucket.
#[derive(Clone, Copy, Default)]
struct Crowded;

impl Hasher for Crowded {
    fn finish(&self) -> u64 {
        0
    }

    fn write(&mut self, _: &[u8]) {}
}

impl BuildHasher for Crowded {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        Crowded
    }
}

struct Value(u64, Arc<AtomicUsize>);

impl Value {
    fn new(number: u64, alive: &Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, Relaxed);
        Value(number, alive.clone())
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        self.0 = u64::MAX;
        assert!(self.1.fetch_sub(1, Relaxed) > 0, "dropped twice");
    }
}

fn map_calls<S: BuildHasher + Default + Send + Sync + 'static>(threads: u32, keys: u32, steps: u32) {
    let alive = Arc::new(AtomicUsize::new(0));
    let map: Arc<CasMap<u32, Value, S>> = Arc::default();
    // Inserts less removals, of each key.
    let sums: Arc<Vec<AtomicU32>> = Arc::new((0..keys).map(|_| AtomicU32::new(0)).collect());
    {
        let (alive, map, sums) = (alive.clone(), map.clone(), sums.clone());
        together(threads, move |t| {
            for i in 0..steps {
                let key = below(keys);
                let number = u64::from(t * steps + i);
                let guard = map::pin();
                match below(8) {
                    0..=2 => {
                        if map.insert(key, Value::new(number, &alive), &guard).is_ok() {
                            sums[key as usize].fetch_add(1, Relaxed);
                        }
                    }
                    3..=4 => {
                        if let Some(seen) = map.get(&key, &guard) {
                            assert_ne!(seen.value().0, u64::MAX);
                            if map.compare_remove(&seen, &guard) {
                                sums[key as usize].fetch_sub(1, Relaxed);
                            }
                            assert!(*seen.key() == key && seen.value().0 != u64::MAX, "not readable any more");
                        }
                    }
                    5 => {
                        if let Ok(new) = map.replace_if(&key, Value::new(number, &alive), |_| true, &guard) {
                            assert_eq!((*new.key(), new.value().0), (key, number));
                        }
                    }
                    6 => assert!(map.iter(&guard).all(|entry| entry.value().0 != u64::MAX)),
                    _ => {
                        if map.remove(&key, &guard).is_some() {
                            sums[key as usize].fetch_sub(1, Relaxed);
                        }
                    }
                }
            }
        });
    }
    let guard = map::pin();
    for key in 0..keys {
        let there = u32::from(map.contains_key(&key, &guard));
        assert_eq!(sums[key as usize].load(Relaxed), there, "inserts less removals of key {key}");
    }
    assert_eq!(map.iter(&guard).count(), map.len());
    drop(guard);
    drop(map);
    assert_eq!(alive.load(Relaxed), 0, "values not dropped");
}

#[test]
fn the_map_on_two_keys_with_six_threads() {
    explore("map, 6 threads, 2 keys", || map_calls::<map::RandomState>(6, 2, 12));
}

#[test]
fn the_map_with_one_crowded_bucket_and_five_threads() {
    explore("map, 5 threads, one bucket", || map_calls::<Crowded>(5, 20, 24));
}

#[test]
fn the_map_growing_under_four_threads() {
    explore("map, 4 threads, growing", || {
        const KEYS: u32 = 36;
        let map: Arc<CasMap<u32, u32>> = Arc::default();
        let threads = map.clone();
        let wins = Arc::new(AtomicUsize::new(0));
        let counted = wins.clone();
        together(4, move |t| {
            for i in 0..KEYS {
                if i % 4 == t || (i + 1) % 4 == t {
                    let guard = map::pin();
                    if threads.insert(i, t, &guard).is_ok() {
                        counted.fetch_add(1, Relaxed);
                    }
                    match threads.get(&i, &guard) {
                        Some(seen) if i % 3 == 0 && threads.compare_remove(&seen, &guard) => {
                            counted.fetch_sub(1, Relaxed);
                        }
                        Some(_) => {}
                        None => assert_eq!(i % 3, 0, "key {i} is lost"),
                    }
                }
            }
        });
        let guard = map::pin();
        assert!((0..KEYS).filter(|i| i % 3 != 0).all(|i| map.contains_key(&i, &guard)));
        assert_eq!((map.len(), map.iter(&guard).count()), (wins.load(Relaxed), wins.load(Relaxed)));
    });
}

// ---------------------------------------------------------------------------------------------
// The tracker.

/// What became of one payload.
#[derive(Default)]
struct Fate {
    out: AtomicBool,
    dropped: AtomicBool,
}

struct Payload(Arc<Fate>, Arc<AtomicUsize>);

impl Drop for Payload {
    fn drop(&mut self) {
        assert!(!self.0.dropped.swap(true, Relaxed), "dropped twice");
        self.1.fetch_sub(1, Relaxed);
    }
}

struct Scene {
    tracker: Arc<SendTracker<Payload>>,
    clock: AtomicU64,
    /// Payloads made and not yet dropped.
    alive: Arc<AtomicUsize>,
    tracked: AtomicUsize,
    released: AtomicUsize,
}

impl Scene {
    fn new(config: Config) -> Arc<Self> {
        Arc::new(Scene {
            tracker: Arc::new(SendTracker::with_config(config)),
            clock: AtomicU64::new(10),
            alive: Arc::default(),
            tracked: AtomicUsize::new(0),
            released: AtomicUsize::new(0),
        })
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.clock.load(Relaxed))
    }

    fn take(&self, releases: impl IntoIterator<Item = Release<Payload>>) {
        for release in releases {
            assert!(!release.payload.0.out.swap(true, Relaxed), "released twice");
            self.released.fetch_add(1, Relaxed);
        }
    }

    fn track(&self, id: &str, terms: Terms) {
        self.alive.fetch_add(1, Relaxed);
        match self.tracker.track(id, terms, Payload(Arc::default(), self.alive.clone()), self.now()) {
            Ok(tracked) => {
                self.tracked.fetch_add(1, Relaxed);
                self.take(tracked.release());
            }
            Err(error) => assert!(
                matches!(
                    error.reason,
                    TrackRefusal::AlreadyTracked | TrackRefusal::TransferInFlight | TrackRefusal::ShutDown
                ),
                "{error}"
            ),
        }
    }

    /// Any call on a few ids.
    fn anything(&self, thread: u32, ids: u32) {
        let tracker = &self.tracker;
        let id = ["a", "b", "c", "d"][below(ids) as usize];
        let now = self.now();
        let soon = now + Duration::from_millis(below(6).into());
        let consumer = ConsumerId::new(1 + thread % 3).unwrap();
        match below(16) {
            0..=3 => self.track(id, Terms::until(soon).consumers(below(3)).weight(1)),
            4..=6 => self.take(tracker.notify(id, consumer, now).release()),
            7 => self.take(tracker.notify_expecting(id, consumer, 2, now).release()),
            8 => _ = tracker.renew(id, soon, Some(consumer), now),
            9 => self.take(tracker.abort(id, now).release()),
            10..=12 => {
                if let Ok(transfer) = tracker.begin_transfer_owned(id) {
                    thread::yield_now();
                    match below(2) {
                        0 => self.take(transfer.end(self.now())),
                        _ => drop(transfer),
                    }
                }
            }
            13 => self.take(tracker.set_expected(id, 1, now).release()),
            14 => self.take(tracker.expire_consumers(&[consumer], now)),
            _ => {
                let now = self.clock.fetch_add(2, Relaxed) + 2;
                self.take(tracker.sweep(Timestamp::from_millis(now)).released);
            }
        }
    }

    /// At rest: each payload is accounted for, and what is due can all be found.
    fn finish(&self) {
        let tracker = &self.tracker;
        self.take(tracker.shutdown(self.now()));
        let mut remembered = tracker.stats().tombstones as usize;
        for _ in 0..10 {
            let Some(next) = tracker.next_deadline() else { break };
            let swept = tracker.sweep(next.max(self.now()));
            assert!(swept.tombstones_dropped <= remembered, "more tombstones than are counted");
            remembered -= swept.tombstones_dropped;
            self.take(swept.released);
        }
        assert_eq!(remembered, 0, "tombstones counted that are not there");
        assert_eq!(tracker.next_deadline(), None);
        let stats = tracker.stats();
        let gauges = [stats.live, stats.release_pending, stats.weight_held, stats.early, stats.tombstones];
        assert_eq!(gauges, [0; 5], "{stats:?}");
        assert_eq!(stats.tracked, stats.completed + stats.expired + stats.aborted);
        assert_eq!(
            (stats.tracked as usize, self.released.load(Relaxed)),
            (self.tracked.load(Relaxed), stats.released as usize)
        );
        assert_eq!(stats.tracked, stats.released);
        assert_eq!(self.alive.load(Relaxed), 0, "payloads not dropped");
    }
}

fn small() -> Config {
    let ttl = Duration::from_millis(3);
    Config { tombstone_capacity: 3, tombstone_ttl: ttl, early_ttl: ttl, ..Config::default() }
}

fn tracker_calls(threads: u32, ids: u32, steps: u32, config: Config) {
    let scene = Scene::new(config);
    let shared = scene.clone();
    together(threads, move |t| (0..steps).for_each(|_| shared.anything(t, ids)));
    scene.finish();
}

#[test]
fn any_calls_of_eight_threads_on_one_id() {
    explore("tracker, 8 threads, 1 id", || tracker_calls(8, 1, 8, small()));
}

#[test]
fn any_calls_of_four_threads_on_three_ids() {
    explore("tracker, 4 threads, 3 ids", || tracker_calls(4, 3, 20, small()));
}

#[test]
fn any_calls_of_five_threads_without_tombstones() {
    let config = || Config { tombstone_capacity: 0, early_capacity: 1, ..small() };
    explore("tracker, 5 threads, no tombstones", move || tracker_calls(5, 2, 14, config()));
}

#[test]
fn any_calls_of_five_threads_where_overdue_leases_are_held() {
    let config = || Config { expiry: ExpiryPolicy::Hold, ..small() };
    explore("tracker, 5 threads, held", move || tracker_calls(5, 2, 14, config()));
}

/// Four consumers, a sweep, an abort and a transfer: one of them has the release.
#[test]
fn seven_threads_end_one_lease_once() {
    explore("tracker, 7 enders", || {
        let scene = Scene::new(small());
        scene.track("a", Terms::until(Timestamp::from_millis(11)).consumers(4));
        let shared = scene.clone();
        let completed = Arc::new(AtomicUsize::new(0));
        let count = completed.clone();
        together(7, move |t| {
            let tracker = &shared.tracker;
            match t {
                0 => shared.take(tracker.sweep(Timestamp::from_millis(11)).released),
                1 => shared.take(tracker.abort("a", shared.now()).release()),
                2 => {
                    if let Ok(transfer) = tracker.begin_transfer_owned("a") {
                        let before = shared.released.load(Relaxed);
                        thread::yield_now();
                        assert_eq!((before, shared.released.load(Relaxed)), (0, 0), "released in transfer");
                        shared.take(transfer.end(shared.now()));
                    }
                }
                n => {
                    let answer = tracker.notify("a", ConsumerId::new(n).unwrap(), shared.now());
                    if matches!(answer, Notified::Completed(_)) {
                        count.fetch_add(1, Relaxed);
                    }
                    shared.take(answer.release());
                }
            }
        });
        assert_eq!(scene.released.load(Relaxed), 1);
        let stats = scene.tracker.stats();
        assert_eq!(stats.completed + stats.expired + stats.aborted, 1);
        assert_eq!(stats.completed as usize, completed.load(Relaxed));
        scene.finish();
    });
}

/// Leases are added and renewed while two threads sweep: a last sweep finds what is left.
#[test]
fn sweeps_pass_over_nothing() {
    explore("tracker, 4 threads, sweeps", || {
        let scene = Scene::new(small());
        let shared = scene.clone();
        together(4, move |t| {
            for n in 0..8 {
                if t < 2 {
                    let now = shared.clock.fetch_add(1, Relaxed);
                    let id = format!("{t}-{n}");
                    shared.track(&id, Terms::until(Timestamp::from_millis(now + u64::from(below(5)))).consumers(1));
                    _ = shared.tracker.renew(&id, Timestamp::from_millis(now + 3), None, shared.now());
                } else {
                    let released = shared.tracker.sweep(shared.now()).released;
                    assert!(released.iter().all(|release| release.outcome == kvlease_shuttle::Outcome::Expired));
                    shared.take(released);
                }
            }
        });
        let rest = scene.tracker.sweep(Timestamp::from_millis(100)).released;
        scene.take(rest);
        assert_eq!(scene.released.load(Relaxed), 16, "a lease was passed over");
        scene.finish();
    });
}

/// Tracks race with a shutdown, and with all that can come between the two: each payload comes back, from the
/// one or the other, and is counted.
#[test]
fn a_shutdown_leaves_nothing_behind() {
    explore("tracker, 5 threads, shutdown", || {
        let scene = Scene::new(Config {
            expiry: if below(2) == 0 { ExpiryPolicy::Hold } else { ExpiryPolicy::Release },
            ..small()
        });
        let shared = scene.clone();
        together(5, move |t| match t {
            0 => shared.take(shared.tracker.shutdown(shared.now())),
            _ => (0..4).for_each(|_| shared.anything(t, 4)),
        });
        assert!(scene.tracker.leases().all(|lease| lease.outcome.is_some()), "a live lease is left");
        scene.finish();
    });
}

/// A lease that a sweep holds as overdue and a shutdown overtakes, in any order, leaves no tombstone for ever.
#[test]
fn a_shutdown_that_meets_a_held_lease_leaves_nothing_behind() {
    explore("tracker, 3 threads, shutdown of a held lease", || {
        let scene = Scene::new(Config { expiry: ExpiryPolicy::Hold, ..small() });
        let shared = scene.clone();
        together(3, move |t| match t {
            0 => shared.take(shared.tracker.shutdown(shared.now())),
            1 => ["a", "b", "c"].iter().for_each(|id| shared.track(id, Terms::until(Timestamp::ZERO).consumers(1))),
            _ => (0..24).for_each(|_| shared.take(shared.tracker.sweep(shared.now()).released)),
        });
        scene.finish();
    });
}
