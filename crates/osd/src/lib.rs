//! Object storage daemon: PG hosting, op execution, recovery.

pub mod caps;
pub mod exec;
pub mod metrics;
pub mod tracker;
pub mod up_sets;
