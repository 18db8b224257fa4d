//! Runs the workloads: which cases, in which order, until enough slices are clean.

use crate::options::{KeyKind, Options, Workload};
use crate::report::{Case, Latency, Row, Section};
use kvlease::RequestId;
use kvlease_bench::keys::Key;
use kvlease_bench::peers;
use kvlease_bench::slices::{Bench, Crew, Mode, cores};
use kvlease_bench::spread::Spread;
use kvlease_bench::workloads::lifecycle::{self, Life, Shape};
use std::thread;
use std::time::{Duration, Instant};

/// Runs one workload and hands out each case when it is done.
pub fn run(workload: Workload, options: &Options, on: &mut dyn FnMut(Section)) {
    match workload {
        Workload::Lifecycle => lifecycle(options, on),
        Workload::Oversubscribed => oversubscribed(options, on),
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
            let mut rows = rows(&names, values, true);
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
            };
            on(Section { workload, case, unit: "Mops", higher_is_better: true, rows });
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
fn rows(names: &[&str], measured: &Measured, higher_is_better: bool) -> Vec<Row> {
    let of = |name| names.iter().position(|peer| *peer == name).map(|n| &measured.rounds[n]);
    let (base, ours) = (of(peers::BASE), of(peers::OURS));
    let better = |a: &Vec<Option<f64>>, b: &Vec<Option<f64>>| {
        let pairs = a.iter().zip(b).filter_map(|(a, b)| a.zip(*b));
        Spread::of(pairs.map(|(a, b)| if higher_is_better { a / b } else { b / a }))
    };
    let row = |(n, name): (usize, &&str)| {
        let values = &measured.rounds[n];
        Row {
            peer: (*name).to_owned(),
            kind: peers::kind(name).expect("a known peer"),
            value: Spread::of(values.iter().flatten().copied()),
            over_base: base.and_then(|base| better(values, base)),
            ours_over_this: ours.and_then(|ours| better(ours, values)),
            dropped: measured.dropped[n],
            latency: None,
            wrong: None,
        }
    };
    names.iter().enumerate().map(row).collect()
}
