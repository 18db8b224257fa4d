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
//! A connector need not make the calls for messages itself: [`Pump::step`], once per engine step, polls the transport
//! and makes them.
//!
//! Every answer is an enum. What carries a payload is `#[must_use]`: a [`Release`] is handed out once.
//!
//! # Beside the tracker
//!
//! * [`map`]: the hash map with compare-and-remove, a data structure in its own right.
//! * [`wire`]: completion messages, heartbeats and stale replies as bytes.
//! * [`consumer`]: the decode side, with the heartbeats and what to do about a stale reply.
//! * [`transport`]: where messages come from and go to: an in-process network to test with and, by feature `nixl`, the
//!   real NIXL.
//! * [`pump`]: from a transport to the tracker, with bounded work and everything counted.
//! * `metrics`, by that feature: what tracker and pump count, as metrics.
//! * [`ConsumerRegistry`]: agent names as small [`ConsumerId`]s, and which replies they take.
//!
//! # An engine step
//!
//! ```
//! use kvlease::transport::{NotificationSink, NotificationSource};
//! use kvlease::{Clock, Pump, Release, SendTracker};
//!
//! fn step(
//!     pump: &mut Pump,
//!     source: &mut impl NotificationSource,
//!     sink: &impl NotificationSink,
//!     tracker: &SendTracker<Vec<u32>>,
//!     clock: &Clock,
//!     mut free: impl FnMut(Release<Vec<u32>>),
//! ) {
//!     // One poll, one batch: completions and heartbeats take effect, and who has asked for it is told that what it has
//!     // read was stale.
//!     let pumped = pump.step(tracker, source, sink, clock.now());
//!     if let Some(error) = pumped.poll_error {
//!         eprintln!("{error}; trying again in the next step");
//!     }
//!     pumped.released.into_iter().for_each(&mut free);
//!     // Then what has run out.
//!     tracker.sweep(clock.now()).released.into_iter().for_each(free);
//! }
//! ```
//!
//! # Features
//!
//! * `tracing` (default): an [event](docs::outcomes#in-the-log) for each lease that ends, at debug level; warnings of the
//!   pump, at a limited rate.
//! * `metrics`: the module of that name: gauges, counters and a histogram through the `metrics` facade, for
//!   Prometheus, say. Costs the calls nothing.
//! * `nixl`: [`transport`] over the real NIXL. Its build takes g++ and libclang, and finds the library at run time.
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
#[cfg(all(feature = "metrics", not(any(kvlease_loom, kvlease_shuttle))))]
pub mod metrics;
#[cfg(all(test, kvlease_loom))]
#[cfg_attr(not(kvlease_loom_epoch), path = "../loom-tests/models/mod.rs")]
#[cfg_attr(kvlease_loom_epoch, path = "../loom-epoch-tests/models/mod.rs")]
mod models;
#[cfg(not(any(kvlease_loom, kvlease_shuttle)))]
pub mod pump;
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
#[cfg(not(any(kvlease_loom, kvlease_shuttle)))]
pub use pump::Pump;
#[cfg(not(kvlease_loom))]
pub use registry::{ConsumerRegistry, InternError, Replies};
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
