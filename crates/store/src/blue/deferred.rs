//! Deferred writes: small data is written with the database's batch, which saves a flush of the device.
//!
//! A copy of the data is in the `deferred` family, durable with the transaction. The data itself is written to its place
//! later; until then the onode cache holds it. The commit thread writes fresh data while it is in the processor's caches, and
//! [`super::deferred_writer`] writes the rest before the flush. So a group commit of small writes costs one sync instead of
//! two. One flush of the device covers all data written before it, and the copies are removed with the next batch.
//! After a crash, the copies are written to their places again.
//!
//! Most of this data is for fresh blocks. Data that *overwrites* blocks in place is always deferred: the blocks must not be
//! changed before its copy is durable.
//!
//! Copies are numbered by *epoch*. An epoch ends when its data is handed over to be written to its place. Rule B1: a block
//! that is freed while copies exist becomes reusable only when all copies of that epoch and earlier ones are durably removed.
//! Otherwise late data, or its copy after a crash, would overwrite newer data in the block.

use super::db::{Db, Family, FamilyIds, RawBatch};
use super::deferred_writer::DeferredBatch;
use super::device::Device;
use super::onode::{BLOCK_BYTES, Run};
use crate::error::{Result, StoreError};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Maximum time until data is written to its place.
pub(super) const MAX_DEFERRED_AGE: Duration = Duration::from_millis(200);
/// Amount of data, in bytes, at which it is written to its place. Commits wait at twice this amount.
const MAX_BYTES: u64 = 16 << 20;
/// Amount of fresh data, in bytes, at which the commit thread writes it to its place.
const WRITE_BACK_BYTES: u64 = 512 << 10;
/// Maximum amount of fresh data that one batch defers, in bytes. A larger amount justifies a flush.
const MAX_BATCH_BYTES: u64 = 1 << 20;
/// Ends the key of a copy that overwrites a block. It sorts after the copy of fresh data that begins at the same block.
const OVERWRITE: u8 = 1;

/// The commit thread's state of deferred copies.
#[derive(Debug)]
pub(super) struct Deferred {
    epoch: u64,
    /// Bytes of copies of the current epoch.
    bytes: u64,
    since: Option<Instant>,
    /// Whether an epoch is being placed, and whether that includes data.
    placing: bool,
    placing_data: bool,
    /// The last epoch whose data is in its place and whose copies are to be removed, with its last transaction.
    flushed: Option<(u64, u64)>,
    /// The last transaction of the last epoch that ended.
    sealed: u64,
    /// Transactions up to this one are in their place, have no copies and hold back no blocks.
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

    /// Whether there are copies, or blocks held back by them.
    pub(super) fn is_pending(&self) -> bool {
        self.bytes > 0 || self.placing || self.flushed.is_some() || !self.held.is_empty()
    }

    /// The last transaction of the epochs that have ended, which are placed or being placed.
    pub(super) fn sealed_seq(&self) -> u64 {
        self.sealed
    }

    /// The last transaction up to which no copies and no held-back blocks remain. Meaningful only while later ones have some.
    pub(super) fn cleaned_up_seq(&self) -> u64 {
        self.settled
    }

    /// Whether some data is not in its place yet.
    pub(super) fn has_unplaced(&self) -> bool {
        self.placing_data || !self.fresh.is_empty() || !self.overwrites.is_empty()
    }

    /// Takes the fresh data, if there is enough to write it to its place. All of it is durable as copies.
    pub(super) fn take_fresh(&mut self) -> Option<Vec<(u64, Bytes)>> {
        if self.fresh_bytes < WRITE_BACK_BYTES {
            return None;
        }
        self.fresh_bytes = 0;
        Some(std::mem::take(&mut self.fresh))
    }

    /// Whether an epoch is being placed.
    pub(super) fn is_placing(&self) -> bool {
        self.placing
    }

    /// Whether the current epoch's data should be written to its place.
    pub(super) fn is_due(&self) -> bool {
        self.bytes >= MAX_BYTES || self.since.is_some_and(|since| since.elapsed() >= MAX_DEFERRED_AGE)
    }

    /// Whether the current epoch has so much data that commits must wait.
    pub(super) fn is_over_limit(&self) -> bool {
        self.bytes >= 2 * MAX_BYTES
    }

    /// Whether these writes of fresh data are deferred. `limit_bytes` is the limit for each of them.
    pub(super) fn should_defer(&self, writes: &[(u64, Bytes)], limit_bytes: u64) -> bool {
        let mut total = 0;
        writes.iter().all(|(_, bytes)| {
            total += bytes.len() as u64;
            bytes.len() as u64 <= limit_bytes && total <= MAX_BATCH_BYTES
        })
    }

    /// Adds copies of fresh data to the batch that is about to be written, and keeps the data.
    pub(super) fn defer_fresh(&mut self, writes: Vec<(u64, Bytes)>, ids: FamilyIds, batch: &mut RawBatch) {
        for (block, bytes) in &writes {
            batch.put(ids, Family::Deferred, &key(self.epoch, *block), bytes);
            self.count(bytes.len() as u64);
            self.fresh_bytes += bytes.len() as u64;
        }
        self.fresh.extend(writes);
    }

    /// Like [`Deferred::defer_fresh`], for blocks that are overwritten in place.
    pub(super) fn defer_overwrites(
        &mut self,
        writes: Vec<(u64, Bytes)>,
        ids: FamilyIds,
        batch: &mut RawBatch,
    ) {
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

    /// Ends the current epoch, if it has copies and no epoch is being placed. All its copies must be durable. Returns the
    /// data to be written to its place. `seq` is the last committed transaction.
    pub(super) fn seal(&mut self, seq: u64) -> Option<DeferredBatch> {
        if self.placing || self.bytes == 0 {
            return None;
        }
        let job = DeferredBatch {
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

    /// Records that the data of `epoch`, whose last transaction was `seq`, is in its place and durable there.
    pub(super) fn mark_written(&mut self, epoch: u64, seq: u64) {
        (self.placing, self.placing_data, self.flushed) = (false, false, Some((epoch, seq)));
    }

    /// Adds the removal of copies that are no longer needed to the batch that is about to be written.
    pub(super) fn remove_flushed(&self, ids: FamilyIds, batch: &mut RawBatch) {
        if let Some((epoch, _)) = self.flushed {
            batch.delete_range(ids, Family::Deferred, &key(0, 0), &key(epoch + 1, 0));
        }
    }

    /// Records that the batch with the changes of [`Deferred::remove_flushed`] is durable and that it freed these blocks.
    /// Returns the blocks that no copy holds back.
    pub(super) fn on_batch_durable(&mut self, freed: Vec<Run>) -> Vec<Run> {
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

/// The block at which a copy of `len` bytes belongs, if it consists of whole blocks that fit.
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

/// Writes all copies to their places, flushes the device and removes the copies. Runs at mount, before any data is read.
pub(super) fn replay(db: &Db, device: &Device, limit_blocks: u64) -> Result<()> {
    let mut copies = 0_u64;
    // Collected per block in key order: later epochs replace earlier ones, overwrites replace fresh data. The amount is
    // limited by the amount of data that can be deferred at a time.
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
        assert_eq!(deferred.on_batch_durable(run(1)), run(1));
        let write = vec![(5, Bytes::from(vec![0; 4096]))];
        let mut batch = RawBatch::default();
        assert!(deferred.should_defer(&write, 4096) && !deferred.should_defer(&write, 4095));
        deferred.defer_fresh(write.clone(), ids, &mut batch);
        assert_eq!(deferred.on_batch_durable(run(2)), []);
        // Freed while copies exist: held back until the batch that removes them is durable.
        let job = deferred.seal(7).unwrap();
        assert_eq!((job.fresh, job.seq, job.overwrites.len()), (write.clone(), 7, 0));
        assert_eq!(deferred.on_batch_durable(run(3)), []);
        deferred.defer_overwrites(write, ids, &mut batch);
        assert!(deferred.seal(8).is_none(), "one epoch at a time");
        assert_eq!(deferred.on_batch_durable(run(4)), []);
        deferred.mark_written(job.epoch, job.seq);
        deferred.remove_flushed(ids, &mut batch);
        assert_eq!(deferred.on_batch_durable(run(5)), [run(2), run(3)].concat());
        assert!(deferred.is_pending() && deferred.has_unplaced());
        // The transactions of the first epoch are cleaned up, whatever followed.
        assert_eq!((deferred.sealed_seq(), deferred.cleaned_up_seq()), (7, 7));
        let job = deferred.seal(9).unwrap();
        assert_eq!((deferred.sealed_seq(), deferred.cleaned_up_seq()), (9, 7));
        assert_eq!((job.fresh.len(), job.overwrites.len()), (0, 1));
        deferred.mark_written(job.epoch, job.seq);
        deferred.remove_flushed(ids, &mut batch);
        assert_eq!(deferred.on_batch_durable(run(6)), [run(4), run(5), run(6)].concat());
        assert!(!deferred.is_pending());
    }
}
