//! Repairs the findings of [`super::fsck`] that can be repaired without guessing: removes unreferenced records and corrects
//! counts. Damaged data and records are left to recovery from other replicas.

use super::BlueStoreConfig;
use super::allocation::delta;
use super::db::{Family, RawBatch};
use super::fsck::{self, FsckFinding, FsckReport};
use super::keys;
use super::mount::{self, OpenedStore};
use super::onode::SharedBlob;
use super::state;
use crate::error::Result;
use std::path::Path;

/// The result of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// The repaired findings.
    pub repaired: Vec<FsckFinding>,
    /// What is still wrong.
    pub remaining: FsckReport,
}

/// Checks the store in `directory`, repairs what can be repaired, and checks again.
pub(super) fn repair(directory: &Path, config: &BlueStoreConfig, deep: bool) -> Result<RepairReport> {
    let found = fsck::check(&mount::open(directory, config)?, deep)?;
    if found.findings.is_empty() {
        return Ok(RepairReport { repaired: Vec::new(), remaining: found });
    }
    let opened = mount::open(directory, config)?;
    let mut batch = RawBatch::default();
    let mut repaired = Vec::new();
    // Records that seem unreferenced may belong to an object that can't be read, or to a blob that was not counted.
    let unread = found.findings.iter().any(|finding| {
        matches!(finding, FsckFinding::Undecodable("onodes", _) | FsckFinding::OutOfBounds(..))
    });
    let mut id_max = opened.state.id_max;
    for finding in &found.findings {
        let needs_all = matches!(
            finding,
            FsckFinding::StrayChecksums(_) | FsckFinding::StrayOmap(_) | FsckFinding::WrongReferences(..)
        );
        if !(unread && needs_all) && mend(&opened, finding, &mut id_max, &mut batch)? {
            repaired.push(finding.clone());
        }
    }
    if !repaired.is_empty() {
        // Voids the notes of allocation, so that the next start reads the records of all objects instead.
        let ids = opened.db.ids();
        if id_max > opened.state.id_max {
            batch.put(ids, Family::Super, state::ID_MAX, &id_max.to_le_bytes());
        }
        batch.delete_range(ids, Family::AllocDelta, &[], &delta::END);
        batch.finish();
        opened.db.write(&batch)?;
    }
    drop(opened);
    let remaining = match repaired.is_empty() {
        true => found,
        false => fsck::check(&mount::open(directory, config)?, deep)?,
    };
    Ok(RepairReport { repaired, remaining })
}

/// Adds the repair of a finding to `batch`, or raises `id_max`. Returns whether the finding can be repaired.
fn mend(opened: &OpenedStore, finding: &FsckFinding, id_max: &mut u64, batch: &mut RawBatch) -> Result<bool> {
    let ids = opened.db.ids();
    match finding {
        FsckFinding::StrayChecksums(blob) => batch.delete(ids, Family::Csum, &keys::id(*blob)),
        FsckFinding::StrayOmap(omap) => {
            let Some(next) = omap.checked_add(1) else { return Ok(false) };
            batch.delete_range(ids, Family::Omap, &keys::id(*omap), &keys::id(next));
        }
        FsckFinding::WrongReferences(blob, _, 0) => batch.delete(ids, Family::Shared, &keys::id(*blob)),
        FsckFinding::WrongReferences(blob, _, holders) => {
            let record = opened.db.get(Family::Shared, &keys::id(*blob))?;
            let Some(record) = record.and_then(|value| SharedBlob::decode(&value)) else { return Ok(false) };
            let record = SharedBlob { refs: *holders, ..record };
            batch.put(ids, Family::Shared, &keys::id(*blob), &record.encode());
        }
        FsckFinding::NumberTooHigh(number) => {
            if *number >= state::MAX_ID {
                return Ok(false);
            }
            *id_max = (number + 1).max(*id_max);
        }
        // Recomputed by the scan of the next start.
        FsckFinding::WrongUsage(..) | FsckFinding::WrongObjects(..) | FsckFinding::WrongAllocation(..) => {}
        FsckFinding::Loss(_)
        | FsckFinding::Undecodable(..)
        | FsckFinding::OutOfBounds(..)
        | FsckFinding::OwnedTwice(_)
        | FsckFinding::NoSharedRecord(..)
        | FsckFinding::NoChecksums(..)
        | FsckFinding::BadData(..)
        | FsckFinding::Unreadable(..)
        | FsckFinding::OmapOwnedTwice(_)
        | FsckFinding::NoCollection(..) => return Ok(false),
    }
    Ok(true)
}
