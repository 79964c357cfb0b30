//! Decodes objects' records in place for the parallel scan: without allocating memory, and only the parts that the scan needs. It
//! implements the formats of docs/format/bluestore.md independently. Tests verify that it agrees with the store's own decoder.

use crate::blue::onode::Run;
use nacre_types::crc32c::crc32c;
use nacre_types::ids::{PgId, PoolId};

/// Maximum length of a blob in blocks, according to the format.
const LONGEST_BLOB: u64 = 64;
const BLOCK: u64 = 4096;

/// A blob in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScannedBlob {
    pub(super) id: u64,
    pub(super) run: Run,
    /// Bytes of data, and their compressed size, or 0 if they are not compressed.
    pub(super) content: u32,
    pub(super) packed: u32,
    pub(super) shared: bool,
    inline: bool,
}

/// The contents of a record except blobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OnodeTotals {
    pub(super) nid: u64,
    pub(super) omap: u64,
    pub(super) stored_bytes: u64,
    /// Number of blocks in blobs that are not shared.
    pub(super) blocks: u64,
    pub(super) shared_blobs: u64,
    pub(super) extents: u64,
    /// Number of blobs whose checksums are in separate records.
    pub(super) keyed_sums: u64,
    /// Number of blobs that several extents map.
    pub(super) spanning: u64,
    /// Number of compressed blobs.
    pub(super) packed_blobs: u64,
    /// Of compressed blobs that are not shared: blocks, and bytes of compressed data.
    pub(super) packed_blocks: u64,
    pub(super) packed_bytes: u64,
    /// Bytes of data stored in compressed blobs.
    pub(super) packed_stored_bytes: u64,
}

/// Reads numbers from the start of a slice.
struct Cursor<'a> {
    rest: &'a [u8],
}

/// Eight bytes that contain the next numbers.
struct Word(u64);

impl Word {
    #[inline(always)]
    fn number(&mut self) -> u64 {
        if self.0 & 0x80 == 0 {
            let value = self.0 & 0x7f;
            self.0 >>= 8;
            return value;
        }
        // The bytes up to and including the first one without its highest bit, with seven bits of each.
        let before = (!self.0 & STOPS).trailing_zeros();
        let kept = self.0 & (u64::MAX >> (63 - before));
        self.0 = self.0 >> before >> 1;
        let pairs = (kept & 0x007f_007f_007f_007f) | (kept & 0x7f00_7f00_7f00_7f00) >> 1;
        let fours = (pairs & 0x0000_3fff_0000_3fff) | (pairs & 0x3fff_0000_3fff_0000) >> 2;
        (fours & 0x0fff_ffff) | (fours & 0x0fff_ffff_0000_0000) >> 4
    }

    #[inline(always)]
    fn difference(&mut self) -> u64 {
        unfold(self.number())
    }
}

/// The bits that are not set in the last byte of a number.
const STOPS: u64 = 0x8080_8080_8080_8080;

/// Decodes a number of two, three or five bytes at the start of a word.
#[inline(always)]
fn of_two(word: u64) -> u64 {
    (word & 0x7f) | (word >> 1 & 0x7f << 7)
}

#[inline(always)]
fn of_three(word: u64) -> u64 {
    of_two(word) | (word >> 2 & 0x7f << 14)
}

#[inline(always)]
fn of_five(word: u64) -> u64 {
    of_three(word) | (word >> 3 & 0x7f << 21) | (word >> 4 & 0x7f << 28)
}

/// Decodes a number in zigzag encoding.
#[inline(always)]
fn unfold(raw: u64) -> u64 {
    (raw >> 1) ^ (raw & 1).wrapping_neg()
}

impl<'a> Cursor<'a> {
    #[inline]
    fn number(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for (at, byte) in self.rest.iter().enumerate().take(10) {
            if at == 9 && *byte > 1 {
                return None;
            }
            value |= u64::from(byte & 0x7f) << (at * 7);
            if byte & 0x80 == 0 {
                self.rest = &self.rest[at + 1..];
                return Some(value);
            }
        }
        None
    }

    fn difference(&mut self) -> Option<u64> {
        self.number().map(unfold)
    }

    fn skip(&mut self, len: u64) -> Option<()> {
        self.rest = self.rest.get(usize::try_from(len).ok()?..)?;
        Some(())
    }

    /// The next `NUMBERS` numbers, if eight bytes contain them; advances beyond them. Their end is found before their values,
    /// so that the next word does not depend on decoding them.
    #[inline(always)]
    fn word<const NUMBERS: u32>(&mut self) -> Option<Word> {
        let (eight, _) = self.rest.split_first_chunk::<8>()?;
        let word = u64::from_le_bytes(*eight);
        let mut stops = !word & STOPS;
        for _ in 1..NUMBERS {
            stops &= stops.wrapping_sub(1);
        }
        if stops == 0 {
            return None;
        }
        self.rest = &self.rest[(stops.trailing_zeros() / 8 + 1) as usize..];
        Some(Word(word))
    }

    /// The next word, if exactly the bytes marked in `continued` of its first `bytes` bytes have the continuation bit;
    /// advances beyond them.
    #[inline(always)]
    fn widths(&mut self, bytes: u32, continued: u64) -> Option<u64> {
        let (eight, _) = self.rest.split_first_chunk::<8>()?;
        let word = u64::from_le_bytes(*eight);
        if word & (STOPS >> (64 - bytes * 8)) != continued {
            return None;
        }
        self.rest = &self.rest[bytes as usize..];
        Some(word)
    }

    /// The three numbers of a blob: the differences of id and start, and its length with flags.
    #[inline(always)]
    fn blob(&mut self) -> Option<(u64, u64, u64)> {
        // Common case: few blocks, far from the previous blob in a store of some terabytes: one byte, one, five.
        if let Some(word) = self.widths(7, 0x8080_8080_0000) {
            return Some((unfold(word & 0x7f), word >> 8 & 0x7f, unfold(of_five(word >> 16))));
        }
        if let Some(mut word) = self.word::<3>() {
            return Some((word.difference(), word.number(), word.difference()));
        }
        Some((self.difference()?, self.number()?, self.difference()?))
    }

    /// Decodes a blob's kind: updates the blob, and returns the number of bytes of its checksums in the record.
    fn kind(&mut self, blob: &mut ScannedBlob, totals: &mut OnodeTotals) -> Option<u64> {
        let kind = self.number()?;
        // Bytes per checksum, by number of the type.
        let width = *[4, 2, 1, 4, 8, 0].get((kind & 7) as usize)?;
        let order = kind >> 3 & 7;
        if order > 6 || kind >> 6 > 3 {
            return None;
        }
        if kind >> 6 != 0 {
            let (content, packed) = (self.number()?, self.number()?);
            let fits = content % BLOCK == 0 && content <= LONGEST_BLOB * BLOCK;
            if !fits || packed == 0 || packed > blob.run.blocks * BLOCK {
                return None;
            }
            (blob.content, blob.packed) = (content as u32, packed as u32);
            totals.packed_blobs += 1;
            if !blob.shared {
                totals.packed_blocks += blob.run.blocks;
                totals.packed_bytes += packed;
            }
        }
        Some(if blob.inline { blob.run.blocks.div_ceil(1 << order) * width } else { 0 })
    }

    /// The four numbers of an extent: gap, length, blob, offset.
    #[inline(always)]
    fn extent(&mut self) -> Option<(u64, u64, u64, u64)> {
        // Common case: few blocks, far from the previous extent or adjacent to it: three bytes or one, two, one, one.
        if let Some(word) = self.widths(7, 0x8000_8080) {
            return Some((of_three(word), of_two(word >> 24), word >> 40 & 0x7f, word >> 48 & 0x7f));
        }
        if let Some(word) = self.widths(5, 0x8000) {
            return Some((word & 0x7f, of_two(word >> 8), word >> 24 & 0x7f, word >> 32 & 0x7f));
        }
        if let Some(mut word) = self.word::<4>() {
            return Some((word.number(), word.number(), word.number(), word.number()));
        }
        Some((self.number()?, self.number()?, self.number()?, self.number()?))
    }
}

/// Decodes a record and adds its blobs to `blobs`. If it returns `None`, the added blobs are meaningless. `holders` is
/// working memory.
pub(super) fn decode_onode(
    value: &[u8],
    blobs: &mut Vec<ScannedBlob>,
    holders: &mut Vec<u8>,
) -> Option<OnodeTotals> {
    let (body, crc) = value.split_last_chunk::<4>()?;
    if crc32c(body) != u32::from_le_bytes(*crc) {
        return None;
    }
    // Version and oldest reader.
    let ([1, 0..=1], rest) = body.split_first_chunk::<2>()? else { return None };
    let mut cursor = Cursor { rest };
    let flags = cursor.number()?;
    if flags > 3 {
        return None;
    }
    let mut totals = OnodeTotals { nid: cursor.number()?, ..OnodeTotals::default() };
    let size = cursor.number()?;
    totals.omap = cursor.number()?;
    if flags & 1 != 0 {
        cursor.number()?;
        cursor.number()?;
        u32::try_from(cursor.number()?).ok()?;
    }
    let count = cursor.number()?;
    if count > cursor.rest.len() as u64 / 3 {
        return None;
    }
    let first = blobs.len();
    let (mut id, mut end, mut sums) = (totals.nid, 0_u64, 0_u64);
    let (mut keyed_sums, mut shared_blobs, mut own_blocks) = (0, 0, 0_u64);
    blobs.reserve(count as usize);
    for _ in 0..count {
        let (id_step, kind, step) = cursor.blob()?;
        id = id.wrapping_add(id_step);
        let start = end.wrapping_add(step);
        let blocks = kind >> 2;
        if blocks.wrapping_sub(1) >= LONGEST_BLOB {
            return None;
        }
        end = start.checked_add(blocks)?;
        let inline = kind >> 1 & 1;
        sums = sums.wrapping_add((blocks * 4) & inline.wrapping_neg());
        keyed_sums += 1 - inline;
        shared_blobs += kind & 1;
        own_blocks = own_blocks.wrapping_add(blocks & (kind & 1).wrapping_sub(1));
        blobs.push(ScannedBlob {
            id,
            run: Run { start, blocks },
            content: (blocks * BLOCK) as u32,
            packed: 0,
            shared: kind & 1 != 0,
            inline: inline != 0,
        });
    }
    (totals.keyed_sums, totals.shared_blobs, totals.blocks) = (keyed_sums, shared_blobs, own_blocks);
    if flags & 2 != 0 {
        sums = 0;
        for blob in &mut blobs[first..] {
            sums += cursor.kind(blob, &mut totals)?;
        }
    }
    totals.extents = cursor.number()?;
    let own = &blobs[first..];
    holders.clear();
    holders.resize(own.len(), 0);
    let (mut logical, mut spanning, mut stored, mut packed_stored) = (0_u64, 0, 0_u64, 0);
    for _ in 0..totals.extents {
        let (gap, len, at, offset) = cursor.extent()?;
        let start = logical.checked_add(gap)?;
        let at = usize::try_from(at).ok()?;
        let (blob, holders) = (own.get(at)?, holders.get_mut(at)?);
        logical = start.checked_add(len)?;
        if offset.checked_add(len)? > u64::from(blob.content)
            || len == 0
            || logical > size
            || (start ^ offset) % BLOCK != 0
        {
            return None;
        }
        spanning += u64::from(*holders == 1);
        *holders = holders.saturating_add(1);
        stored = stored.wrapping_add(len);
        packed_stored += if blob.packed == 0 { 0 } else { len };
    }
    (totals.spanning, totals.stored_bytes, totals.packed_stored_bytes) = (spanning, stored, packed_stored);
    for _ in 0..cursor.number()? {
        for _ in 0..2 {
            let len = cursor.number()?;
            cursor.skip(len)?;
        }
    }
    (cursor.rest.len() as u64 == sums).then_some(totals)
}

/// The collection in an object's key, if the key is valid.
pub(super) fn decode_collection(key: &[u8]) -> Option<PgId> {
    let (pool, rest) = key.split_first_chunk::<8>()?;
    let (seed, rest) = rest.split_first_chunk::<4>()?;
    let (&kind, rest) = rest.split_first()?;
    let rest = match kind {
        0x80 => rest,
        0x40 | 0xc0 => rest.get(8..)?,
        _ => return None,
    };
    // The hash, then namespace and key, then the name if it differs from the key, then the snapshot.
    let rest = text(text(rest.get(4..)?)?)?;
    let (&relation, rest) = rest.split_first()?;
    let rest = match relation {
        2 | 3 => rest,
        1 | 4 => text(rest)?,
        _ => return None,
    };
    let pool = PoolId((u64::from_be_bytes(*pool) ^ 1 << 63) as i64);
    (rest.len() == 8).then(|| PgId::new(pool, u32::from_be_bytes(*seed)))
}

/// Skips a string that ends with a zero byte. Within it, a byte of 1 must be followed by 1 or 2.
fn text(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    let (text, rest) = (&bytes[..end], &bytes[end + 1..]);
    if !text.is_ascii() || text.contains(&1) {
        let mut raw = text.iter();
        while let Some(byte) = raw.next() {
            if *byte == 1 && !matches!(raw.next(), Some(1 | 2)) {
                return None;
            }
        }
        std::str::from_utf8(text).ok()?;
    }
    Some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blue::blob_kind::{BlobCompression, BlobFormat};
    use crate::blue::keys;
    use crate::blue::onode::{AllocHint, Extent, Onode};
    use crate::blue::varint;
    use crate::{ChecksumType, CompressionAlgorithm};
    use nacre_fuzz::Target;
    use nacre_types::object::ObjectId;

    #[test]
    fn numbers_are_those_that_are_written() {
        for shift in 0..64 {
            for value in [1_u64 << shift, (1 << shift) - 1, u64::MAX >> shift, 0x1234_5678_9abc_def0 >> shift]
            {
                for padding in [0, 12] {
                    let mut bytes = Vec::new();
                    varint::put(&mut bytes, value);
                    varint::put_signed(&mut bytes, value as i64);
                    bytes.resize(bytes.len() + padding, 0xff);
                    let mut cursor = Cursor { rest: &bytes };
                    assert_eq!((cursor.number(), cursor.difference()), (Some(value), Some(value)));
                    assert_eq!(cursor.rest.len(), padding);
                    // A blob and an extent, decoded from one word if they fit into it.
                    let mut bytes = Vec::new();
                    varint::put_signed(&mut bytes, 1);
                    varint::put(&mut bytes, value);
                    varint::put_signed(&mut bytes, value as i64);
                    [7, value, 300, 0].iter().for_each(|number| varint::put(&mut bytes, *number));
                    bytes.resize(bytes.len() + padding, 0xff);
                    let mut cursor = Cursor { rest: &bytes };
                    assert_eq!(cursor.blob(), Some((1, value, value)));
                    assert_eq!(cursor.extent(), Some((7, value, 300, 0)));
                    assert_eq!(cursor.rest.len(), padding);
                }
            }
        }
        let malformed =
            [&[0x80][..], &[0xff; 11], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]];
        for rest in malformed {
            assert_eq!(Cursor { rest }.number(), None);
        }
    }

    fn sample(mixed: bool) -> Vec<u8> {
        use crate::blue::onode::{Blob, Checksums};
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
        let extent = |logical, len, blob, offset| Extent { logical, len, blob, offset };
        let mut onode = Onode {
            nid: 12,
            size: 1 << 20,
            omap: 13,
            hint: Some(AllocHint { object_size: 4 << 20, write_size: 4096, flags: 5 }),
            attrs: vec![("_".into(), bytes::Bytes::from_static(b"info"))],
            blobs: vec![blob(14, 1000, 1, true), blob(9, 20, 64, false), blob(300, 5000, 2, true)],
            extents: vec![extent(100, 3996, 0, 100), extent(8192, 5000, 1, 4096), extent(65536, 4096, 1, 0)],
        };
        if mixed {
            let packed =
                BlobCompression { algorithm: CompressionAlgorithm::Lz4, content: 32_768, stored: 8_000 };
            let kind = BlobFormat { checksum: ChecksumType::Crc32c16, chunk_order: 1, packed: Some(packed) };
            onode.blobs[2].kind = kind;
            onode.blobs[2].sums = Checksums::from_slice(&[7]);
            onode.extents.push(extent(131_072, 20_000, 2, 4096));
        }
        let mut bytes = Vec::new();
        onode.encode_into(&mut bytes);
        bytes
    }

    /// Checks that both decoders accept the same records and read the same values.
    fn agrees(value: &[u8]) -> Option<Vec<u8>> {
        let (mut blobs, mut holders) = (Vec::new(), Vec::new());
        let seen = decode_onode(value, &mut blobs, &mut holders);
        let own = Onode::decode(value);
        if let (Some(totals), Ok(own)) = (seen, &own) {
            let runs = |blob: &crate::blue::onode::Blob| ScannedBlob {
                id: blob.id,
                run: blob.run,
                content: blob.content_bytes() as u32,
                packed: blob.kind.packed.map_or(0, |packed| packed.stored),
                shared: blob.shared,
                inline: blob.inline_sums,
            };
            assert_eq!(blobs, own.blobs.iter().map(runs).collect::<Vec<_>>());
            let stored = (totals.stored_bytes, totals.packed_stored_bytes);
            assert_eq!((totals.nid, totals.omap, stored), (own.nid, own.omap, own.stored_and_compressed()));
            assert_eq!(totals.extents, own.extents.len() as u64);
        }
        // Because of an attribute's name, the store may refuse a record that the scan accepts, but not vice versa.
        assert!(seen.is_some() || own.is_err(), "refused: {own:?}");
        own.is_ok().then(|| value.to_vec())
    }

    #[test]
    fn fuzz_scanned_records() {
        let corpus = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"));
        let reseal = |record: &mut [u8]| {
            if let Some((body, crc)) = record.split_last_chunk_mut::<4>() {
                *crc = crc32c(body).to_le_bytes();
            }
        };
        let target =
            Target { repair: reseal, ..Target::new("onode", corpus, vec![sample(false), sample(true)]) };
        target.run(agrees);
        let (mut blobs, mut holders) = (Vec::new(), Vec::new());
        let totals = decode_onode(&sample(true), &mut blobs, &mut holders).unwrap();
        assert_eq!((totals.packed_blobs, totals.packed_blocks, totals.packed_bytes), (1, 2, 8_000));
        assert_eq!(totals.packed_stored_bytes, 20_000);
        blobs.clear();
        let totals = decode_onode(&sample(false), &mut blobs, &mut holders).unwrap();
        assert_eq!((totals.keyed_sums, totals.spanning, totals.extents), (1, 1, 3));
        assert_eq!((totals.blocks, totals.shared_blobs), (3, 1));
    }

    #[test]
    fn fuzz_scanned_keys() {
        let corpus = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"));
        let coll = PgId::new(PoolId(3), 7);
        let mut seeds = Vec::new();
        for (pool, locator, name) in [(3, "", "name"), (2, "key", "key"), (9, "m", "a\u{0}\u{1}ÿ")] {
            seeds.push(keys::onode(coll, &ObjectId::new(PoolId(pool), "ns", locator, name)));
        }
        Target::new("onode-key", corpus, seeds).run(|input| {
            let (seen, own) = (decode_collection(input), keys::split_onode(input));
            // The store's own decoder also refuses names of a length that no object has.
            assert!(seen == own.map(|(coll, _)| coll) || input.len() > usize::from(u16::MAX));
            seen.map(|_| input.to_vec())
        });
    }
}
