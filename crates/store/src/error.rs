//! Failures of RocksDB as errors of a store.

pub(crate) use nacre_objectstore::{Result, StoreError};

/// A failed call of RocksDB.
pub(crate) fn database(what: &'static str, error: &rocksdb::Error) -> StoreError {
    match error.kind() {
        rocksdb::ErrorKind::Corruption => StoreError::corrupt(what, error.to_string()),
        _ => StoreError::Database { what, detail: error.to_string() },
    }
}
