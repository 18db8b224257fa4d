//! Models of the crate under loom: see the README of this package for what they claim, and their table.
//!
//! They are part of the crate's own test build, so that they run its own code, private parts included.

mod deadline;
mod entry;
mod explorer;
mod harness;
mod litmus;
mod map;
mod parts;
mod scripts;
mod table;
mod tracker;
mod word;
