//! Compound reads: `rados_read_op_*`. Results are stored in their places when the operation is complete.

use crate::abi::{CStrPtr, Handle, InArray, InBuf, MallocBuf, OutBuf, OutPtr};
use crate::aio;
use crate::guard::{ApiResult, exports};
use crate::handles::HandleTable;
use crate::ioctx::{AccessKind, IOCTXS};
use crate::iterators::KeyValueIter;
use crate::ops::{CompoundOp, OutputCallback, check_read_len, checksum_op, request_flags};
use crate::slices::{keys, keys_with_lens};
use crate::sync_io::{class_call_op, mtime_secs};
use crate::write_op::{build, compare_data, compare_omap, compare_xattr};
use bytes::Bytes;
use libc::time_t;
use nacre_client::Error;
use nacre_types::encoding::{Versioned, decode};
use nacre_types::op::{OmapKeysReply, OmapValsReply, Op, Pairs, StatReply};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uchar};

/// All compound reads under construction.
static READ_OPS: HandleTable<Mutex<CompoundOp>> = HandleTable::new();

fn add(read_op: Handle, add: impl FnOnce(&mut CompoundOp) -> ApiResult<()>) -> ApiResult<()> {
    build(&READ_OPS, read_op, add)
}

fn decoded<T: Versioned>(output: &Bytes) -> ApiResult<T> {
    Ok(decode(output).map_err(Error::from)?)
}

/// Creates the iterator for `iter`. It is filled with the entries that `entries` decodes from the output.
fn iterate(
    iter: OutPtr<Handle>,
    entries: impl FnOnce(&Bytes) -> ApiResult<Vec<(Bytes, Bytes)>> + Send + 'static,
) -> OutputCallback {
    let handle = iter.required().map(|iter| {
        let handle = KeyValueIter::create();
        iter.set(handle);
        handle
    });
    Box::new(move |output| {
        let entries = entries(&output)?;
        if let Ok(handle) = handle {
            KeyValueIter::store(handle, entries);
        }
        Ok(())
    })
}

fn omap_vals(
    read_op: Handle,
    start_after: CStrPtr,
    filter_prefix: CStrPtr,
    max_return: u64,
    iter: OutPtr<Handle>,
    more: Option<OutPtr<c_uchar>>,
    prval: OutPtr<c_int>,
) -> ApiResult<()> {
    add(read_op, |op| {
        let start_after = Bytes::copy_from_slice(start_after.optional_bytes().unwrap_or_default());
        let filter_prefix = Bytes::copy_from_slice(filter_prefix.optional_bytes().unwrap_or_default());
        let deliver = iterate(iter, move |output| {
            let reply: OmapValsReply = decoded(output)?;
            if let Some(more) = more {
                more.set(reply.more.into());
            }
            Ok(reply.entries)
        });
        op.push_with_output(
            Op::OmapGetVals { start_after, filter_prefix, max: max_return },
            prval,
            Some(deliver),
        );
        Ok(())
    })
}

fn omap_keys(
    read_op: Handle,
    start_after: CStrPtr,
    max_return: u64,
    iter: OutPtr<Handle>,
    more: Option<OutPtr<c_uchar>>,
    prval: OutPtr<c_int>,
) -> ApiResult<()> {
    add(read_op, |op| {
        let start_after = Bytes::copy_from_slice(start_after.optional_bytes().unwrap_or_default());
        let deliver = iterate(iter, move |output| {
            let reply: OmapKeysReply = decoded(output)?;
            if let Some(more) = more {
                more.set(reply.more.into());
            }
            Ok(reply.keys.into_iter().map(|key| (key, Bytes::new())).collect())
        });
        op.push_with_output(Op::OmapGetKeys { start_after, max: max_return }, prval, Some(deliver));
        Ok(())
    })
}

fn omap_vals_by_keys(
    read_op: Handle,
    keys: ApiResult<Vec<Bytes>>,
    iter: OutPtr<Handle>,
    prval: OutPtr<c_int>,
) -> ApiResult<()> {
    add(read_op, |op| {
        // In the order of keys, in whatever order they were requested.
        let sorted = |pairs: Pairs| pairs.0.into_iter().collect::<BTreeMap<_, _>>().into_iter().collect();
        let deliver = iterate(iter, move |output| Ok(sorted(decoded(output)?)));
        op.push_with_output(Op::OmapGetValsByKeys { keys: keys? }, prval, Some(deliver));
        Ok(())
    })
}

exports! {
    /// Creates an empty operation.
    fn rados_create_read_op() -> Handle {
        Ok(READ_OPS.insert(Mutex::default()))
    }

    /// Destroys an operation.
    fn rados_release_read_op(read_op: Handle) {
        READ_OPS.remove(read_op).map(drop)
    }

    /// Sets flags of the part that was added last.
    fn rados_read_op_set_flags(read_op: Handle, flags: c_int) {
        add(read_op, |op| {
            op.set_op_flags(flags);
            Ok(())
        })
    }

    /// Fails with ENOENT if the object is absent.
    fn rados_read_op_assert_exists(read_op: Handle) {
        add(read_op, |op| {
            op.push(Op::AssertExists);
            Ok(())
        })
    }

    /// Fails with ERANGE or EOVERFLOW unless the object has this version.
    fn rados_read_op_assert_version(read_op: Handle, ver: u64) {
        add(read_op, |op| {
            op.push(Op::AssertVersion { version: ver });
            Ok(())
        })
    }

    /// Fails unless the object contains the data at the offset, with -4095 minus the index of the first byte that differs.
    fn rados_read_op_cmpext(read_op: Handle, cmp_buf: InBuf, cmp_len: usize, off: u64, prval: OutPtr<c_int>) {
        add(read_op, |op| {
            op.push_with_output(compare_data(cmp_buf, cmp_len, off)?, prval, None);
            Ok(())
        })
    }

    /// Computes checksums of a range, as `rados_checksum` stores them.
    fn rados_read_op_checksum(
        read_op: Handle,
        kind: c_int,
        init_value: InBuf,
        init_value_len: usize,
        offset: u64,
        len: usize,
        chunk_size: usize,
        checksum: OutBuf,
        checksum_len: usize,
        prval: OutPtr<c_int>,
    ) {
        add(read_op, |op| {
            let sums = checksum_op(kind, init_value.slice(init_value_len)?, offset, len, chunk_size)?;
            let deliver: OutputCallback = Box::new(move |output| checksum.fill(checksum_len, &output).map(drop));
            op.push_with_output(sums, prval, Some(deliver));
            Ok(())
        })
    }

    /// Fails with ECANCELED unless the comparison with the attribute holds.
    fn rados_read_op_cmpxattr(read_op: Handle, name: CStrPtr, operator: u8, value: InBuf, value_len: usize) {
        add(read_op, |op| {
            op.push(compare_xattr(name, operator, value, value_len)?);
            Ok(())
        })
    }

    /// Fails with ECANCELED unless the comparison with the omap entry holds.
    fn rados_read_op_omap_cmp(
        read_op: Handle,
        key: CStrPtr,
        operator: u8,
        val: InBuf,
        val_len: usize,
        prval: OutPtr<c_int>,
    ) {
        add(read_op, |op| {
            op.push_with_output(compare_omap(key.bytes()?, operator, val, val_len)?, prval, None);
            Ok(())
        })
    }

    /// The same, with the length of the key.
    fn rados_read_op_omap_cmp2(
        read_op: Handle,
        key: CStrPtr,
        operator: u8,
        val: InBuf,
        key_len: usize,
        val_len: usize,
        prval: OutPtr<c_int>,
    ) {
        add(read_op, |op| {
            op.push_with_output(compare_omap(key.sized(key_len)?, operator, val, val_len)?, prval, None);
            Ok(())
        })
    }

    /// Reads all attributes.
    fn rados_read_op_getxattrs(read_op: Handle, iter: OutPtr<Handle>, prval: OutPtr<c_int>) {
        add(read_op, |op| {
            let deliver = iterate(iter, |output| Ok(decoded::<Pairs>(output)?.0));
            op.push_with_output(Op::GetXattrs, prval, Some(deliver));
            Ok(())
        })
    }

    /// Reads the size, and the modification time in seconds.
    fn rados_read_op_stat(read_op: Handle, psize: OutPtr<u64>, pmtime: OutPtr<time_t>, prval: OutPtr<c_int>) {
        add(read_op, |op| {
            let deliver: OutputCallback = Box::new(move |output| {
                let stat: StatReply = decoded(&output)?;
                psize.set(stat.size);
                pmtime.set(mtime_secs(&stat));
                Ok(())
            });
            op.push_with_output(Op::Stat, prval, Some(deliver));
            Ok(())
        })
    }

    /// Reads a range.
    fn rados_read_op_read(
        read_op: Handle,
        offset: u64,
        len: usize,
        buffer: OutBuf,
        bytes_read: OutPtr<usize>,
        prval: OutPtr<c_int>,
    ) {
        add(read_op, |op| {
            check_read_len(len)?;
            let deliver: OutputCallback = Box::new(move |output| {
                let read = buffer.fill(len, &output);
                bytes_read.set(read.unwrap_or(0));
                read.map(drop)
            });
            op.push_with_output(Op::Read { offset, len: len as u64 }, prval, Some(deliver));
            Ok(())
        })
    }

    /// Calls a method of an object class. The caller frees its output with `rados_buffer_free`.
    fn rados_read_op_exec(
        read_op: Handle,
        cls: CStrPtr,
        method: CStrPtr,
        in_buf: InBuf,
        in_len: usize,
        out_buf: OutPtr<MallocBuf>,
        out_len: OutPtr<usize>,
        prval: OutPtr<c_int>,
    ) {
        add(read_op, |op| {
            let deliver: OutputCallback = Box::new(move |output| {
                if let Ok(out_buf) = out_buf.required() {
                    out_buf.set(MallocBuf::data(&output)?);
                }
                out_len.set(output.len());
                Ok(())
            });
            op.push_with_output(class_call_op(cls, method, in_buf, in_len)?, prval, Some(deliver));
            Ok(())
        })
    }

    /// Calls a method of an object class, with the caller's buffer for its output.
    fn rados_read_op_exec_user_buf(
        read_op: Handle,
        cls: CStrPtr,
        method: CStrPtr,
        in_buf: InBuf,
        in_len: usize,
        out_buf: OutBuf,
        out_len: usize,
        used_len: OutPtr<usize>,
        prval: OutPtr<c_int>,
    ) {
        add(read_op, |op| {
            let deliver: OutputCallback = Box::new(move |output| {
                let used = out_buf.fill(out_len, &output);
                used_len.set(used.unwrap_or(0));
                used.map(drop)
            });
            op.push_with_output(class_call_op(cls, method, in_buf, in_len)?, prval, Some(deliver));
            Ok(())
        })
    }

    /// Reads omap entries after a key.
    fn rados_read_op_omap_get_vals(
        read_op: Handle,
        start_after: CStrPtr,
        filter_prefix: CStrPtr,
        max_return: u64,
        iter: OutPtr<Handle>,
        prval: OutPtr<c_int>,
    ) {
        omap_vals(read_op, start_after, filter_prefix, max_return, iter, None, prval)
    }

    /// The same; also reports whether there are more.
    fn rados_read_op_omap_get_vals2(
        read_op: Handle,
        start_after: CStrPtr,
        filter_prefix: CStrPtr,
        max_return: u64,
        iter: OutPtr<Handle>,
        pmore: OutPtr<c_uchar>,
        prval: OutPtr<c_int>,
    ) {
        omap_vals(read_op, start_after, filter_prefix, max_return, iter, Some(pmore), prval)
    }

    /// Reads omap keys after a key.
    fn rados_read_op_omap_get_keys(
        read_op: Handle,
        start_after: CStrPtr,
        max_return: u64,
        iter: OutPtr<Handle>,
        prval: OutPtr<c_int>,
    ) {
        omap_keys(read_op, start_after, max_return, iter, None, prval)
    }

    /// The same; also reports whether there are more.
    fn rados_read_op_omap_get_keys2(
        read_op: Handle,
        start_after: CStrPtr,
        max_return: u64,
        iter: OutPtr<Handle>,
        pmore: OutPtr<c_uchar>,
        prval: OutPtr<c_int>,
    ) {
        omap_keys(read_op, start_after, max_return, iter, Some(pmore), prval)
    }

    /// Reads the omap entries of the given keys.
    fn rados_read_op_omap_get_vals_by_keys(
        read_op: Handle,
        names: InArray<CStrPtr>,
        keys_len: usize,
        iter: OutPtr<Handle>,
        prval: OutPtr<c_int>,
    ) {
        omap_vals_by_keys(read_op, keys(names, keys_len), iter, prval)
    }

    /// The same, with the lengths of the keys.
    fn rados_read_op_omap_get_vals_by_keys2(
        read_op: Handle,
        names: InArray<CStrPtr>,
        num_keys: usize,
        key_lens: InArray<usize>,
        iter: OutPtr<Handle>,
        prval: OutPtr<c_int>,
    ) {
        omap_vals_by_keys(read_op, keys_with_lens(names, key_lens, num_keys), iter, prval)
    }

    /// Executes the operation.
    fn rados_read_op_operate(read_op: Handle, io: Handle, oid: CStrPtr, flags: c_int) -> c_int {
        let io = IOCTXS.get(io)?;
        Ok(io.operate(AccessKind::Read, oid, take(read_op, flags)?)?.result)
    }

    /// Starts the operation asynchronously.
    fn rados_aio_read_op_operate(
        read_op: Handle,
        io: Handle,
        completion: Handle,
        oid: CStrPtr,
        flags: c_int,
    ) -> c_int {
        aio::start(io, completion, AccessKind::Read, oid, take(read_op, flags)?, |reply| Ok(reply.result))
    }
}

fn take(read_op: Handle, flags: c_int) -> ApiResult<CompoundOp> {
    let mut op = std::mem::take(&mut *READ_OPS.get(read_op)?.lock());
    op.add_flags(request_flags(flags));
    Ok(op)
}
