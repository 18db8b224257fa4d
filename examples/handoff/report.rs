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
#[derive(Clone, Debug, Serialize)]
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

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (p, r, n) = (&self.prefill, &self.reads, &self.network);
        let row = |name: &str, count: u64, note: String| [name.to_owned(), thousands(count), note];

        let run = [
            ("arrivals", self.arrivals.clone()),
            ("hold times", format!("modelled: {}", self.hold_model)),
            ("settings", settings(&self.settings)),
            ("wall time", format!("{:.1} s", self.wall_s)),
        ];
        writeln!(f, "{}", table(["run", ""], &[], run.map(|(name, what)| [name.to_owned(), what])))?;

        let leases = [
            row("requests", self.requests, listed(&[(p.refused, "refused")])),
            row("completed", self.completed, "every rank has read, and said so in time".into()),
            row("expired", self.expired, listed(&[(p.expired_by_crash, "because their decode engine died")])),
            row("aborted", self.aborted, listed(&[(p.left_for_shutdown, "by the shutdown")])),
            row("overdue", p.overdue, "held past their deadline, by policy".into()),
            row("most at once", self.peak_tracked, format!("and {} blocks", thousands(self.peak_blocks))),
        ];
        writeln!(f, "{}", table(["leases", "", ""], &[1], leases))?;

        let needlessly = listed(&[(r.told_needlessly, "needlessly: the blocks were still there")]);
        let reported = format!("{} reported or lost with their engine", thousands(self.stale_reads_reported));
        let reads = [
            row("used", r.used, "told in time, or (fire and forget) not told otherwise".into()),
            row("discarded, told stale", r.told_stale, needlessly),
            row("discarded, no verdict", r.unverified, "asked in vain".into()),
            row("lost with their engine", r.died, "nothing was used".into()),
            row("of released blocks", self.stale_reads, reported),
        ];
        writeln!(f, "{}", table(["reads", "", "says the pool, or the rank"], &[1], reads))?;

        let aborts = p.aborts_early + p.aborts_ended + p.aborts_late;
        let faults = [
            row(
                "message lost",
                n.lost,
                listed(&[(r.resends, "completions sent again"), (r.unverified, "reads given up")]),
            ),
            row(
                "message doubled or sent again",
                n.duplicated + r.resends,
                listed(&[
                    (p.duplicates, "duplicate"),
                    (p.late_duplicates, "duplicate, lease over"),
                    (p.late_completed, "late, lease completed"),
                ]),
            ),
            row("message delayed", n.delayed, "no class of its own".into()),
            row("message overtook others", n.reordered, "no class of its own".into()),
            row("message malformed", r.junk, listed(&[(p.malformed, "malformed"), (p.foreign, "foreign")])),
            row(
                "completion too late",
                p.late_expired + p.late_aborted,
                listed(&[(p.late_expired, "late, lease expired"), (p.late_aborted, "late, lease aborted")]),
            ),
            row("completion before track", p.early, listed(&[(p.early, "early")])),
            row(
                "completion not countable",
                p.unknown + p.conflicts + p.not_countable,
                listed(&[(p.unknown, "unknown"), (p.conflicts, "conflicting"), (p.not_countable, "refused")]),
            ),
            row(
                "heartbeat",
                p.heartbeats,
                listed(&[(p.renewed, "leases renewed"), (p.renewed_early, "early"), (p.renewed_late, "late")]),
            ),
            row(
                "abort",
                aborts,
                listed(&[(p.aborts_ended, "ended a lease"), (p.aborts_early, "early"), (p.aborts_late, "late")]),
            ),
            row(
                "transfer by the prefill side",
                p.pushes + p.pushes_refused,
                listed(&[(p.pushes_refused, "refused, lease over"), (p.pushes_failed, "guards dropped")]),
            ),
        ];
        writeln!(f, "{}", table(["fault or event", "", "found to be"], &[1], faults))?;

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
}
