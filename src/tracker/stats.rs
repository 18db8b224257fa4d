//! Gauges and counters of a tracker.

/// A snapshot of a tracker's gauges and counters.
///
/// Counters only grow. Taken while other threads work, the numbers may be of slightly different
/// moments; at rest they are exact, and then `tracked == completed + expired + aborted + live`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Gauge: leases that are live.
    pub live: u64,
    /// Gauge: ended leases whose payload waits for the end of a transfer, or for the next sweep.
    pub release_pending: u64,
    /// Gauge: the weight of all payloads not yet released.
    pub weight_held: u64,
    /// Gauge: ids of which a message came before `track`.
    pub early: u64,
    /// Gauge: ended leases that are remembered.
    pub tombstones: u64,
    /// Gauge: transfers in flight.
    pub transfers: u64,

    /// Counter: calls of `track` that began a lease (also one that ended at once).
    pub tracked: u64,
    /// Counter: leases that ended as completed.
    pub completed: u64,
    /// Counter: leases that ended as expired.
    pub expired: u64,
    /// Counter: leases that ended as aborted.
    pub aborted: u64,
    /// Counter: payloads handed out.
    pub released: u64,
    /// Counter: calls of `track` that were refused.
    pub track_refused: u64,
    /// Counter: leases reported overdue.
    pub overdue: u64,

    /// Counter: notifications that counted (also the last one of a lease).
    pub notified: u64,
    /// Counter: notifications of a consumer that had notified before.
    pub duplicates: u64,
    /// Counter: notifications that conflicted with the expected count.
    pub conflicts: u64,
    /// Counter: notifications that cannot be counted.
    pub notify_refused: u64,
    /// Counter: renewals that extended a lease.
    pub extended: u64,
    /// Counter: messages kept for a `track` to come.
    pub early_kept: u64,
    /// Counter: ids whose early messages were dropped because no `track` came.
    pub early_dropped: u64,
    /// Counter: messages for a lease that had ended.
    pub late: u64,
    /// Counter: messages for an id of which nothing is known.
    pub unknown: u64,
}
