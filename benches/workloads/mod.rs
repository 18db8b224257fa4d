//! What is done to the maps and trackers.

pub mod lifecycle;
