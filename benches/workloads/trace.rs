//! A trace of real arrivals, step by step as an engine would: what the tracker takes of each step.
//!
//! The trace says when requests arrive; it does not say when they are read. The model: two consumers, who
//! wait for a log-normal time (median 2 s, sigma 1) and notify within 50 ms of each other; one request in a
//! hundred is never read, and its lease runs out. Leases are for 30 s, and those that wait are renewed by one
//! heartbeat every 5 s. A step is 25 ms.

use crate::keys::Id;
use crate::slices::{cpu_time, histogram};
use crate::trackers::{Completion, Tracker};
use kvlease::{Timestamp, wire};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

const STEP: u64 = 25;
const LEASE: Duration = Duration::from_secs(30);
const HEARTBEAT: u64 = 5_000;

/// What a step of the engine brings, in the order in which it is done.
#[derive(Default)]
struct Step {
    arrive: Vec<u64>,
    /// Messages: consumer and bytes.
    complete: Vec<(u32, Vec<u8>)>,
    heartbeats: Vec<Vec<u8>>,
}

/// Arrivals, and what follows from them.
pub struct Trace {
    steps: BTreeMap<u64, Step>,
    /// Requests in it.
    pub requests: u64,
    expiring: u64,
    last_step: u64,
}

/// What a run over a trace gave.
pub struct Traced {
    /// Processor time in the tracker.
    pub took: Duration,
    /// Processor time of each step in nanoseconds.
    pub steps: Box<hdrhistogram::Histogram<u64>>,
    /// The most leases that were live after a step.
    pub peak: usize,
}

/// When the requests of a Mooncake trace arrive, in ms, or of a generated one: at 3.4 a second, in buckets of
/// three seconds, as in the conversation trace. The first `seconds` of it.
pub fn arrivals(path: Option<&Path>, seconds: u64) -> Vec<u64> {
    let read = path.and_then(|path| fs::read_to_string(path).ok());
    let mut arrivals: Vec<u64> = match read {
        Some(text) => text
            .lines()
            .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok()?.get("timestamp")?.as_u64())
            .collect(),
        None => {
            let mut rng = fastrand::Rng::with_seed(7);
            let mut at = 0.0;
            let mut next = || {
                at += -(1.0 - rng.f64()).ln() / 3.4;
                (at / 3.0) as u64 * 3_000
            };
            std::iter::repeat_with(&mut next).take((4 * seconds) as usize).collect()
        }
    };
    arrivals.retain(|&at| at < 1_000 * seconds);
    arrivals.sort_unstable();
    arrivals
}

impl Trace {
    /// Each arrival as so many requests.
    pub fn new(arrivals: &[u64], times: u64) -> Self {
        let mut steps: BTreeMap<u64, Step> = BTreeMap::new();
        let mut heartbeats: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let mut rng = fastrand::Rng::with_seed(11);
        let (mut number, mut expiring, mut last) = (0, 0, 0);
        for &at in arrivals {
            for _ in 0..times {
                // Those of one bucket come one after the other.
                let at = at + rng.u64(0..3_000);
                steps.entry(at / STEP).or_default().arrive.push(number);
                let normal = (-2.0 * (1.0 - rng.f64()).ln()).sqrt() * (std::f64::consts::TAU * rng.f64()).cos();
                let wait = ((2_000.0 * normal.exp()) as u64).min(100_000);
                let mut beat = (at / HEARTBEAT + 1) * HEARTBEAT;
                if rng.u32(0..100) == 0 {
                    expiring += 1;
                    last = last.max(at + LEASE.as_millis() as u64);
                } else {
                    while beat < at + wait {
                        heartbeats.entry(beat / STEP).or_default().push(number);
                        beat += HEARTBEAT;
                    }
                    for consumer in 1..=2 {
                        let mut bytes = Vec::new();
                        wire::write_completion(Id::new(number).as_str(), 2, &mut bytes).expect("a sendable id");
                        // Not in the step in which it arrives, for that would be before it is tracked.
                        let read = (at + wait + rng.u64(0..50)).max(at + STEP);
                        steps.entry(read / STEP).or_default().complete.push((consumer, bytes));
                        last = last.max(read);
                    }
                }
                number += 1;
            }
        }
        for (step, numbers) in heartbeats {
            let ids: Vec<Id> = numbers.into_iter().map(Id::new).collect();
            for ids in ids.chunks(2_000) {
                let mut message = Vec::new();
                wire::write_heartbeat(ids.iter().map(Id::as_str), &mut message).expect("sendable ids");
                steps.entry(step).or_default().heartbeats.push(message);
            }
        }
        Trace { steps, requests: number, expiring, last_step: last / STEP + 2 }
    }

    /// Runs it against a tracker.
    pub fn run(&self, tracker: &dyn Tracker) -> Traced {
        let mut traced = Traced { took: Duration::ZERO, steps: histogram(), peak: 0 };
        let (mut completed, mut expired) = (0, 0);
        let empty = Step::default();
        for step in 0..=self.last_step {
            let now = Timestamp::from_millis((step + 1) * STEP);
            let what = self.steps.get(&step).unwrap_or(&empty);
            let ids: Vec<Id> = what.arrive.iter().map(|&number| Id::new(number)).collect();
            let messages: Vec<Completion<'_>> =
                what.complete.iter().map(|(consumer, bytes)| Completion { consumer: *consumer, bytes }).collect();
            let before = cpu_time();
            for (id, number) in ids.iter().zip(&what.arrive) {
                tracker.track(id.as_str(), 2, now + LEASE, *number, now);
            }
            for message in &what.heartbeats {
                tracker.heartbeat(message, now + LEASE, now);
            }
            if !messages.is_empty() {
                completed += tracker.complete(&messages, now);
            }
            expired += tracker.sweep(now);
            let took = cpu_time() - before;
            traced.took += took;
            traced.steps.saturating_record(took.as_nanos() as u64);
            if step % 40 == 0 {
                traced.peak = traced.peak.max(tracker.live());
            }
        }
        assert_eq!((completed as u64, expired as u64), (self.requests - self.expiring, self.expiring));
        traced
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tracker_ends_every_request_of_a_trace() {
        let trace = Trace::new(&arrivals(None, 60), 3);
        assert!(trace.requests > 300 && trace.expiring > 0);
        for (_, new) in crate::trackers::ALL {
            assert!(trace.run(&*new()).peak > 10);
        }
    }
}
