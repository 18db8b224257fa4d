//! Tables for people.

use crate::report::{Latency, Section};
use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};
use kvlease_bench::spread::Spread;

/// Prints one case: the best first.
pub fn print(section: &Section) {
    println!("\n{} · {}", section.workload, section.case);
    println!("{}", table(section));
}

fn table(section: &Section) -> Table {
    let timed = section.rows.iter().any(|row| row.latency.is_some());
    let mut header = vec![String::new(), section.unit.to_owned(), "quartiles".to_owned()];
    header.extend([format!("× {}", section.base), "kvlease ×".into(), "slices".into(), "dropped".into()]);
    if timed {
        header.extend(["p50", "p99", "p99.9", "p99.99", "worst"].map(str::to_owned));
    }
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN).set_header(header);
    let mut rows: Vec<_> = section.rows.iter().collect();
    let key = |value: &Option<Spread>| value.map_or(f64::NEG_INFINITY, |value| value.median);
    let sign = if section.higher_is_better { -1.0 } else { 1.0 };
    rows.sort_by(|a, b| (sign * key(&a.value)).total_cmp(&(sign * key(&b.value))));
    for row in rows {
        let mut cells = vec![
            row.peer.clone(),
            row.value.map_or("-".into(), |value| number(value.median)),
            row.value.map_or("-".into(), |value| format!("{} – {}", number(value.q1), number(value.q3))),
            ratio(row.over_base),
            ratio(row.ours_over_this),
            row.value.map_or(0, |value| value.n).to_string(),
            row.dropped.to_string(),
        ];
        match (&row.wrong, row.latency) {
            (Some(wrong), _) => cells.push(format!("WRONG: {wrong}")),
            (None, Some(latency)) => cells.extend(latencies(latency)),
            (None, None) => {}
        }
        table.add_row(cells);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// With three digits that count.
pub fn number(value: f64) -> String {
    let decimals = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.decimals$}")
}

fn ratio(ratio: Option<Spread>) -> String {
    ratio.map_or("-".into(), |ratio| format!("{:.2} ({:.2} – {:.2})", ratio.median, ratio.q1, ratio.q3))
}

fn latencies(latency: Latency) -> [String; 5] {
    [latency.p50, latency.p99, latency.p999, latency.p9999, latency.worst].map(nanos)
}

/// 1234 as 1.23 µs.
pub fn nanos(nanos: u64) -> String {
    match nanos as f64 {
        n if n >= 1e9 => format!("{} s", number(n / 1e9)),
        n if n >= 1e6 => format!("{} ms", number(n / 1e6)),
        n if n >= 1e3 => format!("{} µs", number(n / 1e3)),
        n => format!("{n} ns"),
    }
}
