//! One lease in memory: its word, its consumers, its payload; against the pure word as specification.

use super::explorer::{name, outcomes};
use super::harness::{Model, Owned, Role};
use crate::lease::entry::{LeaseEntry, Notify as Notified};
use crate::lease::word::{
    AbortEffect, ArmEffect, BeginEffect, EndEffect, ExpectEffect, NotifyEffect, Step, SweepEffect,
};
use crate::lease::word::{End, Word};
use crate::sync::UnsafeCell;
use crate::{ConsumerId, Terms, Timestamp};
use std::fmt::Debug;

/// Until when ended leases are remembered.
const UNTIL: u64 = 100;
/// What is not swept otherwise is swept at.
const LAST: u64 = 90;

/// Until 10, weighing 3.
fn terms(waits_for: Option<ConsumerId>) -> Terms {
    Terms { weight: 3, waits_for, ..Terms::until(Timestamp::from_millis(10)) }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    Notify(u32),
    Tell(u32, u32),
    SetExpected(u32),
    Renew(u64),
    Abort,
    Expire,
    Sweep(u64),
    Hold(u64),
    Begin,
    /// Ends the transfer that this role has begun, and claims the release (or leaves it).
    End(bool),
    /// The two halves of a `track` on an early entry.
    Arm,
    Finish(Option<u32>),
}

use Op::*;

/// What an operation does to the word; the answer, and whether the payload is its caller's now.
fn pure(word: Word, op: Op) -> (Word, String, bool) {
    fn step<E: Debug>(word: Word, step: Step<E>, released: impl Fn(&E) -> bool) -> (Word, String, bool) {
        let (word, effect) = match step {
            Step::Keep(effect) => (word, effect),
            Step::Change(new, effect) => (new, effect),
        };
        (word, format!("{effect:?}"), released(&effect))
    }
    match op {
        Notify(_) => step(word, word.notify(0, UNTIL), notify_releases),
        Tell(_, told) => step(word, word.notify(told, UNTIL), notify_releases),
        SetExpected(n) => step(word, word.set_expected(n, UNTIL), expect_releases),
        Renew(deadline) => step(word, word.renew(deadline, 5), |_| false),
        Abort => step(word, word.abort(UNTIL), abort_releases),
        Expire => step(word, word.expire(UNTIL), abort_releases),
        Sweep(now) => step(word, word.sweep(now, 30, false, UNTIL), sweep_releases),
        Hold(now) => step(word, word.sweep(now, 30, true, UNTIL), sweep_releases),
        Begin => step(word, word.begin_transfer(), |_| false),
        End(claim) => step(word, word.end_transfer(claim, UNTIL), |e| matches!(e, EndEffect::Release(..))),
        Arm => step(word, word.arm(), |_| false),
        Finish(expected) => {
            let (new, end) = word.finish_arming(10, expected, UNTIL);
            (new, format!("{end:?}"), end.is_some_and(|end| end.released))
        }
    }
}

fn notify_releases(effect: &NotifyEffect) -> bool {
    match effect {
        NotifyEffect::Ended(end) => end.released,
        NotifyEffect::Conflict { end, .. } => end.is_some_and(|end| end.released),
        _ => false,
    }
}

fn expect_releases(effect: &ExpectEffect) -> bool {
    matches!(effect, ExpectEffect::Ended(End { released: true, .. }))
}

fn abort_releases(effect: &AbortEffect) -> bool {
    matches!(effect, AbortEffect::Ended(End { released: true, .. }))
}

fn sweep_releases(effect: &SweepEffect) -> bool {
    matches!(effect, SweepEffect::Ended(End { released: true, .. }, _) | SweepEffect::Claimed(..))
}

/// The specification: the word; per role, whether its last begin (or arm) succeeded; how often released.
type Spec = (u64, Vec<bool>, u32);

fn spec_step(spec: &mut Spec, role: usize, op: &Op) -> String {
    if matches!(op, End(_) | Finish(_)) && !spec.1[role] {
        return "-".into();
    }
    let (word, answer, released) = pure(Word(spec.0), *op);
    match op {
        Begin => spec.1[role] = answer == format!("{:?}", BeginEffect::Begun),
        Arm => spec.1[role] = answer == format!("{:?}", ArmEffect::Armed),
        _ => {}
    }
    spec.0 = word.0;
    spec.2 += u32::from(released);
    answer
}

fn spec_end(spec: &Spec) -> String {
    format!("{:?}, released {}", Word(spec.0), spec.2)
}

pub(super) struct Scene {
    entry: LeaseEntry<Owned<u32>>,
    scripts: &'static [&'static [Op]],
    /// What consumer n reads; what the transfers read, at 0.
    blocks: [Owned<()>; 4],
    /// Written by whoever is released to.
    releases: UnsafeCell<u32>,
}

// SAFETY: loom checks each access to the cell.
unsafe impl Sync for Scene {}

impl Scene {
    /// Takes the payload, as the caller's.
    fn release(&self) {
        self.releases.with_mut(|n| {
            // SAFETY: loom has found no race.
            unsafe { *n += 1 }
        });
        // SAFETY: the effect said so.
        let payload = unsafe { self.entry.take_payload() }.expect("a payload to release");
        payload.own();
        self.blocks[0].own();
    }

    fn play(&'static self, role: usize) -> Vec<String> {
        let mut mine = false;
        let consumer = |n| ConsumerId::new(n).unwrap();
        let mut answers = Vec::new();
        for op in self.scripts[role] {
            let entry = &self.entry;
            let (answer, released) = match *op {
                Notify(n) | Tell(n, _) => {
                    self.blocks[n as usize].read();
                    let told = if let Tell(_, told) = op { *told } else { 0 };
                    match entry.notify(consumer(n), told, UNTIL) {
                        Notified::Effect(effect) => (format!("{effect:?}"), notify_releases(&effect)),
                        other => (format!("{other:?}"), false),
                    }
                }
                SetExpected(n) => told(entry.set_expected(n, UNTIL), expect_releases),
                Renew(deadline) => told(entry.renew(deadline, None, 5), |_| false),
                Abort => told(entry.abort(UNTIL), abort_releases),
                Expire => told(entry.expire(UNTIL), abort_releases),
                Sweep(now) => told(entry.sweep(now, false, UNTIL), sweep_releases),
                Hold(now) => told(entry.sweep(now, true, UNTIL), sweep_releases),
                End(_) | Finish(_) if !mine => ("-".into(), false),
                Begin => {
                    let effect = entry.begin_transfer();
                    mine = effect == BeginEffect::Begun;
                    if mine {
                        self.blocks[0].read();
                    }
                    told(effect, |_| false)
                }
                End(claim) => told(entry.end_transfer(claim, UNTIL), |e| matches!(e, EndEffect::Release(..))),
                Arm => {
                    let effect = entry.arm();
                    mine = effect == ArmEffect::Armed;
                    told(effect, |_| false)
                }
                Finish(expected) => {
                    let (_, end) = entry.finish_arming(&Terms { expected, ..terms(None) }, Owned::new(2), 7, UNTIL);
                    (format!("{end:?}"), end.is_some_and(|end| end.released))
                }
            };
            if released {
                self.release();
            }
            answers.push(answer);
        }
        answers
    }

    fn close(&'static self, answers: Vec<Vec<String>>) -> String {
        // SAFETY: all roles have ended.
        let mut releases = self.releases.with(|n| unsafe { *n });
        let left = format!("{:?}, released {releases}", self.entry.load());
        // Whatever is left of it ends with the next sweeps.
        let word = self.entry.load();
        if sweep_releases(&self.entry.sweep(LAST, false, UNTIL)) {
            self.release();
            releases += 1;
        }
        let leased = word.is_live() || word.outcome().is_some();
        assert_eq!(releases, u32::from(leased), "one release: {word:?}");
        if leased {
            assert_eq!(self.entry.load().transfers(), 0, "no transfer is left");
        }
        name(&answers, &left)
    }
}

fn told<E: Debug>(effect: E, released: impl Fn(&E) -> bool) -> (String, bool) {
    (format!("{effect:?}"), released(&effect))
}

const ROLES: [Role<Scene, Vec<String>>; 4] = [|s| s.play(0), |s| s.play(1), |s| s.play(2), |s| s.play(3)];

/// Plays the scripts on an entry that is leased until 10 for `expected` consumers (0: not known), or early.
pub(super) fn play(model: Model, word: Word, scripts: &'static [&'static [Op]], atomic: bool) {
    let model = match atomic {
        true => model.expect(outcomes((word.0, vec![false; scripts.len()], 0), scripts, spec_step, spec_end)),
        false => model,
    };
    model.run(
        move || Scene {
            entry: match word {
                Word::EARLY => LeaseEntry::early(30),
                // A consumer is known that it waits for: that is not what is asked about here.
                word => LeaseEntry::new(word, &terms(ConsumerId::new(1)), 0, Some(Owned::new(1))),
            },
            scripts,
            blocks: std::array::from_fn(|_| Owned::new(())),
            releases: UnsafeCell::new(0),
        },
        &ROLES[..scripts.len()],
        Scene::close,
    );
}

#[test]
fn consumers() {
    let two = Word::leased(10, 2);
    play(
        Model::new("entry: notify ‖ notify (last) ‖ sweep", "I1 I2 I5 I6 I9"),
        two,
        &[&[Notify(1)], &[Notify(2)], &[Sweep(10)]],
        true,
    );
    play(
        Model::new("entry: notify (last) ‖ sweep ‖ late notify", "I1 I2 I5 I9"),
        Word::leased(10, 1),
        &[&[Notify(1)], &[Sweep(10)], &[Notify(2)]],
        true,
    );
    play(
        Model::new("entry: abort ‖ notify (last) ‖ sweep", "I1 I2 I9"),
        Word::leased(10, 1),
        &[&[Abort], &[Notify(1)], &[Sweep(10)]],
        true,
    );
    play(
        Model::new("entry: notify ‖ set_expected ‖ notify", "I1 I2 I6"),
        Word::leased(10, 0),
        &[&[Notify(1)], &[SetExpected(2)], &[Notify(2)]],
        true,
    );
    play(
        Model::new("entry: telling 1 ‖ telling 2", "I1 I2 I6"),
        Word::leased(10, 0),
        &[&[Tell(1, 1)], &[Tell(2, 2)]],
        true,
    );
}

#[test]
fn the_same_consumer() {
    // Not one step: a repeated message is told from a new one by the set of consumers.
    play(
        Model::new("entry: duplicate ‖ duplicate", "I5 I6"),
        Word::leased(10, 2),
        &[&[Notify(1)], &[Notify(1)]],
        false,
    );
    play(
        Model::new("entry: three consumers, a chunk for the third", "I1 I2 I6").bound(3),
        Word::leased(10, 3),
        &[&[Notify(1)], &[Notify(2)], &[Notify(3)]],
        true,
    );
}

#[test]
fn transfers() {
    play(
        Model::new("entry: transfer ‖ sweep ‖ notify (last)", "I1 I9 I11"),
        Word::leased(10, 1),
        &[&[Begin, End(true)], &[Sweep(10)], &[Notify(1)]],
        true,
    );
    play(
        Model::new("entry: transfer left ‖ abort, sweep", "I1 I9 I11"),
        Word::leased(10, 1),
        &[&[Begin, End(false)], &[Abort, Sweep(10)]],
        true,
    );
    play(
        Model::new("entry: transfer ‖ transfer left, abort", "I1 I9 I11"),
        Word::leased(10, 1),
        &[&[Begin, End(true)], &[Begin, End(false), Abort]],
        true,
    );
}

#[test]
fn arming() {
    play(
        Model::new("entry: track of an early entry ‖ notify ‖ sweep", "I1 I4"),
        Word::EARLY,
        &[&[Arm, Finish(Some(1))], &[Notify(1)], &[Sweep(30)]],
        true,
    );
    play(
        Model::new("entry: track of an early entry ‖ abort ‖ renew", "I1 I4 I8"),
        Word::EARLY,
        &[&[Arm, Finish(Some(1))], &[Abort], &[Renew(20)]],
        true,
    );
    play(
        Model::new("entry: track ‖ track of an early entry", "I1 I4"),
        Word::EARLY,
        &[&[Arm, Finish(Some(1))], &[Arm, Finish(Some(1))]],
        true,
    );
}
