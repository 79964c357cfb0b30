//! Delivery in the simulated world: several gateways over objects in memory, with a virtual clock and a seeded order.

#![allow(clippy::unwrap_used)]

mod check;
mod engine;
mod policies;
mod scenes;
mod world;
