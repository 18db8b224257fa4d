//! [`scc::HashIndex`]: look-ups without locks, changes under a lock for each bucket. It may copy an entry to
//! another place while it is read, so the count lies outside.

use super::{Hasher, Kind, Notified, Peer, SharedCount};
use crate::keys::Key;
use std::sync::Arc;

pub struct Map<K: Key>(scc::HashIndex<K, Arc<SharedCount>, Hasher>);

impl<K: Key> Peer<K> for Map<K> {
    const NAME: &'static str = "scc-index";
    const KIND: Kind = Kind::LockFree;

    fn with_capacity(capacity: usize) -> Self {
        Map(scc::HashIndex::with_capacity_and_hasher(capacity, Hasher::default()))
    }

    fn insert(&self, key: K, expected: u32) -> bool {
        self.0.insert_sync(key, Arc::new(SharedCount::new(expected))).is_ok()
    }

    fn notify(&self, key: &K::Query) -> Notified {
        let notified = self.0.peek_with(key, |_, count| count.notify()).unwrap_or(Notified::Gone);
        if notified == Notified::Ended {
            self.0.remove_sync(key);
        }
        notified
    }

    fn notify_batch<'k>(&self, keys: impl Iterator<Item = &'k K::Query> + Clone, mut on: impl FnMut(usize, Notified)) {
        // Guards nest: while one is held the others cost little.
        let _guard = scc::Guard::new();
        for (n, key) in keys.enumerate() {
            on(n, self.notify(key));
        }
    }

    fn expire(&self, key: &K::Query) -> bool {
        self.0.remove_if_sync(key, |count| count.claim())
    }

    fn while_reading(&self, key: &K::Query, stalled: impl FnOnce()) {
        let guard = scc::Guard::new();
        let _count = self.0.peek(key, &guard);
        stalled();
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
