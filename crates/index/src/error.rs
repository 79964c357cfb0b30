//! Errors of building operations and of interpreting replies.

use nacre_types::encoding::DecodeError;

/// An error of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A record is damaged or of an unknown format. Never retried; an operator must act.
    #[error("{name}: {source}")]
    Corrupt {
        /// What holds the record.
        name: String,
        /// What is wrong with it.
        source: DecodeError,
    },
    /// Too many changes of the key are unfinished. The request is retried later.
    #[error("{0}: too many changes of the object wait to be finished: try again later")]
    TooManyPending(String),
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A reply of RADOS does not match the operation.
impl From<DecodeError> for Error {
    fn from(source: DecodeError) -> Error {
        Error::Corrupt { name: "reply".to_owned(), source }
    }
}

impl Error {
    /// The record `what` in `name` is damaged.
    pub(crate) fn corrupt(name: &str, what: &'static str, detail: &str) -> Error {
        let source = DecodeError::Corrupt { what, detail: detail.to_owned() };
        Error::Corrupt { name: name.to_owned(), source }
    }
}
