//! [`dashmap::DashMap`]: shards behind read-write locks.

use super::{Hasher, Kind, Notified, OwnCount, Peer};
use crate::keys::Key;
use dashmap::DashMap;

pub struct Map<K>(DashMap<K, OwnCount, Hasher>);

impl<K: Key> Peer<K> for Map<K> {
    const NAME: &'static str = "dashmap";
    const KIND: Kind = Kind::Locks;

    fn with_capacity(capacity: usize) -> Self {
        Map(DashMap::with_capacity_and_hasher(capacity, Hasher::default()))
    }

    fn insert(&self, key: K, expected: u32) -> bool {
        self.0.insert(key, OwnCount::new(expected)).is_none()
    }

    fn notify(&self, key: &K::Query) -> Notified {
        let last = match self.0.get_mut(key) {
            None => return Notified::Gone,
            Some(mut count) => count.notify(),
        };
        if !last {
            Notified::Counted
        } else if self.0.remove(key).is_some() {
            Notified::Ended
        } else {
            Notified::Gone
        }
    }

    fn expire(&self, key: &K::Query) -> bool {
        self.0.remove(key).is_some()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
