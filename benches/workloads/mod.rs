//! What is done to the maps and trackers.

pub mod growth;
pub mod heartbeat;
pub mod lifecycle;
pub mod memory;
pub mod pump;
pub mod sweep;
pub mod trace;
