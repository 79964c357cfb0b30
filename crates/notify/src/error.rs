//! The crate's errors, by what a caller can do about them.

use nacre_topics::arn::TopicArn;

/// Why something could not be done.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// RADOS did not do it. Where that is a timeout it may have taken effect.
    #[error(transparent)]
    Rados(#[from] nacre_engine::Error),
    /// Another gateway changed the object since it was read: read it again.
    #[error("{0} was changed by another gateway")]
    Changed(String),
    /// A queue, or something beside it, can't be understood.
    #[error(transparent)]
    Queue(#[from] nacre_queues::Error),
    /// A record of a bucket index can't be understood.
    #[error(transparent)]
    Index(#[from] nacre_index::Error),
    /// A topic's record can't be understood.
    #[error("{object}: {source}")]
    Corrupt {
        /// The object that holds it.
        object: String,
        /// What is wrong.
        source: nacre_types::encoding::DecodeError,
    },
    /// Attributes, names or numbers that a topic can't have.
    #[error(transparent)]
    Topic(#[from] nacre_topics::Error),
    /// There is no such topic.
    #[error("there is no topic {0}")]
    NoSuchTopic(TopicArn),
    /// Generations of the topic's queues wait to be drained, as many as there may be.
    #[error("{0} has too many generations of queues that are not drained; try again when some are")]
    TooManyGenerations(TopicArn),
    /// An object of a queue belongs to another topic that exists.
    #[error("{object} is a queue of the topic with the id {owner}")]
    Foreign {
        /// The object.
        object: String,
        /// The id of the topic that it belongs to.
        owner: String,
    },
    /// Other gateways changed the same thing again and again.
    #[error("{0} is changed by others all the time; try again")]
    Contended(String),
    /// Delivery has been stopped.
    #[error("the delivery of notifications has been stopped")]
    Stopped,
}

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;
