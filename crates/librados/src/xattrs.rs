//! Extended attributes.

use crate::abi::{CText, Handle, InBuf, Out, OutBuf, length};
use crate::aio;
use crate::guard::{Outcome, exports};
use crate::ioctx::Access;
use crate::iterators::Entries;
use crate::ops::Compound;
use crate::sync_io::{read, write};
use nacre_types::op::Op;
use std::ffi::c_int;

fn set(name: CText, buf: InBuf, len: usize) -> Outcome<Op> {
    Ok(Op::SetXattr { name: name.text()?.to_owned(), value: buf.copy(len)? })
}

fn remove(name: CText) -> Outcome<Op> {
    Ok(Op::RmXattr { name: name.text()?.to_owned() })
}

fn get(name: CText) -> Outcome<Op> {
    Ok(Op::GetXattr { name: name.text()?.to_owned() })
}

exports! {
    /// An attribute's value. Returns its length. ERANGE if the buffer is too small, ENODATA if the attribute does not exist.
    fn rados_getxattr(io: Handle, o: CText, name: CText, buf: OutBuf, len: usize) -> c_int {
        let value = read(io, o, get(name)?)?.output(0)?;
        Ok(length(buf.fill(len, &value)?))
    }

    /// Sets an attribute.
    fn rados_setxattr(io: Handle, o: CText, name: CText, buf: InBuf, len: usize) -> c_int {
        write(io, o, set(name, buf, len)?)
    }

    /// Removes an attribute.
    fn rados_rmxattr(io: Handle, o: CText, name: CText) -> c_int {
        write(io, o, remove(name)?)
    }

    /// All attributes.
    fn rados_getxattrs(io: Handle, oid: CText, iter: Out<Handle>) -> c_int {
        let iter = iter.required()?;
        let pairs = read(io, oid, Op::GetXattrs)?.pairs(0)?;
        let entries = Entries::create();
        Entries::store(entries, pairs);
        iter.set(entries);
        Ok(0)
    }

    /// An attribute's value. The completion returns its length.
    fn rados_aio_getxattr(
        io: Handle,
        o: CText,
        completion: Handle,
        name: CText,
        buf: OutBuf,
        len: usize,
    ) -> c_int {
        aio::start(io, completion, Access::Read, o, Compound::of(get(name)?), move |reply| {
            Ok(length(buf.fill(len, &reply.output(0)?)?))
        })
    }

    /// Sets an attribute.
    fn rados_aio_setxattr(
        io: Handle,
        o: CText,
        completion: Handle,
        name: CText,
        buf: InBuf,
        len: usize,
    ) -> c_int {
        aio::start(io, completion, Access::Write, o, Compound::of(set(name, buf, len)?), |_| Ok(0))
    }

    /// Removes an attribute.
    fn rados_aio_rmxattr(io: Handle, o: CText, completion: Handle, name: CText) -> c_int {
        aio::start(io, completion, Access::Write, o, Compound::of(remove(name)?), |_| Ok(0))
    }

    /// All attributes. The caller owns the iterator once the completion succeeds.
    fn rados_aio_getxattrs(io: Handle, oid: CText, completion: Handle, iter: Out<Handle>) -> c_int {
        let iter = iter.required()?;
        aio::start(io, completion, Access::Read, oid, Compound::of(Op::GetXattrs), move |reply| {
            let pairs = reply.pairs(0)?;
            let entries = Entries::create();
            Entries::store(entries, pairs);
            iter.set(entries);
            Ok(0)
        })
    }
}
