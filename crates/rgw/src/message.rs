//! What gateways notify each other of.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How long to wait for answers of other gateways.
pub(crate) const QUERY_TIMEOUT: Duration = Duration::from_secs(5);
/// The object in `default.rgw.control` that all gateways watch.
pub(crate) const NOTIFY_OBJECT: &str = "notify.0";

/// A notification from one gateway to the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum GatewayMessage {
    /// A user or its keys.
    User(String),
    /// A bucket.
    Bucket(String),
    /// A role.
    Role(String),
    /// A notification topic, by tenant and name: `TENANT:NAME`.
    Topic(String),
    /// Not a change, but a request for the state of the circuit breaker of the topic with that id in each gateway. The
    /// acknowledgement contains the answer ([`BreakerState::as_str`](nacre_queues::retry::BreakerState::as_str)).
    AskBreaker(String),
    /// Not a change, but a question: whether a gateway supports storage classes
    /// ([`STORAGE_CLASSES_ANSWER`](crate::zone::STORAGE_CLASSES_ANSWER)).
    AskStorageClasses,
}
