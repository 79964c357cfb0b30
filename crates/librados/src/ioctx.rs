//! The object behind a `rados_ioctx_t`: a pool with namespace, locator and flags, and the functions that change these.

#[cfg(test)]
pub(crate) mod recorder;

use crate::abi::{CStrPtr, Handle, OutBuf, OutPtr, PoolStat, c_len};
use crate::client::{CLIENTS, Client};
use crate::guard::{ApiError, ApiResult, exports};
use crate::handles::HandleTable;
use crate::ops::CompoundOp;
use nacre_client::{IoCtx, OpReply, block_on};
use nacre_types::PoolId;
use nacre_types::errno::Errno;
use nacre_types::object::{MAX_OBJECT_NAME_BYTES, SNAP_HEAD};
use nacre_types::op::request_flag;
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::BTreeSet;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// All I/O contexts in use.
pub(crate) static IOCTXS: HandleTable<IoCtxState> = HandleTable::new();

/// The namespace that selects the objects of all namespaces in listings (`LIBRADOS_ALL_NSPACES`).
pub(crate) const ALL_NAMESPACES: &str = "\u{1}";

/// Whether an operation changes its object.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AccessKind {
    Read,
    Write,
    /// A single method of an object class. Only the OSD knows whether it writes. Ceph's library sends it as a read.
    Call,
}

impl AccessKind {
    /// Whether the operation is sent as a write, which waits while the pool is full or writes are paused.
    pub(crate) fn sends_write(self) -> bool {
        self == AccessKind::Write
    }

    /// Whether the operation may change its object.
    pub(crate) fn may_write(self) -> bool {
        self != AccessKind::Read
    }
}

/// An I/O context.
pub(crate) struct IoCtxState {
    pub(crate) client: Arc<Client>,
    pub(crate) ioctx: RwLock<IoCtx>,
    pub(crate) writes: AioWriteTracker,
    read_snap: AtomicU64,
    flags: AtomicU32,
    last_version: AtomicU64,
}

impl IoCtxState {
    /// Creates a context on a pool, in the table.
    fn create(client: Arc<Client>, place: IoCtx) -> Handle {
        IOCTXS.insert(IoCtxState {
            client,
            ioctx: RwLock::new(place),
            writes: AioWriteTracker::default(),
            read_snap: AtomicU64::new(SNAP_HEAD),
            flags: AtomicU32::new(0),
            last_version: AtomicU64::new(0),
        })
    }

    /// Returns EROFS for operations that may write if the context reads a snapshot. Reads return the object's current state:
    /// without snapshots it has no other, and Ceph does the same.
    pub(crate) fn check(&self, access: AccessKind) -> ApiResult<()> {
        if access.may_write() && self.read_snap.load(Ordering::Relaxed) != SNAP_HEAD {
            return Err(Errno::EROFS.into());
        }
        Ok(())
    }

    /// Changes the place of later operations. If the text can't be a name, they fail with ENAMETOOLONG: C has no way to report
    /// that at once, and they must not address another place.
    fn change_ioctx(&self, text: ApiResult<&str>, change: impl Fn(&IoCtx, &str) -> IoCtx) -> ApiResult<()> {
        let mut place = self.ioctx.write();
        *place = match text {
            Ok(text) => change(&place, text),
            Err(_) => change(&place, &"?".repeat(MAX_OBJECT_NAME_BYTES + 1)),
        };
        Ok(())
    }

    /// The context's own request flags.
    pub(crate) fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Executes an operation and waits for it. The reply's result is not negative.
    pub(crate) fn operate(&self, access: AccessKind, oid: CStrPtr, mut op: CompoundOp) -> ApiResult<OpReply> {
        self.check(access)?;
        let name = oid.text()?;
        if op.is_empty() {
            return op.into_parts().map(|_| OpReply::default());
        }
        op.add_flags(self.flags());
        let (op, places) = op.into_parts()?;
        let pending = {
            let place = self.ioctx.read();
            if access.sends_write() {
                place.operate(name, op)
            } else {
                place.operate_read(name, op.into_read())
            }
        };
        let mut reply = match pending.wait() {
            Ok(reply) => reply,
            Err(error) => {
                places.fail(ApiError(error.errno()));
                return Err(error.into());
            }
        };
        places.store_results(&mut reply);
        self.last_version.store(reply.version, Ordering::Relaxed);
        Ok(reply.success()?)
    }
}

/// Asynchronous writes in flight, for flushes.
#[derive(Default)]
pub(crate) struct AioWriteTracker {
    state: Mutex<WritesState>,
    ended: Condvar,
}

#[derive(Default)]
struct WritesState {
    next: u64,
    pending: BTreeSet<u64>,
    /// Functions to call when all writes below a number have ended.
    waiters: Vec<(u64, Box<dyn FnOnce() + Send>)>,
}

impl WritesState {
    fn all_ended_below(&self, number: u64) -> bool {
        self.pending.first().is_none_or(|first| *first >= number)
    }
}

impl AioWriteTracker {
    /// Registers the start of a write. The returned number is for [`AioWriteTracker::end`].
    pub(crate) fn begin(&self) -> u64 {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.pending.insert(number);
        number
    }

    /// Registers the end of a write.
    pub(crate) fn end(&self, number: u64) {
        let due = {
            let mut state = self.state.lock();
            state.pending.remove(&number);
            let waiters = std::mem::take(&mut state.waiters);
            let (due, later): (Vec<_>, Vec<_>) =
                waiters.into_iter().partition(|(below, _)| state.all_ended_below(*below));
            state.waiters = later;
            due
        };
        self.ended.notify_all();
        due.into_iter().for_each(|(_, waiter)| waiter());
    }

    /// Waits for the writes that have started.
    pub(crate) fn flush(&self) {
        let mut state = self.state.lock();
        let below = state.next;
        while !state.all_ended_below(below) {
            self.ended.wait(&mut state);
        }
    }

    /// Calls `waiter` when the writes that have started have ended.
    pub(crate) fn call_when_flushed(&self, waiter: Box<dyn FnOnce() + Send>) {
        {
            let mut state = self.state.lock();
            let below = state.next;
            if !state.all_ended_below(below) {
                state.waiters.push((below, waiter));
                return;
            }
        }
        waiter();
    }
}

exports! {
    /// Opens a pool by name.
    fn rados_ioctx_create(cluster: Handle, pool_name: CStrPtr, ioctx: OutPtr<Handle>) -> c_int {
        let (client, ioctx) = (CLIENTS.get(cluster)?, ioctx.required()?);
        let place = block_on(client.cluster()?.open_pool(pool_name.text()?))?;
        ioctx.set(IoCtxState::create(client, place));
        Ok(0)
    }

    /// Opens a pool by id.
    fn rados_ioctx_create2(cluster: Handle, pool_id: i64, ioctx: OutPtr<Handle>) -> c_int {
        let (client, ioctx) = (CLIENTS.get(cluster)?, ioctx.required()?);
        let place = block_on(client.cluster()?.open_pool_id(PoolId(pool_id)))?;
        ioctx.set(IoCtxState::create(client, place));
        Ok(0)
    }

    /// Destroys a context. Operations that it started continue.
    fn rados_ioctx_destroy(io: Handle) {
        IOCTXS.remove(io).map(drop)
    }

    /// The configuration of the context's cluster handle.
    fn rados_ioctx_cct(io: Handle) -> Handle {
        Ok(IOCTXS.get(io)?.client.handle)
    }

    /// The cluster handle that the context was created with.
    fn rados_ioctx_get_cluster(io: Handle) -> Handle {
        Ok(IOCTXS.get(io)?.client.handle)
    }

    /// The pool's id.
    fn rados_ioctx_get_id(io: Handle) -> i64 {
        Ok(IOCTXS.get(io)?.ioctx.read().pool().0)
    }

    /// The pool's name. Returns its length. ENOENT if the pool does not exist any more.
    fn rados_ioctx_get_pool_name(io: Handle, buf: OutBuf, maxlen: c_uint) -> c_int {
        let io = IOCTXS.get(io)?;
        let pool = io.ioctx.read().pool();
        let map = io.client.osdmap()?;
        let name = &map.pools.get(&pool).ok_or(Errno::ENOENT)?.name;
        Ok(c_len(buf.fill_text(maxlen as usize, name.as_bytes())?))
    }

    /// Sets the namespace of later operations. Null or empty for the default one.
    fn rados_ioctx_set_namespace(io: Handle, nspace: CStrPtr) {
        IOCTXS.get(io)?.change_ioctx(nspace.text_or_empty(), IoCtx::with_namespace)
    }

    /// The namespace. Returns its length.
    fn rados_ioctx_get_namespace(io: Handle, buf: OutBuf, maxlen: c_uint) -> c_int {
        let io = IOCTXS.get(io)?;
        let place = io.ioctx.read();
        Ok(c_len(buf.fill_text(maxlen as usize, place.namespace().as_bytes())?))
    }

    /// Sets the key that places objects instead of their names. Null or empty for none.
    fn rados_ioctx_locator_set_key(io: Handle, key: CStrPtr) {
        IOCTXS.get(io)?.change_ioctx(key.text_or_empty(), IoCtx::with_locator)
    }

    /// Sets the snapshot that later reads see.
    fn rados_ioctx_snap_set_read(io: Handle, snap: u64) {
        IOCTXS.get(io)?.read_snap.store(snap, Ordering::Relaxed);
        Ok(())
    }

    /// The user version that the last synchronous operation of the context returned.
    fn rados_get_last_version(io: Handle) -> u64 {
        Ok(IOCTXS.get(io)?.last_version.load(Ordering::Relaxed))
    }

    /// Later writes fail with ENOSPC or EDQUOT instead of waiting while the pool is full.
    fn rados_set_pool_full_try(io: Handle) {
        full_try(io, true)
    }

    /// Reverts `rados_set_pool_full_try`.
    fn rados_unset_pool_full_try(io: Handle) {
        full_try(io, false)
    }

    /// The older name of `rados_set_pool_full_try`.
    fn rados_set_osdmap_full_try(io: Handle) {
        full_try(io, true)
    }

    /// The older name of `rados_unset_pool_full_try`.
    fn rados_unset_osdmap_full_try(io: Handle) {
        full_try(io, false)
    }

    /// Whether writes must be aligned. Replicated pools do not require it.
    fn rados_ioctx_pool_requires_alignment(io: Handle) -> c_int {
        Ok(c_int::from(alignment(io)? > 0))
    }

    /// Like `rados_ioctx_pool_requires_alignment`.
    fn rados_ioctx_pool_requires_alignment2(io: Handle, req: OutPtr<c_int>) -> c_int {
        req.set(c_int::from(alignment(io)? > 0));
        Ok(0)
    }

    /// The alignment of writes in bytes, or 0 for none.
    fn rados_ioctx_pool_required_alignment(io: Handle) -> u64 {
        alignment(io)
    }

    /// Like `rados_ioctx_pool_required_alignment`.
    fn rados_ioctx_pool_required_alignment2(io: Handle, alignment_: OutPtr<u64>) -> c_int {
        alignment_.required()?.set(alignment(io)?);
        Ok(0)
    }
}

fn full_try(io: Handle, on: bool) -> ApiResult<()> {
    let io = IOCTXS.get(io)?;
    if on {
        io.flags.fetch_or(request_flag::FULL_TRY, Ordering::Relaxed);
    } else {
        io.flags.fetch_and(!request_flag::FULL_TRY, Ordering::Relaxed);
    }
    Ok(())
}

/// The pool's alignment. ENOENT if the pool does not exist any more.
fn alignment(io: Handle) -> ApiResult<u64> {
    let io = IOCTXS.get(io)?;
    let pool = io.ioctx.read().pool();
    let map = io.client.osdmap()?;
    map.pools.get(&pool).ok_or(Errno::ENOENT)?;
    // Only erasure-coded pools have one, and Nacre has none of those.
    Ok(0)
}

/// Statistics of a context's pool.
pub(crate) fn pool_stat(io: Handle) -> ApiResult<PoolStat> {
    let io = IOCTXS.get(io)?;
    let pool = io.ioctx.read().pool();
    let all = block_on(io.client.cluster()?.pool_stats())?;
    let stats = all.into_iter().find(|stats| stats.id == pool.0).ok_or(Errno::ENOENT)?;
    Ok(PoolStat {
        base: crate::abi::PoolStatBase {
            num_bytes: stats.used_bytes,
            num_kb: stats.used_bytes.div_ceil(1024),
            num_objects: stats.objects,
            num_object_clones: stats.clones,
            num_object_copies: stats.copies,
            num_objects_missing_on_primary: stats.missing_on_primary,
            num_objects_unfound: stats.unfound,
            num_objects_degraded: stats.degraded,
            num_rd: stats.reads,
            num_rd_kb: stats.read_kib,
            num_wr: stats.writes,
            num_wr_kb: stats.write_kib,
        },
        num_user_bytes: stats.bytes,
        compressed_bytes_orig: stats.compressed_original_bytes,
        compressed_bytes: stats.compressed_used_bytes,
        compressed_bytes_alloc: stats.compressed_used_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_waits_for_the_writes_before_it_only() {
        let writes = AioWriteTracker::default();
        let (first, second) = (writes.begin(), writes.begin());
        let flushed = Arc::new(Mutex::new(0));
        let count = |flushed: &Arc<Mutex<u32>>| {
            let flushed = flushed.clone();
            Box::new(move || *flushed.lock() += 1)
        };
        writes.call_when_flushed(count(&flushed));
        let third = writes.begin();
        writes.end(second);
        assert_eq!(*flushed.lock(), 0);
        writes.end(first);
        assert_eq!(*flushed.lock(), 1);
        writes.end(third);
        writes.flush();
        writes.call_when_flushed(count(&flushed));
        assert_eq!(*flushed.lock(), 2);
    }
}
