//! The hand-off over the real NIXL library, within one process and between processes that are stopped and killed.
//!
//! Where the library is absent, each test says on standard error that it was skipped, and why. With
//! `KVLEASE_REQUIRE_NIXL` in the environment, absence is a failure. `scripts/fetch-nixl` brings the library.
//!
//! A second process is this program again: its one test [`child`], with a role and orders on standard input.

#[path = "../examples/handoff/rdma.rs"]
mod rdma;

use kvlease::consumer::{Completed, ReadConfig, ReadTracker, Verdict};
use kvlease::pump::{PumpConfig, Pumped};
use kvlease::transport::nixl::{self, Agent, Handshake, NixlError, Settings};
use kvlease::transport::{NotificationSink, NotificationSource, TransportError};
use kvlease::wire::{self, Message};
use kvlease::{Clock, Config, ConsumerRegistry, Outcome, Pump, Replies, SendTracker, Terms, Timestamp};
use nixl_sys::XferOp;
use rdma::{Memory, Piece, Transfer};
use rustix::process::{Pid, Signal, getpid, kill_process};
use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

const BLOCK: usize = 4_096;
/// After so long, something that has not happened will not.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether the test has to be skipped.
fn absent(test: &str) -> bool {
    let Err(missing) = nixl::library() else { return false };
    assert!(std::env::var_os("KVLEASE_REQUIRE_NIXL").is_none(), "{missing}");
    // Not by `eprintln`, which the test harness would swallow.
    _ = writeln!(io::stderr(), "{test}: skipped: {missing}");
    true
}

fn agent(name: &str) -> Agent {
    Agent::new(name, &Settings::default()).unwrap()
}

/// What is in the block of a request that is not stale.
fn content(id: &str) -> Vec<u8> {
    let seed = id.bytes().fold(7_u64, |h, b| h.wrapping_mul(31).wrapping_add(u64::from(b)));
    (0..BLOCK as u64).map(|i| (seed.wrapping_mul(i | 1) >> 13) as u8).collect()
}

/// Whether this happens before long.
fn soon(mut happens: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if happens() {
            return true;
        }
        thread::sleep(Duration::from_micros(200));
    }
    false
}

/// The blocks of one request. How many there are is counted.
#[derive(Debug)]
struct Blocks(Arc<AtomicUsize>, usize);

impl Drop for Blocks {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A prefill worker: memory, tracker, pump.
struct Prefill {
    agent: Agent,
    memory: Memory,
    blocks: usize,
    tracker: SendTracker<Blocks>,
    pump: Pump,
    clock: Clock,
    held: Arc<AtomicUsize>,
}

impl Prefill {
    fn new(name: &str, blocks: usize, config: PumpConfig) -> Self {
        let agent = agent(name);
        let memory = Memory::register(&agent, blocks * BLOCK).unwrap();
        Prefill {
            agent,
            memory,
            blocks,
            tracker: SendTracker::with_config(Config::default()),
            pump: Pump::new(config, Arc::new(ConsumerRegistry::new())),
            clock: Clock::new(),
            held: Arc::default(),
        }
    }

    /// Knows this decode agent, and what it has asked for, from now on.
    fn meet(&self, peer: &Handshake) {
        self.agent.connect(peer).unwrap();
        self.pump.agents().handshake(&peer.name, peer.replies).unwrap();
    }

    fn hello(&self) -> Handshake {
        self.agent.handshake(Replies::None).unwrap()
    }

    /// Fills block `n` for the request, leases it, and says where it is.
    fn track(&self, id: &str, n: usize, consumers: u32, lease: Duration) -> u64 {
        let n = n % self.blocks;
        self.memory.write(n * BLOCK, &content(id));
        let now = self.clock.now();
        self.held.fetch_add(1, Ordering::Relaxed);
        let terms = Terms::until(now + lease).consumers(consumers);
        let tracked = self.tracker.track(id, terms, Blocks(Arc::clone(&self.held), n), now).unwrap();
        assert!(tracked.release().is_none());
        self.memory.address() + (n * BLOCK) as u64
    }

    fn step(&mut self) -> Pumped<Blocks> {
        let (sink, now) = (self.agent.sender(), self.clock.now());
        let pumped = self.pump.step(&self.tracker, &mut self.agent, &sink, now);
        assert_eq!(pumped.poll_error, None);
        pumped
    }

    /// Steps until as many leases have completed in all.
    fn complete(&mut self, n: u64) {
        let done = soon(|| {
            drop(self.step());
            self.tracker.stats().completed >= n
        });
        assert!(done, "{:?}", self.tracker.stats());
    }

    fn at_rest(&self) {
        let stats = self.tracker.stats();
        assert_eq!((stats.live, stats.transfers, self.held.load(Ordering::Relaxed)), (0, 0, 0), "{stats:?}");
        assert_eq!(stats.released, stats.tracked);
        assert_eq!(stats.tracked, stats.completed + stats.expired + stats.aborted);
    }
}

/// A decode rank: memory to read into, and the account of its reads.
struct Decode {
    agent: Agent,
    memory: Memory,
    reads: ReadTracker,
    clock: Clock,
}

impl Decode {
    fn new(name: &str, config: ReadConfig) -> Self {
        let agent = agent(name);
        let memory = Memory::register(&agent, 64 * BLOCK).unwrap();
        Decode { agent, memory, reads: ReadTracker::new(config), clock: Clock::new() }
    }

    fn hello(&self, replies: Replies) -> Handshake {
        self.agent.handshake(replies).unwrap()
    }

    fn begin(&self, id: &str, peer: &str, remote: u64, slot: usize, expected: u32) -> Transfer {
        let mut notification = Vec::new();
        wire::write_completion(id, expected, &mut notification).unwrap();
        let piece = Piece { offset: slot * BLOCK, remote, len: BLOCK };
        Transfer::begin(self.agent.raw(), XferOp::Read, &self.memory, peer, &[piece], &notification).unwrap()
    }

    fn slot_holds(&self, slot: usize, id: &str) -> bool {
        let mut bytes = vec![0; BLOCK];
        self.memory.read(slot * BLOCK, &mut bytes);
        bytes == content(id)
    }

    /// One READ, to its end, with its notification. Says whether the right bytes came.
    fn read(&self, id: &str, peer: &str, remote: u64, expected: u32) -> bool {
        self.memory.write(0, &[0; BLOCK]);
        let mut transfer = self.begin(id, peer, remote, 0, expected);
        assert!(soon(|| transfer.poll().unwrap()), "the read of {id} does not end");
        self.slot_holds(0, id)
    }

    /// What the replies that have come mean.
    fn verdicts(&mut self) -> Vec<Verdict> {
        let (now, mut verdicts) = (self.clock.now(), Vec::new());
        let polled = self.agent.poll(&mut |from, bytes| match wire::parse(bytes) {
            Ok(Message::Stale(reply)) => verdicts.push(self.reads.reply(from, reply, now)),
            other => panic!("{other:?}"),
        });
        polled.unwrap();
        verdicts
    }

    fn next_verdict(&mut self) -> Verdict {
        let mut verdicts = Vec::new();
        assert!(soon(|| {
            verdicts = self.verdicts();
            !verdicts.is_empty()
        }));
        assert_eq!(verdicts.len(), 1, "{verdicts:?}");
        verdicts.remove(0)
    }
}

fn meet(prefill: &Prefill, decode: &Decode, replies: Replies) {
    decode.agent.connect(&prefill.hello()).unwrap();
    prefill.meet(&decode.hello(replies));
}

const LONG: Duration = Duration::from_secs(600);

#[test]
fn a_read_with_its_notification_completes_the_lease() {
    if absent("a_read_with_its_notification_completes_the_lease") {
        return;
    }
    let mut prefill = Prefill::new("read-p", 4, PumpConfig::default());
    let decode = Decode::new("read-d", ReadConfig::default());
    meet(&prefill, &decode, Replies::None);
    for n in 0..20 {
        let id = format!("cmpl-{n}");
        let address = prefill.track(&id, n, 1, LONG);
        assert_eq!(prefill.held.load(Ordering::Relaxed), 1);
        assert!(decode.read(&id, "read-p", address, 1));
        prefill.complete(n as u64 + 1);
    }
    assert_eq!(prefill.pump.totals().completions.completed, 20);
    prefill.at_rest();
}

#[test]
fn a_lease_for_two_consumers_is_released_at_the_second() {
    if absent("a_lease_for_two_consumers_is_released_at_the_second") {
        return;
    }
    let mut prefill = Prefill::new("two-p", 1, PumpConfig::default());
    let ranks = ["two-a", "two-b"].map(|name| Decode::new(name, ReadConfig::default()));
    ranks.iter().for_each(|rank| meet(&prefill, rank, Replies::None));
    let address = prefill.track("r", 0, 2, LONG);
    // The first one reads twice: it is one consumer.
    for again in 0..2 {
        assert!(ranks[0].read("r", "two-p", address, 2));
        assert!(soon(|| {
            drop(prefill.step());
            prefill.pump.totals().completions.total() > again
        }));
    }
    let done = prefill.pump.totals().completions;
    assert_eq!((done.counted, done.duplicate, prefill.held.load(Ordering::Relaxed)), (1, 1, 1));
    assert!(ranks[1].read("r", "two-p", address, 2));
    prefill.complete(1);
    prefill.at_rest();
}

#[test]
fn one_heartbeat_renews_two_thousand_leases_also_in_parts() {
    if absent("one_heartbeat_renews_two_thousand_leases_also_in_parts") {
        return;
    }
    for work_limit in [usize::MAX, 256] {
        let (p, d) = (format!("beat-p-{work_limit}"), format!("beat-d-{work_limit}"));
        let lease = Duration::from_secs(1_000);
        let mut prefill = Prefill::new(&p, 1, PumpConfig { lease, work_limit, ..PumpConfig::default() });
        let config = ReadConfig { max_message_len: 1 << 20, ..ReadConfig::default() };
        let mut decode = Decode::new(&d, config);
        meet(&prefill, &decode, Replies::None);
        for n in 0..2_000 {
            let id = format!("cmpl-37c560d3-5680-4bd1-97f9-7ed31a56{n:04}-0");
            prefill.track(&id, 0, 1, Duration::from_secs(500));
            decode.reads.wait_for(&id, &p).unwrap();
        }
        let heartbeats = decode.reads.heartbeats(decode.clock.now());
        assert_eq!((heartbeats.len(), heartbeats[0].message.len() > 80_000), (1, true));
        decode.agent.send(&p, &heartbeats[0].message).unwrap();
        let mut busy = 0;
        assert!(soon(|| {
            let counts = prefill.step().counts.heartbeats;
            assert!(counts.ids() <= work_limit as u64);
            busy += u64::from(counts.ids() > 0);
            prefill.pump.totals().heartbeats.messages == 1
        }));
        assert_eq!(busy, if work_limit == 256 { 8 } else { 1 });
        assert_eq!(prefill.pump.totals().heartbeats.extended, 2_000);
        assert!(prefill.tracker.leases().all(|lease| lease.deadline > Timestamp::from_secs(999)));
        drop(prefill.tracker.shutdown(prefill.clock.now()));
        prefill.at_rest();
    }
}

#[test]
fn junk_from_a_peer_is_classified_and_harms_nobody() {
    if absent("junk_from_a_peer_is_classified_and_harms_nobody") {
        return;
    }
    let mut prefill = Prefill::new("junk-p", 1, PumpConfig::default());
    let good = Decode::new("junk-good", ReadConfig::default());
    let bad = Decode::new("junk-bad\n\u{1f4a3}", ReadConfig::default());
    for rank in [&good, &bad] {
        meet(&prefill, rank, Replies::All);
    }
    let megabytes = vec![b'x'; 3 << 20];
    let junk: [&[u8]; 10] =
        [b"hello", b"a:", b"a:x", b":1", b"a:-1", b"a:99999999999", b"\xff\xfe", b"", b"a\0b", &megabytes];
    for n in 0..10_u64 {
        let id = format!("r{n}");
        let address = prefill.track(&id, 0, 1, LONG);
        for junk in junk {
            bad.agent.send("junk-p", junk).unwrap();
        }
        assert!(good.read(&id, "junk-p", address, 1));
        prefill.complete(n + 1);
    }
    assert!(soon(|| {
        drop(prefill.step());
        prefill.pump.totals().malformed.total() == 100
    }));
    let bad = prefill.pump.totals().malformed;
    assert_eq!((bad.empty, bad.not_utf8, bad.no_colon, bad.empty_id), (10, 10, 30, 10), "{bad:?}");
    assert_eq!((bad.bad_count, bad.count_too_large), (30, 10), "{bad:?}");
    assert_eq!(prefill.agent.unreadable(), 0);
    prefill.at_rest();

    // Metadata that is none, or of somebody else.
    let mut peer = good.hello(Replies::None);
    peer.name = "somebody".into();
    assert!(matches!(prefill.agent.connect(&peer), Err(NixlError::WrongName { .. })));
    peer.metadata = b"junk".to_vec();
    assert!(matches!(prefill.agent.connect(&peer), Err(NixlError::Refused { .. })));
    peer.name = "a\0b".into();
    assert!(matches!(prefill.agent.connect(&peer), Err(NixlError::BadName)));
    assert!(matches!(Agent::new("", &Settings::default()), Err(NixlError::BadName)));
}

#[test]
fn a_stale_read_is_reported_whether_the_rank_waits_for_the_verdict_or_not_and_only_if_it_has_asked() {
    if absent("a_stale_read_is_reported_whether_the_rank_waits_for_the_verdict_or_not_and_only_if_it_has_asked") {
        return;
    }
    let mut prefill = Prefill::new("stale-p", 8, PumpConfig::default());
    let verdict_wait = Some(PATIENCE);
    let modes = [
        ("stale-plain", Replies::None, None),
        ("stale-optimist", Replies::Stale, None),
        ("stale-waits", Replies::All, verdict_wait),
    ];
    let mut ranks = modes.map(|(name, replies, verdict_wait)| {
        let rank = Decode::new(name, ReadConfig { verdict_wait, ..ReadConfig::default() });
        meet(&prefill, &rank, replies);
        rank
    });
    let completed = |rank: &mut Decode, id: &str| {
        let now = rank.clock.now();
        rank.reads.completed(id, "stale-p", 3, now).unwrap()
    };
    for (id, lease) in [("good", LONG), ("late", Duration::ZERO)] {
        let address = prefill.track(id, 0, 3, lease);
        drop(prefill.tracker.sweep(prefill.clock.now()));
        for rank in &mut ranks {
            rank.reads.wait_for(id, "stale-p").unwrap();
            rank.read(id, "stale-p", address, 3);
        }
        let before = prefill.pump.totals().completions.total();
        assert!(soon(|| {
            drop(prefill.step());
            prefill.pump.totals().completions.total() == before + 3
        }));
        let [plain, optimist, waits] = &mut ranks;
        assert!(matches!(completed(plain, id), Completed::Use(_)));
        assert!(matches!(completed(optimist, id), Completed::Use(_)));
        assert!(matches!(completed(waits, id), Completed::AwaitVerdict { .. }));
        if id == "good" {
            assert_eq!(waits.next_verdict(), Verdict::Use { id: "good".into() });
        } else {
            let recompute = Verdict::Recompute { id: "late".into(), outcome: Outcome::Expired };
            assert_eq!(optimist.next_verdict(), recompute);
            assert_eq!(waits.next_verdict(), recompute);
        }
    }
    let counts = prefill.pump.totals();
    assert_eq!((counts.sent_stale, counts.sent_good, counts.unsent), (2, 1, 0));
    // The one that has not asked was sent nothing.
    assert_eq!(ranks[0].verdicts(), []);
    prefill.at_rest();
}

#[test]
fn two_agents_of_one_name_are_one_consumer_and_the_latest_handshake_gets_the_replies() {
    if absent("two_agents_of_one_name_are_one_consumer_and_the_latest_handshake_gets_the_replies") {
        return;
    }
    let mut prefill = Prefill::new("twin-p", 1, PumpConfig::default());
    let mut twins = [(); 2].map(|()| Decode::new("twin-d", ReadConfig::default()));
    prefill.track("r", 0, 2, LONG);
    for (n, twin) in twins.iter().enumerate() {
        twin.agent.connect(&prefill.hello()).unwrap();
        // The second takes the place of the first.
        prefill.meet(&twin.hello(Replies::All));
        twin.agent.send("twin-p", b"r:2").unwrap();
        assert!(soon(|| {
            drop(prefill.step());
            prefill.pump.totals().completions.total() == n as u64 + 1
        }));
    }
    let done = prefill.pump.totals().completions;
    assert_eq!((done.counted, done.duplicate, prefill.tracker.stats().live), (1, 1, 1));
    // Each was answered while it had the name.
    for twin in &mut twins {
        let mut heard = 0;
        assert!(soon(|| {
            heard += twin.agent.poll(&mut |_, bytes| assert_eq!(bytes, b"KVLEASE_STALE:r:completed")).unwrap();
            heard == 1
        }));
    }
    // Now the first one sends again: it is heard, and the answer goes to the other.
    twins[0].agent.send("twin-p", b"r:2").unwrap();
    assert!(soon(|| {
        drop(prefill.step());
        prefill.pump.totals().sent_good == 3
    }));
    let mut heard = 0;
    assert!(soon(|| {
        heard += twins[1].agent.poll(&mut |_, _| ()).unwrap();
        heard == 1
    }));
    assert_eq!(twins[0].agent.poll(&mut |_, _| ()), Ok(0));
    drop(prefill.tracker.shutdown(prefill.clock.now()));
    prefill.at_rest();
}

#[test]
fn who_is_not_known_or_was_forgotten_is_an_unknown_agent() {
    if absent("who_is_not_known_or_was_forgotten_is_an_unknown_agent") {
        return;
    }
    let (a, b) = (agent("known-a"), agent("known-b"));
    let unknown = |name: &str| Err(TransportError::UnknownAgent { name: name.into() });
    assert_eq!(a.send("known-b", b"x"), unknown("known-b"));
    assert_eq!(a.send("nul\0", b"x"), unknown("nul\0"));
    a.connect(&b.handshake(Replies::None).unwrap()).unwrap();
    assert_eq!(a.send("known-b", b"x"), Ok(()));
    assert!(a.disconnect("known-b"));
    assert!(!a.disconnect("known-b"));
    assert_eq!(a.sender().send("known-b", b"x"), unknown("known-b"));
}

#[test]
fn without_the_library_there_is_an_error_and_no_abort() {
    let mut child = Process::spawn("absent", &[], false);
    let said = child.line();
    // Where it is in a system folder, it cannot be hidden.
    assert!(said == "library not found" || said == "present", "{said}");
    assert!(child.process.wait().unwrap().success());
}

/// Another process: this program again.
struct Process {
    process: Child,
    orders: ChildStdin,
    lines: mpsc::Receiver<String>,
}

impl Process {
    fn spawn(role: &str, args: &[&str], with_library: bool) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"]);
        command.env("KVLEASE_ROLE", role).env("KVLEASE_ARGS", args.join(" "));
        if !with_library {
            command.env_remove("LD_LIBRARY_PATH");
        }
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (orders, out) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let (send, lines) = mpsc::channel();
        thread::spawn(move || forward(out, &send));
        Process { process, orders, lines }
    }

    fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    fn line(&mut self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("the other process says nothing")
    }

    fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('T')
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }
}

/// What a child says to its parent begins like this; the rest is its test harness.
const SAYS: &str = "@ ";

fn forward(out: ChildStdout, to: &mpsc::Sender<String>) {
    for line in BufReader::new(out).lines() {
        let Ok(line) = line else { return };
        // The harness leaves its own line unfinished.
        if let Some((_, said)) = line.split_once(SAYS) {
            _ = to.send(said.to_owned());
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

fn say(what: &str) {
    println!("{SAYS}{what}");
    io::stdout().flush().unwrap();
}

fn orders() -> mpsc::Receiver<String> {
    let (send, orders) = mpsc::channel();
    thread::spawn(move || {
        for line in io::stdin().lines() {
            let Ok(line) = line else { return };
            if send.send(line).is_err() {
                return;
            }
        }
    });
    orders
}

fn hex(handshake: &Handshake) -> String {
    handshake.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Handshake {
    let byte = |i| u8::from_str_radix(&text[i..i + 2], 16).unwrap();
    Handshake::from_bytes(&(0..text.len()).step_by(2).map(byte).collect::<Vec<_>>()).unwrap()
}

/// The other process of the tests above and below.
#[test]
#[ignore = "only as a child of another test"]
fn child() {
    let args = std::env::var("KVLEASE_ARGS").unwrap_or_default();
    let args: Vec<&str> = args.split_whitespace().collect();
    match std::env::var("KVLEASE_ROLE").as_deref() {
        Ok("absent") => match Agent::new("nobody", &Settings::default()) {
            Err(NixlError::LibraryNotFound) => {
                assert!(nixl::library().is_err());
                say("library not found");
            }
            _ => say("present"),
        },
        Ok("decode") => decode_process(args[0]),
        Ok("prefill") => prefill_process(args[0]),
        Ok("soak") => soak_process(args[0].parse().unwrap()),
        _ => {}
    }
}

/// A decode process: reads what it is told to, up to 16 at a time, renews what it still has to read every 100 ms.
fn decode_process(name: &str) {
    let heartbeat_interval = Duration::from_millis(100);
    // So few that they are all there, and replaced, before memory is looked at.
    let max_remembered = 1_000;
    let mut decode = Decode::new(name, ReadConfig { heartbeat_interval, max_remembered, ..ReadConfig::default() });
    say(&hex(&decode.hello(Replies::Stale)));
    let orders = orders();
    let mut peer = String::new();
    let mut todo: VecDeque<(String, u64)> = VecDeque::new();
    let mut under_way: Vec<(usize, String, Transfer)> = Vec::new();
    let mut free: Vec<usize> = (0..16).collect();
    let (mut good, mut bad) = (0_u64, 0_u64);
    let mut open = true;
    while open || !todo.is_empty() || !under_way.is_empty() {
        loop {
            match orders.try_recv() {
                Ok(order) => match order.split(' ').collect::<Vec<_>>()[..] {
                    ["meet", handshake] => {
                        let handshake = unhex(handshake);
                        decode.agent.connect(&handshake).unwrap();
                        peer = handshake.name;
                        say("met");
                    }
                    // One that is to be read, and one that is only waited for.
                    ["read", id, address] => {
                        decode.reads.wait_for(id, &peer).unwrap();
                        todo.push_back((id.to_owned(), address.parse().unwrap()));
                    }
                    ["wait", id] => decode.reads.wait_for(id, &peer).unwrap(),
                    ["report"] => say(&format!("{good} {bad} {}", resident())),
                    _ => panic!("{order}"),
                },
                Err(mpsc::TryRecvError::Empty) => break,
                Err(mpsc::TryRecvError::Disconnected) => {
                    open = false;
                    break;
                }
            }
        }
        while !todo.is_empty() && !free.is_empty() {
            let (Some((id, address)), Some(slot)) = (todo.pop_front(), free.pop()) else { break };
            let transfer = decode.begin(&id, &peer, address, slot, 1);
            under_way.push((slot, id, transfer));
        }
        under_way.retain_mut(|(slot, id, transfer)| {
            if !transfer.poll().unwrap() {
                return true;
            }
            if decode.slot_holds(*slot, id) {
                good += 1
            } else {
                bad += 1
            }
            let done = decode.reads.completed(id, &peer, 1, decode.clock.now()).unwrap();
            assert!(matches!(done, Completed::Use(_)), "{done:?}");
            free.push(*slot);
            false
        });
        for heartbeat in decode.reads.heartbeats(decode.clock.now()) {
            decode.agent.send(&heartbeat.agent, &heartbeat.message).unwrap();
        }
        drop(decode.verdicts());
        if under_way.is_empty() {
            thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Resident memory of this process, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// A child decode process that knows the prefill worker.
fn decode_child(prefill: &Prefill, name: &str) -> Process {
    let mut child = Process::spawn("decode", &[name], true);
    prefill.meet(&unhex(&child.line()));
    child.order(&format!("meet {}", hex(&prefill.hello())));
    assert_eq!(child.line(), "met");
    child
}

#[test]
fn when_a_decode_process_is_killed_its_leases_run_out_and_a_second_one_goes_on() {
    if absent("when_a_decode_process_is_killed_its_leases_run_out_and_a_second_one_goes_on") {
        return;
    }
    let lease = Duration::from_millis(1_500);
    let mut prefill = Prefill::new("kill-p", 4_096, PumpConfig { lease, ..PumpConfig::default() });
    let mut first = decode_child(&prefill, "kill-d");

    // It waits for 300 that it does not get to read, keeps them by heartbeats, and reads others meanwhile.
    for n in 0..300 {
        prefill.track(&format!("held-{n}"), n, 1, lease);
        first.order(&format!("wait held-{n}"));
    }
    let mut reads = 0;
    let kept_until = prefill.clock.now() + lease * 2;
    while prefill.clock.now() < kept_until || prefill.tracker.stats().completed < 200 {
        // Always some that are asked for and not done.
        while reads < prefill.tracker.stats().completed + 50 {
            let id = format!("read-{reads}");
            let address = prefill.track(&id, 300 + (reads as usize) % 3_000, 1, lease);
            first.order(&format!("read {id} {address}"));
            reads += 1;
        }
        drop(prefill.step());
        // Its heartbeats have kept the 300 for longer than a lease.
        assert_eq!(prefill.tracker.sweep(prefill.clock.now()).released.len(), 0);
        thread::sleep(Duration::from_millis(1));
    }
    first.signal(Signal::KILL);
    first.process.wait().unwrap();
    let died = prefill.clock.now();

    // What it had sent is still counted; from then on, every lease ends within its time.
    let mut last = died;
    while prefill.tracker.stats().live > 0 {
        drop(prefill.step());
        let now = prefill.clock.now();
        assert!(prefill.tracker.leases().all(|held| held.deadline <= now.max(died) + lease));
        let swept = prefill.tracker.sweep(now);
        assert!(swept.released.iter().all(|release| release.outcome == Outcome::Expired));
        if !swept.released.is_empty() {
            last = now;
        }
        assert!(now < died + PATIENCE, "{:?}", prefill.tracker.stats());
        thread::sleep(Duration::from_millis(1));
    }
    let stats = prefill.tracker.stats();
    assert!(stats.expired >= 300 && stats.completed >= 200, "{stats:?}");
    // A message that was under way may have renewed a lease just after; a second is for a busy machine.
    assert!(last - died < lease + Duration::from_secs(1), "{:?}", last - died);
    prefill.at_rest();

    // Its successor has the same name.
    let before = stats.completed;
    let mut second = decode_child(&prefill, "kill-d");
    for n in 0..200 {
        let id = format!("again-{n}");
        let address = prefill.track(&id, n, 1, LONG);
        second.order(&format!("read {id} {address}"));
    }
    prefill.complete(before + 200);
    second.order("report");
    assert!(second.line().starts_with("200 0 "));
    prefill.at_rest();
}

/// A prefill process: leases for as long as it is told, one block each, in a loop that sweeps and then pumps.
fn prefill_process(name: &str) {
    let mut prefill = Prefill::new(name, 64, PumpConfig::default());
    say(&hex(&prefill.hello()));
    let orders = orders();
    let mut n = 0;
    loop {
        match orders.try_recv() {
            Ok(order) => match order.split(' ').collect::<Vec<_>>()[..] {
                ["meet", handshake] => {
                    prefill.meet(&unhex(handshake));
                    say("met");
                }
                ["track", id, millis] => {
                    let lease = Duration::from_millis(millis.parse().unwrap());
                    say(&prefill.track(id, n, 1, lease).to_string());
                    n += 1;
                }
                ["stop", millis] => {
                    let until = prefill.clock.now() + Duration::from_millis(millis.parse().unwrap());
                    say("stopping");
                    kill_process(getpid(), Signal::STOP).unwrap();
                    // Stopped just before its sweep, wherever the signal has really hit it.
                    while prefill.clock.now() < until {
                        thread::sleep(Duration::from_millis(1));
                    }
                }
                ["report"] => {
                    let (stats, counts) = (prefill.tracker.stats(), prefill.pump.totals());
                    say(&format!("{} {} {} {}", stats.live, stats.completed, stats.expired, counts.sent_stale));
                }
                _ => panic!("{order}"),
            },
            Err(mpsc::TryRecvError::Empty) => {}
            Err(mpsc::TryRecvError::Disconnected) => return,
        }
        // In this order, what is due ends before messages are looked at, also those that have waited while the
        // process did not run. (In the other order, they would win: nothing had been released yet.)
        for release in prefill.tracker.sweep(prefill.clock.now()).released {
            let Blocks(_, n) = release.payload;
            prefill.memory.write(n * BLOCK, &[0xdd; BLOCK]);
        }
        drop(prefill.step());
        thread::sleep(Duration::from_micros(200));
    }
}

#[test]
fn when_the_prefill_process_was_stopped_past_its_leases_late_reads_are_reported_stale() {
    if absent("when_the_prefill_process_was_stopped_past_its_leases_late_reads_are_reported_stale") {
        return;
    }
    let mut prefill = Process::spawn("prefill", &["stop-p"], true);
    let hello = unhex(&prefill.line());
    let mut decode = Decode::new("stop-d", ReadConfig::default());
    decode.agent.connect(&hello).unwrap();
    prefill.order(&format!("meet {}", hex(&decode.hello(Replies::Stale))));
    assert_eq!(prefill.line(), "met");
    let track = |prefill: &mut Process, decode: &mut Decode, id: &str, millis: u64| -> u64 {
        prefill.order(&format!("track {id} {millis}"));
        decode.reads.wait_for(id, "stop-p").unwrap();
        prefill.line().parse().unwrap()
    };
    let used = |decode: &mut Decode, id: &str| {
        let now = decode.clock.now();
        matches!(decode.reads.completed(id, "stop-p", 1, now), Ok(Completed::Use(_)))
    };
    // All is well.
    let address = track(&mut prefill, &mut decode, "before", 60_000);
    assert!(decode.read("before", "stop-p", address, 1) && used(&mut decode, "before"));

    // Two leases, and the process stops for longer than they last. One is read meanwhile, or as soon as it goes on;
    // the other one afterwards.
    let during = track(&mut prefill, &mut decode, "during", 1_000);
    let after = track(&mut prefill, &mut decode, "after", 1_000);
    prefill.order("stop 1000");
    assert_eq!(prefill.line(), "stopping");
    assert!(soon(|| prefill.is_stopped()));
    let mut transfer = decode.begin("during", "stop-p", during, 1, 1);
    let stopped = Instant::now();
    while stopped.elapsed() < Duration::from_millis(1_500) {
        transfer.poll().unwrap();
        thread::sleep(Duration::from_millis(1));
    }
    prefill.signal(Signal::CONT);
    assert!(soon(|| transfer.poll().unwrap()));
    assert!(used(&mut decode, "during"));
    assert_eq!(decode.next_verdict(), Verdict::Recompute { id: "during".into(), outcome: Outcome::Expired });

    // Its block was given back by now: what is read is garbage, and that is said.
    assert!(!decode.read("after", "stop-p", after, 1));
    assert!(used(&mut decode, "after"));
    assert_eq!(decode.next_verdict(), Verdict::Recompute { id: "after".into(), outcome: Outcome::Expired });

    // And it goes on.
    let address = track(&mut prefill, &mut decode, "at-last", 60_000);
    assert!(decode.read("at-last", "stop-p", address, 1) && used(&mut decode, "at-last"));
    let mut said = String::new();
    assert!(soon(|| {
        prefill.order("report");
        said = prefill.line();
        said.starts_with("0 ")
    }));
    assert_eq!(said, "0 2 2 2", "live, completed, expired, stale replies");
    assert_eq!(decode.verdicts(), []);
}

/// Requests from one process to another, read, released, and memory flat on both sides.
fn soak(requests: u64) {
    // Not in this process, which other tests fill with theirs.
    let mut child = Process::spawn("soak", &[&requests.to_string()], true);
    let said = child.lines.recv_timeout(PATIENCE * 10).expect("the soak does not end well");
    _ = writeln!(io::stderr(), "soak: {said}");
    assert!(child.process.wait().unwrap().success());
}

fn soak_process(requests: u64) {
    let mut prefill = Prefill::new("soak-p", 256, PumpConfig::default());
    // So few that they are all there, and replaced, before memory is looked at.
    let config = Config { tombstone_capacity: 1_000, ..Config::default() };
    prefill.tracker = SendTracker::with_config(config);
    let mut decode = decode_child(&prefill, "soak-d");
    let mut ended = 0;
    let mut early = None;
    let start = Instant::now();
    let mut begun = 0;
    while ended < requests {
        // No block is used again before it was released.
        while begun < requests && begun < ended + 200 {
            let id = format!("cmpl-{begun:08}");
            // The ring is longer than what is under way, and reads end nearly in order: 16 at a time.
            let address = prefill.track(&id, begun as usize, 1, LONG);
            decode.order(&format!("read {id} {address}"));
            begun += 1;
        }
        let pumped = prefill.step();
        ended += pumped.released.len() as u64;
        if pumped.released.is_empty() {
            thread::sleep(Duration::from_micros(100));
        }
        assert!(start.elapsed() < PATIENCE * 10, "{:?}", prefill.tracker.stats());
        // Once warm, and then at the end.
        if early.is_none() && ended >= requests / 4 {
            decode.order("report");
            early = Some((resident(), memory_of(&decode.line())));
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    decode.order("report");
    let report = decode.line();
    assert!(report.starts_with(&format!("{requests} 0 ")), "good, bad, memory: {report}");
    let (early, late) = (early.unwrap(), (resident(), memory_of(&report)));
    let said = format!(
        "{requests} requests, {:.0} a second; KiB resident at a quarter and at the end: prefill {} and {}, \
         decode {} and {}",
        requests as f64 / seconds,
        early.0,
        late.0,
        early.1,
        late.1,
    );
    for (early, late) in [(early.0, late.0), (early.1, late.1)] {
        assert!(late < early + 8 * 1_024, "memory grew from {early} to {late} KiB");
    }
    assert_eq!(prefill.tracker.stats().completed, requests);
    prefill.at_rest();
    say(&said);
}

fn memory_of(report: &str) -> u64 {
    report.split(' ').nth(2).unwrap().parse().unwrap()
}

#[test]
fn five_thousand_requests_between_two_processes_leave_nothing_behind() {
    if !absent("five_thousand_requests_between_two_processes_leave_nothing_behind") {
        soak(5_000);
    }
}

#[test]
#[ignore = "half a minute and more; .ci/nixl runs it"]
fn a_hundred_thousand_requests_leave_nothing_behind() {
    if !absent("a_hundred_thousand_requests_leave_nothing_behind") {
        soak(100_000);
    }
}
