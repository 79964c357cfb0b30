//! The crate's errors, by what a caller can do about them.

use nacre_mapstore::{MapStoreError, PersistError};
use nacre_types::errno::Errno;

/// Why the map authority could not start or continue.
#[derive(Debug, thiserror::Error)]
pub enum MonError {
    /// The map can't be read or written, or another map authority has taken over.
    #[error(transparent)]
    Map(#[from] PersistError),
    /// The configuration or an argument can't be used.
    #[error("{0}")]
    Invalid(String),
    /// The socket or the messenger failed.
    #[error("network: {0}")]
    Network(String),
}

impl From<MapStoreError> for MonError {
    fn from(error: MapStoreError) -> Self {
        MonError::Map(error.into())
    }
}

impl MonError {
    /// The error number for callers that need one.
    pub fn errno(&self) -> Errno {
        match self {
            MonError::Map(error) => error.errno(),
            MonError::Invalid(_) => Errno::EINVAL,
            MonError::Network(_) => Errno::ENOTCONN,
        }
    }
}
