//! The error in loading what the store has of an OSD.

use nacre_objectstore::StoreError;
use nacre_types::encoding::DecodeError;

/// The reason why a PG's copy, or a record of the OSD, can't be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Records are corrupt.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}
