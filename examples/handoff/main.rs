//! A prefill side and a decode side, on a trace of arrivals: as threads of one process, or as processes that talk over
//! the real NIXL.
//!
//! ```sh
//! cargo run --release --example handoff                                    # generated arrivals
//! cargo run --release --example handoff -- --trace conversation.jsonl      # a Mooncake trace
//! cargo run --release --example handoff -- --loss 0.05 --duplicate 0.05 --delay 300 \
//!     --malformed-rate 0.02 --crash-decode-at 60                           # with faults
//! cargo run --release --example handoff -- --report run.html               # and a page to look at it
//! cargo run --release --features nixl --example handoff -- --transport nixl            # the decode side READs
//! cargo run --release --features nixl --example handoff -- --transport nixl --push     # the prefill side WRITEs
//! ```
//!
//! ```text
//!   prefill                                                        decode
//!   engine: track, abort, sweep ───────── hand-over ─────────▶ rank 0, 1, … (one thread each)
//!   transfer thread: begin, end                                 │  wait, with heartbeats
//!   notification threads ◀── heartbeats, completions (network) ─┤  read the blocks
//!                        ─── verdicts ────────── (network) ────▶│  use, or discard and recompute
//!                              block pool: the ground truth
//! ```
//!
//! [`prefill`] and [`decode`] are what a connector does with the crate, [`model`] and [`trace`] draw what
//! happens, [`pool`] knows the truth, and [`report`] compares; [`timeline`] takes notes for the [`page`] of `--report`.
//! Over NIXL, each decode engine is a process of its own,
//! the blocks are registered memory that the ranks really read, with the completion message riding on the READ, and
//! whether a read was stale is told by what was in the blocks: `nixl` and `rdma` do that. A crash is a SIGKILL.
//!
//! # When does a stale read count as reported?
//!
//! A read is *stale* when a block was released before the read was over. The pool knows; the rank that
//! read does not. The network may lose a completion, and it may lose the answer, so a rank cannot take
//! silence for good news. Hence, by default, it **waits for a verdict**: it sends its completion again
//! (every [`decode::ASK_AGAIN`] of trace time) until the prefill side has told it either way, and after
//! [`decode::ATTEMPTS`] it takes the read for unverified, discards it and has the request computed again.
//! So every read ends as *used* (told that it was in time), *told stale*, *unverified*, or *lost* with
//! its engine, and a stale read is unreported exactly when it was **used**. That must never happen,
//! whatever the network does. Being told stale needlessly may: between the end of a read and the arrival
//! of its completion, the lease can run out.
//!
//! With `--fire-and-forget` a rank sends once and uses what it read unless it is told otherwise, which costs
//! no waiting. That is enough as long as no message is lost, and as long as no reader comes back after the
//! prefill side has forgotten how its lease ended ([`REMEMBERED_FOR`] here). With `--loss` it is not, and the
//! run says so by its exit code.
//!
//! # Exit code
//!
//! 0 if all went well; 1 if anything was released twice, leaked, released under a transfer, or a stale
//! read went unreported, or if the page could not be written in the end; 2 if the arguments or the trace are no good or
//! the page has no place, and then nothing was started.

mod clock;
mod decode;
mod model;
#[cfg(feature = "nixl")]
mod nixl;
mod page;
mod pool;
mod prefill;
#[cfg(feature = "nixl")]
mod rdma;
mod report;
mod timeline;
mod trace;

use clap::{Parser, ValueEnum};
use clock::ScaledClock;
use decode::{Habits, InProcess, Rank, ReadCounts, Router};
use indicatif::{ProgressBar, ProgressStyle};
use kvlease::transport::in_process::{Faults, Network};
use kvlease::{Config, ConsumerRegistry, ExpiryPolicy, Replies, SendTracker, Timestamp};
use model::{Planned, Rates};
use page::Page;
use pool::BlockPool;
use prefill::{Counters, Prefill, Sabotage};
use report::{Account, NetworkCounts, Report};
use serde::{Serialize, Serializer};
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;
use timeline::Recorder;

/// How long after the death of a decode engine its replacement is up, and the prefill side is told.
const REPLACED_AFTER: Duration = Duration::from_secs(5);
const TOLD_AFTER: Duration = Duration::from_secs(10);

/// How long the prefill side remembers how a lease ended: longer than any reader is likely to be away,
/// since the completion of a request that is forgotten cannot be told from one that comes before `track`.
const REMEMBERED_FOR: Duration = Duration::from_secs(600);

/// No two requests ever wait for the same block, so the pool has as many as all of them fill. At most:
const MOST_BLOCKS: u64 = 1 << 28;

/// The name of the prefill side's agent.
const PREFILL: &str = "prefill-0";

/// Hand KV-cache blocks from a prefill side to a decode side, with the faults of real life, and check
/// that each block is released once and that no stale read stays silent.
#[derive(Parser, Clone, Debug, Serialize)]
#[command(name = "handoff", after_long_help = models())]
struct Cli {
    /// How messages and blocks travel
    #[arg(long, value_enum, default_value_t = Transport::InProcess)]
    transport: Transport,

    /// The prefill side writes the blocks to the decode side, instead of the other way round (only over NIXL)
    #[arg(long)]
    push: bool,

    /// Bytes in a block (only over NIXL)
    #[arg(long, value_name = "N", default_value_t = 1_024, value_parser = clap::value_parser!(u32).range(16..=1_048_576))]
    block_bytes: u32,

    /// A Mooncake trace, one JSON object a line: timestamp (ms), input_length, output_length, hash_ids.
    /// Without it, arrivals are generated in the shape of the conversation trace
    #[arg(long, value_name = "FILE")]
    #[serde(serialize_with = "path")]
    trace: Option<PathBuf>,

    /// How many requests to generate (2,000 if not given), or to take from the trace at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    requests: Option<u32>,

    /// Seconds of the trace that pass in one real second: at 150, an hour takes 24 s, and half a
    /// millisecond between two polls is 75 ms of the trace. With very many ranks, go slower
    #[arg(long, value_name = "FACTOR", default_value_t = 150.0, value_parser = between(0.01, 10_000.0))]
    speed: f64,

    /// Decode ranks that read each request
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=255))]
    consumers: u32,

    /// Notification threads of the prefill side
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,

    /// How long a lease runs, in seconds of the trace, from `track` and from each heartbeat
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, value_parser = between(0.1, 86_400.0))]
    lease: f64,

    /// How often a rank renews the leases of what it has not read yet, in seconds of the trace; 0 for
    /// never [default: a third of the lease]
    #[arg(long, value_name = "SECONDS", value_parser = between(0.0, 86_400.0))]
    heartbeat: Option<f64>,

    /// What becomes of a lease that runs out
    #[arg(long, value_enum, default_value_t = Policy::Release)]
    policy: Policy,

    /// Share of messages that the network loses, both ways
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = between(0.0, 1.0))]
    loss: f64,

    /// Share of messages that arrive twice
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = between(0.0, 1.0))]
    duplicate: f64,

    /// How long a message takes at most, in milliseconds of the trace; each draws its own, so they
    /// overtake one another
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=3_600_000))]
    delay: u64,

    /// Share of messages that are handed out before others that arrived with them
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = between(0.0, 1.0))]
    reorder: f64,

    /// When the decode engine dies, in seconds of the trace; 5 s later another takes new requests, 10 s
    /// later the prefill side is told
    #[arg(long, value_name = "SECONDS", value_parser = between(0.0, 2_592_000.0))]
    crash_decode_at: Option<f64>,

    /// Share of requests that the prefill side aborts, from just before `track` to the end of the reads
    #[arg(long, value_name = "SHARE", default_value_t = 0.01, value_parser = between(0.0, 1.0))]
    abort_rate: f64,

    /// Share of reads at whose start the rank freezes, sometimes for longer than the lease
    #[arg(long, value_name = "SHARE", default_value_t = 0.0002, value_parser = between(0.0, 1.0))]
    freeze_rate: f64,

    /// Share of requests of which the prefill side also sends blocks itself
    #[arg(long, value_name = "SHARE", default_value_t = 0.1, value_parser = between(0.0, 1.0))]
    push_rate: f64,

    /// Share of completions that are followed by a message that is none
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = between(0.0, 1.0))]
    malformed_rate: f64,

    /// Use what was read at once and listen for bad news, instead of waiting for a verdict
    #[arg(long)]
    fire_and_forget: bool,

    /// Same seed, same arrivals, hold times and faults; the threads race all the same
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// Also write a page for a browser: each lease from `track` to its end, how many there were at a time and how old
    /// they grew, the faults and what was made of them. One file that needs no network
    #[arg(long, value_name = "FILE.html")]
    #[serde(serialize_with = "path")]
    report: Option<PathBuf>,

    /// Be the decode process of the prefill process that listens here
    #[arg(long, value_name = "ADDRESS", hide = true)]
    decode_process: Option<std::net::SocketAddr>,

    /// Break this program on purpose, to see that its checks notice: the exit code must be 1
    #[arg(long, value_enum, value_name = "HOW", help_heading = "Self-test")]
    sabotage: Option<Sabotage>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Transport {
    /// Threads of one process, with the network's faults on request
    InProcess,
    /// Processes, over the real NIXL (by the feature of that name)
    Nixl,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Policy {
    /// It ends, and its blocks are released: a slow reader may read what is not there any more
    Release,
    /// It is reported and kept: a reader that never comes back keeps its blocks
    Hold,
}

/// A path as text, also one that is not UTF-8.
fn path<S: Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
    path.as_deref().map(Path::to_string_lossy).serialize(to)
}

fn models() -> String {
    format!("Generated arrivals: {}\n\nHold times, which no public trace has: {}", trace::GENERATOR, model::HOLD_MODEL)
}

/// A parser of numbers from `min` to `max`.
fn between(min: f64, max: f64) -> impl Fn(&str) -> Result<f64, String> + Clone {
    move |text| match text.parse::<f64>() {
        Ok(value) if (min..=max).contains(&value) => Ok(value),
        _ => Err(format!("expected a number from {min} to {max}")),
    }
}

fn main() -> ExitCode {
    ExitCode::from(main_with(std::env::args_os(), &mut io::stdout(), &mut io::stderr()))
}

/// The whole program, but for where its output goes; returns the exit code.
pub fn main_with<'a>(args: impl IntoIterator<Item = OsString>, out: &'a mut dyn Write, err: &'a mut dyn Write) -> u8 {
    // Who closes the pipe has seen enough: what cannot be written is not an error.
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(usage) => {
            let (to, code) = if usage.use_stderr() { (err, 2) } else { (out, 0) };
            _ = write!(to, "{}", usage.render());
            return code;
        }
    };
    if let Some(address) = cli.decode_process {
        return match decode_process(address) {
            Ok(()) => 0,
            Err(message) => {
                _ = writeln!(err, "error: decode process: {message}");
                2
            }
        };
    }
    let arrivals = check(&cli).and_then(|()| arrivals(&cli));
    let done = arrivals.and_then(|(arrivals, source)| {
        let page = cli.report.as_deref().map(Page::create).transpose()?;
        let recorder = page.is_some().then(|| Arc::new(Recorder::new(events(&cli))));
        let report = match cli.transport {
            Transport::InProcess => run(&cli, &arrivals, source, recorder.clone()),
            Transport::Nixl => run_over_nixl(&cli, &arrivals, source, recorder.clone())?,
        };
        Ok((report, page.zip(recorder)))
    });
    let (report, page) = match done {
        Ok(done) => done,
        Err(message) => {
            _ = writeln!(err, "error: {message}");
            return 2;
        }
    };
    let json = serde_json::to_string(&report).expect("a report is plain data");
    _ = if cli.json { writeln!(out, "{json}") } else { writeln!(out, "{report}") };
    if let Some((page, recorder)) = page {
        if let Err(message) = page.write(&json, &recorder.timeline(lease(&cli))) {
            _ = writeln!(err, "error: {message}");
            return 1;
        }
    }
    u8::from(!report.failures.is_empty())
}

/// The arrivals, and in words where they are from.
fn arrivals(cli: &Cli) -> Result<(Vec<trace::Arrival>, String), String> {
    let (arrivals, source) = match &cli.trace {
        Some(path) => {
            let mut arrivals = trace::read(path).map_err(|e| e.to_string())?;
            arrivals.truncate(cli.requests.map_or(usize::MAX, |n| n as usize));
            (arrivals, path.display().to_string())
        }
        None => (
            trace::generate(cli.requests.unwrap_or(2_000) as usize, cli.seed),
            format!("generated: {}", trace::GENERATOR),
        ),
    };
    let end = arrivals.last().map_or(0, |last| last.at_ms) as f64 / 1_000.0;
    if let Some(at) = cli.crash_decode_at.filter(|at| *at > end) {
        return Err(format!("--crash-decode-at {at}: the last request arrives at {end} s"));
    }
    let blocks: u64 = arrivals.iter().map(|arrival| u64::from(arrival.blocks)).sum();
    if blocks > MOST_BLOCKS {
        return Err(format!(
            "the requests fill {blocks} blocks, the pool has {MOST_BLOCKS}: take fewer, with --requests"
        ));
    }
    let (input, output) =
        arrivals.iter().fold((0, 0), |(i, o), arrival| (i + arrival.input_tokens, o + arrival.output_tokens));
    let source = format!("{} requests in {end:.0} s, {input} tokens in, {output} out; {source}", arrivals.len());
    Ok((arrivals, source))
}

/// Whether the arguments go together.
fn check(cli: &Cli) -> Result<(), String> {
    let over_nixl = cli.transport == Transport::Nixl;
    if over_nixl && (cli.loss, cli.duplicate, cli.delay, cli.reorder) != (0.0, 0.0, 0, 0.0) {
        return Err(
            "--loss, --duplicate, --delay and --reorder are for --transport in-process: NIXL has no such faults".into(),
        );
    }
    if cli.push && !over_nixl {
        return Err("--push is for --transport nixl".into());
    }
    Ok(())
}

#[cfg(feature = "nixl")]
use nixl::{decode_process, run_over_nixl};

#[cfg(not(feature = "nixl"))]
const NO_NIXL: &str = "--transport nixl is not in this build: build it with --features nixl \
    (scripts/fetch-nixl brings what that needs)";

#[cfg(not(feature = "nixl"))]
fn run_over_nixl(_: &Cli, _: &[trace::Arrival], _: String, _: Option<Arc<Recorder>>) -> Result<Report, String> {
    Err(NO_NIXL.into())
}

#[cfg(not(feature = "nixl"))]
fn decode_process(_: std::net::SocketAddr) -> Result<(), String> {
    Err(NO_NIXL.into())
}

/// What will happen.
fn plan(cli: &Cli, arrivals: &[trace::Arrival]) -> Vec<Arc<Planned>> {
    let rates = Rates { abort: cli.abort_rate, freeze: cli.freeze_rate, push: cli.push_rate };
    model::plan(arrivals, cli.consumers, rates, cli.seed).into_iter().map(Arc::new).collect()
}

fn blocks(plan: &[Arc<Planned>]) -> u32 {
    plan.iter().map(|request| request.blocks).sum()
}

/// When the decode engine dies.
fn crash_at(cli: &Cli) -> Option<Timestamp> {
    cli.crash_decode_at.map(|at| Timestamp::ZERO + Duration::from_secs_f64(at))
}

/// What is known to happen at a certain time.
fn events(cli: &Cli) -> Vec<(Timestamp, &'static str)> {
    let after = [
        (Duration::ZERO, "decode engine dies"),
        (REPLACED_AFTER, "another takes over"),
        (TOLD_AFTER, "prefill side is told"),
    ];
    crash_at(cli).into_iter().flat_map(|at| after.map(|(later, what)| (at + later, what))).collect()
}

fn lease(cli: &Cli) -> Duration {
    Duration::from_secs_f64(cli.lease)
}

fn prefill(cli: &Cli, pool: BlockPool, clock: ScaledClock, recorder: Option<Arc<Recorder>>) -> Prefill {
    let expiry = match cli.policy {
        Policy::Release => ExpiryPolicy::Release,
        Policy::Hold => ExpiryPolicy::Hold,
    };
    let config = Config { expiry, tombstone_ttl: REMEMBERED_FOR, ..Config::default() };
    Prefill {
        tracker: Arc::new(SendTracker::with_config(config)),
        pool,
        registry: Arc::new(ConsumerRegistry::new()),
        addresses: Mutex::default(),
        clock,
        lease: lease(cli),
        consumers: cli.consumers,
        sabotage: cli.sabotage,
        counters: Counters::default(),
        recorder,
        sabotaged: AtomicBool::new(false),
    }
}

fn habits(cli: &Cli) -> Habits {
    Habits {
        prefill: PREFILL.into(),
        consumers: cli.consumers,
        heartbeat_every: match cli.heartbeat {
            None => Some(lease(cli) / 3),
            Some(0.0) => None,
            Some(seconds) => Some(Duration::from_secs_f64(seconds)),
        },
        waits_for_verdict: !cli.fire_and_forget,
        malformed_rate: cli.malformed_rate,
        seed: cli.seed,
    }
}

/// Which replies the ranks ask for.
fn replies(cli: &Cli) -> Replies {
    if cli.fire_and_forget { Replies::Stale } else { Replies::All }
}

/// The decode engines, one after the other: since when each is up, and when it dies.
fn engines(cli: &Cli) -> Vec<(Timestamp, Option<Timestamp>)> {
    match crash_at(cli) {
        None => vec![(Timestamp::ZERO, None)],
        Some(at) => vec![(Timestamp::ZERO, Some(at)), (at + REPLACED_AFTER, None)],
    }
}

fn rank_name(engine: usize, rank: u32) -> String {
    format!("decode-{engine}/rank-{rank}")
}

/// Runs the hand-off with real threads, to the end.
fn run(cli: &Cli, arrivals: &[trace::Arrival], source: String, recorder: Option<Arc<Recorder>>) -> Report {
    let plan = plan(cli, arrivals);
    let clock = ScaledClock::new(cli.speed);
    let faults = Faults {
        loss: cli.loss,
        duplicate: cli.duplicate,
        delay: Duration::from_millis(cli.delay),
        reorder: cli.reorder,
        seed: cli.seed,
    };
    let network = Network::new(faults, move || clock.now()).expect("the arguments are probabilities");
    let prefill = prefill(cli, BlockPool::new(blocks(&plan)), clock, recorder);
    let habits = habits(cli);
    let bar = progress_bar(plan.len());

    let mut reads = ReadCounts::default();
    let (readers_gone, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let agent = network.agent(PREFILL);
    let sender = agent.sender();
    let agent = Mutex::new(agent);
    thread::scope(|scope| {
        let (prefill, network, habits, plan) = (&prefill, &network, &habits, &plan);

        // The decode side: one engine, and if it is to die, its successor.
        let mut router = Router::default();
        let mut ranks = Vec::new();
        for (engine, (up_at, dies_at)) in engines(cli).into_iter().enumerate() {
            let (mut consumers, mut inboxes) = (Vec::new(), Vec::new());
            for rank in 0..cli.consumers {
                let name = rank_name(engine, rank);
                let consumer = prefill.registry.handshake(&name, replies(cli));
                consumers.push(consumer.expect("there is room for every rank"));
                let (hand_over, inbox) = mpsc::channel();
                inboxes.push(hand_over);
                let rank = Rank { name, up_at, dies_at, clock, habits };
                let link = |name: &str| InProcess { agent: network.agent(name), pool: &prefill.pool };
                ranks.push(scope.spawn(move || rank.run(link, inbox, |_| {})));
            }
            router.add_engine(consumers, inboxes, dies_at);
        }

        // The prefill side.
        let crash = crash_at(cli).map(|at| (at + TOLD_AFTER, router.current().to_vec()));
        let (to_push, pushes) = mpsc::channel();
        let transfers = scope.spawn(move || prefill.transfers(pushes));
        let notifications: Vec<_> =
            (0..cli.threads).map(|_| scope.spawn(|| prefill.notifications(&agent, &sender, &stop, drop))).collect();
        let (gone, inc) = (&readers_gone, || bar.inc(1));
        let engine = scope.spawn(move || prefill.engine(plan, router, to_push, crash, gone, inc));

        // Each side ends when the other has nothing more for it. Panics are looked at last, so that one
        // thread's does not leave the others waiting.
        let ranks: Vec<_> = ranks.into_iter().map(|rank| rank.join()).collect();
        readers_gone.store(true, Ordering::Release);
        let (engine, transfers) = (engine.join(), transfers.join());
        stop.store(true, Ordering::Release);
        let notifications: Vec<_> = notifications.into_iter().map(|thread| thread.join()).collect();

        ranks.into_iter().for_each(|rank| reads += rank.expect("a decode rank panicked"));
        engine.expect("the engine panicked");
        transfers.expect("the transfer thread panicked");
        for thread in notifications {
            thread.expect("a notification thread panicked").expect("the network is there to the end");
        }
    });
    // A transfer that outlived the shutdown may have left a release behind.
    prefill.sweep(clock.now());
    bar.finish_and_clear();
    account(cli, &prefill, plan.len(), reads, NetworkCounts::from(network.counters()), source)
}

/// The report, when everything is over.
fn account(
    cli: &Cli,
    prefill: &Prefill,
    requests: usize,
    reads: ReadCounts,
    network: NetworkCounts,
    source: String,
) -> Report {
    let stats = prefill.tracker.stats();
    let counts = prefill.counters.snapshot();
    let mut report = Report {
        requests: requests as u64,
        completed: stats.completed,
        expired: stats.expired,
        aborted: stats.aborted,
        late_notifications: counts.late_duplicates + counts.late_completed + counts.late_expired + counts.late_aborted,
        duplicates: counts.duplicates,
        malformed: counts.malformed,
        stale_reads: reads.stale,
        stale_reads_reported: reads.stale - reads.stale_used,
        double_released: counts.double_released,
        leaked_blocks: prefill.pool.allocated() as u64,
        peak_tracked: counts.peak_tracked,
        wall_s: prefill.clock.wall().as_secs_f64(),
        failures: Vec::new(),
        peak_blocks: prefill.pool.peak() as u64,
        reads,
        prefill: counts,
        network,
        arrivals: source,
        hold_model: model::HOLD_MODEL,
        seed: cli.seed,
        settings: serde_json::to_value(cli).expect("the arguments are plain data"),
    };
    let left = stats.live + stats.release_pending + stats.weight_held + stats.transfers;
    let account = Account { tracked: stats.tracked, released: stats.released, left };
    report.judge(account, requests as u64 * u64::from(cli.consumers));
    report
}

/// A bar on a terminal; `indicatif` shows none elsewhere.
fn progress_bar(requests: usize) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{bar:40} {human_pos}/{human_len} requests, {elapsed} of about {duration}");
    ProgressBar::new(requests as u64).with_style(style.expect("the template is well-formed"))
}
