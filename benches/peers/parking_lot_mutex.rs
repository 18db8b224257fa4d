//! The standard library's map behind parking_lot's mutex.

use super::mutex::notify;
use super::{Hasher, Kind, MAX_BATCH, Notified, OwnCount, Peer};
use crate::keys::Key;
use parking_lot::Mutex;
use std::collections::HashMap;

pub struct Map<K>(Mutex<HashMap<K, OwnCount, Hasher>>);

impl<K: Key> Peer<K> for Map<K> {
    const NAME: &'static str = "parking_lot-mutex";
    const KIND: Kind = Kind::Locks;

    fn with_capacity(capacity: usize) -> Self {
        Map(Mutex::new(HashMap::with_capacity_and_hasher(capacity, Hasher::default())))
    }

    fn insert(&self, key: K, expected: u32) -> bool {
        self.0.lock().insert(key, OwnCount::new(expected)).is_none()
    }

    fn notify(&self, key: &K::Query) -> Notified {
        notify(&mut self.0.lock(), key)
    }

    fn notify_batch<'k>(&self, keys: impl Iterator<Item = &'k K::Query> + Clone, mut on: impl FnMut(usize, Notified)) {
        let mut results = [Notified::Gone; MAX_BATCH];
        let mut map = self.0.lock();
        let count = keys.zip(&mut results).map(|(key, result)| *result = notify(&mut map, key)).count();
        drop(map);
        results[..count].iter().enumerate().for_each(|(n, result)| on(n, *result));
    }

    fn expire(&self, key: &K::Query) -> bool {
        self.0.lock().remove(key).is_some()
    }

    fn len(&self) -> usize {
        self.0.lock().len()
    }
}
