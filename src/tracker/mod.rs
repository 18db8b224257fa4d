//! The send tracker: see [`SendTracker`].
//!
//! It composes three parts and adds only the order in which they are used:
//!
//! * the [map](crate::map) finds the entry of an id; the entry's word decides what happens to it;
//! * the deadline index is told of an entry **after** it is in the map (or its time has become earlier),
//!   and looks at the word itself, so it can be late by one call at most and never wrong;
//! * what has ended stays in the map as a tombstone, in a ring that bounds their number. Whoever ends a
//!   lease takes the payload first and buries the entry then.
//!
//! An entry is removed from the map only as a tombstone or as an early entry that is gone, always by
//! identity, so a later life of the same id is never touched.

mod config;
mod counters;
mod graveyard;
mod log;
mod outcome;
mod stats;
mod transfer;

pub use config::{Config, ExpiryPolicy, Terms};
pub use outcome::{
    Aborted, Ended, ExpectedSet, LeaseInfo, Notified, NotifyRefusal, Outcome, Release, RenewCounts, Renewed, Swept,
    TrackError, TrackRefusal, Tracked, TransferRefusal,
};
pub use stats::Stats;
pub use transfer::Transfer;

use crate::deadline::DeadlineIndex;
use crate::lease::entry::{LeaseEntry, Notify};
use crate::lease::word::{
    AbortEffect, ArmEffect, BeginEffect, End, EndEffect, ExpectEffect, MAX_CONSUMERS, MAX_TIME, NEVER, NotifyEffect,
    RenewEffect, SweepEffect, Word,
};
use crate::map::{CasMap, Entry, Guard, Handle, InsertError, Vacant, pin};
use crate::sync::{AtomicCount, AtomicU32, AtomicU64, Ordering, STRIPES, stripe};
use crate::{ConsumerId, RequestId, Timestamp};
use counters::{Counter, Counters};
use crossbeam_utils::CachePadded;
use graveyard::Graveyard;
use std::collections::BinaryHeap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// One consumer's message that it has read, for [`SendTracker::notify_batch`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Notification<'a> {
    /// The request.
    pub id: &'a str,
    /// Who has read.
    pub consumer: ConsumerId,
    /// How many consumers the message says are expected, if it does.
    pub expected: Option<u32>,
}

/// So many leases side by side, as the deadline index keeps them, does a sweep look for together.
const AHEAD: u32 = 8;

/// In a stripe of `tracked`: the tracker has been shut down. Leases are counted in twos above it.
const CLOSED: u64 = 1;
const ONE_TRACKED: u64 = 2;

type LeaseRef<'g, P> = Entry<'g, RequestId, LeaseEntry<P>>;

/// The account of which payloads (KV-cache blocks, say) must still be kept, for whom, and until when.
///
/// Each request that is [tracked](Self::track) ends exactly once, as one [`Outcome`], and hands its payload
/// out exactly once, in a [`Release`], to whoever ended it: the last of the expected consumers that
/// [notify](Self::notify), an [`abort`](Self::abort), or a [`sweep`](Self::sweep) past its deadline.
/// Messages that come too early are kept for a while, those that come too late are answered with what
/// happened, and no call touches another life of the same id, for as long as the end of this one is remembered.
///
/// All calls take `&self`, from any thread, at the same time, on the same id. None blocks; all are
/// lock-free: a call is held up only by another one that makes progress. `sweep`, `expire_consumers` and
/// `shutdown` do as much as there is to do.
///
/// **Time** comes in from outside, as `now`, from one clock for all calls ([`Clock`](crate::Clock) is one).
/// A `now` that goes backwards makes nothing due early.
///
/// **Memory ordering.** Whatever a thread did before a call that had an effect on a lease (counted a
/// notification, ended a transfer) is visible to whoever is given that lease's release.
///
/// **Events.** With the feature `tracing`, [one](crate::docs::outcomes#in-the-log) at debug level for each lease that ends.
///
/// **Panics.** None of its own. A payload that is still there when the tracker is dropped is dropped with it.
/// Payloads are moved by value some times on the way through: box what is larger than a few kilobytes.
///
/// ```
/// use kvlease::{Clock, ConsumerId, Ended, Notified, Outcome, SendTracker, Terms};
/// use std::time::Duration;
///
/// let clock = Clock::new();
/// let tracker = SendTracker::new();
/// let (rank0, rank1) = (ConsumerId::new(1).unwrap(), ConsumerId::new(2).unwrap());
///
/// // The engine thread: the KV cache of a request is complete; two decode ranks will read it.
/// let now = clock.now();
/// let terms = Terms::until(now + Duration::from_secs(30)).consumers(2);
/// let tracked = tracker.track("cmpl-1", terms, vec![17, 18, 19], now).unwrap();
/// assert!(tracked.release().is_none());
///
/// // A notification thread: they have read it.
/// let _ = tracker.notify("cmpl-1", rank0, clock.now());
/// match tracker.notify("cmpl-1", rank1, clock.now()) {
///     Notified::Completed(Ended::Released(release)) => assert_eq!(release.payload, [17, 18, 19]), // free them
///     other => panic!("{other:?}"),
/// }
///
/// // A message that comes once more, or too late, is told what happened.
/// assert_eq!(tracker.notify("cmpl-1", rank1, clock.now()), Notified::LateDuplicate(Outcome::Completed));
/// ```
pub struct SendTracker<P> {
    map: CasMap<RequestId, LeaseEntry<P>>,
    deadlines: DeadlineIndex,
    graveyard: Graveyard,
    /// Early entries, never more than the cap.
    early: CachePadded<AtomicCount>,
    /// How many leases have begun, in twos, and [`CLOSED`]. One word for both, so that a `track` and a
    /// `shutdown` cannot miss each other: see `track`.
    tracked: [CachePadded<AtomicU64>; STRIPES],
    /// Not 0 once the tracker has been shut down: a word that hardly ever changes, for a quick look.
    closed: AtomicU32,
    counters: Counters,
    config: Config,
}

impl<P: Send + 'static> SendTracker<P> {
    /// A tracker with the default [`Config`].
    pub fn new() -> Self {
        Self::with_config(Config::default())
    }

    /// A tracker with these limits and policies.
    pub fn with_config(config: Config) -> Self {
        SendTracker {
            map: CasMap::new(),
            deadlines: DeadlineIndex::new(),
            graveyard: Graveyard::new(config.tombstone_capacity),
            early: CachePadded::new(AtomicCount::new(0)),
            tracked: std::array::from_fn(|_| CachePadded::new(AtomicU64::new(0))),
            closed: AtomicU32::new(0),
            counters: Counters::new(),
            config,
        }
    }

    /// The limits and policies it was made with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Begins a lease: `payload` is kept until the lease ends, and then handed out once.
    ///
    /// If messages for this id came before, they count, and may end the lease at once. If an earlier life
    /// of this id has ended, this is a new one.
    ///
    /// A deadline that has passed already is no error: the lease is due at the next sweep.
    ///
    /// # Errors
    /// The payload is handed back with the [reason](TrackRefusal).
    ///
    /// ```
    /// use kvlease::{SendTracker, Terms, Timestamp, TrackRefusal};
    ///
    /// let tracker = SendTracker::new();
    /// let terms = Terms::until(Timestamp::from_secs(30)).consumers(1);
    /// let _ = tracker.track("r", terms, "blocks", Timestamp::ZERO).unwrap();
    /// let refused = tracker.track("r", terms, "other blocks", Timestamp::ZERO).unwrap_err();
    /// assert_eq!((refused.reason, refused.payload), (TrackRefusal::AlreadyTracked, "other blocks"));
    /// ```
    pub fn track(&self, id: &str, terms: Terms, payload: P, now: Timestamp) -> Result<Tracked<P>, TrackError<P>> {
        self.try_track(id, terms, payload, now).inspect_err(|_| self.counters.add(Counter::TrackRefused, 1))
    }

    fn try_track(&self, id: &str, terms: Terms, payload: P, now: Timestamp) -> Result<Tracked<P>, TrackError<P>> {
        if let Some(reason) = self.refusal(id, &terms) {
            return Err(TrackError { payload, reason });
        }
        let guard = pin();
        let hash = self.map.hash(id);
        let mut payload = payload;
        loop {
            let entry = match self.map.find(hash, id, &guard) {
                Ok(entry) => entry,
                Err(vacant) => match self.track_absent(vacant, id, hash, &terms, payload, now, &guard) {
                    Absent::Done(result) => return result,
                    Absent::NoMore(back) => {
                        payload = back;
                        continue;
                    }
                },
            };
            let lease = entry.value();
            let reason = match lease.arm() {
                ArmEffect::Armed => {
                    self.early.fetch_sub(1, Ordering::Relaxed); // Relaxed: a count
                    let until = self.tombstone_until(now);
                    let (word, end) = lease.finish_arming(&terms, payload, now.as_millis(), until);
                    return self.tracked(entry, word, end, terms.weight, now, &guard);
                }
                ArmEffect::AlreadyTracked => TrackRefusal::AlreadyTracked,
                ArmEffect::TransferInFlight => TrackRefusal::TransferInFlight,
                ArmEffect::Tombstone => {
                    self.unbury(&entry, &guard);
                    continue;
                }
                ArmEffect::Gone => {
                    self.map.compare_remove(&entry, &guard);
                    continue;
                }
            };
            return Err(TrackError { payload, reason });
        }
    }

    /// What speaks against the call itself.
    fn refusal(&self, id: &str, terms: &Terms) -> Option<TrackRefusal> {
        let max = self.config.max_id_len;
        if id.len() > max {
            return Some(TrackRefusal::IdTooLong { len: id.len(), max });
        }
        match terms.expected {
            Some(expected) if expected > MAX_CONSUMERS => return Some(TrackRefusal::TooManyConsumers { expected }),
            _ => {}
        }
        if terms.deadline > Timestamp::MAX_DEADLINE {
            return Some(TrackRefusal::DeadlineOutOfRange);
        }
        if self.is_closed() {
            return Some(TrackRefusal::ShutDown);
        }
        match self.config.capacity {
            Some(capacity) if self.live() >= capacity as u64 => Some(TrackRefusal::AtCapacity { capacity }),
            _ => None,
        }
    }

    /// A `track` of an id that is not in the map.
    #[expect(clippy::too_many_arguments, reason = "what `try_track` has at hand")]
    fn track_absent(
        &self,
        vacant: Vacant<'_>,
        id: &str,
        hash: u32,
        terms: &Terms,
        payload: P,
        now: Timestamp,
        guard: &Guard,
    ) -> Absent<P> {
        if terms.expected == Some(0) {
            return self.track_for_nobody(vacant, id, hash, terms, payload, now, guard);
        }
        let word = Word::leased(terms.deadline.as_millis(), terms.expected.unwrap_or(0));
        let lease = LeaseEntry::new(word, terms, now.as_millis(), Some(payload));
        match self.map.insert_at(vacant, hash, RequestId::from(id), lease, guard) {
            Ok(entry) => Absent::Done(self.tracked(entry, word, None, terms.weight, now, guard)),
            Err(error) => {
                let full = matches!(error, InsertError::Full { .. });
                // Never published, so the payload is still in it.
                let Some(payload) = error.into_inner().1.into_payload() else { unreachable!("put in above") };
                if full {
                    let reason = TrackRefusal::AtCapacity { capacity: u32::MAX as usize };
                    return Absent::Done(Err(TrackError { payload, reason }));
                }
                Absent::NoMore(payload)
            }
        }
    }

    /// A lease for nobody is over at once. Its payload need not go through the entry, which is a tombstone
    /// from the start.
    #[expect(clippy::too_many_arguments, reason = "what `try_track` has at hand")]
    fn track_for_nobody(
        &self,
        vacant: Vacant<'_>,
        id: &str,
        hash: u32,
        terms: &Terms,
        payload: P,
        now: Timestamp,
        guard: &Guard,
    ) -> Absent<P> {
        let until = self.tombstone_until(now).max(terms.deadline.as_millis());
        let tombstone = LeaseEntry::new(Word::completed_at_once(until), terms, now.as_millis(), None);
        match self.map.insert_at(vacant, hash, RequestId::from(id), tombstone, guard) {
            Err(InsertError::Exists { .. }) => return Absent::NoMore(payload),
            // Without a slot nothing is remembered of it; it is over all the same.
            Err(InsertError::Full { .. }) => {}
            Ok(entry) => {
                self.bury(&entry, guard);
                self.deadlines.schedule(entry.handle().index(), until);
            }
        }
        // Relaxed: a count.
        self.tracked[stripe()].fetch_add(ONE_TRACKED, Ordering::Relaxed);
        self.count_end(Outcome::Completed);
        self.counters.add(Counter::Released, 1);
        log::ended_at_once(id, terms.weight);
        Absent::Done(Ok(Tracked::Ended(Release {
            id: RequestId::from(id),
            outcome: Outcome::Completed,
            payload,
            weight: terms.weight,
            age: Duration::ZERO,
        })))
    }

    /// What remains to be done of a `track` once its lease runs, or has ended at once.
    fn tracked(
        &self,
        entry: LeaseRef<'_, P>,
        word: Word,
        end: Option<End>,
        weight: u32,
        now: Timestamp,
        guard: &Guard,
    ) -> Result<Tracked<P>, TrackError<P>> {
        self.counters.add(Counter::WeightTaken, weight.into());
        // AcqRel: pairs with the `fetch_or` of `shutdown`. Of the two the later one acts on the other:
        // either this sees CLOSED, or that one sees the lease.
        let before = self.tracked[stripe()].fetch_add(ONE_TRACKED, Ordering::AcqRel);
        if let Some(end) = end {
            // SAFETY: `finish_arming` made this transition, and this is its one caller.
            return Ok(match unsafe { self.release(&entry, end, now, guard) } {
                Some(release) => {
                    self.deadlines.schedule(entry.handle().index(), word.deadline());
                    Tracked::Ended(release)
                }
                None => Tracked::Leased,
            });
        }
        self.deadlines.schedule(entry.handle().index(), word.deadline());
        if before & CLOSED != 0 {
            if let AbortEffect::Ended(end) = entry.value().abort(self.tombstone_until(now)) {
                if !end.released {
                    // A transfer has begun meanwhile, so it was tracked; its release comes with the end of that.
                    log::ended(entry.key(), entry.value(), end, now);
                    self.count_end(end.outcome);
                    return Ok(Tracked::Leased);
                }
                // SAFETY: the transition was made just now.
                if let Some(payload) = unsafe { entry.value().take_payload() } {
                    // As if it had never been.
                    self.tracked[stripe()].fetch_sub(ONE_TRACKED, Ordering::Relaxed);
                    self.counters.add(Counter::WeightReleased, weight.into());
                    if end.was_overdue {
                        // The deadline index did not wait for it any more, but has to for its tombstone.
                        self.deadlines.schedule(entry.handle().index(), entry.value().due());
                    }
                    self.bury(&entry, guard);
                    return Err(TrackError { payload, reason: TrackRefusal::ShutDown });
                }
            }
            // Somebody else has ended it and has the release: it was tracked, and then shut down.
        }
        Ok(Tracked::Leased)
    }

    /// `consumer` says that it has read the blocks of `id`.
    ///
    /// ```
    /// use kvlease::{ConsumerId, Notified, SendTracker, Terms, Timestamp};
    ///
    /// let tracker = SendTracker::new();
    /// let now = Timestamp::ZERO;
    /// let rank = |n| ConsumerId::new(n).unwrap();
    /// assert_eq!(tracker.notify("r", rank(1), now), Notified::Early); // before `track`: kept
    /// let _ = tracker.track("r", Terms::until(Timestamp::from_secs(30)).consumers(3), (), now).unwrap();
    /// assert_eq!(tracker.notify("r", rank(1), now), Notified::Duplicate { seen: 1, expected: Some(3) });
    /// assert_eq!(tracker.notify("r", rank(2), now), Notified::Counted { seen: 2, expected: Some(3) });
    /// assert!(tracker.notify("r", rank(3), now).release().is_some());
    /// ```
    pub fn notify(&self, id: &str, consumer: ConsumerId, now: Timestamp) -> Notified<P> {
        let guard = pin();
        self.notify_hashed(self.map.hash(id), Notification { id, consumer, expected: None }, now, &guard)
    }

    /// As [`notify`](Self::notify), by a message that also tells how many consumers are expected.
    ///
    /// The first count that is known for a lease stands; another one is reported as
    /// [`Notified::ExpectedConflict`]. A count given to [`track`](Self::track) stands over one that came early.
    /// One of 0, or of more than 255, is [`Notified::Refused`].
    pub fn notify_expecting(&self, id: &str, consumer: ConsumerId, expected: u32, now: Timestamp) -> Notified<P> {
        let guard = pin();
        self.notify_hashed(self.map.hash(id), Notification { id, consumer, expected: Some(expected) }, now, &guard)
    }

    /// Many notifications, in order; `on` is given each with its result.
    ///
    /// Faster than one by one: pins once, and looks up sixteen ids at a time: it takes up to sixteen from the
    /// iterator before it handles the first, so let that not be one that waits. `on` runs under that pin, so it
    /// should be quick; it may call the tracker.
    pub fn notify_batch<'a>(
        &self,
        notifications: impl IntoIterator<Item = Notification<'a>>,
        now: Timestamp,
        mut on: impl FnMut(Notification<'a>, Notified<P>),
    ) {
        let guard = pin();
        self.map.in_batches(
            notifications,
            |notification| notification.id,
            &guard,
            |hash, notification| {
                let result = self.notify_hashed(hash, notification, now, &guard);
                on(notification, result);
            },
        );
    }

    fn notify_hashed(&self, hash: u32, notification: Notification<'_>, now: Timestamp, guard: &Guard) -> Notified<P> {
        let Notification { id, consumer, expected } = notification;
        let told = match expected {
            None => 0,
            Some(n) if (1..=MAX_CONSUMERS).contains(&n) => n,
            Some(claimed) => {
                self.counters.add(Counter::NotifyRefused, 1);
                return Notified::Refused(NotifyRefusal::ExpectedOutOfRange { claimed });
            }
        };
        let until = self.tombstone_until(now);
        loop {
            let Some(entry) = self.find_or_stash(id, hash, self.config.early_capacity, now, guard) else {
                return Notified::Unknown;
            };
            let effect = match entry.value().notify(consumer, told, until) {
                Notify::Effect(effect) => effect,
                Notify::EarlyDuplicate => {
                    self.counters.add(Counter::Duplicates, 1);
                    return Notified::Early;
                }
                Notify::Duplicate(count) => {
                    self.counters.add(Counter::Duplicates, 1);
                    return Notified::Duplicate { seen: count.seen, expected: count.expected };
                }
                Notify::LateDuplicate(outcome) => {
                    self.counters.add(Counter::Duplicates, 1);
                    return Notified::LateDuplicate(outcome);
                }
            };
            let ended = |end: End| {
                // SAFETY: the transition was made just now, by this call.
                unsafe { self.ended(&entry, end, now, guard) }
            };
            return match effect {
                NotifyEffect::Counted(count) => {
                    self.counters.add(Counter::Notified, 1);
                    Notified::Counted { seen: count.seen, expected: count.expected }
                }
                NotifyEffect::Ended(end) => {
                    self.counters.add(Counter::Notified, 1);
                    Notified::Completed(ended(end))
                }
                NotifyEffect::Conflict { stands, seen, end, early } => {
                    self.counters.add(if early { Counter::EarlyKept } else { Counter::Notified }, 1);
                    self.counters.add(Counter::Conflicts, 1);
                    Notified::ExpectedConflict { claimed: told, stands, seen, early, ended: end.map(ended) }
                }
                NotifyEffect::Early => {
                    self.counters.add(Counter::EarlyKept, 1);
                    Notified::Early
                }
                NotifyEffect::Late(outcome) => {
                    self.counters.add(Counter::Late, 1);
                    Notified::Late(outcome)
                }
                NotifyEffect::TooMany => {
                    self.counters.add(Counter::NotifyRefused, 1);
                    Notified::Refused(NotifyRefusal::TooManyConsumers)
                }
                NotifyEffect::Gone => {
                    self.map.compare_remove(&entry, guard);
                    continue;
                }
            };
        }
    }

    /// `expected` distinct consumers (0 to 255) have to notify. Completes the lease if they have.
    ///
    /// The first count that is known for a lease stands; one given to [`track`](Self::track) stands over one that came
    /// early.
    pub fn set_expected(&self, id: &str, expected: u32, now: Timestamp) -> ExpectedSet<P> {
        if expected > MAX_CONSUMERS {
            return ExpectedSet::TooMany;
        }
        let guard = pin();
        let hash = self.map.hash(id);
        let until = self.tombstone_until(now);
        loop {
            let Some(entry) = self.find_or_stash(id, hash, self.config.early_capacity, now, &guard) else {
                return ExpectedSet::Unknown;
            };
            return match entry.value().set_expected(expected, until) {
                ExpectEffect::Set { seen } => ExpectedSet::Set { seen },
                // SAFETY: the transition was made just now, by this call.
                ExpectEffect::Ended(end) => ExpectedSet::Completed(unsafe { self.ended(&entry, end, now, &guard) }),
                ExpectEffect::Conflict { stands } => ExpectedSet::Conflict { stands },
                ExpectEffect::Early => {
                    self.counters.add(Counter::EarlyKept, 1);
                    ExpectedSet::Early
                }
                ExpectEffect::Late(outcome) => {
                    self.counters.add(Counter::Late, 1);
                    ExpectedSet::Late(outcome)
                }
                ExpectEffect::Gone => {
                    self.map.compare_remove(&entry, &guard);
                    continue;
                }
            };
        }
    }

    /// Keeps the lease of `id` until `deadline` at least. Never shortens one. O(1): touches nothing but the
    /// lease's word, and, where `by` is given and has changed, whom it waits for.
    ///
    /// `by` is the consumer whose heartbeat this is, if that is known: the latest one that a lease hears of
    /// tells which decode engine it waits for, unless `track` [named](Terms::waits_for) one.
    pub fn renew(&self, id: &str, deadline: Timestamp, by: Option<ConsumerId>, now: Timestamp) -> Renewed {
        let guard = pin();
        self.renew_hashed(self.map.hash(id), id, deadline, by, now, &guard)
    }

    /// Many renewals to one deadline, as a heartbeat message brings them. Pins once, and looks up sixteen
    /// ids at a time.
    pub fn renew_batch<'a>(
        &self,
        ids: impl IntoIterator<Item = &'a str>,
        deadline: Timestamp,
        by: Option<ConsumerId>,
        now: Timestamp,
    ) -> RenewCounts {
        let guard = pin();
        let mut counts = RenewCounts::default();
        self.map.in_batches(
            ids,
            |id| id,
            &guard,
            |hash, id| {
                let count = match self.renew_hashed(hash, id, deadline, by, now, &guard) {
                    Renewed::Extended => &mut counts.extended,
                    Renewed::Unchanged { .. } => &mut counts.unchanged,
                    Renewed::Early => &mut counts.early,
                    Renewed::Late(_) => &mut counts.late,
                    Renewed::Unknown => &mut counts.unknown,
                    Renewed::DeadlineOutOfRange => &mut counts.refused,
                };
                *count += 1;
            },
        );
        counts
    }

    fn renew_hashed(
        &self,
        hash: u32,
        id: &str,
        deadline: Timestamp,
        by: Option<ConsumerId>,
        now: Timestamp,
        guard: &Guard,
    ) -> Renewed {
        if deadline > Timestamp::MAX_DEADLINE {
            return Renewed::DeadlineOutOfRange;
        }
        loop {
            // At most every second place for ids of which only heartbeats have come: a message of thousands of
            // them must not leave completions without one.
            let room = self.config.early_capacity.div_ceil(2);
            let Some(entry) = self.find_or_stash(id, hash, room, now, guard) else { return Renewed::Unknown };
            return match entry.value().renew(deadline.as_millis(), by, now.as_millis()) {
                RenewEffect::Extended { revived } => {
                    if revived {
                        self.deadlines.schedule(entry.handle().index(), deadline.as_millis());
                    }
                    self.counters.add(Counter::Extended, 1);
                    Renewed::Extended
                }
                RenewEffect::Unchanged { deadline } => {
                    Renewed::Unchanged { deadline: Timestamp::from_millis(deadline) }
                }
                RenewEffect::Early => {
                    self.counters.add(Counter::EarlyKept, 1);
                    Renewed::Early
                }
                RenewEffect::Late(outcome) => {
                    self.counters.add(Counter::Late, 1);
                    Renewed::Late(outcome)
                }
                RenewEffect::Gone => {
                    self.map.compare_remove(&entry, guard);
                    continue;
                }
            };
        }
    }

    /// The producer gives the request up.
    pub fn abort(&self, id: &str, now: Timestamp) -> Aborted<P> {
        let guard = pin();
        let hash = self.map.hash(id);
        let until = self.tombstone_until(now);
        loop {
            let Some(entry) = self.find_or_stash(id, hash, self.config.early_capacity, now, &guard) else {
                return Aborted::Unknown;
            };
            return match entry.value().abort(until) {
                // SAFETY: the transition was made just now, by this call.
                AbortEffect::Ended(end) => Aborted::Ended(unsafe { self.ended(&entry, end, now, &guard) }),
                AbortEffect::Early => {
                    self.counters.add(Counter::EarlyKept, 1);
                    Aborted::Early
                }
                AbortEffect::Late(outcome) => {
                    self.counters.add(Counter::Late, 1);
                    Aborted::Late(outcome)
                }
                AbortEffect::Gone => {
                    self.map.compare_remove(&entry, &guard);
                    continue;
                }
            };
        }
    }

    /// The producer itself is about to move the blocks of `id`: until the transfer ends, nothing releases
    /// them.
    ///
    /// # Errors
    /// [`TransferRefusal`] if there is no live lease, and then the blocks must not be touched.
    pub fn begin_transfer(&self, id: &str) -> Result<Transfer<P, &Self>, TransferRefusal> {
        self.begin(id).map(|handle| Transfer::new(self, handle))
    }

    /// As [`begin_transfer`](Self::begin_transfer), with a guard that keeps the tracker alive and can move
    /// to another thread.
    ///
    /// # Errors
    /// As there.
    pub fn begin_transfer_owned(self: &Arc<Self>, id: &str) -> Result<Transfer<P, Arc<Self>>, TransferRefusal> {
        self.begin(id).map(|handle| Transfer::new(Arc::clone(self), handle))
    }

    fn begin(&self, id: &str) -> Result<Handle, TransferRefusal> {
        let guard = pin();
        let entry = self.map.get(id, &guard).ok_or(TransferRefusal::NotLeased)?;
        match entry.value().begin_transfer() {
            BeginEffect::Begun => {
                self.counters.add(Counter::TransfersBegun, 1);
                Ok(entry.handle())
            }
            BeginEffect::NotLeased => Err(TransferRefusal::NotLeased),
            BeginEffect::Late(outcome) => Err(TransferRefusal::Late(outcome)),
            BeginEffect::TooMany => Err(TransferRefusal::TooManyTransfers),
        }
    }

    /// With `now` the caller takes the release, if there is one; without, the next sweep does.
    fn end_transfer(&self, handle: Handle, now: Option<Timestamp>) -> Option<Release<P>> {
        let guard = pin();
        // An entry with a transfer in flight is never removed.
        let entry = self.map.by_handle(handle, &guard)?;
        let until = now.map_or(0, |now| self.tombstone_until(now));
        self.counters.add(Counter::TransfersEnded, 1);
        match entry.value().end_transfer(now.is_some(), until) {
            EndEffect::Nothing => None,
            EndEffect::Release(outcome, again) => {
                // SAFETY: the transition was made just now, by this call.
                let release = unsafe { self.hand_out(&entry, outcome, now.unwrap_or_default(), &guard) };
                self.deadlines.schedule(handle.index(), again);
                release
            }
            EndEffect::Left => {
                // Due at once.
                self.deadlines.schedule(handle.index(), 0);
                None
            }
        }
    }

    /// Ends what is due at `now`: leases whose deadline is `now` or earlier, early messages that no `track`
    /// came for, tombstones that have served their time. Also hands out what dropped
    /// [`Transfer`] guards have left.
    ///
    /// Costs in proportion to what is due (or has ended or been renewed since it was last looked at), not
    /// to what is tracked; with nothing due it is one load. Any number of threads may sweep at once; each
    /// lease is ended by one of them.
    ///
    /// ```
    /// use kvlease::{Outcome, SendTracker, Terms, Timestamp};
    ///
    /// let tracker = SendTracker::new();
    /// let _ = tracker.track("r", Terms::until(Timestamp::from_secs(30)), "blocks", Timestamp::ZERO).unwrap();
    /// assert_eq!(tracker.next_deadline(), Some(Timestamp::from_secs(30)));
    /// assert!(tracker.sweep(Timestamp::from_millis(29_999)).released.is_empty());
    /// let swept = tracker.sweep(Timestamp::from_secs(30));
    /// assert_eq!((swept.released[0].payload, swept.released[0].outcome), ("blocks", Outcome::Expired));
    /// ```
    pub fn sweep(&self, now: Timestamp) -> Swept<P> {
        let mut swept = Swept::default();
        let millis = now.as_millis().min(MAX_TIME);
        if self.deadlines.bound() > millis {
            return swept;
        }
        let guard = pin();
        let until = self.tombstone_until(now);
        let hold = self.config.expiry == ExpiryPolicy::Hold;
        self.deadlines.visit(millis, &mut |slot| {
            if slot % AHEAD == 0 {
                self.map.prefetch_by_index(slot..slot.saturating_add(AHEAD), &guard);
            }
            let Some(entry) = self.map.by_index(slot, &guard) else { return NEVER };
            match entry.value().sweep(millis, hold, until) {
                SweepEffect::NotBefore(time) => time,
                SweepEffect::Ended(end, again) => {
                    // SAFETY: the transition was made just now, by this call.
                    match unsafe { self.release(&entry, end, now, &guard) } {
                        Some(release) => swept.released.push(release),
                        None => swept.after_transfer += 1,
                    }
                    again
                }
                SweepEffect::Claimed(outcome, again) => {
                    // SAFETY: as above.
                    swept.released.extend(unsafe { self.hand_out(&entry, outcome, now, &guard) });
                    again
                }
                SweepEffect::Overdue => {
                    self.counters.add(Counter::Overdue, 1);
                    swept.overdue.push(entry.key().clone());
                    NEVER
                }
                SweepEffect::EarlyDropped => {
                    self.early_gone(&entry, &guard);
                    swept.early_dropped += 1;
                    NEVER
                }
                SweepEffect::Remove { tombstone: true } => {
                    swept.tombstones_dropped += usize::from(self.unbury(&entry, &guard));
                    NEVER
                }
                SweepEffect::Remove { tombstone: false } => {
                    self.map.compare_remove(&entry, &guard);
                    NEVER
                }
            }
        });
        swept
    }

    /// When the next sweep will have something to do, tombstones and early messages included; `None` if
    /// it will not.
    ///
    /// Never later than that. It is exact, but after very many leases have ended or been renewed it may be
    /// too early, so that a sweep finds nothing and the next answer is better.
    ///
    /// Another thread may bring it forward right after: a `track` or an early message, or a dropped
    /// [`Transfer`] that leaves a release to the next sweep. An engine that sleeps until then should be woken
    /// by those, or sleep no longer than it wants to wait for such a release.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let guard = pin();
        let mut bound = self.deadlines.bound();
        for _ in 0..64 {
            if bound == NEVER {
                return None;
            }
            // Raises the bounds of what has ended or been renewed.
            self.deadlines.visit(bound, &mut |slot| match self.map.by_index(slot, &guard) {
                Some(entry) => entry.value().due(),
                None => NEVER,
            });
            match self.deadlines.bound() {
                same if same == bound => break,
                better => bound = better,
            }
        }
        (bound != NEVER).then_some(Timestamp::from_millis(bound))
    }

    /// A decode engine is dead: ends, as expired, the leases that wait for one of its `consumers`.
    ///
    /// A lease waits for the engine that was [named](Terms::waits_for) when it was tracked, or else for
    /// that of the latest consumer that notified or renewed it (the latest, since a request may have been
    /// given to another engine). One of which nobody has been heard is left to its deadline. Looks at every lease, so it takes time in proportion to the most there ever were.
    ///
    /// A lease with a transfer in flight ends now, and is released with the end of that.
    #[must_use = "the payloads are handed out once: free their blocks"]
    pub fn expire_consumers(&self, consumers: &[ConsumerId], now: Timestamp) -> Vec<Release<P>> {
        let mut consumers = consumers.to_vec();
        consumers.sort_unstable();
        let guard = pin();
        let until = self.tombstone_until(now);
        let mut releases = Vec::new();
        for entry in self.map.iter(&guard) {
            let waits = entry.value().waits_for().is_some_and(|consumer| consumers.binary_search(&consumer).is_ok());
            if !waits {
                continue;
            }
            if let AbortEffect::Ended(end) = entry.value().expire(until) {
                // SAFETY: the transition was made just now, by this call.
                releases.extend(unsafe { self.release(&entry, end, now, &guard) });
            }
        }
        releases
    }

    /// Ends everything: gives every payload that is left, each once, as aborted; from now on `track` is
    /// refused. Leases with a transfer in flight end, too, and are released with the end of that. May be
    /// called again.
    #[must_use = "the payloads are handed out once: free their blocks"]
    pub fn shutdown(&self, now: Timestamp) -> Vec<Release<P>> {
        // Relaxed: for quick looks; `tracked` decides.
        self.closed.store(1, Ordering::Relaxed);
        for stripe in &self.tracked {
            // AcqRel: pairs with the `fetch_add` in `tracked`.
            stripe.fetch_or(CLOSED, Ordering::AcqRel);
        }
        let guard = pin();
        let until = self.tombstone_until(now);
        let mut releases = Vec::new();
        for entry in self.map.iter(&guard) {
            let lease = entry.value();
            if lease.drop_early() {
                self.early_gone(&entry, &guard);
            } else if lease.load().is_unclaimed() {
                if let SweepEffect::Claimed(outcome, again) = lease.sweep(0, true, until) {
                    // SAFETY: the transition was made just now, by this call.
                    releases.extend(unsafe { self.hand_out(&entry, outcome, now, &guard) });
                    self.deadlines.schedule(entry.handle().index(), again);
                }
            } else if lease.load().is_live() {
                if let AbortEffect::Ended(end) = lease.abort(until) {
                    // SAFETY: as above.
                    releases.extend(unsafe { self.release(&entry, end, now, &guard) });
                }
            }
        }
        releases
    }

    /// Gauges and counters, as of about now.
    pub fn stats(&self) -> Stats {
        // Relaxed: a count. The ended ones are counted after, so that `live` is not too low.
        self.counters.stats(self.tracked_count(), self.early.load(Ordering::Relaxed))
    }

    /// The `n` leases that were tracked longest ago, the oldest first, of those whose payload has not been
    /// handed out.
    ///
    /// For a debug dump: looks at every lease.
    pub fn oldest(&self, n: usize) -> Vec<LeaseInfo> {
        struct ByAge(LeaseInfo);
        impl PartialEq for ByAge {
            fn eq(&self, other: &Self) -> bool {
                self.cmp(other).is_eq()
            }
        }
        impl Eq for ByAge {}
        impl PartialOrd for ByAge {
            fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
                Some(self.cmp(other))
            }
        }
        impl Ord for ByAge {
            fn cmp(&self, other: &Self) -> std::cmp::Ordering {
                (self.0.tracked_at, &self.0.id).cmp(&(other.0.tracked_at, &other.0.id))
            }
        }
        let mut oldest = BinaryHeap::new();
        for info in self.leases() {
            oldest.push(ByAge(info));
            if oldest.len() > n {
                oldest.pop();
            }
        }
        oldest.into_sorted_vec().into_iter().map(|by_age| by_age.0).collect()
    }

    /// How long ago the oldest of those leases was tracked whose payload has not been handed out; `None` if there is
    /// none.
    ///
    /// For a gauge that is read every some seconds: it looks at every slot, of which there are as many as there ever
    /// were leases and tombstones at once, but copies nothing. Wait-free; holds memory back while it runs.
    ///
    /// ```
    /// use kvlease::{SendTracker, Terms, Timestamp};
    /// use std::time::Duration;
    ///
    /// let tracker = SendTracker::new();
    /// assert_eq!(tracker.oldest_age(Timestamp::ZERO), None);
    /// let _ = tracker.track("r", Terms::until(Timestamp::from_secs(30)), (), Timestamp::from_secs(1)).unwrap();
    /// let _ = tracker.track("s", Terms::until(Timestamp::from_secs(30)), (), Timestamp::from_secs(3)).unwrap();
    /// assert_eq!(tracker.oldest_age(Timestamp::from_secs(5)), Some(Duration::from_secs(4)));
    /// ```
    pub fn oldest_age(&self, now: Timestamp) -> Option<Duration> {
        let guard = pin();
        let tracked_at = |slot| {
            let entry = self.map.by_index(slot, &guard)?;
            let lease = entry.value();
            holds_payload(lease.load()).then(|| lease.stamp())
        };
        let oldest = (0..self.map.slots().allocated as u32).filter_map(tracked_at).min()?;
        Some(now.saturating_since(Timestamp::from_millis(oldest)))
    }

    /// What is known of one id: a lease that is live, or has ended and is remembered. Says, for example, who
    /// had notified when a lease expired.
    ///
    /// ```
    /// use kvlease::{ConsumerId, Outcome, SendTracker, Terms, Timestamp};
    ///
    /// let tracker = SendTracker::new();
    /// let (now, rank) = (Timestamp::ZERO, |n| ConsumerId::new(n).unwrap());
    /// let _ = tracker.track("r", Terms::until(Timestamp::from_secs(30)).consumers(2), (), now).unwrap();
    /// let _ = tracker.notify("r", rank(7), now);
    /// let _ = tracker.sweep(Timestamp::from_secs(30));
    /// let lease = tracker.lease("r").unwrap();
    /// assert_eq!((lease.outcome, lease.expected, lease.notified), (Some(Outcome::Expired), Some(2), vec![rank(7)]));
    /// ```
    pub fn lease(&self, id: &str) -> Option<LeaseInfo> {
        let guard = pin();
        let entry = self.map.get(id, &guard)?;
        let word = entry.value().load();
        (word.is_live() || word.outcome().is_some()).then(|| info(&entry, word))
    }

    /// All leases whose payload has not been handed out, in no order; weakly consistent. Holds memory back
    /// while it lives.
    pub fn leases(&self) -> impl Iterator<Item = LeaseInfo> + '_ {
        let guard = pin();
        (0..self.map.slots().allocated as u32).filter_map(move |slot| {
            let entry = self.map.by_index(slot, &guard)?;
            let word = entry.value().load();
            holds_payload(word).then(|| info(&entry, word))
        })
    }

    /// The entry of this id; made as an early one, if there is none and fewer than `room` are early.
    fn find_or_stash<'g>(
        &'g self,
        id: &str,
        hash: u32,
        room: usize,
        now: Timestamp,
        guard: &'g Guard,
    ) -> Option<LeaseRef<'g, P>> {
        match self.map.find(hash, id, guard) {
            Ok(entry) => Some(entry),
            Err(vacant) => self.stash(vacant, id, hash, room, now, guard),
        }
    }

    #[cold]
    fn stash<'g>(
        &'g self,
        vacant: Vacant<'g>,
        id: &str,
        hash: u32,
        room: usize,
        now: Timestamp,
        guard: &'g Guard,
    ) -> Option<LeaseRef<'g, P>> {
        let unknown = || {
            self.counters.add(Counter::Unknown, 1);
            None
        };
        if id.len() > self.config.max_id_len || self.is_closed() {
            return unknown();
        }
        // Relaxed: a count, but an exact one: whoever brings it past the cap takes it back.
        if self.early.fetch_add(1, Ordering::Relaxed) >= room as u64 {
            self.early.fetch_sub(1, Ordering::Relaxed);
            return unknown();
        }
        let drop_at = (now + self.config.early_ttl).as_millis().min(MAX_TIME);
        match self.map.insert_at(vacant, hash, RequestId::from(id), LeaseEntry::early(drop_at), guard) {
            Ok(entry) => {
                self.deadlines.schedule(entry.handle().index(), drop_at);
                Some(entry)
            }
            Err(error) => {
                self.early.fetch_sub(1, Ordering::Relaxed);
                match error {
                    InsertError::Exists { entry, .. } => Some(entry),
                    InsertError::Full { .. } => unknown(),
                }
            }
        }
    }

    /// An early entry has become [`Phase::Gone`](crate::lease::word::Phase::Gone) by this thread.
    fn early_gone(&self, entry: &LeaseRef<'_, P>, guard: &Guard) {
        self.early.fetch_sub(1, Ordering::Relaxed); // Relaxed: a count
        self.counters.add(Counter::EarlyDropped, 1);
        self.map.compare_remove(entry, guard);
    }

    /// What a lease that has just ended gives its ender.
    ///
    /// # Safety
    /// As for [`release`](Self::release).
    unsafe fn ended(&self, entry: &LeaseRef<'_, P>, end: End, now: Timestamp, guard: &Guard) -> Ended<P> {
        // SAFETY: the caller's.
        match unsafe { self.release(entry, end, now, guard) } {
            Some(release) => Ended::Released(release),
            None => Ended::AfterTransfer,
        }
    }

    /// Counts and logs the end of a lease, and hands its payload out if no transfer is in flight.
    ///
    /// # Safety
    /// The caller made the transition that gave `end` for this entry, and calls this once for it.
    unsafe fn release(&self, entry: &LeaseRef<'_, P>, end: End, now: Timestamp, guard: &Guard) -> Option<Release<P>> {
        if log::listening() {
            // SAFETY: the caller's.
            return unsafe { self.release_and_log(entry, end, now, guard) };
        }
        // SAFETY: the caller's.
        unsafe { self.count_and_release(entry, end, now, guard) }
    }

    /// # Safety
    /// As for [`release`](Self::release).
    #[cold]
    unsafe fn release_and_log(
        &self,
        entry: &LeaseRef<'_, P>,
        end: End,
        now: Timestamp,
        guard: &Guard,
    ) -> Option<Release<P>> {
        // SAFETY: the caller's.
        let release = unsafe { self.count_and_release(entry, end, now, guard) };
        // Last, so that nothing is left half done while somebody else's code runs.
        log::ended(entry.key(), entry.value(), end, now);
        release
    }

    /// # Safety
    /// As for [`release`](Self::release).
    unsafe fn count_and_release(
        &self,
        entry: &LeaseRef<'_, P>,
        end: End,
        now: Timestamp,
        guard: &Guard,
    ) -> Option<Release<P>> {
        self.count_end(end.outcome);
        if !end.released {
            return None;
        }
        // SAFETY: `end` says that the payload is the caller's.
        let release = unsafe { self.hand_out(entry, end.outcome, now, guard) };
        if end.was_overdue {
            // The deadline index did not wait for it any more, but has to for its tombstone.
            self.deadlines.schedule(entry.handle().index(), entry.value().due());
        }
        release
    }

    /// Hands the payload out, and buries the entry.
    ///
    /// # Safety
    /// As for [`LeaseEntry::take_payload`].
    unsafe fn hand_out(
        &self,
        entry: &LeaseRef<'_, P>,
        outcome: Outcome,
        now: Timestamp,
        guard: &Guard,
    ) -> Option<Release<P>> {
        let lease = entry.value();
        // SAFETY: the caller's.
        let payload = unsafe { lease.take_payload() };
        debug_assert!(payload.is_some());
        let age = now.saturating_since(Timestamp::from_millis(lease.stamp()));
        let release = Release { id: entry.key().clone(), outcome, payload: payload?, weight: lease.weight(), age };
        self.counters.add(Counter::Released, 1);
        self.counters.add(Counter::WeightReleased, release.weight.into());
        self.bury(entry, guard);
        Some(release)
    }

    /// Remembers an ended lease as a tombstone, and forgets the oldest one for it.
    fn bury(&self, entry: &LeaseRef<'_, P>, guard: &Guard) {
        self.counters.add(Counter::Buried, 1);
        if let Some(oldest) = self.graveyard.bury(entry.handle()) {
            if let Some(oldest) = self.map.by_handle(oldest, guard) {
                self.unbury(&oldest, guard);
            }
        }
    }

    /// Forgets a tombstone. True if this call did.
    fn unbury(&self, tombstone: &LeaseRef<'_, P>, guard: &Guard) -> bool {
        let removed = self.map.compare_remove(tombstone, guard);
        if removed {
            self.counters.add(Counter::Unburied, 1);
        }
        removed
    }

    fn count_end(&self, outcome: Outcome) {
        let counter = match outcome {
            Outcome::Completed => Counter::Completed,
            Outcome::Expired => Counter::Expired,
            Outcome::Aborted => Counter::Aborted,
        };
        self.counters.add(counter, 1);
    }

    /// Until when a lease that ends now is remembered at least.
    fn tombstone_until(&self, now: Timestamp) -> u64 {
        (now + self.config.tombstone_ttl.max(self.config.early_ttl)).as_millis().min(MAX_TIME)
    }

    fn is_closed(&self) -> bool {
        // Relaxed: a quick answer only; `tracked` decides.
        self.closed.load(Ordering::Relaxed) != 0
    }

    fn tracked_count(&self) -> u64 {
        // Relaxed: a sum over stripes is not a snapshot anyway.
        self.tracked.iter().map(|stripe| stripe.load(Ordering::Relaxed) / ONE_TRACKED).sum()
    }

    fn live(&self) -> u64 {
        let ended = self.counters.ended();
        self.tracked_count().saturating_sub(ended)
    }
}

/// What became of a `track` of an id that was not in the map.
enum Absent<P> {
    Done(Result<Tracked<P>, TrackError<P>>),
    /// By now it is; the payload back.
    NoMore(P),
}

#[cfg(all(test, kvlease_loom))]
impl<P: Send + 'static> SendTracker<P> {
    /// Whether the map holds nothing at all, tombstones and early entries included.
    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// The guard of a transfer that was begun, and whose guard was forgotten.
    pub(crate) fn forgotten_transfer(&self, id: &str) -> Transfer<P, &Self> {
        let guard = pin();
        Transfer::new(self, self.map.get(id, &guard).unwrap().handle())
    }
}

impl<P: Send + 'static> Default for SendTracker<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Send + 'static> fmt::Debug for SendTracker<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendTracker")
            .field("config", &self.config)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// Whether the payload has not been handed out yet.
fn holds_payload(word: Word) -> bool {
    word.is_live() || (word.outcome().is_some() && word.transfers() > 0)
}

/// What a debug dump shows of an entry that is, or was, a lease.
fn info<P>(entry: &LeaseRef<'_, P>, word: Word) -> LeaseInfo {
    let lease = entry.value();
    let count = word.count();
    LeaseInfo {
        id: entry.key().clone(),
        deadline: Timestamp::from_millis(word.deadline()),
        seen: count.seen,
        expected: count.expected,
        transfers: if word.is_unclaimed() { 0 } else { word.transfers() as u32 },
        weight: lease.weight(),
        tracked_at: Timestamp::from_millis(lease.stamp()),
        waits_for: lease.waits_for(),
        notified: lease.counted(),
        outcome: word.outcome(),
        overdue: word.phase() == crate::lease::word::Phase::Overdue,
    }
}
