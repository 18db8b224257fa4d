//! Longer texts beside the reference.
//!
//! | page | for |
//! |---|---|
//! | [`guide`] | who keeps this account in some dicts today: from there to the tracker, step by step |
//! | [`outcomes`] | what each answer means, and what to do about it |
//! | [`integration`] | an engine's step loop, and a tokio runtime |
//! | [`sizing`] | limits, lease times and memory: formulas, and a worked example |
//! | [`progress`] | what waits for what (nothing), and at which instruction each call takes effect |
//! | [`orderings`] | every atomic access and its partner |
//! | [`comparison`] | how public connectors keep this account, with sources |

#[doc = include_str!("comparison.md")]
pub mod comparison {}
#[doc = include_str!("guide.md")]
pub mod guide {}
#[doc = include_str!("integration.md")]
pub mod integration {}
#[doc = include_str!("orderings.md")]
pub mod orderings {}
#[doc = include_str!("outcomes.md")]
pub mod outcomes {}
#[doc = include_str!("progress.md")]
pub mod progress {}
#[doc = include_str!("sizing.md")]
pub mod sizing {}
