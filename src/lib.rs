//! kvlease
#![deny(unsafe_op_in_unsafe_fn)]

pub mod consumer;
mod deadline;
mod id;
mod lease;
pub mod map;
mod reclaim;
mod registry;
mod segments;
mod sync;
mod time;
mod tracker;
pub mod transport;
pub mod wire;

pub use id::{ConsumerId, RequestId};
pub use registry::{ConsumerRegistry, InternError};
pub use time::{Clock, Timestamp};
pub use tracker::{
    Aborted, Config, Ended, ExpectedSet, ExpiryPolicy, LeaseInfo, Notification, Notified, NotifyRefusal, Outcome,
    Release, RenewCounts, Renewed, SendTracker, Stats, Swept, Terms, TrackError, TrackRefusal, Tracked, Transfer,
    TransferRefusal,
};
