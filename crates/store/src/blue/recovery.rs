//! The full scan: determines from all objects' records what is allocated and what pools use.
//!
//! It is the fallback if the store's notes ([`super::allocation`]) are not valid, and the reference for checking them.
//! There are two scans that share no traversal, decoder or set of blocks: the simple one ([`simple`]) and the parallel
//! one ([`parallel`]). Both give the same result, also for damaged stores.
//!
//! # Invariants
//! - A record that can't be decoded does not free anything: all free space below the frontier is withheld.
//! - A block with two owners that do not share it is withheld from both.
//! - The resulting frontier is at or above the end of every run within the device, and the resulting number limit is above every
//!   number in use. After a repair of the database, its own records of both may be too low.

mod compare;
mod parallel;
mod record_decoder;
mod simple;

use super::alloc::Allocator;
use super::allocation::{SpaceAccounting, bits};
use super::db::Family;
use super::label::FIRST_DATA_BLOCK;
use super::mount::OpenedStore;
use super::onode::{BLOCK_BYTES, Run};
use super::state::MAX_ID;
use crate::error::{Result, StoreError};
use crate::{ScanProgress, StoreEvents};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

pub use compare::RecoveredAllocation;

/// Interval between progress reports of a scan.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of findings that are reported as text.
const MAX_TEXTS: usize = 16;
/// Maximum number of disputed runs that are tracked. If there are more, all free space is withheld.
const MAX_DISPUTED: usize = 1 << 16;

/// The counts of a scan (docs/format/bluestore.md defines each for Nacre's records).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanStats {
    /// Number of objects' records.
    pub onode_count: u64,
    /// Number of records that contain objects' extents and checksums: one for each onode, and one for each blob whose
    /// checksums are not in the onode.
    pub shard_count: u64,
    /// Number of shared blobs' records.
    pub shared_blob_count: u64,
    /// Number of compressed blobs.
    pub compressed_blob_count: u64,
    /// Number of blobs that several extents map.
    pub spanning_blob_count: u64,
    /// Number of runs outside the store, or with another owner.
    pub skipped_illegal_extent: u64,
    /// Number of objects' extents.
    pub extent_count: u64,
    /// Number of runs of blocks marked as used.
    pub insert_count: u64,
}

impl ScanStats {
    fn add(&mut self, other: &ScanStats) {
        self.onode_count += other.onode_count;
        self.shard_count += other.shard_count;
        self.shared_blob_count += other.shared_blob_count;
        self.compressed_blob_count += other.compressed_blob_count;
        self.spanning_blob_count += other.spanning_blob_count;
        self.skipped_illegal_extent += other.skipped_illegal_extent;
        self.extent_count += other.extent_count;
        self.insert_count += other.insert_count;
    }
}

/// The inconsistencies that a scan found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ScanFindings {
    /// Blocks that several records own, or that a record claims without owning them. Within the store, sorted and disjoint after
    /// [`ScanFindings::settle`].
    pub(super) disputed: Vec<Run>,
    /// There are more disputed runs than are tracked, because of which all free space is withheld.
    pub(super) has_untracked_disputes: bool,
    /// Number of records that can't be decoded, because of which all free space is withheld.
    pub(super) undecodable: u64,
    /// Keys of undecodable shared blobs' records that no object needs. They may be deleted.
    pub(super) unreferenced: Vec<Vec<u8>>,
    /// Keys of undecodable shared blobs' records.
    unreadable: Vec<Vec<u8>>,
    /// Shared blobs that objects refer to and that have no matching record.
    wanted: BTreeSet<u64>,
    /// Number of findings that are not in the lists.
    dropped: u64,
    texts: Vec<String>,
}

impl ScanFindings {
    pub(super) fn is_empty(&self) -> bool {
        self.disputed.is_empty() && !self.withholds_all() && self.texts.is_empty() && self.dropped == 0
    }

    /// Whether all free space is withheld.
    pub(super) fn withholds_all(&self) -> bool {
        self.undecodable > 0 || self.has_untracked_disputes
    }

    fn tell(&mut self, text: impl FnOnce() -> String) {
        if self.texts.len() < MAX_TEXTS {
            let text = text();
            tracing::error!("bluestore: {text}");
            self.texts.push(text);
        } else {
            self.dropped += 1;
        }
    }

    /// Decides which undecodable shared blobs' records are damage. An object whose own record can't be decoded may need any
    /// of them.
    fn judge_unreadable(&mut self) {
        let unreadable = std::mem::take(&mut self.unreadable);
        let id = |key: &[u8]| key.try_into().map(u64::from_be_bytes);
        let all_known = self.undecodable == 0;
        let needed = |key: &Vec<u8>| !all_known || id(key).is_ok_and(|id| self.wanted.contains(&id));
        let (needed, needless): (Vec<_>, Vec<_>) = unreadable.into_iter().partition(needed);
        for key in needed {
            self.tell(|| format!("shared blob record {key:?} can't be decoded"));
        }
        for key in &needless {
            tracing::warn!(?key, "bluestore: a shared blob's record that can't be decoded is not referenced");
        }
        self.unreferenced = needless;
    }

    fn dispute(&mut self, run: Run, limit: u64) {
        let start = run.start.max(FIRST_DATA_BLOCK);
        let end = run.start.saturating_add(run.blocks).min(limit);
        if start < end {
            self.disputed.push(Run { start, blocks: end - start });
            if self.disputed.len() > MAX_DISPUTED {
                self.disputed.clear();
                self.has_untracked_disputes = true;
            }
        }
    }

    fn add(&mut self, other: ScanFindings) {
        self.disputed.extend(other.disputed);
        self.has_untracked_disputes |= other.has_untracked_disputes;
        self.undecodable += other.undecodable;
        self.unreadable.extend(other.unreadable);
        self.wanted.extend(other.wanted);
        self.dropped += other.dropped;
        for text in other.texts {
            if self.texts.len() < MAX_TEXTS {
                self.texts.push(text);
            } else {
                self.dropped += 1;
            }
        }
    }

    /// Sorts the disputed runs, joins them and cuts them off at the frontier.
    fn settle(&mut self, frontier: u64) {
        self.disputed.retain(|run| run.start < frontier);
        self.disputed.iter_mut().for_each(|run| run.blocks = run.blocks.min(frontier - run.start));
        self.disputed.sort_unstable_by_key(|run| run.start);
        let mut joined: Vec<Run> = Vec::with_capacity(self.disputed.len());
        for run in std::mem::take(&mut self.disputed) {
            match joined.last_mut().filter(|last| run.start <= last.start + last.blocks) {
                Some(last) => last.blocks = last.blocks.max(run.start + run.blocks - last.start),
                None => joined.push(run),
            }
        }
        self.disputed = joined;
    }

    /// The findings for health reports, including that space is withheld.
    pub(super) fn health(&self) -> Vec<(String, String)> {
        let mut texts = self.texts.clone();
        if self.dropped > 0 {
            texts.push(format!("{} further findings of the scan are in no list", self.dropped));
        }
        if self.undecodable > 0 {
            texts.push(format!(
                "{} object records can't be decoded; all free space below them is withheld",
                self.undecodable
            ));
        }
        if self.has_untracked_disputes {
            texts.push(format!(
                "more than {MAX_DISPUTED} runs of blocks have several owners; all free space below them is withheld"
            ));
        }
        texts.into_iter().map(|text| ("BLUESTORE_QUARANTINE".into(), text)).collect()
    }

    /// Withholds the blocks of the findings.
    pub(super) fn quarantine(&self, allocator: &mut Allocator) {
        self.disputed.iter().for_each(|run| allocator.quarantine(*run));
        if self.withholds_all() {
            allocator.quarantine_all_free();
        }
    }

    fn shared_without_record(&mut self, id: u64, nid: u64) {
        self.wanted.insert(id);
        self.tell(|| format!("blob {id} of onode {nid} is shared but has no such record"));
    }

    fn two_owners(&mut self, run: Run, owner: u64) {
        let end = run.start.saturating_add(run.blocks);
        self.tell(|| {
            format!(
                "blocks {}..{end} of onode or blob {owner} have another owner too or lie outside the store",
                run.start
            )
        });
    }
}

/// The highest number in use, and the end of the last run of blocks on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct MaxInUse {
    id: u64,
    end: u64,
}

impl MaxInUse {
    fn see_id(&mut self, id: u64) {
        if id < MAX_ID {
            self.id = self.id.max(id);
        }
    }

    fn see_run(&mut self, run: Run, device_blocks: u64) {
        if let Some(end) = run.start.checked_add(run.blocks)
            && end <= device_blocks
        {
            self.end = self.end.max(end);
        }
    }

    fn add(&mut self, other: MaxInUse) {
        self.id = self.id.max(other.id);
        self.end = self.end.max(other.end);
    }
}

/// The result of a traversal of all records. Runs are valid up to the end of the device.
#[derive(Debug)]
struct Traversal {
    accounting: SpaceAccounting,
    findings: ScanFindings,
    stats: ScanStats,
    highest: MaxInUse,
}

/// The result of a scan.
#[derive(Debug)]
pub(super) struct ScanResult {
    pub(super) accounting: SpaceAccounting,
    pub(super) findings: ScanFindings,
    pub(super) stats: ScanStats,
    /// The database's limits, or higher ones if records contain higher values.
    pub(super) id_max: u64,
    pub(super) frontier: u64,
}

/// Scans with `threads` threads. 0 selects the simple scan.
pub(super) fn scan(opened: &OpenedStore, threads: usize, events: &dyn StoreEvents) -> Result<ScanResult> {
    let begun = Instant::now();
    let progress = Progress::new(opened, events);
    let traversed = match threads {
        0 => simple::scan(opened, progress),
        threads => parallel::scan(opened, threads, progress),
    };
    events.scanning(None);
    let Traversal { mut accounting, mut findings, stats, mut highest } = traversed?;
    // Omaps and checksums of objects whose records are lost or can't be decoded may remain. A new object must not get their ids.
    for family in [Family::Omap, Family::Csum, Family::Shared] {
        let id = |key: &[u8]| key.first_chunk::<8>().map(|id| u64::from_be_bytes(*id));
        let last = opened.db.find_last(family, |key, _| id(key).filter(|id| *id < MAX_ID))?;
        highest.see_id(last.unwrap_or_default());
    }
    let (state, device_blocks) = (&opened.state, opened.label.size / BLOCK_BYTES);
    let end = highest.end.next_multiple_of(state.unit_blocks).min(device_blocks);
    let (id_max, frontier) = (state.id_max.max(highest.id + 1), state.frontier.max(end));
    bits::clip(&mut accounting.used, FIRST_DATA_BLOCK, frontier);
    findings.settle(frontier);
    findings.judge_unreadable();
    let ScanStats { onode_count, extent_count, .. } = stats;
    tracing::info!(threads, onode_count, extent_count, took = ?begun.elapsed(), "bluestore: scanned all objects");
    Ok(ScanResult { accounting, findings, stats, id_max, frontier })
}

/// Reports the progress of a scan, and checks whether it must end.
struct Progress<'a> {
    events: &'a dyn StoreEvents,
    expected: u64,
    begun: Instant,
    told: Instant,
}

impl<'a> Progress<'a> {
    fn new(opened: &OpenedStore, events: &'a dyn StoreEvents) -> Progress<'a> {
        let now = Instant::now();
        Progress { events, expected: opened.db.estimated_keys(Family::Onodes), begun: now, told: now }
    }

    /// Reports once a second that `onodes` are scanned. Must be called often. Fails if the scan must end.
    fn at(&mut self, onodes: u64) -> Result<()> {
        if self.told.elapsed() >= REPORT_INTERVAL {
            self.told = Instant::now();
            let progress =
                ScanProgress { onodes, expected: self.expected.max(onodes), elapsed: self.begun.elapsed() };
            tracing::info!(onodes, expected = progress.expected, "bluestore: scanning objects");
            self.events.scanning(Some(&progress));
        }
        if self.events.cancelled() { Err(StoreError::Interrupted) } else { Ok(()) }
    }
}

/// Number of bytes in `blocks` blocks.
fn bytes_of(blocks: u64) -> u64 {
    blocks * BLOCK_BYTES
}
