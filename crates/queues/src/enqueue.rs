//! Enqueueing: many events of outboxes are added to one shard in one operation, each exactly once.
//!
//! A *mover* reads the shard's state, then outbox records of one or more sources. It enqueues the events that the shard has
//! not had, and then removes the outbox records. Any number of movers may process the same sources at the same time.
//!
//! Deduplication: the operation that enqueues an event adds its id to the *receipts* of its source. A receipt is removed
//! only by an operation whose mover knows that the outbox record is gone. The operation compares the tail, and every
//! operation that changes the log's end or the receipts raises the tail's revision. So if the operation succeeds, the
//! receipts are unchanged since before the mover read the outbox. Suppose an event of that reading was enqueued earlier.
//! Then either its receipt is present, and the mover skips the event. Or its receipt was removed before the state was read;
//! then its outbox record had been removed even earlier, and the later reading of the outbox did not contain it, which
//! contradicts the assumption. [`OutboxPage::basis`] enforces the order of the reads.
//!
//! The receipts of each source are bounded by [`MAX_RECEIPTS`]: a mover that does not remove outbox records can't continue.

use crate::error::Result;
use crate::name::{self, QueueRecordKind, SourceId};
use crate::op::ObjectOp;
use crate::record::{self, Batch, Event, EventId, QueueTail, Receipts, TAIL};
use crate::shard::{ReceiptsBySource, Shard, Stored};
use bytes::Bytes;
use std::collections::BTreeSet;

/// The most bytes of events in one batch, unless it is a single event.
pub const BATCH_BYTES: u64 = 64 << 10;
/// The most events in one batch.
pub const BATCH_EVENTS: usize = 512;
/// The most bytes of events in one operation, unless it is a single event.
pub const MAX_OP_BYTES: u64 = 1 << 20;
/// The most receipts of one source in one shard.
pub const MAX_RECEIPTS: usize = 4096;
/// The most bytes of events in the object itself. Beyond it, outboxes keep their records until the owner has spilled.
pub const MAX_RESIDENT_BYTES: u64 = 32 << 20;

/// The state of a shard that a mover knew before it read an outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownTail {
    /// The shard's generation.
    pub generation: u64,
    /// The revision of its tail.
    pub revision: u64,
}

/// An outbox record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxEvent {
    /// Its id within the source.
    pub id: EventId,
    /// The event.
    pub event: Event,
}

/// A mover's reading of one source: its outbox records for one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxPage {
    /// The source.
    pub source: SourceId,
    /// The state of the shard that was known before these records were seen in the outbox.
    pub basis: KnownTail,
    /// Records that were in the outbox. Records of one key are in their order, and no record is omitted before another one
    /// of the same key.
    pub events: Vec<OutboxEvent>,
    /// The ids of records that are no longer in the outbox.
    pub gone: BTreeSet<EventId>,
    /// Whether `events` are all records of the source for this shard. If so, all other records are gone.
    pub is_complete: bool,
}

/// The result of planning an enqueue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnqueueResult {
    /// This operation is to be executed.
    Write(Box<EnqueuePlan>),
    /// There is nothing to write. These records are already in the queue.
    Nothing(Vec<EnqueuedRecords>),
    /// The mover must take another action first.
    Refused(EnqueueRefusal),
}

/// Records that are in the queue and may be removed from the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnqueuedRecords {
    /// The source.
    pub source: SourceId,
    /// Their ids.
    pub ids: Vec<EventId>,
}

/// The reason why nothing can be enqueued now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnqueueRefusal {
    /// The generation is closed: read the topic again.
    Closed,
    /// The receipts of these sources are unknown: read the shard with them, then the outboxes again.
    UnknownReceipts(Vec<SourceId>),
    /// These sources were read before the shard's state, or occur twice: read them again.
    StalePages(Vec<SourceId>),
    /// These sources have too many receipts: remove outbox records whose events are in the queue.
    TooManyReceipts(Vec<SourceId>),
    /// The object is full: the owner must spill first.
    NotSpilled,
    /// The queue drops its oldest events, and must drop some first.
    NoRoom {
        /// The number of entries to drop.
        entries: u64,
        /// The number of bytes to drop.
        bytes: u64,
    },
}

/// An operation that enqueues events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnqueuePlan {
    /// The operation. ECANCELED and ENOENT mean that the shard changed: read the shard again, then the outboxes.
    pub op: ObjectOp,
    /// The shard after the operation.
    pub after: Shard,
    /// The records that are in the queue after the operation.
    pub moved: Vec<EnqueuedRecords>,
    /// The records that did not fit, with their basis after the operation.
    pub rest: Vec<OutboxPage>,
    /// The number of events that the operation adds.
    pub added: u64,
}

/// The limit for one shard of a queue that drops its oldest events: the topic's limit divided by the number of shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardLimit {
    /// Entries.
    pub entries: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Shard {
    /// The basis of pages that are read from now on.
    pub fn basis(&self) -> KnownTail {
        KnownTail { generation: self.id.value.generation, revision: self.tail.value.revision }
    }
}

/// Plans to enqueue the events of these pages that the shard has not had.
///
/// `limit` is the limit of a topic that drops its oldest events. Other topics have no limit here: admitted events are
/// always enqueued. `resident_bytes` is the most bytes of events in the object itself ([`MAX_RESIDENT_BYTES`]).
pub fn plan(
    shard: &Shard,
    pages: Vec<OutboxPage>,
    limit: Option<ShardLimit>,
    resident_bytes: u64,
) -> Result<EnqueueResult> {
    let named = |wanted: &dyn Fn(&OutboxPage) -> bool| -> Vec<SourceId> {
        pages.iter().filter(|page| wanted(page)).map(|page| page.source.clone()).collect()
    };
    if !shard.is_open {
        return Ok(EnqueueResult::Refused(EnqueueRefusal::Closed));
    }
    let unknown = named(&|page| !shard.receipts.contains_key(&page.source));
    if !unknown.is_empty() {
        return Ok(EnqueueResult::Refused(EnqueueRefusal::UnknownReceipts(unknown)));
    }
    let mut seen = BTreeSet::new();
    let repeated = pages.iter().filter(|page| !seen.insert(&page.source)).map(|page| page.source.clone());
    let mut stale: Vec<SourceId> = repeated.collect();
    stale.extend(named(&|page| page.basis != shard.basis()));
    if !stale.is_empty() {
        return Ok(EnqueueResult::Refused(EnqueueRefusal::StalePages(stale)));
    }
    let mut selection = Selection::new(shard, limit, resident_bytes);
    for page in pages {
        selection.take(page)?;
    }
    Ok(selection.finish())
}

/// The events selected for one operation.
struct Selection<'a> {
    shard: &'a Shard,
    limit: Option<ShardLimit>,
    resident_bytes: u64,
    events: Vec<Event>,
    bytes: u64,
    receipts: ReceiptsBySource,
    moved: Vec<EnqueuedRecords>,
    rest: Vec<OutboxPage>,
    crowded: Vec<SourceId>,
    is_full: bool,
    is_limited: bool,
}

impl<'a> Selection<'a> {
    fn new(shard: &'a Shard, limit: Option<ShardLimit>, resident_bytes: u64) -> Selection<'a> {
        Selection {
            shard,
            limit,
            resident_bytes,
            events: Vec::new(),
            bytes: 0,
            receipts: ReceiptsBySource::new(),
            moved: Vec::new(),
            rest: Vec::new(),
            crowded: Vec::new(),
            is_full: false,
            is_limited: false,
        }
    }

    /// Selects events of a page until the operation is full.
    fn take(&mut self, page: OutboxPage) -> Result<()> {
        let OutboxPage { source, basis, events, gone, is_complete } = page;
        let had = self.shard.receipts.get(&source).cloned().unwrap_or_default();
        let present: BTreeSet<&EventId> = events.iter().map(|outbox| &outbox.id).collect();
        let is_gone = |id: &EventId| gone.contains(id) || (is_complete && !present.contains(id));
        let mut kept: BTreeSet<EventId> = had.iter().filter(|id| !is_gone(id)).cloned().collect();
        let mut moved = Vec::new();
        let mut left = Vec::new();
        for outbox in events {
            outbox.event.check()?;
            if gone.contains(&outbox.id) {
                continue;
            }
            if had.contains(&outbox.id) || kept.contains(&outbox.id) {
                moved.push(outbox.id);
                continue;
            }
            // After an event that does not fit, no later one is taken, to keep the order within the source.
            if !left.is_empty() || !self.fits(&outbox.event) {
                left.push(outbox);
                continue;
            }
            if kept.len() >= MAX_RECEIPTS {
                self.crowded.push(source.clone());
                left.push(outbox);
                continue;
            }
            self.bytes += outbox.event.size_bytes();
            kept.insert(outbox.id.clone());
            moved.push(outbox.id);
            self.events.push(outbox.event);
        }
        if kept != had {
            self.receipts.insert(source.clone(), kept);
        }
        if !moved.is_empty() {
            self.moved.push(EnqueuedRecords { source: source.clone(), ids: moved });
        }
        if !left.is_empty() {
            // The operation already processes the gone records. The rest is not all that the source has.
            self.rest.push(OutboxPage {
                source,
                basis,
                events: left,
                gone: BTreeSet::new(),
                is_complete: false,
            });
        }
        Ok(())
    }

    /// Whether the operation can take another event.
    fn fits(&mut self, event: &Event) -> bool {
        if self.is_full {
            return false;
        }
        let (entries, bytes) = (self.events.len() as u64 + 1, self.bytes + event.size_bytes());
        let is_first = self.events.is_empty();
        let fits_op = is_first || bytes <= MAX_OP_BYTES;
        let fits_object = self.shard.resident_bytes() + bytes <= self.resident_bytes;
        // A queue that has nothing to drop accepts a single event of any size: parked events are not dropped.
        let fits_limit = (is_first && self.shard.is_log_empty())
            || self.limit.is_none_or(|limit| {
                self.shard.entries() + entries <= limit.entries
                    && self.shard.size_bytes() + bytes <= limit.bytes
            });
        self.is_limited |= is_first && !fits_limit;
        self.is_full = !(fits_op && fits_object && fits_limit);
        !self.is_full
    }

    /// The room to be made so that the next operation takes as many events as possible.
    fn needed_room(&self, limit: ShardLimit) -> EnqueueRefusal {
        let (mut entries, mut bytes) = (0, 0);
        for outbox in self.rest.iter().flat_map(|page| &page.events) {
            let size = outbox.event.size_bytes();
            if entries > 0 && (entries >= limit.entries || bytes + size > limit.bytes.min(MAX_OP_BYTES)) {
                break;
            }
            entries += 1;
            bytes += size;
        }
        EnqueueRefusal::NoRoom {
            entries: (self.shard.entries() + entries).saturating_sub(limit.entries),
            bytes: (self.shard.size_bytes() + bytes).saturating_sub(limit.bytes),
        }
    }

    fn finish(self) -> EnqueueResult {
        if self.events.is_empty() && self.receipts.is_empty() {
            return self.without_write();
        }
        let old = self.shard.tail.value;
        let added = self.events.len() as u64;
        let tail =
            QueueTail { revision: old.revision + 1, next: old.next + added, bytes: old.bytes + self.bytes };
        let tail = Stored::new(tail);
        let mut set = batches(old.next, self.events);
        let mut remove = Vec::new();
        let mut after = Shard { tail: tail.clone(), ..self.shard.clone() };
        for (source, ids) in self.receipts {
            let key = name::receipts_key(&source);
            if ids.is_empty() {
                remove.push(key);
            } else {
                set.push((key, record::encode(&Receipts { ids: ids.iter().cloned().collect() })));
            }
            after.receipts.insert(source, ids);
        }
        let op = self.shard.enqueue_op().set_xattr(TAIL, &tail.raw).omap_set(set).omap_remove(remove);
        let mut rest = self.rest;
        rest.iter_mut().for_each(|page| page.basis = after.basis());
        EnqueueResult::Write(Box::new(EnqueuePlan { op, after, moved: self.moved, rest, added }))
    }

    fn without_write(self) -> EnqueueResult {
        if !self.moved.is_empty() || self.rest.is_empty() {
            return EnqueueResult::Nothing(self.moved);
        }
        EnqueueResult::Refused(match self.limit {
            _ if !self.crowded.is_empty() => EnqueueRefusal::TooManyReceipts(self.crowded),
            Some(limit) if self.is_limited => self.needed_room(limit),
            _ => EnqueueRefusal::NotSpilled,
        })
    }
}

/// Groups events into batches, starting with the sequence number `first`.
fn batches(first: u64, events: Vec<Event>) -> Vec<(Bytes, Bytes)> {
    let mut groups: Vec<Vec<Event>> = Vec::new();
    let mut bytes = 0;
    for event in events {
        let size = event.size_bytes();
        match groups.last_mut() {
            Some(group) if group.len() < BATCH_EVENTS && bytes + size <= BATCH_BYTES => {
                bytes += size;
                group.push(event);
            }
            _ => {
                bytes = size;
                groups.push(vec![event]);
            }
        }
    }
    let mut sequence = first;
    let mut records = Vec::with_capacity(groups.len());
    for events in groups {
        let key = QueueRecordKind::Batch.key(sequence);
        sequence += events.len() as u64;
        records.push((key, record::encode(&Batch { events })));
    }
    records
}

#[cfg(test)]
mod tests;
