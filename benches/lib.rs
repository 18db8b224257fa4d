//! What the benchmarks share: keys, peers, workloads, and how a slice of time is measured.
//!
//! * [`keys`]: what the maps are keyed by;
//! * [`peers`]: every map behind one small trait, a file each;
//! * [`trackers`]: the tracker and what one would write in its place, the same way;
//! * [`slices`]: short slices of work on several threads, and whether the machine let them run;
//! * [`workloads`]: what is done to the maps and trackers in a slice;
//! * [`spread`]: medians and quartiles.
//!
//! Two programs stand on it: `workloads` (Criterion) and `compare` (all peers interleaved in one run, with
//! ratios, latencies, targets and charts). `README.md` says how to run and read them.

pub mod keys;
pub mod peers;
pub mod slices;
pub mod spread;
pub mod trackers;
pub mod workloads;
