//! An object's record: the location of its data, its attributes, size and omap (docs/format/bluestore.md).
//!
//! Data is in *blobs*: runs of device blocks, each written once, with checksums ([`super::blob_kind`]). *Extents* map
//! ranges of the object to ranges of blobs' data, byte by byte. The position in the object and the position in the blob agree
//! modulo the block size. A blob belongs to one onode or, after a clone, is shared and reference-counted.
//!
//! [`OnodeView`] decodes without allocating memory, for scans. [`Onode::decode`] builds the record that transactions change.

use super::blob_kind::BlobFormat;
use super::varint::{self, FieldReader};
use bytes::Bytes;
use nacre_types::crc32c::crc32c;
use std::sync::Arc;

/// Size of a block in bytes: the smallest unit of allocation and of checksums.
pub(super) const BLOCK_BYTES: u64 = 4096;
/// Maximum length of a blob, in blocks.
pub(super) const MAX_BLOB_BLOCKS: u64 = 64;
/// Number of 32-bit checksum words that an onode keeps inline. The checksums of further blobs are in the `csum` family.
pub(super) const MAX_INLINE_SUMS: u64 = 64;

const VERSION: u8 = 1;
const COMPAT: u8 = 1;
const FLAG_HINT: u64 = 1;
/// Some blobs are not of the default kind.
const FLAG_KINDS: u64 = 2;
const KNOWN_FLAGS: u64 = FLAG_HINT | FLAG_KINDS;
const BLOB_SHARED: u64 = 1;
const BLOB_INLINE_SUMS: u64 = 2;

/// A blob's checksums, as 32-bit words.
#[derive(Clone, Debug)]
pub(super) enum Checksums {
    /// A single word.
    One(u32),
    /// Several words, or none.
    Many(Arc<[u32]>),
    /// In the `csum` family and committed, but not loaded.
    Stored,
}

impl Checksums {
    pub(super) fn from_slice(sums: &[u32]) -> Checksums {
        match sums {
            [one] => Checksums::One(*one),
            many => Checksums::Many(many.into()),
        }
    }

    /// The checksums, or `None` if they are not loaded.
    pub(super) fn as_slice(&self) -> Option<&[u32]> {
        match self {
            Checksums::One(sum) => Some(std::slice::from_ref(sum)),
            Checksums::Many(sums) => Some(sums),
            Checksums::Stored => None,
        }
    }
}

/// A run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// First block on the device.
    pub(super) start: u64,
    /// Number of blocks.
    pub(super) blocks: u64,
}

/// A run of device blocks that was written once.
#[derive(Clone, Debug)]
pub(super) struct Blob {
    /// Identifies its checksums and, if it is shared, its reference count.
    pub(super) id: u64,
    pub(super) run: Run,
    pub(super) shared: bool,
    /// Whether the checksums are in the onode.
    pub(super) inline_sums: bool,
    pub(super) kind: BlobFormat,
    pub(super) sums: Checksums,
    /// Cached contents: (first block within the blob's data, whole blocks), sorted, disjoint. Complete until the blob is
    /// written.
    pub(super) cached: Vec<(u32, Bytes)>,
}

impl Blob {
    /// Bytes of data that extents may map.
    pub(super) fn content_bytes(&self) -> u64 {
        self.kind.uncompressed_bytes(self.run.blocks)
    }

    /// Bytes of cached contents.
    pub(super) fn cached_bytes(&self) -> u64 {
        self.cached.iter().map(|(_, bytes)| bytes.len() as u64).sum()
    }
}

/// Maps a range of the object to a range of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// Start in the object, in bytes.
    pub(super) logical: u64,
    /// Length in bytes.
    pub(super) len: u64,
    /// Index into the onode's blobs.
    pub(super) blob: u32,
    /// Start in the blob, in bytes.
    pub(super) offset: u64,
}

impl Extent {
    pub(super) fn end(&self) -> u64 {
        self.logical + self.len
    }
}

/// An `AllocHint` as given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AllocHint {
    pub(super) object_size: u64,
    pub(super) write_size: u64,
    pub(super) flags: u32,
}

/// An object's record in memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Onode {
    /// The onode's number, unique during the life of the store.
    pub(super) nid: u64,
    /// Size in bytes.
    pub(super) size: u64,
    /// Id of its omap, or 0 if it has none.
    pub(super) omap: u64,
    pub(super) hint: Option<AllocHint>,
    /// Sorted by name.
    pub(super) attrs: Vec<(Arc<str>, Bytes)>,
    pub(super) blobs: Vec<Blob>,
    /// Sorted and disjoint.
    pub(super) extents: Vec<Extent>,
}

impl Onode {
    /// Bytes of stored data without holes, and how many of them are compressed.
    pub(super) fn stored_and_compressed(&self) -> (u64, u64) {
        let is_packed = |extent: &Extent| self.blobs[extent.blob as usize].kind.packed.is_some();
        self.extents.iter().fold((0, 0), |(stored, packed), extent| {
            (stored + extent.len, packed + if is_packed(extent) { extent.len } else { 0 })
        })
    }

    pub(super) fn attr(&self, name: &str) -> Option<&Bytes> {
        let at = self.attrs.binary_search_by(|(have, _)| (**have).cmp(name)).ok()?;
        Some(&self.attrs[at].1)
    }

    /// Approximate memory that the record and its cached contents take, in bytes.
    pub(super) fn memory(&self) -> u64 {
        let attrs: usize = self.attrs.iter().map(|(name, value)| 96 + name.len() + value.len()).sum();
        let lists = self.blobs.capacity() * size_of::<Blob>() + self.extents.capacity() * size_of::<Extent>();
        let blobs: u64 = self
            .blobs
            .iter()
            .map(|blob| {
                let sums =
                    if let Checksums::Many(sums) = &blob.sums { sums.len() as u64 * 4 + 32 } else { 0 };
                sums + blob.cached_bytes() + blob.cached.capacity() as u64 * 40
            })
            .sum();
        (size_of::<Onode>() + attrs + lists) as u64 + blobs
    }

    /// Appends the record's encoding to `out`.
    pub(super) fn encode_into(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[VERSION, COMPAT]);
        let kinds = self.blobs.iter().any(|blob| blob.kind != BlobFormat::default());
        let hinted = if self.hint.is_some() { FLAG_HINT } else { 0 };
        varint::put(out, hinted | if kinds { FLAG_KINDS } else { 0 });
        varint::put(out, self.nid);
        varint::put(out, self.size);
        varint::put(out, self.omap);
        if let Some(hint) = &self.hint {
            varint::put(out, hint.object_size);
            varint::put(out, hint.write_size);
            varint::put(out, u64::from(hint.flags));
        }
        varint::put(out, self.blobs.len() as u64);
        let (mut last_id, mut last_end) = (self.nid, 0);
        for blob in &self.blobs {
            let flags = if blob.shared { BLOB_SHARED } else { 0 }
                | if blob.inline_sums { BLOB_INLINE_SUMS } else { 0 };
            varint::put_signed(out, blob.id.wrapping_sub(last_id) as i64);
            varint::put(out, blob.run.blocks << 2 | flags);
            varint::put_signed(out, blob.run.start.wrapping_sub(last_end) as i64);
            (last_id, last_end) = (blob.id, blob.run.start + blob.run.blocks);
        }
        if kinds {
            self.blobs.iter().for_each(|blob| blob.kind.put(out));
        }
        varint::put(out, self.extents.len() as u64);
        let mut last_end = 0;
        for extent in &self.extents {
            varint::put(out, extent.logical - last_end);
            varint::put(out, extent.len);
            varint::put(out, u64::from(extent.blob));
            varint::put(out, extent.offset);
            last_end = extent.end();
        }
        varint::put(out, self.attrs.len() as u64);
        for (name, value) in &self.attrs {
            varint::put(out, name.len() as u64);
            out.extend_from_slice(name.as_bytes());
            varint::put(out, value.len() as u64);
            out.extend_from_slice(value);
        }
        for blob in self.blobs.iter().filter(|blob| blob.inline_sums) {
            let sums = blob.sums.as_slice().expect("invariant: inline checksums are always loaded");
            blob.kind.encode_checksums(sums, out);
        }
        let crc = crc32c(&out[start..]);
        out.extend_from_slice(&crc.to_le_bytes());
    }

    /// Decodes a record, and checks everything that later code relies on.
    pub(super) fn decode(value: &[u8]) -> Result<Onode, &'static str> {
        let view = OnodeView::parse(value)?;
        let mut onode =
            Onode { nid: view.nid, size: view.size, omap: view.omap, hint: view.hint, ..Onode::default() };
        let mut blobs = view.blobs();
        onode.blobs.reserve_exact(view.blob_count as usize);
        for blob in &mut blobs {
            let blob = blob?;
            onode.blobs.push(Blob {
                id: blob.id,
                run: blob.run,
                shared: blob.shared,
                inline_sums: blob.inline_sums,
                kind: BlobFormat::default(),
                sums: Checksums::Stored,
                cached: Vec::new(),
            });
        }
        let mut fields = blobs.rest;
        if view.kinds {
            for blob in &mut onode.blobs {
                blob.kind =
                    BlobFormat::take(&mut fields, blob.run.blocks).ok_or("malformed kind of a blob")?;
            }
        }
        onode.decode_extents(&mut fields).ok_or("malformed extents")?;
        onode.decode_attrs(&mut fields).ok_or("malformed attributes")?;
        for blob in onode.blobs.iter_mut().filter(|blob| blob.inline_sums) {
            let bytes =
                fields.bytes(blob.kind.checksum_bytes(blob.run.blocks)).ok_or("checksums cut short")?;
            blob.sums = Checksums::from_slice(&blob.kind.decode_checksums(bytes));
        }
        if fields.0.is_empty() { Ok(onode) } else { Err("bytes left over") }
    }

    fn decode_extents(&mut self, fields: &mut FieldReader<'_>) -> Option<()> {
        let count = fields.number()?;
        let mut last_end = 0_u64;
        for _ in 0..count {
            let logical = last_end.checked_add(fields.number()?)?;
            let extent =
                Extent { logical, len: fields.number()?, blob: fields.small()?, offset: fields.number()? };
            last_end = logical.checked_add(extent.len)?;
            let blob = self.blobs.get(extent.blob as usize)?;
            let fits = extent.offset.checked_add(extent.len)? <= blob.content_bytes();
            if !fits
                || extent.len == 0
                || last_end > self.size
                || !(logical ^ extent.offset).is_multiple_of(BLOCK_BYTES)
            {
                return None;
            }
            self.extents.push(extent);
        }
        Some(())
    }

    fn decode_attrs(&mut self, fields: &mut FieldReader<'_>) -> Option<()> {
        for _ in 0..fields.number()? {
            let len = fields.number()? as usize;
            let name = std::str::from_utf8(fields.bytes(len)?).ok()?;
            let len = fields.number()? as usize;
            let value = Bytes::copy_from_slice(fields.bytes(len)?);
            if self.attrs.last().is_some_and(|(last, _)| **last >= *name) {
                return None;
            }
            self.attrs.push((name.into(), value));
        }
        Some(())
    }
}

/// A record that is decoded in place.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnodeView<'a> {
    pub(super) nid: u64,
    pub(super) size: u64,
    pub(super) omap: u64,
    pub(super) hint: Option<AllocHint>,
    /// Whether the blobs' kinds follow the blobs.
    kinds: bool,
    blob_count: u64,
    blobs: FieldReader<'a>,
}

/// A blob as a scan sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlobView {
    pub(super) id: u64,
    pub(super) run: Run,
    pub(super) shared: bool,
    pub(super) inline_sums: bool,
}

impl<'a> OnodeView<'a> {
    /// Checks version and checksum, and reads the fixed part.
    pub(super) fn parse(value: &'a [u8]) -> Result<OnodeView<'a>, &'static str> {
        let (body, crc) = value.split_last_chunk::<4>().ok_or("cut short")?;
        if body.get(1).is_some_and(|compat| *compat > VERSION) {
            return Err("written in a newer format");
        }
        if crc32c(body) != u32::from_le_bytes(*crc) {
            return Err("checksum mismatch");
        }
        if body.first() != Some(&VERSION) {
            return Err("unknown format");
        }
        let fields = body.get(2..).ok_or("cut short")?;
        Self::parse_fields(FieldReader(fields)).ok_or("malformed")
    }

    fn parse_fields(mut fields: FieldReader<'a>) -> Option<OnodeView<'a>> {
        let flags = fields.number()?;
        if flags & !KNOWN_FLAGS != 0 {
            return None;
        }
        let (nid, size, omap) = (fields.number()?, fields.number()?, fields.number()?);
        let hint = if flags & FLAG_HINT == 0 {
            None
        } else {
            Some(AllocHint {
                object_size: fields.number()?,
                write_size: fields.number()?,
                flags: fields.small()?,
            })
        };
        let blob_count = fields.number()?;
        // Each blob takes at least three bytes. This limits the memory that a decoder allocates.
        if blob_count > fields.0.len() as u64 / 3 {
            return None;
        }
        let kinds = flags & FLAG_KINDS != 0;
        Some(OnodeView { nid, size, omap, hint, kinds, blob_count, blobs: fields })
    }

    /// The blobs. After the iteration, [`BlobViewIter::rest`] is positioned after them.
    pub(super) fn blobs(&self) -> BlobViewIter<'a> {
        BlobViewIter { rest: self.blobs, left: self.blob_count, last_id: self.nid, last_end: 0 }
    }
}

/// Iterates over a record's blobs.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlobViewIter<'a> {
    rest: FieldReader<'a>,
    left: u64,
    last_id: u64,
    last_end: u64,
}

impl BlobViewIter<'_> {
    fn read(&mut self) -> Option<BlobView> {
        let id = self.last_id.wrapping_add(self.rest.signed()? as u64);
        let flags = self.rest.number()?;
        let start = self.last_end.wrapping_add(self.rest.signed()? as u64);
        let run = Run { start, blocks: flags >> 2 };
        self.last_end = start.checked_add(run.blocks)?;
        self.last_id = id;
        if run.blocks == 0 || run.blocks > MAX_BLOB_BLOCKS {
            return None;
        }
        let (shared, inline_sums) = (flags & BLOB_SHARED != 0, flags & BLOB_INLINE_SUMS != 0);
        Some(BlobView { id, run, shared, inline_sums })
    }
}

impl Iterator for BlobViewIter<'_> {
    type Item = Result<BlobView, &'static str>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let blob = self.read();
        self.left = if blob.is_some() { self.left - 1 } else { 0 };
        Some(blob.ok_or("malformed blob"))
    }
}

/// A shared blob's record: its location and the number of onodes that refer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SharedBlob {
    pub(super) refs: u64,
    pub(super) run: Run,
}

impl SharedBlob {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION, COMPAT];
        varint::put(&mut out, self.refs);
        varint::put(&mut out, self.run.start);
        varint::put(&mut out, self.run.blocks);
        let crc = crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    pub(super) fn decode(value: &[u8]) -> Option<SharedBlob> {
        let (body, crc) = value.split_last_chunk::<4>()?;
        if crc32c(body) != u32::from_le_bytes(*crc)
            || !body.starts_with(&[VERSION])
            || body.get(1)? > &VERSION
        {
            return None;
        }
        let mut fields = FieldReader(&body[2..]);
        let refs = fields.number()?;
        let run = Run { start: fields.number()?, blocks: fields.number()? };
        (fields.0.is_empty() && refs > 0 && run.blocks > 0).then_some(SharedBlob { refs, run })
    }
}

/// Encodes a `csum` record for a blob of the given kind: the checksums, then their crc32c.
pub(super) fn encode_sums(kind: BlobFormat, sums: &[u32]) -> Vec<u8> {
    let mut out = Vec::with_capacity(sums.len() * 4 + 4);
    kind.encode_checksums(sums, &mut out);
    let crc = crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

/// Decodes a `csum` record of a blob of `blocks` blocks.
pub(super) fn decode_sums(value: &[u8], kind: BlobFormat, blocks: u64) -> Option<Checksums> {
    let (body, crc) = value.split_last_chunk::<4>()?;
    if body.len() != kind.checksum_bytes(blocks) || crc32c(body) != u32::from_le_bytes(*crc) {
        return None;
    }
    Some(Checksums::from_slice(&kind.decode_checksums(body)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blue::blob_kind::BlobCompression;
    use crate::{ChecksumType, CompressionAlgorithm};
    use nacre_fuzz::Target;

    fn sample() -> Onode {
        let blob = |id, start, blocks: u64, inline_sums| Blob {
            id,
            run: Run { start, blocks },
            shared: id == 9,
            inline_sums,
            kind: BlobFormat::default(),
            sums: if inline_sums {
                Checksums::from_slice(&vec![7; blocks as usize])
            } else {
                Checksums::Stored
            },
            cached: Vec::new(),
        };
        Onode {
            nid: 12,
            size: 1 << 20,
            omap: 13,
            hint: Some(AllocHint { object_size: 4 << 20, write_size: 4096, flags: 5 }),
            attrs: vec![("_".into(), Bytes::from_static(b"info")), ("snapset".into(), Bytes::new())],
            blobs: vec![blob(14, 1000, 1, true), blob(9, 20, 64, false), blob(300, 5000, 2, true)],
            extents: vec![
                Extent { logical: 100, len: 3996, blob: 0, offset: 100 },
                Extent { logical: 8192, len: 5000, blob: 1, offset: 4096 },
                Extent { logical: 65536, len: 8192, blob: 2, offset: 0 },
            ],
        }
    }

    /// An onode with blobs of several kinds.
    fn mixed() -> Onode {
        let mut onode = sample();
        let packed =
            BlobCompression { algorithm: CompressionAlgorithm::Zstd, content: 65_536, stored: 8_000 };
        let kind = BlobFormat { checksum: ChecksumType::Xxhash64, chunk_order: 1, packed: Some(packed) };
        onode.blobs[2].kind = kind;
        onode.blobs[2].sums = Checksums::from_slice(&[1, 2]);
        onode.blobs[1].kind = BlobFormat { checksum: ChecksumType::Crc32c8, chunk_order: 6, packed: None };
        onode.extents[2].len = 65_536;
        onode
    }

    #[test]
    fn records_of_mixed_kinds_round_trip() {
        let mut bytes = Vec::new();
        mixed().encode_into(&mut bytes);
        let decoded = Onode::decode(&bytes).unwrap();
        assert_eq!(format!("{decoded:?}"), format!("{:?}", mixed()));
        assert_eq!(decoded.stored_and_compressed(), (3996 + 5000 + 65_536, 65_536));
        let mut beyond = mixed();
        beyond.extents[2].len += 1;
        bytes.clear();
        beyond.encode_into(&mut bytes);
        assert!(Onode::decode(&bytes).is_err());
    }

    #[test]
    fn records_round_trip() {
        let mut bytes = Vec::new();
        sample().encode_into(&mut bytes);
        let decoded = Onode::decode(&bytes).unwrap();
        assert_eq!(format!("{decoded:?}"), format!("{:?}", sample()));
        let view = OnodeView::parse(&bytes).unwrap();
        let starts: Vec<_> = view.blobs().map(|blob| blob.unwrap().run.start).collect();
        assert_eq!((view.nid, view.size, starts), (12, 1 << 20, vec![1000, 20, 5000]));
    }

    #[test]
    fn every_flipped_bit_and_truncation_is_refused() {
        let mut bytes = Vec::new();
        sample().encode_into(&mut bytes);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Onode::decode(&damaged).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(Onode::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
    }

    /// Corrects the checksum at the end of a record.
    fn reseal(record: &mut [u8]) {
        if let Some((body, crc)) = record.split_last_chunk_mut::<4>() {
            *crc = crc32c(body).to_le_bytes();
        }
    }

    #[test]
    fn fuzz_records() {
        let corpus = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"));
        let encoded = |onode: &Onode| {
            let mut bytes = Vec::new();
            onode.encode_into(&mut bytes);
            bytes
        };
        let seeds =
            vec![encoded(&sample()), encoded(&mixed()), encoded(&Onode { nid: 1, ..Onode::default() })];
        let target = Target { repair: reseal, ..Target::new("onode", corpus, seeds) };
        target.run(|input| Onode::decode(input).ok().map(|onode| encoded(&onode)));
        let shared = SharedBlob { refs: 3, run: Run { start: 77, blocks: 5 } };
        let target = Target { repair: reseal, ..Target::new("shared-blob", corpus, vec![shared.encode()]) };
        target.run(|input| SharedBlob::decode(input).map(|shared| shared.encode()));
        let kind = BlobFormat::default();
        let seeds = vec![encode_sums(kind, &[1, 2, 3])];
        let target = Target { repair: reseal, ..Target::new("checksums", corpus, seeds) };
        target.run(|input| {
            let blocks = input.len() as u64 / 4;
            let sums = decode_sums(input, kind, blocks.saturating_sub(1))?;
            Some(encode_sums(kind, sums.as_slice()?))
        });
    }

    #[test]
    fn shared_and_checksum_records_round_trip() {
        let shared = SharedBlob { refs: 3, run: Run { start: 77, blocks: 5 } };
        let bytes = shared.encode();
        assert_eq!(SharedBlob::decode(&bytes), Some(shared));
        assert_eq!(SharedBlob::decode(&bytes[1..]), None);
        let kind = BlobFormat::default();
        let sums = encode_sums(kind, &[1, 2, 3]);
        assert_eq!(decode_sums(&sums, kind, 3).unwrap().as_slice(), Some(&[1, 2, 3][..]));
        assert!(decode_sums(&sums, kind, 2).is_none() && decode_sums(&sums[1..], kind, 3).is_none());
    }
}
