//! One map behind a mutex, and a sweep that looks at every lease: as connectors do it.

use super::{Completion, Tracker, ids, parse};
use crate::peers::Hasher;
use kvlease::Timestamp;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A lease of the simple trackers.
pub struct Lease {
    /// One bit for each consumer that has notified, by its number.
    pub seen: u64,
    /// How many have to.
    pub consumers: u32,
    /// When it runs out.
    pub deadline: Timestamp,
    _payload: u64,
}

impl Lease {
    pub fn new(consumers: u32, deadline: Timestamp, payload: u64) -> Self {
        Lease { seen: 0, consumers, deadline, _payload: payload }
    }

    /// Counts a consumer; whether it was the last.
    pub fn notify(&mut self, consumer: u32) -> bool {
        self.seen |= 1 << (consumer % 64);
        self.seen.count_ones() >= self.consumers
    }
}

/// The leases by id.
pub type Leases = HashMap<Box<str>, Lease, Hasher>;

/// Counts completions, and removes the leases that they end. How many.
pub fn complete(leases: &mut Leases, messages: &[Completion<'_>]) -> usize {
    let mut ended = 0;
    for (id, _, consumer) in messages.iter().filter_map(parse) {
        if leases.get_mut(id).is_some_and(|lease| lease.notify(consumer)) {
            leases.remove(id);
            ended += 1;
        }
    }
    ended
}

#[derive(Default)]
pub struct Scan(Mutex<Leases>);

impl Scan {
    fn lock(&self) -> MutexGuard<'_, Leases> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tracker for Scan {
    fn track(&self, id: &str, consumers: u32, deadline: Timestamp, payload: u64, _: Timestamp) {
        assert!(self.lock().insert(id.into(), Lease::new(consumers, deadline, payload)).is_none());
    }

    fn complete(&self, messages: &[Completion<'_>], _: Timestamp) -> usize {
        complete(&mut self.lock(), messages)
    }

    fn heartbeat(&self, message: &[u8], deadline: Timestamp, _: Timestamp) -> usize {
        let mut leases = self.lock();
        let mut renewed = 0;
        for id in ids(message) {
            if let Some(lease) = leases.get_mut(id).filter(|lease| lease.deadline < deadline) {
                lease.deadline = deadline;
                renewed += 1;
            }
        }
        renewed
    }

    fn sweep(&self, now: Timestamp) -> usize {
        let mut leases = self.lock();
        let before = leases.len();
        leases.retain(|_, lease| lease.deadline > now);
        before - leases.len()
    }

    fn live(&self) -> usize {
        self.lock().len()
    }
}
