//! Functions that Nacre does not support yet. They exist so that programs load, and fail with EOPNOTSUPP.
//!
//! The first use of each is logged.

use crate::guard::ApiError;
use nacre_types::errno::Errno;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::ffi::c_int;

/// Logs, once for each function, that `what` is not available. Returns the failure.
pub(crate) fn not_supported(what: &'static str) -> ApiError {
    static LOGGED: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    if LOGGED.lock().insert(what) {
        tracing::warn!("{what} is not supported by this release");
    }
    Errno::EOPNOTSUPP.into()
}

/// Declares functions that fail. They take no arguments because they read none: in C's calling conventions the caller cleans
/// them up.
macro_rules! unsupported {
    ($($what:literal: $($name:ident)*;)*) => {
        $($(
            #[doc = concat!("Part of ", $what, ": EOPNOTSUPP.")]
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> c_int {
                $crate::guard::run_entry_point(stringify!($name), || Err(not_supported(stringify!($name))))
            }
        )*)*

        /// All names of the table.
        #[cfg(test)]
        pub(crate) const NAMES: &[&str] = &[$($(stringify!($name)),*),*];
    };
}

unsupported! {
    "snapshots":
        rados_ioctx_snap_create rados_ioctx_selfmanaged_snap_create rados_ioctx_selfmanaged_snap_remove
        rados_ioctx_selfmanaged_snap_rollback;
    "owners of pools, which Ceph itself refuses since release 12":
        rados_ioctx_pool_set_auid rados_ioctx_pool_get_auid;
}

/// Functions of the same capabilities that return nothing.
mod without_result {
    use super::not_supported;
    use crate::abi::Handle;
    use crate::completion::COMPLETIONS;
    use crate::guard::{ApiResult, exports};
    use crate::ioctx::IOCTXS;

    /// Completes with EOPNOTSUPP.
    fn complete(io: Handle, completion: Handle, what: &'static str) -> ApiResult<()> {
        let (io, completion) = (IOCTXS.get(io)?, COMPLETIONS.get(completion)?);
        completion.begin()?;
        completion.finish(&io.client.finisher, || (not_supported(what).code(), 0));
        Ok(())
    }

    exports! {
        /// Part of snapshots: the completion gets EOPNOTSUPP.
        fn rados_aio_ioctx_selfmanaged_snap_create(io: Handle, _snapid: *mut u64, completion: Handle) {
            complete(io, completion, "rados_aio_ioctx_selfmanaged_snap_create")
        }

        /// Part of snapshots: the completion gets EOPNOTSUPP.
        fn rados_aio_ioctx_selfmanaged_snap_remove(io: Handle, _snapid: u64, completion: Handle) {
            complete(io, completion, "rados_aio_ioctx_selfmanaged_snap_remove")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_the_table_fail_alike() {
        assert_eq!(rados_ioctx_snap_create(), -95);
        assert_eq!(rados_ioctx_pool_set_auid(), -95);
        let names: BTreeSet<_> = NAMES.iter().collect();
        assert_eq!(names.len(), NAMES.len());
    }
}
