//! The suites that every store passes: conformance, model-based properties, full disk; and what is particular to each.

mod conformance;
mod full;
mod mem;
mod model;
mod stores;
