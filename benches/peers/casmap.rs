//! [`kvlease::map::CasMap`]: removal by identity decides who has ended an entry, so the count need not.

use super::{Hasher, Kind, Notified, Peer};
use crate::keys::Key;
use kvlease::map::{CasMap, Entry, Guard, pin};
use std::sync::atomic::{AtomicU32, Ordering};

struct Count {
    seen: AtomicU32,
    expected: u32,
}

pub struct Map<K>(CasMap<K, Count, Hasher>);

impl<K: Key> Map<K> {
    #[inline]
    fn notified(&self, entry: Option<Entry<'_, K, Count>>, guard: &Guard) -> Notified {
        let Some(entry) = entry else { return Notified::Gone };
        let count = entry.value();
        let seen = count.seen.fetch_add(1, Ordering::AcqRel) + 1;
        if seen < count.expected {
            Notified::Counted
        } else if seen == count.expected && self.0.compare_remove(&entry, guard) {
            Notified::Ended
        } else {
            Notified::Gone
        }
    }
}

impl<K: Key> Peer<K> for Map<K> {
    const NAME: &'static str = super::OURS;
    const KIND: Kind = Kind::Kvlease;

    fn with_capacity(capacity: usize) -> Self {
        Map(CasMap::with_capacity_and_hasher(capacity, Hasher::default()))
    }

    fn insert(&self, key: K, expected: u32) -> bool {
        self.0.insert(key, Count { seen: AtomicU32::new(0), expected }, &pin()).is_ok()
    }

    fn notify(&self, key: &K::Query) -> Notified {
        let guard = pin();
        self.notified(self.0.get(key, &guard), &guard)
    }

    fn notify_batch<'k>(&self, keys: impl Iterator<Item = &'k K::Query> + Clone, mut on: impl FnMut(usize, Notified)) {
        let guard = pin();
        let mut n = 0;
        self.0.get_batch(keys, &guard, |_, entry| {
            on(n, self.notified(entry, &guard));
            n += 1;
        });
    }

    fn expire(&self, key: &K::Query) -> bool {
        let guard = pin();
        self.0.get(key, &guard).is_some_and(|entry| self.0.compare_remove(&entry, &guard))
    }

    fn while_reading(&self, key: &K::Query, stalled: impl FnOnce()) {
        let guard = pin();
        let _entry = self.0.get(key, &guard);
        stalled();
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
