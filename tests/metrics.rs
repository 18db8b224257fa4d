//! The metrics, as a scrape gives them: names, help texts and values, over HTTP and from the example.

#[allow(dead_code)] // `main`, which the tests do without.
#[path = "../examples/prometheus.rs"]
mod example;

use kvlease::metrics::{LEASE_AGE_BUCKETS, PumpMetrics, TrackerMetrics};
use kvlease::pump::PumpConfig;
use kvlease::transport::NotificationSink;
use kvlease::transport::in_process::{Faults, Network};
use kvlease::{Config, ConsumerId, Pump, SendTracker, Stats, Terms, Timestamp};
use metrics::with_local_recorder;
use metrics_exporter_prometheus::PrometheusBuilder;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// A scrape, taken apart.
#[derive(Default)]
struct Scrape {
    help: BTreeMap<String, String>,
    kinds: BTreeMap<String, String>,
    /// `name{label="value"}` as it stands, labels in their order of it.
    samples: BTreeMap<String, f64>,
    taken: BTreeSet<String>,
}

impl Scrape {
    fn parse(text: &str) -> Self {
        let mut scrape = Scrape::default();
        for line in text.lines().filter(|line| !line.is_empty()) {
            if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
                assert_eq!(scrape.help.insert(name.into(), help.into()), None, "{name} is described once");
            } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
                assert_eq!(scrape.kinds.insert(name.into(), kind.into()), None, "{name} has one type");
            } else {
                let (series, value) = line.rsplit_once(' ').unwrap();
                assert_eq!(
                    scrape.samples.insert(series.into(), value.parse().unwrap()),
                    None,
                    "{series} is there once"
                );
            }
        }
        scrape
    }

    fn take(&mut self, series: &str) -> f64 {
        let value = *self.samples.get(series).unwrap_or_else(|| panic!("no {series} in {:#?}", self.samples.keys()));
        assert!(self.taken.insert(series.into()), "{series} is looked at twice");
        value
    }

    /// These series of one name, by their label.
    fn counts(&mut self, name: &str, label: &str, expected: &[(&str, u64)]) {
        for (value, count) in expected {
            let series = format!("{name}{{{label}=\"{value}\"}}");
            assert_eq!(self.take(&series), *count as f64, "{series}");
        }
    }

    /// Everything that there is was looked at.
    fn nothing_else(&self) {
        let left: Vec<_> = self.samples.keys().filter(|series| !self.taken.contains(*series)).collect();
        assert!(left.is_empty(), "{left:?}");
        let name_of = |series: &String| {
            let name = series.split('{').next().unwrap();
            let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
            of_histogram.unwrap_or(name).to_owned()
        };
        let names: BTreeSet<_> = self.samples.keys().map(name_of).collect();
        assert_eq!(names, self.help.keys().cloned().collect(), "each has a help text");
        assert_eq!(names, self.kinds.keys().cloned().collect(), "each has a type");
    }
}

/// Everything that comes of the tracker's own numbers.
fn assert_equals(scrape: &mut Scrape, stats: &Stats) {
    for (name, value) in [
        ("kvlease_leases", stats.live),
        ("kvlease_releases_pending", stats.release_pending),
        ("kvlease_weight_held", stats.weight_held),
        ("kvlease_early_ids", stats.early),
        ("kvlease_tombstones", stats.tombstones),
        ("kvlease_transfers_in_flight", stats.transfers),
        ("kvlease_leases_tracked_total", stats.tracked),
        ("kvlease_leases_released_total", stats.released),
        ("kvlease_leases_overdue_total", stats.overdue),
        ("kvlease_track_refused_total", stats.track_refused),
        ("kvlease_expected_conflicts_total", stats.conflicts),
        ("kvlease_early_dropped_total", stats.early_dropped),
    ] {
        assert_eq!(scrape.take(name), value as f64, "{name}");
    }
    let outcomes = [("completed", stats.completed), ("expired", stats.expired), ("aborted", stats.aborted)];
    scrape.counts("kvlease_leases_ended_total", "outcome", &outcomes);
    let classes = [
        ("counted", stats.notified),
        ("duplicate", stats.duplicates),
        ("extended", stats.extended),
        ("early", stats.early_kept),
        ("late", stats.late),
        ("unknown", stats.unknown),
        ("refused", stats.notify_refused),
    ];
    scrape.counts("kvlease_messages_total", "class", &classes);
}

/// The ages of the leases that ended like this, in seconds.
fn assert_ages(scrape: &mut Scrape, outcome: &str, ages: &[f64]) {
    let name = "kvlease_lease_age_seconds";
    for &bound in LEASE_AGE_BUCKETS {
        let below = ages.iter().filter(|age| **age <= bound).count();
        let series = format!("{name}_bucket{{outcome=\"{outcome}\",le=\"{bound}\"}}");
        assert_eq!(scrape.take(&series), below as f64, "{series}");
    }
    let count = ages.len() as f64;
    assert_eq!(scrape.take(&format!("{name}_bucket{{outcome=\"{outcome}\",le=\"+Inf\"}}")), count);
    assert_eq!(scrape.take(&format!("{name}_count{{outcome=\"{outcome}\"}}")), count);
    assert_eq!(scrape.take(&format!("{name}_sum{{outcome=\"{outcome}\"}}")), ages.iter().sum::<f64>());
}

#[test]
fn a_scrape_of_the_example_has_every_name_help_and_value() {
    let recorder = example::recorder().unwrap();
    let handle = recorder.handle();
    let worker = with_local_recorder(&recorder, || example::a_minute().unwrap());

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let response = std::thread::scope(|threads| {
        let worker = &worker;
        threads.spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            example::answer(stream, || {
                worker.metrics.publish(&worker.tracker, worker.now());
                handle.render()
            })
            .unwrap();
        });
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    });
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("text/plain; version=0.0.4"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");

    let mut scrape = Scrape::parse(body);
    // What the program did, by hand: the numbers of tracker and pump are right, and they are the ones scraped.
    let stats = worker.tracker.stats();
    assert_eq!((stats.live, stats.tracked, stats.completed, stats.expired, stats.aborted), (2, 8, 4, 1, 1));
    assert_eq!((stats.weight_held, stats.early, stats.late, stats.track_refused), (3, 1, 2, 1));
    assert_equals(&mut scrape, &stats);
    assert_eq!(scrape.take("kvlease_oldest_lease_age_seconds"), 20.0);
    // "for nobody", "read", "pushed" with the transfer, "queued"; "lost"; "given up".
    assert_ages(&mut scrape, "completed", &[0.0, 2.0, 20.0, 40.0]);
    assert_ages(&mut scrape, "expired", &[30.0]);
    assert_ages(&mut scrape, "aborted", &[2.0]);

    let classes = [
        ("counted", 4),
        ("completed", 3),
        ("duplicate", 0),
        ("late_duplicate", 1),
        ("early", 1),
        ("late_completed", 0),
        ("late_expired", 2),
        ("late_aborted", 0),
        ("unknown", 0),
        ("conflict", 0),
        ("refused", 0),
    ];
    scrape.counts("kvlease_pump_completions_total", "class", &classes);
    let classes = [
        ("empty", 0),
        ("too_long", 0),
        ("not_utf8", 1),
        ("no_colon", 1),
        ("empty_id", 0),
        ("bad_count", 0),
        ("count_too_large", 0),
        ("zero_count", 0),
        ("bad_outcome", 0),
    ];
    scrape.counts("kvlease_pump_malformed_total", "class", &classes);
    let classes = [("extended", 1), ("unchanged", 0), ("early", 0), ("late", 0), ("unknown", 0), ("refused", 0)];
    scrape.counts("kvlease_pump_heartbeat_ids_total", "class", &classes);
    scrape.counts("kvlease_pump_replies_sent_total", "verdict", &[("stale", 2), ("in_time", 0)]);
    for (name, value) in [
        ("kvlease_pump_received_total", 14.0),
        ("kvlease_pump_heartbeats_total", 1.0),
        ("kvlease_pump_opaque_total", 0.0),
        ("kvlease_pump_strangers_total", 0.0),
        ("kvlease_pump_dropped_total", 0.0),
        ("kvlease_pump_after_transfer_total", 1.0),
        ("kvlease_pump_replies_unsent_total", 0.0),
        ("kvlease_pump_replies_received_total", 0.0),
        ("kvlease_pump_agents_forgotten_total", 0.0),
        ("kvlease_pump_waiting_messages", 0.0),
        ("kvlease_pump_agents", 2.0),
    ] {
        assert_eq!(scrape.take(name), value, "{name}");
    }
    scrape.nothing_else();

    for (name, kind) in &scrape.kinds {
        let expected = match name.as_str() {
            "kvlease_lease_age_seconds" => "histogram",
            total if total.ends_with("_total") => "counter",
            _ => "gauge",
        };
        assert_eq!(kind, expected, "{name}");
    }
    let help = &scrape.help["kvlease_leases_ended_total"];
    assert!(help.contains("If expired grows: leases are too short, heartbeats get lost"), "{help}");
    assert!(scrape.help["kvlease_pump_dropped_total"].ends_with("or step more often."));
}

#[test]
fn every_gauge_and_counter_is_that_of_the_tracker_each_time_it_is_published() {
    let recorder = example::recorder().unwrap();
    let metrics = with_local_recorder(&recorder, TrackerMetrics::new);
    let tracker = SendTracker::with_config(Config { tombstone_capacity: 3, early_capacity: 2, ..Config::default() });
    let at = Timestamp::from_secs;
    let rank = |n| ConsumerId::new(n).unwrap();
    let terms = Terms::until(at(30)).consumers(2).weight(5);
    let mut seen = Vec::new();
    let mut look = |now| {
        metrics.publish(&tracker, now);
        let mut scrape = Scrape::parse(&recorder.handle().render());
        assert_equals(&mut scrape, &tracker.stats());
        let oldest = scrape.take("kvlease_oldest_lease_age_seconds");
        assert_eq!(Some(oldest), tracker.oldest_age(now).map(|age| age.as_secs_f64()).or(Some(0.0)));
        let held = tracker.oldest(1).first().map(|lease| now.saturating_since(lease.tracked_at));
        assert_eq!(oldest, held.unwrap_or_default().as_secs_f64(), "that of the oldest one that is listed");
        for outcome in ["completed", "expired", "aborted"] {
            assert_ages(&mut scrape, outcome, &[]); // nobody calls `ended`
        }
        scrape.nothing_else();
        seen.push((tracker.stats().live, oldest));
    };

    look(at(0));
    for (id, now) in [("a", 1), ("b", 2), ("c", 3), ("d", 4)] {
        let _ = tracker.track(id, terms, (), at(now)).unwrap();
    }
    look(at(5));
    let transfer = tracker.begin_transfer("a").unwrap();
    let _ = tracker.notify_expecting("b", rank(1), 2, at(6));
    let _ = tracker.notify_expecting("b", rank(2), 3, at(6)); // the last one, and it expects another number
    let _ = tracker.notify("b", rank(2), at(6));
    let _ = tracker.notify("b", rank(3), at(6));
    let _ = tracker.notify_expecting("c", rank(1), 256, at(6));
    for early in ["e", "f", "too many"] {
        let _ = tracker.notify(early, rank(1), at(6));
    }
    assert!(tracker.track("c", terms, (), at(6)).is_err());
    let _ = tracker.renew("d", at(50), None, at(7));
    let _ = tracker.abort("a", at(8)); // its payload waits for the transfer, so it is still the oldest
    look(at(8));
    assert!(transfer.end(at(9)).is_some());
    look(at(9));
    let _ = tracker.sweep(at(30)); // "c", and the early ones
    look(at(31));
    let _ = tracker.shutdown(at(40));
    look(at(40));
    assert_eq!(seen, [(0, 0.0), (4, 4.0), (2, 7.0), (2, 6.0), (1, 27.0), (0, 0.0)]);
    let stats = tracker.stats();
    for class in [stats.notified, stats.duplicates, stats.extended, stats.early_kept, stats.late, stats.unknown] {
        assert!(class > 0, "{stats:?}");
    }
    assert_eq!((stats.notify_refused, stats.conflicts, stats.early_dropped, stats.track_refused), (1, 1, 2, 1));
}

#[test]
fn two_trackers_of_one_process_are_told_apart_by_their_labels() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let of = |worker| with_local_recorder(&recorder, || TrackerMetrics::with_labels(&[("worker", worker)]));
    let pump = with_local_recorder(&recorder, || PumpMetrics::with_labels(&[("worker", "a")]));
    pump.publish(&Pump::new(Default::default(), Default::default()));
    for (worker, leases) in [("a", 3), ("b", 1)] {
        let (metrics, tracker) = (of(worker), SendTracker::new());
        for n in 0..leases {
            let _ = tracker.track(&n.to_string(), Terms::until(Timestamp::from_secs(1)), (), Timestamp::ZERO).unwrap();
        }
        for release in tracker.sweep(Timestamp::from_millis(1_500)).released {
            assert_eq!(release.age, Duration::from_millis(1_500));
            metrics.ended(&release);
        }
        metrics.publish(&tracker, Timestamp::from_secs(2));
    }
    let mut scrape = Scrape::parse(&recorder.handle().render());
    for (worker, leases) in [("a", 3.0), ("b", 1.0)] {
        assert_eq!(
            scrape.take(&format!("kvlease_leases_ended_total{{worker=\"{worker}\",outcome=\"expired\"}}")),
            leases
        );
        // Without buckets it is a summary, in the same unit.
        let sum = format!("kvlease_lease_age_seconds_sum{{worker=\"{worker}\",outcome=\"expired\"}}");
        assert_eq!(scrape.take(&sum), 1.5 * leases);
    }
    assert_eq!(scrape.take("kvlease_pump_agents{worker=\"a\"}"), 0.0);
}

#[test]
fn what_waits_in_the_pump_is_a_gauge_that_goes_down_again() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let metrics = with_local_recorder(&recorder, PumpMetrics::new);
    let network = Network::new(Faults::default(), || Timestamp::ZERO).unwrap();
    let mut prefill = network.agent("prefill");
    let sink = prefill.sender();
    let mut pump = Pump::new(PumpConfig { work_limit: 2, ..PumpConfig::default() }, Arc::default());
    let tracker = SendTracker::<()>::new();
    for peer in ["a", "b", "c"] {
        network.agent(peer).send("prefill", b"r:1").unwrap();
    }
    for (step, waiting) in [(1, 1.0), (2, 0.0)] {
        let _ = pump.step(&tracker, &mut prefill, &sink, Timestamp::ZERO);
        metrics.publish(&pump);
        let mut scrape = Scrape::parse(&recorder.handle().render());
        assert_eq!(scrape.take("kvlease_pump_waiting_messages"), waiting, "step {step}");
        assert_eq!(scrape.take("kvlease_pump_agents"), 3.0);
        assert_eq!(scrape.take("kvlease_pump_received_total"), 3.0);
    }
}

#[test]
fn without_a_recorder_nothing_is_published_and_nothing_breaks() {
    let (metrics, tracker) = (TrackerMetrics::new(), SendTracker::new());
    let release =
        tracker.track("r", Terms::until(Timestamp::ZERO).consumers(0), (), Timestamp::ZERO).unwrap().release();
    metrics.ended(&release.unwrap());
    metrics.publish(&tracker, Timestamp::ZERO);
    PumpMetrics::new().publish(&Pump::new(Default::default(), Default::default()));
    assert_eq!(tracker.stats().completed, 1);
}
