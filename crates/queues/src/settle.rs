//! Settling: operations of the shard's owner record the outcome of events.
//!
//! One operation moves the cursor, removes batches that are completely settled, writes and removes parked events, and adds
//! dead letters. It compares the shard's identity, its owner and its head. So a fenced owner changes nothing, each event is
//! counted as removed exactly once, and an event is a dead letter if and only if it is no longer in the queue.

use crate::error::{Result, corrupt};
use crate::name::{self, QueueRecordKind};
use crate::op::{ObjectKey, ObjectOp, ObjectRead};
use crate::record::{
    self, Batch, DeadLetter, Event, EventId, HEAD, MAX_EVENT_BYTES, OPEN, ParkedEvent, QueueHead, STATE,
    SegmentData, SegmentManifest,
};
use crate::shard::{Shard, Stored};
use bytes::Bytes;
use nacre_types::encoding::Versioned;
use std::collections::BTreeMap;

/// The most events that one operation settles.
pub const MAX_SETTLED: usize = 1024;

/// The place of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventPlace {
    /// In a batch or a segment.
    Log,
    /// Parked.
    Parked,
}

/// The outcome of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventOutcome {
    /// It was delivered.
    Delivered,
    /// It waits outside of the log for another attempt.
    Parked(ParkedEvent),
    /// It will not be delivered.
    Dead(DeadLetter),
}

/// An event and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The event.
    pub sequence: u64,
    /// Its current place.
    pub place: EventPlace,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its outcome.
    pub fate: EventOutcome,
}

/// A part of the log: a batch or a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPart {
    /// The sequence number after its last event.
    pub end: u64,
    /// The bytes of its events.
    pub bytes: u64,
    /// For a segment, the epoch in its name.
    pub segment: Option<u64>,
}

/// The part of a shard's log that was read, by the sequence numbers of first events.
///
/// Only the owner has one. Batches are added in order, as they are read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogIndex {
    stretches: BTreeMap<u64, LogPart>,
    /// Segments whose events are settled and whose objects may be removed.
    finished: BTreeMap<u64, LogPart>,
    /// The last batch that was removed from the object.
    last_removed: Option<u64>,
}

/// Events of a part of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadedEvents {
    /// The events that are not settled, by sequence number.
    pub events: Vec<(u64, Event)>,
    /// The sequence number after that part.
    pub end: u64,
}

impl LogIndex {
    /// Adds a page of batches, which was read in the same operation as `shard`. Returns its events that are not settled.
    pub fn add_batches(&mut self, shard: &Shard, page: &[(Bytes, Bytes)]) -> Result<LoadedEvents> {
        let mut events = Vec::new();
        let mut loaded_to = None;
        for (key, value) in page {
            let first = sequence(&shard.object, QueueRecordKind::Batch, key)?;
            let batch: Batch = record::decode(&shard.object, value)?;
            let end = first + batch.events.len() as u64;
            if end > shard.tail.value.next || batch.events.is_empty() {
                return Err(corrupt(&shard.object, Batch::NAME, "it is empty or beyond the tail"));
            }
            loaded_to = Some(end);
            self.stretches.insert(first, LogPart { end, bytes: batch.size_bytes(), segment: None });
            add_events(&shard.head.value, first, batch, &mut events);
        }
        Ok(LoadedEvents { events, end: loaded_to.unwrap_or(shard.tail.value.next) })
    }

    /// The cursor ([`read_batches`]'s `after`) from which a read returns the batch with the event `from`.
    pub fn batch_cursor(&self, from: u64) -> Option<u64> {
        let before = self.stretches.range(..from);
        let before = before.filter(|(_, stretch)| stretch.segment.is_none() && stretch.end <= from);
        before.map(|(first, _)| *first).max().max(self.last_removed)
    }

    /// Adds manifests of segments. Settled segments are only recorded for removal.
    pub fn add_segments(&mut self, shard: &Shard, page: &[(Bytes, Bytes)]) -> Result<()> {
        for (key, value) in page {
            let first = sequence(&shard.object, QueueRecordKind::Segment, key)?;
            let segment: SegmentManifest = record::decode(&shard.object, value)?;
            let stretch = LogPart { end: segment.end, bytes: segment.bytes, segment: Some(segment.epoch) };
            let is_settled = segment.end <= shard.head.value.cursor;
            let stretches = if is_settled { &mut self.finished } else { &mut self.stretches };
            stretches.insert(first, stretch);
        }
        Ok(())
    }

    /// Decodes the data of a segment. Returns its events that are not settled.
    pub fn decode_segment(&self, shard: &Shard, first: u64, data: &[u8]) -> Result<LoadedEvents> {
        let what = "spill segment";
        let stretch = self.stretches.get(&first).filter(|stretch| stretch.segment.is_some());
        let stretch = stretch.ok_or_else(|| corrupt(&shard.object, what, "it has no manifest"))?;
        let data: SegmentData = record::decode(&shard.object, data)?;
        let mut next = first;
        let mut events = Vec::new();
        for (batch_first, batch) in data.batches {
            if batch_first != next {
                return Err(corrupt(&shard.object, what, format!("batch {batch_first} follows {next}")));
            }
            next += batch.events.len() as u64;
            add_events(&shard.head.value, batch_first, batch, &mut events);
        }
        if next != stretch.end {
            return Err(corrupt(&shard.object, what, format!("it ends at {next}, not {}", stretch.end)));
        }
        Ok(LoadedEvents { events, end: next })
    }

    /// The segment with the event `from`, or the first one after it: the sequence number of its first event, and its
    /// object.
    pub fn segment_from(&self, shard: &Shard, from: u64) -> Option<(u64, ObjectKey)> {
        let segment =
            self.stretches.iter().find(|(_, stretch)| stretch.segment.is_some() && stretch.end > from);
        segment.map(|(first, stretch)| (*first, segment_object(shard, *first, *stretch)))
    }

    /// The segments whose objects may be removed, and the operation that removes their manifests afterwards.
    pub fn removable_segments(&self, shard: &Shard) -> Option<(Vec<ObjectKey>, ObjectOp)> {
        if self.finished.is_empty() {
            return None;
        }
        let objects = self.finished.iter().map(|(first, stretch)| segment_object(shard, *first, *stretch));
        let manifests = self.finished.keys().map(|first| QueueRecordKind::Segment.key(*first)).collect();
        Some((objects.collect(), shard.owned_op().omap_remove(manifests)))
    }

    /// Whether [`settle`] has something to remove although nothing new is settled, because other gateways dropped events.
    pub fn needs_trim(&self, shard: &Shard) -> bool {
        // Parts of the log are contiguous, so the first one ends first.
        let first = self.stretches.first_key_value();
        !self.finished.is_empty() || first.is_some_and(|(_, stretch)| stretch.end <= shard.head.value.cursor)
    }

    /// Forgets the segments that [`LogIndex::removable_segments`] returned, after its operation succeeded.
    pub fn forget_removed_segments(&mut self) {
        self.finished.clear();
    }

    /// Removes the parts below the cursor. Returns the keys of the batches to be removed, and their bytes.
    fn pass(&mut self, cursor: u64) -> (Vec<Bytes>, u64) {
        let mut keys = Vec::new();
        let mut bytes = 0;
        let passed: Vec<u64> = self
            .stretches
            .range(..cursor)
            .filter(|(_, stretch)| stretch.end <= cursor)
            .map(|(f, _)| *f)
            .collect();
        for first in passed {
            let Some(stretch) = self.stretches.remove(&first) else { continue };
            if stretch.segment.is_some() {
                self.finished.insert(first, stretch);
            } else {
                keys.push(QueueRecordKind::Batch.key(first));
                bytes += stretch.bytes;
                self.last_removed = self.last_removed.max(Some(first));
            }
        }
        (keys, bytes)
    }

    /// Replaces batches with the segment into which they were spilled.
    pub(crate) fn replace_batches(&mut self, first: u64, segment: SegmentManifest) {
        let batches: Vec<u64> = self.stretches.range(first..segment.end).map(|(first, _)| *first).collect();
        for batch in batches {
            self.stretches.remove(&batch);
        }
        self.last_removed = self.last_removed.max(segment.end.checked_sub(1));
        let stretch = LogPart { end: segment.end, bytes: segment.bytes, segment: Some(segment.epoch) };
        self.stretches.insert(first, stretch);
    }
}

fn segment_object(shard: &Shard, first: u64, stretch: LogPart) -> ObjectKey {
    let id = &shard.id.value;
    let epoch = stretch.segment.unwrap_or_default();
    name::segment_object(&id.topic, id.generation, id.shard, first, epoch)
}

fn add_events(head: &QueueHead, first: u64, batch: Batch, events: &mut Vec<(u64, Event)>) {
    let numbered = (first..).zip(batch.events);
    events.extend(numbered.filter(|(sequence, _)| !head.is_settled(*sequence)));
}

fn sequence(object: &ObjectKey, kind: QueueRecordKind, key: &[u8]) -> Result<u64> {
    kind.sequence(key).ok_or_else(|| corrupt(object, "queue", "a key has no sequence number"))
}

/// Reads the batches after `after`; an empty `after` starts with the first one.
pub fn read_batches(object: &ObjectKey, after: Option<u64>, max: u64) -> ObjectRead {
    let after = after.map(|first| QueueRecordKind::Batch.key(first)).unwrap_or_default();
    ObjectRead::page(object, after, QueueRecordKind::Batch.prefix(), max)
}

/// Reads parked events, manifests of segments, or dead letters. The reply is valid if [`Shard::has_same_owner`] confirms it.
pub fn read_records(object: &ObjectKey, kind: QueueRecordKind, after: Bytes, max: u64) -> ObjectRead {
    ObjectRead::page(object, after, kind.prefix(), max)
}

/// An operation that settles events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettlePlan {
    /// The operation. ECANCELED means that the shard has another owner, or that events were dropped: read the shard again.
    /// Also read the shard if the result is unknown. The operation was executed if the head is that of `after`, and it can
    /// be repeated if the head is unchanged. Otherwise release the lease and start with a new window.
    pub op: ObjectOp,
    /// The shard after the operation.
    pub after: Shard,
    /// The log after the operation.
    pub log: LogIndex,
}

/// Plans to settle events. Events of the log that are already settled are skipped.
///
/// Events of the log must be in the part that `log` contains.
pub fn settle(shard: &Shard, log: &LogIndex, settlements: &[Settlement]) -> SettlePlan {
    let id = &shard.id.value;
    let mut head = shard.head.value.clone();
    let (mut set, mut remove) = (Vec::new(), Vec::new());
    for settlement in settlements {
        let Settlement { sequence, place, bytes, fate } = settlement;
        if *place == EventPlace::Log && !head.settle(*sequence) {
            continue;
        }
        if let EventOutcome::Parked(parked) = fate {
            set.push((QueueRecordKind::Parked.key(*sequence), record::encode(parked)));
            continue;
        }
        if *place == EventPlace::Parked {
            remove.push(QueueRecordKind::Parked.key(*sequence));
        }
        if let EventOutcome::Dead(letter) = fate {
            set.push((QueueRecordKind::Dead.key(head.next_dead), record::encode(letter)));
            head.next_dead += 1;
        }
        head.removed += 1;
        head.removed_bytes += bytes;
    }
    let mut log = log.clone();
    let (passed, left) = log.pass(head.cursor);
    remove.extend(passed);
    head.left_bytes += left;
    debug_assert!(head.removed <= shard.tail.value.next, "{id:?}: {head:?}");
    let head = Stored::new(head);
    let op = shard.owned_op().if_xattr(HEAD, &shard.head.raw).set_xattr(HEAD, &head.raw);
    let op = op.omap_set(set).omap_remove(remove);
    SettlePlan { op, after: Shard { head, ..shard.clone() }, log }
}

/// An event of the log that may be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropCandidate {
    /// Its sequence number.
    pub sequence: u64,
    /// Its size in bytes.
    pub bytes: u64,
}

/// Plans to drop the oldest events of the log until there is this much room, or until all of `oldest` are dropped; `None`
/// if there is none to drop.
///
/// Any mover may do this, not only the owner. The operation compares the head, so each event is counted once. The owner
/// notices the changed head when it settles next, and removes the batches then.
pub fn drop_oldest(
    shard: &Shard,
    oldest: &[DropCandidate],
    entries: u64,
    bytes: u64,
) -> Option<(ObjectOp, Shard)> {
    let mut head = shard.head.value.clone();
    let (mut dropped, mut dropped_bytes) = (0, 0);
    for event in oldest {
        if dropped >= entries && dropped_bytes >= bytes {
            break;
        }
        if head.settle(event.sequence) {
            dropped += 1;
            dropped_bytes += event.bytes;
        }
    }
    if dropped == 0 {
        return None;
    }
    head.removed += dropped;
    head.removed_bytes += dropped_bytes;
    head.dropped += dropped;
    let head = Stored::new(head);
    let op = shard.op().if_xattr(STATE, &Bytes::from_static(OPEN)).if_xattr(HEAD, &shard.head.raw);
    let op = op.set_xattr(HEAD, &head.raw);
    Some((op, Shard { head, ..shard.clone() }))
}

/// The id of a dead letter that is not yet in the dead-letter queue: unique within its shard's source.
pub fn dead_letter_id(number: u64) -> EventId {
    EventId::new(number.to_be_bytes().to_vec()).expect("invariant: eight bytes are a valid id")
}

/// Removes dead letters that are in the dead-letter queue. Owner only: the copy made by a change of generations must not
/// contain letters that are removed here.
pub fn remove_dead_letters(shard: &Shard, numbers: &[u64]) -> ObjectOp {
    shard.owned_op().omap_remove(numbers.iter().map(|number| QueueRecordKind::Dead.key(*number)).collect())
}

/// Decodes the dead letters of a page, with their numbers.
pub fn parse_dead_letters(object: &ObjectKey, page: &[(Bytes, Bytes)]) -> Result<Vec<(u64, DeadLetter)>> {
    page.iter()
        .map(|(key, value)| {
            Ok((sequence(object, QueueRecordKind::Dead, key)?, record::decode(object, value)?))
        })
        .collect()
}

/// The most bytes of events that a settling operation may write, unless it is a single event.
pub const MAX_SETTLED_BYTES: u64 = 4 * MAX_EVENT_BYTES as u64;

#[cfg(test)]
mod tests;
