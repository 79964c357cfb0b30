//! The [`ObjectStore`] trait, through which an OSD stores its PGs, and its in-memory implementation, [`MemStore`]. The on-disk
//! stores are in `nacre-store`.
//!
//! A store holds *collections* (one per PG) of objects with data, attributes and omap, the log and a small amount of metadata of
//! each collection, and a few values of the store itself. All changes are made by [`Transaction`]s, which are atomic.
//!
//! # Invariants
//! - **Apply, then commit.** [`ObjectStore::queue_transaction`] checks the transaction and applies it in memory before
//!   it returns: every later read, from any thread, sees it. It is durable when its [`Completion`] fires. A transaction
//!   that can't be applied (no space, missing clone source, damaged object) is refused with an error and changes nothing.
//! - **Order.** Transactions of one collection take effect, become durable and complete in the order in which they were
//!   queued; after a crash a collection holds a prefix of them. Completions of one group commit arrive together.
//! - **Fail-stop.** A failed write or fsync is never retried: from then on the store refuses every call, fails
//!   the queued transactions and calls [`StoreEvents::fatal`].
//! - **Corruption is never served.** Data is checksummed, and verified on every read from a device.
//!
//! The crate does not know maps, peers, clients or PG states.

/// Counts allocations for the tests that damage records.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: nacre_fuzz::CountingAllocator = nacre_fuzz::CountingAllocator;

pub mod admission;
mod data;
mod error;
pub mod files;
mod mem;
pub mod superblock;

pub use data::DataOptions;
pub use error::{Result, StoreError};
pub use mem::{MemStore, MemStoreConfig, available_memory};

use bytes::Bytes;
use nacre_common::metrics::Metric;
use nacre_types::ids::{Eversion, Incarnation, PgId, PoolId};
use nacre_types::object::ObjectId;
use nacre_types::txn::Transaction;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The largest object, in bytes, that a store accepts. `osd_max_object_size` limits clients to far less.
pub const MAX_OBJECT_BYTES: u64 = 1 << 32;

/// Receives the completions of a store's transactions.
///
/// A sink usually belongs to one OSD shard; the tokens identify its transactions.
pub trait CommitSink: Send + Sync {
    /// The transactions with these tokens are durable. Called once per sink and group commit, with the tokens in queue order,
    /// from the store's commit thread (MemStore: from within `queue_transaction`). The store holds no lock during the call.
    /// Must return soon, because the next group commit waits for it.
    fn committed(&self, tokens: &[u64]);

    /// The store stopped before these transactions became durable. Whether they survive is unknown until the next mount.
    fn failed(&self, tokens: &[u64], error: &StoreError);
}

/// What a store calls when a transaction is durable.
#[derive(Clone)]
pub struct Completion {
    /// The sink to notify.
    pub sink: Arc<dyn CommitSink>,
    /// The sink's identifier for the transaction.
    pub token: u64,
}

impl std::fmt::Debug for Completion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Completion").field("token", &self.token).finish_non_exhaustive()
    }
}

/// Notifications of a store to its owner that are not answers to a call.
pub trait StoreEvents: Send + Sync {
    /// The store has stopped permanently. Called once, from any of the store's threads.
    fn fatal(&self, error: &StoreError);

    /// A mount is reading the records of all objects to find out what is allocated. Called about once a second during the
    /// scan, and with `None` when the scan has ended.
    fn scanning(&self, _progress: Option<&ScanProgress>) {}

    /// Whether a mount that scans must give up. Called many times a second.
    fn cancelled(&self) -> bool {
        false
    }
}

/// Progress of a scan of all objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanProgress {
    /// Number of object records read.
    pub onodes: u64,
    /// Approximate number of object records.
    pub expected: u64,
    /// Time since the start of the scan.
    pub elapsed: Duration,
}

/// [`StoreEvents`] for owners that only use returned errors.
#[derive(Clone, Copy, Debug, Default)]
pub struct IgnoreEvents;

impl StoreEvents for IgnoreEvents {
    fn fatal(&self, _error: &StoreError) {}
}

/// The state in which a mount found the store (rules B3 and R2).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MountReport {
    /// The identity of the contents. It is new if contents were lost.
    pub incarnation: Incarnation,
    /// Whether the store was cleanly unmounted before.
    pub clean: bool,
    /// What was lost, for the log and for health reports. A store with this set has a new incarnation and must not count as
    /// in-sync for anything it holds.
    pub loss: Option<String>,
    /// Number of collections found.
    pub collections: u64,
    /// Number of objects found.
    pub objects: u64,
    /// Bytes withheld from allocation because the records that own them can't be trusted.
    pub quarantined_bytes: u64,
    /// How long mounting took.
    pub took: Duration,
    /// How the store determined what is allocated, if it has an allocator.
    pub allocation: Option<AllocationSource>,
}

/// How a store determined at mount what is allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllocationSource {
    /// From the file written by a clean shutdown.
    File,
    /// From a checkpoint and the deltas recorded since.
    Checkpoint {
        /// Group commits since the checkpoint.
        deltas: u64,
    },
    /// From the database (if `bluestore_allocation_from_file` is off).
    Records,
    /// From the records of all objects.
    Scan {
        /// Why none of the faster sources could be used.
        reason: String,
    },
}

/// Basic properties of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectStat {
    /// Size in bytes, holes included.
    pub size: u64,
    /// Whether it has or had omap entries or an omap header.
    pub has_omap: bool,
}

/// A page of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    /// The entries, in order.
    pub entries: Vec<T>,
    /// Whether a limit cut the page short and more entries follow.
    pub more: bool,
}

/// Usage of one pool on one store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUsage {
    /// Bytes of object data without holes.
    pub stored_bytes: u64,
    /// Bytes allocated for it; data shared by clones counts once.
    pub allocated_bytes: u64,
    /// Objects.
    pub objects: u64,
    /// Bytes of compressed data after compression.
    pub compressed_bytes: u64,
    /// Bytes allocated for compressed data.
    pub compressed_allocated_bytes: u64,
    /// Bytes of object data that is stored compressed, before compression.
    pub compressed_original_bytes: u64,
}

impl PoolUsage {
    /// Adds another usage to this one.
    pub fn add(&mut self, other: &PoolUsage) {
        self.stored_bytes += other.stored_bytes;
        self.allocated_bytes += other.allocated_bytes;
        self.objects += other.objects;
        self.compressed_bytes += other.compressed_bytes;
        self.compressed_allocated_bytes += other.compressed_allocated_bytes;
        self.compressed_original_bytes += other.compressed_original_bytes;
    }
}

/// Usage of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statfs {
    /// Size of the store in bytes.
    pub total_bytes: u64,
    /// Bytes still available for clients' data.
    pub available_bytes: u64,
    /// Bytes allocated for objects' data.
    pub allocated_bytes: u64,
    /// Bytes of objects' data as written, without holes.
    pub stored_bytes: u64,
    /// Bytes of omap entries, as estimated by the database.
    pub omap_bytes: u64,
    /// Bytes of other metadata, as estimated by the database.
    pub meta_bytes: u64,
    /// Usage per pool.
    pub pools: BTreeMap<PoolId, PoolUsage>,
}

/// Free space as the allocator sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreeSpace {
    /// Size of the device in bytes.
    pub capacity_bytes: u64,
    /// Allocation unit in bytes.
    pub unit_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// Free extents as offset and length in bytes, in order. Limited to the first ones if there are too many.
    pub extents: Vec<(u64, u64)>,
    /// Whether there are more free extents.
    pub more: bool,
}

/// Space set aside by [`ObjectStore::reserve`], and released on drop. Must be held until the transaction has been queued.
#[must_use = "dropping a reservation gives the space back"]
pub struct SpaceReservation {
    bytes: u64,
    pool: Arc<std::sync::atomic::AtomicU64>,
}

impl SpaceReservation {
    /// Adds `bytes` to `pool` until the reservation is dropped.
    pub fn new(pool: &Arc<std::sync::atomic::AtomicU64>, bytes: u64) -> SpaceReservation {
        pool.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
        SpaceReservation { bytes, pool: Arc::clone(pool) }
    }

    /// The reserved space in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for SpaceReservation {
    fn drop(&mut self) {
        self.pool.fetch_sub(self.bytes, std::sync::atomic::Ordering::Relaxed);
    }
}

/// The read operations of a store. A reader sees every transaction that was queued before, in full.
///
/// Reads of an absent object fail with [`StoreError::NotFound`], of an absent collection with
/// [`StoreError::NoCollection`].
pub trait ReadStore: Send + Sync {
    /// Reads up to `len` bytes at `offset`. The result is short at the object's end and empty past it. Holes read as zeros. A
    /// `len` of `u64::MAX` reads to the end.
    fn read(&self, coll: PgId, oid: &ObjectId, offset: u64, len: u64) -> Result<Bytes>;

    /// The allocated parts of a range, as offset and length, in order and within the object. The gaps between them read as zeros.
    /// Adjacent parts are not necessarily merged.
    fn extents(&self, coll: PgId, oid: &ObjectId, offset: u64, len: u64) -> Result<Vec<(u64, u64)>>;

    /// Basic properties of the object.
    fn stat(&self, coll: PgId, oid: &ObjectId) -> Result<ObjectStat>;

    /// Whether the object exists. An absent collection has no objects.
    fn exists(&self, coll: PgId, oid: &ObjectId) -> Result<bool> {
        match self.stat(coll, oid) {
            Ok(_) => Ok(true),
            Err(StoreError::NotFound(_) | StoreError::NoCollection(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// One attribute of the object, or `None` if it has no such attribute.
    fn get_attr(&self, coll: PgId, oid: &ObjectId, name: &str) -> Result<Option<Bytes>>;

    /// All attributes, ordered by name.
    fn get_attrs(&self, coll: PgId, oid: &ObjectId) -> Result<Vec<(String, Bytes)>>;

    /// The omap header, empty if none was set.
    fn omap_get_header(&self, coll: PgId, oid: &ObjectId) -> Result<Bytes>;

    /// The entries of `keys` that exist, in the order of `keys`.
    fn omap_get(&self, coll: PgId, oid: &ObjectId, keys: &[Bytes]) -> Result<Vec<(Bytes, Bytes)>>;

    /// Omap entries in key order, starting after `start_after` (`None`: at the first). The page is limited to keys that start
    /// with `prefix`, to `max` entries and to `max_bytes` of keys and values; its first entry may exceed `max_bytes`.
    fn omap_iterate(
        &self,
        coll: PgId,
        oid: &ObjectId,
        start_after: Option<&[u8]>,
        prefix: &[u8],
        max: usize,
        max_bytes: usize,
    ) -> Result<Page<(Bytes, Bytes)>>;

    /// Like [`ReadStore::omap_iterate`], but returns only the keys. Values do not count towards `max_bytes`.
    fn omap_get_keys(
        &self,
        coll: PgId,
        oid: &ObjectId,
        start_after: Option<&[u8]>,
        prefix: &[u8],
        max: usize,
        max_bytes: usize,
    ) -> Result<Page<Bytes>>;

    /// Objects with `from <= id < to` in [`ObjectId`] order (`to` = `None`: to the end), at most `max`.
    fn list_objects(
        &self,
        coll: PgId,
        from: &ObjectId,
        to: Option<&ObjectId>,
        max: usize,
    ) -> Result<Page<ObjectId>>;

    /// All collections, in order.
    fn list_collections(&self) -> Result<Vec<PgId>>;

    /// Whether the collection exists.
    fn collection_exists(&self, coll: PgId) -> Result<bool>;

    /// The collection's own values ([`nacre_types::txn::TxnOp::MetaSet`]), ordered by name.
    fn collection_meta(&self, coll: PgId) -> Result<Vec<(String, Bytes)>>;

    /// Log entries with a version above `after`, in order, at most `max`. `Eversion::default()` reads from the start.
    fn read_log(&self, coll: PgId, after: Eversion, max: usize) -> Result<Vec<(Eversion, Bytes)>>;
}

/// A local object store. The crate documentation states the invariants of every implementation.
pub trait ObjectStore: ReadStore {
    /// `memstore`, `filestore` or `bluestore`, as in `osd objectstore`.
    fn kind(&self) -> &'static str;

    /// The identity of the contents.
    fn incarnation(&self) -> Incarnation;

    /// Checks `txn`, applies it in memory and queues it for commit; `on_commit` fires when it is durable. Blocks while
    /// too much is queued. On an error nothing has changed and `on_commit` does not fire.
    fn queue_transaction(&self, txn: &Transaction, on_commit: Option<Completion>) -> Result<()>;

    /// Queues several transactions in order. Stops at the first one that is refused and returns its index with the error.
    fn queue_transactions(
        &self,
        batch: Vec<(&Transaction, Option<Completion>)>,
    ) -> std::result::Result<(), (usize, StoreError)> {
        for (at, (txn, on_commit)) in batch.into_iter().enumerate() {
            self.queue_transaction(txn, on_commit).map_err(|error| (at, error))?;
        }
        Ok(())
    }

    /// Queues `txn` and waits until it is durable.
    fn commit(&self, txn: &Transaction) -> Result<()> {
        let wait = Arc::new(CommitWaiter::default());
        self.queue_transaction(txn, Some(Completion { sink: wait.clone(), token: 0 }))?;
        wait.wait()
    }

    /// Waits until every transaction queued before is durable.
    fn flush(&self) -> Result<()>;

    /// Commits all queued transactions, saves state for a fast mount and closes the store. Every later call fails with
    /// [`StoreError::NotMounted`]. Dropping a store without this call is equivalent to a crash of the process.
    fn umount(&self) -> Result<()>;

    /// The error that stopped the store, if it has stopped.
    fn stopped(&self) -> Option<StoreError>;

    /// Conditions of the store that an operator must know, as (health code, text).
    fn health(&self) -> Vec<(String, String)>;

    /// Adds the store's counters since the mount and its usage to `out`.
    fn metrics(&self, out: &mut Vec<Metric>);

    /// Rewrites the files of the store's database while the store is in use, so that deleted and overwritten records are removed.
    /// Calls `progress` at the start of each part with its name, its number and the number of parts. Returns when done, and
    /// immediately if the store has no such database.
    fn compact(&self, _progress: &mut dyn FnMut(&str, usize, usize)) -> Result<()> {
        self.stopped().map_or(Ok(()), Err)
    }

    /// At most `max` free extents, or `None` if the store has no allocator.
    fn free_space(&self, _max: usize) -> Option<FreeSpace> {
        None
    }

    /// Sets how new data of each pool's objects is kept, if the store supports it. Pools that are not listed use the defaults.
    fn set_data_options(&self, _pools: BTreeMap<PoolId, DataOptions>) {}

    /// Usage.
    fn statfs(&self) -> Result<Statfs>;

    /// Reserves `bytes` before an op is ordered (rule B6). Fails with [`StoreError::NoSpace`] if the store is full or would
    /// become full, counting other reservations. Transactions that only remove need no reservation.
    fn reserve(&self, bytes: u64) -> Result<SpaceReservation>;

    /// One of the store's own values (OSD id, cluster id, highest map epochs and the like).
    fn super_get(&self, key: &str) -> Result<Option<Bytes>>;

    /// Sets, or with `None` removes, the store's own values, all or none. Durable on return.
    fn super_set(&self, values: &[(&str, Option<Bytes>)]) -> Result<()>;

    /// The store's own values whose keys begin with `prefix`, in key order.
    fn super_list(&self, prefix: &str) -> Result<Vec<(String, Bytes)>>;
}

/// A sink for callers that block until the commit.
#[derive(Default)]
pub struct CommitWaiter {
    outcome: Mutex<Option<Result<()>>>,
    changed: Condvar,
}

impl CommitWaiter {
    /// Waits until the transaction is durable or lost.
    pub fn wait(&self) -> Result<()> {
        let mut outcome = self.outcome.lock();
        loop {
            match outcome.take() {
                Some(result) => return result,
                None => self.changed.wait(&mut outcome),
            }
        }
    }

    fn set(&self, result: Result<()>) {
        *self.outcome.lock() = Some(result);
        self.changed.notify_one();
    }
}

impl CommitSink for CommitWaiter {
    fn committed(&self, _tokens: &[u64]) {
        self.set(Ok(()));
    }

    fn failed(&self, _tokens: &[u64], error: &StoreError) {
        self.set(Err(error.clone()));
    }
}
