//! Messenger, admin sockets, logs, the exporter and signals: communication between daemons, clients and the machine.
//!
//! Does not know about PGs, stores or maps.

/// Counts allocations, for tests that damage frames.
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
