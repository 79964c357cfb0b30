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
//!
//! Modules form layers, and each uses only layers below it:
//!
//! 1. `core` has what all parts use: RADOS, the cache of topics, known gateways, the task group, and the `schedule`, in which
//!    any part requests checks of queue shards without knowing their tasks.
//! 2. `producer`, `admission`, `endpoints` and `closed_generations` have a state for each topic; `topic_state` combines them.
//!    `outbox` reads and trims the outboxes of bucket indexes.
//! 3. `generations` changes the generations of queues, `removal` removes queues.
//! 4. `owner` delivers one shard, `shard_tasks` starts owners when their checks are due.
//! 5. `mover` moves events from outboxes to producers, `scan` looks for work that was not reported.
//! 6. `notifier` creates the parts and is their interface.

mod admin;
mod admission;
mod closed_generations;
mod core;
mod endpoints;
mod error;
mod gateways;
mod generations;
mod metrics;
mod mover;
mod notifier;
mod outbox;
mod outboxes;
mod owner;
mod producer;
pub mod push;
mod queue_shard;
mod rados;
mod removal;
mod scan;
mod schedule;
mod settings;
mod shard_tasks;
mod sync_push;
mod tasks;
#[cfg(test)]
mod testing;
mod topic_cache;
mod topic_state;
pub mod topic_store;

pub use admin::{DeadLetterInfo, LetterSelection, QueuedEvent, TopicReport};
pub use admission::QueueReservation;
pub use error::{Error, Result};
pub use metrics::{Metric, MetricKind, Metrics};
pub use notifier::{Notifier, NotifierConfig};
pub use outboxes::{BucketOutbox, Outboxes};
pub use settings::{Settings, TopicDefaults};
pub use sync_push::SyncPushResult;
