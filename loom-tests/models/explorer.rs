//! The outcomes that there must be, found without loom and without the code that is modelled.
//!
//! Each role is a script of operations, each operation one step of a plain, sequential specification. All
//! orders of all steps are tried, breadth first over the states. A model of the same scripts on the real
//! thing must come to the same set of outcomes: none less (then it would not have been explored), none
//! more (then an operation would not be atomic).

use super::harness::assert_same;
use std::collections::BTreeSet;
use std::hash::Hash;

/// The set of outcomes of these scripts, run as threads from `initial`. `step` does one operation for a role
/// and gives its answer; `end` says what is left.
pub(crate) fn outcomes<St: Clone + Eq + Hash + Ord, Op>(
    initial: St,
    scripts: &[&[Op]],
    step: impl Fn(&mut St, usize, &Op) -> String,
    end: impl Fn(&St) -> String,
) -> BTreeSet<String> {
    #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
    struct At<St> {
        state: St,
        done: Vec<usize>,
        answers: Vec<Vec<String>>,
    }
    let none = At { state: initial, done: vec![0; scripts.len()], answers: vec![Vec::new(); scripts.len()] };
    let mut level = BTreeSet::from([none]);
    let mut found = BTreeSet::new();
    while !level.is_empty() {
        let mut next = BTreeSet::new();
        for at in level {
            let mut over = true;
            for (role, script) in scripts.iter().enumerate() {
                let Some(op) = script.get(at.done[role]) else { continue };
                over = false;
                let mut at = at.clone();
                at.done[role] += 1;
                let answer = step(&mut at.state, role, op);
                at.answers[role].push(answer);
                next.insert(at);
            }
            if over {
                found.insert(name(&at.answers, &end(&at.state)));
            }
        }
        level = next;
    }
    found
}

/// The name of an outcome: what each role was answered, and what is left.
pub(crate) fn name(answers: &[Vec<String>], left: &str) -> String {
    let answers: Vec<String> = answers.iter().map(|role| role.join(", ")).collect();
    format!("{} => {left}", answers.join(" ‖ "))
}

#[test]
fn the_explorer_finds_all_orders_of_two_increments_in_halves() {
    // Read and write as steps of their own: one of two updates can be lost, and both answers of each.
    let scripts: &[&[u8]] = &[&[0, 1], &[0, 1]];
    let found = outcomes(
        (0u8, [0u8; 2]),
        scripts,
        |(shared, own), role, op| match op {
            0 => {
                own[role] = *shared;
                format!("{}", own[role])
            }
            _ => {
                *shared = own[role] + 1;
                String::new()
            }
        },
        |(shared, _)| shared.to_string(),
    );
    let expected = ["0,  ‖ 0,  => 1", "0,  ‖ 1,  => 2", "1,  ‖ 0,  => 2"];
    assert_same("explorer", &expected.iter().map(ToString::to_string).collect(), &found);
}
