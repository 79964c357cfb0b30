//! Delivery of bucket notifications: topic records in RADOS, movers that enqueue the events in the outboxes of bucket
//! indexes, owners of queue shards that push events to endpoints in order, resharding, and dead letters.
//!
//! The protocol is in `nacre-queues` and `nacre-index`, which are pure; this crate executes it through the engine's
//! interface. Time, tasks and random numbers come from [`nacre_task::Env`] only, so the simulator can run it. Connections
//! to endpoints are behind [`push::EndpointConnector`]: this crate does not know Kafka, HTTP or AMQP.
//!
//! A gateway has one [`Notifier`]. The path of an event through it:
//!
//! 1. A finish writes an outbox record and reports it ([`Notifier::outbox_written`]). The mover of the bucket reads the
//!    record, creates its events, and passes them to the producers of their queue shards. Each one enqueues events of all
//!    buckets together.
//! 2. The owner of the shard, this gateway or another one, loads the event, pushes it when its turn comes, and settles its
//!    outcome.
//!
//! Scans, and gateways that watch shards of other gateways, find the work that a dead gateway left. All of this is safe
//! without agreement between gateways; leases, locks and preferences only save work.

mod admin;
mod admission;
mod core;
mod drain_progress;
mod endpoints;
mod error;
mod generations;
mod metrics;
mod mover;
mod notifier;
mod outboxes;
mod owner;
mod producer;
pub mod push;
mod rados;
mod removal;
mod scan;
mod settings;
mod shard_tasks;
mod sync_push;
mod topic_cache;
pub mod topic_store;

pub use admin::{DeadLetterInfo, LetterSelection, QueuedEvent, TopicReport};
pub use admission::QueueReservation;
pub use error::{Error, Result};
pub use metrics::{Metric, MetricKind, Metrics};
pub use notifier::{Notifier, NotifierConfig};
pub use outboxes::{BucketOutbox, Outboxes};
pub use settings::{Settings, TopicDefaults};
pub use sync_push::SyncPushResult;
