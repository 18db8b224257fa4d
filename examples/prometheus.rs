//! What the tracker and the pump count, as Prometheus scrapes it.
//!
//! ```sh
//! cargo run --features metrics --example prometheus                               # prints one scrape
//! cargo run --features metrics --example prometheus -- --serve 127.0.0.1:9464     # curl http://127.0.0.1:9464/metrics
//! ```
//!
//! A minute of a prefill worker, on a clock of its own: reads in time, too late and never, a request given up, a
//! transfer of the worker's own, a message that comes early, junk. Then whoever scrapes sees what that came to.
//!
//! The engine thread publishes what the pump counts, in its step; the thread that is scraped publishes what the tracker
//! counts, when it is. A worker with an async runtime would leave the serving to the exporter
//! (`PrometheusBuilder::with_http_listener`), and publish on a timer.

use clap::Parser;
use kvlease::metrics::{LEASE_AGE, LEASE_AGE_BUCKETS, PumpMetrics, TrackerMetrics};
use kvlease::pump::PumpConfig;
use kvlease::transport::NotificationSink;
use kvlease::transport::in_process::{Agent, Faults, Network, Sender};
use kvlease::{ConsumerRegistry, Pump, Release, Replies, SendTracker, Terms, Timestamp};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusRecorder};
use std::error::Error;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[derive(Parser)]
struct Args {
    /// Serve scrapes at this address until stopped, instead of printing one.
    #[arg(long)]
    serve: Option<SocketAddr>,
}

/// From `track`, and from each heartbeat.
const LEASE: Duration = Duration::from_secs(30);

/// A recorder that knows the buckets; without them it would make a summary of the ages, which cannot be summed up over
/// workers.
pub fn recorder() -> Result<PrometheusRecorder, BuildError> {
    let builder = PrometheusBuilder::new();
    Ok(builder.set_buckets_for_metric(Matcher::Full(LEASE_AGE.into()), LEASE_AGE_BUCKETS)?.build_recorder())
}

/// A prefill worker that counts.
pub struct Worker {
    /// What the blocks are kept by.
    pub tracker: Arc<SendTracker<Vec<u32>>>,
    /// Published by whoever is scraped, and told of each release by the engine.
    pub metrics: TrackerMetrics,
    pump: Pump,
    pump_metrics: PumpMetrics,
    agent: Agent,
    sink: Sender,
    millis: Arc<AtomicU64>,
}

impl Worker {
    /// After the recorder is installed.
    fn new(network: &Network, millis: Arc<AtomicU64>, agents: ConsumerRegistry) -> Self {
        let agent = network.agent("prefill-0");
        Worker {
            tracker: Arc::new(SendTracker::new()),
            pump: Pump::new(PumpConfig { lease: LEASE, ..PumpConfig::default() }, Arc::new(agents)),
            metrics: TrackerMetrics::new(),
            pump_metrics: PumpMetrics::new(),
            sink: agent.sender(),
            agent,
            millis,
        }
    }

    /// The time of its clock.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.millis.load(Ordering::Relaxed))
    }

    fn hand_over(&self, id: &str, ranks: u32, blocks: Vec<u32>) {
        let now = self.now();
        let terms = Terms::until(now + LEASE).consumers(ranks).weight(blocks.len() as u32);
        match self.tracker.track(id, terms, blocks, now) {
            Ok(tracked) => tracked.release().into_iter().for_each(|release| self.free(release)),
            Err(refused) => drop(refused.payload), // counted
        }
    }

    /// Every release comes by here, for the histogram.
    fn free(&self, release: Release<Vec<u32>>) {
        self.metrics.ended(&release);
        drop(release.payload);
    }

    /// One engine step, at this time.
    fn step(&mut self, at: Timestamp) {
        self.millis.store(at.as_millis(), Ordering::Relaxed);
        let pumped = self.pump.step(&*self.tracker, &mut self.agent, &self.sink, at);
        let swept = self.tracker.sweep(at);
        pumped.released.into_iter().chain(swept.released).for_each(|release| self.free(release));
        self.pump_metrics.publish(&self.pump);
    }
}

/// A minute of a worker's life.
pub fn a_minute() -> Result<Worker, Box<dyn Error>> {
    let millis = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&millis);
    let network = Network::new(Faults::default(), move || Timestamp::from_millis(clock.load(Ordering::Relaxed)))?;
    let agents = ConsumerRegistry::new();
    let ranks: Vec<Agent> = (0..2).map(|rank| network.agent(&format!("decode-0/rank-{rank}"))).collect();
    for rank in &ranks {
        agents.handshake(rank.name(), Replies::Stale)?;
    }
    let mut worker = Worker::new(&network, millis, agents);
    let at = Timestamp::from_secs;
    let say = |rank: usize, message: &[u8]| ranks[rank].send("prefill-0", message);

    for id in ["read", "queued", "lost", "given up", "pushed"] {
        worker.hand_over(id, 2, vec![1, 2, 3]);
    }
    worker.hand_over("read", 2, vec![4]); // that id is in use: refused
    worker.hand_over("for nobody", 0, vec![5]);

    // The worker's own transfer outlasts the reads of the blocks that it moves.
    let transfer = worker.tracker.begin_transfer_owned("pushed")?;
    for rank in 0..2 {
        say(rank, b"read:2")?;
        say(rank, b"pushed:2")?;
    }
    say(0, b"read:2")?; // once more, and too late to matter
    say(1, b"no message")?;
    say(1, b"\xff")?;
    worker.step(at(2));
    let tracker = Arc::clone(&worker.tracker);
    tracker.abort("given up", at(2)).release().into_iter().for_each(|release| worker.free(release));

    // "queued" is kept by heartbeats. "lost" is not, and runs out.
    say(0, b"HB:queued")?;
    worker.step(at(20));
    transfer.end(at(20)).into_iter().for_each(|release| worker.free(release));
    worker.step(at(30));
    for rank in 0..2 {
        say(rank, b"queued:2")?;
        say(rank, b"lost:2")?; // ten seconds too late
    }
    worker.step(at(40));

    // What is going on when the scrape comes.
    worker.hand_over("half read", 2, vec![6, 7]);
    worker.step(at(58));
    worker.hand_over("fresh", 2, vec![8]);
    say(0, b"half read:2")?;
    say(1, b"to come:2")?;
    worker.step(at(60));
    Ok(worker)
}

/// Answers one scrape: whatever is asked for, it gets the metrics.
pub fn answer(stream: TcpStream, scrape: impl FnOnce() -> String) -> io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    // The request ends with an empty line.
    while reader.read_line(&mut line)? > 2 {
        line.clear();
    }
    let body = scrape();
    let mut stream = reader.into_inner();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    )?;
    stream.write_all(body.as_bytes())
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let recorder = recorder()?;
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder)?;
    let worker = a_minute()?;
    let scrape = || {
        worker.metrics.publish(&worker.tracker, worker.now());
        handle.render()
    };
    let Some(address) = args.serve else {
        print!("{}", scrape());
        return Ok(());
    };
    let listener = TcpListener::bind(address)?;
    println!("http://{}/metrics", listener.local_addr()?);
    for stream in listener.incoming() {
        if let Err(error) = stream.and_then(|stream| answer(stream, scrape)) {
            eprintln!("{error}");
        }
    }
    Ok(())
}
