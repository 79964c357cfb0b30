//! Small overwrites of parts of blobs in place. The object keeps its blobs and extents, so that random writes do not fragment it.
//! The data goes through the database's log ([`super::deferred`]).

use super::apply::Txn;
use super::db::Family;
use super::extents::{block_pieces, cut_pieces};
use super::keys;
use super::onode::{BLOCK_BYTES, Blob, Checksums, Extent, Onode, encode_sums};
use crate::error::Result;
use bytes::Bytes;
use nacre_types::payload::Payload;

/// Blocks of a blob to overwrite: the blob's index, the first block within it, and the range of the object.
struct Part {
    blob: usize,
    first: u64,
    from: u64,
    to: u64,
}

impl Txn<'_> {
    /// Overwrites data in place if it is small and entirely mapped, and the blobs belong to this object only and are not all
    /// replaced entirely: replacing a whole blob does not fragment the object. Returns whether it did.
    pub(super) fn try_overwrite_in_place(
        &mut self,
        onode: &mut Onode,
        offset: u64,
        data: &Payload,
    ) -> Result<bool> {
        let end = offset + data.len() as u64;
        if data.len() as u64 > self.inner.config.prefer_deferred_bytes || end > onode.size {
            return Ok(false);
        }
        let (base, limit) = (offset / BLOCK_BYTES * BLOCK_BYTES, end.next_multiple_of(BLOCK_BYTES));
        let first = onode.extents.partition_point(|extent| extent.end() <= base);
        let extents = &onode.extents[first..];
        let extents = &extents[..extents.partition_point(|extent| extent.logical < limit)];
        let Some(parts) = parts(onode, extents, offset..end, base..limit) else { return Ok(false) };
        let (low, high) = (extents[0].logical.max(base), extents[extents.len() - 1].end().min(limit));
        let head = self.inner.read_onode(onode, low, offset - low)?;
        let tail = self.inner.read_onode(onode, end, high - end)?;
        let pieces = block_pieces(base, limit, (low, &head), (offset, data), (end, &tail));
        for part in parts {
            let blob = &mut onode.blobs[part.blob];
            let loaded = match &blob.sums {
                Checksums::Stored => self.inner.load_sums(blob)?,
                loaded => loaded.clone(),
            };
            let (mut sums, mut new) = (loaded.as_slice().unwrap_or_default().to_vec(), Vec::new());
            let cached = cut_pieces(&pieces, part.from - base, part.to - base);
            for (at, piece) in cached {
                let block = part.first + u64::from(at);
                blob.kind.append_payload_checksums(&piece, &mut new);
                let bytes = piece.into_bytes();
                self.overwrites.push((blob.run.start + block, bytes.clone()));
                blob.put_cached(block as u32, bytes);
            }
            let at = blob.kind.checksum_words(part.first) as usize;
            sums[at..at + new.len()].copy_from_slice(&new);
            if !blob.inline_sums {
                let record = encode_sums(blob.kind, &sums);
                self.batch.put(self.inner.ids, Family::Csum, &keys::id(blob.id), &record);
            }
            blob.sums = Checksums::from_slice(&sums);
        }
        Ok(true)
    }
}

/// The blocks to overwrite, or `None` if an overwrite in place is not possible.
fn parts(
    onode: &Onode,
    extents: &[Extent],
    data: std::ops::Range<u64>,
    blocks: std::ops::Range<u64>,
) -> Option<Vec<Part>> {
    let (first, last) = (extents.first()?, extents.last()?);
    let gapless = extents
        .windows(2)
        .all(|pair| pair[0].end() == pair[1].logical && pair[1].logical.is_multiple_of(BLOCK_BYTES));
    if first.logical > data.start || last.end() < data.end || !gapless {
        return None;
    }
    let mut parts = Vec::with_capacity(extents.len());
    let mut replaced = true;
    for extent in extents {
        let blob = &onode.blobs[extent.blob as usize];
        // The blocks of a compressed blob hold other data. Blocks that share a checksum can't be changed individually.
        if blob.shared || blob.kind.packed.is_some() || blob.kind.chunk_order > 0 {
            return None;
        }
        let begins = extent.logical / BLOCK_BYTES * BLOCK_BYTES;
        let from = blocks.start.max(begins);
        let to = blocks.end.min(extent.end().next_multiple_of(BLOCK_BYTES));
        let first = (extent.offset / BLOCK_BYTES * BLOCK_BYTES + from - begins) / BLOCK_BYTES;
        replaced &= (to - from) / BLOCK_BYTES == blob.run.blocks;
        parts.push(Part { blob: extent.blob as usize, first, from, to });
    }
    (!replaced).then_some(parts)
}

impl Blob {
    /// Puts contents into the cache and replaces existing contents of these blocks.
    fn put_cached(&mut self, first: u32, bytes: Bytes) {
        let end = first + (bytes.len() as u64 / BLOCK_BYTES) as u32;
        let mut kept = Vec::with_capacity(self.cached.len() + 2);
        for (start, have) in self.cached.drain(..) {
            let have_end = start + (have.len() as u64 / BLOCK_BYTES) as u32;
            let cut = |from: u32, to: u32| {
                let byte = |block: u32| u64::from(block - start) * BLOCK_BYTES;
                have.slice(byte(from) as usize..byte(to) as usize)
            };
            if start < first {
                kept.push((start, cut(start, have_end.min(first))));
            }
            if have_end > end {
                let from = start.max(end);
                kept.push((from, cut(from, have_end)));
            }
        }
        kept.push((first, bytes));
        kept.sort_unstable_by_key(|(start, _)| *start);
        self.cached = kept;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blue::blob_kind::BlobFormat;
    use crate::blue::onode::Run;

    fn block(fill: u8, blocks: usize) -> Bytes {
        Bytes::from(vec![fill; blocks * BLOCK_BYTES as usize])
    }

    #[test]
    fn cached_contents_are_replaced_piece_by_piece() {
        let run = Run { start: 100, blocks: 16 };
        let sums = Checksums::from_slice(&[]);
        let kind = BlobFormat::default();
        let mut blob = Blob { id: 1, run, shared: false, inline_sums: true, kind, sums, cached: Vec::new() };
        for (first, fill, blocks) in [(4, 1, 4), (10, 2, 2), (5, 3, 1), (7, 4, 4), (0, 5, 1), (4, 6, 1)] {
            blob.put_cached(first, block(fill, blocks));
        }
        let shown: Vec<(u32, u8, usize)> =
            blob.cached.iter().map(|(at, bytes)| (*at, bytes[0], bytes.len() / 4096)).collect();
        assert_eq!(shown, [(0, 5, 1), (4, 6, 1), (5, 3, 1), (6, 1, 1), (7, 4, 4), (11, 2, 1)]);
    }
}
