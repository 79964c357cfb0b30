//! Options of MemStore.

use super::kinds::Size;
use super::option_group;
use super::spec::Service::Osd;

option_group! {
    /// MemStore: its bound.
    MemstoreOptions:
    memstore_device_bytes: Size = "1Gi", "Memory that the store may use; writes beyond it fail with ENOSPC"
        [min("1Mi"), services(&[Osd]), long("Bounds the memory that the store really takes, keys and bookkeeping \
        included, not only the bytes of objects.")];
    memstore_min_free_bytes: Size = "64Mi", "Writes fail with ENOSPC where the host could give less than this more"
        [min("1Mi"), services(&[Osd]), startup(), nacre(), long("Of the host's available memory and what the limits of \
        the process's control groups leave, the least counts; swap does not.")];
}
