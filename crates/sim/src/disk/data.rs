//! An object's data in blocks. Zeros and generated data ([`crate::pattern`]) take memory only for their description.
//!
//! The form of a block depends only on its contents, so that equal data has equal blocks.

use crate::pattern;
use bytes::Bytes;
use std::fmt;

/// Bytes of a block.
const BLOCK: usize = 64 << 10;
/// Shorter blocks are stored as bytes.
const MIN_RUN: usize = 1 << 10;

#[derive(Clone, PartialEq, Eq, Hash)]
enum Block {
    Zero,
    /// A run of generated data that begins with this word.
    Run(u64),
    Bytes(Bytes),
}

/// See the module's documentation.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Data {
    len: usize,
    blocks: Vec<Block>,
}

impl Block {
    /// A block with these bytes, which are copied if they are kept.
    fn of(bytes: &[u8]) -> Block {
        Block::described(bytes).unwrap_or_else(|| Block::Bytes(Bytes::copy_from_slice(bytes)))
    }

    fn described(bytes: &[u8]) -> Option<Block> {
        if bytes.len() < MIN_RUN {
            return None;
        }
        match pattern::token_of(bytes)? {
            0 if bytes[..8] == bytes[8..16] => Some(Block::Zero),
            first => Some(Block::Run(first)),
        }
    }

    /// Appends a part of a block.
    fn read(&self, from: usize, to: usize, into: &mut Vec<u8>) {
        match self {
            Block::Zero => into.resize(into.len() + to - from, 0),
            Block::Run(first) => {
                let skipped = from % 8;
                let start = into.len();
                pattern::extend(into, pattern::word_at(*first, from / 8), to - from + skipped);
                if skipped > 0 {
                    into.drain(start..start + skipped);
                }
            }
            Block::Bytes(bytes) => into.extend_from_slice(&bytes[from..to]),
        }
    }
}

impl Data {
    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Reads a range, up to the end at most.
    pub fn read(&self, offset: u64, len: u64) -> Bytes {
        let end = offset.saturating_add(len).min(self.len as u64) as usize;
        let start = (offset as usize).min(end);
        if let (0, [Block::Bytes(bytes)]) = (start / BLOCK, &self.blocks[..]) {
            return bytes.slice(start..end);
        }
        let mut data = Vec::with_capacity(end - start);
        let mut at = start;
        while at < end {
            let (index, from) = (at / BLOCK, at % BLOCK);
            let to = BLOCK.min(from + end - at);
            self.blocks[index].read(from, to, &mut data);
            at += to - from;
        }
        data.into()
    }

    /// Reads everything.
    pub fn to_vec(&self) -> Vec<u8> {
        self.read(0, u64::MAX).into()
    }

    /// Writes bytes at an offset, after zeros if the data was shorter.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let (mut at, end) = (offset as usize, offset as usize + bytes.len());
        if bytes.is_empty() {
            return;
        }
        self.resize(self.len.max(end));
        let mut rest = bytes;
        while at < end {
            let (index, from) = (at / BLOCK, at % BLOCK);
            let (part, later) = rest.split_at(rest.len().min(BLOCK - from));
            let whole = self.block_len(index);
            self.blocks[index] = if part.len() == whole {
                Block::of(part)
            } else {
                let mut block = Vec::with_capacity(whole);
                self.blocks[index].read(0, whole, &mut block);
                block[from..from + part.len()].copy_from_slice(part);
                Block::described(&block).unwrap_or_else(|| Block::Bytes(block.into()))
            };
            (at, rest) = (at + part.len(), later);
        }
    }

    /// Zeros a range.
    pub fn zero(&mut self, offset: u64, len: u64) {
        let (mut at, end) = (offset as usize, (offset + len) as usize);
        if len > 0 {
            self.resize(self.len.max(end));
        }
        while at < end {
            let to = end.min((at / BLOCK + 1) * BLOCK);
            self.write(at as u64, &[0; BLOCK][..to - at]);
            at = to;
        }
    }

    /// Truncates the data, or extends it with zeros.
    pub fn resize(&mut self, len: usize) {
        if len == self.len {
            return;
        }
        // A block in whose middle the data ends, before or afterwards, changes its form.
        let cut = self.len.min(len);
        let (index, tail) = (cut / BLOCK, cut % BLOCK);
        let mut last = Vec::new();
        if tail > 0 {
            self.blocks[index].read(0, tail, &mut last);
        }
        self.blocks.truncate(index);
        self.len = len;
        let mut whole = self.block_len(index);
        if tail > 0 {
            last.resize(whole, 0);
            self.blocks.push(Block::described(&last).unwrap_or_else(|| Block::Bytes(last.into())));
        }
        while self.blocks.len() < len.div_ceil(BLOCK) {
            whole = self.block_len(self.blocks.len());
            let zeros = if whole < MIN_RUN { Block::of(&[0; MIN_RUN][..whole]) } else { Block::Zero };
            self.blocks.push(zeros);
        }
    }

    /// The length of a block in bytes; the last one may be short.
    fn block_len(&self, index: usize) -> usize {
        BLOCK.min(self.len - index * BLOCK)
    }
}

impl From<&[u8]> for Data {
    fn from(bytes: &[u8]) -> Data {
        let mut data = Data::default();
        data.write(0, bytes);
        data
    }
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [Block::Bytes(bytes)] = &self.blocks[..] {
            return bytes.fmt(f);
        }
        write!(f, "{} bytes", self.len)?;
        for (index, block) in self.blocks.iter().enumerate() {
            match block {
                Block::Zero => {}
                Block::Run(first) => write!(f, ", {first:x} at {:x}", index * BLOCK)?,
                Block::Bytes(bytes) => {
                    let sum = nacre_types::crc32c::crc32c(bytes);
                    write!(f, ", a sum of {sum:08x} at {:x}", index * BLOCK)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Random, Stream};

    /// Applies the same changes to bytes and compares.
    #[test]
    fn data_in_blocks_is_what_its_bytes_are() {
        let mut random = Random::new(3, Stream::Disk);
        let (mut data, mut plain) = (Data::default(), Vec::new());
        for round in 0..400_u64 {
            let offset = random.range(0, 5 * BLOCK as u64) as usize;
            let offset = if round % 3 == 0 { offset / 8 * 8 } else { offset };
            let len = random.range(0, 2 * BLOCK as u64) as usize;
            match random.range(0, 5) {
                0 => {
                    data.resize(offset);
                    plain.resize(offset, 0);
                }
                1 if len > 0 => {
                    data.zero(offset as u64, len as u64);
                    plain.resize(plain.len().max(offset + len), 0);
                    plain[offset..offset + len].fill(0);
                }
                _ if len > 0 => {
                    let bytes = pattern::of_token(round, len);
                    data.write(offset as u64, &bytes);
                    plain.resize(plain.len().max(offset + len), 0);
                    plain[offset..offset + len].copy_from_slice(&bytes);
                }
                _ => {}
            }
            assert_eq!(data.len(), plain.len());
            assert!(data.to_vec() == plain, "round {round}");
            assert!(data == Data::from(&plain[..]), "round {round}: its form depends on its history");
            let end = plain.len().min(offset + len);
            assert!(data.read(offset as u64, len as u64) == plain[offset.min(end)..end]);
        }
    }

    #[test]
    fn generated_data_is_kept_as_its_description() {
        let mut data = Data::default();
        data.write(8, &pattern::of_token(7, 64 << 20));
        data.resize(128 << 20);
        let is_kept = |block: &&Block| matches!(block, Block::Bytes(_));
        assert_eq!(data.blocks.iter().filter(is_kept).count(), 2);
        assert_eq!(pattern::first_word(&data.read(8, 64 << 20)), Some(7));
    }
}
