//! Helpers for the tests of this crate and of the OSD.

use bytes::Bytes;
use nacre_common::metrics::Metric;
use nacre_objectstore::{
    Completion, MemStore, ObjectStat, ObjectStore, Page, ReadStore, Result, SpaceReservation, Statfs,
    StoreError,
};
use nacre_types::errno::Errno;
use nacre_types::ids::{ClientId, Epoch, Eversion, Incarnation, Interval, PgId, PoolId, ReqId};
use nacre_types::msg::OsdRequest;
use nacre_types::object::{ObjectId, SNAP_HEAD};
use nacre_types::op::OsdOp;
use nacre_types::txn::Transaction;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A client's request on `object`, in PG 1.0.
pub fn request(object: &ObjectId, ops: Vec<OsdOp>, flags: u32) -> OsdRequest {
    OsdRequest {
        reqid: ReqId { client: ClientId(4), tid: 1 },
        oldest_tid: 1,
        attempt: 0,
        epoch: Epoch(1),
        pg: PgId::new(PoolId(1), 0),
        interval: Interval(1),
        object: object.clone(),
        mtime_ns: 1_000,
        flags,
        snap: SNAP_HEAD,
        snap_context: None,
        ops,
        tier: None,
    }
}

/// A MemStore that counts reading calls, can delay or fail them, and can refuse changes.
pub struct CountingStore {
    inner: MemStore,
    calls: AtomicU64,
    delay_ms: AtomicU64,
    refuses: AtomicBool,
    fails: AtomicBool,
    fails_to_reserve: AtomicBool,
}

/// The error of failing calls: the process has too many open files.
pub const EMFILE: Errno = Errno(24);

fn out_of_files() -> StoreError {
    StoreError::Io { what: "open".into(), code: EMFILE.0 }
}

impl CountingStore {
    /// Creates the store with a count of 0.
    pub fn new(inner: MemStore) -> CountingStore {
        CountingStore {
            inner,
            calls: AtomicU64::new(0),
            delay_ms: AtomicU64::new(0),
            refuses: AtomicBool::new(false),
            fails: AtomicBool::new(false),
            fails_to_reserve: AtomicBool::new(false),
        }
    }

    /// Delays every reading call from now on.
    pub fn set_delay_ms(&self, delay_ms: u64) {
        self.delay_ms.store(delay_ms, Ordering::Relaxed);
    }

    /// Refuses the next change for lack of space.
    pub fn refuse_once(&self) {
        self.refuses.store(true, Ordering::Relaxed);
    }

    /// Fails the next call for an object's size, without damage.
    pub fn fail_once(&self) {
        self.fails.store(true, Ordering::Relaxed);
    }

    /// Fails the next call that reserves space, although there is some.
    pub fn fail_to_reserve_once(&self) {
        self.fails_to_reserve.store(true, Ordering::Relaxed);
    }

    /// Number of reading calls.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    fn counted(&self) -> &MemStore {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let delay_ms = self.delay_ms.load(Ordering::Relaxed);
        if delay_ms > 0 {
            std::thread::sleep(std::time::Duration::from_millis(delay_ms));
        }
        &self.inner
    }
}

impl ObjectStore for CountingStore {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }
    fn incarnation(&self) -> Incarnation {
        self.inner.incarnation()
    }
    fn queue_transaction(&self, txn: &Transaction, on_commit: Option<Completion>) -> Result<()> {
        if self.refuses.swap(false, Ordering::Relaxed) {
            return Err(StoreError::NoSpace { wanted_bytes: 0, available_bytes: 0 });
        }
        self.inner.queue_transaction(txn, on_commit)
    }
    fn flush(&self) -> Result<()> {
        self.inner.flush()
    }
    fn umount(&self) -> Result<()> {
        self.inner.umount()
    }
    fn stopped(&self) -> Option<StoreError> {
        self.inner.stopped()
    }
    fn health(&self) -> Vec<(String, String)> {
        self.inner.health()
    }
    fn metrics(&self, out: &mut Vec<Metric>) {
        self.inner.metrics(out);
    }
    fn statfs(&self) -> Result<Statfs> {
        self.counted().statfs()
    }
    fn reserve(&self, bytes: u64) -> Result<SpaceReservation> {
        if self.fails_to_reserve.swap(false, Ordering::Relaxed) {
            return Err(out_of_files());
        }
        self.counted().reserve(bytes)
    }
    fn super_get(&self, key: &str) -> Result<Option<Bytes>> {
        self.counted().super_get(key)
    }
    fn super_set(&self, values: &[(&str, Option<Bytes>)]) -> Result<()> {
        self.counted().super_set(values)
    }
    fn super_list(&self, prefix: &str) -> Result<Vec<(String, Bytes)>> {
        self.counted().super_list(prefix)
    }
}

impl ReadStore for CountingStore {
    fn read(&self, coll: PgId, oid: &ObjectId, offset: u64, len: u64) -> Result<Bytes> {
        self.counted().read(coll, oid, offset, len)
    }
    fn extents(&self, coll: PgId, oid: &ObjectId, offset: u64, len: u64) -> Result<Vec<(u64, u64)>> {
        self.counted().extents(coll, oid, offset, len)
    }
    fn stat(&self, coll: PgId, oid: &ObjectId) -> Result<ObjectStat> {
        if self.fails.swap(false, Ordering::Relaxed) {
            return Err(out_of_files());
        }
        self.counted().stat(coll, oid)
    }
    fn get_attr(&self, coll: PgId, oid: &ObjectId, name: &str) -> Result<Option<Bytes>> {
        self.counted().get_attr(coll, oid, name)
    }
    fn get_attrs(&self, coll: PgId, oid: &ObjectId) -> Result<Vec<(String, Bytes)>> {
        self.counted().get_attrs(coll, oid)
    }
    fn omap_get_header(&self, coll: PgId, oid: &ObjectId) -> Result<Bytes> {
        self.counted().omap_get_header(coll, oid)
    }
    fn omap_get(&self, coll: PgId, oid: &ObjectId, keys: &[Bytes]) -> Result<Vec<(Bytes, Bytes)>> {
        self.counted().omap_get(coll, oid, keys)
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
        self.counted().omap_iterate(coll, oid, start_after, prefix, max, max_bytes)
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
        self.counted().omap_get_keys(coll, oid, start_after, prefix, max, max_bytes)
    }
    fn list_objects(
        &self,
        coll: PgId,
        from: &ObjectId,
        to: Option<&ObjectId>,
        max: usize,
    ) -> Result<Page<ObjectId>> {
        self.counted().list_objects(coll, from, to, max)
    }
    fn list_collections(&self) -> Result<Vec<PgId>> {
        self.counted().list_collections()
    }
    fn collection_exists(&self, coll: PgId) -> Result<bool> {
        self.counted().collection_exists(coll)
    }
    fn collection_meta(&self, coll: PgId) -> Result<Vec<(String, Bytes)>> {
        self.counted().collection_meta(coll)
    }
    fn read_log(&self, coll: PgId, after: Eversion, max: usize) -> Result<Vec<(Eversion, Bytes)>> {
        self.counted().read_log(coll, after, max)
    }
}
