//! One event for each lease that ends, through `tracing`.

use crate::Timestamp;
use crate::lease::entry::LeaseEntry;
use crate::lease::word::End;

/// A lease has ended by the caller. Where nobody listens at this level, that costs one load.
#[inline]
pub(super) fn ended<P>(_id: &str, _lease: &LeaseEntry<P>, _end: End, _now: Timestamp) {
    #[cfg(feature = "tracing")]
    if listening() {
        event::ended(_id, _lease, _end, _now);
    }
}

/// A lease was over when it began, since nobody was expected.
#[inline]
pub(super) fn ended_at_once(_id: &str, _weight: u32) {
    #[cfg(feature = "tracing")]
    if listening() {
        event::ended_at_once(_id, _weight);
    }
}

/// Whether there may be anybody. Decided here so that the event itself is out of the way.
#[inline]
pub(super) fn listening() -> bool {
    #[cfg(feature = "tracing")]
    {
        use tracing::level_filters::{LevelFilter, STATIC_MAX_LEVEL};
        LevelFilter::DEBUG <= STATIC_MAX_LEVEL && LevelFilter::DEBUG <= LevelFilter::current()
    }
    #[cfg(not(feature = "tracing"))]
    false
}

#[cfg(feature = "tracing")]
mod event {
    use super::*;
    use crate::{ConsumerId, Outcome};
    use std::time::Duration;

    #[cold]
    pub(super) fn ended<P>(id: &str, lease: &LeaseEntry<P>, end: End, now: Timestamp) {
        // The word of a lease that has ended keeps its count. What else changes in it is not looked at.
        let count = lease.load().count();
        let age = now.saturating_since(Timestamp::from_millis(lease.stamp()));
        // Complete without a count in the word: nobody was expected.
        let expected = count.expected.or((end.outcome == Outcome::Completed).then_some(0));
        emit(id, end.outcome, age, count.seen, expected, || lease.counted(), lease.weight(), end.released);
    }

    #[cold]
    pub(super) fn ended_at_once(id: &str, weight: u32) {
        emit(id, Outcome::Completed, Duration::ZERO, 0, Some(0), Vec::new, weight, true);
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of the event")]
    fn emit(
        id: &str,
        outcome: Outcome,
        age: Duration,
        seen: u32,
        expected: Option<u32>,
        consumers: impl FnOnce() -> Vec<ConsumerId>,
        weight: u32,
        released: bool,
    ) {
        tracing::debug!(
            target: "kvlease::lease",
            id,
            outcome = %outcome,
            age_ms = age.as_millis() as u64,
            seen,
            expected,
            missing = expected.map(|expected| expected.saturating_sub(seen)),
            consumers = ?consumers().iter().map(|consumer| consumer.get()).collect::<Vec<_>>(),
            weight,
            released,
            "a lease has ended"
        );
    }
}
