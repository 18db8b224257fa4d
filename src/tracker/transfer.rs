//! Transfers in flight: while the producer itself moves a lease's blocks, nothing releases them.

use super::{Release, SendTracker};
use crate::Timestamp;
use crate::map::Handle;
use std::fmt;
use std::ops::Deref;

/// A transfer in flight: while it lives, nothing releases the lease's blocks, even if its outcome is
/// decided meanwhile.
///
/// From [`begin_transfer`](SendTracker::begin_transfer) or
/// [`begin_transfer_owned`](SendTracker::begin_transfer_owned). [`end`](Transfer::end) it to be given the
/// release if it was the last one of a lease that has ended. To drop it ends the transfer, too, and the
/// release, if there is one, is then in what the next [`sweep`](SendTracker::sweep) gives, and
/// [`next_deadline`](SendTracker::next_deadline) says that one is due. To leak it (`std::mem::forget`)
/// keeps the blocks for ever.
#[must_use = "a transfer ends when its guard is dropped"]
pub struct Transfer<P: Send + 'static, T: Deref<Target = SendTracker<P>>> {
    tracker: T,
    handle: Handle,
    open: bool,
}

impl<P: Send + 'static, T: Deref<Target = SendTracker<P>>> Transfer<P, T> {
    pub(super) fn new(tracker: T, handle: Handle) -> Self {
        Transfer { tracker, handle, open: true }
    }

    /// Ends the transfer. Gives the release if this was the last one of a lease that has ended.
    ///
    /// ```
    /// use kvlease::{Ended, Aborted, Outcome, SendTracker, Terms, Timestamp};
    ///
    /// let tracker = SendTracker::new();
    /// let now = Timestamp::ZERO;
    /// let _ = tracker.track("r", Terms::until(Timestamp::from_secs(30)).consumers(1), vec![7], now).unwrap();
    /// let transfer = tracker.begin_transfer("r").unwrap();
    /// assert_eq!(tracker.abort("r", now), Aborted::Ended(Ended::AfterTransfer));
    /// let release = transfer.end(now).unwrap();
    /// assert_eq!((release.payload, release.outcome), (vec![7], Outcome::Aborted));
    /// ```
    #[must_use = "the payload is handed out once: free its blocks"]
    pub fn end(mut self, now: Timestamp) -> Option<Release<P>> {
        self.open = false;
        self.tracker.end_transfer(self.handle, Some(now))
    }
}

impl<P: Send + 'static, T: Deref<Target = SendTracker<P>>> Drop for Transfer<P, T> {
    fn drop(&mut self) {
        if self.open {
            let left = self.tracker.end_transfer(self.handle, None);
            debug_assert!(left.is_none());
        }
    }
}

impl<P: Send + 'static, T: Deref<Target = SendTracker<P>>> fmt::Debug for Transfer<P, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer").field("lease", &self.handle).finish_non_exhaustive()
    }
}
