//! Advisory locks on objects.

use crate::abi::{CStrPtr, Handle, OutBuf, OutPtr};
use crate::aio;
use crate::guard::{ApiError, ApiResult, exports};
use crate::ioctx::{AccessKind, IOCTXS};
use crate::ops::CompoundOp;
use bytes::Bytes;
use libc::timeval;
use nacre_client::Error;
use nacre_types::ceph::{CephEncoding, SessionName, UTime};
use nacre_types::cls::lock::{BreakOp, GetInfoOp, LockInfo, LockKind, LockOp, UnlockOp};
use nacre_types::errno::Errno;
use nacre_types::op::Op;
use std::ffi::c_int;

fn bytes(text: CStrPtr) -> ApiResult<Bytes> {
    Ok(Bytes::copy_from_slice(text.bytes()?))
}

fn method(method: &str, input: Bytes) -> CompoundOp {
    CompoundOp::of(Op::Call { class: "lock".to_owned(), method: method.to_owned(), input })
}

fn call(io: Handle, oid: CStrPtr, name: &str, input: Bytes) -> ApiResult<c_int> {
    IOCTXS.get(io)?.operate(AccessKind::Write, oid, method(name, input))?;
    Ok(0)
}

/// The duration of a lock. Null and zero mean without end.
fn duration(duration: OutPtr<timeval>) -> ApiResult<UTime> {
    let Some(time) = duration.get() else { return Ok(UTime::default()) };
    let seconds = u32::try_from(time.tv_sec).map_err(|_| ApiError(Errno::EINVAL))?;
    // The Python binding passes uninitialised microseconds.
    let micros = u32::try_from(time.tv_usec).ok().filter(|micros| *micros < 1_000_000).unwrap_or(0);
    Ok(UTime { seconds, nanoseconds: micros * 1000 })
}

/// A caller's buffer with the place for its length, which is stored even if the buffer is too small.
struct ListBuf {
    buffer: OutBuf,
    len: OutPtr<usize>,
    texts: Vec<String>,
}

impl ListBuf {
    fn needed(&self) -> usize {
        self.texts.iter().map(|text| text.len() + 1).sum()
    }

    fn fits(&self) -> bool {
        self.len.get().is_some_and(|capacity| self.needed() <= capacity)
    }

    fn fill(self) -> ApiResult<()> {
        let needed = self.needed();
        let capacity = self.len.get().ok_or(Errno::EINVAL)?;
        self.buffer.fill_list(capacity.min(needed), self.texts.iter().map(String::as_str))?;
        self.len.set(needed);
        Ok(())
    }
}

exports! {
    /// Takes a lock that allows one holder. EBUSY if another client holds it, EEXIST if this client does.
    fn rados_lock_exclusive(
        io: Handle,
        oid: CStrPtr,
        name: CStrPtr,
        cookie: CStrPtr,
        desc: CStrPtr,
        length: OutPtr<timeval>,
        flags: u8,
    ) -> c_int {
        let op = LockOp {
            name: bytes(name)?,
            kind: LockKind::Exclusive,
            cookie: bytes(cookie)?,
            tag: Bytes::new(),
            description: bytes(desc)?,
            duration: duration(length)?,
            flags,
        };
        call(io, oid, "lock", op.to_bytes())
    }

    /// Takes a lock that allows any number of holders with the same tag.
    fn rados_lock_shared(
        io: Handle,
        o: CStrPtr,
        name: CStrPtr,
        cookie: CStrPtr,
        tag: CStrPtr,
        desc: CStrPtr,
        length: OutPtr<timeval>,
        flags: u8,
    ) -> c_int {
        let op = LockOp {
            name: bytes(name)?,
            kind: LockKind::Shared,
            cookie: bytes(cookie)?,
            tag: bytes(tag)?,
            description: bytes(desc)?,
            duration: duration(length)?,
            flags,
        };
        call(io, o, "lock", op.to_bytes())
    }

    /// Releases a lock. ENOENT if this client does not hold it with this cookie.
    fn rados_unlock(io: Handle, o: CStrPtr, name: CStrPtr, cookie: CStrPtr) -> c_int {
        let op = UnlockOp { name: bytes(name)?, cookie: bytes(cookie)? };
        call(io, o, "unlock", op.to_bytes())
    }

    /// Like `rados_unlock`, asynchronously.
    fn rados_aio_unlock(io: Handle, o: CStrPtr, name: CStrPtr, cookie: CStrPtr, completion: Handle) -> c_int {
        let op = UnlockOp { name: bytes(name)?, cookie: bytes(cookie)? };
        aio::start(io, completion, AccessKind::Write, o, method("unlock", op.to_bytes()), |_| Ok(0))
    }

    /// Breaks the lock of a client such as `client.4123`.
    fn rados_break_lock(io: Handle, o: CStrPtr, name: CStrPtr, client: CStrPtr, cookie: CStrPtr) -> c_int {
        let locker = SessionName::parse(client.text()?).ok_or(Errno::EINVAL)?;
        let op = BreakOp { name: bytes(name)?, locker, cookie: bytes(cookie)? };
        call(io, o, "break_lock", op.to_bytes())
    }

    /// Lists the holders of a lock, each text with its zero. Returns their number. ERANGE, and the required lengths, if a buffer
    /// is too small.
    fn rados_list_lockers(
        io: Handle,
        o: CStrPtr,
        name: CStrPtr,
        exclusive: OutPtr<c_int>,
        tag: OutBuf,
        tag_len: OutPtr<usize>,
        clients: OutBuf,
        clients_len: OutPtr<usize>,
        cookies: OutBuf,
        cookies_len: OutPtr<usize>,
        addrs: OutBuf,
        addrs_len: OutPtr<usize>,
    ) -> isize {
        let input = GetInfoOp { name: bytes(name)? }.to_bytes();
        let mut reply = IOCTXS.get(io)?.operate(AccessKind::Read, o, method("get_info", input))?;
        let info = LockInfo::from_bytes(&reply.output(0)?).map_err(Error::from)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let lockers = || info.lockers.iter();
        let lists = [
            ListBuf { buffer: tag, len: tag_len, texts: vec![text(&info.tag)] },
            ListBuf {
                buffer: clients,
                len: clients_len,
                texts: lockers().map(|((client, _), _)| client.to_string()).collect(),
            },
            ListBuf {
                buffer: cookies,
                len: cookies_len,
                texts: lockers().map(|((_, cookie), _)| text(cookie)).collect(),
            },
            ListBuf {
                buffer: addrs,
                len: addrs_len,
                texts: lockers().map(|(_, locker)| locker.addr.to_string()).collect(),
            },
        ];
        if !lists.iter().all(ListBuf::fits) {
            for list in &lists {
                list.len.set(list.needed());
            }
            return Err(Errno::ERANGE.into());
        }
        for list in lists {
            list.fill()?;
        }
        exclusive.set(c_int::from(info.kind.is_exclusive()));
        Ok(info.lockers.len() as isize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ioctx::recorder::RecordingEngine;

    /// The flags `full` and `pausewr` delay taking a lock, but not listing its holders.
    #[test]
    fn lockers_are_listed_by_a_read() {
        let (io, recorder) = RecordingEngine::io();
        let (object, name) = (CStrPtr::of(c"o"), CStrPtr::of(c"lock"));
        let (number, text, len) = (OutPtr::NULL, OutBuf::NULL, OutPtr::NULL);
        let eio = Errno::EIO.negated();
        let listed = rados_list_lockers(io, object, name, number, text, len, text, len, text, len, text, len);
        assert_eq!((listed, recorder.take_writes()), (eio as isize, vec![false]));
        let locked = rados_lock_exclusive(io, object, name, name, name, OutPtr::NULL, 0);
        assert_eq!((locked, recorder.take_writes()), (eio, vec![true]));
    }
}
