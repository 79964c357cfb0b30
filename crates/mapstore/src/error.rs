//! Why the map could not be written or read, by what a caller can do about it.

use crate::MapStoreError;
use nacre_types::encoding::DecodeError;
use nacre_types::errno::Errno;

/// An error of [`Persistence`](crate::Persistence).
#[derive(Debug, thiserror::Error)]
pub enum PersistError {
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
    /// The store contains no cluster.
    #[error("the map store holds no cluster; make one with mkfs first")]
    NotInitialised,
    /// The store already contains a cluster.
    #[error("the map store holds a cluster already")]
    AlreadyInitialised,
    /// The store was sealed: its cluster has another store, or an operation on it did not end.
    #[error("the map store is sealed: {0}")]
    Sealed(String),
    /// The store can't be filled.
    #[error("the map store can't be used for this: {0}")]
    InUse(String),
    /// What the store holds leaves no room for what was asked for.
    #[error("{0}")]
    Invalid(String),
}

impl From<DecodeError> for PersistError {
    fn from(error: DecodeError) -> Self {
        let detail = error.to_string();
        PersistError::Corrupt { what: "an encoding".into(), detail }
    }
}

impl PersistError {
    /// The value of a key, or the structure with this name, can't be used.
    pub(crate) fn corrupt(key: &[u8], detail: &str) -> PersistError {
        PersistError::Corrupt { what: String::from_utf8_lossy(key).into_owned(), detail: detail.to_owned() }
    }

    /// A key is missing.
    pub(crate) fn missing(key: &[u8]) -> PersistError {
        PersistError::corrupt(key, "it is missing")
    }

    /// The error number for callers that need one.
    pub fn errno(&self) -> Errno {
        match self {
            PersistError::Store(error) => error.errno(),
            PersistError::Fenced => Errno::EBLOCKLISTED,
            PersistError::Corrupt { .. } => Errno::EIO,
            PersistError::NotInitialised => Errno::ENOENT,
            PersistError::AlreadyInitialised => Errno::EEXIST,
            PersistError::Sealed(_) => Errno::EPERM,
            PersistError::InUse(_) => Errno::EEXIST,
            PersistError::Invalid(_) => Errno::EINVAL,
        }
    }
}
