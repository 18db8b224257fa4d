//! Longer texts beside the reference.

#[doc = include_str!("orderings.md")]
pub mod orderings {}
