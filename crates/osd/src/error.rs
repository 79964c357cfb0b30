//! The crate's error type: why an OSD can't be created or started.

use nacre_shard::error::LoadError;
use nacre_store::StoreError;
use nacre_types::encoding::DecodeError;
use nacre_types::errno::Errno;
use nacre_types::ids::{OsdId, PgId};
use uuid::Uuid;

/// An error in creating, starting or stopping an OSD.
#[derive(Debug, thiserror::Error)]
pub enum OsdError {
    /// The store failed or refused the operation.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An error of the configuration, the keys or the messenger.
    #[error(transparent)]
    Runtime(#[from] nacre_common::error::Error),
    /// A record in the store can't be read.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The store has no OSD superblock: mkfs must be run.
    #[error("the store holds no OSD superblock: make it with mkfs first")]
    NoSuperblock,
    /// The store belongs to another OSD.
    #[error("the store belongs to {found} of cluster {found_fsid}, not to {wanted} of {wanted_fsid}")]
    WrongOwner {
        /// The OSD in the superblock.
        found: OsdId,
        /// Its cluster.
        found_fsid: Uuid,
        /// The OSD that is starting.
        wanted: OsdId,
        /// Its cluster.
        wanted_fsid: Uuid,
    },
    /// A PG's copy is unusable.
    #[error("pg {pg}: {detail}")]
    Pg {
        /// The PG.
        pg: PgId,
        /// The defect.
        detail: String,
    },
    /// An option or argument is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The operating system returned an error.
    #[error("{what}: {source}")]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// The operating system's error.
        source: std::io::Error,
    },
}

impl From<LoadError> for OsdError {
    fn from(error: LoadError) -> OsdError {
        match error {
            LoadError::Store(error) => OsdError::Store(error),
            LoadError::Decode(error) => OsdError::Decode(error),
        }
    }
}

impl OsdError {
    /// Returns the errno for exit codes and replies to commands.
    pub fn errno(&self) -> Errno {
        match self {
            OsdError::Store(error) => error.errno(),
            OsdError::Runtime(error) => error.errno(),
            OsdError::Decode(_) | OsdError::Pg { .. } => Errno::EIO,
            OsdError::NoSuperblock => Errno::ENOENT,
            OsdError::WrongOwner { .. } | OsdError::Invalid(_) => Errno::EINVAL,
            OsdError::Io { source, .. } => Errno(source.raw_os_error().unwrap_or(Errno::EIO.0)),
        }
    }
}
