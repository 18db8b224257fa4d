//! What is logged of the end of each lease. A test program of its own: what `tracing` has found nobody to listen to, it
//! does not ask again.
#![cfg(feature = "tracing")]

use kvlease::{Config, ConsumerId, ExpiryPolicy, Outcome, SendTracker, Terms, Timestamp};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Barrier, Mutex, OnceLock};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The fields of one event.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        assert_eq!(self.0.insert(field.name(), format!("{value:?}")), None, "each field once");
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        assert_eq!(self.0.insert(field.name(), value.to_owned()), None, "each field once");
    }
}

/// Keeps every event about leases.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<Fields>>>);

impl Subscriber for Kept {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "kvlease::lease"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        assert_eq!(*event.metadata().level(), Level::DEBUG);
        let mut fields = Fields::default();
        event.record(&mut fields);
        self.0.lock().unwrap().push(fields);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The events of the leases whose ids begin like this, by id. The tests of this program share the subscriber.
fn events_of(prefix: &str) -> BTreeMap<String, Vec<Fields>> {
    let mut events = BTreeMap::<String, Vec<Fields>>::new();
    for fields in kept().0.lock().unwrap().iter().filter(|fields| fields.0["id"].starts_with(prefix)) {
        events.entry(fields.0["id"].clone()).or_default().push(fields.clone());
    }
    events
}

fn kept() -> &'static Kept {
    static KEPT: OnceLock<Kept> = OnceLock::new();
    KEPT.get_or_init(|| {
        let kept = Kept::default();
        tracing::subscriber::set_global_default(kept.clone()).unwrap();
        kept
    })
}

/// What an event has to say, in short: outcome, age in ms, seen, expected, missing, consumers, weight, released.
fn says(outcome: &str, age: u64, seen: u32, expected: Option<u32>, who: &str, weight: u32, released: bool) -> Fields {
    let mut fields = vec![
        ("message", "a lease has ended".to_owned()),
        ("outcome", outcome.to_owned()),
        ("age_ms", age.to_string()),
        ("seen", seen.to_string()),
        ("consumers", who.to_owned()),
        ("weight", weight.to_string()),
        ("released", released.to_string()),
    ];
    if let Some(expected) = expected {
        fields.push(("expected", expected.to_string()));
        fields.push(("missing", expected.saturating_sub(seen).to_string()));
    }
    Fields(fields.into_iter().collect())
}

fn rank(n: u32) -> ConsumerId {
    ConsumerId::new(n).unwrap()
}

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

#[test]
fn each_way_to_end_is_one_event_with_what_is_known() {
    kept();
    let tracker = Arc::new(SendTracker::new());
    let track = |id: &str, terms: Terms| tracker.track(id, terms, (), at(1_000)).unwrap();
    let two = Terms::until(at(31_000)).consumers(2).weight(7);
    let open = Terms::until(at(31_000));

    // By track itself: for nobody, or by what came early.
    let _ = track("way: nobody", open.consumers(0).weight(3));
    let _ = tracker.notify("way: early", rank(1), at(500));
    let _ = tracker.notify("way: early", rank(2), at(500));
    let _ = track("way: early", two);
    let _ = tracker.abort("way: early abort", at(500));
    let _ = track("way: early abort", two);
    let _ = tracker.notify("way: early, nobody", rank(9), at(500));
    let _ = track("way: early, nobody", open.consumers(0));
    // By notifications, and by the count that was missing.
    let _ = track("way: read", two);
    let _ = tracker.notify("way: read", rank(5), at(1_100));
    let _ = tracker.notify("way: read", rank(4), at(1_250));
    let _ = tracker.notify("way: read", rank(4), at(1_300)); // late: not another event
    let _ = track("way: conflict", two);
    let _ = tracker.notify_expecting("way: conflict", rank(5), 2, at(1_100));
    let _ = tracker.notify_expecting("way: conflict", rank(6), 3, at(1_200));
    let _ = track("way: learned", open);
    let _ = tracker.notify("way: learned", rank(5), at(1_100));
    let _ = tracker.set_expected("way: learned", 1, at(1_400));
    let _ = track("way: learned, nobody", open);
    let _ = tracker.set_expected("way: learned, nobody", 0, at(1_400));
    // By abort; also with a transfer in flight, whose end is no other event.
    let _ = track("way: given up", two);
    let _ = tracker.abort("way: given up", at(1_500));
    let _ = tracker.abort("way: given up", at(1_600));
    let _ = track("way: given up in transfer", two);
    let transfer = tracker.begin_transfer_owned("way: given up in transfer").unwrap();
    let _ = tracker.abort("way: given up in transfer", at(1_500));
    assert!(transfer.end(at(9_000)).is_some());
    let _ = track("way: read in dropped transfer", open.consumers(1));
    let transfer = tracker.begin_transfer_owned("way: read in dropped transfer").unwrap();
    let _ = tracker.notify("way: read in dropped transfer", rank(5), at(1_500));
    drop(transfer);
    assert_eq!(tracker.sweep(at(1_600)).released.len(), 1);
    // By the death of the decode engine.
    let _ = track("way: engine gone", two.waits_for(rank(8)));
    assert_eq!(tracker.expire_consumers(&[rank(8)], at(2_000)).len(), 1);
    // By the deadline: of one whose count is not known, and of one with a reader missing.
    let _ = track("way: ran out", open);
    let _ = track("way: one missing", two);
    let _ = tracker.notify("way: one missing", rank(5), at(1_100));
    assert_eq!(tracker.sweep(at(31_000)).released.len(), 2);
    // By shutdown. A `track` after that is refused, and no lease.
    let _ = tracker.track("way: shut down", two, (), at(35_000)).unwrap();
    assert_eq!(tracker.shutdown(at(36_000)).len(), 1);
    assert!(tracker.track("way: refused", two, (), at(36_000)).is_err());

    let expected = [
        ("nobody", says("completed", 0, 0, Some(0), "[]", 3, true)),
        ("early", says("completed", 0, 2, Some(2), "[1, 2]", 7, true)),
        ("early abort", says("aborted", 0, 0, Some(2), "[]", 7, true)),
        ("early, nobody", says("completed", 0, 1, Some(0), "[9]", 0, true)),
        ("read", says("completed", 250, 2, Some(2), "[5, 4]", 7, true)),
        ("conflict", says("completed", 200, 2, Some(2), "[5, 6]", 7, true)),
        ("learned", says("completed", 400, 1, Some(1), "[5]", 0, true)),
        ("learned, nobody", says("completed", 400, 0, Some(0), "[]", 0, true)),
        ("given up", says("aborted", 500, 0, Some(2), "[]", 7, true)),
        ("given up in transfer", says("aborted", 500, 0, Some(2), "[]", 7, false)),
        ("read in dropped transfer", says("completed", 500, 1, Some(1), "[5]", 0, false)),
        ("engine gone", says("expired", 1_000, 0, Some(2), "[]", 7, true)),
        ("ran out", says("expired", 30_000, 0, None, "[]", 0, true)),
        ("one missing", says("expired", 30_000, 1, Some(2), "[5]", 7, true)),
        ("shut down", says("aborted", 1_000, 0, Some(2), "[]", 7, true)),
    ];
    let expected: BTreeMap<_, _> = expected
        .into_iter()
        .map(|(id, mut fields)| {
            let id = format!("way: {id}");
            fields.0.insert("id", id.clone());
            (id, vec![fields])
        })
        .collect();
    assert_eq!(events_of("way: "), expected);
    let stats = tracker.stats();
    assert_eq!((stats.completed, stats.expired, stats.aborted), (8, 3, 4));
}

#[test]
fn a_held_lease_is_logged_when_it_ends_and_not_when_it_is_overdue() {
    kept();
    let tracker = SendTracker::with_config(Config { expiry: ExpiryPolicy::Hold, ..Config::default() });
    let _ = tracker.track("held", Terms::until(at(2_000)).consumers(1), (), at(1_000)).unwrap();
    assert_eq!(tracker.sweep(at(3_000)).overdue.len(), 1);
    assert!(events_of("held").is_empty());
    let _ = tracker.notify("held", rank(1), at(5_000));
    let mut expected = says("completed", 4_000, 1, Some(1), "[1]", 0, true);
    expected.0.insert("id", "held".to_owned());
    assert_eq!(events_of("held")["held"], [expected]);
}

#[test]
fn each_life_of_an_id_has_its_own_event_and_an_id_is_logged_whole() {
    kept();
    let tracker = SendTracker::new();
    let id = format!("lives: {}\n", "é".repeat(400));
    for life in 0..3 {
        let _ = tracker.track(&id, Terms::until(at(9_000)).consumers(1).weight(life), (), at(0)).unwrap();
        let _ = tracker.notify(&id, rank(1), at(10 * u64::from(life)));
    }
    let events = events_of("lives: ");
    let lives: Vec<_> = events[&id].iter().map(|fields| (&*fields.0["weight"], &*fields.0["age_ms"])).collect();
    assert_eq!(lives, [("0", "0"), ("1", "10"), ("2", "20")]);
}

#[test]
fn of_threads_that_race_to_end_leases_each_end_is_logged_once_and_as_it_was() {
    kept();
    const LEASES: usize = 2_000;
    let tracker = SendTracker::new();
    let ids: Vec<String> = (0..LEASES).map(|n| format!("race: {n}")).collect();
    for id in &ids {
        let _ = tracker.track(id, Terms::until(at(1_000)).consumers(1), (), at(0)).unwrap();
    }
    let barrier = Barrier::new(4);
    let released = Mutex::new(BTreeMap::<String, Outcome>::new());
    std::thread::scope(|threads| {
        for thread in 0..4 {
            let (tracker, ids, barrier, released) = (&tracker, &ids, &barrier, &released);
            threads.spawn(move || {
                barrier.wait();
                // Two go forward and two backward, so that they meet.
                for n in 0..LEASES {
                    let id = &ids[if thread % 2 == 0 { n } else { LEASES - 1 - n }];
                    let mut releases = Vec::new();
                    match thread {
                        0 => releases.extend(tracker.notify(id, rank(1), at(1_000)).release()),
                        1 => releases.extend(tracker.abort(id, at(1_000)).release()),
                        2 => drop(tracker.begin_transfer(id)),
                        _ if n == LEASES / 2 => releases.extend(tracker.sweep(at(1_000)).released),
                        _ => {}
                    }
                    for release in releases {
                        let again = released.lock().unwrap().insert(release.id.to_string(), release.outcome);
                        assert_eq!(again, None);
                    }
                }
            });
        }
    });
    // What a dropped guard has left.
    for release in tracker.sweep(at(1_000)).released {
        released.lock().unwrap().insert(release.id.to_string(), release.outcome);
    }
    let events = events_of("race: ");
    let released = released.into_inner().unwrap();
    assert_eq!((events.len(), released.len()), (LEASES, LEASES));
    for (id, outcome) in released {
        let [event] = &events[&id][..] else { panic!("{id}: {:?}", events[&id]) };
        assert_eq!(event.0["outcome"], outcome.to_string(), "{id}");
    }
}
