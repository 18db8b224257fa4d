//! Requests come and go at a constant number of live ones: each is inserted, notified some times at random
//! moments, and removed by the last notification; one call in a hundred ends one before that, and races with
//! its notifications.

use crate::keys::Key;
use crate::peers::{self, Notified, Peer, Visitor};
use crate::slices::{Bench, Mode, Running, Work, histogram};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// How many messages a thread takes in before it handles the first: what one poll of a transport brings.
pub const POLL: usize = 16;

/// What of a lifecycle is varied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Entries in the map.
    pub live: usize,
    /// Notifications that each expects.
    pub consumers: u32,
}

/// A map and the numbers of the requests that live in it.
struct Lifecycle<K, P> {
    map: P,
    live: Box<[AtomicU64]>,
    /// The next number of each thread.
    next: Mutex<Vec<u64>>,
    shape: Shape,
    /// Inserts that were refused, which none should be.
    refused: AtomicUsize,
    _keys: std::marker::PhantomData<fn(K)>,
}

/// A map that is worked on, whatever its type.
pub trait Life: Bench + Send {
    /// Whether each request that lives is in the map, and nothing else: what is wrong, if not.
    fn check(&self) -> Result<(), String>;
}

/// A map that holds `shape.live` entries, each notified so often already as it happens to be in mid-run.
/// `None` if there is no peer of this name.
pub fn prepare<K: Key>(peer: &str, shape: Shape) -> Option<Box<dyn Life>> {
    struct Prepare(Shape);
    impl<K: Key> Visitor<K> for Prepare {
        type Output = Box<dyn Life>;

        fn visit<P: Peer<K> + 'static>(self) -> Box<dyn Life> {
            Box::new(Lifecycle::<K, P>::new(self.0))
        }
    }
    peers::visit::<K, _>(peer, Prepare(shape))
}

impl<K: Key, P: Peer<K>> Lifecycle<K, P> {
    fn new(shape: Shape) -> Self {
        let map = P::with_capacity(shape.live);
        // In random order, so that what lies side by side in memory is not side by side in `live`.
        let mut numbers: Vec<u64> = (1..=shape.live as u64).collect();
        let mut rng = fastrand::Rng::with_seed(7);
        rng.shuffle(&mut numbers);
        for &number in &numbers {
            assert!(map.insert(K::owned(number), shape.consumers), "{}: a new key is refused", P::NAME);
            for _ in 0..rng.u32(0..shape.consumers) {
                map.notify(K::arrived(number).as_ref());
            }
        }
        numbers.sort_unstable();
        Lifecycle {
            map,
            live: numbers.into_iter().map(AtomicU64::new).collect(),
            next: Mutex::new(Vec::new()),
            shape,
            refused: AtomicUsize::new(0),
            _keys: std::marker::PhantomData,
        }
    }

    /// The first number that this thread has not used.
    fn first_number(&self, thread: usize) -> u64 {
        let mut next = self.next.lock().unwrap();
        while next.len() <= thread {
            let own_range = (next.len() as u64 + 1) << 40;
            next.push(own_range);
        }
        next[thread]
    }
}

impl<K: Key, P: Peer<K>> Bench for Lifecycle<K, P> {
    fn work(&self, thread: usize, seed: u64, mode: Mode, running: &Running<'_>) -> Work {
        let (timed, batched) = (mode == Mode::Timed, mode == Mode::Batched);
        let mut latencies = timed.then(histogram);
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut next = self.first_number(thread);
        let mut calls = 0;
        let mut poll = [(0usize, 0u64); POLL];
        let mut time = |began: u64| {
            if let Some(latencies) = &mut latencies {
                latencies.saturating_record(running.nanos(began, running.raw()));
            }
        };
        let now = || if timed { running.raw() } else { 0 };

        let replace = |place: usize, next: &mut u64, time: &mut dyn FnMut(u64)| {
            *next += 1;
            let key = K::owned(*next);
            let began = now();
            let inserted = self.map.insert(key, self.shape.consumers);
            time(began);
            if !inserted {
                self.refused.fetch_add(1, Ordering::Relaxed);
            }
            self.live[place].store(*next, Ordering::Relaxed);
        };

        while !running.is_over() {
            for message in &mut poll {
                let place = rng.usize(0..self.live.len());
                *message = (place, self.live[place].load(Ordering::Relaxed));
            }
            // One of a hundred calls ends a request early.
            let expired = rng.usize(0..100);
            if batched {
                let notified = if expired < POLL { &poll[1..] } else { &poll[..] };
                let mut keys = [K::arrived(0); POLL];
                for (key, (_, number)) in keys.iter_mut().zip(notified) {
                    *key = K::arrived(*number);
                }
                let began = now();
                self.map.notify_batch(keys[..notified.len()].iter().map(AsRef::as_ref), |n, did| {
                    calls += 1;
                    if did == Notified::Ended {
                        calls += 1;
                        replace(notified[n].0, &mut next, &mut |_| {});
                    }
                });
                time(began);
            }
            for (n, (place, number)) in poll.into_iter().enumerate() {
                let expire = if batched { n == 0 && expired < POLL } else { n == expired };
                if batched && !expire {
                    continue;
                }
                let key = K::arrived(number);
                let began = now();
                let ended = match expire {
                    true => self.map.expire(key.as_ref()),
                    false => self.map.notify(key.as_ref()) == Notified::Ended,
                };
                time(began);
                calls += 1;
                if ended {
                    calls += 1;
                    replace(place, &mut next, &mut time);
                }
            }
        }
        self.next.lock().unwrap()[thread] = next;
        Work { calls, latencies }
    }
}

impl<K: Key, P: Peer<K>> Life for Lifecycle<K, P> {
    fn check(&self) -> Result<(), String> {
        let (len, refused) = (self.map.len(), self.refused.load(Ordering::Relaxed));
        if P::KIND != peers::Kind::Harness && (len, refused) != (self.live.len(), 0) {
            return Err(format!("{len} entries where {} live; {refused} new keys refused", self.live.len()));
        }
        Ok(())
    }
}
