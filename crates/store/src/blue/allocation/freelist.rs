//! Allocation records in the database: Ceph's former scheme, kept for comparison (`bluestore_allocation_from_file=false`).
//!
//! A key stands for 128 blocks, and its value has one bit for each of them. A change of a run is a merge by exclusive or. A start
//! reads all keys.

use super::bits;
use crate::blue::db::{Db, Family, FamilyIds, RawBatch};
use crate::blue::onode::Run;
use crate::error::Result;

/// Number of blocks per key, as Ceph's `bluestore_freelist_blocks_per_key`.
const KEY_BLOCKS: u64 = 128;
const VALUE_BYTES: usize = (KEY_BLOCKS / 8) as usize;
const KEY_WORDS: usize = VALUE_BYTES / 8;
/// Size of the write batches in which all records are rewritten, in bytes.
const BATCH_BYTES: usize = 4 << 20;

/// Adds the merges that allocate or free a run.
pub(in crate::blue) fn merge(ids: FamilyIds, batch: &mut RawBatch, run: Run) {
    let (mut at, end) = (run.start, run.start + run.blocks);
    while at < end {
        let group = at / KEY_BLOCKS;
        let upto = end.min((group + 1) * KEY_BLOCKS);
        let inside = Run { start: at % KEY_BLOCKS, blocks: upto - at };
        let mut words = [0; KEY_WORDS];
        bits::masks(inside).for_each(|(word, mask)| words[word] |= mask);
        batch.merge(ids, Family::FreeList, &group.to_be_bytes(), &encode(&words));
        at = upto;
    }
}

fn encode(words: &[u64]) -> [u8; VALUE_BYTES] {
    let mut value = [0; VALUE_BYTES];
    for (bytes, word) in value.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    value
}

/// Merges records by exclusive or. The result is empty if a length is wrong, which the load reports.
pub(in crate::blue) fn merge_values<'a>(
    existing: Option<&[u8]>,
    operands: impl Iterator<Item = &'a [u8]>,
) -> Vec<u8> {
    let mut value = existing.map_or_else(|| vec![0; VALUE_BYTES], <[u8]>::to_vec);
    for operand in operands {
        if operand.len() != value.len() {
            return Vec::new();
        }
        value.iter_mut().zip(operand).for_each(|(byte, other)| *byte ^= other);
    }
    value
}

/// Reads all records into an empty bitmap. The text describes what is damaged.
pub(in crate::blue) fn load(db: &Db, words: &mut [u64]) -> Result<std::result::Result<(), String>> {
    for entry in db.scan(Family::FreeList) {
        let (key, value) = entry?;
        let group = key.as_ref().try_into().map(u64::from_be_bytes).unwrap_or(u64::MAX);
        let at = group.saturating_mul(KEY_WORDS as u64);
        let place = usize::try_from(at).ok().and_then(|at| words.get_mut(at..at.checked_add(KEY_WORDS)?));
        let (Some(place), (values, []), VALUE_BYTES) = (place, value.as_chunks::<8>(), value.len()) else {
            return Ok(Err(format!("allocation record {key:?} can't be decoded")));
        };
        place.iter_mut().zip(values).for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
    }
    Ok(Ok(()))
}

/// Rewrites all records. They are not valid until [`super`] marks them as valid in the database.
pub(in crate::blue) fn rewrite(db: &Db, words: &[u64]) -> Result<()> {
    let (ids, mut batch) = (db.ids(), RawBatch::default());
    batch.delete_range(ids, Family::FreeList, &[], &u64::MAX.to_be_bytes());
    for (group, words) in (0_u64..).zip(words.chunks_exact(KEY_WORDS)) {
        if words.iter().any(|word| *word != 0) {
            batch.put(ids, Family::FreeList, &group.to_be_bytes(), &encode(words));
        }
        if batch.size_in_bytes() > BATCH_BYTES {
            batch.finish();
            db.write(&batch)?;
            batch.clear();
        }
    }
    batch.finish();
    if batch.is_empty() { Ok(()) } else { db.write(&batch) }
}

/// Adds the removal of all records to a batch that is about to be written.
pub(in crate::blue) fn clear(ids: FamilyIds, batch: &mut RawBatch) {
    batch.delete_range(ids, Family::FreeList, &[], &u64::MAX.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_masks_are_what_was_taken_and_not_freed() {
        let mask = |run: Run| {
            let mut words = [0; KEY_WORDS];
            bits::masks(run).for_each(|(word, mask)| words[word] |= mask);
            encode(&words)
        };
        let (taken, freed) = (mask(Run { start: 10, blocks: 100 }), mask(Run { start: 60, blocks: 10 }));
        let merged = merge_values(None, [&taken[..], &freed[..]].into_iter());
        let again = merge_values(Some(&merged), [&freed[..]].into_iter());
        assert_eq!(again, taken);
        assert_eq!(merged.iter().map(|byte| byte.count_ones()).sum::<u32>(), 90);
        assert!(merge_values(Some(&[1]), [&taken[..]].into_iter()).is_empty());
    }
}
