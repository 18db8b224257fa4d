//! From a transport to the tracker: one poll, one batch. See [`Pump`].

mod inbox;
mod log;

use crate::transport::{NotificationSink, NotificationSource, TransportError};
use crate::wire::{self, Heartbeat, Malformed, Message, Parser, StaleReply};
use crate::{
    ConsumerId, ConsumerRegistry, Ended, Notification, Notified, Outcome, Release, RenewCounts, Replies, RequestId,
    SendTracker, Timestamp,
};
use inbox::Inbox;
#[cfg(feature = "tracing")]
use log::short;
use log::{Limiter, limited};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::ops::AddAssign;
use std::sync::Arc;
use std::time::Duration;

/// How a [`Pump`] works.
///
/// ```
/// use kvlease::pump::PumpConfig;
///
/// let config = PumpConfig { work_limit: 4_096, ..PumpConfig::default() };
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PumpConfig {
    /// Until how long after now a heartbeat renews a lease (default 30 s).
    pub lease: Duration,
    /// How much one step does at most: each message counts as one, a heartbeat as its ids (default: no limit; at
    /// least 1). What is left waits for the next step, in order.
    pub work_limit: usize,
    /// How many bytes may wait (default 256 MiB). A message that has no room is dropped and counted; its lease runs
    /// out instead. As long as more than [`work_limit`](Self::work_limit) messages wait, the source is left alone.
    pub waiting_limit: usize,
    /// Which messages are understood. What is longer than its limit is never stored.
    pub parser: Parser,
    /// Whether the expected count in a completion message is believed (default), as by
    /// [`notify_expecting`](SendTracker::notify_expecting). If not, as by [`notify`](SendTracker::notify): for
    /// connectors that mean something else by it (see [`Completion::expected`](wire::Completion::expected)).
    pub expected_from_message: bool,
    /// An agent that has been silent for so long, and with which there was no
    /// [handshake](ConsumerRegistry::handshake), is forgotten (default 10 minutes; `None`: never). Should it come back
    /// it is a new consumer, so let it be longer than leases and tombstones live.
    pub forget_after: Option<Duration>,
    /// Of each kind of warning, one in this time is logged, with the number that was not (default 5 s).
    pub log_every: Duration,
}

impl Default for PumpConfig {
    fn default() -> Self {
        PumpConfig {
            lease: Duration::from_secs(30),
            work_limit: usize::MAX,
            waiting_limit: 256 << 20,
            parser: Parser::new(),
            expected_from_message: true,
            forget_after: Some(Duration::from_secs(600)),
            log_every: Duration::from_secs(5),
        }
    }
}

/// Declares a struct of counts, and its sum.
macro_rules! counts {
    ($(#[$outer:meta])* $name:ident { $($(#[$doc:meta])* $field:ident),* $(,)? }) => {
        $(#[$outer])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[non_exhaustive]
        pub struct $name { $($(#[$doc])* pub $field: u64),* }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                $(self.$field += other.$field;)*
            }
        }

        impl $name {
            fn sum(&self) -> u64 {
                0 $(+ self.$field)*
            }
        }
    };
}

counts!(
    /// Completion messages, by what they were found to be: the classes of [`Notified`].
    CompletionCounts {
        /// Counted; others are still to come.
        counted,
        /// The last one of a lease.
        completed,
        /// Of a consumer that had notified before.
        duplicate,
        /// The same, and the lease had ended.
        late_duplicate,
        /// Before `track`; kept.
        early,
        /// After the lease had completed without this consumer.
        late_completed,
        /// After the lease had expired.
        late_expired,
        /// After the lease had been aborted.
        late_aborted,
        /// Nothing is known of the id, and nothing kept.
        unknown,
        /// Counted, but the expected count in the message is not the one that stands.
        conflict,
        /// Not countable.
        refused,
    }
);

impl CompletionCounts {
    fn add<P>(&mut self, notified: &Notified<P>) {
        let count = match notified {
            Notified::Counted { .. } => &mut self.counted,
            Notified::Completed(_) => &mut self.completed,
            Notified::Duplicate { .. } => &mut self.duplicate,
            Notified::LateDuplicate(_) => &mut self.late_duplicate,
            Notified::Early => &mut self.early,
            Notified::Late(Outcome::Completed) => &mut self.late_completed,
            Notified::Late(Outcome::Expired) => &mut self.late_expired,
            Notified::Late(Outcome::Aborted) => &mut self.late_aborted,
            Notified::Unknown => &mut self.unknown,
            Notified::ExpectedConflict { .. } => &mut self.conflict,
            Notified::Refused(_) => &mut self.refused,
        };
        *count += 1;
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.sum()
    }
}

counts!(
    /// Messages that are none, by what is wrong with them: the classes of [`Malformed`].
    MalformedCounts {
        /// No bytes at all.
        empty,
        /// Longer than allowed.
        too_long,
        /// Not UTF-8.
        not_utf8,
        /// No colon.
        no_colon,
        /// Nothing before the colon.
        empty_id,
        /// The count is no number.
        bad_count,
        /// The count is out of range.
        count_too_large,
        /// The count is zero.
        zero_count,
        /// A stale reply without an outcome.
        bad_outcome,
    }
);

impl MalformedCounts {
    fn add(&mut self, malformed: Malformed) {
        let count = match malformed {
            Malformed::Empty => &mut self.empty,
            Malformed::TooLong { .. } => &mut self.too_long,
            Malformed::NotUtf8 { .. } => &mut self.not_utf8,
            Malformed::NoColon => &mut self.no_colon,
            Malformed::EmptyId => &mut self.empty_id,
            Malformed::BadCount => &mut self.bad_count,
            Malformed::CountTooLarge => &mut self.count_too_large,
            Malformed::ZeroCount => &mut self.zero_count,
            Malformed::BadOutcome => &mut self.bad_outcome,
        };
        *count += 1;
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.sum()
    }
}

counts!(
    /// Ids in heartbeats, by what they did: the classes of [`Renewed`](crate::Renewed).
    HeartbeatCounts {
        /// Heartbeat messages.
        messages,
        /// Leases that now run longer.
        extended,
        /// Leases that ran at least that long.
        unchanged,
        /// Before `track`; kept.
        early,
        /// After the lease had ended.
        late,
        /// Nothing is known of the id, and nothing kept.
        unknown,
        /// The deadline would be out of range.
        refused,
    }
);

impl HeartbeatCounts {
    fn add(&mut self, renewed: RenewCounts) {
        let RenewCounts { extended, unchanged, early, late, unknown, refused } = renewed;
        self.extended += extended as u64;
        self.unchanged += unchanged as u64;
        self.early += early as u64;
        self.late += late as u64;
        self.unknown += unknown as u64;
        self.refused += refused as u64;
    }

    /// Ids, whatever they did.
    pub fn ids(&self) -> u64 {
        self.sum() - self.messages
    }
}

/// What one step did, or all of them.
///
/// At any time, `received` is the sum of `completions`, `malformed`, `heartbeats.messages`, `replies_received`,
/// `opaque`, `strangers`, `dropped` and what waits (a heartbeat that is done in part has been counted, and waits).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Messages that the source handed out.
    pub received: u64,
    /// Completions, by class.
    pub completions: CompletionCounts,
    /// Junk, by class.
    pub malformed: MalformedCounts,
    /// Heartbeats, and the ids in them by class.
    pub heartbeats: HeartbeatCounts,
    /// Stale replies that other producers sent to this agent.
    pub replies_received: u64,
    /// Messages of another protocol.
    pub opaque: u64,
    /// Messages from agents that the registry has no room for.
    pub strangers: u64,
    /// Messages that found no room to wait.
    pub dropped: u64,
    /// Leases that completed while a transfer was in flight: their release comes with its end.
    pub after_transfer: u64,
    /// Replies sent that say that a read was stale.
    pub sent_stale: u64,
    /// Replies sent that say that a read was in time.
    pub sent_good: u64,
    /// Replies that could not be sent.
    pub unsent: u64,
    /// Silent agents that were forgotten.
    pub forgotten: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.received += other.received;
        self.completions += other.completions;
        self.malformed += other.malformed;
        self.heartbeats += other.heartbeats;
        self.replies_received += other.replies_received;
        self.opaque += other.opaque;
        self.strangers += other.strangers;
        self.dropped += other.dropped;
        self.after_transfer += other.after_transfer;
        self.sent_stale += other.sent_stale;
        self.sent_good += other.sent_good;
        self.unsent += other.unsent;
        self.forgotten += other.forgotten;
    }
}

/// What one [`step`](Pump::step) brought.
#[must_use = "the payloads are handed out once: free their blocks"]
#[derive(PartialEq, Debug)]
#[non_exhaustive]
pub struct Pumped<P> {
    /// Leases that ended, to be freed.
    pub released: Vec<Release<P>>,
    /// Stale replies from other producers, for the [`ReadTracker`](crate::consumer::ReadTracker) of a worker that is
    /// both.
    pub replies: Vec<Reply>,
    /// Messages of another protocol (push registrations, say), to be handed on.
    pub opaque: Vec<OpaqueMessage>,
    /// Agents to which a reply could not be sent, each once. If one is gone for good, say so by
    /// [`agents_gone`](Pump::agents_gone).
    pub unreachable: Vec<Arc<str>>,
    /// Why the poll failed, if it did. What it had brought before was handled all the same. Call again when you like:
    /// nothing is lost but what the transport has lost.
    pub poll_error: Option<TransportError>,
    /// How many messages wait for the next step.
    pub waiting: usize,
    /// What was done, counted.
    pub counts: Counts,
}

/// A stale reply that has arrived.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// The producer that sent it.
    pub agent: Arc<str>,
    /// The request.
    pub id: RequestId,
    /// How its lease ended.
    pub outcome: Outcome,
}

impl Reply {
    /// As [`ReadTracker::reply`](crate::consumer::ReadTracker::reply) takes it.
    pub fn as_message(&self) -> StaleReply<'_> {
        StaleReply { id: &self.id, outcome: self.outcome }
    }
}

/// A message of another protocol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpaqueMessage {
    /// Who sent it.
    pub agent: Arc<str>,
    /// The message, whole.
    pub message: Vec<u8>,
}

/// Turns what has arrived at a transport into calls of a [`SendTracker`], once per engine step: parses, notifies and
/// renews in batches, answers stale reads, and hands out what was released.
///
/// What it guarantees:
///
/// - **Nothing a peer sends does more than be counted**, or what a good message does. No bytes panic, and no message
///   changes what another one does.
/// - **Bounded work** on request ([`PumpConfig::work_limit`]). What is left waits here, in order, in bounded memory.
///   A heartbeat of thousands of ids is done in parts, too.
/// - **Nobody is answered who has not asked for it**, by [`ConsumerRegistry::handshake`].
/// - Messages are handled in the order in which the source has handed them out.
///
/// It has one owner. The registry may be shared with the thread that shakes hands, and the tracker with everybody.
///
/// Let a [`sweep`](SendTracker::sweep) follow it in each step: then a message that has arrived wins over an expiry
/// that is due. Where a limit leaves messages waiting, their leases may run out meanwhile; `waiting` tells.
///
/// ```
/// use kvlease::pump::PumpConfig;
/// use kvlease::transport::NotificationSink;
/// use kvlease::transport::in_process::{Faults, Network};
/// use kvlease::{ConsumerRegistry, Pump, SendTracker, Terms, Timestamp};
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// let network = Network::new(Faults::default(), || Timestamp::ZERO)?;
/// let mut prefill = network.agent("prefill-0");
/// let decode = network.agent("decode-0");
///
/// let tracker = SendTracker::new();
/// let mut pump = Pump::new(PumpConfig::default(), Arc::new(ConsumerRegistry::new()));
/// let now = Timestamp::ZERO;
/// let terms = Terms::until(now + Duration::from_secs(30)).consumers(1);
/// tracker.track("cmpl-7", terms, vec![17, 18, 19], now).expect("a new id");
///
/// // Junk from a peer, and then the message that counts.
/// decode.send("prefill-0", b"\xff\xfe")?;
/// decode.send("prefill-0", b"cmpl-7:1")?;
///
/// // The engine step. The same with the real NIXL: only source and sink are others.
/// let sink = prefill.sender();
/// let pumped = pump.step(&tracker, &mut prefill, &sink, now);
/// for release in pumped.released.into_iter().chain(tracker.sweep(now).released) {
///     assert_eq!(release.payload, [17, 18, 19]); // free them
/// }
/// assert_eq!((pumped.counts.completions.completed, pumped.counts.malformed.not_utf8), (1, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Pump {
    config: PumpConfig,
    agents: Arc<ConsumerRegistry>,
    inbox: Inbox,
    /// When each agent was last heard.
    heard: HashMap<ConsumerId, Timestamp>,
    next_forgetting: Timestamp,
    totals: Counts,
    log: Limiter,
}

impl Pump {
    /// A pump that knows agents by this registry.
    pub fn new(config: PumpConfig, agents: Arc<ConsumerRegistry>) -> Self {
        Pump {
            log: Limiter::new(config.log_every),
            config,
            agents,
            inbox: Inbox::default(),
            heard: HashMap::new(),
            next_forgetting: Timestamp::ZERO,
            totals: Counts::default(),
        }
    }

    /// The registry that it was made with.
    pub fn agents(&self) -> &Arc<ConsumerRegistry> {
        &self.agents
    }

    /// How many messages wait for the next step.
    pub fn waiting(&self) -> usize {
        self.inbox.len()
    }

    /// What all steps have done so far.
    pub fn totals(&self) -> Counts {
        self.totals
    }

    /// One step: polls once, unless enough waits, handles what has come, and answers.
    ///
    /// Does not block, as far as source and sink do not. Errors are in what it returns: there is always something
    /// beside them.
    pub fn step<P: Send + 'static>(
        &mut self,
        tracker: &SendTracker<P>,
        source: &mut (impl NotificationSource + ?Sized),
        sink: &(impl NotificationSink + ?Sized),
        now: Timestamp,
    ) -> Pumped<P> {
        let mut counts = Counts::default();
        let poll_error = self.poll(source, now, &mut counts).err();
        let mut pumped = Pumped {
            released: Vec::new(),
            replies: Vec::new(),
            opaque: Vec::new(),
            unreachable: Vec::new(),
            poll_error,
            waiting: 0,
            counts,
        };
        self.handle(tracker, sink, now, &mut pumped);
        self.forget_the_silent(now, &mut pumped.counts);
        pumped.waiting = self.inbox.len();
        self.totals += pumped.counts;
        pumped
    }

    /// Forgets agents that are gone, and ends, as expired, the leases that wait for their decode engine: name all its
    /// agents. See [`SendTracker::expire_consumers`].
    #[must_use = "the payloads are handed out once: free their blocks"]
    pub fn agents_gone<P: Send + 'static>(
        &mut self,
        names: &[&str],
        tracker: &SendTracker<P>,
        now: Timestamp,
    ) -> Vec<Release<P>> {
        let gone: Vec<ConsumerId> = names.iter().filter_map(|name| self.agents.forget(name)).collect();
        for consumer in &gone {
            self.heard.remove(consumer);
        }
        self.inbox.ask_for_senders_again();
        if gone.is_empty() { Vec::new() } else { tracker.expire_consumers(&gone, now) }
    }

    /// Takes in what the source has, unless a step's work waits already.
    fn poll(
        &mut self,
        source: &mut (impl NotificationSource + ?Sized),
        now: Timestamp,
        counts: &mut Counts,
    ) -> Result<(), TransportError> {
        let Pump { config, agents, inbox, heard, log, .. } = self;
        if inbox.len() >= config.work_limit.max(1) {
            return Ok(());
        }
        inbox.ask_for_senders_again();
        let polled = source.poll(&mut |agent, message| {
            counts.received += 1;
            let consumer = match inbox.sender(agent, agents) {
                Ok((consumer, another)) => {
                    if another {
                        heard.insert(consumer, now);
                    }
                    consumer
                }
                Err(_reason) => {
                    counts.strangers += 1;
                    limited!(log, Stranger, now, agent = short(agent), reason = %_reason, "message from a stranger");
                    return;
                }
            };
            if let Some(malformed) = config.parser.too_long(message) {
                counts.malformed.add(malformed);
                limited!(log, Malformed, now, agent = short(agent), reason = %malformed, "malformed message");
            } else if !inbox.push(consumer, message, config.waiting_limit) {
                counts.dropped += 1;
                limited!(log, Dropped, now, agent = short(agent), len = message.len(), "no room for a message");
            }
        });
        polled.map(drop).inspect_err(|_error| limited!(log, Poll, now, error = %_error, "the poll failed"))
    }

    /// Handles what waits, up to the limit, and answers.
    fn handle<P: Send + 'static>(
        &mut self,
        tracker: &SendTracker<P>,
        sink: &(impl NotificationSink + ?Sized),
        now: Timestamp,
        pumped: &mut Pumped<P>,
    ) {
        let Pump { config, agents, inbox, log, .. } = self;
        let mut budget = config.work_limit.max(1);
        let mut answers = Vec::new();
        while budget > 0 && inbox.len() > 0 {
            // Completions, up to the next heartbeat, are one batch. The batch asks for messages and gives results
            // in turn, so what both need is in cells.
            let met = RefCell::new((&mut *pumped, &mut *log));
            let mut run = Run { inbox, taken: 0, budget, heartbeat: None, config, agents, met: &met, now };
            tracker.notify_batch(&mut run, now, |of, notified| {
                let (pumped, log) = &mut *met.borrow_mut();
                pumped.counts.completions.add(&notified);
                warn(&notified, of, agents, log, now);
                let verdict = notified.verdict();
                if let Some(verdict) = verdict.filter(|verdict| takes(agents.replies(of.consumer), *verdict)) {
                    answers.push(Answer { to: of.consumer, id: of.id.into(), verdict });
                }
                if let Notified::Completed(Ended::AfterTransfer)
                | Notified::ExpectedConflict { ended: Some(Ended::AfterTransfer), .. } = &notified
                {
                    pumped.counts.after_transfer += 1;
                }
                pumped.released.extend(notified.release());
            });
            let Run { taken, budget: left, heartbeat, .. } = run;
            budget = left;
            let counts = &mut pumped.counts.heartbeats;
            let rest = heartbeat.filter(|_| budget > 0).map(|(consumer, heartbeat)| {
                let (mut ids, mut done) = (heartbeat.ids(), 0);
                let some = ids.by_ref().take(budget).inspect(|_| done += 1);
                counts.add(tracker.renew_batch(some, now + config.lease, Some(consumer), now));
                // One without ids is work, too.
                budget -= done.max(1);
                let all_done = ids.next().is_none();
                (!all_done).then(|| heartbeat.rest_after(done).len())
            });
            inbox.remove(taken);
            match rest {
                None => {}
                Some(Some(rest)) => inbox.shorten_heartbeat(rest),
                Some(None) => {
                    counts.messages += 1;
                    inbox.remove(1);
                }
            }
        }
        self.answer(answers, sink, now, pumped);
    }

    fn answer<P>(
        &mut self,
        answers: Vec<Answer>,
        sink: &(impl NotificationSink + ?Sized),
        now: Timestamp,
        pumped: &mut Pumped<P>,
    ) {
        let Pump { agents, log, .. } = self;
        let counts = &mut pumped.counts;
        let mut message = Vec::new();
        for Answer { to, id, verdict } in answers {
            // Forgotten meanwhile, or found unreachable just now.
            let Some(agent) = agents.name_of(to).filter(|agent| !pumped.unreachable.contains(agent)) else {
                counts.unsent += 1;
                continue;
            };
            message.clear();
            let sent = match wire::write_stale_reply(&id, verdict, &mut message) {
                Ok(()) => sink.send(&agent, &message),
                // Not an id that a completion can have had.
                Err(_) => continue,
            };
            match sent {
                Ok(()) if verdict == Outcome::Completed => counts.sent_good += 1,
                Ok(()) => counts.sent_stale += 1,
                Err(error) => {
                    counts.unsent += 1;
                    limited!(log, Unreachable, now, agent = short(&agent), error = %error, "a reply could not be sent");
                    if error != TransportError::Closed {
                        pumped.unreachable.push(agent);
                    }
                }
            }
        }
    }

    /// Forgets agents that nobody has shaken hands with, and that have not been heard for long.
    fn forget_the_silent(&mut self, now: Timestamp, counts: &mut Counts) {
        let Some(after) = self.config.forget_after else { return };
        // If the clock has been set back, the next look is not long off.
        self.next_forgetting = self.next_forgetting.min(now + after / 4);
        if now < self.next_forgetting {
            return;
        }
        self.next_forgetting = now + after / 4;
        let agents = &self.agents;
        self.heard.retain(|&consumer, &mut heard| {
            if now - heard < after {
                return true;
            }
            let Some(name) = agents.name_of(consumer) else { return false };
            // Of these, the connector knows when they are gone.
            if agents.has_shaken_hands(consumer) {
                return true;
            }
            counts.forgotten += u64::from(agents.forget(&name).is_some());
            false
        });
    }
}

impl fmt::Debug for Pump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pump")
            .field("config", &self.config)
            .field("waiting", &self.inbox.len())
            .field("totals", &self.totals)
            .finish_non_exhaustive()
    }
}

/// What a consumer is to be told of a request.
struct Answer {
    to: ConsumerId,
    id: RequestId,
    verdict: Outcome,
}

/// Whether a peer that takes these replies is sent this one.
fn takes(replies: Replies, verdict: Outcome) -> bool {
    match replies {
        Replies::None => false,
        Replies::Stale => verdict != Outcome::Completed,
        Replies::All => true,
    }
}

/// What ought to be seen of a completion's result.
fn warn<P>(notified: &Notified<P>, of: Notification<'_>, agents: &ConsumerRegistry, log: &mut Limiter, now: Timestamp) {
    let _agent = || agents.name_of(of.consumer).map(|name| name.to_string()).unwrap_or_default();
    match notified {
        Notified::Late(_outcome) => limited!(
            log, Stale, now, id = short(of.id), agent = short(&_agent()), outcome = %_outcome,
            "a read was over after its lease"
        ),
        Notified::ExpectedConflict { claimed: _claimed, stands: _stands, .. } => limited!(
            log,
            Conflict,
            now,
            id = short(of.id),
            agent = short(&_agent()),
            claimed = *_claimed,
            stands = *_stands,
            "the expected count is another one"
        ),
        Notified::Refused(_reason) => limited!(
            log, Uncountable, now, id = short(of.id), agent = short(&_agent()), reason = %_reason,
            "a completion cannot be counted"
        ),
        Notified::Unknown => limited!(
            log,
            Uncountable,
            now,
            id = short(of.id),
            agent = short(&_agent()),
            reason = "unknown request",
            "a completion cannot be counted"
        ),
        _ => {}
    }
}

/// What waits, message by message, as far as it goes into one batch: hands out completions, does everything else
/// itself, and ends at a heartbeat, at the end, or when the budget is used up.
struct Run<'a, 'b, 'c, P> {
    inbox: &'a Inbox,
    taken: usize,
    budget: usize,
    /// Where it ended, if that was at one; not taken.
    heartbeat: Option<(ConsumerId, Heartbeat<'a>)>,
    config: &'a PumpConfig,
    agents: &'a ConsumerRegistry,
    met: &'b RefCell<(&'c mut Pumped<P>, &'c mut Limiter)>,
    now: Timestamp,
}

impl<'a, P> Iterator for Run<'a, '_, '_, P> {
    type Item = Notification<'a>;

    fn next(&mut self) -> Option<Notification<'a>> {
        while self.budget > 0 {
            let (consumer, bytes) = self.inbox.get(self.taken)?;
            let message = self.config.parser.parse(bytes);
            if let Ok(Message::Heartbeat(heartbeat)) = message {
                self.heartbeat = Some((consumer, heartbeat));
                return None;
            }
            self.taken += 1;
            self.budget -= 1;
            if let Ok(Message::Completion(done)) = message {
                let expected = self.config.expected_from_message.then_some(done.expected);
                return Some(Notification { id: done.id, consumer, expected });
            }
            let (pumped, log) = &mut *self.met.borrow_mut();
            let name = || self.agents.name_of(consumer).unwrap_or_default();
            match message {
                Ok(Message::Completion(_) | Message::Heartbeat(_)) => {}
                Ok(Message::Stale(StaleReply { id, outcome })) => {
                    pumped.counts.replies_received += 1;
                    pumped.replies.push(Reply { agent: name(), id: id.into(), outcome });
                }
                Ok(Message::Opaque(message)) => {
                    pumped.counts.opaque += 1;
                    pumped.opaque.push(OpaqueMessage { agent: name(), message: message.to_vec() });
                }
                Err(malformed) => {
                    pumped.counts.malformed.add(malformed);
                    limited!(
                        log, Malformed, self.now, agent = short(&name()), reason = %malformed, "malformed message"
                    );
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Timestamp;
    use crate::transport::in_process::{Faults, Network};

    #[test]
    fn those_who_are_gone_take_no_memory_even_where_nobody_is_forgotten_for_silence() {
        let network = Network::new(Faults::default(), || Timestamp::ZERO).unwrap();
        let (mut prefill, tracker) = (network.agent("prefill-0"), SendTracker::<()>::new());
        let sink = prefill.sender();
        let config = PumpConfig { forget_after: None, ..PumpConfig::default() };
        let mut pump = Pump::new(config, Arc::new(ConsumerRegistry::new()));
        for n in 0..100 {
            let name = format!("decode-{n}");
            let decode = network.agent(&name);
            decode.send("prefill-0", b"cmpl-7:1").unwrap();
            let _ = pump.step(&tracker, &mut prefill, &sink, Timestamp::ZERO);
            assert_eq!((pump.heard.len(), pump.agents.len()), (1, 1));
            assert!(pump.agents_gone(&[&name], &tracker, Timestamp::ZERO).is_empty());
            assert_eq!((pump.heard.len(), pump.agents.len()), (0, 0));
        }
    }
}
