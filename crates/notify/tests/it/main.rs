//! Delivery in the simulated world: several gateways over objects in memory, with a virtual clock and a seeded order; and over
//! whole simulated clusters ([`cluster`]).

#![allow(clippy::unwrap_used)]

mod bucket;
mod check;
mod cluster;
mod mutation;
mod operators;
mod policies;
mod s3;
mod scene;
mod scenes;
mod world;
