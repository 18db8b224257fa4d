//! The list of faults, and the atomic accesses that it has to cover.

use serde::Deserialize;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::{fs, io};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct List {
    #[serde(rename = "mutant")]
    pub faults: Vec<Fault>,
    /// Accesses without a fault of their own.
    #[serde(default)]
    pub spared: Vec<Spared>,
}

#[derive(Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    pub name: String,
    pub file: String,
    pub old: String,
    pub new: String,
    pub breaks: String,
    #[serde(default)]
    pub killers: Vec<String>,
    /// Why nothing that is promised changes.
    pub equivalent: Option<String>,
    /// Why something does, and yet nothing at hand can notice it.
    pub unseen: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spared {
    pub file: String,
    pub text: String,
    pub reason: String,
}

impl Fault {
    pub fn apply(&self, source: &str) -> Result<String, String> {
        match source.matches(&self.old).count() {
            1 => Ok(source.replacen(&self.old, &self.new, 1)),
            n => Err(format!("its text occurs {n} times in {}", self.file)),
        }
    }

    pub fn should_survive(&self) -> bool {
        self.equivalent.is_some() || self.unseen.is_some()
    }

    /// Which part of `source` it really changes: `old` without what it has in common with `new` at both ends.
    fn changes(&self, source: &str) -> Option<Range<usize>> {
        let start = source.find(&self.old)?;
        let (old, new) = (self.old.as_bytes(), self.new.as_bytes());
        let before = old.iter().zip(new).take_while(|(a, b)| a == b).count();
        let rest = old.len().min(new.len()) - before;
        let after = old.iter().rev().zip(new.iter().rev()).take(rest).take_while(|(a, b)| a == b).count();
        Some(start + before..start + (old.len() - after).max(before + 1))
    }
}

impl List {
    pub fn read(tree: &Path) -> Result<Self, Box<dyn std::error::Error>> {
        Ok(toml::from_str(&fs::read_to_string(tree.join("mutants/mutants.toml"))?)?)
    }

    /// What is wrong with the list itself, given the sources as they are.
    pub fn complaints(&self, tree: &Path) -> io::Result<Vec<String>> {
        let mut complaints = Vec::new();
        let mut names = BTreeSet::new();
        for fault in &self.faults {
            if let Err(error) = fault.apply(&fs::read_to_string(tree.join(&fault.file))?) {
                complaints.push(format!("{}: {error}", fault.name));
            }
            if !names.insert(&fault.name) {
                complaints.push(format!("{}: two have this name", fault.name));
            }
            if fault.killers.is_empty() && !fault.should_survive() {
                complaints.push(format!("{}: no killer is named", fault.name));
            }
        }
        for spared in &self.spared {
            if !fs::read_to_string(tree.join(&spared.file))?.contains(&spared.text) {
                complaints.push(format!("spared in {}, but not there: {}", spared.file, spared.text));
            }
        }
        for access in self.accesses(tree)?.into_iter().filter(|access| access.weakened_by.is_none()) {
            complaints.push(format!("{}:{}: no fault weakens the {}", access.file, access.line, access.text));
        }
        Ok(complaints)
    }

    /// Every ordering in the crate's code proper from which something could be taken away: all but the relaxed ones.
    pub fn accesses(&self, tree: &Path) -> io::Result<Vec<Access>> {
        let mut files = Vec::new();
        rust_files(&tree.join("src"), &mut files)?;
        files.sort();
        let mut accesses = Vec::new();
        for path in files {
            let file = path.strip_prefix(tree).unwrap_or(&path).to_string_lossy().into_owned();
            // What stands in for `std` and for the epoch in models is not what is modelled.
            if !file.starts_with("src/sync_") && !file.starts_with("src/reclaim_") {
                self.accesses_of(&file, &fs::read_to_string(&path)?, &mut accesses);
            }
        }
        Ok(accesses)
    }

    fn accesses_of(&self, file: &str, source: &str, accesses: &mut Vec<Access>) {
        let mut weakened: Vec<(String, Range<usize>)> = Vec::new();
        for fault in self.faults.iter().filter(|fault| fault.file == file) {
            weakened.extend(fault.changes(source).map(|range| (fault.name.clone(), range)));
        }
        for spared in self.spared.iter().filter(|spared| spared.file == file) {
            let places = source.match_indices(&spared.text);
            weakened.extend(places.map(|(at, text)| (format!("spared: {}", spared.reason), at..at + text.len())));
        }
        let mut next = 0;
        for (number, line) in source.split_inclusive('\n').enumerate() {
            if line.starts_with("#[cfg(") && line.contains("test") {
                break; // the unit tests are last
            }
            let start = next;
            next += line.len();
            let code = line.find("//").map_or(line, |comment| &line[..comment]);
            for (column, _) in code.match_indices("Ordering::") {
                let at = column + "Ordering::".len();
                let Some(order) =
                    ["Acquire", "Release", "AcqRel", "SeqCst"].iter().find(|o| code[at..].starts_with(**o))
                else {
                    continue;
                };
                let place = start + at..start + at + order.len();
                let by = weakened.iter().find(|(_, range)| range.start < place.end && place.start < range.end);
                accesses.push(Access {
                    file: file.to_owned(),
                    line: number + 1,
                    text: format!("{order} in `{}`", code.trim()),
                    weakened_by: by.map(|(name, _)| name.clone()),
                });
            }
        }
    }
}

/// One ordering in the code.
pub struct Access {
    pub file: String,
    pub line: usize,
    pub text: String,
    /// The fault that weakens it, or why none does.
    pub weakened_by: Option<String>,
}

fn rust_files(directory: &Path, files: &mut Vec<std::path::PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            rust_files(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}
