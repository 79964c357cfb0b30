//! The source of a copy-from op, put together from the pieces that copy-gets return.

use bytes::Bytes;
use nacre_types::errno::Errno;
use nacre_types::msg::KV_ENTRY_OVERHEAD_BYTES;
use nacre_types::op::CopyGetReply;

/// A whole object for copy-from.
#[derive(Clone, Debug, Default)]
pub struct CopiedObject {
    /// The last piece's metadata, with the first one's attributes and omap header.
    pub head: CopyGetReply,
    /// The data, in order.
    pub data: Vec<Bytes>,
    /// The omap entries, in order.
    pub omap: Vec<(Bytes, Bytes)>,
}

impl CopiedObject {
    /// The bytes that the copy writes, as [`OsdRequest::payload_bytes`](nacre_types::msg::OsdRequest::payload_bytes) counts them.
    pub fn payload_bytes(&self) -> u64 {
        let entries = self.omap.iter().chain(&self.head.attrs);
        let entries = entries.map(|(key, value)| (KV_ENTRY_OVERHEAD_BYTES + key.len() + value.len()) as u64);
        self.head.size + self.head.omap_header.len() as u64 + entries.sum::<u64>()
    }

    /// Adds the next piece. Fails with EFBIG if the omap entries exceed `max_bytes`.
    pub fn add(&mut self, mut piece: CopyGetReply, max_bytes: u64) -> Result<(), Errno> {
        let data = std::mem::take(&mut piece.data);
        if !data.is_empty() {
            self.data.push(data);
        }
        self.omap.append(&mut piece.omap);
        let omap: usize = self.omap.iter().map(|(key, value): &(Bytes, Bytes)| key.len() + value.len()).sum();
        // One request sends all of it to the members.
        if omap as u64 > max_bytes {
            return Err(Errno::EFBIG);
        }
        if self.head.attrs.is_empty() {
            self.head.attrs = std::mem::take(&mut piece.attrs);
        }
        if self.head.omap_header.is_empty() {
            self.head.omap_header = std::mem::take(&mut piece.omap_header);
        }
        let (attrs, omap_header) =
            (std::mem::take(&mut self.head.attrs), std::mem::take(&mut self.head.omap_header));
        self.head = CopyGetReply { attrs, omap_header, ..piece };
        Ok(())
    }
}
