//! What allocations really take: glibc's rounding and headers, and the overheads of the maps that hold entries.

/// Bytes that an allocation of `bytes` takes from the heap: an 8-byte header, rounded up to 16, at least 32; from the
/// mmap threshold on whole pages (glibc's malloc).
pub(super) fn allocation(bytes: usize) -> u64 {
    const MMAP_THRESHOLD: usize = 128 << 10;
    match bytes {
        0 => 0,
        MMAP_THRESHOLD.. => (bytes as u64 + 16).next_multiple_of(4096),
        _ => (bytes as u64 + 8).next_multiple_of(16).max(32),
    }
}

/// Bytes that a B-tree takes for one entry of `bytes`: nodes hold up to 11 entries and are about two thirds full after
/// random inserts; inner nodes and headers add a little.
pub(super) fn btree_entry(bytes: usize) -> u64 {
    bytes as u64 * 3 / 2 + 16
}

/// Bytes that a [`bytes::Bytes`] of its own buffer takes beyond the handle; sharing it adds a counter.
pub(super) fn buffer(len: usize) -> u64 {
    allocation(len) + if len == 0 { 0 } else { 32 }
}
