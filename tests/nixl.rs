//! The real NIXL.
