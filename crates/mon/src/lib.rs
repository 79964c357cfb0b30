//! The cluster map authority: what the cluster is, who may change it, and how it is kept.
//!
//! [`logic`] is pure: events with a virtual time go in, map changes and effects come out; the simulator drives it as
//! it is. [`mapstore`] keeps what it decides. Nothing else in the workspace depends on how either is done.
//!
//! Invariants: an epoch is durable before anybody sees it; every transaction compares the fencing key, so at most one
//! authority commits; a PG's membership changes only by compare-and-swap on the whole record.

pub mod error;
pub mod logic;
pub mod mapstore;

pub use error::MonError;
