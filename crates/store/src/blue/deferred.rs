//! Deferred writes: small data goes into the database's batch instead of waiting for a flush of its own.
//!
//! A copy of the data is in the `deferred` family, durable with the transaction; the data itself is written to its place
//! soon after, many transactions' at a time, until when the onode cache holds it. So a group commit of small writes costs
//! one sync instead of two. From time to time one flush of the device covers all data written so far, and the copies are
//! removed with the same batch. After a crash the copies are written to their places again.
//!
//! Copies are numbered by *epochs*; a flush ends one. Rule B1: a block that is freed while copies are about becomes
//! reusable only when all of that epoch's and earlier ones are durably removed: else late data, or after a crash its copy,
//! would overwrite what was written there since.

use super::db::{Db, Family, FamilyIds, RawBatch};
use super::device::Device;
use super::onode::{BLOCK_BYTES, Run};
use crate::error::{Result, StoreError};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Copies are removed at the latest after this long.
pub(super) const MAX_AGE: Duration = Duration::from_millis(200);
/// Copies are removed when they are this much, in bytes.
const MAX_BYTES: u64 = 16 << 20;
/// Data is written to its place when it is this much, in bytes.
const PLACE_BYTES: u64 = 512 << 10;
/// The most that one batch defers, in bytes; with more the data is worth a flush.
const MAX_BATCH_BYTES: u64 = 1 << 20;

/// What the commit thread knows of deferred copies.
#[derive(Debug)]
pub(super) struct Deferred {
    epoch: u64,
    /// Bytes of copies of the current epoch.
    bytes: u64,
    since: Option<Instant>,
    /// The last epoch whose data is flushed and whose copies are to be removed.
    flushed: Option<u64>,
    held: VecDeque<(u64, Vec<Run>)>,
    /// Data that is not in its place yet, and how much.
    unplaced: Vec<(u64, Bytes)>,
    unplaced_bytes: u64,
}

impl Deferred {
    pub(super) fn new() -> Deferred {
        Deferred {
            epoch: 1,
            bytes: 0,
            since: None,
            flushed: None,
            held: VecDeque::new(),
            unplaced: Vec::new(),
            unplaced_bytes: 0,
        }
    }

    /// Whether copies or blocks held back by them are about.
    pub(super) fn is_pending(&self) -> bool {
        self.bytes > 0 || self.flushed.is_some() || !self.held.is_empty()
    }

    /// Whether a flush is due.
    pub(super) fn is_due(&self) -> bool {
        self.bytes >= MAX_BYTES || self.since.is_some_and(|since| since.elapsed() >= MAX_AGE)
    }

    /// Whether these writes are to be deferred, with `limit_bytes` for each.
    pub(super) fn takes(&self, writes: &[(u64, Bytes)], limit_bytes: u64) -> bool {
        let mut total = 0;
        !self.is_due()
            && writes.iter().all(|(_, bytes)| {
                total += bytes.len() as u64;
                bytes.len() as u64 <= limit_bytes && total <= MAX_BATCH_BYTES
            })
    }

    /// Adds copies of the writes to the batch that is about to be written, and keeps the writes.
    pub(super) fn add(&mut self, writes: Vec<(u64, Bytes)>, ids: FamilyIds, batch: &mut RawBatch) {
        if writes.is_empty() {
            return;
        }
        for (block, bytes) in &writes {
            batch.put(ids, Family::Deferred, &key(self.epoch, *block), bytes);
            self.bytes += bytes.len() as u64;
            self.unplaced_bytes += bytes.len() as u64;
        }
        self.unplaced.extend(writes);
        self.since.get_or_insert_with(Instant::now);
    }

    /// Whether data is not in its place yet.
    pub(super) fn has_unplaced(&self) -> bool {
        !self.unplaced.is_empty()
    }

    /// Whether there is enough such data to be written in one go.
    pub(super) fn is_worth_placing(&self) -> bool {
        self.unplaced_bytes >= PLACE_BYTES
    }

    /// The data to be written to its place now.
    pub(super) fn take_unplaced(&mut self) -> Vec<(u64, Bytes)> {
        self.unplaced_bytes = 0;
        std::mem::take(&mut self.unplaced)
    }

    /// All data was written to its place and flushed.
    pub(super) fn flushed(&mut self) {
        debug_assert!(self.unplaced.is_empty(), "a flush covers only what is written");
        if self.bytes > 0 || !self.held.is_empty() {
            self.flushed = Some(self.epoch);
        }
        self.epoch += 1;
        (self.bytes, self.since) = (0, None);
    }

    /// Removes the copies that are not needed any more with the batch that is about to be written.
    pub(super) fn remove_flushed(&self, ids: FamilyIds, batch: &mut RawBatch) {
        if let Some(epoch) = self.flushed {
            batch.delete_range(ids, Family::Deferred, &key(0, 0), &key(epoch + 1, 0));
        }
    }

    /// The batch, with what [`Deferred::remove_flushed`] put into it, is durable and freed these blocks: returns those
    /// that no copy holds back.
    pub(super) fn committed(&mut self, freed: Vec<Run>) -> Vec<Run> {
        let mut reusable = Vec::new();
        if let Some(epoch) = self.flushed.take() {
            while let Some((_, runs)) = self.held.pop_front_if(|(held, _)| *held <= epoch) {
                reusable.extend(runs);
            }
        }
        if freed.is_empty() {
            return reusable;
        }
        if self.bytes == 0 && self.held.is_empty() {
            reusable.extend(freed);
        } else {
            self.held.push_back((self.epoch, freed));
        }
        reusable
    }
}

fn key(epoch: u64, block: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&epoch.to_be_bytes());
    key[8..].copy_from_slice(&block.to_be_bytes());
    key
}

/// The block where a copy of `len` bytes goes, if it is whole blocks that fit.
fn place_of(key: &[u8], len: usize, limit_blocks: u64) -> Option<u64> {
    let block = u64::from_be_bytes(key.get(8..)?.try_into().ok()?);
    let len = len as u64;
    let fits = len.is_multiple_of(BLOCK_BYTES)
        && block.checked_add(len / BLOCK_BYTES).is_some_and(|end| end <= limit_blocks);
    fits.then_some(block)
}

/// Writes all copies to their places, flushes and removes them: at mount, before anything is read.
pub(super) fn replay(db: &Db, device: &Device, limit_blocks: u64) -> Result<()> {
    let mut copies = 0_u64;
    // Block by block, in key order: later epochs over earlier ones. There is not more of it than is deferred at a time.
    let mut blocks: BTreeMap<u64, Bytes> = BTreeMap::new();
    for entry in db.scan(Family::Deferred) {
        let (key, value) = entry?;
        let first = place_of(&key, value.len(), limit_blocks)
            .ok_or_else(|| StoreError::corrupt("deferred write", format!("undecodable key {key:?}")))?;
        let value = Bytes::from(value);
        for (block, at) in (first..).zip((0..value.len()).step_by(BLOCK_BYTES as usize)) {
            blocks.insert(block, value.slice(at..at + BLOCK_BYTES as usize));
        }
        copies += 1;
    }
    if copies == 0 {
        return Ok(());
    }
    let (mut first, mut pieces) = (0, Vec::new());
    for (block, piece) in blocks {
        if block != first + pieces.len() as u64 || pieces.is_empty() {
            if !pieces.is_empty() {
                device.write(first * BLOCK_BYTES, &pieces)?;
                pieces.clear();
            }
            first = block;
        }
        pieces.push(piece);
    }
    device.write(first * BLOCK_BYTES, &pieces)?;
    device.flush()?;
    let mut batch = RawBatch::default();
    batch.delete_range(db.ids(), Family::Deferred, &key(0, 0), &key(u64::MAX, u64::MAX));
    batch.finish();
    db.write(&batch)?;
    tracing::info!(copies, "bluestore: wrote deferred data to its place");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuzz_keys_of_copies() {
        let corpus = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"));
        let seed = |block| [&key(1, block)[..], &2_u16.to_le_bytes()].concat();
        let target = nacre_fuzz::Target::new("deferred-key", corpus, vec![seed(0), seed(998)]);
        target.run(|input| {
            let (at, blocks) = input.split_last_chunk::<2>()?;
            let blocks = u64::from(u16::from_le_bytes(*blocks));
            let block = place_of(at, (blocks * BLOCK_BYTES) as usize, 1000)?;
            assert!(block + blocks <= 1000);
            assert_eq!(place_of(at, (blocks * BLOCK_BYTES + 1) as usize, 1000), None);
            Some(input.to_vec())
        });
    }

    fn run(start: u64) -> Vec<Run> {
        vec![Run { start, blocks: 1 }]
    }

    #[test]
    fn freed_blocks_wait_for_the_removal_of_copies() {
        let ids = FamilyIds::default();
        let mut deferred = Deferred::new();
        assert_eq!(deferred.committed(run(1)), run(1));
        let write = vec![(5, Bytes::from(vec![0; 4096]))];
        let mut batch = RawBatch::default();
        assert!(deferred.takes(&write, 4096) && !deferred.takes(&write, 4095));
        deferred.add(write.clone(), ids, &mut batch);
        assert_eq!(deferred.committed(run(2)), []);
        // Freed with copies about: held over the flush until the batch that removes them is durable.
        assert_eq!(deferred.take_unplaced(), write);
        deferred.flushed();
        deferred.add(write.clone(), ids, &mut batch);
        deferred.remove_flushed(ids, &mut batch);
        assert_eq!(deferred.committed(run(3)), run(2));
        assert!(deferred.is_pending());
        assert!(deferred.has_unplaced() && !deferred.is_worth_placing());
        deferred.take_unplaced();
        deferred.flushed();
        deferred.remove_flushed(ids, &mut batch);
        assert_eq!(deferred.committed(run(4)), [run(3), run(4)].concat());
        assert!(!deferred.is_pending());
    }
}
