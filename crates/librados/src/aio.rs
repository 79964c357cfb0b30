//! Asynchronous operations on one object, with a completion for the outcome.

use crate::abi::{CStrPtr, Handle, InBuf, OutBuf, OutPtr, c_len};
use crate::completion::COMPLETIONS;
use crate::guard::{ApiError, ApiResult, exports, run_entry_point};
use crate::ioctx::{AccessKind, IOCTXS};
use crate::ops::{CompoundOp, check_read_len, check_write_len, writesame_op};
use crate::sync_io::{class_call_op, mtime_secs, mtime_timespec};
use libc::{time_t, timespec};
use nacre_client::OpReply;
use nacre_types::op::Op;
use std::ffi::c_int;

/// Starts an operation. `store` stores the results of a successful one in the caller's places and returns the completion's
/// value.
pub(crate) fn start(
    io: Handle,
    completion: Handle,
    access: AccessKind,
    oid: CStrPtr,
    mut op: CompoundOp,
    store: impl FnOnce(&mut OpReply) -> ApiResult<c_int> + Send + 'static,
) -> ApiResult<c_int> {
    let (io, completion) = (IOCTXS.get(io)?, COMPLETIONS.get(completion)?);
    io.check(access)?;
    let name = oid.text()?;
    let empty = op.is_empty();
    op.add_flags(io.flags());
    let (op, places) = op.into_parts()?;
    completion.begin()?;
    if empty {
        completion.finish(&io.client.finisher, || (0, 0));
        return Ok(0);
    }
    let write = access.may_write().then(|| io.writes.begin());
    let owner = io.clone();
    let done = Box::new(move |outcome: nacre_client::Result<OpReply>| {
        completion.finish(&owner.client.finisher, || match outcome {
            Ok(mut reply) => {
                let version = reply.version;
                let code = run_entry_point("completion", || {
                    places.store_results(&mut reply);
                    if reply.result < 0 { Ok(reply.result) } else { store(&mut reply) }
                });
                (code, version)
            }
            Err(error) => {
                let why = ApiError(error.errno());
                places.fail(why);
                (why.code(), 0)
            }
        });
        if let Some(write) = write {
            owner.writes.end(write);
        }
    });
    let place = io.ioctx.read();
    if access.sends_write() {
        place.aio_operate(name, op, done);
    } else {
        place.aio_operate_read(name, op.into_read(), done);
    }
    Ok(0)
}

fn write(io: Handle, completion: Handle, oid: CStrPtr, op: Op) -> ApiResult<c_int> {
    start(io, completion, AccessKind::Write, oid, CompoundOp::of(op), |_| Ok(0))
}

exports! {
    /// Writes at an offset.
    fn rados_aio_write(io: Handle, oid: CStrPtr, completion: Handle, buf: InBuf, len: usize, off: u64) -> c_int {
        check_write_len(len)?;
        write(io, completion, oid, Op::Write { offset: off, data: buf.copy(len)?.into() })
    }

    /// Writes at the object's end.
    fn rados_aio_append(io: Handle, oid: CStrPtr, completion: Handle, buf: InBuf, len: usize) -> c_int {
        check_write_len(len)?;
        write(io, completion, oid, Op::Append { data: buf.copy(len)?.into() })
    }

    /// Replaces the object's data.
    fn rados_aio_write_full(io: Handle, oid: CStrPtr, completion: Handle, buf: InBuf, len: usize) -> c_int {
        check_write_len(len)?;
        write(io, completion, oid, Op::WriteFull { data: buf.copy(len)?.into() })
    }

    /// Writes the same data repeatedly, `write_len` bytes in total.
    fn rados_aio_writesame(
        io: Handle,
        oid: CStrPtr,
        completion: Handle,
        buf: InBuf,
        data_len: usize,
        write_len: usize,
        off: u64,
    ) -> c_int {
        write(io, completion, oid, writesame_op(off, buf.copy(data_len)?, write_len)?)
    }

    /// Removes the object.
    fn rados_aio_remove(io: Handle, oid: CStrPtr, completion: Handle) -> c_int {
        write(io, completion, oid, Op::Remove)
    }

    /// Reads. The completion returns the number of bytes.
    fn rados_aio_read(io: Handle, oid: CStrPtr, completion: Handle, buf: OutBuf, len: usize, off: u64) -> c_int {
        check_read_len(len)?;
        let op = CompoundOp::of(Op::Read { offset: off, len: len as u64 });
        start(io, completion, AccessKind::Read, oid, op, move |reply| {
            Ok(c_len(buf.fill(len, &reply.output(0)?)?))
        })
    }

    /// Compares data as `rados_cmpext` does.
    fn rados_aio_cmpext(
        io: Handle,
        o: CStrPtr,
        completion: Handle,
        cmp_buf: InBuf,
        cmp_len: usize,
        off: u64,
    ) -> c_int {
        check_write_len(cmp_len)?;
        let op = CompoundOp::of(Op::CmpExt { offset: off, data: cmp_buf.copy(cmp_len)? });
        start(io, completion, AccessKind::Read, o, op, |_| Ok(0))
    }

    /// Size and modification time in seconds.
    fn rados_aio_stat(io: Handle, o: CStrPtr, completion: Handle, psize: OutPtr<u64>, pmtime: OutPtr<time_t>) -> c_int {
        start(io, completion, AccessKind::Read, o, CompoundOp::of(Op::Stat), move |reply| {
            let stat = reply.stat(0)?;
            psize.set(stat.size);
            pmtime.set(mtime_secs(&stat));
            Ok(0)
        })
    }

    /// Size and modification time.
    fn rados_aio_stat2(io: Handle, o: CStrPtr, completion: Handle, psize: OutPtr<u64>, pmtime: OutPtr<timespec>) -> c_int {
        start(io, completion, AccessKind::Read, o, CompoundOp::of(Op::Stat), move |reply| {
            let stat = reply.stat(0)?;
            psize.set(stat.size);
            pmtime.set(mtime_timespec(&stat));
            Ok(0)
        })
    }

    /// Calls a method of an object class. The completion returns the length of its output.
    fn rados_aio_exec(
        io: Handle,
        o: CStrPtr,
        completion: Handle,
        cls: CStrPtr,
        method: CStrPtr,
        in_buf: InBuf,
        in_len: usize,
        buf: OutBuf,
        out_len: usize,
    ) -> c_int {
        let op = CompoundOp::of(class_call_op(cls, method, in_buf, in_len)?);
        start(io, completion, AccessKind::Call, o, op, move |reply| {
            let (code, output) = (reply.result, reply.output(0)?);
            Ok(if output.is_empty() { code } else { c_len(buf.fill(out_len, &output)?) })
        })
    }

    /// Waits for the writes that the context has started, and for their callbacks.
    fn rados_aio_flush(io: Handle) -> c_int {
        let io = IOCTXS.get(io)?;
        io.writes.flush();
        io.client.finisher.flush_unless_on_finisher();
        Ok(0)
    }

    /// Completes once the writes that the context has started are complete and their callbacks have returned.
    fn rados_aio_flush_async(io: Handle, completion: Handle) -> c_int {
        let (io, completion) = (IOCTXS.get(io)?, COMPLETIONS.get(completion)?);
        completion.begin()?;
        let owner = io.clone();
        io.writes.call_when_flushed(Box::new(move || {
            let client = owner.client.clone();
            owner.client.finisher.queue(Box::new(move || {
                completion.finish(&client.finisher, || (0, 0));
            }));
        }));
        Ok(0)
    }

    /// Ends a completion early with ECANCELED. Its operation may or may not take effect. ENOENT if it has ended.
    fn rados_aio_cancel(io: Handle, completion: Handle) -> c_int {
        COMPLETIONS.get(completion)?.cancel(&IOCTXS.get(io)?.client.finisher)?;
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::completion::Completion;
    use crate::ioctx::recorder::RecordingEngine;

    #[test]
    fn calls_are_sent_as_writes_only_as_parts_of_compound_writes() {
        let (io, recorder) = RecordingEngine::io();
        for (access, writes) in
            [(AccessKind::Read, false), (AccessKind::Call, false), (AccessKind::Write, true)]
        {
            let op = Op::Call { class: "lock".into(), method: "get_info".into(), input: Default::default() };
            let completion = Completion::without_callbacks();
            let started = start(io, completion, access, CStrPtr::of(c"o"), CompoundOp::of(op), |_| Ok(0));
            assert_eq!((started, recorder.take_writes()), (Ok(0), vec![writes]));
        }
        let (object, class, method) = (CStrPtr::of(c"o"), CStrPtr::of(c"lock"), CStrPtr::of(c"get_info"));
        let completion = Completion::without_callbacks();
        let started = rados_aio_exec(io, object, completion, class, method, InBuf::NULL, 0, OutBuf::NULL, 0);
        assert_eq!((started, recorder.take_writes()), (0, vec![false]));
    }
}
