//! The real NIXL, by feature `nixl`: its notifications, as a source and a sink.
//!
//! It moves no bytes. A connector has its own [`nixl_sys::Agent`], with its backends, memory and transfers, and
//! gives it to [`Agent::from_raw`]; [`Agent::new`] makes one with settings that work on a CPU.
//!
//! # The library
//!
//! Nothing is linked: `libnixl_capi.so` is looked for at run time. **Where it is not found, every call here
//! answers [`NixlError::LibraryNotFound`]**; calls of `nixl_sys` itself would abort the process, so ask
//! [`library`] before you make any. To build the feature takes g++ and libclang.
//!
//! # What NIXL guarantees, and what it does not
//!
//! Seen with version 1.5 over UCX; the tests in `tests/nixl.rs` show most of it.
//!
//! | | |
//! |---|---|
//! | `send` is `Ok` | The message is queued. It is lost if this process dies at once, or the peer has. |
//! | order | None is promised. Out of millions, none came out of order from one thread; do not rely on it. |
//! | how often | Each message is handed out once. A transfer that is posted again sends its notification again. |
//! | a READ's notification | Leaves when its initiator *sees* the READ complete. One that does not ask never notifies. |
//! | the queue | Is not bounded: one poll may bring ten thousand messages and more, of up to 16 MiB. |
//! | the sender's name | Is what the sender says it is. |
//! | two agents of one name | Both can send, as one consumer. Replies go to the one whose metadata was loaded; [`connect`](Agent::connect) replaces it. |
//! | a dead peer | A send fails, at once or after some; until then it is `Ok`. |
//! | metadata | UCX *aborts the process* on metadata that was damaged: take it from peers that you trust. A [`Handshake`] has a check sum, which is against accidents. |
//!
//! None of it matters to a lease, which ends at its deadline whatever is lost, and counts consumers and not
//! messages.
//!
//! ```no_run
//! use kvlease::Replies;
//! use kvlease::transport::nixl::{Agent, Handshake, Settings};
//! use kvlease::transport::{NotificationSink, NotificationSource};
//! # fn exchange(mine: Vec<u8>) -> Vec<u8> { mine }
//!
//! let mut agent = Agent::new("decode-0", &Settings::default())?;
//! // Over a channel of your own, after all memory is registered:
//! let mine = agent.handshake(Replies::Stale)?.to_bytes();
//! let theirs = Handshake::from_bytes(&exchange(mine))?;
//! agent.connect(&theirs)?;
//!
//! agent.send(&theirs.name, b"cmpl-7:1")?;
//! agent.poll(&mut |from, message| println!("{from}: {} bytes", message.len()))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::{NotificationSink, NotificationSource, TransportError};
use crate::Replies;
use nixl_sys::{AgentConfig, NotificationMap, ThreadSync};
use std::collections::HashSet;
use std::fmt;
use std::time::Duration;
use thiserror::Error;

/// Why NIXL cannot be used, or has refused.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NixlError {
    /// There is no `libnixl_capi.so`.
    #[error(
        "the NIXL library libnixl_capi.so was not found; install NIXL (the Python package nixl-cu12 carries it, and \
         scripts/fetch-nixl fetches that), and put the folder that holds it on LD_LIBRARY_PATH"
    )]
    LibraryNotFound,
    /// NIXL itself said no.
    #[error("NIXL refused to {what}: {source}")]
    Refused {
        /// What it was asked to do.
        what: &'static str,
        /// What it said.
        source: nixl_sys::NixlError,
    },
    /// NIXL takes no such name.
    #[error("an agent's name must not be empty, and must not hold a NUL")]
    BadName,
    /// The metadata in a handshake is of another agent than the handshake says.
    #[error("the handshake is of {claimed:?}, but its metadata is not")]
    WrongName {
        /// What the handshake says.
        claimed: String,
    },
}

impl From<NixlError> for TransportError {
    fn from(error: NixlError) -> Self {
        TransportError::Backend(error.to_string())
    }
}

/// Turns what NIXL said into an error that tells what it was asked.
fn refused(what: &'static str) -> impl FnOnce(nixl_sys::NixlError) -> NixlError {
    move |source| NixlError::Refused { what, source }
}

/// Whether the library is here. If it is not, every call of `nixl_sys` aborts the process.
///
/// # Errors
///
/// [`NixlError::LibraryNotFound`].
///
/// ```
/// use kvlease::transport::nixl;
///
/// if let Err(missing) = nixl::library() {
///     println!("not today: {missing}");
/// }
/// ```
pub fn library() -> Result<(), NixlError> {
    if nixl_sys::is_stub() { Err(NixlError::LibraryNotFound) } else { Ok(()) }
}

/// How [`Agent::new`] sets NIXL up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// How long NIXL's own thread, which moves messages and answers reads, sleeps between two looks (default 1 ms).
    /// At zero it keeps a whole core busy.
    pub progress_every: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { progress_every: Duration::from_millis(1) }
    }
}

/// One agent: it receives, and sends.
///
/// Polled by one owner; [`sender`](Self::sender) gives halves that send from any thread. The agent goes when the last
/// of them, and of the clones of its [`raw`](Self::raw) agent, is dropped.
pub struct Agent {
    sender: Sender,
    unreadable: u64,
}

impl Agent {
    /// An agent of this name, with the UCX backend only.
    ///
    /// # Errors
    ///
    /// [`NixlError`]: no library, a name that NIXL does not take, or no backend (its log says why; over shared memory
    /// alone UCX does not start, so `UCX_TLS` must have `tcp` or better).
    pub fn new(name: &str, settings: &Settings) -> Result<Self, NixlError> {
        library()?;
        check_name(name)?;
        let config = AgentConfig {
            // The default has no locks at all.
            thread_sync: ThreadSync::Strict,
            pthr_delay_us: u64::try_from(settings.progress_every.as_micros()).unwrap_or(u64::MAX),
            ..AgentConfig::default()
        };
        let agent = nixl_sys::Agent::new_configured(name, &config).map_err(refused("make an agent"))?;
        let (_memory, params) = agent.get_plugin_params("UCX").map_err(refused("find its UCX plugin"))?;
        agent.create_backend("UCX", &params).map_err(refused("start its UCX backend"))?;
        Ok(Self::from_raw(agent))
    }

    /// The agent that a connector has already.
    ///
    /// Make it with a [`ThreadSync`] other than the default `None` if more than one thread uses it, and NIXL's own
    /// progress thread is one.
    pub fn from_raw(agent: nixl_sys::Agent) -> Self {
        let name = agent.name();
        Agent { sender: Sender { agent, name: name.into() }, unreadable: 0 }
    }

    /// NIXL's own agent, for memory and transfers.
    pub fn raw(&self) -> &nixl_sys::Agent {
        &self.sender.agent
    }

    /// The name that others send to.
    pub fn name(&self) -> &str {
        &self.sender.name
    }

    /// The half that sends; clones of it may be used from many threads.
    pub fn sender(&self) -> Sender {
        self.sender.clone()
    }

    /// What to give a peer so that it can [`connect`](Self::connect). To be made anew after memory was registered, since
    /// it tells the peer what it may read.
    ///
    /// # Errors
    ///
    /// [`NixlError::Refused`].
    pub fn handshake(&self, replies: Replies) -> Result<Handshake, NixlError> {
        let metadata = self.raw().get_local_md().map_err(refused("give its metadata"))?;
        Ok(Handshake { name: self.name().to_owned(), replies, metadata })
    }

    /// Makes a peer known, so that messages can be sent to it and its memory be read. An agent of this name that was
    /// known before is replaced, as after a restart; transfers with that one fail.
    ///
    /// # Errors
    ///
    /// [`NixlError`]; the peer is not known then.
    pub fn connect(&self, peer: &Handshake) -> Result<(), NixlError> {
        check_name(&peer.name)?;
        // Looked at before NIXL does: it would make the wrong one known, or panic where a name is not UTF-8.
        if metadata_name(&peer.metadata).is_some_and(|name| name != peer.name.as_bytes()) {
            return Err(NixlError::WrongName { claimed: peer.name.clone() });
        }
        let loaded = self.raw().load_remote_md(&peer.metadata).or_else(|refusal| {
            // NIXL refuses another agent of a name that it knows.
            self.raw().invalidate_remote_md(&peer.name).map_err(|_| refusal)?;
            self.raw().load_remote_md(&peer.metadata)
        });
        let name = loaded.map_err(refused("load a peer's metadata"))?;
        if name != peer.name {
            self.disconnect(&name);
            return Err(NixlError::WrongName { claimed: peer.name.clone() });
        }
        Ok(())
    }

    /// Forgets a peer: sends to it are answered [`UnknownAgent`](TransportError::UnknownAgent) from now on, until it
    /// connects again. What it has sent still arrives. Says whether it was known.
    pub fn disconnect(&self, name: &str) -> bool {
        self.raw().invalidate_remote_md(name).is_ok()
    }

    /// How many messages, or whole senders in one poll, could not be read at all, because the sender's name is not
    /// UTF-8 or holds a NUL. Nobody honest has such a name.
    pub fn unreadable(&self) -> u64 {
        self.unreadable
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("name", &self.name())
            .field("unreadable", &self.unreadable)
            .finish_non_exhaustive()
    }
}

impl NotificationSource for Agent {
    fn poll(&mut self, on: &mut dyn FnMut(&str, &[u8])) -> Result<usize, TransportError> {
        // A new map each time: what one poll leaves in a map, the next one would hand out again.
        let mut arrived = NotificationMap::new().map_err(refused("make room for messages"))?;
        let polled = self.raw().get_notifications(&mut arrived, None);
        // NIXL has handed them out, so they are taken even if one of its backends has failed.
        let mut messages = 0;
        let mut senders = HashSet::new();
        for sender in arrived.agents() {
            let Ok(sender) = sender else {
                self.unreadable += 1;
                continue;
            };
            // A name with a NUL is cut there, and may then look like another one, whose messages come but once.
            if !senders.insert(sender) {
                self.unreadable += 1;
                continue;
            }
            for index in 0..arrived.get_notifications_size(sender).unwrap_or(0) {
                match arrived.get_notification_bytes(sender, index) {
                    Ok(message) => {
                        on(sender, &message);
                        messages += 1;
                    }
                    Err(_) => self.unreadable += 1,
                }
            }
        }
        match polled {
            Ok(()) => Ok(messages),
            Err(source) => Err(refused("hand out messages")(source).into()),
        }
    }
}

impl NotificationSink for Agent {
    fn send(&self, agent: &str, message: &[u8]) -> Result<(), TransportError> {
        self.sender.send(agent, message)
    }
}

/// The sending half of an [`Agent`].
#[derive(Clone)]
pub struct Sender {
    agent: nixl_sys::Agent,
    name: std::sync::Arc<str>,
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("name", &self.name).finish_non_exhaustive()
    }
}

impl NotificationSink for Sender {
    fn send(&self, agent: &str, message: &[u8]) -> Result<(), TransportError> {
        self.agent.send_notification(agent, message, None).map_err(|error| match error {
            nixl_sys::NixlError::NotFound | nixl_sys::NixlError::StringConversionError(_) => {
                TransportError::UnknownAgent { name: agent.to_owned() }
            }
            source => refused("send a message")(source).into(),
        })
    }
}

fn check_name(name: &str) -> Result<(), NixlError> {
    if name.is_empty() || name.contains('\0') { Err(NixlError::BadName) } else { Ok(()) }
}

/// The name in NIXL's metadata, where it looks as it did in version 1.5.
fn metadata_name(metadata: &[u8]) -> Option<&[u8]> {
    let (len, rest) = metadata.strip_prefix(b"nixlSerDes|Agent")?.split_first_chunk()?;
    rest.get(..usize::try_from(u64::from_le_bytes(*len)).ok()?)
}

/// What two agents tell each other before anything else, over a channel of the connector's own: how to be reached, and
/// which [`Replies`] they take.
///
/// ```
/// use kvlease::Replies;
/// use kvlease::transport::nixl::{Handshake, HandshakeError};
///
/// let mine = Handshake { name: "decode-0".into(), replies: Replies::Stale, metadata: vec![1, 2, 3] };
/// let mut bytes = mine.to_bytes();
/// assert_eq!(Handshake::from_bytes(&bytes), Ok(mine));
/// bytes[15] ^= 1;
/// assert_eq!(Handshake::from_bytes(&bytes), Err(HandshakeError::Damaged));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Handshake {
    /// The agent's name.
    pub name: String,
    /// Which replies to its completions it takes.
    pub replies: Replies,
    /// NIXL's metadata.
    pub metadata: Vec<u8>,
}

/// What every handshake begins with; the digit is the version of the format.
const HANDSHAKE_MAGIC: &[u8; 8] = b"KVLEASE1";

/// Why some bytes are no [`Handshake`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// Something else, or a version that is not known here.
    #[error("not a handshake, or of another version")]
    NotAHandshake,
    /// The check sum is not that of the bytes.
    #[error("the handshake was damaged on its way, or cut")]
    Damaged,
    /// The check sum is right and the content makes no sense.
    #[error("the handshake says what is not known here")]
    NotUnderstood,
}

impl Handshake {
    /// Magic, replies, length of the name, name, metadata, and a check sum of all of it. Numbers are little-endian.
    pub fn to_bytes(&self) -> Vec<u8> {
        let replies = match self.replies {
            Replies::None => 0,
            Replies::Stale => 1,
            Replies::All => 2,
        };
        let mut bytes = HANDSHAKE_MAGIC.to_vec();
        bytes.push(replies);
        bytes.extend_from_slice(&(self.name.len() as u64).to_le_bytes());
        bytes.extend_from_slice(self.name.as_bytes());
        bytes.extend_from_slice(&self.metadata);
        let sum = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// The handshake that these bytes are.
    ///
    /// # Errors
    ///
    /// [`HandshakeError`], whatever the bytes are.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, HandshakeError> {
        if !bytes.starts_with(HANDSHAKE_MAGIC) {
            return Err(HandshakeError::NotAHandshake);
        }
        let (content, sum) = bytes.split_last_chunk().ok_or(HandshakeError::Damaged)?;
        if crc32fast::hash(content) != u32::from_le_bytes(*sum) {
            return Err(HandshakeError::Damaged);
        }
        Self::from_content(content).ok_or(HandshakeError::NotUnderstood)
    }

    fn from_content(content: &[u8]) -> Option<Self> {
        let ([replies], rest) = content.get(HANDSHAKE_MAGIC.len()..)?.split_first_chunk()?;
        let replies = match replies {
            0 => Replies::None,
            1 => Replies::Stale,
            2 => Replies::All,
            _ => return None,
        };
        let (len, rest) = rest.split_first_chunk()?;
        let (name, metadata) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
        let name = std::str::from_utf8(name).ok()?.to_owned();
        Some(Handshake { name, replies, metadata: metadata.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sealed(mut content: Vec<u8>) -> Vec<u8> {
        let sum = crc32fast::hash(&content);
        content.extend_from_slice(&sum.to_le_bytes());
        content
    }

    #[test]
    fn a_handshake_with_one_bit_changed_or_cut_anywhere_is_refused() {
        let bytes = Handshake { name: "d".into(), replies: Replies::All, metadata: vec![0; 20] }.to_bytes();
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Handshake::from_bytes(&damaged).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(Handshake::from_bytes(&bytes[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn a_sound_check_sum_does_not_make_sense_of_nonsense() {
        let head = |replies: u8, len: u64| [&HANDSHAKE_MAGIC[..], &[replies], &len.to_le_bytes()].concat();
        for content in [
            HANDSHAKE_MAGIC.to_vec(),
            head(3, 0),
            head(0, 1),
            head(0, u64::MAX),
            [head(0, 1), vec![0xff]].concat(),
            HANDSHAKE_MAGIC[..].iter().copied().chain([1, 2]).collect(),
        ] {
            assert_eq!(Handshake::from_bytes(&sealed(content)), Err(HandshakeError::NotUnderstood));
        }
        assert_eq!(Handshake::from_bytes(&sealed(b"KVLEASE2".to_vec())), Err(HandshakeError::NotAHandshake));
        let least = Handshake { name: String::new(), replies: Replies::None, metadata: Vec::new() };
        assert_eq!(Handshake::from_bytes(&sealed(head(0, 0))), Ok(least));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_handshake_comes_back_and_any_bytes_are_answered(
            name in ".{0,40}", replies in 0..3_usize, metadata: Vec<u8>, junk: Vec<u8>, magic: bool,
        ) {
            let replies = [Replies::None, Replies::Stale, Replies::All][replies];
            let handshake = Handshake { name, replies, metadata };
            prop_assert_eq!(Handshake::from_bytes(&handshake.to_bytes()), Ok(handshake));
            let junk = if magic { [HANDSHAKE_MAGIC, &junk[..]].concat() } else { junk };
            let _ = Handshake::from_bytes(&junk);
            let _ = Handshake::from_bytes(&sealed(junk.clone()));
            let _ = metadata_name(&junk);
        }
    }

    #[test]
    fn the_name_in_the_metadata_is_found_or_it_is_not_looked_for() {
        let blob = |len: u64, rest: &[u8]| [b"nixlSerDes|Agent", &len.to_le_bytes()[..], rest].concat();
        assert_eq!(metadata_name(&blob(9, b"prefill-0|Conns")), Some(&b"prefill-0"[..]));
        for other in [blob(9, b"short"), blob(u64::MAX, b""), b"nixlSerDes|Other".to_vec(), Vec::new()] {
            assert_eq!(metadata_name(&other), None);
        }
    }

    #[test]
    fn without_the_library_there_is_an_error_that_says_what_to_install() {
        // What the calls give where there is none; `tests/nixl.rs` makes them there.
        let text = TransportError::from(NixlError::LibraryNotFound).to_string();
        assert!(text.contains("nixl-cu12") && text.contains("LD_LIBRARY_PATH"), "{text}");
    }
}
