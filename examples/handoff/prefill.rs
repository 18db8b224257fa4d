//! The prefill side: what a connector does with a [`SendTracker`], thread by thread.
//!
//! | thread | calls |
//! |---|---|
//! | engine, one step after another | `track`, `abort`, `sweep`, `next_deadline`, `expire_consumers`, `shutdown` |
//! | notifications, `--threads` of them | `notify_batch`, `renew_batch`; answers with verdicts |
//! | transfers | `begin_transfer_owned`, `end` |
//!
//! They share a [`Prefill`] and nothing else: no lock, and no order between them. Wherever a call
//! hands out a [`Release`], the blocks go back to the pool through [`Prefill::free`].

use super::clock::ScaledClock;
use super::decode::Router;
use super::model::{Planned, Push};
use super::pool::{BlockPool, BlockRef, Pinned};
use clap::ValueEnum;
use kvlease::transport::{NotificationSink, NotificationSource, TransportError};
use kvlease::wire::{self, Message};
use kvlease::{
    Aborted, ConsumerId, ConsumerRegistry, Notification, Notified, Outcome, Release, SendTracker, Terms, Timestamp,
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
const POLL_EVERY: Duration = Duration::from_micros(500);

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

fn add(counter: &AtomicU64, by: usize) {
    counter.fetch_add(by as u64, Ordering::Relaxed);
}

/// What all threads of the prefill side share.
pub struct Prefill {
    pub tracker: Arc<SendTracker<Pinned>>,
    pub pool: BlockPool,
    pub registry: ConsumerRegistry,
    pub clock: ScaledClock,
    pub lease: Duration,
    /// How many ranks read each request.
    pub consumers: u32,
    /// Whether the ranks wait for a verdict on every completion, or only listen for bad news.
    pub verdicts: bool,
    pub sabotage: Option<Sabotage>,
    pub counters: Counters,
    /// Set once the sabotaged release has happened.
    pub sabotaged: AtomicBool,
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
    fn free(&self, release: Release<Pinned>) {
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
                ended.into_iter().for_each(|release| self.free(release));
            }
            self.sweep(now);
            let next = [tasks.peek().map(|(at, ..)| *at), crash.as_ref().map(|(at, _)| *at)];
            self.rest(next.into_iter().flatten().min());
        }

        // The ranks finish what they have, and go.
        drop((router, pushes));
        while !readers_gone.load(Ordering::Acquire) {
            self.sweep(self.clock.now());
            self.rest(None);
        }
        // What nobody will claim any more runs out within one lease, unless the policy holds it.
        let patience = self.clock.wall() + self.clock.real(self.lease) + AT_THE_END;
        while self.tracker.stats().live > 0 && self.clock.wall() < patience {
            self.sweep(self.clock.now());
            self.rest(None);
        }
        let left = self.tracker.shutdown(self.clock.now());
        add(&self.counters.left_for_shutdown, left.len());
        left.into_iter().for_each(|release| self.free(release));
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
        match self.tracker.track(&request.id, terms, blocks, now) {
            Ok(Tracked::Leased) => {
                self.counters.peak_tracked.fetch_max(self.tracker.stats().live, Ordering::Relaxed);
                if let Some(push) = request.push {
                    // Only fails when the transfer thread has gone, which it does after this one.
                    _ = pushes.send(PushJob { request: Arc::clone(request), push, addresses });
                }
            }
            // All that was needed came before: every notification, or an abort.
            Ok(Tracked::Ended(release)) => self.free(release),
            // Nobody else has the blocks: give them back, and let the request be computed again elsewhere.
            Err(refused) => {
                add(&self.counters.refused, 1);
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
                    self.free(release);
                }
                &self.counters.aborts_ended
            }
            Aborted::Early => &self.counters.aborts_early,
            Aborted::Late(_) | Aborted::Unknown => &self.counters.aborts_late,
        };
        add(counter, 1);
    }

    /// What every engine step ends with. Also the place where the release of a dropped [`Transfer`]
    /// comes out, so it is called once more when all threads are done.
    pub fn sweep(&self, now: Timestamp) {
        let swept = self.tracker.sweep(now);
        add(&self.counters.overdue, swept.overdue.len());
        swept.released.into_iter().for_each(|release| self.free(release));
    }

    /// Idle until there is something to do: a task, or a lease that runs out.
    fn rest(&self, next_task: Option<Timestamp>) {
        let next = [next_task, self.tracker.next_deadline()].into_iter().flatten().min();
        thread::sleep(STEP);
        self.clock.sleep_until(next, LONGEST_SLEEP);
    }

    /// A notification thread: whatever one poll brings is one batch for the tracker.
    /// The threads take turns at the source, and work at the same time on what it gave them.
    pub fn notifications(
        &self,
        source: &Mutex<impl NotificationSource>,
        sink: &impl NotificationSink,
        stop: &AtomicBool,
    ) -> Result<(), TransportError> {
        let mut inbox: Vec<(ConsumerId, Vec<u8>)> = Vec::new();
        loop {
            // Looked at before the poll, so that what was sent before the stop is still handled.
            let last = stop.load(Ordering::Acquire);
            inbox.clear();
            source.lock().unwrap().poll(&mut |agent, message| match self.registry.intern(agent) {
                Ok(sender) => inbox.push((sender, message.to_vec())),
                // More names than an honest peer has.
                Err(_) => add(&self.counters.foreign, 1),
            })?;
            self.handle(&inbox, sink);
            if inbox.is_empty() {
                if last {
                    return Ok(());
                }
                thread::sleep(POLL_EVERY);
            }
        }
    }

    fn handle(&self, inbox: &[(ConsumerId, Vec<u8>)], sink: &impl NotificationSink) {
        let now = self.clock.now();
        let mut completions = Vec::new();
        for (sender, bytes) in inbox {
            match wire::parse(bytes) {
                Ok(Message::Completion(done)) => {
                    completions.push(Notification { id: done.id, consumer: *sender, expected: Some(done.expected) });
                }
                Ok(Message::Heartbeat(heartbeat)) => {
                    let done = self.tracker.renew_batch(heartbeat.ids(), now + self.lease, Some(*sender), now);
                    add(&self.counters.heartbeats, 1);
                    add(&self.counters.renewed, done.extended + done.unchanged);
                    add(&self.counters.renewed_early, done.early);
                    add(&self.counters.renewed_late, done.late + done.unknown);
                }
                // A real connector hands `Opaque` to its push registration.
                Ok(Message::Opaque(_) | Message::Stale(_)) => add(&self.counters.foreign, 1),
                Err(_) => add(&self.counters.malformed, 1),
            }
        }
        // The answers are sent after the batch: the tracker holds its memory still while a batch runs.
        let mut verdicts = Vec::new();
        self.tracker.notify_batch(completions, now, |of, notified| {
            let verdict = self.classify(&notified);
            if let Some(release) = notified.release() {
                self.free(release);
            }
            verdicts.extend(verdict.map(|verdict| (of, verdict)));
        });
        for (of, verdict) in verdicts {
            self.answer(of, verdict, sink);
        }
    }

    /// Counts what a completion was found to be, and says what its sender is to be told:
    /// [`Outcome::Completed`] for a read that was in time, another outcome for one that was not.
    fn classify(&self, notified: &Notified<Pinned>) -> Option<Outcome> {
        let c = &self.counters;
        let counter = match notified {
            Notified::Counted { .. } => &c.counted,
            Notified::Completed(_) => &c.completing,
            Notified::ExpectedConflict { .. } => &c.conflicts,
            Notified::Duplicate { .. } => &c.duplicates,
            Notified::LateDuplicate(_) => &c.late_duplicates,
            Notified::Late(Outcome::Completed) => &c.late_completed,
            Notified::Late(Outcome::Expired) => &c.late_expired,
            Notified::Late(Outcome::Aborted) => &c.late_aborted,
            // Not tracked yet, or forgotten long ago: only the next attempt of the rank can tell.
            Notified::Early => &c.early,
            Notified::Unknown => &c.unknown,
            Notified::Refused(_) => &c.not_countable,
        };
        add(counter, 1);
        notified.verdict()
    }

    fn answer(&self, of: Notification<'_>, mut verdict: Outcome, sink: &impl NotificationSink) {
        if self.sabotage == Some(Sabotage::SilentStale) {
            verdict = Outcome::Completed;
        }
        let good = verdict == Outcome::Completed;
        if good && !self.verdicts {
            return;
        }
        let Some(agent) = self.registry.name_of(of.consumer) else { return };
        let mut reply = Vec::new();
        wire::write_stale_reply(of.id, verdict, &mut reply).expect("a completion has an id");
        match sink.send(&agent, &reply) {
            Ok(()) => add(if good { &self.counters.verdicts_good } else { &self.counters.verdicts_stale }, 1),
            Err(_) => add(&self.counters.unreachable, 1),
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
                            self.free(release);
                        }
                    }
                }
            }
            thread::sleep(POLL_EVERY);
        }
    }
}
