//! What the pump logs. A test program of its own: what `tracing` has found nobody to listen to, it does not ask again.
#![cfg(feature = "tracing")]

use kvlease::pump::PumpConfig;
use kvlease::transport::NotificationSink;
use kvlease::transport::in_process::{Faults, Network};
use kvlease::{ConsumerRegistry, Pump, SendTracker, Terms, Timestamp};
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Keeps every event of the pump as one line of its fields.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!("{field}={value:?} ");
    }
}

impl Subscriber for Kept {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "kvlease::pump"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn a_flood_of_junk_is_a_line_now_and_then_with_the_number_left_out_and_hides_no_stale_read() {
    let kept = Kept::default();
    tracing::subscriber::set_global_default(kept.clone()).unwrap();
    let now = Timestamp::from_secs;
    let network = Network::new(Faults::default(), || Timestamp::ZERO).unwrap();
    let mut prefill = network.agent("prefill");
    let sink = prefill.sender();
    let peer = network.agent("peer\n");
    let mut pump = Pump::new(PumpConfig::default(), Arc::new(ConsumerRegistry::new()));
    let tracker = SendTracker::new();
    let _ = tracker.track("late", Terms::until(now(2)).consumers(1), (), now(1)).unwrap();
    let _ = tracker.sweep(now(2));
    for at in [1, 2, 7] {
        for _ in 0..500 {
            peer.send("prefill", b"junk").unwrap();
        }
        peer.send("prefill", b"late:1").unwrap();
        let _ = pump.step(&tracker, &mut prefill, &sink, now(at));
    }

    let lines = kept.0.lock().unwrap();
    let of = |what: &str| lines.iter().filter(|line| line.contains(what)).collect::<Vec<_>>();
    let malformed = of("malformed message");
    assert_eq!(malformed.len(), 2, "{lines:?}");
    assert!(malformed[0].contains("suppressed=0 ") && malformed[1].contains("suppressed=999 "), "{malformed:?}");
    assert!(malformed[0].contains(r#"agent="peer\n""#) && malformed[0].contains("no colon"), "{malformed:?}");
    let stale = of("after its lease");
    assert_eq!(stale.len(), 2, "{lines:?}");
    for part in ["id=\"late\"", "outcome=expired", "suppressed=1 "] {
        assert!(stale[1].contains(part), "{part}: {stale:?}");
    }
    assert_eq!(lines.len(), 4, "{lines:?}");
}
