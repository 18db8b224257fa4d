//! [`kvlease::SendTracker`].

use super::{Completion, Tracker, ids, parse};
use kvlease::{Config, ConsumerId, Notification, SendTracker, Terms, Timestamp};

pub struct Lockfree {
    tracker: SendTracker<u64>,
    batched: bool,
}

impl Lockfree {
    pub fn new(batched: bool) -> Self {
        let config = Config { tombstone_capacity: 1_024, ..Config::default() };
        Lockfree { tracker: SendTracker::with_config(config), batched }
    }
}

fn notification<'a>(message: &Completion<'a>) -> Option<Notification<'a>> {
    let (id, expected, consumer) = parse(message)?;
    Some(Notification { id, consumer: ConsumerId::new(consumer)?, expected: Some(expected) })
}

impl Tracker for Lockfree {
    fn track(&self, id: &str, consumers: u32, deadline: Timestamp, payload: u64, now: Timestamp) {
        let terms = Terms::until(deadline).consumers(consumers);
        assert!(self.tracker.track(id, terms, payload, now).is_ok());
    }

    fn complete(&self, messages: &[Completion<'_>], now: Timestamp) -> usize {
        let mut ended = 0;
        let notifications = messages.iter().filter_map(notification);
        if self.batched {
            self.tracker.notify_batch(notifications, now, |_, notified| {
                ended += usize::from(notified.release().is_some());
            });
        } else {
            for Notification { id, consumer, expected } in notifications {
                let notified = self.tracker.notify_expecting(id, consumer, expected.unwrap_or(0), now);
                ended += usize::from(notified.release().is_some());
            }
        }
        ended
    }

    fn heartbeat(&self, message: &[u8], deadline: Timestamp, now: Timestamp) -> usize {
        if self.batched {
            return self.tracker.renew_batch(ids(message), deadline, None, now).extended;
        }
        ids(message).filter(|id| self.tracker.renew(id, deadline, None, now) == kvlease::Renewed::Extended).count()
    }

    fn sweep(&self, now: Timestamp) -> usize {
        self.tracker.sweep(now).released.len()
    }

    fn live(&self) -> usize {
        self.tracker.stats().live as usize
    }
}
