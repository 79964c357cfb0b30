//! The logic of the cluster map authority, which owns the cluster map and checks every change of it.
//!
//! It has no I/O: [`logic`] takes events with a time and produces map changes and effects. The simulator runs it unchanged.
//! The daemon around it, with sockets and the map store, is `nacre-monitor`.
//!
//! Invariants: changes are collected in a proposal until the daemon reports that it is durable, and no answer depends on it
//! before; a PG's membership changes only by compare-and-swap on the whole record.

#![recursion_limit = "256"]

pub mod auth_db;
mod commands;
mod config_db;
pub mod health;
pub mod keys;
pub mod logic;
mod pgview;
mod prometheus;
#[cfg(any(test, feature = "testing"))]
#[allow(missing_docs, clippy::unwrap_used)]
pub mod testing;
mod text;
mod usage;

pub use auth_db::AuthDb;
pub use commands::pool_variables;
pub use config_db::{ConfigDb, ConfigMask, ConfigSubject, ConfigTarget, ConfigVersion};
pub use logic::CommandRequest;
