//! kvlease
#![deny(unsafe_op_in_unsafe_fn)]

#[cfg(not(kvlease_loom))]
pub mod consumer;
mod deadline;
mod id;
mod lease;
pub mod map;
#[cfg(all(test, kvlease_loom))]
#[path = "../loom-tests/models/mod.rs"]
mod models;
mod reclaim;
#[cfg(not(kvlease_loom))]
mod registry;
mod segments;
mod sync;
mod time;
mod tracker;
#[cfg(not(kvlease_loom))]
pub mod transport;
#[cfg(not(kvlease_loom))]
pub mod wire;

pub use id::{ConsumerId, RequestId};
#[cfg(not(kvlease_loom))]
pub use registry::{ConsumerRegistry, InternError};
pub use time::{Clock, Timestamp};
pub use tracker::{
    Aborted, Config, Ended, ExpectedSet, ExpiryPolicy, LeaseInfo, Notification, Notified, NotifyRefusal, Outcome,
    Release, RenewCounts, Renewed, SendTracker, Stats, Swept, Terms, TrackError, TrackRefusal, Tracked, Transfer,
    TransferRefusal,
};
