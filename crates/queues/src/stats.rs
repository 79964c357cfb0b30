//! The content of `topic stats`: the figures of radosgw-admin, and additional ones.

use crate::error::Result;
use crate::name::QueueRecordKind;
use crate::op::ObjectKey;
use crate::record::{self, Batch, ParkedEvent, SegmentManifest};
use crate::retry::BreakerState;
use crate::shard::Shard;
use bytes::Bytes;
use std::collections::BTreeSet;

/// The figures of one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardStats {
    /// Its generation.
    pub generation: u64,
    /// The shard.
    pub shard: u32,
    /// Its RADOS object.
    pub object: String,
    /// The number of events in the log or parked.
    pub entries: u64,
    /// The bytes of these events.
    pub size_bytes: u64,
    /// The bytes in batches in the object itself; the others are spilled.
    pub resident_bytes: u64,
    /// The number of events that were dropped to make room.
    pub dropped: u64,
    /// The session of the current or last owner (`client.NUMBER`); 0 if there was none.
    pub owner: u64,
    /// The owner's epoch.
    pub epoch: u64,
    /// The time of the oldest event, in nanoseconds since 1970; `None` if the shard is empty.
    pub oldest_ns: Option<u64>,
    /// The state of the endpoint's breaker in the owner, if a gateway reported it.
    pub breaker: Option<BreakerState>,
    /// Its PG and the PG's primary OSD.
    pub placement: Option<(String, i32)>,
}

impl ShardStats {
    /// The figures of `shard`, with the time of its oldest event.
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

    /// The age of the oldest event; 0 if the shard is empty, or if that time is in the future.
    pub fn lag_ns(&self, now_ns: u64) -> u64 {
        self.oldest_ns.map_or(0, |oldest| now_ns.saturating_sub(oldest))
    }
}

/// The figures of a topic, summed over its shards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicStats {
    /// `Reservations`: events that may still be enqueued, of operations in progress and of finished operations whose events
    /// are in outboxes.
    pub reservations: u64,
    /// `Size`, in bytes.
    pub size_bytes: u64,
    /// `Entries`.
    pub entries: u64,
    /// The number of events that were dropped to make room.
    pub dropped: u64,
    /// The age of the oldest event.
    pub lag_ns: u64,
    /// The number of PGs with shards of the current generation.
    pub pgs: usize,
    /// The number of primary OSDs of these PGs.
    pub primaries: usize,
}

impl TopicStats {
    /// Sums up all shards of all generations. `current` is the number of the current generation.
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

/// The time of the oldest event in a page of the shard's omap, which contains the first batches, segments and parked
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
    if let Some(first) = QueueRecordKind::Batch.sequence(key) {
        let batch: Batch = record::decode(object, value)?;
        let mut waiting = (first..).zip(&batch.events).filter(|(sequence, _)| !head.is_settled(*sequence));
        return Ok(waiting.next().map(|(_, event)| event.time_ns));
    }
    if QueueRecordKind::Segment.sequence(key).is_some() {
        let segment: SegmentManifest = record::decode(object, value)?;
        return Ok((segment.end > head.cursor).then_some(segment.time_ns));
    }
    if QueueRecordKind::Parked.sequence(key).is_some() {
        return Ok(Some(record::decode::<ParkedEvent>(object, value)?.event.time_ns));
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
