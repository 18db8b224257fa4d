//! From the bytes of completion messages to ended leases, in batches as polls of a transport bring them.

use crate::keys::Id;
use crate::slices::cpu_time;
use crate::trackers::{Completion, Tracker};
use kvlease::{Timestamp, wire};
use std::time::Duration;

/// Consumers of each lease.
pub const CONSUMERS: u32 = 4;

/// Messages that have arrived for leases that come and go.
pub struct Pump {
    tracker: Box<dyn Tracker>,
    batch: usize,
    leases: u64,
    first: u64,
    now: u64,
}

impl Pump {
    /// Batches of so many messages, for as many leases as make one batch, or a thousand.
    pub fn new(tracker: Box<dyn Tracker>, batch: usize) -> Self {
        let leases = (batch as u64 / u64::from(CONSUMERS)).max(1_000);
        Pump { tracker, batch, leases, first: 0, now: 1 }
    }

    /// How many messages a [`round`](Self::round) has.
    pub fn messages(&self) -> u64 {
        self.leases * u64::from(CONSUMERS)
    }

    /// Tracks leases and delivers every message about them, each consumer's in another order. Processor time
    /// of the delivery alone.
    pub fn round(&mut self) -> Duration {
        let now = Timestamp::from_secs(self.now);
        let mut rng = fastrand::Rng::with_seed(self.first);
        let mut bytes = Vec::new();
        let mut messages = Vec::new();
        for number in self.first..self.first + self.leases {
            let id = Id::new(number);
            self.tracker.track(id.as_str(), CONSUMERS, Timestamp::from_secs(self.now + 30), number, now);
            for consumer in 1..=CONSUMERS {
                let from = bytes.len();
                wire::write_completion(id.as_str(), CONSUMERS, &mut bytes).expect("a sendable id");
                messages.push((consumer, from..bytes.len()));
            }
        }
        rng.shuffle(&mut messages);
        let messages: Vec<Completion<'_>> =
            messages.into_iter().map(|(consumer, range)| Completion { consumer, bytes: &bytes[range] }).collect();
        self.first += self.leases;
        self.now += 60;
        let before = cpu_time();
        let ended: usize = messages.chunks(self.batch).map(|batch| self.tracker.complete(batch, now)).sum();
        let took = cpu_time() - before;
        assert_eq!(ended as u64, self.leases);
        // What the tracker remembers of them goes, as in an engine that sweeps.
        self.tracker.sweep(Timestamp::from_secs(self.now));
        took
    }
}
