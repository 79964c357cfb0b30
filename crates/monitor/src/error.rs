//! The crate's errors, by what a caller can do about them.

use crate::mapstore::MapStoreError;
use nacre_types::encoding::DecodeError;
use nacre_types::errno::Errno;

/// Why the map authority could not start or continue.
#[derive(Debug, thiserror::Error)]
pub enum MonError {
    /// The store failed, is in use by another process or is corrupt.
    #[error("map store: {0}")]
    Store(#[from] MapStoreError),
    /// Another map authority took over. This one must stop at once, because its state is stale.
    #[error("fenced: another map authority has taken over the store")]
    Fenced,
    /// A stored value can't be decoded.
    #[error("map store holds {what} that can't be used: {detail}")]
    Corrupt {
        /// The key or structure.
        what: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The directory contains no cluster.
    #[error("{0} holds no cluster; make one with mkfs first")]
    NotInitialised(String),
    /// The directory already contains a cluster.
    #[error("{0} holds a cluster already")]
    AlreadyInitialised(String),
    /// The configuration or an argument can't be used.
    #[error("{0}")]
    Invalid(String),
    /// The socket or the messenger failed.
    #[error("network: {0}")]
    Network(String),
}

impl From<DecodeError> for MonError {
    fn from(error: DecodeError) -> Self {
        let detail = error.to_string();
        MonError::Corrupt { what: "an encoding".into(), detail }
    }
}

impl MonError {
    /// The error number for callers that need one.
    pub fn errno(&self) -> Errno {
        match self {
            MonError::Store(error) => error.errno(),
            MonError::Fenced => Errno::EBLOCKLISTED,
            MonError::Corrupt { .. } => Errno::EIO,
            MonError::NotInitialised(_) => Errno::ENOENT,
            MonError::AlreadyInitialised(_) => Errno::EEXIST,
            MonError::Invalid(_) => Errno::EINVAL,
            MonError::Network(_) => Errno::ENOTCONN,
        }
    }
}
