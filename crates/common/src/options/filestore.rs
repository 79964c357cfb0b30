//! Options of FileStore.

use super::kinds::{FloatSecs, Int, Size, Str, Uint};
use super::option_group;
use super::spec::Service::Osd;

option_group! {
    /// FileStore: its journal, syncs, queues, attributes and directories.
    FilestoreOptions:
    osd_journal: Str = "", "Path of the file or device that holds a new OSD's journal; empty for 'journal' in osd_data"
        [services(&[Osd]), create()];
    osd_journal_size: Uint = "512", "Size of a new journal in MiB; no transaction may be larger than half of it"
        [range("64", "1048576"), services(&[Osd]), create()];
    filestore_max_sync_interval: FloatSecs = "5", "The most seconds between syncs of the file system"
        [range("0.001", "600"), services(&[Osd]), startup(), see(&["filestore_min_sync_interval"])];
    filestore_min_sync_interval: FloatSecs = "0.01", "The fewest seconds between syncs of the file system"
        [range("0", "600"), services(&[Osd]), startup(), see(&["filestore_max_sync_interval"])];
    filestore_queue_max_bytes: Size = "100Mi", "Bytes of transactions that are not in the files yet"
        [min("64Ki"), services(&[Osd]), startup()];
    filestore_queue_max_ops: Uint = "5000", "Transactions that are not in the files yet"
        [range("1", "1000000"), services(&[Osd]), startup()];
    filestore_max_inline_xattr_size: Size = "0", "Larger attributes go to omap; 0 for what suits the file system"
        [range("0", "64Ki"), services(&[Osd]), startup(), long("0 stands for 65536 on XFS, 2048 on Btrfs and 512 elsewhere.")];
    filestore_max_inline_xattrs: Uint = "0", "Attributes beyond this number go to omap; 0 for what suits the file system"
        [range("0", "1000"), services(&[Osd]), startup(), long("0 stands for 10 on XFS and Btrfs and 2 elsewhere.")];
    filestore_merge_threshold: Int = "-10", "Directories of fewer files are merged into the one above; negative for never"
        [range("-100000", "100000"), services(&[Osd]), startup(), see(&["filestore_split_multiple"])];
    filestore_split_multiple: Uint = "2", "A directory of more than this x |filestore_merge_threshold| x 16 files is split"
        [range("1", "100000"), services(&[Osd]), startup(), see(&["filestore_merge_threshold"])];
    filestore_fd_cache_size: Uint = "128", "Files kept open" [range("8", "100000"), services(&[Osd]), startup()];
    filestore_device_bytes: Size = "0", "Bytes that objects' data may take; 0 for all of the file system"
        [services(&[Osd]), startup(), nacre(), long("For several OSDs that share a file system: each then refuses writes \
        at its own share.")];
    filestore_min_free_bytes: Size = "128Mi", "Writes fail with ENOSPC where the file system would have less than this left"
        [min("1Mi"), services(&[Osd]), startup(), nacre()];
    filestore_rocksdb_cache_size: Size = "32Mi", "Memory for the blocks of FileStore's RocksDB"
        [min("1Mi"), services(&[Osd]), startup(), nacre()];
}
