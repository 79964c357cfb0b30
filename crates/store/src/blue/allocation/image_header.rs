//! The head of an image of the complete allocation state: what it belongs to, totals, and the places of its bitmap's pages
//! (docs/format/bluestore.md). Checkpoints and the allocation file use it.

use super::delta::{put_collection, put_usage, take_collection, take_usage};
use crate::PoolUsage;
use crate::blue::onode::BLOCK_BYTES;
use crate::blue::varint::{self, FieldReader};
use nacre_types::crc32c::crc32c;
use nacre_types::ids::{PgId, PoolId};
use std::collections::BTreeMap;
use uuid::Uuid;

/// Size of a page of the bitmap in bytes. Whole pages are read and written.
pub(in crate::blue) const PAGE_BYTES: usize = 4096;
/// Number of 64-bit words in a page.
pub(in crate::blue) const PAGE_WORDS: usize = PAGE_BYTES / 8;
/// Number of blocks that a page covers.
pub(in crate::blue) const PAGE_BLOCKS: u64 = PAGE_BYTES as u64 * 8;

const VERSION: u32 = 2;
const FIXED_BYTES: usize = 84;

/// Number of pages for `device_blocks` blocks.
pub(in crate::blue) fn page_count(device_blocks: u64) -> usize {
    device_blocks.div_ceil(PAGE_BLOCKS) as usize
}

/// The purpose of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::blue) enum ImageKind {
    /// The state at a position; its pages are in the file `pages`.
    Checkpoint,
    /// The state at a clean shutdown; its pages follow the head.
    File,
    /// Only totals: the used blocks are in the database.
    Totals,
}

impl ImageKind {
    fn magic(self) -> &'static [u8; 16] {
        match self {
            ImageKind::Checkpoint => b"nacre checkpoint",
            ImageKind::File => b"nacre allocation",
            ImageKind::Totals => b"nacre freetotals",
        }
    }
}

/// The place of a page of the bitmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::blue) struct Page {
    /// [`Page::FREE`], [`Page::FULL`], or one more than its index among the stored pages.
    pub(in crate::blue) place: u32,
    /// crc32c of its contents, if it is stored.
    pub(in crate::blue) crc: u32,
}

impl Page {
    /// None of the page's blocks is used.
    pub(in crate::blue) const FREE: Page = Page { place: 0, crc: 0 };
    /// All of the page's blocks are used.
    pub(in crate::blue) const FULL: Page = Page { place: u32::MAX, crc: 0 };

    /// Index among the stored pages, if it is stored.
    pub(in crate::blue) fn index(self) -> Option<u32> {
        if self == Page::FULL { None } else { self.place.checked_sub(1) }
    }
}

/// The head of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::blue) struct ImageHeader {
    pub(in crate::blue) kind: ImageKind,
    /// The store's uuid.
    pub(in crate::blue) uuid: Uuid,
    /// Sequence number of the image: the newest one is used.
    pub(in crate::blue) sequence: u64,
    /// Position of the last delta that is included.
    pub(in crate::blue) position: u64,
    /// Every used block is below this block.
    pub(in crate::blue) frontier: u64,
    pub(in crate::blue) device_blocks: u64,
    /// Number of used blocks.
    pub(in crate::blue) used: u64,
    pub(in crate::blue) usage: BTreeMap<PoolId, PoolUsage>,
    /// Number of objects in each collection.
    pub(in crate::blue) objects: BTreeMap<PgId, u64>,
    /// Empty for [`ImageKind::Totals`].
    pub(in crate::blue) pages: Vec<Page>,
}

impl ImageHeader {
    pub(in crate::blue) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FIXED_BYTES + self.pages.len() * 8 + self.objects.len() * 16 + 64);
        out.extend_from_slice(self.kind.magic());
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&(BLOCK_BYTES as u32).to_le_bytes());
        out.extend_from_slice(self.uuid.as_bytes());
        // The position of the checksum, filled in when everything is encoded.
        out.extend_from_slice(&[0; 4]);
        for number in [self.sequence, self.position, self.frontier, self.device_blocks, self.used] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        varint::put(&mut out, self.usage.len() as u64);
        self.usage.iter().for_each(|(pool, usage)| put_usage(&mut out, *pool, *usage));
        varint::put(&mut out, self.objects.len() as u64);
        self.objects.iter().for_each(|(id, objects)| put_collection(&mut out, *id, *objects));
        for page in &self.pages {
            out.extend_from_slice(&page.place.to_le_bytes());
            out.extend_from_slice(&page.crc.to_le_bytes());
        }
        let len = out.len() as u32;
        out[40..44].copy_from_slice(&len.to_le_bytes());
        let crc = crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes a head of one of `kinds` at the start of `bytes`. The error says what is wrong.
    pub(in crate::blue) fn decode(bytes: &[u8], kinds: &[ImageKind]) -> Result<ImageHeader, &'static str> {
        let magic = bytes.first_chunk::<16>().ok_or("cut short")?;
        let kind = *kinds.iter().find(|kind| kind.magic() == magic).ok_or("no such head")?;
        let len = u32_at(bytes, 40).ok_or("cut short")? as usize;
        let body = bytes.get(..len).filter(|_| len >= FIXED_BYTES).ok_or("cut short")?;
        if u32_at(bytes, len) != Some(crc32c(body)) {
            return Err("checksum mismatch");
        }
        if u32_at(body, 16) != Some(VERSION) || u32_at(body, 20) != Some(BLOCK_BYTES as u32) {
            return Err("written in another format");
        }
        ImageHeader::decode_body(kind, body).ok_or("malformed")
    }

    fn decode_body(kind: ImageKind, body: &[u8]) -> Option<ImageHeader> {
        let number = |at: usize| body.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        let mut head = ImageHeader {
            kind,
            uuid: Uuid::from_slice(body.get(24..40)?).ok()?,
            sequence: number(44)?,
            position: number(52)?,
            frontier: number(60)?,
            device_blocks: number(68)?,
            used: number(76)?,
            usage: BTreeMap::new(),
            objects: BTreeMap::new(),
            pages: Vec::new(),
        };
        let mut fields = FieldReader(&body[FIXED_BYTES..]);
        for _ in 0..fields.number()? {
            let (pool, usage) = take_usage(&mut fields)?;
            head.usage.insert(pool, usage);
        }
        for _ in 0..fields.number()? {
            let (id, objects) = take_collection(&mut fields)?;
            head.objects.insert(id, objects);
        }
        let (pages, []) = fields.0.as_chunks::<8>() else { return None };
        let expected = if kind == ImageKind::Totals { 0 } else { page_count(head.device_blocks) };
        if pages.len() != expected || head.frontier > head.device_blocks || head.used > head.frontier {
            return None;
        }
        head.pages = pages
            .iter()
            .map(|page| {
                let [a, b, c, d, e, f, g, h] = *page;
                Page { place: u32::from_le_bytes([a, b, c, d]), crc: u32::from_le_bytes([e, f, g, h]) }
            })
            .collect();
        Some(head)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_fuzz::Target;

    #[test]
    fn fuzz_heads() {
        let corpus = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"));
        let head = ImageHeader {
            kind: ImageKind::Checkpoint,
            uuid: Uuid::from_u128(7),
            sequence: 3,
            position: 900,
            frontier: 50_000,
            device_blocks: 70_000,
            used: 40_000,
            usage: BTreeMap::from([(
                PoolId(2),
                PoolUsage { stored_bytes: 1, allocated_bytes: 4096, objects: 1, ..PoolUsage::default() },
            )]),
            objects: BTreeMap::from([(PgId::new(PoolId(2), 5), 1), (PgId::new(PoolId(-1), 0), 0)]),
            pages: vec![Page { place: 2, crc: 77 }, Page::FREE, Page::FULL],
        };
        let kinds = [ImageKind::Checkpoint, ImageKind::Totals];
        let mut totals = ImageHeader { kind: ImageKind::Totals, ..head.clone() };
        totals.pages.clear();
        assert_eq!(ImageHeader::decode(&head.encode(), &kinds), Ok(head.clone()));
        assert_eq!(ImageHeader::decode(&totals.encode(), &[ImageKind::Checkpoint]), Err("no such head"));
        let mut bytes = head.encode();
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(ImageHeader::decode(&bytes, &kinds).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let reseal = |record: &mut [u8]| {
            if let Some((body, crc)) = record.split_last_chunk_mut::<4>() {
                let len = body.len() as u32;
                if let Some(slot) = body.get_mut(40..44) {
                    slot.copy_from_slice(&len.to_le_bytes());
                }
                *crc = crc32c(body).to_le_bytes();
            }
        };
        let seeds = vec![head.encode(), totals.encode()];
        let target = Target { repair: reseal, ..Target::new("allocation-head", corpus, seeds) };
        target.run(|input| ImageHeader::decode(input, &kinds).ok().map(|head| head.encode()));
    }
}
