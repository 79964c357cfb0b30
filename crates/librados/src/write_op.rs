//! Compound writes: `rados_write_op_*`.

use crate::abi::{CStrPtr, Handle, InArray, InBuf, OutPtr};
use crate::aio;
use crate::guard::{ApiResult, exports};
use crate::handles::HandleTable;
use crate::ioctx::{AccessKind, IOCTXS};
use crate::ops::{CompoundOp, check_write_len, cmp_op, request_flags, writesame_op};
use crate::slices::{entries, entries_with_lens, keys, keys_with_lens};
use crate::sync_io::class_call_op;
use bytes::Bytes;
use libc::{time_t, timespec};
use nacre_types::errno::Errno;
use nacre_types::op::{CmpValue, Op, op_flag};
use parking_lot::Mutex;
use std::ffi::c_int;

/// All compound writes under construction.
static WRITE_OPS: HandleTable<Mutex<CompoundOp>> = HandleTable::new();

/// `LIBRADOS_CREATE_EXCLUSIVE`.
const EXCLUSIVE: c_int = 1;

/// Adds a part to an operation. If that fails, the operation will fail.
fn add(write_op: Handle, add: impl FnOnce(&mut CompoundOp) -> ApiResult<()>) -> ApiResult<()> {
    build(&WRITE_OPS, write_op, add)
}

/// Like [`add`], for either kind of operation.
pub(crate) fn build(
    table: &HandleTable<Mutex<CompoundOp>>,
    op: Handle,
    add: impl FnOnce(&mut CompoundOp) -> ApiResult<()>,
) -> ApiResult<()> {
    let op = table.get(op)?;
    let mut compound = op.lock();
    if let Err(why) = add(&mut compound) {
        compound.set_error(why);
    }
    Ok(())
}

/// The guard that the object contains some data.
pub(crate) fn compare_data(data: InBuf, len: usize, offset: u64) -> ApiResult<Op> {
    check_write_len(len)?;
    Ok(Op::CmpExt { offset, data: data.copy(len)? })
}

/// The guard `value OPERATOR attribute`.
pub(crate) fn compare_xattr(name: CStrPtr, operator: u8, value: InBuf, len: usize) -> ApiResult<Op> {
    let (name, op) = (name.text()?.to_owned(), cmp_op(operator)?);
    Ok(Op::CmpXattr { name, op, value: CmpValue::Bytes(value.copy(len)?) })
}

/// The guard `value OPERATOR omap entry`.
pub(crate) fn compare_omap(key: &[u8], operator: u8, value: InBuf, len: usize) -> ApiResult<Op> {
    let assertion = (Bytes::copy_from_slice(key), cmp_op(operator)?, value.copy(len)?);
    Ok(Op::OmapCmp { assertions: vec![assertion] })
}

/// Takes the operation with its flags and leaves the handle's operation empty.
fn take(write_op: Handle, flags: c_int, mtime_ns: Option<u64>) -> ApiResult<CompoundOp> {
    let mut op = std::mem::take(&mut *WRITE_OPS.get(write_op)?.lock());
    op.add_flags(request_flags(flags));
    if let Some(mtime_ns) = mtime_ns {
        op.set_mtime_ns(mtime_ns);
    }
    Ok(op)
}

fn nanoseconds(seconds: i64, nanoseconds: i64) -> ApiResult<u64> {
    let seconds = u64::try_from(seconds).ok().and_then(|s| s.checked_mul(1_000_000_000));
    let total = seconds.zip(u64::try_from(nanoseconds).ok()).and_then(|(s, ns)| s.checked_add(ns));
    Ok(total.ok_or(Errno::EINVAL)?)
}

fn of_time(mtime: OutPtr<time_t>) -> ApiResult<Option<u64>> {
    mtime.get().map(|seconds| nanoseconds(seconds, 0)).transpose()
}

exports! {
    /// Creates an empty operation.
    fn rados_create_write_op() -> Handle {
        Ok(WRITE_OPS.insert(Mutex::default()))
    }

    /// Destroys an operation.
    fn rados_release_write_op(write_op: Handle) {
        WRITE_OPS.remove(write_op).map(drop)
    }

    /// Sets flags of the part that was added last.
    fn rados_write_op_set_flags(write_op: Handle, flags: c_int) {
        add(write_op, |op| {
            op.set_op_flags(flags);
            Ok(())
        })
    }

    /// Fails with ENOENT if the object is absent.
    fn rados_write_op_assert_exists(write_op: Handle) {
        add(write_op, |op| {
            op.push(Op::AssertExists);
            Ok(())
        })
    }

    /// Fails with ERANGE or EOVERFLOW unless the object has this version.
    fn rados_write_op_assert_version(write_op: Handle, ver: u64) {
        add(write_op, |op| {
            op.push(Op::AssertVersion { version: ver });
            Ok(())
        })
    }

    /// Fails unless the object contains the data at the offset, with -4095 minus the index of the first byte that differs.
    fn rados_write_op_cmpext(write_op: Handle, cmp_buf: InBuf, cmp_len: usize, off: u64, prval: OutPtr<c_int>) {
        add(write_op, |op| {
            op.push_with_output(compare_data(cmp_buf, cmp_len, off)?, prval, None);
            Ok(())
        })
    }

    /// Fails with ECANCELED unless the comparison with the attribute holds.
    fn rados_write_op_cmpxattr(write_op: Handle, name: CStrPtr, operator: u8, value: InBuf, value_len: usize) {
        add(write_op, |op| {
            op.push(compare_xattr(name, operator, value, value_len)?);
            Ok(())
        })
    }

    /// Fails with ECANCELED unless the comparison with the omap entry holds.
    fn rados_write_op_omap_cmp(
        write_op: Handle,
        key: CStrPtr,
        operator: u8,
        val: InBuf,
        val_len: usize,
        prval: OutPtr<c_int>,
    ) {
        add(write_op, |op| {
            op.push_with_output(compare_omap(key.bytes()?, operator, val, val_len)?, prval, None);
            Ok(())
        })
    }

    /// The same, with the length of the key.
    fn rados_write_op_omap_cmp2(
        write_op: Handle,
        key: CStrPtr,
        operator: u8,
        val: InBuf,
        key_len: usize,
        val_len: usize,
        prval: OutPtr<c_int>,
    ) {
        add(write_op, |op| {
            op.push_with_output(compare_omap(key.sized(key_len)?, operator, val, val_len)?, prval, None);
            Ok(())
        })
    }

    /// Sets an attribute.
    fn rados_write_op_setxattr(write_op: Handle, name: CStrPtr, value: InBuf, value_len: usize) {
        add(write_op, |op| {
            op.push(Op::SetXattr { name: name.text()?.to_owned(), value: value.copy(value_len)? });
            Ok(())
        })
    }

    /// Removes an attribute.
    fn rados_write_op_rmxattr(write_op: Handle, name: CStrPtr) {
        add(write_op, |op| {
            op.push(Op::RmXattr { name: name.text()?.to_owned() });
            Ok(())
        })
    }

    /// Creates the object.
    fn rados_write_op_create(write_op: Handle, exclusive: c_int, _category: CStrPtr) {
        add(write_op, |op| {
            let exclusive = exclusive == EXCLUSIVE;
            op.push(Op::Create { exclusive });
            if exclusive {
                op.set_op_flags(op_flag::EXCL.cast_signed());
            }
            Ok(())
        })
    }

    /// Writes at an offset.
    fn rados_write_op_write(write_op: Handle, buffer: InBuf, len: usize, offset: u64) {
        add(write_op, |op| {
            check_write_len(len)?;
            op.push(Op::Write { offset, data: buffer.copy(len)?.into() });
            Ok(())
        })
    }

    /// Replaces the object's data.
    fn rados_write_op_write_full(write_op: Handle, buffer: InBuf, len: usize) {
        add(write_op, |op| {
            check_write_len(len)?;
            op.push(Op::WriteFull { data: buffer.copy(len)?.into() });
            Ok(())
        })
    }

    /// Writes the same data repeatedly, `write_len` bytes in total.
    fn rados_write_op_writesame(write_op: Handle, buffer: InBuf, data_len: usize, write_len: usize, offset: u64) {
        add(write_op, |op| {
            op.push(writesame_op(offset, buffer.copy(data_len)?, write_len)?);
            Ok(())
        })
    }

    /// Writes at the object's end.
    fn rados_write_op_append(write_op: Handle, buffer: InBuf, len: usize) {
        add(write_op, |op| {
            check_write_len(len)?;
            op.push(Op::Append { data: buffer.copy(len)?.into() });
            Ok(())
        })
    }

    /// Removes the object.
    fn rados_write_op_remove(write_op: Handle) {
        add(write_op, |op| {
            op.push(Op::Remove);
            Ok(())
        })
    }

    /// Sets the object's size.
    fn rados_write_op_truncate(write_op: Handle, offset: u64) {
        add(write_op, |op| {
            op.push(Op::Truncate { size: offset });
            Ok(())
        })
    }

    /// Sets a range to zeros.
    fn rados_write_op_zero(write_op: Handle, offset: u64, len: u64) {
        add(write_op, |op| {
            op.push(Op::Zero { offset, len });
            Ok(())
        })
    }

    /// Calls a method of an object class.
    fn rados_write_op_exec(
        write_op: Handle,
        cls: CStrPtr,
        method: CStrPtr,
        in_buf: InBuf,
        in_len: usize,
        prval: OutPtr<c_int>,
    ) {
        add(write_op, |op| {
            op.push_with_output(class_call_op(cls, method, in_buf, in_len)?, prval, None);
            Ok(())
        })
    }

    /// Sets omap entries.
    fn rados_write_op_omap_set(
        write_op: Handle,
        keys: InArray<CStrPtr>,
        vals: InArray<InBuf>,
        lens: InArray<usize>,
        num: usize,
    ) {
        add(write_op, |op| {
            op.push(Op::OmapSet { entries: entries(keys, vals, lens, num)? });
            Ok(())
        })
    }

    /// The same, with the lengths of the keys.
    fn rados_write_op_omap_set2(
        write_op: Handle,
        keys: InArray<CStrPtr>,
        vals: InArray<InBuf>,
        key_lens: InArray<usize>,
        val_lens: InArray<usize>,
        num: usize,
    ) {
        add(write_op, |op| {
            op.push(Op::OmapSet { entries: entries_with_lens(keys, vals, key_lens, val_lens, num)? });
            Ok(())
        })
    }

    /// Removes omap entries.
    fn rados_write_op_omap_rm_keys(write_op: Handle, names: InArray<CStrPtr>, keys_len: usize) {
        add(write_op, |op| {
            op.push(Op::OmapRmKeys { keys: keys(names, keys_len)? });
            Ok(())
        })
    }

    /// The same, with the lengths of the keys.
    fn rados_write_op_omap_rm_keys2(
        write_op: Handle,
        names: InArray<CStrPtr>,
        key_lens: InArray<usize>,
        keys_len: usize,
    ) {
        add(write_op, |op| {
            op.push(Op::OmapRmKeys { keys: keys_with_lens(names, key_lens, keys_len)? });
            Ok(())
        })
    }

    /// Removes omap entries from one key up to, but not including, another.
    fn rados_write_op_omap_rm_range2(
        write_op: Handle,
        key_begin: InBuf,
        key_begin_len: usize,
        key_end: InBuf,
        key_end_len: usize,
    ) {
        add(write_op, |op| {
            let (first, last) = (key_begin.copy(key_begin_len)?, key_end.copy(key_end_len)?);
            op.push(Op::OmapRmRange { first, last });
            Ok(())
        })
    }

    /// Removes all omap entries and the header.
    fn rados_write_op_omap_clear(write_op: Handle) {
        add(write_op, |op| {
            op.push(Op::OmapClear);
            Ok(())
        })
    }

    /// Hints at the object's final size and the size of writes.
    fn rados_write_op_set_alloc_hint(write_op: Handle, object_size: u64, write_size: u64) {
        alloc_hint(write_op, object_size, write_size, 0)
    }

    /// The same, with flags.
    fn rados_write_op_set_alloc_hint2(write_op: Handle, object_size: u64, write_size: u64, flags: u32) {
        alloc_hint(write_op, object_size, write_size, flags)
    }

    /// Executes the operation.
    fn rados_write_op_operate(write_op: Handle, io: Handle, oid: CStrPtr, mtime: OutPtr<time_t>, flags: c_int) -> c_int {
        operate(write_op, io, oid, of_time(mtime)?, flags)
    }

    /// The same, with a modification time in nanoseconds.
    fn rados_write_op_operate2(
        write_op: Handle,
        io: Handle,
        oid: CStrPtr,
        mtime: OutPtr<timespec>,
        flags: c_int,
    ) -> c_int {
        let mtime_ns = mtime.get().map(|time| nanoseconds(time.tv_sec, time.tv_nsec)).transpose()?;
        operate(write_op, io, oid, mtime_ns, flags)
    }

    /// Starts the operation asynchronously.
    fn rados_aio_write_op_operate(
        write_op: Handle,
        io: Handle,
        completion: Handle,
        oid: CStrPtr,
        mtime: OutPtr<time_t>,
        flags: c_int,
    ) -> c_int {
        let op = take(write_op, flags, of_time(mtime)?)?;
        aio::start(io, completion, AccessKind::Write, oid, op, |reply| Ok(reply.result))
    }
}

fn operate(
    write_op: Handle,
    io: Handle,
    oid: CStrPtr,
    mtime_ns: Option<u64>,
    flags: c_int,
) -> ApiResult<c_int> {
    let io = IOCTXS.get(io)?;
    Ok(io.operate(AccessKind::Write, oid, take(write_op, flags, mtime_ns)?)?.result)
}

fn alloc_hint(write_op: Handle, object_size: u64, write_size: u64, flags: u32) -> ApiResult<()> {
    add(write_op, |op| {
        let (expected_object_size, expected_write_size) = (object_size, write_size);
        op.push(Op::SetAllocHint { expected_object_size, expected_write_size, flags });
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modification_times_are_nanoseconds_since_1970() {
        assert_eq!(nanoseconds(2, 5), Ok(2_000_000_005));
        assert_eq!(nanoseconds(-1, 0), Err(Errno::EINVAL.into()));
        assert_eq!(nanoseconds(i64::MAX, 0), Err(Errno::EINVAL.into()));
    }
}
