//! The prefill side: what a connector does with a [`SendTracker`], thread by thread.
//!
//! | thread | calls |
//! |---|---|
//! | engine, one step after another | `track`, `abort`, `sweep`, `next_deadline`, `expire_consumers`, `shutdown` |
//! | notifications, `--threads` of them | [`Pump::step`]: notifies, renews, answers with verdicts |
//! | transfers | `begin_transfer_owned`, `end` |
//!
//! They share a [`Prefill`] and nothing else: no lock, and no order between them. Wherever a call
//! hands out a [`Release`], the blocks go back to the pool through [`Prefill::free`].

use super::clock::ScaledClock;
use super::decode::Router;
use super::model::{Planned, Push};
use super::pool::{BlockPool, BlockRef, Pinned};
use super::timeline::{Gauges, Recorder, ReleasedBy};
use clap::ValueEnum;
use kvlease::pump::{Counts, OpaqueMessage, PumpConfig};
use kvlease::transport::{NotificationSink, NotificationSource, TransportError};
use kvlease::wire::{self, Message};
use kvlease::{
    Aborted, ConsumerId, ConsumerRegistry, Outcome, Pump, Release, RequestId, SendTracker, Stats, Terms, Timestamp,
    Tracked, Transfer,
};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// An engine step takes at least this long, in real time.
const STEP: Duration = Duration::from_micros(100);
/// And the engine looks up at least this often.
const LONGEST_SLEEP: Duration = Duration::from_millis(5);
/// How long, in real time, the engine waits at the end for notification threads that are behind.
const AT_THE_END: Duration = Duration::from_millis(500);
/// How long a notification thread rests when a poll brought nothing.
pub const POLL_EVERY: Duration = Duration::from_micros(500);

/// A fault in this program itself, to see that the checks at the end bite.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sabotage {
    /// Free the blocks of the first release twice
    DoubleRelease,
    /// Free the blocks of the first release never
    Leak,
    /// Tell every rank that its read was good, or tell it nothing
    SilentStale,
}

/// Declares a struct of counters that threads share, and its plain snapshot.
macro_rules! counters {
    ($shared:ident, $snapshot:ident { $($(#[$doc:meta])* $name:ident),* $(,)? }) => {
        #[derive(Default)]
        pub struct $shared { $($(#[$doc])* pub $name: AtomicU64),* }

        #[derive(Clone, Copy, Default, Debug, serde::Serialize)]
        pub struct $snapshot { $($(#[$doc])* pub $name: u64),* }

        impl $shared {
            pub fn snapshot(&self) -> $snapshot {
                $snapshot { $($name: self.$name.load(Ordering::Relaxed)),* }
            }
        }
    };
}

counters!(
    Counters,
    PrefillCounts {
        /// Releases of which some block was not allocated any more.
        double_released,
        /// `track` refused.
        refused,
        peak_tracked,
        /// Leases found overdue under the hold policy.
        overdue,
        /// Leases ended because their decode engine was reported dead.
        expired_by_crash,
        /// Payloads that were left for `shutdown`.
        left_for_shutdown,
        /// Aborts by what they met: before `track`, a live lease, an ended one.
        aborts_early,
        aborts_ended,
        aborts_late,
        /// Messages that were polled.
        received,
        /// Completion messages by what they were found to be.
        counted,
        completing,
        duplicates,
        late_duplicates,
        early,
        late_completed,
        late_expired,
        late_aborted,
        unknown,
        conflicts,
        not_countable,
        malformed,
        /// Messages that are not for a tracker.
        foreign,
        /// Heartbeats, and the ids in them by what they did.
        heartbeats,
        renewed,
        renewed_early,
        renewed_late,
        /// Verdicts sent: the read is good; the read is stale.
        verdicts_good,
        verdicts_stale,
        /// Replies to an agent that is gone.
        unreachable,
        pushes,
        pushes_refused,
        pushes_failed,
        /// Blocks that were released while the producer's own transfer used them.
        pushes_torn,
    }
);

pub fn add(counter: &AtomicU64, by: usize) {
    counter.fetch_add(by as u64, Ordering::Relaxed);
}

/// What all threads of the prefill side share.
pub struct Prefill {
    pub tracker: Arc<SendTracker<Pinned>>,
    pub pool: BlockPool,
    pub registry: Arc<ConsumerRegistry>,
    /// Where the blocks of each leased request are, for transfers of the prefill side's own.
    pub addresses: Mutex<HashMap<RequestId, Arc<[BlockRef]>>>,
    pub clock: ScaledClock,
    pub lease: Duration,
    /// How many ranks read each request.
    pub consumers: u32,
    pub sabotage: Option<Sabotage>,
    pub counters: Counters,
    /// Takes notes for `--report`.
    pub recorder: Option<Arc<Recorder>>,
    /// Set once the sabotaged release has happened.
    pub sabotaged: AtomicBool,
}

/// A source that threads take turns at, and the notes on what comes from it.
struct Turn<'a, S> {
    source: &'a Mutex<S>,
    prefill: &'a Prefill,
}

impl<S: NotificationSource> NotificationSource for Turn<'_, S> {
    fn poll(&mut self, on: &mut dyn FnMut(&str, &[u8])) -> Result<usize, TransportError> {
        let Some(recorder) = &self.prefill.recorder else { return self.source.lock().unwrap().poll(on) };
        let now = self.prefill.clock.now();
        self.source.lock().unwrap().poll(&mut |agent, message| {
            if let Ok(Message::Heartbeat(heartbeat)) = wire::parse(message) {
                recorder.renewed(heartbeat.ids(), now);
            }
            on(agent, message);
        })
    }
}

/// What the answers go out by: as they are, or, for [`Sabotage::SilentStale`], all of them good news.
struct Mouth<'a, S> {
    sink: &'a S,
    lies: bool,
}

impl<S: NotificationSink> NotificationSink for Mouth<'_, S> {
    fn send(&self, agent: &str, message: &[u8]) -> Result<(), TransportError> {
        match wire::parse(message) {
            Ok(Message::Stale(reply)) if self.lies => {
                let mut lie = Vec::new();
                wire::write_stale_reply(reply.id, Outcome::Completed, &mut lie).expect("it was a reply before");
                self.sink.send(agent, &lie)
            }
            _ => self.sink.send(agent, message),
        }
    }
}

/// A transfer of the prefill side's own, for [`Prefill::transfers`].
pub struct PushJob {
    request: Arc<Planned>,
    push: Push,
    addresses: Arc<[BlockRef]>,
}

/// What the engine has to do for a request.
#[derive(Clone, Copy)]
enum Task {
    HandOver,
    Track,
    Abort,
}

/// All tasks of all requests, each with the index of its request, in order of time.
fn timeline(plan: &[Arc<Planned>]) -> Vec<(Timestamp, Task, usize)> {
    let tasks = |(i, request): (usize, &Arc<Planned>)| {
        let fixed = [(request.handed_at, Task::HandOver, i), (request.tracked_at, Task::Track, i)];
        fixed.into_iter().chain(request.abort_at.map(|at| (at, Task::Abort, i)))
    };
    let mut all: Vec<_> = plan.iter().enumerate().flat_map(tasks).collect();
    all.sort_by_key(|(at, ..)| *at);
    all
}

impl Prefill {
    /// The one place where blocks go back.
    pub fn free(&self, release: Release<Pinned>, by: ReleasedBy) {
        if let Some(recorder) = &self.recorder {
            recorder.released(&release, by);
        }
        self.addresses.lock().unwrap().remove(&release.id);
        let blocks = release.payload;
        match self.sabotage.filter(|s| *s != Sabotage::SilentStale && !self.sabotaged.swap(true, Ordering::Relaxed)) {
            Some(Sabotage::Leak) => return,
            Some(_) => _ = self.pool.free_addresses(&blocks.addresses()),
            None => {}
        }
        if self.pool.free(blocks).is_err() {
            add(&self.counters.double_released, 1);
        }
    }

    /// The engine: one step after another until every request is tracked, the decode side has gone
    /// (`readers_gone`) and every lease has ended. `crash` says when it learns that a decode engine has
    /// died, and who its ranks were. `progress` is called for each request that is tracked.
    pub fn engine(
        &self,
        plan: &[Arc<Planned>],
        mut router: Router,
        pushes: Sender<PushJob>,
        mut crash: Option<(Timestamp, Vec<ConsumerId>)>,
        readers_gone: &AtomicBool,
        progress: impl Fn(),
    ) {
        let mut tasks = timeline(plan).into_iter().peekable();
        // Requests that the decode side knows and the tracker does not: their blocks, and who will read.
        let mut in_prefill = HashMap::new();

        while tasks.peek().is_some() || crash.is_some() {
            let now = self.clock.now();
            while let Some((_, task, i)) = tasks.next_if(|(at, ..)| *at <= now) {
                let request = &plan[i];
                match task {
                    Task::HandOver => {
                        let blocks = self.pool.allocate(request.blocks).expect("the pool holds the whole trace");
                        let reader = router.hand_over(request, &blocks.addresses(), now);
                        in_prefill.insert(i, (blocks, reader));
                    }
                    Task::Track => {
                        let (blocks, reader) = in_prefill.remove(&i).expect("handed over before it is tracked");
                        self.track(request, blocks, reader, now, &pushes);
                        progress();
                    }
                    Task::Abort => self.abort(request, now),
                }
            }
            if crash.as_ref().is_some_and(|(at, _)| *at <= now) {
                let (_, dead) = crash.take().expect("just seen");
                let ended = self.tracker.expire_consumers(&dead, now);
                add(&self.counters.expired_by_crash, ended.len());
                ended.into_iter().for_each(|release| self.free(release, ReleasedBy::EngineDead));
            }
            self.step(now);
            let next = [tasks.peek().map(|(at, ..)| *at), crash.as_ref().map(|(at, _)| *at)];
            self.rest(next.into_iter().flatten().min());
        }

        // The ranks finish what they have, and go.
        drop((router, pushes));
        while !readers_gone.load(Ordering::Acquire) {
            self.step(self.clock.now());
            self.rest(None);
        }
        // What nobody will claim any more runs out within one lease, unless the policy holds it.
        let patience = self.clock.wall() + self.clock.real(self.lease) + AT_THE_END;
        while self.tracker.stats().live > 0 && self.clock.wall() < patience {
            self.step(self.clock.now());
            self.rest(None);
        }
        let left = self.tracker.shutdown(self.clock.now());
        add(&self.counters.left_for_shutdown, left.len());
        left.into_iter().for_each(|release| self.free(release, ReleasedBy::Shutdown));
        self.step(self.clock.now());
    }

    fn track(
        &self,
        request: &Arc<Planned>,
        blocks: Pinned,
        reader: ConsumerId,
        now: Timestamp,
        pushes: &Sender<PushJob>,
    ) {
        let addresses = blocks.addresses();
        // Which decode engine will read is known here; without it, the first heartbeat would tell.
        let mut terms = Terms::until(now + self.lease).weight(request.blocks).waits_for(reader);
        if request.expected_known {
            terms = terms.consumers(self.consumers);
        }
        self.addresses.lock().unwrap().insert(RequestId::from(&*request.id), Arc::clone(&addresses));
        if let Some(recorder) = &self.recorder {
            recorder.tracking(&request.id, request.blocks, now);
        }
        match self.tracker.track(&request.id, terms, blocks, now) {
            Ok(Tracked::Leased) => {
                let stats = self.tracker.stats();
                self.counters.peak_tracked.fetch_max(stats.live, Ordering::Relaxed);
                self.note_gauges(&stats, now);
                if let Some(push) = request.push {
                    // Only fails when the transfer thread has gone, which it does after this one.
                    _ = pushes.send(PushJob { request: Arc::clone(request), push, addresses });
                }
            }
            // All that was needed came before: every notification, or an abort.
            Ok(Tracked::Ended(release)) => self.free(release, ReleasedBy::Track),
            // Nobody else has the blocks: give them back, and let the request be computed again elsewhere.
            Err(refused) => {
                add(&self.counters.refused, 1);
                if let Some(recorder) = &self.recorder {
                    recorder.refused(&request.id);
                }
                self.addresses.lock().unwrap().remove(&*request.id);
                if self.pool.free(refused.payload).is_err() {
                    add(&self.counters.double_released, 1);
                }
            }
        }
    }

    fn abort(&self, request: &Planned, now: Timestamp) {
        let counter = match self.tracker.abort(&request.id, now) {
            Aborted::Ended(ended) => {
                if let Some(release) = ended.release() {
                    self.free(release, ReleasedBy::Abort);
                }
                &self.counters.aborts_ended
            }
            Aborted::Early => &self.counters.aborts_early,
            Aborted::Late(_) | Aborted::Unknown => &self.counters.aborts_late,
        };
        add(counter, 1);
    }

    /// Only the engine does, so the most that is noted is the most that is reported.
    fn note_gauges(&self, stats: &Stats, now: Timestamp) {
        if let Some(recorder) = &self.recorder {
            let blocks_allocated = self.pool.most_since_last_asked() as u64;
            let gauges = Gauges { leases: stats.live, blocks_held: stats.weight_held, blocks_allocated };
            recorder.gauges(now, gauges);
        }
    }

    /// What every engine step ends with.
    fn step(&self, now: Timestamp) {
        self.sweep(now);
        if self.recorder.is_some() {
            self.note_gauges(&self.tracker.stats(), now);
        }
    }

    /// Releases what has run out. Also the place where the release of a dropped [`Transfer`]
    /// comes out, so it is called once more when all threads are done.
    pub fn sweep(&self, now: Timestamp) {
        let swept = self.tracker.sweep(now);
        add(&self.counters.overdue, swept.overdue.len());
        if let Some(recorder) = &self.recorder {
            swept.overdue.iter().for_each(|id| recorder.overdue(id, now));
        }
        swept.released.into_iter().for_each(|release| self.free(release, ReleasedBy::Sweep));
    }

    /// Idle until there is something to do: a task, or a lease that runs out.
    fn rest(&self, next_task: Option<Timestamp>) {
        let next = [next_task, self.tracker.next_deadline()].into_iter().flatten().min();
        thread::sleep(STEP);
        self.clock.sleep_until(next, LONGEST_SLEEP);
    }

    /// A notification thread: whatever one poll brings is one batch for the tracker. The threads take turns at the
    /// source, and work at the same time on what it gave them. Messages of other protocols go to `on_opaque`.
    pub fn notifications(
        &self,
        source: &Mutex<impl NotificationSource>,
        sink: &impl NotificationSink,
        stop: &AtomicBool,
        on_opaque: impl Fn(OpaqueMessage),
    ) -> Result<(), TransportError> {
        let config = PumpConfig { lease: self.lease, ..PumpConfig::default() };
        let mut pump = Pump::new(config, Arc::clone(&self.registry));
        let sink = Mouth { sink, lies: self.sabotage == Some(Sabotage::SilentStale) };
        loop {
            // Looked at before the poll, so that what was sent before the stop is still handled.
            let last = stop.load(Ordering::Acquire);
            let pumped = pump.step(&self.tracker, &mut Turn { source, prefill: self }, &sink, self.clock.now());
            pumped.released.into_iter().for_each(|release| self.free(release, ReleasedBy::Notification));
            pumped.opaque.into_iter().for_each(&on_opaque);
            if let Some(error) = pumped.poll_error {
                return Err(error);
            }
            if pumped.counts.received == 0 && pumped.waiting == 0 {
                if last {
                    self.count(&pump.totals());
                    return Ok(());
                }
                thread::sleep(POLL_EVERY);
            }
        }
    }

    fn count(&self, pump: &Counts) {
        let (c, done, beats) = (&self.counters, pump.completions, pump.heartbeats);
        for (counter, count) in [
            (&c.counted, done.counted),
            (&c.completing, done.completed),
            (&c.duplicates, done.duplicate),
            (&c.late_duplicates, done.late_duplicate),
            (&c.early, done.early),
            (&c.late_completed, done.late_completed),
            (&c.late_expired, done.late_expired),
            (&c.late_aborted, done.late_aborted),
            (&c.unknown, done.unknown),
            (&c.conflicts, done.conflict),
            (&c.not_countable, done.refused),
            (&c.malformed, pump.malformed.total()),
            (&c.foreign, pump.opaque + pump.replies_received + pump.strangers),
            (&c.heartbeats, beats.messages),
            (&c.renewed, beats.extended + beats.unchanged),
            (&c.renewed_early, beats.early),
            (&c.renewed_late, beats.late + beats.unknown),
            (&c.verdicts_good, pump.sent_good),
            (&c.verdicts_stale, pump.sent_stale),
            (&c.unreachable, pump.unsent),
            (&c.received, pump.received),
        ] {
            counter.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// The transfer thread: begins and ends the prefill side's own transfers. While one is in flight,
    /// nothing releases the blocks, and the pool is asked whether that is so.
    pub fn transfers(&self, jobs: Receiver<PushJob>) {
        enum Step {
            Begin,
            End(Transfer<Pinned, Arc<SendTracker<Pinned>>>),
        }
        let mut steps = BTreeMap::new();
        let mut serial = 0_u64;
        let mut open = true;
        while open || !steps.is_empty() {
            match jobs.try_recv() {
                Ok(job) => {
                    steps.insert((job.push.starts_at, serial), (job, Step::Begin));
                    serial += 1;
                    continue;
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => open = false,
            }
            let now = self.clock.now();
            while let Some(due) = steps.first_entry().filter(|step| step.key().0 <= now) {
                let ((_, serial), (job, step)) = due.remove_entry();
                match step {
                    Step::Begin => match self.tracker.begin_transfer_owned(&job.request.id) {
                        Ok(guard) => {
                            add(&self.counters.pushes, 1);
                            steps.insert((now + job.push.lasts, serial), (job, Step::End(guard)));
                        }
                        // The lease is over: not one byte of these blocks may be touched.
                        Err(_) => add(&self.counters.pushes_refused, 1),
                    },
                    Step::End(guard) => {
                        if !self.pool.holds(&job.addresses) {
                            add(&self.counters.pushes_torn, 1);
                        }
                        if job.push.fails {
                            // As by `?` or a panic: the release, if it waited for this, comes with a sweep.
                            drop(guard);
                            add(&self.counters.pushes_failed, 1);
                        } else if let Some(release) = guard.end(now) {
                            self.free(release, ReleasedBy::TransferEnd);
                        }
                    }
                }
            }
            thread::sleep(POLL_EVERY);
        }
    }
}
