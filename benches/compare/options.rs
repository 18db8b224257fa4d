//! The command line.

use clap::{Parser, ValueEnum};
use kvlease_bench::peers;
use std::path::PathBuf;
use std::time::Duration;

/// What is done to the maps and trackers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Workload {
    /// Insert, notify, remove, at a constant number of live entries
    Lifecycle,
    /// The same with more threads than cores
    Oversubscribed,
    /// Each insert while a map grows from empty
    Growth,
    /// Leases that are due among many that are not
    Sweep,
    /// One message that renews 2,000 leases
    Heartbeat,
    /// From the bytes of completions to ended leases
    Pump,
    /// Bytes for each entry
    Memory,
    /// A trace of real arrivals, as an engine would
    Trace,
}

/// What the maps are keyed by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum KeyKind {
    /// Numbers
    U64,
    /// Request ids of 45 bytes, each allocated on its own
    Id45,
    /// Request ids of 45 bytes that lie in the entry
    Inline45,
}

/// All peers in one run, interleaved in short slices: ratios, latencies, targets and charts.
///
/// Without options it takes about ten minutes. Lists are separated by commas.
#[derive(Parser, Debug)]
pub struct Options {
    /// Which workloads
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Workload::value_variants().to_vec())]
    pub workloads: Vec<Workload>,
    /// Which maps; the ratios need std-mutex and kvlease among them
    #[arg(long, value_delimiter = ',', default_values_t = peers::ALL.iter().map(|(name, _)| name.to_string()))]
    pub peers: Vec<String>,
    /// How many threads (lifecycle)
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    pub threads: Vec<usize>,
    /// How many live entries (lifecycle)
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 100_000, 1_000_000])]
    pub live: Vec<usize>,
    /// Which keys (lifecycle)
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [KeyKind::U64, KeyKind::Id45])]
    pub keys: Vec<KeyKind>,
    /// How many notifications end an entry (lifecycle)
    #[arg(long, value_delimiter = ',', default_values_t = [4])]
    pub consumers: Vec<u32>,
    /// How many clean slices of each map, thread count and kind of call are wanted
    #[arg(long, default_value_t = 21)]
    pub slices: usize,
    /// How long a slice is, in milliseconds; where threads outnumber cores, fifty times that
    #[arg(long, default_value_t = 2)]
    pub slice_ms: u64,
    /// After how many seconds a case is ended, whether or not all slices are there
    #[arg(long, default_value_t = 60)]
    pub seconds: u64,
    /// A trace in Mooncake's format; without it arrivals are generated (trace)
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Less of everything: five slices, and smaller cases
    #[arg(long)]
    pub quick: bool,
    /// Write everything to this file, too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw charts into this directory, as SVG
    #[arg(long, value_name = "DIR")]
    pub plot: Option<PathBuf>,
    /// Only measures the memory of this map, and prints it as JSON: what one run frees late must not be
    /// counted in another, so each has a process of its own
    #[arg(long, hide = true, value_name = "PEER")]
    pub memory_of: Option<String>,
    /// What cargo tells every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    /// With what `--quick` says, and without peers that do not exist.
    pub fn settled(mut self) -> Self {
        if self.quick {
            self.slices = self.slices.min(5);
            self.seconds = self.seconds.min(10);
            self.live.retain(|&live| live <= 100_000);
        }
        for peer in &self.peers {
            if peers::kind(peer).is_none() {
                let known: Vec<_> = peers::ALL.iter().map(|(name, _)| *name).collect();
                clap::Error::raw(
                    clap::error::ErrorKind::InvalidValue,
                    format!("there is no peer {peer:?}; there are {}\n", known.join(", ")),
                )
                .exit();
            }
        }
        self
    }

    /// So many, or a tenth with `--quick`.
    pub fn scaled(&self, n: usize) -> usize {
        if self.quick { n / 10 } else { n }
    }

    /// How long a slice is on so many threads.
    pub fn slice(&self, threads: usize) -> Duration {
        // The scheduler gives each thread some milliseconds at a time, and every one must have its turns.
        let factor = if threads > kvlease_bench::slices::cores() { 50 } else { 1 };
        Duration::from_millis(self.slice_ms * factor)
    }
}
