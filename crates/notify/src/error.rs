//! The crate's errors, grouped by what a caller can do about them.

use nacre_topics::arn::TopicArn;

/// An error of this crate.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// RADOS failed. After a timeout, the operation may have taken effect.
    #[error(transparent)]
    Rados(#[from] nacre_engine::Error),
    /// Another gateway changed the object since it was read. Read it again.
    #[error("{0} was changed by another gateway")]
    Changed(String),
    /// A queue, or a record beside it, can't be decoded.
    #[error(transparent)]
    Queue(#[from] nacre_queues::Error),
    /// A record of a bucket index can't be decoded.
    #[error(transparent)]
    Index(#[from] nacre_index::Error),
    /// A topic's record can't be decoded.
    #[error("{object}: {source}")]
    Corrupt {
        /// The object that holds it.
        object: String,
        /// What is wrong.
        source: nacre_types::encoding::DecodeError,
    },
    /// Attributes, names or numbers that are invalid for a topic.
    #[error(transparent)]
    Topic(#[from] nacre_topics::Error),
    /// There is no such topic.
    #[error("there is no topic {0}")]
    NoSuchTopic(TopicArn),
    /// The topic's queues have the maximum number of generations that are not drained.
    #[error("{0} has too many generations of queues that are not drained; try again when some are")]
    TooManyGenerations(TopicArn),
    /// An object of a queue belongs to another existing topic.
    #[error("{object} is a queue of the topic with the id {owner}")]
    Foreign {
        /// The object.
        object: String,
        /// The id of the topic that it belongs to.
        owner: String,
    },
    /// Other gateways changed the same object repeatedly.
    #[error("{0} is changed by others all the time; try again")]
    Contended(String),
    /// Delivery has been stopped.
    #[error("the delivery of notifications has been stopped")]
    Stopped,
}

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;
