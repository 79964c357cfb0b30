//! The persistent queues of notification topics: which RADOS operations move, deliver, spill, park and
//! reshard events, and what the answers mean (docs/format/queues.md).
//!
//! The crate is pure: no I/O, no clock, no threads, no randomness. Functions build operations
//! ([`op::ObjectOp`], [`op::ObjectRead`]) from what was read, and interpret what is read; times and random
//! numbers are arguments. Whoever executes them owns I/O, retries and pacing. The gateway and the model test
//! (`tests/model`) run the same functions.
//!
//! The way of an event:
//!
//! 1. A bucket index holds it as an outbox record. A mover enqueues many of them into a shard with one
//!    operation, each exactly once ([`enqueue`]), and removes the outbox records.
//! 2. The shard's owner ([`lease`]) loads it into its window, which says when it may be sent ([`window`],
//!    [`retry`], [`clock`]).
//! 3. What became of it is written with that of many others ([`settle`]): delivered, parked for another
//!    attempt, or a dead letter ([`dead`]).
//!
//! Beside that: [`spill`] keeps the shard's object small behind a dead endpoint, [`admission`] lets topics
//! refuse when they are full, [`layout`] and [`reshard`] change the number of shards, [`stats`] is what
//! operators see.

pub mod admission;
pub mod clock;
pub mod dead;
pub mod enqueue;
mod error;
pub mod layout;
pub mod lease;
pub mod name;
pub mod op;
pub mod record;
pub mod reshard;
pub mod retry;
pub mod settle;
pub mod shard;
pub mod spill;
pub mod stats;
pub mod window;

pub use error::{Error, Result};
