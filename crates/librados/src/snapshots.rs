//! Snapshots of pools. No pool has snapshots: lists are empty and no name or number is found, as in Ceph.
//!
//! Functions that create snapshots are refused ([`crate::unsupported`]).

use crate::abi::{CStrPtr, Handle, InArray, OutBuf, OutPtr};
use crate::guard::{ApiResult, exports};
use crate::ioctx::IOCTXS;
use libc::time_t;
use nacre_types::errno::Errno;
use std::ffi::c_int;

/// Returns ENOENT: the pool is missing or, if it exists, the snapshot.
fn not_found(io: Handle) -> ApiResult<c_int> {
    existing_pool(io)?;
    Err(Errno::ENOENT.into())
}

fn existing_pool(io: Handle) -> ApiResult<()> {
    let io = IOCTXS.get(io)?;
    let pool = io.ioctx.read().pool();
    io.client.osdmap()?.pools.get(&pool).ok_or(Errno::ENOENT)?;
    Ok(())
}

exports! {
    /// The pool's snapshots: none.
    fn rados_ioctx_snap_list(io: Handle, _snaps: OutPtr<u64>, _maxlen: c_int) -> c_int {
        existing_pool(io)?;
        Ok(0)
    }

    /// A snapshot's number: ENOENT.
    fn rados_ioctx_snap_lookup(io: Handle, _name: CStrPtr, _id: OutPtr<u64>) -> c_int {
        not_found(io)
    }

    /// A snapshot's name: ENOENT.
    fn rados_ioctx_snap_get_name(io: Handle, _id: u64, _name: OutBuf, _maxlen: c_int) -> c_int {
        not_found(io)
    }

    /// The creation time of a snapshot: ENOENT.
    fn rados_ioctx_snap_get_stamp(io: Handle, _id: u64, _t: OutPtr<time_t>) -> c_int {
        not_found(io)
    }

    /// Removes a snapshot: ENOENT.
    fn rados_ioctx_snap_remove(io: Handle, _snapname: CStrPtr) -> c_int {
        not_found(io)
    }

    /// Restores an object from a snapshot: ENOENT.
    fn rados_ioctx_snap_rollback(io: Handle, _oid: CStrPtr, _snapname: CStrPtr) -> c_int {
        not_found(io)
    }

    /// The older name of `rados_ioctx_snap_rollback`.
    fn rados_rollback(io: Handle, _oid: CStrPtr, _snapname: CStrPtr) -> c_int {
        not_found(io)
    }

    /// Sets the snapshots that later writes preserve: none, or EOPNOTSUPP. EINVAL if they are not in descending order.
    fn rados_ioctx_selfmanaged_snap_set_write_ctx(io: Handle, seq: u64, snaps: InArray<u64>, num_snaps: c_int) -> c_int {
        IOCTXS.get(io)?;
        let snaps = snaps.slice(usize::try_from(num_snaps).map_err(|_| Errno::EINVAL)?)?;
        if !snaps.iter().all(|snap| *snap <= seq) || !snaps.is_sorted_by(|before, after| before > after) {
            return Err(Errno::EINVAL.into());
        }
        if seq == 0 { Ok(0) } else { Err(crate::unsupported::not_supported("a snapshot context")) }
    }
}
