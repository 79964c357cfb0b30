//! Options of BlueStore.

use super::kinds::{Bool, Size, Str};
use super::option_group;
use super::spec::Service::Osd;

option_group! {
    /// BlueStore: devices, allocation, checksums, caches, batches.
    BluestoreOptions:
    bluestore_block_path: Str = "", "Path of the device or file that holds data; empty for 'block' in osd_data"
        [services(&[Osd]), create()];
    bluestore_block_size: Size = "100Gi", "Size of a new file that holds data"
        [min("16Mi"), services(&[Osd]), create()];
    bluestore_cache_size: Size = "0", "Memory for onodes and data; 0 for 256 MiB" [services(&[Osd]), startup()];
    bluestore_prefer_deferred_size: Size = "32Ki", "Writes of up to this go through the write-ahead log; 0 for none"
        [range("0", "1Mi"), services(&[Osd]), startup()];
    bluestore_throttle_bytes: Size = "64Mi", "Bytes of transactions in flight"
        [min("64Ki"), services(&[Osd]), startup()];
    bluestore_rocksdb_cache_size: Size = "256Mi", "Memory for RocksDB's blocks" [min("1Mi"), services(&[Osd]),
        startup(), nacre()];
    bluestore_wal_prefill: Bool = "true", "Fill the database's log files ahead at start, so that syncing them is cheap"
        [services(&[Osd]), startup(), nacre()];
    bluestore_db_ballast_bytes: Size = "32Mi", "Space kept free for metadata, so that deletes always succeed"
        [min("1Mi"), services(&[Osd]), create(), nacre()];
}
