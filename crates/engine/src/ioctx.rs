//! Object I/O in one pool.
//!
//! Every operation starts at once and returns its handle ([`Pending`]): await it, or [`Pending::wait`] for it, or start other
//! operations first. A write has succeeded when it is durable on all in-sync replicas.

use crate::completion::Pending;
use crate::engine::{Engine, ObjectRequest, OnReply};
use crate::error::{Error, Result};
use crate::list::{ListRange, Lister};
use crate::ops::{OpReply, ReadOp, WriteOp};
use bytes::Bytes;
use nacre_types::errno::Errno;
use nacre_types::object::{MAX_NAMESPACE_BYTES, MAX_OBJECT_NAME_BYTES, SNAP_HEAD};
use nacre_types::op::{
    OmapKeysReply, OmapValsReply, Op, OsdOp, SparseReadReply, StatReply, WatchInfo, request_flag,
};
use nacre_types::payload::Payload;
use nacre_types::{ObjectId, PoolId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The maximum number of bytes in one write, as in librados.
const MAX_WRITE_BYTES: usize = (u32::MAX / 2) as usize;

/// A pool with the namespace, locator and flags for operations in it. Cheap to clone.
#[derive(Clone)]
pub struct IoCtx {
    engine: Arc<dyn Engine>,
    pool: PoolId,
    pool_name: Arc<str>,
    namespace: Arc<str>,
    locator: Arc<str>,
    flags: u32,
}

impl IoCtx {
    /// Creates a context of a pool whose id and name are known; [`Cluster::open_pool`](crate::Cluster::open_pool) looks them up.
    pub fn new(engine: Arc<dyn Engine>, pool: PoolId, pool_name: &str) -> IoCtx {
        let empty: Arc<str> = Arc::from("");
        let (namespace, locator) = (empty.clone(), empty);
        IoCtx { engine, pool, pool_name: pool_name.into(), namespace, locator, flags: 0 }
    }

    /// Returns a context with another namespace; empty for the default one.
    pub fn with_namespace(&self, namespace: &str) -> IoCtx {
        IoCtx { namespace: namespace.into(), ..self.clone() }
    }

    /// Returns a context with a locator, which replaces objects' names in their placement; empty for none.
    pub fn with_locator(&self, locator: &str) -> IoCtx {
        IoCtx { locator: locator.into(), ..self.clone() }
    }

    /// Returns a context that adds request flags ([`request_flag`]) to every operation.
    pub fn with_flags(&self, flags: u32) -> IoCtx {
        IoCtx { flags: self.flags | flags, ..self.clone() }
    }

    /// Returns a context whose operations fail with ENOSPC or EDQUOT instead of waiting while the pool is full.
    pub fn with_full_try(&self) -> IoCtx {
        self.with_flags(request_flag::FULL_TRY)
    }

    /// The pool's id.
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// The pool's name when the context was created.
    pub fn pool_name(&self) -> &str {
        &self.pool_name
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The locator.
    pub fn locator(&self) -> &str {
        &self.locator
    }

    /// Returns the id of the object with this name. Fails if the name, locator or namespace exceeds its limits.
    pub fn object(&self, name: &str) -> Result<ObjectId> {
        let too_long = |what: &str, len: usize, limit: usize| {
            let detail = format!("{what} of {len} bytes exceeds the limit of {limit}");
            Err(Error::Invalid { errno: Errno::ENAMETOOLONG, detail })
        };
        if name.is_empty() {
            return Err(Error::Invalid { errno: Errno::EINVAL, detail: "the object's name is empty".into() });
        }
        if name.len() > MAX_OBJECT_NAME_BYTES {
            return too_long("object name", name.len(), MAX_OBJECT_NAME_BYTES);
        }
        if self.locator.len() > MAX_OBJECT_NAME_BYTES {
            return too_long("object locator", self.locator.len(), MAX_OBJECT_NAME_BYTES);
        }
        if self.namespace.len() > MAX_NAMESPACE_BYTES {
            return too_long("namespace", self.namespace.len(), MAX_NAMESPACE_BYTES);
        }
        Ok(ObjectId::new(self.pool, &self.namespace, &self.locator, name))
    }

    /// The engine that executes the operations.
    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    pub(crate) fn request_flags(&self) -> u32 {
        self.flags
    }

    pub(crate) fn request(
        &self,
        name: &str,
        ops: Vec<OsdOp>,
        flags: u32,
        mtime_ns: Option<u64>,
    ) -> Result<ObjectRequest> {
        for op in &ops {
            let bytes = match &op.op {
                Op::Write { data, .. } | Op::WriteFull { data } | Op::Append { data } => data.len(),
                Op::WriteSame { data, .. } | Op::CmpExt { data, .. } => data.len(),
                _ => continue,
            };
            if bytes > MAX_WRITE_BYTES {
                let detail = format!("a write of {bytes} bytes exceeds the limit of {MAX_WRITE_BYTES}");
                return Err(Error::Invalid { errno: Errno::E2BIG, detail });
            }
        }
        let object = self.object(name)?;
        let flags = flags | self.flags;
        Ok(ObjectRequest { object, ops, flags, snap: SNAP_HEAD, snap_context: None, mtime_ns, tier: None })
    }

    fn write_request(&self, name: &str, op: WriteOp) -> Result<ObjectRequest> {
        let calls = op.ops.iter().any(|op| matches!(op.op, Op::Call { .. }));
        let flags = if calls { op.flags | request_flag::WRITE } else { op.flags };
        self.request(name, op.ops, flags, op.mtime_ns)
    }

    fn start(&self, request: Result<ObjectRequest>) -> Pending<OpReply> {
        match request {
            Ok(request) => self.engine.operate(request),
            Err(error) => Pending::ready(Err(error)),
        }
    }

    /// Starts a compound write. The reply may have a negative result: see [`OpReply::success`].
    pub fn operate(&self, name: &str, op: WriteOp) -> Pending<OpReply> {
        self.start(self.write_request(name, op))
    }

    /// Starts a compound read. The reply may have a negative result: see [`OpReply::success`].
    pub fn operate_read(&self, name: &str, op: ReadOp) -> Pending<OpReply> {
        self.start(self.request(name, op.ops, op.flags, None))
    }

    /// Starts a compound write and calls `done` with its outcome (see [`Engine::submit`]).
    pub fn aio_operate(&self, name: &str, op: WriteOp, done: OnReply) {
        match self.write_request(name, op) {
            Ok(request) => self.engine.submit(request, done),
            Err(error) => done(Err(error)),
        }
    }

    /// Starts a compound read and calls `done` with its outcome (see [`Engine::submit`]).
    pub fn aio_operate_read(&self, name: &str, op: ReadOp, done: OnReply) {
        match self.request(name, op.ops, op.flags, None) {
            Ok(request) => self.engine.submit(request, done),
            Err(error) => done(Err(error)),
        }
    }

    fn single(&self, name: &str, op: Op) -> Pending<OpReply> {
        self.start(self.request(name, vec![OsdOp::from(op)], 0, None))
    }

    fn single_write(&self, name: &str, op: Op) -> Pending<()> {
        self.single(name, op).then(|reply| reply?.success().map(drop))
    }

    fn single_read<T: Send + 'static>(
        &self,
        name: &str,
        op: Op,
        read: impl FnOnce(&mut OpReply) -> Result<T> + Send + 'static,
    ) -> Pending<T> {
        self.single(name, op).then(|reply| read(&mut reply?.success()?))
    }

    /// Writes at `offset` bytes.
    pub fn write(&self, name: &str, offset: u64, data: impl Into<Payload>) -> Pending<()> {
        self.single_write(name, Op::Write { offset, data: data.into() })
    }

    /// Fills `len` bytes at `offset` with repetitions of `data`, whose length must divide `len` (EINVAL).
    pub fn write_same(&self, name: &str, offset: u64, len: u64, data: impl Into<Bytes>) -> Pending<()> {
        self.single_write(name, Op::WriteSame { offset, len, data: data.into() })
    }

    /// Replaces the object's data.
    pub fn write_full(&self, name: &str, data: impl Into<Payload>) -> Pending<()> {
        self.single_write(name, Op::WriteFull { data: data.into() })
    }

    /// Appends to the object.
    pub fn append(&self, name: &str, data: impl Into<Payload>) -> Pending<()> {
        self.single_write(name, Op::Append { data: data.into() })
    }

    /// Reads at most `len` bytes from `offset`, or to the end if `len` is 0. Returns less at the object's end.
    pub fn read(&self, name: &str, offset: u64, len: u64) -> Pending<Bytes> {
        self.single_read(name, Op::Read { offset, len }, |reply| reply.output(0))
    }

    /// Reads the allocated extents of a range.
    pub fn sparse_read(&self, name: &str, offset: u64, len: u64) -> Pending<SparseReadReply> {
        self.single_read(name, Op::SparseRead { offset, len }, |reply| reply.sparse(0))
    }

    /// Returns the allocated extents of a range, or to the object's end if `len` is 0: offsets and lengths.
    pub fn map_extents(&self, name: &str, offset: u64, len: u64) -> Pending<Vec<(u64, u64)>> {
        self.single_read(name, Op::MapExt { offset, len }, |reply| reply.extents(0))
    }

    /// The watches on the object.
    pub fn list_watchers(&self, name: &str) -> Pending<Vec<WatchInfo>> {
        self.single_read(name, Op::ListWatchers, |reply| reply.watchers(0))
    }

    /// Size and modification time.
    pub fn stat(&self, name: &str) -> Pending<StatReply> {
        self.single_read(name, Op::Stat, |reply| reply.stat(0))
    }

    /// Creates the object; with `exclusive` an existing one fails with EEXIST.
    pub fn create(&self, name: &str, exclusive: bool) -> Pending<()> {
        let mut op = WriteOp::new();
        op.create(exclusive);
        self.operate(name, op).then(|reply| reply?.success().map(drop))
    }

    /// Sets the size in bytes.
    pub fn truncate(&self, name: &str, size: u64) -> Pending<()> {
        self.single_write(name, Op::Truncate { size })
    }

    /// Zeroes a range.
    pub fn zero(&self, name: &str, offset: u64, len: u64) -> Pending<()> {
        self.single_write(name, Op::Zero { offset, len })
    }

    /// Removes the object. Fails with ENOENT if it is absent.
    pub fn remove(&self, name: &str) -> Pending<()> {
        self.single_write(name, Op::Remove)
    }

    /// Returns an attribute's value. Fails with ENODATA if it is absent.
    pub fn get_xattr(&self, name: &str, attr: &str) -> Pending<Bytes> {
        self.single_read(name, Op::GetXattr { name: attr.to_owned() }, |reply| reply.output(0))
    }

    /// Returns all attributes by name.
    pub fn get_xattrs(&self, name: &str) -> Pending<BTreeMap<Bytes, Bytes>> {
        self.single_read(name, Op::GetXattrs, |reply| reply.pairs(0))
    }

    /// Sets an attribute.
    pub fn set_xattr(&self, name: &str, attr: &str, value: impl Into<Bytes>) -> Pending<()> {
        self.single_write(name, Op::SetXattr { name: attr.to_owned(), value: value.into() })
    }

    /// Removes an attribute.
    pub fn rm_xattr(&self, name: &str, attr: &str) -> Pending<()> {
        self.single_write(name, Op::RmXattr { name: attr.to_owned() })
    }

    /// Returns at most `max` omap entries after `start_after` whose keys start with `filter_prefix`.
    pub fn omap_get_vals(
        &self,
        name: &str,
        start_after: impl Into<Bytes>,
        filter_prefix: impl Into<Bytes>,
        max: u64,
    ) -> Pending<OmapValsReply> {
        let (start_after, filter_prefix) = (start_after.into(), filter_prefix.into());
        let op = Op::OmapGetVals { start_after, filter_prefix, max };
        self.single_read(name, op, |reply| reply.omap_vals(0))
    }

    /// Returns at most `max` omap keys after `start_after`.
    pub fn omap_get_keys(
        &self,
        name: &str,
        start_after: impl Into<Bytes>,
        max: u64,
    ) -> Pending<OmapKeysReply> {
        let op = Op::OmapGetKeys { start_after: start_after.into(), max };
        self.single_read(name, op, |reply| reply.omap_keys(0))
    }

    /// Returns those omap entries with these keys that exist.
    pub fn omap_get_vals_by_keys(&self, name: &str, keys: Vec<Bytes>) -> Pending<BTreeMap<Bytes, Bytes>> {
        self.single_read(name, Op::OmapGetValsByKeys { keys }, |reply| reply.pairs(0))
    }

    /// Returns the omap header, empty if none was set.
    pub fn omap_get_header(&self, name: &str) -> Pending<Bytes> {
        self.single_read(name, Op::OmapGetHeader, |reply| reply.output(0))
    }

    /// Sets omap entries.
    pub fn omap_set(&self, name: &str, entries: Vec<(Bytes, Bytes)>) -> Pending<()> {
        self.single_write(name, Op::OmapSet { entries })
    }

    /// Sets the omap header.
    pub fn omap_set_header(&self, name: &str, header: impl Into<Bytes>) -> Pending<()> {
        self.single_write(name, Op::OmapSetHeader { header: header.into() })
    }

    /// Removes omap entries.
    pub fn omap_rm_keys(&self, name: &str, keys: Vec<Bytes>) -> Pending<()> {
        self.single_write(name, Op::OmapRmKeys { keys })
    }

    /// Removes all omap entries and the header.
    pub fn omap_clear(&self, name: &str) -> Pending<()> {
        self.single_write(name, Op::OmapClear)
    }

    /// Calls an object class's method and returns its output.
    pub fn call(&self, name: &str, class: &str, method: &str, input: impl Into<Bytes>) -> Pending<Bytes> {
        let op = Op::Call { class: class.to_owned(), method: method.to_owned(), input: input.into() };
        self.single_read(name, op, |reply| reply.output(0))
    }

    /// Lists the objects of this context's namespace in hash order.
    pub fn list(&self) -> Lister {
        Lister::new(self.engine.clone(), ListRange::whole(self.pool), Some(self.namespace.to_string()))
    }

    /// Lists the objects of all namespaces in hash order.
    pub fn list_all(&self) -> Lister {
        Lister::new(self.engine.clone(), ListRange::whole(self.pool), None)
    }

    /// Lists a part of the pool, of one namespace or (`None`) of all.
    pub fn list_range(&self, range: ListRange, namespace: Option<&str>) -> Lister {
        Lister::new(self.engine.clone(), range, namespace.map(str::to_owned))
    }
}
