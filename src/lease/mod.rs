//! One lease: its word (pure), and the entry that holds the word, the consumers and the payload.

pub(crate) mod entry;
pub(crate) mod word;
