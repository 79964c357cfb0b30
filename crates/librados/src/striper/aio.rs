//! Asynchronous operations on striped objects, with a completion for the outcome. None blocks its caller.

use super::{STRIPERS, stat_reply};
use crate::abi::{CText, Handle, InBuf, Out, OutBuf, length};
use crate::completion::COMPLETIONS;
use crate::guard::{Failure, Outcome, call, exports};
use crate::ioctx::Access;
use crate::ops::{check_read_len, check_write_len};
use libc::{time_t, timespec};
use nacre_client::{Pending, Striper};
use std::ffi::c_int;

/// Starts an operation. `store` stores the results in the caller's places and returns the completion's value.
fn start<T: Send + 'static>(
    striper: Handle,
    completion: Handle,
    access: Access,
    begin: impl FnOnce(&Striper) -> Pending<T>,
    store: impl FnOnce(T) -> Outcome<c_int> + Send + 'static,
) -> Outcome<c_int> {
    let (striped, completion) = (STRIPERS.get(striper)?, COMPLETIONS.get(completion)?);
    let striper = striped.striper(access)?;
    completion.begin()?;
    let write = (access == Access::Write).then(|| striped.writes.begin());
    striper.when_done(begin(&striper), move |outcome| {
        completion.finish(&striped.io.client, || {
            let stored = |value| call("completion", || store(value));
            (outcome.map_or_else(|error| Failure(error.errno()).code(), stored), 0)
        });
        if let Some(write) = write {
            striped.writes.end(write);
        }
    });
    Ok(0)
}

fn write(striper: Handle, completion: Handle, begin: impl FnOnce(&Striper) -> Pending<()>) -> Outcome<c_int> {
    start(striper, completion, Access::Write, begin, |()| Ok(0))
}

exports! {
    /// Writes at an offset.
    fn rados_striper_aio_write(
        striper: Handle,
        soid: CText,
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
        soid: CText,
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
        soid: CText,
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
        soid: CText,
        completion: Handle,
        buf: OutBuf,
        len: usize,
        off: u64,
    ) -> c_int {
        check_read_len(len)?;
        let name = soid.text()?;
        let begin = |striper: &Striper| striper.read_runs(name, off, len as u64);
        start(striper, completion, Access::Read, begin, move |runs| Ok(length(buf.fill_runs(len, &runs)?)))
    }

    /// Removes the object.
    fn rados_striper_aio_remove(striper: Handle, soid: CText, completion: Handle) -> c_int {
        let name = soid.text()?;
        write(striper, completion, |striper| striper.remove(name))
    }

    /// Size and modification time in seconds.
    fn rados_striper_aio_stat(
        striper: Handle,
        soid: CText,
        completion: Handle,
        psize: Out<u64>,
        pmtime: Out<time_t>,
    ) -> c_int {
        let name = soid.text()?;
        start(striper, completion, Access::Read, |striper| striper.stat(name), move |stat| {
            psize.set(stat.size);
            pmtime.set(crate::sync_io::seconds(&stat_reply(&stat)));
            Ok(0)
        })
    }

    /// Size and modification time.
    fn rados_striper_aio_stat2(
        striper: Handle,
        soid: CText,
        completion: Handle,
        psize: Out<u64>,
        pmtime: Out<timespec>,
    ) -> c_int {
        let name = soid.text()?;
        start(striper, completion, Access::Read, |striper| striper.stat(name), move |stat| {
            psize.set(stat.size);
            pmtime.set(crate::sync_io::time(&stat_reply(&stat)));
            Ok(0)
        })
    }

    /// Waits for the writes that the striper has started, and for their callbacks.
    fn rados_striper_aio_flush(striper: Handle) {
        let striped = STRIPERS.get(striper)?;
        striped.writes.flush();
        striped.io.client.finisher.flush_unless_own();
        Ok(())
    }
}
