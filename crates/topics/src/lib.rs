//! The part of bucket notifications without I/O: topics and their attributes, push endpoints, bucket notification
//! configurations, event records, the SNS protocol, and the names of queue objects.
//!
//! All functions are pure: no I/O, no clock, no threads, no randomness. The gateway reads and stores the records, resolves
//! host names, signs and authorizes requests, and delivers the events; this crate defines what they mean. Names, defaults
//! and formats are those of Ceph's radosgw; docs/notifications.md lists them.
//!
//! - [`topic`]: the topic record and its [`attributes`].
//! - [`endpoint`]: the destination of a topic's events, and which addresses and files it may name.
//! - [`notification_config`]: which changes of a bucket's objects have events for which topics.
//! - [`event`]: the types of events.
//! - [`pending`]: the possible events of a change in progress, and which of them it has when it is finished.
//! - [`record`]: the event as consumers receive it.
//! - [`sns`]: requests and replies of the topic API.
//! - [`names`], [`arn`]: names of topics, queue objects and resources.

pub mod arn;
pub mod attributes;
pub mod endpoint;
mod error;
pub mod event;
pub mod names;
pub mod notification_config;
pub mod pending;
pub mod record;
mod secret;
pub mod sns;
pub mod topic;
mod uri;
mod xml;

pub use error::{Error, Result};
pub use secret::Secret;
