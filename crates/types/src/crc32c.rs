//! CRC-32C (Castagnoli; RFC 3720, appendix B.4): the checksum of frames, of blocks of data and of records on disk.

use crc_fast::{CrcAlgorithm, Digest, checksum};

/// The checksum of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The checksum of what `crc` covers with `bytes` behind it; `crc` is 0 for nothing.
pub fn append(crc: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    digest.finalize() as u32
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
    }
}
