//! The map, against a plain ordered map as its specification.

use super::explorer::{name, outcomes};
use super::harness::{Model, Owned, Role};
use super::scripts::*;
use crate::map::{Handle, pin};
use crate::sync::{AtomicU64, Ordering};
use std::collections::BTreeMap;

struct Scene {
    map: Map,
    /// That it began with.
    buckets: usize,
    scripts: &'static [&'static [Op]],
}

impl Scene {
    fn play(&'static self, role: usize) -> Vec<String> {
        play(&self.map, self.scripts[role])
    }

    fn close(&'static self, answers: Vec<Vec<String>>) -> String {
        let guard = pin();
        self.map.assert_whole(&guard);
        name(&answers, &contents(&self.map))
    }

    /// As `close`, where a move was on: it has been brought to its end, so the roles did meet a bucket on its way.
    fn close_grown(&'static self, answers: Vec<Vec<String>>) -> String {
        assert_eq!(self.map.buckets(&pin()), [2 * self.buckets], "the larger index, alone");
        self.close(answers)
    }
}

const ROLES: [Role<Scene, Vec<String>>; 4] = [|s| s.play(0), |s| s.play(1), |s| s.play(2), |s| s.play(3)];

/// After `before`, the scripts, on a map of one bucket.
fn model(model: Model, before: &'static [Op], scripts: &'static [&'static [Op]]) {
    model_in(1, model, before, scripts);
}

fn model_in(buckets: usize, model: Model, before: &'static [Op], scripts: &'static [&'static [Op]]) {
    let mut initial: Spec = (BTreeMap::new(), vec![None; scripts.len()]);
    for op in before {
        spec_step(&mut initial, 0, op);
    }
    initial.1[0] = None;
    let expected = outcomes(initial, scripts, spec_step, |(map, _)| format!("{map:?}"));
    let grows = |script: &[Op]| script.iter().any(|op| matches!(op, Grow));
    let close =
        if grows(before) || scripts.iter().any(|script| grows(script)) { Scene::close_grown } else { Scene::close };
    model.expect(expected).run(
        move || Scene { map: map_after(buckets, before), buckets, scripts },
        &ROLES[..scripts.len()],
        close,
    );
}

/// A map of so many buckets, after `before`. If that ends in `Grow`, a move is on, and nothing has been moved.
fn map_after(buckets: usize, before: &[Op]) -> Map {
    let map = map_of(buckets);
    play(&map, before);
    if let Some(Grow) = before.last() {
        assert_eq!(map.buckets(&pin()), [buckets, 2 * buckets]);
    }
    map
}

#[test]
fn inserts() {
    model(Model::new("map: insert ‖ insert, equal keys", "unique keys"), &[], &[&[Insert(1, 1)], &[Insert(1, 2)]]);
    model(Model::new("map: insert ‖ insert, equal hashes", "unique keys"), &[], &[&[Insert(10, 1)], &[Insert(11, 2)]]);
    model(Model::new("map: insert ‖ get, get", "publication"), &[], &[&[Insert(1, 1)], &[Get(1), Get(1)]]);
}

#[test]
fn inserts_of_three() {
    model(
        Model::new("map: insert ‖ insert ‖ get, equal keys", "unique keys, publication").bound(3),
        &[],
        &[&[Insert(1, 1)], &[Insert(1, 2)], &[Get(1)]],
    );
}

#[test]
fn removals() {
    model(Model::new("map: insert ‖ remove", "one remover"), &[], &[&[Insert(1, 1)], &[Remove(1)]]);
    model(
        Model::new("map: remove ‖ remove ‖ get", "one remover"),
        &[Insert(1, 1)],
        &[&[Remove(1)], &[Remove(1)], &[Get(1)]],
    );
    model(
        Model::new("map: compare_remove ‖ remove, insert", "identity"),
        &[Insert(1, 1)],
        &[&[Observe(1), CompareRemove(1)], &[Remove(1), Insert(1, 2)]],
    );
    model(
        Model::new("map: insert of what is there ‖ remove", "unique keys, one remover"),
        &[Insert(1, 1)],
        &[&[Insert(1, 2)], &[Remove(1)]],
    );
}

#[test]
fn replacements() {
    model(
        Model::new("map: replace ‖ remove", "one remover, identity"),
        &[Insert(1, 1)],
        &[&[Observe(1), CompareReplace(1, 2)], &[Remove(1)]],
    );
    model(
        Model::new("map: replace ‖ replace ‖ get", "identity, publication"),
        &[Insert(1, 1)],
        &[&[ReplaceIf(1, 1, 2)], &[ReplaceIf(1, 1, 3)], &[Get(1)]],
    );
    model(
        Model::new("map: replace a second time ‖ remove_if", "one remover, identity"),
        &[Insert(1, 1), ReplaceIf(1, 1, 2)],
        &[&[ReplaceIf(1, 2, 3)], &[RemoveIf(1, 2)]],
    );
}

#[test]
fn growth() {
    model(Model::new("map: get ‖ move", "nothing is lost"), &[Insert(10, 1), Grow], &[&[Get(10)], &[Insert(20, 2)]]);
    model(
        Model::new("map: remove ‖ move", "nothing is left").bound(4),
        &[Insert(10, 1), Grow],
        &[&[Remove(10)], &[Insert(20, 2)]],
    );
    model(
        Model::new("map: get ‖ beginning of growth", "nothing is lost").bound(4),
        &[Insert(10, 1)],
        &[&[Get(10)], &[Grow, Insert(20, 2)]],
    );
}

#[test]
fn growth_of_two_buckets() {
    // Each moves one; whichever is the last makes the next index current, for the reader, too.
    model_in(
        2,
        Model::new("map: move ‖ move of another bucket ‖ get", "nothing is lost, promotion").bound(2),
        &[Insert(10, 1), Insert(20, 2), Grow],
        &[&[Insert(30, 3)], &[Insert(40, 4)], &[Get(10)]],
    );
}

/// What a scan has met.
fn scan(scene: &'static Scene) -> Vec<String> {
    let guard = pin();
    let met = scene.map.iter(&guard).map(|entry| {
        entry.key().0.read();
        entry.value().read();
        entry.value().what.to_string()
    });
    met.collect()
}

#[test]
fn scans() {
    // An insert that is refused takes its value back, so that nobody may have met it.
    fn close(scene: &'static Scene, answers: Vec<Vec<String>>) -> String {
        let guard = pin();
        scene.map.assert_whole(&guard);
        let refused = answers[1..].iter().position(|answer| answer[0].starts_with("exists"));
        if let Some(role) = refused {
            assert!(!answers[0].contains(&(role + 1).to_string()), "met what was refused: {answers:?}");
        }
        name(&answers, &contents(&scene.map))
    }
    Model::new("map: scan ‖ insert ‖ insert, equal keys", "publication, unique keys").bound(3).run(
        || Scene { map: map_of(1), buckets: 1, scripts: &[&[], &[Insert(1, 1)], &[Insert(1, 2)]] },
        &[scan, ROLES[1], ROLES[2]],
        close,
    );
    // What is there all the time is met once.
    fn close_moved(scene: &'static Scene, answers: Vec<Vec<String>>) -> String {
        assert_eq!(answers[0].iter().filter(|met| *met == "1").count(), 1, "{answers:?}");
        assert_eq!(scene.map.buckets(&pin()), [2]);
        name(&answers, &contents(&scene.map))
    }
    Model::new("map: scan ‖ move", "nothing is lost").run(
        || Scene { map: map_after(1, &[Insert(10, 1), Grow]), buckets: 1, scripts: &[&[], &[Insert(20, 2)]] },
        &[scan, ROLES[1]],
        close_moved,
    );
}

#[test]
fn lengths() {
    // Never below zero, nor beyond what was there with what is on its way.
    Model::new("map: len ‖ insert, remove", "the count").run(
        || Scene { map: map_of(1), buckets: 1, scripts: &[&[], &[Insert(1, 1), Remove(1)]] },
        &[
            |scene: &'static Scene| {
                let len = scene.map.len();
                assert!(len <= 1, "{len} entries");
                vec![len.to_string()]
            },
            ROLES[1],
        ],
        Scene::close,
    );
}

#[test]
fn growth_by_two() {
    model(
        Model::new("map: insert ‖ insert, equal keys, during a move", "unique keys, nothing is lost").bound(3),
        &[Insert(10, 1), Grow],
        &[&[Insert(20, 2)], &[Insert(20, 3)]],
    );
}

#[test]
fn growth_by_two_and_a_removal() {
    model(
        Model::new("map: move ‖ move ‖ remove", "nothing is left").bound(2),
        &[Insert(10, 1), Grow],
        &[&[Insert(20, 2)], &[Insert(30, 3)], &[Remove(10)]],
    );
}

#[test]
fn growth_and_removals() {
    // A mover that is overtaken by removals again and again, in a bucket that is full.
    model(
        Model::new("map: move ‖ remove, remove, remove", "nothing is left").bound(3),
        &[Insert(10, 1), Insert(20, 2), Insert(30, 3), Grow],
        &[&[Move(10)], &[Remove(10), Remove(20), Remove(30)]],
    );
}

#[test]
fn handles() {
    // A handle is a number, and may be handed on by an access that orders nothing.
    struct Passed {
        map: Map,
        /// One more than its bits, or 0.
        handle: AtomicU64,
    }
    fn insert(scene: &'static Passed) -> Vec<String> {
        let guard = pin();
        let Ok(entry) = scene.map.insert(Key(Owned::new(1)), Owned::new(1), &guard) else {
            unreachable!("it is empty")
        };
        scene.handle.swap(entry.handle().to_bits() + 1, Ordering::Relaxed);
        vec!["inserted".into()]
    }
    fn follow(scene: &'static Passed) -> Vec<String> {
        let Some(bits) = scene.handle.load(Ordering::Relaxed).checked_sub(1) else { return vec!["none".into()] };
        let guard = pin();
        let entry = scene.map.by_handle(Handle::from_bits(bits), &guard);
        entry.inspect(|entry| {
            entry.key().0.read();
            entry.value().read();
        });
        vec![entry.map_or("not yet", |_| "found").into()]
    }
    Model::new("map: insert, hand the handle on ‖ by_handle", "publication").run(
        || Passed { map: map_of(1), handle: AtomicU64::new(0) },
        &[insert, follow],
        |_, answers| name(&answers, ""),
    );
}

#[test]
fn full_buckets() {
    model(
        Model::new("map: insert ‖ insert into the last place", "unique keys, sealing").bound(3),
        &[Insert(10, 1), Insert(20, 2)],
        &[&[Insert(30, 3)], &[Insert(40, 4)]],
    );
    model(
        Model::new("map: insert ‖ insert, equal keys, into a full bucket", "unique keys, sealing").bound(2),
        &[Insert(10, 1), Insert(20, 2), Insert(30, 3)],
        &[&[Insert(40, 4)], &[Insert(40, 5)]],
    );
    model(
        Model::new("map: insert ‖ remove in a full bucket", "unique keys, sealing").bound(3),
        &[Insert(10, 1), Insert(20, 2), Insert(30, 3)],
        &[&[Insert(40, 4)], &[Remove(10)]],
    );
}

#[test]
fn reuse() {
    model(
        Model::new("map: insert ‖ get of what was there", "reuse").reuse(),
        &[Insert(10, 1), Remove(10)],
        &[&[Insert(20, 2)], &[Get(10)]],
    );
    model(
        Model::new("map: remove ‖ get", "reuse, grace period").reuse(),
        &[Insert(10, 1)],
        &[&[Remove(10)], &[Get(10)]],
    );
    model(
        Model::new("map: replace ‖ get", "reuse, grace period").reuse(),
        &[Insert(10, 1)],
        &[&[ReplaceIf(10, 1, 2)], &[Get(10)]],
    );
}

#[test]
fn reuse_of_a_slot_that_is_looked_at() {
    model(
        Model::new("map: remove; insert ‖ get", "reuse, grace period").reuse().bound(2),
        &[Insert(10, 1)],
        &[&[Remove(10)], &[Insert(11, 2)], &[Get(10)]],
    );
}
