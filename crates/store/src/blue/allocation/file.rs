//! The allocation file: the complete state of the allocator at a clean shutdown
//! (docs/format/bluestore.md).
//!
//! It is written to a temporary file, synced, renamed and read back. A start that uses it removes it before the first
//! allocation. It is valid only if its position is that of the database's last delta and the store was closed cleanly, so a
//! file that outlived its removal is never used.

use super::checkpoint::{fill_uniform_pages, load_pages};
use super::image_header::{ImageHeader, ImageKind, PAGE_BYTES, PAGE_WORDS, Page};
use super::{FILE, SpaceAccounting};
use crate::blue::device::Device;
use crate::error::{Result, StoreError};
use nacre_objectstore::files::{replace_atomically, sync_directory};
use nacre_types::crc32c::crc32c;
use std::io::{BufWriter, ErrorKind, Write};
use std::path::Path;
use uuid::Uuid;

/// Values that the head must have. Otherwise the file is of another store or of another time.
#[derive(Clone, Copy, Debug)]
pub(in crate::blue) struct Expected {
    pub(in crate::blue) uuid: Uuid,
    pub(in crate::blue) position: u64,
    pub(in crate::blue) frontier: u64,
    pub(in crate::blue) device_blocks: u64,
}

/// Writes the file and reads it back. Durable and verified on return.
pub(in crate::blue) fn write(
    directory: &Path,
    accounting: &SpaceAccounting,
    expected: Expected,
) -> Result<()> {
    let Expected { uuid, position, frontier, device_blocks } = expected;
    let mut head = accounting.head(ImageKind::File, uuid, position, frontier, device_blocks);
    let pages = accounting.used.as_chunks::<PAGE_WORDS>().0;
    let mut place = 0;
    let mut bytes = Vec::with_capacity(PAGE_BYTES);
    for (page, words) in head.pages.iter_mut().zip(pages) {
        *page = if words.iter().all(|word| *word == 0) {
            Page::FREE
        } else if words.iter().all(|word| *word == u64::MAX) {
            Page::FULL
        } else {
            place += 1;
            encode(words, &mut bytes);
            Page { place, crc: crc32c(&bytes) }
        };
    }
    replace_atomically(&directory.join(FILE), |file| {
        let mut out = BufWriter::with_capacity(1 << 20, file);
        let mut encoded = head.encode();
        encoded.resize(encoded.len().next_multiple_of(PAGE_BYTES), 0);
        out.write_all(&encoded)?;
        for (page, words) in head.pages.iter().zip(pages) {
            if page.index().is_some() {
                encode(words, &mut bytes);
                out.write_all(&bytes)?;
            }
        }
        out.flush()
    })?;
    let refused = |reason: String| StoreError::corrupt("allocation file as read back", reason);
    let back = read(directory, expected)?.map_err(refused)?;
    if back.used == accounting.used && back.usage == accounting.usage && back.objects == accounting.objects {
        Ok(())
    } else {
        Err(refused("it is not what was written".into()))
    }
}

fn encode(words: &[u64; PAGE_WORDS], bytes: &mut Vec<u8>) {
    bytes.clear();
    bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
}

/// Reads and verifies the file. The text says why it is not valid.
pub(in crate::blue) fn read(
    directory: &Path,
    expected: Expected,
) -> Result<std::result::Result<SpaceAccounting, String>> {
    let path = directory.join(FILE);
    if !path.exists() {
        return Ok(Err("there is no allocation file".into()));
    }
    let file = match Device::open(&path) {
        Ok(file) => file,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let head = match read_head(&file) {
        Ok(head) => head,
        Err(problem) => return Ok(Err(format!("allocation file: {problem}"))),
    };
    let found = Expected {
        uuid: head.0.uuid,
        position: head.0.position,
        frontier: head.0.frontier,
        device_blocks: head.0.device_blocks,
    };
    if (found.uuid, found.position, found.frontier, found.device_blocks)
        != (expected.uuid, expected.position, expected.frontier, expected.device_blocks)
    {
        return Ok(Err(format!("the allocation file is not of this shutdown: {found:?}, not {expected:?}")));
    }
    let (head, pages_at) = head;
    let mut accounting = SpaceAccounting::empty(head.device_blocks);
    let stored = fill_uniform_pages(&head, &mut accounting.used);
    let loaded = load_pages(&stored, &head, &mut accounting.used, |place, buffer| {
        file.read(pages_at + u64::from(place) * PAGE_BYTES as u64, buffer)
    })?;
    if let Err(problem) = loaded {
        return Ok(Err(format!("allocation file: {problem}")));
    }
    (accounting.usage, accounting.objects) = (head.usage, head.objects);
    Ok(Ok(accounting))
}

/// The head, and the offset of the pages in bytes.
fn read_head(file: &Device) -> std::result::Result<(ImageHeader, u64), String> {
    let size = file.size().map_err(|error| error.to_string())?;
    let mut len = PAGE_BYTES as u64;
    loop {
        if len > size {
            return Err("cut short".into());
        }
        let mut buffer = super::super::aligned::AlignedBuffer::zeroed(len as usize);
        file.read(0, &mut buffer).map_err(|error| error.to_string())?;
        // The head contains its length. Other errors are detected when all of it has been read.
        let told = buffer[40..44].try_into().map(u32::from_le_bytes).unwrap_or_default();
        let whole = (u64::from(told) + 4).next_multiple_of(PAGE_BYTES as u64);
        if whole <= len {
            return Ok((ImageHeader::decode(&buffer, &[ImageKind::File])?, whole));
        }
        len = whole;
    }
}

/// Removes the file durably, because allocations make it outdated from now on.
pub(in crate::blue) fn invalidate(directory: &Path) -> Result<()> {
    let path = directory.join(FILE);
    match std::fs::remove_file(&path) {
        Ok(()) => sync_directory(directory),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(StoreError::io(format!("remove {}", path.display()), &error)),
    }
}
