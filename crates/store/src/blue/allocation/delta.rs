//! Deltas: the changes of one group commit to allocation, usage and object counts, as a small record in the same write
//! batch (docs/format/bluestore.md).
//!
//! Deltas are numbered by their *position*, without gaps. The last one always stays in the database and records the database's
//! position.

use crate::PoolUsage;
use crate::blue::onode::Run;
use crate::blue::varint::{self, FieldReader};
use nacre_types::crc32c::crc32c;
use nacre_types::ids::{PgId, PoolId};

const VERSION: u8 = 2;
/// No deltas follow this one until a new checkpoint has been made.
const FLAG_VOID: u8 = 1;

/// The key of a delta.
pub(in crate::blue) fn key(position: u64) -> [u8; 8] {
    position.to_be_bytes()
}

/// An exclusive upper bound of all keys.
pub(in crate::blue) const END: [u8; 9] = [0xff; 9];

/// The position in the key of a delta.
pub(in crate::blue) fn decode_key(key: &[u8]) -> Option<u64> {
    key.try_into().ok().map(u64::from_be_bytes)
}

/// A change of the set of used blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::blue) struct AllocationChange {
    pub(in crate::blue) run: Run,
    /// True if the run was allocated, false if it was freed.
    pub(in crate::blue) used: bool,
}

/// A decoded delta. The numbers for pools and collections are totals, not differences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::blue) struct Delta {
    /// In order of occurrence.
    pub(in crate::blue) changes: Vec<AllocationChange>,
    pub(in crate::blue) pools: Vec<(PoolId, PoolUsage)>,
    /// The number of objects of each collection, or `None` if it was removed.
    pub(in crate::blue) collections: Vec<(PgId, Option<u64>)>,
    pub(in crate::blue) void: bool,
}

/// Builds a delta.
#[derive(Debug, Default)]
pub(in crate::blue) struct DeltaWriter {
    out: Vec<u8>,
    last_end: u64,
}

impl DeltaWriter {
    /// Starts a new delta.
    pub(in crate::blue) fn begin(&mut self, void: bool) {
        self.out.clear();
        self.out.extend_from_slice(&[VERSION, if void { FLAG_VOID } else { 0 }]);
        self.last_end = 0;
    }

    /// Adds a change.
    pub(in crate::blue) fn change(&mut self, run: Run, used: bool) {
        varint::put(&mut self.out, run.blocks << 1 | u64::from(used));
        varint::put_signed(&mut self.out, run.start.wrapping_sub(self.last_end) as i64);
        self.last_end = run.start + run.blocks;
    }

    /// Completes the changes, adds totals and the checksum, and returns the record.
    pub(in crate::blue) fn finish<'a>(
        &mut self,
        pools: impl ExactSizeIterator<Item = (PoolId, PoolUsage)>,
        collections: impl ExactSizeIterator<Item = (&'a PgId, &'a Option<u64>)>,
    ) -> &[u8] {
        let out = &mut self.out;
        // Ends the list of changes, because no run has zero blocks.
        varint::put(out, 0);
        varint::put(out, pools.len() as u64);
        for (pool, usage) in pools {
            put_usage(out, pool, usage);
        }
        varint::put(out, collections.len() as u64);
        for (id, objects) in collections {
            put_collection(out, *id, objects.map_or(0, |objects| objects + 1));
        }
        let crc = crc32c(out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }
}

/// A delta without changes.
pub(in crate::blue) fn empty(void: bool) -> Vec<u8> {
    let mut writer = DeltaWriter::default();
    writer.begin(void);
    writer.finish(std::iter::empty(), std::iter::empty()).to_vec()
}

impl Delta {
    /// Decodes a record. `None` if it is damaged or of an unknown format.
    pub(in crate::blue) fn decode(value: &[u8]) -> Option<Delta> {
        let (body, crc) = value.split_last_chunk::<4>()?;
        if crc32c(body) != u32::from_le_bytes(*crc) {
            return None;
        }
        let ([VERSION, flags @ (0 | FLAG_VOID)], rest) = body.split_first_chunk::<2>()? else { return None };
        let mut delta = Delta { void: *flags == FLAG_VOID, ..Delta::default() };
        let mut fields = FieldReader(rest);
        let mut last_end = 0_u64;
        loop {
            let head = fields.number()?;
            if head == 0 {
                break;
            }
            let run = Run { start: last_end.wrapping_add(fields.signed()? as u64), blocks: head >> 1 };
            last_end = run.start.checked_add(run.blocks).filter(|_| run.blocks > 0)?;
            delta.changes.push(AllocationChange { run, used: head & 1 == 1 });
        }
        for _ in 0..fields.number()? {
            delta.pools.push(take_usage(&mut fields)?);
        }
        for _ in 0..fields.number()? {
            let (id, objects) = take_collection(&mut fields)?;
            delta.collections.push((id, objects.checked_sub(1)));
        }
        fields.0.is_empty().then_some(delta)
    }
}

/// Appends the usage of a pool.
pub(super) fn put_usage(out: &mut Vec<u8>, pool: PoolId, usage: PoolUsage) {
    varint::put_signed(out, pool.0);
    for number in [
        usage.stored_bytes,
        usage.allocated_bytes,
        usage.objects,
        usage.compressed_bytes,
        usage.compressed_allocated_bytes,
        usage.compressed_original_bytes,
    ] {
        varint::put(out, number);
    }
}

pub(super) fn take_usage(fields: &mut FieldReader<'_>) -> Option<(PoolId, PoolUsage)> {
    let pool = PoolId(fields.signed()?);
    let usage = PoolUsage {
        stored_bytes: fields.number()?,
        allocated_bytes: fields.number()?,
        objects: fields.number()?,
        compressed_bytes: fields.number()?,
        compressed_allocated_bytes: fields.number()?,
        compressed_original_bytes: fields.number()?,
    };
    Some((pool, usage))
}

/// Appends a collection and a number.
pub(super) fn put_collection(out: &mut Vec<u8>, id: PgId, number: u64) {
    varint::put_signed(out, id.pool.0);
    varint::put(out, u64::from(id.seed));
    varint::put(out, number);
}

pub(super) fn take_collection(fields: &mut FieldReader<'_>) -> Option<(PgId, u64)> {
    let pool = PoolId(fields.signed()?);
    Some((PgId::new(pool, fields.small()?), fields.number()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_fuzz::Target;

    fn encode(delta: &Delta) -> Vec<u8> {
        let mut writer = DeltaWriter::default();
        writer.begin(delta.void);
        delta.changes.iter().for_each(|change| writer.change(change.run, change.used));
        let collections = delta.collections.iter().map(|(id, objects)| (id, objects));
        writer.finish(delta.pools.iter().copied(), collections).to_vec()
    }

    #[test]
    fn fuzz_deltas() {
        let corpus = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"));
        let run = |start, blocks, used| AllocationChange { run: Run { start, blocks }, used };
        let usage = PoolUsage {
            stored_bytes: 1 << 33,
            allocated_bytes: 4096,
            objects: 3,
            compressed_bytes: 700,
            compressed_allocated_bytes: 4096,
            compressed_original_bytes: 1 << 20,
        };
        let delta = Delta {
            changes: vec![run(16, 64, true), run(80, 1, true), run(17, 2, false)],
            pools: vec![(PoolId(3), usage), (PoolId(-1), PoolUsage::default())],
            collections: vec![
                (PgId::new(PoolId(3), 7), Some(0)),
                (PgId::new(PoolId(3), 9), None),
                (PgId::new(PoolId(-1), 0), Some(500)),
            ],
            void: false,
        };
        assert_eq!(Delta::decode(&encode(&delta)), Some(delta.clone()));
        let reseal = |record: &mut [u8]| {
            if let Some((body, crc)) = record.split_last_chunk_mut::<4>() {
                *crc = crc32c(body).to_le_bytes();
            }
        };
        let seeds = vec![encode(&delta), empty(true)];
        let target = Target { repair: reseal, ..Target::new("delta", corpus, seeds) };
        target.run(|input| Delta::decode(input).map(|delta| encode(&delta)));
    }
}
