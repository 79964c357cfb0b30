//! Bucket notifications, the part without I/O: topics and their attributes, push endpoints, bucket notification
//! configurations, event records, the SNS protocol, and the names of queue objects.
//!
//! Everything here is a pure function of its arguments: no I/O, no clock, no threads, no randomness. The gateway reads and
//! stores the records, resolves host names, signs and authorizes requests, and delivers the events; this crate tells it
//! what they mean. Names, defaults and formats are those of Ceph's radosgw, which docs/notifications.md lists.
//!
//! - [`topic`]: the topic record and its [`attributes`].
//! - [`endpoint`]: where a topic's events go, and which addresses and files an endpoint may name.
//! - [`config`]: which changes of a bucket's objects have events for which topics.
//! - [`event`]: the types of events.
//! - [`pending`]: the possible events of a change in progress, and which of them it has when it finishes.
//! - [`record`]: the event as consumers receive it.
//! - [`sns`]: requests and answers of the topic API.
//! - [`names`], [`arn`]: names of topics, queue objects and resources.

pub mod arn;
pub mod attributes;
pub mod config;
pub mod endpoint;
mod error;
pub mod event;
pub mod names;
pub mod pending;
pub mod record;
mod secret;
pub mod sns;
pub mod topic;
mod xml;

pub use error::{Error, Result};
pub use secret::Secret;
