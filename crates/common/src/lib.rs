//! Options, configuration, keys and capabilities, the records of handshakes, counters, throttles, and the seams for clocks and
//! connections.
//!
//! The basis of daemons and clients before they connect: no sockets, no threads, no asynchronous runtime. Those are in
//! `nacre-runtime`. The crate is independent of PGs, stores and maps.

pub mod auth;
pub mod clock;
pub mod config;
pub mod conn;
pub mod error;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod fuzz;
pub mod lock;
pub mod metrics;
pub mod options;
pub mod sync;
pub mod throttle;

pub use config::Config;
pub use error::{Error, Result};
