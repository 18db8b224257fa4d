//! [`scc::HashMap`]: a lock for each bucket of 32 entries, held while the entry is used.

use super::{Hasher, Kind, Notified, OwnCount, Peer};
use crate::keys::Key;

pub struct Map<K: Key>(scc::HashMap<K, OwnCount, Hasher>);

impl<K: Key> Peer<K> for Map<K> {
    const NAME: &'static str = "scc-map";
    const KIND: Kind = Kind::Locks;

    fn with_capacity(capacity: usize) -> Self {
        Map(scc::HashMap::with_capacity_and_hasher(capacity, Hasher::default()))
    }

    fn insert(&self, key: K, expected: u32) -> bool {
        self.0.insert_sync(key, OwnCount::new(expected)).is_ok()
    }

    fn notify(&self, key: &K::Query) -> Notified {
        let Some(mut entry) = self.0.get_sync(key) else { return Notified::Gone };
        if !entry.get_mut().notify() {
            return Notified::Counted;
        }
        let _removed = entry.remove_entry();
        Notified::Ended
    }

    fn expire(&self, key: &K::Query) -> bool {
        self.0.remove_sync(key).is_some()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
