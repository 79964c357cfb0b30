//! Deterministic simulation of whole clusters on a virtual clock.

pub mod client;
pub mod disk;
pub mod execute;
pub mod history;
pub mod linearize;
pub mod network;
pub mod random;
pub mod scenario;
pub mod schedule;
