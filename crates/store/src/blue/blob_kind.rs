//! The kind of a blob: the type of its checksums, the amount of data that each covers, and its compression
//! (docs/format/bluestore.md).

use super::onode::{BLOCK_BYTES, MAX_BLOB_BLOCKS};
use super::varint::{self, FieldReader};
use crate::{ChecksumType, CompressionAlgorithm};
use nacre_types::crc32c::{self, crc32c};
use nacre_types::payload::Payload;

/// Maximum number of blocks under one checksum, as a power of two.
pub(super) const MAX_CHECKSUM_CHUNK_ORDER: u8 = 6;
const _: () = assert!(BLOCK_BYTES as usize == crc32c::BLOCK_BYTES);
const ORDER_SHIFT: u32 = 3;
const ALGORITHM_SHIFT: u32 = 6;

/// The compression of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlobCompression {
    pub(super) algorithm: CompressionAlgorithm,
    /// Size of the data in bytes, a multiple of the block size.
    pub(super) content: u32,
    /// Compressed size in bytes. Zeros follow up to the end of the blocks.
    pub(super) stored: u32,
}

/// A blob's kind. The default is the most common one: uncompressed, with a crc32c per block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlobFormat {
    pub(super) checksum: ChecksumType,
    /// One checksum covers `1 << chunk_order` blocks, counted from the blob's first block. The last chunk may be shorter.
    pub(super) chunk_order: u8,
    pub(super) packed: Option<BlobCompression>,
}

impl Default for BlobFormat {
    fn default() -> Self {
        BlobFormat { checksum: ChecksumType::Crc32c, chunk_order: 0, packed: None }
    }
}

impl BlobFormat {
    /// Number of blocks under one checksum.
    pub(super) fn checksum_chunk_blocks(self) -> u64 {
        1 << self.chunk_order
    }

    /// Bytes of data in a blob of `blocks` blocks.
    pub(super) fn uncompressed_bytes(self, blocks: u64) -> u64 {
        self.packed.map_or(blocks * BLOCK_BYTES, |packed| u64::from(packed.content))
    }

    /// Number of 32-bit words in the checksums of a blob of `blocks` blocks.
    pub(super) fn checksum_words(self, blocks: u64) -> u64 {
        let words = match self.checksum {
            ChecksumType::None => 0,
            ChecksumType::Xxhash64 => 2,
            _ => 1,
        };
        blocks.div_ceil(self.checksum_chunk_blocks()) * words
    }

    /// Bytes that one of these words takes in a record.
    fn word_bytes(self) -> usize {
        match self.checksum {
            ChecksumType::Crc32c8 => 1,
            ChecksumType::Crc32c16 => 2,
            _ => 4,
        }
    }

    /// Bytes that the checksums of a blob of `blocks` blocks take in a record.
    pub(super) fn checksum_bytes(self, blocks: u64) -> usize {
        self.checksum_words(blocks) as usize * self.word_bytes()
    }

    /// Like [`BlobFormat::append_checksums`], but combines the checksums that the data carries, if possible.
    pub(super) fn append_payload_checksums(self, data: &Payload, sums: &mut Vec<u32>) {
        match data.checksums() {
            Some(known)
                if self.checksum == ChecksumType::Crc32c
                    && data.len().is_multiple_of(crc32c::BLOCK_BYTES) =>
            {
                let chunks = known.chunks(self.checksum_chunk_blocks() as usize);
                sums.extend(chunks.map(|chunk| chunk.iter().copied().fold(0, crc32c::append_block_crc)));
            }
            _ => self.append_checksums(data, sums),
        }
    }

    /// Appends the checksums of `data`, which starts at a chunk boundary.
    pub(super) fn append_checksums(self, data: &[u8], sums: &mut Vec<u32>) {
        let chunk = (self.checksum_chunk_blocks() * BLOCK_BYTES) as usize;
        let chunks = data.chunks(chunk);
        match self.checksum {
            ChecksumType::None => {}
            ChecksumType::Crc32c if self.chunk_order == 0 => sums.extend(crc32c::blocks(data)),
            ChecksumType::Crc32c => sums.extend(chunks.map(crc32c)),
            ChecksumType::Crc32c16 => sums.extend(chunks.map(|chunk| crc32c(chunk) & 0xffff)),
            ChecksumType::Crc32c8 => sums.extend(chunks.map(|chunk| crc32c(chunk) & 0xff)),
            ChecksumType::Xxhash32 => sums.extend(chunks.map(|chunk| xxhash_rust::xxh32::xxh32(chunk, 0))),
            ChecksumType::Xxhash64 => sums.extend(chunks.flat_map(|chunk| {
                let sum = xxhash_rust::xxh64::xxh64(chunk, 0);
                [sum as u32, (sum >> 32) as u32]
            })),
        }
    }

    /// The first chunk whose checksum differs from the one in `sums`. `data` starts with chunk number `first`.
    pub(super) fn first_mismatch(self, first: u64, data: &[u8], sums: &[u32]) -> Option<u64> {
        let words = self.checksum_words(1) as usize;
        if words == 0 {
            return None;
        }
        let mut found = Vec::new();
        self.append_checksums(data, &mut found);
        let wanted = sums.get(first as usize * words..).unwrap_or_default();
        let equal = found
            .chunks(words)
            .zip(wanted.chunks(words))
            .take_while(|(found, wanted)| found == wanted)
            .count();
        (equal < found.len() / words).then_some(first + equal as u64)
    }

    /// Appends checksums in the encoding of records.
    pub(super) fn encode_checksums(self, sums: &[u32], out: &mut Vec<u8>) {
        let bytes = self.word_bytes();
        sums.iter().for_each(|sum| out.extend_from_slice(&sum.to_le_bytes()[..bytes]));
    }

    /// Decodes checksums of a record.
    pub(super) fn decode_checksums(self, bytes: &[u8]) -> Vec<u32> {
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
        bytes.chunks_exact(self.word_bytes()).map(word).collect()
    }

    /// Appends the encoding of the kind.
    pub(super) fn put(self, out: &mut Vec<u8>) {
        let checksum = match self.checksum {
            ChecksumType::Crc32c => 0,
            ChecksumType::Crc32c16 => 1,
            ChecksumType::Crc32c8 => 2,
            ChecksumType::Xxhash32 => 3,
            ChecksumType::Xxhash64 => 4,
            ChecksumType::None => 5,
        };
        let algorithm = self.packed.map_or(0, |packed| match packed.algorithm {
            CompressionAlgorithm::Lz4 => 1,
            CompressionAlgorithm::Zstd => 2,
            CompressionAlgorithm::Snappy => 3,
        });
        varint::put(
            out,
            checksum | u64::from(self.chunk_order) << ORDER_SHIFT | algorithm << ALGORITHM_SHIFT,
        );
        if let Some(packed) = self.packed {
            varint::put(out, u64::from(packed.content));
            varint::put(out, u64::from(packed.stored));
        }
    }

    /// Decodes the kind of a blob of `blocks` blocks.
    pub(super) fn take(fields: &mut FieldReader<'_>, blocks: u64) -> Option<BlobFormat> {
        let number = fields.number()?;
        let checksum = match number & 7 {
            0 => ChecksumType::Crc32c,
            1 => ChecksumType::Crc32c16,
            2 => ChecksumType::Crc32c8,
            3 => ChecksumType::Xxhash32,
            4 => ChecksumType::Xxhash64,
            5 => ChecksumType::None,
            _ => return None,
        };
        let chunk_order = (number >> ORDER_SHIFT & 7) as u8;
        let algorithm = match number >> ALGORITHM_SHIFT {
            0 => None,
            1 => Some(CompressionAlgorithm::Lz4),
            2 => Some(CompressionAlgorithm::Zstd),
            3 => Some(CompressionAlgorithm::Snappy),
            _ => return None,
        };
        let packed = match algorithm {
            None => None,
            Some(algorithm) => {
                let packed = BlobCompression { algorithm, content: fields.small()?, stored: fields.small()? };
                let content = u64::from(packed.content);
                let whole = content.is_multiple_of(BLOCK_BYTES) && content <= MAX_BLOB_BLOCKS * BLOCK_BYTES;
                let fits = packed.stored > 0 && u64::from(packed.stored) <= blocks * BLOCK_BYTES;
                if !whole || !fits {
                    return None;
                }
                Some(packed)
            }
        };
        (chunk_order <= MAX_CHECKSUM_CHUNK_ORDER).then_some(BlobFormat { checksum, chunk_order, packed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_take_what_is_said() {
        let data = vec![7; 5 * BLOCK_BYTES as usize];
        for (checksum, bytes) in [
            (ChecksumType::None, 0),
            (ChecksumType::Crc32c8, 3),
            (ChecksumType::Crc32c16, 6),
            (ChecksumType::Crc32c, 12),
            (ChecksumType::Xxhash32, 12),
            (ChecksumType::Xxhash64, 24),
        ] {
            let kind = BlobFormat { checksum, chunk_order: 1, packed: None };
            let (mut sums, mut record) = (Vec::new(), Vec::new());
            kind.append_checksums(&data, &mut sums);
            kind.encode_checksums(&sums, &mut record);
            assert_eq!((sums.len() as u64, record.len()), (kind.checksum_words(5), bytes), "{checksum:?}");
            assert_eq!(
                (kind.checksum_bytes(5), kind.decode_checksums(&record)),
                (bytes, sums.clone()),
                "{checksum:?}"
            );
            for (order, blocks) in [(0, 5), (1, 5), (1, 4), (2, 1)] {
                let kind = BlobFormat { chunk_order: order, ..kind };
                let part =
                    Payload::with_checksums(data.clone().into()).slice(0..blocks * BLOCK_BYTES as usize);
                let (mut made, mut carried) = (Vec::new(), Vec::new());
                kind.append_checksums(&part, &mut made);
                kind.append_payload_checksums(&part, &mut carried);
                assert_eq!(carried, made, "{checksum:?} {order} {blocks}");
            }
            let mut changed = data.clone();
            changed[3 * BLOCK_BYTES as usize] ^= 1;
            let mut others = Vec::new();
            kind.append_checksums(&changed, &mut others);
            assert_eq!(sums == others, checksum == ChecksumType::None, "{checksum:?}");
        }
    }
}
