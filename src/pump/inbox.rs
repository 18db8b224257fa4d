//! The messages that wait: their bytes one after the other, so that a batch can borrow them.

use crate::wire::HEARTBEAT_PREFIX;
use crate::{ConsumerId, ConsumerRegistry, InternError};
use std::collections::VecDeque;

/// Memory that a burst has taken is given back past this.
const KEPT: usize = 4 << 20;
/// The bytes of what was done are dropped when they are at least this many, and half of all.
const DONE: usize = 64 << 10;

#[derive(Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    letters: VecDeque<Letter>,
    /// Who sent the latest message: a source hands out many of one sender in a row.
    last: Option<(String, ConsumerId)>,
}

/// One message, by its place in `bytes`.
#[derive(Clone, Copy)]
struct Letter {
    from: ConsumerId,
    start: usize,
    end: usize,
}

impl Inbox {
    /// How many messages wait.
    pub(super) fn len(&self) -> usize {
        self.letters.len()
    }

    /// The `n`th that waits.
    pub(super) fn get(&self, n: usize) -> Option<(ConsumerId, &[u8])> {
        let letter = self.letters.get(n)?;
        Some((letter.from, self.bytes.get(letter.start..letter.end)?))
    }

    /// Who this is, and whether that is another one than the last.
    pub(super) fn sender(&mut self, name: &str, agents: &ConsumerRegistry) -> Result<(ConsumerId, bool), InternError> {
        match &self.last {
            Some((last, consumer)) if last == name => Ok((*consumer, false)),
            _ => {
                let consumer = agents.intern(name)?;
                self.last = Some((name.to_owned(), consumer));
                Ok((consumer, true))
            }
        }
    }

    /// Looks the next sender up again: it may have been forgotten.
    pub(super) fn ask_for_senders_again(&mut self) {
        self.last = None;
    }

    /// Puts a message at the end, unless more than `limit` bytes would wait.
    pub(super) fn push(&mut self, from: ConsumerId, message: &[u8], limit: usize) -> bool {
        let start = self.bytes.len();
        let waiting = start - self.front();
        if message.len() > limit.saturating_sub(waiting) {
            return false;
        }
        self.bytes.extend_from_slice(message);
        self.letters.push_back(Letter { from, start, end: self.bytes.len() });
        true
    }

    /// The first `n` are done.
    pub(super) fn remove(&mut self, n: usize) {
        self.letters.drain(..n.min(self.letters.len()));
        if self.letters.is_empty() {
            self.bytes.clear();
            self.bytes.shrink_to(KEPT);
            self.letters.shrink_to(KEPT / size_of::<Letter>());
            return;
        }
        let done = self.front();
        if done >= DONE && done >= self.bytes.len() / 2 {
            self.bytes.drain(..done);
            for letter in &mut self.letters {
                letter.start -= done;
                letter.end -= done;
            }
        }
    }

    /// Of the heartbeat that is first, only the last `rest` bytes of its list are still to be done.
    pub(super) fn shorten_heartbeat(&mut self, rest: usize) {
        let Some(letter) = self.letters.front_mut() else { return };
        // In place of what was before them: the prefix had this place once, and moves towards the end.
        let Some(start) = letter.end.checked_sub(rest + HEARTBEAT_PREFIX.len()) else { return };
        if start < letter.start {
            return;
        }
        letter.start = start;
        self.bytes[start..start + HEARTBEAT_PREFIX.len()].copy_from_slice(HEARTBEAT_PREFIX.as_bytes());
    }

    /// Where the first that waits begins.
    fn front(&self) -> usize {
        self.letters.front().map_or(self.bytes.len(), |letter| letter.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one() -> ConsumerId {
        ConsumerId::new(1).unwrap()
    }

    #[test]
    fn what_is_done_makes_room_and_what_waits_stays_as_it_is() {
        let mut inbox = Inbox::default();
        let message = |n: usize| format!("message {n:>6}").into_bytes();
        let limit = 100 * message(0).len();
        let (mut pushed, mut done) = (0, 0);
        for round in 0..if cfg!(miri) { 30 } else { 3_000 } {
            while inbox.push(one(), &message(pushed), limit) {
                pushed += 1;
            }
            assert_eq!(inbox.len(), 100);
            for n in 0..100 {
                assert_eq!(inbox.get(n), Some((one(), &message(done + n)[..])));
            }
            let n = round % 90;
            inbox.remove(n);
            done += n;
            // What is done takes no more room than what waits, and a little.
            assert!(inbox.bytes.len() <= 2 * limit + DONE, "{}", inbox.bytes.len());
        }
        assert!(done > if cfg!(miri) { 300 } else { 100_000 });
        assert_eq!(inbox.get(inbox.len()), None);
    }

    #[test]
    fn the_memory_of_a_burst_is_given_back() {
        let mut inbox = Inbox::default();
        assert!(inbox.push(one(), &vec![0; 8 * KEPT], 8 * KEPT));
        assert!(!inbox.push(one(), b"x", 8 * KEPT));
        assert!(inbox.push(one(), b"", 8 * KEPT));
        inbox.remove(2);
        assert_eq!(inbox.len(), 0);
        assert!(inbox.bytes.capacity() <= KEPT);
    }

    #[test]
    fn a_heartbeat_is_shortened_in_place() {
        let mut inbox = Inbox::default();
        inbox.push(one(), b"before", 100);
        inbox.push(one(), b"HB:a,bb,ccc", 100);
        inbox.push(one(), b"after", 100);
        inbox.remove(1);
        for (rest, becomes) in [(8, "HB:a,bb,ccc"), (6, "HB:bb,ccc"), (3, "HB:ccc"), (0, "HB:")] {
            inbox.shorten_heartbeat(rest);
            assert_eq!(inbox.get(0), Some((one(), becomes.as_bytes())));
        }
        // More than there is: nothing changes.
        inbox.shorten_heartbeat(50);
        assert_eq!(inbox.get(0), Some((one(), &b"HB:"[..])));
        assert_eq!(inbox.get(1), Some((one(), &b"after"[..])));
    }
}
