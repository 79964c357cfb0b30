//! Asynchronous operations on striped objects, with a completion for the outcome. None blocks its caller.

use super::{STRIPERS, stat_reply};
use crate::abi::{CStrPtr, Handle, InBuf, OutBuf, OutPtr, c_len};
use crate::completion::COMPLETIONS;
use crate::guard::{ApiError, ApiResult, exports, run_entry_point};
use crate::ioctx::AccessKind;
use crate::ops::{check_read_len, check_write_len};
use libc::{time_t, timespec};
use nacre_client::{Pending, Striper};
use std::ffi::c_int;

/// Starts an operation. `store` stores the results in the caller's places and returns the completion's value.
fn start<T: Send + 'static>(
    striper: Handle,
    completion: Handle,
    access: AccessKind,
    begin: impl FnOnce(&Striper) -> Pending<T>,
    store: impl FnOnce(T) -> ApiResult<c_int> + Send + 'static,
) -> ApiResult<c_int> {
    let (striped, completion) = (STRIPERS.get(striper)?, COMPLETIONS.get(completion)?);
    let striper = striped.striper(access)?;
    completion.begin()?;
    let write = (access == AccessKind::Write).then(|| striped.writes.begin());
    striper.when_done(begin(&striper), move |outcome| {
        completion.finish(&striped.io.client.finisher, || {
            let stored = |value| run_entry_point("completion", || store(value));
            (outcome.map_or_else(|error| ApiError(error.errno()).code(), stored), 0)
        });
        if let Some(write) = write {
            striped.writes.end(write);
        }
    });
    Ok(0)
}

fn write(
    striper: Handle,
    completion: Handle,
    begin: impl FnOnce(&Striper) -> Pending<()>,
) -> ApiResult<c_int> {
    start(striper, completion, AccessKind::Write, begin, |()| Ok(0))
}

exports! {
    /// Writes at an offset.
    fn rados_striper_aio_write(
        striper: Handle,
        soid: CStrPtr,
        completion: Handle,
        buf: InBuf,
        len: usize,
        off: u64,
    ) -> c_int {
        check_write_len(len)?;
        let (name, data) = (soid.text()?, buf.copy(len)?);
        write(striper, completion, |striper| striper.write(name, off, data))
    }

    /// Writes at the object's end.
    fn rados_striper_aio_append(
        striper: Handle,
        soid: CStrPtr,
        completion: Handle,
        buf: InBuf,
        len: usize,
    ) -> c_int {
        check_write_len(len)?;
        let (name, data) = (soid.text()?, buf.copy(len)?);
        write(striper, completion, |striper| striper.append(name, data))
    }

    /// Replaces the object's data.
    fn rados_striper_aio_write_full(
        striper: Handle,
        soid: CStrPtr,
        completion: Handle,
        buf: InBuf,
        len: usize,
    ) -> c_int {
        check_write_len(len)?;
        let (name, data) = (soid.text()?, buf.copy(len)?);
        write(striper, completion, |striper| striper.write_full(name, data))
    }

    /// Reads. The completion returns the number of bytes.
    fn rados_striper_aio_read(
        striper: Handle,
        soid: CStrPtr,
        completion: Handle,
        buf: OutBuf,
        len: usize,
        off: u64,
    ) -> c_int {
        check_read_len(len)?;
        let name = soid.text()?;
        let begin = |striper: &Striper| striper.read_runs(name, off, len as u64);
        start(striper, completion, AccessKind::Read, begin, move |runs| Ok(c_len(buf.fill_runs(len, &runs)?)))
    }

    /// Removes the object.
    fn rados_striper_aio_remove(striper: Handle, soid: CStrPtr, completion: Handle) -> c_int {
        let name = soid.text()?;
        write(striper, completion, |striper| striper.remove(name))
    }

    /// Size and modification time in seconds.
    fn rados_striper_aio_stat(
        striper: Handle,
        soid: CStrPtr,
        completion: Handle,
        psize: OutPtr<u64>,
        pmtime: OutPtr<time_t>,
    ) -> c_int {
        let name = soid.text()?;
        start(striper, completion, AccessKind::Read, |striper| striper.stat(name), move |stat| {
            psize.set(stat.size);
            pmtime.set(crate::sync_io::mtime_secs(&stat_reply(&stat)));
            Ok(0)
        })
    }

    /// Size and modification time.
    fn rados_striper_aio_stat2(
        striper: Handle,
        soid: CStrPtr,
        completion: Handle,
        psize: OutPtr<u64>,
        pmtime: OutPtr<timespec>,
    ) -> c_int {
        let name = soid.text()?;
        start(striper, completion, AccessKind::Read, |striper| striper.stat(name), move |stat| {
            psize.set(stat.size);
            pmtime.set(crate::sync_io::mtime_timespec(&stat_reply(&stat)));
            Ok(0)
        })
    }

    /// Waits for the writes that the striper has started, and for their callbacks.
    fn rados_striper_aio_flush(striper: Handle) {
        let striped = STRIPERS.get(striper)?;
        striped.writes.flush();
        striped.io.client.finisher.flush_unless_on_finisher();
        Ok(())
    }
}
