//! The deadline index: what has been scheduled is found by a visit that comes after, whoever raises and
//! lowers at the same time.

use super::harness::{Model, Role};
use crate::deadline::DeadlineIndex;
use crate::lease::word::NEVER;
use crate::sync::{AtomicU64, Ordering};

/// The index, over words that hold nothing but a time.
struct Scene {
    index: DeadlineIndex<3, 1>,
    times: [AtomicU64; 4],
}

impl Scene {
    fn new(times: &[(u32, u64)]) -> Self {
        let scene = Scene { index: DeadlineIndex::new(), times: std::array::from_fn(|_| AtomicU64::new(NEVER)) };
        for (slot, time) in times {
            scene.schedule(*slot, *time);
        }
        scene
    }

    fn schedule(&self, slot: u32, time: u64) {
        self.times[slot as usize].swap(time, Ordering::AcqRel);
        self.index.schedule(slot, time);
    }

    /// Later, as a renewal: the index is not told.
    fn renew(&self, slot: u32, time: u64) -> bool {
        let seen = self.times[slot as usize].load(Ordering::Acquire);
        seen < time
            && self.times[slot as usize].compare_exchange(seen, time, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Takes what is due.
    fn visit(&self, now: u64) -> Vec<u32> {
        let mut found = Vec::new();
        self.index.visit(now, &mut |slot| {
            let Some(word) = self.times.get(slot as usize) else { return NEVER };
            let mut time = word.load(Ordering::Acquire);
            while time <= now {
                match word.compare_exchange(time, NEVER, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => {
                        found.push(slot);
                        return NEVER;
                    }
                    Err(changed) => time = changed,
                }
            }
            time
        });
        found
    }

    /// Schedules, and visits at that time: then it has been found, by this visit or another.
    fn schedule_and_visit(&self, slot: u32, time: u64) -> Vec<u32> {
        self.schedule(slot, time);
        let found = self.visit(time);
        assert!(self.times[slot as usize].load(Ordering::Acquire) > time, "{slot} is not found at {time}");
        found
    }

    /// All is found, at its time, once; `scheduled` says how many there were.
    fn close(&self, found: Vec<Vec<u32>>, scheduled: usize) -> String {
        let mut all: Vec<u32> = found.concat();
        let mut visits = 0;
        while self.index.bound() < NEVER {
            let least = self.times.iter().map(|time| time.load(Ordering::Acquire)).min().unwrap();
            assert!(self.index.bound() <= least, "a bound is low enough");
            all.extend(self.visit(self.index.bound()));
            visits += 1;
            assert!(visits < 20, "an end to the visits");
        }
        assert!(self.times.iter().all(|time| time.load(Ordering::Acquire) == NEVER), "nothing is forgotten");
        assert_eq!(all.len(), scheduled, "each is found once");
        format!("{found:?}")
    }
}

fn play(
    model: Model,
    setup: fn() -> Scene,
    roles: &[Role<Scene, Vec<u32>>],
    close: fn(&'static Scene, Vec<Vec<u32>>) -> String,
) {
    model.run(setup, roles, close);
}

#[test]
fn schedule_and_visit() {
    play(
        Model::new("deadline: schedule ‖ visit of a neighbour", "I3 I10").bound(4),
        || Scene::new(&[(0, 5)]),
        &[|s| s.schedule_and_visit(1, 5), |s| s.visit(5)],
        |s, found| s.close(found, 2),
    );
    play(
        Model::new("deadline: schedule ‖ visit far away", "I3 I10").bound(4),
        || Scene::new(&[(0, 5)]),
        &[|s| s.schedule_and_visit(3, 5), |s| s.visit(5)],
        |s, found| s.close(found, 2),
    );
    play(
        Model::new("deadline: visit ‖ visit", "I3 I10").bound(4),
        || Scene::new(&[(0, 5), (1, 5), (2, 7)]),
        &[|s| s.visit(5), |s| s.visit(7)],
        |s, found| s.close(found, 3),
    );
    play(
        Model::new("deadline: renew ‖ visit", "I3 I8 I10"),
        || Scene::new(&[(0, 5)]),
        &[
            |s| {
                s.renew(0, 9);
                vec![]
            },
            |s| s.visit(5),
        ],
        |s, found| {
            // A renewal that came too late has left nothing to find.
            let late = s.times[0].load(Ordering::Acquire) == NEVER;
            if late { s.close(found, 1) } else { format!("renewed: {}", s.close(found, 1)) }
        },
    );
}

#[test]
fn schedule_and_schedule() {
    // The one that comes second relies on the nodes that the first has lowered only if they are settled.
    play(
        Model::new("deadline: schedule ‖ schedule, each then visits", "I3 I10").bound(3),
        || Scene::new(&[]),
        &[|s| s.schedule_and_visit(0, 5), |s| s.schedule_and_visit(1, 5)],
        |s, found| s.close(found, 2),
    );
    play(
        Model::new("deadline: schedule ‖ schedule of a later one, each then visits", "I3 I10").bound(3),
        || Scene::new(&[]),
        &[|s| s.schedule_and_visit(0, 5), |s| s.schedule_and_visit(1, 6)],
        |s, found| s.close(found, 2),
    );
}

#[test]
fn schedule_schedule_visit() {
    play(
        Model::new("deadline: schedule ‖ schedule ‖ visit", "I3 I10").bound(2),
        || Scene::new(&[(2, 5)]),
        &[
            |s| {
                s.schedule(0, 5);
                vec![]
            },
            |s| s.schedule_and_visit(1, 5),
            |s| s.visit(5),
        ],
        |s, found| s.close(found, 3),
    );
}

#[test]
fn three_schedules() {
    // The first may stall with a node lowered whose parent is not, the second pass it with a later time and
    // settle it; the third must not rely on that.
    fn put(scene: &'static Scene, slot: u32, time: u64) -> Vec<u32> {
        scene.schedule(slot, time);
        vec![]
    }
    play(
        Model::new("deadline: schedule ‖ schedule of a later one ‖ schedule, visit", "I3 I10").bound(2),
        || Scene::new(&[]),
        &[|s| put(s, 0, 5), |s| put(s, 1, 6), |s| s.schedule_and_visit(2, 5)],
        |s, found| s.close(found, 3),
    );
}
