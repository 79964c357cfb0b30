//! A received message, not yet decoded.

use super::wire::{FLAG_DATA_CRC, HEADER_BYTES, Header};
use bytes::{Bytes, BytesMut};
use nacre_common::error::{Error, Result};
use nacre_common::throttle::Permit;
use nacre_types::crc32c::crc32c;
use nacre_types::msg::Message;
use nacre_types::payload::{self, Payload};

/// Data from this size on starts at an address that is a multiple of [`DATA_ALIGNMENT`], so that a store can write
/// it to a device with O_DIRECT as it is.
pub const ALIGN_DATA_FROM_BYTES: usize = 16 << 10;
/// See [`ALIGN_DATA_FROM_BYTES`].
pub const DATA_ALIGNMENT: usize = 4096;

/// A received message: its description and the data beside it. Holds its share of the throttle until dropped.
#[derive(Debug)]
pub struct Frame {
    kind: u16,
    seq: u64,
    meta: Bytes,
    data: Payload,
    permit: Option<Permit>,
}

impl Frame {
    pub(super) fn new(header: &Header, meta: Bytes, data: Payload, permit: Option<Permit>) -> Frame {
        Frame { kind: header.kind, seq: header.seq, meta, data, permit }
    }

    /// The message's number: [`Message::KIND`].
    pub fn kind(&self) -> u16 {
        self.kind
    }

    /// Its position on the connection, from 1.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Its size on the wire in bytes.
    pub fn wire_bytes(&self) -> usize {
        HEADER_BYTES + self.meta.len() + self.data.len()
    }

    /// Decodes the message; its payload fields are slices of the frame's buffer.
    pub fn decode<M: Message>(&self) -> Result<M> {
        if self.kind != M::KIND {
            return Err(Error::Corrupt {
                what: M::NAME,
                detail: format!("expected kind {}, got {}", M::KIND, self.kind),
            });
        }
        payload::decode(M::NAME, &self.meta, self.data.clone())
            .map_err(|e| Error::Corrupt { what: M::NAME, detail: e.to_string() })
    }

    /// The share of the throttle, to keep for as long as the message is worked on.
    pub fn into_permit(self) -> Option<Permit> {
        self.permit
    }
}

/// A frame's body as it is read: exactly as long as the header says, data in its final place.
pub(super) struct Body {
    meta: BytesMut,
    data: BytesMut,
    meta_len: usize,
    data_len: usize,
    pad: usize,
}

impl Body {
    /// Makes room for the body of `header`.
    pub(super) fn new(header: &Header) -> Body {
        let (meta_len, data_len) = (header.meta_len as usize, header.data_len as usize);
        if data_len < ALIGN_DATA_FROM_BYTES {
            // One buffer for both: the data field then takes what follows the description.
            let meta = BytesMut::with_capacity(meta_len + data_len);
            return Body { meta, data: BytesMut::new(), meta_len, data_len, pad: 0 };
        }
        let mut data = BytesMut::with_capacity(data_len + DATA_ALIGNMENT - 1);
        let pad = data.as_ptr().align_offset(DATA_ALIGNMENT).min(DATA_ALIGNMENT - 1);
        data.resize(pad, 0);
        Body { meta: BytesMut::with_capacity(meta_len), data, meta_len, data_len, pad }
    }

    fn shared(&self) -> bool {
        self.data_len < ALIGN_DATA_FROM_BYTES
    }

    /// The buffer to fill next and how many bytes it still takes; `None` when complete.
    pub(super) fn next(&mut self) -> Option<(&mut BytesMut, usize)> {
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

    /// Copies as much of `bytes` as it takes; returns how much that is.
    pub(super) fn fill(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while taken < bytes.len() {
            let Some((buffer, missing)) = self.next() else { break };
            let part = missing.min(bytes.len() - taken);
            buffer.extend_from_slice(&bytes[taken..taken + part]);
            taken += part;
        }
        taken
    }

    /// Checks the checksums and splits the complete body. The data has those of its blocks, out of which its own is made.
    pub(super) fn finish(self, header: &Header) -> Result<(Bytes, Payload), &'static str> {
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
        let data = Payload::summed(data);
        if data.append_to(0) != header.data_crc {
            return Err("bad data checksum");
        }
        Ok((meta, data))
    }
}
