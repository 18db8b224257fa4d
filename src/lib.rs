//! kvlease (skeleton)
#![deny(unsafe_op_in_unsafe_fn)]

mod id;
pub mod map;
mod reclaim;
mod segments;
mod sync;
mod time;
mod tracker;

pub use id::{ConsumerId, RequestId};
pub use time::{Clock, Timestamp};
pub use tracker::{
    Aborted, Config, Ended, ExpectedSet, ExpiryPolicy, LeaseInfo, Notification, Notified, NotifyRefusal, Outcome,
    Release, RenewCounts, Renewed, SendTracker, Stats, Swept, Terms, TrackError, TrackRefusal, Tracked, Transfer,
    TransferRefusal,
};
