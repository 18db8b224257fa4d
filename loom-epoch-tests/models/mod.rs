//! Models of the map on the real epoch: see the README of `loom-tests` for what they claim.

mod epoch;
#[path = "../../loom-tests/models/explorer.rs"]
mod explorer;
#[path = "../../loom-tests/models/harness.rs"]
mod harness;
#[path = "../../loom-tests/models/scripts.rs"]
mod scripts;
