//! `libradosstriper.so.1`: striped objects.
//!
//! A striper uses the state of its I/O context at the time of a call, including namespace and locator.

mod aio;
mod multi;

use crate::abi::{CText, Handle, InBuf, Out, OutBuf, length};
use crate::guard::{Outcome, exports};
use crate::handles::Table;
use crate::ioctx::{Access, POOLS, PoolIo, Writes};
use crate::iterators::{Entries, ITERATORS};
use crate::ops::{check_read_len, check_write_len};
use libc::{time_t, timespec};
use nacre_client::{Layout, Result, StripedStat, Striper};
use nacre_types::op::StatReply;
use parking_lot::Mutex;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

/// All stripers in use.
static STRIPERS: Table<StripedIo> = Table::new();

/// The object behind a `rados_striper_t`.
struct StripedIo {
    io: Arc<PoolIo>,
    striper: Mutex<(Striper, u32)>,
    writes: Writes,
}

impl StripedIo {
    /// The striper for an operation. Fails if the I/O context would fail.
    fn striper(&self, access: Access) -> Outcome<Striper> {
        self.io.check(access)?;
        let place = self.io.place.read();
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

    fn change_layout(&self, change: impl FnOnce(&mut Layout) -> Result<()>) -> Outcome<c_int> {
        let striper = self.striper.lock();
        let mut layout = striper.0.layout();
        change(&mut layout)?;
        striper.0.set_layout(layout);
        Ok(0)
    }
}

fn get(striper: Handle, access: Access) -> Outcome<Striper> {
    STRIPERS.get(striper)?.striper(access)
}

/// Size and time in the form that the shared functions expect.
fn stat_reply(stat: &StripedStat) -> StatReply {
    StatReply { size: stat.size, mtime_ns: stat.mtime_ns }
}

exports! {
    /// Creates a striper on an I/O context.
    fn rados_striper_create(ioctx: Handle, striper: Out<Handle>) -> c_int {
        let (io, striper) = (POOLS.get(ioctx)?, striper.required()?);
        let flags = io.flags();
        let on = nacre_client::striper(io.place.read().with_flags(flags));
        striper.set(STRIPERS.insert(StripedIo { io, striper: Mutex::new((on, flags)), writes: Writes::default() }));
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
    fn rados_striper_write(striper: Handle, soid: CText, buf: InBuf, len: usize, off: u64) -> c_int {
        check_write_len(len)?;
        get(striper, Access::Write)?.write(soid.text()?, off, buf.copy(len)?).wait()?;
        Ok(0)
    }

    /// Replaces the object's data.
    fn rados_striper_write_full(striper: Handle, soid: CText, buf: InBuf, len: usize) -> c_int {
        check_write_len(len)?;
        get(striper, Access::Write)?.write_full(soid.text()?, buf.copy(len)?).wait()?;
        Ok(0)
    }

    /// Writes at the object's end.
    fn rados_striper_append(striper: Handle, soid: CText, buf: InBuf, len: usize) -> c_int {
        check_write_len(len)?;
        get(striper, Access::Write)?.append(soid.text()?, buf.copy(len)?).wait()?;
        Ok(0)
    }

    /// Reads. Returns the number of bytes, 0 beyond the object's end.
    fn rados_striper_read(striper: Handle, soid: CText, buf: OutBuf, len: usize, off: u64) -> c_int {
        check_read_len(len)?;
        let runs = get(striper, Access::Read)?.read_runs(soid.text()?, off, len as u64).wait()?;
        Ok(length(buf.fill_runs(len, &runs)?))
    }

    /// Removes the object.
    fn rados_striper_remove(striper: Handle, soid: CText) -> c_int {
        get(striper, Access::Write)?.remove(soid.text()?).wait()?;
        Ok(0)
    }

    /// Sets the object's size.
    fn rados_striper_trunc(striper: Handle, soid: CText, size: u64) -> c_int {
        get(striper, Access::Write)?.truncate(soid.text()?, size).wait()?;
        Ok(0)
    }

    /// An attribute's value. Returns its length. ERANGE if the buffer is too small, ENODATA if the attribute does not exist.
    fn rados_striper_getxattr(striper: Handle, oid: CText, name: CText, buf: OutBuf, len: usize) -> c_int {
        let value = get(striper, Access::Read)?.get_xattr(oid.text()?, name.text()?).wait()?;
        Ok(length(buf.fill(len, &value)?))
    }

    /// Sets an attribute.
    fn rados_striper_setxattr(striper: Handle, oid: CText, name: CText, buf: InBuf, len: usize) -> c_int {
        get(striper, Access::Write)?.set_xattr(oid.text()?, name.text()?, buf.copy(len)?).wait()?;
        Ok(0)
    }

    /// Removes an attribute.
    fn rados_striper_rmxattr(striper: Handle, oid: CText, name: CText) -> c_int {
        get(striper, Access::Write)?.rm_xattr(oid.text()?, name.text()?).wait()?;
        Ok(0)
    }

    /// All attributes except the striper's own.
    fn rados_striper_getxattrs(striper: Handle, oid: CText, iter: Out<Handle>) -> c_int {
        let iter = iter.required()?;
        let attrs = get(striper, Access::Read)?.get_xattrs(oid.text()?).wait()?;
        let entries = Entries::create();
        Entries::store(entries, attrs);
        iter.set(entries);
        Ok(0)
    }

    /// The next attribute, or a null name at the end.
    fn rados_striper_getxattrs_next(
        iter: Handle,
        name: Out<crate::abi::Lent>,
        val: Out<crate::abi::Lent>,
        len: Out<usize>,
    ) -> c_int {
        crate::iterators::next_xattr(iter, name, val, len)
    }

    /// Ends an iteration.
    fn rados_striper_getxattrs_end(iter: Handle) {
        ITERATORS.remove(iter).map(drop)
    }

    /// Size and modification time in seconds.
    fn rados_striper_stat(striper: Handle, soid: CText, psize: Out<u64>, pmtime: Out<time_t>) -> c_int {
        let stat = get(striper, Access::Read)?.stat(soid.text()?).wait()?;
        psize.set(stat.size);
        pmtime.set(crate::sync_io::seconds(&stat_reply(&stat)));
        Ok(0)
    }

    /// Size and modification time.
    fn rados_striper_stat2(striper: Handle, soid: CText, psize: Out<u64>, pmtime: Out<timespec>) -> c_int {
        let stat = get(striper, Access::Read)?.stat(soid.text()?).wait()?;
        psize.set(stat.size);
        pmtime.set(crate::sync_io::time(&stat_reply(&stat)));
        Ok(0)
    }
}
