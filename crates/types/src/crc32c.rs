//! CRC-32C (Castagnoli; RFC 3720, appendix B.4): the checksum of frames, of blocks of data and of records on disk.

use crc_fast::{CrcAlgorithm, Digest, checksum};
use std::sync::LazyLock;

/// Size of a block in bytes, the unit of [`blocks`] and [`append_block_crc`].
pub const BLOCK_BYTES: usize = 4096;
/// Number of blocks that are processed in an interleaved way.
const LANES: usize = 4;
const GROUP_BYTES: usize = LANES * BLOCK_BYTES;

/// Returns the checksum of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    if bytes.len() >= GROUP_BYTES {
        append(0, bytes)
    } else {
        checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
    }
}

/// Extends the checksum `crc` by `bytes`. An empty range has the checksum 0.
pub fn append(mut crc: u32, bytes: &[u8]) -> u32 {
    let rest = by_turns(bytes, |block| crc = append_block_crc(crc, block));
    if rest.is_empty() {
        return crc;
    }
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(rest);
    digest.finalize() as u32
}

/// Returns the checksum of each block of `bytes`; the last block may be short.
pub fn blocks(bytes: &[u8]) -> Vec<u32> {
    let mut sums = Vec::with_capacity(bytes.len().div_ceil(BLOCK_BYTES));
    let rest = by_turns(bytes, |block| sums.push(block));
    sums.extend(rest.chunks(BLOCK_BYTES).map(crc32c));
    sums
}

/// Extends the checksum `crc` by a block with the checksum `block`.
pub fn append_block_crc(crc: u32, block: u32) -> u32 {
    static SHIFT: LazyLock<[[u32; 256]; 4]> = LazyLock::new(shift_by_a_block);
    let [a, b, c, d] = crc.to_le_bytes();
    SHIFT[0][a as usize] ^ SHIFT[1][b as usize] ^ SHIFT[2][c as usize] ^ SHIFT[3][d as usize] ^ block
}

/// Computes the effect of appending a block of zeros on a checksum, for each of its bytes. It is linear, except for the
/// checksum of the zeros themselves.
fn shift_by_a_block() -> [[u32; 256]; 4] {
    let zeros = [0; BLOCK_BYTES];
    let alone = crc32c(&zeros);
    let of_bit: [u32; 32] = std::array::from_fn(|bit| append(1 << bit, &zeros) ^ alone);
    std::array::from_fn(|byte| {
        std::array::from_fn(|value| {
            (0..8).filter(|bit| value >> bit & 1 == 1).fold(0, |sum, bit| sum ^ of_bit[byte * 8 + bit])
        })
    })
}

/// Calls `each` with the checksums of all blocks in complete groups, and returns the rest of `bytes`. On processors with wide
/// carry-less multiplication this is not faster: all bytes are returned.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
fn by_turns(bytes: &[u8], each: impl FnMut(u32)) -> &[u8] {
    let wide = is_x86_feature_detected!("vpclmulqdq") && is_x86_feature_detected!("avx512vl");
    if wide || !is_x86_feature_detected!("sse4.2") || bytes.len() < GROUP_BYTES {
        return bytes;
    }
    // SAFETY: the processor has SSE 4.2, the function's only requirement.
    unsafe { by_instruction(bytes, each) }
}

#[cfg(not(target_arch = "x86_64"))]
fn by_turns(bytes: &[u8], _each: impl FnMut(u32)) -> &[u8] {
    bytes
}

/// Each step of the crc32 instruction depends on the one before, so the blocks of a group are interleaved.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
fn by_instruction(bytes: &[u8], mut each: impl FnMut(u32)) -> &[u8] {
    use std::arch::x86_64::_mm_crc32_u64;
    let mut groups = bytes.chunks_exact(GROUP_BYTES);
    for group in &mut groups {
        let lanes: [&[[u8; 8]]; LANES] =
            std::array::from_fn(|lane| group[lane * BLOCK_BYTES..][..BLOCK_BYTES].as_chunks().0);
        let mut states = [u64::from(u32::MAX); LANES];
        for at in 0..BLOCK_BYTES / 8 {
            for (state, lane) in states.iter_mut().zip(lanes) {
                *state = _mm_crc32_u64(*state, u64::from_le_bytes(lane[at]));
            }
        }
        states.iter().for_each(|state| each(!(*state as u32)));
    }
    groups.remainder()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_rfcs_examples_hold() {
        let ascending: Vec<u8> = (0..32).collect();
        let descending: Vec<u8> = (0..32).rev().collect();
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&ascending), 0x46dd_794e);
        assert_eq!(crc32c(&descending), 0x113f_db5c);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    proptest! {
        #[test]
        fn pieces_give_what_the_whole_gives(bytes in proptest::collection::vec(any::<u8>(), 0..3000), cut in 0..3000_usize) {
            let (left, right) = bytes.split_at(cut.min(bytes.len()));
            prop_assert_eq!(append(append(0, left), right), crc32c(&bytes));
        }

        #[test]
        fn blocks_give_what_the_whole_gives(bytes in proptest::collection::vec(any::<u8>(), 0..50_000), before: u32) {
            let sums = blocks(&bytes);
            let alone: Vec<u32> = bytes.chunks(BLOCK_BYTES).map(crc32c).collect();
            prop_assert_eq!(&sums, &alone);
            let (whole, rest) = bytes.as_chunks::<BLOCK_BYTES>();
            let folded = sums[..whole.len()].iter().fold(before, |crc, sum| append_block_crc(crc, *sum));
            prop_assert_eq!(append(folded, rest), append(before, &bytes));
        }
    }
}
