//! What the integration tests share: a payload that is counted, and short names for the types.
#![allow(dead_code)] // each test binary uses its own part

use kvlease::{Config, ConsumerId, Notified, Release, SendTracker, Stats, Terms, Timestamp, Tracked};
use std::fmt;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

pub type Tracker = SendTracker<Payload>;

/// The point `secs` seconds after the epoch.
pub const fn at(secs: u64) -> Timestamp {
    Timestamp::from_secs(secs)
}

/// The point `millis` milliseconds after the epoch.
pub const fn ms(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

/// The decode rank with this number.
pub const fn rank(n: u32) -> ConsumerId {
    ConsumerId::new(n).expect("ranks are numbered from 1")
}

/// Terms that end at `secs` and wait for `consumers`.
pub const fn terms(secs: u64, consumers: u32) -> Terms {
    Terms::until(at(secs)).consumers(consumers)
}

/// A tracker with small, round limits.
pub fn config() -> Config {
    Config { early_ttl: Duration::from_secs(5), tombstone_ttl: Duration::from_secs(60), ..Config::default() }
}

/// What became of one payload.
#[derive(Default)]
pub struct Slot {
    pub drops: AtomicU32,
    pub releases: AtomicU32,
}

/// Every payload that a test has made, and what became of it.
#[derive(Default)]
pub struct Ledger {
    slots: Mutex<Vec<Arc<Slot>>>,
}

impl Ledger {
    pub fn new() -> Self {
        Self::default()
    }

    /// A new payload with the next number.
    pub fn payload(&self) -> Payload {
        let mut slots = self.slots.lock().unwrap();
        let slot = Arc::new(Slot::default());
        slots.push(slot.clone());
        Payload { number: slots.len() as u64 - 1, slot: Some(slot) }
    }

    pub fn made(&self) -> usize {
        self.slots.lock().unwrap().len()
    }

    /// How many payloads have been dropped.
    pub fn dropped(&self) -> usize {
        self.slots.lock().unwrap().iter().map(|s| s.drops.load(Ordering::Relaxed) as usize).sum()
    }

    pub fn releases_of(&self, number: u64) -> u32 {
        self.slots.lock().unwrap()[number as usize].releases.load(Ordering::Relaxed)
    }

    /// Each payload has been dropped exactly once: nothing leaked, nothing was handed out twice.
    #[track_caller]
    pub fn assert_each_dropped_once(&self) {
        for (number, slot) in self.slots.lock().unwrap().iter().enumerate() {
            assert_eq!(slot.drops.load(Ordering::Relaxed), 1, "drops of payload {number}");
        }
    }
}

/// A payload that tells its ledger when it is dropped; equal to any other of its number.
pub struct Payload {
    pub number: u64,
    slot: Option<Arc<Slot>>,
}

impl Payload {
    /// One that is in no ledger, to compare with.
    pub fn shadow(number: u64) -> Self {
        Payload { number, slot: None }
    }

    /// Notes that this payload came out of the tracker; how often it has, this time included.
    pub fn note_release(&self) -> u32 {
        self.slot.as_ref().map_or(0, |s| s.releases.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        if let Some(slot) = &self.slot {
            slot.drops.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.number)
    }
}

/// Begins a lease that has to stay.
#[track_caller]
pub fn lease<P: Send + fmt::Debug + PartialEq + 'static>(
    tracker: &SendTracker<P>,
    id: &str,
    terms: Terms,
    payload: P,
    now: Timestamp,
) {
    assert_eq!(tracker.track(id, terms, payload, now), Ok(Tracked::Leased), "track {id}");
}

/// The release with these parts and no weight.
pub fn release<P>(id: &str, outcome: kvlease::Outcome, payload: P, age_secs: u64) -> Release<P> {
    Release { id: id.into(), outcome, payload, weight: 0, age: Duration::from_secs(age_secs) }
}

/// A notification that has to be counted.
pub const fn counted<P>(seen: u32, expected: u32) -> Notified<P> {
    Notified::Counted { seen, expected: Some(expected) }
}

/// The identities that hold at rest, whatever happened.
#[track_caller]
pub fn assert_balanced(stats: &Stats) {
    assert_eq!(stats.tracked, stats.completed + stats.expired + stats.aborted + stats.live, "outcomes: {stats:?}");
    assert_eq!(stats.tracked, stats.released + stats.live + stats.release_pending, "payloads: {stats:?}");
}

/// Nothing is held any more, tombstones apart.
#[track_caller]
pub fn assert_empty(stats: &Stats) {
    assert_balanced(stats);
    let gauges = [stats.live, stats.release_pending, stats.weight_held, stats.early, stats.transfers];
    assert_eq!(gauges, [0; 5], "{stats:?}");
}

/// Sweeps whenever the tracker asks to be woken, as an idle engine does, until it waits for nothing.
/// Every sweep has to get it further. Returns what was released and the time of the last sweep.
#[track_caller]
pub fn drain<P: Send + 'static>(tracker: &SendTracker<P>, mut now: Timestamp) -> (Vec<Release<P>>, Timestamp) {
    let mut released = Vec::new();
    while let Some(next) = tracker.next_deadline() {
        now = now.max(next);
        released.extend(tracker.sweep(now).released);
        assert!(tracker.next_deadline().is_none_or(|next| next > now), "a sweep at {now:?} left something due");
    }
    (released, now)
}

/// A place where two threads meet, as closely as they can; neither waits for one that has gone.
#[derive(Default)]
struct Meeting {
    arrived: AtomicUsize,
    closed: AtomicBool,
}

impl Meeting {
    /// True when both are here.
    fn wait(&self) -> bool {
        let both = self.arrived.fetch_add(1, Ordering::AcqRel) / 2 * 2 + 2;
        for spins in 1_u32.. {
            if self.arrived.load(Ordering::Acquire) >= both {
                return true;
            }
            if self.closed.load(Ordering::Acquire) {
                return false;
            }
            if spins % 64 == 0 { thread::yield_now() } else { spin_loop() }
        }
        unreachable!()
    }
}

/// Closes the meeting when its thread has finished or panics.
struct Leave<'a>(&'a Meeting);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::Release);
    }
}

/// Makes two calls at the same moment, again and again: `setup`, then `a` on another thread and `b` on
/// this one, then `check` of what they gave.
pub fn race<A: Send, B>(
    rounds: usize,
    mut setup: impl FnMut(usize),
    a: impl Fn(usize) -> A + Send,
    mut b: impl FnMut(usize) -> B,
    mut check: impl FnMut(usize, A, B),
) {
    let meeting = Meeting::default();
    let answer = Mutex::new(None);
    // Neither is always the first.
    let dither = |n: usize| (0..n % 61).for_each(|_| spin_loop());
    thread::scope(|s| {
        let (meeting, answer) = (&meeting, &answer);
        s.spawn(move || {
            let _leave = Leave(meeting);
            for round in 0..rounds {
                if !meeting.wait() {
                    return;
                }
                dither(round * 7);
                *answer.lock().unwrap() = Some(a(round));
                if !meeting.wait() {
                    return;
                }
            }
        });
        let _leave = Leave(meeting);
        for round in 0..rounds {
            setup(round);
            if !meeting.wait() {
                return;
            }
            dither(round * 11);
            let b = b(round);
            if !meeting.wait() {
                return;
            }
            let a = answer.lock().unwrap().take().unwrap();
            check(round, a, b);
        }
    });
}
