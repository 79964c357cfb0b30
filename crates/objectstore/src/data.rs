//! How a store is to keep the data of a pool's objects: checksums and compression, in Ceph's terms.

use nacre_common::options::{ChecksumType, CompressionAlgorithm, CompressionMode};

/// How the data of one pool's objects is kept from now on; what is there stays as it was written. Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DataOptions {
    /// Checksums of new data.
    pub checksum: ChecksumType,
    /// `bluestore_csum_min_block`: data per checksum, where a write is that long.
    pub min_chunk_bytes: u64,
    /// `bluestore_csum_max_block`: the same for objects that clients hint to read in sequence and not to change.
    pub max_chunk_bytes: u64,
    /// When data is compressed.
    pub mode: CompressionMode,
    /// What it is compressed with.
    pub algorithm: CompressionAlgorithm,
    /// The share of its size that compressed data may take at most; else it is kept as it is.
    pub required_ratio: f64,
    /// Writes shorter than this are not compressed.
    pub min_blob_bytes: u64,
    /// Data is compressed in pieces of this size, at most 256 KiB.
    pub max_blob_bytes: u64,
}

impl Default for DataOptions {
    fn default() -> Self {
        DataOptions {
            checksum: ChecksumType::Crc32c,
            min_chunk_bytes: 4 << 10,
            max_chunk_bytes: 64 << 10,
            mode: CompressionMode::None,
            algorithm: CompressionAlgorithm::Snappy,
            required_ratio: 0.875,
            min_blob_bytes: 8 << 10,
            max_blob_bytes: 64 << 10,
        }
    }
}
