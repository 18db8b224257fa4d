//! The committed report: what became of each fault when it was last tried.
//!
//! A run writes the rows of the faults that it has tried and keeps the others. Each row ends in a key: a number for
//! the fault, and one for the file that it changes. By the first it is known whether the row is about this
//! fault; by the second, whether the file has changed since.

use crate::killers::Killer;
use crate::list::{Fault, List};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

#[derive(Clone, PartialEq, Eq)]
pub enum Verdict {
    Killed {
        by: Killer,
        seconds: u64,
    },
    /// By a killer that did not end.
    Stuck {
        by: Killer,
    },
    Survived,
    /// As is said of it.
    Unnoticed,
}

#[derive(Clone)]
struct Row {
    verdict: Verdict,
    fault: u32,
    file: u32,
}

pub struct Report {
    path: PathBuf,
    rows: HashMap<String, Row>,
    /// A number for each file as it is.
    files: HashMap<String, u32>,
}

const EQUIVALENT: &str = "equivalent";
const UNSEEN: &str = "nothing at hand can notice it";
const HEAD: &str = "# What notices each deliberate fault

This file is written by `.ci/mutants`: a run writes the rows of the faults that it has tried, and keeps the others.
The faults are in `mutants.toml`; what the killers are called is said in `src/main.rs`. The seconds are those that the
killer took to fail. Where a file has changed since its faults were tried, their rows say so.
";

impl Report {
    pub fn read(tree: &Path, list: &List) -> io::Result<Self> {
        let path = tree.join("mutants/REPORT.md");
        let text = fs::read_to_string(&path).unwrap_or_default();
        let rows = text.lines().filter_map(Row::parse).collect();
        let mut files = HashMap::new();
        for fault in &list.faults {
            files.insert(fault.file.clone(), crc32fast::hash(&fs::read(tree.join(&fault.file))?));
        }
        Ok(Report { path, rows, files })
    }

    fn row(&self, fault: &Fault) -> Option<&Row> {
        self.rows.get(&fault.name).filter(|row| row.fault == number(fault))
    }

    /// What became of this fault, if it is known; perhaps before its file changed.
    pub fn verdict(&self, fault: &Fault) -> Option<&Verdict> {
        self.row(fault).map(|row| &row.verdict)
    }

    /// Whether it is known of the file as it is.
    pub fn is_fresh(&self, fault: &Fault) -> bool {
        self.row(fault).is_some_and(|row| self.files.get(&fault.file) == Some(&row.file))
    }

    pub fn set(&mut self, fault: &Fault, verdict: Verdict) {
        let file = self.files.get(&fault.file).copied().unwrap_or_default();
        self.rows.insert(fault.name.clone(), Row { verdict, fault: number(fault), file });
    }

    pub fn write(&self, list: &List) -> Result<(), Box<dyn std::error::Error>> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let mut table = String::new();
        for fault in &list.faults {
            let verdict = self.verdict(fault);
            let (count, said, seconds) = match verdict {
                Some(Verdict::Killed { by, seconds }) => ("1 killed", format!("`{by}`"), seconds.to_string()),
                Some(Verdict::Stuck { by }) => ("1 killed", format!("`{by}`, which does not end"), String::new()),
                Some(Verdict::Survived) => ("4 survive", "**survives**".into(), String::new()),
                _ => {
                    let (count, kind, why) = match (&fault.equivalent, &fault.unseen) {
                        (Some(why), _) => ("2 equivalent", EQUIVALENT, why),
                        (None, Some(why)) => ("3 that nothing at hand can notice", UNSEEN, why),
                        (None, None) => ("5 not tried", "", &String::new()),
                    };
                    match (verdict, kind) {
                        (None, "") => ("5 not tried", "not tried".into(), String::new()),
                        (None, _) => ("5 not tried", format!("not tried. {kind}: {why}"), String::new()),
                        (Some(_), _) => (count, format!("{kind}: {why}"), String::new()),
                    }
                }
            };
            *counts.entry(count).or_default() += 1;
            let stale = if verdict.is_some() && !self.is_fresh(fault) {
                *counts.entry("6 of these before their file changed").or_default() += 1;
                STALE
            } else {
                ""
            };
            let key = self.row(fault).map_or(String::new(), |row| format!("`{:08x} {:08x}`", row.fault, row.file));
            let [breaks, said] = [&fault.breaks, &said].map(|text| text.trim().replace('\n', " ").replace('|', "\\|"));
            writeln!(
                table,
                "| {} | `{}` | {breaks} | {said}{stale} | {seconds} | {key} |",
                fault.name,
                fault.file.trim_start_matches("src/"),
            )?;
        }
        let counts: Vec<String> = counts.iter().map(|(what, n)| format!("{n} {}", &what[2..])).collect();
        let text = format!(
            "{HEAD}\n{} faults: {}.\n\n| fault | in `src/` | what goes wrong | what notices | s | key |\n\
             |---|---|---|---|---|---|\n{table}",
            list.faults.len(),
            counts.join(", "),
        );
        fs::write(&self.path, text)?;
        Ok(())
    }
}

const STALE: &str = " (before the file changed)";

impl Row {
    fn parse(line: &str) -> Option<(String, Row)> {
        let cells: Vec<&str> = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect();
        let [name, _, _, said, seconds, key] = cells[..] else { return None };
        let (fault, file) = key.trim_matches('`').split_once(' ')?;
        let killer = || Killer::parse(said.strip_prefix('`')?.split('`').next()?).ok();
        let verdict = if said.starts_with("**") {
            Verdict::Survived
        } else if said.starts_with(EQUIVALENT) || said.starts_with(UNSEEN) {
            Verdict::Unnoticed
        } else if said.contains("which does not end") {
            Verdict::Stuck { by: killer()? }
        } else {
            Verdict::Killed { by: killer()?, seconds: seconds.trim().parse().ok()? }
        };
        let hexadecimal = |text| u32::from_str_radix(text, 16).ok();
        Some((name.to_owned(), Row { verdict, fault: hexadecimal(fault)?, file: hexadecimal(file)? }))
    }
}

/// A number for the fault: another fault of the same name has another one.
fn number(fault: &Fault) -> u32 {
    crc32fast::hash([&*fault.file, &*fault.old, &*fault.new].join("\0").as_bytes())
}
