//! The tracker, and what one would write in its place, each in its own file behind one trait.
//!
//! All parse messages with [`kvlease::wire`], so what differs is the account.

mod heap;
mod scan;
mod send_tracker;

use kvlease::Timestamp;
use kvlease::wire::{self, Message};

/// An account of leases. Payloads are numbers.
pub trait Tracker {
    /// A new lease for so many consumers.
    fn track(&self, id: &str, consumers: u32, deadline: Timestamp, payload: u64, now: Timestamp);
    /// One completion message from each of some consumers. How many leases ended.
    fn complete(&self, messages: &[Completion<'_>], now: Timestamp) -> usize;
    /// One heartbeat message. How many leases it renewed.
    fn heartbeat(&self, message: &[u8], deadline: Timestamp, now: Timestamp) -> usize;
    /// Ends what is due. How many leases ended.
    fn sweep(&self, now: Timestamp) -> usize;
    /// Leases that are live.
    fn live(&self) -> usize;
}

/// A completion message as it arrives.
#[derive(Clone, Copy)]
pub struct Completion<'a> {
    /// The number of the consumer that sent it, from 1.
    pub consumer: u32,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// The id and the consumer of a completion message.
fn parse<'a>(message: &Completion<'a>) -> Option<(&'a str, u32, u32)> {
    match wire::parse(message.bytes) {
        Ok(Message::Completion(done)) => Some((done.id, done.expected, message.consumer)),
        _ => None,
    }
}

/// The ids of a heartbeat message.
fn ids(message: &[u8]) -> impl Iterator<Item = &str> + Clone {
    let heartbeat = match wire::parse(message) {
        Ok(Message::Heartbeat(heartbeat)) => Some(heartbeat),
        _ => None,
    };
    heartbeat.into_iter().flat_map(|heartbeat| heartbeat.ids())
}

/// A tracker of its own.
pub type New = fn() -> Box<dyn Tracker>;

/// The name of each, and how to make one.
pub const ALL: &[(&str, New)] = &[
    ("kvlease", || Box::new(send_tracker::Lockfree::new(true))),
    ("kvlease, one by one", || Box::new(send_tracker::Lockfree::new(false))),
    (BASE, || Box::<scan::Scan>::default()),
    ("lazy heap", || Box::<heap::Heap>::default()),
];

/// The one to which ratios are.
pub const BASE: &str = "full scan";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_keep_the_same_account() {
        let at = Timestamp::from_secs;
        for (name, new) in ALL {
            let tracker = new();
            for (n, id) in ["a", "b", "c", "d"].into_iter().enumerate() {
                tracker.track(id, 2, at(30), n as u64, at(0));
            }
            let message = |consumer, bytes| Completion { consumer, bytes };
            let first = [message(1, b"a:2"), message(1, b"a:2"), message(2, b"b:2"), message(1, b"junk")];
            assert_eq!((tracker.complete(&first, at(1)), tracker.live()), (0, 4), "{name}");
            assert_eq!((tracker.complete(&[message(2, b"a:2")], at(2)), tracker.live()), (1, 3), "{name}");
            assert_eq!(tracker.heartbeat(b"HB:b,a,c", at(60), at(3)), 2, "{name}");
            assert_eq!(tracker.heartbeat(b"HB:b,c", at(50), at(3)), 0, "{name}");
            assert_eq!((tracker.sweep(at(29)), tracker.sweep(at(31)), tracker.live()), (0, 1, 2), "{name}");
            assert_eq!((tracker.sweep(at(59)), tracker.sweep(at(61)), tracker.live()), (0, 2, 0), "{name}");
        }
    }
}
