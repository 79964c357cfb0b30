//! Changes of an object's data by a transaction: writes to fresh blocks, holes, and sharing of blobs.

use super::aligned::{AlignedBuffer, is_aligned};
use super::apply::Txn;
use super::blob_kind::{BlobFormat, MAX_CHECKSUM_CHUNK_ORDER};
use super::compression::{self, hints};
use super::db::Family;
use super::keys;
use super::onode::{
    AllocHint, BLOCK_BYTES, Blob, Checksums, Extent, MAX_BLOB_BLOCKS, MAX_INLINE_SUMS, Onode, Run,
    SharedBlob, encode_sums,
};
use crate::error::Result;
use bytes::Bytes;
use nacre_types::payload::Payload;
use std::ops::{Deref, Range};

/// Smaller payloads are copied into their own buffer. They may be slices of a much larger receive buffer,
/// which would otherwise stay in memory as long as the data is cached.
const MIN_SHARED_PAYLOAD_BYTES: u64 = 64 << 10;

/// Blobs of another onode to refer to, and extents with indexes into them.
type Shared = (Vec<Blob>, Vec<Extent>);

impl Txn<'_> {
    /// Writes `data` at `offset` into fresh blocks, compressed if this is requested and saves space.
    pub(super) fn write(&mut self, onode: &mut Onode, offset: u64, data: &Payload) -> Result<()> {
        if self.try_overwrite_in_place(onode, offset, data)? {
            return Ok(());
        }
        let pack = compression::should_compress(&self.coll.data, onode.hint, data.len() as u64);
        self.place(onode, offset, data, pack)?;
        // A compressed blob stays allocated as a whole while any part of it is mapped. Its remaining data is rewritten
        // uncompressed if that takes no more space.
        while let Some(rest) = self.wasteful(onode) {
            for (from, len) in rest {
                let left = self.inner.read_onode(onode, from, len)?;
                self.place(onode, from, &left.into(), false)?;
            }
        }
        Ok(())
    }

    /// The ranges (offset and length) that map a compressed blob, if they would take no more space uncompressed.
    fn wasteful(&self, onode: &Onode) -> Option<Vec<(u64, u64)>> {
        if onode.blobs.iter().all(|blob| blob.kind.packed.is_none() || blob.shared) {
            return None;
        }
        let unit = self.inner.unit_blocks * BLOCK_BYTES;
        let mut blocks = vec![0; onode.blobs.len()];
        for extent in &onode.extents {
            let units = (extent.offset + extent.len).div_ceil(unit) - extent.offset / unit;
            blocks[extent.blob as usize] += units * self.inner.unit_blocks;
        }
        let found = onode.blobs.iter().zip(&blocks).position(|(blob, blocks)| {
            blob.kind.packed.is_some() && !blob.shared && *blocks <= blob.run.blocks
        })?;
        let own = onode.extents.iter().filter(|extent| extent.blob as usize == found);
        Some(own.map(|extent| (extent.logical, extent.len)).collect())
    }

    /// Writes `data` at `offset` into fresh blocks. Existing data in the rest of the first and last allocation unit is read
    /// and written with it.
    fn place(&mut self, onode: &mut Onode, offset: u64, data: &Payload, pack: bool) -> Result<()> {
        let end = offset + data.len() as u64;
        let unit = self.inner.unit_blocks * BLOCK_BYTES;
        let base = offset / unit * unit;
        let limit = end.next_multiple_of(unit);
        // The object's existing data in these two units outside the written range.
        let low = first_mapped(onode, base, offset);
        let high = limit.min(onode.size).max(end);
        let high = if is_mapped(onode, end, high) { high } else { end };
        let head = self.inner.read_onode(onode, low, offset - low)?;
        let tail = self.inner.read_onode(onode, end, high - end)?;
        let pieces = block_pieces(base, limit, (low, &head), (offset, data), (end, &tail));

        let mut placed = Vec::with_capacity(1);
        if pack {
            let longest = self.coll.data.max_blob_bytes / unit * unit;
            let longest = longest.clamp(unit, MAX_BLOB_BLOCKS * BLOCK_BYTES);
            let mut from = base;
            while from < limit {
                let to = (from + longest).min(limit);
                self.place_piece(&pieces, base, from..to, onode.hint, true, &mut placed)?;
                from = to;
            }
        } else {
            self.place_piece(&pieces, base, base..limit, onode.hint, false, &mut placed)?;
        }
        let at = self.cut(onode, low, high);
        let words = |blob: &Blob| blob.kind.checksum_words(blob.run.blocks);
        let mut inline: u64 = onode.blobs.iter().filter(|blob| blob.inline_sums).map(words).sum();
        let (mut logical, mut extents) = (base, Vec::with_capacity(placed.len()));
        for mut blob in placed {
            let blob_end = logical + blob.content_bytes();
            blob.inline_sums = inline + words(&blob) <= MAX_INLINE_SUMS;
            if blob.inline_sums {
                inline += words(&blob);
            } else {
                let sums = encode_sums(blob.kind, blob.sums.as_slice().unwrap_or_default());
                self.batch.put(self.inner.ids, Family::Csum, &keys::id(blob.id), &sums);
            }
            // The blob may extend beyond the mapped range by a whole unit.
            let (from, to) = (logical.max(low), blob_end.min(high));
            if from < to {
                let index = onode.blobs.len() as u32;
                extents.push(Extent { logical: from, len: to - from, blob: index, offset: from - logical });
            }
            onode.blobs.push(blob);
            logical = blob_end;
        }
        onode.extents.splice(at..at, extents);
        onode.size = onode.size.max(end);
        self.collect(onode)
    }

    /// Allocates blobs for a range of the object and queues their data to be written. `pieces` holds the object's contents
    /// from `base` on. With `compress`, the result is one compressed blob, if that takes less space and a contiguous run is
    /// available.
    fn place_piece(
        &mut self,
        pieces: &[Payload],
        base: u64,
        range: Range<u64>,
        hint: Option<AllocHint>,
        pack: bool,
        placed: &mut Vec<Blob>,
    ) -> Result<()> {
        if pack && let Some(blob) = self.place_packed(pieces, base, range.clone())? {
            placed.push(blob);
            return Ok(());
        }
        let mut runs = Vec::with_capacity(1);
        self.inner.allocate((range.end - range.start) / BLOCK_BYTES, MAX_BLOB_BLOCKS, &mut runs)?;
        self.allocated.extend_from_slice(&runs);
        let mut logical = range.start;
        for run in runs {
            let run_end = logical + run.blocks * BLOCK_BYTES;
            let parts = cut_pieces(pieces, logical - base, run_end - base);
            let kind = self.kind_for(hint, run.blocks);
            let mut sums = Vec::with_capacity(kind.checksum_words(run.blocks) as usize);
            match parts.as_slice() {
                [(_, whole)] => kind.append_payload_checksums(whole, &mut sums),
                // Checksum chunks must not end at the boundaries of pieces.
                parts if kind.chunk_order == 0 => {
                    parts.iter().for_each(|(_, part)| kind.append_payload_checksums(part, &mut sums))
                }
                parts => kind.append_checksums(&joined(parts), &mut sums),
            }
            let cached: Vec<_> = parts.into_iter().map(|(first, part)| (first, part.into_bytes())).collect();
            self.writes
                .extend(cached.iter().map(|(first, bytes)| (run.start + u64::from(*first), bytes.clone())));
            let (id, sums) = (self.inner.new_id(), Checksums::from_slice(&sums));
            placed.push(Blob { id, run, shared: false, inline_sums: false, kind, sums, cached });
            logical = run_end;
        }
        Ok(())
    }

    fn place_packed(&mut self, pieces: &[Payload], base: u64, range: Range<u64>) -> Result<Option<Blob>> {
        let (unit, options) = (self.inner.unit_blocks, self.coll.data);
        let blocks = (range.end - range.start) / BLOCK_BYTES;
        let allowed = (blocks as f64 * options.required_ratio) as u64 / unit * unit;
        let allowed = allowed.min(blocks.saturating_sub(unit));
        let parts = cut_pieces(pieces, range.start - base, range.end - base);
        let content = match parts.as_slice() {
            [(_, whole)] => whole.bytes().clone(),
            parts => Bytes::from(joined(parts)),
        };
        let limit = (allowed * BLOCK_BYTES) as usize;
        let Some((bytes, packed)) = compression::compress(options.algorithm, &content, limit) else {
            return Ok(None);
        };
        let blocks = (bytes.len() as u64).div_ceil(BLOCK_BYTES).next_multiple_of(unit);
        let mut runs = Vec::with_capacity(1);
        self.inner.allocate(blocks, MAX_BLOB_BLOCKS, &mut runs)?;
        let &[run] = runs.as_slice() else {
            // Space is too fragmented for a blob in one run.
            self.inner.release(runs);
            return Ok(None);
        };
        self.allocated.push(run);
        self.packed.0 += i64::from(packed.stored);
        self.packed.1 += (run.blocks * BLOCK_BYTES) as i64;
        let stored = AlignedBuffer::assemble((run.blocks * BLOCK_BYTES) as usize, [(0, &bytes[..])]).freeze();
        let kind = BlobFormat { checksum: options.checksum, chunk_order: 0, packed: Some(packed) };
        let mut sums = Vec::with_capacity(kind.checksum_words(run.blocks) as usize);
        kind.append_checksums(&stored, &mut sums);
        self.writes.push((run.start, stored));
        let (id, sums) = (self.inner.new_id(), Checksums::from_slice(&sums));
        let cached = parts.into_iter().map(|(first, part)| (first, part.into_bytes())).collect();
        Ok(Some(Blob { id, run, shared: false, inline_sums: false, kind, sums, cached }))
    }

    /// The kind of a new, uncompressed blob of `blocks` blocks.
    fn kind_for(&self, hint: Option<AllocHint>, blocks: u64) -> BlobFormat {
        let options = &self.coll.data;
        let flags = hint.map_or(0, |hint| hint.flags);
        let steady = flags & hints::SEQUENTIAL_READ != 0
            && flags & (hints::APPEND_ONLY | hints::IMMUTABLE) != 0
            && flags & (hints::RANDOM_READ | hints::RANDOM_WRITE) == 0;
        let chunk = if steady { options.max_chunk_bytes } else { options.min_chunk_bytes };
        let order = (chunk.max(BLOCK_BYTES) / BLOCK_BYTES).ilog2().min(blocks.ilog2());
        let chunk_order = (order as u8).min(MAX_CHECKSUM_CHUNK_ORDER);
        BlobFormat { checksum: options.checksum, chunk_order, packed: None }
    }

    /// Makes `from..to` a hole and releases blocks that are no longer mapped.
    pub(super) fn punch_hole(&mut self, onode: &mut Onode, from: u64, to: u64) -> Result<()> {
        self.cut(onode, from, to);
        self.collect(onode)
    }

    /// Unmaps `from..to`. Returns the index in the list at which an extent for that range belongs.
    fn cut(&mut self, onode: &mut Onode, from: u64, to: u64) -> usize {
        let first = onode.extents.partition_point(|extent| extent.end() <= from);
        let last = first + onode.extents[first..].partition_point(|extent| extent.logical < to);
        let left = onode.extents[first..last].first().filter(|extent| extent.logical < from);
        let left = left.map(|extent| Extent { len: from - extent.logical, ..*extent });
        let right = onode.extents[first..last].last().filter(|extent| extent.end() > to);
        let right = right.map(|extent| {
            let skip = to - extent.logical;
            Extent { logical: to, len: extent.len - skip, blob: extent.blob, offset: extent.offset + skip }
        });
        onode.extents.splice(first..last, left.into_iter().chain(right));
        first + usize::from(left.is_some())
    }

    /// Releases blobs that no extent maps, and the unmapped blocks of other blobs that are neither shared nor compressed.
    fn collect(&mut self, onode: &mut Onode) -> Result<()> {
        let mut used = vec![0_u64; onode.blobs.len()];
        for extent in &onode.extents {
            let (from, to) =
                (extent.offset / BLOCK_BYTES, (extent.offset + extent.len).div_ceil(BLOCK_BYTES));
            let blob = &onode.blobs[extent.blob as usize];
            // Blocks that must stay together: a chunk under one checksum, or an allocation unit.
            let grain = blob.kind.checksum_chunk_blocks().max(self.inner.unit_blocks);
            let (from, to) = match blob.kind.packed {
                Some(_) => (from, to),
                None => (from / grain * grain, to.next_multiple_of(grain).min(blob.run.blocks)),
            };
            used[extent.blob as usize] |= block_mask(from, to);
        }
        let is_whole = |blob: &Blob, used: u64| {
            let stays = blob.shared || blob.kind.packed.is_some();
            if stays { used != 0 } else { used == block_mask(0, blob.run.blocks) }
        };
        if onode.blobs.iter().zip(&used).all(|(blob, used)| is_whole(blob, *used)) {
            return Ok(());
        }
        // For each old blob: (first block kept, index of the new blob that contains it).
        let mut moved: Vec<Vec<(u64, u32)>> = Vec::with_capacity(used.len());
        let mut kept: Vec<Blob> = Vec::with_capacity(used.len() + 1);
        for (blob, used) in std::mem::take(&mut onode.blobs).into_iter().zip(used) {
            if is_whole(&blob, used) {
                moved.push(vec![(0, kept.len() as u32)]);
                kept.push(blob);
            } else if used == 0 {
                moved.push(Vec::new());
                self.release_blob(&blob)?;
            } else {
                let first = kept.len() as u32;
                let parts = self.split_blob(blob, used, &mut kept)?;
                moved.push(parts.into_iter().zip(first..).collect());
            }
        }
        onode.blobs = kept;
        for extent in &mut onode.extents {
            let block = extent.offset / BLOCK_BYTES;
            let parts = &moved[extent.blob as usize];
            let at = parts.partition_point(|(first, _)| *first <= block);
            let (first, blob) =
                *parts[..at].last().expect("invariant: mapped blocks are kept by construction");
            extent.blob = blob;
            extent.offset -= first * BLOCK_BYTES;
        }
        Ok(())
    }

    /// Splits an unshared blob into the runs of its used blocks, appended to `kept`. Returns their first blocks.
    fn split_blob(&mut self, blob: Blob, used: u64, kept: &mut Vec<Blob>) -> Result<Vec<u64>> {
        let ids = self.inner.ids;
        let sums = match &blob.sums {
            Checksums::Stored => self.inner.load_sums(&blob)?,
            loaded => loaded.clone(),
        };
        let sums = sums.as_slice().unwrap_or_default();
        if !blob.inline_sums {
            self.batch.delete(ids, Family::Csum, &keys::id(blob.id));
        }
        let (mut block, mut starts) = (0, Vec::new());
        while block < blob.run.blocks {
            let in_use = used >> block & 1 == 1;
            let same =
                if in_use { (used >> block).trailing_ones() } else { (used >> block).trailing_zeros() };
            let end = (block + u64::from(same)).min(blob.run.blocks);
            let run = Run { start: blob.run.start + block, blocks: end - block };
            if in_use {
                let kind = blob.kind;
                // The part starts and ends at chunk boundaries, unless it ends with the blob.
                let part = &sums[kind.checksum_words(block) as usize..kind.checksum_words(end) as usize];
                let id = self.inner.new_id();
                if !blob.inline_sums {
                    self.batch.put(ids, Family::Csum, &keys::id(id), &encode_sums(kind, part));
                }
                let pieces: Vec<_> =
                    blob.cached.iter().map(|(first, bytes)| (u64::from(*first), bytes)).collect();
                let cached = clip_pieces(&pieces, block..end, |bytes, range| bytes.slice(range));
                let (shared, inline_sums) = (false, blob.inline_sums);
                kept.push(Blob {
                    id,
                    run,
                    shared,
                    inline_sums,
                    kind,
                    sums: Checksums::from_slice(part),
                    cached,
                });
                starts.push(block);
            } else {
                self.freed.push(run);
            }
            block = end;
        }
        Ok(starts)
    }

    /// Releases an onode's reference to a blob.
    pub(super) fn release_blob(&mut self, blob: &Blob) -> Result<()> {
        let ids = self.inner.ids;
        if blob.shared {
            let shared = self.shared_blob(blob.id)?;
            if shared.refs > 1 {
                self.set_shared_blob(blob.id, Some(SharedBlob { refs: shared.refs - 1, ..shared }));
                return Ok(());
            }
            self.set_shared_blob(blob.id, None);
        }
        if !blob.inline_sums {
            self.batch.delete(ids, Family::Csum, &keys::id(blob.id));
        }
        if let Some(packed) = blob.kind.packed {
            self.packed.0 -= i64::from(packed.stored);
            self.packed.1 -= (blob.run.blocks * BLOCK_BYTES) as i64;
        }
        self.freed.push(blob.run);
        Ok(())
    }

    /// Adds a reference to a blob for one more onode.
    fn share_blob(&mut self, blob: &mut Blob) -> Result<()> {
        let refs = if blob.shared { self.shared_blob(blob.id)?.refs + 1 } else { 2 };
        blob.shared = true;
        self.set_shared_blob(blob.id, Some(SharedBlob { refs, run: blob.run }));
        Ok(())
    }

    /// Makes all blobs shared and returns a copy of the record that refers to them too.
    pub(super) fn share_all(&mut self, onode: &mut Onode) -> Result<Onode> {
        for blob in &mut onode.blobs {
            self.share_blob(blob)?;
        }
        Ok(onode.clone())
    }

    /// The blobs and extents of a range, for [`Txn::map_shared_extents`].
    pub(super) fn share_range(&mut self, onode: &mut Onode, offset: u64, len: u64) -> Result<Shared> {
        let end = offset + len;
        let inside = onode.extents.iter().filter(|extent| extent.end() > offset && extent.logical < end);
        let mut extents: Vec<Extent> = inside
            .map(|extent| {
                let (from, to) = (extent.logical.max(offset), extent.end().min(end));
                Extent {
                    logical: from,
                    len: to - from,
                    offset: extent.offset + from - extent.logical,
                    ..*extent
                }
            })
            .collect();
        let (mut blobs, mut index) = (Vec::new(), vec![None; onode.blobs.len()]);
        for extent in &mut extents {
            let at = extent.blob as usize;
            let place = match index[at] {
                Some(place) => place,
                None => {
                    let blob = &mut onode.blobs[at];
                    if !blob.shared {
                        // Only one reference so far. adopt() adds the second.
                        blob.shared = true;
                        self.set_shared_blob(blob.id, Some(SharedBlob { refs: 1, run: blob.run }));
                    }
                    blobs.push(blob.clone());
                    *index[at].insert(blobs.len() as u32 - 1)
                }
            };
            extent.blob = place;
        }
        Ok((blobs, extents))
    }

    /// Maps another onode's extents, moved by `shift`, into a hole of this one.
    pub(super) fn map_shared_extents(
        &mut self,
        onode: &mut Onode,
        blobs: &[Blob],
        extents: &[Extent],
        shift: u64,
    ) -> Result<()> {
        let Some(first) = extents.first() else { return Ok(()) };
        let mut places = Vec::with_capacity(blobs.len());
        for blob in blobs {
            let held = onode.blobs.iter().position(|have| have.id == blob.id);
            places.push(match held {
                Some(place) => place as u32,
                None => {
                    let mut blob = blob.clone();
                    self.share_blob(&mut blob)?;
                    onode.blobs.push(blob);
                    onode.blobs.len() as u32 - 1
                }
            });
        }
        let start = first.logical.wrapping_add(shift);
        let at = onode.extents.partition_point(|extent| extent.end() <= start);
        let moved = extents.iter().map(|extent| Extent {
            logical: extent.logical.wrapping_add(shift),
            blob: places[extent.blob as usize],
            ..*extent
        });
        onode.extents.splice(at..at, moved);
        Ok(())
    }
}

/// A bit mask of the blocks `from..to` of a blob.
fn block_mask(from: u64, to: u64) -> u64 {
    debug_assert!(from < to && to <= MAX_BLOB_BLOCKS);
    (u64::MAX >> (64 - (to - from))) << from
}

/// The concatenated bytes of placed pieces.
fn joined(parts: &[(u32, Payload)]) -> Vec<u8> {
    parts.iter().flat_map(|(_, part)| part.iter().copied()).collect()
}

/// The position of the first data between `from` and `to`, or `to` if there is none.
fn first_mapped(onode: &Onode, from: u64, to: u64) -> u64 {
    let first = onode.extents.partition_point(|extent| extent.end() <= from);
    onode.extents.get(first).map_or(to, |extent| extent.logical.clamp(from, to))
}

fn is_mapped(onode: &Onode, from: u64, to: u64) -> bool {
    let first = onode.extents.partition_point(|extent| extent.end() <= from);
    from < to && onode.extents.get(first).is_some_and(|extent| extent.logical < to)
}

/// The contents of blocks `base..limit` as buffers of whole blocks: `data` with `head` before and `tail` after it,
/// each with its offset, and zeros around them. Large, aligned payloads are used by reference.
pub(super) fn block_pieces(
    base: u64,
    limit: u64,
    head: (u64, &Bytes),
    data: (u64, &Payload),
    tail: (u64, &Bytes),
) -> Vec<Payload> {
    let (offset, end) = (data.0, data.0 + data.1.len() as u64);
    let assemble = |from: u64, to: u64| {
        let parts = [head, (offset, data.1.bytes()), tail].into_iter().filter_map(|(at, part)| {
            let (low, high) = (at.max(from), (at + part.len() as u64).min(to));
            let inside = || &part[(low - at) as usize..(high - at) as usize];
            (low < high).then(|| ((low - from) as usize, inside()))
        });
        let copy = AlignedBuffer::assemble((to - from) as usize, parts).freeze();
        if (from, to) == (offset, end) { data.1.with_copied_bytes(copy) } else { Payload::from(copy) }
    };
    let (inner, inner_end) = (offset.next_multiple_of(BLOCK_BYTES), end / BLOCK_BYTES * BLOCK_BYTES);
    if inner >= inner_end || inner_end - inner < MIN_SHARED_PAYLOAD_BYTES {
        return vec![assemble(base, limit)];
    }
    let middle = data.1.slice((inner - offset) as usize..(inner_end - offset) as usize);
    if !is_aligned(&middle) {
        return vec![assemble(base, limit)];
    }
    let mut pieces = Vec::with_capacity(3);
    if base < inner {
        pieces.push(assemble(base, inner));
    }
    pieces.push(middle);
    if inner_end < limit {
        pieces.push(assemble(inner_end, limit));
    }
    pieces
}

/// The range `from..to` of the concatenated `pieces`, as (block relative to `from`, bytes).
pub(super) fn cut_pieces(pieces: &[Payload], from: u64, to: u64) -> Vec<(u32, Payload)> {
    let mut start = 0;
    let placed: Vec<_> = pieces
        .iter()
        .map(|bytes| {
            let at = start;
            start += bytes.len() as u64 / BLOCK_BYTES;
            (at, bytes)
        })
        .collect();
    clip_pieces(&placed, from / BLOCK_BYTES..to / BLOCK_BYTES, |piece, range| piece.slice(range))
}

/// The parts of placed pieces that lie within `blocks`, cut by `slice` and placed relative to the first of these blocks.
pub(super) fn clip_pieces<T: Deref<Target = [u8]>>(
    pieces: &[(u64, &T)],
    blocks: Range<u64>,
    slice: impl Fn(&T, Range<usize>) -> T,
) -> Vec<(u32, T)> {
    let mut out = Vec::with_capacity(pieces.len());
    for (at, bytes) in pieces {
        let end = at + bytes.len() as u64 / BLOCK_BYTES;
        let (low, high) = ((*at).max(blocks.start), end.min(blocks.end));
        if low < high {
            let range = ((low - at) * BLOCK_BYTES) as usize..((high - at) * BLOCK_BYTES) as usize;
            out.push(((low - blocks.start) as u32, slice(bytes, range)));
        }
    }
    out
}
