//! The workloads under Criterion, a group each. For ratios between peers `compare` is the better tool: this one
//! measures one peer after the other. Bytes are no time, so memory is in `compare` alone.

#![expect(missing_docs, reason = "of the function that `criterion_group` makes")]

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kvlease_bench::keys::Key;
use kvlease_bench::peers::{self, Kind};
use kvlease_bench::slices::{Bench, Crew, Mode, cores};
use kvlease_bench::trackers::ALL;
use kvlease_bench::workloads::growth;
use kvlease_bench::workloads::heartbeat::Heartbeat;
use kvlease_bench::workloads::lifecycle::{self, Shape};
use kvlease_bench::workloads::pump::Pump;
use kvlease_bench::workloads::sweep::{Due, Sweep};
use kvlease_bench::workloads::trace::{self, Trace};
use std::time::Duration;

type Group<'a> = BenchmarkGroup<'a, WallTime>;

fn group<'a>(criterion: &'a mut Criterion, name: &str) -> Group<'a> {
    let mut group = criterion.benchmark_group(name);
    group.sample_size(10).warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_secs(1));
    group
}

fn maps() -> impl Iterator<Item = &'static str> {
    peers::ALL.iter().filter(|(_, kind)| *kind != Kind::Harness).map(|(name, _)| *name)
}

/// Slices of one millisecond, until so many calls are made.
fn life<K: Key>(group: &mut Group<'_>, shape: Shape, threads: usize) {
    for peer in maps() {
        let id = BenchmarkId::new(peer, format!("{threads} threads, {} live, {}", shape.live, K::NAME));
        // Only if it is to run, for it takes a while with a million.
        let mut map = None;
        group.throughput(Throughput::Elements(1));
        group.bench_function(id, |bencher| {
            let map = map.get_or_insert_with(|| lifecycle::prepare::<K>(peer, shape).expect("a known peer"));
            let benches: [&dyn Bench; 1] = [&**map];
            bencher.iter_custom(|calls| {
                Crew::with(threads, &benches, |crew| {
                    let (mut done, mut took) = (0, Duration::ZERO);
                    while done < calls {
                        let slice = crew.slice(0, Duration::from_millis(1), Mode::Single);
                        done += slice.calls;
                        took += slice.took;
                    }
                    took.mul_f64(calls as f64 / done as f64)
                })
            });
        });
    }
}

fn lifecycle(criterion: &mut Criterion) {
    let mut group = group(criterion, "lifecycle");
    for live in [1_000, 100_000, 1_000_000] {
        for threads in [1, cores()] {
            life::<u64>(&mut group, Shape { live, consumers: 4 }, threads);
        }
        life::<Box<str>>(&mut group, Shape { live, consumers: 4 }, cores());
    }
    for consumers in [1, 2, 8] {
        life::<u64>(&mut group, Shape { live: 100_000, consumers }, cores());
    }
}

fn oversubscribed(criterion: &mut Criterion) {
    let mut group = group(criterion, "oversubscribed");
    for threads in [2 * cores(), 4 * cores()] {
        life::<u64>(&mut group, Shape { live: 1_000, consumers: 4 }, threads);
    }
}

fn growing(criterion: &mut Criterion) {
    let mut group = group(criterion, "growth");
    let entries = 200_000;
    group.throughput(Throughput::Elements(entries as u64));
    for peer in maps() {
        group.bench_function(BenchmarkId::new(peer, entries), |bencher| {
            bencher.iter_custom(|times| {
                (0..times).map(|_| growth::grow::<u64>(peer, entries).expect("a known peer").took).sum()
            });
        });
    }
}

fn sweep(criterion: &mut Criterion) {
    let mut group = group(criterion, "sweep");
    for leases in [100, 16_384, 1_000_000] {
        for (what, due) in [("none due", Due::None), ("8 due", Due::Eight), ("all due", Due::All)] {
            if due == Due::All && leases > 100_000 {
                continue; // takes a million new leases for each
            }
            for (name, new) in ALL.iter().filter(|(name, _)| !name.contains("one by one")) {
                let id = BenchmarkId::new(*name, format!("{leases} live, {what}"));
                let fresh = || {
                    let mut sweep = Sweep::new(new(), leases);
                    sweep.settle();
                    sweep
                };
                let mut sweep = None;
                group.bench_function(id, |bencher| {
                    bencher.iter_custom(|times| match due {
                        Due::All => (0..times).map(|_| fresh().sweep(due)).sum(),
                        _ => {
                            let sweep = sweep.get_or_insert_with(fresh);
                            (0..times).map(|_| sweep.sweep(due)).sum()
                        }
                    });
                });
            }
        }
    }
}

fn heartbeat(criterion: &mut Criterion) {
    let mut group = group(criterion, "heartbeat");
    for leases in [2_000, 1_000_000] {
        for (name, new) in ALL {
            let mut heartbeat = None;
            group.bench_function(BenchmarkId::new(*name, format!("2000 ids of {leases}")), |bencher| {
                let heartbeat = heartbeat.get_or_insert_with(|| Heartbeat::new(new(), leases));
                bencher.iter_custom(|times| (0..times).map(|_| heartbeat.beat()).sum());
            });
        }
    }
}

fn pump(criterion: &mut Criterion) {
    let mut group = group(criterion, "pump");
    for batch in [1, 16, 256, 13_000] {
        for (name, new) in ALL {
            let mut pump = Pump::new(new(), batch);
            group.throughput(Throughput::Elements(pump.messages()));
            group.bench_function(BenchmarkId::new(*name, format!("polls of {batch}")), |bencher| {
                bencher.iter_custom(|times| (0..times).map(|_| pump.round()).sum());
            });
        }
    }
}

fn a_trace(criterion: &mut Criterion) {
    let mut group = group(criterion, "trace");
    let path = std::env::var_os("KVLEASE_TRACE").map(std::path::PathBuf::from);
    for times in [1, 100] {
        let trace = Trace::new(&trace::arrivals(path.as_deref(), 60), times);
        group.throughput(Throughput::Elements(trace.requests));
        for (name, new) in ALL.iter().filter(|(name, _)| !name.contains("one by one")) {
            group.bench_function(BenchmarkId::new(*name, format!("60 s ×{times}")), |bencher| {
                bencher.iter_custom(|times| (0..times).map(|_| trace.run(&*new()).took).sum());
            });
        }
    }
}

criterion_group!(workloads, lifecycle, oversubscribed, growing, sweep, heartbeat, pump, a_trace);
criterion_main!(workloads);
