//! [`kovan_map::HashMap`]: lock-free, but that a change waits while the map is resized. A look-up gives a copy
//! of the value, so the count lies outside.

use super::{Hasher, Kind, Notified, Peer, SharedCount};
use crate::keys::Key;
use std::sync::Arc;

pub struct Map<K: Key>(kovan_map::HashMap<K, Arc<SharedCount>, Hasher>);

impl<K: Key> Peer<K> for Map<K> {
    const NAME: &'static str = "kovan-map";
    const KIND: Kind = Kind::LockFree;

    fn with_capacity(capacity: usize) -> Self {
        Map(kovan_map::HashMap::with_capacity_and_hasher(capacity.max(64), Hasher::default()))
    }

    fn insert(&self, key: K, expected: u32) -> bool {
        self.0.insert_if_absent(key, Arc::new(SharedCount::new(expected))).is_none()
    }

    fn notify(&self, key: &K::Query) -> Notified {
        let notified = self.0.get(key).map_or(Notified::Gone, |count| count.notify());
        if notified == Notified::Ended {
            self.0.remove(key);
        }
        notified
    }

    fn expire(&self, key: &K::Query) -> bool {
        let claimed = self.0.get(key).is_some_and(|count| count.claim());
        if claimed {
            self.0.remove(key);
        }
        claimed
    }

    fn while_reading(&self, key: &K::Query, stalled: impl FnOnce()) {
        // As a reader that is descheduled inside `get`, which pins.
        let _guard = kovan::pin();
        let _count = self.0.get(key);
        stalled();
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
