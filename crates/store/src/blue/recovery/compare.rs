//! Scans of a store that is not mounted, for tools that compare them.

use super::{Findings, ScanStats, scan};
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

/// What one way of finding out what is allocated gave.
#[derive(Debug)]
pub struct Recovery {
    /// What was counted; all 0 where no scan was made.
    pub stats: ScanStats,
    /// Usage of each pool that has any.
    pub pools: BTreeMap<PoolId, PoolUsage>,
    /// How long it took.
    pub took: Duration,
    /// How it was found out.
    pub source: AllocationSource,
    /// What is wrong with the store, for people: health codes and texts.
    pub health: Vec<(String, String)>,
    used: Vec<u64>,
    findings: Findings,
    frontier: u64,
    device_blocks: u64,
}

impl Recovery {
    /// Whether both find the same usage.
    pub fn same_usage(&self, other: &Recovery) -> bool {
        self.pools == other.pools
    }

    /// Whether both give the same allocator: the same free blocks, and the same withheld for the same reason.
    pub fn same_allocator(&self, other: &Recovery) -> bool {
        self.used == other.used
            && self.findings.disputed == other.findings.disputed
            && (self.findings.undecodable == 0) == (other.findings.undecodable == 0)
    }

    /// Blocks that this finds used and the other free, and the other way round.
    pub fn differences(&self, other: &Recovery) -> (u64, u64) {
        self.used.iter().zip(&other.used).fold((0, 0), |(more, less), (own, their)| {
            (more + u64::from((own & !their).count_ones()), less + u64::from((their & !own).count_ones()))
        })
    }

    /// Blocks in use.
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
            unit_bytes: BLOCK_BYTES,
            free_bytes: (allocator.free() + allocator.ungrown()) * BLOCK_BYTES,
            extents: runs.iter().map(|run| (run.start * BLOCK_BYTES, run.blocks * BLOCK_BYTES)).collect(),
            more,
        }
    }
}

impl BlueStore {
    /// Scans all objects of a store that is not mounted, with so many threads (0: the simple scan). Changes nothing of its
    /// notes.
    pub fn scan(
        directory: &Path,
        config: &BlueStoreConfig,
        threads: usize,
        events: &dyn StoreEvents,
    ) -> Result<Recovery> {
        let opened = mount::open(directory, config)?;
        let begun = Instant::now();
        let scanned = scan(&opened, threads, events)?;
        let took = begun.elapsed();
        let mut pools = scanned.accounting.usage;
        pools.retain(|_, usage| *usage != PoolUsage::default());
        Ok(Recovery {
            stats: scanned.stats,
            pools,
            took,
            source: AllocationSource::Scan { reason: "asked for".into() },
            health: scanned.findings.health(),
            used: scanned.accounting.used,
            findings: scanned.findings,
            frontier: scanned.frontier,
            device_blocks: opened.label.size / BLOCK_BYTES,
        })
    }

    /// What the store that is not mounted noted of allocation; `Err` in it says why a start would scan.
    pub fn noted_allocation(
        directory: &Path,
        config: &BlueStoreConfig,
    ) -> Result<std::result::Result<Recovery, String>> {
        let opened = mount::open(directory, config)?;
        let begun = Instant::now();
        let known = match start::noted(&opened)? {
            Ok(known) => known,
            Err(reason) => return Ok(Err(reason)),
        };
        let mut pools = known.accounting.usage;
        pools.retain(|_, usage| *usage != PoolUsage::default());
        Ok(Ok(Recovery {
            stats: ScanStats::default(),
            pools,
            took: begun.elapsed(),
            source: known.source,
            health: known.findings.health(),
            used: known.accounting.used,
            findings: known.findings,
            frontier: opened.state.frontier,
            device_blocks: opened.label.size / BLOCK_BYTES,
        }))
    }

    /// Makes the kernel forget what it has cached of the store's database, so that a scan reads it from the disk.
    pub fn evict(directory: &Path) -> Result<()> {
        let db = directory.join("db");
        let failed = |error: &std::io::Error| StoreError::io(format!("read {}", db.display()), error);
        for entry in std::fs::read_dir(&db).map_err(|e| failed(&e))? {
            let path = entry.map_err(|e| failed(&e))?.path();
            let file = std::fs::File::open(&path).map_err(|e| failed(&e))?;
            // Only what is clean can be forgotten.
            file.sync_data().map_err(|e| failed(&e))?;
            rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).map_err(|e| failed(&e.into()))?;
        }
        Ok(())
    }
}
