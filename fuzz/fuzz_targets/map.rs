//! Any sequence of calls on the map, against `std`'s, with hashes of the input's own choice.
//!
//! Beyond what `tests/map.rs` does, guards and what was observed under them live on over many calls, and handles
//! over guards.

#![no_main]

use kvlease::map::{self, CasMap, Entry, Handle, InsertError};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

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
        assert!(self.1.fetch_sub(1, Relaxed) > 0, "dropped twice");
    }
}

impl<T: PartialEq> PartialEq for Counted<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T: Eq> Eq for Counted<T> {}

impl Hash for Counted<u16> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u16(self.0);
    }
}

/// Of each key the bits of `mask`, spread over the hash: from all that collide to none that do.
#[derive(Clone, Copy)]
struct Masked {
    mask: u16,
    spread: bool,
    hash: u64,
}

impl Hasher for Masked {
    fn finish(&self) -> u64 {
        self.hash
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are u16");
    }

    fn write_u16(&mut self, key: u16) {
        let kept = u64::from(key & self.mask);
        self.hash = if self.spread { kept.wrapping_mul(0x9E37_79B9_7F4A_7C15) } else { kept };
    }
}

impl BuildHasher for Masked {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        *self
    }
}

type Map = CasMap<Counted<u16>, Counted<u64>, Masked>;

/// What the model knows of a live entry: its value, and which life of the key it is.
type Model = HashMap<u16, (u64, u64)>;

/// An entry as it was observed.
struct Seen<'g> {
    entry: Entry<'g, Counted<u16>, Counted<u64>>,
    value: u64,
    life: u64,
}

fuzz_target!(|data: &[u8]| {
    _ = run(&mut Unstructured::new(data));
});

fn run(u: &mut Unstructured<'_>) -> Result<()> {
    let (keys_alive, values_alive) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
    let hasher = Masked { mask: *u.choose(&[0, 1, 3, 0xFF, 0xFFFF])?, spread: u.arbitrary()?, hash: 0 };
    let keys = *u.choose(&[4_u16, 16, 256, 4096])?;
    let map: Map = CasMap::with_capacity_and_hasher(*u.choose(&[0, 1, 1000])?, hasher);
    let mut model = Model::new();
    let mut handles: Vec<(Handle, u16, u64)> = Vec::new();
    let tag = Rc::new(Cell::new(0));

    let key = |k: u16| Counted::new(k, &keys_alive);
    let fresh = || {
        tag.set(tag.get() + 1);
        tag.get()
    };
    let value = |v: u64| Counted::new(v, &values_alive);
    while !u.is_empty() {
        let guard = map::pin();
        let mut seen: Vec<Seen<'_>> = Vec::new();
        for _ in 0..u.int_in_range(1..=40)? {
            let k = u.int_in_range(0..=keys - 1)?;
            match u.int_in_range(0..=13)? {
                0..=3 => {
                    // A whole range at once makes it grow within few bytes of input. Where all collide, each
                    // insert looks at all of them, so there it is a short one.
                    let range = if hasher.mask < 0xFF { 24 } else { 256 };
                    let many = if u.ratio(1, 8)? { range } else { 1 };
                    for k in (k..keys).take(many) {
                        let v = fresh();
                        match map.insert(key(k), value(v), &guard) {
                            Ok(entry) => {
                                assert_eq!((entry.key().0, entry.value().0), (k, v));
                                assert_eq!(model.insert(k, (v, v)), None);
                                handles.push((entry.handle(), k, v));
                                seen.push(Seen { entry, value: v, life: v });
                            }
                            Err(InsertError::Exists { key, value, entry }) => {
                                assert_eq!((key.0, value.0, entry.value().0), (k, v, model[&k].0));
                            }
                            Err(full) => panic!("{full}"),
                        }
                    }
                }
                4 | 5 => {
                    let found = map.get(&key(k), &guard);
                    assert_eq!(found.map(|e| e.value().0), model.get(&k).map(|m| m.0));
                    assert_eq!(map.contains_key(&key(k), &guard), found.is_some());
                    if let (Some(entry), Some(&(value, life))) = (found, model.get(&k)) {
                        assert!(entry.is_current());
                        seen.push(Seen { entry, value, life });
                    }
                }
                6 => {
                    let removed = map.remove(&key(k), &guard);
                    assert_eq!(removed.map(|e| e.value().0), model.remove(&k).map(|m| m.0));
                }
                7 => {
                    let least: u64 = u.int_in_range(0..=tag.get())?;
                    let removed = map.remove_if(&key(k), |v| v.0 >= least, &guard);
                    let expected = model.get(&k).filter(|m| m.0 >= least).map(|m| m.0);
                    assert_eq!(removed.map(|e| e.value().0), expected);
                    if expected.is_some() {
                        model.remove(&k);
                    }
                }
                8 if !seen.is_empty() => {
                    let old = &seen[u.choose_index(seen.len())?];
                    let k = old.entry.key().0;
                    let current = model.get(&k) == Some(&(old.value, old.life));
                    assert_eq!(old.entry.is_current(), current);
                    assert_eq!(map.compare_remove(&old.entry, &guard), current);
                    if current {
                        model.remove(&k);
                    }
                }
                9 if !seen.is_empty() => {
                    let at = u.choose_index(seen.len())?;
                    let (old, v) = (&seen[at], fresh());
                    let k = old.entry.key().0;
                    let current = model.get(&k) == Some(&(old.value, old.life));
                    match map.compare_replace(&old.entry, value(v), &guard) {
                        Ok(entry) => {
                            assert!(current && entry.key().0 == k && entry.value().0 == v);
                            assert_eq!(entry.handle(), old.entry.handle(), "the same life of the key");
                            let life = old.life;
                            model.insert(k, (v, life));
                            seen.push(Seen { entry, value: v, life });
                        }
                        Err(back) => assert!(!current && back.0 == v),
                    }
                }
                10 => {
                    let (v, least) = (fresh(), u.int_in_range(0..=tag.get())?);
                    match map.replace_if(&key(k), value(v), |old| old.0 >= least, &guard) {
                        Ok(entry) => {
                            let (old, life) = model[&k];
                            assert!(old >= least && entry.value().0 == v);
                            model.insert(k, (v, life));
                            seen.push(Seen { entry, value: v, life });
                        }
                        Err(back) => {
                            assert_eq!(back.0, v);
                            assert!(model.get(&k).is_none_or(|m| m.0 < least));
                        }
                    }
                }
                11 => {
                    let v = fresh();
                    let entry = map.get_or_insert_with(key(k), || value(v), &guard).unwrap();
                    assert_eq!(entry.value().0, model.entry(k).or_insert((v, v)).0);
                }
                12 => {
                    let n = u.int_in_range(0..=4_u16)?;
                    match n {
                        0 if u.ratio(1, 4)? => {
                            map.clear(&guard);
                            model.clear();
                        }
                        0 => {}
                        n => {
                            map.retain(|k, _| k.0 % n == 0, &guard);
                            model.retain(|k, _| k % n == 0);
                        }
                    }
                }
                _ if !handles.is_empty() => {
                    let (handle, k, life) = handles[u.choose_index(handles.len())?];
                    let found = map.by_handle(handle, &guard);
                    let expected = model.get(&k).filter(|m| m.1 == life);
                    assert_eq!(found.map(|e| (e.key().0, e.value().0)), expected.map(|m| (k, m.0)));
                }
                _ => {}
            }
            assert_eq!(map.len(), model.len());
        }
        // What was observed stays readable under its guard, whatever became of it.
        for old in &seen {
            assert_eq!(old.entry.value().0, old.value);
            let current = model.get(&old.entry.key().0) == Some(&(old.value, old.life));
            assert_eq!(old.entry.is_current(), current);
        }
        let mut all: Vec<_> = map.iter(&guard).map(|e| (e.key().0, e.value().0)).collect();
        let mut expected: Vec<_> = model.iter().map(|(k, m)| (*k, m.0)).collect();
        all.sort_unstable();
        expected.sort_unstable();
        assert_eq!(all, expected);
        assert_eq!(map.slots().live, model.len());
        drop(seen);
        drop(guard);
        if u.arbitrary()? {
            // Enough for the epoch to move on twice, so that slots are used again, and old handles meet new lives.
            (0..400).for_each(|_| drop(map::pin()));
        }
    }
    drop(map);
    assert_eq!(keys_alive.load(Relaxed), 0, "each key is dropped once");
    assert_eq!(values_alive.load(Relaxed), 0, "each value is dropped once");
    Ok(())
}
