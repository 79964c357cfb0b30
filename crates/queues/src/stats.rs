//! What `topic stats` shows, with radosgw-admin's figures and ours.

use crate::error::Result;
use crate::name::Kind;
use crate::op::ObjectKey;
use crate::record::{self, Batch, Parked, Segment};
use crate::retry::BreakerState;
use crate::shard::Shard;
use bytes::Bytes;
use std::collections::BTreeSet;

/// What is said of one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardStats {
    /// Its generation.
    pub generation: u64,
    /// The shard.
    pub shard: u32,
    /// Its RADOS object.
    pub object: String,
    /// Events: in the log or parked.
    pub entries: u64,
    /// Their bytes.
    pub size_bytes: u64,
    /// Bytes of batches in the object itself; the others are spilled.
    pub resident_bytes: u64,
    /// Events that were dropped to make room.
    pub dropped: u64,
    /// The session that owns or owned it (`client.NUMBER`); 0 for none yet.
    pub owner: u64,
    /// The owner's epoch.
    pub epoch: u64,
    /// The time of the oldest event, in nanoseconds since 1970; `None` where it is empty.
    pub oldest_ns: Option<u64>,
    /// The breaker of its endpoint in the owner, where a gateway told.
    pub breaker: Option<BreakerState>,
    /// Its PG and that one's primary OSD.
    pub placement: Option<(String, i32)>,
}

impl ShardStats {
    /// Of a shard, with the time of its oldest event.
    pub fn new(shard: &Shard, oldest_ns: Option<u64>) -> ShardStats {
        let id = &shard.id.value;
        ShardStats {
            generation: id.generation,
            shard: id.shard,
            object: shard.object.to_string(),
            entries: shard.entries(),
            size_bytes: shard.size_bytes(),
            resident_bytes: shard.resident_bytes(),
            dropped: shard.head.value.dropped,
            owner: shard.owner.value.client,
            epoch: shard.owner.value.epoch,
            oldest_ns: oldest_ns.filter(|_| !shard.is_empty()),
            breaker: None,
            placement: None,
        }
    }

    /// The age of the oldest event; 0 where it is empty, or where its time is in the future.
    pub fn lag_ns(&self, now_ns: u64) -> u64 {
        self.oldest_ns.map_or(0, |oldest| now_ns.saturating_sub(oldest))
    }
}

/// The sums of a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicStats {
    /// `Reservations`: events that may still be enqueued: of operations in progress, and of finished ones
    /// whose events are in outboxes.
    pub reservations: u64,
    /// `Size`: bytes.
    pub size_bytes: u64,
    /// `Entries`.
    pub entries: u64,
    /// Events that were dropped to make room.
    pub dropped: u64,
    /// The age of the oldest event.
    pub lag_ns: u64,
    /// PGs that the shards of the current generation use.
    pub pgs: usize,
    /// Primary OSDs of these.
    pub primaries: usize,
}

impl TopicStats {
    /// The sums of all shards of all generations. `current` is the number of the current one.
    pub fn new(shards: &[ShardStats], current: u64, reservations: u64, now_ns: u64) -> TopicStats {
        let placed = || {
            shards
                .iter()
                .filter(move |shard| shard.generation == current)
                .filter_map(|shard| shard.placement.as_ref())
        };
        TopicStats {
            reservations,
            size_bytes: shards.iter().map(|shard| shard.size_bytes).sum(),
            entries: shards.iter().map(|shard| shard.entries).sum(),
            dropped: shards.iter().map(|shard| shard.dropped).sum(),
            lag_ns: shards.iter().map(|shard| shard.lag_ns(now_ns)).max().unwrap_or(0),
            pgs: placed().map(|(pg, _)| pg).collect::<BTreeSet<_>>().len(),
            primaries: placed().map(|(_, primary)| primary).collect::<BTreeSet<_>>().len(),
        }
    }
}

/// The time of the oldest event, of a page of the shard's omap: the first batches, segments and parked
/// events. Settled events of the first batch do not count.
pub fn oldest_ns(shard: &Shard, page: &[(Bytes, Bytes)]) -> Result<Option<u64>> {
    let mut oldest: Option<u64> = None;
    for (key, value) in page {
        let time = time_of(shard, key, value, &shard.object)?;
        oldest = oldest.into_iter().chain(time).min();
    }
    Ok(oldest)
}

fn time_of(shard: &Shard, key: &[u8], value: &[u8], object: &ObjectKey) -> Result<Option<u64>> {
    let head = &shard.head.value;
    if let Some(first) = Kind::Batch.sequence(key) {
        let batch: Batch = record::decode(object, value)?;
        let mut waiting = (first..).zip(&batch.events).filter(|(sequence, _)| !head.is_settled(*sequence));
        return Ok(waiting.next().map(|(_, event)| event.time_ns));
    }
    if Kind::Segment.sequence(key).is_some() {
        let segment: Segment = record::decode(object, value)?;
        return Ok((segment.end > head.cursor).then_some(segment.time_ns));
    }
    if Kind::Parked.sequence(key).is_some() {
        return Ok(Some(record::decode::<Parked>(object, value)?.event.time_ns));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(generation: u64, shard: u32, entries: u64, oldest_ns: Option<u64>) -> ShardStats {
        ShardStats {
            generation,
            shard,
            object: String::new(),
            entries,
            size_bytes: entries * 10,
            resident_bytes: 0,
            dropped: 1,
            owner: 0,
            epoch: 0,
            oldest_ns,
            breaker: None,
            placement: Some((format!("3.{}", shard % 2), 7)),
        }
    }

    #[test]
    fn sums_are_over_all_shards_of_all_generations() {
        let shards = [
            shard(1, 0, 3, Some(50)),
            shard(2, 0, 4, Some(70)),
            shard(2, 1, 0, None),
            shard(2, 2, 1, Some(999)),
        ];
        let sums = TopicStats::new(&shards, 2, 5, 100);
        assert_eq!((sums.reservations, sums.size_bytes, sums.entries, sums.dropped), (5, 80, 8, 4));
        assert_eq!((sums.lag_ns, sums.pgs, sums.primaries), (50, 2, 1));
        assert_eq!(TopicStats::new(&[], 1, 0, 100), TopicStats::default());
    }
}
