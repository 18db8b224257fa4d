//! The tracker, id by id, against a plain sequential model of the contract.
//!
//! A sweep is no one operation, it looks at entry after entry; so each id sees it as one look (and one more
//! for each release that it hands out, since an id may live twice within one sweep). What the documentation
//! says of calls that have two steps is in [`Model::half_way`]: a message for an unknown id makes the early
//! entry before it counts, a `track` takes a tombstone away (or claims an early entry) before the lease
//! runs, and a notification claims its consumer before it counts. A sweep may pass over what a call that has
//! not returned yet has made due; it must not pass over anything else.

use crate::checker::{Call, Object, Violation, Work, check};
use crate::{Budget, Gate, Random, Stamps};
use kvlease::{
    Aborted, Config, ConsumerId, Ended, ExpectedSet, ExpiryPolicy, Notified, Outcome, Release, Renewed, SendTracker,
    Terms, Timestamp, TrackRefusal, Tracked, TransferRefusal,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

const TTL: u64 = 12;
const EARLY_TTL: u64 = 7;

/// Lanes of a thread: its calls; two for releases of its sweeps; one for a second silent look.
const LANES: usize = 4;

/// A release, by the number of its payload; `None` where it comes after a transfer.
type Freed = Option<u64>;

#[derive(Clone, PartialEq, Debug)]
enum Answer {
    /// It went as it should.
    Done,
    Ended(Outcome, Freed),
    Counted(u32, Option<u32>),
    Duplicate(u32, Option<u32>),
    Early,
    Late(Outcome),
    LateDuplicate(Outcome),
    Conflict {
        stands: u32,
        seen: u32,
        ended: Option<Freed>,
    },
    Set(u32),
    Unchanged(u64),
    AlreadyTracked,
    InTransfer,
    NotLeased,
    Nothing,
    Overdue,
}

#[derive(Clone, Debug)]
enum What {
    Track {
        deadline: u64,
        expected: Option<u32>,
        payload: u64,
        now: u64,
        answer: Answer,
    },
    Notify {
        consumer: u32,
        told: u32,
        now: u64,
        answer: Answer,
    },
    SetExpected {
        n: u32,
        now: u64,
        answer: Answer,
    },
    Renew {
        deadline: u64,
        now: u64,
        answer: Answer,
    },
    Abort {
        now: u64,
        answer: Answer,
    },
    Begin {
        answer: Answer,
    },
    /// With `now` unless the guard was dropped.
    End {
        now: Option<u64>,
        answer: Answer,
    },
    /// One look of a sweep at this id: [`Answer::Nothing`], a release, or overdue.
    Look {
        now: u64,
        answer: Answer,
        optional: bool,
    },
}

/// A message counted, and when the call that counted it returned.
type Counted = BTreeMap<u32, u64>;

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Count {
    seen: u32,
    expected: Option<u32>,
    counted: Counted,
    /// Claimed by a notification, in this lane, that has not counted yet.
    claimed: Vec<(u32, usize)>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum State {
    Absent,
    Early {
        count: Count,
        deadline: u64,
        aborted: bool,
        drop_at: u64,
        /// When the call that made it due has returned at the latest; so also below.
        settled: u64,
        /// The lane of the `track` that has claimed it.
        armed: Option<usize>,
    },
    Live {
        count: Count,
        payload: u64,
        deadline: u64,
        transfers: u32,
        overdue: bool,
        settled: u64,
    },
    Over {
        outcome: Outcome,
        count: Count,
        /// Until it is released.
        payload: Option<u64>,
        transfers: u32,
        until: u64,
        settled: u64,
    },
}

struct Model {
    hold: bool,
}

impl Count {
    /// Of a notification that is counted: the count that stands, and whether the message conflicts.
    fn count(&mut self, consumer: u32, told: u32, lane: usize, ended: u64) -> (u32, bool) {
        self.claimed.retain(|claim| *claim != (consumer, lane));
        self.seen += 1;
        self.counted.insert(consumer, ended);
        if self.expected.is_none() && told != 0 {
            self.expected = Some(told);
        }
        let stands = self.expected.unwrap_or(0);
        (stands, told != 0 && told != stands)
    }

    /// Whether a notification of this consumer, by this call, is a new one.
    fn is_new(&self, consumer: u32, lane: usize) -> bool {
        !self.counted.contains_key(&consumer) && self.claimed.iter().all(|claim| claim.0 != consumer || claim.1 == lane)
    }

    fn complete(&self) -> bool {
        self.expected.is_some_and(|n| self.seen >= n)
    }
}

/// A live lease ends: the state, and what is released now.
fn end(state: &State, outcome: Outcome, now: u64, settled: u64) -> (State, Freed) {
    let State::Live { count, payload, deadline, transfers, .. } = state else { unreachable!() };
    let (count, transfers) = (count.clone(), *transfers);
    match transfers {
        0 => {
            let until = (*deadline).max(now + TTL);
            (State::Over { outcome, count, payload: None, transfers, until, settled }, Some(*payload))
        }
        _ => (State::Over { outcome, count, payload: Some(*payload), transfers, until: *deadline, settled }, None),
    }
}

impl Model {
    fn track(&self, state: &State, call: &Call<What>) -> Option<(State, Answer)> {
        let What::Track { deadline, expected, payload, now, .. } = call.what else { unreachable!() };
        let refused = |answer| Some((state.clone(), answer));
        let early = match state {
            State::Live { .. } => return refused(Answer::AlreadyTracked),
            State::Over { payload: Some(_), .. } => return refused(Answer::InTransfer),
            State::Early { armed: Some(lane), .. } if *lane != call.lane => return refused(Answer::AlreadyTracked),
            State::Early { count, deadline, aborted, .. } => Some((count.clone(), *deadline, *aborted)),
            State::Absent | State::Over { .. } => None,
        };
        let (mut count, stashed, aborted) = early.unwrap_or_default();
        count.expected = expected.or(count.expected);
        let decided = match () {
            () if aborted => Some(Outcome::Aborted),
            () if count.complete() => Some(Outcome::Completed),
            () => None,
        };
        let deadline = deadline.max(stashed);
        let live = State::Live { count, payload, deadline, transfers: 0, overdue: false, settled: call.ended };
        Some(match decided {
            None => (live, Answer::Done),
            Some(outcome) => {
                let (over, freed) = end(&live, outcome, now, call.ended);
                (over, Answer::Ended(outcome, freed))
            }
        })
    }

    /// A message (not a notification): what it does to each kind of state.
    fn message(&self, state: &State, call: &Call<What>) -> (State, Answer) {
        let mut state = state.clone();
        if state == State::Absent {
            state = early(call);
        }
        match (&mut state, &call.what) {
            (State::Over { outcome, .. }, _) => {
                let outcome = *outcome;
                (state, Answer::Late(outcome))
            }
            (State::Early { deadline: stashed, .. }, What::Renew { deadline, .. }) => {
                *stashed = (*stashed).max(*deadline);
                (state, Answer::Early)
            }
            (State::Early { aborted, .. }, What::Abort { .. }) => {
                *aborted = true;
                (state, Answer::Early)
            }
            (State::Early { count, .. }, What::SetExpected { n, .. }) => match count.expected {
                Some(stands) if stands != *n => (state, Answer::Conflict { stands, seen: 0, ended: None }),
                _ => {
                    count.expected = Some(*n);
                    (state, Answer::Early)
                }
            },
            (State::Live { deadline: until, overdue, settled, .. }, What::Renew { deadline, now, .. }) => {
                if *deadline <= *until {
                    let answer = Answer::Unchanged(*until);
                    return (state, answer);
                }
                *until = *deadline;
                if *overdue && deadline > now {
                    *overdue = false;
                    *settled = call.ended;
                }
                (state, Answer::Done)
            }
            (State::Live { .. }, What::Abort { now, .. }) => {
                let (over, freed) = end(&state, Outcome::Aborted, *now, call.ended);
                (over, Answer::Ended(Outcome::Aborted, freed))
            }
            (State::Live { count, .. }, What::SetExpected { n, now, .. }) => {
                let seen = count.seen;
                match count.expected {
                    Some(stands) if stands != *n => (state, Answer::Conflict { stands, seen: 0, ended: None }),
                    Some(_) => (state, Answer::Set(seen)),
                    None => {
                        count.expected = Some(*n);
                        match count.complete() {
                            true => {
                                let (over, freed) = end(&state, Outcome::Completed, *now, call.ended);
                                (over, Answer::Ended(Outcome::Completed, freed))
                            }
                            false => (state, Answer::Set(seen)),
                        }
                    }
                }
            }
            other => unreachable!("{other:?}"),
        }
    }

    fn notify(&self, state: &State, call: &Call<What>, answer: &Answer) -> Option<State> {
        let What::Notify { consumer, told, now, .. } = call.what else { unreachable!() };
        let mut state = if *state == State::Absent { early(call) } else { state.clone() };
        let known = match &state {
            State::Over { count, outcome, .. } => {
                let counted = count.counted.get(&consumer);
                let right = match answer {
                    // Not marked yet, by a call that counts it at this moment.
                    Answer::Late(told) => told == outcome && counted.is_none_or(|ended| *ended > call.began),
                    Answer::LateDuplicate(told) => told == outcome && counted.is_some(),
                    _ => false,
                };
                return right.then_some(state);
            }
            State::Early { count, .. } => (!count.is_new(consumer, call.lane)).then_some(Answer::Early),
            State::Live { count, .. } => {
                let known = Answer::Duplicate(count.seen, count.expected);
                (!count.is_new(consumer, call.lane)).then_some(known)
            }
            State::Absent => unreachable!(),
        };
        if let Some(known) = known {
            return (*answer == known).then_some(state);
        }
        let (right, over) = match &mut state {
            State::Early { count, .. } => match count.count(consumer, told, call.lane, call.ended) {
                (stands, true) => (Answer::Conflict { stands, seen: count.seen, ended: None }, None),
                (_, false) => (Answer::Early, None),
            },
            State::Live { count, .. } => {
                let (stands, conflict) = count.count(consumer, told, call.lane, call.ended);
                let (seen, complete, counted) =
                    (count.seen, count.complete(), Answer::Counted(count.seen, count.expected));
                let over = complete.then(|| end(&state, Outcome::Completed, now, call.ended));
                let freed = over.as_ref().map(|over| over.1);
                let answer = match (conflict, freed) {
                    (true, ended) => Answer::Conflict { stands, seen, ended },
                    (false, Some(freed)) => Answer::Ended(Outcome::Completed, freed),
                    (false, None) => counted,
                };
                (answer, over.map(|over| over.0))
            }
            _ => unreachable!(),
        };
        (*answer == right).then_some(over.unwrap_or(state))
    }

    fn look(&self, state: &State, call: &Call<What>, now: u64, answer: &Answer, optional: bool) -> Vec<State> {
        // What a look does here; the answer it gives with that, or nothing if only the totals say it.
        let due = match state {
            State::Absent => None,
            State::Early { drop_at, armed, settled, .. } => {
                (*drop_at <= now && armed.is_none()).then_some((State::Absent, Answer::Nothing, *settled))
            }
            State::Live { overdue: true, .. } => None,
            State::Live { deadline, .. } if *deadline > now => None,
            State::Live { count, payload, deadline, transfers, settled, .. } if self.hold => {
                let (count, overdue, settled) = (count.clone(), true, *settled);
                let (payload, deadline, transfers) = (*payload, *deadline, *transfers);
                Some((State::Live { count, payload, deadline, transfers, overdue, settled }, Answer::Overdue, settled))
            }
            State::Live { settled, .. } => {
                let settled = *settled;
                // The deadline index knows of it; no call needs to tell it of the tombstone.
                let (over, freed) = end(state, Outcome::Expired, now, settled);
                let answer = freed.map_or(Answer::Nothing, |freed| Answer::Ended(Outcome::Expired, Some(freed)));
                Some((over, answer, settled))
            }
            State::Over { payload: None, until, settled, .. } => {
                (*until <= now).then_some((State::Absent, Answer::Nothing, *settled))
            }
            // Left behind by a dropped guard.
            State::Over { outcome, count, payload: Some(payload), transfers: 0, until, settled } => {
                let until = (*until).max(now + TTL);
                let (outcome, count, settled) = (*outcome, count.clone(), *settled);
                let over = State::Over { outcome, count, payload: None, transfers: 0, until, settled };
                Some((over, Answer::Ended(outcome, Some(*payload)), settled))
            }
            State::Over { .. } => None,
        };
        let mut after = Vec::new();
        let mut pass = *answer == Answer::Nothing;
        if let Some((state, with, settled)) = due {
            pass &= optional || settled > call.began;
            if *answer == with {
                after.push(state);
            }
        }
        if pass {
            after.push(state.clone());
        }
        after
    }
}

/// The entry that a message for an unknown id makes.
fn early(call: &Call<What>) -> State {
    let (What::Notify { now, .. } | What::SetExpected { now, .. } | What::Renew { now, .. } | What::Abort { now, .. }) =
        call.what
    else {
        unreachable!()
    };
    let (drop_at, settled) = (now + EARLY_TTL, call.ended);
    State::Early { count: Count::default(), deadline: 0, aborted: false, drop_at, settled, armed: None }
}

impl Object for Model {
    type What = What;
    type State = State;

    fn start(&self) -> State {
        State::Absent
    }

    fn states_after(&self, state: &State, call: &Call<What>) -> Vec<State> {
        let (after, right, answer) = match &call.what {
            What::Notify { answer, .. } => return self.notify(state, call, answer).into_iter().collect(),
            What::Look { now, answer, optional } => return self.look(state, call, *now, answer, *optional),
            What::Track { answer, .. } => match self.track(state, call) {
                Some((after, right)) => (after, right, answer),
                None => return vec![],
            },
            What::SetExpected { answer, .. } | What::Renew { answer, .. } | What::Abort { answer, .. } => {
                let (after, right) = self.message(state, call);
                (after, right, answer)
            }
            What::Begin { answer } => match state.clone() {
                State::Absent | State::Early { .. } => (state.clone(), Answer::NotLeased, answer),
                State::Over { outcome, .. } => (state.clone(), Answer::Late(outcome), answer),
                State::Live { count, payload, deadline, transfers, overdue, settled } => {
                    let transfers = transfers + 1;
                    (State::Live { count, payload, deadline, transfers, overdue, settled }, Answer::Done, answer)
                }
            },
            What::End { now, answer } => match state.clone() {
                State::Live { count, payload, deadline, transfers, overdue, settled } => {
                    let Some(transfers) = transfers.checked_sub(1) else { return vec![] };
                    (State::Live { count, payload, deadline, transfers, overdue, settled }, Answer::Nothing, answer)
                }
                State::Over { outcome, count, payload: Some(payload), transfers, until, settled } => {
                    let Some(transfers) = transfers.checked_sub(1) else { return vec![] };
                    match now {
                        Some(now) if transfers == 0 => {
                            let (until, settled) = (until.max(now + TTL), call.ended);
                            let after = State::Over { outcome, count, payload: None, transfers, until, settled };
                            (after, Answer::Ended(outcome, Some(payload)), answer)
                        }
                        _ => {
                            let settled = if transfers == 0 { call.ended } else { settled };
                            let payload = Some(payload);
                            let after = State::Over { outcome, count, payload, transfers, until, settled };
                            (after, Answer::Nothing, answer)
                        }
                    }
                }
                _ => return vec![],
            },
        };
        if *answer == right { vec![after] } else { vec![] }
    }

    fn half_way(&self, state: &State, call: &Call<What>) -> Option<State> {
        let mut state = state.clone();
        match (&mut state, &call.what) {
            (
                State::Absent,
                What::Notify { .. } | What::SetExpected { .. } | What::Renew { .. } | What::Abort { .. },
            ) => Some(early(call)),
            (State::Early { count, .. } | State::Live { count, .. }, What::Notify { consumer, .. }) => {
                if count.counted.contains_key(consumer) || count.claimed.iter().any(|claim| claim.0 == *consumer) {
                    return None;
                }
                count.claimed.push((*consumer, call.lane));
                count.claimed.sort_unstable();
                Some(state)
            }
            (State::Early { armed: armed @ None, .. }, What::Track { .. }) => {
                *armed = Some(call.lane);
                Some(state)
            }
            (State::Over { payload: None, .. }, What::Track { .. }) => Some(State::Absent),
            _ => None,
        }
    }
}

// ---------------------------------------------------------------------------------------------
// The real one.

type Tracker = SendTracker<u64>;

fn freed(ended: &Ended<u64>) -> Freed {
    match ended {
        Ended::Released(release) => Some(release.payload),
        Ended::AfterTransfer => None,
    }
}

fn outcome_of(release: &Release<u64>) -> Answer {
    Answer::Ended(release.outcome, Some(release.payload))
}

/// Calls on a few ids from one thread; with the id of each.
struct Worker<'a> {
    tracker: &'a Tracker,
    ids: &'a [String],
    clock: &'a AtomicU64,
    stamps: &'a Stamps,
    lane: usize,
    random: Random,
    log: Vec<(usize, Call<What>)>,
    calls: usize,
}

impl Worker<'_> {
    fn record<T>(&mut self, id: usize, call: impl FnOnce() -> T, what: impl FnOnce(&T) -> What) -> T {
        let began = self.stamps.next();
        let answer = call();
        let ended = self.stamps.next();
        self.log.push((id, Call { lane: self.lane * LANES, began, ended, what: what(&answer) }));
        self.calls += 1;
        answer
    }

    fn work(&mut self, calls: usize, gate: &Gate) {
        let tracker = self.tracker;
        let mut held = Vec::new();
        let mut payload = self.lane as u64;
        while self.calls < calls {
            gate.pass(&mut self.random);
            let id = self.random.below(self.ids.len() as u64) as usize;
            let name = self.ids[id].as_str();
            let now = self.clock.load(SeqCst);
            let at = Timestamp::from_millis(now);
            let deadline = now + self.random.below(10);
            let until = Timestamp::from_millis(deadline);
            let consumer = 1 + self.random.below(3) as u32;
            let rank = ConsumerId::new(consumer).unwrap();
            match self.random.below(20) {
                0..=4 => {
                    let expected = [Some(0), Some(1), Some(2), Some(2), None][self.random.below(5) as usize];
                    payload += 64;
                    let terms = expected.map_or(Terms::until(until), |n| Terms::until(until).consumers(n));
                    let payload = payload;
                    let _ = self
                        .record(
                            id,
                            || tracker.track(name, terms, payload, at),
                            |answer| {
                                let answer = match answer {
                                    Ok(Tracked::Leased) => Answer::Done,
                                    Ok(Tracked::Ended(release)) => outcome_of(release),
                                    Err(error) => {
                                        assert_eq!(error.payload, payload);
                                        match error.reason {
                                            TrackRefusal::AlreadyTracked => Answer::AlreadyTracked,
                                            TrackRefusal::TransferInFlight => Answer::InTransfer,
                                            other => panic!("{other:?}"),
                                        }
                                    }
                                };
                                What::Track { deadline, expected, payload, now, answer }
                            },
                        )
                        .ok();
                }
                5..=9 => {
                    let told = [0, 0, 1, 2][self.random.below(4) as usize];
                    let call = || match told {
                        0 => tracker.notify(name, rank, at),
                        _ => tracker.notify_expecting(name, rank, told, at),
                    };
                    let _ = self.record(id, call, |answer| {
                        let answer = match answer {
                            Notified::Counted { seen, expected } => Answer::Counted(*seen, *expected),
                            Notified::Completed(ended) => Answer::Ended(Outcome::Completed, freed(ended)),
                            Notified::Duplicate { seen, expected } => Answer::Duplicate(*seen, *expected),
                            Notified::Early => Answer::Early,
                            Notified::Late(outcome) => Answer::Late(*outcome),
                            Notified::LateDuplicate(outcome) => Answer::LateDuplicate(*outcome),
                            Notified::ExpectedConflict { claimed, stands, seen, ended, early: _ } => {
                                assert_eq!(*claimed, told);
                                Answer::Conflict { stands: *stands, seen: *seen, ended: ended.as_ref().map(freed) }
                            }
                            other => panic!("{other:?}"),
                        };
                        What::Notify { consumer, told, now, answer }
                    });
                }
                10 => {
                    let n = self.random.below(3) as u32;
                    let _ = self.record(
                        id,
                        || tracker.set_expected(name, n, at),
                        |answer| {
                            let answer = match answer {
                                ExpectedSet::Set { seen } => Answer::Set(*seen),
                                ExpectedSet::Completed(ended) => Answer::Ended(Outcome::Completed, freed(ended)),
                                ExpectedSet::Conflict { stands } => {
                                    Answer::Conflict { stands: *stands, seen: 0, ended: None }
                                }
                                ExpectedSet::Early => Answer::Early,
                                ExpectedSet::Late(outcome) => Answer::Late(*outcome),
                                other => panic!("{other:?}"),
                            };
                            What::SetExpected { n, now, answer }
                        },
                    );
                }
                11..=12 => {
                    let _ = self.record(
                        id,
                        || tracker.renew(name, until, None, at),
                        |answer| {
                            let answer = match answer {
                                Renewed::Extended => Answer::Done,
                                Renewed::Unchanged { deadline } => Answer::Unchanged(deadline.as_millis()),
                                Renewed::Early => Answer::Early,
                                Renewed::Late(outcome) => Answer::Late(*outcome),
                                other => panic!("{other:?}"),
                            };
                            What::Renew { deadline, now, answer }
                        },
                    );
                }
                13 => {
                    let _ = self.record(
                        id,
                        || tracker.abort(name, at),
                        |answer| {
                            let answer = match answer {
                                Aborted::Ended(ended) => Answer::Ended(Outcome::Aborted, freed(ended)),
                                Aborted::Early => Answer::Early,
                                Aborted::Late(outcome) => Answer::Late(*outcome),
                                other => panic!("{other:?}"),
                            };
                            What::Abort { now, answer }
                        },
                    );
                }
                14..=15 => {
                    let begun = self.record(
                        id,
                        || tracker.begin_transfer(name),
                        |answer| {
                            let answer = match answer {
                                Ok(_) => Answer::Done,
                                Err(TransferRefusal::NotLeased) => Answer::NotLeased,
                                Err(TransferRefusal::Late(outcome)) => Answer::Late(*outcome),
                                Err(other) => panic!("{other:?}"),
                            };
                            What::Begin { answer }
                        },
                    );
                    held.extend(begun.map(|transfer| (id, transfer)));
                }
                16..=17 => {
                    if held.is_empty() {
                        continue;
                    }
                    let (id, transfer) = held.swap_remove(self.random.below(held.len() as u64) as usize);
                    match self.random.below(2) {
                        0 => {
                            let _ = self.record(
                                id,
                                || transfer.end(at),
                                |release| {
                                    let answer = release.as_ref().map_or(Answer::Nothing, outcome_of);
                                    What::End { now: Some(now), answer }
                                },
                            );
                        }
                        _ => self.record(id, || drop(transfer), |()| What::End { now: None, answer: Answer::Nothing }),
                    }
                }
                _ => {
                    let now = self.clock.fetch_add(1 + self.random.below(3), SeqCst);
                    self.sweep(now);
                }
            }
        }
        for (id, transfer) in held {
            let now = self.clock.load(SeqCst);
            let _ = self.record(
                id,
                || transfer.end(Timestamp::from_millis(now)),
                |release| What::End { now: Some(now), answer: release.as_ref().map_or(Answer::Nothing, outcome_of) },
            );
        }
    }

    fn sweep(&mut self, now: u64) {
        let began = self.stamps.next();
        let swept = self.tracker.sweep(Timestamp::from_millis(now));
        let ended = self.stamps.next();
        self.calls += 1;
        for id in 0..self.ids.len() {
            let name = self.ids[id].as_str();
            let mut looks = vec![(0, Answer::Nothing, false), (3, Answer::Nothing, true)];
            let released = swept.released.iter().filter(|release| release.id == *name).map(outcome_of);
            let overdue = swept.overdue.iter().filter(|overdue| **overdue == *name).map(|_| Answer::Overdue);
            looks.extend(released.chain(overdue).enumerate().map(|(n, answer)| (n + 1, answer, false)));
            assert!(looks.len() <= LANES, "an id that lives three times in one sweep");
            for (lane, answer, optional) in looks {
                let lane = self.lane * LANES + lane;
                self.log.push((id, Call { lane, began, ended, what: What::Look { now, answer, optional } }));
            }
        }
    }
}

fn one_round(ids: usize, threads: usize, calls: usize, expiry: ExpiryPolicy) -> Result<Work, Violation> {
    let config = Config {
        early_ttl: Duration::from_millis(EARLY_TTL),
        tombstone_ttl: Duration::from_millis(TTL),
        expiry,
        ..Config::default()
    };
    let tracker = Tracker::with_config(config);
    let ids: Vec<String> = (0..ids).map(|id| format!("cmpl-{id}")).collect();
    let (clock, stamps, gate) = (AtomicU64::new(100), Stamps::default(), Gate::default());
    let mut histories: Vec<Vec<Call<What>>> = vec![Vec::new(); ids.len()];
    let mut made = 0;
    std::thread::scope(|s| {
        let (tracker, ids, clock, stamps, gate) = (&tracker, &ids, &clock, &stamps, &gate);
        let threads: Vec<_> = (0..threads)
            .map(|lane| {
                s.spawn(move || {
                    let (random, log) = (Random::new(lane as u64), Vec::new());
                    let mut worker = Worker { tracker, ids, clock, stamps, lane, random, log, calls: 0 };
                    worker.work(calls, gate);
                    (worker.log, worker.calls)
                })
            })
            .collect();
        for thread in threads {
            let (log, calls) = thread.join().expect("a thread failed");
            made += calls;
            log.into_iter().for_each(|(id, call)| histories[id].push(call));
        }
    });
    // And at the end, with nobody about, all that is due goes.
    let (random, log) = (Random::new(0), Vec::new());
    let now = clock.load(SeqCst);
    let mut last =
        Worker { tracker: &tracker, ids: &ids, clock: &clock, stamps: &stamps, lane: threads, random, log, calls: 0 };
    for now in [now, now + 2 * TTL, now + 4 * TTL] {
        last.sweep(now);
    }
    last.log.into_iter().for_each(|(id, call)| histories[id].push(call));

    let model = Model { hold: expiry == ExpiryPolicy::Hold };
    let mut sum = Work::default();
    for history in histories {
        sum += check(&model, history)?;
    }
    // Looks are not calls.
    sum.calls = made;
    Ok(sum)
}

#[test]
fn the_tracker_is_linearizable() {
    let report = Budget::calls(500_000, 30_000).spend("tracker", |round| {
        let expiry = if round % 3 == 2 { ExpiryPolicy::Hold } else { ExpiryPolicy::Release };
        match round % 2 {
            0 => one_round(1, 3, 600, expiry),
            _ => one_round(3, 4, 1_000, expiry),
        }
    });
    assert!(report.overlapping > 0, "the threads never met: {report:?}");
}

#[test]
fn wrong_histories_of_a_tracker_are_rejected() {
    use Answer::*;
    use Outcome::{Completed, Expired};
    let holds = |calls: &[(usize, u64, u64, What)]| {
        let history = calls.iter().map(|c| Call { lane: c.0, began: c.1, ended: c.2, what: c.3.clone() }).collect();
        check(&Model { hold: false }, history).is_ok()
    };
    let track =
        |expected, payload, answer| What::Track { deadline: 50, expected: Some(expected), payload, now: 10, answer };
    let notify = |consumer, answer| What::Notify { consumer, told: 0, now: 10, answer };
    let look = |now, answer| What::Look { now, answer, optional: false };
    let done = |outcome, payload| Ended(outcome, Some(payload));
    let leased = (0, 1, 2, track(1, 7, Done));

    assert!(holds(&[leased.clone(), (1, 3, 4, notify(1, done(Completed, 7)))]));
    assert!(!holds(&[leased.clone(), (1, 3, 4, notify(1, done(Completed, 8)))]), "another payload");
    assert!(!holds(&[leased.clone(), (1, 3, 4, notify(1, Counted(1, Some(1))))]), "the last one does not complete");
    assert!(!holds(&[leased.clone(), (1, 3, 4, notify(1, Early))]), "a lease that was lost");
    // Two at once on the last count, or a notification and a sweep: one has the release.
    let both = |a, b| holds(&[leased.clone(), (1, 3, 6, a), (2, 4, 5, b)]);
    assert!(both(notify(1, done(Completed, 7)), notify(2, Late(Completed))));
    assert!(!both(notify(1, done(Completed, 7)), notify(2, done(Completed, 7))), "released twice");
    assert!(both(notify(1, done(Completed, 7)), look(60, Nothing)));
    assert!(both(notify(1, Late(Expired)), look(60, done(Expired, 7))));
    assert!(!both(notify(1, done(Completed, 7)), look(60, done(Expired, 7))), "two outcomes");
    assert!(!both(notify(1, Late(Completed)), look(60, done(Expired, 7))), "told another outcome");
    assert!(!both(notify(1, Late(Expired)), look(60, Nothing)), "ended by nobody");
    assert!(!holds(&[leased.clone(), (1, 3, 4, look(49, done(Expired, 7)))]), "expired early");
    assert!(!holds(&[leased.clone(), (1, 3, 4, look(50, Nothing))]), "a sweep passed over what was due");
    // Duplicates, and the two steps of a notification.
    let two = (0, 1, 2, track(2, 7, Done));
    let twice = |a, b| holds(&[two.clone(), (1, 3, 6, notify(1, a)), (2, 4, 5, notify(1, b))]);
    assert!(twice(Counted(1, Some(2)), Duplicate(1, Some(2))));
    assert!(twice(Counted(1, Some(2)), Duplicate(0, Some(2))), "claimed, not yet counted");
    assert!(!twice(Counted(1, Some(2)), done(Completed, 7)), "a message was counted, not a consumer");
    assert!(!twice(Counted(1, Some(2)), Counted(1, Some(2))));
    let counted = (1, 3, 4, notify(1, Counted(1, Some(2))));
    assert!(!holds(&[two.clone(), counted.clone(), (2, 5, 6, notify(1, Duplicate(0, Some(2))))]), "forgotten");
    // A renewal that was promised.
    let renew = (1, 3, 4, What::Renew { deadline: 80, now: 10, answer: Done });
    assert!(!holds(&[leased.clone(), renew.clone(), (2, 5, 6, look(79, done(Expired, 7)))]), "a renewal was lost");
    assert!(holds(&[leased.clone(), renew, (2, 5, 6, look(80, done(Expired, 7)))]));
    // What came early.
    let early = (1, 1, 2, notify(1, Early));
    assert!(holds(&[early.clone(), (0, 3, 4, track(1, 7, done(Completed, 7)))]));
    assert!(!holds(&[early, (0, 3, 4, track(1, 7, Done))]), "an early notification was lost");
    // Transfers.
    let begin = (1, 3, 4, What::Begin { answer: Done });
    assert!(!holds(&[leased.clone(), begin.clone(), (2, 5, 6, notify(1, done(Completed, 7)))]), "released in transfer");
    let over = (2, 5, 6, notify(1, Ended(Completed, None)));
    let ended = |answer| (1, 7, 8, What::End { now: Some(10), answer });
    assert!(holds(&[leased.clone(), begin.clone(), over.clone(), ended(done(Completed, 7))]));
    assert!(!holds(&[leased, begin, over, ended(Nothing)]), "never released");
}
