//! Limits and policies of a tracker, and the terms of one lease.

use crate::{ConsumerId, Timestamp};
use std::time::Duration;

/// What a sweep does with a lease whose deadline has passed while a consumer may still read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum ExpiryPolicy {
    /// Fail open: the lease ends as [`Expired`](crate::Outcome::Expired) and its payload is released.
    /// A consumer that reads afterwards reads blocks that may have been used again; its notification
    /// is answered with `Late(Expired)`, from which the connector can tell it so.
    #[default]
    Release,
    /// Fail closed: the lease is reported as overdue, once, and kept, for ever if need be, until its last notification, an
    /// abort, a shutdown, or the death of its decode engine is reported. A renewal past `now` makes it
    /// an ordinary lease again.
    Hold,
}

/// Limits and policies of a [`SendTracker`](crate::SendTracker).
///
/// ```
/// use kvlease::{Config, ExpiryPolicy, SendTracker};
/// use std::time::Duration;
///
/// let config = Config {
///     early_ttl: Duration::from_secs(2),
///     expiry: ExpiryPolicy::Hold,
///     ..Config::default()
/// };
/// let tracker = SendTracker::<Vec<u32>>::with_config(config);
/// # let _ = tracker;
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    /// How many leases may be live at once; `None` (the default) sets no limit. Threads that call
    /// `track` at the same moment may overshoot it by one each.
    pub capacity: Option<usize>,
    /// How many ids may be held of which a message came before `track` (default 4,096; 0 keeps none).
    /// Past it, such a message is answered `Unknown`. Heartbeats take at most every second place.
    pub early_capacity: usize,
    /// How long such an id is held, from its first message to the first sweep past that time (default 5 s).
    /// A message that stays longer could be credited to a later life of its id.
    pub early_ttl: Duration,
    /// How many ended leases are remembered, so that a late message can be told the outcome: each until as
    /// many more have ended (default 16,384; 0 remembers none).
    pub tombstone_capacity: usize,
    /// How long an ended lease is remembered at least, room permitting (default 60 s, and never less
    /// than `early_ttl`). It is also remembered at least until its own deadline.
    pub tombstone_ttl: Duration,
    /// The longest request id accepted, in bytes (default 1,024).
    pub max_id_len: usize,
    /// What happens to a lease whose deadline has passed (default [`ExpiryPolicy::Release`]).
    pub expiry: ExpiryPolicy,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            capacity: None,
            early_capacity: 4_096,
            early_ttl: Duration::from_secs(5),
            tombstone_capacity: 16_384,
            tombstone_ttl: Duration::from_secs(60),
            max_id_len: 1_024,
            expiry: ExpiryPolicy::Release,
        }
    }
}

/// The terms of one lease: how long, for how many consumers, for whom.
///
/// ```
/// use kvlease::{ConsumerId, Terms, Timestamp};
///
/// let terms = Terms::until(Timestamp::from_secs(30))
///     .consumers(8)
///     .weight(112)
///     .waits_for(ConsumerId::new(1).unwrap());
/// # let _ = terms;
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Terms {
    pub(crate) deadline: Timestamp,
    pub(crate) expected: Option<u32>,
    pub(crate) weight: u32,
    pub(crate) waits_for: Option<ConsumerId>,
}

impl Terms {
    /// Keep the payload until `deadline`; how many consumers will notify is not known yet, and is
    /// learned from a notification or from [`set_expected`](crate::SendTracker::set_expected).
    pub const fn until(deadline: Timestamp) -> Self {
        Terms { deadline, expected: None, weight: 0, waits_for: None }
    }

    /// This many distinct consumers must notify: 0 (the lease ends at once) to 255.
    pub const fn consumers(mut self, expected: u32) -> Self {
        self.expected = Some(expected);
        self
    }

    /// What the lease holds, in units of the caller's choice (blocks, say); summed up in
    /// [`Stats::weight_held`](crate::Stats::weight_held).
    pub const fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    /// A consumer of the decode engine that this lease waits for. Without it, the latest notification or
    /// heartbeat for the lease tells. See
    /// [`expire_consumers`](crate::SendTracker::expire_consumers).
    pub const fn waits_for(mut self, consumer: ConsumerId) -> Self {
        self.waits_for = Some(consumer);
        self
    }
}
