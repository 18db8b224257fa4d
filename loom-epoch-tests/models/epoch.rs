//! The map, whose slots come back by the real epoch.

use super::explorer::{name, outcomes};
use super::harness::{Model, Role};
use super::scripts::*;
use crate::map::pin;
use std::collections::BTreeMap;

/// What one role does, each part under a guard of its own.
type Parts = &'static [&'static [Op]];

struct Scene {
    map: Map,
    scripts: [Parts; 2],
}

impl Scene {
    fn play(&'static self, role: usize) -> Vec<String> {
        self.scripts[role].iter().flat_map(|part| play(&self.map, part)).collect()
    }
}

/// With what tells whether something was reused.
type Closing = (Scene, fn(&Map) -> bool);

const ROLES: [Role<Closing, Vec<String>>; 2] = [|(scene, _)| scene.play(0), |(scene, _)| scene.play(1)];

/// After `before`, the scripts, on a map of one bucket. `reused` says whether what the first role gave up had come
/// back by the time it looked for it, so that there are outcomes of each kind: what is deferred runs neither always
/// nor never.
fn model(model: Model, before: &'static [Op], scripts: [Parts; 2], reused: fn(&Map) -> bool) {
    let mut initial: Spec = (BTreeMap::new(), vec![None; 2]);
    for op in before {
        spec_step(&mut initial, 0, op);
    }
    let flat = scripts.map(|parts| parts.concat());
    let flat: Vec<&[Op]> = flat.iter().map(Vec::as_slice).collect();
    let expected = outcomes(initial, &flat, spec_step, |(map, _)| format!("{map:?}"));
    let both = |outcome: &String| [true, false].map(|reused| format!("{outcome}, reused: {reused}"));
    model.expect(expected.iter().flat_map(both).collect()).reuse().run(
        move || {
            let map = map_of(1);
            play(&map, before);
            (Scene { map, scripts }, reused)
        },
        &ROLES,
        |(scene, reused), answers| {
            scene.map.assert_whole(&pin());
            format!("{}, reused: {}", name(&answers, &contents(&scene.map)), reused(&scene.map))
        },
    );
}

#[test]
fn a_removed_entry() {
    // The new entry has the hash of the old one, and its slot if that is free.
    model(
        Model::new("map on the epoch: remove; collect, insert ‖ get", "grace period"),
        &[Insert(10, 1)],
        [&[&[Remove(10)], &[Collect, Insert(11, 2)]], &[&[Get(10)]]],
        |map| map.slots().allocated == 1,
    );
}

#[test]
fn an_entry_that_both_remove() {
    // Each may be the one that defers, and both advance the epoch.
    model(
        Model::new("map on the epoch: remove; collect, insert ‖ remove; get", "grace period, one remover").bound(2),
        &[Insert(10, 1)],
        [&[&[Remove(10)], &[Collect, Insert(11, 2)]], &[&[Remove(10)], &[Get(11)]]],
        |map| map.slots().allocated == 1,
    );
}

#[test]
fn a_replaced_value() {
    // A replacement's value has a slot of its own, which the next one retires.
    model(
        Model::new("map on the epoch: replace; collect, insert ‖ get", "grace period"),
        &[Insert(10, 1), ReplaceIf(10, 1, 2)],
        [&[&[ReplaceIf(10, 2, 3)], &[Collect, Insert(11, 4)]], &[&[Get(10)]]],
        |map| map.slots().allocated == 3,
    );
}

#[test]
fn an_index_that_was_grown_out_of() {
    // Freed, not used again.
    model(
        Model::new("map on the epoch: move; collect ‖ get", "grace period"),
        &[Insert(10, 1), Grow],
        [&[&[Move(10)], &[Collect]], &[&[Get(10)]]],
        |_| crate::reclaim::any_corpses(),
    );
}
