//! All peers in one run, interleaved in short slices: ratios, latencies, targets and charts.
//!
//! See `README.md` beside this, and `--help`.

mod allocator;
mod options;
mod plot;
mod report;
mod run;
mod table;
mod targets;

use clap::Parser;
use options::Options;
use report::Report;
use std::process::ExitCode;

fn main() -> ExitCode {
    let options = Options::parse().settled();
    if let Some(peer) = &options.memory_of {
        return run::memory_of(peer, &options);
    }
    let mut report = Report::begin();
    for workload in &options.workloads {
        run::run(*workload, &options, &mut |section| {
            table::print(&section);
            report.sections.push(section);
        });
    }
    report.targets = targets::check(&report.sections);
    targets::print(&report.targets);
    println!("\non {} × {}", report.machine.cores, report.machine.cpu);
    if let Some(dir) = &options.plot
        && let Err(error) = plot::draw(&report.sections, dir)
    {
        eprintln!("compare: cannot draw into {}: {error}", dir.display());
        return ExitCode::FAILURE;
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
