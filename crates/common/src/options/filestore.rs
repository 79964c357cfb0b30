//! Options of FileStore.

use super::kinds::{FloatSecs, Int, Size, Str, Uint};
use super::option_group;
use super::spec::OptionService::Osd;

option_group! {
    /// FileStore: its journal, syncs, queues, attributes and directories.
    FilestoreOptions:
    osd_journal: Str = "", "Path of the file or device for the journal of a new OSD; empty for 'journal' in osd_data"
        [services(&[Osd]), create()];
    osd_journal_size: Uint = "512", "Size of a new journal in MiB; a transaction may be at most half as large"
        [range("64", "1048576"), services(&[Osd]), create()];
    filestore_max_sync_interval: FloatSecs = "5", "Maximum interval between syncs of the file system, in seconds"
        [range("0.001", "600"), services(&[Osd]), startup(), see(&["filestore_min_sync_interval"])];
    filestore_min_sync_interval: FloatSecs = "0.01", "Minimum interval between syncs of the file system, in seconds"
        [range("0", "600"), services(&[Osd]), startup(), see(&["filestore_max_sync_interval"])];
    filestore_queue_max_bytes: Size = "100Mi", "Maximum bytes of transactions that are not yet applied to files"
        [min("64Ki"), services(&[Osd]), startup()];
    filestore_queue_max_ops: Uint = "5000", "Maximum number of transactions that are not yet applied to files"
        [range("1", "1000000"), services(&[Osd]), startup()];
    filestore_max_inline_xattr_size: Size = "0",
        "Maximum size of an attribute in an xattr of the file, larger ones go to omap; 0 to choose by file system"
        [range("0", "64Ki"), services(&[Osd]), startup(), long("0 means 65536 on XFS, 2048 on Btrfs and 512 on other file \
            systems.")];
    filestore_max_inline_xattrs: Uint = "0",
        "Maximum number of attributes in xattrs of the file, further ones go to omap; 0 to choose by file system"
        [range("0", "1000"), services(&[Osd]), startup(), long("0 means 10 on XFS and Btrfs, and 2 on other file systems.")];
    filestore_merge_threshold: Int = "-10", "Number of files below which a directory is merged into its parent; negative for never"
        [range("-100000", "100000"), services(&[Osd]), startup(), see(&["filestore_split_multiple"])];
    filestore_split_multiple: Uint = "2", "A directory of more than this x |filestore_merge_threshold| x 16 files is split"
        [range("1", "100000"), services(&[Osd]), startup(), see(&["filestore_merge_threshold"])];
    filestore_fd_cache_size: Uint = "128", "Maximum number of open files in the cache" [range("8", "100000"), services(&[Osd]), startup()];
    filestore_device_bytes: Size = "0", "Maximum bytes of object data; 0 for the whole file system"
        [services(&[Osd]), startup(), nacre_only(), long("For several OSDs on one file system: each OSD refuses writes beyond its \
            share.")];
    filestore_min_free_bytes: Size = "128Mi",
        "Space that must remain free on the file system; writes that would leave less fail with ENOSPC"
        [min("1Mi"), services(&[Osd]), startup(), nacre_only()];
    filestore_rocksdb_cache_size: Size = "32Mi", "Size of the block cache of FileStore's RocksDB"
        [min("1Mi"), services(&[Osd]), startup(), nacre_only()];
}
