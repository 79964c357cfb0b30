//! A frame's body: its buffers while it is read, and its checksums.

use crate::wire::{FLAG_DATA_CRC, FrameHeader};
use bytes::{Bytes, BytesMut};
use nacre_types::crc32c::crc32c;
use nacre_types::payload::Payload;

/// Data of at least this size starts at an address that is a multiple of [`DATA_ALIGNMENT`], so that a store can write it to a device with
/// O_DIRECT without a copy.
pub const ALIGN_DATA_FROM_BYTES: usize = 16 << 10;
/// See [`ALIGN_DATA_FROM_BYTES`].
pub const DATA_ALIGNMENT: usize = 4096;

/// A frame's body while it is read: exactly as long as the header says, with the data in its final place.
pub struct FrameBody {
    meta: BytesMut,
    data: BytesMut,
    meta_len: usize,
    data_len: usize,
    pad: usize,
}

impl FrameBody {
    /// Allocates the body of `header`.
    pub fn new(header: &FrameHeader) -> FrameBody {
        let (meta_len, data_len) = (header.meta_len as usize, header.data_len as usize);
        if data_len < ALIGN_DATA_FROM_BYTES {
            // One buffer for both: the data follows the description.
            let meta = BytesMut::with_capacity(meta_len + data_len);
            return FrameBody { meta, data: BytesMut::new(), meta_len, data_len, pad: 0 };
        }
        let mut data = BytesMut::with_capacity(data_len + DATA_ALIGNMENT - 1);
        let pad = data.as_ptr().align_offset(DATA_ALIGNMENT).min(DATA_ALIGNMENT - 1);
        data.resize(pad, 0);
        FrameBody { meta: BytesMut::with_capacity(meta_len), data, meta_len, data_len, pad }
    }

    fn shared(&self) -> bool {
        self.data_len < ALIGN_DATA_FROM_BYTES
    }

    /// Returns the buffer to fill next and the number of bytes it still takes, or `None` if the body is complete.
    pub fn next_buffer(&mut self) -> Option<(&mut BytesMut, usize)> {
        let first = self.meta_len + if self.shared() { self.data_len } else { 0 };
        if self.meta.len() < first {
            let missing = first - self.meta.len();
            return Some((&mut self.meta, missing));
        }
        if self.shared() {
            return None;
        }
        let missing = self.data_len - (self.data.len() - self.pad);
        (missing > 0).then_some((&mut self.data, missing))
    }

    /// Copies as much of `bytes` as fits. Returns the number of bytes copied.
    pub fn fill(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while taken < bytes.len() {
            let Some((buffer, missing)) = self.next_buffer() else { break };
            let part = missing.min(bytes.len() - taken);
            buffer.extend_from_slice(&bytes[taken..taken + part]);
            taken += part;
        }
        taken
    }

    /// Verifies the checksums and splits the complete body. The data gets checksums of its blocks, from which its own is computed.
    pub fn finish(self, header: &FrameHeader) -> Result<(Bytes, Payload), &'static str> {
        let shared = self.shared();
        let mut meta = self.meta.freeze();
        let data = if shared {
            if self.data_len == 0 { Bytes::new() } else { meta.split_off(self.meta_len) }
        } else {
            self.data.freeze().slice(self.pad..)
        };
        if crc32c(&meta) != header.meta_crc {
            return Err("bad description checksum");
        }
        if header.flags & FLAG_DATA_CRC == 0 {
            return Ok((meta, Payload::from(data)));
        }
        let data = Payload::with_checksums(data);
        if data.extend_crc(0) != header.data_crc {
            return Err("bad data checksum");
        }
        Ok((meta, data))
    }
}
