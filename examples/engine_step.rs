//! A prefill engine that hands requests over, step by step: one thread, one call per step.
//!
//! ```sh
//! cargo run --example engine_step
//! ```
//!
//! Three requests, and what becomes of each: one is read by both its ranks, one waits in a queue and is kept by
//! heartbeats, one is read too late and runs out. The engine sleeps until something is due. Time is the program's own,
//! so it takes no time to run, and goes the same way each time.

use kvlease::transport::in_process::{Agent, Faults, Network};
use kvlease::transport::{NotificationSink, NotificationSource, TransportError};
use kvlease::wire::{self, Message};
use kvlease::{ConsumerRegistry, Notification, Notified, Outcome, Release, SendTracker, Terms, Timestamp, Tracked};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// From `track`, and from each heartbeat.
const LEASE: Duration = Duration::from_secs(30);
/// The engine looks up at least this often, for messages do not wake it.
const LONGEST_IDLE: Duration = Duration::from_secs(5);

/// The ids of the blocks that a request fills. What frees them is the allocator of the engine.
type Blocks = Vec<u32>;

/// All that an engine needs to hand requests over.
struct Handoff<S> {
    tracker: SendTracker<Blocks>,
    agents: ConsumerRegistry,
    /// Where messages of the decode side come from, and where verdicts for it go.
    source: S,
    inbox: Vec<(String, Vec<u8>)>,
}

impl<S: NotificationSource + NotificationSink> Handoff<S> {
    fn new(source: S) -> Self {
        Handoff { tracker: SendTracker::new(), agents: ConsumerRegistry::new(), source, inbox: Vec::new() }
    }

    /// The prefill of a request is done: keep its blocks for `ranks` readers. Blocks that come back at once are free.
    fn hand_over(&self, id: &str, ranks: u32, blocks: Blocks, now: Timestamp) -> Option<Blocks> {
        let terms = Terms::until(now + LEASE).consumers(ranks).weight(blocks.len() as u32);
        match self.tracker.track(id, terms, blocks, now) {
            Ok(Tracked::Leased) => None,
            Ok(Tracked::Ended(release)) => Some(release.payload),
            Err(refused) => {
                println!("{:>7}  {id} is refused: {}", seconds(now), refused.reason);
                Some(refused.payload)
            }
        }
    }

    /// Once per engine step: what has come in, and then what has run out.
    fn step(&mut self, now: Timestamp, mut free: impl FnMut(Release<Blocks>)) -> Result<(), TransportError> {
        let inbox = &mut self.inbox;
        inbox.clear();
        // What was handed over before an error counts, and leases run out whatever the transport does.
        let polled = self.source.poll(&mut |agent, bytes| inbox.push((agent.to_owned(), bytes.to_owned())));

        // One poll is one batch for the tracker. Which message asked is kept beside it, to be answered.
        let (mut completions, mut senders) = (Vec::new(), Vec::new());
        for (agent, bytes) in inbox.iter() {
            // Past its limit the registry refuses names, which peers choose.
            let Ok(consumer) = self.agents.intern(agent) else { continue };
            match wire::parse(bytes) {
                Ok(Message::Completion(done)) => {
                    completions.push(Notification { id: done.id, consumer, expected: Some(done.expected) });
                    senders.push(agent);
                }
                Ok(Message::Heartbeat(heartbeat)) => {
                    _ = self.tracker.renew_batch(heartbeat.ids(), now + LEASE, Some(consumer), now);
                }
                Ok(_) => {}
                Err(malformed) => println!("{:>7}  from {agent}: {malformed}", seconds(now)),
            }
        }
        let (mut verdicts, mut senders) = (Vec::new(), senders.into_iter());
        self.tracker.notify_batch(completions, now, |message, notified: Notified<Blocks>| {
            // All ranks here have opted in to stale replies.
            if let (Some(sender), Some(outcome @ (Outcome::Expired | Outcome::Aborted))) =
                (senders.next(), notified.verdict())
            {
                verdicts.push((sender, message.id.to_owned(), outcome));
            }
            notified.release().into_iter().for_each(&mut free);
        });
        for (agent, id, outcome) in verdicts {
            let mut reply = Vec::new();
            if wire::write_stale_reply(&id, outcome, &mut reply).is_ok() {
                if let Err(unsent) = self.source.send(agent, &reply) {
                    println!("{:>7}  {agent} cannot be told that {id} had {outcome}: {unsent}", seconds(now));
                }
            }
        }

        // After the messages: a notification that has come wins over an expiry that is due.
        self.tracker.sweep(now).released.into_iter().for_each(free);
        polled.map(drop)
    }

    /// How long the engine may sleep if there is nothing else to do.
    fn idle_for(&self, now: Timestamp) -> Duration {
        self.tracker.next_deadline().map_or(LONGEST_IDLE, |next| (next - now).min(LONGEST_IDLE))
    }
}

fn seconds(now: Timestamp) -> String {
    format!("{:.1} s", now.as_millis() as f64 / 1_000.0)
}

fn main() -> Result<(), Box<dyn Error>> {
    let millis = Arc::new(AtomicU64::new(0));
    let clock = {
        let millis = Arc::clone(&millis);
        move || Timestamp::from_millis(millis.load(Ordering::Relaxed))
    };
    let network = Network::new(Faults::default(), clock.clone())?;
    let mut engine = Handoff::new(network.agent("prefill-0"));
    let mut ranks: Vec<Agent> = (0..2).map(|rank| network.agent(&format!("decode-0/rank-{rank}"))).collect();

    for (number, id) in ["read", "queued", "lost"].into_iter().enumerate() {
        let blocks = (0..3).map(|block| 10 * number as u32 + block).collect();
        assert_eq!(engine.hand_over(id, 2, blocks, clock()), None);
    }

    let mut freed = Vec::new();
    while clock() < Timestamp::from_secs(60) {
        let now = clock();
        // What the decode side does in the meantime.
        let at = |secs| now == Timestamp::from_secs(secs);
        for (number, rank) in ranks.iter().enumerate() {
            if at(5) {
                rank.send("prefill-0", b"read:2")?;
            }
            if number == 0 && (at(20) || at(40)) {
                rank.send("prefill-0", b"HB:queued")?;
            }
            if at(50) {
                rank.send("prefill-0", b"queued:2")?;
                rank.send("prefill-0", b"lost:2")?; // twenty seconds too late
            }
        }
        engine.step(now, |release| {
            println!(
                "{:>7}  {} {} after {:?}: blocks {:?} are free",
                seconds(now),
                release.id,
                release.outcome,
                release.age,
                release.payload
            );
            freed.push((release.id.to_string(), release.outcome));
        })?;
        for rank in &mut ranks {
            let name = rank.name().to_owned();
            rank.poll(&mut |_, bytes| {
                if let Ok(Message::Stale(reply)) = wire::parse(bytes) {
                    println!("{:>7}  {name} is told: {} had {}, recompute it", seconds(now), reply.id, reply.outcome);
                }
            })?;
        }
        // An engine with nothing to do would sleep for so long.
        millis.fetch_add(engine.idle_for(now).as_millis().max(1) as u64, Ordering::Relaxed);
    }

    let expected = [("read", Outcome::Completed), ("lost", Outcome::Expired), ("queued", Outcome::Completed)];
    assert!(freed.iter().map(|(id, outcome)| (id.as_str(), *outcome)).eq(expected), "{freed:?}");
    assert_eq!(engine.tracker.shutdown(clock()), []);
    Ok(())
}
