//! Buffers aligned for O_DIRECT.
#![allow(unsafe_code)]

use bytes::Bytes;
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Alignment in memory that direct I/O asks for on every device that Nacre opens with O_DIRECT.
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

    /// A buffer of `len` bytes made of `parts`, each at its place, in order and disjoint; zeros between them. Writes
    /// every byte once, which matters for large payloads.
    ///
    /// # Panics
    /// When parts are out of order or do not fit.
    pub(super) fn assemble<'a>(
        len: usize,
        parts: impl IntoIterator<Item = (usize, &'a [u8])>,
    ) -> AlignedBuffer {
        if len == 0 {
            return AlignedBuffer::zeroed(0);
        }
        let layout = Self::layout(len);
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        let mut done = 0;
        for (at, part) in parts {
            assert!(done <= at && part.len() <= len && at <= len - part.len(), "part at {at} does not fit");
            // SAFETY: `done..at` and `at..at + part.len()` lie within the `len` bytes just allocated, which nothing
            // else refers to.
            unsafe {
                start.add(done).write_bytes(0, at - done);
                start.add(at).copy_from_nonoverlapping(NonNull::from(part).cast(), part.len());
            }
            done = at + part.len();
        }
        // SAFETY: as above; with this all `len` bytes are initialised. A panic before only leaks the memory.
        unsafe { start.add(done).write_bytes(0, len - done) };
        AlignedBuffer { start, len }
    }

    /// The buffer as immutable bytes, without a copy.
    pub(super) fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, ALIGN).expect("invariant: I/O sizes are far below isize::MAX")
    }
}

/// Whether `data` can be handed to direct I/O as it is.
pub(super) fn is_aligned(data: &[u8]) -> bool {
    data.as_ptr().addr().is_multiple_of(ALIGN) && data.len().is_multiple_of(ALIGN)
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: allocated in zeroed() with this layout and not freed before.
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
