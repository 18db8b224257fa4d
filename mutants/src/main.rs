//! Applies the faults of `mutants.toml` to a copy of the tree, one at a time, and says what notices each.
//!
//! ```text
//! cargo run --manifest-path mutants/Cargo.toml -- [--check] [--all] [--cheap | --named] [--part K/N] [NAME-PART ...]
//! ```
//!
//! A fault is killed when a killer fails, or does not end in its time. Killers are called
//!
//! | | |
//! |---|---|
//! | `unit[:FILTER]` | the unit tests |
//! | `test:NAME[:FILTER]` | an integration test |
//! | `loom[:FILTER]` | the loom models |
//! | `shuttle[:FILTER]` | the programs under shuttle |
//! | `miri:NAME[:FILTER]`, `miri-unit[:FILTER]` | a test under Miri, with several seeds |
//!
//! Those that a fault names are tried first, then all others, the cheap ones first (with `--cheap` neither loom nor
//! Miri; with `--named` none). At the end each killer that
//! has killed something is run on the tree without a fault: one that fails there, too, proves nothing.
//!
//! The exit code is 1 when a fault survives that is not shown to be equivalent, does not apply (its text must
//! be there exactly once) or does not compile.

use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, io};

#[derive(Deserialize)]
struct List {
    mutant: Vec<Mutant>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutant {
    name: String,
    file: String,
    old: String,
    new: String,
    breaks: String,
    #[serde(default)]
    killers: Vec<String>,
    equivalent: Option<String>,
}

impl Mutant {
    fn apply(&self, source: &str) -> Result<String, String> {
        match source.matches(&self.old).count() {
            1 => Ok(source.replacen(&self.old, &self.new, 1)),
            n => Err(format!("its text occurs {n} times in {}", self.file)),
        }
    }
}

enum Verdict {
    KilledBy(String, &'static str),
    Survived,
    Equivalent,
    Broken(String),
}

enum Run {
    Passed,
    Failed,
    OutOfTime,
    NotCompiled(String),
}

const ALL_KILLERS: [&str; 12] = [
    "unit",
    "test:small_threads",
    "test:races",
    "test:map",
    "test:faults",
    "test:properties",
    "test:linearizability",
    "test:memory",
    "test:stress",
    "shuttle",
    "loom",
    "miri:small_threads",
];

/// A tree of its own, with its own target directory, which a next run finds again.
struct Copy {
    root: PathBuf,
    target: PathBuf,
}

impl Copy {
    fn of(tree: &Path) -> io::Result<Self> {
        let base = env::var_os("CARGO_TARGET_DIR").map_or_else(|| tree.join("target"), PathBuf::from).join("mutants");
        let copy = Copy { root: base.join("tree"), target: base.join("target") };
        _ = fs::remove_dir_all(&copy.root);
        let list = Command::new("git")
            .args(["ls-files", "-co", "--exclude-standard", "-z"])
            .current_dir(tree)
            .stderr(Stdio::inherit())
            .output()?;
        for file in String::from_utf8_lossy(&list.stdout).split('\0').filter(|file| !file.is_empty()) {
            let (from, to) = (tree.join(file), copy.root.join(file));
            if let (true, Some(parent)) = (from.is_file(), to.parent()) {
                fs::create_dir_all(parent)?;
                fs::copy(&from, &to)?;
            }
        }
        Ok(copy)
    }

    /// A cargo command for this killer, and how long it may run.
    fn command(&self, killer: &str) -> Result<(Vec<String>, u64), String> {
        let mut parts = killer.splitn(3, ':');
        let (kind, mut name) = (parts.next().unwrap_or_default(), parts.next());
        let mut filter = parts.next();
        let words = |text: &str| text.split(' ').map(String::from).collect::<Vec<_>>();
        let (mut command, limit) = match kind {
            "unit" => (words("cargo test -q --lib"), 60),
            "test" => (words("cargo test -q --test"), 120),
            "loom" => (words("cargo test -q --release --manifest-path loom-tests/Cargo.toml --lib"), 600),
            "shuttle" => {
                (words("cargo test -q --release --manifest-path shuttle-tests/Cargo.toml --test schedules"), 300)
            }
            "miri" => (words("cargo +nightly miri test -q --test"), 400),
            "miri-unit" => (words("cargo +nightly miri test -q --lib"), 400),
            _ => return Err(format!("no such killer: {killer}")),
        };
        if !matches!(kind, "test" | "miri") {
            filter = name.take();
        }
        command.extend(name.map(String::from));
        command.extend(filter.map(String::from));
        Ok((command, limit))
    }

    fn run(&self, killer: &str) -> Run {
        let (command, limit) = match self.command(killer) {
            Ok(command) => command,
            Err(error) => return Run::NotCompiled(error),
        };
        let mut build = command.clone();
        build.insert(build.iter().position(|word| word == "-q").unwrap_or(build.len()), "--no-run".into());
        match self.spawn(&build, 1_200) {
            Ok((Some(0), _)) => {}
            Ok((_, said)) => return Run::NotCompiled(said),
            Err(error) => return Run::NotCompiled(error.to_string()),
        }
        match self.spawn(&command, limit) {
            Ok((Some(0), _)) => Run::Passed,
            Ok((Some(124 | 137), _)) => Run::OutOfTime,
            Ok(_) => Run::Failed,
            Err(error) => Run::NotCompiled(error.to_string()),
        }
    }

    /// Runs a command with a limit of time and memory: a fault may loop or leak. Gives its code and the end
    /// of what it said.
    fn spawn(&self, command: &[String], limit: u64) -> io::Result<(Option<i32>, String)> {
        let output = Command::new("bash")
            .args(["-c", "ulimit -v 16000000; exec timeout -k 5 \"$@\"", "mutants", &limit.to_string()])
            .args(command)
            .current_dir(&self.root)
            .env("CARGO_TARGET_DIR", &self.target)
            .env("RUST_BACKTRACE", "0")
            .env("KVLEASE_SCHEDULES", "1500")
            .env(
                "MIRIFLAGS",
                "-Zmiri-tree-borrows -Zmiri-permissive-provenance -Zmiri-ignore-leaks -Zmiri-many-seeds=0..12",
            )
            .stdin(Stdio::null())
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<_> = said.lines().filter(|line| line.starts_with("error")).take(3).collect();
        Ok((output.status.code(), lines.join("; ")))
    }

    fn judge(&self, mutant: &Mutant, options: &Options) -> io::Result<Verdict> {
        let path = self.root.join(&mutant.file);
        let source = fs::read_to_string(&path)?;
        let changed = match mutant.apply(&source) {
            Ok(changed) => changed,
            Err(error) => return Ok(Verdict::Broken(error)),
        };
        fs::write(&path, changed)?;
        let verdict = self.seek(mutant, options);
        fs::write(&path, source)?;
        Ok(verdict)
    }

    fn seek(&self, mutant: &Mutant, options: &Options) -> Verdict {
        if mutant.equivalent.is_some() && !options.all {
            return Verdict::Equivalent;
        }
        let first = mutant.killers.iter().map(String::as_str);
        let then =
            ALL_KILLERS.into_iter().filter(|killer| !options.named && mutant.killers.iter().all(|k| k != killer));
        let dear = |killer: &&str| killer.starts_with("loom") || killer.starts_with("miri");
        for killer in first.chain(then).filter(|killer| !options.cheap || !dear(killer)) {
            match self.run(killer) {
                Run::Passed => {}
                Run::Failed => return Verdict::KilledBy(killer.into(), ""),
                Run::OutOfTime => return Verdict::KilledBy(killer.into(), " (does not end)"),
                Run::NotCompiled(error) => return Verdict::Broken(format!("{killer}: {error}")),
            }
        }
        match mutant.equivalent {
            Some(_) => Verdict::Equivalent,
            None => Verdict::Survived,
        }
    }
}

struct Options {
    check: bool,
    all: bool,
    cheap: bool,
    named: bool,
    part: Option<(usize, usize)>,
    names: Vec<String>,
}

fn options() -> Result<Options, String> {
    let mut options = Options { check: false, all: false, cheap: false, named: false, part: None, names: Vec::new() };
    let mut args = env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--check" => options.check = true,
            "--all" => options.all = true,
            "--cheap" => options.cheap = true,
            "--named" => options.named = true,
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

fn run() -> Result<bool, Box<dyn std::error::Error>> {
    let options = options()?;
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("no tree")?.to_path_buf();
    let list: List = toml::from_str(&fs::read_to_string(tree.join("mutants/mutants.toml"))?)?;

    let mut broken = 0;
    let mut names = BTreeSet::new();
    for mutant in &list.mutant {
        let applied = mutant.apply(&fs::read_to_string(tree.join(&mutant.file))?);
        let twice = !names.insert(&mutant.name);
        let idle = mutant.killers.is_empty() && mutant.equivalent.is_none();
        if let Err(error) = applied {
            println!("{}: {error}", mutant.name);
            broken += 1;
        } else if twice || idle {
            println!("{}: {}", mutant.name, if twice { "two have this name" } else { "no killer is named" });
            broken += 1;
        }
    }
    println!("{} faults in the list, {broken} of them out of date", list.mutant.len());
    if options.check || broken > 0 {
        return Ok(broken == 0);
    }

    let chosen: Vec<_> = list
        .mutant
        .iter()
        .enumerate()
        .filter(|(i, _)| options.part.is_none_or(|(k, n)| i % n == k))
        .map(|(_, mutant)| mutant)
        .filter(|m| options.names.is_empty() || options.names.iter().any(|name| m.name.contains(name.as_str())))
        .collect();
    let copy = Copy::of(&tree)?;
    let start = Instant::now();
    let mut rows = Vec::new();
    let mut kills: BTreeMap<String, usize> = BTreeMap::new();
    let (mut survivors, mut equivalent) = (0, 0);
    for (i, mutant) in chosen.iter().enumerate() {
        let begun = Instant::now();
        let said = match copy.judge(mutant, &options)? {
            Verdict::KilledBy(killer, how) => {
                *kills.entry(killer.clone()).or_default() += 1;
                format!("killed by {killer}{how}")
            }
            Verdict::Survived => {
                survivors += 1;
                "SURVIVED".into()
            }
            Verdict::Equivalent => {
                equivalent += 1;
                "equivalent".into()
            }
            Verdict::Broken(error) => {
                broken += 1;
                format!("BROKEN: {error}")
            }
        };
        println!("[{}/{}] {}: {said} ({} s)", i + 1, chosen.len(), mutant.name, begun.elapsed().as_secs());
        rows.push((*mutant, said));
    }

    let mut unsound = 0;
    for (killer, count) in &kills {
        let passed = matches!(copy.run(killer), Run::Passed);
        println!("without a fault, {killer} (which killed {count}) {}", if passed { "passes" } else { "FAILS" });
        unsound += usize::from(!passed);
    }
    report(&copy, &rows)?;
    println!(
        "{} faults: {} killed, {equivalent} equivalent, {survivors} survived, {broken} broken; {unsound} killers fail \
         without a fault; {} min",
        chosen.len(),
        kills.values().sum::<usize>(),
        start.elapsed().div_f32(60.0).max(Duration::from_secs(0)).as_secs()
    );
    Ok(survivors + broken + unsound == 0)
}

/// Writes what became of each beside the copy, as a table.
fn report(copy: &Copy, rows: &[(&Mutant, String)]) -> Result<(), Box<dyn std::error::Error>> {
    let mut text = String::from("| fault | file | what it breaks | what noticed |\n|---|---|---|---|\n");
    for (mutant, said) in rows {
        writeln!(text, "| {} | `{}` | {} | {said} |", mutant.name, mutant.file, mutant.breaks)?;
    }
    let path = copy.root.with_file_name("report.md");
    fs::write(&path, text)?;
    println!("table: {}", path.display());
    Ok(())
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
