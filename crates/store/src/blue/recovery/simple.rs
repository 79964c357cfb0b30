//! The simple scan: one thread reads one record after the other and decodes each with the store's own decoder. It is slow, and
//! written to be obviously correct, because the parallel scan is compared with it.

use super::{MaxInUse, Progress, ScanFindings, ScanStats, Traversal, bytes_of};
use crate::PoolUsage;
use crate::blue::allocation::SpaceAccounting;
use crate::blue::db::Family;
use crate::blue::keys;
use crate::blue::label::FIRST_DATA_BLOCK;
use crate::blue::mount::OpenedStore;
use crate::blue::onode::{BLOCK_BYTES, Blob, Onode, Run, SharedBlob};
use crate::error::Result;
use std::collections::{HashMap, HashSet};

/// Number of records between progress checks.
const RECORDS_PER_LOOK: u64 = 1024;

struct Simple {
    accounting: SpaceAccounting,
    findings: ScanFindings,
    stats: ScanStats,
    highest: MaxInUse,
    device_blocks: u64,
    shared: HashMap<u64, Run>,
    /// Shared blobs that are already counted for a pool.
    counted: HashSet<u64>,
}

pub(super) fn scan(opened: &OpenedStore, mut progress: Progress<'_>) -> Result<Traversal> {
    let mut scan = Simple {
        accounting: SpaceAccounting::empty(opened.label.size / BLOCK_BYTES),
        findings: ScanFindings::default(),
        stats: ScanStats::default(),
        highest: MaxInUse::default(),
        device_blocks: opened.label.size / BLOCK_BYTES,
        shared: HashMap::new(),
        counted: HashSet::new(),
    };
    for entry in opened.db.scan(Family::Collections) {
        if let Some((coll, [keys::COLLECTION_RECORD])) = keys::split_collection(&entry?.0) {
            scan.accounting.objects.insert(coll, 0);
        }
    }
    for entry in opened.db.scan(Family::Shared) {
        let (key, value) = entry?;
        scan.stats.shared_blob_count += 1;
        match (key.as_ref().try_into().map(u64::from_be_bytes), SharedBlob::decode(&value)) {
            (Ok(id), Some(blob)) => {
                scan.highest.see_run(blob.run, scan.device_blocks);
                scan.own(blob.run, id);
                scan.shared.insert(id, blob.run);
            }
            // The onodes that refer to it dispute its blocks.
            _ => scan.findings.unreadable.push(key.to_vec()),
        }
    }
    for entry in opened.db.scan(Family::Onodes) {
        let (key, value) = entry?;
        if scan.stats.onode_count.is_multiple_of(RECORDS_PER_LOOK) {
            progress.at(scan.stats.onode_count)?;
        }
        scan.stats.onode_count += 1;
        match (keys::split_onode(&key), Onode::decode(&value)) {
            (Some((coll, _)), Ok(onode)) => {
                if let Some(objects) = scan.accounting.objects.get_mut(&coll) {
                    *objects += 1;
                }
                scan.onode(coll.pool, &onode);
            }
            _ => {
                tracing::error!(?key, "bluestore: an object's record can't be decoded");
                scan.findings.undecodable += 1;
            }
        }
    }
    let Simple { accounting, findings, stats, highest, .. } = scan;
    Ok(Traversal { accounting, findings, stats, highest })
}

/// The space that a blob takes on the device.
fn usage_of(blob: &Blob) -> PoolUsage {
    let allocated_bytes = bytes_of(blob.run.blocks);
    match blob.kind.packed {
        None => PoolUsage { allocated_bytes, ..PoolUsage::default() },
        Some(packed) => PoolUsage {
            allocated_bytes,
            compressed_bytes: u64::from(packed.stored),
            compressed_allocated_bytes: allocated_bytes,
            ..PoolUsage::default()
        },
    }
}

impl Simple {
    fn onode(&mut self, pool: nacre_types::ids::PoolId, onode: &Onode) {
        let mut mapped = vec![0_u64; onode.blobs.len()];
        onode.extents.iter().for_each(|extent| mapped[extent.blob as usize] += 1);
        self.stats.extent_count += onode.extents.len() as u64;
        self.stats.spanning_blob_count += mapped.iter().filter(|extents| **extents > 1).count() as u64;
        self.stats.shard_count += 1 + onode.blobs.iter().filter(|blob| !blob.inline_sums).count() as u64;
        let mut sum = PoolUsage::default();
        self.highest.see_id(onode.nid);
        self.highest.see_id(onode.omap);
        for blob in &onode.blobs {
            self.highest.see_id(blob.id);
            self.highest.see_run(blob.run, self.device_blocks);
            self.stats.compressed_blob_count += u64::from(blob.kind.packed.is_some());
            if !blob.shared {
                self.own(blob.run, onode.nid);
                sum.add(&usage_of(blob));
            } else if self.shared.get(&blob.id) == Some(&blob.run) {
                if self.counted.insert(blob.id) {
                    sum.add(&usage_of(blob));
                }
            } else {
                self.stats.skipped_illegal_extent += 1;
                self.findings.dispute(blob.run, self.device_blocks);
                self.take(blob.run);
                self.findings.shared_without_record(blob.id, onode.nid);
            }
        }
        sum.objects = 1;
        (sum.stored_bytes, sum.compressed_original_bytes) = onode.stored_and_compressed();
        self.accounting.usage.entry(pool).or_default().add(&sum);
    }

    /// Marks a run that a record owns, block by block.
    fn own(&mut self, run: Run, owner: u64) {
        let end = run.start.checked_add(run.blocks);
        let inside = run.start >= FIRST_DATA_BLOCK && end.is_some_and(|end| end <= self.device_blocks);
        let mut disputed = !inside;
        if inside {
            for block in run.start..run.start + run.blocks {
                if self.has(block) {
                    disputed = true;
                    self.findings.dispute(Run { start: block, blocks: 1 }, self.device_blocks);
                }
            }
        } else {
            self.findings.dispute(run, self.device_blocks);
        }
        self.take(run);
        if disputed {
            self.stats.skipped_illegal_extent += 1;
            self.findings.two_owners(run, owner);
        } else {
            self.stats.insert_count += 1;
        }
    }

    fn has(&self, block: u64) -> bool {
        self.accounting.used[(block / 64) as usize] >> (block % 64) & 1 == 1
    }

    /// Marks the part of a run that lies within the store.
    fn take(&mut self, run: Run) {
        let end = run.start.saturating_add(run.blocks).min(self.device_blocks);
        for block in run.start.max(FIRST_DATA_BLOCK)..end {
            self.accounting.used[(block / 64) as usize] |= 1 << (block % 64);
        }
    }
}
