//! Buffers aligned for O_DIRECT.
#![allow(unsafe_code)]

use bytes::Bytes;
use rustix::io::Errno;
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// Memory alignment that direct I/O requires on all devices that Nacre opens with O_DIRECT.
pub(super) const ALIGN: usize = 512;

/// A zeroed, aligned buffer of fixed length.
#[derive(Debug)]
pub(super) struct AlignedBuffer {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer owns its memory exclusively, as a Box<[u8]> does.
unsafe impl Send for AlignedBuffer {}
// SAFETY: shared access is read-only, as with a Box<[u8]>.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// A buffer of `len` zero bytes.
    pub(super) fn zeroed(len: usize) -> AlignedBuffer {
        if len == 0 {
            return AlignedBuffer { start: NonNull::dangling(), len };
        }
        let layout = Self::layout(len);
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        AlignedBuffer { start, len }
    }

    /// A copy of `data`.
    pub(super) fn copy_of(data: &[u8]) -> AlignedBuffer {
        AlignedBuffer::assemble(data.len(), [(0, data)])
    }

    /// A buffer of `len` bytes assembled from `parts`, which are disjoint, in order and at the given offsets, with zeros
    /// between them. Writes every byte once, which matters for large payloads.
    ///
    /// # Panics
    /// If parts are out of order or do not fit.
    pub(super) fn assemble<'a>(
        len: usize,
        parts: impl IntoIterator<Item = (usize, &'a [u8])>,
    ) -> AlignedBuffer {
        let mut filling = AlignedBufferBuilder::new(len);
        for (at, part) in parts {
            filling.zero_to(at);
            filling.copy(part);
        }
        filling.finish()
    }

    /// Converts the buffer to immutable bytes, without a copy.
    pub(super) fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, ALIGN).expect("invariant: I/O sizes are far below isize::MAX")
    }
}

/// An aligned buffer that is filled from start to end. Every byte is written once and not zeroed before.
#[derive(Debug)]
pub(super) struct AlignedBufferBuilder {
    /// Only the first `done` bytes are initialised. The buffer is not read before all are.
    buffer: AlignedBuffer,
    done: usize,
}

impl AlignedBufferBuilder {
    /// A buffer for `len` bytes.
    pub(super) fn new(len: usize) -> AlignedBufferBuilder {
        if len == 0 {
            return AlignedBufferBuilder { buffer: AlignedBuffer::zeroed(0), done: 0 };
        }
        let layout = AlignedBuffer::layout(len);
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        AlignedBufferBuilder { buffer: AlignedBuffer { start, len }, done: 0 }
    }

    /// The next `len` bytes, not yet initialised.
    fn next(&mut self, len: usize) -> &mut [MaybeUninit<u8>] {
        assert!(len <= self.buffer.len - self.done, "{len} bytes at {} do not fit", self.done);
        // SAFETY: `done..done + len` lies within the allocation, which this buffer owns; uninitialised bytes are
        // allowed in the slice's element type.
        unsafe { std::slice::from_raw_parts_mut(self.buffer.start.as_ptr().add(self.done).cast(), len) }
    }

    /// Fills the buffer with zeros up to `at`.
    ///
    /// # Panics
    /// If it is already filled further, or if `at` is beyond the end. The same applies to the following methods.
    pub(super) fn zero_to(&mut self, at: usize) {
        assert!(self.done <= at, "filled up to {}, not {at}", self.done);
        self.next(at - self.done).fill(MaybeUninit::new(0));
        self.done = at;
    }

    /// Appends a copy of `part`.
    pub(super) fn copy(&mut self, part: &[u8]) {
        self.next(part.len()).write_copy_of_slice(part);
        self.done += part.len();
    }

    /// Appends `len` bytes read from `file` at `offset`, and returns them. Fails at the end of the file.
    pub(super) fn read(&mut self, file: &File, offset: u64, len: usize) -> io::Result<&mut [u8]> {
        let first = self.done;
        while self.done < first + len {
            let at = offset + (self.done - first) as u64;
            let read = match rustix::io::pread(file, self.next(first + len - self.done), at) {
                Ok((read, _)) => read.len(),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.done += read;
        }
        // SAFETY: the first `done` bytes are initialised, and borrowed with the buffer.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.buffer.start.as_ptr().add(first), len) })
    }

    /// Completes the buffer with zeros.
    pub(super) fn finish(mut self) -> AlignedBuffer {
        self.zero_to(self.buffer.len);
        self.buffer
    }
}

/// Whether `data` can be passed to direct I/O without a copy.
pub(super) fn is_aligned(data: &[u8]) -> bool {
    data.as_ptr().addr().is_multiple_of(ALIGN) && data.len().is_multiple_of(ALIGN)
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: allocated with this layout, by zeroed() or Filling::new(), and not freed before.
            unsafe { dealloc(self.start.as_ptr(), Self::layout(self.len)) };
        }
    }
}

impl std::ops::Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` points to `len` initialised bytes that this buffer owns (dangling is fine for none).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl std::ops::DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for AlignedBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}
