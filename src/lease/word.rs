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
