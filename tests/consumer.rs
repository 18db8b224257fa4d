//! The decode side: heartbeats in bounded batches, and a stale read that is told exactly once.

use kvlease::consumer::{Completed, Outgoing, ReadConfig, ReadTracker, Verdict, WaitError};
use kvlease::transport::in_process::{Faults, Network};
use kvlease::transport::{NotificationSink, NotificationSource};
use kvlease::wire::{self, Message, StaleReply, Unsendable};
use kvlease::{Outcome, Timestamp};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const P: &str = "prefill-0";
const Q: &str = "prefill-1";
const T0: Timestamp = Timestamp::ZERO;

fn secs(secs: u64) -> Timestamp {
    Timestamp::from_secs(secs)
}

fn tracker() -> ReadTracker {
    ReadTracker::new(ReadConfig::default())
}

fn awaiting_tracker() -> ReadTracker {
    ReadTracker::new(ReadConfig { verdict_wait: Some(Duration::from_secs(1)), ..ReadConfig::default() })
}

fn stale(id: &str) -> StaleReply<'_> {
    StaleReply { id, outcome: Outcome::Expired }
}

fn confirmed(id: &str) -> StaleReply<'_> {
    StaleReply { id, outcome: Outcome::Completed }
}

fn recompute(id: &str) -> Verdict {
    Verdict::Recompute { id: id.into(), outcome: Outcome::Expired }
}

fn completion(agent: &str, message: &str) -> Outgoing {
    Outgoing { agent: agent.into(), message: message.into() }
}

/// Agent and ids of each heartbeat.
fn ids_of(heartbeats: &[Outgoing]) -> Vec<(String, Vec<String>)> {
    let ids = |message| match wire::parse(message) {
        Ok(Message::Heartbeat(heartbeat)) => heartbeat.ids().map(str::to_owned).collect(),
        other => panic!("{other:?}"),
    };
    heartbeats.iter().map(|o| (o.agent.to_string(), ids(&o.message))).collect()
}

#[test]
fn what_waits_is_renewed_once_per_interval_and_what_is_read_no_more() {
    let mut reads = tracker();
    assert_eq!(reads.next_deadline(), None);
    assert_eq!(reads.heartbeats(secs(100)), []);

    reads.wait_for("b", P).unwrap();
    reads.wait_for("a", P).unwrap();
    reads.wait_for("c", Q).unwrap();
    let batch = |agent: &str, ids: &[&str]| (agent.to_owned(), ids.iter().map(|id| id.to_string()).collect());
    // The first one at once, however long nothing waited.
    assert_eq!(ids_of(&reads.heartbeats(secs(100))), [batch(P, &["a", "b"]), batch(Q, &["c"])]);
    assert_eq!(reads.next_deadline(), Some(secs(105)));
    assert_eq!(reads.heartbeats(Timestamp::from_millis(104_999)), []);

    assert_eq!(reads.completed("a", P, 1, secs(104)), Ok(Completed::Use(completion(P, "a:1"))));
    assert!(reads.cancel("c"));
    assert_eq!(ids_of(&reads.heartbeats(secs(105))), [batch(P, &["b"])]);
    assert_eq!(reads.completed("b", P, 2, secs(106)), Ok(Completed::Use(completion(P, "b:2"))));
    assert_eq!(reads.heartbeats(secs(200)), []);
    assert_eq!((reads.next_deadline(), reads.reads()), (None, 0));
}

#[test]
fn a_clock_that_is_set_back_stops_no_heartbeats() {
    let mut reads = tracker();
    reads.wait_for("a", P).unwrap();
    assert_eq!(reads.heartbeats(secs(1_000_000)).len(), 1);
    assert_eq!(reads.heartbeats(secs(10)), []);
    assert_eq!(reads.heartbeats(secs(15)).len(), 1);
}

#[test]
fn a_stale_reply_after_the_completion_is_told_exactly_once() {
    let mut reads = tracker();
    reads.wait_for("a", P).unwrap();
    assert!(matches!(reads.completed("a", P, 1, T0), Ok(Completed::Use(_))));
    assert_eq!(reads.completed("a", P, 1, T0), Ok(Completed::Duplicate));
    assert_eq!(reads.reply(P, stale("a"), T0), recompute("a"));
    assert_eq!(reads.reply(P, stale("a"), T0), Verdict::Settled);
    assert_eq!(reads.reply(P, confirmed("a"), T0), Verdict::Settled);
    assert_eq!(reads.completed("a", P, 1, T0), Ok(Completed::Discard(None)));
}

#[test]
fn a_stale_reply_before_the_completion_is_told_too() {
    let mut reads = tracker();
    reads.wait_for("a", P).unwrap();
    let aborted = StaleReply { id: "a", outcome: Outcome::Aborted };
    assert_eq!(reads.reply(P, aborted, T0), Verdict::Recompute { id: "a".into(), outcome: Outcome::Aborted });
    assert_eq!(reads.reply(P, stale("a"), T0), Verdict::Settled);
    assert_eq!(reads.heartbeats(T0), []);
    // The read that was under way ends: its blocks are not needed any more, and nothing is used.
    assert_eq!(reads.completed("a", P, 1, T0), Ok(Completed::Discard(Some(completion(P, "a:1")))));
    assert_eq!(reads.completed("a", P, 1, T0), Ok(Completed::Discard(None)));
}

#[test]
fn replies_that_concern_nobody_are_told_apart() {
    let mut reads = tracker();
    assert_eq!(reads.reply(P, stale("a"), T0), Verdict::Unknown);
    assert_eq!(reads.completed("a", P, 1, T0), Ok(Completed::Unknown));
    reads.wait_for("a", P).unwrap();
    assert_eq!(reads.reply(Q, stale("a"), T0), Verdict::WrongAgent);
    assert_eq!(reads.completed("a", Q, 1, T0), Ok(Completed::Unknown));
    assert_eq!(reads.completed("a", P, 0, T0), Err(Unsendable::ZeroCount));
    assert!(matches!(reads.completed("a", P, 1, T0), Ok(Completed::Use(_))));
    assert_eq!(reads.reply(P, confirmed("a"), T0), Verdict::Settled);
    assert!(reads.cancel("a"));
    assert!(!reads.cancel("a"));
    assert_eq!(reads.reply(P, stale("a"), T0), Verdict::Unknown);
}

#[test]
fn what_is_done_is_remembered_for_a_bounded_time_and_in_a_bounded_number() {
    let mut reads = ReadTracker::new(ReadConfig {
        max_remembered: 3,
        remember_for: Duration::from_secs(60),
        ..ReadConfig::default()
    });
    for n in 0..5 {
        let id = n.to_string();
        reads.wait_for(&id, P).unwrap();
        assert!(matches!(reads.completed(&id, P, 1, secs(n)), Ok(Completed::Use(_))));
    }
    assert_eq!(reads.remembered(), 3);
    // The oldest went first.
    assert_eq!(reads.reply(P, stale("1"), secs(5)), Verdict::Unknown);
    assert_eq!(reads.reply(P, stale("2"), secs(61)), recompute("2"));
    assert_eq!(reads.reply(P, stale("3"), secs(63)), Verdict::Unknown);
    assert_eq!(reads.reply(P, stale("4"), secs(63)), recompute("4"));
    assert_eq!(reads.heartbeats(secs(64)), []);
    assert_eq!(reads.remembered(), 0);
}

#[test]
fn what_waits_is_bounded_and_room_comes_back() {
    let mut reads = ReadTracker::new(ReadConfig { max_reads: 2, ..ReadConfig::default() });
    reads.wait_for("a", P).unwrap();
    reads.wait_for("a", Q).unwrap();
    assert_eq!(reads.wait_for("b", P), Err(WaitError::Full { max: 2 }));
    assert_eq!(reads.wait_for("a", P), Err(WaitError::AlreadyWaiting));
    assert_eq!(reads.reply(P, stale("a"), T0), recompute("a"));
    reads.wait_for("b", P).unwrap();
    assert_eq!((reads.reads(), reads.remembered()), (1, 2));
}

/// F26 on this side: what a heartbeat cannot carry is refused at once, and not cut.
#[test]
fn f26_an_id_that_the_messages_cannot_carry_is_refused_at_once() {
    let mut reads = tracker();
    let refusal = |reads: &mut ReadTracker, id: &str| reads.wait_for(id, P).unwrap_err();
    assert_eq!(refusal(&mut reads, ""), WaitError::Unsendable(Unsendable::EmptyId));
    assert_eq!(refusal(&mut reads, "a,b"), WaitError::Unsendable(Unsendable::Comma));
    for id in ["HB", "HB:a", "PUSH_REG:a", "KVLEASE_STALE:a:expired"] {
        assert!(matches!(refusal(&mut reads, id), WaitError::Unsendable(Unsendable::ReservedPrefix { .. })), "{id}");
    }
    let long = "x".repeat(1_025);
    assert_eq!(refusal(&mut reads, &long), WaitError::IdTooLong { len: 1_025, max: 1_024 });
    assert_eq!(refusal(&mut reads, &"x".repeat(1 << 20)), WaitError::IdTooLong { len: 1 << 20, max: 1_024 });
    assert_eq!(reads.wait_for("a", &long), Err(WaitError::AgentTooLong { len: 1_025, max: 1_024 }));
    assert_eq!((reads.reads(), reads.next_deadline()), (0, None));

    for id in ["x".repeat(110), "x".repeat(1_024), "a:b:1".into(), "\0💥".into()] {
        reads.wait_for(&id, P).unwrap();
    }
    assert_eq!(ids_of(&reads.heartbeats(T0))[0].1.len(), 4);

    let mut narrow = ReadTracker::new(ReadConfig { max_message_len: 8, ..ReadConfig::default() });
    assert_eq!(narrow.wait_for("123456", P), Err(WaitError::IdTooLong { len: 6, max: 5 }));
    narrow.wait_for("12345", P).unwrap();
    assert_eq!(narrow.heartbeats(T0)[0].message, b"HB:12345");
}

#[test]
fn a_verdict_that_is_awaited_comes_or_is_missed_within_bounded_time() {
    let mut reads = awaiting_tracker();
    for id in ["good", "stale", "silent"] {
        reads.wait_for(id, P).unwrap();
        let Ok(Completed::AwaitVerdict { message, until }) = reads.completed(id, P, 1, secs(1)) else { panic!() };
        assert_eq!((message, until), (completion(P, &format!("{id}:1")), secs(2)));
    }
    assert_eq!(reads.next_deadline(), Some(secs(2)));
    assert_eq!(reads.reply(P, confirmed("good"), secs(1)), Verdict::Use { id: "good".into() });
    assert_eq!(reads.reply(P, confirmed("good"), secs(1)), Verdict::Settled);
    assert_eq!(reads.reply(P, stale("stale"), secs(1)), recompute("stale"));
    assert!(reads.unanswered(Timestamp::from_millis(1_999)).is_empty());
    assert_eq!(reads.unanswered(secs(2)), ["silent"]);
    assert!(reads.unanswered(secs(3)).is_empty());
    assert_eq!((reads.next_deadline(), reads.reads()), (None, 0));
    // Late verdicts: the stale one still counts, once.
    assert_eq!(reads.reply(P, confirmed("silent"), secs(4)), Verdict::Settled);
    assert_eq!(reads.reply(P, stale("silent"), secs(4)), recompute("silent"));
    assert_eq!(reads.reply(P, stale("silent"), secs(4)), Verdict::Settled);
    // And also after a confirmation: a producer that takes it back is believed.
    assert_eq!(reads.reply(P, stale("good"), secs(4)), recompute("good"));
}

#[test]
fn a_confirmation_that_was_not_asked_for_yet_confirms_nothing() {
    let mut reads = awaiting_tracker();
    reads.wait_for("a", P).unwrap();
    // Of an earlier life of the id.
    assert_eq!(reads.reply(P, confirmed("a"), T0), Verdict::Settled);
    assert!(matches!(reads.completed("a", P, 1, T0), Ok(Completed::AwaitVerdict { .. })));
    assert_eq!(reads.unanswered(secs(1)), ["a"]);
}

#[test]
fn a_request_read_from_two_agents_needs_both_and_fails_with_either() {
    let mut reads = awaiting_tracker();
    for id in ["a", "b"] {
        reads.wait_for(id, P).unwrap();
        reads.wait_for(id, Q).unwrap();
        assert_eq!(reads.completed(id, P, 1, T0), Ok(Completed::MoreReads(completion(P, &format!("{id}:1")))));
    }
    assert_eq!(ids_of(&reads.heartbeats(T0)), [(Q.to_owned(), vec!["a".to_owned(), "b".to_owned()])]);
    assert_eq!(reads.reply(P, confirmed("a"), T0), Verdict::Pending);
    assert!(matches!(reads.completed("a", Q, 1, T0), Ok(Completed::AwaitVerdict { .. })));
    assert_eq!(reads.reply(P, confirmed("a"), T0), Verdict::Settled);
    assert_eq!(reads.reply(Q, confirmed("a"), T0), Verdict::Use { id: "a".into() });

    assert_eq!(reads.reply(P, stale("b"), T0), recompute("b"));
    assert_eq!(reads.reply(Q, stale("b"), T0), Verdict::Settled);
    assert_eq!(reads.completed("b", Q, 1, T0), Ok(Completed::Discard(Some(completion(Q, "b:1")))));
    assert_eq!(reads.heartbeats(secs(100)), []);
}

#[test]
fn a_request_can_be_recomputed_under_the_same_id() {
    let mut reads = tracker();
    reads.wait_for("a", P).unwrap();
    assert_eq!(reads.reply(P, stale("a"), T0), recompute("a"));
    reads.wait_for("a", Q).unwrap();
    assert_eq!(reads.reply(P, stale("a"), T0), Verdict::WrongAgent);
    assert_eq!(ids_of(&reads.heartbeats(T0)), [(Q.to_owned(), vec!["a".to_owned()])]);
    // What the first life left in memory does not end the second.
    assert_eq!(reads.heartbeats(secs(1_000)).len(), 1);
    assert_eq!(reads.completed("a", Q, 1, secs(1_000)), Ok(Completed::Use(completion(Q, "a:1"))));
    assert_eq!(reads.reply(Q, stale("a"), secs(1_000)), recompute("a"));
}

#[test]
fn when_an_agent_is_gone_what_was_to_be_read_from_it_is_named_once() {
    let mut reads = tracker();
    for (id, agents) in [("a", vec![P]), ("b", vec![P, Q]), ("c", vec![Q])] {
        for agent in agents {
            reads.wait_for(id, agent).unwrap();
        }
    }
    assert_eq!(reads.agent_gone(P, T0), ["a", "b"]);
    assert!(reads.agent_gone(P, T0).is_empty());
    assert_eq!(reads.reply(P, stale("a"), T0), Verdict::Settled);
    assert_eq!(ids_of(&reads.heartbeats(T0)), [(Q.to_owned(), vec!["c".to_owned()])]);
}

proptest! {
    #[test]
    fn heartbeats_carry_each_waiting_read_once_in_messages_of_bounded_length(
        waiting in prop::collection::btree_set(("[a-z:]{1,40}", 0..3u8), 0..200),
        max_message_len in 43..400usize,
    ) {
        let mut reads = ReadTracker::new(ReadConfig { max_message_len, ..ReadConfig::default() });
        let mut expected: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (id, agent) in &waiting {
            let agent = format!("p{agent}");
            reads.wait_for(id, &agent).unwrap();
            expected.entry(agent).or_default().insert(id.clone());
        }
        let heartbeats = reads.heartbeats(T0);
        let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (agent, ids) in ids_of(&heartbeats) {
            for id in ids {
                prop_assert!(found.entry(agent.clone()).or_default().insert(id), "twice");
            }
        }
        prop_assert_eq!(found, expected);
        prop_assert!(heartbeats.iter().all(|o| o.message.len() <= max_message_len));
        // As few as go in order: no message has room for the first id of the next one.
        for pair in heartbeats.windows(2).filter(|pair| pair[0].agent == pair[1].agent) {
            let first = pair[1].message[3..].split(|b| *b == b',').next().unwrap();
            prop_assert!(pair[0].message.len() + 1 + first.len() > max_message_len);
        }
    }
}

/// A producer whose leases have all ended, and that says so, over a network that loses, doubles, delays and
/// reorders: of the requests about which a reply arrived, each is told to be recomputed exactly once.
#[test]
fn over_a_bad_network_a_stale_read_is_told_exactly_once() {
    for seed in 0..20 {
        let faults = Faults { loss: 0.1, duplicate: 0.3, delay: Duration::from_millis(50), reorder: 0.3, seed };
        let clock = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
        let reader = clock.clone();
        let now = move || Timestamp::from_millis(reader.load(std::sync::atomic::Ordering::Relaxed));
        let network = Network::new(faults, now.clone()).unwrap();
        let (mut prefill, mut decode) = (network.agent(P), network.agent("decode-0"));
        let mut reads = tracker();
        let (mut replied, mut told) = (BTreeSet::new(), Vec::new());
        for step in 0..400 {
            clock.store(step, std::sync::atomic::Ordering::Relaxed);
            if step < 200 {
                let id = format!("cmpl-{step}");
                reads.wait_for(&id, P).unwrap();
                let Ok(Completed::Use(out)) = reads.completed(&id, P, 1, now()) else { panic!() };
                decode.send(&out.agent, &out.message).unwrap();
            }
            let answer = prefill.sender();
            prefill
                .poll(&mut |agent, bytes| {
                    let Ok(Message::Completion(done)) = wire::parse(bytes) else { panic!() };
                    let mut reply = Vec::new();
                    wire::write_stale_reply(done.id, Outcome::Expired, &mut reply).unwrap();
                    answer.send(agent, &reply).unwrap();
                })
                .unwrap();
            decode
                .poll(&mut |agent, bytes| {
                    let Ok(Message::Stale(reply)) = wire::parse(bytes) else { panic!() };
                    replied.insert(reply.id.to_owned());
                    match reads.reply(agent, reply, now()) {
                        Verdict::Recompute { id, .. } => told.push(id.to_string()),
                        Verdict::Settled => {}
                        other => panic!("{other:?}"),
                    }
                })
                .unwrap();
        }
        assert_eq!(network.counters().queued, 0);
        assert!(replied.len() > 150);
        told.sort();
        assert_eq!(told, replied.into_iter().collect::<Vec<_>>());
    }
}
