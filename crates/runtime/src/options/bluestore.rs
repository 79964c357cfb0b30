//! Options of BlueStore.

use super::kinds::{Bool, CsumType, FloatSecs, Size, Str, Uint};
use super::option_group;
use super::spec::Service::Osd;

option_group! {
    /// BlueStore: devices, allocation, checksums, caches, batches.
    BluestoreOptions:
    bluestore_block_path: Str = "", "Path of the device or file that holds data; empty for 'block' in osd_data"
        [services(&[Osd]), create()];
    bluestore_block_size: Size = "100Gi", "Size of a new file that holds data"
        [min("16Mi"), services(&[Osd]), create()];
    bluestore_block_create: Bool = "true", "Create the file that holds data where it is missing"
        [services(&[Osd]), create()];
    bluestore_block_preallocate_file: Bool = "false", "Reserve all of a new file's space at once"
        [services(&[Osd]), create()];
    bluestore_min_alloc_size: Size = "0", "The unit of allocation, a power of two; 0 for 4 KiB"
        [range("0", "1Mi"), services(&[Osd]), create()];
    bluestore_max_blob_size: Size = "0", "The longest blob that is written as one; 0 chooses by the device"
        [services(&[Osd])];
    bluestore_csum_type: CsumType = "crc32c", "Checksum of data" [runtime(), services(&[Osd])];
    bluestore_csum_block_size: Size = "4Ki", "Bytes of data under one checksum, a power of two"
        [range("4Ki", "64Ki"), services(&[Osd]), create(), nacre()];
    bluestore_cache_size: Size = "0", "Memory for onodes and data; 0 chooses by the device"
        [services(&[Osd]), see(&["bluestore_cache_size_hdd", "bluestore_cache_size_ssd"])];
    bluestore_cache_size_hdd: Size = "1Gi", "Memory for onodes and data on rotating disks" [services(&[Osd])];
    bluestore_cache_size_ssd: Size = "3Gi", "Memory for onodes and data on solid state" [services(&[Osd])];
    bluestore_prefer_deferred_size: Size = "0", "Overwrites below this go through the write-ahead log; 0 for none"
        [services(&[Osd])];
    bluestore_max_defer_interval: FloatSecs = "3", "Seconds after which deferred writes go to their place"
        [services(&[Osd])];
    bluestore_max_batch_transactions: Uint = "256", "Transactions that share one flush" [range("1", "65536"),
        services(&[Osd]), nacre()];
    bluestore_max_batch_bytes: Size = "64Mi", "Bytes of data that share one flush" [range("64Ki", "1Gi"),
        services(&[Osd]), nacre()];
    bluestore_throttle_bytes: Size = "64Mi", "Bytes of transactions in flight" [min("64Ki"), services(&[Osd])];
    bluestore_throttle_deferred_bytes: Size = "128Mi", "Bytes of deferred writes in flight"
        [min("64Ki"), services(&[Osd])];
    bluestore_fsck_on_mount: Bool = "false", "Check the store before using it" [services(&[Osd]), startup()];
    bluestore_fsck_on_mount_deep: Bool = "false", "Read and verify all data when checking at start"
        [services(&[Osd]), startup()];
    bluestore_fsck_on_umount: Bool = "false", "Check the store after using it" [services(&[Osd])];
    bluestore_rocksdb_cache_size: Size = "256Mi", "Memory for RocksDB's blocks" [min("1Mi"), services(&[Osd]),
        startup(), nacre()];
    bluestore_wal_prefill: Bool = "true", "Fill the database's log files ahead at start, so that syncing them is cheap"
        [services(&[Osd]), startup(), nacre()];
    bluestore_db_ballast_bytes: Size = "16Mi", "Space kept free for metadata, so that deletes always succeed"
        [min("1Mi"), services(&[Osd]), create(), nacre()];
}
