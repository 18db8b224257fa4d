//! The wire format: total on any bytes, and the same message there and back.

use kvlease::Outcome;
use kvlease::wire::{self, Malformed, Message, Parser, Unsendable};
use proptest::prelude::*;

/// Ids as clients send them: what the format is made of turns up in them all the time.
fn id() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("HB".to_owned()),
        Just("KVLEASE_STALE".to_owned()),
        Just("PUSH_REG".to_owned()),
        Just(":".to_owned()),
        Just(",".to_owned()),
        Just("expired".to_owned()),
        "[0-9]{1,3}",
        any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![Just(Outcome::Completed), Just(Outcome::Expired), Just(Outcome::Aborted)]
}

/// Some valid message.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let completion = (id(), 1..=u32::MAX).prop_map(|(id, n)| format!("{id}:{n}").into_bytes());
    let heartbeat = prop::collection::vec(id(), 0..5).prop_map(|ids| format!("HB:{}", ids.join(",")).into_bytes());
    let stale = (id(), outcome()).prop_map(|(id, o)| format!("KVLEASE_STALE:{id}:{o}").into_bytes());
    prop_oneof![completion, heartbeat, stale]
}

/// Whatever comes out must be borrowed from, and agree with, what went in.
fn check(bytes: &[u8]) -> Result<(), TestCaseError> {
    match wire::parse(bytes) {
        Ok(Message::Completion(c)) => {
            prop_assert!(!c.id.is_empty() && c.expected >= 1);
            let start = format!("{}:", c.id);
            prop_assert!(bytes.starts_with(start.as_bytes()));
            prop_assert!(bytes.ends_with(c.expected.to_string().as_bytes()));
        }
        Ok(Message::Heartbeat(h)) => {
            prop_assert!(bytes.starts_with(b"HB:"));
            prop_assert!(h.ids().all(|id| !id.is_empty() && !id.contains(',')));
            // Nothing but commas is lost.
            let commas = bytes.iter().filter(|b| **b == b',').count();
            prop_assert_eq!(3 + commas + h.ids().map(str::len).sum::<usize>(), bytes.len());
        }
        Ok(Message::Stale(s)) => {
            let same = format!("KVLEASE_STALE:{}:{}", s.id, s.outcome);
            prop_assert_eq!(same.as_bytes(), bytes);
        }
        Ok(Message::Opaque(all)) => {
            prop_assert!(all.starts_with(b"PUSH_REG:"));
            prop_assert_eq!(all, bytes);
        }
        Err(e) => prop_assert!(!e.to_string().is_empty()),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn parsing_is_total(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        check(&bytes)?;
    }

    #[test]
    fn parsing_is_total_on_what_is_almost_a_message(
        mut bytes in message(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<Option<u8>>()), 0..4),
    ) {
        check(&bytes)?;
        for (at, edit) in edits {
            let at = at.index(bytes.len() + 1);
            match edit {
                Some(b) if at < bytes.len() => bytes[at] = b,
                Some(b) => bytes.push(b),
                None => bytes.truncate(at),
            }
            check(&bytes)?;
        }
    }

    #[test]
    fn a_completion_comes_back_as_it_was_or_is_refused(id in id(), expected in any::<u32>()) {
        let mut out = Vec::new();
        match wire::write_completion(&id, expected, &mut out) {
            Ok(()) => {
                let message = wire::parse(&out);
                prop_assert!(matches!(message, Ok(Message::Completion(c)) if c.id == id && c.expected == expected));
            }
            Err(e) => {
                prop_assert!(out.is_empty());
                // No more is refused than has to be.
                let forced = format!("{id}:{expected}");
                let same = matches!(
                    wire::parse(forced.as_bytes()),
                    Ok(Message::Completion(c)) if c.id == id && c.expected == expected
                );
                prop_assert!(!same, "{e} for {forced:?}");
            }
        }
    }

    #[test]
    fn a_heartbeat_comes_back_as_it_was_or_is_refused(ids in prop::collection::vec(id(), 0..6)) {
        let mut out = Vec::new();
        match wire::write_heartbeat(ids.iter().map(String::as_str), &mut out) {
            Ok(()) => {
                let Ok(Message::Heartbeat(heartbeat)) = wire::parse(&out) else { panic!("{out:?}") };
                prop_assert!(heartbeat.ids().eq(ids.iter().map(String::as_str)));
            }
            Err(e) => {
                prop_assert!(out.is_empty());
                prop_assert!(ids.iter().any(|id| id.is_empty() || id.contains(',')), "{e}");
            }
        }
    }

    #[test]
    fn a_stale_reply_comes_back_as_it_was(id in id(), outcome in outcome()) {
        let mut out = Vec::new();
        match wire::write_stale_reply(&id, outcome, &mut out) {
            Ok(()) => {
                let message = wire::parse(&out);
                prop_assert!(matches!(message, Ok(Message::Stale(s)) if s.id == id && s.outcome == outcome));
            }
            Err(e) => prop_assert!(e == Unsendable::EmptyId && id.is_empty()),
        }
    }

    #[test]
    fn an_opaque_message_is_untouched(rest in prop::collection::vec(any::<u8>(), 0..64)) {
        let bytes = [b"REG\xff".as_slice(), &rest].concat();
        let parser = Parser::new().opaque_prefix(*b"REG\xff");
        prop_assert_eq!(parser.parse(&bytes), Ok(Message::Opaque(&bytes)));
    }
}

/// F9: each is malformed, none panics, and the next good message works.
#[test]
fn f9_what_kills_vllm_is_malformed() {
    let junk = |b: u8| vec![b; 1 << 20];
    let cases: [(&[u8], Malformed); 12] = [
        (b"hello", Malformed::NoColon),
        (b"a:", Malformed::BadCount),
        (b"a:x", Malformed::BadCount),
        (b":1", Malformed::EmptyId),
        (b"a:-1", Malformed::BadCount),
        (b"a:99999999999", Malformed::CountTooLarge),
        (b"\xff\xfe", Malformed::NotUtf8 { valid_up_to: 0 }),
        (b"", Malformed::Empty),
        (&junk(b'x'), Malformed::NoColon),
        (&junk(b':'), Malformed::BadCount),
        (&junk(0xff), Malformed::NotUtf8 { valid_up_to: 0 }),
        (&junk(0), Malformed::NoColon),
    ];
    for (bytes, malformed) in cases {
        assert_eq!(wire::parse(bytes), Err(malformed), "{:?}", &bytes[..bytes.len().min(20)]);
        assert!(matches!(wire::parse(b"a:1"), Ok(Message::Completion(c)) if c.id == "a" && c.expected == 1));
    }
}

/// F26, on the wire: ids of any length and content work in completions, and are never cut.
#[test]
fn f26_ids_of_any_kind_survive_a_completion() {
    for id in ["x".repeat(110), "x".repeat(1 << 10), "x".repeat(1 << 20), "a:b:c".into(), "a,b".into(), "\0💥:1".into()]
    {
        let mut out = Vec::new();
        wire::write_completion(&id, 7, &mut out).unwrap();
        assert!(matches!(wire::parse(&out), Ok(Message::Completion(c)) if c.id == id && c.expected == 7));
    }
    assert_eq!(wire::write_completion("", 7, &mut Vec::new()), Err(Unsendable::EmptyId));
}
