//! Options, messenger, authentication, logs, metrics, and the seams for clock and disk.
//!
//! What every daemon and client stands on. Nothing here knows of PGs, stores or maps.

pub mod admin;
pub mod auth;
pub mod clock;
pub mod config;
pub mod error;
pub mod exporter;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod fuzz;
pub mod host;
pub mod lock;
pub mod log;
pub mod metrics;
pub mod msgr;
pub mod options;
pub mod service_manager;
pub mod signal;

pub use config::Config;
pub use error::{Error, Result};
