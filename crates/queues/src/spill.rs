//! Spilling: the owner moves batches from the shard's object into objects of their own, so that a queue
//! behind a dead endpoint grows without bound while the shard's object stays small.
//!
//! Steps: write the segment's object; then, in one operation on the shard, add its manifest and remove the
//! batches. A segment belongs to the queue exactly if the shard has its manifest. Its name has the owner's
//! epoch, so that what a fenced owner still writes is an object of its own that no manifest names; a sweep
//! removes such objects. A segment is removed after the cursor has passed it, and its manifest after that.

use crate::enqueue::MAX_RESIDENT_BYTES;
use crate::error::{Result, corrupt};
use crate::name::{self, Kind};
use crate::op::{ObjectKey, ObjectOp, Step, Write};
use crate::record::{self, Batch, Event, HEAD, Segment, SegmentData};
use crate::settle::LogMap;
use crate::shard::{Shard, Stored};
use bytes::Bytes;

/// Bytes of events in a segment at most, unless it is one batch.
pub const SEGMENT_BYTES: u64 = 4 << 20;
/// An object with more bytes of events than this is spilled, as long as its events are not delivered soon.
pub const SPILL_ABOVE_BYTES: u64 = 2 * SEGMENT_BYTES;

/// When a shard's object is spilled, and into what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpillLimits {
    /// Bytes of events in a segment at most, unless it is one batch.
    pub segment_bytes: u64,
    /// An object with more bytes of events than this is spilled, as long as its events are not delivered soon. At least
    /// `segment_bytes`.
    pub above_bytes: u64,
    /// Bytes of events in the object itself at most ([`crate::enqueue::plan`]). More than `above_bytes` by several events.
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

/// How to spill some batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpillPlan {
    /// Writes the segment. No other owner writes this object, so it may be repeated.
    pub write: ObjectOp,
    /// Names it in the shard.
    pub commit: ObjectOp,
    /// The shard after that.
    pub after: Shard,
    /// The log after that.
    pub log: LogMap,
}

/// Plans to spill the batches of a page, which is the beginning of the shard's batches
/// ([`crate::settle::read_batches`] without `after`), as far as they fit into a segment of `segment_bytes`
/// ([`SpillLimits`]). `None` where there are none.
pub fn plan(
    shard: &Shard,
    log: &LogMap,
    page: &[(Bytes, Bytes)],
    segment_bytes: u64,
) -> Result<Option<SpillPlan>> {
    let mut batches: Vec<(u64, Batch)> = Vec::new();
    let mut bytes = 0;
    for (key, value) in page {
        let first = Kind::Batch.sequence(key);
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
    let segment = Segment { end, epoch, bytes, time_ns };
    let keys = batches.iter().map(|(first, _)| Kind::Batch.key(*first)).collect();
    let data = record::encode(&SegmentData { batches });
    let object = segment_object(shard, first, epoch);
    let write = Write { guards: Vec::new(), steps: vec![Step::WriteFull(data)] };
    let write = ObjectOp { object, write };
    let mut head = shard.head.value.clone();
    head.left_bytes += bytes;
    let head = Stored::new(head);
    let commit = shard.owned_op().if_xattr(HEAD, &shard.head.raw).set_xattr(HEAD, &head.raw);
    let manifest = (Kind::Segment.key(first), record::encode(&segment));
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

/// The segments of a shard, by the manifests of a page: to be removed before the shard of a deleted topic is.
pub fn segments_of(shard: &Shard, page: &[(Bytes, Bytes)]) -> Result<Vec<ObjectKey>> {
    let object = |(key, value): &(Bytes, Bytes)| {
        let first = Kind::Segment.sequence(key);
        let first = first.ok_or_else(|| corrupt(&shard.object, "queue", "a key has no sequence number"))?;
        let segment: Segment = record::decode(&shard.object, value)?;
        Ok(segment_object(shard, first, segment.epoch))
    };
    page.iter().map(object).collect()
}
