//! The word alone: the transitions that touch nothing else, against the pure functions.

use super::entry::Op::*;
use super::entry::play;
use super::harness::Model;
use crate::lease::word::{Phase, Word};

#[test]
fn ends() {
    play(
        Model::new("word: abort ‖ sweep ‖ expire", "I1 I9"),
        Word::leased(10, 1),
        &[&[Abort], &[Sweep(10)], &[Expire]],
        true,
    );
    play(
        Model::new("word: abort ‖ sweep ‖ set_expected ‖ expire", "I1 I9"),
        Word::leased(10, 0),
        &[&[Abort], &[Sweep(10)], &[SetExpected(0)], &[Expire]],
        true,
    );
}

#[test]
fn renewals() {
    play(
        Model::new("word: renew ‖ sweep at the deadline", "I1 I8 I9"),
        Word::leased(10, 1),
        &[&[Renew(20)], &[Sweep(10), Sweep(20)]],
        true,
    );
    play(
        Model::new("word: renew ‖ renew ‖ sweep", "I1 I8 I9"),
        Word::leased(10, 1),
        &[&[Renew(20)], &[Renew(15)], &[Sweep(12)]],
        true,
    );
    play(
        Model::new("word: renew ‖ sweep that holds ‖ abort", "I1 I2 I8"),
        Word::leased(10, 1),
        &[&[Renew(20)], &[Hold(10), Hold(20)], &[Abort]],
        true,
    );
}

#[test]
fn transfers() {
    play(
        Model::new("word: end of transfer ‖ end of transfer, left ‖ sweep", "I1 I9 I11"),
        Word::new(Phase::Leased, 10, 0, 1, 2),
        &[&[End(true)], &[End(false)], &[Sweep(10)]],
        true,
    );
}
