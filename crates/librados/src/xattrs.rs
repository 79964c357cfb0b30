//! Extended attributes.

use crate::abi::{CStrPtr, Handle, InBuf, OutBuf, OutPtr, c_len};
use crate::aio;
use crate::guard::{ApiResult, exports};
use crate::ioctx::AccessKind;
use crate::iterators::KeyValueIter;
use crate::ops::CompoundOp;
use crate::sync_io::{read, write};
use nacre_types::op::Op;
use std::ffi::c_int;

fn set(name: CStrPtr, buf: InBuf, len: usize) -> ApiResult<Op> {
    Ok(Op::SetXattr { name: name.text()?.to_owned(), value: buf.copy(len)? })
}

fn remove(name: CStrPtr) -> ApiResult<Op> {
    Ok(Op::RmXattr { name: name.text()?.to_owned() })
}

fn get(name: CStrPtr) -> ApiResult<Op> {
    Ok(Op::GetXattr { name: name.text()?.to_owned() })
}

exports! {
    /// An attribute's value. Returns its length. ERANGE if the buffer is too small, ENODATA if the attribute does not exist.
    fn rados_getxattr(io: Handle, o: CStrPtr, name: CStrPtr, buf: OutBuf, len: usize) -> c_int {
        let value = read(io, o, get(name)?)?.output(0)?;
        Ok(c_len(buf.fill(len, &value)?))
    }

    /// Sets an attribute.
    fn rados_setxattr(io: Handle, o: CStrPtr, name: CStrPtr, buf: InBuf, len: usize) -> c_int {
        write(io, o, set(name, buf, len)?)
    }

    /// Removes an attribute.
    fn rados_rmxattr(io: Handle, o: CStrPtr, name: CStrPtr) -> c_int {
        write(io, o, remove(name)?)
    }

    /// All attributes.
    fn rados_getxattrs(io: Handle, oid: CStrPtr, iter: OutPtr<Handle>) -> c_int {
        let iter = iter.required()?;
        let pairs = read(io, oid, Op::GetXattrs)?.pairs(0)?;
        let entries = KeyValueIter::create();
        KeyValueIter::store(entries, pairs);
        iter.set(entries);
        Ok(0)
    }

    /// An attribute's value. The completion returns its length.
    fn rados_aio_getxattr(
        io: Handle,
        o: CStrPtr,
        completion: Handle,
        name: CStrPtr,
        buf: OutBuf,
        len: usize,
    ) -> c_int {
        aio::start(io, completion, AccessKind::Read, o, CompoundOp::of(get(name)?), move |reply| {
            Ok(c_len(buf.fill(len, &reply.output(0)?)?))
        })
    }

    /// Sets an attribute.
    fn rados_aio_setxattr(
        io: Handle,
        o: CStrPtr,
        completion: Handle,
        name: CStrPtr,
        buf: InBuf,
        len: usize,
    ) -> c_int {
        aio::start(io, completion, AccessKind::Write, o, CompoundOp::of(set(name, buf, len)?), |_| Ok(0))
    }

    /// Removes an attribute.
    fn rados_aio_rmxattr(io: Handle, o: CStrPtr, completion: Handle, name: CStrPtr) -> c_int {
        aio::start(io, completion, AccessKind::Write, o, CompoundOp::of(remove(name)?), |_| Ok(0))
    }

    /// All attributes. The caller owns the iterator once the completion succeeds.
    fn rados_aio_getxattrs(io: Handle, oid: CStrPtr, completion: Handle, iter: OutPtr<Handle>) -> c_int {
        let iter = iter.required()?;
        aio::start(io, completion, AccessKind::Read, oid, CompoundOp::of(Op::GetXattrs), move |reply| {
            let pairs = reply.pairs(0)?;
            let entries = KeyValueIter::create();
            KeyValueIter::store(entries, pairs);
            iter.set(entries);
            Ok(0)
        })
    }
}
