//! Atomic replacement of small files, and the lock that limits a store to one process.
//!
//! All calls go through the C library (`std::fs`), so that the crash suite can record them.

use crate::error::{Result, StoreError};
use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Replaces the contents of `path` with the concatenation of `parts`: writes a temporary file, syncs it, renames it and syncs the
/// directory. Durable on return.
pub fn write_atomically(path: &Path, parts: &[&[u8]]) -> Result<()> {
    replace_atomically(path, |file| parts.iter().try_for_each(|part| file.write_all(part)))
}

/// Like [`write_atomically`], with the contents that `write` produces.
pub fn replace_atomically(path: &Path, write: impl FnOnce(&mut File) -> std::io::Result<()>) -> Result<()> {
    let failed = |error: &std::io::Error| StoreError::io(format!("write {}", path.display()), error);
    let temporary = path.with_extension("new");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .map_err(|e| failed(&e))?;
    write(&mut file).and_then(|()| file.sync_all()).map_err(|e| failed(&e))?;
    std::fs::rename(&temporary, path).map_err(|e| failed(&e))?;
    sync_directory(path.parent().unwrap_or(Path::new(".")))
}

/// Makes the entries of `directory` durable.
pub fn sync_directory(directory: &Path) -> Result<()> {
    File::open(directory)
        .and_then(|dir| dir.sync_all())
        .map_err(|e| StoreError::io(format!("fsync {}", directory.display()), &e))
}

/// The contents of `path`, or `None` if the file does not exist.
pub fn read_if_present(path: &Path) -> Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::io(format!("read {}", path.display()), &error)),
    }
}

/// Holds a store's lock file. Dropping it releases the lock.
#[derive(Debug)]
pub struct StoreLock {
    file: File,
}

impl StoreLock {
    /// Locks `directory`, or fails with [`StoreError::InUse`].
    pub fn take(directory: &Path) -> Result<StoreLock> {
        let path = directory.join("lock");
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|e| StoreError::io(format!("open {}", path.display()), &e))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(StoreLock { file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(StoreError::InUse(directory.display().to_string())),
            Err(error) => Err(StoreError::io(format!("lock {}", path.display()), &error.into())),
        }
    }
}

impl Drop for StoreLock {
    fn drop(&mut self) {
        // Closing the file is not enough: a process that another thread has just forked also holds the file until it calls exec.
        _ = flock(&self.file, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_ends_while_a_forked_process_holds_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let lock = StoreLock::take(folder.path()).unwrap();
        assert!(matches!(StoreLock::take(folder.path()), Err(StoreError::InUse(_))));
        let inherited = lock.file.try_clone().unwrap();
        drop(lock);
        StoreLock::take(folder.path()).unwrap();
        drop(inherited);
    }
}
