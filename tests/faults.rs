//! Faults that connectors have really had, one test for each.
//!
//! Times are in seconds. Malformed messages are the wire parser's to test, and memory over many lives is measured in
//! `memory.rs`.

mod common;

use common::*;
use kvlease::Outcome::{self, Aborted as AbortedOutcome, Completed, Expired};
use kvlease::{
    Aborted, Clock, Config, Ended, ExpectedSet, ExpiryPolicy, Notification, Notified, Renewed, SendTracker, Swept,
    Terms, Timestamp, TrackError, TrackRefusal, Tracked, TransferRefusal,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

type Numbers = SendTracker<u32>;

fn tracker() -> Numbers {
    SendTracker::with_config(config())
}

/// What a sweep found that released just this.
fn swept(released: Vec<kvlease::Release<u32>>) -> Swept<u32> {
    Swept { released, ..Swept::default() }
}

fn already_ended(id: &str, outcome: Outcome, payload: u32) -> Result<Tracked<u32>, TrackError<u32>> {
    Ok(Tracked::Ended(release(id, outcome, payload, 0)))
}

#[test]
fn f01_an_expired_lease_is_released_once_and_its_notifications_come_late() {
    let ledger = Ledger::new();
    let t = SendTracker::with_config(config());
    lease(&t, "a", terms(120, 2), ledger.payload(), at(0));
    assert_eq!(t.sweep(at(119)), Swept::default());
    let swept = t.sweep(at(121));
    assert_eq!(swept, Swept { released: vec![release("a", Expired, Payload::shadow(0), 121)], ..Swept::default() });
    drop(swept);
    assert_eq!(ledger.dropped(), 1);

    assert_eq!(t.notify("a", rank(1), at(122)), Notified::Late(Expired));
    assert_eq!(t.notify_expecting("a", rank(2), 2, at(122)), Notified::Late(Expired));
    assert_eq!(t.sweep(at(123)), Swept::default());

    // Forgotten 60 s after its end, and then nothing at all is left.
    assert_eq!(t.sweep(at(180)), Swept::default());
    assert_eq!(t.sweep(at(181)), Swept { tombstones_dropped: 1, ..Swept::default() });
    assert_eq!(t.next_deadline(), None);
    let stats = t.stats();
    assert_empty(&stats);
    assert_eq!((stats.tracked, stats.expired, stats.released, stats.late, stats.tombstones), (1, 1, 1, 2, 0));
    ledger.assert_each_dropped_once();
}

#[test]
fn f02_a_request_tracked_again_does_not_inherit_the_count_of_its_first_life() {
    let t = tracker();
    lease(&t, "a", terms(30, 2), 1, at(0));
    assert_eq!(t.notify("a", rank(1), at(1)), counted(1, 2));
    assert_eq!(t.sweep(at(31)), swept(vec![release("a", Expired, 1, 31)]));

    lease(&t, "a", terms(60, 2), 2, at(32));
    // The same consumer, whose notification was counted in the first life.
    assert_eq!(t.notify("a", rank(1), at(33)), counted(1, 2));
    assert_eq!(t.notify("a", rank(2), at(34)), Notified::Completed(Ended::Released(release("a", Completed, 2, 2))));
    assert_eq!(t.notify("a", rank(3), at(35)), Notified::Late(Completed));
    // The first life's remembrance would have ended at 91; the second's ends at 94.
    assert_eq!(t.sweep(at(93)), Swept::default());
    assert_eq!(t.sweep(at(94)), Swept { tombstones_dropped: 1, ..Swept::default() });
}

#[test]
fn f03_an_abort_that_meets_the_last_notification_leaves_one_winner() {
    const ROUNDS: usize = 4_000;
    let ledger = Ledger::new();
    let t = SendTracker::with_config(config());
    let (mut aborted, mut completed) = (0, 0);
    // The same id in every life: the loser of one round must not reach into the next.
    race(
        ROUNDS,
        |_| lease(&t, "a", terms(120, 1), ledger.payload(), at(0)),
        |_| t.notify("a", rank(1), at(1)),
        |_| t.abort("a", at(1)),
        |round, notification, abort| {
            let payload = Payload::shadow(round as u64);
            match (abort, notification) {
                (Aborted::Ended(Ended::Released(r)), Notified::Late(AbortedOutcome)) => {
                    assert_eq!(r, release("a", AbortedOutcome, payload, 1));
                    aborted += 1;
                }
                (Aborted::Late(Completed), Notified::Completed(Ended::Released(r))) => {
                    assert_eq!(r, release("a", Completed, payload, 1));
                    completed += 1;
                }
                other => panic!("round {round}: {other:?}"),
            }
        },
    );
    ledger.assert_each_dropped_once();
    let stats = t.stats();
    assert_empty(&stats);
    assert_eq!((stats.aborted, stats.completed), (aborted, completed));
    assert_eq!((stats.tracked, stats.late), (ROUNDS as u64, ROUNDS as u64));
}

#[test]
fn f04_a_notification_before_track_completes_the_lease_at_once() {
    let t = tracker();
    assert_eq!(t.notify("a", rank(1), at(1)), Notified::Early);
    assert_eq!(t.stats().early, 1);
    assert_eq!(t.track("a", terms(120, 1), 7, at(2)), already_ended("a", Completed, 7));
    assert_eq!(t.notify("a", rank(1), at(3)), Notified::LateDuplicate(Completed));
    assert_eq!(t.notify("a", rank(2), at(3)), Notified::Late(Completed));

    // With two expected, it is one of them.
    assert_eq!(t.notify_expecting("b", rank(1), 2, at(1)), Notified::Early);
    // Said again, it is still early: the read may be of a life that ended and is forgotten, so nobody is told that it
    // was good.
    let again = t.notify_expecting("b", rank(1), 2, at(1));
    assert_eq!((again.verdict(), again), (None, Notified::Early));
    let conflict = t.notify_expecting("x", rank(1), 2, at(1));
    assert_eq!(conflict, Notified::Early);
    let conflict = t.notify_expecting("x", rank(2), 3, at(1));
    assert_eq!(
        (conflict.verdict(), conflict),
        (None, Notified::ExpectedConflict { claimed: 3, stands: 2, seen: 2, early: true, ended: None })
    );
    assert_eq!(t.track("x", terms(120, 2), 9, at(1)), already_ended("x", Completed, 9));
    lease(&t, "b", Terms::until(at(120)), 8, at(2));
    assert_eq!(t.notify("b", rank(1), at(3)), Notified::Duplicate { seen: 1, expected: Some(2) });
    assert_eq!(t.notify("b", rank(2), at(4)), Notified::Completed(Ended::Released(release("b", Completed, 8, 2))));

    // One that no `track` comes for is dropped in time, and a later life does not get it.
    assert_eq!(t.notify("c", rank(1), at(10)), Notified::Early);
    assert_eq!(t.notify("c", rank(2), at(14)), Notified::Early);
    assert_eq!(t.sweep(ms(14_999)), Swept::default());
    assert_eq!(t.next_deadline(), Some(at(15)));
    assert_eq!(t.sweep(at(15)), Swept { early_dropped: 1, ..Swept::default() });
    lease(&t, "c", terms(120, 1), 9, at(16));
    assert_eq!(t.stats().early, 0);
}

#[test]
fn f04_an_early_abort_ends_the_coming_lease_even_if_it_would_complete() {
    let t = tracker();
    assert_eq!(t.abort("a", at(1)), Aborted::Early);
    assert_eq!(t.abort("a", at(1)), Aborted::Early);
    assert_eq!(t.notify_expecting("a", rank(1), 1, at(1)), Notified::Early);
    assert_eq!(t.track("a", terms(120, 1), 1, at(2)), already_ended("a", AbortedOutcome, 1));
    assert_eq!(t.abort("b", at(1)), Aborted::Early);
    assert_eq!(t.track("b", terms(120, 0), 2, at(2)), already_ended("b", AbortedOutcome, 2));
    // The abort was of that life only.
    lease(&t, "a", terms(120, 1), 3, at(3));
}

#[test]
fn f05_a_million_notifications_for_unknown_ids_stay_within_the_cap() {
    let t = tracker();
    lease(&t, "tracked", terms(120, 2), 1, at(0));
    assert_eq!(t.notify("tracked", rank(1), at(0)), counted(1, 2));
    let mut id = String::new();
    let (mut early, mut unknown) = (0, 0);
    for i in 0..1_000_000_u32 {
        use std::fmt::Write;
        id.clear();
        write!(id, "cmpl-37c560d3-5680-4bd1-97f9-7ed31a56de60-{i}").unwrap();
        match t.notify_expecting(&id, rank(i % 8 + 1), 8, at(1)) {
            Notified::Early => early += 1,
            Notified::Unknown => unknown += 1,
            other => panic!("{id}: {other:?}"),
        }
    }
    assert_eq!((early, unknown), (4_096, 1_000_000 - 4_096));
    let stats = t.stats();
    assert_eq!((stats.early, stats.early_kept, stats.unknown), (4_096, 4_096, 1_000_000 - 4_096));
    assert_eq!((stats.live, stats.tombstones, stats.tracked), (1, 0, 1));

    // The tracked one is unharmed, one whose message was not kept can still be tracked, and the
    // flood is gone after its time, with room for new early messages.
    assert_eq!(t.notify("tracked", rank(2), at(2)).release(), Some(release("tracked", Completed, 1, 2)));
    lease(&t, &id, terms(120, 8), 2, at(2));
    assert_eq!(t.notify("late", rank(1), at(5)), Notified::Unknown);
    assert_eq!(t.sweep(at(6)), Swept { early_dropped: 4_096, ..Swept::default() });
    assert_eq!(t.notify("late", rank(1), at(6)), Notified::Early);
    let stats = t.stats();
    assert_eq!((stats.early, stats.early_dropped), (1, 4_096));
}

#[test]
fn f06_a_renewed_lease_does_not_hold_up_its_neighbour() {
    let t = tracker();
    lease(&t, "a", terms(30, 1), 1, at(0));
    lease(&t, "b", terms(30, 1), 2, at(0));
    assert_eq!(t.renew("a", at(45), None, at(25)), Renewed::Extended);
    assert_eq!(t.next_deadline(), Some(at(30)));
    assert_eq!(t.sweep(at(31)), swept(vec![release("b", Expired, 2, 31)]));
    assert_eq!(t.stats().live, 1);
    assert_eq!(t.sweep(at(44)), Swept::default());
    assert_eq!(t.sweep(at(46)), swept(vec![release("a", Expired, 1, 46)]));
}

#[test]
fn f07_a_long_lease_does_not_hold_up_a_short_one() {
    let t = tracker();
    lease(&t, "d", terms(480, 1), 1, at(0));
    lease(&t, "p", terms(30, 1), 2, at(0));
    assert_eq!(t.next_deadline(), Some(at(30)));
    assert_eq!(t.sweep(at(31)), swept(vec![release("p", Expired, 2, 31)]));
    assert_eq!(t.leases().map(|l| l.id).collect::<Vec<_>>(), ["d"]);
    assert_eq!(t.sweep(at(479)), Swept { tombstones_dropped: 1, ..Swept::default() });
    assert_eq!(t.next_deadline(), Some(at(480)));
    assert_eq!(t.sweep(at(480)), swept(vec![release("d", Expired, 1, 480)]));
}

#[test]
fn f08_a_consumer_that_notifies_twice_is_counted_once() {
    let t = tracker();
    lease(&t, "a", terms(120, 2), 1, at(0));
    assert_eq!(t.notify("a", rank(7), at(1)), counted(1, 2));
    assert_eq!(t.notify("a", rank(7), at(2)), Notified::Duplicate { seen: 1, expected: Some(2) });
    // Whatever count its message says.
    assert_eq!(t.notify_expecting("a", rank(7), 1, at(2)), Notified::Duplicate { seen: 1, expected: Some(2) });
    assert_eq!(t.notify("a", rank(8), at(3)), Notified::Completed(Ended::Released(release("a", Completed, 1, 3))));
    let stats = t.stats();
    assert_eq!((stats.notified, stats.duplicates, stats.conflicts), (2, 2, 0));
}

#[test]
fn f10_a_heartbeat_before_track_is_kept_for_the_lease() {
    let t = tracker();
    assert_eq!(t.renew("a", at(45), Some(rank(1)), at(1)), Renewed::Early);
    assert_eq!(t.renew("a", at(40), Some(rank(2)), at(1)), Renewed::Early);
    lease(&t, "a", terms(30, 1), 1, at(2));
    let info = t.leases().next().unwrap();
    assert_eq!((info.deadline, info.waits_for, info.tracked_at), (at(45), Some(rank(2)), at(2)));
    assert_eq!(t.next_deadline(), Some(at(45)));
    assert_eq!(t.sweep(at(31)), Swept::default());
    assert_eq!(t.sweep(at(45)), swept(vec![release("a", Expired, 1, 43)]));

    // It does not shorten the lease either.
    assert_eq!(t.renew("b", at(50), None, at(46)), Renewed::Early);
    lease(&t, "b", terms(90, 1), 2, at(47));
    assert_eq!(t.sweep(at(89)), Swept::default());
    assert_eq!(t.sweep(at(90)), swept(vec![release("b", Expired, 2, 43)]));
}

#[test]
fn f11_the_first_of_three_consumers_releases_nothing() {
    let ledger = Ledger::new();
    let t = SendTracker::with_config(config());
    lease(&t, "a", terms(120, 3), ledger.payload(), at(0));
    assert_eq!(t.notify("a", rank(1), at(1)), counted(1, 3));
    assert_eq!(ledger.dropped(), 0);
    assert_eq!(t.notify("a", rank(2), at(2)), counted(2, 3));
    assert_eq!(ledger.dropped(), 0);
    assert_eq!(t.stats().live, 1);
    assert_eq!(t.notify("a", rank(3), at(3)).release(), Some(release("a", Completed, Payload::shadow(0), 3)));
    assert_eq!(ledger.dropped(), 1);
}

#[test]
fn f12_more_consumers_than_expected_come_late_and_nothing_is_stuck() {
    let t = tracker();
    lease(&t, "a", terms(120, 2), 1, at(0));
    assert_eq!(t.notify("a", rank(1), at(1)), counted(1, 2));
    assert_eq!(t.notify("a", rank(2), at(1)), Notified::Completed(Ended::Released(release("a", Completed, 1, 1))));
    for n in 3..=5 {
        assert_eq!(t.notify("a", rank(n), at(1)), Notified::Late(Completed));
    }

    // The same five before `track`.
    for n in 1..=5 {
        assert_eq!(t.notify("b", rank(n), at(1)), Notified::Early);
    }
    assert_eq!(t.track("b", terms(120, 2), 2, at(2)), already_ended("b", Completed, 2));

    // And with the count learned last of all.
    lease(&t, "c", Terms::until(at(120)), 3, at(0));
    for n in 1..=4 {
        assert_eq!(t.notify("c", rank(n), at(1)), Notified::Counted { seen: n, expected: None });
    }
    assert_eq!(
        t.notify_expecting("c", rank(5), 2, at(3)),
        Notified::Completed(Ended::Released(release("c", Completed, 3, 3)))
    );
    assert_eq!(t.stats().live, 0);
    drain(&t, at(3));
    assert_empty(&t.stats());
}

#[test]
fn f13_an_aborted_lease_stays_aborted() {
    let t = tracker();
    lease(&t, "a", terms(120, 1), 1, at(0));
    assert_eq!(t.abort("a", at(1)), Aborted::Ended(Ended::Released(release("a", AbortedOutcome, 1, 1))));
    for _ in 0..2 {
        assert_eq!(t.notify("a", rank(1), at(2)), Notified::Late(AbortedOutcome));
        assert_eq!(t.renew("a", at(300), Some(rank(1)), at(2)), Renewed::Late(AbortedOutcome));
        assert_eq!(t.begin_transfer("a").err(), Some(TransferRefusal::Late(AbortedOutcome)));
        assert_eq!(t.set_expected("a", 1, at(2)), ExpectedSet::Late(AbortedOutcome));
        assert_eq!(t.abort("a", at(2)), Aborted::Late(AbortedOutcome));
    }
    assert!(t.expire_consumers(&[rank(1)], at(2)).is_empty());
    // Remembered until its own deadline, which is later than 60 s after its end, and no longer.
    assert_eq!(t.sweep(at(119)), Swept::default());
    assert_eq!(t.sweep(at(120)), Swept { tombstones_dropped: 1, ..Swept::default() });
}

#[test]
fn f14_a_lease_that_expires_in_transfer_is_released_by_the_end_of_the_transfer() {
    let ledger = Ledger::new();
    let t = Arc::new(SendTracker::with_config(config()));
    lease(&t, "a", terms(30, 2).weight(5), ledger.payload(), at(0));
    let transfer = t.begin_transfer_owned("a").unwrap();
    assert_eq!(t.sweep(at(31)), Swept { after_transfer: 1, ..Swept::default() });
    assert_eq!(ledger.dropped(), 0);
    // Decided: nothing changes it.
    assert_eq!(t.notify("a", rank(1), at(32)), Notified::Late(Expired));
    assert_eq!(t.renew("a", at(90), None, at(32)), Renewed::Late(Expired));
    assert_eq!(t.abort("a", at(32)), Aborted::Late(Expired));
    assert_eq!(t.begin_transfer("a").err(), Some(TransferRefusal::Late(Expired)));
    assert_eq!(t.sweep(at(33)), Swept::default());
    let stats = t.stats();
    assert_balanced(&stats);
    assert_eq!((stats.live, stats.release_pending, stats.transfers, stats.weight_held), (0, 1, 1, 5));
    let info = t.leases().next().unwrap();
    assert_eq!((info.outcome, info.transfers), (Some(Expired), 1));

    let mut expected = release("a", Expired, Payload::shadow(0), 40);
    expected.weight = 5;
    assert_eq!(transfer.end(at(40)), Some(expected));
    assert_eq!(t.sweep(at(41)), Swept::default());
    assert_empty(&t.stats());
    ledger.assert_each_dropped_once();
}

#[test]
fn f14_the_last_of_several_transfers_yields_the_release() {
    let t = tracker();
    lease(&t, "a", terms(30, 1), 1, at(0));
    let first = t.begin_transfer("a").unwrap();
    let second = t.begin_transfer("a").unwrap();
    let third = t.begin_transfer("a").unwrap();
    assert_eq!(third.end(at(1)), None);
    assert_eq!(t.notify("a", rank(1), at(2)), Notified::Completed(Ended::AfterTransfer));
    assert_eq!(first.end(at(3)), None);
    assert_eq!(second.end(at(4)), Some(release("a", Completed, 1, 4)));
    assert_empty(&t.stats());
}

#[test]
fn f15_a_dropped_transfer_guard_does_not_lose_the_release() {
    let ledger = Ledger::new();
    let t = SendTracker::with_config(config());
    lease(&t, "a", terms(120, 1), ledger.payload(), at(0));
    let first = t.begin_transfer("a").unwrap();
    let second = t.begin_transfer("a").unwrap();
    drop(first);
    assert_eq!(t.stats().transfers, 1);
    assert_eq!(t.abort("a", at(1)), Aborted::Ended(Ended::AfterTransfer));
    assert_eq!(t.sweep(at(2)), Swept::default());
    assert_eq!(ledger.dropped(), 0);

    drop(second);
    assert_eq!(t.stats().transfers, 0);
    assert_eq!(t.stats().release_pending, 1);
    assert!(t.next_deadline().is_some_and(|next| next <= at(2)), "the sweep is due at once");
    let swept = t.sweep(at(3));
    assert_eq!(
        swept,
        Swept { released: vec![release("a", AbortedOutcome, Payload::shadow(0), 3)], ..Swept::default() }
    );
    drop(swept);
    assert_eq!(t.sweep(at(4)), Swept::default());
    assert_empty(&t.stats());
    ledger.assert_each_dropped_once();
}

#[test]
fn f15_guards_dropped_while_the_lease_is_live_change_nothing() {
    let t = tracker();
    lease(&t, "a", terms(120, 1), 1, at(0));
    drop(t.begin_transfer("a").unwrap());
    drop(t.begin_transfer("a").unwrap());
    assert_eq!(t.next_deadline(), Some(at(120)));
    assert_eq!(t.notify("a", rank(1), at(1)).release(), Some(release("a", Completed, 1, 1)));
}

#[test]
fn f16_a_lease_for_nobody_ends_at_once() {
    let t = tracker();
    assert_eq!(t.track("a", terms(120, 0), 1, at(5)), already_ended("a", Completed, 1));
    assert_eq!(t.notify("a", rank(1), at(6)), Notified::Late(Completed));

    lease(&t, "b", Terms::until(at(120)), 2, at(5));
    assert_eq!(t.set_expected("b", 0, at(6)), ExpectedSet::Completed(Ended::Released(release("b", Completed, 2, 1))));

    assert_eq!(t.set_expected("c", 0, at(5)), ExpectedSet::Early);
    assert_eq!(t.track("c", Terms::until(at(120)), 3, at(5)), already_ended("c", Completed, 3));
    let stats = t.stats();
    assert_empty(&stats);
    assert_eq!((stats.tracked, stats.completed, stats.released), (3, 3, 3));
}

#[test]
fn f17_of_two_conflicting_counts_the_first_stands_and_the_lease_still_ends() {
    let t = tracker();
    lease(&t, "a", Terms::until(at(120)), 1, at(0));
    assert_eq!(t.notify_expecting("a", rank(1), 2, at(1)), counted(1, 2));
    assert_eq!(
        t.notify_expecting("a", rank(2), 4, at(2)),
        Notified::ExpectedConflict {
            claimed: 4,
            stands: 2,
            seen: 2,
            early: false,
            ended: Some(Ended::Released(release("a", Completed, 1, 2)))
        }
    );

    // Where the conflicting message is not the last one, it is counted all the same.
    lease(&t, "b", terms(120, 3), 2, at(0));
    assert_eq!(t.notify("b", rank(1), at(1)), counted(1, 3));
    let conflict = Notified::ExpectedConflict { claimed: 1, stands: 3, seen: 2, early: false, ended: None };
    assert_eq!(t.notify_expecting("b", rank(2), 1, at(1)), conflict);
    assert_eq!(t.set_expected("b", 2, at(1)), ExpectedSet::Conflict { stands: 3 });
    assert_eq!(t.notify("b", rank(3), at(2)).release(), Some(release("b", Completed, 2, 2)));
    assert_eq!(t.stats().conflicts, 2);

    // A count that came early gives way to the one of `track`.
    assert_eq!(t.notify_expecting("c", rank(1), 1, at(1)), Notified::Early);
    lease(&t, "c", terms(120, 2), 3, at(1));
    let release = release("c", Completed, 3, 1);
    assert_eq!(t.notify("c", rank(2), at(2)), Notified::Completed(Ended::Released(release)));
}

#[test]
fn f18_a_renewal_that_meets_the_sweep_extends_or_is_late() {
    const ROUNDS: usize = 4_000;
    let ledger = Ledger::new();
    let t = SendTracker::with_config(config());
    let (mut extended, mut late) = (0, 0);
    let begin = |round: usize| 100 * round as u64;
    race(
        ROUNDS,
        |round| lease(&t, "a", terms(begin(round) + 30, 1), ledger.payload(), at(begin(round))),
        |round| t.renew("a", at(begin(round) + 40), None, at(begin(round) + 30)),
        |round| t.sweep(at(begin(round) + 30)).released,
        |round, renewed, mut released| {
            let alive = t.leases().count();
            let age = match renewed {
                Renewed::Extended => {
                    extended += 1;
                    assert_eq!((alive, released.len()), (1, 0), "round {round}: extended and released");
                    // It runs to its new deadline, and not longer.
                    assert_eq!(t.sweep(at(begin(round) + 39)), Swept::default());
                    released = t.sweep(at(begin(round) + 40)).released;
                    40
                }
                Renewed::Late(Expired) => {
                    late += 1;
                    assert_eq!((alive, released.len()), (0, 1), "round {round}: late and not released");
                    30
                }
                other => panic!("round {round}: {other:?}"),
            };
            assert_eq!(released, [release("a", Expired, Payload::shadow(round as u64), age)]);
        },
    );
    ledger.assert_each_dropped_once();
    let stats = t.stats();
    assert_empty(&stats);
    assert_eq!((stats.extended, stats.late), (extended, late));
}

#[test]
fn f19_sixteen_threads_release_a_hundred_requests_once_each() {
    for seed in 0..40 {
        let ledger = Ledger::new();
        let released = AtomicUsize::new(0);
        let t = Arc::new(SendTracker::with_config(config()));
        let ids: Vec<String> = (0..100).map(|i| format!("cmpl-{i}")).collect();
        for id in &ids {
            lease(&t, id, terms(120, 2), ledger.payload(), at(0));
        }
        thread::scope(|s| {
            for n in 1..=16 {
                // Each thread has its own handle and drops it when it likes; the last one takes the
                // tracker along, with whatever it still holds.
                let t = t.clone();
                let (ids, released) = (&ids, &released);
                s.spawn(move || {
                    let mut rng = SmallRng::seed_from_u64(seed * 16 + u64::from(n));
                    for _ in 0..rng.random_range(0..60) {
                        let id = &ids[rng.random_range(0..ids.len())];
                        let release = match rng.random_range(0..8) {
                            0 => t.abort(id, at(1)).release(),
                            1 => t.begin_transfer(id).ok().and_then(|transfer| transfer.end(at(1))),
                            2 => {
                                drop(t.begin_transfer_owned(id));
                                t.sweep(at(1)).released.pop()
                            }
                            _ => t.notify(id, rank(n), at(1)).release(),
                        };
                        if let Some(release) = release {
                            assert_eq!(release.id, *id.as_str());
                            assert_eq!(release.payload.note_release(), 1);
                            released.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            if seed % 2 == 0 {
                drop(t);
            } else {
                s.spawn(move || {
                    let stats = t.stats();
                    assert_eq!(stats.tracked, 100);
                });
            }
        });
        assert!(released.into_inner() <= 100);
        ledger.assert_each_dropped_once();
    }
}

#[test]
fn f19_what_is_left_of_a_hundred_requests_comes_out_at_shutdown() {
    let ledger = Ledger::new();
    let t = SendTracker::with_config(config());
    let ids: Vec<String> = (0..100).map(|i| format!("cmpl-{i}")).collect();
    let released = AtomicUsize::new(0);
    let count = |release: kvlease::Release<Payload>| {
        assert_eq!(release.payload.note_release(), 1);
        released.fetch_add(1, Ordering::Relaxed);
    };
    for id in &ids {
        lease(&t, id, terms(120, 3), ledger.payload(), at(0));
    }
    thread::scope(|s| {
        for n in 1..=16 {
            let (t, ids, count) = (&t, &ids, &count);
            s.spawn(move || {
                let mut rng = SmallRng::seed_from_u64(u64::from(n));
                for _ in 0..30 {
                    let id = &ids[rng.random_range(0..ids.len())];
                    if rng.random_ratio(1, 10) {
                        t.abort(id, at(1)).release().into_iter().for_each(count);
                    } else {
                        t.notify(id, rank(n), at(1)).release().into_iter().for_each(count);
                    }
                }
                if n == 16 {
                    t.shutdown(at(1)).into_iter().for_each(count);
                }
            });
        }
    });
    assert_eq!(released.load(Ordering::Relaxed), 100);
    ledger.assert_each_dropped_once();
    assert_empty(&t.stats());
}

#[test]
fn f20_an_idle_engine_is_told_when_to_wake_and_a_sweep_frees_what_is_due() {
    let t = tracker();
    assert_eq!(t.next_deadline(), None);
    lease(&t, "a", terms(30, 1), 1, at(0));
    assert_eq!(t.next_deadline(), Some(at(30)));
    lease(&t, "b", terms(20, 1), 2, at(0));
    assert_eq!(t.next_deadline(), Some(at(20)));
    lease(&t, "c", terms(90, 1), 3, at(0));
    assert_eq!(t.next_deadline(), Some(at(20)));
    assert_eq!(t.sweep(at(20)), swept(vec![release("b", Expired, 2, 20)]));
    assert_eq!(t.next_deadline(), Some(at(30)));
    // An early message waits too: it is dropped after 5 s.
    assert_eq!(t.notify("d", rank(1), at(21)), Notified::Early);
    assert_eq!(t.next_deadline(), Some(at(26)));

    let (mut released, end) = drain(&t, at(21));
    released.sort_by(|a, b| a.id.cmp(&b.id));
    assert_eq!(released, [release("a", Expired, 1, 30), release("c", Expired, 3, 90)]);
    assert_eq!(end, at(150)); // when c is forgotten, 60 s after it ended
    assert_eq!(t.next_deadline(), None);
    let stats = t.stats();
    assert_empty(&stats);
    assert_eq!(stats.tombstones, 0);
}

#[test]
fn f20_a_renewal_moves_the_time_to_wake() {
    let t = SendTracker::with_config(Config { tombstone_capacity: 0, ..config() });
    lease(&t, "a", terms(30, 1), 1, at(0));
    assert_eq!(t.renew("a", at(50), None, at(10)), Renewed::Extended);
    // At worst it wakes for nothing once; it then knows better.
    assert!(t.next_deadline().is_some_and(|next| next <= at(50)));
    assert_eq!(t.sweep(at(30)), Swept::default());
    assert_eq!(t.next_deadline(), Some(at(50)));
    assert_eq!(drain(&t, at(30)), (vec![release("a", Expired, 1, 50)], at(50)));
}

#[test]
fn f21_shutdown_drains_everything() {
    let ledger = Ledger::new();
    let t = Arc::new(SendTracker::with_config(config()));
    for i in 0..50 {
        lease(&t, &format!("leased-{i:02}"), terms(120, 1).weight(2), ledger.payload(), at(0));
    }
    for i in 0..10 {
        assert_eq!(t.notify(&format!("early-{i}"), rank(1), at(0)), Notified::Early);
    }
    let [a, b, c] = [3, 14, 15].map(|i| t.begin_transfer_owned(&format!("leased-{i:02}")).unwrap());

    let mut released = t.shutdown(at(10));
    released.sort_by(|a, b| a.id.cmp(&b.id));
    let numbers: Vec<u64> = released.iter().map(|r| r.payload.number).collect();
    assert_eq!(numbers, (0..50).filter(|i| ![3, 14, 15].contains(i)).collect::<Vec<_>>());
    for release in &released {
        assert_eq!(release.id, *format!("leased-{:02}", release.payload.number).as_str());
        assert_eq!((release.outcome, release.weight, release.age), (AbortedOutcome, 2, Duration::from_secs(10)));
    }
    drop(released);
    assert_eq!(ledger.dropped(), 47);
    let stats = t.stats();
    assert_balanced(&stats);
    assert_eq!((stats.live, stats.early, stats.release_pending, stats.weight_held), (0, 0, 3, 6));

    let refused = t.track("new", terms(120, 1), ledger.payload(), at(11)).unwrap_err();
    assert_eq!((refused.reason, refused.payload.number), (TrackRefusal::ShutDown, 50));
    drop(refused);
    assert_eq!(t.notify("new", rank(1), at(11)), Notified::Unknown);
    assert_eq!(t.notify("early-0", rank(2), at(11)), Notified::Unknown);
    assert_eq!(t.renew("new", at(90), None, at(11)), Renewed::Unknown);
    assert_eq!(t.abort("new", at(11)), Aborted::Unknown);
    assert_eq!(t.set_expected("new", 1, at(11)), ExpectedSet::Unknown);
    assert_eq!(t.begin_transfer("new").err(), Some(TransferRefusal::NotLeased));
    assert_eq!(t.notify("leased-03", rank(1), at(11)), Notified::Late(AbortedOutcome));
    assert!(t.shutdown(at(12)).is_empty());

    // Two end, one is dropped: a sweep brings that one.
    for (transfer, number) in [(a, 3), (b, 14)] {
        let release = transfer.end(at(13)).unwrap();
        assert_eq!((release.payload.number, release.outcome), (number, AbortedOutcome));
    }
    drop(c);
    assert_eq!(t.sweep(at(13)).released.into_iter().map(|r| r.payload.number).collect::<Vec<_>>(), [15]);
    let (rest, _) = drain(&t, at(13));
    assert!(rest.is_empty());
    let stats = t.stats();
    assert_empty(&stats);
    assert_eq!((stats.tracked, stats.aborted, stats.released, stats.track_refused), (50, 50, 50, 1));
    assert_eq!(stats.tombstones, 0);
    ledger.assert_each_dropped_once();
}

#[test]
fn f21_shutdown_takes_what_a_dropped_guard_left_behind() {
    let t = tracker();
    lease(&t, "a", terms(30, 1), 1, at(0));
    let transfer = t.begin_transfer("a").unwrap();
    assert_eq!(t.notify("a", rank(1), at(1)), Notified::Completed(Ended::AfterTransfer));
    drop(transfer);
    // As it had ended, not as the shutdown would have ended it.
    assert_eq!(t.shutdown(at(2)), [release("a", Completed, 1, 2)]);
    assert_eq!(t.sweep(at(3)), Swept::default());
    assert_empty(&t.stats());
}

#[test]
fn f22_a_dead_decode_engine_ends_its_leases_and_no_others() {
    let t = tracker();
    let engine = |base: u32| (base + 1..=base + 8).map(rank).collect::<Vec<_>>();
    let [dead, alive] = [engine(0), engine(100)];
    for i in 0..1_000_u32 {
        let id = format!("r{i:03}");
        let ranks = if i < 500 { &dead } else { &alive };
        let rank = ranks[i as usize % 8];
        let terms = terms(480, 8);
        // A lease learns whom it waits for in one of five ways.
        match i % 5 {
            0 => lease(&t, &id, terms.waits_for(rank), i, at(0)),
            1 => {
                lease(&t, &id, terms, i, at(0));
                assert_eq!(t.notify(&id, rank, at(0)), counted(1, 8));
            }
            2 => {
                lease(&t, &id, terms, i, at(0));
                assert_eq!(t.renew(&id, at(500), Some(rank), at(0)), Renewed::Extended);
            }
            3 => {
                assert_eq!(t.notify(&id, rank, at(0)), Notified::Early);
                lease(&t, &id, terms, i, at(0));
            }
            _ => {
                assert_eq!(t.renew(&id, at(30), Some(rank), at(0)), Renewed::Early);
                lease(&t, &id, terms, i, at(0));
            }
        }
    }
    // Nobody has claimed this one, and this one is in transfer.
    lease(&t, "unclaimed", terms(480, 8), 1_000, at(0));
    assert_eq!(t.renew("unclaimed", at(490), None, at(0)), Renewed::Extended);
    lease(&t, "transfer", terms(480, 8).waits_for(dead[3]), 1_001, at(0));
    let transfer = t.begin_transfer("transfer").unwrap();

    assert!(t.expire_consumers(&[], at(1)).is_empty());
    let mut released = t.expire_consumers(&dead, at(1));
    released.sort_by_key(|r| r.payload);
    let expected: Vec<_> = (0..500).map(|i| release(&format!("r{i:03}"), Expired, i, 1)).collect();
    assert_eq!(released, expected);
    assert_eq!(transfer.end(at(2)), Some(release("transfer", Expired, 1_001, 2)));
    assert!(t.expire_consumers(&dead, at(3)).is_empty());
    assert_eq!(t.notify("r000", dead[0], at(3)), Notified::Late(Expired));

    let live: BTreeSet<String> = t.leases().map(|l| l.id.to_string()).collect();
    let expected = (500..1_000).map(|i| format!("r{i:03}")).chain(["unclaimed".into()]).collect();
    assert_eq!(live, expected);
    let stats = t.stats();
    assert_balanced(&stats);
    assert_eq!((stats.expired, stats.live), (501, 501));
}

#[test]
fn f22_the_latest_that_was_heard_of_is_the_one_it_waits_for() {
    let t = tracker();
    let waits_for = |id: &str| t.leases().find(|l| l.id == *id).unwrap().waits_for;
    lease(&t, "a", terms(480, 4).waits_for(rank(1)), 1, at(0));
    assert_eq!(t.notify("a", rank(2), at(0)), counted(1, 4));
    assert_eq!(waits_for("a"), Some(rank(1)));
    lease(&t, "b", terms(480, 4), 2, at(0));
    assert_eq!(waits_for("b"), None);
    // Also a heartbeat that extends nothing.
    assert_eq!(t.renew("b", at(30), Some(rank(2)), at(0)), Renewed::Unchanged { deadline: at(480) });
    assert_eq!(waits_for("b"), Some(rank(2)));
    // The request was given to another engine: the end of the first one is no reason to release it.
    assert_eq!(t.notify("b", rank(3), at(0)), counted(1, 4));
    assert_eq!(waits_for("b"), Some(rank(3)));
    assert_eq!(t.expire_consumers(&[rank(2)], at(1)), []);
    // What `track` says goes before what came early.
    assert_eq!(t.notify("c", rank(3), at(0)), Notified::Early);
    lease(&t, "c", terms(480, 4).waits_for(rank(1)), 3, at(0));
    assert_eq!(waits_for("c"), Some(rank(1)));
    assert_eq!(t.expire_consumers(&[rank(3), rank(9)], at(1)), [release("b", Expired, 2, 1)]);
    // A later life waits for whom it says, not for whom the last one waited.
    lease(&t, "b", terms(480, 4), 4, at(2));
    assert_eq!(waits_for("b"), None);
    assert_eq!(t.expire_consumers(&[rank(3)], at(3)), []);
}

#[test]
fn f23_a_clock_that_goes_backwards_expires_nothing_early() {
    let t = tracker();
    lease(&t, "a", terms(130, 2), 1, at(100));
    assert_eq!(t.sweep(at(120)), Swept::default());
    // Back by more than a minute: messages still work, nothing falls due.
    assert_eq!(t.sweep(at(50)), Swept::default());
    assert_eq!(t.notify("a", rank(1), at(40)), counted(1, 2));
    assert_eq!(t.renew("a", at(140), None, at(40)), Renewed::Extended);
    // A lease of the time before: due at its own deadline, not because a sweep was once later.
    lease(&t, "b", terms(70, 1), 2, at(40));
    assert_eq!(t.sweep(at(69)), Swept::default());
    assert_eq!(t.next_deadline(), Some(at(70)));
    assert_eq!(t.sweep(at(70)), swept(vec![release("b", Expired, 2, 30)]));
    assert_eq!(t.sweep(at(139)), Swept { tombstones_dropped: 1, ..Swept::default() });
    assert_eq!(t.sweep(at(140)), swept(vec![release("a", Expired, 1, 40)]));

    // An age is never negative.
    lease(&t, "c", terms(900, 1), 3, at(800));
    assert_eq!(t.notify("c", rank(1), at(0)).release(), Some(release("c", Completed, 3, 0)));
}

#[test]
fn f24_a_renewal_never_shortens_a_lease() {
    let t = tracker();
    lease(&t, "a", terms(30, 1), 1, at(0));
    assert_eq!(t.renew("a", at(20), None, at(1)), Renewed::Unchanged { deadline: at(30) });
    assert_eq!(t.renew("a", at(30), None, at(1)), Renewed::Unchanged { deadline: at(30) });
    assert_eq!(t.renew("a", ms(30_001), None, at(1)), Renewed::Extended);
    assert_eq!(t.renew("a", at(30), None, at(1)), Renewed::Unchanged { deadline: ms(30_001) });
    assert_eq!(t.sweep(at(30)), Swept::default());
    // A notification or renewal that is applied before the sweep wins over an expiry that is due.
    assert_eq!(t.renew("a", at(50), None, at(40)), Renewed::Extended);
    assert_eq!(t.sweep(at(40)), Swept::default());
    assert_eq!(t.notify("a", rank(1), at(60)).release(), Some(release("a", Completed, 1, 60)));

    // A batch is so many single ones.
    lease(&t, "b", terms(30, 1), 2, at(0));
    lease(&t, "c", terms(90, 1), 3, at(0));
    let counts = t.renew_batch(["b", "a", "c", "d", "b"], at(60), Some(rank(1)), at(1));
    assert_eq!((counts.extended, counts.unchanged, counts.early, counts.late), (1, 2, 1, 1));
    assert_eq!((counts.unknown, counts.refused), (0, 0));
}

#[test]
fn f25_the_accounts_balance_at_every_step_of_a_mixed_day() {
    for expiry in [ExpiryPolicy::Release, ExpiryPolicy::Hold] {
        let ledger = Ledger::new();
        let t = SendTracker::with_config(Config { expiry, early_capacity: 8, tombstone_capacity: 8, ..config() });
        let mut rng = SmallRng::seed_from_u64(25);
        let mut guards = Vec::new();
        let mut now = Timestamp::ZERO;
        for _ in 0..20_000 {
            now = now + Duration::from_millis(rng.random_range(0..100));
            let id = format!("r{}", rng.random_range(0..30));
            let by = rank(rng.random_range(1..=4));
            let soon = now + Duration::from_millis(rng.random_range(0..5_000));
            match rng.random_range(0..12) {
                0..=2 => {
                    let terms = Terms::until(soon).consumers(rng.random_range(0..4)).weight(3);
                    drop(t.track(&id, terms, ledger.payload(), now));
                }
                3..=5 => drop(t.notify_expecting(&id, by, 2, now)),
                6 => _ = t.renew(&id, soon, Some(by), now),
                7 => drop(t.abort(&id, now)),
                8 => guards.extend(t.begin_transfer(&id)),
                9 if !guards.is_empty() => {
                    let guard = guards.swap_remove(rng.random_range(0..guards.len()));
                    if rng.random() { drop(guard) } else { drop(guard.end(now)) }
                }
                10 => drop(t.sweep(now)),
                11 if rng.random_ratio(1, 20) => drop(t.expire_consumers(&[by], now)),
                _ => {}
            }
            let stats = t.stats();
            assert_balanced(&stats);
            assert_eq!(stats.weight_held, 3 * (stats.live + stats.release_pending));
            assert_eq!(stats.transfers, guards.len() as u64);
            assert!(stats.early <= 8 && stats.tombstones <= 8, "{stats:?}");
        }
        drop(guards);
        drop(t.shutdown(now));
        drain(&t, now);
        let stats = t.stats();
        assert_empty(&stats);
        assert_eq!(stats.tombstones, 0);
        assert!(stats.completed > 100 && stats.expired > 10 && stats.aborted > 100, "{stats:?}");
        ledger.assert_each_dropped_once();
    }
}

#[test]
fn f26_ids_work_up_to_the_limit_and_are_refused_past_it() {
    let t = tracker();
    let ids = [
        "r".repeat(110),
        "r".repeat(1_024),
        String::new(),
        "cmpl:a:1:".into(),
        "a,b,,c".into(),
        "nul\0inside\0".into(),
        "\u{1f980}\u{200d}é".repeat(20),
    ];
    for (i, id) in ids.iter().enumerate() {
        lease(&t, id, terms(30, 1), i as u32, at(0));
    }
    for (i, id) in ids.iter().enumerate() {
        assert_eq!(t.notify(id, rank(1), at(1)).release(), Some(release(id, Completed, i as u32, 1)));
    }
    for len in [1_025, 1 << 20] {
        let id = "r".repeat(len);
        let refused = t.track(&id, terms(30, 1), 9, at(0));
        let reason = TrackRefusal::IdTooLong { len, max: 1_024 };
        assert_eq!(refused, Err(TrackError { payload: 9, reason }));
    }
    assert_eq!(t.stats().live, 0);
}

#[test]
fn f27_an_id_is_not_tracked_again_while_its_first_life_is_in_transfer() {
    let t = tracker();
    lease(&t, "a", terms(30, 1), 1, at(0));
    let transfer = t.begin_transfer("a").unwrap();
    assert_eq!(t.abort("a", at(1)), Aborted::Ended(Ended::AfterTransfer));
    let refused = t.track("a", terms(60, 1), 2, at(2));
    assert_eq!(refused, Err(TrackError { payload: 2, reason: TrackRefusal::TransferInFlight }));
    assert_eq!(transfer.end(at(3)), Some(release("a", AbortedOutcome, 1, 3)));
    lease(&t, "a", terms(60, 1), 2, at(4));
    assert_eq!(t.notify("a", rank(1), at(5)).release(), Some(release("a", Completed, 2, 1)));
    let stats = t.stats();
    assert_empty(&stats);
    assert_eq!((stats.tracked, stats.track_refused), (2, 1));
}

#[test]
fn f27_a_live_lease_is_not_tracked_again() {
    let t = tracker();
    lease(&t, "a", terms(30, 1), 1, at(0));
    let refused = t.track("a", terms(90, 1), 2, at(1));
    assert_eq!(refused, Err(TrackError { payload: 2, reason: TrackRefusal::AlreadyTracked }));
    assert_eq!(t.sweep(at(30)), swept(vec![release("a", Expired, 1, 30)]));
}

#[test]
fn f28_a_holder_that_panics_leaves_the_tracker_unharmed() {
    let ledger = Ledger::new();
    let t = SendTracker::with_config(config());
    for id in ["a", "b", "c", "d", "e"] {
        lease(&t, id, terms(120, 1), ledger.payload(), at(0));
    }
    thread::scope(|s| {
        // With a release in hand.
        let holder = s.spawn(|| {
            let release = t.notify("a", rank(1), at(1)).release();
            assert!(release.is_none(), "a panic of the holder");
        });
        assert!(holder.join().is_err());
        assert_eq!(ledger.dropped(), 1);
        // With a transfer in hand: its unwinding ends it.
        let holder = s.spawn(|| {
            let _transfer = t.begin_transfer("b").unwrap();
            drop(t.abort("b", at(1)));
            panic!("a panic of the holder");
        });
        assert!(holder.join().is_err());
    });
    let swept = t.sweep(at(2)).released;
    assert_eq!(swept, [release("b", AbortedOutcome, Payload::shadow(1), 2)]);
    // A release that is leaked is gone, and only that.
    std::mem::forget(t.abort("c", at(2)));
    // In a batch, from inside the tracker: the message that was applied stays applied.
    let batch = ["d", "e"].map(|id| Notification { id, consumer: rank(1), expected: Some(1) });
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        t.notify_batch(batch, at(3), |_, answer| {
            assert!(answer.release().is_none(), "a panic of the holder");
        });
    }));
    assert!(unwound.is_err());
    assert_eq!(t.notify("d", rank(1), at(4)), Notified::LateDuplicate(Completed));

    // Other requests go on.
    assert_eq!(t.notify("e", rank(1), at(5)).release(), Some(release("e", Completed, Payload::shadow(4), 5)));
    lease(&t, "a", terms(120, 1), ledger.payload(), at(6));
    assert_eq!(t.abort("a", at(7)).release(), Some(release("a", AbortedOutcome, Payload::shadow(5), 1)));
    assert_empty(&t.stats());
    drop(swept);
    assert_eq!(ledger.dropped(), 5); // all but the leaked one
}

#[test]
fn f28_a_transfer_guard_that_is_leaked_holds_up_its_own_request_only() {
    let ledger = Ledger::new();
    let t = SendTracker::with_config(config());
    lease(&t, "a", terms(30, 1), ledger.payload(), at(0));
    lease(&t, "b", terms(30, 1), ledger.payload(), at(0));
    std::mem::forget(t.begin_transfer("a").unwrap());
    let released = t.sweep(at(30));
    assert_eq!((released.released.len(), released.after_transfer), (1, 1));
    drop(released);
    let refused = t.track("a", terms(60, 1), ledger.payload(), at(31)).unwrap_err();
    assert_eq!(refused.reason, TrackRefusal::TransferInFlight);
    drop(refused);
    lease(&t, "b", terms(60, 1), ledger.payload(), at(31));
    assert_eq!(t.shutdown(at(32)).len(), 1);
    assert_balanced(&t.stats());
    assert_eq!(t.stats().release_pending, 1);
    // With the tracker goes what nobody can hand out any more.
    drop(t);
    ledger.assert_each_dropped_once();
}

#[test]
fn a_held_lease_is_reported_overdue_once_and_kept_until_it_is_decided() {
    let t = SendTracker::with_config(Config { expiry: ExpiryPolicy::Hold, ..config() });
    let overdue = |ids: &[&str]| Swept { overdue: ids.iter().map(|&id| id.into()).collect(), ..Swept::default() };
    for (i, id) in ["a", "b", "c", "d", "e"].into_iter().enumerate() {
        lease(&t, id, terms(30 + i as u64, 1).waits_for(rank(7)), i as u32, at(0));
    }
    assert_eq!(t.sweep(at(30)), overdue(&["a"]));
    assert_eq!(t.sweep(at(31)), overdue(&["b"]));
    assert_eq!(t.sweep(at(33)).overdue.len(), 2);
    assert_eq!(t.sweep(at(33)), Swept::default());
    let stats = t.stats();
    assert_eq!((stats.live, stats.overdue, stats.expired), (5, 4, 0));
    assert_eq!(t.leases().filter(|l| l.overdue).count(), 4);
    // It does not ask to be woken for what it has reported.
    assert_eq!(t.next_deadline(), Some(at(34)));

    assert_eq!(t.notify("a", rank(1), at(33)).release(), Some(release("a", Completed, 0, 33)));
    assert_eq!(t.abort("b", at(33)).release(), Some(release("b", AbortedOutcome, 1, 33)));
    assert_eq!(t.renew("c", at(40), None, at(33)), Renewed::Extended);
    assert_eq!(t.renew("e", at(50), None, at(33)), Renewed::Extended);
    assert!(!t.leases().find(|l| l.id == "c").unwrap().overdue);
    assert_eq!(t.sweep(at(39)), Swept::default());
    assert_eq!(t.next_deadline(), Some(at(40)));
    assert_eq!(t.sweep(at(40)), overdue(&["c"]));
    assert_eq!(t.stats().overdue, 5);

    // The death of its engine ends it, overdue or not.
    let mut released = t.expire_consumers(&[rank(7)], at(41));
    released.sort_by_key(|r| r.payload);
    assert_eq!(released, [2, 3, 4].map(|i| release(["c", "d", "e"][i as usize - 2], Expired, i, 41)));
    drain(&t, at(41));
    assert_empty(&t.stats());
}

#[test]
fn the_oldest_tombstone_goes_first() {
    let t = SendTracker::with_config(Config { tombstone_capacity: 2, ..config() });
    for (i, id) in ["a", "b", "c"].into_iter().enumerate() {
        lease(&t, id, terms(900 - 100 * i as u64, 1), i as u32, at(0));
    }
    for id in ["b", "c", "a"] {
        drop(t.abort(id, at(1)));
    }
    // The one that ended first is forgotten, not the one that would be remembered the shortest.
    assert_eq!(t.stats().tombstones, 2);
    assert_eq!(t.notify("b", rank(1), at(2)), Notified::Early);
    assert_eq!(t.notify("c", rank(1), at(2)), Notified::Late(AbortedOutcome));
    assert_eq!(t.notify("a", rank(1), at(2)), Notified::Late(AbortedOutcome));
    // One that is tracked again makes room, and when it ends again it is the youngest.
    lease(&t, "c", terms(900, 1), 9, at(3));
    assert_eq!(t.stats().tombstones, 1);
    drop(t.abort("c", at(4)));
    assert_eq!(t.track("d", terms(900, 0), 10, at(5)).unwrap().release(), Some(release("d", Completed, 10, 0)));
    assert_eq!(t.notify("a", rank(1), at(6)), Notified::Early);
    assert_eq!(t.notify("c", rank(1), at(6)), Notified::Late(AbortedOutcome));
    assert_eq!(t.notify("d", rank(1), at(6)), Notified::Late(Completed));
}

#[test]
fn without_room_for_tombstones_an_ended_lease_is_forgotten_at_once() {
    let t = SendTracker::with_config(Config { tombstone_capacity: 0, ..config() });
    lease(&t, "a", terms(30, 1), 1, at(0));
    drop(t.abort("a", at(1)));
    assert_eq!(t.stats().tombstones, 0);
    assert_eq!(t.begin_transfer("a").err(), Some(TransferRefusal::NotLeased));
    assert_eq!(t.notify("a", rank(1), at(2)), Notified::Early);
    // While a transfer is in flight it is known all the same.
    lease(&t, "b", terms(30, 1), 1, at(0));
    let transfer = t.begin_transfer("b").unwrap();
    drop(t.abort("b", at(1)));
    assert_eq!(t.notify("b", rank(1), at(2)), Notified::Late(AbortedOutcome));
    assert_eq!(transfer.end(at(3)), Some(release("b", AbortedOutcome, 1, 3)));
    assert_eq!(t.notify("b", rank(1), at(4)), Notified::Early);
}

#[test]
fn the_debug_dump_shows_the_leases_as_they_are() {
    let t = tracker();
    lease(&t, "b", terms(60, 2).weight(4), 1, at(3));
    lease(&t, "a", Terms::until(at(50)).waits_for(rank(5)), 2, at(4));
    lease(&t, "c", terms(60, 2), 3, at(5));
    assert_eq!(t.notify("b", rank(9), at(6)), counted(1, 2));
    let _transfer = t.begin_transfer("b").unwrap();
    let oldest = t.oldest(2);
    assert_eq!(oldest.iter().map(|l| l.id.as_str()).collect::<Vec<_>>(), ["b", "a"]);
    let [b, a] = &oldest[..] else { unreachable!() };
    assert_eq!((b.deadline, b.seen, b.expected, b.transfers, b.weight), (at(60), 1, Some(2), 1, 4));
    assert_eq!((b.tracked_at, b.waits_for, b.outcome, b.overdue), (at(3), Some(rank(9)), None, false));
    assert_eq!((a.deadline, a.seen, a.expected, a.transfers, a.weight), (at(50), 0, None, 0, 0));
    assert_eq!((a.tracked_at, a.waits_for, a.outcome, a.overdue), (at(4), Some(rank(5)), None, false));
    assert!(t.oldest(0).is_empty());
    assert_eq!(t.oldest(9).len(), 3);
    let ids: BTreeSet<String> = t.leases().map(|l| l.id.to_string()).collect();
    assert_eq!(ids, ["a", "b", "c"].map(String::from).into());
}

#[test]
fn the_supplied_clock_drives_a_lease_to_its_end() {
    let clock = Clock::new();
    let t = tracker();
    let now = clock.now();
    lease(&t, "a", Terms::until(now + Duration::from_millis(5)).consumers(1), 1, now);
    assert_eq!(t.next_deadline(), Some(now + Duration::from_millis(5)));
    thread::sleep(Duration::from_millis(6));
    let swept = t.sweep(clock.now());
    assert_eq!(swept.released.len(), 1);
    assert!(swept.released[0].age >= Duration::from_millis(5));
}
