//! What a run has measured: the same for the tables, the charts, the targets and `--json`.

use crate::targets::Verdict;
use kvlease_bench::peers::Kind;
use kvlease_bench::spread::Spread;
use serde::Serialize;
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// A whole run.
#[derive(Serialize)]
pub struct Report {
    /// Where it ran.
    pub machine: Machine,
    /// One for each case.
    pub sections: Vec<Section>,
    /// What kvlease is to reach.
    pub targets: Vec<Verdict>,
}

/// Where a run ran.
#[derive(Serialize)]
pub struct Machine {
    /// As `/proc/cpuinfo` calls it.
    pub cpu: String,
    /// How many threads can run at once.
    pub cores: usize,
}

/// One case of one workload, on all peers.
#[derive(Serialize)]
pub struct Section {
    /// The workload's name.
    pub workload: &'static str,
    /// What is varied.
    pub case: Case,
    /// What the values are.
    pub unit: &'static str,
    /// Whether more is better.
    pub higher_is_better: bool,
    /// The peer to which ratios are.
    pub base: &'static str,
    /// One for each peer.
    pub rows: Vec<Row>,
}

/// What a workload varies; what it does not vary is left out.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Case {
    /// Threads that work at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// Entries or leases that are live.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live: Option<usize>,
    /// What the map is keyed by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<&'static str>,
    /// Notifications that end an entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumers: Option<u32>,
    /// Whether calls are made many at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batched: Option<bool>,
    /// What else there is to say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub what: Option<String>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.threads.map(|threads| format!("{threads} thread{}", if threads == 1 { "" } else { "s" })),
            self.live.map(|live| format!("{} live", short(live))),
            self.key.map(str::to_owned),
            self.consumers.map(|consumers| format!("{consumers} notifications")),
            self.what.clone(),
            self.batched.filter(|batched| *batched).map(|_| "in batches of 16".to_owned()),
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

/// 1000 as 1k, 1000000 as 1M.
pub fn short(n: usize) -> String {
    match n {
        n if n >= 1_000_000 && n % 1_000_000 == 0 => format!("{}M", n / 1_000_000),
        n if n >= 1_000 && n % 1_000 == 0 => format!("{}k", n / 1_000),
        n => n.to_string(),
    }
}

/// One peer in one case.
#[derive(Serialize)]
pub struct Row {
    /// Its name.
    pub peer: String,
    /// How it copes with many threads, if it is a map.
    pub kind: Option<Kind>,
    /// What was measured, of the slices that were kept; `None` if none was.
    pub value: Option<Spread>,
    /// How many times as good as the section's base, round by round.
    pub over_base: Option<Spread>,
    /// How many times as good kvlease is as this, round by round; under 1 it has lost.
    pub ours_over_this: Option<Spread>,
    /// Slices in which the machine was not ours.
    pub dropped: usize,
    /// How long single calls took.
    pub latency: Option<Latency>,
    /// What the peer got wrong.
    pub wrong: Option<String>,
}

/// How long single calls took, in nanoseconds.
#[derive(Clone, Copy, Serialize)]
pub struct Latency {
    /// Half of the calls took at most this.
    pub p50: u64,
    /// 99 of 100 calls.
    pub p99: u64,
    /// 999 of 1,000 calls.
    pub p999: u64,
    /// 9,999 of 10,000 calls.
    pub p9999: u64,
    /// The worst one.
    pub worst: u64,
    /// How many calls there were.
    pub calls: u64,
}

impl Latency {
    /// Of the calls in this histogram.
    pub fn of(histogram: &hdrhistogram::Histogram<u64>) -> Latency {
        let at = |quantile| histogram.value_at_quantile(quantile);
        Latency {
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            p9999: at(0.9999),
            worst: histogram.max(),
            calls: histogram.len(),
        }
    }
}

impl Section {
    /// The row of this peer.
    pub fn row(&self, peer: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.peer == peer)
    }
}

impl Row {
    /// The median, if anything was measured.
    pub fn median(&self) -> Option<f64> {
        self.value.map(|value| value.median)
    }
}

impl Report {
    /// With nothing measured yet.
    pub fn begin() -> Report {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let cpu = cpu.map_or("unknown", |(_, model)| model).to_owned();
        Report {
            machine: Machine { cpu, cores: kvlease_bench::slices::cores() },
            sections: Vec::new(),
            targets: Vec::new(),
        }
    }

    /// As JSON.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        serde_json::to_writer_pretty(&mut file, self)?;
        writeln!(file)?;
        file.flush()
    }
}
