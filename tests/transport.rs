//! The in-process network: in order without faults, faults as asked for, the same ones for the same seed.

use kvlease::Timestamp;
use kvlease::transport::in_process::{Agent, Counters, Faults, Network};
use kvlease::transport::{NotificationSink, NotificationSource, TransportError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[derive(Clone, Default)]
struct TestClock(Arc<AtomicU64>);

impl TestClock {
    fn set(&self, millis: u64) {
        self.0.store(millis, Ordering::Relaxed);
    }

    fn reader(&self) -> impl Fn() -> Timestamp + Send + Sync + 'static {
        let clock = self.clone();
        move || Timestamp::from_millis(clock.0.load(Ordering::Relaxed))
    }
}

fn quiet() -> Network {
    Network::new(Faults::default(), || Timestamp::ZERO).unwrap()
}

fn received(agent: &mut Agent) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    let n = agent.poll(&mut |from, bytes| all.push((from.to_owned(), bytes.to_vec()))).unwrap();
    assert_eq!(n, all.len());
    all
}

fn numbers(agent: &mut Agent) -> Vec<u32> {
    received(agent).into_iter().map(|(_, bytes)| String::from_utf8(bytes).unwrap().parse().unwrap()).collect()
}

fn balanced(c: Counters) {
    assert_eq!(c.sent + c.duplicated, c.lost + c.dropped + c.delivered + c.queued, "{c:?}");
}

#[test]
fn without_faults_each_message_arrives_once_and_in_order() {
    let network = quiet();
    let (mut a, b) = (network.agent("a"), network.agent("b"));
    for n in 0..100 {
        b.send("a", n.to_string().as_bytes()).unwrap();
    }
    assert_eq!(numbers(&mut a), (0..100).collect::<Vec<_>>());
    assert_eq!(numbers(&mut a), []);
    b.send("a", b"\xff\0").unwrap();
    b.send("a", b"").unwrap();
    assert_eq!(received(&mut a), [("b".to_owned(), b"\xff\0".to_vec()), ("b".to_owned(), Vec::new())]);
    balanced(network.counters());
}

#[test]
fn an_agent_can_send_to_itself_and_answer_from_within_poll() {
    let network = quiet();
    let (mut a, mut b) = (network.agent("a"), network.agent("b"));
    let sender = a.sender();
    b.send("a", b"question").unwrap();
    a.poll(&mut |from, _| sender.send(from, b"answer").unwrap()).unwrap();
    assert_eq!(received(&mut b), [("a".to_owned(), b"answer".to_vec())]);
    a.send("a", b"x").unwrap();
    assert_eq!(received(&mut a).len(), 1);
}

#[test]
fn a_crashed_peer_is_unknown_and_its_successor_starts_empty() {
    let network = quiet();
    let (mut a, mut b) = (network.agent("a"), network.agent("b"));
    b.send("a", b"1").unwrap();
    a.send("b", b"2").unwrap();
    assert!(network.remove("a"));
    assert!(!network.remove("a"));
    assert_eq!(b.send("a", b"3"), Err(TransportError::UnknownAgent { name: "a".into() }));
    assert_eq!(a.send("b", b"4"), Err(TransportError::Closed));
    assert_eq!(a.poll(&mut |_, _| panic!()), Err(TransportError::Closed));
    assert_eq!(numbers(&mut b), [2]);

    let mut restarted = network.agent("a");
    assert_eq!(numbers(&mut restarted), []);
    // The handle of the first life is of no use, and its end does not hurt the second.
    assert_eq!(a.sender().send("b", b"5"), Err(TransportError::Closed));
    drop(a);
    b.send("a", b"6").unwrap();
    assert_eq!(numbers(&mut restarted), [6]);
    assert_eq!(network.counters().dropped, 1);
    balanced(network.counters());

    drop(restarted);
    assert_eq!(b.send("a", b"7"), Err(TransportError::UnknownAgent { name: "a".into() }));
}

#[test]
fn a_name_taken_again_replaces_the_agent_that_had_it() {
    let network = quiet();
    let mut first = network.agent("a");
    let mut second = network.agent("a");
    assert_eq!(first.poll(&mut |_, _| ()), Err(TransportError::Closed));
    second.send("a", b"1").unwrap();
    assert_eq!(numbers(&mut second), [1]);
}

#[test]
fn loss_and_duplication_happen_as_often_as_asked() {
    let faults = Faults { loss: 0.1, duplicate: 0.2, seed: 7, ..Faults::default() };
    let network = Network::new(faults, || Timestamp::ZERO).unwrap();
    let mut a = network.agent("a");
    let b = network.agent("b");
    for n in 0..10_000 {
        b.send("a", n.to_string().as_bytes()).unwrap();
    }
    let got = numbers(&mut a);
    let c = network.counters();
    assert_eq!((c.sent, c.delivered, c.reordered, c.delayed), (10_000, got.len() as u64, 0, 0));
    assert!((900..1_100).contains(&c.lost), "{c:?}");
    assert!((1_600..2_000).contains(&c.duplicated), "{c:?}");
    balanced(c);
    let mut distinct = got.clone();
    distinct.dedup();
    assert_eq!(distinct.len() as u64, 10_000 - c.lost);

    let always = |loss, duplicate| {
        let network = Network::new(Faults { loss, duplicate, ..Faults::default() }, || Timestamp::ZERO).unwrap();
        let mut a = network.agent("a");
        for _ in 0..100 {
            a.send("a", b"1").unwrap();
        }
        numbers(&mut a).len()
    };
    assert_eq!([always(1.0, 0.0), always(0.0, 1.0), always(0.0, 0.0)], [0, 200, 100]);
}

#[test]
fn a_delayed_message_waits_for_the_clock() {
    let clock = TestClock::default();
    let faults = Faults { delay: Duration::from_millis(100), ..Faults::default() };
    let network = Network::new(faults, clock.reader()).unwrap();
    let mut a = network.agent("a");
    for n in 0..1_000 {
        a.send("a", n.to_string().as_bytes()).unwrap();
    }
    let mut got = Vec::new();
    let mut at_once = 0;
    for millis in 0..=100 {
        clock.set(millis);
        let now = numbers(&mut a);
        assert!(now.len() < 50, "{} arrived at {millis} ms", now.len());
        // Those of one millisecond are in the order in which they were sent.
        assert!(now.is_sorted());
        at_once += if millis == 0 { now.len() } else { 0 };
        got.extend(now);
    }
    assert!(!got.is_sorted());
    got.sort();
    assert_eq!(got, (0..1_000).collect::<Vec<_>>());
    assert_eq!(network.counters().delayed, 1_000 - at_once as u64);
}

#[test]
fn reordering_moves_messages_by_a_few_places_and_loses_none() {
    let faults = Faults { reorder: 0.3, ..Faults::default() };
    let network = Network::new(faults, || Timestamp::ZERO).unwrap();
    let mut a = network.agent("a");
    for n in 0..1_000 {
        a.send("a", n.to_string().as_bytes()).unwrap();
    }
    let mut got = numbers(&mut a);
    assert!((200..400).contains(&network.counters().reordered));
    assert!(!got.is_sorted());
    got.sort();
    assert_eq!(got, (0..1_000).collect::<Vec<_>>());
}

#[test]
fn the_same_seed_gives_the_same_faults_and_another_seed_others() {
    let run = |seed| {
        let clock = TestClock::default();
        let faults = Faults { loss: 0.2, duplicate: 0.2, delay: Duration::from_millis(20), reorder: 0.2, seed };
        let network = Network::new(faults, clock.reader()).unwrap();
        let (mut a, b) = (network.agent("a"), network.agent("b"));
        let mut got = Vec::new();
        for n in 0..500 {
            clock.set(n);
            b.send("a", n.to_string().as_bytes()).unwrap();
            got.extend(numbers(&mut a));
        }
        (got, network.counters())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1).0, run(2).0);
}

#[test]
fn many_threads_send_and_nothing_is_lost() {
    let network = quiet();
    let mut a = network.agent("a");
    let b = network.agent("b");
    let mut got = Vec::new();
    std::thread::scope(|s| {
        for t in 0..4 {
            let sender = b.sender();
            s.spawn(move || {
                for n in 0..1_000 {
                    sender.send("a", (t * 1_000 + n).to_string().as_bytes()).unwrap();
                }
            });
        }
        while got.len() < 4_000 {
            got.extend(numbers(&mut a));
        }
    });
    // Each thread's own messages are in order.
    for t in 0..4 {
        assert!(got.iter().filter(|n| **n / 1_000 == t).is_sorted());
    }
    got.sort();
    assert_eq!(got, (0..4_000).collect::<Vec<_>>());
}

#[test]
fn the_traits_can_be_used_as_objects() {
    let network = quiet();
    let mut source: Box<dyn NotificationSource + Send> = Box::new(network.agent("a"));
    let b = network.agent("b");
    let sink: Arc<dyn NotificationSink + Send + Sync> = Arc::new(b.sender());
    sink.send("a", b"1").unwrap();
    assert_eq!(source.poll(&mut |_, _| ()), Ok(1));
}
