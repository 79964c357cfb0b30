//! Records of what is allocated, which save a start from reading every object's record.
//!
//! There are three sources, and the first sound one is used: after a clean shutdown the *allocation file* ([`file`]);
//! otherwise the newest *checkpoint* ([`checkpoint`]) and the later *deltas* ([`delta`]), which are small records in the
//! batches of the transactions; otherwise the full scan ([`super::recovery`]). If `bluestore_allocation_from_file` is off,
//! the used blocks are in the database ([`freelist`]) instead of the first two, and the checkpoint contains only totals.
//!
//! # Invariants
//! - A delta is in the same batch as the transactions that it describes. Positions have no gaps. The last delta always
//!   exists, and it is not void while any source but a scan is valid.
//! - Deltas are removed only up to a durable checkpoint.
//! - A source is used only if all of it is consistent: checksums, the store's uuid, the position, counts, and every delta
//!   allocates blocks that were free and frees blocks that were allocated.
//! - While the findings of a scan withhold blocks, no deltas are written and no source is kept: the next start scans again.

pub(super) mod bits;
pub(super) mod checkpoint;
pub(super) mod checkpoint_worker;
pub(super) mod delta;
pub(super) mod file;
pub(super) mod freelist;
pub(super) mod image_header;
pub(super) mod ledger;
pub(super) mod start;

use crate::PoolUsage;
use nacre_types::ids::{PgId, PoolId};
use std::collections::BTreeMap;

/// The directory of the allocation file and the checkpoints, named as in Ceph.
pub(super) const DIRECTORY: &str = "ALLOCATOR_NCB_DIR";
/// Name of the allocation file.
const FILE: &str = "ALLOCATOR_NCB_FILE";
/// Names of the heads of checkpoints with even and odd sequence numbers.
const HEAD_SLOTS: [&str; 2] = ["checkpoint.0", "checkpoint.1"];
/// Name of the file with the pages of checkpoints' bitmaps.
const PAGES_FILE: &str = "pages";

/// Used space and numbers of objects according to the committed records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SpaceAccounting {
    /// Bitmap of used blocks in whole pages. Reserved blocks are not included.
    pub(super) used: Vec<u64>,
    pub(super) usage: BTreeMap<PoolId, PoolUsage>,
    /// Number of objects in each collection.
    pub(super) objects: BTreeMap<PgId, u64>,
}

impl SpaceAccounting {
    /// The accounting of a store without objects.
    pub(super) fn empty(device_blocks: u64) -> SpaceAccounting {
        SpaceAccounting { used: bits::empty(device_blocks), ..SpaceAccounting::default() }
    }
}
