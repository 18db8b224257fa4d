//! The pump, over the in-process network: every class counted, bounded work, nobody answered who has not asked.

use kvlease::consumer::{Completed, ReadConfig, ReadTracker, Verdict};
use kvlease::pump::{Counts, PumpConfig, Pumped};
use kvlease::transport::in_process::{Agent, Faults, Network};
use kvlease::transport::{NotificationSink, NotificationSource, TransportError};
use kvlease::wire::{self, Message, Parser, StaleReply};
use kvlease::{
    Config, ConsumerRegistry, Outcome, Pump, Replies, SendTracker, Stats, Terms, Timestamp, TransferRefusal,
};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

const NOW: Timestamp = Timestamp::from_secs(1);

/// A prefill side with a network around it.
struct Rig {
    network: Network,
    prefill: Agent,
    tracker: SendTracker<u32>,
    pump: Pump,
}

impl Rig {
    fn new(config: PumpConfig) -> Self {
        let network = Network::new(Faults::default(), || NOW).unwrap();
        let prefill = network.agent("prefill");
        let pump = Pump::new(config, Arc::new(ConsumerRegistry::new()));
        Rig { network, prefill, tracker: SendTracker::new(), pump }
    }

    fn track(&self, id: &str, consumers: u32, secs: u64, payload: u32) {
        let terms = Terms::until(Timestamp::from_secs(secs)).consumers(consumers);
        assert!(self.tracker.track(id, terms, payload, NOW).unwrap().release().is_none());
    }

    fn step(&mut self) -> Pumped<u32> {
        self.step_at(NOW)
    }

    fn step_at(&mut self, now: Timestamp) -> Pumped<u32> {
        let sink = self.prefill.sender();
        let pumped = self.pump.step(&self.tracker, &mut self.prefill, &sink, now);
        balanced(&self.pump);
        pumped
    }
}

/// Every message that came is counted once, or waits.
fn balanced(pump: &Pump) {
    let c = pump.totals();
    let done = c.completions.total()
        + c.malformed.total()
        + c.heartbeats.messages
        + c.replies_received
        + c.opaque
        + c.strangers
        + c.dropped;
    assert_eq!(c.received, done + pump.waiting() as u64, "{c:?}");
}

fn payloads(pumped: &Pumped<u32>) -> Vec<u32> {
    pumped.released.iter().map(|release| release.payload).collect()
}

fn heard(agent: &mut Agent) -> Vec<String> {
    let mut all = Vec::new();
    agent.poll(&mut |_, bytes| all.push(String::from_utf8(bytes.to_vec()).unwrap())).unwrap();
    all
}

fn secs(secs: u64) -> Timestamp {
    Timestamp::from_secs(secs)
}

#[test]
fn every_class_of_message_is_counted_as_what_it_is() {
    let mut rig = Rig::new(PumpConfig::default());
    let a = rig.network.agent("a");
    let b = rig.network.agent("b");
    rig.track("one", 1, 30, 1);
    rig.track("two", 2, 30, 2);
    rig.track("expired", 2, 2, 3);
    rig.track("aborted", 1, 30, 4);
    assert_eq!(rig.tracker.sweep(secs(2)).released.len(), 1);
    assert!(rig.tracker.abort("aborted", NOW).release().is_some());

    for message in [
        "one:1",
        "one:1",
        "two:2",
        "two:2",
        "early:1",
        "expired:2",
        "aborted:1",
        "two:9999",
        "HB:two,early,other,one",
        "HB:",
        "PUSH_REG:\u{1}",
        "KVLEASE_STALE:x:expired",
    ] {
        a.send("prefill", message.as_bytes()).unwrap();
    }
    for message in ["one:1", "two:3"] {
        b.send("prefill", message.as_bytes()).unwrap();
    }
    for junk in [&b"hello"[..], b"a:", b"a:x", b":1", b"a:-1", b"a:99999999999", b"\xff\xfe", b"", b"a:0"] {
        a.send("prefill", junk).unwrap();
    }
    let pumped = rig.step();

    let c = pumped.counts;
    assert_eq!(payloads(&pumped), [1, 2]);
    assert_eq!((pumped.poll_error, pumped.waiting, pumped.unreachable.len()), (None, 0, 0));
    assert_eq!(c.received, 23);
    let done = c.completions;
    assert_eq!((done.counted, done.completed, done.duplicate, done.late_duplicate), (1, 1, 1, 1));
    assert_eq!((done.early, done.late_completed, done.late_expired, done.late_aborted), (1, 1, 1, 1));
    assert_eq!((done.unknown, done.conflict, done.refused), (0, 1, 1));
    let bad = c.malformed;
    assert_eq!((bad.empty, bad.not_utf8, bad.no_colon, bad.empty_id), (1, 1, 1, 1));
    assert_eq!((bad.bad_count, bad.count_too_large, bad.zero_count, bad.total()), (3, 1, 1, 9));
    let beats = c.heartbeats;
    // The two heartbeats came before b's messages: `two` was live, `one` had ended.
    assert_eq!((beats.messages, beats.extended, beats.early, beats.late, beats.ids()), (2, 1, 2, 1, 4));
    assert_eq!((c.opaque, c.replies_received), (1, 1));
    assert_eq!((&*pumped.opaque[0].agent, &pumped.opaque[0].message[..]), ("a", &b"PUSH_REG:\x01"[..]));
    let reply = &pumped.replies[0];
    assert_eq!((&*reply.agent, reply.as_message()), ("a", StaleReply { id: "x", outcome: Outcome::Expired }));
    assert_eq!(rig.pump.totals(), c);
}

#[test]
fn one_peers_junk_harms_no_message_of_another() {
    let mut rig = Rig::new(PumpConfig::default());
    let junk = rig.network.agent("junk");
    let good = rig.network.agent("good");
    for n in 0..200 {
        rig.track(&format!("r{n}"), 1, 30, n);
    }
    for n in 0..200_u8 {
        junk.send("prefill", &[n; 100]).unwrap();
        junk.send("prefill", &vec![b'x'; 1 << 16]).unwrap();
        junk.send("prefill", format!("r{n}:{n}:x").as_bytes()).unwrap();
        good.send("prefill", format!("r{n}:1").as_bytes()).unwrap();
    }
    let pumped = rig.step();
    assert_eq!(payloads(&pumped), (0..200).collect::<Vec<_>>());
    assert_eq!((pumped.counts.malformed.total(), pumped.counts.completions.completed), (600, 200));
}

#[test]
fn a_step_does_no_more_than_its_limit_and_the_rest_waits_in_order() {
    let mut rig = Rig::new(PumpConfig { work_limit: 10, ..PumpConfig::default() });
    let a = rig.network.agent("a");
    for n in 0..25 {
        rig.track(&format!("r{n}"), 1, 30, n);
        a.send("prefill", format!("r{n}:1").as_bytes()).unwrap();
    }
    assert_eq!(payloads(&rig.step()), (0..10).collect::<Vec<_>>());
    assert_eq!(rig.pump.waiting(), 15);
    // More comes meanwhile; it is left where it is as long as a step's work waits.
    rig.track("last", 1, 30, 99);
    a.send("prefill", b"last:1").unwrap();
    let second = rig.step();
    assert_eq!((payloads(&second), second.waiting, second.counts.received), ((10..20).collect(), 5, 0));
    assert_eq!(payloads(&rig.step()), [20, 21, 22, 23, 24, 99]);
    assert_eq!(rig.step().counts, Counts::default());
}

#[test]
fn a_heartbeat_without_ids_is_work_too() {
    let mut rig = Rig::new(PumpConfig { work_limit: 2, ..PumpConfig::default() });
    let a = rig.network.agent("a");
    for _ in 0..5 {
        a.send("prefill", b"HB:").unwrap();
    }
    for (messages, waiting) in [(2, 3), (2, 1), (1, 0)] {
        let pumped = rig.step();
        assert_eq!((pumped.counts.heartbeats.messages, pumped.waiting), (messages, waiting));
    }
}

#[test]
fn a_heartbeat_of_thousands_of_ids_is_done_in_parts() {
    let mut rig = Rig::new(PumpConfig { work_limit: 300, ..PumpConfig::default() });
    let a = rig.network.agent("a");
    let ids: Vec<String> = (0..2_000).map(|n| format!("cmpl-{n}:x")).collect();
    for (n, id) in ids.iter().enumerate() {
        rig.track(id, 1, 30, n as u32);
    }
    a.send("prefill", format!("HB:{},", ids.join(",")).as_bytes()).unwrap();
    a.send("prefill", b"cmpl-0:x:1").unwrap();
    for steps in 0..6 {
        let pumped = rig.step();
        assert_eq!((pumped.counts.heartbeats.extended, pumped.counts.heartbeats.messages), (300, 0), "{steps}");
        assert_eq!(pumped.waiting, 2);
    }
    let last = rig.step();
    assert_eq!((last.counts.heartbeats.extended, last.counts.heartbeats.messages), (200, 1));
    assert_eq!((payloads(&last), last.waiting), (vec![0], 0));
    // Each was renewed once, to now and 30 s.
    assert_eq!(rig.pump.totals().heartbeats.ids(), 2_000);
    assert!(rig.tracker.leases().all(|lease| lease.deadline == secs(31)));
    assert_eq!(rig.tracker.stats().live, 1_999);
}

#[test]
fn only_who_has_asked_for_replies_gets_them() {
    let mut rig = Rig::new(PumpConfig::default());
    let agents = Arc::clone(rig.pump.agents());
    agents.handshake("none", Replies::None).unwrap();
    agents.handshake("stale", Replies::Stale).unwrap();
    agents.handshake("all", Replies::All).unwrap();
    let names = ["never", "none", "stale", "all"];
    let mut ranks = names.map(|name| rig.network.agent(name));
    rig.track("good", 4, 30, 1);
    rig.track("late", 4, 2, 2);
    let _ = rig.tracker.sweep(secs(2));
    for rank in &ranks {
        for message in ["good:4", "late:4", "not-tracked:4", "junk"] {
            rank.send("prefill", message.as_bytes()).unwrap();
        }
    }
    let pumped = rig.step();
    assert_eq!((pumped.counts.sent_stale, pumped.counts.sent_good, pumped.counts.unsent), (2, 1, 0));
    let heard = ranks.each_mut().map(heard);
    assert_eq!(heard[0..2], [Vec::<String>::new(), Vec::new()]);
    assert_eq!(heard[2], ["KVLEASE_STALE:late:expired"]);
    assert_eq!(heard[3], ["KVLEASE_STALE:good:completed", "KVLEASE_STALE:late:expired"]);

    // Who is forgotten has to ask again.
    agents.forget("stale");
    ranks[2].send("prefill", b"late:4").unwrap();
    assert_eq!(rig.step().counts.sent_stale, 0);
}

#[test]
fn a_read_of_a_request_that_is_forgotten_is_not_called_good_however_often_it_is_asked_about() {
    let mut rig = Rig::new(PumpConfig::default());
    rig.pump.agents().handshake("decode", Replies::All).unwrap();
    let mut decode = rig.network.agent("decode");
    rig.track("r", 2, 2, 0);
    // It expires, and its end is forgotten.
    let _ = rig.tracker.sweep(secs(2));
    let _ = rig.tracker.sweep(secs(100));
    assert_eq!(rig.tracker.lease("r"), None);
    for message in ["r:2", "r:2", "r:3", "never:1", "never:1"] {
        decode.send("prefill", message.as_bytes()).unwrap();
        let _ = rig.step_at(secs(100));
    }
    assert_eq!(heard(&mut decode), Vec::<String>::new());
    assert_eq!(rig.pump.totals().completions.early, 5, "{:?}", rig.pump.totals());
    // One that is tracked is, also when it is said again.
    rig.track("s", 2, 200, 0);
    for _ in 0..2 {
        decode.send("prefill", b"s:2").unwrap();
        let _ = rig.step_at(secs(100));
        assert_eq!(heard(&mut decode), ["KVLEASE_STALE:s:completed"]);
    }
}

#[test]
fn a_read_that_was_stale_is_recomputed_whether_its_rank_waits_for_the_verdict_or_not() {
    for waits in [false, true] {
        let mut rig = Rig::new(PumpConfig::default());
        let replies = if waits { Replies::All } else { Replies::Stale };
        rig.pump.agents().handshake("decode", replies).unwrap();
        let mut decode = rig.network.agent("decode");
        let verdict_wait = waits.then_some(Duration::from_secs(5));
        let mut reads = ReadTracker::new(ReadConfig { verdict_wait, ..ReadConfig::default() });
        for (id, secs) in [("late", 2), ("good", 30)] {
            rig.track(id, 1, secs, 0);
            reads.wait_for(id, "prefill").unwrap();
        }
        let _ = rig.tracker.sweep(secs(2));

        let mut used = Vec::new();
        for id in ["late", "good"] {
            let message = match reads.completed(id, "prefill", 1, NOW).unwrap() {
                Completed::Use(message) => {
                    used.push(id.to_owned());
                    message
                }
                Completed::AwaitVerdict { message, .. } => message,
                other => panic!("{other:?}"),
            };
            decode.send(&message.agent, &message.message).unwrap();
        }
        let _ = rig.step();
        decode
            .poll(&mut |agent, bytes| {
                let Ok(Message::Stale(reply)) = wire::parse(bytes) else { panic!() };
                match reads.reply(agent, reply, NOW) {
                    Verdict::Use { id } => used.push(id.to_string()),
                    Verdict::Recompute { id, outcome } => {
                        assert_eq!((id.as_str(), outcome), ("late", Outcome::Expired));
                        used.retain(|used| used != "late");
                        used.push("recomputed".into());
                    }
                    other => panic!("{other:?}"),
                }
            })
            .unwrap();
        used.sort();
        assert_eq!(used, ["good", "recomputed"], "waits: {waits}");
        assert!(reads.unanswered(secs(60)).is_empty());
    }
}

#[test]
fn an_agent_that_cannot_be_answered_is_named_once_and_ends_with_its_leases() {
    let mut rig = Rig::new(PumpConfig::default());
    rig.pump.agents().handshake("dead", Replies::All).unwrap();
    let dead = rig.network.agent("dead");
    for n in 0..3 {
        rig.track(&format!("r{n}"), 2, 30, n);
        dead.send("prefill", format!("r{n}:2").as_bytes()).unwrap();
    }
    rig.track("other", 2, 30, 9);
    rig.network.remove("dead");
    let pumped = rig.step();
    assert_eq!((pumped.counts.completions.counted, pumped.counts.unsent, pumped.counts.sent_good), (3, 3, 0));
    assert_eq!(pumped.unreachable, ["dead".into()]);

    let mut ended = rig.pump.agents_gone(&["dead", "nobody"], &rig.tracker, NOW);
    ended.sort_by_key(|release| release.payload);
    assert!(ended.iter().all(|release| release.outcome == Outcome::Expired));
    assert_eq!(ended.iter().map(|release| release.payload).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!((rig.pump.agents().get("dead"), rig.tracker.stats().live), (None, 1));
}

#[test]
fn an_agent_that_comes_back_under_its_name_is_another_consumer() {
    let mut rig = Rig::new(PumpConfig::default());
    rig.track("r", 2, 30, 1);
    let first = rig.network.agent("decode");
    first.send("prefill", b"r:2").unwrap();
    let _ = rig.step();
    // Only forgotten: its leases are left alone.
    let before = rig.pump.agents().forget("decode").unwrap();
    first.send("prefill", b"r:2").unwrap();
    assert_eq!(payloads(&rig.step()), [1]);
    assert_ne!(rig.pump.agents().get("decode"), Some(before));
}

#[test]
fn agents_that_are_silent_for_long_are_forgotten_unless_they_have_shaken_hands() {
    let forget_after = Some(Duration::from_secs(100));
    let mut rig = Rig::new(PumpConfig { forget_after, ..PumpConfig::default() });
    let agents = Arc::clone(rig.pump.agents());
    agents.handshake("known", Replies::Stale).unwrap();
    agents.intern("named by the engine").unwrap();
    let all = ["known", "silent", "busy"].map(|name| rig.network.agent(name));
    for agent in &all {
        agent.send("prefill", b"x:1").unwrap();
    }
    let mut forgotten = 0;
    for at in (1..300).step_by(10) {
        all[2].send("prefill", b"x:1").unwrap();
        forgotten += rig.step_at(secs(at)).counts.forgotten;
        // After a quarter of the time at the latest.
        assert_eq!(forgotten > 0, agents.get("silent").is_none());
        assert!(agents.get("silent").is_none() == (at > 100) || (101..=126).contains(&at), "{at}");
    }
    assert_eq!((forgotten, agents.len()), (1, 3));
    assert!(agents.get("known").is_some() && agents.get("busy").is_some());
}

#[test]
fn what_finds_no_room_is_counted_and_a_message_that_is_too_long_takes_none() {
    let config =
        PumpConfig { waiting_limit: 1_000, work_limit: 1, parser: Parser::new().max_len(500), ..PumpConfig::default() };
    let mut rig = Rig::new(config);
    let a = rig.network.agent("a");
    let id = "x".repeat(298);
    for _ in 0..5 {
        a.send("prefill", format!("{id}:1").as_bytes()).unwrap(); // 300 bytes
    }
    a.send("prefill", &[b'x'; 501]).unwrap();
    a.send("prefill", b"PUSH_REG:").unwrap();
    let pumped = rig.step();
    assert_eq!((pumped.counts.received, pumped.counts.dropped, pumped.counts.malformed.too_long), (7, 2, 1));
    assert_eq!(pumped.waiting, 3);
    for _ in 0..3 {
        let _ = rig.step();
    }
    assert_eq!((rig.pump.totals().opaque, rig.pump.waiting()), (1, 0));
}

#[test]
fn more_names_than_the_registry_has_room_for_are_strangers() {
    let network = Network::new(Faults::default(), || NOW).unwrap();
    let mut prefill = network.agent("prefill");
    let mut pump = Pump::new(PumpConfig::default(), Arc::new(ConsumerRegistry::with_limits(2, 8)));
    let tracker = SendTracker::new();
    let _ = tracker.track("r", Terms::until(secs(30)).consumers(3), 7_u32, NOW).unwrap();
    for name in ["a", "b", "c", "a-very-long-name"] {
        network.agent(name).send("prefill", b"r:3").unwrap();
    }
    let sink = prefill.sender();
    let pumped = pump.step(&tracker, &mut prefill, &sink, NOW);
    assert_eq!((pumped.counts.completions.counted, pumped.counts.strangers), (2, 2));
    balanced(&pump);
}

#[test]
fn a_lease_that_completes_under_a_transfer_is_released_by_its_end() {
    let mut rig = Rig::new(PumpConfig::default());
    let a = rig.network.agent("a");
    rig.track("r", 1, 30, 5);
    let transfer = rig.tracker.begin_transfer("r").unwrap();
    a.send("prefill", b"r:1").unwrap();
    let sink = rig.prefill.sender();
    let pumped = rig.pump.step(&rig.tracker, &mut rig.prefill, &sink, NOW);
    assert_eq!((pumped.released.len(), pumped.counts.after_transfer), (0, 1));
    assert_eq!(rig.tracker.begin_transfer("r").unwrap_err(), TransferRefusal::Late(Outcome::Completed));
    assert_eq!(transfer.end(NOW).unwrap().payload, 5);
}

#[test]
fn the_count_in_a_message_is_not_believed_where_it_is_told_not_to_be() {
    let mut rig = Rig::new(PumpConfig { expected_from_message: false, ..PumpConfig::default() });
    let a = rig.network.agent("a");
    rig.track("r", 1, 30, 5);
    a.send("prefill", b"r:8").unwrap();
    let pumped = rig.step();
    assert_eq!((payloads(&pumped), pumped.counts.completions.conflict), (vec![5], 0));
}

/// Hands out what it was given, then fails.
struct Failing(VecDeque<Vec<u8>>, TransportError);

impl NotificationSource for Failing {
    fn poll(&mut self, on: &mut dyn FnMut(&str, &[u8])) -> Result<usize, TransportError> {
        self.0.drain(..).for_each(|message| on("a", &message));
        Err(self.1.clone())
    }
}

impl NotificationSink for Failing {
    fn send(&self, _: &str, _: &[u8]) -> Result<(), TransportError> {
        Err(self.1.clone())
    }
}

#[test]
fn a_poll_that_fails_is_told_and_what_it_had_brought_is_done() {
    let error = TransportError::Backend("cable".into());
    let tracker = SendTracker::new();
    let _ = tracker.track("r", Terms::until(secs(30)).consumers(1), 3_u32, NOW).unwrap();
    let agents = Arc::new(ConsumerRegistry::new());
    agents.handshake("a", Replies::All).unwrap();
    let mut pump = Pump::new(PumpConfig::default(), agents);
    let mut source = Failing([b"r:1".to_vec(), b"r:1".to_vec()].into(), error.clone());
    let sink = Failing(VecDeque::new(), error.clone());
    let pumped = pump.step(&tracker, &mut source, &sink, NOW);
    assert_eq!((payloads(&pumped), pumped.poll_error), (vec![3], Some(error.clone())));
    assert_eq!((pumped.counts.unsent, pumped.unreachable), (2, vec!["a".into()]));
    // This side is closed: that is not the peer's fault.
    source.0.push_back(b"r:1".to_vec());
    let closed = Failing(VecDeque::new(), TransportError::Closed);
    let pumped = pump.step(&tracker, &mut source, &closed, NOW);
    assert_eq!((pumped.counts.unsent, pumped.unreachable.len()), (1, 0));
    balanced(&pump);
}

/// Whatever comes, and however little is done at once, the tracker ends up the same.
#[test]
fn any_messages_in_any_portions_do_the_same() {
    let message = prop_oneof![
        (0..20_u32, 1..4_u32).prop_map(|(id, n)| format!("r{id}:{n}").into_bytes()),
        prop::collection::vec(0..20_u32, 0..12).prop_map(|ids| {
            let ids: Vec<String> =
                ids.into_iter().map(|id| if id == 7 { String::new() } else { format!("r{id}") }).collect();
            format!("HB:{}", ids.join(",")).into_bytes()
        }),
        prop::collection::vec(any::<u8>(), 0..20),
        Just(b"PUSH_REG:x".to_vec()),
        Just(b"KVLEASE_STALE:r1:expired".to_vec()),
    ];
    let messages = prop::collection::vec((0..3_usize, message), 0..60);
    let run = |messages: &[(usize, Vec<u8>)], work_limit: usize| -> (Counts, Stats, Vec<u32>, Vec<String>) {
        let config = Config { early_capacity: 6, ..Config::default() };
        let mut rig = Rig::new(PumpConfig { work_limit, ..PumpConfig::default() });
        rig.tracker = SendTracker::with_config(config);
        rig.pump.agents().handshake("a1", Replies::All).unwrap();
        let mut agents = ["a0", "a1", "a2"].map(|name| rig.network.agent(name));
        (0..10).for_each(|n| rig.track(&format!("r{n}"), 1 + n % 3, 30, n));
        for (from, bytes) in messages {
            agents[*from].send("prefill", bytes).unwrap();
        }
        let mut released = Vec::new();
        loop {
            let pumped = rig.step();
            released.extend(payloads(&pumped));
            if pumped.counts == Counts::default() && pumped.waiting == 0 {
                break;
            }
        }
        (rig.pump.totals(), rig.tracker.stats(), released, heard(&mut agents[1]))
    };
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) };
    proptest!(config, |(messages in messages, limit in 1..9_usize)| {
        let whole = run(&messages, usize::MAX);
        prop_assert_eq!(whole.0.received, messages.len() as u64);
        prop_assert_eq!(run(&messages, limit), whole);
    });
}
