//! The C library's calls that change files, redefined: each makes the system call and tells the recorder. The fsyncs
//! themselves are left out: what they would make durable is worked out from the recording.
#![allow(unsafe_code)]

use crate::faults::{self, Call};
use crate::recorder;
use libc::{c_char, c_int, c_long, c_void, iovec, mode_t, off_t, size_t, ssize_t, syscall};
use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::AsRawFd;

/// Whether a call fails instead of being made.
fn fails(fd: c_int, call: Call) -> bool {
    let errno = faults::strikes(fd, call);
    if let Some(errno) = errno {
        // SAFETY: the location is the calling thread's own.
        unsafe { *libc::__errno_location() = errno };
    }
    errno.is_some()
}

fn read_at(fd: c_int, data: *mut c_void, len: size_t, offset: off_t) -> ssize_t {
    if fails(fd, Call::Read) {
        return -1;
    }
    // SAFETY: the caller's arguments are handed on.
    unsafe { syscall(libc::SYS_pread64, fd, data, len, offset) as ssize_t }
}

#[unsafe(no_mangle)]
extern "C" fn pread(fd: c_int, data: *mut c_void, len: size_t, offset: off_t) -> ssize_t {
    read_at(fd, data, len, offset)
}

#[unsafe(no_mangle)]
extern "C" fn pread64(fd: c_int, data: *mut c_void, len: size_t, offset: off_t) -> ssize_t {
    read_at(fd, data, len, offset)
}

fn bytes_of(path: *const c_char) -> Vec<u8> {
    // SAFETY: callers of these functions pass C strings, as the interface demands.
    unsafe { CStr::from_ptr(path) }.to_bytes().to_vec()
}

fn open_file(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller's arguments are handed on.
    let fd =
        unsafe { syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags | libc::O_LARGEFILE, mode) } as c_int;
    if fd >= 0 {
        recorder::opened(fd, &bytes_of(path), flags & libc::O_CREAT != 0, flags & libc::O_TRUNC != 0);
    }
    fd
}

#[unsafe(no_mangle)]
extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    open_file(path, flags, mode)
}

#[unsafe(no_mangle)]
extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    open_file(path, flags, mode)
}

#[unsafe(no_mangle)]
extern "C" fn close(fd: c_int) -> c_int {
    recorder::closing(fd);
    // SAFETY: the caller's arguments are handed on.
    unsafe { syscall(libc::SYS_close, fd) as c_int }
}

/// Records what a write call wrote, if its file is recorded.
fn record_write(fd: c_int, offset: u64, parts: &[(*const c_void, usize)], written: c_long) -> ssize_t {
    if written > 0
        && let Some(file) = recorder::node_of(fd)
    {
        let mut data = Vec::with_capacity(written as usize);
        for (start, len) in parts {
            let len = (*len).min(written as usize - data.len());
            // SAFETY: the caller vouches for its buffers, and the kernel has just read them.
            data.extend_from_slice(unsafe { std::slice::from_raw_parts(start.cast::<u8>(), len) });
        }
        recorder::written(file, offset, data);
    }
    written as ssize_t
}

#[unsafe(no_mangle)]
extern "C" fn write(fd: c_int, data: *const c_void, len: size_t) -> ssize_t {
    if fails(fd, Call::Write) {
        return -1;
    }
    let recorded = recorder::node_of(fd).is_some();
    // SAFETY: the caller's arguments are handed on.
    let written = unsafe { syscall(libc::SYS_write, fd, data, len) };
    if !recorded || written <= 0 {
        return written as ssize_t;
    }
    // Also right for descriptors that append: the position is behind what was written.
    // SAFETY: plain system call.
    let end = unsafe { syscall(libc::SYS_lseek, fd, 0, libc::SEEK_CUR) };
    record_write(fd, (end - written) as u64, &[(data, len)], written)
}

fn write_at(fd: c_int, data: *const c_void, len: size_t, offset: off_t) -> ssize_t {
    if fails(fd, Call::Write) {
        return -1;
    }
    // SAFETY: the caller's arguments are handed on.
    let written = unsafe { syscall(libc::SYS_pwrite64, fd, data, len, offset) };
    record_write(fd, offset as u64, &[(data, len)], written)
}

#[unsafe(no_mangle)]
extern "C" fn pwrite(fd: c_int, data: *const c_void, len: size_t, offset: off_t) -> ssize_t {
    write_at(fd, data, len, offset)
}

#[unsafe(no_mangle)]
extern "C" fn pwrite64(fd: c_int, data: *const c_void, len: size_t, offset: off_t) -> ssize_t {
    write_at(fd, data, len, offset)
}

fn write_vectors(fd: c_int, vectors: *const iovec, count: c_int, offset: off_t) -> ssize_t {
    if fails(fd, Call::Write) {
        return -1;
    }
    // SAFETY: the caller's arguments are handed on; the high half of the offset is unused on 64-bit systems.
    let written = unsafe { syscall(libc::SYS_pwritev, fd, vectors, count, offset, 0) };
    // SAFETY: the caller passes `count` vectors.
    let vectors = unsafe { std::slice::from_raw_parts(vectors, count as usize) };
    let parts: Vec<_> = vectors.iter().map(|part| (part.iov_base.cast_const(), part.iov_len)).collect();
    record_write(fd, offset as u64, &parts, written)
}

#[unsafe(no_mangle)]
extern "C" fn pwritev(fd: c_int, vectors: *const iovec, count: c_int, offset: off_t) -> ssize_t {
    write_vectors(fd, vectors, count, offset)
}

#[unsafe(no_mangle)]
extern "C" fn pwritev64(fd: c_int, vectors: *const iovec, count: c_int, offset: off_t) -> ssize_t {
    write_vectors(fd, vectors, count, offset)
}

fn sync(fd: c_int) -> c_int {
    if fails(fd, Call::Sync) {
        return -1;
    }
    if let Some(node) = recorder::node_of(fd)
        && let Some(sync) = recorder::sync_begins(node)
    {
        recorder::sync_ends(sync);
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn fsync(fd: c_int) -> c_int {
    sync(fd)
}

#[unsafe(no_mangle)]
extern "C" fn fdatasync(fd: c_int) -> c_int {
    sync(fd)
}

fn set_length(fd: c_int, size: off_t) -> c_int {
    // SAFETY: the caller's arguments are handed on.
    let done = unsafe { syscall(libc::SYS_ftruncate, fd, size) } as c_int;
    if done == 0
        && let Some(file) = recorder::node_of(fd)
    {
        recorder::truncated(file, size as u64);
    }
    done
}

#[unsafe(no_mangle)]
extern "C" fn ftruncate(fd: c_int, size: off_t) -> c_int {
    set_length(fd, size)
}

#[unsafe(no_mangle)]
extern "C" fn ftruncate64(fd: c_int, size: off_t) -> c_int {
    set_length(fd, size)
}

#[unsafe(no_mangle)]
extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    let at = libc::AT_FDCWD;
    // SAFETY: the caller's arguments are handed on.
    let done = unsafe { syscall(libc::SYS_renameat2, at, from, at, to, 0) } as c_int;
    if done == 0 {
        recorder::renamed(&bytes_of(from), &bytes_of(to));
    }
    done
}

#[unsafe(no_mangle)]
extern "C" fn unlink(path: *const c_char) -> c_int {
    // SAFETY: the caller's arguments are handed on.
    let done = unsafe { syscall(libc::SYS_unlinkat, libc::AT_FDCWD, path, 0) } as c_int;
    if done == 0 {
        recorder::unlinked(&bytes_of(path));
    }
    done
}

#[unsafe(no_mangle)]
extern "C" fn mkdir(path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the caller's arguments are handed on.
    let done = unsafe { syscall(libc::SYS_mkdirat, libc::AT_FDCWD, path, mode) } as c_int;
    if done == 0 {
        recorder::made_directory(&bytes_of(path));
    }
    done
}

#[unsafe(no_mangle)]
extern "C" fn rmdir(path: *const c_char) -> c_int {
    // SAFETY: the caller's arguments are handed on.
    let done = unsafe { syscall(libc::SYS_unlinkat, libc::AT_FDCWD, path, libc::AT_REMOVEDIR) } as c_int;
    if done == 0 {
        recorder::unlinked(&bytes_of(path));
    }
    done
}

/// Everything is on one file system.
#[unsafe(no_mangle)]
extern "C" fn syncfs(_fd: c_int) -> c_int {
    recorder::synced_everything();
    0
}

#[unsafe(no_mangle)]
extern "C" fn fsetxattr(
    fd: c_int,
    name: *const c_char,
    value: *const c_void,
    len: size_t,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's arguments are handed on.
    let done = unsafe { syscall(libc::SYS_fsetxattr, fd, name, value, len, flags) } as c_int;
    if done == 0
        && let Some(file) = recorder::node_of(fd)
    {
        // SAFETY: the caller vouches for its buffer, and the kernel has just read it.
        let value = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), len) };
        recorder::set_attribute(file, &bytes_of(name), Some(value.to_vec()));
    }
    done
}

/// Sets an extended attribute by the call above.
pub(crate) fn set_attribute(file: &File, name: &str, value: &[u8]) {
    let name = CString::new(name).unwrap();
    let done = fsetxattr(file.as_raw_fd(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0);
    assert_eq!(done, 0, "{name:?}: {}", std::io::Error::last_os_error());
}

#[unsafe(no_mangle)]
extern "C" fn fremovexattr(fd: c_int, name: *const c_char) -> c_int {
    // SAFETY: the caller's arguments are handed on.
    let done = unsafe { syscall(libc::SYS_fremovexattr, fd, name) } as c_int;
    if done == 0
        && let Some(file) = recorder::node_of(fd)
    {
        recorder::set_attribute(file, &bytes_of(name), None);
    }
    done
}

/// A hole is zeros written within the file; space set aside changes nothing that is read.
fn allocate(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int {
    // SAFETY: the caller's arguments are handed on.
    let done = unsafe { syscall(libc::SYS_fallocate, fd, mode, offset, len) } as c_int;
    if let Some(file) = recorder::node_of(fd)
        && done == 0
    {
        // SAFETY: plain system call.
        let here = unsafe { syscall(libc::SYS_lseek, fd, 0, libc::SEEK_CUR) };
        // SAFETY: plain system call.
        let end = unsafe { syscall(libc::SYS_lseek, fd, 0, libc::SEEK_END) };
        // SAFETY: plain system call.
        unsafe { syscall(libc::SYS_lseek, fd, here, libc::SEEK_SET) };
        if mode & libc::FALLOC_FL_PUNCH_HOLE != 0 {
            let len = (end - offset).clamp(0, len);
            recorder::written(file, offset as u64, vec![0; len as usize]);
        } else if mode & libc::FALLOC_FL_KEEP_SIZE == 0 {
            recorder::truncated(file, end as u64);
        }
    }
    done
}

#[unsafe(no_mangle)]
extern "C" fn fallocate(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int {
    allocate(fd, mode, offset, len)
}

#[unsafe(no_mangle)]
extern "C" fn fallocate64(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int {
    allocate(fd, mode, offset, len)
}
