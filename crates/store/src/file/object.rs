//! An object's record: the properties of its file in the database, including the checksums of its blocks.
//!
//! Checksums are CRC-32C over [`BLOCK_BYTES`] of data, padded with zeros after the object's end, and are stored in chunks of
//! [`CHECKSUM_CHUNK_BLOCKS`]. A block without a checksum was never written and reads as zeros (docs/format/filestore.md).

use super::db::{Db, append_checksum, sums_key, verify_checksum};
use super::step::Family;
use crate::error::{Result, StoreError};
use bytes::Bytes;
use nacre_types::object::ObjectId;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Bytes that one checksum covers.
pub(super) const BLOCK_BYTES: u64 = 4096;
// Checksums that are passed with written data can be used directly.
const _: () = assert!(BLOCK_BYTES as usize == nacre_types::crc32c::BLOCK_BYTES);
/// Number of checksums in one entry of the database.
pub(super) const CHECKSUM_CHUNK_BLOCKS: u64 = 64;

/// Checksums of [`CHECKSUM_CHUNK_BLOCKS`] blocks.
#[derive(Clone, Debug)]
struct Chunk {
    present: u64,
    sums: [u32; CHECKSUM_CHUNK_BLOCKS as usize],
}

impl Chunk {
    fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(12 + 4 * self.present.count_ones() as usize);
        out.extend_from_slice(&self.present.to_le_bytes());
        for at in (0..CHECKSUM_CHUNK_BLOCKS as usize).filter(|at| self.present >> at & 1 == 1) {
            out.extend_from_slice(&self.sums[at].to_le_bytes());
        }
        append_checksum(out)
    }

    fn decode(sealed: &[u8]) -> Option<Chunk> {
        let (present, sums) = verify_checksum(sealed)?.split_first_chunk::<8>()?;
        let mut chunk =
            Chunk { present: u64::from_le_bytes(*present), sums: [0; CHECKSUM_CHUNK_BLOCKS as usize] };
        let (sums, rest) = sums.as_chunks::<4>();
        if !rest.is_empty() || sums.len() != chunk.present.count_ones() as usize {
            return None;
        }
        let places = (0..CHECKSUM_CHUNK_BLOCKS as usize).filter(|at| chunk.present >> at & 1 == 1);
        for (at, sum) in places.zip(sums) {
            chunk.sums[at] = u32::from_le_bytes(*sum);
        }
        Some(chunk)
    }
}

#[derive(Clone, Debug)]
enum Slot {
    /// In the database, not loaded.
    Unloaded,
    /// No block of the chunk was written.
    Hole,
    Known(Arc<Chunk>),
}

/// An attribute.
#[derive(Clone, Debug)]
pub(super) struct Attr {
    pub(super) name: Box<str>,
    /// The value, or `None` if it is damaged.
    pub(super) value: Option<Bytes>,
    pub(super) crc: u32,
    /// Whether it is stored with the file instead of in the database.
    pub(super) inline: bool,
}

/// An object's record in memory.
#[derive(Clone, Debug)]
pub(super) struct Object {
    /// Number of the object's incarnation.
    pub(super) number: u64,
    pub(super) size: u64,
    pub(super) has_omap: bool,
    pub(super) present_blocks: u64,
    pub(super) stored_bytes: u64,
    /// Sorted by name.
    pub(super) attrs: Vec<Attr>,
    slots: Vec<Slot>,
}

#[derive(Serialize, Deserialize)]
struct Saved<'a> {
    number: u64,
    size: u64,
    has_omap: bool,
    present_blocks: u64,
    stored_bytes: u64,
    #[serde(borrow)]
    attrs: Vec<(&'a str, u32, bool)>,
}

impl Object {
    /// A new, empty object.
    pub(super) fn new(number: u64) -> Object {
        Object {
            number,
            size: 0,
            has_omap: false,
            present_blocks: 0,
            stored_bytes: 0,
            attrs: Vec::new(),
            slots: Vec::new(),
        }
    }

    pub(super) fn encode(&self) -> Bytes {
        let saved = Saved {
            number: self.number,
            size: self.size,
            has_omap: self.has_omap,
            present_blocks: self.present_blocks,
            stored_bytes: self.stored_bytes,
            attrs: self.attrs.iter().map(|attr| (&*attr.name, attr.crc, attr.inline)).collect(),
        };
        let record = postcard::to_extend(&saved, Vec::with_capacity(96));
        append_checksum(record.expect("invariant: records hold no unsized sequences"))
    }

    /// Decodes a record. The values of attributes are not included.
    pub(super) fn decode(oid: &ObjectId, sealed: &[u8]) -> Result<Object> {
        let damaged = |detail: &str| StoreError::corrupt(format!("record of {oid}"), detail);
        let record = verify_checksum(sealed).ok_or_else(|| damaged("checksum mismatch"))?;
        let saved: Saved<'_> = postcard::from_bytes(record).map_err(|error| damaged(&error.to_string()))?;
        if saved.size > crate::MAX_OBJECT_BYTES {
            return Err(damaged("impossible size"));
        }
        let attrs = saved.attrs.into_iter().map(|(name, crc, inline)| Attr {
            name: name.into(),
            value: None,
            crc,
            inline,
        });
        let slots = vec![Slot::Unloaded; chunks_of(saved.size)];
        Ok(Object {
            number: saved.number,
            size: saved.size,
            has_omap: saved.has_omap,
            present_blocks: saved.present_blocks,
            stored_bytes: saved.stored_bytes,
            attrs: attrs.collect(),
            slots,
        })
    }

    /// A copy with another number, and with the same data, attributes and omap.
    pub(super) fn copy(&self, number: u64) -> Object {
        Object { number, ..self.clone() }
    }

    /// Bytes in blocks that were written.
    pub(super) fn allocated_bytes(&self) -> u64 {
        self.present_blocks * BLOCK_BYTES
    }

    /// Loads the checksums of `offset..end`, in bytes.
    pub(super) fn load_sums(&mut self, db: &Db, oid: &ObjectId, offset: u64, end: u64) -> Result<()> {
        let first = (offset / BLOCK_BYTES / CHECKSUM_CHUNK_BLOCKS) as usize;
        let last = (end.div_ceil(BLOCK_BYTES * CHECKSUM_CHUNK_BLOCKS) as usize).min(self.slots.len());
        let wanted: Vec<usize> =
            (first..last).filter(|at| matches!(self.slots[*at], Slot::Unloaded)).collect();
        for wanted in wanted.chunks(256) {
            let keys: Vec<_> = wanted.iter().map(|at| sums_key(self.number, *at as u32)).collect();
            for (at, value) in wanted.iter().zip(db.get_many(Family::Sums, &keys)?) {
                self.slots[*at] = match value {
                    None => Slot::Hole,
                    Some(value) => Slot::Known(Arc::new(Chunk::decode(&value).ok_or_else(|| {
                        StoreError::corrupt(format!("checksums of {oid}"), "checksum mismatch")
                    })?)),
                };
            }
        }
        Ok(())
    }

    /// The checksum of a block, or `None` if it was never written. Its chunk must be loaded.
    pub(super) fn sum(&self, block: u64) -> Option<u32> {
        match self.slots.get((block / CHECKSUM_CHUNK_BLOCKS) as usize) {
            None | Some(Slot::Hole) => None,
            Some(Slot::Known(chunk)) => {
                let at = (block % CHECKSUM_CHUNK_BLOCKS) as usize;
                (chunk.present >> at & 1 == 1).then(|| chunk.sums[at])
            }
            Some(Slot::Unloaded) => unreachable!("invariant: checksums are loaded before they are used"),
        }
    }

    /// Sets or removes the checksum of a block, whose chunk must be loaded. Returns the number of the chunk.
    pub(super) fn set_sum(&mut self, block: u64, sum: Option<u32>) -> u32 {
        let (slot, at) = ((block / CHECKSUM_CHUNK_BLOCKS) as usize, (block % CHECKSUM_CHUNK_BLOCKS) as usize);
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, Slot::Hole);
        }
        if matches!(self.slots[slot], Slot::Hole) {
            if sum.is_none() {
                return slot as u32;
            }
            let empty = Chunk { present: 0, sums: [0; CHECKSUM_CHUNK_BLOCKS as usize] };
            self.slots[slot] = Slot::Known(Arc::new(empty));
        }
        let Slot::Known(chunk) = &mut self.slots[slot] else {
            unreachable!("invariant: checksums are loaded before they are changed")
        };
        let chunk = Arc::make_mut(chunk);
        let was = chunk.present >> at & 1 == 1;
        match sum {
            Some(sum) => {
                chunk.present |= 1 << at;
                chunk.sums[at] = sum;
                self.present_blocks += u64::from(!was);
            }
            None => {
                chunk.present &= !(1 << at);
                self.present_blocks -= u64::from(was);
            }
        }
        if chunk.present == 0 {
            self.slots[slot] = Slot::Hole;
        }
        slot as u32
    }

    /// Sets the size and the values derived from it. The checksum of the last block must be loaded.
    pub(super) fn set_size(&mut self, size: u64) {
        self.size = size;
        self.slots.resize(chunks_of(size), Slot::Hole);
        let tail = size % BLOCK_BYTES;
        let missing =
            if tail != 0 && self.sum(size / BLOCK_BYTES).is_some() { BLOCK_BYTES - tail } else { 0 };
        self.stored_bytes = self.allocated_bytes() - missing;
    }

    /// The encoded entry of a chunk, or `None` if the chunk has no entry.
    pub(super) fn encode_checksum_chunk(&self, chunk: u32) -> Option<Bytes> {
        match self.slots.get(chunk as usize) {
            Some(Slot::Known(chunk)) => Some(chunk.encode()),
            _ => None,
        }
    }

    /// The chunks that may have an entry in the database.
    pub(super) fn checksum_chunks(&self) -> impl Iterator<Item = u32> + '_ {
        let there = |slot: &Slot| !matches!(slot, Slot::Hole);
        self.slots.iter().enumerate().filter(move |(_, slot)| there(slot)).map(|(at, _)| at as u32)
    }

    /// The written parts of `offset..end` as offset and length in bytes, limited to the object's size. Checksums must be loaded.
    pub(super) fn extents(&self, offset: u64, end: u64) -> Vec<(u64, u64)> {
        let end = end.min(self.size);
        let mut found: Vec<(u64, u64)> = Vec::new();
        let mut block = offset / BLOCK_BYTES;
        while block * BLOCK_BYTES < end {
            if block.is_multiple_of(CHECKSUM_CHUNK_BLOCKS)
                && matches!(self.slots.get((block / CHECKSUM_CHUNK_BLOCKS) as usize), None | Some(Slot::Hole))
            {
                block += CHECKSUM_CHUNK_BLOCKS;
                continue;
            }
            if self.sum(block).is_some() {
                let from = (block * BLOCK_BYTES).max(offset);
                let to = ((block + 1) * BLOCK_BYTES).min(end);
                match found.last_mut() {
                    Some(last) if last.0 + last.1 == from => last.1 += to - from,
                    _ => found.push((from, to - from)),
                }
            }
            block += 1;
        }
        found
    }

    pub(super) fn attr(&self, name: &str) -> Option<&Attr> {
        let at = self.attrs.binary_search_by(|attr| (*attr.name).cmp(name)).ok()?;
        Some(&self.attrs[at])
    }
}

fn chunks_of(size: u64) -> usize {
    size.div_ceil(BLOCK_BYTES * CHECKSUM_CHUNK_BLOCKS) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_fuzz::Target;
    use nacre_types::crc32c::crc32c;
    use nacre_types::ids::PoolId;
    use std::path::Path;

    fn object() -> Object {
        let mut object = Object::new(7);
        object.slots = vec![Slot::Hole; 3];
        for block in [0, 1, 63, 64, 130] {
            object.set_sum(block, Some(block as u32 * 3));
        }
        object.set_size(130 * BLOCK_BYTES + 10);
        object.attrs.push(Attr { name: "_".into(), value: None, crc: 5, inline: true });
        object
    }

    #[test]
    fn checksums_count_blocks_and_bytes() {
        let mut object = object();
        assert_eq!((object.present_blocks, object.stored_bytes), (5, 4 * BLOCK_BYTES + 10));
        let parts = object.extents(100, u64::MAX);
        let tail = 130 * BLOCK_BYTES;
        assert_eq!(parts, [(100, 2 * BLOCK_BYTES - 100), (63 * BLOCK_BYTES, 2 * BLOCK_BYTES), (tail, 10)]);
        assert_eq!(object.checksum_chunks().collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(object.set_sum(64, None), 1);
        assert!(object.encode_checksum_chunk(1).is_none() && object.encode_checksum_chunk(0).is_some());
        let chunk = Chunk::decode(&object.encode_checksum_chunk(0).unwrap()).unwrap();
        assert_eq!((chunk.present, chunk.sums[63]), (1 << 63 | 3, 189));
    }

    fn reseal(record: &mut [u8]) {
        if let Some((body, crc)) = record.split_last_chunk_mut::<4>() {
            *crc = crc32c(body).to_le_bytes();
        }
    }

    #[test]
    fn fuzz_records() {
        let corpus = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"));
        let oid = ObjectId::new(PoolId(3), "", "", "fuzzed");
        let seeds = vec![object().encode().to_vec(), Object::new(1).encode().to_vec()];
        // One slot for each chunk of the claimed size, which is limited to 4 GiB.
        let target = Target { repair: reseal, ..Target::new("filestore-object", corpus, seeds) };
        target.run(|input| Some(Object::decode(&oid, input).ok()?.encode().to_vec()));
        let seeds = vec![object().encode_checksum_chunk(0).unwrap().to_vec()];
        let target = Target { repair: reseal, ..Target::new("filestore-checksums", corpus, seeds) };
        target.run(|input| Some(Chunk::decode(input)?.encode().to_vec()));
    }
}
