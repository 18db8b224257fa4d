//! Runs the workloads: which cases, in which order, until enough slices are clean.

use crate::allocator;
use crate::options::{KeyKind, Options, Workload};
use crate::report::{Case, Latency, Row, Section, short};
use clap::ValueEnum;
use kvlease::RequestId;
use kvlease_bench::keys::Key;
use kvlease_bench::peers::{self, Kind};
use kvlease_bench::slices::{Bench, Crew, Mode, cores};
use kvlease_bench::spread::Spread;
use kvlease_bench::workloads::growth;
use kvlease_bench::workloads::lifecycle::{self, Life, Shape};
use kvlease_bench::workloads::memory::{self, Memory};
use std::env;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

mod trackers;

/// Runs one workload and hands out each case when it is done.
pub fn run(workload: Workload, options: &Options, on: &mut dyn FnMut(Section)) {
    match workload {
        Workload::Lifecycle => lifecycle(options, on),
        Workload::Oversubscribed => oversubscribed(options, on),
        Workload::Growth => growth(options, on),
        Workload::Memory => memory(options, on),
        Workload::Sweep => trackers::sweep(options, on),
        Workload::Heartbeat => trackers::heartbeat(options, on),
        Workload::Pump => trackers::pump(options, on),
        Workload::Trace => trackers::trace(options, on),
    }
}

fn lifecycle(options: &Options, on: &mut dyn FnMut(Section)) {
    for &key in &options.keys {
        for &live in &options.live {
            for &consumers in &options.consumers {
                let modes = [Mode::Single, Mode::Timed, Mode::Batched];
                lives("lifecycle", key, Shape { live, consumers }, &options.threads, &modes, options, on);
            }
        }
    }
}

fn oversubscribed(options: &Options, on: &mut dyn FnMut(Section)) {
    let threads = [cores(), 2 * cores(), 4 * cores()];
    let shape = Shape { live: 1_000, consumers: 4 };
    lives("oversubscribed", KeyKind::U64, shape, &threads, &[Mode::Single, Mode::Timed], options, on);
}

/// The lifecycle in one shape, on some numbers of threads.
fn lives(
    workload: &'static str,
    key: KeyKind,
    shape: Shape,
    threads: &[usize],
    modes: &[Mode],
    options: &Options,
    on: &mut dyn FnMut(Section),
) {
    let prepare = match key {
        KeyKind::U64 => lifecycle::prepare::<u64>,
        KeyKind::Id45 => lifecycle::prepare::<Box<str>>,
        KeyKind::Inline45 => lifecycle::prepare::<RequestId>,
    };
    let key = match key {
        KeyKind::U64 => <u64 as Key>::NAME,
        KeyKind::Id45 => <Box<str> as Key>::NAME,
        KeyKind::Inline45 => <RequestId as Key>::NAME,
    };
    let names: Vec<&str> = options.peers.iter().map(String::as_str).collect();
    let maps: Vec<Box<dyn Life>> = names.iter().map(|name| prepare(name, shape).expect("a known peer")).collect();
    let benches: Vec<&dyn Bench> = maps.iter().map(|map| -> &dyn Bench { &**map }).collect();
    for &threads in threads {
        let measured = interleave(threads, &benches, modes, options);
        for batched in [false, true] {
            let mode = if batched { Mode::Batched } else { Mode::Single };
            let Some(values) = measured.iter().find(|m| m.mode == mode) else { continue };
            let timed = measured.iter().find(|m| m.mode == Mode::Timed && !batched);
            let mut rows = rows(&names, &values.rounds, peers::BASE, true);
            for (row, dropped) in rows.iter_mut().zip(&values.dropped) {
                row.dropped = *dropped;
            }
            for (row, (n, map)) in rows.iter_mut().zip(maps.iter().enumerate()) {
                row.latency = timed.and_then(|timed| timed.latencies[n].as_deref().map(Latency::of));
                row.wrong = map.check().err();
            }
            let consumers = Some(shape.consumers);
            let case = Case {
                threads: Some(threads),
                live: Some(shape.live),
                key: Some(key),
                consumers,
                batched: Some(batched),
                what: None,
            };
            on(Section { workload, case, unit: "Mops", higher_is_better: true, base: peers::BASE, rows });
        }
    }
}

/// What slices of one mode gave: for each bench, by round, what it measured, if that was clean.
struct Measured {
    mode: Mode,
    rounds: Vec<Vec<Option<f64>>>,
    dropped: Vec<usize>,
    latencies: Vec<Option<Box<hdrhistogram::Histogram<u64>>>>,
}

/// How often a slice that the machine has spoilt is tried again at once, so that a round has one of each.
const RETRIES: usize = 10;

impl Measured {
    /// One more slice of this bench, clean if it can be had.
    fn slice(&mut self, bench: usize, length: Duration, crew: &mut Crew<'_>) {
        let mut value = None;
        for _ in 0..=RETRIES {
            let slice = crew.slice(bench, length, self.mode);
            if !slice.clean {
                self.dropped[bench] += 1;
                // Who has rested is not taken off its core so soon.
                thread::sleep(length * 4);
                continue;
            }
            value = Some(slice.mops());
            // A thread that was taken off its core in a call says nothing about the call.
            let undisturbed = crew.threads() > cores() || slice.switches == 0;
            if let Some(one) = slice.latencies.filter(|_| undisturbed) {
                match &mut self.latencies[bench] {
                    Some(all) => all.add(*one).expect("of one range"),
                    none => *none = Some(one),
                }
            }
            break;
        }
        self.rounds[bench].push(value);
    }
}

/// Slices of each bench in turn, until there are enough clean ones of each or the time is up.
fn interleave(threads: usize, benches: &[&dyn Bench], modes: &[Mode], options: &Options) -> Vec<Measured> {
    let new = |&mode: &Mode| Measured {
        mode,
        rounds: vec![Vec::new(); benches.len()],
        dropped: vec![0; benches.len()],
        latencies: vec![None; benches.len()],
    };
    let mut measured: Vec<Measured> = modes.iter().map(new).collect();
    let end = Instant::now() + Duration::from_secs(options.seconds);
    let length = options.slice(threads);
    Crew::with(threads, benches, |crew| {
        // Whatever a map or the processor has to get used to.
        for bench in 0..benches.len() {
            crew.slice(bench, length, Mode::Single);
        }
        let enough = |measured: &[Measured]| {
            let mut counts = measured.iter().flat_map(|m| m.rounds.iter().map(|r| r.iter().flatten().count()));
            counts.all(|clean| clean >= options.slices)
        };
        let mut round = 0;
        while !enough(&measured) && Instant::now() < end {
            for turn in 0..benches.len() {
                // Nobody always follows the same one.
                let bench = (turn + round) % benches.len();
                for measured in &mut measured {
                    measured.slice(bench, length, crew);
                }
            }
            round += 1;
        }
    });
    measured
}

/// One row for each peer, with the ratios of values measured in the same round.
fn rows(names: &[&str], rounds: &[Vec<Option<f64>>], base: &str, higher_is_better: bool) -> Vec<Row> {
    let of = |name: &str| names.iter().position(|peer| *peer == name).map(|n| &rounds[n]);
    let (base, ours) = (of(base), of(peers::OURS));
    let better = |a: &[Option<f64>], b: &[Option<f64>]| {
        let pairs = a.iter().zip(b).filter_map(|(a, b)| a.zip(*b));
        Spread::of(pairs.map(|(a, b)| if higher_is_better { a / b } else { b / a }))
    };
    let row = |(name, values): (&&str, &Vec<Option<f64>>)| Row {
        peer: (*name).to_owned(),
        kind: peers::kind(name),
        value: Spread::of(values.iter().flatten().copied()),
        over_base: base.and_then(|base| better(values, base)),
        ours_over_this: ours.and_then(|ours| better(ours, values)),
        dropped: 0,
        latency: None,
        wrong: None,
    };
    names.iter().zip(rounds).map(row).collect()
}

/// Measures each of `names` in turn, so many times, unless the time is up.
fn take_turns(
    names: &[&str],
    rounds: usize,
    seconds: u64,
    mut measure: impl FnMut(usize) -> Option<f64>,
) -> Vec<Vec<Option<f64>>> {
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut values = vec![Vec::new(); names.len()];
    for round in 0..rounds {
        if round > 0 && Instant::now() > end {
            break;
        }
        for turn in 0..names.len() {
            let n = (turn + round) % names.len();
            values[n].push(measure(n));
        }
    }
    values
}

fn growth(options: &Options, on: &mut dyn FnMut(Section)) {
    let names: Vec<&str> = options.peers.iter().map(String::as_str).collect();
    let entries = options.scaled(2_000_000);
    let mut latencies: Vec<Option<Box<hdrhistogram::Histogram<u64>>>> = vec![None; names.len()];
    let mut worst = vec![u64::MAX; names.len()];
    let rounds = take_turns(&names, 3, 2 * options.seconds, |n| {
        let growth = growth::grow::<u64>(names[n], entries)?;
        // A pause of the machine's comes once, one of the map's comes each time.
        worst[n] = worst[n].min(growth.latencies.max());
        match &mut latencies[n] {
            Some(all) => all.add(&*growth.latencies).expect("of one range"),
            none => *none = Some(growth.latencies),
        }
        Some(growth.entries as f64 / growth.took.as_secs_f64() / 1e6)
    });
    let mut rows = rows(&names, &rounds, peers::BASE, true);
    for (n, row) in rows.iter_mut().enumerate() {
        row.latency = latencies[n].as_deref().map(|all| Latency { worst: worst[n], ..Latency::of(all) });
    }
    let what = Some(format!("from empty to {}, the worst of the best of three", short(entries)));
    let case = Case { threads: Some(1), key: Some(<u64 as Key>::NAME), what, ..Case::default() };
    on(Section { workload: "growth", case, unit: "Mops", higher_is_better: true, base: peers::BASE, rows });
}

fn memory(options: &Options, on: &mut dyn FnMut(Section)) {
    let peers = options.peers.iter().map(String::as_str);
    let names: Vec<&str> = peers.filter(|name| peers::kind(name) != Some(Kind::Harness)).collect();
    let mut lives = vec![100_000, options.scaled(1_000_000)];
    lives.dedup();
    for (kind, key) in [(KeyKind::U64, <u64 as Key>::NAME), (KeyKind::Id45, <Box<str> as Key>::NAME)] {
        for &live in &lives {
            let measured: Vec<Option<Memory>> = names.iter().map(|name| in_a_process(name, kind, live)).collect();
            let phases = [
                "grown from empty",
                "after four times as many lives",
                "held back by a stalled reader, for each entry replaced",
            ];
            for (phase, what) in phases.into_iter().enumerate() {
                let of = |memory: &Memory| [memory.grown, memory.churned, memory.held][phase];
                let rounds: Vec<_> = measured.iter().map(|memory| vec![memory.as_ref().map(of)]).collect();
                let mut rows = rows(&names, &rounds, peers::BASE, false);
                if what.starts_with("held") {
                    // Ratios to nothing held say nothing.
                    rows.iter_mut().for_each(|row| (row.over_base, row.ours_over_this) = (None, None));
                }
                let case = Case { live: Some(live), key: Some(key), what: Some(what.into()), ..Case::default() };
                let base = peers::BASE;
                on(Section { workload: "memory", case, unit: "bytes/entry", higher_is_better: false, base, rows });
            }
        }
    }
}

/// Has another process of this program measure the memory of one map.
fn in_a_process(peer: &str, key: KeyKind, live: usize) -> Option<Memory> {
    let key = key.to_possible_value()?;
    let output = Command::new(env::current_exe().ok()?)
        .args(["--memory-of", peer, "--keys", key.get_name(), "--live", &live.to_string()])
        .stderr(Stdio::inherit())
        .output()
        .ok()?;
    serde_json::from_slice(&output.stdout).ok()
}

/// What such a process does.
pub fn memory_of(peer: &str, options: &Options) -> ExitCode {
    let measure = match options.keys.first() {
        Some(KeyKind::U64) => memory::measure::<u64>,
        Some(KeyKind::Id45) => memory::measure::<Box<str>>,
        Some(KeyKind::Inline45) => memory::measure::<RequestId>,
        None => return ExitCode::FAILURE,
    };
    let live = options.live.first().copied().unwrap_or(100_000);
    match allocator::counted(|| measure(peer, live, allocator::in_use)) {
        Some(memory) => {
            println!("{}", serde_json::json!(memory));
            ExitCode::SUCCESS
        }
        None => ExitCode::FAILURE,
    }
}
