//! Short slices of work on several threads at once, and whether the machine really let them run.
//!
//! On a machine that others use, too, a figure is worth as much as the time it was measured in. So work is
//! cut into slices of a few milliseconds, and each tells how long its threads were runnable without running
//! (the run-queue delay that Linux keeps for each thread; waiting for a lock is not part of it). A slice with
//! too much of it is dropped, and counted. Where threads outnumber cores they wait for each other, and what
//! is looked at instead is how much of the processors went to other processes.

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::resource::{UsageWho, getrusage};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// The share of a slice that its threads may have waited for a processor.
const MAX_DELAY: f64 = 0.03;
/// The share of the processors that may have gone to others, where threads outnumber cores.
const MAX_FOREIGN: f64 = 0.08;
/// A tick of `/proc/stat`, which every Linux has set to this.
const TICK: Duration = Duration::from_millis(10);

/// How many threads can run at once.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, |n| n.get())
}

/// Where the threads of a slice wait for each other, so that they begin together.
struct Gate {
    waiting: AtomicUsize,
    /// When the last one came, as the clock's raw value; 0 until then.
    opened: AtomicU64,
    length: Duration,
}

/// A slice that runs, as one of its threads sees it.
pub struct Running<'a> {
    clock: &'a quanta::Clock,
    began: u64,
    length: u64,
}

impl Running<'_> {
    /// Whether it is time to stop. Costs some 10 ns.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.clock.delta_as_nanos(self.began, self.clock.raw()) >= self.length
    }

    /// The clock's raw value, to measure a call with.
    #[inline]
    pub fn raw(&self) -> u64 {
        self.clock.raw()
    }

    /// What lies between two raw values, in nanoseconds.
    #[inline]
    pub fn nanos(&self, from: u64, to: u64) -> u64 {
        self.clock.delta_as_nanos(from, to)
    }
}

impl Gate {
    fn wait<'a>(&self, clock: &'a quanta::Clock) -> Running<'a> {
        if self.waiting.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.opened.store(clock.raw().max(1), Ordering::Release);
        }
        let mut began = self.opened.load(Ordering::Acquire);
        while began == 0 {
            thread::yield_now();
            began = self.opened.load(Ordering::Acquire);
        }
        Running { clock, began, length: self.length.as_nanos() as u64 }
    }
}

/// What a thread of this process has had of the processors.
#[derive(Clone, Copy, Default)]
struct Had {
    /// Time that it was runnable and did not run. `None` where the system does not say.
    delayed: Option<Duration>,
    /// Time that it ran.
    ran: Duration,
    /// How often it was taken off a processor.
    switches: i64,
}

impl Had {
    fn now() -> Had {
        let delayed = fs::read_to_string("/proc/thread-self/schedstat")
            .ok()
            .and_then(|text| text.split_whitespace().nth(1)?.parse().ok())
            .map(Duration::from_nanos);
        Had { delayed, ran: cpu_time(), switches: switches() }
    }
}

/// For how long the processors have been busy, each counted.
fn busy() -> Option<Duration> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let fields: Vec<u32> =
        stat.lines().next()?.split_whitespace().skip(1).map_while(|field| field.parse().ok()).collect();
    // All but idle and waiting for input.
    Some(TICK * [0, 1, 2, 5, 6, 7].iter().filter_map(|&field| fields.get(field)).sum::<u32>())
}

/// What one thread did in a slice.
#[derive(Clone, Debug, Default)]
pub struct Work {
    /// Calls made.
    pub calls: u64,
    /// How long each took in nanoseconds, where that was asked for.
    pub latencies: Option<Box<hdrhistogram::Histogram<u64>>>,
}

/// What all threads did in a slice.
pub struct Slice {
    /// Calls made.
    pub calls: u64,
    /// From the gate to the end of the last thread's work.
    pub took: Duration,
    /// How long each took in nanoseconds, where that was asked for.
    pub latencies: Option<Box<hdrhistogram::Histogram<u64>>>,
    /// Whether its threads had the processors for themselves.
    pub clean: bool,
    /// How often its threads were taken off a processor.
    pub switches: i64,
}

impl Slice {
    /// Millions of calls a second.
    pub fn mops(&self) -> f64 {
        self.calls as f64 / self.took.as_secs_f64() / 1e6
    }
}

/// Something that threads can work on, in slices.
pub trait Bench: Sync {
    /// Works until the slice is over, as thread number `thread`.
    fn work(&self, thread: usize, seed: u64, mode: Mode, running: &Running<'_>) -> Work;
}

/// How the calls of a slice are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// One by one.
    Single,
    /// One by one, and the time of each is taken.
    Timed,
    /// Many at once, where the workload knows how to.
    Batched,
}

struct Order {
    bench: usize,
    seed: u64,
    mode: Mode,
    gate: Arc<Gate>,
}

struct Done {
    work: Work,
    took: u64,
    had: Had,
}

/// Threads that stay for many slices, so that what a map keeps for each thread is warm.
pub struct Crew<'a> {
    clock: &'a quanta::Clock,
    orders: Vec<mpsc::Sender<Order>>,
    done: mpsc::Receiver<Done>,
    seed: u64,
}

impl Crew<'_> {
    /// Runs `f` with a crew of so many threads that can work on any of `benches`. Each has a core of its own
    /// if there are just enough.
    pub fn with<R>(threads: usize, benches: &[&dyn Bench], f: impl FnOnce(&mut Crew<'_>) -> R) -> R {
        let clock = quanta::Clock::new();
        let clock = &clock;
        thread::scope(|scope| {
            let (report, done) = mpsc::channel();
            let orders = (0..threads).map(|thread| {
                let (send, orders) = mpsc::channel::<Order>();
                let report = report.clone();
                scope.spawn(move || {
                    if threads == cores() {
                        stay_on(thread);
                    }
                    for order in orders {
                        let before = Had::now();
                        let running = order.gate.wait(clock);
                        let work = benches[order.bench].work(thread, order.seed, order.mode, &running);
                        let took = clock.raw().saturating_sub(running.began);
                        let after = Had::now();
                        let had = Had {
                            delayed: after.delayed.zip(before.delayed).map(|(after, before)| after - before),
                            ran: after.ran - before.ran,
                            switches: after.switches - before.switches,
                        };
                        if report.send(Done { work, took, had }).is_err() {
                            break;
                        }
                    }
                });
                send
            });
            let mut crew = Crew { clock, orders: orders.collect(), done, seed: 0 };
            drop(report);
            f(&mut crew)
        })
    }

    /// How many threads there are.
    pub fn threads(&self) -> usize {
        self.orders.len()
    }

    /// One slice of the bench with this number.
    pub fn slice(&mut self, bench: usize, length: Duration, mode: Mode) -> Slice {
        self.seed += 1;
        let threads = self.orders.len();
        let gate = Arc::new(Gate { waiting: AtomicUsize::new(threads), opened: AtomicU64::new(0), length });
        for (thread, orders) in self.orders.iter().enumerate() {
            let seed = self.seed.wrapping_mul(1_000_003).wrapping_add(thread as u64);
            orders.send(Order { bench, seed, mode, gate: Arc::clone(&gate) }).expect("a worker has panicked");
        }
        let mut slice = Slice { calls: 0, took: Duration::ZERO, latencies: None, clean: true, switches: 0 };
        let mut ran = Duration::ZERO;
        let busy_before = busy();
        let mut delayed = Some(Duration::ZERO);
        for _ in 0..threads {
            let done = self.done.recv().expect("a worker has panicked");
            slice.calls += done.work.calls;
            slice.took = slice.took.max(Duration::from_nanos(self.clock.delta_as_nanos(0, done.took)));
            ran += done.had.ran;
            slice.switches += done.had.switches;
            delayed = delayed.zip(done.had.delayed).map(|(sum, one)| sum + one);
            match (&mut slice.latencies, done.work.latencies) {
                (Some(all), Some(one)) => all.add(*one).expect("of one range"),
                (all, one) => *all = all.take().or(one),
            }
        }
        slice.clean = if threads <= cores() {
            match delayed {
                Some(delayed) => delayed.as_secs_f64() <= MAX_DELAY * slice.took.as_secs_f64(),
                None => slice.switches == 0,
            }
        } else {
            let allowed = MAX_FOREIGN * cores() as f64 * slice.took.as_secs_f64();
            let not_ours = (slice.took * cores() as u32).saturating_sub(ran);
            // What was not ours may have been nobody's: threads wait for locks.
            let foreign = busy_before.zip(busy()).map(|(before, after)| (after - before).saturating_sub(ran + TICK));
            not_ours.min(foreign.unwrap_or(not_ours)).as_secs_f64() <= allowed
        };
        slice
    }
}

/// Processor time that this thread has had. What others do on the machine is not in it.
pub fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

fn switches() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.involuntary_context_switches())
}

/// Takes the time of calls, and leaves out those in which this thread was taken off its core: they say
/// nothing about the call. Waiting for a lock is not left out.
pub struct Stopwatch {
    clock: quanta::Clock,
    latencies: Box<hdrhistogram::Histogram<u64>>,
    switches: i64,
}

/// A call that takes less was not interrupted: in nanoseconds.
const SUSPICIOUS: u64 = 20_000;

impl Stopwatch {
    /// That adds to this histogram.
    pub fn new(latencies: Box<hdrhistogram::Histogram<u64>>) -> Self {
        Stopwatch { clock: quanta::Clock::new(), latencies, switches: switches() }
    }

    /// Just before a call.
    #[inline]
    pub fn begin(&self) -> u64 {
        self.clock.raw()
    }

    /// Just after it.
    #[inline]
    pub fn end(&mut self, began: u64) {
        let nanos = self.clock.delta_as_nanos(began, self.clock.raw());
        if nanos > SUSPICIOUS {
            let before = std::mem::replace(&mut self.switches, switches());
            if before != self.switches {
                return;
            }
        }
        self.latencies.saturating_record(nanos.max(1));
    }

    /// What was measured.
    pub fn into_latencies(self) -> Box<hdrhistogram::Histogram<u64>> {
        self.latencies
    }
}

/// A histogram for the latencies of calls, in nanoseconds.
pub fn histogram() -> Box<hdrhistogram::Histogram<u64>> {
    Box::new(hdrhistogram::Histogram::new_with_bounds(1, 60_000_000_000, 2).expect("these bounds are valid"))
}

/// Keeps this thread on one core, the `n`th that this process may use.
pub fn stay_on(n: usize) {
    let this = Pid::from_raw(0);
    let allowed = nix::sched::sched_getaffinity(this).unwrap_or_default();
    let cores: Vec<usize> = (0..CpuSet::count()).filter(|&core| allowed.is_set(core).unwrap_or(false)).collect();
    let mut one = CpuSet::new();
    // If it fails the thread runs wherever, and slices tell whether it ran.
    if !cores.is_empty() && one.set(cores[n % cores.len()]).is_ok() {
        let _ = sched_setaffinity(this, &one);
    }
}
