//! Whatever comes in: every refusal has a type, hands the payload back and changes nothing else.

mod common;

use common::*;
use kvlease::Outcome::{Aborted as AbortedOutcome, Completed, Expired};
use kvlease::{
    Aborted, Config, Ended, ExpectedSet, Notification, Notified, NotifyRefusal, RenewCounts, Renewed, SendTracker,
    Stats, Swept, Terms, Timestamp, TrackError, TrackRefusal, Tracked, TransferRefusal,
};
use std::time::Duration;

/// The tracker refuses, hands the very payload back, and nothing but its count of refusals changes.
#[track_caller]
fn assert_refused(t: &SendTracker<Box<str>>, id: &str, terms: Terms, now: Timestamp, reason: TrackRefusal) {
    let before = t.stats();
    let payload: Box<str> = "blocks 1, 2, 3".into();
    let address = payload.as_ptr();
    let TrackError { payload, reason: actual } = t.track(id, terms, payload, now).unwrap_err();
    assert_eq!(actual, reason);
    assert_eq!((payload.as_ptr(), &*payload), (address, "blocks 1, 2, 3"));
    assert_eq!(without_counters(t.stats()), without_counters(before));
    assert_eq!(t.stats().track_refused, before.track_refused + 1);
}

/// The gauges, and the counters of lives and their ends.
fn without_counters(s: Stats) -> [u64; 11] {
    [
        s.live,
        s.release_pending,
        s.weight_held,
        s.early,
        s.tombstones,
        s.transfers,
        s.tracked,
        s.completed,
        s.expired,
        s.aborted,
        s.released,
    ]
}

/// Ids that are hard to carry, up to the limit of 1,024 bytes.
fn hard_ids() -> Vec<String> {
    let mut ids: Vec<String> = [0, 1, 63, 64, 65, 110, 1_023, 1_024].map(|len| "r".repeat(len)).into();
    // Equal but for the last byte, on both sides of what is stored inline.
    ids.extend([63, 64, 65, 1_023].map(|len| "r".repeat(len) + "s"));
    ids.extend(
        [
            ":",
            "::1",
            "a:1",
            "cmpl:x:8",
            ",",
            "a,b",
            "HB:a,b",
            "\0",
            "a\0b",
            "a\0",
            " ",
            "a\n",
            "\u{1f980}",
            "\u{1f468}\u{200d}\u{1f469}",
            "é",
            "e\u{301}",
            "\u{feff}a",
            "\u{10ffff}",
            "\u{202e}abc",
        ]
        .map(String::from),
    );
    ids.push("\u{1f980}".repeat(16)); // 64 bytes
    ids.push("\u{1f980}".repeat(256)); // 1,024 bytes
    ids.push("x".to_string() + &"\u{1f980}".repeat(16)); // the 64th byte is inside a character
    ids.sort();
    ids.dedup();
    ids
}

#[test]
fn hard_ids_are_told_apart_and_come_back_whole() {
    let t = SendTracker::with_config(config());
    let ids = hard_ids();
    for (i, id) in ids.iter().enumerate() {
        lease(&t, id, terms(30, 2), i, at(0));
    }
    assert_eq!(t.stats().live, ids.len() as u64);
    for id in &ids {
        assert_eq!(t.notify_expecting(id, rank(1), 2, at(1)), counted(1, 2), "{id:?}");
        assert_eq!(t.renew(id, at(40), None, at(1)), Renewed::Extended, "{id:?}");
    }
    for (i, id) in ids.iter().enumerate() {
        let answer = match i % 3 {
            0 => t.notify(id, rank(2), at(2)).release(),
            1 => t.abort(id, at(2)).release(),
            _ => continue,
        };
        let outcome = if i % 3 == 0 { Completed } else { AbortedOutcome };
        assert_eq!(answer, Some(release(id, outcome, i, 2)));
    }
    let mut rest = t.sweep(at(40)).released;
    rest.sort_by_key(|r| r.payload);
    let expected: Vec<_> = (2..ids.len()).step_by(3).map(|i| release(&ids[i], Expired, i, 40)).collect();
    assert_eq!(rest, expected);
    for (i, id) in ids.iter().enumerate() {
        let outcome = [Completed, AbortedOutcome, Expired][i % 3];
        assert_eq!(t.notify(id, rank(3), at(41)), Notified::Late(outcome), "{id:?}");
    }
    assert_empty(&t.stats());
}

#[test]
fn hard_ids_that_come_early_are_kept_whole() {
    let t = SendTracker::with_config(config());
    let ids = hard_ids();
    for id in &ids {
        assert_eq!(t.notify(id, rank(1), at(0)), Notified::Early);
    }
    for (i, id) in ids.iter().enumerate() {
        assert_eq!(t.track(id, terms(30, 1), i, at(1)), Ok(Tracked::Ended(release(id, Completed, i, 0))));
    }
}

#[test]
fn an_id_past_the_limit_is_refused_wherever_it_comes_in() {
    let t = SendTracker::with_config(config());
    for len in [1_025, 1_026, 4_096, 1 << 20] {
        let id = "r".repeat(len);
        assert_refused(&t, &id, terms(30, 1), at(0), TrackRefusal::IdTooLong { len, max: 1_024 });
        let before = t.stats();
        assert_eq!(t.notify(&id, rank(1), at(0)), Notified::Unknown);
        assert_eq!(t.notify_expecting(&id, rank(1), 1, at(0)), Notified::Unknown);
        assert_eq!(t.renew(&id, at(30), Some(rank(1)), at(0)), Renewed::Unknown);
        assert_eq!(t.set_expected(&id, 1, at(0)), ExpectedSet::Unknown);
        assert_eq!(t.abort(&id, at(0)), Aborted::Unknown);
        assert_eq!(t.begin_transfer(&id).err(), Some(TransferRefusal::NotLeased));
        let counts = t.renew_batch([id.as_str()], at(30), None, at(0));
        assert_eq!(counts, RenewCounts { unknown: 1, ..RenewCounts::default() });
        assert_eq!(without_counters(t.stats()), without_counters(before));
        assert_eq!(t.next_deadline(), None);
    }
    // 1,024 bytes end inside a character here; nothing is cut to fit.
    let id = "r".to_string() + &"\u{1f980}".repeat(256);
    assert_refused(&t, &id, terms(30, 1), at(0), TrackRefusal::IdTooLong { len: 1_025, max: 1_024 });
}

#[test]
fn the_limit_of_ids_is_the_configured_one() {
    for max_id_len in [0, 1, 64, 1 << 20] {
        let t = SendTracker::with_config(Config { max_id_len, ..config() });
        let longest = "r".repeat(max_id_len);
        let too_long = "r".repeat(max_id_len + 1);
        assert_eq!(t.notify(&longest, rank(1), at(0)), Notified::Early);
        assert_eq!(t.notify(&too_long, rank(1), at(0)), Notified::Unknown);
        let reason = TrackRefusal::IdTooLong { len: max_id_len + 1, max: max_id_len };
        assert_eq!(t.track(&too_long, terms(30, 1), 1, at(0)), Err(TrackError { payload: 1, reason }));
        lease(&t, &longest, terms(30, 2), 2, at(0));
        assert_eq!(t.sweep(at(30)).released, [release(&longest, Expired, 2, 30)]);
    }
}

#[test]
fn up_to_255_consumers_are_counted() {
    let t = SendTracker::with_config(config());
    lease(&t, "a", terms(30, 255), 1, at(0));
    // Numbers from all over their range.
    let consumer = |n: u32| rank(if n % 2 == 0 { n + 1 } else { kvlease::ConsumerId::MAX - n });
    for n in 0..254 {
        assert_eq!(t.notify_expecting("a", consumer(n), 255, at(1)), counted(n + 1, 255));
    }
    for n in 0..254 {
        let duplicate = Notified::Duplicate { seen: 254, expected: Some(255) };
        assert_eq!(t.notify("a", consumer(n), at(1)), duplicate);
    }
    let last = t.notify_expecting("a", consumer(254), 255, at(1));
    assert_eq!(last, Notified::Completed(Ended::Released(release("a", Completed, 1, 1))));
    assert_eq!(t.notify("a", consumer(255), at(1)), Notified::Late(Completed));
    let stats = t.stats();
    assert_eq!((stats.notified, stats.duplicates, stats.late), (255, 254, 1));
}

#[test]
fn a_256th_consumer_is_refused_until_the_count_is_known() {
    let t = SendTracker::with_config(config());
    lease(&t, "a", Terms::until(at(30)), 1, at(0));
    for n in 1..=255 {
        assert_eq!(t.notify("a", rank(n), at(1)), Notified::Counted { seen: n, expected: None });
    }
    for n in [256, 257, kvlease::ConsumerId::MAX] {
        assert_eq!(t.notify("a", rank(n), at(1)), Notified::Refused(NotifyRefusal::TooManyConsumers));
    }
    assert_eq!(t.notify("a", rank(255), at(1)), Notified::Duplicate { seen: 255, expected: None });
    assert_eq!(t.stats().notify_refused, 3);
    let completed = ExpectedSet::Completed(Ended::Released(release("a", Completed, 1, 2)));
    assert_eq!(t.set_expected("a", 255, at(2)), completed);
}

#[test]
fn a_256th_early_consumer_is_refused() {
    let t = SendTracker::with_config(config());
    for n in 1..=255 {
        assert_eq!(t.notify("a", rank(n), at(1)), Notified::Early);
    }
    assert_eq!(t.notify("a", rank(256), at(1)), Notified::Refused(NotifyRefusal::TooManyConsumers));
    assert_eq!(t.track("a", terms(30, 255), 1, at(1)), Ok(Tracked::Ended(release("a", Completed, 1, 0))));
}

#[test]
fn counts_out_of_range_are_refused_and_change_nothing() {
    let t = SendTracker::with_config(config());
    for expected in [256, 257, 1 << 16, (1 << 16) + 1, u32::MAX] {
        assert_refused(&t, "a", terms(30, expected), at(0), TrackRefusal::TooManyConsumers { expected });
    }
    lease(&t, "a", Terms::until(at(30)), "a".into(), at(0));
    for claimed in [0, 256, 257, (1 << 16) + 2, 99_999_999, u32::MAX] {
        for id in ["a", "b"] {
            let refused = Notified::Refused(NotifyRefusal::ExpectedOutOfRange { claimed });
            assert_eq!(t.notify_expecting(id, rank(1), claimed, at(1)), refused);
        }
        if claimed > 0 {
            assert_eq!(t.set_expected("a", claimed, at(1)), ExpectedSet::TooMany);
            assert_eq!(t.set_expected("b", claimed, at(1)), ExpectedSet::TooMany);
        }
    }
    let stats = t.stats();
    assert_eq!((stats.early, stats.notified, stats.notify_refused), (0, 0, 12));
    let info = t.leases().next().unwrap();
    assert_eq!((info.seen, info.expected, info.waits_for), (0, None, None));
    // And the consumer can still be counted.
    let last = t.notify_expecting("a", rank(1), 1, at(2)).release();
    assert_eq!(last, Some(release("a", Completed, "a".into(), 2)));
}

#[test]
fn a_count_below_what_was_seen_completes_the_lease() {
    let t = SendTracker::with_config(config());
    lease(&t, "a", Terms::until(at(30)), 1, at(0));
    for n in 1..=3 {
        assert_eq!(t.notify("a", rank(n), at(1)), Notified::Counted { seen: n, expected: None });
    }
    // A repeated message is a repeated message, whatever it says.
    assert_eq!(t.notify_expecting("a", rank(1), 3, at(1)), Notified::Duplicate { seen: 3, expected: None });
    assert_eq!(t.set_expected("a", 2, at(2)), ExpectedSet::Completed(Ended::Released(release("a", Completed, 1, 2))));
}

#[test]
fn set_expected_reports_what_it_did() {
    let t = SendTracker::with_config(config());
    lease(&t, "a", Terms::until(at(30)), 1, at(0));
    assert_eq!(t.notify("a", rank(1), at(1)), Notified::Counted { seen: 1, expected: None });
    assert_eq!(t.set_expected("a", 2, at(1)), ExpectedSet::Set { seen: 1 });
    assert_eq!(t.set_expected("a", 2, at(1)), ExpectedSet::Set { seen: 1 });
    assert_eq!(t.set_expected("a", 3, at(1)), ExpectedSet::Conflict { stands: 2 });
    assert_eq!(t.set_expected("a", 0, at(1)), ExpectedSet::Conflict { stands: 2 });
    let transfer = t.begin_transfer("a").unwrap();
    assert_eq!(t.notify("a", rank(2), at(2)), Notified::Completed(Ended::AfterTransfer));
    assert_eq!(t.set_expected("a", 2, at(2)), ExpectedSet::Late(Completed));
    assert_eq!(transfer.end(at(3)), Some(release("a", Completed, 1, 3)));

    lease(&t, "b", Terms::until(at(30)), 2, at(0));
    let transfer = t.begin_transfer("b").unwrap();
    assert_eq!(t.set_expected("b", 0, at(1)), ExpectedSet::Completed(Ended::AfterTransfer));
    assert_eq!(transfer.end(at(2)), Some(release("b", Completed, 2, 2)));
}

#[test]
fn deadlines_work_over_their_whole_range() {
    let max = Timestamp::MAX_DEADLINE;
    let past_max = max + Duration::from_millis(1);
    let t = SendTracker::with_config(config());
    let now = at(100);
    for deadline in [past_max, past_max + Duration::from_millis(1), ms(1 << 38), ms(1 << 39), ms(u64::MAX)] {
        assert_refused(&t, "a", Terms::until(deadline).consumers(1), now, TrackRefusal::DeadlineOutOfRange);
    }
    for (id, deadline) in
        [("past", at(1)), ("zero", Timestamp::ZERO), ("now", now), ("next", ms(100_001)), ("max", max)]
    {
        lease(&t, id, Terms::until(deadline).consumers(1), id.into(), now);
    }
    assert_eq!(t.next_deadline(), Some(Timestamp::ZERO));
    let mut released = t.sweep(now).released;
    released.sort_by(|a, b| a.id.cmp(&b.id));
    assert_eq!(released, ["now", "past", "zero"].map(|id| release(id, Expired, id.into(), 0)));
    assert_eq!(t.sweep(at(101)).released, [release("next", Expired, "next".into(), 1)]);
    assert_eq!(t.sweep(ms(max.as_millis() - 1)).released, []);
    assert_eq!(t.next_deadline(), Some(max));
    assert_eq!(t.sweep(max).released.iter().map(|r| r.id.as_str()).collect::<Vec<_>>(), ["max"]);
    drain(&t, max);
    assert_empty(&t.stats());
    assert_eq!(t.stats().tombstones, 0);
}

#[test]
fn a_clock_past_the_range_of_deadlines_does_no_harm() {
    let t = SendTracker::with_config(config());
    for (n, now) in [ms(1 << 38), ms(1 << 50), ms(u64::MAX - 100_000)].into_iter().enumerate() {
        let (a, b) = (format!("a{n}"), format!("b{n}"));
        // Its deadline can only be in the past, so it is due at once.
        lease(&t, &a, Terms::until(Timestamp::MAX_DEADLINE).consumers(1), 1, now);
        assert_eq!(t.notify(&b, rank(1), now), Notified::Early);
        let swept = t.sweep(now);
        assert_eq!(swept.released, [release(&a, Expired, 1, 0)]);
        assert_eq!(t.notify(&a, rank(1), now), Notified::Late(Expired));
        lease(&t, &b, Terms::until(at(5)).consumers(2), 2, now);
        assert_eq!(t.abort(&b, now).release(), Some(release(&b, AbortedOutcome, 2, 0)));
    }
    drop(t.shutdown(ms(u64::MAX)));
    assert_empty(&t.stats());
}

#[test]
fn a_renewal_out_of_range_changes_nothing() {
    let t = SendTracker::with_config(config());
    lease(&t, "a", terms(30, 1), 1, at(0));
    drop(t.track("ended", terms(30, 0), 2, at(0)));
    let past_max = Timestamp::MAX_DEADLINE + Duration::from_millis(1);
    for deadline in [past_max, ms(1 << 38), ms(1 << 40), ms(u64::MAX)] {
        for id in ["a", "absent", "ended"] {
            assert_eq!(t.renew(id, deadline, Some(rank(1)), at(1)), Renewed::DeadlineOutOfRange);
        }
        let counts = t.renew_batch(["a", "absent"], deadline, Some(rank(1)), at(1));
        assert_eq!(counts, RenewCounts { refused: 2, ..RenewCounts::default() });
    }
    let info = t.leases().next().unwrap();
    assert_eq!((info.deadline, info.waits_for), (at(30), None));
    assert_eq!(t.stats().early, 0);
    assert_eq!(t.renew("a", Timestamp::MAX_DEADLINE, None, at(1)), Renewed::Extended);
    assert_eq!(t.sweep(at(1_000_000)).released, []);
    assert_eq!(t.stats().live, 1);
}

#[test]
fn a_full_tracker_refuses_until_a_lease_has_ended() {
    let t = SendTracker::with_config(Config { capacity: Some(2), ..config() });
    lease(&t, "a", terms(30, 1), "a".into(), at(0));
    lease(&t, "b", terms(30, 1), "b".into(), at(0));
    assert_refused(&t, "c", terms(30, 1), at(0), TrackRefusal::AtCapacity { capacity: 2 });
    // What came early for it is kept for the next attempt.
    assert_eq!(t.notify("c", rank(1), at(1)), Notified::Early);
    assert_refused(&t, "c", terms(30, 2), at(1), TrackRefusal::AtCapacity { capacity: 2 });
    assert_eq!(t.stats().early, 1);
    drop(t.notify("a", rank(1), at(2)));
    lease(&t, "c", terms(30, 2), "c".into(), at(2));
    assert_eq!(t.notify("c", rank(2), at(2)).release(), Some(release("c", Completed, "c".into(), 0)));

    let t = SendTracker::with_config(Config { capacity: Some(0), ..config() });
    assert_refused(&t, "a", terms(30, 1), at(0), TrackRefusal::AtCapacity { capacity: 0 });
}

#[test]
fn nothing_is_kept_early_where_nothing_may_be() {
    let t = SendTracker::with_config(Config { early_capacity: 0, ..config() });
    assert_eq!(t.notify("a", rank(1), at(0)), Notified::Unknown);
    assert_eq!(t.notify_expecting("a", rank(1), 1, at(0)), Notified::Unknown);
    assert_eq!(t.renew("a", at(90), Some(rank(1)), at(0)), Renewed::Unknown);
    assert_eq!(t.set_expected("a", 0, at(0)), ExpectedSet::Unknown);
    assert_eq!(t.abort("a", at(0)), Aborted::Unknown);
    let stats = t.stats();
    assert_eq!((stats.unknown, stats.early, stats.early_kept), (5, 0, 0));
    lease(&t, "a", terms(30, 1), 1, at(0));
    assert_eq!(t.sweep(at(30)).released, [release("a", Expired, 1, 30)]);
}

#[test]
fn more_ids_than_may_be_kept_early_do_not_displace_the_first() {
    let t = SendTracker::with_config(Config { early_capacity: 2, ..config() });
    assert_eq!(t.renew("b", at(90), None, at(0)), Renewed::Early);
    // Heartbeats may take half of the room.
    assert_eq!(t.renew("c", at(90), None, at(0)), Renewed::Unknown);
    assert_eq!(t.notify("a", rank(1), at(0)), Notified::Early);
    assert_eq!(t.notify("c", rank(1), at(0)), Notified::Unknown);
    assert_eq!(t.abort("c", at(0)), Aborted::Unknown);
    // More about an id that is kept needs no more room.
    assert_eq!(t.notify("b", rank(1), at(0)), Notified::Early);
    assert_eq!(t.notify("a", rank(1), at(0)), Notified::Early);
    assert_eq!((t.stats().early, t.stats().duplicates), (2, 1));
    // Tracking one makes room for another.
    assert_eq!(t.track("a", terms(30, 1), 1, at(0)), Ok(Tracked::Ended(release("a", Completed, 1, 0))));
    assert_eq!(t.notify("c", rank(1), at(0)), Notified::Early);
}

#[test]
fn at_most_126_transfers_of_one_lease_are_in_flight() {
    let t = SendTracker::with_config(config());
    lease(&t, "a", terms(30, 1), 1, at(0));
    let mut guards: Vec<_> = (0..126).map(|_| t.begin_transfer("a").unwrap()).collect();
    assert_eq!(t.begin_transfer("a").err(), Some(TransferRefusal::TooManyTransfers));
    assert_eq!(t.stats().transfers, 126);
    assert_eq!(guards.pop().unwrap().end(at(1)), None);
    guards.push(t.begin_transfer("a").unwrap());
    assert_eq!(t.begin_transfer("a").err(), Some(TransferRefusal::TooManyTransfers));
    assert_eq!(t.notify("a", rank(1), at(2)), Notified::Completed(Ended::AfterTransfer));
    let last = guards.pop().unwrap();
    for guard in guards {
        assert_eq!(guard.end(at(3)), None);
    }
    assert_eq!(last.end(at(4)), Some(release("a", Completed, 1, 4)));
    assert_empty(&t.stats());
}

#[test]
fn a_transfer_begins_only_on_a_live_lease() {
    let t = SendTracker::with_config(config());
    assert_eq!(t.begin_transfer("absent").err(), Some(TransferRefusal::NotLeased));
    assert_eq!(t.notify("early", rank(1), at(0)), Notified::Early);
    assert_eq!(t.begin_transfer("early").err(), Some(TransferRefusal::NotLeased));
    drop(t.track("ended", terms(30, 0), 1, at(0)));
    assert_eq!(t.begin_transfer("ended").err(), Some(TransferRefusal::Late(Completed)));
    assert_eq!(t.stats().transfers, 0);
}

#[test]
fn weights_are_summed_without_overflow() {
    let t = SendTracker::with_config(config());
    for id in ["a", "b", "c"] {
        lease(&t, id, terms(30, 1).weight(u32::MAX), 1, at(0));
    }
    assert_eq!(t.stats().weight_held, 3 * u64::from(u32::MAX));
    let swept = t.sweep(at(30));
    assert!(swept.released.iter().all(|r| r.weight == u32::MAX));
    assert_eq!(t.stats().weight_held, 0);
}

#[test]
fn time_limits_of_zero_and_without_end_do_no_harm() {
    for ttl in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
        let t = SendTracker::with_config(Config { early_ttl: ttl, tombstone_ttl: ttl, ..config() });
        assert_eq!(t.notify("a", rank(1), at(1)), Notified::Early);
        assert_eq!(t.track("a", terms(2, 1), 1, at(1)), Ok(Tracked::Ended(release("a", Completed, 1, 0))));
        assert_eq!(t.abort("b", at(1)), Aborted::Early);
        let swept = t.sweep(at(5));
        let dropped = usize::from(ttl != Duration::MAX);
        assert_eq!((swept.early_dropped, swept.tombstones_dropped), (dropped, dropped));
        assert_eq!(t.stats().early, 1 - dropped as u64);
    }
}

#[test]
fn a_batch_takes_each_message_for_itself() {
    let t = SendTracker::with_config(Config { early_capacity: 1, ..config() });
    lease(&t, "a", terms(30, 2), 1, at(0));
    let long = "r".repeat(1 << 20);
    let message = |id, n, expected| Notification { id, consumer: rank(n), expected };
    let messages = [
        message("a", 1, Some(2)),
        message("a", 1, None),
        message("a", 2, Some(0)),
        message(&long, 1, Some(1)),
        message("b", 1, Some(1)),
        message("c", 1, Some(1)),
        message("a", 2, Some(9)),
        message("a", 3, Some(2)),
    ];
    let mut answers = Vec::new();
    t.notify_batch(messages, at(1), |n, answer| answers.push((n, answer)));
    let ended = Some(Ended::Released(release("a", Completed, 1, 1)));
    let expected = [
        counted(1, 2),
        Notified::Duplicate { seen: 1, expected: Some(2) },
        Notified::Refused(NotifyRefusal::ExpectedOutOfRange { claimed: 0 }),
        Notified::Unknown,
        Notified::Early,
        Notified::Unknown,
        Notified::ExpectedConflict { claimed: 9, stands: 2, seen: 2, early: false, ended },
        Notified::Late(Completed),
    ];
    assert_eq!(answers, messages.into_iter().zip(expected).collect::<Vec<_>>());
    t.notify_batch([], at(1), |_, _| unreachable!());
    assert_eq!(t.renew_batch([], at(50), None, at(1)), RenewCounts::default());
}

#[test]
fn an_empty_tracker_answers_every_call() {
    let t = SendTracker::<u8>::new();
    assert_eq!(t.sweep(Timestamp::ZERO), Swept::default());
    assert_eq!(t.sweep(ms(u64::MAX)), Swept::default());
    assert_eq!(t.next_deadline(), None);
    assert_eq!(t.expire_consumers(&[rank(1)], at(0)), []);
    assert_eq!(t.oldest(usize::MAX), []);
    assert_eq!(t.leases().count(), 0);
    assert_eq!(t.stats(), Stats::default());
    assert_eq!(t.shutdown(at(0)), []);
    assert_eq!(t.shutdown(at(0)), []);
    assert_eq!(t.next_deadline(), None);
}

#[test]
fn errors_say_what_to_do_and_print_whatever_the_payload_is() {
    struct Opaque;
    let t = SendTracker::with_config(Config { capacity: Some(0), ..config() });
    let error = t.track("a", terms(30, 1), Opaque, at(0)).map(|_| ()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "request not tracked: 0 leases are live, which is the limit; retry when some have ended"
    );
    assert_eq!(format!("{error:?}"), "TrackError { reason: AtCapacity { capacity: 0 }, .. }");
    let source: &dyn std::error::Error = &TransferRefusal::Late(Expired);
    assert_eq!(source.to_string(), "the lease has ended (expired); do not touch its blocks");
}
