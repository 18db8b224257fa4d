//! [`flurry::HashMap`]: look-ups without locks, changes under a lock for each bin.

use super::{Hasher, Kind, Notified, Peer, SharedCount};
use crate::keys::Key;
use flurry::Guard;

pub struct Map<K>(flurry::HashMap<K, SharedCount, Hasher>);

impl<K: Key> Map<K> {
    #[inline]
    fn notify_under(&self, key: &K::Query, guard: &Guard<'_>) -> Notified {
        let Some(count) = self.0.get(key, guard) else { return Notified::Gone };
        let notified = count.notify();
        if notified == Notified::Ended {
            self.0.remove(key, guard);
        }
        notified
    }
}

impl<K: Key> Peer<K> for Map<K> {
    const NAME: &'static str = "flurry";
    const KIND: Kind = Kind::LockFree;

    fn with_capacity(capacity: usize) -> Self {
        Map(flurry::HashMap::with_capacity_and_hasher(capacity, Hasher::default()))
    }

    fn insert(&self, key: K, expected: u32) -> bool {
        self.0.try_insert(key, SharedCount::new(expected), &self.0.guard()).is_ok()
    }

    fn notify(&self, key: &K::Query) -> Notified {
        self.notify_under(key, &self.0.guard())
    }

    fn notify_batch<'k>(&self, keys: impl Iterator<Item = &'k K::Query> + Clone, mut on: impl FnMut(usize, Notified)) {
        let guard = self.0.guard();
        for (n, key) in keys.enumerate() {
            on(n, self.notify_under(key, &guard));
        }
    }

    fn expire(&self, key: &K::Query) -> bool {
        let guard = self.0.guard();
        let claimed = self.0.get(key, &guard).is_some_and(SharedCount::claim);
        if claimed {
            self.0.remove(key, &guard);
        }
        claimed
    }

    fn while_reading(&self, key: &K::Query, stalled: impl FnOnce()) {
        let guard = self.0.guard();
        let _count = self.0.get(key, &guard);
        stalled();
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
