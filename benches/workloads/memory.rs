//! Bytes for each entry: in a map that has grown, after churn, and under a reader that stalls.
//!
//! The caller counts: it says how many bytes are in use. The counts are of what was asked for; what an
//! allocator adds to each of many small pieces is not in them.

use crate::keys::Key;
use crate::peers::{self, Notified, Peer, Visitor};
use serde::{Deserialize, Serialize};
use std::sync::mpsc;
use std::thread;

/// Bytes for each live entry.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Memory {
    /// Grown from empty, one by one.
    pub grown: f64,
    /// After each has been replaced four times.
    pub churned: f64,
    /// More, for each entry that is replaced while a reader stalls.
    pub held: f64,
}

/// Measures the peer of this name with so many live entries, keys included. `None` if there is none of this
/// name.
pub fn measure<K: Key>(peer: &str, live: usize, in_use: fn() -> usize) -> Option<Memory> {
    struct Measure(usize, fn() -> usize);
    impl<K: Key> Visitor<K> for Measure {
        type Output = Memory;

        fn visit<P: Peer<K> + 'static>(self) -> Memory {
            let Measure(live, in_use) = self;
            let before = in_use();
            let each = |before: usize| (in_use() as f64 - before as f64) / live as f64;
            let map = P::with_capacity(0);
            (0..live as u64).for_each(|number| assert!(map.insert(K::owned(number), 1)));
            let grown = each(before);

            // The oldest is notified and so removed, and a new one comes.
            let mut oldest = 0;
            let mut churn = |lives: usize| {
                for _ in 0..lives {
                    assert_eq!(map.notify(K::arrived(oldest).as_ref()), Notified::Ended, "{}", P::NAME);
                    assert!(map.insert(K::owned(oldest + live as u64), 1), "{}", P::NAME);
                    oldest += 1;
                }
            };
            churn(4 * live);
            let churned = each(before);

            let stalled_at = in_use();
            let (stalled, ready) = mpsc::channel();
            let (go_on, wait) = mpsc::channel();
            let reads = K::arrived(5 * live as u64 - 1);
            let held = thread::scope(|s| {
                let map = &map;
                s.spawn(move || {
                    map.while_reading(reads.as_ref(), || {
                        let _ = stalled.send(());
                        let _ = wait.recv();
                    });
                });
                let _ = ready.recv();
                churn(live - 1); // not the one that is read
                let held = each(stalled_at);
                let _ = go_on.send(());
                held
            });
            Memory { grown, churned, held }
        }
    }
    // There is nothing to count in no map.
    if peers::kind(peer)? == peers::Kind::Harness {
        return None;
    }
    peers::visit::<K, _>(peer, Measure(live, in_use))
}
