//! The map against `std`'s, from one thread and from many, with kind and with hostile hashers.

use kvlease::map::{self, CasMap, InsertError};
use proptest::prelude::*;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Counts how many are alive.
struct Counted<T>(T, Arc<AtomicI64>);

impl<T> Counted<T> {
    fn new(value: T, alive: &Arc<AtomicI64>) -> Self {
        alive.fetch_add(1, Relaxed);
        Counted(value, alive.clone())
    }
}

impl<T> Drop for Counted<T> {
    fn drop(&mut self) {
        let before = self.1.fetch_sub(1, Relaxed);
        assert!(before > 0, "dropped twice");
    }
}

impl<T: PartialEq> PartialEq for Counted<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T: Eq> Eq for Counted<T> {}

impl<T: std::hash::Hash> std::hash::Hash for Counted<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

/// A hasher that keeps `MASK` of each integer and nothing else.
#[derive(Clone, Copy, Default)]
struct Poor<const MASK: u64>(u64);

impl<const MASK: u64> Hasher for Poor<MASK> {
    fn finish(&self) -> u64 {
        self.0 & MASK
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0 << 8 | u64::from(*byte);
        }
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }
}

impl<const MASK: u64> BuildHasher for Poor<MASK> {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        Self(0)
    }
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u64),
    Get(u64),
    Remove(u64),
    RemoveIf(u64, bool),
    CompareRemoveOld(u64),
    ReplaceIf(u64, bool),
    GetOrInsert(u64),
    Retain(u64),
    Clear,
}

fn op(keys: u64) -> impl Strategy<Value = Op> {
    let k = 0..keys;
    prop_oneof![
        8 => k.clone().prop_map(Op::Insert),
        4 => k.clone().prop_map(Op::Get),
        4 => k.clone().prop_map(Op::Remove),
        2 => (k.clone(), any::<bool>()).prop_map(|(k, b)| Op::RemoveIf(k, b)),
        2 => k.clone().prop_map(Op::CompareRemoveOld),
        3 => (k.clone(), any::<bool>()).prop_map(|(k, b)| Op::ReplaceIf(k, b)),
        2 => k.clone().prop_map(Op::GetOrInsert),
        1 => (2..5u64).prop_map(Op::Retain),
        1 => Just(Op::Clear),
    ]
}

/// Once its map has gone, each is dropped; a closure of the collector, on the thread of another test, may be in the middle
/// of it.
fn all_are_dropped(alive: &AtomicI64) {
    for _ in 0..10_000 {
        if alive.load(Relaxed) == 0 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("{} not dropped", alive.load(Relaxed));
}

fn agrees_with_std<S: BuildHasher + Default>(ops: &[Op]) {
    let keys_alive = Arc::new(AtomicI64::new(0));
    let values_alive = Arc::new(AtomicI64::new(0));
    let map: CasMap<Counted<u64>, Counted<u64>, S> = CasMap::default();
    let mut model: HashMap<u64, u64> = HashMap::new();
    let mut tag = 0;
    for op in ops {
        let guard = map::pin();
        tag += 1;
        let key = |k: u64| Counted::new(k, &keys_alive);
        let value = |v: u64| Counted::new(v, &values_alive);
        match *op {
            Op::Insert(k) => match map.insert(key(k), value(tag), &guard) {
                Ok(entry) => {
                    assert_eq!((entry.key().0, entry.value().0), (k, tag));
                    assert_eq!(model.insert(k, tag), None);
                }
                Err(InsertError::Exists { key, value, entry }) => {
                    assert_eq!((key.0, value.0, entry.value().0), (k, tag, model[&k]));
                }
                Err(full) => panic!("{full}"),
            },
            Op::Get(k) => {
                let found = map.get(&key(k), &guard);
                assert_eq!(found.map(|e| e.value().0), model.get(&k).copied());
                if let Some(entry) = found {
                    assert_eq!(map.by_handle(entry.handle(), &guard).unwrap().key().0, k);
                }
            }
            Op::Remove(k) => {
                let removed = map.remove(&key(k), &guard);
                assert_eq!(removed.map(|e| e.value().0), model.remove(&k));
                if let Some(entry) = removed {
                    assert!(!entry.is_current());
                    assert!(map.by_handle(entry.handle(), &guard).is_none());
                }
            }
            Op::RemoveIf(k, yes) => {
                let removed = map.remove_if(&key(k), |_| yes, &guard);
                let expected = if yes { model.remove(&k) } else { None };
                assert_eq!(removed.map(|e| e.value().0), expected);
            }
            Op::CompareRemoveOld(k) => {
                if let Some(old) = map.get(&key(k), &guard) {
                    assert!(map.compare_remove(&old, &guard));
                    map.insert(key(k), value(tag), &guard).unwrap();
                    assert!(!map.compare_remove(&old, &guard), "another life of the key is not the one observed");
                    assert_eq!(map.get(&key(k), &guard).unwrap().value().0, tag);
                    model.insert(k, tag);
                }
            }
            Op::ReplaceIf(k, yes) => {
                let old = map.get(&key(k), &guard);
                match map.replace_if(&key(k), value(tag), |_| yes, &guard) {
                    Ok(new) => {
                        assert!(yes);
                        assert_eq!((new.key().0, new.value().0), (k, tag));
                        let old = old.unwrap();
                        assert_eq!(Some(old.value().0), model.insert(k, tag));
                        assert!(!map.compare_remove(&old, &guard), "a replaced value is not the one observed");
                    }
                    Err(back) => {
                        assert_eq!(back.0, tag);
                        assert!(!yes || !model.contains_key(&k));
                    }
                }
            }
            Op::GetOrInsert(k) => {
                let got = map.get_or_insert_with(key(k), || value(tag), &guard).unwrap().value().0;
                assert_eq!(got, *model.entry(k).or_insert(tag));
            }
            Op::Retain(n) => {
                map.retain(|k, _| k.0 % n == 0, &guard);
                model.retain(|k, _| k % n == 0);
            }
            Op::Clear => {
                map.clear(&guard);
                model.clear();
            }
        }
        assert_eq!(map.len(), model.len());
    }
    let guard = map::pin();
    let mut all: Vec<_> = map.iter(&guard).map(|e| (e.key().0, e.value().0)).collect();
    let mut expected: Vec<_> = model.into_iter().collect();
    all.sort_unstable();
    expected.sort_unstable();
    assert_eq!(all, expected);
    drop(guard);
    drop(map);
    all_are_dropped(&keys_alive);
    all_are_dropped(&values_alive);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn it_agrees_with_std_on_few_keys(ops in prop::collection::vec(op(6), 0..200)) {
        agrees_with_std::<map::RandomState>(&ops);
    }

    #[test]
    fn it_agrees_with_std_while_growing(ops in prop::collection::vec(op(500), 0..2_000)) {
        agrees_with_std::<map::RandomState>(&ops);
    }

    #[test]
    fn it_agrees_with_std_when_all_keys_collide(ops in prop::collection::vec(op(60), 0..500)) {
        agrees_with_std::<Poor<0>>(&ops);
    }

    #[test]
    fn it_agrees_with_std_when_keys_fall_into_two_buckets(ops in prop::collection::vec(op(100), 0..500)) {
        agrees_with_std::<Poor<1>>(&ops);
    }
}

#[test]
fn a_thousand_keys_with_one_hash_still_work() {
    let map: CasMap<u64, u64, Poor<0>> = CasMap::default();
    let map = map.pin();
    for round in 0..3 {
        for k in 0..1_000 {
            map.insert(k, k + round).unwrap();
        }
        for k in 0..1_000 {
            assert_eq!(*map.get(&k).unwrap().value(), k + round);
        }
        for k in 0..1_000 {
            assert!(map.remove(&k).is_some());
        }
        assert!(map.is_empty());
    }
}

#[test]
fn an_identity_hash_of_strided_keys_does_not_pile_up() {
    let map: CasMap<u64, u64, Poor<{ u64::MAX }>> = CasMap::default();
    let guard = map::pin();
    for k in 0..100_000u64 {
        map.insert(k << 20, k, &guard).unwrap();
    }
    for k in 0..100_000u64 {
        assert_eq!(*map.get(&(k << 20), &guard).unwrap().value(), k);
    }
}

#[test]
fn a_batch_of_look_ups_gives_each_key_its_entry_in_order() {
    let map = CasMap::new();
    let pinned = map.pin();
    for key in 0..1_000_u64 {
        pinned.insert(key, key * 3).unwrap();
    }
    // Of any length; some twice, some absent.
    for length in [0, 1, 2, 15, 16, 17, 100] {
        let keys: Vec<u64> = (0..length).map(|n| n * 37 % 1_100).chain([5, 5]).collect();
        let mut got = Vec::new();
        pinned.get_batch(&keys, |key, entry| got.push((*key, entry.map(|entry| *entry.value()))));
        let expected: Vec<_> = keys.iter().map(|key| (*key, (*key < 1_000).then_some(key * 3))).collect();
        assert_eq!(got, expected);
    }
    // Each is looked up when its turn comes: what the call does is seen by the rest of the batch.
    let mut got = Vec::new();
    pinned.get_batch(&[7, 8, 7, 2_000], |key, entry| {
        got.push((*key, entry.is_some()));
        if let Some(entry) = entry {
            assert!(pinned.compare_remove(&entry));
            let _ = pinned.insert(2_000, 0);
        }
    });
    assert_eq!(got, [(7, true), (8, true), (7, false), (2_000, true)]);
}

#[test]
fn an_entry_of_another_map_is_not_removed() {
    let (a, b) = (CasMap::new(), CasMap::new());
    let guard = map::pin();
    a.insert(1, 1, &guard).unwrap();
    let seen = b.insert(1, 1, &guard).unwrap();
    assert!(!a.compare_remove(&seen, &guard));
    assert_eq!(a.compare_replace(&seen, 2, &guard).unwrap_err(), 2);
    assert_eq!((a.len(), b.len()), (1, 1));
}

#[test]
fn what_was_removed_stays_readable_under_its_guard_whatever_follows() {
    let map = CasMap::new();
    let guard = map::pin();
    map.insert(String::from("key"), String::from("value"), &guard).unwrap();
    let seen = map.get("key", &guard).unwrap();
    map.remove("key", &guard).unwrap();
    for i in 0..10_000 {
        let inner = map::pin();
        map.insert(i.to_string(), i.to_string(), &inner).unwrap();
        map.remove(i.to_string().as_str(), &inner).unwrap();
    }
    assert_eq!((seen.key().as_str(), seen.value().as_str()), ("key", "value"));
    assert!(map.slots().idle() > 9_000, "a held guard holds slots back, and the map says so");
}

#[test]
fn a_destructor_that_panics_keeps_no_other_from_running() {
    struct Bomb(Arc<AtomicI64>, bool);
    impl Drop for Bomb {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Relaxed);
            assert!(!self.1, "a bomb");
        }
    }
    let alive = Arc::new(AtomicI64::new(0));
    let map: CasMap<u64, Bomb> = CasMap::new();
    let guard = map::pin();
    for key in 0..1_000 {
        alive.fetch_add(1, Relaxed);
        assert!(map.insert(key, Bomb(alive.clone(), key == 3), &guard).is_ok());
    }
    drop(guard);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(map))).is_err());
    assert_eq!(alive.load(Relaxed), 0);
}

#[test]
fn slots_are_used_again_once_warm() {
    let map = CasMap::new();
    for i in 0..200_000u64 {
        let guard = map::pin();
        map.insert(i, [i; 4], &guard).unwrap();
        map.remove(&i, &guard).unwrap();
    }
    // How many exactly depends on the guards of other tests in this process.
    assert!(map.slots().allocated < 100_000, "{:?}", map.slots());
}

#[test]
fn a_handle_finds_no_other_life_of_its_slot() {
    let map = CasMap::new();
    let (handle, slot_used_again) = {
        let guard = map::pin();
        let handle = map.insert(u64::MAX, 0, &guard).unwrap().handle();
        map.remove(&u64::MAX, &guard).unwrap();
        (handle, std::cell::Cell::new(0))
    };
    // How soon depends on the guards of other tests in this process.
    let (least, most) = if cfg!(miri) { (100, 1_000) } else { (20_000, 20_000_000) };
    for i in 0..most {
        if i >= least && slot_used_again.get() > 0 {
            break;
        }
        let guard = map::pin();
        let entry = map.insert(i, i, &guard).unwrap();
        slot_used_again.set(slot_used_again.get() + u32::from(format!("{:?}", entry.handle()).contains("index: 0,")));
        assert!(map.by_handle(handle, &guard).is_none());
        map.remove(&i, &guard).unwrap();
    }
    assert!(slot_used_again.get() > 0, "the slot has to live again for this to say anything");
}

/// The length is made of what slots were taken and given back; a value that was replaced has one of its own, and an
/// insert that is refused gives its back.
#[test]
fn the_length_counts_entries_and_no_slots() {
    let map: CasMap<usize, u64> = CasMap::new();
    for round in 0..500u64 {
        let guard = map::pin();
        for key in 0..3 {
            map.insert(key, round, &guard).unwrap();
            assert!(map.insert(key, round, &guard).is_err());
            assert_eq!(map.len(), key + 1);
        }
        for replaced in 1..=3 {
            for key in 0..3 {
                map.replace_if(&key, round + replaced, |_| true, &guard).unwrap();
            }
            assert_eq!(map.len(), 3);
        }
        let seen = map.get(&0, &guard).unwrap();
        map.replace_if(&0, 0, |_| true, &guard).unwrap();
        assert!(map.compare_replace(&seen, 1, &guard).is_err());
        assert_eq!((map.len(), map.iter(&guard).count()), (3, 3));
        for key in 0..3 {
            map.remove(&key, &guard).unwrap();
            assert_eq!(map.len(), 2 - key);
        }
    }
    assert_eq!(map.slots().live, 0);
    assert!(map.slots().allocated < 5_000, "slots are used again");
}

/// One thread replaces values and does nothing more for a while, so that what it has deferred is behind; another
/// one removes the entries, and fills their slots again.
#[test]
fn the_first_value_of_an_entry_is_dropped_and_not_that_of_the_next_life_of_its_slot() {
    /// Says that it has been dropped to whoever still finds it in a slot.
    struct Marked(AtomicU64);

    impl Drop for Marked {
        fn drop(&mut self) {
            self.0.store(u64::MAX, Relaxed);
        }
    }

    let new = |n: u64| Marked(AtomicU64::new(n));
    let keys = if cfg!(miri) { 4 } else { 8 };
    let churn: u64 = if cfg!(miri) { 200 } else { 20_000 };
    let map: CasMap<u64, Marked> = CasMap::new();
    let barrier = std::sync::Barrier::new(2);
    std::thread::scope(|s| {
        let (map, barrier) = (&map, &barrier);
        s.spawn(move || {
            for key in 0..keys {
                let guard = map::pin();
                map.insert(key, new(0), &guard).unwrap();
                assert!(map.replace_if(&key, new(0), |_| true, &guard).is_ok());
            }
            barrier.wait();
            barrier.wait();
            for i in churn..churn + churn / 10 {
                let guard = map::pin();
                map.insert(i, new(i), &guard).unwrap();
                assert!(map.replace_if(&i, new(i), |_| true, &guard).is_ok());
                map.remove(&i, &guard).unwrap();
            }
        });
        barrier.wait();
        for key in 0..keys {
            map.remove(&key, &map::pin()).unwrap();
        }
        for i in keys..churn {
            let guard = map::pin();
            map.insert(i, new(i), &guard).unwrap();
            if i % 16 != 0 {
                map.remove(&i, &guard).unwrap();
            }
        }
        barrier.wait();
    });
    let guard = map::pin();
    assert!(map.len() > 10);
    for entry in map.iter(&guard) {
        assert_eq!(entry.value().0.load(Relaxed), *entry.key(), "dropped while it is in the map");
    }
}

/// Threads insert, remove and replace the same few keys; whoever won a key's entry counts for it.
fn winners_are_unique<S: BuildHasher + Default + Send + Sync>(threads: u64, keys: u64, rounds: u64) {
    let alive = Arc::new(AtomicI64::new(0));
    let map: CasMap<u64, Counted<u64>, S> = CasMap::default();
    let inserted: Vec<AtomicUsize> = (0..keys).map(|_| AtomicUsize::new(0)).collect();
    let removed: Vec<AtomicUsize> = (0..keys).map(|_| AtomicUsize::new(0)).collect();
    std::thread::scope(|s| {
        for t in 0..threads {
            let (map, alive, inserted, removed) = (&map, &alive, &inserted, &removed);
            s.spawn(move || {
                let mut x = t + 1;
                for i in 0..rounds {
                    x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let key = (x >> 33) % keys;
                    let guard = map::pin();
                    match (x >> 20) % 5 {
                        0 | 1 => {
                            if map.insert(key, Counted::new(i, alive), &guard).is_ok() {
                                inserted[key as usize].fetch_add(1, Relaxed);
                            }
                        }
                        2 => {
                            let seen = map.get(&key, &guard);
                            if seen.is_some_and(|seen| map.compare_remove(&seen, &guard)) {
                                removed[key as usize].fetch_add(1, Relaxed);
                            }
                        }
                        3 => {
                            if let Ok(new) = map.replace_if(&key, Counted::new(i, alive), |_| true, &guard) {
                                assert_eq!(*new.key(), key);
                            }
                        }
                        _ => {
                            if map.remove(&key, &guard).is_some() {
                                removed[key as usize].fetch_add(1, Relaxed);
                            }
                        }
                    }
                }
            });
        }
    });
    let guard = map::pin();
    for key in 0..keys {
        let there = usize::from(map.contains_key(&key, &guard));
        let (ins, rem) = (inserted[key as usize].load(Relaxed), removed[key as usize].load(Relaxed));
        assert_eq!(ins, rem + there, "key {key}");
    }
    assert_eq!(map.iter(&guard).count(), map.len());
    drop(guard);
    drop(map);
    all_are_dropped(&alive);
}

const ROUNDS: u64 = match (cfg!(miri), cfg!(debug_assertions)) {
    (true, _) => 150,
    (_, true) => 40_000,
    _ => 400_000,
};

#[test]
fn of_many_threads_one_wins_each_entry_few_keys() {
    winners_are_unique::<map::RandomState>(4, 3, ROUNDS);
}

#[test]
fn of_many_threads_one_wins_each_entry_many_keys() {
    winners_are_unique::<map::RandomState>(4, 5_000, ROUNDS);
}

#[test]
fn of_many_threads_one_wins_each_entry_all_in_one_bucket() {
    winners_are_unique::<Poor<0>>(4, 40, ROUNDS / 4);
}

#[test]
fn nothing_is_lost_or_doubled_while_threads_make_it_grow() {
    let keys: u64 = if cfg!(miri) { 60 } else { 200_000 };
    let threads = 4;
    let map: CasMap<u64, u64> = CasMap::new();
    let wins = AtomicUsize::new(0);
    std::thread::scope(|s| {
        for t in 0..threads {
            let (map, wins) = (&map, &wins);
            s.spawn(move || {
                for i in 0..keys {
                    // Each key is tried by two threads.
                    if i % threads == t || (i + 1) % threads == t {
                        let guard = map::pin();
                        if map.insert(i, t, &guard).is_ok() {
                            wins.fetch_add(1, Relaxed);
                        }
                        // Those that are divisible by three may be out for a moment, see below.
                        assert!(i % 3 == 0 || map.contains_key(&i, &guard), "key {i}");
                        if i % 3 == 0 && (i + 1) % threads == t {
                            // Removal in the middle of moves, and back in.
                            if map.remove(&i, &guard).is_some() && map.insert(i, t, &guard).is_err() {
                                wins.fetch_sub(1, Relaxed);
                            }
                        }
                    }
                }
            });
        }
    });
    let guard = map::pin();
    assert_eq!(map.len(), keys as usize);
    assert_eq!(map.iter(&guard).count(), keys as usize);
    for i in 0..keys {
        assert!(map.contains_key(&i, &guard), "key {i}");
    }
    map.clear(&guard);
    for i in 0..keys {
        assert!(!map.contains_key(&i, &guard), "key {i}");
    }
    assert!(map.is_empty());
}
