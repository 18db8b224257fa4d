//! Applies the faults of `mutants.toml` to a copy of the tree, one at a time, and says what notices each.
//!
//! ```text
//! cargo run --manifest-path mutants/Cargo.toml -- [OPTION ...] [PART ...]
//!
//!   --check       only looks whether the list is in order: each fault applies, every ordering is covered
//!   --accesses    only lists the orderings in the code, each with the fault that weakens it
//!   --smoke N     the named faults and, in turn, N others that are sure to be noticed: by what noticed them last
//!   --stale       only faults whose file has changed since they were tried, or that never were
//!   --all         those of which it is said that nothing can notice them, too
//!   --cheap       neither models nor Miri
//!   --named       only the killers that a fault names
//!   --patience N  seconds for the models that a fault names (150), and half as many for all others
//!   --part K/N    every Nth fault from the Kth
//!   PART          faults with this in their name, or in that of their file
//! ```
//!
//! A fault is killed when a killer fails, or does not end in its time (of a model, that says nothing). Killers are
//! called
//!
//! | | |
//! |---|---|
//! | `unit[:FILTER]` | the unit tests |
//! | `test:NAME[:FILTER]` | an integration test |
//! | `loom[:FILTER[@PASS]]` | the loom models |
//! | `loom-epoch[:FILTER[@PASS]]` | those on the real epoch |
//! | `shuttle[:FILTER]` | the programs under shuttle |
//! | `miri:NAME[:FILTER]`, `miri-unit[:FILTER]` | a test under Miri, with several seeds |
//!
//! First comes what killed the fault last, by the report (`REPORT.md`); then those that the fault names, the cheap kinds
//! first; then all others. At the end each that has killed something is run on the tree without a fault: one that
//! fails there, too, proves nothing. Every verdict goes into the report.
//!
//! The exit code is 1 when a fault survives for which the list gives no reason, or is noticed in spite of one, does not
//! apply (its text must be there exactly once) or does not compile.

mod killers;
mod list;
mod report;

use killers::{Copy, Killer, Kind, Run};
use list::{Fault, List};
use report::{Report, Verdict};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;
use std::{env, fs, io};

const ALL_KILLERS: [&str; 15] = [
    "unit",
    "test:small_threads",
    "test:races",
    "test:map",
    "test:faults",
    "test:pump",
    "test:transport",
    "test:consumer",
    "test:properties",
    "test:linearizability",
    "test:memory",
    "test:stress",
    "shuttle",
    "loom",
    "miri:small_threads",
];

#[derive(Default)]
struct Options {
    check: bool,
    accesses: bool,
    smoke: Option<usize>,
    stale: bool,
    all: bool,
    cheap: bool,
    named: bool,
    patience: u64,
    part: Option<(usize, usize)>,
    names: Vec<String>,
}

fn options() -> Result<Options, String> {
    let mut options = Options { patience: 150, ..Options::default() };
    let mut args = env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--check" => options.check = true,
            "--accesses" => options.accesses = true,
            "--smoke" => {
                let n = args.next().and_then(|n| n.parse().ok());
                options.smoke = Some(n.ok_or("--smoke wants a number of faults")?);
            }
            "--stale" => options.stale = true,
            "--all" => options.all = true,
            "--cheap" => options.cheap = true,
            "--named" => options.named = true,
            "--patience" => {
                let seconds = args.next().and_then(|seconds| seconds.parse().ok());
                options.patience = seconds.ok_or("--patience wants seconds")?;
            }
            "--part" => {
                let part = args.next().unwrap_or_default();
                let numbers = part.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
                options.part = Some(numbers.filter(|(k, n)| k < n).ok_or("--part wants K/N with K from 0 to N - 1")?);
            }
            name if !name.starts_with('-') => options.names.push(name.into()),
            other => return Err(format!("unknown option {other}")),
        }
    }
    Ok(options)
}

enum Judgement {
    Of(Verdict),
    /// Not all killers were asked, and those that were have not noticed.
    Open,
    Broken(String),
}

/// Applies the fault, seeks what notices it, and puts the file back.
fn judge(copy: &Copy, fault: &Fault, options: &Options, last: Option<&Verdict>) -> io::Result<Judgement> {
    let path = copy.root.join(&fault.file);
    let source = fs::read_to_string(&path)?;
    let changed = match fault.apply(&source) {
        Ok(changed) => changed,
        Err(error) => return Ok(Judgement::Broken(error)),
    };
    fs::write(&path, changed)?;
    let judgement = seek(copy, fault, options, last).unwrap_or_else(Judgement::Broken);
    fs::write(&path, source)?;
    Ok(judgement)
}

fn seek(copy: &Copy, fault: &Fault, options: &Options, last: Option<&Verdict>) -> Result<Judgement, String> {
    let mut killers: Vec<(Killer, u64)> = Vec::new();
    if let Some(Verdict::Killed { by, .. } | Verdict::Stuck { by }) = last {
        killers.push((by.clone(), options.patience));
    }
    // In the smoke run, only if that is not known.
    if options.smoke.is_none() || killers.is_empty() {
        let mut named = fault.killers.iter().map(|name| Killer::parse(name)).collect::<Result<Vec<_>, _>>()?;
        named.sort_by_key(|killer| killer.kind);
        killers.extend(named.into_iter().map(|killer| (killer, options.patience)));
        let others = ALL_KILLERS.iter().filter(|_| !options.named && options.smoke.is_none());
        killers.extend(
            others
                .map(|name| Killer::parse(name).map(|killer| (killer, options.patience / 2)))
                .collect::<Result<Vec<_>, _>>()?,
        );
        killers.retain(|(killer, _)| !options.cheap || !killer.is_dear());
    }
    let mut tried: Vec<&Killer> = Vec::new();
    for (killer, patience) in &killers {
        if tried.contains(&killer) {
            continue;
        }
        tried.push(killer);
        match copy.run(killer, *patience) {
            Run::Passed => {}
            Run::Failed(by, seconds) => return Ok(Judgement::Of(Verdict::Killed { by, seconds })),
            Run::OutOfTime if matches!(killer.kind, Kind::Loom | Kind::LoomEpoch) => {}
            Run::OutOfTime => return Ok(Judgement::Of(Verdict::Stuck { by: killer.clone() })),
            Run::NotCompiled(error) => return Err(format!("{killer}: {error}")),
        }
    }
    let asked_all = !options.cheap && !options.named && options.smoke.is_none();
    Ok(match (asked_all, fault.should_survive()) {
        (false, _) => Judgement::Open,
        (true, true) => Judgement::Of(Verdict::Unnoticed),
        (true, false) => Judgement::Of(Verdict::Survived),
    })
}

/// Which faults this run is about.
fn choose<'a>(list: &'a List, report: &Report, options: &Options, tree: &Path) -> Vec<&'a Fault> {
    let is_named = |fault: &&Fault| {
        options.names.iter().any(|n| fault.name.contains(n.as_str()) || fault.file.contains(n.as_str()))
    };
    let Some(rotating) = options.smoke else {
        let mine = |i: usize| options.part.is_none_or(|(k, n)| i % n == k);
        return list
            .faults
            .iter()
            .enumerate()
            .filter(|(i, _)| mine(*i))
            .map(|(_, fault)| fault)
            .filter(|fault| options.names.is_empty() || is_named(fault))
            .filter(|fault| !fault.should_survive() || options.all)
            .filter(|fault| !options.stale || !report.is_fresh(fault))
            .collect();
    };
    let mut chosen: Vec<&Fault> = list.faults.iter().filter(|fault| options.names.contains(&fault.name)).collect();
    let quick = |fault: &&Fault| match report.verdict(fault) {
        Some(Verdict::Killed { by, seconds }) => by.is_certain() && *seconds <= 8,
        _ => false,
    };
    let others: Vec<&Fault> = list.faults.iter().filter(|fault| quick(fault) && !chosen.contains(fault)).collect();
    // By the number of commits, so that a commit is always checked alike, and the next one otherwise.
    let commits = Command::new("git").args(["rev-list", "--count", "HEAD"]).current_dir(tree).output();
    let commits = commits.ok().and_then(|said| String::from_utf8_lossy(&said.stdout).trim().parse().ok()).unwrap_or(0);
    let rotating = rotating.min(others.len());
    chosen.extend((0..rotating).map(|i| others[(commits * rotating + i) % others.len()]));
    chosen
}

fn run() -> Result<bool, Box<dyn std::error::Error>> {
    let options = options()?;
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("no tree")?.to_path_buf();
    let list = List::read(&tree)?;
    if options.accesses {
        for access in list.accesses(&tree)? {
            let by = access.weakened_by.as_deref().unwrap_or("NO FAULT");
            println!("{}:{}: {}: {by}", access.file, access.line, access.text);
        }
        return Ok(true);
    }
    let complaints = list.complaints(&tree)?;
    complaints.iter().for_each(|complaint| println!("{complaint}"));
    println!("{} faults in the list, {} complaints", list.faults.len(), complaints.len());
    if options.check || !complaints.is_empty() {
        return Ok(complaints.is_empty());
    }

    let mut report = Report::read(&tree, &list)?;
    let chosen = choose(&list, &report, &options, &tree);
    let copy = Copy::of(&tree)?;
    let start = Instant::now();
    let mut kills: BTreeMap<Killer, Vec<&Fault>> = BTreeMap::new();
    let (mut killed, mut unnoticed, mut survivors, mut broken) = (0, 0, 0, 0);
    for (i, fault) in chosen.iter().enumerate() {
        let begun = Instant::now();
        let judgement = judge(&copy, fault, &options, report.verdict(fault))?;
        let said = match &judgement {
            Judgement::Of(Verdict::Killed { by, .. }) => format!("killed by {by}"),
            Judgement::Of(Verdict::Stuck { by }) => format!("killed by {by}, which does not end"),
            Judgement::Of(Verdict::Unnoticed) => "not noticed, as is said".into(),
            Judgement::Open => "NOT NOTICED by those that were asked".into(),
            Judgement::Of(Verdict::Survived) => "SURVIVES".into(),
            Judgement::Broken(error) => format!("BROKEN: {error}"),
        };
        println!("[{}/{}] {}: {said} ({} s)", i + 1, chosen.len(), fault.name, begun.elapsed().as_secs());
        match &judgement {
            Judgement::Of(Verdict::Killed { by, .. } | Verdict::Stuck { by }) => {
                kills.entry(by.clone()).or_default().push(fault);
                killed += 1;
                if fault.should_survive() {
                    println!("    but it is said that nothing can notice it");
                    broken += 1;
                }
            }
            Judgement::Of(Verdict::Unnoticed) => unnoticed += 1,
            Judgement::Of(Verdict::Survived) | Judgement::Open => survivors += 1,
            Judgement::Broken(_) => broken += 1,
        }
        if let (Judgement::Of(verdict), None) = (judgement, options.smoke) {
            report.set(fault, verdict);
            report.write(&list)?;
        }
    }

    // Each killer without a fault (in the smoke run, CI has run them all). Of a model that explores for long it is enough that it does not fail soon: all
    // of it is explored by `.ci/loom`.
    let mut known = copy.known_to_pass();
    let mut unsound = 0;
    for (killer, faults) in &kills {
        if options.smoke.is_some() || known.contains(&killer.to_string()) {
            continue;
        }
        let passed = match copy.run(killer, options.patience / 2) {
            Run::Passed => true,
            Run::OutOfTime => matches!(killer.kind, Kind::Loom | Kind::LoomEpoch),
            Run::Failed(..) | Run::NotCompiled(_) => false,
        };
        if passed {
            known.insert(killer.to_string());
            copy.remember_to_pass(&known)?;
        } else {
            let names: Vec<&str> = faults.iter().map(|fault| fault.name.as_str()).collect();
            println!("{killer} fails WITHOUT A FAULT, so it says nothing of {}", names.join(", "));
            unsound += 1;
        }
    }
    println!(
        "{} faults: {killed} killed, {unnoticed} rightly not, {survivors} survive, {broken} broken; {unsound} killers \
         fail without a fault; {} min",
        chosen.len(),
        start.elapsed().as_secs() / 60
    );
    Ok(survivors + broken + unsound == 0)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("mutants: {error}");
            ExitCode::FAILURE
        }
    }
}
