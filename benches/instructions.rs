//! How many instructions each operation takes, counted under callgrind: repeatable where seconds are not.
//!
//! Without arguments it counts every operation and compares with `instructions.json` beside this; with the
//! name of an operation and a number it does that operation so often, which is what is counted. Each is
//! counted twice, N times and 2N times, and the difference is divided by N, so what comes before and after
//! does not matter. `.ci/instructions` says how to renew the baseline.

use kvlease::map::{self, CasMap};
use kvlease::wire::{self, Message};
use kvlease::{Config, ConsumerId, SendTracker, Terms, Timestamp};
use kvlease_bench::keys::Id;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

/// An operation, how often to do it (the first count of the two), and what does it so often.
type Operation = (&'static str, u64, fn(u64));

const OPERATIONS: &[Operation] = &[
    ("map: insert", 4_000, map_insert),
    ("map: get", 10_000, map_get),
    ("map: get and compare_remove", 4_000, map_compare_remove),
    ("map: life of an entry, 4 gets", 4_000, map_life),
    ("tracker: life of a lease, 4 notifications", 2_000, tracker_life),
    ("tracker: renew", 5_000, tracker_renew),
    ("tracker: sweep, nothing of 16,384 due", 50_000, tracker_sweep),
    ("pump: heartbeat of 2,000 ids, from bytes", 5, pump_heartbeat),
    ("wire: parse a completion", 10_000, wire_parse),
    #[cfg(feature = "metrics")]
    ("metrics: the end of a lease, for the histogram", 1_000_000, metrics_ended),
    #[cfg(feature = "metrics")]
    ("metrics: publish the tracker, nothing tracked", 50_000, metrics_publish_idle),
    #[cfg(feature = "metrics")]
    ("metrics: publish the tracker, 16,384 leases", 50, metrics_publish),
    #[cfg(feature = "metrics")]
    ("metrics: publish the pump", 100_000, metrics_publish_pump),
];

/// By how much an operation may need more than its baseline.
const TOLERANCE: f64 = 0.05;

/// The baseline, and what the figures depend on beside the code.
#[derive(Serialize, Deserialize)]
struct Baseline {
    rustc: String,
    instructions: BTreeMap<String, f64>,
}

type Map = CasMap<u64, u64, foldhash::fast::FixedState>;

/// A map with so many entries, and room for so many. Its hasher has a fixed key.
fn map_of(live: u64, capacity: usize) -> Map {
    let map = Map::with_capacity_and_hasher(capacity, foldhash::fast::FixedState::with_seed(7));
    let guard = map::pin();
    for key in 0..live {
        let _ = map.insert(key, key, &guard);
    }
    map
}

fn map_insert(n: u64) {
    let map = map_of(0, 10_000);
    for key in 0..n {
        black_box(map.insert(key, key, &map::pin()).is_ok());
    }
}

fn map_get(n: u64) {
    let map = map_of(1_000, 1_000);
    for i in 0..n {
        black_box(map.get(&(i % 1_000), &map::pin()).is_some());
    }
}

fn map_compare_remove(n: u64) {
    let map = map_of(10_000, 10_000);
    for key in 0..n {
        let guard = map::pin();
        let entry = map.get(&key, &guard).expect("it was inserted");
        assert!(map.compare_remove(&entry, &guard));
    }
}

fn map_life(n: u64) {
    let live = 1_000;
    let map = map_of(live, 1_000);
    for key in 0..n {
        for _ in 0..3 {
            black_box(map.get(&key, &map::pin()).is_some());
        }
        let guard = map::pin();
        let entry = map.get(&key, &guard).expect("it was inserted");
        assert!(map.compare_remove(&entry, &guard));
        assert!(map.insert(key + live, key, &guard).is_ok());
    }
}

/// A tracker with so many leases, until late.
fn tracker_of(live: u64) -> SendTracker<u64> {
    let config = Config { tombstone_capacity: 256, ..Config::default() };
    let tracker = SendTracker::with_config(config);
    for number in 0..live {
        track(&tracker, number, Timestamp::from_secs(100_000));
    }
    tracker
}

fn track(tracker: &SendTracker<u64>, number: u64, deadline: Timestamp) {
    let terms = Terms::until(deadline).consumers(4);
    assert!(tracker.track(Id::new(number).as_str(), terms, number, Timestamp::ZERO).is_ok());
}

fn rank(n: u32) -> ConsumerId {
    ConsumerId::new(n).expect("not 0")
}

fn tracker_life(n: u64) {
    let tracker = tracker_of(0);
    // Tombstones come first, until there are as many as there may be.
    for number in 0..1_000 + n {
        let id = Id::new(number);
        track(&tracker, number, Timestamp::from_secs(30));
        for consumer in 1..4 {
            black_box(&tracker.notify(id.as_str(), rank(consumer), Timestamp::ZERO));
        }
        let release = tracker.notify(id.as_str(), rank(4), Timestamp::ZERO).release();
        assert_eq!(release.map(|release| release.payload), Some(number));
    }
}

fn tracker_renew(n: u64) {
    let tracker = tracker_of(1_000);
    for i in 0..n {
        let until = Timestamp::from_secs(200_000 + i);
        let _ = black_box(tracker.renew(Id::new(i % 1_000).as_str(), until, Some(rank(1)), Timestamp::ZERO));
    }
}

fn tracker_sweep(n: u64) {
    let tracker = tracker_of(16_384);
    for i in 0..n {
        assert!(black_box(tracker.sweep(Timestamp::from_millis(i))).released.is_empty());
    }
}

fn pump_heartbeat(n: u64) {
    let tracker = tracker_of(2_000);
    let ids: Vec<Id> = (0..2_000).map(Id::new).collect();
    let mut message = Vec::new();
    wire::write_heartbeat(ids.iter().map(Id::as_str), &mut message).expect("sendable ids");
    for i in 0..n {
        let Ok(Message::Heartbeat(heartbeat)) = wire::parse(black_box(&message)) else { panic!("written above") };
        let until = Timestamp::from_secs(200_000 + i);
        let renewed = tracker.renew_batch(heartbeat.ids(), until, Some(rank(1)), Timestamp::ZERO);
        assert_eq!(renewed.extended, 2_000);
    }
}

fn wire_parse(n: u64) {
    let mut message = Vec::new();
    wire::write_completion(Id::new(7).as_str(), 4, &mut message).expect("a sendable id");
    for _ in 0..n {
        black_box(wire::parse(black_box(&message)).is_ok());
    }
}

/// What the metrics cost, with the recorder that a worker would have. Its clock is calibrated when it is first read, which
/// takes some million instructions more or less: so each is done very often.
#[cfg(feature = "metrics")]
fn with_recorder<T>(make: impl FnOnce() -> T) -> T {
    use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
    let buckets = kvlease::metrics::LEASE_AGE_BUCKETS;
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Full(kvlease::metrics::LEASE_AGE.into()), buckets)
        .expect("there are buckets");
    metrics::with_local_recorder(&builder.build_recorder(), make)
}

#[cfg(feature = "metrics")]
fn metrics_ended(n: u64) {
    let metrics = with_recorder(kvlease::metrics::TrackerMetrics::new);
    let age = std::time::Duration::from_millis(250);
    let id = Id::new(7).as_str().into();
    let release = kvlease::Release { id, outcome: kvlease::Outcome::Completed, payload: (), weight: 0, age };
    for _ in 0..n {
        metrics.ended(black_box(&release));
    }
}

#[cfg(feature = "metrics")]
fn publish(n: u64, leases: u64) {
    let metrics = with_recorder(kvlease::metrics::TrackerMetrics::new);
    let tracker = tracker_of(leases);
    for i in 0..n {
        metrics.publish(&tracker, Timestamp::from_millis(i));
    }
}

#[cfg(feature = "metrics")]
fn metrics_publish_idle(n: u64) {
    publish(n, 0);
}

#[cfg(feature = "metrics")]
fn metrics_publish(n: u64) {
    publish(n, 16_384);
}

#[cfg(feature = "metrics")]
fn metrics_publish_pump(n: u64) {
    let metrics = with_recorder(kvlease::metrics::PumpMetrics::new);
    let pump = kvlease::Pump::new(Default::default(), Default::default());
    for _ in 0..n {
        metrics.publish(black_box(&pump));
    }
}

/// Instructions that this program takes for `count` times `operation`, from its start to its end.
fn collected(operation: &str, count: u64) -> Result<u64, String> {
    let program = env::current_exe().map_err(|error| error.to_string())?;
    // No randomised addresses and no environment: both shift what is aligned to what.
    let output = Command::new("setarch")
        .args(["-R", "valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args([operation, &count.to_string()])
        .env_clear()
        .env("PATH", env::var_os("PATH").unwrap_or_default())
        .output()
        .map_err(|error| format!("setarch and valgrind are needed: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let collected = said.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok());
    match (output.status.success(), collected) {
        (true, Some(collected)) => Ok(collected),
        _ => Err(format!("{operation} failed under callgrind:\n{said}")),
    }
}

fn baseline_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("instructions.json")
}

fn rustc() -> String {
    let version = Command::new("rustc").arg("-V").output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&version).trim().to_owned()
}

/// Counts every operation. Whether all is within the tolerance.
fn compare() -> Result<bool, String> {
    let renew = env::var_os("KVLEASE_INSTRUCTIONS_BLESS").is_some();
    let path = baseline_path();
    let baseline: Option<Baseline> = match fs::read(&path) {
        Ok(text) => Some(serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", path.display()))?),
        Err(_) if renew => None,
        Err(error) => return Err(format!("{}: {error}", path.display())),
    };
    let mut now = Baseline { rustc: rustc(), instructions: BTreeMap::new() };
    let mut within = true;
    println!("{:<47} {:>12} {:>12} {:>8}", "instructions", "baseline", "now", "change");
    for &(name, count, _) in OPERATIONS {
        let each = (collected(name, 2 * count)? - collected(name, count)?) as f64 / count as f64;
        let each = (each * 10.0).round() / 10.0;
        now.instructions.insert(name.to_owned(), each);
        let before = baseline.as_ref().and_then(|baseline| baseline.instructions.get(name));
        let Some(&before) = before else {
            println!("{name:<47} {:>12} {each:>12.1} {:>8}", "-", "new");
            within &= renew;
            continue;
        };
        let change = each / before - 1.0;
        let verdict = if change > TOLERANCE { "  TOO MUCH" } else { "" };
        println!("{name:<47} {before:>12.1} {each:>12.1} {:>+7.1}%{verdict}", 100.0 * change);
        within &= change <= TOLERANCE || renew;
    }
    if let Some(baseline) = baseline.filter(|baseline| baseline.rustc != now.rustc) {
        println!("the baseline was made with {}, this with {}", baseline.rustc, now.rustc);
    }
    if renew {
        let mut text = serde_json::to_vec_pretty(&now).map_err(|error| error.to_string())?;
        text.push(b'\n');
        fs::File::create(&path)
            .and_then(|mut file| file.write_all(&text))
            .map_err(|error| format!("{}: {error}", path.display()))?;
        println!("written to {}", path.display());
    }
    Ok(within)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [name, count] = &arguments[..] {
        let operation = OPERATIONS.iter().find(|(operation, ..)| operation == name);
        let (Some((_, _, operation)), Ok(count)) = (operation, count.parse()) else {
            eprintln!("instructions: there is no operation {name:?}, or {count:?} is no number");
            return ExitCode::FAILURE;
        };
        operation(count);
        return ExitCode::SUCCESS;
    }
    match compare() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("instructions: over the baseline by more than {}%, see above", 100.0 * TOLERANCE);
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("instructions: {error}");
            ExitCode::FAILURE
        }
    }
}
