//! Reservations: events of changes in bucket indexes that may still be enqueued.
//!
//! A change that may have events stores them in its pending entry from its prepare on, and in the outbox when it is
//! finished and took effect. Ceph reserves room in the queue during this time and counts the reservations; here no room is
//! needed.

use crate::core::Core;
use crate::error::{Error, Result};
use crate::outbox::MAX_PAGE_RECORDS;
use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _};
use nacre_index::key::IndexRecordKind;
use nacre_index::op::{Fetch, Read};
use nacre_index::record::{self, OutboxRecord, Pending};
use nacre_topics::pending::PendingEvents;
use nacre_topics::topic::TopicId;
use nacre_types::encoding;

/// The number of index shards that are read concurrently.
const READINGS: usize = 32;

/// The number of events in pending entries and outbox records that may still be enqueued for a topic. An event that is
/// already in the queue counts until its outbox record is removed.
pub(super) async fn count(core: &Core, topic: TopicId) -> Result<u64> {
    let mut readings = Vec::new();
    for shard in core.outboxes.list().await?.into_iter().flat_map(|bucket| bucket.shards) {
        readings.push(count_in(core, shard, topic).boxed());
    }
    let mut readings = futures::stream::iter(readings).buffer_unordered(READINGS);
    let mut sum = 0;
    while let Some(count) = readings.next().await {
        sum += count?;
    }
    Ok(sum)
}

/// Counts the events in one shard. Pending entries and outbox records are read together, so a change that is finished at
/// the same time counts once.
async fn count_in(core: &Core, shard: String, topic: TopicId) -> Result<u64> {
    let mut sum = 0;
    // The key after which the next page of a kind starts; `None` after the last page.
    let mut cursors =
        [(IndexRecordKind::Pending, Some(Bytes::new())), (IndexRecordKind::Outbox, Some(Bytes::new()))];
    loop {
        let mut fetches = Vec::new();
        for (kind, after) in &cursors {
            if let Some(after) = after.clone() {
                fetches.push(Fetch::Page { prefix: kind.prefix(), after, max: MAX_PAGE_RECORDS });
            }
        }
        if fetches.is_empty() {
            return Ok(sum);
        }
        let Some(reply) = core.rados.read_index(&shard, &Read::of(fetches)).await? else { return Ok(sum) };
        let mut at = 0;
        for (kind, after) in &mut cursors {
            if after.is_none() {
                continue;
            }
            let page = reply.page(at).map_err(|source| Error::Corrupt { object: shard.clone(), source })?;
            at += 1;
            sum += page.entries.iter().map(|(_, value)| events_of(&shard, *kind, value, topic)).sum::<u64>();
            *after = page.entries.last().filter(|_| page.more).map(|(last, _)| last.clone());
        }
    }
}

/// The number of events of a record for a topic. A record that can't be decoded counts as none; the code that finishes or
/// moves it reports the error.
fn events_of(shard: &str, kind: IndexRecordKind, value: &[u8], topic: TopicId) -> u64 {
    let event = match kind {
        IndexRecordKind::Pending => {
            let pending = record::decode::<Pending>(shard, value);
            pending.map(|pending| pending.event.map(|event| (event.fixed, event.candidates)))
        }
        _ => {
            let outbox = record::decode::<OutboxRecord>(shard, value);
            outbox.map(|outbox| Some((outbox.fixed, outbox.candidates)))
        }
    };
    let Ok(Some((fixed, wanted))) = event else { return 0 };
    let Ok(events) = encoding::decode::<PendingEvents>(&fixed) else { return 0 };
    let is_wanted = |id: &String| wanted.is_empty() || wanted.contains(id);
    let events = events.candidates.iter();
    events.filter(|one| one.topic_id == topic && is_wanted(&one.configuration)).count() as u64
}
