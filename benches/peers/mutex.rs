//! The standard library's map behind its mutex: what most programs have, and what all ratios are to.

use super::{Hasher, Kind, MAX_BATCH, Notified, OwnCount, Peer};
use crate::keys::Key;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub struct Map<K>(Mutex<HashMap<K, OwnCount, Hasher>>);

impl<K> Map<K> {
    fn lock(&self) -> MutexGuard<'_, HashMap<K, OwnCount, Hasher>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Key> Peer<K> for Map<K> {
    const NAME: &'static str = super::BASE;
    const KIND: Kind = Kind::Locks;

    fn with_capacity(capacity: usize) -> Self {
        Map(Mutex::new(HashMap::with_capacity_and_hasher(capacity, Hasher::default())))
    }

    fn insert(&self, key: K, expected: u32) -> bool {
        self.lock().insert(key, OwnCount::new(expected)).is_none()
    }

    fn notify(&self, key: &K::Query) -> Notified {
        notify(&mut self.lock(), key)
    }

    fn notify_batch<'k>(&self, keys: impl Iterator<Item = &'k K::Query> + Clone, mut on: impl FnMut(usize, Notified)) {
        // `on` uses the map, so the results are kept until it is unlocked.
        let mut results = [Notified::Gone; MAX_BATCH];
        let mut map = self.lock();
        let count = keys.zip(&mut results).map(|(key, result)| *result = notify(&mut map, key)).count();
        drop(map);
        results[..count].iter().enumerate().for_each(|(n, result)| on(n, *result));
    }

    fn expire(&self, key: &K::Query) -> bool {
        self.lock().remove(key).is_some()
    }

    fn len(&self) -> usize {
        self.lock().len()
    }
}

/// Counts one, on a map that is locked.
pub fn notify<K: Key>(map: &mut HashMap<K, OwnCount, Hasher>, key: &K::Query) -> Notified {
    let Some(count) = map.get_mut(key) else { return Notified::Gone };
    if !count.notify() {
        return Notified::Counted;
    }
    map.remove(key);
    Notified::Ended
}
