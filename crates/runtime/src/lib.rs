//! Options, messenger, authentication, logs, metrics, and the seams for clock and disk.
//!
//! What every daemon and client stands on. Nothing here knows of PGs, stores or maps.

pub mod auth;
pub mod config;
pub mod error;
pub mod msgr;
pub mod options;

pub use config::Config;
pub use error::{Error, Result};
