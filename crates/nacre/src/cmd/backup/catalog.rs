//! The catalog of a volume: the object that describes it. `docs/format/backup.md` defines its bytes.

use anyhow::{Context as _, Result, bail};
use bytes::{Bytes, BytesMut};
use nacre_client::{IoCtx, ReadOp, WriteOp};
use nacre_types::errno::Errno;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The attribute that marks an object as a catalog, with the version of the format.
const FORMAT: &str = "backup.format";
const VERSION: &str = "1";
/// Bytes of a block's entry.
pub(super) const ENTRY_BYTES: usize = 8;
/// Bytes read of a catalog at a time.
const PAGE: u64 = 4 << 20;
/// Segments read of a catalog at a time.
const SEGMENTS: u64 = 512;

/// One stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredStream {
    /// The number of its first block.
    pub(super) first_block: u64,
    /// Size in bytes of each block except the last.
    pub(super) block_size: u32,
    /// When the stream started, as Ceph prints times.
    pub(super) created: String,
    /// Whether it is complete. Until then it can be resumed.
    pub(super) complete: bool,
    /// Size in bytes, or 0 until it is complete.
    pub(super) bytes: u64,
    /// SHA-256 of its bytes in hexadecimal, or empty until it is complete.
    pub(super) sha256: String,
}

/// A block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) len: u32,
    pub(super) crc32c: u32,
}

/// The error for a damaged catalog: the contents of the volume are not known.
#[derive(Debug)]
pub(super) struct CatalogCorrupt(String);

impl std::fmt::Display for CatalogCorrupt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CatalogCorrupt {}

/// The contents of a volume.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Catalog {
    pub(super) segments: Vec<StoredStream>,
    pub(super) blocks: Vec<Block>,
}

/// The name of a volume's catalog.
pub(super) fn object(volume: &str) -> String {
    format!("{volume}.backup")
}

/// The volume of a catalog, from the catalog's name.
pub(super) fn volume(object: &str) -> Option<&str> {
    object.strip_suffix(".backup").filter(|volume| !volume.is_empty())
}

fn key(segment: usize) -> Bytes {
    format!("segment.{segment:08}").into()
}

impl Block {
    /// Appends the encoded entry.
    pub(super) fn encode(self, out: &mut BytesMut) {
        out.extend_from_slice(&self.len.to_le_bytes());
        out.extend_from_slice(&self.crc32c.to_le_bytes());
    }
}

impl Catalog {
    /// The volume's catalog. Fails if there is none.
    pub(super) fn load(pool: &IoCtx, volume: &str) -> Result<Catalog> {
        Self::find(pool, volume)?
            .with_context(|| format!("there is no volume {volume} in pool {}", pool.pool_name()))
    }

    /// The volume's catalog, if there is one.
    pub(super) fn find(pool: &IoCtx, volume: &str) -> Result<Option<Catalog>> {
        let name = object(volume);
        let reading = || format!("can't read the catalog of {volume}");
        let mut op = ReadOp::new();
        op.get_xattrs().stat().read(0, PAGE);
        let mut head = match pool.operate_read(&name, op).wait().and_then(|reply| reply.success()) {
            Ok(head) => head,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error).with_context(reading),
        };
        match head.pairs(0).with_context(reading)?.get(FORMAT.as_bytes()) {
            Some(format) if format == VERSION => {}
            Some(format) => {
                bail!(
                    "{volume} has format {}, which this release does not support",
                    String::from_utf8_lossy(format)
                )
            }
            None => return Ok(None),
        }
        let size = head.stat(1).with_context(reading)?.size;
        let mut entries = head.output(2)?.to_vec();
        while (entries.len() as u64) < size {
            let more = pool.read(&name, entries.len() as u64, PAGE).wait().with_context(reading)?;
            if more.is_empty() {
                bail!("the catalog of {volume} ends early: is it being changed?");
            }
            entries.extend_from_slice(&more);
        }
        let mut segments = Vec::new();
        let mut after = Bytes::new();
        loop {
            let page = pool.omap_get_vals(&name, after, "segment.", SEGMENTS).wait().with_context(reading)?;
            segments.extend(page.entries.iter().map(|(_, value)| value.clone()));
            match page.entries.last() {
                Some((last, _)) if page.more => after = last.clone(),
                _ => break,
            }
        }
        let catalog = Catalog::decode(&entries, &segments);
        Ok(Some(
            catalog.map_err(|why| CatalogCorrupt(format!("the catalog of {volume} is damaged: {why:#}")))?,
        ))
    }

    /// Whether there is a catalog, even a damaged one.
    pub(super) fn exists(pool: &IoCtx, volume: &str) -> Result<bool> {
        match pool.get_xattr(&object(volume), FORMAT).wait() {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() || error.errno() == Errno::ENODATA => Ok(false),
            Err(error) => Err(error).with_context(|| format!("can't read the catalog of {volume}")),
        }
    }

    /// Decodes the stored parts of a catalog.
    fn decode(entries: &[u8], segments: &[Bytes]) -> Result<Catalog> {
        let read = |(n, value): (usize, &Bytes)| {
            serde_json::from_slice(value).with_context(|| format!("segment {n} can't be read"))
        };
        let segments = segments.iter().enumerate().map(read).collect::<Result<_>>()?;
        let catalog = Catalog { segments, blocks: decode(entries) };
        catalog.check()?;
        Ok(catalog)
    }

    fn check(&self) -> Result<()> {
        let mut first = 0;
        for (n, segment) in self.segments.iter().enumerate() {
            if segment.first_block != first || segment.block_size == 0 {
                bail!("segment {n} does not begin where the one before ends");
            }
            let last = n + 1 == self.segments.len();
            let blocks = self.segment_blocks(n);
            let bytes: u64 = blocks.iter().map(|block| u64::from(block.len)).sum();
            if segment.complete && segment.bytes != bytes {
                bail!("segment {n} has {bytes} bytes of {}", segment.bytes);
            }
            if !segment.complete && !last {
                bail!("segment {n} is not complete and not the last");
            }
            let full = |block: &Block| block.len == segment.block_size;
            if blocks.split_last().is_some_and(|(end, before)| {
                !before.iter().all(full) || end.len == 0 || end.len > segment.block_size
            }) {
                bail!("segment {n} has blocks of wrong lengths");
            }
            first += blocks.len() as u64;
        }
        if first != self.blocks.len() as u64 {
            bail!("there are blocks of no segment");
        }
        Ok(())
    }

    /// The blocks of a segment.
    pub(super) fn segment_blocks(&self, segment: usize) -> &[Block] {
        let first = self.segments[segment].first_block as usize;
        let end = match self.segments.get(segment + 1) {
            Some(next) => next.first_block as usize,
            None => self.blocks.len(),
        };
        self.blocks.get(first..end).unwrap_or_default()
    }

    /// The range of a segment's bytes in the volume.
    pub(super) fn segment_byte_range(&self, segment: usize) -> Range<u64> {
        let bytes = |blocks: &[Block]| blocks.iter().map(|block| u64::from(block.len)).sum::<u64>();
        let first = (self.segments[segment].first_block as usize).min(self.blocks.len());
        let begin = bytes(&self.blocks[..first]);
        begin..begin + bytes(self.segment_blocks(segment))
    }

    /// Total number of bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.blocks.iter().map(|block| u64::from(block.len)).sum()
    }

    /// The interrupted stream, if there is one.
    pub(super) fn unfinished_segment(&self) -> Option<usize> {
        let last = self.segments.len().checked_sub(1)?;
        (!self.segments[last].complete).then_some(last)
    }

    /// The state in one word.
    pub(super) fn state(&self) -> &'static str {
        if self.unfinished_segment().is_some() || self.segments.is_empty() {
            "broken-off"
        } else {
            "complete"
        }
    }
}

fn decode(entries: &[u8]) -> Vec<Block> {
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("invariant: four bytes"));
    // A partial entry was never completed.
    let entries = entries.chunks_exact(ENTRY_BYTES);
    entries.map(|entry| Block { len: number(&entry[..4]), crc32c: number(&entry[4..]) }).collect()
}

fn set_segment(op: &mut WriteOp, n: usize, segment: &StoredStream) -> Result<()> {
    op.omap_set(vec![(key(n), serde_json::to_vec(segment)?.into())]);
    Ok(())
}

/// Creates a catalog with its first segment. Fails if there is one.
pub(super) fn create(pool: &IoCtx, volume: &str, segment: &StoredStream) -> Result<()> {
    let mut op = WriteOp::new();
    op.create(true).set_xattr(FORMAT, VERSION);
    set_segment(&mut op, 0, segment)?;
    pool.operate(&object(volume), op).wait()?.success()?;
    Ok(())
}

/// Adds a segment. Fails if another process adds one at the same time.
pub(super) fn append_segment(pool: &IoCtx, volume: &str, n: usize, segment: &StoredStream) -> Result<()> {
    let mut op = WriteOp::new();
    op.assert_exists().omap_cmp(vec![(key(n), nacre_types::op::CmpOp::Eq, Bytes::new())]);
    set_segment(&mut op, n, segment)?;
    pool.operate(&object(volume), op).wait()?.success()?;
    Ok(())
}

/// A write of the entries from block number `first` on, and of the finished segment if these are its last entries.
pub(super) fn entries(
    first: u64,
    entries: Bytes,
    finished: Option<(usize, &StoredStream)>,
) -> Result<WriteOp> {
    let mut op = WriteOp::new();
    op.assert_exists().write(first * ENTRY_BYTES as u64, entries);
    if let Some((n, segment)) = finished {
        set_segment(&mut op, n, segment)?;
    }
    Ok(op)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_fuzz::Target;

    fn segment(first_block: u64, bytes: u64, complete: bool) -> StoredStream {
        let (created, sha256) = (String::new(), String::new());
        StoredStream { first_block, block_size: 10, created, complete, bytes, sha256 }
    }

    fn block(len: u32) -> Block {
        Block { len, crc32c: len }
    }

    #[test]
    fn segments_follow_one_another() {
        let mut catalog = Catalog {
            segments: vec![segment(0, 15, true), segment(2, 0, true), segment(2, 0, false)],
            blocks: vec![block(10), block(5), block(10)],
        };
        catalog.check().unwrap();
        assert_eq!(
            (catalog.segment_byte_range(0), catalog.segment_byte_range(1), catalog.segment_byte_range(2)),
            (0..15, 15..15, 15..25)
        );
        assert_eq!(
            (catalog.unfinished_segment(), catalog.state(), catalog.bytes()),
            (Some(2), "broken-off", 25)
        );
        catalog.segments[2].first_block = 1;
        assert!(catalog.check().is_err());
        catalog.segments[2] = segment(2, 11, true);
        assert!(catalog.check().is_err());
        catalog.segments[2] = segment(2, 10, true);
        catalog.check().unwrap();
        catalog.blocks[0] = block(9);
        assert!(catalog.check().is_err());
    }

    #[test]
    fn entries_are_read_as_they_are_written() {
        let mut bytes = BytesMut::new();
        let blocks = [Block { len: 7, crc32c: 0xdead_beef }, Block { len: 1, crc32c: 2 }];
        blocks.iter().for_each(|block| block.encode(&mut bytes));
        assert_eq!(decode(&bytes), blocks);
        assert_eq!(decode(&bytes[..15]), blocks[..1]);
    }

    /// Length of the entries, the entries, and a segment on each line.
    fn written(catalog: &Catalog) -> Vec<u8> {
        let mut entries = BytesMut::new();
        catalog.blocks.iter().for_each(|block| block.encode(&mut entries));
        let segments = catalog.segments.iter().map(|segment| serde_json::to_vec(segment).unwrap());
        let segments: Vec<u8> = segments.collect::<Vec<_>>().join(&b'\n');
        [&(entries.len() as u32).to_le_bytes()[..], &entries, &segments].concat()
    }

    #[test]
    fn fuzz_catalogs() {
        let full = |crc32c| Block { len: 10, crc32c };
        let catalog = Catalog {
            segments: vec![segment(0, 25, true), segment(3, 0, true), segment(3, 0, false)],
            blocks: vec![full(1), full(2), block(5), full(3)],
        };
        let seeds = vec![written(&Catalog::default()), written(&catalog)];
        let corpus = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"));
        let words = ["\"first_block\":", "\"complete\":true", "18446744073709551615", "-1", "1e999", "\n"];
        let target = Target { dictionary: &words, ..Target::new("backup-catalog", corpus, seeds) };
        target.run(|input| {
            let (length, rest) = input.split_first_chunk::<4>()?;
            let (entries, segments) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            let segments = segments.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            let segments: Vec<Bytes> = segments.map(Bytes::copy_from_slice).collect();
            let catalog = Catalog::decode(entries, &segments).ok()?;
            // Invariants of every catalog that is accepted.
            for n in 0..catalog.segments.len().min(16) {
                assert!(catalog.segment_byte_range(n).end <= catalog.bytes());
            }
            let _ = (catalog.state(), catalog.unfinished_segment());
            Some(written(&catalog))
        });
    }
}
