//! What will happen to each request, drawn before anything runs.
//!
//! No public trace says how long the decode side holds a prefill worker's blocks, so it is modelled
//! ([`HOLD_MODEL`]). Everything is drawn here from one seed: threads race over *when* a message is
//! handled, never over what happens.

use super::trace::{Arrival, log_normal};
use kvlease::Timestamp;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::time::Duration;

/// The hold times, in words for the report and `--help`.
pub const HOLD_MODEL: &str = "queue: log-normal, median 2 s, sigma 1.2, one draw a request; \
    read: 5 ms + 1 s per 80,000 input tokens, x log-normal jitter (sigma 0.3), one draw a rank; \
    freeze: with probability --freeze-rate a rank does nothing at all, heartbeats included, \
    from the start of a read on, log-normal, median 20 s, sigma 0.8, at most 90 s; \
    transfers of the prefill side stall as often and as long";

/// A request in ten is known to the decode side this long before its prefill ends, as with decode-first
/// routing: its heartbeats come before `track`.
const DECODE_FIRST: (f64, Duration) = (0.1, Duration::from_secs(2));

/// The engine notes the end of a prefill at most this much later: reads can be over before `track`.
const ENGINE_LAG_MS: u64 = 200;

/// How often something happens that the trace does not say. All are shares of 1.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    pub abort: f64,
    pub freeze: f64,
    pub push: f64,
}

/// One request, from hand-over to the last read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Planned {
    pub id: Arc<str>,
    pub blocks: u32,
    /// When the decode side learns of it.
    pub handed_at: Timestamp,
    /// When the prefill engine tracks it.
    pub tracked_at: Timestamp,
    /// Whether the engine knows how many ranks will read; if not, their messages tell.
    pub expected_known: bool,
    /// When the client goes away, and the engine aborts the request without a word to the decode side.
    pub abort_at: Option<Timestamp>,
    pub push: Option<Push>,
    /// What each decode rank does.
    pub reads: Vec<Read>,
}

/// One rank's read of one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Read {
    pub starts_at: Timestamp,
    pub lasts: Duration,
    /// How long the whole rank freezes when the read starts.
    pub freeze: Option<Duration>,
}

impl Read {
    fn ends_at(&self) -> Timestamp {
        self.starts_at + self.lasts + self.freeze.unwrap_or_default()
    }
}

/// The prefill side itself also writes some of the blocks to the decode side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Push {
    pub starts_at: Timestamp,
    pub lasts: Duration,
    /// The pushing code fails: the guard is dropped and not ended.
    pub fails: bool,
}

/// One source of chance for each kind of thing that happens, so that a rate which is changed changes that
/// kind only, and two runs can be compared.
struct Chance {
    holds: SmallRng,
    aborts: SmallRng,
    freezes: SmallRng,
    pushes: SmallRng,
}

/// Draws what happens to each arrival; the same for the same seed.
pub fn plan(arrivals: &[Arrival], consumers: u32, rates: Rates, seed: u64) -> Vec<Planned> {
    let mut seeds = SmallRng::seed_from_u64(seed ^ 0x686f_6c64);
    let mut source = || SmallRng::seed_from_u64(seeds.random());
    let mut chance = Chance { holds: source(), aborts: source(), freezes: source(), pushes: source() };
    arrivals.iter().map(|arrival| plan_one(arrival, consumers, rates, &mut chance)).collect()
}

fn plan_one(arrival: &Arrival, consumers: u32, rates: Rates, chance: &mut Chance) -> Planned {
    let Chance { holds, aborts, freezes, pushes } = chance;
    let prefilled_at = Timestamp::from_millis(arrival.at_ms) + DECODE_FIRST.1;
    let tracked_at = prefilled_at + Duration::from_millis(holds.random_range(0..=ENGINE_LAG_MS));
    let handed_at = if holds.random_bool(DECODE_FIRST.0) { Timestamp::from_millis(arrival.at_ms) } else { tracked_at };
    let wait = Duration::from_secs_f64(log_normal(holds, 2.0, 1.2));
    let starts_at = (handed_at + wait).max(prefilled_at);
    let read = |_| Read {
        starts_at,
        lasts: transfer_time(arrival.input_tokens, holds),
        freeze: freeze(rates.freeze, freezes),
    };
    let reads: Vec<Read> = (0..consumers).map(read).collect();
    let last_read = reads.iter().map(Read::ends_at).max().unwrap_or(starts_at);

    // From one second before `track`, when an abort comes early, to the end of the last read.
    let abort_at = aborts.random_bool(rates.abort).then(|| {
        let earliest = tracked_at.as_millis().saturating_sub(1_000);
        between(Timestamp::from_millis(earliest), last_read, aborts)
    });
    let push = pushes.random_bool(rates.push).then(|| Push {
        starts_at: between(tracked_at, last_read, pushes),
        lasts: transfer_time(arrival.input_tokens, pushes) + freeze(rates.freeze, pushes).unwrap_or_default(),
        fails: pushes.random_bool(0.1),
    });
    Planned {
        id: request_id(holds).into(),
        blocks: arrival.blocks,
        handed_at,
        tracked_at,
        expected_known: holds.random_bool(0.75),
        abort_at,
        push,
        reads,
    }
}

/// Some time from `earliest` to `latest`; `earliest` if that is the later one.
fn between(earliest: Timestamp, latest: Timestamp, rng: &mut SmallRng) -> Timestamp {
    Timestamp::from_millis(rng.random_range(earliest.as_millis()..=latest.max(earliest).as_millis()))
}

fn transfer_time(tokens: u64, rng: &mut SmallRng) -> Duration {
    Duration::from_secs_f64((0.005 + tokens as f64 / 80_000.0) * log_normal(rng, 1.0, 0.3))
}

fn freeze(rate: f64, rng: &mut SmallRng) -> Option<Duration> {
    rng.random_bool(rate).then(|| Duration::from_secs_f64(log_normal(rng, 20.0, 0.8).min(90.0)))
}

/// An id as vLLM makes them: `cmpl-37c560d3-5680-4bd1-97f9-7ed31a56de60-0`.
fn request_id(rng: &mut impl Rng) -> String {
    let [a, b]: [u64; 2] = rng.random();
    format!(
        "cmpl-{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}-0",
        a >> 32,
        a >> 16 & 0xffff,
        a & 0xfff,
        b >> 48 & 0x3fff | 0x8000,
        b & 0xffff_ffff_ffff
    )
}

#[cfg(test)]
mod tests {
    use super::super::trace::generate;
    use super::*;

    const RATES: Rates = Rates { abort: 0.1, freeze: 0.1, push: 0.1 };

    #[test]
    fn the_same_seed_plans_the_same_run() {
        let arrivals = generate(300, 1);
        assert_eq!(plan(&arrivals, 4, RATES, 5), plan(&arrivals, 4, RATES, 5));
        assert_ne!(plan(&arrivals, 4, RATES, 5), plan(&arrivals, 4, RATES, 6));
    }

    #[test]
    fn a_rate_that_is_changed_leaves_everything_else_as_it_was() {
        let arrivals = generate(300, 1);
        let [some, more] = [0.1, 0.4].map(|abort| plan(&arrivals, 4, Rates { abort, ..RATES }, 5));
        let aborts = |plan: &[Planned]| plan.iter().filter(|p| p.abort_at.is_some()).count();
        assert!(aborts(&some) < aborts(&more));
        assert!(some.iter().zip(&more).all(|(a, b)| a.id == b.id && a.reads == b.reads));
    }

    #[test]
    fn nothing_is_read_before_its_prefill_ends_and_some_of_everything_happens() {
        let plans = plan(&generate(1_000, 2), 3, RATES, 3);
        for planned in &plans {
            assert_eq!(planned.id.len(), 43);
            assert!(planned.handed_at <= planned.tracked_at);
            for read in &planned.reads {
                assert!(read.starts_at + Duration::from_millis(ENGINE_LAG_MS) >= planned.tracked_at);
            }
        }
        let share = |what: fn(&Planned) -> bool| plans.iter().filter(|p| what(p)).count();
        assert!((50..200).contains(&share(|p| p.abort_at.is_some())));
        assert!((50..200).contains(&share(|p| p.push.is_some())));
        assert!((50..200).contains(&share(|p| p.handed_at < p.tracked_at && p.reads.len() == 3 && p.blocks > 0)));
        assert!(share(|p| p.reads.iter().any(|r| r.freeze > Some(Duration::from_secs(30)))) > 20);
    }
}
