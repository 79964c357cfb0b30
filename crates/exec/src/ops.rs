//! Execution of each op, with Ceph's order of checks.

use crate::cls;
use crate::copy;
use crate::data;
use crate::omap;
use crate::op_context::OpContext;
use crate::tier;
use crate::watch;
use crate::xattr;
use bytes::Bytes;
use nacre_types::encoding::encode;
use nacre_types::errno::Errno;
use nacre_types::op::{Op, OpResult, OsdOp, Pairs, StatReply, op_flag};
use nacre_types::payload::Payload;

/// Runs one op.
pub(super) fn run(object: &mut OpContext<'_>, op: &OsdOp) -> Result<OpResult, Errno> {
    let done = || Ok(OpResult::default());
    match &op.op {
        Op::Create { exclusive } => {
            if object.exists() && (*exclusive || op.flags & op_flag::EXCL != 0) {
                return Err(Errno::EEXIST);
            }
            object.create();
            done()
        }
        Op::Read { offset, len } => Ok(OpResult::output(object.read(*offset, *len)?)),
        Op::Write { offset, data } => {
            write(object, *offset, data)?;
            done()
        }
        Op::Append { data } => {
            write(object, object.size(), data)?;
            done()
        }
        Op::WriteFull { data } => {
            if data.len() as u64 > object.limits().max_object_size_bytes {
                return Err(Errno::EFBIG);
            }
            object.create();
            object.write_full(data.clone());
            done()
        }
        Op::Truncate { size } => {
            if object.exists() {
                object.limits().check_range(*size, 0)?;
                object.truncate(*size);
            }
            done()
        }
        Op::Zero { offset, len } => {
            zero(object, *offset, *len)?;
            done()
        }
        Op::Remove => {
            if !object.exists() {
                return Err(Errno::ENOENT);
            }
            object.remove();
            done()
        }
        Op::Stat => {
            if !object.exists() {
                return Err(Errno::ENOENT);
            }
            let reply = StatReply { size: object.size(), mtime_ns: object.info().mtime_ns };
            Ok(OpResult::output(encode(&reply)))
        }
        // It would be stored under the name of the object's own info.
        Op::GetXattr { name }
        | Op::SetXattr { name, .. }
        | Op::RmXattr { name }
        | Op::CmpXattr { name, .. }
            if name.is_empty() =>
        {
            Err(Errno::EINVAL)
        }
        Op::GetXattr { name } => Ok(OpResult::output(object.user_attr(name)?.ok_or(Errno::ENODATA)?)),
        Op::GetXattrs => {
            let pairs = object.user_attrs()?.into_iter().map(|(name, value)| (Bytes::from(name), value));
            Ok(OpResult::output(encode(&Pairs(pairs.collect()))))
        }
        Op::SetXattr { name, value } => {
            xattr::set(object, name, value.clone())?;
            done()
        }
        Op::RmXattr { name } => {
            if !object.exists() {
                return Err(Errno::ENOENT);
            }
            object.rm_user_attr(name);
            done()
        }
        Op::CmpXattr { name, op, value } => xattr::compare(object, name, *op, value),
        Op::AssertExists => {
            if !object.exists() {
                return Err(Errno::ENOENT);
            }
            done()
        }
        Op::AssertVersion { version } => {
            let now = object.info().user_version;
            match version {
                0 => Err(Errno::EINVAL),
                given if *given < now => Err(Errno::ERANGE),
                given if *given > now => Err(Errno::EOVERFLOW),
                _ => done(),
            }
        }
        Op::SetAllocHint { expected_object_size, expected_write_size, flags } => {
            object.create();
            object.set_alloc_hint(*expected_object_size, *expected_write_size, *flags);
            done()
        }
        Op::SparseRead { offset, len } => data::sparse_read(object, *offset, *len),
        Op::MapExt { offset, len } => data::map_extents(object, *offset, *len),
        Op::CmpExt { offset, data } => data::compare(object, *offset, data),
        Op::WriteSame { offset, len, data } => data::write_same(object, *offset, *len, data),
        Op::Checksum { kind, init, offset, len, chunk } => {
            data::checksum(object, *kind, *init, (*offset, *len), *chunk)
        }
        Op::Call { class, method, input } => cls::call(object, class, method, input),
        Op::PgList { .. } | Op::ListDirty { .. } => Err(Errno::EINVAL),
        Op::Watch { .. }
        | Op::WatchReconnect { .. }
        | Op::WatchPing { .. }
        | Op::Unwatch { .. }
        | Op::Notify { .. }
        | Op::NotifyAck { .. }
        | Op::ListWatchers => watch::run(object, &op.op),
        Op::CopyGet { cursor, max_bytes } => {
            copy::get(object, cursor, *max_bytes, object.is_from_tier_pool())
        }
        Op::CopyFrom { flags, truncate, .. } => copy::from(object, *flags, *truncate),
        Op::OmapGetKeys { .. }
        | Op::OmapGetVals { .. }
        | Op::OmapGetValsByKeys { .. }
        | Op::OmapGetHeader
        | Op::OmapSet { .. }
        | Op::OmapSetHeader { .. }
        | Op::OmapRmKeys { .. }
        | Op::OmapRmRange { .. }
        | Op::OmapClear
        | Op::OmapCmp { .. } => omap::run(object, &op.op),
        Op::CachePin | Op::CacheUnpin | Op::IsDirty | Op::Undirty => tier::run(object, &op.op),
        // The host handles them, and only in a cache tier.
        Op::CacheFlush | Op::CacheTryFlush | Op::CacheEvict | Op::QueryRequest { .. } => Err(Errno::EINVAL),
    }
}

fn write(object: &mut OpContext<'_>, offset: u64, data: &Payload) -> Result<(), Errno> {
    // An empty append at the limit is refused too: the offset itself must be below it.
    object.limits().check_range(offset, data.len() as u64)?;
    object.create();
    if data.is_empty() {
        if offset > object.size() {
            object.truncate(offset);
        }
    } else {
        object.write(offset, data.clone());
    }
    Ok(())
}

fn zero(object: &mut OpContext<'_>, offset: u64, len: u64) -> Result<(), Errno> {
    let max = object.limits().max_object_size_bytes;
    if object.exists() && offset < max && (1..=max).contains(&len) && offset + len >= object.size() {
        // As in Ceph, zeroing up to the end is a truncation, and beyond the end has no effect.
        if offset < object.size() {
            object.truncate(offset);
        }
        return Ok(());
    }
    object.limits().check_range(offset, len)?;
    if len > 0 && object.exists() {
        object.zero(offset, len);
    }
    Ok(())
}
