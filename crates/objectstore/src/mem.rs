//! MemStore: a store in memory, limited by the memory that its contents take.
//!
//! A transaction completes as soon as it is applied. Contents survive only a clean unmount, which saves them to a file.
//! After a crash the store is empty and has a new incarnation, and its [`MountReport`] says so. The store's own values
//! (`super_set`) are an exception: they are written to a file immediately, so that an OSD keeps its identity.
//!
//! # Invariants
//! - `used` is the sum of the memory of all collections, counted in allocations (see [`cost`]). Writes that would exceed the
//!   limit are refused; transactions that write no data may exceed it by a small ballast.
//! - Before the host or a control group runs out of memory ([`host`]), the store reports no available space and refuses
//!   reservations. With even less memory it refuses transactions. The store never makes the host swap.
//! - A collection's lock is held while a transaction is applied, so readers see all of it or nothing. No lock is held
//!   while a completion runs.

mod collection;
mod cost;
mod data;
mod host;
mod save;

use crate::admission;
use crate::error::{Result, StoreError};
use crate::files::StoreLock;
use crate::superblock::SuperblockFile;
use crate::{
    Completion, MountReport, ObjectStat, ObjectStore, Page, PoolUsage, ReadStore, SpaceReservation, Statfs,
};
use bytes::Bytes;
use collection::Collection;
use host::HostMemory;
pub use host::available_memory;
use nacre_common::metrics::Metric;
use nacre_types::ids::{Eversion, Incarnation, PgId};
use nacre_types::object::ObjectId;
use nacre_types::txn::{Transaction, TxnOp};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Transactions that write data are refused if the host has less than `min_free_bytes` divided by this left.
const REFUSAL_PART: u64 = 4;

/// Configuration of a [`MemStore`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemStoreConfig {
    /// `memstore_device_bytes`: the memory that the contents may take.
    pub device_bytes: u64,
    /// The fraction of `device_bytes`, in parts per million, above which [`ObjectStore::reserve`] fails.
    pub full_micro: u32,
    /// `memstore_min_free_bytes`: memory to leave available to the host and to the control groups of the process without
    /// swapping. Below it the store reports no available space and [`ObjectStore::reserve`] fails; below a quarter of it,
    /// transactions that write data are refused.
    pub min_free_bytes: u64,
}

impl Default for MemStoreConfig {
    /// Ceph's default of 1 GiB, full at 95 %. 64 MiB are left to the host.
    fn default() -> Self {
        MemStoreConfig { device_bytes: 1 << 30, full_micro: 950_000, min_free_bytes: 64 << 20 }
    }
}

/// A store in memory. See the module documentation.
pub struct MemStore {
    config: MemStoreConfig,
    directory: PathBuf,
    incarnation: Incarnation,
    collections: RwLock<BTreeMap<PgId, Arc<Mutex<Collection>>>>,
    used: AtomicU64,
    reserved: Arc<AtomicU64>,
    host: HostMemory,
    /// Whether the host had too little memory at the last check.
    host_is_low: AtomicBool,
    superblock: Mutex<SuperblockFile>,
    mounted: AtomicBool,
    lock: Mutex<Option<StoreLock>>,
}

impl std::fmt::Debug for MemStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemStore").field("directory", &self.directory).finish_non_exhaustive()
    }
}

impl MemStore {
    /// Creates an empty store in `directory`. The directory is created if missing and must not hold a store.
    pub fn mkfs(directory: &Path) -> Result<Incarnation> {
        std::fs::create_dir_all(directory)
            .map_err(|e| StoreError::io(format!("create {}", directory.display()), &e))?;
        let _lock = StoreLock::take(directory)?;
        save::Label::create(directory)
    }

    /// Opens the store in `directory` and loads what a clean unmount saved.
    pub fn mount(directory: &Path, config: MemStoreConfig) -> Result<(MemStore, MountReport)> {
        let begun = Instant::now();
        if !directory.is_dir() {
            return Err(StoreError::WrongStore {
                path: directory.display().to_string(),
                reason: "no such directory".into(),
            });
        }
        let lock = StoreLock::take(directory)?;
        let host = HostMemory::new(Path::new("/"));
        let room = host.available(0).map_or(u64::MAX, |room| room.saturating_sub(config.min_free_bytes));
        let loaded = save::load(directory, room)?;
        let collections: BTreeMap<_, _> = loaded
            .collections
            .into_iter()
            .map(|collection| (collection.id(), Arc::new(Mutex::new(collection))))
            .collect();
        let (mut objects, mut used) = (0, 0);
        for collection in collections.values() {
            let collection = collection.lock();
            objects += collection.usage().objects;
            used += collection.memory_bytes();
        }
        let report = MountReport {
            incarnation: loaded.incarnation,
            clean: loaded.clean,
            loss: loaded.loss,
            collections: collections.len() as u64,
            objects,
            quarantined_bytes: 0,
            took: begun.elapsed(),
            allocation: None,
        };
        if let Some(loss) = &report.loss {
            tracing::error!(directory = %directory.display(), incarnation = %report.incarnation, "memstore: {loss}");
        }
        let store = MemStore {
            config,
            directory: directory.to_owned(),
            incarnation: loaded.incarnation,
            collections: RwLock::new(collections),
            used: AtomicU64::new(used),
            reserved: Arc::default(),
            host,
            host_is_low: AtomicBool::new(false),
            superblock: Mutex::new(SuperblockFile::open(directory)?),
            mounted: AtomicBool::new(true),
            lock: Mutex::new(Some(lock)),
        };
        Ok((store, report))
    }

    /// Bytes of memory that the contents take, as counted by the store.
    pub fn used_bytes(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    fn check_mounted(&self) -> Result<()> {
        if self.mounted.load(Ordering::Acquire) { Ok(()) } else { Err(StoreError::NotMounted) }
    }

    fn collection(&self, coll: PgId) -> Result<Arc<Mutex<Collection>>> {
        self.check_mounted()?;
        self.collections.read().get(&coll).cloned().ok_or(StoreError::NoCollection(coll))
    }

    fn with<R>(&self, coll: PgId, f: impl FnOnce(&Collection) -> Result<R>) -> Result<R> {
        f(&self.collection(coll)?.lock())
    }

    /// Bytes by which transactions that write no data may exceed the limit.
    fn ballast(&self) -> u64 {
        (self.config.device_bytes / 64).max(64 << 10)
    }

    /// Checks whether there is space for a transaction. The host's memory is judged less strictly here than in `statfs` and
    /// `reserve`: a member of a PG must apply what was ordered before the other members learn that it has no space left. If it
    /// can't, it stops and loses its contents.
    fn admit(&self, wanted_bytes: u64, writes_no_data: bool) -> Result<()> {
        let limit = self.config.device_bytes + if writes_no_data { self.ballast() } else { 0 };
        let available_bytes = limit.saturating_sub(self.used_bytes());
        let of_host = || {
            let available = self.host.available(self.used_bytes()).unwrap_or(u64::MAX);
            available.saturating_sub(self.config.min_free_bytes / REFUSAL_PART)
        };
        let available_bytes = if writes_no_data { available_bytes } else { available_bytes.min(of_host()) };
        if wanted_bytes <= available_bytes && (writes_no_data || available_bytes > 0) {
            return Ok(());
        }
        Err(StoreError::NoSpace { wanted_bytes, available_bytes })
    }

    /// Bytes that can still be reserved before the host or a control group has too little memory left.
    fn host_room(&self) -> u64 {
        let Some(available) = self.host.available(self.used_bytes()) else { return u64::MAX };
        let room = available.saturating_sub(self.config.min_free_bytes);
        if (room == 0) != self.host_is_low.swap(room == 0, Ordering::Relaxed) {
            if room == 0 {
                tracing::error!(available, "memstore: the host has too little memory left, refusing writes");
            } else {
                tracing::info!(available, "memstore: the host has memory again");
            }
        }
        room
    }

    fn account(&self, before: u64, after: u64) {
        if after >= before {
            self.used.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.used.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    /// Applies a transaction that creates or removes its collection. These are rare and run under the lock of the whole map.
    fn apply_with_map(&self, txn: &Transaction) -> Result<()> {
        let mut map = self.collections.write();
        self.check_mounted()?;
        let existing = map.get(&txn.collection).cloned();
        let fresh = || Arc::new(Mutex::new(Collection::new(txn.collection)));
        let collection = existing.clone().unwrap_or_else(fresh);
        let mut locked = collection.lock();
        let before = if existing.is_some() { locked.memory_bytes() } else { 0 };
        locked.check(txn, existing.is_some())?;
        self.admit(locked.estimate_memory(txn), admission::writes_no_data(txn))?;
        let exists = locked.apply(txn, existing.is_some());
        self.account(before, if exists { locked.memory_bytes() } else { 0 });
        drop(locked);
        if exists {
            map.insert(txn.collection, collection);
        } else {
            map.remove(&txn.collection);
        }
        Ok(())
    }

    fn apply(&self, txn: &Transaction) -> Result<()> {
        let changes_map = |op: &TxnOp| matches!(op, TxnOp::CreateCollection | TxnOp::RemoveCollection);
        if txn.ops.iter().any(changes_map) {
            return self.apply_with_map(txn);
        }
        let collection = self.collection(txn.collection)?;
        fail::fail_point!("memstore::apply");
        let mut collection = collection.lock();
        // Between the lookup and the lock, the store may have been unmounted and saved, and the collection may have been removed.
        self.check_mounted()?;
        if collection.is_removed() {
            return Err(StoreError::NoCollection(txn.collection));
        }
        collection.check(txn, true)?;
        self.admit(collection.estimate_memory(txn), admission::writes_no_data(txn))?;
        let before = collection.memory_bytes();
        collection.apply(txn, true);
        self.account(before, collection.memory_bytes());
        Ok(())
    }
}

impl ObjectStore for MemStore {
    fn kind(&self) -> &'static str {
        "memstore"
    }

    fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    fn queue_transaction(&self, txn: &Transaction, on_commit: Option<Completion>) -> Result<()> {
        self.apply(txn)?;
        if let Some(completion) = on_commit {
            completion.sink.committed(&[completion.token]);
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.check_mounted()
    }

    fn umount(&self) -> Result<()> {
        // Every change holds the lock of this map or of a collection and checks `mounted` under it, so no change can start
        // from here on.
        let map = self.collections.write();
        if !self.mounted.swap(false, Ordering::AcqRel) {
            return Err(StoreError::NotMounted);
        }
        let saved = save::save(&self.directory, self.incarnation, map.values());
        let _superblock = self.superblock.lock();
        self.lock.lock().take();
        saved
    }

    fn stopped(&self) -> Option<StoreError> {
        None
    }

    fn health(&self) -> Vec<(String, String)> {
        if self.check_mounted().is_ok() && self.host_room() == 0 {
            let text = "too little of the host's memory left, writes are refused";
            return vec![("MEMSTORE_HOST_MEMORY".into(), text.into())];
        }
        Vec::new()
    }

    fn metrics(&self, out: &mut Vec<Metric>) {
        // A closed store reports nothing.
        let Ok(usage) = self.statfs() else { return };
        let gauge = |name, help, value| Metric::gauge("memstore", name, help, value);
        out.push(gauge("allocated", "Bytes of memory that contents take", usage.allocated_bytes));
        out.push(gauge("stored", "Bytes of objects' data as written", usage.stored_bytes));
    }

    fn statfs(&self) -> Result<Statfs> {
        self.check_mounted()?;
        let used = self.used_bytes();
        let mut statfs = Statfs {
            total_bytes: self.config.device_bytes,
            available_bytes: self.config.device_bytes.saturating_sub(used).min(self.host_room()),
            allocated_bytes: used,
            meta_bytes: self.superblock.lock().list("").iter().map(|(k, v)| (k.len() + v.len()) as u64).sum(),
            ..Statfs::default()
        };
        for (pg, collection) in self.collections.read().iter() {
            let usage = collection.lock().usage();
            statfs.stored_bytes += usage.stored_bytes;
            let pool: &mut PoolUsage = statfs.pools.entry(pg.pool).or_default();
            pool.stored_bytes += usage.stored_bytes;
            pool.allocated_bytes += usage.allocated_bytes;
            pool.objects += usage.objects;
        }
        Ok(statfs)
    }

    fn reserve(&self, bytes: u64) -> Result<SpaceReservation> {
        self.check_mounted()?;
        let full =
            (u128::from(self.config.device_bytes) * u128::from(self.config.full_micro) / 1_000_000) as u64;
        let reserved = self.reserved.load(Ordering::Relaxed);
        let of_host = self.host_room().saturating_sub(reserved);
        let available_bytes = full.saturating_sub(self.used_bytes() + reserved).min(of_host);
        if bytes > available_bytes || of_host == 0 {
            return Err(StoreError::NoSpace { wanted_bytes: bytes, available_bytes });
        }
        Ok(SpaceReservation::new(&self.reserved, bytes))
    }

    fn super_get(&self, key: &str) -> Result<Option<Bytes>> {
        self.check_mounted()?;
        Ok(self.superblock.lock().get(key))
    }

    fn super_set(&self, values: &[(&str, Option<Bytes>)]) -> Result<()> {
        let mut superblock = self.superblock.lock();
        self.check_mounted()?;
        superblock.set(values)
    }

    fn super_list(&self, prefix: &str) -> Result<Vec<(String, Bytes)>> {
        self.check_mounted()?;
        Ok(self.superblock.lock().list(prefix))
    }
}

impl ReadStore for MemStore {
    fn read(&self, coll: PgId, oid: &ObjectId, offset: u64, len: u64) -> Result<Bytes> {
        let (parts, len) = self.with(coll, |collection| {
            let data = &collection.object(oid)?.data;
            let len = len.min(data.size().saturating_sub(offset));
            Ok((data.parts(offset, len), len))
        })?;
        Ok(data::Data::assemble(parts, offset, len))
    }

    fn extents(&self, coll: PgId, oid: &ObjectId, offset: u64, len: u64) -> Result<Vec<(u64, u64)>> {
        self.with(coll, |collection| {
            let parts = collection.object(oid)?.data.parts(offset, len);
            Ok(parts.into_iter().map(|(at, bytes)| (at, bytes.len() as u64)).collect())
        })
    }

    fn stat(&self, coll: PgId, oid: &ObjectId) -> Result<ObjectStat> {
        self.with(coll, |collection| {
            let object = collection.object(oid)?;
            Ok(ObjectStat { size: object.data.size(), has_omap: object.has_omap() })
        })
    }

    fn get_attr(&self, coll: PgId, oid: &ObjectId, name: &str) -> Result<Option<Bytes>> {
        self.with(coll, |collection| Ok(collection.object(oid)?.attr(name)))
    }

    fn get_attrs(&self, coll: PgId, oid: &ObjectId) -> Result<Vec<(String, Bytes)>> {
        self.with(coll, |collection| Ok(collection.object(oid)?.attrs()))
    }

    fn omap_get_header(&self, coll: PgId, oid: &ObjectId) -> Result<Bytes> {
        self.with(coll, |collection| Ok(collection.object(oid)?.omap_header()))
    }

    fn omap_get(&self, coll: PgId, oid: &ObjectId, keys: &[Bytes]) -> Result<Vec<(Bytes, Bytes)>> {
        self.with(coll, |collection| Ok(collection.object(oid)?.omap_get(keys)))
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
        let pair = |key: &Bytes, value: &Bytes| ((key.clone(), value.clone()), key.len() + value.len());
        self.with(coll, |collection| {
            Ok(collection.object(oid)?.omap_page(start_after, prefix, max, max_bytes, pair))
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
        let only_key = |key: &Bytes, _: &Bytes| (key.clone(), key.len());
        self.with(coll, |collection| {
            Ok(collection.object(oid)?.omap_page(start_after, prefix, max, max_bytes, only_key))
        })
    }

    fn list_objects(
        &self,
        coll: PgId,
        from: &ObjectId,
        to: Option<&ObjectId>,
        max: usize,
    ) -> Result<Page<ObjectId>> {
        self.with(coll, |collection| Ok(collection.list(from, to, max)))
    }

    fn list_collections(&self) -> Result<Vec<PgId>> {
        self.check_mounted()?;
        Ok(self.collections.read().keys().copied().collect())
    }

    fn collection_exists(&self, coll: PgId) -> Result<bool> {
        self.check_mounted()?;
        Ok(self.collections.read().contains_key(&coll))
    }

    fn collection_meta(&self, coll: PgId) -> Result<Vec<(String, Bytes)>> {
        self.with(coll, |collection| Ok(collection.meta()))
    }

    fn read_log(&self, coll: PgId, after: Eversion, max: usize) -> Result<Vec<(Eversion, Bytes)>> {
        self.with(coll, |collection| Ok(collection.log_after(after, max)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::ids::PoolId;

    #[test]
    fn what_comes_after_the_save_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        MemStore::mkfs(directory.path()).unwrap();
        let mount = || MemStore::mount(directory.path(), MemStoreConfig::default()).unwrap().0;
        let store = Arc::new(mount());
        let collection = PgId::new(PoolId(3), 0);
        let oid = ObjectId::new(PoolId(3), "", "", "an object");
        store.commit(&Transaction { collection, ops: vec![TxnOp::CreateCollection] }).unwrap();
        // The store is closed between the lookup of the collection and its lock.
        let (closed, thread) = (Arc::clone(&store), std::thread::current().id());
        fail::cfg_callback("memstore::apply", move || {
            if std::thread::current().id() == thread {
                closed.umount().unwrap();
            }
        })
        .unwrap();
        let touch = Transaction { collection, ops: vec![TxnOp::Touch(oid.clone())] };
        let outcome = store.queue_transaction(&touch, None);
        fail::remove("memstore::apply");
        assert_eq!(outcome, Err(StoreError::NotMounted));
        assert!(!mount().exists(collection, &oid).unwrap());
    }
}
