//! The `block` file or device: direct reads and writes of whole blocks, and flushes.
//!
//! All calls go through the C library, so that the crash suite can record them. An error of a write or flush is returned
//! and never retried (rule B5).
#![allow(unsafe_code)]

use super::aligned::{AlignedBuffer, AlignedBufferBuilder, is_aligned};
use super::onode::BLOCK_BYTES;
use crate::error::{Result, StoreError};
use bytes::Bytes;
use nacre_types::errno::Errno;
use parking_lot::Mutex;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Maximum number of buffers for one `pwritev` (`IOV_MAX`).
const MAX_BUFFERS: usize = 1024;

/// How long a measurement of a file system's free space is used.
pub(super) const FREE_SPACE_TTL: Duration = Duration::from_millis(100);
/// `BLKDISCARD` of linux/fs.h.
const BLKDISCARD: libc::Ioctl = 0x1277;

/// An open block file or device.
#[derive(Debug)]
pub(super) struct Device {
    file: File,
    path: PathBuf,
    /// Whether it is a block special file, which has its space from the start.
    raw: bool,
    /// Free bytes of the file system, and when they were measured.
    file_system: Mutex<Option<(Instant, u64)>>,
}

impl Device {
    /// Opens `path` for direct I/O, or through the page cache if the file system does not support direct I/O.
    pub(super) fn open(path: &Path) -> Result<Device> {
        let failed = |error: &io::Error| StoreError::io(format!("open {}", path.display()), error);
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let file = match options.clone().custom_flags(libc::O_DIRECT).open(path) {
            Err(error) if error.raw_os_error() == Some(Errno::EINVAL.0) => {
                tracing::warn!(path = %path.display(), "no direct I/O here, going through the page cache");
                options.open(path)
            }
            other => other,
        }
        .map_err(|e| failed(&e))?;
        let raw = file.metadata().map_err(|e| failed(&e))?.file_type().is_block_device();
        Ok(Device { file, path: path.to_owned(), raw, file_system: Mutex::default() })
    }

    /// Size in bytes.
    pub(super) fn size(&self) -> Result<u64> {
        use std::io::{Seek, SeekFrom};
        // Seeking also returns the size of block special files.
        (&self.file).seek(SeekFrom::End(0)).map_err(|e| self.failed("seek", &e))
    }

    /// Ensures that the file system has allocated space for `from..to`, in bytes. Fails with ENOSPC if it has none.
    pub(super) fn ensure_allocated(&self, from: u64, to: u64) -> Result<()> {
        if self.raw {
            return Ok(());
        }
        fail::fail_point!("store::grow", |_| Err(StoreError::Io {
            what: "allocate space (failpoint)".into(),
            code: Errno::ENOSPC.0
        }));
        preallocate(&self.file, from, to).map_err(|e| self.failed("allocate space in", &e))
    }

    /// Whether it is a block special file.
    pub(super) fn is_block_device(&self) -> bool {
        self.raw
    }

    /// Free bytes of the file system that contains a plain file, as of at most [`FREE_SPACE_TTL`] ago.
    pub(super) fn file_system_free(&self) -> Result<u64> {
        let mut measured = self.file_system.lock();
        if let Some((at, free)) = *measured
            && at.elapsed() < FREE_SPACE_TTL
        {
            return Ok(free);
        }
        let space = rustix::fs::fstatvfs(&self.file).map_err(|e| self.failed("statvfs", &e.into()))?;
        let free = space.f_bavail * space.f_frsize;
        *measured = Some((Instant::now(), free));
        Ok(free)
    }

    /// Tells the device that `from..to`, in bytes, is unused. For a plain file, this returns the space to its file
    /// system.
    pub(super) fn discard(&self, from: u64, to: u64) -> Result<()> {
        let done = if self.raw {
            let range = [from, to - from];
            // SAFETY: the call reads two numbers from the array, which lives until it returns.
            unsafe { libc::ioctl(self.file.as_raw_fd(), BLKDISCARD, range.as_ptr()) }
        } else {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: plain system call on an open descriptor.
            unsafe { libc::fallocate64(self.file.as_raw_fd(), mode, from as i64, (to - from) as i64) }
        };
        if done == 0 { Ok(()) } else { Err(self.failed("discard blocks of", &io::Error::last_os_error())) }
    }

    /// Sets the size of a plain file.
    pub(super) fn resize(&self, size: u64) -> Result<()> {
        self.file.set_len(size).map_err(|e| self.failed("resize", &e))
    }

    /// Reads whole blocks at `offset`.
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        debug_assert!(is_aligned(buffer) && offset.is_multiple_of(BLOCK_BYTES));
        self.file.read_exact_at(buffer, offset).map_err(|e| self.unreadable("read", &e))
    }

    /// Reads `len` bytes at `offset`, which must be whole blocks, to the end of `filling`, and returns them.
    pub(super) fn read_into<'a>(
        &self,
        offset: u64,
        len: usize,
        filling: &'a mut AlignedBufferBuilder,
    ) -> Result<&'a mut [u8]> {
        debug_assert!(offset.is_multiple_of(BLOCK_BYTES));
        filling.read(&self.file, offset, len).map_err(|e| self.unreadable("read", &e))
    }

    /// Writes `pieces`, each of whole blocks, consecutively at `offset`.
    pub(super) fn write(&self, offset: u64, pieces: &[Bytes]) -> Result<()> {
        fail::fail_point!("store::data_write", |_| Err(StoreError::Io {
            what: "write (failpoint)".into(),
            code: Errno::EIO.0
        }));
        let mut offset = offset;
        for pieces in pieces.chunks(MAX_BUFFERS) {
            let pieces: Vec<Bytes> = pieces
                .iter()
                .map(|piece| match is_aligned(piece) {
                    true => piece.clone(),
                    false => AlignedBuffer::copy_of(piece).freeze(),
                })
                .collect();
            let total: usize = pieces.iter().map(Bytes::len).sum();
            let vectors: Vec<libc::iovec> = pieces
                .iter()
                .map(|piece| libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() })
                .collect();
            // SAFETY: every vector points into a piece that lives until the call returns; the kernel only reads.
            let written = unsafe {
                libc::pwritev64(self.file.as_raw_fd(), vectors.as_ptr(), vectors.len() as i32, offset as i64)
            };
            if written < 0 {
                return Err(self.failed("write", &io::Error::last_os_error()));
            }
            let mut done = written as usize;
            // Direct I/O writes everything or fails. A short write ends at the device's end or at an interrupted piece.
            for piece in &pieces {
                let skip = done.min(piece.len());
                done -= skip;
                if skip < piece.len() {
                    self.file
                        .write_all_at(&piece[skip..], offset + skip as u64)
                        .map_err(|e| self.failed("write", &e))?;
                }
                offset += piece.len() as u64;
            }
            debug_assert!(written as usize <= total);
        }
        Ok(())
    }

    /// Makes all completed writes durable.
    pub(super) fn flush(&self) -> Result<()> {
        fail::fail_point!("store::skip_data_flush", |_| Ok(()));
        fail::fail_point!("store::data_flush", |_| Err(StoreError::Io {
            what: "fsync (failpoint)".into(),
            code: Errno::EIO.0
        }));
        self.file.sync_data().map_err(|e| self.failed("fsync", &e))
    }

    /// The error of a failed read. The errors that Linux returns for unreadable blocks become EIO (`blk_status_to_errno`; Ceph's
    /// `is_expected_ioerr`).
    fn unreadable(&self, what: &str, error: &io::Error) -> StoreError {
        let expected =
            [libc::ENODATA, libc::EILSEQ, libc::EREMOTEIO, libc::ENOLINK, libc::EBADE, libc::ETIMEDOUT];
        if error.raw_os_error().is_some_and(|code| expected.contains(&code)) {
            tracing::error!(path = %self.path.display(), %error, what, "blocks can't be read");
            return self.failed(what, &io::Error::from_raw_os_error(libc::EIO));
        }
        self.failed(what, error)
    }

    fn failed(&self, what: &str, error: &io::Error) -> StoreError {
        StoreError::io(format!("{what} {}", self.path.display()), error)
    }
}

/// Allocates `from..to` of a file, in bytes, if the file system supports it.
pub(super) fn preallocate(file: &File, from: u64, to: u64) -> io::Result<()> {
    // SAFETY: plain system call on an open descriptor.
    let done = unsafe { libc::fallocate64(file.as_raw_fd(), 0, from as i64, (to - from) as i64) };
    if done == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(Errno::ENOTSUP.0) { Ok(()) } else { Err(error) }
}

/// Creates the block file of `size` bytes, without allocating space.
pub(super) fn create(path: &Path, size: u64) -> Result<()> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .and_then(|file| {
            file.set_len(size)?;
            file.sync_all()
        })
        .map_err(|e| StoreError::io(format!("create {}", path.display()), &e))
}
