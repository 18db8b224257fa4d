//! The send tracker: see [`SendTracker`].

mod config;
mod outcome;
mod stats;

pub use config::{Config, ExpiryPolicy, Terms};
pub use outcome::{
    Aborted, Ended, ExpectedSet, LeaseInfo, Notified, NotifyRefusal, Outcome, Release, RenewCounts, Renewed, Swept,
    TrackError, TrackRefusal, Tracked, TransferRefusal,
};
pub use stats::Stats;

use crate::{ConsumerId, Timestamp};
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

/// One message of a consumer that it has read, for [`SendTracker::notify_batch`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Notification<'a> {
    /// The request.
    pub id: &'a str,
    /// Who has read.
    pub consumer: ConsumerId,
    /// How many consumers the message says are expected, if it does.
    pub expected: Option<u32>,
}

/// The account of which payloads (KV-cache blocks) must still be kept, and for whom.
pub struct SendTracker<P> {
    _p: PhantomData<fn() -> P>,
}

#[allow(unused_variables, missing_docs)]
impl<P: Send + 'static> SendTracker<P> {
    pub fn new() -> Self { todo!() }
    pub fn with_config(config: Config) -> Self { todo!() }

    /// Begins a lease.
    pub fn track(&self, id: &str, terms: Terms, payload: P, now: Timestamp) -> Result<Tracked<P>, TrackError<P>> { todo!() }
    pub fn notify(&self, id: &str, consumer: ConsumerId, now: Timestamp) -> Notified<P> { todo!() }
    pub fn notify_expecting(&self, id: &str, consumer: ConsumerId, expected: u32, now: Timestamp) -> Notified<P> { todo!() }
    /// Pins once; `on` sees each id's result in order.
    pub fn notify_batch<'a>(&self, notifications: impl IntoIterator<Item = Notification<'a>>, now: Timestamp, on: impl FnMut(Notification<'a>, Notified<P>)) { todo!() }
    pub fn set_expected(&self, id: &str, expected: u32, now: Timestamp) -> ExpectedSet<P> { todo!() }
    pub fn renew(&self, id: &str, deadline: Timestamp, by: Option<ConsumerId>, now: Timestamp) -> Renewed { todo!() }
    pub fn renew_batch<'a>(&self, ids: impl IntoIterator<Item = &'a str>, deadline: Timestamp, by: Option<ConsumerId>, now: Timestamp) -> RenewCounts { todo!() }
    pub fn abort(&self, id: &str, now: Timestamp) -> Aborted<P> { todo!() }
    pub fn begin_transfer(&self, id: &str) -> Result<Transfer<P, &Self>, TransferRefusal> { todo!() }
    pub fn begin_transfer_owned(self: &Arc<Self>, id: &str) -> Result<Transfer<P, Arc<Self>>, TransferRefusal> { todo!() }
    /// Everything due at `now` (deadline <= now).
    pub fn sweep(&self, now: Timestamp) -> Swept<P> { todo!() }
    /// When the next sweep will find something due; `None` when nothing is waiting. Never later than the true one.
    pub fn next_deadline(&self) -> Option<Timestamp> { todo!() }
    /// Ends (as Expired) the leases that wait for the engine of any of these consumers.
    pub fn expire_consumers(&self, consumers: &[ConsumerId], now: Timestamp) -> Vec<Release<P>> { todo!() }
    /// Every remaining payload, once (as Aborted); afterwards `track` is refused.
    pub fn shutdown(&self, now: Timestamp) -> Vec<Release<P>> { todo!() }
    pub fn stats(&self) -> Stats { todo!() }
    /// The `n` live leases tracked longest ago, oldest first.
    pub fn oldest(&self, n: usize) -> Vec<LeaseInfo> { todo!() }
    /// Every live lease (weakly consistent).
    pub fn leases(&self) -> impl Iterator<Item = LeaseInfo> + '_ { std::iter::empty() }
}

/// While this guard lives, nothing releases the lease's blocks.
///
/// Dropping it ends the transfer too; if that was the last one of an ended lease, the release is handed out
/// by the next `sweep` (`next_deadline` says at once), or by `shutdown`.
#[must_use]
pub struct Transfer<P: Send + 'static, T: Deref<Target = SendTracker<P>>> {
    _t: T,
}

impl<P: Send + 'static, T: Deref<Target = SendTracker<P>>> Transfer<P, T> {
    /// Ends the transfer; yields the release if it was the last one of a lease that has ended.
    pub fn end(self, _now: Timestamp) -> Option<Release<P>> { todo!() }
}
