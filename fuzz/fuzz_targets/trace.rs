//! Any bytes through the trace reader of the handoff example: arrivals that make sense, or an error that names
//! the line.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use trace::{Arrival, TraceError};

#[allow(dead_code)] // The generator.
#[path = "../../examples/handoff/trace.rs"]
mod trace;

fuzz_target!(|data: &[u8]| {
    let lines: Vec<&[u8]> = data.split(|b| *b == b'\n').collect();
    let blank = |line: &[u8]| line.trim_ascii().is_empty();
    match trace::parse(data, "input") {
        Ok(arrivals) => {
            let mut expected: Vec<Arrival> =
                lines.iter().filter(|line| !blank(line)).filter_map(|line| arrival(line)).collect();
            expected.sort_by_key(|arrival| arrival.at_ms);
            let read = lines.iter().filter(|line| !blank(line)).count();
            assert_eq!(arrivals.len(), read);
            if expected.len() == read {
                assert_eq!(arrivals, expected);
            }
        }
        Err(TraceError::Line { line, .. }) => {
            let (good, broken) = (&lines[..line - 1], lines[line - 1]);
            assert!(!blank(broken));
            // It is that line and no other.
            assert!(matches!(trace::parse(broken, ""), Err(TraceError::Line { line: 1, .. })));
            match trace::parse(&*good.join(&b'\n'), "") {
                Ok(_) | Err(TraceError::Empty { .. }) => {}
                Err(other) => panic!("line {line} was blamed, but {other}"),
            }
        }
        Err(TraceError::Empty { .. }) => assert!(lines.iter().all(|line| blank(line))),
        Err(other) => panic!("reading from memory cannot fail: {other}"),
    }
});

/// One line, read by way of a JSON value; `None` if that cannot hold it, for in fields that the reader skips a
/// number may be too large for it, or a list too deep.
fn arrival(line: &[u8]) -> Option<Arrival> {
    let value: Value = serde_json::from_slice(line).ok()?;
    // A trace line may also be an array of its fields, in order: serde reads both.
    let field = |name: &str, i: usize| match &value {
        Value::Array(fields) => fields[i].clone(),
        object => object[name].clone(),
    };
    let number = |name, i| field(name, i).as_u64().unwrap();
    let input_tokens = number("input_length", 1);
    let blocks = input_tokens.div_ceil(trace::BLOCK_TOKENS).max(1);
    assert!(field("hash_ids", 3).as_array().unwrap().len() as u64 <= blocks);
    assert!(input_tokens <= 10_000_000);
    Some(Arrival {
        at_ms: number("timestamp", 0),
        input_tokens,
        output_tokens: number("output_length", 2),
        blocks: u32::try_from(blocks).unwrap(),
    })
}
