//! The workloads of trackers. Each is one thread, and processor time is measured: what else runs on the
//! machine costs nothing but patience.

use super::{rows, take_turns};
use crate::options::Options;
use crate::report::{Case, Latency, Section, short};
use kvlease_bench::trackers::{self, ALL, New};
use kvlease_bench::workloads::heartbeat::{Heartbeat, IDS};
use kvlease_bench::workloads::pump::Pump;
use kvlease_bench::workloads::sweep::{Due, Sweep};
use kvlease_bench::workloads::trace::{self, Trace, Traced};
use std::time::Duration;

/// All of them, or those that differ where calls are not made one by one.
fn which(one_by_one: bool) -> (Vec<&'static str>, Vec<New>) {
    ALL.iter().filter(|(name, _)| one_by_one || *name != "kvlease, one by one").copied().unzip()
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn section(workload: &'static str, live: Option<usize>, what: String, unit: &'static str) -> Section {
    let case = Case { live, what: Some(what), ..Case::default() };
    let higher_is_better = unit.starts_with('M');
    Section { workload, case, unit, higher_is_better, base: trackers::BASE, rows: Vec::new() }
}

/// Leases that are due among many that are not.
pub fn sweep(options: &Options, on: &mut dyn FnMut(Section)) {
    let (names, new) = which(false);
    for leases in [100, 16_384, options.scaled(1_000_000)] {
        let fresh = |n: usize| Sweep::new(new[n](), leases as u64);
        let mut report = |what: &str, rounds: Vec<Vec<Option<f64>>>| {
            let mut section = section("sweep", Some(leases), what.into(), "µs/sweep");
            section.rows = rows(&names, &rounds, section.base, false);
            on(section);
        };
        // What can be done once only is done to a fresh one each time.
        let once = if leases > 100_000 { 3 } else { options.slices };
        let mut all = vec![Vec::new(); names.len()];
        let settle = take_turns(&names, once, options.seconds, |n| {
            let mut sweep = fresh(n);
            let settled = micros(sweep.settle());
            all[n].push(Some(micros(sweep.sweep(Due::All))));
            Some(settled)
        });
        report("the first sweep past deadlines that were all renewed", settle);
        let mut sweeps: Vec<Sweep> = (0..names.len()).map(fresh).collect();
        sweeps.iter_mut().for_each(|sweep| {
            sweep.settle();
        });
        for (what, due) in [("none due", Due::None), ("8 due", Due::Eight)] {
            let rounds =
                take_turns(&names, 4 * options.slices, options.seconds, |n| Some(micros(sweeps[n].sweep(due))));
            report(what, rounds);
        }
        report("all due", all);
    }
}

/// One message that renews 2,000 leases.
pub fn heartbeat(options: &Options, on: &mut dyn FnMut(Section)) {
    let (names, new) = which(true);
    for leases in [2_000, options.scaled(1_000_000)] {
        let mut beats: Vec<_> = new.iter().map(|new| Heartbeat::new(new(), leases as u64)).collect();
        let rounds = take_turns(&names, 2 * options.slices, options.seconds, |n| Some(micros(beats[n].beat())));
        let mut section = section("heartbeat", Some(leases), format!("{} ids", short(IDS as usize)), "µs/message");
        section.rows = rows(&names, &rounds, section.base, false);
        on(section);
    }
}

/// From the bytes of completions to ended leases.
pub fn pump(options: &Options, on: &mut dyn FnMut(Section)) {
    let (names, new) = which(true);
    for batch in [1, 16, 256, 13_000] {
        let mut pumps: Vec<_> = new.iter().map(|new| Pump::new(new(), batch)).collect();
        let messages = pumps[0].messages() as f64;
        let rounds =
            take_turns(&names, options.slices + 2, options.seconds, |n| Some(messages / micros(pumps[n].round())));
        // The first two bring memory and caches into the state in which they stay.
        let rounds: Vec<_> = rounds.into_iter().map(|mut values| values.split_off(2.min(values.len() - 1))).collect();
        let live = Some((messages / 4.0) as usize);
        let mut section = section("pump", live, format!("polls of {}", short(batch)), "M messages/s");
        section.rows = rows(&names, &rounds, section.base, true);
        on(section);
    }
}

/// A trace of real arrivals, as an engine would.
pub fn trace(options: &Options, on: &mut dyn FnMut(Section)) {
    let (names, new) = which(false);
    let seconds = if options.quick { 60 } else { 600 };
    let arrivals = trace::arrivals(options.trace.as_deref(), seconds);
    let source = match &options.trace {
        Some(_) => "the trace",
        None => "generated arrivals",
    };
    for times in [1, 100] {
        let trace = Trace::new(&arrivals, times);
        let mut last: Vec<Option<Traced>> = names.iter().map(|_| None).collect();
        let rounds = take_turns(&names, 3, options.seconds, |n| {
            let traced = trace.run(&*new[n]());
            let each = micros(traced.took) / trace.requests as f64;
            last[n] = Some(traced);
            Some(each)
        });
        let peak = last.iter().flatten().map(|traced| traced.peak).max();
        let what = format!("{seconds} s of {source} ×{times}, {} requests, latency of a step", trace.requests);
        let mut section = section("trace", peak, what, "µs/request");
        section.rows = rows(&names, &rounds, section.base, false);
        for (row, traced) in section.rows.iter_mut().zip(&last) {
            row.latency = traced.as_ref().map(|traced| Latency::of(&traced.steps));
        }
        on(section);
    }
}
