//! A lease in memory: its [word](super::word), who has notified, and the payload.
//!
//! The word decides. The consumer set only tells a repeated message from a new one, and the payload is
//! taken by whoever made the transition after which nobody else can: the end of a lease without
//! transfers, the end of its last transfer, or the claim of a release that was left behind.

use super::word::{
    AbortEffect, ArmEffect, BeginEffect, Count, End, EndEffect, ExpectEffect, MAX_CONSUMERS, NotifyEffect, Phase,
    RenewEffect, Step, SweepEffect, Word,
};
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering, UnsafeCell};
use crate::{ConsumerId, Outcome, Terms, Timestamp};
use std::ptr;

pub(crate) struct LeaseEntry<P> {
    word: AtomicU64,
    /// In ms: while the entry is early, when it is dropped; afterwards, when it was tracked. Written at
    /// creation and by the one `track` that arms it.
    stamp: AtomicU64,
    weight: AtomicU32,
    /// A consumer of the decode engine that it waits for, or 0; with [`NAMED`] if `track` was told.
    waits_for: AtomicU32,
    consumers: ConsumerSet,
    payload: UnsafeCell<Option<P>>,
}

// SAFETY: the payload is written by one thread before it publishes the lease, and taken by one thread, as
// said at the head of the module; nobody else looks at it. So sharing an entry at most sends a payload.
unsafe impl<P: Send> Sync for LeaseEntry<P> {}

/// In `waits_for`: named by `track`, and so not to be learned.
const NAMED: u32 = 1 << 31;

/// What became of a notification at this entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Notify {
    Effect(NotifyEffect),
    Duplicate(Count),
    /// The same, and the lease is still to come, if it is: nothing is known of that read.
    EarlyDuplicate,
    /// The lease has ended, but this consumer had been counted before.
    LateDuplicate(Outcome),
}

impl<P> LeaseEntry<P> {
    /// A lease that runs (or, with a word to that effect and no payload, one that has ended at once).
    pub(crate) fn new(word: Word, terms: &Terms, now: u64, payload: Option<P>) -> Self {
        LeaseEntry {
            word: AtomicU64::new(word.0),
            stamp: AtomicU64::new(now),
            weight: AtomicU32::new(terms.weight),
            waits_for: AtomicU32::new(terms.waits_for.map_or(0, |consumer| consumer.get() | NAMED)),
            consumers: ConsumerSet::new(),
            payload: UnsafeCell::new(payload),
        }
    }

    /// A placeholder for a lease of which a message came first; dropped at `drop_at`.
    pub(crate) fn early(drop_at: u64) -> Self {
        Self::new(Word::EARLY, &Terms::until(Timestamp::ZERO), drop_at, None)
    }

    /// The payload of an entry that was never published.
    pub(crate) fn into_payload(self) -> Option<P> {
        // SAFETY: `self` is owned.
        self.payload.with_mut(|payload| unsafe { (*payload).take() })
    }

    pub(crate) fn load(&self) -> Word {
        // Acquire: pairs with the Release of `apply`, so that what the word says is there (the stamp and
        // the weight of an armed entry) is seen.
        Word(self.word.load(Ordering::Acquire))
    }

    /// The one loop around the pure functions. Lock-free: an exchange fails only because another one has
    /// succeeded. The word is changed in no other way.
    fn apply<E>(&self, step: impl Fn(Word) -> Step<E>) -> E {
        self.apply_from(self.load(), step)
    }

    /// As [`apply`](Self::apply), by a caller who has just seen the word, and so need not load it again.
    fn apply_from<E>(&self, mut seen: Word, step: impl Fn(Word) -> Step<E>) -> E {
        loop {
            match step(seen) {
                Step::Keep(effect) => return effect,
                // AcqRel: Release hands on what this thread did before (the payload written by the armer, the
                // reads of the blocks by a consumer or a transfer); Acquire is the partner of that for
                // whoever takes the payload. Acquire on failure: the next step looks at what is there.
                Step::Change(new, effect) => {
                    match self.word.compare_exchange(seen.0, new.0, Ordering::AcqRel, Ordering::Acquire) {
                        Ok(_) => return effect,
                        Err(now) => seen = Word(now),
                    }
                }
            }
        }
    }

    /// `consumer` has read.
    pub(crate) fn notify(&self, consumer: ConsumerId, told: u32, tombstone_until: u64) -> Notify {
        let word = self.load();
        if word.outcome().is_none() {
            if word.seen() == MAX_CONSUMERS && self.consumers.find(consumer).is_none() {
                // Before it takes room in the set.
                return Notify::Effect(NotifyEffect::TooMany);
            }
            if let Some(place) = self.consumers.claim(consumer) {
                let effect = self.apply_from(word, |word| word.notify(told, tombstone_until));
                if !matches!(effect, NotifyEffect::Late(_) | NotifyEffect::Gone | NotifyEffect::TooMany) {
                    place.set_counted();
                    self.learn(consumer);
                }
                return Notify::Effect(effect);
            }
        }
        // Ended, or claimed before. The word is read again: it may have ended since, and then what matters
        // is whether the claim was counted.
        let word = self.load();
        let counted = self.consumers.find(consumer).is_some_and(Place::is_counted);
        match word.outcome() {
            None if word.phase() == Phase::Gone => Notify::Effect(NotifyEffect::Gone),
            // Claimed a place in a race for the last one, and lost it.
            None if !counted && word.seen() == MAX_CONSUMERS => Notify::Effect(NotifyEffect::TooMany),
            None if matches!(word.phase(), Phase::Early | Phase::Arming) => Notify::EarlyDuplicate,
            None => Notify::Duplicate(word.count()),
            Some(outcome) if counted => Notify::LateDuplicate(outcome),
            Some(outcome) => Notify::Effect(NotifyEffect::Late(outcome)),
        }
    }

    pub(crate) fn set_expected(&self, expected: u32, tombstone_until: u64) -> ExpectEffect {
        self.apply(|word| word.set_expected(expected, tombstone_until))
    }

    pub(crate) fn renew(&self, deadline: u64, by: Option<ConsumerId>, now: u64) -> RenewEffect {
        let effect = self.apply(|word| word.renew(deadline, now));
        if let (Some(consumer), false) = (by, matches!(effect, RenewEffect::Late(_) | RenewEffect::Gone)) {
            self.learn(consumer);
        }
        effect
    }

    pub(crate) fn abort(&self, tombstone_until: u64) -> AbortEffect {
        self.apply(|word| word.abort(tombstone_until))
    }

    pub(crate) fn expire(&self, tombstone_until: u64) -> AbortEffect {
        self.apply(|word| word.expire(tombstone_until))
    }

    pub(crate) fn sweep(&self, now: u64, hold: bool, tombstone_until: u64) -> SweepEffect {
        // The stamp is read after the word: if the entry was armed in between, the exchange fails.
        self.apply(|word| word.sweep(now, self.stamp(), hold, tombstone_until))
    }

    /// When a sweep has something to do with this entry.
    pub(crate) fn due(&self) -> u64 {
        self.load().due(self.stamp())
    }

    pub(crate) fn begin_transfer(&self) -> BeginEffect {
        self.apply(Word::begin_transfer)
    }

    pub(crate) fn end_transfer(&self, claim: bool, tombstone_until: u64) -> EndEffect {
        self.apply(|word| word.end_transfer(claim, tombstone_until))
    }

    /// Drops an early entry that waits for a `track`, whatever the time.
    pub(crate) fn drop_early(&self) -> bool {
        self.apply(|word| word.sweep(u64::MAX, 0, true, 0).only_early()) == SweepEffect::EarlyDropped
    }

    /// Claims an early entry for a `track`.
    pub(crate) fn arm(&self) -> ArmEffect {
        self.apply(Word::arm)
    }

    /// The second half of a `track` on an early entry, by the caller whose [`arm`](Self::arm) succeeded.
    pub(crate) fn finish_arming(
        &self,
        terms: &Terms,
        payload: P,
        now: u64,
        tombstone_until: u64,
    ) -> (Word, Option<End>) {
        // SAFETY: while the phase is `Arming`, the payload is the armer's alone.
        self.payload.with_mut(|at| unsafe { *at = Some(payload) });
        // Relaxed: published by the exchange below.
        self.stamp.store(now, Ordering::Relaxed);
        self.weight.store(terms.weight, Ordering::Relaxed);
        if let Some(consumer) = terms.waits_for {
            self.waits_for.swap(consumer.get() | NAMED, Ordering::Relaxed);
        }
        self.apply(|word| {
            let (new, end) = word.finish_arming(terms.deadline.as_millis(), terms.expected, tombstone_until);
            Step::Change(new, (new, end))
        })
    }

    /// Takes the payload.
    ///
    /// # Safety
    /// The caller made the transition that released it: an [`End`] with `released`, a
    /// [`EndEffect::Release`] or a [`SweepEffect::Claimed`] of this entry.
    pub(crate) unsafe fn take_payload(&self) -> Option<P> {
        // SAFETY: such a transition is made once per lease; its Acquire orders this after the write.
        self.payload.with_mut(|payload| unsafe { (*payload).take() })
    }

    /// In ms; when the lease was tracked, or when the early entry is dropped.
    pub(crate) fn stamp(&self) -> u64 {
        // Relaxed: the word was read before, see `load`.
        self.stamp.load(Ordering::Relaxed)
    }

    pub(crate) fn weight(&self) -> u32 {
        // Relaxed: as for the stamp.
        self.weight.load(Ordering::Relaxed)
    }

    pub(crate) fn waits_for(&self) -> Option<ConsumerId> {
        // Relaxed: a consumer learned a moment ago may be missed; its lease then ends by its deadline.
        ConsumerId::new(self.waits_for.load(Ordering::Relaxed) & !NAMED)
    }

    /// The latest one that was heard of is the one it waits for: a request may be given to another engine.
    fn learn(&self, consumer: ConsumerId) {
        // Relaxed, both: a word of its own that says nothing about other memory. The load keeps repeated
        // heartbeats from writing. If the exchange fails, a name or another consumer has come in between.
        let seen = self.waits_for.load(Ordering::Relaxed);
        if seen & NAMED == 0 && seen != consumer.get() {
            let _ = self.waits_for.compare_exchange(seen, consumer.get(), Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Who has been counted.
    pub(crate) fn counted(&self) -> Vec<ConsumerId> {
        let mut counted = Vec::new();
        self.consumers.each(|place| {
            if place.is_counted() {
                counted.extend(ConsumerId::new(place.consumer()));
            }
        });
        counted
    }
}

impl Step<SweepEffect> {
    /// Leaves everything but the drop of an early entry undone.
    fn only_early(self) -> Self {
        match self {
            Step::Change(_, SweepEffect::EarlyDropped) => self,
            _ => Step::Keep(SweepEffect::NotBefore(0)),
        }
    }
}

const INLINE: usize = if cfg!(kvlease_loom) { 2 } else { 8 };
const CHUNK: usize = if cfg!(kvlease_loom) { 1 } else { 30 };

/// A grow-only set of consumers: eight inline, then chunks of thirty.
///
/// Insert-only linear scan: each place is claimed once, by compare-exchange, in order, so of two threads
/// that claim for the same consumer one gets a place, and the other one finds it there. A claim says that a
/// message of this consumer has come; once the word has counted it, the place is marked as counted.
struct ConsumerSet {
    inline: [Place; INLINE],
    more: AtomicPtr<Chunk>,
}

struct Chunk {
    places: [Place; CHUNK],
    more: AtomicPtr<Chunk>,
}

/// `counted:1 | consumer:31`; 0 while it is free.
struct Place(AtomicU32);

const COUNTED: u32 = 1 << 31;

// Relaxed, all accesses to a place: it is a word of its own, and says nothing about other memory.
impl Place {
    fn free() -> Self {
        Place(AtomicU32::new(0))
    }

    fn consumer(&self) -> u32 {
        self.0.load(Ordering::Relaxed) & !COUNTED
    }

    /// Claims a free place; or says who has it.
    fn claim(&self, id: u32) -> Result<(), u32> {
        self.0.compare_exchange(0, id, Ordering::Relaxed, Ordering::Relaxed).map(drop).map_err(|now| now & !COUNTED)
    }

    fn set_counted(&self) {
        self.0.fetch_or(COUNTED, Ordering::Relaxed);
    }

    fn is_counted(&self) -> bool {
        self.0.load(Ordering::Relaxed) & COUNTED != 0
    }
}

enum Scan<'a> {
    Claimed(&'a Place),
    Found(&'a Place),
    Absent,
}

impl ConsumerSet {
    fn new() -> Self {
        ConsumerSet { inline: std::array::from_fn(|_| Place::free()), more: AtomicPtr::new(ptr::null_mut()) }
    }

    /// A place for this consumer, if it has none.
    fn claim(&self, consumer: ConsumerId) -> Option<&Place> {
        match self.scan(consumer.get(), true) {
            Scan::Claimed(place) => Some(place),
            Scan::Found(_) | Scan::Absent => None,
        }
    }

    fn find(&self, consumer: ConsumerId) -> Option<&Place> {
        match self.scan(consumer.get(), false) {
            Scan::Found(place) => Some(place),
            Scan::Claimed(_) | Scan::Absent => None,
        }
    }

    fn each(&self, mut look: impl FnMut(&Place)) {
        self.inline.iter().for_each(&mut look);
        // Acquire: as in `scan`.
        let mut next = self.more.load(Ordering::Acquire);
        // SAFETY: null, or published, never changed, and freed only with the set.
        while let Some(chunk) = unsafe { next.as_ref() } {
            chunk.places.iter().for_each(&mut look);
            next = chunk.more.load(Ordering::Acquire);
        }
    }

    fn scan(&self, id: u32, claim: bool) -> Scan<'_> {
        let mut places: &[Place] = &self.inline;
        let mut more = &self.more;
        loop {
            for place in places {
                let mut owner = place.consumer();
                if owner == 0 {
                    if !claim {
                        return Scan::Absent;
                    }
                    match place.claim(id) {
                        Ok(()) => return Scan::Claimed(place),
                        Err(other) => owner = other,
                    }
                }
                if owner == id {
                    return Scan::Found(place);
                }
            }
            // Acquire: pairs with the Release below.
            let mut next = more.load(Ordering::Acquire);
            if next.is_null() {
                if !claim {
                    return Scan::Absent;
                }
                let new = Box::into_raw(Box::new(Chunk {
                    places: std::array::from_fn(|_| Place::free()),
                    more: AtomicPtr::new(ptr::null_mut()),
                }));
                // Release: publishes the chunk. Acquire on failure: we go on in the other's.
                match more.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => next = new,
                    Err(other) => {
                        // SAFETY: made above, and not published.
                        drop(unsafe { Box::from_raw(new) });
                        next = other;
                    }
                }
            }
            // SAFETY: published, never changed, and freed only with the set.
            let chunk = unsafe { &*next };
            places = &chunk.places;
            more = &chunk.more;
        }
    }
}

impl Drop for ConsumerSet {
    fn drop(&mut self) {
        // Relaxed, both: `&mut self`.
        let mut at = self.more.load(Ordering::Relaxed);
        while !at.is_null() {
            // SAFETY: each chunk is a box that this set owns alone.
            let chunk = unsafe { Box::from_raw(at) };
            at = chunk.more.load(Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(kvlease_loom)))]
mod tests {
    use super::super::word::Phase;
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicUsize;

    fn consumer(n: u32) -> ConsumerId {
        ConsumerId::new(n).unwrap()
    }

    /// Until 100, of which only what the word does not hold matters to `new`.
    fn terms(waits_for: Option<ConsumerId>) -> Terms {
        Terms { waits_for, ..Terms::until(Timestamp::from_millis(100)) }
    }

    fn chunks(set: &ConsumerSet) -> usize {
        let mut count = 0;
        let mut at = set.more.load(Ordering::Acquire);
        // SAFETY: published chunks live as long as the set.
        while let Some(chunk) = unsafe { at.as_ref() } {
            count += 1;
            at = chunk.more.load(Ordering::Acquire);
        }
        count
    }

    #[test]
    fn a_set_of_any_size_holds_each_consumer_once() {
        for size in [1, INLINE, INLINE + 1, INLINE + CHUNK, INLINE + CHUNK + 1, 255] {
            let set = ConsumerSet::new();
            // Neither in order nor dense.
            let members: Vec<_> =
                (0..size as u32).map(|n| consumer((n.wrapping_mul(2_654_435_761) >> 1) + 1)).collect();
            for (i, member) in members.iter().enumerate() {
                assert!(set.find(*member).is_none(), "{i} of {size}");
                assert!(set.claim(*member).is_some(), "{i} of {size}");
                assert!(
                    members[..=i].iter().all(|m| set.find(*m).is_some() && set.claim(*m).is_none()),
                    "{i} of {size}"
                );
            }
            assert!(set.find(consumer(2)).is_none());
            assert_eq!(chunks(&set), size.saturating_sub(INLINE).div_ceil(CHUNK), "{size}");
        }
    }

    #[test]
    fn of_threads_that_insert_the_same_consumers_one_wins_each() {
        const THREADS: usize = 4;
        let members = if cfg!(miri) { INLINE as u32 + 3 } else { 255 };
        for _ in 0..if cfg!(miri) { 1 } else { 50 } {
            let set = ConsumerSet::new();
            let wins: Vec<_> = (0..members).map(|_| AtomicUsize::new(0)).collect();
            let barrier = Barrier::new(THREADS);
            std::thread::scope(|s| {
                for t in 0..THREADS as u32 {
                    let (set, wins, barrier) = (&set, &wins, &barrier);
                    s.spawn(move || {
                        barrier.wait();
                        // Two in the same order, two from elsewhere.
                        for i in 0..members {
                            let n = (i + t / 2 * 100) % members;
                            if set.claim(consumer(n + 1)).is_some() {
                                wins[n as usize].fetch_add(1, Ordering::Relaxed);
                            }
                            assert!(set.find(consumer(n + 1)).is_some());
                        }
                    });
                }
            });
            assert!(wins.iter().all(|n| n.load(Ordering::Relaxed) == 1));
            assert_eq!(chunks(&set), (members as usize - INLINE).div_ceil(CHUNK));
        }
    }

    #[test]
    fn a_repeated_consumer_is_a_duplicate_and_a_256th_one_too_many() {
        let lease = LeaseEntry::new(Word::leased(100, 0), &terms(None), 0, Some(()));
        for n in 1..=255 {
            let count = Count { seen: n, expected: None };
            assert_eq!(lease.notify(consumer(n), 0, 200), Notify::Effect(NotifyEffect::Counted(count)));
            assert_eq!(lease.notify(consumer(n), 0, 200), Notify::Duplicate(count));
        }
        assert_eq!(lease.notify(consumer(256), 0, 200), Notify::Effect(NotifyEffect::TooMany));
        assert!(lease.consumers.find(consumer(256)).is_none(), "it took no room");
        assert_eq!(lease.notify(consumer(1), 0, 200), Notify::Duplicate(Count { seen: 255, expected: None }));
        let end = End { outcome: Outcome::Completed, released: true, was_overdue: false };
        assert_eq!(lease.set_expected(255, 200), ExpectEffect::Ended(end));
        assert_eq!(lease.notify(consumer(1), 0, 200), Notify::LateDuplicate(Outcome::Completed));
        assert_eq!(lease.notify(consumer(256), 0, 200), Notify::Effect(NotifyEffect::Late(Outcome::Completed)));
    }

    #[test]
    fn a_claim_is_marked_only_when_it_was_counted() {
        let lease = LeaseEntry::new(Word::leased(100, 2), &terms(None), 0, Some(()));
        lease.notify(consumer(1), 0, 200);
        // A claim that a sweep overtakes.
        assert!(lease.consumers.claim(consumer(2)).is_some());
        assert!(matches!(lease.abort(200), AbortEffect::Ended(_)));
        assert_eq!(lease.notify(consumer(1), 0, 200), Notify::LateDuplicate(Outcome::Aborted));
        assert_eq!(lease.notify(consumer(2), 0, 200), Notify::Effect(NotifyEffect::Late(Outcome::Aborted)));
        assert_eq!(lease.notify(consumer(3), 0, 200), Notify::Effect(NotifyEffect::Late(Outcome::Aborted)));
        assert_eq!(lease.consumers.find(consumer(1)).unwrap().consumer(), 1, "the mark is no part of the number");
        assert!(lease.consumers.find(consumer(3)).is_none(), "what comes late takes no room");
    }

    #[test]
    fn a_lease_waits_for_the_latest_that_was_heard_of_unless_one_was_named() {
        let named = LeaseEntry::new(Word::leased(100, 3), &terms(Some(consumer(9))), 0, Some(()));
        named.notify(consumer(1), 0, 200);
        assert_eq!(named.waits_for(), Some(consumer(9)));

        let open = LeaseEntry::new(Word::leased(100, 3), &terms(None), 0, Some(()));
        assert_eq!(open.waits_for(), None);
        open.renew(50, Some(consumer(2)), 0);
        assert_eq!(open.waits_for(), Some(consumer(2)));
        open.notify(consumer(1), 0, 200);
        assert_eq!(open.waits_for(), Some(consumer(1)));

        let ended = LeaseEntry::new(Word::leased(100, 3), &terms(None), 0, Some(()));
        ended.abort(200);
        ended.notify(consumer(1), 0, 200);
        ended.renew(500, Some(consumer(1)), 0);
        assert_eq!(ended.waits_for(), None, "what comes late teaches nothing");
    }

    #[test]
    fn an_early_entry_is_armed_once_and_keeps_what_was_stashed() {
        let entry = LeaseEntry::early(70);
        assert_eq!((entry.stamp(), entry.due()), (70, 70));
        assert_eq!(entry.notify(consumer(1), 0, 200), Notify::Effect(NotifyEffect::Early));
        assert_eq!(entry.renew(120, Some(consumer(1)), 0), RenewEffect::Early);
        assert_eq!(entry.arm(), ArmEffect::Armed);
        assert_eq!(entry.arm(), ArmEffect::AlreadyTracked);
        assert!(!entry.drop_early(), "somebody is arming it");
        assert_eq!(entry.notify(consumer(2), 0, 200), Notify::Effect(NotifyEffect::Early));
        let (word, end) = entry.finish_arming(&Terms { weight: 7, ..terms(None).consumers(3) }, "payload", 50, 200);
        assert_eq!((word, end), (Word::new(Phase::Leased, 120, 2, 3, 0), None));
        assert_eq!((entry.load(), entry.stamp(), entry.weight()), (word, 50, 7));
        assert_eq!((entry.waits_for(), entry.counted()), (Some(consumer(2)), vec![consumer(1), consumer(2)]));
        assert!(matches!(entry.notify(consumer(2), 0, 200), Notify::Duplicate(_)));
        assert!(matches!(entry.notify(consumer(3), 0, 200), Notify::Effect(NotifyEffect::Ended(_))));
        // SAFETY: the notification above ended the lease, with no transfer in flight.
        assert_eq!(unsafe { entry.take_payload() }, Some("payload"));
    }

    #[test]
    fn an_early_entry_is_dropped_once_and_is_then_gone_for_all() {
        let entry = LeaseEntry::<()>::early(70);
        entry.notify(consumer(1), 0, 200);
        assert_eq!(entry.sweep(69, false, 200), SweepEffect::NotBefore(70));
        assert!(entry.drop_early() && !entry.drop_early());
        assert_eq!(entry.arm(), ArmEffect::Gone);
        assert_eq!(entry.notify(consumer(1), 0, 200), Notify::Effect(NotifyEffect::Gone));
        assert_eq!(entry.notify(consumer(2), 0, 200), Notify::Effect(NotifyEffect::Gone));
        assert_eq!(entry.abort(200), AbortEffect::Gone);
        assert_eq!(entry.sweep(0, false, 200), SweepEffect::Remove { tombstone: false });
    }

    #[test]
    fn of_threads_that_end_a_lease_one_has_the_payload() {
        for _ in 0..if cfg!(miri) { 3 } else { 2_000 } {
            // A box, so that a payload taken twice, or not after its write, is seen by the tools, too.
            let lease = LeaseEntry::<Box<u32>>::early(1_000);
            let taken = AtomicUsize::new(0);
            let take = || {
                // SAFETY: each caller has just been told that the payload is its own.
                let payload = unsafe { lease.take_payload() };
                assert_eq!(payload.as_deref(), Some(&1));
                assert_eq!(taken.fetch_add(1, Ordering::Relaxed), 0);
            };
            std::thread::scope(|s| {
                s.spawn(|| {
                    assert_eq!(lease.arm(), ArmEffect::Armed);
                    let armed = lease.finish_arming(&terms(None).consumers(2), Box::new(1), 0, 200);
                    if armed.1.is_some_and(|end| end.released) {
                        take();
                    }
                });
                for n in 1..=2 {
                    let (lease, take) = (&lease, &take);
                    s.spawn(move || {
                        if lease.begin_transfer() == BeginEffect::Begun
                            && matches!(lease.end_transfer(true, 200), EndEffect::Release(..))
                        {
                            take();
                        }
                        if let Notify::Effect(NotifyEffect::Ended(End { released: true, .. })) =
                            lease.notify(consumer(n), 0, 200)
                        {
                            take();
                        }
                    });
                }
                if let SweepEffect::Ended(End { released: true, .. }, _) = lease.sweep(120, false, 200) {
                    take();
                }
            });
            if lease.load().is_live() {
                assert!(matches!(lease.abort(200), AbortEffect::Ended(_)));
                take();
            }
            assert_eq!(taken.load(Ordering::Relaxed), 1);
        }
    }
}
