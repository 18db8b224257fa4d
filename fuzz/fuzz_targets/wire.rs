//! Any bytes through the wire parser: it is total, it means what it says, and what is written is read back.
//!
//! The first byte chooses how the rest is used.

#![no_main]

use kvlease::Outcome;
use kvlease::wire::{
    self, HEARTBEAT_PREFIX, Malformed, Message, PUSH_REGISTRATION_PREFIX, Parser, STALE_REPLY_PREFIX, Unsendable,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&how, rest)) = data.split_first() else { return };
    match how % 4 {
        0 | 1 => read(&Parser::new(), rest, wire::DEFAULT_MAX_LEN),
        2 => {
            // A limit and an opaque prefix of the input's own choice.
            let Some((&[max, prefix], rest)) = rest.split_first_chunk() else { return };
            let (max, prefix) = (max as usize, &rest[..rest.len().min(prefix as usize % 8)]);
            let parser = Parser::new().max_len(max).opaque_prefix(prefix);
            assert_eq!(parser.parse(rest), Ok(Message::Opaque(rest)));
            read(&parser.no_opaque_prefix(), rest, max);
        }
        _ => write(rest),
    }
});

/// What the parser says of these bytes is so.
fn read(parser: &Parser, bytes: &[u8], max: usize) {
    let mut again = Vec::new();
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    match parser.parse(bytes) {
        Ok(Message::Completion(done)) => {
            let digits = text.strip_prefix(done.id).unwrap().strip_prefix(':').unwrap();
            assert!(!digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()));
            assert_eq!(digits.trim_start_matches('0'), done.expected.to_string());
            match wire::write_completion(done.id, done.expected, &mut again) {
                Ok(()) => assert_eq!(wire::parse(&again), Ok(Message::Completion(done))),
                // Only a parser that was told so takes it for a completion.
                Err(Unsendable::ReservedPrefix { prefix: PUSH_REGISTRATION_PREFIX }) => {
                    assert_eq!(wire::parse(bytes), Ok(Message::Opaque(bytes)));
                }
                Err(other) => panic!("{other}"),
            }
        }
        Ok(Message::Heartbeat(heartbeat)) => {
            let list = text.strip_prefix(HEARTBEAT_PREFIX).unwrap();
            assert!(heartbeat.ids().all(|id| !id.is_empty() && !id.contains(',')));
            let length: usize = heartbeat.ids().map(str::len).sum();
            assert_eq!(length + list.matches(',').count(), list.len());
            wire::write_heartbeat(heartbeat.ids(), &mut again).unwrap();
            let Ok(Message::Heartbeat(read)) = wire::parse(&again) else { panic!("{again:?}") };
            assert!(read.ids().eq(heartbeat.ids()));
        }
        Ok(Message::Stale(reply)) => {
            assert!(!reply.id.is_empty());
            wire::write_stale_reply(reply.id, reply.outcome, &mut again).unwrap();
            assert_eq!(again, bytes, "there is one way to say it");
        }
        Ok(Message::Opaque(whole)) => {
            assert!(whole == bytes && whole.starts_with(PUSH_REGISTRATION_PREFIX.as_bytes()));
        }
        Err(malformed) => {
            let behind_prefix = text.strip_prefix(STALE_REPLY_PREFIX);
            let last_colon = || behind_prefix.unwrap_or(text).rsplit_once(':');
            match malformed {
                Malformed::Empty => assert!(bytes.is_empty()),
                Malformed::TooLong { len, max: limit } => assert!(len == bytes.len() && limit == max && len > max),
                Malformed::NotUtf8 { valid_up_to } => {
                    assert!(std::str::from_utf8(&bytes[..valid_up_to]).is_ok());
                    assert!(std::str::from_utf8(bytes).is_err_and(|e| e.valid_up_to() == valid_up_to));
                }
                Malformed::NoColon => assert!(last_colon().is_none()),
                Malformed::EmptyId => assert!(last_colon().is_some_and(|(id, _)| id.is_empty())),
                Malformed::BadCount => {
                    let count = last_colon().unwrap().1;
                    assert!(count.is_empty() || count.bytes().any(|b| !b.is_ascii_digit()));
                }
                Malformed::CountTooLarge => {
                    let count = last_colon().unwrap().1.trim_start_matches('0');
                    assert!(count.parse::<u128>().is_ok_and(|n| n > u32::MAX.into()) || count.len() > 38);
                }
                Malformed::ZeroCount => assert!(last_colon().unwrap().1.bytes().all(|b| b == b'0')),
                Malformed::BadOutcome => {
                    let outcome = last_colon().unwrap().1;
                    assert!(behind_prefix.is_some() && !["completed", "expired", "aborted"].contains(&outcome));
                }
                other => panic!("a kind of malformed message that this target does not know: {other:?}"),
            }
        }
    }
}

/// Whatever is written is read back, and what cannot be is refused and leaves nothing behind.
fn write(input: &[u8]) {
    let Some((count, rest)) = input.split_first_chunk() else { return };
    let expected = u32::from_le_bytes(*count);
    let text = String::from_utf8_lossy(rest);
    // The receiver reads only its own default prefix, so a message is written behind other bytes here.
    const BEFORE: &[u8] = b"before";
    let written = |result: Result<(), Unsendable>, out: &[u8]| match result {
        Ok(()) => Some(out.strip_prefix(BEFORE).expect("what was there stays").to_vec()),
        Err(_) => {
            assert_eq!(out, BEFORE, "a refused message leaves nothing");
            None
        }
    };

    let mut out = BEFORE.to_vec();
    let result = wire::write_completion(&text, expected, &mut out);
    if let Some(message) = written(result, &out) {
        match wire::parse(&message) {
            Ok(Message::Completion(done)) => assert_eq!((done.id, done.expected), (&*text, expected)),
            other => panic!("{other:?}"),
        }
    }

    let ids: Vec<&str> = text.split('\n').collect();
    let mut out = BEFORE.to_vec();
    let result = wire::write_heartbeat(ids.iter().copied(), &mut out);
    if let Some(message) = written(result, &out) {
        let Ok(Message::Heartbeat(read)) = wire::parse(&message) else { panic!("{message:?}") };
        assert!(read.ids().eq(ids.iter().copied()));
    }

    let outcome = [Outcome::Completed, Outcome::Expired, Outcome::Aborted][expected as usize % 3];
    let mut out = BEFORE.to_vec();
    let result = wire::write_stale_reply(&text, outcome, &mut out);
    assert_eq!(result.is_err(), text.is_empty());
    if let Some(message) = written(result, &out) {
        match wire::parse(&message) {
            Ok(Message::Stale(reply)) => assert_eq!((reply.id, reply.outcome), (&*text, outcome)),
            other => panic!("{other:?}"),
        }
    }

    // `check_id` promises that both kinds of message can carry the id.
    let both = wire::write_completion(&text, 1, &mut Vec::new()).and(wire::write_heartbeat([&*text], &mut Vec::new()));
    assert_eq!(wire::check_id(&text).is_ok(), both.is_ok());
}
