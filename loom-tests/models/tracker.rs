//! The composed tracker: the crate's own [`SendTracker`], on its own map, leases and deadline index.
//!
//! In every model:
//!
//! * a consumer reads its block before it notifies, and whoever is given a `Completed` release uses the
//!   blocks of all expected consumers as only their owner may (I2, and the memory ordering that the tracker
//!   promises); whoever is given any release uses what transfers have read (I11);
//! * at the end the tracker is swept until it says that there is nothing more to do, and then every payload
//!   has been given out once, every gauge is zero, and every lease that was tracked is counted under one
//!   outcome (I1, I3, I7, I10).

use super::harness::{Model, Owned, Role};
use crate::{
    Aborted, Config, ConsumerId, Ended, ExpectedSet, ExpiryPolicy, Notified, Outcome, Release, Renewed, SendTracker,
    Stats, Swept, Terms, Timestamp, TrackError, Tracked, Transfer,
};
use std::fmt::Debug;
use std::mem::ManuallyDrop;
use std::time::Duration;

type Payload = Owned<u32>;

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn rank(n: u32) -> ConsumerId {
    ConsumerId::new(n).unwrap()
}

/// A tracker, and the blocks that its leases are about.
struct Scene {
    tracker: SendTracker<Payload>,
    /// What consumer n reads; a transfer, what lies at 0.
    blocks: [Owned<()>; 4],
    /// The consumers that have read when a lease is completed.
    readers: &'static [usize],
    /// The payloads that are given to `track`.
    payloads: &'static [u32],
}

/// What a role was answered, and what was released to it.
struct Answer {
    text: String,
    released: Vec<(u32, Outcome)>,
    /// The same, of the calls before the last one.
    earlier: Vec<(u32, Outcome)>,
    /// The payload that a `track` handed back.
    refused: Option<u32>,
}

impl Answer {
    /// Of two calls of one role, one after the other.
    fn then(mut self, next: Answer) -> Answer {
        self.text = format!("{}{}; {}", self.text, given(&self), next.text);
        // Kept apart, so that `given` shows only those of the last call.
        self.earlier.extend(std::mem::take(&mut self.released));
        Answer {
            text: self.text,
            released: next.released,
            earlier: self.earlier,
            refused: self.refused.or(next.refused),
        }
    }
}

impl Scene {
    fn new(readers: &'static [usize]) -> Self {
        Self::with(readers, |_| ())
    }

    fn with(readers: &'static [usize], change: fn(&mut Config)) -> Self {
        let mut config = Config {
            early_capacity: 4,
            early_ttl: Duration::from_millis(50),
            tombstone_capacity: 2,
            tombstone_ttl: Duration::from_millis(100),
            ..Config::default()
        };
        change(&mut config);
        let tracker = SendTracker::with_config(config);
        Scene { tracker, blocks: std::array::from_fn(|_| Owned::new(())), readers, payloads: &[1] }
    }

    /// A scene in which `a` is leased until 10 for so many consumers, with payload 1.
    fn leased(expected: u32, readers: &'static [usize]) -> Self {
        let scene = Scene::new(readers);
        assert_eq!(scene.track(1, expected).text, "leased");
        scene
    }

    fn given(&self, release: &Release<Payload>) -> (u32, Outcome) {
        release.payload.own();
        if release.payload.what == 1 {
            self.blocks[0].own();
        }
        if release.outcome == Outcome::Completed {
            self.readers.iter().for_each(|reader| self.blocks[*reader].own());
        }
        (release.payload.what, release.outcome)
    }

    fn answer(&self, text: impl Into<String>, releases: impl IntoIterator<Item = Release<Payload>>) -> Answer {
        let released = releases.into_iter().map(|release| self.given(&release)).collect();
        Answer { text: text.into(), released, earlier: Vec::new(), refused: None }
    }

    fn ended(&self, text: &str, ended: Ended<Payload>) -> Answer {
        match ended {
            Ended::Released(release) => self.answer(text, [release]),
            Ended::AfterTransfer => self.answer(format!("{text} after transfer"), []),
        }
    }

    fn track_until(&self, payload: u32, expected: Option<u32>, deadline: u64) -> Answer {
        let mut terms = Terms::until(at(deadline)).weight(3).waits_for(rank(1));
        if let Some(expected) = expected {
            terms = terms.consumers(expected);
        }
        match self.tracker.track("a", terms, Owned::new(payload), at(5)) {
            Ok(Tracked::Leased) => self.answer("leased", []),
            Ok(Tracked::Ended(release)) => self.answer("ended at once", [release]),
            Err(TrackError { payload, reason }) => {
                payload.own();
                Answer { refused: Some(payload.what), ..self.answer(format!("refused: {reason:?}"), []) }
            }
        }
    }

    fn track(&self, payload: u32, expected: u32) -> Answer {
        self.track_until(payload, Some(expected), 10)
    }

    fn notified(&self, notified: Notified<Payload>) -> Answer {
        match notified {
            Notified::Completed(ended) => self.ended("completed", ended),
            Notified::ExpectedConflict { ended: Some(ended), .. } => self.ended("completed in conflict", ended),
            Notified::Counted { seen, .. } => self.answer(format!("counted {seen}"), []),
            Notified::Duplicate { seen, .. } => self.answer(format!("duplicate {seen}"), []),
            other => self.plain(other),
        }
    }

    fn plain(&self, answer: impl Debug) -> Answer {
        self.answer(format!("{answer:?}"), [])
    }

    fn notify(&self, reader: usize) -> Answer {
        self.blocks[reader].read();
        self.notified(self.tracker.notify("a", rank(reader as u32), at(5)))
    }

    fn set_expected(&self, expected: u32) -> Answer {
        match self.tracker.set_expected("a", expected, at(5)) {
            ExpectedSet::Completed(ended) => self.ended("completed", ended),
            other => self.plain(other),
        }
    }

    fn abort(&self) -> Answer {
        match self.tracker.abort("a", at(5)) {
            Aborted::Ended(ended) => self.ended("aborted", ended),
            other => self.plain(other),
        }
    }

    fn renew(&self, deadline: u64) -> Answer {
        self.plain(self.tracker.renew("a", at(deadline), None, at(5)))
    }

    fn sweep(&self, now: u64) -> Answer {
        let swept = self.tracker.sweep(at(now));
        let Swept { released, overdue, after_transfer, early_dropped, tombstones_dropped } = swept;
        let text = format!(
            "swept {}, {} overdue, {after_transfer} after transfer, {early_dropped} early, {tombstones_dropped} tombstones",
            released.len(),
            overdue.len()
        );
        self.answer(text, released)
    }

    fn expire(&self, reader: u32) -> Answer {
        let released = self.tracker.expire_consumers(&[rank(reader)], at(5));
        self.answer(format!("expired {}", released.len()), released)
    }

    fn shutdown(&self) -> Answer {
        let released = self.tracker.shutdown(at(5));
        self.answer(format!("shut down {}", released.len()), released)
    }

    /// A whole transfer, by a guard that is ended, or dropped.
    fn transfer(&self, claim: bool) -> Answer {
        let transfer = match self.tracker.begin_transfer("a") {
            Ok(transfer) => ManuallyDrop::new(transfer),
            Err(refusal) => return self.plain(refusal),
        };
        self.blocks[0].read();
        self.end_transfer(transfer, claim)
    }

    fn end_transfer<T: std::ops::Deref<Target = SendTracker<Payload>>>(
        &self,
        transfer: ManuallyDrop<Transfer<Payload, T>>,
        claim: bool,
    ) -> Answer {
        // `ManuallyDrop`, so that an exploration that is given up does not end transfers.
        let transfer = ManuallyDrop::into_inner(transfer);
        if !claim {
            drop(transfer);
            return self.answer("transferred, dropped", []);
        }
        let released = transfer.end(at(5));
        self.answer("transferred", released)
    }

    /// What must hold when all roles have ended, and the name of the outcome.
    fn close(&'static self, answers: Vec<Answer>) -> String {
        let mut text: Vec<String> = answers.iter().map(|answer| format!("{}{}", answer.text, given(answer))).collect();
        let mut released: Vec<(u32, Outcome)> =
            answers.iter().flat_map(|answer| answer.earlier.iter().chain(&answer.released)).copied().collect();
        let refused: Vec<u32> = answers.iter().filter_map(|answer| answer.refused).collect();
        let payloads: Vec<u32> = self.payloads.iter().filter(|payload| !refused.contains(payload)).copied().collect();
        let mut sweeps = 0;
        while let Some(next) = self.tracker.next_deadline() {
            sweeps += 1;
            assert!(sweeps < 20, "an end to the deadlines");
            let answer = self.sweep(next.as_millis());
            if !answer.released.is_empty() {
                text.push(format!("then at {}{}", next.as_millis(), given(&answer)));
            }
            released.extend(answer.released);
        }
        let mut given: Vec<u32> = released.iter().map(|(payload, _)| *payload).collect();
        given.sort_unstable();
        assert_eq!(given, payloads, "each payload once: {text:?}");
        let stats = self.tracker.stats();
        let Stats { live, release_pending, weight_held, early, tombstones, transfers, .. } = stats;
        assert_eq!(
            (live, release_pending, weight_held, early, tombstones, transfers),
            (0, 0, 0, 0, 0, 0),
            "gauges at rest: {text:?}"
        );
        assert_eq!(stats.tracked, payloads.len() as u64);
        assert_eq!(stats.released, stats.tracked);
        let of = |outcome| released.iter().filter(|(_, o)| *o == outcome).count() as u64;
        assert_eq!(
            (stats.completed, stats.expired, stats.aborted),
            (of(Outcome::Completed), of(Outcome::Expired), of(Outcome::Aborted))
        );
        assert_eq!(self.tracker.leases().count(), 0);
        assert!(self.tracker.is_empty(), "nothing is left behind: {text:?}");
        text.join(" ‖ ")
    }
}

fn given(answer: &Answer) -> String {
    answer.released.iter().map(|(payload, outcome)| format!(" -> {payload} {outcome}")).collect()
}

fn play(model: Model, setup: fn() -> Scene, roles: &[Role<Scene, Answer>]) {
    model.run(setup, roles, Scene::close);
}

#[test]
fn notify_notify_sweep() {
    play(
        Model::new("tracker: notify ‖ notify (last) ‖ sweep", "I1 I2 I5 I9"),
        || Scene::leased(2, &[1, 2]),
        &[|s| s.notify(1), |s| s.notify(2), |s| s.sweep(10)],
    );
}

#[test]
fn notify_sweep_late_notify() {
    play(
        Model::new("tracker: notify (last) ‖ sweep ‖ late notify", "I1 I2 I5 I9"),
        || Scene::leased(1, &[]),
        &[|s| s.notify(1), |s| s.sweep(10), |s| s.notify(2)],
    );
}

#[test]
fn abort_and_last_notify() {
    play(
        Model::new("tracker: abort ‖ notify (last)", "I1 I2 I9"),
        || Scene::leased(1, &[1]),
        &[|s| s.abort(), |s| s.notify(1)],
    );
    play(
        Model::new("tracker: abort ‖ notify (last) ‖ sweep", "I1 I2 I9"),
        || Scene::leased(1, &[1]),
        &[|s| s.abort(), |s| s.notify(1), |s| s.sweep(10)],
    );
}

#[test]
fn renew_and_sweep() {
    // At the deadline: extended and alive, or late and released.
    fn renew(scene: &'static Scene) -> Answer {
        let renewed = scene.tracker.renew("a", at(20), None, at(10));
        scene.plain(renewed)
    }
    fn close(scene: &'static Scene, answers: Vec<Answer>) -> String {
        let extended = answers[0].text == format!("{:?}", Renewed::Extended);
        assert_eq!(extended, answers[1].released.is_empty(), "extended and released");
        scene.close(answers)
    }
    Model::new("tracker: renew ‖ sweep at the deadline", "I1 I8 I9").run(
        || Scene::leased(1, &[1]),
        &[renew, |s| s.sweep(10)],
        close,
    );
    play(
        Model::new("tracker: renew ‖ sweep ‖ notify (last)", "I1 I8 I9"),
        || Scene::leased(1, &[1]),
        &[renew, |s| s.sweep(10), |s| s.notify(1)],
    );
    // Held past its deadline, and brought back: the index has to be told.
    play(
        Model::new("tracker: renew ‖ sweep that holds ‖ abort", "I1 I2 I3 I8"),
        || {
            let scene = Scene::with(&[1], |config| config.expiry = ExpiryPolicy::Hold);
            scene.track(1, 1);
            scene
        },
        &[renew, |s| s.sweep(10), |s| s.abort()],
    );
}

#[test]
fn early_notify_and_track() {
    play(
        Model::new("tracker: early notify ‖ track", "I1 I2 I4"),
        || Scene::new(&[1]),
        &[|s| s.notify(1), |s| s.track(1, 1)],
    );
}

#[test]
fn early_notify_kept_and_track() {
    // The entry is there already: what was stashed is armed while more comes.
    fn scene() -> Scene {
        let scene = Scene::new(&[1, 2]);
        assert_eq!(scene.notify(1).text, "Early");
        scene
    }
    play(Model::new("tracker: second early notify ‖ track", "I1 I2 I4"), scene, &[|s| s.notify(2), |s| s.track(1, 2)]);
    play(
        Model::new("tracker: track ‖ sweep of what came early", "I1 I3 I4").bound(3),
        scene,
        &[|s| s.track_until(1, Some(2), 100), |s| s.sweep(55)],
    );
}

#[test]
fn early_abort_and_track() {
    play(
        Model::new("tracker: early abort ‖ track", "I1 I4 I9"),
        || Scene::new(&[1]),
        &[|s| s.abort(), |s| s.track(1, 1)],
    );
}

#[test]
fn early_abort_kept_and_track() {
    play(
        Model::new("tracker: second early abort ‖ track", "I1 I4 I9"),
        || {
            let scene = Scene::new(&[1]);
            assert_eq!(scene.renew(20).text, "Early");
            scene
        },
        &[|s| s.abort(), |s| s.track(1, 1)],
    );
}

/// The first life of `a` has ended; payload 2 is for the second.
fn ended() -> Scene {
    let scene = Scene { payloads: &[1, 2], ..Scene::leased(1, &[]) };
    assert_eq!(scene.abort().text, "aborted");
    scene
}

/// As [`Scene::close`]; the first life was released in the setup.
fn close_second(scene: &'static Scene, mut answers: Vec<Answer>) -> String {
    answers[0].earlier.push((1, Outcome::Aborted));
    scene.close(answers)
}

#[test]
fn track_again_and_late_notify() {
    // Counted for the second life, or late for the first: never both, never lost.
    Model::new("tracker: track again ‖ late notify of the old life", "I1 I5 I9").bound(4).run(
        ended,
        &[|s| s.track(2, 1), |s| s.notify(1)],
        close_second,
    );
}

#[test]
fn transfers() {
    play(
        Model::new("tracker: end of transfer ‖ sweep ‖ notify (last)", "I1 I9 I11"),
        || {
            let scene = Scene::leased(1, &[1]);
            std::mem::forget(scene.tracker.begin_transfer("a").unwrap());
            scene
        },
        &[
            |s| {
                s.blocks[0].read();
                s.end_transfer(ManuallyDrop::new(s.tracker.forgotten_transfer("a")), true)
            },
            |s| s.sweep(10),
            |s| s.notify(1),
        ],
    );
    play(
        Model::new("tracker: transfer ‖ abort", "I1 I9 I11"),
        || Scene::leased(1, &[1]),
        &[|s| s.transfer(true), |s| s.abort()],
    );
}

#[test]
fn dropped_transfer() {
    play(
        Model::new("tracker: transfer that is dropped ‖ sweep", "I1 I3 I10 I11"),
        || Scene::leased(1, &[1]),
        &[|s| s.transfer(false), |s| s.sweep(10)],
    );
}

#[test]
fn duplicates() {
    play(
        Model::new("tracker: duplicate notify ‖ duplicate notify", "I1 I5 I6"),
        || Scene::leased(2, &[]),
        &[|s| s.notify(1), |s| s.notify(1)],
    );
    play(
        Model::new("tracker: duplicate ‖ duplicate ‖ notify (last)", "I1 I5 I6").bound(3),
        // Who repeats a message has not said when it read again.
        || Scene::leased(2, &[2]),
        &[|s| s.notify(1), |s| s.notify(1), |s| s.notify(2)],
    );
}

#[test]
fn set_expected_and_notify() {
    fn scene() -> Scene {
        let scene = Scene::new(&[1]);
        assert_eq!(scene.track_until(1, None, 10).text, "leased");
        scene
    }
    play(Model::new("tracker: set_expected ‖ notify", "I1 I2 I6"), scene, &[|s| s.set_expected(1), |s| s.notify(1)]);
    play(
        Model::new("tracker: set_expected ‖ notify ‖ sweep", "I1 I2 I6"),
        scene,
        &[|s| s.set_expected(1), |s| s.notify(1), |s| s.sweep(10)],
    );
}

#[test]
fn two_sweeps() {
    play(Model::new("tracker: sweep ‖ sweep", "I1 I3"), || Scene::leased(1, &[1]), &[|s| s.sweep(10), |s| s.sweep(10)]);
}

#[test]
fn sweep_and_track() {
    // Of another id, whose lease comes into the deadline index while that is swept.
    fn track_b(scene: &'static Scene) -> Answer {
        let terms = Terms::until(at(10)).consumers(1).waits_for(rank(1));
        let leased = scene.tracker.track("b", terms, Owned::new(2), at(5)).unwrap();
        scene.answer("leased", leased.release())
    }
    play(
        Model::new("tracker: sweep ‖ track of another, then swept", "I1 I3 I10").bound(4),
        || Scene { payloads: &[1, 2], ..Scene::leased(1, &[1]) },
        &[
            |s| s.sweep(10),
            |s| {
                let swept = track_b(s).then(s.sweep(10));
                assert!(s.tracker.leases().all(|lease| lease.id != "b"), "due, and swept by somebody");
                swept
            },
        ],
    );
}

#[test]
fn shutdown_notify_track() {
    play(
        Model::new("tracker: shutdown ‖ notify (last)", "I1 I2 I10"),
        || Scene::leased(1, &[1]),
        &[|s| s.shutdown(), |s| s.notify(1)],
    );
    play(
        Model::new("tracker: shutdown ‖ track", "I1 I10"),
        || Scene::new(&[1]),
        &[|s| s.shutdown(), |s| s.track(1, 1)],
    );
}

#[test]
fn shutdown_notify_track_of_three() {
    play(
        Model::new("tracker: shutdown ‖ notify ‖ track", "I1 I4 I10").bound(2),
        || Scene::new(&[1]),
        &[|s| s.shutdown(), |s| s.notify(1), |s| s.track(1, 1)],
    );
}

/// `a` and `b` are leased, with room for so many tombstones.
fn two_leased(tombstones: usize) -> Scene {
    let scene = Scene::new(&[]);
    let config = Config { tombstone_capacity: tombstones, ..scene.tracker.config().clone() };
    let scene = Scene { tracker: SendTracker::with_config(config), payloads: &[1, 2], ..scene };
    scene.track(1, 1);
    let terms = Terms::until(at(10)).consumers(1).waits_for(rank(1));
    assert!(scene.tracker.track("b", terms, Owned::new(2), at(5)).unwrap().release().is_none());
    scene
}

fn abort_b(scene: &'static Scene) -> Answer {
    match scene.tracker.abort("b", at(5)) {
        Aborted::Ended(ended) => scene.ended("aborted", ended),
        other => scene.plain(other),
    }
}

#[test]
fn two_ends_with_room_for_both() {
    // Neither puts the other's tombstone out.
    fn close(scene: &'static Scene, answers: Vec<Answer>) -> String {
        for id in ["a", "b"] {
            assert_eq!(scene.tracker.lease(id).and_then(|lease| lease.outcome), Some(Outcome::Aborted), "{id}");
        }
        scene.close(answers)
    }
    Model::new("tracker: abort ‖ abort of another", "I5").run(
        || two_leased(2),
        &[|s: &'static Scene| s.abort(), abort_b],
        close,
    );
}

#[test]
fn eviction_and_late_notify() {
    // Room for one tombstone: the end of `b` evicts that of `a`. Late, or early again.
    fn close(scene: &'static Scene, mut answers: Vec<Answer>) -> String {
        answers[0].earlier.push((1, Outcome::Aborted));
        scene.close(answers)
    }
    Model::new("tracker: eviction of a tombstone ‖ late notify", "I5 I7").run(
        || {
            let scene = two_leased(1);
            assert_eq!(scene.abort().text, "aborted");
            scene
        },
        &[abort_b, |s| s.notify(1)],
        close,
    );
}

#[test]
fn all_ends_at_once() {
    // Of four, whoever is first; what is renewed is not due.
    play(
        Model::new("tracker: abort ‖ notify (last) ‖ sweep ‖ expire_consumers", "I1 I2 I9").bound(2),
        || Scene::leased(1, &[1]),
        &[|s| s.abort(), |s| s.notify(1), |s| s.sweep(10), |s| s.expire(1)],
    );
}

#[test]
fn notifications_of_three_and_sweep() {
    play(
        // Two of the three complete it, and the third is late, whichever that is.
        Model::new("tracker: notify ‖ notify ‖ sweep ‖ notify, one of them late", "I1 I2 I5 I6 I9").bound(2),
        || Scene::leased(2, &[]),
        &[|s| s.notify(1), |s| s.notify(2), |s| s.sweep(10), |s| s.notify(3)],
    );
}

#[test]
fn death_of_an_engine_and_notify() {
    play(
        Model::new("tracker: expire_consumers ‖ notify (last)", "I1 I2 I9"),
        || Scene::leased(1, &[1]),
        &[|s| s.expire(1), |s| s.notify(1)],
    );
    play(
        Model::new("tracker: expire_consumers ‖ notify (last) ‖ sweep", "I1 I2 I9"),
        || Scene::leased(1, &[1]),
        &[|s| s.expire(1), |s| s.notify(1), |s| s.sweep(10)],
    );
}
