//! Messenger, admin sockets, logs, the exporter and signals: how daemons and clients talk to each other and to the machine.
//!
//! Nothing here knows of PGs, stores or maps.

/// Counts for tests that damage frames.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: nacre_fuzz::CountingAllocator = nacre_fuzz::CountingAllocator;

pub mod admin;
pub mod exporter;
pub mod host;
pub mod log;
pub mod msgr;
pub mod service_manager;
pub mod signal;
