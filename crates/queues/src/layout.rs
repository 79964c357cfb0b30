//! The generations of a topic's queue, as stored in the topic's record.
//!
//! Each change of the number of shards creates a new *generation*. Events are enqueued into the current one only; older
//! ones are closed and drained. A new topic gets its first generation in the same way. A topic that becomes non-persistent
//! gets a hidden generation with a single shard, for events that are still in outboxes.
//!
//! Changes of the record are compare-and-swap operations of the code that stores it. A change of generations consists of
//! [`QueueLayout::begin`], the steps of [`crate::reshard`], which any gateway may repeat or continue, and [`QueueLayout::commit`].

use crate::error::{Error, Result};
use crate::name::{self, KeyHash, MAX_SHARDS, TopicId};
use crate::op::ObjectKey;
use crate::record::ShardIdentity;
use nacre_types::encoding::Versioned;
use serde::{Deserialize, Serialize};

/// The most generations that wait to be drained. Further changes are refused.
pub const MAX_UNDRAINED: usize = 16;

/// A generation of a topic's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    /// The generation's number, from 1.
    pub number: u64,
    /// The number of its shards, at least 1.
    pub shards: u32,
    /// Whether its shards are objects in the namespace `notif`, shown by `rados ls`, while it is the current one.
    pub is_visible: bool,
}

impl Generation {
    /// The identity of one of its shards.
    pub fn identity(&self, topic: &TopicId, shard: u32) -> ShardIdentity {
        ShardIdentity { topic: topic.clone(), generation: self.number, shard, shards: self.shards }
    }

    /// The shard of a key.
    pub fn shard_of(&self, key: KeyHash) -> u32 {
        key.shard(self.shards)
    }

    /// Its number of visible objects.
    fn visible_shards(&self) -> u32 {
        if self.is_visible { self.shards } else { 0 }
    }
}

/// The generations of a topic's queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueLayout {
    /// The generation into which events are enqueued; `None` for a topic that was never persistent.
    pub current: Option<Generation>,
    /// The generation that is being created.
    pub next: Option<Generation>,
    /// Closed generations that are not yet drained, oldest first.
    pub older: Vec<Generation>,
    /// The highest number of a generation so far.
    pub last_number: u64,
    /// Whether the topic is being deleted: first its objects are removed, then its record.
    pub is_deleted: bool,
}

impl Versioned for QueueLayout {
    const NAME: &'static str = "queue layout";
}

/// The target of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutTarget {
    /// Persistent, with this many shards.
    Shards(u32),
    /// Not persistent.
    NotPersistent,
}

/// The result of [`QueueLayout::begin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeginResult {
    /// The layout now names a new generation: write the record, then execute the steps.
    Started,
    /// There is nothing to do.
    Unchanged,
    /// Another change is in progress: complete it first.
    Busy,
    /// Too many generations are not yet drained.
    TooMany,
    /// The topic is being deleted.
    Deleted,
}

impl QueueLayout {
    /// Whether the topic is persistent.
    pub fn is_persistent(&self) -> bool {
        self.current.is_some_and(|current| current.is_visible)
    }

    /// Starts a change of generations.
    pub fn begin(&mut self, target: LayoutTarget) -> Result<BeginResult> {
        if let LayoutTarget::Shards(shards) = target
            && !(1..=MAX_SHARDS).contains(&shards)
        {
            return Err(Error::InvalidShards { shards, limit: MAX_SHARDS });
        }
        let (shards, is_visible) = match target {
            LayoutTarget::Shards(shards) => (shards, true),
            LayoutTarget::NotPersistent => (1, false),
        };
        if self.is_deleted {
            return Ok(BeginResult::Deleted);
        }
        if self.next.is_some() {
            return Ok(BeginResult::Busy);
        }
        let is_same = match self.current {
            Some(current) => current.shards == shards && current.is_visible == is_visible,
            None => !is_visible,
        };
        if is_same {
            return Ok(BeginResult::Unchanged);
        }
        if self.older.len() >= MAX_UNDRAINED {
            return Ok(BeginResult::TooMany);
        }
        self.last_number += 1;
        self.next = Some(Generation { number: self.last_number, shards, is_visible });
        Ok(BeginResult::Started)
    }

    /// Completes the change to generation `number` after all its steps; `false` if this change is not in progress, because
    /// another gateway completed it.
    #[must_use]
    pub fn commit(&mut self, number: u64) -> bool {
        match self.next {
            Some(next) if next.number == number && !self.is_deleted => {
                self.older.extend(self.current.replace(next));
                self.next = None;
                true
            }
            _ => false,
        }
    }

    /// Removes a generation whose shards are all gone; `false` if it is not there.
    #[must_use]
    pub fn retire(&mut self, number: u64) -> bool {
        let before = self.older.len();
        self.older.retain(|generation| generation.number != number);
        self.older.len() < before
    }

    /// Marks the topic as being deleted.
    pub fn delete(&mut self) {
        self.is_deleted = true;
    }

    /// Generations whose events are to be delivered, oldest first.
    pub fn deliverable(&self) -> impl Iterator<Item = Generation> + '_ {
        self.older.iter().copied().chain(self.current)
    }

    /// Generations whose events are delivered before those of generation `number`.
    pub fn before(&self, number: u64) -> impl Iterator<Item = Generation> + '_ {
        self.deliverable().filter(move |generation| generation.number < number)
    }

    /// The objects of all shards that the topic may have, to be removed when it is deleted.
    pub fn objects(&self, tenant: &str, topic_name: &str, topic: &TopicId) -> Vec<ObjectKey> {
        let all = || self.deliverable().chain(self.next);
        let visible = all().map(|generation| generation.visible_shards()).max().unwrap_or(0);
        let visible = (0..visible).map(|shard| name::queue_object(tenant, topic_name, shard));
        let hidden = all().flat_map(|generation| {
            (0..generation.shards).map(move |shard| name::closed_object(topic, generation.number, shard))
        });
        visible.chain(hidden).collect()
    }
}

/// The objects where a shard may be. If the first one holds another generation, the shard is in the second one.
pub fn candidate_objects(
    tenant: &str,
    topic_name: &str,
    topic: &TopicId,
    generation: Generation,
    shard: u32,
) -> (Option<ObjectKey>, ObjectKey) {
    let visible = generation.is_visible.then(|| name::queue_object(tenant, topic_name, shard));
    (visible, name::closed_object(topic, generation.number, shard))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(layout: &mut QueueLayout, target: LayoutTarget) {
        assert_eq!(layout.begin(target), Ok(BeginResult::Started));
        assert!(layout.commit(layout.last_number));
    }

    #[test]
    fn generations_follow_each_other_until_they_are_drained() {
        let mut layout = QueueLayout::default();
        change(&mut layout, LayoutTarget::Shards(11));
        change(&mut layout, LayoutTarget::Shards(101));
        change(&mut layout, LayoutTarget::Shards(11));
        assert_eq!(layout.current, Some(Generation { number: 3, shards: 11, is_visible: true }));
        assert_eq!(layout.before(3).map(|older| older.shards).collect::<Vec<_>>(), [11, 101]);
        assert_eq!(layout.before(2).map(|older| older.number).collect::<Vec<_>>(), [1]);
        assert!(layout.retire(1) && !layout.retire(1));
        assert_eq!(layout.deliverable().map(|older| older.number).collect::<Vec<_>>(), [2, 3]);
    }

    #[test]
    fn changes_are_made_one_at_a_time_and_bounded() {
        let mut layout = QueueLayout::default();
        assert_eq!(layout.begin(LayoutTarget::NotPersistent), Ok(BeginResult::Unchanged));
        assert_eq!(layout.begin(LayoutTarget::Shards(2)), Ok(BeginResult::Started));
        assert_eq!(layout.begin(LayoutTarget::Shards(3)), Ok(BeginResult::Busy));
        assert!(!layout.commit(7) && layout.commit(1) && !layout.commit(1));
        assert_eq!(layout.begin(LayoutTarget::Shards(2)), Ok(BeginResult::Unchanged));
        for shards in 0..MAX_UNDRAINED as u32 {
            change(&mut layout, LayoutTarget::Shards(3 + shards));
        }
        assert_eq!(layout.begin(LayoutTarget::Shards(2)), Ok(BeginResult::TooMany));
        assert!(layout.retire(1));
        assert_eq!(layout.begin(LayoutTarget::Shards(2)), Ok(BeginResult::Started));
        for shards in [0, MAX_SHARDS + 1] {
            assert!(QueueLayout::default().begin(LayoutTarget::Shards(shards)).is_err());
        }
    }

    #[test]
    fn a_topic_that_is_not_persistent_any_more_keeps_a_hidden_shard() {
        let mut layout = QueueLayout::default();
        change(&mut layout, LayoutTarget::Shards(11));
        change(&mut layout, LayoutTarget::NotPersistent);
        assert!(!layout.is_persistent());
        let topic = TopicId::new("id").expect("valid");
        let current = layout.current.expect("there is one");
        assert_eq!(candidate_objects("", "t", &topic, current, 0), (None, name::closed_object(&topic, 2, 0)));
        change(&mut layout, LayoutTarget::Shards(11));
        assert!(layout.is_persistent());
        assert_eq!(layout.objects("", "t", &topic).len(), 11 + 11 + 1 + 11);
    }

    #[test]
    fn a_deleted_topic_changes_no_more() {
        let mut layout = QueueLayout::default();
        assert_eq!(layout.begin(LayoutTarget::Shards(2)), Ok(BeginResult::Started));
        layout.delete();
        assert!(!layout.commit(1));
        assert_eq!(layout.begin(LayoutTarget::Shards(3)), Ok(BeginResult::Deleted));
        let topic = TopicId::new("id").expect("valid");
        assert_eq!(layout.objects("", "t", &topic).len(), 4, "what was being made is removed as well");
    }
}
