//! How many bytes a live entry costs: in a map that has grown, after churn, and while a reader stalls.
//!
//! One test only, since the whole process is measured. `cargo test --test memory_bytes -- --nocapture` prints
//! the figures.

mod common;
#[path = "common/measured.rs"]
mod measured;

use common::*;
use kvlease::map::{self, CasMap};
use kvlease::{Config, Notified, RequestId, SendTracker, Terms};
use std::fmt::Write;

fn in_use() -> f64 {
    measured::in_use() as f64
}

/// Bytes since `before`, for each of `n`.
fn each(before: f64, n: u64) -> f64 {
    (in_use() - before) / n as f64
}

/// What an entry of the map costs beside its key and value, at most.
const MAP_GROWN: f64 = 80.0;
/// What a removed entry holds back under a reader that stalls, at most, key and value included.
const MAP_HELD: f64 = 80.0;
/// What a lease costs beside its id and payload, right after a step of what grows in steps. The places of its
/// consumers are 40 of it.
const TRACKER_GROWN: f64 = 176.0;
/// And right before one.
const TRACKER_FULL: f64 = 128.0;

/// Live entries: a power of two and a bit, which is the worst for what grows in steps.
const LIVE: u64 = (1 << 14) + (1 << 10);
/// As many as have room before the next step.
const FULL: u64 = 20_000;

#[test]
fn bytes_for_each_live_entry_are_bounded() {
    the_map();
    the_tracker();
    a_full_tracker();
}

fn the_map() {
    let before = in_use();
    let map = CasMap::new();
    let live = |key: u64| assert!(map.insert(key, key, &map::pin()).is_ok());
    let end = |key: u64| assert!(map.remove(&key, &map::pin()).is_some());
    // The oldest goes, a new one comes.
    let churn = |from: u64, lives: u64| {
        for key in from..from + lives {
            end(key);
            live(key + LIVE);
        }
    };

    (0..LIVE).for_each(live);
    let grown = each(before, LIVE) - 16.0;
    println!("map: {grown:.1} bytes beside key and value of an entry, grown from empty");
    assert!(grown <= MAP_GROWN, "{grown} bytes");

    churn(0, 4 * LIVE);
    let churned = each(before, LIVE) - 16.0;
    println!("map: {churned:.1} after {} lives", 4 * LIVE);
    assert!(churned <= MAP_GROWN, "{churned} bytes");
    // Every bucket has overflowed once by then.
    churn(4 * LIVE, 28 * LIVE);
    let settled = each(before, LIVE) - 16.0;
    println!("map: {settled:.1} after {} lives", 32 * LIVE);
    assert!(settled <= MAP_GROWN, "{settled} bytes");
    churn(32 * LIVE, 4 * LIVE);
    let flat = each(before, LIVE) - 16.0;
    assert!(flat <= settled + 1.0, "{flat} bytes after more churn, {settled} before");

    // A reader that stalls holds back what is removed meanwhile, and no more than that.
    let mut held = 0.0;
    let guard = map::pin();
    std::thread::scope(|s| {
        s.spawn(|| {
            let (before, idle) = (in_use(), map.slots().idle());
            churn(36 * LIVE, LIVE);
            held = each(before, LIVE);
            let idle = (map.slots().idle() - idle) as u64;
            println!("map: {held:.1} bytes for each entry removed under a reader that stalls; {idle} slots more idle");
            assert!(idle.abs_diff(LIVE) < LIVE / 50, "{idle} slots held back, {LIVE} entries removed");
        });
    });
    assert!(held <= MAP_HELD, "{held} bytes held back for each entry");
    drop(guard);

    // And when it goes on, its slots are used again.
    let before = in_use();
    churn(37 * LIVE, LIVE);
    churn(38 * LIVE, LIVE);
    let more = each(before, LIVE);
    println!("map: {more:.1} more for each of as many again, when it has gone on");
    assert!(more <= 1.0, "{more} bytes more for each entry");
}

fn the_tracker() {
    let before = in_use();
    let config = Config { tombstone_capacity: 1_024, ..config() };
    let t = SendTracker::<u64>::with_config(config);
    let mut id = String::with_capacity(64);
    let name = |id: &mut String, n: u64| {
        id.clear();
        write!(id, "cmpl-37c560d3-5680-4bd1-97f9-{n:012x}-000").unwrap();
        assert_eq!(id.len(), 45);
    };
    let beside = (size_of::<RequestId>() + size_of::<u64>()) as f64;
    let mut live = |n: u64| {
        name(&mut id, n);
        lease(&t, &id, Terms::until(at(30 + n / 10_000)).consumers(2), n, at(n / 10_000));
    };
    (0..LIVE).for_each(&mut live);
    let grown = each(before, LIVE) - beside;
    println!("tracker: {grown:.1} bytes beside id ({} as it lies) and payload of a lease", size_of::<RequestId>());
    assert!(grown <= TRACKER_GROWN, "{grown} bytes");

    // 4n lives, at the same number of leases.
    let mut old = String::with_capacity(64);
    let mut churn = |from: u64, lives: u64| {
        for n in from..from + lives {
            name(&mut old, n);
            let now = at((n + LIVE) / 10_000);
            assert_eq!(t.notify(&old, rank(1), now), Notified::Counted { seen: 1, expected: Some(2) });
            assert_eq!(t.notify(&old, rank(2), now).release().map(|release| release.payload), Some(n));
            live(n + LIVE);
            if n % 1_000 == 0 {
                assert_eq!(t.sweep(now).released, []);
            }
        }
    };
    churn(0, 4 * LIVE);
    let churned = each(before, LIVE) - beside;
    println!("tracker: {churned:.1} after {} lives", 4 * LIVE);
    assert!(churned <= TRACKER_GROWN, "{churned} bytes");
    churn(4 * LIVE, 12 * LIVE);
    let settled = each(before, LIVE) - beside;
    println!("tracker: {settled:.1} after {} lives", 16 * LIVE);
    assert!(settled <= TRACKER_GROWN, "{settled} bytes");
}

fn a_full_tracker() {
    let before = in_use();
    let t = SendTracker::<u64>::with_config(config());
    for n in 0..FULL {
        lease(&t, &format!("cmpl-37c560d3-5680-4bd1-97f9-{n:012x}-000"), Terms::until(at(30)).consumers(2), n, at(0));
    }
    // Pins collect: the smaller indexes that it has outgrown.
    (0..2_000).for_each(|_| drop(map::pin()));
    let full = each(before, FULL) - (size_of::<RequestId>() + size_of::<u64>()) as f64;
    println!("tracker: {full:.1} with {FULL} leases");
    assert!(full <= TRACKER_FULL, "{full} bytes");
}
