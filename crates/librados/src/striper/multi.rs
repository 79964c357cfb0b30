//! Completions of sets of operations.
//!
//! No function of the C interface adds an operation to such a set. So it is empty and complete, with result 0, and its callbacks
//! are never called, as in Ceph's library.

use crate::abi::{Callback, CallbackArg, Handle, OutPtr};
use crate::guard::exports;
use crate::handles::HandleTable;
use std::ffi::c_int;

static SETS: HandleTable<()> = HandleTable::new();

exports! {
    /// Creates a completion.
    fn rados_striper_multi_aio_create_completion(
        _cb_arg: CallbackArg,
        _cb_complete: Callback,
        _cb_safe: Callback,
        pc: OutPtr<Handle>,
    ) -> c_int {
        pc.required()?.set(SETS.insert(()));
        Ok(0)
    }

    /// Waits until all operations are complete.
    fn rados_striper_multi_aio_wait_for_complete(c: Handle) {
        SETS.get(c).map(drop)
    }

    /// The same.
    fn rados_striper_multi_aio_wait_for_safe(c: Handle) {
        SETS.get(c).map(drop)
    }

    /// Waits until all operations are complete and callbacks have returned.
    fn rados_striper_multi_aio_wait_for_complete_and_cb(c: Handle) {
        SETS.get(c).map(drop)
    }

    /// The same.
    fn rados_striper_multi_aio_wait_for_safe_and_cb(c: Handle) {
        SETS.get(c).map(drop)
    }

    /// Whether all operations are complete.
    fn rados_striper_multi_aio_is_complete(c: Handle) -> c_int {
        SETS.get(c).map(|_| 1)
    }

    /// The same.
    fn rados_striper_multi_aio_is_safe(c: Handle) -> c_int {
        SETS.get(c).map(|_| 1)
    }

    /// Whether all operations are complete and callbacks have returned.
    fn rados_striper_multi_aio_is_complete_and_cb(c: Handle) -> c_int {
        SETS.get(c).map(|_| 1)
    }

    /// The same.
    fn rados_striper_multi_aio_is_safe_and_cb(c: Handle) -> c_int {
        SETS.get(c).map(|_| 1)
    }

    /// The first error of the operations, or 0.
    fn rados_striper_multi_aio_get_return_value(c: Handle) -> c_int {
        SETS.get(c).map(|_| 0)
    }

    /// Releases the completion.
    fn rados_striper_multi_aio_release(c: Handle) {
        SETS.remove(c).map(drop)
    }
}
