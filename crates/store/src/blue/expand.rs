//! Extends an unmounted store to the size of its device.

use super::BlueStoreConfig;
use super::allocation::{bits, start};
use super::db::RawBatch;
use super::mount;
use super::onode::BLOCK_BYTES;
use crate::IgnoreEvents;
use crate::error::{Result, StoreError};
use std::path::Path;

/// Makes the store as large as its device. Returns its size before and after, in bytes.
///
/// The label is written first, then the notes of allocation. After a crash in between, the next start scans all objects,
/// because notes for a store of another size are not valid.
pub(super) fn expand(directory: &Path, config: &BlueStoreConfig) -> Result<(u64, u64)> {
    let mut opened = mount::open(directory, config)?;
    let before = opened.label.size;
    let unit = opened.state.unit_blocks * BLOCK_BYTES;
    let after = opened.device.size()? / unit * unit;
    if after <= before {
        return Ok((before, before));
    }
    let mut known = start::load_allocation(&opened, config, &IgnoreEvents)?;
    if !known.findings.is_empty() {
        return Err(StoreError::Invalid("the store is damaged: repair it first"));
    }
    opened.label.size = after;
    opened.label.write(&opened.device)?;
    let mut batch = RawBatch::default();
    mount::raise_high_water_marks(&mut opened, &known, &mut batch);
    let mut accounting = std::mem::take(&mut known.accounting);
    let mut used = bits::empty(after / BLOCK_BYTES);
    used[..accounting.used.len()].copy_from_slice(&accounting.used);
    accounting.used = used;
    start::record_filled(&opened, config, accounting, opened.state.frontier, &mut batch)?;
    batch.finish();
    opened.db.write(&batch)?;
    Ok((before, after))
}
