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
        let failed = |e: std::io::Error| Error::io("lock", path, e);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .open(path)
            .map_err(failed)?;
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
        // A stopping daemon may have removed its pid file after it was opened here: the next process would lock another file.
        if !is_at(&file, path).map_err(failed)? {
            return FileLock::take(path);
        }
        file.set_len(0).map_err(failed)?;
        writeln!(file, "{}", std::process::id()).map_err(failed)?;
        Ok(FileLock { file })
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
    use std::sync::atomic::{AtomicBool, Ordering};

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
    fn a_pid_file_that_is_removed_while_others_wait_for_it_has_one_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.pid");
        let is_held = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut count = 0;
                    while count < 500 {
                        let Ok(held) = PidFile::create(&path) else { continue };
                        assert!(!is_held.swap(true, Ordering::SeqCst), "two hold one pid file");
                        is_held.store(false, Ordering::SeqCst);
                        drop(held);
                        count += 1;
                    }
                });
            }
        });
    }
}
