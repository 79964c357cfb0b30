//! Spilling: the owner moves batches from the shard's object into separate objects, so that a queue whose endpoint is down
//! can grow without bound while the shard's object stays small.
//!
//! First the segment's object is written. Then one operation on the shard adds its manifest and removes the batches. A
//! segment belongs to the queue if and only if the shard has its manifest. Its name contains the owner's epoch, so a fenced
//! owner can only write an object that no manifest names; a sweep removes such objects. A segment is removed after the
//! cursor has passed it; then its manifest is removed.

use crate::enqueue::MAX_RESIDENT_BYTES;
use crate::error::{Result, corrupt};
use crate::name::{self, QueueRecordKind};
use crate::op::{ObjectKey, ObjectOp, Step, Write};
use crate::record::{self, Batch, Event, HEAD, SegmentData, SegmentManifest};
use crate::settle::LogIndex;
use crate::shard::{Shard, Stored};
use bytes::Bytes;

/// The most bytes of events in a segment, unless it is a single batch.
pub const SEGMENT_BYTES: u64 = 4 << 20;
/// An object with more bytes of events than this is spilled, unless its events are delivered soon.
pub const SPILL_ABOVE_BYTES: u64 = 2 * SEGMENT_BYTES;

/// The limits that determine when a shard's object is spilled, and how large segments are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpillLimits {
    /// The most bytes of events in a segment, unless it is a single batch.
    pub segment_bytes: u64,
    /// An object with more bytes of events than this is spilled, unless its events are delivered soon. At least
    /// `segment_bytes`.
    pub above_bytes: u64,
    /// The most bytes of events in the object itself ([`crate::enqueue::plan`]). It exceeds `above_bytes` by several
    /// events.
    pub resident_bytes: u64,
}

impl Default for SpillLimits {
    fn default() -> SpillLimits {
        SpillLimits {
            segment_bytes: SEGMENT_BYTES,
            above_bytes: SPILL_ABOVE_BYTES,
            resident_bytes: MAX_RESIDENT_BYTES,
        }
    }
}

/// The operations that spill some batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpillPlan {
    /// Writes the segment. No other owner writes this object, so the operation may be repeated.
    pub write: ObjectOp,
    /// Adds the manifest to the shard.
    pub commit: ObjectOp,
    /// The shard after both operations.
    pub after: Shard,
    /// The log after both operations.
    pub log: LogIndex,
}

/// Plans to spill the first batches of the shard, as many as fit into a segment of `segment_bytes` ([`SpillLimits`]).
/// `page` starts with the shard's first batch ([`crate::settle::read_batches`] without `after`). `None` if there is no
/// batch.
pub fn plan(
    shard: &Shard,
    log: &LogIndex,
    page: &[(Bytes, Bytes)],
    segment_bytes: u64,
) -> Result<Option<SpillPlan>> {
    let mut batches: Vec<(u64, Batch)> = Vec::new();
    let mut bytes = 0;
    for (key, value) in page {
        let first = QueueRecordKind::Batch.sequence(key);
        let first = first.ok_or_else(|| corrupt(&shard.object, "queue", "a key has no sequence number"))?;
        let batch: Batch = record::decode(&shard.object, value)?;
        let size = batch.size_bytes();
        let end = first + batch.events.len() as u64;
        let follows = batches.last().is_none_or(|(last, batch)| last + batch.events.len() as u64 == first);
        if end > shard.tail.value.next || !follows || (!batches.is_empty() && bytes + size > segment_bytes) {
            break;
        }
        bytes += size;
        batches.push((first, batch));
    }
    let Some((first, end)) = batches
        .first()
        .zip(batches.last())
        .map(|((first, _), (last, batch))| (*first, last + batch.events.len() as u64))
    else {
        return Ok(None);
    };
    let epoch = shard.owner.value.epoch;
    let time_ns = batches.iter().flat_map(|(_, batch)| &batch.events).map(time).next().unwrap_or_default();
    let segment = SegmentManifest { end, epoch, bytes, time_ns };
    let keys = batches.iter().map(|(first, _)| QueueRecordKind::Batch.key(*first)).collect();
    let data = record::encode(&SegmentData { batches });
    let object = segment_object(shard, first, epoch);
    let write = Write { guards: Vec::new(), steps: vec![Step::WriteFull(data)] };
    let write = ObjectOp { object, write };
    let mut head = shard.head.value.clone();
    head.left_bytes += bytes;
    let head = Stored::new(head);
    let commit = shard.owned_op().if_xattr(HEAD, &shard.head.raw).set_xattr(HEAD, &head.raw);
    let manifest = (QueueRecordKind::Segment.key(first), record::encode(&segment));
    let commit = commit.omap_set(vec![manifest]).omap_remove(keys);
    let mut log = log.clone();
    log.replace_batches(first, segment);
    Ok(Some(SpillPlan { write, commit, after: Shard { head, ..shard.clone() }, log }))
}

fn segment_object(shard: &Shard, first: u64, epoch: u64) -> ObjectKey {
    let id = &shard.id.value;
    name::segment_object(&id.topic, id.generation, id.shard, first, epoch)
}

fn time(event: &Event) -> u64 {
    event.time_ns
}

/// The segments whose manifests are in a page. They must be removed before the shard of a deleted topic.
pub fn parse_segments(shard: &Shard, page: &[(Bytes, Bytes)]) -> Result<Vec<ObjectKey>> {
    let object = |(key, value): &(Bytes, Bytes)| {
        let first = QueueRecordKind::Segment.sequence(key);
        let first = first.ok_or_else(|| corrupt(&shard.object, "queue", "a key has no sequence number"))?;
        let segment: SegmentManifest = record::decode(&shard.object, value)?;
        Ok(segment_object(shard, first, segment.epoch))
    };
    page.iter().map(object).collect()
}
