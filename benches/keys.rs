//! What the maps are keyed by. A workload thinks in numbers, and each kind of key renders them.

use kvlease::RequestId;
use std::borrow::Borrow;
use std::hash::Hash;

/// A key that a number can be made into, and a cheaper form of it to look up by.
pub trait Key: Borrow<Self::Query> + Hash + Eq + Ord + Clone + Send + Sync + 'static {
    /// What the maps look up.
    type Query: Hash + Eq + Ord + ?Sized + 'static;
    /// The key as it arrives in a message: on the stack.
    type Arrived: AsRef<Self::Query> + Copy + Send;
    /// As the command line and the tables call it.
    const NAME: &'static str;

    /// The key that goes into the map.
    fn owned(number: u64) -> Self;
    /// The same key, to look up by.
    fn arrived(number: u64) -> Self::Arrived;
}

/// A number as it arrives.
#[derive(Clone, Copy)]
pub struct Number(u64);

impl AsRef<u64> for Number {
    fn as_ref(&self) -> &u64 {
        &self.0
    }
}

impl Key for u64 {
    type Query = u64;
    type Arrived = Number;
    const NAME: &'static str = "u64";

    #[inline]
    fn owned(number: u64) -> Self {
        number
    }

    #[inline]
    fn arrived(number: u64) -> Number {
        Number(number)
    }
}

/// A request id of 45 bytes, as an engine behind a router makes them.
#[derive(Clone, Copy)]
pub struct Id([u8; Id::LEN]);

impl Id {
    const LEN: usize = 45;

    /// Another id for each number. Costs a few nanoseconds, which every peer pays.
    #[inline]
    pub fn new(number: u64) -> Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = *b"cmpl-00000000-5680-4bd1-97f9-7ed300000000-012";
        let halves = [(5, (number >> 32) as u32), (33, number as u32)];
        for (at, half) in halves {
            for (place, byte) in half.to_be_bytes().into_iter().enumerate() {
                text[at + 2 * place] = DIGITS[usize::from(byte >> 4)];
                text[at + 2 * place + 1] = DIGITS[usize::from(byte & 15)];
            }
        }
        Id(text)
    }

    /// The id as text.
    #[inline]
    pub fn as_str(&self) -> &str {
        // SAFETY: `new` writes ASCII only.
        unsafe { std::str::from_utf8_unchecked(&self.0) }
    }
}

impl AsRef<str> for Id {
    #[inline]
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

/// What most programs have: the map's entry points to the text.
impl Key for Box<str> {
    type Query = str;
    type Arrived = Id;
    const NAME: &'static str = "id45";

    #[inline]
    fn owned(number: u64) -> Self {
        Id::new(number).as_str().into()
    }

    #[inline]
    fn arrived(number: u64) -> Id {
        Id::new(number)
    }
}

/// What the tracker has: the text lies in the entry.
impl Key for RequestId {
    type Query = str;
    type Arrived = Id;
    const NAME: &'static str = "inline45";

    #[inline]
    fn owned(number: u64) -> Self {
        Id::new(number).as_str().into()
    }

    #[inline]
    fn arrived(number: u64) -> Id {
        Id::new(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_45_bytes_and_differ() {
        let numbers = [0, 1, 0xffff_ffff, 1 << 32, u64::MAX, 0x0123_4567_89ab_cdef];
        let mut ids: Vec<_> = numbers.iter().map(|&n| <Box<str>>::owned(n)).collect();
        assert_eq!(&*ids[5], "cmpl-01234567-5680-4bd1-97f9-7ed389abcdef-012");
        assert!(ids.iter().all(|id| id.len() == 45));
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), numbers.len());
    }
}
