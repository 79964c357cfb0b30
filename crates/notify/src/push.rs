//! The interface to endpoints, which clients for Kafka, HTTP and AMQP implement.

use futures::future::BoxFuture;
use nacre_topics::endpoint::Endpoint;
use nacre_topics::record::Event;
use nacre_topics::topic::TopicId;
use std::sync::Arc;

/// An event to be pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushMessage {
    /// The event.
    pub event: Arc<Event>,
    /// The current `OpaqueData` of its topic.
    pub opaque_data: Arc<str>,
    /// Whether an operator replays it from the dead letters.
    pub is_replayed: bool,
}

/// The reason why an event was not delivered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushFailure {
    /// The endpoint works but rejects this event. Other events are not affected.
    #[error("refused: {0}")]
    Refused(String),
    /// The endpoint can't be reached or does not answer. Other events would fail as well.
    #[error("unavailable: {0}")]
    Unavailable(String),
}

/// The destination of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushTarget {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// The topic.
    pub topic: TopicId,
    /// The queue, if events are written in transactions: its owner's `transactional.id`. The first push of a connection for
    /// a queue fences the connections that others opened for it: their later pushes fail permanently.
    pub queue: Option<String>,
}

/// Opens connections to endpoints.
pub trait EndpointConnector: Send + Sync + 'static {
    /// Returns a connection, which is established on first use. The caller keeps it as long as the endpoint stays the same.
    /// Fails if the endpoint can't be used at all, for example because a CA file is missing.
    fn open(&self, target: &PushTarget) -> Result<Arc<dyn Connection>, PushFailure>;
}

/// A connection to an endpoint. Any number of pushes may run concurrently.
pub trait Connection: Send + Sync + 'static {
    /// Pushes events; events of one key are pushed in the given order. The future completes when the outcome of each event
    /// is known, at most a few seconds after the timeout of a push, and returns one outcome for each message.
    ///
    /// If the endpoint refuses several events together, the connection sends them separately, so that an event is refused
    /// only for its own sake. A caller that must not have a later event of a key delivered before an earlier one that fails
    /// has only one event of the key in flight. `Ok` means that the event was delivered according to the endpoint's ack
    /// level. If the future is dropped before it completes, events may have been delivered or not.
    fn push(&self, messages: Vec<PushMessage>) -> BoxFuture<'static, Vec<Result<(), PushFailure>>>;
}
