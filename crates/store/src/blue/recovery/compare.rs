//! Scans of an unmounted store, for tools that compare them.

use super::{ScanFindings, ScanStats, scan};
use crate::blue::allocation::start;
use crate::blue::label::FIRST_DATA_BLOCK;
use crate::blue::onode::BLOCK_BYTES;
use crate::blue::{BlueStore, BlueStoreConfig, mount};
use crate::error::{Result, StoreError};
use crate::{AllocationSource, FreeSpace, PoolUsage, StoreEvents};
use nacre_types::ids::PoolId;
use rustix::fs::Advice;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// The allocation state as determined in one way.
#[derive(Debug)]
pub struct RecoveredAllocation {
    /// The counts of the scan. All 0 if there was none.
    pub stats: ScanStats,
    /// Usage of each pool that has any.
    pub pools: BTreeMap<PoolId, PoolUsage>,
    /// Duration of the determination.
    pub took: Duration,
    /// Source of the state.
    pub source: AllocationSource,
    /// What is wrong with the store, for display: health codes and texts.
    pub health: Vec<(String, String)>,
    used: Vec<u64>,
    findings: ScanFindings,
    frontier: u64,
    device_blocks: u64,
    /// The unit of allocation.
    unit_blocks: u64,
}

impl RecoveredAllocation {
    /// Whether both have the same usage.
    pub fn same_usage(&self, other: &RecoveredAllocation) -> bool {
        self.pools == other.pools
    }

    /// Whether both result in the same allocator: the same free blocks, and the same blocks withheld for the same reason.
    pub fn same_allocator(&self, other: &RecoveredAllocation) -> bool {
        self.used == other.used
            && self.findings.disputed == other.findings.disputed
            && self.findings.withholds_all() == other.findings.withholds_all()
    }

    /// Number of blocks that are used here and free in `other`, and vice versa.
    pub fn differences(&self, other: &RecoveredAllocation) -> (u64, u64) {
        self.used.iter().zip(&other.used).fold((0, 0), |(more, less), (own, their)| {
            (more + u64::from((own & !their).count_ones()), less + u64::from((their & !own).count_ones()))
        })
    }

    /// Number of used blocks.
    pub fn used_blocks(&self) -> u64 {
        crate::blue::allocation::bits::count(&self.used)
    }

    /// At most `max` free extents.
    pub fn free_space(&self, max: usize) -> FreeSpace {
        use crate::blue::alloc::Allocator;
        let mut allocator =
            Allocator::with_used(self.used.clone(), FIRST_DATA_BLOCK, self.frontier, self.device_blocks);
        self.findings.quarantine(&mut allocator);
        let (runs, more) = allocator.free_runs(max);
        FreeSpace {
            capacity_bytes: (self.device_blocks - FIRST_DATA_BLOCK) * BLOCK_BYTES,
            unit_bytes: self.unit_blocks * BLOCK_BYTES,
            free_bytes: (allocator.free_blocks() + allocator.blocks_above_frontier()) * BLOCK_BYTES,
            extents: runs.iter().map(|run| (run.start * BLOCK_BYTES, run.blocks * BLOCK_BYTES)).collect(),
            more,
        }
    }
}

impl BlueStore {
    /// Scans all objects of an unmounted store with `threads` threads (0: the simple scan). Does not change the store's
    /// notes.
    pub fn scan(
        directory: &Path,
        config: &BlueStoreConfig,
        threads: usize,
        events: &dyn StoreEvents,
    ) -> Result<RecoveredAllocation> {
        let opened = mount::open(directory, config)?;
        let begun = Instant::now();
        let scanned = scan(&opened, threads, events)?;
        let took = begun.elapsed();
        let mut pools = scanned.accounting.usage;
        pools.retain(|_, usage| *usage != PoolUsage::default());
        Ok(RecoveredAllocation {
            stats: scanned.stats,
            pools,
            took,
            source: AllocationSource::Scan { reason: "asked for".into() },
            health: scanned.findings.health(),
            used: scanned.accounting.used,
            findings: scanned.findings,
            frontier: scanned.frontier,
            device_blocks: opened.label.size / BLOCK_BYTES,
            unit_blocks: opened.state.unit_blocks,
        })
    }

    /// The allocation state noted by an unmounted store. The inner `Err` says why a start would scan.
    pub fn saved_allocation(
        directory: &Path,
        config: &BlueStoreConfig,
    ) -> Result<std::result::Result<RecoveredAllocation, String>> {
        let opened = mount::open(directory, config)?;
        let begun = Instant::now();
        let known = match start::load_saved_allocation(&opened)? {
            Ok(known) => known,
            Err(reason) => return Ok(Err(reason)),
        };
        let mut pools = known.accounting.usage;
        pools.retain(|_, usage| *usage != PoolUsage::default());
        Ok(Ok(RecoveredAllocation {
            stats: ScanStats::default(),
            pools,
            took: begun.elapsed(),
            source: known.source,
            health: known.findings.health(),
            used: known.accounting.used,
            findings: known.findings,
            frontier: opened.state.frontier,
            device_blocks: opened.label.size / BLOCK_BYTES,
            unit_blocks: opened.state.unit_blocks,
        }))
    }

    /// Evicts the store's database from the kernel's page cache, so that a scan reads it from disk.
    pub fn drop_page_cache(directory: &Path) -> Result<()> {
        let db = directory.join("db");
        let failed = |error: &std::io::Error| StoreError::io(format!("read {}", db.display()), error);
        for entry in std::fs::read_dir(&db).map_err(|e| failed(&e))? {
            let path = entry.map_err(|e| failed(&e))?.path();
            let file = std::fs::File::open(&path).map_err(|e| failed(&e))?;
            // Only clean pages can be evicted.
            file.sync_data().map_err(|e| failed(&e))?;
            rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).map_err(|e| failed(&e.into()))?;
        }
        Ok(())
    }
}
