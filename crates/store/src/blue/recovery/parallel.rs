//! The parallel scan: threads take key ranges of about the same size, decode records in place ([`super::record_decoder`]) and
//! mark blocks in one shared bitmap.
//!
//! The scan of a large store is limited by marking: its blocks are spread over a bitmap that is larger than any cache. So runs
//! are collected and their words are read first, with many cache misses at a time, before each run is marked.

use super::record_decoder::{self, ScannedBlob};
use super::{MaxInUse, Progress, ScanFindings, ScanStats, Traversal, bytes_of};
use crate::PoolUsage;
use crate::blue::allocation::SpaceAccounting;
use crate::blue::allocation::bits;
use crate::blue::db::{Db, Family};
use crate::blue::label::FIRST_DATA_BLOCK;
use crate::blue::mount::OpenedStore;
use crate::blue::onode::{BLOCK_BYTES, Run, SharedBlob};
use crate::error::Result;
use nacre_types::ids::{PgId, PoolId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Number of ranges per thread, so that all threads end at about the same time.
const RANGES_PER_THREAD: u64 = 16;
/// Minimum size of a range, in bytes.
const MIN_RANGE_BYTES: u64 = 1 << 20;
/// Number of runs that are collected before they are marked.
const MARK_BATCH_EXTENTS: usize = 512;
/// Number of records between checks whether to stop.
const RECORDS_PER_CHECK: u64 = 1024;
/// Interval between checks of the threads' progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// The bitmap of used blocks, shared by all threads.
struct Bitmap {
    words: Vec<AtomicU64>,
    device_blocks: u64,
}

/// A shared blob's record, and whether it is already counted for a pool.
struct Shared {
    run: Run,
    counted: AtomicBool,
}

/// The first key and the exclusive end of a range. `None` means no end.
type KeyRange = (Vec<u8>, Option<Vec<u8>>);

/// The state shared by all threads.
struct Scan<'a> {
    db: &'a Db,
    bitmap: Bitmap,
    shared: HashMap<u64, Shared>,
    ranges: Vec<KeyRange>,
    next: AtomicUsize,
    onodes: AtomicU64,
    stop: AtomicBool,
}

/// The result of one thread.
#[derive(Default)]
struct Part {
    stats: ScanStats,
    findings: ScanFindings,
    highest: MaxInUse,
    usage: BTreeMap<PoolId, PoolUsage>,
    objects: BTreeMap<PgId, u64>,
}

pub(super) fn scan(opened: &OpenedStore, threads: usize, mut progress: Progress<'_>) -> Result<Traversal> {
    let db = &opened.db;
    let mut whole = Part::default();
    let device_blocks = opened.label.size / BLOCK_BYTES;
    let words = (0..bits::word_count(device_blocks)).map(|_| AtomicU64::new(0)).collect();
    let bitmap = Bitmap { words, device_blocks };
    let shared = scan_shared(db, &bitmap, &mut whole)?;
    let ranges = split(db, threads)?;
    let scan = Scan {
        db,
        bitmap,
        shared,
        ranges,
        next: AtomicUsize::new(0),
        onodes: AtomicU64::new(0),
        stop: AtomicBool::new(false),
    };
    let parts: Mutex<Vec<Result<Part>>> = Mutex::new(Vec::new());
    let outcome = std::thread::scope(|scope| {
        let (done, ended) = channel();
        for _ in 0..threads {
            let (scan, parts, done) = (&scan, &parts, done.clone());
            std::thread::Builder::new()
                .name("bstore_scan".into())
                .spawn_scoped(scope, move || {
                    let part = Thread::new(scan, threads == 1).run();
                    scan.stop.fetch_or(part.is_err(), Ordering::Relaxed);
                    parts.lock().push(part);
                    // The receiver outlives the threads.
                    let _ = done.send(());
                })
                .map_err(|e| crate::StoreError::io("start a thread of the scan", &e))?;
        }
        drop(done);
        loop {
            match ended.recv_timeout(PROGRESS_INTERVAL) {
                Ok(()) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Err(RecvTimeoutError::Timeout) => {
                    let told = progress.at(scan.onodes.load(Ordering::Relaxed));
                    if told.is_err() {
                        scan.stop.store(true, Ordering::Relaxed);
                        return told;
                    }
                }
            }
        }
    });
    outcome?;
    for part in parts.into_inner() {
        whole.add(part?);
    }
    // Collections without objects are counted. Objects without a collection are not.
    let mut objects = BTreeMap::new();
    for entry in db.scan(Family::Collections) {
        let (key, _) = entry?;
        if let ([pool @ .., _, _, _, _], [0]) = key.split_at_checked(12).unwrap_or_default()
            && let (Ok(pool), Some(seed)) = (<[u8; 8]>::try_from(pool), key[8..].first_chunk::<4>())
        {
            let pool = PoolId((u64::from_be_bytes(pool) ^ 1 << 63) as i64);
            let id = PgId::new(pool, u32::from_be_bytes(*seed));
            objects.insert(id, whole.objects.get(&id).copied().unwrap_or(0));
        }
    }
    let used = scan.bitmap.words.into_iter().map(AtomicU64::into_inner).collect();
    let accounting = SpaceAccounting { used, usage: std::mem::take(&mut whole.usage), objects };
    let Part { findings, stats, highest, .. } = whole;
    Ok(Traversal { accounting, findings, stats, highest })
}

fn scan_shared(db: &Db, bitmap: &Bitmap, part: &mut Part) -> Result<HashMap<u64, Shared>> {
    let mut shared = HashMap::new();
    for entry in db.scan(Family::Shared) {
        let (key, value) = entry?;
        part.stats.shared_blob_count += 1;
        match (<[u8; 8]>::try_from(&*key), SharedBlob::decode(&value)) {
            (Ok(id), Some(blob)) => {
                let id = u64::from_be_bytes(id);
                part.highest.see_run(blob.run, bitmap.device_blocks);
                bitmap.own(blob.run, id, part);
                shared.insert(id, Shared { run: blob.run, counted: AtomicBool::new(false) });
            }
            _ => part.findings.unreadable.push(key.to_vec()),
        }
    }
    Ok(shared)
}

/// Splits the keys of all objects into ranges of about the same number of bytes.
fn split(db: &Db, threads: usize) -> Result<Vec<KeyRange>> {
    let mut borders = Vec::new();
    if threads > 1
        && let (Some(first), Some(mut last)) =
            (db.first_key(Family::Onodes)?, db.find_last(Family::Onodes, |key, _| Some(key.to_vec()))?)
    {
        last.push(0);
        let size = db.estimated_sst_bytes(Family::Onodes, &first, &last);
        let wanted = (size / (threads as u64 * RANGES_PER_THREAD)).max(MIN_RANGE_BYTES);
        halve(db, &first, &last, size, wanted, &mut borders);
    }
    let starts = std::iter::once(Vec::new()).chain(borders.iter().cloned());
    let ends = borders.iter().cloned().map(Some).chain([None]);
    Ok(starts.zip(ends).collect())
}

/// Adds borders between `first` and `end`, which contain `size` bytes, in order.
fn halve(db: &Db, first: &[u8], end: &[u8], size: u64, wanted: u64, borders: &mut Vec<Vec<u8>>) {
    let Some(middle) = middle(first, end).filter(|_| size > wanted + wanted / 2) else { return };
    let below = db.estimated_sst_bytes(Family::Onodes, first, &middle).min(size);
    halve(db, first, &middle, below, wanted, borders);
    // A border is useless if one side is empty.
    if below > 0 && below < size {
        borders.push(middle.clone());
    }
    halve(db, &middle, end, size - below, wanted, borders);
}

/// A key about half way between two others, compared as numbers.
fn middle(first: &[u8], end: &[u8]) -> Option<Vec<u8>> {
    let same = first.iter().zip(end).take_while(|(a, b)| a == b).count();
    let number = |key: &[u8]| {
        let mut bytes = [0; 16];
        let rest = &key[same.min(key.len())..];
        let len = rest.len().min(16);
        bytes[..len].copy_from_slice(&rest[..len]);
        u128::from_be_bytes(bytes)
    };
    let (low, high) = (number(first), number(end));
    let middle = low + high.checked_sub(low)? / 2;
    (middle > low).then(|| [&first[..same.min(first.len())], &middle.to_be_bytes()].concat())
}

impl Bitmap {
    fn holds(&self, run: Run) -> bool {
        run.start >= FIRST_DATA_BLOCK
            && run.start.checked_add(run.blocks).is_some_and(|end| end <= self.device_blocks)
    }

    /// Marks a run that a record owns. Blocks that are marked already are disputed.
    fn own(&self, run: Run, owner: u64, part: &mut Part) {
        let (word, bit) = ((run.start / 64) as usize, run.start % 64);
        if run.blocks <= 64 - bit && self.holds(run) {
            let mask = (u64::MAX >> (64 - run.blocks)) << bit;
            let before = self.words[word].fetch_or(mask, Ordering::Relaxed) & mask;
            if before == 0 {
                part.stats.insert_count += 1;
            } else {
                part.dispute(word, before, self.device_blocks);
                part.count(run, owner, true);
            }
        } else if self.holds(run) {
            let mut taken = false;
            for (at, mask) in bits::masks(run) {
                let before = self.words[at].fetch_or(mask, Ordering::Relaxed) & mask;
                if before != 0 {
                    taken = true;
                    part.dispute(at, before, self.device_blocks);
                }
            }
            part.count(run, owner, taken);
        } else {
            self.take(run, part);
            part.count(run, owner, true);
        }
    }

    /// Like [`Bitmap::own`], if no other thread marks anything.
    fn own_alone(&self, run: Run, owner: u64, part: &mut Part) {
        let (word, bit) = ((run.start / 64) as usize, run.start % 64);
        if run.blocks <= 64 - bit && self.holds(run) {
            let mask = (u64::MAX >> (64 - run.blocks)) << bit;
            let before = self.words[word].load(Ordering::Relaxed);
            if before & mask == 0 {
                self.words[word].store(before | mask, Ordering::Relaxed);
                part.stats.insert_count += 1;
                return;
            }
        }
        self.own(run, owner, part);
    }

    /// Withholds the part of a run that lies within the store.
    fn take(&self, run: Run, part: &mut Part) {
        part.findings.dispute(run, self.device_blocks);
        let start = run.start.max(FIRST_DATA_BLOCK);
        let end = run.start.saturating_add(run.blocks).min(self.device_blocks);
        if start < end {
            for (at, mask) in bits::masks(Run { start, blocks: end - start }) {
                self.words[at].fetch_or(mask, Ordering::Relaxed);
            }
        }
    }
}

impl Part {
    fn count(&mut self, run: Run, owner: u64, disputed: bool) {
        if disputed {
            self.stats.skipped_illegal_extent += 1;
            self.findings.two_owners(run, owner);
        } else {
            self.stats.insert_count += 1;
        }
    }

    fn dispute(&mut self, word: usize, mut blocks: u64, limit: u64) {
        while blocks != 0 {
            let block = word as u64 * 64 + u64::from(blocks.trailing_zeros());
            self.findings.dispute(Run { start: block, blocks: 1 }, limit);
            blocks &= blocks - 1;
        }
    }

    fn add(&mut self, other: Part) {
        self.stats.add(&other.stats);
        self.findings.add(other.findings);
        self.highest.add(other.highest);
        for (pool, usage) in other.usage {
            let sum = self.usage.entry(pool).or_default();
            sum.add(&usage);
        }
        for (id, objects) in other.objects {
            *self.objects.entry(id).or_default() += objects;
        }
    }
}

/// A thread of the scan.
struct Thread<'a> {
    scan: &'a Scan<'a>,
    alone: bool,
    part: Part,
    /// Sums for the collection that is being read.
    at: Option<PgId>,
    usage: PoolUsage,
    holders: Vec<u8>,
    /// Blobs that are not shared and remain to be marked.
    gathered: Vec<ScannedBlob>,
}

impl<'a> Thread<'a> {
    fn new(scan: &'a Scan<'a>, alone: bool) -> Thread<'a> {
        Thread {
            scan,
            alone,
            part: Part::default(),
            at: None,
            usage: PoolUsage::default(),
            holders: Vec::new(),
            gathered: Vec::with_capacity(MARK_BATCH_EXTENTS * 2),
        }
    }

    fn run(mut self) -> Result<Part> {
        while let Some((first, end)) = self.scan.ranges.get(self.scan.next.fetch_add(1, Ordering::Relaxed)) {
            let mut records = self.scan.db.scan_range(Family::Onodes, first, end.clone());
            let mut seen = 0;
            while let Some((key, value)) = records.next()? {
                seen += 1;
                if seen % RECORDS_PER_CHECK == 0 {
                    self.scan.onodes.fetch_add(RECORDS_PER_CHECK, Ordering::Relaxed);
                    if self.scan.stop.load(Ordering::Relaxed) {
                        return Ok(self.part);
                    }
                }
                self.record(key, value);
            }
            self.scan.onodes.fetch_add(seen % RECORDS_PER_CHECK, Ordering::Relaxed);
        }
        self.mark();
        self.close();
        Ok(self.part)
    }

    fn record(&mut self, key: &[u8], value: &[u8]) {
        self.part.stats.onode_count += 1;
        let first = self.gathered.len();
        let coll = record_decoder::decode_collection(key);
        let read =
            coll.and_then(|_| record_decoder::decode_onode(value, &mut self.gathered, &mut self.holders));
        let (Some(coll), Some(totals)) = (coll, read) else {
            tracing::error!(?key, "bluestore: an object's record can't be decoded");
            self.gathered.truncate(first);
            self.part.findings.undecodable += 1;
            return;
        };
        if self.at != Some(coll) {
            self.close();
            self.at = Some(coll);
        }
        let stats = &mut self.part.stats;
        stats.extent_count += totals.extents;
        stats.spanning_blob_count += totals.spanning;
        stats.shard_count += 1 + totals.keyed_sums;
        stats.compressed_blob_count += totals.packed_blobs;
        let highest = &mut self.part.highest;
        highest.see_id(totals.nid);
        highest.see_id(totals.omap);
        for blob in &self.gathered[first..] {
            highest.see_id(blob.id);
            highest.see_run(blob.run, self.scan.bitmap.device_blocks);
        }
        self.usage.objects += 1;
        self.usage.stored_bytes += totals.stored_bytes;
        self.usage.allocated_bytes += bytes_of(totals.blocks);
        self.usage.compressed_bytes += totals.packed_bytes;
        self.usage.compressed_allocated_bytes += bytes_of(totals.packed_blocks);
        self.usage.compressed_original_bytes += totals.packed_stored_bytes;
        if totals.shared_blobs > 0 {
            self.shared(first, totals.nid);
        }
        if self.gathered.len() >= MARK_BATCH_EXTENTS {
            self.mark();
        }
    }

    /// Removes the shared blobs from the end of the collected ones. Their records own the blocks.
    fn shared(&mut self, first: usize, nid: u64) {
        let mut kept = first;
        for at in first..self.gathered.len() {
            let blob = self.gathered[at];
            if !blob.shared {
                self.gathered[kept] = blob;
                kept += 1;
                continue;
            }
            match self.scan.shared.get(&blob.id).filter(|shared| shared.run == blob.run) {
                Some(shared) => {
                    if !shared.counted.swap(true, Ordering::Relaxed) {
                        let bytes = bytes_of(blob.run.blocks);
                        self.usage.allocated_bytes += bytes;
                        self.usage.compressed_bytes += u64::from(blob.packed);
                        self.usage.compressed_allocated_bytes += if blob.packed == 0 { 0 } else { bytes };
                    }
                }
                None => {
                    self.part.stats.skipped_illegal_extent += 1;
                    self.scan.bitmap.take(blob.run, &mut self.part);
                    self.part.findings.shared_without_record(blob.id, nid);
                }
            }
        }
        self.gathered.truncate(kept);
    }

    /// Marks the collected blobs.
    fn mark(&mut self) {
        let bitmap = &self.scan.bitmap;
        // These reads do not depend on each other, so their cache misses overlap. Marking then finds the words in the cache.
        let touched = self.gathered.iter().fold(0, |sum, blob| {
            let word = bitmap.words.get((blob.run.start / 64) as usize);
            sum ^ word.map_or(0, |word| word.load(Ordering::Relaxed))
        });
        std::hint::black_box(touched);
        for blob in self.gathered.drain(..) {
            if self.alone {
                bitmap.own_alone(blob.run, blob.id, &mut self.part);
            } else {
                bitmap.own(blob.run, blob.id, &mut self.part);
            }
        }
    }

    /// Adds the sums of the collection that was read to the result.
    fn close(&mut self) {
        let sums = std::mem::take(&mut self.usage);
        if let Some(coll) = self.at.take() {
            *self.part.objects.entry(coll).or_default() += sums.objects;
            let usage = self.part.usage.entry(coll.pool).or_default();
            usage.add(&sums);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn middles_lie_between() {
        let pairs: [(&[u8], &[u8]); 5] = [
            (b"", b"\xff"),
            (b"abc", b"abd"),
            (b"abc", b"abcdefgh"),
            (b"a", b"b\0"),
            (b"prefix\x00\x01", b"prefix\x00\x03zz"),
        ];
        for (first, end) in pairs {
            let middle = middle(first, end).unwrap();
            assert!(first < &middle[..] && &middle[..] < end, "{first:?} {middle:?} {end:?}");
        }
        assert_eq!(middle(b"a", b"a"), None);
        assert_eq!(middle(b"b", b"a"), None);
    }
}
