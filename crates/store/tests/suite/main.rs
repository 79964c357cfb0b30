//! The suites that every store passes: conformance, model-based properties, full disk; and what is particular to each.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod allocation;
mod archive;
mod conformance;
mod damage;
mod data;
mod file;
mod flips;
mod full;
mod kv;
mod mem;
mod model;
mod overwrite;
mod reference;
mod repair;
mod stores;
