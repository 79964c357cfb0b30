//! Reading an onode's data: from what is cached, else from the device with every block's checksum verified.

use super::Inner;
use super::aligned::Filling;
use super::db::Family;
use super::keys;
use super::onode::{BLOCK_BYTES, Blob, Onode, Run, Sums, decode_sums};
use crate::error::{Result, StoreError};
use bytes::Bytes;
use nacre_types::crc32c::crc32c;

/// What a read took from the device and may be cached: (blob, first block within it, whole blocks).
pub(super) type Fills = Vec<(u64, u32, Bytes)>;

impl Inner {
    /// Reads `offset..offset + len`, which must lie within the object. Holes read as zeros.
    pub(super) fn read_onode(
        &self,
        onode: &Onode,
        offset: u64,
        len: u64,
        fills: &mut Fills,
    ) -> Result<Bytes> {
        if len == 0 {
            return Ok(Bytes::new());
        }
        let end = offset + len;
        let first = onode.extents.partition_point(|extent| extent.end() <= offset);
        let extents = &onode.extents[first..];
        let extents = &extents[..extents.partition_point(|extent| extent.logical < end)];
        if let [extent] = extents
            && extent.logical <= offset
            && extent.end() >= end
            && let Some(bytes) =
                cached(&onode.blobs[extent.blob as usize], extent.offset + offset - extent.logical, len)
        {
            return Ok(bytes);
        }
        // The buffer begins at a block boundary of the object, so that blocks can be read into it in place.
        let base = offset / BLOCK_BYTES * BLOCK_BYTES;
        let mut filling = Filling::new((end - base).next_multiple_of(BLOCK_BYTES) as usize);
        let mut in_place = Vec::new();
        for (at, extent) in extents.iter().enumerate() {
            let blob = &onode.blobs[extent.blob as usize];
            let (from, to) = (extent.logical.max(offset), extent.end().min(end));
            let (start, count) = (extent.offset + from - extent.logical, to - from);
            if let Some(parts) = cached_parts(blob, start, count) {
                filling.zero_to((from - base) as usize);
                parts.into_iter().for_each(|part| filling.copy(part));
                continue;
            }
            let first_block = start / BLOCK_BYTES;
            let blocks = (start + count).div_ceil(BLOCK_BYTES) - first_block;
            // In place only where no other extent has a part in these blocks of the object.
            let low = from / BLOCK_BYTES * BLOCK_BYTES;
            let high = low + blocks * BLOCK_BYTES;
            let alone = (at == 0 || extents[at - 1].end() <= low)
                && extents.get(at + 1).is_none_or(|next| next.logical >= high);
            if alone {
                filling.zero_to((low - base) as usize);
                self.read_blocks(blob, first_block, blocks, &mut filling)?;
                in_place.push((blob.id, first_block as u32, low - base, high - base, from - base, to - base));
            } else {
                let mut own = Filling::new((blocks * BLOCK_BYTES) as usize);
                self.read_blocks(blob, first_block, blocks, &mut own)?;
                let own = own.finish();
                let skip = (start - first_block * BLOCK_BYTES) as usize;
                filling.zero_to((from - base) as usize);
                filling.copy(&own[skip..skip + count as usize]);
                fills.push((blob.id, first_block as u32, own.freeze()));
            }
        }
        // Parts of these blocks that the object does not map must read as zeros. Such blocks are not cached: the
        // copy in the buffer is no longer what the checksums cover.
        let mut buffer = filling.finish();
        let mut whole = Vec::new();
        for (id, first_block, low, high, from, to) in in_place {
            let inside_low = low.max(offset - base);
            let inside_high = high.min(end - base);
            if from > inside_low || to < inside_high {
                buffer[low as usize..from as usize].fill(0);
                buffer[to as usize..high as usize].fill(0);
            } else {
                whole.push((id, first_block, low as usize, high as usize));
            }
        }
        let bytes = buffer.freeze();
        fills.extend(whole.into_iter().map(|(id, block, low, high)| (id, block, bytes.slice(low..high))));
        Ok(bytes.slice((offset - base) as usize..(end - base) as usize))
    }

    /// Reads and verifies `blocks` blocks of a blob from the device, to the end of what is filled.
    fn read_blocks(&self, blob: &Blob, first_block: u64, blocks: u64, filling: &mut Filling) -> Result<()> {
        let loaded;
        let sums = match blob.sums.as_slice() {
            Some(sums) => sums,
            None => {
                loaded = self.load_sums(blob.id, blob.run.blocks)?;
                loaded.as_slice().unwrap_or_default()
            }
        };
        let start = blob.run.start + first_block;
        let read = self.device.read_into(start * BLOCK_BYTES, (blocks * BLOCK_BYTES) as usize, filling)?;
        for (at, block) in read.chunks_exact(BLOCK_BYTES as usize).enumerate() {
            let number = start + at as u64;
            let found = crc32c(block);
            let wanted = sums.get(first_block as usize + at);
            if wanted != Some(&found) {
                let detail =
                    format!("checksum {found:#010x}, wanted {:#010x}", wanted.copied().unwrap_or_default());
                return Err(self.corrupt_data(blob, number, detail));
            }
        }
        Ok(())
    }

    /// Loads a blob's checksums from the `csum` family.
    pub(super) fn load_sums(&self, id: u64, blocks: u64) -> Result<Sums> {
        let value = self.db.get(Family::Csum, &keys::id(id))?;
        let sums = value.as_deref().and_then(|value| decode_sums(value, blocks));
        sums.ok_or_else(|| {
            let detail = if value.is_some() { "undecodable" } else { "absent" };
            self.damaged(id, StoreError::corrupt(format!("checksums of blob {id}"), detail))
        })
    }

    fn corrupt_data(&self, blob: &Blob, block: u64, detail: String) -> StoreError {
        let Run { start, blocks } = blob.run;
        let what = format!("block {block} (blob {} at {start}, {blocks} blocks)", blob.id);
        self.damaged(blob.id, StoreError::corrupt(what, detail))
    }
}

/// `len` bytes at `start` of the blob, if one cached piece has them all.
fn cached(blob: &Blob, start: u64, len: u64) -> Option<Bytes> {
    let at =
        blob.cached.partition_point(|(first, _)| u64::from(*first) * BLOCK_BYTES <= start).checked_sub(1)?;
    let (first, bytes) = &blob.cached[at];
    let skip = start - u64::from(*first) * BLOCK_BYTES;
    (skip + len <= bytes.len() as u64).then(|| bytes.slice(skip as usize..(skip + len) as usize))
}

/// `len` bytes at `start` of the blob in pieces, if cached pieces have all of them.
fn cached_parts(blob: &Blob, start: u64, len: u64) -> Option<Vec<&[u8]>> {
    let end = start + len;
    let mut at = start;
    let mut parts = Vec::new();
    for (first, bytes) in &blob.cached {
        let low = u64::from(*first) * BLOCK_BYTES;
        let high = low + bytes.len() as u64;
        if high <= at {
            continue;
        }
        if low > at {
            return None;
        }
        let to = high.min(end);
        parts.push(&bytes[(at - low) as usize..(to - low) as usize]);
        at = to;
        if at == end {
            return Some(parts);
        }
    }
    None
}
