//! System calls that the standard library lacks: extended attributes, hole punching, and syncing a file system.
//!
//! All calls go through the C library, so that the crash suite can record them. None is retried (rule B5).
#![allow(unsafe_code)]

use nacre_types::errno::Errno;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// Maximum size of an extended attribute on Linux, in bytes.
const MAX_XATTR_BYTES: usize = 64 << 10;
/// Maximum length of an extended attribute's name on Linux, in bytes, including its namespace.
const MAX_XATTR_NAME_BYTES: usize = 255;
/// Shorter ranges are zeroed by writing zeros.
const MIN_HOLE_BYTES: u64 = 64 << 10;

fn c_name(name: &str) -> io::Result<CString> {
    CString::new(name).map_err(|_| io::Error::from_raw_os_error(Errno::EINVAL.0))
}

/// Whether an extended attribute can have this name.
pub(super) fn is_xattr_name(name: &str) -> bool {
    name.len() <= MAX_XATTR_NAME_BYTES && !name.as_bytes().contains(&0)
}

/// Sets an extended attribute. Durable with the file's next fsync.
pub(super) fn set_xattr(file: &File, name: &str, value: &[u8]) -> io::Result<()> {
    let name = c_name(name)?;
    // SAFETY: the name is a C string and the value a buffer of its length, both outliving the call.
    let done =
        unsafe { libc::fsetxattr(file.as_raw_fd(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Removes an extended attribute. Succeeds if it does not exist.
pub(super) fn remove_xattr(file: &File, name: &str) -> io::Result<()> {
    let name = c_name(name)?;
    // SAFETY: the name is a C string that outlives the call.
    let done = unsafe { libc::fremovexattr(file.as_raw_fd(), name.as_ptr()) };
    if done == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ENODATA) { Ok(()) } else { Err(error) }
}

/// The value of an extended attribute, or `None` if it does not exist.
pub(super) fn get_xattr(file: &File, name: &str) -> io::Result<Option<Vec<u8>>> {
    let name = c_name(name)?;
    let mut value = vec![0_u8; 1024];
    loop {
        // SAFETY: the buffer has the given length and outlives the call.
        let len = unsafe {
            libc::fgetxattr(file.as_raw_fd(), name.as_ptr(), value.as_mut_ptr().cast(), value.len())
        };
        if let Ok(len) = usize::try_from(len) {
            value.truncate(len);
            return Ok(Some(value));
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENODATA) => return Ok(None),
            Some(libc::ERANGE) if value.len() < MAX_XATTR_BYTES => value.resize(MAX_XATTR_BYTES, 0),
            _ => return Err(error),
        }
    }
}

/// Makes a range read as zeros without changing the file's size. Frees the space of ranges of at least [`MIN_HOLE_BYTES`].
pub(super) fn zero(file: &File, offset: u64, len: u64) -> io::Result<()> {
    if len >= MIN_HOLE_BYTES {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: plain system call on an open descriptor.
        let done = unsafe { libc::fallocate64(file.as_raw_fd(), mode, offset as i64, len as i64) };
        if done == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(Errno::ENOTSUP.0) {
            return Err(error);
        }
    }
    let end = (offset + len).min(file.metadata()?.len());
    let zeros = vec![0; MIN_HOLE_BYTES.min(end.saturating_sub(offset)) as usize];
    let mut at = offset;
    while at < end {
        let step = (end - at).min(zeros.len() as u64);
        file.write_all_at(&zeros[..step as usize], at)?;
        at += step;
    }
    Ok(())
}

/// Makes everything durable that was written to the file system that contains `directory`.
pub(super) fn sync_file_system(directory: &File) -> io::Result<()> {
    // SAFETY: plain system call on an open descriptor.
    let done = unsafe { libc::syncfs(directory.as_raw_fd()) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Allocates `0..len` of a file, if the file system supports it.
pub(super) fn preallocate(file: &File, len: u64) -> io::Result<()> {
    // SAFETY: plain system call on an open descriptor.
    let done = unsafe { libc::fallocate64(file.as_raw_fd(), 0, 0, len as i64) };
    if done == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(Errno::ENOTSUP.0) { Ok(()) } else { Err(error) }
}
