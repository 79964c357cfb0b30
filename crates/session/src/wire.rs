//! The frame header, and the messenger's control frames (docs/format/messenger.md).

use nacre_types::crc32c::crc32c;

/// Size of a frame's header in bytes.
pub const HEADER_BYTES: usize = 44;
const MAGIC: u32 = u32::from_le_bytes(*b"NcFr");
const VERSION: u8 = 1;

/// The data's checksum is present and must be correct.
pub const FLAG_DATA_CRC: u8 = 1;

/// Kinds from this one on are the messenger's own; they have no body and no sequence number.
pub const FIRST_CONTROL_KIND: u16 = 0xff00;
/// Carries only an acknowledgement.
pub const ACK: u16 = 0xff01;
/// Requests a [`KEEPALIVE_ACK`].
pub const KEEPALIVE: u16 = 0xff02;
/// Answers a [`KEEPALIVE`].
pub const KEEPALIVE_ACK: u16 = 0xff03;
/// Ends the session.
pub const CLOSE: u16 = 0xff04;

/// A frame's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// [`FLAG_DATA_CRC`] or nothing.
    pub flags: u8,
    /// The kind of the message or control frame.
    pub kind: u16,
    /// From 1, without gaps; 0 in control frames.
    pub seq: u64,
    /// The sender has received everything up to this number.
    pub ack: u64,
    /// Bytes of the description.
    pub meta_len: u32,
    /// Bytes of the data.
    pub data_len: u32,
    /// The description's CRC-32C.
    pub meta_crc: u32,
    /// The data's CRC-32C.
    pub data_crc: u32,
}

impl FrameHeader {
    /// Returns the header of a control frame.
    pub fn control(kind: u16, ack: u64) -> FrameHeader {
        FrameHeader { flags: 0, kind, seq: 0, ack, meta_len: 0, data_len: 0, meta_crc: 0, data_crc: 0 }
    }

    /// Size of the body in bytes.
    pub fn body_len(&self) -> u64 {
        u64::from(self.meta_len) + u64::from(self.data_len)
    }

    /// Size of the whole frame on the wire in bytes: header and body.
    pub fn wire_bytes(&self) -> u64 {
        HEADER_BYTES as u64 + self.body_len()
    }

    /// Encodes the header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[4] = VERSION;
        out[5] = self.flags;
        out[6..8].copy_from_slice(&self.kind.to_le_bytes());
        out[8..16].copy_from_slice(&self.seq.to_le_bytes());
        out[16..24].copy_from_slice(&self.ack.to_le_bytes());
        out[24..28].copy_from_slice(&self.meta_len.to_le_bytes());
        out[28..32].copy_from_slice(&self.data_len.to_le_bytes());
        out[32..36].copy_from_slice(&self.meta_crc.to_le_bytes());
        out[36..40].copy_from_slice(&self.data_crc.to_le_bytes());
        let crc = crc32c(&out[..40]);
        out[40..44].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes and validates a header.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<FrameHeader, &'static str> {
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        if u32_at(0) != MAGIC {
            return Err("bad magic");
        }
        if crc32c(&bytes[..40]) != u32_at(40) {
            return Err("bad header checksum");
        }
        if bytes[4] != VERSION {
            return Err("unknown frame version");
        }
        Ok(FrameHeader {
            flags: bytes[5],
            kind: u16::from_le_bytes([bytes[6], bytes[7]]),
            seq: u64_at(8),
            ack: u64_at(16),
            meta_len: u32_at(24),
            data_len: u32_at(28),
            meta_crc: u32_at(32),
            data_crc: u32_at(36),
        })
    }
}
