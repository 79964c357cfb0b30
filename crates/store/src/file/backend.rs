//! The store's files and database, as used by recovery, the applying thread, readers and checks.

use super::FileStoreConfig;
use super::db::Db;
use super::hash_index::{self, HashIndex};
use super::names;
use super::sys;
use crate::error::{Result, StoreError};
use nacre_types::ids::PgId;
use nacre_types::object::ObjectId;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Limits for attributes that are stored with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct XattrLimits {
    /// Maximum size of a value, in bytes.
    pub(super) max_bytes: usize,
    /// Maximum number of attributes.
    pub(super) max_count: usize,
}

/// Files, database and open descriptors.
pub(super) struct Backend {
    pub(super) db: Db,
    pub(super) dirs: HashIndex,
    current: PathBuf,
    current_file: File,
    open_files: Mutex<OpenFiles>,
    pub(super) xattrs: XattrLimits,
}

/// Recently used file descriptors by the number of the object's incarnation.
struct OpenFiles {
    files: HashMap<u64, (Arc<File>, u64)>,
    clock: u64,
    limit: usize,
}

/// Names in `current` besides the collections.
pub(super) const OMAP: &str = "omap";
pub(super) const CLONES: &str = "clones";

impl Backend {
    /// Opens the store parts in `current`.
    pub(super) fn open(current: &Path, config: &FileStoreConfig, create: bool) -> Result<Backend> {
        let database = current.join(OMAP);
        if !create && !database.join("CURRENT").exists() {
            return Err(StoreError::corrupt(
                database.display().to_string(),
                "the metadata database is missing",
            ));
        }
        let db = Db::open(&database, config.db_cache_bytes, config.write_buffer_bytes, create)?;
        let current_file =
            File::open(current).map_err(|e| StoreError::io(format!("open {}", current.display()), &e))?;
        let threshold = u64::from(config.merge_threshold.unsigned_abs()).max(1);
        let split_above = threshold * u64::from(config.split_multiple.max(1)) * 16;
        let merge_below = u64::try_from(config.merge_threshold).unwrap_or(0);
        Ok(Backend {
            db,
            dirs: HashIndex::new(current.to_owned(), split_above, merge_below),
            current: current.to_owned(),
            current_file,
            open_files: Mutex::new(OpenFiles {
                files: HashMap::new(),
                clock: 0,
                limit: config.open_files.max(4),
            }),
            xattrs: xattr_limits(current, config),
        })
    }

    /// The path of a prepared clone.
    pub(super) fn clone_path(&self, number: u64) -> PathBuf {
        self.current.join(CLONES).join(format!("{number:x}"))
    }

    /// Creates the file of a clone to be prepared.
    pub(super) fn create_clone(&self, number: u64) -> Result<File> {
        let path = self.clone_path(number);
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .map_err(|e| StoreError::io(format!("create {}", path.display()), &e))
    }

    /// Makes the names of prepared clones durable.
    pub(super) fn sync_clones(&self) -> Result<()> {
        nacre_objectstore::files::sync_directory(&self.current.join(CLONES))
    }

    /// Removes clones that were prepared for transactions that were never committed.
    pub(super) fn clear_clones(&self) -> Result<()> {
        let directory = self.current.join(CLONES);
        let mut left = Vec::new();
        hash_index::for_each_entry(&directory, |name, _| left.push(directory.join(name)))?;
        left.iter().try_for_each(|path| remove(path))
    }

    /// Removes a prepared clone.
    pub(super) fn remove_clone(&self, number: u64) -> Result<()> {
        self.open_files.lock().files.remove(&number);
        remove(&self.clone_path(number))
    }

    /// The open descriptor for `number`, if it is cached.
    pub(super) fn cached(&self, number: u64) -> Option<Arc<File>> {
        let mut open = self.open_files.lock();
        open.clock += 1;
        let now = open.clock;
        let (file, used) = open.files.get_mut(&number)?;
        *used = now;
        Some(Arc::clone(file))
    }

    /// Caches a descriptor.
    pub(super) fn cache_file(&self, number: u64, file: File) -> Arc<File> {
        let file = Arc::new(file);
        let mut open = self.open_files.lock();
        if open.files.len() >= open.limit
            && let Some(oldest) =
                open.files.iter().min_by_key(|(_, (_, used))| *used).map(|(number, _)| *number)
        {
            open.files.remove(&oldest);
        }
        open.clock += 1;
        let now = open.clock;
        open.files.insert(number, (Arc::clone(&file), now));
        file
    }

    /// Removes a descriptor from the cache.
    pub(super) fn evict_file(&self, number: u64) {
        self.open_files.lock().files.remove(&number);
    }

    /// Opens the file of an object under the first of `names` that exists, or as a prepared clone. `None` if no such file
    /// exists.
    pub(super) fn open_existing(
        &self,
        coll: PgId,
        names: &[&ObjectId],
        number: u64,
    ) -> Result<Option<Arc<File>>> {
        if let Some(file) = self.cached(number) {
            return Ok(Some(file));
        }
        // Twice, because the file may be renamed from one name to the next meanwhile.
        for _ in 0..2 {
            for oid in names {
                if let Some(file) = self.dirs.open(coll, oid, number)? {
                    return Ok(Some(self.cache_file(number, file)));
                }
            }
            if let Ok(file) = hash_index::open(&self.clone_path(number)) {
                return Ok(Some(self.cache_file(number, file)));
            }
        }
        Ok(None)
    }

    /// Opens the object's file and creates it if it does not exist.
    pub(super) fn create(&self, coll: PgId, oid: &ObjectId, number: u64) -> Result<Arc<File>> {
        let file = self.dirs.create(coll, oid, number)?;
        if names::file_name(oid, number).1 {
            // For people who look at the files. The database also has the name.
            let full = names::full_name(oid, number);
            if let Err(error) = sys::set_xattr(&file, names::LONG_NAME_XATTR, full.as_bytes()) {
                tracing::debug!(%oid, %error, "filestore: can't keep the whole name with the file");
            }
        }
        Ok(self.cache_file(number, file))
    }

    /// Makes everything written so far durable.
    pub(super) fn sync(&self) -> Result<()> {
        fail::fail_point!("filestore::sync", |_| Err(StoreError::Io {
            what: "syncfs (failpoint)".into(),
            code: libc::EIO
        }));
        if sync_is_on() {
            sys::sync_file_system(&self.current_file)
                .map_err(|e| StoreError::io(format!("syncfs {}", self.current.display()), &e))?;
        }
        self.db.sync()
    }
}

fn sync_is_on() -> bool {
    fail::fail_point!("filestore::skip_syncfs", |_| false);
    true
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(StoreError::io(format!("remove {}", path.display()), &error))
        }
        _ => Ok(()),
    }
}

/// Limits for the attributes of a file in this file system: 0 if it does not support extended attributes.
fn xattr_limits(current: &Path, config: &FileStoreConfig) -> XattrLimits {
    const XFS_MAGIC: i64 = 0x5846_5342;
    const BTRFS_MAGIC: i64 = 0x9123_683e;
    let probe = current.join(CLONES).join("probe");
    let works = File::create(&probe).and_then(|file| sys::set_xattr(&file, "user.ceph.probe", b"1"));
    let _ = fs::remove_file(&probe);
    if let Err(error) = works {
        tracing::warn!(path = %current.display(), %error, "filestore: no extended attributes here, all go to omap");
        return XattrLimits { max_bytes: 0, max_count: 0 };
    }
    let kind = rustix::fs::statfs(current).map_or(0, |statfs| statfs.f_type);
    // Ceph's defaults.
    let (bytes, count) = match kind {
        XFS_MAGIC => (65_536, 10),
        BTRFS_MAGIC => (2048, 10),
        _ => (512, 2),
    };
    let or = |configured: u64, default: usize| if configured == 0 { default } else { configured as usize };
    XattrLimits {
        max_bytes: or(config.max_inline_xattr_bytes, bytes).min(65_536),
        max_count: or(config.max_inline_xattrs, count),
    }
}
