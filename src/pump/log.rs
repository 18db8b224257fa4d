//! Warnings at a limited rate.

use crate::Timestamp;
use std::time::Duration;

/// Kinds of warnings: each has a limit of its own, so that junk does not hide a stale read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    Malformed,
    Stranger,
    Dropped,
    Uncountable,
    Conflict,
    Stale,
    Unreachable,
    Poll,
}

const CLASSES: usize = Class::Poll as usize + 1;

/// Lets one warning of each class through in a while, and counts the others.
#[derive(Debug)]
pub(super) struct Limiter {
    every: Duration,
    classes: [(Timestamp, u64); CLASSES],
}

impl Limiter {
    pub(super) fn new(every: Duration) -> Self {
        Limiter { every, classes: [(Timestamp::ZERO, 0); CLASSES] }
    }

    /// If it is time for a warning of this class: how many there were since the last one.
    pub(super) fn due(&mut self, class: Class, now: Timestamp) -> Option<u64> {
        let (next, suppressed) = &mut self.classes[class as usize];
        // If the clock has been set back, the next one is not long off.
        *next = (*next).min(now + self.every);
        if now < *next {
            *suppressed += 1;
            return None;
        }
        *next = now + self.every;
        Some(std::mem::take(suppressed))
    }
}

/// A warning through `tracing`, if one of its class is due; with `suppressed`, the number that was not.
macro_rules! limited {
    ($log:expr, $class:ident, $now:expr, $($event:tt)+) => {
        if let Some(_suppressed) = $log.due($crate::pump::log::Class::$class, $now) {
            #[cfg(feature = "tracing")]
            tracing::warn!(target: "kvlease::pump", suppressed = _suppressed, $($event)+);
        }
    };
}
pub(super) use limited;

/// What a peer has sent, as a field: no longer than a log can bear. What is no letter in it, the subscriber escapes.
#[cfg(feature = "tracing")]
pub(super) fn short(text: &str) -> &str {
    const LONGEST: usize = 80;
    &text[..text.char_indices().nth(LONGEST).map_or(text.len(), |(end, _)| end)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_a_while_gets_through_and_the_others_are_counted() {
        let mut limiter = Limiter::new(Duration::from_secs(5));
        let at = Timestamp::from_secs;
        assert_eq!(limiter.due(Class::Malformed, at(0)), Some(0));
        assert_eq!(limiter.due(Class::Stale, at(0)), Some(0));
        for _ in 0..7 {
            assert_eq!(limiter.due(Class::Malformed, at(4)), None);
        }
        assert_eq!(limiter.due(Class::Malformed, at(5)), Some(7));
        assert_eq!(limiter.due(Class::Malformed, at(6)), None);
        // Set back by an hour: silent for five seconds and no longer.
        let mut limiter = Limiter::new(Duration::from_secs(5));
        assert_eq!(limiter.due(Class::Poll, at(3_600)), Some(0));
        assert_eq!(limiter.due(Class::Poll, at(1)), None);
        assert_eq!(limiter.due(Class::Poll, at(6)), Some(1));
    }

    #[cfg(feature = "tracing")]
    #[test]
    fn what_a_peer_has_sent_is_cut_between_two_characters() {
        assert_eq!(short("decode-0"), "decode-0");
        assert_eq!(short(&"é".repeat(100)), "é".repeat(80));
    }
}
