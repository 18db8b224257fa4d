//! Any sequence of calls, against a plain model of the contract: see `model`.

mod common;
mod model;

use kvlease::{Config, ExpiryPolicy, Timestamp};
use model::{IDS, Op, When, run, run_and_drop};
use proptest::prelude::*;
use std::time::Duration;

fn op() -> impl Strategy<Value = Op> {
    let id = || 0..IDS.len();
    let by = || 1..=5_u32;
    let claimed =
        || prop_oneof![4 => Just(None), 8 => (1..=4_u32).prop_map(Some), 1 => Just(Some(0)), 1 => Just(Some(256))];
    let expected = || prop_oneof![3 => Just(None), 8 => (0..=4_u32).prop_map(Some), 1 => Just(Some(256))];
    let deadline = || {
        prop_oneof![
            20 => (-10..80_i64).prop_map(When::FromNow),
            1 => Just(When::Exactly(Timestamp::ZERO)),
            1 => Just(When::Exactly(Timestamp::MAX_DEADLINE)),
            1 => Just(When::Exactly(Timestamp::MAX_DEADLINE + Duration::from_millis(1))),
        ]
    };
    let maybe_by = || proptest::option::of(by());
    prop_oneof![
        10 => (id(), deadline(), expected(), 0..3_u32, maybe_by())
            .prop_map(|(id, deadline, expected, weight, waits_for)| Op::Track { id, deadline, expected, weight, waits_for }),
        12 => (id(), by(), claimed()).prop_map(|(id, by, claimed)| Op::Notify { id, by, claimed }),
        2 => proptest::collection::vec((id(), by(), claimed()), 0..4).prop_map(Op::NotifyBatch),
        2 => (id(), prop_oneof![9 => 0..=4_u32, 1 => Just(256)]).prop_map(|(id, n)| Op::SetExpected { id, n }),
        5 => (id(), deadline(), maybe_by()).prop_map(|(id, deadline, by)| Op::Renew { id, deadline, by }),
        2 => (proptest::collection::vec(id(), 0..4), deadline(), maybe_by())
            .prop_map(|(ids, deadline, by)| Op::RenewBatch { ids, deadline, by }),
        3 => id().prop_map(|id| Op::Abort { id }),
        6 => (id(), any::<bool>()).prop_map(|(id, owned)| Op::BeginTransfer { id, owned }),
        4 => any::<usize>().prop_map(|guard| Op::EndTransfer { guard }),
        2 => any::<usize>().prop_map(|guard| Op::DropTransfer { guard }),
        8 => Just(Op::Sweep),
        4 => Just(Op::SweepWhenTold),
        1 => proptest::collection::vec(by(), 0..3).prop_map(Op::ExpireConsumers),
        1 => prop_oneof![9 => Just(Op::Sweep), 1 => Just(Op::Shutdown)],
    ]
}

/// How far the clock moves before a step: mostly on, sometimes back.
fn tick() -> impl Strategy<Value = i64> {
    prop_oneof![4 => Just(0), 8 => 0..15_i64, 1 => 15..200_i64, 1 => -40..0_i64]
}

fn configs() -> impl Strategy<Value = Config> {
    let capacity = prop_oneof![2 => Just(None), 1 => (1..4_usize).prop_map(Some)];
    let ttl = || (5..60_u64).prop_map(Duration::from_millis);
    (capacity, 0..4_usize, ttl(), prop_oneof![Just(0), Just(1), Just(2), Just(100)], ttl(), any::<bool>()).prop_map(
        |(capacity, early_capacity, early_ttl, tombstone_capacity, tombstone_ttl, hold)| Config {
            capacity,
            early_capacity,
            early_ttl,
            tombstone_capacity,
            tombstone_ttl,
            expiry: if hold { ExpiryPolicy::Hold } else { ExpiryPolicy::Release },
            ..Config::default()
        },
    )
}

/// How many cases to try: as many as `PROPTEST_CASES` says, but not fewer than these.
fn cases(at_least: u32) -> u32 {
    ProptestConfig::default().cases.max(at_least)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(2_000), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_calls_is_answered_as_the_contract_says(
        config in configs(),
        steps in proptest::collection::vec((tick(), op()), 0..60),
    ) {
        run(config, steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(300), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_tracker_dropped_at_any_moment_drops_each_payload_once(
        config in configs(),
        steps in proptest::collection::vec((tick(), op()), 0..30),
    ) {
        run_and_drop(config, steps);
    }
}
