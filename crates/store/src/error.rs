//! Conversion of RocksDB errors to store errors.

pub(crate) use nacre_objectstore::{Result, StoreError};

/// The error of a failed RocksDB call: corruption, or a database error.
pub(crate) fn database(what: &'static str, error: &rocksdb::Error) -> StoreError {
    match error.kind() {
        rocksdb::ErrorKind::Corruption => StoreError::corrupt(what, error.to_string()),
        _ => StoreError::Database { what, detail: error.to_string() },
    }
}
