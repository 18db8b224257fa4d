//! The account of which KV-cache blocks a prefill worker must still keep for its decode workers, and the
//! lock-free hash map that it stands on.
//!
//! A prefill worker has computed the KV cache of a request. Its blocks must stay until every decode rank
//! that needs them has read them and said so, or until their lease runs out, and then be released once.
//! [`SendTracker`] keeps that account for connectors that move KV caches between machines, from as many
//! threads as they have.
//!
//! | you have | you call | you get |
//! |---|---|---|
//! | a request whose KV cache is complete | [`track`](SendTracker::track) | [`Tracked`], or the payload back with the [reason](TrackRefusal) |
//! | a completion message | [`notify`](SendTracker::notify), [`notify_expecting`](SendTracker::notify_expecting), [`notify_batch`](SendTracker::notify_batch) | [`Notified`] |
//! | a heartbeat message | [`renew_batch`](SendTracker::renew_batch) | [`RenewCounts`] |
//! | a request that was given up | [`abort`](SendTracker::abort) | [`Aborted`] |
//! | a transfer of your own to do | [`begin_transfer`](SendTracker::begin_transfer) | a [`Transfer`] that holds the blocks |
//! | an engine step | [`sweep`](SendTracker::sweep) | [`Swept`] |
//! | nothing to do | [`next_deadline`](SendTracker::next_deadline) | when to wake |
//! | a dead decode engine | [`expire_consumers`](SendTracker::expire_consumers) | the releases |
//! | to stop | [`shutdown`](SendTracker::shutdown) | all that is left |
//!
//! Every answer is an enum. What carries a payload is `#[must_use]`: a [`Release`] is handed out once.
//!
//! # Beside the tracker
//!
//! * [`map`]: the hash map with compare-and-remove, a data structure in its own right.
//! * [`wire`]: completion messages, heartbeats and stale replies as bytes.
//! * [`consumer`]: the decode side, with the heartbeats and what to do about a stale reply.
//! * [`transport`]: where messages come from and go to, and an in-process network to test with.
//! * [`ConsumerRegistry`]: agent names as small [`ConsumerId`]s.
//!
//! # A notification thread
//!
//! ```
//! use kvlease::transport::{NotificationSink, NotificationSource, TransportError};
//! use kvlease::wire::{self, Message};
//! use kvlease::{Clock, ConsumerRegistry, Outcome, Release, SendTracker};
//! use std::time::Duration;
//!
//! fn poll(
//!     source: &mut impl NotificationSource,
//!     sink: &impl NotificationSink,
//!     tracker: &SendTracker<Vec<u32>>,
//!     agents: &ConsumerRegistry,
//!     clock: &Clock,
//!     mut free: impl FnMut(Release<Vec<u32>>),
//! ) -> Result<usize, TransportError> {
//!     let now = clock.now();
//!     source.poll(&mut |agent, bytes| {
//!         let Ok(consumer) = agents.intern(agent) else { return };
//!         match wire::parse(bytes) {
//!             Ok(Message::Completion(done)) => {
//!                 let notified = tracker.notify_expecting(done.id, consumer, done.expected, now);
//!                 // A read that came too late must not stay silent (if this peer has opted in).
//!                 if let Some(outcome @ (Outcome::Expired | Outcome::Aborted)) = notified.verdict() {
//!                     let mut reply = Vec::new();
//!                     if wire::write_stale_reply(done.id, outcome, &mut reply).is_ok() {
//!                         let _ = sink.send(agent, &reply); // lost replies: see `consumer`
//!                     }
//!                 }
//!                 notified.release().map(&mut free);
//!             }
//!             Ok(Message::Heartbeat(heartbeat)) => {
//!                 let _ = tracker.renew_batch(heartbeat.ids(), now + Duration::from_secs(30), Some(consumer), now);
//!             }
//!             Ok(_) => {} // not for the tracker
//!             Err(_malformed) => {} // count it; nothing else has changed
//!         }
//!     })
//! }
//! ```
//!
//! # Progress and cost
//!
//! Calls are lock-free: none waits for another thread, and a thread that stalls anywhere holds up nobody.
//! `notify` is a look-up and two compare-exchanges, `renew` a look-up and one. `sweep` is one load when nothing
//! is due. Slots and memory are pooled: once warm, a request is tracked and released without an allocation
//! of the crate's own, but for a bookkeeping node of the epoch collector now and then.

#![deny(unsafe_op_in_unsafe_fn)]

#[cfg(not(kvlease_loom))]
pub mod consumer;
mod deadline;
pub mod docs;
mod id;
mod lease;
pub mod map;
#[cfg(all(test, kvlease_loom))]
#[cfg_attr(not(kvlease_loom_epoch), path = "../loom-tests/models/mod.rs")]
#[cfg_attr(kvlease_loom_epoch, path = "../loom-epoch-tests/models/mod.rs")]
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

/// The examples of the README are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
