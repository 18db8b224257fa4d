//! The decode side: ranks that wait, read, say so, and learn what their read was worth.
//!
//! Each rank is a thread with an agent of its own on the network and a [`ReadTracker`], which says what to
//! send and what a reply means. For each request it is handed, it sends heartbeats until it has read the
//! blocks, sends the completion, and then waits for the verdict of the prefill side. The documentation of
//! the example says when it uses what it read. How blocks and messages travel is a [`Link`].

use super::clock::ScaledClock;
use super::model::{Planned, Read};
use super::pool::{BlockPool, BlockRef};
use kvlease::consumer::{Completed, Outgoing, ReadConfig, ReadTracker, Verdict};
use kvlease::transport::in_process::Agent;
use kvlease::transport::{NotificationSink, NotificationSource};
use kvlease::wire::{self, Message};
use kvlease::{ConsumerId, Timestamp};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
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
    pub request: Arc<Planned>,
    pub addresses: Arc<[BlockRef]>,
    /// The receiving rank's number within its engine.
    pub rank: usize,
}

/// How blocks and messages come to a rank.
pub trait Link: NotificationSource {
    /// What is being fetched.
    type Fetching;

    fn send(&mut self, message: &Outgoing);

    /// Begins to fetch the blocks of a request from `completion.agent`; `None` if that has to wait.
    fn fetch(
        &mut self,
        id: &str,
        addresses: &Arc<[BlockRef]>,
        completion: &Outgoing,
        now: Timestamp,
    ) -> Option<Self::Fetching>;

    /// Whether they are here.
    fn fetched(&mut self, fetching: &mut Self::Fetching, now: Timestamp) -> Fetched;

    /// They are needed no more, or were never here.
    fn drop_fetched(&mut self, _: Self::Fetching) {}
}

/// How a fetch stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(feature = "nixl"), allow(dead_code))] // Within one process, all is there at once.
pub enum Fetched {
    UnderWay,
    Here {
        /// Whether some block was released before it was read, by the ground truth. For the report only: a real
        /// rank cannot know, and this one does not act on it.
        stale: bool,
        /// Whether the prefill side has been told by the transfer itself.
        told: bool,
        /// Whether it cannot be stale, so that no verdict is needed: the prefill side has held the blocks.
        sure: bool,
    },
    /// It will not come.
    Failed,
}

/// Within one process nothing travels: a read takes its time, and then the pool is asked whether it was good.
pub struct InProcess<'a> {
    pub agent: Agent,
    pub pool: &'a BlockPool,
}

impl NotificationSource for InProcess<'_> {
    fn poll(&mut self, on: &mut dyn FnMut(&str, &[u8])) -> Result<usize, kvlease::transport::TransportError> {
        self.agent.poll(on)
    }
}

impl Link for InProcess<'_> {
    type Fetching = Arc<[BlockRef]>;

    fn send(&mut self, message: &Outgoing) {
        // And hopes: where there is no prefill side any more, the message is lost like any other.
        _ = self.agent.send(&message.agent, &message.message);
    }

    fn fetch(&mut self, _: &str, addresses: &Arc<[BlockRef]>, _: &Outgoing, _: Timestamp) -> Option<Self::Fetching> {
        Some(Arc::clone(addresses))
    }

    fn fetched(&mut self, addresses: &mut Self::Fetching, _: Timestamp) -> Fetched {
        Fetched::Here { stale: !self.pool.holds(addresses), told: false, sure: false }
    }
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
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Habits {
    /// The agent of the prefill side.
    pub prefill: String,
    pub consumers: u32,
    /// `None` sends none.
    pub heartbeat_every: Option<Duration>,
    pub waits_for_verdict: bool,
    pub malformed_rate: f64,
    pub seed: u64,
}

/// How reads ended, added up.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
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
    /// How often a rank froze.
    pub frozen: u64,
}

impl ReadCounts {
    fn add(&mut self, end: End, stale: bool) {
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
        self.frozen += other.frozen;
    }
}

/// A decode rank, before it is up.
pub struct Rank<'a> {
    pub name: String,
    pub up_at: Timestamp,
    pub dies_at: Option<Timestamp>,
    pub clock: ScaledClock,
    pub habits: &'a Habits,
}

/// A decode rank at work.
struct Desk<'a, L: Link> {
    rank: Rank<'a>,
    link: L,
    /// The account of what this rank reads: which leases to renew, what a reply means.
    reads: ReadTracker,
    /// The same requests, as this simulation needs to know them.
    pending: HashMap<Arc<str>, Pending<L::Fetching>>,
    /// Those of them that are being fetched.
    fetching: Vec<Arc<str>>,
    /// When something is to be done for a request. An entry for one that has ended is passed over.
    timers: BinaryHeap<Reverse<(Timestamp, Arc<str>)>>,
    /// Until then, this rank does nothing whatever.
    frozen_until: Timestamp,
    rng: SmallRng,
    counts: ReadCounts,
}

/// A request that this rank has not done with.
struct Pending<F> {
    addresses: Arc<[BlockRef]>,
    read: Read,
    phase: Phase,
    fetching: Option<F>,
    /// See [`Fetched::Here`].
    stale: bool,
}

enum Phase {
    Waiting,
    Reading,
    Fetching,
    /// Read, and said so.
    Asking {
        completion: Outgoing,
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
    /// Works until there will be no more requests and the last one has ended, or until it dies. The link is made when
    /// the rank is up; `progress` is told how its reads ended so far.
    pub fn run<L: Link>(
        self,
        link: impl FnOnce(&str) -> L,
        inbox: Receiver<HandOver>,
        mut progress: impl FnMut(&ReadCounts),
    ) -> ReadCounts {
        while self.clock.now() < self.up_at {
            self.clock.sleep_until(Some(self.up_at), Duration::from_secs(1));
        }
        // Ranks are many: the more, the less often each looks.
        let poll_every = POLL_EVERY * (self.habits.consumers / 8 + 1);
        let (clock, dies_at) = (self.clock, self.dies_at);
        let link = link(&self.name);
        let mut desk = Desk::new(self, link);
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
                progress(&desk.counts);
                if !open && desk.pending.is_empty() {
                    return desk.counts;
                }
            }
            clock.sleep_until(desk.next_due(), poll_every);
        }
    }
}

impl<'a, L: Link> Desk<'a, L> {
    fn new(rank: Rank<'a>, link: L) -> Self {
        let habits = rank.habits;
        let config = ReadConfig {
            heartbeat_interval: habits.heartbeat_every.unwrap_or(Duration::MAX),
            verdict_wait: habits.waits_for_verdict.then_some(ASK_AGAIN * ATTEMPTS),
            ..ReadConfig::default()
        };
        Desk {
            link,
            reads: ReadTracker::new(config),
            pending: HashMap::new(),
            fetching: Vec::new(),
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
                    self.reads.wait_for(&id, &self.rank.habits.prefill).expect("the model makes good ids, each once");
                    self.timers.push(Reverse((read.starts_at, Arc::clone(&id))));
                    let pending = Pending { addresses, read, phase: Phase::Waiting, fetching: None, stale: false };
                    self.pending.insert(id, pending);
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
                        self.counts.frozen += 1;
                    }
                    now + pending.read.lasts
                }
                Phase::Reading => {
                    if self.begin_fetch(&id, now) {
                        continue;
                    }
                    // As many as can be are under way.
                    now + Duration::from_millis(1)
                }
                Phase::Fetching => continue,
                Phase::Asking { completion } if self.rank.habits.waits_for_verdict => {
                    // It may be lost, or the verdict was, or `track` had not come yet.
                    self.counts.resends += 1;
                    self.link.send(completion);
                    now + ASK_AGAIN
                }
                Phase::Asking { .. } => {
                    self.end(&id, End::Used);
                    continue;
                }
            };
            self.timers.push(Reverse((next, id)));
        }
        for id in std::mem::take(&mut self.fetching) {
            self.look_after(id, now);
        }
        for id in self.reads.unanswered(now) {
            self.end(&id, End::Unverified);
        }
    }

    fn begin_fetch(&mut self, id: &Arc<str>, now: Timestamp) -> bool {
        let Some(pending) = self.pending.get_mut(id) else { return true };
        let mut message = Vec::new();
        wire::write_completion(id, self.rank.habits.consumers, &mut message).expect("a good id, and somebody reads");
        let completion = Outgoing { agent: self.rank.habits.prefill.as_str().into(), message };
        let Some(fetching) = self.link.fetch(id, &pending.addresses, &completion, now) else { return false };
        pending.fetching = Some(fetching);
        pending.phase = Phase::Fetching;
        self.fetching.push(Arc::clone(id));
        true
    }

    /// One that is being fetched: if it is here, says so.
    fn look_after(&mut self, id: Arc<str>, now: Timestamp) {
        let Habits { ref prefill, consumers, malformed_rate, waits_for_verdict, .. } = *self.rank.habits;
        let Some(pending) = self.pending.get_mut(&id) else { return };
        let Some(fetching) = &mut pending.fetching else { return };
        let (told, sure) = match self.link.fetched(fetching, now) {
            Fetched::UnderWay => return self.fetching.push(id),
            Fetched::Failed => {
                self.reads.cancel(&id);
                return self.end(&id, End::Unverified);
            }
            Fetched::Here { stale, told, sure } => {
                pending.stale = stale;
                (told, sure)
            }
        };
        let completion = match self.reads.completed(&id, prefill, consumers, now).expect("somebody reads") {
            Completed::AwaitVerdict { message: completion, .. } | Completed::Use(completion) => completion,
            other => unreachable!("one read, completed once, that nobody has called stale before: {other:?}"),
        };
        if sure {
            self.reads.cancel(&id);
            return self.end(&id, End::Used);
        }
        if !told {
            self.link.send(&completion);
        }
        pending.phase = Phase::Asking { completion };
        let wait = if waits_for_verdict { ASK_AGAIN } else { ASK_AGAIN * ATTEMPTS };
        self.timers.push(Reverse((now + wait, id)));
        if self.rng.random_bool(malformed_rate) {
            self.counts.junk += 1;
            let message = JUNK[self.rng.random_range(0..JUNK.len())].to_vec();
            self.link.send(&Outgoing { agent: prefill.as_str().into(), message });
        }
    }

    fn hear_verdicts(&mut self, now: Timestamp) {
        let mut verdicts = Vec::new();
        let heard = self.link.poll(&mut |agent, bytes| {
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
            due.iter().for_each(|heartbeat| self.link.send(heartbeat));
        }
    }

    fn end(&mut self, id: &str, end: End) {
        if let Some(pending) = self.pending.remove(id) {
            self.counts.add(end, pending.stale);
            if let Some(fetching) = pending.fetching {
                self.link.drop_fetched(fetching);
            }
        }
    }

    /// The whole engine is gone, with everything it was about to do and everything still sent to it.
    fn die(self, inbox: Receiver<HandOver>) -> ReadCounts {
        let Desk { link, pending, mut counts, .. } = self;
        drop(link);
        pending.into_values().for_each(|pending| counts.add(End::Died, pending.stale));
        inbox.into_iter().for_each(|_| counts.add(End::Died, false));
        counts
    }
}
