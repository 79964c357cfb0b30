//! The kind of an OSD's store: chosen by `mkfs`, recorded beside the data, opened at start.

use crate::error::OsdError;
use nacre_common::options::{ObjectStoreKind, Options};
use nacre_shard::shared::Shared;
use nacre_store::{
    BlueStore, BlueStoreConfig, CompressionMode, DataOptions, FileStore, FileStoreConfig, MemStore,
    MemStoreConfig, MountReport, ObjectStore, StoreEvents,
};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file that names the kind of store, as in Ceph's OSD directories.
const TYPE_FILE: &str = "type";
/// The share of the memory available at start that BlueStore's cache may take (one part in `CACHE_SHARE`), and its bounds in bytes.
const CACHE_SHARE: u64 = 32;
const CACHE_LEAST: u64 = 256 << 20;
const CACHE_MOST: u64 = 1 << 30;

fn io(what: &'static str) -> impl FnOnce(std::io::Error) -> OsdError {
    move |source| OsdError::Io { what, source }
}

/// The OSD's directory.
pub(crate) fn directory_of(options: &Options) -> PathBuf {
    PathBuf::from(&options.osd.osd_data)
}

/// Creates an empty store of the configured kind. `force` removes all existing contents except the keyring.
pub(crate) fn make(directory: &Path, options: &Options, force: bool) -> Result<(), OsdError> {
    fs::create_dir_all(directory).map_err(io("create the OSD's directory"))?;
    let used = directory.join(TYPE_FILE).exists();
    if used && !force {
        return Err(OsdError::Invalid(format!(
            "{} holds a store already; --force makes a new one and loses what is in it",
            directory.display()
        )));
    }
    if used {
        clear(directory)?;
    }
    let kind = options.osd.osd_objectstore;
    match kind {
        ObjectStoreKind::Memstore => {
            MemStore::mkfs(directory)?;
        }
        ObjectStoreKind::Bluestore => {
            let block = &options.bluestore.bluestore_block_path;
            if !block.is_empty() {
                std::os::unix::fs::symlink(block, directory.join("block"))
                    .map_err(io("link the block device"))?;
            }
            BlueStore::mkfs(directory, options.bluestore.bluestore_block_size, &bluestore_config(options))?;
        }
        ObjectStoreKind::Filestore => {
            FileStore::mkfs(directory, &filestore_config(options))?;
        }
    }
    // Written last, so that an interrupted attempt is not mistaken for a store.
    fs::write(directory.join(TYPE_FILE), format!("{}\n", kind.as_str()))
        .map_err(io("write the store's type"))?;
    Ok(())
}

fn clear(directory: &Path) -> Result<(), OsdError> {
    for entry in fs::read_dir(directory).map_err(io("list the OSD's directory"))? {
        let entry = entry.map_err(io("list the OSD's directory"))?;
        if entry.file_name() == "keyring" {
            continue;
        }
        // A database in another place belongs to this store too.
        if entry.file_name() == "db"
            && let Ok(elsewhere) = fs::read_link(entry.path())
            && elsewhere.exists()
        {
            fs::remove_dir_all(elsewhere).map_err(io("clear the database's directory"))?;
        }
        let is_dir = entry.file_type().map_err(io("list the OSD's directory"))?.is_dir();
        let removed = if is_dir { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) };
        removed.map_err(io("clear the OSD's directory"))?;
    }
    Ok(())
}

fn unsupported(kind: &str) -> OsdError {
    OsdError::Invalid(format!(
        "the directory's file 'type' names a store that this build does not know: {kind}"
    ))
}

/// Mounts the existing store. The kind that the options name is only for new stores.
pub(crate) fn mount(
    directory: &Path,
    options: &Options,
    events: Arc<dyn StoreEvents>,
) -> Result<(Arc<dyn ObjectStore>, MountReport), OsdError> {
    let kind = match fs::read_to_string(directory.join(TYPE_FILE)) {
        Ok(text) => text.trim().to_owned(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(OsdError::NoSuperblock),
        Err(source) => return Err(OsdError::Io { what: "read the store's type", source }),
    };
    match kind.as_str() {
        "memstore" => {
            let config = MemStoreConfig {
                device_bytes: options.memstore.memstore_device_bytes,
                min_free_bytes: options.memstore.memstore_min_free_bytes,
                ..MemStoreConfig::default()
            };
            let (store, report) = MemStore::mount(directory, config)?;
            Ok((Arc::new(store), report))
        }
        "bluestore" => {
            let (store, report) = BlueStore::mount(directory, bluestore_config(options), events)?;
            Ok((Arc::new(store), report))
        }
        "filestore" => {
            let (store, report) = FileStore::mount(directory, filestore_config(options), events)?;
            Ok((Arc::new(store), report))
        }
        other => Err(unsupported(other)),
    }
}

fn filestore_config(options: &Options) -> FileStoreConfig {
    let file = &options.filestore;
    FileStoreConfig {
        journal_bytes: file.osd_journal_size << 20,
        journal_path: (!file.osd_journal.is_empty()).then(|| PathBuf::from(&file.osd_journal)),
        max_sync_interval: file.filestore_max_sync_interval,
        min_sync_interval: file.filestore_min_sync_interval,
        queue_bytes: file.filestore_queue_max_bytes,
        queue_ops: file.filestore_queue_max_ops as usize,
        max_inline_xattr_bytes: file.filestore_max_inline_xattr_size,
        max_inline_xattrs: file.filestore_max_inline_xattrs,
        split_multiple: file.filestore_split_multiple as u32,
        merge_threshold: file.filestore_merge_threshold as i32,
        open_files: file.filestore_fd_cache_size as usize,
        device_bytes: file.filestore_device_bytes,
        min_free_bytes: file.filestore_min_free_bytes,
        db_cache_bytes: file.filestore_rocksdb_cache_size as usize,
        ..FileStoreConfig::default()
    }
}

/// Options that [`data_options`] reads.
pub(crate) const DATA_OPTIONS: &[&str] = &[
    "bluestore_csum_type",
    "bluestore_compression_mode",
    "bluestore_compression_algorithm",
    "bluestore_compression_required_ratio",
    "bluestore_compression_min_blob_size",
    "bluestore_compression_max_blob_size",
];

/// How a pool's data is stored. The pool's own options (`osd pool set`) take precedence over the configuration; 0 means unset.
pub(crate) fn data_options(options: &Options, pool: &BTreeMap<String, String>) -> DataOptions {
    let named = |name: &str| pool.get(name).map(String::as_str);
    let blue = &options.bluestore;
    let defaults = DataOptions::default();
    let bytes = |name: &str, option: u64, default: u64| {
        let of_pool = pool.get(name).and_then(|text| text.parse::<u64>().ok());
        [of_pool.unwrap_or(0), option, default].into_iter().find(|bytes| *bytes > 0).unwrap_or(default)
    };
    DataOptions {
        checksum: named("csum_type").and_then(|text| text.parse().ok()).unwrap_or(blue.bluestore_csum_type),
        min_chunk_bytes: bytes("csum_min_block", 0, defaults.min_chunk_bytes),
        max_chunk_bytes: bytes("csum_max_block", 0, defaults.max_chunk_bytes),
        mode: match named("compression_algorithm") {
            Some("none") => CompressionMode::None,
            _ => named("compression_mode")
                .and_then(|text| text.parse().ok())
                .unwrap_or(blue.bluestore_compression_mode),
        },
        algorithm: named("compression_algorithm")
            .and_then(|text| text.parse().ok())
            .unwrap_or(blue.bluestore_compression_algorithm),
        required_ratio: named("compression_required_ratio")
            .and_then(|text| text.parse().ok())
            .unwrap_or(blue.bluestore_compression_required_ratio),
        min_blob_bytes: bytes(
            "compression_min_blob_size",
            blue.bluestore_compression_min_blob_size,
            defaults.min_blob_bytes,
        ),
        max_blob_bytes: bytes(
            "compression_max_blob_size",
            blue.bluestore_compression_max_blob_size,
            defaults.max_blob_bytes,
        ),
    }
}

/// Default size of a BlueStore's cache for `available` bytes. Several OSDs may share this machine's memory.
fn cache_bytes(available: Option<u64>) -> u64 {
    (available.unwrap_or(0) / CACHE_SHARE).clamp(CACHE_LEAST, CACHE_MOST)
}

/// The BlueStore configuration from the options.
pub fn bluestore_config(options: &Options) -> BlueStoreConfig {
    let blue = &options.bluestore;
    let defaults = BlueStoreConfig::default();
    BlueStoreConfig {
        cache_bytes: match blue.bluestore_cache_size {
            0 => cache_bytes(nacre_store::available_memory()),
            named => named,
        },
        db_cache_bytes: blue.bluestore_rocksdb_cache_size as usize,
        queue_bytes: blue.bluestore_throttle_bytes,
        prefer_deferred_bytes: blue.bluestore_prefer_deferred_size,
        ballast_bytes: blue.bluestore_db_ballast_bytes,
        allocation_from_file: blue.bluestore_allocation_from_file,
        recovery_threads: usize::try_from(blue.bluestore_allocation_recovery_threads)
            .unwrap_or(defaults.recovery_threads),
        checkpoint_bytes: blue.bluestore_allocation_checkpoint_bytes,
        wal_prefill: blue.bluestore_wal_prefill,
        min_alloc_bytes: blue.bluestore_min_alloc_size,
        db_path: (!blue.bluestore_block_db_path.is_empty())
            .then(|| PathBuf::from(&blue.bluestore_block_db_path)),
        discard: blue.bdev_enable_discard,
        ..defaults
    }
}

/// Gives the store each pool's data options: those of the pool, or of the configuration where the pool has none.
pub(crate) fn set_data_options(shared: &Shared) {
    if let Some(map) = &*shared.map.load() {
        let options = shared.config.snapshot();
        let pools = map.pools.iter().map(|(id, pool)| (*id, data_options(&options, &pool.options)));
        shared.store.set_data_options(pools.collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_without_a_size_takes_a_bounded_part_of_memory() {
        assert_eq!(cache_bytes(None), CACHE_LEAST);
        assert_eq!(cache_bytes(Some(2 << 30)), CACHE_LEAST);
        assert_eq!(cache_bytes(Some(16 << 30)), 512 << 20);
        assert_eq!(cache_bytes(Some(1 << 40)), CACHE_MOST);
    }
}
