#![doc = include_str!("docs/metrics.md")]

use crate::pump::Counts;
use crate::{Outcome, Pump, Release, SendTracker, Stats, Timestamp};
use ::metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder, Unit, with_recorder};
use std::fmt;

/// The name of the histogram that [`TrackerMetrics::ended`] fills, to give it [buckets](LEASE_AGE_BUCKETS) by.
pub const LEASE_AGE: &str = "kvlease_lease_age_seconds";

/// Upper bounds for [`LEASE_AGE`], in seconds: from a read at once to the longest leases in use, with some on both sides
/// of 30 s, where leases usually run out.
pub const LEASE_AGE_BUCKETS: &[f64] =
    &[0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 45.0, 120.0, 480.0, 600.0];

const OLDEST: &str = "kvlease_oldest_lease_age_seconds";
const OLDEST_HELP: &str = "Age of the oldest lease whose payload is still held, 0 if there is none. If it passes the \
    longest lease: is anybody sweeping, does a heartbeat never end, was a transfer guard leaked? SendTracker::oldest \
    names it.";
const LEASE_AGE_HELP: &str = "How long each payload was held, from track to its release. If completed ones come near \
    the length of a lease, make leases longer or the decode side faster.";

/// Where a number is in a snapshot.
type Number<T> = fn(&T) -> u64;

/// One name, its help text, and its series: a label value each, and where the number is.
struct Family<T: 'static> {
    name: &'static str,
    help: &'static str,
    /// The name of the label; empty if there is one series without.
    label: &'static str,
    series: &'static [(&'static str, Number<T>)],
}

const TRACKER_GAUGES: &[Family<Stats>] = &[
    Family {
        name: "kvlease_leases",
        help: "Leases that are live. If it grows without the load: consumers do not notify, or nobody sweeps.",
        label: "",
        series: &[("", |stats| stats.live)],
    },
    Family {
        name: "kvlease_releases_pending",
        help: "Ended leases whose payload waits for the end of a transfer, or for the next sweep. If it grows: \
            transfers hang, or their guards were leaked.",
        label: "",
        series: &[("", |stats| stats.release_pending)],
    },
    Family {
        name: "kvlease_weight_held",
        help: "Weight of all payloads held, in the unit that track was given (blocks, say). If it nears what there is: \
            refuse new requests, or make leases shorter.",
        label: "",
        series: &[("", |stats| stats.weight_held)],
    },
    Family {
        name: "kvlease_early_ids",
        help: "Ids of which a message came before track. If it nears Config::early_capacity: track before you hand \
            over, or look for a peer that sends rubbish.",
        label: "",
        series: &[("", |stats| stats.early)],
    },
    Family {
        name: "kvlease_tombstones",
        help: "Ended leases that are remembered. If it stays at Config::tombstone_capacity, late messages may be \
            unknown: raise that.",
        label: "",
        series: &[("", |stats| stats.tombstones)],
    },
    Family {
        name: "kvlease_transfers_in_flight",
        help: "The producer's own transfers in flight. If it grows: they hang, or their guards were leaked.",
        label: "",
        series: &[("", |stats| stats.transfers)],
    },
];

const TRACKER_COUNTERS: &[Family<Stats>] = &[
    Family {
        name: "kvlease_leases_tracked_total",
        help: "Leases begun. The load; if it stops, look at kvlease_track_refused_total.",
        label: "",
        series: &[("", |stats| stats.tracked)],
    },
    Family {
        name: "kvlease_leases_ended_total",
        help: "Leases ended, by outcome. If expired grows: leases are too short, heartbeats get lost, or the decode \
            side is too slow or dead. If aborted does: look at who gives up.",
        label: "outcome",
        series: &[
            ("completed", |stats| stats.completed),
            ("expired", |stats| stats.expired),
            ("aborted", |stats| stats.aborted),
        ],
    },
    Family {
        name: "kvlease_leases_released_total",
        help: "Payloads handed out. If it grows slower than the leases ended, look at kvlease_releases_pending.",
        label: "",
        series: &[("", |stats| stats.released)],
    },
    Family {
        name: "kvlease_leases_overdue_total",
        help: "Leases reported overdue and kept, under ExpiryPolicy::Hold. If it grows: abort them, or report their \
            engine dead.",
        label: "",
        series: &[("", |stats| stats.overdue)],
    },
    Family {
        name: "kvlease_track_refused_total",
        help: "Calls of track that were refused. If it grows: the tracker is at its capacity, or ids are used twice; \
            the error that the caller got says which.",
        label: "",
        series: &[("", |stats| stats.track_refused)],
    },
    Family {
        name: "kvlease_messages_total",
        help: "Messages to the tracker, by class (a renewal that changed nothing is in none). If late grows: reads \
            outlive their leases. duplicate: the transport repeats. early: hand over after track. unknown: raise \
            tombstone_capacity or early_capacity, or look for rubbish. refused: the counts in messages are wrong.",
        label: "class",
        series: &[
            ("counted", |stats| stats.notified),
            ("duplicate", |stats| stats.duplicates),
            ("extended", |stats| stats.extended),
            ("early", |stats| stats.early_kept),
            ("late", |stats| stats.late),
            ("unknown", |stats| stats.unknown),
            ("refused", |stats| stats.notify_refused),
        ],
    },
    Family {
        name: "kvlease_expected_conflicts_total",
        help: "Notifications whose expected count is not the one that stands. If it grows: the two sides disagree \
            about the topology.",
        label: "",
        series: &[("", |stats| stats.conflicts)],
    },
    Family {
        name: "kvlease_early_dropped_total",
        help: "Ids whose early messages were dropped since no track came. If it grows: raise tombstone_ttl or \
            tombstone_capacity if they are for what had ended, early_ttl if track comes later than that; or look for a \
            peer that names the wrong producer.",
        label: "",
        series: &[("", |stats| stats.early_dropped)],
    },
];

const PUMP_COUNTERS: &[Family<Counts>] = &[
    Family {
        name: "kvlease_pump_received_total",
        help: "Messages that the transport handed out. If it stops while leases are live: the transport is broken.",
        label: "",
        series: &[("", |counts| counts.received)],
    },
    Family {
        name: "kvlease_pump_completions_total",
        help: "Completion messages, by class. If a late class grows, answers were made of stale reads: make leases \
            longer, and have the decode side opt in to stale replies. late_completed, conflict: look at the expected \
            count. The others: as for kvlease_messages_total.",
        label: "class",
        series: &[
            ("counted", |counts| counts.completions.counted),
            ("completed", |counts| counts.completions.completed),
            ("duplicate", |counts| counts.completions.duplicate),
            ("late_duplicate", |counts| counts.completions.late_duplicate),
            ("early", |counts| counts.completions.early),
            ("late_completed", |counts| counts.completions.late_completed),
            ("late_expired", |counts| counts.completions.late_expired),
            ("late_aborted", |counts| counts.completions.late_aborted),
            ("unknown", |counts| counts.completions.unknown),
            ("conflict", |counts| counts.completions.conflict),
            ("refused", |counts| counts.completions.refused),
        ],
    },
    Family {
        name: "kvlease_pump_malformed_total",
        help: "Messages that are none, by what is wrong with them. If it grows: a peer of another version or another \
            protocol; the log names it.",
        label: "class",
        series: &[
            ("empty", |counts| counts.malformed.empty),
            ("too_long", |counts| counts.malformed.too_long),
            ("not_utf8", |counts| counts.malformed.not_utf8),
            ("no_colon", |counts| counts.malformed.no_colon),
            ("empty_id", |counts| counts.malformed.empty_id),
            ("bad_count", |counts| counts.malformed.bad_count),
            ("count_too_large", |counts| counts.malformed.count_too_large),
            ("zero_count", |counts| counts.malformed.zero_count),
            ("bad_outcome", |counts| counts.malformed.bad_outcome),
        ],
    },
    Family {
        name: "kvlease_pump_heartbeats_total",
        help: "Heartbeat messages. If it grows faster than the load: the decode side queues.",
        label: "",
        series: &[("", |counts| counts.heartbeats.messages)],
    },
    Family {
        name: "kvlease_pump_heartbeat_ids_total",
        help: "Ids in heartbeats, by class. If late grows: heartbeats come too seldom for the length of a lease. \
            unknown: a peer names the wrong producer, or does not stop. refused: PumpConfig::lease is out of range.",
        label: "class",
        series: &[
            ("extended", |counts| counts.heartbeats.extended),
            ("unchanged", |counts| counts.heartbeats.unchanged),
            ("early", |counts| counts.heartbeats.early),
            ("late", |counts| counts.heartbeats.late),
            ("unknown", |counts| counts.heartbeats.unknown),
            ("refused", |counts| counts.heartbeats.refused),
        ],
    },
    Family {
        name: "kvlease_pump_opaque_total",
        help: "Messages of another protocol, handed on. If it grows: see that somebody takes them.",
        label: "",
        series: &[("", |counts| counts.opaque)],
    },
    Family {
        name: "kvlease_pump_strangers_total",
        help: "Messages of agents that the registry has no room for. If it grows: forget agents that are gone, or \
            raise its limits.",
        label: "",
        series: &[("", |counts| counts.strangers)],
    },
    Family {
        name: "kvlease_pump_dropped_total",
        help: "Messages that found no room to wait; their leases run out instead. If it grows: raise \
            PumpConfig::waiting_limit or work_limit, or step more often.",
        label: "",
        series: &[("", |counts| counts.dropped)],
    },
    Family {
        name: "kvlease_pump_after_transfer_total",
        help: "Leases that completed while a transfer was in flight. If it grows: transfers outlast the reads; no fault.",
        label: "",
        series: &[("", |counts| counts.after_transfer)],
    },
    Family {
        name: "kvlease_pump_replies_sent_total",
        help: "Replies sent to readers, by verdict. If stale grows: reads had to be thrown away; make leases longer.",
        label: "verdict",
        series: &[("stale", |counts| counts.sent_stale), ("in_time", |counts| counts.sent_good)],
    },
    Family {
        name: "kvlease_pump_replies_unsent_total",
        help: "Replies that could not be sent. If it grows: those readers may use what is stale; report agents that \
            are gone.",
        label: "",
        series: &[("", |counts| counts.unsent)],
    },
    Family {
        name: "kvlease_pump_replies_received_total",
        help: "Stale replies of other producers to this agent. If it grows: what this worker reads is stale or waits \
            for verdicts; look at those producers.",
        label: "",
        series: &[("", |counts| counts.replies_received)],
    },
    Family {
        name: "kvlease_pump_agents_forgotten_total",
        help: "Silent agents forgotten. If it grows: decode workers come and go; no fault unless they still read.",
        label: "",
        series: &[("", |counts| counts.forgotten)],
    },
];

const PUMP_WAITING: &str = "kvlease_pump_waiting_messages";
const PUMP_WAITING_HELP: &str = "Messages that wait for the next step. If it stays above 0: raise \
    PumpConfig::work_limit or step more often, before their leases run out.";
const PUMP_AGENTS: &str = "kvlease_pump_agents";
const PUMP_AGENTS_HELP: &str = "Agents that are known. If it nears the limit of the registry: forget those that are \
    gone, or set PumpConfig::forget_after.";

/// Numbers of a [`SendTracker`], published when you say so. See the [module](self).
///
/// Made after the recorder is installed: what is made before it publishes to nobody. It belongs to one tracker, for
/// its counters do not go back; where there are several, tell them apart by [labels](Self::with_labels).
///
/// Any thread may use it, at any time; as free of locks as the recorder is.
pub struct TrackerMetrics {
    gauges: Published<Gauge, Stats>,
    counters: Published<Counter, Stats>,
    oldest: Gauge,
    /// By outcome.
    ages: [Histogram; 3],
}

impl TrackerMetrics {
    /// Registers and describes all of them with the recorder that is installed (or is local to this thread).
    pub fn new() -> Self {
        Self::with_labels(&[])
    }

    /// As [`new`](Self::new), with labels on each series, to tell trackers of one process apart. Not for what has no
    /// bound, such as ids of requests.
    pub fn with_labels(labels: &[(&str, &str)]) -> Self {
        with_recorder(|recorder| {
            let register = Register { recorder, labels };
            TrackerMetrics {
                gauges: register.gauges(TRACKER_GAUGES),
                counters: register.counters(TRACKER_COUNTERS),
                oldest: register.gauge(OLDEST, Unit::Seconds, OLDEST_HELP),
                ages: register.ages(),
            }
        })
    }

    /// Publishes [`stats`](SendTracker::stats) and the [age of the oldest lease](SendTracker::oldest_age), as of about
    /// now.
    ///
    /// For the scrape, or every some seconds: it looks at every slot for the oldest lease. Wait-free on the tracker's
    /// side.
    pub fn publish<P: Send + 'static>(&self, tracker: &SendTracker<P>, now: Timestamp) {
        let stats = tracker.stats();
        self.gauges.each(&stats, |gauge, value| gauge.set(value as f64));
        self.counters.each(&stats, Counter::absolute);
        self.oldest.set(tracker.oldest_age(now).unwrap_or_default().as_secs_f64());
    }

    /// A lease has ended and its payload is out: counts its [age](Release::age) in the histogram of its outcome.
    ///
    /// To be called for every release, wherever it comes from; nothing else tells the histogram.
    pub fn ended<P>(&self, release: &Release<P>) {
        self.ages[position(release.outcome)].record(release.age.as_secs_f64());
    }
}

impl Default for TrackerMetrics {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for TrackerMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrackerMetrics").finish_non_exhaustive()
    }
}

/// Numbers of a [`Pump`], published when you say so. See the [module](self).
///
/// What is said of [`TrackerMetrics`] holds here as well.
pub struct PumpMetrics {
    counters: Published<Counter, Counts>,
    waiting: Gauge,
    agents: Gauge,
}

impl PumpMetrics {
    /// Registers and describes all of them with the recorder that is installed (or is local to this thread).
    pub fn new() -> Self {
        Self::with_labels(&[])
    }

    /// As [`new`](Self::new), with labels on each series. See [`TrackerMetrics::with_labels`].
    pub fn with_labels(labels: &[(&str, &str)]) -> Self {
        with_recorder(|recorder| {
            let register = Register { recorder, labels };
            PumpMetrics {
                counters: register.counters(PUMP_COUNTERS),
                waiting: register.gauge(PUMP_WAITING, Unit::Count, PUMP_WAITING_HELP),
                agents: register.gauge(PUMP_AGENTS, Unit::Count, PUMP_AGENTS_HELP),
            }
        })
    }

    /// Publishes [`totals`](Pump::totals), how many messages [wait](Pump::waiting), and how many agents are known.
    ///
    /// By the thread that has the pump: in the steps, or in one of many.
    pub fn publish(&self, pump: &Pump) {
        self.counters.each(&pump.totals(), Counter::absolute);
        self.waiting.set(pump.waiting() as f64);
        self.agents.set(pump.agents().len() as f64);
    }
}

impl Default for PumpMetrics {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for PumpMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PumpMetrics").finish_non_exhaustive()
    }
}

const OUTCOMES: [Outcome; 3] = [Outcome::Completed, Outcome::Expired, Outcome::Aborted];

fn position(outcome: Outcome) -> usize {
    match outcome {
        Outcome::Completed => 0,
        Outcome::Expired => 1,
        Outcome::Aborted => 2,
    }
}

/// What has been registered, and where each number is in a snapshot.
struct Published<M, T>(Vec<(M, Number<T>)>);

impl<M, T> Published<M, T> {
    fn each(&self, snapshot: &T, publish: impl Fn(&M, u64)) {
        for (metric, value) in &self.0 {
            publish(metric, value(snapshot));
        }
    }
}

/// Where to register, and with which labels.
struct Register<'a> {
    recorder: &'a dyn Recorder,
    labels: &'a [(&'a str, &'a str)],
}

impl Register<'_> {
    const METADATA: Metadata<'static> = Metadata::new("kvlease", Level::INFO, Some("kvlease"));

    /// Without a label of its own if that is empty.
    fn key(&self, name: &'static str, label: &'static str, value: String) -> Key {
        let mut labels: Vec<Label> =
            self.labels.iter().map(|(name, value)| Label::new((*name).to_owned(), (*value).to_owned())).collect();
        if !label.is_empty() {
            labels.push(Label::new(label, value));
        }
        Key::from_parts(name, labels)
    }

    fn gauge(&self, name: &'static str, unit: Unit, help: &'static str) -> Gauge {
        self.recorder.describe_gauge(name.into(), Some(unit), help.into());
        self.recorder.register_gauge(&self.key(name, "", String::new()), &Self::METADATA)
    }

    fn gauges<T>(&self, families: &[Family<T>]) -> Published<Gauge, T> {
        let gauges = families.iter().flat_map(|family| {
            family.series.iter().map(|(_, number)| (self.gauge(family.name, Unit::Count, family.help), *number))
        });
        Published(gauges.collect())
    }

    fn counters<T>(&self, families: &[Family<T>]) -> Published<Counter, T> {
        let mut counters = Vec::new();
        for family in families {
            self.recorder.describe_counter(family.name.into(), Some(Unit::Count), family.help.into());
            for (value, number) in family.series {
                let key = self.key(family.name, family.label, (*value).to_owned());
                counters.push((self.recorder.register_counter(&key, &Self::METADATA), *number));
            }
        }
        Published(counters)
    }

    fn ages(&self) -> [Histogram; 3] {
        self.recorder.describe_histogram(LEASE_AGE.into(), Some(Unit::Seconds), LEASE_AGE_HELP.into());
        OUTCOMES.map(|outcome| {
            let key = self.key(LEASE_AGE, "outcome", outcome.to_string());
            self.recorder.register_histogram(&key, &Self::METADATA)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Each number of a snapshot is another one, so a family that takes the wrong one, or a number that no family takes,
    /// is found. A field that is new does not compile here.
    fn each_number_once<T>(families: &[&[Family<T>]], snapshot: &T, numbers: u64) {
        let taken = families.iter().flat_map(|families| families.iter());
        let mut taken: Vec<u64> = taken.flat_map(|family| family.series).map(|(_, number)| number(snapshot)).collect();
        taken.sort_unstable();
        assert_eq!(taken, (1..=numbers).collect::<Vec<_>>());
    }

    macro_rules! numbered {
        ($next:ident: $($place:expr),* $(,)?) => {
            $($next += 1; $place = $next;)*
        };
    }

    #[test]
    fn every_number_of_the_tracker_is_published_once() {
        let (mut stats, mut n) = (Stats::default(), 0);
        let Stats {
            live,
            release_pending,
            weight_held,
            early,
            tombstones,
            transfers,
            tracked,
            completed,
            expired,
            aborted,
            released,
            track_refused,
            overdue,
            notified,
            duplicates,
            conflicts,
            notify_refused,
            extended,
            early_kept,
            early_dropped,
            late,
            unknown,
        } = &mut stats;
        numbered!(
            n: *live, *release_pending, *weight_held, *early, *tombstones, *transfers, *tracked, *completed, *expired,
            *aborted, *released, *track_refused, *overdue, *notified, *duplicates, *conflicts, *notify_refused,
            *extended, *early_kept, *early_dropped, *late, *unknown,
        );
        each_number_once(&[TRACKER_GAUGES, TRACKER_COUNTERS], &stats, n);
    }

    #[test]
    fn every_number_of_the_pump_is_published_once() {
        let (mut counts, mut n) = (Counts::default(), 0);
        let Counts {
            received,
            completions,
            malformed,
            heartbeats,
            replies_received,
            opaque,
            strangers,
            dropped,
            after_transfer,
            sent_stale,
            sent_good,
            unsent,
            forgotten,
        } = &mut counts;
        numbered!(
            n: *received, *replies_received, *opaque, *strangers, *dropped, *after_transfer, *sent_stale, *sent_good,
            *unsent, *forgotten,
        );
        let crate::pump::CompletionCounts {
            counted,
            completed,
            duplicate,
            late_duplicate,
            early,
            late_completed,
            late_expired,
            late_aborted,
            unknown,
            conflict,
            refused,
        } = completions;
        numbered!(
            n: *counted, *completed, *duplicate, *late_duplicate, *early, *late_completed, *late_expired,
            *late_aborted, *unknown, *conflict, *refused,
        );
        let crate::pump::MalformedCounts {
            empty,
            too_long,
            not_utf8,
            no_colon,
            empty_id,
            bad_count,
            count_too_large,
            zero_count,
            bad_outcome,
        } = malformed;
        numbered!(
            n: *empty, *too_long, *not_utf8, *no_colon, *empty_id, *bad_count, *count_too_large, *zero_count,
            *bad_outcome,
        );
        let crate::pump::HeartbeatCounts { messages, extended, unchanged, early, late, unknown, refused } = heartbeats;
        numbered!(n: *messages, *extended, *unchanged, *early, *late, *unknown, *refused);
        each_number_once(&[PUMP_COUNTERS], &counts, n);
    }

    /// Name, whether it is a counter, help.
    fn all() -> Vec<(&'static str, bool, &'static str)> {
        fn of<T>(families: &[Family<T>], counters: bool) -> impl Iterator<Item = (&'static str, bool, &'static str)> {
            families.iter().map(move |family| (family.name, counters, family.help))
        }
        of(TRACKER_GAUGES, false)
            .chain(of(TRACKER_COUNTERS, true))
            .chain(of(PUMP_COUNTERS, true))
            .chain([(OLDEST, false, OLDEST_HELP), (LEASE_AGE, false, LEASE_AGE_HELP)])
            .chain([(PUMP_WAITING, false, PUMP_WAITING_HELP), (PUMP_AGENTS, false, PUMP_AGENTS_HELP)])
            .collect()
    }

    #[test]
    fn names_follow_the_conventions_and_each_help_says_what_to_do() {
        let all = all();
        let names: BTreeSet<_> = all.iter().map(|(name, ..)| *name).collect();
        assert_eq!(names.len(), all.len(), "each name once");
        for (name, counter, help) in all {
            assert!(
                name.starts_with("kvlease_") && name.bytes().all(|b| b == b'_' || b.is_ascii_lowercase()),
                "{name}"
            );
            assert_eq!(name.ends_with("_total"), counter, "{name}: only counters are totals");
            for unit in ["_ms", "_millis", "_minutes", "_count", "_sum", "_bucket"] {
                assert!(!name.ends_with(unit), "{name}: base units, and no name that a histogram makes");
            }
            assert!(help.contains("If ") || help.contains("; if "), "{name}: {help}");
            assert!(help.ends_with('.') && !help.contains("  ") && !help.contains('\n'), "{name}: {help}");
        }
    }

    #[test]
    fn the_page_names_all_of_them_and_no_others() {
        let page = include_str!("docs/metrics.md");
        let words = page.split(|c: char| !(c == '_' || c.is_ascii_alphanumeric()));
        let words = words.filter(|word| word.starts_with("kvlease_"));
        let named: BTreeSet<_> = words.map(|word| word.strip_suffix("_bucket").unwrap_or(word)).collect();
        assert_eq!(named, all().iter().map(|(name, ..)| *name).collect());
    }

    #[test]
    fn the_bounds_of_the_buckets_rise() {
        assert!(LEASE_AGE_BUCKETS.is_sorted_by(|a, b| a < b));
    }
}
