//! What kvlease is to reach, and whether this run shows it.

use crate::report::{Row, Section};
use crate::table::{nanos, number};
use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use kvlease_bench::peers::{self, Kind, OURS};
use kvlease_bench::slices::cores;
use serde::Serialize;

/// One target.
#[derive(Serialize)]
pub struct Verdict {
    /// What is to be reached.
    pub target: String,
    /// What was measured.
    pub measured: String,
    /// Whether that is enough.
    pub met: bool,
}

/// All targets of which this run has measured something.
pub fn check(sections: &[Section]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for section in sections {
        match section.workload {
            "lifecycle" => lifecycle(section, sections, &mut verdicts),
            "oversubscribed" => oversubscribed(section, sections, &mut verdicts),
            "growth" => growth(section, &mut verdicts),
            "sweep" => sweep(section, sections, &mut verdicts),
            "heartbeat" => at_most(section, "a heartbeat of 2,000 ids", 500.0, &mut verdicts),
            "pump" => pump(section, &mut verdicts),
            "memory" => memory(section, &mut verdicts),
            _ => {}
        }
    }
    verdicts
}

/// Prints the verdicts.
pub fn print(verdicts: &[Verdict]) {
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN).set_header(["target", "measured", ""]);
    for verdict in verdicts {
        table.add_row([&*verdict.target, &*verdict.measured, if verdict.met { "met" } else { "NOT MET" }]);
    }
    println!("\ntargets\n{table}");
}

/// The peer against which kvlease does worst.
fn worst_against(section: &Section, counts: impl Fn(Kind) -> bool) -> Option<(&Row, f64)> {
    let against = section.rows.iter().filter(|row| row.kind.is_some_and(&counts));
    let ratios = against.filter_map(|row| Some((row, row.ours_over_this?.median)));
    ratios.min_by(|a, b| a.1.total_cmp(&b.1))
}

fn lifecycle(section: &Section, sections: &[Section], verdicts: &mut Vec<Verdict>) {
    let case = &section.case;
    let (Some(threads), Some(live), Some(ours)) = (case.threads, case.live, section.row(OURS)) else { return };
    let mut at_least = |what: String, least: f64, measured: Option<(String, f64)>| {
        if let Some((measured, value)) = measured {
            verdicts.push(Verdict { target: format!("{case}: {what}"), measured, met: value >= least });
        }
    };
    let named = |(row, ratio): (&Row, f64)| (format!("{} × {}", number(ratio), row.peer), ratio);
    let over_base = ours.over_base.map(|ratio| (format!("{} ×", number(ratio.median)), ratio.median));
    if case.batched == Some(true) {
        let single = sections.iter().find(|other| {
            let single = crate::report::Case { batched: Some(false), ..case.clone() };
            other.workload == section.workload && other.case == single
        });
        if (threads, live) == (1, 100_000) {
            let gain = single.and_then(|single| Some(ours.median()? / single.row(OURS)?.median()?));
            at_least("2 × the single calls".into(), 2.0, gain.map(|gain| (format!("{} ×", number(gain)), gain)));
        }
    } else if threads == cores() && threads > 1 {
        let is_peer = |kind| matches!(kind, Kind::Locks | Kind::LockFree);
        if live >= 100_000 {
            at_least("ahead of every peer".into(), 1.0, worst_against(section, is_peer).map(named));
            at_least(format!("3.5 × {}", peers::BASE), 3.5, over_base);
        } else {
            let lock_free = worst_against(section, |kind| kind == Kind::LockFree).map(named);
            at_least("2 × every peer that is not locked for look-ups".into(), 2.0, lock_free);
            let locks = worst_against(section, |kind| kind == Kind::Locks).map(named);
            at_least("within 1.5 × of the best lock".into(), 1.0 / 1.5, locks);
        }
    } else if threads == 1 {
        let most = if live >= 100_000 { 1.1 } else { 1.6 };
        let cost = ours.over_base.map(|ratio| 1.0 / ratio.median);
        if let Some(cost) = cost.filter(|_| live <= 100_000) {
            let target = format!("{case}: at most {most} × the cost of {}", peers::BASE);
            verdicts.push(Verdict { target, measured: format!("{} ×", number(cost)), met: cost <= most });
        }
    }
}

fn oversubscribed(section: &Section, sections: &[Section], verdicts: &mut Vec<Verdict>) {
    let case = &section.case;
    let Some(threads) = case.threads.filter(|&threads| threads > cores()) else { return };
    let at_cores = crate::report::Case { threads: Some(cores()), ..case.clone() };
    let base = sections.iter().find(|other| other.workload == section.workload && other.case == at_cores);
    let of = |section: &Section| section.row(OURS)?.median();
    if let (Some(now), Some(before)) = (of(section), base.and_then(of)) {
        let target = format!("{threads} threads: 0.9 × the throughput of {}", cores());
        verdicts.push(Verdict { target, measured: format!("{} ×", number(now / before)), met: now / before >= 0.9 });
    }
    let worst = |peer| Some(section.row(peer)?.latency?.worst);
    if let (Some(ours), Some(without)) = (worst(OURS), worst("(harness)")) {
        let target = format!("{threads} threads: the worst call no worse than twice what it is without a map");
        let measured = format!("{} and {}", nanos(ours), nanos(without));
        verdicts.push(Verdict { target, measured, met: ours <= 2 * without });
    }
}

fn growth(section: &Section, verdicts: &mut Vec<Verdict>) {
    let Some(latency) = section.row(OURS).and_then(|row| row.latency) else { return };
    let mut at_most = |what: &str, most: u64, value: u64| {
        let target = format!("growth: {what} of an insert at most {}", nanos(most));
        verdicts.push(Verdict { target, measured: nanos(value), met: value <= most });
    };
    at_most("p50", 300, latency.p50);
    at_most("p99", 2_000, latency.p99);
    // What interrupts cost on a machine that others share.
    let noise = section.row("(harness)").and_then(|row| row.latency).map_or(0, |latency| latency.worst);
    at_most("the worst", (2 * noise).max(100_000), latency.worst);
}

fn at_most(section: &Section, what: &str, most: f64, verdicts: &mut Vec<Verdict>) {
    if let Some(value) = section.row(OURS).and_then(Row::median) {
        let target = format!("{what}, {}: at most {most} µs", section.case);
        verdicts.push(Verdict { target, measured: format!("{} µs", number(value)), met: value <= most });
    }
}

fn sweep(section: &Section, sections: &[Section], verdicts: &mut Vec<Verdict>) {
    let Some((live, what)) = section.case.live.zip(section.case.what.as_deref()) else { return };
    let Some(value) = section.row(OURS).and_then(Row::median) else { return };
    match what {
        "none due" => {
            at_most(section, "a sweep", 10.0, verdicts);
            let of = |leases| {
                let like = |other: &&Section| other.workload == "sweep" && other.case.what.as_deref() == Some(what);
                sections.iter().filter(like).find(|other| other.case.live == Some(leases))?.row(OURS)?.median()
            };
            if let Some(small) = of(100).filter(|_| live == 16_384) {
                let target = "a sweep with none due of 16,384: at most twice one of 100, or 1 µs".into();
                let measured = format!("{} µs and {} µs", number(value), number(small));
                verdicts.push(Verdict { target, measured, met: value <= (2.0 * small).max(1.0) });
            }
        }
        "all due" => {
            let each = value * 1e3 / live as f64;
            let target = format!("a sweep, {}: at most 200 ns for each", section.case);
            verdicts.push(Verdict { target, measured: format!("{} ns", number(each)), met: each <= 200.0 });
        }
        _ => {}
    }
}

fn pump(section: &Section, verdicts: &mut Vec<Verdict>) {
    let cached = section.case.live.is_some_and(|live| live <= 1_000);
    let batched = section.case.what.as_deref() != Some("polls of 1");
    if let Some(value) = section.row(OURS).and_then(Row::median).filter(|_| cached && batched) {
        let target = format!("pump, {}: at least 5 million a second", section.case);
        verdicts.push(Verdict { target, measured: format!("{} million", number(value)), met: value >= 5.0 });
    }
}

fn memory(section: &Section, verdicts: &mut Vec<Verdict>) {
    let Some(value) = section.row(OURS).and_then(Row::median) else { return };
    if section.case.key == Some("u64") && section.case.what.as_deref().is_some_and(|what| !what.starts_with("held")) {
        let beside = value - 16.0;
        let target = format!("memory, {}: at most 128 bytes beside key and value", section.case);
        verdicts.push(Verdict { target, measured: format!("{} bytes", number(beside)), met: beside <= 128.0 });
    }
}
