//! `libradosstriper.so.1`: striped objects.
//!
//! A striper uses the state of its I/O context at the time of a call, including namespace and locator.

mod aio;
mod multi;

use crate::abi::{CStrPtr, Handle, InBuf, OutBuf, OutPtr, c_len};
use crate::guard::{ApiResult, exports};
use crate::handles::HandleTable;
use crate::ioctx::{AccessKind, AioWriteTracker, IOCTXS, IoCtxState};
use crate::iterators::{ITERATORS, KeyValueIter};
use crate::ops::{check_read_len, check_write_len};
use libc::{time_t, timespec};
use nacre_client::{Layout, Result, StripedStat, Striper};
use nacre_types::op::StatReply;
use parking_lot::Mutex;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

/// All stripers in use.
static STRIPERS: HandleTable<StripedIo> = HandleTable::new();

/// The object behind a `rados_striper_t`.
struct StripedIo {
    io: Arc<IoCtxState>,
    striper: Mutex<(Striper, u32)>,
    writes: AioWriteTracker,
}

impl StripedIo {
    /// The striper for an operation. Fails if the I/O context would fail.
    fn striper(&self, access: AccessKind) -> ApiResult<Striper> {
        self.io.check(access)?;
        let place = self.io.ioctx.read();
        let mut striper = self.striper.lock();
        let (current, flags) = (striper.0.pool(), self.io.flags());
        let same = current.namespace() == place.namespace()
            && current.locator() == place.locator()
            && striper.1 == flags;
        if !same {
            let layout = striper.0.layout();
            *striper = (nacre_client::striper(place.with_flags(flags)), flags);
            striper.0.set_layout(layout);
        }
        Ok(striper.0.clone())
    }

    fn change_layout(&self, change: impl FnOnce(&mut Layout) -> Result<()>) -> ApiResult<c_int> {
        let striper = self.striper.lock();
        let mut layout = striper.0.layout();
        change(&mut layout)?;
        striper.0.set_layout(layout);
        Ok(0)
    }
}

fn get(striper: Handle, access: AccessKind) -> ApiResult<Striper> {
    STRIPERS.get(striper)?.striper(access)
}

/// Size and time in the form that the shared functions expect.
fn stat_reply(stat: &StripedStat) -> StatReply {
    StatReply { size: stat.size, mtime_ns: stat.mtime_ns }
}

exports! {
    /// Creates a striper on an I/O context.
    fn rados_striper_create(ioctx: Handle, striper: OutPtr<Handle>) -> c_int {
        let (io, striper) = (IOCTXS.get(ioctx)?, striper.required()?);
        let flags = io.flags();
        let on = nacre_client::striper(io.ioctx.read().with_flags(flags));
        striper.set(STRIPERS.insert(StripedIo { io, striper: Mutex::new((on, flags)), writes: AioWriteTracker::default() }));
        Ok(0)
    }

    /// Destroys a striper. Operations that it started continue.
    fn rados_striper_destroy(striper: Handle) {
        STRIPERS.remove(striper).map(drop)
    }

    /// Sets the stripe unit of objects created later. EINVAL unless it is a multiple of 64 KiB.
    fn rados_striper_set_object_layout_stripe_unit(striper: Handle, stripe_unit: c_uint) -> c_int {
        STRIPERS.get(striper)?.change_layout(|layout| layout.set_stripe_unit(stripe_unit))
    }

    /// Sets the stripe count of objects created later. EINVAL for 0.
    fn rados_striper_set_object_layout_stripe_count(striper: Handle, stripe_count: c_uint) -> c_int {
        STRIPERS.get(striper)?.change_layout(|layout| layout.set_stripe_count(stripe_count))
    }

    /// Sets the object size of objects created later. EINVAL unless it is a multiple of 64 KiB and of the stripe unit.
    fn rados_striper_set_object_layout_object_size(striper: Handle, object_size: c_uint) -> c_int {
        STRIPERS.get(striper)?.change_layout(|layout| layout.set_object_size(object_size))
    }

    /// Writes at an offset.
    fn rados_striper_write(striper: Handle, soid: CStrPtr, buf: InBuf, len: usize, off: u64) -> c_int {
        check_write_len(len)?;
        get(striper, AccessKind::Write)?.write(soid.text()?, off, buf.copy(len)?).wait()?;
        Ok(0)
    }

    /// Replaces the object's data.
    fn rados_striper_write_full(striper: Handle, soid: CStrPtr, buf: InBuf, len: usize) -> c_int {
        check_write_len(len)?;
        get(striper, AccessKind::Write)?.write_full(soid.text()?, buf.copy(len)?).wait()?;
        Ok(0)
    }

    /// Writes at the object's end.
    fn rados_striper_append(striper: Handle, soid: CStrPtr, buf: InBuf, len: usize) -> c_int {
        check_write_len(len)?;
        get(striper, AccessKind::Write)?.append(soid.text()?, buf.copy(len)?).wait()?;
        Ok(0)
    }

    /// Reads. Returns the number of bytes, 0 beyond the object's end.
    fn rados_striper_read(striper: Handle, soid: CStrPtr, buf: OutBuf, len: usize, off: u64) -> c_int {
        check_read_len(len)?;
        let runs = get(striper, AccessKind::Read)?.read_runs(soid.text()?, off, len as u64).wait()?;
        Ok(c_len(buf.fill_runs(len, &runs)?))
    }

    /// Removes the object.
    fn rados_striper_remove(striper: Handle, soid: CStrPtr) -> c_int {
        get(striper, AccessKind::Write)?.remove(soid.text()?).wait()?;
        Ok(0)
    }

    /// Sets the object's size.
    fn rados_striper_trunc(striper: Handle, soid: CStrPtr, size: u64) -> c_int {
        get(striper, AccessKind::Write)?.truncate(soid.text()?, size).wait()?;
        Ok(0)
    }

    /// An attribute's value. Returns its length. ERANGE if the buffer is too small, ENODATA if the attribute does not exist.
    fn rados_striper_getxattr(striper: Handle, oid: CStrPtr, name: CStrPtr, buf: OutBuf, len: usize) -> c_int {
        let value = get(striper, AccessKind::Read)?.get_xattr(oid.text()?, name.text()?).wait()?;
        Ok(c_len(buf.fill(len, &value)?))
    }

    /// Sets an attribute.
    fn rados_striper_setxattr(striper: Handle, oid: CStrPtr, name: CStrPtr, buf: InBuf, len: usize) -> c_int {
        get(striper, AccessKind::Write)?.set_xattr(oid.text()?, name.text()?, buf.copy(len)?).wait()?;
        Ok(0)
    }

    /// Removes an attribute.
    fn rados_striper_rmxattr(striper: Handle, oid: CStrPtr, name: CStrPtr) -> c_int {
        get(striper, AccessKind::Write)?.rm_xattr(oid.text()?, name.text()?).wait()?;
        Ok(0)
    }

    /// All attributes except the striper's own.
    fn rados_striper_getxattrs(striper: Handle, oid: CStrPtr, iter: OutPtr<Handle>) -> c_int {
        let iter = iter.required()?;
        let attrs = get(striper, AccessKind::Read)?.get_xattrs(oid.text()?).wait()?;
        let entries = KeyValueIter::create();
        KeyValueIter::store(entries, attrs);
        iter.set(entries);
        Ok(0)
    }

    /// The next attribute, or a null name at the end.
    fn rados_striper_getxattrs_next(
        iter: Handle,
        name: OutPtr<crate::abi::BorrowedPtr>,
        val: OutPtr<crate::abi::BorrowedPtr>,
        len: OutPtr<usize>,
    ) -> c_int {
        crate::iterators::next_xattr(iter, name, val, len)
    }

    /// Ends an iteration.
    fn rados_striper_getxattrs_end(iter: Handle) {
        ITERATORS.remove(iter).map(drop)
    }

    /// Size and modification time in seconds.
    fn rados_striper_stat(striper: Handle, soid: CStrPtr, psize: OutPtr<u64>, pmtime: OutPtr<time_t>) -> c_int {
        let stat = get(striper, AccessKind::Read)?.stat(soid.text()?).wait()?;
        psize.set(stat.size);
        pmtime.set(crate::sync_io::mtime_secs(&stat_reply(&stat)));
        Ok(0)
    }

    /// Size and modification time.
    fn rados_striper_stat2(striper: Handle, soid: CStrPtr, psize: OutPtr<u64>, pmtime: OutPtr<timespec>) -> c_int {
        let stat = get(striper, AccessKind::Read)?.stat(soid.text()?).wait()?;
        psize.set(stat.size);
        pmtime.set(crate::sync_io::mtime_timespec(&stat_reply(&stat)));
        Ok(0)
    }
}
