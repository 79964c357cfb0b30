//! The shards of bucket indexes whose outboxes must be processed.

use parking_lot::Mutex;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// The most shards of an index in one turn.
const SHARDS_PER_TURN: usize = 64;
/// The most object keys that are remembered for a shard. Beyond it, its whole outbox is read.
const MAX_KEYS: usize = 256;

/// The part of a shard's outbox to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OutboxPart {
    /// The records of these objects. Other records, and traces of removed records, are not read.
    Keys(BTreeSet<String>),
    /// All records.
    All,
}

impl OutboxPart {
    /// The records of these objects, or of all objects if `keys` is empty or has too many.
    pub(super) fn of_keys(keys: &[String]) -> OutboxPart {
        match keys.len() {
            1..=MAX_KEYS => OutboxPart::Keys(keys.iter().cloned().collect()),
            _ => OutboxPart::All,
        }
    }

    fn add(&mut self, more: OutboxPart) {
        let is_too_much = match (&mut *self, more) {
            (OutboxPart::Keys(keys), OutboxPart::Keys(more)) => {
                keys.extend(more);
                keys.len() > MAX_KEYS
            }
            _ => true,
        };
        if is_too_much {
            *self = OutboxPart::All;
        }
    }
}

/// The buckets that have a mover, with their shards to be processed.
#[derive(Default)]
pub(super) struct DirtyBuckets {
    buckets: Mutex<BTreeMap<String, DirtyShards>>,
}

#[derive(Default)]
struct DirtyShards {
    shards: BTreeMap<String, OutboxPart>,
    /// The last shard that was taken.
    last: String,
    /// Whether shards were added since the mover last checked.
    has_news: bool,
}

impl DirtyShards {
    fn after_last(&self) -> Option<String> {
        let mut behind = self.shards.range::<str, _>((Bound::Excluded(self.last.as_str()), Bound::Unbounded));
        behind.next().or_else(|| self.shards.first_key_value()).map(|(shard, _)| shard.clone())
    }
}

impl DirtyBuckets {
    /// Adds shards to be processed. Returns whether the bucket had no mover.
    pub(super) fn add(&self, bucket: &str, shards: impl IntoIterator<Item = (String, OutboxPart)>) -> bool {
        let mut buckets = self.buckets.lock();
        let is_new = !buckets.contains_key(bucket);
        let dirty = buckets.entry(bucket.to_owned()).or_default();
        for (shard, part) in shards {
            match dirty.shards.entry(shard) {
                Entry::Vacant(new) => drop(new.insert(part)),
                Entry::Occupied(mut known) => known.get_mut().add(part),
            }
        }
        dirty.has_news = true;
        is_new
    }

    /// Takes shards to process. If there are none, the bucket's mover ends.
    pub(super) fn take(&self, bucket: &str) -> Vec<(String, OutboxPart)> {
        let mut buckets = self.buckets.lock();
        let Some(dirty) = buckets.get_mut(bucket) else { return Vec::new() };
        let mut taken = Vec::new();
        // Shards take turns, because the first ones may always have records.
        while taken.len() < SHARDS_PER_TURN
            && let Some(shard) = dirty.after_last()
        {
            let Some(part) = dirty.shards.remove(&shard) else { break };
            dirty.last.clone_from(&shard);
            taken.push((shard, part));
        }
        if taken.is_empty() {
            buckets.remove(bucket);
        }
        taken
    }

    /// Whether shards were added since the last call.
    pub(super) fn take_news(&self, bucket: &str) -> bool {
        let mut buckets = self.buckets.lock();
        buckets.get_mut(bucket).is_some_and(|dirty| std::mem::take(&mut dirty.has_news))
    }

    /// The bucket's mover ends.
    pub(super) fn remove(&self, bucket: &str) {
        self.buckets.lock().remove(bucket);
    }

    /// The number of index shards to be processed.
    pub(super) fn backlog(&self) -> usize {
        self.buckets.lock().values().map(|dirty| dirty.shards.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shard_of_a_large_index_has_its_turn() {
        let dirty = DirtyBuckets::default();
        let names = || (0..100).map(|number| (format!("shard.{number:03}"), OutboxPart::All));
        assert!(dirty.add("bucket", names()));
        let first = dirty.take("bucket");
        assert!(!dirty.add("bucket", names()));
        let second = dirty.take("bucket");
        assert_eq!((first.len(), second.len()), (SHARDS_PER_TURN, SHARDS_PER_TURN));
        let seen: BTreeSet<String> = first.into_iter().chain(second).map(|(shard, _)| shard).collect();
        assert_eq!(seen.len(), 100);
    }

    #[test]
    fn keys_are_remembered_as_long_as_they_are_few() {
        let keys =
            |from: usize, to: usize| OutboxPart::Keys((from..to).map(|number| number.to_string()).collect());
        let dirty = DirtyBuckets::default();
        dirty.add("bucket", [("shard".to_owned(), keys(0, 2))]);
        dirty.add("bucket", [("shard".to_owned(), keys(1, 3))]);
        assert_eq!(dirty.take("bucket"), [("shard".to_owned(), keys(0, 3))]);
        for more in [keys(0, MAX_KEYS + 1), OutboxPart::All] {
            dirty.add("bucket", [("shard".to_owned(), keys(0, 1))]);
            dirty.add("bucket", [("shard".to_owned(), more)]);
            assert_eq!(dirty.take("bucket"), [("shard".to_owned(), OutboxPart::All)]);
        }
    }
}
