//! A received message, not yet decoded.

use bytes::Bytes;
use nacre_common::error::{Error, Result};
use nacre_common::throttle::Permit;
use nacre_session::wire::FrameHeader;
use nacre_types::msg::Message;
use nacre_types::payload::{self, Payload};

/// A received message: its description and the data that belongs to it. Holds its share of the throttle until dropped.
#[derive(Debug)]
pub struct Frame {
    kind: u16,
    seq: u64,
    wire_bytes: usize,
    meta: Bytes,
    data: Payload,
    permit: Option<Permit>,
}

impl Frame {
    pub(super) fn new(header: &FrameHeader, meta: Bytes, data: Payload, permit: Option<Permit>) -> Frame {
        let wire_bytes = header.wire_bytes() as usize;
        Frame { kind: header.kind, seq: header.seq, wire_bytes, meta, data, permit }
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
        self.wire_bytes
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

    /// The share of the throttle, to be held until the message is processed.
    pub fn into_permit(self) -> Option<Permit> {
        self.permit
    }
}
