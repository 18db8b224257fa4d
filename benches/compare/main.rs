//! All peers in one run, interleaved in short slices: ratios, latencies, targets and charts.
//!
//! See `README.md` beside this, and `--help`.

mod options;
mod report;
mod run;
mod table;

use clap::Parser;
use options::Options;
use report::Report;
use std::process::ExitCode;

fn main() -> ExitCode {
    let options = Options::parse().settled();
    let mut report = Report::begin();
    for workload in &options.workloads {
        run::run(*workload, &options, &mut |section| {
            table::print(&section);
            report.sections.push(section);
        });
    }
    if let Some(path) = &options.json
        && let Err(error) = report.write(path)
    {
        eprintln!("compare: cannot write {}: {error}", path.display());
        return ExitCode::FAILURE;
    }
    if report.sections.iter().flat_map(|section| &section.rows).any(|row| row.wrong.is_some()) {
        eprintln!("compare: a map has lost or invented entries; see the tables");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
