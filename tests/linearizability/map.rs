//! The map, key by key.

use crate::checker::{Call, Object, Violation, Work, check};
use crate::{Budget, Gate, Random, Stamps, interrupt};
use kvlease::map::{self, CasMap, Entry, InsertError};
use std::hash::{BuildHasher, Hash, Hasher};

/// A key that tells which insert it came with. Equality and hash do not see that.
#[derive(Clone, Copy, Debug)]
struct Key {
    key: u64,
    tag: u64,
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        interrupt();
        self.key == other.key
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        interrupt();
        state.write_u64(self.key);
    }
}

/// Everything into two buckets.
#[derive(Clone, Copy, Default)]
struct Crowded(u64);

impl Hasher for Crowded {
    fn finish(&self) -> u64 {
        self.0 & 1
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }
}

impl BuildHasher for Crowded {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        Self(0)
    }
}

/// An entry as observed: the insert it came with, and its value. No two values are equal.
type Seen = (u64, u64);

/// A call on one key, and what it answered.
#[derive(Clone, Copy, PartialEq, Debug)]
enum What {
    Get(Option<Seen>),
    /// The entry that the handle of `tag` finds.
    ByHandle {
        tag: u64,
        found: Option<Seen>,
    },
    /// `Err` with the one that is there.
    Insert {
        new: Seen,
        answer: Result<(), Seen>,
    },
    GetOrInsert {
        new: Seen,
        got: Seen,
    },
    Remove(Option<Seen>),
    /// The value has to be even.
    RemoveIf(Option<Seen>),
    CompareRemove {
        observed: Seen,
        won: bool,
    },
    /// Gives the value that it took the place of.
    Replace {
        new: u64,
        old: Option<Seen>,
    },
    CompareReplace {
        observed: Seen,
        new: u64,
        won: bool,
    },
}

/// A plain optional entry.
struct Plain;

impl Object for Plain {
    type What = What;
    type State = Option<Seen>;

    fn start(&self) -> Option<Seen> {
        None
    }

    fn states_after(&self, state: &Option<Seen>, call: &Call<What>) -> Vec<Option<Seen>> {
        let now = *state;
        let (right, after) = match call.what {
            What::Get(found) => (found == now, now),
            What::ByHandle { tag, found } => (found == now.filter(|n| n.0 == tag), now),
            What::Insert { new, answer: Ok(()) } => (now.is_none(), Some(new)),
            What::Insert { answer: Err(there), .. } => (now == Some(there), now),
            What::GetOrInsert { new, got } => (got == now.unwrap_or(new), Some(got)),
            What::Remove(removed) => (removed == now, None),
            What::RemoveIf(removed) => {
                let even = now.filter(|n| n.1 % 2 == 0);
                (removed == even, if even.is_some() { None } else { now })
            }
            What::CompareRemove { observed, won } => (won == (now == Some(observed)), if won { None } else { now }),
            What::Replace { new, old } => (old == now, now.map(|n| (n.0, new))),
            What::CompareReplace { observed, new, won } => {
                (won == (now == Some(observed)), if won { Some((observed.0, new)) } else { now })
            }
        };
        if right { vec![after] } else { vec![] }
    }
}

fn seen(entry: &Entry<'_, Key, u64>) -> Seen {
    (entry.key().tag, *entry.value())
}

/// What one thread did, with the key of each call.
type Log = Vec<(u64, Call<What>)>;

fn work<S: BuildHasher + Default>(
    map: &CasMap<Key, u64, S>,
    lane: usize,
    keys: u64,
    calls: usize,
    (stamps, gate): &(Stamps, Gate),
) -> Log {
    let mut random = Random::new(lane as u64);
    let mut log = Vec::with_capacity(calls);
    for i in 0..calls {
        let number = i as u64 * 64 + lane as u64 + 1;
        // More and more keys, so that the map grows all the time; mostly the last few.
        let last = 1 + i as u64 * keys / calls as u64;
        let recent = if random.below(4) == 0 { keys } else { 2 };
        let key = last - 1 - random.below(last.min(recent));
        let key_of = |tag| Key { key, tag };
        let (key_now, new) = (key_of(0), (number, number));
        let guard = map::pin();
        // Observed before, to be acted on now or never.
        let observed = map.get(&key_now, &guard);
        gate.pass(&mut random);
        let began = stamps.next();
        let what = match random.below(12) {
            0 => What::Get(map.get(&key_now, &guard).as_ref().map(seen)),
            1..=3 => {
                let answer = match map.insert(key_of(number), number, &guard) {
                    Ok(entry) => {
                        assert_eq!(seen(&entry), new);
                        Ok(())
                    }
                    Err(InsertError::Exists { entry, .. }) => Err(seen(&entry)),
                    Err(full) => panic!("{full}"),
                };
                What::Insert { new, answer }
            }
            4 => What::GetOrInsert {
                new,
                got: seen(&map.get_or_insert_with(key_of(number), || number, &guard).unwrap()),
            },
            5 => What::Remove(map.remove(&key_now, &guard).as_ref().map(seen)),
            6 => What::RemoveIf(map.remove_if(&key_now, |v| v % 2 == 0, &guard).as_ref().map(seen)),
            7 => {
                let mut old = 0;
                let replaced = map.replace_if(
                    &key_now,
                    number,
                    |v| {
                        old = *v;
                        true
                    },
                    &guard,
                );
                What::Replace { new: number, old: replaced.ok().map(|entry| (entry.key().tag, old)) }
            }
            n => match observed {
                None => What::Get(map.get(&key_now, &guard).as_ref().map(seen)),
                Some(entry) if n == 8 => {
                    let found = map.by_handle(entry.handle(), &guard).as_ref().map(seen);
                    What::ByHandle { tag: entry.key().tag, found }
                }
                Some(entry) if n == 9 => {
                    let won = map.compare_replace(&entry, number, &guard).is_ok();
                    What::CompareReplace { observed: seen(&entry), new: number, won }
                }
                Some(entry) => What::CompareRemove { observed: seen(&entry), won: map.compare_remove(&entry, &guard) },
            },
        };
        let ended = stamps.next();
        log.push((key, Call { lane, began, ended, what }));
    }
    log
}

fn one_round<S: BuildHasher + Default + Sync>(keys: u64, threads: usize, calls: usize) -> Result<Work, Violation> {
    let map: CasMap<Key, u64, S> = CasMap::default();
    let shared = Default::default();
    let mut histories: Vec<Vec<Call<What>>> = vec![Vec::new(); keys as usize];
    std::thread::scope(|s| {
        let (map, shared) = (&map, &shared);
        let threads: Vec<_> = (0..threads).map(|lane| s.spawn(move || work(map, lane, keys, calls, shared))).collect();
        for (key, call) in threads.into_iter().flat_map(|t| t.join().expect("a thread failed")) {
            histories[key as usize].push(call);
        }
    });
    let mut sum = Work::default();
    for history in histories {
        sum += check(&Plain, history)?;
    }
    Ok(sum)
}

#[test]
fn the_map_is_linearizable() {
    let budget = Budget::calls(500_000, 40_000);
    let report = budget.spend("map", |round| {
        let calls = 2_000;
        match round % 4 {
            0 => one_round::<map::RandomState>(2, 4, calls),
            1 => one_round::<map::RandomState>(200, 4, calls),
            2 => one_round::<Crowded>(60, 4, calls),
            _ => one_round::<map::RandomState>(30, 8, calls / 2),
        }
    });
    assert!(report.overlapping > 0, "the threads never met: {report:?}");
}

#[test]
fn wrong_histories_of_a_map_are_rejected() {
    use What::*;
    let ok = |calls: &[(usize, u64, u64, What)]| {
        check(&Plain, calls.iter().map(|c| Call { lane: c.0, began: c.1, ended: c.2, what: c.3 }).collect()).is_ok()
    };
    let insert = (0, 1, 2, Insert { new: (1, 1), answer: Ok(()) });
    assert!(ok(&[insert, (1, 3, 4, Get(Some((1, 1))))]));
    assert!(!ok(&[insert, (1, 3, 4, Get(None))]), "an insert that was lost");
    assert!(!ok(&[insert, (1, 3, 4, Get(Some((1, 2))))]), "a value from nowhere");
    assert!(!ok(&[insert, (1, 3, 4, Insert { new: (2, 2), answer: Ok(()) })]), "two inserts of one key");
    assert!(!ok(&[
        (0, 1, 4, Insert { new: (1, 1), answer: Ok(()) }),
        (1, 2, 3, Insert { new: (2, 2), answer: Ok(()) })
    ]));
    assert!(!ok(&[insert, (0, 3, 6, Remove(Some((1, 1)))), (1, 4, 5, Remove(Some((1, 1))))]), "two removers");
    assert!(ok(&[insert, (0, 3, 6, Remove(Some((1, 1)))), (1, 4, 5, Remove(None))]));
    assert!(!ok(&[insert, (0, 3, 4, Remove(Some((1, 1)))), (1, 5, 6, Get(Some((1, 1))))]), "back from the dead");
    let win = CompareRemove { observed: (1, 1), won: true };
    assert!(!ok(&[insert, (0, 3, 6, win), (1, 4, 5, win)]), "two winners");
    let again = (0, 5, 6, Insert { new: (2, 2), answer: Ok(()) });
    assert!(!ok(&[insert, (0, 3, 4, Remove(Some((1, 1)))), again, (1, 7, 8, win)]), "another life was removed");
    let replace = (0, 3, 4, Replace { new: 5, old: Some((1, 1)) });
    assert!(!ok(&[insert, replace, (1, 5, 6, win)]), "a replaced value was removed as observed");
    assert!(ok(&[insert, replace, (1, 5, 6, ByHandle { tag: 1, found: Some((1, 5)) })]));
    assert!(!ok(&[insert, replace, (1, 5, 6, Get(Some((1, 1))))]), "a stale value");
    assert!(!ok(&[insert, (0, 3, 4, RemoveIf(Some((1, 1))))]), "removed against its condition");
    assert!(!ok(&[insert, (0, 3, 4, GetOrInsert { new: (2, 2), got: (2, 2) })]));
}
