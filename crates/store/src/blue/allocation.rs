//! What is allocated, and how a start knows it without reading every object's record.
//!
//! Three sources, the first that is sound counts: after a clean shutdown the *allocation file* ([`file`]); else the
//! newest *checkpoint* ([`checkpoint`]) and the *deltas* since ([`delta`]), small records in the batches of the
//! transactions; else the full scan ([`super::recovery`]). Where `bluestore_allocation_from_file` is off, the used blocks
//! are in the database ([`freelist`]) instead of the first two, and the checkpoint has totals alone.
//!
//! # Invariants
//! - A delta is in the batch of the transactions that it tells of. Positions have no gaps, the last delta is always
//!   there, and it is not void while anything but a scan is believed.
//! - Deltas are removed only up to a durable checkpoint.
//! - A source is believed only if all of it fits: checksums, the store's uuid, the position, counts, and every delta
//!   takes what was free and frees what was taken.
//! - While a scan's findings withhold blocks, no delta is written and no source kept: the next start scans again.

pub(super) mod bits;
pub(super) mod checkpoint;
pub(super) mod delta;
pub(super) mod file;
pub(super) mod freelist;
pub(super) mod head;
pub(super) mod ledger;
pub(super) mod start;
pub(super) mod worker;

use crate::PoolUsage;
use nacre_types::ids::{PgId, PoolId};
use std::collections::BTreeMap;

/// The folder of the allocation file and the checkpoints, named as in Ceph.
pub(super) const DIRECTORY: &str = "ALLOCATOR_NCB_DIR";
/// The allocation file.
const FILE: &str = "ALLOCATOR_NCB_FILE";
/// The heads of checkpoints with even and odd sequence numbers.
const HEAD_SLOTS: [&str; 2] = ["checkpoint.0", "checkpoint.1"];
/// The pages of checkpoints' bitmaps.
const PAGES_FILE: &str = "pages";

/// What the committed records say of space and numbers of objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SpaceAccounting {
    /// Used blocks, one bit each, in whole pages; reserved blocks are not among them.
    pub(super) used: Vec<u64>,
    pub(super) usage: BTreeMap<PoolId, PoolUsage>,
    /// Objects of every collection.
    pub(super) objects: BTreeMap<PgId, u64>,
}

impl SpaceAccounting {
    /// Of a store without objects.
    pub(super) fn empty(device_blocks: u64) -> SpaceAccounting {
        SpaceAccounting { used: bits::none(device_blocks), ..SpaceAccounting::default() }
    }
}
