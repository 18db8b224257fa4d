//! The decode side: ranks that wait, read, say so, and learn what their read was worth.
//!
//! Each rank is a thread with an agent of its own on the network and a [`ReadTracker`], which says what to
//! send and what a reply means. For each request it is handed, it sends heartbeats until it has read the
//! blocks, sends the completion, and then waits for the verdict of the prefill side. The documentation of
//! the example says when it uses what it read.

use super::clock::ScaledClock;
use super::model::{Planned, Read};
use super::pool::{BlockPool, BlockRef};
use kvlease::consumer::{Completed, Outgoing, ReadConfig, ReadTracker, Verdict};
use kvlease::transport::in_process::{Agent, Network};
use kvlease::transport::{NotificationSink, NotificationSource};
use kvlease::wire::{self, Message};
use kvlease::{ConsumerId, Timestamp};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::Duration;

/// A rank that has no verdict sends its completion again after this time of the trace,
pub const ASK_AGAIN: Duration = Duration::from_secs(4);
/// so many times in all, and then gives the read up.
pub const ATTEMPTS: u32 = 8;

/// How often a rank looks at its queue and its agent, in real time.
const POLL_EVERY: Duration = Duration::from_micros(500);

/// What is no message at all, for `--malformed-rate`: a prefill side must not stumble over it.
const JUNK: [&[u8]; 8] = [b"hello", b"a:", b"a:x", b":1", b"a:-1", b"a:99999999999", b"\xff\xfe", b""];

/// A request, on its way to the decode side.
#[derive(Clone)]
pub struct HandOver {
    request: Arc<Planned>,
    addresses: Arc<[BlockRef]>,
    /// The receiving rank's number within its engine.
    rank: usize,
}

/// Which decode engine gets a request: the first, and once it has died its successor.
#[derive(Default)]
pub struct Router {
    engines: Vec<Engine>,
}

struct Engine {
    consumers: Vec<ConsumerId>,
    ranks: Vec<Sender<HandOver>>,
    dies_at: Option<Timestamp>,
}

impl Router {
    pub fn add_engine(&mut self, consumers: Vec<ConsumerId>, ranks: Vec<Sender<HandOver>>, dies_at: Option<Timestamp>) {
        self.engines.push(Engine { consumers, ranks, dies_at });
    }

    /// The ranks of the engine that takes requests now.
    pub fn current(&self) -> &[ConsumerId] {
        self.engines.first().map_or(&[], |engine| &engine.consumers)
    }

    /// Hands a request and the addresses of its blocks to every rank of the engine that takes requests
    /// now; returns one of the ranks, who stands for the engine.
    pub fn hand_over(&mut self, request: &Arc<Planned>, addresses: &Arc<[BlockRef]>, now: Timestamp) -> ConsumerId {
        // Without the senders, the ranks of a dead engine know that nothing more is lost with them.
        self.engines.retain(|engine| engine.dies_at.is_none_or(|at| now < at));
        let engine = self.engines.first().expect("the last engine does not die");
        for (rank, inbox) in engine.ranks.iter().enumerate() {
            let hand_over = HandOver { request: Arc::clone(request), addresses: Arc::clone(addresses), rank };
            inbox.send(hand_over).expect("a rank lives until its senders are gone");
        }
        engine.consumers[0]
    }
}

/// What all ranks have in common.
pub struct Habits {
    /// The agent of the prefill side.
    pub prefill: &'static str,
    pub consumers: u32,
    /// `None` sends none.
    pub heartbeat_every: Option<Duration>,
    pub waits_for_verdict: bool,
    pub malformed_rate: f64,
    pub seed: u64,
}

/// How reads ended, added up.
#[derive(Clone, Copy, Default, Debug, serde::Serialize)]
pub struct ReadCounts {
    /// Used: told that it was in time or, in fire-and-forget mode, not told otherwise.
    pub used: u64,
    /// Discarded: told that it was stale.
    pub told_stale: u64,
    /// Of these, those of which every block was still there.
    pub told_needlessly: u64,
    /// Discarded: nobody said anything.
    pub unverified: u64,
    /// Lost with their engine.
    pub died: u64,
    /// Reads of released blocks, whatever became of them, and those of them that were used.
    pub stale: u64,
    pub stale_used: u64,
    /// Completions sent once more.
    pub resends: u64,
    /// Junk sent.
    pub junk: u64,
}

impl ReadCounts {
    fn add(&mut self, end: End, phase: &Phase) {
        let stale = matches!(phase, Phase::Asking { stale: true, .. });
        self.stale += u64::from(stale);
        match end {
            End::Used => {
                self.used += 1;
                self.stale_used += u64::from(stale);
            }
            End::ToldStale => {
                self.told_stale += 1;
                self.told_needlessly += u64::from(!stale);
            }
            End::Unverified => self.unverified += 1,
            End::Died => self.died += 1,
        }
    }

    /// Reads that came to an end, one way or the other.
    pub fn total(&self) -> u64 {
        self.used + self.told_stale + self.unverified + self.died
    }
}

impl AddAssign for ReadCounts {
    fn add_assign(&mut self, other: Self) {
        self.used += other.used;
        self.told_stale += other.told_stale;
        self.told_needlessly += other.told_needlessly;
        self.unverified += other.unverified;
        self.died += other.died;
        self.stale += other.stale;
        self.stale_used += other.stale_used;
        self.resends += other.resends;
        self.junk += other.junk;
    }
}

/// A decode rank, before it is up.
pub struct Rank<'a> {
    pub name: String,
    pub up_at: Timestamp,
    pub dies_at: Option<Timestamp>,
    pub clock: ScaledClock,
    pub pool: &'a BlockPool,
    pub habits: &'a Habits,
}

/// A decode rank at work.
struct Desk<'a> {
    rank: Rank<'a>,
    agent: Agent,
    /// The account of what this rank reads: which leases to renew, what a reply means.
    reads: ReadTracker,
    /// The same requests, as this simulation needs to know them.
    pending: HashMap<Arc<str>, Pending>,
    /// When something is to be done for a request. An entry for one that has ended is passed over.
    timers: BinaryHeap<Reverse<(Timestamp, Arc<str>)>>,
    /// Until then, this rank does nothing whatever.
    frozen_until: Timestamp,
    rng: SmallRng,
    counts: ReadCounts,
}

/// A request that this rank has not done with.
struct Pending {
    addresses: Arc<[BlockRef]>,
    read: Read,
    phase: Phase,
}

enum Phase {
    Waiting,
    Reading,
    /// Read, and said so. Whether the read was stale is the truth of the pool, for the report only: a real
    /// rank cannot know, and this one does not look.
    Asking {
        completion: Outgoing,
        stale: bool,
    },
}

/// How a read ended.
#[derive(Clone, Copy)]
enum End {
    Used,
    ToldStale,
    Unverified,
    Died,
}

impl<'a> Rank<'a> {
    /// Works until there will be no more requests and the last one has ended, or until it dies.
    pub fn run(self, network: &Network, inbox: Receiver<HandOver>) -> ReadCounts {
        while self.clock.now() < self.up_at {
            self.clock.sleep_until(Some(self.up_at), Duration::from_secs(1));
        }
        // Ranks are many: the more, the less often each looks.
        let poll_every = POLL_EVERY * (self.habits.consumers / 8 + 1);
        let (clock, dies_at) = (self.clock, self.dies_at);
        let mut desk = Desk::new(self, network);
        loop {
            let open = desk.accept(&inbox);
            let now = clock.now();
            if dies_at.is_some_and(|at| at <= now) {
                return desk.die(inbox);
            }
            if desk.frozen_until <= now {
                desk.hear_verdicts(now);
                desk.advance(now);
                desk.send_heartbeats(now);
                if !open && desk.pending.is_empty() {
                    return desk.counts;
                }
            }
            clock.sleep_until(desk.next_due(), poll_every);
        }
    }
}

impl<'a> Desk<'a> {
    fn new(rank: Rank<'a>, network: &Network) -> Self {
        let habits = rank.habits;
        let config = ReadConfig {
            heartbeat_interval: habits.heartbeat_every.unwrap_or(Duration::MAX),
            verdict_wait: habits.waits_for_verdict.then_some(ASK_AGAIN * ATTEMPTS),
            ..ReadConfig::default()
        };
        Desk {
            agent: network.agent(&rank.name),
            reads: ReadTracker::new(config),
            pending: HashMap::new(),
            timers: BinaryHeap::new(),
            frozen_until: Timestamp::ZERO,
            rng: SmallRng::seed_from_u64(rank.name.bytes().fold(habits.seed, |h, b| h.rotate_left(8) ^ u64::from(b))),
            counts: ReadCounts::default(),
            rank,
        }
    }

    /// Puts new requests into the queue; says whether more may come.
    fn accept(&mut self, inbox: &Receiver<HandOver>) -> bool {
        loop {
            match inbox.try_recv() {
                Ok(HandOver { request, addresses, rank }) => {
                    let (id, read) = (Arc::clone(&request.id), request.reads[rank]);
                    self.reads.wait_for(&id, self.rank.habits.prefill).expect("the model makes good ids, each once");
                    self.timers.push(Reverse((read.starts_at, Arc::clone(&id))));
                    self.pending.insert(id, Pending { addresses, read, phase: Phase::Waiting });
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn next_due(&self) -> Option<Timestamp> {
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        let due = timer.into_iter().chain(self.reads.next_deadline()).min();
        due.map(|at| at.max(self.frozen_until))
    }

    /// Does for each request what is due.
    fn advance(&mut self, now: Timestamp) {
        while self.timers.peek().is_some_and(|Reverse((at, _))| *at <= now) && self.frozen_until <= now {
            let Some(Reverse((_, id))) = self.timers.pop() else { return };
            let Some(pending) = self.pending.get_mut(&id) else { continue };
            let next = match &pending.phase {
                Phase::Waiting => {
                    pending.phase = Phase::Reading;
                    if let Some(freeze) = pending.read.freeze {
                        self.frozen_until = now + freeze;
                    }
                    now + pending.read.lasts
                }
                Phase::Reading => {
                    self.finish_read(&id, now);
                    now + if self.rank.habits.waits_for_verdict { ASK_AGAIN } else { ASK_AGAIN * ATTEMPTS }
                }
                Phase::Asking { completion, .. } if self.rank.habits.waits_for_verdict => {
                    // It may be lost, or the verdict was, or `track` had not come yet.
                    self.counts.resends += 1;
                    send(&self.agent, completion);
                    now + ASK_AGAIN
                }
                Phase::Asking { .. } => {
                    self.end(&id, End::Used);
                    continue;
                }
            };
            self.timers.push(Reverse((next, id)));
        }
        for id in self.reads.unanswered(now) {
            self.end(&id, End::Unverified);
        }
    }

    fn finish_read(&mut self, id: &Arc<str>, now: Timestamp) {
        let Habits { prefill, consumers, malformed_rate, .. } = *self.rank.habits;
        let Some(pending) = self.pending.get_mut(id) else { return };
        let stale = !self.rank.pool.holds(&pending.addresses);
        match self.reads.completed(id, prefill, consumers, now).expect("somebody reads") {
            Completed::AwaitVerdict { message: completion, .. } | Completed::Use(completion) => {
                pending.phase = Phase::Asking { completion: completion.clone(), stale };
                send(&self.agent, &completion);
            }
            other => unreachable!("one read, completed once, that nobody has called stale before: {other:?}"),
        }
        if self.rng.random_bool(malformed_rate) {
            self.counts.junk += 1;
            let message = JUNK[self.rng.random_range(0..JUNK.len())].to_vec();
            send(&self.agent, &Outgoing { agent: prefill.into(), message });
        }
    }

    fn hear_verdicts(&mut self, now: Timestamp) {
        let mut verdicts = Vec::new();
        let heard = self.agent.poll(&mut |agent, bytes| {
            if let Ok(Message::Stale(reply)) = wire::parse(bytes) {
                verdicts.push(self.reads.reply(agent, reply, now));
            }
        });
        heard.expect("nobody else takes this agent's name");
        for verdict in verdicts {
            match verdict {
                Verdict::Use { id } => self.end(&id, End::Used),
                Verdict::Recompute { id, .. } => self.end(&id, End::ToldStale),
                // Said before, or about a read that was given up: nothing is made of it any more.
                Verdict::Settled | Verdict::Pending | Verdict::WrongAgent | Verdict::Unknown => {}
            }
        }
    }

    fn send_heartbeats(&mut self, now: Timestamp) {
        let due = self.reads.heartbeats(now);
        if self.rank.habits.heartbeat_every.is_some() {
            due.iter().for_each(|heartbeat| send(&self.agent, heartbeat));
        }
    }

    fn end(&mut self, id: &str, end: End) {
        if let Some(pending) = self.pending.remove(id) {
            self.counts.add(end, &pending.phase);
        }
    }

    /// The whole engine is gone, with everything it was about to do and everything still sent to it.
    fn die(self, inbox: Receiver<HandOver>) -> ReadCounts {
        let Desk { agent, pending, mut counts, .. } = self;
        drop(agent);
        pending.into_values().for_each(|pending| counts.add(End::Died, &pending.phase));
        inbox.into_iter().for_each(|_| counts.add(End::Died, &Phase::Waiting));
        counts
    }
}

/// Sends, and hopes: where there is no prefill side any more, the message is lost like any other.
fn send(agent: &Agent, message: &Outgoing) {
    _ = agent.send(&message.agent, &message.message);
}
