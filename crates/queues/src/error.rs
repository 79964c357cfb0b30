//! Errors in a caller's arguments or in an object's content.

use nacre_types::encoding::DecodeError;

/// An error of this crate. Conflicts with other gateways are not errors: functions return them as results.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An attribute, key or record of an object can't be decoded. Never retried: an operator must examine the object.
    #[error("{object}: {source}")]
    Corrupt {
        /// The object.
        object: String,
        /// What is wrong.
        source: DecodeError,
    },
    /// A name is invalid.
    #[error("{what} {name:?} is not valid: {reason}")]
    InvalidName {
        /// The kind of name.
        what: &'static str,
        /// The name.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// An event exceeds the size limit of queues.
    #[error("an event has {bytes} bytes; a queue takes events of up to {limit}")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A topic can't have this number of shards.
    #[error("a topic has 1 to {limit} shards, not {shards}")]
    InvalidShards {
        /// The number.
        shards: u32,
        /// The limit.
        limit: u32,
    },
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Corruption of an object that decoding did not detect.
pub(crate) fn corrupt(
    object: &impl std::fmt::Display,
    what: &'static str,
    detail: impl Into<String>,
) -> Error {
    let source = DecodeError::Corrupt { what, detail: detail.into() };
    Error::Corrupt { object: object.to_string(), source }
}
