//! The crate's one error type: why an OSD can't be made or started.

use nacre_shard::shard::LoadError;
use nacre_store::StoreError;
use nacre_types::encoding::DecodeError;
use nacre_types::errno::Errno;
use nacre_types::ids::{OsdId, PgId};
use uuid::Uuid;

/// What can go wrong in making, starting and stopping an OSD.
#[derive(Debug, thiserror::Error)]
pub enum OsdError {
    /// The store failed or refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Configuration, keys or the messenger.
    #[error(transparent)]
    Runtime(#[from] nacre_common::error::Error),
    /// A record in the store can't be read.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The store was never given to an OSD: run mkfs.
    #[error("the store holds no OSD superblock: make it with mkfs first")]
    NoSuperblock,
    /// The store belongs to somebody else.
    #[error("the store belongs to {found} of cluster {found_fsid}, not to {wanted} of {wanted_fsid}")]
    WrongOwner {
        /// Whose it is.
        found: OsdId,
        /// Of which cluster.
        found_fsid: Uuid,
        /// Who wanted it.
        wanted: OsdId,
        /// Of which cluster.
        wanted_fsid: Uuid,
    },
    /// A PG's copy can't be used.
    #[error("pg {pg}: {detail}")]
    Pg {
        /// The PG.
        pg: PgId,
        /// What is wrong with it.
        detail: String,
    },
    /// An option or argument makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The operating system refused.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Its answer.
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
    /// The number for exit codes and commands.
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
