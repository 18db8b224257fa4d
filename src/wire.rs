//! Bytes to messages and back, in the format of vLLM 0.33.
//!
//! | message | bytes | from |
//! |---|---|---|
//! | [`Completion`] | `{id}:{expected}` | consumer: "I have read it" |
//! | [`Heartbeat`] | `HB:{id},{id},…` | consumer: "they wait in my queue, keep them" |
//! | [`StaleReply`] | `KVLEASE_STALE:{id}:{outcome}` | producer: "what you read was, or was not, kept for you" |
//! | opaque | `PUSH_REG:` and msgpack | not ours: handed through untouched |
//!
//! The first two, and the `PUSH_REG:` prefix, are those of vLLM's NIXL connector
//! (`vllm/distributed/kv_transfer/kv_connector/v1/nixl/`: `base_worker.py`, `pull_worker.py` and
//! `metadata.py`). The third is this crate's own.
//!
//! What this module guarantees:
//!
//! - **Parsing is total.** Any bytes give a message or a typed [`Malformed`]; nothing panics, and a bad
//!   message changes nothing for the next one. It takes one pass over the bytes and allocates nothing.
//! - **Writing is exact.** What a `write_` function has written is parsed as the same message. Where the
//!   format cannot carry an id, the call refuses with a typed [`Unsendable`] and writes nothing.
//!
//! # How a message is told
//!
//! By its prefix, in this order: opaque, then (it must be UTF-8 from here on) `HB:`, `KVLEASE_STALE:`,
//! and all else is a completion. So no completion can be sent for a request whose id is `HB`, or begins
//! with `HB:`: its receiver would take it for a heartbeat. The same holds for the other prefixes.
//!
//! # Why the stale reply looks as it does
//!
//! The outcome is the last part, behind the last colon, and is a word. A peer that knows completions
//! only reads a count there, finds no number and drops the message as malformed, whatever the id; were
//! the id the last part, the reply about `x:5` would be a completion that expects five. The outcome has no
//! colon, so prefix, id and outcome can be told apart for an id with any characters in it.
//!
//! Send it only to a peer that has opted in all the same. What a peer does with a message that it does not
//! know is its own affair: in vLLM 0.33, one that cannot be split or counted raises a `ValueError` inside
//! the engine step.
//!
//! ```
//! use kvlease::Outcome;
//! use kvlease::wire::{self, Malformed, Message};
//!
//! let mut message = Vec::new();
//! wire::write_completion("cmpl-7:a", 2, &mut message)?;
//! assert_eq!(message, b"cmpl-7:a:2");
//!
//! match wire::parse(&message) {
//!     Ok(Message::Completion(done)) => assert_eq!((done.id, done.expected), ("cmpl-7:a", 2)),
//!     other => panic!("{other:?}"),
//! }
//! assert_eq!(wire::parse(b"cmpl-7:-1"), Err(Malformed::BadCount));
//! # Ok::<(), wire::Unsendable>(())
//! ```

use crate::Outcome;
use thiserror::Error;

/// What a heartbeat begins with.
pub const HEARTBEAT_PREFIX: &str = "HB:";

/// What a stale reply begins with.
pub const STALE_REPLY_PREFIX: &str = "KVLEASE_STALE:";

/// What a push registration of vLLM's NIXL connector begins with (`PUSH_REG_NOTIF_PREFIX` in its
/// `metadata.py`); msgpack follows.
pub const PUSH_REGISTRATION_PREFIX: &str = "PUSH_REG:";

/// The default of [`Parser::max_len`]: 16 MiB.
///
/// Heartbeats of 100 kB and more are legal, one for 100,000 requests with ids of 110 bytes has 11 MB.
/// Parsing is linear and allocates nothing, so the limit is no defence against junk, which its content
/// gives away; it bounds how long one message can keep the thread that polls.
pub const DEFAULT_MAX_LEN: usize = 16 << 20;

const RESERVED: [&str; 3] = [HEARTBEAT_PREFIX, STALE_REPLY_PREFIX, PUSH_REGISTRATION_PREFIX];

/// One message that arrived, borrowed from its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// A consumer has read a request.
    Completion(Completion<'a>),
    /// A consumer renews the leases of the requests that wait in its queue.
    Heartbeat(Heartbeat<'a>),
    /// A producer says how the lease of a request ended.
    Stale(StaleReply<'a>),
    /// A message of another protocol, whole, prefix included: hand it on.
    Opaque(&'a [u8]),
}

/// `{id}:{expected}`: the sender has read the request, and this many consumers will.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion<'a> {
    /// The request; never empty. How long it may be is for the tracker to say.
    pub id: &'a str,
    /// How many distinct consumers will send this message for it; at least 1.
    ///
    /// Not every version of every connector means that by it: some send the size of the decode side, of which
    /// this producer is to expect its own share. Convert it before it goes to
    /// [`notify_expecting`](crate::SendTracker::notify_expecting), or use
    /// [`notify`](crate::SendTracker::notify) and tell the count at `track`; a count that is too high leaves
    /// each lease to its deadline.
    pub expected: u32,
}

/// `HB:{id},{id},…`: keep the leases of these requests.
///
/// Empty ids are skipped: one comma too many, at the end or between two, must not cost the other
/// requests of the batch their leases. For the same reason `HB:` alone is a heartbeat, of no request,
/// and not malformed: it asks for nothing, so nothing is what it changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heartbeat<'a> {
    list: &'a str,
}

impl<'a> Heartbeat<'a> {
    /// The ids in it, in order; none is empty, one may come twice.
    ///
    /// ```
    /// use kvlease::wire::{self, Message};
    ///
    /// let Ok(Message::Heartbeat(heartbeat)) = wire::parse(b"HB:a,b:1,,c,") else { panic!() };
    /// assert!(heartbeat.ids().eq(["a", "b:1", "c"]));
    /// ```
    pub fn ids(self) -> impl Iterator<Item = &'a str> + Clone {
        self.list.split(',').filter(|id| !id.is_empty())
    }

    /// The end of the list, without its first `n` ids.
    pub(crate) fn rest_after(self, n: usize) -> &'a str {
        let mut rest = self.list.trim_start_matches(',');
        for _ in 0..n {
            rest = rest.split_once(',').map_or("", |(_, rest)| rest.trim_start_matches(','));
        }
        rest
    }
}

/// `KVLEASE_STALE:{id}:{outcome}`: how the producer judges a completion that it received.
///
/// Which outcome to send for which answer of the tracker is what [`Notified::verdict`](crate::Notified::verdict)
/// says; where that is [`Completed`](Outcome::Completed), only consumers that wait for the verdict need it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StaleReply<'a> {
    /// The request; never empty.
    pub id: &'a str,
    /// [`Expired`](Outcome::Expired) or [`Aborted`](Outcome::Aborted): the lease had ended like this
    /// before the completion came, so the blocks may have been in use again while they were read.
    /// [`Completed`](Outcome::Completed): the completion came in time and was counted; sent only to a
    /// consumer that waits for the verdict.
    pub outcome: Outcome,
}

/// Why some bytes are no message. Nothing else needs to be done about it than to count it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Error)]
#[non_exhaustive]
pub enum Malformed {
    /// No bytes at all.
    #[error("the message is empty")]
    Empty,
    /// Longer than [`Parser::max_len`] allows.
    #[error("the message has {len} bytes, the limit is {max}")]
    TooLong {
        /// Its length in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// Not UTF-8.
    #[error("the message is not UTF-8 from byte {valid_up_to} on")]
    NotUtf8 {
        /// How many bytes are UTF-8 before it breaks.
        valid_up_to: usize,
    },
    /// No colon that would separate an id from what follows it.
    #[error("no colon after the request id")]
    NoColon,
    /// Nothing before the last colon.
    #[error("the request id is empty")]
    EmptyId,
    /// What is behind the last colon is not one or more of the digits 0 to 9.
    #[error("the number of expected consumers is not a decimal number")]
    BadCount,
    /// The count is past the range of `u32`.
    #[error("the number of expected consumers is past {max}", max = u32::MAX)]
    CountTooLarge,
    /// A consumer that says it has read cannot expect that nobody reads.
    #[error("the number of expected consumers is 0")]
    ZeroCount,
    /// A stale reply whose last part is none of the three outcomes.
    #[error("the outcome in a stale reply is none of completed, expired, aborted")]
    BadOutcome,
}

/// Why a message cannot be written. Nothing was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum Unsendable {
    /// The receiver would call the message malformed.
    #[error("the request id is empty")]
    EmptyId,
    /// The receiver of a heartbeat would split the id.
    #[error("the request id has a comma, which separates the ids of a heartbeat")]
    Comma,
    /// The receiver would take the completion for a message of another kind.
    #[error("a completion of this request id would begin with {prefix:?}, which says that it is no completion")]
    ReservedPrefix {
        /// What it would begin with.
        prefix: &'static str,
    },
    /// The receiver would call the message malformed.
    #[error("the number of expected consumers is 0")]
    ZeroCount,
}

/// Parses with the default [`Parser`]: messages up to 16 MiB, `PUSH_REG:` opaque.
///
/// # Errors
///
/// [`Malformed`] says what is wrong with the bytes.
pub fn parse(bytes: &[u8]) -> Result<Message<'_>, Malformed> {
    parse_with(bytes, bytes.starts_with(PUSH_REGISTRATION_PREFIX.as_bytes()), DEFAULT_MAX_LEN)
}

/// A parser with a prefix and a limit of the caller's choice.
///
/// ```
/// use kvlease::wire::{Malformed, Message, Parser};
///
/// let parser = Parser::new().opaque_prefix("MYREG:").max_len(1 << 20);
/// assert_eq!(parser.parse(b"MYREG:\x93\x01\x02\xff"), Ok(Message::Opaque(b"MYREG:\x93\x01\x02\xff")));
///
/// // Without an opaque prefix, such a message is one more that is not understood.
/// let parser = Parser::new().no_opaque_prefix();
/// assert_eq!(parser.parse(b"PUSH_REG:\xff"), Err(Malformed::NotUtf8 { valid_up_to: 9 }));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parser {
    opaque: Option<Vec<u8>>,
    max_len: usize,
}

impl Parser {
    /// The parser behind [`parse`].
    pub fn new() -> Self {
        Parser { opaque: Some(PUSH_REGISTRATION_PREFIX.into()), max_len: DEFAULT_MAX_LEN }
    }

    /// Messages that begin with `prefix` are handed through ([`Message::Opaque`]), instead of those that
    /// begin with [`PUSH_REGISTRATION_PREFIX`]. With an empty prefix that is every message.
    ///
    /// Choose one that no request id begins with: the `write_` functions know the default one only.
    pub fn opaque_prefix(mut self, prefix: impl Into<Vec<u8>>) -> Self {
        self.opaque = Some(prefix.into());
        self
    }

    /// No message is handed through.
    pub fn no_opaque_prefix(mut self) -> Self {
        self.opaque = None;
        self
    }

    /// Messages longer than this many bytes are malformed (default [`DEFAULT_MAX_LEN`]). Opaque ones are
    /// not looked at, and have no limit here.
    pub fn max_len(mut self, max: usize) -> Self {
        self.max_len = max;
        self
    }

    /// Whether these bytes are too long to be worth keeping for [`parse`](Self::parse), and if so, how.
    pub(crate) fn too_long(&self, bytes: &[u8]) -> Option<Malformed> {
        let too_long =
            bytes.len() > self.max_len && !self.opaque.as_ref().is_some_and(|prefix| bytes.starts_with(prefix));
        too_long.then_some(Malformed::TooLong { len: bytes.len(), max: self.max_len })
    }

    /// The message that these bytes are.
    ///
    /// # Errors
    ///
    /// [`Malformed`] says what is wrong with the bytes.
    pub fn parse<'a>(&self, bytes: &'a [u8]) -> Result<Message<'a>, Malformed> {
        let opaque = self.opaque.as_ref().is_some_and(|prefix| bytes.starts_with(prefix));
        parse_with(bytes, opaque, self.max_len)
    }
}

impl Default for Parser {
    fn default() -> Self {
        Self::new()
    }
}

fn parse_with(bytes: &[u8], opaque: bool, max_len: usize) -> Result<Message<'_>, Malformed> {
    if opaque {
        return Ok(Message::Opaque(bytes));
    }
    if bytes.is_empty() {
        return Err(Malformed::Empty);
    }
    if bytes.len() > max_len {
        return Err(Malformed::TooLong { len: bytes.len(), max: max_len });
    }
    let text = std::str::from_utf8(bytes).map_err(|e| Malformed::NotUtf8 { valid_up_to: e.valid_up_to() })?;
    if let Some(list) = text.strip_prefix(HEARTBEAT_PREFIX) {
        return Ok(Message::Heartbeat(Heartbeat { list }));
    }
    if let Some(rest) = text.strip_prefix(STALE_REPLY_PREFIX) {
        let (id, outcome) = split_id(rest)?;
        return Ok(Message::Stale(StaleReply { id, outcome: parse_outcome(outcome)? }));
    }
    let (id, count) = split_id(text)?;
    Ok(Message::Completion(Completion { id, expected: parse_count(count)? }))
}

/// The id and what follows its colon, which is the last one: ids have colons too.
fn split_id(text: &str) -> Result<(&str, &str), Malformed> {
    match text.rsplit_once(':') {
        None => Err(Malformed::NoColon),
        Some(("", _)) => Err(Malformed::EmptyId),
        Some(parts) => Ok(parts),
    }
}

fn parse_count(digits: &str) -> Result<u32, Malformed> {
    // `u32::from_str` would take a plus sign.
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Malformed::BadCount);
    }
    match digits.parse() {
        Ok(0) => Err(Malformed::ZeroCount),
        Ok(count) => Ok(count),
        Err(_) => Err(Malformed::CountTooLarge),
    }
}

// `Display` of an outcome is for people and may change; these words may not.
const OUTCOMES: [(&str, Outcome); 3] =
    [("completed", Outcome::Completed), ("expired", Outcome::Expired), ("aborted", Outcome::Aborted)];

fn parse_outcome(word: &str) -> Result<Outcome, Malformed> {
    OUTCOMES.iter().find(|(w, _)| *w == word).map(|&(_, outcome)| outcome).ok_or(Malformed::BadOutcome)
}

fn outcome_word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Completed => OUTCOMES[0].0,
        Outcome::Expired => OUTCOMES[1].0,
        Outcome::Aborted => OUTCOMES[2].0,
    }
}

/// Whether heartbeats and completions can carry this request id: it is not empty, has no comma, and does
/// not begin like a message of another kind.
///
/// # Errors
///
/// [`Unsendable`] says which of these is not so.
///
/// ```
/// use kvlease::wire::{self, Unsendable};
///
/// assert_eq!(wire::check_id("cmpl-37c560d3:0"), Ok(()));
/// assert_eq!(wire::check_id("a,b"), Err(Unsendable::Comma));
/// assert_eq!(wire::check_id("HB"), Err(Unsendable::ReservedPrefix { prefix: "HB:" }));
/// ```
pub fn check_id(id: &str) -> Result<(), Unsendable> {
    check_heartbeat_id(id)?;
    check_completion_id(id)
}

fn check_heartbeat_id(id: &str) -> Result<(), Unsendable> {
    if id.is_empty() {
        Err(Unsendable::EmptyId)
    } else if id.contains(',') {
        Err(Unsendable::Comma)
    } else {
        Ok(())
    }
}

fn check_completion_id(id: &str) -> Result<(), Unsendable> {
    if id.is_empty() {
        return Err(Unsendable::EmptyId);
    }
    // A colon follows the id, so an id that lacks but the colon of the prefix is no better.
    match RESERVED.iter().find(|r| id.starts_with(*r) || r.strip_suffix(':') == Some(id)) {
        Some(prefix) => Err(Unsendable::ReservedPrefix { prefix }),
        None => Ok(()),
    }
}

/// Appends a [`Completion`] to `out`.
///
/// # Errors
///
/// [`Unsendable`] if the receiver would not read the same completion; nothing is appended.
///
/// ```
/// let mut out = Vec::new();
/// kvlease::wire::write_completion("a:b", 3, &mut out)?;
/// assert_eq!(out, b"a:b:3");
/// # Ok::<(), kvlease::wire::Unsendable>(())
/// ```
pub fn write_completion(id: &str, expected: u32, out: &mut Vec<u8>) -> Result<(), Unsendable> {
    check_completion_id(id)?;
    if expected == 0 {
        return Err(Unsendable::ZeroCount);
    }
    out.reserve(id.len() + 11);
    out.extend_from_slice(id.as_bytes());
    out.push(b':');
    out.extend_from_slice(expected.to_string().as_bytes());
    Ok(())
}

/// Appends one [`Heartbeat`] of all these requests to `out`; of none it is `HB:` alone, which changes
/// nothing. For messages of bounded length see [`ReadTracker`](crate::consumer::ReadTracker).
///
/// # Errors
///
/// [`Unsendable`] if the receiver would not read the same ids; nothing is appended.
///
/// ```
/// let mut out = Vec::new();
/// kvlease::wire::write_heartbeat(["a", "b"], &mut out)?;
/// assert_eq!(out, b"HB:a,b");
/// # Ok::<(), kvlease::wire::Unsendable>(())
/// ```
pub fn write_heartbeat<'a>(ids: impl IntoIterator<Item = &'a str>, out: &mut Vec<u8>) -> Result<(), Unsendable> {
    let start = out.len();
    out.extend_from_slice(HEARTBEAT_PREFIX.as_bytes());
    for (i, id) in ids.into_iter().enumerate() {
        if let Err(e) = check_heartbeat_id(id) {
            out.truncate(start);
            return Err(e);
        }
        if i > 0 {
            out.push(b',');
        }
        out.extend_from_slice(id.as_bytes());
    }
    Ok(())
}

/// Appends a [`StaleReply`] to `out`. It carries any id but an empty one.
///
/// # Errors
///
/// [`Unsendable::EmptyId`]; nothing is appended.
///
/// ```
/// use kvlease::Outcome;
///
/// let mut out = Vec::new();
/// kvlease::wire::write_stale_reply("cmpl-7", Outcome::Expired, &mut out)?;
/// assert_eq!(out, b"KVLEASE_STALE:cmpl-7:expired");
/// # Ok::<(), kvlease::wire::Unsendable>(())
/// ```
pub fn write_stale_reply(id: &str, outcome: Outcome, out: &mut Vec<u8>) -> Result<(), Unsendable> {
    if id.is_empty() {
        return Err(Unsendable::EmptyId);
    }
    for part in [STALE_REPLY_PREFIX, id, ":", outcome_word(outcome)] {
        out.extend_from_slice(part.as_bytes());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_is_split_at_the_last_colon() {
        for (bytes, id, expected) in [
            ("a:1", "a", 1),
            ("a:b:2", "a:b", 2),
            ("::1", ":", 1),
            ("a::3", "a:", 3),
            ("a,b:4294967295", "a,b", u32::MAX),
        ] {
            assert_eq!(parse(bytes.as_bytes()), Ok(Message::Completion(Completion { id, expected })), "{bytes}");
        }
    }

    #[test]
    fn a_count_is_digits_only() {
        for bytes in ["a:", "a:x", "a:-1", "a:+1", "a: 1", "a:1 ", "a:1_0", "a:1.0", "a:0x1", "a:\u{0661}"] {
            assert_eq!(parse(bytes.as_bytes()), Err(Malformed::BadCount), "{bytes}");
        }
        assert_eq!(parse(b"a:0"), Err(Malformed::ZeroCount));
        assert_eq!(parse(b"a:000"), Err(Malformed::ZeroCount));
        assert_eq!(parse(b"a:4294967296"), Err(Malformed::CountTooLarge));
        assert_eq!(parse(b"a:0001"), Ok(Message::Completion(Completion { id: "a", expected: 1 })));
    }

    #[test]
    fn a_comma_too_many_costs_no_other_id_its_lease() {
        for (bytes, ids) in [
            ("HB:a", vec!["a"]),
            ("HB:a,", vec!["a"]),
            ("HB:,a,,b:2,", vec!["a", "b:2"]),
            ("HB:HB:a", vec!["HB:a"]),
            ("HB:", vec![]),
            ("HB:,,", vec![]),
        ] {
            let Ok(Message::Heartbeat(heartbeat)) = parse(bytes.as_bytes()) else { panic!("{bytes}") };
            assert!(heartbeat.ids().eq(ids), "{bytes}");
        }
        // No heartbeat without its colon.
        assert_eq!(parse(b"HB"), Err(Malformed::NoColon));
    }

    #[test]
    fn a_stale_reply_names_any_id_and_is_no_completion_to_an_old_peer() {
        for id in ["a", "a:5", "5", ":", "a,b", "HB:a", "KVLEASE_STALE:a:expired", "PUSH_REG:x", "\0", "💥"] {
            for (word, outcome) in OUTCOMES {
                let mut out = Vec::new();
                write_stale_reply(id, outcome, &mut out).unwrap();
                assert!(out.ends_with(word.as_bytes()));
                assert_eq!(parse(&out), Ok(Message::Stale(StaleReply { id, outcome })));
                // What a peer sees that takes all but a heartbeat for a completion.
                let (_, count) = split_id(std::str::from_utf8(&out).unwrap()).unwrap();
                assert_eq!(parse_count(count), Err(Malformed::BadCount));
            }
        }
        assert_eq!(parse(b"KVLEASE_STALE:a:5"), Err(Malformed::BadOutcome));
        assert_eq!(parse(b"KVLEASE_STALE:expired"), Err(Malformed::NoColon));
        assert_eq!(parse(b"KVLEASE_STALE::expired"), Err(Malformed::EmptyId));
    }

    #[test]
    fn an_opaque_message_is_handed_through_whatever_is_in_it() {
        let bytes = b"PUSH_REG:\xff\xfe:1";
        assert_eq!(parse(bytes), Ok(Message::Opaque(bytes)));
        assert_eq!(Parser::new().max_len(3).parse(bytes), Ok(Message::Opaque(bytes)));
        let other = Parser::new().opaque_prefix("X");
        assert_eq!(other.parse(b"X:1"), Ok(Message::Opaque(b"X:1")));
        assert_eq!(other.parse(b"PUSH_REG:1"), Ok(Message::Completion(Completion { id: "PUSH_REG", expected: 1 })));
    }

    #[test]
    fn a_long_heartbeat_is_legal_and_a_message_past_the_limit_is_not() {
        let mut out = Vec::new();
        write_heartbeat(std::iter::repeat_n("cmpl-37c560d3-5680-4bd1-97f9-7ed31a56de60-0", 5_000), &mut out).unwrap();
        assert!(out.len() > 100_000);
        let Ok(Message::Heartbeat(heartbeat)) = parse(&out) else { panic!() };
        assert_eq!(heartbeat.ids().count(), 5_000);

        let parser = Parser::new().max_len(4);
        assert!(parser.parse(b"ab:1").is_ok());
        assert_eq!(parser.parse(b"abc:1"), Err(Malformed::TooLong { len: 5, max: 4 }));
    }

    #[test]
    fn what_the_receiver_would_misread_is_not_written() {
        let mut out = b"before".to_vec();
        for (id, prefix) in [
            ("HB", HEARTBEAT_PREFIX),
            ("HB:", HEARTBEAT_PREFIX),
            ("HB:a", HEARTBEAT_PREFIX),
            ("KVLEASE_STALE", STALE_REPLY_PREFIX),
            ("KVLEASE_STALE:a", STALE_REPLY_PREFIX),
            ("PUSH_REG", PUSH_REGISTRATION_PREFIX),
            ("PUSH_REG:a", PUSH_REGISTRATION_PREFIX),
        ] {
            assert_eq!(write_completion(id, 1, &mut out), Err(Unsendable::ReservedPrefix { prefix }), "{id}");
            assert_eq!(check_id(id), Err(Unsendable::ReservedPrefix { prefix }), "{id}");
        }
        assert_eq!(write_completion("", 1, &mut out), Err(Unsendable::EmptyId));
        assert_eq!(write_completion("a", 0, &mut out), Err(Unsendable::ZeroCount));
        assert_eq!(write_heartbeat(["a", "b,c"], &mut out), Err(Unsendable::Comma));
        assert_eq!(write_heartbeat(["a", ""], &mut out), Err(Unsendable::EmptyId));
        assert_eq!(write_stale_reply("", Outcome::Expired, &mut out), Err(Unsendable::EmptyId));
        assert_eq!(out, b"before");
        // Near misses are fine.
        for id in ["HBx", "hb:a", "xHB:", "PUSH_REGISTER"] {
            assert_eq!(check_id(id), Ok(()), "{id}");
        }
    }
}
