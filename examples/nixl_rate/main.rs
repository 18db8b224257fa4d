//! How fast it goes over the real NIXL, and how much of that kvlease takes.
//!
//! ```sh
//! scripts/fetch-nixl && source target/nixl/env
//! cargo run --release --features nixl --example nixl_rate             # all three
//! cargo run --release --features nixl --example nixl_rate -- 200000   # so many notifications, and fewer of the others
//! ```
//!
//! Two processes on one machine:
//!
//! 1. **Notifications**: the decode process sends completions as fast as it can, the prefill process pumps; 20,000 leases
//!    are live, and each completion ends one. How many a second become outcomes, and which share of a core goes into NIXL (its poll, and its messages read out of it) and
//!    which into kvlease, by the processor time of the pumping thread. NIXL's own threads are not in it.
//! 2. **Hand-off**: the decode process READs a block of 4 KiB for each request, 16 at a time, and checks what is in it;
//!    the prefill process tracks, pumps and releases.
//! 3. **From the last notification to the release**: two consumers each; from the send of the second one's message to
//!    the moment at which the prefill process holds the release. It pumps every 100 µs, and NIXL's own thread looks every
//!    millisecond.

#[path = "../handoff/rdma.rs"]
mod rdma;

use kvlease::pump::PumpConfig;
use kvlease::transport::nixl::{Agent, Handshake, Settings};
use kvlease::transport::{NotificationSink, NotificationSource, TransportError};
use kvlease::{Clock, Config, ConsumerRegistry, Pump, Replies, SendTracker, Terms, Timestamp};
use nixl_sys::XferOp;
use rdma::{Memory, Piece, Transfer};
use rustix::time::{ClockId, clock_gettime};
use std::error::Error;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const BLOCK: usize = 4_096;
/// Leases that are live in the first part. Their ids are used again and again.
const LEASES: usize = 20_000;
/// Blocks in the ring of the hand-off; more than are ever under way.
const RING: usize = 512;
/// What is under way at once: reads at the decode process, and requests in all.
const READS: usize = 16;
const WINDOW: usize = 200;
/// Requests a second of the third part.
const PACE: Duration = Duration::from_micros(1_000);

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["child", role, n] => child(role, n.parse()?),
        [] => figures(300_000),
        [n] => figures(n.parse()?),
        _ => Err("how many notifications? for example: nixl_rate 200000".into()),
    }
}

fn figures(n: usize) -> Result<()> {
    notifications(n)?;
    handoff(n / 10)?;
    latency(n / 30)
}

/// Nanoseconds of this clock.
fn nanos(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A source, and the processor time that its polls take.
struct Timed<'a> {
    agent: &'a mut Agent,
    nanos: u64,
    messages: Vec<(String, Vec<u8>)>,
}

impl NotificationSource for Timed<'_> {
    fn poll(&mut self, on: &mut dyn FnMut(&str, &[u8])) -> Result<usize, TransportError> {
        let start = nanos(ClockId::ThreadCPUTime);
        let Timed { agent, messages, .. } = self;
        messages.clear();
        let polled = agent.poll(&mut |from, message| messages.push((from.to_owned(), message.to_vec())));
        self.nanos += nanos(ClockId::ThreadCPUTime) - start;
        self.messages.iter().for_each(|(from, message)| on(from, message));
        polled
    }
}

/// The prefill side.
struct Prefill {
    agent: Agent,
    memory: Memory,
    tracker: SendTracker<usize>,
    pump: Pump,
    clock: Clock,
}

impl Prefill {
    fn new() -> Result<Self> {
        let agent = Agent::new("prefill", &Settings::default())?;
        let memory = Memory::register(&agent, RING * BLOCK)?;
        Ok(Prefill {
            agent,
            memory,
            tracker: SendTracker::with_config(Config::default()),
            pump: Pump::new(PumpConfig::default(), Arc::new(ConsumerRegistry::new())),
            clock: Clock::new(),
        })
    }

    /// A child in this role that knows this process, and is known here.
    fn child(&self, role: &str, n: usize) -> Result<Peer> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["child", role, &n.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (to, from) = (process.stdin.take().ok_or("no pipe")?, process.stdout.take().ok_or("no pipe")?);
        let mut peer = Peer { process, to, from: BufReader::new(from) };
        for _ in 0..if role == "pace" { 2 } else { 1 } {
            let hello = unhex(&peer.line()?)?;
            self.agent.connect(&hello)?;
            self.pump.agents().handshake(&hello.name, hello.replies)?;
        }
        writeln!(peer.to, "{}", hex(&self.agent.handshake(Replies::None)?))?;
        writeln!(peer.to, "{}", self.memory.address())?;
        Ok(peer)
    }

    fn track(&self, id: &str, consumers: u32, n: usize) -> Result<()> {
        let terms = Terms::until(Timestamp::from_secs(100_000)).consumers(consumers);
        drop(self.tracker.track(id, terms, n, self.clock.now())?);
        Ok(())
    }
}

struct Peer {
    process: Child,
    to: std::process::ChildStdin,
    from: BufReader<std::process::ChildStdout>,
}

impl Peer {
    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.from.read_line(&mut line)? == 0 {
            return Err("the other process has ended".into());
        }
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

fn hex(handshake: &Handshake) -> String {
    handshake.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Result<Handshake> {
    let byte = |i| u8::from_str_radix(text.get(i..i + 2).unwrap_or("?"), 16);
    let bytes: Result<Vec<u8>, _> = (0..text.len()).step_by(2).map(byte).collect();
    Ok(Handshake::from_bytes(&bytes?)?)
}

/// Ids in the form of vLLM's.
fn id(n: usize) -> String {
    format!("cmpl-37c560d3-5680-4bd1-97f9-{n:012x}-0")
}

fn content(n: usize) -> [u8; BLOCK] {
    std::array::from_fn(|i| (n.wrapping_mul(31) ^ i.wrapping_mul(i | 1)) as u8)
}

fn notifications(n: usize) -> Result<()> {
    let mut prefill = Prefill::new()?;
    (0..LEASES).try_for_each(|i| prefill.track(&id(i), 1, i))?;
    let mut peer = prefill.child("flood", n)?;
    let sink = prefill.agent.sender();
    let mut source = Timed { agent: &mut prefill.agent, nanos: 0, messages: Vec::new() };
    let (mut received, mut completed, mut steps, mut most) = (0, 0, 0_u64, 0);
    let (mut start, mut cpu) = (0, 0);
    while received < n as u64 {
        let before = nanos(ClockId::ThreadCPUTime);
        let pumped = prefill.pump.step(&prefill.tracker, &mut source, &sink, prefill.clock.now());
        cpu += nanos(ClockId::ThreadCPUTime) - before;
        if pumped.counts.received == 0 {
            std::thread::sleep(Duration::from_micros(200));
            continue;
        }
        // From the first message on.
        if start == 0 {
            (start, cpu, source.nanos) = (nanos(ClockId::Monotonic), 0, 0);
        }
        steps += 1;
        most = most.max(pumped.counts.received);
        received += pumped.counts.received;
        completed += pumped.counts.completions.completed;
        // The next life of each, which is not counted: it is the engine's, and not the notification's.
        for release in pumped.released {
            let terms = Terms::until(Timestamp::from_secs(100_000)).consumers(1);
            drop(prefill.tracker.track(&release.id, terms, release.payload, prefill.clock.now())?);
        }
    }
    let wall = (nanos(ClockId::Monotonic) - start) as f64;
    peer.line()?;
    let (nixl, ours, each) = (source.nanos as f64, (cpu - source.nanos) as f64, n as f64);
    println!(
        "notifications   {:>9.0} a second to outcomes ({n} in {:.2} s, {completed} of them completed a lease; {steps} \
         polls, the largest of {most})",
        each * 1e9 / wall,
        wall / 1e9
    );
    println!("                {:>8.1} % of a core is kvlease's ({:.0} ns a message)", 100.0 * ours / wall, ours / each);
    println!(
        "                {:>8.1} % of a core is NIXL's poll, in the same thread ({:.0} ns a message)",
        100.0 * nixl / wall,
        nixl / each
    );
    Ok(())
}

fn handoff(n: usize) -> Result<()> {
    let mut prefill = Prefill::new()?;
    let mut peer = prefill.child("read", n)?;
    let sink = prefill.agent.sender();
    let (mut begun, mut released) = (0, 0);
    // The first ones make the connection.
    let mut start = (0, 0);
    while released < n {
        while begun < n && begun < released + WINDOW {
            prefill.memory.write(begun % RING * BLOCK, &content(begun));
            prefill.track(&id(begun), 1, begun)?;
            writeln!(peer.to, "{begun}")?;
            begun += 1;
        }
        let pumped = prefill.pump.step(&prefill.tracker, &mut prefill.agent, &sink, prefill.clock.now());
        released += pumped.released.len();
        if start.0 == 0 && released >= n / 10 {
            start = (nanos(ClockId::Monotonic), released);
        }
        if pumped.released.is_empty() {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    let seconds = (nanos(ClockId::Monotonic) - start.0) as f64 / 1e9;
    let wrong: u64 = peer.line()?.parse()?;
    if wrong > 0 {
        return Err(format!("{wrong} blocks held the wrong bytes").into());
    }
    let rate = (n - start.1) as f64 / seconds;
    println!(
        "hand-off        {rate:>9.0} requests a second, each a READ of 4 KiB with its notification, {READS} at a time"
    );
    Ok(())
}

fn latency(n: usize) -> Result<()> {
    let mut prefill = Prefill::new()?;
    (0..n).try_for_each(|i| prefill.track(&id(i), 2, i))?;
    let mut peer = prefill.child("pace", n)?;
    let sink = prefill.agent.sender();
    let mut released_at = vec![0; n];
    let mut within = Vec::new();
    let mut released = 0;
    let mut source = Timed { agent: &mut prefill.agent, nanos: 0, messages: Vec::new() };
    while released < n {
        let (polls, before) = (source.nanos, nanos(ClockId::ThreadCPUTime));
        let pumped = prefill.pump.step(&prefill.tracker, &mut source, &sink, prefill.clock.now());
        let ours = nanos(ClockId::ThreadCPUTime) - before - (source.nanos - polls);
        let now = nanos(ClockId::Monotonic);
        for release in pumped.released {
            released_at[release.payload] = now;
            within.push(ours);
            released += 1;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    let mut all = Vec::with_capacity(n);
    for released_at in released_at {
        let sent_at: u64 = peer.line()?.parse()?;
        all.push(released_at - sent_at);
    }
    let percentile = |of: &mut Vec<u64>, p: usize| {
        of.sort_unstable();
        of[(of.len() * p / 100).min(of.len() - 1)] as f64 / 1e3
    };
    println!(
        "last to release {:>9.0} µs p50, {:.0} µs p99, from the send of the last notification ({n} requests, one a millisecond)",
        percentile(&mut all, 50),
        percentile(&mut all, 99),
    );
    println!(
        "                {:>9.1} µs p50, {:.1} µs p99 of it in kvlease (the step, without its poll)",
        percentile(&mut within, 50),
        percentile(&mut within, 99),
    );
    Ok(())
}

fn child(role: &str, n: usize) -> Result<()> {
    let mut out = io::stdout();
    let mut lines = io::stdin().lines();
    let agents: Vec<Agent> = (0..if role == "pace" { 2 } else { 1 })
        .map(|i| Agent::new(&format!("decode-{i}"), &Settings::default()))
        .collect::<Result<_, _>>()?;
    let memory = Memory::register(&agents[0], READS * BLOCK)?;
    for agent in &agents {
        writeln!(out, "{}", hex(&agent.handshake(Replies::None)?))?;
    }
    out.flush()?;
    let hello = unhex(&lines.next().ok_or("no greeting")??)?;
    let base: u64 = lines.next().ok_or("no address")??.parse()?;
    agents.iter().try_for_each(|agent| agent.connect(&hello))?;
    match role {
        "flood" => {
            for i in 0..n {
                agents[0].send("prefill", format!("{}:1", id(i % LEASES)).as_bytes())?;
            }
            // Not before all have arrived: what is queued is lost with the process.
            writeln!(out, "sent")?;
            out.flush()?;
            lines.next();
        }
        "read" => {
            let mut wrong = 0;
            let mut under_way: Vec<(usize, usize, Transfer)> = Vec::new();
            let mut free: Vec<usize> = (0..READS).collect();
            let mut bytes = [0; BLOCK];
            let mut done = 0;
            let mut begun = 0;
            while done < n {
                while begun < n {
                    let Some(slot) = free.pop() else { break };
                    // Requests come in order; one that is late holds up nothing but itself.
                    let request: usize = lines.next().ok_or("no request")??.parse()?;
                    let remote = base + (request % RING * BLOCK) as u64;
                    let piece = Piece { offset: slot * BLOCK, remote, len: BLOCK };
                    let message = format!("{}:1", id(request));
                    let raw = agents[0].raw();
                    let transfer =
                        Transfer::begin(raw, XferOp::Read, &memory, "prefill", &[piece], message.as_bytes())?;
                    under_way.push((request, slot, transfer));
                    begun += 1;
                }
                let mut i = 0;
                while i < under_way.len() {
                    if !under_way[i].2.poll()? {
                        i += 1;
                        continue;
                    }
                    let (request, slot, _) = under_way.swap_remove(i);
                    memory.read(slot * BLOCK, &mut bytes);
                    wrong += u64::from(bytes != content(request));
                    free.push(slot);
                    done += 1;
                }
            }
            writeln!(out, "{wrong}")?;
            out.flush()?;
            lines.next();
        }
        "pace" => {
            let mut sent_at = Vec::with_capacity(n);
            for i in 0..n {
                let message = format!("{}:2", id(i));
                agents[0].send("prefill", message.as_bytes())?;
                sent_at.push(nanos(ClockId::Monotonic));
                agents[1].send("prefill", message.as_bytes())?;
                std::thread::sleep(PACE);
            }
            for at in sent_at {
                writeln!(out, "{at}")?;
            }
            out.flush()?;
            lines.next();
        }
        _ => return Err("no such role".into()),
    }
    Ok(())
}
