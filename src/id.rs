//! Names of things: requests and consumers.

use smallstr::SmallString;
use std::borrow::Borrow;
use std::fmt;
use std::num::NonZeroU32;
use std::ops::Deref;

/// The id that the engine gave a request: any string, stored inline up to 64 bytes.
///
/// Calls of the tracker take `&str`; an owned `RequestId` comes back in a [`Release`](crate::Release).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(SmallString<[u8; 64]>);

impl RequestId {
    /// The id as a string.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for RequestId {
    fn from(id: &str) -> Self {
        RequestId(SmallString::from_str(id))
    }
}

impl Deref for RequestId {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for RequestId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

// `SmallString` hashes and compares as its `str`, so a look-up by `&str` finds the same entry.
impl Borrow<str> for RequestId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl PartialEq<str> for RequestId {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for RequestId {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One decode rank, as a small number that the connector gives it, for example through a
/// [`ConsumerRegistry`](crate::ConsumerRegistry) of agent names.
///
/// It tells consumers apart so that a repeated message is not counted twice. It is self-declared by
/// the peer and proves nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConsumerId(NonZeroU32);

impl ConsumerId {
    /// The highest number: 2³¹ − 1.
    pub const MAX: u32 = (1 << 31) - 1;

    /// The consumer with this number, or `None` for 0, which is kept for "nobody", and past
    /// [`MAX`](Self::MAX).
    pub const fn new(n: u32) -> Option<Self> {
        match NonZeroU32::new(n) {
            Some(n) if n.get() <= Self::MAX => Some(ConsumerId(n)),
            _ => None,
        }
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

impl fmt::Display for ConsumerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
