//! The metadata database: its column families, its RocksDB configuration, and batches built without RocksDB.
//!
//! A single thread writes (the commit thread), with the WAL enabled and synced. The submitting threads build write batches as raw
//! records, which the commit thread only concatenates.

use super::allocation::freelist;
use super::varint;
use crate::error::{Result, StoreError};
use crate::watched::WatchdogDb;
use parking_lot::Mutex;
use rocksdb::{
    BlockBasedOptions, BottommostLevelCompaction, Cache, ColumnFamily, ColumnFamilyDescriptor,
    CompactOptions, DB, DBCompressionType, DBPinnableSlice, DBRecoveryMode, FlushOptions,
    IngestExternalFileOptions, IteratorMode, LogLevel, Options, ReadOptions, SstFileWriter, WriteBatch,
    WriteOptions,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// The column families (docs/format/bluestore.md), in the order of [`FAMILIES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// Objects' records.
    Onodes,
    /// Checksums by blob id.
    Csum,
    /// Omap entries by omap id.
    Omap,
    /// PG logs.
    PgLog,
    /// Collections and their own values.
    Collections,
    /// Shared blobs' reference counts.
    Shared,
    /// Copies of deferred data that is not yet in its place, or not flushed.
    Deferred,
    /// Changes of the allocation by group commits since the last checkpoint.
    AllocDelta,
    /// The store's own state and values.
    Super,
    /// Used blocks, if they are recorded in the database.
    FreeList,
}

const FAMILIES: [(Family, &str); 10] = [
    (Family::Onodes, "onodes"),
    (Family::Csum, "csum"),
    (Family::Omap, "omap"),
    (Family::PgLog, "pglog"),
    (Family::Collections, "collections"),
    (Family::Shared, "shared"),
    (Family::Deferred, "deferred"),
    (Family::AllocDelta, "allocdelta"),
    (Family::Super, "super"),
    (Family::FreeList, "freelist"),
];

/// Number of WAL files kept for reuse.
const RECYCLED_WALS: usize = 4;
/// The key in the delta family that is used to fill the log in advance. No delta has so short a key. It is deleted immediately.
const PREFILL_KEY: &[u8] = b"-";

/// Memory limits of the database.
#[derive(Clone, Copy, Debug)]
pub(super) struct DbConfig {
    /// Block cache in bytes.
    pub(super) cache_bytes: usize,
    /// Memtable size of the busy families in bytes.
    pub(super) write_buffer_bytes: usize,
}

/// Bytes of the log that one step fills in advance.
const PREFILL_STEP_BYTES: usize = 1 << 20;

/// The part of the log that remains to be filled in advance.
#[derive(Debug)]
pub(super) struct WalPrefill {
    /// Steps for each file, remaining files, and remaining steps for the current file.
    each: usize,
    files: usize,
    chunks: usize,
    chunk: Vec<u8>,
    /// Bytes after which the log needs no more filling, if the store has logged them itself.
    left: usize,
}

impl WalPrefill {
    /// Counts bytes that the store has logged itself. Returns whether the log needs no more filling in advance. If a file is
    /// partly filled, one more step must finish it first.
    pub(super) fn count_logged(&mut self, logged_bytes: usize) -> bool {
        self.left = self.left.saturating_sub(logged_bytes);
        if self.left > 0 {
            return false;
        }
        let partly_filled = self.chunks < self.each;
        if partly_filled {
            (self.files, self.chunks) = (1, 0);
        }
        !partly_filled
    }
}

/// The open database.
pub(super) struct Db {
    db: WatchdogDb,
    config: DbConfig,
    /// RocksDB's number of each family, by position in [`FAMILIES`].
    ids: [u32; FAMILIES.len()],
}

impl Db {
    /// Opens the database in `path`, and creates it if `create` is set.
    pub(super) fn open(path: &Path, config: DbConfig, create: bool) -> Result<Db> {
        let db = open(path, config, create)?;
        let mut ids = [0; FAMILIES.len()];
        for (id, (_, name)) in ids.iter_mut().zip(FAMILIES) {
            *id = family_id(&db, name)?;
        }
        Ok(Db { db: WatchdogDb::new(db)?, config, ids })
    }

    fn family(&self, family: Family) -> &ColumnFamily {
        self.db.cf_handle(family_name(family)).expect("invariant: open() opened every family")
    }

    /// RocksDB's numbers of the families, as used in raw batches.
    pub(super) fn ids(&self) -> FamilyIds {
        FamilyIds(self.ids)
    }

    pub(super) fn get(&self, family: Family, key: &[u8]) -> Result<Option<DBPinnableSlice<'_>>> {
        self.db
            .get_pinned_cf(self.family(family), key)
            .map_err(|e| crate::error::database("read the metadata database", &e))
    }

    /// The entries of `family` with `first <= key < end` (`None`: no end), as of the moment of the call.
    pub(super) fn range(&self, family: Family, first: &[u8], end: Option<Vec<u8>>) -> Range<'_> {
        let mut options = ReadOptions::default();
        if let Some(end) = end {
            options.set_iterate_upper_bound(end);
        }
        let mut iterator = self.db.raw_iterator_cf_opt(self.family(family), options);
        iterator.seek(first);
        Range { iterator, started: false }
    }

    /// All entries of `family`, for scans: without filling the cache, with readahead.
    pub(super) fn scan(&self, family: Family) -> impl Iterator<Item = Result<Entry>> + '_ {
        let mut options = ReadOptions::default();
        options.fill_cache(false);
        options.set_readahead_size(2 << 20);
        self.db
            .iterator_cf_opt(self.family(family), options, IteratorMode::Start)
            .map(|entry| entry.map_err(|e| crate::error::database("scan the metadata database", &e)))
    }

    /// The entries of a range of `family`, for scans: without filling the cache, with readahead.
    pub(super) fn scan_range(&self, family: Family, first: &[u8], end: Option<Vec<u8>>) -> Range<'_> {
        let mut options = ReadOptions::default();
        options.fill_cache(false);
        options.set_readahead_size(2 << 20);
        if let Some(end) = end {
            options.set_iterate_upper_bound(end);
        }
        let mut iterator = self.db.raw_iterator_cf_opt(self.family(family), options);
        iterator.seek(first);
        Range { iterator, started: false }
    }

    /// The first key of `family`.
    pub(super) fn first_key(&self, family: Family) -> Result<Option<Vec<u8>>> {
        Ok(self.range(family, &[], None).next()?.map(|(key, _)| key.to_vec()))
    }

    /// The result of `read` for the last entry of `family` for which it returns one.
    pub(super) fn find_last<T>(
        &self,
        family: Family,
        read: impl Fn(&[u8], &[u8]) -> Option<T>,
    ) -> Result<Option<T>> {
        let mut iterator = self.db.raw_iterator_cf(self.family(family));
        iterator.seek_to_last();
        while let Some((key, value)) = iterator.item() {
            if let Some(found) = read(key, value) {
                return Ok(Some(found));
            }
            iterator.prev();
        }
        iterator.status().map_err(|e| crate::error::database("read the metadata database", &e))?;
        Ok(None)
    }

    /// Approximate size in bytes of the files for the keys `first <= key < end`.
    pub(super) fn estimated_sst_bytes(&self, family: Family, first: &[u8], end: &[u8]) -> u64 {
        let range = rocksdb::Range::new(first, end);
        self.db.get_approximate_sizes_cf(self.family(family), &[range]).first().copied().unwrap_or(0)
    }

    /// Approximate number of keys in a family.
    pub(super) fn estimated_keys(&self, family: Family) -> u64 {
        let property = self.db.property_int_value_cf(self.family(family), "rocksdb.estimate-num-keys");
        property.ok().flatten().unwrap_or(0)
    }

    /// Writes a batch atomically. Durable on return.
    pub(super) fn write(&self, batch: &RawBatch) -> Result<()> {
        fail::fail_point!("store::wal_write", |_| Err(StoreError::Database {
            what: "write the metadata database",
            detail: "failpoint".into()
        }));
        let mut options = WriteOptions::default();
        options.set_sync(sync_is_on());
        self.db
            .write_opt(WriteBatch::from_data(batch.as_raw()), &options)
            .map_err(|e| self.db.write_error("write the metadata database", &e))
    }

    /// The work for [`Db::wal_prefill_step`]: `bytes` for each of the WAL files that are kept for reuse.
    pub(super) fn plan_wal_prefill(&self, bytes: usize) -> WalPrefill {
        let each = bytes.div_ceil(PREFILL_STEP_BYTES);
        let left = bytes * RECYCLED_WALS;
        WalPrefill { each, files: RECYCLED_WALS, chunks: each, chunk: vec![0; PREFILL_STEP_BYTES], left }
    }

    /// Fills a part of the WAL in advance, and retires each file that is full. A file that has all its blocks can be synced
    /// without a journal commit of the file system. Returns false when all is done. Only data written by [`Db::write`]
    /// afterwards is durable.
    pub(super) fn wal_prefill_step(&self, prefill: &mut WalPrefill) -> Result<bool> {
        let failed = |e| self.db.write_error("fill the metadata database's log ahead", &e);
        let family = self.family(Family::AllocDelta);
        if prefill.chunks > 0 {
            prefill.chunks -= 1;
            self.db.put_cf(family, PREFILL_KEY, &prefill.chunk).map_err(failed)?;
            return Ok(true);
        }
        let mut synced = WriteOptions::default();
        synced.set_sync(true);
        self.db.delete_cf_opt(family, PREFILL_KEY, &synced).map_err(failed)?;
        let mut options = FlushOptions::default();
        options.set_wait(false);
        self.db.flush_cf_opt(family, &options).map_err(failed)?;
        prefill.files -= 1;
        prefill.chunks = prefill.each;
        Ok(prefill.files > 0)
    }

    /// Writes a file for [`Db::ingest`] with the entries that `fill` puts in key order. `None` if it puts none.
    pub(super) fn write_sst(
        &self,
        family: Family,
        path: &Path,
        fill: impl FnOnce(&mut dyn FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()>,
    ) -> Result<Option<PathBuf>> {
        let failed = |e| crate::error::database("write a file for the metadata database", &e);
        let options = family_options(family, self.config, &Cache::new_lru_cache(1 << 20));
        let mut writer = SstFileWriter::create(&options);
        let mut opened = false;
        fill(&mut |key, value| {
            if !opened {
                writer.open(path).map_err(failed)?;
                opened = true;
            }
            writer.put(key, value).map_err(failed)
        })?;
        if opened {
            writer.finish().map_err(failed)?;
        }
        Ok(opened.then(|| path.to_owned()))
    }

    /// Ingests files made by [`Db::write_sst`], whose keys must not overlap.
    pub(super) fn ingest(&self, family: Family, files: Vec<PathBuf>) -> Result<()> {
        if files.is_empty() {
            return Ok(());
        }
        let mut options = IngestExternalFileOptions::default();
        options.set_move_files(true);
        self.db
            .ingest_external_file_cf_opts(self.family(family), &options, files)
            .map_err(|e| crate::error::database("take over files", &e))
    }

    /// Compacts all families in turn while the database is in use, until `end` is set. Returns whether all are done.
    pub(super) fn compact(&self, end: &AtomicBool, progress: &mut dyn FnMut(&str, usize, usize)) -> bool {
        let mut options = CompactOptions::default();
        options.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
        // Flushes and the compactions that writes require continue at the same time.
        options.set_exclusive_manual_compaction(false);
        for (at, (family, name)) in FAMILIES.into_iter().enumerate() {
            if end.load(Ordering::Acquire) {
                return false;
            }
            progress(name, at + 1, FAMILIES.len());
            self.db.compact_range_cf_opt(self.family(family), None::<&[u8]>, None::<&[u8]>, &options);
        }
        !end.load(Ordering::Acquire)
    }

    /// Ends background compactions and [`Db::compact`] permanently. Nothing may be written after this.
    pub(super) fn cancel_compactions(&self) {
        self.db.cancel_all_background_work(false);
    }

    /// RocksDB's sequence number of the last write.
    pub(super) fn sequence(&self) -> u64 {
        self.db.latest_sequence_number()
    }

    /// Approximate number of bytes that a family takes, including memtables.
    pub(super) fn estimated_bytes(&self, family: Family) -> u64 {
        let property =
            |name: &str| self.db.property_int_value_cf(self.family(family), name).ok().flatten().unwrap_or(0);
        property("rocksdb.estimate-live-data-size") + property("rocksdb.cur-size-all-mem-tables")
    }
}

fn sync_is_on() -> bool {
    fail::fail_point!("store::skip_wal_sync", |_| false);
    true
}

/// A key and its value.
pub(super) type Entry = (Box<[u8]>, Box<[u8]>);

/// Entries in key order.
pub(super) struct Range<'a> {
    iterator: rocksdb::DBRawIterator<'a>,
    started: bool,
}

impl Range<'_> {
    /// The next entry.
    pub(super) fn next(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        if self.started {
            self.iterator.next();
        }
        self.started = true;
        if !self.iterator.valid() {
            self.iterator.status().map_err(|e| crate::error::database("read the metadata database", &e))?;
            return Ok(None);
        }
        Ok(self.iterator.item())
    }
}

/// RocksDB's numbers of the families.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FamilyIds([u32; FAMILIES.len()]);

/// Changes to the database in RocksDB's write batch format, built without calls to its library.
#[derive(Debug, Default)]
pub(super) struct RawBatch {
    /// Sequence (8 bytes, set by RocksDB), count (4 bytes), records. Empty until the first record.
    raw: Vec<u8>,
    count: u32,
}

/// Length of a write batch's header in bytes.
const BATCH_HEADER_BYTES: usize = 12;
/// Record tags (`ValueType` in RocksDB's db/dbformat.h).
const TAG_DELETE: u8 = 0x4;
const TAG_PUT: u8 = 0x5;
const TAG_MERGE: u8 = 0x6;
const TAG_SINGLE_DELETE: u8 = 0x8;
const TAG_DELETE_RANGE: u8 = 0xe;

impl RawBatch {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn size_in_bytes(&self) -> usize {
        self.raw.len()
    }

    fn begin(&mut self, ids: FamilyIds, family: Family, tag: u8) {
        if self.raw.is_empty() {
            self.raw.reserve(1024);
            self.raw.extend_from_slice(&[0; BATCH_HEADER_BYTES]);
        }
        self.count += 1;
        self.raw.push(tag);
        varint::put(&mut self.raw, u64::from(ids.0[family as usize]));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        varint::put(&mut self.raw, bytes.len() as u64);
        self.raw.extend_from_slice(bytes);
    }

    pub(super) fn put(&mut self, ids: FamilyIds, family: Family, key: &[u8], value: &[u8]) {
        self.begin(ids, family, TAG_PUT);
        self.bytes(key);
        self.bytes(value);
    }

    /// Merges `operand` into the existing value with the family's merge operator.
    pub(super) fn merge(&mut self, ids: FamilyIds, family: Family, key: &[u8], operand: &[u8]) {
        self.begin(ids, family, TAG_MERGE);
        self.bytes(key);
        self.bytes(operand);
    }

    pub(super) fn delete(&mut self, ids: FamilyIds, family: Family, key: &[u8]) {
        self.begin(ids, family, TAG_DELETE);
        self.bytes(key);
    }

    /// Deletes a key that was put exactly once since it was last deleted. A compaction drops both records when they meet.
    pub(super) fn single_delete(&mut self, ids: FamilyIds, family: Family, key: &[u8]) {
        self.begin(ids, family, TAG_SINGLE_DELETE);
        self.bytes(key);
    }

    /// Deletes all keys with `first <= key < end`.
    pub(super) fn delete_range(&mut self, ids: FamilyIds, family: Family, first: &[u8], end: &[u8]) {
        self.begin(ids, family, TAG_DELETE_RANGE);
        self.bytes(first);
        self.bytes(end);
    }

    /// Appends the records of another batch.
    pub(super) fn append(&mut self, other: &RawBatch) {
        if other.is_empty() {
            return;
        }
        if self.raw.is_empty() {
            self.raw.extend_from_slice(&[0; BATCH_HEADER_BYTES]);
        }
        self.raw.extend_from_slice(&other.raw[BATCH_HEADER_BYTES..]);
        self.count += other.count;
    }

    /// Removes all records and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.raw.clear();
        self.count = 0;
    }

    /// Sets the count in the header.
    pub(super) fn finish(&mut self) {
        if !self.raw.is_empty() {
            let count = self.count.to_le_bytes();
            self.raw[8..BATCH_HEADER_BYTES].copy_from_slice(&count);
        }
    }

    fn as_raw(&self) -> &[u8] {
        if self.raw.is_empty() { &[0; BATCH_HEADER_BYTES] } else { &self.raw }
    }
}

/// Maximum number of batches that a [`BatchPool`] keeps, and the maximum size of each, in bytes.
const POOLED_BATCHES: usize = 1024;
const POOLED_BYTES: usize = 4096;

/// Reuses the memory of written batches for the next transactions. Submitting threads fill batches and the commit thread
/// frees them, a pattern that an allocator's thread caches handle badly.
#[derive(Debug, Default)]
pub(super) struct BatchPool(Mutex<Vec<RawBatch>>);

impl BatchPool {
    /// An empty batch.
    pub(super) fn take(&self) -> RawBatch {
        self.0.lock().pop().unwrap_or_default()
    }

    /// Returns batches to the pool. Drops those that are too large or too many.
    pub(super) fn put(&self, batches: impl Iterator<Item = RawBatch>) {
        let small = batches.filter(|batch| (1..=POOLED_BYTES).contains(&batch.raw.capacity()));
        let mut pool = self.0.lock();
        let room = POOLED_BATCHES - pool.len();
        pool.extend(small.take(room).map(|mut batch| {
            batch.clear();
            batch
        }));
    }
}

/// The name of a family's column family.
pub(super) const fn family_name(family: Family) -> &'static str {
    FAMILIES[family as usize].1
}

/// The names of all families.
pub(super) fn family_names() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|(_, name)| *name)
}

/// A file with `DELETIONS_TRIGGER` deletions among `DELETIONS_WINDOW` consecutive entries is compacted soon, because readers
/// step over each of them.
const DELETIONS_WINDOW: usize = 32_768;
const DELETIONS_TRIGGER: usize = 16_384;
/// A memtable in which one step of a scan skips this many entries is flushed, so that it is compacted too.
const SCAN_FLUSH_TRIGGER: &str = "8192";

/// The option that makes the memtable of the PG logs remember the last insert position of each PG. The search for the next
/// entry's position starts there.
fn log_insert_hint() -> String {
    format!("memtable_insert_with_hint_prefix_extractor=fixed:{}", super::keys::COLLECTION_PREFIX_BYTES)
}

/// Opens the RocksDB database.
pub(super) fn open(path: &Path, config: DbConfig, create: bool) -> Result<DB> {
    let cache = Cache::new_lru_cache(config.cache_bytes);
    let options = database_options(config, create);
    let families = FAMILIES
        .map(|(family, name)| ColumnFamilyDescriptor::new(name, family_options(family, config, &cache)));
    let failed = |e| crate::error::database("open the metadata database", &e);
    let db = DB::open_cf_descriptors(&options, path, families).map_err(failed)?;
    for family in [Family::Onodes, Family::Omap] {
        // Only this option is missing in the library's interface for opening.
        let family = db.cf_handle(family_name(family)).expect("invariant: opened with it");
        db.set_options_cf(family, &[("memtable_op_scan_flush_trigger", SCAN_FLUSH_TRIGGER)])
            .map_err(failed)?;
    }
    Ok(db)
}

/// Determines RocksDB's number of a family from a record that its own library writes.
fn family_id(db: &DB, name: &str) -> Result<u32> {
    let unknown = || StoreError::corrupt("metadata database", format!("no column family {name}"));
    let mut batch = WriteBatch::default();
    batch.put_cf(db.cf_handle(name).ok_or_else(unknown)?, b"", b"");
    let record = &batch.data()[BATCH_HEADER_BYTES..];
    let id = match record.first() {
        Some(&TAG_PUT) => varint::FieldReader(&record[1..]).small(),
        _ => None,
    };
    id.ok_or_else(unknown)
}

fn database_options(config: DbConfig, create: bool) -> Options {
    let mut options = Options::default();
    options.create_if_missing(create);
    options.set_error_if_exists(create);
    options.create_missing_column_families(create);
    // Recovery stops cleanly at a torn tail. The watermark is used to check that it reached everything that was synced. The
    // stricter modes can't distinguish a torn tail from damage and do not allow recycling of WAL files.
    options.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
    options.set_track_and_verify_wals_in_manifest(true);
    // A recycled WAL file has its blocks already, so syncing it needs no journal commit of the file system.
    options.set_recycle_log_file_num(RECYCLED_WALS);
    options.set_max_total_wal_size(config.write_buffer_bytes as u64 * 3);
    options.set_max_background_jobs(2);
    options.set_allow_concurrent_memtable_write(false);
    options.set_bytes_per_sync(1 << 20);
    options.set_max_open_files(512);
    options.set_keep_log_file_num(2);
    options.set_max_log_file_size(4 << 20);
    options.set_log_level(LogLevel::Warn);
    options.set_stats_dump_period_sec(0);
    options.set_stats_persist_period_sec(0);
    options.set_skip_stats_update_on_db_open(true);
    options
}

fn family_options(family: Family, config: DbConfig, cache: &Cache) -> Options {
    let busy = !matches!(family, Family::Collections | Family::Shared | Family::Super | Family::AllocDelta);
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(cache);
    table.set_block_size(if family == Family::Onodes { 16 << 10 } else { 8 << 10 });
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    table.set_format_version(6);
    if family != Family::PgLog {
        table.set_bloom_filter(10.0, false);
    }
    let mut options = match family {
        // The library's interface has this option only as text.
        Family::PgLog => Options::default()
            .get_options_from_string(log_insert_hint())
            .expect("invariant: RocksDB knows the option"),
        _ => Options::default(),
    };
    options.add_compact_on_deletion_collector_factory(DELETIONS_WINDOW, DELETIONS_TRIGGER, 0.0);
    if family == Family::FreeList {
        options.set_merge_operator_associative("xor", |_, existing, operands| {
            Some(freelist::merge_values(existing, operands.iter()))
        });
    }
    if family == Family::Onodes {
        // The first write of an object looks for a record that does not exist.
        options.set_memtable_prefix_bloom_ratio(0.02);
        options.set_memtable_whole_key_filtering(true);
    }
    options.set_block_based_table_factory(&table);
    options.set_write_buffer_size(if busy {
        config.write_buffer_bytes
    } else {
        config.write_buffer_bytes / 4
    });
    options.set_max_write_buffer_number(4);
    // Log entries are deleted soon after they were put. With merging before a flush, most of them never reach a file.
    options.set_min_write_buffer_number_to_merge(if family == Family::PgLog { 2 } else { 1 });
    options.set_level_zero_file_num_compaction_trigger(4);
    options.set_level_zero_slowdown_writes_trigger(48);
    options.set_level_zero_stop_writes_trigger(96);
    options.set_soft_pending_compaction_bytes_limit(0);
    options.set_hard_pending_compaction_bytes_limit(0);
    options.set_level_compaction_dynamic_level_bytes(true);
    // Checksums are not compressible.
    options.set_compression_type(if family == Family::Csum {
        DBCompressionType::None
    } else {
        DBCompressionType::Lz4
    });
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_was_filled_by_writes_is_not_filled_ahead() {
        let fresh = || WalPrefill { each: 2, files: 4, chunks: 2, chunk: Vec::new(), left: 100 };
        let mut prefill = fresh();
        assert!(!prefill.count_logged(60) && !prefill.count_logged(39) && prefill.count_logged(1));
        let mut partly_filled = WalPrefill { chunks: 1, ..fresh() };
        assert!(!partly_filled.count_logged(200), "its key is still to be deleted");
        assert_eq!((partly_filled.files, partly_filled.chunks), (1, 0));
    }

    #[test]
    fn a_pool_of_batches_is_bounded_and_gives_empty_ones() {
        let pool = BatchPool::default();
        let batch = |bytes: usize| {
            let mut batch = pool.take();
            batch.put(FamilyIds::default(), Family::Onodes, b"key", &vec![0; bytes]);
            batch
        };
        let small = batch(10);
        let memory = small.raw.as_ptr();
        pool.put([small, batch(POOLED_BYTES), RawBatch::default()].into_iter());
        let again = pool.take();
        assert!(again.is_empty() && again.raw.is_empty() && again.raw.as_ptr() == memory);
        assert_eq!(pool.take().raw.capacity(), 0, "what is large or never was used is not kept");
        let used: Vec<_> = (0..POOLED_BATCHES + 5).map(|_| batch(10)).collect();
        pool.put(used.into_iter());
        assert_eq!(pool.0.lock().len(), POOLED_BATCHES);
    }
}
