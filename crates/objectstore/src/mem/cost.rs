//! The memory that allocations take: the allocators' rounding and headers, and the overhead of the maps that hold entries.

/// Bytes that an allocation of `bytes` takes from the heap: the larger figure of two allocators, glibc's malloc (an 8-byte
/// header, rounded up to 16, at least 32; whole pages from the mmap threshold on) and jemalloc (size classes, four to a
/// doubling; whole pages from 16 KiB on, of which only the written ones count).
pub(super) fn heap_bytes(bytes: usize) -> u64 {
    const MMAP_THRESHOLD: usize = 128 << 10;
    const LARGE: u64 = 14 << 10;
    let wanted = bytes as u64;
    let glibc = match bytes {
        0 => return 0,
        MMAP_THRESHOLD.. => (wanted + 16).next_multiple_of(4096),
        _ => (wanted + 8).next_multiple_of(16).max(32),
    };
    let jemalloc = match wanted {
        0..=128 => wanted.next_multiple_of(16),
        129..=LARGE => wanted.next_multiple_of((wanted - 1).ilog2().checked_sub(2).map_or(1, |log| 1 << log)),
        _ => wanted.next_multiple_of(4096),
    };
    glibc.max(jemalloc)
}

/// Bytes that a B-tree takes for one entry of `bytes`. Nodes hold up to 11 entries and are about two thirds full after
/// random inserts; inner nodes and headers add a little.
pub(super) fn btree_entry(bytes: usize) -> u64 {
    bytes as u64 * 3 / 2 + 16
}

/// Bytes that a [`bytes::Bytes`] with its own buffer takes besides the handle. A shared buffer also has a reference counter.
pub(super) fn buffer_bytes(len: usize) -> u64 {
    heap_bytes(len) + if len == 0 { 0 } else { 32 }
}

#[cfg(test)]
mod tests {
    use super::heap_bytes;

    #[test]
    fn sizes_are_those_of_the_dearer_allocator() {
        let sizes = [
            (0, 0),
            (1, 32),
            (24, 32),
            (25, 48),
            (128, 144),
            (129, 160),
            (161, 192),
            (257, 320),
            (4096, 4112),
        ];
        let large = [
            (4097, 5120),
            (4500, 5120),
            (5121, 6144),
            (16_384, 16_400),
            (20_000, 20_480),
            (200_000, 200_704),
        ];
        for (wanted, taken) in sizes.into_iter().chain(large) {
            assert_eq!(heap_bytes(wanted), taken, "{wanted}");
        }
    }
}
