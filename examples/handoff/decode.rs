//! The decode side: ranks that wait, read, say so, and learn what their read was worth.
//!
//! Each rank is a thread with an agent of its own on the network. For each request it is handed, it
//! sends heartbeats while the request waits in its queue, reads the blocks (with no more heartbeats, as
//! vLLM does it), sends the completion, and then waits for the verdict of the prefill side. See the
//! module documentation of the example for when it uses what it read.

use super::clock::ScaledClock;
use super::model::{Planned, Read};
use super::pool::{BlockPool, BlockRef};
use kvlease::transport::in_process::{Agent, Network};
use kvlease::transport::{NotificationSink, NotificationSource};
use kvlease::wire::{self, Message};
use kvlease::{ConsumerId, Outcome, Timestamp};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::thread;
use std::time::Duration;

/// A rank that has no verdict sends its completion again after this time of the trace,
pub const ASK_AGAIN: Duration = Duration::from_secs(4);
/// so many times in all. Then it gives the read up.
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
    pub heartbeat_every: Duration,
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
    fn add(&mut self, end: End, phase: Phase) {
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
    rng: SmallRng,
    pending: HashMap<Arc<str>, Pending>,
    /// When the phase of a request is over. An entry for a request that has ended is passed over.
    timers: BinaryHeap<Reverse<(Timestamp, Arc<str>)>>,
    next_heartbeat: Timestamp,
    counts: ReadCounts,
}

/// A request that this rank has not done with.
struct Pending {
    addresses: Arc<[BlockRef]>,
    read: Read,
    phase: Phase,
}

#[derive(Clone, Copy)]
enum Phase {
    /// In the queue; heartbeats keep its lease.
    Waiting,
    Reading,
    /// Read, and said so this many times. Whether the read was stale is the truth of the pool, for the
    /// report only: a real rank cannot know, and this one does not look.
    Asking { attempts: u32, stale: bool },
}

/// How a read ended.
#[derive(Clone, Copy)]
enum End {
    Used,
    ToldStale,
    Unverified,
    Died,
}

impl Rank<'_> {
    /// Works until there will be no more requests and the last one has ended, or until it dies.
    pub fn run(self, network: &Network, inbox: Receiver<HandOver>) -> ReadCounts {
        while self.clock.now() < self.up_at {
            self.clock.sleep_until(Some(self.up_at), Duration::from_secs(1));
        }
        // Ranks are many: the more, the less often each looks.
        let poll_every = POLL_EVERY * (self.habits.consumers / 8 + 1);
        let mut desk = Desk {
            agent: network.agent(&self.name),
            rng: SmallRng::seed_from_u64(self.name.bytes().fold(self.habits.seed, |h, b| h * 31 + u64::from(b))),
            next_heartbeat: self.up_at,
            rank: self,
            pending: HashMap::new(),
            timers: BinaryHeap::new(),
            counts: ReadCounts::default(),
        };
        loop {
            let open = desk.accept(&inbox);
            let now = desk.rank.clock.now();
            if desk.rank.dies_at.is_some_and(|at| at <= now) {
                return desk.die(inbox);
            }
            desk.hear_verdicts();
            desk.advance(now);
            desk.send_heartbeats(now);
            if !open && desk.pending.is_empty() {
                return desk.counts;
            }
            thread::sleep(poll_every);
        }
    }
}

impl Desk<'_> {
    /// Puts new requests into the queue; says whether more may come.
    fn accept(&mut self, inbox: &Receiver<HandOver>) -> bool {
        loop {
            match inbox.try_recv() {
                Ok(HandOver { request, addresses, rank }) => {
                    let (id, read) = (Arc::clone(&request.id), request.reads[rank]);
                    self.timers.push(Reverse((read.starts_at, Arc::clone(&id))));
                    self.pending.insert(id, Pending { addresses, read, phase: Phase::Waiting });
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// The whole engine is gone, with everything it was about to do and everything still sent to it.
    fn die(self, inbox: Receiver<HandOver>) -> ReadCounts {
        let Desk { agent, pending, mut counts, .. } = self;
        drop(agent);
        pending.into_values().for_each(|pending| counts.add(End::Died, pending.phase));
        inbox.into_iter().for_each(|_| counts.add(End::Died, Phase::Waiting));
        counts
    }

    /// Moves every request on whose phase is over.
    fn advance(&mut self, now: Timestamp) {
        while self.timers.peek().is_some_and(|Reverse((at, _))| *at <= now) {
            let Some(Reverse((_, id))) = self.timers.pop() else { return };
            let Some(pending) = self.pending.get_mut(&id) else { continue };
            let next = match pending.phase {
                Phase::Waiting => {
                    pending.phase = Phase::Reading;
                    now + pending.read.lasts
                }
                Phase::Reading => {
                    let stale = !self.rank.pool.holds(&pending.addresses);
                    pending.phase = Phase::Asking { attempts: 1, stale };
                    self.send_completion(&id);
                    now + if self.rank.habits.waits_for_verdict { ASK_AGAIN } else { ASK_AGAIN * ATTEMPTS }
                }
                Phase::Asking { .. } if !self.rank.habits.waits_for_verdict => {
                    self.end(&id, End::Used);
                    continue;
                }
                Phase::Asking { attempts: ATTEMPTS.., .. } => {
                    self.end(&id, End::Unverified);
                    continue;
                }
                Phase::Asking { ref mut attempts, .. } => {
                    *attempts += 1;
                    self.counts.resends += 1;
                    self.send_completion(&id);
                    now + ASK_AGAIN
                }
            };
            self.timers.push(Reverse((next, id)));
        }
    }

    fn hear_verdicts(&mut self) {
        let mut verdicts: Vec<(Arc<str>, End)> = Vec::new();
        let heard = self.agent.poll(&mut |_, bytes| {
            if let Ok(Message::Stale(reply)) = wire::parse(bytes) {
                let end = if reply.outcome == Outcome::Completed { End::Used } else { End::ToldStale };
                verdicts.push((reply.id.into(), end));
            }
        });
        heard.expect("nobody else takes this agent's name");
        for (id, end) in verdicts {
            self.end(&id, end);
        }
    }

    /// Ends a request that asks for its verdict; what comes twice changes nothing.
    fn end(&mut self, id: &str, end: End) {
        if self.pending.get(id).is_some_and(|pending| matches!(pending.phase, Phase::Asking { .. })) {
            let pending = self.pending.remove(id).expect("just seen");
            self.counts.add(end, pending.phase);
        }
    }

    fn send_completion(&mut self, id: &str) {
        let mut message = Vec::new();
        wire::write_completion(id, self.rank.habits.consumers, &mut message).expect("the model makes good ids");
        self.send(&message);
        if self.rng.random_bool(self.rank.habits.malformed_rate) {
            self.counts.junk += 1;
            let junk = JUNK[self.rng.random_range(0..JUNK.len())];
            self.send(junk);
        }
    }

    /// One heartbeat for all that wait.
    fn send_heartbeats(&mut self, now: Timestamp) {
        if now < self.next_heartbeat {
            return;
        }
        self.next_heartbeat = now + self.rank.habits.heartbeat_every;
        let waiting = self.pending.iter().filter(|(_, pending)| matches!(pending.phase, Phase::Waiting));
        let mut message = Vec::new();
        wire::write_heartbeat(waiting.map(|(id, _)| &**id), &mut message).expect("the model makes good ids");
        self.send(&message);
    }

    fn send(&self, message: &[u8]) {
        // A prefill side that is gone is one more lost message: the read will not be verified.
        _ = self.agent.send(self.rank.habits.prefill, message);
    }
}
