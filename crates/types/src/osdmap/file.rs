//! The cluster map in a file: written by `ceph osd getmap` and read by `osdmaptool`.
//!
//! The format is described in docs/format/osdmap-file.md. Ceph's own files start with other bytes and are refused: their
//! snapshots, temporary mappings and peers have no equivalent here.

use super::OsdMap;
use crate::encoding::{self, DecodeError};

/// The first bytes of a file.
const MAGIC: &[u8] = b"nacre osdmap\n";
const VERSION_BYTES: usize = 8;
const CRC_BYTES: usize = 4;

impl OsdMap {
    /// Encodes the map for a file. `crush_version` is the number of changes of its CRUSH map.
    pub fn to_file(&self, crush_version: u64) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&crush_version.to_le_bytes());
        bytes.extend_from_slice(&encoding::encode(self));
        let crc = crate::crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes the bytes of [`OsdMap::to_file`]: the map and its CRUSH map's version. The error distinguishes other files from
    /// damaged maps.
    pub fn from_file(bytes: &[u8]) -> Result<(OsdMap, u64), DecodeError> {
        let corrupt = |detail: &str| DecodeError::Corrupt { what: "osdmap file", detail: detail.to_owned() };
        if !bytes.starts_with(MAGIC) {
            return Err(corrupt("not a map written by Nacre; maps in Ceph's own format are not read"));
        }
        let (rest, crc) = bytes
            .split_last_chunk::<CRC_BYTES>()
            .filter(|(rest, _)| rest.len() >= MAGIC.len())
            .ok_or_else(|| corrupt("cut short"))?;
        if crate::crc32c::crc32c(rest) != u32::from_le_bytes(*crc) {
            return Err(corrupt("its checksum does not match"));
        }
        let body = rest[MAGIC.len()..].split_first_chunk::<VERSION_BYTES>();
        let (version, map) = body.ok_or_else(|| corrupt("cut short"))?;
        Ok((encoding::decode(map)?, u64::from_le_bytes(*version)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_crush::CrushMap;

    #[test]
    fn a_map_comes_back_and_nothing_else_is_taken_for_one() {
        let map = OsdMap::new(uuid::Uuid::from_u128(5), 1, CrushMap::new_cluster("host").unwrap());
        let mut file = map.to_file(7);
        assert_eq!(OsdMap::from_file(&file).unwrap(), (map, 7));
        let refused = |bytes: &[u8]| OsdMap::from_file(bytes).unwrap_err().to_string();
        assert!(refused(b"\x08\x07").contains("Ceph's own format"));
        assert!(refused(MAGIC).contains("cut short"));
        assert!(refused(&file[..file.len() - 1]).contains("checksum"));
        file[20] ^= 1;
        assert!(refused(&file).contains("checksum"));
    }
}
