//! BlueStore: data in the blocks of a file or device, metadata in RocksDB.
//!
//! A transaction is applied on the submitting thread ([`apply`], [`extents`]): new data gets fresh blocks and
//! checksums, changed records are encoded, and reads see the result immediately through the collection's caches
//! and overlays ([`collection`]). The commit thread ([`commit`]) makes whole batches durable: data, flush, database.
//! Formats: docs/format/bluestore.md.
//!
//! # Invariants
//! - Records refer to data only after it is durable, in its place or as a deferred copy. A block that a record refers to is
//!   overwritten only when a copy of the new data is durable and no read that began before is in progress.
//! - A released block is allocated again only after the releasing batch is durable and no read that began before is
//!   in progress ([`reclaim`]).
//! - Only the commit thread writes to the database while the store is mounted.
//! - Lock order: a collection, then the queue, the allocator or the gate. Never two of the latter at once, never two
//!   collections.

mod aligned;
mod alloc;
mod allocation;
mod apply;
mod blob_kind;
mod calls;
mod collection;
mod commit;
mod compression;
mod db;
mod deferred;
mod deferred_writer;
mod device;
mod discard;
mod expand;
mod extents;
mod fill;
mod fsck;
pub(crate) mod keys;
mod label;
mod mount;
pub(crate) mod offline;
mod omap;
mod onode;
mod overlay_trim;
mod overwrite;
mod read;
mod reclaim;
mod recovery;
mod repair;
mod state;
mod varint;

pub use fill::FillPlan;
pub use fsck::{FsckFinding, FsckReport};
pub use label::LabelInfo;
pub use recovery::{RecoveredAllocation, ScanStats};
pub use repair::RepairReport;

use crate::error::{Result, StoreError};
use crate::{DataOptions, MountReport, StoreEvents};
use alloc::Allocator;
use allocation::checkpoint_worker::CheckpointWorker;
use allocation::file::Expected;
use allocation::ledger::FreelistManager;
use allocation::{SpaceAccounting, start};
use collection::Collection;
use commit::{CommitCounters, CommitQueue, Committer};
use db::{BatchPool, Db, Family, FamilyIds, RawBatch};
use deferred_writer::DeferredWriter;
use device::Device;
use discard::DiscardQueue;
use label::FIRST_DATA_BLOCK;
use nacre_objectstore::files::StoreLock;
use nacre_types::ids::{Eversion, Incarnation, Interval, PgId, PoolId};
use nacre_types::object::ObjectId;
use onode::{BLOCK_BYTES, Onode, Run};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
use reclaim::BlockReclaimer;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Greater than every version of a log.
const LAST_VERSION: Eversion = Eversion { interval: Interval(u64::MAX), version: u64::MAX };
/// Number of bytes that trimming the cache frees in addition to the excess over its limit.
const TRIM_BYTES: i64 = 64 << 10;
/// Maximum number of damaged blobs that are remembered as logged.
const MAX_DAMAGED: usize = 1024;

/// Configuration of a [`BlueStore`]. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct BlueStoreConfig {
    /// `bluestore_cache_size`: memory for onodes and data.
    pub cache_bytes: u64,
    /// Size of the database's block cache.
    pub db_cache_bytes: usize,
    /// Size of a memtable of a busy column family.
    pub write_buffer_bytes: usize,
    /// `bluestore_wal_prefill`: whether to fill the database's log files in advance after mounting, so that syncing them is cheap
    /// from the first write on.
    pub wal_prefill: bool,
    /// `bluestore_throttle_bytes`: bytes that may be queued before submitters wait.
    pub queue_bytes: u64,
    /// `bluestore_prefer_deferred_size`: writes of up to this size go through the database's log, which saves a flush of the
    /// device. 0 defers no writes.
    pub prefer_deferred_bytes: u64,
    /// `bluestore_allocation_from_file`: the allocator is saved in a file at a clean shutdown; before that, nothing of it is
    /// written that compactions must carry. If off, all its changes are written to the database, as in earlier versions of
    /// Ceph.
    pub allocation_from_file: bool,
    /// `bluestore_allocation_recovery_threads`: number of threads for the scan of all objects, if one is needed. 0 selects
    /// the simple scan.
    pub recovery_threads: usize,
    /// `bluestore_allocation_checkpoint_bytes`: bytes of allocation deltas after which a checkpoint is written. 0 disables
    /// deltas, so that a start after a crash scans all objects.
    pub checkpoint_bytes: u64,
    /// `bluestore_min_alloc_size`: allocation unit of new stores, a power of two from 4096 to 65536.
    pub min_alloc_bytes: u64,
    /// `bluestore_block_db_path`: directory for the database of new stores. If not set, it is in the store's directory.
    pub db_path: Option<PathBuf>,
    /// `bdev_enable_discard`: whether to tell the device about freed blocks.
    pub discard: bool,
    /// Number of bytes by which the space taken from the file system grows at a time.
    pub grow_bytes: u64,
    /// Minimum interval between watermarks of durable metadata while the store is active.
    pub watermark_interval: Duration,
    /// The fraction of the store, in parts per million, above which `ObjectStore::reserve` fails.
    pub full_micro: u32,
    /// Size of the ballast file, which is removed when the file system runs full.
    pub ballast_bytes: u64,
    /// Minimum free space in the database's file system. Below it the store reports no available space and
    /// `ObjectStore::reserve` fails; below half of it, transactions that write data are refused.
    pub db_min_free_bytes: u64,
}

impl Default for BlueStoreConfig {
    fn default() -> Self {
        BlueStoreConfig {
            cache_bytes: 256 << 20,
            db_cache_bytes: 64 << 20,
            write_buffer_bytes: 32 << 20,
            wal_prefill: false,
            queue_bytes: 64 << 20,
            prefer_deferred_bytes: 32 << 10,
            allocation_from_file: true,
            recovery_threads: std::thread::available_parallelism().map_or(1, usize::from),
            checkpoint_bytes: 8 << 20,
            min_alloc_bytes: BLOCK_BYTES,
            db_path: None,
            discard: false,
            grow_bytes: 64 << 20,
            watermark_interval: Duration::from_millis(100),
            full_micro: 950_000,
            ballast_bytes: 32 << 20,
            db_min_free_bytes: 128 << 20,
        }
    }
}

/// Activity of a store since it was mounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlueStoreCounters {
    /// Transactions committed.
    pub transactions: u64,
    /// Group commits. Each is one synced database write.
    pub batches: u64,
    /// Flushes of the block device.
    pub device_flushes: u64,
    /// Checkpoints of the allocator.
    pub checkpoints: u64,
    /// Bytes that the device was told to discard.
    pub discarded_bytes: u64,
}

/// A store on a block file or device with a metadata database.
pub struct BlueStore {
    mounted: RwLock<Option<Arc<Inner>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Held during a compaction of the database, which outlasts the mounted state that it compacts.
    compacting: Mutex<()>,
    incarnation: Incarnation,
}

impl std::fmt::Debug for BlueStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlueStore").field("incarnation", &self.incarnation).finish_non_exhaustive()
    }
}

/// The mounted store, shared with the commit thread.
struct Inner {
    config: BlueStoreConfig,
    directory: PathBuf,
    uuid: uuid::Uuid,
    device: Device,
    db: Db,
    ids: FamilyIds,
    space: Mutex<Allocator>,
    device_blocks: u64,
    /// Blocks per allocation unit.
    unit_blocks: u64,
    discards: DiscardQueue,
    gate: BlockReclaimer,
    queue: CommitQueue,
    batches: BatchPool,
    placer: DeferredWriter,
    checkpoints: CheckpointWorker,
    counters: CommitCounters,
    next_id: AtomicU64,
    /// Removed collections stay in the map, marked as removed, until all their changes are committed.
    collections: RwLock<BTreeMap<PgId, Arc<Mutex<Collection>>>>,
    /// The options for new data by pool. `data_version` is incremented with each change.
    data_options: RwLock<BTreeMap<PoolId, DataOptions>>,
    data_version: AtomicU64,
    cache_used: AtomicI64,
    cache_hand: AtomicUsize,
    /// The collection that was settled last, in rotation.
    settle_turn: Mutex<Option<PgId>>,
    reserved: Arc<AtomicU64>,
    /// Whether the database's file system is low on space: no available space is reported and reservations fail.
    db_full: AtomicBool,
    /// Whether it is so low that transactions are refused too.
    db_exhausted: AtomicBool,
    /// Free bytes of the file system, and when they were measured.
    file_system: Mutex<Option<(Instant, u64)>>,
    stopped: OnceLock<StoreError>,
    events: Arc<dyn StoreEvents>,
    scan_health: Vec<(String, String)>,
    /// Whether released blocks did not match allocated ones, or a scan withheld blocks. The next start must then scan.
    suspicious: AtomicBool,
    damaged: Mutex<HashSet<u64>>,
    /// Whether the store is being closed, so that a compaction must end.
    ending: AtomicBool,
    /// Held while the store is mounted.
    _lock: StoreLock,
}

impl BlueStore {
    /// Creates an empty store of `size_bytes` in `directory`, in the file `block` (created sparse) or in the target of a symbolic
    /// link of that name.
    pub fn mkfs(directory: &Path, size_bytes: u64, config: &BlueStoreConfig) -> Result<Incarnation> {
        mount::mkfs(directory, size_bytes, config)
    }

    /// Opens the store in `directory`.
    pub fn mount(
        directory: &Path,
        config: BlueStoreConfig,
        events: Arc<dyn StoreEvents>,
    ) -> Result<(BlueStore, MountReport)> {
        let begun = Instant::now();
        let mut opened = mount::open(directory, &config)?;
        let collections = mount::load_collections(&opened.db)?;
        let mut known = start::load_allocation(&opened, &config, &*events)?;
        let mut batch = RawBatch::default();
        mount::raise_high_water_marks(&mut opened, &known, &mut batch);
        let recording =
            start::start_recording(&opened, &config, opened.state.frontier, &mut known, &mut batch)?;
        mount::mark_mounted(&opened, batch)?;
        let incarnation = opened.state.incarnation;
        let device_blocks = opened.label.size / BLOCK_BYTES;
        let SpaceAccounting { used, usage, objects } = std::mem::take(&mut known.accounting);
        let mut allocator =
            Allocator::with_used(used, FIRST_DATA_BLOCK, opened.state.frontier, device_blocks);
        known.findings.quarantine(&mut allocator);
        if let Some(loss) = &opened.loss {
            tracing::error!(directory = %directory.display(), %incarnation, "bluestore: {loss}");
        }
        let report = MountReport {
            incarnation,
            clean: opened.state.clean,
            loss: opened.loss,
            collections: collections.len() as u64,
            objects: objects.values().sum(),
            quarantined_bytes: allocator.quarantined_blocks() * BLOCK_BYTES,
            took: begun.elapsed(),
            allocation: Some(known.source),
        };
        let state = opened.state;
        let collections = collections.into_iter().map(|(id, mut collection)| {
            collection.objects = objects.get(&id).copied().unwrap_or(0);
            (id, Arc::new(Mutex::new(collection)))
        });
        let inner = Arc::new(Inner {
            directory: directory.to_owned(),
            uuid: opened.label.uuid,
            device: opened.device,
            ids: opened.db.ids(),
            db: opened.db,
            space: Mutex::new(allocator),
            device_blocks,
            unit_blocks: state.unit_blocks,
            discards: DiscardQueue::new(config.discard),
            gate: BlockReclaimer::default(),
            queue: CommitQueue::new(config.queue_bytes, usage.clone()),
            batches: BatchPool::default(),
            placer: DeferredWriter::default(),
            checkpoints: CheckpointWorker::default(),
            counters: CommitCounters::default(),
            next_id: AtomicU64::new(state.id_max),
            collections: RwLock::new(collections.collect()),
            data_options: RwLock::default(),
            data_version: AtomicU64::new(0),
            cache_used: AtomicI64::new(0),
            cache_hand: AtomicUsize::new(0),
            settle_turn: Mutex::default(),
            reserved: Arc::default(),
            db_full: AtomicBool::new(false),
            db_exhausted: AtomicBool::new(false),
            file_system: Mutex::new(None),
            stopped: OnceLock::new(),
            events,
            scan_health: known.findings.health(),
            suspicious: AtomicBool::new(!known.findings.is_empty()),
            damaged: Mutex::default(),
            ending: AtomicBool::new(false),
            _lock: opened.lock,
            config,
        });
        inner.check_file_system();
        let id_max = state.id_max + commit::ID_PREALLOC;
        let ledger = FreelistManager::new(
            recording.scheme,
            recording.position,
            recording.delta_bytes,
            usage,
            recording.limit_bytes,
        );
        let prefill =
            inner.config.wal_prefill.then(|| inner.db.plan_wal_prefill(inner.config.write_buffer_bytes));
        let committer =
            Committer::new(opened.watermark, inner.db.sequence(), id_max, state.frontier, ledger, prefill);
        let store = BlueStore {
            mounted: RwLock::new(Some(Arc::clone(&inner))),
            threads: Mutex::default(),
            compacting: Mutex::default(),
            incarnation,
        };
        if let Some(checkpoint) = recording.checkpoint {
            store.spawn("bstore_ckpt", &inner, |inner| inner.checkpoints.run(inner, checkpoint))?;
        }
        if inner.config.discard {
            store.spawn("bstore_discard", &inner, |inner| inner.discards.run(inner))?;
        }
        store.spawn("bstore_placer", &inner, |inner| inner.placer.run(inner))?;
        store.spawn("bstore_commit", &inner, |inner| committer.run(inner))?;
        Ok((store, report))
    }

    /// Checks an unmounted store's consistency. With `deep`, all data is read and verified.
    pub fn fsck(directory: &Path, config: &BlueStoreConfig, deep: bool) -> Result<FsckReport> {
        fsck::check(&mount::open(directory, config)?, deep)
    }

    /// Like [`BlueStore::fsck`], and repairs findings that can be repaired without guessing.
    pub fn repair(directory: &Path, config: &BlueStoreConfig, deep: bool) -> Result<RepairReport> {
        repair::repair(directory, config, deep)
    }

    /// Extends an unmounted store to the size that its device has grown to. Returns the store's size before and
    /// after, in bytes.
    pub fn expand(directory: &Path, config: &BlueStoreConfig) -> Result<(u64, u64)> {
        expand::expand(directory, config)
    }

    /// Reads the label of the device in `directory`. The store may be in use.
    pub fn label(directory: &Path) -> Result<LabelInfo> {
        LabelInfo::read(directory)
    }

    /// Activity of the store since it was mounted.
    pub fn counters(&self) -> Result<BlueStoreCounters> {
        let inner = self.inner()?;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Ok(BlueStoreCounters {
            transactions: read(&inner.counters.transactions),
            batches: read(&inner.counters.batches),
            device_flushes: read(&inner.counters.flushes),
            checkpoints: inner.checkpoints.checkpoints(),
            discarded_bytes: inner.discards.discarded_bytes(),
        })
    }

    fn spawn(&self, name: &str, inner: &Arc<Inner>, run: impl FnOnce(&Inner) + Send + 'static) -> Result<()> {
        let inner = Arc::clone(inner);
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                let _stop = StopOnPanic(&inner);
                run(&inner);
            })
            .map_err(|e| StoreError::io("start a thread", &e))?;
        self.threads.lock().push(thread);
        Ok(())
    }

    fn inner(&self) -> Result<Mounted<'_>> {
        // Recursive, so that a waiting unmount does not block a completion that reads.
        let guard = self.mounted.read_recursive();
        if guard.is_none() { Err(StoreError::NotMounted) } else { Ok(Mounted(guard)) }
    }

    /// Stops the threads and takes the mounted state.
    fn close(&self, drain: bool) -> Option<Arc<Inner>> {
        let inner = self.mounted.write().take()?;
        inner.ending.store(true, Ordering::Release);
        inner.queue.end(drain);
        // The commit thread ends first, because it may wait for a checkpoint. It was started last.
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads.into_iter().rev() {
            if thread.join().is_err() {
                inner.stop(StoreError::Invalid("a thread of the store panicked"));
            }
            inner.checkpoints.end();
            inner.discards.end();
            inner.placer.end();
        }
        inner.release(inner.discards.drain());
        Some(inner)
    }

    /// Ends a running compaction of the closed store, which holds the last other reference to the store's files and
    /// lock. Nothing may be written after this.
    fn end_compaction(&self, closed: &Inner) {
        closed.db.cancel_compactions();
        drop(self.compacting.lock());
    }
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

impl Drop for BlueStore {
    fn drop(&mut self) {
        if let Some(inner) = self.close(false) {
            self.end_compaction(&inner);
        }
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

impl Inner {
    /// Fails if the store has stopped.
    fn check(&self) -> Result<()> {
        match self.stopped.get() {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Stops the store permanently. Returns the error for all later calls.
    fn stop(&self, error: StoreError) -> StoreError {
        let stopped = StoreError::Stopped(error.to_string().into());
        if self.stopped.set(stopped.clone()).is_ok() {
            tracing::error!(directory = %self.directory.display(), %error, "bluestore: stopped");
            self.events.fatal(&error);
        }
        stopped
    }

    /// Records damage, and logs it once per blob. Returns `error`.
    fn damaged(&self, id: u64, error: StoreError) -> StoreError {
        let mut damaged = self.damaged.lock();
        if damaged.len() < MAX_DAMAGED && damaged.insert(id) {
            tracing::error!(directory = %self.directory.display(), %error, "bluestore: damaged");
        }
        error
    }

    fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Checks whether a transaction may begin. Transactions are refused later than reservations: a member of a PG must apply what
    /// was ordered before the other members learn that it has no space left.
    fn admit(&self, writes_no_data: bool) -> Result<()> {
        self.check()?;
        if self.db_exhausted.load(Ordering::Relaxed) && !writes_no_data {
            return Err(StoreError::NoSpace { wanted_bytes: 0, available_bytes: 0 });
        }
        Ok(())
    }

    /// Allocates blocks, and takes more space from the file system if necessary.
    fn allocate(&self, blocks: u64, max_run: u64, out: &mut Vec<Run>) -> Result<()> {
        let mut space = self.space.lock();
        let unit = (self.config.grow_bytes / BLOCK_BYTES).max(1);
        // Grows early, while the free space is still contiguous enough for large writes.
        if space.free_blocks() < blocks + unit / 4 && space.blocks_above_frontier() > 0 {
            let from = space.frontier();
            let to = (from + unit.max(blocks)).min(self.device_blocks);
            match self.device.ensure_allocated(from * BLOCK_BYTES, to * BLOCK_BYTES) {
                Ok(()) => space.extend_frontier(to),
                Err(error) if space.free_blocks() >= blocks => {
                    tracing::debug!(%error, "bluestore: can't grow")
                }
                Err(error) => tracing::warn!(%error, "bluestore: can't grow"),
            }
        }
        let first = out.len();
        let mut taken = space.allocate(blocks, max_run, out);
        if !taken && self.config.discard {
            // Takes the blocks that wait to be discarded.
            drop(space);
            self.release(self.discards.drain());
            space = self.space.lock();
            taken = space.allocate(blocks, max_run, out);
        }
        if taken {
            return if self.punches() { self.provide(space, first, out) } else { Ok(()) };
        }
        let available_bytes = space.free_blocks() * BLOCK_BYTES;
        drop(space);
        self.queue.request_deferred_flush();
        Err(StoreError::NoSpace { wanted_bytes: blocks * BLOCK_BYTES, available_bytes })
    }

    /// Whether freed space is returned to the file system.
    fn punches(&self) -> bool {
        self.config.discard && !self.device.is_block_device()
    }

    /// Allocates space in the file system for the runs from `first` on, because it may have been returned there.
    fn provide(&self, space: MutexGuard<'_, Allocator>, first: usize, out: &mut Vec<Run>) -> Result<()> {
        drop(space);
        for run in &out[first..] {
            let (from, to) = (run.start * BLOCK_BYTES, (run.start + run.blocks) * BLOCK_BYTES);
            if let Err(error) = self.device.ensure_allocated(from, to) {
                tracing::warn!(%error, "bluestore: no space for blocks that were given back");
                // The blocks belong to no object. Returning them also returns the space that was taken for them.
                let taken: Vec<Run> = out.drain(first..).collect();
                let wanted_bytes = taken.iter().map(|run| run.blocks * BLOCK_BYTES).sum();
                self.give_back(taken);
                return Err(StoreError::NoSpace { wanted_bytes, available_bytes: self.device_room() });
            }
        }
        Ok(())
    }

    /// Releases blocks that may be reused according to rule B1, through the discard queue.
    fn give_back(&self, runs: Vec<Run>) {
        self.release(self.discards.enqueue(runs));
    }

    fn release(&self, runs: Vec<Run>) {
        if !runs.is_empty() {
            let mut space = self.space.lock();
            for run in runs {
                if !space.release(run) {
                    tracing::error!(?run, "bluestore: blocks were freed that were free already; withheld");
                    self.suspicious.store(true, Ordering::Relaxed);
                }
            }
        }
    }

    /// Loads the versions of a collection's log entries, if they are not loaded yet.
    fn load_log(&self, coll: &mut Collection) -> Result<()> {
        if !coll.log.is_unloaded() {
            return Ok(());
        }
        let first = keys::log(coll.id, Eversion::default());
        let mut range = self.db.range(Family::PgLog, &first, Some(keys::collection_end(coll.id)));
        while let Some((key, _)) = range.next()? {
            if let Some((_, version)) = keys::split_log(key) {
                coll.log.insert_stored(version);
            }
        }
        coll.log.set_loaded();
        Ok(())
    }

    /// Saves the allocator of a store that has committed everything.
    fn save_allocation(&self) -> Result<()> {
        let (used, frontier) = {
            let space = self.space.lock();
            (space.used_bitmap(FIRST_DATA_BLOCK), space.frontier())
        };
        let collections = self.collections.read();
        let objects = collections.iter().filter_map(|(id, collection)| {
            let collection = collection.lock();
            (!collection.removed).then_some((*id, collection.objects))
        });
        let accounting = SpaceAccounting { used, usage: self.queue.usage(), objects: objects.collect() };
        let expected = Expected { uuid: self.uuid, position: 0, frontier, device_blocks: self.device_blocks };
        start::save(&self.directory, &self.db, &accounting, expected)
    }

    /// Writes the state for a fast start, after everything is committed.
    fn save(&self) -> Result<()> {
        self.check()?;
        let suspicious = self.suspicious.load(Ordering::Relaxed);
        if self.config.allocation_from_file
            && !suspicious
            && let Err(error) = self.save_allocation()
        {
            // The next start uses the checkpoint and deltas, or scans.
            tracing::warn!(%error, "bluestore: the allocation file could not be written");
        }
        let (ids, mut batch) = (self.ids, RawBatch::default());
        batch.put(ids, Family::Super, state::CLEAN, &[1]);
        if suspicious {
            start::mark_invalid(&self.db, &mut batch)?;
        }
        batch.finish();
        self.db.write(&batch)?;
        let newest = label::Watermark::read(&self.device, self.uuid)?;
        let watermark = label::Watermark { generation: newest.generation + 1, sequence: self.db.sequence() };
        let (block, bytes) = watermark.block(self.uuid);
        self.device.write(block * BLOCK_BYTES, &[bytes])?;
        self.device.flush()
    }

    /// Measures the free space of the database's file system and updates `db_full` and `db_exhausted`. Returns the free bytes.
    fn judge_file_system(&self) -> Result<u64> {
        let free = self.file_system_free()?;
        self.db_exhausted.store(free < self.config.min_free_for_writes(), Ordering::Relaxed);
        let full = free < self.config.db_min_free_bytes;
        if full != self.db_full.swap(full, Ordering::Relaxed) {
            if full {
                tracing::error!(
                    free,
                    "bluestore: the database's file system is low: no space is reported or reserved"
                );
            } else {
                tracing::info!(free, "bluestore: the database's file system has space again");
            }
        }
        Ok(free)
    }

    /// Like [`Inner::judge_file_system`], and removes or restores the ballast.
    fn check_file_system(&self) {
        let Ok(free) = self.judge_file_system() else { return };
        let config = &self.config;
        let ballast = ballast(&self.directory);
        let result = if free < config.ballast_release_bytes() {
            std::fs::remove_file(&ballast)
        } else if free > config.db_min_free_bytes + config.ballast_bytes
            && config.ballast_bytes > 0
            && !ballast.exists()
        {
            make_ballast(&ballast, config.ballast_bytes)
        } else {
            Ok(())
        };
        if let Err(error) = result {
            tracing::debug!(%error, "bluestore: ballast");
        }
    }

    /// Free bytes of the database's file system, as of at most [`device::FREE_SPACE_TTL`] ago.
    fn file_system_free(&self) -> Result<u64> {
        let mut measured = self.file_system.lock();
        if let Some((at, free)) = *measured
            && at.elapsed() < device::FREE_SPACE_TTL
        {
            return Ok(free);
        }
        let free = database_space(&self.directory)?;
        *measured = Some((Instant::now(), free));
        Ok(free)
    }

    /// Whether the database's file system is low. Measured now, because an idle store has no commits that would notice.
    fn is_db_full(&self) -> bool {
        // If the measurement fails, the last known state counts.
        _ = self.judge_file_system();
        self.db_full.load(Ordering::Relaxed)
    }

    /// Bytes that the device and its file system still have for data.
    fn device_room(&self) -> u64 {
        let (free, ungrown) = {
            let space = self.space.lock();
            (space.free_blocks(), space.blocks_above_frontier())
        };
        if self.device.is_block_device() {
            return (free + ungrown) * BLOCK_BYTES;
        }
        let below = self.device.file_system_free().unwrap_or(u64::MAX);
        let below = below.saturating_sub(self.config.db_min_free_bytes);
        if self.punches() {
            return ((free + ungrown) * BLOCK_BYTES).min(below);
        }
        free * BLOCK_BYTES + (ungrown * BLOCK_BYTES).min(below)
    }

    fn total_bytes(&self) -> u64 {
        (self.device_blocks - FIRST_DATA_BLOCK) * BLOCK_BYTES
    }

    fn refresh_data_options(&self, collection: &mut Collection) {
        let version = self.data_version.load(Ordering::Acquire);
        if collection.data_version != version {
            collection.data_version = version;
            collection.data = self.data_options.read().get(&collection.id.pool).copied().unwrap_or_default();
        }
    }

    fn collection(&self, coll: PgId) -> Result<Arc<Mutex<Collection>>> {
        self.check()?;
        self.collections.read().get(&coll).cloned().ok_or(StoreError::NoCollection(coll))
    }

    fn collection_or_new(&self, coll: PgId) -> Arc<Mutex<Collection>> {
        Arc::clone(
            self.collections
                .write()
                .entry(coll)
                .or_insert_with(|| Arc::new(Mutex::new(Collection::new(coll)))),
        )
    }

    /// Runs `f` on a locked, existing collection.
    fn with<R>(&self, coll: PgId, f: impl FnOnce(&mut MutexGuard<'_, Collection>) -> Result<R>) -> Result<R> {
        let collection = self.collection(coll)?;
        let mut collection = collection.lock();
        if collection.removed {
            return Err(StoreError::NoCollection(coll));
        }
        f(&mut collection)
    }

    /// The object's record, from the cache or the database.
    fn onode(&self, coll: &mut Collection, oid: &ObjectId) -> Result<Option<Arc<Onode>>> {
        if let Some(known) = coll.onodes.get(oid) {
            return Ok(known);
        }
        let value = self.db.get(Family::Onodes, &keys::onode(coll.id, oid))?;
        let onode = match value {
            None => None,
            Some(value) => Some(Arc::new(Onode::decode(&value).map_err(|detail| {
                let error = StoreError::corrupt(format!("record of {oid}"), detail);
                self.damaged(u64::from(oid.hash()) | 1 << 63, error)
            })?)),
        };
        self.account(coll.onodes.set(oid, onode.clone(), 0));
        Ok(onode)
    }

    fn existing(&self, coll: &mut Collection, oid: &ObjectId) -> Result<Arc<Onode>> {
        self.onode(coll, oid)?.ok_or_else(|| StoreError::NotFound(oid.clone()))
    }

    fn account(&self, cache_bytes: i64) {
        self.cache_used.fetch_add(cache_bytes, Ordering::Relaxed);
    }

    /// Evicts entries until the cache is within its limit, one collection after the other.
    fn trim_cache(&self) {
        let limit = self.config.cache_bytes as i64;
        let excess = self.cache_used.load(Ordering::Relaxed) - limit;
        if excess <= 0 {
            return;
        }
        // Frees only a little more than the excess: if trimming frees as much as writes allocate, the memory allocator's
        // thread caches give the freed buffers to the next writes.
        let mut wanted = (excess + TRIM_BYTES) as u64;
        let placed = self.queue.in_place_seq();
        let collections = self.collections.read();
        for _ in 0..collections.len() {
            let at = self.cache_hand.fetch_add(1, Ordering::Relaxed) % collections.len();
            let Some(collection) = collections.values().nth(at) else { continue };
            let Some(mut collection) = collection.try_lock() else { continue };
            let freed = collection.onodes.evict(placed, wanted);
            self.account(-(freed as i64));
            wanted = wanted.saturating_sub(freed);
            if wanted == 0 {
                return;
            }
        }
    }
}

/// The path of the ballast of the store in `directory`.
fn ballast(directory: &Path) -> PathBuf {
    directory.join("db").join("ballast")
}

/// Free bytes of the file system that contains the database of the store in `directory`.
fn database_space(directory: &Path) -> Result<u64> {
    let path = directory.join("db");
    let space = rustix::fs::statvfs(&path)
        .map_err(|e| StoreError::io(format!("statvfs {}", path.display()), &e.into()))?;
    Ok(space.f_bavail * space.f_frsize)
}

fn make_ballast(path: &Path, bytes: u64) -> std::io::Result<()> {
    let file = std::fs::OpenOptions::new().write(true).create_new(true).open(path)?;
    device::preallocate(&file, 0, bytes).or_else(|error| std::fs::remove_file(path).and(Err(error)))
}
