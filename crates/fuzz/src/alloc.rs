//! An allocator that counts the bytes that each thread holds.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Bytes that the thread allocated and has not freed. Negative if it frees memory that other threads allocated.
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, with a count for [`crate::Target::run`].
#[derive(Clone, Copy, Debug, Default)]
pub struct CountingAllocator;

fn count(bytes: isize) {
    // The count of a thread that is ending does not exist any more, and is not needed.
    let held = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        held.get()
    });
    if let Ok(held) = held {
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(held)));
    }
}

// SAFETY: every method passes its arguments to the system's allocator unchanged and returns its result; counting
// touches only two cells of the thread, which are initialised statically and so never allocate.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Runs `work` and returns its result and the maximum number of bytes that it held in addition to those held before.
pub(crate) fn peak_allocation<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    PEAK.set(before);
    let value = work();
    (value, usize::try_from(PEAK.get() - before).unwrap_or(0))
}
