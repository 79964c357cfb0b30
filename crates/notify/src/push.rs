//! The seam to endpoints: what delivery asks of clients of Kafka, HTTP and AMQP.

use futures::future::BoxFuture;
use nacre_topics::endpoint::Endpoint;
use nacre_topics::record::Event;
use nacre_topics::topic::TopicId;
use std::sync::Arc;

/// An event to be pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The event.
    pub event: Arc<Event>,
    /// The `OpaqueData` that its topic has now.
    pub opaque_data: Arc<str>,
    /// Whether an operator sends it again out of the dead letters.
    pub is_replayed: bool,
}

/// Why an event was not delivered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The endpoint works and refuses this event: another attempt is the event's own matter.
    #[error("refused: {0}")]
    Refused(String),
    /// The endpoint can't be reached or does not answer: other events of the endpoint fare no better.
    #[error("unavailable: {0}")]
    Unavailable(String),
}

/// What a connection is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Where events go.
    pub endpoint: Endpoint,
    /// The topic.
    pub topic: TopicId,
    /// The queue, where events are written in transactions: its owner's `transactional.id`. The first push of a connection
    /// for a queue fences the connections that others opened for it: their later pushes fail for good.
    pub queue: Option<String>,
}

/// Opens connections to endpoints.
pub trait Pusher: Send + Sync + 'static {
    /// A connection, made when it is first used. Whoever opens it keeps it as long as the endpoint stays the same. Fails where
    /// the endpoint can't be used at all, such as a CA file that is missing.
    fn open(&self, target: &Target) -> Result<Arc<dyn Connection>, Failure>;
}

/// A connection to an endpoint, for any number of pushes at the same time.
pub trait Connection: Send + Sync + 'static {
    /// Pushes events, those of one key in this order; the future ends when the fate of each is known, at the latest seconds
    /// after the timeout of a push, and has as many outcomes as there are messages. Where the endpoint refuses several events
    /// together, the connection sends them apart, so that an event is refused for its own sake only. Who wants no later event of a key
    /// delivered before an earlier one that fails has one event of it in flight. An event whose outcome is `Ok` is delivered as the endpoint's ack level
    /// says. Dropped before its end, events may have been delivered or not.
    fn push(&self, messages: Vec<Message>) -> BoxFuture<'static, Vec<Result<(), Failure>>>;
}
