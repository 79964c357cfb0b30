//! The cluster map authority: what the cluster is, who may change it, and how it is kept.
//!
//! [`logic`] is pure: events with a virtual time go in, map changes and effects come out; the simulator drives it as
//! it is. [`mapstore`] keeps what it decides. Nothing else in the workspace depends on how either is done.
//!
//! Invariants: an epoch is durable before anybody sees it; every transaction compares the fencing key, so at most one
//! authority commits; a PG's membership changes only by compare-and-swap on the whole record.

#![recursion_limit = "256"]

mod auth_db;
mod commands;
mod config_db;
pub mod error;

pub mod health;
mod keys;
pub mod logic;
pub mod mapstore;
mod persist;
mod pgview;
mod prometheus;
mod server;
mod text;
mod usage;

pub use auth_db::AuthDb;
pub use commands::{CommandRequest, pool_variables};
pub use config_db::{ConfigDb, Mask, Subject, Who};
pub use error::MonError;
pub use server::{MonMetrics, MonServer, cluster_of, mint_generation, mkfs};
