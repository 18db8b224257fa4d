//! When requests arrive and how long they are: read from a Mooncake trace, or generated in its shape.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::Deserialize;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

/// Tokens in one KV-cache block, as in the Mooncake traces.
pub const BLOCK_TOKENS: u64 = 512;

/// What one request may hold at most. Past it a line is taken for broken, not for a very long prompt.
const MAX_INPUT_TOKENS: u64 = 10_000_000;

/// The latest time stamp accepted: 30 days.
const MAX_TIMESTAMP_MS: u64 = 30 * 24 * 3_600_000;

/// One request of the trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// Milliseconds since the trace began.
    pub at_ms: u64,
    /// Tokens of the prompt.
    pub input_tokens: u64,
    /// Tokens of the answer.
    pub output_tokens: u64,
    /// KV-cache blocks that hold the prompt.
    pub blocks: u32,
}

/// One line of a Mooncake trace.
#[derive(Deserialize)]
struct Line {
    timestamp: u64,
    input_length: u64,
    output_length: u64,
    hash_ids: Vec<u64>,
}

impl Line {
    fn check(&self) -> Result<(), String> {
        if self.timestamp > MAX_TIMESTAMP_MS {
            return Err(format!("timestamp {} ms is more than 30 days from the start", self.timestamp));
        }
        if self.input_length > MAX_INPUT_TOKENS {
            return Err(format!("input_length {} is more than {MAX_INPUT_TOKENS} tokens", self.input_length));
        }
        let needed = self.input_length.div_ceil(BLOCK_TOKENS);
        if self.hash_ids.len() as u64 > needed.max(1) {
            let blocks = self.hash_ids.len();
            return Err(format!("{blocks} hash_ids, but input_length {} fills {needed} blocks", self.input_length));
        }
        Ok(())
    }
}

/// Why a trace cannot be used. Nothing has been started when this comes.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("cannot open the trace {path}: {source}")]
    Open { path: String, source: io::Error },
    #[error("cannot read the trace {path}, line {line}: {source}")]
    Read { path: String, line: usize, source: io::Error },
    #[error("{path}, line {line}: {what}")]
    Line { path: String, line: usize, what: String },
    #[error("the trace {path} holds no requests")]
    Empty { path: String },
}

/// Reads a whole trace, in order of arrival. The first broken line ends it, with its number.
pub fn read(path: &Path) -> Result<Vec<Arrival>, TraceError> {
    let name = path.display().to_string();
    let file = File::open(path).map_err(|source| TraceError::Open { path: name.clone(), source })?;
    parse(BufReader::new(file), &name)
}

/// As [`read`], of what has been opened already; `name` is what errors call it.
pub fn parse(mut input: impl BufRead, name: &str) -> Result<Vec<Arrival>, TraceError> {
    let path = || name.to_owned();
    let mut arrivals = Vec::new();
    let mut bytes = Vec::new();
    for line in 1.. {
        bytes.clear();
        let read = input.read_until(b'\n', &mut bytes);
        if read.map_err(|source| TraceError::Read { path: path(), line, source })? == 0 {
            break;
        }
        if bytes.trim_ascii().is_empty() {
            continue;
        }
        // Text as a whole: serde_json does not look at the strings in fields that nobody reads.
        let parsed: Result<Line, String> = std::str::from_utf8(&bytes)
            .map_err(|e| format!("not UTF-8, column {}", e.valid_up_to() + 1))
            .and_then(|text| serde_json::from_str(text).map_err(|e| without_line(&e)));
        let request = parsed
            .and_then(|request| request.check().map(|()| request))
            .map_err(|what| TraceError::Line { path: path(), line, what })?;
        arrivals.push(Arrival {
            at_ms: request.timestamp,
            input_tokens: request.input_length,
            output_tokens: request.output_length,
            blocks: request.input_length.div_ceil(BLOCK_TOKENS).max(1) as u32,
        });
    }
    if arrivals.is_empty() {
        return Err(TraceError::Empty { path: path() });
    }
    arrivals.sort_by_key(|arrival| arrival.at_ms);
    Ok(arrivals)
}

/// `serde_json` counts lines within what it was given, which here is always one: keep the column only.
fn without_line(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" at line ") {
        Some((what, _)) => format!("{what}, column {}", error.column()),
        None => text,
    }
}

/// How [`generate`] makes a trace, in words for the report and `--help`.
pub const GENERATOR: &str = "Poisson arrivals, 3.4 requests/s, stamped in 3 s buckets; \
    input log-normal, median 6,250 tokens, sigma 1.2, within 891..126,195; \
    output 1..60 tokens for 1 in 6, else normal 395 ± 180 tokens";

/// `requests` arrivals in the shape of the Mooncake conversation trace; the same for the same seed.
pub fn generate(requests: usize, seed: u64) -> Vec<Arrival> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut seconds = 0.0;
    let arrival = |_| {
        seconds += exponential(&mut rng) / 3.4;
        let input = log_normal(&mut rng, 6_250.0, 1.2).clamp(891.0, 126_195.0) as u64;
        let output = if rng.random_bool(1.0 / 6.0) {
            rng.random_range(1.0..60.0)
        } else {
            (395.0 + 180.0 * normal(&mut rng)).clamp(60.0, 2_000.0)
        };
        Arrival {
            at_ms: (seconds / 3.0) as u64 * 3_000,
            input_tokens: input,
            output_tokens: output as u64,
            blocks: input.div_ceil(BLOCK_TOKENS) as u32,
        }
    };
    (0..requests).map(arrival).collect()
}

/// An exponential draw of mean 1.
fn exponential(rng: &mut impl Rng) -> f64 {
    -(1.0 - rng.random::<f64>()).ln()
}

/// A standard normal draw (Box and Muller).
fn normal(rng: &mut impl Rng) -> f64 {
    (2.0 * exponential(rng)).sqrt() * (std::f64::consts::TAU * rng.random::<f64>()).cos()
}

/// A log-normal draw: half of them are below `median`.
pub fn log_normal(rng: &mut impl Rng, median: f64, sigma: f64) -> f64 {
    median * (sigma * normal(rng)).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"timestamp": 3000, "input_length": 1025, "output_length": 7, "hash_ids": [0, 1, 2]}"#;

    fn error(text: &[u8]) -> String {
        parse(text, "t.jsonl").unwrap_err().to_string()
    }

    #[test]
    fn a_good_line_is_read() {
        let read = parse(GOOD.as_bytes(), "t").unwrap();
        assert_eq!(read, [Arrival { at_ms: 3000, input_tokens: 1025, output_tokens: 7, blocks: 3 }]);
    }

    #[test]
    fn arrivals_come_out_in_order_of_time() {
        let earlier = GOOD.replace("3000", "1000");
        let read = parse(format!("{GOOD}\n\n{earlier}\n").as_bytes(), "t").unwrap();
        assert_eq!(read.iter().map(|a| a.at_ms).collect::<Vec<_>>(), [1000, 3000]);
    }

    #[test]
    fn a_broken_line_is_named_by_its_number_in_the_file() {
        let text = format!("{GOOD}\n\n{{\"timestamp\": 3, oops}}\n{GOOD}\n");
        let error = error(text.as_bytes());
        assert!(error.starts_with("t.jsonl, line 3: key must be a string, column "), "{error}");
    }

    #[test]
    fn a_line_cut_short_a_missing_field_and_a_wrong_type_are_told_apart() {
        assert!(error(&GOOD.as_bytes()[..40]).contains("line 1: EOF while parsing"));
        assert!(error(GOOD.replace("hash_ids", "hashes").as_bytes()).contains("missing field `hash_ids`"));
        assert!(error(GOOD.replace("3000", "-1").as_bytes()).contains("invalid value: integer `-1`"));
    }

    #[test]
    fn bytes_that_are_no_text_are_an_error_and_no_panic() {
        let text = [GOOD.as_bytes(), b"\n\xff\xfe\n"].concat();
        assert_eq!(error(&text), "t.jsonl, line 2: not UTF-8, column 1");
        let unread = GOOD.replace('}', ", \"x\": [\"?\"]}").into_bytes();
        assert!(parse(&*unread, "t").is_ok());
        let unread: Vec<u8> = unread.into_iter().map(|b| if b == b'?' { 0x9f } else { b }).collect();
        assert_eq!(error(&unread), "t.jsonl, line 1: not UTF-8, column 93");
    }

    #[test]
    fn numbers_that_cannot_be_meant_are_refused() {
        assert!(error(GOOD.replace("1025", "99999999999").as_bytes()).contains("more than 10000000 tokens"));
        assert!(error(GOOD.replace("3000", "99999999999").as_bytes()).contains("30 days"));
        assert!(
            error(GOOD.replace("1025", "12").as_bytes()).contains("3 hash_ids, but input_length 12 fills 1 blocks")
        );
    }

    #[test]
    fn a_trace_without_requests_is_refused() {
        assert_eq!(error(b"\n"), "the trace t.jsonl holds no requests");
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = read(Path::new("no/such.jsonl")).unwrap_err().to_string();
        assert!(error.starts_with("cannot open the trace no/such.jsonl: "), "{error}");
    }

    #[test]
    fn the_generator_repeats_itself_and_keeps_the_shape() {
        let made = generate(4_000, 7);
        assert_eq!(made, generate(4_000, 7));
        assert_ne!(made, generate(4_000, 8));
        assert!(made.is_sorted_by_key(|a| a.at_ms) && made.iter().all(|a| a.at_ms % 3_000 == 0));
        // The conversation trace: 12,035 tokens on average and 3.4 requests a second.
        let mean = made.iter().map(|a| a.input_tokens).sum::<u64>() as f64 / 4_000.0;
        assert!((9_000.0..15_000.0).contains(&mean), "{mean}");
        let rate = 4_000_000.0 / made.last().unwrap().at_ms as f64;
        assert!((3.0..3.8).contains(&rate), "{rate}");
    }
}
