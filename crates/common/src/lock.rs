//! Lock files and pid files: one daemon per data directory.

use crate::error::{Error, Result};
use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// An exclusively locked file that contains the locker's pid. The lock is released when this is dropped or the process ends in
/// any way; the file itself remains.
#[derive(Debug)]
pub struct FileLock {
    file: File,
}

impl FileLock {
    /// Locks `path`, and creates it if it is missing. Fails with `Busy` if another process holds the lock.
    pub fn take(path: &Path) -> Result<FileLock> {
        loop {
            if let Some(lock) = FileLock::lock(FileLock::open(path)?, path)? {
                return Ok(lock);
            }
        }
    }

    fn open(path: &Path) -> Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o644);
        options.open(path).map_err(|error| Error::io("lock", path, error))
    }

    /// Locks an open file. Returns `None` if `path` no longer leads to it: a stopping daemon removed its pid file after this one
    /// opened it, and a lock on it does not exclude processes that open the path later.
    fn lock(mut file: File, path: &Path) -> Result<Option<FileLock>> {
        let failed = |error: std::io::Error| Error::io("lock", path, error);
        if let Err(errno) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if errno != rustix::io::Errno::WOULDBLOCK {
                return Err(failed(errno.into()));
            }
            let mut pid = String::new();
            // The holder is needed only for the message.
            let _ = file.read_to_string(&mut pid);
            return Err(Error::Busy(format!(
                "{} is locked by another process ({}); stop it first",
                path.display(),
                if pid.trim().is_empty() { "pid unknown" } else { pid.trim() },
            )));
        }
        if !is_at(&file, path).map_err(failed)? {
            return Ok(None);
        }
        file.set_len(0).map_err(failed)?;
        writeln!(file, "{}", std::process::id()).map_err(failed)?;
        Ok(Some(FileLock { file }))
    }
}

/// Returns whether `path` leads to this open file.
fn is_at(file: &File, path: &Path) -> std::io::Result<bool> {
    let opened = file.metadata()?;
    match std::fs::metadata(path) {
        Ok(found) => Ok((found.dev(), found.ino()) == (opened.dev(), opened.ino())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // An empty file indicates that no process runs; closing the descriptor releases the lock in any case.
        let _ = self.file.set_len(0);
    }
}

/// A pid file, locked while the daemon runs and removed when it stops in order.
#[derive(Debug)]
pub struct PidFile {
    path: PathBuf,
    _lock: FileLock,
}

impl PidFile {
    /// Writes the pid file. Fails if the process of an existing one still runs.
    pub fn create(path: &Path) -> Result<PidFile> {
        Ok(PidFile { _lock: FileLock::take(path)?, path: path.to_owned() })
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // A remaining pid file is harmless: the next daemon takes its lock.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_locker_is_refused_with_the_first_ones_pid() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.pid");
        let first = PidFile::create(&path).unwrap();
        let error = PidFile::create(&path).unwrap_err();
        assert!(matches!(&error, Error::Busy(text) if text.contains(&std::process::id().to_string())));
        drop(first);
        assert!(!path.exists());
        drop(PidFile::create(&path).unwrap());
    }

    #[test]
    fn a_lock_on_a_removed_pid_file_does_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.pid");
        let first = PidFile::create(&path).unwrap();
        let opened = FileLock::open(&path).unwrap();
        drop(first);
        assert!(FileLock::lock(opened, &path).unwrap().is_none(), "the path is free for another file");
        let opened = FileLock::open(&path).unwrap();
        let second = FileLock::lock(opened, &path).unwrap().unwrap();
        assert!(matches!(PidFile::create(&path), Err(Error::Busy(_))));
        drop(second);
    }
}
