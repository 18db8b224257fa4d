//! What may notice a fault: builds it and runs it, in a copy of the tree.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, io};

/// A kind of killer, the cheap ones first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    Unit,
    Test,
    Loom,
    LoomEpoch,
    Shuttle,
    MiriUnit,
    Miri,
}

/// A killer by its name: `KIND[:TARGET][:FILTER]`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Killer {
    pub kind: Kind,
    /// Of an integration test.
    target: String,
    filter: String,
}

const KINDS: [(&str, Kind); 7] = [
    ("unit", Kind::Unit),
    ("test", Kind::Test),
    ("loom", Kind::Loom),
    ("loom-epoch", Kind::LoomEpoch),
    ("shuttle", Kind::Shuttle),
    ("miri-unit", Kind::MiriUnit),
    ("miri", Kind::Miri),
];

impl Killer {
    pub fn parse(name: &str) -> Result<Self, String> {
        let (kind, rest) = name.split_once(':').unwrap_or((name, ""));
        let Some((_, kind)) = KINDS.iter().find(|(name, _)| *name == kind) else {
            return Err(format!("no such killer: {name}"));
        };
        let (target, filter) = match kind {
            Kind::Test | Kind::Miri => rest.split_once(':').unwrap_or((rest, "")),
            _ => ("", rest),
        };
        Ok(Killer { kind: *kind, target: target.into(), filter: filter.into() })
    }

    fn with_filter(&self, filter: &str) -> Self {
        Killer { filter: filter.into(), ..self.clone() }
    }

    fn is_loom(&self) -> bool {
        matches!(self.kind, Kind::Loom | Kind::LoomEpoch)
    }

    pub fn is_dear(&self) -> bool {
        self.kind >= Kind::Loom && self.kind != Kind::Shuttle
    }

    /// Whether it is one test that comes to the same result each time: it uses no threads but loom's, and
    /// generates no cases.
    pub fn is_certain(&self) -> bool {
        let by_chance = ["threads", "whichever", "agree", "any_", "race", "at_once", "parsing", "comes_back"];
        let by_chance = |name: &str| by_chance.iter().any(|word| name.contains(word));
        let certain_targets = ["faults", "map", "bad_input", "pump", "pump_log", "consumer", "transport", "wire"];
        match self.kind {
            Kind::Loom | Kind::LoomEpoch => self.filter.contains("::"),
            Kind::Unit => self.filter.contains("::") && !by_chance(&self.filter),
            Kind::Test => {
                certain_targets.contains(&&*self.target) && !self.filter.is_empty() && !by_chance(&self.filter)
            }
            _ => false,
        }
    }
}

impl std::fmt::Display for Killer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, _) = KINDS.iter().find(|(_, kind)| *kind == self.kind).unwrap_or(&KINDS[0]);
        f.write_str(name)?;
        for part in [&self.target, &self.filter].into_iter().filter(|part| !part.is_empty()) {
            write!(f, ":{part}")?;
        }
        Ok(())
    }
}

/// What a killer said of a tree.
pub enum Run {
    Passed,
    /// It failed; which test of it did, and after how many seconds.
    Failed(Killer, u64),
    /// It did not end. Of a model this says nothing: there may only be much to explore.
    OutOfTime,
    NotCompiled(String),
}

/// A tree of its own, with its own target directory, which a next run finds again.
pub struct Copy {
    pub root: PathBuf,
    base: PathBuf,
    /// A number for all code in it.
    number: u32,
}

/// How many seconds of processor time one model may take in each round.
const ROUNDS: [u64; 3] = [3, 12, 60];

impl Copy {
    pub fn of(tree: &Path) -> io::Result<Self> {
        let base = env::var_os("CARGO_TARGET_DIR").map_or_else(|| tree.join("target"), PathBuf::from).join("mutants");
        let mut copy = Copy { root: base.join("tree"), base, number: 0 };
        let list = Command::new("git")
            .args(["ls-files", "-co", "--exclude-standard", "-z"])
            .current_dir(tree)
            .stderr(Stdio::inherit())
            .output()?;
        let list = String::from_utf8_lossy(&list.stdout);
        let mut files: Vec<&str> = list.split('\0').filter(|file| tree.join(file).is_file()).collect();
        files.sort_unstable();
        let mut code = crc32fast::Hasher::new();
        for file in &files {
            // Only what differs, so that cargo builds no more anew.
            let (from, to) = (fs::read(tree.join(file))?, copy.root.join(file));
            if fs::read(&to).ok().as_ref() != Some(&from) {
                fs::create_dir_all(to.parent().unwrap_or(&copy.root))?;
                fs::write(&to, &from)?;
            }
            if file.ends_with(".rs") || file.ends_with("Cargo.toml") {
                code.update(&from);
            }
        }
        copy.number = code.finalize();
        remove_others(&copy.root, &copy.root, &files)?;
        Ok(copy)
    }

    /// Runs a killer, models not longer than `patience` in seconds.
    pub fn run(&self, killer: &Killer, patience: u64) -> Run {
        if matches!(killer.kind, Kind::Miri | Kind::MiriUnit) {
            return self.run_miri(killer);
        }
        let program = match self.build(killer) {
            Ok(program) => program,
            Err(error) => return Run::NotCompiled(error),
        };
        if killer.is_loom() {
            return self.run_models(killer, &program, patience);
        }
        let limit = match (killer.kind, &*killer.target) {
            (Kind::Test, "pump" | "pump_log" | "transport" | "consumer" | "faults" | "bad_input" | "wire") => 8,
            (Kind::Unit, _) => 30,
            _ => 120,
        };
        let mut command = vec![program.to_string_lossy().into_owned(), "-q".into()];
        command.extend(Some(killer.filter.clone()).filter(|filter| !filter.is_empty()));
        self.judge(killer, &self.spawn(&command, limit))
    }

    /// One by one, and each pass for itself, so that the first that fails ends it; in rounds, of which a later one has
    /// more patience with each.
    fn run_models(&self, killer: &Killer, program: &Path, patience: u64) -> Run {
        let start = Instant::now();
        let program = program.to_string_lossy().into_owned();
        let (filter, only) = killer.filter.split_once('@').unwrap_or((&killer.filter, ""));
        let Ok(list) = self.spawn(&[program.clone(), "--list".into(), filter.into()], 60) else {
            return Run::NotCompiled("cannot list the models".into());
        };
        let beside = ["::litmus::", "::explorer::", "::table::"];
        let mut models: Vec<(&str, &str)> = list
            .stdout
            .lines()
            .filter_map(|line| line.strip_suffix(": test"))
            .filter(|name| !beside.iter().any(|part| name.contains(part)))
            .flat_map(|name| [(name, "weak"), (name, "dense")])
            .filter(|(_, pass)| only.is_empty() || only == *pass)
            .collect();
        for round in ROUNDS {
            let mut unended = Vec::new();
            for (model, pass) in models {
                let left = patience.saturating_sub(start.elapsed().as_secs());
                let command =
                    ["env", &format!("KVLEASE_LOOM_PASS={pass}"), &program, "-q", "--exact", model].map(String::from);
                if left == 0 {
                    return Run::OutOfTime;
                }
                match self.judge(killer, &self.spawn(&command, round.min(left))) {
                    Run::Passed => {}
                    Run::OutOfTime => unended.push((model, pass)),
                    Run::Failed(_, seconds) => {
                        return Run::Failed(killer.with_filter(&format!("{model}@{pass}")), seconds);
                    }
                    other => return other,
                }
            }
            models = unended;
        }
        if models.is_empty() { Run::Passed } else { Run::OutOfTime }
    }

    fn run_miri(&self, killer: &Killer) -> Run {
        let mut command = words("cargo +nightly miri test -q");
        match killer.kind {
            Kind::Miri => command.extend(["--test".into(), killer.target.clone()]),
            _ => command.push("--lib".into()),
        }
        command.extend(Some(killer.filter.clone()).filter(|filter| !filter.is_empty()));
        let mut build = command.clone();
        build.insert(4, "--no-run".into());
        match self.spawn(&build, 1_200) {
            Ok(built) if built.code == Some(0) => self.judge(killer, &self.spawn(&command, 400)),
            Ok(built) => Run::NotCompiled(built.errors()),
            Err(error) => Run::NotCompiled(error.to_string()),
        }
    }

    fn judge(&self, killer: &Killer, said: &io::Result<Said>) -> Run {
        let said = match said {
            Ok(said) => said,
            Err(error) => return Run::NotCompiled(error.to_string()),
        };
        match said.code {
            Some(0) => Run::Passed,
            _ if said.killed => Run::OutOfTime,
            _ => {
                let failed: Vec<Killer> = said.failed_tests().map(|test| killer.with_filter(test)).collect();
                let first = failed.iter().find(|test| test.is_certain()).or(failed.first());
                Run::Failed(first.unwrap_or(killer).clone(), said.took.as_secs_f32().ceil() as u64)
            }
        }
    }

    /// The test program of a killer.
    fn build(&self, killer: &Killer) -> Result<PathBuf, String> {
        let mut command = words("cargo test --no-run --message-format=json -q");
        match killer.kind {
            Kind::Unit => command.push("--lib".into()),
            Kind::Test => command.extend(["--test".into(), killer.target.clone()]),
            Kind::Loom => {
                command.extend(words("--release --manifest-path loom-tests/Cargo.toml --lib"));
                // Built in a fifth of the time, and hardly slower: what takes the time is in loom.
                for setting in ["opt-level=1", "debug=0", "codegen-units=64"] {
                    command.extend(["--config".into(), format!("profile.release.package.kvlease-loom.{setting}")]);
                }
            }
            Kind::LoomEpoch => command.extend(words("--release --manifest-path loom-epoch-tests/Cargo.toml --lib")),
            Kind::Shuttle => {
                command.extend(words("--release --manifest-path shuttle-tests/Cargo.toml --test schedules"));
            }
            Kind::Miri | Kind::MiriUnit => return Err("is not built alone".into()),
        }
        if killer.kind == Kind::LoomEpoch {
            command.extend(["--target-dir".into(), self.base.join("target-epoch").to_string_lossy().into_owned()]);
            // The same as in `.ci/loom`.
            command.splice(0..0, words("env RUSTFLAGS=--cfg=crossbeam_loom\u{a0}--cfg=crossbeam_sanitize"));
            command[1] = command[1].replace('\u{a0}', " ");
        }
        let said = self.spawn(&command, 1_200).map_err(|error| error.to_string())?;
        let program = said.stdout.lines().rev().find_map(|line| {
            let message: serde_json::Value = serde_json::from_str(line).ok()?;
            message["executable"].as_str().filter(|_| message["profile"]["test"] == true).map(PathBuf::from)
        });
        match program {
            Some(program) if said.code == Some(0) => Ok(program),
            _ => Err(said.errors()),
        }
    }

    /// Runs a command with a limit of time and memory: a fault may loop or leak. Of processor time, so that it says the
    /// same on a machine that others use, too; of real time only in case that everything waits.
    fn spawn(&self, command: &[String], limit: u64) -> io::Result<Said> {
        let start = Instant::now();
        let script = format!("ulimit -v 16000000 -t {limit}; exec timeout -k 5 {} \"$@\"", 10 * limit);
        let output = Command::new("bash")
            .args(["-c", &script, "mutants"])
            .args(command.iter().filter(|word| !word.is_empty()))
            .current_dir(&self.root)
            .env("CARGO_TARGET_DIR", self.base.join("target"))
            .env("CARGO_INCREMENTAL", "1")
            .env("RUST_BACKTRACE", "0")
            .env("KVLEASE_SCHEDULES", "1500")
            .env(
                "MIRIFLAGS",
                "-Zmiri-tree-borrows -Zmiri-permissive-provenance -Zmiri-ignore-leaks -Zmiri-many-seeds=0..12",
            )
            .stdin(Stdio::null())
            .output()?;
        Ok(Said {
            code: output.status.code(),
            killed: output.status.signal() == Some(9) || matches!(output.status.code(), Some(124 | 137)),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            took: start.elapsed(),
        })
    }

    /// The killers of which it is known from an earlier run that they pass in this very tree.
    pub fn known_to_pass(&self) -> BTreeSet<String> {
        let text = fs::read_to_string(self.base.join("passed")).unwrap_or_default();
        let mut lines = text.lines();
        match lines.next().map(str::parse::<u32>) {
            Some(Ok(number)) if number == self.number => lines.map(String::from).collect(),
            _ => BTreeSet::new(),
        }
    }

    pub fn remember_to_pass(&self, known: &BTreeSet<String>) -> io::Result<()> {
        let lines: String = known.iter().map(|killer| format!("{killer}\n")).collect();
        fs::write(self.base.join("passed"), format!("{}\n{lines}", self.number))
    }
}

struct Said {
    code: Option<i32>,
    /// For it took too long.
    killed: bool,
    stdout: String,
    stderr: String,
    took: Duration,
}

impl Said {
    /// The names of the tests that failed, as libtest lists them at the end.
    fn failed_tests(&self) -> impl Iterator<Item = &str> {
        let list = self.stdout.rsplit("\nfailures:\n").next().filter(|list| list.len() < self.stdout.len());
        list.unwrap_or_default().lines().map_while(|line| line.strip_prefix("    "))
    }

    fn errors(&self) -> String {
        let lines: Vec<_> = self.stderr.lines().filter(|line| line.starts_with("error")).take(3).collect();
        // With messages as JSON the compiler's errors are in there.
        let rendered = self.stdout.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let rendered: Vec<String> = rendered
            .filter(|message| message["message"]["level"] == "error")
            .filter_map(|message| message["message"]["message"].as_str().map(String::from))
            .take(3)
            .collect();
        [lines.join("; "), rendered.join("; ")].join(" ")
    }
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(String::from).collect()
}

/// Removes what is not in the list, which is sorted.
fn remove_others(root: &Path, directory: &Path, files: &[&str]) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(root, &path, files)?;
        } else {
            let file = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
            if files.binary_search(&&*file).is_err() {
                fs::remove_file(&path)?;
            }
        }
    }
    Ok(())
}
