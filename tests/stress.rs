//! All calls from all threads at once, on the same requests.
//!
//! In the first half each id has one life, so every answer about it can be held against how it
//! ended. In the second half a handful of ids is tracked again and again, so the threads meet on
//! every transition; there each payload is accounted for.

mod common;

use common::*;
use kvlease::Outcome::{self, Aborted as AbortedOutcome, Completed, Expired};
use kvlease::{
    Aborted, Config, Ended, ExpiryPolicy, Notification, Notified, Release, Renewed, SendTracker, Terms, Timestamp,
    TrackRefusal, Tracked, TransferRefusal,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
use std::thread;
use std::time::{Duration, Instant};

const RUN_FOR: Duration = Duration::from_millis(1_500);
/// Leases that a run has at least, however busy the machine is.
const AT_LEAST: usize = 1_000;

/// Consumers that notify; a lease waits for three of them.
const CONSUMERS: usize = 4;
const EXPECTED: u32 = 3;
/// Whom leases wait for that no report of a dead engine may end.
const IMMORTAL: u32 = 100;

// ---------------------------------------------------------------------------------------------
// One life per id.

/// Runs when its thread has finished or panics.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        self.0();
    }
}

/// What is known of one request.
#[derive(Default)]
struct Record {
    tracked: AtomicBool,
    /// Consumers whose notification was not refused.
    credited: AtomicU32,
    /// Transfers between the answer that they may begin and the call that ends them.
    transfers: AtomicU32,
    /// The latest deadline that a renewal was told is in force.
    extended_to: AtomicU64,
    releases: AtomicU32,
    /// How it ended, as `1 << outcome`, from its release.
    ended: AtomicU8,
    /// Every outcome that a late caller was told, as `1 << outcome`.
    told: AtomicU8,
}

/// What becomes of a request is by its number.
#[derive(Clone, Copy, PartialEq)]
enum Class {
    /// Long deadline, never aborted: must complete if enough consumers were credited.
    Safe,
    /// Short deadline, renewed: may expire, but not before what a renewal promised.
    Timed,
    /// Aborted, sometimes before it is tracked.
    Doomed,
    /// How many consumers are expected is learned; waits for whoever comes first, who may die.
    Learned,
}

fn class(i: usize) -> Class {
    [Class::Safe, Class::Timed, Class::Doomed, Class::Learned][i % 4]
}

struct Scenario {
    config: Config,
    /// How far messages run ahead of `track`.
    ahead: usize,
    /// The tracker is dropped with what remains, without a shutdown.
    drop_it: bool,
    seed: u64,
}

struct Run {
    tracker: Tracker,
    ledger: Ledger,
    records: Vec<Record>,
    ids: Vec<String>,
    /// The next request to be tracked; all before it have been.
    next: AtomicUsize,
    /// How far each notifier has come.
    notified: [AtomicUsize; CONSUMERS],
    /// Nothing more will be tracked.
    last: AtomicBool,
    done: AtomicBool,
    clock: AtomicU64,
    completed: AtomicU64,
    aborted: AtomicU64,
}

impl Run {
    fn new(config: Config) -> Self {
        const REQUESTS: usize = 100_000;
        Run {
            tracker: SendTracker::with_config(config),
            ledger: Ledger::new(),
            records: std::iter::repeat_with(Record::default).take(REQUESTS).collect(),
            // Some inline, some not.
            ids: (0..REQUESTS).map(|i| format!("cmpl-{}{i}", "x".repeat(i % 7 * 10))).collect(),
            next: AtomicUsize::new(0),
            notified: Default::default(),
            last: AtomicBool::new(false),
            done: AtomicBool::new(false),
            clock: AtomicU64::new(1_000),
            completed: AtomicU64::new(0),
            aborted: AtomicU64::new(0),
        }
    }

    fn now(&self) -> Timestamp {
        ms(self.clock.load(SeqCst))
    }

    /// A request that is being tracked about now.
    fn some_recent(&self, rng: &mut SmallRng, ahead: usize) -> usize {
        let next = self.next.load(SeqCst);
        rng.random_range(next.saturating_sub(48)..=next + ahead).min(self.ids.len() - 1)
    }

    fn late(&self, i: usize, outcome: Outcome) {
        self.records[i].told.fetch_or(1 << outcome as u8, SeqCst);
    }

    fn release(&self, release: Release<Payload>) {
        let i = release.payload.number as usize;
        assert_eq!(release.id, *self.ids[i].as_str());
        assert_eq!(release.weight, 3);
        let record = &self.records[i];
        assert_eq!(record.releases.fetch_add(1, SeqCst), 0, "{i} released twice");
        assert_eq!(record.transfers.load(SeqCst), 0, "{i} released in transfer");
        record.ended.store(1 << release.outcome as u8, SeqCst);
        if release.outcome == Expired && class(i) == Class::Timed {
            let promised = record.extended_to.load(SeqCst);
            assert!(self.clock.load(SeqCst) >= promised, "{i} expired before {promised}");
        }
    }

    fn notified(&self, i: usize, answer: Notified<Payload>) {
        match &answer {
            Notified::Counted { seen, expected } => {
                assert!((1..EXPECTED).contains(seen) || expected.is_none() && *seen <= CONSUMERS as u32);
                assert!(expected.is_none_or(|n| n == EXPECTED));
            }
            Notified::Completed(_) => _ = self.completed.fetch_add(1, SeqCst),
            Notified::Early => {}
            Notified::Late(outcome) => return self.late(i, *outcome),
            Notified::Unknown => return,
            // Each consumer notifies once, and all say the same.
            other => panic!("{i}: {other:?}"),
        }
        self.records[i].credited.fetch_add(1, SeqCst);
        if let Some(release) = answer.release() {
            assert_eq!(release.outcome, Completed);
            self.release(release);
        }
    }

    fn abort(&self, i: usize) {
        match self.tracker.abort(&self.ids[i], self.now()) {
            Aborted::Ended(ended) => {
                self.aborted.fetch_add(1, SeqCst);
                if let Ended::Released(release) = ended {
                    assert_eq!(release.outcome, AbortedOutcome);
                    self.release(release);
                }
            }
            Aborted::Late(outcome) => self.late(i, outcome),
            Aborted::Early | Aborted::Unknown => {}
        }
    }

    fn engine(&self, scenario: &Scenario) {
        // Also if it panics, so that the others do not wait for it.
        let _last = OnDrop(|| self.last.store(true, SeqCst));
        let mut rng = SmallRng::seed_from_u64(scenario.seed);
        let start = Instant::now();
        for i in 0..self.ids.len() {
            if i >= AT_LEAST && start.elapsed() > RUN_FOR {
                break;
            }
            // The engine does not run away from its consumers.
            while self.notified.iter().any(|n| n.load(SeqCst) + 64 < i) {
                thread::yield_now();
            }
            let now = self.now();
            if class(i) == Class::Doomed && rng.random_ratio(1, 4) {
                self.abort(i);
            }
            let deadline = match class(i) {
                Class::Safe => now + Duration::from_secs(100_000),
                Class::Timed => now + Duration::from_millis(rng.random_range(0..4)),
                _ => now + Duration::from_millis(rng.random_range(0..100)),
            };
            let terms = Terms::until(deadline).weight(3);
            let terms = match class(i) {
                Class::Learned => terms,
                _ => terms.consumers(EXPECTED).waits_for(rank(IMMORTAL)),
            };
            self.records[i].tracked.store(true, SeqCst);
            match self.tracker.track(&self.ids[i], terms, self.ledger.payload(), now).unwrap() {
                Tracked::Leased => {}
                Tracked::Ended(release) => {
                    match release.outcome {
                        Completed => self.completed.fetch_add(1, SeqCst),
                        AbortedOutcome => self.aborted.fetch_add(1, SeqCst),
                        Expired => panic!("{i} expired when it was tracked"),
                    };
                    self.release(release);
                }
            }
            self.next.store(i + 1, SeqCst);

            let victim = self.some_recent(&mut rng, scenario.ahead);
            if class(victim) == Class::Doomed {
                self.abort(victim);
            }
            if rng.random_ratio(1, 3) {
                self.clock.fetch_add(1, SeqCst);
                let swept = self.tracker.sweep(self.now());
                swept.released.into_iter().for_each(|r| self.release(r));
            }
            if rng.random_ratio(1, 200) {
                let dead = rank(rng.random_range(1..=CONSUMERS as u32));
                for release in self.tracker.expire_consumers(&[dead], self.now()) {
                    assert_eq!(release.outcome, Expired);
                    self.release(release);
                }
            }
        }
        self.last.store(true, SeqCst);
        if !scenario.drop_it {
            // The others are still at it.
            for release in self.tracker.shutdown(self.now()) {
                self.release(release);
            }
        }
    }

    /// Each request is notified once by each consumer, some of them in batches.
    fn notifier(&self, consumer: usize, scenario: &Scenario) {
        let mut rng = SmallRng::seed_from_u64(scenario.seed + 1_000 + consumer as u64);
        let consumer_id = rank(consumer as u32 + 1);
        // Also if it panics, so that the engine does not wait for it.
        let _gone = OnDrop(|| self.notified[consumer].store(usize::MAX - 64, SeqCst));
        let mut i = 0;
        loop {
            let last = self.last.load(SeqCst);
            let until = (self.next.load(SeqCst) + if last { 0 } else { scenario.ahead }).min(self.ids.len());
            if i >= until {
                if last {
                    break;
                }
                thread::yield_now();
                continue;
            }
            let now = self.now();
            if rng.random_ratio(1, 3) {
                let to = (i + rng.random_range(1..=8)).min(until);
                let expected = Some(EXPECTED);
                let batch = (i..to).map(|i| Notification { id: &self.ids[i], consumer: consumer_id, expected });
                let mut n = i;
                self.tracker.notify_batch(batch, now, |message, answer| {
                    assert_eq!(message.id, self.ids[n]);
                    self.notified(n, answer);
                    n += 1;
                });
                assert_eq!(n, to);
                i = to;
            } else {
                let answer = if class(i) != Class::Learned && rng.random() {
                    self.tracker.notify(&self.ids[i], consumer_id, now)
                } else {
                    self.tracker.notify_expecting(&self.ids[i], consumer_id, EXPECTED, now)
                };
                self.notified(i, answer);
                i += 1;
            }
            self.notified[consumer].store(i, SeqCst);
        }
    }

    fn renewer(&self, scenario: &Scenario) {
        let mut rng = SmallRng::seed_from_u64(scenario.seed + 2_000);
        while !self.done.load(SeqCst) {
            let i = self.some_recent(&mut rng, scenario.ahead);
            let now = self.now();
            let deadline = now + Duration::from_millis(rng.random_range(0..5));
            let by = rng.random_bool(0.5).then(|| rank(rng.random_range(1..=CONSUMERS as u32)));
            match self.tracker.renew(&self.ids[i], deadline, by, now) {
                Renewed::Extended => {
                    self.records[i].extended_to.fetch_max(deadline.as_millis(), SeqCst);
                }
                Renewed::Unchanged { deadline: in_force } => assert!(in_force >= deadline),
                Renewed::Late(outcome) => self.late(i, outcome),
                Renewed::Early | Renewed::Unknown => {}
                Renewed::DeadlineOutOfRange => unreachable!(),
            }
        }
    }

    fn mover(&self, scenario: &Scenario, number: u64) {
        let mut rng = SmallRng::seed_from_u64(scenario.seed + 3_000 + number);
        let mut held = Vec::new();
        while !self.done.load(SeqCst) {
            let i = self.some_recent(&mut rng, 0);
            match self.tracker.begin_transfer(&self.ids[i]) {
                Ok(transfer) => {
                    let record = &self.records[i];
                    record.transfers.fetch_add(1, SeqCst);
                    assert_eq!(record.releases.load(SeqCst), 0, "{i}: a transfer of released blocks begins");
                    held.push((i, transfer));
                }
                Err(TransferRefusal::Late(outcome)) => self.late(i, outcome),
                Err(TransferRefusal::NotLeased) => {}
                Err(other) => panic!("{other:?}"),
            }
            while held.len() > 4 || !held.is_empty() && rng.random_ratio(1, 8) {
                let (i, transfer) = held.swap_remove(rng.random_range(0..held.len()));
                self.records[i].transfers.fetch_sub(1, SeqCst);
                if rng.random() {
                    drop(transfer);
                } else if let Some(release) = transfer.end(self.now()) {
                    self.release(release);
                }
            }
        }
        for (i, transfer) in held {
            self.records[i].transfers.fetch_sub(1, SeqCst);
            if let Some(release) = transfer.end(self.now()) {
                self.release(release);
            }
        }
    }
}

fn one_life_per_id(scenario: Scenario) {
    let run = Run::new(scenario.config.clone());
    let (run, scenario) = (&run, &scenario);
    thread::scope(|s| {
        let others =
            [s.spawn(|| run.renewer(scenario)), s.spawn(|| run.mover(scenario, 0)), s.spawn(|| run.mover(scenario, 1))];
        let notifiers: Vec<_> = (0..CONSUMERS).map(|c| s.spawn(move || run.notifier(c, scenario))).collect();
        let observer = s.spawn(|| {
            while !run.done.load(SeqCst) {
                let stats = run.tracker.stats();
                assert!(stats.early <= (scenario.config.early_capacity + 8) as u64, "{stats:?}");
                assert!(stats.tombstones <= (scenario.config.tombstone_capacity + 8) as u64, "{stats:?}");
                assert!(run.tracker.oldest(3).len() <= 3);
                _ = run.tracker.next_deadline();
                for lease in run.tracker.leases() {
                    assert!(lease.seen <= CONSUMERS as u32 && lease.weight == 3);
                }
                thread::sleep(Duration::from_millis(5));
            }
        });
        let engine = s.spawn(|| run.engine(scenario));
        let failed =
            engine.join().is_err() | notifiers.into_iter().map(|n| n.join().is_err()).fold(false, |a, b| a | b);
        run.done.store(true, SeqCst);
        let failed = failed | others.map(|o| o.join().is_err()).contains(&true) | observer.join().is_err();
        assert!(!failed, "a thread failed");
    });
    if !scenario.drop_it {
        // What was left behind by dropped guards, and what is to be forgotten.
        drain(&run.tracker, run.now()).0.into_iter().for_each(|r| run.release(r));
    }
    check(run, scenario);
}

fn check(run: &Run, scenario: &Scenario) {
    let made = run.ledger.made();
    let mut by_outcome = [0; 3];
    let mut released = 0;
    for (i, record) in run.records.iter().enumerate() {
        let (ended, told) = (record.ended.load(SeqCst), record.told.load(SeqCst));
        let releases = record.releases.load(SeqCst);
        if !record.tracked.load(SeqCst) {
            assert_eq!((releases, told), (0, 0), "{i} was never tracked");
            continue;
        }
        released += u64::from(releases);
        if releases == 0 {
            // Still held, decided or not.
            assert!(scenario.drop_it, "{i} was never released");
            assert!(told.count_ones() <= 1, "{i} was told {told:#b}");
            continue;
        }
        assert_eq!(told & !ended, 0, "{i} ended as {ended:#b}, told {told:#b}");
        by_outcome[ended.trailing_zeros() as usize] += 1;
        let credited = record.credited.load(SeqCst);
        if ended == 1 << Completed as u8 {
            assert!(credited >= EXPECTED, "{i} completed by {credited}");
        } else if class(i) == Class::Safe && scenario.config.early_ttl > Duration::from_secs(1_000) {
            assert_eq!(ended, 1 << AbortedOutcome as u8, "{i}");
            assert!(credited < EXPECTED, "{i} aborted at the end though {credited} were counted");
        }
    }
    let stats = run.tracker.stats();
    assert_balanced(&stats);
    assert_eq!((stats.tracked, stats.released), (made as u64, released));
    assert_eq!(stats.completed, run.completed.load(SeqCst));
    assert_eq!(stats.transfers, 0);
    if !scenario.drop_it {
        assert_empty(&stats);
        assert_eq!(stats.tombstones, 0);
        assert_eq!([stats.completed, stats.expired, stats.aborted], by_outcome);
        run.ledger.assert_each_dropped_once();
        for outcome in by_outcome {
            assert!(outcome > 0, "every outcome occurs: {by_outcome:?}");
        }
        assert!(stats.aborted >= run.aborted.load(SeqCst));
    } else {
        assert_eq!(run.ledger.dropped() as u64, released);
        assert_eq!(stats.weight_held, 3 * (made as u64 - released));
    }
}

const ROOMY: Duration = Duration::from_secs(1_000_000);

#[test]
fn requests_with_one_life_each_end_once_and_as_everybody_is_told() {
    let config = Config { early_ttl: ROOMY, ..Config::default() };
    one_life_per_id(Scenario { config, ahead: 0, drop_it: false, seed: 1 });
}

#[test]
fn messages_that_race_ahead_of_track_are_not_lost() {
    let config = Config { early_ttl: ROOMY, ..Config::default() };
    one_life_per_id(Scenario { config, ahead: 24, drop_it: false, seed: 2 });
}

#[test]
fn little_room_for_early_messages_loses_only_what_is_reported_unknown() {
    let config = Config { early_ttl: ROOMY, early_capacity: 4, ..Config::default() };
    one_life_per_id(Scenario { config, ahead: 16, drop_it: false, seed: 3 });
}

#[test]
fn without_tombstones_each_request_still_ends_once() {
    let config = Config { tombstone_capacity: 0, ..Config::default() };
    one_life_per_id(Scenario { config, ahead: 2, drop_it: false, seed: 4 });
}

#[test]
fn with_few_and_short_lived_tombstones_nobody_is_told_a_wrong_outcome() {
    let ttl = Duration::from_millis(3);
    let config = Config { tombstone_capacity: 16, tombstone_ttl: ttl, early_ttl: ttl, ..Config::default() };
    one_life_per_id(Scenario { config, ahead: 8, drop_it: false, seed: 5 });
}

#[test]
fn a_tracker_dropped_in_full_use_drops_what_it_holds() {
    let run_ledger;
    {
        let scenario = Scenario { config: Config::default(), ahead: 8, drop_it: true, seed: 6 };
        let run = Run::new(scenario.config.clone());
        let (run_ref, scenario) = (&run, &scenario);
        thread::scope(|s| {
            s.spawn(|| run_ref.engine(scenario));
            for c in 0..CONSUMERS {
                s.spawn(move || run_ref.notifier(c, scenario));
            }
            for n in 0..2 {
                s.spawn(move || {
                    let mut rng = SmallRng::seed_from_u64(n);
                    while !run_ref.last.load(SeqCst) {
                        let i = run_ref.some_recent(&mut rng, 0);
                        // Ended by nobody's call: a decided release waits for a sweep, or for the drop.
                        drop(run_ref.tracker.begin_transfer(&run_ref.ids[i]));
                    }
                });
            }
        });
        // At least these are left: live, and decided but not swept.
        for id in ["rest-1", "rest-2"] {
            lease(&run.tracker, id, terms(1_000_000, 1).weight(3), run.ledger.payload(), run.now());
        }
        let transfer = run.tracker.begin_transfer("rest-1").unwrap();
        assert_eq!(run.tracker.abort("rest-1", run.now()), Aborted::Ended(Ended::AfterTransfer));
        drop(transfer);
        check(&run, scenario);
        assert!(run.ledger.dropped() + 2 <= run.ledger.made());
        run_ledger = run.ledger;
        drop(run.tracker);
    }
    run_ledger.assert_each_dropped_once();
}

// ---------------------------------------------------------------------------------------------
// Many lives of few ids.

fn many_lives_of_few_ids(config: Config, seed: u64, shut_down: bool) {
    const IDS: [&str; 4] = ["a", "b", "c:1", "cmpl-37c560d3-5680-4bd1-97f9-7ed31a56de60-0-and-more-than-64-bytes"];
    let ledger = Ledger::new();
    let tracker = Arc::new(SendTracker::with_config(config));
    let clock = AtomicU64::new(1_000);
    let (handed_back, released) = (AtomicU64::new(0), AtomicU64::new(0));
    let by_outcome = [const { AtomicU64::new(0) }; 3];
    let stop = AtomicBool::new(false);
    let account = |release: Release<Payload>| {
        assert_eq!(release.payload.note_release(), 1, "released twice");
        by_outcome[release.outcome as usize].fetch_add(1, SeqCst);
        released.fetch_add(1, SeqCst);
    };
    thread::scope(|s| {
        for n in 0..7_u64 {
            let (tracker, ledger, clock, stop, handed_back, account) =
                (&tracker, &ledger, &clock, &stop, &handed_back, &account);
            s.spawn(move || {
                let mut rng = SmallRng::seed_from_u64(seed * 100 + n);
                let mut held = Vec::new();
                let consumer = rank(n as u32 + 1);
                while !stop.load(SeqCst) {
                    let id = IDS[rng.random_range(0..IDS.len())];
                    let now = ms(clock.load(SeqCst));
                    let soon = now + Duration::from_millis(rng.random_range(0..20));
                    // Two threads track, two move bytes, the rest notify and renew; all do a bit of all.
                    let mostly = if rng.random_ratio(1, 3) { rng.random_range(0..7) } else { n };
                    match mostly {
                        0 | 1 => {
                            let terms = Terms::until(soon).consumers(rng.random_range(1..=2)).weight(1);
                            match tracker.track(id, terms, ledger.payload(), now) {
                                Ok(tracked) => tracked.release().into_iter().for_each(account),
                                Err(error) => {
                                    assert!(!matches!(error.reason, TrackRefusal::IdTooLong { .. }));
                                    assert_eq!(error.payload.note_release(), 1);
                                    handed_back.fetch_add(1, SeqCst);
                                }
                            }
                            if rng.random_ratio(1, 8) {
                                let now = ms(clock.fetch_add(1, SeqCst) + 1);
                                tracker.sweep(now).released.into_iter().for_each(account);
                            }
                        }
                        2 | 3 => {
                            if let Ok(transfer) = tracker.begin_transfer_owned(id) {
                                held.push(transfer);
                            }
                            // Also where none could begin: a guard that is kept keeps its id from a new life.
                            while held.len() > 2 || !held.is_empty() && rng.random_ratio(1, 3) {
                                let transfer = held.swap_remove(rng.random_range(0..held.len()));
                                if rng.random() {
                                    drop(transfer);
                                } else {
                                    transfer.end(now).into_iter().for_each(account);
                                }
                            }
                        }
                        4 => _ = tracker.renew(id, soon, Some(consumer), now),
                        5 => match rng.random_range(0..20) {
                            0 => tracker.expire_consumers(&[consumer], now).into_iter().for_each(account),
                            1..=5 => tracker.abort(id, now).release().into_iter().for_each(account),
                            _ => tracker.set_expected(id, 1, now).release().into_iter().for_each(account),
                        },
                        _ => tracker.notify_expecting(id, consumer, 1, now).release().into_iter().for_each(account),
                    }
                }
                for transfer in held {
                    transfer.end(ms(clock.load(SeqCst))).into_iter().for_each(account);
                }
            });
        }
        thread::sleep(RUN_FOR);
        while tracker.stats().tracked < AT_LEAST as u64 {
            thread::sleep(RUN_FOR / 10);
        }
        if shut_down {
            tracker.shutdown(ms(clock.load(SeqCst))).into_iter().for_each(&account);
            thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, SeqCst);
    });

    let made = ledger.made() as u64;
    if !shut_down {
        let stats = tracker.stats();
        assert_balanced(&stats);
        let held = stats.live + stats.release_pending;
        assert_eq!(made, held + released.load(SeqCst) + handed_back.load(SeqCst));
        assert_eq!(ledger.dropped() as u64, made - held);
        assert_eq!(tracker.leases().filter(|l| l.outcome.is_none()).count() as u64, stats.live);
        drop(Arc::into_inner(tracker).expect("no guard is left"));
        ledger.assert_each_dropped_once();
        return;
    }
    drain(&tracker, ms(clock.load(SeqCst))).0.into_iter().for_each(&account);
    let stats = tracker.stats();
    assert_empty(&stats);
    assert_eq!(stats.tombstones, 0);
    assert_eq!((stats.tracked, stats.track_refused), (released.load(SeqCst), handed_back.load(SeqCst)));
    assert_eq!([stats.completed, stats.expired, stats.aborted], by_outcome.map(|n| n.into_inner()));
    assert_eq!(made, stats.tracked + stats.track_refused);
    ledger.assert_each_dropped_once();
}

#[test]
fn each_life_of_a_reused_id_is_released_once() {
    many_lives_of_few_ids(Config::default(), 1, true);
}

#[test]
fn each_life_of_a_reused_id_is_released_once_without_tombstones() {
    many_lives_of_few_ids(Config { tombstone_capacity: 0, early_capacity: 2, ..Config::default() }, 2, true);
}

#[test]
fn each_life_of_a_reused_id_is_released_once_with_small_limits() {
    let ttl = Duration::from_millis(2);
    let config = Config {
        capacity: Some(3),
        early_capacity: 1,
        tombstone_capacity: 2,
        early_ttl: ttl,
        tombstone_ttl: ttl,
        ..Config::default()
    };
    many_lives_of_few_ids(config, 3, true);
}

#[test]
fn each_life_of_a_reused_id_is_released_once_where_overdue_leases_are_held() {
    many_lives_of_few_ids(Config { expiry: ExpiryPolicy::Hold, ..Config::default() }, 4, true);
}

#[test]
fn a_tracker_of_reused_ids_is_dropped_whole() {
    many_lives_of_few_ids(Config { tombstone_capacity: 1, ..Config::default() }, 5, false);
}
