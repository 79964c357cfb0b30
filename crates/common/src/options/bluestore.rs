//! Options of BlueStore.

use super::kinds::{Bool, ChecksumType, CompressionAlgorithm, CompressionMode, Float, Int, Size, Str};
use super::option_group;
use super::spec::OptionService::Osd;

option_group! {
    /// BlueStore: devices, allocation, checksums, caches, batches.
    BluestoreOptions:
    bluestore_block_path: Str = "", "Path of the device or file for data; empty for 'block' in osd_data"
        [services(&[Osd]), create()];
    bluestore_block_size: Size = "100Gi", "Size of a new data file"
        [min("16Mi"), services(&[Osd]), create()];
    bluestore_block_db_path: Str = "", "Directory for the database of a new store; empty for 'db' in osd_data"
        [services(&[Osd]), create(), long("A directory on the file system of a faster device. It must be empty.")];
    bluestore_min_alloc_size: Size = "4Ki", "Allocation unit of a new store: 4Ki, 8Ki, 16Ki, 32Ki or 64Ki"
        [range("4Ki", "64Ki"), services(&[Osd]), create(), long("A larger unit means less metadata and fewer extents of \
            large objects. Each small object takes at least one unit, and each small overwrite writes at least one.")];
    bdev_enable_discard: Bool = "false", "Send discards (TRIM) for freed space to the device"
        [services(&[Osd]), startup(), long("If data is in a file, its space is returned to the file system.")];
    bluestore_csum_type: ChecksumType = "crc32c", "Checksum algorithm of new data" [services(&[Osd]), runtime(),
        long("A pool's csum_type takes precedence. With none, corruption that the device does not report is not detected.")];
    bluestore_compression_mode: CompressionMode = "none", "Compression mode of new data" [services(&[Osd]), runtime(),
        long("passive: compress data that clients mark as compressible. aggressive: compress all data except what clients mark \
            as incompressible. force: compress all data. A pool's compression_mode takes precedence.")];
    bluestore_compression_algorithm: CompressionAlgorithm = "snappy", "Compression algorithm of new data"
        [services(&[Osd]), runtime(), see(&["bluestore_compression_mode"])];
    bluestore_compression_required_ratio: Float = "0.875", "Maximum ratio of compressed to original size at which data is stored compressed"
        [range("0", "1"), services(&[Osd]), runtime(), see(&["bluestore_compression_mode"])];
    bluestore_compression_min_blob_size: Size = "0", "Minimum size of writes that are compressed; 0 for 8 KiB"
        [services(&[Osd]), runtime(), see(&["bluestore_compression_mode"])];
    bluestore_compression_max_blob_size: Size = "0", "Maximum size of a compressed blob, before compression; 0 for 64 KiB"
        [range("0", "256Ki"), services(&[Osd]), runtime(), see(&["bluestore_compression_mode"])];
    bluestore_cache_size: Size = "0",
        "Size of the cache of onodes and data; 0 for 1/32 of the memory available at start, from 256 MiB to 1 GiB"
        [services(&[Osd]), startup()];
    bluestore_prefer_deferred_size: Size = "32Ki", "Maximum size of writes that go through the write-ahead log; 0 for none"
        [range("0", "1Mi"), services(&[Osd]), startup()];
    bluestore_allocation_from_file: Bool = "true", "Store the allocator's state in a file, not in RocksDB"
        [services(&[Osd]), startup(), long("A clean shutdown writes the file and the next start reads it. After a crash, the \
            state is rebuilt from checkpoints and records of later changes. If false, every change of the allocator is also \
            written to RocksDB, as in older releases of Ceph; this costs writes and compaction. An existing store is converted \
            at its next start.")];
    bluestore_allocation_recovery_threads: Int = "-1", "Number of threads of the object scan that rebuilds the allocation map"
        [range("-1", "1024"), services(&[Osd]), startup(), long("The scan runs only if neither the allocation file nor a \
            checkpoint is valid. -1 for one thread per core; 0 for the simple scan on one thread, Ceph's default; N for the \
            parallel scan on N threads.")];
    bluestore_allocation_checkpoint_bytes: Size = "8Mi", "Bytes of allocation records between checkpoints of the allocator"
        [range("0", "128Mi"), services(&[Osd]), startup(), nacre_only(), long("Limits what a start after a crash reads. With 0, no \
            records are written, and a start after a crash scans all objects.")];
    bluestore_throttle_bytes: Size = "64Mi", "Maximum bytes of transactions in flight"
        [min("64Ki"), services(&[Osd]), startup()];
    bluestore_rocksdb_cache_size: Size = "256Mi", "Size of RocksDB's block cache" [min("1Mi"), services(&[Osd]),
        startup(), nacre_only()];
    bluestore_wal_prefill: Bool = "true", "Prefill the database's log files at start, so that syncs of them are fast"
        [services(&[Osd]), startup(), nacre_only()];
    bluestore_db_ballast_bytes: Size = "32Mi", "Space reserved for metadata, so that deletes always succeed"
        [min("1Mi"), services(&[Osd]), create(), nacre_only()];
}
