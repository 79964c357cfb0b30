//! The simulated disk as the store of an OSD process.

use crate::disk::Disk;
use crate::stalls::{Call, stall_point};
use bytes::Bytes;
use nacre_common::metrics::Metric;
use nacre_objectstore::{
    Completion, ObjectStat, ObjectStore, Page, ReadStore, Result, SpaceReservation, Statfs, StoreError,
};
use nacre_types::txn::{Transaction, TxnOp};
use nacre_types::{Eversion, Incarnation, ObjectId, PgId};
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;

/// The size of a disk that is not limited.
const UNLIMITED_BYTES: u64 = 1 << 40;
/// Bytes that must be free before a write starts if objects are small: more than most writes need.
const MARGIN_BYTES: u64 = 64;

/// A disk, and the completions of its unflushed changes.
#[derive(Debug, Default)]
pub struct Store {
    disk: Mutex<Disk>,
    /// Whether the reserved bytes must be free, not only [`MARGIN_BYTES`].
    real_bounds: bool,
    /// One entry for each unflushed change of the disk, oldest first.
    completions: Mutex<VecDeque<Option<Completion>>>,
}

impl Store {
    /// A store on an empty disk. With `real_bounds`, the bytes that a write reserves must be free before it starts.
    pub fn new(real_bounds: bool) -> Store {
        Store { real_bounds, ..Store::default() }
    }

    /// The disk. The guard must be dropped before the OSD acts.
    pub fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock()
    }

    /// The disk, for an actor that reads it.
    fn read_disk(&self) -> MutexGuard<'_, Disk> {
        stall_point(Call::Read);
        self.disk()
    }

    /// The `count` oldest unflushed changes are durable.
    pub fn flush(&self, count: usize) {
        self.disk().flush(count);
        let durable: Vec<Completion> = self.completions.lock().drain(..count).flatten().collect();
        let is_same = |a: &Completion, b: &Completion| Arc::ptr_eq(&a.sink, &b.sink);
        let mut told: Vec<&Completion> = Vec::new();
        for completion in &durable {
            if !told.iter().any(|other| is_same(other, completion)) {
                told.push(completion);
                let own = durable.iter().filter(|other| is_same(other, completion));
                completion.sink.committed(&own.map(|other| other.token).collect::<Vec<_>>());
            }
        }
    }

    /// The process dies: its completions are dropped.
    pub fn drop_completions(&self) {
        self.completions.lock().clear();
    }
}

impl ObjectStore for Store {
    fn kind(&self) -> &'static str {
        "simulated"
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation::default()
    }

    fn queue_transaction(&self, txn: &Transaction, on_commit: Option<Completion>) -> Result<()> {
        stall_point(Call::Write);
        let mut disk = self.disk();
        if disk.needs_damaged_part(txn) {
            return Err(StoreError::Corrupt { what: "an object".into(), detail: "it is damaged".into() });
        }
        let creates = matches!(txn.ops.first(), Some(TxnOp::CreateCollection));
        if !creates {
            disk.visible().existing(txn.collection)?;
        }
        let refused = |detail: String| StoreError::Database { what: "a transaction", detail };
        disk.apply(txn.clone()).map_err(|error| refused(error.0))?;
        self.completions.lock().push_back(on_commit);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn umount(&self) -> Result<()> {
        Ok(())
    }

    fn stopped(&self) -> Option<StoreError> {
        None
    }

    fn health(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    fn metrics(&self, _out: &mut Vec<Metric>) {}

    fn statfs(&self) -> Result<Statfs> {
        let disk = self.read_disk();
        let total_bytes = disk.capacity().unwrap_or(UNLIMITED_BYTES);
        Ok(Statfs { total_bytes, available_bytes: disk.free_bytes().min(total_bytes), ..Statfs::default() })
    }

    fn reserve(&self, bytes: u64) -> Result<SpaceReservation> {
        let needed = if self.real_bounds { bytes } else { MARGIN_BYTES };
        match self.read_disk().lacks_room(needed) {
            true => Err(StoreError::NoSpace { wanted_bytes: bytes, available_bytes: 0 }),
            false => Ok(SpaceReservation::new(&Arc::default(), bytes)),
        }
    }

    fn super_get(&self, key: &str) -> Result<Option<Bytes>> {
        Ok(self.read_disk().visible().superblock.get(key).cloned())
    }

    fn super_set(&self, values: &[(&str, Option<Bytes>)]) -> Result<()> {
        stall_point(Call::Write);
        for (name, value) in values {
            self.disk().set_superblock(name, value.clone());
        }
        Ok(())
    }

    fn super_list(&self, prefix: &str) -> Result<Vec<(String, Bytes)>> {
        let disk = self.read_disk();
        let named = disk.visible().superblock.iter().filter(|(name, _)| name.starts_with(prefix));
        Ok(named.map(|(name, value)| (name.clone(), value.clone())).collect())
    }
}

impl ReadStore for Store {
    fn read(&self, coll: PgId, oid: &ObjectId, offset: u64, len: u64) -> Result<Bytes> {
        self.read_disk().visible().read(coll, oid, offset, len)
    }

    fn extents(&self, coll: PgId, oid: &ObjectId, offset: u64, len: u64) -> Result<Vec<(u64, u64)>> {
        self.read_disk().visible().extents(coll, oid, offset, len)
    }

    fn stat(&self, coll: PgId, oid: &ObjectId) -> Result<ObjectStat> {
        self.read_disk().visible().stat(coll, oid)
    }

    fn get_attr(&self, coll: PgId, oid: &ObjectId, name: &str) -> Result<Option<Bytes>> {
        self.read_disk().visible().get_attr(coll, oid, name)
    }

    fn get_attrs(&self, coll: PgId, oid: &ObjectId) -> Result<Vec<(String, Bytes)>> {
        self.read_disk().visible().get_attrs(coll, oid)
    }

    fn omap_get_header(&self, coll: PgId, oid: &ObjectId) -> Result<Bytes> {
        self.read_disk().visible().omap_get_header(coll, oid)
    }

    fn omap_get(&self, coll: PgId, oid: &ObjectId, keys: &[Bytes]) -> Result<Vec<(Bytes, Bytes)>> {
        self.read_disk().visible().omap_get(coll, oid, keys)
    }

    fn list_collections(&self) -> Result<Vec<PgId>> {
        self.read_disk().visible().list_collections()
    }

    fn collection_exists(&self, coll: PgId) -> Result<bool> {
        self.read_disk().visible().collection_exists(coll)
    }

    fn collection_meta(&self, coll: PgId) -> Result<Vec<(String, Bytes)>> {
        self.read_disk().visible().collection_meta(coll)
    }

    fn read_log(&self, coll: PgId, after: Eversion, max: usize) -> Result<Vec<(Eversion, Bytes)>> {
        self.read_disk().visible().read_log(coll, after, max)
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
        self.read_disk().visible().omap_iterate(coll, oid, start_after, prefix, max, max_bytes)
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
        self.read_disk().visible().omap_get_keys(coll, oid, start_after, prefix, max, max_bytes)
    }

    fn list_objects(
        &self,
        coll: PgId,
        from: &ObjectId,
        to: Option<&ObjectId>,
        max: usize,
    ) -> Result<Page<ObjectId>> {
        self.read_disk().visible().list_objects(coll, from, to, max)
    }
}
