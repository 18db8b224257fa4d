//! What a run found, for people (tables) and for programs (one JSON object).

use super::decode::ReadCounts;
use super::prefill::PrefillCounts;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use serde::Serialize;
use std::fmt::{self, Display};

/// What the network between the two sides did to the messages.
#[derive(Clone, Copy, Default, Debug, Serialize)]
pub struct NetworkCounts {
    pub sent: u64,
    pub lost: u64,
    pub duplicated: u64,
    pub delayed: u64,
    pub reordered: u64,
}

impl From<kvlease::transport::in_process::Counters> for NetworkCounts {
    fn from(c: kvlease::transport::in_process::Counters) -> Self {
        NetworkCounts {
            sent: c.sent,
            lost: c.lost,
            duplicated: c.duplicated,
            delayed: c.delayed,
            reordered: c.reordered,
        }
    }
}

/// Everything worth knowing about a run. The first fields are the ones that scripts look at.
#[derive(Clone, Default, Debug, Serialize)]
pub struct Report {
    pub requests: u64,
    pub completed: u64,
    pub expired: u64,
    pub aborted: u64,
    pub late_notifications: u64,
    pub duplicates: u64,
    pub malformed: u64,
    /// Reads during which a block was released, by the ground truth of the pool.
    pub stale_reads: u64,
    /// Those of them that were not used: told stale, given up unverified, or lost with their engine.
    pub stale_reads_reported: u64,
    pub double_released: u64,
    pub leaked_blocks: u64,
    pub peak_tracked: u64,
    pub wall_s: f64,
    /// Empty when all is well; else what is wrong, in words. Then the exit code is 1.
    pub failures: Vec<String>,
    pub peak_blocks: u64,
    pub reads: ReadCounts,
    pub prefill: PrefillCounts,
    pub network: NetworkCounts,
    pub arrivals: String,
    pub hold_model: &'static str,
    pub seed: u64,
    pub settings: serde_json::Value,
}

/// The tracker's own account at the end, to be compared with what happened.
#[derive(Clone, Copy, Debug)]
pub struct Account {
    pub tracked: u64,
    pub released: u64,
    pub left: u64,
}

impl Report {
    /// Fills in what is wrong: what the run must never show, whatever its faults were.
    pub fn judge(&mut self, account: Account, reads_handed_out: u64) {
        let mut fail = |wrong: bool, what: String| {
            if wrong {
                self.failures.push(what);
            }
        };
        let unreported = self.stale_reads - self.stale_reads_reported;
        fail(unreported > 0, format!("{unreported} reads of released blocks went unreported"));
        fail(self.double_released > 0, format!("{} requests were released twice", self.double_released));
        fail(self.leaked_blocks > 0, format!("{} blocks were never released", self.leaked_blocks));
        let torn = self.prefill.pushes_torn;
        fail(torn > 0, format!("blocks were released under {torn} transfers of the prefill side"));
        let ended = self.completed + self.expired + self.aborted;
        fail(
            ended != account.tracked || account.released != account.tracked || account.left > 0,
            format!("the account does not add up: {account:?}, but {ended} leases ended"),
        );
        fail(
            self.requests != account.tracked + self.prefill.refused,
            format!("{} requests, but {account:?} and {} refused", self.requests, self.prefill.refused),
        );
        let ended = self.reads.total();
        fail(ended != reads_handed_out, format!("{reads_handed_out} reads were handed out, {ended} came to an end"));
    }
}

/// A table, with numbers to the right in some of its columns.
fn table<const N: usize>(header: [&str; N], numbers: &[usize], rows: impl IntoIterator<Item = [String; N]>) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic).set_width(110);
    table.set_header(header).add_rows(rows);
    for &column in numbers {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// `12,031` for 12031.
fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().map(|g| std::str::from_utf8(g).unwrap_or("")).collect();
    groups.join(",")
}

/// `3 a, 0 b` with the zeros left out.
fn listed(parts: &[(u64, &str)]) -> String {
    let shown: Vec<_> =
        parts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{} {what}", thousands(*n))).collect();
    if shown.is_empty() { "–".into() } else { shown.join(", ") }
}

/// The arguments that were given or have a value, in words.
fn settings(of: &serde_json::Value) -> String {
    let arguments = of.as_object().into_iter().flatten();
    let shown = arguments.filter_map(|(name, value)| match value {
        serde_json::Value::Null | serde_json::Value::Bool(false) => None,
        serde_json::Value::Bool(true) => Some(name.replace('_', "-")),
        serde_json::Value::String(text) => Some(format!("{} {text}", name.replace('_', "-"))),
        other => Some(format!("{} {other}", name.replace('_', "-"))),
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// A row of a table: a number of the report, and what is said about it. Numbers are named by their place in the JSON, so
/// that the tables here and on the page are of one making.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Row {
    pub name: &'static str,
    /// The number is the sum of these.
    pub of: &'static [&'static str],
    pub note: &'static str,
    /// What came of it: numbers, and what they count.
    pub found: &'static [(&'static str, &'static str)],
    /// The argument by which it was asked for.
    pub asked: Option<&'static str>,
}

const fn row(name: &'static str, of: &'static [&'static str], note: &'static str) -> Row {
    Row { name, of, note, found: &[], asked: None }
}

impl Row {
    const fn found(self, found: &'static [(&'static str, &'static str)]) -> Row {
        Row { found, ..self }
    }

    const fn asked(self, argument: &'static str) -> Row {
        Row { asked: Some(argument), ..self }
    }

    /// The row's number, and what is said about it, in words.
    fn texts(&self, report: &serde_json::Value) -> [String; 3] {
        let number = |field: &str| number(report, field).unwrap_or_default();
        let found: Vec<_> = self.found.iter().map(|(field, what)| (number(field), *what)).collect();
        let said = if self.note.is_empty() { listed(&found) } else { self.note.into() };
        [self.name.into(), thousands(self.of.iter().map(|field| number(field)).sum()), said]
    }
}

/// A number of the report by its place in the JSON: `reads.used`.
fn number(report: &serde_json::Value, field: &str) -> Option<u64> {
    field.split('.').try_fold(report, |value, key| value.get(key))?.as_u64()
}

pub const LEASES: &[Row] = &[
    row("requests", &["requests"], "").found(&[("prefill.refused", "refused")]),
    row("completed", &["completed"], "every rank has read, and said so in time"),
    row("expired", &["expired"], "").found(&[("prefill.expired_by_crash", "because their decode engine died")]),
    row("aborted", &["aborted"], "").found(&[("prefill.left_for_shutdown", "by the shutdown")]),
    row("overdue", &["prefill.overdue"], "held past their deadline, by policy"),
    row("most at once", &["peak_tracked"], "").found(&[("peak_blocks", "blocks allocated")]),
];

pub const READS: &[Row] = &[
    row("used", &["reads.used"], "told in time, or (fire and forget) not told otherwise"),
    row("discarded, told stale", &["reads.told_stale"], "")
        .found(&[("reads.told_needlessly", "needlessly: the blocks were still there")]),
    row("discarded, no verdict", &["reads.unverified"], "asked in vain"),
    row("lost with their engine", &["reads.died"], "nothing was used"),
    row("of released blocks", &["stale_reads"], "")
        .found(&[("stale_reads_reported", "reported or lost with their engine")]),
];

pub const FAULTS: &[Row] = &[
    row("message lost", &["network.lost"], "")
        .found(&[("reads.resends", "completions sent again"), ("reads.unverified", "reads given up")])
        .asked("loss"),
    row("message doubled or sent again", &["network.duplicated", "reads.resends"], "")
        .found(&[
            ("prefill.duplicates", "duplicate"),
            ("prefill.late_duplicates", "duplicate, lease over"),
            ("prefill.late_completed", "late, lease completed"),
        ])
        .asked("duplicate"),
    row("message delayed", &["network.delayed"], "no class of its own").asked("delay"),
    row("message overtook others", &["network.reordered"], "no class of its own").asked("reorder"),
    row("message malformed", &["reads.junk"], "")
        .found(&[("prefill.malformed", "malformed"), ("prefill.foreign", "foreign")])
        .asked("malformed_rate"),
    row("decode engine died: reads lost", &["reads.died"], "")
        .found(&[("prefill.expired_by_crash", "leases expired when that was reported")])
        .asked("crash_decode_at"),
    row("rank froze", &["reads.frozen"], "no class of its own: it renews nothing, and reads late").asked("freeze_rate"),
    row("completion too late", &["prefill.late_expired", "prefill.late_aborted"], "")
        .found(&[("prefill.late_expired", "late, lease expired"), ("prefill.late_aborted", "late, lease aborted")]),
    row("completion before track", &["prefill.early"], "").found(&[("prefill.early", "early")]),
    row("completion not countable", &["prefill.unknown", "prefill.conflicts", "prefill.not_countable"], "").found(&[
        ("prefill.unknown", "unknown"),
        ("prefill.conflicts", "conflicting"),
        ("prefill.not_countable", "refused"),
    ]),
    row("heartbeat", &["prefill.heartbeats"], "").found(&[
        ("prefill.renewed", "leases renewed"),
        ("prefill.renewed_early", "early"),
        ("prefill.renewed_late", "late"),
    ]),
    row("abort", &["prefill.aborts_early", "prefill.aborts_ended", "prefill.aborts_late"], "")
        .found(&[
            ("prefill.aborts_ended", "ended a lease"),
            ("prefill.aborts_early", "early"),
            ("prefill.aborts_late", "late"),
        ])
        .asked("abort_rate"),
    row("transfer by the prefill side", &["prefill.pushes", "prefill.pushes_refused"], "")
        .found(&[("prefill.pushes_refused", "refused, lease over"), ("prefill.pushes_failed", "guards dropped")])
        .asked("push_rate"),
];

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let run = [
            ("arrivals", self.arrivals.clone()),
            ("hold times", format!("modelled: {}", self.hold_model)),
            ("settings", settings(&self.settings)),
            ("wall time", format!("{:.1} s", self.wall_s)),
        ];
        writeln!(f, "{}", table(["run", ""], &[], run.map(|(name, what)| [name.to_owned(), what])))?;

        let report = serde_json::to_value(self).map_err(|_| fmt::Error)?;
        for (header, rows) in [
            (["leases", "", ""], LEASES),
            (["reads", "", "says the pool, or the rank"], READS),
            (["fault or event", "", "found to be"], FAULTS),
        ] {
            writeln!(f, "{}", table(header, &[1], rows.iter().map(|row| row.texts(&report))))?;
        }

        if self.failures.is_empty() {
            return write!(f, "ok: nothing released twice, nothing leaked, no stale read unreported");
        }
        write!(f, "FAILED: {}", self.failures.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_three() {
        assert_eq!([0, 999, 1_000, 12_031, 1_234_567].map(thousands), ["0", "999", "1,000", "12,031", "1,234,567"]);
    }

    #[test]
    fn every_number_of_the_tables_is_in_the_json() {
        let report = serde_json::to_value(Report::default()).unwrap();
        for row in [LEASES, READS, FAULTS].concat() {
            for field in row.of.iter().chain(row.found.iter().map(|(field, _)| field)) {
                assert_eq!(number(&report, field), Some(0), "{field}");
            }
        }
        assert_eq!(number(&report, "reads.unused"), None);
    }
}
