//! What can go wrong in a store, by what a caller can do about it.

use nacre_types::encoding::DecodeError;
use nacre_types::errno::Errno;
use nacre_types::ids::PgId;
use nacre_types::object::ObjectId;
use std::sync::Arc;

/// Result of store calls.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Why a store refused or failed. Cheap to clone: a stopped store answers every call with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The object is absent.
    #[error("{0}: no such object")]
    NotFound(ObjectId),
    /// The collection is absent.
    #[error("{0}: no such collection")]
    NoCollection(PgId),
    /// The collection still holds objects.
    #[error("{0}: collection is not empty")]
    NotEmpty(PgId),
    /// No space for what the transaction writes; nothing was changed. Removing objects still works.
    #[error("no space left: {wanted_bytes} bytes wanted, {available_bytes} available")]
    NoSpace {
        /// Bytes that were asked for.
        wanted_bytes: u64,
        /// Bytes that may still be given out.
        available_bytes: u64,
    },
    /// The request makes no sense; nothing was changed.
    #[error("invalid request: {0}")]
    Invalid(&'static str),
    /// The object would exceed [`crate::MAX_OBJECT_BYTES`]; nothing was changed.
    #[error("{oid}: object would grow to {size_bytes} bytes, the limit is {limit_bytes}")]
    TooLarge {
        /// The object.
        oid: ObjectId,
        /// The size it would have.
        size_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// What is on the device is not what was written. Never retried, never served.
    #[error("{what} is corrupt: {detail}")]
    Corrupt {
        /// What was read.
        what: String,
        /// What is wrong with it.
        detail: String,
    },
    /// Written by a release that this one can't read, or not decodable.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The operating system failed a call.
    #[error("{what}: {}", std::io::Error::from_raw_os_error(*.code))]
    Io {
        /// What was tried, on what.
        what: String,
        /// Its `errno`.
        code: i32,
    },
    /// The metadata database failed a call.
    #[error("{what}: {detail}")]
    Database {
        /// What was tried.
        what: &'static str,
        /// RocksDB's text.
        detail: String,
    },
    /// Another process has the store mounted.
    #[error("{0}: the store is in use by another process")]
    InUse(String),
    /// The path holds no store, another store's device, or already a store (mkfs).
    #[error("{path}: {reason}")]
    WrongStore {
        /// The path.
        path: String,
        /// What was found there.
        reason: String,
    },
    /// The store has stopped for good after a failure that must not be retried (a failed fsync, for instance).
    #[error("the store has stopped: {0}")]
    Stopped(Arc<str>),
    /// Mounting was told to stop.
    #[error("interrupted")]
    Interrupted,
    /// The store was unmounted.
    #[error("the store is not mounted")]
    NotMounted,
}

impl StoreError {
    /// The error of the last system call, on `what`.
    pub fn io(what: impl Into<String>, error: &std::io::Error) -> StoreError {
        StoreError::Io { what: what.into(), code: error.raw_os_error().unwrap_or(Errno::EIO.0) }
    }

    /// Corruption of `what`.
    pub fn corrupt(what: impl Into<String>, detail: impl Into<String>) -> StoreError {
        StoreError::Corrupt { what: what.into(), detail: detail.into() }
    }

    /// Whether contents can't be read: those of an object, where nothing else was touched.
    pub fn is_damage(&self) -> bool {
        matches!(self, StoreError::Corrupt { .. })
            || matches!(self, StoreError::Io { code, .. } if *code == Errno::EIO.0)
    }

    /// The number that clients get.
    pub fn errno(&self) -> Errno {
        match self {
            StoreError::NotFound(_) | StoreError::NoCollection(_) => Errno::ENOENT,
            StoreError::NotEmpty(_) => Errno::ENOTEMPTY,
            StoreError::NoSpace { .. } => Errno::ENOSPC,
            StoreError::Invalid(_) | StoreError::WrongStore { .. } => Errno::EINVAL,
            StoreError::TooLarge { .. } => Errno::EFBIG,
            StoreError::Corrupt { .. } | StoreError::Decode(_) | StoreError::Database { .. } => Errno::EIO,
            StoreError::Io { code, .. } => Errno(*code),
            StoreError::InUse(_) => Errno::EBUSY,
            StoreError::Interrupted => Errno::EINTR,
            StoreError::Stopped(_) | StoreError::NotMounted => Errno::ESHUTDOWN,
        }
    }
}
