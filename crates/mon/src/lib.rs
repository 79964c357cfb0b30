//! The logic of the cluster map authority: what the cluster is and who may change it.
//!
//! Pure: events with a time go into [`logic`], map changes and effects come out; the simulator drives it as it is. The daemon
//! around it, with sockets and the map store, is `nacre-monitor`.
//!
//! Invariants: what changes gathers in a proposal until the daemon says that it is durable, and no answer depends on it before;
//! a PG's membership changes only by compare-and-swap on the whole record.

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
pub use commands::{CommandRequest, pool_variables};
pub use config_db::{ConfigDb, ConfigVersion, Mask, Subject, Who};
