//! Delivery of bucket notifications: topic records in RADOS, movers that enqueue what bucket indexes have in their outboxes,
//! owners of queue shards that push events to endpoints in order, resharding, dead letters.
//!
//! The protocol is in `nacre-queues` and `nacre-index`, which are pure; this crate executes it over the engine seam. Time,
//! tasks and random numbers come from [`nacre_task::Env`] alone, so that the simulator runs it. Connections to endpoints are
//! behind [`push::Pusher`]: nothing here knows Kafka, HTTP or AMQP.
//!
//! A gateway has one [`Notifier`]. The way of an event through it:
//!
//! 1. A finish wrote an outbox record, and says so ([`Notifier::outbox_written`]). The mover of the bucket reads it, makes
//!    its events, and hands them to the lanes of their queue shards, each of which enqueues those of all buckets at once.
//! 2. The owner of the shard, this gateway or another one, loads the event, pushes it when its turn has come, and settles
//!    what became of it.
//!
//! What a gateway that ended left is found by scans, and by those who watch shards of others. All of it is safe without
//! agreement between gateways; leases, locks and preferences only save work.

mod admission;
mod core;
mod endpoints;
mod error;
mod generations;
mod lane;
mod metrics;
mod mover;
mod notifier;
mod operators;
mod outboxes;
mod owner;
mod owners;
mod progress;
pub mod push;
mod rados;
mod removal;
mod scan;
mod settings;
mod sync_push;
mod topic_cache;
pub mod topic_store;

pub use admission::Admitted;
pub use error::{Error, Result};
pub use metrics::{Kind, Metric, Metrics};
pub use notifier::{Notifier, NotifierConfig};
pub use operators::{Letter, Letters, QueuedEvent, TopicReport};
pub use outboxes::{BucketOutbox, Outboxes};
pub use settings::{Settings, TopicDefaults};
pub use sync_push::SyncOutcome;
