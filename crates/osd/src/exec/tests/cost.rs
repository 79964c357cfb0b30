//! What an op costs the store does not depend on how much else the PG holds.

use super::*;
use nacre_store::{Completion, ObjectStat, ObjectStore, Page, Reservation, Statfs, StoreError};
use nacre_types::ids::Incarnation;
use std::sync::atomic::{AtomicU64, Ordering};

type Result<T> = std::result::Result<T, StoreError>;

/// A MemStore that counts calls that read, and can take its time over them.
pub(crate) struct Counting {
    inner: nacre_store::MemStore,
    calls: AtomicU64,
    delay_ms: AtomicU64,
}

impl Counting {
    pub(crate) fn new(inner: nacre_store::MemStore) -> Counting {
        Counting { inner, calls: AtomicU64::new(0), delay_ms: AtomicU64::new(0) }
    }

    /// Every call that reads takes so long from now on.
    pub(crate) fn set_delay_ms(&self, delay_ms: u64) {
        self.delay_ms.store(delay_ms, Ordering::Relaxed);
    }

    fn counted(&self) -> &nacre_store::MemStore {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let delay_ms = self.delay_ms.load(Ordering::Relaxed);
        if delay_ms > 0 {
            std::thread::sleep(std::time::Duration::from_millis(delay_ms));
        }
        &self.inner
    }
}

impl ObjectStore for Counting {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }
    fn incarnation(&self) -> Incarnation {
        self.inner.incarnation()
    }
    fn queue_transaction(&self, txn: &Transaction, on_commit: Option<Completion>) -> Result<()> {
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
    fn metrics(&self, out: &mut Vec<nacre_runtime::metrics::Metric>) {
        self.inner.metrics(out);
    }
    fn read(&self, coll: PgId, oid: &ObjectId, offset: u64, len: u64) -> Result<Bytes> {
        self.counted().read(coll, oid, offset, len)
    }
    fn extents(&self, coll: PgId, oid: &ObjectId, offset: u64, len: u64) -> Result<Vec<(u64, u64)>> {
        self.counted().extents(coll, oid, offset, len)
    }
    fn stat(&self, coll: PgId, oid: &ObjectId) -> Result<ObjectStat> {
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
    fn statfs(&self) -> Result<Statfs> {
        self.counted().statfs()
    }
    fn reserve(&self, bytes: u64) -> Result<Reservation> {
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

/// Every op on one object, with the store's calls and the steps of its transaction.
fn costs(b: &mut Bench) -> Vec<(&'static str, u64, usize)> {
    let call = |method: &str| Op::Call { class: "hello".into(), method: method.into(), input: Bytes::new() };
    let ops = vec![
        full("0123456789"),
        write(2, "xy"),
        Op::Append { data: bytes("more").into() },
        Op::WriteSame { offset: 0, len: 4, data: bytes("ab") },
        Op::Zero { offset: 1, len: 2 },
        Op::Truncate { size: 9 },
        set("a", "1"),
        omap(&[("k1", "v"), ("k2", "v"), ("k3", "v")]),
        Op::OmapSetHeader { header: bytes("h") },
        Op::SetAllocHint { expected_object_size: 1, expected_write_size: 1, flags: 0 },
        Op::Watch { cookie: 1, timeout_s: 0 },
        Op::Read { offset: 0, len: 0 },
        Op::SparseRead { offset: 0, len: 100 },
        Op::MapExt { offset: 0, len: 0 },
        Op::CmpExt { offset: 0, data: bytes("a") },
        Op::Checksum { kind: ChecksumKind::Crc32c, init: 0, offset: 0, len: 0, chunk: 0 },
        Op::Stat,
        get("a"),
        Op::GetXattrs,
        cmp("a", CmpOp::Eq, "1"),
        vals("", "", 9),
        vals("k1", "k", 1),
        Op::OmapGetKeys { start_after: bytes("k2"), max: 9 },
        Op::OmapGetValsByKeys { keys: vec![bytes("k2")] },
        Op::OmapGetHeader,
        Op::OmapCmp { assertions: vec![(bytes("k1"), CmpOp::Eq, bytes("v"))] },
        Op::ListWatchers,
        Op::WatchPing { cookie: 1 },
        Op::Notify { timeout_s: 1, payload: Bytes::new() },
        Op::NotifyAck { notify_id: 1, cookie: 1, payload: Bytes::new() },
        Op::CopyGet { cursor: CopyCursor::default(), max_bytes: 1000 },
        call("replay"),
        call("turn_it_to_11"),
        Op::OmapRmRange { first: bytes("k1"), last: bytes("k2") },
        Op::OmapRmKeys { keys: vec![bytes("k2")] },
        Op::OmapClear,
        Op::RmXattr { name: "a".into() },
        Op::Unwatch { cookie: 1 },
        Op::Remove,
        Op::Create { exclusive: true },
    ];
    ops.into_iter()
        .map(|op| {
            let name = op.name();
            b.cache.forget(&oid("o"));
            let before = b.store.calls.load(Ordering::Relaxed);
            let request = request(&oid("o"), vec![op.into()], 0);
            let (executed, calls) = b.execute_counted(&request, |store| store.calls.load(Ordering::Relaxed));
            assert!(executed.result >= 0, "{name}: {executed:?}");
            (name, calls - before, executed.change.map_or(0, |change| change.transaction.ops.len()))
        })
        .collect()
}

#[test]
fn an_ops_cost_does_not_depend_on_the_rest_of_the_pool() {
    let mut alone = Bench::new();
    let small = costs(&mut alone);
    let mut crowded = Bench::new();
    for i in 0..3000 {
        crowded.ok(&format!("other{i}"), vec![full("data"), set("a", "1"), omap(&[("k", "v")])]);
    }
    assert_eq!(small, costs(&mut crowded));
    for (name, calls, steps) in small {
        // A context takes two calls; then one for what is read, more for what has several parts.
        let expected = if name == "copy-get" { 6 } else { 4 };
        assert!(calls <= expected && steps <= 5, "{name}: {calls} calls, {steps} steps");
    }
}
