//! Sixty-four tables, each behind a mutex on its own cache line, and one hash for both: what one writes when
//! one mutex is too slow.

use super::{Hasher, Kind, Notified, OwnCount, Peer};
use crate::keys::Key;
use crossbeam_utils::CachePadded;
use hashbrown::HashTable;
use parking_lot::Mutex;
use std::hash::BuildHasher;

const SHARDS: usize = 64;

type Shard<K> = HashTable<(K, OwnCount)>;

pub struct Map<K> {
    shards: Box<[CachePadded<Mutex<Shard<K>>>]>,
    hasher: Hasher,
}

impl<K: Key> Map<K> {
    /// The hash of a key, and the shard it belongs to. Within it the table uses the highest and lowest bits.
    #[inline]
    fn shard(&self, key: &K::Query) -> (u64, &Mutex<Shard<K>>) {
        let hash = self.hasher.hash_one(key);
        (hash, &self.shards[(hash >> 50) as usize % SHARDS])
    }
}

impl<K: Key> Peer<K> for Map<K> {
    const NAME: &'static str = "sharded-mutex";
    const KIND: Kind = Kind::Locks;

    fn with_capacity(capacity: usize) -> Self {
        // Shards are not filled alike.
        let shard = || Mutex::new(HashTable::with_capacity(capacity / SHARDS * 9 / 8));
        Map { shards: (0..SHARDS).map(|_| CachePadded::new(shard())).collect(), hasher: Hasher::default() }
    }

    fn insert(&self, key: K, expected: u32) -> bool {
        let (hash, shard) = self.shard(key.borrow());
        let mut shard = shard.lock();
        let hash_of = |entry: &(K, OwnCount)| self.hasher.hash_one::<&K::Query>(entry.0.borrow());
        match shard.entry(hash, |entry| entry.0 == key, hash_of) {
            hashbrown::hash_table::Entry::Occupied(_) => false,
            hashbrown::hash_table::Entry::Vacant(place) => {
                place.insert((key, OwnCount::new(expected)));
                true
            }
        }
    }

    fn notify(&self, key: &K::Query) -> Notified {
        let (hash, shard) = self.shard(key);
        let mut shard = shard.lock();
        let Ok(mut entry) = shard.find_entry(hash, |entry| entry.0.borrow() == key) else { return Notified::Gone };
        if !entry.get_mut().1.notify() {
            return Notified::Counted;
        }
        let (removed, _) = entry.remove();
        drop(shard);
        drop(removed); // frees the key, which need not be done under the lock
        Notified::Ended
    }

    fn expire(&self, key: &K::Query) -> bool {
        let (hash, shard) = self.shard(key);
        let removed = {
            let mut shard = shard.lock();
            shard.find_entry(hash, |entry| entry.0.borrow() == key).ok().map(|entry| entry.remove().0)
        };
        removed.is_some()
    }

    fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}
