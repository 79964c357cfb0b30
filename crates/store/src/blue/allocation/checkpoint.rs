//! Checkpoints: the bitmap of used blocks in pages on disk, with totals, as of the position of a delta.
//!
//! A checkpoint is derived from the previous one and committed deltas, never from the live allocator (rule B2). Only changed
//! pages are written, each to a place that the current head does not use. Then the pages are flushed, and the head is written
//! to the slot that does not contain the current head, and flushed. So one complete checkpoint exists at any time. Pages with
//! only free or only used blocks take no place.

use super::bits;
use super::delta::{AllocationChange, Delta, decode_key, key};
use super::image_header::{ImageHeader, ImageKind, PAGE_BLOCKS, PAGE_BYTES, PAGE_WORDS, Page, page_count};
use super::{HEAD_SLOTS, PAGES_FILE, SpaceAccounting};
use crate::blue::aligned::AlignedBuffer;
use crate::blue::db::{Db, Family};
use crate::blue::device::Device;
use crate::blue::onode::Run;
use crate::error::{Result, StoreError};
use bytes::Bytes;
use nacre_objectstore::files::{read_if_present, sync_directory};
use nacre_types::crc32c::crc32c;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use uuid::Uuid;

/// Number of pages read or written with one call.
const CHUNK_PAGES: usize = 512;
/// Number of threads that read pages.
const READERS: usize = 4;
/// Number of pages by which the file of pages grows.
const GROW_PAGES: u32 = 256;

/// The store's current checkpoint.
#[derive(Debug)]
pub(in crate::blue) struct Checkpoint {
    directory: PathBuf,
    pages: Device,
    head: ImageHeader,
}

/// The outcome of [`Checkpoint::advance`].
#[derive(Debug)]
pub(in crate::blue) enum Advance {
    /// The new checkpoint is durable.
    Done,
    /// It was cancelled. The old checkpoint is unchanged.
    Cancelled,
}

impl Checkpoint {
    /// The newest checkpoint of the given kind in `directory` whose position `is_known` to the database. The text says why
    /// there is none.
    pub(in crate::blue) fn open(
        directory: &Path,
        uuid: Uuid,
        device_blocks: u64,
        kind: ImageKind,
        is_known: impl Fn(u64) -> Result<bool>,
    ) -> Result<std::result::Result<Checkpoint, String>> {
        let mut heads = Vec::new();
        let mut problems = Vec::new();
        for name in HEAD_SLOTS {
            let Some(bytes) = read_if_present(&directory.join(name))? else { continue };
            match ImageHeader::decode(&bytes, &[kind]) {
                Ok(head) if head.uuid != uuid => problems.push(format!("{name} is of another store")),
                Ok(head) if head.device_blocks != device_blocks => {
                    problems.push(format!("{name} is of a device of another size"));
                }
                Ok(head) if !is_known(head.position)? => {
                    problems.push(format!("{name} is not of this database"));
                }
                Ok(head) => heads.push(head),
                Err(problem) => problems.push(format!("{name}: {problem}")),
            }
        }
        let Some(head) = heads.into_iter().max_by_key(|head| head.sequence) else {
            problems.push("there is no checkpoint".into());
            return Ok(Err(problems.join("; ")));
        };
        let pages = match Device::open(&directory.join(PAGES_FILE)) {
            Ok(pages) => pages,
            Err(error) => return Ok(Err(error.to_string())),
        };
        Ok(Ok(Checkpoint { directory: directory.to_owned(), pages, head }))
    }

    /// The highest position of a head of the store `uuid` in `directory`.
    pub(in crate::blue) fn newest_position(directory: &Path, uuid: Uuid) -> Result<Option<u64>> {
        let mut newest = None;
        for name in HEAD_SLOTS {
            if let Some(bytes) = read_if_present(&directory.join(name))?
                && let Ok(head) = ImageHeader::decode(&bytes, &[ImageKind::Checkpoint, ImageKind::Totals])
                && head.uuid == uuid
            {
                newest = newest.max(Some(head.position));
            }
        }
        Ok(newest)
    }

    /// Creates the files for a store's first checkpoint, or missing files of a store.
    fn create(directory: &Path) -> Result<Device> {
        let failed =
            |error: &std::io::Error| StoreError::io(format!("create {}", directory.display()), error);
        if !directory.exists() {
            std::fs::create_dir(directory).map_err(|e| failed(&e))?;
            sync_directory(directory.parent().unwrap_or(Path::new(".")))?;
        }
        let path = directory.join(PAGES_FILE);
        if !path.exists() {
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
            file.and_then(|file| file.sync_all()).map_err(|e| failed(&e))?;
        }
        Device::open(&path)
    }

    /// Writes a complete checkpoint of a state that was determined by other means, replacing existing ones. Durable on return. It
    /// becomes valid once `position` is in the database. `current` is the valid checkpoint until then. Without one,
    /// the database's last delta must be void, so that no start continues from the contents of the other slot.
    pub(in crate::blue) fn replace(
        directory: &Path,
        current: Option<&Checkpoint>,
        mut head: ImageHeader,
        words: &[u64],
    ) -> Result<Checkpoint> {
        let pages = Checkpoint::create(directory)?;
        // The sequence number is above those of all decodable heads, whether their checkpoints are usable or not, so this is
        // the newest one. No page of `current` is overwritten.
        let mut newest = 0;
        for name in HEAD_SLOTS {
            if let Some(bytes) = read_if_present(&directory.join(name))?
                && let Ok(found) = ImageHeader::decode(&bytes, &[ImageKind::Checkpoint, ImageKind::Totals])
            {
                newest = newest.max(found.sequence);
            }
        }
        let kept = current.map(|current| current.head.sequence);
        head.sequence = newest + 1;
        if kept.is_some_and(|kept| slot(kept) == slot(head.sequence)) {
            head.sequence += 1;
        }
        let mut places = FreePageSlots::of(current.map(|current| &current.head));
        let mut writer = Writer::new(&pages)?;
        head.pages = Vec::new();
        if head.kind == ImageKind::Checkpoint {
            for words in words.as_chunks::<PAGE_WORDS>().0 {
                head.pages.push(writer.put(words, &mut places)?);
            }
        }
        writer.finish()?;
        pages.flush()?;
        let checkpoint = Checkpoint { directory: directory.to_owned(), pages, head };
        write_head(directory, &checkpoint.head)?;
        fail::fail_point!("store::checkpoint_replaced", |_| Err(StoreError::Interrupted));
        let other = directory.join(HEAD_SLOTS[slot(checkpoint.head.sequence + 1)]);
        if current.is_none() && other.exists() {
            // It is of another history: its position could become valid again.
            std::fs::remove_file(&other)
                .map_err(|e| StoreError::io(format!("remove {}", other.display()), &e))?;
            sync_directory(directory)?;
        }
        Ok(checkpoint)
    }

    pub(in crate::blue) fn head(&self) -> &ImageHeader {
        &self.head
    }

    /// Reads the bitmap. The text describes what is damaged.
    pub(in crate::blue) fn load(&self, words: &mut [u64]) -> Result<std::result::Result<(), String>> {
        let stored = fill_uniform_pages(&self.head, words);
        let read =
            |place: u32, buffer: &mut [u8]| self.pages.read(u64::from(place) * PAGE_BYTES as u64, buffer);
        load_pages(&stored, &self.head, words, read)
    }

    /// Advances the checkpoint to `position` with the deltas in the database. The text of a
    /// [`StoreError::Corrupt`] error says which delta or page is inconsistent.
    pub(in crate::blue) fn advance(
        &mut self,
        db: &Db,
        position: u64,
        frontier: u64,
        cancel: &AtomicBool,
    ) -> Result<Advance> {
        let mut next = self.head.clone();
        // By page: (first block in the page, number of blocks, used), in order.
        let mut dirty: BTreeMap<u32, Vec<(u16, u16, bool)>> = BTreeMap::new();
        let has_pages = self.head.kind == ImageKind::Checkpoint;
        each_delta(db, self.head.position, position, |delta| {
            for change in &delta.changes {
                if change.run.start + change.run.blocks > frontier || !has_pages {
                    return Err(misfit("delta", "a run lies behind the frontier"));
                }
                split(*change, &mut dirty);
            }
            apply_totals(&delta, &mut next.usage, &mut next.objects);
            Ok(())
        })?;
        next.sequence += 1;
        next.position = position;
        next.frontier = frontier;
        let mut places = FreePageSlots::of(Some(&self.head));
        let mut writer = Writer::new(&self.pages)?;
        let mut buffer = AlignedBuffer::zeroed(PAGE_BYTES);
        let mut words = [0; PAGE_WORDS];
        for (at, changes) in dirty {
            if cancel.load(Ordering::Relaxed) {
                return Ok(Advance::Cancelled);
            }
            let page = next.pages.get_mut(at as usize).ok_or_else(|| misfit("delta", "no such page"))?;
            self.page(*page, &mut buffer, &mut words)?;
            for (first, blocks, used) in changes {
                let run = Run { start: u64::from(first), blocks: u64::from(blocks) };
                if !bits::set_range(&mut words, run, used) {
                    return Err(misfit("delta", "it takes what is taken or frees what is free"));
                }
                next.used = next.used.wrapping_add_signed(if used {
                    run.blocks as i64
                } else {
                    -(run.blocks as i64)
                });
            }
            *page = writer.put(&words, &mut places)?;
        }
        writer.finish()?;
        fail::fail_point!("store::checkpoint_pages", |_| Ok(Advance::Cancelled));
        self.pages.flush()?;
        write_head(&self.directory, &next)?;
        self.head = next;
        Ok(Advance::Done)
    }

    fn page(&self, page: Page, buffer: &mut AlignedBuffer, words: &mut [u64; PAGE_WORDS]) -> Result<()> {
        match page.index() {
            None => words.fill(if page == Page::FULL { u64::MAX } else { 0 }),
            Some(index) => {
                self.pages.read(u64::from(index) * PAGE_BYTES as u64, buffer)?;
                if crc32c(buffer) != page.crc {
                    return Err(misfit("page", "checksum mismatch"));
                }
                copy_words(buffer, words);
            }
        }
        Ok(())
    }
}

fn misfit(what: &str, detail: &str) -> StoreError {
    StoreError::corrupt(format!("allocation checkpoint's {what}"), detail)
}

fn slot(sequence: u64) -> usize {
    (sequence % 2) as usize
}

/// Writes a head to its slot. Durable on return.
fn write_head(directory: &Path, head: &ImageHeader) -> Result<()> {
    let path = directory.join(HEAD_SLOTS[slot(head.sequence)]);
    let failed = |error: &std::io::Error| StoreError::io(format!("write {}", path.display()), error);
    let is_new = !path.exists();
    let bytes = head.encode();
    // Written in place: a torn write damages only this slot, and the other one remains valid.
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).mode(0o600).open(&path);
    file.and_then(|file| {
        file.write_all_at(&bytes, 0)?;
        file.set_len(bytes.len() as u64)?;
        file.sync_all()
    })
    .map_err(|e| failed(&e))?;
    if is_new { sync_directory(directory) } else { Ok(()) }
}

/// Calls `f` with each delta after `from` up to `to`, and returns their size. Fails if one is missing or can't be decoded.
pub(super) fn each_delta(db: &Db, from: u64, to: u64, mut f: impl FnMut(Delta) -> Result<()>) -> Result<u64> {
    let mut range = db.range(Family::AllocDelta, &key(from + 1), Some(key(to + 1).to_vec()));
    let (mut expected, mut bytes) = (from + 1, 0);
    while let Some((found, value)) = range.next()? {
        if decode_key(found) != Some(expected) {
            return Err(misfit("deltas", &format!("{expected} is missing")));
        }
        let delta = Delta::decode(value).filter(|delta| !delta.void);
        f(delta.ok_or_else(|| misfit("deltas", &format!("{expected} can't be decoded")))?)?;
        bytes += (found.len() + value.len()) as u64;
        expected += 1;
    }
    if expected == to + 1 { Ok(bytes) } else { Err(misfit("deltas", &format!("{expected} is missing"))) }
}

/// Applies a delta's totals.
pub(super) fn apply_totals(
    delta: &Delta,
    usage: &mut BTreeMap<nacre_types::ids::PoolId, crate::PoolUsage>,
    objects: &mut BTreeMap<nacre_types::ids::PgId, u64>,
) {
    usage.extend(delta.pools.iter().copied());
    for (id, count) in &delta.collections {
        match count {
            Some(count) => _ = objects.insert(*id, *count),
            None => _ = objects.remove(id),
        }
    }
}

/// Splits a change at page boundaries.
fn split(change: AllocationChange, dirty: &mut BTreeMap<u32, Vec<(u16, u16, bool)>>) {
    let (mut at, end) = (change.run.start, change.run.start + change.run.blocks);
    while at < end {
        let page = at / PAGE_BLOCKS;
        let upto = end.min((page + 1) * PAGE_BLOCKS);
        // A page has 2^15 blocks, so both numbers fit.
        let part = ((at % PAGE_BLOCKS) as u16, (upto - at) as u16, change.used);
        dirty.entry(page as u32).or_default().push(part);
        at = upto;
    }
}

fn copy_words(bytes: &[u8], words: &mut [u64]) {
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
}

/// Fills in the pages that take no place. Returns (place, page) of the others, sorted by place.
pub(super) fn fill_uniform_pages(head: &ImageHeader, words: &mut [u64]) -> Vec<(u32, u32)> {
    let mut stored = Vec::new();
    for ((at, page), words) in (0..).zip(&head.pages).zip(words.as_chunks_mut::<PAGE_WORDS>().0) {
        match page.index() {
            Some(index) => stored.push((index, at)),
            None if *page == Page::FULL => words.fill(u64::MAX),
            None => {}
        }
    }
    stored.sort_unstable();
    stored
}

/// Places that are read with one call: (place, page) of each, and the number of bytes that they span.
struct Chunk<'a> {
    pages: &'a [(u32, u32)],
    span: usize,
}

/// Groups places that are close together.
fn chunks(stored: &[(u32, u32)]) -> Vec<Chunk<'_>> {
    let mut chunks = Vec::new();
    let mut rest = stored;
    while let Some((first, _)) = rest.first() {
        // Small gaps between the needed places are read too.
        let near =
            |pair: &[(u32, u32)]| pair[1].0 - pair[0].0 <= 16 && pair[1].0 - first < CHUNK_PAGES as u32;
        let take = 1 + rest.windows(2).take_while(|pair| near(pair)).count();
        let (pages, after) = rest.split_at(take);
        chunks.push(Chunk { pages, span: (pages[take - 1].0 - first + 1) as usize * PAGE_BYTES });
        rest = after;
    }
    chunks
}

/// Reads and verifies the stored pages in large reads and with several threads, to keep the disk busy.
/// `words` must be zero except for full pages.
pub(super) fn load_pages(
    stored: &[(u32, u32)],
    head: &ImageHeader,
    words: &mut [u64],
    read: impl Fn(u32, &mut [u8]) -> Result<()> + Sync,
) -> Result<std::result::Result<(), String>> {
    let chunks = chunks(stored);
    let next = AtomicUsize::new(0);
    let fetch = |chunk: &Chunk<'_>| -> std::result::Result<AlignedBuffer, String> {
        let mut buffer = AlignedBuffer::zeroed(chunk.span);
        let first = chunk.pages[0].0;
        read(first, &mut buffer).map_err(|error| error.to_string())?;
        for (place, at) in chunk.pages {
            let offset = (place - first) as usize * PAGE_BYTES;
            if crc32c(&buffer[offset..offset + PAGE_BYTES]) != head.pages[*at as usize].crc {
                return Err(format!("page {at} of the bitmap: checksum mismatch"));
            }
        }
        Ok(buffer)
    };
    let loaded = std::thread::scope(|scope| {
        let (done, fetched) = std::sync::mpsc::sync_channel(READERS);
        for _ in 0..READERS.min(chunks.len()) {
            let (done, next, chunks, fetch) = (done.clone(), &next, &chunks, &fetch);
            scope.spawn(move || {
                while let Some(chunk) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let buffer = fetch(chunk);
                    let failed = buffer.is_err();
                    if done.send((chunk, buffer)).is_err() || failed {
                        return;
                    }
                }
            });
        }
        drop(done);
        for (chunk, buffer) in fetched {
            let buffer = buffer?;
            for (place, at) in chunk.pages {
                let offset = (place - chunk.pages[0].0) as usize * PAGE_BYTES;
                let start = *at as usize * PAGE_WORDS;
                copy_words(&buffer[offset..offset + PAGE_BYTES], &mut words[start..start + PAGE_WORDS]);
            }
        }
        Ok(())
    });
    if let Err(problem) = loaded {
        return Ok(Err(problem));
    }
    let used = bits::count(words);
    if used == head.used {
        Ok(Ok(()))
    } else {
        Ok(Err(format!("the bitmap has {used} used blocks, the head counts {}", head.used)))
    }
}

/// A bitmap that is read in advance, while the database is being opened.
#[derive(Debug)]
pub(in crate::blue) struct BitmapPrefetch(JoinHandle<Option<(u64, Vec<u64>)>>);

impl BitmapPrefetch {
    /// Starts reading the checkpoint that seems to be the newest. Whether it is valid is determined later.
    pub(in crate::blue) fn begin(directory: &Path, uuid: Uuid, device_blocks: u64) -> Option<BitmapPrefetch> {
        let directory = directory.to_owned();
        let read = move || {
            let checkpoint =
                Checkpoint::open(&directory, uuid, device_blocks, ImageKind::Checkpoint, |_| Ok(true))
                    .ok()?
                    .ok()?;
            let mut words = bits::empty(device_blocks);
            checkpoint.load(&mut words).ok()?.ok()?;
            Some((checkpoint.head.sequence, words))
        };
        std::thread::Builder::new().name("bstore_ahead".into()).spawn(read).ok().map(BitmapPrefetch)
    }

    /// The bitmap, if it belongs to `checkpoint`.
    pub(super) fn take(self, checkpoint: &Checkpoint) -> Option<Vec<u64>> {
        let (sequence, words) = self.0.join().ok()??;
        (sequence == checkpoint.head.sequence).then_some(words)
    }
}

/// The places in the file of pages that the current head does not use, lowest first.
struct FreePageSlots {
    taken: Vec<bool>,
    next: u32,
}

impl FreePageSlots {
    fn of(head: Option<&ImageHeader>) -> FreePageSlots {
        let mut taken = Vec::new();
        for index in head.into_iter().flat_map(|head| &head.pages).filter_map(|page| page.index()) {
            let index = index as usize;
            if index >= taken.len() {
                taken.resize(index + 1, false);
            }
            taken[index] = true;
        }
        FreePageSlots { taken, next: 0 }
    }

    fn take(&mut self) -> u32 {
        while self.taken.get(self.next as usize) == Some(&true) {
            self.next += 1;
        }
        self.next += 1;
        self.next - 1
    }
}

/// Writes pages. Contiguous pages are written with one call.
struct Writer<'a> {
    device: &'a Device,
    size_pages: u32,
    first: u32,
    gathered: Vec<u8>,
}

impl<'a> Writer<'a> {
    fn new(device: &'a Device) -> Result<Writer<'a>> {
        let size_pages = (device.size()? / PAGE_BYTES as u64) as u32;
        Ok(Writer { device, size_pages, first: 0, gathered: Vec::new() })
    }

    /// Writes a page, if it needs a place.
    fn put(&mut self, words: &[u64; PAGE_WORDS], places: &mut FreePageSlots) -> Result<Page> {
        if words.iter().all(|word| *word == 0) {
            return Ok(Page::FREE);
        }
        if words.iter().all(|word| *word == u64::MAX) {
            return Ok(Page::FULL);
        }
        let place = places.take();
        let follows = self.first + (self.gathered.len() / PAGE_BYTES) as u32 == place;
        if !follows || self.gathered.len() >= CHUNK_PAGES * PAGE_BYTES {
            self.finish()?;
        }
        if self.gathered.is_empty() {
            self.first = place;
        }
        let start = self.gathered.len();
        self.gathered.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        Ok(Page { place: place + 1, crc: crc32c(&self.gathered[start..]) })
    }

    fn finish(&mut self) -> Result<()> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        let end = self.first + (self.gathered.len() / PAGE_BYTES) as u32;
        if end > self.size_pages {
            self.size_pages = end.next_multiple_of(GROW_PAGES);
            self.device.resize(u64::from(self.size_pages) * PAGE_BYTES as u64)?;
        }
        let pages = AlignedBuffer::copy_of(&self.gathered).freeze();
        self.gathered.clear();
        self.device.write(u64::from(self.first) * PAGE_BYTES as u64, &[Bytes::clone(&pages)])
    }
}

impl SpaceAccounting {
    /// The head of an image of this accounting.
    pub(in crate::blue) fn head(
        &self,
        kind: ImageKind,
        uuid: Uuid,
        position: u64,
        frontier: u64,
        device_blocks: u64,
    ) -> ImageHeader {
        let pages = if kind == ImageKind::Totals { 0 } else { page_count(device_blocks) };
        ImageHeader {
            kind,
            uuid,
            sequence: 0,
            position,
            frontier,
            device_blocks,
            used: bits::count(&self.used),
            usage: self.usage.clone(),
            objects: self.objects.clone(),
            pages: vec![Page::FREE; pages],
        }
    }
}
