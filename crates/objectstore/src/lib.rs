//! The [`ObjectStore`] trait, what an OSD keeps its PGs in, and its implementation in memory, [`MemStore`]. The stores on disks
//! are in `nacre-store`.
//!
//! A store holds *collections* (one per PG) of objects with data, attributes and omap, each collection's log and small
//! metadata, and a few values of the store itself. All change goes through [`Transaction`]s, each applied whole or not
//! at all.
//!
//! # Invariants
//! - **Apply, then commit.** [`ObjectStore::queue_transaction`] checks the transaction and applies it in memory before
//!   it returns: every later read, from any thread, sees it. It is durable when its [`Completion`] fires. A transaction
//!   that can't be applied (no space, absent clone source, damaged object) is refused with an error and changes nothing.
//! - **Order.** Transactions of one collection take effect, become durable and complete in the order in which they were
//!   queued; after a crash a collection holds a prefix of them. Completions of one group commit arrive together.
//! - **Fail-stop.** After a failed write or fsync nothing is retried: the store refuses everything from then on, fails
//!   what was queued and tells [`StoreEvents::fatal`].
//! - **Corruption is never served.** Data is checksummed and verified at every read from a device.
//!
//! The crate knows nothing of maps, peers, clients or PG states.

/// Counts for tests that damage records.
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

/// Where a store reports durable transactions.
///
/// One sink usually stands for one OSD shard; tokens tell its transactions apart.
pub trait CommitSink: Send + Sync {
    /// The transactions with these tokens are durable. Called once per sink and group commit, tokens in the order in
    /// which they were queued, from the store's commit thread (MemStore: from within `queue_transaction`), with no
    /// lock of the store held. Must return soon: the next group commit waits for it.
    fn committed(&self, tokens: &[u64]);

    /// The store stopped before these became durable; whether they survive is unknown until the next mount.
    fn failed(&self, tokens: &[u64], error: &StoreError);
}

/// What to call when a transaction is durable.
#[derive(Clone)]
pub struct Completion {
    /// Whom to tell.
    pub sink: Arc<dyn CommitSink>,
    /// What the sink knows the transaction by.
    pub token: u64,
}

impl std::fmt::Debug for Completion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Completion").field("token", &self.token).finish_non_exhaustive()
    }
}

/// What a store tells its owner on its own account.
pub trait StoreEvents: Send + Sync {
    /// The store has stopped for good. Called once, from any of the store's threads.
    fn fatal(&self, error: &StoreError);

    /// A mount is reading all objects' records to find out what is allocated. Told about once a second, and `None` when
    /// that is over.
    fn scanning(&self, _progress: Option<&ScanProgress>) {}

    /// Whether such a mount is to give up; asked many times a second.
    fn cancelled(&self) -> bool {
        false
    }
}

/// How far a scan of all objects is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanProgress {
    /// Objects' records read.
    pub onodes: u64,
    /// About how many there are.
    pub expected: u64,
    /// For how long it has been going on.
    pub elapsed: Duration,
}

/// [`StoreEvents`] for owners that look at returned errors only.
#[derive(Clone, Copy, Debug, Default)]
pub struct IgnoreEvents;

impl StoreEvents for IgnoreEvents {
    fn fatal(&self, _error: &StoreError) {}
}

/// What mounting a store found (rules B3 and R2).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MountReport {
    /// The identity of the contents. A new one where contents were lost.
    pub incarnation: Incarnation,
    /// Whether the store was unmounted cleanly before.
    pub clean: bool,
    /// What was lost, for the log and for health; a store with this set has a new incarnation and must not count as
    /// in-sync for anything it holds.
    pub loss: Option<String>,
    /// Number of collections found.
    pub collections: u64,
    /// Number of objects found.
    pub objects: u64,
    /// Bytes withheld from allocation because records that own them can't be trusted.
    pub quarantined_bytes: u64,
    /// How long mounting took.
    pub took: Duration,
    /// How the store knew what is allocated, where it allocates.
    pub allocation: Option<AllocationSource>,
}

/// How a store knew at its start what is allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllocationSource {
    /// From the file that a clean shutdown wrote.
    File,
    /// From a checkpoint and so many deltas since.
    Checkpoint {
        /// Group commits since the checkpoint.
        deltas: u64,
    },
    /// From the database (`bluestore_allocation_from_file` is off).
    Records,
    /// From all objects' records.
    Scan {
        /// Why none of the quicker ways would do.
        reason: String,
    },
}

/// An object's size and the like.
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
    /// Bytes that compressed data has come to.
    pub compressed_bytes: u64,
    /// Bytes allocated for compressed data.
    pub compressed_allocated_bytes: u64,
    /// Bytes of object data that is kept compressed.
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
    /// Bytes that clients' data may still take.
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

/// Free space as an allocator sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreeSpace {
    /// Size of the device in bytes.
    pub capacity_bytes: u64,
    /// What space is given out in, in bytes.
    pub unit_bytes: u64,
    /// Bytes free.
    pub free_bytes: u64,
    /// Free extents as offset and length in bytes, in order; the first ones where there are too many.
    pub extents: Vec<(u64, u64)>,
    /// Whether there are more.
    pub more: bool,
}

/// Space set aside by [`ObjectStore::reserve`]; given back when dropped. Hold it until the transaction was queued.
#[must_use = "dropping a reservation gives the space back"]
pub struct Reservation {
    bytes: u64,
    pool: Arc<std::sync::atomic::AtomicU64>,
}

impl Reservation {
    /// Counts `bytes` in `pool` until dropped.
    pub fn new(pool: &Arc<std::sync::atomic::AtomicU64>, bytes: u64) -> Reservation {
        pool.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
        Reservation { bytes, pool: Arc::clone(pool) }
    }

    /// How much was set aside, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.pool.fetch_sub(self.bytes, std::sync::atomic::Ordering::Relaxed);
    }
}

/// What can be read of a store. A reader sees every transaction that was queued before, whole.
///
/// Reads of an absent object fail with [`StoreError::NotFound`], of an absent collection with
/// [`StoreError::NoCollection`].
pub trait ReadStore: Send + Sync {
    /// Reads up to `len` bytes at `offset`; short at the object's end, empty past it. Holes read as zeros.
    /// `u64::MAX` reads to the end.
    fn read(&self, coll: PgId, oid: &ObjectId, offset: u64, len: u64) -> Result<Bytes>;

    /// The parts of a range that are allocated, as offset and length, in order and within the object; what lies between
    /// reads as zeros. Neighbouring parts may or may not be one.
    fn extents(&self, coll: PgId, oid: &ObjectId, offset: u64, len: u64) -> Result<Vec<(u64, u64)>>;

    /// The object's size and the like.
    fn stat(&self, coll: PgId, oid: &ObjectId) -> Result<ObjectStat>;

    /// Whether the object exists. An absent collection has no objects.
    fn exists(&self, coll: PgId, oid: &ObjectId) -> Result<bool> {
        match self.stat(coll, oid) {
            Ok(_) => Ok(true),
            Err(StoreError::NotFound(_) | StoreError::NoCollection(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// One attribute of the object, `None` where it has no such attribute.
    fn get_attr(&self, coll: PgId, oid: &ObjectId, name: &str) -> Result<Option<Bytes>>;

    /// All attributes, ordered by name.
    fn get_attrs(&self, coll: PgId, oid: &ObjectId) -> Result<Vec<(String, Bytes)>>;

    /// The omap header, empty where none was set.
    fn omap_get_header(&self, coll: PgId, oid: &ObjectId) -> Result<Bytes>;

    /// Those of `keys` that exist, with their values, in the order asked for.
    fn omap_get(&self, coll: PgId, oid: &ObjectId, keys: &[Bytes]) -> Result<Vec<(Bytes, Bytes)>>;

    /// Omap entries in key order, beginning after `start_after` (`None`: from the first) and limited to keys that begin
    /// with `prefix`, to `max` entries and, one entry apart, to `max_bytes` of keys and values.
    fn omap_iterate(
        &self,
        coll: PgId,
        oid: &ObjectId,
        start_after: Option<&[u8]>,
        prefix: &[u8],
        max: usize,
        max_bytes: usize,
    ) -> Result<Page<(Bytes, Bytes)>>;

    /// As [`ReadStore::omap_iterate`], the keys alone; values do not count towards `max_bytes`.
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

/// A local object store. The module documentation states what every implementation keeps to.
pub trait ObjectStore: ReadStore {
    /// `memstore`, `filestore` or `bluestore`, as in `osd objectstore`.
    fn kind(&self) -> &'static str;

    /// The identity of the contents.
    fn incarnation(&self) -> Incarnation;

    /// Checks and applies `txn` in memory and queues it for commit; `on_commit` fires when it is durable. Blocks while
    /// too much is queued. On an error nothing has changed and `on_commit` does not fire.
    fn queue_transaction(&self, txn: &Transaction, on_commit: Option<Completion>) -> Result<()>;

    /// Queues several transactions in order; stops at the first refused one and returns its index with the error.
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
        let wait = Arc::new(Wait::default());
        self.queue_transaction(txn, Some(Completion { sink: wait.clone(), token: 0 }))?;
        wait.outcome()
    }

    /// Returns when everything queued before is durable.
    fn flush(&self) -> Result<()>;

    /// Commits what is queued, saves state for a quick start and closes the store; every later call fails with
    /// [`StoreError::NotMounted`]. Dropping a store without this is as a crash of the process.
    fn umount(&self) -> Result<()>;

    /// The error that stopped the store, if it has stopped.
    fn stopped(&self) -> Option<StoreError>;

    /// What an operator must know of the store now: (health code, text).
    fn health(&self) -> Vec<(String, String)>;

    /// Adds what the store has counted since it was mounted, and its usage.
    fn metrics(&self, out: &mut Vec<Metric>);

    /// Rewrites what the store's database takes on disk, so that deleted and overwritten records go, while the store is
    /// in use; `progress` is told each part that begins, with its number and how many there are. Returns when it is
    /// done, at once where there is no such database.
    fn compact(&self, _progress: &mut dyn FnMut(&str, usize, usize)) -> Result<()> {
        self.stopped().map_or(Ok(()), Err)
    }

    /// At most `max` free extents, where the store has an allocator.
    fn free_space(&self, _max: usize) -> Option<FreeSpace> {
        None
    }

    /// How the data of each pool's objects is kept from now on, where the store has a choice; pools that are not named
    /// have the defaults.
    fn set_data_options(&self, _pools: BTreeMap<PoolId, DataOptions>) {}

    /// Usage.
    fn statfs(&self) -> Result<Statfs>;

    /// Sets `bytes` aside before an op is ordered (rule B6): fails with [`StoreError::NoSpace`] where the store is full
    /// or would become so, counting other reservations. Transactions that only remove need none.
    fn reserve(&self, bytes: u64) -> Result<Reservation>;

    /// One of the store's own values (OSD id, cluster id, highest maps seen and the like).
    fn super_get(&self, key: &str) -> Result<Option<Bytes>>;

    /// Sets (or, with `None`, removes) values of the store's own, all or none; durable on return.
    fn super_set(&self, values: &[(&str, Option<Bytes>)]) -> Result<()>;

    /// The store's own values whose keys begin with `prefix`, in key order.
    fn super_list(&self, prefix: &str) -> Result<Vec<(String, Bytes)>>;
}

/// A sink for callers that wait.
#[derive(Default)]
pub struct Wait {
    outcome: Mutex<Option<Result<()>>>,
    changed: Condvar,
}

impl Wait {
    /// Waits until the transaction is durable or lost.
    pub fn outcome(&self) -> Result<()> {
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

impl CommitSink for Wait {
    fn committed(&self, _tokens: &[u64]) {
        self.set(Ok(()));
    }

    fn failed(&self, _tokens: &[u64], error: &StoreError) {
        self.set(Err(error.clone()));
    }
}
