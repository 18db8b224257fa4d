//! A network of agents inside one process, with faults on demand. **A test double**: for tests, examples
//! and simulations; one mutex guards it all, and queues are not bounded.
//!
//! What it guarantees: every message is delivered, lost or still queued, and counted as such. With one
//! thread, the same seed, the same calls and the same readings of the clock, the same faults happen (as
//! long as the version of `fastrand`, whose numbers decide, is the same).
//!
//! ```
//! use kvlease::Timestamp;
//! use kvlease::transport::in_process::{Faults, Network};
//! use kvlease::transport::{NotificationSink, NotificationSource};
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU64, Ordering};
//! use std::time::Duration;
//!
//! // The test owns the clock.
//! let millis = Arc::new(AtomicU64::new(0));
//! let clock = { let millis = millis.clone(); move || Timestamp::from_millis(millis.load(Ordering::Relaxed)) };
//!
//! let network = Network::new(Faults { delay: Duration::from_millis(10), ..Faults::default() }, clock)?;
//! let mut prefill = network.agent("prefill-0");
//! let decode = network.agent("decode-0");
//!
//! decode.send("prefill-0", b"cmpl-7:1").unwrap();
//! millis.store(10, Ordering::Relaxed);
//! let n = prefill.poll(&mut |agent, bytes| assert_eq!((agent, bytes), ("decode-0", &b"cmpl-7:1"[..])));
//! assert_eq!(n, Ok(1));
//! # Ok::<(), kvlease::transport::in_process::FaultsError>(())
//! ```

use super::{NotificationSink, NotificationSource, TransportError};
use crate::Timestamp;
use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use thiserror::Error;

/// What the network does to messages. The default does nothing to them.
#[derive(Clone, PartialEq, Debug)]
pub struct Faults {
    /// The probability that a message is lost, 0 to 1. Its sender is told `Ok`.
    pub loss: f64,
    /// The probability that a message that is not lost arrives twice, 0 to 1. The copy has a delay of its own.
    pub duplicate: f64,
    /// Each message takes a time between zero and this, in whole milliseconds, all equally likely. A
    /// message with a shorter one overtakes.
    pub delay: Duration,
    /// The probability, 0 to 1, that a message is handed out before up to 8 of those that one poll would
    /// hand out before it.
    pub reorder: f64,
    /// Decides which messages these things happen to.
    pub seed: u64,
}

impl Default for Faults {
    fn default() -> Self {
        Faults { loss: 0.0, duplicate: 0.0, delay: Duration::ZERO, reorder: 0.0, seed: 0 }
    }
}

impl Faults {
    fn validate(&self) -> Result<(), FaultsError> {
        for (field, value) in [("loss", self.loss), ("duplicate", self.duplicate), ("reorder", self.reorder)] {
            // False for NaN too.
            if !(0.0..=1.0).contains(&value) {
                return Err(FaultsError::NotAProbability { field, value });
            }
        }
        Ok(())
    }
}

/// Why some [`Faults`] make no sense.
#[derive(Clone, PartialEq, Debug, Error)]
#[non_exhaustive]
pub enum FaultsError {
    /// Not a number from 0 to 1.
    #[error("Faults::{field} is {value}, and must be from 0 to 1")]
    NotAProbability {
        /// Which field.
        field: &'static str,
        /// What it is.
        value: f64,
    },
}

/// What has happened to messages so far. At any time
/// `sent + duplicated == lost + dropped + delivered + queued`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Calls of `send` that returned `Ok`.
    pub sent: u64,
    /// Messages that the network lost.
    pub lost: u64,
    /// Copies that the network made.
    pub duplicated: u64,
    /// Messages, copies included, that were given a delay of at least a millisecond.
    pub delayed: u64,
    /// Messages that overtook at least one other.
    pub reordered: u64,
    /// Messages that were queued for an agent when it went.
    pub dropped: u64,
    /// Messages handed out by `poll`.
    pub delivered: u64,
    /// Gauge: messages on their way, or not yet polled.
    pub queued: u64,
}

/// A network that agents join by name. Clones are the same network.
#[derive(Clone)]
pub struct Network {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Box<dyn Fn() -> Timestamp + Send + Sync>,
    faults: Faults,
    state: Mutex<State>,
}

struct State {
    rng: fastrand::Rng,
    agents: HashMap<Arc<str>, Inbox>,
    /// Of messages, for those that arrive at the same time; of agents, to tell lives of a name apart.
    next_seq: u64,
    counters: Counters,
}

struct Inbox {
    life: u64,
    messages: BinaryHeap<Reverse<Queued>>,
}

struct Queued {
    at: Timestamp,
    seq: u64,
    /// How many messages it may overtake.
    overtakes: usize,
    from: Arc<str>,
    bytes: Arc<[u8]>,
}

impl Queued {
    fn key(&self) -> (Timestamp, u64) {
        (self.at, self.seq)
    }
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Queued {}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Queued {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl Network {
    /// A network with these faults, whose delays pass by this clock. The clock is called without a lock held.
    ///
    /// # Errors
    ///
    /// [`FaultsError`] if a probability is not from 0 to 1.
    pub fn new(faults: Faults, clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Result<Self, FaultsError> {
        faults.validate()?;
        let state = State {
            rng: fastrand::Rng::with_seed(faults.seed),
            agents: HashMap::new(),
            next_seq: 0,
            counters: Counters::default(),
        };
        Ok(Network { shared: Arc::new(Shared { clock: Box::new(clock), faults, state: Mutex::new(state) }) })
    }

    /// Joins as `name`. An agent that has this name already is thereby removed, as by a restart.
    pub fn agent(&self, name: &str) -> Agent {
        let name: Arc<str> = Arc::from(name);
        let mut state = self.shared.lock();
        state.remove(&name, None);
        let life = state.take_seq();
        state.agents.insert(Arc::clone(&name), Inbox { life, messages: BinaryHeap::new() });
        drop(state);
        Agent { sender: Sender { shared: Arc::clone(&self.shared), name, life } }
    }

    /// Removes the agent of this name as if it had crashed: what is queued for it is dropped, sends to it
    /// are answered [`UnknownAgent`](TransportError::UnknownAgent), its own calls
    /// [`Closed`](TransportError::Closed). What it has sent still arrives. Says whether there was one.
    pub fn remove(&self, name: &str) -> bool {
        self.shared.lock().remove(name, None)
    }

    /// What has happened to messages so far.
    pub fn counters(&self) -> Counters {
        self.shared.lock().counters
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").field("faults", &self.shared.faults).finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No call of foreign code is made under the lock, so the state is whole even if it is poisoned.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take_seq(&mut self) -> u64 {
        self.next_seq += 1;
        self.next_seq
    }

    fn remove(&mut self, name: &str, only_life: Option<u64>) -> bool {
        let Some(inbox) = self.agents.get(name) else { return false };
        if only_life.is_some_and(|life| life != inbox.life) {
            return false;
        }
        let queued = inbox.messages.len() as u64;
        self.counters.dropped += queued;
        self.counters.queued -= queued;
        self.agents.remove(name);
        true
    }

    fn is_alive(&self, name: &str, life: u64) -> bool {
        self.agents.get(name).is_some_and(|inbox| inbox.life == life)
    }

    fn happens(&mut self, probability: f64) -> bool {
        // `f64()` is below 1, so 0 is never and 1 is always.
        self.rng.f64() < probability
    }
}

/// One agent: it receives, and sends. Dropping it removes it from the network.
#[derive(Debug)]
pub struct Agent {
    sender: Sender,
}

impl Agent {
    /// The half that sends; clones of it may be used from many threads.
    pub fn sender(&self) -> Sender {
        self.sender.clone()
    }

    /// The name that others send to.
    pub fn name(&self) -> &str {
        &self.sender.name
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.sender.shared.lock().remove(&self.sender.name, Some(self.sender.life));
    }
}

impl NotificationSource for Agent {
    fn poll(&mut self, on: &mut dyn FnMut(&str, &[u8])) -> Result<usize, TransportError> {
        let Sender { shared, name, life } = &self.sender;
        let now = (shared.clock)();
        let mut arrived = Vec::new();
        {
            let mut state = shared.lock();
            let Some(inbox) = state.agents.get_mut(name).filter(|inbox| inbox.life == *life) else {
                return Err(TransportError::Closed);
            };
            while inbox.messages.peek().is_some_and(|Reverse(next)| next.at <= now) {
                arrived.extend(inbox.messages.pop().map(|Reverse(message)| message));
            }
            state.counters.reordered += overtake(&mut arrived);
            state.counters.delivered += arrived.len() as u64;
            state.counters.queued -= arrived.len() as u64;
        }
        // The lock is free again: `on` may send.
        for message in &arrived {
            on(&message.from, &message.bytes);
        }
        Ok(arrived.len())
    }
}

/// Moves those messages forward that are to overtake; says how many did.
fn overtake(messages: &mut [Queued]) -> u64 {
    let mut moved = 0;
    for i in 0..messages.len() {
        let by = messages[i].overtakes.min(i);
        messages[i - by..=i].rotate_right(1);
        moved += u64::from(by > 0);
    }
    moved
}

impl NotificationSink for Agent {
    fn send(&self, agent: &str, message: &[u8]) -> Result<(), TransportError> {
        self.sender.send(agent, message)
    }
}

/// The sending half of an [`Agent`]. It stops working when the agent is gone.
#[derive(Clone)]
pub struct Sender {
    shared: Arc<Shared>,
    name: Arc<str>,
    life: u64,
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("name", &self.name).finish_non_exhaustive()
    }
}

impl NotificationSink for Sender {
    fn send(&self, agent: &str, message: &[u8]) -> Result<(), TransportError> {
        let now = (self.shared.clock)();
        let faults = &self.shared.faults;
        let mut state = self.shared.lock();
        if !state.is_alive(&self.name, self.life) {
            return Err(TransportError::Closed);
        }
        if !state.agents.contains_key(agent) {
            return Err(TransportError::UnknownAgent { name: agent.to_owned() });
        }
        state.counters.sent += 1;
        if state.happens(faults.loss) {
            state.counters.lost += 1;
            return Ok(());
        }
        let copies = if state.happens(faults.duplicate) { 2 } else { 1 };
        state.counters.duplicated += copies - 1;
        let bytes: Arc<[u8]> = Arc::from(message);
        for _ in 0..copies {
            let most = u64::try_from(faults.delay.as_millis()).unwrap_or(u64::MAX);
            let delay = state.rng.u64(0..=most);
            let overtakes = if state.happens(faults.reorder) { state.rng.usize(1..=8) } else { 0 };
            let queued = Queued {
                at: now + Duration::from_millis(delay),
                seq: state.take_seq(),
                overtakes,
                from: Arc::clone(&self.name),
                bytes: Arc::clone(&bytes),
            };
            state.counters.delayed += u64::from(delay > 0);
            if let Some(inbox) = state.agents.get_mut(agent) {
                inbox.messages.push(Reverse(queued));
                state.counters.queued += 1;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_that_is_no_probability_is_refused() {
        for bad in [f64::NAN, -0.1, 1.1, f64::INFINITY] {
            for faults in [
                Faults { loss: bad, ..Faults::default() },
                Faults { duplicate: bad, ..Faults::default() },
                Faults { reorder: bad, ..Faults::default() },
            ] {
                assert!(matches!(Network::new(faults, || Timestamp::ZERO), Err(FaultsError::NotAProbability { .. })));
            }
        }
    }

    #[test]
    fn a_message_overtakes_no_more_than_there_are() {
        let message = |seq, overtakes| Queued {
            at: Timestamp::ZERO,
            seq,
            overtakes,
            from: Arc::from("a"),
            bytes: Arc::from(&b""[..]),
        };
        let mut messages = [message(0, 3), message(1, 0), message(2, 1), message(3, 8)];
        assert_eq!(overtake(&mut messages), 2);
        assert_eq!(messages.map(|m| m.seq), [3, 0, 2, 1]);
    }
}
