//! Any sequence of calls on the tracker, against the plain model that the property tests use.

#![no_main]

use kvlease::{Config, ExpiryPolicy, Timestamp};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use model::{IDS, Op, When};
use std::time::Duration;

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../../tests/model/mod.rs"]
mod model;

fuzz_target!(|data: &[u8]| {
    let u = &mut Unstructured::new(data);
    let Ok((dropped, config)) = u.arbitrary().and_then(|dropped: bool| Ok((dropped, config(u)?))) else { return };
    let mut steps = Vec::new();
    // More of them take long and reach nothing new.
    while !u.is_empty() && steps.len() < 200 {
        match tick(u).and_then(|tick| Ok((tick, op(u)?))) {
            Ok(step) => steps.push(step),
            Err(_) => break,
        }
    }
    if dropped { model::run_and_drop(config, steps) } else { model::run(config, steps) }
});

fn config(u: &mut Unstructured<'_>) -> Result<Config> {
    let millis = |u: &mut Unstructured<'_>| u.int_in_range(5..=60).map(Duration::from_millis);
    Ok(Config {
        capacity: if u.arbitrary()? { Some(u.int_in_range(1..=3)?) } else { None },
        early_capacity: u.int_in_range(0..=3)?,
        early_ttl: millis(u)?,
        tombstone_capacity: *u.choose(&[0, 1, 2, 100])?,
        tombstone_ttl: millis(u)?,
        expiry: if u.arbitrary()? { ExpiryPolicy::Hold } else { ExpiryPolicy::Release },
        ..Config::default()
    })
}

/// How far the clock moves before a step: mostly on, sometimes back.
fn tick(u: &mut Unstructured<'_>) -> Result<i64> {
    Ok(match u.arbitrary::<u8>()? {
        0..80 => 0,
        on @ 80..220 => i64::from(on - 80) % 15,
        220..240 => u.int_in_range(15..=200)?,
        240.. => u.int_in_range(-40..=0)?,
    })
}

fn op(u: &mut Unstructured<'_>) -> Result<Op> {
    Ok(match u.int_in_range(0..=15)? {
        0..=2 => Op::Track {
            id: id(u)?,
            deadline: when(u)?,
            expected: maybe(u, |u| edge(u))?,
            weight: u.int_in_range(0..=2)?,
            waits_for: maybe(u, by)?,
        },
        3 | 4 => Op::Notify { id: id(u)?, by: by(u)?, claimed: maybe(u, |u| edge(u))? },
        5 => Op::NotifyBatch(some(u, |u| Ok((id(u)?, by(u)?, maybe(u, |u| edge(u))?)))?),
        6 => Op::SetExpected { id: id(u)?, n: edge(u)? },
        7 => Op::Renew { id: id(u)?, deadline: when(u)?, by: maybe(u, by)? },
        8 => Op::RenewBatch { ids: some(u, id)?, deadline: when(u)?, by: maybe(u, by)? },
        9 => Op::Abort { id: id(u)? },
        10 => Op::BeginTransfer { id: id(u)?, owned: u.arbitrary()? },
        11 => Op::EndTransfer { guard: u.int_in_range(0..=7)? },
        12 => Op::DropTransfer { guard: u.int_in_range(0..=7)? },
        13 => Op::Sweep,
        14 => Op::SweepWhenTold,
        _ if u.ratio(1, 8)? => Op::Shutdown,
        _ => Op::ExpireConsumers(some(u, by)?),
    })
}

fn id(u: &mut Unstructured<'_>) -> Result<usize> {
    u.choose_index(IDS.len())
}

/// More of them than fit beside the word, so that its overflow is reached too.
fn by(u: &mut Unstructured<'_>) -> Result<u32> {
    u.int_in_range(1..=24)
}

/// A count of consumers, mostly a sensible one.
fn edge(u: &mut Unstructured<'_>) -> Result<u32> {
    Ok(match u.arbitrary::<u8>()? {
        few @ 0..230 => u32::from(few) % 5,
        230..240 => 20,
        240..250 => *u.choose(&[0, 254, 255, 256])?,
        250.. => u.arbitrary()?,
    })
}

fn when(u: &mut Unstructured<'_>) -> Result<When> {
    Ok(match u.arbitrary::<u8>()? {
        0..240 => When::FromNow(u.int_in_range(-10..=80)?),
        240..245 => When::Exactly(Timestamp::ZERO),
        245..250 => When::Exactly(Timestamp::MAX_DEADLINE),
        250.. => When::Exactly(Timestamp::MAX_DEADLINE + Duration::from_millis(1)),
    })
}

fn maybe<T>(u: &mut Unstructured<'_>, of: impl FnOnce(&mut Unstructured<'_>) -> Result<T>) -> Result<Option<T>> {
    if u.arbitrary()? { of(u).map(Some) } else { Ok(None) }
}

/// Up to 20: a batch works on sixteen at a time.
fn some<T>(u: &mut Unstructured<'_>, of: impl Fn(&mut Unstructured<'_>) -> Result<T>) -> Result<Vec<T>> {
    (0..u.int_in_range(0..=20)?).map(|_| of(u)).collect()
}
