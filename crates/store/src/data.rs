//! How a store is to keep the data of a pool's objects: checksums and compression, in Ceph's terms.

use std::fmt;
use std::str::FromStr;

/// What data is checked by (`bluestore_csum_type`, a pool's `csum_type`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChecksumType {
    /// Nothing: damage of the device is served. Only for pools whose users check their data themselves.
    None,
    /// 32 bits, Castagnoli's polynomial.
    #[default]
    Crc32c,
    /// The lower 16 bits of it.
    Crc32c16,
    /// The lower 8 bits of it.
    Crc32c8,
    /// 32 bits.
    Xxhash32,
    /// 64 bits.
    Xxhash64,
}

/// When data is compressed (`bluestore_compression_mode`, a pool's `compression_mode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompressionMode {
    /// Never.
    #[default]
    None,
    /// Where the client hints that it is compressible.
    Passive,
    /// Unless the client hints that it is not.
    Aggressive,
    /// Always.
    Force,
}

/// What data is compressed with (`bluestore_compression_algorithm`, a pool's `compression_algorithm`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompressionAlgorithm {
    /// Snappy, in its raw format.
    #[default]
    Snappy,
    /// LZ4, in its block format.
    Lz4,
    /// Zstandard, level 1.
    Zstd,
}

/// A name that is none of a setting's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownName;

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such type, mode or algorithm")
    }
}

impl std::error::Error for UnknownName {}

impl FromStr for ChecksumType {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<ChecksumType, UnknownName> {
        Ok(match name {
            "none" => ChecksumType::None,
            "crc32c" => ChecksumType::Crc32c,
            "crc32c_16" => ChecksumType::Crc32c16,
            "crc32c_8" => ChecksumType::Crc32c8,
            "xxhash32" => ChecksumType::Xxhash32,
            "xxhash64" => ChecksumType::Xxhash64,
            _ => return Err(UnknownName),
        })
    }
}

impl FromStr for CompressionMode {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<CompressionMode, UnknownName> {
        Ok(match name {
            "none" => CompressionMode::None,
            "passive" => CompressionMode::Passive,
            "aggressive" => CompressionMode::Aggressive,
            "force" => CompressionMode::Force,
            _ => return Err(UnknownName),
        })
    }
}

impl FromStr for CompressionAlgorithm {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<CompressionAlgorithm, UnknownName> {
        Ok(match name {
            "snappy" => CompressionAlgorithm::Snappy,
            "lz4" => CompressionAlgorithm::Lz4,
            "zstd" => CompressionAlgorithm::Zstd,
            _ => return Err(UnknownName),
        })
    }
}

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
            checksum: ChecksumType::default(),
            min_chunk_bytes: 4 << 10,
            max_chunk_bytes: 64 << 10,
            mode: CompressionMode::default(),
            algorithm: CompressionAlgorithm::default(),
            required_ratio: 0.875,
            min_blob_bytes: 8 << 10,
            max_blob_bytes: 64 << 10,
        }
    }
}
