//! The persistent queues of notification topics (docs/format/queues.md): the RADOS operations that move, deliver, spill,
//! park and reshard events, and the meaning of their replies.
//!
//! The crate is pure: no I/O, no clock, no threads, no randomness. Functions build operations ([`op::ObjectOp`],
//! [`op::ObjectRead`]) from earlier replies, and interpret replies; times and random numbers are arguments. The caller that
//! executes the operations is responsible for I/O, retries and pacing. The gateway and the model test (`tests/model`) run
//! the same functions.
//!
//! The path of an event:
//!
//! 1. A bucket index holds it as an outbox record. A mover enqueues many events into a shard with one operation, each
//!    exactly once ([`enqueue`]), and removes the outbox records.
//! 2. The shard's owner ([`lease`]) loads it into its window, which determines when it may be sent ([`window`], [`retry`],
//!    [`clock`]).
//! 3. Its outcome is written together with those of many others ([`settle`]): delivered, parked for another attempt, or a
//!    dead letter ([`dead_letters`]).
//!
//! In addition, [`spill`] keeps the shard's object small while an endpoint is down, [`admission`] lets topics refuse
//! operations when their queue is full, [`layout`] and [`reshard`] change the number of shards, and [`stats`] reports to
//! operators.

pub mod admission;
pub mod clock;
pub mod dead_letters;
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
