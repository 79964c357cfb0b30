//! Reading an onode's data: from the cache, or from the device with verification of every block's checksum.

use super::Inner;
use super::aligned::AlignedBufferBuilder;
use super::compression;
use super::db::Family;
use super::keys;
use super::onode::{BLOCK_BYTES, Blob, Checksums, Extent, Onode, Run, decode_sums};
use crate::error::{Result, StoreError};
use bytes::Bytes;

/// Data that a read took from the device and that may be cached: (blob, first block within it, whole blocks).
pub(super) type CacheFills = Vec<(u64, u32, Bytes)>;

/// Checksums loaded from the database, by blob.
pub(super) type BlobChecksums = Vec<(u64, Checksums)>;

impl Inner {
    /// Loads the checksums that a read of `offset..end` needs to verify blocks. Must be called while the record can't change,
    /// because an overwrite of the blocks also replaces the checksums.
    pub(super) fn load_range_checksums(&self, onode: &Onode, offset: u64, end: u64) -> Result<BlobChecksums> {
        let mut loaded = BlobChecksums::new();
        if offset >= end {
            return Ok(loaded);
        }
        for extent in touched(onode, offset, end) {
            let blob = &onode.blobs[extent.blob as usize];
            let (from, to) = (extent.logical.max(offset), extent.end().min(end));
            let is_needed = blob.sums.as_slice().is_none()
                && loaded.iter().all(|(id, _)| *id != blob.id)
                && cached_parts(blob, extent.offset + from - extent.logical, to - from).is_none();
            if is_needed {
                loaded.push((blob.id, self.load_sums(blob)?));
            }
        }
        Ok(loaded)
    }

    /// Reads `offset..offset + len`, which must lie within the object, while the record can't change. Holes read as
    /// zeros.
    pub(super) fn read_onode(&self, onode: &Onode, offset: u64, len: u64) -> Result<Bytes> {
        let loaded = self.load_range_checksums(onode, offset, offset + len)?;
        self.read_with_checksums(onode, &loaded, offset, len, &mut Vec::new())
    }

    /// Like [`Inner::read_onode`], with checksums that were loaded before. The record may have changed since.
    pub(super) fn read_with_checksums(
        &self,
        onode: &Onode,
        loaded: &BlobChecksums,
        offset: u64,
        len: u64,
        fills: &mut CacheFills,
    ) -> Result<Bytes> {
        if len == 0 {
            return Ok(Bytes::new());
        }
        let end = offset + len;
        let extents = touched(onode, offset, end);
        if let [extent] = extents
            && extent.logical <= offset
            && extent.end() >= end
            && let Some(bytes) =
                cached(&onode.blobs[extent.blob as usize], extent.offset + offset - extent.logical, len)
        {
            return Ok(bytes);
        }
        // The buffer starts at a block boundary of the object, so that blocks can be read directly to their place in it.
        let base = offset / BLOCK_BYTES * BLOCK_BYTES;
        let parts = parts(onode, extents, base, offset, end);
        let mut filling = AlignedBufferBuilder::new((end - base).next_multiple_of(BLOCK_BYTES) as usize);
        let mut rest = parts.as_slice();
        while let Some(part) = rest.first() {
            let mut taken = 1;
            match &part.source {
                Source::Cached(pieces) => {
                    filling.zero_to(part.from as usize);
                    pieces.iter().for_each(|piece| filling.copy(piece));
                }
                Source::InPlace => {
                    taken += rest.windows(2).take_while(|pair| pair[1].continues(&pair[0])).count();
                    filling.zero_to(part.low() as usize);
                    self.read_blocks(&rest[..taken], loaded, &mut filling)?;
                }
                Source::Apart { skip } => {
                    let mut own = AlignedBufferBuilder::new((part.blocks * BLOCK_BYTES) as usize);
                    self.read_blocks(&rest[..1], loaded, &mut own)?;
                    let own = own.finish().freeze();
                    let own = match part.blob.kind.packed {
                        None => own,
                        Some(packed) => {
                            Bytes::from(compression::decompress(packed, &own).ok_or_else(|| {
                                let detail = "it can't be decompressed".to_owned();
                                self.corrupt_data(part.blob, part.start(), detail)
                            })?)
                        }
                    };
                    let skip = *skip as usize;
                    filling.zero_to(part.from as usize);
                    filling.copy(&own[skip..skip + (part.to - part.from) as usize]);
                    fills.push((part.blob.id, part.first_block as u32, own));
                }
            }
            rest = &rest[taken..];
        }
        // Parts of these blocks that the object does not map must read as zeros. Such blocks are not cached, because the
        // copy in the buffer no longer matches the checksums.
        let mut buffer = filling.finish();
        let mut whole = Vec::new();
        for part in parts.iter().filter(|part| matches!(part.source, Source::InPlace)) {
            let (low, high) = (part.low(), part.high());
            if part.from > low.max(offset - base) || part.to < high.min(end - base) {
                buffer[low as usize..part.from as usize].fill(0);
                buffer[part.to as usize..high as usize].fill(0);
            } else {
                whole.push((part.blob.id, part.first_block as u32, low as usize, high as usize));
            }
        }
        let bytes = buffer.freeze();
        fills.extend(whole.into_iter().map(|(id, block, low, high)| (id, block, bytes.slice(low..high))));
        Ok(bytes.slice((offset - base) as usize..(end - base) as usize))
    }

    /// Reads `parts`, which are consecutive on the device, to the end of `filling`. Applies their cached contents, which may not
    /// have been written to the device yet, and verifies the result.
    fn read_blocks(
        &self,
        parts: &[Part<'_>],
        loaded: &BlobChecksums,
        filling: &mut AlignedBufferBuilder,
    ) -> Result<()> {
        let blocks: u64 = parts.iter().map(|part| part.blocks).sum();
        let mut read = self.device.read_into(
            parts[0].start() * BLOCK_BYTES,
            (blocks * BLOCK_BYTES) as usize,
            filling,
        )?;
        for part in parts {
            let (own, rest) = read.split_at_mut((part.blocks * BLOCK_BYTES) as usize);
            part.overlay(own);
            self.verify(part, loaded, own)?;
            read = rest;
        }
        Ok(())
    }

    fn verify(&self, part: &Part<'_>, loaded: &BlobChecksums, read: &[u8]) -> Result<()> {
        let blob = part.blob;
        let loaded = || loaded.iter().find(|(id, _)| *id == blob.id)?.1.as_slice();
        let sums = blob.sums.as_slice().or_else(loaded).unwrap_or_default();
        let chunk_blocks = blob.kind.checksum_chunk_blocks();
        let Some(chunk) = blob.kind.first_mismatch(part.first_block / chunk_blocks, read, sums) else {
            return Ok(());
        };
        let (block, words) = (chunk * chunk_blocks, blob.kind.checksum_words(1) as usize);
        let data = &read[((block - part.first_block) * BLOCK_BYTES) as usize..];
        let mut found = Vec::new();
        blob.kind
            .append_checksums(&data[..data.len().min((chunk_blocks * BLOCK_BYTES) as usize)], &mut found);
        let wanted = sums.iter().skip(chunk as usize * words).take(words).collect::<Vec<_>>();
        let detail = format!("checksum {found:#010x?}, wanted {wanted:#010x?}");
        Err(self.corrupt_data(blob, blob.run.start + block, detail))
    }

    /// Loads a blob's checksums from the `csum` family.
    pub(super) fn load_sums(&self, blob: &Blob) -> Result<Checksums> {
        let id = blob.id;
        let value = self.db.get(Family::Csum, &keys::id(id))?;
        let sums = value.as_deref().and_then(|value| decode_sums(value, blob.kind, blob.run.blocks));
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

/// The extents that overlap `offset..end`.
fn touched(onode: &Onode, offset: u64, end: u64) -> &[Extent] {
    let first = onode.extents.partition_point(|extent| extent.end() <= offset);
    let extents = &onode.extents[first..];
    &extents[..extents.partition_point(|extent| extent.logical < end)]
}

/// The part of a read that is in one extent. Positions are bytes in the read's buffer, which starts at a block boundary.
struct Part<'a> {
    blob: &'a Blob,
    /// The blocks of the blob that contain the part.
    first_block: u64,
    blocks: u64,
    from: u64,
    to: u64,
    source: Source<'a>,
}

/// The source of a part.
enum Source<'a> {
    Cached(Vec<&'a [u8]>),
    /// The device. The blocks contain no other part of the object and can be read directly to their place.
    InPlace,
    /// The device, through a separate buffer. The part starts `skip` bytes after the start of the blocks' contents, which are
    /// decompressed if necessary.
    Apart {
        skip: u64,
    },
}

impl Part<'_> {
    /// The start of the blocks in the buffer.
    fn low(&self) -> u64 {
        self.from / BLOCK_BYTES * BLOCK_BYTES
    }

    fn high(&self) -> u64 {
        self.low() + self.blocks * BLOCK_BYTES
    }

    /// The first block on the device.
    fn start(&self) -> u64 {
        self.blob.run.start + self.first_block
    }

    /// Replaces what was read of the blocks by cached contents.
    fn overlay(&self, read: &mut [u8]) {
        // The cached contents of a compressed blob are not those of its blocks. Its blocks are never overwritten.
        if self.blob.kind.packed.is_some() {
            return;
        }
        let (first, end) = (self.first_block, self.first_block + self.blocks);
        for (start, bytes) in &self.blob.cached {
            let start = u64::from(*start);
            let (from, to) = (start.max(first), (start + bytes.len() as u64 / BLOCK_BYTES).min(end));
            if from < to {
                let byte = |blocks: u64| (blocks * BLOCK_BYTES) as usize;
                read[byte(from - first)..byte(to - first)]
                    .copy_from_slice(&bytes[byte(from - start)..byte(to - start)]);
            }
        }
    }

    /// Whether one read of the device can cover both `before` and this part.
    fn continues(&self, before: &Part<'_>) -> bool {
        matches!(self.source, Source::InPlace)
            && self.low() == before.high()
            && self.start() == before.start() + before.blocks
    }
}

/// Splits a read of `offset..end` into parts of the overlapping `extents`. The buffer starts at `base` of the object.
fn parts<'a>(onode: &'a Onode, extents: &[Extent], base: u64, offset: u64, end: u64) -> Vec<Part<'a>> {
    let mut parts = Vec::with_capacity(extents.len());
    for (at, extent) in extents.iter().enumerate() {
        let blob = &onode.blobs[extent.blob as usize];
        let (from, to) = (extent.logical.max(offset), extent.end().min(end));
        let (start, count) = (extent.offset + from - extent.logical, to - from);
        let (touched, touched_end) = (start / BLOCK_BYTES, (start + count).div_ceil(BLOCK_BYTES));
        let low = from / BLOCK_BYTES * BLOCK_BYTES;
        let high = low + (touched_end - touched) * BLOCK_BYTES;
        // The blocks that must be read: whole checksum chunks, or the whole blob if it is compressed.
        let chunk = blob.kind.checksum_chunk_blocks();
        let (first_block, end_block) = match blob.kind.packed {
            Some(_) => (0, blob.run.blocks),
            None => (touched / chunk * chunk, touched_end.next_multiple_of(chunk).min(blob.run.blocks)),
        };
        let blocks = end_block - first_block;
        let exact = blob.kind.packed.is_none() && (first_block, end_block) == (touched, touched_end);
        let alone = (at == 0 || extents[at - 1].end() <= low)
            && extents.get(at + 1).is_none_or(|next| next.logical >= high);
        let source = match cached_parts(blob, start, count) {
            Some(pieces) => Source::Cached(pieces),
            None if alone && exact => Source::InPlace,
            None => Source::Apart { skip: start - first_block * BLOCK_BYTES },
        };
        parts.push(Part { blob, first_block, blocks, from: from - base, to: to - base, source });
    }
    parts
}

/// `len` bytes at `start` of the blob, if a single cached piece contains all of them.
fn cached(blob: &Blob, start: u64, len: u64) -> Option<Bytes> {
    let at =
        blob.cached.partition_point(|(first, _)| u64::from(*first) * BLOCK_BYTES <= start).checked_sub(1)?;
    let (first, bytes) = &blob.cached[at];
    let skip = start - u64::from(*first) * BLOCK_BYTES;
    (skip + len <= bytes.len() as u64).then(|| bytes.slice(skip as usize..(skip + len) as usize))
}

/// `len` bytes at `start` of the blob as pieces, if cached pieces contain all of them.
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
