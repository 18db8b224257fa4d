//! A map grows from empty: how long each insert takes.

use crate::keys::Key;
use crate::peers::{self, Peer, Visitor};
use crate::slices::{Stopwatch, histogram};
use std::time::{Duration, Instant};

/// What growing gave.
pub struct Growth {
    /// Inserts.
    pub entries: usize,
    /// Time for all, their clock readings included.
    pub took: Duration,
    /// How long each took in nanoseconds.
    pub latencies: Box<hdrhistogram::Histogram<u64>>,
}

/// Inserts so many entries into an empty map of this peer. `None` if there is none of this name.
pub fn grow<K: Key>(peer: &str, entries: usize) -> Option<Growth> {
    struct Grow(usize);
    impl<K: Key> Visitor<K> for Grow {
        type Output = Growth;

        fn visit<P: Peer<K> + 'static>(self) -> Growth {
            let map = P::with_capacity(0);
            let mut stopwatch = Stopwatch::new(histogram());
            let start = Instant::now();
            for number in 0..self.0 as u64 {
                let key = K::owned(number);
                let began = stopwatch.begin();
                let inserted = map.insert(key, 4);
                stopwatch.end(began);
                assert!(inserted, "{}: a new key is refused", P::NAME);
            }
            let took = start.elapsed();
            if P::KIND != peers::Kind::Harness {
                assert_eq!(map.len(), self.0, "{}", P::NAME);
            }
            Growth { entries: self.0, took, latencies: stopwatch.into_latencies() }
        }
    }
    peers::visit::<K, _>(peer, Grow(entries))
}
