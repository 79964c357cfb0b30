//! How a store keeps the data of a pool's objects: checksums and compression, in Ceph's terms.

use nacre_common::options::{ChecksumType, CompressionAlgorithm, CompressionMode};

/// How new data of one pool's objects is kept. Data that is already stored does not change. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DataOptions {
    /// Checksums of new data.
    pub checksum: ChecksumType,
    /// `bluestore_csum_min_block`: bytes of data per checksum, for writes of at least this length.
    pub min_chunk_bytes: u64,
    /// `bluestore_csum_max_block`: the same for objects that clients hint to be read sequentially and not to be overwritten.
    pub max_chunk_bytes: u64,
    /// When data is compressed.
    pub mode: CompressionMode,
    /// The compression algorithm.
    pub algorithm: CompressionAlgorithm,
    /// The largest compressed size that is accepted, as a fraction of the original size. Larger results are stored uncompressed.
    pub required_ratio: f64,
    /// Writes shorter than this are not compressed.
    pub min_blob_bytes: u64,
    /// Data is compressed in blobs of this size, at most 256 KiB.
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
