//! Options of MemStore.

use super::kinds::Size;
use super::option_group;
use super::spec::Service::Osd;

option_group! {
    /// MemStore: its memory.
    MemstoreOptions:
    memstore_device_bytes: Size = "1Gi", "Memory that the store may use; writes beyond it fail with ENOSPC"
        [min("1Mi"), services(&[Osd]), long("Counts all memory that the store allocates, including keys and \
        metadata, not only the bytes of objects.")];
    memstore_min_free_bytes: Size = "64Mi", "Memory that must stay available on the host; writes that would leave less fail with ENOSPC"
        [min("1Mi"), services(&[Osd]), startup(), nacre(), long("What counts is the lowest of the host's available memory \
        and what is left under each memory limit of the process's control groups. Swap does not count.")];
}
