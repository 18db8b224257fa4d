//! The README of this package, made of what the last run recorded.

use super::harness::records;
use std::path::Path;

const CLAIMS: &str = include_str!("../CLAIMS.md");

/// Compares the README with what the models have just recorded, all but the seconds; with
/// `KVLEASE_LOOM_BLESS` set, writes it. To be run after all models, in a process of its own, by `.ci/loom`.
#[test]
#[ignore = "after the models: see .ci/loom"]
fn the_readme_is_up_to_date() {
    let mut lines: Vec<String> = std::fs::read_dir(records())
        .expect("records of a run of the models")
        .map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap())
        .collect();
    lines.sort();
    let made = format!(
        "{CLAIMS}\n| model | threads | checks | pass | preemption bound | executions | outcomes | seconds |\n\
         |---|---|---|---|---|---|---|---|\n{}\n",
        lines.join("\n")
    );
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    if std::env::var_os("KVLEASE_LOOM_BLESS").is_some() {
        std::fs::write(&readme, made).unwrap();
        return;
    }
    let committed = std::fs::read_to_string(&readme).unwrap();
    let without_seconds = |text: &str| -> Vec<String> {
        text.lines()
            .map(|line| if line.starts_with('|') { line.rsplitn(3, '|').nth(2).unwrap().into() } else { line.into() })
            .collect()
    };
    let (made, committed) = (without_seconds(&made), without_seconds(&committed));
    let stale: Vec<_> = committed.iter().filter(|line| !made.contains(line)).collect();
    let new: Vec<_> = made.iter().filter(|line| !committed.contains(line)).collect();
    assert!(stale.is_empty() && new.is_empty(), "the README is out of date.\nin it: {stale:#?}\nnow: {new:#?}");
    assert_eq!(made, committed, "the README is out of date: see the order");
}
