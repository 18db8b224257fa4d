//! What the calls of the tracker answer.
//!
//! Every answer is an enum that the caller has to look at; one that carries a payload is
//! `#[must_use]`, since to drop it is to leak blocks.

use crate::{RequestId, Timestamp};
use std::fmt;
use std::time::Duration;
use thiserror::Error;

/// How a lease ended. Final: nothing changes it afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// Every expected consumer has notified.
    Completed,
    /// The deadline passed, or the decode engine was reported dead, before they all had.
    Expired,
    /// The producer gave the request up, or shut down.
    Aborted,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Outcome::Completed => "completed",
            Outcome::Expired => "expired",
            Outcome::Aborted => "aborted",
        })
    }
}

/// The end of a lease: its payload, handed out exactly once.
#[must_use = "the payload is handed out once: free its blocks"]
#[derive(PartialEq, Eq, Debug)]
pub struct Release<P> {
    /// The request whose lease ended.
    pub id: RequestId,
    /// How it ended.
    pub outcome: Outcome,
    /// What `track` was given.
    pub payload: P,
    /// The weight that `track` was given.
    pub weight: u32,
    /// The time from `track` to this release.
    pub age: Duration,
}

/// A lease has just ended by this call; the payload is here, or comes with the last transfer.
#[must_use = "the payload is handed out once: free its blocks"]
#[derive(PartialEq, Eq, Debug)]
pub enum Ended<P> {
    /// Nobody uses the blocks any more.
    Released(Release<P>),
    /// The outcome is decided, but the producer's own transfers still use the blocks: the end of the
    /// last one yields the release.
    AfterTransfer,
}

impl<P> Ended<P> {
    /// The release, if it is here.
    pub fn release(self) -> Option<Release<P>> {
        match self {
            Ended::Released(release) => Some(release),
            Ended::AfterTransfer => None,
        }
    }
}

/// The answer of [`SendTracker::track`](crate::SendTracker::track).
#[must_use = "a lease that ended at once carries its payload"]
#[derive(PartialEq, Eq, Debug)]
pub enum Tracked<P> {
    /// The lease runs.
    Leased,
    /// The lease has ended already: nobody was expected, or what came early completed or aborted it.
    Ended(Release<P>),
}

impl<P> Tracked<P> {
    /// The release, if the lease has ended already.
    pub fn release(self) -> Option<Release<P>> {
        match self {
            Tracked::Leased => None,
            Tracked::Ended(release) => Some(release),
        }
    }
}

/// `track` refused; the payload is handed back.
#[derive(PartialEq, Eq, Error)]
#[error("request not tracked: {reason}")]
pub struct TrackError<P> {
    /// What `track` was given, untouched.
    pub payload: P,
    /// Why, and what to do.
    pub reason: TrackRefusal,
}

// Not derived: an error must be printable whatever the payload is.
impl<P> fmt::Debug for TrackError<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrackError").field("reason", &self.reason).finish_non_exhaustive()
    }
}

/// Why `track` refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum TrackRefusal {
    /// A lease of this id is live.
    #[error("a lease of this id is live; abort it first, or use another id")]
    AlreadyTracked,
    /// The last life of this id has ended, but a transfer of its blocks has not.
    #[error("the last life of this id still has a transfer in flight; track again when it has ended")]
    TransferInFlight,
    /// As many leases are live as [`Config::capacity`](crate::Config::capacity) allows.
    #[error("{capacity} leases are live, which is the limit; retry when some have ended")]
    AtCapacity {
        /// The limit.
        capacity: usize,
    },
    /// The id is longer than [`Config::max_id_len`](crate::Config::max_id_len).
    #[error("the id has {len} bytes, the limit is {max}; shorten it or raise the limit")]
    IdTooLong {
        /// Its length in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// More than 255 consumers.
    #[error("{expected} consumers expected, at most 255 can be counted")]
    TooManyConsumers {
        /// How many were asked for.
        expected: u32,
    },
    /// The deadline is after [`Timestamp::MAX_DEADLINE`].
    #[error("the deadline is past the range of the clock (8.7 years after its epoch)")]
    DeadlineOutOfRange,
    /// The tracker has been shut down.
    #[error("the tracker has been shut down")]
    ShutDown,
}

/// The answer of [`SendTracker::notify`](crate::SendTracker::notify): what one consumer's "I have read
/// it" did.
#[must_use = "a completed lease carries its payload, a late notification may need an answer"]
#[derive(PartialEq, Eq, Debug)]
pub enum Notified<P> {
    /// Counted; others are still to come.
    Counted {
        /// Distinct consumers that have notified.
        seen: u32,
        /// How many are expected, if that is known.
        expected: Option<u32>,
    },
    /// This was the last one.
    Completed(Ended<P>),
    /// This consumer had notified before (or does so at this moment, on another thread); nothing changed.
    Duplicate {
        /// Distinct consumers that have notified.
        seen: u32,
        /// How many are expected, if that is known.
        expected: Option<u32>,
    },
    /// The request is not tracked yet; the notification is kept for the coming `track`. One that is repeated
    /// is kept once.
    Early,
    /// The lease had ended before, like this, and without this consumer: it may have read blocks that were
    /// in use again. Tell it (see [`verdict`](Self::verdict)).
    Late(Outcome),
    /// The lease has ended, like this, but this consumer had been counted before. Its read was in time.
    LateDuplicate(Outcome),
    /// Nothing is known of this id, and nothing is kept.
    Unknown,
    /// The count in this message is not the one that stands. The consumer was counted all the same.
    ExpectedConflict {
        /// The count in this message.
        claimed: u32,
        /// The count that stands.
        stands: u32,
        /// Distinct consumers that have notified, this one included.
        seen: u32,
        /// The request is not tracked yet, and the notification is kept for the coming `track`.
        early: bool,
        /// The end of the lease, if this was the last one that is waited for.
        ended: Option<Ended<P>>,
    },
    /// The message cannot be counted; nothing changed.
    Refused(NotifyRefusal),
}

impl<P> Notified<P> {
    /// What to tell a consumer that has opted in to [stale replies](crate::wire::StaleReply) about the read
    /// that it notified: [`Completed`](Outcome::Completed) if it was in time; another outcome if the lease
    /// had ended before, so that it must be discarded; `None` if that is not known.
    ///
    /// A lease that had completed without this consumer, because more of them read than were expected, is
    /// [`Expired`](Outcome::Expired) for it.
    ///
    /// ```
    /// use kvlease::{ConsumerId, Outcome, SendTracker, Terms, Timestamp};
    ///
    /// let tracker = SendTracker::new();
    /// let (now, rank) = (Timestamp::ZERO, |n| ConsumerId::new(n).unwrap());
    /// let _ = tracker.track("r", Terms::until(Timestamp::from_secs(30)).consumers(1), (), now).unwrap();
    /// assert_eq!(tracker.notify("r", rank(1), now).verdict(), Some(Outcome::Completed));
    /// assert_eq!(tracker.notify("r", rank(1), now).verdict(), Some(Outcome::Completed)); // said again
    /// assert_eq!(tracker.notify("r", rank(2), now).verdict(), Some(Outcome::Expired)); // one too many
    /// assert_eq!(tracker.notify("s", rank(1), now).verdict(), None); // not tracked yet, or any more
    /// assert_eq!(tracker.notify("s", rank(1), now).verdict(), None); // however often it says so
    /// ```
    pub fn verdict(&self) -> Option<Outcome> {
        match self {
            Notified::Counted { .. }
            | Notified::Completed(_)
            | Notified::ExpectedConflict { early: false, .. }
            | Notified::Duplicate { .. }
            | Notified::LateDuplicate(_) => Some(Outcome::Completed),
            Notified::Late(Outcome::Aborted) => Some(Outcome::Aborted),
            Notified::Late(Outcome::Expired | Outcome::Completed) => Some(Outcome::Expired),
            Notified::Early
            | Notified::ExpectedConflict { early: true, .. }
            | Notified::Unknown
            | Notified::Refused(_) => None,
        }
    }

    /// The release, if this notification brought it.
    pub fn release(self) -> Option<Release<P>> {
        match self {
            Notified::Completed(ended) | Notified::ExpectedConflict { ended: Some(ended), .. } => ended.release(),
            _ => None,
        }
    }
}

/// Why a notification cannot be counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum NotifyRefusal {
    /// The expected count in the message is 0 or more than 255.
    #[error("the message expects {claimed} consumers; 1 to 255 can be counted")]
    ExpectedOutOfRange {
        /// The count in the message.
        claimed: u32,
    },
    /// 255 distinct consumers have notified and the expected count is still not known.
    #[error("255 consumers have notified already, no more can be counted; call set_expected")]
    TooManyConsumers,
}

/// The answer of [`SendTracker::set_expected`](crate::SendTracker::set_expected).
#[must_use = "a completed lease carries its payload"]
#[derive(PartialEq, Eq, Debug)]
pub enum ExpectedSet<P> {
    /// Known from now on (or known before, and the same).
    Set {
        /// Distinct consumers that have notified.
        seen: u32,
    },
    /// They had all notified already.
    Completed(Ended<P>),
    /// Another count stands.
    Conflict {
        /// The count that stands.
        stands: u32,
    },
    /// The request is not tracked yet; the count is kept for the coming `track`.
    Early,
    /// The lease had ended before, like this.
    Late(Outcome),
    /// Nothing is known of this id, and nothing is kept.
    Unknown,
    /// More than 255 cannot be counted; nothing changed.
    TooMany,
}

impl<P> ExpectedSet<P> {
    /// The release, if this call brought it.
    pub fn release(self) -> Option<Release<P>> {
        match self {
            ExpectedSet::Completed(ended) => ended.release(),
            _ => None,
        }
    }
}

/// The answer of [`SendTracker::renew`](crate::SendTracker::renew).
#[must_use = "a renewal of a lease that has ended comes too late"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Renewed {
    /// The lease now runs until the given deadline.
    Extended,
    /// The lease runs at least that long already.
    Unchanged {
        /// Its deadline.
        deadline: Timestamp,
    },
    /// The request is not tracked yet; the deadline is kept for the coming `track`.
    Early,
    /// The lease had ended before, like this.
    Late(Outcome),
    /// Nothing is known of this id, and nothing is kept.
    Unknown,
    /// The deadline is after [`Timestamp::MAX_DEADLINE`]; nothing changed.
    DeadlineOutOfRange,
}

/// What a batch of renewals did, counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RenewCounts {
    /// Leases that now run longer.
    pub extended: usize,
    /// Leases that ran at least that long.
    pub unchanged: usize,
    /// Ids not tracked yet, kept for the coming `track`.
    pub early: usize,
    /// Leases that had ended before.
    pub late: usize,
    /// Ids of which nothing is known.
    pub unknown: usize,
    /// Refused because the deadline is out of range.
    pub refused: usize,
}

/// The answer of [`SendTracker::abort`](crate::SendTracker::abort).
#[must_use = "an aborted lease carries its payload"]
#[derive(PartialEq, Eq, Debug)]
pub enum Aborted<P> {
    /// The lease ended by this call.
    Ended(Ended<P>),
    /// The request is not tracked yet; the coming `track` will be released at once.
    Early,
    /// The lease had ended before, like this.
    Late(Outcome),
    /// Nothing is known of this id, and nothing is kept.
    Unknown,
}

impl<P> Aborted<P> {
    /// The release, if this call brought it.
    pub fn release(self) -> Option<Release<P>> {
        match self {
            Aborted::Ended(ended) => ended.release(),
            _ => None,
        }
    }
}

/// Why a transfer must not begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum TransferRefusal {
    /// No lease of this id is live, so nothing keeps its blocks.
    #[error("no lease of this id is live; do not touch its blocks")]
    NotLeased,
    /// The lease has ended like this.
    #[error("the lease has ended ({0}); do not touch its blocks")]
    Late(Outcome),
    /// 126 transfers are in flight for this lease.
    #[error("126 transfers of this lease are in flight, which is the limit; begin it when one has ended")]
    TooManyTransfers,
}

/// What one [`sweep`](crate::SendTracker::sweep) found due.
#[must_use = "the payloads are handed out once: free their blocks"]
#[derive(PartialEq, Eq, Debug)]
pub struct Swept<P> {
    /// Leases that ended, and releases left behind by dropped [`Transfer`](crate::Transfer) guards.
    pub released: Vec<Release<P>>,
    /// Leases past their deadline that [`ExpiryPolicy::Hold`](crate::ExpiryPolicy::Hold) keeps,
    /// each reported once.
    pub overdue: Vec<RequestId>,
    /// Leases that ended while a transfer is in flight; their releases come with its end.
    pub after_transfer: usize,
    /// Early messages that no `track` came for.
    pub early_dropped: usize,
    /// Ended leases forgotten.
    pub tombstones_dropped: usize,
}

impl<P> Default for Swept<P> {
    fn default() -> Self {
        Swept { released: Vec::new(), overdue: Vec::new(), after_transfer: 0, early_dropped: 0, tombstones_dropped: 0 }
    }
}

/// One lease, for a debug dump.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LeaseInfo {
    /// The request.
    pub id: RequestId,
    /// When the lease runs out; of one that has ended, until when that is remembered at least.
    pub deadline: Timestamp,
    /// Distinct consumers that have notified.
    pub seen: u32,
    /// How many are expected, if that is known; `None`, too, of a lease that ended because nobody was.
    pub expected: Option<u32>,
    /// Transfers in flight.
    pub transfers: u32,
    /// The weight that `track` was given.
    pub weight: u32,
    /// When it was tracked.
    pub tracked_at: Timestamp,
    /// A consumer of the decode engine that it waits for, if that is known.
    pub waits_for: Option<crate::ConsumerId>,
    /// The consumers that have notified, in the order in which their messages came.
    pub notified: Vec<crate::ConsumerId>,
    /// `None` while the lease is live.
    pub outcome: Option<Outcome>,
    /// Past its deadline and kept by [`ExpiryPolicy::Hold`](crate::ExpiryPolicy::Hold).
    pub overdue: bool,
}
