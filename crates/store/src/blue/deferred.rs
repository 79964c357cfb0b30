//! Deferred writes: small data goes into the database's batch instead of waiting for a flush of its own.
//!
//! A copy of the data is in the `deferred` family, durable with the transaction; the data itself is written to its place
//! later, until when the onode cache holds it: fresh data by the commit thread while it is in the processor's caches, the rest
//! with the flush ([`super::placer`]). So a group commit of small writes costs one sync
//! instead of two. A flush of the device covers all data placed with it, and the copies are removed with the next batch.
//! After a crash the copies are written to their places again.
//!
//! Most of that data is for fresh blocks. What *overwrites* blocks where they are is always deferred: before its copy is
//! durable nothing may touch them.
//!
//! Copies are numbered by *epochs*; handing one over to be placed ends it. Rule B1: a block that is freed while copies are
//! about becomes reusable only when all of that epoch's and earlier ones are durably removed: else late data, or after a
//! crash its copy, would overwrite what was written there since.

use super::db::{Db, Family, FamilyIds, RawBatch};
use super::device::Device;
use super::onode::{BLOCK_BYTES, Run};
use super::placer::Job;
use crate::error::{Result, StoreError};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Data is brought to its place at the latest after this long.
pub(super) const MAX_AGE: Duration = Duration::from_millis(200);
/// Data is brought to its place when it is this much, in bytes; commits wait when it is twice as much.
const MAX_BYTES: u64 = 16 << 20;
/// Fresh data is written to its place when it is this much, in bytes.
const PLACE_BYTES: u64 = 512 << 10;
/// The most that one batch defers of fresh data, in bytes; with more the data is worth a flush.
const MAX_BATCH_BYTES: u64 = 1 << 20;
/// Ends the key of a copy that overwrites a block: it sorts behind a copy of fresh data that begins there.
const OVERWRITE: u8 = 1;

/// What the commit thread knows of deferred copies.
#[derive(Debug)]
pub(super) struct Deferred {
    epoch: u64,
    /// Bytes of copies of the current epoch.
    bytes: u64,
    since: Option<Instant>,
    /// An epoch is being placed, and data of it with it.
    placing: bool,
    placing_data: bool,
    /// The last epoch whose data is in its place and whose copies are to be removed, and its last transaction.
    flushed: Option<(u64, u64)>,
    /// The last transaction of the last epoch that ended.
    sealed: u64,
    /// Transactions up to this one are in their place, have no copies and hold no blocks back.
    settled: u64,
    held: VecDeque<(u64, Vec<Run>)>,
    /// The current epoch's data.
    fresh: Vec<(u64, Bytes)>,
    fresh_bytes: u64,
    overwrites: BTreeMap<u64, Bytes>,
}

impl Deferred {
    pub(super) fn new() -> Deferred {
        Deferred {
            epoch: 1,
            bytes: 0,
            since: None,
            placing: false,
            placing_data: false,
            flushed: None,
            sealed: 0,
            settled: 0,
            held: VecDeque::new(),
            fresh: Vec::new(),
            fresh_bytes: 0,
            overwrites: BTreeMap::new(),
        }
    }

    /// Whether copies or blocks held back by them are about.
    pub(super) fn is_pending(&self) -> bool {
        self.bytes > 0 || self.placing || self.flushed.is_some() || !self.held.is_empty()
    }

    /// The last transaction of the epochs that have ended: these are being placed or were.
    pub(super) fn sealed(&self) -> u64 {
        self.sealed
    }

    /// The transaction up to which no copy and no block held back is about, where later ones have any.
    pub(super) fn settled(&self) -> u64 {
        self.settled
    }

    /// Whether data is not in its place yet.
    pub(super) fn has_unplaced(&self) -> bool {
        self.placing_data || !self.fresh.is_empty() || !self.overwrites.is_empty()
    }

    /// Fresh data that is worth writing to its place in one go, all of it durable as copies.
    pub(super) fn take_fresh(&mut self) -> Option<Vec<(u64, Bytes)>> {
        if self.fresh_bytes < PLACE_BYTES {
            return None;
        }
        self.fresh_bytes = 0;
        Some(std::mem::take(&mut self.fresh))
    }

    /// Whether an epoch is being placed.
    pub(super) fn is_placing(&self) -> bool {
        self.placing
    }

    /// Whether the current epoch's data should go to its place.
    pub(super) fn is_due(&self) -> bool {
        self.bytes >= MAX_BYTES || self.since.is_some_and(|since| since.elapsed() >= MAX_AGE)
    }

    /// Whether there is too much of it.
    pub(super) fn is_overdue(&self) -> bool {
        self.bytes >= 2 * MAX_BYTES
    }

    /// Whether these writes of fresh data are to be deferred, with `limit_bytes` for each.
    pub(super) fn takes(&self, writes: &[(u64, Bytes)], limit_bytes: u64) -> bool {
        let mut total = 0;
        writes.iter().all(|(_, bytes)| {
            total += bytes.len() as u64;
            bytes.len() as u64 <= limit_bytes && total <= MAX_BATCH_BYTES
        })
    }

    /// Adds copies of fresh data to the batch that is about to be written, and keeps the data.
    pub(super) fn add(&mut self, writes: Vec<(u64, Bytes)>, ids: FamilyIds, batch: &mut RawBatch) {
        for (block, bytes) in &writes {
            batch.put(ids, Family::Deferred, &key(self.epoch, *block), bytes);
            self.count(bytes.len() as u64);
            self.fresh_bytes += bytes.len() as u64;
        }
        self.fresh.extend(writes);
    }

    /// As [`Deferred::add`], for blocks that are overwritten.
    pub(super) fn overwrite(&mut self, writes: Vec<(u64, Bytes)>, ids: FamilyIds, batch: &mut RawBatch) {
        for (first, bytes) in writes {
            for (block, at) in (first..).zip((0..bytes.len()).step_by(BLOCK_BYTES as usize)) {
                let bytes = bytes.slice(at..at + BLOCK_BYTES as usize);
                let key = [&key(self.epoch, block)[..], &[OVERWRITE]].concat();
                batch.put(ids, Family::Deferred, &key, &bytes);
                self.count(BLOCK_BYTES);
                self.overwrites.insert(block, bytes);
            }
        }
    }

    fn count(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.since.get_or_insert_with(Instant::now);
    }

    /// Ends the epoch, all copies of which are durable, if it has any and none is being placed: what is to be brought to
    /// its place. `seq` is the last committed transaction.
    pub(super) fn seal(&mut self, seq: u64) -> Option<Job> {
        if self.placing || self.bytes == 0 {
            return None;
        }
        let job = Job {
            epoch: self.epoch,
            seq,
            fresh: std::mem::take(&mut self.fresh),
            overwrites: std::mem::take(&mut self.overwrites),
        };
        self.epoch += 1;
        self.sealed = seq;
        (self.bytes, self.since, self.placing) = (0, None, true);
        self.placing_data = !job.fresh.is_empty() || !job.overwrites.is_empty();
        self.fresh_bytes = 0;
        Some(job)
    }

    /// The data of that epoch, whose last transaction was `seq`, is in its place and durable there.
    pub(super) fn placed(&mut self, epoch: u64, seq: u64) {
        (self.placing, self.placing_data, self.flushed) = (false, false, Some((epoch, seq)));
    }

    /// Removes the copies that are not needed any more with the batch that is about to be written.
    pub(super) fn remove_flushed(&self, ids: FamilyIds, batch: &mut RawBatch) {
        if let Some((epoch, _)) = self.flushed {
            batch.delete_range(ids, Family::Deferred, &key(0, 0), &key(epoch + 1, 0));
        }
    }

    /// The batch, with what [`Deferred::remove_flushed`] put into it, is durable and freed these blocks: returns those
    /// that no copy holds back.
    pub(super) fn committed(&mut self, freed: Vec<Run>) -> Vec<Run> {
        let mut reusable = Vec::new();
        if let Some((epoch, seq)) = self.flushed.take() {
            self.settled = seq;
            while let Some((_, runs)) = self.held.pop_front_if(|(held, _)| *held <= epoch) {
                reusable.extend(runs);
            }
        }
        if freed.is_empty() {
            return reusable;
        }
        if self.bytes > 0 {
            self.held.push_back((self.epoch, freed));
        } else if self.placing {
            self.held.push_back((self.epoch - 1, freed));
        } else {
            reusable.extend(freed);
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
    let (place, kind) = key.split_first_chunk::<16>()?;
    let block = u64::from_be_bytes(place[8..].try_into().ok()?);
    let len = len as u64;
    let known = match kind {
        [] => true,
        [OVERWRITE] => len == BLOCK_BYTES,
        _ => false,
    };
    let fits = known
        && len.is_multiple_of(BLOCK_BYTES)
        && block.checked_add(len / BLOCK_BYTES).is_some_and(|end| end <= limit_blocks);
    fits.then_some(block)
}

/// Writes all copies to their places, flushes and removes them: at mount, before anything is read.
pub(super) fn replay(db: &Db, device: &Device, limit_blocks: u64) -> Result<()> {
    let mut copies = 0_u64;
    // Block by block, in key order: later epochs over earlier ones, overwrites over fresh data. There is not more of it than is deferred at a time.
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
        let overwrite = [&key(1, 5)[..], &[OVERWRITE], &1_u16.to_le_bytes()].concat();
        let target = nacre_fuzz::Target::new("deferred-key", corpus, vec![seed(0), seed(998), overwrite]);
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
        // Freed with copies about: held until the batch that removes them is durable.
        let job = deferred.seal(7).unwrap();
        assert_eq!((job.fresh, job.seq, job.overwrites.len()), (write.clone(), 7, 0));
        assert_eq!(deferred.committed(run(3)), []);
        deferred.overwrite(write, ids, &mut batch);
        assert!(deferred.seal(8).is_none(), "one epoch at a time");
        assert_eq!(deferred.committed(run(4)), []);
        deferred.placed(job.epoch, job.seq);
        deferred.remove_flushed(ids, &mut batch);
        assert_eq!(deferred.committed(run(5)), [run(2), run(3)].concat());
        assert!(deferred.is_pending() && deferred.has_unplaced());
        // The first epoch's transactions have left nothing behind, whatever came since.
        assert_eq!((deferred.sealed(), deferred.settled()), (7, 7));
        let job = deferred.seal(9).unwrap();
        assert_eq!((deferred.sealed(), deferred.settled()), (9, 7));
        assert_eq!((job.fresh.len(), job.overwrites.len()), (0, 1));
        deferred.placed(job.epoch, job.seq);
        deferred.remove_flushed(ids, &mut batch);
        assert_eq!(deferred.committed(run(6)), [run(4), run(5), run(6)].concat());
        assert!(!deferred.is_pending());
    }
}
