//! One message renews 2,000 leases, from its bytes.

use crate::keys::Id;
use crate::slices::cpu_time;
use crate::trackers::Tracker;
use kvlease::{Timestamp, wire};
use std::time::Duration;

/// Ids in one message.
pub const IDS: u64 = 2_000;

/// Leases, and a message about some of them.
pub struct Heartbeat {
    tracker: Box<dyn Tracker>,
    message: Vec<u8>,
    deadline: u64,
}

impl Heartbeat {
    /// Among so many leases, at least [`IDS`].
    pub fn new(tracker: Box<dyn Tracker>, leases: u64) -> Self {
        let at = Timestamp::from_secs;
        (0..leases).for_each(|number| tracker.track(Id::new(number).as_str(), 2, at(30), number, at(0)));
        let ids: Vec<Id> = (0..IDS).map(|number| Id::new(number * (leases / IDS).max(1))).collect();
        let mut message = Vec::new();
        wire::write_heartbeat(ids.iter().map(Id::as_str), &mut message).expect("sendable ids");
        Heartbeat { tracker, message, deadline: 31 }
    }

    /// Processor time of one message.
    pub fn beat(&mut self) -> Duration {
        self.deadline += 1;
        let before = cpu_time();
        let renewed = self.tracker.heartbeat(&self.message, Timestamp::from_secs(self.deadline), Timestamp::ZERO);
        let took = cpu_time() - before;
        assert_eq!(renewed as u64, IDS);
        took
    }
}
