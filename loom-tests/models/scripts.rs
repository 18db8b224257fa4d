//! Scripts of operations on a map, and a plain ordered map as their specification.

use super::harness::Owned;
use crate::map::{CasMap, Entry, InsertError, pin};
use equivalent::Equivalent;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hash, Hasher};

pub(super) struct Key(pub(super) Owned<u32>);

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.0.read();
        self.0.what == other.0.what
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.what.hash(state);
    }
}

#[derive(Hash)]
struct Asked(u32);

impl Equivalent<Key> for Asked {
    fn equivalent(&self, key: &Key) -> bool {
        key.0.read();
        self.0 == key.0.what
    }
}

/// Puts the tens of a key into the bits that a reference carries: 10 and 11 have equal ones; an index of
/// two buckets has even tens in one and odd tens in the other.
#[derive(Clone, Copy, Default)]
pub(super) struct ByTens;

pub(super) struct TensHasher(u64);

impl Hasher for TensHasher {
    fn finish(&self) -> u64 {
        // The map multiplies by an odd number and takes the upper 28 bits; this is undone.
        const INVERSE: u64 = {
            let odd = 0x9e37_79b9_7f4a_7c15u64;
            let mut inverse = odd;
            let mut i = 0;
            while i < 6 {
                inverse = inverse.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(inverse)));
                i += 1;
            }
            inverse
        };
        ((self.0 / 10) << 36).wrapping_mul(INVERSE)
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are numbers");
    }

    fn write_u32(&mut self, n: u32) {
        self.0 = n.into();
    }
}

impl BuildHasher for ByTens {
    type Hasher = TensHasher;

    fn build_hasher(&self) -> TensHasher {
        TensHasher(0)
    }
}

pub(super) type Map = CasMap<Key, Owned<u32>, ByTens>;

/// Each on its key. Values are all different, so a value tells one life of a key from another.
#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    Insert(u32, u32),
    Get(u32),
    Remove(u32),
    RemoveIf(u32, u32),
    /// Looks, and remembers the entry for the next two.
    Observe(u32),
    CompareRemove(u32),
    CompareReplace(u32, u32),
    ReplaceIf(u32, u32, u32),
    /// Starts a move to a larger index. Changes nothing that can be seen.
    Grow,
    /// Moves the bucket of this key. Changes nothing that can be seen.
    Move(u32),
    /// Runs what was deferred and has waited long enough. Changes nothing that can be seen.
    Collect,
}

pub(super) use Op::*;

/// The entries, and what each role has observed.
pub(super) type Spec = (BTreeMap<u32, u32>, Vec<Option<u32>>);

pub(super) fn spec_step((map, observed): &mut Spec, role: usize, op: &Op) -> String {
    match *op {
        Insert(key, value) => match map.get(&key) {
            Some(there) => format!("exists {there}"),
            None => {
                map.insert(key, value);
                "inserted".into()
            }
        },
        Get(key) => format!("{:?}", map.get(&key)),
        Remove(key) => format!("{:?}", map.remove(&key)),
        RemoveIf(key, value) => {
            let there = map.get(&key).copied().filter(|there| *there == value);
            if there.is_some() {
                map.remove(&key);
            }
            format!("{there:?}")
        }
        Observe(key) => {
            observed[role] = map.get(&key).copied();
            format!("{:?}", observed[role])
        }
        CompareRemove(key) => {
            let same = observed[role].is_some() && map.get(&key).copied() == observed[role];
            if same {
                map.remove(&key);
            }
            same.to_string()
        }
        CompareReplace(key, value) => {
            let same = observed[role].is_some() && map.get(&key).copied() == observed[role];
            if same {
                map.insert(key, value);
            }
            same.to_string()
        }
        ReplaceIf(key, from, to) => {
            let same = map.get(&key) == Some(&from);
            if same {
                map.insert(key, to);
            }
            same.to_string()
        }
        Grow | Move(_) | Collect => String::new(),
    }
}

/// With this many buckets.
pub(super) fn map_of(buckets: usize) -> Map {
    Map::with_capacity_and_hasher(2 * buckets, ByTens)
}

pub(super) fn contents(map: &Map) -> String {
    let guard = pin();
    let all: BTreeMap<u32, u32> = map.iter(&guard).map(|entry| (entry.key().0.what, entry.value().what)).collect();
    assert_eq!(all.len(), map.len(), "no key is there twice");
    format!("{all:?}")
}

/// Under one guard.
pub(super) fn play(map: &Map, script: &[Op]) -> Vec<String> {
    let guard = pin();
    let mut observed: Option<Entry<'_, Key, Owned<u32>>> = None;
    let value = |entry: Entry<'_, Key, Owned<u32>>| {
        entry.key().0.read();
        entry.value().read();
        entry.value().what
    };
    let mut answers = Vec::new();
    for op in script {
        answers.push(match *op {
            Insert(key, new) => match map.insert(Key(Owned::new(key)), Owned::new(new), &guard) {
                Ok(entry) => {
                    assert_eq!(value(entry), new);
                    "inserted".into()
                }
                Err(InsertError::Exists { key, value: back, entry }) => {
                    key.0.own();
                    back.own();
                    format!("exists {}", value(entry))
                }
                Err(InsertError::Full { .. }) => "full".into(),
            },
            Get(key) => format!("{:?}", map.get(&Asked(key), &guard).map(value)),
            Remove(key) => format!("{:?}", map.remove(&Asked(key), &guard).map(value)),
            RemoveIf(key, there) => {
                format!("{:?}", map.remove_if(&Asked(key), |value| value.what == there, &guard).map(value))
            }
            Observe(key) => {
                observed = map.get(&Asked(key), &guard);
                format!("{:?}", observed.map(value))
            }
            CompareRemove(_) => {
                let removed = observed.is_some_and(|entry| map.compare_remove(&entry, &guard));
                observed.map(value); // still readable
                removed.to_string()
            }
            CompareReplace(_, new) => {
                let replaced =
                    observed.is_some_and(|entry| map.compare_replace(&entry, Owned::new(new), &guard).is_ok());
                observed.map(value); // the old value is
                replaced.to_string()
            }
            ReplaceIf(key, from, to) => {
                map.replace_if(&Asked(key), Owned::new(to), |value| value.what == from, &guard).is_ok().to_string()
            }
            Grow => {
                map.begin_growth(&guard);
                String::new()
            }
            Move(key) => {
                map.move_bucket_of(&Asked(key), &guard);
                String::new()
            }
            Collect => {
                guard.flush();
                String::new()
            }
        });
    }
    answers
}
