//! Synchronous operations on one object.

use crate::abi::{CText, Handle, InBuf, Out, OutBuf, length};
use crate::guard::{Outcome, exports};
use crate::ioctx::{Access, POOLS};
use crate::ops::{Compound, check_read_len, check_write_len, checksums, repeated};
use libc::{time_t, timespec};
use nacre_client::OpReply;
use nacre_types::errno::Errno;
use nacre_types::op::{Op, StatReply};
use std::ffi::c_int;

/// Executes one write.
pub(crate) fn write(io: Handle, oid: CText, op: Op) -> Outcome<c_int> {
    POOLS.get(io)?.operate(Access::Write, oid, Compound::of(op))?;
    Ok(0)
}

/// Executes one read.
pub(crate) fn read(io: Handle, oid: CText, op: Op) -> Outcome<OpReply> {
    POOLS.get(io)?.operate(Access::Read, oid, Compound::of(op))
}

/// The modification time in seconds since 1970.
pub(crate) fn seconds(stat: &StatReply) -> time_t {
    time_t::try_from(stat.mtime_ns / 1_000_000_000).unwrap_or(time_t::MAX)
}

/// The modification time as a C structure.
pub(crate) fn time(stat: &StatReply) -> timespec {
    timespec { tv_sec: seconds(stat), tv_nsec: (stat.mtime_ns % 1_000_000_000) as i64 }
}

exports! {
    /// Writes at an offset.
    fn rados_write(io: Handle, oid: CText, buf: InBuf, len: usize, off: u64) -> c_int {
        check_write_len(len)?;
        write(io, oid, Op::Write { offset: off, data: buf.copy(len)?.into() })
    }

    /// Replaces the object's data.
    fn rados_write_full(io: Handle, oid: CText, buf: InBuf, len: usize) -> c_int {
        check_write_len(len)?;
        write(io, oid, Op::WriteFull { data: buf.copy(len)?.into() })
    }

    /// Writes the same data repeatedly, `write_len` bytes in total.
    fn rados_writesame(io: Handle, oid: CText, buf: InBuf, data_len: usize, write_len: usize, off: u64) -> c_int {
        write(io, oid, repeated(off, buf.copy(data_len)?, write_len)?)
    }

    /// Writes at the object's end.
    fn rados_append(io: Handle, oid: CText, buf: InBuf, len: usize) -> c_int {
        check_write_len(len)?;
        write(io, oid, Op::Append { data: buf.copy(len)?.into() })
    }

    /// Reads. Returns the number of bytes, 0 beyond the object's end.
    fn rados_read(io: Handle, oid: CText, buf: OutBuf, len: usize, off: u64) -> c_int {
        check_read_len(len)?;
        let mut reply = read(io, oid, Op::Read { offset: off, len: len as u64 })?;
        Ok(length(buf.fill(len, &reply.output(0)?)?))
    }

    /// Returns 0 if the object contains the data at the offset, otherwise -4095 minus the index of the first byte that differs.
    fn rados_cmpext(io: Handle, o: CText, cmp_buf: InBuf, cmp_len: usize, off: u64) -> c_int {
        check_write_len(cmp_len)?;
        read(io, o, Op::CmpExt { offset: off, data: cmp_buf.copy(cmp_len)? })?;
        Ok(0)
    }

    /// Checksums of a range, one per `chunk_size` bytes: their number, then each of them, little-endian.
    fn rados_checksum(
        io: Handle,
        oid: CText,
        kind: c_int,
        init_value: InBuf,
        init_value_len: usize,
        len: usize,
        off: u64,
        chunk_size: usize,
        checksum: OutBuf,
        checksum_len: usize,
    ) -> c_int {
        let op = checksums(kind, init_value.slice(init_value_len)?, off, len, chunk_size)?;
        checksum.fill(checksum_len, &read(io, oid, op)?.output(0)?)?;
        Ok(0)
    }

    /// Removes the object.
    fn rados_remove(io: Handle, oid: CText) -> c_int {
        write(io, oid, Op::Remove)
    }

    /// Sets the object's size.
    fn rados_trunc(io: Handle, oid: CText, size: u64) -> c_int {
        if size > u64::from(u32::MAX) {
            return Err(Errno::E2BIG.into());
        }
        write(io, oid, Op::Truncate { size })
    }

    /// Size and modification time in seconds.
    fn rados_stat(io: Handle, o: CText, psize: Out<u64>, pmtime: Out<time_t>) -> c_int {
        let stat = read(io, o, Op::Stat)?.stat(0)?;
        psize.set(stat.size);
        pmtime.set(seconds(&stat));
        Ok(0)
    }

    /// Size and modification time.
    fn rados_stat2(io: Handle, o: CText, psize: Out<u64>, pmtime: Out<timespec>) -> c_int {
        let stat = read(io, o, Op::Stat)?.stat(0)?;
        psize.set(stat.size);
        pmtime.set(time(&stat));
        Ok(0)
    }

    /// Hints at the object's final size and the size of writes.
    fn rados_set_alloc_hint(io: Handle, o: CText, object_size: u64, write_size: u64) -> c_int {
        alloc_hint(io, o, object_size, write_size, 0)
    }

    /// The same, with flags.
    fn rados_set_alloc_hint2(io: Handle, o: CText, object_size: u64, write_size: u64, flags: u32) -> c_int {
        alloc_hint(io, o, object_size, write_size, flags)
    }

    /// Calls a method of an object class. Returns the length of its output.
    fn rados_exec(
        io: Handle,
        oid: CText,
        cls: CText,
        method: CText,
        in_buf: InBuf,
        in_len: usize,
        buf: OutBuf,
        out_len: usize,
    ) -> c_int {
        let op = class_call(cls, method, in_buf, in_len)?;
        let mut reply = POOLS.get(io)?.operate(Access::Call, oid, Compound::of(op))?;
        let code = reply.result;
        let output = reply.output(0)?;
        Ok(if output.is_empty() { code } else { length(buf.fill(out_len, &output)?) })
    }
}

/// A call of a method of an object class.
pub(crate) fn class_call(cls: CText, method: CText, in_buf: InBuf, in_len: usize) -> Outcome<Op> {
    Ok(Op::Call {
        class: cls.text()?.to_owned(),
        method: method.text()?.to_owned(),
        input: in_buf.copy(in_len)?,
    })
}

fn alloc_hint(io: Handle, oid: CText, object_size: u64, write_size: u64, flags: u32) -> Outcome<c_int> {
    let (expected_object_size, expected_write_size) = (object_size, write_size);
    write(io, oid, Op::SetAllocHint { expected_object_size, expected_write_size, flags })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ioctx::recorder::Recorder;

    #[test]
    fn a_single_call_is_sent_as_a_read() {
        let (io, recorder) = Recorder::io();
        let (object, class, method) = (CText::of(c"o"), CText::of(c"lock"), CText::of(c"get_info"));
        let called = rados_exec(io, object, class, method, InBuf::NULL, 0, OutBuf::NULL, 0);
        assert_eq!((called, recorder.take_writes()), (Errno::EIO.negated(), vec![false]));
    }
}
