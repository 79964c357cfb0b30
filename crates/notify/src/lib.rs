//! Delivery of bucket notifications: topic records in RADOS, movers that enqueue what bucket indexes have in their outboxes,
//! owners of queue shards that push events to endpoints in order, resharding, dead letters.
//!
//! The protocol is in `nacre-queues` and `nacre-index`, which are pure; this crate executes it over the engine seam. Time,
//! tasks and random numbers come from [`nacre_task::Env`] alone, so that the simulator runs it. Connections to endpoints are
//! behind [`push::Pusher`]: nothing here knows Kafka, HTTP or AMQP.

mod error;
pub mod push;
pub mod topic_store;

pub use error::{Error, Result};
