//! The standard library's map behind its read-write lock: notifications share it, inserts and removals do not.

use super::{Hasher, Kind, Notified, Peer, SharedCount};
use crate::keys::Key;
use std::collections::HashMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub struct Map<K>(RwLock<HashMap<K, SharedCount, Hasher>>);

impl<K: Key> Map<K> {
    fn read(&self) -> RwLockReadGuard<'_, HashMap<K, SharedCount, Hasher>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<K, SharedCount, Hasher>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Key> Peer<K> for Map<K> {
    const NAME: &'static str = "std-rwlock";
    const KIND: Kind = Kind::Locks;

    fn with_capacity(capacity: usize) -> Self {
        Map(RwLock::new(HashMap::with_capacity_and_hasher(capacity, Hasher::default())))
    }

    fn insert(&self, key: K, expected: u32) -> bool {
        self.write().insert(key, SharedCount::new(expected)).is_none()
    }

    fn notify(&self, key: &K::Query) -> Notified {
        let notified = self.read().get(key).map_or(Notified::Gone, SharedCount::notify);
        if notified == Notified::Ended {
            self.write().remove(key);
        }
        notified
    }

    fn expire(&self, key: &K::Query) -> bool {
        let mut map = self.write();
        map.get(key).is_some_and(SharedCount::claim) && map.remove(key).is_some()
    }

    fn len(&self) -> usize {
        self.read().len()
    }
}
