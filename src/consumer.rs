//! The decode side: which leases to renew, what to send, and what a producer's reply means.
//!
//! A decode rank owns one [`ReadTracker`] and tells it what it does; the tracker says which messages to
//! send, and which requests must not be trusted. It sends nothing itself: give what it returns to a
//! [`NotificationSink`](crate::transport::NotificationSink).
//!
//! ```text
//!             wait_for                  completed                       no verdict awaited
//!  (unknown) ──────────► reading ──────────────────────┬──────────────────────────────► done
//!                          │ heartbeats                │ verdict awaited                  ▲ │
//!                          │                           ▼     confirmed, or unanswered     │ │
//!                          │                  awaiting verdict ───────────────────────────┘ │
//!                          │ stale reply               │ stale reply            stale reply │
//!                          └──────────────────────► recompute ◄─────────────────────────────┘
//! ```
//!
//! `done` and `recompute` are remembered for a while, so that a reply that comes late still counts.
//!
//! What it guarantees:
//!
//! - Every read that waits is in one heartbeat message to its agent per interval, and no message is longer
//!   than the limit. An id that the format cannot carry is refused at [`wait_for`](ReadTracker::wait_for).
//! - **A stale read does not stay silent, and is told once**: the first stale reply about a request gives
//!   [`Verdict::Recompute`], before its completion was sent or after; repetitions do not.
//! - Where a verdict is awaited, each request ends as usable, to be recomputed or unanswered within
//!   [`ReadConfig::verdict_wait`], as long as [`unanswered`](ReadTracker::unanswered) is called.
//! - Memory is bounded by [`ReadConfig`].
//!
//! What it cannot do: a reply names a request id and not one of its lives. Where an id is used again while
//! replies about its last life are on their way, such a reply is taken for one about this life. A stale one
//! then costs a recomputation; a confirmation counts only after this life's own completion was sent. A
//! router that gives each attempt an id of its own has neither.

use crate::wire::{self, StaleReply, Unsendable};
use crate::{Outcome, RequestId, Timestamp};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// Intervals and limits of a [`ReadTracker`].
///
/// A *read* is one request at one remote agent; most requests have one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadConfig {
    /// How often waiting reads are renewed (default 5 s). A fraction of the producer's lease, so that it
    /// outlives some lost heartbeats.
    pub heartbeat_interval: Duration,
    /// The longest heartbeat message, in bytes (default 64 KiB).
    pub max_message_len: usize,
    /// The longest request id, in bytes (default 1,024). One that no heartbeat message has room for is
    /// refused too.
    pub max_id_len: usize,
    /// The longest agent name, in bytes (default 1,024).
    pub max_agent_len: usize,
    /// How many reads may wait, or await a verdict, at once (default 65,536).
    pub max_reads: usize,
    /// How many reads of requests that are done are remembered (default 16,384). The oldest goes first. A
    /// stale reply about a request that is not remembered is [`Verdict::Unknown`].
    pub max_remembered: usize,
    /// How long they are remembered (default 60 s).
    pub remember_for: Duration,
    /// Wait this long for the producers' verdict before what was read is used. `None` (the default): use it
    /// at once, and recompute should a stale reply come. Only with producers that send confirmations.
    pub verdict_wait: Option<Duration>,
}

impl Default for ReadConfig {
    fn default() -> Self {
        ReadConfig {
            heartbeat_interval: Duration::from_secs(5),
            max_message_len: 64 << 10,
            max_id_len: 1 << 10,
            max_agent_len: 1 << 10,
            max_reads: 1 << 16,
            max_remembered: 1 << 14,
            remember_for: Duration::from_secs(60),
            verdict_wait: None,
        }
    }
}

/// A message to send.
#[must_use = "the producer keeps the blocks until it gets the message or the lease runs out"]
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outgoing {
    /// To whom.
    pub agent: Arc<str>,
    /// The bytes.
    pub message: Vec<u8>,
}

/// Why a read cannot wait. Nothing changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The messages cannot carry the id.
    #[error(transparent)]
    Unsendable(#[from] Unsendable),
    /// The id is longer than [`ReadConfig::max_id_len`], or than a heartbeat message has room for.
    #[error("the id has {len} bytes, the limit is {max}; shorten it or raise the limit")]
    IdTooLong {
        /// Its length in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The name is longer than [`ReadConfig::max_agent_len`].
    #[error("the agent name has {len} bytes, the limit is {max}")]
    AgentTooLong {
        /// Its length in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// This request is being read from this agent already.
    #[error("this request is being read from this agent; complete or cancel it first")]
    AlreadyWaiting,
    /// [`ReadConfig::max_reads`] are waiting.
    #[error("{max} reads are waiting, which is the limit; retry when some are done")]
    Full {
        /// The limit.
        max: usize,
    },
}

/// The answer of [`ReadTracker::completed`].
#[must_use = "it holds the message to send, and says whether what was read may be used"]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Completed {
    /// Send the message. The request is read; use it. A stale reply may still come.
    Use(Outgoing),
    /// Send the message. The request has other reads to do.
    MoreReads(Outgoing),
    /// Send the message. The request is read; do not use it until the verdict is in.
    AwaitVerdict {
        /// The completion message.
        message: Outgoing,
        /// Until when it is waited for: then [`ReadTracker::unanswered`] names the request.
        until: Timestamp,
    },
    /// A stale reply has come before: do not use it. The message, if there is one, tells this agent that it
    /// need not keep the blocks any longer.
    Discard(Option<Outgoing>),
    /// This had been completed before; nothing changed.
    Duplicate,
    /// Nobody waits for this request from this agent; nothing changed.
    Unknown,
}

/// The answer of [`ReadTracker::reply`]: what a producer's reply means.
#[must_use = "a stale reply that is ignored is an answer made of garbage"]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// **Discard what was read of this request, stop what uses it, and recompute it.** Said once for a
    /// request. Its blocks were not kept for it until it had read them.
    Recompute {
        /// The request.
        id: RequestId,
        /// How its lease ended.
        outcome: Outcome,
    },
    /// All reads of this request are confirmed, which was waited for: use it. Said once for a request.
    Use {
        /// The request.
        id: RequestId,
    },
    /// Confirmed; verdicts about other reads of this request are still to come.
    Pending,
    /// Nothing to do: this was said before, or does not matter any more, or it confirms a read that was
    /// not waited for.
    Settled,
    /// This request is not read from this agent; nothing changed.
    WrongAgent,
    /// Nothing is known of this request: it was never waited for, was cancelled, or is forgotten. If the
    /// outcome is not [`Completed`](Outcome::Completed) and the request is still being answered from what
    /// was read, it must be recomputed; to be told so, raise [`ReadConfig::max_remembered`] and
    /// [`ReadConfig::remember_for`].
    Unknown,
}

/// When something is due, and a number that tells apart what is due at the same time.
type Due = (Timestamp, u64);

struct Request {
    reads: Vec<Read>,
    phase: Phase,
}

struct Read {
    agent: Arc<str>,
    /// The completion has been given out, so no heartbeat is needed.
    sent: bool,
    confirmed: bool,
}

#[derive(Clone, Copy)]
enum Phase {
    /// Some read is not completed.
    Reading,
    /// All are; the verdict is waited for. In `awaiting` under this key.
    Awaiting(Due),
    /// In `remembered` under this key.
    Remembered { until: Due, recompute: bool },
}

/// The account of what a decode rank reads, of one owner.
///
/// ```
/// use kvlease::consumer::{Completed, ReadConfig, ReadTracker, Verdict};
/// use kvlease::wire::{self, Message};
/// use kvlease::{Outcome, Timestamp};
///
/// let mut reads = ReadTracker::new(ReadConfig::default());
/// reads.wait_for("cmpl-7", "prefill-0")?;
/// reads.wait_for("cmpl-8", "prefill-0")?;
///
/// // While they wait in the queue: one message per agent, every five seconds.
/// let heartbeats = reads.heartbeats(Timestamp::ZERO);
/// assert_eq!(&*heartbeats[0].agent, "prefill-0");
/// assert_eq!(heartbeats[0].message, b"HB:cmpl-7,cmpl-8");
/// assert_eq!(reads.next_deadline(), Some(Timestamp::from_secs(5)));
///
/// // Read: tell the producer.
/// let now = Timestamp::from_secs(1);
/// let Completed::Use(completion) = reads.completed("cmpl-7", "prefill-0", 1, now)? else { panic!() };
/// assert_eq!(completion.message, b"cmpl-7:1");
///
/// // But it was too late: the producer, asked to say so, does.
/// let Ok(Message::Stale(reply)) = wire::parse(b"KVLEASE_STALE:cmpl-7:expired") else { panic!() };
/// match reads.reply("prefill-0", reply, now) {
///     Verdict::Recompute { id, outcome } => assert_eq!((id.as_str(), outcome), ("cmpl-7", Outcome::Expired)),
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ReadTracker {
    config: ReadConfig,
    requests: HashMap<RequestId, Request>,
    /// Per agent, the requests of which it must be told that they wait. No set is empty.
    waiting: BTreeMap<Arc<str>, BTreeSet<RequestId>>,
    awaiting: BTreeMap<Due, RequestId>,
    remembered: BTreeMap<Due, RequestId>,
    /// Reads of requests that are not in `remembered`, and of those that are.
    live_reads: usize,
    remembered_reads: usize,
    next_heartbeat: Timestamp,
    next_seq: u64,
}

impl ReadTracker {
    /// A tracker of nothing yet.
    pub fn new(config: ReadConfig) -> Self {
        ReadTracker {
            config,
            requests: HashMap::new(),
            waiting: BTreeMap::new(),
            awaiting: BTreeMap::new(),
            remembered: BTreeMap::new(),
            live_reads: 0,
            remembered_reads: 0,
            next_heartbeat: Timestamp::ZERO,
            next_seq: 0,
        }
    }

    /// The request waits to be read from `agent`: keep its lease there, until it is
    /// [`completed`](Self::completed) or [cancelled](Self::cancel).
    ///
    /// A request that is read from several agents is registered with each, and before the first of them is
    /// completed. One that is done and only remembered begins a new life.
    ///
    /// # Errors
    ///
    /// [`WaitError`]; nothing changed.
    pub fn wait_for(&mut self, id: &str, agent: &str) -> Result<(), WaitError> {
        wire::check_id(id)?;
        let room = self.config.max_message_len.saturating_sub(wire::HEARTBEAT_PREFIX.len());
        let max = self.config.max_id_len.min(room);
        if id.len() > max {
            return Err(WaitError::IdTooLong { len: id.len(), max });
        }
        if agent.len() > self.config.max_agent_len {
            return Err(WaitError::AgentTooLong { len: agent.len(), max: self.config.max_agent_len });
        }
        let phase = self.requests.get(id).map(|request| request.phase);
        if let Some(Phase::Reading | Phase::Awaiting(_)) = phase {
            if self.read(id, agent).is_some() {
                return Err(WaitError::AlreadyWaiting);
            }
        }
        if self.live_reads >= self.config.max_reads {
            return Err(WaitError::Full { max: self.config.max_reads });
        }

        match phase {
            Some(Phase::Remembered { .. }) => drop(self.take(id)),
            Some(Phase::Awaiting(due)) => drop(self.awaiting.remove(&due)),
            Some(Phase::Reading) | None => {}
        }
        let agent = match self.waiting.get_key_value(agent) {
            Some((agent, _)) => Arc::clone(agent),
            None => Arc::from(agent),
        };
        self.waiting.entry(Arc::clone(&agent)).or_default().insert(id.into());
        let request = self
            .requests
            .entry(id.into())
            .or_insert_with(|| Request { reads: Vec::with_capacity(1), phase: Phase::Reading });
        request.phase = Phase::Reading;
        request.reads.push(Read { agent, sent: false, confirmed: false });
        self.live_reads += 1;
        Ok(())
    }

    /// The heartbeats that are due, at most once per interval: for each agent, as few messages as the limit
    /// on their length allows. Nothing if nothing waits.
    ///
    /// A heartbeat that gets lost is made good by the next one; there is no need to send it again.
    #[must_use = "what is not sent now is due again only after an interval"]
    pub fn heartbeats(&mut self, now: Timestamp) -> Vec<Outgoing> {
        self.forget_until(now);
        // If the clock has been set back, the next one is an interval from now, and not one from then.
        self.next_heartbeat = self.next_heartbeat.min(now + self.config.heartbeat_interval);
        let mut due = Vec::new();
        if self.waiting.is_empty() || now < self.next_heartbeat {
            return due;
        }
        self.next_heartbeat = now + self.config.heartbeat_interval;
        for (agent, ids) in &self.waiting {
            let mut message = Vec::new();
            for id in ids {
                if !message.is_empty() && message.len() + 1 + id.len() > self.config.max_message_len {
                    due.push(Outgoing { agent: Arc::clone(agent), message: std::mem::take(&mut message) });
                }
                let separator = if message.is_empty() { wire::HEARTBEAT_PREFIX } else { "," };
                message.extend_from_slice(separator.as_bytes());
                message.extend_from_slice(id.as_bytes());
            }
            due.push(Outgoing { agent: Arc::clone(agent), message });
        }
        due
    }

    /// The request has been read from `agent`, which `expected` consumers do. No more heartbeats for it;
    /// the answer has the message to send and says whether what was read may be used.
    ///
    /// Where the message rides on the transfer itself, write it with [`wire::write_completion`] when the
    /// transfer is posted, call this when it has ended, and do not send the message again. Call it before
    /// the replies that have arrived are handed to [`reply`](Self::reply).
    ///
    /// # Errors
    ///
    /// [`Unsendable::ZeroCount`] if `expected` is 0; nothing changed.
    pub fn completed(&mut self, id: &str, agent: &str, expected: u32, now: Timestamp) -> Result<Completed, Unsendable> {
        self.forget_until(now);
        let Some((phase, i)) = self.read(id, agent) else { return Ok(Completed::Unknown) };
        let Some(request) = self.requests.get_mut(id) else { return Ok(Completed::Unknown) };
        let recompute = matches!(phase, Phase::Remembered { recompute: true, .. });
        let read = &mut request.reads[i];
        if read.sent {
            return Ok(if recompute { Completed::Discard(None) } else { Completed::Duplicate });
        }
        let mut message = Vec::new();
        wire::write_completion(id, expected, &mut message)?;
        read.sent = true;
        let message = Outgoing { agent: Arc::clone(&read.agent), message };
        if recompute {
            return Ok(Completed::Discard(Some(message)));
        }
        let all_sent = request.reads.iter().all(|read| read.sent);
        self.stop_waiting(id, agent);
        if !all_sent {
            return Ok(Completed::MoreReads(message));
        }
        match self.config.verdict_wait {
            None => {
                self.remember(id, false, now);
                Ok(Completed::Use(message))
            }
            Some(wait) => {
                let due = self.due(now + wait);
                self.set_phase(id, Phase::Awaiting(due));
                self.awaiting.insert(due, id.into());
                Ok(Completed::AwaitVerdict { message, until: due.0 })
            }
        }
    }

    /// A stale reply, or a confirmation, that has arrived from `agent`.
    pub fn reply(&mut self, agent: &str, reply: StaleReply<'_>, now: Timestamp) -> Verdict {
        self.forget_until(now);
        let StaleReply { id, outcome } = reply;
        if !self.requests.contains_key(id) {
            return Verdict::Unknown;
        }
        let Some((phase, i)) = self.read(id, agent) else { return Verdict::WrongAgent };
        match (outcome, phase) {
            (_, Phase::Remembered { recompute: true, .. })
            | (Outcome::Completed, Phase::Remembered { recompute: false, .. }) => Verdict::Settled,
            (Outcome::Completed, Phase::Reading | Phase::Awaiting(_)) => self.confirm(id, i, now),
            (Outcome::Expired | Outcome::Aborted, Phase::Remembered { until, .. }) => {
                self.set_phase(id, Phase::Remembered { until, recompute: true });
                Verdict::Recompute { id: id.into(), outcome }
            }
            (Outcome::Expired | Outcome::Aborted, Phase::Reading | Phase::Awaiting(_)) => {
                self.remember(id, true, now);
                Verdict::Recompute { id: id.into(), outcome }
            }
        }
    }

    /// The requests whose verdict has not come in time, each named once. Whether to trust what was read of
    /// them is the caller's choice: the producer may be gone, or the verdict lost. A stale reply that still
    /// comes gives [`Verdict::Recompute`].
    #[must_use = "these requests wait to be used or recomputed, and are named once"]
    pub fn unanswered(&mut self, now: Timestamp) -> Vec<RequestId> {
        self.forget_until(now);
        let mut late = Vec::new();
        while let Some(entry) = self.awaiting.first_entry().filter(|entry| entry.key().0 <= now) {
            let id = entry.remove();
            self.remember(&id, false, now);
            late.push(id);
        }
        late
    }

    /// The request is given up: no more heartbeats, and a reply about it is [`Verdict::Unknown`]. Says
    /// whether it was known.
    ///
    /// The producers keep the blocks until the lease runs out. To let them go at once, send the message of
    /// [`completed`](Self::completed) to each before.
    pub fn cancel(&mut self, id: &str) -> bool {
        self.take(id).is_some()
    }

    /// The agent is gone: the requests that had still to be read from it, which must be recomputed. A reply
    /// about one of them is [`Verdict::Settled`].
    ///
    /// Those that were read, and await its verdict, become [`unanswered`](Self::unanswered) in time.
    #[must_use = "these requests cannot be read any more, and are named once"]
    pub fn agent_gone(&mut self, agent: &str, now: Timestamp) -> Vec<RequestId> {
        self.forget_until(now);
        let ids: Vec<_> = self.waiting.remove(agent).unwrap_or_default().into_iter().collect();
        for id in &ids {
            self.remember(id, true, now);
        }
        ids
    }

    /// When [`heartbeats`](Self::heartbeats) or [`unanswered`](Self::unanswered) will have something next;
    /// `None` if nothing waits.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let heartbeat = (!self.waiting.is_empty()).then_some(self.next_heartbeat);
        let verdict = self.awaiting.first_key_value().map(|(due, _)| due.0);
        heartbeat.into_iter().chain(verdict).min()
    }

    /// How many reads wait, or belong to a request that has others to do or awaits its verdict.
    pub fn reads(&self) -> usize {
        self.live_reads
    }

    /// How many reads of requests that are done are remembered.
    pub fn remembered(&self) -> usize {
        self.remembered_reads
    }

    fn confirm(&mut self, id: &str, i: usize, now: Timestamp) -> Verdict {
        let awaited = self.config.verdict_wait.is_some();
        let Some(request) = self.requests.get_mut(id) else { return Verdict::Unknown };
        let read = &mut request.reads[i];
        // What this life has not asked for is about an earlier one.
        if !awaited || !read.sent || read.confirmed {
            return Verdict::Settled;
        }
        read.confirmed = true;
        if !request.reads.iter().all(|read| read.confirmed) {
            return Verdict::Pending;
        }
        self.remember(id, false, now);
        Verdict::Use { id: id.into() }
    }

    /// The phase of the request, and which of its reads is the one from `agent`.
    fn read(&self, id: &str, agent: &str) -> Option<(Phase, usize)> {
        let request = self.requests.get(id)?;
        let i = request.reads.iter().position(|read| *read.agent == *agent)?;
        Some((request.phase, i))
    }

    fn set_phase(&mut self, id: &str, phase: Phase) {
        if let Some(request) = self.requests.get_mut(id) {
            request.phase = phase;
        }
    }

    fn due(&mut self, at: Timestamp) -> Due {
        self.next_seq += 1;
        (at, self.next_seq)
    }

    fn stop_waiting(&mut self, id: &str, agent: &str) {
        if let Some(ids) = self.waiting.get_mut(agent) {
            ids.remove(id);
            if ids.is_empty() {
                self.waiting.remove(agent);
            }
        }
    }

    /// Removes the request from wherever it is.
    fn take(&mut self, id: &str) -> Option<(RequestId, Request)> {
        let (id, request) = self.requests.remove_entry(id)?;
        match request.phase {
            Phase::Reading => {
                for read in request.reads.iter().filter(|read| !read.sent) {
                    self.stop_waiting(&id, &read.agent);
                }
            }
            Phase::Awaiting(due) => drop(self.awaiting.remove(&due)),
            Phase::Remembered { until, .. } => {
                self.remembered.remove(&until);
                self.remembered_reads -= request.reads.len();
                return Some((id, request));
            }
        }
        self.live_reads -= request.reads.len();
        Some((id, request))
    }

    /// The request is over; keeps it in memory, room permitting.
    fn remember(&mut self, id: &str, recompute: bool, now: Timestamp) {
        let Some((id, mut request)) = self.take(id) else { return };
        let until = self.due(now + self.config.remember_for);
        request.phase = Phase::Remembered { until, recompute };
        self.remembered_reads += request.reads.len();
        self.remembered.insert(until, id.clone());
        self.requests.insert(id, request);
        while self.remembered_reads > self.config.max_remembered {
            let Some((_, oldest)) = self.remembered.pop_first() else { return };
            self.take(&oldest);
        }
    }

    fn forget_until(&mut self, now: Timestamp) {
        while let Some(entry) = self.remembered.first_entry().filter(|entry| entry.key().0 <= now) {
            let id = entry.remove();
            self.take(&id);
        }
    }
}

impl std::fmt::Debug for ReadTracker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadTracker")
            .field("reads", &self.live_reads)
            .field("remembered", &self.remembered_reads)
            .field("next_deadline", &self.next_deadline())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every index and counter agrees with `requests`.
    fn check(tracker: &ReadTracker) {
        let (mut live, mut remembered, mut awaiting, mut over) = (0, 0, 0, 0);
        for (id, request) in &tracker.requests {
            let waits = |read: &Read| tracker.waiting.get(&read.agent).is_some_and(|ids| ids.contains(id));
            match request.phase {
                Phase::Reading => {
                    live += request.reads.len();
                    assert!(request.reads.iter().any(|read| !read.sent));
                    assert!(request.reads.iter().all(|read| waits(read) != read.sent));
                }
                Phase::Awaiting(due) => {
                    live += request.reads.len();
                    awaiting += 1;
                    assert!(request.reads.iter().all(|read| read.sent && !waits(read)));
                    assert_eq!(tracker.awaiting.get(&due), Some(id));
                }
                Phase::Remembered { until, .. } => {
                    remembered += request.reads.len();
                    over += 1;
                    assert!(!request.reads.iter().any(waits));
                    assert_eq!(tracker.remembered.get(&until), Some(id));
                }
            }
        }
        let waiting: usize = tracker.waiting.values().map(BTreeSet::len).sum();
        let unsent = |r: &Request| match r.phase {
            Phase::Reading => r.reads.iter().filter(|read| !read.sent).count(),
            _ => 0,
        };
        assert_eq!(waiting, tracker.requests.values().map(unsent).sum());
        assert!(tracker.waiting.values().all(|ids| !ids.is_empty()));
        assert_eq!((live, remembered), (tracker.live_reads, tracker.remembered_reads));
        assert_eq!((awaiting, over), (tracker.awaiting.len(), tracker.remembered.len()));
        assert_eq!(tracker.requests.len(), tracker.requests.values().filter(|r| !r.reads.is_empty()).count());
        assert!(live <= tracker.config.max_reads && remembered <= tracker.config.max_remembered);
    }

    #[test]
    fn its_indices_agree_after_any_calls() {
        use proptest::prelude::*;
        use proptest::test_runner::{Config, TestRunner};

        let op = (0..7u8, 0..6u8, 0..3u8, 0..3u8, 0..3_000u64);
        let strategy = (any::<bool>(), prop::collection::vec(op, 0..200));
        let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(400) });
        runner
            .run(&strategy, |(wait, ops)| {
                let mut tracker = ReadTracker::new(ReadConfig {
                    max_reads: 8,
                    max_remembered: 5,
                    remember_for: Duration::from_secs(10),
                    verdict_wait: wait.then_some(Duration::from_secs(2)),
                    ..ReadConfig::default()
                });
                let mut now = Timestamp::ZERO;
                for (op, id, agent, outcome, dt) in ops {
                    now = now + Duration::from_millis(dt);
                    let (id, agent) = (format!("r{id}"), format!("a{agent}"));
                    match op {
                        0 | 1 => drop(tracker.wait_for(&id, &agent)),
                        2 => drop(tracker.completed(&id, &agent, 1, now)),
                        3 => {
                            let outcome =
                                [Outcome::Completed, Outcome::Expired, Outcome::Aborted][usize::from(outcome)];
                            drop(tracker.reply(&agent, StaleReply { id: &id, outcome }, now));
                        }
                        4 => drop(tracker.unanswered(now)),
                        5 if outcome == 0 => drop(tracker.agent_gone(&agent, now)),
                        5 => drop(tracker.cancel(&id)),
                        _ => drop(tracker.heartbeats(now)),
                    }
                    check(&tracker);
                }
                // At rest nothing is left.
                for id in 0..6 {
                    tracker.cancel(&format!("r{id}"));
                }
                check(&tracker);
                prop_assert!(tracker.requests.is_empty() && tracker.next_deadline().is_none());
                Ok(())
            })
            .unwrap();
    }
}
