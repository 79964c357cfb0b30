//! The errors of a store, grouped by what a caller can do about them.

use nacre_types::encoding::DecodeError;
use nacre_types::errno::Errno;
use nacre_types::ids::PgId;
use nacre_types::object::ObjectId;
use std::sync::Arc;

/// Result of a store call.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Why a store refused a call or failed. Cheap to clone, because a stopped store returns the same error from every call.
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
    /// The store has no space for the data of the transaction. Nothing was changed. Transactions that remove objects still
    /// succeed.
    #[error("no space left: {wanted_bytes} bytes wanted, {available_bytes} available")]
    NoSpace {
        /// Bytes requested.
        wanted_bytes: u64,
        /// Bytes that can still be allocated.
        available_bytes: u64,
    },
    /// The request is invalid. Nothing was changed.
    #[error("invalid request: {0}")]
    Invalid(&'static str),
    /// The object would exceed [`crate::MAX_OBJECT_BYTES`]. Nothing was changed.
    #[error("{oid}: object would grow to {size_bytes} bytes, the limit is {limit_bytes}")]
    TooLarge {
        /// The object.
        oid: ObjectId,
        /// The size it would have.
        size_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// The device does not hold what was written to it. The read is never retried and the data is never returned.
    #[error("{what} is corrupt: {detail}")]
    Corrupt {
        /// What was read.
        what: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The data was written by a release that this one can't read, or can't be decoded.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A system call failed.
    #[error("{what}: {}", std::io::Error::from_raw_os_error(*.code))]
    Io {
        /// The operation and its target.
        what: String,
        /// Its `errno`.
        code: i32,
    },
    /// A call to the metadata database failed.
    #[error("{what}: {detail}")]
    Database {
        /// The operation.
        what: &'static str,
        /// RocksDB's error text.
        detail: String,
    },
    /// Another process has the store mounted.
    #[error("{0}: the store is in use by another process")]
    InUse(String),
    /// The path holds no store, or the device of another store, or (mkfs) already a store.
    #[error("{path}: {reason}")]
    WrongStore {
        /// The path.
        path: String,
        /// What was found there.
        reason: String,
    },
    /// The store has stopped permanently after a failure that must not be retried, such as a failed fsync.
    #[error("the store has stopped: {0}")]
    Stopped(Arc<str>),
    /// The mount was cancelled.
    #[error("interrupted")]
    Interrupted,
    /// The store was unmounted.
    #[error("the store is not mounted")]
    NotMounted,
}

impl StoreError {
    /// An I/O error on `what` with the error number of `error`, or `EIO` if it has none.
    pub fn io(what: impl Into<String>, error: &std::io::Error) -> StoreError {
        StoreError::Io { what: what.into(), code: error.raw_os_error().unwrap_or(Errno::EIO.0) }
    }

    /// An error that reports corruption of `what`.
    pub fn corrupt(what: impl Into<String>, detail: impl Into<String>) -> StoreError {
        StoreError::Corrupt { what: what.into(), detail: detail.into() }
    }

    /// Whether the error means that stored contents can't be read. If the call read a single object, that object is damaged.
    pub fn is_damage(&self) -> bool {
        matches!(self, StoreError::Corrupt { .. })
            || matches!(self, StoreError::Io { code, .. } if *code == Errno::EIO.0)
    }

    /// The error number that clients receive.
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
