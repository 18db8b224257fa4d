//! Every map that is compared, each in its own file, behind one small trait.
//!
//! To add a peer: write its file, and name it twice below, as a module and in the list.
//!
//! Each adapter is written as somebody would who knows that map well: where it lends an entry for writing,
//! the count is a plain number; where entries are shared, it is an atomic. The rules that all obey: one
//! hasher ([`Hasher`]), the entry is found once to count it, and of the calls that could end an entry
//! exactly one is told that it did.

mod casmap;
mod dashmap;
mod flurry;
mod harness;
mod kovan;
mod mutex;
mod papaya;
mod parking_lot_mutex;
mod rwlock;
mod scc_index;
mod scc_map;
mod sharded;

use crate::keys::Key;
use std::sync::atomic::{AtomicU32, Ordering};

/// The same for all.
pub type Hasher = foldhash::fast::RandomState;

/// The most notifications of one [`Peer::notify_batch`].
pub const MAX_BATCH: usize = 64;

/// A map of entries that count notifications.
#[expect(clippy::len_without_is_empty, reason = "nobody asks")]
pub trait Peer<K: Key>: Send + Sync {
    /// As the command line and the tables call it.
    const NAME: &'static str;
    /// How it copes with many threads.
    const KIND: Kind;

    /// An empty map with room for so many entries.
    fn with_capacity(capacity: usize) -> Self;

    /// A new entry that expects so many notifications, at least 1. Whether it is in.
    fn insert(&self, key: K, expected: u32) -> bool;

    /// Counts one notification. The last one that is expected removes the entry.
    fn notify(&self, key: &K::Query) -> Notified;

    /// Counts up to [`MAX_BATCH`], in order, and tells `on` of each, by its place: with one guard for all, or
    /// one lock, or whatever else the map offers to make that cheaper. `on` may use the map.
    fn notify_batch<'k>(&self, keys: impl Iterator<Item = &'k K::Query> + Clone, mut on: impl FnMut(usize, Notified)) {
        for (n, key) in keys.enumerate() {
            on(n, self.notify(key));
        }
    }

    /// Removes the entry, whatever has been counted. True for one of all calls that end it.
    fn expire(&self, key: &K::Query) -> bool;

    /// Runs `stalled` while this thread reads an entry: with a guard, where readers have one.
    fn while_reading(&self, key: &K::Query, stalled: impl FnOnce()) {
        let _ = key;
        stalled();
    }

    /// How many entries there are. Exact at rest.
    fn len(&self) -> usize;
}

/// What a notification did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notified {
    /// Counted; more are expected.
    Counted,
    /// It was the last, and this call has removed the entry.
    Ended,
    /// There is no such entry, or another call is ending it.
    Gone,
}

/// How a map copes with many threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Whoever is descheduled in the wrong place holds up others, for look-ups or for changes.
    Locks,
    /// Nobody waits for anybody, but while the map grows in some of them.
    LockFree,
    /// This crate's.
    Kvlease,
    /// No map: what the harness itself costs.
    Harness,
}

/// The count of an entry that many threads share.
#[derive(Debug)]
pub struct SharedCount {
    /// Notifications counted, and [`ENDED`](Self::ENDED).
    state: AtomicU32,
    expected: u32,
}

impl SharedCount {
    const ENDED: u32 = 1 << 31;

    /// Nothing counted yet.
    #[inline]
    pub fn new(expected: u32) -> Self {
        SharedCount { state: AtomicU32::new(0), expected }
    }

    /// Counts one. [`Notified::Ended`] means that the caller has to remove the entry, and nobody else will.
    #[inline]
    pub fn notify(&self) -> Notified {
        let before = self.state.fetch_add(1, Ordering::AcqRel);
        if before >= self.expected {
            Notified::Gone
        } else if before + 1 < self.expected {
            Notified::Counted
        } else if self.claim() {
            Notified::Ended
        } else {
            Notified::Gone
        }
    }

    /// Whether the caller has to remove the entry, and nobody else will.
    #[inline]
    pub fn claim(&self) -> bool {
        self.state.fetch_or(Self::ENDED, Ordering::AcqRel) & Self::ENDED == 0
    }
}

/// The count of an entry that is lent to one thread at a time.
#[derive(Debug)]
pub struct OwnCount {
    seen: u32,
    expected: u32,
}

impl OwnCount {
    /// Nothing counted yet.
    #[inline]
    pub fn new(expected: u32) -> Self {
        OwnCount { seen: 0, expected }
    }

    /// Counts one; whether it was the last.
    #[inline]
    pub fn notify(&mut self) -> bool {
        self.seen += 1;
        self.seen >= self.expected
    }
}

/// Something to do with the type of a peer.
pub trait Visitor<K: Key> {
    /// What it gives.
    type Output;
    /// Does it.
    fn visit<P: Peer<K> + 'static>(self) -> Self::Output;
}

macro_rules! peers {
    ($($peer:ident::$map:ident),* $(,)?) => {
        /// The name and kind of each peer, in the order of the tables.
        pub const ALL: &[(&str, Kind)] =
            &[$((<$peer::$map<u64> as Peer<u64>>::NAME, <$peer::$map<u64> as Peer<u64>>::KIND)),*];

        /// Does `visitor` to the peer of this name, if there is one.
        pub fn visit<K: Key, V: Visitor<K>>(name: &str, visitor: V) -> Option<V::Output> {
            $(if name == <$peer::$map<K> as Peer<K>>::NAME {
                return Some(visitor.visit::<$peer::$map<K>>());
            })*
            None
        }
    };
}

peers! {
    casmap::Map,
    mutex::Map,
    parking_lot_mutex::Map,
    sharded::Map,
    rwlock::Map,
    dashmap::Map,
    scc_map::Map,
    scc_index::Map,
    papaya::Map,
    kovan::Map,
    flurry::Map,
    harness::Map,
}

/// The peer whose ratio to the others is asked for.
pub const OURS: &str = "kvlease";
/// The peer to which all ratios of the tables are.
pub const BASE: &str = "std-mutex";

/// The kind of the peer of this name.
pub fn kind(name: &str) -> Option<Kind> {
    ALL.iter().find(|(peer, _)| *peer == name).map(|(_, kind)| *kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What every adapter must do, or its figures mean nothing.
    struct Contract;

    impl<K: Key> Visitor<K> for Contract {
        type Output = ();

        fn visit<P: Peer<K> + 'static>(self) {
            let map = P::with_capacity(8);
            let arrived = K::arrived;
            for number in 0..100 {
                assert!(map.insert(K::owned(number), 3), "{}", P::NAME);
            }
            assert_eq!(map.len(), 100);
            let key = arrived(7);
            let did: Vec<_> = (0..4).map(|_| map.notify(key.as_ref())).collect();
            assert_eq!(did, [Notified::Counted, Notified::Counted, Notified::Ended, Notified::Gone], "{}", P::NAME);
            assert!(map.expire(arrived(8).as_ref()) && !map.expire(arrived(8).as_ref()), "{}", P::NAME);
            assert_eq!(map.notify(arrived(8).as_ref()), Notified::Gone);
            assert_eq!(map.notify(arrived(1_000).as_ref()), Notified::Gone);

            let keys: Vec<_> = [9, 9, 10, 9, 7].into_iter().map(arrived).collect();
            let mut did = Vec::new();
            map.notify_batch(keys.iter().map(AsRef::as_ref), |n, notified| did.push((n, notified)));
            use Notified::*;
            assert_eq!(did, [(0, Counted), (1, Counted), (2, Counted), (3, Ended), (4, Gone)], "{}", P::NAME);

            let mut read = false;
            map.while_reading(arrived(11).as_ref(), || read = true);
            assert!(read);
            assert_eq!(map.len(), 97);

            // Of several threads one ends each entry.
            let ended = AtomicU32::new(0);
            std::thread::scope(|s| {
                for thread in 0..3 {
                    let (map, ended) = (&map, &ended);
                    s.spawn(move || {
                        for number in 0..100 {
                            let key = arrived(number);
                            let did = match thread {
                                0 => map.expire(key.as_ref()),
                                _ => map.notify(key.as_ref()) == Notified::Ended,
                            };
                            ended.fetch_add(u32::from(did), Ordering::Relaxed);
                        }
                    });
                }
            });
            for number in 0..100 {
                ended.fetch_add(u32::from(map.expire(arrived(number).as_ref())), Ordering::Relaxed);
            }
            assert_eq!((ended.into_inner(), map.len()), (97, 0), "{}", P::NAME);
        }
    }

    #[test]
    fn every_peer_counts_and_ends_each_entry_once() {
        for (name, kind) in ALL {
            if *kind != Kind::Harness {
                visit::<u64, _>(name, Contract).unwrap();
                visit::<Box<str>, _>(name, Contract).unwrap();
                visit::<kvlease::RequestId, _>(name, Contract).unwrap();
            }
        }
    }

    #[test]
    fn names_are_told_apart() {
        let mut names: Vec<_> = ALL.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
        assert_eq!(kind(OURS), Some(Kind::Kvlease));
        assert_eq!(kind(BASE), Some(Kind::Locks));
        assert_eq!(kind("none"), None);
    }
}
