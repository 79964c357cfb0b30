//! Synchronous operations on one object.

use crate::abi::{CStrPtr, Handle, InBuf, OutBuf, OutPtr, c_len};
use crate::guard::{ApiResult, exports};
use crate::ioctx::{AccessKind, IOCTXS};
use crate::ops::{CompoundOp, check_read_len, check_write_len, checksum_op, writesame_op};
use libc::{time_t, timespec};
use nacre_client::OpReply;
use nacre_types::errno::Errno;
use nacre_types::op::{Op, StatReply};
use std::ffi::c_int;

/// Executes one write.
pub(crate) fn write(io: Handle, oid: CStrPtr, op: Op) -> ApiResult<c_int> {
    IOCTXS.get(io)?.operate(AccessKind::Write, oid, CompoundOp::of(op))?;
    Ok(0)
}

/// Executes one read.
pub(crate) fn read(io: Handle, oid: CStrPtr, op: Op) -> ApiResult<OpReply> {
    IOCTXS.get(io)?.operate(AccessKind::Read, oid, CompoundOp::of(op))
}

/// The modification time in seconds since 1970.
pub(crate) fn mtime_secs(stat: &StatReply) -> time_t {
    time_t::try_from(stat.mtime_ns / 1_000_000_000).unwrap_or(time_t::MAX)
}

/// The modification time as a C structure.
pub(crate) fn mtime_timespec(stat: &StatReply) -> timespec {
    timespec { tv_sec: mtime_secs(stat), tv_nsec: (stat.mtime_ns % 1_000_000_000) as i64 }
}

exports! {
    /// Writes at an offset.
    fn rados_write(io: Handle, oid: CStrPtr, buf: InBuf, len: usize, off: u64) -> c_int {
        check_write_len(len)?;
        write(io, oid, Op::Write { offset: off, data: buf.copy(len)?.into() })
    }

    /// Replaces the object's data.
    fn rados_write_full(io: Handle, oid: CStrPtr, buf: InBuf, len: usize) -> c_int {
        check_write_len(len)?;
        write(io, oid, Op::WriteFull { data: buf.copy(len)?.into() })
    }

    /// Writes the same data repeatedly, `write_len` bytes in total.
    fn rados_writesame(io: Handle, oid: CStrPtr, buf: InBuf, data_len: usize, write_len: usize, off: u64) -> c_int {
        write(io, oid, writesame_op(off, buf.copy(data_len)?, write_len)?)
    }

    /// Writes at the object's end.
    fn rados_append(io: Handle, oid: CStrPtr, buf: InBuf, len: usize) -> c_int {
        check_write_len(len)?;
        write(io, oid, Op::Append { data: buf.copy(len)?.into() })
    }

    /// Reads. Returns the number of bytes, 0 beyond the object's end.
    fn rados_read(io: Handle, oid: CStrPtr, buf: OutBuf, len: usize, off: u64) -> c_int {
        check_read_len(len)?;
        let mut reply = read(io, oid, Op::Read { offset: off, len: len as u64 })?;
        Ok(c_len(buf.fill(len, &reply.output(0)?)?))
    }

    /// Returns 0 if the object contains the data at the offset, otherwise -4095 minus the index of the first byte that differs.
    fn rados_cmpext(io: Handle, o: CStrPtr, cmp_buf: InBuf, cmp_len: usize, off: u64) -> c_int {
        check_write_len(cmp_len)?;
        read(io, o, Op::CmpExt { offset: off, data: cmp_buf.copy(cmp_len)? })?;
        Ok(0)
    }

    /// Checksums of a range, one per `chunk_size` bytes: their number, then each of them, little-endian.
    fn rados_checksum(
        io: Handle,
        oid: CStrPtr,
        kind: c_int,
        init_value: InBuf,
        init_value_len: usize,
        len: usize,
        off: u64,
        chunk_size: usize,
        checksum: OutBuf,
        checksum_len: usize,
    ) -> c_int {
        let op = checksum_op(kind, init_value.slice(init_value_len)?, off, len, chunk_size)?;
        checksum.fill(checksum_len, &read(io, oid, op)?.output(0)?)?;
        Ok(0)
    }

    /// Removes the object.
    fn rados_remove(io: Handle, oid: CStrPtr) -> c_int {
        write(io, oid, Op::Remove)
    }

    /// Sets the object's size.
    fn rados_trunc(io: Handle, oid: CStrPtr, size: u64) -> c_int {
        if size > u64::from(u32::MAX) {
            return Err(Errno::E2BIG.into());
        }
        write(io, oid, Op::Truncate { size })
    }

    /// Size and modification time in seconds.
    fn rados_stat(io: Handle, o: CStrPtr, psize: OutPtr<u64>, pmtime: OutPtr<time_t>) -> c_int {
        let stat = read(io, o, Op::Stat)?.stat(0)?;
        psize.set(stat.size);
        pmtime.set(mtime_secs(&stat));
        Ok(0)
    }

    /// Size and modification time.
    fn rados_stat2(io: Handle, o: CStrPtr, psize: OutPtr<u64>, pmtime: OutPtr<timespec>) -> c_int {
        let stat = read(io, o, Op::Stat)?.stat(0)?;
        psize.set(stat.size);
        pmtime.set(mtime_timespec(&stat));
        Ok(0)
    }

    /// Hints at the object's final size and the size of writes.
    fn rados_set_alloc_hint(io: Handle, o: CStrPtr, object_size: u64, write_size: u64) -> c_int {
        alloc_hint(io, o, object_size, write_size, 0)
    }

    /// The same, with flags.
    fn rados_set_alloc_hint2(io: Handle, o: CStrPtr, object_size: u64, write_size: u64, flags: u32) -> c_int {
        alloc_hint(io, o, object_size, write_size, flags)
    }

    /// Keeps an object in its cache tier. EINVAL if the pool is not a cache tier.
    fn rados_cache_pin(io: Handle, o: CStrPtr) -> c_int {
        write(io, o, Op::CachePin)
    }

    /// Reverts `rados_cache_pin`.
    fn rados_cache_unpin(io: Handle, o: CStrPtr) -> c_int {
        write(io, o, Op::CacheUnpin)
    }

    /// Calls a method of an object class. Returns the length of its output.
    fn rados_exec(
        io: Handle,
        oid: CStrPtr,
        cls: CStrPtr,
        method: CStrPtr,
        in_buf: InBuf,
        in_len: usize,
        buf: OutBuf,
        out_len: usize,
    ) -> c_int {
        let op = class_call_op(cls, method, in_buf, in_len)?;
        let mut reply = IOCTXS.get(io)?.operate(AccessKind::Call, oid, CompoundOp::of(op))?;
        let code = reply.result;
        let output = reply.output(0)?;
        Ok(if output.is_empty() { code } else { c_len(buf.fill(out_len, &output)?) })
    }
}

/// A call of a method of an object class.
pub(crate) fn class_call_op(cls: CStrPtr, method: CStrPtr, in_buf: InBuf, in_len: usize) -> ApiResult<Op> {
    Ok(Op::Call {
        class: cls.text()?.to_owned(),
        method: method.text()?.to_owned(),
        input: in_buf.copy(in_len)?,
    })
}

fn alloc_hint(io: Handle, oid: CStrPtr, object_size: u64, write_size: u64, flags: u32) -> ApiResult<c_int> {
    let (expected_object_size, expected_write_size) = (object_size, write_size);
    write(io, oid, Op::SetAllocHint { expected_object_size, expected_write_size, flags })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ioctx::recorder::RecordingEngine;

    #[test]
    fn a_single_call_is_sent_as_a_read() {
        let (io, recorder) = RecordingEngine::io();
        let (object, class, method) = (CStrPtr::of(c"o"), CStrPtr::of(c"lock"), CStrPtr::of(c"get_info"));
        let called = rados_exec(io, object, class, method, InBuf::NULL, 0, OutBuf::NULL, 0);
        assert_eq!((called, recorder.take_writes()), (Errno::EIO.negated(), vec![false]));
    }
}
