//! What `--report` shows beyond the numbers of the [`Report`](super::report::Report): each lease from `track` to its
//! release, how many there were at a time, and how old they were when they ended.
//!
//! All of it is seen by the prefill side, so it is there whatever the transport. Nothing is recorded without
//! `--report`.

use super::pool::Pinned;
use kvlease::{Outcome, Release, Timestamp};
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

/// So many leases are shown one by one at most; of more, every second, third and so on, in order of `track`.
const MOST_LEASES: usize = 20_000;
/// Of each lease, so many renewals are marked at most; all are counted.
const MOST_RENEWALS: usize = 32;
/// Into so many slices of equal length the time of the run is cut.
const SLICES: u64 = 2_000;
/// The bins of the histogram: the first ends here, and so many have the tenfold of it.
const FIRST_AGE_MS: f64 = 10.0;
const AGES_PER_DECADE: i32 = 8;

/// Which call handed out the blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReleasedBy {
    /// The last notification.
    Notification,
    /// A sweep: the deadline had passed, or a transfer's guard had been dropped.
    Sweep,
    /// `abort`.
    Abort,
    /// The decode engine was reported dead.
    EngineDead,
    /// The shutdown.
    Shutdown,
    /// `track` itself: all that was needed had come before it.
    Track,
    /// The end of the last transfer of the prefill side; the outcome was decided before it.
    TransferEnd,
}

/// One lease. Times are milliseconds of the trace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Lease {
    pub id: String,
    pub blocks: u32,
    pub tracked_ms: u64,
    /// When it was found past its deadline and kept, under the hold policy.
    pub overdue_ms: Option<u64>,
    /// Heartbeats that named it while it ran, and when the first of them came.
    pub renewals: u32,
    pub renewed_ms: Vec<u64>,
    /// `None` if it never was released, which must not be.
    pub end: Option<End>,
}

/// How a lease ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct End {
    pub released_ms: u64,
    pub outcome: &'static str,
    pub by: ReleasedBy,
}

/// What is held at some time.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Gauges {
    /// Leases that are live.
    pub leases: u64,
    /// The blocks of all leases that are not released.
    pub blocks_held: u64,
    /// The most blocks that were allocated since the last look, with those of requests that are still computed.
    pub blocks_allocated: u64,
}

impl Gauges {
    fn max(self, other: Self) -> Self {
        Gauges {
            leases: self.leases.max(other.leases),
            blocks_held: self.blocks_held.max(other.blocks_held),
            blocks_allocated: self.blocks_allocated.max(other.blocks_allocated),
        }
    }
}

/// Something that happens once, at a time that is known before.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Event {
    pub at_ms: u64,
    pub what: &'static str,
}

/// Takes notes while the run goes on; all threads of the prefill side share it.
#[derive(Default)]
pub struct Recorder {
    notes: Mutex<Notes>,
    events: Vec<Event>,
}

#[derive(Default)]
struct Notes {
    leases: Vec<Lease>,
    by_id: HashMap<String, usize>,
    /// Only where something has changed.
    gauges: Vec<(u64, Gauges)>,
}

impl Recorder {
    pub fn new(events: impl IntoIterator<Item = (Timestamp, &'static str)>) -> Self {
        let event = |(at, what): (Timestamp, _)| Event { at_ms: at.as_millis(), what };
        Recorder { events: events.into_iter().map(event).collect(), ..Recorder::default() }
    }

    /// `track` is about to be called. Not after it: by then, others may have ended the lease.
    pub fn tracking(&self, id: &str, blocks: u32, now: Timestamp) {
        let notes = &mut *self.notes.lock().unwrap();
        notes.by_id.insert(id.to_owned(), notes.leases.len());
        notes.leases.push(Lease {
            id: id.to_owned(),
            blocks,
            tracked_ms: now.as_millis(),
            overdue_ms: None,
            renewals: 0,
            renewed_ms: Vec::new(),
            end: None,
        });
    }

    /// And it was refused, so there is no lease.
    pub fn refused(&self, id: &str) {
        let notes = &mut *self.notes.lock().unwrap();
        if let Some(at) = notes.by_id.remove(id) {
            notes.leases.remove(at);
            notes.by_id.values_mut().filter(|index| **index > at).for_each(|index| *index -= 1);
        }
    }

    pub fn released(&self, release: &Release<Pinned>, by: ReleasedBy) {
        self.with(&release.id, |lease| {
            let outcome = match release.outcome {
                Outcome::Completed => "completed",
                Outcome::Expired => "expired",
                Outcome::Aborted => "aborted",
            };
            let released_ms = lease.tracked_ms + release.age.as_millis() as u64;
            lease.end.get_or_insert(End { released_ms, outcome, by });
        });
    }

    pub fn overdue(&self, id: &str, now: Timestamp) {
        self.with(id, |lease| _ = lease.overdue_ms.get_or_insert(now.as_millis()));
    }

    /// A heartbeat has come for these.
    pub fn renewed<'a>(&self, ids: impl Iterator<Item = &'a str>, now: Timestamp) {
        let notes = &mut *self.notes.lock().unwrap();
        for id in ids {
            let lease = notes.by_id.get(id).map(|at| &mut notes.leases[*at]);
            if let Some(lease) = lease.filter(|lease| lease.end.is_none()) {
                lease.renewals += 1;
                if lease.renewed_ms.len() < MOST_RENEWALS {
                    lease.renewed_ms.push(now.as_millis());
                }
            }
        }
    }

    /// Only from one thread, so that the times go forward.
    pub fn gauges(&self, now: Timestamp, gauges: Gauges) {
        let series = &mut self.notes.lock().unwrap().gauges;
        if series.last().is_none_or(|(_, last)| *last != gauges) {
            series.push((now.as_millis(), gauges));
        }
    }

    fn with(&self, id: &str, change: impl FnOnce(&mut Lease)) {
        let notes = &mut *self.notes.lock().unwrap();
        if let Some(at) = notes.by_id.get(id) {
            change(&mut notes.leases[*at]);
        }
    }

    /// What has been seen so far, for the page.
    pub fn timeline(&self, lease: Duration) -> Timeline {
        let notes = self.notes.lock().unwrap();
        Timeline::of(&notes.leases, &notes.gauges, self.events.clone(), lease, MOST_LEASES)
    }
}

/// What the page is given, beside the report.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Timeline {
    /// How long a lease runs if nobody renews it.
    pub lease_ms: u64,
    /// When the last thing happened.
    pub end_ms: u64,
    pub events: Vec<Event>,
    /// How many leases there were, and that each so-manieth of them is in `leases`.
    pub leases_total: u64,
    pub leases_every: u64,
    pub leases: Vec<Lease>,
    pub gauges: Series,
    pub ages: Ages,
}

/// The most of each gauge in each slice of time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Series {
    pub slice_ms: u64,
    pub leases: Vec<u64>,
    pub blocks_held: Vec<u64>,
    pub blocks_allocated: Vec<u64>,
}

/// How old all leases were at their release. Bin `i` is from `edges_ms[i]` up to, not including, `edges_ms[i + 1]`.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Ages {
    pub edges_ms: Vec<u64>,
    pub completed: Vec<u64>,
    pub expired: Vec<u64>,
    pub aborted: Vec<u64>,
}

impl Timeline {
    fn of(leases: &[Lease], gauges: &[(u64, Gauges)], events: Vec<Event>, lease: Duration, most: usize) -> Self {
        let ends = leases.iter().map(|lease| lease.end.map_or(lease.tracked_ms, |end| end.released_ms));
        let end_ms = ends.chain(gauges.last().map(|(at, _)| *at)).max().unwrap_or(0);
        let every = leases.len().div_ceil(most).max(1);
        Timeline {
            lease_ms: lease.as_millis() as u64,
            end_ms,
            events,
            leases_total: leases.len() as u64,
            leases_every: every as u64,
            leases: leases.iter().step_by(every).cloned().collect(),
            gauges: Series::of(gauges, end_ms),
            ages: Ages::of(leases),
        }
    }
}

impl Series {
    fn of(gauges: &[(u64, Gauges)], end_ms: u64) -> Self {
        let slice_ms = (end_ms + 1).div_ceil(SLICES);
        let slices = end_ms / slice_ms + 1;
        let mut rest = gauges.iter().peekable();
        let mut last = Gauges::default();
        let most: Vec<Gauges> = (0..slices)
            .map(|slice| {
                // What was held when the slice began counts, too.
                let mut most = last;
                while let Some((_, gauges)) = rest.next_if(|(at, _)| *at < (slice + 1) * slice_ms) {
                    most = most.max(*gauges);
                    last = *gauges;
                }
                most
            })
            .collect();
        let series = |of: fn(&Gauges) -> u64| most.iter().map(of).collect();
        Series {
            slice_ms,
            leases: series(|g| g.leases),
            blocks_held: series(|g| g.blocks_held),
            blocks_allocated: series(|g| g.blocks_allocated),
        }
    }
}

impl Ages {
    fn of(leases: &[Lease]) -> Self {
        let ended = || leases.iter().filter_map(|lease| Some((lease.end?, lease.end?.released_ms - lease.tracked_ms)));
        let Some(oldest) = ended().map(|(_, age)| age).max() else { return Ages::default() };
        let youngest = ended().map(|(_, age)| age).min().unwrap_or(0);
        let mut edges_ms = vec![0];
        for n in 0.. {
            let edge = FIRST_AGE_MS * 10_f64.powf(f64::from(n) / f64::from(AGES_PER_DECADE));
            edges_ms.push(edge.round() as u64);
            if edge.round() as u64 > oldest {
                break;
            }
        }
        // From the bin of the youngest.
        edges_ms.drain(..edges_ms.partition_point(|edge| *edge <= youngest) - 1);
        let count = |outcome| {
            let mut bins = vec![0; edges_ms.len() - 1];
            for (_, age) in ended().filter(|(end, _)| end.outcome == outcome) {
                bins[edges_ms.partition_point(|edge| *edge <= age) - 1] += 1;
            }
            bins
        };
        let (completed, expired, aborted) = (count("completed"), count("expired"), count("aborted"));
        Ages { edges_ms, completed, expired, aborted }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pool::BlockPool;
    use super::*;
    use kvlease::RequestId;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn release(pool: &BlockPool, id: &str, outcome: Outcome, age_ms: u64) -> Release<Pinned> {
        let payload = pool.allocate(1).unwrap();
        Release { id: RequestId::from(id), outcome, payload, weight: 1, age: Duration::from_millis(age_ms) }
    }

    #[test]
    fn a_lease_is_noted_from_track_to_its_release() {
        let (pool, recorder) = (BlockPool::new(3), Recorder::new([(at(50), "the decode engine dies")]));
        recorder.tracking("a", 3, at(100));
        recorder.tracking("b", 1, at(110));
        recorder.tracking("c", 2, at(120));
        recorder.refused("b");
        recorder.renewed(["c", "b", "c"].into_iter(), at(130));
        recorder.overdue("c", at(140));
        recorder.released(&release(&pool, "a", Outcome::Completed, 7), ReleasedBy::Notification);
        // Said twice, it counts once; what comes after the end does not count.
        recorder.released(&release(&pool, "a", Outcome::Aborted, 9), ReleasedBy::Abort);
        recorder.renewed(["a"].into_iter(), at(150));
        let timeline = recorder.timeline(Duration::from_secs(30));

        assert_eq!((timeline.leases_total, timeline.leases_every, timeline.lease_ms), (2, 1, 30_000));
        assert_eq!(timeline.events, [Event { at_ms: 50, what: "the decode engine dies" }]);
        let [a, c] = &timeline.leases[..] else { panic!("{timeline:?}") };
        let end = End { released_ms: 107, outcome: "completed", by: ReleasedBy::Notification };
        assert_eq!((a.id.as_str(), a.blocks, a.tracked_ms, a.renewals, a.end), ("a", 3, 100, 0, Some(end)));
        assert_eq!((c.id.as_str(), c.blocks, c.renewals, c.end), ("c", 2, 2, None));
        assert_eq!((c.overdue_ms, &c.renewed_ms[..]), (Some(140), &[130, 130][..]));
    }

    #[test]
    fn of_too_many_leases_some_are_shown_and_all_are_counted() {
        let pool = BlockPool::new(100);
        let recorder = Recorder::default();
        for n in 0..100 {
            recorder.tracking(&n.to_string(), 1, at(n));
            recorder.released(&release(&pool, &n.to_string(), Outcome::Expired, n), ReleasedBy::Sweep);
        }
        let notes = recorder.notes.lock().unwrap();
        let timeline = Timeline::of(&notes.leases, &[], vec![], Duration::ZERO, 40);
        assert_eq!((timeline.leases_total, timeline.leases_every), (100, 3));
        assert_eq!(
            timeline.leases.iter().map(|l| l.tracked_ms).collect::<Vec<_>>(),
            Vec::from_iter((0..100).step_by(3))
        );
        assert_eq!(timeline.ages.expired.iter().sum::<u64>(), 100);
    }

    #[test]
    fn ages_fall_into_bins_that_begin_with_the_youngest() {
        let pool = BlockPool::new(8);
        let recorder = Recorder::default();
        for (n, (age, outcome)) in
            [(100, Outcome::Completed), (132, Outcome::Completed), (133, Outcome::Aborted), (1_000, Outcome::Expired)]
                .into_iter()
                .enumerate()
        {
            recorder.tracking(&n.to_string(), 1, at(0));
            recorder.released(&release(&pool, &n.to_string(), outcome, age), ReleasedBy::Sweep);
        }
        let ages = recorder.timeline(Duration::ZERO).ages;
        assert_eq!(ages.edges_ms, [100, 133, 178, 237, 316, 422, 562, 750, 1_000, 1_334]);
        assert_eq!(ages.completed, [2, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(ages.aborted, [0, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(ages.expired, [0, 0, 0, 0, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn each_slice_of_time_has_the_most_of_it() {
        let gauges = |leases| Gauges { leases, blocks_held: 2 * leases, blocks_allocated: 0 };
        // Slices of 2 ms.
        let series = Series::of(&[(0, gauges(1)), (1, gauges(3)), (1, gauges(2)), (6, gauges(5))], 3_999);
        assert_eq!((series.slice_ms, series.leases.len()), (2, 2_000));
        assert_eq!((&series.leases[..5], series.blocks_held[0]), (&[3, 2, 2, 5, 5][..], 6));
        assert_eq!(
            Series::of(&[], 0),
            Series { slice_ms: 1, leases: vec![0], blocks_held: vec![0], blocks_allocated: vec![0] }
        );
    }

    #[test]
    fn a_run_without_leases_has_no_ages() {
        let timeline = Recorder::default().timeline(Duration::ZERO);
        assert_eq!((timeline.end_ms, timeline.leases_total, timeline.ages), (0, 0, Ages::default()));
    }
}
