//! The 64-bit word of a lease, as pure functions: an old word and an event give a new word and an effect.
//!
//! ```text
//! phase:3 | deadline:38 (ms) | seen:8 | expected:8 | transfers:7
//! ```
//!
//! All that decides a race is in this one word. The functions here know nothing of memory or threads;
//! [`entry`](super::entry) applies them by compare-exchange, so whoever's exchange succeeds has won, and
//! nothing else has to agree with it.
//!
//! ```text
//!             track                      last notify, abort, sweep past the deadline
//!  Early --> Arming --> Leased <-> Overdue ------------> Completed | Aborted | Expired
//!    |         |                                              ^
//!    |         +--- what was stashed decides at once ---------+
//!    +--> Gone (no track came in time)
//! ```
//!
//! The fields mean, by phase:
//!
//! | phase | deadline | seen | expected | transfers |
//! |---|---|---|---|---|
//! | Early, Arming | stashed renewal, or 0 | counted | told by a message, or 0 | flags: abort asked for, nobody expected |
//! | Leased, Overdue | of the lease | counted | 0: not known yet | in flight |
//! | Completed, Expired, Aborted | of the tombstone | as it was | as it was | in flight; 127: all ended, release unclaimed |
//! | Gone | – | – | – | – |

use crate::Outcome;

/// The latest time that fits into the word. One more is [`NEVER`].
pub(crate) const MAX_TIME: u64 = (1 << 38) - 2;
/// No time: of what is not waited for.
pub(crate) const NEVER: u64 = (1 << 38) - 1;
/// The most consumers that can be counted.
pub(crate) const MAX_CONSUMERS: u32 = 255;
/// The most transfers that can be in flight.
pub(crate) const MAX_TRANSFERS: u64 = 126;
/// In a terminal phase: the last transfer was ended by dropping its guard; the release can be claimed.
const UNCLAIMED: u64 = 127;
/// In an early phase, in place of transfers: the coming `track` is to be aborted.
const ABORT: u64 = 1;
/// In an early phase, in place of transfers: nobody is expected.
const NOBODY: u64 = 2;

const EXPECTED_SHIFT: u32 = 7;
const SEEN_SHIFT: u32 = 15;
const DEADLINE_SHIFT: u32 = 23;
const PHASE_SHIFT: u32 = 61;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// A message came before `track`.
    Early = 0,
    /// A `track` has claimed the early entry and is writing its payload.
    Arming = 1,
    Leased = 2,
    /// Past its deadline, reported, and kept.
    Overdue = 3,
    Completed = 4,
    Expired = 5,
    Aborted = 6,
    /// An early entry that was dropped: as good as absent.
    Gone = 7,
}

/// What an event does to a word: nothing, or an exchange, and what it means for the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step<E> {
    Keep(E),
    Change(Word, E),
}

/// The consumers of a lease, as counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Count {
    pub(crate) seen: u32,
    pub(crate) expected: Option<u32>,
}

/// What ended a lease, and whether its payload can go now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct End {
    pub(crate) outcome: Outcome,
    /// No transfer is in flight.
    pub(crate) released: bool,
    /// It was overdue, so the deadline index does not know of it.
    pub(crate) was_overdue: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotifyEffect {
    Counted(Count),
    Early,
    Ended(End),
    /// As `Counted` or `Ended`, but the message told another count than the one that stands.
    Conflict {
        stands: u32,
        seen: u32,
        end: Option<End>,
        early: bool,
    },
    Late(Outcome),
    TooMany,
    Gone,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExpectEffect {
    Set { seen: u32 },
    Early,
    Ended(End),
    Conflict { stands: u32 },
    Late(Outcome),
    Gone,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RenewEffect {
    /// `revived`: it was overdue, so the deadline index has forgotten it.
    Extended {
        revived: bool,
    },
    Unchanged {
        deadline: u64,
    },
    Early,
    Late(Outcome),
    Gone,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AbortEffect {
    Ended(End),
    Early,
    Late(Outcome),
    Gone,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SweepEffect {
    /// Nothing to do before this time ([`NEVER`]: somebody else will see to it).
    NotBefore(u64),
    /// The lease has ended. Look again at this time.
    Ended(End, u64),
    /// Reported overdue from now on.
    Overdue,
    /// The release that a dropped guard left. Look again at this time.
    Claimed(Outcome, u64),
    /// Nobody tracked it in time; now [`Phase::Gone`].
    EarlyDropped,
    /// A tombstone that has served its time, or an entry gone: remove it.
    Remove { tombstone: bool },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BeginEffect {
    Begun,
    NotLeased,
    Late(Outcome),
    TooMany,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EndEffect {
    /// Others are in flight, or the lease lives on.
    Nothing,
    /// It was the last one of an ended lease: the caller takes the payload. Look again at this time.
    Release(Outcome, u64),
    /// It was the last one of an ended lease, and the next sweep takes the payload.
    Left,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ArmEffect {
    Armed,
    AlreadyTracked,
    TransferInFlight,
    /// An ended lease of which nothing is left but the memory.
    Tombstone,
    Gone,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Word(pub(crate) u64);

impl std::fmt::Debug for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:?}(until {}, {} of {}, {} in flight)",
            self.phase(),
            self.deadline(),
            self.seen(),
            self.expected(),
            self.transfers()
        )
    }
}

impl Word {
    pub(crate) const fn new(phase: Phase, deadline: u64, seen: u32, expected: u32, transfers: u64) -> Self {
        debug_assert!(deadline <= NEVER && seen <= 255 && expected <= 255 && transfers <= 127);
        Word(
            (phase as u64) << PHASE_SHIFT
                | deadline << DEADLINE_SHIFT
                | (seen as u64) << SEEN_SHIFT
                | (expected as u64) << EXPECTED_SHIFT
                | transfers,
        )
    }

    /// Nothing has been stashed yet.
    pub(crate) const EARLY: Word = Word::new(Phase::Early, 0, 0, 0, 0);

    /// A fresh lease: `expected` 0 stands for "not known yet".
    pub(crate) const fn leased(deadline: u64, expected: u32) -> Self {
        Word::new(Phase::Leased, deadline, 0, expected, 0)
    }

    /// A lease for which nobody was expected.
    pub(crate) const fn completed_at_once(tombstone_until: u64) -> Self {
        Word::new(Phase::Completed, tombstone_until, 0, 0, 0)
    }

    pub(crate) const fn phase(self) -> Phase {
        match self.0 >> PHASE_SHIFT {
            0 => Phase::Early,
            1 => Phase::Arming,
            2 => Phase::Leased,
            3 => Phase::Overdue,
            4 => Phase::Completed,
            5 => Phase::Expired,
            6 => Phase::Aborted,
            _ => Phase::Gone,
        }
    }

    pub(crate) const fn deadline(self) -> u64 {
        self.0 >> DEADLINE_SHIFT & NEVER
    }

    pub(crate) const fn seen(self) -> u32 {
        (self.0 >> SEEN_SHIFT & 255) as u32
    }

    pub(crate) const fn expected(self) -> u32 {
        (self.0 >> EXPECTED_SHIFT & 255) as u32
    }

    pub(crate) const fn transfers(self) -> u64 {
        self.0 & 127
    }

    pub(crate) fn count(self) -> Count {
        let expected = match self.expected() {
            0 if self.told_nobody() => Some(0),
            0 => None,
            n => Some(n),
        };
        Count { seen: self.seen(), expected }
    }

    /// A message that came before `track` has said that nobody is expected.
    fn told_nobody(self) -> bool {
        matches!(self.phase(), Phase::Early | Phase::Arming) && self.transfers() & NOBODY != 0
    }

    pub(crate) const fn outcome(self) -> Option<Outcome> {
        match self.phase() {
            Phase::Completed => Some(Outcome::Completed),
            Phase::Expired => Some(Outcome::Expired),
            Phase::Aborted => Some(Outcome::Aborted),
            _ => None,
        }
    }

    pub(crate) const fn is_live(self) -> bool {
        matches!(self.phase(), Phase::Leased | Phase::Overdue)
    }

    fn with_phase(self, phase: Phase) -> Self {
        Word(self.0 & !(7 << PHASE_SHIFT) | (phase as u64) << PHASE_SHIFT)
    }

    fn with_deadline(self, deadline: u64) -> Self {
        Word(self.0 & !(NEVER << DEADLINE_SHIFT) | deadline << DEADLINE_SHIFT)
    }

    fn with_expected(self, expected: u32) -> Self {
        Word(self.0 & !(255 << EXPECTED_SHIFT) | (expected as u64) << EXPECTED_SHIFT)
    }

    fn with_transfers(self, transfers: u64) -> Self {
        Word(self.0 & !127 | transfers)
    }

    /// The caller has checked that `seen` is below 255.
    fn counted(self) -> Self {
        Word(self.0 + (1 << SEEN_SHIFT))
    }

    /// The end of a live lease. It is remembered until `tombstone_until`, but not for less than it would
    /// have lived; so what the deadline index holds for it stays a lower bound.
    fn end(self, outcome: Outcome, tombstone_until: u64) -> (Word, End) {
        let phase = match outcome {
            Outcome::Completed => Phase::Completed,
            Outcome::Expired => Phase::Expired,
            Outcome::Aborted => Phase::Aborted,
        };
        let released = self.transfers() == 0;
        // With transfers in flight it is no tombstone yet; the end of the last one sets the time.
        let deadline = if released { self.deadline().max(tombstone_until) } else { self.deadline() };
        let end = End { outcome, released, was_overdue: self.phase() == Phase::Overdue };
        (self.with_phase(phase).with_deadline(deadline), end)
    }

    /// A consumer that has not been counted yet has read; its message told `told`, or 0 for nothing.
    pub(crate) fn notify(self, told: u32, tombstone_until: u64) -> Step<NotifyEffect> {
        if let Some(outcome) = self.outcome() {
            return Step::Keep(NotifyEffect::Late(outcome));
        }
        if self.phase() == Phase::Gone {
            return Step::Keep(NotifyEffect::Gone);
        }
        if self.seen() == MAX_CONSUMERS {
            return Step::Keep(NotifyEffect::TooMany);
        }
        let early = !self.is_live();
        let stands = match self.expected() {
            0 if self.told_nobody() => 0,
            0 => told,
            known => known,
        };
        let new = self.with_expected(stands).counted();
        let conflict = told != 0 && told != stands;
        if early {
            let effect = match conflict {
                true => NotifyEffect::Conflict { stands, seen: new.seen(), end: None, early },
                false => NotifyEffect::Early,
            };
            return Step::Change(new, effect);
        }
        let (new, end) = match stands != 0 && new.seen() >= stands {
            true => {
                let (new, end) = new.end(Outcome::Completed, tombstone_until);
                (new, Some(end))
            }
            false => (new, None),
        };
        let effect = match (conflict, end) {
            (true, end) => NotifyEffect::Conflict { stands, seen: new.seen(), end, early },
            (false, Some(end)) => NotifyEffect::Ended(end),
            (false, None) => NotifyEffect::Counted(new.count()),
        };
        Step::Change(new, effect)
    }

    /// `expected` consumers (0 to 255) are expected.
    pub(crate) fn set_expected(self, expected: u32, tombstone_until: u64) -> Step<ExpectEffect> {
        match self.phase() {
            Phase::Gone => Step::Keep(ExpectEffect::Gone),
            Phase::Early | Phase::Arming => match (self.expected(), expected) {
                (0, 0) => Step::Change(self.with_transfers(self.transfers() | NOBODY), ExpectEffect::Early),
                (0, n) if !self.told_nobody() => Step::Change(self.with_expected(n), ExpectEffect::Early),
                (known, n) if known == n => Step::Keep(ExpectEffect::Early),
                (stands, _) => Step::Keep(ExpectEffect::Conflict { stands }),
            },
            Phase::Leased | Phase::Overdue => match self.expected() {
                0 if expected <= self.seen() => {
                    let (new, end) = self.with_expected(expected).end(Outcome::Completed, tombstone_until);
                    Step::Change(new, ExpectEffect::Ended(end))
                }
                0 => Step::Change(self.with_expected(expected), ExpectEffect::Set { seen: self.seen() }),
                known if known == expected => Step::Keep(ExpectEffect::Set { seen: self.seen() }),
                stands => Step::Keep(ExpectEffect::Conflict { stands }),
            },
            Phase::Completed => Step::Keep(ExpectEffect::Late(Outcome::Completed)),
            Phase::Expired => Step::Keep(ExpectEffect::Late(Outcome::Expired)),
            Phase::Aborted => Step::Keep(ExpectEffect::Late(Outcome::Aborted)),
        }
    }

    /// Not to end before `deadline`.
    pub(crate) fn renew(self, deadline: u64, now: u64) -> Step<RenewEffect> {
        match self.phase() {
            Phase::Gone => Step::Keep(RenewEffect::Gone),
            Phase::Early | Phase::Arming if deadline > self.deadline() => {
                Step::Change(self.with_deadline(deadline), RenewEffect::Early)
            }
            Phase::Early | Phase::Arming => Step::Keep(RenewEffect::Early),
            Phase::Leased if deadline > self.deadline() => {
                Step::Change(self.with_deadline(deadline), RenewEffect::Extended { revived: false })
            }
            Phase::Overdue if deadline > self.deadline() => {
                // Past `now` it is an ordinary lease again; else it stays what has been reported.
                let revived = deadline > now;
                let phase = if revived { Phase::Leased } else { Phase::Overdue };
                Step::Change(self.with_deadline(deadline).with_phase(phase), RenewEffect::Extended { revived })
            }
            Phase::Leased | Phase::Overdue => Step::Keep(RenewEffect::Unchanged { deadline: self.deadline() }),
            Phase::Completed => Step::Keep(RenewEffect::Late(Outcome::Completed)),
            Phase::Expired => Step::Keep(RenewEffect::Late(Outcome::Expired)),
            Phase::Aborted => Step::Keep(RenewEffect::Late(Outcome::Aborted)),
        }
    }

    /// The producer gives it up.
    pub(crate) fn abort(self, tombstone_until: u64) -> Step<AbortEffect> {
        match self.phase() {
            Phase::Gone => Step::Keep(AbortEffect::Gone),
            Phase::Early | Phase::Arming => {
                Step::Change(self.with_transfers(self.transfers() | ABORT), AbortEffect::Early)
            }
            _ => self.end_live(Outcome::Aborted, tombstone_until),
        }
    }

    /// Its decode engine is dead.
    pub(crate) fn expire(self, tombstone_until: u64) -> Step<AbortEffect> {
        match self.phase() {
            Phase::Gone => Step::Keep(AbortEffect::Gone),
            Phase::Early | Phase::Arming => Step::Keep(AbortEffect::Early),
            _ => self.end_live(Outcome::Expired, tombstone_until),
        }
    }

    fn end_live(self, outcome: Outcome, tombstone_until: u64) -> Step<AbortEffect> {
        match self.outcome() {
            Some(ended) => Step::Keep(AbortEffect::Late(ended)),
            None => {
                let (new, end) = self.end(outcome, tombstone_until);
                Step::Change(new, AbortEffect::Ended(end))
            }
        }
    }

    /// What is due at `now`. `stamp` is when an early entry is dropped; `hold` keeps overdue leases.
    pub(crate) fn sweep(self, now: u64, stamp: u64, hold: bool, tombstone_until: u64) -> Step<SweepEffect> {
        let deadline = self.deadline();
        match self.phase() {
            Phase::Gone => Step::Keep(SweepEffect::Remove { tombstone: false }),
            Phase::Early if stamp <= now => Step::Change(self.with_phase(Phase::Gone), SweepEffect::EarlyDropped),
            Phase::Early => Step::Keep(SweepEffect::NotBefore(stamp)),
            // Its `track` puts it into the deadline index when it is done.
            Phase::Arming => Step::Keep(SweepEffect::NotBefore(NEVER)),
            Phase::Leased if deadline > now => Step::Keep(SweepEffect::NotBefore(deadline)),
            Phase::Leased if hold => Step::Change(self.with_phase(Phase::Overdue), SweepEffect::Overdue),
            Phase::Leased => {
                let (new, end) = self.end(Outcome::Expired, tombstone_until);
                let again = if end.released { new.deadline() } else { NEVER };
                Step::Change(new, SweepEffect::Ended(end, again))
            }
            Phase::Overdue => Step::Keep(SweepEffect::NotBefore(NEVER)),
            Phase::Completed | Phase::Expired | Phase::Aborted => match (self.transfers(), self.outcome()) {
                (0, _) if deadline <= now => Step::Keep(SweepEffect::Remove { tombstone: true }),
                (0, _) => Step::Keep(SweepEffect::NotBefore(deadline)),
                (UNCLAIMED, Some(outcome)) => {
                    let new = self.with_transfers(0).with_deadline(deadline.max(tombstone_until));
                    Step::Change(new, SweepEffect::Claimed(outcome, new.deadline()))
                }
                _ => Step::Keep(SweepEffect::NotBefore(NEVER)),
            },
        }
    }

    /// When a sweep has something to do with it: [`sweep`](Self::sweep) without doing it.
    pub(crate) fn due(self, stamp: u64) -> u64 {
        match self.phase() {
            Phase::Gone => 0,
            Phase::Early => stamp,
            Phase::Leased => self.deadline(),
            Phase::Arming | Phase::Overdue => NEVER,
            Phase::Completed | Phase::Expired | Phase::Aborted => match self.transfers() {
                0 => self.deadline(),
                UNCLAIMED => 0,
                _ => NEVER,
            },
        }
    }

    /// Whether a dropped guard has left the release to the next sweep.
    pub(crate) fn is_unclaimed(self) -> bool {
        self.outcome().is_some() && self.transfers() == UNCLAIMED
    }

    /// The producer begins a transfer.
    pub(crate) fn begin_transfer(self) -> Step<BeginEffect> {
        match (self.outcome(), self.is_live()) {
            (Some(outcome), _) => Step::Keep(BeginEffect::Late(outcome)),
            (None, false) => Step::Keep(BeginEffect::NotLeased),
            (None, true) if self.transfers() >= MAX_TRANSFERS => Step::Keep(BeginEffect::TooMany),
            (None, true) => Step::Change(self.with_transfers(self.transfers() + 1), BeginEffect::Begun),
        }
    }

    /// A transfer has ended. With `claim` its caller takes the payload if it was the last one of an ended
    /// lease; without, that is left to the next sweep.
    pub(crate) fn end_transfer(self, claim: bool, tombstone_until: u64) -> Step<EndEffect> {
        match (self.transfers(), self.outcome()) {
            // Never: each guard ends once.
            (0 | UNCLAIMED, _) => Step::Keep(EndEffect::Nothing),
            (1, Some(outcome)) if claim => {
                let new = self.with_transfers(0).with_deadline(self.deadline().max(tombstone_until));
                Step::Change(new, EndEffect::Release(outcome, new.deadline()))
            }
            (1, Some(_)) => Step::Change(self.with_transfers(UNCLAIMED), EndEffect::Left),
            (n, _) => Step::Change(self.with_transfers(n - 1), EndEffect::Nothing),
        }
    }

    /// A `track` claims an early entry. Only one can.
    pub(crate) fn arm(self) -> Step<ArmEffect> {
        match self.phase() {
            Phase::Early => Step::Change(self.with_phase(Phase::Arming), ArmEffect::Armed),
            Phase::Arming | Phase::Leased | Phase::Overdue => Step::Keep(ArmEffect::AlreadyTracked),
            Phase::Completed | Phase::Expired | Phase::Aborted if self.transfers() > 0 => {
                Step::Keep(ArmEffect::TransferInFlight)
            }
            Phase::Completed | Phase::Expired | Phase::Aborted => Step::Keep(ArmEffect::Tombstone),
            Phase::Gone => Step::Keep(ArmEffect::Gone),
        }
    }

    /// The `track` that has armed it has written the payload. What was stashed counts, and may decide.
    pub(crate) fn finish_arming(
        self,
        deadline: u64,
        expected: Option<u32>,
        tombstone_until: u64,
    ) -> (Word, Option<End>) {
        let aborted = self.transfers() & ABORT != 0;
        let expected = expected.or(self.count().expected);
        let leased = Word::new(Phase::Leased, deadline.max(self.deadline()), self.seen(), expected.unwrap_or(0), 0);
        let outcome = match expected {
            _ if aborted => Outcome::Aborted,
            Some(n) if n <= self.seen() => Outcome::Completed,
            _ => return (leased, None),
        };
        let (new, end) = leased.end(outcome, tombstone_until);
        (new, Some(end))
    }
}

/// Every transition, and every refusal at its edge, against a table written by hand from the contract.
///
/// A row gives the word before, the event, the word after (packed here by plain arithmetic, not by the
/// functions under test) and the effect. A word that stays is a `Step::Keep`.
#[cfg(all(test, not(kvlease_loom)))]
mod tests {
    use super::Outcome::{Aborted as OutAborted, Completed as OutCompleted, Expired as OutExpired};
    use super::*;
    use std::fmt::Debug;

    // Phases by number.
    const EARLY: u64 = 0;
    const ARMING: u64 = 1;
    const LEASED: u64 = 2;
    const OVERDUE: u64 = 3;
    const COMPLETED: u64 = 4;
    const EXPIRED: u64 = 5;
    const ABORTED: u64 = 6;
    const GONE: u64 = 7;
    const ENDED: [(u64, Outcome); 3] = [(COMPLETED, OutCompleted), (EXPIRED, OutExpired), (ABORTED, OutAborted)];

    /// Until when what ends now is remembered.
    const TOMB: u64 = 9_000;
    const LAST: u64 = 274_877_906_942;

    /// phase:3 | deadline:38 | seen:8 | expected:8 | transfers:7
    fn w(phase: u64, deadline: u64, seen: u64, expected: u64, transfers: u64) -> Word {
        Word((((phase * 274_877_906_944 + deadline) * 256 + seen) * 256 + expected) * 128 + transfers)
    }

    fn end(outcome: Outcome) -> End {
        End { outcome, released: true, was_overdue: false }
    }

    #[track_caller]
    fn check<E: PartialEq + Debug>(rows: impl IntoIterator<Item = (Word, Step<E>, Step<E>)>) {
        for (i, (from, step, expected)) in rows.into_iter().enumerate() {
            assert_eq!(step, expected, "row {i}, from {from:?}");
        }
    }

    #[test]
    fn the_fields_lie_where_the_head_of_the_module_says() {
        for phase in [EARLY, ARMING, LEASED, OVERDUE, COMPLETED, EXPIRED, ABORTED, GONE] {
            for (deadline, seen, expected, transfers) in
                [(0, 0, 0, 0), (NEVER, 0, 0, 0), (0, 255, 0, 0), (0, 0, 255, 0), (0, 0, 0, 127), (NEVER, 255, 255, 127)]
            {
                let word = w(phase, deadline, seen, expected, transfers);
                assert_eq!(word.phase() as u64, phase);
                assert_eq!((word.deadline(), u64::from(word.seen())), (deadline, seen));
                assert_eq!((u64::from(word.expected()), word.transfers()), (expected, transfers));
                assert_eq!(Word::new(word.phase(), deadline, seen as u32, expected as u32, transfers), word);
                assert_eq!(word.is_live(), phase == LEASED || phase == OVERDUE);
                assert_eq!(word.outcome(), ENDED.iter().find(|e| e.0 == phase).map(|e| e.1));
                assert_eq!(word.is_unclaimed(), (COMPLETED..=ABORTED).contains(&phase) && transfers == 127);
            }
        }
        assert_eq!(Word::EARLY, w(EARLY, 0, 0, 0, 0));
        assert_eq!(Word::leased(LAST, 255), w(LEASED, LAST, 0, 255, 0));
        assert_eq!(Word::completed_at_once(TOMB), w(COMPLETED, TOMB, 0, 0, 0));
        assert_eq!((MAX_TIME, NEVER), (LAST, LAST + 1));
    }

    #[test]
    fn notify_does_what_the_table_says() {
        use NotifyEffect::*;
        use Step::{Change, Keep};
        let row = |from: Word, told, expected| (from, from.notify(told, TOMB), expected);
        let counted = |seen, expected: u32| Counted(Count { seen, expected: Some(expected).filter(|n| *n > 0) });
        let conflict = |stands, seen, end, early| Conflict { stands, seen, end, early };
        for phase in [EARLY, ARMING] {
            check([
                row(w(phase, 0, 0, 0, 0), 0, Change(w(phase, 0, 1, 0, 0), Early)),
                row(w(phase, 77, 3, 0, 1), 4, Change(w(phase, 77, 4, 4, 1), Early)),
                // However many have come: it is `track` that decides.
                row(w(phase, 0, 1, 2, 0), 2, Change(w(phase, 0, 2, 2, 0), Early)),
                row(w(phase, 0, 2, 2, 0), 0, Change(w(phase, 0, 3, 2, 0), Early)),
                row(w(phase, 0, 1, 2, 0), 3, Change(w(phase, 0, 2, 2, 0), conflict(2, 2, None, true))),
                // Nobody is expected, and that stands.
                row(w(phase, 0, 0, 0, 2), 0, Change(w(phase, 0, 1, 0, 2), Early)),
                row(w(phase, 0, 0, 0, 3), 1, Change(w(phase, 0, 1, 0, 3), conflict(0, 1, None, true))),
                row(w(phase, 5, 254, 0, 1), 0, Change(w(phase, 5, 255, 0, 1), Early)),
                row(w(phase, 5, 255, 0, 1), 0, Keep(TooMany)),
            ]);
        }
        for (phase, was_overdue) in [(LEASED, false), (OVERDUE, true)] {
            let ended = |released| End { outcome: OutCompleted, released, was_overdue };
            check([
                // Not the last.
                row(w(phase, 500, 0, 0, 0), 0, Change(w(phase, 500, 1, 0, 0), counted(1, 0))),
                row(w(phase, 500, 0, 2, 9), 0, Change(w(phase, 500, 1, 2, 9), counted(1, 2))),
                row(w(phase, 500, 0, 0, 0), 2, Change(w(phase, 500, 1, 2, 0), counted(1, 2))),
                row(w(phase, 500, 253, 255, 0), 255, Change(w(phase, 500, 254, 255, 0), counted(254, 255))),
                row(w(phase, 500, 254, 0, 0), 0, Change(w(phase, 500, 255, 0, 0), counted(255, 0))),
                row(w(phase, 500, 0, 3, 0), 2, Change(w(phase, 500, 1, 3, 0), conflict(3, 1, None, false))),
                // The last.
                row(w(phase, 500, 1, 2, 0), 0, Change(w(COMPLETED, TOMB, 2, 2, 0), Ended(ended(true)))),
                row(w(phase, 500, 1, 2, 0), 2, Change(w(COMPLETED, TOMB, 2, 2, 0), Ended(ended(true)))),
                row(w(phase, 9_001, 0, 1, 0), 0, Change(w(COMPLETED, 9_001, 1, 1, 0), Ended(ended(true)))),
                row(w(phase, 500, 0, 0, 0), 1, Change(w(COMPLETED, TOMB, 1, 1, 0), Ended(ended(true)))),
                row(w(phase, 500, 4, 0, 0), 3, Change(w(COMPLETED, TOMB, 5, 3, 0), Ended(ended(true)))),
                row(w(phase, 500, 254, 255, 0), 0, Change(w(COMPLETED, TOMB, 255, 255, 0), Ended(ended(true)))),
                // With transfers in flight it is no tombstone yet.
                row(w(phase, 500, 1, 2, 1), 0, Change(w(COMPLETED, 500, 2, 2, 1), Ended(ended(false)))),
                row(w(phase, 500, 1, 2, 126), 0, Change(w(COMPLETED, 500, 2, 2, 126), Ended(ended(false)))),
                row(
                    w(phase, 500, 1, 2, 0),
                    1,
                    Change(w(COMPLETED, TOMB, 2, 2, 0), conflict(2, 2, Some(ended(true)), false)),
                ),
                row(w(phase, 500, 255, 0, 0), 0, Keep(TooMany)),
                row(w(phase, 500, 255, 0, 3), 255, Keep(TooMany)),
            ]);
        }
        for (phase, outcome) in ENDED {
            for transfers in [0, 1, 126, 127] {
                check([
                    row(w(phase, 500, 1, 2, transfers), 0, Keep(Late(outcome))),
                    row(w(phase, 500, 255, 0, transfers), 7, Keep(Late(outcome))),
                ]);
            }
        }
        check([row(w(GONE, 0, 0, 0, 0), 0, Keep(Gone)), row(w(GONE, 5, 255, 1, 1), 1, Keep(Gone))]);
    }

    #[test]
    fn set_expected_does_what_the_table_says() {
        use ExpectEffect::*;
        use Step::{Change, Keep};
        let row = |from: Word, n, expected| (from, from.set_expected(n, TOMB), expected);
        for phase in [EARLY, ARMING] {
            check([
                row(w(phase, 7, 1, 0, 0), 2, Change(w(phase, 7, 1, 2, 0), Early)),
                row(w(phase, 7, 1, 0, 1), 255, Change(w(phase, 7, 1, 255, 1), Early)),
                row(w(phase, 7, 3, 0, 0), 2, Change(w(phase, 7, 3, 2, 0), Early)),
                row(w(phase, 7, 1, 0, 0), 0, Change(w(phase, 7, 1, 0, 2), Early)),
                row(w(phase, 7, 1, 0, 1), 0, Change(w(phase, 7, 1, 0, 3), Early)),
                row(w(phase, 7, 1, 2, 0), 2, Keep(Early)),
                row(w(phase, 7, 1, 2, 0), 3, Keep(Conflict { stands: 2 })),
                row(w(phase, 7, 1, 2, 0), 0, Keep(Conflict { stands: 2 })),
                row(w(phase, 7, 1, 0, 2), 1, Keep(Conflict { stands: 0 })),
            ]);
        }
        for (phase, was_overdue) in [(LEASED, false), (OVERDUE, true)] {
            let ended = |released| Ended(End { outcome: OutCompleted, released, was_overdue });
            check([
                row(w(phase, 7, 1, 0, 4), 2, Change(w(phase, 7, 1, 2, 4), Set { seen: 1 })),
                row(w(phase, 7, 254, 0, 0), 255, Change(w(phase, 7, 254, 255, 0), Set { seen: 254 })),
                row(w(phase, 7, 1, 2, 4), 2, Keep(Set { seen: 1 })),
                row(w(phase, 7, 1, 2, 0), 3, Keep(Conflict { stands: 2 })),
                row(w(phase, 7, 1, 2, 0), 0, Keep(Conflict { stands: 2 })),
                row(w(phase, 7, 0, 0, 0), 0, Change(w(COMPLETED, TOMB, 0, 0, 0), ended(true))),
                row(w(phase, 7, 2, 0, 0), 0, Change(w(COMPLETED, TOMB, 2, 0, 0), ended(true))),
                row(w(phase, 7, 2, 0, 0), 2, Change(w(COMPLETED, TOMB, 2, 2, 0), ended(true))),
                row(w(phase, LAST, 3, 0, 0), 2, Change(w(COMPLETED, LAST, 3, 2, 0), ended(true))),
                row(w(phase, 7, 255, 0, 126), 255, Change(w(COMPLETED, 7, 255, 255, 126), ended(false))),
            ]);
        }
        for (phase, outcome) in ENDED {
            check([
                row(w(phase, 7, 1, 0, 0), 0, Keep(Late(outcome))),
                row(w(phase, 7, 1, 2, 127), 2, Keep(Late(outcome))),
            ]);
        }
        check([row(w(GONE, 7, 1, 0, 0), 1, Keep(Gone))]);
    }

    #[test]
    fn renew_does_what_the_table_says() {
        use RenewEffect::*;
        use Step::{Change, Keep};
        const NOW: u64 = 1_000;
        let row = |from: Word, deadline, expected| (from, from.renew(deadline, NOW), expected);
        for phase in [EARLY, ARMING] {
            check([
                row(w(phase, 0, 1, 2, 3), 500, Change(w(phase, 500, 1, 2, 3), Early)),
                row(w(phase, 500, 1, 2, 3), LAST, Change(w(phase, LAST, 1, 2, 3), Early)),
                row(w(phase, 500, 1, 2, 3), 500, Keep(Early)),
                row(w(phase, 500, 1, 2, 3), 499, Keep(Early)),
                row(w(phase, 0, 0, 0, 0), 0, Keep(Early)),
            ]);
        }
        check([
            // Past its deadline already and not swept: still a lease.
            row(w(LEASED, 500, 1, 2, 9), 501, Change(w(LEASED, 501, 1, 2, 9), Extended { revived: false })),
            row(w(LEASED, 500, 1, 2, 9), LAST, Change(w(LEASED, LAST, 1, 2, 9), Extended { revived: false })),
            row(w(LEASED, 500, 1, 2, 9), 500, Keep(Unchanged { deadline: 500 })),
            row(w(LEASED, 500, 1, 2, 9), 0, Keep(Unchanged { deadline: 500 })),
            row(w(LEASED, LAST, 1, 2, 9), LAST, Keep(Unchanged { deadline: LAST })),
            row(w(OVERDUE, 500, 1, 2, 9), 1_001, Change(w(LEASED, 1_001, 1, 2, 9), Extended { revived: true })),
            // Not past now: it stays what was reported.
            row(w(OVERDUE, 500, 1, 2, 9), 1_000, Change(w(OVERDUE, 1_000, 1, 2, 9), Extended { revived: false })),
            row(w(OVERDUE, 500, 1, 2, 9), 500, Keep(Unchanged { deadline: 500 })),
            row(w(OVERDUE, 2_000, 1, 2, 9), 2_000, Keep(Unchanged { deadline: 2_000 })),
            row(w(OVERDUE, 2_000, 1, 2, 9), 2_001, Change(w(LEASED, 2_001, 1, 2, 9), Extended { revived: true })),
        ]);
        for (phase, outcome) in ENDED {
            check([
                row(w(phase, 500, 1, 2, 0), LAST, Keep(Late(outcome))),
                row(w(phase, 5, 1, 2, 9), 1, Keep(Late(outcome))),
            ]);
        }
        check([row(w(GONE, 0, 0, 0, 0), LAST, Keep(Gone))]);
    }

    #[test]
    fn abort_and_expire_do_what_the_table_says() {
        use AbortEffect::*;
        use Step::{Change, Keep};
        let abort = |from: Word, expected| (from, from.abort(TOMB), expected);
        let expire = |from: Word, expected| (from, from.expire(TOMB), expected);
        for phase in [EARLY, ARMING] {
            check([
                abort(w(phase, 7, 1, 2, 0), Change(w(phase, 7, 1, 2, 1), Early)),
                abort(w(phase, 7, 1, 0, 2), Change(w(phase, 7, 1, 0, 3), Early)),
                abort(w(phase, 7, 1, 2, 1), Change(w(phase, 7, 1, 2, 1), Early)),
                expire(w(phase, 7, 1, 2, 0), Keep(Early)),
            ]);
        }
        for (phase, was_overdue) in [(LEASED, false), (OVERDUE, true)] {
            let ended = |outcome, released| Ended(End { outcome, released, was_overdue });
            check([
                abort(w(phase, 7, 1, 2, 0), Change(w(ABORTED, TOMB, 1, 2, 0), ended(OutAborted, true))),
                abort(w(phase, LAST, 0, 0, 3), Change(w(ABORTED, LAST, 0, 0, 3), ended(OutAborted, false))),
                expire(w(phase, 7, 1, 2, 0), Change(w(EXPIRED, TOMB, 1, 2, 0), ended(OutExpired, true))),
                expire(w(phase, LAST, 0, 0, 126), Change(w(EXPIRED, LAST, 0, 0, 126), ended(OutExpired, false))),
            ]);
        }
        for (phase, outcome) in ENDED {
            for transfers in [0, 1, 127] {
                let word = w(phase, 7, 1, 2, transfers);
                check([abort(word, Keep(Late(outcome))), expire(word, Keep(Late(outcome)))]);
            }
        }
        check([abort(w(GONE, 0, 0, 0, 0), Keep(Gone)), expire(w(GONE, 0, 0, 0, 0), Keep(Gone))]);
    }

    #[test]
    fn sweep_does_what_the_table_says() {
        use Step::{Change, Keep};
        use SweepEffect::*;
        const NOW: u64 = 1_000;
        const STAMP: u64 = 800;
        for hold in [false, true] {
            let row = |from: Word, expected| (from, from.sweep(NOW, STAMP, hold, TOMB), expected);
            let later = |from: Word, stamp, expected| (from, from.sweep(NOW, stamp, hold, TOMB), expected);
            check([
                row(w(EARLY, 7, 1, 2, 1), Change(w(GONE, 7, 1, 2, 1), EarlyDropped)),
                later(w(EARLY, 7, 1, 2, 1), NOW, Change(w(GONE, 7, 1, 2, 1), EarlyDropped)),
                later(w(EARLY, 7, 1, 2, 1), NOW + 1, Keep(NotBefore(NOW + 1))),
                row(w(ARMING, 7, 1, 2, 1), Keep(NotBefore(NEVER))),
                row(w(LEASED, NOW + 1, 1, 2, 1), Keep(NotBefore(NOW + 1))),
                row(w(LEASED, LAST, 1, 2, 0), Keep(NotBefore(LAST))),
                row(w(OVERDUE, 7, 1, 2, 1), Keep(NotBefore(NEVER))),
                row(w(OVERDUE, 7, 1, 2, 0), Keep(NotBefore(NEVER))),
                row(w(GONE, 7, 1, 2, 0), Keep(Remove { tombstone: false })),
            ]);
            for (phase, outcome) in ENDED {
                check([
                    row(w(phase, NOW, 1, 2, 0), Keep(Remove { tombstone: true })),
                    row(w(phase, NOW + 1, 1, 2, 0), Keep(NotBefore(NOW + 1))),
                    row(w(phase, 7, 1, 2, 1), Keep(NotBefore(NEVER))),
                    row(w(phase, 7, 1, 2, 126), Keep(NotBefore(NEVER))),
                    row(w(phase, 7, 1, 2, 127), Change(w(phase, TOMB, 1, 2, 0), Claimed(outcome, TOMB))),
                    row(w(phase, LAST, 1, 2, 127), Change(w(phase, LAST, 1, 2, 0), Claimed(outcome, LAST))),
                ]);
            }
        }
        let swept = |from: Word, hold, expected| (from, from.sweep(NOW, STAMP, hold, TOMB), expected);
        let after_transfer = End { outcome: OutExpired, released: false, was_overdue: false };
        check([
            swept(w(LEASED, NOW, 1, 2, 0), false, Change(w(EXPIRED, TOMB, 1, 2, 0), Ended(end(OutExpired), TOMB))),
            swept(w(LEASED, 0, 0, 0, 0), false, Change(w(EXPIRED, TOMB, 0, 0, 0), Ended(end(OutExpired), TOMB))),
            swept(w(LEASED, 7, 1, 2, 1), false, Change(w(EXPIRED, 7, 1, 2, 1), Ended(after_transfer, NEVER))),
            swept(w(LEASED, NOW, 1, 2, 0), true, Change(w(OVERDUE, NOW, 1, 2, 0), Overdue)),
            swept(w(LEASED, 7, 1, 2, 126), true, Change(w(OVERDUE, 7, 1, 2, 126), Overdue)),
        ]);
    }

    #[test]
    fn transfers_do_what_the_table_says() {
        use BeginEffect::*;
        use EndEffect::{Left, Nothing, Release};
        use Step::{Change, Keep};
        let begin = |from: Word, expected| (from, from.begin_transfer(), expected);
        let finish = |from: Word, claim, expected| (from, from.end_transfer(claim, TOMB), expected);
        for phase in [EARLY, ARMING, GONE] {
            for transfers in 0..4 {
                check([begin(w(phase, 7, 1, 2, transfers), Keep(NotLeased))]);
            }
        }
        for phase in [LEASED, OVERDUE] {
            check([
                begin(w(phase, 7, 1, 2, 0), Change(w(phase, 7, 1, 2, 1), Begun)),
                begin(w(phase, 7, 1, 2, 125), Change(w(phase, 7, 1, 2, 126), Begun)),
                begin(w(phase, 7, 1, 2, 126), Keep(TooMany)),
            ]);
            for claim in [false, true] {
                check([
                    finish(w(phase, 7, 1, 2, 126), claim, Change(w(phase, 7, 1, 2, 125), Nothing)),
                    finish(w(phase, 7, 1, 2, 1), claim, Change(w(phase, 7, 1, 2, 0), Nothing)),
                    finish(w(phase, 7, 1, 2, 0), claim, Keep(Nothing)),
                ]);
            }
        }
        for (phase, outcome) in ENDED {
            for transfers in [0, 1, 126, 127] {
                check([begin(w(phase, 7, 1, 2, transfers), Keep(Late(outcome)))]);
            }
            check([
                finish(w(phase, 7, 1, 2, 2), true, Change(w(phase, 7, 1, 2, 1), Nothing)),
                finish(w(phase, 7, 1, 2, 126), false, Change(w(phase, 7, 1, 2, 125), Nothing)),
                finish(w(phase, 7, 1, 2, 1), true, Change(w(phase, TOMB, 1, 2, 0), Release(outcome, TOMB))),
                finish(w(phase, LAST, 1, 2, 1), true, Change(w(phase, LAST, 1, 2, 0), Release(outcome, LAST))),
                finish(w(phase, 7, 1, 2, 1), false, Change(w(phase, 7, 1, 2, 127), Left)),
                finish(w(phase, 7, 1, 2, 0), true, Keep(Nothing)),
                finish(w(phase, 7, 1, 2, 127), true, Keep(Nothing)),
            ]);
        }
    }

    #[test]
    fn track_on_what_is_there_does_what_the_table_says() {
        use ArmEffect::*;
        use Step::{Change, Keep};
        let row = |from: Word, expected| (from, from.arm(), expected);
        check([
            row(w(EARLY, 7, 1, 2, 3), Change(w(ARMING, 7, 1, 2, 3), Armed)),
            row(w(ARMING, 7, 1, 2, 3), Keep(AlreadyTracked)),
            row(w(LEASED, 7, 1, 2, 0), Keep(AlreadyTracked)),
            row(w(OVERDUE, 7, 1, 2, 5), Keep(AlreadyTracked)),
            row(w(GONE, 7, 1, 2, 1), Keep(Gone)),
        ]);
        for (phase, _) in ENDED {
            check([
                row(w(phase, 7, 1, 2, 0), Keep(Tombstone)),
                row(w(phase, 7, 1, 2, 1), Keep(TransferInFlight)),
                row(w(phase, 7, 1, 2, 126), Keep(TransferInFlight)),
                row(w(phase, 7, 1, 2, 127), Keep(TransferInFlight)),
            ]);
        }
    }

    #[test]
    fn what_was_stashed_counts_when_the_track_comes() {
        // What was stashed, what the track says (expected 9: nothing), and what comes of it.
        let rows = [
            (w(ARMING, 0, 0, 0, 0), Some(2), w(LEASED, 500, 0, 2, 0), None),
            (w(ARMING, 0, 0, 0, 0), None, w(LEASED, 500, 0, 0, 0), None),
            (w(ARMING, 499, 1, 0, 0), Some(2), w(LEASED, 500, 1, 2, 0), None),
            (w(ARMING, 501, 1, 0, 0), None, w(LEASED, 501, 1, 0, 0), None),
            (w(ARMING, LAST, 1, 2, 0), None, w(LEASED, LAST, 1, 2, 0), None),
            // The track's count goes before one told early.
            (w(ARMING, 0, 1, 1, 0), Some(2), w(LEASED, 500, 1, 2, 0), None),
            (w(ARMING, 0, 0, 0, 2), Some(2), w(LEASED, 500, 0, 2, 0), None),
            // It decides at once.
            (w(ARMING, 0, 2, 0, 0), Some(2), w(COMPLETED, TOMB, 2, 2, 0), Some(OutCompleted)),
            (w(ARMING, 0, 3, 2, 0), None, w(COMPLETED, TOMB, 3, 2, 0), Some(OutCompleted)),
            (w(ARMING, 0, 255, 255, 0), None, w(COMPLETED, TOMB, 255, 255, 0), Some(OutCompleted)),
            (w(ARMING, LAST, 0, 0, 0), Some(0), w(COMPLETED, LAST, 0, 0, 0), Some(OutCompleted)),
            (w(ARMING, 0, 0, 0, 2), None, w(COMPLETED, TOMB, 0, 0, 0), Some(OutCompleted)),
            (w(ARMING, 0, 1, 2, 1), None, w(ABORTED, TOMB, 1, 2, 0), Some(OutAborted)),
            (w(ARMING, 0, 2, 2, 1), None, w(ABORTED, TOMB, 2, 2, 0), Some(OutAborted)),
            (w(ARMING, 0, 0, 0, 3), None, w(ABORTED, TOMB, 0, 0, 0), Some(OutAborted)),
        ];
        for (i, (from, expected, to, outcome)) in rows.into_iter().enumerate() {
            assert_eq!(from.finish_arming(500, expected, TOMB), (to, outcome.map(end)), "row {i}");
        }
    }

    #[test]
    fn due_is_when_a_sweep_first_changes_something() {
        for word in grid() {
            let stamp = 50;
            let due = word.due(stamp);
            for now in [0, 1, 49, 50, 51, 500, 501, LAST] {
                let idle = matches!(word.sweep(now, stamp, false, TOMB), Step::Keep(SweepEffect::NotBefore(_)));
                assert_eq!(idle, due > now, "{word:?} at {now}");
                if let Step::Keep(SweepEffect::NotBefore(time)) = word.sweep(now, stamp, false, TOMB) {
                    assert_eq!(time, due, "{word:?} at {now}");
                }
            }
        }
    }

    /// Words of each phase with each field at its edges.
    fn grid() -> Vec<Word> {
        let mut words = Vec::new();
        for phase in 0..8 {
            for deadline in [0, 1, 500, LAST] {
                for (seen, expected) in
                    [(0, 0), (0, 1), (0, 255), (1, 2), (2, 2), (254, 0), (254, 255), (255, 0), (255, 255)]
                {
                    words.extend([0, 1, 2, 3, 126, 127].map(|transfers| w(phase, deadline, seen, expected, transfers)));
                }
            }
        }
        words
    }

    fn after<E>(from: Word, step: Step<E>) -> Word {
        match step {
            Step::Keep(_) => from,
            Step::Change(to, _) => to,
        }
    }

    #[test]
    fn no_event_changes_a_field_that_is_not_its_own() {
        for from in grid() {
            let early = matches!(from.phase(), Phase::Early | Phase::Arming);
            // The fields that each event may change: phase, deadline, seen, expected, transfers.
            let mut events: Vec<(&str, Word, [bool; 5])> = Vec::new();
            for told in [0, 1, 2, 255] {
                let may = [!early, !early, true, from.expected() == 0, false];
                events.push(("notify", after(from, from.notify(told, TOMB)), may));
            }
            for n in [0, 1, 2, 254, 255] {
                let may = [!early, !early, false, from.expected() == 0, early];
                events.push(("set_expected", after(from, from.set_expected(n, TOMB)), may));
            }
            for deadline in [0, 1, 501, LAST] {
                let may = [from.phase() == Phase::Overdue, true, false, false, false];
                events.push(("renew", after(from, from.renew(deadline, 400)), may));
            }
            events.push(("abort", after(from, from.abort(TOMB)), [!early, !early, false, false, early]));
            events.push(("expire", after(from, from.expire(TOMB)), [!early, !early, false, false, false]));
            for now in [0, 499, 500, LAST] {
                for hold in [false, true] {
                    let unclaimed = from.transfers() == 127;
                    let may = [true, !hold || unclaimed, false, false, unclaimed];
                    events.push(("sweep", after(from, from.sweep(now, 50, hold, TOMB)), may));
                }
            }
            events.push(("begin_transfer", after(from, from.begin_transfer()), [false, false, false, false, true]));
            for claim in [false, true] {
                let may = [false, claim, false, false, true];
                events.push(("end_transfer", after(from, from.end_transfer(claim, TOMB)), may));
            }
            events.push(("arm", after(from, from.arm()), [true, false, false, false, false]));

            for (event, to, may) in events {
                let changed = [
                    from.phase() != to.phase(),
                    from.deadline() != to.deadline(),
                    from.seen() != to.seen(),
                    from.expected() != to.expected(),
                    from.transfers() != to.transfers(),
                ];
                for field in 0..5 {
                    assert!(may[field] || !changed[field], "{event} of {from:?} gave {to:?}");
                }
                assert!(to.deadline() >= from.deadline(), "{event} of {from:?} shortened it: {to:?}");
                assert!(to.seen() >= from.seen() && to.seen() <= from.seen() + 1, "{event} of {from:?} gave {to:?}");
                if from.outcome().is_some() || from.phase() == Phase::Gone {
                    assert_eq!(to.phase(), from.phase(), "{event}: a terminal state is final");
                }
            }
        }
    }
}
