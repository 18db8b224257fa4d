//! The tracker at full speed for as long as you like, with faults injected and the books checked all the way.
//!
//! ```sh
//! cargo run --release --example soak -- --minutes 10
//! ```
//!
//! ```text
//!   engine ─ track, abort, sweep, death of an engine ─▶ ranks of the decode side (two threads)
//!   transfer thread: begin, end, drop                    │ completions, heartbeats, junk; late, doubled, never
//!   notification threads: notify, renew ◀── network ─────┘ (loses, doubles, delays, reorders)
//! ```
//!
//! The work comes in rounds. All threads work at once and without a pause for the length of a round; at its end they
//! stop at a barrier, and then every count that the tracker shows must be exactly what this program has counted
//! itself: what was tracked is completed, expired, aborted or live; each payload that is not held came out once,
//! and the block pool, which knows nothing of leases, agrees. Leases live on from round to round.
//!
//! Memory must not grow: the resident set in the last fifth of the run is compared with that in the second
//! (on Linux; elsewhere it is not looked at, and the summary says so).
//!
//! Exit code 0 if all of this held, 1 if not, 2 for wrong arguments. `--sabotage` breaks this program on purpose, to see
//! that it notices.

use clap::{Parser, ValueEnum};
use comfy_table::{Table, presets};
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressStyle};
use kvlease::transport::in_process::{Agent, Faults, Network};
use kvlease::transport::{NotificationSink, NotificationSource};
use kvlease::wire::{self, Message};
use kvlease::{
    Clock, Config, ConsumerId, ConsumerRegistry, Notification, Outcome, Release, SendTracker, Stats, Terms, Timestamp,
};
use pool::{BlockPool, Pinned};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::VecDeque;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release as Publish};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

#[allow(dead_code)] // what only the handoff example needs
#[path = "handoff/pool.rs"]
mod pool;

/// Requests in a round.
const ROUND: u32 = 10_000;
/// Blocks of the pool: so many leases fit that some thousands wait, and a leak is felt soon.
const BLOCKS: u32 = 1 << 15;
const MOST_BLOCKS: u32 = 8;
/// Threads that play the decode side.
const READERS: usize = 2;
/// Ranks of a decode engine, all of which read each request.
const RANKS: usize = 4;
const LEASE: Duration = Duration::from_millis(100);
const EARLY: usize = 1_024;
const TOMBSTONES: usize = 16_384;
/// After so many rounds a decode engine dies, and another takes its place.
const ROUNDS_OF_LIFE: u64 = 25;
const PREFILL: &str = "prefill-0";

/// Run the tracker at full speed, with faults, and check its books all the way.
#[derive(Parser, Debug)]
#[command(name = "soak")]
struct Cli {
    /// How long
    #[arg(long, default_value_t = 10.0, value_parser = minutes)]
    minutes: f64,

    /// Notification threads
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,

    /// Decides who does what; the threads race all the same
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Break this program on purpose, to see that its checks notice: the exit code must be 1
    #[arg(long, value_enum, value_name = "HOW", help_heading = "Self-test")]
    sabotage: Option<Sabotage>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Sabotage {
    /// Free the blocks of one release never
    Leak,
    /// Free the blocks of one release twice
    DoubleRelease,
    /// Count one completed lease too many
    Miscount,
    /// Keep some memory of every request
    Grow,
}

fn minutes(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(minutes) if (0.01..=100_000.0).contains(&minutes) => Ok(minutes),
        _ => Err("expected minutes, from 0.01 to 100000".into()),
    }
}

/// What this program counts itself.
#[derive(Default)]
struct Books {
    tracked: AtomicU64,
    /// Leases whose release came out, by outcome.
    released: [AtomicU64; 3],
    weight_in: AtomicU64,
    weight_out: AtomicU64,
    double_released: AtomicU64,
    messages: AtomicU64,
    malformed: AtomicU64,
    stale: AtomicU64,
    transfers: AtomicU64,
    open_transfers: AtomicU64,
    sabotaged: AtomicBool,
}

/// What all threads share.
struct World {
    tracker: Arc<SendTracker<Pinned>>,
    pool: BlockPool,
    agents: ConsumerRegistry,
    clock: Clock,
    books: Books,
    sabotage: Option<Sabotage>,
    /// What the sabotage by growth keeps.
    kept: Mutex<Vec<Vec<u8>>>,
    /// The round is over for those who send: what has not arrived yet, arrives in the next one.
    sent: AtomicBool,
    stop: AtomicBool,
    barrier: Barrier,
}

/// A request on its way to the decode side.
struct Request {
    id: Arc<str>,
    engine: u64,
}

fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Relaxed);
}

/// Each reader thread has ranks of its own, for an agent is one of its name.
fn rank_name(engine: u64, reader: usize, rank: usize) -> String {
    format!("decode-{engine}.{reader}/rank-{rank}")
}

impl World {
    /// The one place where blocks go back.
    fn free(&self, release: Release<Pinned>) {
        let books = &self.books;
        add(&books.released[release.outcome as usize], 1);
        add(&books.weight_out, release.weight.into());
        let first = |how| self.sabotage == Some(how) && !books.sabotaged.swap(true, Relaxed);
        if first(Sabotage::Leak) {
            return;
        }
        if first(Sabotage::Miscount) {
            add(&books.released[Outcome::Completed as usize], 1);
        }
        if first(Sabotage::DoubleRelease) {
            _ = self.pool.free_addresses(&release.payload.addresses());
        }
        if self.sabotage == Some(Sabotage::Grow) {
            self.kept.lock().unwrap().push(vec![1; 512]);
        }
        self.give_back(release.payload);
    }

    fn give_back(&self, blocks: Pinned) {
        if self.pool.free(blocks).is_err() {
            add(&self.books.double_released, 1);
        }
    }

    fn sweep(&self, now: Timestamp) {
        self.tracker.sweep(now).released.into_iter().for_each(|release| self.free(release));
    }

    /// Waits until all threads have finished the round, and the books are checked. False if that was the last.
    fn next_round(&self) -> bool {
        self.barrier.wait();
        self.barrier.wait();
        !self.stop.load(Relaxed)
    }

    /// The engine: tracks, gives up, sweeps.
    fn engine(&self, mut rng: SmallRng, readers: &[SyncSender<Request>; READERS], transfers: &SyncSender<Arc<str>>) {
        let mut number = 0_u64;
        for round in 0.. {
            let engine = round / ROUNDS_OF_LIFE;
            if round % ROUNDS_OF_LIFE == 0 && round > 0 {
                self.bury_engine(engine - 1);
            }
            for _ in 0..ROUND {
                number += 1;
                // Most ids are new. Some are used again while their last life is remembered.
                let life =
                    if rng.random_bool(0.02) { number.saturating_sub(rng.random_range(0..5_000)) } else { number };
                self.request(&mut rng, life, engine, readers, transfers);
                if number % 64 == 0 {
                    self.sweep(self.clock.now());
                }
            }
            self.sent.store(true, Publish);
            if !self.next_round() {
                return;
            }
        }
    }

    fn request(
        &self,
        rng: &mut SmallRng,
        number: u64,
        engine: u64,
        readers: &[SyncSender<Request>; READERS],
        transfers: &SyncSender<Arc<str>>,
    ) {
        let id: Arc<str> = match number % 4 {
            0 => format!("cmpl-{number:08x}-5680-4bd1-97f9-7ed31a56de60-0").into(),
            1 => format!("chatcmpl-{number:032x}").into(),
            2 => format!("{number}:host-{:->80}", number % 97).into(),
            _ => format!("r{number}").into(),
        };
        // The decode side may hear of it before `track`, and then its messages may come before it, too.
        let early = rng.random_bool(0.02);
        let reader = number as usize % readers.len();
        let hand_over = |id: Arc<str>| readers[reader].send(Request { id, engine }).expect("the readers are there");
        if early {
            hand_over(Arc::clone(&id));
            thread::yield_now();
        }
        if rng.random_bool(0.005) {
            self.abort(&id);
        }
        let blocks = self.blocks(rng.random_range(1..=MOST_BLOCKS));
        let now = self.clock.now();
        let weight = blocks.addresses().len() as u32;
        let mut terms = Terms::until(now + LEASE).weight(weight);
        // Some learn the count from a message, some are for nobody, some wait for a named engine.
        match rng.random_range(0..100) {
            0..10 => {}
            10 => terms = terms.consumers(0),
            _ => terms = terms.consumers(RANKS as u32),
        }
        if let (true, Some(rank)) = (rng.random_bool(0.5), self.agents.get(&rank_name(engine, reader, 0))) {
            terms = terms.waits_for(rank);
        }
        match self.tracker.track(&id, terms, blocks, now) {
            Ok(tracked) => {
                add(&self.books.tracked, 1);
                add(&self.books.weight_in, weight.into());
                if let Some(release) = tracked.release() {
                    self.free(release);
                }
            }
            // An id that was used again too soon.
            Err(refused) => self.give_back(refused.payload),
        }
        if rng.random_bool(0.1) {
            transfers.send(Arc::clone(&id)).expect("the transfer thread is there");
        }
        if rng.random_bool(0.01) {
            self.abort(&id);
        }
        if !early {
            hand_over(id);
        }
    }

    /// Blocks for a request, as soon as there are enough.
    fn blocks(&self, count: u32) -> Pinned {
        let patience = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(blocks) = self.pool.allocate(count) {
                return blocks;
            }
            assert!(Instant::now() < patience, "no block came free for 30 s: {:?}", self.tracker.stats());
            self.sweep(self.clock.now());
            thread::yield_now();
        }
    }

    fn abort(&self, id: &str) {
        if let Some(release) = self.tracker.abort(id, self.clock.now()).release() {
            self.free(release);
        }
    }

    /// A decode engine has died: whoever waited for it need not any longer.
    fn bury_engine(&self, engine: u64) {
        let names = |engine| (0..READERS * RANKS).map(move |n| rank_name(engine, n / RANKS, n % RANKS));
        let dead: Vec<ConsumerId> = names(engine).filter_map(|name| self.agents.forget(&name)).collect();
        // What was under way from the one before has made its names known again.
        names(engine.saturating_sub(1)).for_each(|name| _ = self.agents.forget(&name));
        let released = self.tracker.expire_consumers(&dead, self.clock.now());
        released.into_iter().for_each(|release| self.free(release));
    }

    /// Some ranks of the decode side: what they send for each request.
    fn reader(&self, mut rng: SmallRng, reader: usize, requests: &Receiver<Request>, network: &Network) {
        let join =
            |engine| -> [Agent; RANKS] { std::array::from_fn(|rank| network.agent(&rank_name(engine, reader, rank))) };
        let mut engine = 0;
        let mut agents = join(engine);
        let mut recent: VecDeque<Arc<str>> = VecDeque::new();
        let mut message = Vec::new();
        loop {
            while let Some(request) = self.next(requests) {
                if request.engine != engine {
                    engine = request.engine;
                    agents = join(engine);
                }
                for agent in &agents {
                    // Some never read, some say it twice.
                    let times = match rng.random_range(0..1_000) {
                        0..5 => 0,
                        5..15 => 2,
                        _ => 1,
                    };
                    for _ in 0..times {
                        // Some say it long after, some expect another number.
                        let late = recent.front().filter(|_| rng.random_bool(0.005));
                        let expected = if rng.random_bool(0.002) { 3 } else { RANKS as u32 };
                        message.clear();
                        wire::write_completion(late.unwrap_or(&request.id), expected, &mut message).expect("sendable");
                        self.send(agent, &message);
                    }
                }
                recent.push_back(request.id);
                if recent.len() > 500 {
                    recent.pop_front();
                }
                if rng.random_bool(0.002) {
                    message.clear();
                    wire::write_heartbeat(recent.iter().map(|id| &**id), &mut message).expect("sendable");
                    self.send(&agents[0], &message);
                }
                if rng.random_bool(0.01) {
                    let junk: [&[u8]; 5] = [b"hello", b"a:x", b":1", b"\xff\xfe", b"r1:99999999999"];
                    self.send(&agents[1], junk[rng.random_range(0..junk.len())]);
                }
            }
            if !self.next_round() {
                return;
            }
        }
    }

    /// The next one of this round.
    fn next<T>(&self, queue: &Receiver<T>) -> Option<T> {
        loop {
            // Looked at before the queue, so that what was sent before the end is met.
            let last = self.sent.load(Acquire);
            match queue.recv_timeout(Duration::from_millis(1)) {
                Ok(next) => return Some(next),
                Err(_) if last => return None,
                Err(_) => {}
            }
        }
    }

    fn send(&self, agent: &Agent, message: &[u8]) {
        agent.send(PREFILL, message).expect("the prefill side is there to the end");
    }

    /// Transfers of the producer's own, some of which outlive their lease, and some a round.
    fn transfers(&self, mut rng: SmallRng, ids: &Receiver<Arc<str>>) {
        let mut open = VecDeque::new();
        loop {
            while let Some(id) = self.next(ids) {
                if let Ok(transfer) = self.tracker.begin_transfer_owned(&id) {
                    add(&self.books.transfers, 1);
                    open.push_back(transfer);
                }
                if open.len() > 64 || rng.random_bool(0.3) {
                    let Some(transfer) = open.pop_front() else { continue };
                    if rng.random_bool(0.3) {
                        // The release, if there is one, is the next sweep's.
                        drop(transfer);
                    } else if let Some(release) = transfer.end(self.clock.now()) {
                        self.free(release);
                    }
                }
            }
            self.books.open_transfers.store(open.len() as u64, Relaxed);
            if !self.next_round() {
                return;
            }
        }
    }

    /// A notification thread: whatever one poll brings is one batch.
    fn notifications(&self, source: &Mutex<Agent>) {
        let mut inbox: Vec<(ConsumerId, Vec<u8>)> = Vec::new();
        loop {
            loop {
                let last = self.sent.load(Acquire);
                inbox.clear();
                let poll = source.lock().unwrap().poll(&mut |agent, message| {
                    let sender = self.agents.intern(agent).expect("there is room for these few names");
                    inbox.push((sender, message.to_vec()));
                });
                poll.expect("the prefill side is there to the end");
                self.handle(&inbox);
                if inbox.is_empty() {
                    if last {
                        break;
                    }
                    thread::yield_now();
                }
            }
            if !self.next_round() {
                return;
            }
        }
    }

    fn handle(&self, inbox: &[(ConsumerId, Vec<u8>)]) {
        let (books, now) = (&self.books, self.clock.now());
        add(&books.messages, inbox.len() as u64);
        let completions = inbox.iter().filter_map(|(sender, bytes)| match wire::parse(bytes) {
            Ok(Message::Completion(done)) => {
                Some(Notification { id: done.id, consumer: *sender, expected: Some(done.expected) })
            }
            Ok(Message::Heartbeat(heartbeat)) => {
                _ = self.tracker.renew_batch(heartbeat.ids(), now + LEASE, Some(*sender), now);
                None
            }
            Ok(_) => None,
            Err(_) => {
                add(&books.malformed, 1);
                None
            }
        });
        self.tracker.notify_batch(completions, now, |_, notified| {
            if matches!(notified.verdict(), Some(Outcome::Expired | Outcome::Aborted)) {
                add(&books.stale, 1);
            }
            if let Some(release) = notified.release() {
                self.free(release);
            }
        });
    }

    /// All that must hold while every thread waits at the barrier.
    fn audit(&self) -> Result<Stats, String> {
        let (stats, books) = (self.tracker.stats(), &self.books);
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        let equal = |what: &str, shown: u64, counted: u64| match shown == counted {
            true => Ok(()),
            false => Err(format!("{what}: the tracker shows {shown}, counted were {counted}; {stats:?}")),
        };
        equal("tracked", stats.tracked, get(&books.tracked))?;
        let ended = stats.completed + stats.expired + stats.aborted;
        equal("completed + expired + aborted + live", ended + stats.live, stats.tracked)?;
        let out = books.released.each_ref().map(get);
        equal("released", stats.released, out.iter().sum())?;
        equal("released + pending", stats.released + stats.release_pending, ended)?;
        let ends = [
            (Outcome::Completed, stats.completed),
            (Outcome::Expired, stats.expired),
            (Outcome::Aborted, stats.aborted),
        ];
        for (outcome, shown) in ends {
            let counted = out[outcome as usize];
            if counted > shown || shown - counted > stats.release_pending {
                return Err(format!("{outcome}: the tracker shows {shown}, released were {counted}; {stats:?}"));
            }
        }
        equal("weight held", stats.weight_held, get(&books.weight_in) - get(&books.weight_out))?;
        equal("blocks allocated", stats.weight_held, self.pool.allocated() as u64)?;
        equal(
            "leases that are live",
            self.tracker.leases().filter(|lease| lease.outcome.is_none()).count() as u64,
            stats.live,
        )?;
        equal("transfers", stats.transfers, get(&books.open_transfers))?;
        equal("releases of blocks that were not held", 0, get(&books.double_released))?;
        if stats.early > EARLY as u64 || stats.tombstones > TOMBSTONES as u64 {
            return Err(format!("early messages or tombstones are past their limits: {stats:?}"));
        }
        Ok(stats)
    }

    /// Ends what is left, as a shutdown does.
    fn finish(&self) -> Result<Stats, String> {
        self.books.open_transfers.store(0, Relaxed); // their guards were dropped
        self.audit()?;
        let patience = Instant::now() + Duration::from_secs(5);
        while self.tracker.stats().live > 0 {
            if Instant::now() > patience {
                return Err(format!("leases that never run out: {:?}", self.tracker.oldest(3)));
            }
            self.sweep(self.clock.now());
            thread::sleep(Duration::from_millis(5));
        }
        self.tracker.shutdown(self.clock.now()).into_iter().for_each(|release| self.free(release));
        let stats = self.audit()?;
        match [stats.live, stats.release_pending, stats.weight_held, stats.early, stats.transfers] {
            [0, 0, 0, 0, 0] => Ok(stats),
            _ => Err(format!("something is left after the shutdown: {stats:?}")),
        }
    }
}

/// The resident set in bytes, where the system tells it.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// The most in the second fifth of the run and in the last one; an error if the latter is a good deal more.
fn flat(samples: &[u64]) -> Result<Option<(u64, u64)>, String> {
    let fifth = samples.len() / 5;
    let most = |part: &[u64]| part.iter().copied().max();
    let parts = most(&samples[fifth..2 * fifth]).zip(most(&samples[4 * fifth..]));
    match parts {
        Some((early, late)) if late > early + (early / 20).max(4 << 20) => Err(format!(
            "memory grows: {} in the second fifth of the run, {} in the last",
            HumanBytes(early),
            HumanBytes(late)
        )),
        parts => Ok(parts),
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    // A thread that panics leaves the others waiting for it.
    let report_panic = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        report_panic(info);
        std::process::exit(1);
    }));

    let clock = Clock::new();
    let faults =
        Faults { loss: 0.01, duplicate: 0.02, delay: Duration::from_millis(20), reorder: 0.05, seed: cli.seed };
    let network = Network::new(faults, move || clock.now()).expect("these are probabilities");
    let config = Config {
        early_capacity: EARLY,
        early_ttl: Duration::from_millis(200),
        tombstone_capacity: TOMBSTONES,
        tombstone_ttl: Duration::from_secs(1),
        ..Config::default()
    };
    let world = World {
        tracker: Arc::new(SendTracker::with_config(config)),
        pool: BlockPool::new(BLOCKS),
        agents: ConsumerRegistry::new(),
        clock,
        books: Books::default(),
        sabotage: cli.sabotage,
        kept: Mutex::default(),
        sent: AtomicBool::new(false),
        stop: AtomicBool::new(false),
        // Engine, readers, transfers, notifications, and the one that checks.
        barrier: Barrier::new(1 + READERS + 1 + cli.threads as usize + 1),
    };
    let prefill = Mutex::new(network.agent(PREFILL));
    let length = Duration::from_secs_f64(cli.minutes * 60.0);
    let bar = ProgressBar::new(length.as_secs().max(1)).with_style(
        ProgressStyle::with_template("{bar:40} {elapsed} of {len} s, {msg}").expect("the template is well-formed"),
    );

    let began = Instant::now();
    let (mut rounds, mut samples, mut failures) = (0_u64, Vec::new(), Vec::new());
    thread::scope(|scope| {
        let (world, network, prefill) = (&world, &network, &prefill);
        let rng = |n| SmallRng::seed_from_u64(cli.seed.wrapping_mul(100) + n);
        let queues: [_; READERS] = std::array::from_fn(|_| sync_channel(1_024));
        let readers = queues.each_ref().map(|(sender, _)| sender.clone());
        for (n, (_, requests)) in queues.into_iter().enumerate() {
            scope.spawn(move || world.reader(rng(n as u64), n, &requests, network));
        }
        let (to_transfer, ids) = sync_channel(1_024);
        scope.spawn(move || world.transfers(rng(98), &ids));
        for _ in 0..cli.threads {
            scope.spawn(|| world.notifications(prefill));
        }
        scope.spawn(move || world.engine(rng(99), &readers, &to_transfer));

        while !world.stop.load(Relaxed) {
            world.barrier.wait();
            rounds += 1;
            failures.extend(world.audit().err().map(|failure| format!("round {rounds}: {failure}")));
            samples.extend(resident());
            if began.elapsed() >= length || !failures.is_empty() {
                world.stop.store(true, Relaxed);
            }
            world.sent.store(false, Relaxed);
            let rate = world.books.tracked.load(Relaxed) as f64 / began.elapsed().as_secs_f64();
            bar.set_position(began.elapsed().as_secs());
            bar.set_message(format!(
                "{} requests, {} a second, {} resident",
                HumanCount(world.books.tracked.load(Relaxed)),
                HumanCount(rate as u64),
                samples.last().map_or("?".into(), |bytes| HumanBytes(*bytes).to_string()),
            ));
            world.barrier.wait();
        }
    });
    bar.finish_and_clear();

    let stats = match world.finish() {
        Ok(stats) => stats,
        Err(failure) => {
            failures.push(format!("at the end: {failure}"));
            world.tracker.stats()
        }
    };
    let memory = match flat(&samples) {
        Ok(Some((early, late))) => {
            format!("{} in the second fifth, {} in the last", HumanBytes(early), HumanBytes(late))
        }
        Ok(None) => "not looked at".into(),
        Err(failure) => {
            failures.push(failure);
            "grows".into()
        }
    };
    println!("{}", summary(&world, &stats, rounds, began.elapsed(), &memory));
    for failure in &failures {
        println!("FAILED: {failure}");
    }
    if failures.is_empty() {
        println!("the books balanced in each of {rounds} rounds");
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn summary(world: &World, stats: &Stats, rounds: u64, took: Duration, memory: &str) -> Table {
    let count = |n: u64| HumanCount(n).to_string();
    let books = |counter: &AtomicU64| count(counter.load(Relaxed));
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.add_rows([
        ["rounds", &count(rounds)],
        ["requests", &count(stats.tracked)],
        ["  a second", &count((stats.tracked as f64 / took.as_secs_f64()) as u64)],
        ["completed", &count(stats.completed)],
        ["expired", &count(stats.expired)],
        ["aborted", &count(stats.aborted)],
        ["track refused", &count(stats.track_refused)],
        ["messages", &books(&world.books.messages)],
        ["  malformed", &books(&world.books.malformed)],
        ["  duplicates", &count(stats.duplicates)],
        ["  early", &count(stats.early_kept)],
        ["  late", &count(stats.late)],
        ["  unknown", &count(stats.unknown)],
        ["  conflicts", &count(stats.conflicts)],
        ["reads to be told stale", &books(&world.books.stale)],
        ["transfers", &books(&world.books.transfers)],
        ["resident set", memory],
    ]);
    table
}
