//! Two calls at the same moment on the same lease, pair by pair: one of them is first, and both answers
//! say which.

mod common;

use common::*;
use kvlease::Outcome::{Aborted as AbortedOutcome, Completed, Expired};
use kvlease::{Aborted, Config, Ended, Notified, SendTracker, TrackRefusal, Tracked, TransferRefusal};
use std::cell::RefCell;

const ROUNDS: usize = 3_000;

/// Where each round needs a tracker of its own.
fn trackers(rounds: usize) -> Vec<SendTracker<u64>> {
    let config = Config { tombstone_capacity: 8, ..config() };
    (0..rounds).map(|_| SendTracker::with_config(config.clone())).collect()
}

fn finish(t: &Tracker, ledger: &Ledger) {
    drain(t, at(1_000_000));
    assert_empty(&t.stats());
    ledger.assert_each_dropped_once();
}

#[test]
fn track_and_an_early_notification() {
    let (t, ledger) = (SendTracker::with_config(config()), Ledger::new());
    race(
        ROUNDS,
        // What the round before has left would answer for this one.
        |round| drop(t.sweep(at(1_000 * round as u64))),
        |round| t.notify("a", rank(1), at(1_000 * round as u64)),
        |round| {
            let now = 1_000 * round as u64;
            t.track("a", terms(now + 30, 1), ledger.payload(), at(now))
        },
        |round, notified, tracked| {
            let release = release("a", Completed, Payload::shadow(round as u64), 0);
            match (notified, tracked) {
                (Notified::Early, Ok(Tracked::Ended(r))) => assert_eq!(r, release),
                (Notified::Completed(Ended::Released(r)), Ok(Tracked::Leased)) => assert_eq!(r, release),
                other => panic!("round {round}: {other:?}"),
            }
            assert_eq!(t.stats().early, 0);
        },
    );
    finish(&t, &ledger);
}

#[test]
fn track_and_an_early_abort() {
    let (t, ledger) = (SendTracker::with_config(Config { tombstone_capacity: 0, ..config() }), Ledger::new());
    race(
        ROUNDS,
        |_| {},
        |_| t.abort("a", at(0)),
        |_| t.track("a", terms(30, 1), ledger.payload(), at(0)),
        |round, aborted, tracked| {
            let release = release("a", AbortedOutcome, Payload::shadow(round as u64), 0);
            match (aborted, tracked) {
                (Aborted::Early, Ok(Tracked::Ended(r))) => assert_eq!(r, release),
                (Aborted::Ended(Ended::Released(r)), Ok(Tracked::Leased)) => assert_eq!(r, release),
                other => panic!("round {round}: {other:?}"),
            }
        },
    );
    finish(&t, &ledger);
}

#[test]
fn track_and_the_drop_of_what_came_early() {
    let (t, ledger) = (SendTracker::with_config(config()), Ledger::new());
    let now = |round: usize| 1_000 * round as u64;
    race(
        ROUNDS,
        |round| {
            drop(t.sweep(at(now(round))));
            assert_eq!(t.notify("a", rank(1), at(now(round))), Notified::Early);
        },
        |round| t.sweep(at(now(round) + 5)),
        |round| t.track("a", terms(now(round) + 30, 1), ledger.payload(), at(now(round) + 5)),
        |round, swept, tracked| {
            let payload = Payload::shadow(round as u64);
            match (swept.early_dropped, tracked) {
                (0, Ok(Tracked::Ended(r))) => assert_eq!(r, release("a", Completed, payload, 0)),
                (1, Ok(Tracked::Leased)) => {
                    // Nothing of it has come through.
                    assert_eq!(t.notify("a", rank(1), at(now(round) + 5)).release().unwrap().payload, payload);
                }
                other => panic!("round {round}: {other:?}"),
            }
            assert_eq!((swept.released.len(), t.stats().early), (0, 0));
        },
    );
    finish(&t, &ledger);
}

#[test]
fn two_tracks_of_one_id() {
    let (t, ledger) = (SendTracker::with_config(config()), Ledger::new());
    let track = || t.track("a", terms(30, 1), ledger.payload(), at(0));
    race(
        ROUNDS,
        // In every other round there is something to take over, early or ended.
        |round| {
            if round % 2 == 0 {
                drop(t.sweep(at(1_000)));
                assert_eq!(t.renew("a", at(40), None, at(0)), kvlease::Renewed::Early);
            }
        },
        |_| track(),
        |_| track(),
        |round, a, b| {
            let (one, other) = if a.is_ok() { (a, b) } else { (b, a) };
            assert_eq!(one, Ok(Tracked::Leased), "round {round}");
            assert_eq!(other.unwrap_err().reason, TrackRefusal::AlreadyTracked, "round {round}");
            assert_eq!(t.stats().live, 1);
            assert!(t.abort("a", at(0)).release().is_some());
        },
    );
    finish(&t, &ledger);
}

#[test]
fn a_new_life_and_the_sweep_of_the_last_ones_tombstone() {
    let (t, ledger) = (SendTracker::with_config(config()), Ledger::new());
    let now = |round: usize| 1_000 * round as u64;
    race(
        ROUNDS,
        |round| {
            lease(&t, "a", terms(now(round) + 30, 1), ledger.payload(), at(now(round)));
            assert!(t.abort("a", at(now(round))).release().is_some());
        },
        |round| t.sweep(at(now(round) + 60)),
        |round| t.track("a", terms(now(round) + 90, 2), ledger.payload(), at(now(round) + 60)),
        |round, swept, tracked| {
            assert_eq!(tracked, Ok(Tracked::Leased), "round {round}");
            assert!(swept.released.is_empty() && swept.tombstones_dropped <= 1);
            assert_eq!((t.stats().live, t.stats().tombstones), (1, 0));
            assert_eq!(t.next_deadline(), Some(at(now(round) + 90)));
            assert_eq!(t.notify("a", rank(1), at(now(round) + 61)), counted(1, 2));
            assert_eq!(t.sweep(at(now(round) + 90)).released.len(), 1);
        },
    );
    finish(&t, &ledger);
}

#[test]
fn track_and_shutdown() {
    const ROUNDS: usize = 1_000;
    let trackers = trackers(ROUNDS);
    race(
        ROUNDS,
        |round| assert_eq!(trackers[round].notify("2", rank(1), at(0)), Notified::Early),
        |round| {
            let ids = ["0", "1", "2", "3", "4", "5"];
            ids.map(|id| trackers[round].track(id, terms(30, 2).weight(1), 7, at(0)))
        },
        |round| {
            (0..round % 50).for_each(|_| std::hint::spin_loop());
            trackers[round].shutdown(at(0))
        },
        |round, tracked, mut released| {
            let t = &trackers[round];
            released.sort_by(|a, b| a.id.cmp(&b.id));
            let mut accepted = Vec::new();
            for (i, tracked) in tracked.into_iter().enumerate() {
                match tracked {
                    Ok(Tracked::Leased) => accepted.push(i.to_string()),
                    Err(error) => assert_eq!((error.reason, error.payload), (TrackRefusal::ShutDown, 7)),
                    Ok(other) => panic!("round {round}: {other:?}"),
                }
            }
            let ids: Vec<_> = released.iter().map(|r| r.id.to_string()).collect();
            assert_eq!(ids, accepted, "round {round}");
            drain(t, at(0));
            let stats = t.stats();
            assert_empty(&stats);
            assert_eq!((stats.tracked, stats.aborted), (accepted.len() as u64, accepted.len() as u64));
        },
    );
}

#[test]
fn the_last_notification_and_the_sweep() {
    let (t, ledger) = (SendTracker::with_config(config()), Ledger::new());
    race(
        ROUNDS,
        |_| lease(&t, "a", terms(0, 1), ledger.payload(), at(0)),
        |_| t.notify("a", rank(1), at(1)),
        |_| t.sweep(at(1)),
        |round, notified, mut swept| {
            let payload = Payload::shadow(round as u64);
            match (notified, swept.released.pop()) {
                (Notified::Completed(Ended::Released(r)), None) => assert_eq!(r, release("a", Completed, payload, 1)),
                (Notified::Late(Expired), Some(r)) => assert_eq!(r, release("a", Expired, payload, 1)),
                other => panic!("round {round}: {other:?}"),
            }
        },
    );
    finish(&t, &ledger);
}

#[test]
fn two_sweeps() {
    let (t, ledger) = (SendTracker::with_config(config()), Ledger::new());
    let ids: Vec<String> = (0..20).map(|i| i.to_string()).collect();
    race(
        ROUNDS / 4,
        |_| ids.iter().for_each(|id| lease(&t, id, terms(0, 1), ledger.payload(), at(0))),
        |_| t.sweep(at(0)).released,
        |_| t.sweep(at(0)).released,
        |round, mut a, b| {
            a.extend(b);
            let mut numbers: Vec<u64> = a.iter().map(|r| r.payload.number).collect();
            numbers.sort_unstable();
            // A sweep may leave to the other what that one is at, but between them they do all.
            let first = round as u64 * 20;
            assert_eq!(numbers, (first..first + 20).collect::<Vec<_>>());
        },
    );
    finish(&t, &ledger);
}

#[test]
fn track_and_a_sweep_that_passes_over_it() {
    // The sweep finds its neighbours due; whatever it makes of their common bound, the new one is in it.
    let (t, ledger) = (SendTracker::with_config(Config { tombstone_capacity: 0, ..config() }), Ledger::new());
    race(
        ROUNDS,
        |_| ["x", "y"].into_iter().for_each(|id| lease(&t, id, terms(0, 1), ledger.payload(), at(0))),
        |_| t.sweep(at(1)).released.len(),
        |_| t.track("a", terms(10, 1), ledger.payload(), at(1)),
        |round, released, tracked| {
            assert_eq!((released, tracked), (2, Ok(Tracked::Leased)), "round {round}");
            assert!(t.next_deadline().is_some_and(|next| next <= at(10)), "round {round}: {:?}", t.next_deadline());
            assert_eq!(t.sweep(at(10)).released.len(), 1, "round {round}: lost to the sweep");
        },
    );
    finish(&t, &ledger);
}

#[test]
fn two_notifications_of_one_consumer() {
    let (t, ledger) = (SendTracker::with_config(config()), Ledger::new());
    race(
        ROUNDS,
        |_| lease(&t, "a", terms(30, 2), ledger.payload(), at(0)),
        |_| t.notify("a", rank(1), at(0)),
        |_| t.notify("a", rank(1), at(0)),
        |round, a, b| {
            let is_counted = |n: &Notified<_>| matches!(n, Notified::Counted { seen: 1, .. });
            let is_duplicate = |n: &Notified<_>| matches!(n, Notified::Duplicate { seen: 0 | 1, .. });
            let one_counted = is_counted(&a) && is_duplicate(&b) || is_counted(&b) && is_duplicate(&a);
            assert!(one_counted, "round {round}: {a:?}, {b:?}");
            assert!(t.notify("a", rank(2), at(0)).release().is_some());
        },
    );
    finish(&t, &ledger);
}

#[test]
fn the_last_two_notifications() {
    let (t, ledger) = (SendTracker::with_config(config()), Ledger::new());
    race(
        ROUNDS,
        |_| lease(&t, "a", terms(30, 2), ledger.payload(), at(0)),
        |_| t.notify_expecting("a", rank(1), 2, at(0)),
        |_| t.notify_expecting("a", rank(2), 2, at(0)),
        |round, a, b| {
            let (one, other) = if a == counted(1, 2) { (a, b) } else { (b, a) };
            assert_eq!(one, counted(1, 2), "round {round}");
            assert_eq!(other.release().map(|r| r.payload.number), Some(round as u64), "round {round}");
        },
    );
    finish(&t, &ledger);
}

#[test]
fn the_count_and_the_only_notification() {
    let (t, ledger) = (SendTracker::with_config(config()), Ledger::new());
    race(
        ROUNDS,
        |_| lease(&t, "a", kvlease::Terms::until(at(30)), ledger.payload(), at(0)),
        |_| t.notify("a", rank(1), at(0)),
        |_| t.set_expected("a", 1, at(0)),
        |round, notified, set| {
            let (first, second) = (notified.release(), set.release());
            assert!(first.is_some() != second.is_some(), "round {round}: {first:?}, {second:?}");
        },
    );
    finish(&t, &ledger);
}

#[test]
fn an_abort_and_the_end_of_the_last_transfer() {
    let (t, ledger) = (SendTracker::with_config(config()), Ledger::new());
    let guard = RefCell::new(None);
    race(
        ROUNDS,
        |_| {
            lease(&t, "a", terms(30, 1), ledger.payload(), at(0));
            *guard.borrow_mut() = Some(t.begin_transfer("a").unwrap());
        },
        |_| t.abort("a", at(1)),
        |_| guard.take().unwrap().end(at(1)),
        |round, aborted, ended| {
            let release = release("a", AbortedOutcome, Payload::shadow(round as u64), 1);
            match (aborted, ended) {
                (Aborted::Ended(Ended::Released(r)), None) => assert_eq!(r, release),
                (Aborted::Ended(Ended::AfterTransfer), Some(r)) => assert_eq!(r, release),
                other => panic!("round {round}: {other:?}"),
            }
        },
    );
    finish(&t, &ledger);
}

#[test]
fn an_abort_and_the_drop_of_the_last_transfer() {
    let (t, ledger) = (SendTracker::with_config(config()), Ledger::new());
    let guard = RefCell::new(None);
    race(
        ROUNDS,
        |_| {
            lease(&t, "a", terms(30, 1), ledger.payload(), at(0));
            *guard.borrow_mut() = Some(t.begin_transfer("a").unwrap());
        },
        |_| t.abort("a", at(1)),
        |_| drop(guard.take()),
        |round, aborted, ()| {
            let mut swept = t.sweep(at(2)).released;
            match aborted {
                Aborted::Ended(Ended::Released(r)) => swept.push(r),
                Aborted::Ended(Ended::AfterTransfer) => assert_eq!(swept.len(), 1, "round {round}: left behind"),
                other => panic!("round {round}: {other:?}"),
            }
            let numbers: Vec<u64> = swept.iter().map(|r| r.payload.number).collect();
            assert_eq!(numbers, [round as u64]);
        },
    );
    finish(&t, &ledger);
}

#[test]
fn the_beginning_of_a_transfer_and_an_abort() {
    let (t, ledger) = (SendTracker::with_config(config()), Ledger::new());
    race(
        ROUNDS,
        |_| lease(&t, "a", terms(30, 1), ledger.payload(), at(0)),
        |_| t.begin_transfer("a"),
        |_| t.abort("a", at(1)),
        |round, begun, aborted| {
            let release = release("a", AbortedOutcome, Payload::shadow(round as u64), 1);
            match (begun, aborted) {
                (Ok(transfer), Aborted::Ended(Ended::AfterTransfer)) => {
                    assert_eq!(transfer.end(at(1)), Some(release));
                }
                (Err(TransferRefusal::Late(AbortedOutcome)), Aborted::Ended(Ended::Released(r))) => {
                    assert_eq!(r, release);
                }
                other => panic!("round {round}: {other:?}"),
            }
        },
    );
    finish(&t, &ledger);
}

#[test]
fn the_ends_of_two_transfers_of_an_ended_lease() {
    let (t, ledger) = (SendTracker::with_config(config()), Ledger::new());
    let guards = [const { std::sync::Mutex::new(None) }; 2];
    race(
        ROUNDS,
        |_| {
            lease(&t, "a", terms(30, 1), ledger.payload(), at(0));
            guards.iter().for_each(|g| *g.lock().unwrap() = Some(t.begin_transfer("a").unwrap()));
            assert_eq!(t.abort("a", at(1)), Aborted::Ended(Ended::AfterTransfer));
        },
        |_| guards[0].lock().unwrap().take().unwrap().end(at(1)),
        // Every third one is dropped instead.
        |round| match (round % 3, guards[1].lock().unwrap().take()) {
            (0, guard) => {
                drop(guard);
                None
            }
            (_, guard) => guard.unwrap().end(at(1)),
        },
        |round, a, b| {
            let left = t.sweep(at(2)).released;
            let all: Vec<_> = a.into_iter().chain(b).chain(left).map(|r| r.payload.number).collect();
            assert_eq!(all, [round as u64], "round {round}");
        },
    );
    finish(&t, &ledger);
}

#[test]
fn the_drop_of_the_last_transfer_and_shutdown() {
    const ROUNDS: usize = 1_000;
    let trackers = trackers(ROUNDS);
    let guard = RefCell::new(None);
    race(
        ROUNDS,
        |round| {
            lease(&trackers[round], "a", terms(30, 1), 7, at(0));
            *guard.borrow_mut() = Some(trackers[round].begin_transfer("a").unwrap());
            if round % 2 == 0 {
                assert_eq!(trackers[round].abort("a", at(0)), Aborted::Ended(Ended::AfterTransfer));
            }
        },
        |round| trackers[round].shutdown(at(0)),
        |_| drop(guard.take()),
        |round, mut released, ()| {
            released.extend(trackers[round].sweep(at(0)).released);
            assert_eq!(released, [release("a", AbortedOutcome, 7, 0)], "round {round}");
            assert_empty(&trackers[round].stats());
        },
    );
}

#[test]
fn a_notification_and_the_death_of_its_engine() {
    let (t, ledger) = (SendTracker::with_config(config()), Ledger::new());
    race(
        ROUNDS,
        |_| lease(&t, "a", terms(30, 1).waits_for(rank(1)), ledger.payload(), at(0)),
        |_| t.notify("a", rank(1), at(1)),
        |_| t.expire_consumers(&[rank(1)], at(1)).pop(),
        |round, notified, expired| {
            let payload = Payload::shadow(round as u64);
            match (notified, expired) {
                (Notified::Completed(Ended::Released(r)), None) => assert_eq!(r, release("a", Completed, payload, 1)),
                (Notified::Late(Expired), Some(r)) => assert_eq!(r, release("a", Expired, payload, 1)),
                other => panic!("round {round}: {other:?}"),
            }
        },
    );
    finish(&t, &ledger);
}

#[test]
fn ends_that_need_each_others_places_among_the_tombstones() {
    const PLACES: usize = 3;
    let (t, ledger) = (SendTracker::with_config(Config { tombstone_capacity: PLACES, ..config() }), Ledger::new());
    let ids = ["a", "b"].map(|side| (0..40).map(|i| format!("{side}{i}")).collect::<Vec<_>>());
    race(
        ROUNDS / 10,
        |_| ids.iter().flatten().for_each(|id| lease(&t, id, terms(30, 1), ledger.payload(), at(0))),
        |_| ids[0].iter().for_each(|id| drop(t.abort(id, at(0)))),
        |_| ids[1].iter().for_each(|id| drop(t.abort(id, at(0)))),
        |round, (), ()| {
            assert_eq!(t.stats().tombstones, PLACES as u64, "round {round}");
            let known = |id: &&String| t.begin_transfer(id).err() == Some(TransferRefusal::Late(AbortedOutcome));
            assert_eq!(ids.iter().flatten().filter(known).count(), PLACES, "round {round}");
        },
    );
    let dropped = t.sweep(at(60)).tombstones_dropped;
    assert_eq!(dropped, PLACES);
    finish(&t, &ledger);
}
