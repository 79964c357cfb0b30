//! FileStore: each object's data and attributes in an ordinary file, the rest in RocksDB, with a write-ahead journal.
//!
//! The submitting thread resolves a transaction ([`plan`]) into steps on files and on the database. Reads see the result
//! immediately, as changes pending over the contents of the files ([`read`]). The journal thread ([`queue`]) makes batches of
//! records durable with one write and one fsync, and acknowledges them. The applying thread ([`apply`]) executes the steps,
//! and periodically syncs the file system and trims the journal. Formats: docs/format/filestore.md.
//!
//! # Invariants
//! - Files and database are not changed before the record is durable in the journal. The exception is the files of prepared
//!   clones, which belong to no object before that.
//! - A file's name contains the number of the object's incarnation and is never reused, so steps on files may be repeated.
//! - Journal space is released only after files, database and `commit_op_seq` are durable beyond it.
//! - Every block that is returned to a reader matches the checksum in the object's record.
//! - Lock order: the map of collections, then a collection, then the queue, the directories or the open files. Never two
//!   collections.

mod apply;
mod backend;
mod collection;
mod db;
mod fsck;
mod hash_index;
mod inner;
mod journal;
mod mount;
mod names;
mod object;
mod plan;
mod queue;
mod read;
mod step;
mod sys;

pub use fsck::{FileFinding, FileFsckReport};

use crate::blue::keys;
use crate::error::{Result, StoreError};
use crate::{
    Completion, MountReport, ObjectStat, ObjectStore, Page, ReadStore, SpaceReservation, Statfs, StoreEvents,
};
use apply::Applier;
use bytes::Bytes;
use collection::Collection;
use db::{omap_header_key, omap_key};
use inner::{Inner, attr_value, omap_page};
use mount::Label;
use nacre_common::metrics::Metric;
use nacre_objectstore::superblock::SuperblockFile;
use nacre_types::ids::{Eversion, Incarnation, PgId};
use nacre_types::object::ObjectId;
use nacre_types::txn::{Transaction, TxnOp};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use queue::{StopMode, TxnQueue};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use step::Family;

/// Prefix of the extended attribute that holds an object's attribute, as in Ceph.
const ATTR_PREFIX: &str = "user.ceph.";

/// Configuration of a [`FileStore`]. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct FileStoreConfig {
    /// `osd_journal_size`: size of a new journal.
    pub journal_bytes: u64,
    /// `osd_journal`: path of a new journal, if it is not in the store's directory.
    pub journal_path: Option<PathBuf>,
    /// `filestore_max_sync_interval`: maximum time until changed files are synced.
    pub max_sync_interval: Duration,
    /// `filestore_min_sync_interval`: minimum time between syncs that are due because the journal is half full.
    pub min_sync_interval: Duration,
    /// `filestore_queue_max_bytes`: bytes that may be queued before submitters wait.
    pub queue_bytes: u64,
    /// `filestore_queue_max_ops`: transactions that may be queued before submitters wait.
    pub queue_ops: usize,
    /// `filestore_max_inline_xattr_size`: larger attributes go to the database. 0 selects a value for the file system.
    pub max_inline_xattr_bytes: u64,
    /// `filestore_max_inline_xattrs`: further attributes go to the database. 0 selects a value for the file system.
    pub max_inline_xattrs: u64,
    /// `filestore_split_multiple`: a directory with more than this × |merge threshold| × 16 files is split.
    pub split_multiple: u32,
    /// `filestore_merge_threshold`: directories with fewer files are merged. A negative value disables merging.
    pub merge_threshold: i32,
    /// `filestore_fd_cache_size`: maximum number of files kept open.
    pub open_files: usize,
    /// Maximum number of objects whose records are kept in memory.
    pub cached_objects: usize,
    /// `filestore_device_bytes`: maximum size of objects' data. 0 means the whole file system.
    pub device_bytes: u64,
    /// The fraction of the store, in parts per million, above which [`ObjectStore::reserve`] fails.
    pub full_micro: u32,
    /// `filestore_min_free_bytes`: writes are refused if they would leave less than this free in the file system.
    pub min_free_bytes: u64,
    /// Size of the database's block cache.
    pub db_cache_bytes: usize,
    /// Size of a memtable of a busy column family.
    pub write_buffer_bytes: usize,
}

impl Default for FileStoreConfig {
    fn default() -> Self {
        FileStoreConfig {
            journal_bytes: 512 << 20,
            journal_path: None,
            max_sync_interval: Duration::from_secs(5),
            min_sync_interval: Duration::from_millis(10),
            queue_bytes: 100 << 20,
            queue_ops: 5000,
            max_inline_xattr_bytes: 0,
            max_inline_xattrs: 0,
            split_multiple: 2,
            merge_threshold: -10,
            open_files: 128,
            cached_objects: 16 << 10,
            device_bytes: 0,
            full_micro: 950_000,
            min_free_bytes: 128 << 20,
            db_cache_bytes: 32 << 20,
            write_buffer_bytes: 16 << 20,
        }
    }
}

/// Activity of a store since it was mounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileStoreCounters {
    /// Transactions journalled.
    pub transactions: u64,
    /// Group commits, which are journal entries.
    pub batches: u64,
    /// Calls that waited for the disk.
    pub syncs: u64,
}

#[derive(Debug, Default)]
struct Counters {
    transactions: AtomicU64,
    batches: AtomicU64,
    syncs: AtomicU64,
}

/// A store that keeps objects in plain files, with a journal.
pub struct FileStore {
    mounted: RwLock<Option<Arc<Inner>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    incarnation: Incarnation,
}

impl std::fmt::Debug for FileStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileStore").field("incarnation", &self.incarnation).finish_non_exhaustive()
    }
}

impl FileStore {
    /// Creates an empty store in `directory`. The directory is created if missing and must not hold a store.
    pub fn mkfs(directory: &Path, config: &FileStoreConfig) -> Result<Incarnation> {
        mount::mkfs(directory, config)
    }

    /// Opens the store in `directory` and recovers it from its journal.
    pub fn mount(
        directory: &Path,
        config: FileStoreConfig,
        events: Arc<dyn StoreEvents>,
    ) -> Result<(FileStore, MountReport)> {
        let begun = Instant::now();
        let opened = mount::open(directory, &config)?;
        let mut label = opened.label;
        let clean = label.clean;
        label.clean = false;
        label.write(directory)?;
        let mut collections = BTreeMap::new();
        opened.backend.db.scan(Family::Collections, &[], &[], |key, _| {
            if let Some((coll, [keys::COLLECTION_RECORD])) = keys::split_collection(key) {
                collections.insert(coll, Arc::new(Mutex::new(Collection::new(coll, true))));
            }
            Ok(true)
        })?;
        if opened.replayed > 0 {
            tracing::info!(directory = %directory.display(), records = opened.replayed, "filestore: journal replayed");
        }
        let report = MountReport {
            incarnation: label.incarnation,
            clean,
            loss: opened.loss,
            collections: collections.len() as u64,
            objects: opened.state.usage.values().map(|pool| pool.objects).sum(),
            quarantined_bytes: 0,
            took: begun.elapsed(),
            allocation: None,
        };
        let incarnation = label.incarnation;
        let applier = Applier::new(&opened.state);
        let usage = opened.state.usage.clone();
        let inner = Arc::new(Inner {
            directory: directory.to_owned(),
            current: opened.current,
            label,
            backend: opened.backend,
            journal: opened.journal,
            queue: TxnQueue::new(config.queue_bytes, config.queue_ops, opened.last_seq, usage),
            counters: Counters::default(),
            next_number: AtomicU64::new(opened.state.next_number),
            collections: RwLock::new(collections),
            superblock: Mutex::new(SuperblockFile::open(directory)?),
            reserved: Arc::default(),
            file_system: Mutex::new(None),
            stopped: OnceLock::new(),
            events,
            damaged: Mutex::default(),
            _lock: opened.lock,
            config,
        });
        let journal = spawn("fstore_journal", &inner, queue::run_journal)?;
        let apply = spawn("fstore_apply", &inner, move |inner| apply::run(inner, applier));
        let threads = match apply {
            Ok(apply) => vec![journal, apply],
            Err(error) => {
                inner.queue.end(StopMode::Abandoned);
                return Err(error);
            }
        };
        let store =
            FileStore { mounted: RwLock::new(Some(inner)), threads: Mutex::new(threads), incarnation };
        Ok((store, report))
    }

    /// Checks an unmounted store's consistency after recovering it from its journal. With `deep`, all data is read and
    /// verified.
    pub fn fsck(directory: &Path, config: &FileStoreConfig, deep: bool) -> Result<FileFsckReport> {
        fsck::check(mount::open(directory, config)?, deep)
    }

    /// Activity of the store since it was mounted.
    pub fn counters(&self) -> Result<FileStoreCounters> {
        let inner = self.inner()?;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Ok(FileStoreCounters {
            transactions: read(&inner.counters.transactions),
            batches: read(&inner.counters.batches),
            syncs: read(&inner.counters.syncs),
        })
    }

    fn inner(&self) -> Result<Mounted<'_>> {
        // Recursive, so that a waiting unmount does not block a completion that reads.
        let guard = self.mounted.read_recursive();
        if guard.is_none() { Err(StoreError::NotMounted) } else { Ok(Mounted(guard)) }
    }

    /// Stops the threads and takes the mounted state.
    fn close(&self, end: StopMode) -> Option<Arc<Inner>> {
        let inner = self.mounted.write().take()?;
        inner.queue.end(end);
        for thread in self.threads.lock().drain(..) {
            if thread.join().is_err() {
                inner.stop(StoreError::Invalid("a thread of the store panicked"));
            }
        }
        Some(inner)
    }
}

fn spawn(
    name: &str,
    inner: &Arc<Inner>,
    run: impl FnOnce(&Inner) + Send + 'static,
) -> Result<JoinHandle<()>> {
    let inner = Arc::clone(inner);
    std::thread::Builder::new()
        .name(name.into())
        .spawn(move || {
            let _stop = StopOnPanic(&inner);
            run(&inner);
        })
        .map_err(|e| StoreError::io("start a thread of the store", &e))
}

/// Stops the store if one of its threads panics. Otherwise commits would wait forever, without a message.
struct StopOnPanic<'a>(&'a Inner);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop(StoreError::Invalid("a thread of the store panicked"));
        }
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        self.close(StopMode::Abandoned);
    }
}

/// A call's read guard on the mounted store.
struct Mounted<'a>(RwLockReadGuard<'a, Option<Arc<Inner>>>);

impl std::ops::Deref for Mounted<'_> {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        self.0.as_ref().expect("invariant: checked when the guard was taken")
    }
}

impl ObjectStore for FileStore {
    fn kind(&self) -> &'static str {
        "filestore"
    }

    fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    fn queue_transaction(&self, txn: &Transaction, on_commit: Option<Completion>) -> Result<()> {
        let inner = self.inner()?;
        inner.check_running()?;
        inner.queue.wait_for_room(&inner)?;
        let creates = || txn.ops.iter().any(|op| matches!(op, TxnOp::CreateCollection));
        let shared = match inner.collection(txn.collection) {
            Err(StoreError::NoCollection(_)) if creates() => inner.collection_or_new(txn.collection),
            other => other?,
        };
        let limit = inner.collection_cache_limit();
        let mut collection = shared.lock();
        plan::TxnPlanner::new(&inner, &mut collection).run(txn, Arc::clone(&shared), on_commit)?;
        collection.trim(limit, inner.queue.applied());
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        let inner = self.inner()?;
        inner.queue.flush(&inner)
    }

    fn umount(&self) -> Result<()> {
        let inner = self.close(StopMode::Drained).ok_or(StoreError::NotMounted)?;
        inner.check_running()?;
        Label { clean: true, ..inner.label.clone() }.write(&inner.directory)
    }

    fn stopped(&self) -> Option<StoreError> {
        self.inner().ok().and_then(|inner| inner.stopped.get().cloned())
    }

    fn health(&self) -> Vec<(String, String)> {
        let Ok(inner) = self.inner() else { return Vec::new() };
        let mut health = Vec::new();
        let damaged = inner.damaged.lock().len();
        if damaged > 0 {
            let text = format!("{damaged} objects are damaged on this store");
            health.push(("FILESTORE_DAMAGED".into(), text));
        }
        if inner.file_system_room().is_ok_and(|room| room == 0) {
            let text = "the file system is full, writes are refused";
            health.push(("FILESTORE_FULL".into(), text.into()));
        }
        if let Some(error) = inner.stopped.get() {
            health.push(("FILESTORE_STOPPED".into(), error.to_string()));
        }
        health
    }

    fn metrics(&self, out: &mut Vec<Metric>) {
        let (Ok(usage), Ok(counters)) = (self.statfs(), self.counters()) else { return };
        let Ok(inner) = self.inner() else { return };
        let gauge = |name, help, value| Metric::gauge("filestore", name, help, value);
        let counter = |name, help, value| Metric::counter("filestore", name, help, value);
        out.push(counter("txc", "Transactions journalled", counters.transactions));
        out.push(counter("journal_wr", "Entries written to the journal", counters.batches));
        out.push(counter("syncs", "Calls that waited for the disk", counters.syncs));
        out.push(gauge("journal_used_bytes", "Bytes of the journal in use", inner.journal.used()));
        out.push(gauge("allocated", "Bytes allocated for objects' data", usage.allocated_bytes));
        out.push(gauge("stored", "Bytes of objects' data as written", usage.stored_bytes));
    }

    fn compact(&self, progress: &mut dyn FnMut(&str, usize, usize)) -> Result<()> {
        let inner = self.inner()?;
        inner.check_running()?;
        inner.backend.db.compact(progress);
        inner.check_running()
    }

    fn statfs(&self) -> Result<Statfs> {
        let inner = self.inner()?;
        inner.check_running()?;
        let pools = inner.queue.usage();
        let database = &inner.backend.db;
        Ok(Statfs {
            total_bytes: inner.total_bytes(),
            available_bytes: inner.available_bytes(),
            allocated_bytes: pools.values().map(|pool| pool.allocated_bytes).sum(),
            stored_bytes: pools.values().map(|pool| pool.stored_bytes).sum(),
            omap_bytes: database.estimated_bytes(Family::Omap),
            meta_bytes: [Family::Objects, Family::Sums, Family::Attrs, Family::Log, Family::Collections]
                .map(|family| database.estimated_bytes(family))
                .iter()
                .sum(),
            pools,
        })
    }

    fn reserve(&self, bytes: u64) -> Result<SpaceReservation> {
        let inner = self.inner()?;
        inner.check_running()?;
        let (total, available) = (inner.total_bytes(), inner.available_bytes());
        let kept = (u128::from(total) * u128::from(1_000_000 - inner.config.full_micro.min(1_000_000))
            / 1_000_000) as u64;
        let available = available.saturating_sub(kept).saturating_sub(inner.reserved.load(Ordering::Relaxed));
        if bytes > available {
            return Err(StoreError::NoSpace { wanted_bytes: bytes, available_bytes: available });
        }
        Ok(SpaceReservation::new(&inner.reserved, bytes))
    }

    fn super_get(&self, key: &str) -> Result<Option<Bytes>> {
        let inner = self.inner()?;
        inner.check_running()?;
        Ok(inner.superblock.lock().get(key))
    }

    fn super_set(&self, values: &[(&str, Option<Bytes>)]) -> Result<()> {
        let inner = self.inner()?;
        inner.check_running()?;
        inner.counters.syncs.fetch_add(1, Ordering::Relaxed);
        inner.superblock.lock().set(values).map_err(|error| inner.stop(error))
    }

    fn super_list(&self, prefix: &str) -> Result<Vec<(String, Bytes)>> {
        let inner = self.inner()?;
        inner.check_running()?;
        Ok(inner.superblock.lock().list(prefix))
    }
}

impl ReadStore for FileStore {
    fn read(&self, coll: PgId, oid: &ObjectId, offset: u64, len: u64) -> Result<Bytes> {
        let inner = self.inner()?;
        inner.with(coll, |collection| {
            let id = collection.id;
            let entry = inner.existing(collection, oid)?;
            let size = entry.object.as_ref().map_or(0, |object| object.size);
            inner.read_object(id, oid, entry, offset.min(size), len.min(size.saturating_sub(offset)))
        })
    }

    fn extents(&self, coll: PgId, oid: &ObjectId, offset: u64, len: u64) -> Result<Vec<(u64, u64)>> {
        let inner = self.inner()?;
        inner.with(coll, |collection| {
            let entry = inner.existing(collection, oid)?;
            let Some(object) = &mut entry.object else { return Ok(Vec::new()) };
            let end = offset.saturating_add(len).min(object.size);
            if offset >= end {
                return Ok(Vec::new());
            }
            object.load_sums(&inner.backend.db, oid, offset, end)?;
            Ok(object.extents(offset, end))
        })
    }

    fn stat(&self, coll: PgId, oid: &ObjectId) -> Result<ObjectStat> {
        let inner = self.inner()?;
        inner.with(coll, |collection| {
            let entry = inner.existing(collection, oid)?;
            let object = entry.object.as_ref();
            Ok(object.map_or_else(ObjectStat::default, |o| ObjectStat { size: o.size, has_omap: o.has_omap }))
        })
    }

    fn get_attr(&self, coll: PgId, oid: &ObjectId, name: &str) -> Result<Option<Bytes>> {
        let inner = self.inner()?;
        inner.with(coll, |collection| {
            let entry = inner.existing(collection, oid)?;
            let attr = entry.object.as_ref().and_then(|object| object.attr(name));
            attr.map(|attr| attr_value(oid, attr)).transpose()
        })
    }

    fn get_attrs(&self, coll: PgId, oid: &ObjectId) -> Result<Vec<(String, Bytes)>> {
        let inner = self.inner()?;
        inner.with(coll, |collection| {
            let entry = inner.existing(collection, oid)?;
            let attrs = entry.object.iter().flat_map(|object| &object.attrs);
            attrs.map(|attr| Ok((attr.name.to_string(), attr_value(oid, attr)?))).collect()
        })
    }

    fn omap_get_header(&self, coll: PgId, oid: &ObjectId) -> Result<Bytes> {
        let inner = self.inner()?;
        inner.with_applied_omap(coll, oid, |number| {
            let Some(number) = number else { return Ok(Bytes::new()) };
            Ok(inner.backend.db.get(Family::Omap, &omap_header_key(number))?.unwrap_or_default())
        })
    }

    fn omap_get(&self, coll: PgId, oid: &ObjectId, keys: &[Bytes]) -> Result<Vec<(Bytes, Bytes)>> {
        let inner = self.inner()?;
        inner.with_applied_omap(coll, oid, |number| {
            let Some(number) = number else { return Ok(Vec::new()) };
            let wanted: Vec<_> = keys.iter().map(|key| omap_key(number, key)).collect();
            let values = inner.backend.db.get_many(Family::Omap, &wanted)?;
            let found = keys.iter().zip(values);
            Ok(found.filter_map(|(key, value)| Some((key.clone(), value?))).collect())
        })
    }

    fn omap_iterate(
        &self,
        coll: PgId,
        oid: &ObjectId,
        start_after: Option<&[u8]>,
        prefix: &[u8],
        max: usize,
        max_bytes: usize,
    ) -> Result<Page<(Bytes, Bytes)>> {
        let take = |key: &[u8], value: &[u8]| {
            ((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)), key.len() + value.len())
        };
        let inner = self.inner()?;
        inner.with_applied_omap(coll, oid, |number| {
            omap_page(&inner, number, start_after, prefix, max, max_bytes, take)
        })
    }

    fn omap_get_keys(
        &self,
        coll: PgId,
        oid: &ObjectId,
        start_after: Option<&[u8]>,
        prefix: &[u8],
        max: usize,
        max_bytes: usize,
    ) -> Result<Page<Bytes>> {
        let take = |key: &[u8], _: &[u8]| (Bytes::copy_from_slice(key), key.len());
        let inner = self.inner()?;
        inner.with_applied_omap(coll, oid, |number| {
            omap_page(&inner, number, start_after, prefix, max, max_bytes, take)
        })
    }

    fn list_objects(
        &self,
        coll: PgId,
        from: &ObjectId,
        to: Option<&ObjectId>,
        max: usize,
    ) -> Result<Page<ObjectId>> {
        let inner = self.inner()?;
        inner.with(coll, |collection| inner.list(collection, from, to, max))
    }

    fn list_collections(&self) -> Result<Vec<PgId>> {
        let inner = self.inner()?;
        inner.check_running()?;
        let collections = inner.collections.read();
        Ok(collections.iter().filter(|(_, coll)| coll.lock().exists).map(|(id, _)| *id).collect())
    }

    fn collection_exists(&self, coll: PgId) -> Result<bool> {
        match self.inner()?.with(coll, |_| Ok(())) {
            Ok(()) => Ok(true),
            Err(StoreError::NoCollection(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn collection_meta(&self, coll: PgId) -> Result<Vec<(String, Bytes)>> {
        let inner = self.inner()?;
        inner.with_applied_meta(coll, |_| {
            let first = keys::collection_meta(coll, "");
            let mut found = Vec::new();
            inner.backend.db.scan(Family::Collections, &first, &keys::prefix_end(&first), |key, value| {
                let name = std::str::from_utf8(&key[first.len()..])
                    .map_err(|_| StoreError::corrupt("name of a collection's value", "undecodable"))?;
                found.push((name.to_owned(), Bytes::copy_from_slice(value)));
                Ok(true)
            })?;
            Ok(found)
        })
    }

    fn read_log(&self, coll: PgId, after: Eversion, max: usize) -> Result<Vec<(Eversion, Bytes)>> {
        let inner = self.inner()?;
        inner.with_applied_meta(coll, |_| {
            let first = match after {
                after if after == Eversion::default() => keys::collection(coll).to_vec(),
                after => [&keys::log(coll, after)[..], &[0]].concat(),
            };
            let mut found = Vec::new();
            if max == 0 {
                return Ok(found);
            }
            inner.backend.db.scan(Family::Log, &first, &keys::collection_end(coll), |key, value| {
                let (_, version) = keys::split_log(key)
                    .ok_or_else(|| StoreError::corrupt("key of a log entry", "undecodable"))?;
                found.push((version, Bytes::copy_from_slice(value)));
                Ok(found.len() < max)
            })?;
            Ok(found)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IgnoreEvents;
    use nacre_types::ids::PoolId;

    #[test]
    fn reads_keep_no_more_records_than_they_may() {
        let directory = tempfile::tempdir().unwrap();
        let config = FileStoreConfig {
            cached_objects: 64,
            journal_bytes: 4 << 20,
            min_free_bytes: 0,
            ..FileStoreConfig::default()
        };
        FileStore::mkfs(directory.path(), &config).unwrap();
        let mount = || FileStore::mount(directory.path(), config.clone(), Arc::new(IgnoreEvents)).unwrap().0;
        let coll = PgId::new(PoolId(3), 0);
        let oid = |number: u64| ObjectId::new(PoolId(3), "", "", &format!("object {number}"));
        let store = mount();
        let touch = (0..300).map(|number| TxnOp::Touch(oid(number)));
        let ops = std::iter::once(TxnOp::CreateCollection).chain(touch).collect();
        store.queue_transaction(&Transaction { collection: coll, ops }, None).unwrap();
        store.umount().unwrap();
        let store = mount();
        let cached = || store.inner().unwrap().with(coll, |collection| Ok(collection.entries.len())).unwrap();
        for number in 0..300 {
            assert_eq!(store.stat(coll, &oid(number)).unwrap(), ObjectStat::default());
            assert!(cached() <= 64, "{} records after {number} reads", cached());
        }
        let before = cached();
        for number in 300..310 {
            assert!(matches!(store.stat(coll, &oid(number)), Err(StoreError::NotFound(_))));
            let remove = TxnOp::Remove(oid(number));
            let txn = Transaction { collection: coll, ops: vec![remove] };
            store.queue_transaction(&txn, None).unwrap();
        }
        assert_eq!(cached(), before, "an absent object has no record");
        store.umount().unwrap();
    }
}
