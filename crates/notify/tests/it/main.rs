//! Delivery in the simulated world: several gateways over objects in memory, with a virtual clock and a seeded order.

#![allow(clippy::unwrap_used)]

mod bucket;
mod check;
mod mutation;
mod operators;
mod policies;
mod s3;
mod scene;
mod scenes;
mod world;
