//! Compression and decompression of blobs' data.

use super::blob_kind::BlobCompression;
use super::onode::BLOCK_BYTES;
use crate::blue::onode::AllocHint;
use crate::{CompressionAlgorithm, CompressionMode, DataOptions};

/// Zstandard's compression level: a fast one, with about lz4's speed of decompression and a better ratio.
const ZSTD_LEVEL: i32 = 1;

/// Clients' hints on an object's data (`rados_set_alloc_hint2`).
pub(super) mod hints {
    /// Will be read sequentially.
    pub(in crate::blue) const SEQUENTIAL_READ: u32 = 4;
    /// Will be written randomly.
    pub(in crate::blue) const RANDOM_WRITE: u32 = 2;
    /// Will be read randomly.
    pub(in crate::blue) const RANDOM_READ: u32 = 8;
    /// Will only be appended to.
    pub(in crate::blue) const APPEND_ONLY: u32 = 16;
    /// Will not change.
    pub(in crate::blue) const IMMUTABLE: u32 = 32;
    /// Can be compressed.
    pub(in crate::blue) const COMPRESSIBLE: u32 = 256;
    /// Can't be compressed.
    pub(in crate::blue) const INCOMPRESSIBLE: u32 = 512;
}

/// Whether a write of `len` bytes to an object with this hint should be compressed.
pub(super) fn should_compress(options: &DataOptions, hint: Option<AllocHint>, len: u64) -> bool {
    let flags = hint.map_or(0, |hint| hint.flags);
    let mode = match options.mode {
        CompressionMode::None => false,
        CompressionMode::Passive => flags & hints::COMPRESSIBLE != 0,
        CompressionMode::Aggressive => flags & hints::INCOMPRESSIBLE == 0,
        CompressionMode::Force => true,
    };
    mode && len >= options.min_blob_bytes.max(2 * BLOCK_BYTES)
}

/// Compresses `content`, which consists of whole blocks, into at most `limit` bytes. `None` if the result is larger.
pub(super) fn compress(
    algorithm: CompressionAlgorithm,
    content: &[u8],
    limit: usize,
) -> Option<(Vec<u8>, BlobCompression)> {
    let mut out = Vec::new();
    let stored = match algorithm {
        CompressionAlgorithm::Lz4 => {
            out.resize(lz4_flex::block::get_maximum_output_size(content.len()), 0);
            lz4_flex::block::compress_into(content, &mut out).ok()?
        }
        CompressionAlgorithm::Snappy => {
            out.resize(snap::raw::max_compress_len(content.len()), 0);
            snap::raw::Encoder::new().compress(content, &mut out).ok()?
        }
        CompressionAlgorithm::Zstd => {
            // With an output buffer of the permitted size it gives up early.
            out.resize(limit, 0);
            zstd_safe::compress(out.as_mut_slice(), content, ZSTD_LEVEL).ok()?
        }
    };
    if stored > limit || stored == 0 {
        return None;
    }
    out.truncate(stored);
    Some((out, BlobCompression { algorithm, content: content.len() as u32, stored: stored as u32 }))
}

/// Decompresses a blob's data from its blocks. `None` if they hold no such data. Takes no more memory than the record states.
pub(super) fn decompress(packed: BlobCompression, blocks: &[u8]) -> Option<Vec<u8>> {
    let stored = blocks.get(..packed.stored as usize)?;
    let mut content = vec![0; packed.content as usize];
    let len = match packed.algorithm {
        CompressionAlgorithm::Lz4 => lz4_flex::block::decompress_into(stored, &mut content).ok()?,
        CompressionAlgorithm::Snappy => {
            snap::raw::decompress_len(stored).ok().filter(|len| *len == content.len())?;
            snap::raw::Decoder::new().decompress(stored, &mut content).ok()?
        }
        CompressionAlgorithm::Zstd => zstd_safe::decompress(content.as_mut_slice(), stored).ok()?,
    };
    (len == content.len()).then_some(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_back() {
        let content: Vec<u8> = (0..65_536_u32).map(|at| (at / 97 % 251) as u8).collect();
        let mut noise = vec![0_u8; 65_536];
        let mut word = 0x9e37_79b9_7f4a_7c15_u64;
        noise.iter_mut().for_each(|byte| {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            *byte = word as u8;
        });
        for algorithm in [CompressionAlgorithm::Lz4, CompressionAlgorithm::Snappy, CompressionAlgorithm::Zstd]
        {
            let (bytes, packed) = compress(algorithm, &content, 40_000).unwrap();
            assert_eq!((bytes.len(), packed.content), (packed.stored as usize, 65_536));
            assert_eq!(decompress(packed, &bytes).as_deref(), Some(&content[..]), "{algorithm:?}");
            assert!(compress(algorithm, &noise, 57_344).is_none(), "{algorithm:?}");
            // Damage that checksums did not detect results in an error or in other data, but never in more data than stated.
            for at in (0..bytes.len()).step_by(37) {
                let mut damaged = bytes.clone();
                damaged[at] ^= 0x55;
                if let Some(got) = decompress(packed, &damaged) {
                    assert_eq!(got.len(), content.len());
                }
            }
            assert!(decompress(packed, &bytes[..bytes.len() - 1]).is_none());
            assert!(decompress(BlobCompression { content: 4096, ..packed }, &bytes).is_none());
        }
    }
}
