//! Options of MemStore.

use super::kinds::Size;
use super::option_group;
use super::spec::OptionService::Osd;

option_group! {
    /// MemStore: its memory.
    MemstoreOptions:
    memstore_device_bytes: Size = "1Gi", "Maximum memory of the store; writes beyond it fail with ENOSPC"
        [min("1Mi"), services(&[Osd]), long("Counts all memory that the store allocates, including keys and metadata.")];
    memstore_min_free_bytes: Size = "64Mi", "Memory that must remain available on the host; writes that would leave less fail with ENOSPC"
        [min("1Mi"), services(&[Osd]), startup(), nacre_only(), long("The available memory is the minimum of that of the host and \
            what is left under the memory limits of the process's control groups. Swap does not count.")];
}
