//! The hand-off between processes, over the real NIXL.
//!
//! ```text
//!   this process: prefill                                    one process for each decode engine
//!   block pool in registered memory ◀──────── READ ───────── ranks, each with an agent of its own
//!   pump ◀──── completions (on the READs), heartbeats ──────  and registered memory to read into
//!        ───── verdicts ────────────────────────────────────▶
//!   with --push:                   ◀── PUSH_REG: "write here" ─
//!        ───── WRITE, and PUSHED: with it ──────────────────▶
//!   control connection: hand-overs ────────────────────────▶
//!                       ◀──────────────────── how reads ended
//! ```
//!
//! The control connection (JSON lines over TCP on loopback) stands for the router, and for the side channel over which
//! connectors shake hands. Each block begins with its number and its generation, and the rest is made from them; a freed
//! block is spoilt at once. So a rank can tell by the bytes whether each block was still what it was to be, and that is
//! the ground truth of the report.
//!
//! A decode engine that is to crash is killed, and says nothing more.

use super::clock::ScaledClock;
use super::decode::{ASK_AGAIN, ATTEMPTS, Fetched, Habits, HandOver, Link, Rank, ReadCounts, Router};
use super::model::{Planned, Read};
use super::pool::{BlockPool, BlockRef, Pinned, Store};
use super::prefill::{POLL_EVERY, Prefill, add};
use super::rdma::{Memory, Piece, Transfer as Moving};
use super::report::{NetworkCounts, Report};
use super::timeline::{Recorder, ReleasedBy};
use super::{
    Cli, PREFILL, TOLD_AFTER, account, blocks, crash_at, engines, habits, plan, prefill, progress_bar, rank_name, trace,
};
use kvlease::consumer::Outgoing;
use kvlease::pump::OpaqueMessage;
use kvlease::transport::nixl::{Agent, Handshake, Sender, Settings};
use kvlease::transport::{NotificationSink, NotificationSource, TransportError};
use kvlease::{Outcome, Replies, SendTracker, Timestamp, Transfer, TransferRefusal, wire};
use nixl_sys::XferOp;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// How often NIXL's own threads look for something to do, of which there are as many as agents.
const PROGRESS_EVERY: Duration = Duration::from_millis(1);
/// A decode process that has not called by then will not.
const CALLS_WITHIN: Duration = Duration::from_secs(60);
/// How many requests a rank fetches at once.
const AT_ONCE: usize = 8;
/// A rank that was promised blocks and has not got them asks again after this time of the trace.
const REGISTER_AGAIN: Duration = Duration::from_secs(1);
/// A WRITE that takes longer than this, in real time, is given up: NIXL may never say that its peer is dead.
const WRITE_LIMIT: Duration = Duration::from_secs(5);
/// What the message begins with that comes with a WRITE; the request id follows.
const PUSHED: &[u8] = b"PUSHED:";
/// What a freed block is filled with.
const SPOILT: u8 = 0xdd;

fn settings() -> Settings {
    Settings { progress_every: PROGRESS_EVERY }
}

/// What an error says, with what was being done.
fn context<E: std::fmt::Display>(what: &str) -> impl FnOnce(E) -> String {
    move |error| format!("{what}: {error}")
}

/// What is in a block of this number and generation.
fn block_bytes(block: BlockRef, len: usize) -> Vec<u8> {
    let mut state = block.word ^ u64::from(block.index) << 32;
    let mut bytes = [u64::from(block.index).to_le_bytes(), block.word.to_le_bytes()].concat();
    while bytes.len() < len {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        bytes.extend_from_slice(&(state ^ state >> 29).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// The pool's blocks, in registered memory.
struct Blocks {
    memory: Arc<Memory>,
    len: usize,
}

impl Store for Blocks {
    fn fill(&self, block: BlockRef) {
        self.memory.write(block.index as usize * self.len, &block_bytes(block, self.len));
    }

    fn spoil(&self, index: u32) {
        self.memory.write(index as usize * self.len, &vec![SPOILT; self.len]);
    }
}

// ---- What the processes tell each other ----

#[derive(Serialize, Deserialize)]
enum ToDecode {
    /// The first: who to be.
    Be { engine: usize, habits: Habits, push: bool, prefill: Vec<u8>, pool: u64, block_len: usize, most: u32 },
    /// The time of the trace, and how fast it passes. Work begins.
    Start { now_ms: u64, speed: f64, up_at_ms: u64 },
    Request {
        rank: usize,
        id: Arc<str>,
        starts_ms: u64,
        lasts_us: u64,
        freeze_ms: Option<u64>,
        blocks: Vec<(u32, u64)>,
    },
    /// There will be no more requests.
    Finish,
}

#[derive(Serialize, Deserialize)]
enum ToPrefill {
    /// The handshakes of the ranks.
    Ready {
        ranks: Vec<Vec<u8>>,
    },
    /// How the reads of a rank ended so far.
    Counts {
        rank: usize,
        counts: ReadCounts,
    },
    Done,
}

fn tell(mut to: &TcpStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)
}

fn hear<T: for<'de> Deserialize<'de>>(from: &mut BufReader<TcpStream>) -> io::Result<Option<T>> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_str(&line)?))
}

// ---- The prefill process ----

/// A decode engine: its process, and the control connection. Killed if this program ends early.
struct Engine {
    process: Child,
    control: TcpStream,
    from: BufReader<TcpStream>,
}

impl Drop for Engine {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

impl Engine {
    fn start(listener: &TcpListener) -> Result<Self, String> {
        let address = listener.local_addr().map_err(context("the control connection"))?;
        let program = std::env::current_exe().map_err(context("the name of this program"))?;
        let mut process = Command::new(program)
            .args(["--decode-process", &address.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(context("the decode process"))?;
        let control = match accept(listener, &mut process) {
            Ok(control) => control,
            Err(error) => {
                _ = process.kill();
                _ = process.wait();
                return Err(format!("the decode process: {error}"));
            }
        };
        let from = control.try_clone().map_err(context("the control connection"))?;
        Ok(Engine { process, control, from: BufReader::new(from) })
    }
}

fn accept(listener: &TcpListener, process: &mut Child) -> io::Result<TcpStream> {
    listener.set_nonblocking(true)?;
    let start = Instant::now();
    loop {
        match listener.accept() {
            Ok((control, _)) => {
                control.set_nonblocking(false)?;
                control.set_nodelay(true)?;
                return Ok(control);
            }
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Err(_) => {}
        }
        if let Some(status) = process.try_wait()? {
            return Err(io::Error::other(format!("it ended with {status}")));
        }
        if start.elapsed() > CALLS_WITHIN {
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Runs the hand-off with this process as the prefill side, to the end.
pub fn run_over_nixl(
    cli: &Cli,
    arrivals: &[trace::Arrival],
    source: String,
    recorder: Option<Arc<Recorder>>,
) -> Result<Report, String> {
    let plan = plan(cli, arrivals);
    let total = blocks(&plan);
    let block_len = cli.block_bytes as usize;
    let agent = Agent::new(PREFILL, &settings()).map_err(|error| error.to_string())?;
    let memory = Memory::register(&agent, total as usize * block_len).map_err(context("memory for the blocks"))?;
    let memory = Arc::new(memory);
    let pool = BlockPool::with_store(total, Blocks { memory: Arc::clone(&memory), len: block_len });

    // The decode side. All engines are up before time begins; the second one waits for its turn.
    let listener = TcpListener::bind("127.0.0.1:0").map_err(context("the control connection"))?;
    let me = agent.handshake(Replies::None).map_err(|error| error.to_string())?.to_bytes();
    let mut running = Vec::new();
    for engine in 0..engines(cli).len() {
        let mut decode = Engine::start(&listener)?;
        let be = ToDecode::Be {
            engine,
            habits: habits(cli),
            push: cli.push,
            prefill: me.clone(),
            pool: memory.address(),
            block_len,
            most: plan.iter().map(|request| request.blocks).max().unwrap_or(1),
        };
        tell(&decode.control, &be).map_err(context("the decode process"))?;
        let Some(ToPrefill::Ready { ranks }) = hear(&mut decode.from).map_err(context("the decode process"))? else {
            return Err("the decode process is not ready; see above".into());
        };
        running.push((decode, ranks));
    }

    let clock = ScaledClock::new(cli.speed);
    let prefill = prefill(cli, pool, clock, recorder);
    let mut router = Router::default();
    let mut engines_up = Vec::new();
    for ((mut decode, ranks), (up_at, dies_at)) in running.into_iter().zip(engines(cli)) {
        let mut consumers = Vec::new();
        for (rank, bytes) in ranks.iter().enumerate() {
            let peer = Handshake::from_bytes(bytes).map_err(context("the handshake of a rank"))?;
            debug_assert_eq!(peer.name, rank_name(engines_up.len(), rank as u32));
            agent.connect(&peer).map_err(|error| error.to_string())?;
            let consumer = prefill.registry.handshake(&peer.name, peer.replies);
            consumers.push(consumer.expect("there is room for every rank"));
        }
        let start = ToDecode::Start { now_ms: clock.now().as_millis(), speed: cli.speed, up_at_ms: up_at.as_millis() };
        tell(&decode.control, &start).map_err(context("the decode process"))?;
        // All ranks have one way in: the connection.
        let (hand_over, requests) = mpsc::channel();
        router.add_engine(consumers.clone(), vec![hand_over; consumers.len()], dies_at);
        let from = std::mem::replace(
            &mut decode.from,
            BufReader::new(decode.control.try_clone().map_err(context("a connection"))?),
        );
        engines_up.push((decode, from, requests, dies_at));
    }
    let bar = progress_bar(plan.len());

    let mut reads = ReadCounts::default();
    let (readers_gone, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let sender = agent.sender();
    let pushes = Pushes::new(&agent, &memory, block_len);
    let agent = Mutex::new(agent);
    thread::scope(|scope| {
        let (prefill, plan, pushes, sender) = (&prefill, &plan, &pushes, &sender);
        let crash = crash_at(cli).map(|at| (at + TOLD_AFTER, router.current().to_vec()));

        let mut readers = Vec::new();
        for (decode, from, requests, dies_at) in engines_up {
            readers.push(scope.spawn(move || attend(decode, from, requests, dies_at, clock)));
        }
        let (to_push, jobs) = mpsc::channel();
        let transfers = scope.spawn(move || prefill.transfers(jobs));
        let (register, registrations) = mpsc::channel();
        let pusher = scope.spawn(move || pushes.run(prefill, sender, registrations));
        let notifications: Vec<_> = (0..cli.threads)
            .map(|_| {
                let (agent, stop, register) = (&agent, &stop, register.clone());
                // Fails only when the pusher has panicked, which is looked at below.
                let on_opaque = move |message: OpaqueMessage| drop(register.send(message));
                scope.spawn(move || prefill.notifications(agent, sender, stop, on_opaque))
            })
            .collect();
        drop(register);
        let (gone, inc) = (&readers_gone, || bar.inc(1));
        let engine = scope.spawn(move || prefill.engine(plan, router, to_push, crash, gone, inc));

        // As within one process: each side ends when the other has nothing more for it.
        let readers: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
        readers_gone.store(true, Ordering::Release);
        let (engine, transfers) = (engine.join(), transfers.join());
        stop.store(true, Ordering::Release);
        let notifications: Vec<_> = notifications.into_iter().map(|thread| thread.join()).collect();
        let pusher = pusher.join();

        readers.into_iter().for_each(|counts| reads += counts.expect("the thread of a decode process panicked"));
        engine.expect("the engine panicked");
        transfers.expect("the transfer thread panicked");
        pusher.expect("the pusher panicked");
        for thread in notifications {
            thread.expect("a notification thread panicked").expect("NIXL hands out messages");
        }
    });
    prefill.sweep(clock.now());
    bar.finish_and_clear();
    let sent = prefill.counters.received.load(Ordering::Relaxed);
    let network = NetworkCounts { sent, ..NetworkCounts::default() };
    Ok(account(cli, &prefill, plan.len(), reads, network, source))
}

/// Attends to one decode process to its end: hands requests over, hears how reads ended, and kills it when it is to die.
fn attend(
    mut decode: Engine,
    mut from: BufReader<TcpStream>,
    requests: Receiver<HandOver>,
    dies_at: Option<Timestamp>,
    clock: ScaledClock,
) -> ReadCounts {
    let (send, heard) = mpsc::channel();
    let listener = thread::spawn(move || {
        while let Ok(Some(message)) = hear::<ToPrefill>(&mut from) {
            if send.send(message).is_err() {
                return;
            }
        }
    });
    let mut ranks: HashMap<usize, (u64, ReadCounts)> = HashMap::new();
    let mut open = true;
    let mut over = false;
    while !over {
        if dies_at.is_some_and(|at| at <= clock.now()) {
            break;
        }
        while open {
            match requests.try_recv() {
                Ok(HandOver { request, addresses, rank }) => {
                    ranks.entry(rank).or_default().0 += 1;
                    let read = request.reads[rank];
                    let message = ToDecode::Request {
                        rank,
                        id: Arc::clone(&request.id),
                        starts_ms: read.starts_at.as_millis(),
                        lasts_us: read.lasts.as_micros() as u64,
                        freeze_ms: read.freeze.map(|freeze| freeze.as_millis() as u64),
                        blocks: addresses.iter().map(|block| (block.index, block.word)).collect(),
                    };
                    // If it is dead, its reads count as lost below.
                    _ = tell(&decode.control, &message);
                }
                Err(mpsc::TryRecvError::Empty) => break,
                Err(mpsc::TryRecvError::Disconnected) => {
                    open = false;
                    _ = tell(&decode.control, &ToDecode::Finish);
                }
            }
        }
        loop {
            match heard.try_recv() {
                Ok(ToPrefill::Counts { rank, counts }) => ranks.entry(rank).or_default().1 = counts,
                Ok(ToPrefill::Done | ToPrefill::Ready { .. }) | Err(mpsc::TryRecvError::Disconnected) => {
                    over = true;
                    break;
                }
                Err(mpsc::TryRecvError::Empty) => break,
            }
        }
        thread::sleep(POLL_EVERY);
    }
    if !over {
        // SIGKILL.
        _ = decode.process.kill();
        _ = decode.process.wait();
        // What was handed over and not yet sent is lost, too; the router sends no more.
        for HandOver { rank, .. } in requests {
            ranks.entry(rank).or_default().0 += 1;
        }
    } else {
        _ = decode.process.wait();
    }
    _ = listener.join();
    for message in heard {
        if let ToPrefill::Counts { rank, counts } = message {
            ranks.entry(rank).or_default().1 = counts;
        }
    }
    let mut all = ReadCounts::default();
    for (handed_over, mut counts) in ranks.into_values() {
        counts.died += handed_over - counts.total();
        all += counts;
    }
    all
}

/// A rank's wish to have the blocks of a request written to it.
#[derive(Serialize, Deserialize)]
struct Registration {
    id: Arc<str>,
    address: u64,
    len: u64,
}

/// The push mode of the prefill side: writes, and holds the blocks while it does.
struct Pushes {
    /// For NIXL's calls only.
    agent: nixl_sys::Agent,
    memory: Arc<Memory>,
    block_len: usize,
}

/// One WRITE under way.
struct Pushing {
    key: (Arc<str>, Arc<str>),
    addresses: Arc<[BlockRef]>,
    moving: Moving,
    begun: Instant,
    guard: Transfer<Pinned, Arc<SendTracker<Pinned>>>,
}

impl Pushes {
    fn new(agent: &Agent, memory: &Arc<Memory>, block_len: usize) -> Self {
        Pushes { agent: agent.raw().clone(), memory: Arc::clone(memory), block_len }
    }

    fn run(&self, prefill: &Prefill, sink: &Sender, registrations: Receiver<OpaqueMessage>) {
        let mut under_way: Vec<Pushing> = Vec::new();
        // Of each request and rank one at most, ever: the rank may use its memory again afterwards.
        let mut begun = HashSet::new();
        let mut open = true;
        while open || !under_way.is_empty() {
            loop {
                match registrations.try_recv() {
                    Ok(OpaqueMessage { agent, message }) => {
                        let text = message.strip_prefix(wire::PUSH_REGISTRATION_PREFIX.as_bytes());
                        match text.and_then(|text| serde_json::from_slice::<Registration>(text).ok()) {
                            Some(wish) => under_way.extend(self.begin(prefill, sink, agent, wish, &mut begun)),
                            None => add(&prefill.counters.malformed, 1),
                        }
                    }
                    Err(mpsc::TryRecvError::Empty) => break,
                    Err(mpsc::TryRecvError::Disconnected) => {
                        open = false;
                        break;
                    }
                }
            }
            let mut i = 0;
            while i < under_way.len() {
                match under_way[i].moving.poll() {
                    Ok(false) if under_way[i].begun.elapsed() < WRITE_LIMIT => i += 1,
                    Ok(true) => self.end(prefill, under_way.swap_remove(i)),
                    Ok(false) | Err(_) => {
                        // The rank is gone. NIXL lets go of the blocks first, and then the guard does, whose drop leaves
                        // the release, if there is one, to the next sweep.
                        add(&prefill.counters.pushes_failed, 1);
                        let Pushing { moving, guard, .. } = under_way.swap_remove(i);
                        drop(moving);
                        drop(guard);
                    }
                }
            }
            if under_way.is_empty() {
                thread::sleep(POLL_EVERY);
            }
        }
    }

    fn begin(
        &self,
        prefill: &Prefill,
        sink: &Sender,
        agent: Arc<str>,
        wish: Registration,
        begun: &mut HashSet<(Arc<str>, Arc<str>)>,
    ) -> Option<Pushing> {
        let key = (Arc::clone(&wish.id), agent);
        if begun.contains(&key) {
            return None;
        }
        let guard = match prefill.tracker.begin_transfer_owned(&wish.id) {
            Ok(guard) => guard,
            // Not one byte of these blocks may be touched, and the rank is told so.
            Err(TransferRefusal::Late(outcome)) => {
                add(&prefill.counters.pushes_refused, 1);
                let outcome = if outcome == Outcome::Completed { Outcome::Expired } else { outcome };
                let mut reply = Vec::new();
                wire::write_stale_reply(&wish.id, outcome, &mut reply).expect("a request has an id");
                match sink.send(&key.1, &reply) {
                    Ok(()) => add(&prefill.counters.verdicts_stale, 1),
                    Err(_) => add(&prefill.counters.unreachable, 1),
                }
                return None;
            }
            // Not tracked yet: the rank asks again.
            Err(_) => return None,
        };
        let addresses = prefill.addresses.lock().unwrap().get(&*wish.id).cloned();
        let addresses = addresses.filter(|all| (all.len() * self.block_len) as u64 <= wish.len)?;
        let pieces = addresses.iter().enumerate().map(|(n, block)| Piece {
            offset: block.index as usize * self.block_len,
            remote: wish.address + (n * self.block_len) as u64,
            len: self.block_len,
        });
        let message = [PUSHED, wish.id.as_bytes()].concat();
        let pieces: Vec<_> = pieces.collect();
        match Moving::begin(&self.agent, XferOp::Write, &self.memory, &key.1, &pieces, &message) {
            Ok(moving) => {
                begun.insert(key.clone());
                add(&prefill.counters.pushes, 1);
                Some(Pushing { key, addresses, moving, begun: Instant::now(), guard })
            }
            Err(_) => {
                add(&prefill.counters.pushes_failed, 1);
                None
            }
        }
    }

    /// All is written: the rank needs the blocks no more.
    fn end(&self, prefill: &Prefill, pushing: Pushing) {
        let Pushing { key: (id, agent), addresses, guard, .. } = pushing;
        if !prefill.pool.holds(&addresses) {
            add(&prefill.counters.pushes_torn, 1);
        }
        let now = prefill.clock.now();
        if let Some(consumer) = prefill.registry.get(&agent) {
            let notified = prefill.tracker.notify_expecting(&id, consumer, prefill.consumers, now);
            let release = notified.release();
            release.into_iter().for_each(|release| prefill.free(release, ReleasedBy::Notification));
        }
        guard.end(now).into_iter().for_each(|release| prefill.free(release, ReleasedBy::TransferEnd));
    }
}

// ---- A decode process ----

/// The decode process of the prefill process that listens there.
pub fn decode_process(address: SocketAddr) -> Result<(), String> {
    let control = TcpStream::connect(address).map_err(context("the control connection"))?;
    control.set_nodelay(true).map_err(context("the control connection"))?;
    let mut from = BufReader::new(control.try_clone().map_err(context("the control connection"))?);
    let mut next = || hear::<ToDecode>(&mut from).map_err(context("the control connection"));
    let Some(ToDecode::Be { engine, habits, push, prefill, pool, block_len, most }) = next()? else {
        return Err("nobody says who to be".into());
    };
    let prefill = Handshake::from_bytes(&prefill).map_err(context("the handshake of the prefill process"))?;
    // With --push nothing can be stale once it is here; until then, the rank is told what it will not get.
    let replies = if push || !habits.waits_for_verdict { Replies::Stale } else { Replies::All };
    let mut links = VecDeque::new();
    let mut ranks = Vec::new();
    for rank in 0..habits.consumers {
        let link = NixlLink::new(&rank_name(engine, rank), &prefill, push, pool, block_len, most)?;
        ranks.push(link.agent.handshake(replies).map_err(|error| error.to_string())?.to_bytes());
        links.push_back(link);
    }
    tell(&control, &ToPrefill::Ready { ranks }).map_err(context("the control connection"))?;
    let Some(ToDecode::Start { now_ms, speed, up_at_ms }) = next()? else {
        return Err("nobody says when to start".into());
    };
    let clock = ScaledClock::reading(Timestamp::from_millis(now_ms), speed);
    let up_at = Timestamp::from_millis(up_at_ms);

    let control = Mutex::new(control);
    thread::scope(|scope| {
        let (habits, control) = (&habits, &control);
        let mut inboxes = Vec::new();
        for (n, link) in links.into_iter().enumerate() {
            let (hand_over, inbox) = mpsc::channel();
            inboxes.push(hand_over);
            let rank = Rank { name: rank_name(engine, n as u32), up_at, dies_at: None, clock, habits };
            scope.spawn(move || {
                let mut told = ReadCounts::default();
                let counts = rank.run(
                    |_| link,
                    inbox,
                    |counts| {
                        if *counts != told {
                            told = *counts;
                            let message = ToPrefill::Counts { rank: n, counts: told };
                            // Nobody to tell: this process ends below.
                            _ = tell(&control.lock().unwrap(), &message);
                        }
                    },
                );
                _ = tell(&control.lock().unwrap(), &ToPrefill::Counts { rank: n, counts });
            });
        }
        while let Ok(Some(ToDecode::Request { rank, id, starts_ms, lasts_us, freeze_ms, blocks })) = next() {
            let read = Read {
                starts_at: Timestamp::from_millis(starts_ms),
                lasts: Duration::from_micros(lasts_us),
                freeze: freeze_ms.map(Duration::from_millis),
            };
            let request = Planned {
                id,
                blocks: blocks.len() as u32,
                handed_at: Timestamp::ZERO,
                tracked_at: Timestamp::ZERO,
                expected_known: true,
                abort_at: None,
                push: None,
                // This rank's at its own place.
                reads: vec![read; rank + 1],
            };
            let addresses = blocks.into_iter().map(|(index, word)| BlockRef { index, word }).collect();
            let Some(inbox) = inboxes.get(rank) else { continue };
            // Fails only when the rank has panicked.
            _ = inbox.send(HandOver { request: Arc::new(request), addresses, rank });
        }
        drop(inboxes);
    });
    tell(&control.into_inner().unwrap(), &ToPrefill::Done).map_err(context("the control connection"))
}

/// How blocks and messages come to a rank over NIXL: by READs of its own or, with `--push`, by WRITEs that it asks for.
struct NixlLink {
    agent: Agent,
    prefill: Arc<str>,
    push: bool,
    /// Where the pool begins in the prefill process.
    pool: u64,
    block_len: usize,
    memory: Memory,
    slot_len: usize,
    free_slots: Vec<usize>,
    /// Requests that have been written here.
    pushed: HashSet<Arc<str>>,
}

/// A request that is being fetched into a slot.
struct Fetching {
    slot: usize,
    addresses: Arc<[BlockRef]>,
    how: How,
}

enum How {
    Read(Result<Moving, nixl_sys::NixlError>),
    Push {
        id: Arc<str>,
        registration: Vec<u8>,
        ask_at: Timestamp,
        give_up_at: Timestamp,
    },
    /// Nothing will be written into the slot any more.
    Over,
    /// What was asked for has not come, and may yet.
    GivenUp,
}

impl NixlLink {
    fn new(
        name: &str,
        prefill: &Handshake,
        push: bool,
        pool: u64,
        block_len: usize,
        most: u32,
    ) -> Result<Self, String> {
        let agent = Agent::new(name, &settings()).map_err(|error| error.to_string())?;
        let slot_len = most as usize * block_len;
        let memory = Memory::register(&agent, AT_ONCE * slot_len).map_err(context("memory to read into"))?;
        agent.connect(prefill).map_err(|error| error.to_string())?;
        let (prefill, free_slots) = (prefill.name.as_str().into(), (0..AT_ONCE).collect());
        Ok(NixlLink { agent, prefill, push, pool, block_len, memory, slot_len, free_slots, pushed: HashSet::new() })
    }

    /// Whether every block is what it was to be.
    fn intact(&self, fetching: &Fetching) -> bool {
        let mut bytes = vec![0; self.block_len];
        fetching.addresses.iter().enumerate().all(|(n, block)| {
            self.memory.read(fetching.slot * self.slot_len + n * self.block_len, &mut bytes);
            bytes == block_bytes(*block, self.block_len)
        })
    }
}

impl NotificationSource for NixlLink {
    fn poll(&mut self, on: &mut dyn FnMut(&str, &[u8])) -> Result<usize, TransportError> {
        let NixlLink { agent, pushed, .. } = self;
        agent.poll(&mut |from, message| match message.strip_prefix(PUSHED).map(std::str::from_utf8) {
            Some(Ok(id)) => drop(pushed.insert(id.into())),
            _ => on(from, message),
        })
    }
}

impl Link for NixlLink {
    type Fetching = Fetching;

    fn send(&mut self, message: &Outgoing) {
        // And hopes: what is lost, the lease makes good.
        _ = self.agent.send(&message.agent, &message.message);
    }

    fn fetch(
        &mut self,
        id: &str,
        addresses: &Arc<[BlockRef]>,
        completion: &Outgoing,
        now: Timestamp,
    ) -> Option<Fetching> {
        let slot = self.free_slots.pop()?;
        let offset = slot * self.slot_len;
        let how = if self.push {
            let wish = Registration {
                id: id.into(),
                address: self.memory.address() + offset as u64,
                len: self.slot_len as u64,
            };
            let json = serde_json::to_vec(&wish).expect("plain data");
            let registration = [wire::PUSH_REGISTRATION_PREFIX.as_bytes(), &json].concat();
            How::Push { id: wish.id, registration, ask_at: now, give_up_at: now + ASK_AGAIN * ATTEMPTS }
        } else {
            let pieces = addresses.iter().enumerate().map(|(n, block)| Piece {
                offset: offset + n * self.block_len,
                remote: self.pool + block.index as u64 * self.block_len as u64,
                len: self.block_len,
            });
            let pieces: Vec<_> = pieces.collect();
            let agent = self.agent.raw();
            How::Read(Moving::begin(agent, XferOp::Read, &self.memory, &self.prefill, &pieces, &completion.message))
        };
        Some(Fetching { slot, addresses: Arc::clone(addresses), how })
    }

    fn fetched(&mut self, fetching: &mut Fetching, now: Timestamp) -> Fetched {
        match &mut fetching.how {
            How::Over | How::GivenUp => return Fetched::Failed,
            How::Read(Ok(moving)) => match moving.poll() {
                Ok(false) => return Fetched::UnderWay,
                Ok(true) => {}
                Err(_) => return Fetched::Failed,
            },
            How::Read(Err(_)) => return Fetched::Failed,
            How::Push { id, registration, ask_at, give_up_at } => {
                if !self.pushed.remove(id) {
                    if now >= *give_up_at {
                        fetching.how = How::GivenUp;
                        return Fetched::Failed;
                    }
                    if now >= *ask_at {
                        *ask_at = now + REGISTER_AGAIN;
                        _ = self.agent.send(&self.prefill, registration);
                    }
                    return Fetched::UnderWay;
                }
            }
        }
        let push = self.push;
        fetching.how = How::Over;
        Fetched::Here { stale: !self.intact(fetching), told: true, sure: push }
    }

    fn drop_fetched(&mut self, fetching: Fetching) {
        // A slot that may still be written to is not used again. One that the prefill side has refused to write to
        // (which comes as a stale reply) never will be.
        if !matches!(fetching.how, How::GivenUp) {
            self.free_slots.push(fetching.slot);
        }
    }
}
