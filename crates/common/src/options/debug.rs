//! Log levels of subsystems, as `N/M`.

use super::kinds::Debug;
use super::option_group;

option_group! {
    /// Log levels of subsystems. `N` up to 0 logs warnings, up to 5 also state changes, up to 15 also each operation, above it
    /// everything; `M` is parsed and ignored.
    DebugOptions:
    debug_auth: Debug = "1/5", "Debug level of authentication" [runtime()];
    debug_ms: Debug = "0/0", "Debug level of the messenger" [runtime()];
    debug_mon: Debug = "1/5", "Debug level of the map authority" [runtime()];
    debug_monc: Debug = "0/10", "Debug level of sessions with the map authority" [runtime()];
    debug_osd: Debug = "1/5", "Debug level of object storage daemons" [runtime()];
    debug_bluestore: Debug = "1/5", "Debug level of BlueStore" [runtime()];
    debug_bdev: Debug = "1/3", "Debug level of block devices" [runtime()];
    debug_memstore: Debug = "1/5", "Debug level of MemStore" [runtime()];
    debug_filestore: Debug = "1/3", "Debug level of FileStore" [runtime()];
    debug_rocksdb: Debug = "4/5", "Debug level of RocksDB"
        [runtime(), advisory("the component logs nothing")];
    debug_crush: Debug = "1/1", "Debug level of CRUSH"
        [runtime(), advisory("the component logs nothing")];
    debug_objecter: Debug = "0/1", "Debug level of the objecter"
        [runtime(), advisory("the component logs nothing")];
    debug_rados: Debug = "0/5", "Debug level of librados" [runtime()];
}
