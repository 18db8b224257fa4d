//! A plain model of the tracker's contract, and any sequence of calls made on both.
//!
//! The model is single-threaded and keeps one enum per id. Each call is made on the tracker and on the
//! model, and both must answer the same; then everything the tracker shows of itself must be what the
//! model knows. Where the contract leaves a choice, the model follows the tracker's.
//!
//! `tests/properties.rs` draws the sequences by chance, `fuzz/` by what they reach.

use crate::common::*;
use kvlease::Outcome::{self, Aborted as AbortedOutcome, Completed, Expired};
use kvlease::{
    Aborted, Config, Ended, ExpectedSet, ExpiryPolicy, LeaseInfo, Notification, Notified, NotifyRefusal, Release,
    RenewCounts, Renewed, SendTracker, Swept, Terms, Timestamp, TrackError, TrackRefusal, Tracked, Transfer,
    TransferRefusal,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub const IDS: [&str; 5] = ["a", "b", "cmpl-37c560d3-5680-4bd1-97f9-7ed31a56de60-0", "d:8", ""];

// ---------------------------------------------------------------------------------------------
// The model.

#[derive(Debug, Default)]
struct Early {
    dropped_at: Timestamp,
    expected: Option<u32>,
    seen: BTreeSet<u32>,
    deadline: Timestamp,
    aborted: bool,
    waits_for: Option<u32>,
}

#[derive(Debug)]
struct Lease {
    payload: u64,
    weight: u32,
    tracked_at: Timestamp,
    deadline: Timestamp,
    expected: Option<u32>,
    seen: BTreeSet<u32>,
    waits_for: Option<u32>,
    named: bool,
    transfers: u32,
    overdue: bool,
    /// Decided, but a transfer or a dropped guard holds the release up.
    outcome: Option<Outcome>,
}

impl Lease {
    /// The latest one heard of is the one it waits for, unless one was named.
    fn hear(&mut self, by: Option<u32>) {
        if !self.named {
            self.waits_for = by.or(self.waits_for);
        }
    }
}

/// An ended lease that is remembered.
#[derive(Debug)]
struct Tombstone {
    id: &'static str,
    outcome: Outcome,
    until: Timestamp,
    seen: BTreeSet<u32>,
    /// Tracked again, or past its time. It keeps its place among the latest ends.
    forgotten: bool,
}

#[derive(Debug, Default)]
struct Counters {
    tracked: u64,
    completed: u64,
    expired: u64,
    aborted: u64,
    released: u64,
    track_refused: u64,
    overdue: u64,
    duplicates: u64,
    conflicts: u64,
    notify_refused: u64,
    extended: u64,
}

#[derive(Debug)]
struct Model {
    config: Config,
    early: BTreeMap<&'static str, Early>,
    leases: BTreeMap<&'static str, Lease>,
    /// Oldest first.
    tombstones: Vec<Tombstone>,
    shut_down: bool,
    counters: Counters,
}

impl Model {
    fn new(config: Config) -> Self {
        let (early, leases, tombstones) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        Model { config, early, leases, tombstones, shut_down: false, counters: Counters::default() }
    }

    fn live(&self) -> impl Iterator<Item = &Lease> {
        self.leases.values().filter(|l| l.outcome.is_none())
    }

    /// How this id ended, if it has and that is still known.
    fn outcome(&self, id: &str) -> Option<Outcome> {
        let tombstone = || self.remembered().find(|t| t.id == id).map(|t| t.outcome);
        self.leases.get(id).and_then(|l| l.outcome).or_else(tombstone)
    }

    fn remembered(&self) -> impl Iterator<Item = &Tombstone> {
        self.tombstones.iter().filter(|t| !t.forgotten)
    }

    /// The lease of this id that has not ended.
    fn live_lease(&mut self, id: &str) -> Option<&mut Lease> {
        self.leases.get_mut(id).filter(|l| l.outcome.is_none())
    }

    /// Where what comes before `track` is kept, if it may be.
    fn early(&mut self, id: &'static str, room: usize, now: Timestamp) -> Option<&mut Early> {
        if !self.early.contains_key(id) {
            if self.shut_down || self.early.len() >= room {
                return None;
            }
            self.early.insert(id, Early { dropped_at: now + self.config.early_ttl, ..Early::default() });
        }
        self.early.get_mut(id)
    }

    /// Decides the outcome of a live lease.
    fn end(&mut self, id: &'static str, outcome: Outcome, now: Timestamp) -> Ended<Payload> {
        match outcome {
            Completed => self.counters.completed += 1,
            Expired => self.counters.expired += 1,
            AbortedOutcome => self.counters.aborted += 1,
        }
        let lease = self.leases.get_mut(id).unwrap();
        lease.outcome = Some(outcome);
        if lease.transfers > 0 { Ended::AfterTransfer } else { Ended::Released(self.release(id, now)) }
    }

    /// Hands out the payload of an ended lease, and remembers how it ended.
    fn release(&mut self, id: &'static str, now: Timestamp) -> Release<Payload> {
        let lease = self.leases.remove(id).unwrap();
        let outcome = lease.outcome.unwrap();
        self.counters.released += 1;
        let ttl = self.config.tombstone_ttl.max(self.config.early_ttl);
        let until = lease.deadline.max(now + ttl);
        self.tombstones.push(Tombstone { id, outcome, until, seen: lease.seen, forgotten: false });
        if self.tombstones.len() > self.config.tombstone_capacity {
            self.tombstones.remove(0);
        }
        let age = now.saturating_since(lease.tracked_at);
        Release { id: id.into(), outcome, payload: Payload::shadow(lease.payload), weight: lease.weight, age }
    }

    fn track(&mut self, id: &'static str, t: &TrackOp, payload: u64, now: Timestamp) -> TrackAnswer {
        // Of several reasons to refuse, any may be given.
        let mut refusals = Vec::new();
        let capacity = self.config.capacity.unwrap_or(usize::MAX);
        if self.shut_down {
            refusals.push(TrackRefusal::ShutDown);
        }
        if t.deadline > Timestamp::MAX_DEADLINE {
            refusals.push(TrackRefusal::DeadlineOutOfRange);
        }
        if let Some(expected @ 256..) = t.expected {
            refusals.push(TrackRefusal::TooManyConsumers { expected });
        }
        if let Some(lease) = self.leases.get(id) {
            refusals.push(match lease.outcome {
                None => TrackRefusal::AlreadyTracked,
                Some(_) => TrackRefusal::TransferInFlight,
            });
        }
        if self.live().count() >= capacity {
            refusals.push(TrackRefusal::AtCapacity { capacity });
        }
        if !refusals.is_empty() {
            self.counters.track_refused += 1;
            return TrackAnswer::Refused(refusals);
        }
        self.tombstones.iter_mut().filter(|t| t.id == id).for_each(|t| t.forgotten = true);
        self.counters.tracked += 1;
        let early = self.early.remove(id).unwrap_or_default();
        let lease = Lease {
            payload,
            weight: t.weight,
            tracked_at: now,
            deadline: t.deadline.max(early.deadline),
            expected: t.expected.or(early.expected),
            seen: early.seen,
            waits_for: t.waits_for.or(early.waits_for),
            named: t.waits_for.is_some(),
            transfers: 0,
            overdue: false,
            outcome: None,
        };
        let complete = lease.expected.is_some_and(|n| lease.seen.len() as u32 >= n);
        self.leases.insert(id, lease);
        let ended = match (early.aborted, complete) {
            (true, _) => self.end(id, AbortedOutcome, now),
            (false, true) => self.end(id, Completed, now),
            (false, false) => return TrackAnswer::Tracked(Tracked::Leased),
        };
        TrackAnswer::Tracked(Tracked::Ended(ended.release().unwrap()))
    }

    fn notify(&mut self, id: &'static str, by: u32, claimed: Option<u32>, now: Timestamp) -> Notified<Payload> {
        if let Some(claimed @ (0 | 256..)) = claimed {
            self.counters.notify_refused += 1;
            return Notified::Refused(NotifyRefusal::ExpectedOutOfRange { claimed });
        }
        if let Some(outcome) = self.outcome(id) {
            let tombstone = || self.remembered().find(|t| t.id == id).map(|t| &t.seen);
            let seen = self.leases.get(id).map(|l| &l.seen).or_else(tombstone);
            if seen.is_some_and(|seen| seen.contains(&by)) {
                self.counters.duplicates += 1;
                return Notified::LateDuplicate(outcome);
            }
            return Notified::Late(outcome);
        }
        let Some(lease) = self.live_lease(id) else {
            let Some(early) = self.early(id, self.config.early_capacity, now) else { return Notified::Unknown };
            if early.seen.insert(by) {
                early.expected = early.expected.or(claimed);
                early.waits_for = Some(by);
                let seen = early.seen.len() as u32;
                return match (claimed, early.expected) {
                    (Some(claimed), Some(stands)) if claimed != stands => {
                        self.counters.conflicts += 1;
                        Notified::ExpectedConflict { claimed, stands, seen, early: true, ended: None }
                    }
                    _ => Notified::Early,
                };
            }
            self.counters.duplicates += 1;
            return Notified::Early;
        };
        if !lease.seen.insert(by) {
            let answer = Notified::Duplicate { seen: lease.seen.len() as u32, expected: lease.expected };
            self.counters.duplicates += 1;
            return answer;
        }
        let seen = lease.seen.len() as u32;
        lease.hear(Some(by));
        lease.expected = lease.expected.or(claimed);
        let expected = lease.expected;
        let ended = expected.is_some_and(|n| seen >= n).then(|| self.end(id, Completed, now));
        match (claimed, expected) {
            (Some(claimed), Some(stands)) if claimed != stands => {
                self.counters.conflicts += 1;
                Notified::ExpectedConflict { claimed, stands, seen, early: false, ended }
            }
            _ => ended.map_or(Notified::Counted { seen, expected }, Notified::Completed),
        }
    }

    fn set_expected(&mut self, id: &'static str, n: u32, now: Timestamp) -> ExpectedSet<Payload> {
        if n > 255 {
            return ExpectedSet::TooMany;
        }
        if let Some(outcome) = self.outcome(id) {
            return ExpectedSet::Late(outcome);
        }
        let Some(lease) = self.live_lease(id) else {
            let Some(early) = self.early(id, self.config.early_capacity, now) else { return ExpectedSet::Unknown };
            return match *early.expected.get_or_insert(n) {
                stands if stands != n => ExpectedSet::Conflict { stands },
                _ => ExpectedSet::Early,
            };
        };
        let seen = lease.seen.len() as u32;
        match *lease.expected.get_or_insert(n) {
            stands if stands != n => ExpectedSet::Conflict { stands },
            _ if seen >= n => ExpectedSet::Completed(self.end(id, Completed, now)),
            _ => ExpectedSet::Set { seen },
        }
    }

    fn renew(&mut self, id: &'static str, deadline: Timestamp, by: Option<u32>, now: Timestamp) -> Renewed {
        if deadline > Timestamp::MAX_DEADLINE {
            return Renewed::DeadlineOutOfRange;
        }
        if let Some(outcome) = self.outcome(id) {
            return Renewed::Late(outcome);
        }
        let Some(lease) = self.live_lease(id) else {
            let room = self.config.early_capacity.div_ceil(2);
            let Some(early) = self.early(id, room, now) else { return Renewed::Unknown };
            early.deadline = early.deadline.max(deadline);
            early.waits_for = by.or(early.waits_for);
            return Renewed::Early;
        };
        lease.hear(by);
        if deadline <= lease.deadline {
            return Renewed::Unchanged { deadline: lease.deadline };
        }
        lease.deadline = deadline;
        lease.overdue &= deadline <= now;
        self.counters.extended += 1;
        Renewed::Extended
    }

    fn abort(&mut self, id: &'static str, now: Timestamp) -> Aborted<Payload> {
        if let Some(outcome) = self.outcome(id) {
            return Aborted::Late(outcome);
        }
        if self.live_lease(id).is_some() {
            return Aborted::Ended(self.end(id, AbortedOutcome, now));
        }
        match self.early(id, self.config.early_capacity, now) {
            Some(early) => {
                early.aborted = true;
                Aborted::Early
            }
            None => Aborted::Unknown,
        }
    }

    fn begin_transfer(&mut self, id: &str) -> Result<(), TransferRefusal> {
        if let Some(outcome) = self.outcome(id) {
            return Err(TransferRefusal::Late(outcome));
        }
        let lease = self.live_lease(id).ok_or(TransferRefusal::NotLeased)?;
        if lease.transfers == 126 {
            return Err(TransferRefusal::TooManyTransfers);
        }
        lease.transfers += 1;
        Ok(())
    }

    fn end_transfer(&mut self, id: &'static str, now: Timestamp) -> Option<Release<Payload>> {
        let lease = self.leases.get_mut(id).unwrap();
        lease.transfers -= 1;
        (lease.transfers == 0 && lease.outcome.is_some()).then(|| self.release(id, now))
    }

    /// The ids whose release a dropped guard has left behind.
    fn left_behind(&self) -> Vec<&'static str> {
        self.leases.iter().filter(|(_, l)| l.outcome.is_some() && l.transfers == 0).map(|(&id, _)| id).collect()
    }

    /// `order` is in which order the tracker released them: the last ones are those remembered.
    ///
    /// Also gives how many of the tombstones that are dropped have lost their place in the same sweep: those
    /// may be counted as dropped or not.
    fn sweep(&mut self, now: Timestamp, order: &[String]) -> (Swept<Payload>, usize) {
        let mut swept = Swept::default();
        let early = self.early.len();
        self.early.retain(|_, e| e.dropped_at > now);
        swept.early_dropped = early - self.early.len();
        let dropped: Vec<bool> = self.tombstones.iter().map(|t| !t.forgotten && t.until <= now).collect();
        swept.tombstones_dropped = dropped.iter().filter(|d| **d).count();
        self.tombstones.iter_mut().for_each(|t| t.forgotten |= t.until <= now);

        let mut ids: Vec<&'static str> = self.leases.keys().copied().collect();
        ids.sort_by_key(|id| order.iter().position(|o| o == id));
        for id in ids {
            let lease = self.leases.get_mut(id).unwrap();
            if lease.outcome.is_some() {
                if lease.transfers == 0 {
                    swept.released.push(self.release(id, now));
                }
            } else if lease.deadline <= now && self.config.expiry == ExpiryPolicy::Hold {
                if !lease.overdue {
                    lease.overdue = true;
                    self.counters.overdue += 1;
                    swept.overdue.push(id.into());
                }
            } else if lease.deadline <= now {
                match self.end(id, Expired, now) {
                    Ended::Released(release) => swept.released.push(release),
                    Ended::AfterTransfer => swept.after_transfer += 1,
                }
            }
        }
        let lost_their_place = dropped.len() + swept.released.len() - self.tombstones.len();
        let either_way = dropped.iter().take(lost_their_place).filter(|d| **d).count();
        (swept, either_way)
    }

    fn expire_consumers(&mut self, dead: &[u32], now: Timestamp, order: &[String]) -> Vec<Release<Payload>> {
        let mut ids: Vec<&'static str> = self.leases.keys().copied().collect();
        ids.sort_by_key(|id| order.iter().position(|o| o == id));
        ids.retain(|id| {
            let lease = &self.leases[id];
            lease.outcome.is_none() && lease.waits_for.is_some_and(|c| dead.contains(&c))
        });
        ids.into_iter().filter_map(|id| self.end(id, Expired, now).release()).collect()
    }

    fn shutdown(&mut self, now: Timestamp, order: &[String]) -> Vec<Release<Payload>> {
        self.shut_down = true;
        self.early.clear();
        let mut ids: Vec<&'static str> = self.leases.keys().copied().collect();
        ids.sort_by_key(|id| order.iter().position(|o| o == id));
        let end = |id: &'static str| match self.leases[id].outcome {
            None => self.end(id, AbortedOutcome, now).release(),
            Some(_) if self.leases[id].transfers == 0 => Some(self.release(id, now)),
            Some(_) => None,
        };
        ids.into_iter().filter_map(end).collect()
    }

    /// When a sweep would next find something to do.
    fn next_deadline(&self) -> Option<Timestamp> {
        let left = self.left_behind().first().map(|_| Timestamp::ZERO);
        let leases = self.live().filter(|l| !l.overdue).map(|l| l.deadline);
        let early = self.early.values().map(|e| e.dropped_at);
        let tombstones = self.remembered().map(|t| t.until);
        left.into_iter().chain(leases).chain(early).chain(tombstones).min()
    }
}

#[derive(Debug)]
enum TrackAnswer {
    Tracked(Tracked<Payload>),
    /// For any of these reasons.
    Refused(Vec<TrackRefusal>),
}

// ---------------------------------------------------------------------------------------------
// The calls.

#[derive(Clone, Debug)]
struct TrackOp {
    deadline: Timestamp,
    expected: Option<u32>,
    weight: u32,
    waits_for: Option<u32>,
}

/// A point in time as a step of the test names it.
#[derive(Clone, Copy, Debug)]
pub enum When {
    FromNow(i64),
    Exactly(Timestamp),
}

impl When {
    fn at(self, now: Timestamp) -> Timestamp {
        match self {
            When::FromNow(millis) => ms(now.as_millis().saturating_add_signed(millis)),
            When::Exactly(at) => at,
        }
    }
}

#[derive(Clone, Debug)]
pub enum Op {
    Track { id: usize, deadline: When, expected: Option<u32>, weight: u32, waits_for: Option<u32> },
    Notify { id: usize, by: u32, claimed: Option<u32> },
    NotifyBatch(Vec<(usize, u32, Option<u32>)>),
    SetExpected { id: usize, n: u32 },
    Renew { id: usize, deadline: When, by: Option<u32> },
    RenewBatch { ids: Vec<usize>, deadline: When, by: Option<u32> },
    Abort { id: usize },
    BeginTransfer { id: usize, owned: bool },
    EndTransfer { guard: usize },
    DropTransfer { guard: usize },
    Sweep,
    SweepWhenTold,
    ExpireConsumers(Vec<u32>),
    Shutdown,
}

// ---------------------------------------------------------------------------------------------
// Both, side by side.

enum Guard<'a> {
    Borrowed(Transfer<Payload, &'a Tracker>),
    Owned(Transfer<Payload, Arc<Tracker>>),
}

impl Guard<'_> {
    fn end(self, now: Timestamp) -> Option<Release<Payload>> {
        match self {
            Guard::Borrowed(transfer) => transfer.end(now),
            Guard::Owned(transfer) => transfer.end(now),
        }
    }
}

struct Pair<'a> {
    tracker: &'a Arc<Tracker>,
    model: Model,
    guards: Vec<(&'static str, Guard<'a>)>,
    ledger: &'a Ledger,
    now: Timestamp,
}

/// The ids of releases, in their order.
fn order(releases: &[Release<Payload>]) -> Vec<String> {
    releases.iter().map(|r| r.id.to_string()).collect()
}

impl<'a> Pair<'a> {
    /// Each payload comes out once.
    fn note(&self, releases: &[Release<Payload>]) {
        for release in releases {
            assert_eq!(release.payload.note_release(), 1, "releases of {:?}", release.payload);
        }
    }

    fn step(&mut self, op: Op) {
        let (t, now) = (self.tracker, self.now);
        match op {
            Op::Track { id, deadline, expected, weight, waits_for } => {
                let deadline = deadline.at(now);
                let mut terms = Terms::until(deadline).weight(weight);
                terms = expected.map_or(terms, |n| terms.consumers(n));
                terms = waits_for.map_or(terms, |c| terms.waits_for(rank(c)));
                let payload = self.ledger.payload();
                let number = payload.number;
                let answer = t.track(IDS[id], terms, payload, now);
                let op = TrackOp { deadline, expected, weight, waits_for };
                match (answer, self.model.track(IDS[id], &op, number, now)) {
                    (Ok(answer), TrackAnswer::Tracked(expected)) => {
                        assert_eq!(answer, expected);
                        self.note(answer.release().as_slice());
                    }
                    (Err(TrackError { payload, reason }), TrackAnswer::Refused(reasons)) => {
                        assert_eq!(payload.number, number);
                        assert!(reasons.contains(&reason), "refused with {reason:?} instead of {reasons:?}");
                        self.note_refused(payload);
                    }
                    (answer, expected) => panic!("{answer:?} instead of {expected:?}"),
                }
            }
            Op::Notify { id, by, claimed } => {
                let answer = match claimed {
                    Some(n) => t.notify_expecting(IDS[id], rank(by), n, now),
                    None => t.notify(IDS[id], rank(by), now),
                };
                assert_eq!(answer, self.model.notify(IDS[id], by, claimed, now));
                self.note(answer.release().as_slice());
            }
            Op::NotifyBatch(messages) => {
                let batch = messages.iter().map(|&(id, by, expected)| Notification {
                    id: IDS[id],
                    consumer: rank(by),
                    expected,
                });
                let mut answers = Vec::new();
                t.notify_batch(batch, now, |message, answer| answers.push((message, answer)));
                assert_eq!(answers.len(), messages.len());
                for ((message, answer), (id, by, claimed)) in answers.into_iter().zip(messages) {
                    assert_eq!((message.id, message.consumer.get(), message.expected), (IDS[id], by, claimed));
                    assert_eq!(answer, self.model.notify(IDS[id], by, claimed, now));
                    self.note(answer.release().as_slice());
                }
            }
            Op::SetExpected { id, n } => {
                let answer = t.set_expected(IDS[id], n, now);
                assert_eq!(answer, self.model.set_expected(IDS[id], n, now));
                self.note(answer.release().as_slice());
            }
            Op::Renew { id, deadline, by } => {
                let deadline = deadline.at(now);
                let answer = t.renew(IDS[id], deadline, by.map(rank), now);
                assert_eq!(answer, self.model.renew(IDS[id], deadline, by, now));
            }
            Op::RenewBatch { ids, deadline, by } => {
                let deadline = deadline.at(now);
                let answer = t.renew_batch(ids.iter().map(|&id| IDS[id]), deadline, by.map(rank), now);
                let mut counts = RenewCounts::default();
                for id in ids {
                    match self.model.renew(IDS[id], deadline, by, now) {
                        Renewed::Extended => counts.extended += 1,
                        Renewed::Unchanged { .. } => counts.unchanged += 1,
                        Renewed::Early => counts.early += 1,
                        Renewed::Late(_) => counts.late += 1,
                        Renewed::Unknown => counts.unknown += 1,
                        Renewed::DeadlineOutOfRange => counts.refused += 1,
                    }
                }
                assert_eq!(answer, counts);
            }
            Op::Abort { id } => {
                let answer = t.abort(IDS[id], now);
                assert_eq!(answer, self.model.abort(IDS[id], now));
                self.note(answer.release().as_slice());
            }
            Op::BeginTransfer { id, owned } => {
                let answer = match owned {
                    true => t.begin_transfer_owned(IDS[id]).map(Guard::Owned),
                    false => t.begin_transfer(IDS[id]).map(Guard::Borrowed),
                };
                assert_eq!(answer.as_ref().map(|_| ()).map_err(|e| *e), self.model.begin_transfer(IDS[id]));
                self.guards.extend(answer.ok().map(|guard| (IDS[id], guard)));
            }
            Op::EndTransfer { guard } if !self.guards.is_empty() => {
                let (id, guard) = self.guards.swap_remove(guard % self.guards.len());
                let answer = guard.end(now);
                assert_eq!(answer, self.model.end_transfer(id, now));
                self.note(answer.as_slice());
            }
            Op::DropTransfer { guard } if !self.guards.is_empty() => {
                let (id, guard) = self.guards.swap_remove(guard % self.guards.len());
                drop(guard);
                self.model.leases.get_mut(id).unwrap().transfers -= 1;
            }
            Op::EndTransfer { .. } | Op::DropTransfer { .. } => {}
            Op::Sweep => self.sweep(),
            Op::SweepWhenTold => {
                if let Some(next) = t.next_deadline() {
                    if next < self.now + Duration::from_secs(3600) {
                        self.now = self.now.max(next);
                    }
                    self.sweep();
                }
            }
            Op::ExpireConsumers(dead) => {
                let ranks: Vec<_> = dead.iter().map(|&c| rank(c)).collect();
                let released = t.expire_consumers(&ranks, now);
                let expected = self.model.expire_consumers(&dead, now, &order(&released));
                assert_eq!(released, expected);
                self.note(&released);
            }
            Op::Shutdown => {
                let released = t.shutdown(now);
                let expected = self.model.shutdown(now, &order(&released));
                assert_eq!(released, expected);
                self.note(&released);
            }
        }
        self.compare();
    }

    fn note_refused(&self, payload: Payload) {
        assert_eq!(payload.note_release(), 1);
    }

    fn sweep(&mut self) {
        let mut swept = self.tracker.sweep(self.now);
        let (mut expected, either_way) = self.model.sweep(self.now, &order(&swept.released));
        for swept in [&mut swept, &mut expected] {
            swept.overdue.sort();
        }
        // A tombstone that is due may instead have made room for a lease that ended in the same sweep.
        if (expected.tombstones_dropped - either_way..expected.tombstones_dropped).contains(&swept.tombstones_dropped) {
            expected.tombstones_dropped = swept.tombstones_dropped;
        }
        assert_eq!(swept, expected);
        self.note(&swept.released);
        let next = self.tracker.next_deadline();
        assert!(next.is_none_or(|next| next > self.now), "a sweep at {:?} left {next:?} due", self.now);
    }

    /// Everything that the tracker shows of itself.
    fn compare(&mut self) {
        let (stats, m) = (self.tracker.stats(), &self.model);
        assert_balanced(&stats);
        let gauges = [stats.live, stats.release_pending, stats.weight_held, stats.early, stats.tombstones];
        let live = m.live().count();
        let expected = [
            live as u64,
            (m.leases.len() - live) as u64,
            m.leases.values().map(|l| u64::from(l.weight)).sum(),
            m.early.len() as u64,
            m.remembered().count() as u64,
        ];
        assert_eq!(gauges, expected, "live, release_pending, weight_held, early, tombstones");
        assert_eq!(stats.transfers, self.guards.len() as u64);
        let c = &m.counters;
        assert_eq!(
            [stats.tracked, stats.completed, stats.expired, stats.aborted, stats.released, stats.track_refused],
            [c.tracked, c.completed, c.expired, c.aborted, c.released, c.track_refused],
            "tracked, completed, expired, aborted, released, track_refused"
        );
        assert_eq!(
            [stats.overdue, stats.duplicates, stats.conflicts, stats.notify_refused, stats.extended],
            [c.overdue, c.duplicates, c.conflicts, c.notify_refused, c.extended],
            "overdue, duplicates, conflicts, notify_refused, extended"
        );

        // With so few leases it is exact.
        assert_eq!(self.tracker.next_deadline(), m.next_deadline());

        let mut infos: Vec<LeaseInfo> = self.tracker.leases().collect();
        // Those that a dropped guard has left behind may be shown or not.
        let left_behind = m.left_behind();
        infos.retain(|info| !left_behind.contains(&info.id.as_str()));
        infos.sort_by(|a, b| a.id.cmp(&b.id));
        let leases: Vec<_> = m.leases.iter().filter(|(id, _)| !left_behind.contains(id)).collect();
        assert_eq!(infos.len(), leases.len(), "{infos:?}");
        for (info, (id, lease)) in infos.iter().zip(leases) {
            assert_eq!(info.id, *id);
            let actual = (info.deadline, info.seen, info.expected, info.transfers, info.weight);
            let seen = lease.seen.len() as u32;
            // "Nobody" completes a lease at once, and is not told from "not known" in one that has ended.
            let expected = lease.expected.filter(|n| *n > 0);
            assert_eq!(actual, (lease.deadline, seen, expected, lease.transfers, lease.weight), "{id:?}");
            let actual = (info.tracked_at, info.waits_for.map(|c| c.get()), info.outcome, info.overdue);
            assert_eq!(
                actual,
                (lease.tracked_at, lease.waits_for, lease.outcome, lease.overdue && lease.outcome.is_none()),
                "{id:?}"
            );
        }

        // What is remembered of the others: a transfer that cannot begin tells it.
        for id in IDS {
            if self.model.live_lease(id).is_none() {
                let answer = self.tracker.begin_transfer(id).map(|_| ());
                assert_eq!(answer, self.model.begin_transfer(id), "{id:?}");
            }
        }
    }

    /// Ends everything, whatever state it is in.
    fn finish(mut self) {
        self.step(Op::Shutdown);
        while !self.guards.is_empty() {
            self.step(if self.guards.len() % 2 == 0 {
                Op::EndTransfer { guard: 0 }
            } else {
                Op::DropTransfer { guard: 0 }
            });
        }
        self.step(Op::Sweep);
        while let Some(next) = self.tracker.next_deadline() {
            self.now = self.now.max(next);
            self.step(Op::Sweep);
        }
        assert_empty(&self.tracker.stats());
        assert_eq!(self.tracker.stats().tombstones, 0);
        assert_eq!(self.model.next_deadline(), None);
        assert_eq!(self.tracker.leases().count(), 0);
    }
}

pub fn run(config: Config, steps: Vec<(i64, Op)>) {
    let ledger = Ledger::new();
    let tracker = Arc::new(SendTracker::with_config(config.clone()));
    let mut pair =
        Pair { tracker: &tracker, model: Model::new(config), guards: Vec::new(), ledger: &ledger, now: at(1) };
    for (tick, op) in steps {
        pair.now = ms(pair.now.as_millis().saturating_add_signed(tick));
        pair.step(op);
    }
    pair.finish();
    // All has come out; what the tracker is dropped with is nothing.
    ledger.assert_each_dropped_once();
    for number in 0..ledger.made() as u64 {
        assert_eq!(ledger.releases_of(number), 1, "releases of payload {number}");
    }
}

/// As `run`, but the tracker is dropped with whatever it holds.
pub fn run_and_drop(config: Config, steps: Vec<(i64, Op)>) {
    let ledger = Ledger::new();
    let tracker = Arc::new(SendTracker::with_config(config.clone()));
    let mut pair =
        Pair { tracker: &tracker, model: Model::new(config), guards: Vec::new(), ledger: &ledger, now: at(1) };
    for (tick, op) in steps {
        pair.now = ms(pair.now.as_millis().saturating_add_signed(tick));
        pair.step(op);
    }
    let held = pair.model.leases.len();
    drop(pair);
    assert_eq!(ledger.made() - ledger.dropped(), held);
    drop(tracker);
    ledger.assert_each_dropped_once();
}
