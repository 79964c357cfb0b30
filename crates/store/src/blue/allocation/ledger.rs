//! The commit thread's part: adds the delta (or the allocation records) of each group commit to its batch, and requests
//! checkpoints to limit the number of deltas.

use super::checkpoint_worker::CheckpointWorker;
use super::delta::{self, DeltaWriter};
use super::freelist;
use crate::PoolUsage;
use crate::blue::commit::QueuedTxn;
use crate::blue::db::{Family, FamilyIds, RawBatch};
use nacre_types::ids::{PgId, PoolId};
use std::collections::BTreeMap;

/// Bytes that a delta takes in the database in addition to its value.
const DELTA_OVERHEAD: u64 = 24;
/// At this multiple of the limit for deltas, commits wait for the checkpoint in progress.
const MAX_BACKLOG_FACTOR: u64 = 4;

/// How a mounted store records its allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::blue) enum FreelistMode {
    /// With deltas and checkpoints.
    Deltas,
    /// With records in the database for the blocks, and with deltas and checkpoints for totals.
    Records,
    /// Not at all: a scan is needed after a crash.
    Off,
}

/// The commit thread's accounting.
#[derive(Debug)]
pub(in crate::blue) struct FreelistManager {
    scheme: FreelistMode,
    /// Position of the last delta.
    position: u64,
    /// Usage as of the last delta.
    usage: BTreeMap<PoolId, PoolUsage>,
    writer: DeltaWriter,
    pools: Vec<PoolId>,
    collections: BTreeMap<PgId, Option<u64>>,
    /// Bytes of deltas since the checkpoint, and how many of them the checkpoint in progress covers.
    bytes: u64,
    covered: u64,
    requested: u64,
    removed: u64,
    limit_bytes: u64,
}

impl FreelistManager {
    /// Continues after `position`, with `bytes` of existing deltas.
    pub(in crate::blue) fn new(
        scheme: FreelistMode,
        position: u64,
        bytes: u64,
        usage: BTreeMap<PoolId, PoolUsage>,
        limit_bytes: u64,
    ) -> FreelistManager {
        FreelistManager {
            scheme,
            position,
            usage,
            writer: DeltaWriter::default(),
            pools: Vec::new(),
            collections: BTreeMap::new(),
            bytes,
            covered: 0,
            requested: 0,
            removed: 0,
            limit_bytes,
        }
    }

    /// Adds the changes of these transactions to the batch.
    pub(in crate::blue) fn record(
        &mut self,
        queued: &[QueuedTxn],
        worker: &CheckpointWorker,
        ids: FamilyIds,
        batch: &mut RawBatch,
    ) {
        for queued in queued.iter().filter(|queued| !queued.usage.is_none()) {
            queued.usage.apply_to(self.usage.entry(queued.pool).or_default());
        }
        if self.scheme == FreelistMode::Off {
            return;
        }
        if worker.is_inconsistent() {
            self.end(ids, batch);
            return;
        }
        let done = worker.checkpointed_position();
        if done > self.removed {
            batch.delete_range(ids, Family::AllocDelta, &delta::key(0), &delta::key(done));
            self.removed = done;
            self.bytes -= std::mem::take(&mut self.covered).min(self.bytes);
        }
        self.pools.clear();
        self.collections.clear();
        self.writer.begin(false);
        let mut changes = false;
        for queued in queued {
            if !queued.usage.is_none() && !self.pools.contains(&queued.pool) {
                self.pools.push(queued.pool);
            }
            if let Some((id, objects)) = queued.collection {
                self.collections.insert(id, objects);
            }
            changes |= !queued.allocated.is_empty() || !queued.freed.is_empty();
            if self.scheme == FreelistMode::Records {
                queued
                    .allocated
                    .iter()
                    .chain(&queued.freed)
                    .for_each(|run| freelist::merge(ids, batch, *run));
            } else {
                queued.allocated.iter().for_each(|run| self.writer.change(*run, true));
                queued.freed.iter().for_each(|run| self.writer.change(*run, false));
            }
        }
        if !changes && self.pools.is_empty() && self.collections.is_empty() {
            return;
        }
        let usage = &self.usage;
        let pools = self.pools.iter().map(|pool| (*pool, usage.get(pool).copied().unwrap_or_default()));
        let value = self.writer.finish(pools, self.collections.iter());
        self.position += 1;
        batch.put(ids, Family::AllocDelta, &delta::key(self.position), value);
        self.bytes += value.len() as u64 + DELTA_OVERHEAD;
    }

    /// Must be called when the batch is durable. Every block in its deltas is below `frontier`.
    pub(in crate::blue) fn committed(&mut self, worker: &CheckpointWorker, frontier: u64) {
        if self.bytes < self.limit_bytes || self.scheme == FreelistMode::Off {
            return;
        }
        if worker.request(self.position, frontier) {
            (self.requested, self.covered) = (self.position, self.bytes);
        } else if self.bytes >= self.limit_bytes.saturating_mul(MAX_BACKLOG_FACTOR) {
            worker.wait(self.requested);
        }
    }

    /// Stops recording: from now on only a scan can determine what is allocated.
    fn end(&mut self, ids: FamilyIds, batch: &mut RawBatch) {
        self.scheme = FreelistMode::Off;
        self.position += 1;
        batch.delete_range(ids, Family::AllocDelta, &delta::key(0), &delta::key(self.position));
        batch.put(ids, Family::AllocDelta, &delta::key(self.position), &delta::empty(true));
    }
}
