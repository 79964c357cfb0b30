//! An object's data in memory, in chunks of known cost.
//!
//! A chunk is either *large* (a client's payload of at least [`MIN_SHARED_PAYLOAD_BYTES`], kept by reference as received) or a
//! *window*: an owned buffer inside one aligned window of [`WINDOW_BYTES`], with at most one chunk per window. A large chunk is
//! copied into windows before a part of it is overwritten. A small remainder therefore never keeps a large buffer alive, and
//! [`Data::memory_bytes`] matches what is allocated. Ranges that were never written take no memory and read as zeros.

use super::cost::heap_bytes;
use bytes::{Bytes, BytesMut};

/// Size and alignment of windows.
pub(super) const WINDOW_BYTES: u64 = 16 << 10;
/// Payloads of at least this size are kept by reference. Smaller payloads may be slices of much larger receive buffers.
pub(super) const MIN_SHARED_PAYLOAD_BYTES: u64 = 64 << 10;

#[derive(Clone, Debug)]
struct Chunk {
    offset: u64,
    bytes: Bytes,
    large: bool,
}

impl Chunk {
    fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

/// An object's data. The size is stored separately because a hole at the end has no chunk.
#[derive(Clone, Debug, Default)]
pub(super) struct Data {
    size: u64,
    chunks: Vec<Chunk>,
}

impl Data {
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Bytes allocated for the data.
    pub(super) fn memory_bytes(&self) -> u64 {
        let list = heap_bytes(self.chunks.capacity() * size_of::<Chunk>());
        self.chunks.iter().map(|chunk| heap_bytes(chunk.bytes.len())).sum::<u64>() + list
    }

    /// Bytes stored, without holes.
    pub(super) fn stored_bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.bytes.len() as u64).sum()
    }

    /// The stored parts of `offset..offset + len`, by reference, in order.
    pub(super) fn parts(&self, offset: u64, len: u64) -> Vec<(u64, Bytes)> {
        let end = offset.saturating_add(len).min(self.size);
        let first = self.chunks.partition_point(|chunk| chunk.end() <= offset);
        self.chunks[first..]
            .iter()
            .take_while(|chunk| chunk.offset < end)
            .map(|chunk| {
                let (from, to) = (chunk.offset.max(offset), chunk.end().min(end));
                (from, chunk.bytes.slice((from - chunk.offset) as usize..(to - chunk.offset) as usize))
            })
            .collect()
    }

    /// Assembles the result of [`Data::parts`] for a range of `len` bytes at `offset`. Returns a reference if one part covers it.
    pub(super) fn assemble(parts: Vec<(u64, Bytes)>, offset: u64, len: u64) -> Bytes {
        if let [(at, bytes)] = &parts[..]
            && *at == offset
            && bytes.len() as u64 == len
        {
            return bytes.clone();
        }
        let mut out = BytesMut::zeroed(len as usize);
        for (at, bytes) in parts {
            let at = (at - offset) as usize;
            out[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        out.freeze()
    }

    pub(super) fn write(&mut self, offset: u64, data: &Bytes) {
        let end = offset + data.len() as u64;
        self.size = self.size.max(end);
        if data.len() as u64 >= MIN_SHARED_PAYLOAD_BYTES {
            self.punch(offset, end);
            let at = self.chunks.partition_point(|chunk| chunk.offset < offset);
            self.chunks.insert(at, Chunk { offset, bytes: data.clone(), large: true });
            return;
        }
        let mut at = offset;
        while at < end {
            let to = end.min(window_end(at));
            self.write_in_window(at, &data[(at - offset) as usize..(to - offset) as usize]);
            at = to;
        }
    }

    pub(super) fn zero(&mut self, offset: u64, len: u64) {
        let end = offset + len;
        self.punch(offset, end.min(self.size));
        self.size = self.size.max(end);
    }

    pub(super) fn truncate(&mut self, size: u64) {
        if size < self.size {
            self.punch(size, self.size);
        }
        self.size = size;
    }

    /// Makes `offset..end` a hole. The remainders of a cut buffer are copied, so that the buffer can be freed.
    fn punch(&mut self, offset: u64, end: u64) {
        if offset >= end {
            return;
        }
        self.split_large(offset);
        self.split_large(end);
        let first = self.chunks.partition_point(|chunk| chunk.end() <= offset);
        let last = first + self.chunks[first..].partition_point(|chunk| chunk.offset < end);
        let mut kept = Vec::new();
        for chunk in &self.chunks[first..last] {
            for (from, to) in [(chunk.offset, offset.min(chunk.end())), (end.max(chunk.offset), chunk.end())]
            {
                if from < to {
                    let part = &chunk.bytes[(from - chunk.offset) as usize..(to - chunk.offset) as usize];
                    kept.push(Chunk { offset: from, bytes: Bytes::copy_from_slice(part), large: false });
                }
            }
        }
        // If two remainders are in the same window, they are joined with zeros between them, to keep one chunk per window.
        if let [left, right] = &kept[..]
            && window_end(left.offset) == window_end(right.offset)
        {
            let mut joined = BytesMut::zeroed((right.end() - left.offset) as usize);
            joined[..left.bytes.len()].copy_from_slice(&left.bytes);
            joined[(right.offset - left.offset) as usize..].copy_from_slice(&right.bytes);
            kept = vec![Chunk { offset: left.offset, bytes: joined.freeze(), large: false }];
        }
        self.chunks.splice(first..last, kept);
    }

    /// Copies the large chunk that strictly contains `offset` into windows.
    fn split_large(&mut self, offset: u64) {
        let at = self.chunks.partition_point(|chunk| chunk.end() <= offset);
        let Some(chunk) = self.chunks.get(at).filter(|chunk| chunk.large && chunk.offset < offset) else {
            return;
        };
        let (bytes, start, end) = (chunk.bytes.clone(), chunk.offset, chunk.end());
        let mut windows: Vec<Chunk> = Vec::with_capacity(bytes.len() / WINDOW_BYTES as usize + 2);
        let mut from = start;
        while from < end {
            let to = end.min(window_end(from));
            let part = &bytes[(from - start) as usize..(to - start) as usize];
            windows.push(Chunk { offset: from, bytes: Bytes::copy_from_slice(part), large: false });
            from = to;
        }
        self.chunks.splice(at..=at, windows);
        // The first and the last of the new chunks may now share their window with an adjacent chunk.
        self.join_window(start);
        self.join_window(end - 1);
    }

    /// Joins the chunks (at most two) in the window around `offset`.
    fn join_window(&mut self, offset: u64) {
        let (low, high) = (offset / WINDOW_BYTES * WINDOW_BYTES, window_end(offset));
        let first = self.chunks.partition_point(|chunk| chunk.offset < low);
        let last = first + self.chunks[first..].partition_point(|chunk| chunk.end() <= high);
        let inside = &self.chunks[first..last];
        if inside.len() < 2 || inside.iter().any(|chunk| chunk.large) {
            return;
        }
        let (start, end) = (inside[0].offset, inside[inside.len() - 1].end());
        let mut joined = BytesMut::zeroed((end - start) as usize);
        for chunk in inside {
            let at = (chunk.offset - start) as usize;
            joined[at..at + chunk.bytes.len()].copy_from_slice(&chunk.bytes);
        }
        let joined = Chunk { offset: start, bytes: joined.freeze(), large: false };
        self.chunks.splice(first..last, [joined]);
    }

    /// Writes `data`, which lies inside one window.
    fn write_in_window(&mut self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        let low = offset / WINDOW_BYTES * WINDOW_BYTES;
        self.split_large_in_window(low);
        let index = self.chunks.partition_point(|chunk| chunk.end() <= low);
        if self.chunks.get(index).is_none_or(|chunk| chunk.offset >= window_end(low)) {
            self.chunks.insert(index, Chunk { offset, bytes: Bytes::copy_from_slice(data), large: false });
            return;
        }
        let chunk = &mut self.chunks[index];
        let (start, stop) = (chunk.offset.min(offset), chunk.end().max(end));
        let at = (offset - start) as usize;
        if (start, stop) == (chunk.offset, chunk.end()) {
            let mut buffer = match std::mem::take(&mut chunk.bytes).try_into_mut() {
                Ok(buffer) => buffer,
                Err(shared) => BytesMut::from(&shared[..]),
            };
            buffer[at..at + data.len()].copy_from_slice(data);
            chunk.bytes = buffer.freeze();
            return;
        }
        let mut buffer = BytesMut::zeroed((stop - start) as usize);
        let old = (chunk.offset - start) as usize;
        buffer[old..old + chunk.bytes.len()].copy_from_slice(&chunk.bytes);
        buffer[at..at + data.len()].copy_from_slice(data);
        *chunk = Chunk { offset: start, bytes: buffer.freeze(), large: false };
    }

    /// Copies the large chunks that overlap the window at `low` into windows.
    fn split_large_in_window(&mut self, low: u64) {
        loop {
            let first = self.chunks.partition_point(|chunk| chunk.end() <= low);
            let mut inside = self.chunks[first..].iter().take_while(|chunk| chunk.offset < window_end(low));
            let Some(inner) = inside.find(|chunk| chunk.large).map(|chunk| chunk.offset + 1) else { return };
            self.split_large(inner);
        }
    }
}

fn window_end(offset: u64) -> u64 {
    (offset / WINDOW_BYTES + 1) * WINDOW_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, u64, u8),
        Zero(u64, u64),
        Truncate(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let offset = 0..300_000_u64;
        let len = prop_oneof![1..5000_u64, 60_000..150_000_u64];
        prop_oneof![
            4 => (offset.clone(), len.clone(), 1..255_u8).prop_map(|(o, l, b)| Step::Write(o, l, b)),
            1 => (offset.clone(), len).prop_map(|(o, l)| Step::Zero(o, l)),
            1 => offset.prop_map(Step::Truncate),
        ]
    }

    proptest! {
        #[test]
        fn data_reads_as_a_flat_buffer_would(steps in proptest::collection::vec(step(), 1..30)) {
            let (mut data, mut flat) = (Data::default(), Vec::<u8>::new());
            for step in steps {
                match step {
                    Step::Write(o, l, b) => {
                        flat.resize(flat.len().max((o + l) as usize), 0);
                        flat[o as usize..(o + l) as usize].fill(b);
                        data.write(o, &Bytes::from(vec![b; l as usize]));
                    }
                    Step::Zero(o, l) => {
                        flat.resize(flat.len().max((o + l) as usize), 0);
                        flat[o as usize..(o + l) as usize].fill(0);
                        data.zero(o, l);
                    }
                    Step::Truncate(size) => {
                        flat.resize(size as usize, 0);
                        data.truncate(size);
                    }
                }
                prop_assert_eq!(data.size(), flat.len() as u64);
                let parts = data.parts(0, data.size());
                prop_assert!(parts.windows(2).all(|w| w[0].0 + w[0].1.len() as u64 <= w[1].0));
                prop_assert!(Data::assemble(parts, 0, data.size()) == flat);
                let mut windows: Vec<_> =
                    data.chunks.iter().filter(|c| !c.large).map(|c| c.offset / WINDOW_BYTES).collect();
                windows.dedup();
                prop_assert_eq!(windows.len(), data.chunks.iter().filter(|c| !c.large).count());
                prop_assert!(data.chunks.iter().all(|c| c.large || c.end() <= window_end(c.offset)));
            }
        }
    }
}
