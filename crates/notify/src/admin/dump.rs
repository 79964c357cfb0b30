//! The events of a topic's queue, for operators: first the parked ones, then those of the log in spill segments and in
//! batches.
//!
//! Delivery continues during a dump, so events that are settled in the meantime may be included or not.

use super::{QueuedEvent, decode};
use crate::core::Core;
use crate::error::Result;
use crate::queue_shard::{locate, read_shard};
use crate::topic_store::StoredTopic;
use bytes::Bytes;
use nacre_queues::layout::Generation;
use nacre_queues::name::QueueRecordKind;
use nacre_queues::op::{ObjectRead, ObjectReply};
use nacre_queues::settle::{self, LoadedEvents, LogIndex};
use nacre_queues::shard::{self, Shard};

/// The number of records in a page.
const PAGE: u64 = 64;
/// The most repeated reads of a shard whose events are moved at the same time. The rest of the shard is omitted after that.
const READ_ATTEMPTS: usize = 16;

/// Up to `max` events of a topic's queue, oldest first in each shard.
pub(crate) async fn dump(core: &Core, stored: &StoredTopic, max: usize) -> Result<Vec<QueuedEvent>> {
    let mut found = Vec::new();
    for generation in stored.record.layout.deliverable() {
        for index in 0..generation.shards {
            if found.len() >= max {
                break;
            }
            let located = locate(&core.rados, stored, generation, index, ObjectRead::attributes).await?;
            if let Some((shard, _)) = located {
                dump_shard(core, generation, shard, max, &mut found).await?;
            }
        }
    }
    found.truncate(max);
    Ok(found)
}

/// Reads from a shard; `None` if it is gone, or if its object has other content.
async fn read(core: &Core, shard: &Shard, read: &ObjectRead) -> Result<Option<ObjectReply>> {
    let reply = core.rados.read(read).await?;
    let is_same =
        |reply: &ObjectReply| shard::identity_of(&shard.object, reply).is_ok_and(|id| id == shard.id);
    Ok(reply.filter(is_same))
}

async fn dump_shard(
    core: &Core,
    generation: Generation,
    mut shard: Shard,
    max: usize,
    found: &mut Vec<QueuedEvent>,
) -> Result<()> {
    let (generation, index) = (generation.number, shard.id.value.shard);
    let mut after = Bytes::new();
    while found.len() < max {
        let page = settle::read_records(&shard.object, QueueRecordKind::Parked, after, PAGE);
        let Some(reply) = read(core, &shard, &page).await? else { return Ok(()) };
        for (sequence, parked) in shard::parse_parked(&shard.object, &reply.page)? {
            found.push(QueuedEvent {
                generation,
                shard: index,
                sequence,
                event: decode(&shard.object, &parked.event.payload)?,
                is_replayed: parked.event.replayed,
                attempts: Some(parked.attempts),
                detail: parked.detail,
            });
        }
        let Some((last, _)) = reply.page.last().filter(|_| reply.more) else { break };
        after = last.clone();
    }
    let mut log = LogIndex::default();
    if !add_segments(core, &shard, &mut log).await? {
        return Ok(());
    }
    let mut from = shard.head.value.cursor;
    let mut attempts = 0;
    while found.len() < max && from < shard.tail.value.next {
        let loaded = match load(core, &mut shard, &mut log, from).await? {
            Part::Events(loaded) => loaded,
            Part::Gone => return Ok(()),
            // Batches were spilled, or events were settled, since the manifests were read.
            Part::Moved if attempts < READ_ATTEMPTS => {
                attempts += 1;
                let Some(now) = read_shard(&core.rados, &shard).await? else { return Ok(()) };
                from = from.max(now.head.value.cursor);
                (shard, log) = (now, LogIndex::default());
                if !add_segments(core, &shard, &mut log).await? {
                    return Ok(());
                }
                continue;
            }
            Part::Moved => return Ok(()),
        };
        attempts = 0;
        for (sequence, event) in loaded.events.into_iter().filter(|(sequence, _)| *sequence >= from) {
            found.push(QueuedEvent {
                generation,
                shard: index,
                sequence,
                event: decode(&shard.object, &event.payload)?,
                is_replayed: event.replayed,
                attempts: None,
                detail: String::new(),
            });
        }
        if loaded.end <= from {
            return Ok(());
        }
        from = loaded.end;
    }
    Ok(())
}

/// Reads the manifests of all segments; `false` if the shard is gone.
async fn add_segments(core: &Core, shard: &Shard, log: &mut LogIndex) -> Result<bool> {
    let mut after = Bytes::new();
    loop {
        let page = settle::read_records(&shard.object, QueueRecordKind::Segment, after, PAGE);
        let Some(reply) = read(core, shard, &page).await? else { return Ok(false) };
        log.add_segments(shard, &reply.page)?;
        let Some((last, _)) = reply.page.last().filter(|_| reply.more) else { return Ok(true) };
        after = last.clone();
    }
}

/// A part of a log.
enum Part {
    Events(LoadedEvents),
    /// The events were moved or settled in the meantime.
    Moved,
    /// The shard is gone.
    Gone,
}

/// Reads the part of a log that starts with the event `from`.
async fn load(core: &Core, shard: &mut Shard, log: &mut LogIndex, from: u64) -> Result<Part> {
    if let Some((first, segment)) = log.segment_from(shard, from) {
        return Ok(match core.rados.read(&ObjectRead::data(&segment)).await? {
            Some(reply) => Part::Events(log.decode_segment(shard, first, &reply.data)?),
            None => Part::Moved,
        });
    }
    let page = settle::read_batches(&shard.object, log.batch_cursor(from), PAGE);
    let Some(reply) = read(core, shard, &page).await? else { return Ok(Part::Gone) };
    *shard = Shard::from_reply(&shard.object, &[], &reply)?;
    let first = reply.page.first().and_then(|(key, _)| QueueRecordKind::Batch.sequence(key));
    if first.is_none_or(|first| first > from) {
        return Ok(Part::Moved);
    }
    Ok(Part::Events(log.add_batches(shard, &reply.page)?))
}
